// checkpoint.h: models and training runs on disk.
//
//   model_config_load, model_load  a model in Hugging Face's naming: config.json, *.safetensors
//   model_save, dump_save          one of ours; the reference dump that other frameworks repeat
//   state_save, state_prune        a new checkpoint of a run; what it leaves too many
//   state_find, state_load         the newest whole checkpoint
//   state_newest, state_clean      what is there; what a killed process has left
//   state_model                    a checkpoint's weights as a model
//   state_agree                    have all ranks succeeded?
//   part_whole, part_moved         what is saved and loaded, wherever it lies:
//   part_next, part_copy           which elements there are; from and to a buffer
//
// Nothing that is whole is ever overwritten: a file gets its name once it is complete and flushed.
#ifndef TIDE_CHECKPOINT_H
#define TIDE_CHECKPOINT_H
#include "util.h"
#include "model.h"
#include "json.h"
#include "ranks.h"
#include "safetensors.h"
#include <dirent.h>
#include <inttypes.h>
#include <math.h>

// ---------------------------------------------------------------------------------------------
// 1. Parts
//
// What is saved may lie in several places, some in host memory and some in a GPU's; of several
// ranks, each brings to a file what its spans cover, and loads as much from it. Files and memory
// meet in a buffer of PART_UNIT elements: a second whole copy would not fit beside a model that is
// larger than the GPU.

#ifndef PART_UNIT
#define PART_UNIT ((size_t)1 << 18)
#endif

// Elements [at, at + length) of the arena are at data, in a GPU's memory or the host's.
typedef struct { size_t at, length; float *data; bool gpu; } StateSpan;

typedef struct {
    const char *prefix;      // "param", "m", "v", ..: what it is
    const StateSpan *spans;  // in the arena's order, cut at multiples of ALIGN_ELEMENTS; without
                             // gaps, but for what other ranks have
    int count;               // of spans; 0: there is nothing
    void (*copy)(void *to, const void *from, size_t bytes);  // to or from a GPU, done when it
                             // returns; NULL if no span is on one
    // A part that is stored in another form, or made when it is asked for, has this; its spans have
    // no data. It brings elements [at, at + n) to w as fp32, or with out == false from w, and is
    // done when it returns. They lie within one tensor, with its padding and the gap behind it only
    // when they come from w, as zeros.
    void (*move)(void *owner, size_t at, size_t n, float *w, bool out);
    void *owner;
} StatePart;

// The part whose arena is whole, at data (NULL: nothing), in a GPU's memory if there is a copy.
static StatePart part_whole(const char *prefix, StateSpan *span, const GPT2Table *t, float *data,
                            void (*copy)(void *, const void *, size_t)) {
    const StatePart p = {prefix, span, data != NULL, copy, NULL, NULL};
    span->at = 0;
    span->length = t->elements;
    span->data = data;
    span->gpu = copy != NULL;
    return p;
}

// The part all of which `move` brings.
static StatePart part_moved(const char *prefix, void *owner,
                            void (*move)(void *, size_t, size_t, float *, bool)) {
    static const StateSpan all = {0, SIZE_MAX, NULL, true};
    const StatePart p = {prefix, &all, 1, NULL, move, owner};
    return p;
}

static bool part_is_whole(const StatePart *p, const GPT2Table *t) {
    size_t n = 0;
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++)
        n += min_size(s->length, t->elements - s->at);
    return n == t->elements;
}

// Of elements [*at, end), the first that the part has: how many there are, at most PART_UNIT (0:
// none), from *at, which is moved there.
static size_t part_next(const StatePart *p, size_t *at, size_t end) {
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++) {
        if (s->at + s->length <= *at || s->at >= end) continue;
        if (s->at > *at) *at = s->at;
        return min_size(min_size(s->at + s->length, end) - *at, PART_UNIT);
    }
    return 0;
}

// Copies what the part has of elements [at, at + n) from w, or with `out` to w.
static void part_copy(const StatePart *p, size_t at, size_t n, float *w, bool out) {
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++) {
        const size_t from = s->at > at ? s->at : at, to = min_size(at + n, s->at + s->length);
        if (from >= to) continue;
        float *here = w + (from - at), *there = s->data + (from - s->at);
        const size_t bytes = (to - from) * sizeof(float);
        if (p->move != NULL) p->move(p->owner, from, to - from, here, out);
        else if (s->gpu) p->copy(out ? here : there, out ? there : here, bytes);
        else memcpy(out ? here : there, out ? there : here, bytes);
    }
}

// ---------------------------------------------------------------------------------------------
// 2. Names and layouts
//
// One list serves loading, saving and dumping: number i of the tensors in Hugging Face's naming,
// and where its elements are in our arena. GPT-2 keeps the weights of its linear layers as
// (in, out); OPT has q, k and v apart, and two rows that no position uses in front of the others.

typedef struct {
    char name[96];      // with the prefix under which we write it
    size_t prefix;      // its length
    int tensor;         // index into the table
    int rank;
    size_t rows, cols;  // as stored (rank 1: rows is 1)
    size_t skip;        // leading rows that are only in the file
    size_t first, n;    // the other rows are our elements [first, first + n) of the tensor
    bool transpose;     // ours is (cols, rows)
} HfTensor;

// The prefixes under which the same tensor is found; the first is the one that we write.
static const char *const hf_prefixes[2][5] = {
    {"transformer.", "", NULL, NULL, NULL},
    {"model.decoder.", "decoder.", "model.", "", NULL},
};

