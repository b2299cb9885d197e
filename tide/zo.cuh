// zo.cuh: zeroth-order training on the GPU, of models that need not fit there.
//
//   1. Kernels
//   2. The model: where everything is
//   3. The pipeline: layers come, are updated, perturbed and used, and go
//   4. The forward passes of both signs
//   5. Evaluation, saving, and the training loop: zo_train(), which is all that others call
//
// Source: ZO-Offloading (Wang et al. 2024): a layer
// is uploaded, updated by the step before, used for both signs, and offloaded, while its neighbours
// are on their way; the embeddings and the head stay. What differs here is in doc/zo_streaming.md.
// What happens to each element is in zo.h, and the same as on the CPU, bit for bit.
//
// floatX is the type of the weights and of the arithmetic's inputs (float, bf16 or fp16), as in the
// layers.
#ifndef TIDE_ZO_CUH
#define TIDE_ZO_CUH
#include "calibrate.cuh"
#include "gpt2.cuh"
#include "plan.h"
#include "run.h"
#include "../zo.h"

// =============================================================================================
// 1. Kernels

// Up to four tensors that lie next to each other, the unit of all that is done with weights: in a
// layer, what is used together. Elements [at, at + n) of the group are first .. of the tensor; what
// lies between the ranges is padding.
typedef struct { uint64_t at, n, first; uint32_t tensor; int decay; } ZoRange;
typedef struct { size_t length; int count; ZoRange range[4]; } ZoGroup;

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
    const uint64_t left = i < x.at + x.n ? x.at + x.n - i : 0, first = x.first + (i - x.at);
    const int n = left < 8 ? (int)left : 8;
    float th[8], z[8] = {0}, w[8];
    for (int k = 0; k < 8; k += Pack<floatX>::N) {
        const Pack<floatX> v = load_pack(theta + i + k);
        for (int j = 0; j < Pack<floatX>::N; j++) th[k + j] = to_f32(v.x[j]);
    }
    zo_apply(th, 8, &c, &u, x.tensor, x.decay, first);
    zo_clear_padding(th, n);
    if (u.step != 0) zo_store8(theta + i, th);
    if (plus == NULL) return;
    if (scale != 0) zo_noise(z, 8, &c, step, query, x.tensor, first);
    zo_clear_padding(z, n);
    for (int k = 0; k < 8; k++) w[k] = fmaf(scale, z[k], th[k]);
    zo_store8(plus + i, w);
    if (minus == NULL) return;
    for (int k = 0; k < 8; k++) w[k] = fmaf(-scale, z[k], th[k]);
    zo_store8(minus + i, w);
}

// Four elements of a tensor as zo_weights_kernel() perturbs them, for kernels that need only few.
__device__ static inline void zo_perturbed4(float w[4], const floatX *theta, const ZoConfig *c,
                                            int tensor, uint64_t first, uint32_t step,
                                            uint32_t query, float scale) {
    float z[4] = {0};
    if (scale != 0) zo_noise(z, 4, c, step, query, (uint32_t)tensor, first);
    for (int k = 0; k < 4; k++)
        w[k] = to_f32(from_f32<floatX>(fmaf(scale, z[k], to_f32(theta[first + k]))));
}

// The embeddings of one sign: only the rows that tokens name are perturbed.
__global__ static void zo_encoder_kernel(floatX *out, const int32_t *tokens, const floatX *wte,
                                         const floatX *wpe, ZoConfig c, int wte_tensor,
                                         int wpe_tensor, uint32_t step, uint32_t query, float scale,
                                         size_t N, size_t T, size_t C) {
    const size_t i = grid_thread() * 4;
    if (i >= N * C) return;
    const size_t n = i / C, channel = i % C;
    float a[4], b[4];
    zo_perturbed4(a, wte, &c, wte_tensor, (size_t)tokens[n] * C + channel, step, query, scale);
    zo_perturbed4(b, wpe, &c, wpe_tensor, n % T * C + channel, step, query, scale);
    for (int k = 0; k < 4; k++) out[i + k] = from_f32<floatX>(a[k] + b[k]);
}

// The loss of a vocabulary that comes in chunks (doc/classifier.md): each row's maximum and sum of
// exponentials so far, and the target's logit, once it came by. logits (rows, width) are those of
// tokens v0 .. v0 + valid - 1; the last chunk leaves the loss. One block per row.
__global__ static void __launch_bounds__(1024)
zo_crossentropy_kernel(float *losses, float *row_max, float *row_sum, float *target_logit,
                       const float *logits, const int32_t *targets, size_t v0, size_t valid,
                       size_t width, bool last) {
    const size_t n = blockIdx.x;
    const float *z = logits + n * width;
    const size_t target = (size_t)targets[n];
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
    if (last) losses[n] = logf(sum) + max - target_logit[n];
}

typedef struct { int count; int32_t word[TASK_LABELS]; } ZoWords;

// gpt2_classify() of train_gpt2.c: a block per sequence, of which x (T, C) are the normalised rows.
__global__ static void zo_classify_kernel(float *losses, float *right, const floatX *x,
                                          const int32_t *where, const floatX *head, ZoConfig c,
                                          ZoWords words, int tensor, uint32_t step, uint32_t query,
                                          float scale, size_t T, size_t C) {
    const size_t b = blockIdx.x;
    const int label = where[2 * b + 1];
    x += (b * T + (size_t)where[2 * b]) * C;
    float max = -FLT_MAX, sum = 0, wanted = 0;
    int best = 0;
    for (int k = 0; k < words.count; k++) {
        float dot = 0;
        for (size_t i = threadIdx.x * 4; i < C; i += blockDim.x * 4) {
            float w[4];
            zo_perturbed4(w, head, &c, tensor, (size_t)words.word[k] * C + i, step, query, scale);
            for (int j = 0; j < 4; j++) dot = fmaf(to_f32(x[i + j]), w[j], dot);
        }
        dot = block_sum(dot);
        if (dot > max) best = k;
        const float top = fmaxf(max, dot);
        sum = fmaf(sum, expf(max - top), expf(dot - top));
        max = top;
        if (k == label) wanted = dot;
    }
    if (threadIdx.x > 0) return;
    losses[b] = logf(sum) + max - wanted;
    right[b] = best == label;
}

// =============================================================================================
// 2. The model

enum { ZO_GROUPS = 4 };  // of a layer: attention's input, its output, the MLP's two matrices
static const int zo_group_first[ZO_GROUPS + 1] = {LN_1_W, ATTPROJ_W, FC_W, FCPROJ_W, LAYER_TENSORS};

