// Tests of host.cuh: the worker's operations are ordered by events and by nothing else, its team
// and its memory are what was asked for.
//
//   test_host             all tests; on the emulated GPU it starts itself with what follows
//   test_host chain N     a small training loop in four streams, without its N-th wait for an
//                         event (0: with all of them); from 5 on: with a mistake about the counters
//                         that order stream and worker. Exit code 3: a result was wrong
//   test_host fail | huge | way | parts | lock
//                         work that fails; more memory than there is; how streams wait; memory in
//                         parts; 8 MiB of page-locked memory of each kind
#include "../../../tide/gpu/adam.cuh"
#include "../../../tide/gpu/gpt2.cuh"
#include "../../../tide/gpu/host.cuh"
#include "../test.h"
#include <sys/wait.h>

static const char *program;

// ---------------------------------------------------------------------------------------------
// The chain: gradients from the weights on the GPU, down, AdamW on the host, up, and again

enum { LAYERS = 3, STEPS = 6, LENGTH = 3000, WAITS = 4, NO_WAIT = 5, STALE_WAIT, DONE_EARLY };

HOST_DEVICE static inline uint16_t gradient_of(uint16_t w, int step, size_t i) {
    return f32_to_bf16(fma_f32(0.5f, bf16_to_f32(w), (float)((i * 7 + (size_t)step) % 11) - 5));
}

__global__ static void gradient_kernel(uint16_t *g, const uint16_t *w, int step, size_t n) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) g[i] = gradient_of(w[i], step, i);
}

typedef struct { float *p, *m, *v; uint16_t *wire; int t; } Update;

static void update(const void *arg) {  // gradients come by the wire, and the weights leave by it
    const Update *u = (const Update *)arg;
    const AdamRun runs[2] = {{0, 1001, 1, 0}, {1001, LENGTH - 1001, 0, 1001}};
    const AdamStep s = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.1, (uint64_t)u->t, 0.5);
    float grad[LENGTH];
    for (size_t i = 0; i < LENGTH; i++) grad[i] = bf16_to_f32(u->wire[i]);
    const AdamWork work = {u->p, NULL, u->m, u->v, NULL, grad, 0, 0, 1, NULL, runs, 2, s};
    adam_work(&work);
    for (size_t i = 0; i < LENGTH; i++) u->wire[i] = f32_to_bf16(u->p[i]);
}

static void nothing(const void *) {}

static HostQueue *chain_queue;
static StreamWaitValue wait_value;

static CUresult no_wait(CUstream, CUdeviceptr, cuuint32_t, unsigned) { return CUDA_SUCCESS; }

// What the same layer's work left, a step ago.
static CUresult stale_wait(CUstream s, CUdeviceptr word, cuuint32_t value, unsigned flags) {
    return wait_value(s, word, value - LAYERS, flags);
}

static void update_done_early(const void *arg) {
    const uint32_t number = chain_queue->counters->done + 1;
    host_count(chain_queue, &chain_queue->counters->done, number);  // as the worker will, again
    update(arg);
}

// One definition of the start, of the GPU's layer and of the reference.
static void start(Update *u) {
    for (size_t i = 0; i < LENGTH; i++) {
        u->p[i] = (float)(i % 97) / 50 - 1;
        u->m[i] = u->v[i] = 0;
        u->wire[i] = f32_to_bf16(u->p[i]);
    }
}

