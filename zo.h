// zo.h: zeroth-order training: a gradient from forward passes alone.
//
//   zo_noise(), zo_round()     1. Noise, and rounding to 16 bits
//   zo_mean(), zo_estimate()   2. The update: from losses to an update,
//   zo_apply()                    and from an update to new weights
//   zo_perturb(), zo_update()  3. The loops of the CPU
//
// MeZO (Malladi et al. 2023, Algorithm 1). Per step, for each query j, a direction z_j:
//     g_j = (loss(theta + eps z_j) - loss(theta - eps z_j)) / (2 eps)        about <grad, z_j>
//     theta <- theta - lr (mean over j of g_j z_j) - lr wd theta             wd: matrices only
// z is never stored: its element e of tensor i in step t is a function of (seed, t, j, i, e), with
// the same bits in any order, on any processor (rng.h). So a few scalars g_j describe an update,
// which can be applied whenever the weights are in memory. MeZO perturbs the weights in place and
// subtracts the noise again, which in 16 bits leaves an error; here perturbed copies are made of
// theta, which does not change (doc/zeroth_order.md).
//
// Every operation on an element is defined here, once: so CPU and GPU compute the same bits.
#ifndef TIDE_ZO_H
#define TIDE_ZO_H
#include "adam.h"
#include "tide/base/rng.h"

// ---------------------------------------------------------------------------------------------
// 1. Noise, and rounding to 16 bits

enum { ZO_GAUSSIAN, ZO_RADEMACHER };   // --zo-noise
enum { ZO_FP32, ZO_BF16, ZO_FP16 };    // storage type of theta
enum { ZO_QUERIES = 256 };             // the most queries in a step
enum { ZO_ROUND_QUERY = 0xffff };      // the random bits for rounding are drawn as this query

typedef struct {
    uint64_t seed;
    float eps;
    int queries, noise, storage;
} ZoConfig;

// Computes elements first .. first + n - 1 of a direction. n is a power of two from 8 to 64, and
// first a multiple of n. Gaussian: normal numbers. Rademacher: +1 or -1, by a random bit each.
HOST_DEVICE static inline void zo_noise(float *z, int n, const ZoConfig *c, uint32_t step,
                                        uint32_t query, uint32_t tensor, uint64_t first) {
    if (c->noise == ZO_GAUSSIAN) {
        #pragma omp simd
        for (int i = 0; i < n / 8; i++)
            rng_octet(z + 8 * i, c->seed, step, query, tensor, first / 8 + (uint64_t)i);
        return;
    }
    const uint64_t block = first / 128;
    const Philox4 r = philox4x32(c->seed, (uint32_t)block, (uint32_t)(block >> 32) | query << 16,
                                 tensor, step);
    for (int i = 0; i < n; i += 32) {
        const uint64_t word = (first + (uint64_t)i) / 32;
        const uint32_t even = word & 2 ? r.x[2] : r.x[0], odd = word & 2 ? r.x[3] : r.x[1];
        const uint32_t signs = (word & 1 ? odd : even) >> first % 32;
        for (int k = 0; k < 32 && i + k < n; k++) {
            const uint32_t bits = 0x3f800000u | signs >> k << 31;
            memcpy(&z[i + k], &bits, 4);
        }
    }
}

// Rounds x at random to one of its two neighbours in the storage type, so that the mean is x.
// Rounding to nearest would lose an update of 1e-7; random rounding keeps it on average
// (doc/rounding.md). random: 16 bits, as many as bf16 drops. In fp16 the largest result is 65504.
// Infinity and (quiet) NaN do not change.
HOST_DEVICE static inline float zo_round(float x, int storage, uint32_t random) {
    uint32_t bits = float_bits(x);
    if (storage == ZO_BF16) {
        if (fabsf(x) < 0x1.fep127f) bits += random;  // rounding larger x up would give infinity
        bits &= 0xffff0000u;
    } else if (storage == ZO_FP16 && fabsf(x) < INFINITY) {
        const uint32_t sign = bits & 0x80000000u;
        bits ^= sign;
        if (bits < 0x38800000u) {  // below 2^-14, fp16 has steps of 2^-24
            const uint32_t steps = (uint32_t)(bits_float(bits) * 0x1p40f);
            bits = float_bits((float)((steps + random) >> 16) * 0x1p-24f);
        } else {
            bits = (bits + (random >> 3)) & ~0x1fffu;
            if (bits > 0x477fe000u) bits = 0x477fe000u;
        }
        bits |= sign;
    }
    return bits_float(bits);
}

// ---------------------------------------------------------------------------------------------
// 2. The update

typedef struct {
    uint32_t step;            // the step that made this update; 0: there is none
    float shrink;             // lr wd
    float scale[ZO_QUERIES];  // lr g / queries
} ZoUpdate;

