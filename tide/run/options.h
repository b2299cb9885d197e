// options.h: the command line of every trainer.
//
// One table says everything about an option: its name, its field in Options, type, default, range,
// which builds have it, and what --resume does with it. Parsing, --help, the options saved in a
// checkpoint and their merging on --resume all iterate over that table. A mistake ends the program
// with one line.
//
//     options_parse()     the command line; option_given(): was an option on it?
//     options_write()     what a checkpoint keeps of them
//     options_resume()    merges what a checkpoint has kept
#ifndef TIDE_OPTIONS_H
#define TIDE_OPTIONS_H
#include "../base/util.h"
#include "../cpu/cpu.h"
#include "../base/model.h"

// Values of the choice options, in the order in which the table lists their names; those that say
// where something is are in model.h.
enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT };
enum { SAVE_FP32, SAVE_BF16 };
enum { OPTIMIZER_ADAMW, OPTIMIZER_MEZO };
enum { PRECISION_BF16, PRECISION_FP32, PRECISION_FP16 };
enum { OVERLAP_ON, OVERLAP_OFF };
enum { WIRE_BF16, WIRE_FP32 };
enum { MOMENTS_FP32, MOMENTS_BF16 };
enum { PACK_AUTO, PACK_ON, PACK_OFF };

// What --calibrate runs unless told.
#ifdef __CUDA_EMU__  // slow, and its time means nothing
#define CALIBRATED_MODEL "nano"
enum { CALIBRATED_SEQ = 64, EMULATED = 1 };
#else
#define CALIBRATED_MODEL "7b"
enum { CALIBRATED_SEQ = 2048, EMULATED = 0 };
#endif

#define AUTO_COUNT SIZE_MAX     // "auto", for a count whose range begins at 0
#define AUTO_REAL (-1.0)        // "auto", for a real number whose range begins at 0

enum { O_TITLE, O_TEXT, O_COUNT, O_BYTES, O_REAL, O_CHOICE, O_FLAG };

enum {
    O_FIXED = 1,  // defines the run: saved, and --resume refuses another value
    O_OWN = 2,    // belongs to one invocation: neither saved nor restored
    O_GPU = 4,    // only in the GPU builds
    O_SPLIT = 8,  // only for the interleaved update
    O_FO = 16, O_ZO = 32,  // only for first-order, only for zeroth-order training
    O_ZEN = 64,   // only for importance-aware updates
    O_AUTO = 128, // a number that may be "auto", though that is not the default
    O_SHARE = 256, O_OTHER = 512,  // only where a share of the state is resident; not with zenflow
    O_PLAN = 1024,  // only with --plan
    O_READS = 2048,  // a file's name; several are not read
    O_EMPTY = 4096   // a text that may be empty
};                // neither fixed nor own: saved, and --resume takes the saved value unless given

#define BIG 9007199254740991.0  // 2^53 - 1: the largest count, exact in JSON and in a double