// Returns the number of weights and moments that are not those of a plain loop.
static size_t chain(int without) {
    HostQueue q;
    host_queue_open(&q, 0);
    chain_queue = &q;
    wait_value = q.wait_value;
    if (without == NO_WAIT) q.wait_value = no_wait;
    if (without == STALE_WAIT) q.wait_value = stale_wait;
    void (*const work)(const void *) = without == DONE_EARLY ? update_done_early : update;
    cudaStream_t compute, leave, back;
    cudaEvent_t made[LAYERS], left[LAYERS], updated[LAYERS], came[LAYERS];
    cudaStream_t *const streams[] = {&compute, &leave, &back};
    cudaEvent_t *const events[] = {made, left, updated, came};
    for (int i = 0; i < 3; i++) CUDA(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking));
    for (int i = 0; i < 4 * LAYERS; i++)
        CUDA(cudaEventCreateWithFlags(&events[i / LAYERS][i % LAYERS], cudaEventDisableTiming));
    Update u[LAYERS];
    uint16_t *w[LAYERS], *g[LAYERS];
    for (int l = 0; l < LAYERS; l++) {
        u[l].p = (float *)host_alloc(&q, LENGTH * 4, "p");
        u[l].m = (float *)host_alloc(&q, LENGTH * 4, "m");
        u[l].v = (float *)host_alloc(&q, LENGTH * 4, "v");
        u[l].wire = (uint16_t *)host_alloc(&q, LENGTH * 2, "wire");
        w[l] = (uint16_t *)gpu_alloc(LENGTH * 2, "weights");
        g[l] = (uint16_t *)gpu_alloc(LENGTH * 2, "gradient");
        start(&u[l]);
        CUDA(cudaMemcpy(w[l], u[l].wire, LENGTH * 2, cudaMemcpyHostToDevice));
    }
    for (int t = 1; t <= STEPS; t++) {
        for (int l = 0; l < LAYERS; l++) {
            if (without != 1 && t > 1) CUDA(cudaStreamWaitEvent(compute, came[l], 0));
            gradient_kernel<<<ceil_div(LENGTH, 256), 256, 0, compute>>>(g[l], w[l], t + l, LENGTH);
            CUDA(cudaGetLastError());
            CUDA(cudaEventRecord(made[l], compute));
            if (without != 2) CUDA(cudaStreamWaitEvent(leave, made[l], 0));
            CUDA(cudaMemcpyAsync(u[l].wire, g[l], LENGTH * 2, cudaMemcpyDeviceToHost, leave));
            CUDA(cudaEventRecord(left[l], leave));
            if (without != 3) CUDA(cudaStreamWaitEvent(q.stream, left[l], 0));
            u[l].t = t;
            host_queue_submit(&q, work, &u[l], sizeof u[l]);
            u[l].t = -1;  // the argument was copied
            CUDA(cudaEventRecord(updated[l], q.stream));
        }
        host_queue_submit(&q, nothing, "", 0);  // which must not order the main thread after all
        for (int l = 0; l < LAYERS; l++) {
            if (without != 4) CUDA(cudaStreamWaitEvent(back, updated[l], 0));
            CUDA(cudaMemcpyAsync(w[l], u[l].wire, LENGTH * 2, cudaMemcpyHostToDevice, back));
            CUDA(cudaEventRecord(came[l], back));
        }
    }
    CUDA(cudaDeviceSynchronize());
    host_queue_close(&q);
    size_t wrong = 0;
    static float p[LENGTH], m[LENGTH], v[LENGTH];
    static uint16_t wire[LENGTH], got[LENGTH];
    for (int l = 0; l < LAYERS; l++) {
        Update want = {p, m, v, wire, 0};
        start(&want);
        for (want.t = 1; want.t <= STEPS; want.t++) {
            for (size_t i = 0; i < LENGTH; i++) wire[i] = gradient_of(wire[i], want.t + l, i);
            update(&want);
        }
        CUDA(cudaMemcpy(got, w[l], sizeof got, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < LENGTH; i++)
            wrong += u[l].p[i] != p[i] || u[l].m[i] != m[i] || u[l].v[i] != v[i] ||
                     got[i] != wire[i];
        host_free(u[l].p), host_free(u[l].m), host_free(u[l].v), host_free(u[l].wire);
        CUDA(cudaFree(w[l])), CUDA(cudaFree(g[l]));
    }
    for (int i = 0; i < 3; i++) CUDA(cudaStreamDestroy(*streams[i]));
    for (int i = 0; i < 4 * LAYERS; i++) CUDA(cudaEventDestroy(events[i / LAYERS][i % LAYERS]));
    return wrong;
}

static void chain_is_a_plain_loop(void) {
    const size_t wrong = chain(0);
    CHECK(wrong == 0, "%zu wrong", wrong);
}

// Each queue begins shortly before its counters wrap, so `chain` has them wrap on both sides.
static void counters_wrap_around(void) {
    CHECK(host_count_is_before(0xfffffffe, 1) && !host_count_is_before(1, 0xfffffffe), "wrapped");
    CHECK(host_count_is_before(6, 7) && !host_count_is_before(7, 7), "as they are");
    CHECK((uint32_t)(HOST_FIRST_WORK + LAYERS * STEPS) < HOST_FIRST_WORK, "%u", HOST_FIRST_WORK);
}

