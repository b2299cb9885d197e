// adam.cuh: AdamW and the gradient norm on the GPU, with the bits of adam.h: the update gives the
// bits of adam_scalar(), and the norm is summed in adam.h's order, in 32 lanes.
//   adam_update_gpu()                            adam_work()'s step on the GPU
//   norm_block_sums_gpu(), norm_total_gpu()      norm_block_sums(), norm_total() on the GPU
//   weight_from()                                the weight that is stored for a master weight
#ifndef TIDE_ADAM_CUH
#define TIDE_ADAM_CUH
#include "../../adam.h"
#include "queue.cuh"

enum { ADAM_THREADS = 256 };

// Returns the weight that is stored for the master weight p.
template <typename X> HOST_DEVICE static inline X weight_from(float p) { return from_f32<X>(p); }
template <> HOST_DEVICE inline halfX weight_from<halfX>(float p) {
    const uint16_t bits = master_weight(p);
    halfX w;
    memcpy((void *)&w, &bits, sizeof w);
    return w;
}

// Makes a batch of the runs from number `first` on, at most BATCH_MOST. Its units are the norm's
// blocks of elements if `norm`, else blocks of threads that take eight elements each.
static Batch<AdamRun> adam_batch(const AdamRun *runs, int first, int count, bool norm) {
    Batch<AdamRun> batch = {};
    for (int i = first; i < count && i < first + BATCH_MOST; i++) {
        const size_t eights = (runs[i].at + runs[i].length + 7) / 8 - runs[i].at / 8;
        const size_t blocks = runs[i].length > 0 ? ceil_div(eights, ADAM_THREADS) : 0;
        batch_add(&batch, runs[i], norm ? norm_blocks(runs[i].length) : blocks);
    }
    return batch;
}

// Computes adam_scalar() for usual numbers without branches, so that a thread works on several
// elements at once. Root and quotient use the instructions that nvcc uses for IEEE's operations.
// Powers of two as factors keep remainders from becoming subnormal. Returns false if the bits may
// differ from adam_scalar()'s: the step is not 0 but below 2^-120, or *p is NaN from large numbers.
__device__ static inline bool adam_quick(float *p, float *m, float *v, float g, const AdamStep *s,
                                         float decay) {
    adam_moments(m, v, g, s);
    const float square = mul_f32(*v, 0x1p26f), r = fminf(rsqrt_fast(square), FLT_MAX);  // 0 for 0
    const float root = mul_f32(square, r), half = mul_f32(0.5f, r);
    const float exact_root = fma_f32(fma_f32(-root, root, square), half, root);  // 2^13 sqrt(v)
    const float by = fma_f32(exact_root, s->root_scale * 0x1p11f, s->eps * 0x1p24f);
    const float near = rcp_fast(by), inverse = fma_f32(near, fma_f32(-by, near, 1.0f), near);
    const float dividend = mul_f32(*m, 0x1p24f), quotient = mul_f32(dividend, inverse);
    const float step = fma_f32(fma_f32(-by, quotient, dividend), inverse, quotient);
    *p = fma_f32(s->minus_lr, fma_f32(decay, *p, step), *p);
    return (step == 0) | (fabsf(step) > 0x1p-120f);
}

// Load and store N numbers as words: floats, or 16-bit numbers in the words' upper halves. If N is
// 8, accesses take 16 bytes at a time.
template <int N, typename X>
__device__ static inline void load_words(uint32_t (&x)[N], const X *at) {
    if constexpr (N == 1) x[0] = sizeof(X) == 2 ? (uint32_t)*at << 16 : float_bits(*at);
    else UNROLL for (int i = 0; i < N; i += Pack<X>::N) {
        const Pack<uint32_t> words = load_pack((const uint32_t *)(at + i));
        UNROLL for (int j = 0; j < Pack<X>::N; j++)
            x[i + j] = sizeof(X) == 4 ? words.x[j] : words.x[j / 2] << (j % 2 ? 0 : 16);
    }
}
template <int N, typename X>
__device__ static inline void store_words(X *at, const uint32_t (&x)[N]) {
    if constexpr (N == 1) *at = sizeof(X) == 2 ? (X)(x[0] >> 16) : (X)bits_float(x[0]);
    else UNROLL for (int i = 0; i < N; i += Pack<X>::N) {
        Pack<uint32_t> words;
        UNROLL for (int j = 0; j < 4; j++)
            words.x[j] = sizeof(X) == 4 ? x[i + j] : x[2 * j] >> 16 | (x[2 * j + 1] & 0xffff0000);
        store_pack((uint32_t *)(at + i), words);
    }
}

