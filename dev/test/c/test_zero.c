// test_zero.c: who owns what (zero.h), for presets and random models on 1 to 9 and on 64 ranks: the
// shards of all ranks are the model, once. (Pieces of what a rank owns: test_offload.c. The order
// of the gradient norm's blocks: test_zero_gpu.cu.)
#include "../../../zenflow.h"
#include "../../../zero.h"
#include "../test.h"

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
    memset(&c, 0, sizeof c);
    c.layers = 1 + random_below(5);
    c.heads = 1 + random_below(4);
    c.channels = c.heads * (1 + random_below(trial % 3 == 0 ? 300 : 20));
    c.ffn = random_below(2) ? 0 : 1 + random_below(3000);
    c.context = 1 + random_below(3000);
    c.vocab = 1 + random_below(3000);
    c.tied = (int)random_below(2);
    return c;
}

// Does a rank's part of a segment of n elements begin where it should: at the R-th equal part, in
// whole 128s; or, by rows, less than a row, or a vector and the gap behind it, before that part?
static bool is_fair(const GPT2Table *t, size_t at, size_t n, size_t begin, size_t rank, size_t world,
                    bool rows) {
    const size_t part = (size_t)((unsigned __int128)n * rank / world);
    const size_t cut = (n + world - 1) / world;
    if (!rows) return begin == min_size(n, rank * ((cut + 127) / 128 * 128));
    const GPT2Tensor *x = &t->tensors[gpt2_tensor_at(t, min_size(at + part, t->elements - 1))];
    return begin <= part + 128 && part < begin + 128 + (x->rank == 1 ? x->size : x->cols);
}

// ZenFlow's moments are rounded by numbers of elements that no two have, on no two ranks: of late
// columns, and behind them of the chosen, from row to row.
static void check_numbers(const GPT2Table *t, size_t layers, const ShardMap *own) {
    ZenMap map = zen_map(t, layers, 0.3, 0);
    zen_map_own(&map, own);
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        const ZenTensor *z = &map.tensor[i];
        const size_t rows = x->size / x->cols, late = z->cols - z->chosen;
        const size_t chosen = x->offset + rows * late;
        CHECK(z->rest_index == x->offset + z->row * late && z->rows <= rows - z->row
              && z->chosen_index == chosen + z->row * z->chosen, "%s of %zu layers, from row %zu",
              x->name, layers, z->row);
    }
    zen_map_free(&map);
}

// The shards of all ranks are each tensor once, without a gap; a rank's parts follow each other.
// Layers are cut alike.
static void check_partition(const GPT2Table *t, size_t layers, size_t world, bool rows) {
    const int segments = zero_segments(t);
    size_t *covered = ALLOC(size_t, (size_t)t->count, "tensors");
    char now[100];
    snprintf(now, sizeof now, "%zu layers, %zu elements, world %zu%s", layers, t->elements, world,
             rows ? ", by rows" : "");
    for (size_t r = 0; r < world; r++) {
        ShardMap map = zero_shards(t, world, r, rows);
        const Shard *own = map.shards, *end_of_own = own + map.count;
        size_t place = 0, at, next = 0;
        for (int s = 0; s < segments; s++) {
            const size_t n = zero_segment(t, s, &at);
            const size_t begin = zero_begin(t, s, world, r, rows);
            const size_t end = zero_begin(t, s, world, r + 1, rows);
            CHECK(at == next && (s + 1 < segments || at + n == t->elements)
                  && is_fair(t, at, n, begin, r, world, rows) && begin <= end
                  && (r > 0 || begin == 0) && (r + 1 < world || end == n),
                  "%s: segment %d: rank %zu's is %zu to %zu of %zu", now, s, r, begin, end, n);
            CHECK(s < 2 || s + 1 == segments || begin == zero_begin(t, 1, world, r, rows),
                  "%s: segment %d: another cut", now, s);
            const Shard *first = own;
            for (; own < end_of_own && t->tensors[own->tensor].layer + 1 == s; own++) {
                const GPT2Tensor *x = &t->tensors[own->tensor];
                const size_t from = x->offset + own->offset;
                CHECK(own->length > 0 && own->offset == covered[own->tensor]
                      && (!rows || own->offset % x->cols == 0)
                      && from >= at + begin && (own > first || from == at + begin)
                      && from + own->length <= at + end
                      && own->at == place + from - (at + begin), "%s: rank %zu, %s from %zu at %zu",
                      now, r, x->name, own->offset, own->at);
                covered[own->tensor] += own->length;
            }
            place += end - begin;
            next = at + n;
        }
        CHECK(own == end_of_own && map.elements == place, "%s: rank %zu owns %zu", now, r,
              map.elements);
        if (rows) check_numbers(t, layers, &map);
        free(map.shards);
    }
    for (int i = 0; i < t->count; i++)
        CHECK(covered[i] == t->tensors[i].size, "%s: %zu of %zu of %s", now, covered[i],
              t->tensors[i].size, t->tensors[i].name);
    free(covered);
}

// With ALL=1 on every number of ranks, else on one in ten of them, in turn.
static void shards_are_a_partition(void) {
    static const size_t worlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 64};
    const int presets = sizeof gpt2_presets / sizeof *gpt2_presets;
    for (int i = 0; i < presets + 300; i++) {
        GPT2Config c;
        Error err;
        if (i < presets) gpt2_preset(&c, gpt2_presets[i].name);
        else c = random_config(i);
        CHECK(gpt2_finish(&c, &err), "%s", err.text);
        GPT2Table t = gpt2_table(&c);
        for (int w = 0; w < 20; w++)
            if (test_whole() || (w / 2 + 3 * i) % 10 == 0)
                check_partition(&t, c.layers, worlds[w / 2], w % 2 == 1);
        free(t.tensors);
    }
}

int main(void) {
    RUN(shards_are_a_partition);
    return test_summary();
}
