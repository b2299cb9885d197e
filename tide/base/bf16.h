// bf16.h: bfloat16, the upper half of an fp32 number, and how fp32 numbers become one: to the
// nearest, split into a weight and 16 bits more, or at random.
//   bf16_to_f32(), f32_to_bf16()           to and from the nearest, ties to even
//   master_weight(), master_low(), master_f32()    a master weight in two halves
//   random_upper(), mix_bits()             rounding at random, and the bits for it
//   bf16_move(), master_move()             arrays of them, to and from floats
#ifndef TIDE_BF16_H
#define TIDE_BF16_H
#include "util.h"

HOST_DEVICE static inline float bf16_to_f32(uint16_t x) { return bits_float((uint32_t)x << 16); }

// Rounds to nearest even; overflow becomes infinity; NaN stays a (quiet) NaN of the same sign.
HOST_DEVICE static inline uint16_t f32_to_bf16(float f) {
    const uint32_t bits = float_bits(f);
    return (uint16_t)((f != f ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A master weight is the bf16 weight that forward and backward use, and 16 bits more, which only
// the update needs: the fp32 number's lower half. The weight is the nearest, of two as near the
// larger: so its upper half is the weight, less 1 if the lower half rounded it up. (Rounding ties
// to even would give two masters the same weight and lower half.) NaN stays NaN.
// In `upper` numbers the upper half of a word counts, what is in the lower does not.
HOST_DEVICE static inline uint32_t master_upper(float f) {
    return f != f ? float_bits(f) | 0x400000 : float_bits(f) + 0x8000;
}

HOST_DEVICE static inline float master_of_upper(uint32_t weight, uint32_t low) {
    return bits_float((weight & 0xffff0000) + (uint32_t)((int32_t)low >> 16));
}

HOST_DEVICE static inline uint16_t master_weight(float f) { return master_upper(f) >> 16; }
HOST_DEVICE static inline uint16_t master_low(float f) { return (uint16_t)float_bits(f); }
HOST_DEVICE static inline float master_f32(uint16_t weight, uint16_t low) {
    return master_of_upper((uint32_t)weight << 16, (uint32_t)low << 16);
}

// Rounds to one of the two neighbours, the nearer the likelier, so that the mean is f: up if what
// is dropped and r, 16 random bits, add up to a carry. Infinity stays; a NaN stays a NaN (a GPU's
// has all bits set, and a carry would make -0 of it).
HOST_DEVICE static inline uint32_t random_upper(float f, uint32_t r) {
    return f != f ? float_bits(f) | 0x400000 : float_bits(f) + r;
}

// n numbers that are stored in bf16, out to floats, or from there, to the nearest.
static inline void bf16_move(uint16_t *stored, float *w, size_t n, bool out) {
    #pragma omp parallel for if (n > 1 << 16)
    for (size_t i = 0; i < n; i++) {
        if (out) w[i] = bf16_to_f32(stored[i]);
        else stored[i] = f32_to_bf16(w[i]);
    }
}

// n master weights out to floats, or from there.
static inline void master_move(uint16_t *weights, uint16_t *low, float *w, size_t n, bool out) {
    #pragma omp parallel for if (n > 1 << 16)
    for (size_t i = 0; i < n; i++) {
        if (out) {
            w[i] = master_f32(weights[i], low[i]);
        } else {
            weights[i] = master_weight(w[i]);
            low[i] = master_low(w[i]);
        }
    }
}

// 32 random bits of a number: a hash of few operations, all of which exist in vectors. Source of
// the constants: Wellons, "Prospecting for hash functions" (2018); of those with two products,
// these alone pass noise_is_even_and_independent() of test_adam.c.
HOST_DEVICE static inline uint32_t mix_bits(uint32_t x) {
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

#endif