// Describes tensor i of the model; returns false if there are only i.
static bool hf_tensor(const GPT2Config *c, const GPT2Table *t, int i, HfTensor *x) {
    static const char *const gpt2_names[12] = {
        "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
        "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"};
    static const char *const opt_names[16] = {
        "self_attn_layer_norm.weight", "self_attn_layer_norm.bias",
        "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
        "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
        "self_attn.out_proj.weight", "self_attn.out_proj.bias",
        "final_layer_norm.weight", "final_layer_norm.bias",
        "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
    const bool opt = c->family == FAMILY_OPT;
    const int per_layer = opt ? 16 : 12, layers = (int)c->layers;
    const int layer = (i - t->first_layer) / per_layer, k = (i - t->first_layer) % per_layer;
    const char *prefix = hf_prefixes[c->family][0];
    int kind = k, part = -1;  // part: 0, 1, 2 for the q, k, v of OPT
    memset(x, 0, sizeof *x);
    if (i < t->first_layer) {
        x->tensor = i;
    } else if (layer < layers) {
        if (opt && k >= 2) {
            kind = k < 5 ? QKV_W : k < 8 ? QKV_B : k - 4;
            part = k < 8 ? (k - 2) % 3 : -1;
        }
        x->tensor = t->first_layer + layer * LAYER_TENSORS + kind;
    } else {
        x->tensor = i - layers * (per_layer - LAYER_TENSORS);
        if (x->tensor >= t->count) return false;
    }
    const GPT2Tensor *p = &t->tensors[x->tensor];
    x->rank = p->rank;
    x->rows = p->rows;
    x->cols = p->cols;
    const char *name = opt ? opt_names[k < 0 ? 0 : k] : gpt2_names[k < 0 ? 0 : k];
    const char *folder = opt ? "layers" : "h";
    if (x->tensor == t->wte) name = opt ? "embed_tokens.weight" : "wte.weight";
    else if (x->tensor == t->wpe) name = opt ? "embed_positions.weight" : "wpe.weight";
    else if (x->tensor == t->ln_f_w) name = opt ? "final_layer_norm.weight" : "ln_f.weight";
    else if (x->tensor == t->ln_f_b) name = opt ? "final_layer_norm.bias" : "ln_f.bias";
    else if (x->tensor == t->lm_head) { name = "lm_head.weight"; prefix = ""; }
    x->prefix = strlen(prefix);
    if (p->kind < 0) snprintf(x->name, sizeof x->name, "%s%s", prefix, name);
    else snprintf(x->name, sizeof x->name, "%s%s.%d.%s", prefix, folder, layer, name);
    if (part >= 0) {
        if (x->rank == 2) x->rows /= 3; else x->cols /= 3;
        x->first = (size_t)part * x->rows * x->cols;
    }
    if (opt && x->tensor == t->wpe) {
        x->skip = 2;
        x->rows += 2;
    }
    x->n = (x->rows - x->skip) * x->cols;
    if (!opt && p->kind >= 0 && p->rank == 2) {
        x->transpose = true;
        x->rows = p->cols;
        x->cols = p->rows;
    }
    return true;
}

// Tensor i of the table in our own layout and naming, as checkpoints store it.
static HfTensor own_tensor(const GPT2Table *t, int i) {
    const GPT2Tensor *p = &t->tensors[i];
    HfTensor x;
    memset(&x, 0, sizeof x);
    x.tensor = i;
    x.rank = p->rank;
    x.rows = p->rows;
    x.cols = p->cols;
    x.n = p->rows * p->cols;
    return x;
}

// The shape of a tensor in a file; returns the rank.
static int hf_shape(const HfTensor *x, size_t shape[2]) {
    shape[0] = x->rank == 2 ? x->rows : x->cols;
    shape[1] = x->cols;
    return x->rank == 2 ? 2 : 1;
}

static bool floats_are_finite(const float *x, size_t n) {
    int bad = 0;
    #pragma omp parallel for if (n > 1 << 16) reduction(| : bad)
    for (size_t i = 0; i < n; i++) bad |= !isfinite(x[i]);
    return !bad;
}

// A transposition goes by tiles of HF_TILE stored rows, which is one cache line of ours.
enum { HF_TILE = 16, HF_CHUNK = 1 << 16 };

// Elements [first, first + n) of ours, in our order, from stored tensor s.
static void hf_read(const HfTensor *x, const SafeTensor *s, size_t first, size_t n, float *w) {
    if (!x->transpose) {
        #pragma omp parallel for if (n > HF_CHUNK)
        for (size_t i = 0; i < n; i += HF_CHUNK)
            safetensor_floats(s, x->skip * x->cols + first + i, min_size(n - i, HF_CHUNK), w + i);
        return;
    }
    const size_t o0 = first / x->rows, width = (first + n - 1) / x->rows + 1 - o0;  // of our rows
    const size_t stride = width + HF_TILE;  // stored rows do not share cache sets
    #pragma omp parallel for if (n > HF_CHUNK)
    for (size_t row = 0; row < x->rows; row += HF_TILE) {
        const size_t last = min_size(row + HF_TILE, x->rows);
        float *tile = ALLOC(float, HF_TILE * stride, "transposition");
        for (size_t i = row; i < last; i++)
            safetensor_floats(s, i * x->cols + o0, width, tile + (i - row) * stride);
        for (size_t o = 0; o < width; o++)
            for (size_t i = row; i < last; i++) {
                const size_t at = (o0 + o) * x->rows + i - first;  // huge if it is before
                if (at < n) w[at] = tile[(i - row) * stride + o];
            }
        free(tile);
    }
}

// Loads what the part has of tensor x, which is stored as s; with its last elements, what follows
// them in the arena becomes zero. False if a number is not finite. w: room for PART_UNIT elements.
static bool part_read(const StatePart *p, const GPT2Table *t, const HfTensor *x,
                      const SafeTensor *s, float *w) {
    const GPT2Tensor *ours = &t->tensors[x->tensor];
    const size_t begin = ours->offset + x->first, last = begin + x->n;
    const bool padded = x->first + x->n == ours->rows * ours->cols;
    const size_t end = padded ? ours->offset + round_up(ours->size, ALIGN_ELEMENTS) : last;
    bool finite = true;
    for (size_t at = begin, n; (n = part_next(p, &at, end)) > 0; at += n) {
        const size_t stored = at < last ? min_size(n, last - at) : 0;
        if (stored > 0) hf_read(x, s, at - begin, stored, w);
        memset(w + stored, 0, (n - stored) * sizeof *w);
        finite = floats_are_finite(w, n) && finite;
        part_copy(p, at, n, w, false);
    }
    safetensor_release(s);
    return finite;
}

// ---------------------------------------------------------------------------------------------
// 3. Reading a model

// What a configuration's sizes are called in config.json, by family, and (last) in state.json.
enum { SIZES = 6 };
static const char *const size_names[3][SIZES] = {
    {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "n_inner"},
    {"num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings",
     "vocab_size", "ffn_dim"},
    {"layers", "heads", "channels", "context", "vocab", "ffn"}};

static size_t *config_size(GPT2Config *c, int i) {
    size_t *const fields[SIZES] = {&c->layers, &c->heads, &c->channels, &c->context, &c->vocab,
                                   &c->ffn};
    return fields[i];
}

static void config_write_sizes(FILE *f, GPT2Config c, int names) {
    for (int i = 0; i < SIZES; i++)
        fprintf(f, "  \"%s\": %zu,\n", size_names[names][i], *config_size(&c, i));
}

// Reads the Hugging Face config.json of a GPT-2 or OPT model into *c, and refuses models that need
// arithmetic which is not in train_gpt2.c: better no result than a slightly wrong one.
static void config_read(const Json *root, const char *path, GPT2Config *c) {
    static const struct { int family; const char *key; JsonType needed; } switches[] = {
        {FAMILY_GPT2, "scale_attn_weights", JSON_TRUE},
        {FAMILY_GPT2, "scale_attn_by_inverse_layer_idx", JSON_FALSE},
        {FAMILY_GPT2, "add_cross_attention", JSON_FALSE},
        {FAMILY_OPT, "do_layer_norm_before", JSON_TRUE},
        {FAMILY_OPT, "enable_bias", JSON_TRUE},
        {FAMILY_OPT, "layer_norm_elementwise_affine", JSON_TRUE},
        {FAMILY_OPT, "_remove_final_layer_norm", JSON_FALSE},
    };
    static const char *const tanh_gelus[] = {  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"};
    Error err;
    memset(c, 0, sizeof *c);
    const Json *type = json_get(root, "model_type");
    const char *name = type != NULL && type->type == JSON_STRING ? type->string : "not there";
    const bool opt = strcmp(name, "opt") == 0;
    if (!opt && strcmp(name, "gpt2") != 0)
        die("%s: model_type is %.100s; only gpt2 and opt are known", path, name);
    c->family = opt ? FAMILY_OPT : FAMILY_GPT2;
    for (int i = 0; i < SIZES; i++) {
        const char *key = size_names[c->family][i];
        const Json *value = json_get(root, key);
        if (i == 5 && (value == NULL || value->type == JSON_NULL)) continue;  // gpt2_finish: 4 C
        if (!json_size(value, config_size(c, i)) || *config_size(c, i) == 0)
            die("%s: %s must be there, and a whole number of at least 1", path, key);
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        const Json *value = json_get(root, switches[i].key);
        if (switches[i].family == c->family && value != NULL && value->type != JSON_NULL
            && value->type != switches[i].needed)
            die("%s: models whose %s is not %s are not supported", path, switches[i].key,
                switches[i].needed == JSON_TRUE ? "true" : "false");
    }
    const Json *eps = json_get(root, "layer_norm_epsilon");
    const Json *projection = json_get(root, "word_embed_proj_dim");
    const Json *tied = json_get(root, "tie_word_embeddings");
    const Json *activation = json_get(root, "activation_function");
    if (eps != NULL && !(eps->number > 0.999e-5 && eps->number < 1.001e-5))
        die("%s: layer_norm_epsilon must be 1e-05", path);
    if (opt && projection != NULL && projection->number != (double)c->channels)
        die("%s: word_embed_proj_dim must be hidden_size (%zu)", path, c->channels);
    if (json_get(root, "quantization_config") != NULL)
        die("%s: quantized models are not supported", path);
    c->tied = tied == NULL || tied->type != JSON_FALSE;
    name = opt ? "relu" : "gelu_new";
    if (activation != NULL) name = activation->type == JSON_STRING ? activation->string : "no name";
    c->activation = strcmp(name, "relu") == 0 ? ACTIVATION_RELU : -1;
    for (size_t i = 0; i < sizeof tanh_gelus / sizeof tanh_gelus[0]; i++)
        if (strcmp(name, tanh_gelus[i]) == 0) c->activation = ACTIVATION_GELU;
    if (c->activation < 0)
        die("%s: activation_function is %.100s; only relu and the tanh form of GELU (gelu_new) "
            "are supported", path, name);
    if (!gpt2_finish(c, &err)) die("%s: %s", path, err.text);
}

// Splits what the user named: a directory, or a .safetensors file (*file is its name, else NULL).
static void model_path(const char *path, char dir[PATH_MAX], const char **file) {
    const char *slash = strrchr(path, '/');
    const size_t n = strlen(path);
    *file = NULL;
    if (snprintf(dir, PATH_MAX, "%s", path) >= PATH_MAX) die("%s: path too long", path);
    if (path_is_directory(path)) return;
    if (!path_exists(path)) die("%s: %s", path, strerror(errno));
    if (n < 12 || strcmp(path + n - 12, ".safetensors") != 0)
        die("%s is neither a directory nor a .safetensors file", path);
    *file = slash == NULL ? path : slash + 1;
    if (slash == NULL) snprintf(dir, PATH_MAX, ".");
    else dir[slash == path ? 1 : slash - path] = '\0';
}

// Configuration of the model at `path`: a directory with config.json, or a .safetensors file with
// config.json beside it.
static void model_config_load(const char *path, GPT2Config *c) {
    char dir[PATH_MAX], name[PATH_MAX];
    const char *file;
    Error err;
    model_path(path, dir, &file);
    path_join(name, dir, "config.json");
    Json *root = json_read(name, &err);
    if (root == NULL) die("%s", err.text);
    config_read(root, name, c);
    json_free(root);
}

// The files that hold one model's tensors.
typedef struct {
    int count;
    SafeTensors *files;
    const char **names;
    Json *index;
} ModelFiles;

// Opens file `name` of `dir` unless it is open already. Returns it.
static SafeTensors *model_files_add(ModelFiles *m, const char *dir, const char *name) {
    char path[PATH_MAX];
    Error err;
    int i = 0;
    while (i < m->count && strcmp(m->names[i], name) != 0) i++;
    if (i < m->count) return &m->files[i];
    path_join(path, dir, name);
    if (!safetensors_open(&m->files[i], path, &err)) die("%s", err.text);
    m->names[m->count++] = name;
    return &m->files[i];
}

// Opens model.safetensors, or else every file that model.safetensors.index.json names in its
// weight_map (tensor -> file), or the one file that the user named.
static void model_files_open(ModelFiles *m, const char *model) {
    char dir[PATH_MAX], path[PATH_MAX];
    const char *file;
    Error err;
    memset(m, 0, sizeof *m);
    model_path(model, dir, &file);
    path_join(path, dir, "model.safetensors");
    if (file == NULL && path_exists(path)) file = "model.safetensors";
    path_join(path, dir, "model.safetensors.index.json");
    if (file == NULL && !path_exists(path))
        die("%s has neither model.safetensors nor model.safetensors.index.json", dir);
    if (file == NULL && (m->index = json_read(path, &err)) == NULL) die("%s", err.text);
    const Json *map = json_get(m->index, "weight_map"), *entry = map != NULL ? map->child : NULL;
    if (file == NULL && entry == NULL) die("%s: there is no weight_map", path);
    m->files = ALLOC(SafeTensors, map != NULL ? map->count : 1, "list of files");
    m->names = ALLOC(const char *, map != NULL ? map->count : 1, "list of files");
    if (file != NULL) model_files_add(m, dir, file);
    for (; entry != NULL; entry = entry->next) {
        const char *name = entry->type == JSON_STRING ? entry->string : "/";
        if (strchr(name, '/') != NULL)
            die("%s: it names the impossible file %.100s", path, name);
        if (safetensors_find(model_files_add(m, dir, name), entry->key) == NULL)
            die("%s: %.100s is not in %.100s", path, entry->key, name);
    }
}

// Finds tensor x, once, in the right shape, and marks it as seen.
static const SafeTensor *model_files_find(const ModelFiles *m, const char *model, int family,
                                          const HfTensor *x) {
    SafeTensor *found = NULL, *next;
    char name[128], there[200] = "missing", here[200];
    size_t shape[2];
    for (const char *const *prefix = hf_prefixes[family]; *prefix != NULL; prefix++) {
        snprintf(name, sizeof name, "%s%s", x->prefix > 0 ? *prefix : "", x->name + x->prefix);
        for (int i = 0; i < m->count; i++) {
            if ((next = safetensors_find(&m->files[i], name)) == NULL) continue;
            if (found != NULL) die("%s: tensor %s is there more than once", model, x->name);
            found = next;
        }
        if (x->prefix == 0) break;
    }
    shape_text(here, hf_shape(x, shape), shape);
    if (found != NULL) shape_text(there, found->rank, found->shape);
    if (strcmp(here, there) != 0)
        die("%s: tensor %s is %s, the model needs %s", model, x->name, there, here);
    if (found->dtype > ST_F64)
        die("%s: tensor %s is not stored as F32, F16, BF16 or F64", model, x->name);
    found->seen = true;
    return found;
}

// What may be in a file without being used: GPT-2's causal masks, and a head that is wte.
static bool hf_ignored(int family, const char *name) {
    const char *end = strstr(name, ".attn.");
    if (strcmp(name, "lm_head.weight") == 0) return true;
    return family == FAMILY_GPT2 && end != NULL
        && (strcmp(end, ".attn.bias") == 0 || strcmp(end, ".attn.masked_bias") == 0);
}

// Fills a part with the model at `path`, which is as for model_config_load(); padding becomes zero.
// Stored as fp32, fp16, bf16 or fp64, with or without the prefixes that Hugging Face's classes put
// before the names, in one file or several. Refuses, naming the tensor: one that is missing, is
// there twice, has an odd shape, would not be used, or has numbers that are not finite.
static void model_load(const char *path, const GPT2Config *c, const GPT2Table *t,
                       const StatePart *part) {
    ModelFiles m;
    HfTensor x;
    model_files_open(&m, path);
    const SafeTensor **found =  // no tensor of ours is stored as more than three
        ALLOC(const SafeTensor *, 3 * (size_t)t->count, "list of tensors");
    for (int i = 0; hf_tensor(c, t, i, &x); i++)
        found[i] = model_files_find(&m, path, c->family, &x);
    for (int f = 0; f < m.count; f++)
        for (int i = 0; i < m.files[f].count; i++) {
            const SafeTensor *s = &m.files[f].tensors[i];
            if (!s->seen && !hf_ignored(c->family, s->name))
                die("%s: tensor %.100s is unknown to a %s model with %s head", path, s->name,
                    c->family == FAMILY_OPT ? "opt" : "gpt2", c->tied ? "a tied" : "an untied");
        }
    float *w = ALLOC(float, PART_UNIT, "a copy of weights");
    for (int i = 0; hf_tensor(c, t, i, &x); i++)
        if (!part_read(part, t, &x, found[i], w))
            die("%s: tensor %s has a NaN or an infinity: the file is damaged, or too large for "
                "fp32", path, x.name);
    for (int i = 0; i < m.count; i++) safetensors_close(&m.files[i]);
    json_free(m.index);
    free(m.files);
    free(m.names);
    free(found);
    free(w);
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

static void hf_write_floats(SafeWriter *out, const float *w, size_t n, bool bf16) {
    uint16_t half[4096];
    if (!bf16) safewriter_write(out, w, n * sizeof *w);
    else
        for (size_t i = 0, m; i < n; i += m) {
            m = min_size(n - i, 4096);
            for (size_t j = 0; j < m; j++) half[j] = f32_to_bf16(w[i + j]);
            safewriter_write(out, half, m * sizeof *half);
        }
}

// Writes tensor x of a part in the stored layout.
static void hf_write(SafeWriter *out, const HfTensor *x, const StatePart *p, const GPT2Table *t,
                     bool bf16) {
    const size_t at = t->tensors[x->tensor].offset + x->first, cols = x->cols;
    const size_t some = x->transpose ? (size_t)HF_TILE : PART_UNIT / cols + 2;  // rows at a time
    float *ours = NULL, *w = ALLOC(float, some * cols, "a copy of weights");
    if (x->transpose) {
        ours = ALLOC(float, x->n, "a matrix to be transposed");
        part_copy(p, at, x->n, ours, true);
    }
    hf_write_floats(out, w, x->skip * cols, bf16);  // zeros
    for (size_t row = 0, rows; row < x->n / cols; row += rows) {
        rows = min_size(some, x->n / cols - row);
        if (!x->transpose) part_copy(p, at + row * cols, rows * cols, w, true);
        for (size_t o = 0; x->transpose && o < cols; o++)
            for (size_t i = 0; i < rows; i++) w[i * cols + o] = ours[o * x->rows + row + i];
        hf_write_floats(out, w, rows * cols, bf16);
    }
    free(ours);
    free(w);
}

// Declares all of the model's tensors, each name after `prefix`, or writes them.
static void hf_add_all(SafeWriter *out, const GPT2Config *c, const GPT2Table *t,
                       const char *prefix, bool bf16) {
    HfTensor x;
    char name[128];
    size_t shape[2];
    for (int i = 0; hf_tensor(c, t, i, &x); i++) {
        snprintf(name, sizeof name, "%s%s", prefix, x.name);
        safewriter_add(out, name, bf16 ? ST_BF16 : ST_F32, hf_shape(&x, shape), shape);
    }
}

static void hf_write_all(SafeWriter *out, const GPT2Config *c, const GPT2Table *t,
                         const StatePart *part, bool bf16) {
    HfTensor x;
    for (int i = 0; !out->failed && hf_tensor(c, t, i, &x); i++) hf_write(out, &x, part, t, bf16);
}

// Writes config.json. eot: the token that ends a text, or -1. Dropout is 0: that is how the model
// was trained. OPT gets no padding token, since PyTorch would freeze its row.
static void config_write(FILE *f, const GPT2Config *c, bool bf16, int eot) {
    char token[16] = "null";
    if (eot >= 0) snprintf(token, sizeof token, "%d", eot);
    fprintf(f, "{\n");
    config_write_sizes(f, *c, c->family);
    if (c->family == FAMILY_OPT)
        fprintf(f, "  \"architectures\": [\"OPTForCausalLM\"],\n  \"model_type\": \"opt\",\n"
                "  \"word_embed_proj_dim\": %zu,\n  \"do_layer_norm_before\": true,\n"
                "  \"enable_bias\": true,\n  \"layer_norm_elementwise_affine\": true,\n"
                "  \"dropout\": 0.0,\n  \"attention_dropout\": 0.0,\n  \"layerdrop\": 0.0,\n"
                "  \"init_std\": 0.02,\n  \"pad_token_id\": null,\n", c->channels);
    else
        fprintf(f, "  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
                "  \"n_ctx\": %zu,\n  \"layer_norm_epsilon\": 1e-05,\n"
                "  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n"
                "  \"scale_attn_weights\": true,\n  \"initializer_range\": 0.02,\n", c->context);
    fprintf(f, "  \"activation_function\": \"%s\",\n  \"tie_word_embeddings\": %s,\n"
            "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n  \"torch_dtype\": \"%s\"\n}\n",
            c->activation == ACTIVATION_RELU ? "relu" : "gelu_new", c->tied ? "true" : "false",
            token, token, bf16 ? "bfloat16" : "float32");
}

// Writes dir/model.safetensors and dir/config.json so that Hugging Face's
// AutoModelForCausalLM.from_pretrained(dir) loads them: fp32, or bf16 rounded to nearest even.
// Makes dir if it must. On failure what was there before is still there.
static bool model_save(const char *dir, const GPT2Config *c, const GPT2Table *t,
                       const StatePart *part, bool bf16, int eot, Error *err) {
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
    hf_add_all(&out, c, t, "", bf16);
    if (safewriter_open(&out, weights)) hf_write_all(&out, c, t, part, bf16);
    if (safewriter_close(&out, err))
        return replace_close(f, config, err) && directory_sync(dir, err);
    replace_discard(f, config);
    return false;
}

// Writes a reference dump: one forward and backward pass that any framework can repeat. tokens and
// targets (B, T), the loss, logits (B*T, Vp) of which the first V columns are written, and the
// gradient of every parameter (an arena) as grad.NAME in Hugging Face's naming and layout.
static bool dump_save(const char *path, const GPT2Config *c, const GPT2Table *t, size_t B,
                      size_t T, const int32_t *tokens, const int32_t *targets, double loss,
                      const float *logits, const float *grads, Error *err) {
    const size_t shape[3] = {B, T, c->vocab}, one = 1;
    const float loss32 = (float)loss;
    StateSpan span;
    const StatePart part = part_whole("grad", &span, t, (float *)grads, NULL);  // only read
    SafeWriter out;
    memset(&out, 0, sizeof out);
    safewriter_add(&out, "tokens", ST_I32, 2, shape);
    safewriter_add(&out, "targets", ST_I32, 2, shape);
    safewriter_add(&out, "loss", ST_F32, 1, &one);
    safewriter_add(&out, "logits", ST_F32, 3, shape);
    hf_add_all(&out, c, t, "grad.", false);
    safewriter_open(&out, path);
    safewriter_write(&out, tokens, B * T * sizeof(int32_t));
    safewriter_write(&out, targets, B * T * sizeof(int32_t));
    safewriter_write(&out, &loss32, sizeof loss32);
    for (size_t i = 0; i < B * T; i++)
        safewriter_write(&out, logits + i * c->vocab_padded, c->vocab * sizeof(float));
    hf_write_all(&out, c, t, &part, false);
    return safewriter_close(&out, err);
}

// ---------------------------------------------------------------------------------------------
// 5. Training state
//
// OUT/checkpoints/step_N/ holds state.safetensors (PART.NAME for every part, such as param, m and
// v, and every tensor in our naming and layout, without padding) and state.json (everything else,
// hashes of the first, and one of itself). Written as OUT/checkpoints/tmp_N and renamed.
//
// Several ranks save together, each what it has, into the file that one process would write. Rank 0
// makes the file, and names it when all have flushed; what fails on one rank fails on all.
// Functions that say so must be called by all ranks, at the same point.

typedef struct {
    uint64_t version;        // STATE_VERSION
    size_t step;             // steps done
    uint64_t seed;
    uint64_t data_position;  // the next sequence's
    uint64_t data_hash;      // of the training data, as the trainer defines it
    GPT2Config config;
    char options[4096];      // the run's options: the text of a JSON object
    char *more;              // the optimizer's own: the text of a JSON object, or NULL; malloc'ed
    char *hashes;            // of the header and of each tensor, 16 digits each; malloc'ed
    uint64_t seal;           // the hash of state.json
} TrainState;

enum { STATE_VERSION = 3, STATE_SEAL = 29 };  // a seal is ,\n"seal":"16 digits"}\n

// The numbers in state.json.
#define STATE_FIELD(name, field) \
    {name, offsetof(TrainState, field), sizeof ((TrainState *)0)->field}
static const struct { const char *name; size_t at, size; } state_fields[] = {
    STATE_FIELD("version", version), STATE_FIELD("step", step), STATE_FIELD("seed", seed),
    STATE_FIELD("data_position", data_position), STATE_FIELD("data_hash", data_hash),
    STATE_FIELD("layers", config.layers), STATE_FIELD("heads", config.heads),
    STATE_FIELD("channels", config.channels), STATE_FIELD("context", config.context),
    STATE_FIELD("vocab", config.vocab), STATE_FIELD("ffn", config.ffn),
    STATE_FIELD("family", config.family), STATE_FIELD("activation", config.activation),
    STATE_FIELD("tied", config.tied)};
enum { STATE_FIELDS = sizeof state_fields / sizeof state_fields[0] };

static void train_state_free(TrainState *s) {
    free(s->more);
    free(s->hashes);
    s->more = s->hashes = NULL;
}

// Removes a directory and the files in it; what cannot be removed is said on stderr and stays.
static void directory_remove(const char *path) {
    char name[PATH_MAX];
    DIR *d = opendir(path);
    if (d != NULL) {
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            path_join(name, path, e->d_name);
            unlink(name);
        }
        closedir(d);
    }
    if (rmdir(path) != 0 && errno != ENOENT && errno != ENOTDIR)
        fprintf(stderr, "tide: cannot remove %s: %s\n", path, strerror(errno));
}

// A checkpoint's directory, of OUT/checkpoints.
static void state_path(char path[PATH_MAX], const char *all, size_t step) {
    char name[32];
    snprintf(name, sizeof name, "step_%08zu", step);
    path_join(path, all, name);
}

// The newest checkpoint of a step before `before` in OUT/checkpoints, or 0.
static size_t state_newest(const char *out, size_t before) {
    char all[PATH_MAX], end;
    size_t newest = 0, step;
    path_join(all, out, "checkpoints");
    DIR *d = opendir(all);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (sscanf(e->d_name, "step_%zu%c", &step, &end) == 1 && step > newest && step < before)
            newest = step;
    if (d != NULL) closedir(d);
    return newest;
}

// Removes the checkpoint that a killed process was writing.
static void state_clean(const char *out) {
    char all[PATH_MAX], path[PATH_MAX];
    path_join(all, out, "checkpoints");
    DIR *d = opendir(all);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "tmp", 3) != 0) continue;
        path_join(path, all, e->d_name);
        directory_remove(path);
    }
    if (d != NULL) closedir(d);
}

