// zo.cuh: zeroth-order training on the GPU, of models that need not fit there.
//
//   1. Kernels
//   2. Its part of the model, and the place of each layer
//   3. The pipeline: layers are fetched, updated, perturbed, used and stored
//   4. The forward passes of both signs
//   5. Evaluation, saving, a step, and how long it takes
//
// Source: ZO-Offloading (Wang et al. 2024): a layer
// is uploaded, updated by the step before, used for both signs, and offloaded, while its neighbours
// are on their way; the embeddings and the head stay. doc/zo_streaming.md lists the differences.
// zo.h defines the operations on each element; the CPU's results have the same bits.
//
// floatX is the type of the weights and of the arithmetic's inputs (float, bf16 or fp16), as in the
// layers.
#ifndef TIDE_ZO_CUH
#define TIDE_ZO_CUH
#include "blocks.cuh"
#include "gpt2.cuh"
#include "heads.cuh"
#include "../plan/plan.h"
#include "../run/run.h"
#include "../../zero.h"
#include "../../zo.h"

// =============================================================================================
// 1. Kernels

// Up to six tensors that lie next to each other, the unit of all that is done with weights: in a
// layer, what is used together. Elements [at, at + n) of the group are first .. of the tensor; what
// lies between the ranges is padding.
typedef struct { uint64_t at, n, first; uint32_t tensor; int decay; } ZoRange;
typedef struct { size_t length; int count; ZoRange range[6]; } ZoGroup;

// What theta is stored as.
#define ZO_STORAGE (PRECISION == PRECISION_FP32 ? ZO_FP32 \
                    : PRECISION == PRECISION_FP16 ? ZO_FP16 : ZO_BF16)

__device__ static inline void zo_store8(floatX *p, const float w[8]) {
    for (int i = 0; i < 8; i += Pack<floatX>::N) {
        Pack<floatX> x;
        for (int k = 0; k < Pack<floatX>::N; k++) x.x[k] = from_f32<floatX>(w[i + k]);
        store_pack(p + i, x);
    }
}

// Elements n .. 7 are padding: 0. Few threads have any, so that the others skip all of this.
__device__ static inline void zo_clear_padding(float x[8], int n) {
    if (n < 8)
        for (int k = 0; k < 8; k++)
            if (k >= n) x[k] = 0;
}

// One pass over a group of weights: applies an update and stores the result, and writes both
// perturbed copies. minus NULL: only plus. plus NULL: neither. Every weight is read once, and every
// random number drawn once.
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
    zo_clear_padding(th, n);
    zo_clear_padding(z, n);
    if (u.step != 0) zo_store8(theta + i, th);
    if (plus == NULL) return;
    for (int k = 0; k < 8; k++) w[k] = fmaf(scale, z[k], th[k]);
    zo_store8(plus + i, w);
    if (minus == NULL) return;
    for (int k = 0; k < 8; k++) w[k] = fmaf(-scale, z[k], th[k]);
    zo_store8(minus + i, w);
}

// The embeddings of one sign, or one of the two alone (the other is NULL): only the rows that
// tokens name are perturbed.
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

