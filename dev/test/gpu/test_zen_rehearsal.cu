// test_zen_rehearsal.cu: rehearsals of steps with importance-aware updates (zenflow.cuh) against the
// closed forms of doc/zenflow.md, and against what must be so on any machine. (Rehearsals against
// trainers on the emulated GPU's virtual clock: test_placement.cu.)
#include "model_harness.cuh"

// What is planned: a step, its window and columns, the sums on the host that there is room for, and
// the layers whose weights the host stores.
typedef struct { Step step; ZenConfig zen; int sums, streamed; } Plan;

// What a rehearsal says, and how large this rank's part of the model is: all of it, what is
// chosen, and what is not, of which so much in each layer.
typedef struct { Prediction t; double elements, chosen, rest, layer; } ZenTimes;

#define TAKES(a, b) CHECK(is_about(a, b, 1e-4), "%.9g s, not %.9g", (double)(a), (double)(b))

static const double stored = sizeof(floatX);  // bytes of a weight, and of a gradient

// One sequence of 1024.
static Plan plan_of(const char *model, double topk, size_t window, bool overlap, int sums) {
    const Plan p = {{model, 1, 1024, 1, 1, 0, false, false, NULL}, {topk, window, 0, 0, overlap},
                    sums, 0};
    return p;
}

static Trainer *plan_open(const Plan *p, OffloadChoice *c) {
    Step s = p->step;
    memset(c, 0, sizeof *c);
    c->mode = OFFLOAD_ZENFLOW;
    c->kept_grads = KEEP_ALL;
    c->grad_rooms = c->weight_rooms = LEAST_ROOMS;
    c->streamed = p->streamed;
    c->sum_on_host = p->sums == 1;  // only room for one
    s.zen = &p->zen;
    return trainer_open(&s);
}

static ZenTimes rehearse_plan(const Rates *r, const Plan *p) {
    OffloadChoice c;
    Trainer *x = plan_open(p, &c);
    const ZenMap *map = &x->g->zen->map;
    const ZenTimes t = {trainer_predict(x, r, &c, p->step.recompute), (double)map->elements,
                        (double)map->chosen, (double)map->rest, (double)map->segment[1].rest};
    trainer_close(x);
    return t;
}

// Nothing limits, but what a test sets.
static Rates unlimited(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    return r;
}

// Waits, as a share of the step.
static double stall_of(const Prediction *x) {
    return (x->stall_forward + x->stall_backward) / x->step;
}

// Bytes that a step's tokens have on their way in: they are all the same one.
static double uploaded(const Plan *p) {
    return (double)p->step.accum * 4 * (3.0 * (double)(p->step.B * p->step.T) + 2);
}

// ---------------------------------------------------------------------------------------------
// By hand

// What crosses the link in a step, in units of the model in bf16: all but the chosen columns' share
// of gradients, and of weights that share once in a window. A window that follows the gradients is
// planned for as if it had four steps.
static void the_traffic_is_as_published(void) {
    const double topk[] = {0, 0.05, 0.1, 0.5};
    const Rates r = unlimited();
    for (int i = 0; i < 4; i++)
        for (size_t S = 0; S <= 8; S = S > 0 ? 2 * S : 1) {
            const Plan p = plan_of("7b", topk[i], S, true, 2);
            const ZenTimes x = rehearse_plan(&r, &p);
            const double steps = S > 0 ? (double)S : 4;
            const double traffic = (x.t.h2d_bytes + x.t.d2h_bytes) / (stored * x.elements);
            ABOUT(traffic, (1 - topk[i]) * (1 + 1 / steps), 2e-3);
            IS(x.t.d2h_bytes, stored * x.rest);
            IS(x.t.h2d_bytes, stored * x.rest / steps);
            if (topk[i] == 0.1 && S == 4) ABOUT(traffic, 1.13, 5e-3);
        }
}

// Of host memory, per element of the rest and window of S steps: masters, m and v are read and
// written, gradients read, sums read (but for the first) and written.
static double host_bytes(size_t S, int sums) {
    const double steps = (double)S, update = 24;
    if (S == 1) return update + stored;
    return steps * stored + (sums == 2 ? 8 * steps : 8 * (steps - 1)) + update;
}

