// test_zo_rehearsal.cu: rehearsals of zeroth-order training (zo.cuh) against arithmetic, and against
// the tables of ZO-Offloading (Wang et al. 2024): `test_zo_rehearsal --table` prints what
// doc/speed.md must have, test_zo_rehearsal_fp32 its rows in fp32. (Against the trainer itself:
// test_zo_gpu.cu.)
#include "model_harness.cuh"

typedef struct {
    GPT2Config config;
    size_t B, T, accum, queries, slots, streamed;
    int noise;
    bool serial, no_slots, unfused, labels;
    bool no_prefetch;  // of another system: a layer comes only in the pass that needs it
} Plan;

// The share of a step that copies take.
typedef struct {
    double in, out;          // seconds that they would take, both ways busy
    double exposed;          // by so many, a step is longer than its work for the GPU
    double hidden_from;      // tokens per pass from which they are hidden
} Link;

typedef struct { Prediction t; Link link; } ZoTimes;

static double later(double a, double b) { return a > b ? a : b; }

static const double stored = sizeof(floatX);  // bytes of a weight

// One sequence of 2048, three slots, all layers on the host.
static Plan plan_of(const char *model) {
    Plan p;
    Error err;
    memset(&p, 0, sizeof p);
    if (!gpt2_preset(&p.config, model) || !gpt2_finish(&p.config, &err)) fail("no model %s", model);
    p.B = p.accum = p.queries = 1;
    p.T = min_size(p.config.context, 2048);
    p.slots = 3;
    p.streamed = p.config.layers;
    return p;
}

// Jobs of another system: the first layer that comes in a pass waits for the end of the one before.
// A pass begins where the numbers of the compute stream's spans do, and layers come in its order,
// each in LAYER_PARTS copies.
static size_t pass_copies;
static void come_in_their_pass(Rehearsal *q) {
    enum { PASSES = 100 * REHEARSED_MICRO };
    int ends[PASSES], passes = 0, last = NO_JOB;
    size_t copy = 0;
    for (int i = 0; i < q->count; i++) {
        if (q->jobs[i].span.row != ROW_COMPUTE) continue;
        if (last != NO_JOB && q->jobs[i].span.number < q->jobs[last].span.number)
            ends[passes++] = last;
        last = i;
    }
    for (int i = 0; i < q->count; i++) {
        Job *t = &q->jobs[i];
        if (t->span.row != ROW_FETCH || copy++ % pass_copies > 0) continue;
        const int pass = (int)(copy / pass_copies);
        if (pass == 0 || pass > passes) continue;
        int k = 0;  // in the place of what the same stream has done before
        while (t->waits[k] != NO_JOB && q->jobs[t->waits[k]].stream != q->jobs[last].stream)
            if (++k == JOB_WAITS) fail("no room for a wait");
        t->waits[k] = ends[pass - 1];
    }
}

static Link link_in(const Rates *rates, const Plan *p, const Prediction *pred) {
    int both[TAKES_KINDS] = {0};
    both[TAKES_H2D] = both[TAKES_D2H] = 1;
    double speed[TAKES_KINDS];
    Link l;
    machine_speeds(rates, both, speed);
    l.in = pred->h2d_bytes / speed[TAKES_H2D];
    l.out = pred->d2h_bytes / speed[TAKES_D2H];
    l.exposed = pred->step - pred->compute - pred->other;
    l.hidden_from = (double)(p->B * p->T) * later(later(l.in, l.out) - pred->other, 0)
                  / pred->compute;
    return l;
}

static ZoTimes rehearse_plan(const Rates *rates, const Plan *p) {
    GPT2 *g = zo_new(&p->config, p->B, p->T);
    Run *r = ALLOC(Run, 1, "test");
    ZoTimes x;
    g->zo->config = ZoConfig{1, 1e-3f, (int)p->queries, p->noise, ZO_STORAGE};
    g->words.count = p->labels ? 2 : 0;
    g->no_overlap = p->serial;
    g->zo->keeps_slots = !p->no_slots;
    g->zo->fused = !p->unfused;
    r->o.accum = p->accum;
    r->B = p->B;
    r->T = p->T;
    r->step_tokens = p->B * p->T * p->accum;
    zo_place(g, g->config.layers - p->streamed, p->slots);
    pass_copies = LAYER_PARTS * p->streamed;
    rehearsal_change = p->no_prefetch ? come_in_their_pass : NULL;
    x.t = gpt2_rehearse(g, r, rates, NULL);
    rehearsal_change = NULL;
    x.link = link_in(rates, p, &x.t);
    model_forget(g);
    free(r);
    return x;
}

