// zen_plan.h: how long a step with importance-aware updates takes, before it is taken: the copies,
// sums, updates and waits of zenflow.cuh, run through the machine of plan.h. No CUDA here.
// doc/zenflow.md is the lesson.
//
//   zen_plan_step    predicts a step
//   zen_plan_print   says it
//
// What is queued is what zenflow.cuh queues, window after window, until one is like the other:
//   - gradients: those of the rest leave, layer by layer, when they are complete and the host has
//     added those of the step before to the window's sum; two layers' may wait for that, packed, on
//     the GPU; then backward waits, too;
//   - the host, behind the norm: the sum (in bf16, 2 + 8 bytes of host memory per element; 2 + 4 at
//     a window's first step), and the update (24 for p, m and v, 2 for the new weight, 4 for the
//     sum): with two sums some of it behind each step until it shows; with one, all at once, with
//     the window's last gradient (2) in the same pass;
//   - what shows goes to the GPU, in the order of the next forward pass;
//   - between several GPUs, each of which has some rows of every matrix: each gradient is reduced
//     before it leaves, and behind the update of what is chosen, and what shows, all weights are
//     gathered.
// Left out, as in plan.h: what packing, norms and sums of columns need of the GPU's memory; and
// that the norm's few bytes may wait behind a gradient on its way. Nor are selections here, which
// end a window that is not hidden.
//
// In closed form, for R elements of the rest, windows of S steps, and W bytes/s of host memory, a
// step takes at least as long as the longest of
//     compute
//     the link:     2 R bytes out, and 2 R / S in, which is (1 - k) (1 + 1 / S) of the model
//     host memory:  (10 S + 26) R / (S W) with two sums, (10 S + 18) R / (S W) with one
//                   and what crosses the link, once more
#ifndef TIDE_ZEN_PLAN_H
#define TIDE_ZEN_PLAN_H
#include "plan.h"
#include "../zenflow.h"

typedef struct {
    PlanRun run;
    size_t window;    // steps; 0: it follows the gradients, and is taken to be PLAN_AUTO_WINDOW
    bool overlap;     // the rest's update shows one window late
    int sums;         // as in zenflow.cuh
    int places;       // in which the layers' gradients are made, in turns, at least LEAST_PLACES
} ZenPlan;

enum {
    PLAN_WINDOWS = 6,        // and as many as 32 steps make, until one is like the other
    PLAN_COUNTED = 2,        // of these, the last; they may take turns
    PLAN_WINDOW_MOST = 64,   // steps: a longer window is as one of so many, but for its bytes
    PLAN_AUTO_WINDOW = 4
};

// ---------------------------------------------------------------------------------------------
// The order of work

typedef struct {
    PlanTasks tasks;
    const ZenMap *map;
    const ZenPlan *plan;
    PlanFlops flops;
    double gpu, gpu_adam;    // per second
    double made;             // bytes of a gradient and of a weight, on the GPU and on the link
    int L, segments, places;
    size_t steps;            // of a window
    PlanComm comm;
    int *updated, *returned, *arrived, *ring_free, *computed, *result_free;  // (segments): tasks
    int *place, *reduced;    // (segments): what a place waits for, and for what else
    int packed, leaving[2];  // the last copies out, the newest last
    int last[ROWS];          // of each row
    bool late;               // an update has begun that is to show
    int queued;              // segments of it that the host has been given
    size_t due;              // elements of it that it should have been given
} ZenSim;

static int zen_plan_add(ZenSim *x, int row, const char *name, int s, double work, int a, int b,
                        int c) {
    return x->last[row] = plan_add(&x->tasks, row, name, (size_t)s, work, a, b, c);
}

// The result of the rest's last update goes to the GPU.
static void zen_plan_show(ZenSim *x, int norm) {
    for (int s = 0; s < x->segments; s++) {
        const double n = (double)x->map->segment[s].rest;
        if (n == 0) continue;
        x->returned[s] = x->result_free[s] =
            zen_plan_add(x, ROW_BACK, "back", s, n * x->made, x->computed[s], norm, PLAN_NOTHING);
    }
}

// The host is given segments of an update whose gradients are in a sum of their own, until it has
// had so many elements.
static void zen_plan_compute(ZenSim *x, size_t due, int norm) {
    const double bytes = 24 + 4 + (x->made < 4 ? x->made : 0);
    for (; x->queued < x->segments && x->map->segment[x->queued].rest_at < due; x->queued++) {
        const int s = x->queued;
        const double n = (double)x->map->segment[s].rest;
        if (n == 0) continue;
        x->computed[s] = zen_plan_add(x, ROW_HOST, "update", s, n * bytes, norm,
                                      x->result_free[s], PLAN_NOTHING);
    }
}

