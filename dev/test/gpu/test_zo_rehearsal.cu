// test_zo_rehearsal.cu: rehearsals of zeroth-order training (zo.cuh): the work of a step by hand,
// and the tables of ZO-Offloading (Wang et al. 2024): `test_zo_rehearsal --table` prints what
// doc/speed.md must have, test_zo_rehearsal_fp32 its rows in fp32. (What waits for what: the clocks
// of test_zo_gpu.cu, where the trainer itself runs.)
#include "model_harness.cuh"

typedef struct {
    GPT2Config config;
    size_t B, T, accum, queries, slots, streamed;
    int noise;
    bool serial, no_slots, unfused, labels;
    bool no_prefetch;  // of another system: a layer comes only in the pass that needs it
} Plan;

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

static Prediction rehearse_plan(const Rates *rates, const Plan *p) {
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
    zo_place(g, g->config.layers - p->streamed, p->slots);
    pass_copies = LAYER_PARTS * p->streamed;
    rehearsal_change = p->no_prefetch ? come_in_their_pass : NULL;
    const Prediction x = gpt2_rehearse(g, r, rates, NULL);
    rehearsal_change = NULL;
    model_forget(g);
    free(r);
    return x;
}

static double step_of(const Rates *r, const Plan *p) { return rehearse_plan(r, p).step; }

// Tokens per second.
static double speed(const Plan *p, double step) { return (double)(p->B * p->T * p->accum) / step; }

// ---------------------------------------------------------------------------------------------
// By hand

// A step of two layers, one of which is on the host. normals: numbers per second, so few that a
// kernel over weights takes as long as its noise; 0: it takes as long as its bytes.
static const struct { size_t queries, accum; bool unfused, labels; int noise; double normals; }
by_hand[] = {
    {1, 1, false, false, ZO_GAUSSIAN, 0},        {3, 2, false, false, ZO_GAUSSIAN, 1e9},
    {2, 7, true, false, ZO_GAUSSIAN, 1e9},       {2, 1, false, false, ZO_RADEMACHER, 1e9},
    {1, REHEARSED_MICRO + 2, true, true, ZO_GAUSSIAN, 0},
};

static void the_work_is_as_by_hand(void) {
    for (const auto &row : by_hand) {
        Plan p = plan_of("d2");
        p.B = 3;
        p.T = 64;
        p.streamed = 1;
        p.queries = row.queries;
        p.accum = row.accum;
        p.unfused = row.unfused;
        p.serial = !row.unfused;
        p.labels = row.labels;
        p.noise = row.noise;
        Rates r;
        memset(&r, 0, sizeof r);
        r.h2d = 3e9;
        r.d2h = 2e9;
        r.gpu_flops = 1e12;
        r.gpu_attention = 4e11;
        r.gpu_bytes = 1e11;
        r.gpu_normals = row.normals;
        const double q = (double)p.queries, micros = (double)p.accum, C = 128, T = 64, N = 3 * T;
        const double V = 50304, layer = 12 * C * C + 13 * C, bytes = 1e11 / stored;
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
        const Prediction x = rehearse_plan(&r, &p);
        const double other = passes + perturbed + updated + stays;
        IS(x.compute, products + attention);
        IS(x.other, other);
        IS(x.h2d_bytes, (micros + row.unfused) * stored * layer);
        IS(x.d2h_bytes, stored * layer);
        const double in = (x.h2d_bytes + 8 * N * micros) / 3e9;  // with tokens
        const double out = (x.d2h_bytes + 8 * (2 * q * micros + 1)) / 2e9;  // with losses
        if (p.serial) IS(x.step, in + x.compute + x.other + out);
    }
}

// ---------------------------------------------------------------------------------------------
// Tables 1 and 2 of ZO-Offloading, on its machine, as fitted in scripts/rates

// tokens/s, and a note of the lesson: fp16, fp32
static const struct { const char *name; double mezo[2], zo[2]; int note[2]; } rows[] = {
    {"opt-1.3b", {6788, 1954}, {6788, 1954}, {1, 1}},
    {"opt-2.7b", {4227, 1087}, {4227, 1087}, {1, 1}},
    {"opt-6.7b", {2455, 499}, {2455, 499}, {1, 1}},
    {"opt-13b", {1406, 270}, {1340, 270}, {1, 1}},
    {"opt-30b", {651, 0}, {597, 122}, {1, 3}},
    {"opt-66b", {0, 0}, {273, 40}, {2, 4}},
    {"opt-175b", {0, 0}, {37, 14}, {4, 4}},
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
        Rates r;
        Plan p;
        char is[32] = "no room", paper[32] = "no room";
        const double mezo = testbed(i, &r, &p), x = step_of(&r, &p), fast = speed(&p, x);
        p.no_prefetch = false;
        if (had > 0) snprintf(is, sizeof is, "%.0f", had);
        if (had > 0) snprintf(paper, sizeof paper, "%.2f", got / had);
        fprintf(f, "| %s, fp%d | %s | %.0f | %.0f | %.0f | %s | %.2f | %d |\n", rows[i].name, BITS,
                is, got, fast, speed(&p, step_of(&r, &p)), paper, mezo / x, rows[i].note[FP32]);
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
            fprintf(f, " %.2f | %.2f |", ways[k].paper[i], all / step_of(&r, &p));
        }
        fprintf(f, " %d |\n", 5 + k);
    }
}

// Tokens per pass from which copies take no longer than all other work.
static double hidden_from(const Rates *rates, const Plan *p) {
    int both[TAKES_KINDS] = {0};
    both[TAKES_H2D] = both[TAKES_D2H] = 1;
    double speed[TAKES_KINDS];
    machine_speeds(rates, both, speed);
    const Prediction x = rehearse_plan(rates, p);
    const double link = fmax(x.h2d_bytes / speed[TAKES_H2D], x.d2h_bytes / speed[TAKES_D2H]);
    return (double)(p->B * p->T) * fmax(link - x.other, 0) / x.compute;
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
                2 * r.gpu_flops / (4 * fmin(r.h2d_duplex, r.d2h_duplex)), hidden_from(&r, &p));
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
        return 0;
    }
    RUN(the_work_is_as_by_hand);
    if (test_whole()) RUN(the_lesson_has_these_tables);
    return test_summary();
}
