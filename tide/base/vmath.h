// vmath.h: exp, tanh, a maximum and a layer norm, as code that compilers turn into vectors. softmax
// and GELU need millions of them in a step, and a function of libm computes one number per call.
// The functions here have no tables or branches, so that a `#pragma omp simd` loop around them
// becomes vectors. Every fused operation is written as fmaf: the bits are the same in vectors or
// not, whatever the compiler contracts. (With fma_f32(), processors without the instruction would
// make vectors of the loops, too, and add up the results of exp in another order.)
//
// Method: x = n ln 2 + r with |r| <= ln 2 / 2. A polynomial, interpolated at Chebyshev nodes, gives
// e^r - 1 (relative error below 2e-9, then rounded); n is written into the exponent bits of 2^n.
// With e^r - 1 instead of e^r, tanh is exact to its last bits near 0. Errors over all floats, as
// test_vmath.c measures them: exp below 1.1 ulp, tanh below 2.5 ulp. Rotary positions are at the
// end: rope_table() and rope_rotate().
#ifndef TIDE_VMATH_H
#define TIDE_VMATH_H
#include "util.h"

// Marks functions to be inlined: a loop around a call is not vectorised.
#define VECTORISED __attribute__((always_inline)) static inline

// Returns e^r - 1, and n, where x = n ln 2 + r and |x| < 2^21. For NaN returns NaN, and any n.
VECTORISED float expm1_reduced(float x, int32_t *n) {
    // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
    const float shift = 12582912.0f;
    const float shifted = __builtin_fmaf(x, 0x1.715476p+0f, shift);  // x / ln 2
    const float whole = shifted - shift;
    *n = (int32_t)(float_bits(shifted) - float_bits(shift));
    float r = __builtin_fmaf(whole, -0x1.62e43p-1f, x);    // r = x - n ln 2: first with the
    r = __builtin_fmaf(whole, 0x1.05c61p-29f, r);          // rounded ln 2, then with its error
    float p = 0x1.a1256cp-13f;
    p = __builtin_fmaf(p, r, 0x1.6d43bp-10f);
    p = __builtin_fmaf(p, r, 0x1.1110ep-7f);
    p = __builtin_fmaf(p, r, 0x1.5554e8p-5f);
    p = __builtin_fmaf(p, r, 0x1.555556p-3f);
    p = __builtin_fmaf(p, r, 0.5f);
    return __builtin_fmaf(r * r, p, r);
}

// Returns 2^n for -127 < n < 128.
static inline float exp2_int(int32_t n) { return bits_float(((uint32_t)n + 127u) << 23); }

// Returns e^x: infinity above 88.72, a subnormal number below FLT_MIN, and 0 below -103.98.
// exp(-infinity) is 0. NaN stays NaN.
VECTORISED float exp_f32(float x) {
    x = x > 89.0f ? 89.0f : x;      // NaN stays: comparisons with it are false
    x = x < -104.0f ? -104.0f : x;
    int32_t n;
    const float m = expm1_reduced(x, &n);
    const int32_t half = n >> 1;    // two factors: 2^n alone may overflow
    return (m + 1.0f) * exp2_int(half) * exp2_int(n - half);
}

// Returns tanh x = (e^2|x| - 1) / (e^2|x| + 1) with the sign of x. No digits cancel: the numerator
// is 2^n (e^r - 1) + (2^n - 1). From 9.02 on it is +-1. Subnormals, -0 and NaN are returned.
VECTORISED float tanh_f32(float x) {
    const uint32_t sign = float_bits(x) & 0x80000000u;
    float y = bits_float(float_bits(x) ^ sign);
    y = y > 10.0f ? 10.0f : y;
    int32_t n;
    const float m = expm1_reduced(y + y, &n), scale = exp2_int(n);
    const float numerator = __builtin_fmaf(m, scale, scale - 1.0f);
    return bits_float(float_bits(numerator / (numerator + 2.0f)) | sign);
}

// Returns GELU (Hendrycks & Gimpel 2016): x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
VECTORISED float gelu_f32(float x) {
    const float tanh_u = tanh_f32(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * x * (1.0f + tanh_u);
}

// Returns GELU's derivative.
VECTORISED float gelu_slope_f32(float x) {
    const float tanh_u = tanh_f32(0.7978845608028654f * (x + 0.044715f * x * x * x));
    const float du = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + tanh_u) + 0.5f * x * (1.0f - tanh_u * tanh_u) * du;
}

VECTORISED float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

