// checkpoint.h: models and training runs on disk.
//
//   model_config_load, model_load  a model in Hugging Face's naming: config.json, *.safetensors
//   model_save, dump_save          one of ours; the reference dump that other frameworks repeat
//   state_save, state_prune        a new checkpoint of a run; what it leaves too many
//   state_find, state_load         the newest whole checkpoint
//   state_newest                   what is there; removes what killed processes have left
//   state_model                    a checkpoint's weights as a model
//   state_agree                    have all ranks succeeded?
//   RunState, state_in             what is saved and loaded, wherever it lies
//
// Nothing that is whole is ever overwritten: a file gets its name once it is complete and flushed.
#ifndef TIDE_CHECKPOINT_H
#define TIDE_CHECKPOINT_H
#include "../base/util.h"
#include "../base/model.h"
#include "json.h"
#include "../base/ranks.h"
#include "safetensors.h"
#include <dirent.h>
#include <inttypes.h>
#include <math.h>

// ---------------------------------------------------------------------------------------------
// 1. What is saved and loaded
//
// State may lie in several places, in a GPU's memory and the host's, and in any form: the trainer
// that has it moves it. Of several ranks, each brings to a file what it has, and loads as much from
// it. Files and state meet in a buffer of PART_UNIT elements: a second whole copy would not fit
// beside a model that is larger than the GPU.

#ifndef PART_UNIT
#define PART_UNIT ((size_t)1 << 18)
#endif

// What there may be of every parameter: the newest weights; AdamW's moments; with importance-aware
// updates, the weights in use.
enum { STATE_PARTS = 4 };
static const char *const state_parts[STATE_PARTS] = {"param", "m", "v", "shown"};

// Elements [at, at + length) of the arena.
typedef struct { size_t at, length; } StateRange;

typedef struct {
    int parts;                 // so many of state_parts, from the first
    const StateRange *ranges;  // of each of them, what this process has: in the arena's order, cut
                               // at multiples of ALIGN_ELEMENTS; without gaps, but for what other
                               // ranks have. Empty ones may be anywhere
    int count;                 // of ranges
    // Brings elements [at, at + n) of a part to w as fp32, or with out == false from w, and is done
    // when it returns. They lie within one tensor, with its padding and the gap behind it only when
    // they come from w, as zeros.
    void (*move)(void *owner, int part, size_t at, size_t n, float *w, bool out);
    void *owner;
    bool moments_bf16;         // AdamW's are stored as bf16
    float limit;               // weights must be smaller to be stored; 0: all finite ones can
} RunState;

static int state_dtype(const RunState *x, int part) {
    return x->moments_bf16 && (part == 1 || part == 2) ? ST_BF16 : ST_F32;
}

// A RunState's move: owner is a list of arenas in host memory, by part.
static void state_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    float *there = ((float *const *)owner)[part] + at;
    memcpy(out ? w : there, out ? there : w, n * sizeof *w);
}

// The state all of which is in so many arenas.
static RunState state_in(float *const *arenas, int parts) {
    static const StateRange all = {0, SIZE_MAX};
    const RunState x = {parts, &all, 1, state_move, (void *)arenas, false, 0};
    return x;
}

// Of elements [*at, end), the first that are here: how many there are, at most PART_UNIT (0: none),
// from *at, which is moved there.
static size_t state_next(const RunState *x, size_t *at, size_t end) {
    for (const StateRange *s = x->ranges; s < x->ranges + x->count; s++) {
        if (s->length == 0 || s->at + s->length <= *at || s->at >= end) continue;
        if (s->at > *at) *at = s->at;
        return min_size(min_size(s->at + s->length, end) - *at, PART_UNIT);
    }
    return 0;
}

// ---------------------------------------------------------------------------------------------
// 2. Names and layouts
//
// One table serves loading, saving and dumping: what each tensor is called in Hugging Face's files,
// and where its elements are in our arena. GPT-2 keeps the weights of its linear layers as
// (in, out); OPT has q, k and v apart, and two rows that no position uses in front of the others.

typedef struct {
    char name[96];      // with the prefix under which we write it
    size_t prefix;      // its length
    int tensor;         // index into the table
    int rank;
    size_t shape[2];    // as stored
    size_t skip;        // leading elements that are only in the file
    size_t first, n;    // the others are our elements [first, first + n) of the tensor
    bool transpose;     // a matrix; ours is the other way round
} HfTensor;

// The prefixes under which the same tensor is found; the first is the one that we write.
static const char *const hf_prefixes[2][5] = {
    {"transformer.", "", NULL, NULL, NULL},
    {"model.decoder.", "decoder.", "model.", "", NULL},
};

// The names behind them, of layer %d, as in the table: those of a layer by kind, then the others.
static const char *const hf_names[LAYER_TENSORS + 7][2] = {
    {"h.%d.ln_1.weight", "layers.%d.self_attn_layer_norm.weight"},
    {"h.%d.ln_1.bias", "layers.%d.self_attn_layer_norm.bias"},
    {"h.%d.attn.c_attn.weight", "layers.%d.self_attn.%c_proj.weight"},
    {"h.%d.attn.c_attn.bias", "layers.%d.self_attn.%c_proj.bias"},
    {"h.%d.attn.c_proj.weight", "layers.%d.self_attn.out_proj.weight"},
    {"h.%d.attn.c_proj.bias", "layers.%d.self_attn.out_proj.bias"},
    {"h.%d.ln_2.weight", "layers.%d.final_layer_norm.weight"},
    {"h.%d.ln_2.bias", "layers.%d.final_layer_norm.bias"},
    {"h.%d.mlp.c_fc.weight", "layers.%d.fc1.weight"},
    {"h.%d.mlp.c_fc.bias", "layers.%d.fc1.bias"},
    {"h.%d.mlp.c_proj.weight", "layers.%d.fc2.weight"},
    {"h.%d.mlp.c_proj.bias", "layers.%d.fc2.bias"},
    {"wte.weight", "embed_tokens.weight"},
    {"wpe.weight", "embed_positions.weight"},
    {"ln_f.weight", "final_layer_norm.weight"},
    {"ln_f.bias", "final_layer_norm.bias"},
    {NULL, "project_in.weight"},
    {NULL, "project_out.weight"},
    {"lm_head.weight", "lm_head.weight"},
};

