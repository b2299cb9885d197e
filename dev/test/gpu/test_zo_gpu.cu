// test_zo_gpu.cu: zeroth-order training on the GPU. Wherever the layers live and however they
// travel, every loss and every weight has the same bits; these are the CPU's; runs go on anywhere;
// several processes have the bits of one; and copies hide behind kernels as they should.
//
// usage: test_zo_gpu                     all tests
//        test_zo_gpu --config K|some|all [N]  for test_schedules.sh, as in test_model
//        test_zo_gpu --rank              what test_ranks runs: one process of several
//        test_zo_gpu --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "model_harness.cuh"
#include "cpu_reference.h"

// ---------------------------------------------------------------------------------------------
// The configurations

// With gaps between tensors, padded rows, tied and untied heads; a loss of labels; and a
// vocabulary of two chunks, the second one not full. In fp32, with rows that begin and end amid the
// eight elements that are drawn at once.
enum { TIED, ODD, LABELS, WIDE, LLAMA, WORDS, SHAPES };
enum { LESS = BITS == 32 ? 4 : 0 };
static const Shape shapes[SHAPES] = {
    // name     L NH   C   F    V  ctx  B   T  act  tied recompute accum head repeated
    {"tied",    4, 2, 32, 64, 131,  8, 2,  4, GELU, 1, KEEP, 1, 99, false},
    {"odd",     5, 1, 24 - LESS, 40, 257,  7, 2,  5, RELU, 0, KEEP, 1, 99, false},
    {"labels",  3, 1, 16 + LESS, 32, 150,  8, 2,  6, RELU, 1, KEEP, 1, 99, false},
    {"wide",    3, 1, 16, 24, 700,  6, 2,  3, GELU, 0, KEEP, 1, 99, false},
    {"llama",   4, 4, 24, 40, 131,  8, 2,  4, GELU, 0, KEEP, 1, 99, false, 0,
     FAMILY_QWEN3, 2, 8},
    {"words",   3, 4, 16, 24, 150,  8, 2,  6, GELU, 1, KEEP, 1, 99, false, 0,
     FAMILY_QWEN2, 1, 16},
};
enum { F32 = PRECISION_FP32, BF16 = PRECISION_BF16, F16 = PRECISION_FP16 };
enum { ALL = 9, SKIPPED = 4, NOT_A_NUMBER = 3 };  // residents; steps without an update

typedef struct {
    int shape, x, noise, queries;
    size_t accum, slots, residents;
    int overlap, keeps_slots, fused;
    int evaluates, timed;  // an evaluation or a sample follows every step; with a timeline
} Config;

// Any two settings meet in one of the first MIXED (test_settings_meet). Then special cases.
enum { MIXED = 19, SETTINGS = 12 };
static const Config configs[] = {
    //            queries  slots    overlap     evaluates
    // shape x  noise | accum | residents | keeps, fused | timed
    {TIED,   BF16, 0, 1, 1, 1, 1,    1, 0, 0, 1, 1},
    {WIDE,   BF16, 1, 2, 2, 2, ALL,  0, 1, 1, 0, 0},
    {LABELS, F32,  1, 1, 1, 9, 0,    0, 1, 1, 1, 1},
    {LABELS, F16,  0, 2, 2, 3, 2,    1, 0, 0, 0, 0},
    {ODD,    F32,  0, 2, 2, 9, 1,    1, 1, 1, 1, 0},
    {ODD,    F16,  0, 1, 1, 2, ALL,  0, 0, 0, 0, 1},
    {TIED,   F16,  1, 1, 2, 1, 2,    0, 1, 1, 1, 0},
    {WIDE,   F32,  1, 2, 2, 9, 0,    1, 0, 0, 0, 1},
    {WIDE,   F16,  1, 1, 1, 3, 1,    0, 0, 1, 1, 0},
    {TIED,   F32,  1, 2, 1, 3, ALL,  1, 1, 0, 0, 1},
    {ODD,    BF16, 1, 2, 1, 1, 0,    1, 1, 0, 0, 0},
    {ODD,    F32,  0, 2, 1, 2, 2,    1, 1, 0, 1, 1},
    {TIED,   F16,  0, 2, 1, 2, 0,    0, 1, 0, 1, 1},
    {LABELS, BF16, 1, 2, 1, 1, ALL,  1, 0, 0, 1, 0},
    {WIDE,   BF16, 0, 2, 2, 9, 2,    0, 1, 0, 1, 1},
    {LABELS, BF16, 1, 1, 1, 2, 1,    1, 0, 0, 0, 0},
    {ODD,    BF16, 0, 2, 2, 3, 0,    0, 0, 1, 1, 1},
    {TIED,   F16,  0, 2, 2, 9, ALL,  0, 1, 1, 1, 0},
    {WIDE,   F32,  0, 2, 2, 1, ALL,  1, 0, 1, 1, 0},
    // what is used most, with fewer and more slots, and for longer
    {TIED,   BF16, 0, 1, 1, 2, 0,    1, 1, 1, 0, 0},
    {ODD,    F32,  1, 1, 1, 1, 0,    1, 1, 1, 0, 0},
    {ODD,    F16,  1, 1, 1, 3, 0,    1, 1, 1, 1, 0},
    {ODD,    BF16, 1, 3, 1, 9, 0,    1, 1, 1, 0, 0},
    // the LLaMA family
    {LLAMA,  BF16, 0, 1, 1, 2, 1,    1, 1, 1, 1, 0},
    {LLAMA,  F32,  1, 2, 2, 3, 0,    1, 1, 1, 0, 1},
    {LLAMA,  F16,  0, 2, 1, 1, 0,    0, 1, 0, 1, 0},
    {WORDS,  BF16, 1, 2, 2, 9, 0,    1, 0, 1, 1, 0},
    {WORDS,  F16,  1, 1, 1, 2, ALL,  1, 1, 0, 0, 0},
};
enum { CONFIGS = sizeof configs / sizeof *configs, LONGEST = 50 };
static const int some[] = {0, 2, 3, 5, 8, 11, 16, 19, 20, 21, 22, 23, 24, 25};  // cover all

