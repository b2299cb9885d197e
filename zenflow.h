// zenflow.h: importance-aware updates (ZenFlow: Lan et al. 2025).
//
//   1. Columns: which are chosen, and where their state is stored: zen_map()
//   2. Importance: sums over columns, and the selection: zen_sums(), zen_select(), zen_swap()
//   3. Time: windows, the end of a step, and the two AdamW steps: zen_turn(), zen_turn_end()
//   4. The reference: one step in plain C, without streams: zen_reference_step()
//
// In each matrix a few columns matter most. They are "chosen": the GPU has their state, and updates
// them in every step. All other columns are "late" (in the names of fields: rest). Their gradients
// are summed on the host over a window of S steps. Then the CPU makes one AdamW step with the mean
// gradient, while the next window trains; forward uses the result after that window, so one window
// late. With --zen-overlap off training waits for the update instead. Section 4 defines the bits,
// which zenflow.cuh must compute as well. doc/zenflow.md is the lesson.
#ifndef TIDE_ZENFLOW_H
#define TIDE_ZENFLOW_H
#include "adam.h"
#include "tide/base/model.h"

typedef struct {
    double topk;        // share of the columns of each matrix that are chosen
    size_t window;      // S: steps until late columns are updated; 0: zen_votes() decides
    size_t reselect;    // E: windows from one selection to the next; 0: only one selection
    size_t warmup;      // W >= 1: plain AdamW steps, before the first selection
    bool overlap;       // forward uses the late columns' update one window later; false: at once
    double agree;       // share of the matrices that must vote to end a window, if window is 0
} ZenConfig;

enum { ZEN_WINDOW_MOST = 16 };  // the most steps of a window that zen_votes() ends

// ---------------------------------------------------------------------------------------------
// 1. Columns
//
// Column j of a matrix (rows, cols) has the weights of input channel j (in embeddings: channel j of
// every token or position). A column is chosen or late; the number of chosen columns
// never changes. Vectors, and matrices whose state stays on the GPU, are chosen whole. The state of
// a matrix's chosen columns is packed as (rows, chosen), of late columns as (rows, cols - chosen).
// Slot k is column k of a packed matrix: a column keeps its slot until zen_swap().

typedef struct {
    size_t rows, cols;   // of this rank's part, with padded rows; a vector has 1 row
    size_t row;          // the first row that this rank has
    size_t at;           // its begin in the arena or, with ZeRO, among this rank's shards
    size_t chosen;       // number of chosen columns (below 2^31, as is cols)
    size_t column_at;    // begin of its columns in the list of all columns
    size_t chosen_at;    // begin of its (rows, chosen) in the chosen columns' packed state,
    size_t rest_at;      // and of its (rows, cols - chosen) in the late columns'; multiples of 128
    size_t chosen_index; // number of the element at chosen_at for adam_round(), and of the
    size_t rest_index;   // element at rest_at: depends on tensor, row and slot, not on ranks
    int decay;
} ZenTensor;

// The tensors of a segment, and the begins and lengths of their packed state.
typedef struct { int first, count; size_t chosen_at, chosen, rest_at, rest; } ZenSegment;

typedef struct {
    int count, segments;
    ZenTensor *tensor;       // in the table's order
    ZenSegment *segment;     // segment s has the tensors of layer s - 1
    int32_t *column;         // per tensor, the column in each slot: chosen columns, then late ones
    size_t columns;          // number of columns of all tensors
    size_t mixed;            // number of columns of mixed tensors, which are first in `column`
    size_t chosen, rest;     // packed elements, gaps included
    size_t longest;          // the most packed elements of late columns in one segment
    size_t elements;         // elements of all tensors, without gaps
    size_t chosen_elements;  // elements in chosen columns, without gaps
    size_t whole;            // number of layers, the last ones, that are chosen whole
} ZenMap;

// Has a tensor both chosen and late columns? Only then its columns are selected.
static bool zen_is_mixed(const ZenTensor *z) { return z->chosen > 0 && z->chosen < z->cols; }

// Returns topk * cols, rounded to the nearest number of columns, but at least 1 if topk > 0.
static size_t zen_quota(double topk, size_t cols) {
    const size_t n = (size_t)(topk * (double)cols + 0.5);
    return topk > 0 && n == 0 ? 1 : n > cols ? cols : n;
}

