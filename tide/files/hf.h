// hf.h: models on disk, with the names and layout of Hugging Face.
//
//   model_config_load   reads the config.json of a model
//   model_load          reads the weights of a model from *.safetensors
//   model_save          writes config.json and model.safetensors
//   dump_save           writes the reference dump, which other frameworks can repeat
//   RunState, state_in  describe the tensors to be saved or loaded, and where they are stored
//   state.h also uses tensors_add, tensors_put, part_read, own_tensor and directory_sync
//
// A whole file is never overwritten: a new one gets its name when it is complete and flushed.
#ifndef TIDE_HF_H
#define TIDE_HF_H
#include "../base/model.h"
#include "../base/ranks.h"
#include "safetensors.h"

// ---------------------------------------------------------------------------------------------
// 1. What is saved and loaded
//
// Tensors may be stored in several places (the GPU's memory, the host's) and types. So the trainer
// that owns them gives a function, `move`, which copies them. Each of several ranks writes and
// loads its own part of a file. All data passes through a buffer of PART_UNIT elements: a whole
// second copy would not fit beside a model that is larger than the GPU.

#ifndef PART_UNIT
#define PART_UNIT ((size_t)1 << 18)
#endif

// Elements [at, at + length) of the arena.
typedef struct { size_t at, length; } StateRange;

typedef struct {
    int parts;                 // parts (weights, m, v ..): the first ones of state_parts in state.h
    const StateRange *ranges;  // the ranges of each part that this process has, in the arena's
                               // order; other ranks have what is between them. Starts and ends are
                               // multiples of ALIGN_ELEMENTS. A range may be empty
    int count;                 // the number of ranges
    // out: copies elements [at, at + n) of a part to w, as fp32. Else copies w to these elements.
    // The copy is complete at the return. All n elements are of one tensor. But if out is false,
    // zeros may follow the tensor's elements in w, for its padding and for the gap after it.
    void (*move)(void *owner, int part, size_t at, size_t n, float *w, bool out);
    void *owner;
    bool moments_bf16;         // AdamW's m and v are stored as bf16
    float limit;               // a weight with |w| >= limit, or NaN, is refused
    bool master_bf16;          // weights are stored as bf16
} RunState;

// Implements RunState.move for arenas in host memory. owner: an array of arenas, one for each part.
static void state_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    float *there = ((float *const *)owner)[part] + at;
    memcpy(out ? w : there, out ? there : w, n * sizeof *w);
}

// Returns a RunState of `parts` parts (weights, m, v), each a whole arena in host memory.
static RunState state_in(float *const *arenas, int parts) {
    static const StateRange all = {0, SIZE_MAX};
    return (RunState){parts, &all, 1, state_move, (void *)arenas, false, INFINITY, false};
}

static bool part_is_bf16(const RunState *state, int part) {
    return part == 1 || part == 2 ? state->moments_bf16 : state->master_bf16;
}

// Copies n loaded values from w to a part. Rounds them before, in w, if the part is bf16.
static void part_set(const RunState *state, int part, size_t at, size_t n, float *w) {
    for (size_t i = 0; part_is_bf16(state, part) && i < n; i++)
        w[i] = bf16_to_f32(f32_to_bf16(w[i]));
    state->move(state->owner, part, at, n, w, false);
}

// Moves *at to the first element of [*at, end) that this rank has. Returns how many elements the
// rank has from there on without a gap, at most PART_UNIT; 0: it has no element of [*at, end).
static size_t state_next(const RunState *state, size_t *at, size_t end) {
    for (const StateRange *s = state->ranges; s < state->ranges + state->count; s++) {
        if (s->length == 0 || s->at + s->length <= *at || s->at >= end) continue;
        if (s->at > *at) *at = s->at;
        return min_size(min_size(s->at + s->length, end) - *at, PART_UNIT);
    }
    return 0;
}

// ---------------------------------------------------------------------------------------------
// 2. Names and layouts
//
// One table serves loading, saving and dumping. It maps the name of a tensor in Hugging Face's
// files to a range of elements in the arena. The files differ from the arena: GPT-2's linear layers
// are stored as (in, out); the other families store q, k and v as three tensors; OPT's positions
// begin with two rows that no position uses.

typedef struct {
    char name[96];      // the name in the files that we write, with its prefix
    size_t prefix;      // the length of the prefix
    int tensor, row;    // indices into GPT2Table and hf_rows; -1 and 0 before the first tensor
    int rank;
    size_t shape[2];    // as stored in the file
    size_t skip;        // leading elements in the file that are not in the arena
    size_t first, n;    // after `skip`, the file has [first, first + n) of the arena's tensor
    bool transpose;     // the file stores this matrix transposed
} HfTensor;

// For each family: its model_type, its architecture, and the scheme of its tensors' names (naming).
enum { NAMING_GPT2, NAMING_OPT, NAMING_LLAMA, NAMINGS };
static const struct { const char *type, *architecture; int naming; } hf_families[FAMILIES] = {
    {"gpt2", "GPT2LMHeadModel", NAMING_GPT2}, {"opt", "OPTForCausalLM", NAMING_OPT},
    {"llama", "LlamaForCausalLM", NAMING_LLAMA}, {"mistral", "MistralForCausalLM", NAMING_LLAMA},
    {"qwen2", "Qwen2ForCausalLM", NAMING_LLAMA}, {"qwen3", "Qwen3ForCausalLM", NAMING_LLAMA},
    {"smollm3", "SmolLM3ForCausalLM", NAMING_LLAMA}};

static int hf_naming(const GPT2Config *c) { return hf_families[c->family].naming; }

// The prefixes that a tensor may have in a file, by naming. The first one is written.
static const char *const hf_prefixes[NAMINGS][5] = {
    {"transformer.", "", NULL, NULL, NULL},
    {"model.decoder.", "decoder.", "model.", "", NULL},
    {"model.", "", NULL, NULL, NULL},
};

