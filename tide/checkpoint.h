// checkpoint.h: models and training runs on disk.
//
//   1. Arenas: what is saved and loaded, wherever it lies
//   2. What Hugging Face calls our tensors, and how it lays them out
//   3. Reading a model: config.json and *.safetensors
//   4. Writing a model, and the reference dump that other frameworks compare with
//   5. Training state: find the newest whole one, load (saver.h saves it)
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

// ---------------------------------------------------------------------------------------------
// 1. Arenas
//
// An arena may lie in several places, some in host memory and some in a GPU's. Where a tensor is
// not in one piece of host memory it goes through a buffer, alone: a second whole copy would not
// fit beside a model that is larger than the GPU.
//
// Of several ranks, each brings to a file what its spans cover, and loads as much from it.

// Elements [at, at + length) of the arena are at data, in a GPU's memory or the host's.
typedef struct { size_t at, length; float *data; bool gpu; } StateSpan;

typedef struct {
    const char *prefix;      // "param", "m", "v", ..: what it is
    const StateSpan *spans;  // in the arena's order, cut at multiples of ALIGN_ELEMENTS; without
    int count;               // gaps, but for what other ranks have; and how many. 0: nothing
    void (*copy)(void *to, const void *from, size_t bytes);  // to or from a GPU, done when it
                             // returns; NULL if no span is on one
    // A part that is stored in another form, or made when it is asked for, has this. Its spans have
    // no data, and gpu is true: they only say what there is. It brings elements [at, at + n) to w
    // as fp32, or with out == false from w, and is done when it returns. They lie within one
    // tensor, with its padding and the gap behind it only when they come from w, as zeros. Calls
    // are in the arena's order, and bring each element once.
    void (*move)(void *owner, size_t at, size_t n, float *w, bool out);
    void *owner;
} StatePart;

// The part whose arena is whole, at data (NULL: nothing), in a GPU's memory if there is a copy.
static inline StatePart part_whole(const char *prefix, StateSpan *span, const GPT2Table *t,
                                   float *data, void (*copy)(void *, const void *, size_t)) {
    const StatePart p = {prefix, span, data != NULL, copy, NULL, NULL};
    span->at = 0;
    span->length = t->elements;
    span->data = data;
    span->gpu = copy != NULL;
    return p;
}

// The part all of which `move` brings.
static inline StatePart part_moved(const char *prefix, void *owner,
                                   void (*move)(void *, size_t, size_t, float *, bool)) {
    static const StateSpan all = {0, SIZE_MAX, NULL, true};
    const StatePart p = {prefix, &all, 1, NULL, move, owner};
    return p;
}

// Is there anything in a part, anything of [at, at + n), everything?
static inline bool part_exists(const StatePart *p) { return p->count > 0; }
static inline bool part_has(const StatePart *p, size_t at, size_t n) {
    bool any = false;
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++)
        any = any || (s->at < at + n && at < s->at + s->length);
    return any;
}
static inline bool part_is_whole(const StatePart *p, const GPT2Table *t) {
    size_t n = 0;
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++)
        n += min_size(s->length, t->elements - s->at);
    return n == t->elements;
}

// The shape of a tensor in a file; returns the rank.
static inline int tensor_shape(int rank, size_t rows, size_t cols, size_t shape[2]) {
    shape[0] = rank == 2 ? rows : cols;
    shape[1] = cols;
    return rank == 2 ? 2 : 1;
}

// Where the CPU reaches elements [at, at + n) in one piece, or NULL.
static inline float *part_place(const StatePart *p, size_t at, size_t n) {
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++)
        if (!s->gpu && s->at <= at && at + n <= s->at + s->length) return s->data + (at - s->at);
    return NULL;
}

// Copies elements [at, at + n) from w, or with `out` to w.
static inline void part_copy(const StatePart *p, size_t at, size_t n, float *w, bool out) {
    for (const StateSpan *s = p->spans; s < p->spans + p->count; s++) {
        const size_t from = s->at > at ? s->at : at, to = min_size(at + n, s->at + s->length);
        if (from >= to) continue;
        float *here = w + (from - at);
        if (p->move != NULL) {
            p->move(p->owner, from, to - from, here, out);
            continue;
        }
        float *there = s->data + (from - s->at);
        if (s->gpu) p->copy(out ? here : there, out ? there : here, (to - from) * sizeof(float));
        else memcpy(out ? here : there, out ? there : here, (to - from) * sizeof(float));
    }
}

// Elements that are stored with [first, first + n) of tensor x: with its last ones also the padded
// rows and the gap before the next tensor.
static inline size_t part_extent(const GPT2Tensor *x, size_t first, size_t n) {
    return first + n == x->rows * x->cols ? round_up(x->size, ALIGN_ELEMENTS) - first : n;
}

// Room for any tensor of the table with what follows it; free() it. NULL if no part needs it.
static inline float *part_buffer(const StatePart *parts, int count, const GPT2Table *t) {
    size_t most = 0;
    for (int k = 0; k < count; k++)
        for (int i = 0; part_exists(&parts[k]) && i < t->count; i++) {
            const size_t size = round_up(t->tensors[i].size, ALIGN_ELEMENTS);
            if (size > most && part_place(&parts[k], t->tensors[i].offset, size) == NULL)
                most = size;
        }
    return most == 0 ? NULL : (float *)alloc_or_fail(most, sizeof(float), "a tensor's copy");
}

