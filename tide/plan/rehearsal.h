// rehearsal.h: a step that is not run but written down: what each stream is given, what that waits
// for, and how long a machine (rates.h) takes for all of it. No CUDA here: queue.cuh rehearses.
//   rehearsal_begin(), rehearsal_end()     while one is open, queue.cuh's calls end up here
//   rehearse_stream(), rehearse_event()    make one
//   rehearse_wait(), rehearse_record()     what waits for what
//   rehearse(), rehearse_span()            work for a stream; what the trace calls it
//   rehearsal_time()                       when each job begins and ends
//
// While nothing begins or ends, all that is under way goes at a constant speed:
//   - the GPU's time is shared by the streams that have work for it;
//   - each direction of the link by what copies, at `h2d` or `d2h` alone, `_duplex` with the other
//     direction; at `_host` or, with the other direction, `_busy` if the cores work as well;
//   - host memory, of `dram` bytes a second, `dram_dma` while both directions are busy, by each
//     direction and the cores, evenly: who wants less than his part leaves the rest to the others.
//     Where the _host and _busy rates are known, they are what the link gets;
//   - collectives between GPUs take the time of rates.h, one by one, whatever else is at work.
// A rate of 0 is not known, and limits nothing.
#ifndef TIDE_REHEARSAL_H
#define TIDE_REHEARSAL_H
#include "rates.h"
#include "trace.h"

// What a job takes: nothing; seconds of the GPU's time, for products, attention or anything else;
// bytes over the link; bytes in host memory, of the cores; seconds between GPUs.
enum { TAKES_NOTHING, TAKES_PRODUCTS, TAKES_ATTENTION, TAKES_GPU, TAKES_H2D, TAKES_D2H, TAKES_HOST,
       TAKES_COMM, TAKES_KINDS };

enum { JOB_WAITS = 3, REHEARSAL_STREAMS = 16, THE_HOST = 0, NO_JOB = -1 };
static const double UNLIMITED = 1e24;

// One piece of a stream's work. Tasks are numbered in the order in which the host has queued them.
typedef struct {
    int stream, next;        // the next job of this stream, or NO_JOB
    int waits[JOB_WAITS];   // jobs that must be complete besides the one before in its stream
    int takes;
    double work;
    TraceSpan span;          // when it begins and ends: by rehearsal_time()
} Job;

typedef struct {
    int first, last;         // jobs
    int waits[JOB_WAITS], count;  // what the next job is to wait for
    int host;                // of the host, the job that this stream knows is complete
    bool sealed;             // somebody waits for the last job: it is complete as it is
    TraceSpan span, outer;   // the open one, and the one that it is within
} RehearsedStream;

typedef struct {
    Rates rates;
    Job *jobs;
    int count;
    RehearsedStream streams[REHEARSAL_STREAMS];  // THE_HOST's: where it waits
    int stream_count;
    int *events;             // the job that each was recorded behind
    int event_count;
    size_t memory;           // addresses that were given out
} Rehearsal;

static Rehearsal *rehearsal;  // the one that is open; NULL: what is queued is run

static int rehearse_stream(void) {
    Rehearsal *q = rehearsal;
    if (q->stream_count == REHEARSAL_STREAMS) fail("rehearsal: too many streams");
    const TraceSpan no = {-1, -1, -1, "", 0, 0};
    const RehearsedStream none = {NO_JOB, NO_JOB, {0}, 0, NO_JOB, true, no, no};
    q->streams[q->stream_count] = none;
    return q->stream_count++;
}

static int rehearse_event(void) {
    Rehearsal *q = rehearsal;
    q->events = (int *)array_grow(q->events, (size_t)q->event_count, sizeof *q->events, "plan");
    q->events[q->event_count] = NO_JOB;
    return q->event_count++;
}

// Opens *q. Nothing is run until rehearsal_end().
static void rehearsal_begin(Rehearsal *q, const Rates *rates) {
    memset(q, 0, sizeof *q);
    q->rates = *rates;
    q->memory = 4096;
    rehearsal = q;
    rehearse_stream();  // THE_HOST
    rehearse_event();   // number 0 is no event
}

static void rehearsal_end(Rehearsal *q) {
    rehearsal = NULL;
    free(q->jobs);
    free(q->events);
    memset(q, 0, sizeof *q);
}

static int rehearse(int stream, int takes, double work);