// A row for each tensor of a file. own: its name in the arena, without layer, .w and .b. names: for
// each naming, its name in files, without prefix, .weight and .bias; %d is the layer. part: which
// rows of the arena's tensor it has: all; q's, k's or v's; or the gate or up half of a gated MLP.
enum { HF_WHOLE, HF_Q, HF_K, HF_V, HF_GATE, HF_UP };
static const struct { const char *own, *names[NAMINGS]; int part; } hf_rows[] = {
    {"wte", {"wte", "embed_tokens", "embed_tokens"}},
    {"wpe", {"wpe", "embed_positions", NULL}},
    {"project_in", {NULL, "project_in", NULL}},
    {"ln_1", {"h.%d.ln_1", "layers.%d.self_attn_layer_norm", "layers.%d.input_layernorm"}},
    {"attn.qkv", {"h.%d.attn.c_attn", NULL, NULL}},
    {"attn.qkv", {NULL, "layers.%d.self_attn.q_proj", "layers.%d.self_attn.q_proj"}, HF_Q},
    {"attn.qkv", {NULL, "layers.%d.self_attn.k_proj", "layers.%d.self_attn.k_proj"}, HF_K},
    {"attn.qkv", {NULL, "layers.%d.self_attn.v_proj", "layers.%d.self_attn.v_proj"}, HF_V},
    {"attn.q_norm", {NULL, NULL, "layers.%d.self_attn.q_norm"}},
    {"attn.k_norm", {NULL, NULL, "layers.%d.self_attn.k_norm"}},
    {"attn.proj", {"h.%d.attn.c_proj", "layers.%d.self_attn.out_proj",
                   "layers.%d.self_attn.o_proj"}},
    {"ln_2", {"h.%d.ln_2", "layers.%d.final_layer_norm", "layers.%d.post_attention_layernorm"}},
    {"mlp.fc", {"h.%d.mlp.c_fc", "layers.%d.fc1", NULL}},
    {"mlp.fc", {NULL, NULL, "layers.%d.mlp.gate_proj"}, HF_GATE},
    {"mlp.fc", {NULL, NULL, "layers.%d.mlp.up_proj"}, HF_UP},
    {"mlp.proj", {"h.%d.mlp.c_proj", "layers.%d.fc2", "layers.%d.mlp.down_proj"}},
    {"project_out", {NULL, "project_out", NULL}},
    {"ln_f", {"ln_f", "final_layer_norm", "norm"}},
    {"lm_head", {"lm_head", "lm_head", "lm_head"}}};
enum { HF_ROWS = sizeof hf_rows / sizeof hf_rows[0] };

// Returns tensor i of the table with our own name and layout, which checkpoints use.
static HfTensor own_tensor(const GPT2Table *t, int i) {
    const GPT2Tensor *ten = &t->tensors[i];
    const size_t n = ten->rows * ten->cols;
    HfTensor hf = {.tensor = i, .rank = ten->rank, .n = n};
    hf.shape[0] = ten->rank == 2 ? ten->rows : n;
    hf.shape[1] = ten->cols;
    snprintf(hf.name, sizeof hf.name, "%s", ten->name);
    return hf;
}

// Moves *hf to the next tensor of a file, in the order of the table. Returns false after the last
// one. With c NULL, names and layout are our own (own_tensor()).
static bool hf_next(const GPT2Config *c, const GPT2Table *t, HfTensor *hf) {
    const int naming = c != NULL ? hf_naming(c) : 0;
    const char *own;  // the name in the arena, without its layer
    int i = hf->tensor, row = hf->row, layer;
    do {
        if (c == NULL || i < 0 || ++row == HF_ROWS) i++, row = 0;
        if (i == t->count) return false;
        layer = t->tensors[i].kind >= 0 ? t->tensors[i].layer : -1;
        own = t->tensors[i].name;
        if (layer >= 0) own = strchr(strchr(own, '.') + 1, '.') + 1;
    } while (c != NULL && (hf_rows[row].names[naming] == NULL
                           || strncmp(own, hf_rows[row].own, strlen(hf_rows[row].own)) != 0));
    *hf = own_tensor(t, i);
    if (c == NULL) return true;
    const size_t A = config_att(c), K = config_kv(c) * config_head(c), all = hf->shape[0];
    const size_t first[] = {0, 0, A, A + K, 0, c->ffn}, rows[] = {all, A, K, K, c->ffn, c->ffn};
    const size_t width = hf->n / all;
    const char *prefix = strcmp(own, "lm_head") == 0 ? "" : hf_prefixes[naming][0];
    hf->row = row;
    hf->first = first[hf_rows[row].part] * width;
    hf->shape[0] = rows[hf_rows[row].part];
    hf->n = hf->shape[0] * width;
    hf->prefix = strlen(prefix);
    strcpy(hf->name, prefix);
    snprintf(hf->name + hf->prefix, sizeof hf->name - hf->prefix, hf_rows[row].names[naming],
             layer);
    strcat(hf->name, strcmp(own + strlen(own) - 2, ".b") == 0 ? ".bias" : ".weight");
    if (naming == NAMING_OPT && i == t->wpe) {
        hf->skip = 2 * hf->shape[1];
        hf->shape[0] += 2;
    }
    if (naming == NAMING_GPT2 && layer >= 0 && hf->rank == 2) {
        hf->transpose = true;
        hf->shape[0] = hf->shape[1];
        hf->shape[1] = all;
    }
    return true;
}

// Reads elements [first, first + n) of tensor hf, counted as in the arena, from the file. If hf is
// transposed, each row in the file has some of them. Any other tensor is read as a single row.
enum { HF_LINES = 16, HF_CHUNK = 1 << 10 };  // a chunk is on a thread's stack

