// options.h: the command line of every trainer.
//
// One table has everything about an option: its name, its field in Options, type, default, range,
// the builds that have it, and what --resume does with it. Parsing, --help, the options in a
// checkpoint and their merging on --resume all walk over this table. A mistake ends the program
// with one line.
//
//     options_parse()     reads the command line; option_given(): is an option on it?
//     options_write()     writes the options for a checkpoint
//     options_resume()    merges the options of a checkpoint with those of the command line
#ifndef TIDE_OPTIONS_H
#define TIDE_OPTIONS_H
#include "../cpu/cpu.h"
#include "../base/model.h"
#include <assert.h>

// Values of options with choices, in the order of their names in the table. Values of --offload,
// --weights and such are in model.h.
enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT };
enum { SAVE_AUTO, SAVE_FP32, SAVE_BF16 };
enum { OPTIMIZER_ADAMW, OPTIMIZER_MEZO };
enum { PRECISION_BF16, PRECISION_FP32, PRECISION_FP16 };
enum { OVERLAP_ON, OVERLAP_OFF };
enum { WIRE_BF16, WIRE_FP32 };
enum { MOMENTS_FP32, MOMENTS_BF16 };
enum { MASTER_FP32, MASTER_BF16 };
enum { PACK_AUTO, PACK_ON, PACK_OFF };

#ifdef __CUDA_EMU__
enum { EMULATED = 1 };  // the emulated GPU is slow, and its times mean nothing
#else
enum { EMULATED = 0 };
#endif

#define AUTO_COUNT SIZE_MAX     // "auto" for a count whose range begins at 0
#define AUTO_REAL (-1.0)        // "auto" for a real number whose range begins at 0

enum { O_TITLE, O_TEXT, O_COUNT, O_BYTES, O_REAL, O_CHOICE, O_FLAG };

enum {
    O_FIXED = 1,  // defines the run: it is saved, and --resume refuses another value
    O_OWN = 2,    // is for one call of the program: it is not saved
    O_GPU = 4,    // only in the GPU builds
    O_SPLIT = 8,  // only with --offload interleave
    O_FO = 16, O_ZO = 32,  // only with --optimizer adamw; only with mezo
    O_ZEN = 64,   // only with --offload zenflow
    O_AUTO = 128, // may be "auto", though that is not the default
    O_SHARE = 256, O_OTHER = 512,  // only for modes with resident state; not with zenflow
    O_PLAN = 1024,  // only with --plan
    O_EMPTY = 4096,  // a text that may be empty
    O_MOST = 8192    // --help shows it, because most runs need it; others: --help all
};  // without O_FIXED and O_OWN: the value is saved; --resume uses it unless another is given

#define BIG 9007199254740991.0  // 2^53 - 1: the largest count, exact in JSON and in a double

// "auto" is stored as AUTO_COUNT or AUTO_REAL, or as 0 if the range begins above 0. A text that was
// not given is NULL. Texts point into argv, the table, or memory of options_resume().
enum { OPTION_MOST = 100 };  // most rows of the table
typedef struct {  // a field for each option of the table, and more at the end
    const char *model, *data, *val, *tokenizer, *labels, *template_text, *scores, *prompt, *out,
        *dump, *tune, *rates, *trace;
    int chat_format, train_on, pack, schedule, optimizer, moments, master, save_dtype, precision,
        recompute, activations, offload, weights, grad_wire, zen_overlap, zo_noise;
    size_t layers, heads, kv_heads, channels, ffn, context, vocab, batch, seq, accum, seed,
        steps, warmup, log_every, eval_every, eval_batches, sample_every, sample_tokens, top_k,
        save_every, keep, threads, stride, subgroup, slots, zero, world, gpu_memory,
        host_memory, zen_reselect, zen_warmup, zo_queries, resident_blocks;
    double epochs, lr, min_lr, weight_decay, beta1, beta2, eps, clip, temperature, top_p,
        resident, share, zen_topk, zen_window, zo_eps;
    bool chat, resume, keep_best, no_save, help, version, no_overlap, plan, calibrate,
        zo_no_slots, zo_no_fused_update;
    bool resume_auto;          // --resume auto: resume if there is a checkpoint
    bool help_all;             // --help all: every option
    bool gpu_build;
    bool given[OPTION_MOST];   // by row of the table: is it on the command line?
} Options;

