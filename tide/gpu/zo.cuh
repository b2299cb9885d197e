// zo.cuh: zeroth-order training on the GPU, also of models that do not fit there.
//
//   1. Kernels
//   2. MeZO's part of the model, and the memory for it
//   3. The pipeline: layers are fetched, updated, perturbed, used and stored
//   4. The forward passes of both signs
//   5. Evaluation, and a step
//
// The algorithm, MeZO, is in zo.h: the weights are perturbed along random directions, with both
// signs. The pipeline is that of ZO-Offloading (Wang et al. 2024): a layer is copied to the GPU,
// gets the last step's update, computes its output for both signs, and is copied back; meanwhile
// other layers are copied. Embeddings and head stay on the GPU. doc/zo_streaming.md lists the
// differences from the paper. zo.h defines what is done to an element, so the CPU computes the same
// bits. A layer's parts are layer_part() of train_gpt2.cu, by GPT2.steps. Weights and the inputs of
// arithmetic are floatX (float, bf16 or fp16).
#ifndef TIDE_ZO_CUH
#define TIDE_ZO_CUH
#include "heads.cuh"
#include "../../zero.h"

// =============================================================================================
// 1. Kernels

// A group is up to six tensors that are side by side: in a layer, those that one part uses. Each
// group is copied, updated and perturbed at once. A range of a group: elements [at, at + n) are
// elements first .. first + n - 1 of the tensor. Elements between ranges are padding.
typedef struct { uint64_t at, n, first; uint32_t tensor; int decay; } ZoRange;
typedef struct { size_t length; int count; ZoRange range[6]; } ZoGroup;

// The type in which theta, the unperturbed weights, is stored.
#define ZO_STORAGE (PRECISION == PRECISION_FP32 ? ZO_FP32 \
                    : PRECISION == PRECISION_FP16 ? ZO_FP16 : ZO_BF16)

__device__ static inline void zo_store8(floatX *p, const float w[8]) {
    for (int i = 0; i < 8; i += Pack<floatX>::N) {
        Pack<floatX> x;
        for (int k = 0; k < Pack<floatX>::N; k++) x.x[k] = from_f32<floatX>(w[i + k]);
        store_pack(p + i, x);
    }
}

// Updates a group of weights, and writes both perturbed copies, in one pass. minus NULL: writes
// only plus; plus NULL: writes no copy. Reads each weight once, and draws each random number once.
__global__ static void zo_weights_kernel(floatX *theta, floatX *plus, floatX *minus, ZoGroup group,
                                         ZoConfig c, ZoUpdate u, uint32_t step, uint32_t query,
                                         float scale) {
    const size_t i = grid_thread() * 8;
    if (i >= group.length) return;
    c.storage = ZO_STORAGE;
    int r = 0;
    while (r + 1 < group.count && i >= group.range[r + 1].at) r++;
    const ZoRange x = group.range[r];
    const uint64_t end = x.at + x.n, first = x.first + (i - x.at);
    const int n = i + 8 <= end ? 8 : i < end ? (int)(end - i) : 0;
    float th[8], z[8] = {0}, w[8];
    for (int k = 0; k < 8; k += Pack<floatX>::N) {
        const Pack<floatX> v = load_pack(theta + i + k);
        for (int j = 0; j < Pack<floatX>::N; j++) th[k + j] = to_f32(v.x[j]);
    }
    zo_apply(th, 8, &c, &u, x.tensor, x.decay, first);
    if (plus != NULL && scale != 0) zo_noise(z, 8, &c, step, query, x.tensor, first);
    if (n < 8)  // few threads have padding, elements n .. 7: all others skip the loop
        for (int k = 0; k < 8; k++)
            if (k >= n) th[k] = z[k] = 0;
    if (u.step != 0) zo_store8(theta + i, th);
    if (plus == NULL) return;
    for (int k = 0; k < 8; k++) w[k] = fmaf(scale, z[k], th[k]);
    zo_store8(plus + i, w);
    if (minus == NULL) return;
    for (int k = 0; k < 8; k++) w[k] = fmaf(-scale, z[k], th[k]);
    zo_store8(minus + i, w);
}

// Writes the sum of the perturbed embeddings of tokens (wte) and positions (wpe), for one sign. If
// wte or wpe is NULL, writes the other one alone. Perturbs only the rows that are used.
__global__ static void zo_encoder_kernel(floatX *out, const int32_t *tokens, const int32_t *begins,
                                         const floatX *wte, const floatX *wpe, ZoConfig c,
                                         int wte_tensor, int wpe_tensor, uint32_t step,
                                         uint32_t query, float scale, size_t N, size_t T,
                                         size_t C) {
    const size_t i = grid_thread() * 4;
    if (i >= N * C) return;
    const size_t n = i / C, channel = i % C;
    const size_t t = n % T - (begins == NULL ? 0 : (size_t)begins[n]);
    float a[4] = {0}, b[4] = {0};
    if (wte != NULL)
        zo_perturbed4(a, wte, &c, wte_tensor, (size_t)tokens[n] * C + channel, step, query, scale);
    if (wpe != NULL)
        zo_perturbed4(b, wpe, &c, wpe_tensor, t * C + channel, step, query, scale);
    for (int k = 0; k < 4; k++) out[i + k] = from_f32<floatX>(a[k] + b[k]);
}

