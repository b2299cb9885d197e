// test_plan.cu: what a rehearsal of train_step() predicts (plan.h), against steps computed by hand:
// for one GPU and for several, with importance-aware updates (the closed forms of doc/zenflow.md),
// and in zeroth order; the choice that --offload auto makes; and rows of doc/speed.md: one that
// differs fails with what it would be now. Nothing here needs a device. (The rehearsal's clock is
// held against a simulator in test_rehearsal.c; what waits for what, against trainers on the
// virtual clock of the emulated GPU in test_placement.cu and test_zo_gpu.cu.)
#include "model_harness.cuh"

static const double W = sizeof(floatX);  // bytes of a weight, and of a gradient of a micro-batch

// ---------------------------------------------------------------------------------------------
// A step

static Prediction planned(const Rates *r, const Step *s, const OffloadChoice *c) {
    Trainer *x = trainer_open(s);
    const Prediction y = trainer_predict(x, r, c, s->recompute);
    trainer_close(x);
    return y;
}

static OffloadChoice choice_of(int mode) {
    OffloadChoice c;
    memset(&c, 0, sizeof c);
    c.mode = mode;
    c.slots = 3;
    c.kept_grads = KEEP_ALL;
    return c;
}

// One sequence of 1024.
static Step step_of(const char *model) {
    const Step s = {model, 1, 1024, 1, 1, 0, KEEP, false, NULL};
    return s;
}

// Bytes that upload() brings for a micro-batch whose tokens are all the same one.
static double uploaded(const Step *s) { return 4 * (3.0 * (double)(s->B * s->T) + 2); }

// One layer, three pieces. All of it by hand, with everything one after the other where it must be;
// times are from when backward's part of the head begins. That is queued with forward, and so it is
// in forward's time; the vocabulary is padded.
static void a_step_of_three_pieces_is_as_by_hand(void) {
    Step s = step_of("d1");
    Rates r = {.h2d = 3e9, .d2h = 2e9, .host_adam = 1e9, .gpu_adam = 5e9, .gpu_flops = 1e13};
    const double f1 = 1024.0 * 2 * (12 * 64 * 64) / 1e13;  // forward
    const double f2 = 1024.0 * 2 * 50304 * 64 / 1e13;
    // elements: with the gaps between tensors, which are copied; and without, which the GPU updates
    const double e0 = (50304.0 + 1024) * 64, e1 = 12 * 64 * 64 + 6 * 128 + 2 * 256, e2 = 256;
    const double updated = e0 + (e1 - 6 * 64 - 64) + 128;

    // zero: backward of the tail, layer and embeddings (no work) at once leaves their gradients.
    // The CPU begins with the embeddings, whose gradient comes last.
    OffloadChoice c = choice_of(OFFLOAD_ZERO);
    Prediction x = planned(&r, &s, &c);
    const double norm = 2 * f2 + 2 * f1;
    const double left = fmax(2 * f2 + e2 * W / 2e9, norm) + (e1 + e0) * W / 2e9;
    const double back0 = left + e0 * HOST_TAKES / 1e9 + e0 * W / 3e9, back1 = back0 + e1 * W / 3e9;
    const double back2 = back1 + e2 * W / 3e9, tail = fmax(back1 + f1, back2);
    IS(x.update, back2 - norm);
    IS(x.bound, (e0 + e1 + e2) * fmax(HOST_TAKES / 1e9, W / 3e9));  // by cores, or the way back
    IS(x.compute, 3 * (f1 + f2));
    IS(x.backward, 2 * f1);
    IS(x.step, tail + f2);
    IS(x.forward, tail + 3 * f2 - back0);
    IS(x.stall_forward, x.step - x.compute);

    // all of it on the GPU: its update waits for nothing, the next forward pass for it
    c = choice_of(OFFLOAD_NONE);
    s.no_overlap = true;
    x = planned(&r, &s, &c);
    IS(x.update, updated / 5e9);
    IS(x.step, x.update + x.compute + uploaded(&s) / 3e9);
    CHECK(x.bound == 0 && x.h2d_bytes == 0 && x.d2h_bytes == 0, "%g", x.bound);

    // attention: two products and five, of half of the pairs; a speed of its own
    r.gpu_attention = 2e12;
    const Prediction y = planned(&r, &s, &c);
    IS(y.attention, 7 * 1024.0 * 1024 * 64 / 2e12);
    IS(y.step, x.step + y.attention);
    IS(y.backward, x.backward + y.attention * 5 / 7);
    Trainer *windowed = trainer_open(&s);
    windowed->g->config.window = 256;  // of 1024 tokens, 224 are seen on average, not 512
    IS(trainer_predict(windowed, &r, &c, s.recompute).attention, y.attention * 224 / 512);
    trainer_close(windowed);

    // passes besides: 8 C of norms and sums, which take twice as long as others; in fp32, 12 C of
    // GELU and 3 C of the bias of q, k and v, which 16 bits have in products. The gradient of wte
    // is rounded.
    r.gpu_bytes = 1e12;
    const double passes = 1024.0 * (2 * 8 + (W == 2 ? 0 : 15)) * 64 * W + (4 + W) * 50304.0 * 64;
    IS(planned(&r, &s, &c).backward, y.backward + passes / 1e12);
}

