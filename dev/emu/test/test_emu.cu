// test_emu.cu: what a CUDA device must do, as far as the trainer leans on it. The same file runs on
// the emulated device and on a real one; a test that needs one of them says so and is skipped on
// the other. Kernels are launched on streams of their own, as the conventions ask.
#include "../../test/test.h"
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector>
#ifdef __CUDA_EMU__
#include <emu_mma.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

typedef __nv_bfloat16 bf16;

// A call that has to work, for the test to go on.
#define OK(call) check_success((call), #call, __LINE__)
static void check_success(cudaError_t e, const char *call, int line) {
    if (e == cudaSuccess) return;
    printf("FAIL test_emu: %s: %s (line %d)\n", cudaGetErrorName(e), call, line);
    exit(1);
}
static void check_success(cublasStatus_t s, const char *call, int line) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    printf("FAIL test_emu: cublasStatus %d: %s (line %d)\n", (int)s, call, line);
    exit(1);
}
// A call that must give exactly this error, and leave it (or nothing) behind.
#define EXPECT(call, error)                                                                   \
    do {                                                                                      \
        const cudaError_t got_ = (call);                                                      \
        CHECK(got_ == (error), "%s", cudaGetErrorName(got_));                                 \
        (void)cudaGetLastError();                                                             \
    } while (0)

static cudaStream_t stream, other;

template <typename T> static T *device_array(const std::vector<T> &host) {
    T *p;
    OK(cudaMalloc(&p, host.size() * sizeof(T)));
    OK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());    // our streams do not wait for the default one
    return p;
}

static float *zeros(int n) { return device_array(std::vector<float>((size_t)n)); }

template <typename T> static std::vector<T> host_array(const T *p, size_t n) {
    std::vector<T> host(n);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// Small numbers that repeat late; exact in bf16 and fp16.
static float number(size_t i, unsigned salt) {
    const uint32_t h = (uint32_t)(i * 2654435761u + salt * 40503u);
    return (float)((int)(h >> 13 & 255) - 128) / 64;
}

// ---------------------------------------------------------------------------------------------
// Launches

struct Where { dim3 block, thread, grid_size, block_size; };

__global__ static void where_kernel(Where *out) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    Where w;
    w.block = blockIdx, w.thread = threadIdx, w.grid_size = gridDim, w.block_size = blockDim;
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = w;
}

static bool same(dim3 a, dim3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

static void launches_of_one_to_three_dimensions(void) {
    const dim3 grids[] = {dim3(1), dim3(7), dim3(3, 5), dim3(2, 3, 4), dim3(1, 1, 9)};
    const dim3 blocks[] = {dim3(1), dim3(33), dim3(8, 4), dim3(4, 8, 3), dim3(1, 1, 64)};
    for (dim3 g : grids)
        for (dim3 b : blocks) {
            const size_t threads = (size_t)b.x * b.y * b.z, n = threads * g.x * g.y * g.z;
            Where *d;
            OK(cudaMalloc(&d, n * sizeof(Where)));
            where_kernel<<<g, b, 0, stream>>>(d);
            OK(cudaGetLastError());
            const std::vector<Where> w = host_array(d, n);
            size_t wrong = 0;
            for (size_t i = 0; i < n; i++) {
                const unsigned t = (unsigned)(i % threads), k = (unsigned)(i / threads);
                const dim3 thread(t % b.x, t / b.x % b.y, t / (b.x * b.y));
                const dim3 block(k % g.x, k / g.x % g.y, k / (g.x * g.y));
                wrong += !same(w[i].thread, thread) || !same(w[i].block, block)
                         || !same(w[i].grid_size, g) || !same(w[i].block_size, b);
            }
            CHECK(wrong == 0, "%zu of %zu threads are elsewhere", wrong, n);
            OK(cudaFree(d));
        }
}

struct Arguments { int a; float *p; double b; char c; };

template <typename T, int N>
__global__ static void arguments_kernel(T *out, Arguments s, const float *null, char last) {
    if (threadIdx.x == 0) {
        out[0] = (T)(N + s.a + s.c + last);
        out[1] = (T)s.b;
        out[2] = (T)*s.p;
        out[3] = (T)(null == nullptr);
    }
}

static void arguments_are_copied_at_the_launch(void) {
    float *p = device_array(std::vector<float>{2.5f}), *out = device_array(std::vector<float>(4));
    Arguments s = {10, p, 0.125, 3};
    char last = 4;
    arguments_kernel<float, 100><<<1, 32, 0, stream>>>(out, s, nullptr, last);
    OK(cudaGetLastError());
    s.a = 99, last = 77;    // the launch has its own copy
    const std::vector<float> r = host_array(out, 4);
    CHECK(r[0] == 117 && r[1] == 0.125f && r[2] == 2.5f && r[3] == 1, "%g %g %g %g", r[0], r[1],
          r[2], r[3]);
    OK(cudaFree(p));
    OK(cudaFree(out));
}

__global__ static void mark_kernel(int *p) {
    const unsigned thread = threadIdx.x + threadIdx.y + threadIdx.z;
    if (blockIdx.x + blockIdx.y + blockIdx.z + thread == 0) p[0] = 1;
}

__global__ static void __launch_bounds__(128) bounded_kernel(int *p) { p[threadIdx.x] = 1; }

__global__ static void dynamic_kernel(int *out, int n) {    // out (blocks, n)
    extern __shared__ int dynamic[];
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) dynamic[i] = 3 * i;
    __syncthreads();
    out += (size_t)blockIdx.x * (size_t)n;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) out[i] = dynamic[n - 1 - i];
}

// The errors that a real device gives. They are not sticky: the next call works.
static void illegal_launches_fail(void) {
    int *p = device_array(std::vector<int>(1));
    const struct { dim3 grid, block; size_t shared; cudaError_t error; } cases[] = {
        {dim3(1), dim3(1024), 0, cudaSuccess},
        {dim3(1), dim3(1025), 0, cudaErrorInvalidValue},
        {dim3(1), dim3(32, 33), 0, cudaErrorInvalidValue},
        {dim3(1), dim3(1, 1, 64), 0, cudaSuccess},
        {dim3(1), dim3(1, 1, 65), 0, cudaErrorInvalidValue},
        {dim3(1), dim3(0), 0, cudaErrorInvalidValue},
        {dim3(1), dim3(32, 0), 0, cudaErrorInvalidValue},
        {dim3(0), dim3(32), 0, cudaErrorInvalidValue},
        {dim3(1, 1, 0), dim3(32), 0, cudaErrorInvalidValue},
        {dim3(70000), dim3(1), 0, cudaSuccess},
        {dim3(1, 65535), dim3(1), 0, cudaSuccess},
        {dim3(1, 65536), dim3(1), 0, cudaErrorInvalidValue},
        {dim3(1, 1, 65536), dim3(1), 0, cudaErrorInvalidValue},
        {dim3(0x80000000u), dim3(1), 0, cudaErrorInvalidValue},
        {dim3(1), dim3(32), 48 << 10, cudaSuccess},
        {dim3(1), dim3(32), (48 << 10) + 1, cudaErrorInvalidValue},
    };
    for (const auto &c : cases) {
        OK(cudaMemset(p, 0, sizeof(int)));
        OK(cudaDeviceSynchronize());
        mark_kernel<<<c.grid, c.block, c.shared, stream>>>(p);
        const cudaError_t e = cudaGetLastError();
        CHECK(e == c.error, "%s, expected %s, for grid (%u,%u,%u) block (%u,%u,%u) shared %zu",
              cudaGetErrorName(e), cudaGetErrorName(c.error), c.grid.x, c.grid.y, c.grid.z,
              c.block.x, c.block.y, c.block.z, c.shared);
        CHECK(host_array(p, 1)[0] == (c.error == cudaSuccess), "ran or did not run");
    }
    mark_kernel<<<1, 2048, 0, stream>>>(p);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue, "peeking leaves the error");
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "getting takes it");
    CHECK(cudaGetLastError() == cudaSuccess, "it was taken");
    OK(cudaFree(p));
}

// More threads than the kernel was compiled for: it has no registers for them.
static void launch_bounds_are_kept(void) {
    int *p = device_array(std::vector<int>(160));
    bounded_kernel<<<1, 128, 0, stream>>>(p);
    EXPECT(cudaGetLastError(), cudaSuccess);
    bounded_kernel<<<1, 160, 0, stream>>>(p);
    const cudaError_t e = cudaGetLastError();
    CHECK(e == cudaErrorInvalidValue || e == cudaErrorLaunchOutOfResources
          || e == cudaErrorInvalidConfiguration, "%s", cudaGetErrorName(e));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
}

// ---------------------------------------------------------------------------------------------
// Threads of a block

__global__ static void rotate_kernel(int *out, int rounds) {
    __shared__ int ring[1024];
    const unsigned t = threadIdx.x, n = blockDim.x;
    ring[t] = (int)t;
    for (int r = 0; r < rounds; r++) {
        __syncthreads();
        const int next = ring[(t + 1) % n];
        __syncthreads();
        ring[t] = next;
    }
    out[blockIdx.x * n + t] = ring[t];
}

__global__ static void counting_barrier_kernel(int *out) {
    const int t = (int)threadIdx.x, n = (int)blockDim.x;
    const int a = __syncthreads_count(t % 3 == 0);
    const int b = __syncthreads_and(t < n);
    const int c = __syncthreads_and(t != n / 2);
    const int d = __syncthreads_or(t == n - 1);
    const int e = __syncthreads_or(t > n);
    if (a != (n + 2) / 3 || !b || c || !d || e) out[0] = 1;
}

static void barriers(void) {
    for (int n : {1, 2, 31, 32, 33, 96, 257, 1024}) {
        int *d = device_array(std::vector<int>(3 * (size_t)n));
        rotate_kernel<<<3, n, 0, stream>>>(d, 5);
        OK(cudaGetLastError());
        const std::vector<int> r = host_array(d, 3 * (size_t)n);
        size_t wrong = 0;
        for (int i = 0; i < 3 * n; i++) wrong += r[(size_t)i] != (i % n + 5) % n;
        CHECK(wrong == 0, "%zu wrong with %d threads", wrong, n);
        OK(cudaMemset(d, 0, sizeof(int)));
        OK(cudaDeviceSynchronize());
        counting_barrier_kernel<<<2, n, 0, stream>>>(d);
        OK(cudaGetLastError());
        CHECK(host_array(d, 1)[0] == 0, "votes at a barrier, %d threads", n);
        OK(cudaFree(d));
    }
}

// Threads that leave at different times; those of a warp that stay still shuffle among themselves.
__global__ static void leave_kernel(int *out, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    out[i] = i;
    for (int k = 0; k < i % 5; k++) out[i] += 100;
    if (i % 32 >= 16) return;
    const int x = __shfl_xor_sync(0x0000ffffu, i, 1);
    out[i] += 10000 * (x - i);
}

