// Tests of importance-aware updates: the reference of zenflow.h against a simulator that is written
// from its promises alone; its parts one by one; and the checkpoints of zen_run.h. (That some
// settings are plain AdamW, and what packed state does, is in test_zenflow_gpu.cu.)
#include "../../../tide/run/zen_run.h"
#include "../test.h"
#include "../zen_free.h"
#include "../first_values.h"
#include <dirent.h>
#include <sys/wait.h>
#include "../files.h"
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
    Model m;
    m.config = configs[which];
    if (!gpt2_finish(&m.config, &err)) die("%s", err.text);
    m.table = gpt2_table(&m.config);
    return m;
}

// The gradient of a step. A few columns are larger than the others, but not always the same ones;
// padding has none.
static void gradient_of(const GPT2Table *t, size_t step, float *g) {
    memset(g, 0, t->elements * sizeof(float));
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        for (size_t e = 0; e < x->rows * x->cols; e++) {
            const size_t j = e % x->cols;
            const bool large = (5 * j + (size_t)i + step / 5) % 7 < 2;
            g[x->offset + e] = (large ? 1.0f : 0.2f + 0.02f * (float)(step % 9))
                             * noise(step, x->offset + e);
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

static void moments_free(Moment *moment, size_t steps) {
    for (size_t step = 1; step <= steps; step++) free(moment[step].chosen);
}

// The cases in which all settings meet.
enum { CASES = 40 };
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

static void the_reference_is_what_the_simulator_says(void) {
    int delayed = 0, moved = 0;
    bool lengths[17] = {false};
    for (int k = 0; k < CASES; k++) {
        const Case c = case_of(k);
        Model m = model_of(k % MODELS);
        Moment moment[STEPS + 1];
        ZenReference x = reference_of(&m, &c);
        History expected = simulate(&m, &c, STEPS, moment), h = history_of(&m, STEPS);
        float *g = floats(m.table.elements);
        use_threads(k % 3);
        history_take(&h, 0, &x);
        for (size_t step = 1; step <= STEPS; step++) {
            reference_step(&x, &m, step, g);
            history_take(&h, step, &x);
            compare(&h, &expected, step, &c, k % MODELS);
            CHECK(x.clock.rest_t == moment[step].rest_t, "%s: %zu",
                  case_text(&c), x.clock.rest_t);
            CHECK(x.clock.filled == (moment[step].closes ? 0 : moment[step].length), "%s: %zu",
                  case_text(&c), x.clock.filled);
            for (int i = 0; step < STEPS && i < x.map.count; i++)
                for (size_t j = 0; j < x.map.tensor[i].cols; j++) {
                    const ZenTensor *z = &x.map.tensor[i];
                    const size_t column = (size_t)x.map.column[z->column_at + j];
                    const bool *chosen = moment[step + 1].chosen + first_column(&m.table, i);
                    CHECK(chosen[column] == (j < z->chosen),
                          "%s: tensor %d, column %zu after step %zu", case_text(&c), i, column,
                          step);
                }
            if (step > c.zen.warmup && moment[step].closes && c.zen.window == 0 && x.map.mixed)
                lengths[moment[step].length] = true;
            delayed += moment[step].late;
            moved += step > c.zen.warmup && moment[step].selects;
        }
        use_threads(0);
        free(g);
        moments_free(moment, STEPS);
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

static void quotas(void) {
    static const struct { double topk; size_t cols, n; } known[] = {
        {0, 100, 0}, {1, 27, 27}, {0.1, 27, 3}, {0.1, 24, 2}, {0.1, 25, 3}, {0.5, 27, 14},
        {0.001, 27, 1}, {1e-300, 1, 1}, {0.99, 10, 10}, {0.94, 10, 9}, {0.1, 1, 1}, {0.9, 1, 1},
        {0.1, 12288, 1229}, {1, 1, 1}, {0, 1, 0}};
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
        CHECK(zen_quota(known[k].topk, known[k].cols) == known[k].n, "%g of %zu: %zu",
              known[k].topk, known[k].cols, zen_quota(known[k].topk, known[k].cols));
}

// Columns of mixed tensors are first in the list.
static size_t columns_before(const ZenMap *map, int tensor) {
    const bool mixed = zen_is_mixed(&map->tensor[tensor]);
    size_t n = 0;
    for (int i = 0; i < map->count; i++)
        if (zen_is_mixed(&map->tensor[i]) == mixed ? i < tensor : !mixed) n += map->tensor[i].cols;
    return n;
}

static void the_map_is_one_range_per_segment(void) {
    static const double shares[] = {0, 0.1, 0.37, 1};
    for (int which = 0; which < MODELS; which++) {
        Model m = model_of(which);
        const GPT2Table *t = &m.table;
        for (int k = 0; k < 4; k++)
            for (size_t whole = 0; whole <= m.config.layers; whole++) {
                const Case c = {zen_of(shares[k], 1, 0, 1, false), whole, false};
                ZenMap map = zen_map(t, m.config.layers, shares[k], whole);
                size_t columns = 0, chosen = 0, rest = 0, elements = 0, all = 0;
                size_t mixed = 0;
                int tensor = 0;
                CHECK(map.count == t->count && map.whole == whole, "%d", map.count);
                CHECK(map.segments == (int)m.config.layers + 2, "%d", map.segments);
                for (int s = 0; s < map.segments; s++) {
                    const ZenSegment *part = &map.segment[s];
                    CHECK(part->first == tensor && part->count > 0, "segment %d: %d", s,
                          part->first);
                    CHECK(part->chosen_at == chosen && part->rest_at == rest, "segment %d", s);
                    for (; tensor < part->first + part->count; tensor++) {
                        const ZenTensor *z = &map.tensor[tensor];
                        const GPT2Tensor *x = &t->tensors[tensor];
                        CHECK(x->layer + 1 == s, "%s is in segment %d", x->name, s);
                        CHECK(z->rows == x->rows_padded && z->cols == x->cols
                              && z->at == x->offset && z->decay == x->decay, "%s", x->name);
                        CHECK(z->chosen == share_of(&m, &c, tensor), "%s: %zu", x->name,
                              z->chosen);
                        CHECK(z->column_at == columns_before(&map, tensor)
                              && z->chosen_at == chosen && z->rest_at == rest, "%s", x->name);
                        all += z->rows * z->cols;
                        CHECK(z->chosen_at % 128 == 0 && z->rest_at % 128 == 0, "%s", x->name);
                        for (size_t j = 0; j < z->cols; j++)
                            CHECK(map.column[z->column_at + j] == (int32_t)j, "%s", x->name);
                        if (zen_is_mixed(z)) mixed += z->cols;
                        columns += z->cols;
                        chosen += (z->rows * z->chosen + 127) / 128 * 128;
                        rest += (z->rows * (z->cols - z->chosen) + 127) / 128 * 128;
                        elements += z->rows * z->chosen;
                    }
                    CHECK(part->chosen == chosen - part->chosen_at, "segment %d", s);
                    CHECK(part->rest == rest - part->rest_at, "segment %d", s);
                }
                CHECK(tensor == map.count && map.columns == columns, "%zu", map.columns);
                CHECK(map.chosen == chosen && map.rest == rest, "%zu %zu", map.chosen, map.rest);
                CHECK(map.chosen_elements == elements && map.elements == all, "%zu %zu",
                      map.chosen_elements, map.elements);
                CHECK(map.mixed == mixed, "%g, %zu", shares[k], whole);
                zen_map_free(&map);
            }
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

static void selection_takes_the_highest_scores(void) {
    enum { COLS = 23 };
    for (size_t quota = 0; quota <= COLS; quota++) {
        ZenMap map = map_of(2, COLS, quota);
        for (uint64_t round = 0; round < 60; round++) {
            double scores[COLS];
            ZenSwap swaps[COLS];
            int32_t before[COLS];
            bool wanted[COLS];
            int32_t *column = map.column + COLS;  // of the second matrix
            size_t expected = 0;
            for (size_t j = 0; j < COLS; j++)  // in many rounds several are equal
                scores[j] = floor((round % 3 == 0 ? 1e6 : 1.0 + (double)(round % 4))
                                  * fabs((double)noise(round, j)));
            for (size_t j = 0; j < COLS; j++) {
                size_t better = 0;
                for (size_t k = 0; k < COLS; k++)
                    better += scores[k] > scores[j] || (scores[k] == scores[j] && k < j);
                wanted[j] = better < quota;
            }
            memcpy(before, column, sizeof before);
            for (size_t j = 0; j < quota; j++) expected += !wanted[column[j]];
            const size_t count = zen_select(&map, 1, scores, swaps);
            CHECK(count == expected, "%zu swaps, not %zu", count, expected);
            CHECK(memcmp(before, column, sizeof before) == 0, "zen_select() changes nothing");
            for (size_t k = 0; k < count; k++) {
                CHECK(swaps[k].chosen >= 0 && (size_t)swaps[k].chosen < quota
                      && swaps[k].rest >= 0 && (size_t)swaps[k].rest < COLS - quota, "a slot");
                CHECK(!wanted[before[swaps[k].chosen]], "%d leaves", swaps[k].chosen);
                CHECK(wanted[before[quota + (size_t)swaps[k].rest]], "%d comes", swaps[k].rest);
                CHECK(k == 0 || swaps[k].chosen > swaps[k - 1].chosen, "in the order of slots");
            }
            zen_swap(&map, 1, swaps, count);
            for (size_t j = 0; j < COLS; j++) {
                CHECK(wanted[column[j]] == (j < quota), "quota %zu, column %d", quota, column[j]);
                CHECK(map.column[j] == (int32_t)j, "the other matrix");
                // what is where it belongs keeps its slot
                if (wanted[before[j]] == (j < quota)) CHECK(column[j] == before[j], "%zu", j);
            }
            CHECK(zen_select(&map, 1, scores, swaps) == 0, "again the same");
        }
        zen_map_free(&map);
    }
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
            for (int threads = 1; threads <= 5; threads += 2) {
                use_threads(threads);
                memset(sums, 0xff, 2 * cols * sizeof *sums);
                zen_sums(sums, sums + cols, bf16 ? (const void *)half : g, bf16, rows, cols);
                CHECK(memcmp(sums, expected, 2 * cols * sizeof *sums) == 0,
                      "(%zu, %zu), bf16 %d, %d threads", rows, cols, bf16, threads);
            }
        }
        use_threads(0);
        free(g);
        free(half);
        free(sums);
        free(expected);
    }
}

static void set_means(ZenClock *x, int count, int agree) {
    for (int i = 0; i < count; i++) {
        x->chosen_mean[i] = 8;
        x->rest_mean[i] = i < agree ? 2 : 1.999;  // of four steps
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
        set_means(&x, known[k].count, known[k].agree);
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
    // Who has only one kind of columns does not vote.
    ZenMap map = map_of(3, 10, 4);
    ZenClock x = zen_clock(&map);
    set_means(&x, 3, 1);
    map.tensor[1].chosen = 0;
    map.tensor[2].chosen = 10;
    CHECK(zen_votes(&c, &map, &x, 4), "one voter");
    x.rest_mean[0] = 1.9;
    CHECK(!zen_votes(&c, &map, &x, 4), "one voter");
    zen_clock_free(&x);
    zen_map_free(&map);
}

// With k other than 0.1, and a history: the published code scales it by 1/(10k) at every step.
static void means_are_of_the_columns_of_each_kind(void) {
    ZenMap map = map_of(1, 4, 1);
    ZenClock x = zen_clock(&map);
    const ZenConfig c = zen_of(0.25, 0, 2, 1, true);
    const float sums[8] = {1, 1, 2, 3, /* magnitudes */ 6, 1, 2, 3};
    ZenTurn turn = zen_turn(&c, &map, &x, sums, 1);  // warm: the first are chosen
    CHECK(turn.closes && turn.drains && turn.selects && turn.steps == 1, "warm");
    zen_turn_end(&c, &x, &turn);
    CHECK(x.scores[0] == 1 && x.scores[3] == 9 && x.selections == 1 && x.warm == 1, "scores");
    map.column[0] = 3;  // 3 is chosen
    map.column[3] = 0;
    x.scores[3] = 77;
    for (int k = 1; k <= 2; k++) {  // the rest: 9/3 = 3 = the chosen's
        turn = zen_turn(&c, &map, &x, sums, 1);
        CHECK(turn.closes && !turn.drains && turn.steps == 1, "a window of one");
        CHECK(x.chosen_mean[0] == 3 && x.rest_mean[0] == 3, "%g", x.rest_mean[0]);
        CHECK(turn.selects == false && x.scores[3] == 77, "no scoring in the first window");
        if (k == 1) continue;  // asked twice, not done
        zen_turn_end(&c, &x, &turn);
    }
    const float large[8] = {1, 2, 3, 4, 1, 2, 3, 9};
    turn = zen_turn(&c, &map, &x, large, 1);
    CHECK(!turn.closes && x.scores[3] == 16 && x.chosen_mean[0] == 9 && x.rest_mean[0] == 2, "%g",
          x.rest_mean[0]);
    zen_turn_end(&c, &x, &turn);
    CHECK(x.filled == 1 && x.rest_t == 2 && x.windows == 1, "%zu", x.rest_t);
    turn = zen_turn(&c, &map, &x, large, 1);  // 2 + 2 < (9 + 9) / 2
    CHECK(!turn.closes && turn.steps == 2 && x.rest_mean[0] == 4, "%g", x.rest_mean[0]);
    zen_turn_end(&c, &x, &turn);
    const float end[16] = {1, 0, 2, 4, 4, 1, 1, 2,  // of two ranks
                           0, 2, 2, 0, 6, 1, 2, 1};
    turn = zen_turn(&c, &map, &x, end, 2);  // 2 + 2 + 5 > (9 + 9 + 3) / 3
    CHECK(turn.closes && turn.selects && turn.drains && turn.steps == 3, "%zu", turn.steps);
    CHECK(x.scores[0] == 3 && x.scores[1] == 12 && x.scores[2] == 26 && x.scores[3] == 48,
          "scores");
    zen_turn_end(&c, &x, &turn);
    CHECK(x.filled == 0 && x.windows == 0 && x.selections == 2 && x.rest_t == 3, "a new window");
    zen_clock_free(&x);
    zen_map_free(&map);
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
            if (!zen_parse(text[stop], &m.table, m.config.layers, &c->zen, &y.map, &y.clock))
                die("step %zu is damaged", stop);
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

// A text in which `old` is another, to be freed.
static char *altered(const char *text, const char *old, const char *other) {
    const char *at = strstr(text, old);
    if (at == NULL) die("%s is not in %.400s", old, text);
    char *result = NULL;
    if (asprintf(&result, "%.*s%s%s", (int)(at - text), text, other, at + strlen(old)) < 0)
        fail("out of memory");
    return result;
}

static void damaged_texts_are_refused(void) {
    static const char *const damage[][2] = {
        {"optimizer zenflow", "optimizer zenflaw"}, {"optimizer", "optimiser"},
        {"whole 0", "whole 4"}, {"whole 0", "whole -1"}, {"zen.whole 0\n", ""},
        {"warm 1", "warm 1.5"}, {"zen.warm 1\n", ""}, {"rest_t 2", "rest_t 1e1"},
        {"zen.rest_t 2\n", ""}, {"zen.windows 1\n", ""}, {"zen.selections 1\n", ""},
        {"columns", "colums"}, {"columns ", "columns 0 1 2 3 4 "},
        {" 12 10", " 12 12"}, {" 12 10", " 12 16"}, {" 12 10", " 12 -1"}, {" 12 10", " 12 1.5"},
        {" 12 10", " 12 '10'"}, {" 12 10", " 12"}, {" 12 10", " 12 10 1"}, {" 12 10", " 12\n10"},
        {" 12 10", " 9007199254740993 10"}, {" 12 10", " 4294967308 10"}, {" 12 10", " [12] 10"},
    };
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
    CHECK(zen_parse(text, &m.table, m.config.layers, &c, &other, &clock), "it is whole");
    CHECK(clock.rest_t == 2 && clock.filled == 0 && clock.windows == 1 && clock.selections == 1
          && clock.warm == 1, "the counters");
    for (int i = 0; i < map.count; i++)
        CHECK(memcmp(other.column + map.tensor[i].column_at, map.column + map.tensor[i].column_at,
                     map.tensor[i].cols * sizeof(int32_t)) == 0, "the columns of tensor %d", i);
    zen_map_free(&other);
    zen_clock_free(&clock);
    for (size_t k = 0; k < sizeof damage / sizeof damage[0]; k++) {
        char *bad = altered(text, damage[k][0], damage[k][1]);
        const bool ok = zen_parse(bad, &m.table, m.config.layers, &c, &other, &clock);
        CHECK(!ok, "%s for %s is accepted", damage[k][1], damage[k][0]);
        free(bad);
    }
    for (size_t n = 0; n < strlen(text); n++) {
        char *bad = strndup(text, n);
        const bool ok = zen_parse(bad, &m.table, m.config.layers, &c, &other, &clock);
        CHECK(!ok, "its first %zu bytes are accepted", n);
        free(bad);
    }
    c.topk = 0.1;
    CHECK(!zen_parse(text, &m.table, m.config.layers, &c, &other, &clock), "another share");
    c.topk = 1;
    CHECK(!zen_parse(text, &m.table, m.config.layers, &c, &other, &clock), "no lists");
    free(text);
    zen_map_free(&map);
    zen_clock_free(&x);
    gpt2_table_free(&m.table);
}

// A run of which only what checkpoints need is there.
static void run_of(Run *r, const Model *m, const Case *c, const char *out) {
    char *argv[] = {(char *)"test", (char *)"--data", (char *)"none", (char *)"--offload",
                    (char *)"zenflow"};
    memset(r, 0, sizeof *r);
    options_parse(&r->o, 5, argv, false);
    r->o.zen_topk = c->zen.topk;
    r->o.zen_window = c->zen.window;
    r->o.zen_reselect = c->zen.reselect;
    r->o.zen_warmup = c->zen.warmup;
    r->o.zen_overlap = c->zen.overlap ? OVERLAP_ON : OVERLAP_OFF;
    r->o.schedule = SCHEDULE_CONSTANT;
    r->o.warmup = 0;
    r->o.out = out;
    r->config = m->config;
    r->table = m->table;
    r->training = true;
}

// AdamW's modes go on from its newest weights and moments, and have nothing else of it.
static void other_modes_go_on_from_it(void) {
    const Case c = {zen_of(0.3, 4, 2, 2, true), 0, false};
    Model m = model_of(1);
    const size_t n = m.table.elements;
    ZenReference x = reference_of(&m, &c);
    float *g = floats(n), *arena[3] = {floats(n), floats(n), floats(n)};
    snprintf(base, sizeof base, "/tmp/tide_zen_XXXXXX");
    if (mkdtemp(base) == NULL) die("no temporary directory");
    for (size_t step = 1; step <= 6; step++) reference_step(&x, &m, step, g);
    CHECK(zen_is_late(&c.zen, &x.clock) && !same(x.master, x.shown, n), "an update is to show");
    Run saved, r;
    float *const parts[STATE_PARTS] = {x.master, x.m, x.v, x.shown};
    run_of(&saved, &m, &c, base);
    saved.saves = state_in(parts, STATE_PARTS);
    saved.done = 6;
    run_save(&saved, zen_text(&x.map, &x.clock));
    train_state_free(&saved.state);
    const RunState what = state_in(arena, 3);
    run_of(&r, &m, &c, base);
    r.o.resume = r.o.no_save = true;  // (no lock)
    r.o.offload = OFFLOAD_NONE;
    if (!state_find(base, SIZE_MAX, &r.state, r.resume_from, &err)) die("%s", err.text);
    r.config = r.state.config;
    CHECK(r.state.step == 6 && zen_is_saved(&r), "%zu", r.state.step);
    run_load(&r, &what);
    CHECK(same(arena[0], x.master, n) && same(arena[1], x.m, n) && same(arena[2], x.v, n), "state");
    CHECK(r.state.text == NULL && r.state.step == 6, "nothing is left of it");
    for (int k = 0; k < 3; k++) free(arena[k]);
    free(g);
    reference_free(&x);
    gpt2_table_free(&m.table);
    remove_tree(base);
}

// And it goes on from theirs: with their count of steps, and a warm-up.
static void it_goes_on_from_other_modes(void) {
    const Case c = {zen_of(0.3, 4, 2, 2, true), 0, false};
    Model m = model_of(1);
    Run r;
    ZenMap map;
    ZenClock x;
    run_of(&r, &m, &c, "nowhere");
    zen_open(&r, &map, &x, 2);
    CHECK(x.rest_t == 0 && map.whole == 2, "a new run");
    zen_map_free(&map);
    zen_clock_free(&x);
    r.o.resume = true;
    r.state.step = 41;
    zen_open(&r, &map, &x, 1);
    const ZenConfig config = zen_config(&r.o);
    const ZenRates rates = zen_rates(&r.o, 42);
    CHECK(x.rest_t == 41 && x.warm == 0 && map.whole == 1, "%zu", x.rest_t);
    CHECK(zen_is_warm(&config, &x) && config.window == 4 && config.topk == 0.3, "settings");
    CHECK(config.reselect == 2 && config.warmup == 2 && config.overlap, "settings");
    r.o.zen_overlap = OVERLAP_OFF;
    CHECK(!zen_config(&r.o).overlap, "at once");
    CHECK(rates.lr == 6e-4 && rates.beta1 == 0.9 && rates.beta2 == 0.95 && rates.eps == 1e-8
          && rates.weight_decay == 0.1, "rates");
    zen_map_free(&map);
    zen_clock_free(&x);
    gpt2_table_free(&m.table);
}

int main(void) {
    RUN(the_reference_is_what_the_simulator_says);
    RUN(quotas);
    RUN(the_map_is_one_range_per_segment);
    RUN(selection_takes_the_highest_scores);
    RUN(sums_have_one_order);
    RUN(votes_compare_sums_with_means);
    RUN(means_are_of_the_columns_of_each_kind);
    RUN(stopped_it_goes_on_with_the_same_bits);
    RUN(damaged_texts_are_refused);
    RUN(other_modes_go_on_from_it);
    RUN(it_goes_on_from_other_modes);
    return test_summary();
}