// Makes all work that the stream is given from now on wait for this job; the host waits at once.
static void rehearse_wait_for(int stream, int job) {
    RehearsedStream *s = &rehearsal->streams[stream];
    if (job == NO_JOB || rehearsal->jobs[job].stream == stream) return;
    for (int i = 0; i < s->count; i++) {
        if (rehearsal->jobs[s->waits[i]].stream != rehearsal->jobs[job].stream) continue;
        if (job > s->waits[i]) s->waits[i] = job;
        return;
    }
    if (s->count == JOB_WAITS) rehearse(stream, TAKES_NOTHING, 0);
    s->waits[s->count++] = job;
    if (stream == THE_HOST) rehearse(THE_HOST, TAKES_NOTHING, 0);
}

static void rehearse_wait(int stream, int event) {
    rehearse_wait_for(stream, rehearsal->events[event]);
}

// Begins a span in a stream; ends it.
static void rehearse_span(int stream, int row, const char *name, size_t number, size_t bytes) {
    RehearsedStream *s = &rehearsal->streams[stream];
    const TraceSpan span = {-1, -1, row, name, number, bytes};
    s->outer = s->span;
    s->span = span;
}

static void rehearse_span_end(int stream) {
    rehearsal->streams[stream].span = rehearsal->streams[stream].outer;
}

// Gives a stream work; returns its job. Work of the kind before it joins that job. Without work, a
// job is made only if it has to wait.
static int rehearse(int stream, int takes, double work) {
    Rehearsal *q = rehearsal;
    RehearsedStream *s = &q->streams[stream];
    const int host = q->streams[THE_HOST].last;
    if (stream != THE_HOST && host != s->host) {  // the host has queued it only now
        s->host = host;
        rehearse_wait_for(stream, host);
    }
    Job *last = s->last == NO_JOB ? NULL : &q->jobs[s->last];
    if (s->count == 0 && work == 0) return s->last;
    if (s->count == 0 && !s->sealed && last->takes == takes && last->span.row == s->span.row
        && last->span.name == s->span.name && last->span.number == s->span.number) {
        last->work += work;
        return s->last;
    }
    q->jobs = (Job *)array_grow(q->jobs, (size_t)q->count, sizeof *q->jobs, "plan");
    Job t = {stream, NO_JOB, {NO_JOB, NO_JOB, NO_JOB}, takes, work, s->span};
    for (int i = 0; i < s->count; i++) t.waits[i] = s->waits[i];
    s->count = 0;
    s->sealed = false;
    if (s->last != NO_JOB) q->jobs[s->last].next = q->count;
    else s->first = q->count;
    q->jobs[q->count] = t;
    return s->last = q->count++;
}

// Records an event: it is complete when the stream has done all work that it has so far.
static void rehearse_record(int event, int stream) {
    rehearsal->events[event] = rehearse(stream, TAKES_NOTHING, 0);
    rehearsal->streams[stream].sealed = true;
}

// Lets the host wait until a stream has done all its work.
static void rehearse_rest(int stream) {
    rehearse_wait_for(THE_HOST, rehearse(stream, TAKES_NOTHING, 0));
    rehearsal->streams[stream].sealed = true;
}

// Returns an address of memory that does not exist.
static void *rehearse_memory(size_t bytes) {
    const size_t at = rehearsal->memory;
    rehearsal->memory += round_up(bytes + 1, 4096);
    return (void *)(uintptr_t)at;
}

// ---------------------------------------------------------------------------------------------
// The machine

// Divides `total` evenly among three wants: what one of them does not need, the others get.
static void share_out(double total, double want[3]) {
    bool served[3] = {false, false, false};
    for (int left = 3; left > 0; left--) {
        int least = -1;
        for (int i = 0; i < 3; i++)
            if (!served[i] && (least < 0 || want[i] < want[least])) least = i;
        want[least] = fmin(want[least], total / left);
        total -= want[least];
        served[least] = true;
    }
}

