// model.h: what a model is (GPT-2, OPT, LLaMA, Mistral, Qwen, SmolLM3): its configuration, its
// presets, the table of its parameter tensors, their first values, and the table of its
// activations. Nothing here computes a forward or backward pass.
//
//     gpt2_preset()        fills a configuration by its name; call gpt2_finish() after any change
//     gpt2_table()         lists all parameter tensors; gpt2_tensor_at(): finds an element's tensor
//     LAYER_ACTIVATIONS    lists the activations of a layer that backward reads
//     gpt2_init_range()    makes the first values of a part of a tensor
//     gpt2_flops_per_token()   counts the operations of a forward and backward pass
#ifndef TIDE_MODEL_H
#define TIDE_MODEL_H
#include "rng.h"
#include "vmath.h"

// ---------------------------------------------------------------------------------------------
// Configuration

// Hugging Face's model types. They decide names of files and tensors, and config_family().
enum { FAMILY_GPT2, FAMILY_OPT, FAMILY_LLAMA, FAMILY_MISTRAL, FAMILY_QWEN2, FAMILY_QWEN3,
       FAMILY_SMOLLM3, FAMILIES };
// GELU: its tanh form ("gelu_new"). SILU: the MLP has a gate, and computes silu(gate) * up.
enum { ACTIVATION_GELU, ACTIVATION_RELU, ACTIVATION_SILU };

// Values of options. --recompute: which activations backward computes again. --offload: where the
// optimizer's state is stored, and who updates it (offload.h). --weights: where the weights are
// stored. --activations: where the inputs of layers are stored until backward.
enum { RECOMPUTE_AUTO, RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_BLOCK };
enum { OFFLOAD_AUTO, OFFLOAD_NONE, OFFLOAD_ZERO, OFFLOAD_TWINFLOW, OFFLOAD_INTERLEAVE,
       OFFLOAD_ZENFLOW };
enum { WEIGHTS_GPU, WEIGHTS_HOST, WEIGHTS_AUTO };
enum { ACTIVATIONS_GPU, ACTIVATIONS_HOST };
enum { TASK_LABELS = 16 };  // most words of --labels

#define ALIGN_ELEMENTS 128  // the offsets of tensors, and Vp, are multiples of this

enum { BIAS_QKV = 1, BIAS_ATTPROJ = 2, BIAS_MLP = 4 };

// GPT-2 has 0 in all fields that it does not need.
typedef struct {
    size_t layers;        // L
    size_t heads;         // NH, heads of queries
    size_t channels;      // C
    size_t ffn;           // F, the width inside the MLP; 0 becomes 4 C
    size_t context;       // the longest sequence, and the rows of wpe if there is one
    size_t window;        // a token sees at most this many, itself included; 0: all before it
    size_t vocab;         // V, tokens 0 .. V-1
    size_t vocab_padded;  // Vp, V rounded up to a multiple of 128; only gpt2_finish() sets it
    int family;           // FAMILY_*
    int activation;       // ACTIVATION_*
    int tied;             // 1: the head uses wte; 0: it has a tensor of its own, lm_head
    size_t embed;         // E, channels of the embeddings, if below C (OPT-350M); project_in and
                          // project_out then connect them to the layers; 0: they have C
    int post_norm;        // 1 if embed > 0 (gpt2_finish() sets it): a norm is after each sum, not
                          // before each branch, and there is none after the last layer
    size_t kv_heads;      // NKV, heads of keys and of values (grouped attention); 0: NH
    size_t head_size;     // HS; 0: C / NH
    int rms;              // 1: RMS norm, which has no mean and no bias
    double norm_eps;      // 0: 1e-5
    int unbiased;         // BIAS_*: the products without a bias
    int qk_norm;          // 1 (Qwen3): each head of q and k is normalised
    Rope rope;            // rotary positions; theta 0: a table of positions (wpe)
    size_t unturned;      // n: every n-th layer has no positions (SmolLM3); 0: all layers have
} GPT2Config;

