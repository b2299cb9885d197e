// offload.h: where the optimizer's state lives, and who updates it.
//
// The state of AdamW (m, v, and what the master weights have besides the weights: 10 bytes per
// parameter, or 6) is cut into sub-groups, and those into pieces. A piece's state lives on the GPU
// or on the host; the GPU or the CPU updates it. Here it is decided which, by pure functions of the
// model and of what was asked for: the trainer, its memory plan, the predictions of --plan and the
// tests all follow the same list. gpt2_update() in train_gpt2.cu works through the list.
//
//   mode         residents       the others' state is on the host, and updated by
//   none         everything
//   zero         nothing         the CPU (ZeRO-Offload: Ren et al. 2021)
//   twinflow     a share         the CPU (ZeRO-Offload++)
//   interleave   perhaps         the CPU and, travelling there and back, the GPU (Deep Optimizer
//                                States: Maurya et al. 2024), by stride or by share
//
// Whoever updates a piece, the bits are the same (adam.h): no choice made here changes a result.
#ifndef TIDE_OFFLOAD_H
#define TIDE_OFFLOAD_H
#include "tide/base/util.h"
#include "adam.h"
#include "tide/base/model.h"

// The option's values, by OFFLOAD_*. "auto" is replaced by another one before anything is cut.
static const char *const offload_names[] = {"auto", "none", "zero", "twinflow", "interleave",
                                            "zenflow"};

enum { SUBGROUP_PARAMETERS = 100000000 };  // at most, in one: Deep Optimizer States, 5.3

typedef struct {
    int mode;
    double resident;     // share of the state that stays on the GPU
    size_t stride;       // every stride-th sub-group visits the GPU; 0: `share` decides
    double share;        // share of the bytes that are not resident which visits the GPU
    size_t subgroup;     // elements; 0: layers, in equal parts of at most SUBGROUP_PARAMETERS
    int slots;           // rooms on the GPU for visiting state; 0: auto, LEAST_SLOTS until settled
    int grad_rooms;      // rooms on the GPU in which layers' gradients are made in turns, unless
                         // they wait there for the update; 0: auto, LEAST_ROOMS until settled
    int kept_grads;      // visiting pieces, from the arena's begin on, whose gradients wait on the
                         // GPU, not on the host: backward makes those last, and the update needs
                         // them first, but for `early`. -1: as many as fit; none until settled
    int recompute;       // what backward makes again: RECOMPUTE_*
    bool apart;          // with everything on the GPU: gradients wait in the room of dead
                         // activations, as far as it goes, and not where backward makes them
    bool sum_on_host;    // the host adds the micro-batches' gradients of pieces that it updates
    int early;           // number of segments, counted from the last one, that are updated before
                         // the others: their gradients are the first to reach the host
    bool wire_f32;       // gradients cross the link as fp32
    int streamed;        // layers whose weights are stored on the host, and copied for each use:
                         // first of all the layers without residents
    int weight_rooms;    // rooms that such layers' weights, in ZeRO-3 all layers', take turns in;
                         // 0: auto, LEAST_ROOMS until settled
} OffloadChoice;

enum { LEAST_SLOTS = 3, LEAST_ROOMS = 2, KEEP_ALL = 1 << 20 };

// Returns the number of rooms: `chosen` (0: auto), but never more than there are tenants.
static int rooms_of(int chosen, int least, int tenants) {
    const int n = chosen > 0 ? chosen : least;
    return n < tenants ? n : tenants;
}

enum { PIECE_HOST,       // state on the host, updated by the CPU
       PIECE_VISIT,      // state on the host, updated on the GPU
       PIECE_RESIDENT,   // state on the GPU, updated there
       PIECE_CHOSEN,     // zenflow.h: columns of a segment; packed state on the GPU, updated there
       PIECE_LATE,       // the others; packed state on the host, updated when a window closes
       PIECE_KINDS };