static void hf_read(const HfTensor *hf, const SafeTensor *ten, size_t first, size_t n, float *w) {
    const size_t R = hf->transpose ? hf->shape[0] : 1, C = hf->shape[1];
    const size_t begin = first / R, end = (first + n - 1) / R + 1;  // columns in the file
    #pragma omp parallel for collapse(2) if (n > 1 << 16)
    for (size_t row = 0; row < R; row++)
        for (size_t col = begin; col < end; col += HF_CHUNK) {
            const size_t cols = min_size(HF_CHUNK, end - col);
            float line[HF_CHUNK];
            safetensor_floats(ten, hf->skip + row * C + col, cols, line);
            for (size_t c = 0; c < cols; c++) {
                const size_t at = (col + c) * R + row - first;  // wraps: huge if before `first`
                if (at < n) w[at] = line[c];
            }
        }
}

// Loads this process's elements of tensor hf into a part. Sets the gap between this tensor and the
// next to zero. Returns false if a number is not finite, or reaches the limit.
static bool part_read(const RunState *state, int part, const GPT2Table *t, const HfTensor *hf,
                      const SafeTensor *ten) {
    const GPT2Tensor *ours = &t->tensors[hf->tensor];
    const size_t begin = ours->offset + hf->first, last = begin + hf->n;
    const bool padded = hf->first + hf->n == ours->rows * ours->cols;
    const size_t end = padded ? ours->offset + round_up(ours->size, ALIGN_ELEMENTS) : last;
    float *w = ALLOC(float, min_size(PART_UNIT, end - begin), "a copy of weights");
    int bad = 0;
    for (size_t at = begin, n; (n = state_next(state, &at, end)) > 0; at += n) {
        const size_t stored = at < last ? min_size(n, last - at) : 0;
        if (stored > 0) hf_read(hf, ten, at - begin, stored, w);
        memset(w + stored, 0, (n - stored) * sizeof *w);
        #pragma omp parallel for if (n > 1 << 16) reduction(| : bad)
        for (size_t i = 0; i < n; i++) bad |= !(fabsf(w[i]) < state->limit);
        part_set(state, part, at, n, w);
    }
    free(w);
    safetensor_release(ten);
    return !bad;
}

// Saves this process's elements of tensor hf as tensor i of the file, in the type declared there. A
// matrix to be transposed must be whole on this process; it is written HF_LINES rows at a time. The
// elements that are skipped stay zero: safewriter_open() makes a file of zeros.
static void part_write(const RunState *state, int part, const GPT2Table *t, const HfTensor *hf,
                       SafeWriter *file, int i) {
    const size_t begin = t->tensors[hf->tensor].offset + hf->first, R = hf->shape[0],
        C = hf->shape[1];
    const size_t unit = min_size(hf->transpose ? HF_LINES * C : PART_UNIT, hf->n);
    const bool bf16 = file->tensors[i].dtype == ST_BF16;
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(float);
    float *w = ALLOC(float, unit, "a copy of weights"), *ours = NULL;
    if (hf->transpose) {
        ours = ALLOC(float, hf->n, "a matrix to be transposed");
        state->move(state->owner, part, begin, hf->n, ours, true);
    }
    for (size_t at = begin, n; (n = state_next(state, &at, begin + hf->n)) > 0; at += n) {
        if (hf->transpose) {
            const float *from = ours + (at - begin) / C;  // the arena's column is the file's row
            n = min_size(unit, begin + hf->n - at);
            #pragma omp parallel for if (n > 1 << 16)
            for (size_t o = 0; o < C; o++)
                for (size_t r = 0; r < n / C; r++) w[r * C + o] = from[o * R + r];
        } else {
            state->move(state->owner, part, at, n, w, true);
        }
        if (bf16)
            for (size_t j = 0; j < n; j++) {  // in place: bf16 is narrower than fp32
                const uint16_t half = bf16_weight(w[j]);
                memcpy((char *)w + j * size, &half, size);
            }
        safewriter_put(file, i, (hf->skip + at - begin) * size, w, n * size);
    }
    free(ours);
    free(w);
}

// ---------------------------------------------------------------------------------------------
// 3. Reading a model

// The keys of a model's sizes in config.json, by naming. The config.json of a GPT-2 may have OPT's
// keys, except ffn_dim. If it has both, OPT's keys are read, as in transformers.
static const struct { size_t at; const char *names[NAMINGS]; } config_sizes[] = {
    {offsetof(GPT2Config, layers), {"n_layer", "num_hidden_layers", "num_hidden_layers"}},
    {offsetof(GPT2Config, heads), {"n_head", "num_attention_heads", "num_attention_heads"}},
    {offsetof(GPT2Config, channels), {"n_embd", "hidden_size", "hidden_size"}},
    {offsetof(GPT2Config, context),
     {"n_positions", "max_position_embeddings", "max_position_embeddings"}},
    {offsetof(GPT2Config, vocab), {"vocab_size", "vocab_size", "vocab_size"}},
    {offsetof(GPT2Config, ffn), {"n_inner", "ffn_dim", "intermediate_size"}},
};
enum { CONFIG_SIZES = sizeof config_sizes / sizeof config_sizes[0] };

