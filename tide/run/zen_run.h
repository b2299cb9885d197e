// zen_run.h: the parts of a run with ZenFlow (zenflow.h) that are outside its steps.
//
//   zen_config, zen_rates   return its settings
//   zen_describe            prints its line at the start of a run
//   zen_text, zen_open      write and read its lines in a checkpoint
//   zen_reference           makes zenflow.h's reference for a run
#ifndef TIDE_ZEN_RUN_H
#define TIDE_ZEN_RUN_H
#include "run.h"
#include "../../zenflow.h"

static ZenConfig zen_config(const Options *o) {
    const double window = o->zen_window;  // below 1: the share of matrices that ends a window
    return (ZenConfig){.topk = o->zen_topk, .window = window < 1 ? 0 : (size_t)window,
                       .reselect = o->zen_reselect, .warmup = o->zen_warmup,
                       .overlap = o->zen_overlap == OVERLAP_ON,
                       .agree = window > 0 ? window : 0.99};
}

static ZenRates zen_rates(const Options *o, size_t step) {
    return (ZenRates){schedule_lr(o, step), o->beta1, o->beta2, o->eps, o->weight_decay,
                      o->moments == MOMENTS_BF16, o->master == MASTER_BF16};
}

// Prints what is updated, when and by whom, like "0.09 M in chosen columns updated by the GPU at
// every step, ..", without an end of line.
static void zen_describe(const ZenConfig *c, const ZenMap *map, const char *gpu, const char *cpu) {
    const double all = (double)map->elements, chosen = (double)map->chosen_elements;
    printf("%s in chosen columns updated%s at every step, %s%s ", count_text(chosen).text, gpu,
           count_text(all - chosen).text, cpu);
    if (c->window == 0) printf("as their gradients ask for it");
    else if (c->window == 1) printf("at every step");
    else printf("every %zu steps", c->window);
    printf(c->overlap ? ", shown one window late" : ", shown at once");
}

// ---------------------------------------------------------------------------------------------
// Checkpoints
//
// doc/zenflow.md describes when a run is saved. A checkpoint has param (the newest weights), m, v
// and, if an update is not used yet, shown (the weights in use). state.txt has the lines below. The
// last one goes on with the columns of each matrix in the order of their slots: the chosen ones, a
// bar, the others. (The rounding of bf16 moments depends on the slots.)

#define ZEN_LINES " zenflow\nzen.whole %zu\nzen.warm %zu\nzen.rest_t %zu\nzen.windows %zu\n" \
    "zen.selections %zu\nzen.columns"

// Returns the lines of a checkpoint (TrainState.text). The caller frees them.
static char *zen_text(const ZenMap *map, const ZenClock *clock) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = text_open(&text, &n);
    fprintf(f, "optimizer" ZEN_LINES, map->whole, clock->warm, clock->rest_t, clock->windows,
            clock->selections);
    for (const ZenTensor *z = map->tensor; z < map->tensor + map->count; z++)
        for (size_t j = 0; zen_is_mixed(z) && j < z->cols; j++)
            fprintf(f, j == z->chosen ? " | %d" : " %d", map->column[z->column_at + j]);
    fputc('\n', f);
    text_close(f);
    return text;
}

// Does the checkpoint that is resumed have lines of ZenFlow?
static bool zen_is_saved(const Run *r) {
    return r->o.resume && r->state.text != NULL && text_line(r->state.text, "optimizer") != NULL;
}

// Reads *map and *clock from zen_text()'s lines in the checkpoint that is resumed, whose hash has
// been checked. Without such lines makes new ones: the last `whole` layers are chosen whole.
static void zen_open(const Run *r, ZenMap *map, ZenClock *clock, size_t whole) {
    const char *at = zen_is_saved(r) ? text_line(r->state.text, "optimizer") : NULL;
    int read = 0;
    if (at != NULL) sscanf(at, " zenflow\nzen.whole %zu", &whole);
    *map = zen_map(&r->table, r->state.config.layers, r->o.zen_topk, whole);
    *clock = zen_clock(map);
    if (at == NULL) {
        clock->rest_t = r->state.step - r->state.scaling.skipped;  // steps in another mode
        return;
    }
    sscanf(at, ZEN_LINES "%n", &whole, &clock->warm, &clock->rest_t, &clock->windows,
           &clock->selections, &read);
    at += read;
    for (const ZenTensor *z = map->tensor; z < map->tensor + map->count; z++)
        for (size_t j = 0; zen_is_mixed(z) && j < z->cols; j++) {
            char *end;
            if (strncmp(at, " |", 2) == 0) at += 2;
            map->column[z->column_at + j] = (int32_t)min_size(strtoul(at, &end, 10), z->cols - 1);
            at = end;
        }
}

// Makes the reference (zenflow.h, section 4) of a run with these arenas, and prints its line.
// Without a checkpoint of ZenFlow, the weights in use (shown) begin as the newest weights.
static ZenReference zen_reference(Run *r, float *master, float *m, float *v, float *shown,
                                  float *acc) {
    ZenReference ref = {.config = zen_config(&r->o), .master = master, .m = m, .v = v,
                        .shown = shown, .acc = acc};
    zen_open(r, &ref.map, &ref.clock, 0);
    ref.sums = ALLOC(float, 2 * ref.map.mixed, "columns");
    ref.swaps = ALLOC(ZenSwap, ref.map.columns, "columns");
    r->saves.parts = STATE_PARTS;
    if (!zen_is_saved(r)) memcpy(shown, master, r->table.elements * sizeof *shown);
    printf("zenflow: %s parameters, ", count_text((double)ref.map.elements).text);
    zen_describe(&ref.config, &ref.map, "", "");
    printf("\n");
    return ref;
}

#endif