// Have all ranks succeeded? If not, err says on each of them what the first one that failed says.
// All ranks call it.
static bool state_agree(bool ok, Error *err) {
    typedef struct { bool ok; Error err; } Answer;
    if (ranks.world == 1) return ok;
    Answer *all = ALLOC(Answer, (size_t)ranks.world + 1, "answers");
    Answer *mine = &all[ranks.world];
    int failed = 0, first = 0;
    mine->ok = ok;
    if (!ok) mine->err = *err;
    ranks_exchange(mine, sizeof *mine, all);
    for (int i = 0; i < ranks.world; i++)
        if (!all[i].ok && failed++ == 0) first = i;
    if (failed == ranks.world) *err = all[0].err;  // no matter of one rank
    else if (failed > 0) error_set(err, "%.480s (rank %d)", all[first].err.text, first);
    free(all);
    return failed == 0;
}

// ---------------------------------------------------------------------------------------------
// 6. Saving it

typedef struct {
    const char *out;         // what is to be saved, where: OUT/checkpoints/step_N
    const GPT2Config *config;
    const GPT2Table *table;
    const StatePart *parts;  // in this order; the first are the parameters
    int count;
    int keep;                // then all but so many checkpoints up to this step go; 0: none
    TrainState state;
} StateSave;

// The text of state.json, of *n bytes; free() it.
static char *state_describe(const StateSave *x, const SafeWriter *file, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    TrainState s = x->state;
    if (f == NULL) fail("out of memory: state.json");
    s.version = STATE_VERSION;
    s.config = *x->config;
    fputc('{', f);
    for (int i = 0; i < STATE_FIELDS; i++) {
        uint64_t value = 0;
        memcpy(&value, (const char *)&s + state_fields[i].at, state_fields[i].size);
        fprintf(f, "\"%s\":%" PRIu64 ",\n", state_fields[i].name, value);
    }
    fprintf(f, "\"hashes\":\"");
    for (int i = 0; i <= file->count; i++) fprintf(f, "%016" PRIx64, file->sums[1 + i]);
    fprintf(f, "\",\n\"more\":%s,\n\"options\":%s", s.more != NULL ? s.more : "null", s.options);
    fflush(f);
    fprintf(f, ",\n\"seal\":\"%016" PRIx64 "\"}\n", hash_bytes(text, *n));
    if (fclose(f) != 0) fail("out of memory: state.json");
    return text;
}

