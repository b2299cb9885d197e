// test_emu.cu: what the emulated device refuses as CUDA does, and what its virtual clock says. No
// test of the trainer would notice: the trainer makes no such mistake. The same file runs on a real
// device; a test that needs the emulated one says so and is skipped there. (Bugs that the emulated
// device must find are in bugs.cu. That streams, copies, kernels, cp.async, matrix instructions and
// products compute what they should: test_kernels.cu, test_attention.cu, test_matmul_gpu.cu,
// test_host.cu, test_placement.cu.)
#include "../../../tide/base/bf16.h"
#include "../../test/test.h"
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <string>
#include <vector>
#ifdef __CUDA_EMU__
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

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

static cudaStream_t stream, other;  // which do not wait for the default one

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
// The virtual clock: 1e9 bytes/s each way, 10 us for a kernel, 10 us for a host function

#ifdef __CUDA_EMU__
static const size_t MB = 1000000;       // one millisecond

static void take_a_millisecond(void *data) {
    pthread_t t;        // as if a worker did it
    pthread_create(&t, NULL, [](void *p) -> void * { return emu_virtual_seconds(1e-3), p; }, data);
    pthread_join(t, NULL);
}

// A program is what is enqueued on streams a, b and c, in this order:
//
//   a+3   3 MB to the device        a~    a host function      a!2   event 2 is recorded
//   a-3   to the host               a*    a kernel             a?2   waits for it
//   a^3   from pageable memory      a0    a memset             h?2   the host waits for it
//   h~3   the host computes for 3 ms      a/    a copy within the device
//   a=3   the host waits for a: it is 3 ms since the begin; h=3: for all; h.3: without a wait
static void play(const char *program) {
    cudaStream_t streams[3] = {stream, other, NULL};
    cudaEvent_t events[10];
    char *host, *device;
    std::vector<char> pageable(8 * MB);
    OK(cudaStreamCreateWithFlags(&streams[2], cudaStreamNonBlocking));
    for (cudaEvent_t &e : events) OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaMallocHost(&host, 8 * MB));
    OK(cudaMalloc(&device, 8 * MB));
    OK(cudaDeviceSynchronize());
    const double start = emu_virtual_now();
    for (const char *at = program; *at != '\0';) {
        char *end;
        const cudaStream_t on = *at == 'h' ? NULL : streams[*at - 'a'];
        const char what = at[1];
        const double number = strtod(at + 2, &end);
        const size_t bytes = (size_t)(number * (double)MB);
        const cudaEvent_t e = events[(int)number];
        if (what == '+') OK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, on));
        if (what == '-') OK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on));
        if (what == '^')
            OK(cudaMemcpyAsync(device, pageable.data(), bytes, cudaMemcpyHostToDevice, on));
        if (what == '*') mark_kernel<<<1, 256, 0, on>>>((int *)device);
        if (what == '0') OK(cudaMemsetAsync(device, 0, MB, on));
        if (what == '/') OK(cudaMemcpyAsync(device, device + MB, MB, cudaMemcpyDefault, on));
        if (what == '~' && on == NULL) emu_virtual_seconds(number * 1e-3);
        if (what == '~' && on != NULL) OK(cudaLaunchHostFunc(on, take_a_millisecond, NULL));
        if (what == '!') OK(cudaEventRecord(e, on));
        if (what == '?') OK(on == NULL ? cudaEventSynchronize(e) : cudaStreamWaitEvent(on, e, 0));
        if (what == '=') OK(on == NULL ? cudaDeviceSynchronize() : cudaStreamSynchronize(on));
        const double ms = (emu_virtual_now() - start) * 1e3;
        CHECK((what != '=' && what != '.') || fabs(ms - number) < 1e-4, "%.4f ms, not %.4f: %s", ms,
              number, program);
        for (at = end; *at == ' ';) at++;
    }
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    OK(cudaFreeHost(host));
    OK(cudaFree(device));
    for (cudaEvent_t e : events) OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(streams[2]));
}

// Pieces that travel in, are updated, and travel back, through a ring of slots on the device.
static void a_ring_needs_slots(void) {
    const double ms[] = {6 * 2.01,          // one slot: in, update, out, one after the other
                         3 * 2.01 + 1,      // slots are busy for 2.01 ms
                         6 + 0.01 + 1};     // the links are busy all the time
    for (int slots = 1; slots <= 3; slots++) {
        std::string program;
        for (int i = 0; i < 6; i++) {
            const std::string k = std::to_string(i % slots);
            if (i >= slots) program += "a?" + k + " ";
            program += "a+1 a!8 b?8 b* b!9 c?9 c-1 c!" + k + " ";
        }
        play((program + "h=" + std::to_string(ms[slots - 1])).c_str());
    }
}

