// zenflow.cuh: ZenFlow on the GPU: queues all work for pieces of kind PIECE_CHOSEN and PIECE_LATE,
// as train_gpt2.cu does for other pieces. zenflow.h defines the results, and doc/zenflow.md is the
// lesson. "The rest" of a matrix is its late columns.
//
//   1. Memory: zen_pieces(), zen_buffers(), zen_allocate(), zen_free()
//   2. Gradients: of chosen columns, zen_chosen_waits(); of late columns, zen_rest_leaves();
//      sums over columns, zen_sums_leave()
//   3. The end of a step: zen_begin(), update_chosen(), zen_window(), zen_log()
//   4. Selection: columns are chosen anew: zen_exchange_columns()
//   5. Checkpoints: zen_move()
//
// A layer's gradient is packed as soon as it is complete. The gradient of its chosen columns waits
// on the GPU; that of its late columns is copied to the host, whose buffer has space for one step.
// Both gradients wait for the norm, by which they are clipped. Then the GPU updates the chosen
// columns; the worker adds the late columns' gradient to the window's sum, and so frees the buffer.
// During the next window the worker updates the late columns; then the GPU gets their new weights.
#ifndef TIDE_ZENFLOW_CUH
#define TIDE_ZENFLOW_CUH
#include "zero.cuh"

// ---------------------------------------------------------------------------------------------
// 1. Memory

struct ZenFlow {
    ZenConfig config;
    ZenMap map;
    ZenClock clock;
    ZenRates rates;             // AdamW's options in this step
    ZenTurn turn;               // the work at the end of this step
    bool only_chosen;           // the step changes only the chosen columns of the weights in use
    int sums;                   // number of sums of gradients on the host (zen_settle_sums())
    int sum;                    // index of the sum of the open window's gradients
    int queued;                 // number of segments whose late update is queued for the worker
    size_t share, due;          // late update: elements to queue per step, and in all by now
    AdamStep late_step;
    cudaStream_t pack;          // packs the gradients of late columns
    size_t swapped;             // number of columns that were newly chosen in this step
    size_t proxy_bytes;         // bytes of this rank's sums over columns in this step
    cudaEvent_t *computed, *result_free;  // per segment: late update made; new weights copied
    // GPU memory, in the layouts of ZenMap. GPT2.state has the state of the chosen columns.
    int32_t *column;            // (columns)
    void *grad;                 // (chosen): floatX, or fp32 if micro-batches were summed
    Rooms packed;               // (2, longest piece): gradients of late columns, to be copied
    floatX *landing;            // (longest): late columns' new weights, from the host
    floatX *shown;              // (longest): new weights of a layer that the host stores
    float *column_sums;         // (2, mixed): the norms and magnitudes of zen_sums()
    ZenSum *scratch;
    float *all_sums;            // (ranks, zen_numbers(), mixed): column_sums of all ranks
    floatX *shared;             // chosen columns of a segment's weights, packed for all ranks
    // Page-locked host memory. GPT2.host_state has the state of late columns.
    float *acc;                 // (sums, rest)
    float *host_sums;           // (ranks, zen_numbers(), mixed): a copy of the sums
    // Only with ZeRO: the map of whole tensors (`map` has this rank's rows alone), and where each
    // rank's rows begin in a segment's packed chosen columns.
    ZenMap all;
    size_t *begin;              // (segments, ranks + 1)
};

// Sets how many sums the host keeps. With two, the worker has a whole window's time for an update.
// With one (`tight`), it has time until the segment's next gradient arrives.
static void zen_settle_sums(ZenFlow *z, bool tight) {
    if (z->config.window == 1) z->sums = 0;
    else z->sums = z->config.overlap && !tight ? 2 : 1;
}

static size_t zen_ranks(const GPT2 *g) { return g->zero != NULL ? g->zero->world : 1; }