// Computes side (queries, 2): a step's losses, averaged over the micro-batches of all ranks. `all`
// has `stride` numbers of each rank, of which the first are its losses (accum, queries, 2). They
// are added in the order of the data: micro-batch by micro-batch, in each of them by rank. So
// one rank with `world` times as many micro-batches computes the same bits. The sums are divided by
// `parts`: the number of micro-batches, unless some tokens are not trained (run_parts()).
static void zo_mean(double *side, const double *all, size_t stride, int world, size_t accum,
                    int queries, double parts) {
    const size_t n = 2 * (size_t)queries;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t m = 0; m < accum; m++)
            for (size_t r = 0; r < (size_t)world; r++) sum += all[r * stride + m * n + i];
        side[i] = sum / parts;
    }
}

// Makes the update *u from a step's losses, side (queries, 2) at theta + eps z and theta - eps z.
// If a loss is not finite, or the norm is too large, there is no update (u->step is 0). Sets *loss
// to the mean of the losses, *norm to the root mean square of the g_j.
static void zo_estimate(ZoUpdate *u, const ZoConfig *c, size_t step, double lr,
                        double weight_decay, const double *side, double *loss, double *norm) {
    double squares = 0;
    *loss = 0;
    memset(u, 0, sizeof *u);
    u->shrink = (float)(lr * weight_decay);
    for (int j = 0; j < c->queries; j++) {
        const double g = (side[2 * j] - side[2 * j + 1]) / (2 * (double)c->eps);
        squares += g * g / c->queries;
        *loss += (side[2 * j] + side[2 * j + 1]) / (2 * c->queries);
        u->scale[j] = (float)(lr * g / c->queries);
    }
    *norm = sqrt(squares);
    if (isfinite(*loss) && lr * *norm < 1e30) u->step = (uint32_t)step;  // no NaN in the weights
}

// Applies *u to elements first .. first + n - 1 of a tensor, th. For n and first see zo_noise().
HOST_DEVICE static inline void zo_apply(float *th, int n, const ZoConfig *c, const ZoUpdate *u,
                                        uint32_t tensor, bool decay, uint64_t first) {
    float z[64];
    if (u->step == 0) return;
    if (decay)
        for (int i = 0; i < n; i++) th[i] = fma_f32(-u->shrink, th[i], th[i]);
    for (int j = 0; j < c->queries; j++) {
        const float scale = -u->scale[j];
        zo_noise(z, n, c, u->step, (uint32_t)j, tensor, first);
        for (int i = 0; i < n; i++) th[i] = fma_f32(scale, z[i], th[i]);
    }
    if (c->storage == ZO_FP32) return;
    for (int i = 0; i < n; i += 8) {  // 128 random bits: 16 for each of 8 elements
        const uint64_t at = (first + (uint64_t)i) / 8;
        const Philox4 r = philox4x32(c->seed, (uint32_t)at,
                                     (uint32_t)(at >> 32) | (uint32_t)ZO_ROUND_QUERY << 16, tensor,
                                     u->step);
        for (int k = 0; k < 8; k++) {
            const uint32_t pair = r.x[k / 2];
            th[i + k] = zo_round(th[i + k], c->storage, k % 2 == 0 ? pair & 0xffffu : pair >> 16);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// 3. The loops of the CPU
//
// Both functions take elements first .. first + n - 1 of a tensor, in fp32; 64 must divide first.

// Computes w = theta + scale z for a direction of this step. scale is eps or -eps.
static void zo_perturb(float *w, const float *theta, size_t n, const ZoConfig *c, size_t step,
                       int query, float scale, uint32_t tensor, uint64_t first) {
    #pragma omp parallel for if (n > 1 << 12)
    for (size_t at = 0; at < n; at += 64) {
        float z[64];
        const size_t rows = n - at < 64 ? n - at : 64;
        zo_noise(z, 64, c, (uint32_t)step, (uint32_t)query, tensor, first + at);
        for (size_t i = 0; i < rows; i++) w[at + i] = fma_f32(scale, z[i], theta[at + i]);
    }
}

// Applies the update to theta.
static void zo_update(float *theta, size_t n, const ZoConfig *c, const ZoUpdate *u,
                      uint32_t tensor, bool decay, uint64_t first) {
    #pragma omp parallel for if (n > 1 << 12)
    for (size_t at = 0; at < n; at += 64) {
        float th[64] = {0};
        const size_t rows = n - at < 64 ? n - at : 64;
        memcpy(th, theta + at, rows * sizeof *th);
        zo_apply(th, 64, c, u, tensor, decay, first + at);
        memcpy(theta + at, th, rows * sizeof *th);
    }
}

#endif