// Bytes that go around for the norm: of each rank its head, and as many block sums as one has.
static double norm_bytes(const Step *s) {
    Trainer *x = trainer_open(s);
    size_t *counts = ALLOC(size_t, (size_t)zero_segments(&x->g->table) * s->world, "test");
    const size_t most = zero_blocks(&x->g->table, s->world, false, counts);
    free(counts);
    trainer_close(x);
    return (double)(s->world * 8 * (ZERO_HEAD + most));
}

// Four layers on several GPUs, all state on them, and an update that takes no time: a step is what
// its collectives and its compute leave of each other. Of a layer, forward takes f, a collective g;
// of the head h (its tail goes around in t, less than f); of the embeddings e; the norm x. Hidden:
// g < f. Exposed: g > 2 f, so that collectives follow each other, but for the last layer's forward
// and backward pass.
static void collectives_are_as_by_hand(void) {
    static const double speed[2] = {0.5, 3};  // g / f
    const double tokens = 1024, C = 256, flop = tokens * 24 * C * C;
    const size_t sizes[3] = {(50304 + 1024) * 256, 12 * 256 * 256 + 13 * 256, 2 * 256};
    for (int i = 0; i < 2 * 3 * 2; i++) {
        const bool exposed = i % 2;
        Step s = step_of("d4");
        s.zero = 1 + i / 2 % 3;
        s.world = i / 6 ? 3 : 4;
        const double R = (double)s.world;
        double room[3], c[3];
        for (int k = 0; k < 3; k++)  // padded, so that all shards are as long
            room[k] = R * 128 * ceil(ceil((double)sizes[k] / R) / 128);
        Rates r = {.gpu_adam = 1e30, .gpu_flops = 1e13, .gpu_latency = 1e-6};
        const double f = flop / 1e13, h = tokens * 2 * 50304 * C / 1e13;
        r.gpu_link = (R - 1) / R * room[1] * W / (speed[exposed] * f - 1e-6);
        for (int k = 0; k < 3; k++) c[k] = (R - 1) / R * room[k] * W / r.gpu_link + 1e-6;
        const double e = c[0], g = c[1];
        const double x = (R - 1) / R * norm_bytes(&s) / r.gpu_link + 1e-6;
        CHECK(c[2] < f, "the tail is too long");
        const OffloadChoice choice = choice_of(OFFLOAD_NONE);
        const Prediction y = planned(&r, &s, &choice);
        const double forward = exposed ? e + 4 * g + f + h : e + g + 4 * f + h;
        double backward = 2 * h + 8 * f + g;  // each reduction but the last is hidden
        if (exposed) backward = 2 * h + 2 * f + (s.zero == 3 ? 6 : 4) * g;
        IS(y.step, forward + backward + e + x);
        IS(y.compute, 3 * (4 * f + h));
        IS(y.comm_exposed, y.step - y.compute);
        IS(y.comm, 2 * e + 4 * g + 2 * c[2] + x + (s.zero == 3 ? 6 : 4) * g);
        IS(y.reduced_bytes, (R - 1) / R * W * (room[0] + 4 * room[1] + room[2]));
        IS(y.gathered_bytes, (R - 1) / R * W * (room[0] + (s.zero == 3 ? 6 : 4) * room[1]
                                                + room[2]));
    }
}

// ---------------------------------------------------------------------------------------------
// The choice