static void divergent_exits(void) {
    const int n = 208;      // full half-warps only: 6 warps and one half
    int *d = device_array(std::vector<int>((size_t)n));
    leave_kernel<<<4, 64, 0, stream>>>(d, n);
    OK(cudaGetLastError());
    const std::vector<int> r = host_array(d, (size_t)n);
    size_t wrong = 0;
    for (int i = 0; i < n; i++) {
        const int shuffled = i % 32 < 16 ? 10000 * ((i ^ 1) - i) : 0;
        wrong += r[(size_t)i] != i + 100 * (i % 5) + shuffled;
    }
    CHECK(wrong == 0, "%zu wrong", wrong);
    OK(cudaFree(d));
}

template <typename T> __global__ static void shuffle_kernel(T *out) {
    const unsigned lane = threadIdx.x % 32;
    const T x = (T)(100 + threadIdx.x);
    T *o = out + threadIdx.x;
    const unsigned n = blockDim.x, all = 0xffffffffu;
    o[0 * n] = __shfl_sync(all, x, 5);
    o[1 * n] = __shfl_sync(all, x, (int)lane + 3);          // modulo 32
    o[2 * n] = __shfl_sync(all, x, 2, 8);
    o[3 * n] = __shfl_xor_sync(all, x, 16);
    o[4 * n] = __shfl_xor_sync(all, x, 3, 4);
    o[5 * n] = __shfl_up_sync(all, x, 2);
    o[6 * n] = __shfl_up_sync(all, x, 3, 16);
    o[7 * n] = __shfl_down_sync(all, x, 7);
    o[8 * n] = __shfl_down_sync(all, x, 1, 2);
    o[9 * n] = lane < 8 ? __shfl_sync(0x000000ffu, x, 7) : __shfl_sync(0xffffff00u, x, 31);
}

template <typename T> static void check_shuffles(const char *type) {
    const unsigned n = 96;
    T *d = device_array(std::vector<T>(10 * n));
    shuffle_kernel<T><<<1, n, 0, stream>>>(d);
    OK(cudaGetLastError());
    const std::vector<T> r = host_array(d, 10 * n);
    for (unsigned t = 0; t < n; t++) {
        const unsigned w = t / 32 * 32, l = t % 32;
        const unsigned source[10] = {
            5, (l + 3) % 32, l / 8 * 8 + 2, l ^ 16, l ^ 3, l >= 2 ? l - 2 : l,
            l % 16 >= 3 ? l - 3 : l, l + 7 < 32 ? l + 7 : l,
            l % 2 == 0 ? l + 1 : l, l < 8 ? 7u : 31u};
        for (unsigned i = 0; i < 10; i++)
            CHECK(r[i * n + t] == (T)(100 + w + source[i]), "%s, shuffle %u, thread %u", type, i,
                  t);
    }
    OK(cudaFree(d));
}

static void shuffles(void) {
    check_shuffles<int>("int");
    check_shuffles<float>("float");
    check_shuffles<double>("double");
    check_shuffles<unsigned long long>("unsigned long long");
}

__global__ static void vote_kernel(unsigned *out) {
    const unsigned lane = threadIdx.x % 32, all = 0xffffffffu;
    unsigned *o = out + 8 * threadIdx.x;
    o[0] = __ballot_sync(all, lane % 3 == 0);
    o[1] = (unsigned)__any_sync(all, lane == 31) * 2 + (unsigned)__any_sync(all, lane == 32);
    o[2] = (unsigned)__all_sync(all, lane < 32) * 2 + (unsigned)__all_sync(all, lane > 0);
    o[3] = __reduce_add_sync(all, lane);
    o[4] = __reduce_max_sync(all, lane ^ 5u) * 100 + __reduce_min_sync(all, lane + 3);
    o[5] = (unsigned)__popc(__ballot_sync(all, 1));
    __syncwarp();
    o[6] = lane % 2 == 0 ? __ballot_sync(0x55555555u, lane < 8) : __ballot_sync(0xaaaaaaaau, 1);
}

static void votes(void) {
    unsigned *d = device_array(std::vector<unsigned>(8 * 64));
    vote_kernel<<<1, 64, 0, stream>>>(d);
    OK(cudaGetLastError());
    const std::vector<unsigned> r = host_array(d, 8 * 64);
    for (size_t t = 0; t < 64; t++) {
        const unsigned *o = &r[8 * t];
        CHECK(o[0] == 0x49249249u && o[1] == 2 && o[2] == 2 && o[3] == 496 && o[4] == 3103
              && o[5] == 32 && o[6] == (t % 2 == 0 ? 0x55u : 0xaaaaaaaau),
              "thread %zu: %x %u %u %u %u %u %x", t, o[0], o[1], o[2], o[3], o[4], o[5], o[6]);
    }
    OK(cudaFree(d));
}

// ---------------------------------------------------------------------------------------------
// Shared memory and atomics

struct Pair { float a; int b; };

template <typename T> __global__ static void static_shared_kernel(T *out) {
    __shared__ T plane[4][33], corner[1];
    __shared__ T *where;
    __shared__ Pair pairs[32];
    __shared__ __align__(16) unsigned char bytes[64];
    const unsigned t = threadIdx.x;
    if (t == 0) where = &corner[0];
    plane[t / 32][t % 32] = (T)t;
    if (t < 32) pairs[t] = {(float)t / 2, (int)t};
    if (t < 64) bytes[t] = (unsigned char)(255 - t);
    __syncthreads();
    if (t == 0) *where = (T)1000;
    __syncthreads();
    out[t] = plane[t % 4][t / 4] + corner[0] + (T)(2 * pairs[t % 32].a) - (T)pairs[t % 32].b
             + (T)bytes[t % 64] + (T)((uintptr_t)bytes % 16);
}

static void static_shared_memory(void) {
    float *d = device_array(std::vector<float>(2 * 128));
    static_shared_kernel<float><<<1, 128, 0, stream>>>(d);
    OK(cudaGetLastError());
    const std::vector<float> r = host_array(d, 128);
    for (unsigned t = 0; t < 128; t++)
        CHECK(r[t] == (float)(t % 4 * 32 + t / 4) + 1000 + (float)(255 - t % 64), "thread %u", t);
    OK(cudaFree(d));
}

static void dynamic_shared_memory(void) {
    for (int bytes : {4, 4096, 48 << 10, 96 << 10}) {
        const int n = bytes / 4;
        if (bytes > 48 << 10)
            OK(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    bytes));
        int *d = device_array(std::vector<int>(2 * (size_t)n));
        dynamic_kernel<<<2, 64, (size_t)bytes, stream>>>(d, n);
        OK(cudaGetLastError());
        const std::vector<int> r = host_array(d, 2 * (size_t)n);
        size_t wrong = 0;
        for (int i = 0; i < 2 * n; i++) wrong += r[(size_t)i] != 3 * (n - 1 - i % n);
        CHECK(wrong == 0, "%zu wrong of %d bytes", wrong, bytes);
        OK(cudaFree(d));
    }
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    EXPECT(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)prop.sharedMemPerBlockOptin + 1), cudaErrorInvalidValue);
}

__global__ static void atomics_kernel(int *i, unsigned *u, unsigned long long *l, float *f) {
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&i[0], t);
    atomicSub(&i[1], 1);
    atomicMax(&i[2], t);
    atomicMin(&i[3], -t);
    atomicExch(&i[4], 7);
    atomicOr(&u[0], 1u << (t % 32));
    atomicAnd(&u[1], ~(1u << (t % 16)));
    atomicXor(&u[2], 1u << (t % 32));
    atomicInc(&u[3], 9);
    for (unsigned seen = 0, expected;;) {           // a sum by compare and swap
        expected = seen;
        seen = atomicCAS(&u[4], expected, expected + 2);
        if (seen == expected) break;
    }
    u[5 + atomicAdd(&i[5], 1)] = 1;                 // every thread gets a place of its own
    atomicAdd(&l[0], 1ull << 33);
    atomicAdd(&f[0], 0.5f);
}

static void atomics(void) {
    const int n = 512;
    int *i = device_array(std::vector<int>{0, 0, -1, 1, 0, 0});
    unsigned *u = device_array(std::vector<unsigned>(5 + (size_t)n));
    OK(cudaMemset(u + 1, 0xff, sizeof(unsigned)));
    unsigned long long *l = device_array(std::vector<unsigned long long>(1));
    float *f = device_array(std::vector<float>(1));
    atomics_kernel<<<8, 64, 0, stream>>>(i, u, l, f);
    OK(cudaGetLastError());
    const std::vector<int> ri = host_array(i, 6);
    const std::vector<unsigned> ru = host_array(u, 5 + (size_t)n);
    CHECK(ri[0] == n * (n - 1) / 2 && ri[1] == -n && ri[2] == n - 1 && ri[3] == 1 - n && ri[4] == 7,
          "%d %d %d %d %d", ri[0], ri[1], ri[2], ri[3], ri[4]);
    CHECK(ru[0] == ~0u && ru[1] == 0xffff0000u && ru[2] == 0 && ru[3] == n % 10 && ru[4] == 2 * n,
          "%x %x %x %u %u", ru[0], ru[1], ru[2], ru[3], ru[4]);
    size_t taken = 0;
    for (int k = 0; k < n; k++) taken += ru[5 + (size_t)k];
    CHECK(taken == (size_t)n, "%zu places taken", taken);
    CHECK(host_array(l, 1)[0] == (unsigned long long)n << 33, "64 bits");
    CHECK(host_array(f, 1)[0] == n / 2, "float");
    OK(cudaFree(i)), OK(cudaFree(u)), OK(cudaFree(l)), OK(cudaFree(f));
}

// ---------------------------------------------------------------------------------------------
// Numbers

// The definition: the nearest bf16, ties to the even one; NaN stays NaN.
static uint16_t nearest_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return 0x7fff;
    const uint32_t low = bits & 0xffff, high = bits >> 16;
    return (uint16_t)(low > 0x8000 || (low == 0x8000 && high % 2 == 1) ? high + 1 : high);
}

__global__ static void bf16_kernel(uint32_t *wide, uint16_t *narrow, const float *x, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < 65536) {
        const bf16 b = __ushort_as_bfloat16((unsigned short)i);
        wide[i] = __float_as_uint(__bfloat162float(b));
    }
    if (i < n) narrow[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
}

static void bf16_rounding(void) {
    std::vector<float> x;
    for (uint32_t h = 0; h < 65536; h++)    // every bf16, the tie above it, and beside the tie
        for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            const uint32_t bits = h << 16 | low;
            float v;
            memcpy(&v, &bits, sizeof v);
            x.push_back(v);
        }
    const size_t n = x.size();
    float *dx = device_array(x);
    uint32_t *wide = device_array(std::vector<uint32_t>(65536));
    uint16_t *narrow = device_array(std::vector<uint16_t>(n));
    bf16_kernel<<<(unsigned)(n + 255) / 256, 256, 0, stream>>>(wide, narrow, dx, (int)n);
    OK(cudaGetLastError());
    const std::vector<uint32_t> w = host_array(wide, 65536);
    const std::vector<uint16_t> r = host_array(narrow, n);
    size_t wrong_wide = 0, wrong_narrow = 0, wrong_host = 0;
    for (uint32_t h = 0; h < 65536; h++) wrong_wide += w[h] != h << 16;
    for (size_t i = 0; i < n; i++) {
        const uint16_t want = nearest_bf16(x[i]);
        const uint16_t host = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
        const bool nan = isnan(x[i]);       // any NaN will do
        wrong_narrow += nan ? (r[i] & 0x7fff) <= 0x7f80 : r[i] != want;
        wrong_host += nan ? (host & 0x7fff) <= 0x7f80 : host != want;
    }
    CHECK(wrong_wide == 0, "%zu of 65536 to float", wrong_wide);
    CHECK(wrong_narrow == 0, "%zu of %zu to bf16", wrong_narrow, n);
    CHECK(wrong_host == 0, "%zu of %zu to bf16 on the host", wrong_host, n);
    OK(cudaFree(dx)), OK(cudaFree(wide)), OK(cudaFree(narrow));
}