// Tensor i of the table in our own layout and naming, as checkpoints store it.
static HfTensor own_tensor(const GPT2Table *t, int i) {
    const GPT2Tensor *p = &t->tensors[i];
    const size_t n = p->rows * p->cols;
    HfTensor x = {"", 0, i, p->rank, {p->rank == 2 ? p->rows : n, p->cols}, 0, 0, n, false};
    snprintf(x.name, sizeof x.name, "%s", p->name);
    return x;
}

// What is stored for part 0, 1 or 2 of tensor i / 3 of the table is number i; only OPT's q, k and v
// are stored in parts. Returns false if there is no such number. c NULL: own_tensor().
static bool hf_tensor(const GPT2Config *c, const GPT2Table *t, int i, HfTensor *x) {
    const GPT2Tensor *p = &t->tensors[i / 3];
    *x = own_tensor(t, i / 3);
    if (c == NULL) return i % 3 == 0;
    const bool opt = c->family == FAMILY_OPT;
    const bool parts = opt && (p->kind == QKV_W || p->kind == QKV_B);
    const int others[] = {t->wte, t->wpe, t->ln_f_w, t->ln_f_b, t->project_in, t->project_out,
                          t->lm_head};
    int row = p->kind >= 0 ? p->kind : LAYER_TENSORS;
    while (row >= LAYER_TENSORS && others[row - LAYER_TENSORS] != i / 3) row++;
    const char *prefix = p == &t->tensors[t->lm_head] && !c->tied ? "" : hf_prefixes[c->family][0];
    if (i % 3 > 0 && !parts) return false;
    x->prefix = strlen(prefix);
    memcpy(x->name, prefix, x->prefix);
    snprintf(x->name + x->prefix, sizeof x->name - x->prefix, hf_names[row][c->family], p->layer,
             "qkv"[i % 3]);
    if (parts) {
        x->shape[0] /= 3;
        x->n /= 3;
        x->first = (size_t)(i % 3) * x->n;
    }
    if (opt && i / 3 == t->wpe) {
        x->skip = 2 * p->cols;
        x->shape[0] += 2;
    }
    if (!opt && p->kind >= 0 && p->rank == 2) {
        x->transpose = true;
        x->shape[0] = p->cols;
        x->shape[1] = p->rows;
    }
    return true;
}

// Elements [first, first + n) of ours, in our order, from stored tensor s. A matrix to be
// transposed goes by tiles of HF_ROWS stored rows, which is one cache line of ours.
enum { HF_ROWS = 16, HF_COLS = 64, HF_CHUNK = 1 << 12 };

static void hf_read(const HfTensor *x, const SafeTensor *s, size_t first, size_t n, float *w) {
    const size_t R = x->shape[0], C = x->shape[1];
    if (!x->transpose) {
        #pragma omp parallel for if (n > 1 << 16)
        for (size_t i = 0; i < n; i += HF_CHUNK)
            safetensor_floats(s, x->skip + first + i, min_size(HF_CHUNK, n - i), w + i);
        return;
    }
    const size_t begin = first / R, end = (first + n - 1) / R + 1;  // of our rows
    #pragma omp parallel for if (n > 1 << 16)
    for (size_t row = 0; row < R; row += HF_ROWS)
        for (size_t col = begin; col < end; col += HF_COLS) {
            const size_t rows = min_size(HF_ROWS, R - row);
            const size_t cols = min_size(HF_COLS, end - col);
            float tile[HF_ROWS][HF_COLS];
            for (size_t r = 0; r < rows; r++)
                safetensor_floats(s, (row + r) * C + col, cols, tile[r]);
            for (size_t c = 0; c < cols; c++)
                for (size_t r = 0; r < rows; r++) {
                    const size_t at = (col + c) * R + row + r - first;  // huge if before
                    if (at < n) w[at] = tile[r][c];
                }
        }
}

// Loads what there is here of a part's tensor x, which is stored as s; with its last elements, what
// follows them in the arena becomes zero. False if a number is not finite, or reaches the limit.
static bool part_read(const RunState *here, int part, const GPT2Table *t, const HfTensor *x,
                      const SafeTensor *s) {
    const GPT2Tensor *ours = &t->tensors[x->tensor];
    const size_t begin = ours->offset + x->first, last = begin + x->n;
    const bool padded = x->first + x->n == ours->rows * ours->cols;
    const size_t end = padded ? ours->offset + round_up(ours->size, ALIGN_ELEMENTS) : last;
    float *w = ALLOC(float, min_size(PART_UNIT, end - begin), "a copy of weights");
    const float limit = here->limit > 0 ? here->limit : INFINITY;
    int bad = 0;
    for (size_t at = begin, n; (n = state_next(here, &at, end)) > 0; at += n) {
        const size_t stored = at < last ? min_size(n, last - at) : 0;
        if (stored > 0) hf_read(x, s, at - begin, stored, w);
        memset(w + stored, 0, (n - stored) * sizeof *w);
        #pragma omp parallel for if (n > 1 << 16) reduction(| : bad)
        for (size_t i = 0; i < n; i++) bad |= !(fabsf(w[i]) < limit);
        here->move(here->owner, part, at, n, w, false);
    }
    free(w);
    safetensor_release(s);
    return !bad;
}

// Saves what there is here of a part's tensor x as number i of a file, rounded to bf16 if that is
// declared so. All of a matrix to be transposed must be here; HF_ROWS stored rows are made at a
// time.
static void part_write(const RunState *here, int part, const GPT2Table *t, const HfTensor *x,
                       SafeWriter *file, int i) {
    const size_t begin = t->tensors[x->tensor].offset + x->first, R = x->shape[0], C = x->shape[1];
    const size_t unit = min_size(x->transpose ? HF_ROWS * C : PART_UNIT, x->n);
    const bool bf16 = file->tensors[i].dtype == ST_BF16;
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(float);
    float *w = ALLOC(float, unit + x->skip, "a copy of weights"), *ours = NULL;
    if (x->transpose) {
        ours = ALLOC(float, x->n, "a matrix to be transposed");
        here->move(here->owner, part, begin, x->n, ours, true);
    }
    safewriter_put(file, i, 0, w, x->skip * size);  // zeros
    for (size_t at = begin, n; (n = state_next(here, &at, begin + x->n)) > 0; at += n) {
        if (x->transpose) {
            const float *from = ours + (at - begin) / C;  // our column
            n = min_size(unit, begin + x->n - at);
            #pragma omp parallel for if (n > 1 << 16)
            for (size_t o = 0; o < C; o++)
                for (size_t r = 0; r < n / C; r++) w[r * C + o] = from[o * R + r];
        } else {
            here->move(here->owner, part, at, n, w, true);
        }
        if (bf16)
            for (size_t j = 0; j < n; j++) {  // in their own place
                const uint16_t half = master_weight(w[j]);
                memcpy((char *)w + j * size, &half, size);
            }
        safewriter_put(file, i, (x->skip + at - begin) * size, w, n * size);
    }
    free(ours);
    free(w);
}

