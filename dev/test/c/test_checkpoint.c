// Models and training state on disk: layouts against hand-written files and files that transformers
// wrote, every refusal, damage of every kind, full disks and killed processes.
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

// Every rename and flush in hf.h and state.h goes through here: number `trouble_at` (from 1; 0: none)
// fails, or ends the process as a power cut would.
static int trouble_at, trouble_count;
static int trouble_is_death;

static int trouble(void) {
    if (++trouble_count != trouble_at) return 0;
    if (trouble_is_death) _exit(9);
    errno = EIO;
    return -1;
}
static int test_rename(const char *from, const char *to) {
    return trouble() != 0 ? -1 : rename(from, to);
}
static int test_fsync(int fd) { return trouble() != 0 ? -1 : fsync(fd); }
#define rename test_rename
#define fsync test_fsync
#include "../../../tide/files/state.h"
#undef rename
#undef fsync
#include "../dies.h"
#include "../files.h"
#include "../test.h"
#include "../first_values.h"

static void write_text(const char *path, const void *text, size_t n) {
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(text, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static uint64_t hash_of(const char *path) {
    size_t n = 0;
    char *text = file_read(path, &n, &err);
    const uint64_t hash = text != NULL ? hash_bytes(text, n) : 0;
    free(text);
    return hash;
}

// Does this end the program? Its last words are then in err.
static bool died(const char *line) {
    if (line != NULL) snprintf(err.text, sizeof err.text, "%.500s", line);
    return line != NULL;
}
#define REFUSES(call) died(DIES(call))

static bool says(const char *expected) { return strstr(err.text, expected) != NULL; }

// The smallest file size that a write may reach; 0 takes the limit away.
static void limit_file_size(size_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

// State as a trainer passes it: in host memory, or, with `far` set, where only moved() knows.
// MIXED: in ranges that have nothing to do with tensors.
static enum { NEAR, MOVED, MIXED } far;
static size_t far_largest, far_total;  // bytes of one move, of all

enum { PARTS = 3, MAX_RANGES = 300 };
typedef struct {
    const GPT2Table *t;
    float *arenas[PARTS];
    size_t next;
    StateRange ranges[MAX_RANGES];
} Moved;

// What a move is promised: one tensor at a time, in order; with what pads it only inwards.
static void moved(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    Moved *m = (Moved *)owner;
    const GPT2Tensor *x = &m->t->tensors[gpt2_tensor_at(m->t, at)];
    const size_t end = x->offset + (out ? x->rows * x->cols : round_up(x->size, ALIGN_ELEMENTS));
    CHECK(n > 0 && at + n <= end, "%zu elements at %zu of %s", n, at, x->name);
    CHECK(at >= m->next || at == 0, "out of order: %s", x->name);
    m->next = at + n;
    if (n * sizeof *w > far_largest) far_largest = n * sizeof *w;
    far_total += n * sizeof *w;
    state_move(m->arenas, part, at, n, w, out);
}

// It can be used until 64 others have been made.
static RunState state_of(const GPT2Table *t, float *const *arenas, int parts) {
    static uint32_t random = 1;
    static Moved owners[64];
    static int owner;
    Moved *m = &owners[owner++ % 64];
    m->t = t;
    m->next = 0;
    memcpy(m->arenas, arenas, (size_t)parts * sizeof *arenas);
    RunState x = state_in(m->arenas, parts);
    if (far == NEAR) return x;
    x.move = moved;
    x.owner = m;
    if (far == MOVED) return x;
    x.ranges = m->ranges;
    x.count = 1;  // an empty one, in the middle of others
    m->ranges[0].at = t->elements / 2;
    m->ranges[0].length = 0;
    for (size_t at = 0; at < t->elements; at += m->ranges[x.count++].length) {
        random = random * 1664525 + 1013904223;
        m->ranges[x.count].at = at;
        m->ranges[x.count].length = min_size(t->elements - at,
                                             ALIGN_ELEMENTS * (1 + (random >> 20) % 7));
    }
    return x;
}

static const TextEnds no_ends = {-1, -1}, ends = {7, 5};

static bool save_model(const char *dir, const GPT2Config *c, const GPT2Table *t, float *arena,
                       bool bf16, int eot) {
    const RunState here = state_of(t, &arena, 1);
    const TextEnds these = {-1, eot};
    return model_save(dir, c, t, &here, bf16, these, NULL, &err);
}

// Sizes that no tile, block or alignment divides; and all that the LLaMA family's config.json says.
static GPT2Config config_of(int family, int tied) {
    static const Rope ropes[] = {
        {5e5, ROPE_LLAMA3, 8, 1, 4, 7}, {1e4, ROPE_NONE, 0, 0, 0, 0},
        {123.456, ROPE_LINEAR, 2.5, 0, 0, 0}, {1e6, ROPE_NONE, 0, 0, 0, 0}};
    GPT2Config c;
    config_family(&c, family);
    c.layers = 2; c.heads = 4; c.channels = 20; c.ffn = 37; c.context = 9; c.vocab = 131;
    c.tied = tied;
    if (family >= FAMILY_LLAMA) {
        c.kv_heads = 2;
        c.head_size = 6;  // not C / NH
        c.norm_eps = tied ? 1e-5 : 3e-7;
        c.rope = ropes[family - FAMILY_LLAMA];
    }
    if (family == FAMILY_LLAMA && tied) c.unbiased = 0;
    if (family == FAMILY_QWEN3 && !tied) c.unbiased = BIAS_MLP;
    gpt2_finish(&c, &err);
    return c;
}

// ---------------------------------------------------------------------------------------------
// Files as transformers writes them, made by hand. Element i of the tensor with this name (without
// any prefix) is a multiple of 1/1024 that fp16 holds exactly; hf_roundtrip.py has the same rule.

static float hf_value(const char *name, size_t i) {
    uint32_t h = 0;
    for (const char *s = name; *s != '\0'; s++) h = h * 31 + (unsigned char)*s;
    return (float)((int)((h % 2001 + 37 * i) % 2001) - 1000) / 1024;
}

typedef struct { char name[64]; int rank; size_t rows, cols; } Stored;

static void stored_add(Stored *list, int *n, size_t rows, size_t cols, const char *format,
                       int layer) {
    Stored *s = &list[(*n)++];
    snprintf(s->name, sizeof s->name, format, layer);
    s->rank = rows > 0 ? 2 : 1;
    s->rows = rows > 0 ? rows : 1;
    s->cols = cols;
}

// A linear layer, or one of q, k, v, gate and up: (rows, cols), and its bias, if there is one.
static void stored_linear(Stored *list, int *n, size_t rows, size_t cols, bool biased,
                          const char *name, int layer) {
    char format[64];
    snprintf(format, sizeof format, "layers.%%d.%s.weight", name);
    stored_add(list, n, rows, cols, format, layer);
    snprintf(format, sizeof format, "layers.%%d.%s.bias", name);
    if (biased) stored_add(list, n, 0, rows, format, layer);
}

// The tensors of transformers' GPT2LMHeadModel, OPTForCausalLM, LlamaForCausalLM and the latter's
// relatives, from their documentation.
static int stored_list(const GPT2Config *c, Stored *list) {
    const size_t C = c->channels, F = c->ffn;
    int n = 0;
    if (c->family == FAMILY_GPT2) {
        stored_add(list, &n, c->vocab, C, "wte.weight", 0);
        stored_add(list, &n, c->context, C, "wpe.weight", 0);
        for (int l = 0; l < (int)c->layers; l++) {
            stored_add(list, &n, 0, C, "h.%d.ln_1.weight", l);
            stored_add(list, &n, 0, C, "h.%d.ln_1.bias", l);
            stored_add(list, &n, C, 3 * C, "h.%d.attn.c_attn.weight", l);
            stored_add(list, &n, 0, 3 * C, "h.%d.attn.c_attn.bias", l);
            stored_add(list, &n, C, C, "h.%d.attn.c_proj.weight", l);
            stored_add(list, &n, 0, C, "h.%d.attn.c_proj.bias", l);
            stored_add(list, &n, 0, C, "h.%d.ln_2.weight", l);
            stored_add(list, &n, 0, C, "h.%d.ln_2.bias", l);
            stored_add(list, &n, C, F, "h.%d.mlp.c_fc.weight", l);
            stored_add(list, &n, 0, F, "h.%d.mlp.c_fc.bias", l);
            stored_add(list, &n, F, C, "h.%d.mlp.c_proj.weight", l);
            stored_add(list, &n, 0, C, "h.%d.mlp.c_proj.bias", l);
        }
        stored_add(list, &n, 0, C, "ln_f.weight", 0);
        stored_add(list, &n, 0, C, "ln_f.bias", 0);
    } else if (c->family >= FAMILY_LLAMA) {
        const bool qkv = !(c->unbiased & BIAS_QKV), o = !(c->unbiased & BIAS_ATTPROJ);
        const bool mlp = !(c->unbiased & BIAS_MLP);
        stored_add(list, &n, c->vocab, C, "embed_tokens.weight", 0);
        for (int l = 0; l < (int)c->layers; l++) {
            stored_linear(list, &n, 4 * 6, C, qkv, "self_attn.q_proj", l);
            stored_linear(list, &n, 2 * 6, C, qkv, "self_attn.k_proj", l);
            stored_linear(list, &n, 2 * 6, C, qkv, "self_attn.v_proj", l);
            stored_linear(list, &n, C, 4 * 6, o, "self_attn.o_proj", l);
            if (c->qk_norm) stored_add(list, &n, 0, 6, "layers.%d.self_attn.q_norm.weight", l);
            if (c->qk_norm) stored_add(list, &n, 0, 6, "layers.%d.self_attn.k_norm.weight", l);
            stored_linear(list, &n, F, C, mlp, "mlp.gate_proj", l);
            stored_linear(list, &n, F, C, mlp, "mlp.up_proj", l);
            stored_linear(list, &n, C, F, mlp, "mlp.down_proj", l);
            stored_add(list, &n, 0, C, "layers.%d.input_layernorm.weight", l);
            stored_add(list, &n, 0, C, "layers.%d.post_attention_layernorm.weight", l);
        }
        stored_add(list, &n, 0, C, "norm.weight", 0);
    } else {
        stored_add(list, &n, c->vocab, C, "embed_tokens.weight", 0);
        stored_add(list, &n, c->context + 2, C, "embed_positions.weight", 0);
        for (int l = 0; l < (int)c->layers; l++) {
            stored_linear(list, &n, C, C, true, "self_attn.q_proj", l);
            stored_linear(list, &n, C, C, true, "self_attn.k_proj", l);
            stored_linear(list, &n, C, C, true, "self_attn.v_proj", l);
            stored_linear(list, &n, C, C, true, "self_attn.out_proj", l);
            stored_add(list, &n, 0, C, "layers.%d.self_attn_layer_norm.weight", l);
            stored_add(list, &n, 0, C, "layers.%d.self_attn_layer_norm.bias", l);
            stored_linear(list, &n, F, C, true, "fc1", l);
            stored_linear(list, &n, C, F, true, "fc2", l);
            stored_add(list, &n, 0, C, "layers.%d.final_layer_norm.weight", l);
            stored_add(list, &n, 0, C, "layers.%d.final_layer_norm.bias", l);
        }
        stored_add(list, &n, 0, C, "final_layer_norm.weight", 0);
        stored_add(list, &n, 0, C, "final_layer_norm.bias", 0);
    }
    if (!c->tied) stored_add(list, &n, c->vocab, C, "lm_head.weight", 0);
    return n;
}

// What our element (row, col) of native tensor x must be, by its place in the stored tensors.
static float native_value(const GPT2Config *c, const GPT2Tensor *x, size_t row, size_t col) {
    static const struct { const char *native, *gpt2, *opt, *llama; } names[] = {
        {"wte", "wte.weight", "embed_tokens.weight", "embed_tokens.weight"},
        {"wpe", "wpe.weight", "embed_positions.weight", ""},
        {"lm_head", "lm_head.weight", "lm_head.weight", "lm_head.weight"},
        {"ln_f.w", "ln_f.weight", "final_layer_norm.weight", "norm.weight"},
        {"ln_f.b", "ln_f.bias", "final_layer_norm.bias", ""},
        {"ln_1.w", "ln_1.weight", "self_attn_layer_norm.weight", "input_layernorm.weight"},
        {"ln_1.b", "ln_1.bias", "self_attn_layer_norm.bias", ""},
        {"attn.qkv.w", "attn.c_attn.weight", "self_attn.%s_proj.weight",
         "self_attn.%s_proj.weight"},
        {"attn.qkv.b", "attn.c_attn.bias", "self_attn.%s_proj.bias", "self_attn.%s_proj.bias"},
        {"attn.q_norm.w", "", "", "self_attn.q_norm.weight"},
        {"attn.k_norm.w", "", "", "self_attn.k_norm.weight"},
        {"attn.proj.w", "attn.c_proj.weight", "self_attn.out_proj.weight",
         "self_attn.o_proj.weight"},
        {"attn.proj.b", "attn.c_proj.bias", "self_attn.out_proj.bias", "self_attn.o_proj.bias"},
        {"ln_2.w", "ln_2.weight", "final_layer_norm.weight", "post_attention_layernorm.weight"},
        {"ln_2.b", "ln_2.bias", "final_layer_norm.bias", ""},
        {"mlp.fc.w", "mlp.c_fc.weight", "fc1.weight", "mlp.%s_proj.weight"},
        {"mlp.fc.b", "mlp.c_fc.bias", "fc1.bias", "mlp.%s_proj.bias"},
        {"mlp.proj.w", "mlp.c_proj.weight", "fc2.weight", "mlp.down_proj.weight"},
        {"mlp.proj.b", "mlp.c_proj.bias", "fc2.bias", "mlp.down_proj.bias"}};
    const bool gpt2 = c->family == FAMILY_GPT2, opt = c->family == FAMILY_OPT;
    const bool llama = !gpt2 && !opt;
    const char *native = x->kind < 0 ? x->name : strchr(x->name + 2, '.') + 1;
    size_t i = 0, out = x->rank == 2 ? row : col;
    while (strcmp(names[i].native, native) != 0) i++;
    const char *part = "";
    if (llama && (x->kind == FC_W || x->kind == FC_B)) {
        part = out < 37 ? "gate" : "up";
        out %= 37;
    } else if (!gpt2 && (x->kind == QKV_W || x->kind == QKV_B)) {
        const size_t keys = llama ? 24 : c->channels, values = llama ? 36 : 2 * c->channels;
        part = out < keys ? "q" : out < values ? "k" : "v";
        out -= out < keys ? 0 : out < values ? keys : values;
    }
    char name[96], last[64];
    snprintf(last, sizeof last, gpt2 ? names[i].gpt2 : opt ? names[i].opt : names[i].llama, part);
    if (x->kind < 0) snprintf(name, sizeof name, "%s", last);
    else snprintf(name, sizeof name, "%s.%d.%s", gpt2 ? "h" : "layers", x->layer, last);
    if (gpt2 && x->kind >= 0 && x->rank == 2) return hf_value(name, col * x->rows + row);
    if (opt && strcmp(native, "wpe") == 0) out += 2;
    return hf_value(name, x->rank == 2 ? out * x->cols + col : out);
}

static void check_native(const GPT2Config *c, const GPT2Table *t, const float *arena) {
    size_t at = 0;
    for (int i = 0; i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        for (; at < x->offset; at++) CHECK(arena[at] == 0, "gap before %s", x->name);
        for (size_t row = 0; row < x->rows_padded; row++)
            for (size_t col = 0; col < x->cols; col++, at++) {
                const float expected = row < x->rows ? native_value(c, x, row, col) : 0.0f;
                CHECK(arena[at] == expected, "%s (%zu, %zu): %g, not %g", x->name, row, col,
                      (double)arena[at], (double)expected);
            }
    }
}

// How a file differs from a plain one; names are without the prefix.
typedef struct {
    const char *prefix, *drop, *reshape, *nan, *twice, *extra;
    int dtype, shards, head;
    bool masks;      // and other buffers that old files have
} Variant;

enum { HEAD_SAME = 1, HEAD_OTHER };  // Variant.head: a tied model's file has one, too

static uint16_t f16_exact(float f) {  // for multiples of 1/1024 below 1
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f == 0) return (uint16_t)(u >> 16);
    return (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 0xff) - 112) << 10) | (u >> 13 & 0x3ff));
}

