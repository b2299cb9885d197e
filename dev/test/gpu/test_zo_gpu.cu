// test_zo_gpu.cu: zeroth-order training on the GPU. Wherever the layers live and however they
// travel, every loss and every weight has the same bits; these are the CPU's; runs go on anywhere;
// several processes have the bits of one; and copies hide behind kernels as they should.
//
// usage: test_zo_gpu                     all tests
//        test_zo_gpu --config TEXT|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_zo_gpu --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"
#include "cpu_reference.h"
#include "../zo_feed.h"

enum { SKIPPED = 4, NOT_A_NUMBER = 3 };  // steps without an update

// ---------------------------------------------------------------------------------------------
// A run: its batches, its model, its steps

enum { SHARED = 6 };  // micro-batches of rows with ranks

// The batches of zo_step(), for the model that is open. In a model with an untied head, the last
// token's row of the embeddings is NaN, and only step NOT_A_NUMBER has that token.
static Feed feed;

static void feed_make(const Config *c, size_t steps) {
    const Shape *s = c->shape;
    const GPT2Config config = shape_config(s);
    Run *r = &feed.r;
    feed_fill(&feed, &config, s->B, s->T, s->V - 1,
              strcmp(s->name, "labels") == 0 || strcmp(s->name, "words") == 0);
    r->world = (size_t)ranks.world;
    r->rank = (size_t)ranks.rank;
    r->o = c->o;
    r->o.steps = steps;
    r->o.zo_eps = IS_HALF ? 1e-2 : 1e-3;
    r->o.weight_decay = 0.1;
    r->step_tokens = s->B * s->T * c->o.accum * r->world;
    r->val = r->train;
    r->val.sequences = s->B + 1;  // a whole batch, and one of a row
    // in the second micro-batch, if there are several ranks': not that of rank 0
    const size_t micros = r->world * c->o.accum;
    const size_t bad = (NOT_A_NUMBER - 1) * micros + (micros >= SHARED ? 1 : 0);
    if (!s->tied) feed.tokens[bad * s->B * s->T + 1] = (uint16_t)(s->V - 1);
}

static float *first_weights(const Config *c) {
    const Shape *s = c->shape;
    float *w = shape_params(s, false);
    for (size_t i = 0; i < s->C && !s->tied; i++) w[(s->V - 1) * s->C + i] = NAN;  // of wte
    return w;
}

// The learning rate changes. In one step it is too much for any number: no update.
static double rate_of(size_t step) {
    return step == SKIPPED ? 1e36 : 1e-3 * (double)(1 + step % 3);
}

