// zen_run.h: what a run with importance-aware updates (zenflow.h) needs besides its steps: its
// settings, and its checkpoints, which any other mode can go on from.
#ifndef TIDE_ZEN_RUN_H
#define TIDE_ZEN_RUN_H
#include "run.h"
#include "../zenflow.h"

static inline ZenConfig zen_config(const Options *o) {
    ZenConfig c;
    c.topk = o->zen_topk;
    c.window = o->zen_window;
    c.reselect = o->zen_reselect;
    c.warmup = o->zen_warmup;
    c.delay = o->zen_delay == AUTO_COUNT ? ZEN_WINDOW : o->zen_delay;
    c.rest_lr = o->zen_rest_lr > 0 ? o->zen_rest_lr : 0;
    return c;
}

static inline ZenRates zen_rates(const Options *o, size_t step) {
    const ZenRates r = {schedule_lr(o, step), o->beta1, o->beta2, o->eps, o->weight_decay};
    return r;
}

// Prints what is updated when, and by whom, like "0.09 M in chosen columns updated by the GPU at
// every step, ..": no end of line.
static inline void zen_describe(const ZenConfig *c, const ZenMap *map, const char *gpu,
                                const char *cpu) {
    const double all = (double)map->elements, chosen = (double)map->chosen_elements;
    printf("%s in chosen columns updated%s at every step, %s%s ", count_text(chosen).text, gpu,
           count_text(all - chosen).text, cpu);
    if (c->window == 0) printf("as their gradients ask for it");
    else if (c->window == 1) printf("at every step");
    else printf("every %zu steps", c->window);
    if (c->delay == 0) printf(", shown at once");
    else if (c->delay >= zen_window_most(c)) printf(", shown one window late");
    else printf(", shown %zu step%s late", c->delay, c->delay > 1 ? "s" : "");
}

// ---------------------------------------------------------------------------------------------
// Checkpoints
//
// Besides param (the newest weights), m and v there are two parts: acc, the gradients that the open
// window has summed so far, and shown, the weights in use, where an update is still to show. The
// rest is in state.json: {"zenflow":{..}}.

enum { ZEN_PARTS = 5 };

// A double as 16 hexadecimal digits: exact, and one string holds many.
static inline void zen_write_doubles(FILE *f, const char *name, const double *x, size_t n) {
    fprintf(f, ",\n\"%s\":\"", name);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &x[i], 8);
        fprintf(f, "%016" PRIx64, bits);
    }
    fputc('"', f);
}

static inline bool zen_read_doubles(const Json *root, const char *name, double *x, size_t n) {
    const Json *text = json_get(root, name);
    if (text == NULL || text->type != JSON_STRING || text->length != 16 * n
        || strspn(text->string, "0123456789abcdef") != 16 * n) return false;
    for (size_t i = 0; i < n; i++) {
        char digits[17] = "";
        memcpy(digits, text->string + 16 * i, 16);
        const uint64_t bits = strtoull(digits, NULL, 16);
        memcpy(&x[i], &bits, 8);
        if (!(x[i] >= 0 && x[i] <= DBL_MAX)) return false;
    }
    return true;
}

// Did the scoring of columns begin, and the sums of a window that follows the gradients?
static inline bool zen_has_scores(const ZenConfig *c, const ZenMap *map, const ZenClock *x) {
    return zen_is_scoring(c, map, x) && (zen_is_warm(c, x) ? x->warm : x->filled) > 0;
}
static inline bool zen_has_means(const ZenConfig *c, const ZenClock *x) {
    return c->window == 0 && x->filled > 0;
}

// The state as TrainState.more: the text of a JSON object; free() it.
static inline char *zen_text(const ZenConfig *c, const ZenMap *map, const ZenClock *x) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL) fail("out of memory: chosen columns");
    fprintf(f, "{\"zenflow\":{\"whole\":%zu,\"warm\":%zu,\"chosen_t\":%zu,\"rest_t\":%zu,"
            "\"filled\":%zu,\"late\":%d,\"windows\":%zu,\"selections\":%zu,\n\"columns\":[",
            map->whole, x->warm, x->chosen_t, x->rest_t, x->filled, x->late, x->windows,
            x->selections);
    const char *between = "";
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        if (!zen_is_mixed(z)) continue;
        fprintf(f, "%s[", between);
        for (size_t j = 0; j < z->chosen; j++)
            fprintf(f, "%s%d", j > 0 ? "," : "", map->column[z->column_at + j]);
        fprintf(f, "]");
        between = ",\n";
    }
    fprintf(f, "]");
    if (zen_has_scores(c, map, x)) zen_write_doubles(f, "scores", x->scores, map->columns);
    if (zen_has_means(c, x)) {
        zen_write_doubles(f, "chosen_mean", x->chosen_mean, (size_t)map->count);
        zen_write_doubles(f, "rest_mean", x->rest_mean, (size_t)map->count);
    }
    fprintf(f, "}}");
    if (fclose(f) != 0) fail("out of memory: chosen columns");
    return text;
}

