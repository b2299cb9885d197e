// test_timeline: spans on streams, read a step later without waiting; their
// counters; the trace; what happens when there is no room, no file, no disk. Runs on the emulated
// GPU, there with a clock of its own if EMU_CLOCK=virtual is known, and on a real one.
#include "model_harness.cuh"

enum { BYTES = 16 << 20, STEPS = 6 };

static char path[] = "/tmp/test_timeline_XXXXXX";
static char *device[2], *host[2];
static cudaStream_t stream[3];
static Timeline t;

static bool virtual_clock(void) {
    const char *clock = getenv("EMU_CLOCK");
    return clock != NULL && strcmp(clock, "virtual") == 0;
}

static bool one_at_a_time(void) {
#ifdef __CUDA_EMU__
    return !virtual_clock();
#else
    return false;
#endif
}

static Json *trace(void) {
    Error err;
    Json *root = json_read(path, &err);
    CHECK(root != NULL, "%s", err.text);
    return root;
}

static const char *text(const Json *e, const char *key) {
    const Json *x = json_get(e, key);
    return x != NULL && x->type == JSON_STRING ? x->string : "";
}

static double number(const Json *e, const char *key) {
    const Json *x = json_get(e, key);
    return x != NULL && x->type == JSON_NUMBER ? x->number : NAN;
}

static const Json *first(const Json *root) {
    return root != NULL ? json_get(root, "traceEvents")->child : NULL;
}

// Copies in (to the GPU) or out, as a span.
static void copy(bool in, int row, const char *name, size_t i, cudaStream_t s) {
    const int span = timeline_begin(&t, row, name, i, BYTES, s);
    if (in) CUDA(cudaMemcpyAsync(device[0], host[0], BYTES, cudaMemcpyHostToDevice, s));
    else CUDA(cudaMemcpyAsync(host[1], device[1], BYTES, cudaMemcpyDeviceToHost, s));
    timeline_end(&t, span, s);
}

// A step's counters come after the next but one call, its rows are in the file then; steps do not
// mix, and time goes on from step to step though events are used again.
static void steps_are_read_in_turn(void) {
    timeline_open(&t, path);
    CHECK(t.done.step == 0, "new");
    cudaEvent_t used = NULL;
    for (size_t step = 1; step <= STEPS; step++) {
        timeline_step(&t, step);
        CHECK(t.done.step == (step > 2 ? step - 2 : 0), "%zu: %zu", step, t.done.step);
        CHECK((t.done.forward > 0) == (step > 2), "step %zu", step);
        CHECK((t.done.backward > 0) == (step > 3 && step % 2 == 0), "step %zu", step);
        for (size_t i = 0; i < step; i++) copy(true, ROW_FETCH, "forward", i, stream[0]);
        if (step % 2 == 0) copy(false, ROW_FLUSH, "backward", TRACE_NONE, stream[0]);
        CUDA(cudaStreamSynchronize(stream[0]));
        if (step == 1) used = timeline_slot(&t, t.now)->end;
        if (step == 3) CHECK(timeline_slot(&t, t.now)->end == used, "a new event");
        Json *root = trace();
        size_t newest = 0;
        for (const Json *e = first(root); e != NULL; e = e->next)
            if (*text(e, "ph") == 'X') newest = (size_t)number(json_get(e, "args"), "step");
        CHECK(newest == (step > 2 ? step - 2 : 0), "the file's newest step is %zu", newest);
        json_free(root);
    }
    timeline_close(&t);
    CHECK(t.done.step == STEPS && t.done.backward > 0, "the last");
    Json *root = trace();
    size_t step = 1, i = 0;
    double end = 0;
    for (const Json *e = first(root); e != NULL; e = e->next) {
        if (*text(e, "ph") != 'X') continue;
        const Json *args = json_get(e, "args");
        const bool flush = i == step;
        CHECK(number(args, "step") == (double)step, "step %zu", step);
        CHECK(flush ? json_get(args, "number") == NULL : number(args, "number") == (double)i,
              "step %zu, span %zu", step, i);
        CHECK(strcmp(text(e, "name"), flush ? "backward" : "forward") == 0, "name");
        CHECK(number(e, "tid") == (flush ? ROW_FLUSH : ROW_FETCH), "row");
        CHECK(number(args, "bytes") == BYTES, "bytes");
        CHECK(number(e, "ts") >= end - 1 && number(e, "dur") > 0, "span %zu begins at %g, after %g",
              i, number(e, "ts"), end);  // 1 us: CUDA's resolution is half of that
        end = number(e, "ts") + number(e, "dur");
        if (++i == step + (step % 2 == 0)) { step++; i = 0; }
    }
    CHECK(step == STEPS + 1, "%zu", step);
    json_free(root);
}