// With a link and a host that take no time, a step is its compute, and the GPU's update of the
// chosen, while tokens come; where all columns are, the host and the link have nothing else to do.
static void free_hosts_leave_compute(void) {
    Rates r = unlimited();
    r.gpu_flops = 1e14;
    r.gpu_adam = 1e9;
    for (int way = 0; way < 5; way++) {
        const bool all = way == 4;
        const Plan p = plan_of("gpt2", all ? 1 : 0.1, 4, way / 2, 1 + way % 2);
        if (all) r.h2d = r.d2h = r.host_adam = 1e6;
        const ZenTimes x = rehearse_plan(&r, &p);
        TAKES(x.t.step, x.t.compute + x.chosen / 1e9);
        CHECK((x.t.d2h_bytes == 0) == all && (x.t.h2d_bytes == 0) == all, "%g, %g",
              x.t.d2h_bytes, x.t.h2d_bytes);
    }
}

// One stream that never rests decides.
static void the_slowest_decides(void) {
    for (size_t S = 1; S <= 16; S += S < 4 ? 1 : 6)
        for (int sums = 1; sums <= 2; sums++) {
            const Plan p = plan_of("gpt2", 0.1, S, true, sums);
            const double steps = (double)S, bytes = host_bytes(S, sums);
            Rates r = unlimited();
            r.d2h = 1e9;
            ZenTimes x = rehearse_plan(&r, &p);
            const double R = x.rest;
            TAKES(x.t.step, stored * R / 1e9);
            CHECK(stall_of(&x.t) > 0.999, "%g", stall_of(&x.t));
            r = unlimited();
            r.host_adam = 1e9 / ADAM_BYTES;  // 1e9 bytes/s, of which the link needs none
            x = rehearse_plan(&r, &p);
            TAKES(x.t.step, bytes * R / steps / 1e9);
            CHECK(stall_of(&x.t) > 0.999, "%g", stall_of(&x.t));
            r = unlimited();
            r.h2d = 1e9;  // once in a window, and whoever waits for it waits for all of it
            x = rehearse_plan(&r, &p);
            TAKES(x.t.step, (stored * R / steps + uploaded(&p)) / 1e9);
            ABOUT(x.t.stall_forward, x.t.step, 0.01);
        }
    // if nothing may be late, it is the work of one sum; and a window of a thousand steps is as one
    // of 64, but for what crosses the link
    Rates r = unlimited();
    r.host_adam = 1e9 / ADAM_BYTES;
    Plan p = plan_of("gpt2", 0.1, 4, false, 1);
    ZenTimes x = rehearse_plan(&r, &p);
    TAKES(x.t.step, host_bytes(4, 1) * x.rest / 4 / 1e9);
    p = plan_of("gpt2", 0.1, 1000, true, 2);
    x = rehearse_plan(&r, &p);
    TAKES(x.t.step, host_bytes(64, 2) * x.rest / 64 / 1e9);
    IS(x.t.h2d_bytes, stored * x.rest / 1000);
}

// The rest of a layer that the host stores is copied twice a step, but for those in the ring when
// backward begins; the host also copies its newest weights, once in a window.
static void streamed_layers_bring_their_rest(void) {
    Plan p = plan_of("gpt2", 0.1, 4, true, 1);
    p.streamed = 12;
    Rates r = unlimited();
    r.h2d = 1e9;
    ZenTimes x = rehearse_plan(&r, &p);
    const double others = x.rest - 12 * x.layer;
    IS(x.t.h2d_bytes, stored * ((2 * 12 - LEAST_ROOMS) * x.layer + others / 4));
    IS(x.t.d2h_bytes, stored * x.rest);
    ABOUT(x.t.step, (x.t.h2d_bytes + uploaded(&p)) / 1e9, 0.01);
    r = unlimited();
    r.host_adam = 1e9 / ADAM_BYTES;
    x = rehearse_plan(&r, &p);
    TAKES(x.t.step, (host_bytes(4, 1) * x.rest + 2 * stored * 12 * x.layer) / 4 / 1e9);
}

