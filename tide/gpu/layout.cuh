// layout.cuh: the memory of a model on the GPU. A choice (OffloadChoice) decides where pieces and
// segments are stored. One list names every buffer, and the plan of memory is that list.
//   gpt2_place(), zo_place()               place pieces, segments and rooms by g->choice
//   gpt2_buffers()                         lists every buffer; gpt2_bytes(): their sum
//   gpt2_take(), gpt2_settle()             set g->choice; replace each "auto" in it
//   gpt2_print()                           prints the choice and the memory
//   gpt2_allocate(), gpt2_release(), gpt2_free()    memory, streams and events
//   gpt2_update_wait(), gpt2_state(), gpt2_load()   the state, as checkpoints see it
#ifndef TIDE_LAYOUT_CUH
#define TIDE_LAYOUT_CUH
#include "weights.cuh"
#include "zenflow.cuh"
#include "zo.cuh"

// Places gradients that wait for the update over the activations of their own layer, as many as
// fit: nothing reads the activations any more. The other gradients are side by side in g->waiting.
static void gradients_over_acts(GPT2 *g) {
    Pieces *list = &g->pieces;
    const size_t stride = acts_place(g).stride;
    size_t at = 0;
    int segment = 0;
    list->grads_gpu = 0;
    for (Piece *p = list->pieces; p < list->pieces + list->count; p++) {
        const size_t bytes = round_up(p->length * sizeof(floatX), 256);
        if (!p->grad_on_gpu) continue;
        if (p->segment != segment) at = 0;
        segment = p->segment;
        const bool layer = segment >= 1 && segment < g->segments - 1;
        p->over_acts = layer && at + bytes <= stride;
        p->grad_at = p->over_acts ? at : list->grads_gpu;
        if (p->over_acts) at += bytes;
        *(p->over_acts ? &g->grads_over_acts : &list->grads_gpu) += p->length;
    }
}

// Places each segment's weights, and its gradient: in a room of its own if the gradient waits there
// for the update, else in a room that layers use in turn. Sizes the slots and the landings, and
// counts the weights that the host stores.
static void rooms_place(GPT2 *g) {
    const Pieces *list = &g->pieces;
    const int tail = g->segments - 1, L = tail - 1;
    const bool whole = g->in_place && !g->update_in_backward;  // each gradient has its own room
    const int turns = whole ? L : rooms_of(g->choice.grad_rooms, LEAST_ROOMS, L);
    const size_t first = g->segment[0].padded, ends = first + g->segment[tail].padded;
    const size_t grad = g->choice.kept_grads < list->visits ? g->host_grad_bytes : 0;
    size_t longest = 0, weights = 0, at = 0;
    const ActsPlace acts = acts_place(g);
    weights_place(g);
    g->input_rooms = Rooms{.count = (int)acts.rooms, .bytes = acts.entry};
    g->grad_rooms = Rooms{.count = turns, .apart = 2};
    g->grad_elements = ends + (size_t)turns * g->segment[1].padded;
    for (int i = 0; i < g->segments; i++) {
        Segment *seg = &g->segment[i];
        const bool layer = i >= 1 && i < tail;
        if (seg->leaving > 0 && seg->own > longest) longest = seg->own;
        seg->grad_room = layer ? i % turns : turns + (i > 0);
        seg->grad_at = whole ? at
                     : layer ? ends + (size_t)(i % turns) * seg->padded : i > 0 ? first : 0;
        at += seg->padded;
    }
    g->landings = Rooms{.count = g->zen != NULL ? g->segments : g->lands ? 2 : 0,
                        .bytes = g->lands ? longest * sizeof(floatX) : 0};
    g->weights_on_host = 0;
    for (Piece *p = list->pieces; p < list->pieces + list->count; p++) {
        const bool streams = g->segment[p->segment].on_host, late = p->kind == PIECE_LATE;
        const bool visits = streams && p->kind == PIECE_VISIT;
        if (visits) weights = sizeof(floatX);
        if (p->kind != PIECE_HOST && !late && !visits) continue;
        p->weights_at = g->weights_on_host;
        g->weights_on_host += p->length;
        if (streams && late) g->weights_on_host += p->length;  // a second copy: the weights in use
    }
    g->slots = Rooms{.count = rooms_of(g->choice.slots, LEAST_SLOTS, list->visits),
                     .bytes = list->longest_visit
                            * (g->piece_bytes[PIECE_VISIT] + weights + grad)};
}

