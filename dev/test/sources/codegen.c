// codegen.c: the hot loops, for test_codegen.sh, which compiles this file to assembly and reads it.
// It is never linked. What a function chooses by its arguments has been chosen here, so that each
// such loop stands in a function of its own; the others come as they are. As C++, the language of a
// GPU build's host code, it has what that has.
#define TESTING
#include "../../fma_peak.h"
#ifndef __cplusplus
#include "../../../train_gpt2.c"
#else
#include "../../../tide/cpu/adam_fast.h"
#include "../../../zenflow.h"
#include "../../../zo.h"
extern "C" {
#endif

// A function with all that it calls inside.
#define HOT __attribute__((noinline, flatten)) void

HOT hot_norm(double *sum, const float *g, size_t n) { *sum = norm_block_sum(g, n); }

HOT hot_to_bf16(uint16_t *__restrict__ to, const float *__restrict__ x, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = f32_to_bf16(x[i]);
}
HOT hot_from_bf16(float *__restrict__ to, const uint16_t *__restrict__ x, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = bf16_to_f32(x[i]);
}

#define ZO_ROUND(name, storage) \
    HOT hot_##name(float *__restrict__ x, size_t n) { \
        for (size_t i = 0; i < n; i++) \
            x[i] = zo_round(x[i], storage, (uint32_t)i * 0x9E3779B9u >> 16); \
    }
ZO_ROUND(zo_round_fp16, ZO_FP16)
ZO_ROUND(zo_round_bf16, ZO_BF16)

#ifndef __cplusplus
HOT hot_exp(float *x, size_t n) {
    #pragma omp simd
    for (size_t i = 0; i < n; i++) x[i] = exp_f32(x[i]);
}
HOT hot_tanh(float *x, size_t n) {
    #pragma omp simd
    for (size_t i = 0; i < n; i++) x[i] = tanh_f32(x[i]);
}
HOT hot_max(float *max, const float *x, size_t n) { *max = max_f32(x, n); }
#endif

// What is used is compiled.
typedef void Function(void);
Function *hot_functions[] = {
    (Function *)gemm, (Function *)fma_chains, (Function *)adam_range, (Function *)accumulate_range,
    (Function *)rng_normals, (Function *)zen_sums,
    (Function *)zo_perturb, (Function *)zo_update,
#ifndef __cplusplus
    (Function *)encoder_forward, (Function *)encoder_backward, (Function *)layernorm_forward,
    (Function *)layernorm_backward, (Function *)matmul_backward, (Function *)heads_forward,
    (Function *)heads_backward, (Function *)attention_forward, (Function *)attention_row_backward,
    (Function *)activation_forward, (Function *)activation_backward,
    (Function *)residual_forward, (Function *)crossentropy, (Function *)gemv,
    (Function *)attention_cached,
#endif
};
#ifdef __cplusplus
}
#endif
