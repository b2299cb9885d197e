// matmul.cuh: the matrix product on the GPU, where a transformer spends most of its arithmetic.
// The twin of matmul.h's gemm(), with the same row-major interface; cuBLASLt does the work.
//
// Row-major on a column-major library. A row-major matrix (rows, cols) is, byte for byte, the
// column-major matrix (cols, rows): its transpose. So instead of out = op(A) op(B) the library is
// asked for out^T = op(B)^T op(A)^T, with the operands swapped, M and N swapped, and each matrix
// described as the transpose that its bytes already are. No element is moved. A bias for each
// column of out is a bias for each row of out^T, as the library wants it.
//
// Bits. The same product must give the same bits in every run and wherever its operands lie:
//   - the algorithm is the first that the library's heuristic names for a shape, or with --tune the
//     one in a file (tune.cuh): only products that the file lacks are timed, once.
//     The heuristic is told of 16-byte alignment even where addresses happen to be multiples of
//     256, so that moving a tensor cannot change the algorithm;
//   - there is one workspace of constant size. Two products must not run at the same time: order
//     them on one stream, or with events;
//   - where the library splits a sum over k among thread blocks ("split-K"), it may keep the parts
//     in fp32 in the workspace and add them in a second step. The other two schemes are ruled out:
//     one adds to the output, by turns in an order that is not documented; both round the parts to
//     the output's type, and a result of 16 bits should be rounded once.
// NVIDIA promises equal bits for one version of the library on GPUs of one architecture with the
// same number of multiprocessors (cuBLAS documentation, "Results Reproducibility").
//
// Sums are in fp32 whatever the operands' type (CUBLAS_COMPUTE_32F); fp32 operands are multiplied
// as fp32, never rounded to TF32.
#ifndef TIDE_MATMUL_CUH
#define TIDE_MATMUL_CUH
#include "queue.cuh"
#include "tune.cuh"

#define LT(call) lt_check((call), #call, __FILE__, __LINE__)

static inline void lt_check(cublasStatus_t e, const char *call, const char *file, int line) {
    if (e != CUBLAS_STATUS_SUCCESS)
        fail("cuBLASLt: %s (%d): %s (%s:%d)", cublasLtGetStatusString(e), (int)e, call, file, line);
}

// The library's name for each storage type.
template <typename X> struct MatmulType;
template <> struct MatmulType<float> { typedef float type; enum { CUDA = CUDA_R_32F }; };
template <> struct MatmulType<bf16> { typedef bf16 type; enum { CUDA = CUDA_R_16BF }; };
template <> struct MatmulType<f16> { typedef f16 type; enum { CUDA = CUDA_R_16F }; };

// An epilogue is a product's last step, and `extra` is its operand. PLAIN: no epilogue. BIAS adds
// extra (N) to each row. SLOPE multiplies the product by GELU's slope at extra (M, N), whose rows
// have the output's pitch. SUMS stores the sums of op(A)'s rows in extra (M).
enum { GEMM_PLAIN, GEMM_BIAS, GEMM_SLOPE, GEMM_SUMS };

// The library's description of a shape, and the algorithm for it.
typedef struct {
    MatmulShape shape;
    bool none;                // the library has no algorithm with this epilogue
    bool settled;             // matmul_settle() has been called
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulAlgo_t algo;
} MatmulPlan;

enum { MATMUL_PLANS = 128, MATMUL_ALIGNMENT = 16 };
#define MATMUL_WORKSPACE ((size_t)32 << 20)  // NVIDIA's advice for Hopper; older GPUs need less

typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace;          // MATMUL_WORKSPACE bytes
    uint32_t alignment;       // matmul_alignment() finds alignments up to this, in bytes
    size_t made;              // plans so far; the newest MATMUL_PLANS of them are kept
    Tune tune;
    MatmulPlan plans[MATMUL_PLANS];
} Matmul;

static inline void matmul_prefer(const Matmul *lt, cublasLtMatmulPreferenceAttributes_t attribute,
                                 uint32_t value) {
    LT(cublasLtMatmulPreferenceSetAttribute(lt->preference, attribute, &value, sizeof value));
}

