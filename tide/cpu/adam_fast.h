// adam_fast.h: AdamW (adam.h) on the arenas of a model, as fast as host memory allows: vectorised
// loops with the same bits as adam_scalar() and adam_bf16(), and sums of gradients.
//
//   adam_work()            makes one pass over the state of some runs, with all threads
//   adam_range()           makes the step of a range of elements, on the calling thread
#ifndef TIDE_ADAM_FAST_H
#define TIDE_ADAM_FAST_H
#include "../../adam.h"

// One pass over some runs: ranges of the arrays below, which must not overlap. If w is not NULL,
// makes an AdamW step by the gradient `grad`, by `sum`, or by both added up (and does not change
// sum). If w is NULL, adds grad to sum.
typedef struct {
    void *w;              // weights, which the step changes; NULL: no step
    uint16_t *low;        // lower halves of the master weights (master_low()); NULL: there are none
    void *m, *v;          // float, or bf16 if step.moments_bf16
    float *sum;           // the sum of gradients; NULL: there is none
    const void *grad;     // a gradient to add; NULL: the sum is complete
    int grad_is_half;
    int first;            // 1: grad is the first gradient of the sum
    float scale;          // the factor of the gradient in the sum
    double *block_sums;   // gets sum's sums of squares, by block (adam.h), of all runs; or NULL
    const AdamRun *runs;
    int count;
    AdamStep step;
    int halves;           // 1: weights are halves; they also are whenever `low` is not NULL
} AdamWork;

// Returns the bytes that the pass reads and writes for each element.
static inline size_t adam_work_bytes(const AdamWork *w) {
    const size_t grad = w->grad == NULL ? 0 : w->grad_is_half ? 2 : 4;
    const size_t sum = w->sum == NULL || w->first ? 0 : 4;  // is read
    const size_t weight = w->low == NULL && w->halves ? 4 : 8;
    return grad + sum + (w->w == NULL ? 4 : weight + (w->step.moments_bf16 ? 8 : 16));
}

// Load and store two 16-bit numbers as one word. The first one is the lower half.
static inline uint32_t load_pair(const uint16_t *x) { uint32_t w; memcpy(&w, x, 4); return w; }
static inline void store_pair(uint16_t *x, uint32_t upper, uint32_t upper_next) {
    const uint32_t both = upper >> 16 | (upper_next & 0xffff0000);
    memcpy(x, &both, 4);
}

typedef struct { uint32_t w, low, m, v; } AdamUpper;
static inline void adam_upper_split(AdamUpper *x, float g, const AdamStep *s, float decay,
                                    uint32_t index, int rounded) {
    float p = master_of_upper(x->w, x->low);
    adam_upper(&p, &x->m, &x->v, g, s, decay, index);
    x->w = rounded ? adam_weight(p, s, index) : master_upper(p);
    x->low = float_bits(p) << 16;
}

// Prefetches cache lines ahead of element `at`. The update reads five or six arrays at once; a
// processor's own prefetching stops at the end of each page of each array.
enum { ADAM_BLOCK = 128, ADAM_AHEAD = 512 };
__attribute__((always_inline))
static inline void adam_prefetch(const void *array, size_t at, size_t size) {
    const char *from = (const char *)array + (at + ADAM_AHEAD) * size;
    for (size_t k = 0; k < ADAM_BLOCK * size; k += 64) __builtin_prefetch(from + k);
}

