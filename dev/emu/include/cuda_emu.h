// cuda_emu.h: the device side of CUDA C++ in plain C++. A CUDA thread is a function call; where it
// has to wait for others (barriers, warp collectives) the executor in block.cpp switches stacks.
//
// launches and __shared__ are the two things that are not C++: rewrite.pl turns them into it.
// Floating-point functions are the host's; with -ffp-contract=off every operation rounds once, as
// the __f*_rn functions promise.
#ifndef CUDA_EMU_H
#define CUDA_EMU_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmath>
#include <type_traits>

#define __CUDA_EMU__ 1  // what sources ask for; __CUDA_ARCH__ stays undefined

#define __device__
#define __host__
#define __global__ __attribute__((__noinline__))  // so that gdb finds every kernel
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
#ifndef __restrict__
#define __restrict__ __restrict
#endif
// __shared__ and __launch_bounds__ stay bare words until rewrite.pl has seen them.

// ---------------------------------------------------------------------------------------------
// Vector types and the built-in variables

#define EMU_VECTOR(T, name)                                                                       \
    struct name##1 { T x; };                                                                      \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                            \
    struct name##3 { T x, y, z; };                                                                \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };            \
    static inline name##1 make_##name##1(T x) { return {x}; }                                     \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                             \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                     \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(int, int)
EMU_VECTOR(unsigned int, uint)
EMU_VECTOR(float, float)
#undef EMU_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

// Real variables, one set per host thread: a debugger prints them, and locals may shadow them.
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

// ---------------------------------------------------------------------------------------------
// What block.cpp does for a kernel

// Ends the program with one line that names the kernel, the block and the thread.
[[noreturn]] void emu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Returns the sum of the predicates. `where` is the source line, as optimisers make several calls of
// one.
int emu_barrier(int predicate, const char *where);

// Waits until every lane of `mask` is here; the last one runs combine(lane, present), where lane[i]
// is what lane i passed as `mine`. `fence`: does it order memory, as __syncwarp does?
void emu_warp_collective(unsigned mask, void *mine, void (*combine)(void **lane, unsigned present),
                         bool fence);

// Waits as above, and gives the value that lane `source` of the warp brought (~0 if it is not
// in the mask: what a GPU gives then is undefined).
uint64_t emu_shuffle(unsigned mask, uint64_t value, int source);

// Memory of the block: the variable that `tag` identifies, made and poisoned by the first thread
// that asks; and the block's dynamic shared memory.
void *emu_shared(const void *tag, size_t bytes, const char *name);
void *emu_dynamic_shared();

unsigned emu_lane();

// ---------------------------------------------------------------------------------------------
// Barriers, shuffles, votes

#define EMU_TEXT_(x) #x
#define EMU_TEXT(x) EMU_TEXT_(x)
#define EMU_HERE __FILE__ ":" EMU_TEXT(__LINE__)
#define __syncthreads() ((void)emu_barrier(0, EMU_HERE))
#define __syncthreads_count(p) emu_barrier((p) != 0, EMU_HERE)

static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emu_warp_collective(mask, nullptr, nullptr, true);
}

static inline long long clock64() {  // nanoseconds here
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// What lanes exchange below lies in registers on a GPU: ThreadSanitizer must not look at it.
#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))

namespace emu {
template <typename T> static inline T shuffle(unsigned mask, T x, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = emu_shuffle(mask, bits, source);
    T result;
    memcpy((void *)&result, &bits, sizeof result);
    return result;
}

// Folds the lanes of `mask` in lane order; every one of them gets the result.
template <typename T, typename F> static inline T warp_reduce(unsigned mask, T x, F f) {
    struct Lane { T x; F f; } mine = {x, f};
    emu_warp_collective(mask, &mine, [](void **lane, unsigned present) EMU_UNCHECKED {
        const int first = __builtin_ctz(present);
        T sum = ((Lane *)lane[first])->x;
        for (int i = first + 1; i < 32; i++)
            if (present >> i & 1) sum = ((Lane *)lane[i])->f(sum, ((Lane *)lane[i])->x);
        for (int i = first; i < 32; i++)
            if (present >> i & 1) ((Lane *)lane[i])->x = sum;
    }, false);
    return mine.x;
}

// Returns the bits of `for (d = 16; d > 0; d /= 2) x = f(x, __shfl_xor_sync(~0u, x, d))` on a full
// warp, with one wait instead of five.
template <typename T, typename F> static inline T warp_butterfly(T x, F f) {
    struct Lane { T x; F f; } mine = {x, f};
    emu_warp_collective(0xffffffffu, &mine, [](void **lane, unsigned) EMU_UNCHECKED {
        T a[32], b[32];
        for (int i = 0; i < 32; i++) a[i] = ((Lane *)lane[i])->x;
        for (int d = 16; d > 0; d /= 2) {
            for (int i = 0; i < 32; i++) b[i] = ((Lane *)lane[0])->f(a[i], a[i ^ d]);
            for (int i = 0; i < 32; i++) a[i] = b[i];
        }
        for (int i = 0; i < 32; i++) ((Lane *)lane[i])->x = a[i];
    }, false);
    return mine.x;
}
}  // namespace emu

template <typename T> static inline T __shfl_sync(unsigned mask, T x, int source) {
    return emu::shuffle(mask, x, source & 31);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int distance) {
    return emu::shuffle(mask, x, (int)emu_lane() ^ distance);
}
#undef EMU_UNCHECKED

static inline int __any_sync(unsigned mask, int predicate) {
    return emu::warp_reduce(mask, predicate != 0, [](int a, int b) { return a | b; });
}

// ---------------------------------------------------------------------------------------------
// Arithmetic

#define EMU_ARITHMETIC(A, B)                                                                      \
    typename A, typename B,                                                                       \
        typename = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>
template <EMU_ARITHMETIC(A, B)> static constexpr std::common_type_t<A, B> min(A a, B b) {
    typedef std::common_type_t<A, B> C;
    return (C)b < (C)a ? (C)b : (C)a;
}
template <EMU_ARITHMETIC(A, B)> static constexpr std::common_type_t<A, B> max(A a, B b) {
    typedef std::common_type_t<A, B> C;
    return (C)a < (C)b ? (C)b : (C)a;
}
#undef EMU_ARITHMETIC

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }

namespace emu {
template <typename To, typename From> static inline To bits_as(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    To r;
    memcpy(&r, &x, sizeof r);
    return r;
}
}  // namespace emu
static inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
static inline float __int_as_float(int x) { return emu::bits_as<float>(x); }

#endif