// ---------------------------------------------------------------------------------------------
// 3. Reading a model

// What a configuration's sizes are called in config.json, by family.
static const struct { size_t at; const char *names[2]; } config_sizes[] = {
    {offsetof(GPT2Config, layers), {"n_layer", "num_hidden_layers"}},
    {offsetof(GPT2Config, heads), {"n_head", "num_attention_heads"}},
    {offsetof(GPT2Config, channels), {"n_embd", "hidden_size"}},
    {offsetof(GPT2Config, context), {"n_positions", "max_position_embeddings"}},
    {offsetof(GPT2Config, vocab), {"vocab_size", "vocab_size"}},
    {offsetof(GPT2Config, ffn), {"n_inner", "ffn_dim"}},
};
enum { CONFIG_SIZES = sizeof config_sizes / sizeof config_sizes[0] };

// What else is in the config.json that we write. In one that we read it may be missing or null, or
// else must be the same if it is `needed`: other models need arithmetic that is not in
// train_gpt2.c, and no result is better than a slightly wrong one. Dropout is 0: that is how the
// model was trained. OPT gets no padding token, since PyTorch would freeze its row.
static const struct { int family; bool needed; const char *key, *value; } config_fixed[] = {
    {FAMILY_GPT2, false, "architectures", "[\"GPT2LMHeadModel\"]"},
    {FAMILY_GPT2, false, "model_type", "\"gpt2\""},
    {FAMILY_GPT2, true, "layer_norm_epsilon", "1e-05"},
    {FAMILY_GPT2, true, "scale_attn_weights", "true"},
    {FAMILY_GPT2, true, "scale_attn_by_inverse_layer_idx", "false"},
    {FAMILY_GPT2, true, "add_cross_attention", "false"},
    {FAMILY_GPT2, false, "embd_pdrop", "0.0"},
    {FAMILY_GPT2, false, "attn_pdrop", "0.0"},
    {FAMILY_GPT2, false, "resid_pdrop", "0.0"},
    {FAMILY_OPT, false, "architectures", "[\"OPTForCausalLM\"]"},
    {FAMILY_OPT, false, "model_type", "\"opt\""},
    {FAMILY_OPT, false, "do_layer_norm_before", "true"},
    {FAMILY_OPT, true, "enable_bias", "true"},
    {FAMILY_OPT, true, "layer_norm_elementwise_affine", "true"},
    {FAMILY_OPT, true, "_remove_final_layer_norm", "false"},
    {FAMILY_OPT, false, "dropout", "0.0"},
    {FAMILY_OPT, false, "attention_dropout", "0.0"},
    {FAMILY_OPT, false, "pad_token_id", "null"},
};
enum { CONFIG_FIXED = sizeof config_fixed / sizeof config_fixed[0] };

// Reads the Hugging Face config.json of a GPT-2 or OPT model into *c.
static void config_read(const Json *root, const char *path, GPT2Config *c) {
    // all but the first: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    static const char *const activations[] = {
        "relu", "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"};
    Error err;
    memset(c, 0, sizeof *c);
    const Json *type = json_get(root, "model_type"), *tied = json_get(root, "tie_word_embeddings");
    const Json *projection = json_get(root, "word_embed_proj_dim");
    const Json *before = json_get(root, "do_layer_norm_before");
    const Json *activation = json_get(root, "activation_function");
    const char *name = type != NULL && type->type == JSON_STRING ? type->string : "not there";
    if (strcmp(name, "opt") == 0) c->family = FAMILY_OPT;
    else if (strcmp(name, "gpt2") != 0)
        die("%s: model_type is %.100s; only gpt2 and opt are known", path, name);
    for (int i = 0; i < CONFIG_SIZES; i++) {
        const char *key = config_sizes[i].names[c->family];
        const Json *value = json_get(root, key);
        size_t *size = (size_t *)(void *)((char *)c + config_sizes[i].at);
        if (size == &c->ffn && value == NULL) continue;  // 4 C
        if (!json_size(value, size) || *size == 0)
            die("%s: %s must be there, and a whole number of at least 1", path, key);
    }
    for (int i = 0; i < CONFIG_FIXED; i++) {
        const char *text = config_fixed[i].value;
        const Json *value = json_get(root, config_fixed[i].key);
        if (config_fixed[i].family != c->family || !config_fixed[i].needed || value == NULL)
            continue;
        if (value->type != (text[0] == 't' ? JSON_TRUE : text[0] == 'f' ? JSON_FALSE : JSON_NUMBER)
            || fabs(value->number - strtod(text, NULL)) > 1e-3 * strtod(text, NULL))
            die("%s: models whose %s is not %s are not supported", path, config_fixed[i].key, text);
    }
    if (c->family == FAMILY_OPT) {
        size_t embed = c->channels;
        if (projection != NULL && !json_size(projection, &embed)) embed = 0;
        const JsonType order = before != NULL ? before->type : JSON_TRUE;
        c->post_norm = order == JSON_FALSE;
        if (c->post_norm) c->embed = embed;
        else if (order != JSON_TRUE) embed = 0;
        if (embed == 0 || embed > c->channels || (embed == c->channels) != (c->embed == 0))
            die("%s: word_embed_proj_dim must be hidden_size (%zu), or smaller where "
                "do_layer_norm_before is false", path, c->channels);
    }
    if (json_get(root, "quantization_config") != NULL)
        die("%s: quantized models are not supported", path);
    c->tied = tied == NULL || tied->type == JSON_TRUE;
    if (!c->tied && tied->type != JSON_FALSE)
        die("%s: tie_word_embeddings must be true or false", path);
    name = c->family == FAMILY_OPT ? "relu" : "gelu_new";
    if (activation != NULL) name = activation->type == JSON_STRING ? activation->string : "no name";
    size_t known = 0;
    while (known < 6 && strcmp(name, activations[known]) != 0) known++;
    c->activation = known == 0 ? ACTIVATION_RELU : ACTIVATION_GELU;
    if (known == 6)
        die("%s: activation_function is %.100s; only relu and the tanh form of GELU (gelu_new) "
            "are supported", path, name);
    if (!gpt2_finish(c, &err)) die("%s: %s", path, err.text);
}

