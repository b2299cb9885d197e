// train_gpt2.c: train a GPT-2 (or OPT) on a CPU, in fp32. The whole of it, in one file.
//
//   1. The layers, forward and backward, in the order in which a token meets them
//   2. The model: memory, forward, backward, update
//   3. Sampling
//   4. Evaluation and the training loop; run.h has what surrounds them
//
// This is the reference that everything else in tide.c is checked against, so every layer is the
// plain loop that defines it. Two of them cannot stay plain and be fast, and have their definition
// beside them: the matrix product (matmul.h) and attention (attention_*_plain, below).
//
// Letters for shapes, here and everywhere: B sequences of T tokens in a micro-batch, N = B*T rows,
// C channels, NH heads of HS = C/NH channels, F the MLP's width, V the vocabulary, L the layers.
// All arrays are row-major fp32. A loop never splits a sum over threads: each output element is
// summed by one thread in one order, so that the bits do not depend on the number of threads.

#include "tide/util.h"
#include "adam.h"
#include "tide/model.h"
#include "tide/matmul.h"
#include "tide/run.h"
#include "tide/sample.h"
#include "tide/vmath.h"
#include "tide/zen_run.h"
#include "zo.h"
#include <math.h>
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
            #pragma omp simd
            for (size_t c = 0; c < width; c++) {
                sum_w[c] += d[c] * ((x[c] - mean[n]) * rstd[n]);
                sum_b[c] += d[c];
            }
        }
        #pragma omp simd
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
            #pragma omp simd
            for (size_t o = 0; o < width; o++) sum[o] += dout[n * OC + first + o];
        #pragma omp simd
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
            const float max = max_f32(s, visible);
            float sum = 0;
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
                // To the end of the last vector, and what is not visible is cleared after that: the
                // last few one by one would take as long as all others.
                const size_t whole = min_size(round_up(visible, 16), keys);
                const float l = lse[(b * NH + h) * T + first + r];
                float *pr = p + r * keys, *dr = ds + r * keys;
                float d_dot_o = 0;
                #pragma omp simd reduction(+ : d_dot_o)
                for (size_t i = 0; i < HS; i++) d_dot_o += d[r * C + i] * o[r * C + i];
                #pragma omp simd
                for (size_t u = 0; u < whole; u++) {
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
        for (size_t i = 0; i < n; i++) {
            const float dout = d[i];  // read for all: a loop that reads some is no vector code
            d[i] = inp[i] > 0 ? dout : 0;
        }
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
        const float max = max_f32(z, V), target = z[targets[n]];
        float sum = 0;
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
    size_t max_B, max_T;        // room in the buffers of a micro-batch
    size_t B, T;                // what the last forward used
    bool training;              // false: no gradients, no moments, one layer's activations
    bool sampling;              // room for the key/value cache
    bool dumping;               // room for all logits
    bool zeroth;                // zeroth-order training: params are theta, perturbed
    bool zenflow;               // params are what is shown of the newest weights (zenflow.h)
    int32_t *inputs, *targets;                   // (B, T): a micro-batch's tokens
    float *params, *grads, *m, *v;               // arenas of table.elements floats
    float *theta;                                // of zeroth-order training: not perturbed
    float *master, *acc;                         // of zenflow: newest weights, sums of gradients
    ZenReference zen;
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
    #define BUFFER(purpose, count, field) \
        list[n++] = (Buffer){purpose, (count) * sizeof *g->field, &g->field, true}
    if (g->zeroth) BUFFER("parameters", P, theta);
    BUFFER(g->zeroth ? "perturbed parameters" : "parameters", P, params);
    BUFFER("activations", N, inputs);
    BUFFER("activations", N, targets);
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
        if (g->zenflow) BUFFER("newest parameters", P, master);
        if (g->zenflow) BUFFER("sums of gradients", P, acc);
        BUFFER("backward", N * C, dx);
        BUFFER("backward", N * C, dc);
        BUFFER("backward", N * (F > 3 * C ? F : 3 * C), dwide);
        BUFFER("scratch", blocks, norm_sums);
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
    int n = gpt2_buffers(g, list);
    list[n++] = (Buffer){"data and program", other, NULL, false};
    size_t total = 0;
    for (int i = 0; i < n; i++) total += list[i].bytes;
    if (!quiet) plan_print("CPU", list, n, total, SIZE_MAX, 1);
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
        buffer_set(&list[i], alloc_or_fail(list[i].bytes, 1, list[i].purpose));
}