// The loss of a vocabulary that comes in chunks (doc/classifier.md): each row's maximum and sum of
// exponentials so far, and the target's logit, once it came by. logits (rows, width) are those of
// tokens v0 .. v0 + valid - 1; the last chunk leaves the loss: 0, where the target is -1. One block
// per row.
__global__ static void __launch_bounds__(1024)
zo_crossentropy_kernel(float *losses, float *row_max, float *row_sum, float *target_logit,
                       const float *logits, const int32_t *targets, size_t v0, size_t valid,
                       size_t width, bool last) {
    const size_t n = blockIdx.x;
    const float *z = logits + n * width;
    const size_t target = (size_t)targets[n];  // -1: larger than all
    float max = -FLT_MAX, sum = 0;
    #pragma unroll 8  // so many loads are under way
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
// 2. Its part of the model, and the place of each layer

enum { ZO_GROUPS = LAYER_PARTS };  // a group of a layer is the parameters of a part (model.h)

enum { ZO_EVALUATION = 2 };  // the staging of evaluations; those of training are 0 and 1, by turns

// The work of a pass over the layers. signs 2: forward with theta + scale z and theta - scale z,
// for each query. signs 1: forward with theta. signs 0: only the update.
typedef struct {
    ZoUpdate update;            // that is not yet in the weights: it is put there
    int signs, queries;
    float scale;
    uint32_t step;
    const Staging *batch;
} ZoPass;

// GPT2.params has the embeddings, the layers that stay on the GPU, and the tail; Segment.param_at
// is a place there or, of a layer that visits, in host_layers. x is (queries, 2, N, C), atty and
// act are of both signs, ln_1, qkv, mean_1, rstd_1 and lse of one; tokens are (3, 2N).
struct Zo {
    ZoConfig config;
    ZoUpdate pending;           // that the next pass is to put into the weights
    size_t accum;               // micro-batches of a step, on this rank
    bool keeps_slots;           // false: the memory of a visitor is allocated at each visit
    bool fused;                 // updates join the next step's pass; false: have one of their own
    size_t streamed;            // layers that live on the host and visit the GPU (zo_home())
    size_t slots;
    ZoGroup group[ZO_GROUPS];   // of layer 0; the others' differ in the numbers of their tensors
    int group_first[ZO_GROUPS + 1];  // index of its first tensor, of layer 0
    size_t group_at[ZO_GROUPS]; // elements, within a layer
    size_t chunk;               // tokens of the vocabulary whose logits are made at a time
    size_t scratch;             // elements of perturbed weights, for each sign
    cudaEvent_t *there;         // (slots, ZO_GROUPS): the group has arrived
    cudaEvent_t *used;          //   no kernel reads it any more
    cudaEvent_t *left;          //   it is on the host again
    size_t visits, fetched;     // of all passes: visits that have been computed, and fetched for
    size_t step;                // steps done
    uint64_t sent;              // micro-batches of the run that have been sent
    size_t exchanged;           // bytes that this rank has sent to the others for this step
    double exchange;            // seconds until it had theirs
    // GPU memory
    floatX **slot;              // where each slot is: (layer)
    floatX *perturbed[2];       // (scratch): weights plus and minus the noise
    float *logits;              // (head_rows, chunk)
    float *row_max, *row_sum, *target_logit;  // (2, N)
    floatX *x;                  // (queries, 2, N, C): of both signs; so are
    floatX *atty, *act;         // (2, N, zo_row()), (2, N, F)
    floatX *ln, *qkv;           // (N, C), (N, Q); of a gated MLP also fc (N, 2F)
    floatX *norm;               // (2, zo_norm()), with narrow embeddings
    float *mean, *rstd, *lse;   // (N), (N), (B, NH, T)
    float *right;               // (B)
    double *totals;             // (accum, queries, 2): losses; and how many labels were right
    // host memory
    floatX *host_layers;        // (streamed, layer)
    double side[2 * ZO_QUERIES];  // (queries, 2): the means of all micro-batches and ranks
    double *all;                // (world, zo_news()): what each rank has said of this step;
    double *mine;               // and what this one is about to say, behind that: begins as totals
};

// The number of losses that a rank makes in a step; and of numbers that it sends to other ranks:
// the losses, and ZO_SAYS more.
enum { ZO_NEWS, ZO_DAMAGED = NEWS, ZO_SAYS };  // run_tell(); its data cannot be read
static size_t zo_losses(const Zo *z) { return z->accum * 2 * (size_t)z->config.queries; }
static size_t zo_news(const Zo *z) { return zo_losses(z) + ZO_SAYS; }

// Tensors first .. first + count - 1 as a group.
static ZoGroup zo_group(const GPT2Table *t, int first, int count) {
    ZoGroup g;
    memset(&g, 0, sizeof g);
    g.count = count;
    for (int i = 0; i < count; i++) {
        const GPT2Tensor *x = &t->tensors[first + i];
        g.range[i] = ZoRange{x->offset - t->tensors[first].offset, x->rows * x->cols, 0,
                             (uint32_t)(first + i), x->decay};
        g.length = g.range[i].at + round_up(x->size, ALIGN_ELEMENTS);
    }
    return g;
}

// Counts the layers before layer l that stay on the GPU. They are spread evenly: each hides a part
// of the next visitor's copy.
static size_t zo_residents(const GPT2 *g, size_t l) {
    return l * (g->config.layers - g->zo->streamed) / g->config.layers;
}

static bool zo_stays(const GPT2 *g, size_t l) {
    return zo_residents(g, l + 1) > zo_residents(g, l);
}

static bool zo_visits(const GPT2 *g, size_t s) {
    return s >= 1 && s <= g->config.layers && !zo_stays(g, s - 1);
}

// Where segment s lives.
static floatX *zo_home(const GPT2 *g, size_t s) {
    return (zo_visits(g, s) ? g->zo->host_layers : g->params) + g->segment[s].param_at;
}

// Settles where each layer lives: `residents` on the GPU, the others on the host.
static void zo_place(GPT2 *g, size_t residents, size_t slots) {
    Zo *z = g->zo;
    const GPT2Table *t = &g->table;
    const size_t L = g->config.layers, C = g->config.channels;
    size_t host_at = 0;
    z->streamed = L - min_size(residents, L);
    z->slots = min_size(slots, z->streamed);
    g->offloaded = z->streamed > 0;
    g->segments = zero_segments(t);
    free(g->segment);
    g->segment = (Segment *)alloc_or_fail((size_t)g->segments, sizeof(Segment), "segments");
    for (int i = 0; i < g->segments; i++) {
        Segment *s = &g->segment[i];
        const bool visits = zo_visits(g, (size_t)i);
        s->length = zero_segment(t, i, &s->at);
        s->room = visits ? 0 : s->length;
        s->param_at = visits ? host_at : segment_place(g, i, 0);
        if (visits) host_at += s->length;
    }
    g->param_elements = segment_room(g, 0);
    z->scratch = 2 * round_up(C, ALIGN_ELEMENTS);
    gpt2_parts(t, z->group_first);
    for (int k = 0; k < ZO_GROUPS; k++) {
        const int begin = z->group_first[k];
        z->group[k] = zo_group(t, begin, z->group_first[k + 1] - begin);
        z->group_at[k] = t->tensors[begin].offset - t->tensors[t->first_layer].offset;
        if (z->group[k].length > z->scratch) z->scratch = z->group[k].length;
    }
    // Logits of a chunk: as many tokens as the scratch has room for, and a few hundred at least.
    z->chunk = z->scratch / C / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    if (z->chunk < 512) z->chunk = 512;
    if (z->chunk > 8192) z->chunk = 8192;
    z->chunk = min_size(z->chunk, g->config.vocab_padded);
    if (z->chunk * C > z->scratch) z->scratch = round_up(z->chunk * C, ALIGN_ELEMENTS);
}

// Width of the rows of atty, which holds what attention and the norms make.
static size_t zo_row(const GPT2 *g) {
    const size_t A = config_att(&g->config), C = g->config.channels;
    return A > C ? A : C;
}

// Elements of a normalisation's weights, which are stored side by side.
static size_t zo_norm(const GPT2 *g) {
    return 2 * round_up(g->config.channels, ALIGN_ELEMENTS);
}

static size_t zo_layer_bytes(const GPT2 *g) { return g->segment[1].length * sizeof(floatX); }

// The memory plan, as gpt2_buffers().
static int zo_buffers(GPT2 *g, Buffer list[MAX_BUFFERS]) {
    Zo *z = g->zo;
    const size_t C = g->config.channels, F = g->config.ffn, N = g->max_B * g->max_T;
    const size_t Q = (size_t)z->config.queries, X_ = sizeof(floatX), f32 = sizeof(float);
    int n = 0;
    #define BUFFER(purpose, bytes, field) \
        list[n++] = Buffer{purpose, bytes, &field, BUFFER_ANY}
    BUFFER("weights", g->param_elements * X_, g->params);
    list[0].kind = BUFFER_ZERO;
    if (z->streamed > 0)
        list[n++] = Buffer{"slots", z->slots * zo_layer_bytes(g), NULL, BUFFER_ANY};
    BUFFER("perturbed weights", z->scratch * X_, z->perturbed[0]);
    BUFFER("perturbed weights", z->scratch * X_, z->perturbed[1]);
    if (g->config.post_norm) BUFFER("perturbed weights", 2 * zo_norm(g) * X_, z->norm);
    BUFFER("activations", Q * 2 * N * C * X_, z->x);
    BUFFER("activations", 2 * N * zo_row(g) * X_, z->atty);
    BUFFER("activations", 2 * N * F * X_, z->act);
    BUFFER("activations", N * C * X_, z->ln);
    const GPT2Config *c = &g->config;
    BUFFER("activations", N * (config_gated(c) ? config_wide(c) : config_qkv(c)) * X_, z->qkv);
    if (c->rope.theta > 0) BUFFER("rotary", rope_floats(g) * f32, g->rope);
    if (!g->config.rms) BUFFER("activations", N * f32, z->mean);
    BUFFER("activations", N * f32, z->rstd);
    BUFFER("activations", N * g->config.heads * f32, z->lse);
    BUFFER("logits", min_size(g->head_rows, N) * z->chunk * f32, z->logits);
    BUFFER("logits", 2 * N * f32, z->row_max);
    BUFFER("logits", 2 * N * f32, z->row_sum);
    BUFFER("logits", 2 * N * f32, z->target_logit);
    BUFFER("logits", N * f32, g->losses);
    BUFFER("logits", N * f32, z->right);
    BUFFER("logits", (zo_losses(z) + 1) * sizeof(double), z->totals);
    list[n - 1].kind = BUFFER_ZERO;  // not all of them are always set, and all are copied
    BUFFER("tokens", STAGINGS * batch_numbers(g, false) * sizeof(int32_t), g->tokens);
    list[n++] = Buffer{"workspace", MATMUL_WORKSPACE, NULL, BUFFER_ANY};
    if (g->offloaded)
        list[n++] = Buffer{"weights", z->streamed * zo_layer_bytes(g), &z->host_layers,
                           BUFFER_HOST};
    #undef BUFFER
    return n;
}

// Settles where everything is: of --resident-blocks (auto: of all) layers, those for which there is
// room, with fewer slots than the default for the others, if these would not fit. False: nothing
// fits.
static bool zo_choose(GPT2 *g, const Options *o, size_t limit, size_t host_limit) {
    const OffloadMemory m = {NULL, NULL, limit, host_limit, 0, false, 0, 0, g->least};
    Buffer list[MAX_BUFFERS];
    const bool automatic = o->resident_blocks == AUTO_COUNT;
    const size_t least = automatic ? 0 : o->resident_blocks, fewest = o->slots > 0 ? o->slots : 1;
    size_t stay = automatic ? g->config.layers : least;
    size_t slots = o->slots > 0 ? o->slots : (size_t)LEAST_SLOTS;
    for (;;) {
        zo_place(g, stay, slots);
        const int n = zo_buffers(g, list);
        if (memory_fits(&m, buffers_bytes(list, n, false), buffers_bytes(list, n, true)))
            return true;
        if (stay > least) stay--;
        else if (slots > fewest) slots--;
        else return false;
    }
}

static floatX *zo_slot(const GPT2 *g) {
    return (floatX *)gpu_alloc(zo_layer_bytes(g), "a visiting layer");
}

// For gpt2_allocate().
static void zo_allocate(GPT2 *g) {
    Zo *z = g->zo;
    const size_t events = z->slots * ZO_GROUPS, news = zo_news(z), world = (size_t)ranks.world;
    if (g->no_overlap) g->fetch = g->out = g->compute;
    z->there = events_make(events);
    z->used = events_make(events);
    z->left = events_make(events);
    z->all = (double *)pinned_alloc((1 + world) * news * sizeof(double), "losses of all ranks");
    z->mine = z->all + world * news;
    z->slot = (floatX **)own(free, ALLOC(floatX *, z->slots, "slots"));
    owner_end();  // slots come and go with --zo-no-slots: zo_release() frees them
    for (size_t i = 0; i < z->slots; i++) z->slot[i] = zo_slot(g);
}

static void zo_release(const Zo *z) {
    for (size_t i = 0; i < z->slots; i++) gpu_free(z->slot[i]);
}

// Makes the settings of --optimizer mezo, without memory; also for an evaluation of labels. NULL:
// neither.
static Zo *zo_open(const Run *r) {
    const Options *o = &r->o;
    if (o->optimizer != OPTIMIZER_MEZO && (!r->words || r->training)) return NULL;
    Zo *z = (Zo *)alloc_or_fail(1, sizeof(Zo), "model");
    z->config = ZoConfig{o->seed, (float)o->zo_eps, (int)o->zo_queries, o->zo_noise, ZO_STORAGE};
    z->accum = o->accum;
    z->keeps_slots = !o->zo_no_slots;
    z->fused = !o->zo_no_fused_update;
    if (r->world > 1)
        printf("ranks: %zu, each with all weights; per step each sends %zu bytes to the others\n",
               r->world, zo_news(z) * sizeof(double));
    return z;
}

static void zo_print(const GPT2 *g, const Options *o) {
    const size_t L = g->config.layers, slots = g->zo->slots;
    if (!g->offloaded) return;
    printf("%zu of %zu layer%s, of %.1f MiB, live on the host and visit %zu slot%s%s\n",
           g->zo->streamed, L, plural(L), mib(zo_layer_bytes(g)), slots, plural(slots),
           o->resident_blocks == AUTO_COUNT ? ": all of them would not fit on the GPU" : "");
}

// =============================================================================================
// 3. The pipeline
//
// Layers visit in order, pass after pass; visit v takes slot v % slots. Each of a layer's groups
// has its own events: computing begins when the first has been copied, each is copied back as soon
// as it is updated, and its room takes the next layer's group while the others are still in use.
// The host queues all of a pass without waiting, and fetches for the next one: what is fetched does
// not depend on the losses.

// Queues the way in of the next visitor. Its own way home is over by then: since there are no more
// slots than visitors, the slot has been left by one that went home later, or by itself.
static void zo_fetch(GPT2 *g) {
    Zo *z = g->zo;
    const size_t number = z->fetched % z->streamed, slot = z->fetched % z->slots;
    size_t l = number;  // the layer: visitors 0 .. number are among layers 0 .. l
    while (l - zo_residents(g, l + 1) < number) l++;
    const floatX *home = zo_home(g, l + 1);
    if (!z->keeps_slots) {  // --zo-no-slots
        stream_rest(g->compute);
        stream_rest(g->out);
        gpu_free(z->slot[slot]);
        z->slot[slot] = zo_slot(g);
    }
    for (int k = 0; k < ZO_GROUPS; k++) {
        const size_t event = slot * ZO_GROUPS + (size_t)k, at = z->group_at[k];
        const size_t bytes = z->group[k].length * sizeof(floatX);
        stream_wait(g->fetch, z->used[event]);
        stream_wait(g->fetch, z->left[event]);
        const int span = timeline_begin(&g->timeline, ROW_FETCH, "fetch", l, bytes, g->fetch);
        copy_in(g, z->slot[slot] + at, home + at, bytes, g->fetch);
        timeline_end(&g->timeline, span, g->fetch);
        event_record(z->there[event], g->fetch);
    }
    z->fetched++;
}

// The weights of layer l, which is about to be used.
static floatX *zo_enter(GPT2 *g, size_t l) {
    Zo *z = g->zo;
    if (zo_stays(g, l)) return zo_home(g, l + 1);
    if (z->fetched == z->visits) zo_fetch(g);
    return z->slot[z->visits % z->slots];
}

// Layer l has been used.
static void zo_leave(GPT2 *g, size_t l) {
    Zo *z = g->zo;
    if (zo_stays(g, l)) return;
    z->visits++;
    while (!g->no_overlap && z->fetched < z->visits + z->slots) zo_fetch(g);
}

// A rehearsed kernel takes what its bytes take, or the noise, if that takes longer (of signs alone
// it takes nothing).
static void zo_weights(GPT2 *g, floatX *theta, const ZoGroup *group, const ZoUpdate *update,
                       const ZoPass *p, int query) {
    const Zo *z = g->zo;
    const bool stores = update->step != 0, perturbs = p->signs > 0 && p->scale != 0;
    const int draws = (stores ? update->queries : 0) + perturbs;
    const double n = (double)group->length, bytes = n * sizeof(floatX) * (1 + stores + p->signs);
    const double noise = z->config.noise == ZO_GAUSSIAN ? n * draws : 0;
    if (rehearsal != NULL)
        rehearse(stream_number(g->compute), TAKES_GPU,
                 fmax(bytes / rate_or(rehearsal->rates.gpu_bytes, UNLIMITED),
                      noise / rate_or(rehearsal->rates.gpu_normals, UNLIMITED)));
    const unsigned blocks = ceil_div(group->length, 8 * BLOCK_THREADS);
    LAUNCH(zo_weights_kernel, blocks, BLOCK_THREADS, 0, g->compute, theta,
           p->signs > 0 ? z->perturbed[0] : NULL, p->signs > 1 ? z->perturbed[1] : NULL, *group,
           z->config, *update, p->step, (uint32_t)query, p->scale);
}

static const ZoUpdate zo_nothing = {};

// Makes the perturbed weights of group k of layer l, whose weights are at `theta`, for a query. The
// first one also updates, and a visitor's updated group goes home at once.
static void zo_perturb_group(GPT2 *g, const ZoPass *p, size_t l, int k, floatX *theta,
                             int query) {
    const Zo *z = g->zo;
    const bool visits = !zo_stays(g, l), first = query == 0;
    const bool last = query + 1 >= p->queries || p->signs == 0;
    const size_t event = visits ? z->visits % z->slots * ZO_GROUPS + (size_t)k : 0;
    const size_t at = z->group_at[k], bytes = z->group[k].length * sizeof(floatX);
    if (visits && first) {
        compute_span(g, "wait", l + 1);
        stream_wait(g->compute, z->there[event]);
    }
    if (first) compute_span(g, p->signs == 0 ? "update" : "forward", l + 1);
    ZoGroup group = z->group[k];
    for (int i = 0; i < group.count; i++)
        group.range[i].tensor += (uint32_t)l * (uint32_t)g->table.per_layer;
    zo_weights(g, theta + at, &group, first ? &p->update : &zo_nothing, p, query);
    if (!visits) return;
    if (first && p->update.step != 0) {
        floatX *home = zo_home(g, l + 1);
        order(g, g->compute, g->out);
        const int span = timeline_begin(&g->timeline, ROW_FLUSH, "flush", l, bytes, g->out);
        copy_out(g, home + at, theta + at, bytes);
        timeline_end(&g->timeline, span, g->out);
        event_record(z->left[event], g->out);
    }
    if (last) event_record(z->used[event], g->compute);
}

// =============================================================================================
// 4. The forward passes of both signs

// The residual stream of a query and a sign, and the scale of its noise.
static floatX *zo_x(const GPT2 *g, int query, int sign) {
    return g->zo->x + (size_t)(query * 2 + sign) * g->max_B * g->max_T * g->config.channels;
}

static float zo_scale(const ZoPass *p, int sign) { return sign == 0 ? p->scale : -p->scale; }

// With narrow embeddings, a layer normalises after the group that follows the one with the weights
// for it: they are kept from one to the other.
static void zo_keep_norm(GPT2 *g, size_t at, int sign) {
    const Zo *z = g->zo;
    stream_copy(z->norm + (size_t)sign * zo_norm(g), z->perturbed[sign] + at,
                zo_norm(g) * sizeof(floatX), cudaMemcpyDeviceToDevice, g->compute);
}

// Runs the part of a layer for which group k was perturbed, for one query and sign. The stream is
// added to in place.
static void zo_layer_part(GPT2 *g, int k, int query, int sign) {
    const size_t C = g->config.channels, N = g->B * g->T, most = g->max_B * g->max_T;
    const Zo *z = g->zo;
    floatX *x = zo_x(g, query, sign), *atty = z->atty + (size_t)sign * most * zo_row(g);
    floatX *act = z->act + (size_t)sign * most * g->config.ffn;
    const ZoRange *range = z->group[k].range;
    LayerWeights w = {};
    const bool post = g->config.post_norm;
    LayerActs a = {};
    a.x = a.mid = a.out = x;
    a.atty = a.ln_2 = atty;
    a.ln_1 = post ? atty : z->ln;
    a.branch = z->ln;
    a.mean_1 = a.mean_2 = z->mean;
    a.rstd_1 = a.rstd_2 = z->rstd;
    a.qkv = z->qkv;
    a.lse = z->lse;
    a.act = act;
    a.fc = config_gated(&g->config) ? z->qkv : act;
    layer_order(&a, &g->config);
    for (int i = 0; i < z->group[k].count; i++)
        w.kind[g->table.tensors[z->group_first[k] + i].kind] = z->perturbed[sign] + range[i].at;
    w.mid_w = w.ln_2_w;
    w.mid_b = w.ln_2_b;
    if (post && k == 0) zo_keep_norm(g, range[0].at, sign);
    if (post && k % 2 == 1) {  // the norm of this part's sum
        w.mid_w = w.ln_2_w = z->norm + (size_t)sign * zo_norm(g);
        w.mid_b = w.ln_2_b = w.mid_w + zo_norm(g) / 2;
    }
    if (!post && k == 0)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, x, w.ln_1_w, w.ln_1_b, N, C,
                          config_eps(&g->config), g->compute);
    layer_part(g, k, &a, &w);
    if (post && k == 1) zo_keep_norm(g, range[2].at, sign);
    if (!post && k == 3) residual_forward(x, a.branch, N * C, g->compute);
}

