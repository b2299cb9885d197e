// zenflow.cuh: importance-aware updates on the GPU (zenflow.h says what they compute, and
// doc/zenflow.md is the lesson), of a GPT2 (gpt2.cuh) whose `zen` this is.
//
//   1. Memory: zen_buffers(), zen_host_buffers(), zen_allocate(), zen_free()
//   2. Gradients, packed, apart for the chosen columns and for the rest: zen_gradient_complete()
//   3. The end of a step: zen_sums_leave(), zen_update(), zen_log()
//   4. Selection: columns change places
//   5. Checkpoints: zen_load()
//
// A layer's gradient is packed as soon as it is complete: the chosen columns' part waits on the
// GPU, the rest's leaves for a buffer on the host, which holds one step. Both wait for the norm: it
// clips them. Then the GPU updates the chosen, and the host's worker adds the rest to the window's
// sum, which frees the buffer, segment by segment, for the next step. What the worker computes at
// the end of a window it has the next one's steps for; then it goes to the GPU. Compute waits, and
// all of it is counted, when
//   - new weights are not there: the worker or the link is too slow (forward waits);
//   - gradients find no room: those of the step before have not been added, or the link is slower
//     than backward (backward waits);
//   - columns are selected: a window's update is computed and shown at once, and then columns
//     change places (this counts as forward's).
#ifndef TIDE_ZENFLOW_CUH
#define TIDE_ZENFLOW_CUH
#include "zen_run.h"
#include "zero.cuh"

// ---------------------------------------------------------------------------------------------
// 1. Memory

struct ZenFlow {
    ZenConfig config;
    ZenMap map;
    ZenClock clock;
    int sums;                   // of gradients on the host: 2, 1, or 0 where a window is one step
    int sum;                    // the sum that the open window is added to
    int queued;                 // segments of the late update that the worker has been given
    size_t share, due;          // elements of it that each step gives, and that are given by now
    AdamStep late_step;
    int packing;                // the half of `packed` that is used next
    cudaStream_t pack;          // packs the gradients of the rest
    bool closed;                // was this step the last of its window?
    size_t swapped;             // columns that changed places in this step
    // Per segment: its part of the buffer on the host is free; its late update is computed; the
    // result of that has left the host. And, per half of `packed`: that has left.
    cudaEvent_t *ring_free, *computed, *result_free, *packed_free;
    // GPU memory, in the layouts of ZenMap.
    int32_t *column;            // (columns)
    float *master, *m, *v;      // (chosen)
    void *grad;                 // (chosen): floatX, or fp32 if micro-batches were summed
    floatX *packed;             // (2, longest): the rest's gradients on their way out
    floatX *landing;            // (longest): new weights of the rest that have come in
    ZenSum *column_sums, *scratch;
    ZenSum *all_sums;           // (ranks, columns), if there are several
    // Page-locked host memory.
    float *host_master, *host_m, *host_v;  // (rest)
    float *acc;                 // (sums, rest)
    floatX *ring;               // (rest): one step's gradients
    uint16_t *result;           // (rest): new weights in bf16; in fp32 the masters are that
    ZenSum *host_sums;          // (ranks, columns): the first are made the sums of all
};

// How many sums the host keeps. With two, the worker may take a whole window for an update; with
// one, if memory is tight, it must be done with a segment when the next window's first gradient of
// it is added.
static void zen_settle_sums(ZenFlow *z, bool tight) {
    if (z->config.window == 1) z->sums = 0;
    else z->sums = z->config.overlap && !tight ? 2 : 1;
}

static size_t zen_ranks(const GPT2 *g) { return g->zero != NULL ? g->zero->world : 1; }