// Computes the layout: where each tensor's columns are in the list of columns (mixed tensors
// first), and where its packed state is.
static void zen_map_pack(ZenMap *map) {
    map->chosen = map->rest = map->longest = map->elements = map->chosen_elements = 0;
    map->columns = map->mixed = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < map->count; i++) {
            ZenTensor *z = &map->tensor[i];
            if (zen_is_mixed(z) != (pass == 0)) continue;
            z->column_at = map->columns;
            map->columns += z->cols;
            if (pass == 0) map->mixed = map->columns;
        }
    for (int k = 0; k < map->segments; k++) {
        ZenSegment *s = &map->segment[k];
        s->chosen_at = map->chosen;
        s->rest_at = map->rest;
        for (ZenTensor *z = map->tensor + s->first; z < map->tensor + s->first + s->count; z++) {
            z->chosen_at = map->chosen;
            z->rest_at = map->rest;
            map->chosen += round_up(z->rows * z->chosen, ALIGN_ELEMENTS);
            map->rest += round_up(z->rows * (z->cols - z->chosen), ALIGN_ELEMENTS);
            map->elements += z->rows * z->cols;
            map->chosen_elements += z->rows * z->chosen;
        }
        s->chosen = map->chosen - s->chosen_at;
        s->rest = map->rest - s->rest_at;
        if (s->rest > map->longest) map->longest = s->rest;
    }
}

// Makes a map in which the first columns are chosen. The last `whole` layers, and then also the
// tail, are chosen whole. The caller frees the map with zen_map_free().
static ZenMap zen_map(const GPT2Table *t, size_t layers, double topk, size_t whole) {
    ZenMap map = {.count = t->count, .segments = (int)layers + 2, .whole = whole};
    map.tensor = ALLOC(ZenTensor, (size_t)t->count, "columns");
    map.segment = ALLOC(ZenSegment, layers + 2, "columns");
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *ten = &t->tensors[i];
        ZenSegment *s = &map.segment[ten->layer + 1];
        const bool is_whole = ten->rank < 2
            || (whole > 0 && (size_t)(ten->layer + 1) > layers - whole);
        const size_t chosen = is_whole ? ten->cols : zen_quota(topk, ten->cols);
        map.tensor[i] = (ZenTensor){
            .rows = ten->size / ten->cols, .cols = ten->cols, .at = ten->offset, .chosen = chosen,
            .chosen_index = ten->offset + ten->size / ten->cols * (ten->cols - chosen),
            .rest_index = ten->offset, .decay = ten->rank == 2};
        if (s->count++ == 0) s->first = i;
    }
    zen_map_pack(&map);
    map.column = (int32_t *)alloc_or_fail(map.columns, sizeof(int32_t), "columns");
    for (int i = 0; i < t->count; i++)
        for (size_t j = 0; j < map.tensor[i].cols; j++)
            map.column[map.tensor[i].column_at + j] = (int32_t)j;
    return map;
}

// Reduces a new map to one rank's part: some rows of each matrix, perhaps none, and vectors whole
// or not at all (zero.h). The list of columns does not change: all ranks have the same.
static void zen_map_own(ZenMap *map, const ShardMap *own) {
    int next = 0;
    for (int i = 0; i < map->count; i++) {
        ZenTensor *z = &map->tensor[i];
        const bool mine = next < own->count && own->shards[next].tensor == i;
        z->row = mine ? own->shards[next].offset / z->cols : 0;
        z->rows = mine ? own->shards[next].length / z->cols : 0;
        z->at = next < own->count ? own->shards[next].at : own->elements;
        z->chosen_index += z->row * z->chosen;
        z->rest_index += z->row * (z->cols - z->chosen);
        next += mine;
    }
    zen_map_pack(map);
}

static void zen_map_free(ZenMap *map) {
    free(map->tensor);
    free(map->segment);
    free(map->column);
}