// The options: name, field of Options, default (NULL: none), values or range, flags, help.
#define OPTIONS(TITLE, TEXT, CHOICE, COUNT, BYTES, REAL, FLAG) \
    TITLE("Model") \
    TEXT("model", model, "nano", "NAME|PATH", O_FIXED, "a name from the list above, or weights") \
    COUNT("layers", layers, "auto", 1, 1000, O_FIXED, "auto: as in the model") \
    COUNT("heads", heads, "auto", 1, 65536, O_FIXED, "auto: as in the model") \
    COUNT("kv-heads", kv_heads, "auto", 1, 65536, O_FIXED, "heads of keys and values") \
    COUNT("channels", channels, "auto", 1, 65536, O_FIXED, "auto: as in the model") \
    COUNT("ffn", ffn, "auto", 1, 1 << 20, O_FIXED, "width of the MLP") \
    COUNT("context", context, "auto", 1, 1 << 24, O_FIXED, "auto: as in the model") \
    COUNT("vocab", vocab, "auto", 1, 1 << 24, O_FIXED, "auto: as in the model") \
    TITLE("Data") \
    TEXT("data", data, NULL, "PATH", O_READS, \
         "text, llm.c .bin tokens (or a glob), or JSON lines") \
    TEXT("val", val, NULL, "PATH", O_READS, \
         "validation data, or questions; else the last tenth of --data") \
    TEXT("tokenizer", tokenizer, NULL, "bytes|DIR", 0, \
         "DIR: a tokenizer.json, or a merges.txt; else the model's, or bytes") \
    CHOICE("chat-format", chat_format, "auto", "auto|chatml|llama3|mistral-v3|mistral|llama2", \
           O_FIXED, "of conversations; auto: by chat template, or special tokens") \
    COUNT("batch", batch, "8", 1, 1 << 20, 0, "sequences per micro-batch, on each GPU") \
    COUNT("seq", seq, "0", 0, 1 << 24, O_FIXED, "tokens per row; 0: as needed, at most 2048") \
    CHOICE("pack", pack, "auto", "auto|on|off", O_FIXED, \
           "several examples in a row; auto: on, but one-token --labels") \
    TEXT("labels", labels, NULL, "WORDS", O_FIXED, \
         "of labels 0, 1, .. of --data, a TSV: \" bad| good\"") \
    TEXT("template", template_text, " It was", "TEXT", O_FIXED | O_EMPTY, \
          "what stands between sentence and word") \
    COUNT("accum", accum, "1", 1, 1 << 20, 0, "micro-batches per step, on each GPU") \
    COUNT("seed", seed, "1337", 0, BIG, O_FIXED, \
          "of first weights, order of data, noise, samples") \
    TITLE("Training") \
    COUNT("steps", steps, "1000", 0, 1e12, 0, \
          "of the whole run; 0: only evaluate, sample or save") \
    REAL("epochs", epochs, NULL, 1e-6, 1e9, O_OWN, "instead of --steps: passes over --data") \
    REAL("lr", lr, "6e-4", 0, 1000, 0, "highest learning rate") \
    COUNT("warmup", warmup, "auto", 0, 1e12, 0, "steps from 0 up to --lr; auto: 1/20 of --steps") \
    CHOICE("schedule", schedule, "cosine", "cosine|linear|constant", 0, "how the rate falls then") \
    REAL("min-lr", min_lr, "auto", 0, 1000, 0, "rate at the last step; auto: 1/10 of --lr") \
    CHOICE("optimizer", optimizer, "adamw", "adamw|mezo", O_FIXED, \
           "mezo: forward passes only, see below") \
    REAL("weight-decay", weight_decay, "0.1", 0, 1000, 0, "of matrices") \
    REAL("beta1", beta1, "0.9", 0, 1 - 1e-9, O_FIXED | O_FO, "decay of the first moment") \
    REAL("beta2", beta2, "0.95", 0, 1 - 1e-9, O_FIXED | O_FO, "decay of the second moment") \
    REAL("eps", eps, "1e-8", 1e-30, 1, O_FIXED | O_FO, "added to the root of the second moment") \
    CHOICE("moments", moments, "fp32", "fp32|bf16", O_FO, \
           "how both are stored; bf16: rounded at random") \
    REAL("clip", clip, "1", 0, 1e30, O_FO, "largest gradient norm; 0: no clipping") \
    TITLE("Evaluation and samples") \
    COUNT("log-every", log_every, "auto", 1, BIG, 0, \
          "steps per printed line (log.jsonl has all); auto: 1") \
    COUNT("eval-every", eval_every, "100", 0, BIG, 0, "steps; 0: never") \
    COUNT("eval-batches", eval_batches, "auto", 1, BIG, O_AUTO, \
          "at most; auto: 20 of running text, all examples") \
    TEXT("scores", scores, NULL, "FILE", O_OWN, \
         "with --steps 0: each row's loss, JSON lines") \
    COUNT("sample-every", sample_every, "0", 0, BIG, 0, "steps; 0: never") \
    COUNT("sample-tokens", sample_tokens, "256", 1, 1e9, 0, "length of a sample") \
    TEXT("prompt", prompt, NULL, "TEXT", O_EMPTY, "what a sample continues") \
    FLAG("chat", chat, O_OWN, "with --steps 0: a conversation; --prompt is its system message") \
    REAL("temperature", temperature, "0.8", 0, 1000, 0, "0: always the likeliest token") \
    COUNT("top-k", top_k, "0", 0, 1 << 24, 0, "sample from the N likeliest tokens; 0: from all") \
    REAL("top-p", top_p, "1", 1e-9, 1, 0, "of these, from the likeliest with this share; 1: all") \
    TITLE("Files and the machine") \
    TEXT("out", out, "out/default", "DIR", O_OWN, "log, weights, checkpoints: a new folder") \
    FLAG("resume", resume, O_OWN, \
         "continue the newest checkpoint in --out, as it was; auto: if any") \
    COUNT("save-every", save_every, "auto", 0, BIG, 0, \
          "steps; auto: 10 minutes, or 5 % of the time; 0: at the end") \
    COUNT("keep", keep, "2", 1, BIG, 0, "checkpoints; older ones are deleted") \
    FLAG("keep-best", keep_best, 0, "and that of the lowest validation loss; weights: OUT/best") \
    FLAG("no-save", no_save, O_OWN, "leave only the log, and without --out nothing") \
    CHOICE("save-dtype", save_dtype, "fp32", "fp32|bf16", 0, "of model.safetensors") \
    COUNT("threads", threads, "0", 0, 4096, O_OWN, "0: one per core; of ranks, each its own") \
    TEXT("dump", dump, NULL, "FILE", O_OWN, \
         "loss, logits, gradients of the first batch; exit") \
    FLAG("help", help, O_OWN, "this list") \
    FLAG("version", version, O_OWN, "what this program is; exit") \
    TITLE("GPU builds (train_gpt2cu, train_gpt2emu)") \
    CHOICE("precision", precision, "bf16", "bf16|fp32|fp16", O_GPU, \
           "of what is stored; sums are fp32; fp16: loss scaling") \
    CHOICE("recompute", recompute, "auto", "auto|none|light|block", O_GPU | O_FO, \
           "activations in backward; light: layer norms and GELU") \
    TITLE("GPU builds: where the state of AdamW is, and who updates it") \
    CHOICE("offload", offload, "auto", "auto|none|zero|twinflow|interleave|zenflow", 0, \
           "of AdamW's state; auto: fastest as predicted; CPU: zenflow") \
    CHOICE("weights", weights, "auto", "gpu|host|auto", O_GPU | O_FO, \
           "host: layers' come when they are used; auto: the faster") \
    REAL("resident", resident, "auto", 0, 1, O_GPU | O_FO | O_SHARE, \
         "share of it on the GPU; auto: what fits, or 0") \
    COUNT("stride", stride, "auto", 1, BIG, O_GPU | O_FO | O_SPLIT, \
          "interleave: the GPU updates every Nth sub-group") \
    REAL("share", share, "auto", 0, 1, O_GPU | O_FO | O_SPLIT, \
         "or this share of the rest; auto: the best") \
    COUNT("subgroup", subgroup, "auto", 4096, BIG, O_GPU | O_FO | O_OTHER, \
          "parameters; auto: layers, at most 100 million") \
    COUNT("slots", slots, "auto", 1, 1000, O_GPU | O_OTHER, \
          "layers or sub-groups that visit at once; auto: what fits") \
    CHOICE("grad-wire", grad_wire, "bf16", "bf16|fp32", O_GPU | O_FO | O_OTHER, \
           "of gradients on the link") \
    FLAG("no-overlap", no_overlap, O_GPU, "compute, link and CPU take turns") \
    TITLE("GPU builds: several GPUs, limits of memory, plans, measurements") \
    COUNT("zero", zero, "auto", 1, 3, O_GPU | O_FO, \
          "stage; auto: 2 on several GPUs, or 3 if it must be") \
    COUNT("world", world, "1", 1, 1 << 16, O_OWN | O_GPU | O_PLAN, \
          "with --plan: for so many GPUs") \
    BYTES("gpu-memory", gpu_memory, "0", 0, 1e15, O_OWN | O_GPU, \
          "use at most this: 23.5G, 24GB, 24GiB, of 1024^3 bytes; 0: all") \
    BYTES("host-memory", host_memory, "0", 0, 1e15, O_OWN | O_GPU, \
          "use at most this, even if less is free now; 0: all") \
    FLAG("plan", plan, O_OWN | O_GPU, "print memory and predicted time; exit") \
    TEXT("tune", tune, NULL, "FILE", O_GPU, \
         "the products' fastest algorithms; measured if it lacks them") \
    TEXT("rates", rates, NULL, "FILE", O_OWN | O_GPU, \
         "what a machine can do; else it is measured when needed") \
    FLAG("calibrate", calibrate, O_OWN | O_GPU, \
         "measure them, of --model (else 7b), into --rates; exit") \
    TEXT("trace", trace, NULL, "FILE", O_OWN | O_GPU, \
         "a timeline of all steps for Perfetto") \
    TITLE("Importance-aware updates (--offload zenflow)") \
    REAL("zen-topk", zen_topk, "0.1", 0, 1, O_FIXED | O_FO | O_ZEN, \
         "share of columns that are updated at every step") \
    REAL("zen-window", zen_window, "4", 0.01, 1 << 20, O_FIXED | O_FO | O_ZEN | O_AUTO, \
         "steps per update of the rest; 0.99 or auto: when 99 % need it") \
    COUNT("zen-reselect", zen_reselect, "16", 0, BIG, O_FIXED | O_FO | O_ZEN, \
          "windows per selection; 0: only one") \
    COUNT("zen-warmup", zen_warmup, "auto", 1, BIG, O_FIXED | O_FO | O_ZEN | O_AUTO, \
          "plain steps before the first selection; auto: --warmup") \
    CHOICE("zen-overlap", zen_overlap, "on", "on|off", O_FIXED | O_FO | O_ZEN, \
           "updates of the rest show a window late; off: at once") \
    TITLE("Fine-tuning without gradients (--optimizer mezo: --lr 1e-6, constant, no decay)") \
    REAL("zo-eps", zo_eps, "1e-3", 1e-6, 1, O_FIXED | O_ZO, "size of the perturbation") \
    COUNT("zo-queries", zo_queries, "1", 1, 256, O_FIXED | O_ZO, \
          "directions per step, each of two forward passes") \
    CHOICE("zo-noise", zo_noise, "gaussian", "gaussian|rademacher", O_FIXED | O_ZO, \
           "directions of normal numbers, or of signs") \
    COUNT("resident-blocks", resident_blocks, "auto", 0, 1000, O_GPU | O_ZO, \
          "layers that stay on the GPU; the rest visit it, in --slots") \
    FLAG("zo-no-slots", zo_no_slots, O_GPU | O_ZO, "allocate memory at each visit") \
    FLAG("zo-no-fused-update", zo_no_fused_update, O_GPU | O_ZO, "a visit more, for the update")