// A range of the shard space in a segment (embeddings, layer or tail) that is updated in one go.
typedef struct {
    int kind, segment, subgroup;
    size_t at, length;       // elements of the shard space (model.h), gaps between tensors included
    int first_run, runs;     // its tensors or parts of them, in Pieces.runs; AdamRun.at counts
                             // from the piece's begin
    size_t first_block, blocks;  // its blocks of the gradient norm, which no cut ever divides
    size_t state_at;         // its begin in the state of all pieces on its side, in elements
    bool grad_on_gpu;        // its gradient waits for the update on the GPU, not on the host
    size_t grad_at;          // its begin in the gradients that wait on that side, in elements
    size_t weights_at;       // its begin in the weights that the host updates or stores
    bool over_acts;          // the gradient lies over the layer's activations; grad_at: in bytes
    // Addresses, which the trainer sets once, when there is memory. floatX is its storage type.
    void *params;            // weights for forward and backward: floatX; on the host if they stream
    void *weights;           // weights that AdamW updates: those, or if the CPU does, the host's
    // The route of its gradient; NULL: it is not there.
    void *made;              // where backward makes it: floatX
    void *grad, *host_grad;  // where it waits, or is summed, on each side: floatX or fp32
    void *normed;            // of what the GPU computes its norm
    void *leaves;            // from where it is copied to the host (PIECE_LATE: packed first)
    void *state[3];          // the masters' other bits (NULL in fp32), m and v; on GPU or host
} Piece;

typedef struct {
    int count, subgroups, run_count;
    size_t blocks;                   // of the gradient norm
    Piece *pieces;                   // in the arena's order, which is that of the forward pass
    AdamRun *runs;
    size_t elements[PIECE_KINDS];    // in pieces of each kind
    int visits;                      // visiting pieces,
    size_t longest_visit;            // elements of the longest
    size_t grads_gpu, grads_host;    // elements of gradients that wait on the GPU, on the host
} Pieces;

// The shards, with the gaps behind them, are half-open ranges of the shard space.
static size_t shard_begin(const ShardMap *map, int i) {
    return i < map->count ? map->shards[i].at : map->elements;
}

static int shard_at(const ShardMap *map, size_t at) {
    int i = 0, above = map->count;
    while (above - i > 1) {
        const int middle = (i + above) / 2;
        if (map->shards[middle].at <= at) i = middle;
        else above = middle;
    }
    return i;
}

static int shard_segment(const GPT2Table *t, const ShardMap *map, int i) {
    return t->tensors[map->shards[i].tensor].layer + 1;
}

// Returns the segment that holds element `at`, and what this process owns of it: [*begin, *end).
static int shard_segment_range(const GPT2Table *t, const ShardMap *map, size_t at,
                                      size_t *begin, size_t *end) {
    int first = shard_at(map, at), last = first + 1;
    const int segment = shard_segment(t, map, first);
    while (first > 0 && shard_segment(t, map, first - 1) == segment) first--;
    while (last < map->count && shard_segment(t, map, last) == segment) last++;
    *begin = shard_begin(map, first);
    *end = shard_begin(map, last);
    return segment;
}

// The place nearest to `at` where the shard space may be cut: the begin of a shard, or a whole
// number of norm blocks behind one. Sums of squares of one block then never come from two places.
static size_t legal_cut(const ShardMap *map, size_t at) {
    if (at >= map->elements) return map->elements;
    const int i = shard_at(map, at);
    const size_t begin = shard_begin(map, i), end = shard_begin(map, i + 1);
    if (at <= begin) return begin;
    size_t below = begin + (at - begin) / NORM_BLOCK * NORM_BLOCK, above = below + NORM_BLOCK;
    if (below >= begin + map->shards[i].length) below = begin;  // in the gap
    if (above >= begin + map->shards[i].length) above = end;
    return at - below <= above - at ? below : above;
}

// Appends a sub-group, in a piece for each segment that it reaches into; with what is in each, and
// where its state and its gradient are among those of their kind.
static void pieces_add(Pieces *list, const GPT2Table *t, const ShardMap *map,
                       const OffloadChoice *c, int kind, size_t at, size_t end) {
    const int subgroup = list->subgroups++;
    while (at < end) {
        size_t begin, segment_end;
        Piece *p = &list->pieces[list->count++];
        p->kind = kind;
        p->segment = shard_segment_range(t, map, at, &begin, &segment_end);
        p->subgroup = subgroup;
        p->at = at;
        p->length = min_size(end, segment_end) - at;
        p->first_run = list->run_count;
        p->first_block = list->blocks;
        at += p->length;
        for (int i = shard_at(map, p->at); i < map->count && map->shards[i].at < at; i++) {
            const Shard *s = &map->shards[i];
            const size_t from = s->at > p->at ? s->at : p->at, to = min_size(s->at + s->length, at);
            if (from >= to) continue;  // the gap behind it
            const AdamRun run = {from - p->at, to - from, s->decay,
                                 t->tensors[s->tensor].offset + s->offset + (from - s->at)};
            list->runs[list->run_count++] = run;
            list->blocks += norm_blocks(to - from);
        }
        p->runs = list->run_count - p->first_run;
        p->blocks = list->blocks - p->first_block;
        size_t *const n = list->elements;
        p->state_at = kind == PIECE_RESIDENT ? n[kind] : n[PIECE_HOST] + n[PIECE_VISIT];
        n[kind] += p->length;
        p->grad_on_gpu = kind == PIECE_RESIDENT
                      || (kind == PIECE_VISIT && list->visits++ < c->kept_grads);
        size_t *grads = p->grad_on_gpu ? &list->grads_gpu : &list->grads_host;
        p->grad_at = *grads;
        *grads += p->length;
        if (kind == PIECE_VISIT && p->length > list->longest_visit)
            list->longest_visit = p->length;
    }
}