// ---------------------------------------------------------------------------------------------
// 2. Importance
//
// The importance of a column is the sum of the squares of its gradients over the steps of a window
// (before the first selection: over the last steps of the warm-up). C and CUDA add up in one order:
// a column is cut into blocks of 128 rows; the rows of a block are added in order, in double; then
// the blocks are added in order. Squares are exact in double.
//
// Only the norm of a column's gradients is sent to the host and to other ranks, in fp32: 4 bytes
// for a column of any length. If the gradients decide when a window ends, the sum of the magnitudes
// is sent, too: 4 more bytes (zen_numbers()).

enum { ZEN_BLOCK = 128, ZEN_STRIP = 64 };  // ZEN_STRIP: columns that a CPU thread sums at a time

typedef struct { double squares, magnitudes; } ZenSum;  // sums of a column's gradients in a step

// Computes the norm of each column of a gradient (rows, cols), of floats or halves (bf16.h), and
// the sum of the magnitudes of the column's elements: norms (cols), magnitudes (cols).
static void zen_sums(float *norms, float *magnitudes, const void *grad, int is_half, size_t rows,
                     size_t cols) {
    #pragma omp parallel for schedule(static) if (rows * cols > 1 << 16)
    for (size_t first = 0; first < cols; first += ZEN_STRIP) {
        const size_t width = min_size(ZEN_STRIP, cols - first);
        ZenSum sums[ZEN_STRIP] = {{0, 0}};
        for (size_t block = 0; block < rows; block += ZEN_BLOCK) {
            double squares[ZEN_STRIP] = {0}, absolute[ZEN_STRIP] = {0};
            for (size_t r = block; r < min_size(block + ZEN_BLOCK, rows); r++) {
                #pragma omp simd
                for (size_t j = 0; j < width; j++) {
                    const double x = grad_at(grad, is_half, r * cols + first + j);
                    squares[j] += x * x;
                    absolute[j] += fabs(x);
                }
            }
            for (size_t j = 0; j < width; j++) {
                sums[j].squares += squares[j];
                sums[j].magnitudes += absolute[j];
            }
        }
        for (size_t j = 0; j < width; j++) {
            norms[first + j] = (float)sqrt(sums[j].squares);
            magnitudes[first + j] = (float)sums[j].magnitudes;
        }
    }
}

typedef struct { double score; int32_t column; } ZenRank;

static int zen_rank_compare(const void *a, const void *b) {
    const ZenRank *x = (const ZenRank *)a, *y = (const ZenRank *)b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->column > y->column) - (x->column < y->column);
}

// Two slots of a tensor whose columns are swapped: number `rest` is counted from slot z->chosen.
typedef struct { int32_t chosen, rest; } ZenSwap;

// Selects the columns of tensor i with the highest scores (cols); of columns with equal scores, the
// first ones. Fills swaps (at most z->chosen) with the pairs of slots whose columns zen_swap() has
// to swap; returns their number. A column that stays chosen keeps its slot. The slot of a newly
// chosen column does not depend on the order of late columns, which a checkpoint does not store.
static size_t zen_select(const ZenMap *map, int i, const double *scores, ZenSwap *swaps) {
    const ZenTensor *z = &map->tensor[i];
    const int32_t *column = map->column + z->column_at;
    if (!zen_is_mixed(z)) return 0;
    ZenRank *rank = (ZenRank *)alloc_or_fail(z->cols, sizeof *rank, "selection");
    bool *wanted = (bool *)alloc_or_fail(z->cols, sizeof *wanted, "selection");
    int32_t *slot = (int32_t *)alloc_or_fail(z->cols, sizeof *slot, "selection");
    for (size_t j = 0; j < z->cols; j++) rank[j] = (ZenRank){scores[j], (int32_t)j};
    qsort(rank, z->cols, sizeof *rank, zen_rank_compare);
    for (size_t j = 0; j < z->chosen; j++) wanted[rank[j].column] = true;
    for (size_t j = 0; j < z->cols; j++) slot[column[j]] = (int32_t)j;
    size_t count = 0, next = 0;
    for (size_t j = 0; j < z->chosen; j++) {
        if (wanted[column[j]]) continue;
        while (!wanted[next] || (size_t)slot[next] < z->chosen) next++;
        swaps[count++] = (ZenSwap){(int32_t)j, slot[next++] - (int32_t)z->chosen};
    }
    free(rank);
    free(wanted);
    free(slot);
    return count;
}

