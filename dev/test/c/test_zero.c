// test_zero.c: who owns what (zero.h), for presets and random models on 1 to 9 and on 64 ranks: the
// shards of all ranks are the model, once; their blocks of the gradient norm come together in the
// arena's order. (Pieces of what a rank owns: test_offload.c.)
#include "../../../zenflow.h"
#include "../../../zero.h"
#include "../test.h"

static const size_t worlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 64};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static uint64_t random_state = 88172645463325252u;
static size_t random_below(size_t n) {
    uint64_t *x = &random_state;
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return (size_t)(*x % n);
}

// Models whose channels are no multiple of 128, with tails shorter than a shard, and with heads of
// their own: any that the CPU trainer takes.
static GPT2Config random_config(int trial) {
    GPT2Config c;
    Error err;
    memset(&c, 0, sizeof c);
    c.layers = 1 + random_below(5);
    c.heads = 1 + random_below(4);
    c.channels = c.heads * (1 + random_below(trial % 3 == 0 ? 300 : 20));
    c.ffn = random_below(2) ? 0 : 1 + random_below(3000);
    c.context = 1 + random_below(3000);
    c.vocab = 1 + random_below(3000);
    c.tied = (int)random_below(2);
    if (!gpt2_finish(&c, &err)) printf("  %s\n", err.text);
    return c;
}

static const char *model_text(const GPT2Config *c, size_t world, bool rows) {
    static char text[160];
    snprintf(text, sizeof text, "%zu layers, %zu channels, ffn %zu, context %zu, vocab %zu, "
             "%stied, world %zu%s", c->layers, c->channels, c->ffn, c->context, c->vocab,
             c->tied ? "" : "un", world, rows ? ", between rows" : "");
    return text;
}

// Calls check(config, table, world, rows) for every preset and for random models; with ALL=1 on
// every number of ranks, else on one in ten of them, in turn.
static void for_models(int trials, void (*check)(const GPT2Config *, const GPT2Table *, size_t,
                                                 bool)) {
    const int presets = sizeof gpt2_presets / sizeof *gpt2_presets;
    for (int i = 0; i < presets + trials; i++) {
        GPT2Config c;
        Error err;
        if (i < presets) gpt2_preset(&c, gpt2_presets[i].name);
        else c = random_config(i);
        if (i < presets) gpt2_finish(&c, &err);
        GPT2Table t = gpt2_table(&c);
        for (int w = 0; w < 2 * WORLDS; w++)
            if (test_whole() || (w / 2 + 3 * i) % WORLDS == 0)
                check(&c, &t, worlds[w / 2], w % 2 == 1);
        gpt2_table_free(&t);
    }
}

// ---------------------------------------------------------------------------------------------
// The shards

// Where segment s begins: the embeddings, layer s - 1, the tail, and the end.
static size_t table_begin(const GPT2Table *t, int s) {
    for (int i = 0; i < t->count; i++)
        if (t->tensors[i].layer + 1 == s) return t->tensors[i].offset;
    return t->elements;
}

static const GPT2Tensor *tensor_of(const GPT2Table *t, size_t at) {
    int i = 0;
    while (i + 1 < t->count && t->tensors[i + 1].offset <= at) i++;
    return &t->tensors[i];
}

// Is this where the row begins in which `part` is, or that behind the gap, if that is a matrix's? A
// vector, with the gap behind it, is one row.
static bool is_row_of(const GPT2Table *t, size_t begin, size_t part) {
    const GPT2Tensor *x = tensor_of(t, part);
    if (x->rank == 1) return begin == x->offset;
    if (part >= x->offset + x->size) return begin == (x->offset + x->size + 127) / 128 * 128;
    return begin <= part && part - begin < x->cols && (begin - x->offset) % x->cols == 0;
}