static void zo_embed(GPT2 *g, const ZoPass *p, int query, int sign, floatX *out, bool tokens,
                     bool positions, size_t C) {
    const size_t N = g->B * g->T;
    const GPT2Table *t = &g->table;
    const unsigned blocks = ceil_div(N * C, 4 * BLOCK_THREADS);
    GPU_TAKES(g->compute, (1 + tokens + positions) * N * C * sizeof(floatX), gpu_bytes);
    LAUNCH(zo_encoder_kernel, blocks, BLOCK_THREADS, 0, g->compute, out, p->batch->device,
           p->batch->begins, tokens ? tensor(g, t->wte) : NULL,
           positions ? tensor(g, t->wpe) : NULL, g->zo->config, t->wte, t->wpe, p->step,
           (uint32_t)query, zo_scale(p, sign), N, g->T, C);
}

// The first layer's input, of both signs.
static void zo_encoder(GPT2 *g, const ZoPass *p, int query) {
    const size_t C = g->config.channels, E = g->config.embed, N = g->B * g->T;
    const Zo *z = g->zo;
    const int in = g->table.project_in;
    if (E > 0) {
        const ZoGroup group = zo_group(&g->table, in, 1);
        zo_weights(g, tensor(g, in), &group, &zo_nothing, p, query);
    }
    for (int s = 0; s < p->signs; s++) {
        floatX *x = zo_x(g, query, s);
        zo_embed(g, p, query, s, x, E == 0, g->table.wpe >= 0, C);
        if (E == 0) continue;
        zo_embed(g, p, query, s, z->ln, true, false, E);
        matmul_forward(&g->lt, z->atty, z->ln, z->perturbed[s], (floatX *)NULL, N, E, C,
                       g->compute);
        residual_forward(x, z->atty, N * C, g->compute);
    }
}

