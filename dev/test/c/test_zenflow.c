// Tests of importance-aware updates: the reference of zenflow.h, which also goes on from the lines
// of a checkpoint, against a simulator that is written from its promises alone. (Where packed state
// lies, sums over columns, that some settings are plain AdamW: test_zenflow_gpu.cu and
// test_columns_gpu.cu hold the GPU against the reference; how a run goes on in other modes, and
// from theirs: test_cli_zen.sh; several ranks: test_zero_gpu.cu.)
#include "../../../tide/run/zen_run.h"
#include "../test.h"
#include "../zen_free.h"
#include "../first_values.h"
#include "../numbers.h"

static float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }
static float weight(float x) { return bf16_to_f32(master_weight(x)); }

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
            const uint32_t at = (uint32_t)(x->offset + e - twin);
            const float noise = (float)(int32_t)philox4x32(step, at, 0, 0, 0).x[0] * 0x1p-31f;
            g[x->offset + e] = (large ? 1.0f : 0.2f + 0.02f * (float)(step % 9)) * noise;
        }
    }
}

static ZenRates rates_of(size_t step) {
    return (ZenRates){0.01 + 0.001 * (double)(step * step % 7), 0.9, 0.95, 1e-8, 0.1, 0};
}

static float scale_of(size_t step) { return step % 4 == 1 ? 1 : 0.3f + 0.07f * (float)(step % 6); }

typedef struct { ZenConfig zen; size_t whole; bool bf16; } Case;

// Master, m, v, shown and acc are one array.
static ZenReference reference_of(const Model *m, const Case *c) {
    const size_t n = m->table.elements;
    ZenReference x;
    memset(&x, 0, sizeof x);
    x.config = c->zen;
    x.map = zen_map(&m->table, m->config.layers, c->zen.topk, c->whole);
    x.clock = zen_clock(&x.map);
    x.sums = floats(2 * x.map.mixed);
    x.swaps = ALLOC(ZenSwap, x.map.columns, "swaps");
    x.master = floats(5 * n);
    x.m = x.master + n;
    x.v = x.m + n;
    x.shown = x.v + n;
    x.acc = x.shown + n;
    x.half = c->bf16;
    gpt2_init(&m->table, x.master, 3);
    for (size_t e = 0; e < n; e++) x.shown[e] = c->bf16 ? weight(x.master[e]) : x.master[e];
    return x;
}

static void reference_free(ZenReference *x) {
    free(x->master);
    zen_reference_free(x);
}

// ---------------------------------------------------------------------------------------------
// The simulator
//
// It follows one element after the other, with a list of the gradients that wait. Nothing of
// zenflow.h is used.

enum { STEPS = 26, MOST = 16 };  // MOST: steps of a window that follows the gradients

typedef struct {
    const Model *m;
    const Case *c;
    size_t columns, from, windows, updates;  // from: the window's first step
    bool mixed, *chosen;                     // (columns), tensor after tensor
    double *squares, *magnitudes;            // (steps, columns): sums over each column
    float *master, *mean, *square, *shown;   // one array
    float *waiting[MOST], scale[MOST];       // gradients of the window
} ZenSimulator;

typedef struct { bool closes, selects; size_t length; } Moment;

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

// first: master, m, v and shown, as they begin.
static ZenSimulator simulator_of(const Model *m, const Case *c, const float *first) {
    const size_t n = m->table.elements;
    ZenSimulator s = {.m = m, .c = c, .from = 1};
    s.columns = first_column(&m->table, m->table.count);
    s.chosen = ALLOC(bool, s.columns, "columns");
    s.squares = ALLOC(double, 2 * (STEPS + 1) * s.columns, "columns");
    s.magnitudes = s.squares + (STEPS + 1) * s.columns;
    s.master = floats((4 + MOST) * n);
    s.mean = s.master + n;
    s.square = s.mean + n;
    s.shown = s.square + n;
    for (int k = 0; k < MOST; k++) s.waiting[k] = s.shown + (size_t)(k + 1) * n;
    memcpy(s.master, first, 4 * n * sizeof *first);
    for (int i = 0; i < m->table.count; i++) {
        const size_t share = share_of(m, c, i);
        for (size_t j = 0; j < share; j++) s.chosen[first_column(&m->table, i) + j] = true;
        s.mixed = s.mixed || (share > 0 && share < m->table.tensors[i].cols);
    }
    return s;
}

static void simulator_free(ZenSimulator *s) {
    free(s->chosen);
    free(s->squares);
    free(s->master);
}

// The sum of a column's numbers over the steps `from` to `to`.
static double over_steps(const ZenSimulator *s, const double *sums, size_t column, size_t from,
                         size_t to) {
    double sum = 0;
    for (size_t step = from; step <= to; step++) sum += sums[step * s->columns + column];
    return sum;
}