// A micro-batch on its way to the GPU: tokens, and targets or gpt2_classify()'s `where`.
typedef struct {
    int32_t *host, *device;     // (2N): page-locked, and its copy
    cudaEvent_t there, used;    // the copy is there; it is no longer needed
    size_t B, T;
} ZoBatch;

enum { ZO_BATCHES = 3, ZO_EVALUATION = 2 };  // two of training, by turns, and one of evaluation

// What a pass over the layers does. signs 2: forward with theta + scale z and theta - scale z, for
// each query. signs 1: forward with theta. signs 0: only the update.
typedef struct {
    ZoUpdate update;            // that is not yet in the weights: it is put there
    int signs, queries;
    float scale;
    uint32_t step;
    const ZoBatch *batch;
} ZoPass;

struct ZoModel {
    GPT2Config config;
    GPT2Table table;
    ZoConfig zo;
    ZoUpdate pending;           // that the next pass is to put into the weights
    ZoWords words;              // count 0: a language model's loss
    size_t max_B, max_T;
    size_t accum;               // micro-batches of a step, on this rank
    bool overlap;               // copies run beside kernels
    bool keeps_slots;           // false: the memory of a visitor is allocated at each visit
    bool fused;                 // updates join the next step's pass; false: have one of their own
    size_t streamed;            // layers that live on the host and visit the GPU (zo_home())
    size_t slots;
    ZoGroup group[ZO_GROUPS];   // of layer 0; the others' differ in the numbers of their tensors
    size_t group_at[ZO_GROUPS]; // elements, within a layer
    size_t head, layer, tail;   // elements of the embeddings, of a layer, of what follows the last
    size_t chunk;               // tokens of the vocabulary whose logits are made at a time
    size_t rows;                // and of how many rows
    size_t scratch;             // elements of perturbed weights, for each sign
    Matmul lt;
    Owner owner;                // of all that zo_allocate() makes
    HostQueue host;
    cudaStream_t compute;       // kernels
    cudaStream_t fetch;         // copies to the GPU: tokens, layers
    cudaStream_t out;           // copies to the host: updated layers
    cudaEvent_t *there;         // (slots, ZO_GROUPS): the group has arrived
    cudaEvent_t *updated;       //   its updated weights are complete
    cudaEvent_t *used;          //   no kernel reads it any more
    cudaEvent_t *left;          //   it is on the host again
    size_t visits, fetched;     // of all passes: visits that have been computed, and fetched for
    size_t step;                // steps done
    uint64_t sent;              // micro-batches of the run that have been sent
    cudaEvent_t over;           // the losses are on the host
    size_t exchanged;           // bytes that this rank has sent to the others for this step
    double exchange;            // seconds until it had theirs
    Timeline timeline;
    size_t moved_in, moved_out;  // bytes over the link, of this step
    // GPU memory
    floatX *resident;           // embeddings, residents, tail
    floatX **slot;              // where each slot is: (layer)
    floatX *perturbed[2];       // (scratch): weights plus and minus the noise
    floatX *x;                  // (queries, 2, N, C): the residual streams
    floatX *atty, *act;         // (2, N, C), (2, N, F): of both signs
    floatX *ln, *qkv;           // (N, C), (N, 3C)
    float *mean, *rstd, *lse;   // (N), (N), (B, NH, T)
    float *logits;              // (rows, chunk)
    float *row_max, *row_sum, *target_logit;  // (2, N)
    float *losses, *right;      // (N), (B)
    double *totals;             // (accum, queries, 2): losses; and how many labels were right
    int32_t *tokens;            // (ZO_BATCHES, 2N)
    // host memory
    floatX *host_layers;        // (streamed, layer)
    double side[2 * ZO_QUERIES];  // (queries, 2): the means of all micro-batches and ranks
    double *all;                // (world, zo_news()): what each rank has said of this step;
    double *mine;               // and what this one is about to say, behind that: begins as totals
    ZoBatch batch[ZO_BATCHES];
};

// How many losses a rank makes in a step; and the numbers that it sends to the others: the losses,
// and ZO_SAYS more.
enum { ZO_NEWS, ZO_DAMAGED = NEWS, ZO_SAYS };  // run_tell(); its data cannot be read
static size_t zo_losses(const ZoModel *z) {
    return z->accum * 2 * (size_t)z->zo.queries;
}
static size_t zo_news(const ZoModel *z) { return zo_losses(z) + ZO_SAYS; }

static size_t zo_stored_length(const GPT2Tensor *x) { return round_up(x->size, ALIGN_ELEMENTS); }

// Tensors first .. first + count - 1 as a group.
static ZoGroup zo_group(const GPT2Table *t, int first, int count) {
    ZoGroup g;
    memset(&g, 0, sizeof g);
    g.count = count;
    for (int i = 0; i < count; i++) {
        const GPT2Tensor *x = &t->tensors[first + i];
        g.range[i] = ZoRange{x->offset - t->tensors[first].offset, x->rows * x->cols, 0,
                             (uint32_t)(first + i), x->decay};
        g.length = x->offset + zo_stored_length(x) - t->tensors[first].offset;
    }
    return g;
}

// Settles where each layer lives: `residents` on the GPU, the others on the host.
static void zo_place(ZoModel *z, size_t residents, size_t slots) {
    const GPT2Table *t = &z->table;
    const size_t L = z->config.layers, C = z->config.channels;
    const GPT2Tensor *first = &t->tensors[t->first_layer];
    z->head = first->offset;
    z->layer = first[LAYER_TENSORS - 1].offset + zo_stored_length(&first[LAYER_TENSORS - 1])
             - first->offset;
    z->tail = t->elements - z->head - L * z->layer;
    z->scratch = 2 * round_up(C, ALIGN_ELEMENTS);
    for (int k = 0; k < ZO_GROUPS; k++) {
        const int begin = t->first_layer + zo_group_first[k];
        z->group[k] = zo_group(t, begin, zo_group_first[k + 1] - zo_group_first[k]);
        z->group_at[k] = t->tensors[begin].offset - first->offset;
        if (z->group[k].length > z->scratch) z->scratch = z->group[k].length;
    }
    // Logits of a chunk: as many tokens as the scratch has room for, and a few hundred at least.
    z->chunk = z->scratch / C / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    if (z->chunk < 512) z->chunk = 512;
    if (z->chunk > 8192) z->chunk = 8192;
    z->chunk = min_size(z->chunk, z->config.vocab_padded);
    if (z->chunk * C > z->scratch) z->scratch = round_up(z->chunk * C, ALIGN_ELEMENTS);
    z->rows = min_size(z->max_B * z->max_T, HEAD_ROWS);
    z->streamed = L - min_size(residents, L);
    z->slots = min_size(slots, z->streamed);
}