// Updates elements `at` .. at + N - 1. W is the weights' type: float; uint16_t if their lower
// halves are in `low`; bf16 if they have none and are rounded at random. M is the moments' type:
// float; or uint16_t, for bf16. index: the first element's number. N = 1 uses adam_scalar(). N = 8
// uses adam_quick(); if an element is unusual, stores nothing and returns false.
template <int N, typename W, typename M>
__device__ static inline bool adam_elements(W *w, uint16_t *low, M *m, M *v, const void *grad,
                                            bool grad_is_half, size_t at, const AdamStep *s,
                                            float decay, size_t index) {
    constexpr bool rounded = std::is_same_v<W, bf16>, split = sizeof(W) == 2 && !rounded;
    std::conditional_t<sizeof(W) == 2, uint16_t, float> *weights = (decltype(weights))w + at;
    uint32_t ws[N], lows[N] = {0}, ms[N], vs[N], gs[N];
    load_words(ws, weights);
    if (split) load_words(lows, low + at);
    load_words(ms, m + at);
    load_words(vs, v + at);
    if (grad_is_half) {
        load_words(gs, (const uint16_t *)grad + at);
        UNROLL for (int j = 0; j < N; j++) gs[j] = float_bits(half_to_f32(gs[j] >> 16));
    } else load_words(gs, (const float *)grad + at);
    bool usual = true;
    UNROLL for (int j = 0; j < N; j++) {
        const uint32_t mask = sizeof(M) == 2 ? 0xffff0000 : 0xffffffff;
        float p = split ? master_f32(ws[j] >> 16, lows[j] >> 16)
                : bits_float(rounded ? ws[j] & 0xffff0000 : ws[j]);
        float m1 = bits_float(ms[j] & mask), v1 = bits_float(vs[j] & mask);
        if (N == 1) adam_scalar(&p, &m1, &v1, bits_float(gs[j]), s, decay);
        else usual &= adam_quick(&p, &m1, &v1, bits_float(gs[j]), s, decay);
        ws[j] = split ? (uint32_t)master_weight(p) << 16
              : rounded ? adam_weight(p, s, (uint32_t)index + j) : float_bits(master_rounded(p));
        lows[j] = (uint32_t)master_low(p) << 16;
        ms[j] = float_bits(m1);
        vs[j] = float_bits(v1);
        if (sizeof(M) == 2) adam_round(&ms[j], &vs[j], m1, v1, s, (uint32_t)index + j);
    }
    if (!usual) return false;
    store_words(weights, ws);
    if (split) store_words(low + at, lows);
    store_words(m + at, ms);
    store_words(v + at, vs);
    return true;
}

// A thread takes eight elements that start at a multiple of eight. It updates them together if all
// are in the run, the arenas are aligned, and all numbers are usual; else it updates those in the
// run one by one. The unit of work is a block of threads.
template <typename W, typename M>
__global__ static void adam_update_kernel(void *weights, uint16_t *low, void *means, void *squares,
                                          const void *grad, bool grad_is_half, bool aligned,
                                          Batch<AdamRun> batch, AdamStep s) {
    W *const w = (W *)weights;
    M *const m = (M *)means, *const v = (M *)squares;
    unsigned block = blockIdx.x;
    const AdamRun run = batch_find(batch, &block);
    const size_t end = run.at + run.length;
    const size_t i = 8 * (run.at / 8 + block * (size_t)ADAM_THREADS + threadIdx.x);
    const size_t number = run.index - run.at;  // number of the arena's element 0, modulo 2^64
    const float decay = run.decay ? s.weight_decay : 0.0f;
    if (aligned && i >= run.at && i + 8 <= end
        && adam_elements<8>(w, low, m, v, grad, grad_is_half, i, &s, decay, number + i)) return;
    #pragma unroll 1
    for (size_t j = i > run.at ? i : run.at; j < i + 8 && j < end; j++)
        adam_elements<1>(w, low, m, v, grad, grad_is_half, j, &s, decay, number + j);
}

// Updates elements at .. at + length - 1 of each run, with the bits of adam_work(). The pointers
// are the starts of arenas in device memory. low NULL: the weights have no lower bits; they are
// bf16 numbers if *step says so, else floats. *step also says how m and v are stored. Fastest if
// the arenas are aligned to 16 bytes.
static inline void adam_update_gpu(void *w, uint16_t *low, void *m, void *v, const void *grad,
                                   bool grad_is_half, const AdamRun *runs, int count,
                                   const AdamStep *step, cudaStream_t stream) {
    const uintptr_t addresses = (uintptr_t)w | (uintptr_t)low | (uintptr_t)m | (uintptr_t)v
                              | (uintptr_t)grad;
    using Rounded = std::conditional_t<HALF_IS_FP16, uint16_t, bf16>;  // fp16: not used
    const bool m16 = step->moments_bf16;
    auto kernel = m16 ? adam_update_kernel<float, uint16_t> : adam_update_kernel<float, float>;
    if (low != NULL) kernel = m16 ? adam_update_kernel<uint16_t, uint16_t>
                                  : adam_update_kernel<uint16_t, float>;
    if (step->master_bf16) kernel = m16 ? adam_update_kernel<Rounded, uint16_t>
                                        : adam_update_kernel<Rounded, float>;
    for (int first = 0; first < count; first += BATCH_MOST) {
        const Batch<AdamRun> batch = adam_batch(runs, first, count, false);
        const unsigned blocks = batch_units(&batch);
        if (blocks == 0) continue;
        const double bytes = (step->moments_bf16 ? 18 : 26) - (step->master_bf16 ? 4 : 0);
        for (int i = 0; i < batch.count; i++)
            GPU_TAKES(stream, bytes / 26 * (double)batch.work[i].length, gpu_adam);
        LAUNCH(kernel, blocks, ADAM_THREADS, 0, stream, w, low, m, v, grad, grad_is_half,
               addresses % 16 == 0, batch, *step);
    }
}

