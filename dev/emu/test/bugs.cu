// bugs.cu: planted bugs, each beside the same code without it: a table of small programs, and which
// mode of the emulated device has to catch which. test_emu_bugs.sh tries them.
//
//   bugs NAME bug     runs one of them with its bug
//   bugs NAME         runs it without
//   bugs              runs all of them without
//   bugs list         prints the table, without the programs
//
// Exit code 0: every result was right; 3: a result was wrong. What the emulator stops by itself
// never gets that far. The results that are compared are those of the host.
#include <cublasLt.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int error, const char *call, int line) {
    if (error == 0) return;
    printf("bugs.cu:%d: error %d from %s\n", line, error, call);
    exit(4);
}
#define OK(call) must((int)(call), #call, __LINE__)

enum { N = 1024, FEW = 1000 };  // floats in a buffer
static cudaStream_t s, q;       // two streams that nothing but events orders

// ---------------------------------------------------------------------------------------------
// Kernels

__global__ static void fill_kernel(float *x, float v, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = v;
}

__global__ static void shifted_kernel(float *x, int by) { x[(int)threadIdx.x - by] = 1; }

// A pointer that no launch can check: it lies in a struct.
struct Tensors { float *x; };
__global__ static void struct_kernel(Tensors t) { t.x[threadIdx.x] = 1; }

// y += x
__global__ static void add_kernel(float *y, const float *x, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] += x[i];
}

__global__ static void reverse_kernel(float *y, const float *x, bool bug) {
    __shared__ float block[256];
    block[threadIdx.x] = x[threadIdx.x];
    if (!bug) __syncthreads();
    y[threadIdx.x] = block[255 - threadIdx.x];
}

// The sum of 32 numbers by halving in shared memory.
__global__ static void halving_kernel(float *y, const float *x, bool bug) {
    __shared__ float part[32];
    const unsigned t = threadIdx.x;
    part[t] = x[t];
    for (unsigned distance = 16; distance > 0; distance /= 2) {
        if (!bug) __syncwarp();
        const float far = t < distance ? part[t + distance] : 0;
        if (!bug) __syncwarp();
        part[t] += far;
    }
    if (t == 0) y[0] = part[0];
}

__global__ static void total_kernel(float *total, const float *x, bool bug) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    total[bug ? 0 : i] += x[i];
}

