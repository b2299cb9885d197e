// train_gpt2.c: trains a GPT-2, OPT, LLaMA, Mistral, Qwen or SmolLM3 on a CPU, in fp32: one file.
//
//   1. The functions of a model, forward and backward, in the order in which a token passes them
//   2. The model: memory, forward, backward, update
//   3. One step of AdamW (or of ZenFlow's reference, zenflow.h), or of MeZO
//   4. The loop; tide/run/run.h has the functions around a step
//
// Everything else in tide.c is checked against this reference, so each function is the plain loop
// that defines it. Two of them would be slow as plain loops. The matrix product is in
// tide/cpu/matmul.h, with its definition. Attention's definition is here, and its fast form is in
// tide/cpu/attention.h.
//
// Letters for shapes, here and everywhere: B sequences of T tokens in a micro-batch, N = B*T rows,
// C channels, NH query heads and NKV key heads of HS channels (GPT-2: NKV = NH, HS = C/NH), F the
// MLP's width, V the vocabulary (Vp: rounded up to 128), L the layers. Derived widths: A = NH HS
// for all query heads; Q = (NH + 2 NKV) HS for q, k and v; M for the MLP's first product: F, or 2F
// with a gate. All arrays are row-major fp32. A loop never splits a sum over threads: one thread
// sums each output element, in one order, so that the bits do not depend on the number of threads.
//
// LLaMA differs from GPT-2 in five ways: its norms have no mean, positions rotate q and k, several
// query heads share a key head, the MLP has a gate with SiLU, and there are no biases. Qwen2 has
// biases of q, k and v; Qwen3 normalises each head of q and k; Mistral's attention sees a window;
// OPT has ReLU, and OPT-350M post-norm and narrow embeddings; SmolLM3 rotates in some layers only.

#include "tide/cpu/adam_fast.h"
#include "tide/cpu/attention.h"
#include "tide/cpu/labels.h"
#include "tide/run/evaluate.h"
#include "tide/run/zen_run.h"
#include "zo.h"

// =============================================================================================
// 1. The functions
//
// X_forward computes the outputs. X_backward computes the gradients of the loss with respect to
// inputs and weights from the gradient with respect to the outputs ("dout"). doc/backward.md
// derives each one. Gradients of weights are summed over the micro-batches of a step. The first
// micro-batch overwrites them (accumulate false).

// The number of channels that a thread sums at a time, in sums over rows: a few cache lines.
enum { SLICE = 64 };

// Stores the sums of a slice of channels, or adds them to the stored ones.
static void store_sums(float *out, const float *sum, size_t width, bool accumulate) {
    #pragma omp simd
    for (size_t i = 0; i < width; i++) out[i] = accumulate ? out[i] + sum[i] : sum[i];
}

// --- embeddings: out[b,t] = wte[token[b,t]] + wpe[t - begins[b,t]] ----------------------------
//
// If wte or wpe is NULL, out is the other summand alone. A sequence may hold several documents.
// Then begins[b,t] is the index at which the document of token t begins. Positions count from
// there, and attention sees nothing before it. begins NULL: a sequence is one document.

static size_t position(const int32_t *begins, size_t i, size_t T) {
    return begins == NULL ? i % T : i % T - (size_t)begins[i];
}

static void encoder_forward(float *out,               // (B, T, C)
                            const int32_t *tokens,    // (B, T)
                            const int32_t *begins,    // (B, T), or NULL
                            const float *wte,         // (V, C)
                            const float *wpe,         // (context, C)
                            size_t B, size_t T, size_t C) {
    #pragma omp parallel for
    for (size_t i = 0; i < B * T; i++) {
        const size_t token = (size_t)tokens[i] * C, row = position(begins, i, T) * C;
        float *o = out + i * C;
        if (wte == NULL) memcpy(o, wpe + row, C * sizeof *o);
        else if (wpe == NULL) memcpy(o, wte + token, C * sizeof *o);
        else for (size_t c = 0; c < C; c++) o[c] = wte[token + c] + wpe[row + c];
    }
}

// Adds to dwte and to dwpe; either may be NULL. Several rows may have the same token, so a thread
// takes some channels of all rows.
static void encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                             const int32_t *begins, size_t B, size_t T, size_t C) {
    #pragma omp parallel for
    for (size_t first = 0; first < C; first += SLICE) {
        const size_t last = min_size(first + SLICE, C);
        for (size_t i = 0; i < B * T; i++) {
            const size_t token = (size_t)tokens[i] * C, row = position(begins, i, T) * C;
            for (size_t c = first; c < last; c++) {
                if (dwte != NULL) dwte[token + c] += dout[i * C + c];
                if (dwpe != NULL) dwpe[row + c] += dout[i * C + c];
            }
        }
    }
}

// --- layer normalisation (Ba et al. 2016): out = (x - mean) / sqrt(var + eps) * w + b --------
//
// Or RMS norm (Zhang & Sennrich 2019): out = x / sqrt(mean of x^2 + eps) * w. This norm has no mean
// and no bias: mean, b and db are NULL.

static void layernorm_forward(float *out, float *mean, float *rstd,  // (N, C), (N), (N)
                              const float *inp, const float *w, const float *b,
                              size_t N, size_t C, float eps) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++)
        rstd[n] = normalise(out + n * C, mean == NULL ? NULL : &mean[n], inp + n * C, w, b, C, eps);
}

// Adds to dinp, where the gradient already is that the residual stream passes around the norm.
static void layernorm_backward(float *dinp, float *dw, float *db, const float *dout,
                               const float *inp, const float *w, const float *mean,
                               const float *rstd, size_t N, size_t C, bool accumulate) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *x = inp + n * C, *d = dout + n * C;
        float *dx = dinp + n * C;
        const float mu = mean == NULL ? 0 : mean[n], r = rstd[n];
        float d_mean = 0, d_dot = 0;  // means over channels: of d w; of d w (x - mean) r
        #pragma omp simd reduction(+ : d_mean, d_dot)
        for (size_t c = 0; c < C; c++) {
            d_mean += d[c] * w[c];
            d_dot += d[c] * w[c] * ((x[c] - mu) * r);
        }
        d_mean = mean == NULL ? 0 : d_mean / (float)C;
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
            const float mu = mean == NULL ? 0 : mean[n];
            #pragma omp simd
            for (size_t c = 0; c < width; c++) {
                sum_w[c] += d[c] * ((x[c] - mu) * rstd[n]);
                sum_b[c] += d[c];
            }
        }
        store_sums(dw + first, sum_w, width, accumulate);
        if (db != NULL) store_sums(db + first, sum_b, width, accumulate);
    }
}

