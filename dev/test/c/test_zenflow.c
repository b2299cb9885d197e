// Tests of importance-aware updates: the reference of zenflow.h against a simulator that is written
// from its promises alone; where the state of columns lies; and the checkpoints of zen_run.h. (That
// some settings are plain AdamW, and what packed state does, is in test_zenflow_gpu.cu; how a run
// goes on in other modes, and from theirs, in test_cli_zen.sh; several ranks in test_zero_gpu.cu.)
#include "../../../tide/run/zen_run.h"
#include "../test.h"
#include "../zen_free.h"
#include "../first_values.h"
#include "../numbers.h"

static float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }
static float weight(float x) { return bf16_to_f32(master_weight(x)); }

// A number between -1 and 1 for every two counters (splitmix64: Steele et al. 2014).
static float noise(uint64_t a, uint64_t b) {
    uint64_t x = (a << 32 ^ b) + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)(int32_t)(x >> 32) / 2147483648.0f;
}

// ---------------------------------------------------------------------------------------------
// Models, gradients, and the reference

enum { MODELS = 3 };
typedef struct { GPT2Config config; GPT2Table table; } Model;

// Odd widths; a head of its own, and columns of more than one block of rows; and OPT.
static Model model_of(int which) {
    static const GPT2Config configs[MODELS] = {
        {.layers = 2, .heads = 3, .channels = 27, .ffn = 31, .context = 5, .vocab = 40, .tied = 1},
        {.layers = 3, .heads = 2, .channels = 16, .ffn = 20, .context = 3, .vocab = 130},
        {.layers = 2, .heads = 1, .channels = 9, .ffn = 17, .context = 140, .vocab = 12,
         .family = FAMILY_OPT, .activation = ACTIVATION_RELU, .tied = 1}};
    Error err;
    Model m;
    m.config = configs[which];
    if (!gpt2_finish(&m.config, &err)) die("%s", err.text);
    m.table = gpt2_table(&m.config);
    return m;
}

// The gradient of a step. A few columns are larger than the others, but not always the same ones;
// in each third tensor two and two are equal; padding has none.
static void gradient_of(const GPT2Table *t, size_t step, float *g) {
    memset(g, 0, t->elements * sizeof(float));
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        for (size_t e = 0; e < x->rows * x->cols; e++) {
            const size_t j = e % x->cols, twin = i % 3 == 0 ? j % 2 : 0;
            const bool large = (5 * (j - twin) + (size_t)i + step / 5) % 7 < 2;
            g[x->offset + e] = (large ? 1.0f : 0.2f + 0.02f * (float)(step % 9))
                             * noise(step, x->offset + e - twin);
        }
    }
}

static ZenRates rates_of(size_t step) {
    const ZenRates r = {0.01 + 0.001 * (double)(step * step % 7), 0.9, 0.95, 1e-8, 0.1, 0};
    return r;
}

static float scale_of(size_t step) { return step % 4 == 1 ? 1 : 0.3f + 0.07f * (float)(step % 6); }

typedef struct { ZenConfig zen; size_t whole; bool bf16; } Case;

static ZenConfig zen_of(double topk, size_t window, size_t reselect, size_t warmup, bool overlap) {
    const ZenConfig c = {topk, window, reselect, warmup, overlap, 0.99};
    return c;
}

static ZenReference reference_of(const Model *m, const Case *c) {
    const size_t n = m->table.elements;
    ZenReference x;
    memset(&x, 0, sizeof x);
    x.config = c->zen;
    x.map = zen_map(&m->table, m->config.layers, c->zen.topk, c->whole);
    x.clock = zen_clock(&x.map);
    x.sums = ALLOC(float, 2 * x.map.mixed, "sums");
    x.swaps = (ZenSwap *)alloc_or_fail(x.map.columns, sizeof(ZenSwap), "swaps");
    x.master = floats(n);
    x.m = floats(n);
    x.v = floats(n);
    x.shown = floats(n);
    x.acc = floats(n);
    x.half = c->bf16;
    gpt2_init(&m->table, x.master, 3);
    for (size_t e = 0; e < n; e++) x.shown[e] = c->bf16 ? weight(x.master[e]) : x.master[e];
    return x;
}

