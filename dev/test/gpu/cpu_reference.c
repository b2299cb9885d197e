// cpu_reference.c: see cpu_reference.h. Compile as C with the flags of train_gpt2.c and -DTESTING.
#ifndef TESTING
#define TESTING
#endif
#include "../../../train_gpt2.c"
#include "../gpt2_free.h"
#include "cpu_reference.h"

// --- the layers ------------------------------------------------------------------------------

static float *scratch_for(size_t T) {
    const size_t n = (size_t)omp_get_max_threads() * attention_scratch_floats(T);
    return (float *)alloc_or_fail(n, sizeof(float), "scratch");
}

static void cpu_attention(float *out, float *lse, const float *qkv, const int32_t *begins, size_t B,
                          size_t T, size_t NH, size_t NKV, size_t HS) {
    float *scratch = scratch_for(T);
    attention_forward(out, lse, qkv, begins, scratch, B, T, NH, NKV, HS);
    free(scratch);
}

static void cpu_attention_backward(float *dqkv, const float *dout, const float *out,
                                   const float *lse, const float *qkv, const int32_t *begins,
                                   size_t B, size_t T, size_t NH, size_t NKV, size_t HS) {
    float *scratch = scratch_for(T);
    attention_backward(dqkv, dout, out, lse, qkv, begins, scratch, B, T, NH, NKV, HS);
    free(scratch);
}

const struct CpuLayers on_cpu = {layernorm_forward, layernorm_backward, cpu_attention,
                                 cpu_attention_backward, crossentropy};

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

float *cpu_model_tensor(CPUModel *model, const char *name, size_t layer, size_t *count) {
    const GPT2 *g = &model->g;
    const size_t C = g->config.channels, L = g->config.layers;
    const size_t N = g->max_B * g->max_T, P = g->table.elements;
    const LayerActs a = layer_acts(g, layer < L ? layer : 0);
    #define CPU_ROW(name, width, ...) {#name, true, a.name, N * (width)},
    const struct { const char *name; bool per_layer; float *pointer; size_t count; } list[] = {
        {"params", false, g->params, P}, {"grads", false, g->grads, P},
        LAYER_ACTIVATIONS(CPU_ROW, &g->config)
        {"ln_f", false, g->ln_f, N * C}, {"mean_f", false, g->mean_f, N},
        {"rstd_f", false, g->rstd_f, N}, {"losses", false, g->losses, N},
        {"dx", false, g->dx, N * C}};
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