// One barrier per branch: the threads of a block wait in two places.
__global__ static void branches_kernel(float *y, bool bug) {
    __shared__ float half[64];
    const unsigned t = threadIdx.x;
    half[t] = (float)t;
    if (bug && t < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    y[t] = half[63 - t];
}

// Half of the warp has returned when the other half shuffles with all of it.
__global__ static void leaving_kernel(float *y, bool bug) {
    const unsigned t = threadIdx.x;
    if (bug && t >= 16) return;
    const float v = __shfl_xor_sync(0xffffffffu, (float)t, 1);
    if (t < 16) y[t] = v;
}

__global__ static void small_shared_kernel(float *y, int n) {
    __shared__ float small[64];
    if ((int)threadIdx.x < n) small[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 64) y[threadIdx.x] = small[threadIdx.x];
}

__global__ static void unwritten_shared_kernel(float *y, bool bug) {
    __shared__ float some[64];
    extern __shared__ float more[];
    if (!bug || threadIdx.x > 0) some[threadIdx.x] = 0;
    if (!bug || threadIdx.x > 1) more[threadIdx.x] = 0;
    __syncthreads();
    y[threadIdx.x] = 1 + (threadIdx.x == 1 ? more[1] : some[threadIdx.x]);
}

__global__ static void staged_kernel(float *y, const float *x, bool bug) {
    __shared__ __align__(16) float stage[128];
    __pipeline_memcpy_async(&stage[4 * threadIdx.x], x + 4 * threadIdx.x, 16);
    __pipeline_commit();
    if (!bug) __pipeline_wait_prior(0);
    __syncwarp();
    for (unsigned i = threadIdx.x; i < 128; i += 32) y[i] = stage[i];
}

// ---------------------------------------------------------------------------------------------
// Parts of the programs

// Buffers, of N floats each: every program gets fresh ones, so that an overrun has nowhere to hide.
static float *a, *b, *c;    // on the device: ones, zeros, fives
static float *few;          // FEW of them: zeros
static float *h;            // page-locked: sevens

static float *device_filled(float v, size_t n) {
    float *x;
    OK(cudaMalloc(&x, n * sizeof(float)));
    fill_kernel<<<(unsigned)(n + 255) / 256, 256, 0, s>>>(x, v, (int)n);
    OK(cudaGetLastError());
    return x;
}

static void make_buffers(void) {
    a = device_filled(1, N), b = device_filled(0, N), c = device_filled(5, N);
    few = device_filled(0, FEW);
    OK(cudaMallocHost(&h, N * sizeof(float)));
    for (int i = 0; i < N; i++) h[i] = 7;
    OK(cudaStreamSynchronize(s));
}

static void free_buffers(void) {
    OK(cudaDeviceSynchronize());
    for (float *x : {a, b, c, few}) OK(cudaFree(x));
    OK(cudaFreeHost(h));
}

static void fill(float *x, float v, cudaStream_t on, int n = N) {
    fill_kernel<<<(unsigned)(n + 255) / 256, 256, 0, on>>>(x, v, n);
    OK(cudaGetLastError());
}

static void add(float *y, const float *x, cudaStream_t on, int n = N) {
    add_kernel<<<(unsigned)(n + 255) / 256, 256, 0, on>>>(y, x, n);
    OK(cudaGetLastError());
}

static void copy(float *to, const float *from, cudaStream_t on, size_t n = N) {  // any direction
    OK(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDefault, on));
}

static cudaEvent_t new_event(void) {
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

// Makes later work on `then` wait for the work on `first`; with the bug, does not.
static void order(cudaStream_t first, cudaStream_t then, bool bug = false) {
    cudaEvent_t e = new_event();
    OK(cudaEventRecord(e, first));
    if (!bug) OK(cudaStreamWaitEvent(then, e, 0));
}

// The number at x[i], when all is done.
static float result(const float *x, size_t i = 0) {
    float v;
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&v, x + i, sizeof v, cudaMemcpyDeviceToHost));
    return v;
}

__attribute__((noinline)) static float host_reads(const float *x) { return x[0]; }

static float *own_memory(bool do_register) {
    float *x = (float *)malloc(N * sizeof(float));
    for (int i = 0; i < N; i++) x[i] = 2;
    if (do_register) OK(cudaHostRegister(x, N * sizeof(float), cudaHostRegisterDefault));
    return x;
}

// d (32, 32) = a (32, 32) times a, by columns, with a workspace of 64 KiB
static void product(float *d, void *workspace, cudaStream_t on) {
    const float one = 1, zero = 0;
    const uint64_t bytes = 65536;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t l;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    OK(cublasLtCreate(&lt));
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 32, 32, 32));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &bytes, sizeof bytes));
    OK(cublasLtMatmulAlgoGetHeuristic(lt, op, l, l, l, l, preference, 1, &found, &count));
    OK(cublasLtMatmul(lt, op, &one, a, l, a, l, &zero, d, l, d, l, &found.algo, workspace, bytes,
                      on));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatrixLayoutDestroy(l));
    OK(cublasLtMatmulDescDestroy(op));
    OK(cublasLtDestroy(lt));
}

// The host's part of an update: a host function hands its work to a thread of ours, and waits.
static void *scale_on_host(void *x) {
    for (int i = 0; i < N; i++) ((float *)x)[i] *= 2;
    return NULL;
}

static pthread_t worker;  // not on the stack, which a stream has of whoever runs it
static void hand_to_worker(void *x) {
    OK(pthread_create(&worker, NULL, scale_on_host, x));
    OK(pthread_join(worker, NULL));
}