static void reference_free(ZenReference *x) {
    free(x->master);
    free(x->m);
    free(x->v);
    free(x->shown);
    free(x->acc);
    zen_reference_free(x);
}

// Step number `step`, counted from 1, by this gradient; and by its own.
static void step_by(ZenReference *x, size_t step, const float *g) {
    const ZenRates r = rates_of(step);
    const AdamStep now = adam_step_prepare(r.lr, r.beta1, r.beta2, r.eps, r.weight_decay, step,
                                           scale_of(step));
    zen_reference_step(x, g, &now, &r);
}

static void reference_step(ZenReference *x, const Model *m, size_t step, float *g) {
    gradient_of(&m->table, step, g);
    step_by(x, step, g);
}

// What the reference held after each step: step s, from 0 on, begins at s * elements.
enum { MASTER, M, V, SHOWN, KINDS };
static const char *const kind_names[KINDS] = {"master", "m", "v", "shown"};
typedef struct { float *of[KINDS]; size_t elements; } History;

static History history_of(const Model *m, size_t steps) {
    History h;
    h.elements = m->table.elements;
    for (int k = 0; k < KINDS; k++) h.of[k] = floats((steps + 1) * h.elements);
    return h;
}

static void history_free(History *h) { for (int k = 0; k < KINDS; k++) free(h->of[k]); }

static void history_take(History *h, size_t step, const ZenReference *x) {
    const float *const arenas[KINDS] = {x->master, x->m, x->v, x->shown};
    for (int k = 0; k < KINDS; k++)
        memcpy(h->of[k] + step * h->elements, arenas[k], h->elements * sizeof(float));
}

static void history_give(const History *h, size_t step, ZenReference *x) {
    float *const arenas[KINDS] = {x->master, x->m, x->v, x->shown};
    for (int k = 0; k < KINDS; k++)
        memcpy(arenas[k], h->of[k] + step * h->elements, h->elements * sizeof(float));
}

static const char *case_text(const Case *c) {
    static char text[160];
    snprintf(text, sizeof text, "topk %g, window %zu, reselect %zu, warmup %zu, overlap %d, whole "
             "%zu%s", c->zen.topk, c->zen.window, c->zen.reselect, c->zen.warmup, c->zen.overlap,
             c->whole, c->bf16 ? ", bf16" : "");
    return text;
}

static void compare(const History *a, const History *b, size_t step, const Case *c, int model) {
    const size_t n = a->elements, at = step * n;
    for (int k = 0; k < KINDS; k++) {
        size_t e = 0;
        if (same(a->of[k] + at, b->of[k] + at, n)) continue;
        while (same(a->of[k] + at + e, b->of[k] + at + e, 1)) e++;
        CHECK(false, "model %d, %s: %s of element %zu after step %zu: %a, not %a", model,
              case_text(c), kind_names[k], e, step, (double)a->of[k][at + e],
              (double)b->of[k][at + e]);
    }
}

// ---------------------------------------------------------------------------------------------
// The simulator
//
// First it finds what happens when, looking at all gradients at once. Then it follows one element
// after the other through all steps, with a list of the gradients that wait. Nothing of zenflow.h
// is used.

enum { STEPS = 26 };

typedef struct {
    bool closes, selects;
    bool now, late;         // the update of this window shows now; that of the one before does
    size_t length, rest_t;  // of the open window, with this step; the rest's update, from 1 on
    bool *chosen;           // (columns) during this step
} Moment;

static size_t first_column(const GPT2Table *t, int i) {
    size_t n = 0;
    while (i-- > 0) n += t->tensors[i].cols;
    return n;
}

static size_t share_of(const Model *m, const Case *c, int i) {
    const GPT2Tensor *t = &m->table.tensors[i];
    if (t->rank == 1) return t->cols;
    for (size_t l = 0; l < c->whole; l++)
        if (t->layer >= (int)(m->config.layers - 1 - l)) return t->cols;
    const double n = floor(c->zen.topk * (double)t->cols + 0.5);
    return c->zen.topk > 0 && n < 1 ? 1 : (size_t)n;
}

