// adam.h: one AdamW step and the global gradient norm, each with one definition.
//
// adam_scalar() defines the update: a fixed order of IEEE single-precision operations. The host's
// loop (tide/cpu/adam_fast.h) and the GPU's kernel both call this function. So who makes the update
// never changes a bit.
// Sources: Kingma and Ba, "Adam" (ICLR 2015), algorithm 1; Loshchilov and Hutter, "Decoupled weight
// decay regularization" (ICLR 2019), algorithm 2; clipping by the global norm: Pascanu, Mikolov and
// Bengio (ICML 2013), algorithm 1.
#ifndef TIDE_ADAM_H
#define TIDE_ADAM_H
#include "tide/base/bf16.h"
#include <float.h>

// ---------------------------------------------------------------------------------------------
// Single operations, each rounded once to nearest even. nvcc would otherwise fuse a product with a
// sum after it, and may be told to approximate division and square root. fma_f32() is in util.h,
// because random numbers use it, too.

#ifdef __CUDA_ARCH__
__device__ static inline float mul_f32(float a, float b) { return __fmul_rn(a, b); }
__device__ static inline float div_f32(float a, float b) { return __fdiv_rn(a, b); }
__device__ static inline float sqrt_f32(float a) { return __fsqrt_rn(a); }
#else
HOST_DEVICE static inline float mul_f32(float a, float b) { return a * b; }
HOST_DEVICE static inline float div_f32(float a, float b) { return a / b; }
HOST_DEVICE static inline float sqrt_f32(float a) { return sqrtf(a); }
#endif

// ---------------------------------------------------------------------------------------------
// The update

// The numbers that all elements of a step share. The host computes them in double, once per step.
typedef struct {
    float grad_scale;       // the clip scale, times other factors of the caller
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float root_scale, eps;  // bc1 / sqrt(bc2) and bc1 * eps; bc1, bc2: the bias corrections
    float minus_lr;
    float weight_decay;
    int moments_bf16;       // m and v are stored in bf16 (adam_bf16()); else in fp32
    uint32_t noise;         // the seed of this step's random bits, by which numbers are rounded
    int master_bf16;        // weights are bf16 numbers without a lower half (adam_weight())
} AdamStep;

// Prepares step t, which counts from 1. eps must be 1e-30 or more, so that it is normal in fp32.
// With the bias corrections bc1 = 1 - beta1^t and bc2 = 1 - beta2^t,
//   mhat / (sqrt(vhat) + eps) = m / (sqrt(v) * bc1 / sqrt(bc2) + bc1 * eps):
// two constants for a step, and one division for an element.
static inline AdamStep adam_step_prepare(double lr, double beta1, double beta2, double eps,
                                         double weight_decay, uint64_t t, double grad_scale) {
    const double bc1 = 1 - pow(beta1, (double)t), bc2 = 1 - pow(beta2, (double)t);
    return (AdamStep){(float)grad_scale, (float)beta1, (float)(1 - beta1),
                      (float)beta2, (float)(1 - beta2),
                      (float)(bc1 / sqrt(bc2)), (float)(bc1 * eps),
                      (float)-lr, (float)weight_decay, 0, mix_bits((uint32_t)t), 0};
}

// Updates the moments m and v of an element by its gradient g. A moment below the smallest normal
// number becomes +0: it would change nothing, be slow on many CPUs, and be missing on some
// hardware. NaN stays NaN.
HOST_DEVICE static inline void adam_moments(float *m, float *v, float g, const AdamStep *s) {
    const float gs = mul_f32(g, s->grad_scale);
    const float m1 = fma_f32(s->beta1, *m, mul_f32(s->one_minus_beta1, gs));
    const float v1 = fma_f32(s->beta2, *v, mul_f32(mul_f32(s->one_minus_beta2, gs), gs));
    *m = fabsf(m1) < FLT_MIN ? 0.0f : m1;
    *v = v1 < FLT_MIN ? 0.0f : v1;
}

// Updates an element: its moments and its parameter p. decay: s->weight_decay, or 0 for a tensor
// without weight decay.
HOST_DEVICE static inline void adam_scalar(float *p, float *m, float *v, float g,
                                           const AdamStep *s, float decay) {
    adam_moments(m, v, g, s);
    const float step = div_f32(*m, fma_f32(sqrt_f32(*v), s->root_scale, s->eps));
    // p - lr (step + decay p): decay p is added to the step; added to p, it would lose digits
    *p = fma_f32(s->minus_lr, fma_f32(decay, *p, step), *p);
}

// Rounds moments to bf16, at random. v changes by a thousandth of itself in a step; bf16 has 8
// bits, and rounding to nearest would lose such a change (doc/rounding.md). index: the number of
// the element in the arena, modulo 2^32. The random bits depend only on index and step. The results
// are the upper halves of *m and *v.
HOST_DEVICE static inline void adam_round(uint32_t *m, uint32_t *v, float m1, float v1,
                                          const AdamStep *s, uint32_t index) {
    const uint32_t random = mix_bits(index ^ s->noise);
    *m = random_upper(m1, random & 0xffff);
    *v = random_upper(v1, random >> 16);
}