// Starts this program again; what it printed goes to `text`. Returns its exit code, -1 if a signal
// ended it.
static int again(const char *environment, const char *arguments, char *text, size_t size) {
    char line[4096];
    snprintf(line, sizeof line, "EMU_RACECHECK=0 TSAN_OPTIONS='exitcode=66 atexit_sleep_ms=0' "
             "%s timeout 60 '%s' %s 2>&1", environment, program, arguments);
    FILE *f = popen(line, "r");
    if (f == NULL) return -1;
    const size_t n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    while (fgetc(f) != EOF) {}
    const int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER
#endif
#endif

// Without an event ThreadSanitizer reports a race under any schedule, and results are wrong where
// one stream runs as far ahead as it can. So with a mistake about the counters, but that a schedule
// is needed in which the stream goes on before the work is done; and without a wait all may break.
static void mistakes_are_seen(void) {
#ifndef __CUDA_EMU__
    SKIP("a GPU chooses its own order");
#else
    char text[4096], arguments[32], environment[32];
    for (int bug = 1; bug <= DONE_EARLY; bug++) {
        snprintf(arguments, sizeof arguments, "chain %d", bug);
#ifdef THREAD_SANITIZER
        static const char *const schedules[] = {"eager", "lazy", "prio:0"};
        for (int i = bug > WAITS; i < 3; i++) {
            snprintf(environment, sizeof environment, "EMU_SCHED=%s", schedules[i]);
            const int code = again(environment, arguments, text, sizeof text);
            CHECK(code == 66 && strstr(text, "data race") != NULL, "wait %d, %s: code %d\n%s", bug,
                  schedules[i], code, text);
        }
#else
        static const char *const adversaries[] = {"prio:0", "prio:1", "prio:2"};
        int codes[3];
        for (int i = 0; i < 3; i++) {
            snprintf(environment, sizeof environment, "EMU_SCHED=%s", adversaries[i]);
            codes[i] = again(environment, arguments, text, sizeof text);
        }
        CHECK(codes[0] != 0 || codes[1] != 0 || codes[2] != 0, "mistake %d is not missed", bug);
#endif
    }
#endif
}

// ---------------------------------------------------------------------------------------------
// The queue

typedef struct { int *log; int number; alignas(16) char rest[48]; } Note;

static void note(const void *arg) {
    const Note *n = (const Note *)arg;
    n->log[n->number] = n->log[n->number - 1] + ((uintptr_t)arg % 16 == 0 && n->rest[47] == 5);
}

static void operations_run_in_order(void) {
    enum { MANY = 5000 };
    HostQueue q;
    host_queue_open(&q, 1);
    int *log = (int *)alloc_or_fail(MANY + 1, sizeof(int), "log");
    Note n = {log, 0, {0}};
    n.rest[47] = 5;
    for (n.number = 1; n.number <= MANY; n.number++) host_queue_submit(&q, note, &n, sizeof n);
    host_queue_close(&q);  // waits for all
    for (int i = 1; i <= MANY; i++) CHECK(log[i] == i, "operation %d: %d", i, log[i]);
    free(log);
}

typedef struct { int threads; pthread_t of; } Team;

static void look_at_team(const void *arg) {
    Team *team = *(Team *const *)arg;
    team->of = pthread_self();
    team->threads = 1;
#ifdef _OPENMP
    #pragma omp parallel
    #pragma omp master
    team->threads = omp_get_num_threads();
#endif
}

static void team_is_what_was_asked_for(void) {
    for (int threads = 0; threads <= 3; threads++) {
        HostQueue q;
        Team team, *to = &team;
        host_queue_open(&q, threads);
        host_describe(&q);
        host_queue_submit(&q, look_at_team, &to, sizeof to);
        CUDA(cudaStreamSynchronize(q.stream));
        CHECK(!pthread_equal(team.of, pthread_self()), "the worker is a thread of its own");
        CHECK(team.threads == q.threads, "%d of %d", team.threads, q.threads);
#ifdef _OPENMP
        CHECK(threads == 0 || q.threads == threads, "%d, not %d", q.threads, threads);
#endif
        host_queue_close(&q);
    }
}

// ---------------------------------------------------------------------------------------------
// Memory

static void memory_is_zeroed_locked_and_aligned(void) {
    HostQueue q;
    host_queue_open(&q, 2);
    const size_t sizes[] = {0, 1, 4096, 5000, (size_t)2 << 20, ((size_t)6 << 20) + 12};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const size_t n = sizes[k];
        const size_t untouched = memory_held(false);
        char *p = (char *)host_alloc(&q, n, "test");
        CHECK(n < 1 << 20 || memory_held(false) >= untouched + n / 2, "%zu bytes are not there", n);
        CHECK((uintptr_t)p % (2 << 20) == 0, "%p", (void *)p);
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) wrong += p[i] != 0;
        CHECK(wrong == 0, "%zu of %zu bytes are not zero", wrong, n);
        memset(p, 1, n);
        cudaPointerAttributes a;
        CUDA(cudaPointerGetAttributes(&a, p));
        CHECK(a.type == cudaMemoryTypeHost, "page-locked");
        const size_t before = memory_held(false);
        host_free(p);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed for a while, to notice who reads it
        CHECK(n < 1 << 20 || memory_held(false) + n / 2 < before, "%zu bytes stay", n);
#endif
        (void)before;
        CUDA(cudaPointerGetAttributes(&a, p));
        CHECK(a.type == cudaMemoryTypeUnregistered, "still page-locked");
    }
    host_free(NULL);
    host_queue_close(&q);
}

