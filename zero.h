// zero.h: ZeRO (Rajbhandari et al. 2020): which rank owns which part of the model.
//
// The arena of parameters is a row of segments: the embeddings, each layer, the tail (model.h). A
// segment of n elements is dealt out to the R ranks in equal parts, its shards:
//
//     cut = ceil(n / R), rounded up to 128;  rank r owns elements [r cut, (r + 1) cut) below n
//
// Shards are equal, because reduce-scatter and all-gather move equal parts. Each segment is dealt
// out by itself, so that a layer's gradient can be reduced as soon as it is complete, and its
// weights gathered when they are needed. If R cut > n, the last ranks own less, or nothing.
// ZenFlow updates columns, and so needs shards of whole rows. With ZenFlow (argument `rows`) the
// shard of rank r begins with the row, or the vector, that element r n / R of the segment is in.
//
//   stage   on every rank, whole         a rank's shard alone      per parameter, R ranks, bf16
//   1       weights, gradients           state                     2 + 2 + 10 / R      bytes
//   2       weights                      gradients, state          2 + (2 + 10) / R
//   3       (some layers' weights)       everything                (2 + 2 + 10) / R
//
// State is m, v, and the 16 bits that a bf16 weight lacks of its fp32 master. In every stage the
// same reduce-scatter sums each gradient over the ranks, so all stages compute the same bits.
// zero.cuh has the collectives; doc/zero.md is the lesson.
#ifndef TIDE_ZERO_H
#define TIDE_ZERO_H
#include "adam.h"
#include "tide/base/model.h"

// Returns the elements of a shard of a segment of n elements.
static inline size_t zero_cut(size_t n, size_t world) {
    return round_up((n + world - 1) / world, ALIGN_ELEMENTS);
}

static inline int zero_segments(const GPT2Table *t) { return t->tensors[t->count - 1].layer + 2; }

// Finds segment s of the arena: sets *at to its begin, and returns its length.
static inline size_t zero_segment(const GPT2Table *t, int s, size_t *at) {
    const int tail = zero_segments(t) - 1, next = t->first_layer + s * t->per_layer;
    *at = s == 0 ? 0 : t->tensors[next - t->per_layer].offset;
    return (s < tail ? t->tensors[next].offset : t->elements) - *at;
}

// Returns where the shard of a rank begins, counted from the begin of segment s. A shard ends where
// the next rank's shard begins. If rank is `world`, returns the end of the segment.
static inline size_t zero_begin(const GPT2Table *t, int s, size_t world, size_t rank, bool rows) {
    size_t at;
    const size_t n = zero_segment(t, s, &at);
    if (rank >= world) return n;
    if (!rows) return min_size(rank * zero_cut(n, world), n);
    const size_t target = at + n / world * rank + n % world * rank / world;
    const GPT2Tensor *ten = &t->tensors[gpt2_tensor_at(t, target)];
    const size_t row = ten->rank < 2 ? 0 : (target - ten->offset) / ten->cols;
    const size_t begin = row * ten->cols;
    return ten->offset + (begin < ten->size ? begin : round_up(ten->size, ALIGN_ELEMENTS)) - at;
}

// Lists the ranges that a rank owns. A segment's shard never begins in a gap between tensors,
// because gaps are shorter than ALIGN_ELEMENTS. The caller frees map.shards.
static inline ShardMap zero_shards(const GPT2Table *t, size_t world, size_t rank, bool rows) {
    ShardMap map = {0, NULL, 0};
    size_t begin = 0, end = 0;  // the rank's part of the segment
    map.shards = (Shard *)alloc_or_fail((size_t)t->count, sizeof(Shard), "shard map");
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *ten = &t->tensors[i];
        if (i == 0 || ten->layer > t->tensors[i - 1].layer) {
            map.elements += end - begin;
            begin = ten->offset + zero_begin(t, ten->layer + 1, world, rank, rows);
            end = ten->offset + zero_begin(t, ten->layer + 1, world, rank + 1, rows);
        }
        const size_t from = ten->offset > begin ? ten->offset : begin;
        const size_t to = min_size(ten->offset + ten->size, end);
        if (from >= to) continue;
        const Shard own = {i, from - ten->offset, to - from, map.elements + (from - begin)};
        map.shards[map.count++] = own;
    }
    map.elements += end - begin;
    return map;
}

// Lists the ranges of a process without ZeRO: all tensors.
static inline ShardMap gpt2_shards_all(const GPT2Table *t) { return zero_shards(t, 1, 0, false); }

// Adds to counts (segments, world) the numbers of norm blocks in the ranks' shards of the segments.
// Returns the most blocks that a rank has.
static inline size_t zero_blocks(const GPT2Table *t, size_t world, bool rows, size_t *counts) {
    size_t most = 0;
    for (size_t r = 0; r < world; r++) {
        ShardMap map = zero_shards(t, world, r, rows);
        size_t blocks = 0;
        for (int i = 0; i < map.count; i++) {
            const size_t n = norm_blocks(map.shards[i].length);
            counts[(size_t)(t->tensors[map.shards[i].tensor].layer + 1) * world + r] += n;
            blocks += n;
        }
        if (blocks > most) most = blocks;
        free(map.shards);
    }
    return most;
}

// Fills `order` with the indices that all ranks' block sums have in an array (world, stride),
// sorted as in the arena: so all stages add up alike. counts: by zero_blocks().
static inline void zero_order(uint32_t *order, size_t stride, const size_t *counts, int segments,
                              size_t world) {
    size_t *taken = (size_t *)alloc_or_fail(world, sizeof(size_t), "gradient norm"), n = 0;
    for (int s = 0; s < segments; s++)
        for (size_t r = 0; r < world; r++)
            for (size_t i = 0; i < counts[(size_t)s * world + r]; i++)
                order[n++] = (uint32_t)(r * stride + taken[r]++);
    free(taken);
}

#endif