// Nothing where it fits, with recomputation too if a step is long beside an update of everything.
// Else, of the CPU and the GPU, the faster one gets the work: cores and memory that outrun a slow
// link have no visitors, and as many residents as there is room; with slow cores, most visits; with
// little of the GPU's memory, fewer than would be best. With little host memory, what does not fit
// there must be resident.
static void the_search_takes_what_suits_the_machine(void) {
    enum { AUTO = RECOMPUTE_AUTO, ANY = AUTO, FAST_HOST = 1, SLOW_CORES };
    static const struct {
        const char *model;
        size_t B;
        int machine, recompute;  // as it must be
        double gpu, host;        // bytes that are there
        int mode, again;         // how activations are made again
        double share[2], resident[2];  // from, to
    } cases[] = {
        {"gpt2-xl", 1, 0, AUTO, 80e9, 0, OFFLOAD_NONE, KEEP, {0, 1}, {0, 1}},
        {"gpt2-xl", 22, 0, AUTO, 62e9, 200e9, OFFLOAD_NONE, LIGHT, {0, 1}, {0, 1}},
        {"gpt2-xl", 22, 0, KEEP, 65e9, 200e9, OFFLOAD_INTERLEAVE, KEEP, {0, 1}, {0, 1}},
        {"7b", 1, FAST_HOST, AUTO, 24e9, 200e9, OFFLOAD_TWINFLOW, ANY, {0, 0}, {0, 1}},
        {"7b", 1, SLOW_CORES, AUTO, 40e9, 200e9, OFFLOAD_INTERLEAVE, ANY, {0.6, 0.95}, {0, 1}},
        {"7b", 1, 0, AUTO, 22e9, 200e9, OFFLOAD_INTERLEAVE, AGAIN, {0.2, 0.3}, {0, 1}},
        {"7b", 1, 0, AUTO, 80e9, 40e9, OFFLOAD_INTERLEAVE, ANY, {0, 1}, {0.5, 1}},
    };
    for (const auto &x : cases) {
        Rates r = {.h2d = 50e9, .d2h = 50e9, .h2d_duplex = 50e9, .d2h_duplex = 50e9, .dram = 200e9,
                   .dram_dma = 200e9, .host_adam = 12e9, .gpu_adam = 100e9, .gpu_flops = 4e14};
        if (x.machine == SLOW_CORES) r.host_adam = 1.5e9;
        if (x.machine == FAST_HOST) {
            r.dram = r.dram_dma = 500e9;
            r.host_adam = 40e9;
            r.h2d = r.d2h = r.h2d_duplex = r.d2h_duplex = 25e9;
        }
        Step s = step_of(x.model);
        s.B = x.B;
        Trainer *t = trainer_open(&s);
        t->g->weights = WEIGHTS_GPU;
        gpt2_sizes(t->g);
        const Searched searched = {t->g, &t->run, &r};
        OffloadSearch q = {&r, gpt2_memory(t->g, x.recompute, (size_t)x.gpu, (size_t)x.host),
                           search_rehearse, &searched, update_bytes(t->g),
                           choice_of(OFFLOAD_NONE), {}, 0};
        const OffloadChoice *c = &q.choice;
        CHECK(offload_search(&q) && c->mode == x.mode && (x.again == ANY || c->recompute == x.again)
              && c->share >= x.share[0] && c->share <= x.share[1] && c->resident >= x.resident[0]
              && c->resident <= x.resident[1] && choice_fits(&q.memory, c), "%s in %g: %s, share "
              "%g, resident %g, recompute %d, %g s", x.model, x.gpu, offload_names[c->mode],
              c->share, c->resident, c->recompute, q.predicted.step);
        trainer_close(t);
    }
}

// Each layer that keeps activations shortens the step as much as another, but for the last one, which
// has them anyway. The search lets as many keep them as fit, and none with --recompute block.
static void layers_keep_what_fits(void) {
    const Rates r = {.h2d = 50e9, .d2h = 50e9, .host_adam = 12e9, .gpu_adam = 1e11, .gpu_flops = 4e14};
    Step s = step_of("gpt2-xl");
    s.B = 22;
    Trainer *t = trainer_open(&s);
    t->g->weights = WEIGHTS_GPU;
    OffloadChoice c = choice_of(OFFLOAD_NONE);
    const double all = trainer_predict(t, &r, &c, LIGHT).step;
    double none = 0;
    size_t bytes = 0;
    for (int k = 0; k <= 47; k++) {
        c.kept_layers = k;
        const double step = trainer_predict(t, &r, &c, AGAIN).step;
        if (k == 0) none = step;
        ABOUT(step - all, (47 - k) / 47.0 * (none - all), 1e-6);
        if (k == 24) bytes = gpt2_bytes(t->g, false);
    }
    CHECK(none > 1.1 * all, "%g, %g", none, all);
    const Searched searched = {t->g, &t->run, &r};
    for (int again = RECOMPUTE_AUTO; again <= AGAIN; again += AGAIN) {
        OffloadSearch q = {&r, gpt2_memory(t->g, again, bytes, 0), search_rehearse,
                           &searched, update_bytes(t->g), choice_of(OFFLOAD_NONE), {}, 0};
        CHECK(offload_search(&q) && q.choice.kept_layers == (again == AGAIN ? 0 : 24),
              "%d: %d of 48 layers keep", again, q.choice.kept_layers);
    }
    trainer_close(t);
    s = step_of("llama3.2-1b");  // where the MLP works in chunks, all layers are equal
    c.recompute = AGAIN;
    c.kept_layers = 8;
    for (s.B = 32; s.B <= 33; s.B++) {
        size_t host;
        t = trainer_open(&s);
        gpt2_needs(t->g, &c, &bytes, &host);
        CHECK((bytes == SIZE_MAX) == (s.B == 33), "%zu rows of 1024: %zu bytes", s.B, bytes);
        trainer_close(t);
    }
}

// ---------------------------------------------------------------------------------------------
// Importance-aware updates: the closed forms of doc/zenflow.md

#define TAKES(a, b) CHECK(is_about(a, b, 1e-4), "%.9g s, not %.9g", (double)(a), (double)(b))