// With ZeRO: makes `all` and `begin`, and reduces `map` to this rank's part (zen_map_own()).
static void zen_own(GPT2 *g) {
    ZenFlow *z = g->zen;
    const Zero *zero = g->zero;
    if (zero == NULL) return;
    const size_t segments = (size_t)z->map.segments;
    z->all = zen_map(&g->table, g->config.layers, z->config.topk, z->map.whole);
    z->begin = ALLOC(size_t, segments * (zero->world + 1), "columns");
    for (size_t s = 0, i = 0; s < segments; s++) {
        const ZenSegment *x = &z->all.segment[s];
        const size_t *shard = shards_of(zero, s), first = z->all.tensor[x->first].at;
        for (size_t r = 0; r <= zero->world; r++, i++) {
            z->begin[i] = x->chosen;
            if (shard[r] == shard[zero->world]) continue;
            const size_t at = first + shard[r];
            const ZenTensor *ten = &z->all.tensor[gpt2_tensor_at(&g->table, at)];
            z->begin[i] = ten->chosen_at - x->chosen_at + (at - ten->at) / ten->cols * ten->chosen;
        }
    }
    zen_map_own(&z->map, &g->shards);
}

static void zen_maps_free(ZenFlow *z) {
    zen_map_free(&z->map);
    zen_map_free(&z->all);
    free(z->begin);
}

// Splits each segment's piece into a piece of its chosen columns, which has all norm blocks of the
// segment, and a piece of its late columns, all of which have weight decay. Both states are packed.
static void zen_pieces(Pieces *list, ZenFlow *z) {
    const ZenMap *map = &z->map;
    z->packed = Rooms{.count = 2, .bytes = map->longest * sizeof(floatX)};
    for (int i = list->count; i-- > 0;) {
        const ZenSegment *s = &map->segment[list->pieces[i].segment];
        Piece *chosen = &list->pieces[2 * i], *late = chosen + 1;
        *chosen = *late = list->pieces[i];
        chosen->kind = PIECE_CHOSEN;
        chosen->grad_on_gpu = true;
        late->grad_on_gpu = false;
        chosen->state_at = chosen->grad_at = s->chosen_at;
        late->kind = PIECE_LATE;
        late->state_at = late->grad_at = s->rest_at;
        late->length = s->rest;
        late->blocks = 0;
        late->first_run = list->run_count;
        late->runs = 0;
        for (int k = s->first; k < s->first + s->count; k++) {
            const ZenTensor *t = &map->tensor[k];
            const size_t n = t->rows * (t->cols - t->chosen);
            if (n == 0) continue;
            list->runs[list->run_count++] = AdamRun{t->rest_at - s->rest_at, n, 1, t->rest_index};
            late->runs++;
        }
    }
    list->count *= 2;
    list->elements[PIECE_HOST] = 0;
    list->elements[PIECE_CHOSEN] = map->chosen;
    list->elements[PIECE_LATE] = list->grads_host = map->rest;
}

// Adds ZenFlow's buffers to the list; returns the new length of the list.
static int zen_buffers(GPT2 *g, Buffer list[MAX_BUFFERS], int n) {
    ZenFlow *z = g->zen;
    const ZenMap *map = &z->map;
    const size_t longest = map->longest, sums = map->mixed * sizeof(float);
    const size_t all_sums = zen_ranks(g) * zen_numbers(&z->config) * sums;
    size_t most = 0;  // the most elements in a segment's chosen columns, of all ranks
    for (const ZenSegment *x = z->all.segment; x < z->all.segment + z->all.segments; x++)
        if (x->rest > 0 && x->chosen > most) most = x->chosen;
    BUFFER(ZERO, "gradients", map->chosen * g->waiting_bytes, z->grad);
    BUFFER(ANY, "columns", map->columns * sizeof(int32_t), z->column);
    BUFFER(ZERO, "packed", 2 * z->packed.bytes, z->packed.memory);
    BUFFER(ZERO, "packed", longest * sizeof(floatX), z->landing);
    if (g->streamed > 0) BUFFER(ZERO, "packed", longest * sizeof(floatX), z->shown);
    BUFFER(HOST, "sums of gradients", (size_t)z->sums * map->rest * sizeof(float), z->acc);
    if (g->zero != NULL) BUFFER(ANY, "columns", most * sizeof(floatX), z->shared);
    BUFFER(ZERO, "columns", 2 * sums, z->column_sums);
    if (g->zero != NULL) BUFFER(ANY, "columns", all_sums, z->all_sums);
    BUFFER(ANY, "columns", columns_scratch(map) * sizeof(ZenSum), z->scratch);
    BUFFER(HOST, "columns", all_sums, z->host_sums);
    return n;
}