// Adds up what all ranks have written.
static void state_gather(SafeWriter *w) {
    const size_t n = (size_t)w->count + 2, world = (size_t)ranks.world;
    uint64_t *all = ALLOC(uint64_t, world * n, "hashes");
    ranks_exchange(w->sums, n * sizeof *all, all);
    memset(w->sums, 0, n * sizeof *all);
    for (size_t i = 0; i < world * n; i++) w->sums[i % n] += all[i];
    free(all);
}

// Writes everything that this rank has.
static void state_put_all(const StateSave *x, SafeWriter *file) {
    float *w = ALLOC(float, PART_UNIT, "checkpoint");
    for (int k = 0; k < x->count; k++)
        for (int i = 0; i < x->table->count && !file->failed; i++) {
            const GPT2Tensor *y = &x->table->tensors[i];
            const size_t end = y->offset + y->rows * y->cols;
            for (size_t at = y->offset, n; (n = part_next(&x->parts[k], &at, end)) > 0; at += n) {
                part_copy(&x->parts[k], at, n, w, true);
                safewriter_put(file, k * x->table->count + i, (at - y->offset) * sizeof *w, w,
                               n * sizeof *w);
            }
        }
    free(w);
}

// Completes and names it, or removes what there is; on rank 0.
static bool state_commit(const StateSave *x, SafeWriter *file, const char *all, const char *made,
                         Error *err) {
    char path[PATH_MAX], final[PATH_MAX];
    size_t n = 0;
    FILE *f = NULL;
    char *text = state_describe(x, file, &n);
    path_join(path, made, "state.json");
    state_path(final, all, x->state.step);
    bool ok = safewriter_close(file, err) && (f = replace_open(path, err)) != NULL;
    if (ok) fwrite(text, 1, n, f);
    ok = ok && replace_close(f, path, err) && directory_sync(made, err);
    free(text);
    if (ok && path_exists(final)) directory_remove(final);  // it is damaged: the run began before
    if (ok && rename(made, final) != 0)
        ok = error_set(err, "cannot rename %s: %s", made, strerror(errno));
    if (!ok) directory_remove(made);
    return ok && directory_sync(all, err);
}