// Backward comes to segment s; the gradient is summed over the ranks. Returns the task that has
// completed it.
static int zen_plan_backward(ZenSim *x, int s) {
    const int place = plan_place(s, x->L, x->places);
    const int made = zen_plan_add(x, ROW_COMPUTE, "backward", s,
                                  plan_backward(&x->flops, s, x->L) / x->gpu, x->place[place],
                                  x->reduced[place], PLAN_NOTHING);
    if (!x->comm.on) return made;
    const double seconds = x->comm.gather[plan_kind(s, x->L)];
    return x->reduced[place] = zen_plan_add(x, ROW_COMM, "reduce", s, seconds, made, PLAN_NOTHING,
                                            PLAN_NOTHING);
}

// Step `step` of a window. Returns its norm.
static int zen_plan_one(ZenSim *x, size_t step) {
    enum { NONE = PLAN_NOTHING };
    const PlanRun *run = &x->plan->run;
    const ZenSegment *part = x->map->segment;
    const int L = x->L, S = x->segments;
    const bool first = step == 0, last = step + 1 == x->steps;
    const bool drains = last && !x->plan->overlap;
    const double forward = (double)L * x->flops.layer + x->flops.head;
    const double whole = 3 * forward + (double)(L - 1) * x->flops.again;
    for (int s = 0; s < S; s++)
        zen_plan_add(x, ROW_COMPUTE, "forward", s, plan_forward(&x->flops, s, L) / x->gpu,
                     x->comm.on ? x->comm.ready[s] : x->updated[s],
                     x->comm.on ? NONE : x->returned[s], NONE);
    for (int s = S - 1; run->accum > 1 && s >= 0; s--)  // of the first micro-batch
        zen_plan_backward(x, s);
    if (run->accum > 1)  // up to the last's forward pass
        zen_plan_add(x, ROW_COMPUTE, "forward", 0, ((double)(run->accum - 2) * whole + forward)
                                                   / x->gpu, NONE, NONE, NONE);
    if (run->accum > 2 && x->comm.on)
        zen_plan_add(x, ROW_COMM, "reduce", 0, (double)(run->accum - 2) * x->comm.all_reduced, NONE,
                     NONE, NONE);
    for (int s = S - 1; s >= 0; s--) {
        int *room = &x->place[plan_place(s, L, x->places)];
        const int made = zen_plan_backward(x, s);
        const double n = (double)part[s].rest;
        if (n > 0) {
            x->packed = x->leaving[0];  // it is packed when the copy two before it has gone
            x->leaving[0] = x->leaving[1];
            x->leaving[1] = x->arrived[s] = zen_plan_add(x, ROW_LEAVE, "leave", s, n * x->made,
                                                         made, x->ring_free[s], NONE);
        }
        *room = n > 0 ? x->packed : NONE;
        if (run->no_overlap && n > 0)
            zen_plan_add(x, ROW_COMPUTE, "backward", s, 0, x->arrived[s], NONE, NONE);
    }
    const int all = x->last[ROW_COMPUTE];
    const int exchange = x->comm.on ? zen_plan_add(x, ROW_COMM, "norm", 0, x->comm.norm, all, NONE,
                                                   NONE) : NONE;
    const int norm = zen_plan_add(x, ROW_COMPUTE, "norm", 0, 0, exchange, NONE, NONE);

    for (int s = 0; s < S; s++)
        x->updated[s] = zen_plan_add(x, ROW_UPDATE, "update", s,
                                     (double)part[s].chosen / x->gpu_adam, norm, NONE, NONE);
    const bool one_pass = last && (drains || x->plan->sums < 2);
    for (int s = S - 1; !one_pass && s >= 0; s--)
        if (part[s].rest > 0)
            x->ring_free[s] = zen_plan_add(x, ROW_HOST, "accumulate", s,
                                           (double)part[s].rest * (x->made + (first ? 4 : 8)), norm,
                                           x->arrived[s], NONE);
    if (last && x->late) {
        zen_plan_compute(x, SIZE_MAX, norm);
        zen_plan_show(x, norm);
    }
    if (last) {
        x->late = !drains;
        x->queued = one_pass ? S : 0;
        x->due = 0;
        const double bytes = 24 + x->made + (first ? 0 : 4) + (x->made < 4 ? x->made : 0);
        for (int i = 0, s; one_pass && i < S; i++)
            if (part[s = drains ? i : S - 1 - i].rest > 0)
                x->computed[s] = x->ring_free[s] =
                    zen_plan_add(x, ROW_HOST, "update", s, (double)part[s].rest * bytes, norm,
                                 x->arrived[s], x->result_free[s]);
        if (drains) zen_plan_show(x, norm);
    }
    x->due += x->map->rest / x->steps + 1;
    zen_plan_compute(x, run->no_overlap ? SIZE_MAX : x->due, norm);
    for (int s = 0; x->comm.on && s < S; s++) plan_gather(&x->tasks, &x->comm, s, norm);
    if (run->no_overlap)  // the GPU's own it would have to share its time with anyway
        zen_plan_add(x, ROW_COMPUTE, "forward", 0, 0, x->last[ROW_HOST], x->last[ROW_BACK], NONE);
    return norm;
}

// ---------------------------------------------------------------------------------------------
// The prediction

static size_t zen_plan_window(const ZenPlan *p) {
    return p->window > 0 ? p->window : (size_t)PLAN_AUTO_WINDOW;
}

