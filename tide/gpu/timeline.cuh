// timeline.cuh: records what each stream did, and when. A span is two timing events, recorded in
// the stream that does the work. They are read a step later, when both are complete: no thread
// waits for a measurement, and no measurement orders work. The results are the counters of a step
// and, with a file, the trace (trace.h).
//   timeline_open(), timeline_step(), timeline_close()   a run, its steps
//   timeline_begin(), timeline_end()                     a span
//   timeline_log()                                       the counters' part for log.jsonl
#ifndef TIDE_TIMELINE_CUH
#define TIDE_TIMELINE_CUH
#include "queue.cuh"

typedef struct {
    TraceSpan span;
    cudaEvent_t begin, end;
    bool between;             // the span is of an evaluation or a sample, so of no step
} TimelineSlot;

typedef struct { size_t step; int count, made; TimelineSlot *slot; } TimelineHalf;

// A zeroed timeline is closed: every function of this file does nothing with it.
typedef struct Timeline {
    bool between;             // spans that begin now are of an evaluation or a sample: they are
                              // traced, but not counted
    TimelineStep done;        // counters of the newest step whose spans were read
    TraceFile trace;          // trace.file NULL: counters only
    TimelineHalf half[2];     // the spans of this step and of the step before (see `now`)
    int now;                  // the half for this step
    int doing;                // the compute stream's open span, or -1
    cudaEvent_t base;         // times are measured from this event; NULL: the timeline is closed
    double base_at;           // the time of `base` in seconds since opening
} Timeline;

// Opens a timeline on the current GPU. file: the trace's, or NULL. Fails if it cannot be written.
static void timeline_open(Timeline *t, const char *file) {
    Error err;
    *t = Timeline{.doing = -1};
    if (file != NULL && !trace_open(&t->trace, file, &err)) fail("%s", err.text);
    CUDA(cudaEventCreate(&t->base));
    CUDA(cudaEventRecord(t->base, 0));
    CUDA(cudaEventSynchronize(t->base));
}

// Begins a span in stream s, after all work that is queued there. row, name, number, bytes: as in
// trace.h. Returns the span; -1: the timeline is closed.
static int timeline_begin(Timeline *t, int row, const char *name, size_t number, size_t bytes,
                          cudaStream_t s) {
    TimelineHalf *h = &t->half[t->now];
    if (rehearsal != NULL) rehearse_span(stream_number(s), row, name, number, bytes);
    if (t->base == NULL) return -1;
    if (h->count == h->made) {
        h->slot = (TimelineSlot *)array_grow(h->slot, (size_t)h->made, sizeof *h->slot, "timeline");
        CUDA(cudaEventCreate(&h->slot[h->made].begin));
        CUDA(cudaEventCreate(&h->slot[h->made++].end));
    }
    TimelineSlot *slot = &h->slot[h->count];
    slot->span = TraceSpan{0, 0, row, name, number, bytes};
    slot->between = t->between;
    CUDA(cudaEventRecord(slot->begin, s));
    return 2 * h->count++ + t->now;
}

// Ends a span. Must be called before the second timeline_step() after timeline_begin().
static void timeline_end(Timeline *t, int span, cudaStream_t s) {
    if (rehearsal != NULL) rehearse_span_end(stream_number(s));
    if (span < 0 || rehearsal != NULL) return;
    CUDA(cudaEventRecord(t->half[span % 2].slot[span / 2].end, s));
}

// ---------------------------------------------------------------------------------------------
// Reading

// Returns the seconds between the opening and an event that is complete.
static double timeline_seconds(const Timeline *t, cudaEvent_t e) {
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, t->base, e));
    return t->base_at + 1e-3 * (double)ms;
}

static void timeline_read(Timeline *t, TimelineHalf *h) {
    TraceSpan *spans = ALLOC(TraceSpan, (size_t)h->count, "timeline");
    int n = 0, apart = h->count, kept = 0;  // spans[apart] and later spans: of no step
    for (int i = 0; i < h->count; i++) {
        TimelineSlot *slot = &h->slot[i];
        if (cudaEventQuery(slot->end) == cudaErrorNotReady) {  // a later call reads it
            const TimelineSlot later = *slot;
            (void)cudaGetLastError();  // clears "not ready", which is no error here
            *slot = h->slot[kept];
            h->slot[kept++] = later;
            continue;
        }
        slot->span.begin = timeline_seconds(t, slot->begin);
        slot->span.end = timeline_seconds(t, slot->end);
        spans[slot->between ? --apart : n++] = slot->span;
    }
    // CUDA gives times as floats of milliseconds. Minutes after its base, such a float does not
    // resolve microseconds. So the base moves: this step's first span is the next base.
    if (kept < h->count) {
        const cudaEvent_t older = t->base;
        t->base = h->slot[kept].begin;
        t->base_at = h->slot[kept].span.begin;
        h->slot[kept].begin = older;
    }
    t->done.step = h->step;
    trace_counters(&t->done, spans, n);
    if (t->trace.file != NULL) {
        t->trace.step = h->step;
        for (int i = 0; i < h->count; i++)
            if (i < n || i >= apart) trace_span(&t->trace, &spans[i]);
    }
    free(spans);
    h->count = kept;
}

// Begins a step; called once per step. Reads the spans of the step before the last one, if they are
// complete: sets t->done to their counters, and writes them to the file. If the file cannot be
// written, prints a warning and goes on without it.
static void timeline_step(Timeline *t, size_t step) {
    Error err;
    if (t->base == NULL) return;
    t->now = 1 - t->now;
    timeline_read(t, &t->half[t->now]);
    t->half[t->now].step = step;
    if (t->trace.file != NULL && !trace_flush(&t->trace, &err))  // training goes on
        fprintf(stderr, "tide: warning: %s: the trace ends before step %zu\n", err.text,
                t->done.step);
}

// Writes how long GPU, CPU and link were busy in the newest step that was read, as JSON members.
static void timeline_log(const Timeline *t, char *json, size_t n) {
    const double *s = t->done.busy;
    snprintf(json, n, ",\"gpu_busy_ms\":%.6g,\"cpu_busy_ms\":%.6g,\"h2d_busy_ms\":%.6g,"
             "\"d2h_busy_ms\":%.6g", 1e3 * s[USES_GPU], 1e3 * s[USES_CPU], 1e3 * s[USES_H2D],
             1e3 * s[USES_D2H]);
}

// Reads the last spans, ends the file, frees memory. t->done gets the last step's counters. Ends
// the program if the file is not whole.
static void timeline_close(Timeline *t) {
    Error err = {"--trace lacks the last steps"};
    if (t->base == NULL) return;
    CUDA(cudaDeviceSynchronize());
    timeline_read(t, &t->half[1 - t->now]);
    timeline_read(t, &t->half[t->now]);
    if (t->trace.path != NULL && (t->trace.file == NULL || !trace_close(&t->trace, &err)))
        fail("%s", err.text);
    for (const TimelineHalf *h = t->half; h < t->half + 2; h++) {
        for (int i = 0; i < h->made; i++) {
            CUDA(cudaEventDestroy(h->slot[i].begin));
            CUDA(cudaEventDestroy(h->slot[i].end));
        }
        free(h->slot);
    }
    CUDA(cudaEventDestroy(t->base));
    t->base = NULL;
}

#endif