// Removes the checkpoints that a new one leaves too many; on rank 0.
static void state_prune(const StateSave *x) {
    char all[PATH_MAX], path[PATH_MAX];
    int kept = 0;
    if (ranks.rank > 0 || x->keep <= 0) return;
    path_join(all, x->out, "checkpoints");
    for (size_t step = x->state.step + 1; (step = state_newest(x->out, step)) > 0;) {
        state_path(path, all, step);
        if (kept++ >= x->keep) directory_remove(path);
    }
}

// Saves a checkpoint. On failure, and if the process dies at any point, the checkpoints that were
// there are still there. All ranks call it.
static bool state_save(const StateSave *x, Error *err) {
    char all[PATH_MAX], made[PATH_MAX], path[PATH_MAX], name[128];
    const bool first = ranks.rank == 0;
    size_t shape[2] = {0, 0};
    SafeWriter file;
    memset(&file, 0, sizeof file);
    file.writer = ranks.rank;
    path_join(all, x->out, "checkpoints");
    snprintf(name, sizeof name, "tmp_%08zu", x->state.step);  // (an NFS client remembers names)
    path_join(made, all, name);
    path_join(path, made, "state.safetensors");
    if (first) state_clean(x->out);
    bool ok = !first || (make_directories(all) && mkdir(made, 0777) == 0)
        || error_set(err, "cannot make %s: %s", made, strerror(errno));
    if (!state_agree(ok, err)) return false;
    for (int k = 0; k < x->count; k++)
        for (int i = 0; i < x->table->count; i++) {
            const HfTensor y = own_tensor(x->table, i);
            snprintf(name, sizeof name, "%s.%s", x->parts[k].prefix, x->table->tensors[i].name);
            safewriter_add(&file, name, ST_F32, hf_shape(&y, shape), shape);
        }
    if (first) safewriter_open(&file, path);
    ranks_barrier();
    if (!first) safewriter_open(&file, path);
    state_put_all(x, &file);
    ok = safewriter_flush(&file);
    if (!ok) *err = file.err;
    if (state_agree(ok, err)) {
        state_gather(&file);
    } else {
        file.failed = true;
        file.err = *err;
    }
    ok = first ? state_commit(x, &file, all, made, err) : safewriter_close(&file, err);
    if (!state_agree(ok, err)) return false;
    state_prune(x);
    return true;
}