// Prints how many parameters are chosen and late; gpt2_print() has printed how many there are.
static void zen_print(const GPT2 *g) {
    const ZenFlow *z = g->zen;
    printf(", ");
    zen_describe(&z->config, &z->map, " by the GPU", " by the CPU");
    if (z->sums > 0) printf("; %d sum%s on the host", z->sums, z->sums > 1 ? "s" : "");
    const size_t whole = z->map.whole;
    if (whole > 0) printf("; on the GPU for good: the last %zu layer%s", whole, plural(whole));
}

// Makes stream and events, and copies the list of columns to the GPU, once buffers are allocated.
static void zen_allocate(GPT2 *g) {
    ZenFlow *z = g->zen;
    const size_t segments = (size_t)z->map.segments;
    z->computed = events_make(segments);
    z->result_free = events_make(segments);
    rooms_make(&z->packed);
    z->pack = stream_make("pack", true);
    gpu_copy(z->column, z->map.column, z->map.columns * sizeof(int32_t));
}

static void zen_free(ZenFlow *z) {
    zen_maps_free(z);
    zen_clock_free(&z->clock);
    free(z);
}

// ---------------------------------------------------------------------------------------------
// 2. Gradients

// Returns the memory in which a chosen piece's packed gradient waits.
static void *zen_grad(const GPT2 *g, const Piece *p) {
    return (char *)g->zen->grad + p->grad_at * g->waiting_bytes;
}

// Queues in stream `sums`, for the complete gradient of segment s: sums over its columns, if they
// are needed in this step; and a kernel that packs the gradient of its chosen columns.
static void zen_chosen_waits(GPT2 *g, size_t s) {
    const ZenFlow *z = g->zen;
    const bool is_half = g->waiting_bytes == 2;
    const Piece *p = g->segment[s].first;
    if (p == NULL) return;
    if (zen_needs_sums(&z->config, &z->map, &z->clock))
        columns_sums_gpu(z->column_sums, z->scratch, p->grad, is_half, &z->map, (int)s, g->sums);
    columns_move_gpu(true, zen_grad(g, p), is_half, p->grad, is_half, &z->map, (int)s, false,
                     z->column, g->sums);
}

// Packs a segment's gradient of late columns. Stream `pack` waits for a room; so `sums` need not.
static void zen_rest_leaves(GPT2 *g, size_t s) {
    const ZenFlow *z = g->zen;
    order(g, g->sums, z->pack);
    stream_wait(z->pack, z->packed.free[z->packed.turn]);
    columns_move_gpu(true, room_at(&z->packed, z->packed.turn), sizeof(floatX) == 2,
                     g->segment[s].first->grad, g->waiting_bytes == 2, &z->map, (int)s, true,
                     z->column, z->pack);
}

// Copies the sums over columns to the host, after all gradients of the step. Each rank has the sums
// over its own rows, and sends them to all ranks.
static void zen_sums_leave(GPT2 *g) {
    ZenFlow *z = g->zen;
    const size_t bytes = zen_numbers(&z->config) * z->map.mixed * sizeof(float);
    const float *sums = z->column_sums;
    cudaStream_t stream = g->sums;
    z->proxy_bytes = 0;
    if (!zen_needs_sums(&z->config, &z->map, &z->clock)) return;
    z->proxy_bytes = bytes;
    if (g->zero != NULL) {
        sums = z->all_sums;
        stream = g->zero->stream;
        order(g, g->sums, stream);
        all_gather(g->zero, z->all_sums, z->column_sums, bytes);
    }
    stream_copy(z->host_sums, sums, zen_ranks(g) * bytes, cudaMemcpyDeviceToHost, stream);
}