// What they are compared with: everything on the GPU, an update as soon as it is known.
static Config in_memory(const Config *c) {
    Config r = *c;
    r.residents = ALL;
    r.overlap = r.keeps_slots = 1;
    r.fused = r.timed = 0;
    return r;
}

static void config_name(const Config *c, char name[300]) {
    static const char *const x[] = {"bf16", "fp32", "fp16"};  // as PRECISION_BF16 and so on
    snprintf(name, 300, "%s %s%s queries %d accum %zu, slots %zu residents %zu%s%s%s%s%s",
             shapes[c->shape].name, x[c->x], c->noise == ZO_GAUSSIAN ? "" : " signs", c->queries,
             c->accum, c->slots, c->residents, c->overlap ? "" : " serial",
             c->keeps_slots ? "" : " no slots", c->fused ? "" : " unfused",
             c->evaluates ? " evaluating" : "", c->timed ? " timed" : "");
}

static double setting(int k, int i) {
    const Config *c = &configs[k];
    const int all[SETTINGS] = {c->shape, c->x, c->noise, c->queries, (int)c->accum, (int)c->slots,
                               (int)c->residents, c->overlap, c->keeps_slots, c->fused,
                               c->evaluates, c->timed};
    return all[i];
}

static void test_settings_meet(void) { check_settings_meet(MIXED, SETTINGS, setting, NULL); }

// ---------------------------------------------------------------------------------------------
// A run: its batches, its model, its steps

enum { TOKENS = 1500, PROMPTS = 7, SHARED = 6 };  // SHARED: micro-batches of test_ranks

// What zo_step() wants to know. Where the head has weights of its own, the last token's row of the
// embeddings is not a number, and only step NOT_A_NUMBER meets it.
typedef struct {
    Run r;
    uint16_t tokens[TOKENS];
    TokenSegment segment;
    TokenData data;
    size_t first[PROMPTS + 1], example[PROMPTS + 1];
    int32_t prompts[PROMPTS * 16];
    int label[PROMPTS];
} Feed;

static void feed_make(Feed *f, const Config *c, size_t steps) {
    const Shape *s = &shapes[c->shape];
    Run *r = &f->r;
    memset(f, 0, sizeof *f);
    r->config = shape_config(s);
    r->B = s->B;
    r->T = s->T;
    r->world = (size_t)ranks.world;
    r->rank = (size_t)ranks.rank;
    r->o.accum = c->accum;
    r->o.steps = steps;
    r->step_tokens = s->B * s->T * c->accum * r->world;
    r->o.weight_decay = 0.1;
    const size_t micros = r->world * c->accum;
    for (size_t i = 0; i < TOKENS; i++)
        f->tokens[i] = (uint16_t)(philox4x32(50, (uint32_t)i, 0, 0, 0).x[0] % (s->V - 1));
    // in the second micro-batch, if there are several ranks' (test_ranks): not that of rank 0
    const size_t bad = (NOT_A_NUMBER - 1) * micros + (micros >= SHARED ? 1 : 0);
    if (!s->tied) f->tokens[bad * s->B * s->T + 1] = (uint16_t)(s->V - 1);
    f->segment.name = "tokens";
    f->segment.tokens = f->tokens;
    f->segment.count = f->data.tokens = TOKENS;
    f->segment.width = 2;
    f->data.count = 1;
    f->data.segments = &f->segment;
    r->train = loader_make(&f->data, s->T, 3, false);
    r->val = r->train;
    r->val.sequences = s->B + 1;  // a whole batch, and one of a row
    r->task = r->asks = r->words = c->shape == LABELS || c->shape == WORDS;
    if (!r->task) return;
    Task *t = &r->task_all;
    for (size_t i = 0; i < PROMPTS; i++) {
        f->first[i + 1] = f->first[i] + 3 + 2 * i;  // one is longer than a row
        f->label[i] = (int)(i % 3);
        f->example[i + 1] = i + 1;
    }
    for (size_t i = 0; i < PROMPTS * 16; i++) f->prompts[i] = f->tokens[i];
    t->count = PROMPTS;
    t->example = f->example;
    t->first = f->first;
    t->pieces = PROMPTS;
    t->tokens = f->prompts;
    t->label = f->label;
    t->labels = 3;
    t->first_token = -1;
    for (int k = 0; k < 3; k++) t->word[k] = 5 + 9 * k;
    r->task_train = r->task_val = task_view(t, 0, PROMPTS);
}

static float *first_weights(const Config *c) {
    const Shape *s = &shapes[c->shape];
    float *w = shape_params(s, false);
    for (size_t i = 0; i < s->C && !s->tied; i++) w[(s->V - 1) * s->C + i] = NAN;  // of wte
    return w;
}

// The learning rate changes. In one step it is too much for any number: no update.
static double rate_of(size_t step) {
    return step == SKIPPED ? 1e36 : 1e-3 * (double)(1 + step % 3);
}