// Widths in channels. embed: wte and the head. head: one head. att: query heads. qk, qkv: all heads
// of these kinds. mlp: the MLP's first product. wide: the widest result. But kv: a number of heads.
static size_t config_embed(const GPT2Config *c) { return c->embed > 0 ? c->embed : c->channels; }
static size_t config_kv(const GPT2Config *c) { return c->kv_heads > 0 ? c->kv_heads : c->heads; }
static size_t config_head(const GPT2Config *c) {
    return c->head_size > 0 ? c->head_size : c->channels / c->heads;
}
static size_t config_att(const GPT2Config *c) { return c->heads * config_head(c); }
static size_t config_qk(const GPT2Config *c) { return (c->heads + config_kv(c)) * config_head(c); }
static size_t config_qkv(const GPT2Config *c) {
    return config_qk(c) + config_kv(c) * config_head(c);
}
// Are q and k of layer l rotated by their positions?
static bool config_turns(const GPT2Config *c, size_t l) {
    return c->rope.theta > 0 && (c->unturned == 0 || (l + 1) % c->unturned != 0);
}
static bool config_gated(const GPT2Config *c) { return c->activation == ACTIVATION_SILU; }
static size_t config_mlp(const GPT2Config *c) { return config_gated(c) ? 2 * c->ffn : c->ffn; }
static size_t config_wide(const GPT2Config *c) { return max_size(config_mlp(c), config_qkv(c)); }

// Returns how many tokens the model sees at most in sampling. The limit of 4096 is for models with
// a long context: each token takes memory.
static size_t config_window(const GPT2Config *c) {
    return min_size(c->window > 0 ? min_size(c->window, c->context) : c->context, 4096);
}

// Does a row of T tokens have tokens that its last token does not see (Mistral's window)?
static bool config_slides(const GPT2Config *c, size_t T) { return c->window > 0 && c->window < T; }
// Returns sees (N / T, T): for each token, the place in its row of the first token that it sees.
// That token is in its document (begins; NULL: a row is one document) and in its window. If no row
// is longer than the window, returns begins; else fills and returns sees.
static const int32_t *window_sees(int32_t *sees, const int32_t *begins, size_t N, size_t T,
                                  const GPT2Config *c) {
    if (!config_slides(c, T)) return begins;
    for (size_t n = 0; n < N; n++) {
        const size_t t = n % T, first = t < c->window ? 0 : t - c->window + 1;
        sees[n] = (int32_t)max_size(first, begins == NULL ? 0 : (size_t)begins[n]);
    }
    return sees;
}

// Returns how many numbers a layer's cache has for a token: its key and its value, (2, NKV HS).
static size_t cache_row(const GPT2Config *c) { return 2 * config_kv(c) * config_head(c); }

static bool config_biased(const GPT2Config *c, int product) { return !(c->unbiased & product); }
static float config_eps(const GPT2Config *c) {
    return c->norm_eps > 0 ? (float)c->norm_eps : 1e-5f;
}

