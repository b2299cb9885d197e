// test_zenflow_gpu.cu: importance-aware updates on the GPU are those of the reference in zenflow.h,
// bit for bit, though nothing there waits for anything; they move what they must over the link, and
// at the same time as what hides it.
//
// usage: test_zenflow_gpu                     all tests
//        test_zenflow_gpu --config TEXT|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_zenflow_gpu --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"
#include "../files.h"
#include "../zen_free.h"

static ZenRates recipe_rates(const Recipe *r) {
    return {r->lr, 0.9, 0.95, r->eps, r->decay, moments_bf16, master_bf16};
}

static size_t whole_layers(const Config *c) {
    return (size_t)(c->o.resident * (double)c->shape->L + 0.5);
}

// ---------------------------------------------------------------------------------------------
// The reference: forward and backward on the GPU, all else by zen_reference_step()

static ZenReference plain_zen;

// By its steps; and the columns that have changed places on the GPU.
static struct { size_t steps, counted[COUNTERS]; } brought;
static size_t swapped_here;

static void reference_open(const Config *c, const GPT2Table *t, const float *params) {
    const size_t n = t->elements;
    ZenReference *x = &plain_zen;
    memset(x, 0, sizeof *x);
    x->config = zen_config(&c->o);
    x->map = zen_map(t, c->shape->L, c->o.zen_topk, whole_layers(c));
    x->clock = zen_clock(&x->map);
    x->sums = ALLOC(float, 2 * x->map.mixed, "sums");
    x->swaps = (ZenSwap *)alloc_or_fail(x->map.columns, sizeof(ZenSwap), "swaps");
    x->master = floats(5 * n);
    x->m = x->master + n;
    x->v = x->m + n;
    x->shown = x->v + n;
    x->acc = x->shown + n;
    x->half = IS_HALF;
    for (size_t e = 0; e < n; e++) {
        x->master[e] = master_rounded(params[e]);
        x->shown[e] = zen_weight(x, x->master[e]);
    }
}

static RunState reference_state(const ZenReference *x, float *arenas[STATE_PARTS]) {
    arenas[0] = x->master;
    arenas[1] = x->m;
    arenas[2] = x->v;
    arenas[3] = x->shown;
    return state_in(arenas, STATE_PARTS);
}

// The end of a step, whose parts are counted. (What each step shows: test_zenflow.c.)
static void reference_update(GPT2 *g, const Recipe *r, const AdamStep *adam) {
    ZenReference *x = &plain_zen;
    const size_t P = g->table.elements, t0 = x->clock.rest_t, selections = x->clock.selections;
    const bool was_late = zen_is_late(&x->config, &x->clock);
    const ZenRates rates = recipe_rates(r);
    float *grads = floats(P);
    uint16_t *w = (uint16_t *)alloc_or_fail(P, sizeof(uint16_t), "test");
    if (g->accumulating) gpu_copy(grads, g->waiting, P * sizeof(float));
    else floats_move(g->grads, grads, P, true);
    AdamStep unscaled = *adam;
    unscaled.grad_scale *= loss_scale / USUAL_SCALE;
    for (size_t e = 0; e < P; e++) grads[e] /= loss_scale / USUAL_SCALE;
    zen_reference_step(x, grads, &unscaled, &rates);
    for (size_t e = 0; e < P; e++) w[e] = master_weight(x->shown[e]);
    gpu_copy(g->params, IS_HALF ? (const void *)w : (const void *)x->shown, P * sizeof(floatX));

    const bool closes = x->clock.rest_t > t0, late = zen_is_late(&x->config, &x->clock);
    brought.steps++;
    brought.counted[LATE] += was_late && closes && late;
    brought.counted[DRAINED] += closes && !late;
    brought.counted[SELECTED] += x->clock.selections - selections;
    free(grads);
    free(w);
}

// ---------------------------------------------------------------------------------------------
// The same on the GPU

static Run zen_run;  // of which only what the engine and checkpoints need is there

static void run_of(Run *r, const Config *c, const char *out) {
    memset(r, 0, sizeof *r);
    r->o = c->o;
    r->o.out = out;
    r->state.config = shape_config(c->shape);
    r->table = gpt2_table(&r->state.config);
    r->training = true;
}

static void run_free(Run *r) {
    free(r->table.tensors);
    free(r->state.text);
}

