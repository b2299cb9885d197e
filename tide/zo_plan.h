// zo_plan.h: how long a step of zeroth-order training takes, in memory and with layers that live on
// the host, before it is taken: its copies, kernels and waits, run through the machine of plan.h.
// No CUDA here. doc/performance_model.md is the lesson.
//
// Per layer, four groups of tensors: ln_1 and qkv; the projection and ln_2; fc; fcproj. Of a
// streamed layer, each group is copied to a slot on the GPU. A kernel reads it, adds the updates
// that are due, stores it again, and writes two perturbed copies, with which the products of both
// signs are made; once stored, the group goes back to the host while they are made. Its place in
// the slot is free when the last direction's kernel has read it and it has left.
//
// In closed form, for a layer of P weights of b bytes, n tokens per pass, q directions, a GPU of
// F flop/s and M bytes/s, B bytes/s each way, and without attention and head: products take
// 4 P n q / F; kernels q (b + 2 b') P / M, and b P / M to store (b': bytes in products); copies
// b P / B. Copies are hidden if they take no longer than the others; where M is no limit, from
//     n = b F / (4 q B)      tokens on, whatever the model                (zo_hidden_from())
// Below that, a step takes about b P / B per streamed layer.
#ifndef TIDE_ZO_PLAN_H
#define TIDE_ZO_PLAN_H
#include "plan.h"
#include "../zo.h"

typedef struct {
    PlanRun run;                  // several GPUs have a replica each; the few numbers that they
                                  // exchange take no time here
    size_t queries;               // directions per step
    int slots;                    // streamed layers that have room on the GPU, at least 1
    size_t streamed;              // layers that live on the host, spread evenly; 0: none
    bool no_slots;                // a layer's place is freed and allocated at each visit
    bool no_fused_update;         // all layers visit once more, to be updated, after the losses
    int noise;                    // ZO_GAUSSIAN; or ZO_RADEMACHER, which costs nothing here
    bool labels;                  // the head has a few rows: its cost is left out
    bool no_prefetch;             // of another system: a layer comes only in the pass that needs it
} ZoPlan;

typedef struct {
    double step;             // seconds; of these:
    double compute;          // products, attention, head
    double perturb;          // kernels that update and perturb
    double upload, offload;  // what the copies of each way would take, both ways busy
    double head;             // part of compute
    double exposed;          // step - compute - perturb
    bool hidden;             // less than a hundredth is exposed
    const char *limit;       // "compute"; or what takes longer: "upload", "offload", "link" (both)
    double hidden_from;      // tokens per pass from which the link is hidden; INFINITY: never
} ZoPrediction;

enum { PLAN_GROUPS = 4, PLAN_ZO_STEPS = 9, PLAN_ZO_MICRO = 4 };
enum { PLAN_PRODUCTS, PLAN_HEAD, PLAN_KERNEL, PLAN_FETCH, PLAN_FLUSH, PLAN_ALLOCATE, PLAN_KINDS };

// Of each group: weights, and floating-point operations per token, of one sign.
static void zo_plan_groups(const GPT2Config *c, const ZoPlan *p, double weights[PLAN_GROUPS],
                                  double flops[PLAN_GROUPS]) {
    const double C = (double)c->channels, F = (double)c->ffn, T = (double)p->run.T;
    weights[0] = 3 * C * C + 5 * C;
    weights[1] = C * C + 3 * C;
    weights[2] = C * F + F;
    weights[3] = C * F + C;
    flops[0] = 6 * C * C + 2 * C * T;  // with attention, half of whose pairs are masked
    flops[1] = 2 * C * C;
    flops[2] = flops[3] = 2 * C * F;
}

// Seconds of a kernel over n weights: what its bytes take, or its noise, if that takes longer.
static double zo_plan_kernel(const Rates *r, const ZoPlan *p, double n, bool store,
                                    bool perturb, double draws) {
    const double bytes = (double)p->run.stored * (1 + store + (perturb ? 2 : 0));
    const double noise = p->noise == ZO_GAUSSIAN ? draws : 0;
    return n * fmax(bytes / rate_or(r->gpu_bytes, PLAN_UNLIMITED),
                    noise / rate_or(r->gpu_normals, PLAN_UNLIMITED));
}