// Opens the library on the current device. Products need no other device memory than their operands
// and the workspace. Ends the program if there is no room for the workspace.
static inline void matmul_open(Matmul *lt) {
    const uint64_t bytes = MATMUL_WORKSPACE;
    memset(lt, 0, sizeof *lt);
    if (rehearsal != NULL) return;
    lt->workspace = gpu_alloc(bytes, "the matrix product's workspace");
    lt->alignment = MATMUL_ALIGNMENT;
    LT(cublasLtCreate(&lt->handle));
    LT(cublasLtMatmulPreferenceCreate(&lt->preference));
    LT(cublasLtMatmulPreferenceSetAttribute(lt->preference,
           CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    matmul_prefer(lt, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);  // "no reduction" is always allowed
}

static inline void matmul_plan_free(MatmulPlan *p) {
    LT(cublasLtMatmulDescDestroy(p->op));
    LT(cublasLtMatrixLayoutDestroy(p->a));
    LT(cublasLtMatrixLayoutDestroy(p->b));
    LT(cublasLtMatrixLayoutDestroy(p->out));
}

// Closes the library. The caller has waited for all products.
static inline void matmul_close(Matmul *lt) {
    if (lt->handle == NULL) return;
    for (size_t i = 0; i < lt->made && i < MATMUL_PLANS; i++) matmul_plan_free(&lt->plans[i]);
    LT(cublasLtMatmulPreferenceDestroy(lt->preference));
    LT(cublasLtDestroy(lt->handle));
    gpu_free(lt->workspace);
    free(lt->tune.list);
    memset(lt, 0, sizeof *lt);
}

// Returns the largest power of two that divides the address, up to lt->alignment.
static inline uint32_t matmul_alignment(const Matmul *lt, const void *p) {
    uint32_t bytes = lt->alignment;
    while ((uintptr_t)p % bytes != 0) bytes /= 2;
    return bytes;
}

static inline void matmul_set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute,
                              const void *value, size_t bytes) {
    LT(cublasLtMatmulDescSetAttribute(op, attribute, value, bytes));
}

// Sets the epilogue's operand.
static inline void matmul_extra(const MatmulPlan *p, const void *extra) {
    if (p->shape.epilogue != GEMM_PLAIN)
        matmul_set(p->op, p->shape.epilogue == GEMM_SLOPE
                              ? CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER
                              : CUBLASLT_MATMUL_DESC_BIAS_POINTER, &extra, sizeof extra);
}

// Describes a shape to the library and asks for an algorithm. If there is none, ends the program
// or, for the epilogues SLOPE and SUMS, prints a message.
static inline void matmul_plan(Matmul *lt, const MatmulShape *s, MatmulPlan *p) {
    const cublasOperation_t op_a = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                  CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB};
    const int64_t pitch = (int64_t)s->ldo;
    p->shape = *s;
    p->settled = false;
    // The operands are swapped (top of this file): the library's A is our b.
    LT(cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    matmul_set(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b);
    matmul_set(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a);
    matmul_set(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[s->epilogue], sizeof *epilogues);
    if (s->epilogue == GEMM_SLOPE)
        matmul_set(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pitch, sizeof pitch);
    // A row-major matrix with `cols` columns is column-major with `cols` rows.
    LT(cublasLtMatrixLayoutCreate(&p->a, (cudaDataType_t)s->type, s->trans_a ? s->M : s->K,
                                  s->trans_a ? s->K : s->M, (int64_t)s->lda));
    LT(cublasLtMatrixLayoutCreate(&p->b, (cudaDataType_t)s->type, s->trans_b ? s->K : s->N,
                                  s->trans_b ? s->N : s->K, (int64_t)s->ldb));
    LT(cublasLtMatrixLayoutCreate(&p->out, (cudaDataType_t)s->out_type, s->N, s->M, pitch));
    // The heuristic looks at this pointer for its alignment and does not follow it.
    matmul_extra(p, (const void *)(uintptr_t)(4096 + s->align_extra));
    matmul_prefer(lt, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s->align_b);
    matmul_prefer(lt, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s->align_a);
    matmul_prefer(lt, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s->align_out);
    matmul_prefer(lt, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s->align_out);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        lt->handle, p->op, p->b, p->a, p->out, p->out, lt->preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count < 1) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS) status = found.state;
    p->none = status != CUBLAS_STATUS_SUCCESS && s->epilogue > GEMM_BIAS;
    if (p->none)
        printf("cuBLASLt has no algorithm with %s for M=%zu N=%zu K=%zu: they are a pass of their "
               "own\n", s->epilogue == GEMM_SUMS ? "a bias's sums" : "GELU's slopes", s->M, s->N,
               s->K);
    else if (status != CUBLAS_STATUS_SUCCESS)
        fail("cuBLASLt has no algorithm for M=%zu N=%zu K=%zu, pitches %zu %zu %zu, transposed %d "
             "%d, types %d to %d: %s (%d)", s->M, s->N, s->K, s->lda, s->ldb, s->ldo,
             s->trans_a, s->trans_b, s->type, s->out_type, cublasLtGetStatusString(status),
             (int)status);
    p->algo = found.algo;
}