// Adds zenflow's lines to the memory plan of the GPU; returns how many lines there are now.
static int zen_buffers(GPT2 *g, Buffer list[MAX_BUFFERS], int n) {
    ZenFlow *z = g->zen;
    const ZenMap *map = &z->map;
    const size_t f32 = sizeof(float), longest = map->longest;
    list[n++] = Buffer{"master weights", map->chosen * f32, &z->master, true};
    list[n++] = Buffer{"AdamW moments", map->chosen * f32, &z->m, true};
    list[n++] = Buffer{"AdamW moments", map->chosen * f32, &z->v, true};
    list[n++] = Buffer{"gradients", map->chosen * waiting_bytes(g), &z->grad, true};
    list[n++] = Buffer{"columns", map->columns * sizeof(int32_t), &z->column, false};
    if (map->rest > 0) {
        list[n++] = Buffer{"packed", 2 * longest * sizeof(floatX), &z->packed, true};
        list[n++] = Buffer{"packed", longest * sizeof(floatX), &z->landing, true};
    }
    if (map->mixed) {
        list[n++] = Buffer{"columns", map->columns * sizeof(ZenSum), &z->column_sums, true};
        if (g->zero != NULL)
            list[n++] = Buffer{"columns", zen_ranks(g) * map->columns * sizeof(ZenSum),
                               &z->all_sums, false};
        list[n++] = Buffer{"columns", columns_scratch(map) * sizeof(ZenSum), &z->scratch, false};
    }
    return n;
}

// All lines of the host's.
static int zen_host_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    ZenFlow *z = g->zen;
    const ZenMap *map = &z->map;
    const size_t f32 = sizeof(float), rest = map->rest;
    int n = 0;
    if (rest > 0) {
        list[n++] = Buffer{"master weights", rest * f32, &z->host_master, true};
        list[n++] = Buffer{"AdamW moments", rest * f32, &z->host_m, true};
        list[n++] = Buffer{"AdamW moments", rest * f32, &z->host_v, true};
        list[n++] = Buffer{"gradients", rest * sizeof(floatX), &z->ring, true};
        if (z->sums > 0)
            list[n++] = Buffer{"sums of gradients", (size_t)z->sums * rest * f32, &z->acc, true};
        if (sizeof(floatX) < f32)
            list[n++] = Buffer{"new weights", rest * sizeof(floatX), &z->result, true};
    }
    if (map->mixed)
        list[n++] = Buffer{"columns", zen_ranks(g) * map->columns * sizeof(ZenSum), &z->host_sums,
                           true};
    return n;
}

// For the line that begins with the number of parameters: what becomes of them.
static void zen_print(const GPT2 *g) {
    const ZenFlow *z = g->zen;
    printf(", ");
    zen_describe(&z->config, &z->map, " by the GPU", " by the CPU");
    if (z->sums > 0) printf("; %d sum%s on the host", z->sums, z->sums > 1 ? "s" : "");
    const size_t whole = z->map.whole;
    if (whole > 0) printf("; on the GPU for good: the last %zu layer%s", whole, plural(whole));
}

// After the buffers of both lists are there.
static void zen_allocate(GPT2 *g) {
    ZenFlow *z = g->zen;
    const size_t segments = (size_t)z->map.segments;
    z->ring_free = events_make(3 * segments + 2);
    z->computed = z->ring_free + segments;
    z->result_free = z->computed + segments;
    z->packed_free = z->result_free + segments;
    z->pack = stream_make("pack", true);
    gpu_copy(z->column, z->map.column, z->map.columns * sizeof(int32_t));
}

static void zen_free(ZenFlow *z) {
    zen_map_free(&z->map);
    zen_clock_free(&z->clock);
    free(z);
}

// ---------------------------------------------------------------------------------------------
// 2. Gradients

// Packs segment s of the whole gradient: the chosen columns' part, as it waits, or the rest's, as
// it crosses the link.
static void zen_pack(GPT2 *g, void *packed, int s, bool rest, cudaStream_t stream) {
    const ZenFlow *z = g->zen;
    const Segment *x = &g->segment[s];
    const float *sum = (const float *)g->waiting + x->own_at;
    const floatX *made = g->grads + x->own_grad_at;
    floatX *to = (floatX *)packed;
    if (!g->accumulating) columns_move_gpu<true>(to, made, &z->map, s, rest, z->column, stream);
    else if (rest) columns_move_gpu<true>(to, sum, &z->map, s, rest, z->column, stream);
    else columns_move_gpu<true>((float *)packed, sum, &z->map, s, rest, z->column, stream);
}

