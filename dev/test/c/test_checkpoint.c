// Models and training state on disk: layouts against hand-written files and files that transformers
// wrote, damage of every kind, full disks and killed processes. What is refused for its text alone
// is in refused.h.
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
#include "../refused.h"
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
        {123.456, ROPE_LINEAR, 2.5, 0, 0, 0}, {1e6, ROPE_NONE, 0, 0, 0, 0},
        {5e6, ROPE_NONE, 0, 0, 0, 0}};
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
    if (family == FAMILY_SMOLLM3) c.unturned = tied ? 4 : 2;
    if (family == FAMILY_MISTRAL && tied) c.window = 5;
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

// The tensors of transformers' GPT2LMHeadModel, OPTForCausalLM, LlamaForCausalLM and the latter's
// relatives, from their documentation: naming; the name without .weight; ours; rows and columns of
// a matrix (1: a vector), and its place in ours, by letter (see size_of); and which models have it
// (h: a head; n: norms of q and k) or its bias (b: all; q, o, m: those with biases there).
static const struct { int naming; const char *name, *ours, *size, *has; } stored_rows[] = {
    {NAMING_GPT2, "wte", "wte", "VC0", ""},
    {NAMING_GPT2, "wpe", "wpe", "TC0", ""},
    {NAMING_GPT2, "h.%d.ln_1", "h.%d.ln_1.w", "1C0", "b"},
    {NAMING_GPT2, "h.%d.attn.c_attn", "h.%d.attn.qkv.w", "C30", "b"},
    {NAMING_GPT2, "h.%d.attn.c_proj", "h.%d.attn.proj.w", "CC0", "b"},
    {NAMING_GPT2, "h.%d.ln_2", "h.%d.ln_2.w", "1C0", "b"},
    {NAMING_GPT2, "h.%d.mlp.c_fc", "h.%d.mlp.fc.w", "CF0", "b"},
    {NAMING_GPT2, "h.%d.mlp.c_proj", "h.%d.mlp.proj.w", "FC0", "b"},
    {NAMING_GPT2, "ln_f", "ln_f.w", "1C0", "b"},
    {NAMING_GPT2, "lm_head", "lm_head", "VC0", "h"},
    {NAMING_OPT, "embed_tokens", "wte", "VC0", ""},
    {NAMING_OPT, "embed_positions", "wpe", "PC0", ""},
    {NAMING_OPT, "layers.%d.self_attn.q_proj", "h.%d.attn.qkv.w", "CC0", "b"},
    {NAMING_OPT, "layers.%d.self_attn.k_proj", "h.%d.attn.qkv.w", "CCC", "b"},
    {NAMING_OPT, "layers.%d.self_attn.v_proj", "h.%d.attn.qkv.w", "CC2", "b"},
    {NAMING_OPT, "layers.%d.self_attn.out_proj", "h.%d.attn.proj.w", "CC0", "b"},
    {NAMING_OPT, "layers.%d.self_attn_layer_norm", "h.%d.ln_1.w", "1C0", "b"},
    {NAMING_OPT, "layers.%d.fc1", "h.%d.mlp.fc.w", "FC0", "b"},
    {NAMING_OPT, "layers.%d.fc2", "h.%d.mlp.proj.w", "CF0", "b"},
    {NAMING_OPT, "layers.%d.final_layer_norm", "h.%d.ln_2.w", "1C0", "b"},
    {NAMING_OPT, "final_layer_norm", "ln_f.w", "1C0", "b"},
    {NAMING_OPT, "lm_head", "lm_head", "VC0", "h"},
    {NAMING_LLAMA, "embed_tokens", "wte", "VC0", ""},
    {NAMING_LLAMA, "layers.%d.self_attn.q_proj", "h.%d.attn.qkv.w", "QC0", "q"},
    {NAMING_LLAMA, "layers.%d.self_attn.k_proj", "h.%d.attn.qkv.w", "KCQ", "q"},
    {NAMING_LLAMA, "layers.%d.self_attn.v_proj", "h.%d.attn.qkv.w", "KC+", "q"},
    {NAMING_LLAMA, "layers.%d.self_attn.o_proj", "h.%d.attn.proj.w", "CQ0", "o"},
    {NAMING_LLAMA, "layers.%d.self_attn.q_norm", "h.%d.attn.q_norm.w", "1H0", "n"},
    {NAMING_LLAMA, "layers.%d.self_attn.k_norm", "h.%d.attn.k_norm.w", "1H0", "n"},
    {NAMING_LLAMA, "layers.%d.mlp.gate_proj", "h.%d.mlp.fc.w", "FC0", "m"},
    {NAMING_LLAMA, "layers.%d.mlp.up_proj", "h.%d.mlp.fc.w", "FCF", "m"},
    {NAMING_LLAMA, "layers.%d.mlp.down_proj", "h.%d.mlp.proj.w", "CF0", "m"},
    {NAMING_LLAMA, "layers.%d.input_layernorm", "h.%d.ln_1.w", "1C0", ""},
    {NAMING_LLAMA, "layers.%d.post_attention_layernorm", "h.%d.ln_2.w", "1C0", ""},
    {NAMING_LLAMA, "norm", "ln_f.w", "1C0", ""},
    {NAMING_LLAMA, "lm_head", "lm_head", "VC0", "h"},
};

// Heads of the LLaMA family are those of config_of().
static size_t size_of(const GPT2Config *c, char letter) {
    const char letters[] = "01VTPC23FQK+H";
    const size_t C = c->channels, sizes[] = {0, 1, c->vocab, c->context, c->context + 2, C, 2 * C,
                                             3 * C, c->ffn, 24, 12, 36, 6};
    return sizes[strchr(letters, letter) - letters];
}

typedef struct {
    char name[64], ours[32];
    int rank;
    size_t rows, cols, first, skip;  // skip: rows that only the file has
    bool across;                     // ours is the other way round
} Stored;