// Of column j: the sum of squares, or of magnitudes. 128 rows at a time.
static double column_sum(const GPT2Tensor *t, const float *g, size_t j, bool squares) {
    double sum = 0, part = 0;
    for (size_t r = 0; r < t->rows_padded; r++) {
        const double x = g[t->offset + r * t->cols + j];
        part += squares ? x * x : fabs(x);
        if (r % 128 == 127 || r + 1 == t->rows_padded) {
            sum += part;
            part = 0;
        }
    }
    return sum;
}

// Has the window that began with step `from` and may end with `to` seen enough?
static bool has_seen_enough(const Model *m, const Case *c, float *const *grads, size_t from,
                            size_t to, const bool *chosen) {
    const GPT2Table *t = &m->table;
    size_t voters = 0, votes = 0;
    for (int i = 0; i < t->count; i++) {
        const size_t share = share_of(m, c, i), cols = t->tensors[i].cols;
        double inside = 0, outside = 0;
        if (share == 0 || share == cols) continue;
        for (size_t step = from; step <= to; step++)
            for (size_t j = 0; j < cols; j++) {
                const double sum = column_sum(&t->tensors[i], grads[step], j, false);
                if (chosen[first_column(t, i) + j]) inside += sum;
                else outside += sum;
            }
        voters++;  // sum of the rest's averages against the average of the chosen's averages
        votes += outside / (double)(cols - share)
              >= inside / (double)share / (double)(to - from + 1);
    }
    return voters == 0 || 100 * votes >= 99 * voters || to - from + 1 >= 16;
}

// The columns that are chosen for their gradients in steps `from` to `to`.
static void choose(const Model *m, const Case *c, float *const *grads, size_t from, size_t to,
                   bool *chosen) {
    const GPT2Table *t = &m->table;
    for (int i = 0; i < t->count; i++) {
        const size_t cols = t->tensors[i].cols, share = share_of(m, c, i);
        double *score = (double *)alloc_or_fail(cols, sizeof(double), "scores");
        for (size_t step = from; step <= to; step++)
            for (size_t j = 0; j < cols; j++)
                score[j] += column_sum(&t->tensors[i], grads[step], j, true);
        for (size_t j = 0; j < cols; j++) {
            size_t better = 0;
            for (size_t k = 0; k < cols; k++)
                better += score[k] > score[j] || (score[k] == score[j] && k < j);
            chosen[first_column(t, i) + j] = better < share;
        }
        free(score);
    }
}

// What happens in steps 1 to `steps`.
static void foresee(const Model *m, const Case *c, float *const *grads, size_t steps,
                    Moment *moment) {
    const GPT2Table *t = &m->table;
    const size_t columns = first_column(t, t->count);
    bool mixed = false, *chosen = (bool *)alloc_or_fail(columns, sizeof(bool), "chosen");
    const size_t most = c->zen.window > 0 ? c->zen.window : 16, plain = c->zen.warmup;
    const size_t warm_from = plain > most ? plain - most + 1 : 1;  // scores count from here
    size_t from = 1, windows = 0, updates = 0;
    for (int i = 0; i < t->count; i++) {
        const size_t share = share_of(m, c, i);
        for (size_t j = 0; j < share; j++) chosen[first_column(t, i) + j] = true;
        mixed = mixed || (share > 0 && share < t->tensors[i].cols);
    }
    for (size_t step = 1; step <= steps; step++) {
        Moment *x = &moment[step];
        const bool warm = step <= c->zen.warmup;
        memset(x, 0, sizeof *x);
        x->chosen = (bool *)alloc_or_fail(columns, sizeof(bool), "chosen");
        memcpy(x->chosen, chosen, columns * sizeof(bool));
        x->length = step - from + 1;
        x->closes = warm ? true : c->zen.window > 0 ? x->length == c->zen.window
                  : !mixed || has_seen_enough(m, c, grads, from, step, chosen);
        windows += x->closes && !warm;
        x->selects = mixed && (warm ? step == c->zen.warmup
                                    : x->closes && windows == c->zen.reselect);
        x->now = warm || (x->closes && (!c->zen.overlap || x->selects));
        x->rest_t = updates += x->closes;
        if (x->selects) {
            choose(m, c, grads, warm ? warm_from : from, step, chosen);
            windows = 0;
        }
        if (x->closes) from = step + 1;
    }
    for (size_t step = 1, next; step <= steps; step++) {
        if (!moment[step].closes || moment[step].now) continue;
        for (next = step + 1; next <= steps; next++)
            if (moment[next].closes) break;
        if (next <= steps) moment[next].late = true;
    }
    free(chosen);
}

