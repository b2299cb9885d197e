// trace.h: a timeline of the GPU's streams and the host. It is written as a file that Perfetto
// (ui.perfetto.dev) and chrome://tracing open, and summed up for each step. No CUDA here.
//   trace_open(), trace_span(), trace_memory(), trace_flush(), trace_close()   write the file
//   trace_counters()                                                            sums up a step
#ifndef TIDE_TRACE_H
#define TIDE_TRACE_H
#include "../base/util.h"

// A row for each stream of the trainer. FETCH, BACK, WEIGHTS and INPUTS_BACK copy over the link to
// the GPU; LEAVE, FLUSH and INPUTS_OUT to the host.
enum { ROW_COMPUTE, ROW_LEAVE, ROW_FETCH, ROW_UPDATE, ROW_FLUSH, ROW_HOST, ROW_BACK,
       ROW_WEIGHTS, ROW_COMM, ROW_INPUTS_OUT, ROW_INPUTS_BACK, ROWS };

static const char *const trace_rows[ROWS] = {
    "compute", "out: gradients to the host", "fetch: state to the GPU", "update on the GPU",
    "out: state to the host", "host: update on the CPU", "back: weights to the GPU",
    "weights: layers to the GPU", "comm: between the GPUs", "inputs: of layers to the host",
    "inputs: back to the GPU"};

// A span of a stream. Times are seconds since the trace began. Some names have a meaning: "wait" is
// a stall, without work; "fetch", "update", "flush" and "back" are parts of the update; "reduce"
// and "gather" send gradients and weights between GPUs; "weights" copies a layer's weights, which
// are stored on the host; "input" copies the input of a layer. dev/timeline.c also recognises
// "forward", "backward", "leave", "norm", "accumulate" and "save".
typedef struct {
    double begin, end;      // seconds
    int row;                // ROW_COMPUTE ..; -1: no row, the span is not written
    const char *name;       // static
    size_t number;          // the layer or piece; TRACE_NONE: none
    size_t bytes;           // on the link; 0: none. Not on the link: of what forward or backward
                            // makes (activations, a gradient), of the gradient that update reads
} TraceSpan;

#define TRACE_NONE SIZE_MAX

// ---------------------------------------------------------------------------------------------
// The times of a step

// The part of the machine that each row uses. On the link, a span without bytes is no copy.
enum { USES_GPU, USES_CPU, USES_H2D, USES_D2H, USES_DUPLEX, USES_NOTHING, TRACE_USES };
static const int row_uses[ROWS] = {USES_GPU, USES_D2H, USES_H2D, USES_GPU, USES_D2H, USES_CPU,
                                   USES_H2D, USES_H2D, USES_NOTHING, USES_D2H, USES_H2D};

// Adds to `busy` the seconds in which each part of the machine worked; spans that overlap count
// once. busy[USES_DUPLEX]: the seconds in which both directions of the link worked.
static void trace_busy(const TraceSpan *s, int n, double busy[TRACE_USES]) {
    typedef struct { double at; int uses, change; } Edge;
    Edge *edge = ALLOC(Edge, 2 * (size_t)n, "trace");
    int edges = 0, open[TRACE_USES] = {0};
    for (int i = 0; i < n; i++) {
        const int uses = row_uses[s[i].row];
        if (strcmp(s[i].name, "wait") == 0 || (uses >= USES_H2D && s[i].bytes == 0)) continue;
        edge[edges++] = (Edge){s[i].begin, uses, 1};
        edge[edges++] = (Edge){s[i].end, uses, -1};
    }
    qsort(edge, (size_t)edges, sizeof *edge, compare_doubles);
    for (int i = 0; i + 1 < edges; i++) {
        open[edge[i].uses] += edge[i].change;
        open[USES_DUPLEX] = open[USES_H2D] > 0 && open[USES_D2H] > 0;
        for (int k = 0; k < TRACE_USES; k++)
            if (open[k] > 0) busy[k] += edge[i + 1].at - edge[i].at;
    }
    free(edge);
}

// The times of one step, in seconds.
typedef struct {
    size_t step;
    double busy[TRACE_USES];  // seconds in which each part of the machine worked
    double stalled;       // waits of the compute stream
    double stalled_backward;  // the waits just before a span of backward
    double forward, backward;  // seconds of all spans "forward"; of all spans "backward"
    double update_seconds;  // from the first "update" to the last end of the update's spans
} TimelineStep;

// Returns the name of the compute stream's first span after a wait that ended at `end`; "": none.
static const char *trace_after(const TraceSpan *s, int n, double end) {
    const TraceSpan *next = NULL;
    for (int i = 0; i < n; i++)
        if (s[i].row == ROW_COMPUTE && s[i].begin >= end && strcmp(s[i].name, "wait") != 0
            && (next == NULL || s[i].begin < next->begin)) next = &s[i];
    return next != NULL ? next->name : "";
}