// --- linear layer: out (N, OC) = inp (N, C) . w (OC, C)^T + b --------------------------------

static void matmul_forward(float *out, const float *inp, const float *w, const float *b,
                           size_t N, size_t C, size_t OC) {
    if (N == 1) gemv(OC, C, inp, w, out, b);
    else gemm(false, true, N, OC, C, inp, C, w, C, out, OC, b, false);
}

// Overwrites dinp (N, C), whose rows are `pitch` apart. db is NULL if there is no bias.
static void matmul_backward(float *dinp, size_t pitch, float *dw, float *db, const float *dout,
                            const float *inp, const float *w, size_t N, size_t C, size_t OC,
                            bool accumulate) {
    gemm(false, false, N, C, OC, dout, OC, w, C, dinp, pitch, NULL, false);
    gemm(true, false, OC, C, N, dout, OC, inp, C, dw, C, NULL, accumulate);
    if (db == NULL) return;
    #pragma omp parallel for
    for (size_t first = 0; first < OC; first += SLICE) {
        const size_t width = min_size(SLICE, OC - first);
        float sum[SLICE] = {0};
        for (size_t n = 0; n < N; n++)
            #pragma omp simd
            for (size_t o = 0; o < width; o++) sum[o] += dout[n * OC + first + o];
        store_sums(db + first, sum, width, accumulate);
    }
}

// --- rotary positions (Su et al. 2021), and the norm of q and k -------------------------------
//
// x is one head of q or k, of HS channels, at position t. u is x, or in Qwen3 the RMS norm of x
// (all heads of q share one weight, and so do those of k). Angles a[i] = t freq[i] (rope_table()):
//     y[i]        = u[i] cos a[i] - u[i + HS/2] sin a[i]
//     y[i + HS/2] = u[i + HS/2] cos a[i] + u[i] sin a[i]

// Replaces each x in qkv by y. With a norm of q and k, first copies them to qk, for backward.
// Without such a norm, qk, qk_rstd, q_norm_w and k_norm_w are NULL.
static void heads_forward(float *qkv,             // (B, T, (NH + 2 NKV) HS)
                          float *qk,              // (B, T, (NH + NKV) HS)
                          float *qk_rstd,         // (B, T, NH + NKV)
                          const float *q_norm_w, const float *k_norm_w,  // (HS), (HS)
                          const float *table,     // (T, HS/2, 2): cos a, sin a
                          const int32_t *begins,  // (B, T), or NULL
                          size_t B, size_t T, size_t NH, size_t NKV, size_t HS, float eps) {
    const size_t heads = NH + NKV;
    #pragma omp parallel for collapse(2)
    for (size_t n = 0; n < B * T; n++)
    for (size_t h = 0; h < heads; h++) {
        float *y = qkv + (n * (heads + NKV) + h) * HS;
        if (q_norm_w != NULL) {
            float *x = qk + (n * heads + h) * HS;
            memcpy(x, y, HS * sizeof *x);
            qk_rstd[n * heads + h] = normalise(y, NULL, x, h < NH ? q_norm_w : k_norm_w, NULL, HS,
                                               eps);
        }
        rope_rotate(y, table + position(begins, n, T) * HS, HS, 1);
    }
}

// Replaces dy, the gradients of q and k in dqkv, by dx.
static void heads_backward(float *dqkv, float *dq_norm_w, float *dk_norm_w, const float *qk,
                           const float *qk_rstd, const float *q_norm_w, const float *k_norm_w,
                           const float *table, const int32_t *begins, size_t B, size_t T,
                           size_t NH, size_t NKV, size_t HS, bool accumulate) {
    const size_t heads = NH + NKV, N = B * T;
    #pragma omp parallel for collapse(2)
    for (size_t n = 0; n < N; n++)
    for (size_t h = 0; h < heads; h++)
        rope_rotate(dqkv + (n * (heads + NKV) + h) * HS, table + position(begins, n, T) * HS, HS,
                    -1);
    if (q_norm_w == NULL) return;
    #pragma omp parallel for collapse(2)
    for (size_t k = 0; k < 2; k++)  // the weights of q's norm, then of k's
    for (size_t first = 0; first < HS; first += SLICE) {
        const size_t width = min_size(SLICE, HS - first);
        float sum[SLICE] = {0};
        for (size_t n = 0; n < N; n++)
        for (size_t h = k == 0 ? 0 : NH; h < (k == 0 ? NH : heads); h++) {
            const float *d = dqkv + (n * (heads + NKV) + h) * HS + first;
            const float *x = qk + (n * heads + h) * HS + first;
            const float r = qk_rstd[n * heads + h];
            #pragma omp simd
            for (size_t c = 0; c < width; c++) sum[c] += d[c] * (x[c] * r);
        }
        store_sums((k == 0 ? dq_norm_w : dk_norm_w) + first, sum, width, accumulate);
    }
    #pragma omp parallel for collapse(2)
    for (size_t n = 0; n < N; n++)
    for (size_t h = 0; h < heads; h++) {
        float *d = dqkv + (n * (heads + NKV) + h) * HS, d_dot = 0;
        const float *x = qk + (n * heads + h) * HS, *w = h < NH ? q_norm_w : k_norm_w;
        const float r = qk_rstd[n * heads + h];
        #pragma omp simd reduction(+ : d_dot)
        for (size_t c = 0; c < HS; c++) d_dot += d[c] * w[c] * (x[c] * r);
        d_dot /= (float)HS;
        for (size_t c = 0; c < HS; c++) d[c] = (d[c] * w[c] - x[c] * r * d_dot) * r;
    }
}