// Adds a chunk of the vocabulary, tokens v0 .. v0 + valid - 1, to the losses of rows
// (doc/classifier.md). logits (rows, width) has the chunk's logits. Between chunks, row_max and
// row_sum keep each row's maximum and sum of exponentials, and target_logit its target's logit. The
// last chunk writes the losses. If a row's target is -1, its loss is 0. A block of threads per row.
__global__ static void __launch_bounds__(1024)
zo_crossentropy_kernel(float *losses, float *row_max, float *row_sum, float *target_logit,
                       const float *logits, const int32_t *targets, size_t v0, size_t valid,
                       size_t width, bool last) {
    const size_t n = blockIdx.x;
    const float *z = logits + n * width;
    const size_t target = (size_t)targets[n];  // -1 becomes larger than all v
    float max = -FLT_MAX, sum = 0;
    #pragma unroll 8  // keeps many loads under way
    for (size_t v = threadIdx.x; v < valid; v += blockDim.x) max = fmaxf(max, z[v]);
    max = block_max(max);
    #pragma unroll 8
    for (size_t v = threadIdx.x; v < valid; v += blockDim.x) sum += expf(z[v] - max);
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    if (v0 > 0) {
        const float before = row_max[n], top = fmaxf(before, max);
        sum = fmaf(sum, expf(max - top), row_sum[n] * expf(before - top));
        max = top;
    }
    if (target >= v0 && target < v0 + valid) target_logit[n] = z[target - v0];
    row_max[n] = max;
    row_sum[n] = sum;
    if (last) losses[n] = targets[n] < 0 ? 0 : logf(sum) + max - target_logit[n];
}

// =============================================================================================
// 2. MeZO's part of the model, and the memory for it

enum { ZO_EVALUATION = 2 };  // evaluations use GPT2.staging[2]; training, 0 and 1 by turns

// The work of a pass over the layers. If signs is 2, the pass runs forward with theta + scale z and
// with theta - scale z, for each query z; if 1, once with theta; if 0, it only updates the weights.
typedef struct {
    ZoUpdate update;            // the update that the pass applies to the weights first
    int signs, queries;
    float scale;
    uint32_t step;
    const Staging *batch;
} ZoPass;

// GPU memory for one visiting layer. The memory of a group is free after the events `used` and
// `left`, in either order: so a slot has three events per group. A room (Rooms) has two.
typedef struct {
    floatX *weights;     // (layer)
    cudaEvent_t *there;  // per part: the group is copied to the GPU
    cudaEvent_t *used;   // per part: no kernel reads the group any more
    cudaEvent_t *left;   // per part: the group is copied to the host
} ZoSlot;

// The part of a GPT2 for zeroth-order training. GPT2.params has the embeddings, the layers
// that stay on the GPU, and the tail; GPT2.host_weights has the layers that visit the GPU. For
// evaluations, GPT2.loss points to the last two numbers of `totals`.
struct Zo {
    ZoConfig config;
    ZoUpdate pending;           // the update that the next pass applies to the weights
    size_t accum;               // micro-batches of a step, on this rank
    bool keeps_slots;           // false: the memory of a visitor is allocated at each visit
    bool fused;                 // true: the next step's pass updates; false: a separate pass
    size_t slots;
    ZoGroup group[LAYER_PARTS]; // each part's parameters in layer 0 (model.h); groups of other
                                // layers differ only in the indices of their tensors
    size_t group_at[LAYER_PARTS];  // begins of the groups in a layer, in elements
    size_t row;                 // width of a row of atty: attention's or a norm's, if wider
    size_t chunk;               // number of the vocabulary's tokens in one chunk of logits
    size_t scratch;             // elements of perturbed weights, for each sign
    size_t visits, fetched;     // numbers of visits so far: computed visits; fetched visits
    size_t newest;              // the layer that was fetched last, counted from 1; 0: none
    uint64_t sent;              // number of the run's micro-batches that were copied to the GPU
    ZoSlot *slot;               // (slots)
    // GPU memory
    floatX *perturbed[2];       // (scratch): weights plus and minus the noise
    float *logits;              // (head_rows, chunk)
    float *row_max, *row_sum, *target_logit;  // (2, N)
    floatX *x;                  // (queries, 2, N, C): the residual stream; 2: both signs
    floatX *atty, *act;         // (2, N, row), (2, N, F)
    floatX *ln, *qkv;           // (N, C), (N, Q); qkv is also fc (N, 2F) of a gated MLP
    floatX *norm;               // (2, zo_norm()): weights of a norm (post-norm models)
    float *mean, *rstd, *lse;   // (N), (N), (B, NH, T)
    float *right;               // (B)
    double *totals;             // (accum, queries, 2) losses; after them, GPT2.loss[1]
    // host memory
    double side[2 * ZO_QUERIES];  // (queries, 2): mean losses of all micro-batches and ranks
    double *all;                // (world, zo_news()): the numbers of all ranks in this step
    double *mine;               // (zo_news()), behind `all`: what this rank sends
};

