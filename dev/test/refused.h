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
// A vocabulary of all bytes and more, and its merges; files beside one.
#define VOCAB(more, merges, words) ROW("vocab", more "\0" merges, words)
#define BESIDE(files, words) ROW("beside vocab", files, words)
#define CONFIG_GPT2_CLASS "tokenizer_config.json\0{'tokenizer_class':'GPT2Tokenizer'"
#define CONFIG_ADDED(id, content) \
    "tokenizer_config.json\0{'added_tokens_decoder':{'" id "':{'content':'" content "'}}}"

static const Refused *refused_rows(size_t *count) {
    static const Refused rows[] = {
    // config.json
    CONFIG("{'model_type':'mixtral'}", "model_type is mixtral; only gpt2, opt, llama"),
    CONFIG("{'model_type':'gpt2','n_layer':3000000,'n_head':2,'n_embd':8,'n_positions':5,"
           "'vocab_size':300}", "layers must be"),
    GPT2_("'n_inner':0", "n_inner must be"),
    GPT2_("'num_attention_heads':3", "multiple of heads (3)"),
    GPT2_("'add_cross_attention':true", "add_cross_attention is not false"),
    GPT2_("'activation_function':'gelu'", "activation_function is gelu;"),
    GPT2_("'quantization_config':{}", "quantization_config is not null"),
    GPT2_("'tie_word_embeddings':'false'", "tie_word_embeddings must be true or false"),
    OPT_("'do_layer_norm_before':false", "word_embed_proj_dim must be hidden_size (8), or smaller"),
    OPT_("'word_embed_proj_dim':4", "word_embed_proj_dim"),
    OPT_("'enable_bias':false", "enable_bias is not true"),
    ROPE_("'rope_type':'dynamic','factor':2", "rope_type dynamic is not supported"),
    ROPE_("'rope_type':'linear'", "the factor of rotary positions must be 1 to 1e6"),
    ROPE_("'rope_type':'llama3','factor':8,'low_freq_factor':4,'high_freq_factor':4",
          "high_freq_factor above low_freq_factor"),
    LLAMA_("llama", "'rope_scaling':'linear'", "rope_scaling must be an object"),
    LLAMA_("llama", "'rope_theta':0", "rope_theta must be a number above 0"),
    LLAMA_("llama", "'rope_theta':0.5", "rope_theta must be 1 to 1e12"),
    LLAMA_("qwen3", "'rope_parameters':{'partial_rotary_factor':0.25}", "factor is not 1"),
    LLAMA_("llama", "'hidden_act':'relu'", "hidden_act is relu; only silu"),
    LLAMA_("mistral", "'is_causal':null", "is_causal is not true"),
    LLAMA_("llama", "'head_dim':5", "even head size, not 5"),
    LLAMA_("llama", "'head_dim':0", "head_dim must be a whole number of at least 1"),
    LLAMA_("llama", "'head_dim':70000", "heads times head size must be at most 65536"),
    LLAMA_("llama", "'num_key_value_heads':5", "multiple of key heads (5)"),
    LLAMA_("llama", "'rms_norm_eps':1", "eps of norms must be below 1"),
    LLAMA_("qwen2", "'use_sliding_window':true,'max_window_layers':1.5", "must be a whole"),
    LLAMA_("qwen3", "'use_sliding_window':true,'layer_types':['full_attention']", "for each layer"),
    LLAMA_("qwen3", "'use_sliding_window':true,'layer_types':['full_attention','full_attention',"
           "'linear_attention']", "layer_types must be full_attention or sliding_attention"),
    LLAMA_("smollm3", "'no_rope_layers':[1,1]", "no_rope_layers must have a 0 every 4 layers"),
    // model.safetensors.index.json
    ROW("index", "{}", "there is no weight_map"),
    ROW("index", "{'weight_map':{'x':3}}", "it names an impossible file"),
    ROW("index", "{'weight_map':{'x':'../a.safetensors'}}", "it names an impossible file"),
    ROW("index", "{'weight_map':{'x':'a.safetensors'}}", "a.safetensors: No such file"),
    // safetensors: the header, without its length, and the data
    HEADER(" {}", "", "not a safetensors file"),
    HEADER("{", "", "JSON"),
    HEADER("{}", "1", "too long: 11 bytes, the header describes 10"),
    HEADER("{'a':3}", "", "tensor a needs a dtype, a shape of at most 8 dimensions, and"),
    HEADER("{'a\\u0000':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", "1", "tensor a needs"),
    HEADER("{'a\\u001b[2J':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", "1", "[2J needs"),
    HEADER("{'a':{'dtype':3,'shape':[1],'data_offsets':[0,1]}}", "1", "tensor a needs"),
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
    ROW("tsv", "sentence\tlabel\na\t1\nb\t1\t1\n", "line 3: not"),
    ROW("tsv", "a\t1\n\nb\t1\n", "line 2: not"),
    ROW("tsv", "a\t1\nsentence\tlabel\n", "line 2: not"),
    ROW("tsv", "a\t1.0\n", "label"),
    ROW("tsv", "a\t4294967297\n", "label"),
    ROW("tsv", "a\t0\n \r \t1\n", "line 2: the sentence is empty"),
    // JSON lines
    ROW("jsonl", "{'text':'ab'}\n{'text' 'b'}", "f.jsonl, line 2: no JSON: byte 8: expected ^:^"),
    ROW("jsonl", "17", "line 1: no object, {...}"),
    ROW("jsonl", "{'prompt':'a'}", "line 1: it must have 'prompt' and 'completion', or"),
    ROW("jsonl", "{'prompt':'p','choices':['a','b','a'],'answer':1}", "'choices' are 'a'"),
    ROW("jsonl", "[\n{'text':'ab'},\n{'text':''}]", "entry 2 of the array: 'text' is empty"),
    ROW("jsonl", "[{'text':'ab'},['text']]", "f.jsonl, entry 2 of the array: no object, {...}"),
    ROW("jsonl", "[{'text':'ab'}]\n{'text':'ab'}", "something follows the end of the value"),
    ROW("jsonl", "[]", "f.jsonl: no examples"),
    ROW("jsonl", "{'instruction':'a','input':'','output':'b'}", "the tokenizer has none of"),
    ROW("jsonl", "{'prompt':'p','completion':'a','system':'b'}", "'system', which is not"),
    ROW("jsonl", "{'text':7}", "'text' is no string"),
    ROW("jsonl", "{'text':'a'}", "one token, with nothing before it"),
    ROW("jsonl", "{'prompt':'p','choices':[],'answer':0}", "is no list of at least two"),
    ROW("jsonl", "{'prompt':'p','choices':['a',''],'answer':0}", "one of the 'choices' is empty"),
    ROW("jsonl", "{'prompt':'p','choices':['a','b'],'answer':2}", "is not the number of a choice"),
    // token files: the header, without its zeros, and the tokens
    ROW("tokens", HEAD16 "0123456789012345678", "x.bin: truncated"),
    ROW("tokens", "\x88\xd8\x34\1\1\0\0\0\0\0\0\0" "01", "0 tokens"),
    ROW("tokens", "\xa1\xd9\x34\1\1\0\0\0\5\0\0\0" "01234567890123456789", "version than 7"),
    ROW("data.bin", HEAD16, "header"),
    ROW("data.bin", "", "data.bin is empty"),
    ROW("data.bin", "this was raw", "not a token file"),  // no header, as nanoGPT writes it
    ROW("data.bin", "GGUF\3 and so on", "not a token file (it must start with 2024"),
    // what is no text
    ROW("data", "BZh91AY&SY\xd1", "a is compressed"),
    ROW("data", "ARROW1\0\0", "Arrow"),
    // rates
    ROW("rates", "", "names no rate"),
    ROW("rates", "h2d 1\n#\nh2d 1\n", "line 3: h2d: no rate of this name"),
    ROW("rates", "h2d -1\n", "line 1: h2d: no rate of this name"),
    ROW("rates", "h2d nan", "not a number"),
    ROW("rates", "h2d 5GB", "not a number"),
    // command lines
    CPU("--steps 0", "--steps 0 needs"),
    CPU("--data d --scores s --steps 0 --prompt x", "--scores is of an evaluation"),
    CPU("--data --steps 5", "--data needs a value; write --NAME=VALUE"),
    CPU("--data _", "--data needs a value that is not empty"),
    CPU("--data d --learning-rate 1", "did you mean --lr?"),
    CPU("--data d --lora 1", "unknown option --lora; see --help"),
    CPU("--data d --lr 1 -- --lr 2 --lr 3", "--lr is given twice, with 2 and 3: leave"),
    CPU("--model m --prompt x --out o", "--data is missing"),
    CPU("--data d --resume=1", "--resume takes no value"),
    CPU("--data d --steps 1.5", "--steps: '1.5' is not a whole number"),
    CPU("--data d --gpu-memory -1G", "--gpu-memory -1G: must be 0 or more"),
    CPU("--data d --top-p 1.1", "--top-p 1.1: must be 1e-09 to 1"),
    CPU("--data d --batch 0", "--batch 0: must be 1 to 1048576"),
    CPU("--data d --eps 0", "--eps 0: must be"),
    CPU("--data d --steps 10 --warmup 11", "--warmup 11 is longer than --steps 10"),
    CPU("--data d --batch 1048576 --seq 1048576", "more than any machine"),
    CPU("--data d --dump f --resume", "leave out --resume"),
    CPU("--data d --offload none --zen-window 2", "--zen-window needs --offload zenflow"),
    CPU("--data d --offload zenflow --zen-window 4.5", "a window has whole steps"),
    CPU("--data d --optimizer mezo --offload zenflow", "--offload places the state of AdamW"),
    CPU("--data d --optimizer mezo --beta1 0.8", "--beta1 needs --optimizer adamw"),
    CPU("--data d --optimizer mezo --zo-noise normal", "one of gaussian|rademacher"),
    CPU("--data d --optimizer mezo --dump f", "--dump shows the gradient of plain"),
    GPU("--data d --gpu-memory 24", "24 is less than a megabyte: did you mean gigabytes"),
    GPU("--data d --resident 0.5", "--resident needs --offload twinflow, interleave or zenflow"),
    GPU("--data d --offload zenflow --slots 2", "needs another --offload"),
    GPU("--data d --offload zenflow --stride 2", "needs --offload interleave"),
    GPU("--data d --offload zenflow --zen-topk 1 --zen-window auto", "leaves only one of them"),
    GPU("--data d --offload interleave --stride 2 --share 0.5", "leave one out"),
    GPU("--data d --resident-blocks 1", "--resident-blocks needs --optimizer mezo"),
    // the options in a checkpoint
    ROW("saved", "--batch ", "not a whole number"),
    ROW("saved", "--data d\n--min-lr 1\n", "--min-lr 1 is above"),
    // JSON
    JSON(""), JSON("]"), JSON("[1,"), JSON("[1 2]"), JSON("{'a':1,}"), JSON("{,}"), JSON("-"),
    JSON("0x10"), JSON("1e999"), JSON("'"), JSON("'\\"), JSON("'\\x'"), JSON("'\\u12g4'"),
    JSON("'\t'"), JSON("^a^"), JSON("'\\ud800'"), JSON("'\\ud800\\u0041'"), JSON("'\\udc00'"),
    JSON("'\\ud800\\u'"), JSON("'\x80'"), JSON("'\xc3'"), JSON("'\xc0\x80'"),
    JSON("'\xe0\x9f\xbf'"), JSON("'\xed\xa0\x80'"), JSON("'\xf0\x8f\xbf\xbf'"),
    JSON("'\xf4\x90\x80\x80'"), JSON("'\xfc\x80\x80\x80'"), JSON("'\xff'"),
    JSON("[\xef\xbb\xbf]"), JSON("\xef\xbb\xbf\xef\xbb\xbf[]"), JSON("\f1"),
    ROW("json", "{'a':1,'b':2,'\\u0061':1}", "'a' twice"),
    ROW("json", "{'':1,'':1}", "'' twice"),
    // tokenizer.json
    IN_LLAMA3("'version':'1.0'", "'version':'2.0'", "version other than 1.0: not supported"),
    IN_LLAMA3(NONE, "'normalizer':{'type':'NFKC'}", "tokenizer.json: normalizer NFKC: not"),
    IN_LLAMA3(NONE, "'normalizer':{'type':'Sequence'}", "normalizer Sequence: not"),
    IN_LLAMA3(NONE, "'normalizer':7", "normalizer without a type: not"),
    IN_LLAMA3("{1,3}", "{1,4}", "pre_tokenizer Split with an expression other than GPT-2^s"),
    IN_LLAMA3("'Regex'", "'String'", "pre_tokenizer Split with an expression other than"),
    IN_SMOLLM2("'use_regex':true}]", "'use_regex':false}]", "in this combination"),
    IN_LLAMA2(BOTH, NONE, "in this combination"),
    IN_LLAMA2("'pattern':{'String':' '}", "'pattern':{'Regex':' '}", "Replace with String other"),
    IN_LLAMA2("'start':1,'stop'", "'start':2,'stop'", "Strip with start other than 1"),
    IN_LLAMA2("'TemplateProcessing'", "'RobertaProcessing'", "post_processor RobertaProcessing"),
    IN_LLAMA2("'single':[", "'single':[{'SpecialToken':{'id':'<s>','type_id':0}},",
              "post_processor with more than one token on each side"),
    IN_LLAMA2("'ids':[1]", "'ids':[1,2]", "more than one token"),
    IN_LLAMA2("'ids':[1]", "'ids':[2005]", "more than one token"),
    IN_LLAMA2("'single':[", "'single':[],'other':[", "post_processor without a text"),
    IN_LLAMA3("'type':'BPE'", "'type':'Unigram'", "model of a type other than BPE"),
    IN_LLAMA3("'dropout':null", "'dropout':0.1", "model with dropout: not"),
    IN_LLAMA3("'merges':[[", "'merges':{},'other':[[", "model without vocab, merges"),
    IN_LLAMA3("'vocab':{", "'vocab':{},'other':{", "model without vocab, merges"),
    IN_LLAMA3("['h','e']", "['h','e','e']", "tokenizer.json, merge 8: not two tokens"),
    IN_LLAMA3("['h','e']", "['e','!']", "merge 8: gives a token that is not"),
    IN_SMOLLM2("'é':", "'é~':", "model with bytes of ordinary text that have no token"),
    IN_SMOLLM2("'unk_token':null", "'unk_token':'!'", "model with bytes that have no token"),
    IN_LLAMA2("'byte_fallback':true", "'byte_fallback':false", "model without byte_fallback"),
    IN_LLAMA2("'ignore_merges':false", "'ignore_merges':true", "U+2581, or with ignore_merges"),
    IN_LLAMA2("'<0xFF>':", "'<0xFf>':", "model without byte_fallback, <0x00> to <0xFF>"),
    IN_LLAMA2("'content':'<|left|>'", "'content':'<|right|>'", "'<|right|>' is there twice"),
    IN_LLAMA2("'content':'<|left|>'", "'content':''", "added_tokens without content, id"),
    IN_LLAMA2("'content':'<|left|>','single_word':false", "'content':'<|left|>','single_word':true",
              "added_tokens with single_word"),
    // vocab.json and merges.txt
    VOCAB("", "", "test/merges.txt: empty"),
    VOCAB(", 'abc': 1", "#version\nab c\n", "merge 2: merges a token that is not"),
    VOCAB(", 'ab': 1", "a b\na b\n", "merge 2: occurs twice"),
    VOCAB(", 'ab': 1", "ab \n", "not two tokens"),
    VOCAB(", 'ab': 1", "a b c\n", "not two tokens"),
    VOCAB(", 'ab': 5", "a b\n", "has the id of another"),
    VOCAB(", 'ab': 16777216", "a b\n", "below 2"),
    VOCAB(", '': 1", "#version\n", "is empty"),
    // the files in the folder of a tokenizer: names and texts
    ROW("folder", "vocab.json\0{}", "/merges.txt"),
    BESIDE("config.json\0{'model_type':'llama'}", "merges.txt of llama, and"),
    BESIDE(CONFIG_GPT2_CLASS ",'add_prefix_space':true}", "with add_prefix_space other"),
    BESIDE(CONFIG_GPT2_CLASS ",'split_special_tokens':true}", "split_special_tokens true"),
    ROW("beside llama3", "tokenizer_config.json\0{'add_bos_token':false}", "with add_bos_token"),
    BESIDE(CONFIG_ADDED("270", "<|b|>"), "'<|b|>' has the id 270, and Hugging Face gives it 261"),
    BESIDE("tokenizer_config.json\0{'added_tokens_decoder':[]}", "added_tokens other than a list"),
    BESIDE(CONFIG_ADDED("2x", "</s>"), "tokenizer_config.json: added_tokens without"),
    ROW("beside llama3", CONFIG_ADDED("2009", "<|x|>"), "which is that of '<|eot_id|>'"),
    ROW("beside llama3", CONFIG_ADDED("2009", "<|eot_id|>"), "'<|eot_id|>' with normalized false"),
    ROW("beside llama3", "added_tokens.json\0{'<|eot_id|>':2009}", "without added_tokens_decoder"),
    ROW("beside llama3", "special_tokens_map.json\0{", "/special_tokens_map.json"),
    };
    *count = sizeof rows / sizeof rows[0];
    return rows;
}
#endif
