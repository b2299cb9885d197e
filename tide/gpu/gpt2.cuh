// gpt2.cuh: the model on a GPU: its memory, its streams and its copies over the link.
// train_gpt2.cu, zenflow.cuh, zero.cuh and zo.cuh use this file.
//   GPT2, Segment, LayerActs         the model; a range of its parameters; a layer's activations
//   pieces_point()                   sets the addresses of pieces
//   tensor(), tensor_grad(), layer_weights()                        the addresses of tensors
//   layer_passes()                   counts a layer's bytes outside its products, in a rehearsal
//   order(), copy_out(), copy_in()   let a stream wait for another; copy over the link
//   upload()                         copies a batch to the GPU
//   host_work(), host_submit()       work for the CPU
//   compute_span()                   says what the timeline shows of the compute stream
//   gpu_copy(), floats_move(), state_copy()    copy to and from the host while no work is queued
#ifndef TIDE_GPT2_CUH
#define TIDE_GPT2_CUH
#include "cache.cuh"
#include "columns.cuh"
#include "host.cuh"
#include "../cpu/adam_fast.h"
#include "../plan/plan.h"
#include "timeline.cuh"
#include "../run/zen_run.h"

// train_gpt2.cu is compiled once for each precision; each compilation defines its own TRAIN().
#if defined(ENABLE_FP32)
static const int PRECISION = PRECISION_FP32;
#define TRAIN train_fp32
#elif defined(ENABLE_FP16)
static const int PRECISION = PRECISION_FP16;
#define TRAIN train_fp16
#else
static const int PRECISION = PRECISION_BF16;
#define TRAIN train_bf16
#endif

// The activations of one layer: pointers into GPT2's buffers. In post-norm layers (model.h), mid
// and ln_2 are the sums after attention and after the MLP, and ln_1 is the norm of mid.
struct LayerActs {
    floatX *x;                        // (N, C)  the residual stream on entry
    floatX *ln_1; float *mean_1, *rstd_1;  // (N, C), (N), (N)
    floatX *qkv;                      // (N, Q), Q = (NH + 2 NKV) HS: queries, keys, values
    floatX *qk; float *qk_rstd;       // (N, (NH + NKV) HS) q, k before norms; (N, NH + NKV) rstd
    floatX *atty; float *lse;         // (N, NH HS), (B, NH, T): attention's output and log of sums
    floatX *mid;                      // (N, C)  the residual stream after attention
    floatX *ln_2; float *mean_2, *rstd_2;  // (N, C), (N), (N)
    floatX *fc, *act;                 // (N or a chunk, M or F)  before, after the non-linearity
    floatX *cache;                    // (window, 2, NKV HS)  keys and values (cache.cuh), or NULL
    floatX *branch;                   // (N, C)  the branch's result, to be added to the stream
    floatX *out;                      // (N, C)  post-norm layers: their output
    bool turned;                      // q and k are rotated by their positions
    size_t rows;                      // N; or, for parts 2 and 3, rows of a chunk: acts_chunk()
    // aliases, set by layer_order(): inputs of attention and MLP; mean and 1/std of `mid`
    floatX *att_in, *mlp_in; float *mid_mean, *mid_rstd;
};

// Sets the aliases. In pre-norm layers, attention reads ln_1, and the MLP ln_2 = norm(mid). In
// post-norm layers, attention reads x, and the MLP ln_1 = norm(mid).
static void layer_order(LayerActs *a, const GPT2Config *c) {
    const bool post = c->post_norm;
    a->att_in = post ? a->x : a->ln_1;
    a->mlp_in = post ? a->ln_1 : a->ln_2;
    a->mid_mean = post ? a->mean_1 : a->mean_2;
    a->mid_rstd = post ? a->rstd_1 : a->rstd_2;
}

typedef LAYER_WEIGHTS(floatX) LayerWeights;

// Rooms: memory that is filled and freed in turn. The stream that fills room i waits for free[i],
// and then records full[i]. Each reader waits for full[i], and the last one records free[i].
typedef struct {
    int count;                  // rooms that tenants use in turn
    int apart;                  // rooms behind those, each of which one segment uses
    int turn;                   // number of the room that is filled next
    size_t bytes;               // of one room
    char *memory;               // (count, bytes); NULL: they are part of another buffer
    cudaEvent_t *full, *free;   // (count + apart)
} Rooms;

static void rooms_make(Rooms *r) {
    r->full = events_make((size_t)(r->count + r->apart));
    r->free = events_make((size_t)(r->count + r->apart));
}

static char *room_at(const Rooms *r, int i) { return r->memory + (size_t)i * r->bytes; }
static void rooms_turn(Rooms *r) { r->turn = (r->turn + 1) % r->count; }

