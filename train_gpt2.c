// train_gpt2.c: train a GPT-2 (or OPT) on a CPU, in fp32. The whole of it, in one file.
//
//   1. The layers, forward and backward, in the order in which a token meets them
//   2. The model: memory, forward, backward, update
//   3. Sampling
//   4. A run: what it reads and leaves behind, evaluation, the training loop
//
// This is the reference that everything else in tide.c is checked against, so every layer is the
// plain loop that defines it. Two of them cannot stay plain and be fast, and have their definition
// beside them: the matrix product (matmul.h) and attention (attention_*_plain, below).
//
// Letters for shapes, here and everywhere: B sequences of T tokens in a micro-batch, N = B*T rows,
// C channels, NH heads of HS = C/NH channels, F the MLP's width, V the vocabulary, L the layers.
// All arrays are row-major fp32. A loop never splits a sum over threads: each output element is
// summed by one thread in one order, so that the bits do not depend on the number of threads.

#include "util.h"
#include "adam.h"
#include "checkpoint.h"
#include "data.h"
#include "gpt2.h"
#include "log.h"
#include "matmul.h"
#include "options.h"
#include "tokenizer.h"
#include "vmath.h"
#include <math.h>
#include <signal.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// =============================================================================================
// 1. The layers
//
// X_forward computes the outputs; X_backward turns the gradient of the loss with respect to the
// outputs ("dout") into the gradients with respect to the inputs and the weights. doc/backward.md
// derives each one. Weight gradients are summed over the micro-batches of a step: the first one
// overwrites (accumulate false), so nothing has to be zeroed.

// Channels that one thread sums at a time where a sum runs over the rows: a few cache lines.
enum { SLICE = 64 };

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// --- embeddings: out[b,t] = wte[token[b,t]] + wpe[t] -----------------------------------------

static void encoder_forward(float *out,               // (B, T, C)
                            const int32_t *tokens,    // (B, T)
                            const float *wte,         // (V, C)
                            const float *wpe,         // (context, C)
                            size_t B, size_t T, size_t C) {
    #pragma omp parallel for
    for (size_t i = 0; i < B * T; i++) {
        const float *token = wte + (size_t)tokens[i] * C;
        const float *position = wpe + i % T * C;
        float *o = out + i * C;
        for (size_t c = 0; c < C; c++) o[c] = token[c] + position[c];
    }
}

// Adds to dwte and dwpe. Several rows may hold the same token, so threads share out channels.
static void encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                             size_t B, size_t T, size_t C) {
    #pragma omp parallel for
    for (size_t first = 0; first < C; first += SLICE) {
        const size_t last = min_size(first + SLICE, C);
        for (size_t i = 0; i < B * T; i++) {
            float *token = dwte + (size_t)tokens[i] * C;
            float *position = dwpe + i % T * C;
            for (size_t c = first; c < last; c++) {
                token[c] += dout[i * C + c];
                position[c] += dout[i * C + c];
            }
        }
    }
}

// --- layer normalisation (Ba et al. 2016): out = (x - mean) / sqrt(var + eps) * w + b --------

static void layernorm_forward(float *out, float *mean, float *rstd,  // (N, C), (N), (N)
                              const float *inp, const float *w, const float *b,
                              size_t N, size_t C) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = inp + n * C;
        float *o = out + n * C;
        float sum = 0, squares = 0;
        #pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < C; c++) sum += x[c];
        const float mu = sum / (float)C;
        #pragma omp simd reduction(+ : squares)
        for (size_t c = 0; c < C; c++) squares += (x[c] - mu) * (x[c] - mu);
        const float r = 1.0f / sqrtf(squares / (float)C + LAYERNORM_EPS);
        for (size_t c = 0; c < C; c++) o[c] = (x[c] - mu) * r * w[c] + b[c];
        mean[n] = mu;
        rstd[n] = r;
    }
}

// Adds to dinp (the residual stream's gradient runs past this layer and is already there).
static void layernorm_backward(float *dinp, float *dw, float *db, const float *dout,
                               const float *inp, const float *w, const float *mean,
                               const float *rstd, size_t N, size_t C, bool accumulate) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = inp + n * C, *d = dout + n * C;
        float *dx = dinp + n * C;
        const float mu = mean[n], r = rstd[n];
        float d_mean = 0, d_dot = 0;  // means over c of dnorm, and of dnorm * norm
        #pragma omp simd reduction(+ : d_mean, d_dot)
        for (size_t c = 0; c < C; c++) {
            d_mean += d[c] * w[c];
            d_dot += d[c] * w[c] * ((x[c] - mu) * r);
        }
        d_mean /= (float)C;
        d_dot /= (float)C;
        for (size_t c = 0; c < C; c++)
            dx[c] += (d[c] * w[c] - d_mean - (x[c] - mu) * r * d_dot) * r;
    }
    #pragma omp parallel for
    for (size_t first = 0; first < C; first += SLICE) {
        const size_t width = min_size(SLICE, C - first);
        float sum_w[SLICE] = {0}, sum_b[SLICE] = {0};
        for (size_t n = 0; n < N; n++) {
            const float *x = inp + n * C + first, *d = dout + n * C + first;
            for (size_t c = 0; c < width; c++) {
                sum_w[c] += d[c] * ((x[c] - mean[n]) * rstd[n]);
                sum_b[c] += d[c];
            }
        }
        for (size_t c = 0; c < width; c++) {
            dw[first + c] = accumulate ? dw[first + c] + sum_w[c] : sum_w[c];
            db[first + c] = accumulate ? db[first + c] + sum_b[c] : sum_b[c];
        }
    }
}

// --- linear layer: out (N, OC) = inp (N, C) . w (OC, C)^T + b --------------------------------

static void matmul_forward(float *out, const float *inp, const float *w, const float *b,
                           size_t N, size_t C, size_t OC) {
    gemm(false, true, N, OC, C, inp, C, w, C, out, OC, b, false);
}

// Overwrites dinp (N, C).
static void matmul_backward(float *dinp, float *dw, float *db, const float *dout,
                            const float *inp, const float *w, size_t N, size_t C, size_t OC,
                            bool accumulate) {
    gemm(false, false, N, C, OC, dout, OC, w, C, dinp, C, NULL, false);
    gemm(true, false, OC, C, N, dout, OC, inp, C, dw, C, NULL, accumulate);
    #pragma omp parallel for
    for (size_t first = 0; first < OC; first += SLICE) {
        const size_t width = min_size(SLICE, OC - first);
        float sum[SLICE] = {0};
        for (size_t n = 0; n < N; n++)
            for (size_t o = 0; o < width; o++) sum[o] += dout[n * OC + first + o];
        for (size_t o = 0; o < width; o++)
            db[first + o] = accumulate ? db[first + o] + sum[o] : sum[o];
    }
}

// --- causal self-attention (Vaswani et al. 2017) ---------------------------------------------
//
// For each sequence and head, with rows q[t], k[t], v[t] of HS channels inside qkv (B, T, 3C):
//     s[t,u]   = q[t] . k[u] / sqrt(HS)            for u <= t
//     p[t,u]   = exp(s[t,u]) / sum over u' <= t of exp(s[t,u'])
//     out[t]   = sum over u <= t of p[t,u] v[u]
// Only lse[t] = log sum exp(s[t,:]) is kept for the backward pass; it rebuilds p = exp(s - lse)
// (Dao et al. 2022), so that no (T, T) matrix is ever in memory.

