// timeline.cuh: when did each stream do what? Every span is two timing events, recorded in the
// stream whose work it spans, and read a step later, when they are long complete: nothing waits for
// a measurement, and nothing is ordered by one. What comes out is the counters of a step and, with
// a file, the trace (trace.h).
#ifndef TIDE_TIMELINE_CUH
#define TIDE_TIMELINE_CUH
#include "gpu.cuh"
#include "trace.h"

enum { TIMELINE_SPANS = 4096, TIMELINE_CLASSES = 16 };  // spans of one step; classes of memory

typedef struct {
    TraceSpan span;           // row -1: class `name` grew by (long long)bytes bytes
    cudaEvent_t begin, end;   // NULL until they are first needed
    bool host;                // timed by the host's clock
    bool ended;               // or it is no span yet
    bool lasts;               // longer than its step, perhaps: then it is read with a later one,
    bool began;               // and span.begin may be known before
    bool between;             // of no step
} TimelineSlot;

typedef struct { size_t step, dropped; int count; TimelineSlot *slot; } TimelineHalf;
typedef struct { const char *what; double at; long long delta; size_t order; } TimelineChange;

// Zeroed it is closed, and every function here does nothing. All but timeline_host_span() are for
// one thread.
typedef struct Timeline {
    bool open, told;          // told: that spans were dropped
    bool between;             // spans that begin now are of an evaluation or a sample: they are
                              // traced, but not counted
    TimelineStep done;        // counters of the newest step that was read
    double stalled, stalled_backward;  // seconds, in all steps that were read (as in TimelineStep)
    size_t late;              // events that were not complete when they were read
    TraceFile trace;          // trace.file NULL: counters only
    TimelineHalf half[2];     // one records a step, one holds the step before
    int now;                  // which one records
    cudaEvent_t base;         // a complete event, and
    double base_at, opened;   // its time in seconds since opening; when that was by seconds_now()
    TimelineChange *changes;  // of memory, not yet written
    size_t change_count, change_room, change_order;
    const char *class_name[TIMELINE_CLASSES];
    long long class_bytes[TIMELINE_CLASSES];
} Timeline;

// Opens it on the current GPU. file: where the trace goes, NULL for counters only; dies if that
// cannot be written. Waits for an empty stream, to set the GPU's clock by the host's.
static inline void timeline_open(Timeline *t, const char *file) {
    Error err;
    memset(t, 0, sizeof *t);
    if (file != NULL && !trace_open(&t->trace, file, &err)) die("%s", err.text);
    for (int row = 0; file != NULL && row < ROWS; row++) trace_row(&t->trace, row, trace_rows[row]);
    for (int k = 0; k < 2; k++)
        t->half[k].slot = (TimelineSlot *)alloc_or_fail(TIMELINE_SPANS, sizeof(TimelineSlot),
                                                        "timeline");
    cudaStream_t s = stream_make("clock", false);
    CUDA(cudaEventCreate(&t->base));
    CUDA(cudaEventRecord(t->base, s));
    CUDA(cudaEventSynchronize(t->base));
    t->opened = seconds_now();
    CUDA(cudaStreamDestroy(s));
    t->open = true;
}

static inline TimelineSlot *timeline_slot(Timeline *t, int span) {
    return &t->half[span / TIMELINE_SPANS].slot[span % TIMELINE_SPANS];
}

// Reserves a span of the running step for the host, to be filled by timeline_host_span(). Host
// functions in a stream are better put between timeline_begin() and timeline_end(), which need only
// one clock; the emulated GPU's virtual one has nothing to do with seconds_now().
// row, name, number, bytes: as in trace.h. Returns -1 if there is no room, which is said once.
static inline int timeline_host_begin(Timeline *t, int row, const char *name, size_t number,
                                      size_t bytes) {
    TimelineHalf *h = &t->half[t->now];
    if (!t->open) return -1;
    if (h->count == TIMELINE_SPANS) {
        h->dropped++;
        if (!t->told)
            fprintf(stderr, "tide: the timeline has room for %d spans a step; the others of step "
                    "%zu are dropped\n", TIMELINE_SPANS, h->step);
        t->told = true;
        return -1;
    }
    TimelineSlot *x = &h->slot[h->count];
    const TraceSpan span = {row, name, number, bytes, 0, 0};
    x->span = span;
    x->host = true;
    x->ended = x->lasts = x->began = false;
    x->between = t->between;
    return t->now * TIMELINE_SPANS + h->count++;
}

