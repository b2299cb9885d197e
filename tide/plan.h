// plan.h: how long a training step takes, before it is taken: the trainer's own list of pieces
// (offload.h), run through a small model of the machine (rates.h); and with it, the choice that
// --offload auto makes. No CUDA here. doc/performance_model.md is the lesson.
//
// Work is queued in the trainer's streams, in the trainer's order, with the trainer's waits. While
// nothing begins or ends, all that is under way goes at a constant speed:
//   - the GPU's time is shared by what computes and what updates;
//   - each direction of the link by what copies, at `h2d` or `d2h` alone, `_duplex` with the other
//     direction, `_busy` if the cores update as well;
//   - host memory, of `dram` bytes a second, `dram_dma` while both directions are busy, by each
//     direction and the cores, evenly: who wants less than his part leaves the rest to the others.
//     Where the _busy rates are known, they are what the link gets;
//   - collectives between GPUs take what rates.h says, one after the other, whatever else goes on.
// A rate of 0 is not known, and limits nothing. Left out: the start of a kernel or a copy; what
// norms, sums, embeddings and collectives need of the GPU; that the latter cross a GPU's link to
// the host where there is no other way. All ranks are like the one that is planned.
#ifndef TIDE_PLAN_H
#define TIDE_PLAN_H
#include "model.h"
#include "../offload.h"
#include "rates.h"
#include "trace.h"
#include "../zero.h"

// What is planned, besides the model and the OffloadChoice.
typedef struct {
    size_t B, T, accum;      // of one micro-batch; micro-batches per step
    bool recompute;          // backward repeats most of each layer's forward pass
    size_t stored;           // bytes of a weight and a gradient on the GPU: 2 (bf16) or 4
    bool no_overlap;         // --no-overlap: backward waits until each gradient has left, and
                             // forward for all of the update, not layer by layer
    size_t world;            // GPUs that train together (zero.h), each with the pieces that are
                             // given and rates_of_rank() of a machine. 0, 1: one
    int zero;                // the stage, with several
} PlanRun;

typedef struct {
    double step;               // seconds from one gradient norm to the next; of these:
    double forward, backward;  // from their first work to their last, stalls included
    double compute;            // what both would take if they never waited
    double update;             // from the norm to the last weight and the last state in its place
    double bound;              // the update's by rates.h, as if nobody had come before it; 0: none
    char limit[40];            // which of the machine's limits makes the bound
    double h2d_bytes, d2h_bytes;
    double stall_forward;      // zenflow: before a part of forward, for new weights; and
    double stall_backward;     // before a part of backward, for room
    double comm;               // seconds of all collectives
    double comm_exposed;       // by so much, the step would be shorter if they took no time
    double reduced_bytes;      // of gradients, from each GPU to the others, to be summed there; and
    double gathered_bytes;     // of weights; the norm's few are not counted
} Prediction;

// ---------------------------------------------------------------------------------------------
// The machine

// An operation in a stream. Streams are the rows of the timeline, but gradients and the state of
// visitors leave in one. `work` is seconds of the GPU's time, or of a collective; or bytes over the
// link; or, for the CPU, in host memory.
typedef struct {
    int row, waits[3];  // tasks that must be complete, besides the one before in its stream; -1
    const char *name;
    size_t number, bytes;
    double work, begin, end;
} PlanTask;

typedef struct {
    PlanTask *tasks;
    int count, room;
    double host_rate;  // bytes/s of memory that the cores can work on, if it gives them
} PlanTasks;

enum { PLAN_NOTHING = -1, PLAN_STEPS = 3, PLAN_MICRO = 4 };
static const double PLAN_UNLIMITED = 1e18;

static int plan_stream(int row) { return row == ROW_FLUSH ? ROW_LEAVE : row; }

// Appends a task, and returns its number.
static int plan_add(PlanTasks *p, int row, const char *name, size_t number, double work,
                           int a, int b, int c) {
    if (p->count == p->room) fail("plan: more than %d tasks", p->room);
    PlanTask *t = &p->tasks[p->count];
    memset(t, 0, sizeof *t);
    t->row = row;
    t->name = name;
    t->number = number;
    t->work = work;
    if (row != ROW_COMPUTE && row != ROW_UPDATE && row != ROW_HOST && row != ROW_COMM)
        t->bytes = (size_t)work;
    t->waits[0] = a;
    t->waits[1] = b;
    t->waits[2] = c;
    t->begin = t->end = -1;
    return p->count++;
}

// Divides what there is evenly among three who want something; what one does not need, the others
// get.
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

