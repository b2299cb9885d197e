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

static bool says(const char *expected) { return strstr(err.text, expected) != NULL; }

static const TextEnds no_ends = {-1, -1}, ends = {7, 5};

static bool save_model(const char *dir, const GPT2Config *c, float *arena, bool bf16,
                       TextEnds these, const char *origin) {
    GPT2Table t = gpt2_table(c);
    const RunState here = state_in(&arena, 1);
    const bool ok = model_save(dir, c, &t, &here, bf16, these, origin, &err);
    free(t.tensors);
    return ok;
}

static float *zeros(const GPT2Config *c) {
    const GPT2Table t = gpt2_table(c);
    return ALLOC(float, t.elements, "arena");
}

// ---------------------------------------------------------------------------------------------
// Loading

// The value of element i of the tensor with this name (without any prefix) in a fixture: a multiple
// of 1/1024 that fp16 holds exactly.
static float hf_value(const char *name, size_t i) {
    uint32_t h = 0;
    for (const char *s = name; *s != '\0'; s++) h = h * 31 + (unsigned char)*s;
    return (float)((int)((h % 2001 + 37 * i) % 2001) - 1000) / 1024;
}

// Loads the weights at path, as a model of this configuration.
static float *load_weights(const char *path, const GPT2Config *c) {
    GPT2Table t = gpt2_table(c);
    float *arena = zeros(c);
    const RunState here = state_in(&arena, 1);
    model_load(path, c, &t, &here);
    free(t.tensors);
    return arena;
}

#define REFUSED(path, c, words) \
    CHECK(DIES_WITH(words, load_weights(in_base(path), c)), "%s", path)

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

// Makes `other` from `plain`, a model in one file: in its header `now` stands for each `old`, and
// `more` is in front. In these three texts ' stands for ".
static void write_other(const char *old, const char *now, const char *more) {
    size_t n = 0, length = 0;
    uint64_t header;
    char *text, *file = file_read(in_base("plain/model.safetensors"), &n, &err);
    memcpy(&header, file, 8);
    const char *rest = strndup(file + 9, header - 1), *from = quoted(old), *by = quoted(now);
    FILE *f = open_memstream(&text, &length);
    fprintf(f, "12345678{%s", quoted(more));
    for (const char *at; (at = strstr(rest, from)) != NULL; rest = at + strlen(from))
        fprintf(f, "%.*s%s", (int)(at - rest), rest, by);
    fprintf(f, "%s", rest);
    fflush(f);
    const uint64_t changed = length - 8;
    fwrite(file + 8 + header, 1, n - 8 - header, f);
    fclose(f);
    memcpy(text, &changed, 8);
    make_directories(in_base("other"));
    put_bytes(in_base("other/model.safetensors"), text, length);
}

// `other` is loaded as a model of this configuration, whose weights are those that `first` has.
static void check_other(const GPT2Config *c) {
    float *arena = NULL;
    const char *said = DIES(arena = load_weights(in_base("other"), c));
    CHECK(said == NULL && save_model(in_base("again"), c, arena, false, no_ends, NULL)
          && same_file(in_base("again/model.safetensors"), in_base("first/model.safetensors")),
          "%s: %s", hf_families[c->family].type, said);
    free(arena);
}

// Fills an arena with numbers that bf16 holds exactly, and saves it as `first`, and as `plain`.
static float *save_first(const GPT2Config *c, bool bf16) {
    GPT2Table t = gpt2_table(c);
    float *arena = zeros(c);
    for (const GPT2Tensor *x = t.tensors; x < t.tensors + t.count; x++)
        for (size_t i = 0; i < x->rows * x->cols; i++)
            arena[x->offset + i] = (float)((x->offset + i * 37) % 255) / 128 - 1;
    if (!c->tied)  // a head that could be tied
        memcpy(arena + t.tensors[t.count - 1].offset, arena,
               c->vocab * c->channels * sizeof *arena);
    CHECK(save_model(in_base("first"), c, arena, false, no_ends, NULL)
          && save_model(in_base("plain"), c, arena, bf16, no_ends, NULL), "%s", err.text);
    free(t.tensors);
    return arena;
}

#define EMPTY(name) "'" name "':{'dtype':'F32','shape':[0],'data_offsets':[0,0]},"

