// test_emu.cu: what the emulated device refuses as CUDA does. No test of the trainer would notice:
// the trainer makes no such mistake. The same file runs on a real device, without what needs the
// emulated one. (Bugs that the emulated device must find are in bugs.cu. That streams, copies,
// kernels, cp.async, matrix instructions and products compute what they should: test_kernels.cu,
// test_attention.cu, test_matmul_gpu.cu, test_host.cu, test_placement.cu. The virtual clock is held
// against rehearsals, in test_placement.cu and test_zo_gpu.cu.)
#include "../../../tide/base/bf16.h"
#include "../../test/test.h"
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector>

// A call that has to work, for the test to go on: its status, of any library, is 0.
#define OK(call) check_success((int)(call), #call, __LINE__)
static void check_success(int status, const char *call, int line) {
    if (status == 0) return;
    printf("FAIL test_emu: %d: %s (line %d)\n", status, call, line);
    exit(1);
}

// A call that must give exactly this error, and leaves nothing behind: the next call works.
#define EXPECT(call, error)                                                                   \
    do {                                                                                      \
        const cudaError_t got_ = (call);                                                      \
        CHECK(got_ == (error), "%s", cudaGetErrorName(got_));                                 \
        (void)cudaGetLastError();                                                             \
    } while (0)

static cudaStream_t stream;  // which does not wait for the default one

// ---------------------------------------------------------------------------------------------
// Launches

__global__ static void mark_kernel(int *p) {
    if (blockIdx.x + threadIdx.x == 0) p[0] = 1;
}

__global__ static void __launch_bounds__(128) bounded_kernel(int *p) { p[threadIdx.x] = 1; }

// The errors that a real device gives.
static void illegal_launches_fail(void) {
    const cudaError_t invalid = cudaErrorInvalidValue;
    const struct { dim3 grid, block; size_t shared; cudaError_t error; } cases[] = {
        {dim3(1), dim3(1024), 0, cudaSuccess},
        {dim3(1), dim3(1025), 0, invalid},
        {dim3(1), dim3(32, 33), 0, invalid},
        {dim3(1), dim3(1, 1, 65), 0, invalid},
        {dim3(1), dim3(0), 0, invalid},
        {dim3(0), dim3(32), 0, invalid},
        {dim3(70000), dim3(1), 0, cudaSuccess},
        {dim3(1, 65536), dim3(1), 0, invalid},
        {dim3(0x80000000u), dim3(1), 0, invalid},
        {dim3(1), dim3(32), 48 << 10, cudaSuccess},
        {dim3(1), dim3(32), (48 << 10) + 1, invalid},
    };
    int *p, ran;
    OK(cudaMalloc(&p, 160 * sizeof *p));
    for (const auto &c : cases) {
        OK(cudaMemset(p, 0, sizeof *p));
        OK(cudaDeviceSynchronize());
        mark_kernel<<<c.grid, c.block, c.shared, stream>>>(p);
        const cudaError_t e = cudaGetLastError();
        CHECK(e == c.error, "%s, expected %s, for grid (%u,%u,%u) block (%u,%u,%u) shared %zu",
              cudaGetErrorName(e), cudaGetErrorName(c.error), c.grid.x, c.grid.y, c.grid.z,
              c.block.x, c.block.y, c.block.z, c.shared);
        OK(cudaDeviceSynchronize());
        OK(cudaMemcpy(&ran, p, sizeof ran, cudaMemcpyDeviceToHost));
        CHECK(ran == (c.error == cudaSuccess), "ran or did not run");
    }
    bounded_kernel<<<1, 128, 0, stream>>>(p);
    EXPECT(cudaGetLastError(), cudaSuccess);
    bounded_kernel<<<1, 160, 0, stream>>>(p);
    CHECK(cudaGetLastError() != cudaSuccess, "there are no registers for so many threads");
    EXPECT(cudaGetLastError(), cudaSuccess);  // it was taken
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    EXPECT(cudaFuncSetAttribute(mark_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)prop.sharedMemPerBlockOptin + 1), invalid);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
}

// ---------------------------------------------------------------------------------------------
// Numbers

// Of every fp16 number: to fp32, and from it, from the tie above it, and from beside the tie.
static void fp16_rounds_to_nearest(void) {
    for (int h = 0; h < 0x7c00; h++) {
        const float from = f16_to_f32((uint16_t)h);
        const float next = h + 1 < 0x7c00 ? f16_to_f32((uint16_t)(h + 1)) : 65536;
        const float tie = (from + next) / 2;
        const float x[4] = {from, nextafterf(tie, 0), tie, nextafterf(tie, 1e9f)};
        const int nearest[4] = {h, h, h + h % 2, h + 1};
        for (int k = 0; k < 8; k++) {
            const __half half = __float2half_rn(k < 4 ? x[k] : -x[k - 4]);
            uint16_t bits;
            memcpy(&bits, &half, 2);
            CHECK(bits == (nearest[k % 4] | (k < 4 ? 0 : 0x8000)), "%g: %x", x[k % 4], bits);
            CHECK(k > 0 || __half2float(half) == from, "%x is %g", bits, __half2float(half));
        }
    }
    CHECK(isnan(__half2float(__float2half_rn(NAN))), "NaN");
    CHECK(isinf(__half2float(__float2half_rn(INFINITY))), "infinity");
}