// gradient_complete() of zenflow: segment s of the micro-batch's gradient is complete. Those of
// several micro-batches are summed on the GPU, in fp32, and packed with the last one. The rest is
// packed in a stream of its own: where that waits for room, the norm does not.
static void zen_gradient_complete(GPT2 *g, size_t s, bool accumulate, bool last) {
    ZenFlow *z = g->zen;
    const Segment *x = &g->segment[s];
    const ZenSegment *part = &z->map.segment[s];
    const bool f32 = g->accumulating || sizeof(floatX) == sizeof(float);
    const floatX *made = g->grads + x->own_grad_at;
    float *sum = (float *)g->waiting + x->own_at;
    const void *whole = g->accumulating ? (const void *)sum : (const void *)made;
    stream_wait(g->leave, gradient_event(g, s));
    if (g->accumulating && x->own > 0)
        accumulate_gradient(sum, made, x->own, !accumulate, g->leave);
    for (int i = x->first; last && i < x->first + x->pieces; i++) {
        const Piece *p = &g->pieces.pieces[i];
        const size_t at = (p->at - x->own_at) * (f32 ? sizeof(float) : sizeof(floatX));
        norm_block_sums_gpu((const char *)whole + at, !f32, g->pieces.runs + p->first_run, p->runs,
                            g->norm_sums + p->first_block, g->leave);
    }
    const bool sums = last && zen_needs_sums(&z->config, &z->map, &z->clock);
    if (sums && g->accumulating)
        columns_sums_gpu(z->column_sums, z->scratch, sum, &z->map, (int)s, g->leave);
    else if (sums)
        columns_sums_gpu(z->column_sums, z->scratch, made, &z->map, (int)s, g->leave);
    if (last && part->chosen > 0)
        zen_pack(g, (char *)z->grad + part->chosen_at * waiting_bytes(g), (int)s, false, g->leave);
    const bool leaves = last && part->rest > 0;
    if (leaves) {
        const size_t bytes = part->rest * sizeof(floatX);
        floatX *packed = z->packed + (size_t)z->packing * z->map.longest;
        order(g, g->leave, z->pack);
        stream_wait(z->pack, z->packed_free[z->packing]);
        zen_pack(g, packed, (int)s, true, z->pack);
        order(g, z->pack, g->out);
        stream_wait(g->out, z->ring_free[s]);
        const int leaving = timeline_begin(&g->timeline, ROW_LEAVE, "leave", s, bytes, g->out);
        copy_out(g, z->ring + part->rest_at, packed, bytes);
        timeline_end(&g->timeline, leaving, g->out);
        event_record(z->packed_free[z->packing], g->out);
        event_record(g->grad_arrived[s], g->out);
        z->packing = 1 - z->packing;
    }
    event_record(g->grad_left[x->place], leaves ? z->pack : g->leave);
    live(g, "gradients", -(double)x->length, sizeof(floatX), leaves ? z->pack : g->leave);
    if (g->no_overlap && last) {
        compute_span(g, "wait", s);
        stream_wait(g->compute, g->grad_arrived[s]);
        compute_span(g, NULL, 0);
    }
}

// In stream `leave`, behind all gradients of the step: what the host must know besides the norm. Of
// several ranks each has the sums over its own rows; all get all of them.
static void zen_sums_leave(GPT2 *g) {
    ZenFlow *z = g->zen;
    const size_t bytes = z->map.columns * sizeof(ZenSum);
    const ZenSum *sums = z->column_sums;
    cudaStream_t stream = g->leave;
    if (!zen_needs_sums(&z->config, &z->map, &z->clock)) return;
    if (g->zero != NULL) {
        sums = z->all_sums;
        stream = g->zero->stream;
        order(g, g->leave, stream);
        all_gather(g->zero, z->all_sums, z->column_sums, bytes);
    }
    stream_copy(z->host_sums, sums, zen_ranks(g) * bytes, cudaMemcpyDeviceToHost, stream);
}

// They are there: adds them up, in the order of the ranks.
static void zen_sums_arrive(GPT2 *g) {
    ZenFlow *z = g->zen;
    const size_t n = z->map.columns;
    if (!zen_needs_sums(&z->config, &z->map, &z->clock)) return;
    for (size_t i = n; i < zen_ranks(g) * n; i++) {
        z->host_sums[i % n].squares += z->host_sums[i].squares;
        z->host_sums[i % n].magnitudes += z->host_sums[i].magnitudes;
    }
}

