// queue.cuh: streams, events, and work for streams. The GPU runs the work; a rehearsal
// (rehearsal.h) only writes it down. The training step uses CUDA through these functions alone.
//
//   stream_make(), event_make(), events_make(), stream_free(), event_free()
//   stream_wait(), event_record()                    order the work of two streams
//   event_wait(), stream_sync(), device_sync()       make the host wait
//   device_seconds()                                 the time between two timing events
//   LAUNCH(), stream_copy(), stream_zero()           queue work for the GPU and the link
//   tell_host()                                      copies a few numbers, past the link's queue
//   GPU_TAKES()                                      says how long a rehearsed GPU works
//   gpu_alloc(), pinned_alloc(), gpu_free(), pinned_free()    memory
//   owner_begin(), owner_end(), owner_free()         free everything that a model has made
//
// A rehearsal has neither streams nor memory: handles are numbers, and no address may be read.
#ifndef TIDE_QUEUE_CUH
#define TIDE_QUEUE_CUH
#include "../base/memory.h"
#include "gpu.cuh"
#include "../plan/rehearsal.h"

// ---------------------------------------------------------------------------------------------
// Owners: owner_free() frees all that was made between owner_begin() and owner_end()

typedef struct { void (*free)(void *p); void *p; } Owned;
typedef struct { Owned *list; int count; } Owner;

static Owner *owner;

static void owner_begin(Owner *o) { owner = o; }
static void owner_end(void) { owner = NULL; }

// Notes the function that frees p; returns p.
static void *owner_add(void (*free)(void *p), void *p) {
    Owner *o = owner;
    if (o == NULL) return p;
    o->list = (Owned *)array_grow(o->list, (size_t)o->count, sizeof *o->list, "list of buffers");
    o->list[o->count++] = Owned{free, p};
    return p;
}

// Frees all that the owner has noted. No work may be queued.
static void owner_free(Owner *o) {
    for (const Owned *x = o->list; x < o->list + o->count; x++) x->free(x->p);
    free(o->list);
    memset(o, 0, sizeof *o);
}

// ---------------------------------------------------------------------------------------------
// Memory. Freeing memory of the GPU waits for all work of all streams.

static void device_sync(void) {
    if (rehearsal == NULL) CUDA(cudaDeviceSynchronize());
    else for (int i = 1; i < rehearsal->stream_count; i++) rehearse_rest(i);
}

// Returns the bytes of shared memory of a multiprocessor; 0 in a rehearsal.
static size_t multiprocessor_shared(void) {
    int device = 0, bytes = 0;
    if (rehearsal != NULL) return 0;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    return (size_t)bytes;
}

static void gpu_free(void *p) {
    if (rehearsal != NULL) device_sync();
    else CUDA(cudaFree(p));
}

static void pinned_free(void *p) { CUDA(cudaFreeHost(p)); }

// Returns uninitialised device memory, aligned to 256 bytes. `what` names it in the error.
static void *gpu_alloc(size_t bytes, const char *what) {
    void *p = NULL;
    if (rehearsal != NULL) return rehearse_memory(bytes);
    const cudaError_t e = cudaMalloc(&p, bytes > 0 ? bytes : 1);
    if (e == cudaErrorMemoryAllocation)
        fail("out of GPU memory: %s needs %.1f MiB, which were free before: end what else uses the "
             "GPU, or plan with less: --gpu-memory", what, mib(bytes));
    CUDA(e);
    emu_name_memory(p, what);
    return owner_add(gpu_free, p);
}

// Ends the run if e says that page-locked memory for `what` is refused. All other errors belong to
// work that was queued before.
static void pinned_check(cudaError_t e, size_t bytes, const char *what) {
    const MachineText system = machine_text("/proc/sys/kernel/osrelease", "");
    const char *limit = "`dmesg` may say why";
    if (strstr(system.text, "icrosoft") != NULL)
        limit = "WSL2: Windows limits it to a part of the memory";
    if (e == cudaErrorMemoryAllocation || e == cudaErrorInvalidValue || e == cudaErrorNotSupported)
        fail("page-locked host memory is refused (%s): %s needs %.1f MiB; %s; set --host-memory to "
             "what may be locked, or take --offload none", cudaGetErrorName(e), what, mib(bytes),
             limit);
    CUDA(e);
}

// Returns zeroed host memory that is page-locked, so that copies to and from the GPU are
// asynchronous. A rehearsal allocates it, too, because the host reads and writes it.
static void *pinned_alloc(size_t bytes, const char *what) {
    void *p = NULL;
    if (rehearsal != NULL) return owner_add(free, alloc_or_fail(bytes, 1, what));
    pinned_check(cudaMallocHost(&p, bytes > 0 ? bytes : 1), bytes, what);
    memset(p, 0, bytes);
    return owner_add(pinned_free, p);
}

// ---------------------------------------------------------------------------------------------
// Streams and events

static int stream_number(cudaStream_t stream) { return (int)(uintptr_t)stream; }
static int event_number(cudaEvent_t event) { return (int)(uintptr_t)event; }

static void stream_free(void *stream) { CUDA(cudaStreamDestroy((cudaStream_t)stream)); }
static void event_free(void *event) { CUDA(cudaEventDestroy((cudaEvent_t)event)); }