// All that the reference should hold after every step.
static History simulate(const Model *m, const Case *c, size_t steps, Moment *moment) {
    const GPT2Table *t = &m->table;
    History h = history_of(m, steps);
    float *first = floats(t->elements), *grads[STEPS + 1] = {NULL};
    AdamStep now[STEPS + 1], late[STEPS + 1];
    gpt2_init(t, first, 3);
    for (size_t step = 1; step <= steps; step++) {
        grads[step] = floats(t->elements);
        gradient_of(t, step, grads[step]);
    }
    foresee(m, c, grads, steps, moment);
    for (size_t step = 1; step <= steps; step++) {
        const ZenRates r = rates_of(step);
        const double n = (double)moment[step].length;
        now[step] = adam_step_prepare(r.lr, r.beta1, r.beta2, r.eps, r.weight_decay, step,
                                      scale_of(step));
        late[step] = adam_step_prepare(r.lr, r.beta1, r.beta2, r.eps, r.weight_decay * n,
                                       moment[step].rest_t, 1 / n);
    }
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        const size_t column = first_column(t, i);
        for (size_t e = x->offset; e < x->offset + x->size; e++) {
            float p = first[e], s = c->bf16 ? weight(p) : p, m1 = 0, v1 = 0;
            float scale[STEPS], waiting[STEPS];
            size_t count = 0;
            h.of[MASTER][e] = p;
            h.of[SHOWN][e] = s;
            for (size_t step = 1; step <= steps; step++) {
                const Moment *what = &moment[step];
                float g = grads[step][e], sum = 0;
                if (what->chosen[column + (e - x->offset) % x->cols]) {
                    adam_scalar(&p, &m1, &v1, g, &now[step], x->decay ? now[step].weight_decay : 0);
                    s = c->bf16 ? weight(p) : p;
                } else {
                    scale[count] = scale_of(step);
                    waiting[count++] = c->bf16 ? rounded(g) : g;
                    for (size_t k = 0; k < count; k++)
                        sum = k == 0 ? scale[k] * waiting[k] : fmaf(scale[k], waiting[k], sum);
                    if (what->late) s = c->bf16 ? weight(p) : p;
                    if (what->closes) {
                        CHECK(count == what->length, "%zu gradients wait, not %zu", count,
                              what->length);
                        adam_scalar(&p, &m1, &v1, sum, &late[step],
                                    x->decay ? late[step].weight_decay : 0);
                        if (what->now) s = c->bf16 ? weight(p) : p;
                        count = 0;
                    }
                }
                const float values[KINDS] = {p, m1, v1, s};
                for (int k = 0; k < KINDS; k++) h.of[k][step * t->elements + e] = values[k];
            }
        }
    }
    free(first);
    for (size_t step = 1; step <= steps; step++) free(grads[step]);
    return h;
}

// The cases in which all settings meet.
enum { ZEN_CASES = 40 };
static Case case_of(int k) {
    static const double shares[] = {0.1, 0.3, 0, 0.6, 1};
    static const size_t windows[] = {3, 0, 1, 4};
    Case c;
    c.zen = zen_of(shares[k % 11 < 4 ? 0 : k % 7 % 5], windows[k % 4], (size_t)(k / 4 % 3),
                   k % 5 == 0 ? 6 : k % 3 == 0 ? 2 : 1, k / 2 % 3 > 0);
    c.whole = k % 8 == 6 ? 1 : k % 16 == 9 ? 2 : 0;
    c.bf16 = k % 3 == 1;
    return c;
}

