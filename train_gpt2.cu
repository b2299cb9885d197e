// train_gpt2.cu: train a GPT-2 (or OPT) on a GPU, in bf16 with fp32 master weights, or in fp32.
//
//   1. The model: memory, forward, backward, update
//   2. Sampling
//   3. Evaluation, the training loop, with its streams and events, and main()
//
// The twin of train_gpt2.c: the same functions by the same names in the same order, so that the two
// can be read side by side, and every tensor of the one is tested against the other's. What a GPU
// wants otherwise is explained where it is done: doc/mixed_precision.md (bf16), doc/attention.md,
// doc/classifier.md (the head), doc/recompute.md, doc/streams.md.
//
// floatX is the type in which parameters, activations and gradients are stored (gpu.cuh). This file
// is compiled once for each: bf16, float, and f16 for forward passes without a backward. All
// arithmetic is in fp32. Letters for shapes are train_gpt2.c's. Nothing is summed with atomics: the
// same run gives the same bits. Everything is queued in streams; the host runs ahead, at most two
// micro-batches (upload()), and waits once per step for a result, the gradient norm. --plan runs
// train_step() with streams that only write down what they are given (rehearsal.h).

#include "tide/evaluate.h"
#include "tide/sample.h"
#include "tide/weights.cuh"
#include "tide/zenflow.cuh"
#include "tide/zo.cuh"

// =============================================================================================
// 1. The model

// Lets as many gradients of layers as have room there wait for the update where the layer's
// activations were; what waits elsewhere moves together.
static void gradients_over_acts(GPT2 *g) {
    Pieces *list = &g->pieces;
    size_t at = 0;
    int segment = 0;
    list->grads_gpu = 0;
    for (int i = 0; i < list->count; i++) {
        Piece *p = &list->pieces[i];
        const size_t bytes = round_up(p->length * sizeof(floatX), 256);
        if (!piece_grad_on_gpu(&g->choice, p)) continue;
        if (p->segment != segment) at = 0;
        segment = p->segment;
        const bool layer = segment >= 1 && segment < g->segments - 1;
        p->over_acts = layer && at + bytes <= layer_stride(g);
        p->grad_at = p->over_acts ? at : list->grads_gpu;
        if (!p->over_acts) {
            list->grads_gpu += p->length;
            continue;
        }
        g->grads_over_acts += p->length;
        at += bytes;
    }
}

// The words: a segment is the embeddings, a layer, or the tail; backward completes its gradient in
// one go, in its `place`. What this process updates of it is its own; with several ranks, a shard.
// Pieces (offload.h) are what is updated in one go; `cut` and `room` are a shard's elements and all
// shards'. A slot is where a visiting piece's state is while the GPU updates it.
//
// Follows g->choice: cuts what this process updates into pieces and segments, and says where each
// segment's weights are, and where its gradient is made: at its own place if it can wait there for
// the update, else in one of `places` that the layers take turns in.
static void gpt2_place(GPT2 *g) {
    const GPT2Table *t = &g->table;
    const int stage = zero_stage(g->zero);
    free(g->segment);
    free(g->ranges);
    free(g->visits);
    pieces_free(&g->pieces);
    g->pieces = offload_pieces(t, &g->shards, &g->choice);
    if (g->zen != NULL) zen_pieces(&g->pieces, &g->zen->map);
    const Pieces *list = &g->pieces;
    g->offloaded = list->elements[PIECE_RESIDENT] < g->shards.elements;
    g->in_place = !g->accumulating && !g->offloaded && stage < 2 && !g->choice.apart;
    g->segments = zero_segments(t);
    g->segment = (Segment *)alloc_or_fail((size_t)g->segments, sizeof(Segment), "segments");
    g->ranges = ALLOC(StateRange, (size_t)g->segments, "segments");
    g->visits = (int *)alloc_or_fail((size_t)list->count + 1, sizeof(int), "pieces");
    g->visit_count = 0;
    g->longest_segment = 0;
    size_t own_at = 0;
    for (int i = 0; i < g->segments; i++) {
        Segment *s = &g->segment[i];
        s->length = zero_segment(t, i, &s->at);
        s->cut = s->room = s->own = s->length;
        s->own_from = s->at;
        if (g->zero != NULL) zero_place(g->zero, i, s);
        s->own_at = own_at;
        own_at += s->own;
        g->ranges[i] = StateRange{s->own_from, s->own};
    }
    for (int i = 0; i < list->count; i++) {
        const Piece *p = &list->pieces[i];
        Segment *s = &g->segment[p->segment];
        if (s->first == NULL) s->first = p;
        s->end = p + 1;
        if (!piece_grad_on_gpu(&g->choice, p)) s->leaving += p->length;
        g->blocks = p->first_block + p->blocks;
    }
    for (int i = 0; i < g->segments; i++) {
        const Segment *s = &g->segment[update_order(g, i)];
        for (const Piece *p = s->first; p < s->end; p++)
            if (p->kind == PIECE_VISIT) g->visits[g->visit_count++] = (int)(p - list->pieces);
    }
    g->grads_over_acts = 0;
    if (g->training && g->choice.recompute != RECOMPUTE_BLOCK && !g->accumulating && !g->in_place
        && g->zen == NULL)
        gradients_over_acts(g);
    g->slot_count = slots_of(g->choice.slots, g->visit_count);
    g->places = places_of(g->choice.places, (int)g->config.layers);
    weights_place(g);
    const int tail = g->segments - 1;
    for (int i = 0; i < g->segments; i++) {
        Segment *s = &g->segment[i];
        const bool layer = i >= 1 && i < tail;
        if (s->leaving > 0 && s->own > g->longest_segment) g->longest_segment = s->own;
        s->place = g->in_place || !layer ? i : 1 + i % g->places;
        s->grad_at = segment_place(g, i, g->in_place ? 0 : g->places);
        s->own_grad_at = s->grad_at + (s->own_from - s->at);
    }
    g->slot_weights = g->weights_on_host = 0;
    for (int i = 0; i < list->count; i++) {
        Piece *p = &g->pieces.pieces[i];
        const bool streams = g->segment[p->segment].streams, late = p->kind == PIECE_LATE;
        const bool visits = streams && p->kind == PIECE_VISIT;
        if (visits) g->slot_weights = sizeof(floatX);
        if (p->kind != PIECE_HOST && !late && !visits) continue;
        p->weights_at = g->weights_on_host;
        g->weights_on_host += p->length;
        if (streams && late) g->weights_on_host += p->length;  // the newest, and those in use
    }
}

// The memory plan: every buffer, on the GPU for max_B x max_T, and on the host. Arenas begin as
// zeros, for the sake of the gaps between tensors. The others may hold anything: the emulated GPU
// fills them with NaN.
static int gpt2_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->max_B * g->max_T;
    const size_t wide = F > 3 * C ? F : 3 * C, X_ = sizeof(floatX), f32 = sizeof(float);
    const size_t queries = g->zo != NULL ? (size_t)g->zo->config.queries : 0;
    const size_t L = g->config.layers;
    size_t sum_scratch = layernorm_backward_scratch(N, C);
    const size_t widths[2] = {3 * C, F};
    for (int k = 0; k < 2; k++)
        if (bias_backward_scratch(N, widths[k]) > sum_scratch)
            sum_scratch = bias_backward_scratch(N, widths[k]);
    if ((double)N * (double)(2 * L + 2 * queries + 4) * (double)(16 * C + 2 * F) * 4 > 1e18)
        die("--batch %zu times --seq %zu is more than any machine can hold", g->max_B, g->max_T);
    if (g->zo != NULL) return zo_buffers(g, list);
    int n = 0;
    #define BUFFER(purpose, bytes, field) \
        list[n++] = Buffer{purpose, bytes, &g->field, BUFFER_ANY}
    #define ARENA(purpose, bytes, field) \
        list[n++] = Buffer{purpose, bytes, &g->field, BUFFER_ZERO}
    #define HOST(purpose, bytes, field) \
        list[n++] = Buffer{purpose, bytes, &g->field, BUFFER_HOST}
    ARENA("parameters", g->param_elements * X_, params);
    BUFFER("activations", acts_bytes(g), acts);
    BUFFER("activations", N * C * X_, ln_f);
    BUFFER("activations", N * f32, mean_f);
    BUFFER("activations", N * f32, rstd_f);
    BUFFER("activations", N * C * X_, branch);
    BUFFER("logits", min_size(g->head_rows, N) * g->config.vocab_padded * X_, logits);
    BUFFER("logits", N * f32, losses);
    BUFFER("logits", 2 * sizeof(double), loss);
    BUFFER("tokens", batch_numbers(g, true) * sizeof(int32_t), tokens);
    if (g->training) {
        const size_t *of = g->pieces.elements, grads_host = g->pieces.grads_host;
        const size_t here = of[PIECE_RESIDENT] + of[PIECE_CHOSEN];
        const size_t away = of[PIECE_HOST] + of[PIECE_VISIT] + of[PIECE_LATE];
        const bool lands = g->accumulating && g->choice.sum_on_host && grads_host > 0;
        const int kind = g->zen != NULL ? PIECE_CHOSEN : PIECE_RESIDENT;
        const size_t master = state_bytes(g, kind, 0), moment = state_bytes(g, kind, 1);
        if (here > 0 && master > 0) ARENA("master weights", here * master, master);
        if (here > 0) ARENA("AdamW moments", here * moment, m);
        if (here > 0) ARENA("AdamW moments", here * moment, v);
        ARENA("gradients", gradient_elements(g) * X_, grads);
        const size_t waiting = sums_on_gpu(g) ? g->shards.elements
                             : g->in_place ? 0 : g->pieces.grads_gpu;
        if (waiting > 0) ARENA("gradients", waiting * waiting_bytes(g), waiting);
        if (g->visit_count > 0)
            BUFFER("slots", (size_t)g->slot_count * slot_bytes(g), slots);
        if (g->zero != NULL) n = zero_buffers(g, list, n);
        if (host_grad_bytes(g) > X_ && !g->accumulating && grads_host > 0)
            BUFFER("gradients", WIRE_CHUNK * f32, wire);
        BUFFER("gradients", g->config.vocab_padded * config_embed(&g->config) * f32, dwte);
        BUFFER("backward", N * C * X_, dx);
        BUFFER("backward", N * wide * X_, dwide);
        BUFFER("backward", N * g->config.heads * f32, delta);
        BUFFER("backward", sum_scratch * f32, scratch);
        BUFFER("backward", g->blocks * sizeof(double), norm_sums);
        BUFFER("backward", norm_runs(g->zero != NULL ? zero_all_blocks(g->zero) : g->blocks)
                               * sizeof(double), run_sums);
        if (away > 0 && X_ < f32) HOST("master weights", away * sizeof(uint16_t), host_master);
        if (away > 0) HOST("AdamW moments", away * moment, host_m);
        if (away > 0) HOST("AdamW moments", away * moment, host_v);
        if (grads_host > 0) HOST("gradients", grads_host * host_grad_bytes(g), host_grads);
        if (g->weights_on_host > 0) HOST("weights", g->weights_on_host * X_, host_weights);
        if (lands) HOST("gradients", 2 * g->longest_segment * X_, landing);
        if (g->zen != NULL) n = zen_buffers(g, list, n);
    }
    list[n++] = Buffer{"workspace", MATMUL_WORKSPACE, NULL, BUFFER_ANY};  // matmul_open()'s
    #undef BUFFER
    #undef ARENA
    #undef HOST
    return n;
}