#define FIELD_NONE(...)
#define FIELD_TEXT(name, field, ...) const char *field;
#define FIELD_CHOICE(name, field, ...) int field;
#define FIELD_COUNT(name, field, ...) size_t field;
#define FIELD_REAL(name, field, ...) double field;
#define FIELD_FLAG(name, field, ...) bool field;
#define ADD_1(...) + 1
enum { OPTION_COUNT = OPTIONS(ADD_1, ADD_1, ADD_1, ADD_1, ADD_1, ADD_1, ADD_1) };

// "auto" is stored as AUTO_COUNT or AUTO_REAL, or as 0 where the range begins behind that. A text
// that was not given is NULL. Texts point into argv, the table, or `saved`.
typedef struct {
    OPTIONS(FIELD_NONE, FIELD_TEXT, FIELD_CHOICE, FIELD_COUNT, FIELD_COUNT, FIELD_REAL, FIELD_FLAG)
    bool resume_auto;          // --resume auto: if there is a checkpoint
    bool gpu_build;
    bool given[OPTION_COUNT];  // by row of the table: it was on the command line
    char *saved;               // owns the texts that came from a checkpoint
} Options;

typedef struct {
    int type;
    const char *name;     // without the two dashes; of a title row: the title
    size_t offset;        // of the field in Options
    const char *initial;  // default, as it would be written on the command line; NULL: none
    const char *values;   // choices, "a|b|c"; of a text: what it is
    double min, max;      // of numbers, both included
    int flags;
    const char *help;
} Option;