// Has the open window, which may end with step `to`, seen enough?
static bool has_seen_enough(const ZenSimulator *s, size_t to) {
    const size_t length = to - s->from + 1;
    size_t voters = 0, votes = 0;
    for (int i = 0; i < s->m->table.count; i++) {
        const size_t share = share_of(s->m, s->c, i), cols = s->m->table.tensors[i].cols;
        const size_t first = first_column(&s->m->table, i);
        double sums[2] = {0, 0};  // of the rest, of the chosen
        if (share == 0 || share == cols) continue;
        for (size_t j = first; j < first + cols; j++)
            sums[s->chosen[j]] += over_steps(s, s->magnitudes, j, s->from, to);
        voters++;  // sum of the rest's averages against the average of the chosen's averages
        votes += sums[0] / (double)(cols - share) >= sums[1] / (double)share / (double)length;
    }
    return (double)votes >= s->c->zen.agree * (double)voters || length >= MOST;
}

// Chooses columns for their gradients in steps `from` to `to`.
static void choose(ZenSimulator *s, size_t from, size_t to) {
    for (int i = 0; i < s->m->table.count; i++) {
        const size_t cols = s->m->table.tensors[i].cols, first = first_column(&s->m->table, i);
        double *score = ALLOC(double, cols, "scores");
        for (size_t j = 0; j < cols; j++) score[j] = over_steps(s, s->squares, first + j, from, to);
        for (size_t j = 0; j < cols; j++) {
            size_t better = 0;
            for (size_t k = 0; k < cols; k++)
                better += score[k] > score[j] || (score[k] == score[j] && k < j);
            s->chosen[first + j] = better < share_of(s->m, s->c, i);
        }
        free(score);
    }
}

// What the end of a step is to be.
static Moment simulator_turn(ZenSimulator *s, size_t step) {
    const ZenConfig *c = &s->c->zen;
    const bool warm = step <= c->warmup;
    Moment x = {.length = step - s->from + 1};
    x.closes = warm ? true : c->window > 0 ? x.length == c->window
             : !s->mixed || has_seen_enough(s, step);
    s->windows += x.closes && !warm;
    s->updates += x.closes;
    x.selects = s->mixed && (warm ? step == c->warmup
                                  : x.closes && s->windows == c->reselect);
    return x;
}

static Moment simulate(ZenSimulator *s, size_t step, const float *g, const AdamStep *now,
                       const ZenRates *r) {
    const GPT2Table *t = &s->m->table;
    const bool bf16 = s->c->bf16;
    for (int i = 0; i < t->count; i++) {
        const size_t first = step * s->columns + first_column(t, i);
        for (size_t k = 0; k < t->tensors[i].size; k++) {
            const size_t at = first + k % t->tensors[i].cols;
            const double x = g[t->tensors[i].offset + k];
            s->squares[at] += x * x;
            s->magnitudes[at] += fabs(x);
        }
    }
    const Moment x = simulator_turn(s, step);
    const ZenConfig *c = &s->c->zen;
    const bool warm = step <= c->warmup, at_once = warm || !c->overlap || x.selects;
    const double n = (double)x.length;
    const AdamStep late = adam_step_prepare(r->lr, r->beta1, r->beta2, r->eps, r->weight_decay * n,
                                            s->updates, 1 / n);
    s->scale[x.length - 1] = now->grad_scale;
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *ten = &t->tensors[i];
        const bool *chosen = s->chosen + first_column(t, i);
        for (size_t k = 0; k < ten->size; k++) {
            const size_t e = ten->offset + k;
            const bool is_chosen = chosen[k % ten->cols];
            const AdamStep *a = is_chosen ? now : &late;
            float *p = &s->master[e], sum = g[e];
            s->waiting[x.length - 1][e] = bf16 ? rounded(g[e]) : g[e];
            if (!is_chosen && !x.closes) continue;
            if (!is_chosen) s->shown[e] = bf16 ? weight(*p) : *p;  // of the window before
            for (size_t w = 0; !is_chosen && w < x.length; w++)
                sum = w == 0 ? s->scale[w] * s->waiting[w][e]
                             : fmaf(s->scale[w], s->waiting[w][e], sum);
            adam_scalar(p, &s->mean[e], &s->square[e], sum, a,
                        ten->rank == 2 ? a->weight_decay : 0);
            if (is_chosen || at_once) s->shown[e] = bf16 ? weight(*p) : *p;
        }
    }
    const size_t most = c->window > 0 ? c->window : MOST;  // scores of a warm-up count from then on
    if (x.selects) choose(s, !warm ? s->from : step > most ? step - most + 1 : 1, step);
    if (x.selects) s->windows = 0;
    if (x.closes) s->from = step + 1;
    return x;
}