// Sets where gradients wait on the host. Each piece has memory of its own. But if updates begin in
// backward, the layers use HOST_ROOMS rooms in turn, and embeddings and tail have one each.
enum { HOST_ROOMS = 3 };
static void host_rooms_place(GPT2 *g) {
    const int tail = g->segments - 1;
    const size_t first = g->segment[0].leaving, ends = first + g->segment[tail].leaving;
    const int rooms = rooms_of(HOST_ROOMS, 0, tail - 1);
    size_t longest = 0, at = 0;
    for (int i = 1; i < tail; i++) longest = max_size(longest, g->segment[i].leaving);
    const size_t all = ends + (size_t)rooms * longest;
    const bool few = g->update_in_backward && !g->lands && all < g->pieces.grads_host;
    g->host_rooms = few ? rooms : 0;
    g->host_grad_elements = few ? all : g->pieces.grads_host;
    for (int i = 0, segment = -1; few && i < g->pieces.count; i++) {
        Piece *p = &g->pieces.pieces[i];
        if (p->grad_on_gpu) continue;
        if (p->segment != segment)
            at = p->segment == 0 ? 0 : p->segment == tail ? first
               : ends + (size_t)(p->segment % rooms) * longest;
        segment = p->segment;
        p->grad_at = at;
        at += p->length;
    }
}

// Cuts the parameters that this process updates into segments and pieces, as g->choice says, and
// places them in memory (train_gpt2.cu explains the words).
static void gpt2_place(GPT2 *g) {
    const GPT2Table *t = &g->table;
    const int stage = zero_stage(g->zero);
    free(g->segment);
    free(g->ranges);
    free(g->visits);
    pieces_free(&g->pieces);
    gpt2_sizes(g);
    g->pieces = offload_pieces(t, &g->shards, &g->choice);
    if (g->zen != NULL) zen_pieces(&g->pieces, g->zen);
    const Pieces *list = &g->pieces;
    g->offloaded = list->elements[PIECE_RESIDENT] < g->shards.elements;
    g->in_place = !g->accumulating && (g->update_in_backward || (!g->offloaded && stage < 2
                                                                 && !g->choice.apart));
    g->segments = zero_segments(t);
    g->segment = ALLOC(Segment, (size_t)g->segments, "segments");
    g->ranges = ALLOC(StateRange, (size_t)g->segments, "segments");
    g->visits = ALLOC(Visitor, (size_t)list->count + 1, "pieces");
    size_t own_at = 0;
    for (int i = 0; i < g->segments; i++) {
        Segment *seg = &g->segment[i];
        seg->length = zero_segment(t, i, &seg->at);
        seg->cut = seg->padded = seg->own = seg->length;
        seg->own_from = seg->at;
        if (g->zero != NULL) zero_place(g->zero, i, seg);
        seg->own_at = own_at;
        own_at += seg->own;
        g->ranges[i] = StateRange{seg->own_from, seg->own};
    }
    for (const Piece *p = list->pieces; p < list->pieces + list->count; p++) {
        Segment *seg = &g->segment[p->segment];
        if (seg->first == NULL) seg->first = p;
        seg->end = p + 1;
        if (!p->grad_on_gpu) seg->leaving += p->length;
    }
    for (int i = 0, visit = 0; i < g->segments; i++) {
        const Segment *seg = &g->segment[update_order(g, i)];
        for (const Piece *p = seg->first; p < seg->end; p++)
            if (p->kind == PIECE_VISIT) g->visits[visit++].piece = p;
    }
    g->grads_over_acts = 0;
    if (g->training && g->choice.recompute != RECOMPUTE_BLOCK && !g->accumulating && !g->in_place
        && g->zen == NULL)
        gradients_over_acts(g);
    rooms_place(g);
    host_rooms_place(g);
}