// Residents are spread evenly: each hides some of the way of the next visitor. How many of the
// layers before this one stay on the GPU:
static size_t zo_residents(const ZoModel *z, size_t l) {
    return l * (z->config.layers - z->streamed) / z->config.layers;
}

static bool zo_stays(const ZoModel *z, size_t l) {
    return zo_residents(z, l + 1) > zo_residents(z, l);
}

// Where a layer lives.
static floatX *zo_home(const ZoModel *z, size_t l) {
    const size_t before = zo_residents(z, l);
    return zo_stays(z, l) ? z->resident + z->head + before * z->layer
                          : z->host_layers + (l - before) * z->layer;
}

// The memory plan, as gpt2_buffers().
static int zo_buffers(ZoModel *z, Buffer list[MAX_BUFFERS]) {
    const size_t C = z->config.channels, F = z->config.ffn, N = z->max_B * z->max_T;
    const size_t Q = (size_t)z->zo.queries, X_ = sizeof(floatX), f32 = sizeof(float);
    const size_t residents = z->config.layers - z->streamed;
    if ((double)N * (double)(2 * Q + 4) * (double)(16 * C + 2 * F) * 4 > 1e18)
        die("--batch %zu times --seq %zu is more than any machine can hold", z->max_B, z->max_T);
    int n = 0;
    #define BUFFER(purpose, bytes, field) \
        list[n++] = Buffer{purpose, bytes, &z->field, false}
    list[n++] = Buffer{"weights", (z->head + z->tail + residents * z->layer) * X_,
                       &z->resident, true};
    if (z->streamed > 0) list[n++] = Buffer{"slots", z->slots * z->layer * X_, NULL, false};
    BUFFER("perturbed weights", z->scratch * X_, perturbed[0]);
    BUFFER("perturbed weights", z->scratch * X_, perturbed[1]);
    BUFFER("activations", Q * 2 * N * C * X_, x);
    BUFFER("activations", 2 * N * C * X_, atty);
    BUFFER("activations", 2 * N * F * X_, act);
    BUFFER("activations", N * C * X_, ln);
    BUFFER("activations", N * 3 * C * X_, qkv);
    BUFFER("activations", N * f32, mean);
    BUFFER("activations", N * f32, rstd);
    BUFFER("activations", N * z->config.heads * f32, lse);
    BUFFER("logits", z->rows * z->chunk * f32, logits);
    BUFFER("logits", 2 * N * f32, row_max);
    BUFFER("logits", 2 * N * f32, row_sum);
    BUFFER("logits", 2 * N * f32, target_logit);
    BUFFER("logits", N * f32, losses);
    BUFFER("logits", N * f32, right);
    BUFFER("logits", (zo_losses(z) + 1) * sizeof(double), totals);
    list[n - 1].zero = true;  // not all of them are always set, and all are copied
    BUFFER("tokens", ZO_BATCHES * 2 * N * sizeof(int32_t), tokens);
    list[n++] = Buffer{"workspace", MATMUL_WORKSPACE, NULL, false};
    #undef BUFFER
    return n;
}

static size_t zo_bytes(ZoModel *z) {
    Buffer list[MAX_BUFFERS];
    return buffers_bytes(list, zo_buffers(z, list), 256);
}

static size_t zo_host_bytes(const ZoModel *z) {
    return round_up(z->streamed * z->layer * sizeof(floatX), 4096);
}

// Settles where everything is: of --resident-blocks (auto: of all) layers, those for which there is
// room, with fewer slots than the default for the others, if these would not fit. Prints it, and
// refuses what does not fit. Returns the bytes of GPU memory.
static size_t zo_settle_memory(ZoModel *z, const Run *r, size_t limit, size_t host_limit) {
    const Options *o = &r->o;
    Buffer list[MAX_BUFFERS];
    const bool automatic = o->resident_blocks == AUTO_COUNT;
    const size_t least = automatic ? 0 : o->resident_blocks, fewest = o->slots > 0 ? o->slots : 1;
    size_t stay = automatic ? z->config.layers : least;
    size_t slots = o->slots > 0 ? o->slots : (size_t)LEAST_SLOTS;
    for (zo_place(z, stay, slots); zo_bytes(z) > limit; zo_place(z, stay, slots)) {
        if (stay > least) stay--;
        else if (slots > fewest) slots--;
        else break;
    }
    const size_t total = zo_bytes(z), host = zo_host_bytes(z);
    if (!r->only_sampling) {
        plan_print("GPU", list, zo_buffers(z, list), total, limit, r->world);
        if (z->streamed > 0) {
            const Buffer weights = {"weights", host, NULL, false};
            plan_print("host", &weights, 1, host, host_limit, r->world);
            printf("%zu of %zu layer%s, of %.1f MiB, live on the host and visit %zu slot%s%s\n",
                   z->streamed, z->config.layers, plural(z->config.layers),
                   mib(z->layer * sizeof(floatX)), z->slots, plural(z->slots),
                   automatic ? ": all of them would not fit on the GPU" : "");
        }
    }
    check_memory(total, host, limit, host_limit, "fewer --slots and --resident-blocks");
    return total;
}

static floatX *zo_slot(const ZoModel *z) {
    return (floatX *)gpu_alloc(z->layer * sizeof(floatX), "a visiting layer");
}

static void zo_allocate(ZoModel *z) {
    Buffer list[MAX_BUFFERS];
    const size_t N = z->max_B * z->max_T, events = z->slots * ZO_GROUPS;
    matmul_open(&z->lt);
    z->slot = ALLOC(floatX *, z->slots, "slots");
    for (size_t i = 0; i < z->slots; i++) z->slot[i] = zo_slot(z);
    if (z->streamed > 0) host_queue_open(&z->host, 0);
    owner_begin(&z->owner);
    buffers_allocate(list, zo_buffers(z, list));
    if (z->streamed > 0)
        z->host_layers = (floatX *)host_alloc(&z->host, zo_host_bytes(z), "weights");
    z->compute = z->fetch = z->out = stream_make("compute", false);
    if (z->overlap) z->fetch = stream_make("fetch", false);
    if (z->overlap) z->out = stream_make("out", false);
    z->there = events_make(events);
    z->updated = events_make(events);
    z->used = events_make(events);
    z->left = events_make(events);
    event_make(&z->over, z->streamed > 0);
    for (int i = 0; i < ZO_BATCHES; i++) {
        ZoBatch *b = &z->batch[i];
        b->host = (int32_t *)pinned_alloc(2 * N * sizeof(int32_t), "tokens");
        b->device = z->tokens + (size_t)i * 2 * N;
        event_make(&b->there, false);
        event_make(&b->used, false);
    }
    z->all = (double *)pinned_alloc((1 + (size_t)ranks.world) * zo_news(z) * sizeof(double),
                                    "losses of all ranks");
    z->mine = z->all + (size_t)ranks.world * zo_news(z);
    owner_end();
    device_rest();
}