// A model with these weights.
static GPT2 *model_open(const Config *c, Feed *f, const float *weights) {
    const Shape *s = &shapes[c->shape];
    const GPT2Config config = shape_config(s);
    GPT2 *g = zo_new(&config, s->B, s->T);
    Zo *z = g->zo;
    char name[300];
    config_name(c, name);
    z->config = ZoConfig{11, c->x == F32 ? 1e-3f : 1e-2f, c->queries, c->noise, ZO_STORAGE};
    g->words.count = f->r.task ? f->r.task_all.labels : 0;
    memcpy(g->words.word, f->r.task_all.word, sizeof g->words.word);
    g->no_overlap = !c->overlap;
    z->keeps_slots = c->keeps_slots;
    z->fused = c->fused;
    z->accum = c->accum;
    zo_place(g, c->residents, c->slots);
    const size_t before = free_memory();
    gpt2_allocate(g);
    check_memory(g, name, before - free_memory());
    for (size_t l = 0, stay = 0; l < g->config.layers; l++) {  // as many stay as were asked for
        stay += !g->segment[l + 1].on_host;
        CHECK(l + 1 < g->config.layers || stay == min_size(c->residents, g->config.layers),
              "%s: %zu layers stay", name, stay);
    }
    gpt2_move(g, 0, 0, g->table.elements, (float *)weights, false);
    if (c->timed) timeline_open(&g->timeline, NULL);
    return g;
}

static void zo_close(GPT2 *g) {
    timeline_close(&g->timeline);
    model_close(g);
}

// The weights as they are stored: with --zo-no-fused-update, or once zo_update_weights() was
// called, those after the last step; else those after the one before.
static float *weights_get(GPT2 *g) {
    const size_t P = g->table.elements;
    float *w = floats(P);
    CUDA(cudaDeviceSynchronize());
    gpt2_move(g, 0, 0, P, w, true);
    return w;
}

static uint64_t weights_hash(GPT2 *g) {
    float *w = weights_get(g);
    const uint64_t hash = hash_bytes(w, g->table.elements * sizeof(float));
    free(w);
    return hash;
}

typedef struct {
    uint64_t losses, evaluations, stored, weights;  // after the last step
    uint64_t weights_at[LONGEST + 1];               // after each step
} Hashes;

// An evaluation, or a sample's next token, after this step.
static uint64_t look(GPT2 *g, Feed *f, size_t step, bool sample, uint64_t hash) {
    if (sample) {
        float *logits = floats(g->config.vocab);
        int32_t prompt[5];
        for (int i = 0; i < 5; i++) prompt[i] = f->tokens[i];
        gpt2_next(g, prompt, 5, 5, logits);
        hash = hash_with(hash, logits, g->config.vocab * sizeof(float));
        free(logits);
    } else {
        Log *log = &f->r.log;
        char *text = NULL;
        size_t n;
        memset(log, 0, sizeof *log);
        log->file = open_memstream(&text, &n);
        log->screen = fopen("/dev/null", "w");
        FILE *screen = log->screen;
        f->r.o.eval_batches = step % 4 == 1 ? 1 : 2;
        run_eval(&f->r, step, gpt2_eval, g);
        hash = hash_with(hash, &log->val.points[0].y, sizeof(double));
        log_close(log);
        fclose(screen);
        const char *accuracy = strstr(text, "\"val_accuracy\":");
        CHECK((accuracy != NULL) == f->r.task, "%s", text);
        if (accuracy != NULL) hash = hash_with(hash, accuracy, strlen(accuracy));
        free(text);
    }
    return hash;
}

// Steps first .. last; returns how many of them updated. at_each: the weights are looked at after
// each of them, too.
static size_t zo_steps(GPT2 *g, const Config *c, Feed *f, size_t first, size_t last,
                       Hashes *h, bool at_each) {
    char name[300];
    size_t updates = 0;
    config_name(c, name);
    if (first == 1) {
        memset(h, 0, sizeof *h);
        if (at_each) h->weights_at[0] = weights_hash(g);
    }
    for (size_t step = first; step <= last; step++) {
        timeline_step(&g->timeline, step);
        counted = {};
        const StepResult x = zo_step(g, &f->r, step, rate_of(step));
        CHECK(!x.damaged, "%s", f->r.damage.text);
        // The losses are awaited, and whether a batch's memory is free; nothing else.
        const bool quiet = c->keeps_slots || g->streamed == 0;
        CHECK(!quiet || (counted.waits == 0 && counted.events <= 2 + (int)c->accum),
              "%s: step %zu waits %d and %d times", name, step, counted.waits, counted.events);
        CHECK(!quiet || c->timed || counted.allocations == 0, "%s: step %zu allocates %d times",
              name, step, counted.allocations);
        const bool is_number = f->r.task || shapes[c->shape].tied || step != NOT_A_NUMBER;
        CHECK(is_number ? x.loss > 0 && x.loss < 30 && x.norm > 0 : x.loss != x.loss,
              "%s: step %zu: loss %g", name, step, x.loss);
        const bool updated = is_number && step != SKIPPED;
        CHECK(g->zo->pending.step == (updated && c->fused ? step : 0), "%s: step %zu", name, step);
        updates += updated;
        h->losses = hash_with(h->losses, g->zo->side, 2 * (size_t)c->queries * sizeof(double));
        if (is_number) h->losses = hash_with(h->losses, &x.loss, sizeof x.loss);
        if (c->evaluates) h->evaluations = look(g, f, step, step % 2 == 0, h->evaluations);
        if (!at_each) continue;
        zo_update_weights(g);
        h->weights_at[step] = weights_hash(g);
    }
    h->stored = weights_hash(g);
    zo_update_weights(g);
    h->weights = weights_hash(g);
    return updates;
}

