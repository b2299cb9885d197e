// weights.cuh: weights that are not stored where they are used: weights of layers on the host, and,
// in stage 3 of ZeRO, the shards of all ranks. They are copied or gathered shortly before forward
// uses them, and again before backward does, into rooms that layers use in turn: while one room is
// used, others are filled. Weights that are still in a room are not fetched again: those of the
// last layers when backward begins, those of the first layers when the next micro-batch begins.
//
// An update writes the stored weights: the CPU updates host pieces in place; a visitor's new
// weights are copied to the host with its state; layers with residents stay on the GPU.
// doc/offload.md is the lesson.
#ifndef TIDE_WEIGHTS_CUH
#define TIDE_WEIGHTS_CUH
#include "zenflow.cuh"

// Sets the address of each segment's weights; GPT2.params begins with the rooms. Layers with
// residents stay on the GPU. Other layers that stay are spread evenly: the link copies while they
// compute. The first layer without residents is among them, so that forward need not wait.
static void weights_place(GPT2 *g) {
    const int tail = g->segments - 1;
    const bool dealt = zero_stage(g->zero) == 3;
    int may = 0, number = 0, turn = 0;
    for (int i = 0; i < g->segments; i++) {
        Segment *seg = &g->segment[i];
        seg->on_host = i >= 1 && i < tail;
        for (const Piece *p = seg->first; p < seg->end; p++)
            if (p->kind == PIECE_RESIDENT || (p->kind == PIECE_LATE && p->length == 0))
                seg->on_host = false;
        may += seg->on_host;
    }
    g->streamed = g->choice.streamed < may ? g->choice.streamed : may;
    const int turns = rooms_of(g->choice.weight_rooms, LEAST_ROOMS, dealt ? tail - 1 : g->streamed);
    g->weight_rooms = Rooms{.count = turns, .apart = dealt ? 2 : 0};
    size_t at = (size_t)turns * g->segment[1].padded;
    for (int i = 0; i < g->segments; i++) {
        Segment *seg = &g->segment[i];
        const bool layer = i >= 1 && i < tail;
        if (seg->on_host) {
            seg->on_host = (number + 1) * g->streamed / may > number * g->streamed / may;
            number++;
        }
        seg->weight_room = dealt ? turns + (i > 0) : -1;
        if (layer && (dealt || seg->on_host)) {
            seg->weight_room = turn++ % turns;
            seg->param_at = (size_t)seg->weight_room * seg->padded;
        } else {
            seg->param_at = at;
            at += seg->padded;
        }
        seg->own_param_at = seg->param_at + (seg->own_from - seg->at);
        if (!layer || !dealt || seg->on_host) continue;
        seg->own_param_at = at;
        at += seg->cut;
    }
    g->param_elements = at;
}

// Queues the copy of this process's part of segment s's weights to the GPU, after their update.
static void weights_copy(GPT2 *g, size_t s) {
    const Segment *seg = &g->segment[s];
    // ZenFlow: only the late columns are copied, packed
    const Piece *p = g->zen != NULL ? seg->end - 1 : seg->first;
    const size_t bytes = (g->zen != NULL ? p->length : seg->own) * sizeof(floatX);
    floatX *const weights = g->params + seg->own_param_at;
    stream_wait(g->weights_in, g->updated[s]);
    stream_wait(g->weights_in, g->returned[s]);
    const int span = timeline_begin(&g->timeline, ROW_WEIGHTS, "weights", s, bytes, g->weights_in);
    if (bytes > 0)
        copy_in(g, g->zen != NULL ? g->zen->shown : weights, p->params, bytes, g->weights_in);
    if (g->zen != NULL) zen_arrived(g, s);
    timeline_end(&g->timeline, span, g->weights_in);
    event_record(g->weight_rooms.full[seg->weight_room], g->weights_in);
}

// Queues the fetch of segment s's weights into their room, once it is free, unless they are there.
static void weights_fetch(GPT2 *g, size_t s) {
    const Segment *seg = &g->segment[s];
    if (seg->weight_room < 0 || g->tenant[seg->weight_room] == (int)s + 1) return;
    g->tenant[seg->weight_room] = (int)s + 1;
    cudaStream_t stream = seg->on_host ? g->weights_in : g->zero->stream;
    if (g->no_overlap && seg->on_host) order(g, g->compute, stream);
    stream_wait(stream, g->weight_rooms.free[seg->weight_room]);
    if (seg->on_host) weights_copy(g, s);
    if (g->zero != NULL) zero_gather(g, s);
}

// Prepares the weights of segment s, which is computed next. `next` is 1 in forward, -1 in
// backward. Frees the room of segment s - next, and fetches the weights of s and, as far as there
// are rooms, of s + next and so on.
static void weights_use(GPT2 *g, int s, int next) {
    const int before = s - next;
    int ahead = g->no_overlap && zero_stage(g->zero) < 3 ? 1 : g->weight_rooms.count;
    if (before >= 0 && before < g->segments && g->segment[before].weight_room >= 0)
        event_record(g->weight_rooms.free[g->segment[before].weight_room], g->compute);
    for (int i = s; i >= 0 && i < g->segments && ahead > 0; i += next) {
        weights_fetch(g, (size_t)i);
        ahead -= g->segment[i].weight_room >= 0;
    }
}

// Returns the event that says that segment s's weights are complete on the GPU.
static cudaEvent_t weights_event(const GPT2 *g, size_t s) {
    return g->zero != NULL ? g->zero->gathered[s] : g->weight_rooms.full[g->segment[s].weight_room];
}

// Marks the weights in all rooms as old and the rooms as free, after an update is queued or weights
// are loaded; fetches wait for the update (weights_copy()). In stages 1 and 2 of ZeRO, queues the
// gathering of each segment's weights after its update. In steps of ZenFlow that change only chosen
// columns, queues the gathering of these columns.
static void weights_renew(GPT2 *g) {
    for (int i = 0; i < g->weight_rooms.count + g->weight_rooms.apart; i++) {
        event_record(g->weight_rooms.free[i], g->compute);
        g->tenant[i] = 0;
    }
    const ZenFlow *z = g->zen;
    if (g->zero == NULL || g->zero->stage == 3) return;
    for (size_t s = 0; s < (size_t)g->segments; s++)
        if (z != NULL && z->only_chosen && z->all.segment[s].rest > 0) zen_gather(g, s);
        else zero_gather(g, s);
}

#endif
