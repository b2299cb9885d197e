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

static char now[160];  // the model that is checked, on how many ranks

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
            if (test_whole() || (w / 2 + 3 * i) % WORLDS == 0) {
                snprintf(now, sizeof now, "%zu layers, %zu channels, ffn %zu, context %zu, vocab "
                         "%zu, %stied, world %zu%s", c.layers, c.channels, c.ffn, c.context,
                         c.vocab, c.tied ? "" : "un", worlds[w / 2], w % 2 ? ", by rows" : "");
                check(&c, &t, worlds[w / 2], w % 2 == 1);
            }
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

// Is this where the row begins in which `part` is, or that behind the gap, if that is a matrix's? A
// vector, with the gap behind it, is one row.
static bool is_row_of(const GPT2Table *t, size_t begin, size_t part) {
    int i = 0;
    while (i + 1 < t->count && t->tensors[i + 1].offset <= part) i++;
    const GPT2Tensor *x = &t->tensors[i];
    if (x->rank == 1) return begin == x->offset;
    if (part >= x->offset + x->size) return begin == (x->offset + x->size + 127) / 128 * 128;
    return begin <= part && part - begin < x->cols && (begin - x->offset) % x->cols == 0;
}

static size_t arena_of(const GPT2Table *t, const Shard *s) {
    return t->tensors[s->tensor].offset + s->offset;
}

// Is a rank's part of segment s, of n elements at `at`, the R-th part of it, in whole 128s; or does it
// begin with the row in which that part would begin?
static bool is_fair(const GPT2Table *t, size_t at, size_t n, size_t begin, size_t rank, size_t world,
                    bool rows) {
    const size_t cut = zero_cut(n, world), part = (size_t)((unsigned __int128)n * rank / world);
    if (cut % 128 != 0 || cut * world < n || (cut - 128) * world >= n) return false;
    if (rank == 0 || rank == world) return begin == (rank == 0 ? 0 : n);
    return rows ? is_row_of(t, at + begin, at + part) : begin == (rank * cut < n ? rank * cut : n);
}

// The shards of all ranks are each tensor once, without a gap. Each is where its rank's part of the
// segment is, which begins with an element; a rank's parts follow each other. Layers are cut alike.
static void check_partition(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    const int segments = zero_segments(t);
    size_t *covered = ALLOC(size_t, (size_t)t->count, "tensors");
    CHECK(segments == (int)c->layers + 2, "%s: %d segments", now, segments);
    for (size_t r = 0; r < world; r++) {
        ShardMap map = zero_shards(t, world, r, rows);
        const Shard *own = map.shards, *end_of_own = own + map.count;
        size_t place = 0, at;
        for (int s = 0; s < segments; s++) {
            const size_t n = zero_segment(t, s, &at);
            const size_t begin = zero_begin(t, s, world, r, rows);
            const size_t end = zero_begin(t, s, world, r + 1, rows);
            CHECK(at == table_begin(t, s) && n == table_begin(t, s + 1) - at, "%s: segment %d is %zu at "
                  "%zu", now, s, n, at);
            CHECK(begin <= end && is_fair(t, at, n, begin, r, world, rows)
                  && is_fair(t, at, n, end, r + 1, world, rows), "%s: segment %d: rank %zu's is "
                  "%zu to %zu", now, s, r, begin, end);
            CHECK(s < 2 || s + 1 == segments || begin == zero_begin(t, 1, world, r, rows),
                  "%s: segment %d: another cut", now, s);
            for (bool first = true; own < end_of_own; own++, first = false) {
                const GPT2Tensor *x = &t->tensors[own->tensor];
                const size_t from = arena_of(t, own);
                if (x->layer + 1 != s) break;
                CHECK(!first || from == at + begin, "%s: rank %zu begins %d in a gap", now, r, s);
                CHECK(own->length > 0 && own->offset == covered[own->tensor]
                      && own->decay == x->decay && (!rows || own->offset % x->cols == 0),
                      "%s: rank %zu, %s from %zu", now, r, x->name, own->offset);
                CHECK(from + own->length <= at + end && own->at == place + from - (at + begin),
                      "%s: rank %zu, %s at %zu", now, r, x->name, own->at);
                covered[own->tensor] += own->length;
            }
            place += end - begin;
        }
        CHECK(own == end_of_own && map.elements == place, "%s: rank %zu owns %zu", now, r,
              map.elements);
        free(map.shards);
    }
    for (int i = 0; i < t->count; i++)
        CHECK(covered[i] == t->tensors[i].size, "%s: %zu of %zu of %s", now, covered[i],
              t->tensors[i].size, t->tensors[i].name);
    free(covered);
}

static void shards_are_a_partition(void) { for_models(300, check_partition); }

// ---------------------------------------------------------------------------------------------
// The gradient norm

// Each rank's blocks, behind a head that is not one, come into the order of the arena.
static void check_order(const GPT2Config *c, const GPT2Table *t, size_t world, bool rows) {
    enum { HEAD = 3 };
    (void)c;
    if (t->elements > (size_t)2e9) return;  // blocks enough
    const int segments = zero_segments(t);
    size_t *counts = ALLOC(size_t, (size_t)segments * world, "counts");
    const size_t most = zero_blocks(t, world, rows, counts), stride = HEAD + most;
    size_t *places = ALLOC(size_t, stride * world, "places");  // in the arena
    uint32_t *order = ALLOC(uint32_t, most * world, "order");
    size_t longest = 0, all = 0;
    for (size_t r = 0; r < world; r++) {
        ShardMap map = zero_shards(t, world, r, rows);
        size_t blocks = 0;
        for (const Shard *s = map.shards; s < map.shards + map.count; s++)
            for (size_t at = 0; at < s->length; at += NORM_BLOCK, blocks++)
                if (blocks < most) places[r * stride + HEAD + blocks] = 1 + arena_of(t, s) + at;
        longest = max_size(longest, blocks);
        all += blocks;
        free(map.shards);
    }
    CHECK(longest == most, "%s: at most %zu, not %zu", now, longest, most);
    const size_t n = zero_order(order, stride, counts, segments, world);
    CHECK(n == all, "%s: %zu blocks of %zu", now, n, all);
    for (size_t i = 0, before = 0; i < n; before = places[HEAD + order[i++]])
        CHECK(places[HEAD + order[i]] > before, "%s: block %zu", now, i);
    free(counts);
    free(places);
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
                  "%s: %s of rank %zu", now, x->name, r);
        }
        zen_map_free(&map);
        free(shards.shards);
    }
}

static void every_element_has_a_number(void) { for_models(100, check_numbers); }

int main(void) {
    RUN(shards_are_a_partition);
    RUN(blocks_come_in_the_arenas_order);
    RUN(every_element_has_a_number);
    return test_summary();
}