// --- causal self-attention (Vaswani et al. 2017) ---------------------------------------------
//
// Computes, for each sequence and head, with rows q[t], k[t], v[t] of HS channels. A row of qkv (B,
// T, Q) has NH query heads, NKV key heads, NKV value heads: Q = (NH + 2 NKV) HS. Query head h uses
// key head h / (NH / NKV) (grouped attention, Ainslie et al. 2023).
//     s[t,u]   = q[t] . k[u] / sqrt(HS)            for begins[t] <= u <= t
//     p[t,u]   = exp(s[t,u]) / sum over u' of exp(s[t,u'])
//     out[t]   = sum over u of p[t,u] v[u]
// Forward stores only lse[t] = log sum exp(s[t,:]). Backward computes p = exp(s - lse) from it (Dao
// et al. 2022), so that no (T, T) matrix is ever in memory:
//     ds[t,u] = p[t,u] (dout[t] . v[u] - dout[t] . out[t]) / sqrt(HS)
//     dq[t]   = sum over u of ds[t,u] k[u]
//     dk[u]   = sum over t, and over the group's query heads, of ds[t,u] q[t]
//     dv[u]   = sum over t, and over the group's query heads, of p[t,u] dout[t]

// Defines attention by plain loops. Training calls the functions of tide/cpu/attention.h, which are
// faster and cannot overflow; test_layers.c compares the two.
static void attention_definition(float *out, float *lse, const float *qkv, const int32_t *begins,
                                 size_t B, size_t T, size_t NH, size_t NKV, size_t HS) {
    const size_t Q = (NH + 2 * NKV) * HS;
    for (size_t n = 0; n < B * T; n++)
    for (size_t h = 0; h < NH; h++) {
        const size_t b = n / T, t = n % T;
        const float *q = qkv + n * Q + h * HS;
        float sum = 0, *o = out + (n * NH + h) * HS;
        memset(o, 0, HS * sizeof *o);
        for (size_t u = begins == NULL ? 0 : (size_t)begins[n]; u <= t; u++) {
            const float *k = qkv + (b * T + u) * Q + (NH + h / (NH / NKV)) * HS, *v = k + NKV * HS;
            float s = 0;
            for (size_t i = 0; i < HS; i++) s += q[i] * k[i];
            s = expf(s / sqrtf((float)HS));
            sum += s;
            for (size_t i = 0; i < HS; i++) o[i] += s * v[i];
        }
        for (size_t i = 0; i < HS; i++) o[i] /= sum;
        lse[(b * NH + h) * T + t] = logf(sum);
    }
}

static void attention_backward_definition(float *dqkv, const float *dout, const float *out,
                                          const float *lse, const float *qkv,
                                          const int32_t *begins, size_t B, size_t T, size_t NH,
                                          size_t NKV, size_t HS) {
    const size_t Q = (NH + 2 * NKV) * HS;
    memset(dqkv, 0, B * T * Q * sizeof *dqkv);
    for (size_t n = 0; n < B * T; n++)
    for (size_t h = 0; h < NH; h++) {
        const size_t b = n / T, t = n % T, at = (n * NH + h) * HS;
        const float *q = qkv + n * Q + h * HS, *d = dout + at, *o = out + at;
        float *dq = dqkv + n * Q + h * HS, d_dot_o = 0;
        for (size_t i = 0; i < HS; i++) d_dot_o += d[i] * o[i];
        for (size_t u = begins == NULL ? 0 : (size_t)begins[n]; u <= t; u++) {
            const size_t key = (b * T + u) * Q + (NH + h / (NH / NKV)) * HS;
            const float *k = qkv + key, *v = k + NKV * HS;
            float *dk = dqkv + key, *dv = dk + NKV * HS, s = 0, dp = 0;
            for (size_t i = 0; i < HS; i++) s += q[i] * k[i];
            for (size_t i = 0; i < HS; i++) dp += d[i] * v[i];
            const float p = expf(s / sqrtf((float)HS) - lse[(b * NH + h) * T + t]);
            const float ds = p * (dp - d_dot_o) / sqrtf((float)HS);
            for (size_t i = 0; i < HS; i++) {
                dq[i] += ds * k[i];
                dk[i] += ds * q[i];
                dv[i] += p * d[i];
            }
        }
    }
}

// --- the MLP's non-linearity -----------------------------------------------------------------
//
// GELU (gelu_f32 in tide/base/vmath.h): x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). With
// a gate (Shazeer 2020), a row of inp has the F columns of the gate z, then F columns `up`:
//     out = silu(z) up, silu(z) = z s, s = 1 / (1 + exp(-z)).

static void activation_forward(float *out,        // (N, F)
                               const float *inp,  // (N, F), or (N, 2F)
                               size_t N, size_t F, int activation) {
    const size_t M = activation == ACTIVATION_SILU ? 2 * F : F;
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *z = inp + n * M, *up = z + F;
        float *o = out + n * F;
        if (activation == ACTIVATION_SILU)
            #pragma omp simd
            for (size_t f = 0; f < F; f++) o[f] = z[f] * sigmoid_f32(z[f]) * up[f];
        else if (activation == ACTIVATION_RELU)
            #pragma omp simd
            for (size_t f = 0; f < F; f++) o[f] = z[f] > 0 ? z[f] : 0;
        else
            #pragma omp simd
            for (size_t f = 0; f < F; f++) o[f] = gelu_f32(z[f]);
    }
}

// Replaces dout, in the first F columns of d, by dinp. d is as wide as inp.
static void activation_backward(float *d, const float *inp, size_t N, size_t F, int activation) {
    const size_t M = activation == ACTIVATION_SILU ? 2 * F : F;
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        const float *z = inp + n * M, *up = z + F;
        float *dz = d + n * M, *d_up = dz + F;
        if (activation == ACTIVATION_SILU)
            #pragma omp simd
            for (size_t f = 0; f < F; f++) {
                const float s = sigmoid_f32(z[f]), dout = dz[f];
                d_up[f] = dout * (z[f] * s);
                dz[f] = dout * up[f] * (s * (1.0f + z[f] * (1.0f - s)));
            }
        else if (activation == ACTIVATION_RELU)
            #pragma omp simd
            for (size_t f = 0; f < F; f++) {
                const float dout = dz[f];  // is read for all z, or the loop is not vectorised
                dz[f] = z[f] > 0 ? dout : 0;
            }
        else
            #pragma omp simd
            for (size_t f = 0; f < F; f++) dz[f] *= gelu_slope_f32(z[f]);
    }
}

// --- residual connection ---------------------------------------------------------------------

// Computes out += inp. In backward the gradient of the sum is that of each summand.
static void residual_forward(float *out, const float *inp, size_t n) {
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) out[i] += inp[i];
}

