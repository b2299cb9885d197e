// offload.h: where the optimizer's state is stored, and who updates it.
//
// The state of AdamW (m, v, and the bits of the master weights that the weights lack: 10 bytes per
// parameter, or 8, 6 or 4) is cut into sub-groups, and these into pieces. A piece's state is on the
// GPU or on the host; the GPU or the CPU updates the piece. The functions here decide this for each
// piece, from the model and the options alone, and make a list of pieces. The trainer, its memory
// plan, the predictions of --plan and the tests use this list.
//
//   mode         on the GPU      the other state is on the host, and updated by
//   none         everything
//   zero         nothing         the CPU (ZeRO-Offload: Ren et al. 2021)
//   twinflow     a share         the CPU (ZeRO-Offload++)
//   interleave   a share or      the CPU; some sub-groups, by stride or by share, visit the GPU and
//                nothing         are updated there (Deep Optimizer States: Maurya et al. 2024)
//
// CPU and GPU compute the same bits (adam.h), so no choice made here changes a result.
#ifndef TIDE_OFFLOAD_H
#define TIDE_OFFLOAD_H
#include "adam.h"
#include "tide/base/model.h"

// The values of --offload, by OFFLOAD_*. Before pieces are made, another mode replaces "auto".
static const char *const offload_names[] = {"auto", "none", "zero", "twinflow", "interleave",
                                            "zenflow"};

enum { SUBGROUP_PARAMETERS = 100000000 };  // the most in a sub-group (Deep Optimizer States, 5.3)

typedef struct {
    int mode;
    double resident;     // share of the state that stays on the GPU
    size_t stride;       // every stride-th sub-group visits the GPU; 0: `share` decides
    double share;        // share of the state on the host that visits the GPU
    size_t subgroup;     // its elements; 0: equal parts of a segment, at most SUBGROUP_PARAMETERS
    int slots;           // number of slots for visitors; 0: auto (LEAST_SLOTS, until it is settled)
    int grad_rooms;      // rooms on the GPU in which layers' gradients take turns (unless each
                         // layer has its own); 0: auto (LEAST_ROOMS, until it is settled)
    int kept_grads;      // number of visitors whose gradients wait on the GPU, not on the host: the
                         // first ones in the arena, as backward makes their gradients last and the
                         // update reads them first (but for `early`). -1: auto (0, until settled)
    int recompute;       // what backward computes again: RECOMPUTE_*
    int kept_layers;     // RECOMPUTE_BLOCK: so many, before the last one, as RECOMPUTE_LIGHT
    bool inputs_leave;   // RECOMPUTE_BLOCK: the inputs of layers wait for backward on the host
    bool apart;          // if all state is on the GPU: gradients leave the place where backward
                         // made them, and wait in memory of used activations, if they fit
    bool sum_on_host;    // the host sums the micro-batches' gradients that leave the GPU
    int early;           // number of the last segments that are updated before the others: their
                         // gradients are the first to reach the host
    bool wire_f32;       // gradients cross the link as fp32
    int streamed;        // number of layers whose weights the host stores, and which are copied for
                         // each use; layers without residents are taken first
    int weight_rooms;    // rooms on the GPU that these layers (in ZeRO-3 all layers) use in turn
                         // for their weights; 0: auto, LEAST_ROOMS until settled
} OffloadChoice;

enum { LEAST_SLOTS = 3, LEAST_ROOMS = 2, KEEP_ALL = 1 << 20 };

// Returns the number of rooms: `chosen`, or `least` if chosen is 0, but at most `tenants`.
static int rooms_of(int chosen, int least, int tenants) {
    const int n = chosen > 0 ? chosen : least;
    return n < tenants ? n : tenants;
}

enum { PIECE_HOST,       // state on the host, updated by the CPU
       PIECE_VISIT,      // state on the host, updated on the GPU
       PIECE_RESIDENT,   // state on the GPU, updated there
       PIECE_CHOSEN,     // zenflow.h: chosen columns of a segment; packed state on the GPU
       PIECE_LATE,       // the other columns; packed state on the host, updated once per window
       PIECE_KINDS };