// A shard is the R-th part of a segment, in whole 128s; or begins with the row in which that part
// would begin. Layers are cut alike.
static void check_segments(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    const int segments = zero_segments(t);
    CHECK(segments == (int)c->layers + 2, "%s: %d segments", model_text(c, world, rows), segments);
    for (int s = 0; s < segments; s++) {
        size_t at, before = 0;
        const size_t n = zero_segment(t, s, &at);
        CHECK(at == table_begin(t, s) && n == table_begin(t, s + 1) - at, "%s: segment %d is %zu "
              "at %zu", model_text(c, world, rows), s, n, at);
        for (size_t r = 0; r <= world; r++) {
            const size_t begin = zero_begin(t, s, world, r, rows), cut = zero_cut(n, world);
            const size_t part = (size_t)((unsigned __int128)n * r / world);
            bool fair = begin == (r * cut < n ? r * cut : n);
            if (rows) fair = is_row_of(t, at + begin, at + part);
            if (r == 0 || r == world) fair = begin == (r == 0 ? 0 : n);
            CHECK(fair && begin >= before, "%s: segment %d: rank %zu's begins at %zu",
                  model_text(c, world, rows), s, r, begin);
            CHECK(cut % 128 == 0 && cut * world >= n && (cut - 128) * world < n, "%s: cut %zu",
                  model_text(c, world, rows), cut);
            CHECK(s < 2 || s + 1 == segments || begin == zero_begin(t, 1, world, r, rows),
                  "%s: segment %d: another cut", model_text(c, world, rows), s);
            before = begin;
        }
    }
}

static size_t arena_of(const GPT2Table *t, const Shard *s) {
    return t->tensors[s->tensor].offset + s->offset;
}

// Within each tensor the shards of all ranks follow each other without a gap; each is where its
// rank's part of the segment is, and what a rank owns of a segment begins with an element. One rank
// owns every tensor whole. Memory: a rank owns the R-th part of each segment, and at most 128
// elements more, rank 0 the most; or, cut between rows, at most a row more, with the gap behind it.
static void check_partition(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    const int segments = zero_segments(t);
    size_t *covered = (size_t *)alloc_or_fail((size_t)t->count, sizeof(size_t), "tensors"), all = 0;
    size_t first = 0, more = 128;
    for (int i = 0; i < t->count && rows; i++) {
        const size_t row = (t->tensors[i].cols + 127) / 128 * 128 + 128;
        if (row > more) more = row;
    }
    for (size_t r = 0; r < world; r++) {
        ShardMap map = zero_shards(t, world, r, rows);
        int segment = -1;
        if (r == 0) first = map.elements;
        CHECK(map.elements <= t->elements / world + more * (size_t)segments
              && (rows || map.elements <= first), "%s: rank %zu owns %zu",
              model_text(c, world, rows), r, map.elements);
        CHECK(world > 1 || map.count == t->count, "%s: %d shards", model_text(c, world, rows),
              map.count);
        size_t before = 0, place = 0, begin = 0, end = 0;  // of the rank's part, and in its space
        for (int i = 0; i < map.count; i++) {
            const Shard *s = &map.shards[i];
            const GPT2Tensor *y = &t->tensors[s->tensor];
            const size_t at = arena_of(t, s);
            while (segment < y->layer + 1) {
                place += end - begin;
                const size_t from = table_begin(t, ++segment);
                begin = from + zero_begin(t, segment, world, r, rows);
                end = from + zero_begin(t, segment, world, r + 1, rows);
                CHECK(segment < y->layer + 1 || at == begin, "%s: rank %zu begins segment %d in a "
                      "gap", model_text(c, world, rows), r, segment);
            }
            CHECK(s->length > 0 && s->offset == covered[s->tensor] && s->decay == y->decay
                  && (!rows || s->offset % y->cols == 0), "%s: rank %zu, %s from %zu, not %zu",
                  model_text(c, world, rows), r, y->name, s->offset, covered[s->tensor]);
            CHECK(at >= begin && at + s->length <= end && s->at == place + (at - begin)
                  && s->at >= before, "%s: rank %zu, %s at %zu", model_text(c, world, rows), r,
                  y->name, s->at);
            before = s->at + s->length;
            covered[s->tensor] += s->length;
        }
        CHECK(map.elements >= before, "%s: rank %zu", model_text(c, world, rows), r);
        all += map.elements;
        free(map.shards);
    }
    for (int i = 0; i < t->count; i++)
        CHECK(covered[i] == t->tensors[i].size, "%s: %zu of %zu of %s", model_text(c, world, rows),
              covered[i], t->tensors[i].size, t->tensors[i].name);
    CHECK(all == t->elements, "%s: %zu of %zu with gaps", model_text(c, world, rows), all,
          t->elements);
    free(covered);
}

static void segments_are_cut_as_defined(void) { for_models(300, check_segments); }
static void shards_are_a_partition(void) { for_models(300, check_partition); }

// ---------------------------------------------------------------------------------------------
// The gradient norm