// Bytes of the plans.
static size_t gpt2_bytes(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    return buffers_bytes(list, gpt2_buffers(g, list), false);
}

static size_t gpt2_host_bytes(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    return buffers_bytes(list, gpt2_buffers(g, list), true);
}

// Follows this choice, as far as memory goes.
static void gpt2_take(GPT2 *g, const OffloadChoice *c) {
    g->choice = *c;
    if (g->zen != NULL) {  // sums on the host: of two, one
        zen_settle_sums(g->zen, c->sum_on_host);
        g->choice.sum_on_host = false;
    }
    gpt2_place(g);
}

// OffloadNeeds of plan.h. Afterwards *model follows this choice. With --weights host, those of one
// layer must be there.
static void gpt2_needs(void *model, const OffloadChoice *c, size_t *gpu, size_t *host) {
    GPT2 *g = (GPT2 *)model;
    gpt2_take(g, c);
    *gpu = g->weights == WEIGHTS_HOST && g->streamed == 0 ? SIZE_MAX : gpt2_bytes(g);
    *host = gpt2_host_bytes(g);
}

static OffloadMemory gpt2_memory(GPT2 *g, int recompute, size_t gpu, size_t host) {
    const OffloadMemory m = {gpt2_needs, g, min_size(gpu, SIZE_MAX - 1), host,
                             g->training ? recompute : RECOMPUTE_NONE,
                             g->accumulating || g->zen != NULL, g->weights,
                             (int)g->config.layers, g->least};
    return m;
}

// Settles what is "auto" in g->choice, whose mode is given.
static bool gpt2_settle(GPT2 *g, const OffloadMemory *m) {
    OffloadChoice c = g->choice;
    const bool fits = choice_settle(m, &c);
    gpt2_take(g, &c);
    return fits;
}

// For people: where everything is.
static void gpt2_print(GPT2 *g, const Run *r, size_t limit, size_t host_limit) {
    Buffer list[MAX_BUFFERS];
    const size_t world = r->world, *n = g->pieces.elements;
    if (g->zero != NULL && g->zero->stage != zero_asked(&r->o))
        printf("--zero auto takes ZeRO-3, which deals out the weights, too: ZeRO-2 does not fit\n");
    const int buffers = gpt2_buffers(g, list);
    plan_print("GPU", list, buffers, gpt2_bytes(g), limit, world);
    if (g->offloaded)
        plan_print("host", list, buffers, gpt2_host_bytes(g), host_limit, world);
    if (g->zo != NULL) zo_print(g, &r->o);
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
        printf("gradients leave through %d place%s", g->places, plural((size_t)g->places));
        if (g->slot_count > 0)
            printf(", visitors have %d slot%s", g->slot_count, plural((size_t)g->slot_count));
        printf("\n");
        if (g->choice.early > 0)
            printf("the last %d of %d segments are updated first: their gradients leave first\n",
                   g->choice.early, g->segments);
    }
    if (g->streamed > 0)
        printf("weights of %d of %zu layers live on the host, and come to %d place%s in turn\n",
               g->streamed, g->config.layers, g->ring, plural((size_t)g->ring));
    if (g->choice.recompute == RECOMPUTE_BLOCK) printf("recomputing activations in backward\n");
    if (g->choice.recompute == RECOMPUTE_LIGHT)
        printf("recomputing layer norms and the non-linearity in backward\n");
    if (g->grads_over_acts > 0)
        printf("%.1f MiB of gradients wait for the update where activations were\n",
               mib(g->grads_over_acts * sizeof(floatX)));
    if (g->accumulating && g->offloaded)
        printf("gradients of the micro-batches are summed on the %s, in fp32\n",
               g->choice.sum_on_host ? "host" : "GPU");
}

// What orders a step. s: a segment, that is the embeddings, a layer, or the tail.
//
//   stream    does
//   compute   forward and backward
//   leave     what happens on the GPU to a complete gradient: its norm, the sum of micro-batches
//   pack      ZenFlow: packs what leaves of it
//   out       copies to the host: gradients, and the state of visitors
//   fetch     copies to the GPU: the state of visitors
//   back      copies to the GPU: weights that the CPU has updated
//   weights   copies to the GPU: layers' weights that live on the host (weights.cuh)
//   update    AdamW on the GPU
//   host      AdamW on the CPU: the worker of host.cuh
//   ranks     collectives between GPUs (zero.cuh)
//
//   event            recorded in   it says                                    who waits
//   updated[s]       update        the GPU has updated its part of s          compute: forward of s
//                    out           the same, and that is on the host, too     weights
//   returned[s]      back          the CPU's new weights of s are there       compute: forward of s
//                    back or host  or, of those that live on the host, made   weights
//   arrived[s]       weights       the weights of s have come from the host   compute; or ranks
//   ring_free[i]     compute       the weights in place i are used no more    weights, ranks
//   gathered[s]      ranks         all ranks' new weights of s are there      compute: forward of s
//   grad_ready[s]    compute       backward has made the gradient of s        leave; or ranks
//   reduced[s]       ranks         it is summed over the ranks                leave
//   grad_left[place] leave, pack   its place is free again                    compute: backward
//                    or out
//   packed_free[i]   out           ZenFlow: what was packed here has left     pack
//   grad_arrived[s]  out or host   it is on the host, to be used there        host; or fetch
//   room_free[i]     host          it is added to the sum on the host         out
//   computed[s]      host          ZenFlow: the late update of s is made      back
//   result_free[s]   back          and its result on the GPU                  host
//   step_left        leave         loss and norm are on the host              the host
//   slot_full[slot]  fetch         what a visitor needs is there              update
//   slot_free[slot]  out           its state is on the host again             fetch: the next one
//   copied           compute       a micro-batch's tokens are on the GPU      the host
//
// What only hands over from one stream to another is order(). The same code is rehearsed for a
// plan: see gpt2_rehearse().

static void gpt2_allocate(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    const size_t N = g->max_B * g->max_T, segments = (size_t)g->segments;
    matmul_open(&g->lt);
    if (g->offloaded && g->host.stream == NULL) host_queue_open(&g->host, g->host_threads);
    owner_begin(&g->owner);
    buffers_allocate(list, gpt2_buffers(g, list), &g->host);
    if (!g->training && g->zo == NULL)  // only to load from, and to save: not worth GPU memory
        g->master = own(OWNS_PLAIN, ALLOC(uint16_t, g->table.elements, "parameters"));
    // Short kernels that others wait for are urgent: the products' blocks fill the GPU.
    g->compute = stream_make("compute", false);
    g->leave = stream_make("leave", true);
    g->out = stream_make("out", false);
    g->fetch = stream_make("fetch", false);
    g->back = stream_make("back", false);
    g->weights_in = stream_make("weights", false);
    g->update = stream_make("update", true);
    g->grad_ready = events_make(segments);
    g->grad_left = events_make(segments);
    g->room_free = events_make(segments);
    g->grad_arrived = events_make(segments);
    g->updated = events_make(segments);
    g->returned = events_make(segments);
    g->arrived = events_make(segments);
    g->ring_free = events_make((size_t)ring_places(g));
    g->tenant = (int *)own(OWNS_PLAIN, ALLOC(int, (size_t)ring_places(g) + 1, "places"));
    g->slot_free = events_make((size_t)g->slot_count);
    g->slot_full = events_make((size_t)g->slot_count);
    event_make(&g->handover, false);
    event_make(&g->step_left, g->offloaded);
    for (size_t i = 0; i < STAGINGS; i++) {
        Staging *s = &g->staging[i];
        s->tokens = (int32_t *)pinned_alloc(batch_numbers(g, true) * sizeof(int32_t), "tokens");
        s->device = g->tokens + (g->zo != NULL ? i * batch_numbers(g, false) : 0);
        event_make(&s->copied, g->offloaded);
        event_make(&s->used, false);
    }
    g->host_loss = (double *)pinned_alloc(2 * sizeof(double), "loss");
    if (g->accumulating && g->choice.sum_on_host)
        g->worker_sums = (double *)pinned_alloc(g->blocks * sizeof(double), "gradient norm");
    const size_t most = g->config.vocab > g->max_T ? g->config.vocab : g->max_T;
    g->token_count = (int32_t *)own(OWNS_PLAIN, ALLOC(int32_t, most + 1, "tokens"));
    g->inputs = (int32_t *)own(OWNS_PLAIN, ALLOC(int32_t, (g->packed ? 4 : 2) * N, "tokens"));
    g->targets = g->inputs + N;
    g->begins = g->packed ? g->targets + N : NULL;
    g->positions = g->packed ? g->begins + N : NULL;
    if (g->zero != NULL) zero_allocate(g);
    if (g->zen != NULL) zen_allocate(g);
    if (g->zo != NULL) zo_allocate(g);
    else pieces_point(g);
    owner_end();
    device_rest();  // the zeros are there before any stream begins
}

// What gpt2_allocate() has made.
static void gpt2_release(GPT2 *g) {
    device_rest();
    matmul_close(&g->lt);
    if (g->host.stream != NULL) host_queue_close(&g->host);
    if (g->zo != NULL) zo_release(g->zo);
    owner_free(&g->owner);
}

static void gpt2_free(GPT2 *g) {
    device_rest();
    if (g->zero != NULL) zero_free(g->zero);  // the communicator before its stream
    if (g->zen != NULL) zen_free(g->zen);
    gpt2_release(g);
    free(g->zo);
    free(g->segment);
    free(g->ranges);
    free(g->visits);
    pieces_free(&g->pieces);
    free(g->shards.shards);
    gpt2_table_free(&g->table);
}