// A step of the trainer in its steady state, of the columns of *map: the mean over a window. With a
// trace (open; NULL: none), a window is drawn there, from the norm before it on. Never fails.
static Prediction zen_plan_step(const Rates *r, const GPT2Config *config, const ZenMap *map,
                                   const ZenPlan *p, TraceFile *trace) {
    Prediction x;
    ZenSim sim, *m = &sim;
    memset(&x, 0, sizeof x);
    memset(m, 0, sizeof *m);
    const size_t n = min_size(zen_plan_window(p), PLAN_WINDOW_MOST);
    const size_t steps = PLAN_WINDOWS * n + 32 / n * n;
    m->map = map;
    m->plan = p;
    m->flops = plan_flops(config, &p->run);
    m->gpu = rate_or(r->gpu_flops, PLAN_UNLIMITED);
    m->gpu_adam = rate_or(r->gpu_adam, PLAN_UNLIMITED);
    m->made = (double)p->run.stored;
    m->L = (int)config->layers;
    m->places = places_of(p->places, m->L);
    m->segments = map->segments;
    m->steps = n;
    m->queued = m->segments;
    m->comm = plan_comm(r, config, &p->run);
    m->tasks.host_rate = fmin(28 * rate_or(r->host_adam, PLAN_UNLIMITED), PLAN_UNLIMITED);
    m->tasks.room = (int)(steps * ((m->comm.on ? 12 : 9) * (size_t)m->segments + 5));
    m->tasks.tasks = (PlanTask *)alloc_or_fail((size_t)m->tasks.room, sizeof(PlanTask), "plan");
    int **const each[] = {&m->updated, &m->returned, &m->arrived, &m->ring_free, &m->computed,
                          &m->result_free, &m->comm.ready, &m->place, &m->reduced};
    enum { EACH = sizeof each / sizeof *each };
    const size_t rows = (size_t)m->segments;
    int *marks = (int *)alloc_or_fail(EACH * rows, sizeof(int), "plan");
    for (size_t i = 0; i < EACH * rows; i++) marks[i] = PLAN_NOTHING;
    for (size_t i = 0; i < EACH; i++) *each[i] = marks + i * rows;
    m->comm.updated = m->updated;
    m->comm.returned = m->returned;
    for (int i = 0; i < ROWS; i++) m->last[i] = PLAN_NOTHING;
    m->packed = m->leaving[0] = m->leaving[1] = PLAN_NOTHING;

    int norm[PLAN_WINDOWS * PLAN_WINDOW_MOST + 32];
    for (size_t i = 0; i < steps; i++) norm[i] = zen_plan_one(m, i % n);
    plan_simulate(&m->tasks, r);

    const PlanTask *t = m->tasks.tasks;
    const double counted = (double)(PLAN_COUNTED * n);
    const int begin = norm[steps - PLAN_COUNTED * n - 1], end = norm[steps - 1];
    x.step = (t[end].end - t[begin].end) / counted;
    double before = t[begin].end;
    for (int k = begin + 1; k <= end; k++) {
        if (t[k].row != ROW_COMPUTE) continue;
        const double waited = (t[k].begin - before) / counted;
        if (strcmp(t[k].name, "forward") == 0) x.stall_forward += waited;
        else x.stall_backward += waited;
        before = t[k].end;
    }
    const int last = norm[steps - n - 1];
    if (trace != NULL) plan_draw(trace, t, last + 1, m->tasks.count, t[last].end);
    x.compute = plan_compute(r, config, &p->run);
    x.d2h_bytes = (double)(map->rest * p->run.stored);
    x.h2d_bytes = x.d2h_bytes / (double)zen_plan_window(p);
    plan_comm_total(&m->comm, p->run.accum, &x);
    const Rates other = plan_free_links(r);
    if (x.comm > 0)
        x.comm_exposed = fmax(0, x.step - zen_plan_step(&other, config, map, p, NULL).step);
    free(m->tasks.tasks);
    free(marks);
    return x;
}

// For people: what zen_plan_step() says, in lines.
static void zen_plan_print(const Rates *r, const ZenMap *map, const ZenPlan *p,
                           const Prediction *x) {
    const double model = 2 * (double)map->elements;
    const double stall = (x->stall_forward + x->stall_backward) / x->step;
    printf("predicted time of a step, in seconds, the mean over a window of %zu: forward waits "
           "%.4g, backward %.4g", zen_plan_window(p), x->stall_forward, x->stall_backward);
    if (stall < 0.01) printf(": hidden\n");
    else printf(": %.0f %%\n", 100 * stall);
    plan_print_speed(r, &p->run, x->step, x->compute);
    printf("  over the link: %.2f GB to the GPU, %.2f GB to the host, %.2f times %s in bf16\n",
           1e-9 * x->h2d_bytes, 1e-9 * x->d2h_bytes, (x->h2d_bytes + x->d2h_bytes) / model,
           p->run.world > 1 ? "its part of the model" : "the model");
    plan_print_comm(r, &p->run, x);
}

#endif