// Where a program may write what part_put() will store: n elements of tensor x from `first`.
static inline float *part_room(const StatePart *p, const GPT2Tensor *x, size_t first, size_t n,
                               float *buffer) {
    float *w = part_place(p, x->offset + first, part_extent(x, first, n));
    return w != NULL ? w : buffer;
}

// Stores n elements of tensor x, which part_room() gave room for. With the last one, what follows
// the tensor becomes zero.
static inline void part_put(const StatePart *p, const GPT2Tensor *x, size_t first, size_t n,
                            float *w) {
    const size_t end = part_extent(x, first, n);
    memset(w + n, 0, (end - n) * sizeof(float));
    if (part_place(p, x->offset + first, end) == NULL)
        part_copy(p, x->offset + first, end, w, false);
}

// Elements [first, first + n) of tensor x, to be read.
static inline const float *part_get(const StatePart *p, const GPT2Tensor *x, size_t first, size_t n,
                                    float *buffer) {
    const float *w = part_place(p, x->offset + first, n);
    if (w == NULL) part_copy(p, x->offset + first, n, buffer, true);
    return w != NULL ? w : buffer;
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
static inline bool hf_tensor(const GPT2Config *c, const GPT2Table *t, int i, HfTensor *x) {
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

// A transposition goes by tiles of HF_TILE stored rows, which is one cache line of ours; the rows
// of a tile are HF_TILE floats further apart than long, so that they do not share cache sets.
enum { HF_TILE = 16 };

// ---------------------------------------------------------------------------------------------
// 3. Reading a model

// What a configuration's sizes are called in config.json, by family, and (last) in state.json.
enum { SIZES = 6 };
static const char *const size_names[3][SIZES] = {
    {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "n_inner"},
    {"num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings",
     "vocab_size", "ffn_dim"},
    {"layers", "heads", "channels", "context", "vocab", "ffn"}};

static inline size_t *config_size(GPT2Config *c, int i) {
    size_t *const fields[SIZES] = {&c->layers, &c->heads, &c->channels, &c->context, &c->vocab,
                                   &c->ffn};
    return fields[i];
}

static inline void config_write_sizes(FILE *f, GPT2Config c, int names) {
    for (int i = 0; i < SIZES; i++)
        fprintf(f, "  \"%s\": %zu,\n", size_names[names][i], *config_size(&c, i));
}

// *out = a member that must be true or false (or null, or absent: then *out stays).
static inline bool config_bool(const Json *root, const char *key, bool *out, Error *err) {
    const Json *value = json_get(root, key);
    if (value == NULL || value->type == JSON_NULL) return true;
    if (value->type != JSON_TRUE && value->type != JSON_FALSE)
        return error_set(err, "%s must be true or false", key);
    *out = value->type == JSON_TRUE;
    return true;
}

// Reads the text of a Hugging Face config.json of a GPT-2 or OPT model into *c, and refuses models
// that need arithmetic which is not in train_gpt2.c: better no result than a slightly wrong one.
static inline bool config_read(const Json *root, GPT2Config *c, Error *err) {
    static const struct { int family; const char *key; bool needed; } switches[] = {
        {FAMILY_GPT2, "scale_attn_weights", true},
        {FAMILY_GPT2, "scale_attn_by_inverse_layer_idx", false},
        {FAMILY_GPT2, "add_cross_attention", false},
        {FAMILY_OPT, "do_layer_norm_before", true},
        {FAMILY_OPT, "enable_bias", true},
        {FAMILY_OPT, "layer_norm_elementwise_affine", true},
        {FAMILY_OPT, "_remove_final_layer_norm", false},
    };
    static const char *const tanh_gelus[] = {  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"};
    memset(c, 0, sizeof *c);
    const Json *type = json_get(root, "model_type");
    if (type == NULL || type->type != JSON_STRING)
        return error_set(err, "there is no model_type; it must be gpt2 or opt");
    if (strcmp(type->string, "gpt2") != 0 && strcmp(type->string, "opt") != 0)
        return error_set(err, "model_type is %.100s; only gpt2 and opt are known", type->string);
    const bool opt = type->string[0] == 'o';
    c->family = opt ? FAMILY_OPT : FAMILY_GPT2;

    for (int i = 0; i < SIZES; i++) {
        const char *key = size_names[c->family][i];
        const Json *value = json_get(root, key);
        if (i == 5 && (value == NULL || value->type == JSON_NULL)) continue;  // gpt2_finish: 4 C
        if (!json_size(value, config_size(c, i)) || *config_size(c, i) == 0)
            return error_set(err, value == NULL ? "%s is missing" : "%s must be a whole number "
                             "of at least 1", key);
    }
    size_t projection = c->channels;
    if (opt && (!json_get_size(root, "word_embed_proj_dim", &projection)
                ? json_get(root, "word_embed_proj_dim") != NULL : projection != c->channels))
        return error_set(err, "word_embed_proj_dim must be hidden_size (%zu)", c->channels);
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        bool value = switches[i].needed;
        if (switches[i].family != c->family) continue;
        if (!config_bool(root, switches[i].key, &value, err)) return false;
        if (value != switches[i].needed)
            return error_set(err, "%s is %s; such models are not supported", switches[i].key,
                             value ? "true" : "false");
    }
    const Json *eps = json_get(root, "layer_norm_epsilon");
    if (eps != NULL && !(eps->number > 0.999e-5 && eps->number < 1.001e-5))
        return error_set(err, "layer_norm_epsilon must be 1e-05");
    if (json_get(root, "quantization_config") != NULL)
        return error_set(err, "quantized models are not supported");
    bool tied = true;
    if (!config_bool(root, "tie_word_embeddings", &tied, err)) return false;
    c->tied = tied;

    const Json *activation = json_get(root, "activation_function");
    const char *name = opt ? "relu" : "gelu_new";
    if (activation != NULL) name = activation->type == JSON_STRING ? activation->string : "no name";
    c->activation = strcmp(name, "relu") == 0 ? ACTIVATION_RELU : -1;
    for (size_t i = 0; i < sizeof tanh_gelus / sizeof tanh_gelus[0]; i++)
        if (strcmp(name, tanh_gelus[i]) == 0) c->activation = ACTIVATION_GELU;
    if (c->activation < 0)
        return error_set(err, "activation_function is %.100s; only relu and the tanh form of GELU "
                         "(gelu_new) are supported", name);
    return gpt2_finish(c, err);
}

// Splits what the user named: a directory, or a .safetensors file (*file is its name, else NULL).
static inline bool model_path(const char *path, char dir[PATH_MAX], const char **file, Error *err) {
    const char *slash = strrchr(path, '/');
    const size_t n = strlen(path);
    if (n >= PATH_MAX - 64) return error_set(err, "the path of the model is too long");
    *file = NULL;
    snprintf(dir, PATH_MAX, "%s", path);
    if (path_is_directory(path)) return true;
    if (!path_exists(path)) return error_set(err, "%s: %s", path, strerror(errno));
    if (n < 12 || strcmp(path + n - 12, ".safetensors") != 0)
        return error_set(err, "%s is neither a directory nor a .safetensors file", path);
    *file = slash == NULL ? path : slash + 1;
    if (slash == NULL) snprintf(dir, PATH_MAX, ".");
    else dir[slash == path ? 1 : slash - path] = '\0';
    return true;
}

// Configuration of the model at `path`: a directory with config.json, or a .safetensors file with
// config.json beside it.
static inline bool model_config_load(const char *path, GPT2Config *c, Error *err) {
    char dir[PATH_MAX], name[PATH_MAX];
    const char *file;
    Error why;
    if (!model_path(path, dir, &file, err)) return false;
    path_join(name, dir, "config.json");
    Json *root = json_read(name, err);
    if (root == NULL) return false;
    const bool ok = config_read(root, c, &why);
    json_free(root);
    return ok || error_set(err, "%.200s: %.300s", name, why.text);
}

// The files that hold one model's tensors.
typedef struct { int count; SafeTensors *files; char (*names)[256]; } ModelFiles;

static inline void model_files_close(ModelFiles *m) {
    for (int i = 0; i < m->count; i++) safetensors_close(&m->files[i]);
    free(m->files);
    free(m->names);
    memset(m, 0, sizeof *m);
}

// Opens file `name` of `dir` unless it is open already. Returns its number, or -1.
static inline int model_files_add(ModelFiles *m, const char *dir, const char *name, Error *err) {
    char path[PATH_MAX];
    for (int i = 0; i < m->count; i++) if (strcmp(m->names[i], name) == 0) return i;
    if (strchr(name, '/') != NULL || strlen(name) > 255 || m->count == 10000) {
        error_set(err, "%s: the index names the impossible file %.100s", dir, name);
        return -1;
    }
    path_join(path, dir, name);
    const size_t n = (size_t)m->count + 1;
    m->files = (SafeTensors *)realloc(m->files, n * sizeof *m->files);
    m->names = (char (*)[256])realloc(m->names, n * sizeof *m->names);
    if (m->files == NULL || m->names == NULL) fail("out of memory: list of files");
    snprintf(m->names[m->count], 256, "%s", name);
    return safetensors_open(&m->files[m->count], path, err) ? m->count++ : -1;
}

// Opens model.safetensors, or else every file that model.safetensors.index.json names in its
// weight_map (tensor -> file), or the one file that the user named.
static inline bool model_files_open(ModelFiles *m, const char *model, Error *err) {
    char dir[PATH_MAX], path[PATH_MAX];
    const char *file;
    if (!model_path(model, dir, &file, err)) return false;
    path_join(path, dir, "model.safetensors");
    if (file != NULL || path_exists(path))
        return model_files_add(m, dir, file != NULL ? file : "model.safetensors", err) >= 0;
    path_join(path, dir, "model.safetensors.index.json");
    if (!path_exists(path))
        return error_set(err, "%s has neither model.safetensors nor model.safetensors.index.json",
                         dir);
    Json *root = json_read(path, err);
    if (root == NULL) return false;
    const Json *map = json_get(root, "weight_map");
    bool ok = map != NULL && map->type == JSON_OBJECT && map->count > 0;
    if (!ok) error_set(err, "%s: there is no weight_map", path);
    for (const Json *entry = ok ? map->child : NULL; ok && entry != NULL; entry = entry->next) {
        const char *file_name = entry->type == JSON_STRING ? entry->string : "/";
        const int i = model_files_add(m, dir, file_name, err);
        ok = i >= 0;
        if (ok && safetensors_find(&m->files[i], entry->key) == NULL)
            ok = error_set(err, "%.200s: %.100s is not in %.100s", path, entry->key, m->names[i]);
    }
    json_free(root);
    return ok;
}

// Finds tensor x, once, in the right shape, and marks it as seen.
static inline const SafeTensor *model_files_find(const ModelFiles *m, int family, const HfTensor *x,
                                                 Error *err) {
    SafeTensor *found = NULL;
    char name[128], there[200], here[200];
    for (const char *const *prefix = hf_prefixes[family]; *prefix != NULL; prefix++) {
        snprintf(name, sizeof name, "%s%s", x->prefix > 0 ? *prefix : "", x->name + x->prefix);
        for (int i = 0; i < m->count; i++) {
            SafeTensor *next = safetensors_find(&m->files[i], name);
            if (next == NULL) continue;
            if (found != NULL) {
                error_set(err, "tensor %s is there more than once", name);
                return NULL;
            }
            found = next;
        }
        if (x->prefix == 0) break;
    }
    size_t shape[2];
    shape_text(here, tensor_shape(x->rank, x->rows, x->cols, shape), shape);
    if (found == NULL) {
        error_set(err, "tensor %s %s is missing", x->name, here);
        return NULL;
    }
    found->seen = true;
    shape_text(there, found->rank, found->shape);
    if (strcmp(here, there) != 0)
        error_set(err, "tensor %s is %s, the model needs %s", found->name, there, here);
    else if (found->dtype > ST_F64)
        error_set(err, "tensor %s is not stored as F32, F16, BF16 or F64", found->name);
    else
        return found;
    return NULL;
}

// What may be in a file without being used: GPT-2's causal masks, and a head that is wte.
static inline bool hf_ignored(int family, const char *name) {
    const char *end = strstr(name, ".attn.");
    if (strcmp(name, "lm_head.weight") == 0) return true;
    return family == FAMILY_GPT2 && end != NULL
        && (strcmp(end, ".attn.bias") == 0 || strcmp(end, ".attn.masked_bias") == 0);
}

static inline bool floats_are_finite(const float *x, size_t n) {
    uint32_t bad = 0, bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

// Copies stored tensor s to w, our x->n elements. Returns false if a number is not finite.
static inline bool hf_read(const HfTensor *x, const SafeTensor *s, float *w) {
    const size_t chunk = 1 << 16, n = x->n, stride = x->cols + HF_TILE;
    int bad = 0;
    if (!x->transpose) {
        #pragma omp parallel for if (n > chunk) reduction(| : bad)
        for (size_t i = 0; i < n; i += chunk) {
            const size_t length = n - i < chunk ? n - i : chunk;
            safetensor_floats(s, x->skip * x->cols + i, length, w + i);
            bad |= !floats_are_finite(w + i, length);
        }
        return !bad;
    }
    #pragma omp parallel for if (n > chunk) reduction(| : bad)
    for (size_t row = 0; row < x->rows; row += HF_TILE) {
        const size_t last = row + HF_TILE < x->rows ? row + HF_TILE : x->rows;
        float *tile = (float *)alloc_or_fail(HF_TILE * stride, sizeof(float), "transposition");
        for (size_t i = row; i < last; i++)
            safetensor_floats(s, i * x->cols, x->cols, tile + (i - row) * stride);
        bad |= !floats_are_finite(tile, HF_TILE * stride);  // zeros where nothing was read
        for (size_t o = 0; o < x->cols; o++)
            for (size_t i = row; i < last; i++) w[o * x->rows + i] = tile[(i - row) * stride + o];
        free(tile);
    }
    return !bad;
}

// Fills a part with the model at `path`, which is as for model_config_load(); padding becomes zero.
// Stored as fp32, fp16, bf16 or fp64, with or without the prefixes that Hugging Face's classes put
// before the names, in one file or several. Refuses, naming the tensor: one that is missing, is
// there twice, has an odd shape, would not be used, or has numbers that are not finite.
static inline bool model_load(const char *path, const GPT2Config *c, const GPT2Table *t,
                              const StatePart *part, Error *err) {
    Error why;
    ModelFiles files;
    HfTensor x;
    memset(&files, 0, sizeof files);
    if (!model_files_open(&files, path, err)) { model_files_close(&files); return false; }
    const SafeTensor **found =  // no tensor of ours is stored as more than three
        (const SafeTensor **)alloc_or_fail(3 * (size_t)t->count, sizeof *found, "list of tensors");
    bool ok = true;
    for (int i = 0; ok && hf_tensor(c, t, i, &x); i++)
        ok = (found[i] = model_files_find(&files, c->family, &x, &why)) != NULL;
    for (int f = 0; ok && f < files.count; f++)
        for (int i = 0; ok && i < files.files[f].count; i++) {
            const SafeTensor *s = &files.files[f].tensors[i];
            if (!s->seen && !hf_ignored(c->family, s->name))
                ok = error_set(&why, "tensor %.100s is unknown to a %s model with %s head",
                               s->name, c->family == FAMILY_OPT ? "opt" : "gpt2",
                               c->tied ? "a tied" : "an untied");
        }
    float *buffer = ok ? part_buffer(part, 1, t) : NULL;
    for (int i = 0; ok && hf_tensor(c, t, i, &x); i++) {
        const GPT2Tensor *ours = &t->tensors[x.tensor];
        if (!part_has(part, ours->offset + x.first, part_extent(ours, x.first, x.n))) continue;
        float *w = part_room(part, ours, x.first, x.n, buffer);
        if (!hf_read(&x, found[i], w))
            ok = error_set(&why, "tensor %s has a NaN or an infinity: the file is damaged, or too "
                           "large for fp32", x.name);
        part_put(part, ours, x.first, x.n, w);
        safetensor_release(found[i]);
    }
    free(buffer);
    free(found);
    model_files_close(&files);
    return ok || error_set(err, "%.200s: %.300s", path, why.text);
}

// ---------------------------------------------------------------------------------------------
// 4. Writing a model

// Flushes a directory, so that renames within it survive a power cut.
static inline bool directory_sync(const char *dir, Error *err) {
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some file systems cannot flush a directory and say EINVAL; there is nothing more to do then.
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) error_set(err, "cannot flush %s: %s", dir, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

// Writes tensor x from w, our x->n elements, in the stored layout.
static inline bool hf_write(SafeWriter *out, const HfTensor *x, const float *w, bool bf16,
                            Error *err) {
    const size_t stride = x->cols + HF_TILE;
    float *tile = (float *)alloc_or_fail(HF_TILE * stride, sizeof(float), "transposition");
    uint16_t *half = (uint16_t *)alloc_or_fail(x->cols, sizeof(uint16_t), "bf16 row");
    bool ok = true;
    for (size_t row = 0; ok && row < x->rows; row++) {
        const size_t r = row % HF_TILE, last = row + HF_TILE < x->rows ? row + HF_TILE : x->rows;
        const float *p = tile + r * stride;  // zeros unless filled: the rows to skip
        if (!x->transpose && row >= x->skip) p = w + (row - x->skip) * x->cols;
        if (x->transpose && r == 0)
            for (size_t o = 0; o < x->cols; o++)
                for (size_t i = row; i < last; i++)
                    tile[(i - row) * stride + o] = w[o * x->rows + i];
        if (bf16) for (size_t i = 0; i < x->cols; i++) half[i] = f32_to_bf16(p[i]);
        ok = bf16 ? safewriter_write(out, half, x->cols * sizeof(uint16_t), err)
                  : safewriter_write(out, p, x->cols * sizeof(float), err);
    }
    free(tile);
    free(half);
    return ok;
}

// Declares all of the model's tensors, each name after `prefix`, or writes them.
static inline void hf_add_all(SafeWriter *out, const GPT2Config *c, const GPT2Table *t,
                              const char *prefix, bool bf16) {
    HfTensor x;
    char name[128];
    size_t shape[2];
    for (int i = 0; hf_tensor(c, t, i, &x); i++) {
        snprintf(name, sizeof name, "%s%s", prefix, x.name);
        safewriter_add(out, name, bf16 ? ST_BF16 : ST_F32,
                       tensor_shape(x.rank, x.rows, x.cols, shape), shape);
    }
}

static inline bool hf_write_all(SafeWriter *out, const GPT2Config *c, const GPT2Table *t,
                                const StatePart *part, bool bf16, Error *err) {
    HfTensor x;
    float *buffer = part_buffer(part, 1, t);
    bool ok = true;
    for (int i = 0; ok && hf_tensor(c, t, i, &x); i++)
        ok = hf_write(out, &x, part_get(part, &t->tensors[x.tensor], x.first, x.n, buffer), bf16,
                      err);
    free(buffer);
    return ok;
}

// Writes config.json. eot: the token that ends a text, or -1. Dropout is 0: that is how the model
// was trained. OPT gets no padding token, since PyTorch would freeze its row.
static inline void config_write(FILE *f, const GPT2Config *c, bool bf16, int eot) {
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
static inline bool model_save(const char *dir, const GPT2Config *c, const GPT2Table *t,
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
    bool ok = (fflush(f) == 0 && fsync(fileno(f)) == 0)
        || error_set(err, "cannot write %s: %s", config, strerror(errno));
    if (ok) {
        memset(&out, 0, sizeof out);
        hf_add_all(&out, c, t, "", bf16);
        ok = safewriter_open(&out, weights, err) && hf_write_all(&out, c, t, part, bf16, err);
        ok = safewriter_close(&out, err) && ok;
    }
    if (!ok) {
        replace_discard(f, config);
        return false;
    }
    return replace_close(f, config, err) && directory_sync(dir, err);
}

// Writes a reference dump: one forward and backward pass that any framework can repeat. tokens and
// targets (B, T), the loss, logits (B*T, Vp) of which the first V columns are written, and the
// gradient of every parameter (an arena) as grad.NAME in Hugging Face's naming and layout.
static inline bool dump_save(const char *path, const GPT2Config *c, const GPT2Table *t,
                             size_t B, size_t T, const int32_t *tokens, const int32_t *targets,
                             double loss, const float *logits, const float *grads, Error *err) {
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
    bool ok = safewriter_open(&out, path, err)
        && safewriter_write(&out, tokens, B * T * sizeof(int32_t), err)
        && safewriter_write(&out, targets, B * T * sizeof(int32_t), err)
        && safewriter_write(&out, &loss32, sizeof loss32, err);
    for (size_t i = 0; ok && i < B * T; i++)
        ok = safewriter_write(&out, logits + i * c->vocab_padded, c->vocab * sizeof(float), err);
    ok = ok && hf_write_all(&out, c, t, &part, false, err);
    return safewriter_close(&out, err) && ok;
}

// ---------------------------------------------------------------------------------------------
// 5. Training state
//
// OUT/checkpoints/step_N/ holds state.safetensors (PART.NAME for every part, such as param, m and
// v, and every tensor in our naming and layout, without padding) and state.json (everything else,
// hashes of the first, and one of itself). Written as OUT/checkpoints/tmp_step_N and renamed;
// a step_N that is there already is step_N.old meanwhile, and counts while there is no step_N.

typedef struct {
    size_t step;             // steps done
    uint64_t seed;
    uint64_t data_position;  // the next sequence's
    uint64_t data_hash;      // of the training data, as the trainer defines it
    char *more;              // the optimizer's own: the text of a JSON object, or NULL; malloc'ed
    char options[4096];      // the run's options: the text of a JSON object
} TrainState;

static inline void train_state_free(TrainState *s) {
    free(s->more);
    s->more = NULL;
}

enum { STATE_VERSION = 2, STATE_SEAL = 29 };  // a seal is ,\n"seal":"16 digits"}\n
static const char state_options_key[] = "\n\"options\":", state_more_key[] = "\n\"more\":";

// One directory below OUT/checkpoints.
typedef struct { size_t step; bool old; char name[256]; } StateEntry;

static inline int state_compare(const void *a, const void *b) {  // newest first
    const StateEntry *x = (const StateEntry *)a, *y = (const StateEntry *)b;
    if (x->step != y->step) return x->step < y->step ? 1 : -1;
    return (int)x->old - (int)y->old;
}

// Removes a directory and the files in it; what cannot be removed is said on stderr and stays.
static inline void directory_remove(const char *path) {
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
    if (rmdir(path) != 0 && errno != ENOENT)
        fprintf(stderr, "tide: cannot remove %s: %s\n", path, strerror(errno));
}

// The checkpoints in a directory, newest first (free() *entries); stale temporary ones are removed
// if `clean`. Returns how many there are; none if there is no such directory.
static inline size_t state_list(const char *dir, StateEntry **entries, bool clean) {
    size_t count = 0, room = 0;
    char path[PATH_MAX], *end;
    DIR *d = opendir(dir);
    *entries = NULL;
    if (d == NULL) return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (clean && strncmp(e->d_name, "tmp_step_", 9) == 0) {
            path_join(path, dir, e->d_name);
            directory_remove(path);
        }
        if (strncmp(e->d_name, "step_", 5) != 0) continue;
        const unsigned long long step = strtoull(e->d_name + 5, &end, 10);
        if (end == e->d_name + 5 || (*end != '\0' && strcmp(end, ".old") != 0)) continue;
        if (count == room) {
            room = 2 * room + 16;
            *entries = (StateEntry *)realloc(*entries, room * sizeof **entries);
            if (*entries == NULL) fail("out of memory: list of checkpoints");
        }
        StateEntry *x = &(*entries)[count++];
        x->step = (size_t)step;
        x->old = *end != '\0';
        snprintf(x->name, sizeof x->name, "%s", e->d_name);
    }
    closedir(d);
    if (count > 0) qsort(*entries, count, sizeof **entries, state_compare);
    return count;
}

// Checks that a state file holds, for each of some parts, every tensor of the table in its shape
// and in order, and nothing else.
static inline bool state_shapes(const SafeTensors *st, const GPT2Table *t, Error *err) {
    char name[128], here[200], there[200];
    for (int i = 0; i < st->count; i++) {
        const SafeTensor *s = &st->tensors[i], *part = &st->tensors[i - i % t->count];
        const GPT2Tensor *x = &t->tensors[i % t->count];
        size_t shape[2];
        snprintf(name, sizeof name, "%.*s.%s", (int)strcspn(part->name, "."), part->name, x->name);
        shape_text(here, tensor_shape(x->rank, x->rows, x->cols, shape), shape);
        shape_text(there, s->rank, s->shape);
        if (strcmp(s->name, name) != 0)
            return error_set(err, "tensor %.100s is where %s should be", s->name, name);
        if (strcmp(here, there) != 0 || s->dtype != ST_F32)
            return error_set(err, "tensor %.100s is %s, the model needs %s in F32", s->name, there,
                             here);
    }
    return st->count % t->count == 0 || error_set(err, "its last part is incomplete");
}

static inline bool state_u64(const Json *root, const char *key, uint64_t *out) {
    const Json *value = json_get(root, key);
    char *end;
    if (value == NULL || value->type != JSON_STRING) return false;
    errno = 0;
    *out = strtoull(value->string, &end, 10);
    return value->length > 0 && value->string[0] >= '0' && value->string[0] <= '9' && *end == '\0'
        && errno == 0;
}

// Reads state.json's text. To be freed: *s, and *hashes: what state.safetensors should have.
static inline bool state_parse(const char *text, size_t n, TrainState *s, GPT2Config *c,
                               char **hashes, Error *err) {
    char seal[STATE_SEAL + 1];
    memset(c, 0, sizeof *c);
    memset(s, 0, sizeof *s);
    if (n < STATE_SEAL) return error_set(err, "state.json is cut short");
    const char *end = text + n - STATE_SEAL;
    snprintf(seal, sizeof seal, ",\n\"seal\":\"%016" PRIx64 "\"}\n",
             hash_bytes(text, n - STATE_SEAL));
    if (memcmp(end, seal, STATE_SEAL) != 0)
        return error_set(err, "state.json is not what was written");
    Json *root = json_parse(text, n, err);
    if (root == NULL) return false;
    size_t version = 0, family = 0, activation = 0, tied = 0;
    const Json *config = json_get(root, "config");
    const bool current = json_get_size(root, "version", &version) && version == STATE_VERSION;
    bool ok = json_get_size(root, "step", &s->step) && state_u64(root, "seed", &s->seed)
        && state_u64(root, "data_position", &s->data_position)
        && state_u64(root, "data_hash", &s->data_hash)
        && json_get_size(config, "family", &family) && family <= FAMILY_OPT
        && json_get_size(config, "activation", &activation) && activation <= ACTIVATION_RELU
        && json_get_size(config, "tied", &tied) && tied <= 1;
    for (int i = 0; i < SIZES; i++)
        ok = ok && json_get_size(config, size_names[2][i], config_size(c, i));
    c->family = (int)family;
    c->activation = (int)activation;
    c->tied = (int)tied;
    // The options as they were given. No string before them can hold the key's line break.
    const char *key = (const char *)memmem(text, n, state_options_key, strlen(state_options_key));
    const char *options = key == NULL ? end : key + strlen(state_options_key);
    const size_t length = options < end ? (size_t)(end - options) : 0;
    const Json *value = json_get(root, "options"), *digits = json_get(root, "hashes");
    ok = ok && value != NULL && value->type == JSON_OBJECT && length < sizeof s->options
        && digits != NULL && digits->type == JSON_STRING;
    if (ok) memcpy(s->options, options, length);
    // And what may be in front of them: ,\n"more":{..},\n"options":
    const char *more = key == NULL ? NULL : (const char *)memmem(text, (size_t)(key - text),
                                                state_more_key, strlen(state_more_key));
    value = json_get(root, "more");
    ok = ok && (more == NULL ? value == NULL : value != NULL && value->type == JSON_OBJECT);
    if (more != NULL) more += strlen(state_more_key);
    if (ok && current && more != NULL) {
        s->more = strndup(more, (size_t)(key - more) - 1);
        if (s->more == NULL) fail("out of memory: state.json");
    }
    if (ok && current && (*hashes = strdup(digits->string)) == NULL) fail("out of memory: hashes");
    json_free(root);
    if (!current)
        return error_set(err, "state.json has version %zu, this program reads %d", version,
                         STATE_VERSION);
    if (!ok) return error_set(err, "state.json lacks a field");
    ok = gpt2_finish(c, err);
    if (!ok) train_state_free(s);
    return ok;
}

static inline bool state_read(const char *dir, TrainState *s, GPT2Config *c, char **hashes,
                              Error *err) {
    char path[PATH_MAX];
    size_t n = 0;
    *hashes = NULL;
    s->more = NULL;
    path_join(path, dir, "state.json");
    char *text = file_read(path, &n, err);
    if (text == NULL) return false;
    const bool ok = state_parse(text, n, s, c, hashes, err);
    free(text);
    return ok;
}

// Checks the header and every tensor of a state file against their hashes, 16 digits each.
static inline bool state_hashes(const SafeTensors *st, const char *hashes, Error *err) {
    const size_t chunk = 1 << 12;
    const unsigned char *start = (const unsigned char *)st->map;
    char digits[17];
    if (strlen(hashes) != 16 * ((size_t)st->count + 1))
        return error_set(err, "state.safetensors has %d tensors, not what was written", st->count);
    for (int i = -1; i < st->count; i++) {
        const unsigned char *data = i < 0 ? start : st->tensors[i].data;
        const size_t bytes = i >= 0 ? st->tensors[i].bytes
                           : st->count > 0 ? (size_t)(st->tensors[0].data - start) : st->map_bytes;
        uint64_t sum = 0;
        #pragma omp parallel for reduction(+ : sum) if (bytes > 1 << 20)
        for (size_t at = 0; at < bytes; at += chunk)
            sum += hash_words((uint64_t)(data - start) + at, data + at,
                              min_size(chunk, bytes - at));
        snprintf(digits, sizeof digits, "%016" PRIx64, sum);
        if (memcmp(digits, hashes + 16 * (i + 1), 16) != 0)
            return error_set(err, "%.100s in state.safetensors is not what was written",
                             i < 0 ? "the header" : st->tensors[i].name);
        if (i >= 0) safetensor_release(&st->tensors[i]);
    }
    return true;
}

// Reads and checks one checkpoint: all hashes, every name and shape. On failure *s holds nothing.
static inline bool state_check(const char *dir, TrainState *s, GPT2Config *c, Error *err) {
    char path[PATH_MAX], *hashes;
    SafeTensors st;
    bool ok = state_read(dir, s, c, &hashes, err);
    path_join(path, dir, "state.safetensors");
    if (ok && (ok = safetensors_open(&st, path, err))) {
        GPT2Table t = gpt2_table(c);
        ok = state_hashes(&st, hashes, err) && state_shapes(&st, &t, err);
        gpt2_table_free(&t);
        safetensors_close(&st);
    }
    if (!ok) train_state_free(s);
    free(hashes);
    return ok;
}

static inline bool state_find_here(const char *out, TrainState *s, GPT2Config *c,
                                   char dir[PATH_MAX], Error *err) {
    char all[PATH_MAX];
    StateEntry *entries = NULL;
    Error why;
    bool found = false;
    path_join(all, out, "checkpoints");
    const size_t n = state_list(all, &entries, false);
    for (size_t i = 0; !found && i < n; i++) {
        path_join(dir, all, entries[i].name);
        found = state_check(dir, s, c, &why);
        if (!found)
            fprintf(stderr, "tide: checkpoint %s is damaged (%s)%s\n", dir, why.text,
                    i + 1 < n ? "; trying the one before" : "");
    }
    free(entries);
    if (found) return true;
    return n == 0 ? error_set(err, "there is no checkpoint in %s", all)
                  : error_set(err, "no checkpoint in %s is whole", all);
}

// Have all ranks succeeded? If not, err says on each of them what the first one that failed says.
// All ranks must call it.
static inline bool state_agree(bool ok, Error *err) {
    typedef struct { bool ok; Error err; } Answer;
    if (ranks.world == 1) return ok;
    Answer *all = (Answer *)alloc_or_fail((size_t)ranks.world + 1, sizeof *all, "answers");
    Answer *mine = &all[ranks.world];
    int failed = 0, first = -1;
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

// Finds the newest whole checkpoint of the run in `out`, reads its *s, to be freed, and *c and puts
// its path into dir. Damaged ones are named on stderr and passed over. Returns false if none is
// left. Rank 0 decides for all ranks, which must all call it.
static inline bool state_find(const char *out, TrainState *s, GPT2Config *c, char dir[PATH_MAX],
                              Error *err) {
    char path[PATH_MAX], *hashes = NULL;
    const bool first = ranks.rank == 0, found = !first || state_find_here(out, s, c, dir, err);
    if (ranks.world == 1) return found;
    if (!state_agree(found, err)) return false;
    ranks_broadcast(dir, PATH_MAX);
    path_join(path, dir, "state.json");
    size_t n = 0;
    char *text = file_read(path, &n, err);
    const uint64_t mine = text != NULL ? hash_bytes(text, n) : 0;
    uint64_t hash = mine;
    bool ok = text != NULL;
    free(text);
    ranks_broadcast(&hash, sizeof hash);
    ok = (ok && mine == hash && (first || state_read(dir, s, c, &hashes, err)))
        || error_set(err, "%.300s, which rank 0 has found, is not there, or another: --out must "
                     "be in a file system that all ranks share", dir);
    free(hashes);
    if (!first && !ok) memset(s, 0, sizeof *s);
    if (state_agree(ok, err)) return true;
    train_state_free(s);
    return false;
}

// Fills the parts' arenas from a checkpoint that state_find() has checked; padding becomes zero. It
// must hold these parts, of this model. Others, and parts with nothing in them, are not loaded.
static inline bool state_load(const char *dir, const GPT2Config *c, const GPT2Table *t,
                              const StatePart *parts, int count, Error *err) {
    char path[PATH_MAX], name[128];
    SafeTensors st;
    Error why;
    TrainState s;
    GPT2Config saved, wanted = *c;
    char *hashes;
    const bool read = state_read(dir, &s, &saved, &hashes, err);
    free(hashes);
    if (!read) return false;
    train_state_free(&s);
    bool same = saved.activation == c->activation && saved.tied == c->tied;
    for (int i = 0; i < SIZES; i++)
        same = same && *config_size(&saved, i) == *config_size(&wanted, i);
    if (!same) return error_set(err, "%.200s is of a model of another shape", dir);
    path_join(path, dir, "state.safetensors");
    if (!safetensors_open(&st, path, err)) return false;
    bool ok = state_shapes(&st, t, &why);
    // The order is known now: a part is t->count tensors, of which its name is in the first.
    for (int k = 0; ok && k < count; k++) {
        snprintf(name, sizeof name, "%s.%s", parts[k].prefix, t->tensors[0].name);
        SafeTensor *first = safetensors_find(&st, name);
        if (first == NULL) ok = error_set(&why, "tensor %s is missing", name);
    }
    float *buffer = NULL;
    size_t room = 0;
    for (int k = 0; ok && k < count; k++) {
        const StatePart *p = &parts[k];
        snprintf(name, sizeof name, "%s.%s", p->prefix, t->tensors[0].name);
        const SafeTensor *stored = safetensors_find(&st, name);
        for (int i = 0; part_exists(p) && i < t->count; i++, stored++) {
            const GPT2Tensor *x = &t->tensors[i];
            const size_t end = x->offset + round_up(x->size, ALIGN_ELEMENTS);
            for (const StateSpan *s = p->spans; s < p->spans + p->count; s++) {
                const size_t at = s->at > x->offset ? s->at : x->offset, first = at - x->offset;
                const size_t to = min_size(s->at + s->length, end);
                if (at >= to) continue;
                const size_t n = to - at, real = x->rows * x->cols;  // the rest is padding
                const size_t read = first < real ? min_size(n, real - first) : 0;
                if (s->gpu && n > room) {
                    free(buffer);
                    buffer = (float *)alloc_or_fail(n, sizeof(float), "a tensor's copy");
                    room = n;
                }
                float *w = s->gpu ? buffer : s->data + (at - s->at);
                memcpy(w, stored->data + first * sizeof *w, read * sizeof *w);
                memset(w + read, 0, (n - read) * sizeof *w);
                if (s->gpu) part_copy(p, at, n, w, false);
            }
            safetensor_release(stored);
        }
    }
    free(buffer);
    safetensors_close(&st);
    return ok || error_set(err, "%.200s: %.300s", path, why.text);
}

#endif