#define ROW_TITLE(text) {O_TITLE, text, 0, NULL, NULL, 0, 0, 0, ""},
#define ROW_TEXT(name, field, initial, what, flags, help) \
    {O_TEXT, name, offsetof(Options, field), initial, what, 0, 0, flags, help},
#define ROW_CHOICE(name, field, initial, values, flags, help) \
    {O_CHOICE, name, offsetof(Options, field), initial, values, 0, 0, flags, help},
#define ROW_NUMBER(type, name, field, initial, min, max, flags, help) \
    {type, name, offsetof(Options, field), initial, NULL, min, max, flags, help},
#define ROW_COUNT(...) ROW_NUMBER(O_COUNT, __VA_ARGS__)
#define ROW_BYTES(...) ROW_NUMBER(O_BYTES, __VA_ARGS__)
#define ROW_REAL(...) ROW_NUMBER(O_REAL, __VA_ARGS__)
#define ROW_FLAG(name, field, flags, help) \
    {O_FLAG, name, offsetof(Options, field), NULL, NULL, 0, 0, flags, help},
static const Option option_table[] = {OPTIONS(ROW_TITLE, ROW_TEXT, ROW_CHOICE, ROW_COUNT, ROW_BYTES,
                                              ROW_REAL, ROW_FLAG)};

// Row of the option with this name of n bytes, or -1.
static int option_find(const char *name, size_t n) {
    for (int i = 0; i < OPTION_COUNT; i++)
        if (option_table[i].type != O_TITLE && strlen(option_table[i].name) == n
            && memcmp(option_table[i].name, name, n) == 0) return i;
    return -1;
}

// Was --name on the command line?
static bool option_given(const Options *o, const char *name) {
    int row = option_find(name, strlen(name));
    return row >= 0 && o->given[row];
}

// ---------------------------------------------------------------------------------------------
// Values

// A number, of any size; those that are not real are digits only, with a sign if they are below 0;
// of sizes, also times a power of 1024: 23.5G; K, KB or KiB, M, G, T, or the same in small letters.
static bool parse_number(const char *text, int type, double *out) {
    static const char units[] = "KkMmGgTt", digits[] = "+-eE.0123456789";
    const size_t sign = *text == '-';
    const size_t other = type == O_REAL ? 0 : type == O_BYTES ? 4 : 5;  // of `digits`, that are not
    const size_t n = sign + strspn(text + sign, digits + other);
    const char *unit = type == O_BYTES && text[n] != '\0' ? strchr(units, text[n]) : NULL;
    char *end;
    *out = strtod(text, &end);
    if (n == sign || end != text + n) return false;
    if (unit == NULL) return *end == '\0';
    *out = ldexp(*out, 10 * (int)((unit - units) / 2 + 1));
    return end[1] == '\0' || !strcasecmp(end + 1, "B") || !strcasecmp(end + 1, "iB");
}

// Index of `text` in "a|b|c", or -1.
static int parse_choice(const char *values, const char *text) {
    size_t n = strlen(text), length;
    for (int i = 0; *values != '\0'; i++, values += length + (values[length] == '|')) {
        length = strcspn(values, "|");
        if (length == n && memcmp(values, text, n) == 0) return i;
    }
    return -1;
}