// The definition: one query row at a time.
static void attention_forward_plain(float *out, float *lse, const float *qkv,
                                    size_t B, size_t T, size_t C, size_t NH) {
    const size_t HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    float *p = (float *)alloc_or_fail(T, sizeof(float), "attention row");
    for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < NH; h++)
    for (size_t t = 0; t < T; t++) {
        const float *q = qkv + (b * T + t) * 3 * C + h * HS;
        const float *k = qkv + b * T * 3 * C + C + h * HS, *v = k + C;
        float *o = out + (b * T + t) * C + h * HS;
        float max = -INFINITY, sum = 0;
        for (size_t u = 0; u <= t; u++) {
            float dot = 0;
            for (size_t i = 0; i < HS; i++) dot += q[i] * k[u * 3 * C + i];
            p[u] = dot * scale;
            max = fmaxf(max, p[u]);
        }
        for (size_t u = 0; u <= t; u++) sum += p[u] = expf(p[u] - max);
        lse[(b * NH + h) * T + t] = max + logf(sum);
        for (size_t i = 0; i < HS; i++) o[i] = 0;
        for (size_t u = 0; u <= t; u++)
            for (size_t i = 0; i < HS; i++) o[i] += p[u] / sum * v[u * 3 * C + i];
    }
    free(p);
}

static void attention_backward_plain(float *dqkv, const float *dout, const float *out,
                                     const float *lse, const float *qkv,
                                     size_t B, size_t T, size_t C, size_t NH) {
    const size_t HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    memset(dqkv, 0, B * T * 3 * C * sizeof(float));
    for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < NH; h++)
    for (size_t t = 0; t < T; t++) {
        const size_t row = (b * T + t) * 3 * C + h * HS, keys = b * T * 3 * C + C + h * HS;
        const float *q = qkv + row, *k = qkv + keys, *v = k + C;
        float *dq = dqkv + row, *dk = dqkv + keys, *dv = dk + C;
        const float *o = out + (b * T + t) * C + h * HS, *d = dout + (b * T + t) * C + h * HS;
        float d_dot_o = 0;  // = sum over u of p[t,u] dp[t,u]
        for (size_t i = 0; i < HS; i++) d_dot_o += d[i] * o[i];
        for (size_t u = 0; u <= t; u++) {
            float s = 0, dp = 0;
            for (size_t i = 0; i < HS; i++) {
                s += q[i] * k[u * 3 * C + i];
                dp += d[i] * v[u * 3 * C + i];
            }
            const float p = expf(s * scale - lse[(b * NH + h) * T + t]);
            const float ds = p * (dp - d_dot_o) * scale;
            for (size_t i = 0; i < HS; i++) {
                dq[i] += ds * k[u * 3 * C + i];
                dk[u * 3 * C + i] += ds * q[i];
                dv[u * 3 * C + i] += p * d[i];
            }
        }
    }
}

// The fast form: a strip of query rows against all the keys it may see, as small matrix products
// on scores that stay in the core's cache. Scratch for one thread: two strips and the product's.
enum { STRIP = 64 };

static size_t attention_scratch_floats(size_t T) {
    return 2 * STRIP * round_up(T, 16) + round_up(gemm_scratch_floats(), 16);
}

static int thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

static int thread_count(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static void attention_forward(float *out,        // (B, T, C)
                              float *lse,        // (B, NH, T)
                              const float *qkv,  // (B, T, 3C)
                              float *scratch,    // (threads, attention_scratch_floats(T))
                              size_t B, size_t T, size_t C, size_t NH) {
    const size_t HS = C / NH, strips = (T + STRIP - 1) / STRIP;
    const float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(3) schedule(dynamic)
    for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < NH; h++)
    for (size_t i = 0; i < strips; i++) {
        const size_t strip = strips - 1 - i;  // the longest first, so that threads end together
        const size_t first = strip * STRIP, rows = min_size(STRIP, T - first), keys = first + rows;
        const float *q = qkv + (b * T + first) * 3 * C + h * HS;
        const float *k = qkv + b * T * 3 * C + C + h * HS, *v = k + C;
        float *p = scratch + (size_t)thread_number() * attention_scratch_floats(T);  // (rows, keys)
        float *product_scratch = p + 2 * STRIP * round_up(T, 16);
        gemm_serial(false, true, rows, keys, HS, q, 3 * C, k, 3 * C, p, keys, NULL, false,
                    product_scratch);
        for (size_t r = 0; r < rows; r++) {
            float *s = p + r * keys;
            const size_t visible = first + r + 1;
            float max = -INFINITY, sum = 0;
            #pragma omp simd reduction(max : max)
            for (size_t u = 0; u < visible; u++) max = s[u] > max ? s[u] : max;
            #pragma omp simd reduction(+ : sum)
            for (size_t u = 0; u < visible; u++) sum += s[u] = exp_f32((s[u] - max) * scale);
            const float inverse = 1.0f / sum;
            for (size_t u = 0; u < visible; u++) s[u] *= inverse;
            for (size_t u = visible; u < keys; u++) s[u] = 0;
            lse[(b * NH + h) * T + first + r] = max * scale + logf(sum);
        }
        gemm_serial(false, false, rows, HS, keys, p, keys, v, 3 * C,
                    out + (b * T + first) * C + h * HS, C, NULL, false, product_scratch);
    }
}

// Overwrites dqkv. The keys' and values' gradients are sums over strips, so one thread takes all
// strips of a head.
static void attention_backward(float *dqkv, const float *dout, const float *out, const float *lse,
                               const float *qkv, float *scratch,
                               size_t B, size_t T, size_t C, size_t NH) {
    const size_t HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < NH; h++) {
        const size_t head = b * T * 3 * C + h * HS;
        const float *k = qkv + head + C, *v = k + C;
        float *dk = dqkv + head + C, *dv = dk + C;
        float *p = scratch + (size_t)thread_number() * attention_scratch_floats(T);  // (rows, keys)
        float *ds = p + STRIP * round_up(T, 16);                                     // (rows, keys)
        float *product_scratch = ds + STRIP * round_up(T, 16);
        for (size_t first = 0; first < T; first += STRIP) {
            const size_t rows = min_size(STRIP, T - first), keys = first + rows;
            const float *q = qkv + head + first * 3 * C;
            const float *o = out + (b * T + first) * C + h * HS;
            const float *d = dout + (b * T + first) * C + h * HS;
            // The last rows of dk and dv are new in this strip, the ones above have a part already.
            for (size_t u = first; u < keys; u++) {
                memset(dk + u * 3 * C, 0, HS * sizeof(float));
                memset(dv + u * 3 * C, 0, HS * sizeof(float));
            }
            gemm_serial(false, true, rows, keys, HS, q, 3 * C, k, 3 * C, p, keys, NULL, false,
                        product_scratch);
            gemm_serial(false, true, rows, keys, HS, d, C, v, 3 * C, ds, keys, NULL, false,
                        product_scratch);  // dp, for now
            for (size_t r = 0; r < rows; r++) {
                const size_t visible = first + r + 1;
                const float l = lse[(b * NH + h) * T + first + r];
                float *pr = p + r * keys, *dr = ds + r * keys;
                float d_dot_o = 0;
                #pragma omp simd reduction(+ : d_dot_o)
                for (size_t i = 0; i < HS; i++) d_dot_o += d[r * C + i] * o[r * C + i];
                #pragma omp simd
                for (size_t u = 0; u < visible; u++) {
                    pr[u] = exp_f32(pr[u] * scale - l);
                    dr[u] = pr[u] * (dr[u] - d_dot_o) * scale;
                }
                for (size_t u = visible; u < keys; u++) pr[u] = dr[u] = 0;
            }
            gemm_serial(false, false, rows, HS, keys, ds, keys, k, 3 * C,
                        dqkv + head + first * 3 * C, 3 * C, NULL, false, product_scratch);
            gemm_serial(true, false, keys, HS, rows, ds, keys, q, 3 * C, dk, 3 * C, NULL, true,
                        product_scratch);
            gemm_serial(true, false, keys, HS, rows, p, keys, d, C, dv, 3 * C, NULL, true,
                        product_scratch);
        }
    }
}