// Sets the derived fields. Refuses impossible configurations. Must be called after any change.
static bool gpt2_finish(GPT2Config *c, Error *err) {
    if (c->layers < 1 || c->layers > 1000) return error_set(err, "layers must be 1 to 1000");
    if (c->channels < 1 || c->channels > 1 << 16)
        return error_set(err, "channels must be 1 to %d", 1 << 16);
    if (c->heads < 1 || (c->head_size == 0 && c->channels % c->heads != 0))
        return error_set(err, "channels (%zu) must be a multiple of heads (%zu)", c->channels,
                         c->heads);
    if (c->heads > 1 << 16 || c->head_size > 1 << 16 || config_att(c) > 1 << 16)
        return error_set(err, "heads times head size must be at most %d", 1 << 16);
    if (c->heads % config_kv(c) != 0)
        return error_set(err, "heads (%zu) must be a multiple of key heads (%zu)", c->heads,
                         c->kv_heads);
    if (c->rope.theta != 0 && !(c->rope.theta >= 1 && c->rope.theta <= 1e12))
        return error_set(err, "rope_theta must be 1 to 1e12");
    if (c->rope.scaling != ROPE_NONE && !(c->rope.factor >= 1 && c->rope.factor <= 1e6))
        return error_set(err, "the factor of rotary positions must be 1 to 1e6");
    if (c->rope.scaling == ROPE_LLAMA3
        && !(c->rope.low > 0 && c->rope.high > c->rope.low && c->rope.original > 0))
        return error_set(err, "rotary positions of llama3 need high_freq_factor above "
                         "low_freq_factor");
    if (!(c->norm_eps >= 0 && c->norm_eps < 1))
        return error_set(err, "the eps of norms must be below 1");
    if (c->rope.theta > 0 && config_head(c) % 2 != 0)
        return error_set(err, "rotary positions need an even head size, not %zu", config_head(c));
    if (c->embed >= c->channels && c->embed > 0)
        return error_set(err, "embeddings (%zu channels) must be narrower than layers (%zu)",
                         c->embed, c->channels);
    c->post_norm = c->embed > 0;
    if (c->ffn == 0) c->ffn = 4 * c->channels;
    if (c->ffn > 1 << 20) return error_set(err, "the MLP's width must be at most %d", 1 << 20);
    if (c->context < 1 || c->context > 1 << 24)
        return error_set(err, "context must be 1 to %d", 1 << 24);
    if (c->vocab < 1 || c->vocab > 1 << 24) return error_set(err, "vocab must be 1 to %d", 1 << 24);
    c->vocab_padded = round_up(c->vocab, ALIGN_ELEMENTS);
    return true;
}

// Sets the fields that all models of c->family share.
static void config_family(GPT2Config *c) {
    const int family = c->family;
    const bool opt = family == FAMILY_OPT, llama = !opt && family != FAMILY_GPT2;
    c->activation = llama ? ACTIVATION_SILU : opt ? ACTIVATION_RELU : ACTIVATION_GELU;
    if (!llama) return;
    c->rms = 1;
    c->norm_eps = family == FAMILY_LLAMA || family == FAMILY_MISTRAL ? 1e-5 : 1e-6;
    c->unbiased = BIAS_ATTPROJ | BIAS_MLP;
    if (family != FAMILY_QWEN2) c->unbiased |= BIAS_QKV;
    c->qk_norm = family == FAMILY_QWEN3;
    c->unturned = family == FAMILY_SMOLLM3 ? 4 : 0;
}

// Presets. GPT-2: Radford et al. 2019, table 2. OPT: Zhang et al. 2022, table 1. 7b to 20b: Deep
// Optimizer States, table 2, with GPT-2's vocabulary. Others: config.json of the model; nano-llama
// is ours. HS 0: C / NH. factor: what Llama-3 divides low rotary frequencies by.
typedef struct { const char *name; GPT2Config config; } Preset;

#define SHAPE(L, NH, C, F, T, V) \
    .layers = L, .heads = NH, .channels = C, .ffn = F, .context = T, .vocab = V
#define GPT2(L, NH, C, T, V) {SHAPE(L, NH, C, 0, T, V), .family = FAMILY_GPT2, .tied = 1}
#define OPT(L, NH, C, E, V) \
    {SHAPE(L, NH, C, 0, 2048, V), .family = FAMILY_OPT, .tied = 1, .embed = E}
#define GATED(of, L, NH, NKV, HS, C, F, T, V, ties, ...) \
    {SHAPE(L, NH, C, F, T, V), .family = of, .tied = ties, .kv_heads = NKV, .head_size = HS, \
     .rope = {__VA_ARGS__}}
#define LLAMA(L, NH, NKV, C, F, T, V, ties, theta) \
    GATED(FAMILY_LLAMA, L, NH, NKV, 0, C, F, T, V, ties, theta)