static bool option_has_auto(const Option *opt) {
    return (opt->flags & O_AUTO) || (opt->initial != NULL && strcmp(opt->initial, "auto") == 0);
}

// Stores a value, given as text, in its field.
static void option_set(Options *o, const Option *opt, const char *text) {
    void *field = (char *)o + opt->offset;
    const bool real = opt->type == O_REAL, size = opt->type == O_BYTES;
    double v = 0;
    if (text == NULL ? opt->type != O_TEXT || opt->initial != NULL
                     : opt->type == O_TEXT && *text == '\0' && !(opt->flags & O_EMPTY))
        die("--%s needs a value that is not empty", opt->name);
    if (opt->type == O_FLAG) {
        *(bool *)field = strcmp(text, "true") == 0;
    } else if (opt->type == O_TEXT) {
        *(const char **)field = text;
    } else if (opt->type == O_CHOICE) {
        *(int *)field = parse_choice(opt->values, text);
        if (*(int *)field < 0) die("--%s %.60s: must be one of %s", opt->name, text, opt->values);
    } else if (option_has_auto(opt) && strcmp(text, "auto") == 0) {
        if (real) *(double *)field = AUTO_REAL;
        else *(size_t *)field = opt->min > 0 ? 0 : AUTO_COUNT;
    } else {
        if (!parse_number(text, opt->type, &v))
            die("--%s: \"%.60s\" is not a %s", opt->name, text,
                real ? "number" : size ? "size, like 512M or 24G" : "whole number, in digits");
        if (size && v > 0 && v < 1 << 20)
            die("--%s %.60s is less than a megabyte: did you mean gigabytes, like 24G?", opt->name,
                text);
        if (v < 0 && !real) die("--%s %.60s: must be %.10g or more", opt->name, text, opt->min);
        if (v < opt->min || v > opt->max)
            die("--%s %.60s: must be %.10g to %.16g", opt->name, text, opt->min, opt->max);
        if (real) *(double *)field = v;
        else *(size_t *)field = (size_t)v;
    }
}

// Writes a field as option_set() reads it, behind a blank, with \n for a newline and two
// backslashes for one; nothing for a text that is not there.
static void option_write(FILE *f, const Options *o, const Option *opt) {
    const void *field = (const char *)o + opt->offset;
    char number[32];
    const char *text = number;
    size_t n = SIZE_MAX;
    if (opt->type == O_FLAG) {
        text = *(const bool *)field ? "true" : "false";
    } else if (opt->type == O_TEXT) {
        text = *(const char *const *)field;
    } else if (opt->type == O_CHOICE) {
        text = opt->values;
        for (int i = *(const int *)field; i > 0; i--) text = strchr(text, '|') + 1;
        n = strcspn(text, "|");
    } else if (opt->type == O_REAL) {
        const double v = *(const double *)field;
        for (int digits = 6; digits <= 17; digits++) {  // the shortest that is exact
            snprintf(number, sizeof number, "%.*g", digits, v);
            if (strtod(number, NULL) == v) break;
        }
        if (v < opt->min) text = "auto";
    } else {
        const size_t v = *(const size_t *)field;
        snprintf(number, sizeof number, "%zu", v);
        if (v == (opt->min > 0 ? 0 : AUTO_COUNT)) text = "auto";
    }
    if (text == NULL) return;
    fputc(' ', f);
    for (; n > 0 && *text != '\0'; n--, text++) {
        if (*text == '\n' || *text == '\\') fputc('\\', f);
        fputc(*text == '\n' ? 'n' : *text, f);
    }
}

// ---------------------------------------------------------------------------------------------
// The command line

// Changes to turn the n bytes at a into b (Levenshtein 1966), if there are at most `most`; else
// more than that. _ is -.
static size_t edit_distance(const char *a, size_t n, const char *b, size_t most) {
    for (; n > 0 && *b != '\0' && (*a == '_' ? '-' : *a) == *b; n--, a++) b++;
    if (n == 0 || *b == '\0' || most == 0) return n > strlen(b) ? n : strlen(b);
    const size_t changed = edit_distance(a + 1, n - 1, b + 1, most - 1);
    const size_t less = edit_distance(a + 1, n - 1, b, most - 1);
    const size_t more = edit_distance(a, n, b + 1, most - 1);
    return 1 + min_size(changed, min_size(less, more));
}