// That every byte went over the link as often as it should have.
static void check_moved(GPT2 *g, const Config *c, size_t updates, const char *name) {
    const Zo *z = g->zo;
    const size_t layer = zo_layer_bytes(g), ahead = c->overlap ? z->slots : 0;
    const size_t streamed = (size_t)g->streamed;
    if (streamed == 0) return;
    CHECK(z->visits % streamed == 0 && z->fetched == z->visits + ahead
          && g->moved_in == z->fetched * layer, "%s: %zu visits, %zu bytes in", name, z->visits,
          g->moved_in);
    CHECK(g->moved_out == updates * streamed * layer, "%s: %zu bytes out", name,
          g->moved_out);
}

static Hashes run(const Config *c, size_t steps, bool at_each) {
    static Feed f;
    static Hashes h;
    char name[300];
    config_name(c, name);
    feed_make(&f, c, steps);
    float *w = first_weights(c);
    const size_t before = free_memory();
    GPT2 *g = model_open(c, &f, w);
    check_moved(g, c, zo_steps(g, c, &f, 1, steps, &h, at_each), name);
    zo_close(g);
#ifdef __CUDA_EMU__
    CHECK(before == free_memory(), "%s: %zu bytes are not freed", name, before - free_memory());
#else
    (void)before;
#endif
    free(w);
    return h;
}

static size_t steps_of(int k) {
    return k == MIXED ? LONGEST : k % 9 == 2 ? 12 : 5;
}

static bool config_is_here(int k) { return configs[k].x == PRECISION; }