static void zen_swap(ZenMap *map, int i, const ZenSwap *swaps, size_t count) {
    const ZenTensor *z = &map->tensor[i];
    int32_t *column = map->column + z->column_at;
    for (size_t k = 0; k < count; k++) {
        int32_t *a = &column[swaps[k].chosen], *b = &column[z->chosen + (size_t)swaps[k].rest];
        const int32_t c = *a;
        *a = *b;
        *b = c;
    }
}

// ---------------------------------------------------------------------------------------------
// 3. Time

typedef struct {
    size_t warm;            // steps of the warm-up so far
    size_t rest_t;          // AdamW steps of late columns so far; chosen columns have one per step
    size_t filled;          // steps so far in the open window
    size_t windows;         // complete windows since the last selection
    size_t selections;
    double *scores;         // (columns): importance, summed for the next selection
    double *chosen_mean;    // (tensors): mean magnitude of chosen columns' gradients, summed over
    double *rest_mean;      // the window's steps; rest_mean: of late columns' gradients
} ZenClock;

static ZenClock zen_clock(const ZenMap *map) {
    ZenClock clock = {.scores = ALLOC(double, map->columns + 2 * (size_t)map->count, "scores")};
    clock.chosen_mean = clock.scores + map->columns;
    clock.rest_mean = clock.chosen_mean + map->count;
    return clock;
}

static void zen_clock_free(ZenClock *clock) { free(clock->scores); }

// Is the coming step in the warm-up? In the warm-up each step is a window, and no update is late.
static bool zen_is_warm(const ZenConfig *c,
                        const ZenClock *clock) { return clock->warm < c->warmup; }

// Returns the first step of the warm-up whose gradients count for the first selection.
static size_t zen_scores_from(const ZenConfig *c) {
    const size_t window = c->window > 0 ? c->window : (size_t)ZEN_WINDOW_MOST;
    return c->warmup > window ? c->warmup - window : 0;
}

// Is the last window's update not yet used by forward? (After a selection no update is pending.)
static bool zen_is_late(const ZenConfig *c, const ZenClock *clock) {
    return c->overlap && clock->windows > 0;
}

// Would a checkpoint now lack something: an open window's gradients, or the warm-up's scores?
static bool zen_is_open(const ZenConfig *c, const ZenClock *clock) {
    return clock->filled > 0 || (zen_is_warm(c, clock) && clock->warm > zen_scores_from(c));
}

// Do the gradients of the coming step count for the next selection?
static bool zen_is_scoring(const ZenConfig *c, const ZenMap *map, const ZenClock *clock) {
    if (zen_is_warm(c, clock)) return map->mixed && clock->warm >= zen_scores_from(c);
    return map->mixed && clock->windows + 1 == c->reselect;
}

// Does the coming step need zen_sums() of its gradients?
static bool zen_needs_sums(const ZenConfig *c, const ZenMap *map, const ZenClock *clock) {
    return zen_is_scoring(c, map, clock)
        || (map->mixed && c->window == 0 && !zen_is_warm(c, clock));
}

// Returns how many numbers of a column the host needs: 1: norm; 2: norm and sum of magnitudes.
static size_t zen_numbers(const ZenConfig *c) { return c->window == 0 ? 2 : 1; }

// Do the gradients end the window ("Zen-auto")? A matrix votes for the end if a, the sum over the
// window's steps of the late columns' mean magnitude, is at least b, the mean over these steps of
// the chosen columns' mean magnitude. The window ends if a share c->agree of the matrices votes so.
// (The published code multiplies b by 1/(10k) at every step, and is right for k = 0.1 only.)
static bool zen_votes(const ZenConfig *c, const ZenMap *map, const ZenClock *clock, size_t steps) {
    size_t votes = 0, voters = 0;
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        if (!zen_is_mixed(z)) continue;
        voters++;
        votes += clock->rest_mean[i] * (double)steps >= clock->chosen_mean[i];
    }
    return (double)votes >= c->agree * (double)voters || steps >= ZEN_WINDOW_MOST;
}