static double step_of(const Rates *r, const Plan *p) { return rehearse_plan(r, p).t.step; }

// Tokens per second.
static double speed(const Plan *p, double step) { return (double)(p->B * p->T * p->accum) / step; }

// Nothing limits, but what a test sets.
static Rates link_of(double in, double out, double flops) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = in;
    r.d2h = out;
    r.gpu_flops = r.gpu_attention = flops;
    return r;
}

static double layer_weights(const Plan *p) {
    const double C = (double)p->config.channels;
    return 12 * C * C + 13 * C;
}

// Of a pass in one direction, all layers over the link.
static double layers_bytes(const Plan *p) {
    return stored * (double)p->config.layers * layer_weights(p);
}

// ---------------------------------------------------------------------------------------------
// Arithmetic

// Of each group: weights, and floating-point operations per token, of one sign.
static void groups_of(const Plan *p, double weights[LAYER_PARTS], double flops[LAYER_PARTS]) {
    const double C = (double)p->config.channels, F = (double)p->config.ffn, T = (double)p->T;
    weights[0] = 3 * C * C + 5 * C;
    weights[1] = C * C + 3 * C;
    weights[2] = C * F + F;
    weights[3] = C * F + C;
    flops[0] = 6 * C * C + 2 * C * T;  // with attention, half of whose pairs are masked
    flops[1] = 2 * C * C;
    flops[2] = flops[3] = 2 * C * F;
}

// Seconds of a kernel over n weights: what its bytes take, or its noise, if that takes longer.
static double kernel(const Rates *r, const Plan *p, double n, int copies, double draws) {
    const double bytes = n * stored * copies / rate_or(r->gpu_bytes, UNLIMITED);
    const double noise = n * draws / rate_or(r->gpu_normals, UNLIMITED);
    return p->noise == ZO_GAUSSIAN ? later(bytes, noise) : bytes;
}

// Seconds of a pass: before the layers, the update of what stays on the GPU; the embeddings of all
// directions and signs; and behind the layers.
static double stays(const Rates *r, const Plan *p) {
    const double C = (double)p->config.channels, V = (double)p->config.vocab_padded;
    const double n = V * C * (p->config.tied ? 1 : 2) + (double)p->config.context * C + 2 * C;
    return kernel(r, p, n, 2, (double)p->queries);
}

static double embeds(const Rates *r, const Plan *p) {
    const double N = (double)(p->B * p->T), C = (double)p->config.channels;
    return 2 * (double)p->queries * 3 * N * C * stored / rate_or(r->gpu_bytes, UNLIMITED);
}

// Seconds of the passes between a layer's products, of one sign.
static double passes(const Rates *r, const Plan *p) {
    const double N = (double)(p->B * p->T), C = (double)p->config.channels;
    const double F = (double)p->config.ffn;
    return (8 * C + 2 * F) * N * stored / rate_or(r->gpu_bytes, UNLIMITED);
}

typedef struct { double products, other; } Work;

static Work head(const Rates *r, const Plan *p) {
    const double N = (double)(p->B * p->T), C = (double)p->config.channels;
    const double V = p->labels ? 0 : (double)p->config.vocab_padded, q = (double)p->queries;
    const double logits = 16 * N * V / rate_or(r->gpu_bytes, UNLIMITED);  // fp32, written and read
    const Work w = {q * 4 * N * V * C / rate_or(r->gpu_flops, UNLIMITED),
                    q * (kernel(r, p, (V + 2) * C, 3, 1) + logits)};
    return w;
}

