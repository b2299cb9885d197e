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
#define ST_TENSOR(name, dtype, shape, offsets) \
    "'" name "':{'dtype':'" dtype "','shape':" shape ",'data_offsets':" offsets "}"
#define ONE(dtype, shape, offsets, data, words) \
    HEADER("{" ST_TENSOR("a", dtype, shape, offsets) "}", data, words)
#define TWO(name, offsets, data, words) \
    HEADER("{" ST_TENSOR("a", "U8", "[4]", "[0,4]") "," ST_TENSOR(name, "U8", "[4]", offsets) "}", \
           data, words)
#define CPU(line, words) ROW("cpu", line, words)
#define GPU(line, words) ROW("gpu", line, words)
#define JSON(text) ROW("json", text, "JSON, line ")
#define HEAD16 "\x88\xd8\x34\1\1\0\0\0\12\0\0\0"
// A tokenizer.json of dev/test/fixtures, in which a text that is there once is another.
#define IN_LLAMA2(text, by, words) ROW("small-llama2", text "\0" by, words)
#define IN_LLAMA3(text, by, words) ROW("small-llama3", text "\0" by, words)
#define IN_SMOLLM2(text, by, words) ROW("small-smollm2", text "\0" by, words)
#define SPACE "\xe2\x96\x81"
#define PREPEND "{'type':'Prepend','prepend':'" SPACE "'},"
#define REPLACE "{'type':'Replace','pattern':{'String':' '},'content':'" SPACE "'}"
#define BOTH "'normalizer':{'type':'Sequence','normalizers':[" PREPEND REPLACE "]}"
#define NONE "'normalizer':null"
#define METASPACE "'pre_tokenizer':{'type':'Metaspace','replacement':'" SPACE "'"
// A vocabulary of all bytes and more, and its merges; files beside one.
#define VOCAB(more, merges, words) ROW("vocab", more "\0" merges, words)
#define BESIDE(files, words) ROW("beside vocab", files, words)
#define CONFIG_CLASS(name) "tokenizer_config.json\0{'tokenizer_class':'" name "'"
#define CONFIG_ADDED(id, content) \
    "tokenizer_config.json\0{'added_tokens_decoder':{'" id "':{'content':'" content "'}}}"