#define LLAMA3(L, NH, C, F, ties, factor) \
    GATED(FAMILY_LLAMA, L, NH, 8, 0, C, F, 8192, 128256, ties, 5e5, ROPE_LLAMA3, factor, 1, 4, 8192)
#define QWEN2(L, NH, NKV, C, F, V, ties) \
    GATED(FAMILY_QWEN2, L, NH, NKV, 0, C, F, 8192, V, ties, 1e6)
#define QWEN3(L, NH, C, F, ties) \
    GATED(FAMILY_QWEN3, L, NH, 8, 128, C, F, 8192, 151936, ties, 1e6)
static const Preset gpt2_presets[] = {
    {"nano",           GPT2( 4,  4,   128,  256,   256)},
    {"gpt2",           GPT2(12, 12,   768, 1024, 50257)},
    {"gpt2-medium",    GPT2(24, 16,  1024, 1024, 50257)},
    {"gpt2-large",     GPT2(36, 20,  1280, 1024, 50257)},
    {"gpt2-xl",        GPT2(48, 25,  1600, 1024, 50257)},
    {"7b",             GPT2(32, 32,  4096, 2048, 50257)},
    {"8.3b",           GPT2(72, 24,  3072, 2048, 50257)},
    {"10b",            GPT2(50, 32,  4096, 2048, 50257)},
    {"13b",            GPT2(40, 40,  5120, 2048, 50257)},
    {"20b",            GPT2(48, 64,  6144, 2048, 50257)},
    {"opt-125m",       OPT( 12, 12,   768,   0, 50272)},
    {"opt-350m",       OPT( 24, 16,  1024, 512, 50272)},
    {"opt-1.3b",       OPT( 24, 32,  2048,   0, 50272)},
    {"opt-2.7b",       OPT( 32, 32,  2560,   0, 50272)},
    {"opt-6.7b",       OPT( 32, 32,  4096,   0, 50272)},
    {"opt-13b",        OPT( 40, 40,  5120,   0, 50272)},
    {"opt-30b",        OPT( 48, 56,  7168,   0, 50272)},
    {"opt-66b",        OPT( 64, 72,  9216,   0, 50272)},
    {"opt-175b",       OPT( 96, 96, 12288,   0, 50272)},
    {"nano-llama",     LLAMA( 4,  4,  2,  128,   352,  256,   256, 1, 1e4)},
    {"smollm2-135m",   LLAMA(30,  9,  3,  576,  1536, 8192, 49152, 1, 1e5)},
    {"smollm2-360m",   LLAMA(32, 15,  5,  960,  2560, 8192, 49152, 1, 1e5)},
    {"tinyllama-1.1b", LLAMA(22, 32,  4, 2048,  5632, 8192, 32000, 0, 1e4)},
    {"llama2-7b",      LLAMA(32, 32, 32, 4096, 11008, 4096, 32000, 0, 1e4)},
    {"llama2-13b",     LLAMA(40, 40, 40, 5120, 13824, 4096, 32000, 0, 1e4)},
    {"llama2-70b",     LLAMA(80, 64,  8, 8192, 28672, 4096, 32000, 0, 1e4)},
    {"llama3.2-1b",    LLAMA3(16, 32, 2048,  8192, 1, 32)},
    {"llama3.2-3b",    LLAMA3(28, 24, 3072,  8192, 1, 32)},
    {"llama3.1-8b",    LLAMA3(32, 32, 4096, 14336, 0, 8)},
    {"llama3.1-70b",   LLAMA3(80, 64, 8192, 28672, 0, 8)},
    {"120b",           LLAMA3(138, 64, 8192, 28672, 0, 8)},  // llama3.1-70b, deeper
    {"smollm3-3b",     GATED(FAMILY_SMOLLM3, 36, 16, 4, 0, 2048, 11008, 8192, 128256, 1, 5e6)},
    {"mistral-7b",     GATED(FAMILY_MISTRAL, 32, 32, 8, 0, 4096, 14336, 8192, 32000, 0, 1e4)},
    {"qwen2.5-0.5b",   QWEN2(24, 14, 2,  896,  4864, 151936, 1)},
    {"qwen2.5-1.5b",   QWEN2(28, 12, 2, 1536,  8960, 151936, 1)},
    {"qwen2.5-3b",     QWEN2(36, 16, 2, 2048, 11008, 151936, 1)},
    {"qwen2.5-7b",     QWEN2(28, 28, 4, 3584, 18944, 152064, 0)},
    {"qwen2.5-14b",    QWEN2(48, 40, 8, 5120, 13824, 152064, 0)},
    {"qwen2.5-32b",    QWEN2(64, 40, 8, 5120, 27648, 152064, 0)},
    {"qwen2.5-72b",    QWEN2(80, 64, 8, 8192, 29568, 152064, 0)},
    {"qwen3-0.6b",     QWEN3(28, 16, 1024,  3072, 1)},
    {"qwen3-1.7b",     QWEN3(28, 16, 2048,  6144, 1)},
    {"qwen3-4b",       QWEN3(36, 32, 2560,  9728, 1)},
    {"qwen3-8b",       QWEN3(36, 32, 4096, 12288, 0)},
    {"qwen3-14b",      QWEN3(40, 40, 5120, 17408, 0)},
    {"qwen3-32b",      QWEN3(64, 64, 5120, 25600, 0)},
};