// The value of fp16's bits; what would come after the largest number for infinity.
static double fp16_value(int h) {
    const int exponent = h >> 10 & 31, digits = h & 1023;
    return exponent == 0 ? ldexp(digits, -24) : ldexp(1024 + digits, exponent - 25);
}

__global__ static void fp16_kernel(float *wide, uint16_t *narrow, const float *x, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < 65536) wide[i] = __half2float(__ushort_as_half((unsigned short)i));
    if (i < n) narrow[i] = __half_as_ushort(__float2half_rn(x[i]));
}

static void fp16_rounding(void) {
    std::vector<float> x;
    std::vector<int> want;
    for (int h = 0; h < 0x7c00; h++) {      // every number, the tie above it, and beside the tie
        const float tie = (float)((fp16_value(h) + fp16_value(h + 1)) / 2);
        const float cases[4] = {(float)fp16_value(h), nextafterf(tie, 0), tie,
                                nextafterf(tie, 1e9f)};
        const int nearest[4] = {h, h, h + h % 2, h + 1};
        for (int k = 0; k < 4; k++)
            for (int sign : {0, 0x8000}) {
                x.push_back(sign ? -cases[k] : cases[k]);
                want.push_back(nearest[k] | sign);
            }
    }
    const size_t n = x.size();
    float *dx = device_array(x), *wide = zeros(65536);
    uint16_t *narrow = device_array(std::vector<uint16_t>(n));
    fp16_kernel<<<(unsigned)(n + 255) / 256, 256, 0, stream>>>(wide, narrow, dx, (int)n);
    OK(cudaGetLastError());
    const std::vector<float> w = host_array(wide, 65536);
    const std::vector<uint16_t> r = host_array(narrow, n);
    size_t wrong_wide = 0, wrong_narrow = 0;
    for (int h = 0; h < 65536; h++) {
        const int magnitude = h & 0x7fff;
        const double v = magnitude == 0x7c00 ? (double)INFINITY : fp16_value(magnitude);
        if (magnitude > 0x7c00) wrong_wide += !isnan(w[(size_t)h]);
        else wrong_wide += (double)w[(size_t)h] != (h & 0x8000 ? -v : v);
    }
    for (size_t i = 0; i < n; i++) wrong_narrow += r[i] != want[i];
    CHECK(wrong_wide == 0, "%zu of 65536 to float", wrong_wide);
    CHECK(wrong_narrow == 0, "%zu of %zu to fp16", wrong_narrow, n);
    OK(cudaFree(dx)), OK(cudaFree(wide)), OK(cudaFree(narrow));
}

// What AdamW's promise of equal bits needs: each operation rounds once, subnormals included.
__global__ static void rounding_kernel(float *out, const float *x) {
    const float a = x[threadIdx.x], b = x[(threadIdx.x * 7 + 3) % 32];
    float *o = out + 7 * threadIdx.x;
    o[0] = __fadd_rn(a, b);
    o[1] = __fmul_rn(a, b);
    o[2] = __fmaf_rn(a, b, a);
    o[3] = __fdiv_rn(a, b);
    o[4] = __fsqrt_rn(fabsf(a));
    o[5] = fmaf(a, b, -__fmul_rn(a, b));        // what the product's rounding lost
    o[6] = __fmul_rn(a, 1e-38f);
}

static void arithmetic_rounds_once(void) {
    std::vector<float> x(32);
    for (size_t i = 0; i < 32; i++)
        x[i] = ldexpf((i % 2 ? -1.0f : 1.0f) * (1.0f + (float)i * 0.1234567f), (int)(i % 9) - 4);
    float *dx = device_array(x), *out = device_array(std::vector<float>(7 * 32));
    rounding_kernel<<<1, 32, 0, stream>>>(out, dx);
    OK(cudaGetLastError());
    const std::vector<float> r = host_array(out, 7 * 32);
    for (size_t i = 0; i < 32; i++) {
        // a double holds the sum and the product of two floats exactly
        const volatile double a = x[i], b = x[(i * 7 + 3) % 32];
        const float product = (float)(a * b);
        const float want[7] = {(float)(a + b), product, fmaf((float)a, (float)b, (float)a),
                               (float)(a / b), (float)sqrt(fabs(a)), (float)(a * b - product),
                               (float)(a * (double)1e-38f)};
        for (size_t k = 0; k < 7; k++)
            CHECK(r[7 * i + k] == want[k], "operation %zu of %g and %g: %.9g, expected %.9g", k,
                  a, b, r[7 * i + k], want[k]);
    }
    OK(cudaFree(dx)), OK(cudaFree(out));
}

__global__ static void vector_kernel(int4 *out, const int4 *in, float2 *pairs,
                                     const float4 *quads) {
    const unsigned i = threadIdx.x;
    int4 v = in[i];
    const int swap = v.x;
    v.x = v.w, v.w = swap;
    out[i] = v;
    const float4 q = quads[i];
    pairs[2 * i] = make_float2(q.y, q.x);
    pairs[2 * i + 1] = make_float2(__ldg(&quads[i].z), q.w);
}

static void vector_loads(void) {
    static_assert(sizeof(int4) == 16 && alignof(int4) == 16 && alignof(float4) == 16
                  && alignof(float2) == 8 && sizeof(float3) == 12, "CUDA's vector types");
    std::vector<int> in(4 * 64);
    std::vector<float> quads(4 * 64);
    for (size_t i = 0; i < 4 * 64; i++) in[i] = (int)i, quads[i] = (float)i / 4;
    int *din = device_array(in), *out = device_array(std::vector<int>(4 * 64));
    float *dq = device_array(quads), *pairs = device_array(std::vector<float>(4 * 64));
    vector_kernel<<<1, 64, 0, stream>>>((int4 *)out, (const int4 *)din, (float2 *)pairs,
                                        (const float4 *)dq);
    OK(cudaGetLastError());
    const std::vector<int> r = host_array(out, 4 * 64);
    const std::vector<float> p = host_array(pairs, 4 * 64);
    for (size_t i = 0; i < 64; i++) {
        const int k = 4 * (int)i;
        CHECK(r[4 * i] == k + 3 && r[4 * i + 1] == k + 1 && r[4 * i + 2] == k + 2
              && r[4 * i + 3] == k, "int4 %zu", i);
        CHECK(p[4 * i] == (float)(k + 1) / 4 && p[4 * i + 1] == (float)k / 4
              && p[4 * i + 2] == (float)(k + 2) / 4 && p[4 * i + 3] == (float)(k + 3) / 4,
              "float4 %zu", i);
    }
    OK(cudaFree(din)), OK(cudaFree(out)), OK(cudaFree(dq)), OK(cudaFree(pairs));
}

// ---------------------------------------------------------------------------------------------
// Streams, events, copies

__global__ static void fill_kernel(float *x, float v, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = v;
}

// y = scale y + x
__global__ static void mix_kernel(float *y, const float *x, float scale, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = scale * y[i] + x[i];
}

static void a_stream_keeps_its_order(void) {
    const int n = 1000;
    float *x = zeros(n), *y = zeros(n);
    float want = 0;
    OK(cudaMemsetAsync(y, 0, (size_t)n * sizeof(float), stream));
    for (int k = 1; k <= 20; k++) {
        fill_kernel<<<4, 256, 0, stream>>>(x, (float)k, n);
        mix_kernel<<<4, 256, 0, stream>>>(y, x, 0.5f, n);
        want = 0.5f * want + (float)k;
    }
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(stream));
    EXPECT(cudaStreamQuery(stream), cudaSuccess);
    const std::vector<float> r = host_array(y, (size_t)n);
    size_t wrong = 0;
    for (float v : r) wrong += v != want;
    CHECK(wrong == 0, "%zu of %d are not %g", wrong, n, want);
    OK(cudaFree(x)), OK(cudaFree(y));
}

static void events_order_streams(void) {
    const int n = 4096;
    float *slot[2], *sum = zeros(n);
    cudaEvent_t full[2], spare[2];
    for (int k = 0; k < 2; k++) {
        slot[k] = zeros(n);
        OK(cudaEventCreateWithFlags(&full[k], cudaEventDisableTiming));
        OK(cudaEventCreateWithFlags(&spare[k], cudaEventDisableTiming));
    }
    // A ring of two slots between a stream that fills and one that adds. Waiting for an event that
    // was never recorded is no wait at all.
    for (int k = 0; k < 12; k++) {
        const int s = k % 2;
        OK(cudaStreamWaitEvent(other, spare[s], 0));
        fill_kernel<<<16, 256, 0, other>>>(slot[s], (float)(k + 1), n);
        OK(cudaEventRecord(full[s], other));
        OK(cudaStreamWaitEvent(stream, full[s], 0));
        mix_kernel<<<16, 256, 0, stream>>>(sum, slot[s], 1, n);
        OK(cudaEventRecord(spare[s], stream));
    }
    OK(cudaGetLastError());
    OK(cudaEventSynchronize(spare[1]));     // the last one recorded: all is done
    const std::vector<float> r = host_array(sum, (size_t)n);
    CHECK(r[0] == 78 && r[(size_t)n - 1] == 78, "%g", r[0]);
    for (int k = 0; k < 2; k++) {
        OK(cudaFree(slot[k]));
        OK(cudaEventDestroy(full[k])), OK(cudaEventDestroy(spare[k]));
    }
    OK(cudaFree(sum));
}

static void a_wait_is_for_the_record_before_it(void) {
    const int n = 256;
    float *x = zeros(n), *y = zeros(n);
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    fill_kernel<<<1, 256, 0, stream>>>(x, 5, n);
    OK(cudaEventRecord(e, stream));
    OK(cudaStreamWaitEvent(other, e, 0));
    OK(cudaEventRecord(e, stream));         // records again: the wait above stays with the first
    mix_kernel<<<1, 256, 0, other>>>(y, x, 1, n);
    OK(cudaEventRecord(e, other));
    OK(cudaEventSynchronize(e));            // the last record counts
    OK(cudaStreamWaitEvent(stream, e, 0));
    fill_kernel<<<1, 256, 0, stream>>>(x, 9, n);
    OK(cudaGetLastError());
    CHECK(host_array(y, 1)[0] == 5 && host_array(x, 1)[0] == 9, "order");
    OK(cudaEventDestroy(e));
    OK(cudaFree(x)), OK(cudaFree(y));
}

