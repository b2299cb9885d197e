// rng.h: random numbers that depend on their purpose, not on when or where they are drawn.
//
// A counter-based generator is a hash of a seed and a counter to 128 random bits, without a state.
// Any thread, on the CPU or the GPU, can compute any element of a noise tensor alone, and again,
// with the same bits: the counter is made of element, query, tensor and step.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
// Philox4x32. Normal numbers: Wallace, "Fast pseudorandom generators for normal and exponential
// variates" (ACM TOMS 1996): orthogonal sums of numbers that are nearly normal (doc/noise.md).
#ifndef TIDE_RNG_H
#define TIDE_RNG_H
#include "util.h"

// Values in place of the step, for random numbers that are not noise of a training step.
enum { RNG_INIT = 0xffffffff, RNG_SHUFFLE = 0xfffffffe, RNG_SAMPLE = 0xfffffffd };

typedef struct { uint32_t x[4]; } Philox4;

// Returns all 64 bits of a product. In plain C, nvcc 13 would multiply 64-bit numbers, whose upper
// halves are zero: philox_rounds() would have a tenth more instructions, and more registers.
HOST_DEVICE static inline uint64_t wide_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

// Returns 128 random bits for a seed and a counter. A round has two products of 32 x 32 bits.
HOST_DEVICE static inline Philox4 philox_rounds(int rounds, uint64_t seed, uint32_t c0, uint32_t c1,
                                                uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < rounds; round++) {
        const uint64_t a = wide_product(0xD2511F53u, c0), b = wide_product(0xCD9E8D57u, c2);
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const Philox4 r = {{c0, c1, c2, c3}};
    return r;
}

HOST_DEVICE static inline Philox4 philox4x32(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
                                             uint32_t c3) {
    return philox_rounds(10, seed, c0, c1, c2, c3);
}

// Returns word `lane` (0..3) of the random bits as one of 2^24 equally spaced numbers in [0, 1).
HOST_DEVICE static inline float rng_uniform(Philox4 r, int lane) {
    return (float)(r.x[lane] >> 8) * (1.0f / (1 << 24));
}

// Returns x / (u sqrt(8)) for u = -32767, -32765, .. 32767. x is an odd polynomial of degree 5 in
// u. Over all u, the means of x^2, x^4 and x^6 are 1, 3 and 15, as for normal(0, 1) numbers.
HOST_DEVICE static inline float rng_slope(float u) {
    const float uu = u * u;
    return fma_f32(fma_f32(2.22438227e-22f, uu, -2.46543373e-13f), uu, 4.32717461e-05f);
}

// Takes two u from 32 bits. Returns the sum and the difference of both x / sqrt(8) (rng_slope()).
HOST_DEVICE static inline void rng_two(uint32_t bits, float *sum, float *difference) {
    const uint32_t odd = bits | 0x00010001u;
    const float a = (float)(int16_t)(odd & 0xffffu), b = (float)((int32_t)odd >> 16);
    const float slope = rng_slope(a), x = b * rng_slope(b);
    *sum = fma_f32(a, slope, x);
    *difference = fma_f32(a, slope, -x);
}

HOST_DEVICE static inline void rng_butterfly(float *a, float *b) {
    const float sum = *a + *b, difference = *a - *b;
    *a = sum;
    *b = difference;
}

// Computes eight normal numbers from 128 random bits. Each 16 bits give one x. The results are sums
// of all eight x with different signs: Hadamard's matrix over sqrt(8). The means of products up to
// degree 7 are those of independent normal(0, 1) numbers. The tails end at +-9.171 (doc/noise.md).
// Each operation is an explicit fma, a single product, or a sum without a product. So no compiler
// may fuse or reorder anything, and the bits are the same everywhere.
HOST_DEVICE static inline void rng_normal8(Philox4 r, float z[8]) {
    rng_two(r.x[0], &z[0], &z[1]);
    rng_two(r.x[1], &z[2], &z[3]);
    rng_two(r.x[2], &z[4], &z[5]);
    rng_two(r.x[3], &z[6], &z[7]);
    for (int k = 0; k < 2; k++) {
        rng_butterfly(&z[k], &z[k + 2]);
        rng_butterfly(&z[k + 4], &z[k + 6]);
    }
    for (int k = 0; k < 4; k++) rng_butterfly(&z[k], &z[k + 4]);
}

// Draws normal numbers for elements 8 * octet to 8 * octet + 7 of a tensor. octet < 2^48, because
// the upper 16 bits of the counter's second word are the query (0 outside zeroth-order training).
// Philox with 7 rounds is the shortest one that passed all tests of its authors.
HOST_DEVICE static inline void rng_octet(float out[8], uint64_t seed, uint32_t step, uint32_t query,
                                         uint32_t tensor, uint64_t octet) {
    rng_normal8(philox_rounds(7, seed, (uint32_t)octet, (uint32_t)(octet >> 32) | query << 16,
                              tensor, step), out);
}

// Computes normal(0, 1) numbers of elements first_element .. first_element + n - 1 of (seed, step,
// tensor). The bits do not depend on how the range is sliced, nor on the number of threads.
static inline void rng_normals(float *out, size_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                               uint64_t first_element) {
    float z[8];
    // elements before the first whole octet
    for (; n > 0 && first_element % 8 != 0; n--, first_element++) {
        rng_octet(z, seed, step, 0, tensor, first_element / 8);
        *out++ = z[first_element % 8];
    }
    const size_t octets = n / 8, block = 2048;
    const uint64_t first = first_element / 8;
    #pragma omp parallel for schedule(static) if (octets > block)
    for (size_t start = 0; start < octets; start += block) {
        const size_t end = start + block < octets ? start + block : octets;
        for (size_t i = start; i < end; i++) {
            float x[8];
            rng_octet(x, seed, step, 0, tensor, first + i);
            for (int k = 0; k < 8; k++) out[8 * i + (size_t)k] = x[k];
        }
    }
    if (n % 8 != 0) rng_octet(z, seed, step, 0, tensor, first + octets);
    for (size_t k = 0; k < n % 8; k++) out[8 * octets + k] = z[k];
}

#endif