// Work per second of each stream, given which of them are at work.
static void plan_speeds(const PlanTasks *p, const Rates *r, const bool busy[ROWS],
                               double speed[ROWS]) {
    const int copies = busy[ROW_FETCH] + busy[ROW_BACK], gpu = busy[ROW_COMPUTE] + busy[ROW_UPDATE];
    const bool both = copies > 0 && busy[ROW_LEAVE];
    const bool measured = both && busy[ROW_HOST] && r->h2d_busy > 0 && r->d2h_busy > 0;
    double in = rate_or(r->h2d, PLAN_UNLIMITED), out = rate_or(r->d2h, PLAN_UNLIMITED);
    if (both) in = measured ? r->h2d_busy : rate_or(r->h2d_duplex, in);
    if (both) out = measured ? r->d2h_busy : rate_or(r->d2h_duplex, out);
    double memory = both ? rate_or(r->dram_dma, r->dram) : rate_or(r->dram, r->dram_dma);
    if (memory <= 0) memory = 4 * PLAN_UNLIMITED;
    double want[3] = {copies > 0 ? in : 0, busy[ROW_LEAVE] ? out : 0,
                      busy[ROW_HOST] ? p->host_rate : 0};
    if (measured) want[2] = fmin(want[2], fmax(memory - in - out, 0.01 * memory));
    else share_out(memory, want);
    speed[ROW_COMPUTE] = speed[ROW_UPDATE] = gpu > 0 ? 1.0 / gpu : 0;
    speed[ROW_FETCH] = speed[ROW_BACK] = copies > 0 ? want[0] / copies : 0;
    speed[ROW_LEAVE] = want[1];
    speed[ROW_HOST] = want[2];
    speed[ROW_COMM] = 1;
}

// Fills in when each task begins and ends.
static void plan_simulate(PlanTasks *p, const Rates *r) {
    int head[ROWS], done = 0;
    double left[ROWS] = {0}, speed[ROWS] = {0}, now = 0;
    for (int s = 0; s < ROWS; s++)
        for (head[s] = 0; head[s] < p->count && plan_stream(p->tasks[head[s]].row) != s;) head[s]++;
    while (done < p->count) {
        bool busy[ROWS] = {false}, more = true;
        while (more) {  // what can begin, begins; what has no work left, ends
            more = false;
            for (int s = 0; s < ROWS; s++) {
                if (head[s] >= p->count) continue;
                PlanTask *t = &p->tasks[head[s]];
                bool ready = true;
                for (int i = 0; i < 3; i++)
                    if (t->waits[i] >= 0 && p->tasks[t->waits[i]].end < 0) ready = false;
                if (ready && t->begin < 0) {
                    t->begin = now;
                    left[s] = t->work;
                }
                busy[s] = ready && left[s] > 0;
                if (!ready || left[s] > 0) continue;
                t->end = now;
                done++;
                while (++head[s] < p->count && plan_stream(p->tasks[head[s]].row) != s) {}
                more = true;
            }
        }
        if (done == p->count) break;
        plan_speeds(p, r, busy, speed);
        double dt = INFINITY;
        for (int s = 0; s < ROWS; s++) if (busy[s]) dt = fmin(dt, left[s] / speed[s]);
        if (!(dt < INFINITY)) fail("plan: tasks wait for each other");  // an error in plan_tasks()
        for (int s = 0; s < ROWS; s++) {
            if (!busy[s]) continue;
            left[s] -= speed[s] * dt;
            if (left[s] <= 1e-12 * p->tasks[head[s]].work) left[s] = 0;
        }
        now += dt;
    }
}

// ---------------------------------------------------------------------------------------------
// The trainer's order of work

// Floating-point operations of the forward pass over one micro-batch, as in
// gpt2_flops_per_token(): of one layer; of that what backward repeats (doc/recompute.md); and of
// the head. Backward takes twice those of forward.
typedef struct { double layer, again, head; } PlanFlops;

static PlanFlops plan_flops(const GPT2Config *c, const PlanRun *run) {
    const double C = (double)c->channels, F = (double)c->ffn, T = (double)run->T;
    const double tokens = (double)run->B * T;
    PlanFlops f;
    f.layer = tokens * (2 * (4 * C * C + 2 * C * F) + 2 * C * T);
    f.again = run->recompute ? tokens * (2 * (4 * C * C + C * F) + 2 * C * T) : 0;
    f.head = tokens * 2 * (double)c->vocab * C;
    return f;
}

// Those of segment s (embeddings, L layers, tail) in forward and in backward.
static double plan_forward(const PlanFlops *f, int s, int L) {
    return s == 0 ? 0 : s <= L ? f->layer : f->head;
}

static double plan_backward(const PlanFlops *f, int s, int L) {
    return s == 0 ? 0 : s > L ? 2 * f->head : 2 * f->layer + (s < L ? f->again : 0);
}

