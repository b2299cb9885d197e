// matmul.h: the matrix product, where a transformer on a CPU spends nine tenths of its time.
//
// gemm_plain() is the definition: three loops. gemm() and gemm_serial() compute the same product as
// fast as the machine allows, in panels and register tiles. See doc/matmul.md.
//
// k is cut into blocks of KC. Within a block the products are summed from 0 in order of k; the
// blocks' sums are added to the result in order. So the bits do not depend on MC, on the tile, on
// the row or on the number of threads, and gemm() and gemm_serial() agree. (They also do not depend
// on the width of vectors. But hardware without fused multiply-add has other bits.)
//
// The scheme is from Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (2008), with the order of loops of Van Zee and van de Geijn, "BLIS" (2015); threads share A.
#ifndef TIDE_MATMUL_H
#define TIDE_MATMUL_H
#include "../base/util.h"
#if defined __AVX512F__ || defined __FMA__
#include <immintrin.h>
#elif defined __ARM_NEON && defined __ARM_FEATURE_FMA
#include <arm_neon.h>
#endif

// ---------------------------------------------------------------------------------------------
// Vectors are as wide as the registers of the compiler's target. They are GNU C's vector
// extensions; the fused multiply-add, which these lack, is one intrinsic function.

#if defined __AVX512F__
#define VEC_LANES 16
#elif defined __AVX__
#define VEC_LANES 8
#else
#define VEC_LANES 4
#endif
typedef float Vec __attribute__((vector_size(4 * VEC_LANES)));
typedef float VecLoose __attribute__((vector_size(4 * VEC_LANES), aligned(4), may_alias));

// Unrolls early: only with constant indices a compiler keeps an array of vectors in registers.
#define UNROLL _Pragma("GCC unroll 24")

