// checkpoint.h: models and training runs on disk.
//
//   1. What Hugging Face calls our tensors, and how it lays them out
//   2. Reading a model: config.json and *.safetensors
//   3. Writing a model, and the reference dump that other frameworks compare with
//   4. Training state: save, find the newest whole one, load
//
// Nothing that is whole is ever overwritten: a file gets its name once it is complete and flushed.
#ifndef TIDE_CHECKPOINT_H
#define TIDE_CHECKPOINT_H
#include "util.h"
#include "gpt2.h"
#include "json.h"
#include "safetensors.h"
#include <dirent.h>
#include <inttypes.h>

// ---------------------------------------------------------------------------------------------
// 1. Names and layouts
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
    size_t first;       // our element that stored row `skip` starts at, within the tensor
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
    if (!opt && p->kind >= 0 && p->rank == 2) {
        x->transpose = true;
        x->rows = p->cols;
        x->cols = p->rows;
    }
    return true;
}

// The stored shape; returns the rank.
static inline int hf_shape(const HfTensor *x, size_t shape[2]) {
    shape[0] = x->rank == 2 ? x->rows : x->cols;
    shape[1] = x->cols;
    return x->rank == 2 ? 2 : 1;
}

// A transposition goes by tiles of HF_TILE stored rows, which is one cache line of ours; the rows
// of a tile are HF_TILE floats further apart than long, so that they do not share cache sets.
enum { HF_TILE = 16 };

// ---------------------------------------------------------------------------------------------
// 2. Reading a model

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
    static const char *const sizes[2][6] = {  // in the order of fields[]
        {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "n_inner"},
        {"num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings",
         "vocab_size", "ffn_dim"}};
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

    size_t *const fields[6] = {&c->layers, &c->heads, &c->channels, &c->context, &c->vocab,
                               &c->ffn};
    for (int i = 0; i < 6; i++) {
        const char *key = sizes[c->family][i];
        const Json *value = json_get(root, key);
        if (i == 5 && (value == NULL || value->type == JSON_NULL)) continue;  // gpt2_finish: 4 C
        if (!json_size(value, fields[i]) || *fields[i] == 0)
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
typedef struct { int count; SafeTensors *files; char (*names)[256]; } Shards;

static inline void shards_close(Shards *s) {
    for (int i = 0; i < s->count; i++) safetensors_close(&s->files[i]);
    free(s->files);
    free(s->names);
    memset(s, 0, sizeof *s);
}

// Opens file `name` of `dir` unless it is open already. Returns its number, or -1.
static inline int shards_add(Shards *s, const char *dir, const char *name, Error *err) {
    char path[PATH_MAX];
    for (int i = 0; i < s->count; i++) if (strcmp(s->names[i], name) == 0) return i;
    if (strchr(name, '/') != NULL || strlen(name) > 255 || s->count == 10000) {
        error_set(err, "%s: the index names the impossible file %.100s", dir, name);
        return -1;
    }
    path_join(path, dir, name);
    const size_t n = (size_t)s->count + 1;
    s->files = (SafeTensors *)realloc(s->files, n * sizeof *s->files);
    s->names = (char (*)[256])realloc(s->names, n * sizeof *s->names);
    if (s->files == NULL || s->names == NULL) fail("out of memory: list of files");
    snprintf(s->names[s->count], 256, "%s", name);
    return safetensors_open(&s->files[s->count], path, err) ? s->count++ : -1;
}

// Opens model.safetensors, or else every file that model.safetensors.index.json names in its
// weight_map (tensor -> file), or the one file that the user named.
static inline bool shards_open(Shards *s, const char *model, Error *err) {
    char dir[PATH_MAX], path[PATH_MAX];
    const char *file;
    if (!model_path(model, dir, &file, err)) return false;
    path_join(path, dir, "model.safetensors");
    if (file != NULL || path_exists(path))
        return shards_add(s, dir, file != NULL ? file : "model.safetensors", err) >= 0;
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
        const int i = shards_add(s, dir, entry->type == JSON_STRING ? entry->string : "/", err);
        ok = i >= 0;
        if (ok && safetensors_find(&s->files[i], entry->key) == NULL)
            ok = error_set(err, "%.200s: %.100s is not in %.100s", path, entry->key, s->names[i]);
    }
    json_free(root);
    return ok;
}