// Count a rank's losses in a step, and the numbers that it sends: its losses, then ZO_SAYS others.
enum { ZO_NEWS, ZO_DAMAGED = NEWS, ZO_SAYS };  // others: run_tell()'s; are data damaged?
static size_t zo_losses(const Zo *zo) { return zo->accum * 2 * (size_t)zo->config.queries; }
static size_t zo_news(const Zo *zo) { return zo_losses(zo) + ZO_SAYS; }

// Makes a group of the tensors first .. first + count - 1.
static ZoGroup zo_group(const GPT2Table *t, int first, int count) {
    ZoGroup g = {.count = count};
    for (int i = 0; i < count; i++) {
        const GPT2Tensor *ten = &t->tensors[first + i];
        g.range[i] = ZoRange{ten->offset - t->tensors[first].offset, ten->rows * ten->cols, 0,
                             (uint32_t)(first + i), ten->rank == 2};
        g.length = g.range[i].at + round_up(ten->size, ALIGN_ELEMENTS);
    }
    return g;
}

// Returns the address at which segment s is stored.
static floatX *zo_home(const GPT2 *g, size_t s) { return (floatX *)g->segment[s].first->weights; }

// Counts the elements of a norm's weight and bias, which are side by side.
static size_t zo_norm(const GPT2 *g) {
    return 2 * round_up(g->config.channels, ALIGN_ELEMENTS);
}

static size_t zo_layer_bytes(const GPT2 *g) { return g->segment[1].length * sizeof(floatX); }

// Lists the buffers of the memory plan, as gpt2_buffers() does.
static int zo_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    Zo *zo = g->zo;
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, N = g->max_B * g->max_T;
    const size_t Q = (size_t)zo->config.queries, X_ = sizeof(floatX), f32 = sizeof(float);
    int n = 0;
    BUFFER(ZERO, "weights", g->param_elements * X_, g->params);
    if (g->offloaded)
        list[n++] = Buffer{"slots", zo->slots * zo_layer_bytes(g), NULL, BUFFER_ANY};
    BUFFER(ANY, "perturbed weights", zo->scratch * X_, zo->perturbed[0]);
    BUFFER(ANY, "perturbed weights", zo->scratch * X_, zo->perturbed[1]);
    if (c->post_norm) BUFFER(ANY, "perturbed weights", 2 * zo_norm(g) * X_, zo->norm);
    BUFFER(ANY, "activations", Q * 2 * N * C * X_, zo->x);
    BUFFER(ANY, "activations", 2 * N * zo->row * X_, zo->atty);
    BUFFER(ANY, "activations", 2 * N * F * X_, zo->act);
    BUFFER(ANY, "activations", N * C * X_, zo->ln);
    BUFFER(ANY, "activations", N * (config_gated(c) ? config_wide(c) : config_qkv(c)) * X_,
           zo->qkv);
    if (c->rope.theta > 0) BUFFER(ANY, "rotary", rope_floats(g) * f32, g->rope);
    if (!c->rms) BUFFER(ANY, "activations", N * f32, zo->mean);
    BUFFER(ANY, "activations", N * f32, zo->rstd);
    BUFFER(ANY, "activations", N * c->heads * f32, zo->lse);
    BUFFER(ANY, "logits", min_size(g->head_rows, N) * zo->chunk * f32, zo->logits);
    BUFFER(ANY, "logits", 2 * N * f32, zo->row_max);
    BUFFER(ANY, "logits", 2 * N * f32, zo->row_sum);
    BUFFER(ANY, "logits", 2 * N * f32, zo->target_logit);
    BUFFER(ANY, "logits", N * f32, g->losses);
    BUFFER(ANY, "logits", N * f32, zo->right);
    // zeroed, because all numbers are copied, even if some are not set
    BUFFER(ZERO, "logits", (zo_losses(zo) + 1) * sizeof(double), zo->totals);
    BUFFER(ANY, "tokens", STAGINGS * batch_numbers(g, false) * sizeof(int32_t), g->tokens);
    list[n++] = Buffer{"workspace", MATMUL_WORKSPACE, NULL, BUFFER_ANY};
    BUFFER(HOST, "weights", g->weights_on_host * X_, g->host_weights);
    return n;
}

// Makes slots with their events, and memory for losses, for gpt2_allocate().
static void zo_allocate(GPT2 *g) {
    Zo *zo = g->zo;
    const size_t news = zo_news(zo), world = (size_t)ranks.world;
    if (g->no_overlap) g->fetch = g->out = g->compute;
    zo->all = (double *)pinned_alloc((1 + world) * news * sizeof(double), "losses of all ranks");
    zo->mine = zo->all + world * news;
    g->loss = zo->totals + zo_losses(zo) - 1;
    zo->slot = (ZoSlot *)owner_add(free, ALLOC(ZoSlot, zo->slots, "slots"));
    for (ZoSlot *slot = zo->slot; slot < zo->slot + zo->slots; slot++) {
        slot->there = events_make(LAYER_PARTS);
        slot->used = events_make(LAYER_PARTS);
        slot->left = events_make(LAYER_PARTS);
    }
    owner_end();  // gpt2_release() frees the slots' memory, as zo_fetch() may replace it
    for (ZoSlot *slot = zo->slot; slot < zo->slot + zo->slots; slot++)
        slot->weights = (floatX *)gpu_alloc(zo_layer_bytes(g), "a visiting layer");
}