static void events_query_and_time(void) {
    const int n = 1 << 16;
    float *x = zeros(n), ms = -1;
    cudaEvent_t start, end, untimed, never;
    OK(cudaEventCreate(&start)), OK(cudaEventCreate(&end)), OK(cudaEventCreate(&never));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    EXPECT(cudaEventQuery(never), cudaSuccess);     // never recorded: nothing to wait for
    OK(cudaEventSynchronize(never));
    OK(cudaEventRecord(start, stream));
    for (int k = 0; k < 10; k++) fill_kernel<<<256, 256, 0, stream>>>(x, (float)k, n);
    OK(cudaEventRecord(end, stream));
    OK(cudaEventRecord(untimed, stream));
    cudaError_t e;
    int turns = 0;
    while ((e = cudaEventQuery(end)) == cudaErrorNotReady && turns < 100000000) turns++;
    CHECK(e == cudaSuccess, "%s after %d turns", cudaGetErrorName(e), turns);
    (void)cudaGetLastError();                       // "not ready" is left there like an error
    EXPECT(cudaEventElapsedTime(&ms, start, end), cudaSuccess);
    CHECK(ms >= 0 && ms < 10000, "%g ms", ms);
    EXPECT(cudaEventElapsedTime(&ms, end, start), cudaSuccess);
    CHECK(ms <= 0, "%g ms backwards", ms);
    OK(cudaEventSynchronize(untimed));
    EXPECT(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle);
    EXPECT(cudaEventElapsedTime(&ms, never, end), cudaErrorInvalidResourceHandle);
    while ((e = cudaStreamQuery(stream)) == cudaErrorNotReady) {}
    CHECK(e == cudaSuccess, "%s", cudaGetErrorName(e));
    (void)cudaGetLastError();
    OK(cudaEventDestroy(start)), OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(untimed)), OK(cudaEventDestroy(never));
    OK(cudaFree(x));
}