// A segment is one contiguous range of the arena: 0 the embeddings, 1 .. L the layers, L + 1 the
// tail (ln_f, and an untied head). Backward completes their gradients from the last to the first.
// With ZeRO (zero.h) each rank owns a shard of a segment, all of equal length; without it the only
// shard is the segment. "own" means this rank's shard. All sizes and places are in elements.
typedef struct {
    size_t at, length;    // its range of the arena
    size_t cut, padded;   // length of each shard (0: the lengths differ); of all shards
    size_t own_from;      // where the own shard begins in the arena
    size_t own_at, own;   // own shard: begin, all own shards being side by side; length
    size_t param_at;      // begin of its weights in GPT2.params
    size_t own_param_at;  // where the own shard's weights begin (in ZeRO-3 outside a room)
    size_t grad_at;       // begin of its gradient in GPT2.grads
    int grad_room;        // number of the gradient's room, which segments may share
    int weight_room;      // room to which its weights are copied for each use; -1: none
    bool on_host;         // its weights are on the host
    const Piece *first, *end;  // its pieces (offload.h), if it has any
    size_t leaving;       // elements of its gradient that wait on the host for the update
} Segment;

// A visitor. A slot is a room for one visitor's state; for its weights, if they are on the host;
// and for its gradient, if that was copied to the host.
typedef struct {
    const Piece *piece;
    Piece here;           // a copy of *piece with addresses on the GPU
    size_t number;        // number of the piece
    int slot;             // the slot that it takes
    size_t weight_bytes;  // bytes of its weights, if they are on the host; else 0
    size_t bytes;         // bytes of these weights and its state
} Visitor;

// The integers of a micro-batch in page-locked memory; one copy moves them to the GPU. There are
// two sets: the host fills one while the copy of the other still waits in the stream. A third set
// is for evaluations in zeroth-order training, where both sets may hold micro-batches.
typedef struct {
    int32_t *tokens;             // (N) each: inputs, targets, begins (if packed), sees (if there is
                                 // a window); then each TokenOrder's rows (N) and first (N + 1)
    int32_t *device;             // their copy on the GPU (zeroth order: one for each set)
    const int32_t *begins, *sees;  // on the GPU, or NULL: see `documents`, `sees` of GPT2
    size_t B, T;
    cudaEvent_t copied;          // the copy is complete
    cudaEvent_t used;            // the copy may be overwritten; recorded in zeroth order alone
} Staging;
enum { STAGINGS = 3 };

// A task's labels of one token each (task.h). count 0: none; the loss is over all tokens.
typedef struct { int count; int32_t word[TASK_LABELS]; } Words;

// Functions of train_gpt2.cu that tide/gpu/ calls: a step, which a plan rehearses; one micro-batch,
// which calibration times; a part of a layer, which zeroth-order training runs perturbed.
struct GPT2;
typedef struct {
    StepResult (*train)(GPT2 *g, Run *r, size_t step);
    void (*micro_batch)(GPT2 *g, size_t B, size_t T, float grad_scale);
    void (*layer_part)(GPT2 *g, int part, const LayerActs *a, const LayerWeights *w);
} Steps;