// Segment s of the forward pass, up to the branch that is to be added to the residual stream: the
// embeddings; a layer; or the last normalisation, g->ln_f (N, C). Each adds the branch of the one
// before, in the pass that normalises the sum.
static void forward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, N = g->B * g->T;
    const size_t E = g->config.embed;
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    floatX *x = layer_input(g, s > 0 ? s - 1 : 0), *const none = NULL;
    const floatX *sum = layer_acts(g, s > 1 ? s - 2 : 0).mid;  // of the layer before
    if (s == 0 && E == 0) {
        encoder_forward(x, g->tokens, g->documents, tensor(g, t->wte), tensor(g, t->wpe), g->B,
                        g->T, C, stream);
    } else if (s == 0) {
        encoder_forward(g->ln_f, g->tokens, NULL, tensor(g, t->wte), none, g->B, g->T, E, stream);
        encoder_forward(x, g->tokens, g->documents, none, tensor(g, t->wpe), g->B, g->T, C, stream);
        matmul_forward(&g->lt, g->branch, g->ln_f, tensor(g, t->project_in), none, N, E, C, stream);
        residual_forward(x, g->branch, N * C, stream);
    } else if (s > L && E > 0) {
        matmul_forward(&g->lt, g->ln_f, x, tensor(g, t->project_out), none, N, C, E, stream);
    } else if (s > L) {
        residual_layernorm_forward(x, g->ln_f, g->mean_f, g->rstd_f, sum, g->branch,
                                   tensor(g, t->ln_f_w), tensor(g, t->ln_f_b), N, C, stream);
    }
    if (s == 0 || s > L) return;
    const LayerActs a = layer_acts(g, s - 1);
    floatX *w[LAYER_TENSORS];
    layer_tensors(g, s - 1, w, NULL);
    if (s == 1 && E == 0)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w[LN_1_W], w[LN_1_B], N, C, stream);
    else if (E == 0)
        residual_layernorm_forward(x, a.ln_1, a.mean_1, a.rstd_1, sum, g->branch, w[LN_1_W],
                                   w[LN_1_B], N, C, stream);
    for (int part = 0; part < LAYER_PARTS; part++) layer_part(g, part, &a, w);
    if (!g->timeline.between) live(g, "activations", layer_elements(g), sizeof(floatX), stream);
}

// From inputs (B, T), on the host, to the normalised output of the last layer, g->ln_f (N, C). The
// targets (B, T) go to the GPU with them, for gpt2_head(); NULL, where that will not be called.
// begins (B, T): where in its row each token's document begins; NULL: a row is one.
// Queues the work and returns. No segment begins before its weights are those of the last update.
static void gpt2_forward(GPT2 *g, const int32_t *inputs, const int32_t *begins,
                         const int32_t *targets, size_t B, size_t T) {
    g->B = B;
    g->T = T;
    g->turn = 1 - g->turn;
    upload(g, g->turn, inputs, targets, begins, B, T, g->compute);
    g->documents = g->staging[g->turn].begins;
    for (size_t s = 0; s < (size_t)g->segments; s++) {
        weights_use(g, s, 1);
        compute_span(g, "wait", s);
        if (g->zero != NULL || g->segment[s].streams) {
            stream_wait(g->compute, weights_event(g, s));
        } else {
            stream_wait(g->compute, g->updated[s]);
            if (g->offloaded) stream_wait(g->compute, g->returned[s]);
        }
        compute_span(g, g->timeline.between ? "evaluate" : "forward", s);
        forward_segment(g, s);
    }
}

// Head and loss, in chunks of rows. Adds share (1 / micro-batches of the step) times the mean loss
// to g->loss, which the step's first micro-batch overwrites; gpt2_loss() reads it. With grad_scale,
// 1 / (tokens of the whole step), it also makes the head's half of the backward pass:
// branch = dln_f, and the head's weight gradient in dwte, summed in fp32. With 0 it only evaluates.
// all_logits (N, Vp), if not NULL, is host memory and receives the logits.
static void gpt2_head(GPT2 *g, float grad_scale, double share, bool accumulate,
                      float *all_logits) {
    const size_t C = config_embed(&g->config), V = g->config.vocab, Vp = g->config.vocab_padded;
    const size_t N = g->B * g->T;
    const floatX *w = tensor(g, g->table.lm_head);
    const int32_t *targets = g->tokens + N;
    for (size_t first = 0; first < N; first += g->head_rows) {
        const size_t rows = min_size(g->head_rows, N - first);
        const floatX *inp = g->ln_f + first * C;
        gemm(&g->lt, false, true, rows, Vp, C, inp, C, w, C, g->logits, Vp, NULL,
             false, GEMM_PLAIN, NULL, g->compute);
        if (all_logits != NULL) floats_move(g->logits, all_logits + first * Vp, rows * Vp, true);
        crossentropy(g->losses + first, g->logits, targets + first, grad_scale, rows, V, Vp,
                     g->compute);
        if (grad_scale == 0) continue;
        gemm(&g->lt, false, false, rows, C, Vp, g->logits, Vp, w, C, g->branch + first * C, C,
             NULL, false, GEMM_PLAIN, NULL, g->compute);
        gemm(&g->lt, true, false, Vp, C, rows, g->logits, Vp, inp, C, g->dwte, C,
             NULL, first > 0, GEMM_PLAIN, NULL, g->compute);
    }
    loss_accumulate(g->loss, g->losses, N, share / (double)N, !accumulate, g->compute);
    compute_span(g, NULL, 0);
}

// The other head, gpt2_classify() of train_gpt2.c, whose targets are `where`: which of g->words
// comes next, at one position of each sequence? Arguments and results as those of gpt2_head(), with
// grad_scale = 1 / (sequences of the whole step); without it, g->loss[1] is then how often the
// right word is the likeliest.
static void gpt2_classify(GPT2 *g, float grad_scale, double share, bool accumulate) {
    const size_t C = config_embed(&g->config), B = g->B, T = g->T;
    const bool trains = grad_scale != 0;
    const int32_t *where = g->tokens + B * T;
    float *right = g->losses + B, *slopes = trains ? (float *)g->dwide : NULL;
    const unsigned blocks = ceil_div(C, BLOCK_THREADS) * (unsigned)g->words.count;
    if (trains) {
        stream_zero(g->branch, B * T * C * sizeof(floatX), g->compute);
        stream_zero(g->dwte, g->config.vocab_padded * C * sizeof(float), g->compute);
    }
    LAUNCH(classify_kernel, (unsigned)B, BLOCK_THREADS, 0, g->compute, g->losses, right, slopes,
           trains ? g->branch : NULL, g->ln_f, where, tensor(g, g->table.lm_head), ZoConfig{},
           g->words, 0, 0, 0, 0, grad_scale, T, C);
    if (trains)
        LAUNCH(classify_backward_kernel, blocks, BLOCK_THREADS, 0, g->compute, g->dwte, slopes,
               g->ln_f, where, g->words, B, T, C);
    loss_accumulate(g->loss, g->losses, B, share / (double)B, !accumulate, g->compute);
    if (!trains) loss_accumulate(g->loss + 1, right, B, 1, true, g->compute);
    compute_span(g, NULL, 0);
}

// Waits for the GPU, and returns the mean loss of the micro-batches since the first one, in nats
// per token.
static double gpt2_loss(GPT2 *g) {
    const size_t bytes = (g->words.count > 0 ? 2 : 1) * sizeof(double);
    stream_copy(g->host_loss, g->loss, bytes, cudaMemcpyDeviceToHost, g->compute);
    stream_rest(g->compute);
    return *g->host_loss;
}

// The pieces of segment s whose gradient waits for the update on the host: it crosses the link, in
// `out`, which already waits for it to be complete; once there is room.
static void gradient_to_host(GPT2 *g, size_t s, bool accumulate, bool last) {
    const Segment *x = &g->segment[s];
    floatX *landing = g->landing + (size_t)g->landing_turn * g->longest_segment;
    const bool lands = g->accumulating && g->choice.sum_on_host;
    const size_t room = lands ? (size_t)g->landing_turn : s;
    const size_t bytes = lands ? sizeof(floatX) : host_grad_bytes(g);  // of an element
    Timeline *t = &g->timeline;
    if (lands || g->zen != NULL) stream_wait(g->out, g->room_free[room]);
    const int leaving = timeline_begin(t, ROW_LEAVE, "leave", s, x->leaving * bytes, g->out);
    for (const Piece *p = x->first; p < x->end; p++) {
        const void *from = sums_on_gpu(g) ? p->grad : p->made;
        if (piece_grad_on_gpu(&g->choice, p)) continue;
        void *to = p->host_grad;
        if (p->kind == PIECE_LATE) from = zen_packed(g->zen);
        if (lands) to = landing + (p->at - x->own_at);
        if (g->wire == NULL) {
            copy_out(g, to, from, p->length * bytes);
            continue;
        }
        for (size_t at = 0; at < p->length; at += WIRE_CHUNK) {  // --grad-wire fp32
            const size_t n = min_size(WIRE_CHUNK, p->length - at);
            accumulate_gradient(g->wire, (const floatX *)from + at, n, true, g->out);
            copy_out(g, (float *)to + at, g->wire, n * sizeof(float));
        }
    }
    timeline_end(t, leaving, g->out);
    if (g->zen != NULL) {
        event_record(g->zen->packed_free[g->zen->packing], g->out);
        g->zen->packing = 1 - g->zen->packing;
    }
    if (lands) {
        order(g, g->out, g->host.stream);
        for (const Piece *p = x->first; p < x->end; p++) {
            if (piece_grad_on_gpu(&g->choice, p)) continue;
            AdamWork work = host_work(g, p, NULL);
            work.sum = (float *)p->host_grad;
            work.grad = landing + (p->at - x->own_at);
            work.grad_is_bf16 = sizeof(floatX) == 2;
            work.first = !accumulate;
            if (last) work.block_sums = g->worker_sums + p->first_block;
            host_submit(g, p, s, &work);
        }
        event_record(g->room_free[room], g->host.stream);
        g->landing_turn = 1 - g->landing_turn;
    }
    event_record(g->grad_arrived[s], lands ? g->host.stream : g->out);
}

// Segment s of the micro-batch's gradient is complete. It leaves while the compute stream goes on:
// to where it waits for the update, or into the step's sum. When the step's gradient is complete
// (`last`), the norm is taken, piece by piece, before anything crosses the link.
static void gradient_complete(GPT2 *g, size_t s, bool accumulate, bool last) {
    const Segment *x = &g->segment[s];
    stream_wait(g->leave, gradient_event(g, s));
    for (const Piece *p = x->first; p < x->end; p++) {
        const floatX *made = (const floatX *)p->made;
        if (p->kind == PIECE_LATE) continue;  // the chosen's piece stands for the whole segment
        const bool kept = piece_grad_on_gpu(&g->choice, p) || sums_on_gpu(g);  // on the GPU
        if (kept && g->accumulating)
            accumulate_gradient((float *)p->grad, made, p->length, !accumulate, g->leave);
        else if (kept && p->grad != made)
            stream_copy(p->grad, made, p->length * sizeof(floatX), cudaMemcpyDeviceToDevice,
                        g->leave);
        if (last && (kept || !g->accumulating))
            norm_block_sums_gpu(kept ? p->grad : made, waiting_bytes(g) == 2,
                                g->pieces.runs + p->first_run, p->runs,
                                g->norm_sums + p->first_block, g->leave);
    }
    if (g->zen != NULL && last) zen_chosen_waits(g, s);
    // sums on the GPU cross the link once, with the last micro-batch
    const bool leaves = x->leaving > 0 && (last || !sums_on_gpu(g));
    cudaStream_t from = g->leave;
    if (leaves && g->zen != NULL) {  // packed, in a stream of its own
        zen_rest_leaves(g, s);
        from = g->zen->pack;
    }
    if (leaves) {
        order(g, from, g->out);
        gradient_to_host(g, s, accumulate, last);
    }
    cudaStream_t freed = leaves && !sums_on_gpu(g) && g->zen == NULL ? g->out : from;
    event_record(g->grad_left[x->place], freed);
    if (!g->in_place) live(g, "gradients", -(double)x->length, sizeof(floatX), freed);
    if (!g->in_place && !accumulate)  // what waits for the update, here
        live(g, "gradients", (double)(sums_on_gpu(g) ? x->own : x->own - x->leaving),
             waiting_bytes(g), g->leave);
    if (g->no_overlap && (leaves || g->zero != NULL)) {
        compute_span(g, "wait", s);
        const cudaEvent_t gone = leaves ? g->grad_arrived[s] : gradient_event(g, s);
        stream_wait(g->compute, gone);
        compute_span(g, NULL, 0);
    }
}