static void test_same_bits(void) {
    for (int k = 0; k < CONFIGS; k++) {
        if (!config_is_here(k) || !config_is_tested(some, k)) continue;
        const Config *c = &configs[k], base = in_memory(c);
        const size_t steps = steps_of(k);
        char name[300];
        config_name(c, name);
        const Hashes want = run(&base, steps, true);
        const bool at_each = k % 3 == 1;
        const Hashes got = run(c, steps, at_each);
        CHECK(got.losses == want.losses, "config %d: %s: losses", k, name);
        CHECK(got.evaluations == want.evaluations, "config %d: %s: evaluations", k, name);
        CHECK(got.weights == want.weights_at[steps], "config %d: %s: weights", k, name);
        // what is stored: the last step's weights, or those of the one before
        const size_t stored = c->fused && !at_each && !c->evaluates ? steps - 1 : steps;
        CHECK(got.stored == want.weights_at[stored], "config %d: %s: stored", k, name);
        for (size_t step = 1; step <= steps && at_each; step++)
            CHECK(got.weights_at[step] == want.weights_at[step], "config %d: step %zu", k, step);
        // and they change, but not in a step that is skipped
        for (size_t step = 1; step <= steps; step++) {
            const bool nan = !shapes[c->shape].tied && step == NOT_A_NUMBER;
            CHECK((want.weights_at[step] == want.weights_at[step - 1]) == (step == SKIPPED || nan),
                  "config %d: step %zu", k, step);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Runs that stop, go on, are saved

// Some steps in one place, the others in another, with what a checkpoint keeps: the weights.
static void resume(int a, int b) {
    enum { HALF = 5, STEPS = 8 };
    static Feed f;
    static Hashes h;
    const Config *c = &configs[a], base = in_memory(c), *to = &configs[b];
    Config elsewhere = *c;
    char name[300];
    config_name(c, name);
    elsewhere.slots = to->slots;
    elsewhere.residents = to->residents;
    elsewhere.overlap = to->overlap;
    elsewhere.keeps_slots = to->keeps_slots;
    elsewhere.fused = to->fused;
    const Hashes want = run(&base, STEPS, true);
    float *first = first_weights(c);
    feed_make(&f, c, STEPS);
    GPT2 *g = model_open(c, &f, first);
    zo_steps(g, c, &f, 1, HALF, &h, false);
    float *weights = weights_get(g), *pieces = floats(g->table.elements);
    for (size_t at = 0, n; at < g->table.elements; at += n) {  // in odd pieces, too
        n = min_size(1777, g->table.elements - at);
        gpt2_move(g, 0, at, n, pieces + at, true);
    }
    CHECK(hash_bytes(pieces, g->table.elements * sizeof(float)) == want.weights_at[HALF],
          "%s: pieces of the weights", name);
    zo_close(g);
    feed_make(&f, &elsewhere, STEPS);
    g = model_open(&elsewhere, &f, weights);
    zo_steps(g, &elsewhere, &f, HALF + 1, STEPS, &h, false);
    CHECK(h.losses == want.losses && h.weights == want.weights_at[STEPS], "%s: resumed", name);
    zo_close(g);
    free(first); free(weights); free(pieces);
}

static void test_resume_elsewhere(void) {
    const int pairs[][2] = {{20, 13}, {3, 11}, {19, 21}, {22, 0}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const int a = pairs[i][0], b = pairs[i][1];
        if (config_is_here(a)) resume(a, b);
    }
}

// Without a learning rate nothing moves, however often weights are perturbed and stored.
static void test_nothing_moves(void) {
    static Feed f;
    Config c = configs[MIXED];
    c.shape = LABELS;
    c.x = PRECISION;
    c.noise = IS_BF16;
    feed_make(&f, &c, 100);
    float *w = first_weights(&c);
    GPT2 *g = model_open(&c, &f, w);
    const uint64_t before = weights_hash(g);
    for (size_t step = 1; step <= 20; step++)
        CHECK(zo_step(g, &f.r, step, 0).norm > 0, "step %zu", step);
    CHECK(weights_hash(g) == before, "precision %d", PRECISION);
    zo_close(g);
    free(w);
}

// ---------------------------------------------------------------------------------------------
// The CPU's bits

// x as the arithmetic's type holds it.
static float as(int type, float x) {
    return type == F32 ? x : type == BF16 ? bf16_to_f32(f32_to_bf16(x))
         : to_f32(from_f32<f16>(x));
}

// theta (the arena) after the update; and perturbed in *w.
static void cpu_updates(const GPT2Table *t, const ZoConfig *c, const ZoUpdate *u, float *theta) {
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        zo_update(theta + x->offset, x->rows * x->cols, c, u, (uint32_t)i, x->decay, 0);
    }
}

static void cpu_perturbed(const GPT2Table *t, const ZoConfig *c, const float *theta, float *w,
                          size_t step, int query, float scale, int type) {
    memset(w, 0, t->elements * sizeof(float));
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        zo_perturb(w + x->offset, theta + x->offset, x->rows * x->cols, c, step, query, scale,
                   (uint32_t)i, 0);
    }
    for (size_t i = 0; i < t->elements; i++) w[i] = as(type, w[i]);
}

static bool same_on_gpu(floatX *gpu, const float *w, size_t n) {
    float *copy = floats(n);
    floats_move(gpu, copy, n, true);
    const bool same = memcmp(copy, w, n * sizeof(float)) == 0;
    free(copy);
    return same;
}

// Every kernel that makes weights, for two signs of two queries, after an update.
static void check_weights(int shape, int type, int noise) {
    static Feed f;
    const Config c = {shape, type, noise, 2, 1, 1, ALL, 1, 1, 1, 0, 0};
    char name[300];
    config_name(&c, name);
    feed_make(&f, &c, 9);
    float *first = shape_params(&shapes[shape], false);
    GPT2 *g = model_open(&c, &f, first);
    const GPT2Table *t = &g->table;
    const Zo *z = g->zo;
    const size_t P = t->elements, C = g->config.channels, N = g->max_B * g->max_T;
    Error err;
    CHECK(zo_send_batch(g, &f.r, 0, &err), "%s", err.text);
    const ZoPass p = {{3, 2, 2e-3f, {1.5e-3f, -8.5e-3f}}, 2, 2, z->config.eps, 4, g->staging};
    g->B = g->max_B;
    g->T = g->max_T;
    float *theta = weights_get(g), *w[2] = {floats(P), floats(P)};
    cpu_updates(t, &z->config, &p.update, theta);
    for (int j = 0; j < 2; j++) {
        for (int s = 0; s < 2; s++)
            cpu_perturbed(t, &z->config, theta, w[s], 4, j, s == 0 ? p.scale : -p.scale, type);
        for (size_t l = 0; l < g->config.layers; l++)
            for (int k = 0; k < LAYER_PARTS; k++) {
                zo_perturb_group(g, &p, l, k, NULL, j);
                const size_t at = g->segment[l + 1].at + z->group_at[k];
                const size_t n = z->group[k].length;
                CHECK(same_on_gpu(z->perturbed[0], w[0] + at, n)
                      && same_on_gpu(z->perturbed[1], w[1] + at, n),
                      "%s: query %d, layer %zu, group %d", name, j, l, k);
            }
    }
    ZoPass quiet = p;
    quiet.signs = 0;
    for (int first_one = t->wte;; first_one = t->ln_f_w) {  // as zo_pass()
        const int count = first_one == t->wte ? t->first_layer : t->count - t->ln_f_w;
        const ZoGroup group = zo_group(t, first_one, count);
        zo_weights(g, tensor(g, first_one), &group, &p.update, &quiet, 0);
        if (first_one == t->ln_f_w) break;
    }
    CHECK(weights_hash(g) == hash_bytes(theta, P * sizeof(float)), "%s: stored", name);
    for (int j = 0; j < 2; j++) {
        for (int s = 0; s < 2; s++)
            cpu_perturbed(t, &z->config, theta, w[s], 4, j, s == 0 ? p.scale : -p.scale, type);
        for (size_t v0 = 0, n; v0 < g->config.vocab_padded; v0 += n) {
            n = min_size(z->chunk, g->config.vocab_padded - v0);
            const size_t at = t->tensors[t->lm_head].offset + v0 * C;
            zo_head_weights(g, &p, j, v0, n);
            CHECK(same_on_gpu(z->perturbed[0], w[0] + at, n * C)
                  && same_on_gpu(z->perturbed[1], w[1] + at, n * C),
                  "%s: head from %zu", name, v0);
        }
        zo_encoder(g, &p, j);
        for (int s = 0; s < 2; s++) {
            float *x = floats(N * C);
            for (size_t i = 0; i < N * C; i++) {
                const size_t token = (size_t)g->inputs[i / C], position = i / C % g->max_T;
                const float *wpe = t->wpe < 0 ? NULL : w[s] + t->tensors[t->wpe].offset;
                x[i] = w[s][token * C + i % C];
                if (wpe != NULL) x[i] = as(type, x[i] + wpe[position * C + i % C]);
            }
            CHECK(same_on_gpu(zo_x(g, j, s), x, N * C), "%s: embeddings, sign %d", name, s);
            free(x);
        }
    }
    zo_close(g);
    free(first); free(theta); free(w[0]); free(w[1]);
}

static void test_weights_are_the_cpus(void) {
    for (int noise = 0; noise < 2; noise++) {
        check_weights(IS_BF16 ? LABELS : BITS == 32 ? ODD : WIDE, PRECISION, noise);
        check_weights(LLAMA, PRECISION, noise);
    }
}

// The losses, with the CPU's model at the same weights.
static void check_losses(const Config *config, double tolerance) {
    static Feed f;
    Config c = *config;
    char name[300];
    config_name(&c, name);
    feed_make(&f, &c, 5);
    float *first = first_weights(&c);
    GPT2 *g = model_open(&c, &f, first);
    const Zo *z = g->zo;
    Run *r = &f.r;
    CPUModel *cpu = cpu_model_new(&g->config, r->B, r->T, NULL);
    float *params = cpu_model_tensor(cpu, "params", 0, NULL);
    int32_t inputs[64], targets[64];
    double worst = 0;
    for (size_t step = 1; step <= 5; step++) {
        zo_update_weights(g);
        float *theta = weights_get(g);
        double mean = 0, squares = 0;
        Error err;
        const StepResult x = zo_step(g, r, step, rate_of(step));
        CHECK(!x.damaged, "%s", r->damage.text);
        for (int j = 0; j < c.queries; j++) {
            for (int s = 0; s < 2; s++) {
                double total = 0;
                cpu_perturbed(&g->table, &z->config, theta, params, step, j,
                              s == 0 ? z->config.eps : -z->config.eps, c.x);
                for (size_t m = 0; m < c.accum; m++) {
                    size_t right = 0;
                    const uint64_t at = ((step - 1) * c.accum + m) * r->B;
                    CHECK(run_batch(r, &r->train, at, r->B, inputs, targets, NULL, &err), "%s",
                          err.text);
                    cpu_model_forward(cpu, inputs, NULL);
                    const double l = r->task
                        ? cpu_model_classify(cpu, r->task_all.word, 3, targets, 0, false, &right)
                        : cpu_model_head(cpu, targets, 0, false, NULL);
                    total += l / (double)c.accum;
                }
                const double got = z->side[2 * j + s];
                if (got == got && fabs(got - total) > worst) worst = fabs(got - total);
                CHECK((got != got) == (total != total), "%s: %g, CPU %g", name, got, total);
                mean += z->side[2 * j + s] / (2 * c.queries);
            }
            const double d = (z->side[2 * j] - z->side[2 * j + 1]) / (2 * (double)z->config.eps);
            squares += d * d / c.queries;
        }
        CHECK(x.loss != x.loss
              || (fabs(x.loss - mean) < 1e-12 && fabs(x.norm - sqrt(squares)) < 1e-9 * x.norm),
              "%s: loss %g, norm %g", name, x.loss, x.norm);
        free(theta);
    }
    CHECK(test_within(worst, tolerance), "%s: a loss is off by %g", name, worst);
    cpu_model_free(cpu);
    zo_close(g);
    free(first);
}

static void test_losses_are_the_cpus(void) {
    const int some[] = {0, 1, 2, 3, 4, 7, 15, 21, 23, 24, 25, 26, 27};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const Config *c = &configs[some[i]];
        if (config_is_here(some[i]))
            check_losses(c, c->x == F32 ? 4e-6 : c->x == BF16 ? 0.05 : 0.006);
    }
}