static void write_value(SafeWriter *w, int tensor, size_t i, int dtype, float f) {
    const double wide = f;
    const uint16_t half = dtype == ST_F16 ? f16_exact(f) : f32_to_bf16(f);
    const int64_t whole = (int64_t)f;
    const void *p = dtype == ST_F64 ? (const void *)&wide : dtype == ST_I64 ? (const void *)&whole
                  : dtype == ST_F32 ? (const void *)&f : (const void *)&half;
    safewriter_put(w, tensor, i * st_dtypes[dtype].size, p, st_dtypes[dtype].size);
}

// Writes model.safetensors (or shards with an index) into dir, and config.json of our own.
static void write_hf(const char *dir, const GPT2Config *c, const Variant *v) {
    static Stored list[64];
    char name[128], path[PATH_MAX], index[16384] = "{\"weight_map\":{";
    const int shards = v->shards > 0 ? v->shards : 1;
    int count = stored_list(c, list);
    remove_tree(dir);
    make_directories(dir);
    if (v->head) stored_add(list, &count, c->vocab, c->channels, "lm_head.weight", 0);
    if (v->masks && c->family == FAMILY_GPT2) {
        stored_add(list, &count, 9, 9, "h.1.attn.bias", 0);
        list[count - 1].rank = 4;
        stored_add(list, &count, 0, 1, "h.0.attn.masked_bias", 0);
    } else if (v->masks && c->family >= FAMILY_LLAMA) {
        stored_add(list, &count, 0, 3, "layers.1.self_attn.rotary_emb.inv_freq", 0);
    }
    if (v->extra != NULL) stored_add(list, &count, 0, 3, v->extra, 0);
    if (v->twice != NULL) stored_add(list, &count, 0, c->channels, v->twice, 0);
    for (int k = 0; k < shards; k++) {
        SafeWriter w;
        memset(&w, 0, sizeof w);
        char file[64];
        snprintf(file, sizeof file, "model-%d-of-%d.safetensors", k + 1, shards);
        if (shards == 1) snprintf(file, sizeof file, "model.safetensors");
        for (int pass = 0; pass < 2; pass++) {
            for (int i = k, number = 0; i < count; i += shards, number++) {
                const Stored *s = &list[i];
                size_t shape[4] = {s->rank == 2 ? s->rows : s->cols, s->cols, 0, 0};
                const bool tie = v->head == HEAD_SAME && strcmp(s->name, "lm_head.weight") == 0;
                if (s->rank == 4) {
                    shape[2] = shape[3] = shape[1];
                    shape[0] = shape[1] = 1;
                }
                const bool own = v->twice != NULL && i == count - 1;  // the other spelling
                const char *prefix = strcmp(s->name, "lm_head.weight") == 0 || own ? "" : v->prefix;
                if (v->drop != NULL && strcmp(s->name, v->drop) == 0) {
                    number--;
                    continue;
                }
                if (v->reshape != NULL && strcmp(s->name, v->reshape) == 0) {
                    const size_t swap = shape[0];
                    shape[0] = shape[1];
                    shape[1] = swap;
                }
                snprintf(name, sizeof name, "%s%s", prefix, s->name);
                if (pass == 0) {
                    safewriter_add(&w, name, v->dtype, s->rank, shape);
                    snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\":\"%s\"",
                             strlen(index) > 16 ? "," : "", name, file);
                    continue;
                }
                for (size_t j = 0; j < s->rows * s->cols; j++) {
                    const bool bad = v->nan != NULL && strcmp(s->name, v->nan) == 0
                        && j == s->rows * s->cols - 1;
                    write_value(&w, number, j, v->dtype, bad ? NAN
                                : hf_value(tie ? list[0].name : s->name, j));
                }
            }
            path_join(path, dir, file);
            if (pass == 0) safewriter_open(&w, path);
        }
        CHECK(safewriter_close(&w, &err), "%s", err.text);
    }
    path_join(path, dir, "config.json");
    FILE *f = fopen(path, "wb");
    if (f == NULL) die("cannot write %s", path);
    config_write(f, c, false, no_ends, NULL);
    fclose(f);
    strcat(index, "}}");
    path_join(path, dir, "model.safetensors.index.json");
    if (shards > 1) write_text(path, index, strlen(index));
}

// Loads what is at path, as a model of configuration *c (NULL: the one in config.json).
static float *load(const char *path, const GPT2Config *c, GPT2Table *t) {
    GPT2Config own;
    if (c == NULL) {
        if (REFUSES(model_config_load(path, &own))) return NULL;
        c = &own;
    }
    *t = gpt2_table(c);
    float *arena = (float *)alloc_or_fail(t->elements, sizeof(float), "arena");
    memset(arena, 0xff, t->elements * sizeof(float));
    const RunState here = state_of(t, &arena, 1);
    far_total = 0;
    if (!REFUSES(model_load(path, c, t, &here))) {
        CHECK(far == NEAR || far_total == t->elements * sizeof(float), "%zu copied", far_total);
        return arena;
    }
    free(arena);
    gpt2_table_free(t);
    return NULL;
}

static void check_loads(const char *path, const GPT2Config *c) {
    GPT2Table t;
    float *arena = load(path, NULL, &t);
    CHECK(arena != NULL, "%s", err.text);
    if (arena == NULL) return;
    check_native(c, &t, arena);
    free(arena);
    gpt2_table_free(&t);
}

static void check_refused(const GPT2Config *c, Variant v, const char *expected) {
    GPT2Table t;
    const char *dir = in_base("bad");
    write_hf(dir, c, &v);
    err.text[0] = '\0';
    float *arena = load(dir, c, &t);
    CHECK(arena == NULL, "should be refused with: %s", expected);
    CHECK(says(expected), "it says \"%s\", not \"%s\"", err.text, expected);
    if (arena != NULL) { free(arena); gpt2_table_free(&t); }
}

// ---------------------------------------------------------------------------------------------
// Loading

static int first_family, end_family = FAMILIES;  // those that are loaded and saved

static void test_load_layouts(void) {
    static const int dtypes[] = {ST_F32, ST_F16, ST_F64};
    int n = 0;
    for (int family = first_family; family < end_family; family++)
        for (int tied = 0; tied < 2; tied++)
            for (const char *const *p = hf_prefixes[hf_families[family].naming]; *p != NULL; p++)
                for (int shards = 1; shards <= 3; shards++) {
                    GPT2Config c = config_of(family, tied);
                    Variant v = {0};
                    v.prefix = *p;
                    v.dtype = dtypes[n++ % 3];
                    v.shards = shards;
                    v.masks = true;
                    v.head = tied && n % 2 == 0 ? HEAD_SAME : 0;
                    write_hf(in_base("load"), &c, &v);
                    check_loads(in_base("load"), &c);
                }
}

static void test_load_from_a_file(void) {
    GPT2Config c = config_of(FAMILY_GPT2, 1);
    Variant v = {0};
    char cwd[PATH_MAX];
    v.prefix = "transformer.";
    write_hf(in_base("load"), &c, &v);
    check_loads(in_base("load/model.safetensors"), &c);
    check_loads(in_base("load/"), &c);
    if (getcwd(cwd, sizeof cwd) == NULL || chdir(in_base("load")) != 0) SKIP("cannot chdir");
    check_loads("model.safetensors", &c);
    check_loads(".", &c);
    CHECK(chdir(cwd) == 0, "back");
}

// A head beside tied embeddings: equal, it is they; different, the model is untied; alone, it is
// both.
static void test_load_heads(void) {
    static const int dtypes[] = {ST_F32, ST_F64, ST_F16};
    int n = 0;
    ranks.rank = 1;  // which prints no note
    for (int family = 0; family < FAMILIES; family++)
        for (const char *const *p = hf_prefixes[hf_families[family].naming]; *p != NULL; p++)
            for (int shards = 1; shards <= 3; shards++, n++) {
                GPT2Config c = config_of(family, 1), untied = config_of(family, 0), found;
                Variant v = {0};
                char *dir = in_base("heads");
                v.prefix = *p;
                v.dtype = dtypes[(n + shards) % 3];
                v.shards = shards;
                v.head = HEAD_OTHER;
                write_hf(dir, &c, &v);
                model_config_load(dir, &found);
                CHECK(found.tied == 0, "family %d, %d shards: it is tied", family, shards);
                check_loads(dir, &untied);
                v.head = HEAD_SAME;
                write_hf(dir, &c, &v);
                model_config_load(dir, &found);
                CHECK(found.tied == 1, "family %d, %d shards: it is untied", family, shards);
                check_loads(dir, &c);
                v.drop = family == FAMILY_GPT2 ? "wte.weight" : "embed_tokens.weight";
                write_hf(dir, &c, &v);
                check_loads(dir, &c);
            }
    GPT2Config g = config_of(FAMILY_GPT2, 1), found;
    GPT2Table t;
    Variant v = {0};
    v.prefix = "transformer.";
    v.head = HEAD_SAME;
    v.reshape = "lm_head.weight";
    write_hf(in_base("heads"), &g, &v);
    CHECK(!load(in_base("heads"), NULL, &t)
          && says("tensor lm_head.weight is (20, 131), the model needs (131, 20)"), "%s", err.text);
    v.drop = "wte.weight";
    write_hf(in_base("heads"), &g, &v);
    CHECK(!load(in_base("heads"), NULL, &t) && says("lm_head.weight is (20, 131)"), "alone");
    v.reshape = v.drop = NULL;
    v.nan = "lm_head.weight";
    write_hf(in_base("heads"), &g, &v);
    CHECK(!load(in_base("heads"), NULL, &t) && says("tensor lm_head.weight has a NaN"), "%s",
          err.text);
    v.nan = NULL;
    write_hf(in_base("heads"), &g, &v);  // one bit of its last element
    struct stat st;
    FILE *f = fopen(in_base("heads/model.safetensors"), "r+b");
    CHECK(f != NULL && fstat(fileno(f), &st) == 0 && fseek(f, -1, SEEK_END) == 0, "open");
    const int last = fgetc(f);
    CHECK(fseek(f, -1, SEEK_END) == 0 && fputc(last ^ 1, f) != EOF && fclose(f) == 0, "write");
    model_config_load(in_base("heads"), &found);
    ranks.rank = 0;
    CHECK(found.tied == 0, "the last element is not looked at");
    unlink(in_base("heads/model.safetensors"));  // what --plan may read is config.json alone
    model_config_load(in_base("heads"), &found);
    CHECK(found.tied == 1, "without weights");
}

// Something else in a model's place is told by its first bytes.
static void test_load_others(void) {
    static const struct { const char *bytes; size_t n; const char *says; } others[] = {
        {"\xc6\xd7\x34\x01\3\0\0\0\0\0\0\0", 12, "an llm.c checkpoint"},
        {"GGUF\3\0\0\0\1\0\0\0", 12, "GGUF"}, {"PK\3\4\0\0\0\0\0\0\0\0", 12, "build/unpickle"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 57, "git lfs pull"},
        {"<!DOCTYPE html>\n<html>", 22, "a web page"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\3\0\0", 12, "unpack"},
        {"once upon a time", 16, "not a safetensors file"},
    };
    GPT2Config c = config_of(FAMILY_GPT2, 1);
    Variant v = {0};
    GPT2Table t;
    v.prefix = "transformer.";
    v.shards = 2;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char *dir = in_base("others"), *file = in_base("others/model.bin");
        remove_tree(dir);
        make_directories(dir);
        write_text(file, others[i].bytes, others[i].n);
        CHECK(!load(file, NULL, &t) && says(others[i].says) && says("model.bin"), "%s", err.text);
        write_text(in_base("others/model.safetensors"), others[i].bytes, others[i].n);
        CHECK(!load(dir, NULL, &t) && says(others[i].says), "%s", err.text);
        write_hf(dir, &c, &v);
        write_text(in_base("others/model-2-of-2.safetensors"), others[i].bytes, others[i].n);
        CHECK(!load(dir, NULL, &t) && says(others[i].says) && says("model-2"), "%s", err.text);
        if (i + 1 == sizeof others / sizeof others[0]) break;
        write_hf(dir, &c, &v);
        write_text(in_base("others/model.safetensors.index.json"), others[i].bytes, others[i].n);
        CHECK(!load(dir, NULL, &t) && says(others[i].says) && says("index.json"), "%s", err.text);
        write_text(in_base("others/config.json"), others[i].bytes, others[i].n);
        unlink(in_base("others/model.safetensors.index.json"));
        CHECK(!load(dir, NULL, &t) && says(others[i].says) && says("config.json"), "%s", err.text);
    }
    write_text(in_base("others/state.txt"), "", 0);
    CHECK(!load(in_base("others"), NULL, &t) && says("is a checkpoint: --model takes"), "%s",
          err.text);
    CHECK(!load(in_base("others/state.safetensors"), NULL, &t) && says("is a checkpoint"), "%s",
          err.text);
}

