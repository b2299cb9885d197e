// bugs.cu: planted bugs, each beside the same code without it. test_emu_bugs.sh runs them and says
// which mode of the emulated device has to catch which.
//
//   bugs NAME bug     runs one of them with its bug
//   bugs NAME         runs it without
//   bugs              runs all of them without
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

enum { N = 1024 };          // floats in a buffer
static cudaStream_t s, q;   // two streams that nothing but events orders

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
    const float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    if (bug) *total = *total + v;
    else atomicAdd(total, v);
}

// One barrier per branch: the threads of a block wait in two places.
__global__ static void branches_kernel(float *y, bool bug) {
    __shared__ float half[64];
    const unsigned t = threadIdx.x;
    half[t] = (float)t;
    if (bug) {
        if (t < 32) {
            __syncthreads();
            y[t] = half[63 - t];
        } else {
            __syncthreads();
            y[t] = half[63 - t];
        }
    } else {
        __syncthreads();
        y[t] = half[63 - t];
    }
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
    if (!bug || threadIdx.x > 0) some[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = some[threadIdx.x];
}

__global__ static void staged_kernel(float *y, const float *x, bool bug) {
    __shared__ __align__(16) float stage[128];
    __pipeline_memcpy_async(&stage[4 * threadIdx.x], x + 4 * threadIdx.x, 16);
    __pipeline_commit();
    if (!bug) __pipeline_wait_prior(0);
    __syncwarp();
    for (unsigned i = threadIdx.x; i < 128; i += 32) y[i] = stage[i];
}

// The last of the blocks adds up what the others left; the fence makes it visible.
__global__ static void last_block_kernel(float *y, float *part, unsigned *arrived, bool bug) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        part[blockIdx.x] = (float)(blockIdx.x + 1);
        if (!bug) __threadfence();
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
        if (!bug) __threadfence();
    }
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++) sum += part[i];
    y[0] = sum;
}

// ---------------------------------------------------------------------------------------------
// Buffers: every bug gets fresh ones, so that an overrun has nowhere to hide

static float *device_filled(float v, size_t n = N) {
    float *x;
    OK(cudaMalloc(&x, n * sizeof(float)));
    fill_kernel<<<(unsigned)(n + 255) / 256, 256, 0, s>>>(x, v, (int)n);
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(s));
    return x;
}

static float *pinned_filled(float v) {
    float *x;
    OK(cudaMallocHost(&x, N * sizeof(float)));
    for (int i = 0; i < N; i++) x[i] = v;
    return x;
}

static cudaEvent_t new_event(void) {
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static void fill(float *x, float v, cudaStream_t on) {
    fill_kernel<<<N / 256, 256, 0, on>>>(x, v, N);
    OK(cudaGetLastError());
}

static void add(float *y, const float *x, cudaStream_t on) {
    add_kernel<<<N / 256, 256, 0, on>>>(y, x, N);
    OK(cudaGetLastError());
}

// The number at x[i], when all is done.
static float result(const float *x, size_t i = 0) {
    float v;
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&v, x + i, sizeof v, cudaMemcpyDeviceToHost));
    return v;
}

static bool release(float *a, float *b = NULL, float *c = NULL) {
    OK(cudaDeviceSynchronize());
    OK(cudaFree(a)), OK(cudaFree(b)), OK(cudaFree(c));
    return true;
}

// ---------------------------------------------------------------------------------------------
// The bugs. Each returns whether the result is right.

static bool missing_event(bool bug) {       // the consumer does not wait for the producer
    float *a = device_filled(1), *b = device_filled(0);
    cudaEvent_t e = new_event();
    fill(a, 3, s);
    OK(cudaEventRecord(e, s));
    if (!bug) OK(cudaStreamWaitEvent(q, e, 0));
    add(b, a, q);
    const bool right = result(b) == 3;
    return release(a, b) && right;
}