// ---------------------------------------------------------------------------------------------
// Several processes, one per GPU

static Config in_shared_config(int k) {
    static const Config shared[] = {
        {TIED,   BF16, 0, 1, 6, 3, ALL,  1, 1, 1, 1, 0},
        {ODD,    F32,  1, 3, 6, 2, 0,    1, 1, 1, 1, 0},
        {WIDE,   F16,  0, 3, 6, 3, 1,    1, 1, 1, 0, 0},
        {LABELS, BF16, 1, 1, 6, 1, 0,    1, 1, 1, 1, 0},
        {LABELS, F32,  0, 3, 6, 9, ALL,  1, 1, 0, 1, 0},
        {ODD,    F16,  0, 1, 6, 2, 0,    0, 0, 0, 1, 0},
        {LLAMA,  F16,  0, 1, 6, 2, 0,    1, 1, 1, 0, 0},
    };
    if (k < 0)
        return Config{(int)(sizeof shared / sizeof *shared), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    Config c = shared[k];
    c.accum /= (size_t)ranks.world;
    return c;
}

// A step of which rank `who` cannot read its micro-batch number `micro`: all stop, and have the
// same weights, though only some have come to the update of the step before. Of a signal that one
// of them gets, all know after the same step.
static void check_rank_fails(int who, size_t micro) {
    static Feed f;
    const Config c = in_shared_config(0);
    feed_make(&f, &c, 9);
    float *first = first_weights(&c);
    GPT2 *g = model_open(&c, &f, first);
    if (ranks.rank == who) f.tokens[run_position(&f.r, 3, micro) * f.r.T + 1] = 60000;
    for (size_t step = 1; step <= 2; step++) {
        stop_requested = ranks.rank == who && step == 2 ? SIGTERM : 0;
        CHECK(!zo_step(g, &f.r, step, rate_of(step)).damaged, "%s", f.r.damage.text);
        CHECK(run_news[NEWS_SIGNAL] == (step == 2 ? SIGTERM : 0), "step %zu: stop %g", step,
              run_news[NEWS_SIGNAL]);
    }
    stop_requested = 0;
    CHECK(zo_step(g, &f.r, 3, rate_of(3)).damaged, "rank %d", ranks.rank);
    CHECK((f.r.damage.text[0] != '\0') == (ranks.rank == who), "rank %d: %s", ranks.rank,
          f.r.damage.text);
    CHECK(g->zo->pending.step != 3, "a damaged step updates");
    zo_update_weights(g);
    CUDA(cudaDeviceSynchronize());
    zo_loaded(g, &f.r);  // or it ends here
    zo_close(g);
    free(first);
}

// In each of the processes. Says on stdout, which is rank 0's, what came out.
static int one_rank(void) {
    ranks_open();
    for (int k = 0; k < in_shared_config(-1).shape; k++) {
        const Config c = in_shared_config(k);
        char name[300];
        if (c.x != PRECISION) continue;
        config_name(&c, name);
        const Hashes h = run(&c, 5, true);
        uint64_t *all = (uint64_t *)alloc_or_fail((size_t)ranks.world, sizeof h, "hashes");
        ranks_exchange(&h, sizeof h, all);
        for (int r = 0; r < ranks.world; r++)
            CHECK(memcmp(all + (size_t)r * (sizeof h / 8), &h, sizeof h) == 0,
                  "rank %d has other bits than rank %d: %s", r, ranks.rank, name);
        free(all);
        printf("%d %016llx %016llx %016llx %016llx\n", k, (unsigned long long)h.losses,
               (unsigned long long)h.evaluations, (unsigned long long)h.stored,
               (unsigned long long)h.weights);
    }
    for (int who = 0; who < ranks.world && IS_BF16; who++)
        for (size_t micro = 0; micro < 2; micro++) check_rank_fails(who, micro);
    if (test_failures_here > 0) printf("rank %d: %d checks\n", ranks.rank, test_failures_here);
    fflush(stdout);
    ranks_barrier();
    ranks_close();
    return test_failures_here > 0;
}

// Runs one_rank() in `world` processes. Returns whether all have ended well.
static bool run_ranks(int world, char *said, size_t room) {
    const int port = free_port();
    int ends[2], status;
    size_t n = 0;
    bool ok = true;
    if (pipe(ends) != 0) die("pipe: %s", strerror(errno));
    fflush(stdout);
    for (int rank = 0; rank < world; rank++) {
        if (fork() != 0) continue;
        launched_as((size_t)rank, (size_t)world, port);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "test_zo_gpu", "--rank", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + n, room - 1 - n)) > 0;) n += (size_t)got;
    close(ends[0]);
    said[n] = '\0';
    for (int rank = 0; rank < world; rank++) {
        wait(&status);
        ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return ok;
}

