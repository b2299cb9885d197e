// test_zenflow_gpu.cu: importance-aware updates on the GPU are those of the reference in zenflow.h,
// bit for bit, though nothing there waits for anything; they move what they must over the link, and
// at the same time as what hides it.
//
// usage: test_zenflow_gpu                     all tests
//        test_zenflow_gpu --config K|some|all [N]  for test_schedules.sh; N: windows
//        test_zenflow_gpu --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "model_harness.cuh"
#include "../files.h"
#include "../zen_free.h"
#include <dirent.h>

// ---------------------------------------------------------------------------------------------
// The configurations

// With gaps between tensors, padded rows, tied and untied heads, odd widths, and matrices of more
// than one block of rows. And one in which all is even.
enum { TIED, ODD, WIDE, ONE, DEEP, EVEN, LLAMA, SHAPES };
static const Shape shapes[SHAPES] = {
    // name          L NH   C    F    V  ctx  B  T  act  tied recompute accum head repeated
    {"tied",         3, 1,  32,  64, 131,  9, 1, 8, GELU, 1, KEEP, 1, 99, false},
    {"odd",          3, 1,  24,  40, 257,  7, 2, 5, RELU, 0, KEEP, 1,  4, false},
    {"wide",         2, 3,  72, 104, 131,  8, 1, 7, GELU, 1, KEEP, 1, 99, false},
    {"one layer",    1, 2,  48, 136, 131,  7, 2, 7, GELU, 0, KEEP, 1, 99, false},
    {"deep",         6, 1,  32,  64, 131,  8, 1, 8, GELU, 1, KEEP, 1, 99, false},
    {"even",         2, 2,  64, 128, 256, 16, 2, 4, GELU, 1, KEEP, 1, 99, false},
    {"llama",        3, 4,  32,  40, 131,  9, 1, 8, GELU, 0, KEEP, 1, 99, false, 0,
     FAMILY_QWEN3, 2, 16},
};
enum { AUTO = 0, ALL = 9 };  // of windows, layers

typedef struct {
    int shape, bits;                 // of the stored numbers: 16, 32
    size_t accum;
    int recompute;
    double clip;                     // 0.05: every step is clipped; 0: none
    double topk;
    size_t window, reselect, warmup;
    int overlap;
    size_t sums, whole;              // sums: as many as host memory leaves room for
    int threads, serial, rests;      // rests: --no-overlap
    int evaluates, sizes, timed;     // an evaluation follows every step; every second step is
                                     // smaller; with a timeline
    int places;                      // of gradients
    int moments;                     // bits of them
    int streamed;                    // layers whose weights live on the host
} Config;

// Any two settings meet in one of the first MIXED (test_settings_meet). Then what is used most, for
// longer.
enum { MIXED = 20, SETTINGS = 21 };
static const Config configs[] = {
    //       recompute topk   reselect  sums threads rests
    // shape bits | clip | window | warmup | whole | serial | evaluates, sizes, timed
    //    |   | accum    |    |   |  | overlap  |  |  |  |  |  |  |  places, moments, streamed
    {TIED, 16, 1, AGAIN, .05,   0,    1, 0, 1, 0, 2,   0, 3, 1, 0, 1, 1, 0, 2, 16, ALL},
    { ONE, 16, 1, AGAIN,   0,   0,    1, 1, 1, 0, 2,   0, 1, 1, 1, 0, 0, 1, 2, 32,   0},
    { ODD, 32, 2, AGAIN,   0, .05,    1, 0, 1, 0, 1,   1, 3, 0, 0, 0, 0, 1, 2, 32,   0},
    { ODD, 16, 1,  KEEP, .05,  .3,    1, 3, 3, 1, 2, ALL, 1, 1, 1, 0, 1, 1, 9, 16,   0},
    {WIDE, 32, 2,  KEEP, .05,   1,    1, 1, 1, 1, 2,   0, 3, 0, 0, 1, 1, 0, 9, 32,   1},
    { ODD, 32, 1,  KEEP, .05,   0,    2, 0, 3, 0, 2,   1, 1, 0, 1, 1, 1, 1, 2, 16,   1},
    { ONE, 32, 2,  KEEP,   0, .05,    2, 3, 3, 1, 2,   0, 1, 1, 1, 1, 1, 1, 9, 16, ALL},
    {WIDE, 16, 2, AGAIN,   0,  .3,    2, 1, 1, 0, 1, ALL, 1, 0, 0, 0, 0, 0, 2, 16, ALL},
    {TIED, 16, 2,  KEEP, .05,   1,    2, 3, 1, 0, 2,   1, 1, 1, 1, 0, 0, 1, 9, 32,   1},
    {WIDE, 16, 1, AGAIN,   0,   1,    2, 0, 3, 0, 1, ALL, 3, 0, 0, 0, 1, 0, 2, 16,   0},
    {WIDE, 32, 1,  KEEP, .05,   0,    4, 3, 3, 1, 1,   1, 1, 0, 0, 1, 0, 1, 2, 16, ALL},
    {TIED, 32, 2, AGAIN,   0, .05,    4, 1, 1, 1, 2,   1, 1, 1, 0, 1, 1, 0, 9, 16,   1},
    { ONE, 16, 1, AGAIN,   0,  .3,    4, 1, 3, 0, 1,   0, 1, 1, 1, 0, 0, 1, 2, 16,   1},
    { ONE, 32, 1,  KEEP, .05,  .3,    4, 0, 1, 1, 1, ALL, 3, 0, 0, 1, 1, 0, 9, 32,   0},
    { ODD, 32, 2, AGAIN,   0,   1,    4, 1, 3, 1, 2, ALL, 3, 1, 1, 1, 0, 0, 2, 32,   1},
    {TIED, 16, 2, AGAIN,   0,   0, AUTO, 3, 1, 1, 1, ALL, 3, 1, 0, 0, 0, 0, 9, 32,   0},
    {WIDE, 16, 1, AGAIN, .05, .05, AUTO, 3, 3, 1, 2, ALL, 1, 1, 1, 1, 1, 0, 2, 16, ALL},
    {TIED, 32, 2,  KEEP,   0,  .3, AUTO, 3, 3, 0, 2,   1, 3, 0, 1, 1, 0, 1, 9, 32, ALL},
    { ODD, 16, 1, AGAIN,   0,   1, AUTO, 1, 1, 0, 1,   0, 1, 1, 0, 0, 1, 0, 2, 32, ALL},
    { ONE, 16, 2,  KEEP, .05,   1, AUTO, 0, 1, 0, 2,   1, 3, 1, 0, 0, 1, 1, 2, 32,   1},
    {TIED, 16, 1,  KEEP, .05,  .1,    4, 3, 1, 1, 2,   0, 2, 0, 0, 0, 0, 1, 2, 32,   0},
    {TIED, 16, 1,  KEEP, .05,  .1,    4, 3, 1, 1, 1,   1, 2, 0, 0, 0, 0, 0, 9, 16, ALL},
    { ODD, 16, 2,  KEEP, .05,  .3,    3, 3, 2, 1, 2,   1, 2, 0, 0, 1, 1, 0, 9, 32,   1},
    {TIED, 32, 1,  KEEP, .05,  .3,    2, 4, 1, 1, 2,   0, 2, 0, 0, 0, 0, 0, 2, 16,   0},
    {WIDE, 16, 2, AGAIN, .05,  .1, AUTO, 0, 1, 1, 2,   0, 1, 0, 0, 0, 0, 1, 9, 32, ALL},
    {TIED, 16, 1, LIGHT, .05,  .3,    1, 3, 1, 1, 2,   0, 2, 0, 0, 0, 0, 0, 2, 16,   0},
    {TIED, 16, 1, LIGHT, .05,  .3,    3, 2, 1, 0, 2,   0, 2, 0, 0, 0, 0, 0, 9, 32, ALL},
    {DEEP, 16, 1,  KEEP, .05,  .3,    3, 2, 1, 1, 2,   0, 2, 0, 0, 0, 1, 0, 2, 32,   3},
    {LLAMA,16, 2, LIGHT, .05,  .3,    2, 3, 1, 1, 2,   0, 2, 0, 0, 0, 0, 1, 2, 32,   1},
    {LLAMA,32, 1, AGAIN, .05,  .2,    3, 1, 2, 0, 1,   1, 1, 0, 0, 1, 1, 0, 9, 16, ALL},
};
enum { CONFIGS = sizeof configs / sizeof *configs, LONGEST = 100 };
// Those that cover what there is.
static const int some[] = {3, 6, 7, 11, 13, 16, 17, 20, 21, 22, 23, 25, 27, 28};

