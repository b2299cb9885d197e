// Models on disk: layouts against hand-written files and files that transformers wrote. What is
// refused for its text alone is in refused.h; training state, writes that fail, and processes that
// die meanwhile, are in test_checkpoint_ranks.c.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <unistd.h>
static int no_fsync(int fd) { return fd < 0 ? -1 : 0; }  // no power is cut here
#define fsync no_fsync
#include "../../../tide/files/hf.h"
#undef fsync
#include "../dies.h"
#include "../files.h"
#include "../refused.h"
#include "../test.h"
#include "../families.h"

// Does this end the program? Its last words are then in err.
static bool died(const char *line) {
    if (line != NULL) snprintf(err.text, sizeof err.text, "%.500s", line);
    return line != NULL;
}
#define REFUSES(call) died(DIES(call))

static bool says(const char *expected) { return strstr(err.text, expected) != NULL; }

// State as a trainer passes it, where only moved() knows: a move of one tensor at a time, in order,
// with what pads it only inwards.
static const GPT2Table *moved_table;
static float *moved_arena;
static size_t moved_next, moved_bytes;

static void moved(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    const GPT2Tensor *x = &moved_table->tensors[gpt2_tensor_at(moved_table, at)];
    const size_t end = x->offset + (out ? x->rows * x->cols : round_up(x->size, ALIGN_ELEMENTS));
    CHECK(n > 0 && at + n <= end, "%zu elements at %zu of %s", n, at, x->name);
    CHECK(at >= moved_next || at == 0, "out of order: %s", x->name);
    moved_next = at + n;
    moved_bytes += n * sizeof *w;
    state_move(owner, part, at, n, w, out);
}

static RunState state_of(const GPT2Table *t, float *arena) {
    moved_table = t;
    moved_arena = arena;
    moved_next = moved_bytes = 0;
    RunState x = state_in(&moved_arena, 1);
    x.move = moved;
    return x;
}

static const TextEnds no_ends = {-1, -1}, ends = {7, 5};

static float *arena_of(const GPT2Table *t) {  // of NaNs
    float *arena = ALLOC(float, t->elements, "arena");
    memset(arena, 0xff, t->elements * sizeof *arena);
    return arena;
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
    const char *same;                // a tensor whose elements it has
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
                Stored s = {.rank = size[0] == '1' ? 1 : 2, .rows = size_of(c, size[0]),
                            .cols = size_of(c, size[1]), .first = size_of(c, size[2])};
                char format[64];
                snprintf(format, sizeof format, "%s.%s", name, k == 0 ? "weight" : "bias");
                snprintf(s.name, sizeof s.name, format, l);
                snprintf(s.ours, sizeof s.ours, stored_rows[i].ours, l);
                s.across = layers && c->family == FAMILY_GPT2;
                s.skip = size[0] == 'P' ? 2 : 0;
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
    float *arena = ALLOC(float, t->elements, "expected");
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
    const char *prefix;  // NULL: the first that is known
    const char *drop, *reshape, *nan, *twice, *extra;
    int dtype, shards, head;
    bool masks;          // and other buffers that old files have
    bool saved;          // as we write it
} Variant;

enum { HEAD_SAME = 1, HEAD_OTHER };  // Variant.head: a tied model's file has one, too

static uint16_t f16_exact(float f) {  // for multiples of 1/1024 below 1
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f == 0) return (uint16_t)(u >> 16);
    return (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 0xff) - 112) << 10) | (u >> 13 & 0x3ff));
}

static void put_value(unsigned char *to, int dtype, float f) {
    const double wide = f;
    const uint16_t half = dtype == ST_F16 ? f16_exact(f) : bf16_weight(f);
    const int64_t whole = (int64_t)f;
    const void *p = dtype == ST_F64 ? (const void *)&wide : dtype == ST_I64 ? (const void *)&whole
                  : dtype == ST_F32 ? (const void *)&f : (const void *)&half;
    memcpy(to, p, st_dtypes[dtype].size);
}

static bool is(const char *name, const char *other) {
    return other != NULL && strcmp(name, other) == 0;
}