static void gpt2_free(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    for (int i = 0; i < n; i++) free(buffer_get(&list[i]));
    zen_reference_free(&g->zen);
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

// The other head: which of a few words comes next, at one position of each sequence? where (B, 2):
// the position, and the index of the right word. Returns the mean over the sequences of the
// cross-entropy over these words' logits alone; MeZO's classification loss, when each label is one
// token. Adds to *right how often the right word is the likeliest.
static double gpt2_classify(GPT2 *g, const int32_t *word, int words, const int32_t *where,
                            size_t *right) {
    const size_t C = g->config.channels;
    double sum = 0;
    for (size_t b = 0; b < g->B; b++) {
        const float *x = g->ln_f + (b * g->T + (size_t)where[2 * b]) * C;
        const int label = where[2 * b + 1];
        float logit[TASK_LABELS], max = -INFINITY, total = 0;
        int best = 0;
        for (int k = 0; k < words; k++) {
            const float *w = tensor(g, g->params, g->table.lm_head) + (size_t)word[k] * C;
            logit[k] = 0;
            for (size_t c = 0; c < C; c++) logit[k] += x[c] * w[c];
            max = fmaxf(max, logit[k]);
            if (logit[k] > logit[best]) best = k;
        }
        for (int k = 0; k < words; k++) total += expf(logit[k] - max);
        sum += logf(total) + max - logit[label];
        *right += best == label;
    }
    return sum / (double)g->B;
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

// Zeroth-order training (zo.h): params = theta + scale z, with z the direction of this query of
// this step. scale is eps, -eps, or 0.
static void gpt2_perturb(GPT2 *g, const ZoConfig *zo, size_t step, int query, float scale) {
    if (scale == 0) {
        memcpy(g->params, g->theta, g->table.elements * sizeof(float));
        return;
    }
    for (int i = 0; i < g->shards.count; i++) {
        const Shard *s = &g->shards.shards[i];
        const size_t at = g->table.tensors[s->tensor].offset + s->offset;
        zo_perturb(g->params + at, g->theta + at, shard_logical(&g->table, s), zo, step, query,
                   scale, (uint32_t)s->tensor, s->offset);
    }
}

// theta, and params with it, after an update.
static void gpt2_zo_update(GPT2 *g, const ZoConfig *zo, const ZoUpdate *u) {
    for (int i = 0; i < g->shards.count; i++) {
        const Shard *s = &g->shards.shards[i];
        zo_update(g->theta + g->table.tensors[s->tensor].offset + s->offset,
                  shard_logical(&g->table, s), zo, u, (uint32_t)s->tensor, s->decay, s->offset);
    }
    gpt2_perturb(g, zo, 0, 0, 0);
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

// Prints --prompt and its continuation. `number` tells the samples of one run apart.
static void generate(GPT2 *g, const Run *r, uint32_t number) {
    Sample s = sample_begin(&r->o, r->tokenizer, &g->config, number);
    Decoder d = decoder_open(g);
    size_t first = s.first;  // the token at position 0
    do {
        if (s.first != first) { first = s.first; d.length = 0; }  // the window has moved
        while (first + d.length < s.n) decode(&d, s.tokens[first + d.length]);
    } while (sample_next(&s, d.logits));
    decoder_close(&d);
    sample_end(&s);
}

// =============================================================================================
// 4. Evaluation and the training loop

// The loss of g->inputs: per token, or, with --labels, per sentence; `right` is then increased by
// how many labels are the likeliest.
static double gpt2_loss(GPT2 *g, const Run *r, size_t rows, size_t *right) {
    gpt2_forward(g, g->inputs, rows, r->T);
    const Task *t = run_task(r);
    if (r->task) return gpt2_classify(g, t->word, t->labels, g->targets, right);
    return gpt2_head(g, g->targets, 0, false, NULL);
}

// The mean loss over the first --eval-batches batches of the held-out sequences (all of them if
// there are fewer): always the same ones, in the same order. It goes to the log; NULL: printed.
static bool evaluate(GPT2 *g, const Run *r, Log *log, size_t step, Error *err) {
    const size_t sequences = min_size(r->val.sequences, r->o.eval_batches * r->B);
    double sum = 0;
    size_t right = 0;
    for (size_t first = 0; first < sequences; first += r->B) {
        const size_t rows = min_size(r->B, sequences - first);
        if (!run_batch(r, &r->val, first, rows, g->inputs, g->targets, err)) return false;
        sum += gpt2_loss(g, r, rows, &right) * (double)rows;
    }
    run_evaluated(r, log, step, sum / (double)sequences, (double)right / (double)sequences);
    return true;
}

// The gradient of the mean loss over all tokens of the step, one micro-batch after the other; then
// it is clipped to --clip by its global norm, and AdamW. False if a token file is damaged.
static bool adamw_step(GPT2 *g, const Run *r, size_t step, double lr, double *loss, double *norm,
                       Error *err) {
    const Options *o = &r->o;
    *loss = 0;
    for (size_t micro = 0; micro < o->accum; micro++) {
        const uint64_t position = run_position(r, step, micro);
        if (!run_batch(r, &r->train, position, r->B, g->inputs, g->targets, err)) return false;
        gpt2_forward(g, g->inputs, r->B, r->T);
        *loss += gpt2_head(g, g->targets, 1.0f / (float)r->step_tokens, micro > 0, NULL)
                 / (double)o->accum;
        gpt2_backward(g, g->inputs, micro > 0);
    }
    const double norm_squared = gpt2_grad_norm_squared(g);
    *norm = sqrt(norm_squared);
    if (!isfinite(*loss) || !isfinite(*norm))
        fail("the loss is %g and the gradient norm %g at step %zu: stopped before the update; "
             "try a lower --lr (what was saved in %s before is intact)", *loss, *norm, step,
             o->out);
    const float scale = clip_scale(norm_squared, o->clip);
    if (g->zenflow) {
        const ZenRates rates = zen_rates(o, step);
        zen_reference_step(&g->zen, g->grads, scale, &rates);
        return true;
    }
    const AdamStep adam = adam_step_prepare(lr, o->beta1, o->beta2, o->eps, o->weight_decay, step,
                                            scale);
    gpt2_update(g, &adam);
    return true;
}

// MeZO (zo.h): two losses for each direction give the projected gradient, and the weights go that
// much down it. *loss and *norm: see zo_estimate(). False if a token file is damaged.
static bool mezo_step(GPT2 *g, const Run *r, const ZoConfig *zo, size_t step, double lr,
                      double *loss, double *norm, Error *err) {
    const Options *o = &r->o;
    double side[2 * ZO_QUERIES] = {0};
    ZoUpdate update;
    size_t right = 0;
    for (int i = 0; i < 2 * zo->queries; i++) {
        gpt2_perturb(g, zo, step, i / 2, i % 2 == 0 ? zo->eps : -zo->eps);
        for (size_t micro = 0; micro < o->accum; micro++) {
            const uint64_t position = run_position(r, step, micro);
            if (!run_batch(r, &r->train, position, r->B, g->inputs, g->targets, err)) return false;
            side[i] += gpt2_loss(g, r, r->B, &right) / (double)o->accum;
        }
    }
    zo_estimate(&update, zo, step, lr, o->weight_decay, side, loss, norm);
    gpt2_zo_update(g, zo, &update);
    return true;
}

// Saves the run after `step` steps: its weights and a checkpoint.
static void save(GPT2 *g, Run *r, size_t step, const RunState *what) {
    const ZenReference *z = &g->zen;
    if (g->zenflow) zen_save(r, step, &z->map, &z->clock, what);
    else run_save(r, step, true, what);
}

#ifndef TESTING
int main(int argc, char **argv) {
    Run run, *r = &run;
    GPT2 model, *g = &model;
    const Options *o = &r->o;
    Error err;

    // What to train, on what, and the memory for it.
    cpu_wait_briefly(argv);
    run_open(r, argc, argv, false);
    const bool mezo = o->optimizer == OPTIMIZER_MEZO;
    memset(g, 0, sizeof *g);
    g->config = r->config;
    g->table = r->table;
    g->shards = gpt2_shards_all(&g->table);
    g->training = r->training && !mezo;
    g->zeroth = mezo;
    g->zenflow = g->training && o->offload == OFFLOAD_ZENFLOW;
    const ZoConfig zo = {o->seed, (float)o->zo_eps, (int)o->zo_queries, o->zo_noise, ZO_FP32};
    g->sampling = r->sampling;
    g->dumping = o->dump != NULL;
    g->max_B = r->batches ? r->B : 1;
    g->max_T = r->batches ? r->T : 1;
    const size_t planned = gpt2_plan(g, memory_resident(), r->only_sampling);
    gpt2_allocate(g);
    float *const newest = g->zeroth ? g->theta : g->zenflow ? g->master : g->params;
    StateSpan spans[ZEN_PARTS + 1];
    const StatePart parts[ZEN_PARTS] = {
        part_whole("param", &spans[0], &g->table, newest, NULL),
        part_whole("m", &spans[1], &g->table, g->m, NULL),
        part_whole("v", &spans[2], &g->table, g->v, NULL),
        part_whole("shown", &spans[3], &g->table, g->params, NULL)};
    const StatePart weights = part_whole("param", &spans[ZEN_PARTS], &g->table, newest, NULL);
    const RunState state = {parts, g->zenflow ? ZEN_PARTS : mezo ? 1 : 3, &weights};
    if (g->zenflow) {
        const RunState plain = {parts, 3, &weights};  // nothing is late yet
        run_load(r, zen_is_saved(r) ? &state : &plain);
        if (!zen_is_saved(r))
            memcpy(g->params, g->master, g->table.elements * sizeof(float));
        g->zen = zen_reference(r, g->master, g->m, g->v, g->params, g->acc);
        printf("zenflow: %s parameters, ", count_text((double)g->zen.map.elements).text);
        zen_describe(&g->zen.config, &g->zen.map, "", "");
        printf("\n");
    } else if (!mezo) {
        run_load(r, &state);
    } else {
        run_load(r, &state);
        gpt2_perturb(g, &zo, 0, 0, 0);
    }

    // --dump: the first batch's loss, logits and gradients. --steps 0: sample, evaluate, convert.
    if (o->dump != NULL) {
        if (!run_batch(r, &r->train, 0, r->B, g->inputs, g->targets, &err)) die("%s", err.text);
        gpt2_forward(g, g->inputs, r->B, r->T);
        const double loss = gpt2_head(g, g->targets, 1.0f / (float)(r->B * r->T), false,
                                      g->all_logits);
        gpt2_backward(g, g->inputs, false);
        run_dump(r, g->inputs, g->targets, loss, g->all_logits, g->grads);
        return 0;
    }
    if (o->steps == 0) {
        if (r->only_sampling) generate(g, r, 0);
        else if (r->batches && !evaluate(g, r, NULL, 0, &err)) die("%s", err.text);
        run_convert(r, &state);
        return 0;
    }

    Log log;
    run_begin(r, &log, &state);
    log.peak = 1e9 * fma_peak_gflops(0.05);
    size_t step = r->state.step;  // steps done
    while (step < o->steps && !run_stops(r)) {
        const double start = seconds_now(), lr = schedule_lr(o, step + 1);
        double loss, norm;
        step++;
        if (!(mezo ? mezo_step(g, r, &zo, step, lr, &loss, &norm, &err)
                   : adamw_step(g, r, step, lr, &loss, &norm, &err))) {
            r->ends = true;
            if (step > 1) save(g, r, step - 1, &state);
            die("%s", err.text);  // a damaged token file
        }
        if (g->zenflow) r->open = zen_is_open(&g->zen.config, &g->zen.clock);
        const double seconds = seconds_now() - start;
        if (step % 64 == 1 && run_step_flops(r) / seconds > 0.9 * log.peak)  // it may be more
            log.peak = fmax(log.peak, 1e9 * fma_peak_gflops(0.005));
        const bool updated = !mezo || zo_usable(loss, lr, norm);
        run_stepped(r, &log, step, loss, norm, lr, seconds, updated, "");
        if (run_evaluates(r, step) && !evaluate(g, r, &log, step, &err)) {
            r->ends = true;
            save(g, r, step, &state);
            die("%s", err.text);
        }
        if (run_samples(r, step)) {
            log_clear(&log);
            generate(g, r, (uint32_t)step);
        }
        if (run_saves(r, step)) save(g, r, step, &state);
    }
    // The weights once more even if this step is saved: a kill may have come between the two.
    r->ends = true;
    if (step > 0) save(g, r, step, &state);
    const int code = run_end(r, &log, step);
    printf("memory: at most %.1f MiB, planned %.1f MiB\n", (double)memory_peak() / (1 << 20),
           (double)planned / (1 << 20));
    return code;
}
#endif