static void the_clock_of_programs(void) {
    const char *order = getenv("EMU_SCHED");
    a_ring_needs_slots();
    play("a* a0 a/ a=.03");                         // each takes as long as a kernel
    play("a+3 a!1 a-2 h?1 h.3 h=5");                // an event is when it is recorded
    play("a+3 b-3 h=3");                            // directions overlap
    play("a+3 b+3 h=6");                            // one engine each way
    play("a+5 b~ b~ b~ b~ b=4.04 h=5 h~2 a+1 h=8"); // hidden under the copy; the host computes
    if (getenv("EMU_STRICT") == NULL) play("a^2 b-2 h=4");  // the host waits: nothing overlaps
    if (order == NULL || *order == '\0' || strcmp(order, "earliest") == 0)
        play("a+1 a+1 a+1 b-.5 b+1 b=2 h=4");       // an engine takes what is ready first
}

// What the dependencies alone determine is the same under every schedule.
static void the_virtual_clock(void) {
    if (getenv("EMU_CLOCK") != NULL) SKIP("EMU_CLOCK is set already");
    for (const char *order : {"", "eager", "lazy", "prio:0", "prio:1", "random:1", "random:2"}) {
        const pid_t child = fork();
        if (child == 0) {
            setenv("EMU_CLOCK", "virtual", 1);
            setenv("EMU_SCHED", order, 1);
            execl("/proc/self/exe", "test_emu", "clock", (char *)NULL);
            _exit(127);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0, "EMU_SCHED=%s: status %d", order, status);
    }
}
#endif

// ---------------------------------------------------------------------------------------------
// What cuBLASLt refuses

static cublasLtHandle_t lt;
static char *memory;  // of all matrices, 4 KiB each, and of the workspace behind them

// A product D = op(A) B in bf16, A (k, m) transposed, all matrices by columns: of each matrix what
// cublasLtMatrixLayoutCreate() takes; the epilogue, the distance of aux's columns, and its place;
// how many algorithms are wanted. Of a run: is its algorithm that of the first question, is there
// an A, and where; bytes of the workspace.
enum { NO_CHANGE, A = 1, B = 5, C = 9, D = 13, TYPE = 0, ROWS, COLS, LD,
       EPILOGUE = 17, AUX_LD, AUX_AT, WANTED, OTHER, HAS_A, A_AT, WORKSPACE, FIELDS };
typedef struct { uint64_t x[FIELDS]; } Question;
static const Question good = {{NO_CHANGE, CUDA_R_16BF, 32, 16, 32, CUDA_R_16BF, 32, 24, 32,
                               CUDA_R_16BF, 16, 24, 16, CUDA_R_16BF, 16, 24, 16,
                               CUBLASLT_EPILOGUE_DEFAULT, 16, 0, 1, 0, 1, 0, 1 << 20}};

// Asks for an algorithm, and runs the product with it, or with that of the first, good question.
static cublasStatus_t ask(const Question &q) {
    static cublasLtMatmulAlgo_t first;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t l[4];
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    const int32_t transposed = CUBLAS_OP_T;
    const uint32_t epilogue = (uint32_t)q.x[EPILOGUE];
    const int64_t aux_ld = (int64_t)q.x[AUX_LD];
    const uint64_t most = 256;
    const char *a = q.x[HAS_A] ? memory + q.x[A_AT] : NULL, *b = memory + (1 << 12);
    char *d = memory + (2 << 12), *aux = memory + (3 << 12) + q.x[AUX_AT];
    const float one = 1, zero = 0;
    int count = 0;
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const struct { cublasLtMatmulDescAttributes_t attribute; const void *value; size_t bytes; }
    attributes[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, 8},
                    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, 8}};
    for (const auto &x : attributes) {
        OK(cublasLtMatmulDescSetAttribute(op, x.attribute, x.value, x.bytes));
        CHECK(cublasLtMatmulDescSetAttribute(op, x.attribute, x.value, 12 - x.bytes)
              == CUBLAS_STATUS_INVALID_VALUE, "attribute %d has any size", x.attribute);
    }
    for (int i = 0; i < 4; i++) {
        const uint64_t *x = &q.x[A + 4 * i];
        OK(cublasLtMatrixLayoutCreate(&l[i], (cudaDataType_t)x[TYPE], x[ROWS], x[COLS],
                                      (int64_t)x[LD]));
    }
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(lt, op, l[0], l[1], l[2], l[3], preference,
                                                      (int)q.x[WANTED], &found, &count);
    CHECK(count == (s == CUBLAS_STATUS_SUCCESS), "status %d, and %d found", s, count);
    if (count == 1) {
        CHECK(found.workspaceSize <= most, "%zu bytes", found.workspaceSize);
        if (&q == &good) first = found.algo;
        s = cublasLtMatmul(lt, op, &one, a, l[0], b, l[1], &zero, d, l[2], d, l[3],
                           q.x[OTHER] ? &first : &found.algo, memory + (4 << 12), q.x[WORKSPACE],
                           stream);
    }
    OK(cudaStreamSynchronize(stream));
    for (cublasLtMatrixLayout_t layout : l) OK(cublasLtMatrixLayoutDestroy(layout));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatmulDescDestroy(op));
    return s;
}

