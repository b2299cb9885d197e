// host.cuh: work and memory of the host. In training, only one worker thread has a team
// of OpenMP threads. This team is also the first to write page-locked memory: see host_zero().
//   host_queue_open(), host_queue_submit(), host_queue_close()  work for the host
//   host_describe()                                             prints a line about the team
//   host_alloc(), host_free()                                  memory
//
// Work for the host is an operation in a stream, like a kernel or a copy: events order other work
// after it. The main thread never waits for the worker: only events say when memory may be used.
//
// Each work raises two counters by one. When the stream has reached the work, a host function (of
// cudaLaunchHostFunc()) raises `reached`. After the work, the worker raises `done`, and the stream
// waits for `done`: by cuStreamWaitValue32(); or by a host function, if the device's streams cannot
// wait for a word of memory, or with TIDE_HOST_WAIT=function. doc/offload.md has the reasons.
#ifndef TIDE_HOST_CUH
#define TIDE_HOST_CUH
#include "../cpu/cpu.h"
#include "queue.cuh"
#include "../base/ranks.h"
#include <cuda.h>  // only for types: the driver's library is not linked
#include <pthread.h>

// Submitted work; the argument follows in memory.
typedef struct HostJob {
    struct HostQueue *queue;
    void (*work)(const void *arg);
} HostJob;

// The two counters of a queue, in page-locked memory, each in its own cache line. Both wrap around.
typedef struct {
    uint32_t reached;  // the number of the last work that the stream has reached
    char apart[60];
    uint32_t done;     // the number of the last work that the worker has done
} HostCounters;

// The counters begin just below their largest value, so that they wrap around in every run.
#define HOST_FIRST_WORK 0xfffffffcu

// The type of the driver's cuStreamWaitValue32().
typedef CUresult (*StreamWaitValue)(CUstream, CUdeviceptr word, cuuint32_t value, unsigned flags);

typedef struct HostQueue {
    cudaStream_t stream;
    int threads;      // of the worker's team
    pthread_t worker;
    HostCounters *counters;
    uint32_t submitted, waited;  // numbers of the last work submitted; awaited by host functions
    StreamWaitValue wait_value;  // NULL: host functions wait
    HostJob *job;            // the newest that the stream has reached
    pthread_mutex_t mutex;   // with `changed`: for threads that sleep until a counter changes
    pthread_cond_t changed;
} HostQueue;

// Starts the team of threads. This is the worker's first work.
static void host_team_start(const void *arg) {
    HostQueue *q = *(HostQueue *const *)arg;
    omp_set_num_threads(q->threads);
    #pragma omp parallel
    #pragma omp master
    q->threads = omp_get_num_threads();
}

static bool host_count_is_before(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }

static void host_count(HostQueue *q, uint32_t *counter, uint32_t number) {
    pthread_mutex_lock(&q->mutex);
    __atomic_store_n(counter, number, __ATOMIC_RELEASE);  // after all writes of the work
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->mutex);
    emu_wait_value(counter, number);  // lets the emulator run other threads first
}

static void host_await(HostQueue *q, const uint32_t *counter, uint32_t number) {
    emu_wait_value(counter, number);  // the emulator chooses when this thread goes on
    pthread_mutex_lock(&q->mutex);
    while (host_count_is_before(__atomic_load_n(counter, __ATOMIC_ACQUIRE), number))
        pthread_cond_wait(&q->changed, &q->mutex);
    pthread_mutex_unlock(&q->mutex);
}

static void host_end(const void *) {}

static void *host_worker(void *arg) {
    HostQueue *q = (HostQueue *)arg;
    thread_is_awaited = true;  // a stream waits for this thread
    for (uint32_t n = HOST_FIRST_WORK;; n++) {
        host_await(q, &q->counters->reached, n);
        HostJob *job = q->job;
        const bool last = job->work == host_end;
        job->work(job + 1);
        free(job);
        host_count(q, &q->counters->done, n);
        if (last) return NULL;
    }
}

// Gives the worker the job that the stream has reached. (A host function; the last job is done.)
static void host_job_reached(void *data) {
    HostJob *job = (HostJob *)data;
    HostQueue *q = job->queue;
    q->job = job;
    host_count(q, &q->counters->reached, q->counters->reached + 1);
}

static void host_job_await(void *data) {
    HostQueue *q = (HostQueue *)data;
    host_await(q, &q->counters->done, ++q->waited);
}

// Queues work(arg) as one operation of q->stream. The worker runs it; its parallel regions have
// q->threads threads. The `bytes` bytes at arg are copied now, to an address that is a multiple of
// 16. `work` may not call CUDA; if it fails, it ends the program (fail()).
static void host_queue_submit(HostQueue *q, void (*work)(const void *arg), const void *arg,
                                     size_t bytes) {
    if (rehearsal != NULL) return;
    HostJob *job = (HostJob *)alloc_or_fail(1, sizeof(HostJob) + bytes, "work for the host");
    job->queue = q;
    job->work = work;
    memcpy(job + 1, arg, bytes);
    q->submitted++;
    CUDA(cudaLaunchHostFunc(q->stream, host_job_reached, job));
    if (q->wait_value == NULL) {
        CUDA(cudaLaunchHostFunc(q->stream, host_job_await, q));
        return;
    }
    const CUresult e = q->wait_value(q->stream, (CUdeviceptr)(uintptr_t)&q->counters->done,
                                     q->submitted, CU_STREAM_WAIT_VALUE_GEQ);
    if (e != CUDA_SUCCESS) fail("CUDA error %d: a stream cannot wait for the host", (int)e);
}