// Bytes per second of each way of the link while both are busy.
static void zo_plan_link(const Rates *r, double *in, double *out) {
    bool busy[ROWS] = {false};
    double speed[ROWS];
    PlanTasks none;
    memset(&none, 0, sizeof none);
    busy[ROW_FETCH] = busy[ROW_LEAVE] = true;
    plan_speeds(&none, r, busy, speed);
    *in = speed[ROW_FETCH];
    *out = speed[ROW_LEAVE];
}

// Tokens per pass from which the streamed layers take no longer on the link than all layers do on
// the GPU, in a pass that stores.
static double zo_hidden_from(const Rates *r, const GPT2Config *c, const ZoPlan *p) {
    double weights[PLAN_GROUPS], flops[PLAN_GROUPS], in, out, P = 0, f = 0;
    zo_plan_groups(c, p, weights, flops);
    zo_plan_link(r, &in, &out);
    for (int g = 0; g < PLAN_GROUPS; g++) {
        P += weights[g];
        f += flops[g];
    }
    const double q = (double)p->queries;
    const double part = (double)p->streamed / (double)c->layers;
    const double link = part * P * (double)p->run.stored / fmin(in, out);
    const double gpu = zo_plan_kernel(r, p, P, true, true, 1 + q)
                     + (q - 1) * zo_plan_kernel(r, p, P, false, true, 1);
    if (p->streamed == 0) return 0;
    if (p->run.no_overlap || p->no_slots || p->no_fused_update) return INFINITY;
    return link > gpu ? (link - gpu) * rate_or(r->gpu_flops, INFINITY) / (2 * q * f) : 0;
}

// ---------------------------------------------------------------------------------------------
// The order of work

typedef struct {
    PlanTasks tasks;
    const Rates *rates;
    const GPT2Config *config;
    const ZoPlan *plan;
    double weights[PLAN_GROUPS], products[PLAN_GROUPS];  // products: seconds, of both signs
    int *there, *used, *left;  // (slots, groups): the last copy in, kernel, and copy out
    size_t visits, fetched;    // layers that have visited, and copies in that are queued
    int last, fetch, flush, compute;  // the last task of all, and of each stream
    int tail;                  // the last of a pass that the GPU works on
} ZoSim;

static int zo_plan_add(ZoSim *s, int kind, double work, int a, int b, int c) {
    static const char *const names[PLAN_KINDS] = {"products", "head", "perturb", "fetch", "flush",
                                                  "allocate"};
    const int row = kind == PLAN_FETCH ? ROW_FETCH : kind == PLAN_FLUSH ? ROW_FLUSH : ROW_COMPUTE;
    if (s->plan->run.no_overlap) a = s->last;
    s->last = plan_add(&s->tasks, row, names[kind], (size_t)kind, work, a, b, c);
    return *(row == ROW_FETCH ? &s->fetch : row == ROW_FLUSH ? &s->flush : &s->compute) = s->last;
}

// The next visitor's way in. after: what it waits for besides its slot.
static void zo_plan_fetch(ZoSim *s, int after) {
    const ZoPlan *p = s->plan;
    const size_t slot = s->fetched++ % (size_t)p->slots * PLAN_GROUPS;
    if (p->no_slots)  // to free memory, CUDA waits for all that was queued
        after = zo_plan_add(s, PLAN_ALLOCATE, 0, s->fetch, s->flush, after);
    for (size_t i = slot; i < slot + PLAN_GROUPS; i++) {
        s->there[i] = zo_plan_add(s, PLAN_FETCH, s->weights[i - slot] * (double)p->run.stored,
                                  s->used[i], s->left[i], after);
        after = PLAN_NOTHING;
    }
}