static void update(float *x, cudaStream_t on) { OK(cudaLaunchHostFunc(on, hand_to_worker, x)); }

static ncclComm_t ranks;
static int rank_here;

static void scatter(float *to, const float *from, cudaStream_t on = q) {
    OK(ncclReduceScatter(from, to, N / 2, ncclFloat32, ncclSum, ranks, on));
}
static void gather(float *to, const float *from) {
    OK(ncclAllGather(from, to, N / 2, ncclFloat32, ranks, q));
}

// ---------------------------------------------------------------------------------------------
// The bugs: name; modes that have to see it, and what they see; what a report has to name; the
// program, which returns whether its result is right.
//
//   plain   as a program runs without any setting       wrong   the result is wrong
//   prio    every stream in turn as far as it can go    stop    the emulator stops the program
//   strict  EMU_STRICT=1                                report  the sanitizer reports
//   tsan    ThreadSanitizer between streams
//   race    ThreadSanitizer inside kernels
//   asan    AddressSanitizer

struct Bug { const char *name, *modes, *names; bool (*right)(bool bug); };

static const Bug bugs[] = {
// An event that is not yet recorded orders nothing.
{"wait_before_record", "prio=wrong tsan=report", "add_kernel", [](bool bug) {
    cudaEvent_t e = new_event();
    if (bug) OK(cudaStreamWaitEvent(q, e, 0));
    fill(a, 3, s);
    OK(cudaEventRecord(e, s));
    if (!bug) OK(cudaStreamWaitEvent(q, e, 0));
    add(b, a, q);
    return result(b) == 3;
}},
// Recorded before the last kernel that produces.
{"event_too_early", "prio=wrong tsan=report", "add_kernel", [](bool bug) {
    fill(a, 3, s);
    if (bug) order(s, q);
    add(a, c, s);
    if (!bug) order(s, q);
    add(b, a, q);
    return result(b) == 8;
}},
{"memset_on_another_stream", "prio=wrong tsan=report", "add_kernel", [](bool bug) {
    OK(cudaMemsetAsync(a, 0, N * sizeof(float), q));
    order(q, s, bug), add(a, c, s);
    return result(a) == 5;
}},
// A pinned result, before anybody waited for the copy.
{"host_reads_early", "plain=wrong tsan=report", "host_reads", [](bool bug) {
    fill(a, 5, s), copy(h, a, s);
    if (!bug) OK(cudaStreamSynchronize(s));
    return host_reads(h) == 5;
}},
{"missing_syncthreads", "plain=wrong race=report", "reverse_kernel", [](bool bug) {
    reverse_kernel<<<1, 256, 0, s>>>(b, a, bug);
    return result(b) == 1 && result(b, 255) == 1;
}},
{"missing_syncwarp", "plain=wrong race=report", "halving_kernel", [](bool bug) {
    halving_kernel<<<1, 32, 0, s>>>(b, a, bug);
    return result(b) == 32;
}},
// Blocks and threads add to one number.
{"one_sum_of_all_threads", "race=report", "total_kernel", [](bool bug) {
    total_kernel<<<8, 64, 0, s>>>(b, a, bug);
    return result(b) == 1 && result(b, 511) == 1;
}},
{"divergent_barrier", "plain=stop", "bugs.cu:[0-9]*.*bugs.cu:[0-9]", [](bool bug) {
    branches_kernel<<<1, 64, 0, s>>>(a, bug);
    return result(a) == 63 && result(a, 63) == 0;
}},
// A shuffle's mask names lanes that have returned.
{"lane_that_left", "plain=stop", "leaving_kernel", [](bool bug) {
    leaving_kernel<<<1, 32, 0, s>>>(b, bug);
    return result(b) == 1;
}},
// cp.async has been started and not waited for.
{"missing_copy_wait", "plain=wrong", ".", [](bool bug) {
    staged_kernel<<<1, 32, 0, s>>>(b, a, bug);
    return result(b) == 1 && result(b, 127) == 1;
}},
// One element behind a static array.
{"shared_overrun", "plain=stop asan=report", "small\\|out.of.bounds", [](bool bug) {
    small_shared_kernel<<<1, 96, 0, s>>>(a, bug ? 65 : 64);
    return result(a, 63) == 63;
}},
{"small_overrun", "plain=stop asan=report", "fill_kernel", [](bool bug) {
    fill(few, 1, s, bug ? FEW + 3 : FEW);
    return result(few, FEW - 1) == 1;
}},
// The element before a buffer.
{"underrun", "plain=stop asan=report", "shifted_kernel", [](bool bug) {
    shifted_kernel<<<1, 32, 0, s>>>(b, bug ? 1 : 0);
    return result(b) == 1;
}},
// A copy that is longer than its destination.
{"copy_overrun", "plain=stop asan=stop", "bugs.cu:[0-9].*4004 bytes", [](bool bug) {
    copy(few, h, s, bug ? FEW + 1 : FEW);
    return result(few, FEW - 1) == 7;
}},
{"host_pointer_to_kernel", "plain=stop asan=stop", "fill_kernel: argument 0", [](bool bug) {
    float *own = own_memory(false);
    fill(bug ? own : b, 1, s);
    free(own);
    return result(b) == 1;
}},
{"host_touches_device_memory", "plain=stop", "host code touches device memory", [](bool bug) {
    return (bug ? *(volatile float *)a : result(a)) == 1;
}},
{"use_after_free", "plain=stop asan=report", "struct_kernel", [](bool bug) {
    float *gone = device_filled(0, N);
    OK(cudaFree(gone));
    struct_kernel<<<1, 32, 0, s>>>(Tensors{bug ? gone : b});
    return result(b) == 1;
}},
{"unwritten_memory", "plain=wrong", ".", [](bool bug) {
    float *fresh;
    OK(cudaMalloc(&fresh, N * sizeof(float)));
    if (!bug) OK(cudaMemsetAsync(fresh, 0, N * sizeof(float), s));
    add(a, fresh, s);
    return result(a) == 1;
}},
{"unwritten_shared_memory", "plain=wrong", ".", [](bool bug) {
    unwritten_shared_kernel<<<1, 64, 64 * sizeof(float), s>>>(b, bug);
    return result(b) == 1 || result(b, 1) == 1;
}},
// Two streams multiply with one workspace.
{"shared_workspace", "tsan=report", "emu::touch", [](bool bug) {
    float *mine = device_filled(0, 16384), *yours = device_filled(0, 16384);
    OK(cudaStreamSynchronize(s));
    product(b, mine, s), product(c, bug ? mine : yours, q);
    return result(b) == 32 && result(c, N - 1) == 32;
}},
// The product has 24 numbers more than its place.
{"product_overrun", "plain=stop asan=stop", "cublasLtMatmul: D", [](bool bug) {
    product(bug ? few : b, device_filled(0, 16384), s);
    return result(bug ? few : b) == 32;
}},
// The worker does not wait for the gradient.
{"host_update_before_copy", "prio=wrong tsan=report", "scale_on_host", [](bool bug) {
    copy(h, a, s), order(s, q, bug), update(h, q);
    OK(cudaDeviceSynchronize());
    return h[0] == 2 && h[N - 1] == 2;
}},
// And freed, while a copy is queued.
{"unregistered_too_early", "plain=stop tsan=report", "cudaHostUnregister.while.a.copy\\|free",
 [](bool bug) {
    float *own = own_memory(true);
    copy(a, own, s);
    if (!bug) OK(cudaStreamSynchronize(s));
    OK(cudaHostUnregister(own));
    free(own);
    return result(a) == 2;
}},
// A copy that is not asynchronous at all.
{"never_registered", "strict=stop", "its host memory is pageable", [](bool bug) {
    float *own = own_memory(!bug);
    copy(a, own, s);
    const bool right = result(a) == 2;
    if (!bug) OK(cudaHostUnregister(own));
    free(own);
    return right;
}}};