// Models of each family and prefix, with tied embeddings or not, in fp32 or bf16, beside buffers
// that old files have. The head of tied ones may be there, too, or alone. (Names and layouts:
// test_gpt2.c; several files: the fixtures.)
static void test_load_layouts(void) {
    GPT2Config own;
    for (int family = 0; family < FAMILIES; family++)
        for (int tied = 0; tied < 2; tied++) {
            const GPT2Config c = config_of(family, tied);
            const char *const *prefix = hf_prefixes[hf_naming(&c)];
            char first[40], now[40];
            snprintf(first, sizeof first, "'%s", prefix[0]);
            free(save_first(&c, family % 2 == 1));
            model_config_load(in_base("first"), &own);
            CHECK(memcmp(&own, &c, sizeof own) == 0, "%s", config_other(&own, &c));
            for (; *prefix != NULL; prefix++) {
                snprintf(now, sizeof now, "'%s", *prefix);
                write_other(first, now, EMPTY("layers.1.self_attn.rotary_emb.inv_freq")
                            EMPTY("h.1.attn.bias") EMPTY("transformer.h.0.attn.masked_bias"));
                check_other(&c);
            }
            snprintf(first, sizeof first, "'%s%s.weight", hf_prefixes[hf_naming(&c)][0],
                     family == FAMILY_GPT2 ? "wte" : "embed_tokens");
            write_other(first, "'lm_head.weight", "");
            if (tied) check_other(&c);
        }
    const GPT2Config tied = config_of(FAMILY_GPT2, 1), untied = config_of(FAMILY_GPT2, 0);
    free(save_first(&tied, false));
    rename(in_base("first"), in_base("tied"));
    float *arena = save_first(&untied, false);
    remove_tree(in_base("first"));
    rename(in_base("tied"), in_base("first"));
    write_other("_", "_", "");
    check_other(&tied);
    arena[3] = 9;
    CHECK(save_model(in_base("plain"), &untied, arena, false, no_ends, NULL), "%s", err.text);
    REFUSED("plain", &tied, "lm_head.weight is not transformer.wte.weight");
    arena[3] = NAN;
    CHECK(save_model(in_base("plain"), &untied, arena, true, no_ends, NULL), "%s", err.text);
    REFUSED("plain", &untied, "tensor transformer.wte.weight has a NaN");
    free(arena);
}