static Shape config_shape(const Config *c) {
    Shape s = shapes[c->shape];
    s.accum = c->accum;
    s.recompute = c->recompute;
    moments_bf16 = c->moments == 16;
    return s;
}

static Placement config_placement(const Config *c) {
    Placement p;
    memset(&p, 0, sizeof p);
    p.choice.mode = OFFLOAD_ZENFLOW;
    p.choice.kept_grads = KEEP_ALL;
    p.choice.grad_rooms = c->places;
    p.threads = c->threads;
    p.serial = c->serial != 0;
    return p;
}

static ZenConfig config_zen(const Config *c) {
    const ZenConfig zen = {c->topk, c->window, c->reselect, c->warmup, c->overlap != 0, 0.99};
    return zen;
}

static size_t whole_layers(const Config *c) { return min_size(c->whole, shapes[c->shape].L); }

static void config_name(const Config *c, char name[300]) {
    snprintf(name, 300, "%s %s%d accum %zu%s clip %g topk %g window %zu reselect %zu warm-up %zu "
             "overlap %d sums %zu whole %zu threads %d places %d moments %d streamed %d%s%s%s%s%s",
             shapes[c->shape].name, c->bits == 16 ? "bf" : "fp", c->bits, c->accum,
             again_names[c->recompute], c->clip, c->topk, c->window, c->reselect,
             c->warmup, c->overlap, c->sums, c->whole, c->threads,
             c->places, c->moments, c->streamed, c->serial ? " serial" : "", c->rests ? " resting" : "",
             c->evaluates ? " evaluating" : "", c->sizes ? " two sizes" : "",
             c->timed ? " timed" : "");
}

static double setting(int k, int i) {
    const Config *c = &configs[k];
    const double all[SETTINGS] = {
        (double)c->shape, (double)c->bits, (double)c->accum, (double)c->recompute, c->clip,
        c->topk, (double)c->window, (double)c->reselect, (double)c->warmup, (double)c->overlap,
        (double)c->sums, (double)c->whole, (double)c->threads, (double)c->serial,
        (double)c->rests, (double)c->evaluates,
        (double)c->sizes, (double)c->timed, (double)c->places, (double)c->moments,
        (double)(c->streamed < ALL ? c->streamed > 0 : 2)};
    return all[i];
}

static void test_settings_meet(void) { check_settings_meet(MIXED, SETTINGS, setting, NULL); }

// The learning rate changes, and is so high that an update changes bf16 weights.
static ZenRates rates_of(size_t step) {
    const ZenRates r = {5e-3 * (double)(2 + step % 3), 0.9, 0.95, 1e-8, 0.1, moments_bf16};
    return r;
}

// Steps that come to so many windows, about that if they follow the gradients; and so many that
// columns are selected again, and an update shows after that.
static size_t steps_of(const Config *c, size_t windows) {
    return min_size(c->warmup + windows * (c->window == AUTO ? 3 : c->window), LONGEST);
}

static size_t enough(const Config *c) {
    return c->reselect == 0 ? 3 : c->reselect + (c < configs + MIXED ? 1 : 2);
}

// ---------------------------------------------------------------------------------------------
// A run, and what is recorded of it

typedef struct {
    size_t steps;
    double loss[LONGEST], norm[LONGEST], evaluation[LONGEST];
    uint64_t state[LONGEST];    // of all weights and moments, columns and counters
    // Of the reference: what the step's end brought; did the rest's update of the window before
    // show; columns that changed places, and their elements.
    ZenTurn turn[LONGEST];
    bool late[LONGEST];
    size_t swapped[LONGEST], swapped_elements[LONGEST];
    size_t rest;                // packed elements
} Record;

