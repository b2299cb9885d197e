// cublaslt.cpp: the corner of cuBLASLt that a GPT trainer uses, for the emulated GPU.
//
//   D = epilogue(alpha op(A) op(B) + beta C)      all matrices by columns: x[i, j] at x[j ld + i]
//   op(A) (m, k), op(B) (k, n), C and D (m, n); op is the matrix or its transpose
//
// Inputs are fp32, bf16 or fp16, both of one type; C and D are of that type or fp32. Sums are fp32:
// every element of D is summed over k from 0 up, by one thread, so that its bits depend neither
// on the number of threads nor on the schedule. A real tensor core sums in another order.
//
// What the real library refuses is refused here, before a kernel is tuned on a machine that has
// no GPU. The size of every attribute is checked when it is set, its value when it is used. Where
// the real rules are not documented these are the stricter ones: an algorithm is only good for
// the shapes, types, epilogue and alignment that it was asked for, and DGELU wants D in the type of
// the inputs.
#include "internal.h"
#include "include/cublasLt.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

struct emu_lt_handle { int unused; };

struct emu_lt_layout {
    int32_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct emu_lt_matmul {
    int32_t compute, scale, transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};

struct emu_lt_preference {
    uint64_t workspace;
    uint32_t reduction, alignment[4];   // alignment of A, B, C, D in bytes
};

// What an algorithm was chosen for; this is what cublasLtMatmulAlgo_t holds.
struct Choice {
    uint64_t m, n, k, workspace;
    uint32_t epilogue;
    uint16_t compute;
    uint8_t type, type_d, transpose_a, transpose_b, alignment[4], number, pad;
    uint64_t ld_low_bits;
};
static_assert(sizeof(Choice) <= sizeof(cublasLtMatmulAlgo_t), "a choice fits into the algorithm");

// A product in a queue: all that was passed, by value.
struct Product {
    emu_lt_matmul op;
    emu_lt_layout a, b, c, d;
    const void *A, *B, *C;
    void *D, *workspace;
    float alpha, beta;
    uint64_t m, n, k, workspace_bytes;
    uint8_t number;  // of the algorithm
};

// ---------------------------------------------------------------------------------------------
// Types: float, __nv_bfloat16, __half. Stores round to nearest even.

static size_t type_bytes(int32_t type) { return type == CUDA_R_32F ? 4 : 2; }

static float load(const void *p, int32_t type, size_t i) {
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    if (type == CUDA_R_16BF) return (float)((const __nv_bfloat16 *)p)[i];
    return (float)((const __half *)p)[i];
}

static void store(void *p, int32_t type, size_t i, float x) {
    if (type == CUDA_R_32F) ((float *)p)[i] = x;
    else if (type == CUDA_R_16BF) ((__nv_bfloat16 *)p)[i] = __nv_bfloat16(x);
    else ((__half *)p)[i] = __half(x);
}

// ---------------------------------------------------------------------------------------------
// The product. A tile of TILE_M x TILE_N sums stays in registers while k runs; both operands are
// first copied into panels of that height (width), k by k: panel[k][row]. See tide/cpu/matmul.h for why.

typedef float Vec __attribute__((vector_size(64)));
#if defined __AVX512F__
enum { VECS = 2 };
#else
enum { VECS = 1 };
#endif
enum { TILE_M = 16 * VECS, TILE_N = 6 };

static size_t panels(size_t rows, size_t height) { return (rows + height - 1) / height; }

// Small products cost less than starting the threads for them.
static bool worth_threads(size_t operations) { return operations > 100000; }

// Memory for the panels that lasts from one product to the next. It comes from mmap because
// ThreadSanitizer would take a free() of what another stream had allocated for a race.
static float *scratch(size_t floats) {
    static thread_local float *memory;
    static thread_local size_t capacity;
    if (floats > capacity) {
        if (memory != NULL) munmap(memory, capacity * sizeof(float));
        capacity = 2 * floats;
        memory = (float *)mmap(NULL, capacity * sizeof(float), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) emu_fail("cublasLtMatmul: no memory for %zu numbers", capacity);
    }
    return memory;
}

// Element (row, k) is at p[row row_stride + k k_stride]; rows beyond the last are zeros.
template <typename X>
static void pack(float *out, const X *p, size_t rows, size_t K, size_t row_stride,
                 size_t k_stride, size_t height) {
    #pragma omp parallel for num_threads(emu::options.threads) if (worth_threads(8 * rows * K))
    for (size_t panel = 0; panel < panels(rows, height); panel++) {
        const X *in = p + panel * height * row_stride;
        float *o = out + panel * height * K;
        const size_t left = rows - panel * height, valid = left < height ? left : height;
        for (size_t k0 = 0; k0 < K; k0 += 64) {    // 64 rows of the panel stay in the cache
            const size_t k1 = k0 + 64 < K ? k0 + 64 : K;
            if (row_stride == 1)
                for (size_t k = k0; k < k1; k++)
                    for (size_t r = 0; r < valid; r++)
                        o[k * height + r] = (float)in[k * k_stride + r];
            else
                for (size_t r = 0; r < valid; r++)
                    for (size_t k = k0; k < k1; k++)
                        o[k * height + r] = (float)in[r * row_stride + k * k_stride];
            for (size_t k = k0; k < k1; k++)
                for (size_t r = valid; r < height; r++) o[k * height + r] = 0;
        }
    }
}

static void pack_any(float *out, const void *p, int32_t type, size_t rows, size_t K,
                     size_t row_stride, size_t k_stride, size_t height) {
    if (type == CUDA_R_32F)
        pack(out, (const float *)p, rows, K, row_stride, k_stride, height);
    else if (type == CUDA_R_16BF)
        pack(out, (const __nv_bfloat16 *)p, rows, K, row_stride, k_stride, height);
    else
        pack(out, (const __half *)p, rows, K, row_stride, k_stride, height);
}

// tile[j][i] = sum over k of a[k][i] b[k][j]
static void multiply_tile(float (&tile)[TILE_N][TILE_M], const float *a, const float *b, size_t K) {
    Vec sum[TILE_N][VECS] = {};
    for (size_t k = 0; k < K; k++) {
        Vec row[VECS];
        memcpy(row, a + k * TILE_M, sizeof row);
        #pragma GCC unroll 8
        for (size_t j = 0; j < TILE_N; j++)
            #pragma GCC unroll 8
            for (size_t v = 0; v < VECS; v++) sum[j][v] += row[v] * b[k * TILE_N + j];
    }
    memcpy(tile, sum, sizeof tile);
}

// The same, k by halves: what algorithms other than the first one do, so that their bits differ.
static void multiply_halves(float (&tile)[TILE_N][TILE_M], const float *a, const float *b,
                            size_t K) {
    float half[TILE_N][TILE_M];
    multiply_tile(half, a, b, K / 2);
    multiply_tile(tile, a + K / 2 * TILE_M, b + K / 2 * TILE_N, K - K / 2);
    for (size_t j = 0; j < TILE_N; j++)
        for (size_t i = 0; i < TILE_M; i++) tile[j][i] += half[j][i];
}

// The derivative of GELU in its tanh approximation, 0.5 x (1 + tanh(u)) with
// u = sqrt(2/pi) (x + 0.044715 x^3).
static float gelu_derivative(float x) {
    const float u = 0.7978845608f * (x + 0.044715f * x * x * x), t = tanhf(u);
    const float du = 0.7978845608f * (1 + 3 * 0.044715f * x * x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * du;
}

// What an epilogue consists of. The values of cublasLtEpilogue_t are made of these bits.
static bool has_bias(uint32_t e) { return (e & 4) != 0; }
static bool has_dgelu(uint32_t e) { return (e & 64) != 0; }
static bool has_bias_gradient(uint32_t e) { return e == CUBLASLT_EPILOGUE_BGRADB; }

// x is alpha op(A) op(B)[i, j]; stores D[i, j].
static void finish_element(const Product &p, size_t i, size_t j, float x) {
    const uint32_t e = p.op.epilogue;
    const int32_t type = p.d.type;
    x *= p.alpha;
    if (p.beta != 0) x += p.beta * load(p.C, type, j * (size_t)p.c.ld + i);
    if (has_bias(e)) x += load(p.op.bias, type, i);
    if (has_dgelu(e)) x *= gelu_derivative(load(p.op.aux, type, j * (size_t)p.op.aux_ld + i));
    store(p.D, type, j * (size_t)p.d.ld + i, x);
}

// Tells the memory checker and the sanitizers what a matrix (by columns) covers, column by column
// where its columns do not touch: what lies between them is not this product's business.
static void touch_matrix(const void *p, uint64_t rows, uint64_t cols, int64_t ld, int32_t type,
                         bool write, const char *what) {
    if (rows == (uint64_t)ld || cols == 1)
        emu::touch(p, rows * cols * type_bytes(type), write, what);
    else
        for (uint64_t j = 0; j < cols; j++)
            emu::touch((const char *)p + j * (uint64_t)ld * type_bytes(type),
                       rows * type_bytes(type), write, what);
}

static void touch_operands(const Product &p) {
    const uint32_t e = p.op.epilogue;
    const size_t element = type_bytes(p.d.type);
    touch_matrix(p.A, p.a.rows, p.a.cols, p.a.ld, p.a.type, false, "cublasLtMatmul: A");
    touch_matrix(p.B, p.b.rows, p.b.cols, p.b.ld, p.b.type, false, "cublasLtMatmul: B");
    if (p.beta != 0)
        touch_matrix(p.C, p.m, p.n, p.c.ld, p.c.type, false, "cublasLtMatmul: C");
    if (has_bias(e)) emu::touch(p.op.bias, p.m * element, false, "cublasLtMatmul: bias");
    if (has_dgelu(e))
        touch_matrix(p.op.aux, p.m, p.n, p.op.aux_ld, p.d.type, false, "cublasLtMatmul: aux");
    touch_matrix(p.D, p.m, p.n, p.d.ld, p.d.type, true, "cublasLtMatmul: D");
    if (has_bias_gradient(e))
        emu::touch(p.op.bias, p.n * element, true, "cublasLtMatmul: bias gradient");
}

// A real product leaves partial sums in its workspace. Nothing is left here but NaN, so that two
// products in flight on one workspace are a race, and data that is kept in it does not survive.
static void clobber_workspace(const Product &p) {
    if (p.workspace_bytes == 0) return;
    emu::touch(p.workspace, p.workspace_bytes, true, "cublasLtMatmul: workspace");
    emu::hidden_fill(p.workspace, 0xff, p.workspace_bytes);
}

// gradient[row] = the sum over k of a row of a packed operand
static void sum_over_k(void *gradient, int32_t type, const float *packed, size_t rows, size_t K,
                       size_t height) {
    for (size_t row = 0; row < rows; row++) {
        float sum = 0;
        for (size_t k = 0; k < K; k++)
            sum += packed[row / height * height * K + k * height + row % height];
        store(gradient, type, row, sum);
    }
}

static void compute_product(const Product &p) {
    const size_t m = p.m, n = p.n, K = p.k;
    const size_t panels_m = panels(m, TILE_M), panels_n = panels(n, TILE_N);
    float *a = scratch(panels_m * TILE_M * K + panels_n * TILE_N * K + 64);
    float *b = a + panels_m * TILE_M * K;
    const size_t lda = (size_t)p.a.ld, ldb = (size_t)p.b.ld;
    const bool at = p.op.transpose_a != CUBLAS_OP_N, bt = p.op.transpose_b != CUBLAS_OP_N;
    pack_any(a, p.A, p.a.type, m, K, at ? lda : 1, at ? 1 : lda, TILE_M);
    pack_any(b, p.B, p.b.type, n, K, bt ? 1 : ldb, bt ? ldb : 1, TILE_N);

    #pragma omp parallel for collapse(2) num_threads(emu::options.threads) \
        if (worth_threads(m * n * K))
    for (size_t pj = 0; pj < panels_n; pj++)
        for (size_t pi = 0; pi < panels_m; pi++) {
            float tile[TILE_N][TILE_M];
            const float *rows = a + pi * TILE_M * K, *cols = b + pj * TILE_N * K;
            multiply_tile(tile, rows, cols, K);
            if (p.number > 0) multiply_halves(tile, rows, cols, K);
            for (size_t j = pj * TILE_N; j < n && j < (pj + 1) * TILE_N; j++)
                for (size_t i = pi * TILE_M; i < m && i < (pi + 1) * TILE_M; i++)
                    finish_element(p, i, j, tile[j % TILE_N][i % TILE_M]);
        }
    if (has_bias_gradient(p.op.epilogue)) sum_over_k(p.op.bias, p.d.type, b, n, K, TILE_N);
}

static void run_product(const Product &p) {
    touch_operands(p);
    clobber_workspace(p);
    emu::hide_accesses(true);
    compute_product(p);
    emu::hide_accesses(false);
}

// ---------------------------------------------------------------------------------------------
// What is accepted

static bool known_epilogue(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS
           || e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_BGRADB;
}

static bool aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

// Checks shapes and types; fills in m, n, k on success.
static cublasStatus_t check_product(Product &p) {
    const emu_lt_matmul &op = p.op;
    for (int32_t t : {op.transpose_a, op.transpose_b})
        if (t != CUBLAS_OP_N && t != CUBLAS_OP_T) return CUBLAS_STATUS_INVALID_VALUE;
    for (const emu_lt_layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        if (l->rows == 0 || l->cols == 0 || l->ld < 0 || (uint64_t)l->ld < l->rows)
            return CUBLAS_STATUS_INVALID_VALUE;
        if (l->rows > INT_MAX || l->cols > INT_MAX) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (l->type != CUDA_R_32F && l->type != CUDA_R_16BF && l->type != CUDA_R_16F)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const bool at = op.transpose_a != CUBLAS_OP_N, bt = op.transpose_b != CUBLAS_OP_N;
    p.m = at ? p.a.cols : p.a.rows;
    p.k = at ? p.a.rows : p.a.cols;
    p.n = bt ? p.b.rows : p.b.cols;
    if (p.k != (bt ? p.b.cols : p.b.rows) || p.d.rows != p.m || p.d.cols != p.n
        || p.c.rows != p.m || p.c.cols != p.n) return CUBLAS_STATUS_INVALID_VALUE;

    if (p.a.type != p.b.type || p.c.type != p.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.d.type != p.a.type && p.d.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (op.compute != CUBLAS_COMPUTE_32F || op.scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;

    const uint32_t e = op.epilogue;
    if (!known_epilogue(e)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((has_bias(e) || has_bias_gradient(e)) && !aligned(op.bias, type_bytes(p.d.type)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_dgelu(e)) {
        if (p.d.type != p.a.type) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (op.aux_ld < 0 || (uint64_t)op.aux_ld < p.m) return CUBLAS_STATUS_INVALID_VALUE;
        if (op.aux_ld % 8 != 0 || !aligned(op.aux, 16)) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// The algorithm for a checked product: 16-byte accesses where the caller's alignment allows them,
// and as much of the workspace as the sums of D take, if it may have any.
static Choice choose(const Product &p, const uint32_t *alignment, uint64_t max_workspace) {
    Choice c;
    memset(&c, 0, sizeof c);
    c.m = p.m; c.n = p.n; c.k = p.k;
    c.epilogue = p.op.epilogue;
    c.compute = (uint16_t)p.op.compute;
    c.type = (uint8_t)p.a.type;
    c.type_d = (uint8_t)p.d.type;
    c.transpose_a = (uint8_t)p.op.transpose_a;
    c.transpose_b = (uint8_t)p.op.transpose_b;
    for (int i = 0; i < 4; i++) c.alignment[i] = (uint8_t)(alignment[i] < 16 ? alignment[i] : 16);
    for (const emu_lt_layout *l : {&p.a, &p.b, &p.c, &p.d})
        c.ld_low_bits = c.ld_low_bits << 4 | ((uint64_t)l->ld * type_bytes(l->type) & 15);
    uint64_t wanted = 4 * p.m * p.n;
    if (wanted > 65536) wanted = 65536;
    c.workspace = wanted < max_workspace ? wanted : max_workspace / 4 * 4;
    return c;
}

static bool same_problem(const Choice &x, Choice y) {
    memcpy(y.alignment, x.alignment, sizeof y.alignment);   // checked against the pointers instead
    y.workspace = x.workspace;
    y.number = x.number;
    return memcmp(&x, &y, sizeof x) == 0;
}

// Copies an attribute if it has the size that the real library expects, and refuses it if not.
static cublasStatus_t set_attribute(void *field, size_t expected, const void *value, size_t bytes) {
    if (value == NULL || bytes != expected) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define SET(field) set_attribute(&(field), sizeof(field), value, bytes)

// ---------------------------------------------------------------------------------------------
// The calls

static uint32_t without;  // epilogues with one of these bits have no algorithm

void emu_lt_without(uint32_t epilogues) { without = epilogues; }

// EMU_LT_TIMES=3,1,2: there are so many algorithms for every product, and each takes as long as so
// many kernels. By default there is one.
static int algorithms(int times[16]) {
    const char *text = getenv("EMU_LT_TIMES");
    int n = 0;
    for (const char *at = text; at != NULL && *at != '\0' && n < 16; at += *at == ',') {
        char *end;
        times[n++] = (int)strtol(at, &end, 10);
        if (end == at || times[n - 1] < 1 || (*end != ',' && *end != '\0'))
            emu_fail("EMU_LT_TIMES=%s: expected numbers of kernels, as in 3,1,2", text);
        at = end;
    }
    if (n == 0) times[n++] = 1;
    return n;
}

extern "C" {

size_t cublasLtGetVersion(void) { return 120000; }

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "an unknown cublasStatus_t";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    if (handle == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *handle = new emu_lt_handle{0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (desc == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *desc = new emu_lt_matmul{(int32_t)compute, (int32_t)scale, CUBLAS_OP_N, CUBLAS_OP_N,
                              CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    if (desc == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return SET(desc->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: return SET(desc->transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return SET(desc->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return SET(desc->bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return SET(desc->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return SET(desc->aux_ld);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    if (layout == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = new emu_lt_layout{(int32_t)type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    if (preference == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *preference = new emu_lt_preference{0, 7, {256, 256, 256, 256}};  // any reduction scheme
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t bytes) {
    if (preference == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return SET(preference->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return SET(preference->reduction);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return SET(preference->alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return SET(preference->alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return SET(preference->alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return SET(preference->alignment[3]);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

// As many algorithms as there are, or none: CUBLAS_STATUS_INVALID_VALUE for shapes that do not fit together,
// CUBLAS_STATUS_NOT_SUPPORTED for types, alignments and epilogues that nothing is there for.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
    cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
    cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t *results, int *found) {
    if (found == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (desc == NULL || A == NULL || B == NULL || C == NULL || D == NULL || preference == NULL
        || results == NULL || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
    Product p = {*desc, *A, *B, *C, *D, NULL, NULL, NULL, NULL, NULL, 1, 0, 0, 0, 0, 0, 0};
    const cublasStatus_t status = check_product(p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (p.op.epilogue & without) return CUBLAS_STATUS_NOT_SUPPORTED;
    const emu_lt_layout *layouts[4] = {A, B, C, D};
    for (int i = 0; i < 4; i++)
        if (preference->alignment[i] % type_bytes(layouts[i]->type) != 0
            || preference->alignment[i] == 0) return CUBLAS_STATUS_NOT_SUPPORTED;

    Choice choice = choose(p, preference->alignment, preference->workspace);
    int times[16];
    const int count = algorithms(times);
    for (int i = 0; i < count && i < requested; i++) {
        choice.number = (uint8_t)i;
        memset(&results[i], 0, sizeof results[i]);
        memcpy(&results[i].algo, &choice, sizeof choice);
        results[i].workspaceSize = choice.workspace;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1;
        *found = i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Is this algorithm, perhaps of another run, one for this product?
cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
    cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (desc == NULL || A == NULL || B == NULL || C == NULL || D == NULL || algo == NULL
        || result == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    Product p = {*desc, *A, *B, *C, *D, NULL, NULL, NULL, NULL, NULL, 1, 0, 0, 0, 0, 0, 0};
    const cublasStatus_t status = check_product(p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    static const uint32_t widest[4] = {16, 16, 16, 16};
    int times[16];
    Choice asked;
    memcpy(&asked, algo, sizeof asked);
    if (!same_problem(asked, choose(p, widest, 0)) || asked.number >= algorithms(times))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    result->workspaceSize = asked.workspace;
    return result->state = CUBLAS_STATUS_SUCCESS;
}

// Queues D = epilogue(alpha op(A) op(B) + beta C) on the stream. `algo` may be null.
cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
    cublasLtMatrixLayout_t layout_a, const void *B, cublasLtMatrixLayout_t layout_b,
    const void *beta, const void *C, cublasLtMatrixLayout_t layout_c, void *D,
    cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo, void *workspace,
    size_t workspace_bytes, cudaStream_t stream) {
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (desc == NULL || layout_a == NULL || layout_b == NULL || layout_c == NULL || layout_d == NULL
        || alpha == NULL || beta == NULL || A == NULL || B == NULL || D == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    Product p = {*desc, *layout_a, *layout_b, *layout_c, *layout_d, A, B, C, D, workspace,
                 0, 0, 0, 0, 0, 0, 0};
    const cublasStatus_t status = check_product(p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);

    const uint32_t e = p.op.epilogue;
    if (p.beta != 0 && C == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    if (C == D && p.c.ld != p.d.ld) return CUBLAS_STATUS_INVALID_VALUE;
    if ((has_bias(e) || has_bias_gradient(e)) && p.op.bias == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (has_dgelu(e) && p.op.aux == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    if (D == A || D == B) emu_fail("cublasLtMatmul: D is also an input");

    static const uint32_t widest[4] = {16, 16, 16, 16};
    if (workspace == NULL) workspace_bytes = 0;
    Choice choice = choose(p, widest, workspace_bytes);
    if (algo != NULL) {
        Choice asked;
        memcpy(&asked, algo, sizeof asked);
        if (!same_problem(asked, choice)) return CUBLAS_STATUS_INVALID_VALUE;
        if (asked.workspace > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
        const void *pointers[4] = {A, B, p.beta != 0 ? C : D, D};
        for (int i = 0; i < 4; i++)
            if (!aligned(pointers[i], asked.alignment[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
        choice = asked;
    }
    if (!aligned(workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
    int times[16];
    if (choice.number >= algorithms(times)) return CUBLAS_STATUS_INVALID_VALUE;
    p.workspace_bytes = choice.workspace;
    p.number = choice.number;
    emu::enqueue("cublasLtMatmul", stream, [p] { run_product(p); }, EMU_PC);
    for (int i = 1; i < times[p.number]; i++)
        emu::enqueue("cublasLtMatmul goes on", stream, [] {}, EMU_PC);
    return CUBLAS_STATUS_SUCCESS;
}

}