// Seconds of a step that never waits.
static double plan_compute(const Rates *r, const GPT2Config *c, const PlanRun *run) {
    const PlanFlops f = plan_flops(c, run);
    const double L = (double)c->layers;
    return (double)run->accum * (3 * (L * f.layer + f.head) + (L - 1) * f.again)
         / rate_or(r->gpu_flops, PLAN_UNLIMITED);
}

// The place on the GPU in which the gradient of segment s is made: the layers take turns in some.
static int plan_place(int s, int L, int places) {
    return s == 0 || s > L ? s : 1 + s % places;
}

// Of a gradient that waits on the host, and of a weight.
static UpdateBytes plan_bytes(const PlanRun *run, const OffloadChoice *c) {
    const double stored = (double)run->stored;
    const UpdateBytes b = {run->accum > 1 || c->wire_f32 ? 4 : stored, stored, c->keep_grads};
    return b;
}

// ---------------------------------------------------------------------------------------------
// Several GPUs: what zero.cuh queues in its stream, in its order

enum { PLAN_EMBEDDINGS, PLAN_LAYER, PLAN_TAIL, PLAN_SEGMENTS };

typedef struct {
    bool on;                           // there are several
    int stage, L;
    double bytes[PLAN_SEGMENTS];       // of a segment's weights, room for all shards
    double gather[PLAN_SEGMENTS];      // seconds: its weights are gathered, or its gradient summed
    double norm;                       // seconds in which all get the norm's block sums
    double given[PLAN_SEGMENTS];       // bytes that go to others meanwhile
    double all_reduced;                // seconds for a whole gradient
    const int *updated, *returned;     // per segment: tasks
    int *ready;                        // per segment: the task that has gathered it
    int since;                         // the host queues nothing before this task is complete
    int used[2], tenant[2];            // stage 3: the last task that used a place; the layer in it
    bool current[2];                   // stage 3: embeddings and tail have been gathered
} PlanComm;

static int plan_kind(int s, int L) {
    return s == 0 ? PLAN_EMBEDDINGS : s <= L ? PLAN_LAYER : PLAN_TAIL;
}

static PlanComm plan_comm(const Rates *r, const GPT2Config *config, const PlanRun *run) {
    PlanComm q;
    memset(&q, 0, sizeof q);
    q.on = run->world > 1;
    q.stage = run->zero;
    q.L = (int)config->layers;
    q.since = q.used[0] = q.used[1] = PLAN_NOTHING;
    if (!q.on) return q;
    GPT2Table table = gpt2_table(config);
    const double others = (double)run->world - 1;
    for (int s = 0; s <= q.L + 1; s++) {
        const int k = plan_kind(s, q.L);
        size_t at;
        const double cut = (double)zero_cut(zero_segment(&table, s, &at), run->world);
        q.bytes[k] = cut * (others + 1) * (double)run->stored;
        q.gather[k] = collective_seconds(r, run->world, q.bytes[k]);
        q.given[k] = others * cut * (double)run->stored;
        q.all_reduced += q.gather[k];
    }
    q.norm = collective_seconds(r, run->world, 8 * (double)table.elements / NORM_BLOCK);
    gpt2_table_free(&table);
    return q;
}

static int plan_comm_add(PlanTasks *p, const PlanComm *q, const char *name, int s,
                                double seconds, int a, int b, int c) {
    const int task = plan_add(p, ROW_COMM, name, (size_t)s, seconds, a, b, c);
    p->tasks[task].bytes = (size_t)q->bytes[plan_kind(s, q->L)];
    return task;
}

// The weights of segment s go around, once they are updated and `after` is complete.
static void plan_gather(PlanTasks *p, PlanComm *q, int s, int after) {
    q->ready[s] = plan_comm_add(p, q, "gather", s, q->gather[plan_kind(s, q->L)], q->updated[s],
                                q->returned[s], after);
}

// zero_fetch() of zero.cuh: unless they are there.
static void plan_fetch(PlanTasks *p, PlanComm *q, int s) {
    const bool layer = s >= 1 && s <= q->L;
    if (layer ? q->tenant[s % 2] == s : q->current[s > 0]) return;
    if (layer) q->tenant[s % 2] = s;
    else q->current[s > 0] = true;
    plan_gather(p, q, s, layer && q->used[s % 2] > q->since ? q->used[s % 2] : q->since);
}

// zero_weights() of zero.cuh: compute, whose last task is `last`, comes to segment s, and then to
// s + next.
static void plan_weights(PlanTasks *p, PlanComm *q, int s, int next, int last) {
    const int before = s - next, after = s + next;
    if (before >= 1 && before <= q->L) q->used[before % 2] = last;
    plan_fetch(p, q, s);
    if (after >= 0 && after <= q->L + 1) plan_fetch(p, q, after);
}