// One of 40 cases, in which all settings meet.
static Case case_of(int k) {
    static const double shares[] = {0.1, 0.3, 0, 0.6, 1}, agree[] = {0.99, 0.5, 2};
    static const size_t windows[] = {3, 0, 1, 4};
    Case c;
    c.zen = (ZenConfig){.topk = shares[k % 11 < 4 ? 0 : k % 7 % 5], .window = windows[k % 4],
                        .reselect = (size_t)(k / 4 % 3), .overlap = k / 2 % 3 > 0,
                        .warmup = k % 5 == 0 ? 6 : k % 3 == 0 ? 2 : 1, .agree = agree[k / 4 % 3]};
    if (k % 11 == 3) c.zen.topk = 0.01;  // but one column of each matrix
    c.whole = k % 8 == 6 ? 1 : k % 16 == 9 ? 2 : 0;
    c.bf16 = k % 3 == 1;
    return c;
}

// Goes on from what a checkpoint says of the columns and the time.
static void resume(ZenReference *x, const Model *m) {
    static Run r;
    r.o.resume = true;
    r.o.zen_topk = x->config.topk;
    r.state.config = m->config;
    r.table = m->table;
    r.state.text = zen_text(&x->map, &x->clock);
    zen_map_free(&x->map);
    zen_clock_free(&x->clock);
    zen_open(&r, &x->map, &x->clock, 0);
    free(r.state.text);
}

// Every second one is also stopped wherever it can be saved.
static void the_reference_is_what_the_simulator_says(void) {
    int late = 0, moved = 0, several = 0, stops = 0;
    bool lengths[MOST + 1] = {false};
    for (int k = 0; k < 40; k++) {
        const Case c = case_of(k);
        Model m = model_of(k % MODELS);
        ZenReference x = reference_of(&m, &c);
        ZenSimulator s = simulator_of(&m, &c, x.master);
        float *g = floats(m.table.elements);
        for (const ZenTensor *z = x.map.tensor; z < x.map.tensor + x.map.count; z++)
            CHECK(z->chosen_at % 128 == 0 && z->rest_at % 128 == 0, "case %d: packed state", k);
        use_threads(k % 3);
        for (size_t step = 1; step <= STEPS; step++) {
            gradient_of(&m.table, step, g);
            const ZenRates r = rates_of(step);
            const AdamStep now = adam_step_prepare(r.lr, r.beta1, r.beta2, r.eps, r.weight_decay,
                                                   step, scale_of(step));
            zen_reference_step(&x, g, &now, &r);
            const Moment end = simulate(&s, step, g, &now, &r);
            size_t e = 0;  // of master, m, v and shown
            while (e < 4 * m.table.elements && same(x.master + e, s.master + e, 1)) e++;
            CHECK(e == 4 * m.table.elements, "case %d, element %zu of 4 x %zu after step %zu: %a, "
                  "not %a", k, e, m.table.elements, step, (double)x.master[e], (double)s.master[e]);
            CHECK(x.clock.rest_t == s.updates && x.clock.filled == (end.closes ? 0 : end.length),
                  "case %d: %zu, %zu", k, x.clock.rest_t, x.clock.filled);
            if (k % 2 == 0 && !zen_is_open(&c.zen, &x.clock)) {
                resume(&x, &m);
                stops++;
            }
            if (step <= c.zen.warmup) continue;
            if (end.closes && c.zen.window == 0 && s.mixed) lengths[end.length] = true;
            late += end.closes && c.zen.overlap && !end.selects;
            moved += end.selects;
        }
        // columns stay columns in a damaged text (state.txt's hash tells one)
        for (size_t j = 0; j < x.map.mixed; j++) x.map.column[j] = 999999;
        resume(&x, &m);
        for (size_t j = 0; j < x.map.mixed; j++) CHECK(x.map.column[j] < 200, "column %zu", j);
        free(g);
        simulator_free(&s);
        reference_free(&x);
        free(m.table.tensors);
    }
    use_threads(0);
    for (int n = 1; n <= MOST; n++) several += lengths[n];
    CHECK(several >= 3 && lengths[MOST], "windows of %d lengths", several);
    CHECK(late > 50 && moved > 30 && stops > 100, "%d late updates, %d selections, %d stops", late,
          moved, stops);
}

static void a_window_may_be_a_share(void) {
    static const double rows[][3] = {{0.5, 0, 0.5}, {AUTO_REAL, 0, 0.99}, {1, 1, 1}, {3, 3, 3}};
    for (int i = 0; i < 4; i++) {
        const Options o = {.zen_window = rows[i][0]};
        const ZenConfig c = zen_config(&o);
        CHECK((double)c.window == rows[i][1] && c.agree == rows[i][2], "row %d", i);
    }
}

int main(void) {
    RUN(the_reference_is_what_the_simulator_says);
    RUN(a_window_may_be_a_share);
    return test_summary();
}