// The places in a visitor's slot: of its state (three), of weights that live on the host, and, if
// that is to come, too, of the gradient.
enum { SLOT_WEIGHTS = 3, SLOT_GRAD, SLOT_PARTS };

static void slot_places(const GPT2 *g, int visit, void *place[SLOT_PARTS]) {
    char *slot = g->slots + (size_t)(visit % g->slot_count) * slot_bytes(g);
    for (int k = 0; k < SLOT_PARTS; k++) {
        const size_t size = k < 3 ? state_bytes(g, PIECE_VISIT, k) : g->slot_weights;
        place[k] = slot;
        slot += g->pieces.longest_visit * size;
    }
}

// Bytes of an element of weights that come and go with a visitor's state.
static size_t visitor_weights(const GPT2 *g, const Piece *p) {
    return g->segment[p->segment].streams ? g->slot_weights : 0;
}

// The way of a visitor's state into its slot, once that is empty. `out` is in order: by then, this
// visitor's own state of the last step is on the host, too.
static void visitor_fetch(GPT2 *g, int visit) {
    const Piece *p = &g->pieces.pieces[g->visits[visit]];
    const size_t weights = p->length * visitor_weights(g, p);
    const size_t bytes = p->length * piece_bytes(g, PIECE_VISIT) + weights;
    const int slot = visit % g->slot_count;
    void *place[SLOT_PARTS];
    slot_places(g, visit, place);
    g->fetched = visit + 1;
    stream_wait(g->fetch, g->slot_free[slot]);
    const int span = timeline_begin(&g->timeline, ROW_FETCH, "fetch", (size_t)g->visits[visit],
                                    bytes, g->fetch);
    live(g, "visiting state", (double)bytes, 1, g->fetch);
    for (int k = FIRST_STATE; k < 3; k++)
        copy_in(g, place[k], p->state[k], p->length * state_bytes(g, p->kind, k), g->fetch);
    if (weights > 0) copy_in(g, place[SLOT_WEIGHTS], p->weights, weights, g->fetch);
    timeline_end(&g->timeline, span, g->fetch);
    event_record(g->slot_full[slot], g->fetch);
}

// The first visitors come while backward runs: neither their state nor their slots depend on the
// gradient. Not earlier, since forward waits for weights on the same link: that order() is for
// speed alone; slot_free makes it right. update_visitor() is what follows.
static void visitors_begin(GPT2 *g) {
    if (g->visit_count == 0) return;
    order(g, g->compute, g->fetch);
    for (int i = 0; i < g->slot_count; i++) visitor_fetch(g, i);
}

// What backward needs of layer l and forward has not kept: all that is between the residual
// additions, or the outputs of both layer norms and of the non-linearity, which need no product
// (with narrow embeddings, one: the second sum's).
static void recompute(GPT2 *g, size_t l) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->B * g->T;
    const LayerActs a = layer_acts(g, l);
    floatX *w[LAYER_TENSORS];
    const bool post = g->config.embed > 0;
    const int middle = post ? LN_1_W : LN_2_W;
    layer_tensors(g, l, w, NULL);
    if (!post)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w[LN_1_W], w[LN_1_B], N, C, g->compute);
    if (g->choice.recompute == RECOMPUTE_BLOCK) {
        for (int part = 0; part < (post ? 4 : 3); part++) layer_part(g, part, &a, w);
        return;
    }
    GPU_TAKES(g->compute, 2 * (2 * C + F) * N * sizeof(floatX), gpu_bytes);
    activation_forward(a.act, a.fc, N * F, g->config.activation, g->compute);
    layernorm_forward(a.mlp_in, a.mid_mean, a.mid_rstd, a.mid, w[middle], w[middle + 1], N, C,
                      g->compute);
    if (post) layer_part(g, 3, &a, w);
}

// Backward of segment s: the tail, from the head's gradient (made by gpt2_head); a layer; or the
// embeddings.
static void backward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, B = g->B, T = g->T, N = B * T;
    const size_t E = g->config.embed;
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    if (s > L) {
        if (!g->config.tied) {  // dwte was the head's alone: it is complete; the embeddings' begins
            round_gradient(tensor_grad(g, t->lm_head), g->dwte, t->tensors[t->lm_head].size,
                           stream);
            stream_zero(g->dwte, t->tensors[t->wte].size * sizeof(float), stream);
        }
        if (E > 0) {
            matmul_backward(&g->lt, g->dx, tensor_grad(g, t->project_out), g->branch,
                            layer_input(g, L), tensor(g, t->project_out), N, C, E, stream);
            return;
        }
        stream_zero(g->dx, N * C * sizeof(floatX), stream);
        layernorm_backward<floatX>(g->dx, tensor_grad(g, t->ln_f_w), tensor_grad(g, t->ln_f_b),
                                   NULL, g->scratch, g->branch, layer_input(g, L),
                                   tensor(g, t->ln_f_w), g->mean_f, g->rstd_f, N, C, stream);
    } else if (s > 0) {
        layer_backward(g, s - 1);
    } else {
        // A tied head has left its part in dwte; the embeddings add theirs, and the sum is rounded.
        const size_t positions = g->by_position.groups > 0 ? g->by_position.groups : T;
        encoder_backward(E > 0 ? NULL : g->dwte, tensor_grad(g, t->wpe), g->dx, g->tokens,
                         g->by_token, g->by_position, B, T, C, stream);
        if (E > 0) {
            encoder_forward(g->ln_f, g->tokens, NULL, tensor(g, t->wte), (floatX *)NULL, B, T, E,
                            stream);
            matmul_backward(&g->lt, g->branch, tensor_grad(g, t->project_in), g->dx, g->ln_f,
                            tensor(g, t->project_in), N, E, C, stream);
            encoder_backward(g->dwte, (floatX *)NULL, g->branch, g->tokens, g->by_token,
                             g->by_position, B, T, E, stream);
        }
        round_gradient(tensor_grad(g, t->wte), g->dwte, t->tensors[t->wte].size, stream);
        // positions without a gradient
        stream_zero(tensor_grad(g, t->wpe) + positions * C,
                    (g->config.context - positions) * C * sizeof(floatX), stream);
    }
}

// From the head's gradient down to the embeddings. `accumulate`: not the step's first micro-batch;
// `last`: its last. No segment's gradient is made before its place is free, and each leaves as soon
// as it is complete.
static void gpt2_backward(GPT2 *g, bool accumulate, bool last) {
    const size_t L = g->config.layers;
    if (last) visitors_begin(g);
    for (size_t s = (size_t)g->segments; s-- > 0;) {
        const Segment *x = &g->segment[s];
        weights_use(g, s, -1);
        if (x->ring >= 0) {  // they may be gone
            compute_span(g, "wait", s);
            stream_wait(g->compute, weights_event(g, s));
        }
        if (shares_acts(g) && s >= 1 && s < L) {  // the last layer's activations are still there
            compute_span(g, "backward", s);
            recompute(g, s - 1);
        }
        compute_span(g, "wait", s);
        stream_wait(g->compute, g->grad_left[x->place]);
        compute_span(g, "backward", s);
        live(g, "gradients", (double)x->length, sizeof(floatX), g->compute);
        backward_segment(g, s);
        compute_span(g, NULL, 0);
        if (s >= 1 && s <= L)
            live(g, "activations", -layer_elements(g), sizeof(floatX), g->compute);
        event_record(g->grad_ready[s], g->compute);
        if (g->zero != NULL) zero_reduce(g, s);  // it is complete when it is summed over the ranks
        gradient_complete(g, s, accumulate, last);
    }
}

// The sum of the squares of all gradients, in the blocks and the order that adam.h defines; and, in
// *loss, the mean loss of the step. The one place of a step where the host waits for a result. It
// is more than that: what is queued behind it overwrites weights and gradients that backward reads,
// and no other event keeps it from beginning too early. The GPU adds up all sums, those that the
// host has made, too.
static double gpt2_grad_norm_squared(GPT2 *g, double *loss) {
    const bool on_host = g->accumulating && g->choice.sum_on_host && g->pieces.grads_host > 0;
    if (on_host) order(g, g->host.stream, g->leave);
    if (g->zen != NULL) zen_sums_leave(g);
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        if (!on_host || piece_grad_on_gpu(&g->choice, p)) continue;
        stream_copy(g->norm_sums + p->first_block, g->worker_sums + p->first_block,
                    p->blocks * sizeof(double), cudaMemcpyHostToDevice, g->leave);
    }
    if (g->zero != NULL) return zero_norm_squared(g, loss);
    norm_total_gpu(g->loss + 1, g->run_sums, g->norm_sums, NULL, g->blocks, g->leave);
    tell_host(g->host_loss, g->loss, 1, 0, 2, g->leave);
    event_record(g->step_left, g->leave);
    event_wait(g->step_left);
    *loss = g->host_loss[0];
    return g->host_loss[1];
}

// A piece that lives on the host and is updated by the CPU, once its gradient is there: one pass
// over its weights and state. The GPU then gets a copy of the weights.
static void update_on_host(GPT2 *g, const Piece *p, size_t number, const AdamStep *step) {
    const size_t bytes = p->length * sizeof(floatX);
    AdamWork work = host_work(g, p, step);
    work.grad = p->host_grad;
    work.grad_is_bf16 = host_grad_bytes(g) == 2;
    stream_wait(g->host.stream, g->grad_arrived[p->segment]);
    host_submit(g, p, number, &work);
    order(g, g->host.stream, g->back);
    if (g->segment[p->segment].streams) return;  // they live where they are
    const int returning = timeline_begin(&g->timeline, ROW_BACK, "back", number, bytes, g->back);
    copy_in(g, p->params, p->weights, bytes, g->back);
    timeline_end(&g->timeline, returning, g->back);
}

// AdamW on the GPU, of a piece whose state and gradient are there.
static void update_on_gpu(GPT2 *g, const Piece *p, size_t number, void *const state[3],
                          void *weights, const void *grad, bool grad_is_bf16,
                          const AdamStep *step) {
    uint16_t *low = FIRST_STATE == 0 ? (uint16_t *)state[0] : NULL;
    const int updating = timeline_begin(&g->timeline, ROW_UPDATE, "update", number, 0, g->update);
    adam_update_gpu(weights, low, state[1], state[2], grad, grad_is_bf16,
                    g->pieces.runs + p->first_run, p->runs, step, g->update);
    timeline_end(&g->timeline, updating, g->update);
}

