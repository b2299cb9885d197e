// test_zenflow_gpu.cu: importance-aware updates on the GPU are those of the reference in zenflow.h,
// bit for bit, though nothing there waits for anything; they move what they must over the link, and
// at the same time as what hides it.
//
// usage: test_zenflow_gpu                     all tests
//        test_zenflow_gpu --config K|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_zenflow_gpu --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"
#include "../files.h"
#include "../zen_free.h"
#include <dirent.h>

static ZenRates recipe_rates(const Recipe *r) {
    return {r->lr, 0.9, 0.95, r->eps, r->decay, moments_bf16, master_bf16};
}

// A hash of the columns and the clock, as far as anything depends on them.
static uint64_t hash_clock(const ZenConfig *c, const ZenMap *map, const ZenClock *x) {
    const bool warms = zen_is_warm(c, x) && x->warm > zen_scores_from(c);
    const bool scores = zen_is_scoring(c, map, x) && (x->filled > 0 || warms);
    const bool means = c->window == 0 && x->filled > 0;
    const size_t counts[5] = {x->warm, x->rest_t, x->filled, x->windows, x->selections};
    uint64_t h = hash_bytes(counts, sizeof counts);
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        if (z->chosen == 0 || z->chosen == z->cols) continue;
        h = hash_with(h, map->column + z->column_at, z->chosen * sizeof(int32_t));
        if (scores) h = hash_with(h, x->scores + z->column_at, z->cols * sizeof(double));
        if (means) h = hash_with(h, &x->chosen_mean[i], sizeof(double));
        if (means) h = hash_with(h, &x->rest_mean[i], sizeof(double));
    }
    return h;
}

static size_t whole_layers(const Config *c) {
    return (size_t)(c->o.resident * (double)c->shape->L + 0.5);
}

// ---------------------------------------------------------------------------------------------
// The reference: forward and backward on the GPU, all else by zen_reference_step()

static ZenReference plain_zen;

// What its steps have brought, and whether an update of the rest is to show one window late.
static struct {
    size_t steps, counted[COUNTERS], swapped_elements;
    bool late;
} brought;

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

// How many elements differ, of those in the rest's columns or in the chosen ones of this map; and,
// in *of, how many these are.
static size_t differing(const ZenMap *map, bool rest, const float *a, const float *b, size_t *of) {
    size_t n = 0;
    *of = 0;
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        const int32_t *column = map->column + z->column_at;
        ZEN_EACH(z, column, rest ? z->chosen : 0, rest ? z->cols : z->chosen,
                 n += memcmp(&a[e], &b[e], sizeof(float)) != 0; (*of)++;)
    }
    return n;
}

static ZenMap map_copy(const ZenMap *map) {
    ZenMap copy = *map;
    copy.tensor = (ZenTensor *)alloc_or_fail((size_t)map->count, sizeof(ZenTensor), "test");
    copy.segment = (ZenSegment *)alloc_or_fail((size_t)map->segments, sizeof(ZenSegment), "test");
    copy.column = (int32_t *)alloc_or_fail(map->columns, sizeof(int32_t), "test");
    memcpy(copy.tensor, map->tensor, (size_t)map->count * sizeof(ZenTensor));
    memcpy(copy.segment, map->segment, (size_t)map->segments * sizeof(ZenSegment));
    memcpy(copy.column, map->column, map->columns * sizeof(int32_t));
    return copy;
}

// What changed places from one map to the other, and how much of the chosen that is among.
static void count_swaps(const ZenMap *a, const ZenMap *b, size_t *columns, size_t *elements) {
    *columns = *elements = 0;
    for (int i = 0; i < a->count; i++) {
        const ZenTensor *z = &a->tensor[i];
        size_t count = 0;
        for (size_t j = 0; j < z->chosen; j++)
            count += a->column[z->column_at + j] != b->column[z->column_at + j];
        *columns += count;
        if (count > 0) *elements += z->rows * z->chosen;
    }
}