static bool wait_before_record(bool bug) {  // an event that is not yet recorded orders nothing
    float *a = device_filled(1), *b = device_filled(0);
    cudaEvent_t e = new_event();
    if (bug) OK(cudaStreamWaitEvent(q, e, 0));
    fill(a, 3, s);
    OK(cudaEventRecord(e, s));
    if (!bug) OK(cudaStreamWaitEvent(q, e, 0));
    add(b, a, q);
    const bool right = result(b) == 3;
    return release(a, b) && right;
}

static bool event_too_early(bool bug) {     // recorded before the last kernel that produces
    float *a = device_filled(0), *b = device_filled(0), *c = device_filled(4);
    cudaEvent_t e = new_event();
    fill(a, 3, s);
    if (bug) OK(cudaEventRecord(e, s));
    add(a, c, s);
    if (!bug) OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(q, e, 0));
    add(b, a, q);
    const bool right = result(b) == 7;
    return release(a, b, c) && right;
}

static bool write_after_read(bool bug) {    // overwritten while another stream still reads
    float *a = device_filled(1), *b = device_filled(0);
    cudaEvent_t e = new_event();
    add(b, a, s);
    OK(cudaEventRecord(e, s));
    if (!bug) OK(cudaStreamWaitEvent(q, e, 0));
    fill(a, 9, q);
    const bool right = result(b) == 1;
    return release(a, b) && right;
}

static bool ring_without_free_event(bool bug) {     // a slot is filled again before it was used
    float *slot[2] = {device_filled(0), device_filled(0)}, *sum = device_filled(0);
    cudaEvent_t full[2] = {new_event(), new_event()}, spare[2] = {new_event(), new_event()};
    for (int layer = 0; layer < 6; layer++) {
        const int k = layer % 2;
        if (!bug) OK(cudaStreamWaitEvent(q, spare[k], 0));
        fill(slot[k], (float)(layer + 1), q);
        OK(cudaEventRecord(full[k], q));
        OK(cudaStreamWaitEvent(s, full[k], 0));
        add(sum, slot[k], s);
        OK(cudaEventRecord(spare[k], s));
    }
    const bool right = result(sum) == 21;
    return release(slot[0], slot[1], sum) && right;
}

static bool memset_on_another_stream(bool bug) {
    float *a = device_filled(1), *b = device_filled(5);
    cudaEvent_t e = new_event();
    OK(cudaMemsetAsync(a, 0, N * sizeof(float), q));
    OK(cudaEventRecord(e, q));
    if (!bug) OK(cudaStreamWaitEvent(s, e, 0));
    add(a, b, s);
    const bool right = result(a) == 5;
    return release(a, b) && right;
}

static bool host_reads_early(bool bug) {    // a pinned result, before anybody waited for the copy
    float *a = device_filled(1), *h = pinned_filled(0);
    fill(a, 5, s);
    OK(cudaMemcpyAsync(h, a, N * sizeof(float), cudaMemcpyDeviceToHost, s));
    if (!bug) OK(cudaStreamSynchronize(s));
    const bool right = h[0] == 5;
    OK(cudaStreamSynchronize(s));
    OK(cudaFreeHost(h));
    return release(a) && right;
}

static bool host_overwrites_source(bool bug) {      // a pinned source, before the copy ran
    float *a = device_filled(1), *h = pinned_filled(2);
    OK(cudaMemcpyAsync(a, h, N * sizeof(float), cudaMemcpyHostToDevice, s));
    if (!bug) OK(cudaStreamSynchronize(s));
    h[0] = 77;
    const bool right = result(a) == 2;
    OK(cudaFreeHost(h));
    return release(a) && right;
}

static bool missing_syncthreads(bool bug) {
    float *a = device_filled(4), *b = device_filled(0);
    reverse_kernel<<<1, 256, 0, s>>>(b, a, bug);
    OK(cudaGetLastError());
    const bool right = result(b) == 4 && result(b, 255) == 4;
    return release(a, b) && right;
}

static bool missing_syncwarp(bool bug) {
    float *a = device_filled(4), *b = device_filled(0);
    halving_kernel<<<1, 32, 0, s>>>(b, a, bug);
    OK(cudaGetLastError());
    const bool right = result(b) == 128;
    return release(a, b) && right;
}