// Says, in a rehearsal, how many bytes the next work reads and writes (AdamW: 26 per element).
static void host_takes(const HostQueue *q, size_t bytes) {
    if (rehearsal != NULL) rehearse(stream_number(q->stream), TAKES_HOST, (double)bytes);
}

// Finds the driver's function, and tries it with a wait that ends at once. Returns NULL if this
// device has no such function.
static StreamWaitValue host_wait_value_find(const HostQueue *q) {
    const char *way = getenv("TIDE_HOST_WAIT");
    if (way != NULL && strcmp(way, "function") == 0) return NULL;
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000,
                                          cudaEnableDefault, &found));
#else
    CUDA(cudaGetDriverEntryPoint("cuStreamWaitValue32", &function, cudaEnableDefault, &found));
#endif
    const StreamWaitValue wait = (StreamWaitValue)function;
    if (found != cudaDriverEntryPointSuccess || wait == NULL
        || wait(q->stream, (CUdeviceptr)(uintptr_t)&q->counters->done, q->submitted,
                CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) return NULL;
    return wait;
}

// Starts the worker with a team of `threads` threads. If `threads` is 0, cpu_threads() says how
// many; but if these are more than four, one is left to the main thread, which launches the GPU's
// work (some ms of a step). The worker keeps the address q.
static void host_queue_open(HostQueue *q, int threads) {
    memset(q, 0, sizeof *q);
    if (rehearsal != NULL) {
        q->stream = stream_make("host", false);
        return;
    }
    q->threads = cpu_threads((size_t)threads, ranks.local_world);
    if (threads == 0 && q->threads > 4) q->threads--;
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->changed, NULL);
    // A thread that waits for the GPU must sleep, or it would take a core from the team.
    CUDA(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    q->stream = stream_make("host", false);
    q->counters = (HostCounters *)pinned_alloc(sizeof *q->counters, "the host's counters");
    q->counters->reached = q->counters->done = q->submitted = q->waited = HOST_FIRST_WORK - 1;
    q->wait_value = host_wait_value_find(q);
    const int error = pthread_create(&q->worker, NULL, host_worker, q);
    if (error != 0) fail("cannot start the host's worker thread: %s", strerror(error));
    host_queue_submit(q, host_team_start, &q, sizeof q);
    stream_sync(q->stream);
}

// Waits until all submitted work is done, and ends the worker.
static void host_queue_close(HostQueue *q) {
    if (rehearsal != NULL) return;
    host_queue_submit(q, host_end, "", 0);
    stream_sync(q->stream);
    pthread_join(q->worker, NULL);
    pthread_mutex_destroy(&q->mutex);
    pthread_cond_destroy(&q->changed);
    stream_free(q->stream);
    pinned_free(q->counters);
}

// Prints how many threads the team has, and whether host functions wait for it in the driver.
static void host_describe(const HostQueue *q) {
    printf("host: %d thread%s%s\n", q->threads, q->threads > 1 ? "s" : "",
           q->wait_value != NULL ? "" : "; the driver's thread waits for them");
}

// ---------------------------------------------------------------------------------------------
// Memory

// May host_alloc() take more than Linux reports as available? (A virtual machine may grow on use.)
static bool host_memory_grows;

typedef struct { char *p; size_t bytes; } HostRange;

static HostRange *host_locked;  // memory that host_alloc() has given out
static size_t host_locked_count;

// Zeroes memory, with the team: Linux places a page next to the core that touches the page first.
static void host_zero(const void *arg) {
    const HostRange *range = (const HostRange *)arg;
    const size_t page = 4096;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < range->bytes; i += page)
        memset(range->p + i, 0, min_size(page, range->bytes - i));
}

// Frees p, from host_alloc(). No stream may use it any more.
static void host_free(void *p) {
    HostRange *range = host_locked;
    while (range->p != p) range++;
    for (size_t at = 0; at < range->bytes; at += part_at(p, at, range->bytes))
        CUDA(cudaHostUnregister(range->p + at));
    free(p);
    *range = host_locked[--host_locked_count];
}

// Returns zeroed page-locked memory, at a multiple of 2 MiB and in huge pages where Linux has them.
// The queue's team zeroes it, after the work that is queued. `what` names it in the error. Checks
// first that there is enough: Linux gives out memory that it lacks, and kills who uses it.
static void *host_alloc(HostQueue *q, size_t bytes, const char *what) {
    if (rehearsal != NULL) return rehearse_memory(bytes);
    const size_t huge = (size_t)2 << 20;
    const size_t available = host_memory_grows ? memory_container() : memory_available();
    HostRange range = {NULL, bytes > 0 ? bytes : 1};
    if (bytes <= available - available / 64)  // a 64th is for page tables and the driver's lists
        range.p = (char *)aligned_alloc(huge, round_up(range.bytes, huge));
    if (range.p == NULL)
        fail("out of host memory: %s needs %.1f MiB, %.1f MiB are free; set "
             "--host-memory to what may be used", what, mib(bytes), mib(memory_available()));
    madvise(range.p, range.bytes, MADV_HUGEPAGE);
    host_queue_submit(q, host_zero, &range, sizeof range);
    stream_sync(q->stream);
    for (size_t at = 0, n; at < range.bytes; at += n) {
        n = part_at(range.p, at, range.bytes);
        pinned_check(cudaHostRegister(range.p + at, n, cudaHostRegisterDefault), bytes, what);
    }
    host_locked = (HostRange *)array_grow(host_locked, host_locked_count, sizeof range, what);
    host_locked[host_locked_count++] = range;
    emu_name_memory(range.p, what);
    return owner_add(host_free, range.p);
}

#endif