// --- the MLP's non-linearity -----------------------------------------------------------------
//
// GELU (Hendrycks & Gimpel 2016, tanh form): x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).

#define GELU_SCALE 0.7978845608028654f  // sqrt(2 / pi)

static void activation_forward(float *out, const float *inp, size_t n, int activation) {
    if (activation == ACTIVATION_RELU) {
        #pragma omp parallel for simd
        for (size_t i = 0; i < n; i++) out[i] = inp[i] > 0 ? inp[i] : 0;
        return;
    }
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        const float x = inp[i];
        const float tanh_u = tanh_f32(GELU_SCALE * (x + 0.044715f * x * x * x));
        out[i] = 0.5f * x * (1.0f + tanh_u);
    }
}

// d holds dout on entry and dinp on return.
static void activation_backward(float *d, const float *inp, size_t n, int activation) {
    if (activation == ACTIVATION_RELU) {
        #pragma omp parallel for simd
        for (size_t i = 0; i < n; i++) d[i] = inp[i] > 0 ? d[i] : 0;
        return;
    }
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        const float x = inp[i];
        const float tanh_u = tanh_f32(GELU_SCALE * (x + 0.044715f * x * x * x));
        const float du = GELU_SCALE * (1.0f + 3.0f * 0.044715f * x * x);
        d[i] *= 0.5f * (1.0f + tanh_u) + 0.5f * x * (1.0f - tanh_u * tanh_u) * du;
    }
}

// --- residual connection ---------------------------------------------------------------------

// out += inp. Its backward is the identity into both branches.
static void residual_forward(float *out, const float *inp, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) out[i] += inp[i];
}

// --- loss: cross-entropy of softmax(logits), fused with its gradient -------------------------
//
// losses[n] = log sum exp(logits[n,:]) - logits[n, target[n]]. If grad_scale is not 0, the logits
// are overwritten by their gradient, grad_scale (softmax - onehot(target)).

static void crossentropy(float *losses, float *logits, const int32_t *targets, float grad_scale,
                         size_t N, size_t V, size_t Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        float *z = logits + n * Vp;
        float max = -INFINITY, sum = 0;
        #pragma omp simd reduction(max : max)
        for (size_t v = 0; v < V; v++) max = z[v] > max ? z[v] : max;
        const float target = z[targets[n]];
        if (grad_scale == 0) {
            #pragma omp simd reduction(+ : sum)
            for (size_t v = 0; v < V; v++) sum += exp_f32(z[v] - max);
        } else {
            #pragma omp simd reduction(+ : sum)
            for (size_t v = 0; v < V; v++) sum += z[v] = exp_f32(z[v] - max);
            const float scale = grad_scale / sum;
            for (size_t v = 0; v < V; v++) z[v] *= scale;
            z[targets[n]] -= grad_scale;
        }
        losses[n] = logf(sum) + max - target;
    }
}

// =============================================================================================
// 2. The model

// What one layer makes, and what its backward pass needs: pointers into GPT2's buffers.
typedef struct {
    float *x;                       // (N, C)  the residual stream on entry
    float *ln_1, *mean_1, *rstd_1;  // (N, C), (N), (N)
    float *qkv;                     // (N, 3C)
    float *atty, *lse;              // (N, C), (B, NH, T)
    float *mid;                     // (N, C)  the residual stream after attention
    float *ln_2, *mean_2, *rstd_2;  // (N, C), (N), (N)
    float *fc, *act;                // (N, F)  before and after the non-linearity
} LayerActs;

typedef struct {
    GPT2Config config;
    GPT2Table table;
    ShardMap shards;
    size_t max_B, max_T;        // room in the activation buffers
    size_t B, T;                // what the last forward used
    bool training;              // false: no gradients, no moments, one layer's activations
    bool sampling;              // room for the key/value cache
    bool dumping;               // room for all logits
    float *params, *grads, *m, *v;               // arenas of table.elements floats
    float *x;                                    // (L+1, N, C)
    float *mid, *ln_1, *ln_2, *qkv, *atty, *fc, *act;       // (L, ...), see LayerActs
    float *mean_1, *rstd_1, *mean_2, *rstd_2, *lse;
    float *ln_f, *mean_f, *rstd_f;               // (N, C), (N), (N)
    float *logits;                               // (chunk rows, Vp)
    float *losses;                               // (N)
    float *dx, *dc, *dwide;                      // backward: (N, C), (N, C), (N, max(F, 3C))
    float *keys, *values;                        // of sampling: (L, context, C)
    float *all_logits;                           // of --dump: (N, Vp)
    float *scratch;                              // attention, per thread
    double *norm_sums;                           // one per block of 4096 gradients
} GPT2;

// The head's logits are made, used and overwritten in chunks of this many rows, so that (N, V)
// logits are never in memory at once.
enum { HEAD_ROWS = 256 };

// One line of the memory plan: what it is for, how large it is, which pointer it gets.
typedef struct { const char *purpose; size_t floats; float **pointer; } Buffer;
enum { MAX_BUFFERS = 32 };

// The memory plan: every buffer of the model for max_B x max_T. One list is printed and allocated.
static int gpt2_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->max_B * g->max_T;
    const size_t P = g->table.elements;
    const size_t L = g->training ? g->config.layers : 1;  // without a backward pass, layers share
    size_t blocks = 0;
    if ((double)N * (double)(L + 4) * (double)(16 * C + 2 * F) * 4 > 1e18)
        die("--batch %zu times --seq %zu is more than any machine can hold", g->max_B, g->max_T);
    for (int i = 0; i < g->table.count; i++) blocks += norm_blocks(g->table.tensors[i].size);
    int n = 0;
    #define BUFFER(purpose, size, field) list[n++] = (Buffer){purpose, size, &g->field}
    BUFFER("parameters", P, params);
    BUFFER("activations", (g->training ? L + 1 : 1) * N * C, x);
    BUFFER("activations", L * N * C, ln_1);
    BUFFER("activations", L * N, mean_1);
    BUFFER("activations", L * N, rstd_1);
    BUFFER("activations", L * N * 3 * C, qkv);
    BUFFER("activations", L * N * C, atty);
    BUFFER("activations", L * N * g->config.heads, lse);
    BUFFER("activations", L * N * C, mid);
    BUFFER("activations", L * N * C, ln_2);
    BUFFER("activations", L * N, mean_2);
    BUFFER("activations", L * N, rstd_2);
    BUFFER("activations", L * N * F, fc);
    BUFFER("activations", L * N * F, act);
    BUFFER("activations", N * C, ln_f);
    BUFFER("activations", N, mean_f);
    BUFFER("activations", N, rstd_f);
    BUFFER("activations", N, losses);
    BUFFER("logits", min_size(HEAD_ROWS, N) * g->config.vocab_padded, logits);
    BUFFER("scratch", (size_t)thread_count() * attention_scratch_floats(g->max_T), scratch);
    if (g->training) {
        BUFFER("gradients", P, grads);
        BUFFER("AdamW moments", P, m);
        BUFFER("AdamW moments", P, v);
        BUFFER("backward", N * C, dx);
        BUFFER("backward", N * C, dc);
        BUFFER("backward", N * (F > 3 * C ? F : 3 * C), dwide);
        list[n++] = (Buffer){"scratch", 2 * blocks, (float **)(void *)&g->norm_sums};
    }
    if (g->sampling) {
        BUFFER("sampling", g->config.layers * g->config.context * C, keys);
        BUFFER("sampling", g->config.layers * g->config.context * C, values);
    }
    if (g->dumping) BUFFER("all logits", N * g->config.vocab_padded, all_logits);
    #undef BUFFER
    return n;
}

