// model.h: what a GPT-2 (or OPT) model is: its configuration, its presets, the one table that
// describes every parameter tensor, its first values, and how many bytes everything takes.
// Nothing here computes; loaders, trainers, optimizer, sharding and tests iterate over the table.
//
//     gpt2_preset()        a configuration by its name; gpt2_finish() after any change of one
//     gpt2_table()         all parameter tensors; gpt2_tensor_at(): the one at an element
//     gpt2_acts()          what a layer makes: all activations that backward reads
//     gpt2_init()          first values; gpt2_init_range(): of a part of a tensor
//     gpt2_shards_all()    the ranges that a process without ZeRO owns
//     gpt2_flops_per_token()
#ifndef TIDE_MODEL_H
#define TIDE_MODEL_H
#include "util.h"
#include "rng.h"

// ---------------------------------------------------------------------------------------------
// Configuration

enum { FAMILY_GPT2, FAMILY_OPT };          // which Hugging Face naming a saved model uses
// GELU in its tanh form ("gelu_new"). With SILU, fc makes 2F channels: a gate's, and its input's.
enum { ACTIVATION_GELU, ACTIVATION_RELU, ACTIVATION_SILU };

// Placement, by the options' values: activations that backward computes again; memory of the
// optimizer's state, and the processor that updates it (offload.h); memory of the weights.
enum { RECOMPUTE_AUTO, RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_BLOCK };
enum { OFFLOAD_AUTO, OFFLOAD_NONE, OFFLOAD_ZERO, OFFLOAD_TWINFLOW, OFFLOAD_INTERLEAVE,
       OFFLOAD_ZENFLOW };
enum { WEIGHTS_GPU, WEIGHTS_HOST, WEIGHTS_AUTO };

typedef struct {
    size_t layers;        // L
    size_t heads;         // NH; the head size C / NH is HS
    size_t channels;      // C
    size_t ffn;           // F, hidden width of the MLP; 4 C unless a loaded model says otherwise
    size_t context;       // longest sequence that the position table has room for
    size_t vocab;         // V, tokens 0 .. V-1
    size_t vocab_padded;  // Vp, V rounded up to a multiple of 128; only gpt2_finish() sets it
    int family;           // FAMILY_*
    int activation;       // ACTIVATION_*
    int tied;             // 1: the head is wte; 0: the head has a tensor of its own (lm_head)
    size_t embed;         // 0, or E, as in OPT-350M: embeddings of E < C channels, which project_in
                          // and project_out connect to the layers
    int post_norm;        // 1, as in OPT-350M: layers normalise after each sum, not before each
                          // branch, and no normalisation follows the last layer
} GPT2Config;

// Channels of wte and the head; of q, k and v together; of one attention head; and of the widest
// row that a layer makes.
static size_t config_embed(const GPT2Config *c) { return c->embed > 0 ? c->embed : c->channels; }
static size_t config_qkv(const GPT2Config *c) { return 3 * c->channels; }
static size_t config_head(const GPT2Config *c) { return c->channels / c->heads; }
static size_t config_wide(const GPT2Config *c) {
    return c->ffn > config_qkv(c) ? c->ffn : config_qkv(c);
}

#define LAYERNORM_EPS 1e-5f
#define ALIGN_ELEMENTS 128  // every tensor starts at a multiple of this, and Vp is one

// Fills the derived fields and refuses what is not a model. Call it after any change.
static bool gpt2_finish(GPT2Config *c, Error *err) {
    if (c->layers < 1 || c->layers > 1000) return error_set(err, "layers must be 1 to 1000");
    if (c->channels < 1 || c->channels > 1 << 16)
        return error_set(err, "channels must be 1 to %d", 1 << 16);
    if (c->heads < 1 || c->channels % c->heads != 0)
        return error_set(err, "channels (%zu) must be a multiple of heads (%zu)", c->channels,
                         c->heads);
    if (c->embed >= c->channels && c->embed > 0)
        return error_set(err, "embeddings (%zu channels) must be narrower than layers (%zu)",
                         c->embed, c->channels);
    if ((c->embed > 0) != (c->post_norm != 0))
        return error_set(err, "layers normalise after their sums where embeddings are narrow, and "
                         "only there");
    if (c->ffn == 0) c->ffn = 4 * c->channels;
    if (c->ffn > 1 << 20) return error_set(err, "the MLP's width must be at most %d", 1 << 20);
    if (c->context < 1 || c->context > 1 << 20)
        return error_set(err, "context must be 1 to %d", 1 << 20);
    if (c->vocab < 1 || c->vocab > 1 << 24) return error_set(err, "vocab must be 1 to %d", 1 << 24);
    c->vocab_padded = round_up(c->vocab, ALIGN_ELEMENTS);
    return true;
}