// What zo_allocate() has made.
static void zo_release(ZoModel *z) {
    device_rest();
    matmul_close(&z->lt);
    if (z->host.stream != NULL) host_queue_close(&z->host);
    for (size_t i = 0; i < z->slots; i++) gpu_free(z->slot[i]);
    free(z->slot);
    owner_free(&z->owner);
}

static void zo_free(ZoModel *z) {
    zo_release(z);
    gpt2_table_free(&z->table);
}

// A tensor outside the layers.
static floatX *zo_tensor(const ZoModel *z, int tensor) {
    const size_t at = z->table.tensors[tensor].offset;
    return z->resident + at - (at < z->head ? 0 : z->streamed * z->layer);
}

// =============================================================================================
// 3. The pipeline
//
// Layers visit in order, pass after pass; visit v takes slot v % slots. Each of a layer's groups
// waits for its own events, so that computing begins when the first has arrived, each goes home as
// soon as it is updated, and its room takes the next layer's while the rest is still being used.
// The host queues all of a pass without waiting, and fetches for the next one: what is fetched does
// not depend on the losses.

static void zo_span(ZoModel *z, const char *name, size_t number) {
    timeline_compute(&z->timeline, name, number, z->compute);
}

// Queues the way in of the next visitor. Its own way home is over by then: since there are no more
// slots than visitors, the slot has been left by one that went home later, or by itself.
static void zo_fetch(ZoModel *z) {
    const size_t number = z->fetched % z->streamed, slot = z->fetched % z->slots;
    size_t l = number;  // the layer: visitors 0 .. number are among layers 0 .. l
    while (l - zo_residents(z, l + 1) < number) l++;
    const floatX *home = zo_home(z, l);
    if (!z->keeps_slots) {  // --zo-no-slots
        stream_rest(z->compute);
        stream_rest(z->out);
        gpu_free(z->slot[slot]);
        z->slot[slot] = zo_slot(z);
    }
    for (int k = 0; k < ZO_GROUPS; k++) {
        const size_t event = slot * ZO_GROUPS + (size_t)k, at = z->group_at[k];
        const size_t bytes = z->group[k].length * sizeof(floatX);
        stream_wait(z->fetch, z->used[event]);
        stream_wait(z->fetch, z->left[event]);
        const int span = timeline_begin(&z->timeline, ROW_FETCH, "fetch", l, bytes, z->fetch);
        stream_copy(z->slot[slot] + at, home + at, bytes, cudaMemcpyHostToDevice, z->fetch);
        timeline_end(&z->timeline, span, z->fetch);
        event_record(z->there[event], z->fetch);
        z->moved_in += bytes;
    }
    z->fetched++;
}

// The weights of layer l, which is about to be used.
static floatX *zo_enter(ZoModel *z, size_t l) {
    if (zo_stays(z, l)) return zo_home(z, l);
    if (z->fetched == z->visits) zo_fetch(z);
    return z->slot[z->visits % z->slots];
}

// Layer l has been used.
static void zo_leave(ZoModel *z, size_t l) {
    if (zo_stays(z, l)) return;
    z->visits++;
    while (z->overlap && z->fetched < z->visits + z->slots) zo_fetch(z);
}

// In a rehearsal: what the bytes of n weights take, or the noise, if that takes longer (of signs
// alone it takes nothing).
static void zo_weights_take(const ZoModel *z, size_t n, const ZoUpdate *update, const ZoPass *p) {
    const Rates *r = &rehearsal->rates;
    const bool stores = update->step != 0, perturbs = p->signs > 0 && p->scale != 0;
    const int draws = (stores ? update->queries : 0) + perturbs;
    const double bytes = (double)n * sizeof(floatX) * (1 + stores + p->signs);
    const double noise = z->zo.noise == ZO_GAUSSIAN ? (double)n * draws : 0;
    rehearse(stream_number(z->compute), TAKES_GPU,
             fmax(bytes / rate_or(r->gpu_bytes, UNLIMITED),
                  noise / rate_or(r->gpu_normals, UNLIMITED)));
}

static void zo_weights(ZoModel *z, floatX *theta, const ZoGroup *group, const ZoUpdate *update,
                       const ZoPass *p, int query) {
    if (rehearsal != NULL) zo_weights_take(z, group->length, update, p);
    const unsigned blocks = ceil_div(group->length, 8 * BLOCK_THREADS);
    LAUNCH(zo_weights_kernel, blocks, BLOCK_THREADS, 0, z->compute, theta,
           p->signs > 0 ? z->perturbed[0] : NULL, p->signs > 1 ? z->perturbed[1] : NULL, *group,
           z->zo, *update, p->step, (uint32_t)query, p->scale);
}

static const ZoUpdate zo_nothing = {};

// Makes the perturbed weights of group k of layer l, whose weights are at `theta`, for a query. The
// first one also updates, and a visitor's updated group goes home at once.
static void zo_perturb_group(ZoModel *z, const ZoPass *p, size_t l, int k, floatX *theta,
                             int query) {
    const bool visits = !zo_stays(z, l), first = query == 0;
    const bool last = query + 1 >= p->queries || p->signs == 0;
    const size_t event = visits ? z->visits % z->slots * ZO_GROUPS + (size_t)k : 0;
    const size_t at = z->group_at[k], bytes = z->group[k].length * sizeof(floatX);
    if (visits && first) {
        zo_span(z, "wait", l + 1);
        stream_wait(z->compute, z->there[event]);
    }
    if (first) zo_span(z, p->signs == 0 ? "update" : "forward", l + 1);
    ZoGroup group = z->group[k];
    for (int i = 0; i < group.count; i++) group.range[i].tensor += (uint32_t)l * LAYER_TENSORS;
    zo_weights(z, theta + at, &group, first ? &p->update : &zo_nothing, p, query);
    if (!visits) return;
    if (first && p->update.step != 0) {
        floatX *home = zo_home(z, l);
        event_record(z->updated[event], z->compute);
        stream_wait(z->out, z->updated[event]);
        const int span = timeline_begin(&z->timeline, ROW_FLUSH, "flush", l, bytes, z->out);
        stream_copy(home + at, theta + at, bytes, cudaMemcpyDeviceToHost, z->out);
        timeline_end(&z->timeline, span, z->out);
        event_record(z->left[event], z->out);
        z->moved_out += bytes;
    }
    if (last) event_record(z->used[event], z->compute);
}