// Makes a stream. urgent: the GPU begins its kernels before other streams' kernels (copies have no
// such order); for short kernels that other streams wait for. name: for the emulator's reports.
static cudaStream_t stream_make(const char *name, bool urgent) {
    int lowest, highest;
    cudaStream_t stream;
    if (rehearsal != NULL) return (cudaStream_t)(uintptr_t)rehearse_stream();
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? highest : lowest));
    emu_name_stream(stream, name);
    return (cudaStream_t)owner_add(stream_free, stream);
}

// Makes an event. sleeps: a thread that waits for it sleeps (host.cuh), and wakes some 50 us late.
static void event_make(cudaEvent_t *event, bool sleeps) {
    if (rehearsal != NULL) *event = (cudaEvent_t)(uintptr_t)rehearse_event();
    else CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming
                                                  | (sleeps ? cudaEventBlockingSync : 0)));
    if (rehearsal == NULL) owner_add(event_free, *event);
}

static cudaEvent_t *events_make(size_t n) {
    cudaEvent_t *events = (cudaEvent_t *)owner_add(free, ALLOC(cudaEvent_t, n, "events"));
    for (size_t i = 0; i < n; i++) event_make(&events[i], false);
    return events;
}

// Makes all work that is queued in the stream from now on wait for the newest record of the event.
static void stream_wait(cudaStream_t stream, cudaEvent_t event) {
    if (rehearsal != NULL) rehearse_wait(stream_number(stream), event_number(event));
    else CUDA(cudaStreamWaitEvent(stream, event, 0));
}

// Records an event, which is complete once the stream has done all work that is queued so far.
static void event_record(cudaEvent_t event, cudaStream_t stream) {
    if (rehearsal != NULL) rehearse_record(event_number(event), stream_number(stream));
    else CUDA(cudaEventRecord(event, stream));
}

// Make the host wait for an event, or for all work of a stream (device_sync(): of all streams).
static void event_wait(cudaEvent_t event) {
    if (rehearsal != NULL) rehearse_wait(THE_HOST, event_number(event));
    else CUDA(cudaEventSynchronize(event));
}

static void stream_sync(cudaStream_t stream) {
    if (rehearsal != NULL) rehearse_rest(stream_number(stream));
    else CUDA(cudaStreamSynchronize(stream));
}

// Returns the seconds between two timing events, once the second one is complete.
static double device_seconds(cudaEvent_t start, cudaEvent_t end) {
    float ms = 0;
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, start, end));
    return 1e-3 * (double)ms;
}

// ---------------------------------------------------------------------------------------------
// Work

// Launches a kernel, with the four values in its <<< >>>, and its arguments.
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
    do { \
        if (rehearsal != NULL) break; \
        kernel<<<grid, block, shared, stream>>>(__VA_ARGS__); \
        CUDA(cudaGetLastError()); \
    } while (0)

// Allows a kernel `bytes` of shared memory, more than the 48 KiB that every kernel may use.
#define LET_SHARED(kernel, bytes) \
    do { \
        if (rehearsal == NULL) \
            CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                      (int)(bytes))); \
    } while (0)

// Says how long the next work takes in a rehearsal: `amount` divided by a rate of rates.h, as in
// GPU_TAKES(stream, 2 * M * N * K, gpu_flops).
#define GPU_TAKES(stream, amount, rate) \
    do { \
        if (rehearsal != NULL) \
            rehearse(stream_number(stream), \
                     offsetof(Rates, rate) == offsetof(Rates, gpu_flops) ? TAKES_PRODUCTS \
                     : offsetof(Rates, rate) == offsetof(Rates, gpu_attention) ? TAKES_ATTENTION \
                                                                               : TAKES_GPU, \
                     (double)(amount) / rate_or(rehearsal->rates.rate, UNLIMITED)); \
    } while (0)

// The driver locks less than 512 GiB in a call. So host_alloc() locks memory in parts, which begin
// at multiples of host_part, and no copy may cross a part's border. Tests make parts smaller.
static size_t host_part = (size_t)256 << 30;

// Returns the bytes from p + at to the next border of a part, or to p + bytes if it is nearer.
static size_t part_at(const void *p, size_t at, size_t bytes) {
    return min_size(bytes - at, host_part - ((uintptr_t)p + at) % host_part);
}

// Queues a copy. In a rehearsal, copies within the GPU take no time.
static void stream_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream) {
    for (size_t at = 0, n; rehearsal == NULL && at < bytes; at += n) {
        n = min_size(part_at(to, at, bytes), part_at(from, at, bytes));
        CUDA(cudaMemcpyAsync((char *)to + at, (const char *)from + at, n, kind, stream));
    }
    if (rehearsal != NULL && kind != cudaMemcpyDeviceToDevice)
        rehearse(stream_number(stream), kind == cudaMemcpyHostToDevice ? TAKES_H2D : TAKES_D2H,
                 (double)bytes);
}

static void stream_zero(void *p, size_t bytes, cudaStream_t stream) {
    if (rehearsal == NULL) CUDA(cudaMemsetAsync(p, 0, bytes, stream));
}

__global__ static void tell_host_kernel(double *host, const double *from, size_t stride) {
    host[blockIdx.x * blockDim.x + threadIdx.x] = from[blockIdx.x * stride + threadIdx.x];
}

// Lets a kernel copy `rows` rows of n numbers to page-locked host memory; in `from`, rows begin
// `stride` apart. (A copy by CUDA would wait for gradients that other streams copy to the host.)
static inline void tell_host(double *host, const double *from, unsigned rows, size_t stride,
                             unsigned n, cudaStream_t stream) {
    LAUNCH(tell_host_kernel, rows, n, 0, stream, host, from, stride);
}

#endif