enum { MAX_STORED = 64 };
static int stored_list(const GPT2Config *c, Stored *list) {
    int n = 0;
    for (size_t i = 0; i < sizeof stored_rows / sizeof stored_rows[0]; i++) {
        const char *name = stored_rows[i].name, *size = stored_rows[i].size;
        const char has = stored_rows[i].has[0];
        const int bias = has == 'q' ? BIAS_QKV : has == 'o' ? BIAS_ATTPROJ : BIAS_MLP;
        const bool biased = has == 'b' || (strchr("qom", has) != NULL && !(c->unbiased & bias));
        const bool layers = strchr(name, '%') != NULL;
        if (stored_rows[i].naming != hf_families[c->family].naming
            || (has == 'h' && c->tied) || (has == 'n' && !c->qk_norm)) continue;
        for (int l = 0; l < (layers ? (int)c->layers : 1); l++)
            for (int k = 0; k < 1 + (has != '\0' && biased); k++) {
                Stored s = {"", "", 2, size_of(c, size[0]), size_of(c, size[1]),
                            size_of(c, size[2]), 0, 0};
                char format[64];
                snprintf(format, sizeof format, "%s.%s", name, k == 0 ? "weight" : "bias");
                snprintf(s.name, sizeof s.name, format, l);
                snprintf(s.ours, sizeof s.ours, stored_rows[i].ours, l);
                s.across = layers && c->family == FAMILY_GPT2;
                s.skip = size[0] == 'P' ? 2 : 0;
                if (size[0] == '1') s.rank = 1;
                if (k == 1) {
                    s.ours[strlen(s.ours) - 1] = 'b';
                    if (!s.across && s.rank == 2) s.cols = s.rows;
                    s.rank = 1;
                    s.rows = 1;
                }
                list[n++] = s;
            }
    }
    return n;
}

// Returns the arena of a model that was loaded from such a file.
static float *native(const GPT2Config *c, const GPT2Table *t) {
    static Stored list[MAX_STORED];
    const int count = stored_list(c, list);
    float *arena = (float *)alloc_or_fail(t->elements, sizeof(float), "expected");
    size_t set = 0, all = 0;
    for (int i = 0; i < t->count; i++) all += t->tensors[i].rows * t->tensors[i].cols;
    for (const Stored *s = list; s < list + count; s++) {
        int i = 0;
        while (strcmp(t->tensors[i].name, s->ours) != 0) i++;
        float *to = arena + t->tensors[i].offset;
        for (size_t row = s->skip; row < s->rows; row++)
            for (size_t col = 0; col < s->cols; col++, set++)
                to[s->rank == 1 ? s->first + col : s->across ? col * s->rows + row
                   : (s->first + row - s->skip) * s->cols + col]
                    = hf_value(s->name, row * s->cols + col);
    }
    CHECK(set == all, "%zu of %zu elements have a place in the file", set, all);
    return arena;
}

// How a file differs from a plain one; names are without the prefix.
typedef struct {
    const char *prefix, *drop, *reshape, *nan, *twice, *extra;
    int dtype, shards, head;
    bool masks;      // and other buffers that old files have
    bool saved;      // as we write it
} Variant;

enum { HEAD_SAME = 1, HEAD_OTHER };  // Variant.head: a tied model's file has one, too

static uint16_t f16_exact(float f) {  // for multiples of 1/1024 below 1
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f == 0) return (uint16_t)(u >> 16);
    return (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 0xff) - 112) << 10) | (u >> 13 & 0x3ff));
}

static void put_value(FILE *to, int dtype, float f) {
    const double wide = f;
    const uint16_t half = dtype == ST_F16 ? f16_exact(f) : bf16_weight(f);
    const int64_t whole = (int64_t)f;
    const void *p = dtype == ST_F64 ? (const void *)&wide : dtype == ST_I64 ? (const void *)&whole
                  : dtype == ST_F32 ? (const void *)&f : (const void *)&half;
    fwrite(p, st_dtypes[dtype].size, 1, to);
}

static bool is(const char *name, const char *other) {
    return other != NULL && strcmp(name, other) == 0;
}

// Writes model.safetensors (or shards with an index) into dir, and config.json of our own.
static void write_hf(const char *dir, const GPT2Config *c, const Variant *v) {
    static Stored list[MAX_STORED];
    char path[PATH_MAX], *text[3];
    size_t length[3];
    const int shards = v->shards > 0 ? v->shards : 1;
    int count = stored_list(c, list);
    FILE *index = open_memstream(&text[2], &length[2]);
    remove_tree(dir);
    make_directories(dir);
    if (v->head) list[count++] = (Stored){"lm_head.weight", "", 2, c->vocab, c->channels, 0, 0, 0};
    if (v->masks && c->family == FAMILY_GPT2) {
        list[count++] = (Stored){"h.1.attn.bias", "", 4, 9, 9, 0, 0, 0};
        list[count++] = (Stored){"h.0.attn.masked_bias", "", 1, 1, 1, 0, 0, 0};
    } else if (v->masks && c->family >= FAMILY_LLAMA) {
        list[count++] = (Stored){"layers.1.self_attn.rotary_emb.inv_freq", "", 1, 1, 3, 0, 0, 0};
    }
    const char *const more[2] = {v->extra, v->twice};
    for (int i = 0; i < 2; i++)
        if (more[i] != NULL) {
            list[count] = (Stored){"", "", 1, 1, i == 0 ? 3 : c->channels, 0, 0, 0};
            snprintf(list[count++].name, sizeof list[0].name, "%s", more[i]);
        }
    fprintf(index, "{\"weight_map\":{");
    for (int k = 0; k < shards; k++) {
        FILE *header = open_memstream(&text[0], &length[0]);
        FILE *data = open_memstream(&text[1], &length[1]);
        char file[64];
        snprintf(file, sizeof file, "model-%d-of-%d.safetensors", k + 1, shards);
        if (shards == 1) snprintf(file, sizeof file, "model.safetensors");
        for (int i = k; i < count; i += shards) {
            const Stored *s = &list[i];
            const bool head = is(s->name, "lm_head.weight"), swap = is(s->name, v->reshape);
            const bool own = v->twice != NULL && i == count - 1;  // the other spelling
            const char *prefix = head || own ? "" : v->prefix;
            const char *value = head && v->head == HEAD_SAME ? list[0].name : s->name;
            const size_t n = s->rows * s->cols;
            if (is(s->name, v->drop)) continue;
            const long begin = ftell(data);
            for (size_t j = 0; j < n; j++)
                put_value(data, v->dtype, is(s->name, v->nan) && j == n - 1 ? NAN
                          : v->saved && j < s->skip * s->cols ? 0 : hf_value(value, j));
            fprintf(header, "%c\"%s%s\":{\"dtype\":\"%s\",\"shape\":[",
                    ftell(header) == 0 ? '{' : ',', prefix, s->name, st_dtypes[v->dtype].name);
            if (s->rank > 1)
                fprintf(header, "%s%zu,", s->rank == 4 ? "1,1," : "", swap ? s->cols : s->rows);
            fprintf(header, "%zu],\"data_offsets\":[%ld,%ld]}", swap ? s->rows : s->cols, begin,
                    ftell(data));
            fprintf(index, "%s\"%s%s\":\"%s\"", ftell(index) > 16 ? "," : "", prefix, s->name,
                    file);
        }
        fputc('}', header);
        fclose(header);
        fclose(data);
        path_join(path, dir, file);
        FILE *f = fopen(path, "wb");
        const uint64_t size = length[0];
        if (f == NULL || fwrite(&size, 8, 1, f) != 1 || fwrite(text[0], size, 1, f) != 1
            || fwrite(text[1], length[1], 1, f) != 1 || fclose(f) != 0)
            die("cannot write %s", path);
        free(text[0]);
        free(text[1]);
    }
    fprintf(index, "}}");
    fclose(index);
    path_join(path, dir, "model.safetensors.index.json");
    if (shards > 1) write_text(path, text[2], length[2]);
    free(text[2]);
    path_join(path, dir, "config.json");
    FILE *f = fopen(path, "wb");
    if (f == NULL) die("cannot write %s", path);
    config_write(f, c, false, no_ends, NULL);
    fclose(f);
}

