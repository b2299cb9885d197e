// test_emu.cu: what a CUDA device must do, as far as the trainer leans on it. The same file runs on
// the emulated device and on a real one; a test that needs one of them says so and is skipped on
// the other. Kernels are launched on streams of their own, as the conventions ask. (What kernels
// compute with, bit for bit, is in their tests: barriers, shuffles, votes, shared memory,
// arithmetic and bf16 in test_kernels.cu and test_columns_gpu.cu, asynchronous copies and matrix
// instructions in test_attention.cu, products in test_matmul_gpu.cu.)
#include "../../test/test.h"
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <string>
#include <vector>
#ifdef __CUDA_EMU__
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

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

// An array of the device, until the end of its scope. Our streams do not wait for the default one.
template <typename T> struct Array {
    T *p = NULL;
    size_t n;
    explicit Array(const std::vector<T> &host) : n(host.size()) {
        OK(cudaMalloc(&p, n * sizeof(T)));
        OK(cudaMemcpy(p, host.data(), n * sizeof(T), cudaMemcpyHostToDevice));
        OK(cudaDeviceSynchronize());
    }
    explicit Array(size_t count) : Array(std::vector<T>(count)) {}
    Array(const Array &) = delete;
    ~Array() { OK(cudaFree(p)); }
    void set(int byte) {
        OK(cudaMemset(p, byte, n * sizeof(T)));
        OK(cudaDeviceSynchronize());
    }
    std::vector<T> host() const {
        std::vector<T> x(n);
        OK(cudaGetLastError());
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return x;
    }
};

// Checks that element number i is want(i).
template <typename T, typename F>
static void expect(const std::vector<T> &got, F want, const char *what, double size = 0) {
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < got.size(); i++)
        if (!(got[i] == (T)want(i)) && wrong++ == 0) first = i;
    CHECK(wrong == 0, "%s %g: %zu of %zu are wrong, the first is number %zu", what, size, wrong,
          got.size(), first);
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

static bool operator==(dim3 a, dim3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }
static bool operator==(const Where &a, const Where &b) {
    return a.block == b.block && a.thread == b.thread && a.grid_size == b.grid_size
        && a.block_size == b.block_size;
}

static void launches_of_one_to_three_dimensions(void) {
    for (dim3 g : {dim3(1), dim3(7), dim3(3, 5), dim3(2, 3, 4), dim3(1, 1, 9)})
        for (dim3 b : {dim3(1), dim3(33), dim3(8, 4), dim3(4, 8, 3), dim3(1, 1, 64)}) {
            const unsigned threads = b.x * b.y * b.z;
            Array<Where> d((size_t)threads * g.x * g.y * g.z);
            where_kernel<<<g, b, 0, stream>>>(d.p);
            expect(d.host(), [&](size_t i) {
                const unsigned t = (unsigned)i % threads, k = (unsigned)i / threads;
                return Where{dim3(k % g.x, k / g.x % g.y, k / (g.x * g.y)),
                             dim3(t % b.x, t / b.x % b.y, t / (b.x * b.y)), g, b};
            }, "threads", threads);
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
    Array<float> p(std::vector<float>{2.5f}), out(4);
    Arguments s = {10, p.p, 0.125, 3};
    char last = 4;
    arguments_kernel<float, 100><<<1, 32, 0, stream>>>(out.p, s, nullptr, last);
    s.a = 99, last = 77;    // the launch has its own copy
    CHECK(out.host() == (std::vector<float>{117, 0.125f, 2.5f, 1}), "arguments");
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
    Array<int> p(1);
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
        p.set(0);
        mark_kernel<<<c.grid, c.block, c.shared, stream>>>(p.p);
        const cudaError_t e = cudaGetLastError();
        CHECK(e == c.error, "%s, expected %s, for grid (%u,%u,%u) block (%u,%u,%u) shared %zu",
              cudaGetErrorName(e), cudaGetErrorName(c.error), c.grid.x, c.grid.y, c.grid.z,
              c.block.x, c.block.y, c.block.z, c.shared);
        CHECK(p.host()[0] == (c.error == cudaSuccess), "ran or did not run");
    }
    mark_kernel<<<1, 2048, 0, stream>>>(p.p);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "getting takes it");
    CHECK(cudaGetLastError() == cudaSuccess, "it was taken");
}