// The end of a step. What it is to show is checked: that updates change weights, those of the rest
// one window late, and columns change places only in a selection.
static void reference_update(GPT2 *g, const Recipe *r, const AdamStep *adam) {
    ZenReference *x = &plain_zen;
    const size_t P = g->table.elements, t0 = x->clock.rest_t, windows = x->clock.windows;
    const bool warm = zen_is_warm(&x->config, &x->clock);
    const ZenRates rates = recipe_rates(r);
    float *grads = floats(P), *before = floats(P);
    ZenMap old = map_copy(&x->map);
    size_t of, swapped, elements;
    if (g->accumulating) gpu_copy(grads, g->waiting, P * sizeof(float));
    else floats_move(g->grads, grads, P, true);
    memcpy(before, x->shown, P * sizeof(float));
    zen_reference_step(x, grads, adam, &rates);
    uint16_t *w = (uint16_t *)alloc_or_fail(P, sizeof(uint16_t), "test");
    for (size_t e = 0; e < P; e++) w[e] = master_weight(x->shown[e]);
    gpu_copy(g->params, IS_HALF ? (const void *)w : (const void *)x->shown, P * sizeof(floatX));

    const size_t step = ++brought.steps;
    const bool closes = x->clock.rest_t > t0;
    const bool selects = closes && x->map.mixed && x->clock.windows == 0
        && (warm ? !zen_is_warm(&x->config, &x->clock) : x->config.reselect == windows + 1);
    const bool drains = closes && (warm || !x->config.overlap || selects);
    const bool shows = brought.late && closes && !drains;
    if (closes) brought.late = !drains;
    count_swaps(&old, &x->map, &swapped, &elements);
    brought.counted[LATE] += shows;
    brought.counted[DRAINED] += drains;
    brought.counted[SELECTED] += selects;
    if (!warm) brought.counted[SWAPPED] += swapped;
    brought.swapped_elements += elements;
    CHECK(brought.late == zen_is_late(&x->config, &x->clock), "step %zu", step);
    CHECK(selects || swapped == 0, "step %zu: %zu columns change places", step, swapped);
    const size_t chosen = differing(&old, false, before, x->shown, &of);
    CHECK(2 * chosen >= of, "step %zu changes %zu of %zu of the chosen", step, chosen, of);
    const size_t rest = differing(&old, true, before, x->shown, &of);
    CHECK(drains || shows ? 30 * rest >= of  // untied: most tokens have no gradient
                          : rest == 0, "step %zu changes %zu of %zu of the rest", step, rest, of);
    zen_map_free(&old);
    free(grads);
    free(before);
    free(w);
}

// ---------------------------------------------------------------------------------------------
// The same on the GPU

static Run zen_run;  // of which only what the engine and checkpoints need is there

static void run_of(Run *r, const Config *c, const char *out) {
    memset(r, 0, sizeof *r);
    r->o = c->o;
    r->o.out = out;
    r->config = shape_config(c->shape);
    r->table = gpt2_table(&r->config);
    r->training = true;
}

static void run_free(Run *r) {
    gpt2_table_free(&r->table);
    train_state_free(&r->state);
}

// Bytes of host memory that leave room for so many sums of gradients, if so many are wanted.
static size_t room_for(GPT2 *g, int sums) {
    zen_settle_sums(g->zen, sums == 1);
    gpt2_place(g);
    return gpt2_bytes(g, true);
}