// Finds tensor x, once, in the right shape, and marks it as seen.
static inline const SafeTensor *shards_find(Shards *s, int family, const HfTensor *x, Error *err) {
    SafeTensor *found = NULL;
    char name[128], there[200], here[200];
    for (const char *const *prefix = hf_prefixes[family]; *prefix != NULL; prefix++) {
        snprintf(name, sizeof name, "%s%s", x->prefix > 0 ? *prefix : "", x->name + x->prefix);
        for (int i = 0; i < s->count; i++) {
            SafeTensor *next = safetensors_find(&s->files[i], name);
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
    shape_text(here, hf_shape(x, shape), shape);
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

// Copies stored tensor s to w, our tensor. Returns false if a number is not finite.
static inline bool hf_read(const HfTensor *x, const SafeTensor *s, float *w) {
    const size_t chunk = 1 << 16, skipped = x->skip * x->cols, n = x->rows * x->cols - skipped;
    const size_t stride = x->cols + HF_TILE;
    int bad = 0;
    if (!x->transpose) {
        #pragma omp parallel for if (n > chunk) reduction(| : bad)
        for (size_t i = 0; i < n; i += chunk) {
            const size_t length = n - i < chunk ? n - i : chunk;
            safetensor_floats(s, skipped + i, length, w + x->first + i);
            bad |= !floats_are_finite(w + x->first + i, length);
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

// Fills `arena` (t->elements floats) with the model at `path`, which is as for model_config_load().
// Stored as fp32, fp16, bf16 or fp64, with or without the prefixes that Hugging Face's classes put
// before the names, in one file or several. Refuses, naming the tensor: one that is missing, is
// there twice, has an odd shape, would not be used, or has numbers that are not finite.
static inline bool model_load(const char *path, const GPT2Config *c, const GPT2Table *t,
                              float *arena, Error *err) {
    Error why;
    Shards shards;
    HfTensor x;
    memset(&shards, 0, sizeof shards);
    if (!shards_open(&shards, path, err)) { shards_close(&shards); return false; }
    const SafeTensor **found =  // no tensor of ours is stored as more than three
        (const SafeTensor **)alloc_or_fail(3 * (size_t)t->count, sizeof *found, "list of tensors");
    bool ok = true;
    for (int i = 0; ok && hf_tensor(c, t, i, &x); i++)
        ok = (found[i] = shards_find(&shards, c->family, &x, &why)) != NULL;
    for (int f = 0; ok && f < shards.count; f++)
        for (int i = 0; ok && i < shards.files[f].count; i++) {
            const SafeTensor *s = &shards.files[f].tensors[i];
            if (!s->seen && !hf_ignored(c->family, s->name))
                ok = error_set(&why, "tensor %.100s is unknown to a %s model with %s head",
                               s->name, c->family == FAMILY_OPT ? "opt" : "gpt2",
                               c->tied ? "a tied" : "an untied");
        }
    if (ok) memset(arena, 0, t->elements * sizeof(float));
    for (int i = 0; ok && hf_tensor(c, t, i, &x); i++) {
        if (!hf_read(&x, found[i], arena + t->tensors[x.tensor].offset))
            ok = error_set(&why, "tensor %s has a NaN or an infinity: the file is damaged, or too "
                           "large for fp32", x.name);
        safetensor_release(found[i]);
    }
    free(found);
    shards_close(&shards);
    return ok || error_set(err, "%.200s: %.300s", path, why.text);
}

// ---------------------------------------------------------------------------------------------
// 3. Writing a model

// Flushes a directory, so that renames within it survive a power cut.
static inline bool directory_sync(const char *dir, Error *err) {
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // Some file systems cannot flush a directory and say EINVAL; there is nothing more to do then.
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) error_set(err, "cannot flush %s: %s", dir, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

// Writes and flushes a small file. On failure there is no such file.
static inline bool file_write(const char *path, const char *bytes, size_t n, Error *err) {
    FILE *f = fopen(path, "wbe");
    if (f == NULL) return error_set(err, "cannot write %s: %s", path, strerror(errno));
    bool ok = fwrite(bytes, 1, n, f) == n && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (!ok) error_set(err, "cannot write %s: %s", path, strerror(errno));
    if (fclose(f) != 0 && ok) ok = error_set(err, "cannot write %s: %s", path, strerror(errno));
    if (!ok) unlink(path);
    return ok;
}

static inline bool file_rename(const char *from, const char *to, Error *err) {
    return rename(from, to) == 0
        || error_set(err, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

// Writes tensor x from w, our tensor, in the stored layout.
static inline bool hf_write(SafeWriter *out, const HfTensor *x, const float *w, bool bf16,
                            Error *err) {
    const size_t stride = x->cols + HF_TILE;
    float *tile = (float *)alloc_or_fail(HF_TILE * stride, sizeof(float), "transposition");
    uint16_t *half = (uint16_t *)alloc_or_fail(x->cols, sizeof(uint16_t), "bf16 row");
    bool ok = true;
    for (size_t row = 0; ok && row < x->rows; row++) {
        const size_t r = row % HF_TILE, last = row + HF_TILE < x->rows ? row + HF_TILE : x->rows;
        const float *p = tile + r * stride;  // zeros unless filled: the rows to skip
        if (!x->transpose && row >= x->skip) p = w + x->first + (row - x->skip) * x->cols;
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
        safewriter_add(out, name, bf16 ? ST_BF16 : ST_F32, hf_shape(&x, shape), shape);
    }
}

static inline bool hf_write_all(SafeWriter *out, const GPT2Config *c, const GPT2Table *t,
                                const float *arena, bool bf16, Error *err) {
    HfTensor x;
    for (int i = 0; hf_tensor(c, t, i, &x); i++)
        if (!hf_write(out, &x, arena + t->tensors[x.tensor].offset, bf16, err)) return false;
    return true;
}

// The text of config.json (free() it). eot: the token that ends a text, or -1. Dropout is 0: that
// is how the model was trained. OPT gets no padding token, since PyTorch would freeze its row.
static inline char *config_text(const GPT2Config *c, bool bf16, int eot, size_t *n) {
    char *text = NULL, token[16] = "null";
    FILE *f = open_memstream(&text, n);
    if (f == NULL) fail("out of memory: config.json");
    if (eot >= 0) snprintf(token, sizeof token, "%d", eot);
    if (c->family == FAMILY_OPT)
        fprintf(f, "{\n  \"architectures\": [\"OPTForCausalLM\"],\n  \"model_type\": \"opt\",\n"
                "  \"num_hidden_layers\": %zu,\n  \"num_attention_heads\": %zu,\n"
                "  \"hidden_size\": %zu,\n  \"word_embed_proj_dim\": %zu,\n  \"ffn_dim\": %zu,\n"
                "  \"max_position_embeddings\": %zu,\n  \"do_layer_norm_before\": true,\n"
                "  \"enable_bias\": true,\n  \"layer_norm_elementwise_affine\": true,\n"
                "  \"dropout\": 0.0,\n  \"attention_dropout\": 0.0,\n  \"layerdrop\": 0.0,\n"
                "  \"init_std\": 0.02,\n  \"pad_token_id\": null,\n",
                c->layers, c->heads, c->channels, c->channels, c->ffn, c->context);
    else
        fprintf(f, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
                "  \"n_layer\": %zu,\n  \"n_head\": %zu,\n  \"n_embd\": %zu,\n  \"n_inner\": %zu,\n"
                "  \"n_positions\": %zu,\n  \"n_ctx\": %zu,\n  \"layer_norm_epsilon\": 1e-05,\n"
                "  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n"
                "  \"scale_attn_weights\": true,\n  \"initializer_range\": 0.02,\n",
                c->layers, c->heads, c->channels, c->ffn, c->context, c->context);
    fprintf(f, "  \"vocab_size\": %zu,\n  \"activation_function\": \"%s\",\n"
            "  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n"
            "  \"torch_dtype\": \"%s\"\n}\n", c->vocab,
            c->activation == ACTIVATION_RELU ? "relu" : "gelu_new", c->tied ? "true" : "false",
            token, token, bf16 ? "bfloat16" : "float32");
    if (fclose(f) != 0) fail("out of memory: config.json");
    return text;
}

// Writes dir/model.safetensors and dir/config.json so that Hugging Face's
// AutoModelForCausalLM.from_pretrained(dir) loads them: fp32, or bf16 rounded to nearest even.
// Makes dir if it must. On failure what was there before is still there.
static inline bool model_save(const char *dir, const GPT2Config *c, const GPT2Table *t,
                              const float *arena, bool bf16, int eot, Error *err) {
    char weights[PATH_MAX], config[PATH_MAX], new_weights[PATH_MAX], new_config[PATH_MAX];
    SafeWriter out;
    size_t n = 0;
    if (!make_directories(dir)) return error_set(err, "cannot make %s: %s", dir, strerror(errno));
    path_join(weights, dir, "model.safetensors");
    path_join(config, dir, "config.json");
    path_join(new_weights, dir, "model.safetensors.tmp");
    path_join(new_config, dir, "config.json.tmp");
    memset(&out, 0, sizeof out);
    hf_add_all(&out, c, t, "", bf16);
    bool ok = safewriter_open(&out, new_weights, err) && hf_write_all(&out, c, t, arena, bf16, err);
    ok = safewriter_close(&out, err) && ok;
    char *text = config_text(c, bf16, eot, &n);
    ok = ok && file_write(new_config, text, n, err)
        && file_rename(new_weights, weights, err) && file_rename(new_config, config, err)
        && directory_sync(dir, err);
    free(text);
    if (!ok) {
        unlink(new_weights);
        unlink(new_config);
    }
    return ok;
}

// Writes a reference dump: one forward and backward pass that any framework can repeat. tokens and
// targets (B, T), the loss, logits (B*T, Vp) of which the first V columns are written, and the
// gradient of every parameter (an arena) as grad.NAME in Hugging Face's naming and layout.
static inline bool dump_save(const char *path, const GPT2Config *c, const GPT2Table *t,
                             size_t B, size_t T, const int32_t *tokens, const int32_t *targets,
                             double loss, const float *logits, const float *grads, Error *err) {
    const size_t shape[3] = {B, T, c->vocab}, one = 1;
    const float loss32 = (float)loss;
    char temporary[PATH_MAX];
    SafeWriter out;
    if (snprintf(temporary, PATH_MAX, "%s.tmp", path) >= PATH_MAX)
        return error_set(err, "the path of the dump is too long");
    memset(&out, 0, sizeof out);
    safewriter_add(&out, "tokens", ST_I32, 2, shape);
    safewriter_add(&out, "targets", ST_I32, 2, shape);
    safewriter_add(&out, "loss", ST_F32, 1, &one);
    safewriter_add(&out, "logits", ST_F32, 3, shape);
    hf_add_all(&out, c, t, "grad.", false);
    bool ok = safewriter_open(&out, temporary, err)
        && safewriter_write(&out, tokens, B * T * sizeof(int32_t), err)
        && safewriter_write(&out, targets, B * T * sizeof(int32_t), err)
        && safewriter_write(&out, &loss32, sizeof loss32, err);
    for (size_t i = 0; ok && i < B * T; i++)
        ok = safewriter_write(&out, logits + i * c->vocab_padded, c->vocab * sizeof(float), err);
    ok = ok && hf_write_all(&out, c, t, grads, false, err);
    ok = safewriter_close(&out, err) && ok && file_rename(temporary, path, err);
    if (!ok) unlink(temporary);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// 4. Training state
//
// OUT/checkpoints/step_N/ holds state.safetensors (PART.NAME for every part, such as param, m and
// v, and every tensor in our naming and layout, without padding) and state.json (everything else,
// the hash of the first and one of itself). Written as OUT/checkpoints/tmp_step_N and renamed;
// a step_N that is there already is step_N.old meanwhile, and counts while there is no step_N.

typedef struct { const char *prefix; float *arena; } StatePart;  // prefix: "param", "m", "v", ..

typedef struct {
    size_t step;             // steps done
    uint64_t seed;
    uint64_t data_position;  // the next sequence's
    uint64_t data_hash;      // of the training data, as the trainer defines it
    char options[4096];      // the run's options: the text of a JSON object
} TrainState;

enum { STATE_VERSION = 1, STATE_SEAL = 29 };  // a seal is ,\n"seal":"16 digits"}\n
static const char state_options_key[] = "\n\"options\":";

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

// The shape of a tensor of ours as saved; returns the rank.
static inline int native_shape(const GPT2Tensor *x, size_t shape[2]) {
    shape[0] = x->rank == 2 ? x->rows : x->cols;
    shape[1] = x->cols;
    return x->rank == 2 ? 2 : 1;
}

// Writes the two files of a checkpoint into `dir`.
static inline bool state_write(const char *dir, const TrainState *s, const GPT2Config *c,
                               const GPT2Table *t, const StatePart *parts, int count, Error *err) {
    char path[PATH_MAX], name[128], *text = NULL;
    SafeWriter out;
    size_t n = 0, shape[2];
    memset(&out, 0, sizeof out);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < t->count; i++) {
            const GPT2Tensor *x = &t->tensors[i];
            snprintf(name, sizeof name, "%s.%s", parts[k].prefix, x->name);
            safewriter_add(&out, name, ST_F32, native_shape(x, shape), shape);
        }
    path_join(path, dir, "state.safetensors");
    bool ok = safewriter_open(&out, path, err);
    for (int k = 0; k < count; k++)
        for (int i = 0; ok && i < t->count; i++) {
            const GPT2Tensor *x = &t->tensors[i];
            ok = safewriter_write(&out, parts[k].arena + x->offset,
                                  x->rows * x->cols * sizeof(float), err);
        }
    if (!safewriter_close(&out, err) || !ok) return false;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL) fail("out of memory: state.json");
    // 64-bit numbers are strings: most readers of JSON keep 53 bits of a number.
    fprintf(f, "{\"version\":%d,\n\"step\":%zu,\n\"seed\":\"%" PRIu64 "\",\n"
            "\"data_position\":\"%" PRIu64 "\",\n\"data_hash\":\"%" PRIu64 "\",\n"
            "\"config\":{\"layers\":%zu,\"heads\":%zu,"
            "\"channels\":%zu,\"ffn\":%zu,\"context\":%zu,\"vocab\":%zu,\"family\":%d,"
            "\"activation\":%d,\"tied\":%d},\n\"bytes\":\"%" PRIu64 "\",\n\"hash\":\"%" PRIu64
            "\",%s%s",
            STATE_VERSION, s->step, s->seed, s->data_position, s->data_hash, c->layers, c->heads,
            c->channels, c->ffn, c->context, c->vocab, c->family, c->activation, c->tied,
            out.written, out.hash,
            state_options_key, s->options);
    fflush(f);
    fprintf(f, ",\n\"seal\":\"%016" PRIx64 "\"}\n", hash_bytes(text, n));
    if (fclose(f) != 0) fail("out of memory: state.json");
    path_join(path, dir, "state.json");
    ok = file_write(path, text, n, err);
    free(text);
    return ok && directory_sync(dir, err);
}

// Saves OUT/checkpoints/step_N with `count` parts of t->elements floats each, then removes all but
// the newest `keep` checkpoints of this and earlier steps (0: none). On failure, and if the process
// dies at any point, the checkpoints that were there are still there.
static inline bool state_save(const char *out, const TrainState *s, const GPT2Config *c,
                              const GPT2Table *t, const StatePart *parts, int count, int keep,
                              Error *err) {
    char dir[PATH_MAX], temporary[PATH_MAX], final[PATH_MAX], old[PATH_MAX], name[64];
    StateEntry *entries = NULL;
    Json *options = json_parse(s->options, strlen(s->options), err);
    if (options == NULL || options->type != JSON_OBJECT) {
        json_free(options);
        return error_set(err, "the options of a checkpoint must be a JSON object");
    }
    json_free(options);
    path_join(dir, out, "checkpoints");
    if (!make_directories(dir)) return error_set(err, "cannot make %s: %s", dir, strerror(errno));
    snprintf(name, sizeof name, "tmp_step_%08zu", s->step);
    path_join(temporary, dir, name);
    path_join(final, dir, name + 4);
    strcat(name, ".old");
    path_join(old, dir, name + 4);
    state_list(dir, &entries, true);
    free(entries);
    if (mkdir(temporary, 0777) != 0)
        return error_set(err, "cannot make %s: %s", temporary, strerror(errno));
    bool ok = state_write(temporary, s, c, t, parts, count, err);
    if (ok && path_exists(final)) {
        if (path_exists(old)) directory_remove(old);  // step_N is there, so this one is not needed
        ok = file_rename(final, old, err);
    }
    if (!ok || !file_rename(temporary, final, err)) {
        directory_remove(temporary);
        return false;
    }
    if (!directory_sync(dir, err)) return false;
    const size_t n = state_list(dir, &entries, false);
    int kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (entries[i].step > s->step) continue;
        const bool replaced = entries[i].old && i > 0 && entries[i - 1].step == entries[i].step;
        if (!replaced && (keep <= 0 || kept++ < keep)) continue;
        path_join(old, dir, entries[i].name);
        directory_remove(old);
    }
    free(entries);
    return true;
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
        shape_text(here, native_shape(x, shape), shape);
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

// Reads state.json's text. *bytes and *hash are what state.safetensors should have.
static inline bool state_parse(const char *text, size_t n, TrainState *s, GPT2Config *c,
                               uint64_t *bytes, uint64_t *hash, Error *err) {
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
        && state_u64(root, "data_hash", &s->data_hash) && state_u64(root, "bytes", bytes)
        && state_u64(root, "hash", hash)
        && json_get_size(config, "layers", &c->layers) && json_get_size(config, "heads", &c->heads)
        && json_get_size(config, "channels", &c->channels)
        && json_get_size(config, "ffn", &c->ffn) && json_get_size(config, "context", &c->context)
        && json_get_size(config, "vocab", &c->vocab)
        && json_get_size(config, "family", &family) && family <= FAMILY_OPT
        && json_get_size(config, "activation", &activation) && activation <= ACTIVATION_RELU
        && json_get_size(config, "tied", &tied) && tied <= 1;
    c->family = (int)family;
    c->activation = (int)activation;
    c->tied = (int)tied;
    // The options as they were given. No string before them can hold the key's line break.
    const char *key = (const char *)memmem(text, n, state_options_key, strlen(state_options_key));
    const char *options = key == NULL ? end : key + strlen(state_options_key);
    const size_t length = options < end ? (size_t)(end - options) : 0;
    const Json *value = json_get(root, "options");
    ok = ok && value != NULL && value->type == JSON_OBJECT && length < sizeof s->options;
    if (ok) memcpy(s->options, options, length);
    json_free(root);
    if (!current)
        return error_set(err, "state.json has version %zu, this program reads %d", version,
                         STATE_VERSION);
    return ok ? gpt2_finish(c, err) : error_set(err, "state.json lacks a field");
}

static inline bool state_read(const char *dir, TrainState *s, GPT2Config *c, uint64_t *bytes,
                              uint64_t *hash, Error *err) {
    char path[PATH_MAX];
    size_t n = 0;
    path_join(path, dir, "state.json");
    char *text = file_read(path, &n, err);
    if (text == NULL) return false;
    const bool ok = state_parse(text, n, s, c, bytes, hash, err);
    free(text);
    return ok;
}

// Reads and checks one checkpoint: both hashes, the size, every name and shape.
static inline bool state_check(const char *dir, TrainState *s, GPT2Config *c, Error *err) {
    char path[PATH_MAX];
    uint64_t bytes = 0, hash = 0, found_bytes = 0, found_hash = 0;
    if (!state_read(dir, s, c, &bytes, &hash, err)) return false;
    path_join(path, dir, "state.safetensors");
    if (!file_hash(path, &found_hash, &found_bytes, err)) return false;
    if (found_bytes != bytes)
        return error_set(err, "state.safetensors has %" PRIu64 " bytes instead of %" PRIu64,
                         found_bytes, bytes);
    if (found_hash != hash) return error_set(err, "state.safetensors is not what was written");
    SafeTensors st;
    if (!safetensors_open(&st, path, err)) return false;
    GPT2Table t = gpt2_table(c);
    const bool fits = state_shapes(&st, &t, err);
    gpt2_table_free(&t);
    safetensors_close(&st);
    return fits;
}

// Finds the newest whole checkpoint of the run in `out`, reads its *s and *c and puts its path into
// dir. Damaged ones are named on stderr and passed over. Returns false if none is left.
static inline bool state_find(const char *out, TrainState *s, GPT2Config *c, char dir[PATH_MAX],
                              Error *err) {
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

// Fills the parts' arenas from a checkpoint that state_find() has checked; padding becomes zero. It
// must hold exactly these parts, of this model. A part whose arena is NULL is known but not loaded.
static inline bool state_load(const char *dir, const GPT2Config *c, const GPT2Table *t,
                              const StatePart *parts, int count, Error *err) {
    char path[PATH_MAX], name[128];
    SafeTensors st;
    Error why;
    TrainState s;
    GPT2Config saved;
    uint64_t bytes, hash;
    if (!state_read(dir, &s, &saved, &bytes, &hash, err)) return false;
    if (saved.layers != c->layers || saved.heads != c->heads || saved.channels != c->channels
        || saved.ffn != c->ffn || saved.context != c->context || saved.vocab != c->vocab
        || saved.activation != c->activation || saved.tied != c->tied)
        return error_set(err, "%.200s is of another model: %zu layers, %zu heads, %zu channels, "
                         "MLP width %zu, context %zu, vocabulary %zu, %s, %s head", dir,
                         saved.layers, saved.heads, saved.channels, saved.ffn, saved.context,
                         saved.vocab, saved.activation == ACTIVATION_RELU ? "relu" : "gelu",
                         saved.tied ? "tied" : "untied");
    path_join(path, dir, "state.safetensors");
    if (!safetensors_open(&st, path, err)) return false;
    bool ok = state_shapes(&st, t, &why);
    for (int k = 0; ok && k < count; k++) {
        for (int i = 0; ok && i < t->count; i++) {
            snprintf(name, sizeof name, "%s.%s", parts[k].prefix, t->tensors[i].name);
            SafeTensor *x = safetensors_find(&st, name);
            if (x == NULL) ok = error_set(&why, "tensor %s is missing", name);
            else x->seen = true;
        }
    }
    for (int i = 0; ok && i < st.count; i++)
        if (!st.tensors[i].seen)
            ok = error_set(&why, "tensor %.100s is not used in this mode", st.tensors[i].name);
    for (int k = 0; ok && k < count; k++) {
        if (parts[k].arena == NULL) continue;
        memset(parts[k].arena, 0, t->elements * sizeof(float));
        for (int i = 0; i < t->count; i++) {
            snprintf(name, sizeof name, "%s.%s", parts[k].prefix, t->tensors[i].name);
            const SafeTensor *x = safetensors_find(&st, name);
            memcpy(parts[k].arena + t->tensors[i].offset, x->data, x->bytes);
            safetensor_release(x);
        }
    }
    safetensors_close(&st);
    return ok || error_set(err, "%.200s: %.300s", path, why.text);
}

#endif