// Computes the head's input, for both signs: atty (N, C) = ln_f(x), or (N, E) = project_out x.
static void zo_final_norm(GPT2 *g, const ZoPass *p, int query) {
    const size_t C = g->config.channels, N = g->B * g->T, most = g->max_B * g->max_T;
    const GPT2Table *t = &g->table;
    const ZoGroup group = zo_group(t, t->tail, t->ln_f_b < 0 ? 1 : 2);  // or project_out
    const Zo *z = g->zo;
    floatX *const *w = z->perturbed;
    zo_weights(g, tensor(g, t->tail), &group, &zo_nothing, p, query);
    for (int s = 0; s < p->signs; s++) {
        floatX *out = z->atty + (size_t)s * most * zo_row(g), *x = zo_x(g, query, s);
        if (g->config.embed > 0)
            matmul_forward(&g->lt, out, x, w[s], (floatX *)NULL, N, C, g->config.embed,
                           g->compute);
        else
            layernorm_forward(out, z->mean, z->rstd, x, w[s],
                              group.count > 1 ? w[s] + group.range[1].at : NULL, N, C,
                              config_eps(&g->config), g->compute);
    }
}

// The perturbed head, for tokens v0 .. v0 + count - 1, the first of which is one of the vocabulary.
static void zo_head_weights(GPT2 *g, const ZoPass *p, int query, size_t v0, size_t count) {
    const size_t C = config_embed(&g->config);
    ZoGroup group = zo_group(&g->table, g->table.lm_head, 1);
    group.length = count * C;
    group.range[0].first = v0 * C;
    group.range[0].n = min_size(count * C, group.range[0].n - v0 * C);
    zo_weights(g, tensor(g, g->table.lm_head) + v0 * C, &group, &zo_nothing, p, query);
}