// Are columns in the slots that the simulator says, and did those that stay chosen, or stay among
// the rest, keep theirs?
static void check_slots(const ZenMap *map, const int32_t *before, const bool *chosen,
                        const GPT2Table *t, const Case *c) {
    for (int i = 0; i < map->count; i++)
        for (size_t j = 0; j < map->tensor[i].cols; j++) {
            const ZenTensor *z = &map->tensor[i];
            const int32_t now = map->column[z->column_at + j], was = before[z->column_at + j];
            const bool *of = chosen + first_column(t, i);
            CHECK(of[now] == (j < z->chosen), "%s: tensor %d, column %d", case_text(c), i, now);
            CHECK(of[was] != (j < z->chosen) || now == was, "%s: tensor %d, slot %zu", case_text(c),
                  i, j);
        }
}

static void the_reference_is_what_the_simulator_says(void) {
    int delayed = 0, moved = 0;
    bool lengths[17] = {false};
    for (int k = 0; k < ZEN_CASES; k++) {
        const Case c = case_of(k);
        Model m = model_of(k % MODELS);
        Moment moment[STEPS + 1];
        ZenReference x = reference_of(&m, &c);
        History expected = simulate(&m, &c, STEPS, moment), h = history_of(&m, STEPS);
        float *g = floats(m.table.elements);
        int32_t *slots = (int32_t *)alloc_or_fail(x.map.columns, sizeof *slots, "slots");
        use_threads(k % 3);
        history_take(&h, 0, &x);
        for (size_t step = 1; step <= STEPS; step++) {
            memcpy(slots, x.map.column, x.map.columns * sizeof *slots);
            reference_step(&x, &m, step, g);
            history_take(&h, step, &x);
            compare(&h, &expected, step, &c, k % MODELS);
            CHECK(x.clock.rest_t == moment[step].rest_t, "%s: %zu",
                  case_text(&c), x.clock.rest_t);
            CHECK(x.clock.filled == (moment[step].closes ? 0 : moment[step].length), "%s: %zu",
                  case_text(&c), x.clock.filled);
            if (step < STEPS) check_slots(&x.map, slots, moment[step + 1].chosen, &m.table, &c);
            if (step > c.zen.warmup && moment[step].closes && c.zen.window == 0 && x.map.mixed)
                lengths[moment[step].length] = true;
            delayed += moment[step].late;
            moved += step > c.zen.warmup && moment[step].selects;
        }
        use_threads(0);
        free(g);
        free(slots);
        for (size_t step = 1; step <= STEPS; step++) free(moment[step].chosen);
        history_free(&expected);
        history_free(&h);
        reference_free(&x);
        gpt2_table_free(&m.table);
    }
    int several = 0;
    for (int n = 1; n <= 16; n++) several += lengths[n];
    CHECK(several >= 3, "windows that follow the gradients have %d lengths", several);
    CHECK(delayed > 50 && moved > 30, "%d late updates, %d selections", delayed, moved);
}

// ---------------------------------------------------------------------------------------------
// Columns