// `arg` as on the command line, with one or two dashes and perhaps "=value".
static void unknown_option(const char *arg) {
    const char *name = arg + strspn(arg, "-"), *nearest = NULL;
    size_t n = strcspn(name, "="), best = 5;  // else: none
    char words[64], key[64];
    snprintf(words, sizeof words, " %.*s", n < sizeof words ? (int)n : 0, name);
    for (char *c = words; *c != '\0'; c++) if (*c == '-' || *c == '_') *c = ' ';
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char *known = option_table[i].name;
        if (option_table[i].type == O_TITLE) continue;
        const size_t first = strcspn(name, "-_=");  // of --batch-size, or all of --temp
        size_t d = edit_distance(name, n, known, 4);
        if (d > 1 && 2 * d >= n) d = best;  // half of it differs: --lora is not --lr
        snprintf(key, sizeof key, " %s", known);  // of --max-seq-length, --output-dir
        if (d > 2 && known[2] != '\0' && strstr(words, key) != NULL) d = 2;
        if (d > 2 && first >= 3 && strncmp(known, name, first) == 0) d = 2;
        if (d > 2 && first < n && strstr(option_table[i].help, words + 1) != NULL)
            d = 2;  // --learning-rate: the help of --lr has its words
        if (d < best) { best = d; nearest = known; }
    }
    int shown = name + n - arg > 60 ? 60 : (int)(name + n - arg);
    if (nearest == NULL) die("unknown option %.*s; see --help", shown, arg);
    die("unknown option %.*s; did you mean --%s?", shown, arg, nearest);
}

// Refuses combinations that cannot work.
static void options_check(const Options *o) {
    const bool mezo = o->optimizer == OPTIMIZER_MEZO, zenflow = o->offload == OFFLOAD_ZENFLOW;
    const bool interleave = o->offload == OFFLOAD_INTERLEAVE;
    const struct { int flag; bool fits; const char *needed; } groups[] = {
        {O_FO, !mezo, "--optimizer adamw"}, {O_ZO, mezo, "--optimizer mezo"},
        {O_ZEN, zenflow, "--offload zenflow"}, {O_SPLIT, interleave, "--offload interleave"},
        {O_SHARE, interleave || zenflow || o->offload == OFFLOAD_TWINFLOW,
         "--offload twinflow, interleave or zenflow"},
        {O_OTHER, !zenflow, "another --offload than zenflow"},
        {O_PLAN, o->plan, "--plan; a launcher starts a process for each GPU of a run"}};
    for (size_t k = 0; k < sizeof groups / sizeof groups[0]; k++)
        for (int i = 0; i < OPTION_COUNT; i++) {
            const Option *opt = &option_table[i];
            if (o->given[i] && (opt->flags & groups[k].flag) && !groups[k].fits)
                die("--%s needs %s", opt->name, groups[k].needed);
        }
    if (o->min_lr > o->lr) die("--min-lr %g is above --lr %g", o->min_lr, o->lr);
    if (o->epochs > 0 && option_given(o, "steps"))
        die("--epochs and --steps say the same in two ways: leave one out");
    if (o->steps > 0 && o->epochs == 0 && o->warmup != AUTO_COUNT && o->warmup > o->steps)
        die("--warmup %zu is longer than --steps %zu", o->warmup, o->steps);
    if ((double)o->batch * (double)(o->seq > 0 ? o->seq : 1) * (double)o->accum > 1e12)
        die("--batch %zu times --seq %zu times --accum %zu is too much for one", o->batch, o->seq,
            o->accum);
    if (!o->gpu_build && option_given(o, "offload") && o->offload > OFFLOAD_NONE && !zenflow)
        die("the CPU trainer has nothing to offload; it knows --offload none and zenflow");
    if (mezo && option_given(o, "offload") && o->offload != OFFLOAD_NONE)
        die("--offload places the state of AdamW; with mezo: --resident-blocks");
    if (o->weights == WEIGHTS_HOST && o->offload == OFFLOAD_NONE)
        die("--weights host needs state on the host, and --offload none leaves none there");
    if (o->weights == WEIGHTS_HOST && (o->zero == 1 || o->zero == 2))
        die("--weights host needs --zero 3: with %zu, each GPU holds all weights", o->zero);
    if ((mezo || zenflow || o->labels != NULL) && o->dump != NULL)
        die("--dump shows the gradient of plain training, without --optimizer, --offload and "
            "--labels");
    if (zenflow && o->zen_window < 1 && (o->zen_topk == 0 || o->zen_topk == 1))
        die("--zen-window auto needs columns and a rest; --zen-topk %g leaves only one of them",
            o->zen_topk);
    if (o->zen_window > 1 && o->zen_window != floor(o->zen_window))
        die("--zen-window %g: a window has whole steps, or ends by a share below 1",
            o->zen_window);
    if (option_given(o, "stride") && option_given(o, "share"))
        die("--stride and --share say the same in two ways: leave one out");
    if (o->labels != NULL && o->sample_every > 0)
        die("--sample-every needs running text, and --labels reads sentences");
    if (o->keep_best && (o->eval_every == 0 || (o->no_save && option_given(o, "keep-best"))))
        die("--keep-best keeps the checkpoint of an evaluation: leave out %s",
            o->eval_every == 0 ? "--eval-every 0" : "--no-save");
    if (o->scores != NULL && (o->steps > 0 || o->prompt != NULL || o->chat))
        die("--scores is of an evaluation: --steps 0, without --prompt and --chat");
    if (o->chat && (o->steps > 0 || o->epochs > 0 || o->dump != NULL))
        die("--chat is a conversation with a trained model: it needs --steps 0, and --model DIR");
    if (o->plan || o->calibrate) return;
    if (o->data == NULL && (o->steps > 0 || o->dump != NULL))
        die("--data is missing: name a text or .bin file: --data my.txt");
    if (o->data == NULL && o->val == NULL && o->prompt == NULL && !o->chat
        && !option_given(o, "out"))
        die("--steps 0 needs --data or --val to evaluate, --prompt or --chat to sample, or --out "
            "to save the model");
}