// The mean loss of a language model, of both signs, to totals[0] and totals[1].
static void zo_head(GPT2 *g, const ZoPass *p, int query, double *totals) {
    const Zo *z = g->zo;
    const size_t E = config_embed(&g->config), V = g->config.vocab;
    const size_t N = g->B * g->T, most = g->max_B * g->max_T;
    const int32_t *targets = p->batch->device + N;
    for (size_t v0 = 0; v0 < V; v0 += z->chunk) {
        const size_t width = min_size(z->chunk, g->config.vocab_padded - v0);
        const size_t valid = min_size(width, V - v0);
        const bool last = v0 + width >= V;
        zo_head_weights(g, p, query, v0, width);
        for (int s = 0; s < p->signs; s++) {
            for (size_t first = 0; first < N; first += g->head_rows) {
                const size_t rows = min_size(g->head_rows, N - first);
                const size_t row = (size_t)s * most + first;
                const floatX *x = z->atty + (size_t)s * most * zo_row(g) + first * E;
                gemm(&g->lt, false, true, rows, width, E, x, E, z->perturbed[s], E,
                     z->logits, width, NULL, false, g->compute);
                GPU_TAKES(g->compute, 8 * rows * width, gpu_bytes);  // the product's, and here
                LAUNCH(zo_crossentropy_kernel, (unsigned)rows, BLOCK_THREADS, 0, g->compute,
                       g->losses + first, z->row_max + row, z->row_sum + row,
                       z->target_logit + row, z->logits, targets + first, v0, valid, width, last);
            }
            if (last) loss_accumulate(totals + s, g->losses, N, 1 / (double)N, true, g->compute);
        }
    }
}