// Written by dev/test/hf_roundtrip.py --fixtures with transformers' save_pretrained(): GPT-2 in
// fp32 as the base model (no prefix), OPT in fp16 in several shards.
static void test_load_fixtures(void) {
    const char *here = TEST_FIXTURES "/hf";
    char path[PATH_MAX];
    for (int family = 0; family < 2; family++) {
        GPT2Config c;
        path_join(path, here, family == FAMILY_OPT ? "opt" : "gpt2");
        model_config_load(path, &c);
        CHECK(c.layers == 2 && c.heads == 2 && c.channels == 16 && c.context == 12 && c.vocab == 67,
              "sizes");
        CHECK(c.ffn == (family == FAMILY_OPT ? 40u : 64u), "MLP width %zu", c.ffn);
        CHECK(c.family == family && c.tied == 1, "family %d tied %d", c.family, c.tied);
        CHECK(c.activation == (family == FAMILY_OPT ? ACTIVATION_RELU : ACTIVATION_GELU), "kind");
        check_loads(path, &c);
    }
}

static void test_load_refuses(void) {
    GPT2Config g = config_of(FAMILY_GPT2, 1), o = config_of(FAMILY_OPT, 0);
    Variant v = {0}, w = {0};
    v.prefix = "transformer.";
    w.prefix = "model.decoder.";
    Variant x = v;
    x.drop = "h.1.mlp.c_fc.bias";
    check_refused(&g, x, "tensor transformer.h.1.mlp.c_fc.bias is missing, the model needs (37)");
    x = v; x.reshape = "h.0.mlp.c_fc.weight";
    check_refused(&g, x, "transformer.h.0.mlp.c_fc.weight is (37, 20), the model needs (20, 37)");
    x = v; x.nan = "h.1.attn.c_proj.weight";
    check_refused(&g, x, "tensor transformer.h.1.attn.c_proj.weight has a NaN");
    x = v; x.nan = "wte.weight";
    check_refused(&g, x, "tensor transformer.wte.weight has a NaN");
    x = v; x.nan = "ln_f.bias"; x.dtype = ST_BF16;
    check_refused(&g, x, "tensor transformer.ln_f.bias has a NaN");
    x = v; x.twice = "ln_f.bias";
    check_refused(&g, x, "ln_f.bias is there more than once");
    x = v; x.extra = "h.2.ln_1.weight";
    check_refused(&g, x, "tensor transformer.h.2.ln_1.weight is unknown to a gpt2 model");
    x = v; x.extra = "h.0.attn.c_attn.lora_A";
    check_refused(&g, x, "lora_A is unknown");
    x = v; x.extra = "h.0.attn.bias";  // (3): no mask
    check_refused(&g, x, "h.0.attn.bias is unknown");
    x = v; x.extra = "h.0.attn.masked_bias";
    check_refused(&g, x, "h.0.attn.masked_bias is unknown");
    x = v; x.dtype = ST_I64;
    check_refused(&g, x, "tensor transformer.wte.weight is not stored as F32, F16, BF16 or F64");
    x = v; x.prefix = "model.";
    check_refused(&g, x, "transformer.wte.weight is missing, the model needs (131, 20)");
    x = w; x.drop = "layers.0.self_attn.v_proj.weight";
    check_refused(&o, x, "self_attn.v_proj.weight is missing, the model needs (20, 20)");
    x = w; x.drop = "lm_head.weight";
    check_refused(&o, x, "tensor lm_head.weight is missing, the model needs (131, 20)");
    x = w; x.reshape = "embed_positions.weight";
    check_refused(&o, x, "embed_positions.weight is (20, 11), the model needs (11, 20)");
    x = w; x.extra = "project_in.weight";
    check_refused(&o, x, "project_in.weight is unknown to a opt model with an untied head");
    GPT2Config l = config_of(FAMILY_LLAMA, 0), q = config_of(FAMILY_QWEN2, 1);
    w.prefix = "model.";
    x = w; x.drop = "layers.1.mlp.up_proj.weight";
    check_refused(&l, x, "model.layers.1.mlp.up_proj.weight is missing, the model needs (37, 20)");
    x = w; x.reshape = "layers.0.self_attn.o_proj.weight";
    check_refused(&l, x, "o_proj.weight is (24, 20), the model needs (20, 24)");
    x = w; x.reshape = "layers.0.self_attn.k_proj.weight";
    check_refused(&l, x, "k_proj.weight is (20, 12), the model needs (12, 20)");
    x = w; x.extra = "layers.0.self_attn.q_proj.bias";
    check_refused(&l, x, "q_proj.bias is unknown to a llama model with an untied head");
    x = w; x.drop = "layers.1.self_attn.v_proj.bias";
    check_refused(&q, x, "v_proj.bias is missing, the model needs (12)");
    x = w; x.extra = "layers.0.self_attn.q_norm.weight";
    check_refused(&q, x, "q_norm.weight is unknown to a qwen2 model with a tied head");
    x = v; x.extra = "h.0.attn.rotary_emb.inv_freq";
    check_refused(&g, x, "inv_freq is unknown to a gpt2 model");
    GPT2Config untied = g;
    untied.tied = 0;
    GPT2Table t;
    write_hf(in_base("bad"), &g, &v);
    CHECK(load(in_base("bad"), &untied, &t) == NULL && says("lm_head.weight"), "%s", err.text);
    g.vocab = 130;
    gpt2_finish(&g, &err);
    CHECK(load(in_base("bad"), &g, &t) == NULL
          && says("is (131, 20), the model needs (130, 20)"), "%s", err.text);
}