// Returns the plan's sum in bytes, and prints it unless `quiet`; refuses what the machine's free
// memory cannot hold. `other` counts bytes that are not the model's: the program, a text's tokens.
static size_t gpt2_plan(GPT2 *g, size_t other, bool quiet) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    size_t total = other;
    if (!quiet) printf("memory:");
    for (int i = 0; i < n; i++) {
        size_t floats = 0;
        bool seen = false;
        for (int j = 0; j < n; j++) {
            if (strcmp(list[i].purpose, list[j].purpose) != 0) continue;
            if (j < i) seen = true;
            floats += list[j].floats;
        }
        if (seen) continue;
        total += floats * sizeof(float);
        if (!quiet)
            printf(" %s %.1f,", list[i].purpose, (double)(floats * sizeof(float)) / (1 << 20));
    }
    if (!quiet)
        printf(" data and program %.1f, total %.1f MiB\n", (double)other / (1 << 20),
               (double)total / (1 << 20));
    const size_t free_bytes = memory_available();
    if (total - other > free_bytes)
        die("this run needs %.1f MiB of memory and %.1f MiB are free; use a smaller --model, "
            "--batch or --seq", (double)total / (1 << 20), (double)free_bytes / (1 << 20));
    return total;
}

static void gpt2_allocate(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    for (int i = 0; i < n; i++)
        *list[i].pointer = (float *)alloc_or_fail(list[i].floats, sizeof(float), list[i].purpose);
}

static void gpt2_free(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    for (int i = 0; i < n; i++) free(*list[i].pointer);
    free(g->shards.shards);
    gpt2_table_free(&g->table);
}

// The twelve tensors of layer l inside an arena (parameters or gradients), by LN_1_W .. FCPROJ_B.
static void layer_tensors(const GPT2 *g, float *arena, size_t l, float *out[LAYER_TENSORS]) {
    for (int k = 0; k < LAYER_TENSORS; k++)
        out[k] = arena + g->table.tensors[g->table.first_layer + (int)l * LAYER_TENSORS + k].offset;
}

static float *tensor(const GPT2 *g, float *arena, int index) {
    return arena + g->table.tensors[index].offset;
}

static LayerActs layer_acts(const GPT2 *g, size_t l) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->max_B * g->max_T;
    if (!g->training) l = 0;
    return (LayerActs){
        g->x + l * N * C, g->ln_1 + l * N * C, g->mean_1 + l * N, g->rstd_1 + l * N,
        g->qkv + l * N * 3 * C, g->atty + l * N * C, g->lse + l * N * g->config.heads,
        g->mid + l * N * C, g->ln_2 + l * N * C, g->mean_2 + l * N, g->rstd_2 + l * N,
        g->fc + l * N * F, g->act + l * N * F};
}

// From tokens (B, T) to the normalised output of the last layer, g->ln_f (N, C).
static void gpt2_forward(GPT2 *g, const int32_t *tokens, size_t B, size_t T) {
    const size_t C = g->config.channels, F = g->config.ffn, NH = g->config.heads, N = B * T;
    const size_t L = g->config.layers;
    g->B = B;
    g->T = T;
    encoder_forward(g->x, tokens, tensor(g, g->params, g->table.wte),
                    tensor(g, g->params, g->table.wpe), B, T, C);
    float *x = g->x;
    for (size_t l = 0; l < L; l++) {
        const LayerActs a = layer_acts(g, l);
        float *w[LAYER_TENSORS];
        layer_tensors(g, g->params, l, w);
        x = g->training ? a.x + g->max_B * g->max_T * C : a.x;  // where the layer's output goes
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w[LN_1_W], w[LN_1_B], N, C);
        matmul_forward(a.qkv, a.ln_1, w[QKV_W], w[QKV_B], N, C, 3 * C);
        attention_forward(a.atty, a.lse, a.qkv, g->scratch, B, T, C, NH);
        matmul_forward(a.mid, a.atty, w[ATTPROJ_W], w[ATTPROJ_B], N, C, C);
        residual_forward(a.mid, a.x, N * C);
        layernorm_forward(a.ln_2, a.mean_2, a.rstd_2, a.mid, w[LN_2_W], w[LN_2_B], N, C);
        matmul_forward(a.fc, a.ln_2, w[FC_W], w[FC_B], N, C, F);
        activation_forward(a.act, a.fc, N * F, g->config.activation);
        matmul_forward(x, a.act, w[FCPROJ_W], w[FCPROJ_B], N, F, C);
        residual_forward(x, a.mid, N * C);
    }
    layernorm_forward(g->ln_f, g->mean_f, g->rstd_f, x, tensor(g, g->params, g->table.ln_f_w),
                      tensor(g, g->params, g->table.ln_f_b), N, C);
}

// Head and loss, in chunks of rows. Returns the mean loss of the micro-batch in nats per token.
// With grad_scale = 1 / (tokens of the whole step) it also makes the head's half of the backward
// pass: dc = dln_f, and the head's weight gradient. With grad_scale 0 it only evaluates.
// all_logits (N, Vp), if not NULL, receives the logits.
static double gpt2_head(GPT2 *g, const int32_t *targets, float grad_scale, bool accumulate,
                        float *all_logits) {
    const size_t C = g->config.channels, V = g->config.vocab, Vp = g->config.vocab_padded;
    const size_t N = g->B * g->T;
    const float *w = tensor(g, g->params, g->table.lm_head);
    for (size_t first = 0; first < N; first += HEAD_ROWS) {
        const size_t rows = min_size(HEAD_ROWS, N - first);
        const float *inp = g->ln_f + first * C;
        gemm(false, true, rows, V, C, inp, C, w, C, g->logits, Vp, NULL, false);
        if (all_logits != NULL)
            memcpy(all_logits + first * Vp, g->logits, rows * Vp * sizeof(float));
        crossentropy(g->losses + first, g->logits, targets + first, grad_scale, rows, V, Vp);
        if (grad_scale == 0) continue;
        gemm(false, false, rows, C, V, g->logits, Vp, w, C, g->dc + first * C, C, NULL, false);
        gemm(true, false, V, C, rows, g->logits, Vp, inp, C,
             tensor(g, g->grads, g->table.lm_head), C, NULL, accumulate || first > 0);
    }
    double sum = 0;
    for (size_t n = 0; n < N; n++) sum += g->losses[n];
    return sum / (double)N;
}