// Packed, tensors follow each other, the chosen of each and the rest, from multiples of 128 on; of
// columns, those of mixed tensors come first.
static void check_map(const Model *m, double topk, size_t whole) {
    const GPT2Table *t = &m->table;
    const Case c = {zen_of(topk, 1, 0, 1, false), whole, false};
    ZenMap map = zen_map(t, m->config.layers, topk, whole), sum = {0};
    size_t column_at[2] = {0, 0};  // of the mixed, and of the others
    for (int i = 0; i < t->count; i++)
        if (zen_is_mixed(&map.tensor[i])) sum.mixed = column_at[1] += t->tensors[i].cols;
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        const ZenTensor *z = &map.tensor[i];
        const ZenSegment *s = &map.segment[x->layer + 1];
        const size_t chosen = x->rows_padded * share_of(m, &c, i);
        const size_t rest = x->rows_padded * x->cols - chosen;
        size_t *column = &column_at[!zen_is_mixed(z)];
        if (i == 0 || x[-1].layer != x->layer)
            CHECK(s->first == i && s->chosen_at == sum.chosen && s->rest_at == sum.rest,
                  "%s begins a segment", x->name);
        CHECK(z->rows == x->rows_padded && z->cols == x->cols && z->at == x->offset
              && z->decay == x->decay && z->rows * z->chosen == chosen, "%s: %zu", x->name,
              z->chosen);
        CHECK(z->column_at == *column && z->chosen_at == sum.chosen && z->rest_at == sum.rest, "%s",
              x->name);
        for (size_t j = 0; j < z->cols; j++)
            CHECK(map.column[z->column_at + j] == (int32_t)j, "%s", x->name);
        *column += x->cols;
        sum.columns += x->cols;
        sum.chosen += (chosen + 127) / 128 * 128;
        sum.rest += (rest + 127) / 128 * 128;
        sum.elements += chosen + rest;
        sum.chosen_elements += chosen;
        if (i + 1 == t->count || x[1].layer != x->layer)
            CHECK(s->first + s->count == i + 1 && s->chosen == sum.chosen - s->chosen_at
                  && s->rest == sum.rest - s->rest_at, "%s ends a segment", x->name);
    }
    CHECK(map.count == t->count && map.segments == (int)m->config.layers + 2 && map.whole == whole
          && map.columns == sum.columns && map.mixed == sum.mixed && map.chosen == sum.chosen
          && map.rest == sum.rest && map.elements == sum.elements
          && map.chosen_elements == sum.chosen_elements, "topk %g, whole %zu", topk, whole);
    zen_map_free(&map);
}

static void the_map_is_one_range_per_segment(void) {
    static const double shares[] = {0, 0.01, 0.37, 1};
    for (int which = 0; which < MODELS; which++) {
        Model m = model_of(which);
        for (int k = 0; k < 4; k++)
            for (size_t whole = 0; whole <= m.config.layers; whole++)
                check_map(&m, shares[k], whole);
        gpt2_table_free(&m.table);
    }
}

// A map of `count` matrices of some columns each, of which some are chosen. There is no table.
static ZenMap map_of(int count, size_t cols, size_t chosen) {
    ZenMap map;
    memset(&map, 0, sizeof map);
    map.count = count;
    map.columns = (size_t)count * cols;
    map.mixed = chosen > 0 && chosen < cols ? map.columns : 0;
    map.tensor = (ZenTensor *)alloc_or_fail((size_t)count, sizeof(ZenTensor), "map");
    map.column = (int32_t *)alloc_or_fail(map.columns, sizeof(int32_t), "map");
    for (int i = 0; i < count; i++) {
        map.tensor[i].rows = 1;
        map.tensor[i].cols = cols;
        map.tensor[i].chosen = chosen;
        map.tensor[i].column_at = (size_t)i * cols;
        for (size_t j = 0; j < cols; j++) map.column[(size_t)i * cols + j] = (int32_t)j;
    }
    return map;
}

// ---------------------------------------------------------------------------------------------
// Importance and time

static void sums_have_one_order(void) {
    static const size_t shapes[][2] = {{1, 5}, {127, 3}, {128, 64}, {129, 65}, {300, 700},
                                       {1, 70000}, {5000, 2}, {256, 1}};
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        const size_t rows = shapes[k][0], cols = shapes[k][1];
        float *g = floats(rows * cols);
        uint16_t *half = (uint16_t *)alloc_or_fail(rows * cols, sizeof(uint16_t), "half");
        float *sums = floats(2 * cols), *expected = floats(2 * cols);  // norms, magnitudes
        for (size_t e = 0; e < rows * cols; e++) {
            g[e] = noise(k, e) * ldexpf(1, (int)(e % 41) - 20);
            half[e] = f32_to_bf16(g[e]);
        }
        for (int bf16 = 0; bf16 < 2; bf16++) {
            GPT2Tensor t;
            memset(&t, 0, sizeof t);
            t.rows_padded = rows;
            t.cols = cols;
            for (size_t e = 0; bf16 && e < rows * cols; e++) g[e] = rounded(g[e]);
            for (size_t j = 0; j < cols; j++) {
                expected[j] = (float)sqrt(column_sum(&t, g, j, true));
                expected[cols + j] = (float)column_sum(&t, g, j, false);
            }
            memset(sums, 0xff, 2 * cols * sizeof *sums);
            zen_sums(sums, sums + cols, bf16 ? (const void *)half : g, bf16, rows, cols);
            CHECK(memcmp(sums, expected, 2 * cols * sizeof *sums) == 0, "(%zu, %zu), bf16 %d", rows,
                  cols, bf16);
        }
        free(g);
        free(half);
        free(sums);
        free(expected);
    }
}