// The prediction of a rehearsal, and numbers of elements in this rank's part of the model: of all
// columns, of the chosen ones, of the late ones, and of one layer's late ones.
typedef struct { Prediction t; double elements, chosen, rest, layer; } ZenTimes;

// sums: on the host, for which there is room. streamed: the layers whose weights the host stores.
static ZenTimes zen_planned(const Rates *r, const Step *of, ZenConfig zen, int sums, int streamed) {
    Step s = *of;
    OffloadChoice c = choice_of(OFFLOAD_ZENFLOW);
    c.grad_rooms = c.weight_rooms = LEAST_ROOMS;
    c.streamed = streamed;
    c.sum_on_host = sums == 1;
    s.zen = &zen;
    Trainer *x = trainer_open(&s);
    const ZenMap *map = &x->g->zen->map;
    const ZenTimes t = {trainer_predict(x, r, &c, KEEP), (double)map->elements,
                        (double)map->chosen, (double)map->rest, (double)map->segment[1].rest};
    trainer_close(x);
    return t;
}

// A tenth of the columns is chosen.
static ZenConfig zen_of(size_t window, bool overlap) {
    return ZenConfig{0.1, window, 0, 0, overlap};
}

// Bytes of host memory, per element of the rest and window of S steps: masters, m and v are read
// and written, gradients read, sums read (but for the first) and written.
static double host_bytes(double S, int sums) {
    const double update = 24;
    if (S == 1) return update + W;
    return S * W + (sums == 2 ? 8 * S : 8 * (S - 1)) + update;
}

// With a link and a host that take no time, a step is its compute, and the GPU's update of the
// chosen, while tokens come; where all columns are, the host and the link have nothing else to do.
static void free_hosts_leave_compute(void) {
    const Step s = step_of("gpt2");
    Rates r = {.gpu_adam = 1e9, .gpu_flops = 1e14};
    ZenConfig zen = zen_of(4, true);
    ZenTimes x = zen_planned(&r, &s, zen, 2, 0);
    TAKES(x.t.step, x.t.compute + x.chosen / 1e9);
    zen.topk = 1;
    r.h2d = r.d2h = r.host_adam = 1e6;
    x = zen_planned(&r, &s, zen, 2, 0);
    TAKES(x.t.step, x.t.compute + x.chosen / 1e9);
    CHECK(x.t.d2h_bytes == 0 && x.t.h2d_bytes == 0, "%g, %g", x.t.d2h_bytes, x.t.h2d_bytes);
}

// A stream that never rests decides the time: gradients are copied out except those of chosen
// columns, and as large a part of the weights is copied in once in a window. Here the host's memory
// gives 1e9 bytes/s.
static void the_slowest_decides(void) {
    static const struct { size_t window, planned; bool overlap; int sums; } rows[] = {
        {1, 1, true, 1}, {2, 2, true, 1}, {4, 4, true, 1}, {4, 4, true, 2}, {16, 16, true, 2},
        {4, 4, false, 1},     // if nothing may be late, it is the work of one sum
        {0, 4, true, 2},      // the gradients end it
        {1000, 64, true, 2},  // as long as 64, but for what crosses the link
    };
    const Rates out = {.d2h = 1e9}, in = {.h2d = 1e9}, host = {.host_adam = 1e9 / ADAM_BYTES};
    const Step s = step_of("gpt2");
    for (const auto &row : rows) {
        const ZenConfig zen = zen_of(row.window, row.overlap);
        const double steps = (double)row.planned;
        ZenTimes x = zen_planned(&out, &s, zen, row.sums, 0);
        const double R = x.rest, comes = W * R / (row.window > 0 ? (double)row.window : steps);
        ABOUT(R, 0.9 * x.elements, 2e-3);
        IS(x.t.d2h_bytes, W * R);
        IS(x.t.h2d_bytes, comes);
        TAKES(x.t.step, W * R / 1e9);
        x = zen_planned(&host, &s, zen, row.sums, 0);
        TAKES(x.t.step, host_bytes(steps, row.sums) * R / steps / 1e9);
        CHECK(x.t.stall_forward + x.t.stall_backward > 0.999 * x.t.step, "it waits for the host");
        x = zen_planned(&in, &s, zen, row.sums, 0);
        TAKES(x.t.step, (W * R / steps + uploaded(&s)) / 1e9);
    }
}

// The rest of a layer that the host stores is copied twice a step, but for those in the ring when
// backward begins; the host also copies its newest weights, once in a window.
static void streamed_layers_bring_their_rest(void) {
    const Rates in = {.h2d = 1e9}, host = {.host_adam = 1e9 / ADAM_BYTES};
    const Step s = step_of("gpt2");
    ZenTimes x = zen_planned(&in, &s, zen_of(4, true), 1, 12);
    const double others = x.rest - 12 * x.layer;
    IS(x.t.h2d_bytes, W * ((2 * 12 - LEAST_ROOMS) * x.layer + others / 4));
    IS(x.t.d2h_bytes, W * x.rest);
    ABOUT(x.t.step, (x.t.h2d_bytes + uploaded(&s)) / 1e9, 0.01);
    x = zen_planned(&host, &s, zen_of(4, true), 1, 12);
    TAKES(x.t.step, (host_bytes(4, 1) * x.rest + 2 * W * 12 * x.layer) / 4 / 1e9);
}