// ---------------------------------------------------------------------------------------------
// 3. The end of a step

// Begins the end of a step: decides whether the step ends its window, and whether it selects
// columns. rates: AdamW's options. loss_scale: the factor of all gradients (run.h).
static void zen_begin(GPT2 *g, ZenRates rates, double loss_scale) {
    ZenFlow *z = g->zen;
    const size_t n = zen_ranks(g) * zen_numbers(&z->config) * z->map.mixed;
    if (loss_scale != 1 && zen_needs_sums(&z->config, &z->map, &z->clock))
        for (size_t i = 0; i < n; i++) z->host_sums[i] /= (float)loss_scale;
    z->rates = rates;
    z->swapped = 0;
    z->turn = zen_turn(&z->config, &z->map, &z->clock, z->host_sums, zen_ranks(g));
    z->only_chosen = !z->turn.drains
                  && !(z->turn.closes && zen_is_late(&z->config, &z->clock));
}

// Updates the chosen columns of a segment, and copies the new weights into the segment. If the host
// stores the segment's weights, zen_arrived() copies them instead.
static void update_chosen(GPT2 *g, const Piece *p, const AdamStep *step) {
    const ZenFlow *z = g->zen;
    const Segment *seg = &g->segment[p->segment];
    const int updating = timeline_begin(&g->timeline, ROW_UPDATE, "update", (size_t)p->segment,
                                        (seg->own - seg->leaving) * g->waiting_bytes, g->update);
    floatX *const weights = seg->on_host ? NULL : (floatX *)p->params;
    columns_adam_gpu(weights, p->state[0], p->state[1], p->state[2], zen_grad(g, p),
                     g->waiting_bytes == 2, &z->map, p->segment, z->column, step, g->update);
    timeline_end(&g->timeline, updating, g->update);
}

// Queues the worker's work on segment s. `gradient`: it adds this step's gradient to the sum of the
// open window. `update`: it updates by the last window's sum; with both, by the open one's.
static void zen_on_host(GPT2 *g, int s, bool gradient, bool update, float scale) {
    ZenFlow *z = g->zen;
    if (z->map.segment[s].rest == 0) return;
    const Piece *p = g->segment[s].end - 1;  // the late piece
    AdamWork work = host_work(g, p, update ? &z->late_step : NULL);
    work.first = gradient && z->clock.filled == 0;
    work.scale = scale;
    if (update && work.first) work.step.grad_scale = scale;  // window of one step: no sum is needed
    else work.sum = z->acc + (size_t)(gradient ? z->sum : 1 - z->sum) * z->map.rest + p->state_at;
    if (gradient) {
        work.grad = p->host_grad;
        work.grad_is_half = sizeof(floatX) == 2;
        stream_wait(g->host.stream, g->grad_arrived[s]);
    }
    if (update) stream_wait(g->host.stream, z->result_free[s]);
    host_submit(g, p, (size_t)s, &work);
    if (gradient) event_record(g->landings.free[s], g->host.stream);
    if (update) event_record(z->computed[s], g->host.stream);
}

// Queues the late update of more segments for the worker, until `due` elements are queued in all.
static void zen_compute_until(GPT2 *g, size_t due) {
    ZenFlow *z = g->zen;
    for (; z->queued < z->map.segments && z->map.segment[z->queued].rest_at < due; z->queued++)
        zen_on_host(g, z->queued, false, true, 0);
}

// Copies a piece's newest weights to the weights in use. The worker runs it.
static void zen_copies(const void *piece) {
    const Piece *p = (const Piece *)piece;
    cpu_copy(p->params, p->weights, p->length * sizeof(floatX));
}