// =============================================================================================
// 4. The forward passes of both signs

// The residual stream of a query and a sign, and the scale of its noise.
static floatX *zo_x(const ZoModel *z, int query, int sign) {
    return z->x + (size_t)(query * 2 + sign) * z->max_B * z->max_T * z->config.channels;
}

static float zo_scale(const ZoPass *p, int sign) { return sign == 0 ? p->scale : -p->scale; }

// What follows on a perturbed group k of a layer, for one query and sign.
static void zo_layer_part(ZoModel *z, int k, int query, int sign, size_t B, size_t T) {
    const size_t C = z->config.channels, F = z->config.ffn, NH = z->config.heads, N = B * T;
    const size_t most = z->max_B * z->max_T;
    floatX *atty = z->atty + (size_t)sign * most * C, *act = z->act + (size_t)sign * most * F;
    cudaStream_t stream = z->compute;
    const ZoRange *at = z->group[k].range;
    const floatX *w = z->perturbed[sign];
    floatX *x = zo_x(z, query, sign);
    Matmul *lt = &z->lt;
    if (k == 0) {
        layernorm_forward(z->ln, z->mean, z->rstd, x, w + at[0].at, w + at[1].at, N, C, stream);
        matmul_forward(lt, z->qkv, z->ln, w + at[2].at, w + at[3].at, N, C, 3 * C, stream);
        attention_forward(atty, z->lse, z->qkv, B, T, C, NH, stream);
    } else if (k == 1) {
        matmul_forward(lt, z->ln, atty, w + at[0].at, w + at[1].at, N, C, C, stream);
        residual_layernorm_forward(x, atty, z->mean, z->rstd, x, z->ln, w + at[2].at, w + at[3].at,
                                   N, C, stream);
    } else if (k == 2) {
        matmul_forward(lt, act, atty, w + at[0].at, w + at[1].at, N, C, F, stream);
        activation_forward(act, act, N * F, z->config.activation, stream);
    } else {
        matmul_forward(lt, z->ln, act, w + at[0].at, w + at[1].at, N, F, C, stream);
        residual_forward(x, z->ln, N * C, stream);
    }
}

static void zo_encoder(ZoModel *z, const ZoPass *p, int query, int sign) {
    const size_t C = z->config.channels, N = p->batch->B * p->batch->T;
    const GPT2Table *t = &z->table;
    const unsigned blocks = ceil_div(N * C, 4 * BLOCK_THREADS);
    GPU_TAKES(z->compute, 3 * N * C * sizeof(floatX), gpu_bytes);
    LAUNCH(zo_encoder_kernel, blocks, BLOCK_THREADS, 0, z->compute, zo_x(z, query, sign),
           p->batch->device, zo_tensor(z, t->wte), zo_tensor(z, t->wpe), z->zo, t->wte, t->wpe,
           p->step, (uint32_t)query, zo_scale(p, sign), N, p->batch->T, C);
}

// Normalises the last layer's output, of both signs: atty = ln_f(x).
static void zo_final_norm(ZoModel *z, const ZoPass *p, int query) {
    const size_t C = z->config.channels, most = z->max_B * z->max_T;
    const ZoGroup group = zo_group(&z->table, z->table.ln_f_w, 2);
    zo_weights(z, zo_tensor(z, z->table.ln_f_w), &group, &zo_nothing, p, query);
    for (int s = 0; s < p->signs; s++)
        layernorm_forward(z->atty + (size_t)s * most * C, z->mean, z->rstd, zo_x(z, query, s),
                          z->perturbed[s], z->perturbed[s] + group.range[1].at,
                          p->batch->B * p->batch->T, C, z->compute);
}

// The perturbed head, for tokens v0 .. v0 + count - 1, the first of which is one of the vocabulary.
static void zo_head_weights(ZoModel *z, const ZoPass *p, int query, size_t v0, size_t count) {
    const size_t C = z->config.channels;
    ZoGroup group = zo_group(&z->table, z->table.lm_head, 1);
    group.length = count * C;
    group.range[0].first = v0 * C;
    group.range[0].n = min_size(count * C, group.range[0].n - v0 * C);
    zo_weights(z, zo_tensor(z, z->table.lm_head) + v0 * C, &group, &zo_nothing, p, query);
}

// The mean loss of a language model, of both signs, to totals[0] and totals[1].
static void zo_head(ZoModel *z, const ZoPass *p, int query, double *totals) {
    const size_t C = z->config.channels, V = z->config.vocab;
    const size_t N = p->batch->B * p->batch->T, most = z->max_B * z->max_T;
    const int32_t *targets = p->batch->device + most;
    for (size_t v0 = 0; v0 < V; v0 += z->chunk) {
        const size_t width = min_size(z->chunk, z->config.vocab_padded - v0);
        const size_t valid = min_size(width, V - v0);
        const bool last = v0 + width >= V;
        zo_head_weights(z, p, query, v0, width);
        for (int s = 0; s < p->signs; s++) {
            for (size_t first = 0; first < N; first += z->rows) {
                const size_t rows = min_size(z->rows, N - first), row = (size_t)s * most + first;
                gemm(&z->lt, false, true, rows, width, C, z->atty + row * C, C, z->perturbed[s], C,
                     z->logits, width, NULL, false, GEMM_PLAIN, NULL, z->compute);
                GPU_TAKES(z->compute, 8 * rows * width, gpu_bytes);  // the product's, and here
                LAUNCH(zo_crossentropy_kernel, (unsigned)rows, BLOCK_THREADS, 0, z->compute,
                       z->losses + first, z->row_max + row, z->row_sum + row,
                       z->target_logit + row, z->logits, targets + first, v0, valid, width, last);
            }
            if (last) loss_accumulate(totals + s, z->losses, N, 1 / (double)N, true, z->compute);
        }
    }
}

// The same for labelled sentences.
static void zo_classify(ZoModel *z, const ZoPass *p, int query, double *totals) {
    const size_t C = z->config.channels, B = p->batch->B, most = z->max_B * z->max_T;
    const int head = z->table.lm_head;
    for (int s = 0; s < p->signs; s++) {
        const floatX *x = z->atty + (size_t)s * most * C;
        LAUNCH(zo_classify_kernel, (unsigned)B, BLOCK_THREADS, 0, z->compute, z->losses, z->right,
               x, p->batch->device + most, zo_tensor(z, head), z->zo, z->words, head, p->step,
               (uint32_t)query, zo_scale(p, s), p->batch->T, C);
        loss_accumulate(totals + s, z->losses, B, 1 / (double)B, true, z->compute);
    }
    loss_accumulate(&z->totals[zo_losses(z)], z->right, B, 1, true, z->compute);
}