// A model with these weights.
static GPT2 *zo_open_model(const Config *c, const float *weights) {
    const GPT2Config config = shape_config(c->shape);
    GPT2 *g = zo_new(&config, c->shape->B, c->shape->T);
    Run *r = &feed.r;
    free(g->zo);
    zo_open(g, r);
    g->words.count = r->task ? r->task_all.labels : 0;
    memcpy(g->words.word, r->task_all.word, sizeof g->words.word);
    g->no_overlap = c->o.no_overlap;
    zo_place(g, c->o.resident_blocks, c->o.slots);
    gpt2_allocate(g);
    size_t stay = 0;
    for (size_t l = 1; l <= g->config.layers; l++) stay += !g->segment[l].on_host;
    CHECK(stay == min_size(c->o.resident_blocks, g->config.layers), "%zu layers stay: %s", stay,
          c->text);
    gpt2_move(g, 0, 0, g->table.elements, (float *)weights, false);
    return g;
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

// ---------------------------------------------------------------------------------------------
// Its rows

static size_t updates;  // of the steps of the row

static GPT2 *row_open(const Config *c, const Shared *from) {
    feed_make(c, last_step);
    updates = 0;
    float *w = first_weights(c);
    if (first_step > 1) memcpy(w, from->arena, from->P * sizeof *w);
    GPT2 *g = zo_open_model(c, w);
    free(w);
    return g;
}

static uint64_t row_step(GPT2 *g, const Config *c, size_t step, uint64_t hash, double numbers[2]) {
    const bool is_number = feed.r.task || c->shape->tied || step != NOT_A_NUMBER;
    const bool updated = is_number && step != SKIPPED;
    const StepResult x = zo_step(g, &feed.r, step, rate_of(step));
    CHECK(!x.damaged, "%s", feed.r.damage.text);
    CHECK(is_number ? x.loss > 0 && x.loss < 30 && x.norm > 0 : x.loss != x.loss,
          "step %zu: loss %g: %s", step, x.loss, c->text);
    CHECK(x.skipped != updated && g->zo->pending.step
              == (updated && !c->o.zo_no_fused_update ? step : 0), "step %zu: %s", step, c->text);
    updates += updated;
    numbers[0] = x.loss;
    numbers[1] = x.norm;
    hash = hash_with(hash, g->zo->side, 2 * c->o.zo_queries * sizeof(double));
    return is_number ? hash_with(hash, &x.loss, sizeof x.loss) : hash;
}

// An evaluation, or a sample's next token, after this step.
static uint64_t row_look(GPT2 *g, const Config *, size_t step, uint64_t hash) {
    Feed *f = &feed;
    if (step % 2 == 0) {
        float *logits = floats(g->config.vocab);
        int32_t prompt[5];
        for (int i = 0; i < 5; i++) prompt[i] = f->tokens[i];
        gpt2_next(g, prompt, 5, 5, logits);
        hash = hash_with(hash, logits, g->config.vocab * sizeof(float));
        free(logits);
    } else {
        double numbers[2];
        f->r.o.eval_batches = step % 4 == 1 ? 1 : 2;
        numbers[0] = run_score(&f->r, gpt2_eval, g, &numbers[1]);
        CHECK((numbers[0] >= 0) == f->r.task, "accuracy %g", numbers[0]);
        hash = hash_with(hash, numbers, sizeof numbers);
    }
    return hash;
}

static void row_bring(GPT2 *g, const Config *, Shared *to) {
    Report *report = &to->rank[ranks.rank];
    zo_update_weights(g);
    float *w = weights_get(g);
    if (ranks.rank == 0) memcpy(to->arena, w, to->P * sizeof *w);
    report->weights = hash_bytes(w, to->P * sizeof *w);
    free(w);
}

// Every byte went over the link as often as it should have, with the last update.
static void row_trained(GPT2 *g, const Config *c, size_t, Report *) {
    const Zo *z = g->zo;
    const size_t layer = zo_layer_bytes(g), ahead = c->o.no_overlap ? 0 : z->slots;
    const size_t streamed = (size_t)g->streamed;
    zo_update_weights(g);
    if (streamed == 0) return;
    CHECK(z->visits % streamed == 0 && z->fetched == z->visits + ahead
          && g->moved_in == z->fetched * layer, "%zu visits, %zu bytes in: %s", z->visits,
          g->moved_in, c->text);
    CHECK(g->moved_out == updates * streamed * layer, "%zu bytes out: %s", g->moved_out, c->text);
}

static const Run *row_planned(GPT2 *, const Config *) { return &feed.r; }

static const Optimizer zo_rows = {row_open, row_step, row_look, row_bring, NULL, NULL, NULL,
                                  row_trained, NULL, row_planned};

// A step of which a rank cannot read one of its micro-batches: all stop, and have the same weights,
// though only some have come to the update of the step before. Of a signal that one of them gets,
// all know after the same step.
static void rank_fails(const Config *c, Shared *) {
    for (int i = 0; i < 2 * ranks.world; i++) {
        const int who = i / 2, micro = i % 2;
        feed_make(c, 9);
        float *first = first_weights(c);
        GPT2 *g = zo_open_model(c, first);
        Run *r = &feed.r;
        if (ranks.rank == who) feed.tokens[run_position(r, 3, (size_t)micro) * r->T + 1] = 60000;
        for (size_t step = 1; step <= 2; step++) {
            stop_requested = ranks.rank == who && step == 2 ? SIGTERM : 0;
            CHECK(!zo_step(g, r, step, rate_of(step)).damaged, "%s", r->damage.text);
            CHECK(run_news[NEWS_SIGNAL] == (step == 2 ? SIGTERM : 0), "step %zu: stop %g", step,
                  run_news[NEWS_SIGNAL]);
        }
        stop_requested = 0;
        CHECK(zo_step(g, r, 3, rate_of(3)).damaged, "rank %d", ranks.rank);
        CHECK((r->damage.text[0] != '\0') == (ranks.rank == who), "rank %d: %s", ranks.rank,
              r->damage.text);
        CHECK(g->zo->pending.step != 3, "a damaged step updates");
        zo_update_weights(g);
        CUDA(cudaDeviceSynchronize());
        zo_loaded(g, r);  // or it ends here
        model_close(g);
        free(first);
    }
}

static void test_ranks_fail(void) {
    const Config c = config_of("four --optimizer mezo ranks=3 --accum 2 --slots 3");
    if (c.ranks > ranks_at_most()) SKIP("too few GPUs");
    Shared *x = shared_open(&c);
    run_ranks(&c, x, rank_fails);
    shared_close(x);
}

// ---------------------------------------------------------------------------------------------
// The CPU's bits

// Returns the loss of a step's micro-batches with theta (an arena) perturbed by the CPU; in *cpus
// that of the CPU's model, which has the perturbed weights.
static double losses_with(GPT2 *g, const float *theta, size_t step, int query, float scale,
                          CPUModel *cpu, double *cpus) {
    Run *r = &feed.r;
    const GPT2Table *t = &g->table;
    const size_t accum = r->o.accum;
    float *w = cpu_model_tensor(cpu, "params", 0, NULL);
    double loss = 0;
    Error err;
    memset(w, 0, t->elements * sizeof(float));
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        zo_perturb(w + x->offset, theta + x->offset, x->rows * x->cols, &g->zo->config, step,
                   query, scale, (uint32_t)i, 0);
    }
    for (size_t i = 0; i < t->elements; i++) w[i] = to_f32(from_f32<floatX>(w[i]));  // as stored
    gpt2_move(g, 0, 0, t->elements, w, false);
    *cpus = 0;
    for (size_t m = 0; m < accum; m++) {
        size_t right = 0;
        const uint64_t at = ((step - 1) * accum + m) * r->B;
        CHECK(run_batch(r, &r->train, at, r->B, g->inputs, g->targets, NULL, &err), "%s", err.text);
        cpu_model_forward(cpu, g->inputs, NULL);
        *cpus += (r->task ? cpu_model_classify(cpu, r->task_all.word, 3, g->targets, 0, false,
                                               &right)
                          : cpu_model_head(cpu, g->targets, 0, false, NULL)) / (double)accum;
        gpt2_look(g, r->B, r->T, 0, NULL);
        loss += gpt2_loss(g);
    }
    return loss / (double)accum;
}