// Members with a fixed value, by naming, which are written to config.json. (NAMINGS: members of all
// models, which are not written.) A config.json that is read may lack them, or have null. If
// `needed`, its value must be the value here: any other means arithmetic that train_gpt2.c lacks,
// and an error is better than slightly wrong results. Dropout is 0, as in training here. OPT's
// padding token is null, because PyTorch does not train the embedding of a padding token.
static const struct { int naming; bool needed; const char *key, *value; } config_fixed[] = {
    {NAMING_GPT2, true, "layer_norm_epsilon", "1e-05"},
    {NAMING_GPT2, true, "scale_attn_weights", "true"},
    {NAMING_GPT2, true, "scale_attn_by_inverse_layer_idx", "false"},
    {NAMING_GPT2, true, "add_cross_attention", "false"},
    {NAMING_GPT2, false, "embd_pdrop", "0.0"},
    {NAMING_GPT2, false, "attn_pdrop", "0.0"},
    {NAMING_GPT2, false, "resid_pdrop", "0.0"},
    {NAMING_OPT, true, "enable_bias", "true"},
    {NAMING_OPT, true, "layer_norm_elementwise_affine", "true"},
    {NAMING_OPT, true, "_remove_final_layer_norm", "false"},
    {NAMING_OPT, false, "dropout", "0.0"},
    {NAMING_OPT, false, "attention_dropout", "0.0"},
    {NAMING_OPT, false, "pad_token_id", "null"},
    {NAMING_LLAMA, false, "attention_dropout", "0.0"},
    {NAMINGS, true, "partial_rotary_factor", "1"},
    {NAMINGS, true, "per_layer_config", "null"},
    {NAMINGS, true, "quantization_config", "null"},
};
enum { CONFIG_FIXED = sizeof config_fixed / sizeof config_fixed[0] };

// Patterns (fnmatch()) of other keys: first, keys that are read; from "_*" on, keys without effect.
static const char *const config_known[] = {
    "model_type", "is_causal", "tie_word_embeddings", "activation_function", "do_layer_norm_before",
    "word_embed_proj_dim", "hidden_act", "head_dim", "num_key_value_heads", "rms_norm_eps",
    "attention_bias", "mlp_bias", "layer_types", "no_rope_layer*", "sliding_window",
    "use_sliding_window", "max_window_layers", "rope_theta", "rope_scaling", "rope_parameters",
    "original_max_position_embeddings", "_*", "architectures", "auto_map", "torch*", "dtype",
    "transformers*", "unsloth_*", "*token*", "prefix", "n_ctx", "n_special", "init*", "m*_length",
    "*drop*", "summary_*", "*task*", "*label*", "problem_type", "output_*", "return_dict*", "top_?",
    "use_cache", "use_bfloat16", "use_flash_attn*", "attn_implementation", "use_mrope", "typical_p",
    "pretraining_tp", "reorder_and_upcast_attn", "pruned_heads", "chunk_size_feed_forward",
    "gradient_checkpointing", "cross_attention_hidden_size", "*_decoder", "is_llama_config",
    "tf_legacy_loss", "rope_interleaved", "do_sample", "temperature", "early_stopping", "num_beam*",
    "num_return_sequences", "*_penalty", "*ngram_size", "bad_words_ids", "remove_invalid_values"};

// Warns, in one line, of the members of a configuration that none of the three tables has.
static void config_warn(const Json *root, const char *path) {
    char names[200] = "";
    for (const Json *m = root->child; m != NULL; m = m->next) {
        const size_t n = strlen(names);
        bool known = m->type == JSON_NULL;
        for (int i = 0; i < CONFIG_SIZES * NAMINGS; i++)
            known |= strcmp(config_sizes[i / NAMINGS].names[i % NAMINGS], m->key) == 0;
        for (int i = 0; i < CONFIG_FIXED; i++) known |= strcmp(config_fixed[i].key, m->key) == 0;
        for (size_t i = 0; i < sizeof config_known / sizeof config_known[0]; i++)
            known |= fnmatch(config_known[i], m->key, 0) == 0;
        if (!known) snprintf(names + n, sizeof names - n, n > 0 ? ", %s" : "%s", m->key);
    }
    if (names[0] != '\0' && ranks.rank == 0)
        fprintf(stderr, "tide: warning: %s: unknown here, and not read: %s\n", path, names);
}

// Refuses a configuration if a member that config_fixed calls needed has another value.
static void config_check_fixed(const Json *object, const char *path, int naming) {
    for (int i = 0; i < CONFIG_FIXED; i++) {
        const char *text = config_fixed[i].value;
        const Json *value = json_get(object, config_fixed[i].key);
        const bool any = config_fixed[i].naming == NAMINGS;
        if (!(any || config_fixed[i].naming == naming) || !config_fixed[i].needed || value == NULL)
            continue;
        if (value->type != (text[0] == 't' ? JSON_TRUE : text[0] == 'f' ? JSON_FALSE : JSON_NUMBER)
            || fabs(value->number - strtod(text, NULL)) > 1e-3 * strtod(text, NULL))
            die("%s: models whose %s is not %s are not supported", path, config_fixed[i].key, text);
    }
}

// The next four functions return a member of a configuration, or `missing` if there is none.
static double config_number(const Json *object, const char *key, double missing, const char *path) {
    const Json *value = json_get(object, key);
    if (value != NULL && (value->type != JSON_NUMBER || !(value->number > 0)))
        die("%s: %s must be a number above 0", path, key);
    return value != NULL ? value->number : missing;
}

static bool config_flag(const Json *object, const char *key, bool missing, const char *path) {
    const int flag = json_flag(object, key, missing);
    if (flag < 0) die("%s: %s must be true or false", path, key);
    return flag;
}

static size_t config_size(const Json *object, const char *key, size_t missing, const char *path) {
    const Json *value = json_get(object, key);
    if (value != NULL && (!json_size(value, &missing) || missing == 0))
        die("%s: %s must be a whole number of at least 1", path, key);
    return missing;
}

static const char *config_text(const Json *object, const char *key, const char *missing) {
    const Json *value = json_get(object, key);
    return value == NULL ? missing : value->type == JSON_STRING ? value->string : "no name";
}

