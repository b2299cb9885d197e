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
// By other means: what zero.h says of itself

// Where segment s begins: the embeddings, layer s - 1, the tail, and the end.
static size_t table_begin(const GPT2Table *t, int s) {
    for (int i = 0; i < t->count; i++)
        if (t->tensors[i].layer + 1 == s) return t->tensors[i].offset;
    return t->elements;
}

// Where segment s would be cut for rank r, for equal parts of whole 128s.
static size_t cut_at(size_t n, size_t world, size_t r) {
    size_t cut = 128;
    while (cut * world < n) cut += (n - cut * world + 128 * world - 1) / (128 * world) * 128;
    return r * cut < n ? r * cut : n;
}

// The same between rows: the one in which the r-th part would begin. A vector, with the gap behind
// it, is one.
static size_t row_at(const GPT2Table *t, int s, size_t n, size_t world, size_t r) {
    const size_t begin = table_begin(t, s);
    const size_t target = begin + (size_t)((unsigned __int128)n * r / world);
    size_t best = begin;
    for (int i = 0; i < t->count && t->tensors[i].offset <= target; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        if (x->layer + 1 != s) continue;
        best = x->offset;
        if (x->rank == 1) continue;
        while (best + x->cols <= target && best < x->offset + x->size) best += x->cols;
        if (best == x->offset + x->size) best = (best + 127) / 128 * 128;
    }
    return best - begin;
}

// Where segments begin, (segments + 1), and in each the ranks' shards, (segments, world + 1).
typedef struct { int segments; size_t world, *begin, *shard; } Cuts;

static Cuts cuts_of(const GPT2Table *t, size_t world, bool rows) {
    Cuts x;
    x.segments = 2;
    x.world = world;
    for (int i = 0; i < t->count; i++) x.segments += t->tensors[i].kind == LN_1_W;
    const size_t segments = (size_t)x.segments;
    x.begin = (size_t *)alloc_or_fail(segments + 1, sizeof(size_t), "segments");
    x.shard = (size_t *)alloc_or_fail(segments * (world + 1), sizeof(size_t), "segments");
    for (int s = 0; s <= x.segments; s++) x.begin[s] = table_begin(t, s);
    for (int s = 0; s < x.segments; s++) {
        const size_t n = x.begin[s + 1] - x.begin[s];
        size_t *shard = x.shard + (size_t)s * (world + 1);
        const bool layer = s > 1 && s < x.segments - 1;  // they are alike
        for (size_t r = 0; r < world; r++)
            shard[r] = layer ? shard[r - world - 1]
                     : rows ? row_at(t, s, n, world, r) : cut_at(n, world, r);
        shard[world] = n;
    }
    return x;
}

static void cuts_free(Cuts *x) {
    free(x->begin);
    free(x->shard);
}

// Of a segment, where a rank's shard begins; and where it is in the rank's shard space: behind what
// the rank owns of the segments before.
static size_t shard_of(const Cuts *x, int s, size_t rank, size_t *place) {
    *place = 0;
    for (int k = 0; k < s; k++) {
        const size_t *shard = x->shard + (size_t)k * (x->world + 1) + rank;
        *place += shard[1] - shard[0];
    }
    return x->begin[s] + x->shard[(size_t)s * (x->world + 1) + rank];
}

// ---------------------------------------------------------------------------------------------
// The shards

static size_t arena_of(const GPT2Table *t, const Shard *s) {
    return t->tensors[s->tensor].offset + s->offset;
}

static void check_segments(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    Cuts x = cuts_of(t, world, rows);
    CHECK(zero_segments(t) == x.segments, "%s: %d segments", model_text(c, world, rows),
          zero_segments(t));
    for (int s = 0; s < x.segments; s++) {
        size_t at;
        const size_t n = zero_segment(t, s, &at), *shard = x.shard + (size_t)s * (world + 1);
        CHECK(at == x.begin[s] && n == x.begin[s + 1] - at, "%s: segment %d is %zu at %zu",
              model_text(c, world, rows), s, n, at);
        for (size_t r = 0; r <= world; r++) {
            const size_t begin = zero_begin(t, s, world, r, rows);
            CHECK(begin == shard[r], "%s: segment %d: rank %zu's begins at %zu, not %zu",
                  model_text(c, world, rows), s, r, begin, shard[r]);
            CHECK(rows || begin == n || begin == r * zero_cut(n, world), "%s: cut %zu",
                  model_text(c, world, rows), zero_cut(n, world));
        }
    }
    cuts_free(&x);
}

// Within each tensor the shards of all ranks follow each other without a gap; each is where the
// definition says, and what a rank owns of a segment begins with an element. One rank owns every
// tensor whole. Memory: a rank owns the R-th part of each segment, and at most 128 elements more,
// rank 0 the most; or, cut between rows, at most a row more, with the gap behind it.
static void check_partition(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    Cuts x = cuts_of(t, world, rows);
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
        CHECK(map.elements <= t->elements / world + more * (size_t)x.segments
              && (rows || map.elements <= first), "%s: rank %zu owns %zu",
              model_text(c, world, rows), r, map.elements);
        CHECK(world > 1 || map.count == t->count, "%s: %d shards", model_text(c, world, rows),
              map.count);
        size_t before = 0;
        for (int i = 0; i < map.count; i++) {
            const Shard *s = &map.shards[i];
            const GPT2Tensor *y = &t->tensors[s->tensor];
            const size_t at = arena_of(t, s);
            size_t place, next;
            const size_t begin = shard_of(&x, y->layer + 1, r, &place);
            const size_t end = shard_of(&x, y->layer + 1, r + 1, &next);
            CHECK(s->length > 0 && s->offset == covered[s->tensor] && s->decay == y->decay
                  && (!rows || s->offset % y->cols == 0), "%s: rank %zu, %s from %zu, not %zu",
                  model_text(c, world, rows), r, y->name, s->offset, covered[s->tensor]);
            CHECK(at >= begin && at + s->length <= end && s->at == place + (at - begin)
                  && s->at >= before, "%s: rank %zu, %s at %zu", model_text(c, world, rows), r,
                  y->name, s->at);
            CHECK(y->layer + 1 == segment || at == begin, "%s: rank %zu begins segment %d in a gap",
                  model_text(c, world, rows), r, y->layer + 1);
            segment = y->layer + 1;
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
    cuts_free(&x);
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
