// test_zen_rehearsal.cu: rehearsals of steps with importance-aware updates (zenflow.cuh) against
// the closed forms of doc/zenflow.md. (How long a real step takes, on the emulated GPU's virtual
// clock: test_zenflow_gpu.cu; what is exposed of collectives: test_plan.cu.)
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

// Bytes of host memory, per element of the rest and window of S steps: masters, m and v are read
// and written, gradients read, sums read (but for the first) and written.
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

// Where one stream never rests, it decides: all but the chosen columns' share of gradients leaves,
// and of weights that share comes once in a window. Here the host's memory gives 1e9 bytes/s.
static void the_slowest_decides(void) {
    Rates out = unlimited(), host = out, in = out;
    out.d2h = in.h2d = 1e9;
    host.host_adam = 1e9 / ADAM_BYTES;
    for (size_t S = 1; S <= 16; S += S < 4 ? 1 : 6)
        for (int sums = 1; sums <= 2; sums++) {
            const Plan p = plan_of("gpt2", 0.1, S, true, sums);
            const double steps = (double)S;
            ZenTimes x = rehearse_plan(&out, &p);
            const double R = x.rest;
            ABOUT(R, 0.9 * x.elements, 2e-3);
            IS(x.t.d2h_bytes, stored * R);
            IS(x.t.h2d_bytes, stored * R / steps);
            TAKES(x.t.step, stored * R / 1e9);
            CHECK(stall_of(&x.t) > 0.999, "%g", stall_of(&x.t));
            x = rehearse_plan(&host, &p);
            TAKES(x.t.step, host_bytes(S, sums) * R / steps / 1e9);
            CHECK(stall_of(&x.t) > 0.999, "%g", stall_of(&x.t));
            x = rehearse_plan(&in, &p);  // whoever waits for the weights waits for all of them
            TAKES(x.t.step, (stored * R / steps + uploaded(&p)) / 1e9);
            ABOUT(x.t.stall_forward, x.t.step, 0.01);
        }
    // if nothing may be late, it is the work of one sum; a window that follows the gradients is
    // planned for as one of four steps; and one of a thousand steps is as one of 64, but for what
    // crosses the link
    Plan p = plan_of("gpt2", 0.1, 4, false, 1);
    ZenTimes x = rehearse_plan(&host, &p);
    TAKES(x.t.step, host_bytes(4, 1) * x.rest / 4 / 1e9);
    p = plan_of("gpt2", 0.1, 0, true, 2);
    IS(rehearse_plan(&host, &p).t.h2d_bytes, stored * x.rest / 4);
    p = plan_of("gpt2", 0.1, 1000, true, 2);
    x = rehearse_plan(&host, &p);
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

// Gradients go around in every step; all weights are gathered once in a window, and else those of
// the chosen columns. If collectives take no time, it is as if one GPU had a host as much faster.
static void several_gpus_gather_the_chosen(void) {
    for (size_t S = 1; S <= 4; S += 3) {
        Plan p = plan_of("d6", 0.1, S, true, 2);
        p.step.world = 4;
        p.step.zero = 2;
        Rates r = unlimited();
        r.gpu_flops = 1e13;
        r.host_adam = 1e8;
        const ZenTimes x = rehearse_plan(&r, &p);
        const double steps = (double)S, all = 3 * x.elements * stored;  // a GPU has a fourth
        ABOUT(x.t.reduced_bytes, all, 0.01);
        ABOUT(x.t.gathered_bytes, all * (1 + (steps - 1) * 0.1) / steps, 0.01);
        r.host_adam *= 4;
        p.step.world = 1;
        const Prediction alone = rehearse_plan(&r, &p).t;
        ABOUT(x.t.step, alone.step, 0.02);  // parts are of whole rows
        CHECK(x.t.comm == 0 && alone.comm == 0, "%g, %g", x.t.comm, alone.comm);
    }
}

int main(int, char **) {
    RUN(free_hosts_leave_compute);
    RUN(the_slowest_decides);
    RUN(streamed_layers_bring_their_rest);
    RUN(several_gpus_gather_the_chosen);
    return test_summary();
}
