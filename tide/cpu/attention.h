// attention.h: causal self-attention on a CPU, as fast as the machine allows.
//
//   attention_forward()         computes what attention_definition() in train_gpt2.c defines
//   attention_backward()        computes its gradient
//   attention_cached()          computes attention of new tokens, with keys and values from a cache
//   attention_scratch_floats()  returns the scratch of forward and backward, for each thread
//
// Small matrix products (matmul.h) compute the scores of a strip of query rows with all keys that
// these rows see. The scores stay in the cache of the core. doc/attention.md derives both passes.
#ifndef TIDE_ATTENTION_H
#define TIDE_ATTENTION_H
#include "matmul.h"
#include "../base/vmath.h"

enum { STRIP = 64 };

// Returns the floats of scratch of a thread: two strips of scores, and what a product needs.
static size_t attention_scratch_floats(size_t T) {
    return 2 * STRIP * round_up(T, 16) + round_up(gemm_scratch_floats(), 16);
}

static void attention_forward(float *out,        // (B, T, NH HS)
                              float *lse,        // (B, NH, T)
                              const float *qkv,  // (B, T, Q)
                              const int32_t *begins,  // (B, T), or NULL: all 0
                              float *scratch,    // (threads, attention_scratch_floats(T))
                              size_t B, size_t T, size_t NH, size_t NKV, size_t HS) {
    const size_t A = NH * HS, Q = A + 2 * NKV * HS, strips = (T + STRIP - 1) / STRIP;
    const float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(3) schedule(dynamic)
    for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < NH; h++)
    for (size_t i = 0; i < strips; i++) {
        const size_t strip = strips - 1 - i;  // the longest first, so that threads end together
        const size_t first = strip * STRIP, rows = min_size(STRIP, T - first);
        // `low`: the first key that the strip's first row sees.
        const int32_t *begin = begins == NULL ? NULL : begins + b * T + first;
        const size_t low = begin == NULL ? 0 : (size_t)begin[0], keys = first + rows - low;
        const float *q = qkv + (b * T + first) * Q + h * HS;
        const float *k = qkv + (b * T + low) * Q + A + h / (NH / NKV) * HS, *v = k + NKV * HS;
        // p: (rows, keys)
        float *p = scratch + (size_t)omp_get_thread_num() * attention_scratch_floats(T);
        float *product_scratch = p + 2 * STRIP * round_up(T, 16);
        gemm_serial(false, true, rows, keys, HS, q, Q, k, Q, p, keys, false, product_scratch);
        for (size_t r = 0; r < rows; r++) {
            const size_t from = begin == NULL ? 0 : (size_t)begin[r] - low;
            float *s = p + r * keys + from;
            const size_t visible = first + r + 1 - low - from;
            const float max = max_f32(s, visible), sum = exp_sum_f32(s, visible, max, scale);
            const float inverse = 1.0f / sum;
            for (size_t u = 0; u < visible; u++) s[u] *= inverse;
            for (size_t u = visible; u < keys - from; u++) s[u] = 0;
            memset(p + r * keys, 0, from * sizeof(float));
            lse[(b * NH + h) * T + first + r] = max * scale + logf(sum);
        }
        gemm_serial(false, false, rows, HS, keys, p, keys, v, Q, out + (b * T + first) * A + h * HS,
                    A, false, product_scratch);
    }
}

// Replaces a row's scores and dp by p and ds, 0 for keys that it does not see. It sees keys from ..
// visible - 1.
static inline void attention_row_backward(float *p, float *dp, const float *d, const float *o,
                                          float lse, size_t from, size_t visible, size_t keys,
                                          size_t HS) {
    const float scale = 1.0f / sqrtf((float)HS);
    // The loop runs to the end of a whole vector, because a scalar loop over the last few keys
    // would take as long as this one. Then results of keys that the row does not see are set to 0.
    const size_t whole = min_size(round_up(visible, 16), keys);
    float d_dot_o = 0;
    #pragma omp simd reduction(+ : d_dot_o)
    for (size_t i = 0; i < HS; i++) d_dot_o += d[i] * o[i];
    #pragma omp simd
    for (size_t u = from; u < whole; u++) {
        p[u] = exp_f32(p[u] * scale - lse);
        dp[u] = p[u] * (dp[u] - d_dot_o) * scale;
    }
    for (size_t u = 0; u < from; u++) p[u] = dp[u] = 0;
    for (size_t u = visible; u < keys; u++) p[u] = dp[u] = 0;
}

