// adam.h: one AdamW step and the global gradient norm, each with one definition.
//
// adam_scalar() is the definition of the update: a written order of IEEE single-precision
// operations. The host loop below and the GPU kernel run this very function, so that moving the
// update from one place to another never changes a bit.
// Sources: Kingma and Ba, "Adam" (ICLR 2015), algorithm 1; Loshchilov and Hutter, "Decoupled
// weight decay regularization" (ICLR 2019), algorithm 2; clipping by the global norm: Pascanu,
// Mikolov and Bengio (ICML 2013), algorithm 1.
#ifndef TIDE_ADAM_H
#define TIDE_ADAM_H
#include "util.h"
#include <float.h>
#include <math.h>

// For functions that are the body of a loop: compiled for the GPU too, and always inlined, because
// a loop that still contains a call cannot become a vector loop.
// ---------------------------------------------------------------------------------------------
// Single operations, each rounded once to nearest even. nvcc would otherwise fuse a product with
// the sum that follows it, and may be told to approximate division and square root.

#ifdef __CUDA_ARCH__
__device__ static inline float mul_f32(float a, float b) { return __fmul_rn(a, b); }
__device__ static inline float fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ static inline float div_f32(float a, float b) { return __fdiv_rn(a, b); }
__device__ static inline float sqrt_f32(float a) { return __fsqrt_rn(a); }
#else
HOST_DEVICE static inline float mul_f32(float a, float b) { return a * b; }
HOST_DEVICE static inline float fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
HOST_DEVICE static inline float div_f32(float a, float b) { return a / b; }
HOST_DEVICE static inline float sqrt_f32(float a) { return sqrtf(a); }
#endif

// ---------------------------------------------------------------------------------------------
// bfloat16: the upper half of an fp32 number