// Queues a pass over all layers, and with a batch the way to the normalised output; then head or
// classification, whose losses become those of this micro-batch in the totals. logits: leave the
// head out. Nothing here waits.
static void zo_pass(ZoModel *z, const ZoPass *p, size_t micro, bool logits) {
    const GPT2Table *t = &z->table;
    const size_t B = p->signs > 0 ? p->batch->B : 0, T = p->signs > 0 ? p->batch->T : 0;
    z->timeline.between = p->signs == 1 || (p->signs == 0 && z->fused);
    if (p->update.step != 0) {  // what stays on the GPU beside the layers
        const ZoPass quiet = {zo_nothing, 0, 1, 0, p->step, NULL};
        const ZoGroup head = zo_group(t, t->wte, 2);
        const ZoGroup tail = zo_group(t, t->ln_f_w, t->count - t->ln_f_w);
        zo_span(z, "update", 0);
        zo_weights(z, zo_tensor(z, t->wte), &head, &p->update, &quiet, 0);
        zo_weights(z, zo_tensor(z, t->ln_f_w), &tail, &p->update, &quiet, 0);
    }
    if (p->signs > 0) {
        zo_span(z, "wait", 0);
        stream_wait(z->compute, p->batch->there);
        zo_span(z, "forward", 0);
        for (int j = 0; j < p->queries; j++)
            for (int s = 0; s < p->signs; s++) zo_encoder(z, p, j, s);
    }
    for (size_t l = 0; l < z->config.layers; l++) {
        floatX *theta = zo_enter(z, l);
        for (int j = 0; j < (p->signs > 0 ? p->queries : 1); j++)
            for (int k = 0; k < ZO_GROUPS; k++) {
                zo_perturb_group(z, p, l, k, theta, j);
                for (int s = 0; s < p->signs; s++) zo_layer_part(z, k, j, s, B, T);
            }
        zo_leave(z, l);
    }
    zo_span(z, p->signs > 0 ? "forward" : NULL, z->config.layers + 1);
    for (int j = 0; j < p->queries && p->signs > 0; j++) {
        zo_final_norm(z, p, j);
        if (logits) break;
        double *totals = z->totals + 2 * (micro * (size_t)z->zo.queries + (size_t)j);
        if (z->words.count > 0) zo_classify(z, p, j, totals);
        else zo_head(z, p, j, totals);
    }
    if (p->signs > 0) event_record(p->batch->used, z->compute);
    zo_span(z, NULL, 0);
}

// Waits for the totals of the passes so far, in z->mine.
static void zo_totals(ZoModel *z) {
    stream_copy(z->mine, z->totals, (zo_losses(z) + 1) * sizeof(double), cudaMemcpyDeviceToHost,
                z->compute);
    event_record(z->over, z->compute);
    event_wait(z->over);
}

// Puts the last step's update into the weights, now. With --zo-no-fused-update always; else, before
// they are looked at: the next step's pass would do it.
static void zo_update_weights(ZoModel *z) {
    const ZoPass p = {z->pending, 0, 1, 0, z->pending.step, NULL};
    if (z->pending.step != 0) zo_pass(z, &p, 0, false);
    z->pending = zo_nothing;
}

// A pass of evaluation: forward with the newest weights.
static ZoPass zo_look(ZoModel *z, const ZoBatch *batch) {
    zo_update_weights(z);  // the next step would come too late
    return ZoPass{zo_nothing, 1, 1, 0, (uint32_t)z->step, batch};
}

// Room for the next batch of set i, to be filled and then sent. Waits until it is free.
static ZoBatch *zo_batch_begin(ZoModel *z, int i, size_t B, size_t T) {
    ZoBatch *b = &z->batch[i];
    event_wait(b->there);
    b->B = B;
    b->T = T;
    return b;
}

static void zo_batch_send(ZoModel *z, ZoBatch *b) {
    const size_t most = z->max_B * z->max_T;
    stream_wait(z->fetch, b->used);
    stream_copy(b->device, b->host, 2 * most * sizeof(int32_t), cudaMemcpyHostToDevice, z->fetch);
    event_record(b->there, z->fetch);
}

// Reads rows of the data into set i, and sends them. NULL if they are damaged.
static const ZoBatch *zo_send(ZoModel *z, int i, const Run *r, const Loader *data, size_t first,
                              size_t rows, Error *err) {
    ZoBatch *b = zo_batch_begin(z, i, rows, r->T);
    if (rehearsal == NULL
        && !run_batch(r, data, first, rows, b->host, b->host + z->max_B * z->max_T, err))
        return NULL;
    zo_batch_send(z, b);
    return b;
}

// =============================================================================================
// 5. Evaluation, saving, and the training loop

// gpt2_next() for streamed weights.
static void zo_next(void *model, const int32_t *tokens, size_t count, size_t, float *logits) {
    ZoModel *z = (ZoModel *)model;
    const size_t C = z->config.channels, V = z->config.vocab;
    const size_t T = min_size(round_up(count, 64), z->config.context);
    ZoBatch *b = zo_batch_begin(z, ZO_EVALUATION, 1, T);
    memset(b->host, 0, T * sizeof(int32_t));
    memcpy(b->host, tokens, count * sizeof(int32_t));
    zo_batch_send(z, b);
    const ZoPass p = zo_look(z, b);
    zo_pass(z, &p, 0, true);
    for (size_t v0 = 0; v0 < V; v0 += z->chunk) {
        const size_t width = min_size(z->chunk, z->config.vocab_padded - v0);
        zo_head_weights(z, &p, 0, v0, width);
        gemm(&z->lt, false, true, 1, width, C, z->atty + (count - 1) * C, C, z->perturbed[0], C,
             z->logits, width, NULL, false, GEMM_PLAIN, NULL, z->compute);
        gpu_copy(logits + v0, z->logits, min_size(width, V - v0) * sizeof(float));
    }
}

// For run_eval(): the mean loss of rows of the held-out data.
static double zo_eval(void *model, Run *r, size_t first, size_t rows, size_t *right) {
    ZoModel *z = (ZoModel *)model;
    const ZoBatch *b = zo_send(z, ZO_EVALUATION, r, &r->val, first, rows, &r->damage);
    if (b == NULL) return 0;
    const ZoPass p = zo_look(z, b);
    zo_pass(z, &p, 0, false);
    zo_totals(z);
    *right += (size_t)z->mine[zo_losses(z)];
    return z->mine[0];
}