// A piece that lives on the host and is updated by the GPU: its state comes, unless it is there
// already, and goes back; with several slots, one piece comes while another one goes.
static void update_visitor(GPT2 *g, int visit, const AdamStep *step) {
    const Piece *p = &g->pieces.pieces[g->visits[visit]];
    const size_t number = (size_t)g->visits[visit];
    const size_t weight_bytes = p->length * visitor_weights(g, p);
    const size_t bytes = p->length * piece_bytes(g, PIECE_VISIT) + weight_bytes;
    const int slot = visit % g->slot_count;
    Timeline *t = &g->timeline;
    void *place[SLOT_PARTS];
    slot_places(g, visit, place);
    void *weights = g->segment[p->segment].streams ? place[SLOT_WEIGHTS] : p->params;
    if (visit >= g->fetched) visitor_fetch(g, visit);
    if (!g->choice.keep_grads) {
        const size_t grad_bytes = p->length * host_grad_bytes(g);
        stream_wait(g->fetch, g->grad_arrived[p->segment]);
        const int span = timeline_begin(t, ROW_FETCH, "fetch", number, grad_bytes, g->fetch);
        copy_in(g, place[SLOT_GRAD], p->host_grad, grad_bytes, g->fetch);
        timeline_end(t, span, g->fetch);
        event_record(g->slot_full[slot], g->fetch);
    }
    // an event, not order(): visitors that were fetched ahead of their turn need not be there
    stream_wait(g->update, g->slot_full[slot]);
    if (g->choice.keep_grads)
        update_on_gpu(g, p, number, place, weights, p->grad, waiting_bytes(g) == 2, step);
    else
        update_on_gpu(g, p, number, place, weights, place[SLOT_GRAD], host_grad_bytes(g) == 2,
                      step);
    order(g, g->update, g->out);
    const int flushing = timeline_begin(t, ROW_FLUSH, "flush", number, bytes, g->out);
    for (int k = FIRST_STATE; k < 3; k++)
        copy_out(g, p->state[k], place[k], p->length * state_bytes(g, p->kind, k));
    if (weight_bytes > 0) copy_out(g, p->weights, weights, weight_bytes);
    timeline_end(t, flushing, g->out);
    live(g, "visiting state", -(double)bytes, 1, g->out);
    event_record(g->slot_free[slot], g->out);
}

// Queues one AdamW step (adam.h) over everything that this process owns: first the segments that
// choice.early names, then the others in the order in which the next forward pass needs them. That
// pass waits for each segment, not for them all. ZenFlow's late columns have an order of their own.
// Call it after gpt2_grad_norm_squared(), which has waited for backward.
static void gpt2_update(GPT2 *g, const AdamStep *step) {
    int visit = 0;
    if (g->zen != NULL) zen_begin(g);
    for (int i = 0; i < g->segments; i++) {
        const int s = update_order(g, i);
        const Segment *x = &g->segment[s];
        for (const Piece *p = x->first; p < x->end; p++) {
            const size_t number = (size_t)(p - g->pieces.pieces);
            const bool is_bf16 = waiting_bytes(g) == 2;
            switch (p->kind) {
            case PIECE_RESIDENT:
                update_on_gpu(g, p, number, p->state, p->params, p->grad, is_bf16, step);
                break;
            case PIECE_VISIT: update_visitor(g, visit++, step); break;
            case PIECE_HOST: update_on_host(g, p, number, step); break;
            case PIECE_CHOSEN: update_chosen(g, p, step); break;
            case PIECE_LATE: break;  // zen_window()
            }
        }
        const bool whole = g->in_place || sums_on_gpu(g);
        live(g, "gradients", -(double)(whole ? x->own : x->own - x->leaving), waiting_bytes(g),
             g->update);
        event_record(g->updated[s], x->streams && g->zen == NULL ? g->out : g->update);
        event_record(g->returned[s], g->back);
    }
    if (g->zen != NULL) zen_window(g, step->grad_scale);
    weights_changed(g);
    if (g->zen != NULL && g->zen->turn.selects) zen_exchange_columns(g);
}

// Waits until nothing of an update is under way, neither weights nor state.
static void gpt2_update_wait(GPT2 *g) {
    if (g->zen != NULL) zen_compute_until(g, SIZE_MAX);
    if (g->zo != NULL) zo_update_weights(g);
    device_rest();
}

// =============================================================================================
// 2. Sampling

// For run_sample(): the logits (V) of the token after the last of `count` tokens, on the host. A
// whole forward pass over them: no cache of keys and values, nothing that training does not use.
static void gpt2_next(void *model, const int32_t *tokens, size_t count, size_t, float *logits) {
    GPT2 *g = (GPT2 *)model;
    const size_t C = config_embed(&g->config), Vp = g->config.vocab_padded;
    // Few different lengths, because each has products of its own. The zeros behind the last token
    // change nothing: no row sees a later one.
    const size_t T = min_size(round_up(count, 64), g->config.context);
    gpt2_update_wait(g);
    g->timeline.between = true;
    memset(g->inputs, 0, T * sizeof(int32_t));
    memcpy(g->inputs, tokens, count * sizeof(int32_t));
    if (g->zo != NULL) {
        zo_next(g, T, count - 1, logits);
    } else {
        gpt2_forward(g, g->inputs, NULL, NULL, 1, T);
        gemm(&g->lt, false, true, 1, Vp, C, g->ln_f + (count - 1) * C, C,
             tensor(g, g->table.lm_head), C, g->logits, Vp, NULL, false, GEMM_PLAIN, NULL,
             g->compute);
        compute_span(g, NULL, 0);
        floats_move(g->logits, logits, g->config.vocab, true);
    }
    g->timeline.between = false;
}

// =============================================================================================
// 3. Evaluation and the training loop

// For run_eval(): see RunLoss.
static double gpt2_eval(void *model, Run *r, const Loader *from, size_t first, size_t rows,
                        float *losses, size_t *right) {
    GPT2 *g = (GPT2 *)model;
    double loss;
    if (!run_batch(r, from, first, rows, g->inputs, g->targets, NULL, &r->damage)) return 0;
    gpt2_update_wait(g);  // so that neither is in the other's time
    const int words = g->words.count;
    if (from == &r->choices) g->words.count = 0;
    g->timeline.between = true;
    if (g->zo != NULL) {
        loss = zo_eval(g, rows, from->T, right);
    } else {
        gpt2_forward(g, g->inputs, NULL, g->targets, rows, from->T);
        if (g->words.count > 0) gpt2_classify(g, 0, 1, false);
        else gpt2_head(g, 0, 1, false, NULL);
        loss = gpt2_loss(g);
        if (g->words.count > 0) *right += (size_t)g->host_loss[1];
    }
    g->words.count = words;
    if (losses != NULL) gpu_copy(losses, g->losses, rows * from->T * sizeof *losses);
    g->timeline.between = false;
    device_rest();  // other ranks may wait for this one's part of a collective
    return loss;
}

// Where a piece begins in the arena.
static size_t arena_at(const GPT2 *g, const Piece *p) {
    const Segment *s = &g->segment[p->segment];
    return s->own_from + (p->at - s->own_at);
}

// A RunState's move: the state, wherever its pieces are. Weights that come are in use at once.
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

// The state as checkpoints see it: of each segment, the own shard.
static RunState gpt2_state(GPT2 *g) {
    return RunState{g->training ? 3 : 1, g->ranges, g->segments,
                    g->zen != NULL ? zen_move : gpt2_move, g, g->moments_bf16, 0};
}

static void save(GPT2 *g, Run *r) {
    gpt2_update_wait(g);
    r->state.products = g->lt.tune.seal;
    run_save(r, g->zen != NULL ? zen_text(&g->zen->map, &g->zen->clock) : NULL);
}

// The counters of an offloaded step, for log.jsonl. Times are of the newest step that is complete,
// "step", two before the one that is being logged, because nothing waits for them; bytes are of
// the one that is being logged.
static void offload_log(const GPT2 *g, char *json, size_t n) {
    const TimelineStep *d = &g->timeline.done;
    const size_t *of = g->pieces.elements;
    char busy[160];
    json[0] = '\0';
    if (d->step == 0 || (!g->offloaded && g->timeline.trace.file == NULL)) return;
    timeline_log(&g->timeline, busy, sizeof busy);
    snprintf(json, n, ",\"offload\":{\"step\":%zu,\"forward_ms\":%.6g,\"backward_ms\":%.6g%s,"
             "\"update_ms\":%.6g,\"exposed_ms\":%.6g,\"duplex_ms\":%.6g,\"bound_ms\":%.6g,"
             "\"h2d_bytes\":%zu,\"d2h_bytes\":%zu,\"cpu_params\":%zu,\"gpu_params\":%zu}",
             d->step, 1e3 * d->forward, 1e3 * d->backward, busy, 1e3 * d->update_seconds,
             1e3 * d->stalled, 1e3 * d->duplex, 1e3 * g->predicted.bound, g->moved_in, g->moved_out,
             g->zen != NULL ? g->zen->map.elements - g->zen->map.chosen_elements : of[PIECE_HOST],
             g->zen != NULL ? g->zen->map.chosen_elements : of[PIECE_VISIT] + of[PIECE_RESIDENT]);
    if (g->zen != NULL) zen_log(g, json + strlen(json), n - strlen(json));
}

static StepResult train_step(GPT2 *g, Run *r, size_t step) {
    StepResult x;
    memset(&x, 0, sizeof x);
    timeline_step(&g->timeline, step);
    g->moved_in = g->moved_out = 0;
    if (g->zo != NULL) return zo_step(g, r, step, schedule_lr(&r->o, step));
    if (g->zero != NULL) g->zero->reduced_bytes = g->zero->gathered_bytes = 0;

    const float grad_scale = 1.0f / (float)run_targets(r, step);
    const double share = 1 / run_parts(r, step);

    // Queue the gradient of the mean loss over all trained tokens of the step, one micro-batch
    // after the other. In the compute stream: forward, which waits for each segment's update of the
    // step before; head; and backward of the tail, of layers L-1 .. 0, of the embeddings. In the
    // leave stream: what becomes of each of these segments of the gradient, as soon as its event
    // grad_ready is reached; in the out stream its way to the host, if the host updates. With
    // --zero, zero.cuh's stream comes between them: it sums the segment over the ranks.
    for (size_t micro = 0; micro < r->o.accum; micro++) {
        if (rehearsal == NULL
            && !run_micro_batch(r, step, micro, g->inputs, g->targets, g->begins))
            return run_damaged(r);
        gpt2_forward(g, g->inputs, g->begins, g->targets, r->B, r->T);
        if (r->words) gpt2_classify(g, grad_scale, share, micro > 0);
        else gpt2_head(g, grad_scale, share, micro > 0, NULL);
        gpt2_backward(g, micro > 0, micro + 1 == r->o.accum);
    }

    // Wait for the loss and the norm; clip to --clip by it, and queue the update, in streams of its
    // own: update on the GPU, host on the CPU, and fetch, out and back over the link. The next step
    // is queued behind it: the time of this update is part of that step's.
    const double norm_squared = gpt2_grad_norm_squared(g, &x.loss);
    const AdamStep adam = run_adam_step(r, step, x.loss, norm_squared);
    if (g->zen != NULL) g->zen->rates = zen_rates(&r->o, step);
    gpt2_update(g, &adam);
    r->open = g->zen != NULL && zen_is_open(&g->zen->config, &g->zen->clock);
    if (r->o.no_overlap) {
        compute_span(g, "wait", 0);
        gpt2_update_wait(g);
        compute_span(g, NULL, 0);
    }
    x.norm = sqrt(norm_squared);
    offload_log(g, x.more, sizeof x.more);
    if (g->zero != NULL) zero_log(g, x.more, sizeof x.more);
    return x;
}