// Each loss of a step has the bits of an evaluation with the weights that the CPU perturbs, and is
// that of the CPU's model, to rounding; the next step's weights are those that the CPU updates.
// (All layers stay on the GPU: what travels may be under way.)
static void check_cpu(const Config *c) {
    feed_make(c, 5);
    float *theta = shape_params(c->shape, false);
    GPT2 *g = zo_open_model(c, theta);
    const Zo *z = g->zo;
    const GPT2Table *t = &g->table;
    CPUModel *cpu = cpu_model_new(&g->config, feed.r.B, feed.r.T, NULL);
    for (size_t i = 0; i < t->elements; i++) theta[i] = to_f32(from_f32<floatX>(theta[i]));
    double worst = 0, cpus;
    for (size_t step = 1; step <= 5; step++) {
        const StepResult x = zo_step(g, &feed.r, step, rate_of(step));
        const ZoUpdate u = z->pending;
        float *stored = weights_get(g);
        CHECK(!x.damaged, "%s", feed.r.damage.text);
        CHECK(memcmp(stored, theta, t->elements * sizeof *theta) == 0, "%s: weights of step %zu",
              c->text, step);
        g->zo->pending = zo_nothing;
        for (int i = 0; i < 2 * z->config.queries; i++) {
            const float scale = i % 2 == 0 ? z->config.eps : -z->config.eps;
            const double got = z->side[i];
            const double loss = losses_with(g, theta, step, i / 2, scale, cpu, &cpus);
            CHECK(loss == got, "%s: step %zu: loss %d is %.17g, evaluated %.17g", c->text, step, i,
                  got, loss);
            worst = fmax(worst, fabs(got - cpus));
        }
        gpt2_move(g, 0, 0, t->elements, theta, false);
        g->zo->pending = u;  // the next step applies it
        for (int i = 0; i < t->count; i++) {
            const GPT2Tensor *a = &t->tensors[i];
            zo_update(theta + a->offset, a->rows * a->cols, &z->config, &u, (uint32_t)i,
                      a->rank == 2, 0);
        }
        free(stored);
    }
    CHECK(test_within(worst, IS_BF16 ? 0.05 : IS_FP16 ? 0.006 : 4e-6), "%s: a loss is off by %g",
          c->text, worst);
    cpu_model_free(cpu);
    model_close(g);
    free(theta);
}