// Loads what is at path, as a model of configuration *c (NULL: the one in config.json).
static float *load(const char *path, const GPT2Config *c, GPT2Table *t) {
    GPT2Config own;
    err.text[0] = '\0';
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
    float *expected = native(c, &t);
    for (size_t i = 0; i < t.elements; i++)
        CHECK(arena[i] == expected[i], "%s, element %zu: %g, not %g",
              t.tensors[gpt2_tensor_at(&t, i)].name, i, (double)arena[i], (double)expected[i]);
    free(expected);
    free(arena);
    gpt2_table_free(&t);
}

// Is the model at path refused with these words?
static bool refused(const char *path, const GPT2Config *c, const char *words) {
    GPT2Table t;
    float *arena = load(path, c, &t);
    if (arena != NULL) gpt2_table_free(&t);
    free(arena);
    CHECK(arena == NULL && says(words), "it says \"%s\", not \"%s\"", err.text, words);
    return arena == NULL;
}

// ---------------------------------------------------------------------------------------------
// Loading

// One of each family; with ALL=1 all their prefixes and numbers of files, for every place of state.
static void test_load_layouts(void) {
    static const int dtypes[] = {ST_F32, ST_F16, ST_F64};
    int n = 0;
    for (int place = NEAR; place <= MIXED; place++)
        for (int family = 0; family < FAMILIES; family++)
            for (int tied = 0; tied < 2; tied++)
                for (const char *const *p = hf_prefixes[hf_families[family].naming]; *p; p++)
                    for (int shards = 1; shards <= 3; shards++, n++) {
                        if (!test_whole() && n % 5 != 0) continue;
                        const GPT2Config c = config_of(family, tied);
                        const Variant v = {.prefix = *p, .dtype = dtypes[n % 3], .shards = shards,
                                           .masks = true, .head = tied && n % 2 ? HEAD_SAME : 0};
                        write_hf(in_base("load"), &c, &v);
                        far = place;
                        far_largest = 0;
                        check_loads(in_base("load"), &c);
                        CHECK(far != MOVED || far_largest == 256 * 20 * sizeof(float),
                              "%zu bytes at a time", far_largest);
                        far = NEAR;
                    }
}

static void test_load_from_a_file(void) {
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    const Variant v = {.prefix = "transformer."};
    char cwd[PATH_MAX];
    write_hf(in_base("load"), &c, &v);
    check_loads(in_base("load/model.safetensors"), &c);
    check_loads(in_base("load/"), &c);
    if (getcwd(cwd, sizeof cwd) == NULL || chdir(in_base("load")) != 0) SKIP("cannot chdir");
    check_loads("model.safetensors", &c);
    check_loads(".", &c);
    CHECK(chdir(cwd) == 0, "back");
}

// A head beside tied embeddings: equal, or alone, it is they; different, it is refused.
static void test_load_heads(void) {
    static const char other[] = "lm_head.weight is not ";
    char *dir = in_base("heads"), *file = in_base("heads/model.safetensors");
    int n = 0;
    for (int family = 0; family < FAMILIES; family++)
        for (const char *const *p = hf_prefixes[hf_families[family].naming]; *p != NULL; p++, n++)
            for (int head = HEAD_SAME; head <= HEAD_OTHER; head++) {
                const GPT2Config c = config_of(family, 1);
                Variant v = {.prefix = *p, .head = head, .shards = 1 + (n + head) % 3,
                             .dtype = n % 2 ? ST_F64 : ST_F32};
                write_hf(dir, &c, &v);
                if (head == HEAD_OTHER) refused(dir, &c, other);
                else check_loads(dir, &c);
                if (head == HEAD_OTHER) continue;
                v.drop = family == FAMILY_GPT2 ? "wte.weight" : "embed_tokens.weight";
                write_hf(dir, &c, &v);
                check_loads(dir, &c);
            }
    const GPT2Config g = config_of(FAMILY_GPT2, 1);
    for (int i = 0; i < 2; i++) {
        const Variant v = {.prefix = "transformer.", .head = HEAD_SAME,
                           .reshape = i == 0 ? "lm_head.weight" : NULL,
                           .drop = i == 0 ? "wte.weight" : NULL,
                           .nan = i == 1 ? "lm_head.weight" : NULL};
        write_hf(dir, &g, &v);
        refused(dir, &g, i == 0 ? "tensor lm_head.weight is (20, 131), the model needs (131, 20)"
                : other);
    }
    const Variant v = {.prefix = "transformer.", .head = HEAD_SAME};
    write_hf(dir, &g, &v);  // one bit of its last element
    size_t n_bytes = 0;
    char *bytes = file_read(file, &n_bytes, &err);
    bytes[n_bytes - 1] ^= 1;
    write_text(file, bytes, n_bytes);
    free(bytes);
    refused(dir, &g, other);
}

// Something else in a model's place is told by its first bytes, wherever it lies; and what is not
// there is named.
static void test_load_others(void) {
    static const char *const places[] = {
        "model.bin", "model.safetensors", "model-2-of-2.safetensors",
        "model.safetensors.index.json", "config.json"};
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    const Variant v = {.prefix = "transformer.", .shards = 2};
    char *dir = in_base("others"), *file = in_base("others/model-2-of-2.safetensors");
    char path[PATH_MAX];
    for (int i = 0; i < 5; i++) {
        write_hf(dir, &c, &v);
        path_join(path, dir, places[i]);
        write_text(path, "GGUF\3\0\0\0\1\0\0\0", 12);
        refused(i == 0 ? path : dir, NULL, "GGUF");
        CHECK(says(places[i]), "%s: %s", places[i], err.text);
    }
    write_hf(dir, &c, &v);
    CHECK(truncate(file, 3000) == 0 && refused(dir, &c, "model-2-of-2.safetensors"), "truncate");
    CHECK(truncate(file, 0) == 0 && refused(dir, &c, "cut short: 0 bytes"), "truncate");
    static const char alone[] =
        "{'weight_map':{'transformer.wte.weight':'model-1-of-2.safetensors'}}";
    write_text(in_base("others/model.safetensors.index.json"), quoted(alone), sizeof alone - 1);
    refused(dir, &c, "is missing");
    write_text(in_base("others/state.txt"), "", 0);
    refused(dir, NULL, "is a checkpoint: --model takes");
    refused(in_base("others/state.safetensors"), NULL, "is a checkpoint");
    make_directories(in_base("empty"));
    refused(in_base("nowhere"), &c, "No such file");
    refused(in_base("empty"), &c, "and there is no model.safetensors");
    refused(in_base("empty"), NULL, "config.json");
}