// --- loss: cross-entropy of softmax(logits), fused with its gradient -------------------------
//
// losses[n] = log sum exp(logits[n,:]) - logits[n, target[n]]. Overwrites the logits: by their
// gradient, grad_scale (softmax - onehot(target)), or, if grad_scale is 0, by scratch. A row whose
// target is -1 is not trained: its loss and gradient are 0.

static void crossentropy(float *losses, float *logits, const int32_t *targets, float grad_scale,
                         size_t N, size_t V, size_t Vp) {
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        float *z = logits + n * Vp;
        if (targets[n] < 0) {
            losses[n] = 0;
            if (grad_scale != 0) memset(z, 0, V * sizeof(float));
            continue;
        }
        const float max = max_f32(z, V), target = z[targets[n]];
        const float sum = exp_sum_f32(z, V, max, 1);
        losses[n] = logf(sum) + max - target;
        if (grad_scale == 0) continue;
        const float scale = grad_scale / sum;
        for (size_t v = 0; v < V; v++) z[v] *= scale;
        z[targets[n]] -= grad_scale;
    }
}

// =============================================================================================
// 2. The model

// The activations of one layer that its backward pass reads: pointers into GPT2's buffers.
typedef struct {
    float *x;                       // (N, C)  the residual stream before the layer
    float *ln_1, *mean_1, *rstd_1;  // (N, C), (N), (N)
    float *qkv;                     // (N, Q), Q = (NH + 2 NKV) HS: queries, keys, values
    float *qk, *qk_rstd;            // (N, (NH + NKV) HS), (N, NH + NKV): q and k before their norm
    float *atty, *lse;              // (N, NH HS), (B, NH, T)
    float *mid;                     // (N, C)  the residual stream after attention
    float *ln_2, *mean_2, *rstd_2;  // (N, C), (N), (N)
    float *fc, *act;                // (N, M), (N, F)  before and after the non-linearity; M is F,
                                    //         or 2F with a gate
    // Pre-norm: att_in = ln_1, mlp_in = ln_2 = norm(mid). Post-norm: att_in = x, mlp_in = ln_1 =
    // norm(mid), and ln_2 is the sum ln_1 + MLP. mid_mean and mid_rstd are those of norm(mid).
    float *att_in, *mlp_in, *mid_mean, *mid_rstd;
} LayerActs;

typedef LAYER_WEIGHTS(float) LayerWeights;

typedef struct {
    GPT2Config config;
    GPT2Table table;
    size_t max_B, max_T;        // the largest micro-batch; the buffers have room for it
    size_t B, T;                // the micro-batch of the last forward pass
    const int32_t *documents;   // `begins` (B, T) of this micro-batch; or NULL
    const int32_t *sees;        // (B, T): the first token that each token sees (window_sees())
    bool training;              // false: no gradients or moments, activations of one layer only
    bool sampling, caching;     // there is a cache of keys and values; and it is in use
    size_t position;            // forward's first token has this place in the text
    bool dumping;               // there is room for all logits
    bool zeroth;                // zeroth-order training: params = theta + noise
    bool moments_bf16;          // m and v are stored in bf16
    bool zenflow;               // params is ZenReference.shown (zenflow.h)
    bool packed;                // rows of training have several documents
    int32_t *inputs, *targets;                   // (B, T): the tokens of a micro-batch
    int32_t *begins;                             // (B, T), if packed: see encoder_forward()
    int32_t *first_seen;  // the memory of `sees`, if rows are longer than the window
    float *params, *grads;                       // arenas of table.elements floats
    void *m, *v;                                 // arenas, of float or bf16 (--moments)
    float *theta;                                // zeroth-order training: the weights
    float *master, *acc;                         // ZenFlow: newest weights, sums of gradients
    ZenReference zen;
    ZoConfig zo;
    ZoUpdate update;                             // zeroth-order training: of the newest step
    float *parts[STATE_PARTS];                   // the arenas in a checkpoint
    LayerActs acts;  // layer 0's activations; other layers' are behind them
    float *ln_f, *mean_f, *rstd_f;               // (N, C), (N), (N)
    float *logits;                               // (chunk rows, Vp)
    float *losses;                               // (N)
    float *rope;                                 // (positions, HS/2, 2): rope_table()
    float *dx, *dc, *dwide;                      // backward: (N, C), (N, max(C, A)), (N, max(Q, M))
    float *cache;                                // sampling: (L, window, 2, NKV HS)
    float *all_logits;                           // --dump: (N, Vp)
    float *scratch;                              // attention's, for each thread
    double *norm_sums;                           // for each block of 4096 gradients
} GPT2;

// The number of rows whose logits are computed and used at a time: all (N, V) logits are never in
// memory together.
enum { HEAD_ROWS = 256 };

// Lists all buffers of the model for max_B x max_T. The same list is printed and allocated.
static int gpt2_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    const size_t C = g->config.channels, N = g->max_B * g->max_T, P = g->table.elements;
    const size_t A = config_att(&g->config), wide = config_wide(&g->config);
    const size_t window = config_window(&g->config), positions = max_size(g->max_T, window);
    const size_t L = g->training ? g->config.layers : 1;  // without backward, all layers share
    size_t blocks = 0;
    for (int i = 0; i < g->table.count; i++) blocks += norm_blocks(g->table.tensors[i].size);
    int n = 0;
    #define BUFFER(purpose, count, field) \
        list[n++] = (Buffer){purpose, (count) * sizeof *g->field, &g->field, true}
    if (g->zeroth) BUFFER("parameters", P, theta);
    BUFFER(g->zeroth ? "perturbed parameters" : "parameters", P, params);
    BUFFER("activations", N, inputs);
    BUFFER("activations", N, targets);
    if (g->packed) BUFFER("activations", N, begins);
    if (config_slides(&g->config, g->max_T)) BUFFER("activations", N, first_seen);
    BUFFER("activations", (g->training ? L + 1 : 1) * N * C, acts.x);
    #define ACT_BUFFER(name, width, ...) \
        if ((width) > 0) BUFFER("activations", L * N * (width), acts.name);
    LAYER_ACTIVATIONS(ACT_BUFFER, &g->config)
    #undef ACT_BUFFER
    BUFFER("activations", N * C, ln_f);
    if (!g->config.rms) BUFFER("activations", N, mean_f);
    BUFFER("activations", N, rstd_f);
    BUFFER("activations", N, losses);
    BUFFER("logits", min_size(HEAD_ROWS, N) * g->config.vocab_padded, logits);
    if (g->config.rope.theta > 0) BUFFER("rotary", positions * config_head(&g->config), rope);
    BUFFER("scratch", (size_t)omp_get_max_threads() * attention_scratch_floats(g->max_T), scratch);
    if (g->training) {
        BUFFER("gradients", P, grads);
        const size_t moment = g->moments_bf16 ? sizeof(uint16_t) : sizeof(float);
        list[n++] = (Buffer){"AdamW moments", P * moment, &g->m, true};
        list[n++] = (Buffer){"AdamW moments", P * moment, &g->v, true};
        if (g->zenflow) BUFFER("newest parameters", P, master);
        if (g->zenflow) BUFFER("sums of gradients", P, acc);
        BUFFER("backward", N * C, dx);
        BUFFER("backward", N * (A > C ? A : C), dc);
        BUFFER("backward", N * wide, dwide);
        BUFFER("scratch", blocks, norm_sums);
    }
    if (g->sampling) BUFFER("sampling", g->config.layers * window * cache_row(&g->config), cache);
    if (g->dumping) BUFFER("all logits", N * g->config.vocab_padded, all_logits);
    #undef BUFFER
    return n;
}