static void test_cpu(void) {
    for (const char *row : {"labels --zo-queries 2 --accum 2", "vocab --zo-noise rademacher",
                            "odd --accum 2", "llama --zo-queries 2 --zo-noise rademacher",
                            "words"}) {
        const Config c = config_of("%s --optimizer mezo", row);
        check_cpu(&c);
    }
}

// ---------------------------------------------------------------------------------------------
// Overlap: how long steps take on the emulated GPU's virtual clock

#define MEZO "four --optimizer mezo --zo-noise rademacher "
#define WIDE_LINK "EMU_KERNEL_US=10 EMU_LINK=110000000"

static const Clock zo_clocks[] = {
    {WIDE_LINK, 0.001, {
        // where the link is fast enough, a step takes as long as in memory
        {MEZO "--slots 2 --resident-blocks 0", NULL, 0.99, 1.01},
        {MEZO "--slots 2 --resident-blocks 0 --zo-queries 2", NULL, 0.99, 1.01},
        // with a single slot a group comes as soon as its place is free
        {MEZO "--slots 1 --resident-blocks 0", NULL, 0.99, 1.01},
        // without overlap the times of all three add up
        {MEZO "--slots 2 --resident-blocks 0 --no-overlap", NULL, 2.3, 2.33},
        {MEZO "--slots 2 --resident-blocks 0 --zo-no-slots", NULL, 0.99, 1.01}}},
    {WIDE_LINK, 0.015, {
        {MEZO "--slots 2 --resident-blocks 0 --zo-no-fused-update", NULL, 1.4, 1.46}}},
    {"EMU_KERNEL_US=10 EMU_LINK=25000000", 0.02, {
        // where it is not, a step takes as long as the copies of one direction
        {MEZO "--slots 2 --resident-blocks 0", "link", 0.97, 1.01},
        {MEZO "--slots 3 --resident-blocks 2", "link", 0.97, 1.01},
        {MEZO "--slots 3 --resident-blocks 0 --zo-no-slots", NULL, 3, 3.2},
        {MEZO "--slots 3 --resident-blocks 0 --zo-no-fused-update", "link", 0.99, 1.01},
        // more queries per visit hide it again
        {MEZO "--slots 2 --resident-blocks 0 --zo-queries 5", NULL, 0.99, 1.01}}}};

// ---------------------------------------------------------------------------------------------

static void tests(void) {
    if (IS_BF16) RUN(test_overlap);  // first: it forks, and so do these
    RUN(test_same_bits);
    if (IS_BF16) RUN(test_ranks_fail);
    RUN(test_cpu);
}

int main(int argc, char **argv) {
    mezo = &zo_rows;
    rows_fork = true;
    return rows_main(argc, argv, "test_zo_gpu", zo_clocks, 3, tests);
}