// Written by dev/test/hf_roundtrip.py --fixtures with transformers' save_pretrained(): GPT-2 in
// fp32 as the base model (no prefix), OPT in fp16 in several shards.
static void test_load_fixtures(void) {
    static const char *const names[2] = {"gpt2", "opt"};
    for (int family = 0; family < 2; family++) {
        GPT2Config c;
        char path[PATH_MAX];
        path_join(path, TEST_FIXTURES "/hf", names[family]);
        model_config_load(path, &c);
        CHECK(c.layers == 2 && c.heads == 2 && c.channels == 16 && c.context == 12 && c.vocab == 67
              && c.ffn == (family == FAMILY_OPT ? 40u : 64u) && c.family == family && c.tied == 1
              && c.activation == (family == FAMILY_OPT ? ACTIVATION_RELU : ACTIVATION_GELU),
              "another configuration");
        check_loads(path, &c);
    }
}

// A row: family, tied head, what is wrong with which tensor, and words of the error.
static void test_load_refuses(void) {
    enum { DROP, RESHAPE, SPOIL, TWICE, EXTRA };
    static const struct { int family, tied, what; const char *name, *words; } cases[] = {
        {FAMILY_GPT2, 1, DROP, "h.1.mlp.c_fc.bias",
         "tensor transformer.h.1.mlp.c_fc.bias is missing, the model needs (37)"},
        {FAMILY_GPT2, 1, RESHAPE, "h.0.mlp.c_fc.weight",
         "transformer.h.0.mlp.c_fc.weight is (37, 20), the model needs (20, 37)"},
        {FAMILY_GPT2, 1, SPOIL, "h.1.attn.c_proj.weight",
         "tensor transformer.h.1.attn.c_proj.weight has a NaN"},
        {FAMILY_GPT2, 1, SPOIL, "wte.weight", "tensor transformer.wte.weight has a NaN"},
        {FAMILY_GPT2, 1, TWICE, "ln_f.bias", "ln_f.bias is there more than once"},
        {FAMILY_GPT2, 1, EXTRA, "h.2.ln_1.weight",
         "tensor transformer.h.2.ln_1.weight is unknown to a gpt2 model with a tied head"},
        {FAMILY_GPT2, 1, EXTRA, "h.0.attn.c_attn.lora_A", "lora_A is unknown"},
        {FAMILY_OPT, 0, DROP, "layers.0.self_attn.v_proj.weight",
         "self_attn.v_proj.weight is missing, the model needs (20, 20)"},
        {FAMILY_OPT, 0, DROP, "lm_head.weight",
         "tensor lm_head.weight is missing, the model needs (131, 20)"},
        {FAMILY_OPT, 0, RESHAPE, "embed_positions.weight",
         "embed_positions.weight is (20, 11), the model needs (11, 20)"},
        {FAMILY_OPT, 0, EXTRA, "project_in.weight", "unknown to a opt model with an untied head"},
        {FAMILY_LLAMA, 0, DROP, "layers.1.mlp.up_proj.weight",
         "model.layers.1.mlp.up_proj.weight is missing, the model needs (37, 20)"},
        {FAMILY_LLAMA, 0, RESHAPE, "layers.0.self_attn.o_proj.weight",
         "o_proj.weight is (24, 20), the model needs (20, 24)"},
        {FAMILY_LLAMA, 0, RESHAPE, "layers.0.self_attn.k_proj.weight",
         "k_proj.weight is (20, 12), the model needs (12, 20)"},
        {FAMILY_LLAMA, 0, EXTRA, "layers.0.self_attn.q_proj.bias", "q_proj.bias is unknown"},
        {FAMILY_QWEN2, 1, DROP, "layers.1.self_attn.v_proj.bias",
         "v_proj.bias is missing, the model needs (12)"},
        {FAMILY_QWEN2, 1, EXTRA, "layers.0.self_attn.q_norm.weight",
         "q_norm.weight is unknown to a qwen2 model with a tied head"},
    };
    char *dir = in_base("bad");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const GPT2Config c = config_of(cases[i].family, cases[i].tied);
        const char *name = cases[i].name;
        const int what = cases[i].what;
        const Variant v = {
            .prefix = hf_prefixes[hf_naming(&c)][0], .drop = what == DROP ? name : NULL,
            .reshape = what == RESHAPE ? name : NULL, .nan = what == SPOIL ? name : NULL,
            .twice = what == TWICE ? name : NULL, .extra = what == EXTRA ? name : NULL};
        write_hf(dir, &c, &v);
        refused(dir, &c, cases[i].words);
    }
    GPT2Config g = config_of(FAMILY_GPT2, 1);
    Variant v = {.prefix = "transformer.", .dtype = ST_BF16, .nan = "ln_f.bias"};
    write_hf(dir, &g, &v);
    refused(dir, &g, "tensor transformer.ln_f.bias has a NaN");
    v.dtype = ST_I64;
    write_hf(dir, &g, &v);
    refused(dir, &g, "tensor transformer.wte.weight is not stored as F32, F16, BF16 or F64");
    v.dtype = ST_F32;
    v.nan = NULL;
    v.prefix = "model.";
    write_hf(dir, &g, &v);
    refused(dir, &g, "transformer.wte.weight is missing, the model needs (131, 20)");
    v.prefix = "transformer.";
    write_hf(dir, &g, &v);
    g.tied = 0;
    refused(dir, &g, "lm_head.weight is missing");
    g.tied = 1;
    g.vocab = 130;
    gpt2_finish(&g, &err);
    refused(dir, &g, "is (131, 20), the model needs (130, 20)");
}

// ---------------------------------------------------------------------------------------------
// config.json, with ' for "

static bool config_from(const char *type, const char *more, GPT2Config *c) {
    static const char *const sizes[NAMINGS] = {CONFIG_GPT2, CONFIG_OPT, CONFIG_LLAMA};
    char text[4000];
    int family = 0;
    while (strcmp(hf_families[family].type, type) != 0) family++;
    snprintf(text, sizeof text, "{'model_type':'%s',%s%s%s}", type,
             sizes[hf_families[family].naming], *more != '\0' ? "," : "", more);
    make_directories(in_base("config"));
    write_text(in_base("config/config.json"), quoted(text), strlen(text));
    return !REFUSES(model_config_load(in_base("config"), c));
}