// GPT-2: Radford et al. 2019, table 2. OPT: Zhang et al. 2022, table 1. 7b
// to 20b: Deep Optimizer States, table 2, with the GPT-2 vocabulary.
#define GPT2(L, NH, C, T, V) {L, NH, C, 0, T, V, 0, FAMILY_GPT2, ACTIVATION_GELU, 1, 0, 0}
#define OPT(L, NH, C, E, V) {L, NH, C, 0, 2048, V, 0, FAMILY_OPT, ACTIVATION_RELU, 1, E, (E) > 0}
static const struct { const char *name; GPT2Config config; } gpt2_presets[] = {
    {"nano",        GPT2( 4,  4,   128,  256,   256)},
    {"gpt2",        GPT2(12, 12,   768, 1024, 50257)},
    {"gpt2-medium", GPT2(24, 16,  1024, 1024, 50257)},
    {"gpt2-large",  GPT2(36, 20,  1280, 1024, 50257)},
    {"gpt2-xl",     GPT2(48, 25,  1600, 1024, 50257)},
    {"7b",          GPT2(32, 32,  4096, 2048, 50257)},
    {"8.3b",        GPT2(72, 24,  3072, 2048, 50257)},
    {"10b",         GPT2(50, 32,  4096, 2048, 50257)},
    {"13b",         GPT2(40, 40,  5120, 2048, 50257)},
    {"20b",         GPT2(48, 64,  6144, 2048, 50257)},
    {"opt-125m",    OPT( 12, 12,   768,   0, 50272)},
    {"opt-350m",    OPT( 24, 16,  1024, 512, 50272)},
    {"opt-1.3b",    OPT( 24, 32,  2048,   0, 50272)},
    {"opt-2.7b",    OPT( 32, 32,  2560,   0, 50272)},
    {"opt-6.7b",    OPT( 32, 32,  4096,   0, 50272)},
    {"opt-13b",     OPT( 40, 40,  5120,   0, 50272)},
    {"opt-30b",     OPT( 48, 56,  7168,   0, 50272)},
    {"opt-66b",     OPT( 64, 72,  9216,   0, 50272)},
    {"opt-175b",    OPT( 96, 96, 12288,   0, 50272)},
};

// Fills *c from a preset's name, or from "dN": depth N at GPT-2's proportions, 64 channels per
// layer and 64 per head, so that d12 is GPT-2 124M. Returns false if there is no such name.
static bool gpt2_preset(GPT2Config *c, const char *name) {
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < sizeof gpt2_presets / sizeof gpt2_presets[0]; i++) {
        if (strcmp(gpt2_presets[i].name, name) != 0) continue;
        *c = gpt2_presets[i].config;
        return true;
    }
    char *end;
    if (name[0] != 'd' || name[1] < '1' || name[1] > '9') return false;
    const size_t depth = strtoul(name + 1, &end, 10);
    if (*end != '\0' || depth > 1000) return false;
    const GPT2Config d = GPT2(depth, depth, 64 * depth, 1024, 50257);
    *c = d;
    return true;
}
#undef GPT2
#undef OPT

// ---------------------------------------------------------------------------------------------
// The parameter table

// The tensors of one layer, in the order in which they lie in memory.
enum { LN_1_W, LN_1_B, QKV_W, QKV_B, ATTPROJ_W, ATTPROJ_B,
       LN_2_W, LN_2_B, FC_W, FC_B, FCPROJ_W, FCPROJ_B, LAYER_TENSORS };