// Places a model for zeroth-order training, with `residents` layers on the GPU and the others on
// the host. Layers on the GPU are spread evenly: while one computes, the next visitor is copied.
static void zo_place(GPT2 *g, size_t residents, size_t slots) {
    Zo *zo = g->zo;
    const GPT2Table *t = &g->table;
    const size_t L = g->config.layers, C = g->config.channels, stay = min_size(residents, L);
    // the first tensor that each part of a layer reads (layer_part())
    static const int begins[LAYER_PARTS] = {LN_1_W, ATTPROJ_W, FC_W, FCPROJ_W};
    g->choice.mode = OFFLOAD_NONE;
    gpt2_place(g);
    g->streamed = (int)(L - stay);
    g->offloaded = g->streamed > 0;
    zo->slots = min_size(slots, L - stay);
    g->param_elements = g->weights_on_host = 0;
    for (size_t i = 0; i < L + 2; i++) {
        Segment *seg = &g->segment[i];
        seg->on_host = i >= 1 && i <= L && i * stay / L == (i - 1) * stay / L;
        size_t *at = seg->on_host ? &g->weights_on_host : &g->param_elements;
        seg->param_at = seg->own_param_at = *at;
        *at += seg->length;
    }
    for (Piece *p = g->pieces.pieces; p < g->pieces.pieces + g->pieces.count; p++) {
        const Segment *seg = &g->segment[p->segment];
        p->weights_at = seg->param_at + (p->at - seg->own_at);
    }
    zo->row = max_size(config_att(&g->config), C);
    zo->scratch = 2 * round_up(C, ALIGN_ELEMENTS);
    for (int k = 0; k < LAYER_PARTS; k++) {
        const int first = t->within[begins[k]];
        const int end = k + 1 < LAYER_PARTS ? t->within[begins[k + 1]] : t->per_layer;
        const GPT2Tensor *layer = &t->tensors[t->first_layer];
        zo->group[k] = zo_group(t, t->first_layer + first, end - first);
        zo->group_at[k] = layer[first].offset - layer->offset;
        if (zo->group[k].length > zo->scratch) zo->scratch = zo->group[k].length;
    }
    // The tokens of a chunk of the vocabulary: as many as fit in scratch, from 512 to 8192, or all.
    zo->chunk = max_size(zo->scratch / C / ALIGN_ELEMENTS * ALIGN_ELEMENTS, 512);
    zo->chunk = min_size(min_size(zo->chunk, 8192), g->config.vocab_padded);
    zo->scratch = max_size(zo->scratch, round_up(zo->chunk * C, ALIGN_ELEMENTS));
}

// Returns how many floats of scratch memory backward needs to sum over rows.
static size_t sums_scratch(const GPT2Config *c, size_t N) {
    const size_t norms = layernorm_backward_scratch(N, c->channels);
    const size_t heads = c->qk_norm ? heads_backward_scratch(N, config_head(c)) : 0;
    const size_t biases = max_size(bias_backward_scratch(N, config_qkv(c)),
                                   bias_backward_scratch(N, config_mlp(c)));
    return max_size(norms, max_size(heads, biases));
}