// Parts of 1 MiB: all of the memory is page-locked, copies across borders carry all bytes, and
// nothing is locked afterwards. Returns what is wrong.
static size_t parts(void) {
    HostQueue q;
    host_queue_open(&q, 1);
    const size_t whole = host_part, n = ((size_t)5 << 20) + 4321;
    host_part = 1 << 20;
    char *p = (char *)host_alloc(&q, n, "parts"), *device = (char *)gpu_alloc(n, "parts");
    cudaPointerAttributes a;
    size_t wrong = 0;
    for (size_t at = 0; at < n; at += 4096) {
        CUDA(cudaPointerGetAttributes(&a, p + at));
        wrong += a.type != cudaMemoryTypeHost;
    }
    for (size_t i = 0; i < n; i++) p[i] = (char)(i * 7 + i / 1000);
    stream_copy(device + 5, p + 5, n - 5, cudaMemcpyHostToDevice, q.stream);
    stream_sync(q.stream);
    for (size_t i = 5; i < n; i++) p[i]++;
    stream_copy(p + 999, device + 999, n - 999, cudaMemcpyDeviceToHost, q.stream);
    stream_sync(q.stream);
    for (size_t i = 999; i < n; i++) wrong += p[i] != (char)(i * 7 + i / 1000);
    for (size_t i = 0; i < n; i++) p[i]--;
    gpu_copy(p, device, 999);
    gpu_copy(device + 1000, p + 1000, n - 1000);
    gpu_copy(p + 999, device + 999, n - 999);
    for (size_t i = 5; i < n; i++)
        wrong += p[i] != (char)(i * 7 + i / 1000 - (i >= 1000));
    host_free(p);
    for (size_t at = 0; at < n; at += 4096) {
        CUDA(cudaPointerGetAttributes(&a, p + at));
        wrong += a.type != cudaMemoryTypeUnregistered;
    }
    gpu_free(device);
    host_queue_close(&q);
    host_part = whole;
    return wrong;
}

static void work_that_fails(const void *) { fail("the disk is full"); }
static void at_exit(void) { fprintf(stderr, "CUDA's handler would wait for the work\n"); }

#define BY_FUNCTION "; the driver's thread waits for them\n"
#define REFUSED "tide: page-locked host memory is refused ("