static void copies_from_pinned_memory(void) {
    const size_t n = 10000, bytes = n * sizeof(float);
    float *in, *out, *a, *b;
    OK(cudaMallocHost(&in, bytes)), OK(cudaMallocHost(&out, bytes));
    OK(cudaMalloc(&a, bytes)), OK(cudaMalloc(&b, bytes));
    for (size_t i = 0; i < n; i++) in[i] = (float)i, out[i] = -1;
    OK(cudaMemcpyAsync(a, in, bytes, cudaMemcpyHostToDevice, stream));
    mix_kernel<<<40, 256, 0, stream>>>(a, a, 1, (int)n);
    OK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemsetAsync(a, 0, bytes, stream));
    OK(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(in, a, bytes, cudaMemcpyDefault, stream));
    OK(cudaMemcpyAsync(out, out, 0, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += out[i] != 2 * (float)i || in[i] != 0;
    CHECK(wrong == 0, "%zu wrong", wrong);
    // part of a matrix: 7 rows of 12 bytes from rows of 40 into rows of 16
    for (size_t i = 0; i < 70; i++) in[i] = (float)i;
    OK(cudaMemcpy2DAsync(a, 16, in, 40, 12, 7, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    const std::vector<float> r = host_array(a, 28);
    for (size_t i = 0; i < 28; i++)
        CHECK(r[i] == (i % 4 < 3 ? (float)(i / 4 * 10 + i % 4) : 0), "2D element %zu: %g", i, r[i]);
    OK(cudaFreeHost(in)), OK(cudaFreeHost(out));
    OK(cudaFree(a)), OK(cudaFree(b));
}

// From pageable memory the bytes are taken before the call returns; into it they are there.
static void copies_from_pageable_memory(void) {
#ifdef __CUDA_EMU__
    if (getenv("EMU_STRICT") != NULL) SKIP("EMU_STRICT forbids them: they are not asynchronous");
#endif
    const size_t n = 3000, bytes = n * sizeof(float);
    std::vector<float> in(n, 3.0f), out(n, -1.0f);
    float *a = device_array(std::vector<float>(n));
    OK(cudaMemcpyAsync(a, in.data(), bytes, cudaMemcpyHostToDevice, stream));
    for (size_t i = 0; i < n; i++) in[i] = 99;
    mix_kernel<<<12, 256, 0, stream>>>(a, a, 2, (int)n);
    OK(cudaMemcpyAsync(out.data(), a, bytes, cudaMemcpyDeviceToHost, stream));
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += out[i] != 9;
    CHECK(wrong == 0, "%zu wrong", wrong);
    OK(cudaFree(a));
}

// A host function sees what its stream did before, and its stream waits for it.
struct HostWork { float *pinned; int calls; float seen; };
static void host_work(void *data) {
    HostWork *w = (HostWork *)data;
    w->seen = w->pinned[0];
    w->pinned[0] = 10 * w->seen + 1;
    w->calls++;
}

static void host_functions(void) {
    float *pinned, *a = device_array(std::vector<float>(256));
    OK(cudaMallocHost(&pinned, sizeof(float)));
    HostWork w = {pinned, 0, 0};
    for (int k = 0; k < 3; k++) {
        fill_kernel<<<1, 256, 0, stream>>>(a, (float)(k + 4), 256);
        OK(cudaMemcpyAsync(pinned, a, sizeof(float), cudaMemcpyDeviceToHost, stream));
        OK(cudaLaunchHostFunc(stream, host_work, &w));
        OK(cudaMemcpyAsync(a + 1, pinned, sizeof(float), cudaMemcpyHostToDevice, stream));
    }
    OK(cudaStreamSynchronize(stream));
    CHECK(w.calls == 3 && w.seen == 6, "%d calls, saw %g", w.calls, w.seen);
    CHECK(host_array(a, 2)[1] == 61, "what the function wrote was copied");
    OK(cudaFreeHost(pinned)), OK(cudaFree(a));
}

static void say_one(void *word) { __atomic_store_n((unsigned *)word, 1u, __ATOMIC_RELEASE); }

// The counter wraps: 1 comes after what it is at first.
static void words_order_streams(void) {
    CUresult (*wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&wait, 12000,
                                        cudaEnableDefault, &found));
    unsigned *word;
    float *a = zeros(256), *b = zeros(256);
    OK(cudaMallocHost(&word, 2 * sizeof *word));
    word[0] = 0xfffffffe, word[1] = 0;
    CHECK(wait(other, (CUdeviceptr)word, 1, 0) == CUDA_SUCCESS, "page-locked");
    OK(cudaMemcpyAsync(b, a, 256 * sizeof(float), cudaMemcpyDeviceToDevice, other));
    fill_kernel<<<1, 256, 0, stream>>>(a, 7, 256);
    OK(cudaLaunchHostFunc(stream, say_one, word));
    OK(cudaStreamSynchronize(other));
    CHECK(host_array(b, 256)[255] == 7, "the copy came before the word");
#ifdef __CUDA_EMU__
    unsigned on_the_stack = 1;
    CHECK(wait(other, (CUdeviceptr)(word + 1), 0, 1) == CUDA_ERROR_INVALID_VALUE
              && wait(other, (CUdeviceptr)&on_the_stack, 1, 0) == CUDA_ERROR_INVALID_VALUE
              && wait(other, (CUdeviceptr)a, 0, 0) == CUDA_ERROR_INVALID_VALUE,
          "only a word of page-locked memory, and only reached or passed");
#endif
    OK(cudaFreeHost(word)), OK(cudaFree(a)), OK(cudaFree(b));
}

// Memory of our own, page-locked later, is as good as any for asynchronous copies.
static void registered_memory(void) {
    const size_t n = 5000, bytes = n * sizeof(float);
    std::vector<float> own(n, 4.0f);
    float *a = zeros((int)n);
    unsigned flags;
    EXPECT(cudaHostGetFlags(&flags, own.data()), cudaErrorInvalidValue);
    EXPECT(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
    OK(cudaHostRegister(own.data(), bytes, cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(own.data(), bytes, cudaHostRegisterDefault),
           cudaErrorHostMemoryAlreadyRegistered);
    EXPECT(cudaHostGetFlags(&flags, own.data()), cudaSuccess);
    OK(cudaMemcpyAsync(a, own.data(), bytes, cudaMemcpyHostToDevice, stream));
    mix_kernel<<<20, 256, 0, stream>>>(a, a, 1, (int)n);
    OK(cudaMemcpyAsync(own.data(), a, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(own[0] == 8 && own[n - 1] == 8, "%g %g", own[0], own[n - 1]);
    OK(cudaHostUnregister(own.data()));
#ifdef __CUDA_EMU__     // a part of it is registered: exactly 8 numbers from the 16th
    OK(cudaHostRegister(&own[16], 8 * sizeof(float), cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(own.data(), bytes, 0), cudaErrorHostMemoryAlreadyRegistered);
    EXPECT(cudaFreeHost(&own[16]), cudaErrorInvalidValue);
    OK(cudaHostRegister(own.data(), 16 * sizeof(float), cudaHostRegisterDefault));
    OK(cudaHostUnregister(own.data())), OK(cudaHostUnregister(&own[16]));
#endif
    OK(cudaFree(a));
}

// ---------------------------------------------------------------------------------------------
// The virtual clock: 1e9 bytes/s each way, 10 us for a kernel, 10 us for a host function

#ifdef __CUDA_EMU__
static const size_t MB = 1000000;       // one millisecond

struct Buffers { char *host, *device; };
static Buffers make_buffers(size_t bytes) {
    Buffers b;
    OK(cudaMallocHost(&b.host, bytes)), OK(cudaMalloc(&b.device, bytes));
    memset(b.host, 1, bytes);
    OK(cudaMemset(b.device, 2, bytes));
    OK(cudaDeviceSynchronize());
    return b;
}
static void free_buffers(Buffers b) { OK(cudaFreeHost(b.host)), OK(cudaFree(b.device)); }

static void to_device(Buffers b, size_t at, size_t bytes, cudaStream_t s) {
    OK(cudaMemcpyAsync(b.device + at, b.host + at, bytes, cudaMemcpyHostToDevice, s));
}
static void to_host(Buffers b, size_t at, size_t bytes, cudaStream_t s) {
    OK(cudaMemcpyAsync(b.host + at, b.device + at, bytes, cudaMemcpyDeviceToHost, s));
}

// Milliseconds until everything is done that was enqueued since `start`.
static double milliseconds_since(double start) {
    OK(cudaDeviceSynchronize());
    return (emu_virtual_now() - start) * 1e3;
}
#define CHECK_MS(got, want) CHECK(fabs((got) - (want)) < 1e-4, "%.4f ms, not %.4f", got, want)

static void operations_take_their_time(void) {
    Buffers b = make_buffers(2 * MB);
    cudaEvent_t e[6];
    const double times[] = {2, 0.5, 0.01, 0.01, 0.01};
    for (cudaEvent_t &x : e) OK(cudaEventCreate(&x));
    OK(cudaEventRecord(e[0], stream));
    to_device(b, 0, 2 * MB, stream);
    OK(cudaEventRecord(e[1], stream));
    to_host(b, 0, MB / 2, stream);
    OK(cudaEventRecord(e[2], stream));
    fill_kernel<<<1, 32, 0, stream>>>((float *)b.device, 0, 32);
    OK(cudaGetLastError());
    OK(cudaEventRecord(e[3], stream));
    OK(cudaMemsetAsync(b.device, 0, MB, stream));
    OK(cudaEventRecord(e[4], stream));
    OK(cudaMemcpyAsync(b.device, b.device + MB, MB, cudaMemcpyDeviceToDevice, stream));
    OK(cudaEventRecord(e[5], stream));
    const double start = emu_virtual_now();
    OK(cudaEventSynchronize(e[2]));
    CHECK_MS((emu_virtual_now() - start) * 1e3, 2.5);   // the host has waited for so long
    OK(cudaDeviceSynchronize());
    for (int k = 0; k < 5; k++) {
        float ms;
        OK(cudaEventElapsedTime(&ms, e[k], e[k + 1]));
        CHECK_MS(ms, times[k]);
    }
    for (cudaEvent_t x : e) OK(cudaEventDestroy(x));
    free_buffers(b);
}

static void directions_overlap(void) {
    Buffers b = make_buffers(6 * MB);
    double start = emu_virtual_now();
    to_device(b, 0, 3 * MB, stream), to_host(b, 3 * MB, 3 * MB, other);
    CHECK_MS(milliseconds_since(start), 3.0);
    start = emu_virtual_now();
    to_device(b, 0, 3 * MB, stream), to_device(b, 3 * MB, 3 * MB, other);   // one engine
    CHECK_MS(milliseconds_since(start), 6.0);
    free_buffers(b);
}

// Pieces that travel in, are updated, and travel back, through a ring of slots on the device.
static double ring_milliseconds(size_t slots) {
    const size_t pieces = 6;
    Buffers b = make_buffers(slots * MB);
    cudaStream_t update;
    std::vector<cudaEvent_t> full(slots), done(slots), spare(slots);
    OK(cudaStreamCreateWithFlags(&update, cudaStreamNonBlocking));
    for (size_t k = 0; k < slots; k++)
        for (cudaEvent_t *e : {&full[k], &done[k], &spare[k]})
            OK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    const double start = emu_virtual_now();
    for (size_t i = 0; i < pieces; i++) {
        const size_t k = i % slots, at = k * MB;
        if (i >= slots) OK(cudaStreamWaitEvent(stream, spare[k]));
        to_device(b, at, MB, stream);
        OK(cudaEventRecord(full[k], stream));
        OK(cudaStreamWaitEvent(update, full[k]));
        fill_kernel<<<1, 256, 0, update>>>((float *)(b.device + at), 1, 256);
        OK(cudaGetLastError());
        OK(cudaEventRecord(done[k], update));
        OK(cudaStreamWaitEvent(other, done[k]));
        to_host(b, at, MB, other);
        OK(cudaEventRecord(spare[k], other));
    }
    const double ms = milliseconds_since(start);
    for (size_t k = 0; k < slots; k++)
        for (cudaEvent_t e : {full[k], done[k], spare[k]}) OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(update));
    free_buffers(b);
    return ms;
}

static void a_ring_needs_slots(void) {
    CHECK_MS(ring_milliseconds(1), 6 * 2.01);           // in, update, out: one after the other
    CHECK_MS(ring_milliseconds(2), 3 * 2.01 + 1);       // slots are busy for 2.01 ms
    CHECK_MS(ring_milliseconds(3), 6 + 0.01 + 1);       // the links are busy all the time
}

static void take_a_millisecond(void *data) {
    pthread_t t;        // as if a worker did it
    pthread_create(&t, NULL, [](void *p) -> void * { return emu_virtual_seconds(1e-3), p; }, data);
    pthread_join(t, NULL);
}

static void host_functions_take_what_they_say(void) {
    Buffers b = make_buffers(5 * MB);
    double start = emu_virtual_now();
    to_device(b, 0, 5 * MB, stream);
    for (int k = 0; k < 4; k++) OK(cudaLaunchHostFunc(other, take_a_millisecond, NULL));
    OK(cudaStreamSynchronize(other));
    CHECK_MS((emu_virtual_now() - start) * 1e3, 4.04);
    CHECK_MS(milliseconds_since(start), 5.0);           // hidden under the copy
    emu_virtual_seconds(2e-3);                          // the host computes
    to_device(b, 0, MB, stream);
    CHECK_MS(milliseconds_since(start), 8.0);
    free_buffers(b);
}

// The host waits for them, so what comes after cannot overlap.
static void pageable_copies_do_not_overlap(void) {
    if (getenv("EMU_STRICT") != NULL) return;
    Buffers b = make_buffers(2 * MB);
    std::vector<char> pageable(2 * MB);
    const double start = emu_virtual_now();
    OK(cudaMemcpyAsync(b.device, pageable.data(), 2 * MB, cudaMemcpyHostToDevice, stream));
    to_host(b, 0, 2 * MB, other);
    CHECK_MS(milliseconds_since(start), 4.0);
    free_buffers(b);
}

// A copy engine takes what is ready first, not what was enqueued first.
static void copy_engines_take_turns(void) {
    const char *order = getenv("EMU_SCHED");
    if (order != NULL && *order != '\0' && strcmp(order, "earliest") != 0) return;
    Buffers b = make_buffers(8 * MB);
    const double start = emu_virtual_now();
    for (size_t k = 1; k < 4; k++) to_device(b, k * MB, MB, stream);    // ready at 0, 1, 3 ms
    to_host(b, 0, MB / 2, other);
    to_device(b, 0, MB, other);                                         // at 0.5 ms
    OK(cudaStreamSynchronize(other));
    CHECK_MS((emu_virtual_now() - start) * 1e3, 2.0);
    CHECK_MS(milliseconds_since(start), 4.0);
    free_buffers(b);
}

// What the dependencies alone determine is the same under every schedule.
static void the_virtual_clock(void) {
    if (getenv("EMU_CLOCK") != NULL) SKIP("EMU_CLOCK is set already");
    for (const char *order : {"", "eager", "lazy", "prio:0", "prio:1", "random:1", "random:2"}) {
        const pid_t child = fork();
        if (child == 0) {
            setenv("EMU_CLOCK", "virtual", 1);
            setenv("EMU_SCHED", order, 1);
            execl("/proc/self/exe", "test_emu", "clock", (char *)NULL);
            _exit(127);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0, "EMU_SCHED=%s: status %d", order, status);
    }
}
#endif

// ---------------------------------------------------------------------------------------------
// Memory, errors, properties

static void memory_runs_out(void) {
    size_t free_bytes, total;
    void *p = NULL;
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes <= total && total > 0, "%zu of %zu free", free_bytes, total);
    EXPECT(cudaMalloc(&p, total + (64 << 20)), cudaErrorMemoryAllocation);
    EXPECT(cudaMalloc(&p, (size_t)1 << 60), cudaErrorMemoryAllocation);
    EXPECT(cudaMalloc(&p, 1 << 20), cudaSuccess);       // life goes on
    CHECK((uintptr_t)p % 256 == 0, "aligned to 256 bytes");
    EXPECT(cudaFree(p), cudaSuccess);
    EXPECT(cudaFree(NULL), cudaSuccess);
    EXPECT(cudaFreeHost(NULL), cudaSuccess);
    EXPECT(cudaFree(p), cudaErrorInvalidValue);         // twice
}

static void errors_have_names(void) {
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0,
          "%s", cudaGetErrorName(cudaErrorMemoryAllocation));
    CHECK(strcmp(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration")
          == 0, "%s", cudaGetErrorName(cudaErrorInvalidConfiguration));
    CHECK(strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0, "not ready");
    CHECK(strlen(cudaGetErrorString(cudaErrorInvalidValue)) > 5, "a sentence");
    EXPECT(cudaSetDevice(1000), cudaErrorInvalidDevice);
    cudaDeviceProp prop;
    EXPECT(cudaGetDeviceProperties(&prop, 1000), cudaErrorInvalidDevice);
}

static void properties(void) {
    int count = 0, device = -1, value = 0;
    OK(cudaGetDeviceCount(&count));
    CHECK(count >= 1, "%d devices", count);
    OK(cudaGetDevice(&device));
    CHECK(device == 0, "device %d", device);
    cudaDeviceProp p;
    OK(cudaGetDeviceProperties(&p, 0));
    CHECK(p.warpSize == 32 && p.maxThreadsPerBlock == 1024, "%d %d", p.warpSize,
          p.maxThreadsPerBlock);
    CHECK(p.multiProcessorCount >= 1 && p.major >= 8, "%d SMs, cc %d.%d", p.multiProcessorCount,
          p.major, p.minor);
    CHECK(p.sharedMemPerBlock == 48 << 10 && p.sharedMemPerBlockOptin >= 99 << 10, "%zu %zu",
          p.sharedMemPerBlock, p.sharedMemPerBlockOptin);
    CHECK(p.totalGlobalMem > 0 && strlen(p.name) > 0, "%s", p.name);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    CHECK(value == p.multiProcessorCount, "%d", value);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CHECK(value == (int)p.sharedMemPerBlockOptin, "%d", value);
}

// Memory is not zero because it is new: here every float, bf16 and fp16 of it is NaN.
#ifdef __CUDA_EMU__
__global__ static void read_fresh_shared_kernel(float *out) {
    __shared__ float fresh[32];
    extern __shared__ float dynamic_fresh[];
    float *o = out + 64 * blockIdx.x + threadIdx.x;
    o[0] = fresh[threadIdx.x] + 1;
    o[32] = dynamic_fresh[threadIdx.x] + 1;
}
#endif

static void fresh_memory_is_poisoned(void) {
#ifdef __CUDA_EMU__
    float *x, *out;
    OK(cudaMalloc(&x, 4000));
    OK(cudaMalloc(&out, 128 * sizeof(float)));
    const std::vector<float> r = host_array(x, 1000);
    size_t numbers = 0;
    for (float v : r) numbers += !isnan(v);
    CHECK(numbers == 0, "%zu numbers in fresh memory", numbers);
    read_fresh_shared_kernel<<<2, 32, 32 * sizeof(float), stream>>>(out);
    OK(cudaGetLastError());
    numbers = 0;
    for (float v : host_array(out, 128)) numbers += !isnan(v);
    CHECK(numbers == 0, "%zu numbers in fresh shared memory", numbers);
    OK(cudaFree(x)), OK(cudaFree(out));
#else
    SKIP("only the emulated device poisons its memory");
#endif
}

// ---------------------------------------------------------------------------------------------
// Matrix instructions: one PTX instruction each, with its twin for the emulated device

#define MMA(type) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ static inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDA_EMU__
    emu::mma_m16n8k16_bf16(d, a, b);
#else
    MMA("bf16");
#endif
}

__device__ static inline void mma_f16(float (&d)[4], const uint32_t (&a)[4],
                                      const uint32_t (&b)[2]) {
#ifdef __CUDA_EMU__
    emu::mma_m16n8k16_f16(d, a, b);
#else
    MMA("f16");
#endif
}

__device__ static inline void ldmatrix(uint32_t (&r)[4], const void *row) {
#ifdef __CUDA_EMU__
    emu::ldmatrix_x4(r, row);
#else
    const uint32_t p = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
#endif
}

__device__ static inline void ldmatrix_trans(uint32_t (&r)[4], const void *row) {
#ifdef __CUDA_EMU__
    emu::ldmatrix_x4_trans(r, row);
#else
    const uint32_t p = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
#endif
}

// d (16, 8) = c + a (16, 16) b (16, 8), the fragments picked by hand.
__global__ static void mma_kernel(float *d, const float *c, const uint16_t *a, const uint16_t *b,
                                  bool is_f16) {
    const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    float fd[4];
    for (unsigned r = 0; r < 4; r++) {
        const unsigned row = g + 8 * (r % 2), column = 2 * q + 8 * (r / 2);
        fa[r] = a[16 * row + column] | (uint32_t)a[16 * row + column + 1] << 16;
    }
    for (unsigned r = 0; r < 2; r++) {
        const unsigned row = 2 * q + 8 * r;
        fb[r] = b[8 * row + g] | (uint32_t)b[8 * (row + 1) + g] << 16;
    }
    for (unsigned i = 0; i < 4; i++) fd[i] = c[8 * (g + 8 * (i / 2)) + 2 * q + i % 2];
    if (is_f16) mma_f16(fd, fa, fb);
    else mma(fd, fa, fb);
    for (unsigned i = 0; i < 4; i++) d[8 * (g + 8 * (i / 2)) + 2 * q + i % 2] = fd[i];
}

static void check_mma(bool is_f16, float scale) {
    const auto stored = [=](float x) {
        return is_f16 ? __half_as_ushort(__float2half_rn(x)) : nearest_bf16(x);
    };
    std::vector<uint16_t> a(256), b(128);
    std::vector<float> c(128);
    for (size_t i = 0; i < 256; i++) a[i] = stored(scale * number(i, 1));
    for (size_t i = 0; i < 128; i++) b[i] = stored(number(i, 2)), c[i] = scale * number(i, 3);
    uint16_t *da = device_array(a), *db = device_array(b);
    float *dc = device_array(c), *dd = device_array(std::vector<float>(128));
    mma_kernel<<<1, 32, 0, stream>>>(dd, dc, da, db, is_f16);
    OK(cudaGetLastError());
    const std::vector<float> d = host_array(dd, 128);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++) {
            float want = c[8 * i + j];  // exact: all are multiples of scale 2^-12 below scale 2^7
            for (size_t k = 0; k < 16; k++)
                want += scale * number(16 * i + k, 1) * number(8 * k + j, 2);
            CHECK(d[8 * i + j] == want, "(%zu, %zu): %g, expected %g", i, j, d[8 * i + j], want);
        }
    OK(cudaFree(da)), OK(cudaFree(db)), OK(cudaFree(dc)), OK(cudaFree(dd));
}

static void mma_is_a_matrix_product(void) {
    check_mma(false, 1);
    check_mma(true, 1);
    check_mma(true, 0x1p-18f);  // below 2^-14 fp16 has no leading digit
}

// Loads four 8 x 8 matrices whose rows lie in an odd order, plain and transposed.
__global__ static void ldmatrix_kernel(uint32_t *out) {
    __shared__ __align__(16) uint16_t rows[32][8];
    const unsigned lane = threadIdx.x, place = (lane * 5 + 3) % 32;
    for (unsigned k = 0; k < 8; k++) rows[place][k] = (uint16_t)(lane * 256 + k);
    __syncwarp();
    uint32_t r[4], s[4];
    ldmatrix(r, rows[place]);
    ldmatrix_trans(s, rows[place]);
    for (unsigned m = 0; m < 4; m++) out[8 * lane + m] = r[m], out[8 * lane + 4 + m] = s[m];
}

static void ldmatrix_loads_fragments(void) {
    uint32_t *d = device_array(std::vector<uint32_t>(256));
    ldmatrix_kernel<<<1, 32, 0, stream>>>(d);
    OK(cudaGetLastError());
    const std::vector<uint32_t> r = host_array(d, 256);
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t m = 0; m < 4; m++) {
            const uint32_t row = 8 * m + lane / 4, k = 2 * (lane % 4);
            const uint32_t plain = (row * 256 + k) | (row * 256 + k + 1) << 16;
            CHECK(r[8 * lane + m] == plain, "lane %u matrix %u: %x", lane, m, r[8 * lane + m]);
            const uint32_t first = 8 * m + k, column = lane / 4;
            const uint32_t turned = (first * 256 + column) | ((first + 1) * 256 + column) << 16;
            CHECK(r[8 * lane + 4 + m] == turned, "lane %u matrix %u transposed: %x", lane, m,
                  r[8 * lane + 4 + m]);
        }
    OK(cudaFree(d));
}

// A (16, K) by rows, B (8, K) by rows, tile by tile through cp.async with two buffers, ldmatrix
// and mma: what the attention kernels are made of.
__global__ static void pipeline_kernel(float *d, const bf16 *a, const bf16 *b, int K) {
    __shared__ __align__(16) bf16 tile_a[2][16][16], tile_b[2][8][16];
    const unsigned lane = threadIdx.x;
    float sum[4] = {0, 0, 0, 0};
    for (int k = 0; k <= K; k += 16) {
        const int now = k / 16 % 2;
        if (k < K) {
            const unsigned row = lane / 2, half = lane % 2 * 8;
            const size_t from = row * (size_t)K + (size_t)k + half;
            __pipeline_memcpy_async(&tile_a[now][row][half], a + from, 16);
            if (row < 8) __pipeline_memcpy_async(&tile_b[now][row][half], b + from, 16);
        }
        __pipeline_commit();
        if (k == 0) continue;
        __pipeline_wait_prior(1);       // all but the copies just started
        __syncwarp();
        const int before = 1 - now;
        uint32_t fa[4], fb[4];
        ldmatrix(fa, &tile_a[before][lane % 16][lane / 16 * 8]);
        ldmatrix(fb, &tile_b[before][lane % 8][lane / 8 % 2 * 8]);
        const uint32_t pair[2] = {fb[0], fb[1]};
        mma(sum, fa, pair);
        __syncwarp();
    }
    const unsigned g = lane / 4, q = lane % 4;
    for (unsigned i = 0; i < 4; i++) d[8 * (g + 8 * (i / 2)) + 2 * q + i % 2] = sum[i];
}

static void async_copies_feed_the_tensor_core(void) {
    const size_t K = 80;
    std::vector<bf16> a(16 * K), b(8 * K);
    for (size_t i = 0; i < a.size(); i++) a[i] = __float2bfloat16_rn(number(i, 4));
    for (size_t i = 0; i < b.size(); i++) b[i] = __float2bfloat16_rn(number(i, 5));
    bf16 *da = device_array(a), *db = device_array(b);
    float *dd = device_array(std::vector<float>(128));
    pipeline_kernel<<<1, 32, 0, stream>>>(dd, da, db, (int)K);
    OK(cudaGetLastError());
    const std::vector<float> d = host_array(dd, 128);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++) {
            float want = 0;
            for (size_t k = 0; k < K; k++) want += number(i * K + k, 4) * number(j * K + k, 5);
            CHECK(d[8 * i + j] == want, "(%zu, %zu): %g, expected %g", i, j, d[8 * i + j], want);
        }
    OK(cudaFree(da)), OK(cudaFree(db)), OK(cudaFree(dd));
}

// ---------------------------------------------------------------------------------------------
// cuBLASLt against three loops

static cublasLtHandle_t lt;
static void *workspace;
static const size_t workspace_bytes = 1 << 20;

static double to_double(const void *p, cudaDataType_t type, size_t i) {
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    if (type == CUDA_R_16BF) return (double)__bfloat162float(((const bf16 *)p)[i]);
    return (double)__half2float(((const __half *)p)[i]);
}

static void from_float(void *p, cudaDataType_t type, size_t i, float x) {
    if (type == CUDA_R_32F) ((float *)p)[i] = x;
    else if (type == CUDA_R_16BF) ((bf16 *)p)[i] = __float2bfloat16_rn(x);
    else ((__half *)p)[i] = __float2half_rn(x);
}

static size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

// Half the distance between neighbours of this type, relative to the number.
static double rounding(cudaDataType_t type) {
    return type == CUDA_R_32F ? 0x1p-24 : type == CUDA_R_16BF ? 0x1p-8 : 0x1p-11;
}

// A matrix by columns on both sides. Between columns (ld > rows) lies a pattern that nobody may
// touch; it is a NaN, so that nobody can use it unseen either.
struct Matrix {
    size_t rows, cols, ld;
    cudaDataType_t type;
    std::vector<unsigned char> host;
    void *device;
    double at(size_t i, size_t j) const { return to_double(host.data(), type, j * ld + i); }
};

static Matrix make_matrix(size_t rows, size_t cols, size_t ld, cudaDataType_t type, unsigned salt) {
    Matrix x = {rows, cols, ld, type, {}, NULL};
    x.host.assign(ld * cols * bytes_of(type), 0xff);
    for (size_t j = 0; j < cols; j++)
        for (size_t i = 0; i < rows; i++)
            from_float(x.host.data(), type, j * ld + i, number(j * rows + i, salt));
    x.device = device_array(x.host);
    return x;
}

static size_t fetch_matrix(Matrix &x) {     // returns how many bytes between columns have changed
    x.host = host_array((const unsigned char *)x.device, x.host.size());
    size_t changed = 0;
    const size_t e = bytes_of(x.type);
    for (size_t j = 0; j < x.cols; j++)
        for (size_t i = x.rows * e; i < x.ld * e; i++) changed += x.host[j * x.ld * e + i] != 0xff;
    return changed;
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_derivative(double x) {
    const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t)
           + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

struct Case {
    size_t m, n, k;
    bool transpose_a, transpose_b;
    cudaDataType_t type, type_d;
    uint32_t epilogue;
    float alpha, beta;
    bool in_place;      // C is D
    size_t slack;       // added to every leading dimension
};

struct Layouts { cublasLtMatrixLayout_t a, b, c, d; };

static void set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, const void *v,
                size_t bytes) {
    OK(cublasLtMatmulDescSetAttribute(op, attribute, v, bytes));
}

static cublasLtMatmulDesc_t make_op(bool ta, bool tb, uint32_t epilogue) {
    cublasLtMatmulDesc_t op;
    const int32_t a = ta ? CUBLAS_OP_T : CUBLAS_OP_N, b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(op, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    set(op, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    set(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    return op;
}

static cublasLtMatrixLayout_t make_layout(const Matrix &x) {
    cublasLtMatrixLayout_t l;
    OK(cublasLtMatrixLayoutCreate(&l, x.type, x.rows, x.cols, (int64_t)x.ld));
    return l;
}

static cublasLtMatmulPreference_t make_preference(size_t bytes) {
    cublasLtMatmulPreference_t p;
    const uint64_t limit = bytes;
    OK(cublasLtMatmulPreferenceCreate(&p));
    OK(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit,
                                            sizeof limit));
    return p;
}

static void check_product(const Case &c) {
    char name[160];
    snprintf(name, sizeof name, "%zu x %zu x %zu %c%c types %d to %d epilogue %u beta %g%s", c.m,
             c.n, c.k, c.transpose_a ? 'T' : 'N', c.transpose_b ? 'T' : 'N', (int)c.type,
             (int)c.type_d, c.epilogue, c.beta, c.in_place ? " in place" : "");
    const size_t rows_a = c.transpose_a ? c.k : c.m, rows_b = c.transpose_b ? c.n : c.k;
    const size_t pad = c.slack;
    Matrix a = make_matrix(rows_a, c.transpose_a ? c.m : c.k, rows_a + pad, c.type, 1);
    Matrix b = make_matrix(rows_b, c.transpose_b ? c.k : c.n, rows_b + pad, c.type, 2);
    Matrix d = make_matrix(c.m, c.n, c.m + pad, c.type_d, 3);
    Matrix e = make_matrix(c.m, c.n, c.m + (c.in_place ? pad : 2 * pad), c.type_d, 4);
    const Matrix &added = c.in_place ? d : e;
    Matrix aux = make_matrix(c.m, c.n, (c.m + 7) / 8 * 8 + 8, c.type_d, 5);
    const bool by_column = c.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    Matrix bias = make_matrix(by_column ? c.n : c.m, 1, by_column ? c.n : c.m, c.type_d, 6);
    const Matrix before = d, input = aux, offset = bias;

    cublasLtMatmulDesc_t op = make_op(c.transpose_a, c.transpose_b, c.epilogue);
    // (Where the epilogue has no bias, a device refuses one with outputs in fp32.)
    if (c.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB
                      | (CUBLASLT_EPILOGUE_DGELU_BGRAD & ~CUBLASLT_EPILOGUE_DGELU)))
        set(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.device, sizeof bias.device);
    if (c.epilogue & 128) {
        const int64_t ld = (int64_t)aux.ld;
        set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux.device, sizeof aux.device);
        set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    }
    const Layouts l = {make_layout(a), make_layout(b), make_layout(added), make_layout(d)};
    cublasLtMatmulPreference_t preference = make_preference(workspace_bytes);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    const cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(lt, op, l.a, l.b, l.c, l.d, preference,
                                                            1, &found, &count);
    CHECK(s == CUBLAS_STATUS_SUCCESS && count == 1, "%s: status %d, %d found", name, s, count);
    if (count == 1) {
        CHECK(found.workspaceSize <= workspace_bytes, "%s: needs %zu", name, found.workspaceSize);
        const cublasStatus_t ran = cublasLtMatmul(
            lt, op, &c.alpha, a.device, l.a, b.device, l.b, &c.beta, added.device, l.c, d.device,
            l.d, &found.algo, workspace, workspace_bytes, stream);
        CHECK(ran == CUBLAS_STATUS_SUCCESS, "%s: status %d", name, (int)ran);
        const size_t stray = fetch_matrix(d) + fetch_matrix(aux) + fetch_matrix(bias);
        CHECK(stray == 0, "%s: %zu bytes changed between columns", name, stray);

        const double round_d = rounding(c.type_d), round_sum = 0x1p-24 * (double)(c.k + 4);
        double worst = 0, worst_aux = 0, worst_bias = 0;
        std::vector<double> gradient(bias.rows), size(bias.rows);
        for (size_t j = 0; j < c.n; j++)
            for (size_t i = 0; i < c.m; i++) {
                double x = 0, scale = 0;
                for (size_t k = 0; k < c.k; k++) {
                    const double p = (c.transpose_a ? a.at(k, i) : a.at(i, k))
                                     * (c.transpose_b ? b.at(j, k) : b.at(k, j));
                    x += p, scale += fabs(p);
                }
                const double old = c.in_place ? before.at(i, j) : e.at(i, j);
                x = (double)c.alpha * x + (c.beta != 0 ? (double)c.beta * old : 0);
                scale = fabs((double)c.alpha) * scale + fabs((double)c.beta * old) + 1e-3;
                if (c.epilogue & 4) x += offset.at(i, 0), scale += fabs(offset.at(i, 0));
                if (c.epilogue & 2) x = x > 0 ? x : 0;
                if (c.epilogue & 32) {
                    if (c.epilogue & 128) {
                        const double off = fabs(aux.at(i, j) - x);
                        const double limit = scale * round_sum + fabs(x) * round_d;
                        if (off / limit > worst_aux) worst_aux = off / limit;
                    }
                    x = gelu(x);
                }
                if (c.epilogue & 64) {
                    const double slope = gelu_derivative(input.at(i, j));
                    x *= slope, scale *= fabs(slope) + 1e-3;
                }
                const double off = fabs(d.at(i, j) - x);
                // fp32's tanh of the real library is good to about 2^-11 of 1
                const double bend = c.epilogue & (32 | 64) ? 2e-3 * scale : 0;
                const double limit = 2 * scale * round_sum + fabs(x) * round_d * 1.01 + bend + 1e-7;
                if (!(off / limit <= worst)) worst = off / limit;
                if (c.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
                    gradient[i] += x, size[i] += fabs(x) + bend / round_sum;
            }
        CHECK(worst <= 1, "%s: %.3g of what rounding explains", name, worst);
        CHECK(worst_aux <= 1.01, "%s: %.3g of what rounding explains in aux", name, worst_aux);

        if (c.epilogue == CUBLASLT_EPILOGUE_BGRADA || by_column)
            for (size_t i = 0; i < bias.rows; i++)
                for (size_t k = 0; k < c.k; k++) {
                    const double x = by_column ? (c.transpose_b ? b.at(i, k) : b.at(k, i))
                                               : (c.transpose_a ? a.at(k, i) : a.at(i, k));
                    gradient[i] += x, size[i] += fabs(x);
                }
        if (c.epilogue & (16 | 256 | 512))
            for (size_t i = 0; i < bias.rows; i++) {
                const double off = fabs(bias.at(i, 0) - gradient[i]);
                const double limit = 0x1p-23 * (double)(c.n + c.k) * size[i]
                                     + fabs(gradient[i]) * round_d * 1.01 + 1e-6;
                if (!(off / limit <= worst_bias)) worst_bias = off / limit;
            }
        CHECK(worst_bias <= 1, "%s: %.3g of what rounding explains in the bias gradient", name,
              worst_bias);
    }
    for (const Matrix *x : {&a, &b, &d, &e, &aux, &bias}) OK(cudaFree(x->device));
    for (cublasLtMatrixLayout_t x : {l.a, l.b, l.c, l.d}) OK(cublasLtMatrixLayoutDestroy(x));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatmulDescDestroy(op));
}

static const struct { size_t m, n, k; } shapes[] = {
    {1, 1, 1}, {8, 8, 8}, {16, 6, 64}, {33, 7, 19}, {48, 50, 130}, {3, 65, 5}, {130, 1, 40}};

static void products_of_every_transpose_and_type(void) {
    const cudaDataType_t types[][2] = {{CUDA_R_32F, CUDA_R_32F}, {CUDA_R_16BF, CUDA_R_16BF},
                                       {CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16F, CUDA_R_16F},
                                       {CUDA_R_16F, CUDA_R_32F}};
    for (const auto &t : types)
        for (const auto &s : shapes)
            for (int transposes = 0; transposes < 4; transposes++)
                check_product({s.m, s.n, s.k, (transposes & 1) != 0, (transposes & 2) != 0, t[0],
                               t[1], CUBLASLT_EPILOGUE_DEFAULT, 1, 0, false, s.m % 2 ? 0u : 8u});
}

static void products_add_to_what_is_there(void) {
    for (bool in_place : {false, true})  // in 16 bits, a device rounds the product before it adds
        for (float beta : {1.0f, -0.5f})
            for (size_t slack : {0, 8})
                check_product({40, 24, 56, true, false, CUDA_R_32F, CUDA_R_32F,
                               CUBLASLT_EPILOGUE_DEFAULT, 0.75f, beta, in_place, slack});
    // fp32 sums of bf16 products: how the gradient of the embedding grows
    check_product({40, 24, 56, false, true, CUDA_R_16BF, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1,
                   1, true, 0});
}

static void products_with_epilogues(void) {
    for (cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F})
        for (uint32_t e : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU,
                           CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU,
                           CUBLASLT_EPILOGUE_GELU_BIAS,
                           CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                           CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD,
                           CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
            check_product({64, 32, 48, true, false, type, type, e, 1, 0, false, 0});
            check_product({40, 17, 24, false, false, type, type, e, 1, 0, false, 8});
        }
    for (uint32_t e : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADB})
        check_product({40, 16, 24, false, true, CUDA_R_16BF, CUDA_R_32F, e, 1, 0, false, 0});
}