static void test_load_paths_and_shards(void) {
    GPT2Config c = config_of(FAMILY_GPT2, 1);
    Variant v = {0};
    GPT2Table t;
    char *dir = in_base("shards"), index[PATH_MAX];
    v.prefix = "transformer.";
    v.shards = 3;
    CHECK(!load(in_base("nowhere"), &c, &t) && says("No such file"), "%s", err.text);
    make_directories(in_base("empty"));
    CHECK(!load(in_base("empty"), &c, &t) && says("and there is no model.safetensors"), "%s",
          err.text);
    CHECK(!load(in_base("empty"), NULL, &t) && says("config.json"), "%s", err.text);
    write_hf(dir, &c, &v);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
    static const struct { const char *text, *expected; } bad[] = {
        {"{}", "there is no weight_map"}, {"{\"weight_map\":[]}", "there is no weight_map"},
        {"{\"weight_map\":{}}", "there is no weight_map"}, {"{\"weight_map\":", "JSON"},
        {"{\"weight_map\":{\"x\":3}}", "impossible file"},
        {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "impossible file"},
        {"{\"weight_map\":{\"x\":\"a.safetensors\"}}", "No such file"},
        {"{\"weight_map\":{\"transformer.wte.weight\":\"model-1-of-3.safetensors\"}}",
         "is missing"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(index, bad[i].text, strlen(bad[i].text));
        CHECK(!load(dir, &c, &t) && says(bad[i].expected), "%s: %s", bad[i].text, err.text);
    }
    write_hf(dir, &c, &v);
    char second[PATH_MAX];
    snprintf(second, sizeof second, "%s/model-2-of-3.safetensors", dir);
    CHECK(truncate(second, 3000) == 0, "truncate");
    CHECK(!load(dir, &c, &t) && says("model-2-of-3.safetensors"), "%s", err.text);
    CHECK(truncate(second, 0) == 0, "truncate");
    CHECK(!load(dir, &c, &t) && says("cut short: 0 bytes"), "%s", err.text);
}

// ---------------------------------------------------------------------------------------------
// config.json

static bool config_from(const char *text, GPT2Config *c) {
    make_directories(in_base("config"));
    write_text(in_base("config/config.json"), text, strlen(text));
    err.text[0] = '\0';
    return !REFUSES(model_config_load(in_base("config"), c));
}

#define GPT2_SIZES "\"model_type\":\"gpt2\",\"n_layer\":3,\"n_head\":2,\"n_embd\":8," \
                   "\"n_positions\":5,\"vocab_size\":300"
#define OPT_SIZES "\"model_type\":\"opt\",\"num_hidden_layers\":3,\"num_attention_heads\":2," \
                  "\"hidden_size\":8,\"max_position_embeddings\":5,\"vocab_size\":300"

static void test_config_accepts(void) {
    static const struct {
        const char *text;
        size_t ffn;
        int family, activation, tied;
        size_t embed;
    } good[] = {
        {"{" GPT2_SIZES "}", 32, FAMILY_GPT2, ACTIVATION_GELU, 1, 0},
        {"{" GPT2_SIZES ",\"n_inner\":null,\"tie_word_embeddings\":false}", 32, 0, 0, 0, 0},
        {"{" GPT2_SIZES ",\"n_inner\":7,\"activation_function\":\"relu\"}", 7, 0, 1, 1, 0},
        {"{" GPT2_SIZES ",\"n_inner\":null,\"activation_function\":null,"
         "\"quantization_config\":null,\"tie_word_embeddings\":null,\"layer_norm_epsilon\":null}", 32, 0, 0, 1, 0},
        {"\xef\xbb\xbf{" GPT2_SIZES "}", 32, FAMILY_GPT2, ACTIVATION_GELU, 1, 0},
        {"{" OPT_SIZES ",\"word_embed_proj_dim\":null,\"do_layer_norm_before\":null,"
         "\"ffn_dim\":null}", 32, FAMILY_OPT, ACTIVATION_RELU, 1, 0},
        {"{" GPT2_SIZES ",\"activation_function\":\"gelu_pytorch_tanh\",\"n_ctx\":5}", 32, 0, 0, 1,
         0},
        {"{" GPT2_SIZES ",\"activation_function\":\"gelu_fast\",\"attn_pdrop\":0.1}", 32, 0, 0, 1,
         0},
        {"{" GPT2_SIZES ",\"layer_norm_epsilon\":0.00001,\"scale_attn_weights\":true}",
         32, 0, 0, 1, 0},
        {"{" OPT_SIZES ",\"ffn_dim\":16}", 16, FAMILY_OPT, ACTIVATION_RELU, 1, 0},
        {"{" OPT_SIZES ",\"activation_function\":\"gelu_new\",\"word_embed_proj_dim\":8,"
         "\"do_layer_norm_before\":true,\"enable_bias\":true,\"tie_word_embeddings\":false}",
         32, FAMILY_OPT, ACTIVATION_GELU, 0, 0},
        {"{" OPT_SIZES ",\"scale_attn_weights\":false,\"enable_bias\":null}", 32, FAMILY_OPT,
         ACTIVATION_RELU, 1, 0},
        {"{" OPT_SIZES ",\"do_layer_norm_before\":false,\"word_embed_proj_dim\":4}", 32, FAMILY_OPT,
         ACTIVATION_RELU, 1, 4},
        // GPT-2's other names, which transformers reads before its own
        {"{\"model_type\":\"gpt2\",\"num_hidden_layers\":3,\"num_attention_heads\":2,\"n_embd\":9,"
         "\"hidden_size\":8,\"n_positions\":6,\"max_position_embeddings\":5,\"n_layer\":4,\"n_head\":3,"
         "\"vocab_size\":300,\"ffn_dim\":9,\"is_causal\":true}", 32, 0, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        GPT2Config c;
        CHECK(config_from(good[i].text, &c), "%s: %s", good[i].text, err.text);
        CHECK(c.layers == 3 && c.heads == 2 && c.channels == 8 && c.context == 5 && c.vocab == 300
              && c.vocab_padded == 384, "%zu: sizes", i);
        CHECK(c.ffn == good[i].ffn && c.family == good[i].family && c.tied == good[i].tied
              && c.activation == good[i].activation && c.embed == good[i].embed,
              "%zu: %zu %d %d %d %zu", i, c.ffn, c.family, c.tied, c.activation, c.embed);
    }
}

// The LLaMA family, of 32 heads and 64 channels; "TYPE" is in the place of %s.
#define LLAMA_SIZES "{\"model_type\":\"%s\",\"num_hidden_layers\":3," \
                    "\"num_attention_heads\":32,\"hidden_size\":64,\"intermediate_size\":7," \
                    "\"max_position_embeddings\":5000,\"vocab_size\":300"

static bool llama_from(const char *type, const char *more, GPT2Config *c) {
    char text[2000];
    const size_t n = (size_t)snprintf(text, sizeof text, LLAMA_SIZES, type);
    snprintf(text + n, sizeof text - n, "%s%s}", *more != '\0' ? "," : "", more);
    return config_from(text, c);
}

// What each family takes for a key that is missing or null, and what each key says.
static void test_config_llama(void) {
    enum { NO_BIAS = BIAS_QKV | BIAS_ATTPROJ | BIAS_MLP, QWEN = BIAS_ATTPROJ | BIAS_MLP };
    static const char nulls[] =
        "\"num_key_value_heads\":null,\"rms_norm_eps\":null,\"tie_word_embeddings\":null,"
        "\"hidden_act\":null,\"attention_bias\":null,\"mlp_bias\":null,\"rope_theta\":null,"
        "\"rope_scaling\":null,\"rope_parameters\":null,\"partial_rotary_factor\":null,"
        "\"pretraining_tp\":null,\"quantization_config\":null,\"sliding_window\":null,"
        "\"use_sliding_window\":null,\"head_dim\":null,\"eos_token_id\":null";
    static const char values[] =
        "\"num_key_value_heads\":4,\"head_dim\":6,\"rms_norm_eps\":1e-5,"
        "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"attention_bias\":true,"
        "\"mlp_bias\":true,\"rope_theta\":5e5,\"pretraining_tp\":1,\"eos_token_id\":[1,2],"
        "\"bos_token_id\":7,\"attention_dropout\":0.1,\"partial_rotary_factor\":1.0,"
        "\"torch_dtype\":\"bfloat16\",\"sliding_window\":9000,\"use_sliding_window\":true";
    #define SLIDING "\"sliding_window\":9,\"use_sliding_window\":true,"
    #define LAYERS(a, b) "\"layer_types\":[\"" a "_attention\",\"full_attention\",\"" b "_attention\"]"
    static const struct {
        const char *type, *more;
        size_t kv_heads, head, context;
        double eps;
        int tied, unbiased;
        double theta;
    } good[] = {
        {"llama", "", 32, 2, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"mistral", "", 8, 2, 4096, 1e-6, 0, NO_BIAS, 1e4},
        {"qwen2", "", 32, 2, 5000, 1e-6, 0, QWEN, 1e4},
        {"qwen3", "", 32, 128, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"llama", nulls, 32, 2, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"mistral", nulls, 32, 2, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"qwen2", nulls, 32, 2, 5000, 1e-6, 0, QWEN, 1e4},
        {"qwen3", nulls, 32, 128, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"llama", values, 4, 6, 5000, 1e-5, 1, 0, 5e5},
        {"mistral", values, 4, 6, 5000, 1e-5, 1, NO_BIAS, 5e5},  // has no key for biases
        {"qwen2", values, 4, 6, 5000, 1e-5, 1, QWEN, 5e5},       // neither
        {"qwen3", values, 4, 6, 5000, 1e-5, 1, BIAS_MLP, 5e5},
        {"llama", "\"head_dim\":2,\"sliding_window\":9", 32, 2, 5000, 1e-6, 0, NO_BIAS, 1e4},
        // a window limits the context, where it is used
        {"mistral", "\"sliding_window\":1000", 8, 2, 1000, 1e-6, 0, NO_BIAS, 1e4},
        {"mistral", "\"sliding_window\":5001", 8, 2, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"qwen2", "\"sliding_window\":9", 32, 2, 5000, 1e-6, 0, QWEN, 1e4},
        {"qwen2", "\"sliding_window\":9,\"use_sliding_window\":false", 32, 2, 5000, 1e-6, 0, QWEN,
         1e4},
        {"qwen2", SLIDING "\"max_window_layers\":2", 32, 2, 9, 1e-6, 0, QWEN, 1e4},
        {"qwen3", SLIDING "\"max_window_layers\":0", 32, 128, 9, 1e-6, 0, NO_BIAS, 1e4},
        {"qwen3", "\"use_sliding_window\":true,\"max_window_layers\":2", 32, 128, 4096, 1e-6, 0,
         NO_BIAS, 1e4},
        {"qwen3", SLIDING LAYERS("full", "sliding"), 32, 128, 9, 1e-6, 0, NO_BIAS, 1e4},
        // no layer has one: before number 28 by default
        {"qwen2", SLIDING "\"max_window_layers\":3", 32, 2, 5000, 1e-6, 0, QWEN, 1e4},
        {"qwen3", "\"use_sliding_window\":true", 32, 128, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"qwen3", SLIDING LAYERS("full", "full") ",\"max_window_layers\":0", 32, 128, 5000, 1e-6, 0,
         NO_BIAS, 1e4},
        {"mistral", "\"sliding_window\":9,\"max_window_layers\":3", 8, 2, 9, 1e-6, 0, NO_BIAS, 1e4},
        {"llama", "\"pretraining_tp\":2,\"hidden_act\":\"swish\"", 32, 2, 5000, 1e-6, 0, NO_BIAS, 1e4},
        {"qwen3", "\"sliding_window\":null,\"use_sliding_window\":true", 32, 128, 5000, 1e-6, 0,
         NO_BIAS, 1e4},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        GPT2Config c;
        CHECK(llama_from(good[i].type, good[i].more, &c), "%zu: %s", i, err.text);
        CHECK(c.layers == 3 && c.heads == 32 && c.channels == 64 && c.vocab == 300 && c.ffn == 7
              && c.vocab_padded == 384 && c.rms && c.activation == ACTIVATION_SILU
              && c.rope.scaling == ROPE_NONE && !c.post_norm && c.embed == 0
              && strcmp(hf_families[c.family].type, good[i].type) == 0
              && c.qk_norm == (c.family == FAMILY_QWEN3), "%zu: another model", i);
        CHECK(config_kv(&c) == good[i].kv_heads && config_head(&c) == good[i].head
              && c.context == good[i].context && c.windowed == (c.context != 5000)
              && c.norm_eps == good[i].eps
              && c.tied == good[i].tied && c.unbiased == good[i].unbiased
              && c.rope.theta == good[i].theta,
              "%zu: %zu key heads of %zu, context %zu, eps %g, tied %d, unbiased %d, theta %g", i,
              config_kv(&c), config_head(&c), c.context, c.norm_eps, c.tied, c.unbiased,
              c.rope.theta);
    }
}

// Which of the keys for rotary positions counts.
static void test_config_rope(void) {
    #define SCALING_LLAMA3 "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4"
    static const struct { const char *more; Rope rope; } good[] = {
        {"\"rope_theta\":50", {50, ROPE_NONE, 0, 0, 0, 0}},
        {"\"rope_parameters\":{\"rope_theta\":50}", {50, ROPE_NONE, 0, 0, 0, 0}},
        {"\"rope_theta\":9,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":50}",
         {50, ROPE_NONE, 0, 0, 0, 0}},
        {"\"rope_theta\":9,\"rope_scaling\":{\"type\":\"default\"}", {9, ROPE_NONE, 0, 0, 0, 0}},
        {"\"rope_theta\":9,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}",
         {9, ROPE_LINEAR, 2.5, 0, 0, 0}},
        {"\"rope_theta\":9,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,"
         "\"rope_theta\":8}", {8, ROPE_LINEAR, 2, 0, 0, 0}},
        // rope_type before type; rope_scaling before rope_parameters, unless it is empty
        {"\"rope_scaling\":{\"type\":\"yarn\",\"rope_type\":\"linear\",\"factor\":2}",
         {1e4, ROPE_LINEAR, 2, 0, 0, 0}},
        {"\"rope_theta\":9,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":3},"
         "\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":50," SCALING_LLAMA3 "}",
         {9, ROPE_LINEAR, 3, 0, 0, 0}},
        {"\"rope_theta\":9,\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"llama3\","
         "\"rope_theta\":50," SCALING_LLAMA3 ",\"original_max_position_embeddings\":77}",
         {50, ROPE_LLAMA3, 8, 1, 4, 77}},
        {"\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}",
         {1e4, ROPE_LINEAR, 2, 0, 0, 0}},
        // without it, the length is the model's own
        {"\"rope_scaling\":{\"rope_type\":\"llama3\"," SCALING_LLAMA3 "}", {1e4, ROPE_LLAMA3, 8, 1, 4,
                                                                      5000}},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\"," SCALING_LLAMA3
         ",\"original_max_position_embeddings\":null}", {1e4, ROPE_LLAMA3, 8, 1, 4, 5000}},
        // and the root's is before the object's
        {"\"rope_scaling\":{\"rope_type\":\"llama3\"," SCALING_LLAMA3
         ",\"original_max_position_embeddings\":77},\"original_max_position_embeddings\":55",
         {1e4, ROPE_LLAMA3, 8, 1, 4, 55}},
        {"\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":50," SCALING_LLAMA3
         "},\"original_max_position_embeddings\":55", {50, ROPE_LLAMA3, 8, 1, 4, 55}},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        GPT2Config c;  // Mistral's window limits the context to 4096
        CHECK(llama_from(i % 2 == 0 ? "mistral" : "llama", good[i].more, &c), "%zu: %s", i,
              err.text);
        const Rope *a = &c.rope, *b = &good[i].rope;
        CHECK(a->theta == b->theta && a->scaling == b->scaling && a->factor == b->factor
              && a->low == b->low && a->high == b->high && a->original == b->original,
              "%zu: theta %g, scaling %d: %g %g %g %zu", i, a->theta, a->scaling, a->factor, a->low,
              a->high, a->original);
    }
}