// ---------------------------------------------------------------------------------------------
// Memory, streams, events

static void wrong_calls_are_refused(void) {
    float ms, *p;
    std::vector<float> own(5000);
    const size_t bytes = own.size() * sizeof(float);
    size_t left, total;
    cudaEvent_t timed, untimed, never;
    OK(cudaMemGetInfo(&left, &total));
    EXPECT(cudaMalloc(&p, total + (64 << 20)), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, bytes));
    EXPECT(cudaFree(p), cudaSuccess);
    EXPECT(cudaFree(p), cudaErrorInvalidValue);  // twice
    EXPECT(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
    OK(cudaHostRegister(own.data(), bytes, cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(own.data(), bytes, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(own.data()));
#ifdef __CUDA_EMU__  // a part of it is registered: exactly 8 numbers from the 16th on
    OK(cudaHostRegister(&own[16], 8 * sizeof(float), cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(own.data(), bytes, 0), cudaErrorHostMemoryAlreadyRegistered);
    EXPECT(cudaFreeHost(&own[16]), cudaErrorInvalidValue);
    OK(cudaHostRegister(own.data(), 16 * sizeof(float), cudaHostRegisterDefault));
    OK(cudaHostUnregister(own.data()));
    OK(cudaHostUnregister(&own[16]));
    unsigned *word, on_the_stack = 0;
    OK(cudaMallocHost(&word, sizeof *word));
    CHECK(cuStreamWaitValue32(stream, (CUdeviceptr)word, 0, 1) == CUDA_ERROR_INVALID_VALUE
              && cuStreamWaitValue32(stream, (CUdeviceptr)&on_the_stack, 0, 0)
                 == CUDA_ERROR_INVALID_VALUE,
          "a stream waits for a word of page-locked memory, until that is reached or passed");
    OK(cudaFreeHost(word));
#endif
    OK(cudaEventCreate(&timed));
    OK(cudaEventCreate(&never));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    EXPECT(cudaEventQuery(never), cudaSuccess);  // never recorded: nothing to wait for
    OK(cudaEventRecord(timed, stream));
    OK(cudaEventRecord(untimed, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(cudaEventElapsedTime(&ms, timed, untimed), cudaErrorInvalidResourceHandle);
    EXPECT(cudaEventElapsedTime(&ms, never, timed), cudaErrorInvalidResourceHandle);
    EXPECT(cudaSetDevice(1000), cudaErrorInvalidDevice);
    OK(cudaEventDestroy(timed));
    OK(cudaEventDestroy(untimed));
    OK(cudaEventDestroy(never));
}

// A copy into pageable memory has ended when it returns.
static void pageable_copies_are_done(void) {
    if (getenv("EMU_STRICT") != NULL) SKIP("EMU_STRICT forbids copies that are not asynchronous");
    std::vector<char> own(3000, 1);
    char *p;
    OK(cudaMalloc(&p, own.size()));
    OK(cudaMemsetAsync(p, 7, own.size(), stream));
    OK(cudaMemcpyAsync(own.data(), p, own.size(), cudaMemcpyDeviceToHost, stream));
    CHECK(own.front() == 7 && own.back() == 7, "%d", own.front());
    OK(cudaFree(p));
}

// ---------------------------------------------------------------------------------------------
// What cuBLASLt refuses

static cublasLtHandle_t lt;
static char *memory;  // of all matrices, 4 KiB each, and of the workspace behind them

// A product D = op(A) B in bf16, A (k, m) transposed, all matrices by columns. Of a run: is its
// algorithm that of the first question, is there an A, and where; bytes of the workspace.
struct Layout { cudaDataType_t type; uint64_t rows, cols; int64_t ld; };
struct Question {
    Layout a, b, c, d;
    uint32_t epilogue;
    int64_t aux_ld;
    int wanted;  // algorithms
    bool other, no_a;
    size_t a_at, workspace;
};
static const Question good = {{CUDA_R_16BF, 32, 16, 32}, {CUDA_R_16BF, 32, 24, 32},
                              {CUDA_R_16BF, 16, 24, 16}, {CUDA_R_16BF, 16, 24, 16},
                              CUBLASLT_EPILOGUE_DEFAULT, 16, 1, false, false, 0, 1 << 20};

// Asks for an algorithm, and runs the product with it, or with that of the first, good question.
static cublasStatus_t ask(const Question &q) {
    static cublasLtMatmulAlgo_t first;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t l[4];
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    const int32_t transposed = CUBLAS_OP_T;
    const uint64_t most = 256;
    const char *a = q.no_a ? NULL : memory + q.a_at, *b = memory + (1 << 12);
    char *d = memory + (2 << 12), *aux = memory + (3 << 12);
    const float one = 1, zero = 0;
    int count = 0;
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const struct { cublasLtMatmulDescAttributes_t attribute; const void *value; size_t bytes; }
    attributes[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE, &q.epilogue, 4},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, 8},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &q.aux_ld, 8}};
    for (const auto &x : attributes) {
        OK(cublasLtMatmulDescSetAttribute(op, x.attribute, x.value, x.bytes));
        CHECK(cublasLtMatmulDescSetAttribute(op, x.attribute, x.value, 12 - x.bytes)
              == CUBLAS_STATUS_INVALID_VALUE, "attribute %d has any size", x.attribute);
    }
    const Layout *layouts[4] = {&q.a, &q.b, &q.c, &q.d};
    for (int i = 0; i < 4; i++)
        OK(cublasLtMatrixLayoutCreate(&l[i], layouts[i]->type, layouts[i]->rows, layouts[i]->cols,
                                      layouts[i]->ld));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(lt, op, l[0], l[1], l[2], l[3], preference,
                                                      q.wanted, &found, &count);
    CHECK(count == (s == CUBLAS_STATUS_SUCCESS), "status %d, and %d found", s, count);
    if (count == 1) {
        CHECK(found.workspaceSize <= most, "%zu bytes", found.workspaceSize);
        if (&q == &good) first = found.algo;
        s = cublasLtMatmul(lt, op, &one, a, l[0], b, l[1], &zero, d, l[2], d, l[3],
                           q.other ? &first : &found.algo, memory + (4 << 12), q.workspace, stream);
    }
    OK(cudaStreamSynchronize(stream));
    for (cublasLtMatrixLayout_t layout : l) OK(cublasLtMatrixLayoutDestroy(layout));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatmulDescDestroy(op));
    return s;
}

// What differs from the good question. strict: the real library may take it.
static const struct { const char *what; bool strict; void (*change)(Question *q); } refused[] = {
    {"k differs", false, [](Question *q) { q->b.rows = 31; }},
    {"n differs", false, [](Question *q) { q->d.cols = 23; }},
    {"columns of A overlap", false, [](Question *q) { q->a.ld = 31; }},
    {"A and B of two types", false, [](Question *q) { q->b.type = CUDA_R_32F; }},
    {"C and D of two types", true, [](Question *q) { q->c.type = CUDA_R_32F; }},
    {"fp32 to bf16", false, [](Question *q) { q->a.type = q->b.type = CUDA_R_32F; }},
    {"no such epilogue", false, [](Question *q) { q->epilogue = 64; }},
    {"columns of aux overlap", false, [](Question *q) {
        q->epilogue = CUBLASLT_EPILOGUE_DGELU;
        q->aux_ld = 8;
    }},
    {"aux ld is not a multiple of 8", false, [](Question *q) {
        q->epilogue = CUBLASLT_EPILOGUE_DGELU;
        q->aux_ld = 20;
    }},
    {"no algorithm is wanted", false, [](Question *q) { q->wanted = 0; }},
    {"no A", false, [](Question *q) { q->no_a = true; }},
    {"A is less aligned than was said", true, [](Question *q) { q->a_at = 2; }},
    {"the workspace is too small", true, [](Question *q) { q->workspace = 255; }},
    {"another shape's algorithm", true, [](Question *q) {
        q->b.cols = q->c.cols = q->d.cols = 23;
        q->other = true;
    }},
};

static void wrong_products_are_refused(void) {
    OK(cublasLtCreate(&lt));
    OK(cudaMalloc(&memory, (4 << 12) + good.workspace));
    OK(cudaMemset(memory, 0, 4 << 12));
    OK(cudaDeviceSynchronize());
    OK(ask(good));
    for (const auto &x : refused) {
        Question q = good;
        x.change(&q);
#ifndef __CUDA_EMU__
        if (x.strict) continue;
#endif
        CHECK(ask(q) != CUBLAS_STATUS_SUCCESS, "%s", x.what);
    }
    OK(cublasLtDestroy(lt));
    OK(cudaFree(memory));
}

int main(int, char **) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skip test_emu: no device\n");
        return 0;
    }
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(illegal_launches_fail);
    RUN(fp16_rounds_to_nearest);
    RUN(wrong_calls_are_refused);
    RUN(pageable_copies_are_done);
    RUN(wrong_products_are_refused);
    OK(cudaStreamDestroy(stream));
    return test_summary();
}