// ---------------------------------------------------------------------------------------------
// On any machine

static Plan plan_drawn(size_t window) {
    const bool overlap = draw(2) == 0;
    return plan_of("d6", 0.1, window, overlap, 1 + (int)draw(2));
}

// Link and host take times of the order of compute.
static void rates_drawn(Rates *r, const ZenTimes *x) {
    r->d2h = stored * x->rest / x->t.compute * log_draw(0.3, 10);
    r->h2d = stored * x->rest / x->t.compute * log_draw(0.1, 5);
    r->host_adam = x->rest / x->t.compute * log_draw(0.1, 5);
}

// Several GPUs. Where host and link take no time, a step is one with all state on the GPU. If
// collectives take none, it is as if one GPU had a host as many times as fast. (What is exposed of
// collectives: test_plan.cu.)
static void several_gpus_wait_for_each_other(void) {
    for (int i = 0; i < (test_whole() ? 300 : 24); i++) {
        Plan p = plan_drawn(1 + draw(5));
        p.step.accum = 1 + (draw(3) == 0) * draw(6);
        p.step.world = 2 + draw(7);
        p.step.zero = 1 + (int)draw(2);
        p.step.no_overlap = draw(8) == 0;
        Rates r = unlimited();
        r.gpu_flops = 1e13;
        r.gpu_adam = 1e30;
        ZenTimes x = rehearse_plan(&r, &p);
        r.gpu_link = 4 * x.rest * (double)p.step.world / x.t.compute * log_draw(0.3, 10);
        r.gpu_latency = 1e-6 * (double)draw(3);
        x = rehearse_plan(&r, &p);
        Step s = p.step;
        s.zero = 2;  // as ZenFlow, it has places for two layers' gradients
        OffloadChoice none;
        memset(&none, 0, sizeof none);
        none.mode = OFFLOAD_NONE;
        none.kept_grads = KEEP_ALL;
        Trainer *all = trainer_open(&s);
        const Prediction y = trainer_predict(all, &r, &none, KEEP);
        trainer_close(all);
        // All weights are gathered once in a window, and else those of the chosen columns.
        const double S = p.zen.window > 0 ? fmin((double)p.zen.window, ZEN_PLANNED_MOST) : 4;
        const double share = (1 + (S - 1) * x.chosen / x.elements) / S;
        const double less = y.gathered_bytes - x.t.gathered_bytes;
        ABOUT(x.t.reduced_bytes, y.reduced_bytes, 1e-3);  // without gaps between the parts
        ABOUT(x.t.gathered_bytes, y.gathered_bytes * share, 1e-2);
        ABOUT(x.t.comm, y.comm - less / r.gpu_link, 1e-3);
        if (!p.step.no_overlap)  // which waits for what leaves, here
            CHECK(x.t.step <= y.step * 1.001 && (S > 1 || x.t.step >= y.step * .999), "%d: %g, %g",
                  i, x.t.step, y.step);
        CHECK(x.t.step >= x.t.comm * (1 - 1e-9), "%d: %g of %g", i, x.t.step, x.t.comm);

        rates_drawn(&r, &x);
        r.gpu_link = r.gpu_latency = 0;  // not known
        const double free_of_it = rehearse_plan(&r, &p).t.step;
        r.d2h *= (double)p.step.world;
        r.h2d *= (double)p.step.world;
        r.host_adam *= (double)p.step.world;
        p.step.world = 1;
        const Prediction alone = rehearse_plan(&r, &p).t;
        ABOUT(free_of_it, alone.step, 0.02);  // parts are of whole rows
        CHECK(alone.comm == 0 && alone.comm_exposed == 0, "%g", alone.comm);
    }
}

int main(int, char **) {
    RUN(the_traffic_is_as_published);
    RUN(free_hosts_leave_compute);
    RUN(the_slowest_decides);
    RUN(streamed_layers_bring_their_rest);
    RUN(several_gpus_wait_for_each_other);
    return test_summary();
}