// D = op(A) op(B)
static cublasStatus_t multiply(cublasLtMatmulDesc_t op, const Matrix &a, const Matrix &b,
                               const Matrix &d, const Layouts &l, const cublasLtMatmulAlgo_t *algo,
                               size_t bytes, cudaStream_t on) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(lt, op, &one, a.device, l.a, b.device, l.b, &zero, d.device, l.c,
                          d.device, l.d, algo, workspace, bytes, on);
}

// The same product twice gives the same bits: on a real device with the same algorithm, on the
// emulated one also from another stream.
static void products_repeat_their_bits(void) {
    const size_t m = 96, n = 130, k = 515;
    Matrix a = make_matrix(k, m, k, CUDA_R_16BF, 1), b = make_matrix(k, n, k, CUDA_R_16BF, 2);
    cublasLtMatmulDesc_t op = make_op(true, false, CUBLASLT_EPILOGUE_DEFAULT);
    std::vector<unsigned char> first;
    for (int round = 0; round < 3; round++) {
        Matrix d = make_matrix(m, n, m, CUDA_R_32F, 3);
        const Layouts l = {make_layout(a), make_layout(b), make_layout(d), make_layout(d)};
        cublasLtMatmulPreference_t preference = make_preference(workspace_bytes);
        cublasLtMatmulHeuristicResult_t found;
        int count = 0;
        OK(cublasLtMatmulAlgoGetHeuristic(lt, op, l.a, l.b, l.c, l.d, preference, 1, &found,
                                          &count));
        OK(multiply(op, a, b, d, l, &found.algo, workspace_bytes, round == 2 ? other : stream));
        fetch_matrix(d);
        if (round == 0) first = d.host;
        CHECK(d.host == first, "round %d", round);
        OK(cudaFree(d.device));
        for (cublasLtMatrixLayout_t x : {l.a, l.b, l.c, l.d}) OK(cublasLtMatrixLayoutDestroy(x));
        OK(cublasLtMatmulPreferenceDestroy(preference));
    }
    OK(cudaFree(a.device)), OK(cudaFree(b.device));
    OK(cublasLtMatmulDescDestroy(op));
}