typedef struct {
    char name[32];        // "wte", "h.3.attn.qkv.w", "ln_f.b": native names, one per tensor
    int layer;            // -1 before the layers (wte, wpe), L after them (ln_f, lm_head)
    int kind;             // within a layer: LN_1_W ..; otherwise -1
    int rank;             // 2: a (rows, cols) matrix, row-major; 1: a vector (rows = 1)
    int decay;            // 1: weight decay applies (rank 2)
    size_t rows, cols;    // logical shape; a linear layer's weight is (OC, C)
    size_t rows_padded;   // rows in memory: Vp for wte and lm_head, else rows
    size_t size;          // rows_padded * cols elements
    size_t offset;        // of the first element in the arena, a multiple of ALIGN_ELEMENTS
    float init_std;       // first values: normal(0, init_std); 0: constant init_value
    float init_value;
} GPT2Tensor;

typedef struct {
    int count;
    GPT2Tensor *tensors;  // in memory order
    int wte, wpe, ln_f_w, ln_f_b, lm_head;  // indices; lm_head == wte when the head is tied
    int project_in, project_out;  // (C, E) and (E, C), instead of ln_f; of these, -1: not there
    int first_layer;      // index of layer 0's ln_1.w; layer l's tensor k is first_layer + l*12 + k
    int tail;             // index of the first tensor after the layers
    size_t elements;      // length of the arena in elements, gaps included (they stay zero)
    size_t parameters;    // what one calls the model's size: logical elements only
} GPT2Table;

static GPT2Tensor *table_add(GPT2Table *t, const char *name, int layer, int kind, size_t rows,
                             size_t cols, int rank, float std, float value) {
    GPT2Tensor *x = &t->tensors[t->count++];
    snprintf(x->name, sizeof x->name, "%s", name);
    x->layer = layer;
    x->kind = kind;
    x->rank = rank;
    x->decay = rank >= 2;
    x->rows = x->rows_padded = rows;
    x->cols = cols;
    x->init_std = std;
    x->init_value = value;
    return x;
}

// Lays the model out: wte, wpe, the layers, ln_f, lm_head (untied only); with narrow embeddings
// project_in follows wpe, and project_out is in ln_f's place. One layer is one contiguous range.
// The caller frees it with gpt2_table_free().
// First values as in GPT-2: normal(0, 0.02), and 0.02 / sqrt(2 L) for the two projections that
// write into the residual stream, because 2 L of them add up there.
static GPT2Table gpt2_table(const GPT2Config *c) {
    static const char *const names[LAYER_TENSORS] = {
        "ln_1.w", "ln_1.b", "attn.qkv.w", "attn.qkv.b", "attn.proj.w", "attn.proj.b",
        "ln_2.w", "ln_2.b", "mlp.fc.w", "mlp.fc.b", "mlp.proj.w", "mlp.proj.b"};
    const size_t C = c->channels, E = config_embed(c), F = c->ffn, L = c->layers;
    const float std = 0.02f, residual_std = (float)(0.02 / __builtin_sqrt(2.0 * (double)L));
    GPT2Table t;
    memset(&t, 0, sizeof t);
    t.tensors = ALLOC(GPT2Tensor, L * LAYER_TENSORS + 6, "table");
    t.wte = t.count;
    table_add(&t, "wte", -1, -1, c->vocab, E, 2, std, 0)->rows_padded = c->vocab_padded;
    t.wpe = t.count;
    table_add(&t, "wpe", -1, -1, c->context, C, 2, std, 0);
    t.project_in = t.project_out = t.ln_f_w = t.ln_f_b = -1;
    if (c->embed > 0) {
        t.project_in = t.count;
        table_add(&t, "project_in.w", -1, -1, C, E, 2, std, 0);
    }
    t.first_layer = t.count;
    for (size_t l = 0; l < L; l++) {
        const size_t Q = config_qkv(c);
        const size_t rows[LAYER_TENSORS] = {1, 1, Q, 1, C, 1, 1, 1, F, 1, C, 1};
        const size_t cols[LAYER_TENSORS] = {C, C, C, Q, C, C, C, C, C, F, F, C};
        for (int k = 0; k < LAYER_TENSORS; k++) {
            char name[32];
            snprintf(name, sizeof name, "h.%zu.%s", l, names[k]);
            const bool matrix = k == QKV_W || k == ATTPROJ_W || k == FC_W || k == FCPROJ_W;
            const bool residual = k == ATTPROJ_W || k == FCPROJ_W;
            table_add(&t, name, (int)l, k, rows[k], cols[k], matrix ? 2 : 1,
                      matrix ? (residual ? residual_std : std) : 0.0f,
                      k == LN_1_W || k == LN_2_W ? 1.0f : 0.0f);
        }
    }
    t.tail = t.count;
    if (c->embed > 0) {
        t.project_out = t.count;
        table_add(&t, "project_out.w", (int)L, -1, E, C, 2, std, 0);
    }
    if (!c->post_norm) {
        t.ln_f_w = t.count;
        table_add(&t, "ln_f.w", (int)L, -1, 1, C, 1, 0, 1);
        t.ln_f_b = t.count;
        table_add(&t, "ln_f.b", (int)L, -1, 1, C, 1, 0, 0);
    }
    t.lm_head = t.wte;
    if (!c->tied) {
        t.lm_head = t.count;
        table_add(&t, "lm_head", (int)L, -1, c->vocab, E, 2, std, 0)->rows_padded = c->vocab_padded;
    }
    for (int i = 0; i < t.count; i++) {
        GPT2Tensor *x = &t.tensors[i];
        x->size = x->rows_padded * x->cols;
        x->offset = t.elements;
        t.elements += round_up(x->size, ALIGN_ELEMENTS);
        t.parameters += x->rows * x->cols;
    }
    return t;
}