static bool non_atomic_sum(bool bug) {      // blocks and threads add to one number
    float *a = device_filled(1), *b = device_filled(0);
    total_kernel<<<8, 64, 0, s>>>(b, a, bug);
    OK(cudaGetLastError());
    const bool right = result(b) == 512;
    return release(a, b) && right;
}

static bool last_block_without_fence(bool bug) {
    float *a = device_filled(0), *b = device_filled(0), *count = device_filled(0);
    last_block_kernel<<<8, 32, 0, s>>>(b, a, (unsigned *)count, bug);   // 0 has the bits of 0.0f
    OK(cudaGetLastError());
    const bool right = result(b) == 36;
    return release(a, b, count) && right;
}

static bool divergent_barrier(bool bug) {
    float *a = device_filled(0);
    branches_kernel<<<1, 64, 0, s>>>(a, bug);
    OK(cudaGetLastError());
    const bool right = result(a) == 63 && result(a, 63) == 0;
    return release(a) && right;
}

static bool lane_that_left(bool bug) {      // a shuffle's mask names lanes that have returned
    float *a = device_filled(0);
    leaving_kernel<<<1, 32, 0, s>>>(a, bug);
    OK(cudaGetLastError());
    const bool right = result(a) == 1;
    return release(a) && right;
}

static bool missing_copy_wait(bool bug) {   // cp.async has been started and not waited for
    float *a = device_filled(6), *b = device_filled(0);
    staged_kernel<<<1, 32, 0, s>>>(b, a, bug);
    OK(cudaGetLastError());
    const bool right = result(b) == 6 && result(b, 127) == 6;
    return release(a, b) && right;
}

static bool shared_overrun(bool bug) {      // one element behind a static array
    float *a = device_filled(0);
    small_shared_kernel<<<1, 96, 0, s>>>(a, bug ? 65 : 64);
    OK(cudaGetLastError());
    const bool right = result(a, 63) == 63;
    return release(a) && right;
}

static bool small_overrun(bool bug) {       // three elements behind a buffer
    float *a = device_filled(0, 1000);
    fill_kernel<<<4, 256, 0, s>>>(a, 1, bug ? 1003 : 1000);
    OK(cudaGetLastError());
    const bool right = result(a, 999) == 1;
    return release(a) && right;
}

static bool large_overrun(bool bug) {       // 64 KiB behind it
    float *a = device_filled(0);
    fill_kernel<<<N / 256 + 64, 256, 0, s>>>(a, 1, bug ? N + 16384 : N);
    OK(cudaGetLastError());
    const bool right = result(a) == 1;
    return release(a) && right;
}

static bool underrun(bool bug) {            // the element before a buffer
    float *a = device_filled(0);
    shifted_kernel<<<1, 32, 0, s>>>(a, bug ? 1 : 0);
    OK(cudaGetLastError());
    const bool right = result(a) == 1;
    return release(a) && right;
}

static bool read_past_the_end(bool bug) {
    float *a = device_filled(1), *b = device_filled(1, N - 3);
    add_kernel<<<N / 256, 256, 0, s>>>(a, b, bug ? N : N - 3);
    OK(cudaGetLastError());
    const bool right = result(a) == 2;
    return release(a, b) && right;
}

static bool copy_overrun(bool bug) {        // a copy that is longer than its destination
    float *a = device_filled(0, 100), *h = pinned_filled(2);
    OK(cudaMemcpyAsync(a, h, (bug ? 101 : 100) * sizeof(float), cudaMemcpyHostToDevice, s));
    const bool right = result(a, 99) == 2;
    OK(cudaFreeHost(h));
    return release(a) && right;
}

static bool host_pointer_to_kernel(bool bug) {
    float *a = device_filled(0), *h = (float *)calloc(N, sizeof(float));
    fill(bug ? h : a, 1, s);
    const bool right = result(a) == 1;
    free(h);
    return release(a) && right;
}

static bool host_touches_device_memory(bool bug) {
    float *a = device_filled(7);
    volatile const float *view = a;
    const float v = bug ? view[0] : result(a);
    return release(a) && v == 7;
}

