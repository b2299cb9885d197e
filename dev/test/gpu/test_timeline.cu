// test_timeline: spans on streams, read a step later without waiting; their counters; the trace;
// what happens when there is no file, no disk. Runs on the emulated GPU, there with a clock of its
// own if EMU_CLOCK=virtual is known, and on a real one.
#include "model_harness.cuh"

enum { BYTES = 16 << 20, STEPS = 6 };

static char path[] = "/tmp/test_timeline_XXXXXX";
static char *device[2], *host[2];
static cudaStream_t stream[2];
static Timeline t;

static bool virtual_clock(void) {
    const char *clock = getenv("EMU_CLOCK");
    return clock != NULL && strcmp(clock, "virtual") == 0 && getenv("EMU_LINK") == NULL;
}

// What the trace says of a span.
typedef struct { char name[16]; int row; double step, number, bytes, begin, length; } Traced;

static double number(const Json *e, const char *key) {
    const Json *x = json_get(e, key);
    return x != NULL && x->type == JSON_NUMBER ? x->number : NAN;
}

// Reads the spans of the trace, of which there must be as many.
static void read_trace(Traced *spans, int wanted) {
    Error err;
    int n = 0;
    Json *root = json_read(path, &err);
    CHECK(root != NULL, "%s", err.text);
    if (root == NULL) return;
    memset(spans, 0, (size_t)wanted * sizeof *spans);
    for (const Json *e = json_get(root, "traceEvents")->child; e != NULL; e = e->next) {
        if (*json_get(e, "ph")->string != 'X' || n++ >= wanted) continue;
        const Json *args = json_get(e, "args");
        Traced *x = &spans[n - 1];
        snprintf(x->name, sizeof x->name, "%s", json_get(e, "name")->string);
        x->row = (int)number(e, "tid");
        x->step = number(args, "step");
        x->number = number(args, "number");
        x->bytes = number(args, "bytes");
        x->begin = number(e, "ts");
        x->length = number(e, "dur");
    }
    CHECK(n == wanted, "%d spans, not %d", n, wanted);
    free(root);
}

// Copies in (to the GPU) or out, as a span.
static void copy(bool in, int row, const char *name, size_t i, cudaStream_t s) {
    const int span = timeline_begin(&t, row, name, i, BYTES, s);
    if (in) CUDA(cudaMemcpyAsync(device[0], host[0], BYTES, cudaMemcpyHostToDevice, s));
    else CUDA(cudaMemcpyAsync(host[1], device[1], BYTES, cudaMemcpyDeviceToHost, s));
    timeline_end(&t, span, s);
}

// A step's counters come after the next but one call, its rows are in the file then; steps do not
// mix, and time goes on from step to step though events are used again. Step k has k spans, and one
// more if it is even. Hours later (in step 2, on the virtual clock), microseconds still count.
static void steps_are_read_in_turn(void) {
    Traced spans[STEPS * (STEPS + 2) / 2];
    timeline_open(&t, path);
    for (size_t step = 1, read = 0; step <= STEPS; step++) {
        timeline_step(&t, step);
        CHECK(t.done.step == (step > 2 ? step - 2 : 0) && (t.done.forward > 0) == (step > 2)
              && (t.done.backward > 0) == (step > 3 && step % 2 == 0), "step %zu: counters of %zu",
              step, t.done.step);
        read += step > 2 ? step - 2 + (step % 2 == 0) : 0;
        read_trace(spans, (int)read);
#ifdef __CUDA_EMU__
        if (virtual_clock() && step == 2) emu_virtual_seconds(20000);
#endif
        for (size_t i = 0; i < step; i++) copy(true, ROW_FETCH, "forward", i, stream[0]);
        if (step % 2 == 0) copy(false, ROW_FLUSH, "backward", TRACE_NONE, stream[0]);
        CUDA(cudaStreamSynchronize(stream[0]));
    }
    timeline_close(&t);
    CHECK(t.done.step == STEPS && t.done.backward > 0, "the last");
    CHECK(timeline_begin(&t, ROW_FETCH, "", 0, 0, stream[0]) == -1, "a closed one records");
    read_trace(spans, sizeof spans / sizeof *spans);
    double end = 0;
    const Traced *x = spans;
    for (int step = 1; step <= STEPS; step++)
        for (int k = 0; k < step + (step % 2 == 0); k++, x++) {
            const bool flush = k == step;
            CHECK(x->step == step && x->bytes == BYTES && isnan(x->number) == flush
                  && (flush || x->number == k) && x->row == (flush ? ROW_FLUSH : ROW_FETCH)
                  && strcmp(x->name, flush ? "backward" : "forward") == 0, "step %d, span %d", step,
                  k);
            if (virtual_clock() && step == 2) continue;  // its first event is hours ago
            CHECK(x->begin >= end - 1 && x->length > 0, "step %d, span %d begins at %g, after %g",
                  step, k, x->begin, end);  // 1 us: CUDA's resolution is half of that
            CHECK(!virtual_clock() || fabs(x->length - 1e-3 * BYTES) < 0.1, "step %d, "
                  "span %d takes %.3f us", step, k, x->length);
            end = x->begin + x->length;
        }
}