// Plans the buffers, prints the plan unless `quiet`, and allocates them. Ends the program if memory
// is too small. Returns the bytes of the plan, and of the program and a text's tokens (`other`).
static size_t gpt2_allocate(GPT2 *g, size_t other, bool quiet) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += list[i].bytes;
    list[n] = (Buffer){"data and program", other, NULL, BUFFER_ANY};
    if (!quiet) plan_print("CPU", list, n + 1, bytes + other, SIZE_MAX, 1);
    if (bytes > memory_available())
        die("this run needs %s more memory and %s are free%s", size_text(bytes, true).text,
            size_text(memory_available(), false).text,
            g->max_B > 1 ? ": take a smaller --batch" : "");
    for (int i = 0; i < n; i++)
        buffer_set(&list[i], alloc_or_fail(list[i].bytes, 1, list[i].purpose));
    if (g->config.rope.theta > 0)
        rope_table(&g->config.rope, max_size(g->max_T, config_window(&g->config)),
                   config_head(&g->config), g->rope);
    return bytes + other;
}

// Returns a pointer to a tensor in an arena of weights or gradients. index -1: the family has no
// such tensor; then the pointer is NULL.
static float *tensor(const GPT2 *g, float *arena, int index) {
    return index < 0 ? NULL : arena + g->table.tensors[index].offset;
}

// Returns pointers to the tensors of layer l in an arena.
static LayerWeights layer_weights(const GPT2 *g, float *arena, size_t l) {
    LayerWeights w;
    for (int k = 0; k < LAYER_TENSORS; k++)
        w.kind[k] = tensor(g, arena, layer_tensor(&g->table, l, k));
    w.mid_w = g->config.post_norm ? w.ln_1_w : w.ln_2_w;
    w.mid_b = g->config.post_norm ? w.ln_1_b : w.ln_2_b;
    return w;
}

static LayerActs layer_acts(const GPT2 *g, size_t l) {
    const size_t C = g->config.channels, N = g->max_B * g->max_T;
    const bool post = g->config.post_norm;
    LayerActs a = g->acts;
    if (!g->training) l = 0;
    a.x += l * N * C;
    #define ACT_POINT(name, width, ...) \
        if (a.name != NULL) a.name += l * N * (width);
    LAYER_ACTIVATIONS(ACT_POINT, &g->config)
    #undef ACT_POINT
    a.att_in = post ? a.x : a.ln_1;
    a.mlp_in = post ? a.ln_1 : a.ln_2;
    a.mid_mean = post ? a.mean_1 : a.mean_2;
    a.mid_rstd = post ? a.rstd_1 : a.rstd_2;
    return a;
}

// Runs the forward pass of tokens (B, T). The result is the normalised output of the last layer,
// g->ln_f (N, C); with narrow embeddings, the output of project_out (N, E). begins (B, T): see
// encoder_forward(); gpt2_backward() reads it, too.
static void gpt2_forward(GPT2 *g, const int32_t *tokens, const int32_t *begins, size_t B,
                         size_t T) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, N = B * T, L = c->layers;
    const size_t NH = c->heads, NKV = config_kv(c), HS = config_head(c);
    const size_t A = config_att(c), Q = config_qkv(c), M = config_mlp(c);
    const float eps = config_eps(c);
    const bool post = c->post_norm;
    g->B = B;
    g->T = T;
    g->documents = begins;
    g->sees = window_sees(g->first_seen, begins, N, T, c);
    const float *wte = tensor(g, g->params, g->table.wte);
    const float *wpe = tensor(g, g->params, g->table.wpe);
    if (wpe != NULL) wpe += g->position * C;
    float *x = g->acts.x;
    if (c->embed > 0) {  // narrow embeddings, E < C; ln_f is only scratch here
        const size_t E = c->embed;
        encoder_forward(g->ln_f, tokens, begins, wte, NULL, B, T, E);
        encoder_forward(x, tokens, begins, NULL, wpe, B, T, C);
        gemm(false, true, N, C, E, g->ln_f, E, tensor(g, g->params, g->table.project_in), E, x, C,
             NULL, true);
    } else {
        encoder_forward(x, tokens, begins, wte, wpe, B, T, C);
    }
    for (size_t l = 0; l < L && (g->caching || !run_gives_up()); l++) {
        const LayerActs a = layer_acts(g, l);
        const LayerWeights w = layer_weights(g, g->params, l);
        x = g->training ? a.x + g->max_B * g->max_T * C : a.x;  // the layer's output
        if (!post)
            layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w.ln_1_w, w.ln_1_b, N, C, eps);
        matmul_forward(a.qkv, a.att_in, w.qkv_w, w.qkv_b, N, C, Q);
        if (config_turns(c, l))
            heads_forward(a.qkv, a.qk, a.qk_rstd, w.q_norm, w.k_norm, g->rope + g->position * HS,
                          begins, B, T, NH, NKV, HS, eps);
        if (g->caching)
            attention_cached(a.atty, g->cache + l * config_window(c) * cache_row(c), a.qkv,
                             g->position, T, NH, NKV, HS);
        else attention_forward(a.atty, a.lse, a.qkv, g->sees, g->scratch, B, T, NH, NKV, HS);
        matmul_forward(a.mid, a.atty, w.attproj_w, w.attproj_b, N, A, C);
        residual_forward(a.mid, a.x, N * C);
        layernorm_forward(a.mlp_in, a.mid_mean, a.mid_rstd, a.mid, w.mid_w, w.mid_b, N, C,
                          eps);
        matmul_forward(a.fc, a.mlp_in, w.fc_w, w.fc_b, N, C, M);
        activation_forward(a.act, a.fc, N, F, c->activation);
        float *sum = post ? a.ln_2 : x;
        matmul_forward(sum, a.act, w.fcproj_w, w.fcproj_b, N, F, C);
        residual_forward(sum, post ? a.ln_1 : a.mid, N * C);
        if (post)
            layernorm_forward(x, a.mean_2, a.rstd_2, sum, w.ln_2_w, w.ln_2_b, N, C, eps);
    }
    if (c->embed > 0)
        matmul_forward(g->ln_f, x, tensor(g, g->params, g->table.project_out), NULL, N, C,
                       c->embed);
    else
        layernorm_forward(g->ln_f, g->mean_f, g->rstd_f, x, tensor(g, g->params, g->table.ln_f_w),
                          tensor(g, g->params, g->table.ln_f_b), N, C, eps);
}