// Gradients go around in every step; all weights are gathered once in a window, and else those of
// the chosen columns. If collectives take no time, it is as if one GPU had a host as much faster.
static void several_gpus_gather_the_chosen(void) {
    for (size_t S = 1; S <= 4; S += 3) {
        Step s = step_of("d6");
        s.world = 4;
        s.zero = 2;
        Rates r = {.host_adam = 1e8, .gpu_flops = 1e13};
        const ZenTimes x = zen_planned(&r, &s, zen_of(S, true), 2, 0);
        const double steps = (double)S, all = 3 * x.elements * W;  // a GPU has a fourth
        ABOUT(x.t.reduced_bytes, all, 0.01);
        ABOUT(x.t.gathered_bytes, all * (1 + (steps - 1) * 0.1) / steps, 0.01);
        r.host_adam *= 4;
        s.world = 1;
        const Prediction alone = zen_planned(&r, &s, zen_of(S, true), 2, 0).t;
        ABOUT(x.t.step, alone.step, 0.02);  // parts are of whole rows
        CHECK(x.t.comm == 0 && alone.comm == 0, "%g, %g", x.t.comm, alone.comm);
    }
}

// ---------------------------------------------------------------------------------------------
// Zeroth order

typedef struct {
    GPT2Config config;
    size_t B, T, accum, queries, streamed;
    int noise;
    bool serial, no_slots, unfused, labels;
} ZoPlan;

// One sequence of 2048, all layers on the host.
static ZoPlan zo_plan_of(const char *model) {
    ZoPlan p;
    Error err;
    memset(&p, 0, sizeof p);
    if (!gpt2_preset(&p.config, model) || !gpt2_finish(&p.config, &err)) fail("no model %s", model);
    p.B = p.accum = p.queries = 1;
    p.T = min_size(p.config.context, 2048);
    p.streamed = p.config.layers;
    return p;
}

static Prediction zo_planned(const Rates *rates, const ZoPlan *p) {
    GPT2 *g = zo_new(&p->config, p->B, p->T);
    Run *r = ALLOC(Run, 1, "test");
    g->zo->config = ZoConfig{1, 1e-3f, (int)p->queries, p->noise, ZO_STORAGE};
    g->words.count = p->labels ? 2 : 0;
    g->no_overlap = p->serial;
    g->zo->keeps_slots = !p->no_slots;
    g->zo->fused = !p->unfused;
    r->o.accum = p->accum;
    r->B = p->B;
    r->T = p->T;
    r->step_tokens = p->B * p->T * p->accum;
    zo_place(g, g->config.layers - p->streamed, 3);
    const Prediction x = gpt2_rehearse(g, r, rates, NULL);
    model_forget(g);
    free(r);
    return x;
}

// A step of two layers, one of which is on the host. normals: numbers per second, so few that a
// kernel over weights takes as long as its noise; 0: it takes as long as its bytes.
static const struct { size_t queries, accum; bool unfused, labels; int noise; double normals; }
by_hand[] = {
    {1, 1, false, false, ZO_GAUSSIAN, 0},        {3, 2, false, false, ZO_GAUSSIAN, 1e9},
    {2, 7, true, false, ZO_GAUSSIAN, 1e9},       {2, 1, false, false, ZO_RADEMACHER, 1e9},
    {1, REHEARSED_MICRO + 2, true, true, ZO_GAUSSIAN, 0},
};

