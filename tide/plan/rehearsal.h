// rehearsal.h: a step that is written down instead of run: the work of each stream, the jobs for
// which it waits, and the time that a machine (rates.h) takes. No CUDA here: queue.cuh rehearses.
//   rehearsal_begin(), rehearsal_end()     open and close it; queue.cuh calls what follows
//   rehearse_stream(), rehearse_event()    make a stream; an event
//   rehearse_wait(), rehearse_record()     let a stream wait for an event; record one
//   rehearse(), rehearse_span()            give a stream work; name the work for the trace
//   rehearsal_time()                       computes when each job begins and ends
//
// Until the next job begins or ends, each job under way has a constant speed:
//   - The streams with work for the GPU share its time evenly.
//   - The copies in one direction share the link. Its speed is `h2d` or `d2h`; `_duplex` while the
//     other direction is busy; `_host` while the cores are; `_busy` while both are.
//   - Both directions and the cores share host memory evenly: `dram` bytes a second, or `dram_dma`
//     while both directions are busy. Any of the three that needs less than its share leaves some
//     to the others. But if the _host and _busy rates are known, the link has these speeds.
//   - Collectives take the time of rates.h, one by one, whatever else is under way.
// A rate of 0 is unknown, and limits nothing.
#ifndef TIDE_REHEARSAL_H
#define TIDE_REHEARSAL_H
#include "rates.h"
#include "trace.h"

// What a job takes: nothing; seconds of the GPU, for products, attention or other work; bytes of
// the link, to the GPU or back; bytes of host memory, for the cores; seconds of a collective.
enum { TAKES_NOTHING, TAKES_PRODUCTS, TAKES_ATTENTION, TAKES_GPU, TAKES_H2D, TAKES_D2H, TAKES_HOST,
       TAKES_COMM, TAKES_KINDS };

enum { JOB_WAITS = 3, REHEARSAL_STREAMS = 16, THE_HOST = 0, NO_JOB = -1 };
static const double UNLIMITED = 1e24;

// A part of a stream's work. Jobs are numbered in the order in which the host queues them.
typedef struct {
    int stream, next;        // the next job of this stream, or NO_JOB
    int waits[JOB_WAITS];   // jobs that must be complete, besides the one before it in its stream
    int takes;
    double work;
    TraceSpan span;          // rehearsal_time() sets its begin and end
} Job;

typedef struct {
    int first, last;         // jobs; NO_JOB: none yet
    int waits[JOB_WAITS], count;  // jobs for which the next job must wait
    int host;                // the last job of THE_HOST for which this stream waits
    bool sealed;             // a stream or event waits for the last job: no work may join it
    TraceSpan span, outer;   // the open span, and the span around it
} RehearsedStream;

typedef struct {
    Rates rates;
    Job *jobs;
    int count;
    RehearsedStream streams[REHEARSAL_STREAMS];  // [THE_HOST]: its jobs are the waits of the host
    int stream_count;
    int *events;             // [event]: the job after which it was recorded
    int event_count;
    size_t memory;           // the next address that rehearse_memory() returns
} Rehearsal;

static Rehearsal *rehearsal;  // the open rehearsal; NULL: none, so work is really run

static int rehearse_stream(void) {
    Rehearsal *q = rehearsal;
    if (q->stream_count == REHEARSAL_STREAMS) fail("rehearsal: too many streams");
    const TraceSpan no = {-1, -1, -1, "", 0, 0};
    q->streams[q->stream_count] = (RehearsedStream){NO_JOB, NO_JOB, {0}, 0, NO_JOB, true, no, no};
    return q->stream_count++;
}

static int rehearse_event(void) {
    Rehearsal *q = rehearsal;
    q->events = (int *)array_grow(q->events, (size_t)q->event_count, sizeof *q->events, "plan");
    q->events[q->event_count] = NO_JOB;
    return q->event_count++;
}