static bool use_after_free(bool bug) {
    float *a = device_filled(0), *b = device_filled(0);
    OK(cudaFree(a));
    const Tensors t = {bug ? a : b};
    struct_kernel<<<1, 32, 0, s>>>(t);
    OK(cudaGetLastError());
    const bool right = result(b) == 1;
    return release(b) && right;
}

static bool unwritten_memory(bool bug) {
    float *a, *b = device_filled(1);
    OK(cudaMalloc(&a, N * sizeof(float)));
    if (!bug) OK(cudaMemsetAsync(a, 0, N * sizeof(float), s));
    add(b, a, s);
    const bool right = result(b) == 1;
    return release(a, b) && right;
}

static bool unwritten_shared_memory(bool bug) {
    float *a = device_filled(0);
    unwritten_shared_kernel<<<1, 64, 0, s>>>(a, bug);
    OK(cudaGetLastError());
    const bool right = result(a) == 1 && result(a, 63) == 1;
    return release(a) && right;
}

static bool illegal_launch(bool bug) {      // 2048 threads, and nobody asks whether it worked
    float *a = device_filled(0);
    fill_kernel<<<1, bug ? 2048 : 1024, 0, s>>>(a, 1, N);
    const bool right = result(a) == 1;
    (void)cudaGetLastError();
    return release(a) && right;
}

// d (m, n) = a (m, k) b (k, n), by columns, in fp32, on a stream with a workspace
static void product(cublasLtHandle_t lt, float *d, const float *a, const float *b, size_t m,
                    size_t n, size_t k, void *workspace, cudaStream_t on) {
    const float one = 1, zero = 0;
    const uint64_t bytes = 65536;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, m, k, (int64_t)m));
    OK(cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, k, n, (int64_t)k));
    OK(cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, m, n, (int64_t)m));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &bytes, sizeof bytes));
    OK(cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, ld, ld, preference, 1, &found, &count));
    OK(cublasLtMatmul(lt, op, &one, a, la, b, lb, &zero, d, ld, d, ld, &found.algo, workspace,
                      bytes, on));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    for (cublasLtMatrixLayout_t l : {la, lb, ld}) OK(cublasLtMatrixLayoutDestroy(l));
    OK(cublasLtMatmulDescDestroy(op));
}

static bool shared_workspace(bool bug) {    // two streams multiply with one workspace
    cublasLtHandle_t lt;
    void *mine, *yours;
    OK(cublasLtCreate(&lt));
    OK(cudaMalloc(&mine, 65536)), OK(cudaMalloc(&yours, 65536));
    float *a = device_filled(1), *d = device_filled(0), *e = device_filled(0);
    product(lt, d, a, a, 32, 32, 32, mine, s);
    product(lt, e, a, a, 32, 32, 32, bug ? mine : yours, q);
    const bool right = result(d) == 32 && result(e, N - 1) == 32;
    release(a, d, e);
    OK(cudaFree(mine)), OK(cudaFree(yours));
    OK(cublasLtDestroy(lt));
    return right;
}

static bool product_overrun(bool bug) {     // D is one column too small
    cublasLtHandle_t lt;
    void *workspace;
    OK(cublasLtCreate(&lt));
    OK(cudaMalloc(&workspace, 65536));
    float *a = device_filled(1), *d = device_filled(0, 32 * 31);
    product(lt, d, a, a, 32, bug ? 32 : 31, 32, workspace, s);
    const bool right = result(d) == 32;
    release(a, d);
    OK(cudaFree(workspace));
    OK(cublasLtDestroy(lt));
    return right;
}

// The host's part of an update: a host function hands its work to a thread of ours, and waits.
static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    float *work;            // what is to be multiplied by `factor`, or NULL
    float factor;
    bool end;
} worker = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, false};

static void scale_on_host(float *x, float factor) {
    for (int i = 0; i < N; i++) x[i] *= factor;
}

static void *worker_main(void *unused) {
    pthread_mutex_lock(&worker.lock);
    for (;;) {
        while (worker.work == NULL && !worker.end) pthread_cond_wait(&worker.change, &worker.lock);
        if (worker.work == NULL) break;
        pthread_mutex_unlock(&worker.lock);
        scale_on_host(worker.work, worker.factor);
        pthread_mutex_lock(&worker.lock);
        worker.work = NULL;
        pthread_cond_broadcast(&worker.change);
    }
    pthread_mutex_unlock(&worker.lock);
    return unused;
}