// Returns a * b + c, fused, by an explicit instruction: the compiler must not decide what is fused,
// because bits would depend on it. (gcc makes 16 scalar instructions of a loop of fmaf if it
// prefers vectors of 256 bits, as for Intel's AVX-512.) Hardware without the instruction multiplies
// and then adds, because fmaf() would be a slow call.
static inline __attribute__((always_inline)) Vec vec_fma(Vec a, Vec b, Vec c) {
#if defined __AVX512F__
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __FMA__
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined __ARM_NEON && defined __ARM_FEATURE_FMA
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// Ends a row: gcc moves no instruction across a volatile asm. For ARM it would else load one number
// of each of the six rows first, and have too few registers left for the sums.
#if defined __aarch64__ && !defined __clang__
#define ROW_ENDS __asm__ volatile("")
#else
#define ROW_ENDS (void)0
#endif

#define GEMM_MR ((size_t)6)         // rows of a tile, which has 6 x 4 (or 6 x 2) vectors of sums
#if defined __AVX512F__ || defined __aarch64__
#define GEMM_NV ((size_t)4)         // columns of a tile, in vectors; the CPU has 32 registers
#else
#define GEMM_NV ((size_t)2)         // the CPU has 16 vector registers
#endif
#define GEMM_NR (GEMM_NV * VEC_LANES)
#define GEMM_KC ((size_t)384)       // depth of a panel; the bits depend on it
#define GEMM_MC ((size_t)1536)      // rows of A that are packed at once; a multiple of 8 MR

// ---------------------------------------------------------------------------------------------
// The definition

// Computes out (M, N) = op(A) (M, K) op(B) (K, N) + bias, or out += op(A) op(B) with `accumulate`.
// A is stored (M, K), or (K, M) with trans_a; B is stored (K, N), or (N, K) with trans_b. All are
// row-major; rows are lda, ldb, ldo elements apart. bias (N), or NULL, is added to each row, but
// not with accumulate. K is at least 1. out must not overlap A or B.
static void gemm_plain(bool trans_a, bool trans_b, size_t M, size_t N, size_t K,
                       const float *a, size_t lda, const float *b, size_t ldb,
                       float *out, size_t ldo, const float *bias, bool accumulate) {
    for (size_t m = 0; m < M; m++)
        for (size_t n = 0; n < N; n++) {
            float sum = 0.0f;
            for (size_t k = 0; k < K; k++)
                sum += (trans_a ? a[k * lda + m] : a[m * lda + k])
                     * (trans_b ? b[n * ldb + k] : b[k * ldb + n]);
            out[m * ldo + n] = sum + (accumulate ? out[m * ldo + n] : bias ? bias[n] : 0.0f);
        }
}

// ---------------------------------------------------------------------------------------------
// The fast product

// The rows of A. Row r of tile t begins at base + t * tile + r * row; its elements are `k` apart.
typedef struct { const float *base; size_t tile, row, k; } GemmA;

// Packs rows [0, rows) and kc columns of op(A). Without trans_a copies rows, to KC floats each.
// With trans_a makes [tile][k][MR], for eight tiles at a time: so whole cache lines of A are read.
static void gemm_pack_a(bool trans_a, size_t rows, size_t kc, const float *a, size_t lda,
                        float *pack) {
    if (!trans_a) {
        for (size_t r = 0; r < rows; r++) memcpy(pack + r * GEMM_KC, a + r * lda, kc * sizeof *a);
        return;
    }
    for (size_t first = 0; first < rows; first += 8 * GEMM_MR)
        for (size_t k = 0; k < kc; k++)
            for (size_t i = first; i < rows && i < first + 8 * GEMM_MR; i += GEMM_MR) {
                const float *from = a + k * lda + i;
                float *to = pack + i * GEMM_KC + k * GEMM_MR;
                if (rows - i >= GEMM_MR) memcpy(to, from, GEMM_MR * sizeof *a);
                else memcpy(to, from, (rows - i) * sizeof *a);
            }
}

// Packs kc rows and `cols` <= NR columns of op(B) as [k][NR]. Does not write the other columns: a
// tile computes with them, too, but these results are never stored.
static void gemm_pack_b(bool trans_b, size_t kc, size_t cols, const float *b, size_t ldb,
                        float *pack) {
    if (!trans_b) {
        for (size_t k = 0; k < kc; k++) {
            if (cols == GEMM_NR) memcpy(pack + k * GEMM_NR, b + k * ldb, GEMM_NR * sizeof *b);
            else memcpy(pack + k * GEMM_NR, b + k * ldb, cols * sizeof *b);
        }
        return;
    }
    // Sixteen columns at a time write whole cache lines, and read few rows of B at once.
    for (size_t first = 0; first < cols; first += 16)
        for (size_t k = 0; k < kc; k++)
            for (size_t j = first; j < cols && j < first + 16; j++)
                pack[k * GEMM_NR + j] = b[j * ldb + k];
}

// Computes a register tile: out (MR, columns) = start + rows of A times a packed panel of B. start
// may be out; with start_ld 0 all rows begin with one row, the bias. The function calls nothing, is
// not inlined, and has a constant width: otherwise compilers kept some sums in memory (gcc 12: 40 %
// slower; clang 14: 70 %).
#define GEMM_TILE(name, VECTORS)                                                                  \
static __attribute__((noinline)) void name(size_t kc, const float *const a[GEMM_MR],              \
                                           size_t a_step, const float *packed_b,                  \
                                           const float *start, size_t start_ld,                   \
                                           float *out, size_t ldo) {                              \
    const Vec zero = {0};                                                                         \
    Vec sum[GEMM_MR][VECTORS];                                                                    \
    UNROLL for (size_t r = 0; r < GEMM_MR; r++)                                                   \
        UNROLL for (size_t v = 0; v < VECTORS; v++) sum[r][v] = zero;                             \
    UNROLL for (size_t r = 0; r < GEMM_MR; r++)                                                   \
        UNROLL for (size_t v = 0; v < VECTORS * VEC_LANES; v += 16)                               \
            __builtin_prefetch(out + r * ldo + v, 1);                                             \
    _Pragma("GCC unroll 1")  /* clang would, for some processors, and run out of registers */     \
    for (size_t k = 0; k < kc; k++) {                                                             \
        const Vec *b = (const Vec *)(packed_b + k * GEMM_NR);                                     \
        UNROLL for (size_t r = 0; r < GEMM_MR; r++) {                                             \
            const Vec x = a[r][k * a_step] - zero;  /* one number in all lanes */                 \
            UNROLL for (size_t v = 0; v < VECTORS; v++) sum[r][v] = vec_fma(x, b[v], sum[r][v]);  \
            ROW_ENDS;                                                                             \
        }                                                                                         \
    }                                                                                             \
    UNROLL for (size_t r = 0; r < GEMM_MR; r++)                                                   \
        UNROLL for (size_t v = 0; v < VECTORS; v++)                                               \
            ((VecLoose *)(out + r * ldo))[v] =                                                    \
                ((const VecLoose *)(start + r * start_ld))[v] + sum[r][v];                        \
}
GEMM_TILE(gemm_tile, GEMM_NV)             // NR columns
GEMM_TILE(gemm_tile_narrow, GEMM_NV / 2)  // half as many, for attention's heads of 32 channels

// Computes rows [0, rows) of one panel of the result: packs B once, and then all tiles of A.
// `fresh`: this is the first block of k, so out begins with the bias or zero.
static void gemm_panel(size_t rows, size_t cols, size_t kc, GemmA a, bool trans_b,
                       const float *b, size_t ldb, float *out, size_t ldo,
                       const float *bias, bool fresh, float *pack) {
    float first[GEMM_NR] = {0}, edge[GEMM_MR * GEMM_NR];
    const bool narrow = cols <= GEMM_NR / 2;
    if (fresh && bias != NULL) memcpy(first, bias, cols * sizeof *bias);
    gemm_pack_b(trans_b, kc, cols, b, ldb, pack);
    for (size_t i = 0; i < rows; i += GEMM_MR, a.base += a.tile, out += GEMM_MR * ldo) {
        const size_t height = min_size(rows - i, GEMM_MR);
        const float *row[GEMM_MR];
        for (size_t r = 0; r < GEMM_MR; r++)  // a tile with fewer rows repeats its last row
            row[r] = a.base + min_size(r, height - 1) * a.row;
        if (height == GEMM_MR && cols == (narrow ? GEMM_NR / 2 : GEMM_NR)) {
            (narrow ? gemm_tile_narrow : gemm_tile)(kc, row, a.k, pack, fresh ? first : out,
                                                    fresh ? 0 : ldo, out, ldo);
            continue;
        }
        // At an edge of the result a whole tile is computed, and its existing part is stored.
        memset(edge, 0, sizeof edge);
        for (size_t r = 0; r < height; r++)
            memcpy(edge + r * GEMM_NR, fresh ? first : out + r * ldo, cols * sizeof *out);
        (narrow ? gemm_tile_narrow : gemm_tile)(kc, row, a.k, pack, edge, GEMM_NR, edge, GEMM_NR);
        for (size_t r = 0; r < height; r++)
            memcpy(out + r * ldo, edge + r * GEMM_NR, cols * sizeof *out);
    }
}

// Returns the floats of scratch, at a 64-byte boundary, that gemm_serial() needs.
static size_t gemm_scratch_floats(void) { return GEMM_KC * GEMM_NR; }

// Computes gemm_plain() without a bias on the calling thread, for many small products side by side
// in a parallel region. Does not pack A, which would not pay for one tile of attention.
static void gemm_serial(bool trans_a, bool trans_b, size_t M, size_t N, size_t K,
                        const float *a, size_t lda, const float *b, size_t ldb,
                        float *out, size_t ldo, bool accumulate, float *scratch) {
    for (size_t k = 0; k < K; k += GEMM_KC) {
        const size_t kc = min_size(K - k, GEMM_KC);
        const GemmA block = {a + (trans_a ? k * lda : k), GEMM_MR * (trans_a ? 1 : lda),
                             trans_a ? 1 : lda, trans_a ? lda : 1};
        for (size_t n = 0; n < N; n += GEMM_NR)
            gemm_panel(M, min_size(N - n, GEMM_NR), kc, block, trans_b,
                       b + (trans_b ? n * ldb + k : k * ldb + n), ldb, out + n, ldo, NULL,
                       k == 0 && !accumulate, scratch);
    }
}

// Computes gemm_plain() on all threads. Must not be called in a parallel region, nor by two threads
// at once: its packing buffers are allocated once and kept (2.3 MiB, and 96 KiB per thread).
static void gemm(bool trans_a, bool trans_b, size_t M, size_t N, size_t K,
                 const float *a, size_t lda, const float *b, size_t ldb,
                 float *out, size_t ldo, const float *bias, bool accumulate) {
    const size_t chunk = 8 * GEMM_MR;  // rows that are packed at a time
    static float *pack_a = NULL;  // MC x KC, which all threads share; then KC x NR for each thread
    static size_t pack_threads = 0;
    const size_t threads = (size_t)omp_get_max_threads();
    if (pack_threads < threads) {
        free(pack_a);
        pack_a = (float *)alloc_or_fail(GEMM_MC * GEMM_KC + threads * GEMM_KC * GEMM_NR,
                                        sizeof(float), "gemm's packing buffer");
        pack_threads = threads;
    }
    #pragma omp parallel num_threads((int)threads)
    {
        const size_t thread = (size_t)omp_get_thread_num();
        float *pack_b = pack_a + GEMM_MC * GEMM_KC + thread * GEMM_KC * GEMM_NR;
        const size_t panels = (N + GEMM_NR - 1) / GEMM_NR;
        for (size_t m0 = 0; m0 < M; m0 += GEMM_MC) {
            const size_t mc = min_size(M - m0, GEMM_MC);
            // With few panels, rows are divided, too: several threads then pack the same panel.
            size_t part = chunk;
            while (part < mc && panels * (mc / part) > 4 * threads) part *= 2;
            const size_t parts = (mc + part - 1) / part;
            // Packs as many blocks of k as there is room for: a small M then needs fewer barriers.
            const size_t chunks = (mc + chunk - 1) / chunk, block = chunks * chunk * GEMM_KC;
            const size_t depth = GEMM_MC * GEMM_KC / block * GEMM_KC;
            for (size_t k0 = 0; k0 < K; k0 += depth) {
                const size_t k1 = min_size(K, k0 + depth);
                const size_t blocks = (k1 - k0 + GEMM_KC - 1) / GEMM_KC;
                #pragma omp for schedule(static)
                for (size_t piece = 0; piece < blocks * chunks; piece++) {
                    const size_t m = piece % chunks * chunk, k = k0 + piece / chunks * GEMM_KC;
                    gemm_pack_a(trans_a, min_size(mc - m, chunk), min_size(k1 - k, GEMM_KC),
                                a + (trans_a ? k * lda + m0 + m : (m0 + m) * lda + k), lda,
                                pack_a + piece / chunks * block + m * GEMM_KC);
                }
                #pragma omp for schedule(dynamic)
                for (size_t task = 0; task < panels * parts; task++) {
                    const size_t n = task / parts * GEMM_NR, m = task % parts * part;
                    GemmA tiles = {pack_a + m * GEMM_KC, GEMM_MR * GEMM_KC,
                                   trans_a ? 1 : GEMM_KC, trans_a ? GEMM_MR : 1};
                    for (size_t k = k0; k < k1; k += GEMM_KC, tiles.base += block)
                        gemm_panel(min_size(mc - m, part), min_size(N - n, GEMM_NR),
                                   min_size(k1 - k, GEMM_KC), tiles, trans_b,
                                   b + (trans_b ? n * ldb + k : k * ldb + n), ldb,
                                   out + (m0 + m) * ldo + n, ldo, bias ? bias + n : NULL,
                                   k == 0 && !accumulate, pack_b);
                }
            }
        }
    }
}

// Computes the product of one row: out (N) = B (N, K) x (K) + bias (N); bias may be NULL. Packs
// nothing: reading B once takes the time. The order of its sums is not gemm()'s.
static void gemv(size_t N, size_t K, const float *x, const float *b, float *out,
                 const float *bias) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        float sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (size_t k = 0; k < K; k++) sum += x[k] * b[n * K + k];
        out[n] = bias != NULL ? sum + bias[n] : sum;
    }
}

#endif