// More threads than the kernel was compiled for: it has no registers for them.
static void launch_bounds_are_kept(void) {
    Array<int> p(160);
    bounded_kernel<<<1, 128, 0, stream>>>(p.p);
    EXPECT(cudaGetLastError(), cudaSuccess);
    bounded_kernel<<<1, 160, 0, stream>>>(p.p);
    CHECK(cudaGetLastError() != cudaSuccess, "too many threads");
    OK(cudaDeviceSynchronize());
}

// ---------------------------------------------------------------------------------------------
// Shared memory of a launch

static void dynamic_shared_memory(void) {
    for (int bytes : {4, 4096, 48 << 10, 96 << 10}) {
        const int n = bytes / 4;
        if (bytes > 48 << 10)
            OK(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    bytes));
        Array<int> d(2 * (size_t)n);
        dynamic_kernel<<<2, 64, (size_t)bytes, stream>>>(d.p, n);
        expect(d.host(), [=](size_t i) { return 3 * (n - 1 - (int)i % n); }, "bytes", bytes);
    }
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    EXPECT(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)prop.sharedMemPerBlockOptin + 1), cudaErrorInvalidValue);
}

// ---------------------------------------------------------------------------------------------
// Numbers

// The value of fp16's bits; what would come after the largest number for infinity.
static double fp16_value(int h) {
    const int exponent = h >> 10 & 31, digits = h & 1023;
    return exponent == 0 ? ldexp(digits, -24) : ldexp(1024 + digits, exponent - 25);
}

__global__ static void fp16_kernel(float *wide, uint16_t *narrow, const float *x, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const uint16_t bits = (uint16_t)i;
    __half half;
    memcpy(&half, &bits, 2);
    if (i < 65536) wide[i] = __half2float(half);
    if (i >= n) return;
    half = __float2half_rn(x[i]);
    memcpy(&narrow[i], &half, 2);
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
    Array<float> dx(x), wide(65536);
    Array<uint16_t> narrow(x.size());
    fp16_kernel<<<(unsigned)(x.size() + 255) / 256, 256, 0, stream>>>(wide.p, narrow.p, dx.p,
                                                                      (int)x.size());
    std::vector<float> w = wide.host();
    for (size_t h = 0; h < w.size(); h++)
        if ((h & 0x7fff) > 0x7c00) w[h] = !isnan(w[h]) ? 0.0f : h & 0x8000 ? -1.0f : 1.0f;
    expect(w, [](size_t h) {
        const int magnitude = (int)h & 0x7fff;
        const double v = magnitude > 0x7c00 ? 1 : magnitude == 0x7c00 ? (double)INFINITY
                                                                      : fp16_value(magnitude);
        return h & 0x8000 ? -v : v;
    }, "to float");
    expect(narrow.host(), [&](size_t i) { return want[i]; }, "to fp16");
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

static void a_wait_is_for_the_record_before_it(void) {
    Array<float> x(256), y(256);
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    fill_kernel<<<1, 256, 0, stream>>>(x.p, 5, 256);
    OK(cudaEventRecord(e, stream));
    OK(cudaStreamWaitEvent(other, e, 0));
    OK(cudaEventRecord(e, stream));         // records again: the wait above stays with the first
    mix_kernel<<<1, 256, 0, other>>>(y.p, x.p, 1, 256);
    OK(cudaEventRecord(e, other));
    OK(cudaEventSynchronize(e));            // the last record counts
    OK(cudaStreamWaitEvent(stream, e, 0));
    fill_kernel<<<1, 256, 0, stream>>>(x.p, 9, 256);
    CHECK(y.host()[0] == 5 && x.host()[0] == 9, "order");
    OK(cudaEventDestroy(e));
}

static void events_query_and_time(void) {
    const int n = 1 << 16;
    Array<float> x(n);
    float ms = -1;
    cudaEvent_t start, end, untimed, never;
    OK(cudaEventCreate(&start)), OK(cudaEventCreate(&end)), OK(cudaEventCreate(&never));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    EXPECT(cudaEventQuery(never), cudaSuccess);     // never recorded: nothing to wait for
    OK(cudaEventSynchronize(never));
    OK(cudaEventRecord(start, stream));
    for (int k = 0; k < 10; k++) fill_kernel<<<256, 256, 0, stream>>>(x.p, (float)k, n);
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
    OK(cudaEventDestroy(start)), OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(untimed)), OK(cudaEventDestroy(never));
}