// Is the loop of adam_range(), which inlines it 20 times with different constants: so each copy is
// vectorised. rounded: weights have no lower halves.
__attribute__((always_inline))
static inline void adam_loop(void *__restrict__ weights, uint16_t *__restrict__ low,
                             void *__restrict__ m, void *__restrict__ v,
                             const float *__restrict__ sum, const void *__restrict__ grad,
                             const AdamWork *w, size_t first, size_t last, uint32_t index,
                             int decay, int moments_bf16, int rounded, int halves, int has_sum,
                             int grad_is_half) {
    const AdamStep s = w->step;  // a copy: stores to the arrays cannot change it
    const float d = decay ? s.weight_decay : 0.0f, scale = w->scale;
    const size_t moment = moments_bf16 ? 2 : 4;
    const int is_split = halves && !rounded;
    float *whole = (float *)weights;
    uint16_t *half = (uint16_t *)weights, *m16 = (uint16_t *)m, *v16 = (uint16_t *)v;
    for (size_t i = first, end; i < last;) {
        end = last - i < ADAM_BLOCK ? last : i + ADAM_BLOCK;
        adam_prefetch(weights, i, halves ? 2 : 4);
        if (is_split) adam_prefetch(low, i, 2);
        adam_prefetch(m, i, moment);
        adam_prefetch(v, i, moment);
        adam_prefetch(grad, i, grad_is_half ? 2 : 4);
        if (has_sum) adam_prefetch(sum, i, 4);
        uint32_t number = index + (uint32_t)i;
        // 16-bit state is read in pairs: splitting and joining words takes fewer instructions than
        // widening and narrowing numbers. (ivdep tells gcc again that the arrays do not overlap.)
        if (!HALF_IS_FP16 && moments_bf16 && halves) {
            #pragma GCC ivdep
            for (; i + 1 < end; i += 2, number += 2) {
                const uint32_t w2 = load_pair(half + i), low2 = is_split ? load_pair(low + i) : 0;
                const uint32_t m2 = load_pair(m16 + i), v2 = load_pair(v16 + i);
                const uint32_t g2 = grad_is_half ? load_pair((const uint16_t *)grad + i) : 0;
                const float *whole_g = (const float *)grad + i;
                float g = grad_is_half ? bits_float(g2 << 16) : whole_g[0];
                float h = grad_is_half ? bits_float(g2 & 0xffff0000) : whole_g[1];
                if (has_sum) {
                    g = fma_f32(scale, g, sum[i]);
                    h = fma_f32(scale, h, sum[i + 1]);
                }
                AdamUpper a = {w2 << 16, low2 << 16, m2 << 16, v2 << 16}, b = {w2, low2, m2, v2};
                adam_upper_split(&a, g, &s, d, number, rounded);
                adam_upper_split(&b, h, &s, d, number + 1, rounded);
                store_pair(half + i, a.w, b.w);
                if (is_split) store_pair(low + i, a.low, b.low);
                store_pair(m16 + i, a.m, b.m);
                store_pair(v16 + i, a.v, b.v);
            }
        }
        for (; i < end; i++, number++) {
            float p = is_split ? master_f32(half[i], low[i])
                    : halves ? bf16_to_f32(half[i]) : whole[i];
            float g = grad_at(grad, grad_is_half, i);
            if (has_sum) g = fma_f32(scale, g, sum[i]);
            if (moments_bf16) adam_bf16(&p, m16 + i, v16 + i, g, &s, d, number);
            else adam_scalar(&p, (float *)m + i, (float *)v + i, g, &s, d);
            if (rounded) p = bits_float(adam_weight(p, &s, number));
            if (is_split) low[i] = master_low(p);
            if (halves) half[i] = rounded ? (uint16_t)(float_bits(p) >> 16) : master_weight(p);
            else whole[i] = p;
        }
    }
}