static void options_help(FILE *f, const char *program) {
    fprintf(f, "usage: %s --data FILE [options]\n\n"
               "  %s --data my.txt                  trains a small GPT on the bytes of a text\n"
               "  %s --resume --steps 5000          goes on with it\n"
               "  %s --model out/default --prompt \"Once \"  shows what it has learned\n\n"
               "[x]: the default. =: fixed by the checkpoint; all others may change on --resume.\n"
               "Behind --, an option replaces the same one in front of it.\n"
               "Models:", program, program, program, program);
    size_t column = 7;
    for (size_t i = 0; i < sizeof gpt2_presets / sizeof *gpt2_presets; i++) {
        const char *name = gpt2_presets[i].name;
        if (column + strlen(name) > 90) column = (size_t)fprintf(f, "\n       ") - 1;
        column += (size_t)fprintf(f, " %s,", name);
    }
    fprintf(f, "\n        dN (N layers, shaped like GPT-2), and weights in Hugging Face naming: a\n"
               "        directory or a .safetensors file\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *opt = &option_table[i];
        const char *value = opt->values != NULL ? opt->values : opt->type == O_REAL ? "F"
                          : opt->type == O_BYTES ? "SIZE" : "N";
        char left[100];
        if (opt->type == O_TITLE) { fprintf(f, "\n%s\n", opt->name); continue; }
        const bool or_auto = opt->values == NULL && option_has_auto(opt);
        if (opt->type == O_FLAG) snprintf(left, sizeof left, "--%s", opt->name);
        else snprintf(left, sizeof left, "--%s %s%s", opt->name, value, or_auto ? "|auto" : "");
        fprintf(f, "  %-30s", left);
        if (strlen(left) > 29) fprintf(f, "\n  %-30s", "");
        fprintf(f, "%c %s", opt->flags & O_FIXED ? '=' : ' ', opt->help);
        if (opt->initial != NULL) fprintf(f, "%s[%s]", opt->help[0] ? " " : "", opt->initial);
        fputc('\n', f);
    }
}

// Fills *o with the defaults and then from the command line. An option is given once; behind "--"
// it replaces an earlier one: scripts have theirs in front, and the user's behind.
// With --resume the combinations are checked later, by options_resume(). --help and --version print
// and exit with 0, a mistake ends with one line and exit code 2, before anything is allocated.
static void options_parse(Options *o, int argc, char **argv, bool gpu_build) {
    memset(o, 0, sizeof *o);
    o->gpu_build = gpu_build;
    const char *values[OPTION_COUNT] = {NULL};  // that were given since the last "--"
    for (const Option *opt = option_table; opt < option_table + OPTION_COUNT; opt++)
        if (opt->initial != NULL) option_set(o, opt, opt->initial);
    for (int i = 1; i < argc && !o->help && !o->version; i++) {
        const char *arg = strcmp(argv[i], "-h") == 0 ? "--help" : argv[i];
        if (strcmp(arg, "--") == 0) { memset(values, 0, sizeof values); continue; }
        if (arg[0] != '-')
            die("unexpected argument \"%.60s\": every value follows the name of an option, as in "
                "--data FILE", arg);
        const char *name = arg + 2, *value = arg[1] == '-' ? strchr(name, '=') : NULL;
        const int row = arg[1] == '-' ? option_find(name, strcspn(name, "=")) : -1;
        if (row < 0) unknown_option(arg);
        const Option *opt = &option_table[row];
        if (opt->type == O_FLAG) {
            const char *next = value != NULL ? value + 1 : argv[i + 1];
            const bool has_auto = opt->offset == offsetof(Options, resume) && next != NULL
                               && strcmp(next, "auto") == 0;
            if (value != NULL && !has_auto) die("--%s takes no value", opt->name);
            i += has_auto && value == NULL;
            o->resume_auto = o->resume_auto || has_auto;
            value = "true";
        } else if (value != NULL) {
            value++;
        } else {
            value = argv[++i];  // the list ends with NULL
            if (value == NULL || strncmp(value, "--", 2) == 0)
                die("--%s needs a value%s", opt->name,
                    value != NULL ? "; write --NAME=VALUE if it starts with --" : "");
        }
        option_set(o, opt, value);
        if (values[row] != NULL && strcmp(values[row], value) != 0)
            die("--%s is given twice, with %.60s and %.60s: %s", opt->name, values[row], value,
                opt->flags & O_READS ? "cat makes one file of several"
                : "leave one out; behind --, one replaces an earlier one");
        values[row] = value;
        if ((opt->flags & O_GPU) && !gpu_build)
            die("--%s is an option of the GPU builds; this is the CPU trainer", opt->name);
        o->given[row] = true;
    }
    if (o->help) options_help(stdout, argv[0]);
    else if (o->version) printf("tide.c %s (%s, %s)\n", TIDE_VERSION, gpu_build ? "GPU" : "CPU",
                                cpu_instructions());
    if (o->help || o->version) exit(fflush(stdout) == 0 ? 0 : 1);
    if (o->data == NULL && o->val == NULL && (o->prompt != NULL || o->chat)
        && option_given(o, "model") && !option_given(o, "steps") && !option_given(o, "out")
        && o->dump == NULL && !o->plan)
        o->steps = 0;  // to sample needs no more
    if (o->calibrate && !option_given(o, "model")) {
        o->model = CALIBRATED_MODEL;
        if (!option_given(o, "seq")) o->seq = CALIBRATED_SEQ;
        if (!option_given(o, "batch")) o->batch = 1;
    }
    if (o->optimizer == OPTIMIZER_MEZO) {  // what suits AdamW would end it
        if (!option_given(o, "lr")) o->lr = 1e-6;
        if (!option_given(o, "schedule")) o->schedule = SCHEDULE_CONSTANT;
        if (!option_given(o, "weight-decay")) o->weight_decay = 0;
        if (!option_given(o, "warmup")) o->warmup = 0;
        if (!option_given(o, "min-lr") && o->min_lr > o->lr) o->min_lr = AUTO_REAL;
    }
    if (o->dump != NULL && o->resume)
        die("--dump shows the first step of a run: leave out --resume, or load the weights with "
            "--model DIR");
    if (!o->resume) options_check(o);
}