// Returns the fields in which two configurations differ, with the first one's values.
static const char *config_other(const GPT2Config *c, const GPT2Config *from) {
    static char text[1000];
    size_t n = 0;
    text[0] = '\0';
    #define OTHER(field) \
        if (c->field != from->field) n += (size_t)snprintf(text + n, sizeof text - n, \
            n > 0 ? ", " #field " %.10g" : #field " %.10g", (double)c->field);
    OTHER(layers) OTHER(heads) OTHER(channels) OTHER(ffn) OTHER(context) OTHER(window)
    OTHER(vocab) OTHER(vocab_padded) OTHER(family) OTHER(activation) OTHER(tied) OTHER(embed)
    OTHER(post_norm) OTHER(kv_heads) OTHER(head_size) OTHER(rms) OTHER(norm_eps) OTHER(unbiased)
    OTHER(qk_norm) OTHER(unturned) OTHER(rope.theta) OTHER(rope.scaling) OTHER(rope.factor) OTHER(rope.low)
    OTHER(rope.high) OTHER(rope.original)
    return text;
}

// model_type, what its config.json has beside the sizes, and where the model then differs from one
// of which it has nothing but these (from no model, if there is nothing).
static void test_config_accepts(void) {
    #define LLAMA_NULLS \
        "'num_key_value_heads':null,'rms_norm_eps':null,'tie_word_embeddings':null," \
        "'hidden_act':null,'attention_bias':null,'mlp_bias':null,'rope_theta':null," \
        "'rope_scaling':null,'rope_parameters':null,'partial_rotary_factor':null," \
        "'pretraining_tp':null,'quantization_config':null,'sliding_window':null," \
        "'use_sliding_window':null,'head_dim':null,'eos_token_id':null"
    #define LLAMA_VALUES \
        "'num_key_value_heads':4,'head_dim':6,'rms_norm_eps':1e-5,'tie_word_embeddings':true," \
        "'hidden_act':'silu','attention_bias':true,'mlp_bias':true,'rope_theta':5e5," \
        "'pretraining_tp':1,'eos_token_id':[1,2],'bos_token_id':7,'attention_dropout':0.1," \
        "'partial_rotary_factor':1.0,'torch_dtype':'bfloat16','sliding_window':9000," \
        "'use_sliding_window':true"
    #define SLIDING "'sliding_window':9,'use_sliding_window':true,"
    #define SCALING_LLAMA3 "'factor':8,'low_freq_factor':1,'high_freq_factor':4"
    #define SCALED(more) "'rope_scaling':{'rope_type':'llama3'," SCALING_LLAMA3 more "}"
    static const struct { const char *type, *more, *other; } good[] = {
        {"gpt2", "",
         "layers 3, heads 2, channels 8, ffn 32, context 5, vocab 300, vocab_padded 384, tied 1"},
        {"gpt2", "'n_inner':null,'tie_word_embeddings':false", "tied 0"},
        {"gpt2", "'n_inner':7,'activation_function':'relu'", "ffn 7, activation 1"},
        {"gpt2", "'n_inner':null,'activation_function':null,'quantization_config':null,"
         "'tie_word_embeddings':null,'layer_norm_epsilon':null", ""},
        {"gpt2", "'activation_function':'gelu_pytorch_tanh','n_ctx':5", ""},
        {"gpt2", "'activation_function':'gelu_fast','attn_pdrop':0.1", ""},
        {"gpt2", "'layer_norm_epsilon':0.00001,'scale_attn_weights':true", ""},
        // GPT-2's other names, which transformers reads before its own
        {"gpt2", "'num_hidden_layers':4,'num_attention_heads':3,'hidden_size':9,"
         "'max_position_embeddings':6,'ffn_dim':9,'is_causal':true",
         "layers 4, heads 3, channels 9, ffn 36, context 6"},
        {"opt", "",
         "layers 3, heads 2, channels 8, ffn 32, context 5, vocab 300, vocab_padded 384, family 1, "
         "activation 1, tied 1"},
        {"opt", "'word_embed_proj_dim':null,'do_layer_norm_before':null,'ffn_dim':null", ""},
        {"opt", "'ffn_dim':16", "ffn 16"},
        {"opt", "'activation_function':'gelu_new','word_embed_proj_dim':8,"
         "'do_layer_norm_before':true,'enable_bias':true,'tie_word_embeddings':false",
         "activation 0, tied 0"},
        {"opt", "'scale_attn_weights':false,'enable_bias':null", ""},
        {"opt", "'do_layer_norm_before':false,'word_embed_proj_dim':4", "embed 4, post_norm 1"},
        {"llama", "",
         "layers 3, heads 32, channels 64, ffn 7, context 5000, vocab 300, vocab_padded 384, "
         "family 2, activation 2, kv_heads 32, rms 1, norm_eps 1e-06, unbiased 7, "
         "rope.theta 10000"},
        {"mistral", "",
         "layers 3, heads 32, channels 64, ffn 7, context 5000, window 4096, vocab 300, "
         "vocab_padded 384, family 3, activation 2, kv_heads 32, rms 1, norm_eps 1e-06, "
         "unbiased 7, rope.theta 10000"},
        {"qwen2", "",
         "layers 3, heads 32, channels 64, ffn 7, context 5000, vocab 300, vocab_padded 384, "
         "family 4, activation 2, kv_heads 32, rms 1, norm_eps 1e-06, unbiased 6, "
         "rope.theta 10000"},
        {"qwen3", "",
         "layers 3, heads 32, channels 64, ffn 7, context 5000, vocab 300, vocab_padded 384, "
         "family 5, activation 2, kv_heads 32, head_size 128, rms 1, norm_eps 1e-06, "
         "unbiased 7, qk_norm 1, rope.theta 10000"},
        {"smollm3", "",
         "layers 3, heads 32, channels 64, ffn 7, context 5000, vocab 300, vocab_padded 384, "
         "family 6, activation 2, tied 1, kv_heads 32, rms 1, norm_eps 1e-06, unbiased 7, "
         "unturned 4, rope.theta 2000000"},
        {"smollm3", "'no_rope_layers':[1,1,1]", ""},
        {"smollm3", "'no_rope_layers':[1,0,1],'no_rope_layer_interval':2,'mlp_bias':true",
         "unbiased 3, unturned 2"},
        {"smollm3", "'no_rope_layers':null,'no_rope_layer_interval':3", "unturned 3"},
        {"llama", LLAMA_NULLS, ""},
        {"mistral", LLAMA_NULLS, "window 0"},
        {"qwen2", LLAMA_NULLS, ""},
        {"qwen3", LLAMA_NULLS, ""},
        {"llama", LLAMA_VALUES,
         "tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, unbiased 0, rope.theta 500000"},
        {"mistral", LLAMA_VALUES,
         "window 9000, tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, "
         "rope.theta 500000"},  // has no key for biases
        {"qwen2", LLAMA_VALUES,
         "tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, rope.theta 500000"},    // neither
        {"qwen3", LLAMA_VALUES,
         "tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, unbiased 4, rope.theta 500000"},
        {"llama", "'head_dim':2,'sliding_window':9", ""},
        {"llama", "'pretraining_tp':2,'hidden_act':'swish'", ""},
        // a window, where it is used; one of some layers limits the context
        {"mistral", "'sliding_window':1000", "window 1000"},
        {"mistral", "'sliding_window':9,'max_window_layers':3", "window 9"},
        {"qwen2", "'sliding_window':9", ""},
        {"qwen2", "'sliding_window':9,'use_sliding_window':false", ""},
        {"qwen2", SLIDING "'max_window_layers':2", "context 9"},
        {"qwen2", SLIDING "'max_window_layers':3", ""},
        {"qwen2", SLIDING "'max_window_layers':0", "window 9"},
        {"qwen3", "'use_sliding_window':true", ""},
        {"qwen3", "'use_sliding_window':true,'max_window_layers':2", "context 4096"},
        {"qwen3", "'sliding_window':null,'use_sliding_window':true", ""},
        // which of the keys for rotary positions counts
        {"llama", "'rope_theta':50", "rope.theta 50"},
        {"llama", "'rope_parameters':{'rope_theta':50}", "rope.theta 50"},
        {"llama", "'rope_theta':9,'rope_parameters':{'rope_type':'default','rope_theta':50}",
         "rope.theta 50"},
        {"llama", "'rope_theta':9,'rope_scaling':{'type':'default'}", "rope.theta 9"},
        {"llama", "'rope_theta':9,'rope_scaling':{'type':'linear','factor':2.5}",
         "rope.theta 9, rope.scaling 1, rope.factor 2.5"},
        {"llama", "'rope_theta':9,'rope_scaling':{'type':'linear','factor':2,'rope_theta':8}",
         "rope.theta 8, rope.scaling 1, rope.factor 2"},
        // rope_type before type; rope_scaling before rope_parameters, unless it is empty
        {"llama", "'rope_scaling':{'type':'yarn','rope_type':'linear','factor':2}",
         "rope.scaling 1, rope.factor 2"},
        {"llama", "'rope_theta':9,'rope_scaling':{'rope_type':'linear','factor':3},"
         "'rope_parameters':{'rope_type':'llama3','rope_theta':50," SCALING_LLAMA3 "}",
         "rope.theta 9, rope.scaling 1, rope.factor 3"},
        {"llama", "'rope_theta':9,'rope_scaling':{},'rope_parameters':{'rope_type':'llama3',"
         "'rope_theta':50," SCALING_LLAMA3 ",'original_max_position_embeddings':77}",
         "rope.theta 50, rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 77"},
        {"llama", "'rope_scaling':null,'rope_parameters':{'rope_type':'linear','factor':2}",
         "rope.scaling 1, rope.factor 2"},
        // without it, the length is the model's own, which no window limits; and the root's is
        // before the object's
        {"mistral", SCALED(""),
         "rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 5000"},
        {"llama", SCALED(",'original_max_position_embeddings':null"),
         "rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 5000"},
        {"llama", SCALED(",'original_max_position_embeddings':77")
         ",'original_max_position_embeddings':55",
         "rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 55"},
        {"llama", "'rope_parameters':{'rope_type':'llama3','rope_theta':50," SCALING_LLAMA3
         "},'original_max_position_embeddings':55",
         "rope.theta 50, rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 55"},
    };
    GPT2Config c, from;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (*good[i].more == '\0') memset(&from, 0, sizeof from);
        else CHECK(config_from(good[i].type, "", &from), "%s", err.text);
        CHECK(config_from(good[i].type, good[i].more, &c), "%s: %s", good[i].more, err.text);
        CHECK(strcmp(config_other(&c, &from), good[i].other) == 0, "%s of %s: %s", good[i].more,
              good[i].type, config_other(&c, &from));
    }
    write_text(in_base("config/config.json"), quoted("\xef\xbb\xbf{'model_type':'gpt2'," CONFIG_GPT2
               "}"), 3 + strlen("{'model_type':'gpt2'," CONFIG_GPT2 "}"));
    CHECK(!REFUSES(model_config_load(in_base("config"), &c)) && c.context == 5, "%s", err.text);
}