// The same for labelled sentences.
static void zo_classify(GPT2 *g, const ZoPass *p, int query, double *totals) {
    const Zo *z = g->zo;
    const size_t B = g->B, most = g->max_B * g->max_T;
    const int head = g->table.lm_head;
    for (int s = 0; s < p->signs; s++) {
        const floatX *x = z->atty + (size_t)s * most * zo_row(g);
        LAUNCH(classify_kernel, (unsigned)B, BLOCK_THREADS, 0, g->compute, g->losses, z->right,
               (float *)NULL, (floatX *)NULL, x, p->batch->device + B * g->T, tensor(g, head),
               z->config, g->words, head, p->step, (uint32_t)query, zo_scale(p, s), 0, g->T,
               config_embed(&g->config));
        loss_accumulate(totals + s, g->losses, B, 1 / (double)B, true, g->compute);
    }
    loss_accumulate(&z->totals[zo_losses(z)], z->right, B, 1, true, g->compute);
}

// Queues a pass over all layers, and with a batch the way to the normalised output; then head or
// classification, whose losses become those of this micro-batch in the totals. logits: leave the
// head out. Nothing here waits.
static void zo_pass(GPT2 *g, const ZoPass *p, size_t micro, bool logits) {
    const Zo *z = g->zo;
    const GPT2Table *t = &g->table;
    g->timeline.between = p->signs == 1 || (p->signs == 0 && z->fused);
    if (p->update.step != 0) {  // what stays on the GPU beside the layers
        const ZoPass quiet = {zo_nothing, 0, 1, 0, p->step, NULL};
        const ZoGroup head = zo_group(t, t->wte, t->first_layer);
        const ZoGroup tail = zo_group(t, t->tail, t->count - t->tail);
        compute_span(g, "update", 0);
        zo_weights(g, tensor(g, t->wte), &head, &p->update, &quiet, 0);
        zo_weights(g, tensor(g, t->tail), &tail, &p->update, &quiet, 0);
    }
    if (p->signs > 0) {
        compute_span(g, "wait", 0);
        stream_wait(g->compute, p->batch->copied);
        compute_span(g, "forward", 0);
        g->B = p->batch->B;
        g->T = p->batch->T;
        g->documents = p->batch->begins;
        for (int j = 0; j < p->queries; j++) zo_encoder(g, p, j);
    }
    for (size_t l = 0; l < g->config.layers; l++) {
        floatX *theta = zo_enter(g, l);
        for (int j = 0; j < (p->signs > 0 ? p->queries : 1); j++)
            for (int k = 0; k < ZO_GROUPS; k++) {
                zo_perturb_group(g, p, l, k, theta, j);
                for (int s = 0; s < p->signs; s++) zo_layer_part(g, k, j, s);
            }
        zo_leave(g, l);
    }
    compute_span(g, p->signs > 0 ? "forward" : NULL, g->config.layers + 1);
    for (int j = 0; j < p->queries && p->signs > 0; j++) {
        zo_final_norm(g, p, j);
        if (logits) break;
        double *totals = z->totals + 2 * (micro * (size_t)z->config.queries + (size_t)j);
        if (g->words.count > 0) zo_classify(g, p, j, totals);
        else zo_head(g, p, j, totals);
    }
    if (p->signs > 0) event_record(p->batch->used, g->compute);
    compute_span(g, NULL, 0);
}