// Makes the new weights of segment s's late columns the weights in use: copies them to the GPU and
// unpacks them or, if the host stores the layer, copies them on the host. The next forward pass
// waits for the copy. (No copy of the old weights to the GPU is under way: backward has used them.)
static void zen_show(GPT2 *g, int s) {
    ZenFlow *z = g->zen;
    const bool is_half = sizeof(floatX) == 2, streams = g->segment[s].on_host;
    if (z->map.segment[s].rest == 0) return;
    const Piece *p = g->segment[s].end - 1;  // the late piece
    const size_t bytes = p->length * sizeof(floatX);
    cudaStream_t stream = streams ? g->host.stream : g->back;
    stream_wait(stream, z->computed[s]);
    const int row = streams ? ROW_HOST : ROW_BACK;
    const int span = timeline_begin(&g->timeline, row, "back", (size_t)s, bytes, stream);
    if (streams) {
        host_takes(&g->host, 2 * bytes);
        host_queue_submit(&g->host, zen_copies, p, sizeof *p);
    } else {
        copy_in(g, z->landing, p->weights, bytes, stream);
    }
    timeline_end(&g->timeline, span, stream);
    event_record(z->result_free[s], stream);
    if (!streams)
        columns_move_gpu(false, p->params, is_half, z->landing, is_half, &z->map, s,
                         true, z->column, stream);
    event_record(g->returned[s], stream);
}

// Completes segment s after its late columns, which the host stores, were copied to the GPU:
// unpacks them into their columns, and fills the chosen columns from their masters.
static void zen_arrived(GPT2 *g, size_t s) {
    const ZenFlow *z = g->zen;
    const bool is_half = sizeof(floatX) == 2;
    floatX *const weights = g->params + g->segment[s].own_param_at;
    GPU_TAKES(g->weights_in, 2 * g->segment[s].own * sizeof(floatX), gpu_bytes);
    columns_move_gpu(false, weights, is_half, z->shown, is_half, &z->map, (int)s, true,
                     z->column, g->weights_in);
    columns_move_gpu(false, weights, is_half, g->segment[s].first->state[0], g->master_bf16,
                     &z->map, (int)s, false, z->column, g->weights_in);
}

// Gathers the chosen columns of segment s's weights, packed. zero_gather() gathers all columns.
static void zen_gather(GPT2 *g, size_t s) {
    const ZenFlow *z = g->zen;
    Zero *zero = g->zero;
    floatX *const weights = g->params + g->segment[s].param_at;
    const size_t bytes = z->all.segment[s].chosen * sizeof(floatX);
    const bool is_half = sizeof(floatX) == 2;
    stream_wait(zero->stream, g->updated[s]);
    const int span = timeline_begin(&g->timeline, ROW_COMM, "gather", s, bytes, zero->stream);
    columns_move_gpu(true, z->shared, is_half, weights, is_half, &z->all, (int)s, false, z->column,
                     zero->stream);
    between_rows(zero, z->shared, z->begin + s * (zero->world + 1), false);
    columns_move_gpu(false, weights, is_half, z->shared, is_half, &z->all, (int)s, false, z->column,
                     zero->stream);
    timeline_end(&g->timeline, span, zero->stream);
    event_record(zero->gathered[s], zero->stream);
}

// Queues the work on late columns at the end of a step; scale: the factor that clips the gradient.
// If forward waits for the new weights, the worker takes the segments in forward's order. Else it
// begins with the last segment, as backward does, which waits for the gradients' memory.
static void zen_window(GPT2 *g, float scale) {
    ZenFlow *z = g->zen;
    const ZenTurn turn = z->turn;
    const int segments = z->map.segments;
    const bool one_pass = turn.closes && (turn.drains || z->sums < 2);
    if (turn.closes && zen_is_late(&z->config, &z->clock)) {
        zen_compute_until(g, SIZE_MAX);  // what is not queued yet
        for (int s = 0; !turn.drains && s < segments; s++) zen_show(g, s);
    }
    for (int s = segments - 1; !one_pass && s >= 0; s--) zen_on_host(g, s, true, false, scale);
    if (turn.closes) {
        z->late_step = zen_rest_step(&z->clock, &z->rates, turn.steps);
        z->queued = one_pass ? segments : 0;
        z->due = 0;
        z->share = z->map.rest / (z->config.window > 0 ? z->config.window : turn.steps) + 1;
        for (int i = 0; one_pass && i < segments; i++) {
            zen_on_host(g, turn.drains ? i : segments - 1 - i, true, true, scale);
            if (turn.drains) zen_show(g, i);
        }
        if (z->sums == 2 && !one_pass) z->sum = 1 - z->sum;
    }
    zen_compute_until(g, z->due += z->share);
    zen_turn_end(&z->config, &z->clock, &turn);
}