// What is said of keys that are neither read nor known as harmless: one line with all of them.
static const char *config_warns(const char *text) {
    GPT2Config c;
    make_directories(in_base("config"));
    write_text(in_base("config/config.json"), quoted(text), strlen(text));
    return SAYS(model_config_load(in_base("config"), &c));
}

static void test_config_unknown(void) {
    static const char *const published[] = {  // keys of config.json files as they are on the hub
        "{'model_type':'gpt2'," CONFIG_GPT2 ",'activation_function':'gelu_new','architectures':['GPT2LMHeadModel'],"
        "'attn_pdrop':0.1,'bos_token_id':50256,'embd_pdrop':0.1,'eos_token_id':50256,'id2label':{},"
        "'initializer_range':0.02,'label2id':{},'layer_norm_epsilon':1e-05,'n_ctx':5,'n_special':0,"
        "'predict_special_tokens':true,'resid_pdrop':0.1,'summary_activation':null,'summary_type':'x',"
        "'summary_first_dropout':0.1,'summary_proj_to_labels':true,'summary_use_proj':true,"
        "'task_specific_params':{'text-generation':{'do_sample':true,'max_length':50}},'use_cache':true,"
        "'gradient_checkpointing':false,'reorder_and_upcast_attn':false,'finetuning_task':'x','top_p':1,"
        "'_num_labels':1,'output_past':true,'pruned_heads':{},'torchscript':false,'top_k':50,"
        "'use_bfloat16':false,'num_beams':1,'repetition_penalty':1,'max_length':20,'is_decoder':false,"
        "'eos_token_ids':0,'num_return_sequences':1,'no_repeat_ngram_size':0,'tokenizer_class':'x'}",
        "{'model_type':'opt'," CONFIG_OPT ",'_name_or_path':'x','_remove_final_layer_norm':false,'activation_dropout':0,"
        "'attention_dropout':0,'dropout':0.1,'do_layer_norm_before':true,'layerdrop':0,'init_std':0.02,"
        "'pad_token_id':1,'prefix':'</s>','torch_dtype':'float16','word_embed_proj_dim':8,"
        "'transformers_version':'4.21.0.dev0','enable_bias':true,'layer_norm_elementwise_affine':true}",
        "{'model_type':'qwen2','num_hidden_layers':2,'num_attention_heads':2,'hidden_size':8,"
        "'intermediate_size':7,'max_position_embeddings':4194304,'vocab_size':300,'use_mrope':false,"
        "'attention_bias':false,'attention_dropout':0,'auto_map':{},'dtype':'bfloat16','head_dim':4,"
        "'hidden_act':'silu','is_llama_config':true,'layer_types':null,'max_sequence_length':5,"
        "'max_window_layers':2,'mlp_bias':false,'num_key_value_heads':1,'pretraining_tp':1,"
        "'original_max_position_embeddings':9,'rms_norm_eps':1e-6,'rope_interleaved':false,"
        "'rope_parameters':{'rope_type':'llama3'," SCALING_LLAMA3 ",'rope_theta':1e6},'rope_theta':1,"
        "'sliding_window':null,'tie_word_embeddings':true,'transformers.js_config':{},"
        "'unsloth_fixed':true,'unsloth_version':'x','use_sliding_window':false,'new':null}"};
    for (int i = 0; i < 3; i++)
        CHECK(*config_warns(published[i]) == '\0', "%s", config_warns(published[i]));
    const char *said = config_warns("{'model_type':'llama','num_hidden_layers':2,'hidden_size':8,"
        "'num_attention_heads':2,'intermediate_size':7,'max_position_embeddings':9,'vocab_size':30,"
        "'residual_multiplier':2,'num_experts':4}");
    CHECK(strstr(said, "config.json: unknown here, and not read: residual_multiplier, "
                 "num_experts\n") != NULL, "%s", said);
    ranks.rank = 1;  // one rank says it
    CHECK(*config_warns("{'model_type':'gpt2'," CONFIG_GPT2 ",'x':1}") == '\0', "rank 1 warns");
    ranks.rank = 0;
}