// Declares a stored tensor as the variant has it, or puts its elements.
static void write_stored(SafeWriter *w, const Stored *s, const Variant *v, const char *prefix) {
    const bool swap = is(s->name, v->reshape);
    const size_t n = s->rows * s->cols, size = st_dtypes[v->dtype].size;
    const size_t rows = swap ? s->cols : s->rows, cols = swap ? s->rows : s->cols;
    const size_t shape[4] = {s->rank == 2 ? rows : s->rank == 4 ? 1 : cols,
                             s->rank == 2 ? cols : 1, rows, cols};
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, s->name);
    if (w->file == NULL) { safewriter_add(w, name, v->dtype, s->rank, shape); return; }
    int i = 0;
    while (strcmp(w->tensors[i].name, name) != 0) i++;
    unsigned char *bytes = ALLOC(unsigned char, n * size, "a tensor");
    for (size_t j = 0; j < n; j++) {
        const bool last = j == n - 1;
        const float value = hf_value(s->same != NULL ? s->same : s->name, j);
        put_value(bytes + j * size, v->dtype, is(s->name, v->nan) && last ? NAN
                  : v->saved && j < s->skip * s->cols ? 0
                  : s->same != NULL && v->head == HEAD_OTHER && last ? -value : value);
    }
    safewriter_put(w, i, 0, bytes, n * size);
    free(bytes);
}

// Writes model.safetensors (or shards with an index) into dir, and config.json of our own.
static void write_hf(const char *dir, const GPT2Config *c, const Variant *v) {
    static Stored list[MAX_STORED];
    char path[PATH_MAX], file[64], index[1 << 14] = "{\"weight_map\":{";
    const int shards = v->shards > 0 ? v->shards : 1;
    const char *normal = v->prefix != NULL ? v->prefix : hf_prefixes[hf_naming(c)][0];
    int count = stored_list(c, list);
    remove_tree(dir);
    make_directories(dir);
    if (v->head)
        list[count++] = (Stored){.name = "lm_head.weight", .rank = 2, .rows = c->vocab,
                                 .cols = c->channels, .same = list[0].name};
    if (v->masks && c->family == FAMILY_GPT2) {
        list[count++] = (Stored){.name = "h.1.attn.bias", .rank = 4, .rows = 9, .cols = 9};
        list[count++] = (Stored){.name = "h.0.attn.masked_bias", .rank = 1, .rows = 1, .cols = 1};
    } else if (v->masks && c->family >= FAMILY_LLAMA) {
        list[count++] = (Stored){.name = "layers.1.self_attn.rotary_emb.inv_freq", .rank = 1,
                                 .rows = 1, .cols = 3};
    }
    const char *const more[2] = {v->extra, v->twice};
    for (int i = 0; i < 2; i++)
        if (more[i] != NULL) {
            list[count] = (Stored){.rank = 1, .rows = 1, .cols = i == 0 ? 3 : c->channels};
            snprintf(list[count++].name, sizeof list[0].name, "%s", more[i]);
        }
    for (int k = 0; k < shards; k++) {
        SafeWriter w;
        memset(&w, 0, sizeof w);
        snprintf(file, sizeof file, "model-%d-of-%d.safetensors", k + 1, shards);
        if (shards == 1) snprintf(file, sizeof file, "model.safetensors");
        path_join(path, dir, file);
        for (int put = 0; put < 2; put++) {
            if (put && !safewriter_open(&w, path)) fail("%s", w.err.text);
            for (int i = k; i < count; i += shards) {
                const Stored *s = &list[i];
                const bool other = v->twice != NULL && i == count - 1;  // the other spelling
                const char *prefix = other || is(s->name, "lm_head.weight") ? "" : normal;
                const size_t n = strlen(index);
                if (is(s->name, v->drop)) continue;
                write_stored(&w, s, v, prefix);
                if (put) snprintf(index + n, sizeof index - n, "%s\"%s%s\":\"%s\"",
                                  n > 15 ? "," : "", prefix, s->name, file);
            }
        }
        if (!safewriter_close(&w, &err)) fail("%s", err.text);
    }
    strcat(index, "}}");
    path_join(path, dir, "model.safetensors.index.json");
    if (shards > 1) put_text(path, index);
    path_join(path, dir, "config.json");
    FILE *f = fopen(path, "wb");
    if (f == NULL) fail("cannot write %s", path);
    config_write(f, c, false, no_ends, NULL);
    fclose(f);
}

