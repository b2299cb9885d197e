// rng.h: random numbers that depend on what they are for, not on when or where they are drawn.
//
// A counter-based generator is a hash: seed and counter in, 128 random bits out, no state. Any
// element of any noise tensor can be made (or made again) alone, by any thread, on the CPU or on
// the GPU, and is the same bits: the counter says (element, query, tensor, step).
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
// Philox4x32-10. Normal numbers: Box and Muller 1958.
#ifndef TIDE_RNG_H
#define TIDE_RNG_H
#include "util.h"
#include <math.h>

// "Step" values for everything that is not the noise of a training step.
enum { RNG_INIT = 0xffffffff, RNG_SHUFFLE = 0xfffffffe, RNG_SAMPLE = 0xfffffffd };

typedef struct { uint32_t x[4]; } Philox4;

// All 64 bits of a product. From plain C, nvcc 13 makes a product of 64-bit numbers, which adds a
// zero to every upper half: a tenth more instructions in philox4x32(), and more registers.
HOST_DEVICE static inline uint64_t wide_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

// 128 random bits for (seed, counter). Ten rounds of two 32 x 32 -> 64 bit products.
HOST_DEVICE static inline Philox4 philox4x32(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
                                             uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = wide_product(0xD2511F53u, c0), b = wide_product(0xCD9E8D57u, c2);
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Philox4 r;
    r.x[0] = c0; r.x[1] = c1; r.x[2] = c2; r.x[3] = c3;
    return r;
}

// Lane 0..3 as one of 2^24 equally spaced numbers in [0, 1).
HOST_DEVICE static inline float rng_uniform(Philox4 r, int lane) {
    return (float)(r.x[lane] >> 8) * (1.0f / (1 << 24));
}

// sqrt(-2 log u) for u = (x + 1/2) / 2^32 rounded to fp32, which is in (0, 1].
// Every operation is an explicit fma, a lone product or an IEEE square root, so that no compiler
// may fuse or reorder anything: the bits are the same everywhere. Error below 2 ulp.
HOST_DEVICE static inline float rng_radius(uint32_t x) {
    const float u = fma_f32((float)x, 0x1p-32f, 0x1p-33f);
    const uint32_t bits = float_bits(u);
    // u = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); 0x3f3504f3 is sqrt(1/2)
    const int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
    const float f = bits_float(bits - ((uint32_t)e << 23)) - 1.0f;
    // log(1 + f) = f + f^2 q(f); q is a minimax fit of the relative error (2^-27)
    float q = -0.0762171149f;
    q = fma_f32(q, f, 0.129043773f);
    q = fma_f32(q, f, -0.132429853f);
    q = fma_f32(q, f, 0.14181833f);
    q = fma_f32(q, f, -0.166090846f);
    q = fma_f32(q, f, 0.200019732f);
    q = fma_f32(q, f, -0.250015825f);
    q = fma_f32(q, f, 0.333333254f);
    q = fma_f32(q, f, -0.499999881f);
    const float log_m = fma_f32(f * f, q, f);
    const float y = fma_f32((float)e, -1.38629436f, -2.0f * log_m);  // -2 log u, never negative
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(y);
#else
    return sqrtf(y);
#endif
}

// Cosine and sine of the angle 2 pi x / 2^32, same rules as above. Error below 2^-23.
HOST_DEVICE static inline void rng_circle(uint32_t x, float *c, float *s) {
    const uint32_t quadrant = (x + 0x20000000u) >> 30;  // nearest multiple of 90 degrees
    const float t = (float)(int32_t)(x - (quadrant << 30)) * 0x1p-31f;  // [-1/4, 1/4), angle / pi
    const float tt = t * t;
    float a = -0.599535704f;  // sin(pi t) / t
    a = fma_f32(a, tt, 2.55077696f);
    a = fma_f32(a, tt, -5.16773272f);
    a = fma_f32(a, tt, 3.14159274f) * t;
    float b = 0.228988513f;   // cos(pi t)
    b = fma_f32(b, tt, -1.33475816f);
    b = fma_f32(b, tt, 4.05869675f);
    b = fma_f32(b, tt, -4.93480206f);
    b = fma_f32(b, tt, 1.0f);
    uint32_t cos_bits = float_bits(b), sin_bits = float_bits(a);
    // Odd quadrants swap them. (Not by ?: on that bit: gcc 14 makes no vectors of it.)
    const uint32_t swap = (cos_bits ^ sin_bits) & (0u - (quadrant & 1));
    cos_bits ^= swap ^ ((quadrant + 1) & 2) << 30;
    sin_bits ^= swap ^ (quadrant & 2) << 30;
    memcpy(c, &cos_bits, 4);
    memcpy(s, &sin_bits, 4);
}

// Four independent normal(0, 1) numbers from 128 random bits: a radius and an angle for each pair,
// 32 bits each. The tails end at +-sqrt(66 log 2) = +-6.7637; beyond lies a share of 1.4e-11.
HOST_DEVICE static inline void rng_normal4(Philox4 r, float out[4]) {
    float c, s, radius = rng_radius(r.x[0]);
    rng_circle(r.x[1], &c, &s);
    out[0] = radius * c;
    out[1] = radius * s;
    radius = rng_radius(r.x[2]);
    rng_circle(r.x[3], &c, &s);
    out[2] = radius * c;
    out[3] = radius * s;
}

// The four normal numbers of elements 4 quad .. 4 quad + 3 of a tensor. quad < 2^48; the upper 16
// bits of the second counter word number the query (zeroth-order training), else 0.
HOST_DEVICE static inline void rng_quad(float out[4], uint64_t seed, uint32_t step, uint32_t query,
                                        uint32_t tensor, uint64_t quad) {
    rng_normal4(philox4x32(seed, (uint32_t)quad, (uint32_t)(quad >> 32) | query << 16, tensor,
                           step), out);
}

// Normal numbers of elements first_element .. first_element + n - 1 of (seed, step, tensor): the
// same bits however the range is sliced, and whatever the number of threads. Standard deviation 1.
static inline void rng_normals(float *out, size_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                               uint64_t first_element) {
    float quad[4];
    // up to the first whole quad, one element at a time
    for (; n > 0 && first_element % 4 != 0; n--, first_element++) {
        rng_quad(quad, seed, step, 0, tensor, first_element / 4);
        *out++ = quad[first_element % 4];
    }
    const size_t quads = n / 4, block = 4096;
    const uint64_t first = first_element / 4;
    #pragma omp parallel for schedule(static) if (quads > block)
    for (size_t start = 0; start < quads; start += block) {
        const size_t end = start + block < quads ? start + block : quads;
        for (size_t i = start; i < end; i++) {
            float z[4];
            rng_quad(z, seed, step, 0, tensor, first + i);
            out[4 * i] = z[0];
            out[4 * i + 1] = z[1];
            out[4 * i + 2] = z[2];
            out[4 * i + 3] = z[3];
        }
    }
    if (n % 4 != 0) {
        rng_quad(quad, seed, step, 0, tensor, first + quads);
        for (size_t k = 0; k < n % 4; k++) out[4 * quads + k] = quad[k];
    }
}

#endif
