// rope.h: rotary positions (Su et al. 2021) in Hugging Face's order: channel i of a head is rotated
// with channel i + HS/2, by an angle that grows with the position.
//
//     rope_table()     the cosines and sines of all angles, made once; rope_row(): of one position
//     rope_rotate()    rotates one head, forward or back
#ifndef TIDE_ROPE_H
#define TIDE_ROPE_H
#include "vmath.h"

enum { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3 };  // how a longer context stretches the angles

typedef struct {
    double theta;
    int scaling;               // ROPE_*
    double factor, low, high;  // the last two: of LLAMA3
    size_t original;           // of LLAMA3: the context before it was stretched
} Rope;

// Returns the angle between two positions for channel i: w = theta^(-2i/HS), or w / factor. LLAMA3
// divides long waves only: more than original / low positions long; waves of less than
// original / high remain, and those between are mixed.
static double rope_frequency(const Rope *r, size_t i, size_t HS) {
    const double w = pow(r->theta, -2.0 * (double)i / (double)HS);
    const double waves = (double)r->original * w / (2 * M_PI);
    double part = (waves - r->low) / (r->high - r->low);  // that is not divided
    if (r->scaling == ROPE_NONE) return w;
    if (r->scaling == ROPE_LINEAR || part < 0) part = 0;
    if (part > 1) part = 1;
    return (1 - part) * w / r->factor + part * w;
}

// Fills turn (HS/2, 2) with the cosines and sines of the angles at position t, in double until they
// are stored: a product in fp32 is off by 1.5e-3 at position 32768.
static void rope_row(const Rope *r, size_t t, size_t HS, float *turn) {
    for (size_t i = 0; i < HS / 2; i++) {
        const double angle = (double)t * rope_frequency(r, i, HS);
        turn[2 * i] = (float)cos(angle);
        turn[2 * i + 1] = (float)sin(angle);
    }
}

// Fills table (T, HS/2, 2), a row for each position.
static void rope_table(const Rope *r, size_t T, size_t HS, float *table) {
    #pragma omp parallel for
    for (size_t t = 0; t < T; t++) rope_row(r, t, HS, table + t * HS);
}

// Rotates x (HS) by the angles of a position, whose row of the table `turn` (HS/2, 2) is; sign -1
// rotates back.
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
