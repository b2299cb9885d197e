// Models on disk: files that differ from ours, and files that transformers wrote. Names and layouts
// are held by test_gpt2.c; what is refused for its text alone is in refused.h; training state,
// writes that fail, and processes that die meanwhile, are in test_checkpoint_ranks.c.
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

static const TextEnds no_ends = {-1, -1}, ends = {7, 5};

static bool save_model(const char *dir, const GPT2Config *c, float *arena, bool bf16,
                       TextEnds these, const char *origin) {
    GPT2Table t = gpt2_table(c);
    const RunState here = state_in(&arena, 1);
    const bool ok = model_save(dir, c, &t, &here, bf16, these, origin, &err);
    gpt2_table_free(&t);
    return ok;
}

static float *zeros(const GPT2Config *c) {
    const GPT2Table t = gpt2_table(c);
    return ALLOC(float, t.elements, "arena");
}

// ---------------------------------------------------------------------------------------------
// Files as others write them: the tensors that we write ourselves, whose names and layouts
// test_gpt2.c holds against the reference's files, with other prefixes, types and company. Element
// i of the tensor with this name (without any prefix) is a multiple of 1/1024 that fp16 holds
// exactly; the fixtures have the same rule.

static float hf_value(const char *name, size_t i) {
    uint32_t h = 0;
    for (const char *s = name; *s != '\0'; s++) h = h * 31 + (unsigned char)*s;
    return (float)((int)((h % 2001 + 37 * i) % 2001) - 1000) / 1024;
}

// How a file differs from a plain one; names are without the prefix.
typedef struct {
    const char *prefix;  // NULL: the first that is known
    const char *drop, *reshape, *nan, *twice, *extra;
    int dtype, shards, head;
} Variant;

enum { HEAD_SAME = 1, HEAD_OTHER };  // Variant.head: a tied model's file has one, too

static bool is(const char *name, const char *other) {
    return other != NULL && strcmp(name, other) == 0;
}