// Of a step.
static Work work_of(const Rates *r, const Plan *p) {
    const double L = (double)p->config.layers, N = (double)(p->B * p->T), q = (double)p->queries;
    const double P = L * layer_weights(p), micros = (double)p->accum;
    double weights[LAYER_PARTS], flops[LAYER_PARTS];
    groups_of(p, weights, flops);
    Work w = head(r, p);
    for (int k = 0; k < LAYER_PARTS; k++)
        w.products += q * L * 2 * N * flops[k] / rate_or(r->gpu_flops, UNLIMITED);
    w.products *= micros;
    w.other = micros * (w.other + embeds(r, p) + q * kernel(r, p, P, 3, 1)
                        + q * L * 2 * passes(r, p)) + stays(r, p);
    if (p->unfused) w.other += kernel(r, p, P, 2, q);
    else w.other += kernel(r, p, P, 4, 1 + q) - kernel(r, p, P, 3, 1);
    return w;
}

// Losses on their way to the host.
static double losses_take(const Rates *r, const Plan *p) {
    return (double)(2 * p->queries * p->accum + 1) * 8 / r->d2h;
}

// One layer, one slot, kernels without time: each group's place is free for its successor as soon
// as it has left, so that one slot is enough for the link never to wait.
static void one_slot_keeps_the_link_busy(void) {
    Plan p = plan_of("d2");
    p.config.layers = p.streamed = p.slots = 1;
    p.T = 16;  // few tokens on their way in
    const double bytes = layers_bytes(&p);
    Rates r = link_of(1e6, 1e6, 0);
    ZoTimes x = rehearse_plan(&r, &p);
    ABOUT(x.t.step, bytes / 1e6, 1e-3);
    r.d2h = 0.5e6;
    x = rehearse_plan(&r, &p);
    ABOUT(x.t.step, bytes / 0.5e6, 1e-3);
}

// The sums of all work; of no overlap, they make the step. With it, a step takes as long as what is
// busy longest, and no longer than all that follows each other.
static void work_is_that_of_arithmetic(void) {
    static const char *const models[] = {"gpt2", "d4", "opt-125m"};
    for (int i = 0; i < (test_whole() ? 1500 : 300); i++) {
        Plan p = plan_of(models[draw(3)]);
        p.config.layers = 1 + draw(14);
        p.B = 1 + draw(3);
        p.T = 64 << draw(5);
        p.accum = 1 + (draw(3) == 0) * draw(2 * REHEARSED_MICRO);
        p.queries = 1 + draw(5);
        p.slots = 1 + draw(4);
        p.streamed = draw(p.config.layers + 1);
        p.labels = draw(2);
        p.no_prefetch = draw(4) == 0 && p.streamed > 0;
        p.unfused = draw(4) == 0;
        p.serial = draw(6) == 0 && !p.unfused && !p.no_prefetch;
        p.noise = draw(3) > 0 ? ZO_GAUSSIAN : ZO_RADEMACHER;
        Rates r = link_of(1e9 * (double)(1 + draw(40)), 1e9 * (double)(1 + draw(40)),
                          1e12 * (double)(1 + draw(100)));
        if (draw(6) > 0) r.gpu_bytes = 1e10 * (double)(1 + draw(100));
        if (draw(4) == 0) r.gpu_normals = 1e10 * (double)(1 + draw(100));
        const ZoTimes x = rehearse_plan(&r, &p);
        const Work w = work_of(&r, &p);
        const double bytes = (double)p.streamed * stored * layer_weights(&p);
        IS(x.t.compute, w.products);
        IS(x.t.other, w.other);
        IS(x.link.in, (double)(p.accum + p.unfused) * bytes / r.h2d);
        IS(x.link.out, bytes / r.d2h);
        const double all = 8 * (double)(p.B * p.T * p.accum) / r.h2d + x.link.in + w.products
                         + w.other + x.link.out + losses_take(&r, &p);
        const double most = later(w.products + w.other, later(x.link.in, x.link.out));
        CHECK(x.t.step >= (p.serial ? all : most) * 0.9999 && x.t.step <= all * 1.0001,
              "%d: %g, not %g to %g: %zu of %zu layers, slots %zu, q %zu, accum %zu%s%s%s", i,
              x.t.step, most, all, p.streamed, p.config.layers, p.slots, p.queries, p.accum,
              p.no_prefetch ? ", no prefetch" : "", p.unfused ? ", not fused" : "",
              p.serial ? ", serial" : "");
    }
}