// Sizes of attributes are checked when they are set.
static void attributes_of_a_wrong_size_are_refused(void) {
    cublasLtMatmulDesc_t op;
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasLtMatmulPreference_t preference = make_preference(0);
    const int64_t wide = 8;
    const int32_t narrow = 0;
    const struct { cublasLtMatmulDescAttributes_t attribute; size_t right; } cases[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, 4}, {CUBLASLT_MATMUL_DESC_TRANSB, 4},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, 4}, {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8}, {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 4}, {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4}};
    for (const auto &c : cases)
        for (size_t bytes : {0, 1, 4, 8}) {
            const cublasStatus_t s = cublasLtMatmulDescSetAttribute(op, c.attribute, &wide, bytes);
            CHECK(s == (bytes == c.right ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE),
                  "attribute %d of %zu bytes: status %d", c.attribute, bytes, s);
        }
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 4)
          == CUBLAS_STATUS_INVALID_VALUE, "no value");
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &narrow, sizeof narrow)
          == CUBLAS_STATUS_INVALID_VALUE, "a 32-bit limit of the workspace");
    CHECK(cublasLtMatmulPreferenceSetAttribute(
              preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &wide, sizeof wide)
          == CUBLAS_STATUS_INVALID_VALUE, "a 64-bit alignment");
    OK(cublasLtMatmulDescDestroy(op));
    OK(cublasLtMatmulPreferenceDestroy(preference));
}