// The directory of the model at `path`, which is one, or a .safetensors file in it.
static void model_directory(const char *path, char dir[PATH_MAX]) {
    snprintf(dir, PATH_MAX, "%s", path);
    if (path_is_directory(path)) return;
    char *slash = strrchr(dir, '/');
    if (slash == NULL) snprintf(dir, PATH_MAX, ".");
    else slash[slash == dir] = '\0';
}

// Opens the file that was named, or the directory's model.safetensors, or else every file that
// model.safetensors.index.json names in its weight_map (tensor -> file). Returns *count of them,
// or, unless they are `needed`, NULL if there is none.
static SafeTensors *model_open(const char *model, bool needed, int *count) {
    char dir[PATH_MAX], path[PATH_MAX];
    Error err;
    Json *index = NULL;
    model_directory(model, dir);
    path_join(path, dir, "model.safetensors");
    if (!path_is_directory(model)) snprintf(path, sizeof path, "%s", model);
    if (!path_exists(path)) {
        path_join(path, dir, "model.safetensors.index.json");
        if (!needed && !path_exists(path)) return NULL;
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
        if (same != e) continue;  // it is open
        path_join(path, dir, e->string);
        if (!safetensors_open(&files[(*count)++], path, &err)) die("%s", err.text);
    }
    if (*count == 0) die("%s: there is no weight_map", path);
    json_free(index);
    return files;
}

static void model_close(SafeTensors *files, int count) {
    for (int i = 0; i < count; i++) safetensors_close(&files[i]);
    free(files);
}

// Finds tensor x, once, in the right shape. NULL: it is not `needed`, and not there.
static SafeTensor *model_find(const SafeTensors *files, int count, const char *model,
                              const GPT2Config *c, const HfTensor *x, bool needed) {
    SafeTensor *found = NULL, *next;
    char name[128], there[200] = "missing", here[200];
    for (const char *const *prefix = hf_prefixes[c->family]; *prefix != NULL; prefix++) {
        snprintf(name, sizeof name, "%s%s", x->prefix > 0 ? *prefix : "", x->name + x->prefix);
        for (int i = 0; i < count; i++) {
            if ((next = safetensors_find(&files[i], name)) == NULL) continue;
            if (found != NULL && found != next)
                die("%s: tensor %s is there more than once", model, x->name);
            found = next;
        }
    }
    // tied embeddings may be stored under the head's name alone
    for (int i = 0; i < count && found == NULL && c->tied && x->tensor == 0; i++)
        found = safetensors_find(&files[i], "lm_head.weight");
    if (found == NULL && !needed) return NULL;
    shape_text(here, x->rank, x->shape);
    if (found != NULL) shape_text(there, found->rank, found->shape);
    if (strcmp(here, there) != 0)
        die("%s: tensor %s is %s, the model needs %s", model, x->name, there, here);
    if (found->dtype > ST_F64)
        die("%s: tensor %s is not stored as F32, F16, BF16 or F64", model, x->name);
    return found;
}

// Unties a model whose files have a head that is not its embeddings, as transformers does: a merged
// adapter leaves such a head, and config.json as it was.
static void model_check_head(const SafeTensors *files, int count, const char *path, GPT2Config *c) {
    GPT2Config untied = *c;
    HfTensor x, y;
    untied.tied = 0;
    GPT2Table t = gpt2_table(&untied);
    hf_tensor(&untied, &t, 3 * t.wte, &x);
    hf_tensor(&untied, &t, 3 * t.lm_head, &y);
    const SafeTensor *wte = model_find(files, count, path, &untied, &x, false);
    const SafeTensor *head = model_find(files, count, path, &untied, &y, false);
    const size_t all = c->tied && wte != NULL && head != NULL ? x.n : 0;
    int differs = 0;
    #pragma omp parallel for reduction(| : differs)
    for (size_t at = 0; at < all; at += HF_CHUNK) {
        const size_t n = min_size(HF_CHUNK, all - at);
        float u[HF_CHUNK], v[HF_CHUNK];
        safetensor_floats(wte, at, n, u);
        safetensor_floats(head, at, n, v);
        for (size_t i = 0; i < n; i++) differs |= u[i] != v[i];  // a NaN does
    }
    if (differs) c->tied = 0;
    if (differs && ranks.rank == 0)
        fprintf(stderr, "tide: note: %s: lm_head.weight is not %s: the model is untied, whatever "
                "its config.json says\n", path, x.name);
    gpt2_table_free(&t);
}

// Configuration of the model at `path`: its directory's config.json, and which head the weights
// have, if they are there already.
static void model_config_load(const char *path, GPT2Config *c) {
    char dir[PATH_MAX], name[PATH_MAX];
    int count = 0;
    Error err;
    model_directory(path, dir);
    path_join(name, dir, "state.txt");
    if (path_exists(name))
        die("%s is a checkpoint: --model takes the OUT that it is in, --resume goes on", path);
    SafeTensors *files = model_open(path, false, &count);
    path_join(name, dir, "config.json");
    Json *root = json_read(name, &err);
    if (root == NULL) die("%s", err.text);
    config_read(root, name, c);
    json_free(root);
    model_check_head(files, count, path, c);
    model_close(files, count);
}