// R processes of 6 / R micro-batches have the bits of one process of 6.
static void test_ranks(void) {
    static char one[8192], several[8192];
    CHECK(run_ranks(1, one, sizeof one), "alone: %s", one);
    CHECK(strlen(one) > 60 * 2, "alone: %s", one);
    for (int world = test_whole() ? 2 : 3; world <= 3; world++) {
        CHECK(run_ranks(world, several, sizeof several), "%d ranks: %s", world, several);
        CHECK(strcmp(one, several) == 0, "%d ranks:\n%sone:\n%s", world, several, one);
    }
}

// ---------------------------------------------------------------------------------------------
// What happens at the same time, on the emulated GPU's virtual clock. Times in microseconds.

#ifdef __CUDA_EMU__
static const double clocks[2] = {110, 25};  // bytes per us, each way; a kernel takes 10 us
static double link_rate;                    // the one that runs

static Config timed(size_t slots, size_t residents, int queries) {
    return {TIED, BF16, 1, queries, 1, slots, residents, 1, 1, 1, 0, 0};
}

// A step of many, the mean over `several`; and how long its copies of one direction take.
typedef struct { double step, copies; } Times;

static Times measure(const Config *c) {
    enum { SEVERAL = 4 };
    static Feed f;
    double at[3 + SEVERAL];
    feed_make(&f, c, 100);
    float *w = first_weights(c);
    GPT2 *g = model_open(c, &f, w);
    for (size_t step = 1; step < 3 + SEVERAL; step++) {
        zo_step(g, &f.r, step, rate_of(3));
        at[step] = 1e6 * emu_virtual_now();
    }
    const Times t = {(at[2 + SEVERAL] - at[2]) / SEVERAL,
                     (double)((size_t)g->streamed * zo_layer_bytes(g)) / link_rate};
    zo_close(g);
    free(w);
    return t;
}

static double memory_step(const Config *c) {
    Config base = in_memory(c);
    base.fused = 1;
    return measure(&base).step;
}

// A rehearsal, for a GPU whose products take as long as all kernels here do.
static double planned(const Config *c, double in_memory_step) {
    static Feed f;
    Rates r;
    memset(&r, 0, sizeof r);
    feed_make(&f, c, 100);
    float *w = first_weights(c);
    GPT2 *g = model_open(c, &f, w);
    r.h2d = r.d2h = 1e6 * link_rate;
    r.gpu_flops = 1;
    r.gpu_flops = gpt2_rehearse(g, &f.r, &r, NULL).compute / (1e-6 * in_memory_step);
    const double step = 1e6 * gpt2_rehearse(g, &f.r, &r, NULL).step;
    zo_close(g);
    free(w);
    return step;
}

static bool near(double a, double b, double share) { return fabs(a - b) <= share * b; }

// Where the link is fast enough a step takes as long as in memory, if copies run beside kernels.
static void test_copies_hide(void) {
    for (int queries = 1; queries <= 2; queries++)
        for (size_t slots = 2; slots + (size_t)queries <= 4; slots++) {
            const Config c = timed(slots, 0, queries);
            const double memory = memory_step(&c);
            const Times t = measure(&c);
            CHECK(t.copies < 0.9 * memory && t.copies > 0.3 * memory, "in memory %.0f us, copies "
                  "%.0f", memory, t.copies);
            CHECK(near(t.step, memory, 0.02), "%zu slots: %.0f us, in memory %.0f", slots, t.step,
                  memory);
            CHECK(near(planned(&c, memory), t.step, 0.001), "%zu slots: %.0f us, planned %.0f",
                  slots, t.step, planned(&c, memory));
        }
}