// Loads what is at path, as a model of configuration *c (NULL: the one in config.json).
static float *load_weights(const char *path, const GPT2Config *c, GPT2Table *t) {
    GPT2Config own;
    err.text[0] = '\0';
    if (c == NULL) {
        if (REFUSES(model_config_load(path, &own))) return NULL;
        c = &own;
    }
    *t = gpt2_table(c);
    float *arena = arena_of(t);
    const RunState here = state_of(t, arena);
    if (!REFUSES(model_load(path, c, t, &here))) {
        CHECK(moved_bytes == t->elements * sizeof(float), "%zu bytes are copied", moved_bytes);
        return arena;
    }
    free(arena);
    gpt2_table_free(t);
    return NULL;
}

static void check_loads(const char *path, const GPT2Config *c) {
    GPT2Table t;
    float *arena = load_weights(path, NULL, &t);
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

static void check_refused(const char *path, const GPT2Config *c, const char *words) {
    GPT2Table t;
    CHECK(load_weights(path, c, &t) == NULL && says(words), "it says \"%s\", not \"%s\"", err.text,
          words);
}

// ---------------------------------------------------------------------------------------------
// Loading

// One of each family and prefix; with ALL=1 all numbers of files. The head
// of tied embeddings may be there, too, or alone.
static void test_load_layouts(void) {
    static const int dtypes[] = {ST_F32, ST_F16, ST_F64};
    int n = 0;
    for (int family = 0; family < FAMILIES; family++)
        for (int tied = 0; tied < 2; tied++)
            for (const char *const *p = hf_prefixes[hf_families[family].naming]; *p != NULL; p++)
                for (int k = 0; k < 3; k++, n++) {
                    if (!test_whole() && n / 3 % 3 != k) continue;
                    const GPT2Config c = config_of(family, tied);
                    const char *wte = family == FAMILY_GPT2 ? "wte.weight" : "embed_tokens.weight";
                    Variant v = {.prefix = *p, .dtype = dtypes[n % 3], .shards = 1 + k,
                                 .masks = true, .head = tied ? HEAD_SAME : 0};
                    for (int left = 0; left < 1 + 2 * tied; left++) {
                        v.drop = left == 1 ? wte : NULL;
                        if (left == 2) v.head = 0;
                        write_hf(in_base("load"), &c, &v);
                        check_loads(in_base("load"), &c);
                    }
                }
}

static void test_load_from_a_file(void) {
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    char cwd[PATH_MAX];
    write_hf(in_base("load"), &c, &(Variant){.shards = 0});
    check_loads(in_base("load/model.safetensors"), &c);
    check_loads(in_base("load/"), &c);
    if (getcwd(cwd, sizeof cwd) == NULL || chdir(in_base("load")) != 0) SKIP("cannot chdir");
    check_loads("model.safetensors", &c);
    check_loads(".", &c);
    CHECK(chdir(cwd) == 0, "back");
}

// Something else in a place of a model in two files is told, by its first bytes, with its name; and
// what is not there is named.
static void test_load_others(void) {
    static const struct { const char *model, *file, *text, *words; } rows[] = {
        {"others/model.bin", "model.bin", "GGUF\3a file", "model.bin: a GGUF"},
        {"others", "model.safetensors", "GGUF\3a file", "model.safetensors: a GGUF"},
        {"others", "model-2-of-2.safetensors", "GGUF\3a file", "model-2-of-2.safetensors: a GGUF"},
        {"others", "model.safetensors.index.json", "GGUF\3", "index.json is a GGUF"},
        {"others", "config.json", "GGUF\3", "config.json is a GGUF"},
        {"others", "model-2-of-2.safetensors", "", "2-of-2.safetensors: not a safetensors file, or "
         "cut short: 0 bytes"},
        {"others", "model.safetensors.index.json",
         "{'weight_map':{'transformer.wte.weight':'model-1-of-2.safetensors'}}", "is missing"},
        {"others/state.safetensors", "state.txt", "", "is a checkpoint"},
        {"nowhere", "", NULL, "No such file"},
        {"empty", "", NULL, "config.json: No such file"},
    };
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    char path[PATH_MAX];
    make_directories(in_base("empty"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_hf(in_base("others"), &c, &(Variant){.shards = 2});
        path_join(path, in_base("others"), rows[i].file);
        if (rows[i].text != NULL) put_text(path, quoted(rows[i].text));
        check_refused(in_base(rows[i].model), NULL, rows[i].words);
    }
    check_refused(in_base("empty"), &c, "and there is no model.safetensors");
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

// A row: family, tied head, how its file differs, and words of the error.
static void test_load_refuses(void) {
    static const struct { int family, tied; Variant v; const char *words; } rows[] = {
        {FAMILY_GPT2, 1, {.prefix = "model."},
         "transformer.wte.weight is missing, the model needs (131, 20)"},
        {FAMILY_GPT2, 1, {.reshape = "h.0.mlp.c_fc.weight"},
         "transformer.h.0.mlp.c_fc.weight is (37, 20), the model needs (20, 37)"},
        {FAMILY_GPT2, 1, {.nan = "h.1.attn.c_proj.weight", .dtype = ST_BF16},
         "tensor transformer.h.1.attn.c_proj.weight has a NaN"},
        {FAMILY_GPT2, 1, {.dtype = ST_I64},
         "tensor transformer.wte.weight is not stored as F32, F16, BF16 or F64"},
        {FAMILY_GPT2, 1, {.twice = "ln_f.bias"},
         "tensor ln_f.bias is unknown to a gpt2 model with a tied head, or there twice"},
        {FAMILY_GPT2, 1, {.extra = "h.2.ln_1.weight"},
         "tensor transformer.h.2.ln_1.weight is unknown to a gpt2 model with a tied head"},
        {FAMILY_LLAMA, 1, {.head = HEAD_OTHER, .shards = 2}, "lm_head.weight is not model.embed"},
        {FAMILY_GPT2, 1, {.head = HEAD_SAME, .drop = "wte.weight", .reshape = "lm_head.weight"},
         "tensor lm_head.weight is (20, 131), the model needs (131, 20)"},
        {FAMILY_OPT, 0, {.drop = "lm_head.weight"},
         "tensor lm_head.weight is missing, the model needs (131, 20)"},
        {FAMILY_OPT, 0, {.drop = "embed_tokens.weight"}, "embed_tokens.weight is missing"},
        {FAMILY_OPT, 0, {.extra = "project_in.weight"},
         "unknown to a opt model with an untied head"},
        {FAMILY_LLAMA, 0, {.extra = "layers.0.self_attn.q_proj.bias"}, "q_proj.bias is unknown"},
        {FAMILY_QWEN2, 1, {.drop = "layers.1.self_attn.v_proj.bias"},
         "v_proj.bias is missing, the model needs (12)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const GPT2Config c = config_of(rows[i].family, rows[i].tied);
        write_hf(in_base("bad"), &c, &rows[i].v);
        check_refused(in_base("bad"), &c, rows[i].words);
    }
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
    put_text(in_base("config/config.json"), quoted(text));
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
    OTHER(qk_norm) OTHER(unturned) OTHER(rope.theta) OTHER(rope.scaling) OTHER(rope.factor)
    OTHER(rope.low) OTHER(rope.high) OTHER(rope.original)
    return text;
}

// model_type, what its config.json has beside the sizes, and where the model then differs from one
// of which it has nothing but these (from no model, if there is nothing; NULL: nothing, and from a
// LLaMA). Nothing is said.
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
        {"mistral", NULL, "window 4096, family 3"},
        {"qwen2", NULL, "family 4, unbiased 6"},
        {"qwen3", NULL, "family 5, head_size 128, qk_norm 1"},
        {"smollm3", NULL, "family 6, tied 1, unturned 4, rope.theta 2000000"},
        {"smollm3", "'no_rope_layers':[1,1,1]", ""},
        {"smollm3", "'use_sliding_window':true,'sliding_window':8", "context 8"},
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
        // keys of config.json files as they are on the hub
        {"gpt2", "'activation_function':'gelu_new','architectures':['GPT2LMHeadModel'],"
         "'attn_pdrop':0.1,'bos_token_id':50256,'id2label':{},'initializer_range':0.02,'n_ctx':5,"
         "'layer_norm_epsilon':1e-05,'n_special':0,'summary_activation':null,'summary_type':'x',"
         "'task_specific_params':{'text-generation':{'do_sample':true,'max_length':50}},"
         "'use_cache':true,'gradient_checkpointing':false,'reorder_and_upcast_attn':false,"
         "'top_p':1,'_num_labels':1,'output_past':true,'pruned_heads':{},'torchscript':false,"
         "'use_bfloat16':false,'num_beams':1,'repetition_penalty':1,'max_length':20,"
         "'is_decoder':false,'num_return_sequences':1,'no_repeat_ngram_size':0,"
         "'tokenizer_class':'x'", ""},
        {"opt", "'_name_or_path':'x','_remove_final_layer_norm':false,'activation_dropout':0,"
         "'attention_dropout':0,'dropout':0.1,'do_layer_norm_before':true,'layerdrop':0,"
         "'init_std':0.02,'pad_token_id':1,'prefix':'</s>','torch_dtype':'float16',"
         "'word_embed_proj_dim':8,'transformers_version':'4.21.0.dev0','enable_bias':true,"
         "'layer_norm_elementwise_affine':true", ""},
        {"qwen2", "'use_mrope':false,'attention_bias':false,'auto_map':{},'dtype':'bfloat16',"
         "'is_llama_config':true,'layer_types':null,'max_sequence_length':5,"
         "'max_window_layers':2,'original_max_position_embeddings':9,'rope_interleaved':false,"
         "'rope_parameters':{'rope_type':'llama3'," SCALING_LLAMA3 ",'rope_theta':1e6},"
         "'transformers.js_config':{},'unsloth_fixed':true,'unsloth_version':'x','new':null",
         "rope.theta 1000000, rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, "
         "rope.original 9"},
    };
    GPT2Config c, from;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *more = good[i].more != NULL ? good[i].more : "";
        bool ok = true;
        CHECK(config_from(*more != '\0' ? good[i].type : "llama", "", &from), "%s", err.text);
        if (good[i].more != NULL && *more == '\0') memset(&from, 0, sizeof from);
        const char *said = SAYS(ok = config_from(good[i].type, more, &c));
        CHECK(ok && *said == '\0', "%s: %s%s", more, err.text, said);
        CHECK(strcmp(config_other(&c, &from), good[i].other) == 0, "%s of %s: %s", more,
              good[i].type, config_other(&c, &from));
    }
    put_text(in_base("config/config.json"),
             quoted("\xef\xbb\xbf{'model_type':'gpt2'," CONFIG_GPT2 "}"));
    CHECK(!REFUSES(model_config_load(in_base("config"), &c)) && c.context == 5, "%s", err.text);
    // keys that are neither read nor known as harmless, which one rank names in one line
    for (ranks.rank = 1; ranks.rank >= 0; ranks.rank--) {
        const char *more = "'residual_multiplier':2,'num_experts':4";
        const char *said = SAYS(config_from("llama", more, &c));
        CHECK(ranks.rank > 0 ? *said == '\0' : strstr(said, "config.json: unknown here, and not "
              "read: residual_multiplier, num_experts\n") != NULL, "%s", said);
    }
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

static bool save_model(const char *dir, const GPT2Config *c, float *arena, bool bf16,
                       TextEnds these, const char *origin) {
    GPT2Table t = gpt2_table(c);
    const RunState here = state_of(&t, arena);
    const bool ok = model_save(dir, c, &t, &here, bf16, these, origin, &err);
    gpt2_table_free(&t);
    return ok;
}

// A saved file has transformers' names, shapes and values, wherever the state was.
static void test_save_layouts(void) {
    char *dir = in_base("save/deep"), *file = in_base("save/deep/model.safetensors");
    for (int i = 0; i < 4 * FAMILIES; i++) {
        const int family = i / 4;
        GPT2Config c = config_of(family, i & 1), back;
        if (family < FAMILY_LLAMA) c.activation = i & 1 ? ACTIVATION_RELU : ACTIVATION_GELU;
        const Variant v = {.saved = true, .dtype = i & 2 ? ST_BF16 : ST_F32};
        GPT2Table t = gpt2_table(&c);
        float *arena = native(&c, &t);
        for (int k = 0; k < t.count; k++)  // padded rows hold anything, and are not written
            for (size_t j = t.tensors[k].rows * t.tensors[k].cols; j < t.tensors[k].size; j++)
                arena[t.tensors[k].offset + j] = 99;
        remove_tree(in_base("save"));
        CHECK(save_model(dir, &c, arena, i & 2, no_ends, NULL), "%s", err.text);
        CHECK(entries_in(dir) == 2, "%d files", entries_in(dir));
        model_config_load(dir, &back);
        CHECK(memcmp(&c, &back, sizeof c) == 0, "%d: %s", i, config_other(&back, &c));
        write_hf(in_base("expected"), &c, &v);
        CHECK(more_tensors(in_base("expected/model.safetensors"), "", file) == 0, "%d: more", i);
        free(arena);
        gpt2_table_free(&t);
    }
}

// Of a model's own config.json, what a fine-tuned one keeps: keys that nobody here knows, and
// numbers as Python writes them. With ' for ".
#define KEPT \
    "  'attention_dropout': 0.1,\n  'bos_token_id': 128000,\n" \
    "  'eos_token_id': [128001, 128008, 128009],\n  'pad_token_id': null,\n  'head_dim': 6,\n" \
    "  'hidden_act': 'silu',\n  'hidden_size': 20,\n  'initializer_range': 2e-2,\n" \
    "  'intermediate_size': 37,\n  'max_position_embeddings': 9,\n  'num_attention_heads': 4,\n" \
    "  'num_hidden_layers': 2,\n  'num_key_value_heads': 2,\n  'rms_norm_eps': 3e-07,\n" \
    "  'rope_theta': 500000.0,\n  'rope_scaling': {'factor': 8.0, 'low_freq_factor': 1.0,\n" \
    "    'high_freq_factor': 4.0, 'original_max_position_embeddings': 7,\n" \
    "    'rope_type': 'llama3'},\n  'transformers_version': '4.45.1',\n  'use_cache': true,\n" \
    "  'vocab_size': 131,\n  'x-\xc3\xa9\\'': {'a': [1, null, {}, [], '\\n']},\n  'z': 1.50E+03,\n"
#define ORIGIN \
    "{\n  'architectures': ['LlamaModel'],\n  'model_type': 'llama',\n" KEPT \
    "  'tie_word_embeddings': true,\n  'torch_dtype': 'bfloat16',\n  'dtype': 'float16'\n}\n"

// The configuration of a model that was fine-tuned is that of the model, but for what training
// changes; unless that is of another family, or of none.
static void test_save_keeps_the_configuration(void) {
    static const struct { const char *named, *origin; int family; bool bf16, kept; } rows[] = {
        {"origin", ORIGIN, FAMILY_LLAMA, false, true},
        {"origin/model.safetensors", ORIGIN, FAMILY_LLAMA, true, true},
        {NULL, ORIGIN, FAMILY_LLAMA, false, false},
        {"origin", "{", FAMILY_LLAMA, false, false},
        {"origin", NULL, FAMILY_LLAMA, false, false},
        {"origin", "{'vocab_size':131}", FAMILY_LLAMA, true, false},
        {"origin", ORIGIN, FAMILY_GPT2, false, false},
    };
    char *from = in_base("origin"), *file = in_base("tuned/config.json"), kept[4000];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const GPT2Config c = config_of(rows[i].family, 0);
        GPT2Config found;
        GPT2Table t = gpt2_table(&c);
        float *arena = native(&c, &t);
        remove_tree(from);
        CHECK(save_model(from, &c, arena, false, no_ends, NULL), "%s", err.text);
        unlink(in_base("origin/config.json"));
        if (rows[i].origin != NULL) put_text(in_base("origin/config.json"), quoted(rows[i].origin));
        CHECK(save_model(in_base("tuned"), &c, arena, rows[i].bf16, ends,
                         rows[i].named != NULL ? in_base(rows[i].named) : NULL), "%s", err.text);
        size_t n;
        char *text = file_read(file, &n, &err);
        const char *type = rows[i].bf16 ? "bfloat16" : "float32";
        snprintf(kept, sizeof kept, "{\n" KEPT "  'architectures': ['LlamaForCausalLM'],\n"
                 "  'model_type': 'llama',\n  'tie_word_embeddings': false,\n"
                 "  'torch_dtype': '%s'\n}\n", type);
        CHECK((strcmp(text, quoted(kept)) == 0) == rows[i].kept, "%zu: %s", i, text);
        if (!rows[i].kept)  // GPT-2 begins with what ends
            CHECK(strstr(text, "\"eos_token_id\": 5,") != NULL && strstr(text, type) != NULL
                  && strstr(text, rows[i].family == FAMILY_LLAMA ? "\"bos_token_id\": 7,"
                            : "\"bos_token_id\": 5,") != NULL
                  && strstr(text, "use_cache") == NULL, "%zu: %s", i, text);
        SAYS(model_config_load(in_base("tuned"), &found));
        CHECK(memcmp(&found, &c, sizeof c) == 0, "%zu: %s", i, config_other(&found, &c));
        free(text);
        free(arena);
        gpt2_table_free(&t);
    }
}

// If a model cannot be written, the earlier files stay, and no new ones. (Its weights:
// test_checkpoint_ranks.c. A dump: lines.table.)
static void test_save_failures(void) {
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    GPT2Table t = gpt2_table(&c);
    float *arena = native(&c, &t);
    char *dir = in_base("full"), *file = in_base("full/model.safetensors");
    CHECK(save_model(dir, &c, arena, false, no_ends, NULL), "%s", err.text);
    CHECK(save_model(in_base("before"), &c, arena, false, no_ends, NULL), "%s", err.text);
    arena[0]++;
    limit_file_size(1);
    CHECK(!save_model(dir, &c, arena, true, ends, NULL) && says("config.json: File too large"),
          "%s", err.text);
    limit_file_size(0);
    CHECK(entries_in(dir) == 2 && same_file(file, in_base("before/model.safetensors"))
          && same_file(in_base("full/config.json"), in_base("before/config.json")), "old files");
    CHECK(!save_model(file, &c, arena, true, ends, NULL) && says("cannot make"), "%s", err.text);
    free(arena);
    gpt2_table_free(&t);
}

static void check_tensor(const SafeTensors *st, const char *name, int dtype, int rank,
                         const size_t *shape, const void *data, size_t bytes) {
    const SafeTensor *x = safetensors_find(st, name);
    CHECK(x != NULL && x->dtype == dtype && x->rank == rank && x->bytes == bytes
          && memcmp(x->shape, shape, (size_t)rank * sizeof *shape) == 0
          && memcmp(x->data, data, bytes) == 0, "%s is another", name);
}

static void test_dump(void) {
    enum { B = 2, T = 3, V = 131 };
    static const int32_t tokens[B * T] = {0, 1, 2, 3, 4, 5}, targets[B * T] = {1, 2, 3, 4, 5, 6};
    static const size_t shape[3] = {B, T, V}, one = 1;
    static const float loss = 4.25f;
    static float shown[B * T * V];
    char *path = in_base("dump.safetensors");
    for (int family = 0; family < FAMILIES; family++) {
        const GPT2Config c = config_of(family, 1);
        const int32_t *begins = family == 1 ? tokens : NULL;
        GPT2Table t = gpt2_table(&c);
        SafeTensors st;
        float *grads = native(&c, &t);
        float *logits = ALLOC(float, B * T * c.vocab_padded, "logits");
        for (size_t i = 0; i < B * T * c.vocab_padded; i++) logits[i] = (float)i;
        for (size_t i = 0; i < B * T * V; i++) shown[i] = logits[i / V * c.vocab_padded + i % V];
        CHECK(dump_save(path, &c, &t, B, T, tokens, targets, begins, loss, logits, grads, &err),
              "%s", err.text);
        write_hf(in_base("expected"), &c, &(Variant){.saved = true});
        CHECK(more_tensors(in_base("expected/model.safetensors"), "grad.", path)
              == 4 + (begins != NULL), "other tensors");
        CHECK(safetensors_open(&st, path, &err), "%s", err.text);
        check_tensor(&st, "tokens", ST_I32, 2, shape, tokens, sizeof tokens);
        check_tensor(&st, "targets", ST_I32, 2, shape, targets, sizeof targets);
        check_tensor(&st, "loss", ST_F32, 1, &one, &loss, sizeof loss);
        check_tensor(&st, "logits", ST_F32, 3, shape, shown, sizeof shown);
        if (begins != NULL) check_tensor(&st, "begins", ST_I32, 2, shape, begins, sizeof tokens);
        safetensors_close(&st);
        free(grads);
        free(logits);
        gpt2_table_free(&t);
    }
}

// ---------------------------------------------------------------------------------------------
// The format

static void test_format_accepts(void) {
    static const char some[] =
        "{'__metadata__':{'a':'b'},'s':{'dtype':'F64','shape':[],'data_offsets':[4,12]},"
        "'e':{'dtype':'I64','shape':[3,0],'data_offsets':[4,4]},"
        "'b':{'shape':[2,1,1,1,1,1,1,2],'data_offsets':[0,4],'dtype':'BOOL'}}   ";
    SafeTensors st;
    char file[400] = {(char)strlen(some)};
    memcpy(file + 8, quoted(some), strlen(some));
    CHECK(safetensors_parse(&st, "\2\0\0\0\0\0\0\0{}", 10, &err) && st.count == 0, "%s", err.text);
    safetensors_close(&st);
    CHECK(safetensors_parse(&st, file, 8 + strlen(some) + 12, &err), "%s", err.text);
    const SafeTensor *s = safetensors_find(&st, "s"), *e = safetensors_find(&st, "e");
    const SafeTensor *b = safetensors_find(&st, "b");
    CHECK(st.count == 3 && b->rank == 8 && b->bytes == 4, "%d", st.count);
    CHECK(s->rank == 0 && s->elements == 1 && s->bytes == 8 && s->dtype == ST_F64, "scalar");
    CHECK(e->rank == 2 && e->elements == 0 && e->bytes == 0 && e->shape[0] == 3, "empty");
    CHECK(safetensors_find(&st, "__metadata__") == NULL, "metadata is no tensor");
    safetensors_close(&st);
    const uint64_t long_header = ST_MAX_HEADER + 1;  // there, but longer than the format allows
    unsigned char *large = (unsigned char *)calloc(long_header + 8, 1);
    memcpy(large, &long_header, 8);
    large[8] = '{';
    CHECK(!safetensors_parse(&st, large, long_header + 8, &err)
          && says("not a safetensors file"), "%s", err.text);
    free(large);
    CHECK(!safetensors_open(&st, base, &err) && says("not a regular file"), "%s", err.text);
}

static void test_format_names(void) {
    static const char name[] = "odd \"name\" \xc3\xa9";
    const size_t one = 1;
    SafeWriter w = {.count = 0};
    SafeTensors st;
    safewriter_add(&w, name, ST_I64, 1, &one);
    CHECK(safewriter_open(&w, in_base("odd")), "%s", w.err.text);
    safewriter_put(&w, 0, 0, &one, sizeof one);
    CHECK(safewriter_close(&w, &err) && safetensors_open(&st, in_base("odd"), &err), "%s",
          err.text);
    CHECK(safetensors_find(&st, name) != NULL, "%s", st.tensors[0].name);
    safetensors_close(&st);
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

int main(void) {
    base_new("checkpoint");
    RUN(test_half_precision);
    RUN(test_format_accepts);
    RUN(test_format_names);
    RUN(test_config_accepts);
    RUN(test_load_layouts);
    RUN(test_load_from_a_file);
    RUN(test_load_others);
    RUN(test_load_fixtures);
    RUN(test_load_refuses);
    RUN(test_save_layouts);
    RUN(test_save_keeps_the_configuration);
    RUN(test_save_failures);
    RUN(test_dump);
    remove_tree(base);
    return test_summary();
}
