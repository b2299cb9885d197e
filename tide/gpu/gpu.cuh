// gpu.cuh: the base of every CUDA file here: checked calls, three storage types, 16-byte loads,
// reductions in a fixed order.
//
// The same sources run on a real GPU (nvcc) and on the emulated one (dev/emu, any C++ compiler,
// with __CUDA_EMU__ defined). doc/emulator.md has the conventions that make this possible.
#ifndef TIDE_GPU_CUH
#define TIDE_GPU_CUH
#include "../base/util.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <type_traits>

typedef __nv_bfloat16 bf16;
typedef __half f16;

// By default all streams share 8 connections to the device, and if one stream of a connection
// waits, the others wait, too. CUDA reads this variable at its first call (CUDA C++ Programming
// Guide, environment variables), so it is set before main(), unless the user has set it.
__attribute__((constructor)) static void gpu_connections(void) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

#ifndef __CUDA_EMU__  // the emulated GPU puts these names into its reports; and orders host threads
#define emu_name_memory(p, what) ((void)(what))
#define emu_name_stream(stream, name) ((void)(name))
#define emu_wait_value(word, value) ((void)0)
#endif

// ---------------------------------------------------------------------------------------------
// Errors

// Ends the program if a call of CUDA fails. To queue work or allocate memory, use queue.cuh.
#define CUDA(call) cuda_check((call), #call, __FILE__, __LINE__)

static inline void cuda_check(cudaError_t e, const char *call, const char *file, int line) {
    if (e != cudaSuccess)
        fail("%s: %s: %s (%s:%d)", cudaGetErrorName(e), cudaGetErrorString(e), call, file, line);
}

// ---------------------------------------------------------------------------------------------
// Storage types: X is float, bf16 or f16 in every kernel of tide/gpu/; arithmetic is in fp32.
// Gradients in f16 are scaled, to stay in the range of f16 (doc/mixed_precision.md).

HOST_DEVICE static inline float to_f32(float x) { return x; }
HOST_DEVICE static inline float to_f32(bf16 x) { return __bfloat162float(x); }
HOST_DEVICE static inline float to_f32(f16 x) { return __half2float(x); }

// Rounds to nearest even; in f16, 65520 or more becomes infinity.
template <typename X> HOST_DEVICE static inline X from_f32(float x);
template <> HOST_DEVICE inline float from_f32<float>(float x) { return x; }
template <> HOST_DEVICE inline bf16 from_f32<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> HOST_DEVICE inline f16 from_f32<f16>(float x) { return __float2half_rn(x); }

// floatX: the type in which a program stores parameters, activations and gradients, chosen when it
// is compiled. halfX: the 16-bit type of the program (bf16.h).
#if defined(ENABLE_FP16)
typedef f16 halfX;
#else
typedef bf16 halfX;
#endif
#if defined(ENABLE_FP32)
typedef float floatX;
#else
typedef halfX floatX;
#endif

// Unrolls a loop: the indices of its arrays become constants, so the arrays can be registers.
#define UNROLL _Pragma("unroll")

// 16 bytes of X, which one thread loads or stores at once, at addresses that are multiples of 16.
template <typename X> struct alignas(16) Pack {
    enum { N = 16 / sizeof(X) };
    X x[N];
};

// Loads a pack as bits, for values that wait in registers: in a Pack each bf16 takes a register.
template <typename X> __device__ static inline int4 load_bits(const X *p) {
    return *reinterpret_cast<const int4 *>(p);
}

template <typename X> __device__ static inline Pack<X> as_pack(int4 bits) {
    Pack<X> r;
    memcpy(&r, &bits, sizeof r);
    return r;
}

template <typename X> __device__ static inline Pack<X> load_pack(const X *p) {
    return as_pack<X>(load_bits(p));
}

// Rounds two numbers to X = bf16 or f16, in one word.
template <typename X> __device__ static inline uint32_t pack_pair(float low, float high) {
    uint32_t bits;
    if constexpr (std::is_same_v<X, bf16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    } else {
        const __half2 pair = __floats2half2_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
}

// The numbers of a pack, in fp32.
template <typename X> struct Wide {
    float x[Pack<X>::N];
};

// Widens a pack to fp32. A word's two bf16 take a shift and a mask; nvcc would take three steps.
template <typename X> __device__ static inline Wide<X> widen(int4 bits) {
    Wide<X> wide;
    if constexpr (std::is_same_v<X, bf16>) {
        const Pack<uint32_t> words = as_pack<uint32_t>(bits);
        for (int i = 0; i < Pack<X>::N; i++) {
            const uint32_t word = words.x[i / 2];
            wide.x[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
        }
    } else {
        const Pack<X> pack = as_pack<X>(bits);
        for (int i = 0; i < Pack<X>::N; i++) wide.x[i] = to_f32(pack.x[i]);
    }
    return wide;
}

// Rounds to X in pairs: single numbers take slower instructions, and another one to join two.
template <typename X> __device__ static inline int4 narrow(const Wide<X> &wide) {
    int4 bits;
    if constexpr (sizeof(X) == 2) {
        uint32_t words[4];
        for (int i = 0; i < 4; i++) words[i] = pack_pair<X>(wide.x[2 * i], wide.x[2 * i + 1]);
        memcpy(&bits, words, sizeof bits);
    } else {
        memcpy(&bits, &wide, sizeof bits);
    }
    return bits;
}

// Stores 16 bytes to global memory at once. In C++, the compiler stores a pack that was computed
// element by element as four words: four times the instructions and requests.
__device__ static inline void store_bits(void *p, int4 bits) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(p)), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                    "r"(bits.w) : "memory");
#else
    *reinterpret_cast<int4 *>(p) = bits;