// A RunState's move: the weights, wherever they are, when no update is pending and no stream at
// work.
static void zo_move(void *owner, int, size_t at, size_t n, float *w, bool out) {
    ZoModel *z = (ZoModel *)owner;
    const size_t layers_end = z->head + z->config.layers * z->layer;
    for (size_t count; n > 0; at += count, w += count, n -= count) {
        size_t end = z->head;
        floatX *here = z->resident + at;
        if (at >= layers_end) {
            end = z->table.elements;
            here -= z->streamed * z->layer;
        } else if (at >= z->head) {
            const size_t l = (at - z->head) / z->layer, inside = (at - z->head) % z->layer;
            end = at - inside + z->layer;
            here = zo_home(z, l) + inside;
        }
        count = min_size(n, end - at);
        floats_move(here, w, count, out);
    }
}

// Sends this rank's micro-batch number `micro` of the run to the set whose turn it is.
static bool zo_send_batch(ZoModel *z, const Run *r, uint64_t micro, Error *err) {
    const uint64_t position = run_position(r, micro / z->accum + 1, micro % z->accum);
    return zo_send(z, (int)(micro % 2), r, &r->train, position, r->B, err) != NULL;
}

// Queues the passes of a step, and the batch after each. False if a token file is damaged.
static bool zo_forward(ZoModel *z, Run *r, size_t step) {
    Error later;
    for (size_t m = 0; m < z->accum; m++) {
        const uint64_t micro = (step - 1) * z->accum + m;
        const ZoPass p = {z->pending, 2, z->zo.queries, z->zo.eps, (uint32_t)step,
                          &z->batch[micro % 2]};
        // The next one goes ahead of the layers that will be fetched for its pass. If it cannot be
        // read, that is told when its turn comes.
        for (; z->sent <= micro + 1 && z->sent < r->o.steps * z->accum; z->sent++)
            if (!zo_send_batch(z, r, z->sent, z->sent == micro ? &r->damage : &later)) break;
        if (z->sent == micro) return false;
        zo_pass(z, &p, m, false);
        z->pending = zo_nothing;  // it is in the weights now
    }
    return true;
}

// One step of MeZO, as mezo_step() in train_gpt2.c. All its passes are queued before the host waits
// for the losses. Ranks then tell each other theirs, and all of them go on with the same numbers,
// to the last bit: they take the same update, or skip it, and stop after the same step. If a token
// file is damaged all of them say so; r->damage says why on the ranks that found it.
static StepResult zo_step(ZoModel *z, Run *r, size_t step, double lr) {
    const size_t n = zo_losses(z), news = zo_news(z), bytes = news * sizeof(double);
    StepResult x;
    memset(&x, 0, sizeof x);
    const bool damaged = !zo_forward(z, r, step);
    zo_totals(z);
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
    zo_mean(z->side, z->all, news, ranks.world, z->accum, z->zo.queries);
    zo_estimate(&z->pending, &z->zo, step, lr, r->o.weight_decay, z->side, &x.loss, &x.norm);
    x.skipped = z->pending.step == 0;
    if (!z->fused) zo_update_weights(z);
    z->step = step;
    return x;
}

// Steps that are rehearsed; of these, the last are counted, and their mean is the prediction.
// Several GPUs have a replica each; the few numbers that they exchange take no time here.
enum { ZO_REHEARSED = 9, ZO_COUNTED = 3 };

typedef struct {
    ZoModel z;
    Run run;
    Rehearsal q;
    StepMark marks[ZO_REHEARSED];
    size_t more;             // micro-batches of a step that are left out
} ZoRehearsal;

// Writes the steps down. zo_predict() frees it.
static ZoRehearsal *zo_rehearsal(const ZoModel *model, const Run *r, const Rates *rates) {
    ZoRehearsal *x = ALLOC(ZoRehearsal, 1, "plan");
    const size_t micros = min_size(r->o.accum, REHEARSED_MICRO);
    ZoModel *z = &x->z;
    *z = *model;
    x->run = *r;
    x->more = r->o.accum - micros;
    x->run.o.steps = ZO_REHEARSED + 1;
    x->run.o.accum = z->accum = micros;
    z->pending = zo_nothing;  // of a model that trains
    z->visits = z->fetched = z->sent = 0;
    memset(&z->host, 0, sizeof z->host);
    memset(&z->owner, 0, sizeof z->owner);
    memset(&z->timeline, 0, sizeof z->timeline);
    rehearsal_begin(&x->q, rates);
    zo_allocate(z);
    for (int i = 0; i < ZO_REHEARSED; i++) {
        zo_step(z, &x->run, (size_t)i + 1, 1e-6);
        x->marks[i] = StepMark{x->q.events[event_number(z->over)], x->q.count};
    }
    return x;
}

static Prediction zo_predict(ZoRehearsal *r) {
    const Rates rates = r->q.rates;
    Prediction x = predict(&r->q, r->marks, ZO_REHEARSED, ZO_COUNTED, r->more, 1, NULL);
    zo_release(&r->z);
    rehearsal_end(&r->q);
    free(r);
    // copies that fall behind a little in each step are not that far behind after so few
    x.step = fmax(x.step, fmax(x.h2d_bytes / rate_or(rates.h2d, UNLIMITED),
                               x.d2h_bytes / rate_or(rates.d2h, UNLIMITED)));
    return x;
}

static Prediction zo_rehearse(const ZoModel *model, const Run *r, const Rates *rates) {
    return zo_predict(zo_rehearsal(model, r, rates));
}

// What copies leave of a step, for people to see.
typedef struct {
    double in, out;          // seconds that they would take, both ways busy
    double exposed;          // by so many, a step is longer than its work for the GPU
    bool hidden;             // less than a hundredth is exposed
    const char *limit;       // "compute"; or what takes longer: "upload", "offload", "link" (both)
    double hidden_from;      // tokens per pass from which they are hidden; INFINITY: never
} ZoLink;

static ZoLink zo_link(const ZoModel *z, const Run *r, const Rates *rates, const Prediction *x) {
    const int both[TAKES_KINDS] = {0, 0, 0, 1, 1, 0, 0};  // copies
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
    if (z->overlap && z->keeps_slots && z->fused)
        l.hidden_from = (double)(r->B * r->T) * fmax(fmax(l.in, l.out) - x->other, 0) / x->compute;
    return l;
}