// Returns the plan for a shape: from the table, or a new one, made even if there is no algorithm. A
// training run has some twenty shapes, so the first step makes all plans.
static inline MatmulPlan *matmul_find(Matmul *lt, const MatmulShape *s) {
    for (size_t i = 0; i < lt->made && i < MATMUL_PLANS; i++)
        if (memcmp(&lt->plans[i].shape, s, sizeof *s) == 0) return &lt->plans[i];
    MatmulPlan *p = &lt->plans[lt->made % MATMUL_PLANS];
    if (lt->made >= MATMUL_PLANS) matmul_plan_free(p);  // full: replaces the oldest
    matmul_plan(lt, s, p);
    lt->made++;
    return p;
}

// The operands of the library's call.
typedef struct { const void *a, *b; void *out; cudaStream_t stream; } MatmulOperands;

static inline cublasStatus_t matmul_run(const Matmul *lt, const MatmulPlan *p,
                                        const cublasLtMatmulAlgo_t *algo,
                                        const MatmulOperands *x) {
    const float alpha = 1.0f, beta = p->shape.accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(lt->handle, p->op, &alpha, x->b, p->b, x->a, p->a, &beta, x->out, p->out,
                          x->out, p->out, algo, lt->workspace, MATMUL_WORKSPACE, x->stream);
}

// Returns the mean seconds of n products in a row; INFINITY if the library refuses one.
static double matmul_seconds(const Matmul *lt, const MatmulPlan *p,
                             const cublasLtMatmulAlgo_t *algo, const MatmulOperands *x, int n) {
    cudaEvent_t start, end;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaEventRecord(start, x->stream));
    for (int i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++)
        status = matmul_run(lt, p, algo, x);
    CUDA(cudaEventRecord(end, x->stream));
    const double seconds = device_seconds(start, end);
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    return status == CUBLAS_STATUS_SUCCESS ? seconds / n : INFINITY;
}

// Measures the heuristic's algorithms for a plan, in turn. *best becomes the one with the least
// median time, or the first, if no other is at least 1 % faster. `out` keeps the result of one of
// them. Before the first plan the GPU works for 0.2 s, so that its clocks are those of a busy GPU.
static void matmul_measure(Matmul *lt, const MatmulPlan *p, const MatmulOperands *x, Tuned *best) {
    enum { CANDIDATES = 16, ROUNDS = 7 };
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    double times[CANDIDATES][ROUNDS];
    int count = 0;
    LT(cublasLtMatmulAlgoGetHeuristic(lt->handle, p->op, p->b, p->a, p->out, p->out,
                                      lt->preference, CANDIDATES, found, &count));
    double once = matmul_seconds(lt, p, &p->algo, x, 1);
    for (const double from = seconds_now(); lt->tune.measured == 0 && seconds_now() < from + 0.2;)
        once = matmul_seconds(lt, p, &p->algo, x, 10);
    const int n = (int)fmin(fmax(1e-3 / once, 1), 100);
    for (int k = 0; k < ROUNDS; k++)
        for (int i = 0; i < count; i++) {
            const bool ok = found[i].state == CUBLAS_STATUS_SUCCESS;
            times[i][k] = ok ? matmul_seconds(lt, p, &found[i].algo, x, n) : INFINITY;
        }
    for (int i = 0; i < count; i++) {
        const double us = 1e6 * median_of(times[i], ROUNDS);
        if (i == 0) best->first_us = best->us = us;
        if (i > 0 && us >= fmin(best->us, 0.99 * best->first_us)) continue;
        best->us = us;
        best->number = i;
        best->algo = found[i].algo;
    }
}