// Makes the AdamW step of elements first .. last - 1 on the calling thread, for teams that divide
// the work themselves. The bits do not depend on how a range is cut. fp32 weights have fp32
// gradients. index: the number of element 0 in the arena (adam_bf16()). For Intel's AVX-512, gcc
// uses vectors of 512 bits only if told to.
#if defined __AVX512F__ && !defined __clang__
__attribute__((noinline, target("prefer-vector-width=512")))
#endif
static void adam_range(const AdamWork *w, size_t first, size_t last, uint32_t index, int decay) {
    const void *grad = w->grad != NULL ? w->grad : w->sum;
    const int has_sum = w->sum != NULL && w->grad != NULL;
    const int is_half = w->grad != NULL && w->grad_is_half;
    #define ADAM_CASE(...) \
        adam_loop(w->w, w->low, w->m, w->v, w->sum, grad, w, first, last, index, decay, __VA_ARGS__)
    #define ADAM_MOMENTS(...) \
        (w->step.moments_bf16 ? ADAM_CASE(1, __VA_ARGS__) : ADAM_CASE(0, __VA_ARGS__))
    #define ADAM_LOOP(...) \
        (w->step.master_bf16 ? ADAM_MOMENTS(1, __VA_ARGS__) : ADAM_MOMENTS(0, __VA_ARGS__))
    const int halves = w->low != NULL || w->halves;
    if (!halves && has_sum) ADAM_LOOP(0, 1, 0);
    else if (!halves) ADAM_LOOP(0, 0, 0);
    else if (has_sum) ADAM_LOOP(1, 1, 1);
    else if (is_half) ADAM_LOOP(1, 0, 1);
    else ADAM_LOOP(1, 0, 0);
    #undef ADAM_LOOP
    #undef ADAM_MOMENTS
    #undef ADAM_CASE
}

// ---------------------------------------------------------------------------------------------
// The sum of gradients

// Adds the gradient to the sum in a chunk of a run, rounded once: sum += scale * grad, or, if
// first, sum = scale * grad. Computes the norm's sums, from number `block` on, from the cache.
static inline void accumulate_range(const AdamWork *w, const AdamRun *r, size_t block) {
    const int is_half = w->grad_is_half, first = w->first;
    const float scale = w->scale;
    for (size_t i = r->at, end = r->at + r->length; i < end; i += NORM_BLOCK, block++) {
        const size_t n = min_size(end - i, NORM_BLOCK);
        float *__restrict__ sum = w->sum + i;
        const void *__restrict__ grad = (const char *)w->grad + i * (is_half ? 2 : 4);
        for (size_t j = 0; j < n; j++) {
            const float x = grad_at(grad, is_half, j);
            sum[j] = first ? mul_f32(scale, x) : fma_f32(scale, x, sum[j]);
        }
        if (w->block_sums != NULL) w->block_sums[block] = norm_block_sum(sum, n);
    }
}

// ---------------------------------------------------------------------------------------------
// With all threads

// Each run is cut into chunks from its own start, so that no block of the norm is in two chunks. A
// thread that has finished a chunk takes the next one. If another program takes a core for a while,
// the team waits for one chunk at most, about 50 us of work. (With equal shares all would wait for
// the slowest thread. With smaller chunks more time would be spent at starts of chunks, where
// nothing has been prefetched.)
enum { ADAM_CHUNK = 16 * NORM_BLOCK };

static inline size_t adam_chunks(const AdamRun *runs, int count) {
    size_t chunks = 0;
    for (int i = 0; i < count; i++) chunks += (runs[i].length + ADAM_CHUNK - 1) / ADAM_CHUNK;
    return chunks;
}

// Returns chunk c of the runs. *block: the number of blocks of the norm before it.
static inline AdamRun adam_chunk(const AdamRun *runs, size_t c, size_t *block) {
    *block = 0;
    for (size_t n; c >= (n = adam_chunks(runs, 1)); runs++, c -= n)
        *block += norm_blocks(runs->length);
    *block += c * (ADAM_CHUNK / NORM_BLOCK);
    const size_t full = ADAM_CHUNK, left = runs->length - c * full;
    return (AdamRun){runs->at + c * full, left < full ? left : full, runs->decay,
                     runs->index + c * full};
}

// Makes a whole pass, with all threads.
static inline void adam_work(const AdamWork *w) {
    const size_t chunks = adam_chunks(w->runs, w->count);
    #pragma omp parallel for schedule(dynamic) if (chunks > 1)
    for (size_t c = 0; c < chunks; c++) {
        size_t block;
        const AdamRun r = adam_chunk(w->runs, c, &block);
        if (w->w != NULL)
            adam_range(w, r.at, r.at + r.length, (uint32_t)(r.index - r.at), r.decay);
        else accumulate_range(w, &r, block);
    }
}

#endif