// A model from params, or from what *r resumes.
static GPT2 *zen_model(const Config *c, Run *r, const float *params) {
    const Shape s = config_shape(c);
    const Placement where = config_placement(c);
    moments_bf16 = c->o.moments == MOMENTS_BF16;
    master_bf16 = c->o.master == MASTER_BF16;
    GPT2 *g = model_new(&s, &where);
    zen_choose(g, r, SIZE_MAX, SIZE_MAX);
    model_plan(g, (int)c->o.recompute, SIZE_MAX, room_for(g, c->sums));
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

static void zen_close(GPT2 *g, Run *r) {
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    timeline_close(&g->timeline);
    model_close(g);
    run_free(r);
}

static void engine_update(GPT2 *g, const Recipe *r, const AdamStep *adam) {
    zen_begin(g, recipe_rates(r), zen_loss_scale);
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

// Nothing waits but where columns are selected.
static uint64_t row_step(GPT2 *g, const Config *c, size_t step, uint64_t hash, double numbers[2]) {
    const Shape s = config_shape(c);
    const Recipe recipe = zen_recipe(c, step);
    const size_t selections = c->plain ? 0 : g->zen->clock.selections;
    counted = {};
    train_one(g, &s, &recipe, step, numbers);
    CHECK(c->plain || g->zen->clock.selections > selections || counted.waits == 0,
          "step %zu waits %d times: %s", step, counted.waits, c->text);
    CHECK(c->plain || counted.allocations == 0 || c->timed, "step %zu allocates %d times: %s", step,
          counted.allocations, c->text);
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
    if (!c->adamw)
        report->more = c->plain ? hash_clock(&x->config, &x->map, &x->clock)
                                : hash_clock(&g->zen->config, &g->zen->map, &g->zen->clock);
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

// The bytes that crossed the link are those of what the reference did. On the host are the state
// and the weights of the packed rest, one gradient of each of these, the sums, and the weights of
// layers that are stored there.
static void row_trained(GPT2 *g, const Config *c, size_t steps, Report *report) {
    memcpy(report->counted, brought.counted, sizeof report->counted);
    if (c->plain || brought.steps != steps) return;
    const ZenFlow *z = g->zen;
    const size_t X_ = sizeof(floatX), rest = z->map.rest;
    const size_t streams = (size_t)g->streamed * g->segment[1].leaving;
    const size_t swapped = g->piece_bytes[PIECE_CHOSEN] * brought.swapped_elements;
    const size_t shows = brought.counted[DRAINED] + brought.counted[LATE];
    const size_t inputs = inputs_moved(c, steps), out = steps * rest * X_ + swapped + inputs;
    const size_t in = layers_fetched(g->streamed, g->weight_rooms.count, c->o.accum, c->evaluates, steps)
                      * g->segment[1].leaving * X_ + shows * (rest - streams) * X_ + swapped + inputs;
    CHECK(g->moved_in == in && g->moved_out == out, "%zu in, %zu out; wanted %zu, %zu: %s",
          g->moved_in, g->moved_out, in, out, c->text);
    CHECK(z->clock.selections == brought.counted[SELECTED], "%zu selections, wanted %zu: %s",
          z->clock.selections, brought.counted[SELECTED], c->text);
    const size_t sums = z->config.window == 1 ? 0 : !z->config.overlap ? 1 : (size_t)c->sums;
    const size_t wanted = rest * (state_of(c) + 2 * X_ + 4 * sums) + streams * X_ + inputs_stored(g);
    const size_t listed = page_locked(g, "columns", c->text);
    CHECK(listed == wanted, "%zu bytes of host memory, wanted %zu: %s", listed, wanted, c->text);
    CHECK(is_urgent(z->pack), "packing waits for products");
    int32_t *column = (int32_t *)alloc_or_fail(z->map.columns, sizeof(int32_t), "test");
    gpu_copy(column, z->column, z->map.columns * sizeof(int32_t));
    CHECK(memcmp(column, z->map.column, z->map.columns * sizeof(int32_t)) == 0, "columns: %s",
          c->text);
    free(column);
}

static void row_close(const Config *c) {
    run_free(&zen_run);
    if (!c->plain) return;
    free(plain_zen.master);
    zen_reference_free(&plain_zen);
}

static const Optimizer zen_rows = {row_open, row_step, row_evaluate, row_bring, row_is_open,
                                   row_save, NULL, row_trained, row_close};

// The scores of columns after two steps, of which there are *count.
static double *scores_of(const Config *c, double scale, size_t *count) {
    Run run;
    double numbers[2];
    run_of(&run, c, "nowhere");
    float *params = shape_params(c->shape, false);
    zen_loss_scale = scale;
    GPT2 *g = zen_model(c, &run, params);
    for (size_t step = 1; step <= 2; step++) {
        const Recipe recipe = zen_recipe(c, step);
        train_one(g, c->shape, &recipe, step, numbers);
    }
    gpt2_update_wait(g);
    zen_loss_scale = 1;
    *count = g->zen->map.columns;
    double *scores = ALLOC(double, *count, "scores");
    memcpy(scores, g->zen->clock.scores, *count * sizeof *scores);
    free(params);
    zen_close(g, &run);
    return scores;
}

// Scores are of gradients without the factor of loss scaling, which may change between the steps
// that they are summed over.
static void test_scores_are_unscaled(void) {
    const Config c = config_of("five --clip 0 --offload zenflow --zen-topk 0.3 --zen-window 2 "
                               "--zen-reselect 3 --zen-warmup 2 --zen-overlap off");
    size_t n, wrong = 0;
    double *scaled = scores_of(&c, 1, &n), *scores = scores_of(&c, 64, &n), sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += scores[i];
        wrong += scores[i] * 64 * 64 != scaled[i];
    }
    CHECK(n > 0 && sum > 0 && wrong == 0, "%zu of %zu columns, sum %g", wrong, n, sum);
    free(scaled);
    free(scores);
}

// ---------------------------------------------------------------------------------------------
// What fits

// A model of which nothing but columns and room is settled, or, with a limit, all.
static GPT2 *zen_planned(Config *c, int resident, size_t host_limit) {
    Run run;
    const Placement where = config_placement(c);
    c->o.resident = resident < 0 ? -1 : resident / (double)c->shape->L;
    run_of(&run, c, "nowhere");
    GPT2 *g = model_new(c->shape, &where);
    zen_choose(g, &run, SIZE_MAX, host_limit);
    model_plan(g, KEEP, SIZE_MAX, resident < 0 ? host_limit : room_for(g, c->sums));
    run_free(&run);
    return g;
}

static void zen_forget(GPT2 *g) {
    zen_map_free(&g->zen->map);
    zen_clock_free(&g->zen->clock);
    free(g->zen);
    model_forget(g);
}

// One sum instead of two, and then layers that live on the GPU whole: as far as the host's memory
// demands it, and no further.
static void test_fit(void) {
    enum { L = 3 };
    Config c = config_of("odd --offload zenflow --zen-window 4 --zen-reselect 2");
    size_t gpu[2 * (L + 1)], host[2 * (L + 1)];
    for (int i = 0; i < 2 * (L + 1); i++) {
        c.sums = 2 - i % 2;
        GPT2 *g = zen_planned(&c, i / 2, SIZE_MAX);
        gpu[i] = gpt2_bytes(g, false);
        host[i] = gpt2_bytes(g, true);
        CHECK(i < 2 || (host[i] < host[i - 2] && gpu[i] > gpu[i - 2]), "%d layers", i / 2);
        zen_forget(g);
    }
    for (int i = 0; i < 2 * (L + 1); i++) {
        int first = 0;  // that fits
        while (host[first] > host[i]) first++;
        GPT2 *g = zen_planned(&c, -1, host[i]);
        CHECK(g->zen->map.whole == (size_t)first / 2 && g->zen->sums == 2 - first % 2, "%d layers, "
              "%d sums: %zu layers, %d sums", first / 2, 2 - first % 2, g->zen->map.whole,
              g->zen->sums);
        zen_forget(g);
    }
}

// ---------------------------------------------------------------------------------------------
// What happens at the same time, on the emulated GPU's virtual clock

#ifdef __CUDA_EMU__
enum { KERNEL_US = 10, LINK_RATE = 500, SLOW_RATE = 200 };  // bytes per us, each way

// Microseconds: of a step, the mean over some windows; what of it were waits of compute, before a
// part of forward or of backward; and of the longest step.
typedef struct { double step, forward, backward, longest; } Times;

static Config timed_config(size_t window, bool overlap, int sums) {
    return config_of("deep --clip 0.05 --offload zenflow --zen-topk 0.25 --zen-window %zu "
                     "--zen-reselect 0 --zen-overlap %s sums=%d --threads 1", window,
                     overlap ? "on" : "off", sums);
}

// add, update: what the host takes for all of the rest, in us. c NULL: everything on the GPU.
static Times measure(const Config *c, double add, double update) {
    enum { WINDOWS = 2, READ = 2 };  // counters are read so many steps later
    const Config none = timed_config(4, 1, 1), *settings = c != NULL ? c : &none;
    const size_t window = (size_t)settings->o.zen_window;
    const size_t first = 2 + 2 * window, last = first + WINDOWS * window;
    const Shape s = *settings->shape;
    const double steps = (double)(last - first);
    Times t = {0, 0, 0, 0};
    Run run;
    run_of(&run, settings, "nowhere");
    float *params = shape_params(&s, false);
    GPT2 *g = c != NULL ? zen_model(c, &run, params) : model_open(&s, params);
    timeline_open(&g->timeline, NULL);
    add_seconds = c != NULL ? 1e-6 * add / (double)g->zen->map.rest : 0;
    update_seconds = c != NULL ? 1e-6 * update / (double)g->zen->map.rest : 0;
    for (size_t step = 1; step < last + READ; step++) {
        timeline_step(&g->timeline, step);
        const TimelineStep *d = &g->timeline.done;
        const double before = 1e6 * emu_virtual_now();
        const bool counts = step >= first && step < last;
        if (d->step >= first && d->step < last) {
            t.forward += 1e6 * (d->stalled - d->stalled_backward) / steps;
            t.backward += 1e6 * d->stalled_backward / steps;
        }
        double numbers[2];
        Recipe recipe = zen_recipe(settings, step);
        if (c == NULL) recipe.update = NULL;
        train_one(g, &s, &recipe, step, numbers);
        const double took = 1e6 * emu_virtual_now() - before;  // the host waits for losses only
        if (counts) t.step += took / steps;
        if (counts && took > t.longest) t.longest = took;
    }
    zen_close(g, &run);
    free(params);
    add_seconds = update_seconds = 0;
    return t;
}

static double in_memory(void) {
    static double step;
    if (step == 0) step = measure(NULL, 0, 0).step;
    return step;
}

// Checks that nothing waits: to a step with everything on the GPU, each step adds the time of three
// kernels, and each window three more with its first bytes of new weights.
static void check_hidden(const Config *c, double add, double update, const char *what) {
    const double T = in_memory();
    const Times t = measure(c, add * T, update * T);
    const double more = 3 * KERNEL_US * (1 + 1 / c->o.zen_window);
    CHECK(t.step < T + more + 0.1 * KERNEL_US && t.longest < 1.05 * T, "%s: %.1f us, the longest "
          "%.0f; in memory %.0f", what, t.step, t.longest, T);
    CHECK(t.forward < 0.015 * T + KERNEL_US && t.backward == 0, "%s: forward waits %.0f us, "
          "backward %.0f", what, t.forward, t.backward);
}

// That of each window so many steps' time is waited for, and only there.
static void check_exposed(const Config *c, double update, bool in_forward, double least,
                          double most, const char *what) {
    const double T = in_memory();
    const Times t = measure(c, 0.1 * T, update * T);
    const double waits = (in_forward ? t.forward : t.backward) * c->o.zen_window / T;
    const double other = (in_forward ? t.backward : t.forward) / T;
    const double longer = (t.step / T - 1) * c->o.zen_window;
    CHECK(waits > least && waits < most && other < 0.02, "%s: waits %.2f steps in each window, and "
          "%.2f elsewhere", what, waits, other);
    CHECK(fabs(longer - waits) < 0.15, "%s: waits %.2f steps, but takes %.2f longer", what, waits,
          longer);
}

// The additions to a sum, and an update that takes nearly as long as it may.
static void test_update_hides(void) {
    Config c = timed_config(4, 1, 2);
    check_hidden(&c, 0.001, 0.001, "a fast host");
    check_hidden(&c, 0.85, 0.001, "slow additions");
    check_hidden(&c, 0.1, 2.5, "two sums");
    check_hidden(&c, 0.1, 3.2, "two sums, for as long as they can");
    if (!test_whole()) return;
    c = timed_config(4, 1, 1);
    check_hidden(&c, 0.1, 0.9, "one sum");
    c = timed_config(3, 1, 2);
    check_hidden(&c, 0.1, 2, "windows of three");
    c = timed_config(2, 1, 1);
    check_hidden(&c, 0.1, 0.9, "windows of two, one sum");
}

// What does not hide: how much of it, and where it is waited for.
static void test_update_is_exposed(void) {
    Config c = timed_config(4, 0, 1);
    check_exposed(&c, 2.5, true, 2.2, 2.6, "at once");
    c = timed_config(4, 1, 1);
    check_exposed(&c, 2.5, false, 0.8, 1.6, "one sum");
    c.places = 9;  // for all layers: a whole pass need not wait
    check_exposed(&c, 2.5, false, 0.1, 0.4, "one sum, places for all layers");
    if (!test_whole()) return;
    // Where the host is slower than all steps of a window, they take as long as it does.
    const double T = in_memory();
    c = timed_config(4, 1, 2);
    Times t = measure(&c, 0.1 * T, 5 * T);
    CHECK(t.step > 1.35 * T && t.step < 1.4 * T, "too slow a host: %.0f us", t.step);
    t = measure(&c, 1.5 * T, 0.01 * T);
    CHECK(t.step > 1.5 * T && t.step < 1.55 * T, "slow additions: %.0f us", t.step);
    CHECK(t.backward > 0.3 * T, "slow additions: backward waits %.0f us", t.backward);
    c = timed_config(1, 1, 1);
    t = measure(&c, 0, 0.9 * T);
    CHECK(t.step < 1.05 * T, "windows of one step: %.0f us", t.step);
    t = measure(&c, 0, 1.5 * T);
    CHECK(t.step > 1.5 * T && t.step < 1.62 * T, "windows of one step, slowly: %.0f us", t.step);
}

// Gradients leave while backward goes on: that takes longer by the time of all of them otherwise.
// What comes in does so at the same time.
static void test_link(void) {
    Config c = timed_config(4, 1, 2);
    const Times together = measure(&c, 0, 0);
    Run run;
    ZenMap map;
    ZenClock clock;
    run_of(&run, &c, "nowhere");
    zen_open(&run, &map, &clock, 0);
    const double leave = 2 * (double)map.rest / SLOW_RATE;
    zen_map_free(&map);
    zen_clock_free(&clock);
    run_free(&run);
    c.o.no_overlap = true;
    const Times serial = measure(&c, 0, 0);
    CHECK(serial.step - together.step > 0.9 * leave, "%.0f us, one after the other %.0f; they need "
          "%.0f", together.step, serial.step, leave);
    CHECK(together.step < 1.1 * in_memory(), "%.0f us, in memory %.0f", together.step,
          in_memory());
}
#endif

static void test_overlap(void) {
#ifdef __CUDA_EMU__
    for (int i = 0; i < 2; i++)
        run_again("test_zenflow_gpu", "--clock", i, ON_A_CLOCK "EMU_KERNEL_US=%d EMU_HOST_US=1 "
                  "EMU_LINK=%d000000", KERNEL_US, i == 0 ? LINK_RATE : SLOW_RATE);
#else
    SKIP("only on the virtual clock of the emulated GPU");
#endif
}

// ---------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    zenflow = &zen_rows;
    rows_make("test_zenflow_gpu");
#ifdef __CUDA_EMU__
    if (argc == 4 && strcmp(argv[1], "--clock") == 0) {
        if (atoi(argv[2]) == 0) {
            RUN(test_update_hides);
            RUN(test_update_is_exposed);
        } else {
            RUN(test_link);
        }
        return test_summary();
    }
#endif
    if (!rows_asked(argc, argv)) without_protection(argv);
    snprintf(base, sizeof base, "/tmp/tide_zen_XXXXXX");
    if (mkdtemp(base) == NULL) die("no temporary directory");
    if (rows_asked(argc, argv)) {
        const int code = rows_print(argc, argv);
        remove_tree(base);
        return code;
    }
    if (IS_BF16) {
        RUN(test_overlap);  // first: it forks
        RUN(test_fit);
    }
    RUN(test_scores_are_unscaled);
    RUN(test_same_bits);
    remove_tree(base);
    return test_summary();
}