// From when to when it was, by seconds_now(). For any thread, once; something else must order it
// before the timeline_step() that reads it.
static inline void timeline_host_span(Timeline *t, int span, double begin, double end) {
    if (span < 0) return;
    TimelineSlot *x = timeline_slot(t, span);
    x->span.begin = begin - t->opened;
    x->span.end = end - t->opened;
    x->ended = true;
}

static inline void timeline_record(cudaEvent_t *e, cudaStream_t s) {
    if (*e == NULL) CUDA(cudaEventCreate(e));
    CUDA(cudaEventRecord(*e, s));
}

// Begins a span where stream s stands: after all that was put into it. Returns the span, -1 if
// there is no room.
static inline int timeline_begin(Timeline *t, int row, const char *name, size_t number,
                                 size_t bytes, cudaStream_t s) {
    const int span = timeline_host_begin(t, row, name, number, bytes);
    if (span < 0) return span;
    timeline_slot(t, span)->host = false;
    timeline_record(&timeline_slot(t, span)->begin, s);
    return span;
}

// Ends it; before the next but one timeline_step().
static inline void timeline_end(Timeline *t, int span, cudaStream_t s) {
    if (span < 0) return;
    timeline_record(&timeline_slot(t, span)->end, s);
    timeline_slot(t, span)->ended = true;
}

// A span that may not be complete when its step is read: nothing waits for it, and it counts for
// the step with which it is read then, two, four, .. steps later.
static inline void timeline_lasts(Timeline *t, int span) {
    if (span >= 0) timeline_slot(t, span)->lasts = true;
}

// ---------------------------------------------------------------------------------------------
// Live memory by class

static inline void timeline_change(Timeline *t, const char *what, double at, long long delta) {
    if (t->change_count == t->change_room) {
        t->change_room = t->change_room > 0 ? 2 * t->change_room : 1024;
        t->changes = (TimelineChange *)realloc(t->changes, t->change_room * sizeof *t->changes);
        if (t->changes == NULL) fail("out of memory: the timeline");
    }
    const TimelineChange c = {what, at, delta, t->change_order++};
    t->changes[t->change_count++] = c;
}

// At this point of stream s, class `what` (static: "weights") grew by delta_bytes, or shrank.
static inline void timeline_memory(Timeline *t, const char *what, long long delta_bytes,
                                   cudaStream_t s) {
    if (!t->open || t->trace.file == NULL) return;
    const int span = timeline_begin(t, -1, what, TRACE_NONE, (size_t)delta_bytes, s);
    if (span >= 0) timeline_slot(t, span)->ended = true;
    else timeline_change(t, what, seconds_now() - t->opened, delta_bytes);  // or sums go wrong
}