// ---------------------------------------------------------------------------------------------
// Limits

// Where does a rehearsal hide the link, and where does the closed form?
static void hidden_from_the_right_tokens(void) {
    static const char *const names[] = {"opt-1.3b", "opt-13b", "opt-66b"};
    for (int i = 0; i < 3; i++)
        for (size_t q = 1; q <= 4; q += 3) {
            Plan p = plan_of(names[i]);
            Rates r = link_of(10e9 * stored, 12e9 * stored, 2e14);
            p.queries = q;
            p.labels = i != 1;
            p.T = 16;  // attention is left out of b F / (4 q B)
            if (p.labels)
                ABOUT(rehearse_plan(&r, &p).link.hidden_from, 2e14 / (40e9 * (double)q), 0.01);
            p.T = 128;
            r.gpu_bytes = 0.75e12 * stored;
            double said = 1280;
            for (int k = 0; k < 2; k++) {  // predicted from a batch of about that size
                p.B = (size_t)(said / 128);
                said = rehearse_plan(&r, &p).link.hidden_from;
            }
            const size_t sizes[] = {(size_t)(0.99 * said / 128) - 1, (size_t)(1.01 * said / 128) + 2};
            for (int k = 0; k < 2; k++) {  // less than a hundredth of a step is exposed
                p.B = sizes[k];
                const ZoTimes x = rehearse_plan(&r, &p);
                CHECK((x.link.exposed < 0.01 * x.t.step) == (k == 1), "%s, %zu: not from %g on",
                      names[i], q, said);
            }
            p.B /= 2;  // the step takes as long as the link
            const ZoTimes y = rehearse_plan(&r, &p);
            ABOUT(y.t.step, y.link.in, 0.02);
        }
}

// ---------------------------------------------------------------------------------------------
// Tables 1 and 2 of ZO-Offloading, on its machine, as fitted in scripts/rates

typedef struct { const char *name; double mezo[2], zo[2]; } Row;

static const Row rows[] = {  // tokens/s: fp16, fp32
    {"opt-1.3b", {6788, 1954}, {6788, 1954}}, {"opt-2.7b", {4227, 1087}, {4227, 1087}},
    {"opt-6.7b", {2455, 499}, {2455, 499}},   {"opt-13b", {1406, 270}, {1340, 270}},
    {"opt-30b", {651, 0}, {597, 122}},        {"opt-66b", {0, 0}, {273, 40}},
    {"opt-175b", {0, 0}, {37, 14}},
};
enum { ROWS_OF_TABLE = sizeof rows / sizeof *rows, FP32 = BITS == 32 };

// Their system: three blocks on the GPU, nothing of the next step before this one's losses. With
// the speed at which the products of MeZO took the time that MeZO took; of the largest, as of the
// last one that had room. Returns what MeZO takes, in seconds.
static double testbed(int row, Rates *r, Plan *p) {
    int last = row;
    while (rows[last].mezo[FP32] == 0) last--;
    *r = rates_named("a100_80gb_pcie4_zo");
    *p = plan_of(rows[last].name);
    p->streamed = 0;
    r->gpu_flops *= step_of(r, p) / (2048 / rows[last].mezo[FP32]);
    r->gpu_attention = r->gpu_flops;
    *p = plan_of(rows[row].name);
    p->streamed = 0;
    const double mezo = step_of(r, p);
    p->streamed = p->config.layers;
    p->no_prefetch = true;
    return mezo;
}

static void table_throughput(FILE *f) {
    fprintf(f, "| tokens/s | MeZO, the paper | ZO-Offload, the paper | the model | with prefetch | "
            "to MeZO, the paper | the model | note |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < ROWS_OF_TABLE; i++) {
        const double had = rows[i].mezo[FP32], got = rows[i].zo[FP32];
        const bool fits = had > 0 || i == 4 || (i == 5 && !FP32);
        Rates r;
        Plan p;
        char is[32], paper[32];
        const double mezo = testbed(i, &r, &p), x = step_of(&r, &p), fast = speed(&p, x);
        p.no_prefetch = false;
        snprintf(is, sizeof is, had > 0 ? "%.0f" : "no room", had);
        snprintf(paper, sizeof paper, had > 0 ? "%.2f" : "no room", got / had);
        fprintf(f, "| %s, fp%d | %s | %.0f | %.0f | %.0f | %s | %.2f | %d |\n", rows[i].name, BITS,
                is, got, fast, speed(&p, step_of(&r, &p)), paper, mezo / x,
                had > 0 ? 1 : i == 4 ? 3 : fits ? 2 : 4);
        if (fits) ABOUT(fast, got, had > 0 ? 0.03 : 0.05);
        else CHECK(fast > 1.3 * got, "%s: %g", rows[i].name, fast);
        if (had > 0) ABOUT(mezo / x, got / had, 0.03);
    }
}