static const Refused *refused_rows(size_t *count) {
    static const Refused rows[] = {
    // config.json
    CONFIG("[]", "model_type is not there"),
    CONFIG("{'model_type':3}", "model_type is no name"),
    CONFIG("{'model_type':'mixtral'}",
           "model_type is mixtral; only gpt2, opt, llama, mistral, qwen2, qwen3 and smollm3 are known"),
    CONFIG("{'model_type':'gpt2'}", "n_layer must be there"),
    CONFIG("{'model_type':'llama','num_hidden_layers':3,'hidden_size':64,'num_attention_heads':32,"
           "'max_position_embeddings':5000,'vocab_size':300}",  // where others take 4 C
           "intermediate_size must be there"),
    CONFIG("{'model_type':'gpt2','n_layer':3000000,'n_head':2,'n_embd':8,'n_positions':5,"
           "'vocab_size':300}", "layers must be"),
    GPT2_("'n_inner':0", "n_inner must be"),
    GPT2_("'num_attention_heads':3", "multiple of heads (3)"),
    GPT2_("'scale_attn_weights':false", "scale_attn_weights is not true"),
    GPT2_("'scale_attn_by_inverse_layer_idx':true", "inverse_layer_idx is not false"),
    GPT2_("'add_cross_attention':true", "add_cross_attention is not false"),
    GPT2_("'layer_norm_epsilon':1e-6", "whose layer_norm_epsilon is not 1e-05"),
    GPT2_("'activation_function':'gelu'", "activation_function is gelu;"),
    GPT2_("'activation_function':7", "activation_function is no name"),
    GPT2_("'activation_function':'silu'", "activation_function is silu; only relu"),
    GPT2_("'quantization_config':{}", "quantization_config is not null"),
    GPT2_("'tie_word_embeddings':'false'", "tie_word_embeddings must be true or false"),
    OPT_("'do_layer_norm_before':false", "word_embed_proj_dim must be hidden_size (8), or smaller"),
    OPT_("'word_embed_proj_dim':4", "word_embed_proj_dim"),
    OPT_("'enable_bias':false", "enable_bias is not true"),
    OPT_("'layer_norm_elementwise_affine':false", "elementwise_affine is not true"),
    OPT_("'_remove_final_layer_norm':true", "_remove_final_layer_norm is not false"),
    ROPE_("'rope_type':'dynamic','factor':2",
          "rope_type dynamic is not supported; default, linear and llama3 are"),
    ROPE_("'rope_type':'linear'", "the factor of rotary positions must be 1 to 1e6"),
    ROPE_("'rope_type':'linear','factor':0", "factor must be a number above 0"),
    ROPE_("'rope_type':'llama3','factor':8,'low_freq_factor':4,'high_freq_factor':4",
          "high_freq_factor above low_freq_factor"),
    LLAMA_("llama", "'rope_scaling':'linear'", "rope_scaling must be an object"),
    LLAMA_("llama", "'rope_parameters':3", "rope_parameters must be an object"),
    LLAMA_("llama", "'rope_theta':0", "rope_theta must be a number above 0"),
    LLAMA_("llama", "'rope_theta':0.5", "rope_theta must be 1 to 1e12"),
    LLAMA_("llama", "'partial_rotary_factor':0.5", "partial_rotary_factor is not 1"),
    LLAMA_("qwen3", "'rope_parameters':{'partial_rotary_factor':0.25}",
           "partial_rotary_factor is not 1"),
    LLAMA_("llama", "'hidden_act':'relu'", "hidden_act is relu; only silu"),
    LLAMA_("mistral", "'is_causal':null", "is_causal is not true"),
    LLAMA_("llama", "'per_layer_config':{'0':{}}", "per_layer_config is not null"),
    LLAMA_("llama", "'head_dim':5", "even head size, not 5"),
    LLAMA_("llama", "'head_dim':0", "head_dim must be a whole number of at least 1"),
    LLAMA_("llama", "'head_dim':70000", "heads times head size must be at most 65536"),
    LLAMA_("llama", "'num_key_value_heads':5", "multiple of key heads (5)"),
    LLAMA_("llama", "'rms_norm_eps':1", "eps of norms must be below 1"),
    LLAMA_("qwen2", "'use_sliding_window':true,'max_window_layers':1.5",
           "max_window_layers must be a whole number"),
    LLAMA_("smollm3", "'no_rope_layers':[1,0,1]", "no_rope_layers must have a 0 every 4 layers"),
    LLAMA_("smollm3", "'no_rope_layers':[1,1]", "no_rope_layers must have a 0 every 4 layers"),
    LLAMA_("smollm3", "'no_rope_layers':1", "no_rope_layers must have a 0 every 4 layers"),
    // model.safetensors.index.json
    ROW("index", "{}", "there is no weight_map"),
    ROW("index", "{'weight_map':", "JSON, line 1, byte 14: expected a value; and there is"),
    ROW("index", "{'weight_map':{'x':3}}", "it names an impossible file"),
    ROW("index", "{'weight_map':{'x':'../a.safetensors'}}", "it names an impossible file"),
    ROW("index", "{'weight_map':{'x':'a.safetensors'}}", "a.safetensors: No such file"),
    // safetensors: the header, without its length, and the data
    HEADER("", "", "not a safetensors file, or cut short: 8 bytes"),
    HEADER(" {}", "", "not a safetensors file"),
    HEADER("{", "", "JSON"),
    HEADER("{}", "1", "too long: 11 bytes, the header describes 10"),
    ONE("U8", "[4]", "[0,4]", "123", "cut short, or too long: 64 bytes, the header describes 65"),
    HEADER("{'a':3}", "", "tensor a needs a dtype, a shape of at most 8 dimensions, and"),
    HEADER("{'a\\u0000':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a\\n':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", "1", "needs a dtype"),
    HEADER("{'a':{'dtype':3,'shape':[1],'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a':{'dtype':'U8','shape':{},'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a':{'dtype':'U8','shape':[1],'data_offsets':{'x':0,'y':1}}}", "1", "tensor a needs"),
    ONE("F32", "[1]", "[0,4,4]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[0,-4]", "1234", "tensor a needs"),
    ONE("F33", "[1]", "[0,4]", "1234", "tensor a has the unknown dtype F33"),
    ONE("F32", "[2]", "[0,4]", "1234", "tensor a needs"),
    ONE("F32", "[1]", "[4,0]", "1234", "tensor a needs"),
    ONE("F32", "[4294967296,4294967296]", "[0,0]", "", "tensor a needs"),
    ONE("F32", "[2147483648,2147483648]", "[0,0]", "", "tensor a needs"),
    ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", "1234", "tensor a needs"),
    TWO("b", "[3,7]", "1234567", "the tensors do not fill their bytes without gap and overlap"),
    // whole files
    ROW("safetensors", "", "not a safetensors file"),
    ROW("safetensors", "\3\0\0\0\0\0\0\0{}", "not a safetensors file, or cut short: 10 bytes"),
    ROW("safetensors", "\377\377\377\377\377\377\377\377{}", "or cut short: 10"),
    ROW("safetensors", "\0\0\0\0\0\0\0\0{}", "or cut short: 10"),
    ROW("safetensors", "GGUF\3\0\0\0\1\0\0\0", "GGUF"),
    // labelled sentences
    ROW("tsv", "a\t1\nb 1\n", "f.tsv, line 2: not a sentence, a TAB and the number"),
    ROW("tsv", "sentence\tlabel\na\t1\nb\t1\t1\n", "line 3: not"),
    ROW("tsv", "a\t1\n\nb\t1\n", "line 2: not"),
    ROW("tsv", "a\t1\nsentence\tlabel\n", "line 2: not"),
    ROW("tsv", "a\t1.0\n", "label"),
    ROW("tsv", "a\t 1\n", "label"),
    ROW("tsv", "a\t4294967297\n", "label"),
    ROW("tsv", "\t1\n", "line 1: the sentence is empty"),
    ROW("tsv", "a\t0\n \r \t1\n", "line 2: the sentence is empty"),
    // JSON lines
    ROW("jsonl", "{'text':'ab'}\n{'text' 'b'}", "f.jsonl, line 2: no JSON: byte 8: expected ^:^"),
    ROW("jsonl", "17", "line 1: no object, {...}"),
    ROW("jsonl", "{'prompt':'a'}", "line 1: it must have 'prompt' and 'completion', or"),
    ROW("jsonl", "{} {}", "something follows"),
    ROW("jsonl", "{'prompt':'p','choices':['a','b','a'],'answer':1}",
        "two of the 'choices' are 'a'"),
    ROW("jsonl", "[\n{'text':'ab'},\n{'text':''}]", "f.jsonl, entry 2 of the array: 'text' is empty"),
    ROW("jsonl", "{\n'text':'ab'}", "jq -c . FILE makes lines of objects"),
    ROW("jsonl", "[{'text':'ab'},['text']]", "f.jsonl, entry 2 of the array: no object, {...}"),
    ROW("jsonl", "[{'text':'ab'}\n{'text':'ab'}]", "f.jsonl: JSON, line 2, byte 15: expected"),
    ROW("jsonl", "[{'text':'ab'}]\n{'text':'ab'}", "something follows the end of the value"),
    ROW("jsonl", "[]", "f.jsonl: no examples"),
    ROW("jsonl", "{'conversations':[{}]}", "which would tell the format of a conversation"),
    ROW("jsonl", "{'instruction':'a','input':'','output':'b'}", "the tokenizer has none of"),
    ROW("jsonl", "{'output':'b','input':'a'}",
        "'input', which is not supported: doc/finetuning.md has a line of jq"),
    ROW("jsonl", "{'prompt':'p','completion':'a','system':'b'}",
        "'system', which is not supported"),
    ROW("jsonl", "{'text':'ab','weight':0}", "'weight'"),
    ROW("jsonl", "{'text':7}", "'text' is no string"),
    ROW("jsonl", "{'text':'a'}", "one token, with nothing before it"),
    ROW("jsonl", "{'prompt':'p','completion':'a','choices':['a','b'],'answer':0}", "must have"),
    ROW("jsonl", "{'prompt':'p','choices':[],'answer':0}",
        "'choices' is no list of at least two strings"),
    ROW("jsonl", "{'prompt':'p','choices':['a',''],'answer':0}", "one of the 'choices' is empty"),
    ROW("jsonl", "{'prompt':'p','choices':['a','b'],'answer':2}",
        "'answer' is not the number of a choice, 0 to 1"),
    // token files: the header, without its zeros, and the tokens
    ROW("tokens", HEAD16 "0123456789012345678", "x.bin: truncated"),
    ROW("tokens", "\x88\xd8\x34\1\1\0\0\0\0\0\0\0" "01", "0 tokens"),
    ROW("tokens", "\x88\xd8\x34\1\1\0\0\0\377\377\377\377" "01234567890123456789", "-1 tokens"),
    ROW("tokens", "\x88\xd8\x34\1\7\0\0\0\12\0\0\0" "01234567890123456789",
        "another version than 1"),
    ROW("tokens", "\xa1\xd9\x34\1\1\0\0\0\5\0\0\0" "01234567890123456789",
        "another version than 7"),
    ROW("tokens", "\x8a\xd8\x34\1\1\0\0\0\12\0\0\0" "01234567890123456789",
        "not a token file"),  // llm.c's evaluation files
    ROW("data.bin", HEAD16, "header"),
    ROW("data.bin", "\x88\xd8\x34\1", "header"),
    ROW("data.bin", "", "data.bin is empty"),
    ROW("data.bin", "this was raw", "not a token file"),  // no header, as nanoGPT writes it
    ROW("data.bin", "GGUF\3 and so on",
        "not a token file (it must start with 20240520 or 20240801), but a GGUF"),
    // what is no text
    ROW("data", "\x1f\x8b\x08\0", "a is compressed: unpack it"),
    ROW("data", "\x28\xb5\x2f\xfd\4", "a is compressed"),
    ROW("data", "\xfd" "7zXZ\0", "a is compressed"),
    ROW("data", "BZh91AY&SY\xd1", "a is compressed"),
    ROW("data", "BZh11AY&SY\1", "a is compressed"),
    ROW("data", "7z\xbc\xaf^\x1c", "a is compressed"),
    ROW("data", "ARROW1\0\0", "Arrow"),
    ROW("data", "\xff\xff\xff\xff\x10\0\0\0", "Arrow"),
    ROW("data", "SQLite format 3\0", "SQLite"),
    // rates
    ROW("rates", "", "names no rate"),
    ROW("rates", "h2d 1\nwarp 2\n", "line 2: warp: no rate of this name"),
    ROW("rates", "h2", "line 1: h2: no rate of this name"),
    ROW("rates", "h2d 1\n#\nh2d 1\n", "line 3: h2d: no rate of this name"),
    ROW("rates", "h2d -1\n", "line 1: h2d: no rate of this name"),
    ROW("rates", "h2d\n", "line 1: h2d: no rate of this name"),
    ROW("rates", "h2d 1 2", "line 1: h2d: no rate of this name"),
    ROW("rates", "h2d nan", "not a number"),
    ROW("rates", "h2d 5GB", "not a number"),
    // command lines
    CPU("--steps 0", "--steps 0 needs"),
    CPU("--data d --scores s --steps 0 --prompt x", "--scores is of an evaluation"),
    CPU("--dump f --steps 0 --prompt x", "--data is missing"),
    CPU("--data --steps 5", "--data needs a value; write --NAME=VALUE"),
    CPU("--data _", "--data needs a value that is not empty"),
    CPU("file.txt", "unexpected argument 'file.txt'"),
    CPU("--data d --weight_decay 1", "did you mean --weight-decay?"),
    CPU("--data d --zo_eps 1", "did you mean --zo-eps?"),  // not --eps
    CPU("--data d -steps 3", "unknown option -steps; did you mean --steps?"),
    CPU("--data d --top-p 0", "--top-p 0: must be 1e-09 to 1"),
    CPU("--data d --top-p 1.1", "--top-p 1.1: must be 1e-09 to 1"),
    CPU("--data d --temperat 3", "did you mean --temperature?"),
    CPU("--data d --learning-rate 1", "did you mean --lr?"),
    CPU("--data d --max-steps 1", "did you mean --steps?"),
    CPU("--data d --batch-size 1", "did you mean --batch?"),
    CPU("--data d --seq-len 1", "did you mean --seq?"),
    CPU("--data d --max-seq-length 1", "did you mean --seq?"),
    CPU("--data d --output-dir=o", "did you mean --out?"),
    CPU("--data d --gradient-accumulation-steps 1", "did you mean --accum?"),
    CPU("--data d --per-device-train-batch-size 1", "did you mean --batch?"),
    CPU("--data d --num-train-epochs 1", "did you mean --epochs?"),
    CPU("--data d --lora 1", "unknown option --lora; see --help"),
    CPU("--data d --xyzzyx=--seq", "unknown option --xyzzyx; see --help"),
    CPU("--data d --lr 1e-3 --lr=2e-3", "--lr is given twice, with 1e-3 and 2e-3: leave one out"),
    CPU("--data d --lr 1 -- --lr 2 --lr 3", "--lr is given twice, with 2 and 3: leave"),
    CPU("--prompt x", "--data is missing"),
    CPU("--model m --prompt x --out o", "--data is missing"),
    CPU("--model m --prompt x --steps 5", "--data is missing"),
    CPU("--data d -", "unknown option -;"),
    CPU("--data d --Model", "unknown option --Model"),
    CPU("--data d --resume=1", "--resume takes no value"),
    CPU("--data d --steps 1.5", "--steps: '1.5' is not a whole number"),
    CPU("--data d --steps -1", "--steps -1: must be 0 or more"),
    CPU("--data d --gpu-memory -1G", "--gpu-memory -1G: must be 0 or more"),
    CPU("--data d --lr 1e999", "--lr 1e999: must be 0 to 1000"),
    CPU("--data d --steps 1000000000001", "must be 0 to"),
    CPU("--data d --seed 9007199254740992", "must be 0 to 9007199254740991"),
    CPU("--data d --batch 0", "--batch 0: must be 1 to 1048576"),
    CPU("--data d --layers 0", "--layers 0: must be 1 to 1000"),
    CPU("--data d --lr x", "--lr: 'x' is not a number"),
    CPU("--data d --lr nan", "is not a number"),
    CPU("--data d --eps 0", "--eps 0: must be"),
    CPU("--data d --beta2 1", "--beta2 1: must be 0 to 0.999999999"),
    CPU("--data d --steps 10 --warmup 11", "--warmup 11 is longer than --steps 10"),
    CPU("--data d --lr 1e-4 --min-lr 2e-4", "--min-lr 0.0002 is above --lr 0.0001"),
    CPU("--data d --batch 1048576 --seq 1048576", "more than any machine"),
    CPU("--data d --dump f --resume", "leave out --resume"),
    CPU("--data d --offload zen", "one of auto|none|zero|twinflow|interleave|zenflow"),
    CPU("--data d --offload none --zen-window 2", "--zen-window needs --offload zenflow"),
    CPU("--data d --offload zenflow --zen-topk 1.5", "--zen-topk 1.5: must be 0 to 1"),
    CPU("--data d --offload zenflow --zen-window 0", "--zen-window 0: must be 0.01 to 1048576"),
    CPU("--data d --offload zenflow --zen-window 4.5",
        "--zen-window 4.5: a window has whole steps"),
    CPU("--data d --optimizer mezo --offload zenflow", "--offload places the state of AdamW"),
    CPU("--data d --optimizer mezo --beta1 0.8", "--beta1 needs --optimizer adamw"),
    CPU("--data d --optimizer mezo --zo-eps 0", "--zo-eps 0: must be"),
    CPU("--data d --optimizer mezo --zo-queries 257", "must be 1 to 256"),
    CPU("--data d --optimizer mezo --zo-noise normal", "one of gaussian|rademacher"),
    CPU("--data d --optimizer mezo --dump f", "--dump shows the gradient of plain"),
    CPU("--data d --optimizer mezo --schedule linear --lr 1e-5 --min-lr 1e-4",
        "is above --lr 1e-05"),
    GPU("--data d --gpu-memory 24", "24 is less than a megabyte: did you mean gigabytes"),
    GPU("--data d --gpu-memory 24B", "'24B' is not a size, like 512M or 24G"),
    GPU("--data d --gpu-memory 24GBs", "is not a size"),
    GPU("--data d --gpu-memory 99999999TB", "must be 0 to"),
    GPU("--data d --resident 0.5", "--resident needs --offload twinflow, interleave or zenflow"),
    GPU("--data d --offload zenflow --subgroup 5000", "needs another --offload"),
    GPU("--data d --offload zenflow --slots 2", "needs another --offload"),
    GPU("--data d --offload zenflow --grad-wire fp32", "needs another --offload"),
    CPU("--data d --offload zenflow --zen-warmup 0", "--zen-warmup 0: must be 1 to"),
    GPU("--data d --offload zenflow --stride 2", "needs --offload interleave"),
    GPU("--data d --offload zenflow --dump f", "--dump shows the gradient of plain"),
    GPU("--data d --offload zenflow --zen-topk 1 --zen-window auto", "leaves only one of them"),
    GPU("--data d --offload interleave --stride 2 --share 0.5", "leave one out"),
    GPU("--data d --offload interleave --subgroup 100", "must be 4096 to"),
    GPU("--data d --offload interleave --slots 0", "must be 1 to 1000"),
    GPU("--data d --resident-blocks 1", "--resident-blocks needs --optimizer mezo"),
    GPU("--data d --optimizer mezo --resident-blocks 1001", "must be 0 to 1000"),
    GPU("--data d --optimizer mezo --weights host", "--weights needs --optimizer adamw"),
    GPU("--data d --optimizer mezo --recompute block", "--recompute needs --optimizer adamw"),
    GPU("--data d --optimizer mezo --resident 0.5", "--resident needs --optimizer adamw"),
    GPU("--data d --optimizer mezo --grad-wire fp32", "--grad-wire needs --optimizer adamw"),
    // the options in a checkpoint
    ROW("saved", "--batch 0\n", "--batch 0: must be"),
    ROW("saved", "--batch ", "not a whole number"),
    ROW("saved", "--model \n", "--model needs"),
    ROW("saved", "", "--data is missing"),
    ROW("saved", "--data d\n--min-lr 1\n", "--min-lr 1 is above"),
    // JSON
    JSON(""), JSON(" "), JSON("nul"), JSON("nullx"), JSON("["), JSON("]"), JSON("{"), JSON("[1"),
    JSON("[1,"), JSON("[1,]"), JSON("[,1]"), JSON("[1 2]"), JSON("[1}"), JSON("{'a'}"),
    JSON("{'a':}"), JSON("{'a':1,}"), JSON("{a:1}"), JSON("{'a':1 'b':2}"), JSON("{'a':1]"),
    JSON("{,}"), JSON("1 2"), JSON("[]]"), JSON("-"), JSON("1e"), JSON("1e+"), JSON("0x10"),
    JSON("NaN"), JSON("1e999"), JSON("'"), JSON("'a"), JSON("'\\"), JSON("'\\'"), JSON("'\\x'"),
    JSON("'\\u12'"), JSON("'\\u12g4'"), JSON("'\\u 123'"), JSON("'a\nb'"), JSON("'\t'"),
    JSON("'\x01'"), JSON("^a^"), JSON("'\\ud800'"), JSON("'\\ud800a'"), JSON("'\\ud800\\n'"),
    JSON("'\\ud800\\u0041'"), JSON("'\\udc00'"), JSON("'\\ud800\\u'"), JSON("'\x80'"),
    JSON("'\xc3'"), JSON("'\xc0\x80'"), JSON("'\xc1\xbf'"), JSON("'\xe0\x9f\xbf'"),
    JSON("'\xed\xa0\x80'"), JSON("'\xf0\x8f\xbf\xbf'"), JSON("'\xf4\x90\x80\x80'"),
    JSON("'\xfc\x80\x80\x80'"), JSON("'\xe2\x82'"), JSON("'\xc3\xc3'"), JSON("'\xc3""a'"),
    JSON("'\xff'"), JSON("[\xef\xbb\xbf]"), JSON("\xef\xbb\xbf\xef\xbb\xbf[]"), JSON("\xef\xbb[]"),
    JSON("// c\n1"), JSON("\f1"), JSON("\xc2\xa0[]"),
    ROW("json", "{'a':1,'a':2}", "'a' twice"),
    ROW("json", "{'a':1,'b':2,'\\u0061':1}", "'a' twice"),
    ROW("json", "{'':1,'':1}", "'' twice"),
    ROW("json", "[0,\n{'a':{'b':1,'c':1,'b':null}}]", "line 2"),
    ROW("json", "{'a':{'b':1,'c':1,'b':null},'c':1}", "'b' twice"),
    // tokenizer.json
    IN_LLAMA3("'version':'1.0'", "'version':'2.0'", "version other than 1.0: not supported"),
    IN_LLAMA3(NONE, "'normalizer':{'type':'NFKC'}",
              "tokenizer.json: normalizer NFKC: not supported"),
    IN_LLAMA3(NONE,
              "'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'Strip',"
              "'strip_left':true}]}", "normalizer Strip: not"),
    IN_LLAMA3(NONE, "'normalizer':{'type':'Sequence'}", "normalizer Sequence: not"),
    IN_LLAMA3(NONE, "'normalizer':7", "normalizer without a type: not"),
    IN_LLAMA3(NONE, "'normalizer':" REPLACE, "normalizer, pre_tokenizer and decoder in this"),
    IN_LLAMA3("{1,3}", "{1,4}",
              "pre_tokenizer Split with an expression other than GPT-2^s, Llama-3^s, Qwen2^s or Tekken^s"),
    IN_LLAMA3("'Regex'", "'String'", "pre_tokenizer Split with an expression other than"),
    IN_LLAMA3("'Isolated'", "'Removed'", "Split with behavior other than Isolated: not"),
    IN_LLAMA3("'invert':false", "'invert':true", "Split with invert other than false"),
    IN_LLAMA3("'use_regex':false", "'use_regex':true", "in this combination"),
    IN_LLAMA3("'add_prefix_space':false", "'add_prefix_space':true",
              "pre_tokenizer ByteLevel with add_prefix_space other than false"),
    IN_SMOLLM2("'use_regex':true}]", "'use_regex':false}]", "in this combination"),
    IN_SMOLLM2("'individual_digits':true", "'individual_digits':false",
               "Digits with individual_digits other than true"),
    IN_SMOLLM2("'type':'Digits'", "'type':'Punctuation'", "pre_tokenizer Punctuation: not"),
    IN_SMOLLM2("{'type':'Digits','individual_digits':true},{'type':'ByteLevel',",
               "{'type':'ByteLevel','add_prefix_space':false},{'type':'Digits',",
               "pre_tokenizer Digits: not"),  // the other way round
    IN_LLAMA2("'pre_tokenizer':null", METASPACE ",'prepend_scheme':'first'}",
              "Metaspace with split other than false"),
    IN_LLAMA2("'pre_tokenizer':null", METASPACE ",'split':false}",
              "Metaspace with prepend_scheme other than first"),
    IN_LLAMA2("'pre_tokenizer':null", METASPACE ",'prepend_scheme':'first','split':false}",
              "in this combination"),
    IN_LLAMA2(BOTH, NONE, "in this combination"),
    IN_LLAMA2(PREPEND, "{'type':'NFC'}," PREPEND, "in this combination"),
    IN_LLAMA2(REPLACE, "{'type':'NFC'}", "normalizer NFC: not"),
    IN_LLAMA2("'pattern':{'String':' '}", "'pattern':{'Regex':' '}", "Replace with String other"),
    IN_LLAMA2("'prepend':'" SPACE "'", "'prepend':'_'", "Prepend with prepend other than " SPACE),
    IN_LLAMA2("'start':1,'stop'", "'start':2,'stop'", "Strip with start other than 1"),
    IN_LLAMA2("{'type':'Fuse'},", "", "in this combination"),
    IN_LLAMA2("'decoder':{", "'decoder':{'type':'ByteLevel'},'other':{", "in this combination"),
    IN_LLAMA2("'decoder':{", "'other':{", "in this combination"),
    IN_LLAMA2("'TemplateProcessing'", "'RobertaProcessing'", "post_processor RobertaProcessing"),
    IN_LLAMA2("'single':[", "'single':[{'SpecialToken':{'id':'<s>','type_id':0}},",
              "post_processor with more than one token on each side"),
    IN_LLAMA2("'ids':[1]", "'ids':[1,2]", "more than one token"),
    IN_LLAMA2("'ids':[1]", "'ids':[2005]", "more than one token"),
    IN_LLAMA2("'single':[", "'single':[],'other':[", "post_processor without a text"),
    IN_LLAMA3("'type':'BPE'", "'type':'Unigram'", "model of a type other than BPE"),
    IN_LLAMA3("'dropout':null", "'dropout':0.1", "model with dropout: not"),
    IN_LLAMA3("'end_of_word_suffix':null", "'end_of_word_suffix':'</w>'",
              "model with end_of_word_suffix"),
    IN_LLAMA3("'continuing_subword_prefix':null", "'continuing_subword_prefix':'##'",
              "model with continuing_subword_prefix"),
    IN_LLAMA3("'ignore_merges':true", "'ignore_merges':1", "model without vocab, merges, true"),
    IN_LLAMA3("'merges':[[", "'merges':{},'other':[[", "model without vocab, merges"),
    IN_LLAMA3("'vocab':{", "'vocab':{},'other':{", "model without vocab, merges"),
    IN_LLAMA3("'vocab':{'!':0", "'vocab':{'!':1", "token 1, ''', has the id of another"),
    IN_LLAMA3("'vocab':{'!':0", "'vocab':{'!':-1", "id of '!' is not a number below 2"),
    IN_LLAMA3("['h','e']", "['h','e','e']", "tokenizer.json, merge 8: not two tokens"),
    IN_LLAMA3("['h','e']", "'h e '", "merge 8: not two tokens"),
    IN_LLAMA3("['h','e']", "{}", "merge 8: not two tokens"),
    IN_LLAMA3("['h','e']", "['h','zzz']", "merge 8: merges a token that is not"),
    IN_LLAMA3("['h','e']", "['e','!']", "merge 8: gives a token that is not"),
    IN_LLAMA3("['h','e']", "['\u0120','t']", "merge 8: occurs twice"),
    IN_SMOLLM2("'~':", "'~~':", "model with bytes of ordinary text that have no token"),
    IN_SMOLLM2("'é':", "'é~':", "model with bytes of ordinary text that have no token"),
    IN_SMOLLM2("'unk_token':null", "'unk_token':'!'", "model with bytes that have no token"),
    IN_LLAMA2("'byte_fallback':true", "'byte_fallback':false", "model without byte_fallback"),
    IN_LLAMA2("'ignore_merges':false", "'ignore_merges':true", "U+2581, or with ignore_merges"),
    IN_LLAMA2("'<0xFF>':", "'<0xFf>':", "model without byte_fallback, <0x00> to <0xFF>"),
    IN_LLAMA2("'id':2001", "'id':2002",
              "'<|left|>' has the id 2002, and Hugging Face gives it 2001"),
    IN_LLAMA2("{'id':1,", "{'id':9,", "'<s>' has the id 9, and Hugging Face gives it 1"),
    IN_LLAMA2("'content':'<|left|>'", "'content':'<|right|>'", "'<|right|>' is there twice"),
    IN_LLAMA2("'content':'<|left|>'", "'content':''", "added_tokens without content, id"),
    IN_LLAMA2("'added_tokens':[", "'added_tokens':{},'other':[", "added_tokens other than a list"),
    IN_LLAMA2("'content':'<|left|>'", "'content':5", "added_tokens without content, id"),
    IN_LLAMA2("'content':'<|left|>','single_word':false", "'content':'<|left|>','single_word':true",
              "added_tokens with single_word"),
    IN_LLAMA2("'content':'<|left|>','single_word':false", "'content':'<|left|>','single_word':0",
              "added_tokens without content, id, true"),
    // vocab.json
    VOCAB("", "", "test/merges.txt: empty"),
    VOCAB("", "a b\n", "test/vocab.json and merges.txt, merge 1: gives a token that is not"),
    VOCAB(", 'abc': 1", "#version\nab c\n", "merge 2: merges a token that is not"),
    VOCAB(", 'abc': 1", "c ab\n", "merges a token that is not"),
    VOCAB(", 'ab': 1", "a b\na b\n", "merge 2: occurs twice"),
    VOCAB(", 'ab': 1", "ab\n", "merge 1: not two tokens"),
    VOCAB(", 'ab': 1", " ab\n", "not two tokens"),
    VOCAB(", 'ab': 1", "ab \n", "not two tokens"),
    VOCAB(", 'ab': 1", "a b c\n", "not two tokens"),
    VOCAB(", 'ab': 1", "\xff b\n", "merges a token that is not"),
    VOCAB(", 'ab': 5", "a b\n", "has the id of another"),
    VOCAB(", 'ab': 16777216", "a b\n", "below 2"),
    VOCAB(", 'ab': '1'", "a b\n", "below 2"),
    VOCAB(", '': 1", "#version\n", "is empty"),
    VOCAB(", 'ab': 1, 'ab': 2", "a b\n", "'ab' twice"),
    VOCAB(", 'ab': 1]", "a b\n", "JSON"),
    // the files in the folder of a tokenizer: names and texts
    ROW("folder", "", "/vocab.json: No such file"),
    ROW("folder", "vocab.json\0{}", "/merges.txt"),
    ROW("folder", "merges.txt\0#version\n", "/vocab.json: No such file"),
    ROW("folder", "vocab.json\0{}\0merges.txt\0a b\n", "/vocab.json and merges.txt: model without"),
    ROW("folder", "vocab.json\0\0merges.txt\0a b\n", "/vocab.json"),
    ROW("folder", "vocab.json\0{}\0merges.txt\0\0tokenizer.json\0{}", "tokenizer.json: normalizer"),
    // the files beside a tokenizer: names and texts
    BESIDE(CONFIG_CLASS("LlamaTokenizer") "}", "merges.txt of LlamaTokenizer, and"),
    BESIDE("config.json\0{'tokenizer_class':'RobertaTokenizer'}", "of RobertaTokenizer"),
    BESIDE("config.json\0{'model_type':'llama'}", "merges.txt of llama, and"),
    BESIDE(CONFIG_CLASS("Qwen2Tokenizer") "}", "merges.txt of Qwen2Tokenizer, and"),
    BESIDE(CONFIG_CLASS("GPT2Tokenizer") ",'add_prefix_space':true}",
           "ByteLevel with add_prefix_space other than false"),
    BESIDE(CONFIG_CLASS("GPT2Tokenizer") ",'split_special_tokens':true}",
           "tokenizer_config.json with split_special_tokens true"),
    ROW("beside llama3", "tokenizer_config.json\0{'add_bos_token':false}",
        "post_processor with add_bos_token false in tokenizer_config.json: not supported"),
    BESIDE(CONFIG_ADDED("270", "<|b|>"), "tokenizer_config.json: added_tokens: '<|b|>' has the id "
           "270, and Hugging Face gives it 261"),
    BESIDE(CONFIG_ADDED("2x", "</s>"), "tokenizer_config.json: added_tokens without"),
    BESIDE("tokenizer_config.json\0{'added_tokens_decoder':[]}", "added_tokens other than a list"),
    ROW("beside llama3", CONFIG_ADDED("2009", "<|x|>"),
        "tokenizer_config.json: '<|x|>' has the id 2009, which is that of '<|eot_id|>'"),
    ROW("beside llama3", "tokenizer_config.json\0{'added_tokens_decoder':{'2009':"
        "{'content':'<|eot_id|>'}}}", "which is that of '<|eot_id|>' with normalized false"),
    ROW("beside llama3", "added_tokens.json\0{'<|eot_id|>':2009}",
        "added_tokens.json without added_tokens_decoder in tokenizer_config.json: not supported"),
    ROW("beside llama3", "tokenizer_config.json\0{'a'", "/tokenizer_config.json"),
    ROW("beside llama3", "generation_config.json\0{'a'", "/generation_config.json"),
    ROW("beside llama3", "special_tokens_map.json\0{", "/special_tokens_map.json"),
    ROW("beside llama3", "config.json\0{'a'", "/config.json"),
    };
    *count = sizeof rows / sizeof rows[0];
    return rows;
}
#endif