// Waits for the totals of the passes so far, in z->mine.
static void zo_totals(GPT2 *g) {
    const Zo *z = g->zo;
    stream_copy(z->mine, z->totals, (zo_losses(z) + 1) * sizeof(double), cudaMemcpyDeviceToHost,
                g->compute);
    event_record(g->step_left, g->compute);
    event_wait(g->step_left);
}

// Puts the last step's update into the weights, now. With --zo-no-fused-update always; else, before
// they are looked at: the next step's pass would do it.
static void zo_update_weights(GPT2 *g) {
    Zo *z = g->zo;
    const ZoPass p = {z->pending, 0, 1, 0, z->pending.step, NULL};
    if (z->pending.step != 0) zo_pass(g, &p, 0, false);
    z->pending = zo_nothing;
}

// =============================================================================================
// 5. Evaluation, saving, a step, and how long it takes

// Forward with the weights as they are, of this batch. logits: without the head.
static ZoPass zo_look(GPT2 *g, const int32_t *inputs, const int32_t *targets, size_t B, size_t T,
                      bool logits) {
    upload(g, ZO_EVALUATION, inputs, targets, NULL, B, T, g->fetch);
    const ZoPass p = {zo_nothing, 1, 1, 0, (uint32_t)g->zo->step, &g->staging[ZO_EVALUATION]};
    zo_pass(g, &p, 0, logits);
    return p;
}

// For gpt2_next(): the logits (V) behind token number `last` of g->inputs (T).
static void zo_next(GPT2 *g, size_t T, size_t last, float *logits) {
    const Zo *z = g->zo;
    const size_t C = config_embed(&g->config), V = g->config.vocab;
    const ZoPass p = zo_look(g, g->inputs, NULL, 1, T, true);
    for (size_t v0 = 0; v0 < V; v0 += z->chunk) {
        const size_t width = min_size(z->chunk, g->config.vocab_padded - v0);
        zo_head_weights(g, &p, 0, v0, width);
        gemm(&g->lt, false, true, 1, width, C, z->atty + last * C, C, z->perturbed[0], C,
             z->logits, width, NULL, false, g->compute);
        gpu_copy(logits + v0, z->logits, min_size(width, V - v0) * sizeof(float));
    }
}

// For gpt2_eval(): the loss of g->inputs (B, T).
static double zo_eval(GPT2 *g, size_t B, size_t T, size_t *right) {
    const Zo *z = g->zo;
    zo_look(g, g->inputs, g->targets, B, T, false);
    zo_totals(g);
    *right += (size_t)z->mine[zo_losses(z)];
    return z->mine[0];
}

// A RunState's move: the weights, wherever they are, when no update is pending and no stream at
// work.
static void zo_move(void *owner, int, size_t at, size_t n, float *w, bool out) {
    GPT2 *g = (GPT2 *)owner;
    for (size_t i = 0; i < (size_t)g->segments; i++) {
        const Segment *s = &g->segment[i];
        const size_t from = at > s->at ? at : s->at, end = min_size(at + n, s->at + s->length);
        if (from < end)
            floats_move(zo_home(g, i) + (from - s->at), w + (from - at), end - from, out);
    }
}

// Sends this rank's micro-batch number `micro` of the run to the staging whose turn it is.
static bool zo_send_batch(GPT2 *g, const Run *r, uint64_t micro, Error *err) {
    const uint64_t position = run_position(r, micro / g->zo->accum + 1, micro % g->zo->accum);
    if (rehearsal == NULL
        && !run_batch(r, &r->train, position, r->B, g->inputs, g->targets, g->begins, err))
        return false;
    upload(g, (int)(micro % 2), g->inputs, g->targets, g->begins, r->B, r->T, g->fetch);
    return true;
}

// Queues the passes of a step, and the batch after each. False if a token file is damaged.
static bool zo_forward(GPT2 *g, Run *r, size_t step) {
    Zo *z = g->zo;
    Error later;
    for (size_t m = 0; m < z->accum; m++) {
        const uint64_t micro = (step - 1) * z->accum + m;
        const ZoPass p = {z->pending, 2, z->config.queries, z->config.eps, (uint32_t)step,
                          &g->staging[micro % 2]};
        // The next one goes ahead of the layers that will be fetched for its pass. If it cannot be
        // read, the error is reported in its step.
        for (; z->sent <= micro + 1 && z->sent < r->o.steps * z->accum; z->sent++)
            if (!zo_send_batch(g, r, z->sent, z->sent == micro ? &r->damage : &later)) break;
        if (z->sent == micro) return false;
        zo_pass(g, &p, m, false);
        z->pending = zo_nothing;  // it is in the weights now
    }
    return true;
}

// The counters of a step, for log.jsonl: bytes over the link are those of this one, times those of
// the newest step that is complete, "step"; the bytes that this rank has sent, and how long it
// waited for the other ranks.
static void zo_log(const GPT2 *g, char *json, size_t n) {
    const TimelineStep *d = &g->timeline.done;
    char busy[160];
    timeline_log(&g->timeline, busy, sizeof busy);
    if (d->step > 0 || ranks.world > 1)
        snprintf(json, n, ",\"zo\":{\"step\":%zu%s,\"waited_ms\":%.6g,\"duplex_ms\":%.6g,"
                 "\"h2d_bytes\":%zu,\"d2h_bytes\":%zu,\"ranks\":%d,\"exchanged_bytes\":%zu,"
                 "\"exchange_ms\":%.6g}", d->step, busy, 1e3 * d->stalled, 1e3 * d->duplex,
                 g->moved_in, g->moved_out, ranks.world, g->zo->exchanged,
                 1e3 * g->zo->exchange);
}