struct Scaling { float *x, factor; };

static void hand_to_worker(void *data) {
    const Scaling *scaling = (const Scaling *)data;
    pthread_mutex_lock(&worker.lock);
    worker.work = scaling->x, worker.factor = scaling->factor;
    pthread_cond_broadcast(&worker.change);
    while (worker.work != NULL) pthread_cond_wait(&worker.change, &worker.lock);
    pthread_mutex_unlock(&worker.lock);
}

static void host_copy(float *to, const float *from, cudaStream_t on) {     // either direction
    OK(cudaMemcpyAsync(to, from, N * sizeof(float), cudaMemcpyDefault, on));
}

static bool host_update_before_copy(bool bug) {     // the worker does not wait for the gradient
    float *a = device_filled(3), *h = pinned_filled(1);
    Scaling twice = {h, 2};
    cudaEvent_t e = new_event();
    host_copy(h, a, s);
    OK(cudaEventRecord(e, s));
    if (!bug) OK(cudaStreamWaitEvent(q, e, 0));
    OK(cudaLaunchHostFunc(q, hand_to_worker, &twice));
    OK(cudaDeviceSynchronize());
    const bool right = h[0] == 6 && h[N - 1] == 6;
    OK(cudaFreeHost(h));
    return release(a) && right;
}

static bool copy_before_host_update(bool bug) {     // the new weights leave before they are there
    float *a = device_filled(0), *h = pinned_filled(1);
    Scaling twice = {h, 2};
    cudaEvent_t e = new_event();
    OK(cudaLaunchHostFunc(q, hand_to_worker, &twice));
    OK(cudaEventRecord(e, q));
    if (!bug) OK(cudaStreamWaitEvent(s, e, 0));
    host_copy(a, h, s);
    const bool right = result(a) == 2;
    OK(cudaFreeHost(h));
    return release(a) && right;
}

static bool copy_into_host_update(bool bug) {   // the next gradient arrives before the update read
    float *a = device_filled(3), *b = device_filled(5), *c = device_filled(0);
    float *h = pinned_filled(1);
    Scaling twice = {h, 2};
    cudaEvent_t arrived = new_event(), updated = new_event();
    host_copy(h, a, s);
    OK(cudaEventRecord(arrived, s));
    OK(cudaStreamWaitEvent(q, arrived, 0));
    OK(cudaLaunchHostFunc(q, hand_to_worker, &twice));
    host_copy(c, h, q);
    OK(cudaEventRecord(updated, q));
    if (!bug) OK(cudaStreamWaitEvent(s, updated, 0));
    host_copy(h, b, s);
    const bool right = result(c) == 6;
    OK(cudaFreeHost(h));
    return release(a, b, c) && right;
}

static float *registered_filled(float v, bool do_register = true) {
    float *x = (float *)malloc(N * sizeof(float));
    for (int i = 0; i < N; i++) x[i] = v;
    if (do_register) OK(cudaHostRegister(x, N * sizeof(float), cudaHostRegisterDefault));
    return x;
}

static bool unregistered_too_early(bool bug) {  // and freed, while a copy is queued
    float *a = device_filled(1), *h = registered_filled(2);
    host_copy(a, h, s);
    if (!bug) OK(cudaStreamSynchronize(s));
    OK(cudaHostUnregister(h));
    free(h);
    const bool right = result(a) == 2;
    return release(a) && right;
}

static bool never_registered(bool bug) {    // a copy that is not asynchronous at all
    float *a = device_filled(1), *h = registered_filled(2, !bug);
    host_copy(a, h, s);
    const bool right = result(a) == 2;
    if (!bug) OK(cudaHostUnregister(h));
    free(h);
    return release(a) && right;
}

// ---------------------------------------------------------------------------------------------
// Bugs of rank 0 around collectives. Rank 1, a process of its own, runs the same without the bug.