// Computes adam_scalar() with bf16 moments, which are the upper halves of *m and *v.
HOST_DEVICE static inline void adam_upper(float *p, uint32_t *m, uint32_t *v, float g,
                                          const AdamStep *s, float decay, uint32_t index) {
    float m1 = bits_float(*m & 0xffff0000), v1 = bits_float(*v & 0xffff0000);
    adam_scalar(p, &m1, &v1, g, s, decay);
    adam_round(m, v, m1, v1, s, index);
}

// Rounds a new weight to bf16, at random (--master bf16). Returns it in the upper half of a word.
// Most updates are smaller than half the distance of two bf16 numbers, and rounding to nearest
// would lose them all. The random bits are from a product: the 32 bits that round m and v, times a
// prime near 2^32 / 1.618. If the 16 bits for m (or v) are given, the other 16 still give nearly
// each result once. So a weight is rounded independently of m and of v.
HOST_DEVICE static inline uint32_t adam_weight(float p, const AdamStep *s, uint32_t index) {
    const uint32_t random = mix_bits(index ^ s->noise) * 0x9e3779b1u;
    return random_upper(p, random >> 16) & 0xffff0000;
}

HOST_DEVICE static inline void adam_bf16(float *p, uint16_t *m, uint16_t *v, float g,
                                         const AdamStep *s, float decay, uint32_t index) {
    uint32_t m1 = (uint32_t)*m << 16, v1 = (uint32_t)*v << 16;
    adam_upper(p, &m1, &v1, g, s, decay, index);
    *m = (uint16_t)(m1 >> 16);
    *v = (uint16_t)(v1 >> 16);
}

// Returns a gradient as fp32. It is stored in fp32 or as a half (bf16.h).
HOST_DEVICE static inline float grad_at(const void *grad, int is_half, size_t i) {
    return is_half ? half_to_f32(((const uint16_t *)grad)[i]) : ((const float *)grad)[i];
}

// A range of the arenas of parameters, moments and gradients: a tensor, or a shard of one. decay:
// 1: with weight decay. at: its first element in the arenas; index: in the whole model.
typedef struct { size_t at, length; int decay; size_t index; } AdamRun;

// ---------------------------------------------------------------------------------------------
// The global gradient norm
//
// Each tensor is cut into blocks of 4096 elements from its own start. In a block, lane j of 32 adds
// up the squares of elements j, j + 32, ... in double. Then the lanes are folded: 16, 8, 4, 2, 1.
// The sums of blocks are added in two levels. First the sums of 1024 consecutive blocks are added
// like the elements of a block; then these results are added in order. 32 lanes fill the vector
// registers of a CPU, and are a warp of a GPU, which needs microseconds for both levels. The result
// does not depend on who computed which block.

enum { NORM_LANES = 32, NORM_BLOCK = 4096, NORM_RUN = 1024 };
static inline size_t norm_blocks(size_t n) { return (n + NORM_BLOCK - 1) / NORM_BLOCK; }
static inline size_t norm_runs(size_t blocks) { return (blocks + NORM_RUN - 1) / NORM_RUN; }

__attribute__((always_inline))
static inline double norm_fold(double lane[NORM_LANES]) {
    for (size_t half = NORM_LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

// Returns the sum of squares of n <= NORM_BLOCK elements. The squares are exact in double, so a
// fused multiply-add has the same bits.
__attribute__((always_inline))
static inline double norm_block_sum(const float *g, size_t n) {
    double lane[NORM_LANES] = {0};
    const size_t whole = n / NORM_LANES * NORM_LANES;
    for (size_t i = 0; i < whole; i += NORM_LANES) {
        #pragma omp simd  // else gcc unrolls the loop first, and may not vectorise it
        for (size_t j = 0; j < NORM_LANES; j++) {
            const double x = g[i + j];
            lane[j] += x * x;
        }
    }
    for (size_t j = 0; j < n - whole; j++) lane[j] += (double)g[whole + j] * g[whole + j];
    return norm_fold(lane);
}

// Writes the sums of squares of a tensor's n gradients, by block, to sums[norm_blocks(n)].
static void norm_block_sums(const float *g, size_t n, double *sums) {
    const size_t blocks = norm_blocks(n), full = NORM_BLOCK;
    #pragma omp parallel for schedule(dynamic, 4) if (blocks > 4)
    for (size_t b = 0; b < blocks; b++) {
        const size_t first = b * full, length = n - first < full ? n - first : full;
        sums[b] = norm_block_sum(g + first, length);
    }
}

// Returns the square of the global norm: the sum over the blocks of all tensors, in table order.
static inline double norm_total(const double *sums, size_t count) {
    double total = 0;
    for (size_t first = 0; first < count; first += NORM_RUN) {
        const size_t n = min_size(count - first, NORM_RUN);
        double lane[NORM_LANES] = {0};
        for (size_t i = 0; i < n; i++) lane[i % NORM_LANES] += sums[first + i];
        total += norm_fold(lane);
    }
    return total;
}

// Returns the factor that makes the gradients' norm at most `clip`: clip / norm, rounded once. It
// is exactly 1 if the norm is not above clip, or if clip <= 0 (no clipping). It is NaN if the norm
// is infinite or NaN, also without clipping: such a step must not be made.
static inline float clip_scale(double norm_squared, double clip) {
    if (!(norm_squared <= DBL_MAX)) return NAN;
    const double norm = sqrt(norm_squared);
    return clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
}

#endif