typedef struct {
    int type;
    const char *name;     // without the two dashes; or a title
    size_t offset;        // the field in Options
    const char *initial;  // the default, as on the command line; NULL: none
    const char *values;   // choices: "a|b|c"; flag: a word that may follow it; others: for --help
    int flags;
    const char *help;
    double min, max;      // the range of a number, both ends included
} Option;

// All options, a row each, in the order of --help.
#define AT(field) offsetof(Options, field)
static const Option option_table[] = {
    {O_TITLE, "Model"},
    {O_TEXT, "model", AT(model), "nano", "NAME|PATH", O_MOST | O_FIXED,
     "a name that --help all lists, or weights"},
    {O_COUNT, "layers", AT(layers), "auto", "N", O_FIXED, "auto: as in the model", 1, 1000},
    {O_COUNT, "heads", AT(heads), "auto", "N", O_FIXED, "auto: as in the model", 1, 65536},
    {O_COUNT, "kv-heads", AT(kv_heads), "auto", "N", O_FIXED, "heads of keys and values", 1, 65536},
    {O_COUNT, "channels", AT(channels), "auto", "N", O_FIXED, "auto: as in the model", 1, 65536},
    {O_COUNT, "ffn", AT(ffn), "auto", "N", O_FIXED, "width of the MLP", 1, 1 << 20},
    {O_COUNT, "context", AT(context), "auto", "N", O_FIXED, "auto: as in the model", 1, 1 << 24},
    {O_COUNT, "vocab", AT(vocab), "auto", "N", O_FIXED, "auto: as in the model", 1, 1 << 24},
    {O_TITLE, "Data"},
    {O_TEXT, "data", AT(data), NULL, "PATH", O_MOST,
     "text, llm.c .bin tokens (or a glob), or JSON lines"},
    {O_TEXT, "val", AT(val), NULL, "PATH", O_MOST,
     "validation data, or questions; else the last tenth of --data"},
    {O_TEXT, "tokenizer", AT(tokenizer), NULL, "bytes|DIR", O_MOST,
     "DIR: a tokenizer.json, or a merges.txt; else the model's, or bytes"},
    {O_CHOICE, "chat-format", AT(chat_format), "auto",
     "auto|chatml|llama3|mistral-v3|mistral|llama2", O_FIXED,
     "of conversations; auto: by chat template, or special tokens"},
    {O_CHOICE, "train-on", AT(train_on), "all", "all|last", O_FIXED,
     "a conversation's answers that are trained: all, or the last"},
    {O_COUNT, "batch", AT(batch), "8", "N", O_MOST,
     "sequences per micro-batch, on each GPU", 1, 1 << 20},
    {O_COUNT, "seq", AT(seq), "0", "N", O_MOST | O_FIXED,
     "tokens per row; 0: as needed, at most 2048", 0, 1 << 24},
    {O_CHOICE, "pack", AT(pack), "auto", "auto|on|off", O_FIXED,
     "several examples in a row; auto: on, but one-token --labels"},
    {O_TEXT, "labels", AT(labels), NULL, "WORDS", O_FIXED,
     "of labels 0, 1, .. of --data, a TSV: \" bad| good\""},
    {O_TEXT, "template", AT(template_text), " It was", "TEXT", O_FIXED | O_EMPTY,
     "what stands between sentence and word"},
    {O_COUNT, "accum", AT(accum), "1", "N", 0, "micro-batches per step, on each GPU", 1, 1 << 20},
    {O_COUNT, "seed", AT(seed), "1337", "N", O_FIXED,
     "of first weights, order of data, noise, samples", 0, BIG},
    {O_TITLE, "Training"},
    {O_COUNT, "steps", AT(steps), "1000", "N", O_MOST,
     "of the whole run; 0: only evaluate, sample or save", 0, 1e12},
    {O_REAL, "epochs", AT(epochs), NULL, "F", O_MOST | O_OWN,
     "instead of --steps: passes over --data", 1e-6, 1e9},
    {O_REAL, "lr", AT(lr), "6e-4", "F", O_MOST, "highest learning rate", 0, 1000},
    {O_COUNT, "warmup", AT(warmup), "auto", "N", 0,
     "steps from 0 up to --lr; auto: 1/20 of --steps", 0, 1e12},
    {O_CHOICE, "schedule", AT(schedule), "cosine", "cosine|linear|constant", 0,
     "how the rate falls then"},
    {O_REAL, "min-lr", AT(min_lr), "auto", "F", 0,
     "rate at the last step; auto: 1/10 of --lr", 0, 1000},
    {O_CHOICE, "optimizer", AT(optimizer), "adamw", "adamw|mezo", O_MOST | O_FIXED,
     "mezo: forward passes only"},
    {O_REAL, "weight-decay", AT(weight_decay), "0.1", "F", 0, "of matrices", 0, 1000},
    {O_REAL, "beta1", AT(beta1), "0.9", "F", O_FIXED | O_FO,
     "decay of the first moment", 0, 1 - 1e-9},
    {O_REAL, "beta2", AT(beta2), "0.95", "F", O_FIXED | O_FO,
     "decay of the second moment", 0, 1 - 1e-9},
    {O_REAL, "eps", AT(eps), "1e-8", "F", O_FIXED | O_FO,
     "added to the root of the second moment", 1e-30, 1},
    {O_CHOICE, "moments", AT(moments), "fp32", "fp32|bf16", O_FO,
     "how both are stored; bf16: rounded at random"},
    {O_CHOICE, "master", AT(master), "fp32", "fp32|bf16", O_FO,
     "the weights that it updates; bf16: rounded at random"},
    {O_REAL, "clip", AT(clip), "1", "F", O_FO, "largest gradient norm; 0: no clipping", 0, 1e30},
    {O_TITLE, "Evaluation and samples"},
    {O_COUNT, "log-every", AT(log_every), "auto", "N", 0,
     "steps per printed line (log.jsonl has all); auto: 1", 1, BIG},
    {O_COUNT, "eval-every", AT(eval_every), "100", "N", 0, "steps; 0: never", 0, BIG},
    {O_COUNT, "eval-batches", AT(eval_batches), "auto", "N", O_AUTO,
     "at most; auto: 20 of running text, all examples", 1, BIG},
    {O_TEXT, "scores", AT(scores), NULL, "FILE", O_OWN,
     "with --steps 0: each row's loss, JSON lines"},
    {O_COUNT, "sample-every", AT(sample_every), "0", "N", 0, "steps; 0: never", 0, BIG},
    {O_COUNT, "sample-tokens", AT(sample_tokens), "256", "N", 0, "length of a sample", 1, 1e9},
    {O_TEXT, "prompt", AT(prompt), NULL, "TEXT", O_MOST | O_EMPTY, "what a sample continues"},
    {O_FLAG, "chat", AT(chat), NULL, NULL, O_MOST | O_OWN,
     "a conversation with the model; --prompt is its system message"},
    {O_REAL, "temperature", AT(temperature), "0.8", "F", 0,
     "0: always the likeliest token", 0, 1000},
    {O_COUNT, "top-k", AT(top_k), "0", "N", 0,
     "sample from the N likeliest tokens; 0: from all", 0, 1 << 24},
    {O_REAL, "top-p", AT(top_p), "1", "F", 0,
     "of these, from the likeliest with this share; 1: all", 1e-9, 1},
    {O_TITLE, "Files and the machine"},
    {O_TEXT, "out", AT(out), "out/default", "DIR", O_MOST | O_OWN,
     "log, weights, checkpoints: a new folder"},
    {O_FLAG, "resume", AT(resume), NULL, "auto", O_MOST | O_OWN,
     "continue the newest checkpoint in --out, as it was; auto: if any"},
    {O_COUNT, "save-every", AT(save_every), "auto", "N", O_MOST,
     "steps; auto: 10 minutes, or 5 % of the time; 0: at the end", 0, BIG},
    {O_COUNT, "keep", AT(keep), "2", "N", 0, "checkpoints; older ones are deleted", 1, BIG},
    {O_FLAG, "keep-best", AT(keep_best), NULL, NULL, 0,
     "and that of the lowest validation loss; weights: OUT/best"},
    {O_FLAG, "no-save", AT(no_save), NULL, NULL, O_OWN,
     "leave only the log, and without --out nothing"},
    {O_CHOICE, "save-dtype", AT(save_dtype), "auto", "auto|fp32|bf16", 0,
     "of model.safetensors; auto: bf16 if all weights are"},
    {O_COUNT, "threads", AT(threads), "0", "N", O_OWN,
     "0: one per core; of ranks, each its own", 0, 4096},
    {O_TEXT, "dump", AT(dump), NULL, "FILE", O_OWN,
     "loss, logits, gradients of the first batch; exit"},
    {O_FLAG, "help", AT(help), NULL, "all", O_MOST | O_OWN,
     "this list; all: every option, and the models"},
    {O_FLAG, "version", AT(version), NULL, NULL, O_OWN, "what this program is; exit"},
    {O_TITLE, "GPU builds (train_gpt2cu, train_gpt2emu)"},
    {O_CHOICE, "precision", AT(precision), "bf16", "bf16|fp32|fp16", O_GPU,
     "of what is stored; sums are fp32; fp16: loss scaling"},
    {O_CHOICE, "recompute", AT(recompute), "auto", "auto|none|light|block", O_GPU | O_FO,
     "activations in backward; light: layer norms and GELU"},
    {O_CHOICE, "activations", AT(activations), "gpu", "gpu|host", O_GPU | O_FO,
     "host: layers' inputs wait there; implies --recompute block"},
    {O_TITLE, "GPU builds: where the state of AdamW is, and who updates it"},
    {O_CHOICE, "offload", AT(offload), "auto", "auto|none|zero|twinflow|interleave|zenflow", O_MOST,
     "of AdamW's state; auto: fastest as predicted; CPU: zenflow"},
    {O_CHOICE, "weights", AT(weights), "auto", "gpu|host|auto", O_GPU | O_FO,
     "host: layers' come when they are used; auto: the faster"},
    {O_REAL, "resident", AT(resident), "auto", "F", O_GPU | O_FO | O_SHARE,
     "share of it on the GPU; auto: what fits, or 0", 0, 1},
    {O_COUNT, "stride", AT(stride), "auto", "N", O_GPU | O_FO | O_SPLIT,
     "interleave: the GPU updates every Nth sub-group", 1, BIG},
    {O_REAL, "share", AT(share), "auto", "F", O_GPU | O_FO | O_SPLIT,
     "or this share of the rest; auto: the best", 0, 1},
    {O_COUNT, "subgroup", AT(subgroup), "auto", "N", O_GPU | O_FO | O_OTHER,
     "parameters; auto: layers, at most 100 million", 4096, BIG},
    {O_COUNT, "slots", AT(slots), "auto", "N", O_GPU | O_OTHER,
     "layers or sub-groups that visit at once; auto: what fits", 1, 1000},
    {O_CHOICE, "grad-wire", AT(grad_wire), "bf16", "bf16|fp32", O_GPU | O_FO | O_OTHER,
     "of gradients on the link"},
    {O_FLAG, "no-overlap", AT(no_overlap), NULL, NULL, O_GPU, "compute, link and CPU take turns"},
    {O_TITLE, "GPU builds: several GPUs, limits of memory, plans, measurements"},
    {O_COUNT, "zero", AT(zero), "auto", "N", O_MOST | O_GPU | O_FO,
     "stage; auto: 2 on several GPUs, or 3 if it must be", 1, 3},
    {O_COUNT, "world", AT(world), "1", "N", O_OWN | O_GPU | O_PLAN,
     "with --plan: for so many GPUs", 1, 1 << 16},
    {O_BYTES, "gpu-memory", AT(gpu_memory), "0", "SIZE", O_MOST | O_OWN | O_GPU,
     "use at most this: 23.5G, 24GB, 24GiB, of 1024^3 bytes; 0: all", 0, 1e15},
    {O_BYTES, "host-memory", AT(host_memory), "0", "SIZE", O_MOST | O_OWN | O_GPU,
     "use at most this, even if less is free now; 0: all", 0, 1e15},
    {O_FLAG, "plan", AT(plan), NULL, NULL, O_MOST | O_OWN | O_GPU,
     "print memory and predicted time; exit"},
    {O_TEXT, "tune", AT(tune), NULL, "FILE", O_GPU,
     "the products' fastest algorithms; measured if it lacks them"},
    {O_TEXT, "rates", AT(rates), NULL, "FILE", O_OWN | O_GPU,
     "what a machine can do; else it is measured when needed"},
    {O_FLAG, "calibrate", AT(calibrate), NULL, NULL, O_OWN | O_GPU,
     "measure them, of --model (else 7b), into --rates; exit"},
    {O_TEXT, "trace", AT(trace), NULL, "FILE", O_OWN | O_GPU,
     "a timeline of all steps for Perfetto"},
    {O_TITLE, "Importance-aware updates (--offload zenflow)"},
    {O_REAL, "zen-topk", AT(zen_topk), "0.1", "F", O_FIXED | O_FO | O_ZEN,
     "share of columns that are updated at every step", 0, 1},
    {O_REAL, "zen-window", AT(zen_window), "4", "F", O_FIXED | O_FO | O_ZEN | O_AUTO,
     "steps per update of the rest; 0.99 or auto: when 99 % need it", 0.01, 1 << 20},
    {O_COUNT, "zen-reselect", AT(zen_reselect), "16", "N", O_FIXED | O_FO | O_ZEN,
     "windows per selection; 0: only one", 0, BIG},
    {O_COUNT, "zen-warmup", AT(zen_warmup), "auto", "N", O_FIXED | O_FO | O_ZEN | O_AUTO,
     "plain steps before the first selection; auto: --warmup", 1, BIG},
    {O_CHOICE, "zen-overlap", AT(zen_overlap), "on", "on|off", O_FIXED | O_FO | O_ZEN,
     "updates of the rest show a window late; off: at once"},
    {O_TITLE, "Fine-tuning without gradients (--optimizer mezo: --lr 1e-6, constant, no decay)"},
    {O_REAL, "zo-eps", AT(zo_eps), "1e-3", "F", O_FIXED | O_ZO,
     "size of the perturbation", 1e-6, 1},
    {O_COUNT, "zo-queries", AT(zo_queries), "1", "N", O_FIXED | O_ZO,
     "directions per step, each of two forward passes", 1, 256},
    {O_CHOICE, "zo-noise", AT(zo_noise), "gaussian", "gaussian|rademacher", O_FIXED | O_ZO,
     "directions of normal numbers, or of signs"},
    {O_COUNT, "resident-blocks", AT(resident_blocks), "auto", "N", O_GPU | O_ZO,
     "layers that stay on the GPU; the rest visit it, in --slots", 0, 1000},
    {O_FLAG, "zo-no-slots", AT(zo_no_slots), NULL, NULL, O_GPU | O_ZO,
     "allocate memory at each visit"},
    {O_FLAG, "zo-no-fused-update", AT(zo_no_fused_update), NULL, NULL, O_GPU | O_ZO,
     "a visit more, for the update"},
};
#undef AT
enum { OPTION_COUNT = sizeof option_table / sizeof *option_table };
static_assert((int)OPTION_COUNT <= (int)OPTION_MOST, "Options.given has a place for each");