// Adds a step's mean magnitudes of each matrix to clock: those of its chosen columns and those of
// its late columns. `sums` is explained at zen_turn().
static void zen_add_means(const ZenMap *map, ZenClock *clock, const float *sums, size_t ranks) {
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        if (!zen_is_mixed(z)) continue;
        double part[2] = {0, 0};
        bool *rest = (bool *)alloc_or_fail(z->cols, sizeof *rest, "selection");
        for (size_t j = z->chosen; j < z->cols; j++) rest[map->column[z->column_at + j]] = true;
        for (size_t k = 0; k < ranks; k++)
            for (size_t j = 0; j < z->cols; j++)  // in the order of columns, whatever their slots
                part[rest[j]] += sums[(2 * k + 1) * map->mixed + z->column_at + j];
        free(rest);
        clock->chosen_mean[i] += part[0] / (double)z->chosen;
        clock->rest_mean[i] += part[1] / (double)(z->cols - z->chosen);
    }
}

// The work at the end of a step, in this order. The chosen columns are updated. The late columns'
// gradients are added to the window's sum. If `closes`, forward gets the last window's update of
// late columns, and this window's update is computed. If `drains`, forward gets this window's
// update, too. If `selects`, columns are selected.
typedef struct {
    bool closes, drains, selects;
    size_t steps;  // steps of the window, including this one
} ZenTurn;

// Decides the work at the end of a step. The caller does this work, and then calls zen_turn_end().
// If zen_needs_sums(), first adds `sums` to clock's scores and means. sums (ranks, zen_numbers(),
// mixed) has the zen_sums() of each rank's rows; the ranks' sums are added in the ranks' order.
static ZenTurn zen_turn(const ZenConfig *c, const ZenMap *map, ZenClock *clock, const float *sums,
                        size_t ranks) {
    const bool warm = zen_is_warm(c, clock);
    ZenTurn turn = {.steps = clock->filled + 1};
    if (clock->filled == 0 && !warm)  // a window begins: clears scores and means
        memset(clock->scores, 0, (map->columns + 2 * (size_t)map->count) * sizeof(double));
    if (zen_is_scoring(c, map, clock))
        for (size_t j = 0; j < map->mixed; j++)
            for (size_t k = 0; k < ranks; k++) {
                const double norm = sums[k * zen_numbers(c) * map->mixed + j];
                clock->scores[j] += norm * norm;
            }
    if (c->window == 0 && zen_needs_sums(c, map, clock)) zen_add_means(map, clock, sums, ranks);
    turn.closes = warm || (c->window > 0 ? turn.steps >= c->window
                                         : !map->mixed || zen_votes(c, map, clock, turn.steps));
    turn.selects = map->mixed && (warm ? clock->warm + 1 == c->warmup
                                       : turn.closes && clock->windows + 1 == c->reselect);
    turn.drains = turn.closes && (warm || !c->overlap || turn.selects);
    return turn;
}

static void zen_turn_end(const ZenConfig *c, ZenClock *clock, const ZenTurn *turn) {
    const bool warm = zen_is_warm(c, clock);
    clock->warm += warm;
    clock->rest_t += turn->closes;
    clock->filled = turn->closes ? 0 : turn->steps;
    if (turn->closes && !warm) clock->windows++;
    if (turn->selects) {
        clock->windows = 0;
        clock->selections++;
    }
}

// AdamW's options for the steps of late columns.
typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    int moments_bf16, master_bf16;
} ZenRates;

// Returns AdamW's constants for an update of late columns by the sum of n steps' gradients. The
// constants scale this sum by 1 / n, and have the weight decay of n steps.
static AdamStep zen_rest_step(const ZenClock *clock, const ZenRates *r, size_t n) {
    AdamStep s = adam_step_prepare(r->lr, r->beta1, r->beta2, r->eps,
                                   r->weight_decay * (double)n, clock->rest_t + 1, 1 / (double)n);
    s.moments_bf16 = r->moments_bf16;
    s.master_bf16 = r->master_bf16;
    return s;
}

// ---------------------------------------------------------------------------------------------
// 4. The reference