// zero_weights_changed() of zero.cuh: the update of all is queued.
static void plan_weights_changed(PlanTasks *p, PlanComm *q, int last) {
    q->since = last;
    for (int i = 0; i < 2; i++) {
        q->used[i] = last;
        q->tenant[i] = 0;
        q->current[i] = false;
    }
    if (q->stage == 3) return;
    for (int s = 0; s <= q->L + 1; s++) plan_gather(p, q, s, PLAN_NOTHING);
}

// All collectives of a step, and the bytes that one GPU gives the others.
static void plan_comm_total(const PlanComm *q, size_t accum, Prediction *x) {
    // layers that backward, and forward behind a backward, find in the two places they need not get
    const double micros = (double)accum, L = q->L, there = fmin(L, 2);
    x->comm = q->norm;
    for (int k = 0; q->on && k < PLAN_SEGMENTS; k++) {
        const double n = k == PLAN_LAYER ? L : 1;
        const double gathers = q->stage < 3 || k != PLAN_LAYER
                             ? n : L + (2 * micros - 1) * (L - there);
        x->comm += (micros * n + gathers) * q->gather[k];
        x->reduced_bytes += micros * n * q->given[k];
        x->gathered_bytes += gathers * q->given[k];
    }
}

// A machine whose collectives take no time.
static Rates plan_free_links(const Rates *r) {
    Rates x = *r;
    x.gpu_link = x.node_link = x.gpu_latency = x.node_latency = 0;
    return x;
}

// ---------------------------------------------------------------------------------------------
// All of a step

// Tasks that mark a step: per micro-batch the first and the last of forward, and the last of
// backward; the norm; and the first that is not of this step.
typedef struct { int forward[PLAN_MICRO], tail[PLAN_MICRO], backward[PLAN_MICRO], norm, end; }
    PlanStep;