// Asks for an algorithm with one thing changed; returns how many there are.
struct Question {
    uint64_t rows_a, cols_a, rows_b, cols_b, rows_d, cols_d;
    int64_t ld_a, ld_d, aux_ld;
    cudaDataType_t type_a, type_b, type_c, type_d;
    uint32_t epilogue;
    int bias_type, aux_type;
    size_t aux_offset;
};

static int ask(const Question &q, cublasStatus_t *status) {
    cublasLtMatmulDesc_t op = make_op(false, false, q.epilogue);
    const int32_t bias_type = q.bias_type, aux_type = q.aux_type;
    void *bias = workspace, *aux = (char *)workspace + q.aux_offset;
    set(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
    set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &q.aux_ld, sizeof q.aux_ld);
    if (bias_type >= 0) set(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
    if (aux_type >= 0)
        set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &aux_type, sizeof aux_type);
    cublasLtMatrixLayout_t a, b, c, d;
    OK(cublasLtMatrixLayoutCreate(&a, q.type_a, q.rows_a, q.cols_a, q.ld_a));
    OK(cublasLtMatrixLayoutCreate(&b, q.type_b, q.rows_b, q.cols_b, (int64_t)q.rows_b));
    OK(cublasLtMatrixLayoutCreate(&c, q.type_c, q.rows_d, q.cols_d, q.ld_d));
    OK(cublasLtMatrixLayoutCreate(&d, q.type_d, q.rows_d, q.cols_d, q.ld_d));
    cublasLtMatmulPreference_t preference = make_preference(workspace_bytes);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    *status = cublasLtMatmulAlgoGetHeuristic(lt, op, a, b, c, d, preference, 1, &found, &count);
    if (*status != CUBLAS_STATUS_SUCCESS) CHECK(count == 0, "refused, and yet %d found", count);
    for (cublasLtMatrixLayout_t x : {a, b, c, d}) OK(cublasLtMatrixLayoutDestroy(x));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatmulDescDestroy(op));
    return count;
}

static void impossible_products_are_refused(void) {
    const Question good = {16, 32, 32, 8, 16, 8, 16, 16, 16, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF,
                           CUDA_R_16BF, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, -1, -1, 0};
    cublasStatus_t s;
    CHECK(ask(good, &s) == 1, "the good one: status %d", s);
    Question q;
    #define REFUSED(change, what)                                          \
        do {                                                               \
            q = good;                                                      \
            change;                                                        \
            CHECK(ask(q, &s) == 0 && s != CUBLAS_STATUS_SUCCESS, what);    \
        } while (0)
    REFUSED(q.rows_b = 31, "k differs");
    REFUSED(q.rows_d = 15, "m differs");
    REFUSED(q.cols_d = 9, "n differs");
    REFUSED(q.ld_a = 15, "columns of A overlap");
    REFUSED(q.ld_d = 8, "columns of D overlap");
    REFUSED(q.type_b = CUDA_R_32F, "A and B of two types");
    REFUSED(q.type_a = q.type_b = CUDA_R_32F, "fp32 to bf16");
    REFUSED(q.type_a = q.type_b = CUDA_R_32F; q.epilogue = CUBLASLT_EPILOGUE_DEFAULT,
            "fp32 to bf16, plainly");
    REFUSED(q.type_a = CUDA_R_64F, "double");
    REFUSED(q.epilogue = 4 | 64, "no such epilogue");
    REFUSED(q.aux_ld = 8, "columns of aux overlap");
    REFUSED(q.aux_ld = 20, "aux ld is not a multiple of 8");
    REFUSED(q.aux_ld = 0, "no aux ld");
#ifdef __CUDA_EMU__     // stricter than the real library may be
    REFUSED(q.type_c = CUDA_R_32F, "C and D of two types");
    REFUSED(q.aux_offset = 2, "aux not aligned to 16 bytes");
    REFUSED(q.type_c = q.type_d = CUDA_R_32F, "GELU of bf16 into fp32");
    REFUSED(q.bias_type = CUDA_R_16F, "bias of another type");
    REFUSED(q.aux_type = CUDA_R_32F, "aux of another type");
#endif
    #undef REFUSED
}

// What cublasLtMatmul itself refuses, and that the workspace's limit is kept.
static void products_check_their_arguments(void) {
    Matrix a = make_matrix(32, 16, 32, CUDA_R_16BF, 1), b = make_matrix(32, 24, 32, CUDA_R_16BF, 2);
    Matrix d = make_matrix(16, 24, 16, CUDA_R_16BF, 3), none = a, beside = a;
    none.device = NULL;
    beside.device = (char *)a.device + 2;
    const Layouts l = {make_layout(a), make_layout(b), make_layout(d), make_layout(d)};
    cublasLtMatmulDesc_t op = make_op(true, false, CUBLASLT_EPILOGUE_DEFAULT);
    cublasLtMatmulHeuristicResult_t found, unwanted;
    int count;
    for (size_t limit : {0, 256, 4096}) {
        cublasLtMatmulPreference_t p = make_preference(limit);
        OK(cublasLtMatmulAlgoGetHeuristic(lt, op, l.a, l.b, l.c, l.d, p, 1, &found, &count));
        const size_t needs = found.workspaceSize;
        CHECK(count == 1 && needs <= limit, "%zu of %zu", needs, limit);
        OK(multiply(op, a, b, d, l, &found.algo, needs, stream));
        if (needs > 0)
            CHECK(multiply(op, a, b, d, l, &found.algo, needs - 1, stream)
                  == CUBLAS_STATUS_INVALID_VALUE, "a workspace that is too small");
        CHECK(cublasLtMatmulAlgoGetHeuristic(lt, op, l.a, l.b, l.c, l.d, p, 0, &unwanted, &count)
              == CUBLAS_STATUS_INVALID_VALUE, "no algorithm wanted");
        OK(cublasLtMatmulPreferenceDestroy(p));
    }
    CHECK(multiply(op, none, b, d, l, &found.algo, workspace_bytes, stream)
          == CUBLAS_STATUS_INVALID_VALUE, "no A");
    OK(multiply(op, a, b, d, l, NULL, workspace_bytes, stream));    // the library picks one itself
#ifdef __CUDA_EMU__     // an algorithm is good for what it was asked for, and nothing else
    Matrix shorter = make_matrix(32, 23, 32, CUDA_R_16BF, 2);
    Matrix less = make_matrix(16, 23, 16, CUDA_R_16BF, 3);
    const Layouts k = {l.a, make_layout(shorter), make_layout(less), make_layout(less)};
    CHECK(multiply(op, a, shorter, less, k, &found.algo, workspace_bytes, stream)
          == CUBLAS_STATUS_INVALID_VALUE, "another shape");
    CHECK(multiply(op, beside, b, d, l, &found.algo, workspace_bytes, stream)
          == CUBLAS_STATUS_NOT_SUPPORTED, "less aligned than was said");
    OK(cudaFree(shorter.device)), OK(cudaFree(less.device));
    for (cublasLtMatrixLayout_t x : {k.b, k.c, k.d}) OK(cublasLtMatrixLayoutDestroy(x));
#endif
    OK(cudaDeviceSynchronize());
    for (const Matrix *x : {&a, &b, &d}) OK(cudaFree(x->device));
    for (cublasLtMatrixLayout_t x : {l.a, l.b, l.c, l.d}) OK(cublasLtMatrixLayoutDestroy(x));
    OK(cublasLtMatmulDescDestroy(op));
}

// A stream has the priority that was asked for, or the nearest that there is.
static void streams_have_priorities(void) {
    int lowest, highest, got;
    OK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    for (int asked : {lowest, highest, highest - 100}) {
        cudaStream_t s;
        OK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, asked));
        OK(cudaStreamGetPriority(s, &got));
        CHECK(got == (asked < highest ? highest : asked), "asked for %d, got %d", asked, got);
        OK(cudaStreamDestroy(s));
    }
    OK(cudaStreamGetPriority(stream, &got));
    CHECK(got == 0, "without a priority: %d", got);
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skip test_emu: no device\n");
        return 0;
    }
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
#ifdef __CUDA_EMU__
    if (argc > 1 && strcmp(argv[1], "clock") == 0) {
        operations_take_their_time();
        directions_overlap();
        a_ring_needs_slots();
        host_functions_take_what_they_say();
        pageable_copies_do_not_overlap();
        copy_engines_take_turns();
        return test_failures_here > 0;
    }
    RUN(the_virtual_clock);
#endif
    RUN(launches_of_one_to_three_dimensions);
    RUN(arguments_are_copied_at_the_launch);
    RUN(illegal_launches_fail);
    RUN(launch_bounds_are_kept);
    RUN(barriers);
    RUN(divergent_exits);
    RUN(shuffles);
    RUN(votes);
    RUN(static_shared_memory);
    RUN(dynamic_shared_memory);
    RUN(atomics);
    RUN(bf16_rounding);
    RUN(fp16_rounding);
    RUN(arithmetic_rounds_once);
    RUN(vector_loads);
    RUN(a_stream_keeps_its_order);
    RUN(events_order_streams);
    RUN(streams_have_priorities);
    RUN(a_wait_is_for_the_record_before_it);
    RUN(events_query_and_time);
    RUN(copies_from_pinned_memory);
    RUN(copies_from_pageable_memory);
    RUN(host_functions);
    RUN(words_order_streams);
    RUN(registered_memory);
    RUN(memory_runs_out);
    RUN(errors_have_names);
    RUN(properties);
    RUN(fresh_memory_is_poisoned);
    RUN(mma_is_a_matrix_product);
    RUN(ldmatrix_loads_fragments);
    RUN(async_copies_feed_the_tensor_core);
    OK(cublasLtCreate(&lt));
    OK(cudaMalloc(&workspace, workspace_bytes));
    RUN(products_of_every_transpose_and_type);
    RUN(products_add_to_what_is_there);
    RUN(products_with_epilogues);
    RUN(products_repeat_their_bits);
    RUN(attributes_of_a_wrong_size_are_refused);
    RUN(impossible_products_are_refused);
    RUN(products_check_their_arguments);
    OK(cudaDeviceSynchronize());
    OK(cublasLtDestroy(lt));
    OK(cudaFree(workspace));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    return test_summary();
}
