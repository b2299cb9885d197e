// Tests of host.cuh: the worker's operations run in order, its team and its memory are what was
// asked for, and a stream that waits for it in either way leaves the same bits. (That events order
// its work, and nothing else: the rows of runs.cuh, and mutants.)
//
//   test_host             all tests; on the emulated GPU it starts itself with what follows
//   test_host fail | huge | way | parts | lock | connections
//                         work that fails; more memory than there is; how streams wait; memory in
//                         parts; 8 MiB of page-locked memory of each kind
#include "../../../tide/gpu/adam.cuh"
#include "../../../tide/gpu/gpt2.cuh"
#include "../../../tide/gpu/host.cuh"
#include "../test.h"
#include <sys/wait.h>

// Starts this program again under the name of a test; what it prints goes to `text`. Returns its
// exit code, -1 if a signal ended it. settings: "NAME=value", or "-NAME" to be without.
static int again(const char *settings, const char *const *arguments, char *text, size_t size) {
    char words[256];
    int ends[2], status;
    if (pipe(ends) != 0) die("pipe: %s", strerror(errno));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        snprintf(words, sizeof words, "EMU_RACECHECK=0 EMU_PROTECT=0 %s", settings);
        for (char *s = strtok(words, " "); s != NULL; s = strtok(NULL, " "))
            (void)(*s == '-' ? unsetenv(s + 1) : putenv(s));
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        alarm(60);
        execv("/proc/self/exe", (char *const *)arguments);
        _exit(127);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, size - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// ---------------------------------------------------------------------------------------------
// The queue

// The ways in which a stream waits, and adversaries that use what an order leaves open.
static void ways_have_the_same_bits(void) {
    static const char *const ways[] = {
        "TIDE_HOST_WAIT=", "TIDE_HOST_WAIT=function",
#ifdef __CUDA_EMU__
        "EMU_SCHED=lazy OMP_NUM_THREADS=3", "EMU_SCHED=random:3",
        "EMU_SCHED=lazy TIDE_HOST_WAIT=function", "EMU_SCHED=prio:1 EMU_WAIT_VALUE=0"
#endif
    };
    const char *const row[] = {"test_placement", "--config", "five --clip 0.05 --offload "
                               "interleave --stride 3 --subgroup 4096 places=9", "3", NULL};
    char first[4096], text[4096];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int code = again(ways[i], row, i == 0 ? first : text, sizeof text);
        CHECK(code == 0 && (i == 0 || strcmp(first, text) == 0), "%s: code %d: %s", ways[i], code,
              i == 0 ? first : text);
    }
}

typedef struct { int *log; int number; alignas(16) char rest[48]; } Note;

static void note(const void *arg) {
    const Note *n = (const Note *)arg;
    n->log[n->number] = n->log[n->number - 1] + ((uintptr_t)arg % 16 == 0 && n->rest[47] == 5);
}