// "Zen-auto" as it was meant: the rest's sum of mean magnitudes against the mean of the chosen's.
static void votes_compare_sums_with_means(void) {
    static const struct { int count, agree; bool enough; double share; } known[] = {
        {1, 1, true}, {1, 0, false}, {99, 99, true}, {99, 98, false}, {100, 99, true},
        {100, 98, false}, {200, 198, true}, {200, 197, false}, {300, 297, true}, {7, 6, false},
        {4, 2, true, 0.5}, {4, 1, false, 0.5}};
    ZenConfig c = zen_of(0.1, 0, 0, 1, true);
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        ZenMap map = map_of(known[k].count, 10, 1);
        ZenClock x = zen_clock(&map);
        for (int i = 0; i < known[k].count; i++) {
            x.chosen_mean[i] = 8;
            x.rest_mean[i] = i < known[k].agree ? 2 : 1.999;  // of four steps
        }
        c.agree = known[k].share > 0 ? known[k].share : 0.99;
        CHECK(zen_votes(&c, &map, &x, 4) == known[k].enough, "%d of %d", known[k].agree,
              known[k].count);
        CHECK(zen_votes(&c, &map, &x, 15) && zen_votes(&c, &map, &x, 16), "later all agree");
        for (int i = 0; i < known[k].count; i++) x.rest_mean[i] = 0;
        CHECK(!zen_votes(&c, &map, &x, 1) && !zen_votes(&c, &map, &x, 15), "nothing came together");
        CHECK(zen_votes(&c, &map, &x, 16) && zen_votes(&c, &map, &x, 17), "but a window has an end");
        zen_clock_free(&x);
        zen_map_free(&map);
    }
    Options o;
    memset(&o, 0, sizeof o);
    o.zen_window = 0.5;
    CHECK(zen_config(&o).window == 0 && zen_config(&o).agree == 0.5, "--zen-window 0.5");
    o.zen_window = AUTO_REAL;
    CHECK(zen_config(&o).window == 0 && zen_config(&o).agree == 0.99, "--zen-window auto");
}

// ---------------------------------------------------------------------------------------------
// Checkpoints