static void zeroth_order_works_as_by_hand(void) {
    for (const auto &row : by_hand) {
        ZoPlan p = zo_plan_of("d2");
        p.B = 3;
        p.T = 64;
        p.streamed = 1;
        p.queries = row.queries;
        p.accum = row.accum;
        p.unfused = row.unfused;
        p.serial = !row.unfused;
        p.labels = row.labels;
        p.noise = row.noise;
        const Rates r = {.h2d = 3e9, .d2h = 2e9, .gpu_flops = 1e12, .gpu_attention = 4e11,
                         .gpu_bytes = 1e11, .gpu_normals = row.normals};
        const double q = (double)p.queries, micros = (double)p.accum, C = 128, T = 64, N = 3 * T;
        const double V = 50304, layer = 12 * C * C + 13 * C, bytes = 1e11 / W;
        // over n weights, of which so many copies are read and written
        const auto kernel = [&](double n, double copies, double draws) {
            const bool noise = row.noise == ZO_GAUSSIAN && row.normals > 0;
            return noise ? n * draws / row.normals : n * copies / bytes;
        };
        // of both signs: products of layers and of the head, attention with half of the pairs
        const double logits = row.labels ? 0 : V;
        const double products = 2 * q * micros * N * (2 * 24 * C * C + 2 * logits * C) / 1e12;
        const double attention = 2 * q * micros * 2 * N * 2 * C * T / 4e11;
        // embeddings, then norms and sums in layers, then logits in fp32, written and read
        const double passes = q * micros * (2 * 3 * N * C + 2 * 2 * 16 * C * N) / bytes
                            + q * micros * 16 * N * logits / 1e11;
        // both perturbed copies of what layers and head read, once for each direction; and updates:
        // with the first direction's copies of a layer, and of all else by itself
        const double perturbed = q * micros * (kernel(2 * layer, 3, 1)
                                               + kernel((logits + 2) * C, 3, 1));
        const double updated = row.unfused ? kernel(2 * layer, 2, q)
                             : kernel(2 * layer, 4, 1 + q) - kernel(2 * layer, 3, 1);
        const double stays = kernel((V + (double)p.config.context + 2) * C, 2, q);
        const Prediction x = zo_planned(&r, &p);
        const double other = passes + perturbed + updated + stays;
        IS(x.compute, products + attention);
        IS(x.other, other);
        IS(x.h2d_bytes, (micros + row.unfused) * W * layer);
        IS(x.d2h_bytes, W * layer);
        const double in = (x.h2d_bytes + 8 * N * micros) / 3e9;  // with tokens
        const double out = (x.d2h_bytes + 8 * (2 * q * micros + 1)) / 2e9;  // with losses
        if (p.serial) IS(x.step, in + x.compute + x.other + out);
    }
}

// ---------------------------------------------------------------------------------------------
// The papers: rows of doc/speed.md

static char *lesson;

// The lesson has this row, as it is computed now.
__attribute__((format(printf, 1, 2)))
static void lesson_has(const char *format, ...) {
    char row[400];
    va_list args;
    va_start(args, format);
    vsnprintf(row, sizeof row, format, args);
    va_end(args);
    CHECK(lesson != NULL && strstr(lesson, row) != NULL, "doc/speed.md lacks: %s", row);
}

// Tables 1 and 2 of ZO-Offloading (Wang et al. 2024), on its machine, as fitted in scripts/rates.
// Tokens/s, and a note of the lesson: fp16, fp32.
static const struct { const char *name; double mezo[2], zo[2]; int note[2]; } zo_rows[] = {
    {"opt-1.3b", {6788, 1954}, {6788, 1954}, {1, 1}},
    {"opt-2.7b", {4227, 1087}, {4227, 1087}, {1, 1}},
    {"opt-6.7b", {2455, 499}, {2455, 499}, {1, 1}},
    {"opt-13b", {1406, 270}, {1340, 270}, {1, 1}},
    {"opt-30b", {651, 0}, {597, 122}, {1, 3}},
    {"opt-66b", {0, 0}, {273, 40}, {2, 4}},
    {"opt-175b", {0, 0}, {37, 14}, {4, 4}},
};
enum { FP32 = BITS == 32 };

// With the speed at which the products of MeZO took the time that MeZO took; of the largest, as of
// the last one that had room. Returns what MeZO takes, in seconds.
static double zo_testbed(int row, Rates *r, ZoPlan *p) {
    int last = row;
    while (zo_rows[last].mezo[FP32] == 0) last--;
    *r = rates_named("a100_80gb_pcie4_zo");
    *p = zo_plan_of(zo_rows[last].name);
    p->streamed = 0;
    r->gpu_flops *= zo_planned(r, p).step / (2048 / zo_rows[last].mezo[FP32]);
    r->gpu_attention = r->gpu_flops;
    *p = zo_plan_of(zo_rows[row].name);
    p->streamed = 0;
    const double mezo = zo_planned(r, p).step;
    p->streamed = p->config.layers;
    return mezo;
}

static void zo_offloading_is_as_in_the_lesson(void) {
    Rates r;
    ZoPlan p;
    for (int i = 0; i < (int)(sizeof zo_rows / sizeof *zo_rows); i++) {
        const double had = zo_rows[i].mezo[FP32], got = zo_rows[i].zo[FP32];
        char is[32] = "no room", paper[32] = "no room";
        const double mezo = zo_testbed(i, &r, &p), x = zo_planned(&r, &p).step;
        if (had > 0) snprintf(is, sizeof is, "%.0f", had);
        if (had > 0) snprintf(paper, sizeof paper, "%.2f", got / had);
        lesson_has("| %s, fp%d | %s | %.0f | %.0f | %s | %.2f | %d |\n", zo_rows[i].name, BITS, is,
                   got, 2048 / x, paper, mezo / x, zo_rows[i].note[FP32]);
    }
    static const struct { const char *name; double paper[3]; } ways[3] = {
        {"no fused update", {1567.0 / 1954, 849.0 / 1087, 373.0 / 499}},
        {"no overlap", {1109.0 / 1954, 573.0 / 1087, 225.0 / 499}},
        {"no reusable memory", {735.0 / 1954, 422.0 / 1087, 184.0 / 499}},
    };
    for (int k = 0; k < 3 && FP32; k++) {
        double model[3];
        for (int i = 0; i < 3; i++) {
            zo_testbed(i, &r, &p);
            const double all = zo_planned(&r, &p).step;
            p.unfused = k == 0;
            p.serial = k == 1;
            p.no_slots = k == 2;
            model[i] = all / zo_planned(&r, &p).step;
        }
        const double *paper = ways[k].paper;
        lesson_has("| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %d |\n", ways[k].name,
                   paper[0], model[0], paper[1], model[1], paper[2], model[2], 5 + k);
    }
}