// Each in one line that names the key.
static void test_config_llama_refuses(void) {
    #define SCALED(text) "\"rope_scaling\":{" text "}"
    static const struct { const char *type, *more, *expected; } bad[] = {
        {"gemma", "", "model_type is gemma"}, {"phi3", "", "model_type is phi3"},
        {"gpt_neox", "", "model_type is gpt_neox"}, {"falcon", "", "model_type is falcon"},
        {"Llama", "", "model_type is Llama"},
        {"llama", SCALED("\"rope_type\":\"dynamic\",\"factor\":2"), "rope_type dynamic is not"},
        {"qwen2", SCALED("\"type\":\"yarn\",\"factor\":4"), "rope_type yarn is not supported"},
        {"llama", SCALED("\"rope_type\":\"longrope\""), "rope_type longrope is not supported"},
        {"llama", SCALED("\"rope_type\":\"proportional\""), "rope_type proportional is not"},
        {"llama", SCALED("\"rope_type\":\"su\""), "default, linear and llama3 are"},
        {"llama", SCALED("\"rope_type\":3"), "rope_type no name is not supported"},
        {"llama", SCALED("\"rope_type\":\"linear\""), "the factor of rotary positions must be 1 to 1e6"},
        {"llama", SCALED("\"rope_type\":\"linear\",\"factor\":0"), "factor must be a number"},
        {"llama", SCALED("\"rope_type\":\"linear\",\"factor\":0.5"), "factor"},
        {"llama", SCALED("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1"),
         "llama3 need high_freq_factor above low_freq_factor"},
        {"llama", SCALED("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                         "\"high_freq_factor\":4"), "high_freq_factor above low_freq_factor"},
        {"llama", SCALED("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                         "\"high_freq_factor\":4,\"original_max_position_embeddings\":0.5"),
         "original_max_position_embeddings must be a whole number"},
        {"llama", "\"rope_scaling\":\"linear\"", "rope_scaling must be an object"},
        {"llama", "\"rope_scaling\":[2]", "rope_scaling must be an object"},
        {"llama", "\"rope_parameters\":3", "rope_parameters must be an object"},
        {"llama", "\"rope_parameters\":{\"rope_type\":\"yarn\"}", "rope_type yarn is not"},
        {"llama", "\"rope_theta\":0", "rope_theta must be a number above 0"},
        {"llama", "\"rope_theta\":\"1e4\"", "rope_theta must be a number above 0"},
        {"llama", "\"rope_theta\":0.5", "rope_theta must be 1 to 1e12"},
        {"llama", "\"partial_rotary_factor\":0.5", "partial_rotary_factor is not 1"},
        {"qwen3", "\"rope_parameters\":{\"partial_rotary_factor\":0.25}",
         "partial_rotary_factor is not 1"},
        {"llama", "\"hidden_act\":\"gelu\"", "hidden_act is gelu; only silu"},
        {"mistral", "\"hidden_act\":7", "hidden_act is no name"},
        {"qwen2", "\"quantization_config\":{\"quant_method\":\"awq\"}", "quantization_config"},
        {"qwen2", "\"is_causal\":false", "is_causal is not true"},
        {"mistral", "\"is_causal\":null", "is_causal is not true"},
        {"llama", "\"per_layer_config\":{\"0\":{}}", "with a per_layer_config are not"},
        {"llama", "\"head_dim\":5", "even head size, not 5"},
        {"llama", "\"head_dim\":0", "head_dim must be a whole number of at least 1"},
        {"llama", "\"head_dim\":70000", "heads times head size must be at most 65536"},
        {"llama", "\"num_key_value_heads\":0", "num_key_value_heads must be a whole number"},
        {"llama", "\"num_key_value_heads\":5", "multiple of key heads (5)"},
        {"llama", "\"num_key_value_heads\":64", "multiple of key heads (64)"},
        {"llama", "\"rms_norm_eps\":0", "rms_norm_eps must be a number above 0"},
        {"llama", "\"rms_norm_eps\":1", "eps of norms must be below 1"},
        {"llama", "\"attention_bias\":1", "attention_bias must be true or false"},
        {"llama", "\"mlp_bias\":\"no\"", "mlp_bias must be true or false"},
        {"llama", "\"tie_word_embeddings\":0", "tie_word_embeddings must be true or false"},
        {"mistral", "\"sliding_window\":0", "sliding_window must be a whole number"},
        {"qwen2", "\"use_sliding_window\":1", "use_sliding_window must be true or false"},
        {"llama", "\"intermediate_size\":7", "\"intermediate_size\" twice"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        GPT2Config c;
        CHECK(!llama_from(bad[i].type, bad[i].more, &c), "accepted: %s", bad[i].more);
        CHECK(says(bad[i].expected) && says("config.json"), "%s: %s", bad[i].more, err.text);
    }
    GPT2Config c;  // where others take 4 C
    CHECK(!config_from("{\"model_type\":\"llama\",\"num_hidden_layers\":3,\"hidden_size\":64,"
                       "\"num_attention_heads\":32,\"max_position_embeddings\":5000,"
                       "\"vocab_size\":300}", &c) && says("intermediate_size must be there"), "%s",
          err.text);
}

// What is said of keys that are neither read nor known as harmless: one line with all of them.
static const char *config_warns(const char *text) {
    static char said[1000];
    GPT2Config c;
    FILE *file = tmpfile();
    const int before = dup(2);
    dup2(fileno(file), 2);
    const bool ok = config_from(text, &c);
    dup2(before, 2);
    close(before);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    CHECK(ok, "%s", err.text);
    return said;
}

static void test_config_unknown(void) {
    static const char *const published[] = {  // keys of config.json files as they are on the hub
        "{" GPT2_SIZES ",\"activation_function\":\"gelu_new\",\"architectures\":[\"GPT2LMHeadModel\"],"
        "\"attn_pdrop\":0.1,\"bos_token_id\":50256,\"embd_pdrop\":0.1,\"eos_token_id\":50256,\"id2label\":{},"
        "\"initializer_range\":0.02,\"label2id\":{},\"layer_norm_epsilon\":1e-05,\"n_ctx\":5,\"n_special\":0,"
        "\"predict_special_tokens\":true,\"resid_pdrop\":0.1,\"summary_activation\":null,\"summary_type\":\"x\","
        "\"summary_first_dropout\":0.1,\"summary_proj_to_labels\":true,\"summary_use_proj\":true,"
        "\"task_specific_params\":{\"text-generation\":{\"do_sample\":true,\"max_length\":50}},\"use_cache\":true,"
        "\"gradient_checkpointing\":false,\"reorder_and_upcast_attn\":false,\"finetuning_task\":\"x\",\"top_p\":1,"
        "\"_num_labels\":1,\"output_past\":true,\"pruned_heads\":{},\"torchscript\":false,\"top_k\":50,"
        "\"use_bfloat16\":false,\"num_beams\":1,\"repetition_penalty\":1,\"max_length\":20,\"is_decoder\":false,"
        "\"eos_token_ids\":0,\"num_return_sequences\":1,\"no_repeat_ngram_size\":0,\"tokenizer_class\":\"x\"}",
        "{" OPT_SIZES ",\"_name_or_path\":\"x\",\"_remove_final_layer_norm\":false,\"activation_dropout\":0,"
        "\"attention_dropout\":0,\"dropout\":0.1,\"do_layer_norm_before\":true,\"layerdrop\":0,\"init_std\":0.02,"
        "\"pad_token_id\":1,\"prefix\":\"</s>\",\"torch_dtype\":\"float16\",\"word_embed_proj_dim\":8,"
        "\"transformers_version\":\"4.21.0.dev0\",\"enable_bias\":true,\"layer_norm_elementwise_affine\":true}",
        "{\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"num_attention_heads\":2,\"hidden_size\":8,"
        "\"intermediate_size\":7,\"max_position_embeddings\":4194304,\"vocab_size\":300,\"use_mrope\":false,"
        "\"attention_bias\":false,\"attention_dropout\":0,\"auto_map\":{},\"dtype\":\"bfloat16\",\"head_dim\":4,"
        "\"hidden_act\":\"silu\",\"is_llama_config\":true,\"layer_types\":null,\"max_sequence_length\":5,"
        "\"max_window_layers\":2,\"mlp_bias\":false,\"num_key_value_heads\":1,\"pretraining_tp\":1,"
        "\"original_max_position_embeddings\":9,\"rms_norm_eps\":1e-6,\"rope_interleaved\":false,"
        "\"rope_parameters\":{\"rope_type\":\"llama3\"," SCALING_LLAMA3 ",\"rope_theta\":1e6},\"rope_theta\":1,"
        "\"sliding_window\":null,\"tie_word_embeddings\":true,\"transformers.js_config\":{},"
        "\"unsloth_fixed\":true,\"unsloth_version\":\"x\",\"use_sliding_window\":false,\"new\":null}"};
    for (int i = 0; i < 3; i++)
        CHECK(*config_warns(published[i]) == '\0', "%s", config_warns(published[i]));
    const char *said = config_warns("{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":8,"
        "\"num_attention_heads\":2,\"intermediate_size\":7,\"max_position_embeddings\":9,\"vocab_size\":30,"
        "\"residual_multiplier\":2,\"num_experts\":4}");
    CHECK(strstr(said, "config.json: unknown here, and not read: residual_multiplier, "
                 "num_experts\n") != NULL, "%s", said);
    ranks.rank = 1;  // one rank says it
    CHECK(*config_warns("{" GPT2_SIZES ",\"x\":1}") == '\0', "rank 1 warns");
    ranks.rank = 0;
}

static void test_config_refuses(void) {
    static const struct { const char *text, *expected; } bad[] = {
        {"", "JSON"}, {"[]", "model_type"}, {"{}", "model_type"},
        {"{\"model_type\":3}", "model_type"},
        {"{\"model_type\":\"mixtral\"}",
         "model_type is mixtral; only gpt2, opt, llama, mistral, qwen2 and qwen3 are known"},
        {"{\"model_type\":\"gpt2\"}", "n_layer must be"},
        {"{\"model_type\":\"opt\",\"n_layer\":2}", "num_hidden_layers must be"},
        {"{" GPT2_SIZES ",\"n_inner\":0}", "n_inner must be"},
        {"{" GPT2_SIZES ",\"n_inner\":-4}", "n_inner must be"},
        {"{" GPT2_SIZES ",\"n_inner\":\"32\"}", "n_inner must be"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":3,\"n_head\":3,\"n_embd\":8,\"n_positions\":5,"
         "\"vocab_size\":300}", "multiple of heads"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":3000000,\"n_head\":2,\"n_embd\":8,\"n_positions\":5,"
         "\"vocab_size\":300}", "layers must be"},
        {"{" GPT2_SIZES ",\"scale_attn_weights\":false}", "scale_attn_weights is not true"},
        {"{" GPT2_SIZES ",\"scale_attn_weights\":1}", "scale_attn_weights is not true"},
        {"{" GPT2_SIZES ",\"scale_attn_by_inverse_layer_idx\":true}",
         "inverse_layer_idx is not false"},
        {"{" GPT2_SIZES ",\"add_cross_attention\":true}", "add_cross_attention is not false"},
        {"{" GPT2_SIZES ",\"layer_norm_epsilon\":1e-6}", "layer_norm_epsilon"},
        {"{" GPT2_SIZES ",\"layer_norm_epsilon\":2e-5}", "layer_norm_epsilon"},
        {"{" GPT2_SIZES ",\"layer_norm_epsilon\":\"1e-5\"}", "layer_norm_epsilon"},
        {"{" GPT2_SIZES ",\"activation_function\":\"gelu\"}", "activation_function is gelu;"},
        {"{" GPT2_SIZES ",\"activation_function\":\"silu\"}", "activation_function is silu;"},
        {"{" GPT2_SIZES ",\"activation_function\":7}", "activation_function"},
        {"{" GPT2_SIZES ",\"quantization_config\":{}}", "quantization_config"},
        {"{" GPT2_SIZES ",\"num_attention_heads\":3}", "multiple of heads (3)"},
        {"{" GPT2_SIZES ",\"is_causal\":false}", "is_causal is not true"},
        {"{" OPT_SIZES ",\"is_causal\":0}", "is_causal is not true"},
        {"{" OPT_SIZES ",\"do_layer_norm_before\":false}", "word_embed_proj_dim"},
        {"{" OPT_SIZES ",\"do_layer_norm_before\":0,\"word_embed_proj_dim\":4}", "true or false"},
        {"{" OPT_SIZES ",\"do_layer_norm_before\":false,\"word_embed_proj_dim\":9}", "proj_dim"},
        {"{" OPT_SIZES ",\"word_embed_proj_dim\":4}", "word_embed_proj_dim"},
        {"{" OPT_SIZES ",\"do_layer_norm_before\":false,\"word_embed_proj_dim\":null}", "proj_dim"},
        {"{" GPT2_SIZES ",\"n_head\":4}", "\"n_head\" twice"},
        {"{" GPT2_SIZES ",\"tie_word_embeddings\":\"false\"}", "tie_word_embeddings must be"},
        {"{" OPT_SIZES ",\"enable_bias\":false}", "enable_bias is not true"},
        {"{" OPT_SIZES ",\"layer_norm_elementwise_affine\":false}",
         "elementwise_affine is not true"},
        {"{" OPT_SIZES ",\"_remove_final_layer_norm\":true}",
         "_remove_final_layer_norm is not false"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        GPT2Config c;
        CHECK(!config_from(bad[i].text, &c), "accepted: %s", bad[i].text);
        CHECK(says(bad[i].expected) && says("config.json"), "%s: %s", bad[i].text, err.text);
    }
}

// ---------------------------------------------------------------------------------------------
// Saving

static void test_save_round_trips(void) {
    static const char *const prefixes[NAMINGS] = {"transformer.", "model.decoder.", "model."};
    for (int variant = 4 * first_family; variant < 4 * end_family; variant++) {
        const int family = variant / 4;
        const bool tied = variant & 1, bf16 = variant & 2;
        GPT2Config c = config_of(family, tied), back;
        if (family < FAMILY_LLAMA)
            c.activation = variant % 3 == 0 ? ACTIVATION_RELU : ACTIVATION_GELU;
        GPT2Table t = gpt2_table(&c), t2;
        static Stored list[64];
        const int count = stored_list(&c, list);
        float *arena = (float *)alloc_or_fail(t.elements, sizeof(float), "arena");
        gpt2_init(&t, arena, 7);
        for (int i = 0; i < t.count; i++)  // padded rows hold anything, and are not written
            for (size_t j = t.tensors[i].rows * t.tensors[i].cols; j < t.tensors[i].size; j++)
                arena[t.tensors[i].offset + j] = 99;
        remove_tree(in_base("save"));
        CHECK(save_model(in_base("save/deep"), &c, &t, arena, bf16, 5), "%s", err.text);
        CHECK(entries_in(in_base("save/deep")) == 2, "%d files", entries_in(in_base("save/deep")));
        model_config_load(in_base("save/deep"), &back);
        CHECK(memcmp(&c, &back, sizeof c) == 0, "variant %d: another configuration", variant);

        // The names, shapes and first elements are those of transformers.
        SafeTensors st;
        CHECK(safetensors_open(&st, in_base("save/deep/model.safetensors"), &err), "%s", err.text);
        CHECK(st.count == count, "%d tensors, not %d", st.count, count);
        CHECK((st.tensors[0].data - (unsigned char *)st.map) % 8 == 0, "data is not aligned");
        for (int i = 0; i < count; i++) {
            char name[6000];
            const bool head = strcmp(list[i].name, "lm_head.weight") == 0;
            snprintf(name, sizeof name, "%s%s", head ? "" : prefixes[hf_naming(&c)],
                     list[i].name);
            const SafeTensor *s = safetensors_find(&st, name);
            CHECK(s != NULL, "%s is not there", name);
            if (s == NULL) continue;
            CHECK(s->rank == list[i].rank && s->dtype == (bf16 ? ST_BF16 : ST_F32), "%s", name);
            CHECK(s->elements == list[i].rows * list[i].cols
                  && s->shape[s->rank - 1] == list[i].cols, "%s has an odd shape", name);
            if (strstr(name, "embed_positions") != NULL) {
                float rows[40], zero[40] = {0};
                safetensor_floats(s, 0, 40, rows);
                CHECK(memcmp(rows, zero, sizeof rows) == 0, "two rows of zeros come first");
            }
        }
        safetensors_close(&st);

        float *loaded = load(in_base("save/deep"), NULL, &t2);
        CHECK(loaded != NULL, "%s", err.text);
        for (int i = 0; i < t.count && loaded != NULL; i++)
            for (size_t j = 0; j < t.tensors[i].size; j++) {
                const bool padding = j >= t.tensors[i].rows * t.tensors[i].cols;
                float expected = padding ? 0 : arena[t.tensors[i].offset + j];
                if (bf16) expected = bf16_to_f32(master_weight(expected));
                CHECK(loaded[t.tensors[i].offset + j] == expected, "%s %zu", t.tensors[i].name, j);
            }
        free(loaded);
        free(arena);
        gpt2_table_free(&t);
        gpt2_table_free(&t2);
    }
}

// A model's own config.json, with keys that nobody here knows, and numbers as Python writes them.
static const char origin_text[] =
    "{\n  \"architectures\": [\"LlamaModel\"],\n  \"model_type\": \"llama\",\n"
    "  \"attention_dropout\": 0.1,\n  \"bos_token_id\": 128000,\n"
    "  \"eos_token_id\": [128001, 128008, 128009],\n  \"pad_token_id\": null,\n"
    "  \"head_dim\": 6,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 20,\n"
    "  \"initializer_range\": 2e-2,\n  \"intermediate_size\": 37,\n"
    "  \"max_position_embeddings\": 9,\n  \"num_attention_heads\": 4,\n"
    "  \"num_hidden_layers\": 2,\n  \"num_key_value_heads\": 2,\n"
    "  \"rms_norm_eps\": 3e-07,\n  \"rope_theta\": 500000.0,\n"
    "  \"rope_scaling\": {\"factor\": 8.0, \"low_freq_factor\": 1.0,\n"
    "    \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 7,\n"
    "    \"rope_type\": \"llama3\"},\n  \"tie_word_embeddings\": true,\n"
    "  \"torch_dtype\": \"bfloat16\",\n  \"dtype\": \"float16\",\n"
    "  \"transformers_version\": \"4.45.1\",\n  \"use_cache\": true,\n"
    "  \"vocab_size\": 131,\n  \"x-\\u00e9\\\"\": {\"a\": [1, null, {}, [], \"\\n\"]}\n}\n";

// As text, of one member; "" if there is none.
static const char *member_text(const Json *root, const char *key) {
    static char text[4][1000];
    static int turn;
    char *to = text[turn++ % 4];
    FILE *f = fmemopen(to, sizeof text[0], "w");
    *to = '\0';
    const Json *value = json_get(root, key);
    if (value != NULL && value->type == JSON_STRING)
        json_write_string(f, value->string, value->length);
    else if (value != NULL) fwrite(value->string, 1, value->length, f);
    fclose(f);
    return to;
}

// The configuration of a model that was fine-tuned is that of the model, but for what training
// changes; unless that is of another family, or of none.
static void test_save_keeps_the_configuration(void) {
    char *from = in_base("origin"), *to = in_base("tuned"), *config = in_base("origin/config.json");
    GPT2Config c = config_of(FAMILY_LLAMA, 0), found;
    GPT2Table t = gpt2_table(&c);
    float *arena = (float *)alloc_or_fail(t.elements, sizeof(float), "arena");
    const RunState here = state_of(&t, &arena, 1);
    Json *before = json_parse(origin_text, strlen(origin_text), &err);
    CHECK(before != NULL, "%s", err.text);
    gpt2_init(&t, arena, 7);
    for (int i = 0; i < 7; i++) {
        const char *origin = i == 1 ? in_base("origin/model.safetensors") : i == 2 ? NULL : from;
        GPT2Config own = c;
        remove_tree(from);
        remove_tree(to);
        CHECK(save_model(from, &c, &t, arena, false, -1), "%s", err.text);
        write_text(config, origin_text, strlen(origin_text));
        if (i == 3) write_text(config, "{", 1);
        if (i == 4) unlink(config);
        if (i == 5) write_text(config, "{\"vocab_size\":131}", 18);
        if (i == 6) own.context = 8;  // a window may have limited that
        CHECK(model_save(to, &own, &t, &here, i == 1, ends, origin, &err), "%s", err.text);
        model_config_load(to, &found);
        Json *after = json_read(in_base("tuned/config.json"), &err);
        CHECK(after != NULL, "%d: %s", i, err.text);
        CHECK(strcmp(member_text(after, "architectures"), "[\"LlamaForCausalLM\"]") == 0
              && strcmp(member_text(after, "model_type"), "\"llama\"") == 0
              && strcmp(member_text(after, "tie_word_embeddings"), "false") == 0
              && strcmp(member_text(after, "torch_dtype"), i == 1 ? "\"bfloat16\"" : "\"float32\"")
                     == 0 && json_get(after, "dtype") == NULL, "%d: what training changes", i);
        const bool kept = i < 2 || i == 6;
        if (i != 6) CHECK(memcmp(&found, &c, sizeof c) == 0, "%d: another configuration", i);
        CHECK(strcmp(member_text(after, "eos_token_id"),
                     kept ? "[128001, 128008, 128009]" : "5") == 0, "%d: end tokens", i);
        CHECK(strcmp(member_text(after, "bos_token_id"), kept ? "128000" : "7") == 0,
              "%d: the token that begins a text", i);
        CHECK((json_get(after, "use_cache") != NULL) == kept, "%d: unknown keys", i);
        for (const Json *x = before->child; x != NULL && kept; x = x->next) {
            if (strcmp(x->key, "architectures") == 0 || strcmp(x->key, "tie_word_embeddings") == 0
                || strstr(x->key, "dtype") != NULL) continue;
            CHECK(strcmp(member_text(after, x->key), member_text(before, x->key)) == 0, "%d: %s is "
                  "%s", i, x->key, member_text(after, x->key));
        }
        json_free(after);
    }
    GPT2Config g = config_of(FAMILY_GPT2, 1);
    GPT2Table gt = gpt2_table(&g);
    float *weights = (float *)alloc_or_fail(gt.elements, sizeof(float), "arena");
    const RunState there = state_of(&gt, &weights, 1);
    CHECK(model_save(to, &g, &gt, &there, false, ends, from, &err), "%s", err.text);
    Json *after = json_read(in_base("tuned/config.json"), &err);
    CHECK(json_get(after, "use_cache") == NULL, "keys of LLaMA in GPT-2's");
    CHECK(strcmp(member_text(after, "bos_token_id"), "5") == 0, "GPT-2 begins with what ends");
    json_free(after);
    // .. and GPT-2's is kept
    size_t n = 0;
    char *text = text_read(in_base("tuned/config.json"), &n, &err);
    memcpy(strstr(text, "\"attn_pdrop\": 0.0"), "\"z\": 1.50E+03    ", 17);
    remove_tree(from);
    make_directories(from);
    write_text(config, text, n);
    CHECK(model_save(to, &g, &gt, &there, true, ends, from, &err), "%s", err.text);
    after = json_read(in_base("tuned/config.json"), &err);
    CHECK(strcmp(member_text(after, "z"), "1.50E+03") == 0 && json_get(after, "attn_pdrop") == NULL
          && strcmp(member_text(after, "torch_dtype"), "\"bfloat16\"") == 0, "a number of GPT-2's");
    model_config_load(to, &found);
    CHECK(memcmp(&found, &g, sizeof g) == 0, "GPT-2's configuration");
    json_free(after);
    free(text);
    json_free(before);
    free(arena);
    free(weights);
    gpt2_table_free(&t);
    gpt2_table_free(&gt);
}

static void test_save_failures(void) {
    GPT2Config c = config_of(FAMILY_GPT2, 1);
    GPT2Table t = gpt2_table(&c);
    float *arena = (float *)alloc_or_fail(t.elements, sizeof(float), "arena");
    char *dir = in_base("full"), *file = in_base("full/model.safetensors");
    remove_tree(dir);
    gpt2_init(&t, arena, 1);
    CHECK(save_model(dir, &c, &t, arena, false, -1), "%s", err.text);
    const uint64_t before = hash_of(file), config = hash_of(in_base("full/config.json"));
    gpt2_init(&t, arena, 2);
    signal(SIGXFSZ, SIG_IGN);
    struct stat info;
    CHECK(stat(file, &info) == 0 && info.st_size > 30000, "size");
    const size_t size = (size_t)info.st_size;  // one byte less is noticed by the last flush only
    const size_t limits[] = {1, 500, 3000, 5000, 20000, size - 1};
    for (int i = 0; i < 6; i++) {
        const size_t limit = limits[i];
        limit_file_size(limit);
        const bool ok = save_model(dir, &c, &t, arena, false, -1);
        limit_file_size(0);
        CHECK(!ok && says("cannot write") && says("File too large"), "%zu: %s", limit, err.text);
        CHECK(entries_in(dir) == 2, "limit %zu leaves a temporary file", limit);
        CHECK(hash_of(file) == before && hash_of(in_base("full/config.json")) == config,
              "limit %zu changed the old files", limit);
    }
    CHECK(save_model(dir, &c, &t, arena, false, -1), "%s", err.text);
    CHECK(hash_of(file) != before, "the new file is the old one");

    CHECK(!save_model(file, &c, &t, arena, false, -1) && says("cannot make"), "%s", err.text);
    make_directories(in_base("full/dump"));
    const int32_t token = 0;
    CHECK(!dump_save(in_base("full/dump"), &c, &t, 1, 1, &token, &token, NULL, 0, arena, arena, &err)
          && says("Is a directory"), "%s", err.text);
    CHECK(entries_in(dir) == 3, "a temporary dump is left");
    if (geteuid() != 0) {
        chmod(dir, 0555);
        CHECK(!save_model(dir, &c, &t, arena, false, -1) && says("Permission denied"), "%s",
              err.text);
        chmod(dir, 0755);
    }
    free(arena);
    gpt2_table_free(&t);
}

static void test_dump(void) {
    enum { B = 2, T = 3 };
    for (int family = 0; family < FAMILIES; family++) {
        GPT2Config c = config_of(family, 1);
        GPT2Table t = gpt2_table(&c);
        SafeTensors st, model;
        int32_t tokens[B * T], targets[B * T];
        float *grads = (float *)alloc_or_fail(t.elements, sizeof(float), "gradients");
        float *logits = (float *)alloc_or_fail(B * T * c.vocab_padded, sizeof(float), "logits");
        gpt2_init(&t, grads, 3);
        for (int i = 0; i < B * T; i++) { tokens[i] = i; targets[i] = i + 1; }
        for (size_t i = 0; i < B * T * c.vocab_padded; i++) logits[i] = (float)i;
        CHECK(dump_save(in_base("dump.safetensors"), &c, &t, B, T, tokens, targets,
                        family == 1 ? tokens : NULL, 4.25, logits, grads, &err), "%s", err.text);
        CHECK(!path_exists(in_base("dump.safetensors.tmp")), "temporary file");
        CHECK(save_model(in_base("dumped"), &c, &t, grads, false, -1), "%s", err.text);
        CHECK(safetensors_open(&st, in_base("dump.safetensors"), &err), "%s", err.text);
        CHECK(safetensors_open(&model, in_base("dumped/model.safetensors"), &err), "%s", err.text);
        const SafeTensor *x = safetensors_find(&st, "tokens");
        const SafeTensor *y = safetensors_find(&st, "targets");
        CHECK(x->dtype == ST_I32 && x->rank == 2 && x->shape[0] == B && x->shape[1] == T, "tokens");
        CHECK(memcmp(x->data, tokens, sizeof tokens) == 0, "tokens");
        CHECK(memcmp(y->data, targets, sizeof targets) == 0, "targets");
        float v;
        x = safetensors_find(&st, "loss");
        safetensor_floats(x, 0, 1, &v);
        CHECK(x->rank == 1 && x->elements == 1 && v == 4.25f, "loss %g", (double)v);
        x = safetensors_find(&st, "logits");
        CHECK(x->rank == 3 && x->shape[2] == c.vocab && x->shape[0] == B, "logits");
        for (size_t i = 0; i < x->elements; i++) {
            safetensor_floats(x, i, 1, &v);
            CHECK(v == (float)(i / c.vocab * c.vocab_padded + i % c.vocab), "logit %zu", i);
        }
        const SafeTensor *begins = safetensors_find(&st, "begins");
        CHECK((begins != NULL) == (family == 1) && (begins == NULL
              || memcmp(begins->data, tokens, sizeof tokens) == 0), "begins");
        CHECK(st.count == model.count + 4 + (family == 1), "%d tensors", st.count);
        for (int i = 0; i < model.count; i++) {
            char name[128];
            snprintf(name, sizeof name, "grad.%s", model.tensors[i].name);
            x = safetensors_find(&st, name);
            CHECK(x != NULL && x->bytes == model.tensors[i].bytes
                  && memcmp(x->data, model.tensors[i].data, x->bytes) == 0, "%s", name);
        }
        safetensors_close(&st);
        safetensors_close(&model);
        free(grads);
        free(logits);
        gpt2_table_free(&t);
    }
}

// ---------------------------------------------------------------------------------------------
// The format

static bool parse(SafeTensors *st, const char *header, size_t data) {
    static unsigned char bytes[4096];
    const uint64_t n = strlen(header);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    err.text[0] = '\0';
    const bool ok = safetensors_parse(st, bytes, 8 + n + data, &err);
    if (!ok) safetensors_close(st);
    return ok;
}

static void test_format_accepts(void) {
    SafeTensors st;
    CHECK(parse(&st, "{}", 0) && st.count == 0, "%s", err.text);
    CHECK(safetensors_find(&st, "x") == NULL, "finds nothing");
    safetensors_close(&st);
    CHECK(parse(&st, "{\"__metadata__\":{\"a\":\"b\"},\"s\":{\"dtype\":\"F64\",\"shape\":[],"
                "\"data_offsets\":[4,12]},\"e\":{\"dtype\":\"I64\",\"shape\":[3,0],"
                "\"data_offsets\":[4,4]},\"b\":{\"shape\":[2,2],\"data_offsets\":[0,4],"
                "\"dtype\":\"BOOL\"}}   ", 12),
          "%s", err.text);
    CHECK(st.count == 3, "%d", st.count);
    const SafeTensor *s = safetensors_find(&st, "s"), *e = safetensors_find(&st, "e");
    CHECK(s->rank == 0 && s->elements == 1 && s->bytes == 8 && s->dtype == ST_F64, "scalar");
    CHECK(e->rank == 2 && e->elements == 0 && e->bytes == 0 && e->shape[0] == 3, "empty");
    CHECK(safetensors_find(&st, "__metadata__") == NULL, "metadata is no tensor");
    safetensors_close(&st);
}

static void test_format_refuses(void) {
    static const struct { const char *header; size_t data; const char *expected; } bad[] = {
        {"", 0, "not a safetensors file"}, {" {}", 0, "not a safetensors file"}, {"{", 0, "JSON"},
        {"{} x", 0, "JSON"}, {"{}", 1, "bytes follow the last tensor: 1 of 11"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 9,
         "bytes follow the last tensor: 5 of 70"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3,
         "cut short: 64 bytes, the header describes 65"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0,
         "the header describes 65"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, "\"a\" twice"},
        {"{\"a\":3}", 0, "tensor a needs"}, {"{\"a\":{}}", 0, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,-4]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.5]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype F33"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 5, "do not fill"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2147483648,2147483648],\"data_offsets\":[0,0]}}", 0,
         "tensor a needs"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         "tensor a needs"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}", 7, "do not fill"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "do not fill"},
    };
    SafeTensors st;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const bool ok = parse(&st, bad[i].header, bad[i].data);
        CHECK(!ok && says(bad[i].expected), "%s: %s", bad[i].header, ok ? "accepted" : err.text);
        if (ok) safetensors_close(&st);
    }
    const uint64_t lengths[] = {3, 100000001, UINT64_MAX, (uint64_t)1 << 63};
    for (int i = 0; i < 4; i++) {
        unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        memcpy(bytes, &lengths[i], 8);
        CHECK(!safetensors_parse(&st, bytes, 10, &err)
              && says(i == 0 ? "cut short: 10 bytes, the header" : ", or cut short: 10"), "%s", err.text);
    }
    const uint64_t long_header = 100000001;  // there, but longer than the format allows
    unsigned char *file = (unsigned char *)calloc(long_header + 8, 1);
    memcpy(file, &long_header, 8);
    CHECK(!safetensors_parse(&st, file, long_header + 8, &err)
          && says("not a safetensors file"), "%s", err.text);
    free(file);
    for (size_t n = 0; n < 8; n++)
        CHECK(!safetensors_parse(&st, "01234567", n, &err) && says("not a safetensors file"),
              "%s", err.text);
    CHECK(!safetensors_open(&st, base, &err) && says("not a regular file"), "%s", err.text);
    CHECK(!safetensors_open(&st, in_base("nothing"), &err) && says("No such file"), "%s", err.text);
    CHECK(!safetensors_open(&st, "/dev/zero", &err) && says("not a regular file"), "%s", err.text);
}

