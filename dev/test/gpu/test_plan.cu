// test_plan.cu: what a rehearsal of train_step() predicts (plan.h), against a case computed by hand
// for one GPU and one for several, against the bound of rates.h and against arithmetic; the choice
// that --offload auto makes; and the table of doc/speed.md, whose numbers must be these:
// `test_plan --table` prints it with them. Nothing here needs a device. (The rehearsal's clock is
// held against a simulator in test_rehearsal.c; what it says, against trainers on the virtual clock
// of the emulated GPU in test_placement.cu and test_zo_gpu.cu.)
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

// Choices of all kinds, for the tests below.
static OffloadChoice some_choice(int i, Step *s) {
    const unsigned n = (unsigned)i * 2654435761u >> 4;
    s->accum = i % 5 < 4 ? 1 : n / 19 % 2 ? 3 : 64;  // of which most are not rehearsed
    s->no_overlap = n % 3 == 2;
    s->recompute = n % 2 ? AGAIN : KEEP;
    OffloadChoice c = choice_of(OFFLOAD_NONE + i % 4, 0.1 * (n / 3 % 6), 0.15 * (n / 5 % 8));
    c.kept_grads = i % 3 > 0 ? KEEP_ALL : (int)(n / 13 % 3);
    c.sum_on_host = s->accum > 1 && n / 17 % 2;
    c.wire_f32 = i % 13 > 9 || W == 4;
    c.slots = 1 + (int)(n / 7 % 4);
    c.inputs_leave = s->recompute == AGAIN && i % 2;
    c.grad_rooms = (int)(n / 11 % 4) * 5;  // two, 5, 10, or more than there are layers
    if (c.mode == OFFLOAD_INTERLEAVE && i % 8 == 7) c.stride = (size_t)(2 + i % 3);
    return c;
}