static void copies_from_pinned_memory(void) {
    const size_t n = 10000, bytes = n * sizeof(float);
    float *in, *out;
    Array<float> a(n), b(n);
    OK(cudaMallocHost(&in, bytes)), OK(cudaMallocHost(&out, bytes));
    for (size_t i = 0; i < n; i++) in[i] = (float)i, out[i] = -1;
    OK(cudaMemcpyAsync(a.p, in, bytes, cudaMemcpyHostToDevice, stream));
    mix_kernel<<<40, 256, 0, stream>>>(a.p, a.p, 1, (int)n);
    OK(cudaMemcpyAsync(b.p, a.p, bytes, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemsetAsync(a.p, 0, bytes, stream));
    OK(cudaMemcpyAsync(out, b.p, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(in, a.p, bytes, cudaMemcpyDefault, stream));
    OK(cudaMemcpyAsync(out, out, 0, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += out[i] != 2 * (float)i || in[i] != 0;
    CHECK(wrong == 0, "%zu wrong", wrong);
    OK(cudaFreeHost(in)), OK(cudaFreeHost(out));
}

// From pageable memory the bytes are taken before the call returns; into it they are there.
static void copies_from_pageable_memory(void) {
#ifdef __CUDA_EMU__
    if (getenv("EMU_STRICT") != NULL) SKIP("EMU_STRICT forbids them: they are not asynchronous");
#endif
    const size_t n = 3000, bytes = n * sizeof(float);
    std::vector<float> in(n, 3.0f), out(n, -1.0f);
    Array<float> a(n);
    OK(cudaMemcpyAsync(a.p, in.data(), bytes, cudaMemcpyHostToDevice, stream));
    for (size_t i = 0; i < n; i++) in[i] = 99;
    mix_kernel<<<12, 256, 0, stream>>>(a.p, a.p, 2, (int)n);
    OK(cudaMemcpyAsync(out.data(), a.p, bytes, cudaMemcpyDeviceToHost, stream));
    expect(out, [](size_t) { return 9; }, "copies");
}

static void say_one(void *word) { __atomic_store_n((unsigned *)word, 1u, __ATOMIC_RELEASE); }

// The counter wraps: 1 comes after what it is at first.
static void words_order_streams(void) {
    CUresult (*wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&wait, 12000,
                                        cudaEnableDefault, &found));
    unsigned *word;
    Array<float> a(256), b(256);
    OK(cudaMallocHost(&word, 2 * sizeof *word));
    word[0] = 0xfffffffe, word[1] = 0;
    CHECK(wait(other, (CUdeviceptr)word, 1, 0) == CUDA_SUCCESS, "page-locked");
    OK(cudaMemcpyAsync(b.p, a.p, 256 * sizeof(float), cudaMemcpyDeviceToDevice, other));
    fill_kernel<<<1, 256, 0, stream>>>(a.p, 7, 256);
    OK(cudaLaunchHostFunc(stream, say_one, word));
    OK(cudaStreamSynchronize(other));
    CHECK(b.host()[255] == 7, "the copy came before the word");
#ifdef __CUDA_EMU__
    unsigned on_the_stack = 1;
    CHECK(wait(other, (CUdeviceptr)(word + 1), 0, 1) == CUDA_ERROR_INVALID_VALUE
              && wait(other, (CUdeviceptr)&on_the_stack, 1, 0) == CUDA_ERROR_INVALID_VALUE
              && wait(other, (CUdeviceptr)a.p, 0, 0) == CUDA_ERROR_INVALID_VALUE,
          "only a word of page-locked memory, and only reached or passed");
#endif
    OK(cudaFreeHost(word));
}

// Memory of our own, page-locked later, is as good as any for asynchronous copies.
static void registered_memory(void) {
    const size_t n = 5000, bytes = n * sizeof(float);
    std::vector<float> own(n, 4.0f);
    Array<float> a(n);
    EXPECT(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
    OK(cudaHostRegister(own.data(), bytes, cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(own.data(), bytes, cudaHostRegisterDefault),
           cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaMemcpyAsync(a.p, own.data(), bytes, cudaMemcpyHostToDevice, stream));
    mix_kernel<<<20, 256, 0, stream>>>(a.p, a.p, 1, (int)n);
    OK(cudaMemcpyAsync(own.data(), a.p, bytes, cudaMemcpyDeviceToHost, stream));
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
}

// ---------------------------------------------------------------------------------------------
// The virtual clock: 1e9 bytes/s each way, 10 us for a kernel, 10 us for a host function

#ifdef __CUDA_EMU__
static const size_t MB = 1000000;       // one millisecond

#define CHECK_MS(got, want, ...) \
    CHECK(fabs((got) - (want)) < 1e-4, "%.4f ms, not %.4f: %s", got, want, __VA_ARGS__)

static void take_a_millisecond(void *data) {
    pthread_t t;        // as if a worker did it
    pthread_create(&t, NULL, [](void *p) -> void * { return emu_virtual_seconds(1e-3), p; }, data);
    pthread_join(t, NULL);
}

// A program is what is enqueued on streams a, b and c, in this order:
//
//   a+3   3 MB to the device        a~    a host function      a!2   event 2 is recorded
//   a-3   to the host               a*    a kernel             a?2   waits for it
//   a^3   from pageable memory      h~3   the host computes for 3 ms
//   a=3   the host waits for a: it is 3 ms since the begin; h=3: for all
static void play(const char *program) {
    cudaStream_t streams[3] = {stream, other, NULL};
    cudaEvent_t events[10];
    char *host, *device;
    std::vector<char> pageable(8 * MB);
    OK(cudaStreamCreateWithFlags(&streams[2], cudaStreamNonBlocking));
    for (cudaEvent_t &e : events) OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaMallocHost(&host, 8 * MB)), OK(cudaMalloc(&device, 8 * MB));
    memset(host, 1, 8 * MB);
    OK(cudaMemset(device, 2, 8 * MB));
    OK(cudaDeviceSynchronize());
    const double start = emu_virtual_now();
    for (const char *at = program; *at != '\0';) {
        char *end;
        const cudaStream_t on = *at == 'h' ? NULL : streams[*at - 'a'];
        const char what = at[1];
        const double number = strtod(at + 2, &end);
        const size_t bytes = (size_t)(number * (double)MB);
        if (what == '+') OK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, on));
        if (what == '-') OK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on));
        if (what == '^')
            OK(cudaMemcpyAsync(device, pageable.data(), bytes, cudaMemcpyHostToDevice, on));
        if (what == '*') fill_kernel<<<1, 256, 0, on>>>((float *)device, 1, 256);
        if (what == '~' && on == NULL) emu_virtual_seconds(number * 1e-3);
        if (what == '~' && on != NULL) OK(cudaLaunchHostFunc(on, take_a_millisecond, NULL));
        if (what == '!') OK(cudaEventRecord(events[(int)number], on));
        if (what == '?') OK(cudaStreamWaitEvent(on, events[(int)number]));
        if (what == '=') {
            OK(on == NULL ? cudaDeviceSynchronize() : cudaStreamSynchronize(on));
            CHECK_MS((emu_virtual_now() - start) * 1e3, number, program);
        }
        for (at = end; *at == ' ';) at++;
    }
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    OK(cudaFreeHost(host)), OK(cudaFree(device));
    for (cudaEvent_t e : events) OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(streams[2]));
}