// How long a step will take on a machine of these rates: a rehearsal of train_step(). Between
// rehearsal_begin() and rehearsal_end(), what queue.cuh is given is written down instead of run, by
// a copy of the model without memory. The third step counts: it is like all that follow. Of
// ZenFlow, the mean over two windows, behind so many that one is like the other; one that follows
// the gradients is taken to be of ZEN_PLANNED steps, and a longer one than ZEN_PLANNED_MOST is as
// one of so many, but for its bytes. Of zeroth order, three steps of nine: its copies run ahead.
// With a trace, the steps that count are drawn.
enum { ZEN_PLANNED = 4, ZEN_PLANNED_MOST = 64 };

static size_t zen_planned_window(const GPT2 *g) {
    const size_t window = g->zen->config.window;
    return window > 0 ? window : (size_t)ZEN_PLANNED;
}

static Prediction gpt2_rehearse(const GPT2 *model, const Run *r, const Rates *rates,
                                TraceFile *trace) {
    const size_t micros = min_size(r->o.accum, REHEARSED_MICRO), more = r->o.accum - micros;
    GPT2 *g = ALLOC(GPT2, 1, "plan");
    Run *run = ALLOC(Run, 1, "plan");
    size_t steps = 3, counted = 1, window = 1;
    ZenFlow zen;
    Zero zero;
    Zo zo;
    Rehearsal q;
    *g = *model;
    *run = *r;
    run->o.accum = micros;
    memset(&g->host, 0, sizeof g->host);
    memset(&g->owner, 0, sizeof g->owner);
    memset(&g->timeline, 0, sizeof g->timeline);
    if (g->zen != NULL) {
        zen = *g->zen;
        g->zen = &zen;
        window = min_size(zen_planned_window(model), ZEN_PLANNED_MOST);
        steps = 6 * window + 32 / window * window;
        counted = 2 * window;
        zen.config.window = window;
        zen.config.reselect = zen.config.warmup = zen.clock.filled = 0;
        zen.queued = zen.map.segments;
    }
    if (g->zero != NULL) {
        zero = *g->zero;
        g->zero = &zero;
    }
    if (g->zo != NULL) {
        zo = *g->zo;
        g->zo = &zo;
        zo.accum = micros;
        zo.pending = zo_nothing;
        zo.visits = zo.fetched = zo.sent = 0;
        steps = 9;
        counted = 3;
        run->o.steps = steps + 1;  // whose batch is sent ahead
    }
    StepMark *marks = ALLOC(StepMark, steps, "plan");
    rehearsal_begin(&q, rates);
    gpt2_allocate(g);
    if (g->zo == NULL) weights_changed(g);
    for (size_t i = 0; i < steps; i++) {
        train_step(g, run, i + 1);
        marks[i] = StepMark{q.events[event_number(g->step_left)], q.count};  // its norm, its end
    }
    Prediction x = predict(&q, marks, (int)steps, (int)counted, more, zen_ranks(g), trace);
    if (g->zen != NULL) x.h2d_bytes *= (double)window / (double)zen_planned_window(model);
    if (g->zo != NULL)  // copies that fall behind a little in each step are not that far yet
        x.step = fmax(x.step, fmax(x.h2d_bytes / rate_or(rates->h2d, UNLIMITED),
                                   x.d2h_bytes / rate_or(rates->d2h, UNLIMITED)));
    gpt2_release(g);
    rehearsal_end(&q);
    free(marks);
    free(run);
    free(g);
    return x;
}

// Of a gradient that waits on the host, and of a weight.
static UpdateBytes update_bytes(const GPT2 *g) {
    const UpdateBytes b = {(double)host_grad_bytes(g), sizeof(floatX), g->choice.keep_grads,
                           (double)piece_bytes(g, PIECE_VISIT),
                           (double)g->streamed / (double)g->config.layers};
    return b;
}

static Prediction gpt2_predict(const GPT2 *g, const Run *r, const Rates *rates,
                               TraceFile *trace) {
    const double host = (double)g->pieces.elements[PIECE_HOST];
    const double visit = (double)g->pieces.elements[PIECE_VISIT], away = host + visit;
    const UpdateBytes bytes = update_bytes(g);
    Prediction x = gpt2_rehearse(g, r, rates, trace);
    if (g->zen != NULL || g->zo != NULL) return x;
    x.bound = away * update_bound(rates, &bytes, away > 0 ? visit / away : 0, x.limit);
    return x;
}

// Lets the update begin with the last segments, as many as make a step shortest: the CPU then need
// not wait for the embeddings' gradient, which is the last one to reach the host.
static void choose_early(GPT2 *g, const Run *r, const Rates *rates) {
    enum { TRIED = 8 };
    OffloadChoice c = g->choice, best = c;
    double least = INFINITY;
    if (!g->offloaded || g->zen != NULL || g->zo != NULL || g->no_overlap) return;
    for (int k = 0; k <= TRIED; k++) {
        c.early = g->segments * k / TRIED;
        gpt2_take(g, &c);
        const double step = gpt2_rehearse(g, r, rates, NULL).step;
        if (step > 0.995 * least) continue;
        least = step;
        best = c;
    }
    gpt2_take(g, &best);
}

// OffloadRehearse of plan.h.
typedef struct { GPT2 *g; const Run *r; const Rates *rates; } Searched;

static Prediction search_rehearse(const void *trainer, const OffloadChoice *c) {
    const Searched *x = (const Searched *)trainer;
    gpt2_take(x->g, c);
    return gpt2_predict(x->g, x->r, x->rates, NULL);
}

// How many tokens hide weights that come: forward is a third of the products, or a quarter where
// backward makes most of it again.
static void weights_print_time(const GPT2 *g, const Run *r, const Rates *rates,
                               const Prediction *x) {
    const Segment *layer = &g->segment[1];
    const size_t each = g->zen != NULL ? layer->leaving : layer->own;
    const double bytes = (double)g->streamed * (double)each * sizeof(floatX);
    const double pass = bytes / rates->h2d, micro = x->compute / (double)r->o.accum;
    const int passes = g->choice.recompute == RECOMPUTE_BLOCK ? 4 : 3;
    if (g->streamed == 0) return;
    printf("  weights from the host: %.2f GB in each pass, %.4g", 1e-9 * bytes, pass);
    if (micro > 0)
        printf("; forward takes as long from %.0f tokens in a micro-batch on",
               (double)(r->B * r->T) * pass / (micro / passes));
    printf("\n");
}

static void zen_print_time(const GPT2 *g, const Rates *r, const PlanRun *run,
                           const Prediction *x) {
    const double stall = (x->stall_forward + x->stall_backward) / x->step;
    printf("predicted time of a step, in seconds, the mean over a window of %zu: forward waits "
           "%.4g, backward %.4g", zen_planned_window(g), x->stall_forward, x->stall_backward);
    if (stall < 0.01) printf(": hidden\n");
    else printf(": %.0f %%\n", 100 * stall);
    plan_print_speed(r, run, x);
    printf("  over the link: %.2f GB to the GPU, %.2f GB to the host, %.2f times %s in bf16\n",
           1e-9 * x->h2d_bytes, 1e-9 * x->d2h_bytes,
           (x->h2d_bytes + x->d2h_bytes) / fmax(2 * (double)g->zen->map.elements, 1),
           run->world > 1 ? "its part of the model" : "the model");
    plan_print_comm(r, run, x);
}

// gpu_flops is what forward and backward of this model reach: a few of its layers are run, with
// nobody to update them, and what they take is extrapolated to all. (In fp16, which has no
// backward: forward.)
typedef struct { double seconds, flops, passes; } LayerTimes;  // passes: the seconds of others

// Of a micro-batch: the median of some runs, as many as there is time for; and what a rehearsal
// counts, at these rates. All 0: there is too little memory.
static LayerTimes time_layers(const Run *r, size_t layers, int recompute, Rates rates) {
    enum { RUNS = 9 };
    const bool backward = PRECISION != PRECISION_FP16;
    const double begin = seconds_now();
    GPT2 *g = ALLOC(GPT2, 1, "calibration");
    Run *run = ALLOC(Run, 1, "calibration");
    double seconds[RUNS];
    cudaEvent_t after[RUNS];
    int count = 0;
    *run = *r;
    run->config.layers = layers;
    run->o.accum = run->world = 1;
    run->step_tokens = r->B * r->T;
    run->words = run->packed = run->task = false;
    g->config = run->config;
    g->table = gpt2_table(&g->config);
    g->training = true;
    g->head_rows = HEAD_ROWS;
    g->max_B = r->B;
    g->max_T = r->T;
    g->choice.mode = OFFLOAD_NONE;
    g->choice.recompute = recompute;
    gpt2_place(g);
    if (gpt2_bytes(g) > gpu_available()) {
        gpt2_table_free(&g->table);
        return LayerTimes{0, 0, 0};
    }
    gpt2_allocate(g);
    for (int i = 0; i < g->table.count; i++) {  // of zeros, products are faster
        const size_t n = g->table.tensors[i].size;
        float *w = ALLOC(float, n, "calibration");
        gpt2_init_range(&g->table, i, 0, n, w, 1);
        floats_move(tensor(g, i), w, n, false);
        free(w);
    }
    for (size_t n = 0; n < run->step_tokens; n++)
        g->inputs[n] = g->targets[n] = (int32_t)(n * 7919 % g->config.vocab);
    for (int i = 0; i < RUNS; i++) CUDA(cudaEventCreate(&after[i]));
    for (int i = 0; i < RUNS; i++) {  // each is queued behind another: no launch counts
        gpt2_forward(g, g->inputs, NULL, g->targets, r->B, r->T);
        gpt2_head(g, backward ? 1.0f / (float)run->step_tokens : 0, 1, false, NULL);
        if (backward) gpt2_backward(g, false, true);
        event_record(after[i], g->compute);
        if (i > 1) seconds[count++] = device_seconds(after[i - 2], after[i - 1]);
        if (count > 0 && seconds_now() - begin > 3) break;
    }
    device_rest();
    for (int i = 0; i < RUNS; i++) event_free(after[i]);
    LayerTimes x = {calibrate_median(seconds, count), 0, 0};
    rates.gpu_flops = 1e12;
    const double once = gpt2_rehearse(g, run, &rates, NULL).compute;
    rates.gpu_flops = 2e12;
    const double twice = gpt2_rehearse(g, run, &rates, NULL).compute;
    x.flops = 2e12 * (once - twice) / (backward ? 1 : 3);
    x.passes = 2 * twice - once;
    gpt2_free(g);
    free(g);
    free(run);
    return x;
}

