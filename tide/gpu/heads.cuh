// heads.cuh: the heads above the last layer: logits and their loss, or the loss of labels.
//   gpt2_head()        a language model's head and loss, forward and backward
//   gpt2_classify()    the same for labels (zeroth order uses its kernel as well, with both signs)
//   gpt2_loss()        the loss, on the host
#ifndef TIDE_HEADS_CUH
#define TIDE_HEADS_CUH
#include "gpt2.cuh"
#include "../../zo.h"

// Perturbs four elements of a tensor, as zo_weights_kernel() does, for kernels that read few rows.
// Noise is drawn for eight elements at once; in fp32 a row may begin or end in the middle of eight.
__device__ static inline void zo_perturbed4(float w[4], const floatX *theta, const ZoConfig *c,
                                            int tensor, uint64_t first, uint32_t step,
                                            uint32_t query, float scale) {
    float z[8] = {0};
    if (scale != 0) zo_noise(z, 8, c, step, query, (uint32_t)tensor, first / 8 * 8);
    for (int k = 0; k < 4; k++) {
        const float noise = first % 8 == 0 ? z[k] : z[4 + k];
        w[k] = to_f32(from_f32<floatX>(fmaf(scale, noise, to_f32(theta[first + k]))));
    }
}

// Computes gpt2_classify() of train_gpt2.c. A block takes a sequence, whose normalised rows are in
// x (B, T, C). If grad_scale is not 0, also writes the gradient of the logits to slopes (B,
// TASK_LABELS), and the gradient of x to dx; else slopes and dx are NULL.
__global__ static void classify_kernel(float *losses, float *right, float *slopes, floatX *dx,
                                       const floatX *x, const int32_t *where, const floatX *head,
                                       ZoConfig c, Words words, int tensor, uint32_t step,
                                       uint32_t query, float scale, float grad_scale, size_t T,
                                       size_t C) {
    __shared__ float logit[TASK_LABELS];
    const size_t b = blockIdx.x, row = (b * T + (size_t)where[2 * b]) * C;
    const int label = where[2 * b + 1];
    x += row;
    float max = -FLT_MAX, sum = 0, wanted = 0;
    int best = 0;
    for (int k = 0; k < words.count; k++) {
        float dot = 0;
        for (size_t i = threadIdx.x * 4; i < C; i += blockDim.x * 4) {
            float w[4];
            zo_perturbed4(w, head, &c, tensor, (size_t)words.word[k] * C + i, step, query, scale);
            for (int j = 0; j < 4; j++) dot = fmaf(to_f32(x[i + j]), w[j], dot);
        }
        dot = block_sum(dot);
        if (dot > max) best = k;
        const float top = fmaxf(max, dot);
        sum = fmaf(sum, expf(max - top), expf(dot - top));
        max = top;
        if (k == label) wanted = dot;
        if (threadIdx.x == 0) logit[k] = dot;
    }
    if (threadIdx.x == 0) {
        losses[b] = logf(sum) + max - wanted;
        right[b] = best == label;
    }
    if (grad_scale == 0) return;
    __syncthreads();
    for (size_t i = threadIdx.x * 4; i < C; i += blockDim.x * 4) {
        float d[4] = {0}, w[4];
        for (int k = 0; k < words.count; k++) {
            const float slope = (expf(logit[k] - max) / sum - (float)(k == label)) * grad_scale;
            if (i == 0) slopes[b * TASK_LABELS + k] = slope;
            zo_perturbed4(w, head, &c, tensor, (size_t)words.word[k] * C + i, step, query, scale);
            for (int j = 0; j < 4; j++) d[j] = fmaf(slope, w[j], d[j]);
        }
        for (int j = 0; j < 4; j++) dx[row + i + j] = from_f32<floatX>(d[j]);
    }
}

// Writes the head's gradient for label words: row word[k] of dhead (Vp, C) is a sum over the
// sequences, in order. A block computes some channels of one word.
__global__ static void classify_backward_kernel(float *dhead, const float *slopes, const floatX *x,
                                                const int32_t *where, Words words, size_t B,
                                                size_t T, size_t C) {
    const size_t k = blockIdx.x % (unsigned)words.count;
    const size_t i = blockIdx.x / (unsigned)words.count * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i >= C) return;
    for (size_t b = 0; b < B; b++)
        sum = fmaf(slopes[b * TASK_LABELS + k],
                   to_f32(x[(b * T + (size_t)where[2 * b]) * C + i]), sum);
    dhead[(size_t)words.word[k] * C + i] = sum;
}