// Where in the arena each block of the norm begins.
static size_t block_places(double *places, const GPT2Table *t, const ShardMap *map) {
    size_t n = 0;
    for (int i = 0; i < map->count; i++)
        for (size_t at = 0; at < map->shards[i].length; at += NORM_BLOCK)
            places[n++] = (double)(arena_of(t, &map->shards[i]) + at);
    return n;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Each rank's blocks, behind a head that is not one, come into the order of the arena.
static void check_order(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    enum { HEAD = 3 };
    if (t->elements > (size_t)2e9) return;  // blocks enough
    const int segments = zero_segments(t);
    size_t *counts = (size_t *)alloc_or_fail((size_t)segments * world, sizeof(size_t), "counts");
    memset(counts, 0xff, (size_t)segments * world * sizeof *counts);
    const size_t most = zero_blocks(t, world, rows, counts), stride = HEAD + most;
    double *all = (double *)alloc_or_fail(stride * world, sizeof(double), "sums");
    double *wanted = (double *)alloc_or_fail(most * world, sizeof(double), "sums");
    uint32_t *order = (uint32_t *)alloc_or_fail(most * world, sizeof(uint32_t), "sums");
    size_t longest = 0, places = 0;
    for (size_t i = 0; i < stride * world; i++) all[i] = -1;
    for (size_t r = 0; r < world; r++) {
        ShardMap map = zero_shards(t, world, r, rows);
        size_t blocks = 0;
        for (int i = 0; i < map.count; i++) blocks += norm_blocks(map.shards[i].length);
        CHECK(blocks <= most, "%s: rank %zu has %zu blocks of at most %zu",
              model_text(c, world, rows), r, blocks, most);
        if (blocks <= most) block_places(all + r * stride + HEAD, t, &map);
        if (blocks <= most) places += block_places(wanted + places, t, &map);
        if (blocks > longest) longest = blocks;
        free(map.shards);
    }
    CHECK(longest == most, "%s: at most %zu, not %zu", model_text(c, world, rows), longest, most);
    qsort(wanted, places, sizeof *wanted, ascending);
    const size_t n = zero_order(order, stride, counts, segments, world);
    CHECK(n == places, "%s: %zu blocks", model_text(c, world, rows), n);
    for (size_t i = 0; i < n; i++) {
        const double at = all[HEAD + order[i]];
        if (at == wanted[i] && (i == 0 || at > wanted[i - 1])) continue;
        CHECK(at == wanted[i], "%s: block %zu is the one at %g, not at %g",
              model_text(c, world, rows), i, at, wanted[i]);
        CHECK(i == 0 || at > wanted[i - 1], "%s: block %zu", model_text(c, world, rows), i);
        break;
    }
    free(counts);
    free(all);
    free(wanted);
    free(order);
}

static void blocks_come_in_the_arenas_order(void) { for_models(60, check_order); }

// ---------------------------------------------------------------------------------------------
// ZenFlow's numbers

// Moments are rounded by numbers of elements that no two have, on no two ranks: of the rest's, and
// behind them of the chosen's, from row to row.
static void check_numbers(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    if (!rows) return;
    for (size_t r = 0; r < world; r++) {
        ShardMap shards = zero_shards(t, world, r, true);
        ZenMap map = zen_map(t, c->layers, 0.3, 0);
        zen_map_own(&map, &shards);
        for (int i = 0; i < t->count; i++) {
            const GPT2Tensor *x = &t->tensors[i];
            const ZenTensor *z = &map.tensor[i];
            const size_t rest = z->cols - z->chosen, chosen = x->offset + x->rows_padded * rest;
            CHECK(z->rest_index == x->offset + z->row * rest
                  && z->rest_index + z->rows * rest <= chosen
                  && z->chosen_index == chosen + z->row * z->chosen
                  && z->chosen_index + z->rows * z->chosen <= x->offset + x->rows_padded * x->cols,
                  "%s: %s of rank %zu", model_text(c, world, rows), x->name, r);
        }
        zen_map_free(&map);
        free(shards.shards);
    }
}

static void every_element_has_a_number(void) { for_models(100, check_numbers); }

int main(void) {
    RUN(segments_are_cut_as_defined);
    RUN(shards_are_a_partition);
    RUN(blocks_come_in_the_arenas_order);
    RUN(every_element_has_a_number);
    return test_summary();
}