static ncclComm_t ranks;
static int rank_here;

static void sum_over_ranks(float *to, const float *from, cudaStream_t on) {
    OK(ncclAllReduce(from, to, N, ncclFloat32, ncclSum, ranks, on));
}

static bool collective_before_its_data(bool bug) {  // it does not wait for the kernel
    float *a = device_filled(1), *b = device_filled(0);
    cudaEvent_t made = new_event();
    fill(a, 3, s);
    OK(cudaEventRecord(made, s));
    if (!bug) OK(cudaStreamWaitEvent(q, made, 0));
    sum_over_ranks(b, a, q);
    const bool right = result(b) == 6;
    return release(a, b) && right;
}

static bool kernel_before_the_collective(bool bug) {    // it does not wait for the sum
    float *a = device_filled(2), *b = device_filled(0);
    cudaEvent_t summed = new_event();
    sum_over_ranks(a, a, q);
    OK(cudaEventRecord(summed, q));
    if (!bug) OK(cudaStreamWaitEvent(s, summed, 0));
    add(b, a, s);
    const bool right = result(b) == 4;
    return release(a, b) && right;
}

static bool overwritten_while_sent(bool bug) {  // the next data come while these are being sent
    float *a = device_filled(2), *b = device_filled(0);
    cudaEvent_t sent = new_event();
    OK(ncclReduceScatter(a, b, N / 2, ncclFloat32, ncclSum, ranks, q));
    OK(cudaEventRecord(sent, q));
    if (!bug) OK(cudaStreamWaitEvent(s, sent, 0));
    fill(a, 9, s);
    const bool right = result(b) == 4;
    return release(a, b) && right;
}

static bool gathered_over_what_is_read(bool bug) {  // a kernel still reads what is gathered anew
    float *a = device_filled(1), *b = device_filled(0), *c = device_filled(5);
    cudaEvent_t read = new_event();
    add(b, a, s);
    OK(cudaEventRecord(read, s));
    if (!bug) OK(cudaStreamWaitEvent(q, read, 0));
    OK(ncclAllGather(c, a, N / 2, ncclFloat32, ranks, q));
    const bool right = result(b) == 1;
    return release(a, b, c) && right;
}

static bool host_reads_sum_early(bool bug) {    // it waits for the kernel, not for the collective
    float *a = device_filled(2), *h = pinned_filled(0);
    cudaEvent_t copied = new_event();
    sum_over_ranks(a, a, q);
    OK(cudaMemcpyAsync(h, a, N * sizeof(float), cudaMemcpyDeviceToHost, q));
    OK(cudaEventRecord(copied, q));
    if (!bug) OK(cudaEventSynchronize(copied));
    else OK(cudaStreamSynchronize(s));
    const bool right = h[0] == 4;
    OK(cudaDeviceSynchronize());
    OK(cudaFreeHost(h));
    return release(a) && right;
}

static bool two_streams_one_communicator(bool bug) {    // NCCL keeps the order, but promises none
    float *a = device_filled(2), *b = device_filled(0);
    cudaEvent_t summed = new_event();
    sum_over_ranks(a, a, s);
    OK(cudaEventRecord(summed, s));
    if (!bug) OK(cudaStreamWaitEvent(q, summed, 0));
    sum_over_ranks(b, a, q);
    const bool right = result(b) == 8;
    return release(a, b) && right;
}

static bool group_that_depends(bool bug) {  // on itself: the calls of a group have no order
    float *a = device_filled(2), *b = device_filled(0), *c = device_filled(0);
    if (bug) OK(ncclGroupStart());
    OK(ncclReduceScatter(a, b, N / 2, ncclFloat32, ncclSum, ranks, q));
    OK(ncclAllGather(b, c, N / 2, ncclFloat32, ranks, q));
    if (bug) OK(ncclGroupEnd());
    const bool right = result(c) == 4;
    return release(a, b, c) && right;
}

static bool almost_in_place(bool bug) {     // rank 0's part is the first one
    float *a = device_filled(2);
    float *part = a + (bug ? N / 4 : rank_here * (N / 2));
    OK(ncclReduceScatter(a, part, N / 2, ncclFloat32, ncclSum, ranks, q));
    const bool right = result(part) == 4;
    return release(a) && right;
}