#endif
}

template <typename X> __device__ static inline void store_pack(X *p, const Pack<X> &v) {
    int4 bits;
    memcpy(&bits, &v, sizeof bits);
    store_bits(p, bits);
}

// Functions of one instruction: they are approximate, and treat subnormal numbers as 0.
#ifdef __CUDA_EMU__
#define FAST(name, instruction, emulated) \
    __device__ static inline float name(float x) { return emulated; }
#else
#define FAST(name, instruction, emulated) \
    __device__ static inline float name(float x) { \
        float y; \
        asm(instruction ".approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); \
        return y; \
    }
#endif
FAST(exp2_fast, "ex2", exp2f(x))            // error: 2 units of the last place; exp2(-infinity) = 0
FAST(rcp_fast, "rcp", 1.0f / x)             // 1 unit; 0 for infinity
FAST(rsqrt_fast, "rsqrt", 1.0f / sqrtf(x))  // 2 units; infinity for 0
#undef FAST

// ---------------------------------------------------------------------------------------------
// Reductions. Each has one order, so that the same launch always gives the same bits. All threads
// of the warp (block_...: of the block) must call the function, and all get the result.

// Sums x over each team, which is `team` neighbouring lanes (a power of two). Every lane adds the
// value of the lane whose number differs by team / 2; then by team / 4, .. 2, 1.
template <typename T> __device__ static inline T lanes_sum(T x, unsigned team) {
    for (unsigned distance = team / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

template <typename T> __device__ static inline T warp_sum(T x) { return lanes_sum(x, 32); }

__device__ static inline float warp_max(float x) {
    for (int distance = 16; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// Folds each warp of a block, then the warps' results, by `fold`, which reduces a warp; `none` is
// its neutral element. blockDim must be (32 n, 1, 1). Each call has two barriers.
template <typename T, typename Fold>
__device__ static inline T block_fold(T x, T none, Fold fold) {
    __shared__ T part[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = fold(x);
    __syncthreads();  // an earlier call may still be reading
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return fold(lane < blockDim.x / 32 ? part[lane] : none);
}

template <typename T> __device__ static inline T block_sum(T x) {
    return block_fold(x, (T)0, [](T y) { return warp_sum(y); });
}

__device__ static inline float block_max(float x) {
    return block_fold(x, -INFINITY, [](float y) { return warp_max(y); });
}

static inline unsigned ceil_div(size_t a, size_t b) { return (unsigned)((a + b - 1) / b); }

// Returns n, for kernels that number n threads or packs in 32 bits (64-bit divisions are slow).
static inline unsigned index_32(size_t n) {
    if (n > 1u << 31) fail("%zu are too many for a kernel that counts in 32 bits", n);
    return (unsigned)n;
}

// ---------------------------------------------------------------------------------------------
// Work on several tensors in one launch: a Batch is an argument of the kernel

enum { BATCH_MOST = 16 };
template <typename Work> struct Batch {
    Work work[BATCH_MOST];
    unsigned end[BATCH_MOST];  // units of work[0] .. work[i]; the kernel defines what a unit is
    int count;
};

// Returns the work that contains unit number *unit; sets *unit to the number within that work.
template <typename Work>
__device__ static inline Work batch_find(const Batch<Work> &batch, unsigned *unit) {
    int i = 0;
    while (*unit >= batch.end[i]) i++;
    if (i > 0) *unit -= batch.end[i - 1];
    return batch.work[i];
}

template <typename Work> static unsigned batch_units(const Batch<Work> *batch) {
    return batch->count > 0 ? batch->end[batch->count - 1] : 0;
}

// Adds work of `units` units. By the limits of gpt2_finish(), all units of a batch are below 2^32.
template <typename Work> static void batch_add(Batch<Work> *batch, const Work &work, size_t units) {
    if (units == 0) return;
    const unsigned end = batch_units(batch) + (unsigned)units;
    batch->work[batch->count] = work;
    batch->end[batch->count++] = end;
}

#endif
