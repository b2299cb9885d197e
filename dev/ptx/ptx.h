// ptx.h: what the C++ that ptx2c.py makes of PTX is written in. A register is an unsigned integer
// of its width. A shared address is a window's number << 24, plus an offset in that window.
#ifndef PTX_H
#define PTX_H
#include "cuda_runtime.h"
#include "cuda_pipeline.h"
#include "emu_half.h"
#include "emu_mma.h"
#include <algorithm>
#include <cfenv>
#include <limits>

// A kernel of the PTX file `set`; param is its parameters as PTX lays them out.
struct PtxKernel { const char *set, *name; void (*run)(const char *param); size_t bytes; };
extern const PtxKernel ptx_kernels[];

// A shared variable of the block that runs.
struct Window { char *base; size_t bytes; };
Window ptx_dynamic_shared();
static inline Window ptx_shared(const void *tag, size_t bytes, const char *name) {
    return {(char *)emu_shared(tag, bytes, name), bytes};
}

[[noreturn]] void ptx_bad_shared(uint32_t address, unsigned n);
template <size_t N>
static inline char *ptx_shared_at(const Window (&w)[N], uint32_t a, unsigned n) {
    const uint32_t i = a >> 24, offset = a & 0xffffff;
    if (i >= N || a % n != 0 || offset + n > w[i].bytes) ptx_bad_shared(a, n);
    return w[i].base + offset;
}
#define SHARED(address, n) ptx_shared_at(window, address, n)

[[noreturn]] void ptx_bad_address(uint64_t address, unsigned n);
static inline char *AT(uint64_t a, unsigned n) {
    if (a % n != 0) ptx_bad_address(a, n);
    return (char *)(uintptr_t)a;
}

template <typename T> static inline T LOAD(const void *p) {
    T x;
    memcpy(&x, p, sizeof x);
    return x;
}
template <typename T> static inline void STORE(void *p, T x) { memcpy(p, &x, sizeof x); }

static inline float F32(uint32_t x) { return emu::bits_as<float>(x); }
static inline double F64(uint64_t x) { return emu::bits_as<double>(x); }
static inline uint32_t BITS(float x) { return emu::bits_as<uint32_t>(x); }
static inline uint64_t BITS(double x) { return emu::bits_as<uint64_t>(x); }
static inline float FTZ(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

float ptx_fma(float a, float b, float c, int mode);  // rounds as <cfenv> calls the mode
#define FMA ptx_fma

template <typename T> static inline T SHL(T x, uint32_t n) { return n < 8 * sizeof x ? x << n : 0; }
template <typename T> static inline T BFI(T field, T x, uint32_t at, uint32_t length) {
    const uint32_t width = 8 * sizeof(T);
    at &= 255, length &= 255;
    if (length == 0 || at >= width) return x;
    const T mask = (length >= width ? ~(T)0 : ((T)1 << length) - 1) << at;
    return (x & ~mask) | (field << at & mask);
}

// prmt: each four bits of `how` take one of the eight bytes of b and a, or the sign of that byte.
static inline uint32_t PRMT(uint32_t a, uint32_t b, uint32_t how) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t x = 0;
    for (int i = 0; i < 4; i++, how >>= 4) {
        const uint32_t byte = bytes >> 8 * (how & 7) & 255, sign = byte >> 7 ? 255 : 0;
        x |= (how & 8 ? sign : byte) << 8 * i;
    }
    return x;
}

// The nearest number of the type; 0 of a NaN.
template <typename T> static inline T TO_INT(double x) {
    typedef std::numeric_limits<T> Limits;
    if (x != x) return 0;
    if (x <= (double)Limits::min()) return Limits::min();
    if (x >= (double)Limits::max()) return Limits::max();
    return (T)x;
}

// shfl.sync: a lane of a segment reads up to lane `top`; a lane without a source, its own value.
static inline uint32_t ptx_shuffle(uint32_t x, unsigned source, uint32_t clamp, uint32_t mask,
                                   bool *there) {
    const unsigned lane = emu_lane(), segment = clamp >> 8 & 31;
    const unsigned top = (lane & segment) | (clamp & 31 & ~segment);
    *there = source <= top;
    return (uint32_t)emu_shuffle(mask, x, (int)(*there ? source : lane));
}
static inline uint32_t SHUFFLE_bfly(uint32_t x, uint32_t b, uint32_t clamp, uint32_t mask,
                                    bool *there) {
    return ptx_shuffle(x, emu_lane() ^ (b & 31), clamp, mask, there);
}
static inline uint32_t SHUFFLE_idx(uint32_t x, uint32_t b, uint32_t clamp, uint32_t mask,
                                   bool *there) {
    const unsigned segment = clamp >> 8 & 31;
    return ptx_shuffle(x, (emu_lane() & segment) | (b & 31 & ~segment), clamp, mask, there);
}
#endif