// One pass over all layers. With perturb: forward with both signs of all directions, up to the
// losses; without: only an update. With store, it updates, and what is updated goes home.
static void zo_plan_pass(ZoSim *s, bool perturb, bool store) {
    enum { NONE = PLAN_NOTHING };
    const ZoPlan *p = s->plan;
    const GPT2Config *c = s->config;
    const Rates *r = s->rates;
    const size_t L = c->layers, stay = L - p->streamed, queries = perturb ? p->queries : 1;
    const size_t end = s->visits + p->streamed, ahead = (size_t)p->slots;
    const double C = (double)c->channels, V = (double)c->vocab_padded, q = (double)p->queries;
    const double draws = store ? q : 0;  // noise per weight for the update
    const double embeddings = V * C * (c->tied ? 1 : 2) + (double)c->context * C;
    if (store)
        zo_plan_add(s, PLAN_KERNEL, zo_plan_kernel(r, p, embeddings, true, false, draws), NONE,
                    NONE, NONE);
    for (size_t l = 0; l < L; l++) {
        const bool away = (l + 1) * stay / L == l * stay / L;
        const size_t slot = s->visits % ahead * PLAN_GROUPS;
        if (away && s->fetched == s->visits) zo_plan_fetch(s, p->no_prefetch ? s->tail : NONE);
        for (size_t j = 0; j < queries; j++) {
            const bool middle = j > 0 && j + 1 < queries;
            if (middle && j > 1) continue;  // all but the first and the last at once
            const double times = middle ? (double)(queries - 2) : 1;
            for (size_t g = 0; g < PLAN_GROUPS; g++) {
                const double seconds = zo_plan_kernel(r, p, s->weights[g], store && j == 0, perturb,
                                                      j == 0 ? draws + perturb : 1);
                const int kernel = zo_plan_add(s, PLAN_KERNEL, times * seconds,
                                               away ? s->there[slot + g] : NONE, NONE, NONE);
                if (perturb)
                    zo_plan_add(s, PLAN_PRODUCTS, times * s->products[g], NONE, NONE, NONE);
                if (!away) continue;
                s->used[slot + g] = kernel;
                if (store && j == 0)
                    s->left[slot + g] = zo_plan_add(s, PLAN_FLUSH, s->weights[g]
                        * (double)p->run.stored, kernel, NONE, NONE);
            }
        }
        s->visits += away;
        while (away && !p->run.no_overlap && s->fetched < s->visits + ahead
               && (s->fetched < end || !p->no_prefetch)) zo_plan_fetch(s, NONE);
    }
    s->tail = s->compute;
    if (!perturb) return;
    // the head, in chunks of the vocabulary: its perturbed copies; products; logits in fp32, which
    // are written once and read once
    const double rows = p->labels ? 0 : V, tokens = (double)(p->run.B * p->run.T);
    zo_plan_add(s, PLAN_KERNEL, q * zo_plan_kernel(r, p, rows * C, false, true, 1), NONE, NONE,
                NONE);
    s->tail = zo_plan_add(s, PLAN_HEAD, 2 * q * tokens * rows
        * (2 * C / rate_or(r->gpu_flops, PLAN_UNLIMITED) + 8 / rate_or(r->gpu_bytes,
                                                                      PLAN_UNLIMITED)),
        NONE, NONE, NONE);
}

// ---------------------------------------------------------------------------------------------
// The prediction