// Lists every buffer, on the GPU and on the host, for batches of max_B x max_T. Arenas (ZERO) begin
// as zeros, because no kernel writes the gaps between tensors. Other buffers (ANY) begin with any
// bytes; the emulated GPU fills them with NaN.
static int gpt2_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    const size_t C = g->config.channels, A = config_att(&g->config), N = g->max_B * g->max_T;
    const size_t wide = config_wide(&g->config), X_ = sizeof(floatX), f32 = sizeof(float);
    const size_t L = g->config.layers;
    if ((double)N * (double)(2 * L + 2 * ZO_QUERIES + 4) * (double)(6 * C + 4 * wide) * 4 > 1e18)
        die("--batch %zu times --seq %zu is more than any machine can hold", g->max_B, g->max_T);
    if (g->zo != NULL) return zo_buffers(g, list);
    int n = 0;
    BUFFER(ZERO, "parameters", g->param_elements * X_, g->params);
    BUFFER(ANY, "activations", acts_place(g).all, g->acts);
    BUFFER(ANY, "activations", N * C * X_, g->ln_f);
    if (!g->config.rms) BUFFER(ANY, "activations", N * f32, g->mean_f);
    BUFFER(ANY, "activations", N * f32, g->rstd_f);
    BUFFER(ANY, "activations", N * (g->training && A > C ? A : C) * X_, g->branch);
    if (g->config.rope.theta > 0) BUFFER(ANY, "rotary", rope_floats(g) * f32, g->rope);
    if (g->sampling) BUFFER(ANY, "sampling", L * layer_cache(g) * X_, g->cache);
    BUFFER(ANY, "logits", min_size(g->head_rows, N) * g->config.vocab_padded * X_, g->logits);
    BUFFER(ANY, "logits", N * f32, g->losses);
    BUFFER(ANY, "logits", 2 * sizeof(double), g->loss);
    BUFFER(ANY, "tokens", batch_numbers(g, true) * sizeof(int32_t), g->tokens);
    if (g->training) {
        const size_t *of = g->pieces.elements, grads_host = g->pieces.grads_host;
        const size_t here = of[PIECE_RESIDENT] + of[PIECE_CHOSEN];
        const size_t away = of[PIECE_HOST] + of[PIECE_VISIT] + of[PIECE_LATE];
        const int kind = g->zen != NULL ? PIECE_CHOSEN : PIECE_RESIDENT;
        const char *const state_names[3] = {"master weights", "AdamW moments", "AdamW moments"};
        const size_t head = g->config.vocab_padded * config_embed(&g->config);
        for (int k = 0; k < 3; k++)
            BUFFER(ZERO, state_names[k], here * g->state_bytes[kind][k], g->state[k]);
        BUFFER(ZERO, "gradients", g->grad_elements * X_, g->grads);
        const size_t waiting = g->sums_on_gpu ? g->shards.elements
                             : g->in_place ? 0 : g->pieces.grads_gpu;
        BUFFER(ZERO, "gradients", waiting * g->waiting_bytes, g->waiting);
        BUFFER(ANY, "slots", (size_t)g->slots.count * g->slots.bytes, g->slots.memory);
        if (g->zero != NULL) n = zero_buffers(g, list, n);
        if (g->host_grad_bytes > X_ && !g->accumulating && grads_host > 0)
            BUFFER(ANY, "gradients", wire_chunk * f32, g->wire);
        if (!head_in_place(g)) BUFFER(ANY, "gradients", head * f32, g->dwte);
        BUFFER(ANY, "backward", N * C * X_, g->dx);
        const size_t sums = (config_mlp(&g->config) + g->config.ffn) * C * f32;
        BUFFER(ANY, "backward", wide_elements(g, N) * X_, g->dwide);
        BUFFER(ANY, "backward", N > mlp_rows(g) ? sums : 0, g->mlp_sums);
        BUFFER(ANY, "backward", N * g->config.heads * f32, g->delta);
        BUFFER(ANY, "backward", sums_scratch(&g->config, N) * f32, g->scratch);
        BUFFER(ANY, "backward", g->pieces.blocks * sizeof(double), g->norm_sums);
        BUFFER(ANY, "backward", norm_runs(g->zero != NULL ? g->zero->all_blocks : g->pieces.blocks)
                               * sizeof(double), g->run_sums);
        for (int k = 0; k < 3; k++)
            BUFFER(HOST, state_names[k], away * g->state_bytes[PIECE_HOST][k], g->host_state[k]);
        BUFFER(HOST, "gradients", g->host_grad_elements * g->host_grad_bytes, g->host_grads);
        BUFFER(HOST, "weights", g->weights_on_host * X_, g->host_weights);
        BUFFER(HOST, "activations", g->choice.inputs_leave ? (L - 1) * acts_place(g).entry : 0,
               g->host_inputs);
        BUFFER(HOST, "gradients", (size_t)g->landings.count * g->landings.bytes,
               g->landings.memory);
        if (g->zen != NULL) n = zen_buffers(g, list, n);
    }
    list[n++] = Buffer{"workspace", MATMUL_WORKSPACE, NULL, BUFFER_ANY};  // made by matmul_open()
    return n;
}

// Returns the bytes of the plan, on the host or on the GPU, in whole units of allocation.
static size_t gpt2_bytes(GPT2 *g, bool host) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    size_t total = 0, unit = host ? 4096 : 256;
    for (int i = 0; i < n; i++)
        if ((list[i].kind == BUFFER_HOST) == host) total += round_up(list[i].bytes, unit);
    return total;
}