// Sets whether the model trains by a backward pass. For --optimizer mezo, and for an evaluation of
// labels, makes g->zo and sets its options; zo_allocate() allocates its memory.
static void zo_open(GPT2 *g, const Run *r) {
    const Options *o = &r->o;
    g->training = r->training && o->optimizer != OPTIMIZER_MEZO;
    if (o->optimizer != OPTIMIZER_MEZO && (!r->words || r->training)) return;
    Zo *zo = g->zo = ALLOC(Zo, 1, "model");
    zo->config = ZoConfig{o->seed, (float)o->zo_eps, (int)o->zo_queries, o->zo_noise, ZO_STORAGE};
    zo->accum = o->accum;
    zo->keeps_slots = !o->zo_no_slots;
    zo->fused = !o->zo_no_fused_update;
    if (r->world > 1)
        printf("ranks: %zu, each with all weights; per step each sends %zu bytes to the others\n",
               r->world, zo_news(zo) * sizeof(double));
}

// =============================================================================================
// 3. The pipeline
//
// Layers visit in order, pass after pass; visit v takes slot v % slots. Each group of a layer has
// its own events: the GPU computes as soon as the first group is copied; a group is copied back as
// soon as it is updated; and its memory receives a group of a later layer while the slot's other
// groups are still used. The host queues a whole pass without waiting, and the first fetches of the
// next pass, which do not depend on the losses.

// Queues the copy of the next visiting layer to the GPU, once its slot is free. By then the layer's
// last copy to the host has ended, as slots <= visiting layers and copies to the host run in order.
static void zo_fetch(GPT2 *g) {
    Zo *zo = g->zo;
    ZoSlot *slot = &zo->slot[zo->fetched++ % zo->slots];
    do zo->newest = zo->newest % g->config.layers + 1;
    while (!g->segment[zo->newest].on_host);
    const floatX *home = zo_home(g, zo->newest);
    if (!zo->keeps_slots) {  // --zo-no-slots
        gpu_free(slot->weights);  // waits for all work
        slot->weights = (floatX *)gpu_alloc(zo_layer_bytes(g), "a visiting layer");
        GPU_TAKES(g->fetch, zo_layer_bytes(g), gpu_alloc);
    }
    for (int k = 0; k < LAYER_PARTS; k++) {
        const size_t at = zo->group_at[k], bytes = zo->group[k].length * sizeof(floatX);
        stream_wait(g->fetch, slot->used[k]);
        stream_wait(g->fetch, slot->left[k]);
        const int span = timeline_begin(&g->timeline, ROW_FETCH, "fetch", zo->newest - 1, bytes,
                                        g->fetch);
        copy_in(g, slot->weights + at, home + at, bytes, g->fetch);
        timeline_end(&g->timeline, span, g->fetch);
        event_record(slot->there[k], g->fetch);
    }
}

// Launches zo_weights_kernel(). In a rehearsal the kernel takes the time of its bytes or of its
// random numbers, whichever is longer (random signs take no time).
static void zo_weights(GPT2 *g, floatX *theta, const ZoGroup *group, const ZoUpdate *update,
                       const ZoPass *p, int query) {
    const Zo *zo = g->zo;
    const bool stores = update->step != 0, perturbs = p->signs > 0 && p->scale != 0;
    const int draws = (stores ? zo->config.queries : 0) + perturbs;
    const double n = (double)group->length, bytes = n * sizeof(floatX) * (1 + stores + p->signs);
    const double noise = zo->config.noise == ZO_GAUSSIAN ? n * draws : 0;
    if (rehearsal != NULL)
        rehearse(stream_number(g->compute), TAKES_GPU,
                 fmax(bytes / rate_or(rehearsal->rates.gpu_bytes, UNLIMITED),
                      noise / rate_or(rehearsal->rates.gpu_normals, UNLIMITED)));
    const unsigned blocks = ceil_div(group->length, 8 * BLOCK_THREADS);
    LAUNCH(zo_weights_kernel, blocks, BLOCK_THREADS, 0, g->compute, theta,
           p->signs > 0 ? zo->perturbed[0] : NULL, p->signs > 1 ? zo->perturbed[1] : NULL, *group,
           zo->config, *update, p->step, (uint32_t)query, p->scale);
}

static const ZoUpdate zo_nothing = {};