// Computes the head and the loss, in chunks of rows. Returns the mean loss of the micro-batch, in
// nats per token. With grad_scale = 1 / (tokens of the step) also runs the head's backward pass:
// sets dc = dln_f, and sets the gradient of the head's weight, or adds to it (`accumulate`). With
// grad_scale 0 only evaluates. Copies the logits to all_logits (N, Vp), unless NULL.
static double gpt2_head(GPT2 *g, const int32_t *targets, float grad_scale, bool accumulate,
                        float *all_logits) {
    const size_t C = config_embed(&g->config), V = g->config.vocab, Vp = g->config.vocab_padded;
    const size_t N = g->B * g->T;
    const float *w = tensor(g, g->params, g->table.lm_head);
    for (size_t first = 0; first < N && !run_gives_up(); first += HEAD_ROWS) {
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

// Computes head and loss for classification by label words of one token each (tide/cpu/labels.h).
// Returns the mean loss of the sequences. grad_scale is 1 / (sequences of the step), or 0.
static double gpt2_classify(GPT2 *g, const int32_t *word, int words, const int32_t *where,
                            float grad_scale, bool accumulate, size_t *right) {
    const size_t C = config_embed(&g->config), size = g->table.tensors[g->table.lm_head].size;
    float *dhead = grad_scale != 0 ? tensor(g, g->grads, g->table.lm_head) : NULL;
    if (grad_scale != 0) memset(g->dc, 0, g->B * g->T * C * sizeof(float));
    if (grad_scale != 0 && !accumulate) memset(dhead, 0, size * sizeof(float));
    return labels_loss(g->dc, dhead, g->ln_f, tensor(g, g->params, g->table.lm_head), word, words,
                       where, grad_scale, g->B, g->T, C, right);
}

// Runs the backward pass of layer l. g->dx is the gradient of the residual stream: before the call
// at the layer's output, after it at its input. Each branch reads this gradient, and adds to it the
// gradient of the branch's own input.
static void layer_backward(GPT2 *g, size_t l, bool accumulate) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, B = g->B, T = g->T, N = B * T;
    const size_t NH = c->heads, NKV = config_kv(c), HS = config_head(c);
    const size_t A = config_att(c), Q = config_qkv(c), M = config_mlp(c);
    const bool post = c->post_norm;
    const LayerActs a = layer_acts(g, l);
    const LayerWeights w = layer_weights(g, g->params, l), d = layer_weights(g, g->grads, l);
    // buffers of gradients: of the residual stream, and in a branch; post-norm layers swap them
    float *residual = post ? g->dc : g->dx, *branch = post ? g->dx : g->dc, *dwide = g->dwide;
    if (post) {  // the norm after the MLP's sum
        memset(residual, 0, N * C * sizeof(float));
        layernorm_backward(residual, d.ln_2_w, d.ln_2_b, branch, a.ln_2, w.ln_2_w, a.mean_2,
                           a.rstd_2, N, C, accumulate);
    }
    // MLP branch: residual -> dact -> dfc -> dmlp_in -> residual
    matmul_backward(dwide, M, d.fcproj_w, d.fcproj_b, residual, a.act, w.fcproj_w, N, F, C,
                    accumulate);
    activation_backward(dwide, a.fc, N, F, c->activation);
    matmul_backward(branch, C, d.fc_w, d.fc_b, dwide, a.mlp_in, w.fc_w, N, C, M, accumulate);
    if (post) {
        residual_forward(branch, residual, N * C);
        memset(residual, 0, N * C * sizeof(float));
    }
    layernorm_backward(residual, d.mid_w, d.mid_b, branch, a.mid, w.mid_w, a.mid_mean,
                       a.mid_rstd, N, C, accumulate);
    // attention branch: residual -> datty -> dqkv -> datt_in -> residual
    matmul_backward(branch, A, d.attproj_w, d.attproj_b, residual, a.atty, w.attproj_w, N, A, C,
                    accumulate);
    attention_backward(dwide, branch, a.atty, a.lse, a.qkv, g->sees, g->scratch, B, T, NH, NKV,
                       HS);
    if (config_turns(c, l))
        heads_backward(dwide, d.q_norm, d.k_norm, a.qk, a.qk_rstd, w.q_norm, w.k_norm, g->rope,
                       g->documents, B, T, NH, NKV, HS, accumulate);
    matmul_backward(branch, C, d.qkv_w, d.qkv_b, dwide, a.att_in, w.qkv_w, N, C, Q, accumulate);
    if (post) residual_forward(branch, residual, N * C);  // branch is g->dx: the result
    else layernorm_backward(residual, d.ln_1_w, d.ln_1_b, branch, a.x, w.ln_1_w, a.mean_1,
                            a.rstd_1, N, C, accumulate);
}

// Runs the backward pass from the gradient that gpt2_head() made, down to the embeddings.
static void gpt2_backward(GPT2 *g, const int32_t *tokens, bool accumulate) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, B = g->B, T = g->T, N = B * T, L = c->layers, E = c->embed;
    const GPT2Table *t = &g->table;
    float *dx = g->dx, *dc = g->dc;
    const float *last = g->acts.x + L * g->max_B * g->max_T * C;
    if (E > 0) {
        matmul_backward(dx, C, tensor(g, g->grads, t->project_out), NULL, dc, last,
                        tensor(g, g->params, t->project_out), N, C, E, accumulate);
    } else {
        memset(dx, 0, N * C * sizeof(float));
        layernorm_backward(dx, tensor(g, g->grads, t->ln_f_w), tensor(g, g->grads, t->ln_f_b), dc,
                           last, tensor(g, g->params, t->ln_f_w), g->mean_f, g->rstd_f, N, C,
                           accumulate);
    }
    for (size_t l = L; l-- > 0 && !run_gives_up();) layer_backward(g, l, accumulate);
    // A tied head has stored its part of dwte. Now the embeddings' part is added.
    float *dwte = tensor(g, g->grads, t->wte), *dwpe = tensor(g, g->grads, t->wpe);
    if (!accumulate && dwpe != NULL) memset(dwpe, 0, t->tensors[t->wpe].size * sizeof(float));
    if (!accumulate && !c->tied) memset(dwte, 0, t->tensors[t->wte].size * sizeof(float));
    if (E > 0) {
        encoder_backward(NULL, dwpe, dx, tokens, g->documents, B, T, C);
        encoder_forward(g->ln_f, tokens, g->documents, tensor(g, g->params, t->wte), NULL, B, T, E);
        matmul_backward(dc, E, tensor(g, g->grads, t->project_in), NULL, dx, g->ln_f,
                        tensor(g, g->params, t->project_in), N, E, C, accumulate);
        encoder_backward(dwte, NULL, dc, tokens, g->documents, B, T, E);
    } else {
        encoder_backward(dwte, dwpe, dx, tokens, g->documents, B, T, C);
    }
}