// Bugs of rank 0 around collectives. Rank 1, a process of its own, runs the same without the bug.
static const Bug rank_bugs[] = {
// The kernel does not wait for the sum.
{"kernel_before_the_collective", "prio=wrong tsan=report", "add_kernel", [](bool bug) {
    scatter(c, a), order(q, s, bug), add(b, c, s);
    return result(b) == 2;
}},
// NCCL keeps the order, but promises none.
{"two_streams_one_communicator", "tsan=report", "scatter", [](bool bug) {
    scatter(c, a, s), order(s, q, bug), gather(b, c);
    return result(b) == 2;
}},
// On itself: the calls of a group have no order.
{"group_that_depends", "plain=stop asan=stop", "ncclReduceScatter.and.ncclAllGather.of.one",
 [](bool bug) {
    if (bug) OK(ncclGroupStart());
    scatter(b, a), gather(c, b);
    if (bug) OK(ncclGroupEnd());
    return result(c) == 2;
}},
// Rank 0's part is the first one.
{"almost_in_place", "plain=stop asan=stop", "ncclReduceScatter:.the.buffers.overlap", [](bool bug) {
    float *part = a + (bug ? N / 4 : rank_here * (N / 2));
    scatter(part, a);
    return result(part) == 2;
}},
{"gathered_from_another_part", "plain=stop asan=stop", "ncclAllGather:.the.buffers.overlap",
 [](bool bug) {
    gather(a, a + (bug ? 1 : rank_here) * (N / 2));
    return result(a, N - 1) == 1;
}},
{"sent_over_itself", "plain=stop asan=stop", "ncclBroadcast:.the.buffers.overlap", [](bool bug) {
    OK(ncclBroadcast(a, a + (bug ? 1 : N / 2), N / 2, ncclFloat32, 0, ranks, q));
    return result(a, N - 1) == 1;
}}};