// Finds the end of the sub-group that begins at `at`.
static size_t subgroup_end(const GPT2Table *t, const ShardMap *map, size_t size, size_t at) {
    if (size > 0) {  // flat: at multiples of `size` from the begin of the shard space
        for (size_t next = (at / size + 1) * size;; next += size) {
            const size_t end = legal_cut(map, next);
            if (end > at) return end;
        }
    }
    size_t begin, end;
    shard_segment_range(t, map, at, &begin, &end);
    const size_t parts = (end - begin + SUBGROUP_PARAMETERS - 1) / SUBGROUP_PARAMETERS;
    const size_t part = (end - begin) / parts, before = (at - begin) / part;
    for (size_t i = before > 1 ? before - 1 : 1; i < parts; i++) {
        const size_t cut = legal_cut(map, begin + part * i);
        if (cut > at) return cut;
    }
    return end;
}

// The list. Residents are the last layers (Deep Optimizer States, 4.1: what is still on its way
// when they are updated needs the time); but the embeddings, whose gradient is complete last and
// which the next forward pass reads first, precede all others if there is room for them. With a
// stride, the paper's Algorithm 1 to the letter: residents are whole sub-groups at the end, and of
// the others, counted from 0, sub-group i visits if (i + 1) % stride == 0. With a share, the same
// by elements: it visits as soon as all visitors are no more than that share of what has been dealt
// out; with sub-groups of one size and a share of 1 / k these are those of a stride of k.
static Pieces offload_pieces(const GPT2Table *t, const ShardMap *map, const OffloadChoice *c) {
    Pieces list = {0};
    const size_t least = c->subgroup > 0 ? c->subgroup : (size_t)SUBGROUP_PARAMETERS;
    const size_t room = 4 * ((size_t)map->count + 2) + 4 * (map->elements / least + 2);
    list.pieces = (Piece *)alloc_or_fail(room, sizeof(Piece), "pieces");
    list.runs = (AdamRun *)alloc_or_fail(room + 2 * (size_t)map->count, sizeof(AdamRun), "pieces");

    const double resident = c->mode == OFFLOAD_NONE ? 1
                          : c->mode == OFFLOAD_ZERO ? 0 : c->resident;
    size_t budget = (size_t)(resident * (double)map->elements);
    size_t at = 0, begin = 0, dealt = 0, visiting = 0, embeddings = 0;
    for (int i = 0; i < map->count && shard_segment(t, map, i) == 0; i++)
        embeddings = shard_begin(map, i + 1);
    if (c->stride == 0 && budget >= embeddings && embeddings > 0 && resident < 1) {
        pieces_add(&list, t, map, c, PIECE_RESIDENT, 0, embeddings);
        at = embeddings;
        budget -= embeddings;
    }
    const size_t stay = resident >= 1 ? at : legal_cut(map, map->elements - budget);
    while (at < map->elements) {
        size_t end = subgroup_end(t, map, c->subgroup, at);
        if (c->mode == OFFLOAD_ZENFLOW) shard_segment_range(t, map, at, &begin, &end);  // whole
        if (c->stride == 0 && at < stay && end > stay) end = stay;
        const size_t number = (size_t)list.subgroups, visitors = visiting + (end - at);
        dealt += end - at;
        bool visits = c->share * (double)dealt + 0.5 >= (double)visitors;
        if (c->stride > 0) visits = (number + 1) % c->stride == 0;
        int kind = PIECE_HOST;
        if (at >= stay) kind = PIECE_RESIDENT;
        else if (visits && c->mode == OFFLOAD_INTERLEAVE) kind = PIECE_VISIT;
        if (kind == PIECE_VISIT) visiting = visitors;
        pieces_add(&list, t, map, c, kind, at, end);
        at = end;
    }
    return list;
}

static void pieces_free(Pieces *list) {
    free(list->pieces);
    free(list->runs);
    memset(list, 0, sizeof *list);
}

#endif