// Returns the sum of squares of all gradients, in the blocks and the order that adam.h defines.
static double gpt2_grad_norm_squared(GPT2 *g) {
    size_t blocks = 0;
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *t = &g->table.tensors[i];
        norm_block_sums(g->grads + t->offset, t->size, g->norm_sums + blocks);
        blocks += norm_blocks(t->size);
    }
    return norm_total(g->norm_sums, blocks);
}

// Makes one AdamW step (adam.h) for all tensors. The step's grad_scale clips the gradient.
static void gpt2_update(GPT2 *g, const AdamStep *step) {
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *t = &g->table.tensors[i];
        const AdamRun run = {t->offset, t->size, t->rank == 2, t->offset};
        const AdamWork work = {.w = g->params, .m = g->m, .v = g->v, .grad = g->grads, .scale = 1,
                               .runs = &run, .count = 1, .step = *step};
        adam_work(&work);
    }
}

// Computes params = theta + scale z, for zeroth-order training (zo.h). z: direction number `query`
// of the step. scale: eps or -eps.
static void gpt2_perturb(GPT2 *g, const ZoConfig *zo, size_t step, int query, float scale) {
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *t = &g->table.tensors[i];
        zo_perturb(g->params + t->offset, g->theta + t->offset, t->rows * t->cols, zo, step, query,
                   scale, (uint32_t)i, 0);
    }
}

// Applies an update to theta, and copies theta to params.
static void gpt2_zo_update(GPT2 *g, const ZoConfig *zo, const ZoUpdate *u) {
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *t = &g->table.tensors[i];
        zo_update(g->theta + t->offset, t->rows * t->cols, zo, u, (uint32_t)i, t->rank == 2, 0);
    }
    memcpy(g->params, g->theta, g->table.elements * sizeof(float));
}

// Implements RunState.move for the model's arenas. m and v may be bf16.
static void gpt2_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    const GPT2 *g = (const GPT2 *)owner;
    if (g->moments_bf16 && part > 0) bf16_move((uint16_t *)g->parts[part] + at, w, n, out);
    else state_move((void *)g->parts, part, at, n, w, out);
}

// Allocates the model of an open run, and loads its first values. Returns the bytes of the plan.
static size_t gpt2_open(GPT2 *g, Run *r) {
    const Options *o = &r->o;
    memset(g, 0, sizeof *g);
    g->config = r->state.config;
    g->table = r->table;
    g->zeroth = o->optimizer == OPTIMIZER_MEZO;
    g->training = r->training && !g->zeroth;
    g->zenflow = g->training && o->offload == OFFLOAD_ZENFLOW;
    g->sampling = r->sampling;
    g->dumping = o->dump != NULL;
    g->moments_bf16 = o->moments == MOMENTS_BF16 && !g->zenflow;  // ZenFlow's reference has floats
    g->packed = r->packed;
    g->max_B = r->batches ? r->B : 1;
    g->max_T = r->batches ? r->T : min_size(config_window(&r->state.config), 64);
    const size_t planned = gpt2_allocate(g, memory_held(false), r->only_sampling);

    g->parts[0] = g->zeroth ? g->theta : g->zenflow ? g->master : g->params;
    g->parts[1] = (float *)g->m;
    g->parts[2] = (float *)g->v;
    g->parts[3] = g->params;
    RunState state = state_in(g->parts, g->training ? 3 : 1);
    state.move = gpt2_move;
    state.owner = g;
    state.moments_bf16 = o->moments == MOMENTS_BF16;
    if (g->zenflow && zen_is_saved(r)) state.parts = STATE_PARTS;
    run_load(r, &state);
    if (g->zenflow) {
        g->zen = zen_reference(r, g->master, g->m, g->v, g->params, g->acc);
    } else if (g->zeroth) {
        g->zo = (ZoConfig){o->seed, (float)o->zo_eps, (int)o->zo_queries, o->zo_noise, ZO_FP32};
        memcpy(g->params, g->theta, g->table.elements * sizeof(float));
    }
    return planned;
}

// =============================================================================================
// 3. One step