// Makes *c the choice, and places everything by it; allocates nothing.
static void gpt2_take(GPT2 *g, const OffloadChoice *c) {
    g->choice = *c;
    if (g->zen != NULL) {  // ZenFlow: sum_on_host means that the host keeps one sum, not two
        zen_settle_sums(g->zen, c->sum_on_host);
        g->choice.sum_on_host = false;
    }
    gpt2_place(g);
}

// Implements OffloadMemory.needs: computes the memory that choice c needs, and leaves the model
// placed by c. With --weights host, the weights of at least one layer must be on the host.
// A layer whose MLP is computed in chunks keeps either all activations or none.
static void gpt2_needs(void *model, const OffloadChoice *c, size_t *gpu, size_t *host) {
    GPT2 *g = (GPT2 *)model;
    gpt2_take(g, c);
    const bool impossible = (g->weights == WEIGHTS_HOST && g->streamed == 0)
                            || (c->kept_layers > 0 && g->max_B * g->max_T > mlp_rows(g));
    *gpu = impossible ? SIZE_MAX : gpt2_bytes(g, false);
    *host = gpt2_bytes(g, true);
}

static OffloadMemory gpt2_memory(GPT2 *g, int recompute, size_t gpu, size_t host) {
    return OffloadMemory{gpt2_needs, g, min_size(gpu, SIZE_MAX - 1), host,
                         !g->training ? (int)RECOMPUTE_NONE
                         : g->choice.inputs_leave ? (int)RECOMPUTE_BLOCK : recompute,
                         g->accumulating || g->zen != NULL, g->weights, (int)g->config.layers,
                         g->least, zero_stage(g->zero) == 3};
}

// Replaces each "auto" in g->choice; its mode is not "auto". Returns whether the result fits.
static bool gpt2_settle(GPT2 *g, const OffloadMemory *m) {
    OffloadChoice c = g->choice;
    const bool fits = choice_settle(m, &c);
    gpt2_take(g, &c);
    return fits;
}

// Prints the choice, and the memory of each kind.
static void gpt2_print(GPT2 *g, const Run *r, size_t limit, size_t host_limit) {
    Buffer list[MAX_BUFFERS];
    const size_t world = r->world, L = g->config.layers, *n = g->pieces.elements;
    if (g->zero != NULL && g->zero->stage != zero_asked(&r->o))
        printf("--zero auto takes ZeRO-3, which deals out the weights, too: ZeRO-2 does not fit\n");
    const int buffers = gpt2_buffers(g, list);
    plan_print("GPU", list, buffers, gpt2_bytes(g, false), limit, world);
    if (gpt2_bytes(g, true) > 0)
        plan_print("host", list, buffers, gpt2_bytes(g, true), host_limit, world);
    if (g->zo != NULL && g->offloaded)
        printf("%d of %zu layer%s, of %.1f MiB, are on the host and visit %zu slot%s%s\n",
               g->streamed, L, plural(L), mib(zo_layer_bytes(g)), g->zo->slots,
               plural(g->zo->slots), r->o.resident_blocks == AUTO_COUNT
                                         ? ": all of them would not fit on the GPU" : "");
    if (!g->training) return;
    printf("offload %s: %s parameters", offload_names[g->choice.mode],
           count_text((double)g->shards.elements).text);
    if (g->zen != NULL) zen_print(g);
    else if (n[PIECE_HOST] > 0)
        printf(", %s updated by the CPU", count_text((double)n[PIECE_HOST]).text);
    if (n[PIECE_VISIT] > 0)
        printf(", %s visiting the GPU, at most %s in a slot",
               count_text((double)n[PIECE_VISIT]).text,
               count_text((double)g->pieces.longest_visit).text);
    if (n[PIECE_RESIDENT] > 0)
        printf(", %s resident", count_text((double)n[PIECE_RESIDENT]).text);
    printf("\n");
    if (g->offloaded) {
        printf("gradients leave through %d room%s", g->grad_rooms.count,
               plural((size_t)g->grad_rooms.count));
        if (g->slots.count > 0)
            printf(", visitors have %d slot%s", g->slots.count, plural((size_t)g->slots.count));
        printf("\n");
        if (g->choice.early > 0)
            printf("the last %d of %d segments are updated first: their gradients leave first\n",
                   g->choice.early, g->segments);
    }
    if (g->streamed > 0)
        printf("weights of %d of %zu layers are on the host, and are copied to %d room%s in turn\n",
               g->streamed, L, g->weight_rooms.count, plural((size_t)g->weight_rooms.count));
    if (g->choice.recompute == RECOMPUTE_BLOCK) {
        printf("recomputing activations in backward");
        if (g->choice.kept_layers > 0)
            printf(", of %zu of %zu layers", L - 1 - (size_t)g->choice.kept_layers, L);
        printf("\n");
    }
    if (g->choice.inputs_leave) printf("inputs of layers wait for backward on the host\n");
    if (g->choice.recompute == RECOMPUTE_LIGHT)
        printf("recomputing layer norms and the non-linearity in backward\n");
    if (g->update_in_backward)
        printf("without clipping, each segment is updated as soon as backward has its gradient\n");
    else if (r->o.clip == 0 && r->o.dump == NULL)
        printf("--clip 0: the update waits for the norm all the same, because %s\n",
               g->zen != NULL ? "ZenFlow's windows follow it"
               : g->no_overlap ? "--no-overlap says so" : "fp16 may skip the step");
    if (g->grads_over_acts > 0)
        printf("%.1f MiB of gradients wait for the update where activations were\n",
               mib(g->grads_over_acts * sizeof(floatX)));
    if (g->accumulating && g->offloaded)
        printf("gradients of the micro-batches are summed on the %s, in fp32\n",
               g->choice.sum_on_host ? "host" : "GPU");
}