// Sets the work per second of a job of each kind, while so many of each are at work. The cores can
// work on 26 bytes per second for each parameter of host_adam, AdamW's traffic.
static void machine_speeds(const Rates *rates, const int busy[TAKES_KINDS],
                           double speed[TAKES_KINDS]) {
    const bool in = busy[TAKES_H2D] > 0, out = busy[TAKES_D2H] > 0, host = busy[TAKES_HOST] > 0;
    const double cores = fmin(ADAM_BYTES * rate_or(rates->host_adam, UNLIMITED), UNLIMITED);
    const double in_host = out ? rates->h2d_busy : rates->h2d_host;
    const double out_host = in ? rates->d2h_busy : rates->d2h_host;
    const bool measured = host && (!in || in_host > 0) && (!out || out_host > 0);
    double h2d = rate_or(rates->h2d, UNLIMITED), d2h = rate_or(rates->d2h, UNLIMITED);
    if (in && out) h2d = rate_or(rates->h2d_duplex, h2d);
    if (in && out) d2h = rate_or(rates->d2h_duplex, d2h);
    double memory = in && out ? rate_or(rates->dram_dma, rates->dram)
                              : rate_or(rates->dram, rates->dram_dma);
    if (memory <= 0) memory = 4 * UNLIMITED;
    double want[3] = {in ? measured ? in_host : h2d : 0, out ? measured ? out_host : d2h : 0,
                      host ? cores : 0};
    if (measured) want[2] = fmin(cores, fmax(memory - want[0] - want[1], 0.01 * memory));
    else share_out(memory, want);
    const int gpu = busy[TAKES_PRODUCTS] + busy[TAKES_ATTENTION] + busy[TAKES_GPU];
    speed[TAKES_NOTHING] = speed[TAKES_COMM] = 1;
    for (int i = TAKES_PRODUCTS; i <= TAKES_GPU; i++) speed[i] = gpu > 0 ? 1.0 / gpu : 0;
    speed[TAKES_H2D] = in ? want[0] / busy[TAKES_H2D] : 0;
    speed[TAKES_D2H] = out ? want[1] / busy[TAKES_D2H] : 0;
    speed[TAKES_HOST] = want[2];
}

static bool job_is_ready(const Rehearsal *q, const Job *t) {
    for (int i = 0; i < JOB_WAITS; i++)
        if (t->waits[i] != NO_JOB && q->jobs[t->waits[i]].span.end < 0) return false;
    return true;
}

// Fills in when each job begins and ends.
static void rehearsal_time(Rehearsal *q) {
    int head[REHEARSAL_STREAMS], done = 0;
    double left[REHEARSAL_STREAMS] = {0}, now = 0;
    bool at_work[REHEARSAL_STREAMS];
    for (int i = 0; i < q->count; i++) q->jobs[i].span.begin = q->jobs[i].span.end = -1;
    for (int s = 0; s < q->stream_count; s++) head[s] = q->streams[s].first;
    while (done < q->count) {
        int busy[TAKES_KINDS] = {0};
        double speed[TAKES_KINDS], dt = INFINITY;
        for (bool more = true; more;) {  // what can begin, begins; what has no work left, ends
            more = false;
            for (int s = 0; s < q->stream_count; s++) {
                at_work[s] = false;
                if (head[s] == NO_JOB) continue;
                Job *t = &q->jobs[head[s]];
                if (t->span.begin < 0) {
                    if (!job_is_ready(q, t)) continue;
                    t->span.begin = now;
                    left[s] = t->work;
                }
                at_work[s] = left[s] > 0;
                if (at_work[s]) continue;
                t->span.end = now;
                done++;
                head[s] = t->next;
                more = true;
            }
        }
        if (done == q->count) break;
        for (int s = 0; s < q->stream_count; s++)
            if (at_work[s]) busy[q->jobs[head[s]].takes]++;
        machine_speeds(&q->rates, busy, speed);
        for (int s = 0; s < q->stream_count; s++)
            if (at_work[s]) dt = fmin(dt, left[s] / speed[q->jobs[head[s]].takes]);
        if (!(dt < INFINITY)) fail("rehearsal: jobs wait for each other");  // an error of ours
        for (int s = 0; s < q->stream_count; s++) {
            if (!at_work[s]) continue;
            const Job *t = &q->jobs[head[s]];
            left[s] -= speed[t->takes] * dt;
            if (left[s] <= 1e-12 * t->work) left[s] = 0;
        }
        now += dt;
    }
}

// Draws jobs [first, end), from time `start` on.
static void rehearsal_draw(const Rehearsal *q, TraceFile *trace, int first, int end,
                           double start) {
    double last = 0;
    for (int i = first; i < end; i++) {
        TraceSpan s = q->jobs[i].span;
        if (s.row < 0 || s.end <= s.begin) continue;
        s.begin -= start;
        s.end -= start;
        const TraceSpan wait = {last, s.begin, ROW_COMPUTE, "wait", TRACE_NONE, 0};
        if (s.row == ROW_COMPUTE && s.begin > last) trace_span(trace, &wait);
        if (s.row == ROW_COMPUTE) last = s.end;
        trace_span(trace, &s);
    }
}

#endif