// Computes dqkv, overwriting it. Gradients of keys and values are sums over strips and over the
// query heads of a group. So one thread computes a whole group, head by head.
static void attention_backward(float *dqkv, const float *dout, const float *out, const float *lse,
                               const float *qkv, const int32_t *begins, float *scratch,
                               size_t B, size_t T, size_t NH, size_t NKV, size_t HS) {
    const size_t A = NH * HS, Q = A + 2 * NKV * HS, group = NH / NKV;
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (size_t b = 0; b < B; b++)
    for (size_t kv = 0; kv < NKV; kv++)
    for (size_t h = kv * group; h < (kv + 1) * group; h++) {
        const size_t head = b * T * Q + h * HS, key_head = b * T * Q + A + kv * HS;
        const float *k = qkv + key_head, *v = k + NKV * HS;
        float *dk = dqkv + key_head, *dv = dk + NKV * HS;
        // p and ds: (rows, keys)
        float *p = scratch + (size_t)omp_get_thread_num() * attention_scratch_floats(T);
        float *ds = p + STRIP * round_up(T, 16);
        float *product_scratch = ds + STRIP * round_up(T, 16);
        for (size_t u = 0; u < T && h == kv * group; u++) {
            memset(dk + u * Q, 0, HS * sizeof(float));
            memset(dv + u * Q, 0, HS * sizeof(float));
        }
        for (size_t first = 0; first < T; first += STRIP) {
            const size_t rows = min_size(STRIP, T - first);
            const int32_t *begin = begins == NULL ? NULL : begins + b * T + first;
            const size_t low = begin == NULL ? 0 : (size_t)begin[0], keys = first + rows - low;
            const float *q = qkv + head + first * Q;
            const float *kl = k + low * Q, *vl = v + low * Q;
            const float *o = out + (b * T + first) * A + h * HS;
            const float *d = dout + (b * T + first) * A + h * HS;
            gemm_serial(false, true, rows, keys, HS, q, Q, kl, Q, p, keys, false, product_scratch);
            gemm_serial(false, true, rows, keys, HS, d, A, vl, Q, ds, keys, false,
                        product_scratch);  // this is dp, until attention_row_backward()
            for (size_t r = 0; r < rows; r++) {
                const size_t from = begin == NULL ? 0 : (size_t)begin[r] - low;
                attention_row_backward(p + r * keys, ds + r * keys, d + r * A, o + r * A,
                                       lse[(b * NH + h) * T + first + r], from,
                                       first + r + 1 - low, keys, HS);
            }
            gemm_serial(false, false, rows, HS, keys, ds, keys, kl, Q, dqkv + head + first * Q, Q,
                        false, product_scratch);
            gemm_serial(true, false, keys, HS, rows, ds, keys, q, Q, dk + low * Q, Q, true,
                        product_scratch);
            gemm_serial(true, false, keys, HS, rows, p, keys, d, A, dv + low * Q, Q, true,
                        product_scratch);
        }
    }
}

// Appends the keys and values of T new tokens to the cache, which has `first` tokens. Each new
// query attends to all keys up to its own. Each score is used at once: the softmax keeps the
// largest score so far, and scales its sums when a larger score follows (doc/attention.md).
static void attention_cached(float *out,        // (T, NH HS)
                             float *cache,      // (window, 2, NKV HS)
                             const float *qkv,  // (T, Q)
                             size_t first, size_t T, size_t NH, size_t NKV, size_t HS) {
    const size_t A = NH * HS, K = NKV * HS, Q = A + 2 * K;
    const float scale = 1.0f / sqrtf((float)HS);
    for (size_t t = 0; t < T; t++)
        memcpy(cache + (first + t) * 2 * K, qkv + t * Q + A, 2 * K * sizeof *cache);
    #pragma omp parallel for collapse(2)
    for (size_t t = 0; t < T; t++)
    for (size_t h = 0; h < NH; h++) {
        const float *q = qkv + t * Q + h * HS, *k = cache + h / (NH / NKV) * HS;
        float max = -INFINITY, sum = 0, *o = out + t * A + h * HS;
        memset(o, 0, HS * sizeof *o);
        for (size_t u = 0; u <= first + t; u++, k += 2 * K) {
            const float *v = k + K;
            float s = 0;
            #pragma omp simd reduction(+ : s)
            for (size_t i = 0; i < HS; i++) s += q[i] * k[i];
            s *= scale;
            const float more = fmaxf(max, s), less = exp_f32(max - more), p = exp_f32(s - more);
            max = more;
            sum = sum * less + p;
            #pragma omp simd
            for (size_t i = 0; i < HS; i++) o[i] = o[i] * less + p * v[i];
        }
        for (size_t i = 0; i < HS; i++) o[i] /= sum;
    }
}

#endif