// Fills *c by the name of a preset, or by "dN": N layers with the proportions of GPT-2, 64 channels
// for each layer and for each head. So d12 is GPT-2 124M. Returns false if the name is unknown.
static bool gpt2_preset(GPT2Config *c, const char *name) {
    const Preset *p = gpt2_presets, *end = p + sizeof gpt2_presets / sizeof *p;
    size_t depth = 0;
    if (name[0] == 'd' && name[1] >= '1' && name[1] <= '9') {
        char *rest;
        depth = strtoul(name + 1, &rest, 10);
        if (*rest != '\0' || depth > 1000) return false;
        name = "gpt2";
    }
    while (p < end && strcmp(p->name, name) != 0) p++;
    if (p == end) return false;
    *c = p->config;
    config_family(c);
    if (depth > 0) c->layers = c->heads = depth;
    if (depth > 0) c->channels = 64 * depth;
    return true;
}

// ---------------------------------------------------------------------------------------------
// The parameter table

// The tensors of a layer, in the order in which they are in memory. Columns: kind, field of
// LayerWeights, name, first values, rows, columns. A linear layer's weight is (OC, C). attn.qkv has
// the rows of all query heads, key heads, value heads. A gated mlp.fc has the rows of the gate,
// then those of `up`. 0 rows: there is no such tensor.
#define LAYER_PARAMETERS(PARAM, c) \
    PARAM(LN_1_W, ln_1_w, "ln_1.w", INIT_ONE, 1, (c)->channels) \
    PARAM(LN_1_B, ln_1_b, "ln_1.b", INIT_ZERO, !(c)->rms, (c)->channels) \
    PARAM(QKV_W, qkv_w, "attn.qkv.w", INIT_NORMAL, config_qkv(c), (c)->channels) \
    PARAM(QKV_B, qkv_b, "attn.qkv.b", INIT_ZERO, config_biased(c, BIAS_QKV), config_qkv(c)) \
    PARAM(Q_NORM, q_norm, "attn.q_norm.w", INIT_ONE, (size_t)(c)->qk_norm, config_head(c)) \
    PARAM(K_NORM, k_norm, "attn.k_norm.w", INIT_ONE, (size_t)(c)->qk_norm, config_head(c)) \
    PARAM(ATTPROJ_W, attproj_w, "attn.proj.w", INIT_RESIDUAL, (c)->channels, config_att(c)) \
    PARAM(ATTPROJ_B, attproj_b, "attn.proj.b", INIT_ZERO, config_biased(c, BIAS_ATTPROJ), \
          (c)->channels) \
    PARAM(LN_2_W, ln_2_w, "ln_2.w", INIT_ONE, 1, (c)->channels) \
    PARAM(LN_2_B, ln_2_b, "ln_2.b", INIT_ZERO, !(c)->rms, (c)->channels) \
    PARAM(FC_W, fc_w, "mlp.fc.w", INIT_NORMAL, config_mlp(c), (c)->channels) \
    PARAM(FC_B, fc_b, "mlp.fc.b", INIT_ZERO, config_biased(c, BIAS_MLP), config_mlp(c)) \
    PARAM(FCPROJ_W, fcproj_w, "mlp.proj.w", INIT_RESIDUAL, (c)->channels, (c)->ffn) \
    PARAM(FCPROJ_B, fcproj_b, "mlp.proj.b", INIT_ZERO, config_biased(c, BIAS_MLP), (c)->channels)