// Returns the row of the option with this name of n bytes, or -1.
static int option_find(const char *name, size_t n) {
    for (int i = 0; i < OPTION_COUNT; i++)
        if (option_table[i].type != O_TITLE && strlen(option_table[i].name) == n
            && memcmp(option_table[i].name, name, n) == 0) return i;
    return -1;
}

// Is --name on the command line?
static bool option_given(const Options *o, const char *name) {
    int row = option_find(name, strlen(name));
    return row >= 0 && o->given[row];
}

// ---------------------------------------------------------------------------------------------
// Values

// Reads a number. A count has only digits, and a sign if it is below 0. A size may have a unit, a
// power of 1024, as in 23.5G: K, KB or KiB, M, G, T, in capital or small letters.
static bool parse_number(const char *text, int type, double *out) {
    static const char units[] = "KkMmGgTt", digits[] = "+-eE.0123456789";
    const size_t sign = *text == '-';
    const size_t other = type == O_REAL ? 0 : type == O_BYTES ? 4 : 5;  // allowed: digits + other
    const size_t n = sign + strspn(text + sign, digits + other);
    const char *unit = type == O_BYTES && text[n] != '\0' ? strchr(units, text[n]) : NULL;
    char *end;
    *out = strtod(text, &end);
    if (n == sign || end != text + n) return false;
    if (unit == NULL) return *end == '\0';
    *out = ldexp(*out, 10 * (int)((unit - units) / 2 + 1));
    return end[1] == '\0' || !strcasecmp(end + 1, "B") || !strcasecmp(end + 1, "iB");
}