static bool gathered_too_much(bool bug) {   // the count is what each rank sends, not the sum
    float *a = device_filled(2), *b = device_filled(0);
    OK(ncclAllGather(a, b, bug ? N : N / 2, ncclFloat32, ranks, q));
    const bool right = result(b) == 2;
    return release(a, b) && right;
}

static bool one_rank_counts_otherwise(bool bug) {
    float *a = device_filled(2);
    OK(ncclAllReduce(a, a, bug ? N - 1 : N, ncclFloat32, ncclSum, ranks, q));
    const bool right = result(a) == 4;
    return release(a) && right;
}

#define BUG(name) {#name, name}
static const struct { const char *name; bool (*run)(bool bug); } bugs[] = {
    BUG(missing_event), BUG(wait_before_record), BUG(event_too_early), BUG(write_after_read),
    BUG(ring_without_free_event), BUG(memset_on_another_stream), BUG(host_reads_early),
    BUG(host_overwrites_source), BUG(missing_syncthreads), BUG(missing_syncwarp),
    BUG(non_atomic_sum), BUG(last_block_without_fence), BUG(divergent_barrier),
    BUG(lane_that_left), BUG(missing_copy_wait), BUG(shared_overrun), BUG(small_overrun),
    BUG(large_overrun), BUG(underrun), BUG(read_past_the_end), BUG(copy_overrun),
    BUG(host_pointer_to_kernel), BUG(host_touches_device_memory), BUG(use_after_free),
    BUG(unwritten_memory), BUG(unwritten_shared_memory), BUG(illegal_launch),
    BUG(shared_workspace), BUG(product_overrun), BUG(host_update_before_copy),
    BUG(copy_before_host_update), BUG(copy_into_host_update), BUG(unregistered_too_early),
    BUG(never_registered)};
static const struct { const char *name; bool (*run)(bool bug); } rank_bugs[] = {
    BUG(collective_before_its_data), BUG(kernel_before_the_collective),
    BUG(overwritten_while_sent), BUG(gathered_over_what_is_read), BUG(host_reads_sum_early),
    BUG(two_streams_one_communicator), BUG(group_that_depends), BUG(almost_in_place),
    BUG(gathered_too_much), BUG(one_rank_counts_otherwise)};

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

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : NULL;
    const bool bug = argc > 2 && strcmp(argv[2], "bug") == 0;
    int wrong = 0, runs = 0;
    bool with_ranks = only == NULL;
    pthread_t thread;
    for (const auto &b : rank_bugs) with_ranks |= only != NULL && strcmp(only, b.name) == 0;
    const pid_t other = with_ranks ? start_ranks() : 0;
    OK(pthread_create(&thread, NULL, worker_main, NULL));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&q, cudaStreamNonBlocking));
    const auto run = [&](const auto &b) {
        if (only != NULL && strcmp(only, b.name) != 0) return;
        if (rank_here == 0) fprintf(stderr, "bugs: %s\n", b.name);  // before the sanitizers' words
        const bool right = b.run(bug && rank_here == 0);
        printf("%s %s\n", right ? "right" : "wrong", b.name);
        wrong += !right;
        runs++;
    };
    for (const auto &b : rank_bugs) run(b);
    if (with_ranks) OK(ncclCommDestroy(ranks));
    if (rank_here == 1) _exit(wrong > 0);
    for (const auto &b : bugs) run(b);
    OK(cudaDeviceSynchronize());
    pthread_mutex_lock(&worker.lock);
    worker.end = true;
    pthread_cond_broadcast(&worker.change);
    pthread_mutex_unlock(&worker.lock);
    OK(pthread_join(thread, NULL));
    if (with_ranks) {
        int status = 0;
        OK(waitpid(other, &status, 0) != other);
        if (!bug && status != 0) printf("wrong on the other rank\n"), wrong++;
    }
    if (runs == 0) printf("bugs: no such bug: %s\n", only);
    return wrong > 0 ? 3 : runs > 0 ? 0 : 2;
}