// Queues PLAN_STEPS steps, of at most PLAN_MICRO micro-batches each. The caller frees p->tasks.
static PlanTasks plan_tasks(const Rates *r, const GPT2Config *config, const Pieces *list,
                                   const OffloadChoice *c, const PlanRun *run,
                                   PlanStep steps[PLAN_STEPS]) {
    enum { NONE = PLAN_NOTHING };
    const int L = (int)config->layers, S = L + 2, micros = (int)min_size(run->accum, PLAN_MICRO);
    const double gpu = rate_or(r->gpu_flops, PLAN_UNLIMITED);
    const double gpu_adam = rate_or(r->gpu_adam, PLAN_UNLIMITED);
    const double cores = rate_or(r->host_adam, PLAN_UNLIMITED);
    const double grad = plan_bytes(run, c).grad, made = (double)run->stored;
    const double pass = 24 + grad + (made < 4 ? made : 0);  // bytes of the CPU per element
    const bool host_sums = run->accum > 1 && c->sum_on_host;
    const bool gpu_sums = run->accum > 1 && !c->sum_on_host;
    const PlanFlops flops = plan_flops(config, run);
    PlanComm comm = plan_comm(r, config, run);
    const bool offloaded = list->elements[PIECE_HOST] + list->elements[PIECE_VISIT] > 0;
    const bool in_place = run->accum == 1 && !offloaded && comm.stage < 2;  // as in gpt2_place()
    PlanTasks p;
    memset(&p, 0, sizeof p);
    p.host_rate = fmin(cores * pass, PLAN_UNLIMITED);
    p.room = PLAN_STEPS * (micros * S * 5 + 2 + list->count * 4);
    if (comm.on) p.room += PLAN_STEPS * (micros * S * 3 + S + 1);
    p.tasks = (PlanTask *)alloc_or_fail((size_t)p.room, sizeof(PlanTask), "plan");
    // per segment: elements whose gradient leaves; the tasks that end its update and its leaving
    double *leaves = (double *)alloc_or_fail((size_t)S, sizeof(double), "plan");
    int *updated = (int *)alloc_or_fail(5 * (size_t)S, sizeof(int), "plan");
    int *returned = updated + S, *arrived = returned + S, visits = 0;
    comm.updated = updated;
    comm.returned = returned;
    comm.ready = arrived + S;
    int *place = comm.ready + S;  // the task that must be complete before a place is used again
    for (int i = 0; i < list->count; i++) {
        const Piece *x = &list->pieces[i];
        visits += x->kind == PIECE_VISIT;
        if (!piece_grad_on_gpu(c, x)) leaves[x->segment] += (double)x->length;
    }
    const int slots = slots_of(c->slots, visits), places = places_of(c->places, L);
    int *slot = (int *)alloc_or_fail(2 * (size_t)slots + 1, sizeof(int), "plan");
    int *came = slot + slots;  // per slot: its last visitor has left, its next one is there
    int landing[2] = {NONE, NONE}, turn = 0;
    int flushed = NONE, sent = NONE, done = NONE;  // the last tasks of an update
    for (int s = 0; s < 5 * S; s++) updated[s] = NONE;
    for (int i = 0; i < slots; i++) slot[i] = NONE;

    for (int step = 0; step < PLAN_STEPS; step++) {
        PlanStep *mark = &steps[step];
        int visit = 0, compute = NONE, summed = NONE;
        for (int micro = 0; micro < micros; micro++) {
            const bool last = micro + 1 == micros;
            if (micro == 0 && run->no_overlap)  // the host waits, and queues nothing
                comm.since = compute = plan_add(&p, ROW_COMPUTE, "wait", 0, 0, flushed, sent, done);
            for (int s = 0; s < S; s++) {
                const double work = plan_forward(&flops, s, L);
                if (comm.on && comm.stage == 3) plan_weights(&p, &comm, s, 1, compute);
                const int to = comm.on ? comm.ready[s] : micro == 0 ? updated[s] : NONE;
                const int back = !comm.on && micro == 0 ? returned[s] : NONE;
                compute = plan_add(&p, ROW_COMPUTE, "forward", (size_t)s, work / gpu, to, back,
                                   NONE);
                if (s == 0) mark->forward[micro] = compute;
            }
            mark->tail[micro] = compute;
            for (int i = 0; last && i < list->count && visit < slots; i++) {  // they may come now
                const Piece *x = &list->pieces[i];
                if (x->kind != PIECE_VISIT) continue;
                came[visit] = plan_add(&p, ROW_FETCH, "fetch", (size_t)i,
                                       12 * (double)x->length, compute, slot[visit], NONE);
                visit++;
            }
            for (int s = S - 1; s >= 0; s--) {
                const double work = plan_backward(&flops, s, L);
                int *room = &place[plan_place(s, L, places)], weights = NONE;
                if (comm.on && comm.stage == 3 && s >= 1 && s <= L) {
                    plan_weights(&p, &comm, s, -1, compute);
                    weights = comm.ready[s];
                }
                compute = plan_add(&p, ROW_COMPUTE, "backward", (size_t)s, work / gpu, *room,
                                   weights, NONE);
                *room = mark->backward[micro] = compute;
                int complete = compute;
                if (comm.on)
                    complete = plan_comm_add(&p, &comm, "reduce", s,
                                             comm.gather[plan_kind(s, L)], compute, NONE, NONE);
                if (!in_place) *room = complete;
                const bool leave = leaves[s] > 0 && (!gpu_sums || last);
                if (leave) {
                    const double bytes = leaves[s] * (host_sums ? made : grad);
                    arrived[s] = plan_add(&p, ROW_LEAVE, "leave", (size_t)s, bytes, complete,
                                          host_sums ? landing[turn] : NONE, NONE);
                    if (!gpu_sums) *room = arrived[s];
                }
                if (leave && host_sums) {
                    summed = arrived[s] = plan_add(&p, ROW_HOST, "accumulate", (size_t)s,
                                                   leaves[s] * (8 + made), arrived[s], NONE, NONE);
                    landing[turn] = summed;
                    turn = 1 - turn;
                }
                if (run->no_overlap && (leave || comm.on))
                    compute = plan_add(&p, ROW_COMPUTE, "backward", (size_t)s, 0,
                                       leave ? arrived[s] : complete, NONE, NONE);
            }
        }
        if (comm.on)
            summed = plan_add(&p, ROW_COMM, "norm", 0, comm.norm, compute, summed, NONE);
        const int norm = plan_add(&p, ROW_COMPUTE, "norm", 0, 0, summed, NONE, NONE);
        mark->norm = norm;
        const int came_early = visit;
        visit = 0;
        for (int i = 0; i < list->count; i++) {
            const Piece *x = &list->pieces[i];
            const int s = x->segment;
            const size_t number = (size_t)i;
            const double length = (double)x->length;
            if (x->kind == PIECE_HOST) {
                const int new_weights = plan_add(&p, ROW_HOST, "update", number, length * pass,
                                                 norm, arrived[s], NONE);
                sent = returned[s] = plan_add(&p, ROW_BACK, "back", number, length * made,
                                              new_weights, NONE, NONE);
                continue;
            }
            int *const mine = x->kind == PIECE_VISIT ? &slot[visit % slots] : NULL;
            int fetched = mine != NULL ? came[visit % slots] : NONE;
            if (mine != NULL && (visit >= came_early || !c->keep_grads)) {
                const double bytes = (visit < came_early ? 0 : 12) + (c->keep_grads ? 0 : grad);
                fetched = came[visit % slots] = plan_add(&p, ROW_FETCH, "fetch", number,
                    length * bytes, norm, *mine, c->keep_grads ? NONE : arrived[s]);
            }
            done = updated[s] = plan_add(&p, ROW_UPDATE, "update", number, length / gpu_adam, norm,
                                         fetched, NONE);
            if (mine != NULL)
                flushed = *mine = plan_add(&p, ROW_FLUSH, "flush", number, 12 * length, done, NONE,
                                           NONE);
            visit += mine != NULL;
        }
        if (comm.on) plan_weights_changed(&p, &comm, norm);
        mark->end = p.count;
    }
    free(leaves);
    free(updated);
    free(slot);
    return p;
}