// Hours after opening, microseconds still count.
static void time_stays_exact(void) {
    if (!virtual_clock() || getenv("EMU_LINK") != NULL) SKIP("needs EMU_CLOCK=virtual");
#ifdef __CUDA_EMU__
    timeline_open(&t, NULL);
    for (size_t step = 1; step <= 6; step++) {
        timeline_step(&t, step);
        if (step != 4) CHECK(t.done.step == 0 || fabs(t.done.update_seconds - 1e-9 * BYTES) < 1e-7,
                             "step %zu: %.9f s", t.done.step, t.done.update_seconds);
        if (step == 2) emu_virtual_seconds(20000);
        copy(true, ROW_FETCH, "update", 0, stream[0]);
        CUDA(cudaStreamSynchronize(stream[0]));
    }
    timeline_close(&t);
#endif
}

// The two directions of the link, on one stream one after the other, on two at the same time.
static void overlap_is_seen(void) {
    double duplex[2], all[2];
    for (int streams = 1; streams <= 2; streams++) {
        timeline_open(&t, NULL);
        timeline_step(&t, 1);
        timeline_end(&t, timeline_begin(&t, ROW_UPDATE, "update", 0, 0, stream[0]), stream[0]);
        for (int i = 0; i < 4; i++) {
            copy(true, ROW_FETCH, "fetch", (size_t)i, stream[0]);
            copy(false, ROW_FLUSH, "flush", (size_t)i, stream[streams - 1]);
        }
        for (int s = 0; s < streams; s++) CUDA(cudaStreamSynchronize(stream[s]));
        timeline_close(&t);
        duplex[streams - 1] = t.done.busy[USES_DUPLEX];
        all[streams - 1] = t.done.update_seconds;
    }
    CHECK(duplex[0] <= 5e-6 && duplex[0] <= all[0] / 20, "one stream: %g of %g s", duplex[0],
          all[0]);
    if (one_at_a_time()) SKIP("needs EMU_CLOCK=virtual");
    CHECK(duplex[1] >= 0.5 * all[1], "two streams: %g of %g s", duplex[1], all[1]);
}

// There is room for any number of spans, in every step.
static void no_span_is_dropped(void) {
    timeline_open(&t, path);
    for (size_t step = 1; step <= 4; step++) {
        timeline_step(&t, step);
        for (int i = 0; i < (step < 3 ? 5000 : 1); i++)
            timeline_end(&t, timeline_begin(&t, ROW_COMPUTE, "forward", 0, 0, stream[0]), stream[0]);
        CHECK(t.half[t.now].count == (step < 3 ? 5000 : 1), "step %zu: %d", step,
              t.half[t.now].count);
        CUDA(cudaStreamSynchronize(stream[0]));
    }
    timeline_close(&t);
    CHECK(t.done.step == 4, "to the end");
}

// A span that goes on while its step is read is read with a later one, and nothing waits for it.
static void long_spans_wait_for_their_turn(void) {
    const char *sched = getenv("EMU_SCHED");
    if (sched == NULL || *sched != 'l') SKIP("needs EMU_SCHED=lazy: no GPU puts work off for long");
    timeline_open(&t, path);
    for (size_t step = 1; step <= 6; step++) {
        timeline_step(&t, step);
        if (step == 3) CHECK(t.done.step == 1 && t.done.update_seconds == 0, "it goes on");
        if (step == 1) {
            copy(true, ROW_FETCH, "fetch", step, stream[0]);
            const int span = timeline_begin(&t, ROW_HOST, "update", 77, 0, stream[2]);
            CUDA(cudaMemcpyAsync(device[1], host[1], BYTES, cudaMemcpyHostToDevice, stream[2]));
            timeline_end(&t, span, stream[2]);
        }
        copy(true, ROW_FETCH, "fetch", step, stream[0]);
        CUDA(cudaStreamSynchronize(stream[step == 4 ? 2 : 0]));
        CUDA(cudaStreamSynchronize(stream[0]));
    }
    timeline_close(&t);
    Json *root = trace();
    int updates = 0, fetches = 0;
    for (const Json *e = first(root); e != NULL; e = e->next) {
        if (*text(e, "ph") != 'X') continue;
        if (number(e, "tid") == ROW_HOST) {
            updates++;
            CHECK(number(json_get(e, "args"), "step") > 1, "with a later step");
        }
        fetches += number(e, "tid") == ROW_FETCH;
    }
    CHECK(updates == 1 && fetches == 7, "%d and %d", updates, fetches);
    json_free(root);
}