static void table_ablation(FILE *f) {
    static const struct { const char *name; double paper[3]; } ways[3] = {
        {"no fused update", {1567.0 / 1954, 849.0 / 1087, 373.0 / 499}},
        {"no overlap", {1109.0 / 1954, 573.0 / 1087, 225.0 / 499}},
        {"no reusable memory", {735.0 / 1954, 422.0 / 1087, 184.0 / 499}},
    };
    fprintf(f, "| fp32, to all of it | 1.3B, the paper | the model | 2.7B, the paper | the model | "
            "6.7B, the paper | the model | note |\n|---|---|---|---|---|---|---|---|\n");
    for (int k = 0; k < 3; k++) {
        fprintf(f, "| %s |", ways[k].name);
        for (int i = 0; i < 3; i++) {
            Rates r;
            Plan p;
            testbed(i, &r, &p);
            p.no_prefetch = k < 2;  // or else its host waits for what does not come yet
            const double all = step_of(&r, &p);
            p.unfused = k == 0;
            p.serial = k == 1;
            p.no_slots = k == 2;
            const double is = all / step_of(&r, &p), paper = ways[k].paper[i];
            fprintf(f, " %.2f | %.2f |", paper, is);
            if (k == 0) ABOUT(is, paper, 0.03);
            else if (k == 2) ABOUT(is, paper, 0.12);
            else CHECK(is > paper, "%s: %g", ways[k].name, is);
        }
        fprintf(f, " %d |\n", 5 + k);
    }
}

// This trainer on the machines of scripts/rates.
static void table_machines(FILE *f) {
    static const char *const names[] = {"h200_16cores", "rtx4090_desktop", "rtx3090_desktop"};
    fprintf(f, "| 30B in 16 bits, from the host | b F / 4 B | with kernels, attention | s per step "
            "of 2048 tokens: 1 direction | 2 | 3 | 4 |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < 3; i++) {
        Plan p = plan_of("opt-30b");
        Rates r = rates_named(names[i]);
        r.gpu_normals = 0;  // noise is left out
        fprintf(f, "| %s | %.0f | %.0f |", names[i],
                2 * r.gpu_flops / (4 * fmin(r.h2d_duplex, r.d2h_duplex)),
                rehearse_plan(&r, &p).link.hidden_from);
        for (p.queries = 1; p.queries <= 4; p.queries++) fprintf(f, " %.2f |", step_of(&r, &p));
        fprintf(f, "\n");
    }
}

static void tables(FILE *f) {
    table_throughput(f);
    fprintf(f, "\n");
    if (FP32) table_ablation(f);
    else table_machines(f);
}

// The tables in the lesson are the ones that rehearsals make.
static void the_lesson_has_these_tables(void) {
    size_t n;
    Error err;
    char *text = NULL, *lesson = file_read("doc/speed.md", &n, &err);
    FILE *f = open_memstream(&text, &n);
    tables(f);
    fclose(f);
    CHECK(lesson != NULL, "%s", err.text);
    for (char *at = strtok(text, "\n"); at != NULL && lesson != NULL; at = strtok(NULL, "\n"))
        CHECK(strstr(lesson, at) != NULL, "doc/speed.md lacks: %s", at);
    free(lesson);
    free(text);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--table") == 0) {
        tables(stdout);
        return test_failures_here > 0;
    }
    RUN(one_slot_keeps_the_link_busy);
    RUN(work_is_that_of_arithmetic);
    RUN(hidden_from_the_right_tokens);
    if (test_whole()) RUN(the_lesson_has_these_tables);
    return test_summary();
}