// Reads the rotary positions. transformers 4 writes the members rope_theta and rope_scaling;
// transformers 5 writes rope_parameters, but reads a rope_scaling that is not empty instead of it.
static void config_read_rope(const Json *root, const char *path, GPT2Config *c) {
    const Json *scaling = json_get(root, "rope_scaling"), *rope = scaling;
    Rope *r = &c->rope;
    if (json_empty(scaling)) rope = json_get(root, "rope_parameters");
    if (rope != NULL && rope->type != JSON_OBJECT)
        die("%s: %s must be an object", path, rope == scaling ? "rope_scaling" : "rope_parameters");
    const char *type = config_text(rope, "rope_type", config_text(rope, "type", "default"));
    config_check_fixed(rope, path, NAMINGS);
    r->theta = config_number(root, "rope_theta", c->family == FAMILY_SMOLLM3 ? 2e6 : 1e4, path);
    r->theta = config_number(rope, "rope_theta", r->theta, path);
    if (strcmp(type, "default") == 0) return;
    r->factor = config_number(rope, "factor", 0, path);
    r->scaling = strcmp(type, "linear") == 0 ? ROPE_LINEAR : ROPE_LLAMA3;
    if (r->scaling == ROPE_LLAMA3 && strcmp(type, "llama3") != 0)
        die("%s: rope_type %.100s is not supported; default, linear and llama3 are", path, type);
    if (r->scaling == ROPE_LINEAR) return;
    r->low = config_number(rope, "low_freq_factor", 0, path);
    r->high = config_number(rope, "high_freq_factor", 0, path);
    r->original = config_size(rope, "original_max_position_embeddings", c->context, path);
    r->original = config_size(root, "original_max_position_embeddings", r->original, path);
}

// Returns N, if every Nth layer of the model has no rotary positions. config.json has N, or a list
// with a number for each layer (1: it has rotary positions; 0: it has none), or both.
static size_t config_read_unturned(const Json *root, const char *path, const GPT2Config *c) {
    const Json *list = json_get(root, "no_rope_layers"), *value = list ? list->child : NULL;
    size_t every = config_size(root, "no_rope_layer_interval", c->unturned, path), l = 0, turned;
    for (; value != NULL && json_size(value, &turned) && turned == ((l + 1) % every != 0); l++)
        value = value->next;
    if (list != NULL && (list->type != JSON_ARRAY || value != NULL || l != c->layers))
        die("%s: no_rope_layers must have a 0 every %zu layers, and else 1", path, every);
    return every;
}

// Reads the members that only the LLaMA family has. A window of some layers, and any of SmolLM3,
// cuts the context to its length, because a window changes nothing in sequences up to that.
static void config_read_llama(const Json *root, const char *path, GPT2Config *c) {
    const bool qwen = c->family == FAMILY_QWEN2 || c->family == FAMILY_QWEN3;
    const bool smollm3 = c->family == FAMILY_SMOLLM3, both = c->family == FAMILY_LLAMA || smollm3;
    const Json *window = json_member(root, "sliding_window");  // null: no window
    const Json *types = qwen || smollm3 ? json_get(root, "layer_types") : NULL;
    const bool slides = c->family == FAMILY_MISTRAL || (smollm3 && types != NULL)
        || ((qwen || smollm3) && config_flag(root, "use_sliding_window", false, path));
    c->kv_heads = config_size(root, "num_key_value_heads", c->heads, path);
    c->head_size = config_size(root, "head_dim", c->family == FAMILY_QWEN3 ? 128 : 0, path);
    if (c->head_size * c->heads == c->channels) c->head_size = 0;
    c->norm_eps = config_number(root, "rms_norm_eps", 1e-6, path);
    if ((both || c->family == FAMILY_QWEN3) && config_flag(root, "attention_bias", false, path))
        c->unbiased &= ~(BIAS_QKV | BIAS_ATTPROJ);
    if (both && config_flag(root, "mlp_bias", false, path)) c->unbiased &= ~BIAS_MLP;
    if (c->unturned > 0) c->unturned = config_read_unturned(root, path, c);
    config_read_rope(root, path, c);  // reads c->context, which the window changes below
    if (!slides || (window == NULL ? smollm3 : window->type == JSON_NULL)) return;
    size_t whole = types != NULL ? 0 : qwen ? 28 : 0, slide = 0;  // whole: layers without a window
    if (types == NULL && smollm3) whole = c->layers - c->layers / c->unturned;
    const Json *layers = types == NULL ? json_get(root, "max_window_layers") : NULL;
    if (qwen && layers != NULL && !json_size(layers, &whole))
        die("%s: max_window_layers must be a whole number", path);
    for (const Json *type = types != NULL ? types->child : NULL; type != NULL; type = type->next) {
        whole += json_is(type, "full_attention");
        slide += json_is(type, "sliding_attention");
    }
    if (types != NULL && (types->count != c->layers || whole + slide != c->layers))
        die("%s: layer_types must be full_attention or sliding_attention, for each layer", path);
    if (whole >= c->layers) return;
    const size_t most = config_size(root, "sliding_window", 4096, path);
    if (whole == 0 && !smollm3) c->window = most;
    else c->context = min_size(c->context, most);
}