// Section 5.4 of Deep Optimizer States (Maurya et al. 2024), from the paper's own rates. DeepSpeed:
// a gradient leaves at 2.5 GB/s (section 4.1) while backward waits; the CPU updates a sub-group,
// rounds it in a second pass, and waits until it is on the GPU. OVERLAPPED: only the former is
// mended. DEEP: Deep Optimizer States. TIDE: this trainer.
typedef enum { DEEPSPEED, OVERLAPPED, DEEP, TIDE } System;

typedef struct {
    Rates rates;
    const char *model;
    System system;
    size_t stride, batch, ranks;
    bool collectives;        // of ZeRO-3 between the ranks; else they take no time
    double resident, share;  // share: if stride is 0
} Case;

// 20B on four H100, one sequence of 2048 tokens each, nothing resident.
static Case case_of(System system, size_t stride) {
    Case c;
    memset(&c, 0, sizeof c);
    c.rates = rates_named("paper_h100");
    c.model = "20b";
    c.system = system;
    c.stride = stride;
    c.batch = 1;
    c.ranks = 4;
    return c;
}

static Case case_now;  // the one that runs

// Makes another system's of this trainer's step without overlap.
static void case_change(Rehearsal *q) {
    const Rates *r = &case_now.rates;
    const System system = case_now.system;
    int first = 0, back = NO_JOB, left = NO_JOB;  // newest: weights' way back, gradient's way out
    if (system == TIDE) return;
    while (q->jobs[first].span.row != ROW_COMPUTE) first++;
    for (int i = 0; i < q->count; i++) {
        Job *t = &q->jobs[i];
        if (t->span.row == ROW_LEAVE && system == DEEPSPEED) t->work *= r->d2h / 2.5e9;
        if (t->span.row == ROW_HOST) t->work *= 1 + r->host_adam / r->host_cast;
        // a pass with fp32 gradients is of 28 bytes, not 26; the paper's Uc is of such passes
        if (t->span.row == ROW_HOST && system != DEEPSPEED) t->work *= 26.0 / 28;
        if (t->span.row == ROW_FETCH || t->span.row == ROW_FLUSH) t->work *= 12.0 / STATE_BYTES;
        // only DeepSpeed's backward waits for what leaves; the others', for the place of another
        for (int k = 0; k < JOB_WAITS && system != DEEPSPEED; k++)
            if (t->stream == q->jobs[first].stream && t->waits[k] == left) t->waits[k] = NO_JOB;
        for (int k = 0; k < JOB_WAITS && t->span.row == ROW_HOST && system <= OVERLAPPED; k++) {
            if (t->waits[k] != NO_JOB) continue;
            t->waits[k] = back;
            break;
        }
        if (t->span.row == ROW_LEAVE) left = i;
        if (t->span.row == ROW_BACK) back = i;
    }
}

// How a case went; and the parameters of the model.
typedef struct { Prediction t; double elements; } Seen;

static Seen case_run(Case x) {
    Step s = {x.model, x.batch, 2048, 1, x.ranks, 3, AGAIN, x.system != TIDE, NULL};
    const bool cpu_only = x.system <= OVERLAPPED;
    OffloadChoice c = choice_of(cpu_only ? OFFLOAD_TWINFLOW : OFFLOAD_INTERLEAVE);
    if (!x.collectives) x.rates.gpu_link = x.rates.gpu_latency = 0;
    c.resident = x.resident;
    c.share = x.share;
    c.stride = cpu_only ? 0 : x.stride;
    c.wire_f32 = x.system == OVERLAPPED || x.system == DEEP;
    c.slots = x.system == DEEP ? 1 : 3;
    c.subgroup = x.system == TIDE ? 0 : 100000000;
    case_now = x;
    rehearsal_change = case_change;
    Trainer *t = trainer_open(&s);
    const Seen seen = {trainer_predict(t, &x.rates, &c, s.recompute), (double)t->g->table.elements};
    rehearsal_change = NULL;
    trainer_close(t);
    return seen;
}

static double step(Case x) { return case_run(x).t.step; }
static double faster(Case slow, Case fast) { return step(slow) / step(fast); }

// The node's update throughput, in G parameters/s.
static double throughput(Case x) {
    const Seen seen = case_run(x);
    return 1e-9 * seen.elements / seen.t.update;
}

