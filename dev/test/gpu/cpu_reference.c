// cpu_reference.c: see cpu_reference.h. Compile as C with the flags of train_gpt2.c and -DTESTING.
#ifndef TESTING
#define TESTING
#endif
#include "../../../train_gpt2.c"
#include "../gpt2_free.h"
#include "cpu_reference.h"

// --- the layers ------------------------------------------------------------------------------

void cpu_encoder_forward(float *out, const int32_t *tokens, const int32_t *begins,
                         const float *wte, const float *wpe, size_t B, size_t T, size_t C) {
    encoder_forward(out, tokens, begins, wte, wpe, B, T, C);
}

void cpu_encoder_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                          const int32_t *begins, size_t B, size_t T, size_t C) {
    encoder_backward(dwte, dwpe, dout, tokens, begins, B, T, C);
}

void cpu_layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *w,
                           const float *b, size_t N, size_t C, float eps) {
    layernorm_forward(out, mean, rstd, inp, w, b, N, C, eps);
}

void cpu_layernorm_backward(float *dinp, float *dw, float *db, const float *dout, const float *inp,
                            const float *w, const float *mean, const float *rstd, size_t N,
                            size_t C, bool accumulate) {
    layernorm_backward(dinp, dw, db, dout, inp, w, mean, rstd, N, C, accumulate);
}

void cpu_heads_forward(float *qkv, float *qk, float *qk_rstd, const float *q_norm_w,
                       const float *k_norm_w, const float *table, const int32_t *begins, size_t B,
                       size_t T, size_t NH, size_t NKV, size_t HS, float eps) {
    heads_forward(qkv, qk, qk_rstd, q_norm_w, k_norm_w, table, begins, B, T, NH, NKV, HS, eps);
}

void cpu_heads_backward(float *dqkv, float *dq_norm_w, float *dk_norm_w, const float *qk,
                        const float *qk_rstd, const float *q_norm_w, const float *k_norm_w,
                        const float *table, const int32_t *begins, size_t B, size_t T, size_t NH,
                        size_t NKV, size_t HS, bool accumulate) {
    heads_backward(dqkv, dq_norm_w, dk_norm_w, qk, qk_rstd, q_norm_w, k_norm_w, table, begins, B, T,
                   NH, NKV, HS, accumulate);
}

void cpu_gemm(bool transpose_a, bool transpose_b, size_t M, size_t N, size_t K, const float *a,
              size_t lda, const float *b, size_t ldb, float *c, size_t ldc, const float *bias,
              bool accumulate) {
    gemm(transpose_a, transpose_b, M, N, K, a, lda, b, ldb, c, ldc, bias, accumulate);
}

void cpu_matmul_forward(float *out, const float *inp, const float *w, const float *b, size_t N,
                        size_t C, size_t OC) {
    matmul_forward(out, inp, w, b, N, C, OC);
}

void cpu_matmul_backward(float *dinp, float *dw, float *db, const float *dout, const float *inp,
                         const float *w, size_t N, size_t C, size_t OC, bool accumulate) {
    matmul_backward(dinp, C, dw, db, dout, inp, w, N, C, OC, accumulate);
}

void cpu_activation_forward(float *out, const float *inp, size_t N, size_t F, int activation) {
    activation_forward(out, inp, N, F, activation);
}

static float *attention_scratch(size_t T) {
    const size_t floats = (size_t)omp_get_max_threads() * attention_scratch_floats(T);
    return ALLOC(float, floats, "scratch");
}

void cpu_attention_forward(float *out, float *lse, const float *qkv, const int32_t *begins,
                           size_t B, size_t T, size_t NH, size_t NKV, size_t HS) {
    float *scratch = attention_scratch(T);
    attention_forward(out, lse, qkv, begins, scratch, B, T, NH, NKV, HS);
    free(scratch);
}

void cpu_attention_backward(float *dqkv, const float *dout, const float *out, const float *lse,
                            const float *qkv, const int32_t *begins, size_t B, size_t T, size_t NH,
                            size_t NKV, size_t HS) {
    float *scratch = attention_scratch(T);
    attention_backward(dqkv, dout, out, lse, qkv, begins, scratch, B, T, NH, NKV, HS);
    free(scratch);
}

void cpu_activation_backward(float *d, const float *inp, size_t N, size_t F, int activation) {
    activation_backward(d, inp, N, F, activation);
}

void cpu_residual_forward(float *out, const float *inp, size_t n) {
    residual_forward(out, inp, n);
}

void cpu_crossentropy(float *losses, float *logits, const int32_t *targets, float grad_scale,
                      size_t N, size_t V, size_t Vp) {
    crossentropy(losses, logits, targets, grad_scale, N, V, Vp);
}