// How long a step takes, and from how many tokens per pass on the link is hidden.
static void zo_print_time(const ZoModel *z, const Run *r, const Rates *rates) {
    const Prediction x = zo_rehearse(z, r, rates);
    const ZoLink l = zo_link(z, r, rates, &x);
    const PlanRun run = {r->step_tokens, r->world};
    printf("predicted time of a step, in seconds: products %.4g; updates and noise %.4g\n",
           x.compute, x.other);
    plan_print_speed(rates, &run, x.step, x.compute);
    if (z->streamed == 0) return;
    printf("  over the link, in seconds: %.4g to the GPU, %.4g to the host; %zu of %zu layer%s; ",
           l.in, l.out, z->streamed, z->config.layers, plural(z->config.layers));
    if (l.hidden) printf("hidden");
    else printf("not hidden: %.4g are waits (%s)", l.exposed, l.limit);
    if (l.hidden_from < INFINITY)
        printf("; hidden from %.0f tokens per pass on", ceil(l.hidden_from));
    printf("\n");
}

// Settles where everything will be and how long a step will take, as settle(). Returns the planned
// bytes of GPU memory.
static size_t zo_settle(ZoModel *z, Run *r) {
    const Options *o = &r->o;
    Rates rates;
    Limits limits;
    memset(&rates, 0, sizeof rates);
    if (r->world > 1)
        printf("ranks: %zu, each with all weights; per step each sends %zu bytes to the others\n",
               r->world, zo_news(z) * sizeof(double));
    settle_limits(o, &limits);
    const size_t planned = zo_settle_memory(z, r, limits.gpu, limits.host);
    if (o->rates != NULL || (o->plan && limits.here))
        machine_rates(&z->host, (int)o->threads, o, &rates);
    if (rates.h2d > 0 && r->training) {
        zo_print_time(z, r, &rates);
        if (sizeof(floatX) == 4)
            printf("(gpu_flops counts as for 16 bits: products in fp32 are slower)\n");
    } else if (o->plan && r->training) {
        printf("for the time of a step, describe the machine: --rates FILE\n");
    }
    return planned;
}

// The counters of a step, for log.jsonl: bytes over the link are those of this one, times those of
// the newest step that is complete, "step"; what this rank has sent to the others, and how long it
// waited for what they have sent.
static void zo_counters(const ZoModel *z, char *json, size_t n) {
    const TimelineStep *d = &z->timeline.done;
    json[0] = '\0';
    if (d->step > 0 || ranks.world > 1)
        snprintf(json, n, ",\"zo\":{\"step\":%zu,\"waited_ms\":%.6g,\"duplex_ms\":%.6g,"
                 "\"h2d_bytes\":%zu,\"d2h_bytes\":%zu,\"ranks\":%d,\"exchanged_bytes\":%zu,"
                 "\"exchange_ms\":%.6g}", d->step, 1e3 * d->stalled, 1e3 * d->duplex, z->moved_in,
                 z->moved_out, ranks.world, z->exchanged, 1e3 * z->exchange);
}

// Ends a run whose ranks have loaded different weights: each would train something else.
static void zo_agree(ZoModel *z) {
    enum { CHUNK = 1 << 20 };
    uint64_t hash = 0;
    char text[40];
    if (ranks.world == 1) return;
    float *buffer = (float *)alloc_or_fail(CHUNK, sizeof(float), "comparison of weights");
    for (size_t at = 0, n; at < z->table.elements; at += n) {
        n = min_size(CHUNK, z->table.elements - at);
        zo_move(z, 0, at, n, buffer, true);
        #pragma omp parallel for reduction(+ : hash)
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, buffer + i, 4);
            hash += hash_word(at + i, bits);
        }
    }
    free(buffer);
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    ranks_agree("weights", text);
}

// Saves the run: all ranks together.
static void zo_save(ZoModel *z, Run *r) {
    zo_update_weights(z);
    device_rest();
    run_save(r, NULL);
}

// The memory for what run_open() has settled. Returns the bytes of GPU memory that it planned.
static size_t zo_begin(ZoModel *z, Run *r) {
    const Options *o = &r->o;
    z->config = r->config;
    z->table = r->table;
    z->zo = ZoConfig{o->seed, (float)o->zo_eps, (int)o->zo_queries, o->zo_noise,
                     ZO_STORAGE};
    if (r->task) z->words.count = run_task(r)->labels;
    if (r->task) memcpy(z->words.word, run_task(r)->word, sizeof z->words.word);
    z->overlap = !o->no_overlap;
    z->keeps_slots = !o->zo_no_slots;
    z->fused = !o->zo_no_fused_update;
    z->accum = o->accum;
    z->max_B = r->batches ? r->B : 1;
    z->max_T = r->batches ? r->T : 1;
    if (r->sampling && z->max_B * z->max_T < z->config.context) {
        z->max_B = 1;
        z->max_T = z->config.context;
    }
    return zo_settle(z, r);
}

// First values. Of replicas all load, and rank 0 alone has something to save.
static void zo_load(ZoModel *z, Run *r) {
    RunState state = state_in(NULL, 1);
    state.move = zo_move;
    state.owner = z;
    run_load(r, &state);
    zo_agree(z);
    if (r->rank > 0) r->saves.count = 0;
    z->step = r->state.step;
    z->sent = z->step * z->accum;
    device_rest();
}

static int zo_train(Run *r) {
    ZoModel *z = (ZoModel *)alloc_or_fail(1, sizeof(ZoModel), "model");
    const Options *o = &r->o;
    const size_t planned = zo_begin(z, r);
    if (o->plan) return 0;
    const size_t available = gpu_available();
    zo_allocate(z);
    const size_t taken = available - gpu_available();
    zo_load(z, r);
    if (o->steps == 0) return run_without_steps(r, zo_eval, zo_next, z);

    if (z->streamed > 0 || o->trace != NULL)
        timeline_open(&z->timeline, r->rank == 0 ? o->trace : NULL);
    const DevicePeak device = device_peak(sizeof(floatX) == sizeof(float));
    const double peak = device.flops * (double)r->world;
    for (size_t step = run_begin(r, peak); run_goes_on(r, step); step++) {
        timeline_step(&z->timeline, step);
        z->moved_in = z->moved_out = 0;
        StepResult x = zo_step(z, r, step, schedule_lr(o, step));
        zo_counters(z, x.more, sizeof x.more);
        run_log_step(r, step, &x);
        if (run_wants_eval(r, step)) run_eval(r, step, zo_eval, z);
        if (run_wants_sample(r, step)) run_sample(r, step, zo_next, z);
        if (run_wants_save(r, step)) zo_save(z, r);
    }
    zo_save(z, r);
    timeline_close(&z->timeline);
    const int code = run_end(r);
    printf("GPU memory: %.1f MiB taken, planned %.1f MiB\n", mib(taken), mib(planned));
    zo_free(z);
    return code;
}

#endif