#define LAYER_KIND(kind, ...) kind,
enum { LAYER_PARAMETERS(LAYER_KIND, 0) LAYER_TENSORS, LAYER_PARTS = 4 };

// First values, as in GPT-2: normal(0, 0.02) for matrices, 0.02 / sqrt(2 L) for the two projections
// that add to the residual stream, because 2 L of them add up there; a constant for vectors.
enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL };

// The tensors of one layer, weights or gradients, by kind or by name. NULL: the family has no such
// tensor. mid_w, mid_b: of the norm after attention is added: ln_2, or in post-norm layers ln_1.
#define LAYER_FIELD(kind, field, ...) *field,
#define LAYER_WEIGHTS(type) union { \
        type *kind[LAYER_TENSORS]; \
        struct { type LAYER_PARAMETERS(LAYER_FIELD, 0) *mid_w, *mid_b; }; \
    }

typedef struct {
    char name[32];        // "wte", "h.3.attn.qkv.w", "ln_f.b": our own names
    int layer;            // -1 before the layers (wte, wpe), L after them (ln_f, lm_head)
    int kind;             // LN_1_W ..; outside the layers -1
    int rank;             // 2: a row-major (rows, cols) matrix, with weight decay; 1: a vector
    size_t rows, cols;    // logical shape; a linear layer's weight is (OC, C)
    size_t size;          // rows * cols elements; wte and lm_head have Vp rows in memory
    size_t offset;        // its first element in the arena, a multiple of ALIGN_ELEMENTS
    int init;             // first values: INIT_*
} GPT2Tensor;

typedef struct {
    int count;
    GPT2Tensor *tensors;  // in the order in which they are in memory
    int wte, wpe, ln_f_w, ln_f_b, lm_head;  // indices; lm_head == wte when the head is tied
    int project_in, project_out;  // if E < C: (C, E), and (E, C) in place of ln_f; else -1
    int first_layer;      // index of layer 0's first tensor
    int per_layer;        // number of tensors of a layer
    int within[LAYER_TENSORS];  // by kind: index within a layer; -1: there is none
    int tail;             // index of the first tensor after the layers
    size_t elements;      // length of the arena, with gaps, which stay zero
    size_t parameters;    // the model's size as usually counted: without padding
} GPT2Table;

// Adds a tensor to the table, of a layer if kind >= 0. Returns its index.
static int table_add(GPT2Table *t, const char *name, int layer, int kind, size_t rows, size_t cols,
                     int init) {
    GPT2Tensor *ten = &t->tensors[t->count++];
    *ten = (GPT2Tensor){.layer = layer, .kind = kind, .rank = init >= INIT_NORMAL ? 2 : 1,
                        .rows = rows, .cols = cols, .size = rows * cols, .init = init};
    if (kind < 0) snprintf(ten->name, sizeof ten->name, "%s", name);
    else snprintf(ten->name, sizeof ten->name, "h.%d.%s", layer, name);
    return t->count - 1;
}