static void test_format_writer(void) {
    SafeWriter w;
    const size_t shape[2] = {2, 3};
    const float data[6] = {1, 2, 3, 4, 5, 6};
    const char *path = in_base("w.safetensors");
    for (size_t missing = 0; missing < 2; missing++) {
        memset(&w, 0, sizeof w);
        safewriter_add(&w, "odd \"name\" \xc3\xa9", ST_F32, 2, shape);
        safewriter_add(&w, "none", ST_I64, 0, shape);
        CHECK(safewriter_open(&w, path), "%s", w.err.text);
        for (size_t i = 0; i < 6; i++) safewriter_put(&w, 0, 4 * i, data + i, 4);
        safewriter_put(&w, 1, 0, data, 8 - missing);
        const bool ok = safewriter_close(&w, &err);
        CHECK(ok == !missing && (ok || says("bytes were written")), "%zu: %s", missing, err.text);
    }
    SafeTensors st;
    CHECK(safetensors_open(&st, path, &err) && st.count == 2, "the whole one is gone");
    safetensors_close(&st);
    CHECK(!path_exists(in_base("w.safetensors.tmp")), "the short one is still there");
    memset(&w, 0, sizeof w);
    safewriter_add(&w, "a", ST_F32, 2, shape);
    CHECK(!safewriter_open(&w, in_base("no/such/dir")), "opens nothing");
    safewriter_put(&w, 0, 0, data, 4);
    CHECK(!safewriter_close(&w, &err) && says("cannot write"), "%s", err.text);
}