// Four layers and two, or with recomputation, or two and one, if there is room for no more. 0: not
// known, for want of memory; or of time: the emulated GPU's means nothing.
static double model_flops(const Run *r, const Rates *rates) {
    const size_t L = r->config.layers;
    const bool large = gpt2_flops_per_token(&r->config, r->T) * (double)(r->B * r->T) > 2e10;
    if (EMULATED && large) return 0;
    for (int k = 0; k < 3; k++) {
        const int asked = r->o.recompute;
        const int recompute = asked != RECOMPUTE_AUTO ? asked
                            : k == 0 ? RECOMPUTE_NONE : RECOMPUTE_BLOCK;
        const size_t more = min_size(L, k < 2 ? 4 : 2), few = more > 1 ? more / 2 : 1;
        const LayerTimes b = time_layers(r, more, recompute, *rates);
        if (b.seconds == 0) continue;
        const LayerTimes a = time_layers(r, few, recompute, *rates);
        const double n = (double)(L - few) / fmax((double)(more - few), 1);
        const double seconds = a.seconds + n * (b.seconds - a.seconds);
        const double products = seconds - a.passes - n * (b.passes - a.passes);
        return (a.flops + n * (b.flops - a.flops)) / fmax(products, 0.1 * seconds);
    }
    return 0;
}

// The rates of --rates, or of this machine with this model, unless they are known.
static void know_rates(GPT2 *g, const Run *r, Rates *rates) {
    if (rates->h2d > 0) return;
    machine_rates(&g->host, g->host_threads, &r->o, rates);
    if (r->o.rates == NULL) rates->gpu_flops = model_flops(r, rates);
}

// Settles which columns there are: a checkpoint's, or new ones. Layers live on the GPU, whole, as
// --resident says, or as few as make the host's part fit into host_limit.
static void zen_choose(GPT2 *g, const Run *r, size_t limit, size_t host_limit) {
    const Options *o = &r->o;
    const size_t L = g->config.layers;
    ZenFlow *z = g->zen = (ZenFlow *)alloc_or_fail(1, sizeof(ZenFlow), "columns");
    const bool given = o->resident >= 0;
    const OffloadChoice asked = g->choice;
    const OffloadMemory memory = gpt2_memory(g, o->recompute, limit, host_limit);
    z->config = zen_config(o);
    const bool fixed = given || zen_is_saved(r);
    size_t whole = given ? (size_t)(o->resident * (double)L + 0.5) : 0;
    for (bool fits = fixed; !fits && whole <= L; whole += !fits) {
        z->map = zen_map(&r->table, L, o->zen_topk, whole);
        if (g->zero != NULL) zen_map_own(&z->map, &g->shards);
        fits = gpt2_settle(g, &memory);
        g->choice = asked;
        zen_map_free(&z->map);
    }
    if (!given && whole > L) whole = 0;  // nothing fits
    // The columns to choose from are the same on all ranks: as many layers as the one needs that
    // has the least memory.
    if (g->zero != NULL && !fixed && !o->plan) whole = ~zero_least(~whole, r->world);
    zen_open(r, &z->map, &z->clock, whole);
    if (g->zero != NULL) zen_map_own(&z->map, &g->shards);
    if (given && z->map.whole != whole)
        die("--resident %g contradicts the checkpoint, in which the last %zu layers live on "
            "the GPU: leave it out", o->resident, z->map.whole);
}

// Where the optimizer's state is to live, from the options and, for what is "auto" there, from the
// machine's rates. False: nothing fits.
static bool choose_offload(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    const Options *o = &r->o;
    OffloadChoice *c = &g->choice;
    memset(c, 0, sizeof *c);
    c->mode = g->training && o->dump == NULL ? o->offload : OFFLOAD_NONE;
    c->stride = option_given(o, "share") ? 0 : o->stride;  // a checkpoint may have had the other
    c->subgroup = o->subgroup;
    c->slots = (int)o->slots;
    c->wire_f32 = o->grad_wire == WIRE_FP32;
    c->resident = o->resident >= 0 && c->mode != OFFLOAD_ZENFLOW ? o->resident : 0;
    c->share = o->share;
    if (c->subgroup > 0 && g->shards.elements / c->subgroup > 100000)
        die("--subgroup %zu cuts this model into %zu sub-groups; at most 100000 are sensible",
            c->subgroup, g->shards.elements / c->subgroup);
    OffloadMemory memory = gpt2_memory(g, o->recompute, limit, host_limit);
    if (c->mode == OFFLOAD_AUTO) {
        OffloadMemory kept = memory;  // activations are kept, if that may be
        if (kept.recompute == RECOMPUTE_AUTO) kept.recompute = RECOMPUTE_NONE;
        c->mode = OFFLOAD_NONE;
        const OffloadChoice asked = *c;
        if (g->weights != WEIGHTS_HOST && gpt2_settle(g, &kept)) return true;
        if (g->least == NULL) know_rates(g, r, rates);
        const Searched searched = {g, r, rates};
        OffloadSearch search = {rates, memory, search_rehearse, &searched, update_bytes(g), asked,
                                {}, 0};
        if (!offload_search(&search)) return false;
        search_print(&search);
        gpt2_take(g, &search.choice);
        return true;
    }
    if (c->mode == OFFLOAD_ZENFLOW) {
        zen_choose(g, r, limit, host_limit);
        memory.sums = true;
    }
    if (c->mode == OFFLOAD_TWINFLOW && o->resident < 0) c->resident = -1;  // as much as fits
    // --stride auto: the paper's Eq. 1, used as the paper does
    if (c->mode == OFFLOAD_INTERLEAVE && option_given(o, "stride") && c->stride == 0) {
        know_rates(g, r, rates);
        const double k = eq1_stride(rates);
        if (isnan(k)) die("--stride auto needs h2d, d2h and host_adam in --rates");
        c->stride = k > 1 && k < 1e6 ? (size_t)(k + 0.5) : 1;
    } else if (c->mode == OFFLOAD_INTERLEAVE && c->stride == 0 && c->share < 0) {
        know_rates(g, r, rates);
        c->keep_grads = true;
        UpdateBytes bytes = update_bytes(g);
        bytes.streams = g->weights == WEIGHTS_HOST;
        c->share = best_share(rates, &bytes);
    }
    return gpt2_settle(g, &memory);
}

// Refuses a model whose rows backward cannot sum up in this GPU's shared memory.
static void check_device(const GPT2 *g, bool resumed) {
    const size_t needed = layernorm_backward_shared<floatX>(g->config.channels) + 2048;
    int device, most;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (g->training && needed > (size_t)most)
        die("to train %zu channels, a block needs %zu KiB of shared memory, and has %d on this "
            "GPU%s", g->config.channels, (needed + 1023) / 1024, most / 1024,
            resumed ? "" : ": --optimizer mezo needs less");
}

// Sets what decides how much memory is needed, from the options and the stage of ZeRO.
static void gpt2_follow(GPT2 *g, const Run *r, int stage) {
    const bool stay = g->zo != NULL || !r->training || r->o.dump != NULL;
    if (g->zero != NULL) g->zero->stage = stage;
    g->weights = stay || (g->zero != NULL && stage < 3) ? (int)WEIGHTS_GPU : r->o.weights;
    g->moments_bf16 = r->o.moments == MOMENTS_BF16;
    g->accumulating = r->training && r->o.accum > 1 && r->o.dump == NULL;
    g->max_B = r->batches ? r->B : 1;
    g->max_T = r->batches ? r->T : 1;
    if (r->sampling && g->max_B * g->max_T < g->config.context) {  // a sample may fill the context
        g->max_B = 1;
        g->max_T = g->config.context;
    }
}

// Settles where everything is to be within these limits; returns whether it fits. --zero auto is 3
// where 2 does not fit on all ranks.
static bool choose(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    const bool two = g->zero != NULL && r->o.zero == 0 && r->world > 1 && !g->zero->rows;
    for (int stage = zero_asked(&r->o);; stage = 3) {
        gpt2_follow(g, r, stage);
        bool fits = g->zo != NULL ? zo_choose(g, &r->o, limit, host_limit)
                                  : choose_offload(g, r, limit, host_limit, rates);
        if (stage == 2 && two && !r->o.plan) fits = zero_least(fits, r->world) > 0;
        if (fits || stage == 3 || !two) return fits;
    }
}

// The least that would do, where these limits do not.
static OffloadLeast choose_least(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    OffloadLeast least = {SIZE_MAX, SIZE_MAX};
    g->least = &least;
    choose(g, r, limit, host_limit, rates);
    g->least = NULL;
    return least;
}

// Ends a run that does not fit. Says with how much memory it would, at least, and prints that plan;
// says with which other options it would. All of this is tried.
static void refuse(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    char text[1000] = "", half[24];
    FILE *f = fmemopen(text, sizeof text, "w");
    if (f == NULL) fail("out of memory: options");
    r->o.plan = true;  // for this rank alone: the others may go on
    const Run asked = *r;
    OffloadLeast need = choose_least(g, r, limit, host_limit, rates);
    const bool both = need.gpu == SIZE_MAX && need.host == SIZE_MAX;
    if (both) {
        need.gpu = choose_least(g, r, 0, SIZE_MAX, rates).gpu;
        need.host = choose_least(g, r, need.gpu, SIZE_MAX, rates).host;
    }
    if (need.gpu == SIZE_MAX && need.host == SIZE_MAX)
        die("--weights host: the state of every layer is on the GPU, and so are its weights: take "
            "a smaller --resident");
    for (int host = 1; host >= 0; host--) {
        const size_t bytes = host ? need.host : need.gpu, there = host ? host_limit : limit;
        if (bytes == SIZE_MAX) continue;
        if (!host && need.host < SIZE_MAX) fprintf(f, both ? ", and " : ", or ");
        fprintf(f, "%s of %s memory and %s are there (%s)", size_text(bytes, true).text,
                host ? "host" : "GPU", size_text(there, false).text,
                host ? "available, or --host-memory" : "free, or --gpu-memory");
    }
    const size_t gpu = both || need.host == SIZE_MAX ? need.gpu : limit;
    const size_t host = need.host == SIZE_MAX ? host_limit : need.host;
    const char *const ways[][2] = {
        {"batch", "1"}, {"seq", half}, {"moments", "bf16"}, {"recompute", "auto"},
        {"offload", "auto"}, {"weights", "auto"}, {"zero", "auto"}, {"slots", "auto"},
        {"resident-blocks", "auto"}};
    const char *joint = "; it fits with";
    snprintf(half, sizeof half, "%zu", r->T > 3 ? r->T / 2 : r->T);
    for (const char *const *way : ways) {
        const Option *x = &option_table[option_find(way[0], strlen(way[0]))];
        option_set(&r->o, x, way[1]);
        bool fits = !option_same(&asked.o, &r->o, x);
        if (way == ways[4] && asked.o.offload > OFFLOAD_ZERO) fits = false;  // it may have options
        if (r->o.resume && ((x->flags & O_FIXED) || option_given(&r->o, "accum"))) fits = false;
        r->B = r->o.batch;
        if (way == ways[1]) r->T = r->o.seq;
        if (r->o.resume) r->o.accum = asked.o.accum * asked.B / r->B;
        if (fits) need = choose_least(g, r, limit, host_limit, rates);
        if (fits && need.gpu < SIZE_MAX && need.gpu <= limit) {
            fprintf(f, "%s --%s %s", joint, way[0], way[1]);
            joint = ", or with";
        }
        *r = asked;
    }
    fclose(f);
    choose(g, r, gpu, host, rates);
    if (!r->only_sampling) gpt2_print(g, r, limit, host_limit);
    die("this run needs %s", text);
}