// Makes the perturbed weights of group k of layer l for a query. slot: of a visiting layer; NULL:
// the layer stays on the GPU. Query 0 first updates the group, and copies a visitor's group back.
static void zo_perturb_group(GPT2 *g, const ZoPass *p, size_t l, int k, ZoSlot *slot, int query) {
    const Zo *zo = g->zo;
    const bool first = query == 0, last = query + 1 >= p->queries || p->signs == 0;
    const size_t bytes = zo->group[k].length * sizeof(floatX);
    floatX *home = zo_home(g, l + 1) + zo->group_at[k], *theta = home;
    ZoGroup group = zo->group[k];
    if (slot != NULL) theta = slot->weights + zo->group_at[k];
    if (slot != NULL && first) {
        compute_span(g, "wait", l + 1);
        stream_wait(g->compute, slot->there[k]);
    }
    if (first) compute_span(g, p->signs == 0 ? "update" : "forward", l + 1);
    for (int i = 0; i < group.count; i++)
        group.range[i].tensor += (uint32_t)l * (uint32_t)g->table.per_layer;
    zo_weights(g, theta, &group, first ? &p->update : &zo_nothing, p, query);
    if (slot != NULL && first && p->update.step != 0) {
        order(g, g->compute, g->out);
        const int span = timeline_begin(&g->timeline, ROW_FLUSH, "flush", l, bytes, g->out);
        copy_out(g, home, theta, bytes, g->out);
        timeline_end(&g->timeline, span, g->out);
        event_record(slot->left[k], g->out);
    }
    if (slot != NULL && last) event_record(slot->used[k], g->compute);
}

// =============================================================================================
// 4. The forward passes of both signs

// Returns a query's residual stream, of theta + scale z (sign 0) or of theta - scale z (sign 1).
static floatX *zo_x(const GPT2 *g, int query, int sign) {
    return g->zo->x + (size_t)(query * 2 + sign) * g->max_B * g->max_T * g->config.channels;
}

// Runs part k of a layer with the perturbed group k, for one query and sign; updates x in place.
static void zo_layer_part(GPT2 *g, size_t l, int k, int query, int sign) {
    const size_t C = g->config.channels, N = g->B * g->T, most = g->max_B * g->max_T;
    const Zo *zo = g->zo;
    floatX *x = zo_x(g, query, sign), *atty = zo->atty + (size_t)sign * most * zo->row;
    floatX *act = zo->act + (size_t)sign * most * g->config.ffn;
    const ZoRange *range = zo->group[k].range;
    LayerWeights w = {};
    const bool post = g->config.post_norm;
    floatX *const norm = post ? zo->norm + (size_t)sign * zo_norm(g) : NULL;
    LayerActs a = {
        .x = x, .ln_1 = post ? atty : zo->ln, .mean_1 = zo->mean, .rstd_1 = zo->rstd,
        .qkv = zo->qkv, .atty = atty, .lse = zo->lse, .mid = x, .ln_2 = atty, .mean_2 = zo->mean,
        .rstd_2 = zo->rstd, .fc = config_gated(&g->config) ? zo->qkv : act, .act = act,
        .branch = zo->ln, .out = x, .turned = config_turns(&g->config, l), .rows = N};
    layer_order(&a, &g->config);
    for (int i = 0; i < zo->group[k].count; i++)
        w.kind[g->table.tensors[range[i].tensor].kind] = zo->perturbed[sign] + range[i].at;
    w.mid_w = w.ln_2_w;
    w.mid_b = w.ln_2_b;
    if (post && k % 2 == 1) {  // zo->norm has the norm that ends this part
        w.mid_w = w.ln_2_w = norm;
        w.mid_b = w.ln_2_b = norm + zo_norm(g) / 2;
    }
    if (!post && k == 0)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, x, w.ln_1_w, w.ln_1_b, N, C,
                          config_eps(&g->config), g->compute);
    g->steps->layer_part(g, k, &a, &w);
    if (post && k < 2)  // the next group is perturbed in this memory before the norm is applied
        stream_copy(norm, zo->perturbed[sign] + range[2 * k].at, zo_norm(g) * sizeof(floatX),
                    cudaMemcpyDeviceToDevice, g->compute);
    if (!post && k == 3) residual_forward(x, a.branch, N * C, g->compute);
    if (k == LAYER_PARTS - 1) layer_passes(g, false);
}

// Writes the sum of the perturbed rows of tokens and of positions (N, C); wte or wpe may be NULL.
static void zo_embed(GPT2 *g, const ZoPass *p, int query, int sign, floatX *out,
                     const floatX *wte, const floatX *wpe, size_t C) {
    const size_t N = g->B * g->T;
    const GPT2Table *t = &g->table;
    const unsigned blocks = ceil_div(N * C, 4 * BLOCK_THREADS);
    GPU_TAKES(g->compute, (1 + (wte != NULL) + (wpe != NULL)) * N * C * sizeof(floatX), gpu_bytes);
    LAUNCH(zo_encoder_kernel, blocks, BLOCK_THREADS, 0, g->compute, out, p->batch->device,
           p->batch->begins, wte, wpe, g->zo->config, t->wte, t->wpe, p->step, (uint32_t)query,
           sign == 0 ? p->scale : -p->scale, N, g->T, C);
}