// What an evaluation does is in the trace, and in no step's counters; what lasts into it is.
static void evaluations_are_no_steps(void) {
    timeline_open(&t, path);
    timeline_step(&t, 1);
    copy(true, ROW_FETCH, "forward", 1, stream[0]);
    timeline_end(&t, timeline_begin(&t, ROW_UPDATE, "update", 1, 0, stream[0]), stream[0]);
    const int begun = timeline_begin(&t, ROW_COMPUTE, "forward", 1, 0, stream[0]);
    t.between = true;
    timeline_end(&t, begun, stream[0]);
    const int wait = timeline_begin(&t, ROW_COMPUTE, "wait", 2, 0, stream[0]);
    for (int i = 0; i < 4; i++) copy(true, ROW_FETCH, "forward", 2, stream[0]);
    timeline_end(&t, wait, stream[0]);
    t.between = false;
    copy(false, ROW_LEAVE, "backward", 1, stream[0]);
    CUDA(cudaStreamSynchronize(stream[0]));
    timeline_close(&t);
    CHECK(t.done.stalled == 0 && t.done.forward >= 0, "it waited %g s", t.done.stalled);
    if (virtual_clock() && getenv("EMU_LINK") == NULL)
        CHECK(fabs(t.done.forward - 1e-9 * BYTES) < 1e-6 && t.done.update_seconds < 1e-4,
              "forward %g s, update %g s", t.done.forward, t.done.update_seconds);
    CHECK(t.done.backward > 0, "what comes after it counts");
    Json *root = trace();
    int spans[3] = {0};
    for (const Json *e = first(root); e != NULL; e = e->next)
        if (*text(e, "ph") == 'X') spans[(int)number(json_get(e, "args"), "number")]++;
    CHECK(spans[1] == 4 && spans[2] == 5, "%d and %d in the trace", spans[1], spans[2]);
    json_free(root);
}

static void closed_does_nothing(void) {
    Timeline off;
    memset(&off, 0, sizeof off);
    timeline_step(&off, 1);
    const int span = timeline_begin(&off, ROW_COMPUTE, "forward", 0, 0, stream[0]);
    CHECK(span == -1, "no spans");
    timeline_end(&off, span, stream[0]);
    timeline_close(&off);
    CHECK(off.done.step == 0 && off.done.forward == 0, "nothing");
}

static void no_directory(void) { timeline_open(&t, "/no/such/directory/trace.json"); }
static void full_disk(void) {
    timeline_open(&t, "/dev/full");
    timeline_step(&t, 1);
}
static void full_disk_at_the_end(void) {
    timeline_open(&t, "/dev/full");
    timeline_close(&t);
}
static void never_ended(void) {
    CUDA(cudaStreamCreateWithFlags(&stream[0], cudaStreamNonBlocking));
    timeline_open(&t, NULL);
    for (size_t step = 1; step <= 3; step++) {  // the third uses the first one's events again
        timeline_step(&t, step);
        const int span = timeline_begin(&t, ROW_COMPUTE, "forward", 0, 0, stream[0]);
        if (step < 3) timeline_end(&t, span, stream[0]);
    }
    timeline_close(&t);
}

// A row: a program, its exit code, and the beginning of its one line.
static const struct { void (*body)(void); int code; const char *line; } errors[] = {
    {no_directory, 2,
     "tide: cannot write /no/such/directory/trace.json: No such file or directory\n"},
    {full_disk, 0, "tide: cannot write /dev/full: No space left on device"},  // the run goes on
    {full_disk_at_the_end, 0, "tide: cannot write /dev/full: No space left on device"},
    {never_ended, 1, "tide: step 3: the span \"forward\" never ended\n"},
};

static void errors_are_one_line(void) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        char line[1024];
        int status;
        if (in_child(line, &status)) {
            errors[i].body();
            _exit(0);
        }
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == errors[i].code, "%zu: %d", i, status);
        CHECK(strncmp(line, errors[i].line, strlen(errors[i].line)) == 0
              && strchr(line, '\n') == line + strlen(line) - 1, "%zu: %s", i, line);
    }
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
    RUN(errors_are_one_line);  // first: it forks
    for (int k = 0; k < 2; k++) {
        CUDA(cudaMalloc(&device[k], BYTES));
        host[k] = (char *)pinned_alloc(BYTES, "test");
        CUDA(cudaMemset(device[k], 0, BYTES));
    }
    for (int s = 0; s < 3; s++)
        CUDA(cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
    RUN(closed_does_nothing);
    RUN(steps_are_read_in_turn);
    RUN(time_stays_exact);
    RUN(overlap_is_seen);
    RUN(no_span_is_dropped);
    RUN(long_spans_wait_for_their_turn);
    RUN(evaluations_are_no_steps);
    unlink(path);
    return test_summary();
}