static void gpt2_table_free(GPT2Table *t) { free(t->tensors); memset(t, 0, sizeof *t); }

// Index of the tensor that holds element `at` of the arena, or the gap in which it is.
static int gpt2_tensor_at(const GPT2Table *t, size_t at) {
    int i = t->count - 1;
    while (t->tensors[i].offset > at) i--;
    return i;
}

// First values of elements [first, first + n) of tensor i in p; zero where it is padded. A value
// depends only on the seed, the tensor's index and the element's logical position: not on padding
// or threads.
static void gpt2_init_range(const GPT2Table *t, int i, size_t first, size_t n, float *p,
                            uint64_t seed) {
    const GPT2Tensor *x = &t->tensors[i];
    const size_t all = x->rows * x->cols, real = first < all ? min_size(n, all - first) : 0;
    memset(p + real, 0, (n - real) * sizeof *p);
    if (x->init_std != 0) rng_normals(p, real, seed, RNG_INIT, (uint32_t)i, first);
    #pragma omp parallel for if (real > 1 << 16)
    for (size_t j = 0; j < real; j++) p[j] = x->init_std != 0 ? p[j] * x->init_std : x->init_value;
}

// First values for every parameter in `arena` (t->elements floats); what lies between is zero.
static void gpt2_init(const GPT2Table *t, float *arena, uint64_t seed) {
    memset(arena, 0, t->elements * sizeof(float));
    for (int i = 0; i < t->count; i++)
        gpt2_init_range(t, i, 0, t->tensors[i].size, arena + t->tensors[i].offset, seed);
}

// ---------------------------------------------------------------------------------------------
// The activation table