// Computes the first layer's input, for p->signs signs.
static void zo_encoder(GPT2 *g, const ZoPass *p, int query) {
    const size_t C = g->config.channels, E = g->config.embed, N = g->B * g->T;
    const Zo *zo = g->zo;
    const int in = g->table.project_in;
    const floatX *wte = tensor(g, g->table.wte), *none = NULL;
    if (E > 0) {
        const ZoGroup group = zo_group(&g->table, in, 1);
        zo_weights(g, tensor(g, in), &group, &zo_nothing, p, query);
    }
    for (int s = 0; s < p->signs; s++) {
        floatX *x = zo_x(g, query, s);
        zo_embed(g, p, query, s, x, E == 0 ? wte : none, tensor(g, g->table.wpe), C);
        if (E == 0) continue;
        zo_embed(g, p, query, s, zo->ln, wte, none, E);
        matmul_forward(&g->lt, zo->atty, zo->ln, zo->perturbed[s], (floatX *)NULL, N, E, C,
                       g->compute);
        residual_forward(x, zo->atty, N * C, g->compute);
    }
}

// Computes atty, the head's input, for p->signs signs: ln_f(x) (N, C), or project_out x (N, E).
static void zo_final_norm(GPT2 *g, const ZoPass *p, int query) {
    const size_t C = g->config.channels, N = g->B * g->T, most = g->max_B * g->max_T;
    const GPT2Table *t = &g->table;
    const ZoGroup group = zo_group(t, t->tail, t->ln_f_b < 0 ? 1 : 2);  // ln_f or project_out
    const Zo *zo = g->zo;
    floatX *const *w = zo->perturbed;
    zo_weights(g, tensor(g, t->tail), &group, &zo_nothing, p, query);
    for (int s = 0; s < p->signs; s++) {
        floatX *out = zo->atty + (size_t)s * most * zo->row, *x = zo_x(g, query, s);
        if (g->config.embed > 0)
            matmul_forward(&g->lt, out, x, w[s], (floatX *)NULL, N, C, g->config.embed,
                           g->compute);
        else
            layernorm_forward(out, zo->mean, zo->rstd, x, w[s],
                              group.count > 1 ? w[s] + group.range[1].at : NULL, N, C,
                              config_eps(&g->config), g->compute);
    }
}

// Makes the perturbed rows of the head for tokens v0 .. v0 + count - 1; v0 < V.
static void zo_head_weights(GPT2 *g, const ZoPass *p, int query, size_t v0, size_t count) {
    const size_t C = config_embed(&g->config);
    ZoGroup group = zo_group(&g->table, g->table.lm_head, 1);
    group.length = count * C;
    group.range[0].first = v0 * C;
    group.range[0].n = min_size(count * C, group.range[0].n - v0 * C);
    zo_weights(g, tensor(g, g->table.lm_head) + v0 * C, &group, &zo_nothing, p, query);
}

// Writes the mean loss of a language model to totals[0] and, for the second sign, totals[1].
static void zo_head(GPT2 *g, const ZoPass *p, int query, double *totals) {
    const Zo *zo = g->zo;
    const size_t E = config_embed(&g->config), V = g->config.vocab;
    const size_t N = g->B * g->T, most = g->max_B * g->max_T;
    const int32_t *targets = p->batch->device + N;
    for (size_t v0 = 0; v0 < V; v0 += zo->chunk) {
        const size_t width = min_size(zo->chunk, g->config.vocab_padded - v0);
        const size_t valid = min_size(width, V - v0);
        const bool last = v0 + width >= V;
        zo_head_weights(g, p, query, v0, width);
        for (int s = 0; s < p->signs; s++) {
            for (size_t first = 0; first < N; first += g->head_rows) {
                const size_t rows = min_size(g->head_rows, N - first);
                const size_t row = (size_t)s * most + first;
                const floatX *x = zo->atty + (size_t)s * most * zo->row + first * E;
                gemm(&g->lt, false, true, rows, width, E, x, E, zo->perturbed[s], E,
                     zo->logits, width, NULL, false, g->compute);
                GPU_TAKES(g->compute, 8 * rows * width, gpu_bytes);  // written, then read
                LAUNCH(zo_crossentropy_kernel, (unsigned)rows, BLOCK_THREADS, 0, g->compute,
                       g->losses + first, zo->row_max + row, zo->row_sum + row,
                       zo->target_logit + row, zo->logits, targets + first, v0, valid, width, last);
            }
            if (last) loss_accumulate(totals + s, g->losses, N, 1 / (double)N, true, g->compute);
        }
    }
}

// Works as zo_head(), for labelled sentences. An evaluation counts the right labels in totals[1].
static void zo_classify(GPT2 *g, const ZoPass *p, int query, double *totals) {
    const Zo *zo = g->zo;
    const size_t B = g->B, most = g->max_B * g->max_T;
    const int head = g->table.lm_head;
    for (int s = 0; s < p->signs; s++) {
        const floatX *x = zo->atty + (size_t)s * most * zo->row;
        LAUNCH(classify_kernel, (unsigned)B, BLOCK_THREADS, 0, g->compute, g->losses, zo->right,
               (float *)NULL, (floatX *)NULL, x, p->batch->device + B * g->T, tensor(g, head),
               zo->config, g->words, head, p->step, (uint32_t)query,
               s == 0 ? p->scale : -p->scale, 0, g->T, config_embed(&g->config));
        loss_accumulate(totals + s, g->losses, B, 1 / (double)B, true, g->compute);
    }
    if (p->signs == 1) loss_accumulate(totals + 1, zo->right, B, 1, true, g->compute);
}

