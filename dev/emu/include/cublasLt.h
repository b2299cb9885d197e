// cublasLt.h: the corner of cuBLASLt that a GPT trainer uses, for the emulated GPU. Names, values
// and sizes are the real library's, so that sources compile unchanged; what is not here does not
// compile. dev/emu/cublaslt.cpp says what is accepted and what is refused.
#ifndef EMU_CUBLASLT_H
#define EMU_CUBLASLT_H
#include "cuda_runtime.h"
#include <stddef.h>
#include <stdint.h>

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14,
} cudaDataType_t;

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;

typedef enum { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;

// Attributes, with the type that each takes
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,                // int32_t, cublasOperation_t
    CUBLASLT_MATMUL_DESC_TRANSB = 4,                // int32_t
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,              // uint32_t, cublasLtEpilogue_t
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,          // void *: bias, or where its gradient goes
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11, // void *: input of GELU
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,      // int64_t, in elements
} cublasLtMatmulDescAttributes_t;

typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,    // uint64_t, default 0
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,  // uint32_t
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,  // uint32_t, default 256
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;

typedef enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 } cublasLtReductionScheme_t;

// What happens to x = alpha op(A) op(B) + beta C, element (i, j), before it is stored in D
typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,             // x + bias_i
    CUBLASLT_EPILOGUE_DGELU = 192,          // x gelu'(aux), of the tanh approximation
    CUBLASLT_EPILOGUE_BGRADB = 512,         // bias gradient_j = sum over k of op(B)
} cublasLtEpilogue_t;

typedef struct emu_lt_handle *cublasLtHandle_t;
typedef struct emu_lt_matmul *cublasLtMatmulDesc_t;
typedef struct emu_lt_layout *cublasLtMatrixLayout_t;
typedef struct emu_lt_preference *cublasLtMatmulPreference_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#ifdef __cplusplus
extern "C" {
#endif
size_t cublasLtGetVersion(void);
const char *cublasLtGetStatusString(cublasStatus_t status);

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes);

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t bytes);

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
    cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
    cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t *results, int *found);

cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
    cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result);

cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
    cublasLtMatrixLayout_t layout_a, const void *B, cublasLtMatrixLayout_t layout_b,
    const void *beta, const void *C, cublasLtMatrixLayout_t layout_c, void *D,
    cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo, void *workspace,
    size_t workspace_bytes, cudaStream_t stream);
#ifdef __cplusplus
}
// For tests: from now on no algorithm is found for epilogues with any of these bits, as a real
// library may have none for a shape; 0 ends that.
void emu_lt_without(uint32_t epilogues);
#endif
#endif