// A hash of the columns and the clock, as far as anything depends on them.
static uint64_t hash_clock(const ZenConfig *c, const ZenMap *map, const ZenClock *x) {
    const bool warms = zen_is_warm(c, x) && x->warm > zen_scores_from(c);
    const bool scores = zen_is_scoring(c, map, x) && (x->filled > 0 || warms);
    const bool means = c->window == AUTO && x->filled > 0;
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

static uint64_t hash_parts(const GPT2Table *t, const RunState *x, uint64_t h) {
    float *w = floats(t->elements);
    for (int k = 0; k < STATE_PARTS; k++)
        for (int i = 0; i < t->count; i++) {
            x->move(x->owner, k, t->tensors[i].offset, t->tensors[i].size, w, true);
            h = hash_with(h, w, t->tensors[i].size * sizeof(float));
        }
    free(w);
    return h;
}

// The step's gradient, and what follows from it: its loss, its norm and the scale that clips it.
static float step_gradient(GPT2 *g, const Config *c, size_t step, Record *r) {
    Shape s = config_shape(c);
    if (c->sizes && step % 2 == 0) s.B = 1, s.T -= 2;
    const size_t N = s.accum * s.B * s.T;
    int32_t *tokens = (int32_t *)alloc_or_fail(2 * N, sizeof(int32_t), "test");
    double norm_squared;
    shape_batch(&s, step, tokens, tokens + N);
    r->loss[step - 1] = gpu_gradient(g, &s, tokens, tokens + N, &norm_squared);
    r->norm[step - 1] = sqrt(norm_squared);
    free(tokens);
    return clip_scale(norm_squared, c->clip) / loss_scale;
}

static void evaluation(GPT2 *g, const Config *c, size_t step, Record *r) {
    const Shape s = shapes[c->shape];
    int32_t *tokens = (int32_t *)alloc_or_fail(2 * s.B * s.T, sizeof(int32_t), "test");
    shape_batch(&s, step + 1000, tokens, tokens + s.B * s.T);
    g->timeline.between = true;
    gpt2_forward(g, tokens, NULL, tokens + s.B * s.T, 1, s.T - 1);
    gpt2_head(g, 0, 1, false, NULL);
    g->timeline.between = false;
    r->evaluation[step - 1] = gpt2_loss(g);
    free(tokens);
}

// ---------------------------------------------------------------------------------------------
// The reference: forward and backward on the GPU, all else by zen_reference_step()

static ZenReference reference_open(const Config *c, const GPT2Table *t, const float *params) {
    const size_t n = t->elements;
    ZenReference x;
    memset(&x, 0, sizeof x);
    x.config = config_zen(c);
    x.map = zen_map(t, shapes[c->shape].L, c->topk, whole_layers(c));
    x.clock = zen_clock(&x.map);
    x.sums = ALLOC(float, 2 * x.map.mixed, "sums");
    x.swaps = (ZenSwap *)alloc_or_fail(x.map.columns, sizeof(ZenSwap), "swaps");
    x.master = floats(n);
    x.m = floats(n);
    x.v = floats(n);
    x.shown = floats(n);
    x.acc = floats(n);
    x.half = c->bits == 16;
    for (size_t e = 0; e < n; e++) {
        x.master[e] = master_rounded(params[e]);
        x.shown[e] = zen_weight(&x, x.master[e]);
    }
    return x;
}

static void reference_close(ZenReference *x) {
    free(x->master);
    free(x->m);
    free(x->v);
    free(x->shown);
    free(x->acc);
    zen_reference_free(x);
}

static RunState reference_state(const ZenReference *x, float *arenas[STATE_PARTS]) {
    arenas[0] = x->master;
    arenas[1] = x->m;
    arenas[2] = x->v;
    arenas[3] = x->shown;
    return state_in(arenas, STATE_PARTS);
}

static uint64_t hash_reference(const ZenReference *x, const GPT2Table *t) {
    float *arenas[STATE_PARTS];
    const RunState state = reference_state(x, arenas);
    return hash_parts(t, &state, hash_clock(&x->config, &x->map, &x->clock));
}

// The whole gradient of a step, as floats: the sum of all micro-batches.
static void whole_gradient(GPT2 *g, float *grads) {
    if (g->accumulating) gpu_copy(grads, g->waiting, g->table.elements * sizeof(float));
    else floats_move(g->grads, grads, g->table.elements, true);
}

static void show(GPT2 *g, const float *shown) {
    const size_t P = g->table.elements;
    uint16_t *w = (uint16_t *)alloc_or_fail(P, sizeof(uint16_t), "test");
    for (size_t e = 0; e < P; e++) w[e] = master_weight(shown[e]);
    gpu_copy(g->params, IS_HALF ? (const void *)w : (const void *)shown, P * sizeof(floatX));
    free(w);
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

// What a reference is asked for after a step, if not NULL.
typedef void AfterStep(const ZenReference *x, const GPT2Table *t, size_t step, void *data);

// Fills *r. What it is to show is checked: that updates change weights, those of the rest one
// window late, and that columns change places.
static void reference_run(const Config *c, size_t steps, Record *r, AfterStep *after = NULL,
                          void *data = NULL) {
    const Shape s = config_shape(c);
    char name[300];
    config_name(c, name);
    memset(r, 0, sizeof *r);
    r->steps = steps;
    float *params = shape_params(&s, false);
    GPT2 *g = model_open(&s, params);
    const GPT2Table *t = &g->table;
    ZenReference x = reference_open(c, t, params);
    float *grads = floats(t->elements), *before = floats(t->elements);
    bool late = false;
    r->rest = x.map.rest;
    for (size_t step = 1; step <= steps; step++) {
        const float scale = step_gradient(g, c, step, r);
        const ZenRates rates = rates_of(step);
        const bool warm = zen_is_warm(&x.config, &x.clock);
        ZenMap old = map_copy(&x.map);
        const size_t t0 = x.clock.rest_t, filled = x.clock.filled, windows = x.clock.windows;
        size_t of, n;
        whole_gradient(g, grads);
        memcpy(before, x.shown, t->elements * sizeof(float));
        const AdamStep now = adam_of(&rates, step, scale);
        zen_reference_step(&x, grads, &now, &rates);
        show(g, x.shown);
        ZenTurn *turn = &r->turn[step - 1];
        turn->closes = x.clock.rest_t > t0;
        turn->selects = turn->closes && x.map.mixed && x.clock.windows == 0
            && (warm ? !zen_is_warm(&x.config, &x.clock) : c->reselect == windows + 1);
        turn->drains = turn->closes && (warm || !c->overlap || turn->selects);
        turn->steps = filled + 1;
        r->late[step - 1] = late && turn->closes && !turn->drains;
        if (turn->closes) late = !turn->drains;
        CHECK(late == zen_is_late(&x.config, &x.clock), "%s: step %zu", name, step);
        count_swaps(&old, &x.map, &r->swapped[step - 1], &r->swapped_elements[step - 1]);
        CHECK(turn->selects || r->swapped[step - 1] == 0, "%s: step %zu", name, step);
        n = differing(&old, false, before, x.shown, &of);
        CHECK(2 * n >= of, "%s: step %zu changes %zu of %zu of the chosen", name, step, n, of);
        n = differing(&old, true, before, x.shown, &of);
        if (turn->drains || r->late[step - 1])  // untied: most tokens have no gradient
            CHECK(30 * n >= of, "%s: step %zu changes %zu of %zu of the rest", name, step, n,
                  of);
        else
            CHECK(n == 0, "%s: step %zu changes %zu of the rest", name, step, n);
        zen_map_free(&old);
        if (c->evaluates) evaluation(g, c, step, r);
        r->state[step - 1] = hash_reference(&x, t);
        if (after != NULL) after(&x, t, step, data);
    }
    free(grads);
    free(before);
    free(params);
    reference_close(&x);
    model_close(g);
}

// ---------------------------------------------------------------------------------------------
// The same on the GPU

// A run of which only what the engine and checkpoints need is there.
static void run_of(Run *r, const Config *c, const char *out) {
    const Shape s = config_shape(c);
    char *argv[] = {(char *)"test", (char *)"--data", (char *)"none", (char *)"--offload",
                    (char *)"zenflow"};
    memset(r, 0, sizeof *r);
    options_parse(&r->o, 5, argv, true);
    r->o.zen_topk = c->topk;
    r->o.zen_window = c->window;
    r->o.zen_reselect = c->reselect;
    r->o.zen_warmup = c->warmup;
    r->o.zen_overlap = c->overlap ? OVERLAP_ON : OVERLAP_OFF;
    r->o.resident = (double)whole_layers(c) / (double)s.L;
    r->o.recompute = c->recompute;
    r->o.out = out;
    r->o.moments = moments_bf16 ? MOMENTS_BF16 : MOMENTS_FP32;
    r->config = shape_config(&s);
    r->table = gpt2_table(&r->config);
    r->training = true;
}

static void run_free(Run *r) {
    gpt2_table_free(&r->table);
    train_state_free(&r->state);
}

// Bytes of host memory that leave room for so many sums of gradients, if so many are wanted.
static size_t room_for(GPT2 *g, size_t sums) {
    zen_settle_sums(g->zen, sums == 1);
    gpt2_place(g);
    return gpt2_bytes(g, true);
}

// A model from params, or from what *r resumes.
static GPT2 *zen_model(const Config *c, Run *r, const float *params) {
    const Shape s = config_shape(c);
    const Placement where = config_placement(c);
    GPT2 *g = model_new(&s, &where);
    zen_choose(g, r, SIZE_MAX, SIZE_MAX);
    model_plan(g, c->recompute, SIZE_MAX, room_for(g, c->sums));
    g->choice.streamed = c->streamed;  // room for that is not asked for
    gpt2_place(g);
    const int may = c->topk < 1 ? (int)(s.L - g->zen->map.whole) : 0;
    CHECK(g->streamed == (c->streamed < may ? c->streamed : may), "%d layers stream",
          g->streamed);
    gpt2_allocate(g);
    if (params == NULL) {
        gpt2_load(g, r);
    } else {
        g->zen->queued = g->zen->map.segments;
        for (int i = 0; i < g->table.count; i++) {
            const GPT2Tensor *x = &g->table.tensors[i];
            for (int k = 0; k < STATE_PARTS; k += STATE_PARTS - 1)
                zen_move(g, k, x->offset, x->size, (float *)params + x->offset, false);
        }
    }
    if (c->timed) timeline_open(&g->timeline, NULL);
    return g;
}

static void zen_close(GPT2 *g) {
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    timeline_close(&g->timeline);
    model_close(g);
}

static uint64_t hash_engine(GPT2 *g) {
    const ZenFlow *z = g->zen;
    gpt2_update_wait(g);
    const RunState state = gpt2_state(g);
    return hash_parts(&g->table, &state, hash_clock(&z->config, &z->map, &z->clock));
}

// Steps `first` to `last`, as train() does them. If watched, the state is recorded after each.
// Nothing waits but where columns are selected: that is checked, too.
static void engine_steps(GPT2 *g, const Config *c, size_t first, size_t last, bool watched,
                         Record *r) {
    CHECK(is_urgent(g->zen->pack), "packing waits for products");
    for (size_t step = first; step <= last; step++) {
        timeline_step(&g->timeline, step);
        counted = {};
        const size_t selections = g->zen->clock.selections;
        const float scale = step_gradient(g, c, step, r);
        const ZenRates rates = rates_of(step);
        zen_update(g, step, scale, &rates);
        const bool selected = g->zen->clock.selections > selections;
        CHECK(selected || counted.waits == 0, "step %zu waits %d times", step, counted.waits);
        CHECK(counted.allocations == 0 || c->timed, "step %zu allocates %d times", step,
              counted.allocations);
        if (c->rests) gpt2_update_wait(g);
        if (c->evaluates) evaluation(g, c, step, r);
        if (watched) r->state[step - 1] = hash_engine(g);
    }
}

// Losses and norms of steps `first` to `last`, and the state where it was recorded.
static void check_same(const Record *a, const Record *b, size_t first, size_t last,
                       const char *name) {
    for (size_t i = first - 1; i < last; i++) {
        const bool same = memcmp(&a->loss[i], &b->loss[i], sizeof(double)) == 0
            && memcmp(&a->norm[i], &b->norm[i], sizeof(double)) == 0
            && memcmp(&a->evaluation[i], &b->evaluation[i], sizeof(double)) == 0;
        const bool state = a->state[i] == b->state[i] || a->state[i] == 0 || b->state[i] == 0;
        CHECK(same && state, "%s: step %zu: loss %.9g and %.9g, evaluation %.9g and %.9g%s", name,
              i + 1, a->loss[i], b->loss[i], a->evaluation[i], b->evaluation[i],
              state ? "" : ", the state differs");
        if (!same || !state) return;
    }
    CHECK(a->state[last - 1] != 0 && b->state[last - 1] != 0, "%s: no state", name);
}

// The bytes that crossed the link are those of what the reference did.
static void check_moved(const GPT2 *g, const Config *c, const Record *r, const char *name) {
    const size_t X_ = sizeof(floatX), each = g->segment[1].leaving;
    const size_t state = g->piece_bytes[PIECE_CHOSEN], shown = r->rest - (size_t)g->streamed * each;
    size_t in = layers_fetched(g->streamed, g->weight_rooms.count, c->accum, c->evaluates, r->steps) * each * X_, out = 0;
    size_t selections = 0;
    for (size_t i = 0; i < r->steps; i++) {
        out += r->rest * X_ + state * r->swapped_elements[i];
        in += (r->turn[i].drains || r->late[i] ? shown * X_ : 0)
            + state * r->swapped_elements[i];
        selections += r->turn[i].selects;
    }
    const ZenFlow *z = g->zen;
    CHECK(g->moved_in == in && g->moved_out == out, "%s: %zu in, %zu out; wanted %zu, %zu", name,
          g->moved_in, g->moved_out, in, out);
    CHECK(z->clock.selections == selections, "%s: %zu selections, wanted %zu", name,
          z->clock.selections, selections);
}

// Checks the host's memory: state and weights of the packed rest, one gradient of each of these, the
// sums, and the weights of layers that are stored there.
static void check_host_memory(GPT2 *g, const Config *c, size_t rest, const char *name) {
    const size_t sums = c->window == 1 ? 0 : !c->overlap ? 1 : c->sums;
    const size_t state = c->moments == 16 ? STATE_BYTES - 4 : STATE_BYTES;
    const size_t in_use = (size_t)g->streamed * g->segment[1].leaving * sizeof(floatX);
    const size_t wanted = rest * (state + 2 * sizeof(floatX) + 4 * sums) + in_use;
    const size_t listed = page_locked(g, "columns", name);
    CHECK(listed == wanted, "%s: %zu bytes of host memory, wanted %zu", name, listed, wanted);
}

static void engine_run(const Config *c, size_t steps, bool watched, const Record *wanted,
                       Record *r) {
    const Shape s = config_shape(c);
    Run run;
    char name[300];
    config_name(c, name);
    memset(r, 0, sizeof *r);
    r->steps = steps;
    run_of(&run, c, "nowhere");
    float *params = shape_params(&s, false);
    const size_t before = free_memory();
    GPT2 *g = zen_model(c, &run, params);
    const size_t allocated = before - free_memory();
    check_memory(g, name, allocated);
    engine_steps(g, c, 1, steps, watched, r);
    r->state[steps - 1] = hash_engine(g);
    if (wanted != NULL) check_moved(g, c, wanted, name);
    if (wanted != NULL) check_host_memory(g, c, wanted->rest, name);
    const ZenMap *map = &g->zen->map;
    int32_t *column = (int32_t *)alloc_or_fail(map->columns, sizeof(int32_t), "test");
    gpu_copy(column, g->zen->column, map->columns * sizeof(int32_t));
    CHECK(memcmp(column, map->column, map->columns * sizeof(int32_t)) == 0, "%s: columns", name);
    free(column);
    zen_close(g);
#ifdef __CUDA_EMU__
    CHECK(before == free_memory(), "%s: %zu bytes are not freed", name, before - free_memory());
#endif
    free(params);
    run_free(&run);
}

static bool config_is_here(int k) { return config_of_bits(k, configs[k].bits); }

static void test_same_bits(void) {
    static Record wanted, r;
    size_t late = 0, drained = 0, selected = 0, swapped = 0, first = 0;
    for (int k = 0; k < CONFIGS; k++) {
        if (!config_is_here(k) || !config_is_tested(some, k)) continue;
        const Config *c = &configs[k];
        char name[300];
        config_name(c, name);
        const size_t steps = steps_of(c, enough(c));
        reference_run(c, steps, &wanted);
        engine_run(c, steps, false, &wanted, &r);
        check_same(&wanted, &r, 1, steps, name);
        if (k % 8 == 1) {  // in which all comes to rest after each step
            engine_run(c, steps, true, &wanted, &r);
            check_same(&wanted, &r, 1, steps, name);
        }
        size_t n = 0, shows = 0;
        for (size_t i = 0; i < steps; i++) {
            shows += wanted.late[i];
            drained += wanted.turn[i].drains;
            selected += wanted.turn[i].selects;
            if (i + 1 > c->warmup) n += wanted.swapped[i];
            else first += wanted.swapped[i];
        }
        // every window drains, or every second one
        const bool mixed = c->topk > 0 && c->topk < 1;
        const bool at_once = !c->overlap || (mixed && (c->reselect == 1 || c->reselect == 2));
        CHECK((shows > 0) != at_once, "%s: %zu updates are late", name, shows);
        CHECK(n > 0 || c->reselect == 0 || c->topk == 0 || c->topk == 1 || c->window == AUTO,
              "%s: no column changes places", name);
        late += shows;
        swapped += n;
    }
    const size_t much = IS_FP16 ? 20 : test_whole() ? 1 : 3;  // fewer configurations, less of it
    CHECK(much * late > 8 && much * drained > 25 && much * selected > 8
          && much * swapped > 200 && much * first > 200, "%zu updates late, %zu at once; %zu "
          "selections, %zu columns, %zu at first", late, drained, selected, swapped, first);
}

// ---------------------------------------------------------------------------------------------
// Settings in which all of this is plain AdamW

// As train_hash().
static uint64_t zen_hash(const Config *c, size_t steps) {
    const Shape s = config_shape(c);
    const size_t N = s.accum * s.B * s.T;
    const ZenRates rates = {plain.lr, 0.9, 0.95, plain.eps, plain.decay, 0};
    Run run;
    run_of(&run, c, "nowhere");
    float *params = shape_params(&s, false);
    GPT2 *g = zen_model(c, &run, params);
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * N, sizeof(int32_t), "test");
    uint64_t hash = 0;
    for (size_t step = 1; step <= steps; step++) {
        double numbers[2];
        shape_batch(&s, step, inputs, inputs + N);
        numbers[0] = gpu_gradient(g, &s, inputs, inputs + N, &numbers[1]);
        zen_update(g, step, clip_scale(numbers[1], plain.clip) / loss_scale, &rates);
        numbers[1] = sqrt(numbers[1]);
        hash = hash_with(hash, numbers, sizeof numbers);
    }
    const size_t P = g->table.elements;
    float *whole = floats(P);
    gpt2_update_wait(g);
    gpu_copy(whole, g->params, P * sizeof(floatX));
    uint64_t state = hash_bytes(whole, P * sizeof(floatX));
    memset(whole, 0, P * sizeof(float));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < g->table.count; i++) {
            const GPT2Tensor *x = &g->table.tensors[i];
            zen_move(g, k, x->offset, x->size, whole + x->offset, true);
        }
        state = hash_with(state, whole, P * sizeof(float));
    }
    const uint64_t both[2] = {hash, state};
    free(inputs);
    free(params);
    free(whole);
    zen_close(g);
    run_free(&run);
    return hash_bytes(both, sizeof both);
}