// Pieces that travel in, are updated, and travel back, through a ring of slots on the device.
static void a_ring_needs_slots(void) {
    const double ms[] = {6 * 2.01,          // one slot: in, update, out, one after the other
                         3 * 2.01 + 1,      // slots are busy for 2.01 ms
                         6 + 0.01 + 1};     // the links are busy all the time
    for (int slots = 1; slots <= 3; slots++) {
        std::string program;
        for (int i = 0; i < 6; i++) {
            const std::string k = std::to_string(i % slots);
            if (i >= slots) program += "a?" + k + " ";
            program += "a+1 a!8 b?8 b* b!9 c?9 c-1 c!" + k + " ";
        }
        play((program + "h=" + std::to_string(ms[slots - 1])).c_str());
    }
}

// The time between two events, around an operation of each kind.
static void operations_take_their_time(void) {
    Array<char> device(2 * MB);
    char *host;
    cudaEvent_t e[6];
    const double times[] = {2, 0.5, 0.01, 0.01, 0.01};
    OK(cudaMallocHost(&host, 2 * MB));
    for (cudaEvent_t &x : e) OK(cudaEventCreate(&x));
    for (int k = 0; k <= 5; k++) {
        if (k == 1) OK(cudaMemcpyAsync(device.p, host, 2 * MB, cudaMemcpyDefault, stream));
        if (k == 2) OK(cudaMemcpyAsync(host, device.p, MB / 2, cudaMemcpyDefault, stream));
        if (k == 3) fill_kernel<<<1, 32, 0, stream>>>((float *)device.p, 0, 32);
        if (k == 4) OK(cudaMemsetAsync(device.p, 0, MB, stream));
        if (k == 5) OK(cudaMemcpyAsync(device.p, device.p + MB, MB, cudaMemcpyDefault, stream));
        OK(cudaEventRecord(e[k], stream));
    }
    const double start = emu_virtual_now();
    OK(cudaEventSynchronize(e[2]));
    CHECK_MS((emu_virtual_now() - start) * 1e3, 2.5, "the host waited for an event");
    OK(cudaDeviceSynchronize());
    for (int k = 0; k < 5; k++) {
        float ms;
        OK(cudaEventElapsedTime(&ms, e[k], e[k + 1]));
        CHECK_MS(ms, times[k], "an operation");
    }
    for (cudaEvent_t x : e) OK(cudaEventDestroy(x));
    OK(cudaFreeHost(host));
}