// Queues a pass over all layers. With signs, begins with the embeddings and ends with the last norm
// and the head, which writes losses (queries, 2) to totals (NULL: no head).
static void zo_pass(GPT2 *g, const ZoPass *p, double *totals) {
    Zo *zo = g->zo;
    const GPT2Table *t = &g->table;
    const bool looks = p->signs > 0;
    g->timeline.between = p->signs == 1 || (!looks && zo->fused);
    if (p->update.step != 0) {  // updates the embeddings and the tail
        const ZoPass quiet = {zo_nothing, 0, 1, 0, p->step, NULL};
        const ZoGroup head = zo_group(t, t->wte, t->first_layer);
        const ZoGroup tail = zo_group(t, t->tail, t->count - t->tail);
        compute_span(g, "update", 0);
        zo_weights(g, tensor(g, t->wte), &head, &p->update, &quiet, 0);
        zo_weights(g, tensor(g, t->tail), &tail, &p->update, &quiet, 0);
    }
    if (looks) {
        compute_span(g, "wait", 0);
        stream_wait(g->compute, p->batch->copied);
        compute_span(g, "forward", 0);
        g->B = p->batch->B;
        g->T = p->batch->T;
        g->documents = p->batch->begins;
        g->sees = p->batch->sees;
        for (int j = 0; j < p->queries; j++) zo_encoder(g, p, j);
    }
    for (size_t l = 0; l < g->config.layers; l++) {
        const bool visits = g->segment[l + 1].on_host;
        if (visits && zo->fetched == zo->visits) zo_fetch(g);
        ZoSlot *slot = visits ? &zo->slot[zo->visits % zo->slots] : NULL;
        for (int j = 0; j < p->queries; j++)
            for (int k = 0; k < LAYER_PARTS; k++) {
                zo_perturb_group(g, p, l, k, slot, j);
                for (int s = 0; s < p->signs; s++) zo_layer_part(g, l, k, j, s);
            }
        zo->visits += visits;
        while (visits && !g->no_overlap && zo->fetched < zo->visits + zo->slots) zo_fetch(g);
    }
    compute_span(g, looks ? "forward" : NULL, g->config.layers + 1);
    for (int j = 0; j < p->queries && looks; j++) {
        zo_final_norm(g, p, j);
        if (totals == NULL) continue;
        if (g->words.count > 0) zo_classify(g, p, j, totals + 2 * j);
        else zo_head(g, p, j, totals + 2 * j);
    }
    if (looks) event_record(p->batch->used, g->compute);
    compute_span(g, NULL, 0);
}

// Applies the last step's update to the weights. Called after each step with --zo-no-fused-update;
// else only before weights are evaluated or saved, because the next step's pass applies the update.
static void zo_update_weights(GPT2 *g) {
    Zo *zo = g->zo;
    const ZoPass p = {zo->pending, 0, 1, 0, zo->pending.step, NULL};
    if (zo->pending.step != 0) zo_pass(g, &p, NULL);
    zo->pending = zo_nothing;
}

// =============================================================================================
// 5. Evaluation, and a step

// Queues a pass over g->inputs (B, T) with unperturbed weights. Leaves the loss for g->targets in
// g->loss; or, if logits (V) is not NULL, copies to it the logits after token `last`.
static void zo_look(GPT2 *g, size_t B, size_t T, size_t last, float *logits) {
    const Zo *zo = g->zo;
    const size_t C = config_embed(&g->config), V = g->config.vocab;
    const ZoPass p = {zo_nothing, 1, 1, 0, 0, &g->staging[ZO_EVALUATION]};
    upload(g, ZO_EVALUATION, g->inputs, logits == NULL ? g->targets : NULL, NULL, B, T, g->fetch);
    zo_pass(g, &p, logits == NULL ? g->loss : NULL);
    for (size_t v0 = 0; logits != NULL && v0 < V; v0 += zo->chunk) {
        const size_t width = min_size(zo->chunk, g->config.vocab_padded - v0);
        zo_head_weights(g, &p, 0, v0, width);
        gemm(&g->lt, false, true, 1, width, C, zo->atty + last * C, C, zo->perturbed[0], C,
             zo->logits, width, NULL, false, g->compute);
        gpu_copy(logits + v0, zo->logits, min_size(width, V - v0) * sizeof(float));
    }
}

