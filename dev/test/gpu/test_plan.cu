// test_plan.cu: what a rehearsal of train_step() predicts (plan.h), against a case computed by hand
// for one GPU and one for several; the choice that --offload auto makes; and the table of
// doc/speed.md, whose numbers must be these: `test_plan --table` prints it with them. Nothing here
// needs a device. (The rehearsal's clock is held against a simulator in test_rehearsal.c; what it
// says, against trainers on the virtual clock of the emulated GPU in test_placement.cu and
// test_zo_gpu.cu.)
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

static OffloadChoice choice_of(int mode, double resident, double share) {
    OffloadChoice c;
    memset(&c, 0, sizeof c);
    c.mode = mode;
    c.resident = resident;
    c.share = share;
    c.slots = 3;
    c.kept_grads = KEEP_ALL;
    return c;
}

static Step step_of(const char *model, size_t accum) {
    const Step s = {model, 1, 1024, accum, 1, 0, KEEP, false, NULL};
    return s;
}

// Bytes that upload() brings for a micro-batch whose tokens are all the same one.
static double uploaded(const Step *s) { return 4 * (3.0 * (double)(s->B * s->T) + 2); }

// A server of our time: the link both ways, host memory, cores, GPU.
static Rates server(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = r.d2h = r.h2d_duplex = r.d2h_duplex = 50e9;
    r.dram = r.dram_dma = 200e9;
    r.host_adam = 12e9;
    r.gpu_adam = 100e9;
    r.gpu_flops = 4e14;
    return r;
}

// One on which everything takes a time that can be followed by hand.
static Rates slow(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = 3e9;
    r.d2h = 2e9;
    r.host_adam = 1e9;
    r.gpu_flops = 1e13;
    return r;
}