// Fills the first part with the model at `path`, as for model_config_load(); padding becomes zero.
// Stored as fp32, fp16, bf16 or fp64, with or without the prefixes that Hugging Face's classes put
// before the names, in one file or several. Refuses, naming the tensor: one that is missing, is
// there twice, has an odd shape, would not be used, or has numbers that are not finite.
static void model_load(const char *path, const GPT2Config *c, const GPT2Table *t,
                       const RunState *here) {
    HfTensor x;
    int count;
    SafeTensors *files = model_open(path, true, &count);
    for (int i = 0; i < 3 * t->count; i++) {
        if (!hf_tensor(c, t, i, &x)) continue;
        SafeTensor *s = model_find(files, count, path, c, &x, true);
        s->seen = true;
        if (!part_read(here, 0, t, &x, s))
            die("%s: tensor %s has a NaN, an infinity or a number too large for this precision: "
                "the file is damaged, or of a wider one", path, x.name);
    }
    for (int f = 0; f < count; f++) {
        for (int i = 0; i < files[f].count; i++) {
            const SafeTensor *s = &files[f].tensors[i];
            const char *end = c->family == FAMILY_GPT2 ? strstr(s->name, ".attn.") : NULL;
            // causal masks (1, 1, n, n), and the number that they put
            const bool mask = end != NULL
                && ((strcmp(end, ".attn.bias") == 0 && s->rank == 4 && s->shape[2] == s->shape[3])
                    || (strcmp(end, ".attn.masked_bias") == 0 && s->elements == 1));
            const bool head = c->tied && strcmp(s->name, "lm_head.weight") == 0;  // it is wte
            if (!s->seen && !mask && !head)
                die("%s: tensor %.100s is unknown to a %s model with %s head", path, s->name,
                    c->family == FAMILY_OPT ? "opt" : "gpt2", c->tied ? "a tied" : "an untied");
        }
    }
    model_close(files, count);
}

// ---------------------------------------------------------------------------------------------
// 4. Writing a model

// Flushes a directory, so that renames within it survive a power cut.
static bool directory_sync(const char *dir, Error *err) {
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some file systems cannot flush a directory and say EINVAL; there is nothing more to do then.
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) error_set(err, "cannot flush %s: %s", dir, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

// Declares all of the model's tensors, each name after `prefix`; and writes a part of the state as
// those of the file from number `i` on. c NULL: in our own naming and layout.
static void tensors_add(SafeWriter *file, const GPT2Config *c, const GPT2Table *t,
                        const char *prefix, int dtype) {
    HfTensor x;
    char name[256];
    for (int k = 0; k < 3 * t->count; k++) {
        if (!hf_tensor(c, t, k, &x)) continue;
        snprintf(name, sizeof name, "%s%s", prefix, x.name);
        safewriter_add(file, name, dtype, x.rank, x.shape);
    }
}

static void tensors_put(SafeWriter *file, const GPT2Config *c, const GPT2Table *t,
                        const RunState *here, int part, int i) {
    HfTensor x;
    for (int k = 0; k < 3 * t->count && !file->failed; k++)
        if (hf_tensor(c, t, k, &x)) part_write(here, part, t, &x, file, i++);
}

// Writes config.json. eot: the token that ends a text, or -1.
static void config_write(FILE *f, const GPT2Config *c, bool bf16, int eot) {
    const bool opt = c->family == FAMILY_OPT;
    char token[16] = "null";
    if (eot >= 0) snprintf(token, sizeof token, "%d", eot);
    fprintf(f, "{\n  \"%s\": %zu,\n", opt ? "word_embed_proj_dim" : "n_ctx",
            opt ? config_embed(c) : c->context);
    for (int i = 0; i < CONFIG_SIZES; i++)
        fprintf(f, "  \"%s\": %zu,\n", config_sizes[i].names[c->family],
                *(const size_t *)(const void *)((const char *)c + config_sizes[i].at));
    for (int i = 0; i < CONFIG_FIXED; i++) {
        const char *key = config_fixed[i].key, *value = config_fixed[i].value;
        if (c->post_norm && strcmp(key, "do_layer_norm_before") == 0) value = "false";
        if (config_fixed[i].family == c->family) fprintf(f, "  \"%s\": %s,\n", key, value);
    }
    fprintf(f, "  \"activation_function\": \"%s\",\n  \"tie_word_embeddings\": %s,\n"
            "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"torch_dtype\": \"%s\"\n}\n",
            c->activation == ACTIVATION_RELU ? "relu" : "gelu_new", c->tied ? "true" : "false",
            token, token, bf16 ? "bfloat16" : "float32");
}

// Writes dir/model.safetensors and dir/config.json so that Hugging Face's
// AutoModelForCausalLM.from_pretrained(dir) loads them: fp32, or bf16 rounded to the nearest.
// Makes dir if it must. On failure what was there before is still there.
static bool model_save(const char *dir, const GPT2Config *c, const GPT2Table *t,
                       const RunState *here, bool bf16, int eot, Error *err) {
    char weights[PATH_MAX], config[PATH_MAX];
    SafeWriter out;
    if (!make_directories(dir)) return error_set(err, "cannot make %s: %s", dir, strerror(errno));
    path_join(weights, dir, "model.safetensors");
    path_join(config, dir, "config.json");
    FILE *f = replace_open(config, err);
    if (f == NULL) return false;
    config_write(f, c, bf16, eot);
    // Complete before the old weights go: the new ones may need it.
    if (fflush(f) != 0) return replace_close(f, config, err);
    memset(&out, 0, sizeof out);
    tensors_add(&out, c, t, "", bf16 ? ST_BF16 : ST_F32);
    safewriter_open(&out, weights);
    tensors_put(&out, c, t, here, 0, 0);
    if (safewriter_close(&out, err))
        return replace_close(f, config, err) && directory_sync(dir, err);
    replace_discard(f, config);
    return false;
}

// Writes a reference dump: one forward and backward pass that any framework can repeat. tokens and
// targets (B, T), begins (B, T) of rows of several documents, else NULL, the loss, logits (B*T, Vp)
// of which the first V columns are written, and the gradient of every parameter (an arena) as
// grad.NAME in Hugging Face's naming and layout.
static bool dump_save(const char *path, const GPT2Config *c, const GPT2Table *t, size_t B,
                      size_t T, const int32_t *tokens, const int32_t *targets,
                      const int32_t *begins, double loss, const float *logits, const float *grads,
                      Error *err) {
    const size_t shape[3] = {B, T, c->vocab}, one = 1;
    const float loss32 = (float)loss;
    float *const arenas[] = {(float *)grads};  // only read
    const RunState here = state_in(arenas, 1);
    SafeWriter out;
    memset(&out, 0, sizeof out);
    safewriter_add(&out, "tokens", ST_I32, 2, shape);
    safewriter_add(&out, "targets", ST_I32, 2, shape);
    safewriter_add(&out, "loss", ST_F32, 1, &one);
    safewriter_add(&out, "logits", ST_F32, 3, shape);
    tensors_add(&out, c, t, "grad.", ST_F32);
    const int last = (int)out.count;
    if (begins != NULL) safewriter_add(&out, "begins", ST_I32, 2, shape);
    safewriter_open(&out, path);
    safewriter_put(&out, 0, 0, tokens, B * T * sizeof *tokens);
    safewriter_put(&out, 1, 0, targets, B * T * sizeof *targets);
    safewriter_put(&out, 2, 0, &loss32, sizeof loss32);
    for (size_t i = 0; i < B * T; i++)
        safewriter_put(&out, 3, i * c->vocab * sizeof *logits, logits + i * c->vocab_padded,
                       c->vocab * sizeof *logits);
    tensors_put(&out, c, t, &here, 0, 4);
    if (begins != NULL) safewriter_put(&out, last, 0, begins, B * T * sizeof *begins);
    return safewriter_close(&out, err);
}

// ---------------------------------------------------------------------------------------------
// 5. Training state
//
// OUT/checkpoints/step_N/ holds state.safetensors (PART.NAME for every part, such as param, m and
// v, and every tensor in our naming and layout, without padding) and state.txt: lines "name value",
// of numbers, the first file's hashes, what the optimizer adds, and the run's options, under a hash
// of them all. Written as OUT/checkpoints/tmp_N and renamed.
//
// Several ranks save together, each what it has, into the file that one process would write. Rank 0
// makes the file, and names it when all have flushed; what fails on one rank fails on all.
// Functions that say so must be called by all ranks, at the same point.

// The checkpoint of the lowest validation loss (--keep-best), that loss, and the hash of the data
// that it was measured on. step 0: there is none.
typedef struct { size_t step; double loss; uint64_t data; } StateBest;

typedef struct {
    uint64_t version;        // STATE_VERSION
    size_t step;             // steps done
    uint64_t seed;
    uint64_t data_position;  // the next sequence's
    uint64_t data_hash;      // of the training data, as the trainer defines it
    GPT2Config config;
    uint64_t products;       // the hash of --tune's file; 0: there was none
    StateBest best;
    char options[4096];      // the run's, as lines (options.h)
    char *text;              // one that was loaded: all of state.txt; one to be saved: lines that
                             // the optimizer adds, of which the first is named so; or NULL
} TrainState;

// Versions 5 and 6 lie in the same way: data_hash and, in 5, normal numbers (rng.h) were others.
enum { STATE_OLDEST = 5, STATE_VERSION = 7 };

// The numbers in state.txt. From `products` on, those that are 0 may be absent.
#define STATE_FIELD(field) {#field, offsetof(TrainState, field), sizeof ((TrainState *)0)->field}
static const struct { const char *name; size_t at, size; } state_fields[] = {
    STATE_FIELD(version), STATE_FIELD(step), STATE_FIELD(seed), STATE_FIELD(data_position),
    STATE_FIELD(data_hash), STATE_FIELD(config.layers), STATE_FIELD(config.heads),
    STATE_FIELD(config.channels), STATE_FIELD(config.context), STATE_FIELD(config.vocab),
    STATE_FIELD(config.ffn), STATE_FIELD(config.family), STATE_FIELD(config.activation),
    STATE_FIELD(config.tied), STATE_FIELD(products), STATE_FIELD(config.embed),
    STATE_FIELD(best.step), STATE_FIELD(best.loss), STATE_FIELD(best.data)};
enum { STATE_FIELDS = sizeof state_fields / sizeof state_fields[0],
       STATE_NEEDED = STATE_FIELDS - 5 };

static void train_state_free(TrainState *s) {
    free(s->text);
    s->text = NULL;
}

// Removes a checkpoint's directory: its files, and the directory, or the link to one. Anything else
// that somebody has put there stays, which is said on stderr.
static void checkpoint_remove(const char *path) {
    static const char *const files[] = {"state.txt", "state.safetensors", "state.txt.tmp",
                                        "state.safetensors.tmp"};
    char file[PATH_MAX];
    struct stat s;
    const bool link = lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
    for (int i = 0; i < 4 && !link; i++) {
        path_join(file, path, files[i]);
        unlink(file);
    }
    if ((link ? unlink(path) : rmdir(path)) != 0 && errno != ENOENT)
        fprintf(stderr, "tide: cannot remove %s: %s\n", path, strerror(errno));
}

// A checkpoint's directory.
static void state_path(char path[PATH_MAX], const char *out, size_t step) {
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step_%08zu", step);
    path_join(path, out, name);
}

// The newest checkpoint of a step before `before` in OUT/checkpoints, or 0. With `clean`, removes
// those that killed processes were writing.
static size_t state_newest(const char *out, size_t before, bool clean) {
    char all[PATH_MAX], path[PATH_MAX], end;
    size_t newest = 0, step;
    path_join(all, out, "checkpoints");
    DIR *d = opendir(all);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (sscanf(e->d_name, "step_%zu%c", &step, &end) == 1 && step > newest && step < before)
            newest = step;
        if (!clean || strncmp(e->d_name, "tmp", 3) != 0) continue;
        path_join(path, all, e->d_name);
        checkpoint_remove(path);
    }
    if (d != NULL) closedir(d);
    return newest;
}