// From the head's gradient (made by gpt2_head) down to the embeddings. dx is the gradient of the
// residual stream: every branch reads it, and adds its own part where it left the stream.
static void gpt2_backward(GPT2 *g, const int32_t *tokens, bool accumulate) {
    const size_t C = g->config.channels, F = g->config.ffn, NH = g->config.heads;
    const size_t B = g->B, T = g->T, N = B * T, L = g->config.layers;
    const GPT2Table *t = &g->table;
    float *dx = g->dx, *dc = g->dc, *dwide = g->dwide;
    memset(dx, 0, N * C * sizeof(float));
    layernorm_backward(dx, tensor(g, g->grads, t->ln_f_w), tensor(g, g->grads, t->ln_f_b), dc,
                       g->x + L * g->max_B * g->max_T * C, tensor(g, g->params, t->ln_f_w),
                       g->mean_f, g->rstd_f, N, C, accumulate);
    for (size_t l = L; l-- > 0;) {
        const LayerActs a = layer_acts(g, l);
        float *w[LAYER_TENSORS], *d[LAYER_TENSORS];
        layer_tensors(g, g->params, l, w);
        layer_tensors(g, g->grads, l, d);
        // MLP branch: dx -> dact -> dfc -> dln_2 -> dx
        matmul_backward(dwide, d[FCPROJ_W], d[FCPROJ_B], dx, a.act, w[FCPROJ_W], N, F, C,
                        accumulate);
        activation_backward(dwide, a.fc, N * F, g->config.activation);
        matmul_backward(dc, d[FC_W], d[FC_B], dwide, a.ln_2, w[FC_W], N, C, F, accumulate);
        layernorm_backward(dx, d[LN_2_W], d[LN_2_B], dc, a.mid, w[LN_2_W], a.mean_2, a.rstd_2,
                           N, C, accumulate);
        // attention branch: dx -> datty -> dqkv -> dln_1 -> dx
        matmul_backward(dc, d[ATTPROJ_W], d[ATTPROJ_B], dx, a.atty, w[ATTPROJ_W], N, C, C,
                        accumulate);
        attention_backward(dwide, dc, a.atty, a.lse, a.qkv, g->scratch, B, T, C, NH);
        matmul_backward(dc, d[QKV_W], d[QKV_B], dwide, a.ln_1, w[QKV_W], N, C, 3 * C, accumulate);
        layernorm_backward(dx, d[LN_1_W], d[LN_1_B], dc, a.x, w[LN_1_W], a.mean_1, a.rstd_1,
                           N, C, accumulate);
    }
    // A tied head has just written its part of dwte; the embeddings add theirs.
    float *dwte = tensor(g, g->grads, t->wte), *dwpe = tensor(g, g->grads, t->wpe);
    if (!accumulate) {
        memset(dwpe, 0, t->tensors[t->wpe].size * sizeof(float));
        if (!g->config.tied) memset(dwte, 0, t->tensors[t->wte].size * sizeof(float));
    }
    encoder_backward(dwte, dwpe, dx, tokens, B, T, C);
}

// The sum of the squares of all gradients, in the blocks and the order that adam.h defines.
static double gpt2_grad_norm_squared(GPT2 *g) {
    size_t blocks = 0;
    for (int i = 0; i < g->shards.count; i++) {
        const Shard *s = &g->shards.shards[i];
        norm_block_sums(tensor(g, g->grads, s->tensor) + s->offset, s->length,
                        g->norm_sums + blocks);
        blocks += norm_blocks(s->length);
    }
    return norm_total(g->norm_sums, blocks);
}

// One AdamW step (adam.h) over everything that this process owns.
static void gpt2_update(GPT2 *g, const AdamStep *step) {
    for (int i = 0; i < g->shards.count; i++) {
        const Shard *s = &g->shards.shards[i];
        const size_t at = g->table.tensors[s->tensor].offset + s->offset;
        adam_update(g->params + at, g->m + at, g->v + at, g->grads + at, false, NULL, s->length,
                    step, s->decay);
    }
}

// =============================================================================================
// 3. Sampling

// One token at a time: the keys and values of the tokens so far are kept, so that a new token only
// computes its own row. Uses the same layers as training, with N = 1. The cache is the model's
// (g->sampling must be set), so there is one Decoder at a time.
typedef struct {
    GPT2 *g;
    size_t length;           // tokens seen
    float *x, *row, *qkv, *wide, *scores, *logits;  // (C), (C), (3C), (F), (context), (V)
} Decoder;

static Decoder decoder_open(GPT2 *g) {
    const GPT2Config *c = &g->config;
    return (Decoder){
        g, 0,
        (float *)alloc_or_fail(c->channels, sizeof(float), "sampling"),
        (float *)alloc_or_fail(c->channels, sizeof(float), "sampling"),
        (float *)alloc_or_fail(3 * c->channels, sizeof(float), "sampling"),
        (float *)alloc_or_fail(c->ffn, sizeof(float), "sampling"),
        (float *)alloc_or_fail(c->context, sizeof(float), "sampling"),
        (float *)alloc_or_fail(c->vocab, sizeof(float), "sampling")};
}

static void decoder_close(Decoder *d) {
    free(d->x);
    free(d->row);
    free(d->qkv);
    free(d->wide);
    free(d->scores);
    free(d->logits);
}

// out (OC) = w (OC, C) . x + b: one row is bound by reading w, so there is nothing to block.
static void matvec(float *out, const float *x, const float *w, const float *b,
                   size_t C, size_t OC) {
    #pragma omp parallel for
    for (size_t o = 0; o < OC; o++) {
        float sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < C; c++) sum += x[c] * w[o * C + c];
        out[o] = b != NULL ? sum + b[o] : sum;
    }
}

// Feeds one token; d->logits (V) then predict the next one. d->length must be below the context.
static void decode(Decoder *d, int32_t token) {
    GPT2 *g = d->g;
    const size_t C = g->config.channels, F = g->config.ffn, NH = g->config.heads, HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    float mean, rstd;
    const float *wte = tensor(g, g->params, g->table.wte) + (size_t)token * C;
    const float *wpe = tensor(g, g->params, g->table.wpe) + d->length * C;
    for (size_t c = 0; c < C; c++) d->x[c] = wte[c] + wpe[c];
    for (size_t l = 0; l < g->config.layers; l++) {
        float *w[LAYER_TENSORS];
        layer_tensors(g, g->params, l, w);
        float *keys = g->keys + l * g->config.context * C;
        float *values = g->values + l * g->config.context * C;
        layernorm_forward(d->row, &mean, &rstd, d->x, w[LN_1_W], w[LN_1_B], 1, C);
        matvec(d->qkv, d->row, w[QKV_W], w[QKV_B], C, 3 * C);
        memcpy(keys + d->length * C, d->qkv + C, C * sizeof(float));
        memcpy(values + d->length * C, d->qkv + 2 * C, C * sizeof(float));
        for (size_t h = 0; h < NH; h++) {
            const float *q = d->qkv + h * HS;
            float max = -INFINITY, sum = 0;
            for (size_t u = 0; u <= d->length; u++) {
                float dot = 0;
                #pragma omp simd reduction(+ : dot)
                for (size_t i = 0; i < HS; i++) dot += q[i] * keys[u * C + h * HS + i];
                d->scores[u] = dot * scale;
                max = fmaxf(max, d->scores[u]);
            }
            float *out = d->row + h * HS;
            memset(out, 0, HS * sizeof(float));
            for (size_t u = 0; u <= d->length; u++) {
                const float p = exp_f32(d->scores[u] - max);
                sum += p;
                for (size_t i = 0; i < HS; i++) out[i] += p * values[u * C + h * HS + i];
            }
            for (size_t i = 0; i < HS; i++) out[i] /= sum;
        }
        matvec(d->qkv, d->row, w[ATTPROJ_W], w[ATTPROJ_B], C, C);
        residual_forward(d->x, d->qkv, C);
        layernorm_forward(d->row, &mean, &rstd, d->x, w[LN_2_W], w[LN_2_B], 1, C);
        matvec(d->wide, d->row, w[FC_W], w[FC_B], C, F);
        activation_forward(d->wide, d->wide, F, g->config.activation);
        matvec(d->row, d->wide, w[FCPROJ_W], w[FCPROJ_B], F, C);
        residual_forward(d->x, d->row, C);
    }
    layernorm_forward(d->row, &mean, &rstd, d->x, tensor(g, g->params, g->table.ln_f_w),
                      tensor(g, g->params, g->table.ln_f_b), 1, C);
    matvec(d->logits, d->row, tensor(g, g->params, g->table.lm_head), NULL, C, g->config.vocab);
    d->length++;
}