// One layer, three pieces. All of it by hand, with everything one after the other where it must be;
// times are from when backward's part of the head begins. That is queued with forward, and so it is
// in forward's time; the vocabulary is padded.
static void a_step_of_three_pieces_is_as_by_hand(void) {
    Step s = step_of("d1", 1);
    Rates r = slow();
    r.gpu_adam = 5e9;
    const double f1 = 1024.0 * 2 * (12 * 64 * 64) / 1e13;  // forward
    const double f2 = 1024.0 * 2 * 50304 * 64 / 1e13, up = uploaded(&s) / 3e9;
    // elements: with the gaps between tensors, which are copied; and without, which the GPU updates
    const double e0 = (50304.0 + 1024) * 64, e1 = 12 * 64 * 64 + 6 * 128 + 2 * 256, e2 = 256;
    const double updated = e0 + (e1 - 6 * 64 - 64) + 128;

    // zero: backward of the tail, layer and embeddings (no work) at once leaves their gradients.
    // The CPU begins with the embeddings, whose gradient comes last.
    OffloadChoice c = choice_of(OFFLOAD_ZERO, 0, 0);
    Prediction x = planned(&r, &s, &c);
    const double norm = 2 * f2 + 2 * f1;
    double left = 2 * f2 + e2 * W / 2e9;
    left = fmax(left, norm) + e1 * W / 2e9;
    left += e0 * W / 2e9;
    const double back0 = left + e0 * HOST_TAKES / 1e9 + e0 * W / 3e9, back1 = back0 + e1 * W / 3e9;
    const double back2 = back1 + e2 * W / 3e9, tail = fmax(back1 + f1, back2);
    IS(x.update, back2 - norm);
    IS(x.bound, (e0 + e1 + e2) * fmax(HOST_TAKES / 1e9, W / 3e9));  // by cores, or the way back
    IS(x.compute, 3 * (f1 + f2));
    IS(x.backward, 2 * f1);
    IS(x.step, tail + f2);
    IS(x.forward, tail + 3 * f2 - back0);
    IS(x.stall_forward, x.step - x.compute);
    s.no_overlap = true;  // the norm is not of what leaves, nor does it wait for it
    x = planned(&r, &s, &c);
    const double blocked = 2 * f2 + e2 * W / 2e9 + 2 * f1 + e1 * W / 2e9;
    IS(x.backward, blocked - 2 * f2);
    IS(x.step, blocked + e0 * W / 2e9 + e0 * HOST_TAKES / 1e9 + e0 * W / 3e9
                   + (e1 + e2) * W / 3e9 + up + f1 + f2);
    s.no_overlap = false;

    // of a single layer, backward repeats nothing: it is the last
    s.recompute = AGAIN;
    IS(planned(&r, &s, &c).backward, 2 * f1);
    IS(planned(&r, &s, &c).compute, 3 * (f1 + f2));
    s.recompute = KEEP;

    // all of it on the GPU: its update waits for nothing, the next forward pass for it
    c = choice_of(OFFLOAD_NONE, 0, 0);
    s.no_overlap = true;
    x = planned(&r, &s, &c);
    IS(x.update, updated / 5e9);
    IS(x.step, x.update + x.compute + up);
    CHECK(x.bound == 0 && x.h2d_bytes == 0 && x.d2h_bytes == 0, "%g", x.bound);

    // attention: two products and five, of half of the pairs; a speed of its own
    r.gpu_attention = 2e12;
    const Prediction y = planned(&r, &s, &c);
    IS(y.attention, 7 * 1024.0 * 1024 * 64 / 2e12);
    IS(y.step, x.step + y.attention);
    IS(y.compute, x.compute + y.attention);
    IS(y.backward, x.backward + y.attention * 5 / 7);

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
// and backward pass. Between the two, backward hides reductions, but not what ZeRO-3 gathers
// besides.
static void collectives_are_as_by_hand(void) {
    static const double speed[3] = {0.5, 1.5, 3};  // g / f
    const double tokens = 1024, C = 256, flop = tokens * 24 * C * C;
    const size_t sizes[3] = {(50304 + 1024) * 256, 12 * 256 * 256 + 13 * 256, 2 * 256};
    for (int i = 0; i < 3 * 3 * 2; i++) {
        const int regime = i % 3;
        Step s = step_of("d4", 1);
        s.zero = 1 + i / 3 % 3;
        s.world = i / 9 ? 3 : 4;
        const double R = (double)s.world;
        double room[3], c[3];
        for (int k = 0; k < 3; k++)  // padded, so that all shards are as long
            room[k] = R * 128 * ceil(ceil((double)sizes[k] / R) / 128);
        Rates r;
        memset(&r, 0, sizeof r);
        r.gpu_flops = 1e13;
        r.gpu_adam = 1e30;
        r.gpu_latency = 1e-6;
        const double f = flop / 1e13, h = tokens * 2 * 50304 * C / 1e13;
        r.gpu_link = (R - 1) / R * room[1] * W / (speed[regime] * f - 1e-6);
        for (int k = 0; k < 3; k++) c[k] = (R - 1) / R * room[k] * W / r.gpu_link + 1e-6;
        const double e = c[0], g = c[1];
        const double x = (R - 1) / R * norm_bytes(&s) / r.gpu_link + 1e-6;
        CHECK(c[2] < f, "the tail is too long");
        const OffloadChoice choice = choice_of(OFFLOAD_NONE, 0, 0);
        const Prediction y = planned(&r, &s, &choice);
        const double forward = regime == 0 ? e + g + 4 * f + h : e + 4 * g + f + h;
        double backward = 2 * h + 8 * f + g;  // each reduction but the last is hidden
        if (g > 2 * f) backward = 2 * h + 2 * f + 4 * g;
        if (s.zero == 3 && regime == 1) backward = 2 * h + 4 * f + 5 * g;
        if (s.zero == 3 && regime == 2) backward = 2 * h + 2 * f + 6 * g;
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
// little of the GPU's memory, fewer than would be best. With little host memory, what does not fit there must be resident.
static void the_search_takes_what_suits_the_machine(void) {
    enum { AUTO = RECOMPUTE_AUTO, ANY = AUTO, NOTHING_FITS = -1, FAST_HOST = 1, SLOW_CORES };
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
        {"gpt2-xl", 22, 0, AUTO, 35e9, 200e9, OFFLOAD_NONE, AGAIN, {0, 1}, {0, 1}},
        {"gpt2-xl", 22, 0, AGAIN, 80e9, 200e9, OFFLOAD_NONE, AGAIN, {0, 1}, {0, 1}},
        {"gpt2-xl", 22, 0, KEEP, 65e9, 200e9, OFFLOAD_INTERLEAVE, KEEP, {0, 1}, {0, 1}},
        {"7b", 1, FAST_HOST, AUTO, 24e9, 200e9, OFFLOAD_TWINFLOW, ANY, {0, 0}, {0, 1}},
        {"7b", 1, FAST_HOST, AUTO, 16.237e9, 200e9, OFFLOAD_ZERO, ANY, {0, 0}, {0, 0}},
        {"7b", 1, SLOW_CORES, AUTO, 40e9, 200e9, OFFLOAD_INTERLEAVE, ANY, {0.6, 0.95}, {0, 1}},
        {"7b", 1, 0, AUTO, 22e9, 200e9, OFFLOAD_INTERLEAVE, AGAIN, {0.2, 0.3}, {0, 1}},
        {"7b", 1, 0, AUTO, 10e9, 200e9, NOTHING_FITS, ANY, {0, 1}, {0, 1}},
        {"7b", 1, 0, AUTO, 24e9, 40e9, NOTHING_FITS, ANY, {0, 1}, {0, 1}},
        {"7b", 1, 0, AUTO, 80e9, 40e9, OFFLOAD_INTERLEAVE, ANY, {0, 1}, {0.5, 1}},
    };
    for (const auto &x : cases) {
        Rates r = server();
        if (x.machine == SLOW_CORES) r.host_adam = 1.5e9;
        if (x.machine == FAST_HOST) {
            r.dram = r.dram_dma = 500e9;
            r.host_adam = 40e9;
            r.h2d = r.d2h = r.h2d_duplex = r.d2h_duplex = 25e9;
        }
        Step s = step_of(x.model, 1);
        s.B = x.B;
        Trainer *t = trainer_open(&s);
        t->g->weights = WEIGHTS_GPU;
        gpt2_sizes(t->g);
        const Searched searched = {t->g, &t->run, &r};
        OffloadSearch q = {&r, gpt2_memory(t->g, x.recompute, (size_t)x.gpu, (size_t)x.host),
                           search_rehearse, &searched, update_bytes(t->g),
                           choice_of(OFFLOAD_NONE, 0, 0), {}, 0};
        const bool fits = offload_search(&q);
        const OffloadChoice *c = &q.choice;
        CHECK(fits == (x.mode != NOTHING_FITS)
              && (!fits || (c->mode == x.mode
                            && (x.again == ANY || c->recompute == x.again)
                            && c->share >= x.share[0] && c->share <= x.share[1]
                            && c->resident >= x.resident[0] && c->resident <= x.resident[1]
                            && choice_fits(&q.memory, c))), "%s in %g: %s, share %g, resident %g, "
              "recompute %d, %g s", x.model, x.gpu, offload_names[c->mode], c->share, c->resident,
              c->recompute, q.predicted.step);
        trainer_close(t);
    }
}

// ---------------------------------------------------------------------------------------------
// Section 5.4 of Deep Optimizer States (Maurya et al. 2024), from the paper's own rates

// DeepSpeed: a gradient leaves at 2.5 GB/s (section 4.1) while backward waits; the CPU updates a
// sub-group, rounds it in a second pass, and waits until it is on the GPU. OVERLAPPED: only the
// former is mended. DEEP: Deep Optimizer States. TIDE: this trainer.
typedef enum { DEEPSPEED, OVERLAPPED, DEEP, TIDE } System;

typedef struct {
    Rates rates;
    const char *model;
    System system;
    size_t stride, batch, ranks, subgroup;
    bool collectives;        // of ZeRO-3 between the ranks; else they take no time
    int slots;
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
    c.subgroup = 100000000;
    c.slots = system == DEEP ? 1 : 3;
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

// How a case went; and parameters of visitors and on the host, of a rank, and of the model.
typedef struct { Prediction t; double visits, host, elements; } Seen;

static Seen case_run(Case x) {
    Step s = {x.model, x.batch, 2048, 1, x.ranks, 3, AGAIN, x.system != TIDE, NULL};
    const bool cpu_only = x.system <= OVERLAPPED;
    OffloadChoice c = choice_of(cpu_only ? OFFLOAD_TWINFLOW : OFFLOAD_INTERLEAVE, x.resident,
                                x.share);
    if (!x.collectives) x.rates.gpu_link = x.rates.gpu_latency = 0;
    c.stride = cpu_only ? 0 : x.stride;
    c.wire_f32 = x.system == OVERLAPPED || x.system == DEEP;
    c.slots = x.slots;
    c.subgroup = x.system == TIDE ? 0 : x.subgroup;
    case_now = x;
    rehearsal_change = case_change;
    Trainer *t = trainer_open(&s);
    Prediction pred = trainer_predict(t, &x.rates, &c, s.recompute);
    rehearsal_change = NULL;
    // its norm waits until the last gradient has left, too
    if (x.system == DEEPSPEED) pred.update -= (double)t->g->segment[0].leaving * 2 / 2.5e9;
    const size_t *of = t->g->pieces.elements;
    const Seen seen = {pred, (double)of[PIECE_VISIT], (double)of[PIECE_HOST],
                       (double)t->g->table.elements};
    trainer_close(t);
    return seen;
}

static double step(Case x) { return case_run(x).t.step; }
static double update(Case x) { return case_run(x).t.update; }
static double faster(Case slow, Case fast) { return step(slow) / step(fast); }

// The node's update throughput, in G parameters/s.
static double throughput(Case x) {
    const Seen seen = case_run(x);
    return 1e-9 * seen.elements / seen.t.update;
}

// The third column of the table, from its first row on; the others are in the lesson alone.
static char cells[64][100];
static int cell_count;

__attribute__((format(printf, 1, 2)))
static void cell(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(cells[cell_count++], sizeof *cells, format, args);
    va_end(args);
}

// A list, or the range, of value(0) to value(n - 1), with so many digits.
template <typename F> static void cell_list(int n, int digits, F value) {
    char *to = cells[cell_count++];
    for (int i = 0, at = 0; i < n; i++)
        at += snprintf(to + at, sizeof *cells - (size_t)at, "%s%.*f", i > 0 ? ", " : "", digits,
                       value(i));
}

template <typename F> static void cell_range(int n, int digits, F value) {
    double least = INFINITY, most = 0;
    for (int i = 0; i < n; i++) {
        const double x = value(i);
        least = fmin(least, x);
        most = fmax(most, x);
    }
    cell("%.*f to %.*f", digits, least, digits, most);
}

static const char *const sizes[] = {"7b", "8.3b", "10b", "13b", "20b"};

template <typename T> static Case with(Case x, T Case::*field, T value) {
    x.*field = value;
    return x;
}

static Case of_size(Case x, int i) { return with(x, &Case::model, sizes[i]); }

static void cells_of_systems(void) {
    const Case zero = case_of(DEEPSPEED, 0), half = case_of(OVERLAPPED, 0), deep = case_of(DEEP, 2);
    double more = 0;
    cell_range(5, 2, [&](int i) { return faster(of_size(zero, i), of_size(deep, i)); });
    cell("%.2f", step(of_size(zero, 1)) / step(of_size(zero, 2)));
    cell("%.2f", faster(zero, half));  // 20B, as what follows
    cell("%.2f; in all %.2f", faster(half, deep), faster(zero, deep));
    for (int i = 0; i < 5; i++)
        more += (throughput(of_size(deep, i)) / throughput(of_size(zero, i)) - 1) / 5;
    cell("%+.0f %%", 100 * more);
    cell_range(5, 1, [&](int i) { return throughput(of_size(deep, i)); });
    cell("%.2f", faster(zero, deep));
    cell("%.2f", step(deep) / step(of_size(zero, 0)));
    cell_range(6, 2, [&](int i) {
        return update(with(zero, &Case::resident, 0.1 * i))
             / update(with(deep, &Case::resident, 0.1 * i));
    });
    const Case twin = with(zero, &Case::resident, 0.5), fifth = with(zero, &Case::resident, 0.2);
    cell("%.2f", faster(twin, with(deep, &Case::resident, 0.5)));
    cell("%.2f s and %.2f s: %.2f", step(deep), step(twin), faster(twin, deep));
    cell("%.0f %%", 100 * (update(zero) / update(fifth) - 1));
    cell_range(5, 2, [&](int i) {
        return faster(of_size(fifth, i), of_size(with(deep, &Case::resident, 0.2), i));
    });
}

// Both systems, changed in the same way.
template <typename F> static void cell_compared(int n, F change) {
    cell_list(n, 2, [&](int i) {
        Case zero = case_of(DEEPSPEED, 0), deep = case_of(DEEP, 2);
        change(&zero, i);
        change(&deep, i);
        return faster(zero, deep);
    });
}

static void cells_of_scaling(void) {
    cell_compared(4, [](Case *x, int i) { x->batch = (size_t)1 << i; });
    cell_compared(5, [](Case *x, int i) {
        x->rates.host_adam = 0.5e9 * (1 << i);
        x->rates.host_cast = 15.5e9 / 4 * (1 << i);
    });
    for (int k = 0; k < 2; k++)
        cell_compared(4, [k](Case *x, int i) {
            x->collectives = k;
            x->ranks = (size_t)1 << i;
        });
    Case large = case_of(DEEPSPEED, 0);
    large.subgroup = 1000000000;
    cell("%.1f %%", 100 * fabs(faster(large, case_of(DEEPSPEED, 0)) - 1));
}

// Tflop/s, and how much of the update the cores work and the link into the host is busy, in %.
static void cells_of_utilisation(void) {
    double of[4][3];
    for (int i = 0; i < 4; i++) {
        const Case x = case_of(i == 0 ? DEEPSPEED : DEEP, i == 0 ? 0 : (size_t)i + 1);
        const Seen seen = case_run(x);
        const Rates *r = &x.rates;
        const double moved = i == 0 ? 2 * seen.host / r->h2d : 12 * seen.visits / r->d2h;
        of[i][0] = 1e-12 * r->gpu_flops * seen.t.compute / seen.t.step;
        of[i][1] = 100 * seen.host * (1 / r->host_adam + 1 / r->host_cast) / seen.t.update;
        of[i][2] = 100 * moved / seen.t.update;
    }
    cell("%.0f; %.0f, %.0f, %.0f", of[0][0], of[1][0], of[2][0], of[3][0]);
    for (int k = 1; k < 3; k++) cell("%.0f %%, %.0f %%", of[0][k], of[1][k]);
}

static void cells_of_strides(void) {
    const Case deep = case_of(DEEP, 2);
    double best[2] = {0, 0}, where[2] = {0, 0};
    cell_list(3, 1, [&](int i) { return throughput(with(deep, &Case::stride, 2 + (size_t)i)); });
    for (int i = 0; i <= 200; i++) {
        const int k = i / 101;
        Case x = with(deep, &Case::stride, (size_t)0);
        x.slots = k == 0 ? 1 : 3;
        x.share = 0.01 * (i % 101);
        const double t = throughput(x);
        if (t > best[k]) where[k] = x.share;
        best[k] = fmax(best[k], t);
    }
    cell("%.0f %%: %.1f; %.0f %%: %.1f", 100 * where[0], best[0], 100 * where[1], best[1]);
    cell("%.2f, %.0f %%", eq1_stride(&deep.rates), 100 / (1 + eq1_stride(&deep.rates)));
    Case old = with(of_size(deep, 0), &Case::stride, (size_t)0);
    old.rates = rates_named("paper_v100");
    old.ranks = 1;
    old.slots = 3;
    cell("%.2f", eq1_stride(&old.rates));
    cell("%.2f", throughput(old));
    for (size_t first = 2; first <= 3; first++)
        cell_list(4, 2, [&](int i) {
            return throughput(with(old, &Case::stride, first + (size_t)i));
        });
}

// This trainer, where host memory has a rate; and the artefact's log: one H100, 10 iterations of a
// model of 5.949 G parameters.
static void cells_of_dram_and_log(void) {
    static const double dram[] = {0, 120e9, 60e9};
    for (int i = 0; i < 3; i++) {
        Case tide = case_of(TIDE, 0);
        tide.rates.dram = tide.rates.dram_dma = dram[i];
        const UpdateBytes bytes = {.grad = 2, .weight = 2, .kept_grads = 1, .state = 10};
        const double f = best_share(&tide.rates, &bytes), shares[3] = {0, 0.5, f};
        double at[3];
        for (int k = 0; k < 3; k++) {
            tide.share = shares[k];
            at[k] = throughput(tide);
        }
        cell("%.0f %%; %.1f, %.1f, %.1f; %.2f s", 100 * f, at[0], at[1], at[2], step(tide));
    }
    Case zero = of_size(case_of(DEEPSPEED, 0), 0), deep = of_size(case_of(DEEP, 2), 0);
    zero.ranks = deep.ranks = 1;
    const double part = 5.949e9 / case_run(zero).elements;
    cell("%.2f s; %.2f s", part * step(zero), part * step(deep));
}

// Holds the lesson's table against these cells, or prints it with them.
static void table(bool prints) {
    size_t n;
    Error err;
    char *lesson = file_read("doc/speed.md", &n, &err);
    CHECK(lesson != NULL, "%s", err.text);
    const char *line = lesson == NULL ? NULL : strstr(lesson, "| what section 5.4 says |");
    CHECK(line != NULL, "no table");
    if (line == NULL) return;
    cell_count = 0;
    cells_of_systems();
    cells_of_scaling();
    cells_of_utilisation();
    cells_of_strides();
    cells_of_dram_and_log();
    for (int i = -2; *line == '|'; i++, line += strcspn(line, "\n") + 1) {  // -2: its head
        const char *at = line;
        for (int k = 0; k < 3 && i >= 0; k++) at += strcspn(at, "|\n") + 1;
        const char *now = i < 0 ? "" : i < cell_count ? cells[i] : "?";
        const size_t there = strcspn(at, "|\n"), length = strlen(now);
        if (prints && i < 0) printf("%.*s\n", (int)strcspn(line, "\n"), line);
        else if (prints) printf("%.*s %s %.*s\n", (int)(at - line), line, now,
                                (int)strcspn(at + there, "\n"), at + there);
        else if (i >= 0) CHECK(there == length + 2 && memcmp(at + 1, now, length) == 0,
                               "%.*s: not %s", (int)strcspn(line, "\n"), line, now);
        if (i + 1 == cell_count) CHECK(line[strcspn(line, "\n") + 1] != '|', "it has more rows");
    }
    free(lesson);
}

static void the_lesson_has_this_table(void) { table(false); }

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--table") == 0) {
        table(true);
        return 0;
    }
    RUN(a_step_of_three_pieces_is_as_by_hand);
    RUN(collectives_are_as_by_hand);
    if (!IS_HALF) return test_summary();
    RUN(the_search_takes_what_suits_the_machine);
    if (test_whole()) RUN(the_lesson_has_this_table);
    return test_summary();
}
