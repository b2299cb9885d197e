// bf16.h: numbers of 16 bits: bfloat16, the upper half of an fp32 number, and fp16, the half
// precision of IEEE 754. An fp32 number is rounded to the nearest 16-bit number, or at random to
// one of the two nearest; or it is split into a 16-bit weight and 16 more bits.
//   bf16_to_f32(), f32_to_bf16()           convert; to the nearest, ties to even
//   f16_to_f32(), half_to_f32(), f32_to_half()     convert fp16; this program's 16-bit type
//   master_weight(), master_low(), master_f32()    split a master weight, and join it
//   random_upper(), mix_bits()             round at random; make the random bits
//   bf16_move(), master_move()             convert, split or join arrays
#ifndef TIDE_BF16_H
#define TIDE_BF16_H
#include "util.h"

HOST_DEVICE static inline float bf16_to_f32(uint16_t x) { return bits_float((uint32_t)x << 16); }

// Rounds to nearest even. Overflow gives infinity. NaN stays a quiet NaN of the same sign.
HOST_DEVICE static inline uint16_t f32_to_bf16(float f) {
    const uint32_t bits = float_bits(f);
    return (uint16_t)((f != f ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Returns a or b without a branch: compilers make vectors of loops without branches.
HOST_DEVICE static inline uint32_t bits_if(bool condition, uint32_t a, uint32_t b) {
    const uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

// Bits of fp32 numbers. F16_BEGINS: the exponent 112, which is the bias of fp32 less that of fp16.
// F16_NORMAL: 2^-14, the smallest normal fp16 number.
#define F16_BEGINS 0x38000000u
#define F16_NORMAL 0x38800000u

// Converts fp16 to fp32. fp16 numbers below 2^-14 are 2^-24 apart.
HOST_DEVICE static inline float f16_to_f32(uint16_t h) {
    const uint32_t half = h & 0x7fff;
    const float small = (float)(int32_t)half * 0x1p-24f;
    uint32_t bits = bits_if(half < 0x400, float_bits(small), (half << 13) + F16_BEGINS);
    bits |= bits_if(half >= 0x7c00, 0x7f800000u, 0);
    return bits_float(bits | (uint32_t)(h & 0x8000) << 16);
}

// An fp32 master weight is stored in two parts: the bf16 weight, which forward and backward read,
// and the master's lower 16 bits, which only the update reads. The weight is the nearest bf16
// number; a tie is rounded away from zero. So the master's upper half is the weight, less 1 if the
// weight was rounded up. (With ties to even, two masters could have the same two parts.) NaN stays
// NaN. A word that is called `upper` has a number in its upper half; its lower half is ignored.
HOST_DEVICE static inline uint32_t master_upper(float f) {
    return f != f ? float_bits(f) | 0x400000 : float_bits(f) + 0x8000;
}

HOST_DEVICE static inline float master_of_upper(uint32_t weight, uint32_t low) {
    return bits_float((weight & 0xffff0000) + (uint32_t)((int32_t)low >> 16));
}

HOST_DEVICE static inline uint16_t bf16_weight(float f) { return master_upper(f) >> 16; }

// A `half` is the 16-bit type in which this program stores weights and gradients: bf16, or fp16.
#ifdef ENABLE_FP16
// A master weight is split into an fp16 weight and 16 bits: how many units the master is above the
// weight. From 2^-14 on, the unit is the last bit of the fp32 number, and there are at most 4,096.
// Below, the unit is 2^-39, and the master is rounded to units, towards zero. (fp32 is finer only
// below 2^-16.) A master too large for fp16 is infinite.
enum { HALF_IS_FP16 = 1 };
HOST_DEVICE static inline float half_to_f32(uint16_t x) { return f16_to_f32(x); }

// Rounds an fp32 number >= 0 to the nearest fp16 number, ties to even. Argument and result are
// bits. Below 2^-14 returns if_small. From 65520 on returns infinity.
HOST_DEVICE static inline uint32_t f16_of_bits(uint32_t bits, uint32_t if_small) {
    uint32_t half = (bits - F16_BEGINS + 0xfff + (bits >> 13 & 1)) >> 13;
    half = bits_if(bits < F16_NORMAL, if_small, half);
    half = bits_if(bits >= 0x477ff000u, 0x7c00, half);
    return bits_if(bits > 0x7f800000u, 0x7e00, half);
}

// Rounds to the nearest, ties to even. Below 2^-14, adding 0.5 rounds to a multiple of 2^-24.
HOST_DEVICE static inline uint16_t f32_to_half(float f) {
    const uint32_t small = float_bits(fabsf(f) + 0.5f) - 0x3f000000u;
    return (uint16_t)(f16_of_bits(float_bits(fabsf(f)), small) | (float_bits(f) >> 16 & 0x8000));
}

// Returns a master weight below 2^-14 as a number of steps of 2^-39; for a larger one, 0.
HOST_DEVICE static inline uint32_t master_steps(uint32_t bits) {
    return (uint32_t)(int32_t)(bits_float(bits_if(bits < F16_NORMAL, bits, 0)) * 0x1p39f);
}

HOST_DEVICE static inline uint16_t master_weight(float f) {
    const uint32_t bits = float_bits(fabsf(f)), steps = master_steps(bits);
    const uint32_t small = (steps + 0x3fff + (steps >> 15 & 1)) >> 15;
    return (uint16_t)(f16_of_bits(bits, small) | (float_bits(f) >> 16 & 0x8000));
}

HOST_DEVICE static inline uint16_t master_low(float f) {
    const uint32_t bits = float_bits(fabsf(f)), weight = master_weight(f) & 0x7fff;
    return (uint16_t)bits_if(weight < 0x400, master_steps(bits) - (weight << 15),
                             bits - (weight << 13) - F16_BEGINS);
}

HOST_DEVICE static inline float master_f32(uint16_t weight, uint16_t low) {
    const uint32_t half = weight & 0x7fff, more = (uint32_t)(int16_t)low;
    const float small = (float)(int32_t)((half << 15) + more) * 0x1p-39f;
    uint32_t bits = bits_if(half < 0x400, float_bits(small), (half << 13) + F16_BEGINS + more);
    bits |= bits_if(half >= 0x7c00, 0x7f800000u, 0);
    return bits_float(bits | (uint32_t)(weight & 0x8000) << 16);
}

// Returns the value of a master weight after it was stored and read again.
HOST_DEVICE static inline float master_rounded(float f) {
    return master_f32(master_weight(f), master_low(f));
}
#else
enum { HALF_IS_FP16 = 0 };
HOST_DEVICE static inline float half_to_f32(uint16_t x) { return bf16_to_f32(x); }
HOST_DEVICE static inline uint16_t f32_to_half(float f) { return f32_to_bf16(f); }
HOST_DEVICE static inline float master_rounded(float f) { return f; }
HOST_DEVICE static inline uint16_t master_weight(float f) { return bf16_weight(f); }
HOST_DEVICE static inline uint16_t master_low(float f) { return (uint16_t)float_bits(f); }
HOST_DEVICE static inline float master_f32(uint16_t weight, uint16_t low) {
    return master_of_upper((uint32_t)weight << 16, (uint32_t)low << 16);
}
#endif

// Rounds f at random to one of its two bf16 neighbours, so that the mean is f. The upper neighbour
// is taken if adding r, 16 random bits, to the 16 lower bits carries. Infinity and NaN stay. (NaN
// is tested: a carry would turn a GPU's NaN, all of whose bits are set, into 0.)
HOST_DEVICE static inline uint32_t random_upper(float f, uint32_t r) {
    return f != f ? float_bits(f) | 0x400000 : float_bits(f) + r;
}

// If `out`, copies n bf16 numbers to floats; else rounds n floats to the nearest bf16 numbers.
static inline void bf16_move(uint16_t *stored, float *w, size_t n, bool out) {
    #pragma omp parallel for if (n > 1 << 16)
    for (size_t i = 0; i < n; i++) {
        if (out) w[i] = bf16_to_f32(stored[i]);
        else stored[i] = f32_to_bf16(w[i]);
    }
}

// If `out`, joins the two parts of n master weights to floats; else splits n floats into the parts.
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

// Hashes a number to 32 random bits, by a few operations that vector instructions have. The
// constants are from Wellons, "Prospecting for hash functions" (2018). None of the other hashes
// there with two products made noise that is even and independent.
HOST_DEVICE static inline uint32_t mix_bits(uint32_t x) {
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

#endif