// ---------------------------------------------------------------------------------------------
// 7. Loading it

// Reads state.json's text into *s, to be freed.
static bool state_parse(const char *text, size_t n, TrainState *s, Error *err) {
    char seal[STATE_SEAL + 1] = "";
    memset(s, 0, sizeof *s);
    s->seal = hash_bytes(text, n < STATE_SEAL ? n : n - STATE_SEAL);
    snprintf(seal, sizeof seal, ",\n\"seal\":\"%016" PRIx64 "\"}\n", s->seal);
    if (n < STATE_SEAL || memcmp(text + n - STATE_SEAL, seal, STATE_SEAL) != 0)
        return error_set(err, "state.json is not what was written");
    Json *root = json_parse(text, n, err);
    if (root == NULL) return false;
    const Json *options = json_get(root, "options"), *more = json_get(root, "more");
    const Json *hashes = json_get(root, "hashes");
    bool ok = options != NULL && options->type == JSON_OBJECT && options->length < sizeof s->options
        && more != NULL && hashes != NULL && hashes->type == JSON_STRING;
    for (int i = 0; i < STATE_FIELDS; i++) {
        const Json *number = json_get(root, state_fields[i].name);
        uint64_t value = 0;
        if (number != NULL && number->type == JSON_NUMBER)
            value = strtoull(number->string, NULL, 10);
        else ok = false;
        memcpy((char *)s + state_fields[i].at, &value, state_fields[i].size);
    }
    const GPT2Config *c = &s->config;
    ok = ok && (unsigned)c->family <= FAMILY_OPT && (unsigned)c->activation <= ACTIVATION_RELU
        && (unsigned)c->tied <= 1;
    if (ok && s->version == STATE_VERSION) {
        memcpy(s->options, options->string, options->length);
        s->hashes = strdup(hashes->string);
        if (more->type == JSON_OBJECT) s->more = strndup(more->string, more->length);
    }
    json_free(root);
    if (s->version != STATE_VERSION)
        ok = error_set(err, "state.json is of another version; this program reads %d",
                       STATE_VERSION);
    else if (!ok) error_set(err, "state.json lacks a field");
    else ok = gpt2_finish(&s->config, err);
    if (!ok) train_state_free(s);
    return ok;
}