// Adds ZenFlow's counters to the line of log.jsonl. Stalls are those of the step that "offload"
// names. In stall_forward_ms forward waits for new weights or, at a selection, for all work; in
// stall_backward_ms backward waits until the worker has read the gradients of the step before.
static void zen_log(const GPT2 *g, char *json, size_t n) {
    const ZenFlow *z = g->zen;
    const TimelineStep *d = &g->timeline.done;
    const size_t used = strlen(json);
    snprintf(json + used, n - used, ",\"zenflow\":{\"closes\":%s,\"selections\":%zu,"
             "\"swapped\":%zu,\"proxy_bytes\":%zu,\"stall_forward_ms\":%.6g,"
             "\"stall_backward_ms\":%.6g}", z->turn.closes ? "true" : "false", z->clock.selections,
             z->swapped, z->proxy_bytes, 1e3 * (d->stalled - d->stalled_backward),
             1e3 * d->stalled_backward);
}

// ---------------------------------------------------------------------------------------------
// 4. Selection

// Swaps columns of tensor z in segment s, on the CPU: of the masters (k = 0), m (1) or v (2).
static void zen_exchange(GPT2 *g, int s, const ZenTensor *z, const ZenSwap *swaps, size_t count,
                         int k) {
    const ZenSegment *x = &g->zen->map.segment[s];
    const Piece *mine = g->segment[s].first, *late = g->segment[s].end - 1;
    const size_t size = g->state_bytes[PIECE_CHOSEN][k], width = z->cols - z->chosen;
    const size_t bytes = z->rows * z->chosen * size;
    const bool split = k == 0 && first_state(g, late) == 0;
    char *here = (char *)mine->state[k] + (z->chosen_at - x->chosen_at) * size;
    char *chosen = ALLOC(char, bytes, "columns"), *rest = (char *)late->state[k];
    floatX *weights = (floatX *)late->weights, *shown = (floatX *)late->params;
    if (k == 0 && !split) rest = (char *)weights;
    gpu_copy(chosen, here, bytes);
    #pragma omp parallel for schedule(static)
    for (size_t r = 0; r < z->rows; r++)
        for (size_t j = 0; j < count; j++) {
            const size_t at = z->rest_at - x->rest_at + r * width + (size_t)swaps[j].rest;
            char *b = chosen + (r * z->chosen + (size_t)swaps[j].chosen) * size, c[4];
            memcpy(c, b, size);
            if (split) {
                uint16_t *weight = (uint16_t *)weights + at, *low = (uint16_t *)rest + at;
                const float mine = *(float *)b;
                *(float *)b = master_f32(*weight, *low);
                *weight = master_weight(mine);
                *low = master_low(mine);
            } else {
                memcpy(b, rest + at * size, size);
                memcpy(rest + at * size, c, size);
            }
            if (k == 0 && g->segment[s].on_host) shown[at] = weights[at];
        }
    gpu_copy(here, chosen, bytes);
    free(chosen);
    g->moved_out += bytes;
    g->moved_in += bytes;
}