static void the_clock_of_programs(void) {
    const char *order = getenv("EMU_SCHED");
    operations_take_their_time();
    a_ring_needs_slots();
    play("a+3 b-3 h=3");                            // directions overlap
    play("a+3 b+3 h=6");                            // one engine each way
    play("a+5 b~ b~ b~ b~ b=4.04 h=5 h~2 a+1 h=8"); // hidden under the copy; the host computes
    if (getenv("EMU_STRICT") == NULL) play("a^2 b-2 h=4");  // the host waits: nothing overlaps
    if (order == NULL || *order == '\0' || strcmp(order, "earliest") == 0)
        play("a+1 a+1 a+1 b-.5 b+1 b=2 h=4");       // an engine takes what is ready first
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
    Array<float> x(0), out(128);
    x.n = 1000;
    OK(cudaMalloc(&x.p, 4000));
    read_fresh_shared_kernel<<<2, 32, 32 * sizeof(float), stream>>>(out.p);
    for (const std::vector<float> &fresh : {x.host(), out.host()})
        for (float v : fresh) CHECK(isnan(v), "%g is in fresh memory", v);
#else
    SKIP("only the emulated device poisons its memory");
#endif
}

// ---------------------------------------------------------------------------------------------
// What cuBLASLt refuses

static cublasLtHandle_t lt;
static void *workspace;
static const size_t workspace_bytes = 1 << 20;

// A matrix by columns, of zeros.
struct Matrix {
    size_t rows, cols;
    cudaDataType_t type;
    void *device;
};

// All that describes a product D = alpha op(A) op(B) + beta C, and the algorithm that was found.
struct Product {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t layout[4];
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;