// Have all ranks succeeded? If not, err says on each of them what the first one that failed says.
// All ranks call it.
static bool state_agree(bool ok, Error *err) {
    Error *all = ALLOC(Error, (size_t)ranks.world, "answers"), none = {""};
    int failed = 0, first = 0;
    ranks_exchange(ok ? &none : err, sizeof none, all);
    for (int i = ranks.world - 1; i >= 0; i--) {
        if (all[i].text[0] == '\0') continue;
        failed++;
        first = i;
    }
    if (failed == ranks.world) *err = all[0];  // no matter of one rank
    else if (failed > 0) error_set(err, "%.480s (rank %d)", all[first].text, first);
    free(all);
    return failed == 0;
}

// ---------------------------------------------------------------------------------------------
// 6. Is it whole?

// Reads state.txt's text of n bytes, malloc'ed, which is then that of *s, to be freed in any case.
static bool state_parse(char *text, size_t n, TrainState *s, Error *err) {
    const GPT2Config *c = &s->config;
    const size_t end = seal_find(text, n);
    memset(s, 0, sizeof *s);
    s->text = text;
    if (end == SIZE_MAX) return error_set(err, "state.txt is not what was written");
    bool ok = text_line(text, "hashes") != NULL;
    for (int i = 0; i < STATE_FIELDS; i++) {
        const char *number = text_line(text, state_fields[i].name);
        const bool there = number != NULL && *number == ' ';
        const size_t digits = there ? strspn(number + 1, "0123456789") : 0;
        const uint64_t value = digits > 0 ? strtoull(number, NULL, 10) : 0;
        if (i >= STATE_NEEDED && number == NULL) continue;
        ok = ok && digits > 0 && number[1 + digits] == '\n';
        memcpy((char *)s + state_fields[i].at, &value, state_fields[i].size);
    }
    const char *options = strstr(text, "\n--");
    const size_t length = options != NULL ? (size_t)(text + end - options) - 1 : 0;
    if (s->version < STATE_OLDEST || s->version > STATE_VERSION)
        return error_set(err, "state.txt is of version %" PRIu64 "; this program reads %d to %d",
                         s->version, STATE_OLDEST, STATE_VERSION);
    if (!ok || length >= sizeof s->options || (unsigned)c->family > FAMILY_OPT
        || (unsigned)c->activation > ACTIVATION_RELU || (unsigned)c->tied > 1)
        return error_set(err, "state.txt lacks a field");
    if (options != NULL) memcpy(s->options, options + 1, length);
    s->config.post_norm = s->config.embed > 0;
    return gpt2_finish(&s->config, err);
}