// The activations of one layer, in the order in which they lie in a GPU's memory: name, width per
// token in elements, whether it is fp32 (else the trainer's type), the part of the layer that makes
// it (tide/gpu/blocks.cuh), and the strongest --recompute that keeps it. Rows that a stronger one
// keeps stand first. Memory, plan, trace and tests read this list; LayerActs of each trainer has a
// pointer of each name.
#define LAYER_ACTIVATIONS(ACT, c) \
    ACT(qkv, config_qkv(c), false, 0, RECOMPUTE_LIGHT) \
    ACT(atty, (c)->channels, false, 0, RECOMPUTE_LIGHT) \
    ACT(lse, (c)->heads, true, 0, RECOMPUTE_LIGHT) \
    ACT(mid, (c)->channels, false, 1, RECOMPUTE_LIGHT) \
    ACT(fc, (c)->ffn, false, 2, RECOMPUTE_LIGHT) \
    ACT(mean_1, 1, true, (c)->post_norm ? 1 : 0, RECOMPUTE_LIGHT) \
    ACT(rstd_1, 1, true, (c)->post_norm ? 1 : 0, RECOMPUTE_LIGHT) \
    ACT(mean_2, 1, true, (c)->post_norm ? 3 : 1, RECOMPUTE_LIGHT) \
    ACT(rstd_2, 1, true, (c)->post_norm ? 3 : 1, RECOMPUTE_LIGHT) \
    ACT(ln_1, (c)->channels, false, (c)->post_norm ? 1 : 0, RECOMPUTE_NONE) \
    ACT(ln_2, (c)->channels, false, (c)->post_norm ? 3 : 1, RECOMPUTE_NONE) \
    ACT(act, (c)->ffn, false, 2, RECOMPUTE_NONE)

typedef struct {
    const char *name;
    size_t width;     // elements per token
    bool f32;
    int part, kept;   // RECOMPUTE_*
} LayerAct;

#define ACT_COUNT(...) + 1
enum { LAYER_ACTS = 0 LAYER_ACTIVATIONS(ACT_COUNT, 0) };
#undef ACT_COUNT

typedef struct { LayerAct acts[LAYER_ACTS]; } ActTable;

static ActTable gpt2_acts(const GPT2Config *c) {
    #define ACT_ROW(name, width, f32, part, kept) {#name, width, f32, part, kept},
    const ActTable t = {{LAYER_ACTIVATIONS(ACT_ROW, c)}};
    #undef ACT_ROW
    return t;
}

// ---------------------------------------------------------------------------------------------
// Shard map

// A range of the arena that this process owns. Optimizer, norm, offloading and checkpoints walk a
// list of these; one process without ZeRO owns every tensor whole (with ZeRO: zero.h). What it owns
// lies side by side, in the arena's order: that is its shard space. A gap behind a tensor goes with
// the range before it.
typedef struct {
    int tensor;      // index into the table
    size_t offset;   // first element within the tensor
    size_t length;   // elements (padded rows included: their gradients are zero, so they stay zero)
    size_t at;       // of the first element in the shard space
    int decay;       // the tensor's
} Shard;

typedef struct {
    int count;
    Shard *shards;
    size_t elements;  // of the shard space, gaps included
} ShardMap;

// How many of a shard's elements are the model's, not padding; they come first.
static size_t shard_logical(const GPT2Table *t, const Shard *s) {
    const size_t n = t->tensors[s->tensor].rows * t->tensors[s->tensor].cols;
    return n <= s->offset ? 0 : min_size(s->length, n - s->offset);
}

static ShardMap gpt2_shards_all(const GPT2Table *t) {
    ShardMap map;
    map.count = t->count;
    map.elements = t->elements;
    map.shards = ALLOC(Shard, (size_t)t->count, "shard map");
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        const Shard whole = {i, 0, x->size, x->offset, x->decay};
        map.shards[i] = whole;
    }
    return map;
}

// ---------------------------------------------------------------------------------------------
// Arithmetic

// Floating-point operations of one forward and backward per token at sequence length T: 6 for
// every weight that enters a matrix product (the embedding lookups do none, the head does), and
// 6 T C per layer for the two attention products over T/2 keys on average.
static double gpt2_flops_per_token(const GPT2Config *c, size_t T) {
    const double C = (double)c->channels, F = (double)c->ffn, L = (double)c->layers;
    const double E = (double)config_embed(c), V = (double)c->vocab;
    const double weights = L * (4 * C * C + 2 * C * F) + V * E + (c->embed > 0 ? 2 * C * E : 0);
    return 6 * weights + 6 * L * C * (double)T;
}

#endif