// One warp takes one block of NORM_BLOCK elements, the unit of work here. Lanes are folded in the
// order of norm_block_sum(), so lane 0 gets the same sum. Each lane has 16 loads under way; past
// the end it adds zeros, which change nothing.
enum { NORM_WARPS = 8 };

template <bool IS_HALF>
__global__ static void norm_block_sums_kernel(const void *grad, double *sums, unsigned units,
                                              Batch<AdamRun> batch) {
    const unsigned unit = blockIdx.x * NORM_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (unit >= units) return;  // the whole warp
    unsigned block = unit;
    const AdamRun run = batch_find(batch, &block);
    const size_t at = block * (size_t)NORM_BLOCK, left = run.length - at;
    const unsigned n = left < NORM_BLOCK ? (unsigned)left : (unsigned)NORM_BLOCK;
    double sum = 0;
    for (unsigned i = lane; i < n; i += 16 * NORM_LANES) {
        float x[16];
        UNROLL for (unsigned j = 0; j < 16; j++) {
            const bool inside = i + j * NORM_LANES < n;
            x[j] = inside ? grad_at(grad, IS_HALF, run.at + at + i + j * NORM_LANES) : 0.0f;
        }
        UNROLL for (int j = 0; j < 16; j++) sum += (double)x[j] * (double)x[j];
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[unit] = sum;
}

// Computes norm_block_sums() of each run, in order, with the same bits. grad: the start of an
// arena. sums: norm_blocks(length) numbers for each run. Both are device memory.
static inline void norm_block_sums_gpu(const void *grad, bool is_half, const AdamRun *runs,
                                       int count, double *sums, cudaStream_t stream) {
    for (int first = 0; first < count; first += BATCH_MOST) {
        const Batch<AdamRun> batch = adam_batch(runs, first, count, true);
        const unsigned units = batch_units(&batch);
        if (units == 0) continue;
        const auto kernel = is_half ? norm_block_sums_kernel<true> : norm_block_sums_kernel<false>;
        LAUNCH(kernel, ceil_div(units, NORM_WARPS), 32 * NORM_WARPS, 0, stream, grad, sums, units,
               batch);
        sums += units;
    }
}

// One warp adds up NORM_RUN neighbouring sums, a run of the norm, with all loads under way at once.
// Sum number i is sums[order[i]], or sums[i] if order is NULL.
__global__ static void norm_runs_kernel(double *runs, const double *sums, const uint32_t *order,
                                        size_t count) {
    const size_t run = blockIdx.x * (size_t)NORM_WARPS + threadIdx.x / 32;
    const size_t first = run * NORM_RUN + threadIdx.x % 32;
    if (run * NORM_RUN >= count) return;  // the whole warp
    double x[NORM_RUN / NORM_LANES], sum = 0;
    UNROLL for (int k = 0; k < NORM_RUN / NORM_LANES; k++) {
        const size_t i = first + (size_t)k * NORM_LANES;
        x[k] = i >= count ? 0 : sums[order == NULL ? i : order[i]];
    }
    UNROLL for (int k = 0; k < NORM_RUN / NORM_LANES; k++) sum += x[k];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) runs[run] = sum;
}

// One warp adds up the runs' sums: it loads 32 at a time, and each lane adds up all 32, in order.
__global__ static void norm_total_kernel(double *total, const double *runs, size_t count) {
    double sum = 0;
    for (size_t first = 0; first < count; first += 32) {
        const double x = first + threadIdx.x < count ? runs[first + threadIdx.x] : 0;
        for (int j = 0; j < 32; j++) sum += __shfl_sync(0xffffffffu, x, j);
    }
    if (threadIdx.x == 0) *total = sum;
}

// Computes *total = norm_total() of `count` sums, with the same bits. order: see
// norm_runs_kernel(). runs: scratch (norm_runs(count)). All pointers are device memory.
static inline void norm_total_gpu(double *total, double *runs, const double *sums,
                                  const uint32_t *order, size_t count, cudaStream_t stream) {
    const size_t all = norm_runs(count);
    if (all > 0)
        LAUNCH(norm_runs_kernel, ceil_div(all, NORM_WARPS), 32 * NORM_WARPS, 0, stream, runs, sums,
               order, count);
    LAUNCH(norm_total_kernel, 1, 32, 0, stream, total, runs, all);
}

#endif