static bool state_read(const char *dir, TrainState *s, Error *err) {
    char path[PATH_MAX];
    size_t n = 0;
    path_join(path, dir, "state.txt");
    memset(s, 0, sizeof *s);
    char *text = file_read(path, &n, err);
    if (text != NULL && state_parse(text, n, s, err)) return true;
    train_state_free(s);
    return false;
}

// Is tensor i of a state file what was written? The header belongs to the first.
static bool state_intact(const SafeTensors *st, int i, const TrainState *s, Error *err) {
    enum { CHUNK = 1 << 12 };
    const unsigned char *start = (const unsigned char *)st->map, *data = st->tensors[i].data;
    const unsigned char *from = i > 0 ? data : start, *end = data + st->tensors[i].bytes;
    const char *hashes = text_line(s->text, "hashes");
    uint64_t sum = 0;
    char digits[18];
    #pragma omp parallel for reduction(+ : sum) if (end - from > 1 << 20)
    for (const unsigned char *at = from; at < end; at += CHUNK)
        sum += hash_words((uint64_t)(at - start), at, min_size(CHUNK, (size_t)(end - at)));
    snprintf(digits, sizeof digits, " %016" PRIx64, sum);
    return (strcspn(hashes, "\n") == 17 * (size_t)st->count
            && memcmp(digits, hashes + 17 * i, 17) == 0)
        || error_set(err, "%.100s in state.safetensors is not what was written",
                     st->tensors[i].name);
}

static bool state_open(const char *dir, SafeTensors *st, Error *err) {
    char path[PATH_MAX];
    path_join(path, dir, "state.safetensors");
    return safetensors_open(st, path, err)
        && (st->count > 0 || error_set(err, "%.400s is empty", path));
}