static inline int timeline_compare(const void *a, const void *b) {
    const TimelineChange *x = (const TimelineChange *)a, *y = (const TimelineChange *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

// Writes, in the order of time, the changes before `until`: an earlier one cannot come any more.
static inline void timeline_write_memory(Timeline *t, double until) {
    size_t n = 0;
    if (t->change_count > 0)
        qsort(t->changes, t->change_count, sizeof *t->changes, timeline_compare);
    for (; n < t->change_count && t->changes[n].at < until; n++) {
        const TimelineChange *c = &t->changes[n];
        int k = 0;
        while (k < TIMELINE_CLASSES && t->class_name[k] != NULL
               && strcmp(t->class_name[k], c->what) != 0) k++;
        if (k == TIMELINE_CLASSES) fail("the timeline has too many classes of memory");
        t->class_name[k] = c->what;
        t->class_bytes[k] += c->delta;
        trace_counter(&t->trace, "memory", c->what, c->at, (double)t->class_bytes[k]);
    }
    t->change_count -= n;
    if (n > 0) memmove(t->changes, t->changes + n, t->change_count * sizeof *t->changes);
}

// ---------------------------------------------------------------------------------------------
// Reading

// Seconds from opening to a recorded event. If it is not complete against all promises: waits.
static inline double timeline_seconds(Timeline *t, cudaEvent_t e) {
    float ms = 0;
    cudaError_t result = cudaEventElapsedTime(&ms, t->base, e);
    if (result == cudaErrorNotReady) {
        (void)cudaGetLastError();
        t->late++;
        CUDA(cudaEventSynchronize(e));
        result = cudaEventElapsedTime(&ms, t->base, e);
    }
    CUDA(result);
    return t->base_at + 1e-3 * (double)ms;
}

// Is this span still under way, and was that to be expected? Then its begin is read, if it is
// known: later the base would be too far from it (see timeline_read()).
static inline bool timeline_goes_on(Timeline *t, TimelineSlot *x) {
    if (!x->lasts || cudaEventQuery(x->end) != cudaErrorNotReady) return false;
    (void)cudaGetLastError();  // it is not a mistake
    if (!x->began && cudaEventQuery(x->begin) == cudaSuccess) {
        x->span.begin = timeline_seconds(t, x->begin);
        x->began = true;
    }
    (void)cudaGetLastError();
    return true;
}

static inline void timeline_read(Timeline *t, TimelineHalf *h) {
    TraceSpan *spans = (TraceSpan *)alloc_or_fail((size_t)h->count, sizeof *spans, "timeline");
    double earliest = INFINITY;  // change of memory of this step
    int n = 0, kept = 0, apart = h->count;  // from there on: spans of no step
    for (int i = 0; i < h->count; i++) {
        TimelineSlot *x = &h->slot[i];
        if (!x->ended) fail("step %zu: the span \"%s\" never ended", h->step, x->span.name);
        if (timeline_goes_on(t, x)) {
            const TimelineSlot later = *x;
            *x = h->slot[kept];
            h->slot[kept++] = later;
            continue;
        }
        if (!x->host && !x->began) x->span.begin = timeline_seconds(t, x->begin);
        if (x->span.row < 0) {
            timeline_change(t, x->span.name, x->span.begin, (long long)x->span.bytes);
            earliest = fmin(earliest, x->span.begin);
            continue;
        }
        if (!x->host) x->span.end = timeline_seconds(t, x->end);
        spans[x->between ? --apart : n++] = x->span;
    }
    TimelineSlot *first = NULL;
    for (int i = kept; i < h->count && first == NULL; i++)
        if (!h->slot[i].host && !h->slot[i].began) first = &h->slot[i];
    if (first != NULL) {
        // CUDA gives a float of milliseconds: after some minutes from one base for ever, it would
        // no longer tell microseconds. So this step has the base of the next.
        const cudaEvent_t older = t->base;
        t->base = first->begin;
        t->base_at = first->span.begin;
        first->begin = older;
    }
    t->done.step = h->step;
    t->done.dropped = h->dropped;
    trace_counters(&t->done, spans, n);
    t->stalled += t->done.stalled;
    t->stalled_backward += t->done.stalled_backward;
    if (t->trace.file != NULL) {
        t->trace.step = h->step;
        for (int i = 0; i < h->count; i++)
            if (i < n || i >= apart)
                trace_span(&t->trace, spans[i].row, spans[i].name, spans[i].number, spans[i].begin,
                           spans[i].end, spans[i].bytes);
        timeline_write_memory(t, earliest);
    }
    free(spans);
    h->count = kept;
    h->dropped = 0;
}

// Begins step `step`, to be called once a step, when all that was recorded before the last call is
// complete. That is read: t->done then has the counters of the step before the one that just ended,
// and the file its rows. If that cannot be written, it says so and goes on without.
static inline void timeline_step(Timeline *t, size_t step) {
    Error err;
    if (!t->open) return;
    t->now = 1 - t->now;
    timeline_read(t, &t->half[t->now]);
    t->half[t->now].step = step;
    if (t->trace.file != NULL && !trace_flush(&t->trace, &err)) {  // the run is worth more
        fprintf(stderr, "tide: %s: the trace ends with step %zu\n", err.text, t->done.step);
        (void)trace_close(&t->trace, &err);
    }
}

// Reads the rest, which must be complete, ends the file and frees all; t->done stays: the last
// step's counters.
static inline void timeline_close(Timeline *t) {
    Error err;
    if (!t->open) return;
    timeline_read(t, &t->half[1 - t->now]);
    timeline_read(t, &t->half[t->now]);
    if (t->trace.file != NULL) {
        timeline_write_memory(t, INFINITY);
        if (!trace_close(&t->trace, &err)) fprintf(stderr, "tide: %s\n", err.text);
    }
    for (int i = 0; i < 2 * TIMELINE_SPANS; i++) {
        TimelineSlot *x = timeline_slot(t, i);
        if (x->begin != NULL) CUDA(cudaEventDestroy(x->begin));
        if (x->end != NULL) CUDA(cudaEventDestroy(x->end));
    }
    CUDA(cudaEventDestroy(t->base));
    for (int k = 0; k < 2; k++) free(t->half[k].slot);
    free(t->changes);
    t->open = false;
}

#endif