// A model from params, or from what *r resumes.
static GPT2 *zen_model(const Config *c, Run *r, const float *params) {
    const Shape s = config_shape(c);
    GPT2 *g = model_new(&s);
    config_place(g, c);
    zen_choose(g, r, SIZE_MAX, SIZE_MAX);
    zen_settle_sums(g->zen, c->sums == 1);
    gpt2_place(g);
    model_plan(g, (int)c->o.recompute, SIZE_MAX, gpt2_bytes(g, true));
    g->choice.streamed = c->streamed;  // room for that is not asked for
    gpt2_place(g);
    const int may = c->o.zen_topk < 1 ? (int)(s.L - g->zen->map.whole) : 0;
    CHECK(g->streamed == (c->streamed < may ? c->streamed : may), "%d layers stream",
          g->streamed);
    gpt2_allocate(g);
    if (params == NULL) {
        gpt2_load(g, r);
        return g;
    }
    g->zen->queued = g->zen->map.segments;
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        for (int k = 0; k < STATE_PARTS; k += STATE_PARTS - 1)
            zen_move(g, k, x->offset, x->size, (float *)params + x->offset, false);
    }
    return g;
}

static void engine_update(GPT2 *g, const Recipe *r, const AdamStep *adam) {
    zen_begin(g, recipe_rates(r), loss_scale / USUAL_SCALE);
    gpt2_update(g, adam);
}

static Recipe zen_recipe(const Config *c, size_t step) {
    Recipe r = row_recipe(c, step);
    r.update = c->plain ? reference_update : engine_update;
    return r;
}

// ---------------------------------------------------------------------------------------------
// Its rows

static GPT2 *row_open(const Config *c, const Shared *) {
    GPT2 *g;
    float *params = shape_params(c->shape, false);
    if (c->plain || c->adamw) memset(&brought, 0, sizeof brought);
    swapped_here = 0;
    run_of(&zen_run, c, in_base("row"));
    if (c->plain) {
        const Shape s = config_shape(c);
        g = model_open(&s, params);
        reference_open(c, &g->table, params);
    } else {
        zen_run.o.resume = zen_run.o.no_save = first_step > 1;  // (no lock)
        if (first_step > 1 && !state_find(zen_run.o.out, SIZE_MAX, &zen_run.state,
                                          zen_run.resume_from, &err)) die("%s", err.text);
        g = zen_model(c, &zen_run, first_step > 1 ? NULL : params);
    }
    free(params);
    return g;
}

static uint64_t row_step(GPT2 *g, const Config *c, size_t step, uint64_t hash, double numbers[2]) {
    const Shape s = config_shape(c);
    const Recipe recipe = zen_recipe(c, step);
    // fp16 rounds small gradients of another scale to other bits
    loss_scale = c->scaled && !IS_FP16 && step % 2 == 1 ? 64 : USUAL_SCALE;
    train_one(g, &s, &recipe, step, numbers);
    if (!c->plain) swapped_here += g->zen->swapped;
    return hash_with(hash, numbers, 2 * sizeof *numbers);
}

static bool row_is_open(const GPT2 *g, const Config *c) {
    return c->plain ? zen_is_open(&plain_zen.config, &plain_zen.clock)
                    : zen_is_open(&g->zen->config, &g->zen->clock);
}

static void row_bring(GPT2 *g, const Config *c, Shared *to) {
    const ZenReference *x = &plain_zen;
    Report *report = &to->rank[0];
    float *arenas[STATE_PARTS];
    if (!c->plain) gpt2_update_wait(g);
    const RunState state = c->plain ? reference_state(x, arenas) : gpt2_state(g);
    for (int k = 0; k < STATE_PARTS; k++)
        for (int i = 0; i < g->table.count; i++) {
            const size_t at = g->table.tensors[i].offset;
            state.move(state.owner, k, at, g->table.tensors[i].size, arena(to, k) + at, true);
        }
    if (c->adamw) return;
    char *text = c->plain ? zen_text(&x->map, &x->clock)
                          : zen_text(&g->zen->map, &g->zen->clock);
    report->more = hash_bytes(text, strlen(text));
    free(text);
}

// The reference saves as the CPU trainer does: there is no difference.
static void row_save(GPT2 *g, const Config *c, size_t done) {
    const ZenReference *x = &plain_zen;
    float *arenas[STATE_PARTS];
    char command[PATH_MAX];
    zen_run.o.out = in_base(c->plain ? "plain" : "row");
    remove_tree(zen_run.o.out);
    zen_run.saves = c->plain ? reference_state(x, arenas) : gpt2_state(g);
    zen_run.saves.parts = STATE_PARTS;
    zen_run.saves.moments_bf16 = moments_bf16;
    zen_run.done = done;
    if (c->plain) run_save(&zen_run, zen_text(&x->map, &x->clock));
    else save(g, &zen_run);
    snprintf(command, sizeof command, "diff -r %s %s", in_base("plain"), in_base("row"));
    if (!c->plain && !c->adamw)
        CHECK(system(command) == 0, "another checkpoint than the reference's: %s", c->text);
}