// Reads a model's config.json into *c. Ends the program if the model is not supported.
static void config_read(const Json *root, const char *path, GPT2Config *c) {
    // The names from "gelu_new" on mean x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    static const char *const activations[8] = {"silu", "swish", "relu", "gelu_new", "gelu_fast",
        "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"};
    Error err;
    const char *type = config_text(root, "model_type", "not there");
    int family = 0;
    while (family < FAMILIES && strcmp(type, hf_families[family].type) != 0) family++;
    if (family == FAMILIES)
        die("%s: model_type is %.100s; only gpt2, opt, llama, mistral, qwen2, qwen3 and smollm3 "
            "are known", path, type);
    *c = (GPT2Config){.family = family};
    config_family(c);
    const int naming = hf_naming(c);
    for (int i = 0; i < CONFIG_SIZES; i++) {
        const char *key = config_sizes[i].names[naming], *also = config_sizes[i].names[NAMING_OPT];
        size_t *size = (size_t *)(void *)((char *)c + config_sizes[i].at);
        if (size != &c->ffn && naming == NAMING_GPT2 && json_get(root, also) != NULL) key = also;
        const Json *value = json_get(root, key);
        if (size == &c->ffn && value == NULL && naming != NAMING_LLAMA) continue;  // means 4 C
        if (!json_size(value, size) || *size == 0)
            die("%s: %s must be there, and a whole number of at least 1", path, key);
    }
    config_check_fixed(root, path, naming);
    if (naming == NAMING_OPT) {
        const size_t embed = config_size(root, "word_embed_proj_dim", c->channels, path);
        const bool before = config_flag(root, "do_layer_norm_before", true, path);
        if (!before) c->embed = embed;
        if (before ? embed != c->channels : embed >= c->channels)
            die("%s: word_embed_proj_dim must be hidden_size (%zu), or smaller where "
                "do_layer_norm_before is false", path, c->channels);
    }
    const Json *causal = json_member(root, "is_causal");  // transformers reads null as false
    if (causal != NULL && causal->type != JSON_TRUE)
        die("%s: models whose is_causal is not true are not supported", path);
    const bool gated = config_gated(c), ties = !gated || family == FAMILY_SMOLLM3;
    c->tied = config_flag(root, "tie_word_embeddings", ties, path);
    const char *key = gated ? "hidden_act" : "activation_function";
    const char *act = config_text(root, key, NULL);
    int k = 0;
    while (act != NULL && k < 8 && strcmp(act, activations[k]) != 0) k++;
    if (act != NULL && (k == 8 || (k < 2) != gated))
        die("%s: %s is %.100s; only %s supported", path, key, act, gated ? "silu is"
            : "relu and the tanh form of GELU (gelu_new) are");
    if (act != NULL && !gated) c->activation = k == 2 ? ACTIVATION_RELU : ACTIVATION_GELU;
    if (naming == NAMING_LLAMA) config_read_llama(root, path, c);
    if (!gpt2_finish(c, &err)) die("%s: %s", path, err.text);
    config_warn(root, path);
}

// Opens and returns the *count files of a model. `model` is a file or a directory. In a directory,
// opens model.safetensors, or else all files in the weight_map of model.safetensors.index.json.
static SafeTensors *model_open(const char *model, int *count) {
    char dir[PATH_MAX], path[PATH_MAX];
    Error err;
    Json *index = NULL;
    path_directory(model, dir);
    path_join(path, dir, "model.safetensors");
    if (!path_is_directory(model)) snprintf(path, sizeof path, "%s", model);
    if (!path_exists(path)) {
        path_join(path, dir, "model.safetensors.index.json");
        index = json_read(path, &err);
        if (index == NULL) {
            path_join(path, dir, "pytorch_model.bin");
            die("%s; and there is no model.safetensors%s", err.text, !path_exists(path) ? "" :
                " (build/unpickle makes it from pytorch_model.bin)");
        }
    }
    const Json *map = json_get(index, "weight_map");
    SafeTensors *files = ALLOC(SafeTensors, map != NULL ? map->count : 1, "list of files");
    *count = index == NULL;
    if (index == NULL && !safetensors_open(&files[0], path, &err)) die("%s", err.text);
    for (const Json *e = map != NULL ? map->child : NULL; e != NULL; e = e->next) {
        const Json *same = map->child;
        if (e->type != JSON_STRING || strchr(e->string, '/') != NULL)
            die("%s: it names an impossible file", path);
        while (same != e && strcmp(same->string, e->string) != 0) same = same->next;
        if (same != e) continue;  // an earlier tensor opened this file
        path_join(path, dir, e->string);
        if (!safetensors_open(&files[(*count)++], path, &err)) die("%s", err.text);
    }
    if (*count == 0) die("%s: there is no weight_map", path);
    free(index);
    return files;
}

static void model_close(SafeTensors *files, int count) {
    for (int i = 0; i < count; i++) safetensors_close(&files[i]);
    free(files);
}

// Finds tensor hf in the files, and checks its shape. If hf is there twice, model_load() refuses.
static SafeTensor *model_find(const SafeTensors *files, int count, const char *model,
                              const GPT2Config *c, const HfTensor *hf) {
    SafeTensor *found = NULL;
    char name[128], there[200] = "missing", here[200];
    for (const char *const *prefix = hf_prefixes[hf_naming(c)]; *prefix != NULL; prefix++) {
        snprintf(name, sizeof name, "%s%s", hf->prefix > 0 ? *prefix : "", hf->name + hf->prefix);
        for (int i = 0; i < count && found == NULL; i++) found = safetensors_find(&files[i], name);
    }
    // Tied embeddings may be stored under the name of the head alone.
    for (int i = 0; i < count && found == NULL && c->tied && hf->tensor == 0; i++)
        found = safetensors_find(&files[i], "lm_head.weight");
    shape_text(here, hf->rank, hf->shape);
    if (found != NULL) shape_text(there, found->rank, found->shape);
    if (strcmp(here, there) != 0)
        die("%s: tensor %s is %s, the model needs %s", model,
            found != NULL ? found->name : hf->name, there, here);
    if (found->dtype > ST_F64)
        die("%s: tensor %s is not stored as F32, F16, BF16 or F64", model, hf->name);
    return found;
}

// Reads the configuration of the model at `path` from config.json in the model's directory.
static void model_config_load(const char *path, GPT2Config *c) {
    char dir[PATH_MAX], name[PATH_MAX], config[PATH_MAX];
    int count = 0;
    Error err;
    path_directory(path, dir);
    path_join(name, dir, "state.txt");
    if (path_exists(name))
        die("%s is a checkpoint: --model takes the OUT that it is in, --resume goes on", path);
    if (path_exists(path) && !path_is_directory(path))  // check that it is a safetensors file
        model_close(model_open(path, &count), count);
    path_join(name, dir, "adapter_config.json");
    path_join(config, dir, "config.json");
    if (path_exists(name) && !path_exists(config))
        die("%s: adapters (LoRA) are not supported: merge it into its base model first, with "
            "merge_and_unload() of peft", name);
    Json *root = json_read(config, &err);
    if (root == NULL) die("%s", err.text);
    config_read(root, config, c);
    free(root);
}