// The queue begins shortly before its counters wrap.
static void operations_run_in_order(void) {
    enum { MANY = 1000 };
    HostQueue q;
    host_queue_open(&q, 1);
    int log[MANY + 1] = {0};
    Note n = {log, 0, {0}};
    n.rest[47] = 5;
    for (n.number = 1; n.number <= MANY; n.number++) host_queue_submit(&q, note, &n, sizeof n);
    host_queue_close(&q);  // waits for all
    for (int i = 1; i <= MANY; i++) CHECK(log[i] == i, "operation %d: %d", i, log[i]);
    CHECK(host_count_is_before(0xfffffffe, 1) && !host_count_is_before(1, 0xfffffffe)
          && !host_count_is_before(7, 7) && HOST_FIRST_WORK + 5 < HOST_FIRST_WORK, "wrapped");
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

// How many pages of n bytes at p are not of this type.
static size_t pages_not(cudaMemoryType type, const char *p, size_t n) {
    cudaPointerAttributes a;
    size_t wrong = 0;
    for (size_t at = 0; at < n; at += 4096) {
        CUDA(cudaPointerGetAttributes(&a, p + at));
        wrong += a.type != type;
    }
    return wrong;
}

static void memory_is_zeroed_locked_and_aligned(void) {
    HostQueue q;
    host_queue_open(&q, 2);
    for (size_t n : {(size_t)0, (size_t)1, (size_t)5000, ((size_t)6 << 20) + 12}) {
        const size_t untouched = memory_held(false);
        char *p = (char *)host_alloc(&q, n, "test");
        CHECK(n < 1 << 20 || memory_held(false) >= untouched + n / 2, "%zu bytes are not there", n);
        CHECK((uintptr_t)p % (2 << 20) == 0, "%p", (void *)p);
        size_t wrong = pages_not(cudaMemoryTypeHost, p, n);
        for (size_t i = 0; i < n; i++) wrong += p[i] != 0;
        CHECK(wrong == 0, "%zu: %zu bytes are not zero, or page-locked", n, wrong);
        const size_t before = memory_held(false);
        host_free(p);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed for a while, to notice who reads it
        CHECK(n < 1 << 20 || memory_held(false) + n / 2 < before, "%zu bytes stay", n);
#endif
        (void)before;
        CHECK(pages_not(cudaMemoryTypeUnregistered, p, n) == 0, "still page-locked");
    }
    host_free(NULL);
    host_queue_close(&q);
}

// Parts of 1 MiB: all of the memory is page-locked, copies across borders carry all bytes, and
// nothing is locked afterwards. Returns what is wrong.
static size_t parts(void) {
    HostQueue q;
    host_queue_open(&q, 1);
    const size_t n = ((size_t)5 << 20) + 4321;
    host_part = 1 << 20;
    char *p = (char *)host_alloc(&q, n, "parts"), *device = (char *)gpu_alloc(n, "parts");
    size_t wrong = pages_not(cudaMemoryTypeHost, p, n);
    for (int turn = 0; turn < 2; turn++) {  // by a stream, and at once
        const auto copy = [&](char *to, const char *from, size_t bytes, cudaMemcpyKind kind) {
            if (turn == 0) stream_copy(to, from, bytes, kind, q.stream);
            else gpu_copy(to, from, bytes);
            stream_sync(q.stream);
        };
        for (size_t i = 0; i < n; i++) p[i] = (char)(i * 7 + i / 1000 + turn);
        copy(device + 5, p + 5, n - 5, cudaMemcpyHostToDevice);
        for (size_t i = 5; i < n; i++) p[i]++;
        copy(p + 999, device + 999, n - 999, cudaMemcpyDeviceToHost);
        for (size_t i = 999; i < n; i++) wrong += p[i] != (char)(i * 7 + i / 1000 + turn);
    }
    host_free(p);
    wrong += pages_not(cudaMemoryTypeUnregistered, p, n);
    gpu_free(device);
    host_queue_close(&q);
    return wrong;
}

static void work_that_fails(const void *) { fail("the disk is full"); }
static void at_exit(void) { fprintf(stderr, "CUDA's handler would wait for the work\n"); }

#define BY_FUNCTION "; the driver's thread waits for them\n"
#define REFUSED "tide: page-locked host memory is refused ("

// This program, started again: its settings, argument and exit code; how what it says begins, and
// what is in it ("!": is not). A failure is one line.
static const struct {
    const char *settings, *argument;
    int code;
    const char *begin, *has;
} starts[] = {
    // gpu.cuh says so before main(), for tests and benchmarks as for the trainer; a wish stays
    {"-CUDA_DEVICE_MAX_CONNECTIONS", "connections", 0, "32\n", ""},
    {"CUDA_DEVICE_MAX_CONNECTIONS=7", "connections", 0, "7\n", ""},
    {"", "fail", 1, "tide: the disk is full\n", ""},
    {"", "huge", 1, "tide: out of host memory: moments needs ", "--host-memory"},
    // what is asked of the device shows in the line about the host, and in nothing else
    {"TIDE_HOST_WAIT=function", "way", 0, "", BY_FUNCTION},
    // a driver that locks no more than a part in one call
    {"EMU_PIN_CALL_KB=1024 EMU_STRICT=1", "parts", 0, "", ""},
#ifdef __CUDA_EMU__
    {"EMU_WAIT_VALUE=0", "way", 0, "", BY_FUNCTION},
    {"", "way", 0, "", "!driver"},
    {"EMU_PIN_MB=24", "lock", 0, "", ""},
    {"EMU_PIN_MB=4", "lock", 1, REFUSED "cudaErrorMemoryAllocation): moments needs 8.0 MiB; ", ""},
    {"EMU_PIN_CALL_KB=4096", "lock", 1, REFUSED, "MemoryAllocation): moments needs 8.0 MiB; "},
    {"EMU_PIN_MB=12", "lock", 1, REFUSED, "MemoryAllocation): tokens needs 8.0 MiB; "},
    {"EMU_PIN_MB=4 EMU_PIN_ERROR=1", "lock", 1, REFUSED, "InvalidValue): moments needs 8.0 MiB; "},
    {"EMU_PIN_MB=4", "lock", 1, REFUSED, "MiB; `dmesg` may say why; set --host-memory "},
    {"EMU_PIN_MB=4 TIDE_MACHINE=%s", "lock", 1, REFUSED, "MiB; WSL2: Windows limits it to a "
     "part of the memory; set --host-memory to what may be locked, or take --offload none\n"},
#endif
};

static void starts_end_as_they_should(void) {
    char text[4096], settings[256], folder[] = "/tmp/test_host.XXXXXX";
    if (mkdtemp(folder) == NULL || setenv("folder", folder, 1) != 0
        || system("mkdir -p $folder/proc/sys/kernel && echo 5.15.90.1-microsoft-standard-WSL2 "
                  ">$folder/proc/sys/kernel/osrelease") != 0) fail("no file");
    for (const auto &x : starts) {
        const char *const arguments[] = {"test_host", x.argument, NULL};
        snprintf(settings, sizeof settings, x.settings, folder);
        const int code = again(settings, arguments, text, sizeof text);
        const bool has = *x.has == '!' ? strstr(text, x.has + 1) == NULL
                                       : strstr(text, x.has) != NULL;
        CHECK(code == x.code && has && strncmp(text, x.begin, strlen(x.begin)) == 0
              && (code == 0 || strchr(text, '\n')[1] == '\0'), "%s %s: code %d: %s", x.settings,
              x.argument, code, text);
    }
    (void)!system("rm -r $folder");
}

int main(int argc, char **argv) {
    HostQueue q;
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "connections") == 0) return puts(getenv("CUDA_DEVICE_MAX_CONNECTIONS")) < 0;
    if (strcmp(what, "parts") == 0) return parts() == 0 ? 0 : 3;
    if (*what != '\0') {
        host_queue_open(&q, 0);
        if (strcmp(what, "way") == 0) host_describe(&q);
        if (strcmp(what, "huge") == 0) host_alloc(&q, (size_t)1 << 44, "moments");
        if (strcmp(what, "fail") == 0) {
            atexit(at_exit);
            host_queue_submit(&q, work_that_fails, "", 0);
        }
        if (strcmp(what, "lock") == 0) {
            host_free(host_alloc(&q, (size_t)8 << 20, "moments"));
            host_alloc(&q, (size_t)8 << 20, "weights");
            pinned_alloc((size_t)8 << 20, "tokens");
        }
        host_queue_close(&q);
        return 0;
    }
    RUN(team_is_what_was_asked_for);
    RUN(operations_run_in_order);
    RUN(memory_is_zeroed_locked_and_aligned);
    RUN(ways_have_the_same_bits);
    RUN(starts_end_as_they_should);
    return test_summary();
}
