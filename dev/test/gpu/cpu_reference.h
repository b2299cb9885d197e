// cpu_reference.h: train_gpt2.c for tests of the GPU sources. It is C, and they are C++: so it is
// compiled alone (cpu_reference.c), which lends its layers and its model.
#ifndef TIDE_CPU_REFERENCE_H
#define TIDE_CPU_REFERENCE_H
#include "../../../tide/base/model.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- the layers ------------------------------------------------------------------------------

// Functions of train_gpt2.c; those of attention have scratch memory of their own.
extern const struct CpuLayers {
    void (*layernorm_forward)(float *out, float *mean, float *rstd, const float *inp,
                              const float *w, const float *b, size_t N, size_t C, float eps);
    void (*layernorm_backward)(float *dinp, float *dw, float *db, const float *dout,
                               const float *inp, const float *w, const float *mean,
                               const float *rstd, size_t N, size_t C, bool accumulate);
    void (*attention_forward)(float *out, float *lse, const float *qkv, const int32_t *begins,
                              size_t B, size_t T, size_t NH, size_t NKV, size_t HS);
    void (*attention_backward)(float *dqkv, const float *dout, const float *out, const float *lse,
                               const float *qkv, const int32_t *begins, size_t B, size_t T,
                               size_t NH, size_t NKV, size_t HS);
    void (*crossentropy)(float *losses, float *logits, const int32_t *targets, float grad_scale,
                         size_t N, size_t V, size_t Vp);
} on_cpu;

// --- the model -------------------------------------------------------------------------------

typedef struct CPUModel CPUModel;

// A model for micro-batches of exactly B x T tokens. `config` must have gone through gpt2_finish().
// params: the whole arena (gpt2_table(config).elements floats), copied; NULL leaves zeros.
CPUModel *cpu_model_new(const GPT2Config *config, size_t B, size_t T, const float *params);
void cpu_model_free(CPUModel *model);

// The three parts of a micro-batch, as in train_gpt2.c. logits (N, Vp) or NULL.
void cpu_model_forward(CPUModel *model, const int32_t *tokens, const int32_t *begins);
double cpu_model_head(CPUModel *model, const int32_t *targets, float grad_scale, bool accumulate,
                      float *logits);
// gpt2_classify(); words, and where (B, 2), as there.
double cpu_model_classify(CPUModel *model, const int32_t *word, int words, const int32_t *where,
                          float grad_scale, bool accumulate, size_t *right);
void cpu_model_backward(CPUModel *model, const int32_t *tokens, bool accumulate);
double cpu_model_grad_norm_squared(CPUModel *model);

// A buffer by name, and its length if count is not NULL. Arenas: "params", "grads".
// Of layer 0 .. L-1: "x" (the stream on entry; layer L: what the last one leaves), "ln_1",
// "mean_1", "rstd_1", "qkv", "atty", "lse", "mid", "ln_2", "mean_2", "rstd_2", "fc", "act".
// After the layers: "ln_f", "mean_f", "rstd_f", "losses"; of the backward pass: "dx". NULL if there
// is no such buffer.
float *cpu_model_tensor(CPUModel *model, const char *name, size_t layer, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