// With a single slot, a group comes as soon as its place is free, and is used once it is there.
static void test_one_slot(void) {
    const Config c = timed(1, 0, 1);
    const double memory = memory_step(&c);
    const Times t = measure(&c);
    CHECK(near(planned(&c, memory), t.step, 0.001), "%.0f us, planned %.0f, in memory %.0f, copies "
          "%.0f", t.step, planned(&c, memory), memory, t.copies);
}

// One after the other, all of these add up.
static void test_ablations(void) {
    Config c = timed(2, 0, 1);
    const double memory = memory_step(&c);
    c.overlap = 0;
    Times t = measure(&c);
    CHECK(near(t.step, memory + 2 * t.copies, 0.02), "serial: %.0f us, in memory %.0f, copies %.0f",
          t.step, memory, t.copies);
    CHECK(near(planned(&c, memory), t.step, 0.001), "serial: %.0f us, planned %.0f", t.step,
          planned(&c, memory));
    c = timed(2, 0, 1);
    c.keeps_slots = 0;
    t = measure(&c);
    CHECK(near(planned(&c, memory), t.step, 0.001), "no slots: %.0f us, planned %.0f", t.step,
          planned(&c, memory));
    c = timed(2, 0, 1);
    c.fused = 0;
    t = measure(&c);
    CHECK(t.step > memory + 0.6 * t.copies && t.step < memory + 1.5 * t.copies, "unfused: %.0f us, "
          "in memory %.0f, copies %.0f", t.step, memory, t.copies);
    CHECK(near(planned(&c, memory), t.step, 0.015), "unfused: %.0f us, planned %.0f", t.step,
          planned(&c, memory));
}

// Where it is not, a step takes as long as the copies of one direction: both are always busy.
static void test_link_is_busy(void) {
    for (size_t slots = 2; slots <= 3; slots++)
        for (size_t residents = 0; residents <= 2; residents += 2) {
            const Config c = timed(slots, residents, 1);
            const double memory = memory_step(&c);
            const Times t = measure(&c);
            CHECK(t.copies > 1.3 * memory, "in memory %.0f us, copies %.0f", memory, t.copies);
            CHECK(near(t.step, t.copies, slots > 2 ? 0.03 : 0.08), "%zu slots, %zu residents: "
                  "%.0f us, copies %.0f, in memory %.0f", slots, residents, t.step, t.copies,
                  memory);
            CHECK(near(planned(&c, memory), t.step, 0.02), "%zu slots, %zu residents: %.0f us, "
                  "planned %.0f", slots, residents, t.step, planned(&c, memory));
        }
    Config c = timed(3, 0, 1);
    const double base = memory_step(&c);
    c.keeps_slots = 0;
    Times t = measure(&c);
    CHECK(near(planned(&c, base), t.step, 0.02), "no slots: %.0f us, planned %.0f", t.step,
          planned(&c, base));
    c = timed(3, 0, 1);
    c.fused = 0;
    t = measure(&c);
    CHECK(near(t.step, 2 * t.copies, 0.1), "unfused: %.0f us, copies %.0f", t.step, t.copies);
    // more queries per visit hide it again
    const Config many = timed(2, 0, 5);
    const double memory = memory_step(&many), streamed = measure(&many).step;
    CHECK(near(streamed, memory, 0.02), "5 queries: %.0f us, in memory %.0f", streamed, memory);
}
#endif

static void test_overlap(void) {
#ifdef __CUDA_EMU__
    for (int i = 0; i < 2; i++)
        run_again("test_zo_gpu", "--clock", i, ON_A_CLOCK "EMU_KERNEL_US=10 EMU_LINK=%.0f",
                  1e6 * clocks[i]);
#else
    SKIP("only on the virtual clock of the emulated GPU");
#endif
}

// ---------------------------------------------------------------------------------------------

static uint64_t config_hash(int k, size_t steps, char name[300]) {
    config_name(&configs[k], name);
    const Hashes h = run(&configs[k], steps, false);
    const uint64_t all[4] = {h.losses, h.evaluations, h.stored, h.weights};
    return hash_bytes(all, sizeof all);
}

int main(int argc, char **argv) {
    if (argc >= 3 && strcmp(argv[1], "--config") == 0)
        return run_configs(argc, argv, CONFIGS, some, config_is_here, config_hash);
    if (argc == 2 && strcmp(argv[1], "--rank") == 0) return one_rank();
#ifdef __CUDA_EMU__
    if (argc == 4 && strcmp(argv[1], "--clock") == 0) {
        link_rate = clocks[atoi(argv[2])];
        if (link_rate == clocks[0]) {
            RUN(test_copies_hide);
            RUN(test_one_slot);
            RUN(test_ablations);
        } else {
            RUN(test_link_is_busy);
        }
        return test_summary();
    }
#endif
    if (IS_BF16) RUN(test_overlap);  // first: it forks,
    RUN(test_ranks);                 // and so does this
    if (IS_BF16) RUN(test_settings_meet);
    RUN(test_weights_are_the_cpus);
    RUN(test_losses_are_the_cpus);
    RUN(test_same_bits);
    RUN(test_resume_elsewhere);
    RUN(test_nothing_moves);
    return test_summary();
}