static void test_half_precision(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        const int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
        const double sign = h & 0x8000 ? -1 : 1;
        const float f = f16_to_f32((uint16_t)h);
        if (exponent == 31) {
            CHECK(mantissa != 0 ? isnan(f) : isinf(f) && (f < 0) == (sign < 0), "%04x", h);
            continue;
        }
        const double expected = exponent == 0 ? ldexp(mantissa, -24)
                                              : ldexp(1024 + mantissa, exponent - 25);
        CHECK((double)f == sign * expected && !signbit(f) == (sign > 0), "%04x: %g", h, (double)f);
    }
}

static void test_hash(void) {
    unsigned char data[300];
    for (int i = 0; i < 300; i++) data[i] = (unsigned char)(i * 7 + i / 64);
    const uint64_t whole = hash_bytes(data, 300);
    for (size_t cut = 8; cut < 300; cut += 8)
        CHECK(hash_words(40 + cut, data + cut, 300 - cut) + hash_words(40, data, cut)
              == hash_words(40, data, 300), "cut at %zu", cut);
    CHECK(hash_words(8, data, 300) != hash_words(0, data, 300), "moved");
    for (int bit = 0; bit < 2400; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(hash_bytes(data, 300) != whole, "bit %d", bit);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t n = 0; n < 300; n++) CHECK(hash_bytes(data, n) != whole, "cut to %zu", n);
    for (size_t i = 0; i < 37; i++)  // any two words, also of one lane
        for (size_t j = 0; j < i; j++) {
            unsigned char swapped[300];
            memcpy(swapped, data, 300);
            memcpy(swapped + 8 * i, data + 8 * j, 8);
            memcpy(swapped + 8 * j, data + 8 * i, 8);
            if (memcmp(swapped, data, 300) == 0) continue;
            CHECK(hash_bytes(swapped, 300) != whole, "words %zu and %zu", i, j);
        }
    const unsigned char zeros[100] = {0};  // nothing but the length tells these apart
    for (size_t n = 1; n <= 100; n++)
        CHECK(hash_bytes(zeros, n) != hash_bytes(zeros, n - 1), "%zu zeros", n);
}

// ---------------------------------------------------------------------------------------------
// Training state

typedef struct {
    GPT2Config c;
    GPT2Table t;
    float *arena[PARTS];
    TrainState s;
} Run;

static Run run_new(size_t vocab) {
    Run r;
    memset(&r, 0, sizeof r);
    r.c.layers = 1; r.c.heads = 2; r.c.channels = 4; r.c.ffn = 5; r.c.context = 3;
    r.c.vocab = vocab;
    r.c.tied = 1;
    gpt2_finish(&r.c, &err);
    r.t = gpt2_table(&r.c);
    for (int k = 0; k < PARTS; k++) {
        r.arena[k] = (float *)alloc_or_fail(r.t.elements, sizeof(float), "part");
        gpt2_init(&r.t, r.arena[k], (uint64_t)k + 1);
    }
    r.s.seed = UINT64_MAX - 5;
    r.s.data_position = (uint64_t)1 << 60;
    snprintf(r.s.options, sizeof r.s.options, "--lr 1e-3\n--name \xe9 \\nseal 7\n--none\n");
    return r;
}

static void run_free(Run *r) {
    for (int k = 0; k < PARTS; k++) free(r->arena[k]);
    gpt2_table_free(&r->t);
}

static size_t best;  // the step of the checkpoint that stays
static bool save(const char *out, const Run *r, int parts, int keep) {
    const RunState here = state_of(&r->t, r->arena, parts);
    StateSave x;
    x.out = out;
    x.table = &r->t;
    x.here = &here;
    x.keep = keep;
    x.best = best;
    x.state = r->s;
    x.state.config = r->c;
    return state_save(&x, &err);
}

static bool run_save(Run *r, const char *out, size_t step, int keep) {
    r->s.step = step;
    for (int k = 0; k < PARTS; k++) r->arena[k][0] = (float)step;
    return save(out, r, PARTS, keep);
}

static bool load_state(const char *dir, const TrainState *s, Run *r, int parts) {
    const RunState here = state_of(&r->t, r->arena, parts);
    return state_load(dir, s, &r->t, &here, &err);
}

// state_find() with what it says on stderr in said[].
static char said[4096];
static bool find(const char *out, TrainState *s, char dir[PATH_MAX]) {
    fflush(stderr);
    const int keep = dup(2), file = open(in_base("said"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, 2);
    const bool found = state_find(out, SIZE_MAX, s, dir, &err);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    const ssize_t n = pread(file, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    close(file);
    return found;
}

static size_t newest(const char *out) {  // the step found, or 0
    TrainState s;
    char dir[PATH_MAX];
    if (!find(out, &s, dir)) return 0;
    train_state_free(&s);
    return s.step;
}

static void test_state_round_trip(void) {
    Run r = run_new(7), back = run_new(7);
    TrainState s;
    char dir[PATH_MAX];
    const char *out = in_base("run");
    const float special[4] = {NAN, -0.0f, 1e-42f, INFINITY};
    memcpy(r.arena[1] + r.t.tensors[4].offset, special, sizeof special);
    CHECK(run_save(&r, out, 10, 0), "%s", err.text);
    CHECK(find(out, &s, dir), "%s", err.text);
    CHECK(said[0] == '\0', "it says: %s", said);
    CHECK(strcmp(strrchr(dir, '/'), "/step_00000010") == 0, "%s", dir);
    CHECK(s.step == 10 && s.seed == r.s.seed && s.data_position == r.s.data_position, "numbers");
    CHECK(strcmp(s.options, r.s.options) == 0, "options: %s", s.options);
    CHECK(memcmp(&s.config, &r.c, sizeof r.c) == 0, "configuration");
    for (int k = 0; k < PARTS; k++) memset(back.arena[k], 0xff, back.t.elements * 4);
    CHECK(load_state(dir, &s, &back, PARTS), "%s", err.text);
    for (int k = 0; k < PARTS; k++)
        CHECK(memcmp(back.arena[k], r.arena[k], r.t.elements * 4) == 0, "part %d", k);
    r.arena[0][r.t.tensors[0].size - 1] = 5;  // a padded row is not saved
    CHECK(run_save(&r, out, 11, 0) && find(out, &s, dir), "%s", err.text);
    CHECK(load_state(dir, &s, &back, PARTS), "%s", err.text);
    CHECK(back.arena[0][r.t.tensors[0].size - 1] == 0, "a padded row came back");

    for (int k = 0; k < PARTS; k++) memset(back.arena[k], 0xff, back.t.elements * 4);
    CHECK(load_state(dir, &s, &back, 1), "%s", err.text);
    CHECK(back.arena[0][0] == 11 && back.arena[1][0] != back.arena[1][0], "only the weights");
    const RunState four = state_in((float *const[]){r.arena[0], r.arena[1], r.arena[2], NULL}, 4);
    CHECK(!state_load(dir, &s, &back.t, &four, &err) && says("tensor shown.wte is missing"), "%s",
          err.text);
    Run other = run_new(8);
    CHECK(!load_state(dir, &s, &other, PARTS)
          && says("is of a model of another shape"), "%s", err.text);
    CHECK(!load_state(in_base("no"), &s, &r, PARTS) && says("No such file"),
          "%s", err.text);
    CHECK(entries_in(in_base("run/checkpoints")) == 2, "nothing else is there");
    run_free(&r);
    run_free(&back);
    run_free(&other);
}

// Of every family, with all that is in its configuration.
static void test_state_of_families(void) {
    for (int i = 0; i < 2 * FAMILIES; i++) {
        const GPT2Config c = config_of(i / 2, i % 2);
        Run r, back;
        TrainState s;
        char dir[PATH_MAX], *out = in_base("families");
        memset(&r, 0, sizeof r);
        r.c = c;
        r.t = gpt2_table(&c);
        back = r;
        for (int k = 0; k < PARTS; k++) {
            r.arena[k] = (float *)alloc_or_fail(r.t.elements, sizeof(float), "part");
            back.arena[k] = (float *)alloc_or_fail(r.t.elements, sizeof(float), "part");
            gpt2_init(&r.t, r.arena[k], (uint64_t)k + 1);
        }
        remove_tree(out);
        CHECK(run_save(&r, out, 1, 0) && find(out, &s, dir), "%s", err.text);
        CHECK(memcmp(&s.config, &c, sizeof c) == 0, "%d: another configuration", i);
        CHECK(load_state(dir, &s, &back, PARTS), "%s", err.text);
        for (int k = 0; k < PARTS; k++)
            CHECK(memcmp(back.arena[k], r.arena[k], r.t.elements * 4) == 0, "%d: part %d", i, k);
        train_state_free(&s);
        for (int k = 0; k < PARTS; k++) free(back.arena[k]);
        run_free(&r);
    }
}

// Everything that is loaded or saved, of state that only its trainer reaches, or that lies here and
// there: the same files, the same values. Never more than one tensor is in host memory.
static void test_far_arenas(void) {
    char *out = in_base("far"), *file = in_base("far/checkpoints/step_00000001/state.safetensors");
    for (int i = 0; i <= FAMILIES; i++) {  // other cuts each time
        far = i == 0 ? MOVED : MIXED;
        far_largest = 0;
        first_family = i == 0 ? 0 : i - 1;
        end_family = i == 0 ? FAMILIES : i;
        test_load_layouts();
        test_load_refuses();
        test_save_round_trips();
        CHECK(far == MIXED || far_largest == 256 * 20 * sizeof(float), "%zu bytes", far_largest);
        Run r = run_new(7), back = run_new(7);
        far = NEAR;
        CHECK(run_save(&r, out, 1, 0), "%s", err.text);
        const uint64_t hash = hash_of(file);
        for (int k = 0; k < PARTS; k++) memset(back.arena[k], 0xff, back.t.elements * 4);
        far = i == 0 ? MOVED : MIXED;
        remove_tree(out);
        CHECK(save(out, &r, PARTS, 0), "%s", err.text);
        CHECK(hash_of(file) == hash, "another file");
        TrainState s;
        char dir[PATH_MAX];
        CHECK(find(out, &s, dir) && load_state(dir, &s, &back, PARTS), "%s", err.text);
        for (int k = 0; k < PARTS; k++)
            CHECK(memcmp(back.arena[k], r.arena[k], r.t.elements * 4) == 0, "part %d", k);
        run_free(&r);
        run_free(&back);
    }
    far = NEAR;
    first_family = 0;
    end_family = FAMILIES;
}

static void test_state_keep(void) {
    Run r = run_new(7);
    const char *out = in_base("keep"), *all = in_base("keep/checkpoints");
    for (size_t step = 1; step <= 5; step++) CHECK(run_save(&r, out, step, 0), "%s", err.text);
    CHECK(entries_in(all) == 5, "%d", entries_in(all));
    CHECK(run_save(&r, out, 6, 3) && entries_in(all) == 3, "%d", entries_in(all));
    CHECK(path_exists(in_base("keep/checkpoints/step_00000004")), "the newest three");
    // A torn one is not counted among those to keep, and goes with those before the last of them.
    CHECK(truncate(in_base("keep/checkpoints/step_00000006/state.safetensors"), 500) == 0, "-");
    CHECK(run_save(&r, out, 7, 2) && newest(out) == 7 && entries_in(all) == 3, "%s", err.text);
    CHECK(path_exists(in_base("keep/checkpoints/step_00000005")), "the newest whole two");
    CHECK(run_save(&r, out, 8, 2) && entries_in(all) == 2, "%d", entries_in(all));
    remove_tree(in_base("keep/checkpoints/step_00000008"));
    remove_tree(in_base("keep/checkpoints/step_00000007"));
    CHECK(run_save(&r, out, 6, 3), "%s", err.text);
    CHECK(run_save(&r, out, 5, 1), "%s", err.text);  // a later one is not this save's to remove
    CHECK(entries_in(all) == 2 && newest(out) == 6, "%d", entries_in(all));
    CHECK(run_save(&r, out, 100000000, 1), "%s", err.text);  // nine digits sort after eight
    CHECK(entries_in(all) == 1 && newest(out) == 100000000, "%d", entries_in(all));
    CHECK(newest(in_base("nothing")) == 0 && says("there is no whole checkpoint"), "%s", err.text);
    // The best one stays, and is one of those to keep as long as it is among the newest.
    remove_tree(out);
    best = 2;
    for (size_t step = 1; step <= 3; step++) CHECK(run_save(&r, out, step, 2), "%s", err.text);
    CHECK(entries_in(all) == 2, "%d", entries_in(all));
    CHECK(run_save(&r, out, 4, 2) && run_save(&r, out, 5, 2), "%s", err.text);
    CHECK(entries_in(all) == 3 && path_exists(in_base("keep/checkpoints/step_00000002")), "-");
    best = 6;
    CHECK(run_save(&r, out, 6, 1) && entries_in(all) == 1 && newest(out) == 6, "%s", err.text);
    best = 0;
    run_free(&r);
}

// Replacing a checkpoint that is damaged, and what a process leaves that dies meanwhile.
static void test_state_replace(void) {
    Run r = run_new(7);
    const char *out = in_base("replace"), *all = in_base("replace/checkpoints");
    const char *temporary = in_base("replace/checkpoints/tmp");
    CHECK(run_save(&r, out, 2, 0) && run_save(&r, out, 3, 0), "%s", err.text);
    CHECK(truncate(in_base("replace/checkpoints/step_00000003/state.txt"), 9) == 0, "truncate");
    CHECK(newest(out) == 2 && run_save(&r, out, 3, 0) && newest(out) == 3, "%s", err.text);
    CHECK(entries_in(all) == 2, "%d", entries_in(all));
    make_directories(temporary);
    write_text(in_base("replace/checkpoints/tmp/state.safetensors"), "x", 1);
    CHECK(newest(out) == 3, "a temporary directory is no checkpoint");
    CHECK(run_save(&r, out, 6, 0) && !path_exists(temporary), "stale temporary directory");
    run_free(&r);
}

// Each rename and each flush in turn fails, or is where the process dies, while a checkpoint is
// written. There is a whole newest one at any time.
static void test_state_trouble(void) {
    Run r = run_new(7);
    const char *out = in_base("trouble");
    int points = 0;
    const size_t step = 6;
    for (trouble_is_death = 0; trouble_is_death < 2; trouble_is_death++)
        for (int at = 1; at < 20; at++) {
            remove_tree(out);
            CHECK(run_save(&r, out, 5, 0), "%s", err.text);
            trouble_at = at;
            trouble_count = 0;
            fflush(stdout);
            const pid_t child = fork();
            if (child == 0) {
                const bool ok = run_save(&r, out, step, 1);
                _exit(trouble_count < at ? 7 : ok ? 1 : says("Input/output error") ? 0 : 2);
            }
            int status = 0;
            waitpid(child, &status, 0);
            trouble_at = 0;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 7) break;  // past the last one
            points++;
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9 * trouble_is_death,
                  "trouble %d at %d: status %d", trouble_is_death, at, status);
            const size_t found = newest(out);
            CHECK(found == 5 || found == step, "trouble %d at %d: step %zu", trouble_is_death,
                  at, found);
            CHECK(said[0] == '\0', "it says: %s", said);
            CHECK(run_save(&r, out, step, 1) && newest(out) == step
                  && entries_in(in_base("trouble/checkpoints")) == 1, "the next save");
        }
    CHECK(points == 2 * 7, "%d points", points);  // files, directories, renames
    run_free(&r);
}