// ---------------------------------------------------------------------------------------------
// 3. The end of a step

static void zen_on_worker(const void *work) { zen_work((const ZenWork *)work); }

// Gives the worker segment s: to add this step's gradient to the window's sum (update false), to
// make the update that the window's end has begun from the other sum, which is complete (gradient
// false), or to do both in one pass.
static void zen_on_host(GPT2 *g, int s, bool gradient, bool update, float scale) {
    ZenFlow *z = g->zen;
    const ZenSegment *part = &z->map.segment[s];
    const size_t at = part->rest_at;
    ZenWork work;
    if (part->rest == 0) return;
    memset(&work, 0, sizeof work);
    work.n = part->rest;
    work.is_bf16 = sizeof(floatX) == 2;
    work.scale = scale;
    work.first = gradient && z->clock.filled == 0;
    if (z->sums > 0)
        work.acc = z->acc + (size_t)(gradient ? z->sum : 1 - z->sum) * z->map.rest + at;
    if (gradient) {
        work.grad = z->ring + at;
        stream_wait(g->host.stream, g->grad_arrived[s]);
    }
    if (update) {
        work.p = z->host_master + at;
        work.m = z->host_m + at;
        work.v = z->host_v + at;
        if (z->result != NULL) work.out = z->result + at;
        work.step = z->late_step;
        stream_wait(g->host.stream, z->result_free[s]);
    }
    const int span = timeline_begin(&g->timeline, ROW_HOST, update ? "update" : "accumulate",
                                    (size_t)s, 0, g->host.stream);
    const size_t stored = sizeof(floatX), sum = work.first ? 0 : 4;  // bytes, the latter read
    host_takes(&g->host, part->rest * ((update ? 24 + (stored < 4 ? stored : 0) : 4) + sum
                                       + (gradient ? stored : 0)));
    host_queue_submit(&g->host, zen_on_worker, &work, sizeof work);
    timeline_end(&g->timeline, span, g->host.stream);
    if (gradient) event_record(z->ring_free[s], g->host.stream);
    if (update) event_record(z->computed[s], g->host.stream);
}

// Gives the worker the next segments of a late update that is spread over the window, until it has
// had this many elements.
static void zen_compute_until(GPT2 *g, size_t due) {
    ZenFlow *z = g->zen;
    for (; z->queued < z->map.segments && z->map.segment[z->queued].rest_at < due; z->queued++)
        zen_on_host(g, z->queued, false, true, 0);
}

// The result of the rest's last update goes to the GPU and takes its columns' places, in the order
// of the next forward pass, which waits for each segment's part.
static void zen_show(GPT2 *g) {
    ZenFlow *z = g->zen;
    for (int s = 0; s < z->map.segments; s++) {
        const ZenSegment *part = &z->map.segment[s];
        if (part->rest == 0) continue;
        const void *from = z->result != NULL ? (const void *)(z->result + part->rest_at)
                                             : (const void *)(z->host_master + part->rest_at);
        const size_t bytes = part->rest * sizeof(floatX);
        stream_wait(g->back, z->computed[s]);
        const int span = timeline_begin(&g->timeline, ROW_BACK, "back", (size_t)s, bytes, g->back);
        copy_in(g, z->landing, from, bytes, g->back);
        timeline_end(&g->timeline, span, g->back);
        event_record(z->result_free[s], g->back);
        columns_move_gpu<false>(g->params + g->segment[s].own_param_at, z->landing, &z->map, s,
                                true, z->column, g->back);
        event_record(g->returned[s], g->back);
    }
}

static void zen_exchange_columns(GPT2 *g);