// As many bytes cross the link as the reference's steps need; exchanged columns go both ways.
static void row_trained(GPT2 *g, const Config *c, size_t steps, Report *report) {
    memcpy(report->counted, brought.counted, sizeof report->counted);
    report->counted[SWAPPED] = swapped_here;
    if (c->plain || brought.steps != steps) return;
    const ZenFlow *z = g->zen;
    const size_t X_ = sizeof(floatX), rest = z->map.rest;
    const size_t streams = (size_t)g->streamed * g->segment[1].leaving;
    const size_t shows = brought.counted[DRAINED] + brought.counted[LATE];
    const size_t inputs = inputs_moved(c, steps), out = steps * rest * X_ + inputs;
    const size_t layers = layers_fetched(g->streamed, g->weight_rooms.count, c->o.accum,
                                         c->evaluates, steps);
    const size_t in = (layers * g->segment[1].leaving + shows * (rest - streams)) * X_ + inputs;
    CHECK(g->moved_in + out == g->moved_out + in && (swapped_here > 0 || g->moved_in == in),
          "%zu in, %zu out; wanted %zu, %zu: %s", g->moved_in, g->moved_out, in, out, c->text);
    CHECK(z->clock.selections == brought.counted[SELECTED], "%zu selections, wanted %zu: %s",
          z->clock.selections, brought.counted[SELECTED], c->text);
    const int sums = z->config.window == 1 ? 0 : !z->config.overlap ? 1 : c->sums;
    CHECK(rest == 0 || z->sums == sums, "%d sums on the host: %s", z->sums, c->text);
}

static void row_close(const Config *c) {
    run_free(&zen_run);
    if (!c->plain) return;
    free(plain_zen.master);
    zen_reference_free(&plain_zen);
}

static const Optimizer zen_rows = {row_open, row_step, row_evaluate, row_bring, row_is_open,
                                   row_save, NULL, row_trained, row_close, NULL};

// ---------------------------------------------------------------------------------------------
// What fits

// One sum instead of two, and then layers that live on the GPU whole: as far as the host's memory
// demands it, and no further.
static void test_fit(void) {
    Config c = config_of("odd --offload zenflow --zen-window 4 --zen-reselect 2");
    size_t limit = SIZE_MAX;
    c.o.resident = -1;
    for (int way = 0; way < 8; way++) {  // none to three layers, each with two sums and with one
        Run run;
        run_of(&run, &c, "nowhere");
        GPT2 *g = model_new(c.shape);
        config_place(g, &c);
        zen_choose(g, &run, SIZE_MAX, limit);
        model_plan(g, KEEP, SIZE_MAX, limit);
        CHECK(2 * (int)g->zen->map.whole + 2 - g->zen->sums == way, "%zu layers, %d sums in %zu",
              g->zen->map.whole, g->zen->sums, limit);
        limit = gpt2_bytes(g, true) - 1;
        zen_free(g->zen);
        model_forget(g);
        run_free(&run);
    }
}

// ---------------------------------------------------------------------------------------------
// Overlap: how long steps take on the emulated GPU's virtual clock

// Windows of so many steps: the rest's update is late, or shows at once.
#define DEEP(window) "deep --clip 0.05 --offload zenflow --zen-topk 0.25 --zen-reselect 0 " \
                     "--threads 1 --zen-window " window
#define LATE_BY(window, settings) DEEP(window) " --zen-overlap on " settings
#define AT_ONCE(window, settings) DEEP(window) " --zen-overlap off " settings

static const Clock zen_clocks[] = {
    {"EMU_KERNEL_US=10 EMU_HOST_US=1 EMU_LINK=500000000", 1, {
        // hidden: a step takes three kernels more than in memory, a window three more
        {LATE_BY("4", "sums=2"), NULL, 1, 1.0238},
        {LATE_BY("4", "sums=2 adds=85"), NULL, 1, 1.0238},
        {LATE_BY("4", "sums=2 adds=10 updates=320"), NULL, 1, 1.0238},
        // exposed
        {AT_ONCE("4", "sums=1 adds=10 updates=250"), NULL, 1.55, 1.65},
        {LATE_BY("4", "sums=1 adds=10 updates=250"), NULL, 1.2, 1.3},
        {LATE_BY("4", "sums=1 adds=10 updates=250 places=9"), NULL, 1.03, 1.08},
        {LATE_BY("1", "sums=1 updates=150"), NULL, 1.5, 1.66}}},
    {"EMU_KERNEL_US=10 EMU_HOST_US=1 EMU_LINK=200000000", 1, {
        // gradients leave while backward goes on; weights come in at the same time
        {LATE_BY("4", "sums=2"), NULL, 1, 1.04},
        {LATE_BY("4", "sums=2"), LATE_BY("4", "sums=2 --no-overlap"), 0.68, 0.71}}}};

// ---------------------------------------------------------------------------------------------

static void tests(void) {
    if (IS_BF16) {
        RUN(test_overlap);  // first: it forks
        RUN(test_fit);
    }
    base_new("zen");
    RUN(test_same_bits);
    remove_tree(base);
}

int main(int argc, char **argv) {
    zenflow = &zen_rows;
    return rows_main(argc, argv, "test_zenflow_gpu", zen_clocks, 2, tests);
}