// Makes the table: wte, wpe (unless positions are rotary), the layers, ln_f, lm_head (unless tied).
// With narrow embeddings project_in is after wpe, and project_out is in place of ln_f. A layer is
// one range. The caller frees t.tensors.
static GPT2Table gpt2_table(const GPT2Config *c) {
    #define LAYER_ROW(kind, field, name, init, rows, cols) {name, init, rows, cols},
    const struct { const char *name; int init; size_t rows, cols; } layer[LAYER_TENSORS] = {
        LAYER_PARAMETERS(LAYER_ROW, c)};
    const size_t C = c->channels, E = config_embed(c), most = c->layers * LAYER_TENSORS + 6;
    const int L = (int)c->layers;
    GPT2Table t = {.tensors = ALLOC(GPT2Tensor, most, "table"), .wpe = -1, .ln_f_w = -1,
                   .ln_f_b = -1, .project_in = -1, .project_out = -1};
    t.wte = t.lm_head = table_add(&t, "wte", -1, -1, c->vocab, E, INIT_NORMAL);
    if (c->rope.theta == 0) t.wpe = table_add(&t, "wpe", -1, -1, c->context, C, INIT_NORMAL);
    if (c->embed > 0) t.project_in = table_add(&t, "project_in.w", -1, -1, C, E, INIT_NORMAL);
    t.first_layer = t.count;
    for (int k = 0; k < LAYER_TENSORS; k++)
        t.within[k] = layer[k].rows * layer[k].cols > 0 ? t.per_layer++ : -1;
    for (int l = 0; l < L; l++)
        for (int k = 0; k < LAYER_TENSORS; k++)
            if (t.within[k] >= 0)
                table_add(&t, layer[k].name, l, k, layer[k].rows, layer[k].cols, layer[k].init);
    t.tail = t.count;
    if (c->embed > 0) t.project_out = table_add(&t, "project_out.w", L, -1, E, C, INIT_NORMAL);
    if (!c->post_norm) t.ln_f_w = table_add(&t, "ln_f.w", L, -1, 1, C, INIT_ONE);
    if (!c->post_norm && !c->rms) t.ln_f_b = table_add(&t, "ln_f.b", L, -1, 1, C, INIT_ZERO);
    if (!c->tied) t.lm_head = table_add(&t, "lm_head", L, -1, c->vocab, E, INIT_NORMAL);
    t.tensors[t.wte].size = t.tensors[t.lm_head].size = c->vocab_padded * E;
    for (GPT2Tensor *ten = t.tensors; ten < t.tensors + t.count; ten++) {
        ten->offset = t.elements;
        t.elements += round_up(ten->size, ALIGN_ELEMENTS);
        t.parameters += ten->rows * ten->cols;
    }
    return t;
}

// Returns the index of the tensor of this kind in layer l; -1: there is none.
static int layer_tensor(const GPT2Table *t, size_t l, int kind) {
    return t->within[kind] < 0 ? -1 : t->first_layer + (int)l * t->per_layer + t->within[kind];
}

// Returns the tensor with element `at` of the arena. A gap belongs to the tensor before it.
static int gpt2_tensor_at(const GPT2Table *t, size_t at) {
    int i = t->count - 1;
    while (t->tensors[i].offset > at) i--;
    return i;
}

// Fills p with the first values of elements [first, first + n) of tensor i. Padding is zero. A
// value depends only on the seed, the tensor's index, and the element's place without padding.
static void gpt2_init_range(const GPT2Table *t, int i, size_t first, size_t n, float *p,
                            uint64_t seed) {
    const GPT2Tensor *ten = &t->tensors[i];
    const size_t all = ten->rows * ten->cols, real = first < all ? min_size(n, all - first) : 0;
    const double L = t->tensors[t->count - 1].layer;
    const float std = ten->init == INIT_NORMAL ? 0.02f : (float)(0.02 / __builtin_sqrt(2 * L));
    memset(p + real, 0, (n - real) * sizeof *p);
    if (ten->rank == 2) rng_normals(p, real, seed, RNG_INIT, (uint32_t)i, first);
    #pragma omp parallel for if (real > 1 << 16)
    for (size_t j = 0; j < real; j++) p[j] = ten->rank == 2 ? p[j] * std : ten->init == INIT_ONE;
}