// Loads the weights of the model at `path` into part 0. They may be fp32, fp16, bf16 or fp64, with
// or without the prefixes of Hugging Face's classes, in one file or several. Refuses, by name, a
// tensor that is missing, stored twice, of another shape, unused, or not finite. Also refuses a
// head that differs from the embeddings if config.json says that both are tied: merging an adapter
// may leave such files.
static void model_load(const char *path, const GPT2Config *c, const GPT2Table *t,
                       const RunState *state) {
    // not read: causal masks, the value of a masked score, and the frequencies of the rotation
    static const char *const made_anew[] = {"*.attn.bias", "*.attn.masked_bias",
                                            "*.rotary_emb.inv_freq"};
    HfTensor hf = {.tensor = -1};
    const SafeTensor *wte = NULL;
    int count;
    SafeTensors *files = model_open(path, &count);
    while (hf_next(c, t, &hf)) {
        SafeTensor *ten = model_find(files, count, path, c, &hf);
        ten->seen = true;
        if (wte == NULL) wte = ten;
        if (!part_read(state, 0, t, &hf, ten))
            die("%s: tensor %s has a NaN, an infinity or a number too large for this precision: "
                "the file is damaged, or of a wider one", path, hf.name);
    }
    for (int f = 0; f < count; f++)
        for (int i = 0; i < files[f].count; i++) {
            const SafeTensor *ten = &files[f].tensors[i];
            bool used = ten->seen;
            for (int k = 0; k < 3; k++) used |= fnmatch(made_anew[k], ten->name, 0) == 0;
            const bool head = c->tied && strcmp(ten->name, "lm_head.weight") == 0;
            if (!used && head
                && (ten->bytes != wte->bytes || memcmp(ten->data, wte->data, wte->bytes) != 0))
                die("%s: tensor lm_head.weight is not %s: \"tie_word_embeddings\": false in "
                    "config.json unties them", path, wte->name);
            if (!used && !head)
                die("%s: tensor %.100s is unknown to a %s model with %s head, or there twice", path,
                    ten->name, hf_families[c->family].type, c->tied ? "a tied" : "an untied");
        }
    model_close(files, count);
}

// ---------------------------------------------------------------------------------------------
// 4. Writing a model