// Sets a plan's algorithm to the one in the file of --tune, or to the fastest that is measured. A
// product that is added to a sum is not measured, because that would add to the sum: it takes the
// algorithm of the sum's first product.
static void matmul_settle(Matmul *lt, MatmulPlan *p, const MatmulOperands *x) {
    Tuned mine = {p->shape, p->algo, 0, 0, 0};
    mine.shape.accumulate = 0;
    p->settled = true;
    const Tuned *known = tune_find(&lt->tune, &mine.shape);
    cublasLtMatmulHeuristicResult_t result;
    if (known == NULL && (!lt->tune.measures || p->shape.accumulate)) {
        lt->tune.missing += !lt->tune.measures && !p->shape.accumulate;
        return;
    }
    if (known == NULL) {
        matmul_measure(lt, p, x, &mine);
        tune_add(&lt->tune, &mine);
        known = &mine;
    } else if (cublasLtMatmulAlgoCheck(lt->handle, p->op, p->b, p->a, p->out, p->out, &known->algo,
                                       &result) != CUBLAS_STATUS_SUCCESS
               || result.workspaceSize > MATMUL_WORKSPACE) {
        die("--tune %s: the library does not know its algorithm for M=%zu N=%zu K=%zu: remove the "
            "file, and products are measured anew", lt->tune.file, p->shape.M, p->shape.N,
            p->shape.K);
    }
    p->algo = known->algo;
}

// Computes out (M, N) = op(A) (M, K) op(B) (K, N); if `accumulate`, adds this product to out. A is
// stored (M, K) or, if trans_a, (K, M); B is stored (K, N) or, if trans_b, (N, K). All are
// row-major, with lda, ldb, ldo elements from row to row. extra: the epilogue's operand; extra
// NULL: no epilogue. Does nothing and returns false if the library has no algorithm with GEMM_SLOPE
// or GEMM_SUMS for the shape, and always with these in fp32, where the library's tanh has only 11
// good bits (seen on an H200): then the caller does the epilogue's work itself. `accumulate` needs
// an fp32 output and no epilogue: into 16 bits, the library rounds the product before it adds it
// (seen with cuBLASLt 13.0 on an H200). O is X, or float if sums are not to be rounded. Sizes are
// at least 1. Rows of 16-bit types should begin at multiples of 16 bytes: else products are slow,
// or the program ends for lack of an algorithm. out must overlap no operand.
template <typename X, typename O>
static bool gemm(Matmul *lt, bool trans_a, bool trans_b, size_t M, size_t N, size_t K,
                 const X *a, size_t lda, const X *b, size_t ldb, O *out, size_t ldo,
                 typename MatmulType<X>::type *extra, bool accumulate, cudaStream_t stream,
                 int epilogue = GEMM_BIAS) {
    if (extra != NULL && epilogue > GEMM_BIAS && sizeof(X) == 4) return false;
    GPU_TAKES(stream, 2.0 * (double)M * (double)N * (double)K, gpu_flops);
    if (rehearsal != NULL) return true;
    if (accumulate && (sizeof(O) == 2 || extra != NULL)) fail("gemm: sums are fp32, and plain");
    const MatmulShape s = {
        .M = M, .N = N, .K = K, .lda = lda, .ldb = ldb, .ldo = ldo, .trans_a = trans_a,
        .trans_b = trans_b, .type = MatmulType<X>::CUDA, .out_type = MatmulType<O>::CUDA,
        .epilogue = extra != NULL ? epilogue : GEMM_PLAIN, .accumulate = accumulate,
        .align_a = matmul_alignment(lt, a), .align_b = matmul_alignment(lt, b),
        .align_out = matmul_alignment(lt, out),
        .align_extra = extra != NULL ? matmul_alignment(lt, extra) : 0};
    MatmulPlan *p = matmul_find(lt, &s);
    if (p->none) return false;
    matmul_extra(p, extra);
    const MatmulOperands operands = {a, b, out, stream};
    if (lt->tune.file != NULL && !p->settled) matmul_settle(lt, p, &operands);
    LT(matmul_run(lt, p, &p->algo, &operands));
    return true;
}

#endif