// Makes the streams, and the events that order their work.
static void streams_make(GPT2 *g) {
    // Short kernels, which other streams wait for, are urgent: else matrix products delay them.
    g->compute = stream_make("compute", false);
    g->sums = stream_make("sums", true);
    g->out = stream_make("out", false);
    // the copy of a visitor's state waits for its update; in `out` it would delay other gradients
    g->flush = g->update_in_backward ? stream_make("flush", false) : g->out;
    g->fetch = stream_make("fetch", false);
    g->back = stream_make("back", false);
    g->weights_in = stream_make("weights", false);
    g->inputs_link = stream_make("inputs", false);
    g->update = stream_make("update", true);
    cudaEvent_t **const events[] = {&g->grad_arrived, &g->updated, &g->returned};
    Rooms *const rooms[] = {&g->grad_rooms, &g->weight_rooms, &g->slots, &g->landings,
                            &g->input_rooms};
    for (cudaEvent_t **e : events) *e = events_make((size_t)g->segments);
    for (Rooms *r : rooms) rooms_make(r);
    event_make(&g->handover, false);
    event_make(&g->step_left, g->offloaded);
}

static void gpt2_allocate(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    const size_t N = g->max_B * g->max_T;
    const int buffers = gpt2_buffers(g, list);
    matmul_open(&g->lt);
    if (gpt2_bytes(g, true) > 0 && g->host.stream == NULL)
        host_queue_open(&g->host, g->host_threads);
    owner_begin(&g->owner);
    for (const Buffer *b = list; b < list + buffers; b++) {
        if (b->pointer == NULL) continue;  // other code allocates it
        void *p = b->kind == BUFFER_HOST ? host_alloc(&g->host, b->bytes, b->purpose)
                                         : gpu_alloc(b->bytes, b->purpose);
        if (b->kind == BUFFER_ZERO && rehearsal == NULL) CUDA(cudaMemset(p, 0, b->bytes));
        buffer_set(b, p);
    }
    if (!g->training && g->state_bytes[PIECE_RESIDENT][0] > 0)  // needed only to load and save
        g->state[0] = owner_add(free, ALLOC(uint16_t, g->table.elements, "parameters"));
    streams_make(g);
    for (size_t i = 0; i < STAGINGS; i++) {
        Staging *s = &g->staging[i];
        s->tokens = (int32_t *)pinned_alloc(batch_numbers(g, true) * sizeof(int32_t), "tokens");
        s->device = g->tokens + (g->zo != NULL ? i * batch_numbers(g, false) : 0);
        event_make(&s->copied, g->offloaded);
        event_make(&s->used, false);
    }
    g->host_loss = (double *)pinned_alloc(2 * sizeof(double), "loss");
    if (g->lands)
        g->worker_sums = (double *)pinned_alloc(g->pieces.blocks * sizeof(double), "gradient norm");
    const size_t most = g->config.vocab > g->max_T ? g->config.vocab : g->max_T;
    g->token_count = (int32_t *)owner_add(free, ALLOC(int32_t, 2 * most, "tokens"));
    g->tenant = (int *)owner_add(free, ALLOC(int, (size_t)g->segments, "rooms"));
    g->inputs = (int32_t *)owner_add(free, ALLOC(int32_t, (g->packed ? 4 : 2) * N, "tokens"));
    g->targets = g->inputs + N;
    g->begins = g->packed ? g->targets + N : NULL;
    g->positions = g->packed ? g->begins + N : NULL;
    if (g->zero != NULL) zero_allocate(g);
    if (g->zen != NULL) zen_allocate(g);
    g->ready_stream = g->zen != NULL ? g->zen->pack : g->sums;
    g->freed_stream = g->zen == NULL && !g->sums_on_gpu ? g->out : g->ready_stream;
    pieces_point(g);
    visitors_point(g);
    if (g->zo != NULL) zo_allocate(g);
    owner_end();
    rope_upload(g);
    device_sync();  // no stream begins before all zeros are written
}