struct GPT2 {
    GPT2Config config;
    GPT2Table table;
    ShardMap shards;            // the parameters that this process updates
    struct Zero *zero;          // zero.cuh: several GPUs, or --zero; else NULL
    size_t max_B, max_T;        // largest batch that the activation buffers hold
    size_t B, T;                // batch of the last forward pass
    const int32_t *documents;   // (B, T), on the GPU: begins of the tokens' documents; or NULL
    const int32_t *sees;        // (B, T), on the GPU: the first token of its row that a token sees
    bool training;              // false: no gradients, no moments, one layer's activations
    bool sampling;              // there is a cache of keys and values
    bool caching;               // this forward pass stores keys and values there
    size_t position;            // text position of the pass's first token; above 0: its only token
    bool moments_bf16;          // m and v are stored in bf16
    bool master_bf16;           // masters are bf16: they are the weights
    bool packed;                // training's rows hold several documents
    bool accumulating;          // a step has several micro-batches, summed in fp32
    size_t head_rows;           // the head's logits are in memory for this many rows at a time
    Matmul lt;
    Owner owner;                // frees all that gpt2_allocate() makes
    // The place of the optimizer's state, and who updates it (offload.h, doc/offload.md).
    OffloadChoice choice;
    Pieces pieces;
    Visitor *visits;            // the visiting pieces, in the order of their updates
    int fetched;                // visitors whose fetch is queued in this step
    Rooms slots;                // on the GPU for visitors: see Visitor
    Rooms grad_rooms;           // in `grads`: rooms in which gradients are made
    Rooms weight_rooms;         // in `params`: for weights that are copied for each use
    int *tenant;                // per weight room: 1 + the segment that it holds; 0: none
    Rooms input_rooms;          // in `acts`, for inputs of layers: one each, or a few used in turn
    Rooms landings;             // on the host, for gradients that the worker adds to a sum; with
                                // ZenFlow each segment has one, a part of host_grads
    bool offloaded;             // some state is on the host
    bool sums_on_gpu;           // the GPU sums the gradients of several micro-batches
    bool lands;                 // the worker sums the gradients that leave the GPU
    size_t waiting_bytes;       // bytes of an element of a gradient that waits on the GPU,
    size_t host_grad_bytes;     // the same on the host
    size_t state_bytes[PIECE_KINDS][3];  // by kind of piece: bytes of an element in state[0] (bits
                                         // of masters), in state[1] (m), in state[2] (v)
    size_t piece_bytes[PIECE_KINDS];     // sums of these three
    bool update_in_backward;    // --clip 0: each segment's update begins when its gradient is made
    bool in_place;              // gradients wait for the update where backward makes them
    int host_rooms;             // on the host, for gradients of layers in turn; 0: each has its own
    size_t host_grad_elements;  // elements of host_grads
    size_t grads_over_acts;     // elements of gradients that wait over activations (ActsPlace)
    bool no_overlap;            // backward waits until each gradient has left, forward for the
                                // whole update
    int weights;                // --weights, or WEIGHTS_GPU if all weights must stay on the GPU
    int streamed;               // number of layers whose weights are stored on the host
    size_t param_elements, grad_elements;  // elements of params and grads
    size_t weights_on_host;     // elements of host_weights
    int host_threads;           // 0: host_queue_open() decides
    size_t moved_in, moved_out; // bytes over the link in this step
    // Two tables in train_gpt2.cu list these streams and events, with their meaning.
    cudaStream_t compute, sums, out, flush, fetch, back, update;
    cudaStream_t weights_in;    // the table's `weights`
    cudaStream_t inputs_link;   // the table's `inputs`
    HostQueue host;             // AdamW on the host, in a stream of its own
    cudaStream_t ready_stream;  // the copy of a gradient to the host waits for this stream
    cudaStream_t freed_stream;  // the stream that reads a gradient's room last
    cudaEvent_t handover;       // recorded anew by each order()
    cudaEvent_t *grad_arrived, *updated, *returned;  // per segment
    cudaEvent_t step_left;
    Words words;
    struct ZenFlow *zen;        // zenflow.cuh: --offload zenflow; else NULL
    struct Zo *zo;              // zo.cuh: --optimizer mezo, or labels that are only evaluated; NULL
    StateRange *ranges;         // by segment: the own shard's range in the arena
    Prediction predicted;       // time of a step, if the machine's rates are known
    const Steps *steps;         // functions of train_gpt2.cu
    OffloadLeast *least;        // where choose_least() gets the memory that would fit; else NULL
    Timeline timeline;          // closed unless the state is offloaded or --trace is given
    int segments;
    Segment *segment;
    // GPU memory.
    floatX *params;                              // weights in use; see Segment
    void *state[3];                              // state of residents or chosen columns: masters
                                                 // (residents: low bits), m, v (fp32 or bf16)
    floatX *grads;                               // the micro-batch's gradients; see Segment
    void *waiting;                               // gradients that wait for the update; see Piece
    float *wire;                                 // (wire_chunk): gradients in fp32, for the link
    float *dwte;                                 // (Vp, E): the head's gradient and wte's, in fp32,
                                                 // unless head_in_place()
    char *acts;                                  // activations of layers: see ActsPlace
    floatX *ln_f;                                // (N, C)
    float *mean_f, *rstd_f;                      // (N), (N)
    floatX *logits;                              // (head_rows, Vp)
    float *losses;                               // (N)
    double *loss;                                // [2]: mean loss of the step so far; norm^2
    float *rope;                                 // (T, HS/2, 2): see rope_table()
    floatX *cache;                               // (L, window, 2, NKV HS): see cache.cuh
    floatX *branch;                              // (N, C): output of attention or MLP; backward:
                                                 // (N, wider of C and NH HS), its gradient
    floatX *dx, *dwide;                          // backward: (N, C), see wide_elements()
    float *mlp_sums;                             // (M, C), (C, F): gradients, if N > mlp_rows()
    float *delta;                                // backward: (B, NH, T)
    float *scratch;                              // partial sums of weight gradients over rows
    double *norm_sums, *run_sums;                // sums of squares: per block, per 1024 blocks
    int32_t *tokens;                             // the batch on the GPU, laid out as in Staging
    // Page-locked host memory.
    void *host_state[3];                         // state of the pieces that are not resident
    void *host_grads;                            // gradients that wait for the update; see Piece
    floatX *host_weights;                        // weights that the CPU updates or the host stores
    char *host_inputs;                           // (L - 1, N, C), if the inputs of layers leave
    Staging staging[STAGINGS];
    int turn;                                    // the staging in use
    TokenOrder by_token, by_position;               // the inputs sorted by token, by position
    // Ordinary host memory.
    int32_t *token_count;                        // (2, max(V, T)), for token_order()
    int32_t *inputs, *targets;                   // (N): the batch, as it was read
    int32_t *begins, *positions;                 // (N), if packed: documents' begins, positions
    double *worker_sums;                         // (blocks): sums of squares that the worker makes
    double *host_loss;                           // [2], as `loss`
};

// Returns how many integers Staging.tokens may have; backward: with TokenOrders, for backward.
static size_t batch_numbers(const GPT2 *g, bool backward) {
    const size_t N = g->max_B * g->max_T;
    const size_t rows = (size_t)2 + g->packed + config_slides(&g->config, g->max_T);
    return rows * N + (backward ? ((size_t)1 + g->packed) * (2 * N + 1) : 0);
}