static bool state_read(const char *dir, TrainState *s, Error *err) {
    char path[PATH_MAX];
    size_t n = 0;
    path_join(path, dir, "state.json");
    char *text = file_read(path, &n, err);
    const bool ok = text != NULL && state_parse(text, n, s, err);
    free(text);
    return ok;
}

// Is tensor i of a state file, or with -1 its header, what was written?
static bool state_intact(const SafeTensors *st, int i, const TrainState *s, Error *err) {
    enum { CHUNK = 1 << 12 };
    const unsigned char *start = (const unsigned char *)st->map;
    const unsigned char *data = i < 0 ? start : st->tensors[i].data;
    const size_t bytes = i >= 0 ? st->tensors[i].bytes
                       : st->count > 0 ? (size_t)(st->tensors[0].data - start) : st->map_bytes;
    uint64_t sum = 0;
    char digits[17];
    #pragma omp parallel for reduction(+ : sum) if (bytes > 1 << 20)
    for (size_t at = 0; at < bytes; at += CHUNK)
        sum += hash_words((uint64_t)(data - start) + at, data + at, min_size(CHUNK, bytes - at));
    snprintf(digits, sizeof digits, "%016" PRIx64, sum);
    return (strlen(s->hashes) == 16 * ((size_t)st->count + 1)
            && memcmp(digits, s->hashes + 16 * (i + 1), 16) == 0)
        || error_set(err, "%.100s in state.safetensors is not what was written",
                     i < 0 ? "the header" : st->tensors[i].name);
}