// ---------------------------------------------------------------------------------------------
// Options in a checkpoint

static bool option_is_saved(const Options *o, const Option *opt) {
    return opt->type != O_TITLE && !(opt->flags & O_OWN) && (o->gpu_build || !(opt->flags & O_GPU));
}

// The options that describe the run, as lines "--name value" of less than n bytes in buf. A trainer
// first stores what it found for `seq` 0 and the like.
static void options_write(const Options *o, char *buf, size_t n) {
    FILE *f = fmemopen(buf, n, "w");
    if (f == NULL) fail("out of memory: options");
    for (const Option *opt = option_table; opt < option_table + OPTION_COUNT; opt++) {
        if (!option_is_saved(o, opt)) continue;
        fprintf(f, "--%s", opt->name);
        option_write(f, o, opt);
        fputc('\n', f);
    }
    const bool fits = (size_t)ftell(f) < n && fflush(f) == 0;
    if (fclose(f) != 0 || !fits) die("the options are too long: shorten --prompt or the paths");
}

// Returns whether option x has one value in a and b; x is a text, a choice or a number.
static bool option_same(const Options *a, const Options *b, const Option *opt) {
    const void *p = (const char *)a + opt->offset, *q = (const char *)b + opt->offset;
    if (opt->type != O_TEXT) return memcmp(p, q, opt->type == O_CHOICE ? sizeof(int) : 8) == 0;
    const char *s = *(const char *const *)p, *t = *(const char *const *)q;
    return s != NULL && t != NULL ? strcmp(s, t) == 0 : s == t;
}

// Merges the options of the checkpoint (lines of options_write) into those of a command line with
// --resume: what was not given is taken from the checkpoint; what was given is used, unless it
// contradicts an option that defines the run. Then checks the combinations. Lines that this build
// does not know are skipped: another build may have written them. Returns the checkpoint's options.
static Options options_resume(Options *o, const char *lines) {
    Options before = *o;
    const char *mode = text_line(lines, "--offload");  // in another, options of zenflow are idle
    const bool zenflow = mode != NULL && strncmp(mode, " zenflow\n", 9) == 0;
    char *end = o->saved = ALLOC(char, strlen(lines) + 1, "options");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *opt = &option_table[i];
        char name[64];
        snprintf(name, sizeof name, "--%s", opt->name);
        const char *v = option_is_saved(o, opt) ? text_line(lines, name) : NULL;
        if (v == NULL) continue;
        const char *text = *v == ' ' ? end : NULL;
        for (v += *v == ' '; *v != '\n' && *v != '\0'; v++) {
            const bool escape = *v == '\\' && (v[1] == 'n' || v[1] == '\\');
            v += escape;
            *end++ = escape && *v == 'n' ? '\n' : *v;
        }
        *end++ = '\0';
        option_set(&before, opt, text);
        if (!o->given[i]) option_set(o, opt, text);
        else if ((opt->flags & O_FIXED) && (zenflow || !(opt->flags & O_ZEN))
                 && !option_same(o, &before, opt))
            die("--%s contradicts the checkpoint, which has %.60s: leave it out, or start a new "
                "run in another --out", opt->name, text != NULL ? text : "none");
    }
    options_check(o);
    return before;
}

#endif