// Queues head and loss, in chunks of rows. Adds share times the mean loss to g->loss or, without
// `accumulate`, overwrites g->loss by it. share: 1 / (micro-batches of the step). grad_scale: 1 /
// (tokens of the whole step), or 0. If it is not 0, also queues the head's backward pass, which
// writes the gradient of ln_f to g->branch, and the head's weight gradient (see head_in_place()).
// all_logits (N, Vp): host memory for a copy of the logits, or NULL.
static void gpt2_head(GPT2 *g, float grad_scale, double share, bool accumulate,
                      float *all_logits) {
    const size_t C = config_embed(&g->config), V = g->config.vocab, Vp = g->config.vocab_padded;
    const size_t N = g->B * g->T;
    const floatX *w = tensor(g, g->table.lm_head);
    const int32_t *targets = g->tokens + N;
    for (size_t first = 0; first < N; first += g->head_rows) {
        const size_t rows = min_size(g->head_rows, N - first);
        const floatX *inp = g->ln_f + first * C;
        matmul_forward<floatX>(&g->lt, g->logits, inp, w, NULL, rows, C, Vp, g->compute);
        if (all_logits != NULL) floats_move(g->logits, all_logits + first * Vp, rows * Vp, true);
        GPU_TAKES(g->compute, 2 * rows * Vp * sizeof(floatX), gpu_bytes);
        crossentropy(g->losses + first, g->logits, targets + first, grad_scale, rows, V, Vp,
                     g->compute);
        if (grad_scale == 0) continue;
        floatX *const dinp = g->branch + first * C;
        if (head_in_place(g))
            matmul_backward(&g->lt, dinp, C, tensor_grad(g, g->table.lm_head), g->logits, inp, w,
                            rows, C, Vp, g->compute);
        else
            matmul_backward(&g->lt, dinp, C, g->dwte, g->logits, inp, w, rows, C, Vp, g->compute,
                            NULL, NULL, NULL, first > 0);
    }
    loss_accumulate(g->loss, g->losses, N, share / (double)N, !accumulate, g->compute);
    compute_span(g, NULL, 0);
}

// Queues the head for labels, as gpt2_classify() of train_gpt2.c does: at one position of each
// sequence it predicts which of g->words is next. Arguments and results are those of gpt2_head(),
// but grad_scale is 1 / (sequences of the whole step), or 0. If it is 0, g->loss[1] becomes the
// number of sequences whose right word is the likeliest.
static void gpt2_classify(GPT2 *g, float grad_scale, double share, bool accumulate) {
    const size_t C = config_embed(&g->config), B = g->B, T = g->T;
    const bool trains = grad_scale != 0;
    const int32_t *where = g->tokens + B * T;
    float *right = g->losses + B, *slopes = trains ? (float *)g->dwide : NULL;
    const unsigned blocks = ceil_div(C, BLOCK_THREADS) * (unsigned)g->words.count;
    if (trains) {
        stream_zero(g->branch, B * T * C * sizeof(floatX), g->compute);
        stream_zero(g->dwte, g->config.vocab_padded * C * sizeof(float), g->compute);
    }
    LAUNCH(classify_kernel, (unsigned)B, BLOCK_THREADS, 0, g->compute, g->losses, right, slopes,
           trains ? g->branch : NULL, g->ln_f, where, tensor(g, g->table.lm_head), ZoConfig{},
           g->words, 0, 0, 0, 0, grad_scale, T, C);
    if (trains)
        LAUNCH(classify_backward_kernel, blocks, BLOCK_THREADS, 0, g->compute, g->dwte, slopes,
               g->ln_f, where, g->words, B, T, C);
    loss_accumulate(g->loss, g->losses, B, share / (double)B, !accumulate, g->compute);
    if (!trains) loss_accumulate(g->loss + 1, right, B, 1, true, g->compute);
    compute_span(g, NULL, 0);
}

// Waits for the GPU, and returns the mean loss of the step's micro-batches, in nats per token.
static double gpt2_loss(GPT2 *g) {
    stream_copy(g->host_loss, g->loss, 2 * sizeof(double), cudaMemcpyDeviceToHost, g->compute);
    stream_sync(g->compute);
    return *g->host_loss;
}

#endif
