// emu_mma.h: the warp-wide matrix instructions that kernels reach through inline PTX. A wrapper of
// one PTX instruction calls its twin here under __CUDA_EMU__. All 32 lanes must call it together.
//
// Which lane holds which element is laid down in the PTX ISA ("Matrix Fragments for mma.m16n8k16
// with floating point type" and "ldmatrix"); with g = lane / 4 and q = lane % 4:
//   a[r]  row g + 8 (r % 2),  columns 2q + 8 (r / 2) and the one after it, low half first
//   b[r]  rows 2q + 8 r and the one after it,  column g
//   d[i]  row g + 8 (i / 2),  column 2q + i % 2
#ifndef EMU_MMA_H
#define EMU_MMA_H
#include "cuda_runtime.h"
#include "emu_half.h"
#include <stdint.h>

namespace emu {

// The exchange reads and writes what other lanes hold in registers. ThreadSanitizer cannot know
// that these are registers, so it must not look.
#define EMU_REGISTERS static inline __attribute__((no_sanitize("thread")))

typedef float Row8 __attribute__((vector_size(32)));

struct MmaLane { float *d; const uint32_t *a, *b; };

// `value` says what the 16 bits of an element of a or b are worth.
template <float value(uint16_t)> EMU_REGISTERS void mma_all_lanes(void **lanes, unsigned present) {
    if (present != 0xffffffffu) emu_fail("mma with only lanes %08x of its warp", present);
    float a[16][16];        // a (M, K)
    Row8 b[16], d[16];      // b (K, N), d (M, N)
    for (unsigned lane = 0; lane < 32; lane++) {
        const MmaLane *own = (const MmaLane *)lanes[lane];
        const unsigned g = lane / 4, q = lane % 4;
        for (unsigned r = 0; r < 4; r++) {
            a[g + 8 * (r % 2)][2 * q + 8 * (r / 2)] = value((uint16_t)own->a[r]);
            a[g + 8 * (r % 2)][2 * q + 8 * (r / 2) + 1] = value((uint16_t)(own->a[r] >> 16));
        }
        for (unsigned r = 0; r < 2; r++) {
            b[2 * q + 8 * r][g] = value((uint16_t)own->b[r]);
            b[2 * q + 8 * r + 1][g] = value((uint16_t)(own->b[r] >> 16));
        }
        for (unsigned i = 0; i < 4; i++) d[g + 8 * (i / 2)][2 * q + i % 2] = own->d[i];
    }
    for (unsigned row = 0; row < 16; row++)
        for (unsigned k = 0; k < 16; k++) d[row] += a[row][k] * b[k];
    for (unsigned lane = 0; lane < 32; lane++) {
        const MmaLane *own = (const MmaLane *)lanes[lane];
        for (unsigned i = 0; i < 4; i++)
            own->d[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    }
}

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: d (16, 8) += a (16, 16) b (16, 8), in fp32.
// The sums run over k in order here; real tensor cores leave their order (and rounding) open.
static inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
    MmaLane own = {d, a, b};
    emu_warp_collective(0xffffffffu, &own, mma_all_lanes<bf16_to_f32>, false);
}

// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32: the same with operands of half precision.
static inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    MmaLane own = {d, a, b};
    emu_warp_collective(0xffffffffu, &own, mma_all_lanes<f16_to_f32>, false);
}

// What lane i loads: row i % 8 of matrix i / 8, eight elements of 16 bits in four words.
struct LdmatrixLane { uint32_t *r; uint32_t row[4]; };

EMU_REGISTERS void ldmatrix_all_lanes(void **lanes, unsigned present) {
    if (present != 0xffffffffu) emu_fail("ldmatrix with only lanes %08x of its warp", present);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++)
            ((LdmatrixLane *)lanes[lane])->r[m] =
                ((LdmatrixLane *)lanes[8 * m + lane / 4])->row[lane % 4];
}

EMU_REGISTERS void ldmatrix_trans_all_lanes(void **lanes, unsigned present) {
    if (present != 0xffffffffu) emu_fail("ldmatrix with only lanes %08x of its warp", present);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++) {
            const unsigned column = lane / 4, row = 8 * m + 2 * (lane % 4);
            const uint32_t first = ((LdmatrixLane *)lanes[row])->row[column / 2];
            const uint32_t second = ((LdmatrixLane *)lanes[row + 1])->row[column / 2];
            const unsigned shift = 16 * (column % 2);
            ((LdmatrixLane *)lanes[lane])->r[m] =
                (first >> shift & 0xffffu) | (second >> shift << 16);
        }
}

// Each lane loads the row that it names itself, so that the sanitizers see whose access it is.
static inline void ldmatrix_load(LdmatrixLane &own, const void *row) {
    if ((uintptr_t)row % 16 != 0)
        emu_fail("ldmatrix: row address %p is not a multiple of 16 bytes", row);
    memcpy(own.row, row, sizeof own.row);
}

// ldmatrix.sync.aligned.m8n8.x4.shared.b16: four 8 x 8 matrices of 16-bit elements; lane i names
// row i % 8 of matrix i / 8. r[m] = row lane / 4 of matrix m, columns 2 (lane % 4) and the next.
static inline void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    LdmatrixLane own = {r, {}};
    ldmatrix_load(own, row);
    emu_warp_collective(0xffffffffu, &own, ldmatrix_all_lanes, false);
}

// The same with .trans: every matrix is transposed on the way.
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    LdmatrixLane own = {r, {}};
    ldmatrix_load(own, row);
    emu_warp_collective(0xffffffffu, &own, ldmatrix_trans_all_lanes, false);
}

#undef EMU_REGISTERS
}  // namespace emu
#endif