// ---------------------------------------------------------------------------------------------
// The prediction

// Draws tasks [first, end), from time `start` on.
static void plan_draw(TraceFile *trace, const PlanTask *t, int first, int end,
                             double start) {
    double last = start;
    for (int i = first; i < end; i++) {
        if (t[i].row == ROW_COMPUTE && t[i].begin > last)
            trace_span(trace, ROW_COMPUTE, "wait", TRACE_NONE, last - start, t[i].begin - start, 0);
        if (t[i].row == ROW_COMPUTE) last = t[i].end;
        if (t[i].end > t[i].begin)
            trace_span(trace, t[i].row, t[i].name, t[i].number, t[i].begin - start,
                       t[i].end - start, t[i].bytes);
    }
}

// One step of the trainer in its steady state: `list` is what offload_pieces() made of the table
// and *c. With a trace (open; NULL: none), an update, the step that follows it and that step's
// update are drawn there, from time 0. Never fails.
static Prediction plan_step(const Rates *r, const GPT2Config *config, const Pieces *list,
                                   const OffloadChoice *c, const PlanRun *run, TraceFile *trace) {
    PlanStep steps[PLAN_STEPS];
    PlanTasks p = plan_tasks(r, config, list, c, run, steps);
    plan_simulate(&p, r);
    const PlanTask *t = p.tasks;
    const PlanStep *before = &steps[PLAN_STEPS - 2], *mark = &steps[PLAN_STEPS - 1];
    const double start = t[before->norm].end;
    Prediction x;
    memset(&x, 0, sizeof x);

    // micro-batches that were left out are like the last but one
    const size_t micros = min_size(run->accum, PLAN_MICRO), more = run->accum - micros;
    for (size_t i = 0; i < micros; i++) {
        const double times = i + 2 == micros ? 1 + (double)more : 1;
        x.forward += times * (t[mark->tail[i]].end - t[mark->forward[i]].begin);
        x.backward += times * ((i + 1 == micros ? t[mark->norm].end : t[mark->forward[i + 1]].begin)
                               - t[mark->tail[i]].end);
    }
    x.step = t[mark->norm].end - start;
    if (more > 0)
        x.step += (double)more * (t[mark->backward[micros - 2]].end
                                  - t[mark->backward[micros - 3]].end);
    for (int i = before->norm; i < before->end; i++) x.update = fmax(x.update, t[i].end - start);

    x.compute = plan_compute(r, config, run);

    const double host = (double)list->elements[PIECE_HOST];
    const double visit = (double)list->elements[PIECE_VISIT], away = host + visit;
    const UpdateBytes bytes = plan_bytes(run, c);
    const double leaving = run->accum > 1 && c->sum_on_host
                         ? (double)(run->accum * run->stored) : bytes.grad;
    x.h2d_bytes = 12 * visit + (c->keep_grads ? 0 : bytes.grad * visit) + bytes.weight * host;
    x.d2h_bytes = 12 * visit + leaving * (double)list->grads_host;
    const PlanComm comm = plan_comm(r, config, run);
    plan_comm_total(&comm, run->accum, &x);
    const Rates other = plan_free_links(r);
    if (x.comm > 0)
        x.comm_exposed = fmax(0, x.step - plan_step(&other, config, list, c, run, NULL).step);
    x.bound = away * update_bound(r, &bytes, away > 0 ? visit / away : 0, x.limit);

    if (trace != NULL) plan_draw(trace, t, before->norm + 1, mark->end, start);
    free(p.tasks);
    return x;
}