// A step of the trainer in its steady state. Never fails.
static ZoPrediction zo_plan_step(const Rates *r, const GPT2Config *c, const ZoPlan *plan) {
    ZoPlan p = *plan;
    if (p.streamed > c->layers) p.streamed = c->layers;
    if (p.slots < 1) p.slots = 1;
    if ((size_t)p.slots > p.streamed) p.slots = (int)(p.streamed > 0 ? p.streamed : 1);
    const size_t L = c->layers, micros = min_size(p.run.accum, PLAN_ZO_MICRO);
    const size_t places = (size_t)p.slots * PLAN_GROUPS;
    ZoSim s;
    memset(&s, 0, sizeof s);
    s.rates = r;
    s.config = c;
    s.plan = &p;
    s.tail = s.last = s.fetch = s.flush = s.compute = PLAN_NOTHING;
    zo_plan_groups(c, &p, s.weights, s.products);
    for (int g = 0; g < PLAN_GROUPS; g++)
        s.products[g] *= 2 * (double)(p.run.B * p.run.T) / rate_or(r->gpu_flops, PLAN_UNLIMITED);
    s.tasks.room = (int)(PLAN_ZO_STEPS * (micros + 1) * (L * (8 * PLAN_GROUPS + 1) + 3)
                         + 5 * places);
    s.tasks.tasks = (PlanTask *)alloc_or_fail((size_t)s.tasks.room, sizeof(PlanTask), "plan");
    s.there = (int *)alloc_or_fail(3 * places, sizeof(int), "plan");
    s.used = s.there + places;
    s.left = s.used + places;
    for (size_t i = 0; i < 3 * places; i++) s.there[i] = PLAN_NOTHING;

    // The last three steps count. Of four micro-batches, of which the first updates, the third
    // stands for all those that are left out.
    int end[PLAN_ZO_STEPS][PLAN_ZO_MICRO];
    for (int step = 0; step < PLAN_ZO_STEPS; step++)
        for (size_t m = 0; m < micros; m++) {
            zo_plan_pass(&s, true, m == 0 && !p.no_fused_update);
            if (m + 1 == micros && p.no_fused_update) zo_plan_pass(&s, false, true);
            end[step][m] = s.tail;
        }
    plan_simulate(&s.tasks, r);

    ZoPrediction x;
    memset(&x, 0, sizeof x);
    double sums[PLAN_KINDS] = {0}, in, out;
    const PlanTask *t = s.tasks.tasks;
    int before = end[PLAN_ZO_STEPS - 4][micros - 1];
    for (int step = PLAN_ZO_STEPS - 3; step < PLAN_ZO_STEPS; step++)
        for (size_t m = 0; m < micros; m++) {
            const double times = (m == 2 ? 1 + (double)(p.run.accum - micros) : 1) / 3;
            x.step += times * (t[end[step][m]].end - t[before].end);
            for (int i = before + 1; i <= end[step][m]; i++) sums[t[i].number] += times * t[i].work;
            before = end[step][m];
        }
    free(s.tasks.tasks);
    free(s.there);
    zo_plan_link(r, &in, &out);
    x.head = sums[PLAN_HEAD];
    x.compute = sums[PLAN_PRODUCTS] + x.head;
    x.perturb = sums[PLAN_KERNEL];
    x.upload = sums[PLAN_FETCH] / in;
    x.offload = sums[PLAN_FLUSH] / out;
    // copies that fall behind a little in each step are not that far behind after so few
    x.step = fmax(x.step, fmax(sums[PLAN_FETCH] / rate_or(r->h2d, PLAN_UNLIMITED),
                               sums[PLAN_FLUSH] / rate_or(r->d2h, PLAN_UNLIMITED)));
    x.exposed = x.step - x.compute - x.perturb;
    x.hidden = x.exposed < 0.01 * x.step;
    x.hidden_from = zo_hidden_from(r, c, &p);
    x.limit = x.hidden ? "compute" : x.upload > 1.02 * x.offload ? "upload"
            : x.offload > 1.02 * x.upload ? "offload" : "link";
    return x;
}

// For people: what a ZoPrediction says, in lines.
static void zo_plan_print(const Rates *r, const GPT2Config *c, const ZoPlan *p,
                          const ZoPrediction *x) {
    printf("predicted time of a step, in seconds: products %.4g, of the head %.4g; updates and "
           "noise %.4g\n", x->compute, x->head, x->perturb);
    plan_print_speed(r, &p->run, x->step, x->compute);
    if (p->streamed == 0) return;
    printf("  over the link, in seconds: %.4g to the GPU, %.4g to the host; %zu of %zu layer%s; ",
           x->upload, x->offload, p->streamed, c->layers, plural(c->layers));
    if (x->hidden) printf("hidden");
    else printf("not hidden: %.4g are waits (%s)", x->exposed, x->limit);
    if (x->hidden_from < INFINITY)
        printf("; hidden from %.0f tokens per pass on", ceil(x->hidden_from));
    printf("\n");
}

#endif