// Reads one checkpoint, of its tensors only the first, or with `torn` none; of the others, the size
// is checked. All of a state to which an optimizer adds something are checked here: that sets up
// the trainer before they are loaded. On failure *s holds nothing.
static bool state_check(const char *dir, TrainState *s, bool torn, Error *err) {
    SafeTensors st;
    if (!state_read(dir, s, err)) return false;
    bool ok = state_open(dir, &st, err);
    const int count = torn ? 0 : text_line(s->text, "optimizer") != NULL ? st.count : 1;
    for (int i = 0; ok && i < count; i++) ok = state_intact(&st, i, s, err);
    safetensors_close(&st);
    if (!ok) train_state_free(s);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// 7. Saving it

typedef struct {
    const char *out;         // what is to be saved, where: OUT/checkpoints/step_N
    const GPT2Table *table;
    const RunState *here;
    int keep;                // then all but so many checkpoints up to this step go; 0: none
    size_t best;             // but not this step's; 0: there is none
    TrainState state;
} StateSave;

// The text of state.txt, of *n bytes; free() it.
static char *state_describe(const StateSave *x, const SafeWriter *file, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    TrainState s = x->state;
    if (f == NULL) fail("out of memory: state.txt");
    s.version = STATE_VERSION;
    for (int i = 0; i < STATE_FIELDS; i++) {
        uint64_t value = 0;
        memcpy(&value, (const char *)&s + state_fields[i].at, state_fields[i].size);
        if (i < STATE_NEEDED || value > 0)
            fprintf(f, "%s %" PRIu64 "\n", state_fields[i].name, value);
    }
    fprintf(f, "hashes");
    for (int i = 0; i < file->count; i++) fprintf(f, " %016" PRIx64, file->sums[1 + i]);
    fprintf(f, "\n%s%s", s.text != NULL ? s.text : "", s.options);
    fflush(f);
    seal_print(f, text, *n);
    if (fclose(f) != 0) fail("out of memory: state.txt");
    return text;
}

// Adds up what all ranks have written.
static void state_gather(SafeWriter *file) {
    const size_t sums = (size_t)file->count + 1, all_sums = (size_t)ranks.world * sums;
    uint64_t *all = ALLOC(uint64_t, all_sums, "hashes");
    ranks_exchange(file->sums, sums * sizeof *all, all);
    memset(file->sums, 0, sums * sizeof *all);
    for (size_t i = 0; i < all_sums; i++) file->sums[i % sums] += all[i];
    free(all);
}

// Completes and names it, or removes what there is; on rank 0.
static bool state_commit(const StateSave *x, SafeWriter *file, const char *made, Error *err) {
    char path[PATH_MAX], final[PATH_MAX], all[PATH_MAX];
    size_t n = 0;
    FILE *f = NULL;
    char *text = state_describe(x, file, &n);
    path_join(path, made, "state.txt");
    path_join(all, x->out, "checkpoints");
    state_path(final, x->out, x->state.step);
    bool ok = safewriter_close(file, err) && (f = replace_open(path, err)) != NULL;
    if (ok) fwrite(text, 1, n, f);
    ok = ok && replace_close(f, path, err) && directory_sync(made, err);
    free(text);
    if (ok && path_exists(final)) checkpoint_remove(final);  // it is damaged: the run began before
    if (ok && rename(made, final) != 0)
        ok = error_set(err, "cannot rename %s: %s", made, strerror(errno));
    if (!ok) checkpoint_remove(made);
    return ok && directory_sync(all, err);
}

// Removes the checkpoints that a new one leaves too many; on rank 0. One that is torn is none of
// those to keep.
static void state_prune(const StateSave *x) {
    char path[PATH_MAX];
    TrainState s;
    Error err;
    int kept = 0;
    if (ranks.rank > 0 || x->keep <= 0) return;
    for (size_t step = x->state.step + 1; (step = state_newest(x->out, step, false)) > 0;) {
        state_path(path, x->out, step);
        if (kept >= x->keep && step != x->best) {
            checkpoint_remove(path);
        } else if (state_check(path, &s, true, &err)) {
            kept++;
            train_state_free(&s);
        }
    }
}

// Saves a checkpoint. On failure, and if the process dies at any point, the checkpoints that were
// there are still there. All ranks call it.
static bool state_save(const StateSave *x, Error *err) {
    char made[PATH_MAX], path[PATH_MAX], name[128];
    const bool first = ranks.rank == 0;
    SafeWriter file;
    memset(&file, 0, sizeof file);
    file.writer = ranks.rank;
    snprintf(name, sizeof name, "checkpoints/tmp_%08zu", x->state.step);  // (NFS remembers names)
    path_join(made, x->out, name);
    if (first) state_newest(x->out, 0, true);
    bool ok = !first || make_directories(made)
        || error_set(err, "cannot make %s: %s", made, strerror(errno));
    if (!state_agree(ok, err)) return false;
    path_join(path, made, "state.safetensors");
    for (int k = 0; k < x->here->parts; k++) {
        snprintf(name, sizeof name, "%s.", state_parts[k]);
        tensors_add(&file, NULL, x->table, name, state_dtype(x->here, k));
    }
    if (first) safewriter_open(&file, path);
    ranks_barrier();
    if (!first) safewriter_open(&file, path);
    for (int k = 0; k < x->here->parts; k++)
        tensors_put(&file, NULL, x->table, x->here, k, k * x->table->count);
    state_gather(&file);
    if (!first) safewriter_flush(&file);
    file.failed = !state_agree(!file.failed, &file.err);
    ok = first ? state_commit(x, &file, made, err) : safewriter_close(&file, err);
    if (!state_agree(ok, err)) return false;
    state_prune(x);
    return true;
}

// ---------------------------------------------------------------------------------------------
// 8. Loading it

// Finds the newest checkpoint, of a step before `before`, of the run in `out`, reads its *s, to be
// freed, and puts its path into dir. Torn and truncated ones are named on stderr and passed over.
// Returns false if none is left, or at one of a program before this form of them. Rank 0 decides
// for all ranks, which must all call it.
static bool state_find(const char *out, size_t before, TrainState *s, char dir[PATH_MAX],
                       Error *err) {
    const bool first = ranks.rank == 0;
    bool ok = !first;
    char old[PATH_MAX];
    Error why;
    memset(s, 0, sizeof *s);
    error_set(err, "there is no whole checkpoint in %s/checkpoints", out);
    for (size_t step = before; !ok && (step = state_newest(out, step, false)) > 0;) {
        state_path(dir, out, step);
        path_join(old, dir, "state.json");
        if (path_exists(old)) {
            error_set(err, "checkpoint %.200s has a state.json: it is of version 4 or before, and "
                      "this program reads %d to %d; the program that wrote it goes on with it, and "
                      "--model DIR begins a new run with the weights in %.200s", dir,
                      STATE_OLDEST, STATE_VERSION, out);
            break;
        }
        ok = state_check(dir, s, false, &why);
        if (!ok) fprintf(stderr, "tide: checkpoint %s is damaged (%s)\n", dir, why.text);
    }
    if (!state_agree(ok, err)) return false;
    ranks_broadcast(dir, PATH_MAX);
    if (state_agree(first || state_read(dir, s, err), err)) return true;
    train_state_free(s);
    return false;
}

// Fills *here from the checkpoint *s, which state_find() has found in dir; padding becomes zero. It
// must hold these parts. Others are not loaded. Moments may have been stored in another type.
// The hash of each tensor is checked by one of the ranks, in the pass that loads it. All ranks call
// it.
static bool state_load(const char *dir, const TrainState *s, const GPT2Table *t,
                       const RunState *here, Error *err) {
    SafeTensors st;
    bool ok = state_open(dir, &st, err);
    for (int k = 0; ok && k < here->parts; k++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", state_parts[k], t->tensors[0].name);
        const SafeTensor *first = safetensors_find(&st, name);
        if (first == NULL) ok = error_set(err, "tensor %s is missing", name);
        else if (k == 1 && first->dtype != state_dtype(here, k))
            printf(here->moments_bf16 ? "AdamW's moments, saved in fp32, are rounded to bf16\n"
                                      : "AdamW's moments, saved in bf16, are fp32 from here on\n");
        for (int i = 0; ok && i < t->count; i++) {
            const HfTensor x = own_tensor(t, i);
            const int number = (int)(first + i - st.tensors);
            if (number >= st.count || first[i].elements != x.n)
                ok = error_set(err, "tensor %s is of a model of another shape", first->name);
            else if (number % ranks.world == ranks.rank) ok = state_intact(&st, number, s, err);
            if (ok && !part_read(here, k, t, &x, &first[i]) && k == 0)
                die("%s: tensor %s has a number that is not finite, or too large for this "
                    "precision: resume with the one before", dir, x.name);
        }
    }
    safetensors_close(&st);
    return state_agree(ok, err);
}

// A RunState's move, outwards: the first part of a checkpoint that is open.
typedef struct { const GPT2Table *table; SafeTensors file; } StateFile;

static void state_file_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    const StateFile *x = (const StateFile *)owner;
    const int i = gpt2_tensor_at(x->table, at);
    if (out && part == 0)
        safetensor_floats(&x->file.tensors[i], at - x->table->tensors[i].offset, n, w);
}

// model.safetensors and config.json, in `out`, of a step's checkpoint; on rank 0.
static bool state_model(const StateSave *x, size_t step, const char *out, bool bf16, int eot,
                        Error *err) {
    char dir[PATH_MAX];
    StateFile from = {x->table, {0, NULL, NULL, NULL, 0}};
    RunState here = state_in(NULL, 1);
    here.move = state_file_move;
    here.owner = &from;
    state_path(dir, x->out, step);
    const bool ok = state_open(dir, &from.file, err)
        && model_save(out, &x->state.config, x->table, &here, bf16, eot, err);
    safetensors_close(&from.file);
    return ok;
}

#endif