static void test_save_trouble(void) {
    GPT2Config c = config_of(FAMILY_OPT, 1);
    GPT2Table t = gpt2_table(&c);
    float *arena = (float *)alloc_or_fail(t.elements, sizeof(float), "arena");
    int points = 0;
    trouble_is_death = 0;
    for (int at = 1; at < 20; at++, points++) {
        remove_tree(in_base("saves"));
        CHECK(save_model(in_base("saves"), &c, &t, arena, false, -1), "%s", err.text);
        trouble_at = at;
        trouble_count = 0;
        const bool ok = save_model(in_base("saves"), &c, &t, arena, true, -1);
        trouble_at = 0;
        if (trouble_count < at) break;
        CHECK(!ok && says("Input/output error"), "%d: %s", at, err.text);
        CHECK(entries_in(in_base("saves")) == 2, "%d: a temporary file is left", at);
        GPT2Table loaded;
        float *back = load(in_base("saves"), NULL, &loaded);
        CHECK(back != NULL, "%s", err.text);
        if (back != NULL) gpt2_table_free(&loaded);
        free(back);
    }
    CHECK(points == 5, "%d points", points);  // config.json, weights, two renames, directory
    free(arena);
    gpt2_table_free(&t);
}

static void test_state_disk_full(void) {
    Run r = run_new(7);
    const char *out = in_base("nospace"), *all = in_base("nospace/checkpoints");
    signal(SIGXFSZ, SIG_IGN);
    CHECK(run_save(&r, out, 1, 1), "%s", err.text);
    for (size_t limit = 1; limit < 6000; limit = limit * 2 + 1)
        for (size_t step = 1; step <= 2; step++) {
            limit_file_size(limit);
            const bool ok = run_save(&r, out, step, 1);
            limit_file_size(0);
            CHECK(!ok && says("cannot write") && says("File too large"), "%s", err.text);
            CHECK(entries_in(all) == 1 && newest(out) == 1, "limit %zu", limit);
        }
    // The same, but the limit kills the process: it cannot clean up, the next save does.
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_DFL);
        limit_file_size(4096);
        run_save(&r, out, 2, 1);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ, "the child was not killed");
    CHECK(entries_in(all) == 2 && newest(out) == 1, "%d", entries_in(all));
    CHECK(run_save(&r, out, 2, 1) && entries_in(all) == 1 && newest(out) == 2, "%s", err.text);
    write_text(in_base("plain"), "x", 1);
    CHECK(!run_save(&r, in_base("plain"), 1, 1) && says("cannot make"), "%s", err.text);
    run_free(&r);
}

// Is the checkpoint in dir whole, by what finds it and by what loads it?
static bool is_whole(const char *dir, Run *r, int parts) {
    TrainState s;
    if (!state_check(dir, &s, false, &err)) return false;
    const bool whole = load_state(dir, &s, r, parts);
    train_state_free(&s);
    return whole;
}

// Flips bits of the file at `path` (all of the first `dense` bytes, some of the others) and cuts it
// to many lengths, and wants each of these noticed in checkpoint `dir`.
static void damage(const char *dir, const char *path, size_t dense, Run *r, int parts) {
    size_t n = 0, noticed = 0, tried = 0;
    char *good = file_read(path, &n, &err);
    const int file = open(path, O_WRONLY);
    for (size_t bit = 0; bit < 8 * n; bit += bit < 8 * dense ? 1 : 13, tried++) {
        const char flipped = (char)(good[bit / 8] ^ 1 << bit % 8);
        CHECK(pwrite(file, &flipped, 1, (off_t)(bit / 8)) == 1, "write");
        noticed += !is_whole(dir, r, parts);
        CHECK(pwrite(file, good + bit / 8, 1, (off_t)(bit / 8)) == 1, "write");
    }
    CHECK(noticed == tried && tried > 2000, "%s: %zu of %zu bits", path, noticed, tried);
    CHECK(is_whole(dir, r, parts), "%s", err.text);
    noticed = tried = 0;
    for (size_t length = n; length-- > 0; tried++) {
        if (length > dense && length + 64 < n) length -= 16;
        CHECK(ftruncate(file, (off_t)length) == 0, "truncate");
        noticed += !is_whole(dir, r, parts);
    }
    CHECK(noticed == tried && tried > 100, "%s cut: %zu of %zu", path, noticed, tried);
    CHECK(pwrite(file, good, n, 0) == (ssize_t)n && is_whole(dir, r, parts), "%s", err.text);
    close(file);
    free(good);
}

static void test_state_damage(void) {
    Run r = run_new(7);
    TrainState s;
    char dir[PATH_MAX], weights[PATH_MAX], text[PATH_MAX];
    const char *out = in_base("damage");
    CHECK(run_save(&r, out, 1, 0), "%s", err.text);
    r.s.step = 2;  // one part: a small file, so that every bit of its header gets its turn
    CHECK(save(out, &r, 1, 0), "%s", err.text);
    CHECK(find(out, &s, dir) && s.step == 2, "%s", err.text);
    path_join(weights, dir, "state.safetensors");
    path_join(text, dir, "state.txt");
    size_t n = 0;
    uint64_t header;
    char *good = file_read(weights, &n, &err);
    memcpy(&header, good, 8);
    damage(dir, weights, 8 + (size_t)header, &r, 1);
    damage(dir, text, 10000, &r, 1);

    good[n - 1] ^= 1;
    write_text(weights, good, n);
    good[n - 1] ^= 1;
    CHECK(find(out, &s, dir) && s.step == 2, "found anyway: %s", err.text);
    CHECK(!load_state(dir, &s, &r, 1)
          && says("param.ln_f.b in state.safetensors is not what was written"), "%s", err.text);
    CHECK(truncate(weights, (off_t)n - 1) == 0, "truncate");
    CHECK(newest(out) == 1, "the one before is whole");
    CHECK(strstr(said, "tide: checkpoint ") != NULL
          && strstr(said, "step_00000002 is damaged (") != NULL
          && strstr(said, "state.safetensors: cut short: ") != NULL,
          "it says: %s", said);
    unlink(weights);
    CHECK(newest(out) == 1 && strstr(said, "No such file") != NULL, "it says: %s", said);
    write_text(weights, good, n);
    CHECK(newest(out) == 2, "repaired");
    unlink(text);
    remove_tree(in_base("damage/checkpoints/step_00000001"));
    write_text(in_base("damage/checkpoints/step_00000001"), "x", 1);
    CHECK(newest(out) == 0 && says("there is no whole checkpoint in"), "%s", err.text);
    free(good);
    run_free(&r);
}

// What an optimizer adds comes back as the very lines; without it there is nothing in its place.
static void test_state_more(void) {
    Run r = run_new(7);
    TrainState s;
    char dir[PATH_MAX], text[PATH_MAX];
    char *out = in_base("more");
    char large[] = "optimizer a\n\nb 1 2 3\nstep 7\n--c\n";
    CHECK(run_save(&r, out, 1, 0) && find(out, &s, dir), "%s", err.text);
    CHECK(text_line(s.text, "optimizer") == NULL, "%s", s.text);
    train_state_free(&s);
    r.s.text = large;
    CHECK(run_save(&r, out, 2, 0) && find(out, &s, dir), "%s", err.text);
    CHECK(s.step == 2 && strstr(s.text, large) != NULL, "%s", s.text);
    CHECK(strcmp(text_line(s.text, "b"), strstr(s.text, " 1 2 3")) == 0, "%s", s.text);
    CHECK(load_state(dir, &s, &r, PARTS), "%s", err.text);
    train_state_free(&s);
    path_join(text, dir, "state.txt");
    damage(dir, text, 10000, &r, PARTS);
    const char *newer = in_base("more/checkpoints/step_00000003/state.safetensors");
    CHECK(run_save(&r, out, 3, 0) && truncate(newer, 100) == 0, "%s", err.text);
    CHECK(find(out, &s, dir) && s.step == 2 && strstr(s.text, large) != NULL, "%s", err.text);
    train_state_free(&s);
    r.s.text = NULL;
    run_free(&r);
}

static void nowhere(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    (void)owner, (void)part, (void)at, (void)n, (void)w, (void)out;
}

// A state whose hashes are right and whose contents are not: nothing may be believed.
static void test_state_forged(void) {
    static const struct { const char *from, *to, *expected; } edits[] = {
        {"version 9", "version 10", "of version 10; this program reads 9"},
        {"version 9", "version 8", "of version 8; this program reads 9"},
        {"\nbest.step 0", "\nbest.step x", "lacks"}, {"\nproducts 0", "", "lacks a field"},
        {"version 9\n", "", "of version 0"},
        {"hashes ", "hashes 0", "param.wte in state.safetensors"},
        {"hashes ", "hashes  ", "param.wte in state.safetensors"},
        {"\nhashes ", "\nashes ", "lacks a field"}, {"\nstep 1", "\nstep x", "lacks a field"},
        {"\nstep 1", "\nstep 1.5", "lacks a field"}, {"\nstep 1", "\nstop 1", "lacks a field"},
        {"\nseed ", "\nseed\n", "lacks a field"}, {"\nseed ", "\nseed null ", "lacks a field"},
        {"config.tied 1", "config.tied 2", "lacks a field"},
        {"config.layers 1", "config.layers 2", "of a model of another shape"},
        {"config.vocab 7", "config.vocab 9", "of a model of another shape"},
        {"config.heads 2", "config.heads 3", "multiple of heads"},
        {"config.channels 4", "config.channels 4000000000", "channels"},
        {"config.family 0", "config.family 7", "lacks a field"},
        {"--lr 1e-3", "--lr %5000d", "lacks a field"},
    };
    Run r = run_new(7);
    TrainState s;
    const char *out = in_base("forged");
    CHECK(run_save(&r, out, 1, 0), "%s", err.text);
    char *dir = in_base("forged/checkpoints/step_00000001"), path[PATH_MAX], changed[8192];
    path_join(path, dir, "state.txt");
    size_t n = 0;
    char *text = file_read(path, &n, &err);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        const char *at = strstr(text, edits[i].from);
        CHECK(at != NULL, "%s is not there", edits[i].from);
        if (at == NULL) continue;
        const size_t before = (size_t)(at - text), rest = before + strlen(edits[i].from);
        char to[6000];
        snprintf(to, sizeof to, edits[i].to, 7);
        size_t m = (size_t)snprintf(changed, sizeof changed, "%.*s%s%.*s", (int)before, text, to,
                                    (int)(n - SEAL - rest), text + rest);
        m += (size_t)snprintf(changed + m, sizeof changed - m, "seal %016llx\n",
                              (unsigned long long)hash_bytes(changed, m));
        write_text(path, changed, m);
        bool ok = state_check(dir, &s, false, &err);
        if (ok) {
            const GPT2Table t = gpt2_table(&s.config);
            RunState none = state_in(NULL, PARTS);
            none.move = nowhere;
            ok = state_load(dir, &s, &t, &none, &err);
        }
        if (ok) train_state_free(&s);
        CHECK(!ok && says(edits[i].expected), "%s: %s", edits[i].to, err.text);
    }
    free(text);
    run_free(&r);
}

int main(void) {
    snprintf(base, sizeof base, "/tmp/tide_checkpoint_XXXXXX");
    if (mkdtemp(base) == NULL) { perror(base); return 1; }
    RUN(test_hash);
    RUN(test_half_precision);
    RUN(test_format_accepts);
    RUN(test_format_refuses);
    RUN(test_format_writer);
    RUN(test_config_accepts);
    RUN(test_config_unknown);
    RUN(test_config_refuses);
    RUN(test_config_llama);
    RUN(test_config_rope);
    RUN(test_config_llama_refuses);
    RUN(test_load_layouts);
    RUN(test_load_from_a_file);
    RUN(test_load_heads);
    RUN(test_load_others);
    RUN(test_load_fixtures);
    RUN(test_load_refuses);
    RUN(test_load_paths_and_shards);
    RUN(test_save_round_trips);
    RUN(test_save_keeps_the_configuration);
    RUN(test_save_failures);
    RUN(test_save_trouble);
    RUN(test_dump);
    RUN(test_state_round_trip);
    RUN(test_state_of_families);
    RUN(test_far_arenas);
    RUN(test_state_keep);
    RUN(test_state_replace);
    RUN(test_state_disk_full);
    RUN(test_state_trouble);
    RUN(test_state_damage);
    RUN(test_state_more);
    RUN(test_state_forged);
    remove_tree(base);
    return test_summary();
}