// A row: family, tied head, what is another in its file, and words of the error.
static void test_load_refuses(void) {
    #define SHAPED(name, shape) name "':{'dtype':'F32','shape':" shape
    static const struct { int family, tied; const char *old, *now, *more, *words; } rows[] = {
        {FAMILY_GPT2, 1, "transformer.", "model.", "",
         "transformer.wte.weight is missing, the model needs (131, 20)"},
        {FAMILY_GPT2, 1, SHAPED("0.mlp.c_fc.weight", "[20,37]"),
         SHAPED("0.mlp.c_fc.weight", "[37,20]"), "",
         "transformer.h.0.mlp.c_fc.weight is (37, 20), the model needs (20, 37)"},
        {FAMILY_GPT2, 1, "F32", "I32", "",
         "tensor transformer.wte.weight is not stored as F32, F16, BF16 or F64"},
        {FAMILY_GPT2, 1, "_", "_", EMPTY("ln_f.bias"),
         "tensor ln_f.bias is unknown to a gpt2 model with a tied head, or there twice"},
        {FAMILY_GPT2, 1, SHAPED("transformer.wte.weight", "[131,20]"),
         SHAPED("lm_head.weight", "[20,131]"), "",
         "tensor lm_head.weight is (20, 131), the model needs (131, 20)"},
        {FAMILY_OPT, 0, "lm_head.weight", "head.weight", "",
         "tensor lm_head.weight is missing, the model needs (131, 20)"},
        {FAMILY_OPT, 0, "embed_tokens.weight", "wte.weight", "", "embed_tokens.weight is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const GPT2Config c = config_of(rows[i].family, rows[i].tied);
        free(save_first(&c, false));
        write_other(rows[i].old, rows[i].now, rows[i].more);
        REFUSED("other", &c, rows[i].words);
    }
}

// Written by transformers' save_pretrained() (in dev/test/fixtures/hf): OPT in fp16
// in several shards, GPT-2 in fp32 as the base model (no prefix). Saved again, each tensor has the
// values of its name.
static void test_load_fixtures(void) {
    static const char *const paths[] = {TEST_FIXTURES "/hf/gpt2/model.safetensors",
                                        TEST_FIXTURES "/hf/opt"};
    for (int k = 0; k < 4; k++) {
        const int family = k / 2 == 0 ? FAMILY_GPT2 : FAMILY_OPT, bf16 = k % 2;
        const char *prefix = hf_prefixes[hf_families[family].naming][0];
        GPT2Config c;
        SafeTensors st;
        model_config_load(paths[k / 2], &c);
        CHECK(c.family == family && c.layers == 2 && c.ffn == (k / 2 == 0 ? 64 : 40), "%zu", c.ffn);
        float *arena = load_weights(paths[k / 2], &c), value;
        CHECK(save_model(in_base("again"), &c, arena, bf16, no_ends, NULL)
              && safetensors_open(&st, in_base("again/model.safetensors"), &err), "%s", err.text);
        for (int i = 0; i < st.count; i++) {
            const SafeTensor *s = &st.tensors[i];
            const char *name = s->name + strlen(prefix);
            const bool unused = strcmp(name, "embed_positions.weight") == 0;  // its first two rows
            CHECK(s->dtype == (bf16 ? ST_BF16 : ST_F32), "%s", s->name);
            for (size_t j = 0; j < s->elements; j++) {
                const float f = unused && j < 2 * s->shape[1] ? 0 : hf_value(name, j);
                safetensor_floats(s, j, 1, &value);
                CHECK(value == (bf16 ? bf16_to_f32(bf16_weight(f)) : f), "%s: %zu: %g, not %g",
                      s->name, j, (double)value, (double)f);
            }
        }
        safetensors_close(&st);
        free(arena);
    }
    CHECK(entries_in(in_base("again")) == 2, "other files");
}

// ---------------------------------------------------------------------------------------------
// config.json, with ' for "

static void config_from(const char *type, const char *more, GPT2Config *c) {
    static const char *const sizes[NAMINGS] = {CONFIG_GPT2, CONFIG_OPT, CONFIG_LLAMA};
    char text[4000];
    int family = 0;
    while (strcmp(hf_families[family].type, type) != 0) family++;
    snprintf(text, sizeof text, "{'model_type':'%s',%s%s%s}", type,
             sizes[hf_families[family].naming], *more != '\0' ? "," : "", more);
    make_directories(in_base("config"));
    put_text(in_base("config/config.json"), quoted(text));
    const char *line = DIES(model_config_load(in_base("config"), c));
    CHECK(line == NULL, "%s", line);
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
    #define SLIDES "'sliding_attention'"
    #define FULL "'full_attention'"
    #define SCALING_LLAMA3 "'factor':8,'low_freq_factor':1,'high_freq_factor':4"
    static const struct { const char *type, *more, *other; } good[] = {
        {"gpt2", "",
         "layers 3, heads 2, channels 8, ffn 32, context 5, vocab 300, vocab_padded 384, tied 1"},
        {"gpt2", "'n_inner':7,'activation_function':'relu','tie_word_embeddings':false",
         "ffn 7, activation 1, tied 0"},
        {"gpt2", "'n_inner':null,'activation_function':null,'tie_word_embeddings':null,"
         "'layer_norm_epsilon':null", ""},
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
        {"smollm3", SLIDING "'mlp_bias':false", ""},  // layers without positions have the window
        {"smollm3", SLIDING "'no_rope_layer_interval':1", "context 9, unturned 1"},
        {"smollm3", "'use_sliding_window':true,'no_rope_layer_interval':3", "unturned 3"},
        {"smollm3", "'no_rope_layers':[1,0,1],'no_rope_layer_interval':2,'mlp_bias':true",
         "unbiased 3, unturned 2"},
        {"llama", LLAMA_NULLS, ""},
        {"mistral", LLAMA_NULLS, "window 0"},
        {"llama", LLAMA_VALUES,
         "tied 1, kv_heads 4, head_size 6, norm_eps 1e-05, unbiased 0, rope.theta 500000"},
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
        // layer_types decides: in Qwen if use_sliding_window is true, in SmolLM3 always
        {"qwen2", SLIDING "'layer_types':[" SLIDES "," SLIDES "," SLIDES "]", "window 9"},
        {"qwen3", SLIDING "'max_window_layers':0,'layer_types':[" FULL "," FULL "," FULL "]",
         ""},
        {"qwen3", SLIDING "'max_window_layers':0,'layer_types':[" SLIDES "," FULL "," SLIDES "]",
         "context 9"},
        {"qwen2", "'sliding_window':9,'layer_types':[" FULL "," SLIDES "," SLIDES "]", ""},
        {"smollm3", "'sliding_window':9,'layer_types':[" SLIDES "," SLIDES "," SLIDES "]",
         "context 9"},
        {"smollm3", SLIDING "'layer_types':[" FULL "," FULL "," FULL "]", ""},
        {"llama", "'sliding_window':9,'layer_types':['any']", ""},
        {"qwen3", "'use_sliding_window':true,'max_window_layers':2", "context 4096"},
        // which of the keys for rotary positions counts: rope_type before type; rope_scaling before
        // rope_parameters, unless it is empty
        {"llama", "'rope_theta':9,'rope_parameters':{'rope_type':'default','rope_theta':50}",
         "rope.theta 50"},
        {"llama", "'rope_theta':9,'rope_scaling':{'type':'linear','factor':2.5}",
         "rope.theta 9, rope.scaling 1, rope.factor 2.5"},
        {"llama", "'rope_theta':9,'rope_scaling':{'rope_type':'linear','factor':3},"
         "'rope_parameters':{'rope_type':'llama3','rope_theta':50," SCALING_LLAMA3 "}",
         "rope.theta 9, rope.scaling 1, rope.factor 3"},
        {"llama", "'rope_theta':9,'rope_scaling':{},'rope_parameters':{'rope_type':'llama3',"
         "'rope_theta':50," SCALING_LLAMA3 ",'original_max_position_embeddings':77},"
         "'original_max_position_embeddings':55",
         "rope.theta 50, rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, rope.original 55"},
        // without it, the length is the model's own, which no window limits
        {"qwen2", SLIDING "'max_window_layers':2,'rope_scaling':{'rope_type':'llama3',"
         SCALING_LLAMA3 "}", "context 9, rope.scaling 2, rope.factor 8, rope.low 1, rope.high 4, "
         "rope.original 5000"},
        // harmless keys of config.json files as they are on the hub
        {"opt", "'architectures':['GPT2LMHeadModel'],'attn_pdrop':0.1,'bos_token_id':50256,"
         "'task_specific_params':{'text-generation':{'do_sample':true,'max_length':50}},"
         "'max_length':20,'transformers_version':'4.21.0.dev0','attention_bias':false,'new':null",
         ""},
    };
    GPT2Config c, from;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *more = good[i].more != NULL ? good[i].more : "";
        config_from(*more != '\0' ? good[i].type : "llama", "", &from);
        if (good[i].more != NULL && *more == '\0') memset(&from, 0, sizeof from);
        const char *said = SAYS(config_from(good[i].type, more, &c));
        CHECK(*said == '\0', "%s: %s", more, said);
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
        {"origin/model.safetensors", NULL, FAMILY_LLAMA, true, true},
        {NULL, NULL, FAMILY_LLAMA, false, false},
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
    float *arena = save_first(&c, false);
    CHECK(save_model(in_base("full"), &c, arena, false, no_ends, NULL), "%s", err.text);
    arena[0]++;
    limit_file_size(1);
    CHECK(!save_model(in_base("full"), &c, arena, true, ends, NULL)
          && says("config.json: File too large"), "%s", err.text);
    limit_file_size(0);
    CHECK(entries_in(in_base("full")) == 2
          && same_file(in_base("full/model.safetensors"), in_base("first/model.safetensors"))
          && same_file(in_base("full/config.json"), in_base("first/config.json")), "old files");
    free(arena);
}

// ---------------------------------------------------------------------------------------------
// The format

static void test_format_accepts(void) {
    static const char some[] =
        "{'__metadata__':{'a':'b'},'s':{'dtype':'F64','shape':[],'data_offsets':[4,12]},"
        "'e':{'dtype':'I64','shape':[3,0],'data_offsets':[4,4]},"
        "'b':{'shape':[2,1,1,1,1,1,1,2],'data_offsets':[0,4],'dtype':'BOOL'}}   ";
    const double value = 2.5;
    SafeTensors st = {0};
    char file[400] = {(char)strlen(some)};
    float read = 0;
    memcpy(file + 8, quoted(some), strlen(some));
    memcpy(file + 8 + strlen(some) + 4, &value, sizeof value);
    CHECK(safetensors_parse(&st, "\2\0\0\0\0\0\0\0{}", 10, &err) && st.count == 0, "%s", err.text);
    safetensors_close(&st);
    CHECK(safetensors_parse(&st, file, 8 + strlen(some) + 12, &err), "%s", err.text);
    const SafeTensor *s = safetensors_find(&st, "s"), *e = safetensors_find(&st, "e");
    CHECK(st.count == 3 && safetensors_find(&st, "b")->rank == 8, "%d", st.count);
    safetensor_floats(s, 0, 1, &read);
    CHECK(s->rank == 0 && s->elements == 1 && read == 2.5f, "scalar");
    CHECK(e->rank == 2 && e->elements == 0 && e->bytes == 0 && e->shape[0] == 3, "empty");
    safetensors_close(&st);
    CHECK(!safetensors_open(&st, base, &err) && says("not a regular file"), "%s", err.text);
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
    RUN(test_config_accepts);
    RUN(test_load_layouts);
    RUN(test_load_fixtures);
    RUN(test_load_refuses);
    RUN(test_save_keeps_the_configuration);
    RUN(test_save_failures);
    remove_tree(base);
    return test_summary();
}