    Product(bool ta, bool tb, uint32_t epilogue, size_t limit = workspace_bytes) {
        const int32_t a = ta ? CUBLAS_OP_T : CUBLAS_OP_N, b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
        const uint64_t most = limit;
        OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, a), set(CUBLASLT_MATMUL_DESC_TRANSB, b);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        OK(cublasLtMatmulPreferenceCreate(&preference));
        OK(cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
        for (cublasLtMatrixLayout_t &l : layout) l = NULL;
    }
    Product(const Product &) = delete;
    ~Product() {
        for (cublasLtMatrixLayout_t l : layout)
            if (l != NULL) OK(cublasLtMatrixLayoutDestroy(l));
        OK(cublasLtMatmulPreferenceDestroy(preference));
        OK(cublasLtMatmulDescDestroy(op));
    }
    template <typename T> void set(cublasLtMatmulDescAttributes_t attribute, const T &value) {
        OK(cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof value));
    }
    void shape(int which, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
        OK(cublasLtMatrixLayoutCreate(&layout[which], type, rows, cols, ld));
    }
    void shapes(const Matrix &a, const Matrix &b, const Matrix &c, const Matrix &d) {
        int which = 0;
        for (const Matrix *x : {&a, &b, &c, &d})
            shape(which++, x->type, x->rows, x->cols, (int64_t)x->rows);
    }
    cublasStatus_t find(int wanted = 1) {
        return cublasLtMatmulAlgoGetHeuristic(lt, op, layout[0], layout[1], layout[2], layout[3],
                                              preference, wanted, &found, &count);
    }
    cublasStatus_t run(float alpha, const Matrix &a, const Matrix &b, float beta, const Matrix &c,
                       const Matrix &d, const cublasLtMatmulAlgo_t *algo,
                       size_t bytes = workspace_bytes, cudaStream_t on = stream) {
        return cublasLtMatmul(lt, op, &alpha, a.device, layout[0], b.device, layout[1], &beta,
                              c.device, layout[2], d.device, layout[3], algo, workspace, bytes, on);
    }
};

// Sizes of attributes are checked when they are set.
static void attributes_of_a_wrong_size_are_refused(void) {
    const Product p(false, false, CUBLASLT_EPILOGUE_DEFAULT);
    const int64_t wide = 8;
    const int32_t narrow = 0;
    const struct { cublasLtMatmulDescAttributes_t attribute; size_t right; } cases[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, 4}, {CUBLASLT_MATMUL_DESC_TRANSB, 4},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, 4}, {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8}, {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8}};
    for (const auto &c : cases)
        for (size_t bytes : {0, 1, 4, 8}) {
            const cublasStatus_t s = cublasLtMatmulDescSetAttribute(p.op, c.attribute, &wide, bytes);
            CHECK(s == (bytes == c.right ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE),
                  "attribute %d of %zu bytes: status %d", c.attribute, bytes, s);
        }
    CHECK(cublasLtMatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 4)
          == CUBLAS_STATUS_INVALID_VALUE, "no value");
    CHECK(cublasLtMatmulPreferenceSetAttribute(p.preference,
                                               CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &narrow,
                                               sizeof narrow)
          == CUBLAS_STATUS_INVALID_VALUE, "a 32-bit limit of the workspace");
    CHECK(cublasLtMatmulPreferenceSetAttribute(
              p.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &wide, sizeof wide)
          == CUBLAS_STATUS_INVALID_VALUE, "a 64-bit alignment");
}

// Asks for an algorithm with one thing changed; returns how many there are.
struct Question {
    uint64_t rows_a, cols_a, rows_b, cols_b, rows_d, cols_d;
    int64_t ld_a, ld_d, aux_ld;
    cudaDataType_t type_a, type_b, type_c, type_d;
    uint32_t epilogue;
    size_t aux_offset;
};

static int ask(const Question &q, cublasStatus_t *status) {
    Product p(false, false, q.epilogue);
    void *aux = (char *)workspace + q.aux_offset;
    p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, q.aux_ld);
    p.shape(0, q.type_a, q.rows_a, q.cols_a, q.ld_a);
    p.shape(1, q.type_b, q.rows_b, q.cols_b, (int64_t)q.rows_b);
    p.shape(2, q.type_c, q.rows_d, q.cols_d, q.ld_d);
    p.shape(3, q.type_d, q.rows_d, q.cols_d, q.ld_d);
    *status = p.find();
    if (*status != CUBLAS_STATUS_SUCCESS) CHECK(p.count == 0, "refused, and yet %d found", p.count);
    return p.count;
}

