// Tests of host.cuh: a stream that waits for the worker in either way leaves the same bits; memory is
// locked, in parts, zeroed and unlocked; failures are one line. (That the worker's operations run
// in order, and what events order: the rows of runs.cuh, and mutants.)
//
//   test_host             all tests; on the emulated GPU it starts itself with what follows
//   test_host fail | huge | way | parts | lock | connections
//                         work that fails; more memory than there is; how streams wait; memory in
//                         parts; 8 MiB of page-locked memory of each kind
#include "model_harness.cuh"

// Starts this program again under the name of a test; what it prints goes to `text`. Returns its
// exit code, -1 if a signal ended it. settings: "NAME=value", or "-NAME" to be without.
static int again(const char *settings, const char *const *arguments, char text[1024]) {
    char words[256];
    int status;
    if (in_child(text, &status)) {
        snprintf(words, sizeof words, "EMU_RACECHECK=0 EMU_PROTECT=0 %s", settings);
        for (char *s = strtok(words, " "); s != NULL; s = strtok(NULL, " "))
            (void)(*s == '-' ? unsetenv(s + 1) : putenv(s));
        dup2(STDERR_FILENO, STDOUT_FILENO);
        alarm(60);
        execv("/proc/self/exe", (char *const *)arguments);
        _exit(127);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// ---------------------------------------------------------------------------------------------
// The queue

// The ways in which a stream waits, and adversaries that use what an order leaves open.
static void ways_have_the_same_bits(void) {
    static const char *const ways[] = {
        "TIDE_HOST_WAIT=", "TIDE_HOST_WAIT=function",
#ifdef __CUDA_EMU__
        "EMU_SCHED=lazy TIDE_HOST_WAIT=function", "EMU_SCHED=prio:1 EMU_WAIT_VALUE=0"
#endif
    };
    const char *const row[] = {"test_placement", "--config", "five --clip 0 --offload "
                               "interleave --share 0.5", "3", NULL};
    char first[1024], text[1024];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int code = again(ways[i], row, i == 0 ? first : text);
        CHECK(code == 0 && (i == 0 || strcmp(first, text) == 0), "%s: code %d: %s", ways[i], code,
              i == 0 ? first : text);
    }
}

// The queue's counters begin shortly before they wrap.
static void counters_wrap(void) {
    CHECK(host_count_is_before(0xfffffffe, 1) && !host_count_is_before(1, 0xfffffffe)
          && !host_count_is_before(7, 7) && HOST_FIRST_WORK + 5 < HOST_FIRST_WORK, "wrapped");
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

// Parts of 1 MiB: all of the memory is zero, though it was used before, and page-locked; copies
// across borders carry all bytes, and nothing is locked afterwards. Returns what is wrong.
static size_t parts(void) {
    HostQueue q;
    host_queue_open(&q, 1);
    const size_t n = ((size_t)5 << 20) + 4321;
    host_part = 1 << 20;
    char *p = (char *)host_alloc(&q, n, "used"), *device = (char *)gpu_alloc(n, "parts");
    memset(p, 7, n);
    host_free(p);
    p = (char *)host_alloc(&q, n, "parts");
    size_t wrong = pages_not(cudaMemoryTypeHost, p, n) + (uintptr_t)p % (2 << 20);
    for (size_t i = 0; i < n; i++) wrong += p[i] != 0;
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

#define REFUSED "tide: page-locked host memory is refused ("

// This program, started again: its settings, argument and exit code; how what it says begins, and
// what is in it. A failure is one line.
static const struct {
    const char *settings, *argument;
    int code;
    const char *begin, *has;
} starts[] = {
    // gpu.cuh says so before main(), for tests and benchmarks as for the trainer
    {"-CUDA_DEVICE_MAX_CONNECTIONS", "connections", 0, "32\n", ""},
    {"", "fail", 1, "tide: the disk is full\n", ""},
    {"", "huge", 1, "tide: out of host memory: moments needs ", "--host-memory"},
    {"TIDE_HOST_WAIT=function", "way", 0, "a function\n", ""},
    // a driver that locks no more than a part in one call; and memory that Linux does not zero
    {"EMU_PIN_CALL_KB=1024 EMU_STRICT=1 MALLOC_MMAP_THRESHOLD_=16000000 "
     "MALLOC_TRIM_THRESHOLD_=16000000", "parts", 0, "", ""},
#ifdef __CUDA_EMU__
    {"EMU_WAIT_VALUE=0", "way", 0, "a function\n", ""},
    {"", "way", 0, "a word\n", ""},
    {"EMU_PIN_MB=24", "lock", 0, "", ""},
    {"EMU_PIN_MB=12", "lock", 1, REFUSED, "MemoryAllocation): tokens needs 8.0 MiB; "},
    {"EMU_PIN_MB=4 EMU_PIN_ERROR=1", "lock", 1, REFUSED, "InvalidValue): moments needs 8.0 MiB; "},
#endif
};

static void starts_end_as_they_should(void) {
    char text[1024];
    for (const auto &x : starts) {
        const char *const arguments[] = {"test_host", x.argument, NULL};
        const int code = again(x.settings, arguments, text);
        CHECK(code == x.code && strstr(text, x.has) != NULL
              && strncmp(text, x.begin, strlen(x.begin)) == 0
              && (code == 0 || strchr(text, '\n')[1] == '\0'), "%s %s: code %d: %s", x.settings,
              x.argument, code, text);
    }
}

int main(int argc, char **argv) {
    HostQueue q;
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "connections") == 0) return puts(getenv("CUDA_DEVICE_MAX_CONNECTIONS")) < 0;
    if (strcmp(what, "parts") == 0) return parts() == 0 ? 0 : 3;
    if (*what != '\0') {
        host_queue_open(&q, 0);
        if (strcmp(what, "way") == 0) puts(q.wait_value == NULL ? "a function" : "a word");
        if (strcmp(what, "huge") == 0) host_alloc(&q, (size_t)1 << 44, "moments");
        if (strcmp(what, "fail") == 0) {
            atexit(at_exit);
            host_queue_submit(&q, work_that_fails, "", 0);
        }
        if (strcmp(what, "lock") == 0) {
            void *p = host_alloc(&q, (size_t)8 << 20, "moments");
            host_free(p);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed for a while
            if (msync(p, 4096, MS_ASYNC) == 0) return 3;
#endif
            host_alloc(&q, (size_t)8 << 20, "weights");
            pinned_alloc((size_t)8 << 20, "tokens");
        }
        host_queue_close(&q);
        return 0;
    }
    RUN(counters_wrap);
    RUN(ways_have_the_same_bits);
    RUN(starts_end_as_they_should);
    return test_summary();
}