// ---------------------------------------------------------------------------------------------
// The activation table

// The activations of a layer, in the order in which they are in the memory of a GPU. Columns: name,
// elements per token (0: there is none), whether they are fp32 (else of the type of the trainer),
// the strongest --recompute that keeps them, and whether only a chunk of their rows may be in
// memory (mlp_rows()). Activations that are kept by a stronger --recompute, too, are first.
#define LAYER_ACTIVATIONS(ACT, c) \
    ACT(qkv, config_qkv(c), false, RECOMPUTE_LIGHT, false) \
    ACT(atty, config_att(c), false, RECOMPUTE_LIGHT, false) \
    ACT(lse, (c)->heads, true, RECOMPUTE_LIGHT, false) \
    ACT(qk, (c)->qk_norm ? config_qk(c) : 0, false, RECOMPUTE_LIGHT, false) \
    ACT(qk_rstd, (c)->qk_norm ? (c)->heads + config_kv(c) : 0, true, RECOMPUTE_LIGHT, false) \
    ACT(mid, (c)->channels, false, RECOMPUTE_LIGHT, false) \
    ACT(fc, config_mlp(c), false, RECOMPUTE_LIGHT, true) \
    ACT(mean_1, !(c)->rms, true, RECOMPUTE_LIGHT, false) \
    ACT(rstd_1, 1, true, RECOMPUTE_LIGHT, false) \
    ACT(mean_2, !(c)->rms, true, RECOMPUTE_LIGHT, false) \
    ACT(rstd_2, 1, true, RECOMPUTE_LIGHT, false) \
    ACT(ln_1, (c)->channels, false, RECOMPUTE_NONE, false) \
    ACT(ln_2, (c)->channels, false, RECOMPUTE_NONE, false) \
    ACT(act, (c)->ffn, false, RECOMPUTE_NONE, true)

#define ACT_COUNT(...) + 1
enum { LAYER_ACTS = 0 LAYER_ACTIVATIONS(ACT_COUNT, 0) };

// ---------------------------------------------------------------------------------------------
// Shard map

// A range of the arena that this process owns (zero.h). All ranges of a process, side by side in
// the order of the arena, are its shard space. A gap after a tensor belongs to the range before it.
typedef struct {
    int tensor;      // index into the table
    size_t offset;   // first element within the tensor
    size_t length;   // elements, with those of padding rows, which stay zero
    size_t at;       // its first element in the shard space
} Shard;

typedef struct {
    int count;
    Shard *shards;
    size_t elements;  // of all shards side by side, the gaps between them included
} ShardMap;

// ---------------------------------------------------------------------------------------------
// Arithmetic

// Returns how many tokens of a sequence of T a token sees on average: half of T, or less with a
// sliding window (0: there is none).
static double tokens_seen(size_t T, size_t window) {
    const double all = (double)T, most = window > 0 && window < T ? (double)window : all;
    return most - most * most / (2 * all);
}

// Returns the floating-point operations of forward and backward for one token of sequences of T: 6
// for each weight of a matrix product (so for the head's, but not for embeddings, which are looked
// up), and in each layer those of attention's two products: 12 NH HS for each token that is seen.
static double gpt2_flops_per_token(const GPT2Config *c, size_t T) {
    const double C = (double)c->channels, A = (double)config_att(c), L = (double)c->layers;
    const double E = (double)config_embed(c), V = (double)c->vocab;
    const double layer = C * (double)(config_qkv(c) + config_att(c) + config_mlp(c) + c->ffn);
    return 6 * (L * layer + V * E + (c->embed > 0 ? 2 * C * E : 0))
         + 12 * L * A * tokens_seen(T, c->window);
}

#endif