static const char *without_prefix(const char *name, const GPT2Config *c) {
    const char *prefix = hf_prefixes[hf_naming(c)][0];
    const size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

// Fills the n elements of a tensor of this type.
static void fill_values(void *to, int dtype, const char *name, size_t n, float last) {
    for (size_t j = 0; j < n; j++) {
        const float f = j == n - 1 && last != 0 ? last : hf_value(name, j);
        if (dtype == ST_F64) ((double *)to)[j] = f;
        else if (dtype == ST_F32) ((float *)to)[j] = f;
        else if (dtype == ST_BF16) ((uint16_t *)to)[j] = bf16_weight(f);
        else ((int64_t *)to)[j] = (int64_t)f;
    }
}

// Writes model.safetensors (or shards with an index) into dir, and config.json of our own.
static void write_hf(const char *dir, const GPT2Config *c, const Variant *v) {
    const char *normal = v->prefix != NULL ? v->prefix : hf_prefixes[hf_naming(c)][0];
    const char *wte = c->family == FAMILY_GPT2 ? "wte.weight" : "embed_tokens.weight";
    // buffers that old files have; and tensors that are too many
    const char *const more[] = {"layers.1.self_attn.rotary_emb.inv_freq", "h.1.attn.bias",
                                "h.0.attn.masked_bias", v->head ? "lm_head.weight" : NULL,
                                v->extra, v->twice};
    const int shards = v->shards > 0 ? v->shards : 1;
    char path[PATH_MAX], file[64], name[128], index[1 << 14] = "{\"weight_map\":{";
    SafeTensors plain;
    float *arena = zeros(c);
    remove_tree(dir);
    if (!save_model(dir, c, arena, false, no_ends, NULL)) fail("%s", err.text);
    free(arena);
    path_join(path, dir, "model.safetensors");
    if (!safetensors_open(&plain, path, &err)) fail("%s", err.text);
    unlink(path);
    for (int k = 0; k < shards; k++) {
        SafeWriter w;
        memset(&w, 0, sizeof w);
        snprintf(file, sizeof file, "model-%d-of-%d.safetensors", k + 1, shards);
        if (shards == 1) snprintf(file, sizeof file, "model.safetensors");
        path_join(path, dir, file);
        for (int put = 0, number = 0; put < 2; put++) {
            if (put && !safewriter_open(&w, path)) fail("%s", w.err.text);
            for (int i = k; i < plain.count + 6; i += shards) {
                const bool ours = i < plain.count, twice = i == plain.count + 5;
                const char *bare = ours ? without_prefix(plain.tensors[i].name, c)
                                        : more[i - plain.count];
                if (bare == NULL || (ours && is(bare, v->drop))) continue;
                const bool head = strcmp(bare, "lm_head.weight") == 0, same = head && !ours;
                const SafeTensor *s = &plain.tensors[ours ? i : 0];  // the first is wte
                const int rank = ours || same ? s->rank : 1;
                size_t shape[2] = {ours || same ? s->shape[0] : 3, s->shape[1]};
                if (is(bare, v->reshape)) shape[0] = s->shape[1], shape[1] = s->shape[0];
                const size_t n = shape[0] * (rank == 2 ? shape[1] : 1);
                snprintf(name, sizeof name, "%s%s", head || twice ? "" : normal, bare);
                if (!put) { safewriter_add(&w, name, v->dtype, rank, shape); continue; }
                const char *values = same ? wte : bare;
                const float last = is(bare, v->nan) ? NAN : same && v->head == HEAD_OTHER ? -9 : 0;
                double *bytes = ALLOC(double, n, "a tensor");
                fill_values(bytes, v->dtype, values, n, last);
                safewriter_put(&w, number++, 0, bytes, n * st_dtypes[v->dtype].size);
                free(bytes);
                const size_t end = strlen(index);
                snprintf(index + end, sizeof index - end, "%s\"%s\":\"%s\"",
                         end > 15 ? "," : "", name, file);
            }
        }
        if (!safewriter_close(&w, &err)) fail("%s", err.text);
    }
    safetensors_close(&plain);
    strcat(index, "}}");
    path_join(path, dir, "model.safetensors.index.json");
    if (shards > 1) put_text(path, index);
}

// Loads what is at path, as a model of configuration *c (NULL: the one in config.json).
static float *load_weights(const char *path, const GPT2Config *c) {
    GPT2Config own;
    err.text[0] = '\0';
    if (c == NULL) {
        if (REFUSES(model_config_load(path, &own))) return NULL;
        c = &own;
    }
    GPT2Table t = gpt2_table(c);
    float *arena = zeros(c);
    const RunState here = state_in(&arena, 1);
    if (REFUSES(model_load(path, c, &t, &here))) {
        free(arena);
        arena = NULL;
    }
    gpt2_table_free(&t);
    return arena;
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

// A model of this configuration is there; saved again, each tensor has the values of its name.
static void check_loads(const char *path, const GPT2Config *c) {
    GPT2Config own;
    SafeTensors st;
    char *file = in_base("again/model.safetensors");
    float *arena = load_weights(path, NULL), value;
    CHECK(arena != NULL, "%s", err.text);
    if (arena == NULL) return;
    model_config_load(path, &own);
    CHECK(memcmp(&own, c, sizeof own) == 0, "%s: %s", path, config_other(&own, c));
    for (int bf16 = 0; bf16 < 2; bf16++) {
        if (!save_model(in_base("again"), c, arena, bf16, no_ends, NULL)
            || !safetensors_open(&st, file, &err)) fail("%s", err.text);
        for (int i = 0; i < st.count; i++) {
            const SafeTensor *s = &st.tensors[i];
            const char *name = without_prefix(s->name, c);
            const bool unused = is(name, "embed_positions.weight");  // its first two rows
            CHECK(s->dtype == (bf16 ? ST_BF16 : ST_F32), "%s", s->name);
            for (size_t j = 0; j < s->elements; j++) {
                const float f = unused && j < 2 * s->shape[1] ? 0 : hf_value(name, j);
                safetensor_floats(s, j, 1, &value);
                CHECK(value == (bf16 ? bf16_to_f32(bf16_weight(f)) : f), "%s, %s: %zu: %g, not %g",
                      path, s->name, j, (double)value, (double)f);
            }
        }
        safetensors_close(&st);
    }
    CHECK(entries_in(in_base("again")) == 2, "other files");
    free(arena);
}

static void check_refused(const char *path, const GPT2Config *c, const char *words) {
    CHECK(load_weights(path, c) == NULL && says(words), "it says \"%s\", not \"%s\"", err.text,
          words);
}

// ---------------------------------------------------------------------------------------------
// Loading

// Models of each family and prefix, with tied embeddings or not. The head of tied ones may be
// there, too, or alone.
static void test_load_layouts(void) {
    int n = 0;
    for (int family = 0; family < FAMILIES; family++)
        for (const char *const *p = hf_prefixes[hf_families[family].naming]; *p != NULL; p++)
            for (int tied = 0; tied < 2; tied++, n++) {
                const GPT2Config c = config_of(family, tied);
                const char *wte = family == FAMILY_GPT2 ? "wte.weight" : "embed_tokens.weight";
                const int head = tied ? n / 2 % 3 : 0;
                const Variant v = {.prefix = *p, .dtype = n / 2 % 2 ? ST_F64 : ST_F32,
                                   .shards = 1 + n % 3, .head = head > 0 ? HEAD_SAME : 0,
                                   .drop = head > 1 ? wte : NULL};
                write_hf(in_base("load"), &c, &v);
                check_loads(in_base("load"), &c);
            }
}

// Something else in a place of a model in two files is told, by its first bytes, with its name; and
// what is not there is named. (What a user would name himself: lines.table.)
static void test_load_others(void) {
    static const struct { const char *model, *file, *text, *words; } rows[] = {
        {"others", "model-2-of-2.safetensors", "GGUF\3a file", "model-2-of-2.safetensors: a GGUF"},
        {"others", "model-2-of-2.safetensors", "", "2-of-2.safetensors: not a safetensors file, or "
         "cut short: 0 bytes"},
        {"others", "config.json", "GGUF\3", "config.json is a GGUF"},
        {"others", "model.safetensors.index.json",
         "{'weight_map':{'transformer.wte.weight':'model-1-of-2.safetensors'}}", "is missing"},
        {"nowhere", "unread", "", "config.json: No such file"},
    };
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_hf(in_base("others"), &c, &(Variant){.shards = 2});
        path_join(path, in_base("others"), rows[i].file);
        put_text(path, quoted(rows[i].text));
        check_refused(in_base(rows[i].model), NULL, rows[i].words);
    }
    make_directories(in_base("empty"));
    check_refused(in_base("empty"), &c, "and there is no model.safetensors");
}

// Written by transformers' save_pretrained() (in dev/test/fixtures/hf): OPT in fp16
// in several shards, GPT-2 in fp32 as the base model (no prefix). Named by its directory, and by a
// file.
static void test_load_fixtures(void) {
    char cwd[PATH_MAX];
    GPT2Config c;
    for (int family = FAMILY_OPT; family >= FAMILY_GPT2; family--) {
        config_family(&c, family);
        c.layers = c.heads = 2;
        c.channels = 16;
        c.context = 12;
        c.vocab = 67;
        c.ffn = family == FAMILY_OPT ? 40 : 64;
        gpt2_finish(&c, &err);
        check_loads(family == FAMILY_OPT ? TEST_FIXTURES "/hf/opt" : TEST_FIXTURES "/hf/gpt2/", &c);
    }
    if (getcwd(cwd, sizeof cwd) == NULL || chdir(TEST_FIXTURES "/hf/gpt2") != 0) SKIP("no chdir");
    check_loads("model.safetensors", &c);
    CHECK(chdir(cwd) == 0, "back");
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

// model_type, what its config.json has beside the sizes, and where the model then differs from one
// of which it has nothing but these (from no model, if there is nothing; NULL: nothing, and from a
// LLaMA). Nothing is said.
static void test_config_accepts(void) {
    #define LLAMA_NULLS \
        "'num_key_value_heads':null,'rms_norm_eps':null,'tie_word_embeddings':null," \
        "'hidden_act':null,'attention_bias':null,'mlp_bias':null,'rope_theta':null," \
        "'rope_scaling':null,'rope_parameters':null,'partial_rotary_factor':null," \
        "'quantization_config':null,'sliding_window':null,'head_dim':null"
    #define LLAMA_VALUES \
        "'num_key_value_heads':4,'head_dim':6,'rms_norm_eps':1e-5,'tie_word_embeddings':true," \
        "'hidden_act':'silu','attention_bias':true,'mlp_bias':true,'rope_theta':5e5," \
        "'partial_rotary_factor':1.0,'sliding_window':9000,'use_sliding_window':true"
    #define SLIDING "'sliding_window':9,'use_sliding_window':true,"
    #define SCALING_LLAMA3 "'factor':8,'low_freq_factor':1,'high_freq_factor':4"
    static const struct { const char *type, *more, *other; } good[] = {
        {"gpt2", "",
         "layers 3, heads 2, channels 8, ffn 32, context 5, vocab 300, vocab_padded 384, tied 1"},
        {"gpt2", "'n_inner':7,'activation_function':'relu','tie_word_embeddings':false",
         "ffn 7, activation 1, tied 0"},
        {"gpt2", "'n_inner':null,'activation_function':null,'tie_word_embeddings':null,"
         "'layer_norm_epsilon':null", ""},
        {"gpt2", "'activation_function':'gelu_pytorch_tanh'", ""},
        {"gpt2", "'activation_function':'gelu_fast','layer_norm_epsilon':0.00001,"
         "'scale_attn_weights':true", ""},
        // GPT-2's other names, which transformers reads before its own
        {"gpt2", "'num_hidden_layers':4,'num_attention_heads':3,'hidden_size':9,"
         "'max_position_embeddings':6,'ffn_dim':9,'is_causal':true",
         "layers 4, heads 3, channels 9, ffn 36, context 6"},
        {"opt", "",
         "layers 3, heads 2, channels 8, ffn 32, context 5, vocab 300, vocab_padded 384, family 1, "
         "activation 1, tied 1"},
        {"opt", "'word_embed_proj_dim':null,'do_layer_norm_before':null,'ffn_dim':null", ""},
        {"opt", "'ffn_dim':16,'activation_function':'gelu_new','word_embed_proj_dim':8,"
         "'do_layer_norm_before':true,'enable_bias':true,'scale_attn_weights':false",
         "ffn 16, activation 0"},
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
        {"llama", LLAMA_NULLS, ""},
        {"mistral", LLAMA_NULLS, "window 0"},
        {"llama", LLAMA_VALUES,
         "tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, unbiased 0, rope.theta 500000"},
        {"mistral", LLAMA_VALUES,  // has no key for biases
         "window 9000, tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, rope.theta 500000"},
        {"qwen3", LLAMA_VALUES,
         "tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, unbiased 4, rope.theta 500000"},
        {"llama", "'head_dim':2,'sliding_window':9,'hidden_act':'swish'", ""},
        // a window, where it is used; one of some layers limits the context
        {"mistral", "'sliding_window':9,'max_window_layers':3", "window 9"},
        {"qwen2", "'sliding_window':9", ""},
        {"qwen2", SLIDING "'max_window_layers':2", "context 9"},
        {"qwen2", SLIDING "'max_window_layers':3", ""},
        {"qwen2", SLIDING "'max_window_layers':0", "window 9"},
        {"qwen3", "'use_sliding_window':true", ""},
        {"qwen3", "'use_sliding_window':true,'max_window_layers':2", "context 4096"},
        // which of the keys for rotary positions counts: rope_type before type; rope_scaling before
        // rope_parameters, unless it is empty
        {"llama", "'rope_theta':9,'rope_parameters':{'rope_type':'default','rope_theta':50}",
         "rope.theta 50"},
        {"llama", "'rope_theta':9,'rope_scaling':{'type':'linear','factor':2.5}",
         "rope.theta 9, rope.scaling 1, rope.factor 2.5"},
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
        {"qwen2", SLIDING "'max_window_layers':2,'rope_scaling':{'rope_type':'llama3',"
         SCALING_LLAMA3 "}", "context 9, rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, "
         "rope.original 5000"},
        {"llama", "'rope_scaling':{'rope_type':'llama3'," SCALING_LLAMA3
         ",'original_max_position_embeddings':77},'original_max_position_embeddings':55",
         "rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 55"},
        // keys of config.json files as they are on the hub
        {"opt", "'architectures':['GPT2LMHeadModel'],'attn_pdrop':0.1,'bos_token_id':50256,"
         "'id2label':{},'initializer_range':0.02,'n_ctx':5,'n_special':0,'summary_type':'x',"
         "'task_specific_params':{'text-generation':{'do_sample':true,'max_length':50}},"
         "'use_cache':true,'gradient_checkpointing':false,'reorder_and_upcast_attn':false,"
         "'top_p':1,'_num_labels':1,'output_past':true,'pruned_heads':{},'torchscript':false,"
         "'use_bfloat16':false,'num_beams':1,'repetition_penalty':1,'max_length':20,"
         "'is_decoder':false,'num_return_sequences':1,'no_repeat_ngram_size':0,"
         "'tokenizer_class':'x','_remove_final_layer_norm':false,'layerdrop':0,'prefix':'</s>',"
         "'transformers_version':'4.21.0.dev0','layer_norm_elementwise_affine':true,"
         "'use_mrope':false,'attention_bias':false,'auto_map':{},'dtype':'bfloat16',"
         "'is_llama_config':true,'layer_types':[],'max_sequence_length':5,'pretraining_tp':2,"
         "'rope_interleaved':false,'transformers.js_config':{},'unsloth_fixed':true,'new':null",
         ""},
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

// The configuration of a model that was fine-tuned is that of the model, but for what training
// changes; unless that is of another family, or of none. Keys that nobody here knows stay, and so
// do numbers as Python writes them.
static void test_save_keeps_the_configuration(void) {
    static const struct { const char *named, *origin; int family; bool bf16, kept; } rows[] = {
        {"origin", NULL, FAMILY_LLAMA, false, true},
        {"origin/model.safetensors", NULL, FAMILY_LLAMA, true, true},
        {NULL, NULL, FAMILY_LLAMA, false, false},
        {"nowhere", NULL, FAMILY_LLAMA, false, false},
        {"origin", "{'vocab_size':131}", FAMILY_LLAMA, true, false},
        {"origin", NULL, FAMILY_GPT2, false, false},
    };
    const char *more = quoted("  'initializer_range': 2e-2,\n  'use_cache': true,\n"
                              "  'x-\xc3\xa9\\'': {'a': [1, null, {}, [], '\\n']},\n"
                              "  'z': 1.50E+03,\n");
    const GPT2Config old = config_of(FAMILY_LLAMA, 0);
    char *config = in_base("origin/config.json"), text[4000];
    float *arena = zeros(&old);
    size_t n;
    CHECK(save_model(in_base("origin"), &old, arena, true, no_ends, NULL), "%s", err.text);
    char *ours = file_read(config, &n, &err);
    const char *end = strstr(ours, "  \"torch_dtype\"");
    snprintf(text, sizeof text, "{\n  \"dtype\": \"float16\",\n%s%s", more, ours + 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const bool llama = rows[i].family == FAMILY_LLAMA;
        const char *type = rows[i].bf16 ? "bfloat16" : "float32";
        const GPT2Config c = config_of(rows[i].family, 0);
        GPT2Config found;
        put_text(config, rows[i].origin != NULL ? quoted(rows[i].origin) : text);
        CHECK(save_model(in_base("tuned"), &c, arena, rows[i].bf16, ends,
                         rows[i].named != NULL ? in_base(rows[i].named) : NULL), "%s", err.text);
        char *tuned = file_read(in_base("tuned/config.json"), &n, &err), kept[4000];
        snprintf(kept, sizeof kept, "{\n%s%.*s  \"torch_dtype\": \"%s\"\n}\n", more,
                 (int)(end - ours) - 2, ours + 2, type);
        CHECK((strcmp(tuned, kept) == 0) == rows[i].kept, "%zu: %s", i, tuned);
        if (!rows[i].kept)  // GPT-2 begins with what ends
            CHECK(strstr(tuned, "\"eos_token_id\": 5,") != NULL && strstr(tuned, type) != NULL
                  && strstr(tuned, llama ? "\"bos_token_id\": 7," : "\"bos_token_id\": 5,") != NULL
                  && strstr(tuned, "use_cache") == NULL, "%zu: %s", i, tuned);
        SAYS(model_config_load(in_base("tuned"), &found));
        CHECK(memcmp(&found, &c, sizeof c) == 0, "%zu: %s", i, config_other(&found, &c));
        free(tuned);
    }
    free(arena);
    free(ours);
}

// If config.json cannot be written, the earlier files stay, and no new ones. (Its weights:
// test_checkpoint_ranks.c. A dump: lines.table.)
static void test_save_failures(void) {
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    float *arena = zeros(&c);
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
}

// What a dump has beside the gradients, which test_gpt2.c holds against the reference's.
static void test_dump(void) {
    enum { B = 2, T = 3, V = 131 };
    static const int32_t tokens[3][B * T] = {{0, 1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6}, {0, 0, 2}};
    static const size_t shape[3] = {B, T, V}, one = 1;
    static const float loss = 4.25f;
    static float shown[B * T * V];
    const GPT2Config c = config_of(FAMILY_GPT2, 1);
    GPT2Table t = gpt2_table(&c);
    SafeTensors st = {0};
    float *grads = zeros(&c), *logits = ALLOC(float, B * T * c.vocab_padded, "logits");
    for (size_t i = 0; i < B * T * c.vocab_padded; i++) logits[i] = (float)i;
    for (size_t i = 0; i < B * T * V; i++) shown[i] = logits[i / V * c.vocab_padded + i % V];
    const struct { const char *name; int dtype, rank; const void *data; const size_t *shape; }
        rows[] = {{"tokens", ST_I32, 2, tokens[0], shape}, {"targets", ST_I32, 2, tokens[1], shape},
                  {"loss", ST_F32, 1, &loss, &one}, {"logits", ST_F32, 3, shown, shape},
                  {"begins", ST_I32, 2, tokens[2], shape}};
    CHECK(dump_save(in_base("dump"), &c, &t, B, T, tokens[0], tokens[1], tokens[2], loss, logits,
                    grads, &err) && safetensors_open(&st, in_base("dump"), &err), "%s", err.text);
    for (int i = 0; i < 5; i++) {
        const SafeTensor *x = safetensors_find(&st, rows[i].name);
        CHECK(x != NULL && x->dtype == rows[i].dtype && x->rank == rows[i].rank
              && memcmp(x->shape, rows[i].shape, (size_t)x->rank * sizeof *x->shape) == 0
              && memcmp(x->data, rows[i].data, x->bytes) == 0, "%s is another", rows[i].name);
    }
    safetensors_close(&st);
    free(grads);
    free(logits);
    gpt2_table_free(&t);
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
    static const struct { uint16_t half; float value; } rows[] = {
        {0, 0}, {1, 0x1p-24f}, {0x3ff, 1023 * 0x1p-24f}, {0x400, 0x1p-14f}, {0x3c01, 1 + 0x1p-10f},
        {0x5555, 85.3125f}, {0x7bff, 65504}, {0x7c00, INFINITY}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int sign = 0; sign < 2; sign++) {
            const float f = f16_to_f32((uint16_t)(rows[i].half | sign << 15));
            CHECK(fabsf(f) == rows[i].value && !signbit(f) == !sign, "%04x: %g", rows[i].half,
                  (double)f);
        }
    CHECK(isnan(f16_to_f32(0x7c01)) && isnan(f16_to_f32(0xffff)), "no numbers");
}

int main(void) {
    base_new("checkpoint");
    RUN(test_half_precision);
    RUN(test_format_accepts);
    RUN(test_format_names);
    RUN(test_config_accepts);
    RUN(test_load_layouts);
    RUN(test_load_others);
    RUN(test_load_fixtures);
    RUN(test_load_refuses);
    RUN(test_save_keeps_the_configuration);
    RUN(test_save_failures);
    RUN(test_dump);
    remove_tree(base);
    return test_summary();
}