static void impossible_products_are_refused(void) {
    const Question good = {16, 32, 32, 8, 16, 8, 16, 16, 16, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF,
                           CUDA_R_16BF, CUBLASLT_EPILOGUE_DGELU, 0};
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
    REFUSED(q.epilogue = 4 | 64, "no such epilogue");
    REFUSED(q.aux_ld = 8, "columns of aux overlap");
    REFUSED(q.aux_ld = 20, "aux ld is not a multiple of 8");
    REFUSED(q.aux_ld = 0, "no aux ld");
#ifdef __CUDA_EMU__     // stricter than the real library may be
    REFUSED(q.type_c = CUDA_R_32F, "C and D of two types");
    REFUSED(q.aux_offset = 2, "aux not aligned to 16 bytes");
    REFUSED(q.type_c = q.type_d = CUDA_R_32F, "GELU of bf16 into fp32");
#endif
    #undef REFUSED
}

// What cublasLtMatmul itself refuses, and that the workspace's limit is kept.
static void products_check_their_arguments(void) {
    Array<uint16_t> zeros(32 * 24), result(16 * 24);
    const Matrix a = {32, 16, CUDA_R_16BF, zeros.p}, b = {32, 24, CUDA_R_16BF, zeros.p};
    const Matrix d = {16, 24, CUDA_R_16BF, result.p};
    Matrix none = a;
    none.device = NULL;
    for (size_t limit : {0, 256, 4096}) {
        Product p(true, false, CUBLASLT_EPILOGUE_DEFAULT, limit);
        p.shapes(a, b, d, d);
        OK(p.find());
        const size_t needs = p.found.workspaceSize;
        const cublasLtMatmulAlgo_t algo = p.found.algo;
        CHECK(p.count == 1 && needs <= limit, "%zu of %zu", needs, limit);
        OK(p.run(1, a, b, 0, d, d, &algo, needs));
        if (needs > 0)
            CHECK(p.run(1, a, b, 0, d, d, &algo, needs - 1) == CUBLAS_STATUS_INVALID_VALUE,
                  "a workspace that is too small");
        CHECK(p.find(0) == CUBLAS_STATUS_INVALID_VALUE, "no algorithm wanted");
        CHECK(p.run(1, none, b, 0, d, d, &algo) == CUBLAS_STATUS_INVALID_VALUE, "no A");
        OK(p.run(1, a, b, 0, d, d, NULL));  // the library picks one itself
#ifdef __CUDA_EMU__     // an algorithm is good for what it was asked for, and nothing else
        const Matrix shorter = {32, 23, CUDA_R_16BF, zeros.p};
        const Matrix less = {16, 23, CUDA_R_16BF, result.p};
        const Matrix beside = {32, 16, CUDA_R_16BF, zeros.p + 1};
        Product k(true, false, CUBLASLT_EPILOGUE_DEFAULT);
        k.shapes(a, shorter, less, less);
        CHECK(k.run(1, a, shorter, 0, less, less, &algo) == CUBLAS_STATUS_INVALID_VALUE,
              "another shape");
        CHECK(p.run(1, beside, b, 0, d, d, &algo) == CUBLAS_STATUS_NOT_SUPPORTED,
              "less aligned than was said");
#endif
    }
    OK(cudaDeviceSynchronize());
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
        the_clock_of_programs();
        return test_failures_here > 0;
    }
    RUN(the_virtual_clock);
#endif
    RUN(launches_of_one_to_three_dimensions);
    RUN(arguments_are_copied_at_the_launch);
    RUN(illegal_launches_fail);
    RUN(launch_bounds_are_kept);
    RUN(dynamic_shared_memory);
    RUN(fp16_rounding);
    RUN(streams_have_priorities);
    RUN(a_wait_is_for_the_record_before_it);
    RUN(events_query_and_time);
    RUN(copies_from_pinned_memory);
    RUN(copies_from_pageable_memory);
    RUN(words_order_streams);
    RUN(registered_memory);
    RUN(memory_runs_out);
    RUN(errors_have_names);
    RUN(properties);
    RUN(fresh_memory_is_poisoned);
    OK(cublasLtCreate(&lt));
    OK(cudaMalloc(&workspace, workspace_bytes));
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