// The other rank prints no results, and ends with this one.
static pid_t start_ranks(void) {
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        OK(freopen("/dev/null", "w", stdout) == NULL);
        rank_here = 1;
    }
    OK(ncclCommInitRank(&ranks, 2, id, rank_here));
    return pid;
}

// Returns whether the program's result was right.
static bool run(const Bug &x, bool bug) {
    if (rank_here == 0) fprintf(stderr, "bugs: %s\n", x.name);  // before the sanitizers' words
    make_buffers();
    const bool right = x.right(bug && rank_here == 0);
    free_buffers();
    printf("%s %s\n", right ? "right" : "wrong", x.name);
    return right;
}

// Runs those of a table that are asked for, or prints the table; returns how many were wrong.
template <size_t n> static int run_table(const Bug (&table)[n], const char *only, bool bug) {
    int wrong = 0;
    for (const Bug &x : table) {
        if (strcmp(only, "list") == 0) printf("%s %s %s\n", x.name, x.modes, x.names);
        if (*only == '\0' || strcmp(only, x.name) == 0) wrong += !run(x, bug);
    }
    return wrong;
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    const bool bug = argc > 2;
    int status = 0;
    bool with_ranks = *only == '\0';
    for (const Bug &x : rank_bugs) with_ranks |= strcmp(only, x.name) == 0;
    const pid_t other = with_ranks ? start_ranks() : 0;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&q, cudaStreamNonBlocking));
    int wrong = run_table(rank_bugs, only, bug);
    if (with_ranks) OK(ncclCommDestroy(ranks));
    if (rank_here == 1) _exit(wrong > 0);
    wrong += run_table(bugs, only, bug);
    OK(cudaDeviceSynchronize());
    if (with_ranks) OK(waitpid(other, &status, 0) != other);
    if (!bug && status != 0) printf("wrong on the other rank\n");
    return wrong > 0 || (!bug && status != 0) ? 3 : 0;
}