// Selects columns anew, while no update is under way and no gradient waits. Swaps masters and
// moments of columns that become chosen and columns that are no longer chosen; weights in use stay.
static void zen_exchange_columns(GPT2 *g) {
    ZenFlow *z = g->zen;
    compute_span(g, "wait", 0);  // compute has no work until the host has swapped
    device_sync();
    ZenSwap *swaps = ALLOC(ZenSwap, z->map.columns, "columns");
    for (int i = 0; i < z->map.count; i++) {
        const ZenTensor *t = &z->map.tensor[i];
        const size_t count = zen_select(&z->map, i, z->clock.scores + t->column_at, swaps);
        for (int k = 0; k < 3 && t->rows > 0 && count > 0; k++)
            zen_exchange(g, g->table.tensors[i].layer + 1, t, swaps, count, k);
        zen_swap(&z->map, i, swaps, count);
        z->swapped += count;
    }
    free(swaps);
    gpu_copy(z->column, z->map.column, z->map.columns * sizeof(int32_t));
    compute_span(g, NULL, 0);
}

// ---------------------------------------------------------------------------------------------
// 5. Checkpoints

// Copies n elements of an array of a packed piece, from element `at` on, to w (`out`) or from w.
// part 0, 1, 2: an array of the state. part 3, only if the host stores the layer's weights: the
// weights that forward uses; those of chosen columns are the master weights, rounded.
static void zen_part(const GPT2 *g, const Piece *p, int part, size_t at, float *w, size_t n,
                     bool out) {
    const bool late = p->kind == PIECE_LATE, streams = g->segment[p->segment].on_host;
    if (part < 3 || (!late && out)) state_copy(g, p, part % 3, at, w, n, out);
    if (late && streams && (part == 3 || (part == 0 && !out)))
        floats_move((floatX *)p->params + at, w, n, out);
    for (size_t i = 0; part == 3 && !late && out && i < n; i++)
        w[i] = to_f32(weight_from<floatX>(w[i]));
}

// Implements RunState.move: copies the weights in use (part 3) or a part of the state between w, in
// the table's layout, and the two packed pieces. Loaded masters also become the weights in use.
static void zen_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    GPT2 *g = (GPT2 *)owner;
    const ZenFlow *z = g->zen;
    const int tensor = gpt2_tensor_at(&g->table, at), segment = g->table.tensors[tensor].layer + 1;
    const Segment *seg = &g->segment[segment];
    if (!seg->on_host) {
        floatX *here = g->params + seg->param_at + (at - seg->at);
        if (part == 3 || (part == 0 && !out)) floats_move(here, w, n, out);
        if (part == 3) return;
    }
    const ZenTensor *t = &z->map.tensor[tensor];
    const ZenSegment *s = &z->map.segment[segment];
    const int32_t *column = z->map.column + t->column_at;
    // This rank has elements [begin, end) of the range, counted from its first row of the tensor.
    const size_t own = g->table.tensors[tensor].offset + t->row * t->cols;
    const size_t begin = at > own ? at - own : 0;
    const size_t end = at + n > own ? min_size(at + n - own, t->rows * t->cols) : 0;
    if (begin >= end) return;
    const Piece *mine = seg->first, *late = seg->end - 1;
    w += own + begin - at;
    const size_t r0 = begin / t->cols, rows = (end - 1) / t->cols + 1 - r0;
    const size_t chosen = t->chosen, rest = t->cols - chosen;
    const size_t here = t->chosen_at - s->chosen_at + r0 * chosen;
    const size_t away = t->rest_at - s->rest_at + r0 * rest;
    float *packed = ALLOC(float, rows * t->cols, "checkpoint"), *others = packed + rows * chosen;
    if (chosen > 0) zen_part(g, mine, part, here, packed, rows * chosen, true);
    if (rest > 0) zen_part(g, late, part, away, others, rows * rest, true);
    #pragma omp parallel for if (end - begin > 1 << 16)
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < t->cols; j++) {
            const size_t e = (r0 + r) * t->cols + (size_t)column[j];
            if (e < begin || e >= end) continue;
            float *x = j < chosen ? &packed[r * chosen + j] : &others[r * rest + j - chosen];
            if (out) w[e - begin] = *x;
            else *x = part % 3 == 0 ? master_rounded(w[e - begin]) : w[e - begin];
        }
    if (chosen > 0 && !out) zen_part(g, mine, part, here, packed, rows * chosen, false);
    if (rest > 0 && !out) zen_part(g, late, part, away, others, rows * rest, false);
    free(packed);
}

#endif