// Stopped wherever it can be saved and gone on with from what zen_text() wrote, a run has the same
// bits, and writes the same texts.
static void stopped_it_goes_on_with_the_same_bits(void) {
    enum { LAST = 17 };
    const Case cases[] = {
        {zen_of(0.3, 3, 1, 4, true), 0, false}, {zen_of(0.3, 0, 2, 2, true), 0, true},
        {zen_of(0.1, 2, 2, 1, false), 1, true}, {zen_of(0.3, 0, 1, 5, false), 0, false},
        {zen_of(0, 3, 1, 2, true), 0, true}, {zen_of(1, 4, 1, 2, true), 0, false},
        {zen_of(0.4, 3, 3, 2, true), 0, true}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const Case *c = &cases[k];
        Model m = model_of((int)k % MODELS);
        History h = history_of(&m, LAST), again = history_of(&m, LAST);
        ZenReference x = reference_of(&m, c);
        char *text[LAST + 1];
        bool open[LAST + 1];
        float *g = floats(m.table.elements);
        size_t stops = 0;
        for (size_t step = 0; step <= LAST; step++) {
            if (step > 0) reference_step(&x, &m, step, g);
            history_take(&h, step, &x);
            text[step] = zen_text(&x.map, &x.clock);
            open[step] = zen_is_open(&c->zen, &x.clock);
            CHECK(!open[step] || step < c->zen.warmup || x.clock.filled > 0, "%zu", step);
        }
        for (size_t stop = 0; stop <= LAST; stop++) {
            if (open[stop]) continue;
            stops++;
            ZenReference y = reference_of(&m, c);
            history_give(&h, stop, &y);
            zen_map_free(&y.map);
            zen_clock_free(&y.clock);
            zen_parse(text[stop], &m.table, m.config.layers, &c->zen, &y.map, &y.clock);
            CHECK(y.map.whole == c->whole, "%zu", y.map.whole);
            for (size_t step = stop; step <= LAST; step++) {
                if (step > stop) reference_step(&y, &m, step, g);
                history_take(&again, step, &y);
                compare(&again, &h, step, c, (int)k % MODELS);
                char *now = zen_text(&y.map, &y.clock);
                CHECK(strcmp(now, text[step]) == 0, "%s: stopped after %zu, after %zu it says\n%s"
                      "\nand not\n%s", case_text(c), stop, step, now, text[step]);
                free(now);
            }
            reference_free(&y);
        }
        CHECK(stops >= 4, "%zu", stops);
        for (size_t step = 0; step <= LAST; step++) free(text[step]);
        free(g);
        history_free(&h);
        history_free(&again);
        reference_free(&x);
        gpt2_table_free(&m.table);
    }
}

// (state.txt's hash tells a damaged one: test_checkpoint_ranks.c. Columns stay columns, whatever it
// is.)
static void a_text_is_read_again(void) {
    Model m = model_of(1);
    ZenMap map = zen_map(&m.table, m.config.layers, 0.3, 0), other;
    ZenClock x = zen_clock(&map), clock;
    ZenConfig c = zen_of(0.3, 0, 2, 1, true);
    x.warm = 1;
    x.rest_t = 2;
    x.windows = 1;
    x.selections = 1;
    for (int i = 0; i < map.count; i++) {
        const ZenTensor *z = &map.tensor[i];
        const ZenSwap swaps[] = {{0, 3}, {1, 5}, {0, 2}, {2, 3}, {0, 7}, {4, 1}};
        if (z->chosen == 5) zen_swap(&map, i, swaps, 6);
    }
    char *text = zen_text(&map, &x);
    zen_parse(text, &m.table, m.config.layers, &c, &other, &clock);
    CHECK(clock.rest_t == 2 && clock.filled == 0 && clock.windows == 1 && clock.selections == 1
          && clock.warm == 1, "the counters");
    for (int i = 0; i < map.count; i++)
        CHECK(memcmp(other.column + map.tensor[i].column_at, map.column + map.tensor[i].column_at,
                     map.tensor[i].cols * sizeof(int32_t)) == 0, "the columns of tensor %d", i);
    zen_map_free(&other);
    zen_clock_free(&clock);
    for (size_t n = strlen("optimizer zenflow") + 1; n < strlen(text); n++) {
        char *part = strndup(text, n);
        part[n - 1] = '9';
        zen_parse(part, &m.table, m.config.layers, &c, &other, &clock);
        for (const ZenTensor *z = other.tensor; z < other.tensor + other.count; z++)
            for (size_t j = 0; zen_is_mixed(z) && j < z->cols; j++)
                CHECK((size_t)other.column[z->column_at + j] < z->cols, "of %zu bytes", n);
        free(part);
        zen_map_free(&other);
        zen_clock_free(&clock);
    }
    free(text);
    zen_map_free(&map);
    zen_clock_free(&x);
    gpt2_table_free(&m.table);
}

int main(void) {
    RUN(the_reference_is_what_the_simulator_says);
    RUN(the_map_is_one_range_per_segment);
    RUN(sums_have_one_order);
    RUN(votes_compare_sums_with_means);
    RUN(stopped_it_goes_on_with_the_same_bits);
    RUN(a_text_is_read_again);
    return test_summary();
}