// The line of a step of so many seconds, that would take `compute` if it never waited.
static void plan_print_speed(const Rates *r, const PlanRun *run, double step, double compute) {
    const size_t world = run->world > 1 ? run->world : 1;
    printf("  step %.4g, of which %.4g are not compute: %.0f tokens/s", step,
           fmax(step - compute, 0), (double)(run->B * run->T * run->accum * world) / step);
    if (r->gpu_flops > 0) printf(" at %.0f Tflop/s%s\n", 1e-12 * r->gpu_flops * compute / step,
                                 world > 1 ? " on each GPU" : "");
    else printf(", as if compute took no time: gpu_flops is not known\n");
}

// What goes on between several GPUs, and what that costs.
static void plan_print_comm(const Rates *r, const PlanRun *run, const Prediction *x) {
    if (run->world <= 1) return;
    const bool far = rates_local(r, run->world) < run->world;
    printf("  between %zu GPUs%s: %.4g, of which %.4g are not hidden; each gives %.4g GB of "
           "gradients and %.4g GB of weights to the others\n", run->world,
           far ? " of several nodes" : "", x->comm, x->comm_exposed, 1e-9 * x->reduced_bytes,
           1e-9 * x->gathered_bytes);
    if ((far ? r->node_link : r->gpu_link) <= 0)
        printf("  as if that took no time: %s is not known\n", far ? "node_link" : "gpu_link");
}

// For people: what a Prediction says, in lines.
static void plan_print_time(const Rates *r, const PlanRun *run, const Prediction *x) {
    printf("predicted time of a step, in seconds: forward %.4g, backward %.4g, update %.4g\n",
           x->forward, x->backward, x->update);
    if (x->bound > 0)
        printf("  the update's bound is %.4g (%s), %.0f %% of what it takes%s\n", x->bound,
               x->limit, 100 * x->bound / x->update,
               x->bound > x->update ? ": the first visitors come before it" : "");
    plan_print_speed(r, run, x->step, x->compute);
    if (x->h2d_bytes + x->d2h_bytes > 0)
        printf("  over the link: %.2f GB to the GPU, %.2f GB to the host\n", 1e-9 * x->h2d_bytes,
               1e-9 * x->d2h_bytes);
    plan_print_comm(r, run, x);
}

// ---------------------------------------------------------------------------------------------
// The choice

// Bytes of GPU and host memory that the trainer would take with this choice: its own memory plan.
typedef void (*OffloadNeeds)(void *model, const OffloadChoice *c, bool recompute, size_t *gpu,
                             size_t *host);

// What a choice has to fit into.
typedef struct {
    OffloadNeeds needs;
    void *model;             // for needs()
    size_t gpu, host;        // bytes that are there
    int recompute;           // RECOMPUTE_AUTO, or the one that it must be
    bool sums;               // gradients are summed, on the GPU or, if that is too small, the host
} OffloadMemory;

static bool choice_fits(const OffloadMemory *m, const OffloadChoice *c, bool recompute) {
    size_t gpu = 0, host = 0;
    m->needs(m->model, c, recompute, &gpu, &host);
    return gpu <= m->gpu && host <= m->host;
}

// The most of *n, a number in *c, in [low, high], with which *c fits: where none does, low. n NULL:
// of residents, in 256ths. The most is tried first: where all is resident, nothing needs slots.
static void choice_grow(const OffloadMemory *m, OffloadChoice *c, bool recompute, int *n, int low,
                        int high) {
    for (int middle = high;; middle = high - (high - low) / 2) {
        if (n != NULL) *n = middle;
        else c->resident = middle / 256.0;
        if (low == high) return;
        if (choice_fits(m, c, recompute)) low = middle;
        else high = middle - 1;
    }
}

// The largest share of residents with which *c fits on the GPU; -1: none does.
static double choice_residents(const OffloadMemory *m, OffloadChoice c, bool recompute) {
    OffloadMemory gpu = *m;
    gpu.host = SIZE_MAX;
    choice_grow(&gpu, &c, recompute, NULL, 0, 256);
    return c.resident > 0 || choice_fits(&gpu, &c, recompute) ? c.resident : -1;
}

// Uses what *c leaves of the GPU's memory: for places, and then for slots, if they are "auto". A
// byte of places spares backward a wait that some bytes of slots only shorten; but there is no such
// wait where gradients are summed on the GPU.
static void choice_fill(const OffloadMemory *m, OffloadChoice *c, bool recompute) {
    const bool leaves = c->mode == OFFLOAD_ZENFLOW || !m->sums || c->sum_on_host;
    if (c->places == 0 && c->mode != OFFLOAD_NONE && leaves)
        choice_grow(m, c, recompute, &c->places, LEAST_PLACES, 1000);
    if (c->slots == 0 && c->mode == OFFLOAD_INTERLEAVE)
        choice_grow(m, c, recompute, &c->slots, LEAST_SLOTS, 1000);
}