// The same, on some GPUs: of every stage.
static OffloadChoice some_ranks(int i, Step *s) {
    const OffloadChoice c = some_choice(i, s);
    s->zero = 1 + i / 4 % 3;
    s->world = (size_t)(2 + i % 7);
    return c;
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

// With many pieces, an update comes near to what no schedule can beat, whatever limits it, and the
// better, the smaller the pieces; it never beats it by more than what came during backward.
static void updates_reach_their_bound(void) {
    static const double dram[] = {0, 150e9, 300e9}, dma[] = {0, 210e9, 260e9};
    static const double cores[] = {2e9, 6e9, 100e9}, shares[] = {0, 0.1, 0.4, 0.6, 0.8, 1};
    Step s = step_of("20b", 1);
    s.no_overlap = true;
    double worst = 1;
    for (int i = 0; i < 3 * 3 * 6; i++) {
        Rates r = server();
        r.dram = dram[i / 18];
        r.dram_dma = dma[i / 18];
        r.host_adam = cores[i / 6 % 3];
        OffloadChoice c = choice_of(OFFLOAD_INTERLEAVE, 0, shares[i % 6]);
        c.subgroup = 50000000;
        const Prediction x = planned(&r, &s, &c);
        const double early = c.slots * STATE_BYTES * 50e6 / r.h2d;
        worst = fmin(worst, x.bound / x.update);
        CHECK(x.bound / x.update > 0.95, "dram %g cores %g share %g: %.3f of %.3f by %s", r.dram,
              r.host_adam, c.share, x.update, x.bound, x.limit);
        CHECK(x.update + early >= x.bound * 0.9999, "dram %g cores %g share %g: %.3f < %.3f",
              r.dram, r.host_adam, c.share, x.update, x.bound);
    }
    printf("  at worst %.1f %% of the bound\n", 100 * worst);
}

// Whatever gets faster, a step does not get slower. With a link between GPUs that takes no time it
// is shorter by what was exposed; of ZeRO's stages, each has the waits of the one before it, and
// more. On one GPU, the rates between several change no bit.
static void a_better_machine_is_not_slower(void) {
    for (int i = 0; i < (test_whole() ? 200 : 40); i++) {
        Step s = step_of(test_whole() ? "gpt2-xl" : "gpt2", 1);
        const bool alone = i % 2;
        OffloadChoice c = alone ? some_choice(i / 2, &s) : some_ranks(i / 2, &s);
        Rates r = server();
        r.dram = 60e9 + 1.5e9 * i;
        r.dram_dma = r.dram * (0.9 + 0.01 * (i % 30));
        r.h2d_duplex = r.d2h_duplex = 44e9;
        r.h2d_busy = r.d2h_busy = 36e9 - 2e9 * (i % 9);
        r.host_adam = 0.5e9 * (1 + i % 16);
        if (!alone) r.gpu_link = 5e9 * (1 + i / 2 % 41);
        if (!alone) r.gpu_latency = 1e-5 * (i / 2 % 3);
        const Prediction x = planned(&r, &s, &c);
        CHECK(x.step >= x.compute * 0.9999 && x.forward + x.backward <= x.step * 1.0001,
              "choice %d: %g %g", i, x.step, x.compute);
        for (int k = 0; k < RATE_FIELDS; k++) {
            const char *name = rate_fields[k].name;
            Rates faster = r;
            *rate_at(&faster, k) *= strstr(name, "latency") != NULL ? 0.8 : 1.25;
            if (*rate_at(&faster, k) == 0) continue;
            const Prediction y = planned(&faster, &s, &c);
            // a faster link takes more of the memory, at moments when the cores needed it; and what
            // is ready earlier may share with something else, or change what the CPU begins with
            const double worse = strstr(name, "2") != NULL ? 1.04 : 1.01;
            CHECK(y.step <= x.step * worse, "choice %d, %s: %g after %g", i, name, y.step, x.step);
        }
        Rates other = r;
        if (alone) {
            for (int k = RATE_FIELDS - 3; k < RATE_FIELDS; k++) *rate_at(&other, k) = 1;
            Prediction y = planned(&other, &s, &c);
            CHECK(memcmp(&x, &y, sizeof x) == 0, "choice %d: %g %g", i, x.step, y.step);
            s.no_overlap = true;
            y = planned(&r, &s, &c);
            CHECK(y.step >= x.step * 0.999, "choice %d: %g overlapped, %g not", i, x.step, y.step);
            IS(y.step, y.update + uploaded(&s) / fmin(r.h2d, r.dram) + y.forward + y.backward);
            continue;
        }
        CHECK(x.step >= x.comm * 0.9999 && x.comm_exposed <= x.comm * 1.1, "choice %d: %g of %g", i,
              x.comm_exposed, x.comm);
        other.gpu_link = other.gpu_latency = 0;  // not known
        const Prediction y = planned(&other, &s, &c);
        CHECK(y.comm == 0 && y.comm_exposed == 0, "choice %d: %g", i, y.comm);
        IS(x.step - x.comm_exposed, fmin(x.step, y.step));
        IS(x.reduced_bytes, y.reduced_bytes);
        IS(x.gathered_bytes, y.gathered_bytes);
        double last = 0;
        s.no_overlap = false;  // with it, stages 1 and 2 wait until all is gathered
        for (s.zero = 1; s.zero <= 3; s.zero++) {
            const double t = planned(&r, &s, &c).step;
            CHECK(t >= last * 0.995, "choice %d: stage %d takes %g, the one before %g", i, s.zero,
                  t, last);
            last = t;
        }
    }
}

// The predicted bytes over the link are those of arithmetic. Micro-batches take what they take
// alone, also those that are not rehearsed.
static void bytes_are_those_of_arithmetic(void) {
    const Rates r = server();
    Step s = step_of("gpt2", 1);
    for (int i = 0; i < 100; i++) {
        const OffloadChoice c = some_choice(i, &s);
        Trainer *t = trainer_open(&s);
        const Prediction x = trainer_predict(t, &r, &c, s.recompute);
        const double visit = (double)t->g->pieces.elements[PIECE_VISIT];
        const double host = (double)t->g->pieces.elements[PIECE_HOST];
        const double grad = s.accum > 1 || c.wire_f32 ? 4 : W;
        const double leaves = c.sum_on_host ? (double)s.accum * W : grad;
        double away = 0;  // of visitors' gradients
        for (int k = 0; k < t->g->pieces.visits; k++)
            if (k >= c.kept_grads) away += (double)t->g->visits[k].piece->length;
        const double entry = (double)(s.B * s.T * t->g->config.channels * sizeof(floatX));
        const double inputs = c.inputs_leave ? (double)s.accum * 11 * entry : 0;  // of 12 layers
        const double in = STATE_BYTES * visit + grad * away + W * host + inputs;
        const double out = STATE_BYTES * visit + leaves * (double)t->g->pieces.grads_host + inputs;
        CHECK(in == x.h2d_bytes && out == x.d2h_bytes, "choice %d: %.0f %.0f, not %.0f %.0f", i,
              x.h2d_bytes, x.d2h_bytes, in, out);
        const double micros = (double)s.accum;
        if (c.sum_on_host)  // each but the first is read, as the sum is, which is written
            CHECK(x.step >= (micros - 1) * (8 + W) * (double)t->g->pieces.grads_host / r.dram * 0.999,
                  "choice %d: %g", i, x.step);
        trainer_close(t);
        s.accum = 1;
        const Prediction one = planned(&r, &s, &c);
        IS(x.compute, micros * one.compute);
        CHECK(x.step > x.forward + x.backward - 1e-4 * x.step
              && x.step < 1.02 * (x.forward + x.backward) + x.update + micros * 1e-3,
              "choice %d: %g, %g, %g of %g", i, x.forward, x.backward, x.update, x.step);
    }
}

// ---------------------------------------------------------------------------------------------
// The choice

// A trainer, and a memory plan in the small.
typedef struct { Trainer *t; const Rates *rates; double activations; } Memory;

static void memory_needs(void *arg, const OffloadChoice *c, size_t *gpu, size_t *host) {
    const Memory *m = (const Memory *)arg;
    const GPT2 *g = m->t->g;
    Pieces list = offload_pieces(&g->table, &g->shards, c);
    const size_t P = g->table.elements, resident = list.elements[PIECE_RESIDENT];
    size_t at;
    const size_t layer = zero_segment(&g->table, 1, &at);
    const double kept[] = {1, 10.0 / 16, 1.0 / 8};  // of activations
    *gpu = 2 * P + (size_t)(m->activations * kept[c->recompute - KEEP]) + 10 * resident
         + 2 * list.grads_gpu + (size_t)rooms_of(c->slots, LEAST_SLOTS, list.count) * 10 * list.longest_visit
         + (size_t)rooms_of(c->grad_rooms, LEAST_ROOMS, (int)g->config.layers) * 2 * layer;
    *host = 10 * (g->shards.elements - resident) + 2 * list.grads_host;
    if (c->sum_on_host) *host += P;
    pieces_free(&list);
}

static Prediction memory_rehearse(const void *arg, const OffloadChoice *c) {
    const Memory *m = (const Memory *)arg;
    return trainer_predict(m->t, m->rates, c, c->recompute);
}

// A choice in words.
static const char *said(const OffloadSearch *q) {
    static char text[200];
    const OffloadChoice *c = &q->choice;
    snprintf(text, sizeof text, "%s share %g resident %g, %d places, %d slots, %s%s%s%.4g s",
             offload_names[c->mode], c->share, c->resident, c->grad_rooms, c->slots,
             c->recompute == AGAIN ? "again, " : "", c->kept_grads > 0 ? "keeps grads, " : "",
             c->sum_on_host ? "sums on the host, " : "", q->predicted.step);
    return text;
}

static OffloadSearch search_for(Memory *memory, double gpu, double host) {
    const OffloadMemory m = {memory_needs, memory, (size_t)gpu, (size_t)host, RECOMPUTE_AUTO,
                             memory->t->g->accumulating, WEIGHTS_GPU, 0, NULL};
    OffloadSearch q;
    memset(&q, 0, sizeof q);
    q.rates = memory->rates;
    q.memory = m;
    q.rehearse = memory_rehearse;
    q.trainer = memory;
    gpt2_sizes(memory->t->g);
    q.bytes = update_bytes(memory->t->g);
    q.choice.slots = 3;
    return q;
}

// Nothing where it fits, with recomputation too if a step is long beside an update of everything.
// Else, of the CPU and the GPU, the faster one gets the work: cores and memory that outrun a slow
// link have no visitors, and as many residents as there is room; with slow cores, most visits. With
// little host memory, what does not fit there must be resident.
static void the_search_takes_what_suits_the_machine(void) {
    enum { AUTO = RECOMPUTE_AUTO, NOTHING_FITS = -1, FAST_HOST = 1, SLOW_CORES };
    typedef struct {
        const char *model;
        int machine, recompute;          // as it must be
        double activations, gpu, host;   // bytes, the last two those that are there
        int mode, again;
        double share[2], resident[2];    // from, to
    } Wanted;
    static const Wanted cases[] = {
        {"gpt2-xl", 0, AUTO, 1e9, 80e9, 0, OFFLOAD_NONE, 0, {0, 1}, {0, 1}},
        {"gpt2-xl", 0, AUTO, 60e9, 40e9, 200e9, OFFLOAD_NONE, 1, {0, 1}, {0, 1}},
        {"gpt2-xl", 0, AGAIN, 60e9, 80e9, 200e9, OFFLOAD_NONE, 1, {0, 1}, {0, 1}},
        {"gpt2-xl", 0, KEEP, 60e9, 70e9, 200e9, OFFLOAD_INTERLEAVE, 0, {0, 1}, {0, 1}},
        {"7b", FAST_HOST, AUTO, 2e9, 40e9, 200e9, OFFLOAD_TWINFLOW, -1, {0, 0}, {0, 1}},
        {"7b", FAST_HOST, AUTO, 2e9, 14.6e9, 200e9, OFFLOAD_ZERO, -1, {0, 0}, {0, 0}},
        {"7b", SLOW_CORES, AUTO, 2e9, 40e9, 200e9, OFFLOAD_INTERLEAVE, -1, {0.6, 0.95}, {0, 1}},
        {"7b", 0, AUTO, 2e9, 10e9, 200e9, NOTHING_FITS, -1, {0, 1}, {0, 1}},
        {"7b", 0, AUTO, 2e9, 24e9, 40e9, NOTHING_FITS, -1, {0, 1}, {0, 1}},
        {"7b", 0, AUTO, 2e9, 80e9, 40e9, OFFLOAD_INTERLEAVE, -1, {0, 1}, {0.5, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Wanted *x = &cases[i];
        Rates r = server();
        if (x->machine == SLOW_CORES) r.host_adam = 1.5e9;
        if (x->machine == FAST_HOST) {
            r.dram = r.dram_dma = 500e9;
            r.host_adam = 40e9;
            r.h2d = r.d2h = r.h2d_duplex = r.d2h_duplex = 25e9;
        }
        const Step s = step_of(x->model, 1);
        Memory memory = {trainer_open(&s), &r, x->activations};
        OffloadSearch q = search_for(&memory, x->gpu, x->host);
        q.memory.recompute = x->recompute;
        const bool fits = offload_search(&q);
        CHECK(fits == (x->mode != NOTHING_FITS), "%zu: %s", i, said(&q));
        if (fits)
            CHECK(q.choice.mode == x->mode
                  && (x->again < 0 || (q.choice.recompute == AGAIN) == x->again)
                  && q.choice.share >= x->share[0] && q.choice.share <= x->share[1]
                  && q.choice.resident >= x->resident[0] && q.choice.resident <= x->resident[1]
                  && choice_fits(&q.memory, &q.choice), "%zu: %s", i, said(&q));
        q.choice.resident += 0.04 * 40e9 / (12 * (double)memory.t->g->table.elements);
        CHECK(x->mode != OFFLOAD_TWINFLOW || !choice_fits(&q.memory, &q.choice),
              "%zu: room for %g", i, q.choice.resident);
        trainer_close(memory.t);
    }
}

// Nothing on a grid of choices that fit is clearly faster.
static void the_search_finds_what_a_grid_finds(void) {
    for (int i = test_whole() ? 0 : 5; i < 12; i += test_whole() ? 1 : 7) {
        Rates r = server();
        r.dram = r.dram_dma = 60e9 * (1 + i % 4);
        r.host_adam = 1.5e9 * (1 + i % 3) * (1 + i % 3);
        r.h2d_busy = r.d2h_busy = 30e9 + 5e9 * (i % 5);
        const Step s = step_of("gpt2-xl", i % 3 == 2 ? 4 : 1);
        Memory memory = {trainer_open(&s), &r, 3e9};
        OffloadSearch q = search_for(&memory, 6e9 + 1.5e9 * i, 200e9);
        q.choice.slots = 0;
        CHECK(offload_search(&q), "%s", said(&q));
        OffloadChoice more = q.choice;  // what is left of the GPU's memory is used
        more.slots++;
        CHECK(q.choice.mode != OFFLOAD_INTERLEAVE || more.slots > 1000
              || !choice_fits(&q.memory, &more), "%d: room for more: %s", i, said(&q));
        double best = INFINITY;
        OffloadChoice found = q.choice;
        for (int k = 0; k < 21 * 11 * 2 * 2; k++) {
            OffloadChoice c = choice_of(OFFLOAD_INTERLEAVE, k / 21 % 11 * 0.1, k % 21 * 0.05);
            c.recompute = k / 231 % 2 ? AGAIN : KEEP;
            c.kept_grads = k / 462 ? KEEP_ALL : 0;
            if (!choice_fits(&q.memory, &c)) continue;
            const Prediction x = memory_rehearse(&memory, &c);
            if (x.step < best) found = c;
            best = fmin(best, x.step);
        }
        CHECK(q.predicted.step <= 1.03 * best, "%d: %s; but %.3f s with share %.2f resident %.2f",
              i, said(&q), best, found.share, found.resident);
        IS(memory_rehearse(&memory, &q.choice).step, q.predicted.step);
        trainer_close(memory.t);
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
static double case_visits, case_host, case_elements;  // of the last one: of a rank's, of the model

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

static Prediction case_run(Case x) {
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
    Prediction seen = trainer_predict(t, &x.rates, &c, s.recompute);
    rehearsal_change = NULL;
    // its norm waits until the last gradient has left, too
    if (x.system == DEEPSPEED) seen.update -= (double)t->g->segment[0].leaving * 2 / 2.5e9;
    case_visits = (double)t->g->pieces.elements[PIECE_VISIT];
    case_host = (double)t->g->pieces.elements[PIECE_HOST];
    case_elements = (double)t->g->table.elements;
    trainer_close(t);
    return seen;
}

// The node's update throughput, in G parameters/s.
static double case_throughput(Case x) {
    const Prediction p = case_run(x);
    return 1e-9 * case_elements / p.update;
}

static double faster(Case slow, Case fast) { return case_run(slow).step / case_run(fast).step; }

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

static const char *const sizes[] = {"7b", "8.3b", "10b", "13b", "20b"};

static void cells_of_sizes(void) {
    Case zero = case_of(DEEPSPEED, 0), half = case_of(OVERLAPPED, 0), deep = case_of(DEEP, 2);
    double least = INFINITY, most = 0, update = 0, slow = INFINITY, fast = 0, seconds[5], all = 0;
    for (int i = 0; i < 5; i++) {
        zero.model = deep.model = sizes[i];
        seconds[i] = case_run(zero).step;
        all = faster(zero, deep);
        least = fmin(least, all);
        most = fmax(most, all);
        update += (case_throughput(deep) / case_throughput(zero) - 1) / 5;
        slow = fmin(slow, case_throughput(deep));
        fast = fmax(fast, case_throughput(deep));
    }
    cell("%.2f to %.2f", least, most);
    cell("%.2f", seconds[1] / seconds[2]);
    cell("%.2f", faster(zero, half));  // 20B, as what follows
    cell("%.2f; in all %.2f", faster(half, deep), all);
    cell("%+.0f %%", 100 * update);
    cell("%.1f to %.1f", slow, fast);
    cell("%.2f", all);
    cell("%.2f", case_run(deep).step / seconds[0]);
}

static void cells_of_residents(void) {
    Case zero = case_of(DEEPSPEED, 0), twin = zero, deep = case_of(DEEP, 2);
    double least = INFINITY, most = 0;
    for (int r = 0; r <= 5; r++) {
        twin.resident = deep.resident = 0.1 * r;
        const double t = case_run(twin).update / case_run(deep).update;
        least = fmin(least, t);
        most = fmax(most, t);
    }
    cell("%.2f to %.2f", least, most);
    cell("%.2f", faster(twin, deep));
    deep.resident = 0;
    const double t = case_run(twin).step, d = case_run(deep).step;
    cell("%.2f s and %.2f s: %.2f", d, t, t / d);
    twin.resident = deep.resident = 0.2;
    cell("%.0f %%", 100 * (case_run(zero).update / case_run(twin).update - 1));
    least = INFINITY;
    most = 0;
    for (int i = 0; i < 5; i++) {
        twin.model = deep.model = sizes[i];
        least = fmin(least, faster(twin, deep));
        most = fmax(most, faster(twin, deep));
    }
    cell("%.2f to %.2f", least, most);
}

static void cells_of_scaling(void) {
    const Case zero_20b = case_of(DEEPSPEED, 0), deep_20b = case_of(DEEP, 2);
    Case zero = zero_20b, deep = deep_20b;
    double at[8];
    for (int i = 0; i < 4; i++) {
        zero.batch = deep.batch = (size_t)1 << i;
        at[i] = faster(zero, deep);
    }
    cell("%.2f, %.2f, %.2f, %.2f", at[0], at[1], at[2], at[3]);
    zero.batch = deep.batch = 1;
    for (int i = 0; i < 5; i++) {
        zero.rates.host_adam = deep.rates.host_adam = 0.5e9 * (1 << i);
        zero.rates.host_cast = deep.rates.host_cast = 15.5e9 / 4 * (1 << i);
        at[i] = faster(zero, deep);
    }
    cell("%.2f, %.2f, %.2f, %.2f, %.2f", at[0], at[1], at[2], at[3], at[4]);
    zero = zero_20b;
    deep = deep_20b;
    for (int k = 0; k < 2; k++) {
        zero.collectives = deep.collectives = k;
        for (int i = 0; i < 4; i++) {
            zero.ranks = deep.ranks = (size_t)1 << i;
            at[i] = faster(zero, deep);
        }
        cell("%.2f, %.2f, %.2f, %.2f", at[0], at[1], at[2], at[3]);
    }
    Case large = zero_20b;
    large.subgroup = 1000000000;
    cell("%.1f %%", 100 * fabs(case_run(large).step / case_run(zero_20b).step - 1));
}

// Tflop/s, and how much of the update the cores work and the link into the host is busy, in %.
static void utilisation(Case x, double v[3]) {
    const Prediction p = case_run(x);
    v[0] = 1e-12 * x.rates.gpu_flops * p.compute / p.step;
    v[1] = 100 * case_host * (1 / x.rates.host_adam + 1 / x.rates.host_cast) / p.update;
    v[2] = 100 * 12 * case_visits / x.rates.d2h / p.update;
    if (case_visits == 0) v[2] = 100 * 2 * case_host / x.rates.h2d / p.update;
}

static void cells_of_utilisation(void) {
    double none[3], two[3], three[3], four[3];
    utilisation(case_of(DEEPSPEED, 0), none);
    utilisation(case_of(DEEP, 2), two);
    utilisation(case_of(DEEP, 3), three);
    utilisation(case_of(DEEP, 4), four);
    cell("%.0f; %.0f, %.0f, %.0f", none[0], two[0], three[0], four[0]);
    for (int k = 1; k < 3; k++) cell("%.0f %%, %.0f %%", none[k], two[k]);
}

// The throughput with strides from `first` on.
static void strides(Case x, size_t first, int count, double at[]) {
    for (int i = 0; i < count; i++) {
        x.stride = first + (size_t)i;
        at[i] = case_throughput(x);
    }
}

static void cells_of_strides(void) {
    Case deep = case_of(DEEP, 2);
    double at[4], best[2] = {0, 0}, where[2] = {0, 0};
    strides(deep, 2, 3, at);
    cell("%.1f, %.1f, %.1f", at[0], at[1], at[2]);
    deep.stride = 0;
    for (int i = 0; i <= 200; i++) {
        const int k = i / 101;
        deep.slots = k == 0 ? 1 : 3;
        deep.share = 0.01 * (i % 101);
        const double t = case_throughput(deep);
        if (t > best[k]) where[k] = deep.share;
        best[k] = fmax(best[k], t);
    }
    cell("%.0f %%: %.1f; %.0f %%: %.1f", 100 * where[0], best[0], 100 * where[1], best[1]);
    cell("%.2f, %.0f %%", eq1_stride(&deep.rates), 100 / (1 + eq1_stride(&deep.rates)));
    Case old = deep;
    old.model = "7b";
    old.rates = rates_named("paper_v100");
    old.ranks = 1;
    old.share = 0;
    cell("%.2f", eq1_stride(&old.rates));
    cell("%.2f", case_throughput(old));
    for (size_t first = 2; first <= 3; first++) {
        strides(old, first, 4, at);
        cell("%.2f, %.2f, %.2f, %.2f", at[0], at[1], at[2], at[3]);
    }
}

static void cells_of_dram(void) {
    static const double dram[] = {0, 120e9, 60e9};
    for (int i = 0; i < 3; i++) {
        Case tide = case_of(TIDE, 0);
        tide.rates.dram = tide.rates.dram_dma = dram[i];
        const UpdateBytes bytes = {.grad = 2, .weight = 2, .kept_grads = 1, .state = 10};
        const double f = best_share(&tide.rates, &bytes), shares[3] = {0, 0.5, f};
        double at[3];
        for (int k = 0; k < 3; k++) {
            tide.share = shares[k];
            at[k] = case_throughput(tide);
        }
        cell("%.0f %%; %.1f, %.1f, %.1f; %.2f s", 100 * f, at[0], at[1], at[2],
             case_run(tide).step);
    }
}

// The artefact's log: one H100, 10 iterations of a model of 5.949 G parameters.
static void cells_of_log(void) {
    Case zero = case_of(DEEPSPEED, 0), deep = case_of(DEEP, 2);
    zero.model = deep.model = "7b";
    zero.ranks = deep.ranks = 1;
    const double z = case_run(zero).step, d = case_run(deep).step, part = 5.949e9 / case_elements;
    cell("%.2f s; %.2f s", part * z, part * d);
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
    cells_of_sizes();
    cells_of_residents();
    cells_of_scaling();
    cells_of_utilisation();
    cells_of_strides();
    cells_of_dram();
    cells_of_log();
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
    RUN(updates_reach_their_bound);
    RUN(a_better_machine_is_not_slower);
    RUN(bytes_are_those_of_arithmetic);
    if (!IS_HALF) return test_summary();
    RUN(the_search_takes_what_suits_the_machine);
    RUN(the_search_finds_what_a_grid_finds);
    if (test_whole()) RUN(the_lesson_has_this_table);
    return test_summary();
}