// A span that goes on while its step is read is read with a later one, and nothing waits for it.
static void long_spans_wait_for_their_turn(void) {
    const char *sched = getenv("EMU_SCHED");
    if (sched == NULL || *sched != 'l') SKIP("needs EMU_SCHED=lazy: no GPU puts work off for long");
    Traced spans[7];
    timeline_open(&t, path);
    for (size_t step = 1; step <= 6; step++) {
        timeline_step(&t, step);
        if (step == 3) CHECK(t.done.step == 1 && t.done.update_seconds == 0, "it goes on");
        if (step == 1) copy(true, ROW_HOST, "update", 77, stream[1]);
        copy(true, ROW_FETCH, "fetch", step, stream[0]);
        CUDA(cudaStreamSynchronize(stream[step == 4]));
        CUDA(cudaStreamSynchronize(stream[0]));
    }
    timeline_close(&t);
    read_trace(spans, 7);
    int updates = 0;
    for (const Traced &x : spans) updates += x.row == ROW_HOST && x.step > 1 && x.number == 77;
    CHECK(updates == 1, "%d with a later step", updates);
}

// What an evaluation does is in the trace, and in no step's counters; what lasts into it is.
static void evaluations_are_no_steps(void) {
    Traced spans[9];
    timeline_open(&t, path);
    timeline_step(&t, 1);
    copy(true, ROW_FETCH, "forward", 1, stream[0]);
    timeline_end(&t, timeline_begin(&t, ROW_UPDATE, "update", 1, 0, stream[0]), stream[0]);
    const int begun = timeline_begin(&t, ROW_COMPUTE, "forward", 1, 0, stream[0]);
    t.between = true;
    timeline_end(&t, begun, stream[0]);
    copy(true, ROW_COMPUTE, "wait", 2, stream[0]);
    for (int i = 0; i < 4; i++) copy(true, ROW_FETCH, "forward", 2, stream[0]);
    t.between = false;
    copy(false, ROW_LEAVE, "backward", 1, stream[0]);
    CUDA(cudaStreamSynchronize(stream[0]));
    timeline_close(&t);
    CHECK(t.done.stalled == 0 && t.done.forward >= 0, "it waited %g s", t.done.stalled);
    if (virtual_clock())
        CHECK(fabs(t.done.forward - 1e-9 * BYTES) < 1e-6 && t.done.update_seconds < 1e-4,
              "forward %g s, update %g s", t.done.forward, t.done.update_seconds);
    CHECK(t.done.backward > 0, "what comes after it counts");
    read_trace(spans, 9);
    int of[3] = {0};
    for (const Traced &x : spans) of[(int)x.number]++;
    CHECK(of[1] == 4 && of[2] == 5, "%d and %d in the trace", of[1], of[2]);
}

// A file that cannot be written from the begin on is one line. (Later: test_cli_offload.sh.)
static void a_full_disk_is_one_line(void) {
    char line[1024];
    int status;
    if (in_child(line, &status)) timeline_open(&t, "/dev/full");
    CHECK(WEXITSTATUS(status) == 1
          && strcmp(line, "tide: cannot write /dev/full: No space left on device\n") == 0, "%s",
          line);
}

int main(int argc, char **argv) {
#ifdef __CUDA_EMU__
    if (argc == 1 && getenv("EMU_CLOCK") == NULL) {  // the emulator reads it before main()
        setenv("EMU_CLOCK", "virtual", 1);
        execv("/proc/self/exe", argv);
    }
#endif
    (void)argc, (void)argv;
    const int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    RUN(a_full_disk_is_one_line);  // first: it forks
    for (int k = 0; k < 2; k++) {
        CUDA(cudaMalloc(&device[k], BYTES));
        host[k] = (char *)pinned_alloc(BYTES, "test");
        CUDA(cudaMemset(device[k], 0, BYTES));
        CUDA(cudaStreamCreateWithFlags(&stream[k], cudaStreamNonBlocking));
    }
    CUDA(cudaDeviceSynchronize());
    RUN(steps_are_read_in_turn);
    RUN(long_spans_wait_for_their_turn);
    RUN(evaluations_are_no_steps);
    unlink(path);
    return test_summary();
}