// The scores of columns after two steps, of which there are *count.
static double *scores_of(const Config *c, double scale, size_t *count) {
    Run run;
    Record record;
    run_of(&run, c, "nowhere");
    const Shape s = config_shape(c);
    float *params = shape_params(&s, false);
    zen_loss_scale = scale;
    GPT2 *g = zen_model(c, &run, params);
    memset(&record, 0, sizeof record);
    engine_steps(g, c, 1, 2, false, &record);
    gpt2_update_wait(g);
    zen_loss_scale = 1;
    *count = g->zen->map.columns;
    double *scores = ALLOC(double, *count, "scores");
    memcpy(scores, g->zen->clock.scores, *count * sizeof *scores);
    free(params);
    zen_close(g);
    run_free(&run);
    return scores;
}

// Scores are of gradients without the factor of loss scaling, which may change between the steps
// that they are summed over.
static void test_scores_are_unscaled(void) {
    const Config c = {TIED, BITS, 1, KEEP, 0, 0.3, 2, 3, 2, 0, 2, 0, 2, 0, 0, 0, 0, 0, 2, 32, 0};
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

static void check_plain(int shape, size_t accum) {
    const int bits = 8 * (int)sizeof(floatX);
    Config c = {shape, bits, accum, KEEP, 0, 0, 1, 0, 1, 0, 2, 0, 2, 0, 0, 0, 0, 0, 2, 32, 0};
    Shape s = config_shape(&c);
    Placement zero;
    memset(&zero, 0, sizeof zero);
    zero.choice.mode = OFFLOAD_ZERO;
    zero.threads = 2;
    const uint64_t wanted = train_hash(&s, 5, NULL);
    CHECK(train_hash(&s, 5, &zero) == wanted, "%s: zero", s.name);
    // Sums of micro-batches are rounded on their way to the host.
    if (accum == 1) CHECK(zen_hash(&c, 5) == wanted, "%s: windows of one step", s.name);
    c.whole = 1;
    if (accum == 1) CHECK(zen_hash(&c, 5) == wanted, "%s: the same with a whole layer", s.name);
    c.topk = 1;
    c.window = 3;
    c.overlap = 1;
    CHECK(zen_hash(&c, 5) == wanted, "%s: all is chosen", s.name);
    c.topk = 0.5;
    c.warmup = 5;
    if (accum == 1) CHECK(zen_hash(&c, 5) == wanted, "%s: warm-up", s.name);
    c.warmup = 3;
    CHECK(zen_hash(&c, 5) != wanted, "%s: too short a warm-up", s.name);
}

static void test_plain_adamw(void) {
    if (IS_HALF) check_plain(TIED, 1);
    if (IS_HALF) check_plain(ONE, 2);
    if (!IS_HALF) check_plain(ODD, 1);
    if (!IS_HALF) check_plain(LLAMA, 1);
}

// ---------------------------------------------------------------------------------------------
// Checkpoints

enum { SAVES = 2 };
typedef struct {
    const Config *c;
    size_t from[SAVES];  // steps: at the next end of a window it is saved,
    size_t at[SAVES];    // after these
    int count;
} Phases;

static const char *saved_in(const char *what, size_t step) {
    char name[40];
    snprintf(name, sizeof name, "%s%zu", what, step);
    return in_base(name);
}

// As the CPU trainer does.
static void save_reference(const ZenReference *x, const GPT2Table *t, size_t step, void *data) {
    Phases *p = (Phases *)data;
    (void)t;
    if (p->count == SAVES || step < p->from[p->count] || zen_is_open(&x->config, &x->clock)) return;
    p->at[p->count++] = step;
    Run run;
    float *arenas[STATE_PARTS];
    run_of(&run, p->c, saved_in("c", step));
    run.saves = reference_state(x, arenas);
    run.done = step;
    run_save(&run, zen_text(&x->map, &x->clock));
    run_free(&run);
}

// A run that goes on from what was saved.
static void resume_of(Run *r, const Config *c, const char *out) {
    run_of(r, c, out);
    r->o.resume = r->o.no_save = true;  // (no lock)
    r->o.resident = -1;
    if (!state_find(out, SIZE_MAX, &r->state, r->resume_from, &err)) die("%s", err.text);
    r->config = r->state.config;
}

// The state of a checkpoint, for the reference.
static uint64_t hash_saved(const Config *c, const char *out) {
    Run run;
    float *arenas[STATE_PARTS];
    resume_of(&run, c, out);
    const size_t n = run.table.elements;
    float *w = floats(STATE_PARTS * n);
    ZenReference x = zen_reference(&run, w, w + n, w + 2 * n, w + 3 * n, NULL);
    const RunState all = reference_state(&x, arenas);
    run_load(&run, &all);
    const uint64_t hash = hash_reference(&x, &run.table);
    zen_reference_free(&x);
    free(w);
    run_free(&run);
    return hash;
}

// A run that saves goes on as if it had not; and from each of its checkpoints, and the reference's,
// another one does, with other settings of what costs only time and memory.
static void check_resume(const Config *c, size_t phase) {
    static Record wanted, r;
    const size_t each = c->window == AUTO ? 3 : c->window;
    const size_t last = c->warmup + phase + 4 * each + 3;
    Phases p = {c, {c->warmup + phase, c->warmup + phase + each + 1}, {0, 0}, 0};
    Config other = *c;
    char name[300];
    config_name(c, name);
    other.sums = 3 - c->sums;
    other.threads = 1 + c->threads % 3;
    other.serial = !c->serial;
    other.timed = !c->timed;
    other.streamed = c->streamed > 0 ? 0 : 1;
    snprintf(base, sizeof base, "/tmp/tide_zen_XXXXXX");
    if (mkdtemp(base) == NULL) die("no temporary directory");
    reference_run(c, last, &wanted, save_reference, &p);
    CHECK(p.count == SAVES, "%s: saved %d times", name, p.count);
    if (p.count < SAVES) return;

    const Shape s = config_shape(c);
    Run run;
    run_of(&run, c, "nowhere");
    float *params = shape_params(&s, false);
    memset(&r, 0, sizeof r);
    GPT2 *g = zen_model(c, &run, params);
    for (int i = 0; i <= SAVES; i++) {
        engine_steps(g, c, i > 0 ? p.at[i - 1] + 1 : 1, i < SAVES ? p.at[i] : last, false, &r);
        if (i == SAVES) break;
        run.o.out = saved_in("g", p.at[i]);
        run.saves = gpt2_state(g);
        run.saves.parts = STATE_PARTS;
        run.done = p.at[i];
        save(g, &run);
    }
    r.state[last - 1] = hash_engine(g);
    check_same(&wanted, &r, 1, last, name);
    zen_close(g);
    run_free(&run);
    free(params);
    for (int i = 0; i < 2 * SAVES; i++) {
        const size_t at = p.at[i / 2];
        const char *out = saved_in(i % 2 == 0 ? "g" : "c", at);
        if (i % 2 == 0)
            CHECK(hash_saved(c, out) == wanted.state[at - 1], "%s: saved at %zu", name, at);
        memset(&r, 0, sizeof r);
        resume_of(&run, &other, out);
        g = zen_model(&other, &run, NULL);
        CHECK(hash_engine(g) == wanted.state[at - 1], "%s: loaded at %zu", name, at);
        const size_t until = min_size(last, at + 5);
        engine_steps(g, &other, at + 1, until, false, &r);
        r.state[until - 1] = hash_engine(g);
        check_same(&wanted, &r, at + 1, until, name);
        zen_close(g);
        run_free(&run);
    }
    remove_tree(base);
}

static void test_resume(void) {
    const Config cases[] = {
        {TIED, 16, 1, KEEP, .05,  .3,    4, 2, 1, 1, 2,   0, 2, 0, 0, 0, 0, 0, 9, 32,   2},
        {TIED, 32, 1, KEEP, .05,  .1,    3, 3, 1, 1, 1,   1, 2, 0, 0, 0, 0, 0, 9, 16, ALL},
        { ODD, 16, 2, KEEP,   0,  .3,    4, 1, 3, 0, 2,   0, 1, 0, 0, 0, 0, 0, 2, 16,   1},
        { ONE, 32, 1, KEEP, .05,  .5, AUTO, 2, 2, 1, 1,   0, 3, 0, 0, 0, 0, 1, 2, 32,   1},
        {TIED, 16, 1, KEEP, .05,  .3,    1, 2, 4, 1, 2, ALL, 2, 0, 0, 0, 0, 0, 9, 16,   0}};
    const int from[] = {3, 2, 5, 1, 0};
    for (int i = 0; i < 5; i++)
        if (config_of_bits((int)i, cases[i].bits)) check_resume(&cases[i], from[i]);
}

// ---------------------------------------------------------------------------------------------
// What fits, and what crosses the link

// One sum instead of two, and then layers that live on the GPU whole: as far as the host's memory
// demands it, and no further.
static void test_fit(void) {
    Config c = {TIED, 16, 1, KEEP, 0, .1, 4, 2, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 2, 32, 0};
    const Placement where = config_placement(&c);
    Shape s = config_shape(&c);
    size_t gpu[6][2], host[6][2];  // by whole layers (the last: none), and by sums
    for (size_t whole = 0; whole <= s.L; whole++)
        for (size_t sums = 1; sums <= 2; sums++) {
            Run run;
            c.whole = whole;
            run_of(&run, &c, "nowhere");
            GPT2 *g = model_new(&s, &where);
            zen_choose(g, &run, SIZE_MAX, SIZE_MAX);
            gpu[whole][sums - 1] = model_plan(g, KEEP, SIZE_MAX, room_for(g, sums));
            host[whole][sums - 1] = gpt2_bytes(g, true);
            CHECK(whole == 0 || (host[whole][sums - 1] < host[whole - 1][sums - 1]
                                 && gpu[whole][sums - 1] > gpu[whole - 1][sums - 1]),
                  "%zu layers", whole);
            zen_map_free(&g->zen->map);
            zen_clock_free(&g->zen->clock);
            free(g->zen);
            model_forget(g);
            run_free(&run);
        }
    for (size_t i = 0; i < 2 * (s.L + 1); i++) {
        const size_t limit = host[i / 2][1 - i % 2];
        size_t whole = 0, sums = 2;  // the first that fits
        while (host[whole][sums - 1] > limit) {
            whole += sums == 1;
            sums = 3 - sums;
        }
        Run run;
        run_of(&run, &c, "nowhere");
        run.o.resident = -1;
        GPT2 *g = model_new(&s, &where);
        zen_choose(g, &run, SIZE_MAX, limit);
        model_plan(g, KEEP, SIZE_MAX, limit);
        CHECK(g->zen->map.whole == whole && g->zen->sums == (int)sums, "%zu layers, %zu sums: "
              "%zu layers, %d sums", whole, sums, g->zen->map.whole, g->zen->sums);
        zen_map_free(&g->zen->map);
        zen_clock_free(&g->zen->clock);
        free(g->zen);
        model_forget(g);
        run_free(&run);
    }
}

// In bf16, (1 - k) (1 + 1/S) times 2 bytes per parameter cross the link in a step: out in each, in
// at the end of a window. And of a column that changes places, p, m and v, both ways.
static void check_traffic(size_t window, size_t reselect) {
    enum { WINDOWS = 7, C = 64 };
    static Record r;
    const Config c = {EVEN, 16, 1, KEEP, 0, .25, window, reselect, 1, 1, 2, 0, 2, 0, 0, 0, 0, 0, 2,
                      32, 0};
    const Shape s = config_shape(&c);
    const size_t matrices = s.V * C + s.context * C + s.L * (4 * C * C + 2 * C * s.F);
    const size_t rest = matrices / 4 * 3;
    size_t law = 0;
    Run run;
    run_of(&run, &c, "nowhere");
    float *params = shape_params(&s, false);
    GPT2 *g = zen_model(&c, &run, params);
    for (size_t step = 1; step <= 1 + WINDOWS * window; step++) {
        ZenMap old = map_copy(&g->zen->map);
        size_t columns, elements;
        g->moved_in = g->moved_out = 0;
        const float scale = step_gradient(g, &c, step, &r);
        const ZenRates rates = rates_of(step);
        zen_update(g, step, scale, &rates);
        // The step is number `of` of a window; after the end of which window it shows.
        const size_t number = (step - 2) / window + 1, of = (step - 2) % window + 1;
        const bool first = step == 1, end = of == window;
        const bool selects = first || (end && reselect > 0 && number % reselect == 0);
        const bool late = !first && number > 1 && (reselect == 0 || number % reselect != 1);
        const bool shows = selects || (late && end);
        count_swaps(&old, &g->zen->map, &columns, &elements);
        CHECK((columns > 0) == selects, "step %zu: %zu columns change places", step, columns);
        CHECK(g->moved_out == 2 * rest + 12 * elements, "step %zu: %zu out", step,
              g->moved_out);
        CHECK(g->moved_in == (shows ? 2 * rest : 0) + 12 * elements, "step %zu: %zu in", step,
              g->moved_in);
        if (!first && number > 1) law += g->moved_in + g->moved_out;
        zen_map_free(&old);
    }
    if (reselect == 0) {
        const double mean = (double)law / (double)((WINDOWS - 1) * window);
        const double wanted = (1 - 0.25) * (1 + 1 / (double)window) * 2 * (double)matrices;
        CHECK(mean == wanted, "%g bytes a step, wanted %g", mean, wanted);
    }
    free(params);
    zen_close(g);
    run_free(&run);
}

static void test_traffic(void) {
    check_traffic(4, 0);
    check_traffic(3, 3);
}

// ---------------------------------------------------------------------------------------------
// What happens at the same time, on the emulated GPU's virtual clock

#ifdef __CUDA_EMU__
enum { KERNEL_US = 10, LINK_RATE = 500, SLOW_RATE = 200 };  // bytes per us, each way

// Microseconds: of a step, the mean over some windows; what of it were waits of compute, before a
// part of forward or of backward; and of the longest step.
typedef struct { double step, forward, backward, longest; } Times;

static Config timed_config(size_t window, int overlap, size_t sums) {
    return {DEEP, 16, 1, KEEP, .05, .25, window, 0, 1, overlap, sums, 0, 1, 0, 0, 0, 0, 1, 2, 32,
            0};
}

// add, update: what the host takes for all of the rest, in us. c NULL: everything on the GPU.
static Times measure(const Config *c, double add, double update) {
    enum { WINDOWS = 2, READ = 2 };  // counters are read so many steps later
    static Record r;
    const Config none = timed_config(4, 1, 1), *settings = c != NULL ? c : &none;
    const size_t first = 2 + 2 * settings->window, last = first + WINDOWS * settings->window;
    const Shape s = config_shape(settings);
    const double steps = (double)(last - first);
    Times t = {0, 0, 0, 0};
    Run run;
    run_of(&run, settings, "nowhere");
    float *params = shape_params(&s, false);
    GPT2 *g = c != NULL ? zen_model(c, &run, params) : model_open(&s, params);
    if (c == NULL) timeline_open(&g->timeline, NULL);
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
        const ZenRates rates = rates_of(step);
        const float scale = step_gradient(g, settings, step, &r);
        const double took = 1e6 * emu_virtual_now() - before;  // the host waits here only
        if (counts) t.step += took / steps;
        if (counts && took > t.longest) t.longest = took;
        const AdamStep adam = adam_of(&rates, step, scale);
        if (c != NULL) zen_update(g, step, scale, &rates);
        else gpt2_update(g, &adam);
    }
    zen_close(g);
    free(params);
    run_free(&run);
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
    const double more = 3 * KERNEL_US * (1 + 1 / (double)c->window);
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
    const double waits = (in_forward ? t.forward : t.backward) * (double)c->window / T;
    const double other = (in_forward ? t.backward : t.forward) / T;
    const double longer = (t.step / T - 1) * (double)c->window;
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
    c.serial = 1;
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

// What is used most runs for that many windows, the others for about half of them.
static uint64_t config_hash(int k, size_t windows, char name[300]) {
    static Record r;
    const Config *c = &configs[k];
    config_name(c, name);
    engine_run(c, steps_of(c, k < MIXED ? windows / 2 + 1 : windows), false, NULL, &r);
    return hash_bytes(&r, sizeof r);
}

int main(int argc, char **argv) {
    if (argc >= 3 && strcmp(argv[1], "--config") == 0)
        return run_configs(argc, argv, CONFIGS, some, config_is_here, config_hash);
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
    if (getenv("EMU_PROTECT") == NULL) {  // that the host reads no GPU memory is seen by
        setenv("EMU_PROTECT", "0", 1);    // test_schedules.sh; it takes time
        execv("/proc/self/exe", argv);
    }
#endif
    if (IS_BF16) {
        RUN(test_overlap);  // first: it forks
        RUN(test_settings_meet);
        RUN(test_fit);
        RUN(test_traffic);
    }
    RUN(test_scores_are_unscaled);
    RUN(test_plain_adamw);
    RUN(test_same_bits);
    RUN(test_resume);
    return test_summary();
}