// What differs from the good question. strict: the real library may take it.
static const struct {
    const char *what;
    bool strict;
    struct { int field; uint64_t value; } changes[4];
} refused[] = {
    {"k differs", false, {{B + ROWS, 31}}},
    {"m differs", false, {{D + ROWS, 15}}},
    {"n differs", false, {{D + COLS, 23}}},
    {"columns of A overlap", false, {{A + LD, 31}}},
    {"columns of D overlap", false, {{C + LD, 15}, {D + LD, 15}}},
    {"A and B of two types", false, {{B + TYPE, CUDA_R_32F}}},
    {"C and D of two types", true, {{C + TYPE, CUDA_R_32F}}},
    {"fp32 to bf16", false, {{A + TYPE, CUDA_R_32F}, {B + TYPE, CUDA_R_32F}}},
    {"no such epilogue", false, {{EPILOGUE, 64}}},
    {"GELU of bf16 into fp32", true,
     {{EPILOGUE, CUBLASLT_EPILOGUE_DGELU}, {C + TYPE, CUDA_R_32F}, {D + TYPE, CUDA_R_32F}}},
    {"columns of aux overlap", false, {{EPILOGUE, CUBLASLT_EPILOGUE_DGELU}, {AUX_LD, 8}}},
    {"aux ld is not a multiple of 8", false, {{EPILOGUE, CUBLASLT_EPILOGUE_DGELU}, {AUX_LD, 20}}},
    {"aux is not at 16 bytes", true, {{EPILOGUE, CUBLASLT_EPILOGUE_DGELU}, {AUX_AT, 2}}},
    {"no algorithm is wanted", false, {{WANTED, 0}}},
    {"no A", false, {{HAS_A, 0}}},
    {"A is less aligned than was said", true, {{A_AT, 2}}},
    {"the workspace is too small", true, {{WORKSPACE, 255}}},
    {"another shape's algorithm", true,
     {{B + COLS, 23}, {C + COLS, 23}, {D + COLS, 23}, {OTHER, 1}}},
};

static void wrong_products_are_refused(void) {
    OK(cublasLtCreate(&lt));
    OK(cudaMalloc(&memory, (4 << 12) + good.x[WORKSPACE]));
    OK(cudaMemset(memory, 0, 4 << 12));
    OK(cudaDeviceSynchronize());
    OK(ask(good));
    for (const auto &x : refused) {
        Question q = good;
        for (const auto &change : x.changes)
            if (change.field != NO_CHANGE) q.x[change.field] = change.value;
#ifndef __CUDA_EMU__
        if (x.strict) continue;
#endif
        CHECK(ask(q) != CUBLAS_STATUS_SUCCESS, "%s", x.what);
    }
    OK(cublasLtDestroy(lt));
    OK(cudaFree(memory));
}

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skip test_emu: no device\n");
        return 0;
    }
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
#ifdef __CUDA_EMU__
    if (argc > 1 && strcmp(argv[1], "clock") == 0) {
        the_clock_of_programs();
        return test_failures_here > 0;
    }
    RUN(the_virtual_clock);
#endif
    (void)argc, (void)argv;
    RUN(illegal_launches_fail);
    RUN(fp16_rounds_to_nearest);
    RUN(wrong_calls_are_refused);
    RUN(pageable_copies_are_done);
    RUN(wrong_products_are_refused);
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    return test_summary();
}