// ---------------------------------------------------------------------------------------------
// Saving

// Are the tensors of file `a`, with `front` before their names, those of file `b`, which may have
// more of other names? Returns how many those are, or -1.
static int more_tensors(const char *a, const char *front, const char *b) {
    SafeTensors x, y;
    char name[128];
    if (!safetensors_open(&x, a, &err) || !safetensors_open(&y, b, &err)) return -1;
    for (int i = 0; i < x.count; i++) {
        const SafeTensor *s = &x.tensors[i];
        snprintf(name, sizeof name, "%s%s", front, s->name);
        const SafeTensor *same = safetensors_find(&y, name);
        CHECK(same != NULL && s->dtype == same->dtype && s->rank == same->rank
              && memcmp(s->shape, same->shape, sizeof s->shape) == 0
              && memcmp(s->data, same->data, s->bytes) == 0, "%s is another", name);
    }
    CHECK((y.tensors[0].data - (unsigned char *)y.map) % 8 == 0, "data is not aligned");
    const int more = y.count - x.count;
    safetensors_close(&x);
    safetensors_close(&y);
    return more;
}

// A saved file has transformers' names, shapes and values, wherever the state was.
static void test_save_layouts(void) {
    static const char *const prefixes[NAMINGS] = {"transformer.", "model.decoder.", "model."};
    char *dir = in_base("save/deep"), *file = in_base("save/deep/model.safetensors");
    for (int i = 0; i < 3 * 4 * FAMILIES; i += test_whole() ? 1 : 5) {
        const int family = i / 12;
        GPT2Config c = config_of(family, i & 1), back;
        if (family < FAMILY_LLAMA) c.activation = i % 3 == 0 ? ACTIVATION_RELU : ACTIVATION_GELU;
        const Variant v = {.prefix = prefixes[hf_naming(&c)], .saved = true,
                           .dtype = i & 2 ? ST_BF16 : ST_F32};
        GPT2Table t = gpt2_table(&c);
        float *arena = native(&c, &t);
        for (int k = 0; k < t.count; k++)  // padded rows hold anything, and are not written
            for (size_t j = t.tensors[k].rows * t.tensors[k].cols; j < t.tensors[k].size; j++)
                arena[t.tensors[k].offset + j] = 99;
        remove_tree(in_base("save"));
        far = i % 12 / 4;
        CHECK(save_model(dir, &c, &t, arena, i & 2, 5), "%s", err.text);
        far = NEAR;
        CHECK(entries_in(dir) == 2, "%d files", entries_in(dir));
        model_config_load(dir, &back);
        CHECK(memcmp(&c, &back, sizeof c) == 0, "%d: %s", i, config_other(&back, &c));
        write_hf(in_base("expected"), &c, &v);
        CHECK(more_tensors(in_base("expected/model.safetensors"), "", file) == 0, "%d: more", i);
        free(arena);
        gpt2_table_free(&t);
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
    char *path = in_base("dump.safetensors");
    for (int family = 0; family < FAMILIES; family++) {
        const GPT2Config c = config_of(family, 1);
        const Variant v = {.prefix = hf_prefixes[hf_naming(&c)][0], .saved = true};
        GPT2Table t = gpt2_table(&c);
        SafeTensors st;
        int32_t tokens[B * T], targets[B * T];
        float *grads = native(&c, &t), value;
        float *logits = (float *)alloc_or_fail(B * T * c.vocab_padded, sizeof(float), "logits");
        for (int i = 0; i < B * T; i++) { tokens[i] = i; targets[i] = i + 1; }
        for (size_t i = 0; i < B * T * c.vocab_padded; i++) logits[i] = (float)i;
        const int32_t *begins = family == 1 ? tokens : NULL;
        CHECK(dump_save(path, &c, &t, B, T, tokens, targets, begins, 4.25, logits, grads, &err),
              "%s", err.text);
        CHECK(!path_exists(in_base("dump.safetensors.tmp")), "temporary file");
        write_hf(in_base("expected"), &c, &v);
        CHECK(more_tensors(in_base("expected/model.safetensors"), "grad.", path)
              == 4 + (begins != NULL), "other tensors");
        CHECK(safetensors_open(&st, path, &err), "%s", err.text);
        const struct { const char *name; const int32_t *values; } lists[3] = {
            {"tokens", tokens}, {"targets", targets}, {"begins", begins}};
        for (int i = 0; i < 3; i++) {
            const SafeTensor *x = safetensors_find(&st, lists[i].name);
            CHECK((x != NULL) == (lists[i].values != NULL), "%s", lists[i].name);
            if (x == NULL) continue;
            CHECK(x->dtype == ST_I32 && x->rank == 2 && x->shape[0] == B && x->shape[1] == T
                  && memcmp(x->data, lists[i].values, sizeof tokens) == 0, "%s", lists[i].name);
        }
        const SafeTensor *x = safetensors_find(&st, "loss");
        safetensor_floats(x, 0, 1, &value);
        CHECK(x->rank == 1 && x->elements == 1 && value == 4.25f, "loss %g", (double)value);
        x = safetensors_find(&st, "logits");
        CHECK(x->rank == 3 && x->shape[2] == c.vocab && x->shape[0] == B, "logits");
        for (size_t i = 0; i < x->elements; i++) {
            safetensor_floats(x, i, 1, &value);
            CHECK(value == (float)(i / c.vocab * c.vocab_padded + i % c.vocab), "logit %zu", i);
        }
        safetensors_close(&st);
        free(grads);
        free(logits);
        gpt2_table_free(&t);
    }
}

// ---------------------------------------------------------------------------------------------
// The format

static void test_format_accepts(void) {
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    static const char some[] =
        "{'__metadata__':{'a':'b'},'s':{'dtype':'F64','shape':[],'data_offsets':[4,12]},"
        "'e':{'dtype':'I64','shape':[3,0],'data_offsets':[4,4]},"
        "'b':{'shape':[2,2],'data_offsets':[0,4],'dtype':'BOOL'}}   ";
    SafeTensors st;
    char file[300] = {(char)strlen(some)};
    memcpy(file + 8, quoted(some), strlen(some));
    CHECK(safetensors_parse(&st, empty, 10, &err) && st.count == 0, "%s", err.text);
    CHECK(safetensors_find(&st, "x") == NULL, "finds nothing");
    safetensors_close(&st);
    CHECK(safetensors_parse(&st, file, 8 + strlen(some) + 12, &err), "%s", err.text);
    CHECK(st.count == 3, "%d", st.count);
    const SafeTensor *s = safetensors_find(&st, "s"), *e = safetensors_find(&st, "e");
    CHECK(s->rank == 0 && s->elements == 1 && s->bytes == 8 && s->dtype == ST_F64, "scalar");
    CHECK(e->rank == 2 && e->elements == 0 && e->bytes == 0 && e->shape[0] == 3, "empty");
    CHECK(safetensors_find(&st, "__metadata__") == NULL, "metadata is no tensor");
    safetensors_close(&st);
    const uint64_t long_header = 100000001;  // there, but longer than the format allows
    unsigned char *large = (unsigned char *)calloc(long_header + 8, 1);
    memcpy(large, &long_header, 8);
    large[8] = '{';
    CHECK(!safetensors_parse(&st, large, long_header + 8, &err)
          && says("not a safetensors file"), "%s", err.text);
    free(large);
    CHECK(!safetensors_open(&st, base, &err) && says("not a regular file"), "%s", err.text);
    CHECK(!safetensors_open(&st, in_base("nothing"), &err) && says("No such file"), "%s", err.text);
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

static Run run_of(GPT2Config c) {
    Run r;
    memset(&r, 0, sizeof r);
    gpt2_finish(&c, &err);
    r.c = c;
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

static Run run_new(size_t vocab) {
    const GPT2Config c = {.layers = 1, .heads = 2, .channels = 4, .ffn = 5, .context = 3,
                          .vocab = vocab, .tied = 1};
    return run_of(c);
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

// Calls state_find(), and keeps its lines on stderr in `said`.
static const char *said;
static bool find(const char *out, TrainState *s, char dir[PATH_MAX]) {
    bool found = false;
    said = SAYS(found = state_find(out, SIZE_MAX, s, dir, &err));
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

// A state of each family is saved and loaded, with all fields of its configuration. State that only
// its trainer reaches, or that lies in several places, makes the same file and the same values.
static void test_state_of_families(void) {
    char *out = in_base("families"), dir[PATH_MAX];
    char *file = in_base("families/checkpoints/step_00000001/state.safetensors");
    for (int i = 0; i < 2 * FAMILIES; i++) {
        Run r = run_of(config_of(i / 2, i % 2)), back = run_of(r.c);
        TrainState s;
        uint64_t hash = 0;
        for (int place = NEAR; place <= MIXED; place++) {
            for (int k = 0; k < PARTS; k++) memset(back.arena[k], 0xff, back.t.elements * 4);
            remove_tree(out);
            far = place;
            CHECK(run_save(&r, out, 1, 0) && find(out, &s, dir), "%s", err.text);
            CHECK(memcmp(&s.config, &r.c, sizeof r.c) == 0, "%d: another configuration", i);
            CHECK(load_state(dir, &s, &back, PARTS), "%s", err.text);
            far = NEAR;
            CHECK(place == NEAR || hash_of(file) == hash, "%d: another file", i);
            hash = hash_of(file);
            for (int k = 0; k < PARTS; k++)
                CHECK(memcmp(back.arena[k], r.arena[k], r.t.elements * 4) == 0, "%d: part %d", i,
                      k);
            train_state_free(&s);
        }
        run_free(&r);
        run_free(&back);
    }
}

static void test_state_keep(void) {
    Run r = run_new(7);
    const char *out = in_base("keep"), *all = in_base("keep/checkpoints");
    for (size_t step = 1; step <= 5; step++) CHECK(run_save(&r, out, step, 0), "%s", err.text);
    CHECK(entries_in(all) == 5, "%d", entries_in(all));
    CHECK(run_save(&r, out, 6, 3) && entries_in(all) == 3, "%d", entries_in(all));
    CHECK(path_exists(in_base("keep/checkpoints/step_00000004")), "the newest three");
    CHECK(run_save(&r, out, 7, 2) && run_save(&r, out, 8, 2) && entries_in(all) == 2, "-");
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
    if (!state_check(dir, &s, &err)) return false;
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
    const size_t step = test_whole() ? 1 : 5;
    for (size_t bit = 0; bit < 8 * n; bit += bit < 8 * dense ? step : 13, tried++) {
        const char flipped = (char)(good[bit / 8] ^ 1 << bit % 8);
        CHECK(pwrite(file, &flipped, 1, (off_t)(bit / 8)) == 1, "write");
        noticed += !is_whole(dir, r, parts);
        CHECK(pwrite(file, good + bit / 8, 1, (off_t)(bit / 8)) == 1, "write");
    }
    CHECK(noticed == tried && tried > 700, "%s: %zu of %zu bits", path, noticed, tried);
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
        {"version 10", "version 11", "of version 11; this program reads 10"},
        {"version 10", "version 9", "of version 9; this program reads 10"},
        {"\nbest.step 0", "\nbest.step x", "lacks"}, {"\nproducts 0", "", "lacks a field"},
        {"version 10\n", "", "of version 0"},
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
        bool ok = state_check(dir, &s, &err);
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
    RUN(test_format_writer);
    RUN(test_config_accepts);
    RUN(test_config_unknown);
    RUN(test_load_layouts);
    RUN(test_load_from_a_file);
    RUN(test_load_heads);
    RUN(test_load_others);
    RUN(test_load_fixtures);
    RUN(test_load_refuses);
    RUN(test_save_layouts);
    RUN(test_save_keeps_the_configuration);
    RUN(test_save_failures);
    RUN(test_save_trouble);
    RUN(test_dump);
    RUN(test_state_round_trip);
    RUN(test_state_of_families);
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
