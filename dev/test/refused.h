// refused.h: what is refused, a row each: the kind of file (test_refused.c), its bytes, and words
// of the one line that is then said. In texts, ' stands for " and ^ for '. The fuzzers begin with
// the rows of their kinds.
#ifndef TIDE_REFUSED_H
#define TIDE_REFUSED_H
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *kind, *bytes;
    size_t n;
    const char *words;
} Refused;

// A copy of n bytes, with the marks that are meant.
static inline char *quoted_bytes(const char *text, size_t n) {
    char *copy = (char *)calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) {
        copy[i] = text[i] == '\'' ? '"' : text[i] == '^' ? '\'' : text[i];
    }
    return copy;
}
static inline char *quoted(const char *text) { return quoted_bytes(text, strlen(text)); }

// The sizes in a config.json.
#define CONFIG_GPT2 "'n_layer':3,'n_head':2,'n_embd':8,'n_positions':5,'vocab_size':300"
#define CONFIG_OPT "'num_hidden_layers':3,'num_attention_heads':2,'hidden_size':8," \
    "'max_position_embeddings':5,'vocab_size':300"
#define CONFIG_LLAMA "'num_hidden_layers':3,'num_attention_heads':32,'hidden_size':64," \
    "'intermediate_size':7,'max_position_embeddings':5000,'vocab_size':300"

#define ROW(kind, bytes, words) {kind, bytes, sizeof(bytes) - 1, words}
#define CONFIG(text, words) ROW("config", text, words)
#define GPT2_(more, words) CONFIG("{'model_type':'gpt2'," CONFIG_GPT2 "," more "}", words)
#define OPT_(more, words) CONFIG("{'model_type':'opt'," CONFIG_OPT "," more "}", words)
#define LLAMA_(type, more, words) \
    CONFIG("{'model_type':'" type "'," CONFIG_LLAMA "," more "}", words)
#define ROPE_(rope, words) LLAMA_("llama", "'rope_scaling':{" rope "}", words)
#define HEADER(header, data, words) ROW("header", header "\0" data, words)
#define TENSOR_(name, dtype, shape, offsets) \
    "'" name "':{'dtype':'" dtype "','shape':" shape ",'data_offsets':" offsets "}"
#define ONE(dtype, shape, offsets, data, words) \
    HEADER("{" TENSOR_("a", dtype, shape, offsets) "}", data, words)
#define TWO(name, offsets, data, words) \
    HEADER("{" TENSOR_("a", "U8", "[4]", "[0,4]") "," TENSOR_(name, "U8", "[4]", offsets) "}", \
           data, words)