// Fills *c, except c->step, from the n spans of one step, in which no two waits may overlap.
static void trace_counters(TimelineStep *c, const TraceSpan *s, int n) {
    static const char *const update[4] = {"fetch", "update", "flush", "back"};
    double first = INFINITY, last = -INFINITY;  // begin and end of the update
    *c = (TimelineStep){.step = c->step};
    trace_busy(s, n, c->busy);
    for (int i = 0; i < n; i++) {
        const double length = s[i].end - s[i].begin;
        if (s[i].row == ROW_COMPUTE && strcmp(s[i].name, "wait") == 0) {
            c->stalled += length;
            if (strcmp(trace_after(s, n, s[i].end), "backward") == 0) c->stalled_backward += length;
        }
        if (strcmp(s[i].name, "forward") == 0) c->forward += length;
        if (strcmp(s[i].name, "backward") == 0) c->backward += length;
        if (strcmp(s[i].name, "update") == 0) first = fmin(first, s[i].begin);
        for (int k = 0; k < 4; k++)
            if (strcmp(s[i].name, update[k]) == 0) last = fmax(last, s[i].end);
    }
    c->update_seconds = fmax(last - first, 0);  // 0: there was no update
}

// ---------------------------------------------------------------------------------------------
// The file: Chrome's Trace Event Format (Google, 2016), complete events "X" and counters "C", in
// microseconds

typedef struct {
    FILE *file;
    const char *path;
    size_t step;  // the step of the next spans
    long whole;   // bytes of the events that are flushed
} TraceFile;

// Rounds to whole nanoseconds, so that spans that touch each other also touch in the file.
static double trace_microseconds(double seconds) { return round(1e9 * seconds) / 1e3; }

// Sets err, and closes the file, which then ends after the last flushed events. fflush() has been
// called, which drops the events that it cannot write.
static bool trace_error(TraceFile *t, Error *err) {
    error_set(err, "cannot write %.400s: %s", t->path, strerror(errno != 0 ? errno : EIO));
    if (t->file == NULL) return false;
    if (t->whole > 0 && pwrite(fileno(t->file), "\n]}\n", 4, t->whole) == 4)
        (void)!ftruncate(fileno(t->file), t->whole + 4);
    fclose(t->file);
    t->file = NULL;
    return false;
}

// Flushes the events so far. The file is then complete until the next event is written. If the disk
// is full, closes the file, and returns false, with the reason in err.
static bool trace_flush(TraceFile *t, Error *err) {
    const long end = ftell(t->file);
    errno = 0;
    fputs("\n]}\n", t->file);
    fflush(t->file);
    if (ferror(t->file) || fseek(t->file, end, SEEK_SET) != 0) return trace_error(t, err);
    t->whole = end;
    return true;
}

// Begins a trace file at `path`, which must stay valid, and names the rows, which are shown in the
// order of their numbers. Replaces an older file. On failure returns false, with the reason in err.
static bool trace_open(TraceFile *t, const char *path, Error *err) {
    *t = (TraceFile){.file = fopen(path, "wb"), .path = path};
    if (t->file == NULL) return trace_error(t, err);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\","
          "\"pid\":0,\"args\":{\"name\":\"tide\"}}", t->file);
    for (int row = 0; row < ROWS; row++)
        fprintf(t->file, ",\n{\"ph\":\"M\",\"pid\":0,\"name\":\"thread_name\",\"tid\":%d,\"args\":{"
                "\"name\":\"%s\"}},\n{\"ph\":\"M\",\"pid\":0,\"name\":\"thread_sort_index\","
                "\"tid\":%d,\"args\":{\"sort_index\":%d}}", row, trace_rows[row], row, row);
    return trace_flush(t, err);
}

static void trace_span(TraceFile *t, const TraceSpan *s) {
    const double us = trace_microseconds(s->begin), duration = trace_microseconds(s->end) - us;
    fprintf(t->file, ",\n{\"ph\":\"X\",\"pid\":0,\"name\":\"%s\",\"tid\":%d,\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{\"step\":%zu", s->name, s->row, us,
            duration > 0 ? duration : 0, t->step);
    if (s->number != TRACE_NONE) fprintf(t->file, ",\"number\":%zu", s->number);
    if (s->bytes > 0) fprintf(t->file, ",\"bytes\":%zu", s->bytes);
    if (s->row != ROW_COMPUTE && s->row != ROW_UPDATE && s->bytes > 0 && duration > 0)
        fprintf(t->file, ",\"GB/s\":%.4g", (double)s->bytes / duration / 1e3);
    fputs("}}", t->file);
}

// Writes how many bytes of memory something has, from the begin of the trace on.
static void trace_memory(TraceFile *t, const char *what, size_t bytes) {
    fprintf(t->file, ",\n{\"ph\":\"C\",\"pid\":0,\"name\":\"memory\",\"ts\":0,\"args\":{"
            "\"%s\":%zu}}", what, bytes);
}

// Ends and closes the file. On failure returns false, with the reason in err.
static bool trace_close(TraceFile *t, Error *err) {
    if (!trace_flush(t, err)) return false;
    FILE *f = t->file;
    t->file = NULL;
    return fclose(f) == 0 || trace_error(t, err);
}

#endif