// Copies this rank's micro-batch number `micro` of the run to the GPU. Returns false if unreadable.
static bool zo_send_batch(GPT2 *g, const Run *r, uint64_t micro, Error *err) {
    const uint64_t position = run_position(r, micro / g->zo->accum + 1, micro % g->zo->accum);
    if (rehearsal == NULL
        && !run_batch(r, &r->train, position, r->B, g->inputs, g->targets, g->begins, err))
        return false;
    upload(g, (int)(micro % 2), g->inputs, g->targets, g->begins, r->B, r->T, g->fetch);
    return true;
}

// Queues a step's passes and the copies of the next batches. Returns false if a batch is damaged.
static bool zo_forward(GPT2 *g, Run *r, size_t step) {
    Zo *zo = g->zo;
    Error later;
    if (zo->sent < (step - 1) * zo->accum) zo->sent = (step - 1) * zo->accum;  // a resumed run
    for (size_t m = 0; m < zo->accum; m++) {
        const uint64_t micro = (step - 1) * zo->accum + m;
        const ZoPass p = {zo->pending, 2, zo->config.queries, zo->config.eps, (uint32_t)step,
                          &g->staging[micro % 2]};
        // The next batch is copied before the layers that its pass fetches. If the batch cannot be
        // read, its own step reports the error.
        for (; zo->sent <= micro + 1 && zo->sent < r->o.steps * zo->accum; zo->sent++)
            if (!zo_send_batch(g, r, zo->sent, zo->sent == micro ? &r->damage : &later)) break;
        if (zo->sent == micro) return false;
        zo_pass(g, &p, zo->totals + 2 * m * (size_t)zo->config.queries);
        zo->pending = zo_nothing;  // it is applied: the pass puts it into the weights
    }
    return true;
}

// Writes the counters of a step, for log.jsonl: bytes over the link in this step, and times of the
// newest complete step ("step"). sent: bytes sent to other ranks. waited: seconds of the exchange.
static void zo_log(const GPT2 *g, char *json, size_t n, size_t sent, double waited) {
    const TimelineStep *d = &g->timeline.done;
    char busy[160];
    timeline_log(&g->timeline, busy, sizeof busy);
    if (d->step > 0 || ranks.world > 1)
        snprintf(json, n, ",\"zo\":{\"step\":%zu%s,\"waited_ms\":%.6g,\"duplex_ms\":%.6g,"
                 "\"h2d_bytes\":%zu,\"d2h_bytes\":%zu,\"ranks\":%d,\"exchanged_bytes\":%zu,"
                 "\"exchange_ms\":%.6g}", d->step, busy, 1e3 * d->stalled,
                 1e3 * d->busy[USES_DUPLEX], g->moved_in, g->moved_out, ranks.world, sent,
                 1e3 * waited);
}

// Makes a step of MeZO, as mezo_step() in train_gpt2.c does. All passes are queued before the host
// waits for the losses. Ranks then exchange their losses, so all have the same bits: all apply the
// same update, or skip it, and stop together. If a token file is damaged, all ranks report this;
// r->damage has the reason on the ranks that found it.
static StepResult zo_step(GPT2 *g, Run *r, size_t step, double lr) {
    Zo *zo = g->zo;
    const size_t n = zo_losses(zo), news = zo_news(zo), bytes = news * sizeof(double);
    StepResult result = {};
    const bool damaged = !zo_forward(g, r, step);
    stream_copy(zo->mine, zo->totals, (n + 1) * sizeof(double), cudaMemcpyDeviceToHost, g->compute);
    event_record(g->step_left, g->compute);
    event_wait(g->step_left);
    zo->mine[n + ZO_DAMAGED] = damaged;
    run_tell(zo->mine + n + ZO_NEWS);
    const double start = seconds_now();
    if (rehearsal == NULL) ranks_exchange(zo->mine, bytes, zo->all);
    const double waited = seconds_now() - start;
    run_hear(zo->all + n + ZO_NEWS, news);
    for (size_t k = 0; k < (size_t)ranks.world; k++)
        if (zo->all[k * news + n + ZO_DAMAGED] != 0) result.damaged = true;
    if (result.damaged) return result;
    zo_mean(zo->side, zo->all, news, ranks.world, zo->accum, zo->config.queries,
            run_parts(r, step));
    zo_estimate(&zo->pending, &zo->config, step, lr, r->o.weight_decay, zo->side, &result.loss,
                &result.norm);
    result.skipped = zo->pending.step == 0;
    if (!zo->fused) zo_update_weights(g);
    zo_log(g, result.more, sizeof result.more, ranks.world > 1 ? bytes : 0, waited);
    return result;
}

// Ends the run if the ranks have loaded different weights. Lets rank 0 alone save weights.
static void zo_loaded(const GPT2 *g, Run *r) {
    uint64_t hash = 0;
    char text[40];
    if (ranks.world == 1) return;
    if (r->rank > 0) r->saves.count = 0;
    for (const Piece *p = g->pieces.pieces; p < g->pieces.pieces + g->pieces.count; p++) {
        floatX *w = ALLOC(floatX, p->length, "comparison of weights");
        gpu_copy(w, p->weights, p->length * sizeof *w);
        hash += hash_words(p->at * sizeof *w, w, p->length * sizeof *w);
        free(w);
    }
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    ranks_agree("weights", text);
}

#endif