// Flushes a directory, so that a rename in it survives a power cut.
static bool directory_sync(const char *dir, Error *err) {
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some file systems cannot flush a directory: they return EINVAL, and nothing more can be done.
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) error_set(err, "cannot flush %s: %s", dir, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

// tensors_add() declares all tensors of the model, with `prefix` before each name. tensors_put()
// writes a part of the state as tensors i and on. With c NULL, names and layout are our own.
static void tensors_add(SafeWriter *file, const GPT2Config *c, const GPT2Table *t,
                        const char *prefix, int dtype) {
    HfTensor hf = {.tensor = -1};
    char name[256];
    while (hf_next(c, t, &hf)) {
        snprintf(name, sizeof name, "%s%s", prefix, hf.name);
        safewriter_add(file, name, dtype, hf.rank, hf.shape);
    }
}

static void tensors_put(SafeWriter *file, const GPT2Config *c, const GPT2Table *t,
                        const RunState *state, int part, int i) {
    HfTensor hf = {.tensor = -1};
    while (!file->failed && hf_next(c, t, &hf)) part_write(state, part, t, &hf, file, i++);
}

// A number as text, with 15 digits. A whole number ends with ".0", so that readers take a float.
static NumberText number_text(double value) {
    NumberText t;
    const bool whole = value == floor(value) && value < 1e9;
    snprintf(t.text, sizeof t.text, whole ? "%.1f" : "%.15g", value);
    return t;
}

// Writes the members that only the LLaMA family has, with keys for transformers 4 and 5.
static void config_write_llama(FILE *f, const GPT2Config *c) {
    const Rope *r = &c->rope;
    fprintf(f, "  \"num_key_value_heads\": %zu,\n  \"head_dim\": %zu,\n"
            "  \"hidden_act\": \"silu\",\n  \"attention_bias\": %s,\n  \"mlp_bias\": %s,\n"
            "  \"rms_norm_eps\": %s,\n  \"rope_theta\": %s,\n", config_kv(c), config_head(c),
            config_biased(c, BIAS_ATTPROJ) ? "true" : "false",
            config_biased(c, BIAS_MLP) ? "true" : "false", number_text(c->norm_eps).text,
            number_text(r->theta).text);
    if (c->window > 0)
        fprintf(f, "  \"use_sliding_window\": true,\n  \"max_window_layers\": 0,\n"
                "  \"sliding_window\": %zu,\n", c->window);
    else if (c->family == FAMILY_MISTRAL) fprintf(f, "  \"sliding_window\": null,\n");
    if (c->unturned > 0)  // writes null: transformers takes 128004 if pad_token_id is missing
        fprintf(f, "  \"no_rope_layer_interval\": %zu,\n  \"pad_token_id\": null,\n", c->unturned);
    if (r->scaling == ROPE_NONE) return;
    fprintf(f, "  \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": %s",
            r->scaling == ROPE_LINEAR ? "linear" : "llama3", number_text(r->factor).text);
    if (r->scaling == ROPE_LLAMA3)
        fprintf(f, ", \"low_freq_factor\": %s, \"high_freq_factor\": %s, "
                "\"original_max_position_embeddings\": %zu", number_text(r->low).text,
                number_text(r->high).text, r->original);
    fprintf(f, "},\n");
}

typedef struct { int bos, eos; } TextEnds;  // tokens that begin and end a text; -1: none

// Writes the members of config.json for a model that keeps no older config.json. In GPT-2 and OPT,
// the token that ends a text also begins a text: bos_token_id is ends.eos.
static void config_write_new(FILE *f, const GPT2Config *c, TextEnds ends) {
    const int naming = hf_naming(c);
    const int tokens[2] = {naming == NAMING_LLAMA ? ends.bos : ends.eos, ends.eos};
    for (int i = 0; i < CONFIG_SIZES; i++)
        fprintf(f, "  \"%s\": %zu,\n", config_sizes[i].names[naming],
                *(const size_t *)(const void *)((const char *)c + config_sizes[i].at));
    for (int i = 0; i < CONFIG_FIXED; i++)
        if (config_fixed[i].naming == naming)
            fprintf(f, "  \"%s\": %s,\n", config_fixed[i].key, config_fixed[i].value);
    if (naming == NAMING_OPT)
        fprintf(f, "  \"do_layer_norm_before\": %s,\n  \"word_embed_proj_dim\": %zu,\n",
                c->post_norm ? "false" : "true", config_embed(c));
    if (naming == NAMING_GPT2) fprintf(f, "  \"n_ctx\": %zu,\n", c->context);
    if (naming == NAMING_LLAMA) config_write_llama(f, c);
    else fprintf(f, "  \"activation_function\": \"%s\",\n",
                 c->activation == ACTIVATION_RELU ? "relu" : "gelu_new");
    for (int k = 0; k < 2; k++) {
        fprintf(f, k == 0 ? "  \"bos_token_id\": " : "  \"eos_token_id\": ");
        fprintf(f, tokens[k] >= 0 ? "%d,\n" : "null,\n", tokens[k]);
    }
}

// Writes config.json. origin: the model with which training began; NULL: none. The members of
// origin's config.json are kept, except those that training changes. If there is no such file, or
// if it is of another family, all members are new. (noinline saves stack: see state_save().)
static __attribute__((noinline)) void config_write(FILE *f, const GPT2Config *c, bool bf16,
                                                   TextEnds ends, const char *origin) {
    static const char *const ours[] = {"architectures", "model_type", "tie_word_embeddings",
                                       "torch_dtype", "dtype", NULL};
    const char *type = hf_families[c->family].type;
    char dir[PATH_MAX], name[PATH_MAX] = "";
    Error err;
    if (origin != NULL) path_directory(origin, dir), path_join(name, dir, "config.json");
    Json *from = path_exists(name) ? json_read(name, &err) : NULL;
    fprintf(f, "{\n");
    if (json_is(json_get(from, "model_type"), type)) json_write_others(f, from, ours);
    else config_write_new(f, c, ends);
    fprintf(f, "  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n"
            "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\"\n}\n",
            hf_families[c->family].architecture, type, c->tied ? "true" : "false",
            bf16 ? "bfloat16" : "float32");
    free(from);
}

// Writes dir/model.safetensors, as fp32 or as bf16 rounded to nearest, and dir/config.json. Hugging
// Face's AutoModelForCausalLM.from_pretrained(dir) loads them. Makes dir if needed. On failure,
// older files are unchanged.
static bool model_save(const char *dir, const GPT2Config *c, const GPT2Table *t,
                       const RunState *state, bool bf16, TextEnds ends, const char *origin,
                       Error *err) {
    char weights[PATH_MAX], config[PATH_MAX];
    SafeWriter out = {0};
    if (!make_directories(dir)) return error_set(err, "cannot make %s: %s", dir, strerror(errno));
    path_join(weights, dir, "model.safetensors");
    path_join(config, dir, "config.json");
    FILE *f = replace_open(config, err);
    if (f == NULL) return false;
    config_write(f, c, bf16, ends, origin);
    // The new config.json is flushed before the weights are replaced: new weights may need it.
    if (fflush(f) != 0 || ferror(f)) return replace_close(f, config, err);
    tensors_add(&out, c, t, "", bf16 ? ST_BF16 : ST_F32);
    safewriter_open(&out, weights);
    tensors_put(&out, c, t, state, 0, 0);
    const bool saved = safewriter_close(&out, err);
    return replace_close(f, config, saved ? err : NULL) && directory_sync(dir, err);
}

// Writes a reference dump: inputs and results of a forward and backward pass, which any framework
// can repeat. It has tokens and targets (B, T); the loss; the first V columns of logits (B*T, Vp);
// each tensor's gradient, as grad.NAME, with Hugging Face's names and layout. If rows have several
// documents, it also has begins (B, T), where each token's document begins; else begins is NULL.
static bool dump_save(const char *path, const GPT2Config *c, const GPT2Table *t, size_t B,
                      size_t T, const int32_t *tokens, const int32_t *targets,
                      const int32_t *begins, double loss, const float *logits, const float *grads,
                      Error *err) {
    const size_t shape[3] = {B, T, c->vocab}, one = 1;
    const float loss32 = (float)loss;
    float *const arenas[] = {(float *)grads};  // only read
    const RunState state = state_in(arenas, 1);
    SafeWriter out = {0};
    safewriter_add(&out, "tokens", ST_I32, 2, shape);
    safewriter_add(&out, "targets", ST_I32, 2, shape);
    safewriter_add(&out, "loss", ST_F32, 1, &one);
    safewriter_add(&out, "logits", ST_F32, 3, shape);
    tensors_add(&out, c, t, "grad.", ST_F32);
    if (begins != NULL) safewriter_add(&out, "begins", ST_I32, 2, shape);
    safewriter_open(&out, path);
    safewriter_put(&out, 0, 0, tokens, B * T * sizeof *tokens);
    safewriter_put(&out, 1, 0, targets, B * T * sizeof *targets);
    safewriter_put(&out, 2, 0, &loss32, sizeof loss32);
    for (size_t i = 0; i < B * T; i++)
        safewriter_put(&out, 3, i * c->vocab * sizeof *logits, logits + i * c->vocab_padded,
                       c->vocab * sizeof *logits);
    tensors_put(&out, c, t, &state, 0, 4);
    if (begins != NULL) safewriter_put(&out, out.count - 1, 0, begins, B * T * sizeof *begins);
    return safewriter_close(&out, err);
}

#endif