enum { HEAD_ROWS = 4096 };               // enough to keep the GPU busy: 400 MB of logits for GPT-2

// Adds a line to a memory plan, `list`, which has n lines, unless the line has 0 bytes.
#define BUFFER(kind, purpose, size, pointer) \
    (list[n] = Buffer{purpose, size, &(pointer), BUFFER_##kind}, n += list[n].bytes > 0)

// Elements of a copy of a gradient in fp32; most rows of an MLP's chunk. Tests make both smaller.
static size_t wire_chunk = (size_t)1 << 22, mlp_chunk = (size_t)1 << 14;

// Returns how many rows an MLP computes at a time. If the largest micro-batch has more than 2
// mlp_chunk rows, a gated MLP without biases computes them in chunks of equal length (the last one
// may be shorter). It then sums the gradients of its weights in fp32. The chunks depend on model
// and micro-batch alone, so every --recompute and every placement has the same bits.
static size_t mlp_rows(const GPT2 *g) {
    const GPT2Config *c = &g->config;
    const bool whole = !config_gated(c) || config_biased(c, BIAS_MLP) || c->post_norm;
    const size_t N = g->max_B * g->max_T, chunks = ceil_div(N, mlp_chunk);
    return whole || N <= 2 * mlp_chunk ? N : round_up(ceil_div(N, chunks), 8);
}

// Is only one chunk of the MLP's activations in memory? Backward, if there is one, computes each
// chunk again.
static bool one_chunk(const GPT2 *g) {
    return !g->training || g->choice.recompute == RECOMPUTE_BLOCK;
}

// Returns how many elements of dwide N rows need: for dqkv, and for one chunk of the MLP.
static size_t wide_elements(const GPT2 *g, size_t N) {
    const GPT2Config *c = &g->config;
    return max_size(N * config_qkv(c), min_size(N, mlp_rows(g)) * config_mlp(c));
}

// Returns the number of the segment that is updated as the i-th.
static int update_order(const GPT2 *g, int i) {
    const int early = g->update_in_backward ? g->segments : g->choice.early;
    return i < early ? g->segments - 1 - i : i - early;
}

// Does a segment's update read its gradient in a room that other segments need as well?
static bool updates_from_room(const GPT2 *g, const Segment *seg) {
    return g->update_in_backward && g->in_place && seg->leaving < seg->own;
}

// Sets the fields that say where gradients are summed, and the bytes of gradients and state.
static void gpt2_sizes(GPT2 *g) {
    const bool wide = g->zen == NULL && (g->accumulating || g->choice.wire_f32);
    g->sums_on_gpu = g->accumulating && !g->choice.sum_on_host;
    g->lands = g->accumulating && g->choice.sum_on_host;
    g->waiting_bytes = g->accumulating ? sizeof(float) : sizeof(floatX);
    g->host_grad_bytes = wide ? sizeof(float) : sizeof(floatX);
    for (int kind = 0; kind < PIECE_KINDS; kind++) {
        size_t *bytes = g->state_bytes[kind];
        const bool whole = sizeof(floatX) == sizeof(float) || g->master_bf16;  // weights = masters
        bytes[0] = whole || g->zo != NULL ? 0 : sizeof(uint16_t);
        // chosen columns are far apart in the weights: their masters are packed, with all bits
        if (kind == PIECE_CHOSEN) bytes[0] = g->master_bf16 ? sizeof(uint16_t) : sizeof(float);
        bytes[1] = bytes[2] = g->moments_bf16 ? sizeof(uint16_t) : sizeof(float);
        g->piece_bytes[kind] = bytes[0] + bytes[1] + bytes[2];
    }
}

// Returns the first part of a piece's state that exists: 0 (low bits of masters), or 1 (m).
static int first_state(const GPT2 *g, const Piece *p) {
    return g->state_bytes[p->kind][0] == 0;
}

// The layout of activations. A layer keeps its input x (N, C) and other activations that backward
// reads, each in whole units of 256 bytes. Activations that backward computes again are in memory
// that all layers share. A layer's kept activations and the next layer's input are one range:
//     x of layer 0, [the rest of layer 0, x of layer 1], [the rest of layer 1, x of layer 2], ..
// If only choice.kept_layers layers keep the rest, each other layer has only its x there. They are
// the ones before the last layer, with which backward begins: its activations are still there.
// Once backward has made a layer's gradient, the layer's range is free until the next forward pass,
// which waits for the layer's update. So the gradient may be stored in the range until the update.
// With --activations host a layer keeps only its input; two rooms are for the inputs of this layer
// and of the next layer. Post-norm layers recompute their output: a third room is filled meanwhile.
typedef struct {
    size_t entry, stride;      // bytes of x; bytes of x and the rest
    size_t first, end;         // the layers from `first` to `end` - 1 keep the rest
    size_t rooms;              // rooms for x (all, or a few in turn) and the last output
    size_t bytes[LAYER_ACTS];  // of each row of the activation table (model.h)
    bool kept[LAYER_ACTS];     // is the row part of the rest?
    size_t at[LAYER_ACTS];     // where it then begins, from the end of its layer's x
    size_t shared[LAYER_ACTS]; // where it begins if layers share it, from the end of the last x
    size_t all;                // bytes of all layers
} ActsPlace;

// Returns what backward computes again of layer l.
static int layer_recompute(const GPT2 *g, size_t l) {
    const size_t kept = (size_t)g->choice.kept_layers, L = g->config.layers;
    return kept > 0 && l + 1 + kept >= L ? (int)RECOMPUTE_LIGHT : g->choice.recompute;
}

// Returns where the x in a room begins.
static size_t input_at(const ActsPlace *p, size_t room) {
    const size_t till = min_size(room, p->end), whole = till > p->first ? till - p->first : 0;
    return (room - whole) * p->entry + whole * p->stride;
}

static ActsPlace acts_place(const GPT2 *g) {
    #define ACT_ROW(name, width, f32, kept, chunked) {width, f32, kept, chunked},
    const struct { size_t width; bool f32; int kept; bool chunked; } act[] = {
        LAYER_ACTIVATIONS(ACT_ROW, &g->config)};
    const size_t N = g->max_B * g->max_T;
    const size_t L = g->config.layers, last = (size_t)g->choice.kept_layers;
    size_t shared = 0;
    ActsPlace p;
    p.first = last > 0 ? L - 1 - last : 0;
    p.end = last > 0 ? L - 1 : L;
    p.entry = p.stride = round_up(N * g->config.channels * sizeof(floatX), 256);
    for (int k = 0; k < LAYER_ACTS; k++) {
        const size_t size = act[k].f32 ? sizeof(float) : sizeof(floatX);
        const size_t rows = act[k].chunked && one_chunk(g) ? min_size(N, mlp_rows(g)) : N;
        p.bytes[k] = round_up(rows * act[k].width * size, 256);
        p.kept[k] = g->training && layer_recompute(g, L - 1) <= act[k].kept;
        p.at[k] = p.stride - p.entry;
        p.shared[k] = shared;
        if (p.kept[k]) p.stride += p.bytes[k];
        if (!p.kept[k] || p.end < L) shared += p.bytes[k];
    }
    p.rooms = g->training ? L + 1 : 1;
    if (g->choice.inputs_leave)
        p.rooms = min_size(p.rooms, (size_t)LEAST_ROOMS + (g->config.post_norm != 0));
    p.all = input_at(&p, p.rooms - 1) + p.entry + shared;
    return p;
}

// Returns the bytes of activations that forward leaves of layer l.
static size_t layer_bytes(const GPT2 *g, size_t l) {
    const ActsPlace p = acts_place(g);
    return l >= p.first && l < p.end ? p.stride : p.entry;
}

// Returns the room of layer l's input. (Layer L stands for the last layer's output.)
static size_t input_room(const GPT2 *g, size_t l) { return l % acts_place(g).rooms; }

static floatX *layer_input(const GPT2 *g, size_t l) {
    const ActsPlace p = acts_place(g);
    return (floatX *)(g->acts + input_at(&p, l % p.rooms));
}

// Returns the elements of one layer's cache of keys and values.
static size_t layer_cache(const GPT2 *g) {
    return config_window(&g->config) * cache_row(&g->config);
}

// Returns how many floats the backward pass of attention may overwrite, after dqkv in g->dwide.
static size_t attention_room(const GPT2 *g) {
    const size_t N = g->B * g->T, used = N * config_qkv(&g->config);
    return (wide_elements(g, N) - used) * sizeof(floatX) / sizeof(float);
}

static LayerActs layer_acts(const GPT2 *g, size_t l) {
    const ActsPlace p = acts_place(g);
    LayerActs a;
    int k = 0;
    #define ACT_POINT(name, ...) \
        a.name = p.bytes[k] == 0 ? NULL : (decltype(a.name))(g->acts + p.entry \
                     + (p.kept[k] && l >= p.first && l < p.end ? input_at(&p, l) + p.at[k] \
                        : input_at(&p, p.rooms - 1) + p.shared[k])); \
        k++;
    LAYER_ACTIVATIONS(ACT_POINT, &g->config)
    #undef ACT_POINT
    a.x = layer_input(g, l);
    a.cache = g->caching ? g->cache + l * layer_cache(g) : NULL;
    a.branch = g->branch;
    a.out = layer_input(g, l + 1);
    a.turned = config_turns(&g->config, l);
    a.rows = g->B * g->T;
    layer_order(&a, &g->config);
    return a;
}

// Returns the activations of a chunk of the MLP, which begins at row `first`.
static LayerActs acts_chunk(const GPT2 *g, const LayerActs *all, size_t first) {
    const size_t C = g->config.channels, stored = one_chunk(g) ? 0 : first;
    LayerActs a = *all;
    a.rows = min_size(mlp_rows(g), all->rows - first);
    a.mlp_in += first * C;
    a.branch += first * C;
    a.fc += stored * config_mlp(&g->config);
    a.act += stored * g->config.ffn;
    return a;
}

// Returns the shape of attention in this batch.
static AttentionShape layer_shape(const GPT2 *g) {
    const GPT2Config *c = &g->config;
    return attention_shape(g->B, g->T, c->heads, config_kv(c), config_head(c), c->window);
}

// Sets the addresses of each piece, once memory is allocated. ZenFlow's pieces have packed state;
// zenflow.cuh packs their gradients.
static void pieces_point(GPT2 *g) {
    const ActsPlace acts = acts_place(g);
    for (Piece *p = g->pieces.pieces; p < g->pieces.pieces + g->pieces.count; p++) {
        const Segment *seg = &g->segment[p->segment];
        const size_t inside = p->at - seg->own_at, waits = g->sums_on_gpu ? p->at : p->grad_at;
        const bool chosen = p->kind == PIECE_CHOSEN, here = chosen || p->kind == PIECE_RESIDENT;
        const size_t layer = (size_t)p->segment - 1;
        p->params = p->weights = g->params + seg->own_param_at + inside;
        if (p->kind == PIECE_HOST || p->kind == PIECE_LATE || (seg->on_host && !chosen))
            p->weights = g->host_weights + p->weights_at;
        if (seg->on_host && !chosen) p->params = p->weights;
        if (seg->on_host && p->kind == PIECE_LATE) p->params = (floatX *)p->weights + p->length;
        for (int k = first_state(g, p); k < (g->training ? 3 : 1); k++)
            p->state[k] = (char *)(here ? g->state[k] : g->host_state[k])
                        + p->state_at * g->state_bytes[p->kind][k];
        if (!g->training) continue;
        p->made = g->grads + seg->grad_at + (seg->own_from - seg->at) + inside;
        p->grad = (char *)g->waiting + waits * g->waiting_bytes;
        if (g->in_place || (chosen && !g->sums_on_gpu)) p->grad = p->made;
        if (p->over_acts) p->grad = g->acts + acts.entry + layer * acts.stride + p->grad_at;
        p->host_grad = (char *)g->host_grads + p->grad_at * g->host_grad_bytes;
        // the norm needs no late piece: the chosen piece's runs also cover the late columns
        if (p->kind == PIECE_LATE || !(p->grad_on_gpu || g->sums_on_gpu)) p->grad = NULL;
        if (p->kind != PIECE_LATE)
            p->normed = p->grad != NULL ? p->grad : g->accumulating ? NULL : p->made;
        if (!p->grad_on_gpu) p->leaves = g->sums_on_gpu && p->grad != NULL ? p->grad : p->made;
    }
}

// Sets each visitor's sizes and addresses on the GPU, once memory is allocated.
static void visitors_point(GPT2 *g) {
    for (int i = 0; i < g->pieces.visits; i++) {
        Visitor *v = &g->visits[i];
        const Piece *p = v->piece;
        v->number = (size_t)(p - g->pieces.pieces);
        v->slot = i % g->slots.count;
        v->weight_bytes = g->segment[p->segment].on_host ? p->length * sizeof(floatX) : 0;
        v->bytes = p->length * g->piece_bytes[PIECE_VISIT] + v->weight_bytes;
        v->here = *p;
        char *at = room_at(&g->slots, v->slot);
        for (int k = 0; k < 3; k++) {
            v->here.state[k] = k < first_state(g, p) ? NULL : at;
            at += g->pieces.longest_visit * g->state_bytes[PIECE_VISIT][k];
        }
        if (v->weight_bytes > 0) v->here.params = at;
        if (!p->grad_on_gpu) v->here.grad = at + v->weight_bytes;
    }
}

// Copies between host and GPU memory, in either direction: after all work that was queued before,
// and before all work that is queued later. (The second wait is needed: a copy from pageable memory
// may return early, and no other stream waits for the default stream.)
static void gpu_copy(void *to, const void *from, size_t bytes) {
    device_sync();
    if (rehearsal == NULL) stream_copy(to, from, bytes, cudaMemcpyDefault, NULL);
    device_sync();
}

// Counts the floats of the table of rotary positions. A sample is one row that may fill a whole
// micro-batch, so it may be longer than --seq.
static size_t rope_floats(const GPT2 *g) {
    return min_size(g->max_B * g->max_T, g->config.context) * config_head(&g->config);
}

// Computes the table of rotary positions, and copies it to the GPU.
static void rope_upload(GPT2 *g) {
    if (g->rope == NULL || rehearsal != NULL) return;
    const size_t HS = config_head(&g->config);
    float *table = ALLOC(float, rope_floats(g), "rotary positions");
    rope_table(&g->config.rope, rope_floats(g) / HS, HS, table);
    gpu_copy(g->rope, table, rope_floats(g) * sizeof *table);
    free(table);
}

// Copies n weights, on GPU or host, to floats on the host (out), or back, rounded by weight_from().
static void floats_move(floatX *here, float *w, size_t n, bool out) {
    enum { CHUNK = 1 << 20 };
    static floatX chunk[CHUNK];
    for (size_t count; n > 0; here += count, w += count, n -= count) {
        count = min_size(n, CHUNK);
        if (out) gpu_copy(chunk, here, count * sizeof(floatX));
        #pragma omp parallel for if (count > 1 << 14)
        for (size_t i = 0; i < count; i++) {
            if (out) w[i] = to_f32(chunk[i]);
            else chunk[i] = weight_from<floatX>(w[i]);
        }
        if (!out) gpu_copy(here, chunk, count * sizeof(floatX));
    }
}

// Copies n elements of a piece's master weights, m or v (k: 0, 1, 2), from its element `at` on, to
// floats on the host (out), or back, rounded to nearest if stored in bf16. If the piece has no low
// bits of masters, its weights are the masters.
static void state_copy(const GPT2 *g, const Piece *p, int k, size_t at, float *w, size_t n,
                       bool out) {
    const size_t size = g->state_bytes[p->kind][k], bytes = n * size;
    floatX *const weights = (floatX *)p->weights + at;
    void *const here = (char *)p->state[k] + at * size;
    if (size == 0) floats_move(weights, w, n, out);
    if (size == sizeof(float)) gpu_copy(out ? w : here, out ? here : w, bytes);
    if (size != sizeof(uint16_t)) return;
    uint16_t *half = ALLOC(uint16_t, 2 * n, "state"), *low = half + n;
    const bool split = k == 0 && p->kind != PIECE_CHOSEN;  // 16 bits in `weights`, 16 in `here`
    void *const upper = split ? weights : here;
    if (out) gpu_copy(half, upper, bytes);
    if (out && split) gpu_copy(low, here, bytes);
    if (!split) bf16_move(half, w, n, out);
    else master_move(half, low, w, n, out);
    if (!out) gpu_copy(upper, half, bytes);
    if (!out && split) gpu_copy(here, low, bytes);
    free(half);
}

// Returns the tensors of layer l, whose segment begins at `arena`.
static LayerWeights layer_pointers(const GPT2 *g, size_t l, floatX *arena) {
    LayerWeights w;
    for (int k = 0; k < LAYER_TENSORS; k++) {
        const int i = layer_tensor(&g->table, l, k);
        w.kind[k] = i < 0 ? NULL : arena + (g->table.tensors[i].offset - g->segment[l + 1].at);
    }
    w.mid_w = g->config.post_norm ? w.ln_1_w : w.ln_2_w;
    w.mid_b = g->config.post_norm ? w.ln_1_b : w.ln_2_b;
    return w;
}

static LayerWeights layer_weights(const GPT2 *g, size_t l) {
    return layer_pointers(g, l, g->params + g->segment[l + 1].param_at);
}

// Returns a tensor outside the layers, or its gradient; NULL if the family has no such tensor.
static floatX *tensor_or_grad(const GPT2 *g, int index, bool grad) {
    if (index < 0) return NULL;
    const GPT2Tensor *ten = &g->table.tensors[index];
    const Segment *seg = &g->segment[ten->layer + 1];
    floatX *const begin = grad ? g->grads + seg->grad_at : g->params + seg->param_at;
    return begin + (ten->offset - seg->at);
}

static floatX *tensor(const GPT2 *g, int index) { return tensor_or_grad(g, index, false); }
static floatX *tensor_grad(const GPT2 *g, int index) { return tensor_or_grad(g, index, true); }

// Is the head's gradient made in the tail's room, rounded once? This needs a head that is not tied,
// no label words, and the logits of all rows in memory at once. Else it is summed in dwte, in fp32.
static bool head_in_place(const GPT2 *g) {
    return !g->config.tied && g->words.count == 0 && g->max_B * g->max_T <= g->head_rows;
}

// Ends the compute stream's open span, and begins the next one, which works on segment s; name
// NULL: none. bytes: of activations or gradients that it makes, as timeline --memory draws them.
static void compute_span(GPT2 *g, const char *name, size_t s, size_t bytes = 0) {
    Timeline *t = &g->timeline;
    if (rehearsal != NULL)
        rehearse_span(stream_number(g->compute), name == NULL ? -1 : ROW_COMPUTE,
                      name == NULL ? "" : name, s, bytes);
    if (t->base == NULL) return;
    timeline_end(t, t->doing, g->compute);
    t->doing = name == NULL ? -1 : timeline_begin(t, ROW_COMPUTE, name, s, bytes, g->compute);
}

// Counts, in a rehearsal, the bytes that the passes between a layer's products read and write:
// norms and sums, rotation, non-linearity. In backward, norms take twice the time of their bytes
// (doc/gpu_results.md). In 16 bits GELU's slopes and the sums for biases take no time: the products
// compute them (matmul_backward()).
static void layer_passes(GPT2 *g, bool backward) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, M = config_mlp(c);
    const size_t turned = c->rope.theta > 0 ? 2 * config_qk(c) : 0;
    const bool passes = sizeof(floatX) == 4;
    const size_t summed = passes && config_biased(c, BIAS_QKV) ? config_qkv(c) : 0;
    const size_t sloped = passes || c->activation != ACTIVATION_GELU ? F + 2 * M : 0;
    const size_t each = backward ? 16 * C + sloped + summed : 8 * C + F + M;
    GPU_TAKES(g->compute, (each + turned) * g->B * g->T * sizeof(floatX), gpu_bytes);
}

// Makes all work that is queued in `later` from now on wait for all work now queued in `earlier`.
static void order(GPT2 *g, cudaStream_t earlier, cudaStream_t later) {
    event_record(g->handover, earlier);
    stream_wait(later, g->handover);
}

// Copies over the link, from the GPU to the host, and counts the bytes.
static void copy_out(GPT2 *g, void *host, const void *device, size_t bytes, cudaStream_t stream) {
    stream_copy(host, device, bytes, cudaMemcpyDeviceToHost, stream);
    g->moved_out += bytes;
}

static void copy_in(GPT2 *g, void *device, const void *host, size_t bytes, cudaStream_t stream) {
    stream_copy(device, host, bytes, cudaMemcpyHostToDevice, stream);
    g->moved_in += bytes;
}

// Copies the n elements of a gradient to the host as fp32 (--grad-wire), chunk by chunk.
static void copy_out_wide(GPT2 *g, float *host, const floatX *device, size_t n) {
    for (size_t at = 0; at < n; at += wire_chunk) {
        const size_t chunk = min_size(wire_chunk, n - at);
        accumulate_gradient(g->wire, device + at, chunk, true, g->out);
        copy_out(g, host + at, g->wire, chunk * sizeof(float), g->out);
    }
}

// Sorts `numbers` (N), each below V, and appends the order to the `count` integers that the staging
// buffer has. Returns how many it has then.
static size_t upload_order(GPT2 *g, const Staging *s, size_t count, TokenOrder *order,
                           const int32_t *numbers, size_t N, size_t V) {
    int32_t *rows = s->tokens + count;
    *order = token_order(rows, rows + N, g->token_count, numbers, N, V);
    order->rows = s->device + count;
    order->first = order->rows + N;
    return count + N + order->groups + 1;
}

// Copies all integers of a micro-batch of B x T tokens to the GPU, in one copy, because each short
// copy waits for long ones that other streams have begun. targets NULL: there are none. begins
// NULL: each row is one document.
static void upload(GPT2 *g, int set, const int32_t *inputs, const int32_t *targets,
                   const int32_t *begins, size_t B, size_t T, cudaStream_t stream) {
    Staging *s = &g->staging[set];
    const size_t N = B * T;
    const int32_t *const numbers[] = {inputs, targets, begins};
    size_t count = 0;
    event_wait(s->copied);  // the copy of two micro-batches ago
    for (const int32_t *from : numbers) {
        if (from == NULL) continue;
        memcpy(s->tokens + count, from, N * sizeof(int32_t));
        count += N;
    }
    s->begins = s->sees = begins == NULL ? NULL : s->device + count - N;
    if (window_sees(s->tokens + count, begins, N, T, &g->config) != begins) {
        s->sees = s->device + count;
        count += N;
    }
    g->by_position.groups = 0;
    if (targets != NULL && g->training) {  // for backward
        count = upload_order(g, s, count, &g->by_token, inputs, N, g->config.vocab);
        for (size_t n = 0; n < N && begins != NULL; n++)
            g->positions[n] = (int32_t)(n % T) - begins[n];
        if (begins != NULL) count = upload_order(g, s, count, &g->by_position, g->positions, N, T);
    }
    s->B = B;
    s->T = T;
    stream_wait(stream, s->used);
    stream_copy(s->device, s->tokens, count * sizeof(int32_t), cudaMemcpyHostToDevice, stream);
    event_record(s->copied, stream);
}

// Describes the CPU's work on a piece: AdamW, unless step is NULL. The caller sets grad and sum.
static AdamWork host_work(const GPT2 *g, const Piece *p, const AdamStep *step) {
    const AdamRun *runs = g->pieces.runs + p->first_run;
    if (step == NULL) return AdamWork{.scale = 1, .runs = runs, .count = p->runs};
    return AdamWork{.w = p->weights, .low = (uint16_t *)p->state[0], .m = p->state[1],
                    .v = p->state[2], .scale = 1, .runs = runs, .count = p->runs, .step = *step,
                    .halves = sizeof(floatX) == 2};
}

static void host_works(const void *work) { adam_work((const AdamWork *)work); }

// Queues the worker's next work; traces show it with this number.
static void host_submit(GPT2 *g, const Piece *p, size_t number, const AdamWork *work) {
    const char *what = work->w != NULL ? "update" : "accumulate";
    const int span = timeline_begin(&g->timeline, ROW_HOST, what, number, 0, g->host.stream);
    host_takes(&g->host, p->length * adam_work_bytes(work));
    host_queue_submit(&g->host, host_works, work, sizeof *work);
    timeline_end(&g->timeline, span, g->host.stream);
}

// Lets the worker add piece p's gradient of a micro-batch, in a landing, to the step's sum.
static void host_adds(GPT2 *g, const Piece *p, size_t s, const floatX *landing, bool accumulate,
                      bool last) {
    AdamWork work = host_work(g, p, NULL);
    work.sum = (float *)p->host_grad;
    work.grad = landing;
    work.grad_is_half = sizeof(floatX) == 2;
    work.first = !accumulate;
    if (last) work.block_sums = g->worker_sums + p->first_block;
    host_submit(g, p, s, &work);
}

#endif