// Returns the index of `text` in "a|b|c", or -1.
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

// Stores a value, which is given as a text, in the option's field.
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

// Writes a blank and the value of a field, so that option_set() can read it: a newline as \n, a
// backslash twice. Writes nothing for a text that is NULL.
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
        for (int digits = 6; digits <= 17; digits++) {  // the fewest digits that are read as v
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

// Refuses an unknown option. Proposes the first option that begins a word of the unknown name, as
// in --batch-size, or that begins with the whole name, or whose help has all its words, at least
// two, as for --learning-rate.
static void unknown_option(const char *arg) {
    const char *name = arg + strspn(arg, "-");
    const int n = (int)min_size(strcspn(name, "="), 60);
    char words[64], key[64];
    snprintf(words, sizeof words, " %.*s", n, name);
    for (char *c = words; *c != '\0'; c++) if (*c == '-' || *c == '_') *c = ' ';
    const bool several = strchr(words + 1, ' ') != NULL;
    for (const Option *opt = option_table; n > 0 && opt < option_table + OPTION_COUNT; opt++) {
        if (opt->type == O_TITLE) continue;
        snprintf(key, sizeof key, " %s", opt->name);
        for (char *c = key; *c != '\0'; c++) if (*c == '-') *c = ' ';
        if (strstr(words, key) != NULL || strncmp(key, words, strlen(words)) == 0
            || (several && strstr(opt->help, words) != NULL))
            die("unknown option --%.*s; did you mean --%s?", n, name, opt->name);
    }
    die("unknown option %.60s; see --help all", arg);
}

// Refuses options whose flags belong to another optimizer or mode, and then options that exclude
// each other. The first row of a list that does not fit, or is true, has the message.
static void options_check(const Options *o) {
    const bool mezo = o->optimizer == OPTIMIZER_MEZO, zenflow = o->offload == OFFLOAD_ZENFLOW;
    const bool interleave = o->offload == OFFLOAD_INTERLEAVE;
    const bool placed = option_given(o, "offload"), steps = o->steps > 0;
    const bool runs = !o->plan && !o->calibrate, reads = o->data != NULL || o->val != NULL;
    const struct { int flag; bool fits; const char *needed; } groups[] = {
        {O_FO, !mezo, "--optimizer adamw"}, {O_ZO, mezo, "--optimizer mezo"},
        {O_ZEN, zenflow, "--offload zenflow"}, {O_SPLIT, interleave, "--offload interleave"},
        {O_SHARE, interleave || zenflow || o->offload == OFFLOAD_TWINFLOW,
         "--offload twinflow, interleave or zenflow"},
        {O_OTHER, !zenflow, "another --offload than zenflow"},
        {O_PLAN, o->plan, "--plan; a launcher starts a process for each GPU of a run"}};
    for (size_t k = 0; k < sizeof groups / sizeof *groups; k++)
        for (int i = 0; i < OPTION_COUNT; i++)
            if (o->given[i] && (option_table[i].flags & groups[k].flag) && !groups[k].fits)
                die("--%s needs %s", option_table[i].name, groups[k].needed);
    const struct { bool is; const char *why; double x, y; } refused[] = {
        {o->min_lr > o->lr, "--min-lr %g is above --lr %g", o->min_lr, o->lr},
        {o->epochs > 0 && option_given(o, "steps"),
         "--epochs and --steps say the same in two ways: leave one out"},
        {steps && o->epochs == 0 && o->warmup != AUTO_COUNT && o->warmup > o->steps,
         "--warmup %.16g is longer than --steps %.16g", (double)o->warmup, (double)o->steps},
        {(double)o->batch * (double)o->seq > 2147483648.0,
         "--batch times --seq is more than any machine can hold"},
        {!o->gpu_build && placed && o->offload > OFFLOAD_NONE && !zenflow,
         "the CPU trainer has nothing to offload; it knows --offload none and zenflow"},
        {mezo && placed && o->offload != OFFLOAD_NONE,
         "--offload places the state of AdamW; with mezo: --resident-blocks"},
        {o->activations == ACTIVATIONS_HOST
             && (o->recompute == RECOMPUTE_NONE || o->recompute == RECOMPUTE_LIGHT),
         "--activations host keeps nothing of a layer but its input: take --recompute block"},
        {o->weights == WEIGHTS_HOST && o->offload == OFFLOAD_NONE,
         "--weights host needs state on the host, and --offload none leaves none there"},
        {o->weights == WEIGHTS_HOST && (o->zero == 1 || o->zero == 2),
         "--weights host needs --zero 3: with %g, each GPU holds all weights", (double)o->zero},
        {o->master == MASTER_BF16 && o->precision != PRECISION_BF16,
         "--master bf16 needs --precision bf16: in fp32 weights are their masters, and fp16 "
         "has no numbers below 6e-8"},
        {(mezo || zenflow || o->labels != NULL) && o->dump != NULL,
         "--dump shows the gradient of plain training, without --optimizer, --offload and "
         "--labels"},
        {zenflow && o->zen_window < 1 && (o->zen_topk == 0 || o->zen_topk == 1),
         "--zen-window auto needs columns and a rest; --zen-topk %g leaves only one of them",
         o->zen_topk},
        {o->zen_window > 1 && o->zen_window != floor(o->zen_window),
         "--zen-window %g: a window has whole steps, or ends by a share below 1", o->zen_window},
        {option_given(o, "stride") && option_given(o, "share"),
         "--stride and --share say the same in two ways: leave one out"},
        {o->labels != NULL && o->sample_every > 0,
         "--sample-every needs running text, and --labels reads sentences"},
        {o->keep_best && o->eval_every == 0,
         "--keep-best keeps the checkpoint of an evaluation: leave out --eval-every 0"},
        {o->no_save && option_given(o, "keep-best"),
         "--keep-best keeps the checkpoint of an evaluation: leave out --no-save"},
        {o->scores != NULL && (steps || o->prompt != NULL || o->chat),
         "--scores is of an evaluation: --steps 0, without --prompt and --chat"},
        {o->chat && (steps || o->epochs > 0 || o->dump != NULL),
         "--chat needs --model DIR, and no training: leave out --data, --val, --out and --steps"},
        {runs && o->data == NULL && (steps || o->dump != NULL),
         "--data is missing: name a text or .bin file: --data my.txt"},
        {runs && !reads && o->prompt == NULL && !o->chat && !option_given(o, "out"),
         "--steps 0 needs --data or --val to evaluate, --prompt or --chat to sample, or --out "
         "to save the model"}};
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
        if (refused[k].is) die(refused[k].why, refused[k].x, refused[k].y);
}

// Prints the options that most runs need, or with `all` every option.
static void options_help(FILE *f, const char *program, bool all) {
    const Option *title = NULL;
    fprintf(f, "usage: %s --data FILE [options]\n\n"
               "  %s --data my.txt                  trains a small GPT on the bytes of a text\n"
               "  %s --resume --steps 5000          goes on with it\n"
               "  %s --model out/default --prompt \"Once \"  shows what it has learned\n\n"
               "[x]: the default. =: fixed by the checkpoint; all others may change on --resume.\n"
               "Behind --, an option replaces the same one in front of it.\n",
            program, program, program, program);
    if (!all) fprintf(f, "What most runs need; --help all has every option, and the models.\n");
    size_t column = all ? (size_t)fprintf(f, "Models:") : 0;
    for (size_t i = 0; all && i < sizeof gpt2_presets / sizeof *gpt2_presets; i++) {
        const char *name = gpt2_presets[i].name;
        if (column + strlen(name) > 90) column = (size_t)fprintf(f, "\n       ") - 1;
        column += (size_t)fprintf(f, " %s,", name);
    }
    if (all)
        fprintf(f, "\n        dN (N layers, shaped like GPT-2), and weights in Hugging Face "
                   "naming:\n        a directory or a .safetensors file\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *opt = &option_table[i];
        char left[100];
        if (opt->type == O_TITLE) title = opt;
        if (opt->type == O_TITLE || !(all || (opt->flags & O_MOST))) continue;
        if (title != NULL) fprintf(f, "\n%s\n", title->name);
        title = NULL;
        const char *or_auto = opt->type != O_CHOICE && option_has_auto(opt) ? "|auto" : "";
        if (opt->type == O_FLAG)
            snprintf(left, sizeof left, opt->values != NULL ? "--%s [%s]" : "--%s", opt->name,
                     opt->values);
        else snprintf(left, sizeof left, "--%s %s%s", opt->name, opt->values, or_auto);
        fprintf(f, "  %-30s", left);
        if (strlen(left) > 29) fprintf(f, "\n  %-30s", "");
        fprintf(f, "%c %s", opt->flags & O_FIXED ? '=' : ' ', opt->help);
        if (opt->initial != NULL) fprintf(f, " [%s]", opt->initial);
        fputc('\n', f);
    }
}

// Sets the options that follow from others, unless they were given.
static void options_default(Options *o) {
    if (o->data == NULL && o->val == NULL && (o->prompt != NULL || o->chat)
        && option_given(o, "model") && !option_given(o, "steps") && !option_given(o, "out")
        && o->dump == NULL && !o->plan)
        o->steps = 0;  // sampling needs no steps
    if (o->calibrate && !option_given(o, "model")) {
        o->model = EMULATED ? "nano" : "7b";
        if (!option_given(o, "seq")) o->seq = EMULATED ? 64 : 2048;
        if (!option_given(o, "batch")) o->batch = 1;
    }
    if (o->optimizer == OPTIMIZER_MEZO) {  // MeZO would diverge with AdamW's values
        if (!option_given(o, "lr")) o->lr = 1e-6;
        if (!option_given(o, "schedule")) o->schedule = SCHEDULE_CONSTANT;
        if (!option_given(o, "weight-decay")) o->weight_decay = 0;
        if (!option_given(o, "warmup")) o->warmup = 0;
    }
}

// Fills *o with the defaults, and then from the command line. Refuses two values of one option; but
// after "--" an option replaces an earlier one: scripts put "--" between their options and the
// user's. With --resume, the combinations are checked later, by options_resume(). --help and
// --version print and exit with 0. A mistake ends the program with one line and exit code 2.
static void options_parse(Options *o, int argc, char **argv, bool gpu_build) {
    *o = (Options){.gpu_build = gpu_build};
    const char *values[OPTION_COUNT] = {NULL};  // values given since the last "--"
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
            const bool word = opt->values != NULL && next != NULL && strcmp(next, opt->values) == 0;
            if (value != NULL && !word) die("--%s takes no value", opt->name);
            i += word && value == NULL;
            if (word && opt->offset == offsetof(Options, resume)) o->resume_auto = true;
            else if (word) o->help_all = true;
            value = "true";
        } else if (value != NULL) {
            value++;
        } else {
            value = argv[++i];  // NULL after the last argument
            if (value == NULL || strncmp(value, "--", 2) == 0)
                die("--%s needs a value%s", opt->name,
                    value != NULL ? "; write --NAME=VALUE if it starts with --" : "");
        }
        option_set(o, opt, value);
        if (values[row] != NULL && strcmp(values[row], value) != 0)
            die("--%s is given twice, with %.60s and %.60s: leave one out (cat makes one file of "
                "several); behind --, one replaces an earlier one", opt->name, values[row], value);
        values[row] = value;
        if ((opt->flags & O_GPU) && !gpu_build)
            die("--%s is an option of the GPU builds; this is the CPU trainer", opt->name);
        o->given[row] = true;
    }
    if (o->help) options_help(stdout, argv[0], o->help_all);
    else if (o->version) printf("tide.c %s (%s, %s)\n", TIDE_VERSION, gpu_build ? "GPU" : "CPU",
                                CPU_VECTORS);
    if (o->help || o->version) exit(print_end());
    options_default(o);
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