// One matrix's chosen columns, in the order of their slots; the rest follow in their own.
static inline bool zen_read_columns(const ZenTensor *z, int32_t *column, const Json *list) {
    bool *seen = (bool *)alloc_or_fail(z->cols, sizeof *seen, "columns");
    bool ok = list != NULL && list->type == JSON_ARRAY && list->count == z->chosen;
    size_t n = 0, j;
    for (const Json *x = ok ? list->child : NULL; ok && x != NULL; x = x->next) {
        ok = json_size(x, &j) && j < z->cols && !seen[j];
        if (!ok) break;
        seen[j] = true;
        column[n++] = (int32_t)j;
    }
    for (j = 0; ok && j < z->cols; j++)
        if (!seen[j]) column[n++] = (int32_t)j;
    free(seen);
    return ok;
}

// Does the checkpoint that is resumed hold such a state?
static inline bool zen_is_saved(const Run *r) {
    return r->o.resume && r->o.optimizer == OPTIMIZER_ADAMW && r->state.more != NULL;
}

// Can a step follow, as zen_turn() has left it?
static inline bool zen_is_possible(const ZenConfig *c, const ZenMap *map, const ZenClock *x) {
    if (zen_is_warm(c, x)) return x->filled == 0 && !x->late;
    return x->filled < zen_window_most(c) && (!x->late || x->filled < zen_delay_most(c))
        && (!map->mixed || c->reselect == 0 || x->windows < c->reselect);
}

// Makes *map and *x of what zen_text() has written. False, and nothing made, if it is damaged.
static inline bool zen_parse(const char *text, const GPT2Table *t, size_t layers,
                             const ZenConfig *c, ZenMap *map, ZenClock *x, Error *err) {
    Json *root = json_parse(text, strlen(text), err);
    const Json *z = json_get(root, "zenflow"), *lists = json_get(z, "columns");
    size_t late = 0, whole = 0;
    bool ok = json_get_size(z, "whole", &whole) && whole <= layers && lists != NULL
        && lists->type == JSON_ARRAY;
    *map = zen_map(t, layers, c->topk, ok ? whole : 0);
    *x = zen_clock(map);
    ok = ok && json_get_size(z, "warm", &x->warm) && json_get_size(z, "chosen_t", &x->chosen_t)
        && json_get_size(z, "rest_t", &x->rest_t) && json_get_size(z, "filled", &x->filled)
        && json_get_size(z, "late", &late) && late <= 1
        && json_get_size(z, "windows", &x->windows)
        && json_get_size(z, "selections", &x->selections);
    x->late = late == 1;
    ok = ok && zen_is_possible(c, map, x)
        && (!zen_has_scores(c, map, x) || zen_read_doubles(z, "scores", x->scores, map->columns))
        && (!zen_has_means(c, x)
            || (zen_read_doubles(z, "chosen_mean", x->chosen_mean, (size_t)map->count)
                && zen_read_doubles(z, "rest_mean", x->rest_mean, (size_t)map->count)));
    const Json *list = ok ? lists->child : NULL;
    for (int i = 0; ok && i < map->count; i++) {
        const ZenTensor *tensor = &map->tensor[i];
        if (!zen_is_mixed(tensor)) continue;
        ok = zen_read_columns(tensor, map->column + tensor->column_at, list);
        if (list != NULL) list = list->next;
    }
    ok = ok && list == NULL;
    json_free(root);
    if (ok) return true;
    zen_map_free(map);
    zen_clock_free(x);
    return error_set(err, "its chosen columns are damaged");
}

// Makes *map and *x: of the checkpoint that is resumed, or else new ones, with the last `whole`
// layers chosen whole. Dies if a checkpoint is damaged.
static inline void zen_open(const Run *r, ZenMap *map, ZenClock *x, size_t whole) {
    const size_t layers = r->config.layers;
    const ZenConfig c = zen_config(&r->o);
    Error err;
    if (!zen_is_saved(r)) {
        *map = zen_map(&r->table, layers, c.topk, whole);
        *x = zen_clock(map);
        x->chosen_t = x->rest_t = r->state.step;  // not 0 if it went on without zenflow so far
    } else if (!zen_parse(r->state.more, &r->table, layers, &c, map, x, &err)) {
        die("%s: %s", r->resume_from, err.text);
    }
}