// Returns the largest of n numbers; -infinity if n is 0. NaNs are ignored, or make the result NaN.
// Compares the numbers' bits as integers. Before, inverts 31 bits of negative numbers: then the
// integers have the order of the numbers. (Comparisons of floats may not be reordered, because of
// NaN: clang would make them one by one.)
static inline int32_t float_order(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

static inline float max_f32(const float *x, size_t n) {
    int32_t max = float_order((int32_t)float_bits(-INFINITY));
    #pragma omp simd reduction(max : max)
    for (size_t i = 0; i < n; i++) {
        const int32_t at = float_order((int32_t)float_bits(x[i]));
        max = at > max ? at : max;
    }
    return bits_float((uint32_t)float_order(max));
}

// Replaces each x of n numbers by exp((x - max) scale), and returns the sum of the results. Adds up
// 512 of them in fp32, and these sums in double: in a single sum over a large vocabulary, the
// largest number would absorb many small ones.
VECTORISED float exp_sum_f32(float *x, size_t n, float max, float scale) {
    double total = 0;
    for (size_t first = 0, last; first < n; first = last) {
        float sum = 0;
        last = first + 512 < n ? first + 512 : n;
        #pragma omp simd reduction(+ : sum)
        for (size_t i = first; i < last; i++) sum += x[i] = exp_f32((x[i] - max) * scale);
        total += sum;
    }
    return (float)total;
}

// Normalises n numbers: out = (x - mean) r w + b. Returns r = 1 / sqrt(variance + eps). With mean
// NULL computes the RMS norm, in which mean and b are 0; b is NULL, too.
VECTORISED float normalise(float *out, float *mean, const float *x, const float *w, const float *b,
                           size_t n, float eps) {
    float sum = 0, squares = 0, mu = 0;
    if (mean != NULL) {
        #pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++) sum += x[i];
        mu = *mean = sum / (float)n;
    }
    #pragma omp simd reduction(+ : squares)
    for (size_t i = 0; i < n; i++) squares += (x[i] - mu) * (x[i] - mu);
    const float r = 1.0f / sqrtf(squares / (float)n + eps);
    if (mean == NULL) for (size_t i = 0; i < n; i++) out[i] = x[i] * r * w[i];
    else for (size_t i = 0; i < n; i++) out[i] = (x[i] - mu) * r * w[i] + b[i];
    return r;
}

// ---------------------------------------------------------------------------------------------
// Rotary positions (Su et al. 2021) in Hugging Face's order: channels i and i + HS/2 of a head are
// rotated together, by an angle that grows with the position.

enum { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3 };  // how angles are reduced for a longer context

typedef struct {
    double theta;
    int scaling;               // ROPE_*
    double factor, low, high;  // low, high: for LLAMA3 only
    size_t original;           // for LLAMA3: the context before it was stretched
} Rope;

// Returns w, by which the angle of channel i grows from a position to the next: theta^(-2i/HS).
// LINEAR divides w by factor. LLAMA3 does so only if a full turn takes more than original / low
// positions; if it takes fewer than original / high, w stays; between, the two are mixed.
static double rope_frequency(const Rope *r, size_t i, size_t HS) {
    const double w = pow(r->theta, -2.0 * (double)i / (double)HS);
    const double waves = (double)r->original * w / (2 * M_PI);
    double part = (waves - r->low) / (r->high - r->low);  // the share of w that is not divided
    if (r->scaling == ROPE_NONE) return w;
    if (r->scaling == ROPE_LINEAR || part < 0) part = 0;
    if (part > 1) part = 1;
    return (1 - part) * w / r->factor + part * w;
}

// Fills table (T, HS/2, 2) with the cosine and sine of the angle at each position. The angles are
// in double: in fp32 the product t w would be off by 1.5e-3 at position 32768.
static void rope_table(const Rope *r, size_t T, size_t HS, float *table) {
    #pragma omp parallel for
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < HS / 2; i++) {
            const double angle = (double)t * rope_frequency(r, i, HS);
            table[t * HS + 2 * i] = (float)cos(angle);
            table[t * HS + 2 * i + 1] = (float)sin(angle);
        }
}

// Rotates x (HS) by the angles of a position. turn (HS/2, 2): the position's row of the table. sign
// -1 rotates back.
VECTORISED void rope_rotate(float *x, const float *turn, size_t HS, float sign) {
    const size_t half = HS / 2;
    #pragma omp simd
    for (size_t i = 0; i < half; i++) {
        const float c = turn[2 * i], s = sign * turn[2 * i + 1], a = x[i], b = x[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

#endif