// Returns the mean loss over the tokens, after gpt2_forward() of g->inputs. With label words of one
// token each it is the mean over the sentences, and *right counts right answers. With grad_scale =
// 1 / (tokens or sentences of the step) also computes the gradients of the head.
static double gpt2_loss(GPT2 *g, const Run *r, float grad_scale, bool accumulate, size_t *right) {
    const Task *t = run_task(r);
    if (r->words)
        return gpt2_classify(g, t->word, t->labels, g->targets, grad_scale, accumulate, right);
    return gpt2_head(g, g->targets, grad_scale, accumulate, NULL);
}

// Makes one step of AdamW: sums the gradient of the mean loss over the micro-batches, clips it to
// --clip by its global norm, and updates the weights.
static StepResult adamw_step(GPT2 *g, Run *r, size_t step) {
    const float grad_scale = 1.0f / (float)run_targets(r, step);
    const double parts = run_parts(r, step);
    StepResult result = {0};
    size_t right = 0;
    for (size_t micro = 0; micro < r->o.accum; micro++) {
        if (!run_micro_batch(r, step, micro, g->inputs, g->targets, g->begins))
            return run_damaged(r);
        gpt2_forward(g, g->inputs, g->begins, r->B, r->T);
        result.loss += gpt2_loss(g, r, grad_scale, micro > 0, &right) / parts;
        gpt2_backward(g, g->inputs, micro > 0);
    }
    if (run_gives_up()) return run_damaged(r);
    const AdamStep adam = run_adam_step(r, step, gpt2_grad_norm_squared(g), &result);
    const ZenRates rates = zen_rates(&r->o, step);
    if (g->zenflow) zen_reference_step(&g->zen, g->grads, &adam, &rates);
    else gpt2_update(g, &adam);
    r->open = g->zenflow && zen_is_open(&g->zen.config, &g->zen.clock);
    return result;
}

// Makes one step of MeZO (zo.h): for each random direction z, theta moves along -z by lr times
// (loss(theta + eps z) - loss(theta - eps z)) / (2 eps). zo_estimate() defines loss and norm.
static StepResult mezo_step(GPT2 *g, Run *r, size_t step) {
    const ZoConfig *zo = &g->zo;
    const double parts = run_parts(r, step);
    double side[2 * ZO_QUERIES] = {0};
    size_t right = 0;
    StepResult result = {0};
    for (int i = 0; i < 2 * zo->queries; i++) {
        gpt2_perturb(g, zo, step, i / 2, i % 2 == 0 ? zo->eps : -zo->eps);
        for (size_t micro = 0; micro < r->o.accum; micro++) {
            if (!run_micro_batch(r, step, micro, g->inputs, g->targets, g->begins))
                return run_damaged(r);
            gpt2_forward(g, g->inputs, g->begins, r->B, r->T);
            side[i] += gpt2_loss(g, r, 0, false, &right) / parts;
        }
    }
    if (run_gives_up()) return run_damaged(r);
    zo_estimate(&g->update, zo, step, schedule_lr(&r->o, step), r->o.weight_decay, side,
                &result.loss, &result.norm);
    gpt2_zo_update(g, zo, &g->update);
    result.skipped = g->update.step == 0;
    return result;
}

// =============================================================================================
// 4. The loop

// Implements RunLoss: computes losses for run_eval().
static double gpt2_eval(void *model, Run *r, size_t first, size_t rows, float *losses,
                        size_t *right) {
    GPT2 *g = (GPT2 *)model;
    if (!run_batch(r, &r->val, first, rows, g->inputs, g->targets, NULL, &r->damage)) return 0;
    gpt2_forward(g, g->inputs, NULL, rows, r->val.T);
    const double loss = gpt2_loss(g, r, 0, false, right);
    if (losses != NULL) memcpy(losses, g->losses, rows * r->val.T * sizeof *losses);
    return loss;
}

// Implements SampleNext for run_sample(): computes the logits of the next token. New tokens pass
// forward in parts for which the buffers have room. The cache has the keys and values of all
// earlier tokens.
static void gpt2_next(void *model, const int32_t *tokens, size_t count, size_t fresh,
                      float *logits) {
    GPT2 *g = (GPT2 *)model;
    const size_t E = config_embed(&g->config);
    g->caching = true;
    for (size_t T, first = count - fresh; first < count; first += T) {
        T = min_size(count - first, g->max_B * g->max_T);
        g->position = first;
        gpt2_forward(g, tokens + first, NULL, 1, T);
    }
    matmul_forward(logits, g->ln_f + (g->T - 1) * E, tensor(g, g->params, g->table.lm_head), NULL,
                   1, E, g->config.vocab);
    g->caching = false;
    g->position = 0;
}

// Writes the file of --dump: loss, logits and gradients of the first batch.
static int gpt2_dump(GPT2 *g, Run *r) {
    if (!run_micro_batch(r, 1, 0, g->inputs, g->targets, g->begins)) die("%s", r->damage.text);
    gpt2_forward(g, g->inputs, g->begins, r->B, r->T);
    const double loss = gpt2_head(g, g->targets, 1.0f / (float)run_targets(r, 1), false,
                                  g->all_logits) / run_parts(r, 1);
    gpt2_backward(g, g->inputs, false);
    return run_dump(r, g->inputs, g->targets, g->begins, loss, g->all_logits, g->grads);
}

static void save(GPT2 *g, Run *r) {
    run_save(r, g->zenflow ? zen_text(&g->zen.map, &g->zen.clock) : NULL);
}

#ifndef TESTING
int main(int argc, char **argv) {
    static Run run, *r = &run;
    static GPT2 model, *g = &model;
    program_begin();
    cpu_wait_briefly(argv);
    run_open(r, argc, argv, false);
    const size_t planned = gpt2_open(g, r);
    if (r->o.dump != NULL) return gpt2_dump(g, r);
    if (r->o.steps == 0) return run_without_steps(r, gpt2_eval, gpt2_next, g);

    for (size_t step = run_begin(r, 0); run_goes_on(r, step); step++) {
        const StepResult result = g->zeroth ? mezo_step(g, r, step) : adamw_step(g, r, step);
        run_log_step(r, step, &result);
        if (run_wants_eval(r, step)) run_eval(r, step, gpt2_eval, g);
        if (run_wants_sample(r, step)) run_sample(r, step, gpt2_next, g);
        if (run_wants_save(r, step)) save(g, r);
    }
    save(g, r);
    const int code = run_end(r);
    printf("memory: at most %.1f MiB, planned %.1f MiB\n", mib(memory_held(true)), mib(planned));
    return code;
}
#endif