HOST_DEVICE static inline float bf16_to_f32(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Rounds to nearest even; overflow becomes infinity; NaN stays a (quiet) NaN of the same sign.
HOST_DEVICE static inline uint16_t f32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

// ---------------------------------------------------------------------------------------------
// The update

// What all elements of one step share. Made once per step, on the host, in double.
typedef struct {
    float grad_scale;       // the clip scale (times 1/accumulation, if the caller wants that)
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float root_scale, eps;  // bc1 / sqrt(bc2) and bc1 * eps; bc1, bc2: the bias corrections
    float minus_lr;
    float weight_decay;
} AdamStep;

// t counts from 1. eps must be positive (and 1e-30 or more, to stay normal in fp32). With the
// bias corrections bc1 = 1 - beta1^t and bc2 = 1 - beta2^t,
//   mhat / (sqrt(vhat) + eps) = m / (sqrt(v) * bc1 / sqrt(bc2) + bc1 * eps),
// which leaves two constants per step and one division per element.
static inline AdamStep adam_step_prepare(double lr, double beta1, double beta2, double eps,
                                         double weight_decay, uint64_t t, double grad_scale) {
    const double bc1 = 1 - pow(beta1, (double)t), bc2 = 1 - pow(beta2, (double)t);
    AdamStep s;
    s.grad_scale = (float)grad_scale;
    s.beta1 = (float)beta1;
    s.one_minus_beta1 = (float)(1 - beta1);
    s.beta2 = (float)beta2;
    s.one_minus_beta2 = (float)(1 - beta2);
    s.root_scale = (float)(bc1 / sqrt(bc2));
    s.eps = (float)(bc1 * eps);
    s.minus_lr = (float)-lr;
    s.weight_decay = (float)weight_decay;
    return s;
}

// One element: parameter p, moments m and v, gradient g. `decay` is s->weight_decay, or 0 for
// tensors that do not decay. A moment too small for a normal number becomes +0: such numbers
// carry nothing, are slow on many CPUs, and not all hardware keeps them. NaN passes through.
HOST_DEVICE static inline void adam_scalar(float *p, float *m, float *v, float g,
                                           const AdamStep *s, float decay) {
    const float gs = mul_f32(g, s->grad_scale);
    float m1 = fma_f32(s->beta1, *m, mul_f32(s->one_minus_beta1, gs));
    float v1 = fma_f32(s->beta2, *v, mul_f32(mul_f32(s->one_minus_beta2, gs), gs));
    m1 = fabsf(m1) < FLT_MIN ? 0.0f : m1;
    v1 = v1 < FLT_MIN ? 0.0f : v1;
    const float step = div_f32(m1, fma_f32(sqrt_f32(v1), s->root_scale, s->eps));
    // p - lr (step + decay p): the decay is added to the step, where no digit of it is lost
    *p = fma_f32(s->minus_lr, fma_f32(decay, *p, step), *p);
    *m = m1;
    *v = v1;
}

// A gradient is stored in fp32 or in bf16.
HOST_DEVICE static inline float grad_at(const void *grad, int is_bf16, size_t i) {
    return is_bf16 ? bf16_to_f32(((const uint16_t *)grad)[i]) : ((const float *)grad)[i];
}

// The loop of adam_range(); inlined there four times, each with the two choices known, because
// neither compiler makes one vector loop of all four.
__attribute__((always_inline))
static inline void adam_loop(float *__restrict__ p, float *__restrict__ m, float *__restrict__ v,
                             const void *__restrict__ grad, int grad_is_bf16,
                             uint16_t *__restrict__ p_bf16, int has_bf16, size_t first,
                             size_t last, const AdamStep *step, int decay) {
    const AdamStep s = *step;  // a copy, which the stores below cannot change
    const float d = decay ? s.weight_decay : 0.0f;
    for (size_t i = first; i < last; i++) {
        adam_scalar(&p[i], &m[i], &v[i], grad_at(grad, grad_is_bf16, i), &s, d);
        if (has_bf16) p_bf16[i] = f32_to_bf16(p[i]);
    }
}

// Elements first .. last - 1 of the arrays, in the calling thread: for teams that divide the work
// themselves. p_bf16, if not NULL, receives the new parameters rounded to bf16. The arrays must
// not overlap. Any cut of a range into smaller ones gives the same bits.
static inline void adam_range(float *p, float *m, float *v, const void *grad, int grad_is_bf16,
                              uint16_t *p_bf16, size_t first, size_t last, const AdamStep *s,
                              int decay) {
    if (grad_is_bf16 && p_bf16) adam_loop(p, m, v, grad, 1, p_bf16, 1, first, last, s, decay);
    else if (grad_is_bf16) adam_loop(p, m, v, grad, 1, NULL, 0, first, last, s, decay);
    else if (p_bf16) adam_loop(p, m, v, grad, 0, p_bf16, 1, first, last, s, decay);
    else adam_loop(p, m, v, grad, 0, NULL, 0, first, last, s, decay);
}

// The same for elements 0 .. n - 1 with all threads: each takes one contiguous run of chunks.
static inline void adam_update(float *p, float *m, float *v, const void *grad, int grad_is_bf16,
                               uint16_t *p_bf16, size_t n, const AdamStep *s, int decay) {
    const size_t chunk = 1 << 14;
    #pragma omp parallel for schedule(static) if (n > chunk)
    for (size_t first = 0; first < n; first += chunk) {
        const size_t last = n - first > chunk ? first + chunk : n;
        adam_range(p, m, v, grad, grad_is_bf16, p_bf16, first, last, s, decay);
    }
}

// ---------------------------------------------------------------------------------------------
// The global gradient norm
//
// Each tensor is cut into blocks of 4096 elements from its own start. Within a block, lane j of
// 32 adds up the squares of elements j, j + 32, ... in double; the lanes are folded 16, 8, 4, 2,
// 1; the blocks' sums are added in table order. 32 lanes fill the vector registers of a CPU and
// are one warp of a GPU, and nothing depends on who computed which block.

enum { NORM_BLOCK = 4096, NORM_LANES = 32 };

static inline size_t norm_blocks(size_t n) { return (n + NORM_BLOCK - 1) / NORM_BLOCK; }

// Sum of squares of n <= NORM_BLOCK elements. A square of an fp32 number is exact in double, so
// that fused or not the sum has the same bits.
__attribute__((always_inline))
static inline double norm_block_sum(const void *grad, int is_bf16, size_t first, size_t n) {
    double lane[NORM_LANES] = {0};
    const size_t whole = n / NORM_LANES * NORM_LANES;
    for (size_t i = 0; i < whole; i += NORM_LANES) {
        for (size_t j = 0; j < NORM_LANES; j++) {
            const double x = grad_at(grad, is_bf16, first + i + j);
            lane[j] += x * x;
        }
    }
    for (size_t j = 0; j < n - whole; j++) {
        const double x = grad_at(grad, is_bf16, first + whole + j);
        lane[j] += x * x;
    }
    for (size_t half = NORM_LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

static inline void norm_sums(const void *grad, int is_bf16, size_t n, double *sums) {
    const size_t blocks = norm_blocks(n), full = NORM_BLOCK;
    #pragma omp parallel for schedule(static) if (blocks > 4)
    for (size_t b = 0; b < blocks; b++) {
        const size_t first = b * full, length = n - first < full ? n - first : full;
        sums[b] = is_bf16 ? norm_block_sum(grad, 1, first, length)
                          : norm_block_sum(grad, 0, first, length);
    }
}

// Sums of squares of one tensor's n gradients, block by block, into sums[norm_blocks(n)].
static inline void norm_block_sums(const float *g, size_t n, double *sums) {
    norm_sums(g, 0, n, sums);
}
static inline void norm_block_sums_bf16(const uint16_t *g, size_t n, double *sums) {
    norm_sums(g, 1, n, sums);
}

// The square of the global norm from the block sums of all tensors, in table order.
static inline double norm_total(const double *sums, size_t count) {
    double total = 0;
    for (size_t i = 0; i < count; i++) total += sums[i];
    return total;
}

// What to multiply gradients by so that their norm is at most `clip`: clip / norm, rounded once;
// exactly 1 if the norm is not above clip, or if clip <= 0 (no clipping). A norm that is infinite
// or NaN gives NaN whatever clip is: such a step must not be taken.
static inline float clip_scale(double norm_squared, double clip) {
    if (!(norm_squared <= DBL_MAX)) return NAN;
    const double norm = sqrt(norm_squared);
    return clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
}

#endif