// Writes how much faster our step is than DeepSpeed's, for each of n changes of both systems.
typedef struct { char text[80]; } Cell;
template <typename F> static Cell compared(int n, F change) {
    Cell c = {""};
    for (int i = 0; i < n; i++) {
        Case zero = case_of(DEEPSPEED, 0), deep = case_of(DEEP, 2);
        change(&zero, i);
        change(&deep, i);
        const size_t at = strlen(c.text);
        snprintf(c.text + at, sizeof c.text - at, "%s%.2f", i > 0 ? ", " : "", faster(zero, deep));
    }
    return c;
}

static void deep_optimizer_states_is_as_in_the_lesson(void) {
    const Case zero = case_of(DEEPSPEED, 0), half = case_of(OVERLAPPED, 0), deep = case_of(DEEP, 2);
    lesson_has("| 20B: faster by gradients that leave beside backward | 1.9 | %.2f |",
               faster(zero, half));
    lesson_has("| 20B: faster again by the interleaved update | 1.6; in all 2.5 | %.2f; in all "
               "%.2f |", faster(half, deep), faster(zero, deep));
    lesson_has("| 20B, residents 50 %%: iterations faster than TwinFlow's | about 2 | %s |",
               compared(1, [](Case *x, int) { x->resident = 0.5; }).text);
    lesson_has("| 20B, micro-batch 1, 2, 4, 8: faster than ZeRO-3 | 2.5 to 1.6 | %s |",
               compared(4, [](Case *x, int i) { x->batch = (size_t)1 << i; }).text);
    lesson_has("| 20B, cores per GPU: 1/4, 1/2, 1, 2, 4 of the testbed's | up to 3 with few; then "
               "uniform | %s |", compared(5, [](Case *x, int i) {
                   x->rates.host_adam = 0.5e9 * (1 << i);
                   x->rates.host_cast = 15.5e9 / 4 * (1 << i);
               }).text);
    lesson_has("| 20B, 1, 2, 4, 8 GPUs: faster than ZeRO-3 | 4.4 with few, 2.5 with many | %s |",
               compared(4, [](Case *x, int i) { x->ranks = (size_t)1 << i; }).text);
    lesson_has("| the same with collectives, all at 133 GB/s | | %s |",
               compared(4, [](Case *x, int i) {
                   x->ranks = (size_t)1 << i;
                   x->collectives = true;
               }).text);
    lesson_has("| 20B, 50, 33, 25 %% on the GPU: G parameters/s | 50 %% is best | %.1f, %.1f, "
               "%.1f |", throughput(deep), throughput(case_of(DEEP, 3)),
               throughput(case_of(DEEP, 4)));
    // this trainer, where host memory has a rate
    static const double dram[] = {120e9, 60e9};
    for (double rate : dram) {
        Case tide = case_of(TIDE, 0);
        tide.rates.dram = tide.rates.dram_dma = rate;
        const UpdateBytes bytes = {.grad = 2, .weight = 2, .kept_grads = 1, .state = 10};
        const double f = best_share(&tide.rates, &bytes), shares[3] = {0, 0.5, f};
        double at[3];
        for (int k = 0; k < 3; k++) {
            tide.share = shares[k];
            at[k] = throughput(tide);
        }
        lesson_has("| this trainer, host memory per GPU %.0f GB/s: best share; G parameters/s with "
                   "0, 50 %%, best; iteration | | %.0f %%; %.1f, %.1f, %.1f; %.2f s |",
                   1e-9 * rate, 100 * f, at[0], at[1], at[2], step(tide));
    }
    // the artefact's log: one H100, 10 iterations of a model of 5.949 G parameters
    Case alone = zero, states = deep;
    alone.model = states.model = "7b";
    alone.ranks = states.ranks = 1;
    const double part = 5.949e9 / case_run(alone).elements;
    lesson_has("| the artefact's log, 7B on one H100, per iteration: ZeRO-3; Deep Optimizer States "
               "| 9.48 s; 6.80 s | %.2f s; %.2f s |", part * step(alone), part * step(states));
}

int main(int, char **) {
    size_t n;
    Error err;
    RUN(a_step_of_three_pieces_is_as_by_hand);
    RUN(collectives_are_as_by_hand);
    RUN(free_hosts_leave_compute);
    RUN(the_slowest_decides);
    RUN(streamed_layers_bring_their_rest);
    RUN(several_gpus_gather_the_chosen);
    RUN(zeroth_order_works_as_by_hand);
    lesson = file_read("doc/speed.md", &n, &err);
    if (test_whole()) RUN(zo_offloading_is_as_in_the_lesson);
    if (IS_HALF) RUN(the_search_takes_what_suits_the_machine);
    if (IS_HALF) RUN(layers_keep_what_fits);
    if (IS_HALF && test_whole()) RUN(deep_optimizer_states_is_as_in_the_lesson);
    free(lesson);
    return test_summary();
}