// Saves the run after `step` steps; what: its five parts, and weights.
static inline void zen_save(Run *r, size_t step, const ZenConfig *c, const ZenMap *map,
                            const ZenClock *x, const RunState *what) {
    free(r->state.more);
    r->state.more = zen_text(c, map, x);
    run_save(r, step, true, what);
}

// The reference for a run whose arenas these are (zenflow.h, section 4).
static inline ZenReference zen_reference(const Run *r, float *master, float *m, float *v,
                                         float *shown, float *acc) {
    ZenReference x;
    memset(&x, 0, sizeof x);
    x.config = zen_config(&r->o);
    zen_open(r, &x.map, &x.clock, 0);
    x.sums = (ZenSum *)alloc_or_fail(x.map.columns, sizeof(ZenSum), "columns");
    x.swaps = (ZenSwap *)alloc_or_fail(x.map.columns, sizeof(ZenSwap), "columns");
    x.master = master;
    x.m = m;
    x.v = v;
    x.shown = shown;
    x.acc = acc;
    return x;
}

static inline void zen_reference_free(ZenReference *x) {
    zen_map_free(&x->map);
    zen_clock_free(&x->clock);
    free(x->sums);
    free(x->swaps);
}

// ---------------------------------------------------------------------------------------------
// Going on in another mode

// What acc holds becomes an AdamW step at once, as if the window ended here, in the parts that were
// loaded before it.
typedef struct {
    const StatePart *parts;  // param, m, v
    const GPT2Table *table;
    ZenMap map;
    bool *chosen;            // (columns)
    AdamStep step;
    bool pending;            // something is in acc
} ZenFlush;

static inline void zen_flush_move(void *owner, size_t at, size_t n, float *w, bool out) {
    const ZenFlush *x = (const ZenFlush *)owner;
    if (out || !x->pending) return;
    const ZenTensor *z = &x->map.tensor[gpt2_tensor_at(x->table, at)];
    const size_t size = z->rows * z->cols, first = at - z->at;
    if (first >= size) return;  // the gap behind it
    n = min_size(n, size - first);
    float *state = (float *)alloc_or_fail(3 * n, sizeof(float), "pending updates");
    for (size_t k = 0; k < 3; k++) part_copy(&x->parts[k], at, n, state + k * n, true);
    #pragma omp parallel for if (n > 1 << 14)
    for (size_t j = 0; j < n; j++)
        if (!x->chosen[z->column_at + (first + j) % z->cols])
            adam_scalar(state + j, state + n + j, state + 2 * n + j, w[j], &x->step,
                        z->decay ? x->step.weight_decay : 0);
    for (size_t k = 0; k < 3; k++) part_copy(&x->parts[k], at, n, state + k * n, false);
    free(state);
}

static inline void zen_ignore_move(void *owner, size_t at, size_t n, float *w, bool out) {
    (void)owner, (void)at, (void)n, (void)w, (void)out;
}

// run_load() for every other mode of AdamW. what: param, m and v; or, to evaluate or to sample,
// param and two that have nothing in them.
static inline void zen_load_elsewhere(Run *r, const RunState *what) {
    if (!zen_is_saved(r)) {
        run_load(r, what);
        return;
    }
    ZenFlush x;
    ZenClock clock;
    memset(&x, 0, sizeof x);
    zen_open(r, &x.map, &clock, 0);
    const ZenConfig c = zen_config(&r->o);
    const ZenRates rates = zen_rates(&r->o, r->state.step);
    x.parts = what->parts;
    x.table = &r->table;
    x.pending = clock.filled > 0 && part_exists(&what->parts[1]);
    x.step = zen_rest_step(&c, &clock, &rates, clock.filled + (clock.filled == 0));
    x.chosen = (bool *)alloc_or_fail(x.map.columns, sizeof(bool), "columns");
    for (int i = 0; i < x.map.count; i++) {
        const ZenTensor *z = &x.map.tensor[i];
        for (size_t j = 0; j < z->chosen; j++)
            x.chosen[z->column_at + (size_t)x.map.column[z->column_at + j]] = true;
    }
    StatePart parts[ZEN_PARTS] = {what->parts[0], what->parts[1], what->parts[2],
                                  part_moved("acc", &x, zen_flush_move),
                                  part_moved("shown", NULL, zen_ignore_move)};
    const RunState all = {parts, ZEN_PARTS, what->weights};
    run_load(r, &all);
    if (r->training)
        printf("from here on without zenflow: %zu step%s of gradients that it held back "
               "are applied\n", clock.filled, plural(clock.filled));
    free(x.chosen);
    zen_map_free(&x.map);
    zen_clock_free(&clock);
    train_state_free(&r->state);
}

#endif