static int compare_descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// Draws from softmax(logits / temperature) over the top_k largest (0: all) of n logits; uniform is
// in [0, 1). Temperature 0 (below 1e-6) takes the largest. Overwrites the logits.
static int32_t sample(float *logits, size_t n, double temperature, size_t top_k, float uniform) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature < 1e-6) return (int32_t)best;
    float least = -INFINITY;
    if (top_k > 0 && top_k < n) {
        float *sorted = (float *)alloc_or_fail(n, sizeof(float), "sampling");
        memcpy(sorted, logits, n * sizeof(float));
        qsort(sorted, n, sizeof(float), compare_descending);
        least = sorted[top_k - 1];
        free(sorted);
    }
    const float max = logits[best];
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        logits[i] = logits[i] < least ? 0 : expf((logits[i] - max) / (float)temperature);
        sum += logits[i];
    }
    double left = uniform * sum;
    for (size_t i = 0; i < n; i++) {
        if (logits[i] > 0 && left < logits[i]) return (int32_t)i;
        left -= logits[i];
    }
    return (int32_t)best;  // rounding used up the sum
}

// Prints the prompt and its continuation of `count` tokens to stdout. `number` tells the samples
// of one run apart: the same seed and number give the same text.
static void generate(GPT2 *g, const Tokenizer *tokenizer, const char *prompt, size_t count,
                     double temperature, size_t top_k, uint64_t seed, uint32_t number) {
    const size_t context = g->config.context;
    const size_t V = min_size(g->config.vocab, tokenizer_vocab(tokenizer));
    const size_t bytes = strlen(prompt);
    uint32_t *tokens = (uint32_t *)alloc_or_fail(bytes + count + 1, sizeof(uint32_t), "prompt");
    size_t n = 0;
    Error err;
    if (!tokenizer_encode(tokenizer, prompt, bytes, tokens, &n, &err)) die("%s", err.text);
    const int eot = tokenizer_eot(tokenizer);
    if (n == 0) tokens[n++] = eot >= 0 ? (uint32_t)eot : (uint32_t)'\n';
    for (size_t i = 0; i < n; i++)
        if (tokens[i] >= V)
            die("the prompt has token %u, the model knows 0 to %zu", tokens[i], V - 1);
    fputs(prompt, stdout);
    Decoder d = decoder_open(g);
    size_t fed = 0;
    for (size_t i = 0; i < count; i++) {
        // When the context is full, start again from its second half.
        if (d.length == context) { d.length = 0; fed = n - (context + 1) / 2; }
        if (d.length == 0 && n - fed > context) fed = n - context;
        while (fed < n) decode(&d, (int32_t)tokens[fed++]);
        const Philox4 random = philox4x32(seed, (uint32_t)i, number, 0, RNG_SAMPLE);
        const int32_t next = sample(d.logits, V, temperature, top_k, rng_uniform(random, 0));
        if (next == eot) break;
        tokens[n++] = (uint32_t)next;
        size_t length;
        const char *text = tokenizer_token(tokenizer, (uint32_t)next, &length);
        fwrite(text, 1, length, stdout);
        fflush(stdout);
    }
    printf("\n");
    decoder_close(&d);
    free(tokens);
}

// =============================================================================================
// 4. A run

static volatile sig_atomic_t stop_requested;  // SIGINT or SIGTERM came: finish the step, save, exit

static void request_stop(int signal_number) { stop_requested = signal_number; }

// What a run has read from its command line and its files before the first step.
typedef struct {
    Options o;
    GPT2 g;
    Tokenizer *tokenizer;          // NULL: token files, and nobody said how they were made
    TokenData data, val_data;      // files that were opened
    TokenData train_view, val_view;
    Loader train, val;             // .sequences 0: there is no such data
    size_t B, T;
    int32_t *inputs, *targets;     // (B, T)
    const char *saved_model;       // --model is this file or directory; NULL: a preset, or --resume
    TrainState state;              // where a resumed run stands
    char resume_from[PATH_MAX];    // its checkpoint
} Run;

// Fills rows [0, rows) of r->inputs and r->targets from the sequences at `position` and after.
static bool read_batch(Run *r, const Loader *loader, uint64_t position, size_t rows, Error *err) {
    for (size_t b = 0; b < rows; b++)
        if (!loader_sequence(loader, position + b, r->g.config.vocab, r->inputs + b * r->T,
                             r->targets + b * r->T, err))
            return false;
    return true;
}

// *loss = the mean over the first --eval-batches batches of the held-out sequences (all of them if
// there are fewer): always the same ones, in the same order.
static bool evaluate(Run *r, double *loss, Error *err) {
    const size_t sequences = min_size(r->val.sequences, r->o.eval_batches * r->B);
    double sum = 0;
    for (size_t first = 0; first < sequences; first += r->B) {
        const size_t rows = min_size(r->B, sequences - first);
        if (!read_batch(r, &r->val, first, rows, err)) return false;
        gpt2_forward(&r->g, r->inputs, rows, r->T);
        sum += gpt2_head(&r->g, r->targets, 0, false, NULL) * (double)rows;
    }
    *loss = sum / (double)sequences;
    return true;
}

// The model's shape: from the checkpoint to resume, from a saved model, or from a preset.
static void choose_model(Run *r) {
    Options *o = &r->o;
    GPT2Config *c = &r->g.config;
    Error err;
    if (o->resume) {
        if (!state_find(o->out, &r->state, c, r->resume_from, &err)) die("%s", err.text);
        if (!options_resume(o, r->state.options, &err)) die("%s", err.text);
        return;
    }
    if (gpt2_preset(c, o->model)) {
        if (o->layers) c->layers = o->layers;
        if (o->channels) c->channels = o->channels;
        if (o->heads) c->heads = o->heads;
        if (o->context) c->context = o->context;
    } else if (path_exists(o->model)) {
        r->saved_model = o->model;
        if (!model_config_load(o->model, c, &err)) die("%s", err.text);
        if (o->layers || o->channels || o->heads || o->context || o->vocab)
            die("--layers, --channels, --heads, --context and --vocab describe a new model; "
                "%s has its own", o->model);
    } else {
        die("--model %s: no such preset (nano, gpt2, gpt2-xl, d12, opt-125m, ..; see --help), "
            "and no such file", o->model);
    }
}