// The end of a step, whose gradient has the scale that clips it: queues zen_reference_step().
static void zen_update(GPT2 *g, float scale, const ZenRates *rates) {
    ZenFlow *z = g->zen;
    const ZenMap *map = &z->map;
    zen_sums_arrive(g);
    const ZenTurn turn = zen_turn(&z->config, map, &z->clock, z->host_sums);
    const AdamStep now = zen_chosen_step(&z->clock, rates, scale);
    z->closed = turn.closes;
    z->swapped = 0;
    for (int s = 0; s < map->segments; s++) {
        const size_t at = map->segment[s].chosen_at;
        floatX *params = g->params + g->segment[s].own_param_at;
        const int updating = timeline_begin(&g->timeline, ROW_UPDATE, "update", (size_t)s, 0,
                                            g->update);
        if (map->segment[s].chosen > 0 && g->accumulating)
            columns_adam_gpu(params, z->master + at, z->m + at, z->v + at,
                             (const float *)z->grad + at, map, s, z->column, &now, g->update);
        else if (map->segment[s].chosen > 0)
            columns_adam_gpu(params, z->master + at, z->m + at, z->v + at,
                             (const floatX *)z->grad + at, map, s, z->column, &now, g->update);
        timeline_end(&g->timeline, updating, g->update);
        event_record(g->updated[s], g->update);
    }

    // Of what the worker does, first comes what is needed first: new weights, by forward; or room,
    // by backward.
    const bool one_pass = turn.closes && (turn.drains || z->sums < 2);
    for (int s = map->segments - 1; !one_pass && s >= 0; s--)
        zen_on_host(g, s, true, false, scale);
    if (turn.closes && zen_is_late(&z->config, &z->clock)) {
        zen_compute_until(g, SIZE_MAX);  // what a window that was too short has left
        if (!turn.drains) zen_show(g);
    }
    if (turn.closes) {
        z->late_step = zen_rest_step(&z->clock, rates, turn.steps);
        z->queued = one_pass ? map->segments : 0;
        z->due = 0;
        z->share = map->rest / (z->config.window > 0 ? z->config.window : turn.steps) + 1;
        for (int i = 0; one_pass && i < map->segments; i++)
            zen_on_host(g, turn.drains ? i : map->segments - 1 - i, true, true, scale);
        if (z->sums == 2 && !one_pass) z->sum = 1 - z->sum;
        if (turn.drains) zen_show(g);
    }
    zen_compute_until(g, z->due += z->share);
    zen_turn_end(&z->config, &z->clock, &turn);
    if (g->zero != NULL) zero_weights_changed(g);
    if (turn.selects) zen_exchange_columns(g);
}

// Counters, for log.jsonl. Stalls are those of the step "step" of "offload": before a part of
// forward, for new weights, and at a selection, for everything; and before a part of backward,
// where gradients wait for the room of the last step's.
static void zen_log(const GPT2 *g, char *json, size_t n) {
    const ZenFlow *z = g->zen;
    const TimelineStep *d = &g->timeline.done;
    snprintf(json, n, ",\"zenflow\":{\"closes\":%s,\"selections\":%zu,\"swapped\":%zu,"
             "\"stall_forward_ms\":%.6g,\"stall_backward_ms\":%.6g}",
             z->closed ? "true" : "false", z->clock.selections, z->swapped,
             1e3 * (d->stalled - d->stalled_backward), 1e3 * d->stalled_backward);
}

// ---------------------------------------------------------------------------------------------
// 4. Selection

// Columns of tensor t change places in one part of the state: p, m or v, which these point to. The
// chosen ones come to the host for that.
static void zen_exchange(GPT2 *g, const ZenTensor *t, const ZenSwap *swaps, size_t count,
                         float *gpu, float *host) {
    const size_t width = t->cols - t->chosen, bytes = t->rows * t->chosen * sizeof(float);
    float *chosen = (float *)alloc_or_fail(bytes, 1, "columns");
    gpu_copy(chosen, gpu, bytes);
    #pragma omp parallel for schedule(static)
    for (size_t r = 0; r < t->rows; r++)
        for (size_t j = 0; j < count; j++) {
            float *a = host + r * width + (size_t)swaps[j].rest;
            float *b = chosen + r * t->chosen + (size_t)swaps[j].chosen;
            const float c = *a;
            *a = *b;
            *b = c;
        }
    gpu_copy(gpu, chosen, bytes);
    free(chosen);
    g->moved_out += bytes;
    g->moved_in += bytes;
}

