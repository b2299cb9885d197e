// tensors.cuh: what tests of kernels share: tensors of each storage type X on the host and on the
// GPU, and what rounding to X may do to a number.
//
// Each tensor is an allocation of its own, which ends with the last element, and is freed at the
// end of the Scope in which it was made.
#ifndef TIDE_TENSORS_CUH
#define TIDE_TENSORS_CUH
#include "../../../tide/base/bf16.h"
#include "../../../tide/base/rng.h"
#include "../../../tide/gpu/gpu.cuh"
#include "../test.h"
#include <stdarg.h>

namespace tensors {

static cudaStream_t stream;
static char shape[128];  // of the running case, for messages

__attribute__((format(printf, 1, 2))) static void set_shape(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(shape, sizeof shape, format, args);
    va_end(args);
}

// ---------------------------------------------------------------------------------------------
// Memory

static struct { void *p; bool on_gpu; } kept[256];
static int kept_count;

static void *keep(void *p, bool on_gpu) {
    if (kept_count == sizeof kept / sizeof *kept) die("more tensors than the test has room for");
    kept[kept_count].on_gpu = on_gpu;
    return kept[kept_count++].p = p;
}

struct Scope {
    int first = kept_count;
    void end() {
        while (kept_count > first) {
            kept_count--;
            if (kept[kept_count].on_gpu) CUDA(cudaFree(kept[kept_count].p));
            else free(kept[kept_count].p);
        }
    }
    ~Scope() { end(); }
};

template <typename T> static T *zeros(size_t n) {
    return (T *)keep(alloc_or_fail(n, sizeof(T), "test"), false);
}

static float *copy(const float *x, size_t n) {
    float *y = zeros<float>(n);
    memcpy(y, x, n * sizeof(float));
    return y;
}

// On the GPU; NULL: all bits one, which is NaN in every type.
template <typename T> static T *upload(const T *x, size_t n) {
    void *p;
    CUDA(cudaMalloc(&p, n > 0 ? n * sizeof(T) : 1));
    CUDA(cudaMemset(p, 0xff, n * sizeof(T)));
    if (x != NULL) CUDA(cudaMemcpy(p, x, n * sizeof(T), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());  // the test's stream does not wait for these two
    return (T *)keep(p, true);
}

template <typename X> static X *poison(size_t n) { return upload((const X *)NULL, n); }

// A copy of what is on the GPU when the stream has done its work.
template <typename T> static T *fetch(const T *x, size_t n) {
    T *y = zeros<T>(n);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy((void *)y, x, n * sizeof(T), cudaMemcpyDeviceToHost));
    return y;
}

// ---------------------------------------------------------------------------------------------
// Numbers

static void narrow(float *to, float x) { *to = x; }
static void narrow(f16 *to, float x) { *to = __float2half_rn(x); }
static void narrow(bf16 *to, float x) {
    const uint16_t bits = f32_to_bf16(x);
    memcpy((void *)to, &bits, 2);
}

static float wide(float x) { return x; }
static float wide(f16 x) { return __half2float(x); }
static float wide(bf16 x) {
    uint16_t bits;
    memcpy(&bits, &x, 2);
    return bf16_to_f32(bits);
}

template <typename X> static float rounded(float x) {
    X stored;
    narrow(&stored, x);
    return wide(stored);
}

// n floats as X on the GPU; exact if they were rounded to X before.
template <typename X> static X *device(const float *x, size_t n) {
    X *stored = zeros<X>(n);
    for (size_t i = 0; i < n; i++) narrow(&stored[i], x[i]);
    return upload(stored, n);
}

// A tensor of the GPU in fp32.
template <typename X> static float *host(const X *x, size_t n) {
    const X *stored = fetch(x, n);
    float *y = zeros<float>(n);
    for (size_t i = 0; i < n; i++) y[i] = wide(stored[i]);
    return y;
}

// The largest error of one rounding: relative, and absolute near 0, where the numbers of f16 below
// 2^-14 are 2^-24 apart.
template <typename X> static double unit(void) { return 0x1p-24; }
template <> double unit<bf16>(void) { return 0x1p-8; }
template <> double unit<f16>(void) { return 0x1p-11; }
template <typename X> static double tiny(void) { return std::is_same_v<X, f16> ? 0x1p-25 : 0; }

template <typename X> static const char *type_name(void) { return "fp32"; }
template <> const char *type_name<bf16>(void) { return "bf16"; }
template <> const char *type_name<f16>(void) { return "f16"; }

// |got - want| <= relative |want| + absolute, for all n; a NaN fails.
static void check_near(const char *what, const float *got, const float *want, size_t n,
                       double relative, double absolute) {
    size_t bad = 0, worst = 0;
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double error = fabs((double)got[i] - (double)want[i]);
        const double allowed = relative * fabs((double)want[i]) + absolute;
        if (test_within(error, allowed)) continue;
        bad++;
        if (!(error - allowed <= most)) { most = error - allowed; worst = i; }
    }
    CHECK(bad == 0, "%s, %s: %zu of %zu outside; [%zu] is %.9g, not %.9g", what, shape, bad, n,
          worst, got[worst], want[worst]);
}

static uint32_t seed = 1;

static float next_float(void) {  // in [-1, 1)
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}
}
#endif