// The tokenizer: as told, or the one saved with the model, or bytes.
static void choose_tokenizer(Run *r) {
    const Options *o = &r->o;
    const char *saved = o->resume ? o->out : r->saved_model;
    char home[PATH_MAX] = ".", merges[PATH_MAX] = "";
    Error err;
    if (saved != NULL) snprintf(home, sizeof home, "%s", saved);
    if (saved != NULL && !path_is_directory(saved)) {  // a file: what lies beside it
        char *slash = strrchr(home, '/');
        if (slash == NULL) snprintf(home, sizeof home, ".");
        else slash[slash == home] = '\0';
    }
    if (saved != NULL) path_join(merges, home, "merges.txt");
    const char *dir = o->tokenizer != NULL ? o->tokenizer : path_exists(merges) ? home : "bytes";
    if (strcmp(dir, "bytes") != 0) {
        if ((r->tokenizer = tokenizer_load(dir, &err)) == NULL) die("%s", err.text);
    } else if (o->tokenizer != NULL || saved == NULL || r->g.config.vocab == 256) {
        r->tokenizer = tokenizer_bytes();
    }
    // else: a saved model with tokens that nobody explained; token files will do for it
}

// Tells one training text from another without reading all of it: by sizes and both ends of files.
static uint64_t data_hash(const TokenData *d) {
    uint64_t hash = 0;
    for (size_t i = 0; i < d->count; i++) {
        const TokenSegment *s = &d->segments[i];
        const size_t bytes = s->count * (size_t)s->width, end = min_size(bytes, 1 << 16);
        const uint64_t parts[] = {hash, bytes, hash_bytes(s->tokens, end),
                                  hash_bytes((const char *)s->tokens + bytes - end, end)};
        hash = hash_bytes(parts, sizeof parts);
    }
    return hash;
}

// Opens --data and --val, cuts off the held-out tenth if there is no --val, and settles the
// vocabulary of a new model: --vocab, or what the tokenizer needs.
static void open_data(Run *r) {
    const Options *o = &r->o;
    GPT2Config *c = &r->g.config;
    Error err;
    if (o->data != NULL && !data_open(&r->data, o->data, r->tokenizer, &err))
        die("%s%s", err.text, r->tokenizer == NULL ? ": name it with --tokenizer DIR" : "");
    const bool token_files = o->data != NULL && r->data.segments[0].map_bytes > 0;
    if (token_files && o->tokenizer == NULL && r->tokenizer != NULL
        && tokenizer_vocab(r->tokenizer) == 256) {
        tokenizer_free(r->tokenizer);  // it was a guess: token files are GPT-2's unless told
        r->tokenizer = NULL;
    }
    const size_t needed = r->tokenizer != NULL ? tokenizer_vocab(r->tokenizer) : 50257;
    if (!o->resume && r->saved_model == NULL) {
        if (o->vocab) c->vocab = o->vocab;
        else if (needed == 256 || c->vocab < needed) c->vocab = needed;
    }
    if (!gpt2_finish(c, &err)) die("%s", err.text);
    if (r->tokenizer != NULL && needed > c->vocab)
        die("the tokenizer has %zu tokens and the model only %zu", needed, c->vocab);
    if (o->val != NULL && !data_open(&r->val_data, o->val, r->tokenizer, &err)) die("%s", err.text);
    if (o->data != NULL) {
        data_split(&r->data, o->val == NULL ? 0.1 : 0, &r->train_view, &r->val_view);
        if (!loader_init(&r->train, &r->train_view, r->T, o->seed, true, &err)) die("%s", err.text);
    }
    const TokenData *val = o->val != NULL ? &r->val_data : &r->val_view;
    if (val->count == 0 || !loader_init(&r->val, val, r->T, o->seed, false, &err)) {
        if (o->val != NULL) die("%s", err.text);
        r->val.sequences = 0;
    }
    const uint64_t hash = data_hash(&r->data);
    if (o->resume && o->data != NULL && hash != r->state.data_hash)
        fprintf(stderr, "tide: the data is not what this run began with: it goes on, but not with "
                        "the same bits\n");
    r->state.data_hash = hash;
}

// Weights for the first step: the checkpoint's, the saved model's, or fresh ones.
static void load_weights(Run *r) {
    GPT2 *g = &r->g;
    Error err;
    if (r->o.resume) {
        const StatePart parts[] = {{"param", g->params}, {"m", g->m}, {"v", g->v}};
        if (!state_load(r->resume_from, &g->config, &g->table, parts, 3, &err))
            die("%s", err.text);
    } else if (r->saved_model != NULL) {
        if (!model_load(r->saved_model, &g->config, &g->table, g->params, &err))
            die("%s", err.text);
    } else {
        gpt2_init(&g->table, g->params, r->o.seed);
    }
}

static void save_tokenizer(Run *r) {
    Error err;
    if (r->tokenizer != NULL && !tokenizer_save(r->tokenizer, r->o.out, &err)) fail("%s", err.text);
}

// Leaves weights that other programs load in --out, and with `state` a checkpoint to resume from.
// Each is whole or not there; an error ends the run, and what was saved before stays.
static void save(Run *r, size_t step, bool state) {
    GPT2 *g = &r->g;
    Error err;
    const int eot = r->tokenizer != NULL ? tokenizer_eot(r->tokenizer) : -1;
    if (state) {
        const StatePart parts[] = {{"param", g->params}, {"m", g->m}, {"v", g->v}};
        r->state.step = step;
        r->state.seed = r->o.seed;
        r->state.data_position = step * r->o.accum * r->B;
        if (!state_save(r->o.out, &r->state, &g->config, &g->table, parts, 3, (int)r->o.keep, &err))
            fail("%s", err.text);
    }
    const bool bf16 = r->o.save_dtype == SAVE_BF16;
    if (!model_save(r->o.out, &g->config, &g->table, g->params, bf16, eot, &err))
        fail("%s", err.text);
}

static bool state_exists(const char *out) {
    char dir[PATH_MAX];
    StateEntry *entries;
    path_join(dir, out, "checkpoints");
    const size_t count = state_list(dir, &entries, false);
    free(entries);
    return count > 0;
}

// --dump: the loss, logits and gradients of the first batch, for other implementations to check.
static void dump(Run *r) {
    GPT2 *g = &r->g;
    const size_t N = r->B * r->T;
    Error err;
    if (!read_batch(r, &r->train, 0, r->B, &err)) die("%s", err.text);
    gpt2_forward(g, r->inputs, r->B, r->T);
    const double loss = gpt2_head(g, r->targets, 1.0f / (float)N, false, g->all_logits);
    gpt2_backward(g, r->inputs, false);
    if (!dump_save(r->o.dump, &g->config, &g->table, r->B, r->T, r->inputs, r->targets, loss,
                   g->all_logits, g->grads, &err))
        fail("%s", err.text);
    printf("loss %.6f; dump written to %s\n", loss, r->o.dump);
}

// --steps 0: evaluate if there is data, sample if there is a prompt, convert if there is an --out.
static void use_model(Run *r) {
    const Options *o = &r->o;
    double loss;
    Error err;
    if (r->g.sampling) {
        if (r->tokenizer == NULL) die("--prompt needs --tokenizer: the model came without one");
        generate(&r->g, r->tokenizer, o->prompt, o->sample_tokens, o->temperature, o->top_k,
                 o->seed, 0);
    } else if (o->data != NULL || o->val != NULL) {
        if (r->val.sequences == 0)
            die("the held-out tenth of %s is shorter than --seq %zu: name a file with --val",
                o->data, r->T);
        if (!evaluate(r, &loss, &err)) die("%s", err.text);
        printf("val loss %.6f\n", loss);
    }
    if (option_given(o, "out") && !o->resume) {
        save_tokenizer(r);
        save(r, 0, false);
    }
}