// Opens a checkpoint's state.safetensors, and checks its header.
static bool state_open(const char *dir, const TrainState *s, SafeTensors *st, Error *err) {
    char path[PATH_MAX];
    path_join(path, dir, "state.safetensors");
    if (!safetensors_open(st, path, err)) return false;
    if (state_intact(st, -1, s, err)) return true;
    safetensors_close(st);
    return false;
}

// Reads one checkpoint, but for its tensors, of which only the size is checked. Those of a state
// with more in it are checked here: that sets up the trainer before they are loaded. On failure *s
// holds nothing.
static bool state_check(const char *dir, TrainState *s, Error *err) {
    SafeTensors st;
    if (!state_read(dir, s, err)) return false;
    bool ok = state_open(dir, s, &st, err);
    const bool opened = ok;
    for (int i = 0; ok && s->more != NULL && i < st.count; i++) ok = state_intact(&st, i, s, err);
    if (opened) safetensors_close(&st);
    else train_state_free(s);
    return ok;
}

static bool state_find_here(const char *out, size_t before, TrainState *s, char dir[PATH_MAX],
                            Error *err) {
    char all[PATH_MAX];
    Error why;
    path_join(all, out, "checkpoints");
    const bool any = state_newest(out, before) > 0;
    for (size_t step = before; (step = state_newest(out, step)) > 0;) {
        state_path(dir, all, step);
        if (state_check(dir, s, &why)) return true;
        fprintf(stderr, "tide: checkpoint %s is damaged (%s)%s\n", dir, why.text,
                state_newest(out, step) > 0 ? "; trying the one before" : "");
    }
    return error_set(err, any ? "no checkpoint in %s is whole" : "there is no checkpoint in %s",
                     all);
}

// Finds the newest checkpoint, of a step before `before`, of the run in `out`, reads its *s, to be
// freed, and puts its path into dir. Torn and truncated ones are named on stderr and passed over.
// Returns false if none is left. Rank 0 decides for all ranks, which must all call it.
static bool state_find(const char *out, size_t before, TrainState *s, char dir[PATH_MAX],
                       Error *err) {
    const bool first = ranks.rank == 0;
    memset(s, 0, sizeof *s);
    bool ok = !first || state_find_here(out, before, s, dir, err);
    if (ranks.world == 1) return ok;
    if (!state_agree(ok, err)) return false;
    uint64_t seal = s->seal;
    ranks_broadcast(dir, PATH_MAX);
    ranks_broadcast(&seal, sizeof seal);
    ok = ((first || state_read(dir, s, err)) && s->seal == seal)
        || error_set(err, "%.300s, which rank 0 has found, is not there, or another: --out must "
                     "be in a file system that all ranks share", dir);
    if (state_agree(ok, err)) return true;
    train_state_free(s);
    return false;
}

// Fills the parts' arenas from the checkpoint *s, which state_find() has found in dir; padding
// becomes zero. It must hold these parts. Others, and parts with nothing in them, are not loaded.
// The hash of each tensor is checked by one of the ranks, in the pass that loads it. All ranks call
// it.
static bool state_load(const char *dir, const TrainState *s, const GPT2Table *t,
                       const StatePart *parts, int count, Error *err) {
    SafeTensors st;
    bool ok = state_open(dir, s, &st, err);
    const bool opened = ok;
    float *w = ALLOC(float, PART_UNIT, "a copy of a checkpoint");
    for (int k = 0; ok && k < count; k++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", parts[k].prefix, t->tensors[0].name);
        const SafeTensor *first = safetensors_find(&st, name);
        if (first == NULL) ok = error_set(err, "tensor %s is missing", name);
        for (int i = 0; ok && parts[k].count > 0 && i < t->count; i++) {
            const HfTensor x = own_tensor(t, i);
            const int number = (int)(first + i - st.tensors);
            if (number >= st.count || first[i].bytes != x.n * sizeof(float))
                ok = error_set(err, "tensor %s is of a model of another shape", first->name);
            else if (number % ranks.world == ranks.rank) ok = state_intact(&st, number, s, err);
            if (ok) part_read(&parts[k], t, &x, &first[i], w);
        }
    }
    free(w);
    if (opened) safetensors_close(&st);
    return state_agree(ok, err);
}

// model.safetensors and config.json of a checkpoint, x->state.step's; on rank 0.
static bool state_model(const StateSave *x, bool bf16, int eot, Error *err) {
    char all[PATH_MAX], dir[PATH_MAX], path[PATH_MAX];
    SafeTensors st;
    const int n = x->table->count;
    path_join(all, x->out, "checkpoints");
    state_path(dir, all, x->state.step);
    path_join(path, dir, "state.safetensors");
    if (!safetensors_open(&st, path, err)) return false;
    StateSpan *spans = ALLOC(StateSpan, (size_t)n, "list of tensors");
    for (int i = 0; i < n; i++) {  // without what lies between tensors, which is not read
        spans[i].at = x->table->tensors[i].offset;
        spans[i].length = x->table->tensors[i].size;
        spans[i].data = (float *)st.tensors[i].data;
    }
    const StatePart part = {"param", spans, n, NULL, NULL, NULL};
    const bool ok = model_save(x->out, x->config, x->table, &part, bf16, eot, err);
    free(spans);
    safetensors_close(&st);
    return ok;
}

#endif