// Writes the options that describe the run to buf, as lines "--name value", in less than n bytes.
// Values that mean "auto", like 0 of --seq, have been replaced by then.
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

// Has an option, which is a text, a choice or a number, the same value in a and b?
static bool option_same(const Options *a, const Options *b, const Option *opt) {
    const void *p = (const char *)a + opt->offset, *q = (const char *)b + opt->offset;
    if (opt->type != O_TEXT) return memcmp(p, q, opt->type == O_CHOICE ? sizeof(int) : 8) == 0;
    const char *s = *(const char *const *)p, *t = *(const char *const *)q;
    return s != NULL && t != NULL ? strcmp(s, t) == 0 : s == t;
}

// Merges the options of a checkpoint, which are lines of options_write(), with those of a command
// line with --resume. An option that was not given is taken from the checkpoint. An option that was
// given is used, but refused if it is O_FIXED and differs. Then checks the combinations. Skips
// unknown lines: another build may have written them. Returns the options of the checkpoint.
static Options options_resume(Options *o, const char *lines) {
    Options before = *o;
    char *end = ALLOC(char, strlen(lines) + 1, "options");  // has the texts from here on
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
        else if ((opt->flags & O_FIXED) && !option_same(o, &before, opt)  // before.offload is set
                 && (before.offload == OFFLOAD_ZENFLOW || !(opt->flags & O_ZEN)))
            die("--%s contradicts the checkpoint, which has %.60s: leave it out, or start a new "
                "run in another --out", opt->name, text != NULL ? text : "none");
    }
    options_check(o);
    return before;
}

#endif