// A piece: a range of the shard space (all shards of this process, side by side) in one segment.
typedef struct {
    int kind, segment, subgroup;
    size_t at, length;       // elements of the shard space (model.h), with gaps between tensors
    int first_run, runs;     // index of its first run in Pieces.runs, number of runs. AdamRun.at
                             // counts from the piece's begin
    size_t first_block, blocks;  // its blocks of the gradient norm; no block is in two pieces
    size_t state_at;         // begin of its state among all state that the GPU, or the host, stores
    bool grad_on_gpu;        // its gradient waits for the update on the GPU, not on the host
    size_t grad_at;          // begin of its gradient among all that wait there, in elements
    size_t weights_at;       // begin of its weights in the host's buffer of weights
    bool over_acts;          // its gradient waits in memory of activations, and grad_at is in bytes
    // Addresses. The trainer sets them once memory is allocated; floatX is its storage type.
    void *params;            // weights in use (floatX); of a layer that the host stores, its copy
    void *weights;           // weights that AdamW updates: `params`, or a copy of them on the host
    // The gradient's addresses, in the order of its way; NULL: the gradient is never there.
    void *made;              // where backward writes it: floatX
    void *grad, *host_grad;  // where it is summed or waits, on GPU and host: floatX or fp32
    void *normed;            // the gradient whose norm the GPU computes
    void *leaves;            // what is copied to the host (of a PIECE_LATE: after it was packed)
    void *state[3];          // low bits of masters (NULL: none), m and v; on GPU or host
} Piece;

typedef struct {
    int count, subgroups, run_count;
    size_t blocks;                   // number of blocks of the gradient norm
    Piece *pieces;                   // in the arena's order, which is that of the forward pass
    AdamRun *runs;
    size_t elements[PIECE_KINDS];    // elements in pieces of each kind
    int visits;                      // number of visiting pieces,
    size_t longest_visit;            // and the elements of the longest one
    size_t grads_gpu, grads_host;    // elements of gradients that wait on the GPU, on the host
} Pieces;

// Returns the begin of shard i. A shard ends, with the gap after it, where the next shard begins.
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

// Returns the segment of element `at`; sets [*begin, *end) to this process's part of that segment.
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

// Returns the place nearest to `at` where the shard space may be cut: the begin of a shard, or a
// whole number of norm blocks after that begin. So no block of the norm is in two pieces.
static size_t legal_cut(const ShardMap *map, size_t at) {
    if (at >= map->elements) return map->elements;
    const int i = shard_at(map, at);
    const size_t begin = shard_begin(map, i), end = shard_begin(map, i + 1);
    if (at <= begin) return begin;
    size_t below = begin + (at - begin) / NORM_BLOCK * NORM_BLOCK, above = below + NORM_BLOCK;
    if (below >= begin + map->shards[i].length) below = begin;  // it was in the gap behind shard i
    if (above >= begin + map->shards[i].length) above = end;
    return at - below <= above - at ? below : above;
}

// Appends a sub-group to the list: a piece for each segment that it touches, with the piece's runs
// and the places of its state and gradient.
static void pieces_add(Pieces *list, const GPT2Table *t, const ShardMap *map,
                       const OffloadChoice *c, int kind, size_t at, size_t end) {
    const int subgroup = list->subgroups++;
    while (at < end) {
        size_t begin, segment_end;
        const int segment = shard_segment_range(t, map, at, &begin, &segment_end);
        Piece *p = &list->pieces[list->count++];
        *p = (Piece){.kind = kind, .segment = segment, .subgroup = subgroup, .at = at,
                     .length = min_size(end, segment_end) - at, .first_run = list->run_count,
                     .first_block = list->blocks};
        at += p->length;
        for (int i = shard_at(map, p->at); i < map->count && map->shards[i].at < at; i++) {
            const Shard *s = &map->shards[i];
            const size_t from = s->at > p->at ? s->at : p->at, to = min_size(s->at + s->length, at);
            if (from >= to) continue;  // the piece has only the gap after shard s
            const AdamRun run = {from - p->at, to - from, t->tensors[s->tensor].rank == 2,
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
        if (kind == PIECE_VISIT) list->longest_visit = max_size(list->longest_visit, p->length);
    }
}

// Returns the end of the sub-group that begins at `at`.
static size_t subgroup_end(const GPT2Table *t, const ShardMap *map, size_t size, size_t at) {
    if (size > 0) {  // the end is the legal cut nearest to a multiple of `size`
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

// Makes the list of pieces. With a stride it follows Algorithm 1 of Deep Optimizer States: the last
// sub-groups are residents; of all others, sub-group i (from 0 on) visits if (i + 1) % stride == 0.
// Without a stride, the embeddings are residents first, if they fit, because their gradient is
// complete last and the next forward pass reads them first; then the last layers are (section 4.1).
// Another sub-group visits if all visitors, with this one, then have at most `share` of the
// elements so far. If sub-groups are equal, a share of 1 / k does what a stride of k does.
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
        if (c->mode == OFFLOAD_ZENFLOW) shard_segment_range(t, map, at, &begin, &end);  // all of it
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