// Selects columns anew, once everything is at rest: no update is under way, and no gradient waits.
// Those that come and go take their masters and moments with them; what forward sees stays.
static void zen_exchange_columns(GPT2 *g) {
    ZenFlow *z = g->zen;
    float *const gpu[3] = {z->master, z->m, z->v};
    float *const host[3] = {z->host_master, z->host_m, z->host_v};
    if (zen_is_late(&z->config, &z->clock) || z->clock.filled > 0)
        fail("columns are selected while an update is under way");
    compute_span(g, "wait", 0);  // as the host does not queue what follows
    zen_compute_until(g, SIZE_MAX);
    device_rest();
    ZenSwap *swaps = (ZenSwap *)alloc_or_fail(z->map.columns, sizeof *swaps, "columns");
    for (int i = 0; i < z->map.count; i++) {
        const ZenTensor *t = &z->map.tensor[i];
        const size_t count = zen_select(&z->map, i, z->clock.scores + t->column_at, swaps);
        if (t->rows > 0 && count > 0)
            for (int k = 0; k < 3; k++)
                zen_exchange(g, t, swaps, count, gpu[k] + t->chosen_at, host[k] + t->rest_at);
        zen_swap(&z->map, i, swaps, count);
        z->swapped += count;
    }
    free(swaps);
    gpu_copy(z->column, z->map.column, z->map.columns * sizeof(int32_t));
    compute_span(g, NULL, 0);
}

// ---------------------------------------------------------------------------------------------
// 5. Checkpoints

// A RunState's move: the weights in use, or a part in the layout of the table from its packed
// halves.
static void zen_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    GPT2 *g = (GPT2 *)owner;
    const ZenFlow *z = g->zen;
    if (part == 3) {
        floats_move(g->params + at, w, n, out);
        return;
    }
    float *const chosen[] = {z->master, z->m, z->v}, *const host[] = {z->host_master, z->host_m,
                                                                      z->host_v};
    const int tensor = gpt2_tensor_at(&g->table, at);
    const ZenTensor *t = &z->map.tensor[tensor];
    const int32_t *column = z->map.column + t->column_at;
    // What of it is ours: elements [begin, end) of our rows.
    const size_t own = g->table.tensors[tensor].offset + t->row * t->cols;
    const size_t begin = at > own ? at - own : 0;
    const size_t end = at + n > own ? min_size(at + n - own, t->rows * t->cols) : 0;
    if (begin >= end) return;
    w += own + begin - at;
    const size_t r0 = begin / t->cols, rows = (end - 1) / t->cols + 1 - r0, width = t->chosen;
    float *packed = (float *)alloc_or_fail(rows * width + 1, sizeof(float), "checkpoint");
    float *there = chosen[part] + t->chosen_at + r0 * width;
    if (width > 0) gpu_copy(packed, there, rows * width * sizeof(float));
    #pragma omp parallel for if (end - begin > 1 << 16)
    for (size_t r = 0; r < rows; r++) {
        float *rest = host[part] + t->rest_at + (r0 + r) * (t->cols - width);
        for (size_t j = 0; j < t->cols; j++) {
            const size_t e = (r0 + r) * t->cols + (size_t)column[j];
            if (e < begin || e >= end) continue;
            float *state = j < width ? &packed[r * width + j] : &rest[j - width];
            if (out) w[e - begin] = *state;
            else *state = w[e - begin];
        }
    }
    if (width > 0 && !out) gpu_copy(there, packed, rows * width * sizeof(float));
    free(packed);
}

// Values for the first step: a checkpoint's of this mode, or of another, or those that --model
// names. Where an update was under way, its result is made again from the newest weights.
static void zen_load(GPT2 *g, Run *r, RunState *state) {
    ZenFlow *z = g->zen;
    if (zen_is_saved(r)) state->parts = STATE_PARTS;
    run_load(r, state);
    r->saves.parts = STATE_PARTS;
    for (int i = 0; !zen_is_saved(r) && i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        float *w = (float *)alloc_or_fail(x->size, sizeof(float), "parameters");
        zen_move(g, 0, x->offset, x->size, w, true);
        zen_move(g, 3, x->offset, x->size, w, false);
        free(w);
    }
    const size_t results = z->result != NULL ? z->map.rest : 0;
    #pragma omp parallel for if (results > 1 << 16)
    for (size_t i = 0; i < results; i++)
        z->result[i] = f32_to_bf16(z->host_master[i]);
    z->queued = z->map.segments;
}
#endif