// Arrays without a size have the arena's layout. If `half`, each number in `shown` can be stored as
// a half, and late columns' gradients are rounded to halves once per step.
typedef struct {
    ZenConfig config;
    ZenMap map;
    ZenClock clock;
    float *sums;             // (2, mixed)
    ZenSwap *swaps;          // (columns)
    float *master, *m, *v;   // newest weights, moments
    float *shown;            // weights that forward and backward use
    float *acc;              // late columns' gradients, summed over the window so far
    bool half;               // weights and gradients are stored as halves (bf16.h)
} ZenReference;

// Returns the weight that forward and backward use for a master weight.
static float zen_weight(const ZenReference *ref, float w) {
    return ref->half ? half_to_f32(master_weight(w)) : w;
}

// Makes the AdamW step of an element. Here, bf16 moments are stored as floats.
static void zen_adam(ZenReference *ref, const ZenTensor *z, size_t e, float g, const AdamStep *s,
                     size_t index) {
    const float decay = z->decay ? s->weight_decay : 0;
    uint16_t m = f32_to_bf16(ref->m[e]), v = f32_to_bf16(ref->v[e]);  // exact for bf16 moments
    float *master = &ref->master[e];
    if (s->moments_bf16) {
        adam_bf16(master, &m, &v, g, s, decay, (uint32_t)index);
        ref->m[e] = bf16_to_f32(m);
        ref->v[e] = bf16_to_f32(v);
    } else {
        adam_scalar(master, &ref->m[e], &ref->v[e], g, s, decay);
    }
    if (s->master_bf16) *master = bits_float(adam_weight(*master, s, (uint32_t)index));
    *master = master_rounded(*master);
}

// Makes a step by the whole gradient `grads`. now: AdamW's constants for the chosen columns; its
// grad_scale clips all gradients.
static void zen_reference_step(ZenReference *ref, const float *grads, const AdamStep *now,
                               const ZenRates *rates) {
    const ZenConfig *c = &ref->config;
    const float scale = now->grad_scale;
    if (zen_needs_sums(c, &ref->map, &ref->clock))
        for (int i = 0; i < ref->map.count; i++) {
            const ZenTensor *z = &ref->map.tensor[i];
            if (!zen_is_mixed(z)) continue;
            float *norms = ref->sums + z->column_at;
            zen_sums(norms, norms + ref->map.mixed, grads + z->at, 0, z->rows, z->cols);
        }
    const ZenTurn turn = zen_turn(c, &ref->map, &ref->clock, ref->sums, 1);
    const AdamStep late = zen_rest_step(&ref->clock, rates, turn.steps);
    #pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < ref->map.count; i++) {
        const ZenTensor *z = &ref->map.tensor[i];
        const int32_t *column = ref->map.column + z->column_at;
        for (size_t row = 0; row < z->rows; row++) {
            const size_t at = z->at + row * z->cols;
            for (size_t j = 0; j < z->chosen; j++) {
                const size_t e = at + (size_t)column[j];
                zen_adam(ref, z, e, grads[e], now, z->chosen_index + row * z->chosen + j);
                ref->shown[e] = zen_weight(ref, ref->master[e]);
            }
            for (size_t j = z->chosen; j < z->cols; j++) {
                const size_t e = at + (size_t)column[j];
                const float g = ref->half ? half_to_f32(f32_to_half(grads[e])) : grads[e];
                ref->acc[e] = ref->clock.filled == 0 ? mul_f32(scale, g)
                                                     : fma_f32(scale, g, ref->acc[e]);
            }
            for (size_t j = z->chosen; turn.closes && j < z->cols; j++) {
                const size_t e = at + (size_t)column[j];
                ref->shown[e] = zen_weight(ref, ref->master[e]);  // of the last window
                zen_adam(ref, z, e, ref->acc[e], &late,
                         z->rest_index + row * (z->cols - z->chosen) + j - z->chosen);
                if (turn.drains) ref->shown[e] = zen_weight(ref, ref->master[e]);
            }
        }
    }
    for (int i = 0; turn.selects && i < ref->map.count; i++) {
        const size_t n = zen_select(&ref->map, i, ref->clock.scores + ref->map.tensor[i].column_at,
                                    ref->swaps);
        zen_swap(&ref->map, i, ref->swaps, n);
    }
    zen_turn_end(c, &ref->clock, &turn);
}

#endif