// Settles where everything will be, on this machine or, with --plan, on the one that --rates and
// the caps describe; prints it, and how long a step will take, if the rates are known. Returns the
// planned bytes of GPU memory.
static size_t settle(GPT2 *g, Run *r) {
    const Options *o = &r->o;
    Limits limits;
    settle_limits(o, &limits);
    if (limits.here) check_device(g, o->resume);
    const size_t limit = limits.gpu, host_limit = limits.host;
    Rates rates;
    memset(&rates, 0, sizeof rates);
    if (!choose(g, r, limit, host_limit, &rates)) refuse(g, r, limit, host_limit, &rates);
    if (zero_stage(g->zero) == 3 && !o->plan) {  // the ranks gather in one order
        g->choice.ring = (int)zero_least((size_t)g->ring, r->world);
        gpt2_place(g);
    }
    if (o->rates != NULL || (o->plan && limits.here))
        know_rates(g, r, &rates);
    if (rates.h2d > 0 && r->training) choose_early(g, r, &rates);
    if (!r->only_sampling) gpt2_print(g, r, limit, host_limit);
    const size_t planned = gpt2_bytes(g);
    if (rates.h2d > 0 && r->training) {
        const PlanRun run = {r->step_tokens, r->world};
        const bool draw = o->plan && o->trace != NULL;
        TraceFile trace = {NULL, NULL, 0};
        Error err;
        if (draw && !trace_open(&trace, o->trace, &err)) die("%s", err.text);
        const Prediction x = gpt2_predict(g, r, &rates, &trace);
        if (draw && !trace_close(&trace, &err)) fail("%s", err.text);
        if (g->zen != NULL) zen_print_time(g, &rates, &run, &x);
        else if (g->zo != NULL) zo_print_time(g, r, &rates, &run, &x);
        else plan_print_time(&rates, &run, &x);
        weights_print_time(g, r, &rates, &x);
        g->predicted = x;
    } else if (o->plan && r->training) {
        printf("for the time of a step, describe the machine: --rates FILE\n");
    }
    return planned;
}

// --calibrate: the rates, what follows from them, and the rates into the file --rates.
static int calibrate(const Run *r) {
    const Options *o = &r->o;
    Rates rates;
    HostQueue queue;
    memset(&rates, 0, sizeof rates);
    memset(&queue, 0, sizeof queue);
    open_device();
    ranks_barrier();
    host_queue_open(&queue, (int)o->threads);
    host_describe(&queue);
    rates_measure(&rates, &queue, 3);
    rates.gpu_flops = model_flops(r, &rates);
    if (rates.gpu_flops == 0)
        die("--calibrate: layers of %s with %zu x %zu tokens are too much for this device: try a "
            "smaller %s--seq or --model", o->model, r->B, r->T, r->B > 1 ? "--batch, " : "");
    printf("%s, %zu x %zu tokens: forward and backward reach %.3g Tflop/s\n", o->model, r->B, r->T,
           1e-12 * rates.gpu_flops);
    // All ranks of a node have measured at once.
    if (ranks.local_world > 1) rates.node_gpus = rates.host_gpus = ranks.local_world;
    if (ranks.rank > 0) return 0;
    rates_write(stdout, &rates);
    calibrate_print(stdout, &rates);
    host_queue_close(&queue);
    if (o->rates == NULL) return 0;
    Error err;
    FILE *f = replace_open(o->rates, &err);
    if (f == NULL) die("%s", err.text);
    rates_write(f, &rates);
    if (!replace_close(f, o->rates, &err)) fail("%s", err.text);
    return 0;
}

// The counters of offload_log() for people, of the last step, when all is over.
static void offload_end(const GPT2 *g) {
    const TimelineStep *d = &g->timeline.done;
    if (d->step == 0) return;
    printf("the last step moved %.1f MiB to the GPU and %.1f MiB to the host, %.1f ms of it at "
           "once; its update took %.1f ms, forward and backward waited %.1f ms\n",
           mib(g->moved_in), mib(g->moved_out), 1e3 * d->duplex, 1e3 * d->update_seconds,
           1e3 * d->stalled);
    if (g->predicted.bound > 0 && d->update_seconds > 0)
        printf("the bound of such an update is %.1f ms here (%s), %.0f %% of what it took\n",
               1e3 * g->predicted.bound, g->predicted.limit,
               100 * g->predicted.bound / d->update_seconds);
}

// The memory for what run_open() has settled. Returns the bytes of GPU memory that it planned.
static size_t gpt2_open(GPT2 *g, Run *r) {
    const Options *o = &r->o;
    g->config = r->config;
    g->table = r->table;
    g->no_overlap = o->no_overlap;
    g->host_threads = (int)o->threads;
    g->packed = r->packed;
    if (r->words) {
        g->words.count = run_task(r)->labels;
        memcpy(g->words.word, run_task(r)->word, sizeof g->words.word);
    }
    g->zo = zo_open(r);
    g->training = r->training && g->zo == NULL;
    if (g->zo == NULL) g->zero = zero_open(r);
    if (g->zero != NULL && r->world > 1)
        printf("ranks: %zu, ZeRO-%d\n", r->world, g->zero->stage);
    gpt2_follow(g, r, zero_stage(g->zero));
    if (o->weights == WEIGHTS_HOST && g->weights == WEIGHTS_GPU && !r->only_sampling)
        printf("without training, all weights are on the GPU\n");
    g->shards = g->zero != NULL ? zero_shards_of(g->zero, &g->table) : gpt2_shards_all(&g->table);
    g->head_rows = HEAD_ROWS;
    return settle(g, r);
}

// First values.
static void gpt2_load(GPT2 *g, Run *r) {
    if (g->zo != NULL) {
        zo_load(g, r);
        return;
    }
    RunState state = gpt2_state(g);
    if (g->zen != NULL) {
        zen_load(g, r, &state);
        weights_changed(g);
        return;
    }
    run_load(r, &state);
    weights_changed(g);
}

// --dump: the first batch's loss, logits and gradients.
static int gpt2_dump(GPT2 *g, Run *r) {
    const size_t N = r->B * r->T, P = g->table.elements;
    float *logits = (float *)alloc_or_fail(N * g->config.vocab_padded, sizeof(float), "logits");
    float *grads = (float *)alloc_or_fail(P, sizeof(float), "gradients");
    if (!run_micro_batch(r, 1, 0, g->inputs, g->targets, g->begins)) die("%s", r->damage.text);
    gpt2_forward(g, g->inputs, g->begins, g->targets, r->B, r->T);
    gpt2_head(g, 1.0f / (float)run_targets(r, 1), 1 / run_parts(r, 1), false, logits);
    gpt2_backward(g, false, true);
    for (const Piece *p = g->pieces.pieces; p < g->pieces.pieces + g->pieces.count; p++)
        floats_move((floatX *)p->grad, grads + arena_at(g, p), p->length, true);
    return run_dump(r, g->inputs, g->targets, g->begins, gpt2_loss(g), logits, grads);
}

static int train(Run *r) {
    GPT2 *g = (GPT2 *)alloc_or_fail(1, sizeof(GPT2), "model");
    const Options *o = &r->o;
    const size_t planned = gpt2_open(g, r);
    if (o->plan) return 0;
    const size_t available = gpu_available();
    gpt2_allocate(g);
    const size_t taken = available - gpu_available();
    tune_open(&g->lt.tune, o->tune, r->world == 1);
    if (o->resume && r->state.products != g->lt.tune.seal)
        printf("the products' algorithms are not those of the checkpoint (--tune): results may "
               "differ in their last bits\n");
    gpt2_load(g, r);
    if (o->dump != NULL) return gpt2_dump(g, r);
    if (o->steps == 0) return run_without_steps(r, gpt2_eval, gpt2_next, g);

    const char *trace = r->rank == 0 ? o->trace : NULL;
    if (g->offloaded || g->zero != NULL || trace != NULL) timeline_open(&g->timeline, trace);
    if (g->offloaded && g->training) host_describe(&g->host);
    live(g, "weights", (double)g->param_elements, sizeof(floatX), g->compute);
    if (g->training)
        live(g, "resident state", (double)g->pieces.elements[PIECE_RESIDENT],
             piece_bytes(g, PIECE_RESIDENT), g->compute);
    const DevicePeak device = device_peak(sizeof(floatX) == sizeof(float));
    const double peak = device.flops * (double)r->world;
    for (size_t step = run_begin(r, peak); run_goes_on(r, step); step++) {
        const StepResult x = train_step(g, r, step);
        tune_print(&g->lt.tune);
        run_log_step(r, step, &x);
        if (run_wants_eval(r, step)) run_eval(r, step, gpt2_eval, g);
        if (run_wants_sample(r, step)) run_sample(r, step, gpt2_next, g);
        if (run_wants_save(r, step)) save(g, r);
    }
    save(g, r);
    device_rest();
    timeline_close(&g->timeline);
    const int code = run_end(r);
    if (g->offloaded && g->training) offload_end(g);
    if (g->zero != NULL) zero_end(g);
    printf("GPU memory: %.1f MiB taken, planned %.1f MiB\n", mib(taken), mib(planned));
    gpt2_free(g);
    return code;
}

#ifndef TESTING
#ifndef ENTRY  // else main.cu calls it; by itself, this file is a trainer in bf16
#define ENTRY main
#endif
int ENTRY(int argc, char **argv) {
    static Run run;
    cpu_wait_briefly(argv);
    run_open(&run, argc, argv, true);
    if (run.o.precision != PRECISION)
        die("this program computes in %s: name another with --precision, on --resume as well",
            PRECISION == PRECISION_BF16 ? "bf16" : PRECISION == PRECISION_FP32 ? "fp32" : "fp16");
    const int code = run.o.calibrate ? calibrate(&run) : train(&run);
    ranks_close();
    return code;
}
#endif