// Frees what gpt2_allocate() has made.
static void gpt2_release(GPT2 *g) {
    device_sync();
    matmul_close(&g->lt);
    if (g->host.stream != NULL) host_queue_close(&g->host);
    for (size_t i = 0; g->zo != NULL && i < g->zo->slots; i++) gpu_free(g->zo->slot[i].weights);
    owner_free(&g->owner);
}

static void gpt2_free(GPT2 *g) {
    device_sync();
    if (g->zero != NULL) zero_free(g->zero);  // frees the communicator before its stream
    if (g->zen != NULL) zen_free(g->zen);
    gpt2_release(g);
    free(g->zo);
    free(g->segment);
    free(g->ranges);
    free(g->visits);
    pieces_free(&g->pieces);
    free(g->shards.shards);
    free(g->table.tensors);
}

// ---------------------------------------------------------------------------------------------
// The state, as checkpoints save and load it

// Waits until the last update is complete, of weights and of state.
static void gpt2_update_wait(GPT2 *g) {
    if (g->zen != NULL) zen_compute_until(g, SIZE_MAX);
    if (g->zo != NULL) zo_update_weights(g);
    device_sync();
}

// Returns where a piece begins in the arena, in elements.
static size_t arena_at(const GPT2 *g, const Piece *p) {
    const Segment *seg = &g->segment[p->segment];
    return seg->own_from + (p->at - seg->own_at);
}

// Implements RunState.move: copies state between pieces and w. If it loads master weights, also
// sets the weights in use.
static void gpt2_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    const GPT2 *g = (const GPT2 *)owner;
    for (const Piece *p = g->pieces.pieces; p < g->pieces.pieces + g->pieces.count; p++) {
        const size_t begin = arena_at(g, p), from = begin > at ? begin : at;
        const size_t to = min_size(begin + p->length, at + n);
        if (from >= to) continue;
        state_copy(g, p, part, from - begin, w + (from - at), to - from, out);
        if (part == 0 && !out && p->weights != p->params)
            gpu_copy((floatX *)p->params + (from - begin), (floatX *)p->weights + (from - begin),
                     (to - from) * sizeof(floatX));
    }
}

// Describes the state of this process's shards, for checkpoints.
static RunState gpt2_state(GPT2 *g) {
    return RunState{g->training ? 3 : 1, g->ranges, g->segments,
                    g->zen != NULL ? zen_move : gpt2_move, g, g->moments_bf16, INFINITY};
}

// Loads the first values of weights and state: a checkpoint's, or those that --model names.
static void gpt2_load(GPT2 *g, Run *r) {
    RunState state = gpt2_state(g);
    if (g->zen != NULL && zen_is_saved(r)) state.parts = STATE_PARTS;
    run_load(r, &state);
    if (g->zen != NULL) {  // no late update is left to do: a checkpoint is saved after it
        r->saves.parts = STATE_PARTS;
        g->zen->queued = g->zen->map.segments;
    }
    if (g->zo != NULL) zo_loaded(g, r);
    weights_renew(g);
}

#endif