// Settles what only costs memory, or only costs time, of a choice whose mode is given: residents,
// if they are below 0; and, as far as it takes to fit, in this order: sums on the host, visitors'
// gradients that wait there, and recomputation. Then fills what is left. False: nothing fits, and
// what is in *c needs the least.
static bool choice_settle(const OffloadMemory *m, OffloadChoice *c, bool *recompute) {
    const bool any = c->resident < 0;
    for (int again = m->recompute == RECOMPUTE_BLOCK; again <= (m->recompute != RECOMPUTE_NONE);
         again++)
        for (int tight = 0; tight < 3; tight++) {
            *recompute = again;
            c->sum_on_host = tight > 0 && m->sums;
            c->keep_grads = tight < 2;
            if (any) c->resident = fmax(choice_residents(m, *c, again), 0);
            if (!choice_fits(m, c, again)) continue;
            choice_fill(m, c, again);
            return true;
        }
    return false;
}

typedef struct {
    const Rates *rates;
    const GPT2Config *config;
    const GPT2Table *table;
    const ShardMap *shards;
    OffloadMemory memory;
    PlanRun run;             // .recompute is settled here
    OffloadChoice choice;    // .subgroup and .wire_f32 are given; .slots and .places if not 0
    Prediction predicted;
    double none;             // seconds of a step with nothing offloaded; INFINITY: it does not fit
} OffloadSearch;

// Takes this choice, with as many residents as fit or none, and then as many places and slots, if
// its step is clearly shorter: what was tried before is simpler.
static void search_try(OffloadSearch *q, OffloadChoice c, bool recompute, bool residents) {
    if (residents) c.resident = choice_residents(&q->memory, c, recompute);
    if (c.mode == OFFLOAD_TWINFLOW && c.resident == 0) c.mode = OFFLOAD_ZERO;
    if (c.resident < 0 || !choice_fits(&q->memory, &c, recompute)) return;
    choice_fill(&q->memory, &c, recompute);
    PlanRun run = q->run;
    run.recompute = recompute;
    Pieces list = offload_pieces(q->table, q->shards, &c);
    const Prediction x = plan_step(q->rates, q->config, &list, &c, &run, NULL);
    pieces_free(&list);
    if (c.mode == OFFLOAD_NONE) q->none = fmin(q->none, x.step);
    if (x.step > 0.995 * q->predicted.step) return;
    q->choice = c;
    q->run = run;
    q->predicted = x;
}

// --offload auto: what plan_step() finds fastest among none, zero, twinflow, and interleave at
// shares around the best of rates.h, with and without recomputation, with the sums of gradients on
// either side, and those of visitors. False if nothing fits.
static bool offload_search(OffloadSearch *q) {
    static const double shares[] = {1, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5};  // times the best
    const int count = sizeof shares / sizeof *shares;
    const OffloadMemory *m = &q->memory;
    OffloadChoice c = q->choice;
    q->predicted.step = q->none = INFINITY;
    c.stride = 0;
    for (int again = m->recompute == RECOMPUTE_BLOCK; again <= (m->recompute != RECOMPUTE_NONE);
         again++)
        for (int sum = 0; sum <= (int)m->sums; sum++)
            for (int keep = 1; keep >= 0; keep--) {
                c.sum_on_host = sum;
                c.keep_grads = keep;
                const UpdateBytes bytes = plan_bytes(&q->run, &c);
                const double best = fmax(best_share(q->rates, &bytes), 0.05);
                for (int i = keep ? -2 : 0; i < count; i++) {  // visitors' gradients: of no other
                    c.mode = i == -2 ? OFFLOAD_NONE : i == -1 ? OFFLOAD_TWINFLOW
                                                              : OFFLOAD_INTERLEAVE;
                    c.share = i < 0 ? 0 : fmin(best * shares[i], 1);
                    c.resident = 0;
                    if (i > -2) search_try(q, c, again, true);
                    if (i > -2 || !sum) search_try(q, c, again, false);
                }
            }
    return q->predicted.step < INFINITY;
}

// For people: what was found, and why.
static void search_print(const OffloadSearch *q) {
    const OffloadChoice *c = &q->choice;
    printf("offload auto: %s%s, predicted %.3g s per step", offload_names[c->mode],
           q->run.recompute ? ", recomputing" : "", q->predicted.step);
    if (c->mode == OFFLOAD_INTERLEAVE)
        printf("; of what does not stay on the GPU, %.0f %% visits it", 100 * c->share);
    if (q->none == INFINITY) printf("; none does not fit");
    else if (c->mode != OFFLOAD_NONE) printf("; none takes %.3g s", q->none);
    printf("\n");
}

#endif