static const Refused *refused_rows(size_t *count) {
    static const Refused rows[] = {
    // config.json
    CONFIG("[]", "model_type is not there"),
    CONFIG("{'model_type':3}", "model_type is no name"),
    CONFIG("{'model_type':'mixtral'}",
           "model_type is mixtral; only gpt2, opt, llama, mistral, qwen2 and qwen3 are known"),
    CONFIG("{'model_type':'Llama'}", "model_type is Llama"),
    CONFIG("{'model_type':'gpt2'}", "n_layer must be there"),
    CONFIG("{'model_type':'opt','n_layer':2}", "num_hidden_layers must be"),
    CONFIG("{'model_type':'llama','num_hidden_layers':3,'hidden_size':64,'num_attention_heads':32,"
           "'max_position_embeddings':5000,'vocab_size':300}",  // where others take 4 C
           "intermediate_size must be there"),
    CONFIG("{'model_type':'gpt2','n_layer':3000000,'n_head':2,'n_embd':8,'n_positions':5,"
           "'vocab_size':300}", "layers must be"),
    GPT2_("'n_inner':0", "n_inner must be"),
    GPT2_("'n_inner':'32'", "n_inner must be"),
    GPT2_("'n_head':4", "'n_head' twice"),
    GPT2_("'num_attention_heads':3", "multiple of heads (3)"),
    GPT2_("'scale_attn_weights':false", "scale_attn_weights is not true"),
    GPT2_("'scale_attn_weights':1", "scale_attn_weights is not true"),
    GPT2_("'scale_attn_by_inverse_layer_idx':true", "inverse_layer_idx is not false"),
    GPT2_("'add_cross_attention':true", "add_cross_attention is not false"),
    GPT2_("'layer_norm_epsilon':1e-6", "whose layer_norm_epsilon is not 1e-05"),
    GPT2_("'layer_norm_epsilon':2e-5", "layer_norm_epsilon"),
    GPT2_("'layer_norm_epsilon':'1e-5'", "layer_norm_epsilon"),
    GPT2_("'activation_function':'gelu'", "activation_function is gelu;"),
    GPT2_("'activation_function':7", "activation_function is no name"),
    GPT2_("'quantization_config':{}", "models with a quantization_config are not"),
    GPT2_("'is_causal':false", "is_causal is not true"),
    GPT2_("'tie_word_embeddings':'false'", "tie_word_embeddings must be true or false"),
    OPT_("'is_causal':0", "is_causal is not true"),
    OPT_("'do_layer_norm_before':0,'word_embed_proj_dim':4", "before must be true or false"),
    OPT_("'do_layer_norm_before':false", "word_embed_proj_dim must be hidden_size (8), or smaller"),
    OPT_("'do_layer_norm_before':false,'word_embed_proj_dim':9", "word_embed_proj_dim"),
    OPT_("'word_embed_proj_dim':4", "word_embed_proj_dim"),
    OPT_("'enable_bias':false", "enable_bias is not true"),
    OPT_("'layer_norm_elementwise_affine':false", "elementwise_affine is not true"),
    OPT_("'_remove_final_layer_norm':true", "_remove_final_layer_norm is not false"),
    ROPE_("'rope_type':'dynamic','factor':2",
          "rope_type dynamic is not supported; default, linear and llama3 are"),
    ROPE_("'type':'yarn','factor':4", "rope_type yarn is not supported"),
    ROPE_("'rope_type':3", "rope_type no name is not supported"),
    ROPE_("'rope_type':'linear'", "the factor of rotary positions must be 1 to 1e6"),
    ROPE_("'rope_type':'linear','factor':0", "factor must be a number above 0"),
    ROPE_("'rope_type':'linear','factor':0.5", "the factor of rotary positions must be 1 to 1e6"),
    ROPE_("'rope_type':'llama3','factor':8,'low_freq_factor':1",
          "llama3 need high_freq_factor above low_freq_factor"),
    ROPE_("'rope_type':'llama3','factor':8,'low_freq_factor':4,'high_freq_factor':4",
          "high_freq_factor above low_freq_factor"),
    ROPE_("'rope_type':'llama3','factor':8,'low_freq_factor':1,'high_freq_factor':4,"
          "'original_max_position_embeddings':0.5",
          "original_max_position_embeddings must be a whole number"),
    LLAMA_("llama", "'rope_scaling':'linear'", "rope_scaling must be an object"),
    LLAMA_("llama", "'rope_scaling':[2]", "rope_scaling must be an object"),
    LLAMA_("llama", "'rope_parameters':3", "rope_parameters must be an object"),
    LLAMA_("llama", "'rope_parameters':{'rope_type':'yarn'}", "rope_type yarn is not"),
    LLAMA_("llama", "'rope_theta':0", "rope_theta must be a number above 0"),
    LLAMA_("llama", "'rope_theta':'1e4'", "rope_theta must be a number above 0"),
    LLAMA_("llama", "'rope_theta':0.5", "rope_theta must be 1 to 1e12"),
    LLAMA_("llama", "'partial_rotary_factor':0.5", "partial_rotary_factor is not 1"),
    LLAMA_("qwen3", "'rope_parameters':{'partial_rotary_factor':0.25}",
           "partial_rotary_factor is not 1"),
    LLAMA_("llama", "'hidden_act':'gelu'", "hidden_act is gelu; only silu"),
    LLAMA_("mistral", "'hidden_act':7", "hidden_act is no name"),
    LLAMA_("mistral", "'is_causal':null", "is_causal is not true"),
    LLAMA_("llama", "'per_layer_config':{'0':{}}", "with a per_layer_config are not"),
    LLAMA_("llama", "'head_dim':5", "even head size, not 5"),
    LLAMA_("llama", "'head_dim':0", "head_dim must be a whole number of at least 1"),
    LLAMA_("llama", "'head_dim':70000", "heads times head size must be at most 65536"),
    LLAMA_("llama", "'num_key_value_heads':0", "num_key_value_heads must be a whole number"),
    LLAMA_("llama", "'num_key_value_heads':5", "multiple of key heads (5)"),
    LLAMA_("llama", "'num_key_value_heads':64", "multiple of key heads (64)"),
    LLAMA_("llama", "'rms_norm_eps':0", "rms_norm_eps must be a number above 0"),
    LLAMA_("llama", "'rms_norm_eps':1", "eps of norms must be below 1"),
    LLAMA_("llama", "'attention_bias':1", "attention_bias must be true or false"),
    LLAMA_("llama", "'mlp_bias':'no'", "mlp_bias must be true or false"),
    LLAMA_("mistral", "'sliding_window':0", "sliding_window must be a whole number"),
    LLAMA_("qwen2", "'use_sliding_window':1", "use_sliding_window must be true or false"),
    // model.safetensors.index.json
    ROW("index", "{'weight_map':[]}", "there is no weight_map"),
    ROW("index", "{}", "there is no weight_map"),
    ROW("index", "{'weight_map':", "JSON, line 1, byte 14: expected a value; and there is"),
    ROW("index", "{'weight_map':{'x':3}}", "it names an impossible file"),
    ROW("index", "{'weight_map':{'x':'../a.safetensors'}}", "it names an impossible file"),
    ROW("index", "{'weight_map':{'x':'a.safetensors'}}", "a.safetensors: No such file"),
    // safetensors: the header, without its length, and the data
    HEADER("", "", "not a safetensors file, or cut short: 8 bytes"),
    HEADER(" {}", "", "not a safetensors file"),
    HEADER("{", "", "JSON"),
    HEADER("{} x", "", "JSON"),
    HEADER("{}", "1", "bytes follow the last tensor: 1 of 11"),
    ONE("U8", "[4]", "[0,4]", "123456789", "bytes follow the last tensor: 5 of 70"),
    ONE("U8", "[4]", "[0,4]", "123", "cut short: 64 bytes, the header describes 65"),
    HEADER("{'a':3}", "", "tensor a needs a dtype, a shape of at most 8 dimensions, and"),
    HEADER("{'a':{}}", "", "tensor a needs"),
    HEADER("{'a':{'dtype':'F32','data_offsets':[0,4]}}", "1234", "tensor a needs"),
    HEADER("{'a':{'dtype':'F32','shape':[1]}}", "1234", "tensor a needs"),
    HEADER("{'a\\u0000':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a\\n':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", "1", "needs a dtype"),
    HEADER("{'a':{'dtype':3,'shape':[1],'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a':{'dtype':'U8','shape':{},'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a':{'dtype':'U8','shape':[1],'data_offsets':{'x':0,'y':1}}}", "1", "tensor a needs"),
    ONE("F32", "[1]", "[0]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[0,4,4]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[0,-4]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[0,4.5]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "['0',4]", "1234", "tensor a needs"),
    ONE("F33", "[1]", "[0,4]", "1234", "tensor a has the unknown dtype F33"),
    ONE("F32", "[2]", "[0,4]", "1234", "tensor a needs"),
    ONE("F32", "[-1]", "[0,4]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[0,8]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[4,0]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[1,5]", "12345", "do not fill"),
    ONE("F32", "[4294967296,4294967296]", "[0,0]", "", "tensor a needs"),
    ONE("F32", "[2147483648,2147483648]", "[0,0]", "", "tensor a needs"),
    ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", "1234", "tensor a needs"),
    TWO("a", "[4,8]", "12345678", "'a' twice"),
    TWO("b", "[3,7]", "1234567", "the tensors do not fill their bytes without gap and overlap"),
    TWO("b", "[0,4]", "1234", "do not fill"),
    // whole files
    ROW("safetensors", "", "not a safetensors file"),
    ROW("safetensors", "0123456", "not a safetensors file"),
    ROW("safetensors", "\3\0\0\0\0\0\0\0{}", "cut short: 10 bytes, the header alone takes 11"),
    ROW("safetensors", "\1\341\365\5\0\0\0\0{}", "not a safetensors file, or cut short"),
    ROW("safetensors", "\0\0\0\0\0\0\0\200{}", "not a safetensors file, or cut short: 10"),
    ROW("safetensors", "\377\377\377\377\377\377\377\377{}", "or cut short: 10"),
    ROW("safetensors", "\0\0\0\0\0\0\0\0{}", "or cut short: 10"),
    ROW("safetensors", "\xc6\xd7\x34\x01\3\0\0\0\0\0\0\0", "an llm.c checkpoint"),
    ROW("safetensors", "GGUF\3\0\0\0\1\0\0\0", "GGUF"),
    ROW("safetensors", "once upon a time", "not a safetensors file"),
    };
    *count = sizeof rows / sizeof rows[0];
    return rows;
}
#endif