// This program, started again: its settings, arguments and exit code; how what it says begins, and
// what is in it ("!": is not). A failure is one line.
static const struct {
    const char *settings, *arguments;
    int code;
    const char *begin, *has;
} starts[] = {
    // gpu.cuh says so before main(), for tests and benchmarks as for the trainer; a wish stays
    {"env -u CUDA_DEVICE_MAX_CONNECTIONS", "connections", 0, "32\n", ""},
    {"CUDA_DEVICE_MAX_CONNECTIONS=7", "connections", 0, "7\n", ""},
    {"", "fail", 1, "tide: the disk is full\n", ""},
    {"", "huge", 1, "tide: out of host memory: moments needs ", "--host-memory"},
    // what is asked of the device shows in the line about the host, and in nothing else
    {"TIDE_HOST_WAIT=function", "way", 0, "", BY_FUNCTION},
    {"TIDE_HOST_WAIT=function", "chain 0", 0, "", ""},
    {"TIDE_HOST_WAIT=", "chain 0", 0, "", ""},
    // a driver that locks no more than a part in one call
    {"EMU_PIN_CALL_KB=1024 EMU_STRICT=1", "parts", 0, "", ""},
#ifdef __CUDA_EMU__
    {"EMU_WAIT_VALUE=0", "way", 0, "", BY_FUNCTION},
    {"", "way", 0, "", "!driver"},
    {"EMU_SCHED=eager", "chain 0", 0, "", ""},
    {"EMU_SCHED=lazy", "chain 0", 0, "", ""},
    {"EMU_SCHED=prio:0", "chain 0", 0, "", ""},
    {"EMU_SCHED=prio:1", "chain 0", 0, "", ""},
    {"EMU_SCHED=random:3", "chain 0", 0, "", ""},
    {"EMU_SCHED=lazy EMU_STRICT=1 OMP_NUM_THREADS=3", "chain 0", 0, "", ""},
    {"EMU_SCHED=lazy TIDE_HOST_WAIT=function", "chain 0", 0, "", ""},
    {"EMU_SCHED=prio:1 EMU_WAIT_VALUE=0", "chain 0", 0, "", ""},
    {"EMU_PIN_MB=24", "lock", 0, "", ""},
    {"EMU_PIN_MB=4", "lock", 1, REFUSED "cudaErrorMemoryAllocation): moments needs 8.0 MiB; ", ""},
    {"EMU_PIN_CALL_KB=4096", "lock", 1, REFUSED, "MemoryAllocation): moments needs 8.0 MiB; "},
    {"EMU_PIN_MB=12", "lock", 1, REFUSED, "MemoryAllocation): tokens needs 8.0 MiB; "},
    {"EMU_PIN_MB=4 EMU_PIN_ERROR=1", "lock", 1, REFUSED, "InvalidValue): moments needs 8.0 MiB; "},
    {"EMU_PIN_MB=4", "lock", 1, REFUSED, "MiB; `dmesg` may say why; set --host-memory "},
    {"EMU_PIN_MB=4 TIDE_MACHINE=$folder", "lock", 1, REFUSED, "MiB; WSL2: Windows limits it to a "
     "part of the memory; set --host-memory to what may be locked, or take --offload none\n"},
#endif
};

static void starts_end_as_they_should(void) {
    char text[4096], folder[] = "/tmp/test_host.XXXXXX";
    if (mkdtemp(folder) == NULL || setenv("folder", folder, 1) != 0
        || system("mkdir -p $folder/proc/sys/kernel && echo 5.15.90.1-microsoft-standard-WSL2 "
                  ">$folder/proc/sys/kernel/osrelease") != 0) fail("no file");
    for (const auto &x : starts) {
        const int code = again(x.settings, x.arguments, text, sizeof text);
        const bool has = *x.has == '!' ? strstr(text, x.has + 1) == NULL
                                       : strstr(text, x.has) != NULL;
        CHECK(code == x.code && has && strncmp(text, x.begin, strlen(x.begin)) == 0
              && (code == 0 || strchr(text, '\n')[1] == '\0'), "%s %s: code %d: %s", x.settings,
              x.arguments, code, text);
    }
    (void)!system("rm -r $folder");
}

int main(int argc, char **argv) {
    program = argv[0];
    HostQueue q;
    if (argc == 3 && strcmp(argv[1], "chain") == 0) return chain(atoi(argv[2])) == 0 ? 0 : 3;
    if (argc == 2 && strcmp(argv[1], "connections") == 0)
        return puts(getenv("CUDA_DEVICE_MAX_CONNECTIONS")) < 0;
    if (argc == 2 && strcmp(argv[1], "parts") == 0) return parts() == 0 ? 0 : 3;
    if (argc == 2) host_queue_open(&q, 0);
    if (argc == 2 && strcmp(argv[1], "way") == 0) {
        host_describe(&q);
        host_queue_close(&q);
    } else if (argc == 2 && strcmp(argv[1], "fail") == 0) {
        atexit(at_exit);
        host_queue_submit(&q, work_that_fails, "", 0);
        host_queue_close(&q);
    } else if (argc == 2 && strcmp(argv[1], "lock") == 0) {
        host_free(host_alloc(&q, (size_t)8 << 20, "moments"));
        host_alloc(&q, (size_t)8 << 20, "weights");
        pinned_alloc((size_t)8 << 20, "tokens");
    } else if (argc == 2) {
        host_alloc(&q, (size_t)1 << 44, "moments");
    }
    if (argc == 2) return 0;
    RUN(team_is_what_was_asked_for);
    RUN(operations_run_in_order);
    RUN(memory_is_zeroed_locked_and_aligned);
    RUN(chain_is_a_plain_loop);
    RUN(counters_wrap_around);
    RUN(mistakes_are_seen);
    RUN(starts_end_as_they_should);
    return test_summary();
}