// Opens *q. Until rehearsal_end(), no work is run.
static void rehearsal_begin(Rehearsal *q, const Rates *rates) {
    *q = (Rehearsal){.rates = *rates, .memory = 4096};
    rehearsal = q;
    rehearse_stream();  // THE_HOST
    rehearse_event();   // event 0 is never recorded: to wait for it is no wait
}

static void rehearsal_end(Rehearsal *q) {
    rehearsal = NULL;
    free(q->jobs);
    free(q->events);
    memset(q, 0, sizeof *q);
}

static int rehearse(int stream, int takes, double work);

// Makes a stream do all its later work after a job. The host waits as soon as this is called.
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

// Begins a span in a stream; rehearse_span_end() ends it.
static void rehearse_span(int stream, int row, const char *name, size_t number, size_t bytes) {
    RehearsedStream *s = &rehearsal->streams[stream];
    s->outer = s->span;
    s->sealed |= row == ROW_UPDATE;  // each piece of a segment has a job, with its bytes
    s->span = (TraceSpan){-1, -1, row, name, number, bytes};
}

static void rehearse_span_end(int stream) {
    rehearsal->streams[stream].span = rehearsal->streams[stream].outer;
}

// Gives a stream work, and returns the job with it. Adds it to the stream's last job if kind and
// span are the same. If work is 0, makes a job only if the stream still has to wait for another.
static int rehearse(int stream, int takes, double work) {
    Rehearsal *q = rehearsal;
    RehearsedStream *s = &q->streams[stream];
    const int host = q->streams[THE_HOST].last;
    if (stream != THE_HOST && host != s->host) {  // work begins after the host's last wait
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

// Records an event, which is complete when all work given to the stream so far is done.
static void rehearse_record(int event, int stream) {
    rehearsal->events[event] = rehearse(stream, TAKES_NOTHING, 0);
    rehearsal->streams[stream].sealed = true;
}

// Makes the host wait until a stream has done all its work.
static void rehearse_rest(int stream) {
    rehearse_wait_for(THE_HOST, rehearse(stream, TAKES_NOTHING, 0));
    rehearsal->streams[stream].sealed = true;
}

// Returns an address for memory that does not exist.
static void *rehearse_memory(size_t bytes) {
    const size_t at = rehearsal->memory;
    rehearsal->memory += round_up(bytes + 1, 4096);
    return (void *)(uintptr_t)at;
}

// ---------------------------------------------------------------------------------------------
// The machine

// Limits three wants to even shares of `total`; what one does not need, the others may use.
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

// Sets speed[kind], of each job of a kind, in work per second, while busy[kind] jobs of each kind
// are under way. The cores move at most 26 bytes (AdamW's) for each parameter of host_adam.
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

// Computes when each job begins and ends.
static void rehearsal_time(Rehearsal *q) {
    int head[REHEARSAL_STREAMS], done = 0;
    double left[REHEARSAL_STREAMS] = {0}, now = 0;
    bool at_work[REHEARSAL_STREAMS];
    for (int i = 0; i < q->count; i++) q->jobs[i].span.begin = q->jobs[i].span.end = -1;
    for (int s = 0; s < q->stream_count; s++) head[s] = q->streams[s].first;
    while (done < q->count) {
        int busy[TAKES_KINDS] = {0};
        double speed[TAKES_KINDS], dt = INFINITY;
        for (bool more = true; more;) {  // begin all jobs that can; end those without work left
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
        if (!(dt < INFINITY)) fail("rehearsal: jobs wait for each other");  // an error in this code
        for (int s = 0; s < q->stream_count; s++) {
            if (!at_work[s]) continue;
            const Job *t = &q->jobs[head[s]];
            left[s] -= speed[t->takes] * dt;
            if (left[s] <= 1e-12 * t->work) left[s] = 0;
        }
        now += dt;
    }
}

// Draws jobs [first, end). Time `start` of the rehearsal is time 0 of the trace.
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