void cpu_adam_update(float *p, void *m, void *v, const void *grad, bool grad_is_half,
                     uint16_t *p_bf16, const AdamRun *runs, int count, const AdamStep *step) {
    AdamWork work = {p, NULL, m, v, NULL, grad, grad_is_half, 0, 1, NULL, runs, count, *step};
    if (p_bf16 == NULL && !grad_is_half) {
        adam_work(&work);
        return;
    }
    size_t n = 0;
    for (int i = 0; i < count; i++)
        if (runs[i].at + runs[i].length > n) n = runs[i].at + runs[i].length;
    uint16_t *weights = (uint16_t *)alloc_or_fail(2 * n, 2, "masters"), *low = weights + n;
    for (int i = 0; i < count; i++)
        master_move(weights + runs[i].at, low + runs[i].at, p + runs[i].at, runs[i].length, false);
    work.w = weights;
    work.low = step->master_bf16 ? NULL : low;  // which is 0
    work.halves = 1;
    adam_work(&work);
    for (int i = 0; i < count; i++) {
        const size_t at = runs[i].at, length = runs[i].length;
        master_move(weights + at, low + at, p + at, length, true);
        if (p_bf16 != NULL) memcpy(p_bf16 + at, weights + at, length * sizeof *weights);
    }
    free(weights);
}

void cpu_norm_sums(const void *grad, bool is_half, size_t n, double *sums) {
    float *wide = (float *)alloc_or_fail(n, sizeof(float), "gradient");
    for (size_t i = 0; i < n; i++) wide[i] = grad_at(grad, is_half, i);
    norm_block_sums(wide, n, sums);
    free(wide);
}
double cpu_norm_total(const double *sums, size_t count) { return norm_total(sums, count); }

// --- the model -------------------------------------------------------------------------------

struct CPUModel { GPT2 g; };

CPUModel *cpu_model_new(const GPT2Config *config, size_t B, size_t T, const float *params) {
    CPUModel *model = (CPUModel *)alloc_or_fail(1, sizeof *model, "model");  // zeroed
    GPT2 *g = &model->g;
    g->config = *config;
    g->table = gpt2_table(config);
    g->max_B = B;
    g->max_T = T;
    g->training = true;
    gpt2_allocate(g, 0, true);
    if (params != NULL) memcpy(g->params, params, g->table.elements * sizeof(float));
    return model;
}

void cpu_model_free(CPUModel *model) {
    gpt2_free(&model->g);
    free(model);
}

void cpu_model_forward(CPUModel *model, const int32_t *tokens, const int32_t *begins) {
    gpt2_forward(&model->g, tokens, begins, model->g.max_B, model->g.max_T);
}

double cpu_model_head(CPUModel *model, const int32_t *targets, float grad_scale, bool accumulate,
                      float *logits) {
    return gpt2_head(&model->g, targets, grad_scale, accumulate, logits);
}

double cpu_model_classify(CPUModel *model, const int32_t *word, int words, const int32_t *where,
                          float grad_scale, bool accumulate, size_t *right) {
    return gpt2_classify(&model->g, word, words, where, grad_scale, accumulate, right);
}

void cpu_model_backward(CPUModel *model, const int32_t *tokens, bool accumulate) {
    gpt2_backward(&model->g, tokens, accumulate);
}

double cpu_model_grad_norm_squared(CPUModel *model) { return gpt2_grad_norm_squared(&model->g); }

void cpu_model_update(CPUModel *model, const AdamStep *step) { gpt2_update(&model->g, step); }

float *cpu_model_tensor(CPUModel *model, const char *name, size_t layer, size_t *count) {
    const GPT2 *g = &model->g;
    const size_t C = g->config.channels, L = g->config.layers;
    const size_t N = g->max_B * g->max_T, P = g->table.elements;
    const LayerActs a = layer_acts(g, layer < L ? layer : 0);
    #define CPU_ROW(name, width, ...) {#name, true, a.name, N * (width)},
    const struct { const char *name; bool per_layer; float *pointer; size_t count; } list[] = {
        {"params", false, g->params, P}, {"grads", false, g->grads, P}, {"m", false, g->m, P},
        {"v", false, g->v, P},
        LAYER_ACTIVATIONS(CPU_ROW, &g->config)
        {"ln_f", false, g->ln_f, N * C}, {"mean_f", false, g->mean_f, N},
        {"rstd_f", false, g->rstd_f, N}, {"losses", false, g->losses, N},
        {"dx", false, g->dx, N * C}, {"dc", false, g->dc, N * C},
        {"dwide", false, g->dwide, N * config_wide(&g->config)}};
    #undef CPU_ROW
    if (strcmp(name, "x") == 0 && layer <= L) {
        if (count != NULL) *count = N * C;
        return g->acts.x + layer * N * C;
    }
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (strcmp(name, list[i].name) != 0 || (list[i].per_layer && layer >= L)) continue;
        if (count != NULL) *count = list[i].count;
        return list[i].pointer;
    }
    return NULL;
}