// Refuses an --out or a --dump that cannot be written, and an --out that holds another run, before
// anything is computed.
static void check_output(const Run *r) {
    const Options *o = &r->o;
    char file[PATH_MAX];
    if (o->dump != NULL && !path_is_writable(o->dump))
        die("--dump %s: %s", o->dump, strerror(errno));
    if (o->dump != NULL || (o->steps == 0 && (o->resume || !option_given(o, "out")))) return;
    if (!o->resume && state_exists(o->out))
        die("%s holds the checkpoints of an earlier run: continue it with --resume, or choose "
            "another --out", o->out);
    if (!make_directories(o->out)) die("--out %s: %s", o->out, strerror(errno));
    path_join(file, o->out, "log.jsonl");
    if (!path_is_writable(file)) die("--out %s: %s", o->out, strerror(errno));
}

// Says what is going to be trained on what.
static void describe(const Run *r) {
    const GPT2Config *c = &r->g.config;
    printf("model: %zu layers, %zu heads, %zu channels, context %zu, vocabulary %zu: "
           "%.2f M parameters\n", c->layers, c->heads, c->channels, c->context, c->vocab,
           1e-6 * (double)r->g.table.parameters);
    if (r->o.steps == 0 || r->o.dump != NULL) return;
    const size_t sequences = r->o.accum * r->B;
    printf("data: %zu training tokens, %.2f epochs in %zu steps of %zu tokens; "
           "%zu validation tokens\n", r->train_view.tokens,
           (double)r->o.steps * (double)sequences / (double)r->train.sequences, r->o.steps,
           sequences * r->T, r->val.sequences > 0 ? r->val.data->tokens : 0);
}

#ifndef TESTING
int main(int argc, char **argv) {
    Run run, *r = &run;
    memset(r, 0, sizeof *r);
    Options *o = &r->o;
    GPT2 *g = &r->g;
    Error err;

    // What to train, on what. Everything that can be wrong with the input is found here.
    options_parse(o, argc, argv, false);
    choose_model(r);
#ifdef _OPENMP
    if (o->threads > 0) omp_set_num_threads((int)o->threads);
#endif
    r->T = o->seq > 0 ? o->seq : g->config.context;
    if (r->T > g->config.context)
        die("--seq %zu is longer than the model's context of %zu", r->T, g->config.context);
    o->seq = r->T;  // what "0" meant, for the checkpoint
    r->B = o->batch;
    choose_tokenizer(r);
    open_data(r);
    g->table = gpt2_table(&g->config);
    g->shards = gpt2_shards_all(&g->table);
    const size_t step_tokens = r->B * r->T * o->accum;
    g->dumping = o->dump != NULL;
    g->training = o->steps > 0 || g->dumping;
    const bool only_sampling = !g->training && option_given(o, "prompt");
    g->sampling = only_sampling || (o->steps > 0 && o->sample_every > 0);
    const bool batches = g->training || (!only_sampling && (o->data != NULL || o->val != NULL));
    g->max_B = batches ? r->B : 1;
    g->max_T = batches ? r->T : 1;
    check_output(r);
    if (!only_sampling) describe(r);  // else stdout gets the sample and nothing more
    const size_t planned = gpt2_plan(g, memory_resident(), only_sampling);
    gpt2_allocate(g);
    r->inputs = (int32_t *)alloc_or_fail(r->B * r->T, sizeof(int32_t), "tokens");
    r->targets = (int32_t *)alloc_or_fail(r->B * r->T, sizeof(int32_t), "tokens");
    load_weights(r);
    if (o->dump != NULL || o->steps == 0) {
        if (o->dump != NULL) dump(r);
        else use_model(r);
        return 0;
    }
    if (!options_to_json(o, r->state.options, sizeof r->state.options))
        die("the options are too long for a checkpoint: shorten --prompt or the paths");
    Log log;
    if (!o->resume) save_tokenizer(r);
    if (!log_open(&log, o->out, r->state.step, &err)) die("%s", err.text);
    const double peak_flops = 1e9 * fma_peak_gflops(0.05);
    const double step_flops = gpt2_flops_per_token(&g->config, r->T) * (double)step_tokens;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = request_stop;
    action.sa_flags = (int)SA_RESETHAND;  // a second signal ends the program at once
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    size_t step = r->state.step;  // steps done
    while (step < o->steps && !stop_requested) {
        const double start = seconds_now();
        step++;

        // Gradient of the mean loss over all tokens of the step, one micro-batch after the other.
        double loss = 0;
        for (size_t micro = 0; micro < o->accum; micro++) {
            const uint64_t position = ((step - 1) * o->accum + micro) * r->B;
            if (!read_batch(r, &r->train, position, r->B, &err)) {  // a damaged token file
                if (step - 1 > r->state.step) save(r, step - 1, true);
                die("%s", err.text);
            }
            gpt2_forward(g, r->inputs, r->B, r->T);
            loss += gpt2_head(g, r->targets, 1.0f / (float)step_tokens, micro > 0, NULL)
                    / (double)o->accum;
            gpt2_backward(g, r->inputs, micro > 0);
        }

        // Clip to --clip by the global norm, and update.
        const double norm_squared = gpt2_grad_norm_squared(g), norm = sqrt(norm_squared);
        if (!isfinite(loss) || !isfinite(norm))
            fail("the loss is %g and the gradient norm %g at step %zu: stopped before the update; "
                 "try a lower --lr (checkpoints in %s are intact)", loss, norm, step, o->out);
        const double lr = schedule_lr(o, step);
        const AdamStep adam = adam_step_prepare(lr, o->beta1, o->beta2, o->eps, o->weight_decay,
                                                step, clip_scale(norm_squared, o->clip));
        gpt2_update(g, &adam);

        const double seconds = seconds_now() - start;
        if (!log_step(&log, step, o->steps, loss, norm, lr, 1e3 * seconds,
                      (double)step_tokens / seconds, 100 * step_flops / seconds / peak_flops, &err))
            fail("%s", err.text);

        const bool last = step == o->steps;
        if (r->val.sequences > 0 && o->eval_every > 0 && (step % o->eval_every == 0 || last)) {
            double val_loss;
            if (!evaluate(r, &val_loss, &err)) die("%s", err.text);
            if (!log_eval(&log, step, val_loss, &err) || !log_plot(&log, &err))
                fail("%s", err.text);
        }
        if (r->tokenizer != NULL && o->sample_every > 0 && (step % o->sample_every == 0 || last)) {
            log_clear(&log);
            printf("--- sample\n");
            generate(g, r->tokenizer, o->prompt != NULL ? o->prompt : "", o->sample_tokens,
                     o->temperature, o->top_k, o->seed, (uint32_t)step);
            printf("---\n");
        }
        if (o->save_every > 0 && step % o->save_every == 0) save(r, step, true);
    }
    // The weights once more even if this step is saved: a kill may have come between the two.
    if (step > 0) save(r, step, step != r->state.step);
    if (!log_plot(&log, &err)) fail("%s", err.text);
    log_clear(&log);
    if (step < o->steps)
        printf("stopped by signal %d after step %zu; continue with --resume --out %s\n",
               (int)stop_requested, step, o->out);
    else
        printf("done: %zu steps; model.safetensors, log.jsonl and loss.svg are in %s\n"
               "try it: ./train_gpt2 --model %s --steps 0 --prompt \"...\"\n",
               step, o->out, o->out);
    printf("memory: at most %.1f MiB, planned %.1f MiB\n", (double)memory_peak() / (1 << 20),
           (double)planned / (1 << 20));
    log_close(&log);
    return 0;
}
#endif