// One step of MeZO, as mezo_step() in train_gpt2.c. All its passes are queued before the host waits
// for the losses. Ranks then exchange their losses, and all go on with equal numbers, to the last
// bit: they take one update, or skip it, and stop after one step. If a token file is damaged, all
// ranks report it; r->damage has the reason on the ranks that found it.
static StepResult zo_step(GPT2 *g, Run *r, size_t step, double lr) {
    Zo *z = g->zo;
    const size_t n = zo_losses(z), news = zo_news(z), bytes = news * sizeof(double);
    StepResult x;
    memset(&x, 0, sizeof x);
    const bool damaged = !zo_forward(g, r, step);
    zo_totals(g);
    z->mine[n + ZO_DAMAGED] = damaged;
    run_tell(z->mine + n + ZO_NEWS);
    const double start = seconds_now();
    if (rehearsal == NULL) ranks_exchange(z->mine, bytes, z->all);
    z->exchange = seconds_now() - start;
    z->exchanged = ranks.world > 1 ? bytes : 0;
    run_hear(z->all + n + ZO_NEWS, news);
    for (size_t k = 0; k < (size_t)ranks.world; k++)
        if (z->all[k * news + n + ZO_DAMAGED] != 0) x.damaged = true;
    if (x.damaged) return x;
    zo_mean(z->side, z->all, news, ranks.world, z->accum, z->config.queries,
            run_parts(r, step));
    zo_estimate(&z->pending, &z->config, step, lr, r->o.weight_decay, z->side, &x.loss, &x.norm);
    x.skipped = z->pending.step == 0;
    if (!z->fused) zo_update_weights(g);
    z->step = step;
    zo_log(g, x.more, sizeof x.more);
    return x;
}

// The share of a step that copies take, for the plan's text.
typedef struct {
    double in, out;          // seconds that they would take, both ways busy
    double exposed;          // by so many, a step is longer than its work for the GPU
    bool hidden;             // less than a hundredth is exposed
    const char *limit;       // "compute"; or what takes longer: "upload", "offload", "link" (both)
    double hidden_from;      // tokens per pass from which they are hidden; INFINITY: never
} ZoLink;

static ZoLink zo_link(const GPT2 *g, const Run *r, const Rates *rates, const Prediction *x) {
    const int both[TAKES_KINDS] = {0, 0, 0, 1, 1, 0, 0};  // copies
    const Zo *z = g->zo;
    double speed[TAKES_KINDS];
    ZoLink l;
    machine_speeds(rates, both, speed);
    l.in = x->h2d_bytes / speed[TAKES_H2D];
    l.out = x->d2h_bytes / speed[TAKES_D2H];
    l.exposed = x->step - x->compute - x->other;
    l.hidden = l.exposed < 0.01 * x->step;
    l.limit = l.hidden ? "compute" : l.in > 1.02 * l.out ? "upload"
            : l.out > 1.02 * l.in ? "offload" : "link";
    l.hidden_from = INFINITY;
    if (!g->no_overlap && z->keeps_slots && z->fused)
        l.hidden_from = (double)(r->B * r->T) * fmax(fmax(l.in, l.out) - x->other, 0) / x->compute;
    return l;
}

// How long a step takes, and from how many tokens per pass on the link is hidden.
static void zo_print_time(const GPT2 *g, const Run *r, const Rates *rates, const PlanRun *run,
                          const Prediction *x) {
    const ZoLink l = zo_link(g, r, rates, x);
    printf("predicted time of a step, in seconds: products %.4g; updates and noise %.4g\n",
           x->compute, x->other);
    plan_print_speed(rates, run, x);
    if (g->offloaded) {
        printf("  over the link, in seconds: %.4g to the GPU, %.4g to the host; %zu of %zu "
               "layer%s; ", l.in, l.out, g->zo->streamed, g->config.layers,
               plural(g->config.layers));
        if (l.hidden) printf("hidden");
        else printf("not hidden: %.4g are waits (%s)", l.exposed, l.limit);
        if (l.hidden_from < INFINITY)
            printf("; hidden from %.0f tokens per pass on", ceil(l.hidden_from));
        printf("\n");
    }
    if (sizeof(floatX) == 4)
        printf("(gpu_flops counts as for 16 bits: products in fp32 are slower)\n");
}

// Ends a run whose ranks have loaded different weights: each would train something else.
static void zo_agree(GPT2 *g) {
    enum { CHUNK = 1 << 20 };
    uint64_t hash = 0;
    char text[40];
    if (ranks.world == 1) return;
    float *buffer = (float *)alloc_or_fail(CHUNK, sizeof(float), "comparison of weights");
    for (size_t at = 0, n; at < g->table.elements; at += n) {
        n = min_size(CHUNK, g->table.elements - at);
        zo_move(g, 0, at, n, buffer, true);
        #pragma omp parallel for reduction(+ : hash)
        for (size_t i = 0; i < n; i += 4096)
            hash += hash_words(4 * (at + i), buffer + i, 4 * min_size(n - i, 4096));
    }
    free(buffer);
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    ranks_agree("weights", text);
}

// For gpt2_load(). All replicas load, and rank 0 alone saves.
static void zo_load(GPT2 *g, Run *r) {
    Zo *z = g->zo;
    RunState state = state_in(NULL, 1);
    state.move = zo_move;
    state.owner = g;
    run_load(r, &state);
    zo_agree(g);
    if (r->rank > 0) r->saves.count = 0;
    z->step = r->state.step;
    z->sent = z->step * z->accum;
    device_rest();
}

#endif
