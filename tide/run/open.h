// open.h: a run (Run), from its command line to its data and shapes. All errors in options, and in
// the files that they name, are found here, before anything is computed.
//
//   run_open                       fills a Run, or ends the program with one line
//   schedule_lr                    returns the learning rate of a step
//   run_val_rows, run_val_hash     return how many sequences are evaluated; a hash of them
//   run_first_token, run_task      return the first token of every text; the task with --labels
//
// save.h loads and saves a run, run.h has the functions of its loop.
#ifndef TIDE_OPEN_H
#define TIDE_OPEN_H
#include "../files/task.h"
#include "log.h"
#include "out.h"

typedef struct {
    Options o;
    GPT2Table table;
    Tokenizer *tokenizer;           // NULL: token files, whose tokenizer is unknown
    bool task, asks;                // task: --data has examples (task.h), not running text;
                                    // asks: the held-out data has examples
    bool words;                     // each of --labels is one token
    bool packed;                    // rows of several examples are trained
    Task task_all, task_train, task_val;  // the examples of --data, to train on, and held out
    Loader train, val;              // .sequences: sequences, or rows of a task; 0: no data
    size_t B, T;                    // shape of a micro-batch: sequences, tokens
    size_t world, rank;             // number of GPUs that train together; number of this one
    size_t step_sequences;          // sequences (or rows) of a step, on all GPUs together
    size_t step_tokens;
    const char *saved_model;        // directory or file of --model; NULL: a preset, or --resume
    bool training;                  // gradients are needed, for steps or for --dump
    bool only_sampling;             // --prompt or --chat without training
    Chat chat;                      // the format of conversations (--chat)
    bool batches;                   // batches of B x T are read, to train on or to evaluate
    bool sampling;                  // samples are drawn, in training or without it
    TrainState state;               // .config: the model; the newest whole checkpoint, if step > 0
    char resume_from[PATH_MAX];     // the checkpoint with which a resumed run began
    int lock;                       // the file .lock in --out, see out_lock(); -1: not open
    RunState saves;                 // what run_save() saves; run_load() sets it (save.h)
    Log log;
    double start;                   // when the step began, by seconds_now()
    size_t done;                    // number of complete steps
    size_t idle;                    // zeroth-order steps in a row that had no effect
    bool due;                       // a checkpoint is due
    bool unasked;                   // an evaluation is due, and has not begun
    double lowest;                  // --keep-best: the lowest loss of all evaluations
    bool best_is_out;               // OUT/best has the weights of state.best
    bool open;                      // ZenFlow's window is open: a checkpoint must wait
    bool waits;                     // a signal waits for the end of this window
    bool ends;  // the next checkpoint is the last one: an error in saving ends the run
    bool damaged;                   // a token file is damaged, here or on another rank
    Error damage;                   // the damage that this rank found
} Run;

// ---------------------------------------------------------------------------------------------
// The learning rate

// Returns the number of steps in which the learning rate rises.
static size_t schedule_warmup(const Options *o) {
    return o->warmup == AUTO_COUNT ? o->steps / 20 : o->warmup;
}

// Returns the learning rate of a step (the first is 1). It rises in a line from lr / warmup to lr,
// then falls to min_lr at the last step, along half a cosine (Loshchilov and Hutter 2017, eq. 5) or
// in a line; a constant schedule stays at lr.
static double schedule_lr(const Options *o, size_t step) {
    const size_t warmup = schedule_warmup(o);
    const double low = o->min_lr < 0 ? o->lr / 10 : o->min_lr;
    if (step < warmup) return o->lr * (double)step / (double)warmup;
    if (step <= warmup || o->schedule == SCHEDULE_CONSTANT) return o->lr;
    if (step >= o->steps) return low;
    const double x = (double)(step - warmup) / (double)(o->steps - warmup);  // 0: at lr; 1: at low
    const double fall = o->schedule == SCHEDULE_LINEAR ? 1 - x : 0.5 * (1 + cos(x * M_PI));
    return low + (o->lr - low) * fall;
}

// ---------------------------------------------------------------------------------------------
// The model, the tokenizer and the data

// Keeps the sequences per step of a resumed run, because data and schedule depend on this number.
// If --accum was not given, sets it from --batch and the number of GPUs.
static void run_resume_batch(Run *r) {
    Options *o = &r->o;
    const size_t each = o->batch * r->world, was = o->accum;
    if (r->state.step == 0 || o->steps == 0) return;
    const size_t all = (size_t)(r->state.data_position / r->state.step);
    if (!option_given(o, "accum") && all % each == 0) o->accum = all / each;
    if (each * o->accum != all)
        die("this run has %zu sequences per step; --batch %zu, --accum %zu and %zu GPU%s make %zu",
            all, o->batch, o->accum, r->world, plural(r->world), each * o->accum);
    if (o->accum != was) printf("--accum is %zu now, for %zu sequences per step\n", o->accum, all);
}

// Finds the checkpoint to resume; takes the model's shape from it, and all options not given.
static void run_open_checkpoint(Run *r) {
    Options *o = &r->o;
    Error err;
    if (!state_find(o->out, SIZE_MAX, &r->state, r->resume_from, &err)) die("%s", err.text);
    const Options before = options_resume(o, r->state.options);
    if (o->master != before.master)
        printf(o->master == MASTER_BF16 ? "weights, trained in fp32, are rounded to bf16\n"
                                        : "weights, trained in bf16, are fp32 from here on\n");
    const double was = schedule_lr(&before, r->state.step);
    const double would = schedule_lr(&before, r->state.step + 1);
    const double is = schedule_lr(o, r->state.step + 1);
    if (o->steps > r->state.step && o->epochs == 0 && fabs(is - would) > 0.01 * would)
        printf("note: the learning rate goes on at %.1e, after %.1e at step %zu: its schedule "
               "follows the options, --steps %zu now and %zu before\n", is, was,
               r->state.step, o->steps, before.steps);
    run_resume_batch(r);
}

// Changes the shape of a preset by the options.
static void run_open_preset(Run *r) {
    const Options *o = &r->o;
    GPT2Config *c = &r->state.config;
    if (o->layers) c->layers = o->layers;
    // If --channels is given, the MLP's width, if the preset has one, changes by the same factor.
    if (o->channels) c->ffn = round_up(c->ffn * o->channels / c->channels, 8);
    if (o->channels) c->channels = o->channels;
    if (o->channels && c->embed > 0) c->embed = c->channels / 2;
    if (o->heads) c->heads = o->heads;
    if (o->kv_heads && !config_gated(c))
        die("--kv-heads: GPT-2 and OPT have as many key heads as heads");
    if (o->kv_heads) c->kv_heads = o->kv_heads;
    if (o->ffn) c->ffn = o->ffn;
    if (o->context) c->context = o->context;
}

// Finds the model's shape: in the checkpoint to resume, in a preset, or in a saved model.
static void run_open_model(Run *r) {
    const Options *o = &r->o;
    GPT2Config *c = &r->state.config;
    if (o->resume) {
        run_open_checkpoint(r);
    } else if (gpt2_preset(c, o->model)) {
        run_open_preset(r);
    } else if (path_exists(o->model)) {
        r->saved_model = o->model;
        model_config_load(o->model, c);
        if (o->layers || o->channels || o->heads || o->kv_heads || o->ffn || o->context || o->vocab)
            die("--layers, --channels, --heads, --kv-heads, --ffn, --context and --vocab describe "
                "a new model; %s has its own", o->model);
    } else {
        if (fnmatch("[!/.]*/*", o->model, FNM_PATHNAME) == 0)
            die("--model %s: no such file; sh dev/data/model.sh %s fetches what the hub has under "
                "that name", o->model, o->model);
        die("--model %s: no such preset (nano, gpt2, d12, opt-125m, llama3.2-1b; see --help all), "
            "and no such file; sh dev/data/model.sh OWNER/NAME fetches one of the hub", o->model);
    }
    r->T = o->seq > 0 ? o->seq : min_size(c->context, 2048);
    if (r->T > c->context)
        die("--seq %zu is longer than the model's context of %zu", r->T, c->context);
}

// Opens the tokenizer: that of --tokenizer, or the one saved with the model, or bytes. A model that
// was saved without a tokenizer can still be trained on token files.
static void run_open_tokenizer(Run *r) {
    const Options *o = &r->o;
    const char *saved = o->resume ? o->out : r->saved_model, *asked = o->tokenizer;
    const bool bytes = asked != NULL && strcmp(asked, "bytes") == 0;
    char home[PATH_MAX] = "", list[PATH_MAX];
    struct stat merges;
    if (saved != NULL) path_directory(saved, home);
    path_join(list, home, "merges.txt");
    const bool has_merges = stat(list, &merges) == 0;
    path_join(list, home, "tokenizer.json");
    const bool own = saved != NULL && (has_merges || path_exists(list));
    path_join(list, home, "tokenizer.model");
    if (asked != NULL ? !bytes : own) {
        r->tokenizer = tokenizer_open(ALLOC(Tokenizer, 1, "tokenizer"),
                                      asked != NULL ? asked : home, &tokenizer_why);
        if (r->tokenizer == NULL && asked != NULL) die("%s", tokenizer_why.text);
    } else if (bytes || saved == NULL || r->state.config.vocab == 256) {
        r->tokenizer = tokenizer_bytes();
    } else if (path_exists(list)) {
        error_set(&tokenizer_why, "%.300s is not read; transformers makes tokenizer.json of it: "
                  "AutoTokenizer.from_pretrained(), save_pretrained()", list);
    }
    if (bytes && saved != NULL  // bytes have no merges
        && (has_merges ? merges.st_size > 16 : own || r->state.config.vocab >= 50257))
        die("--tokenizer bytes: the model in %s knows %zu other tokens: leave it out, or name the "
            "directory of theirs", home, r->state.config.vocab);
}

// Returns the task with the tokens of --labels and the format of conversations.
static const Task *run_task(const Run *r) { return r->task ? &r->task_all : &r->task_val; }

// Returns the token with which the tokenizer begins every text (OPT's texts begin with </s>), or
// -1.
static int32_t run_first_token(const Run *r) {
    if (r->tokenizer->bos >= 0) return r->tokenizer->bos;
    if (r->state.config.family == FAMILY_OPT && r->tokenizer->vocab != 256) return 2;
    return -1;
}

// Opens --data and --val if they have examples (task.h). Without --seq, a row has room for the
// longest example; a packed row for all examples together, but for at most 2048 tokens.
static void run_open_task(Run *r) {
    Options *o = &r->o;
    const char *files[2] = {r->task ? o->data : NULL, r->asks ? o->val : NULL};
    Task *opened[2] = {&r->task_all, &r->task_val};
    if (r->tokenizer == NULL) die("examples need --tokenizer: %s", tokenizer_why.text);
    for (int k = 0; k < 2; k++) {
        const char *file = files[k];
        if (file == NULL) continue;
        if (o->labels != NULL && path_exists(file) && path_is_examples(file))
            die("%s has JSON lines: --labels is for labelled sentences, use \"choices\" here",
                file);
        TaskReader reader = {o->labels, o->template_text, r->tokenizer, r->state.config.vocab,
                             o->chat_format, o->train_on > 0, {.first_token = run_first_token(r)}};
        *opened[k] = task_open(&reader, file);
    }
    const size_t all = r->task_all.count, cut = o->val == NULL ? all - all / 10 : all;
    if (r->task) r->task_train = task_view(&r->task_all, 0, cut);
    if (o->val == NULL) r->task_val = task_view(&r->task_all, cut, all);
    r->words = run_task(r)->labels > 0;
    r->packed = o->pack != PACK_OFF && !r->words && r->task_train.count > 0
             && (o->steps > 0 || o->dump != NULL);
    if (r->words && o->pack == PACK_ON)
        die("--pack on: --labels of one token each share their prompts, one in each row");
    size_t needed = r->packed ? task_sum(&r->task_train, r->T).inputs : 0;
    for (int k = 0; k < 2; k++) needed = max_size(needed, opened[k]->longest);
    const bool text = (o->data != NULL && !r->task) || (o->val != NULL && !r->asks);
    if (o->seq == 0 && !text) r->T = min_size(round_up(needed, 8), r->T);
    if (r->T < 2) die("examples need --seq 2 or more, not %zu", r->T);
    r->train.T = r->val.T = r->T;
    if (!r->words) r->val.T = min_size(round_up(r->task_val.longest, 8), r->T);
    task_pack(&r->task_train, r->T, r->packed);
    if (r->task) r->train.sequences = task_rows(&r->task_train, true);
    if (r->asks) r->val.sequences = task_rows(&r->task_val, false);
}

// Opens --data and --val. Without --val, holds out the last tenth of --data. Sets the vocabulary of
// a new model: --vocab, or the size that the tokenizer needs.
static void run_open_data(Run *r) {
    const Options *o = &r->o;
    GPT2Config *c = &r->state.config;
    TokenData data = {0};  // the files of --data, unless they have examples
    Error err;
    r->task = o->data != NULL && (o->labels != NULL || path_is_examples(o->data));
    r->asks = o->val == NULL ? r->task : o->labels != NULL || path_is_examples(o->val);
    if (o->pack == PACK_ON && !r->task && o->data != NULL)
        die("--pack on needs examples: JSON lines, or --labels");
    const bool texts = o->data != NULL && !r->task;
    if (texts) data = data_open(o->data, r->tokenizer);
    if (texts && !data.text && o->tokenizer == NULL && r->tokenizer != NULL
        && r->tokenizer->vocab == 256)
        r->tokenizer = NULL;  // tokens of files are no bytes: they are taken for GPT-2's
    const size_t needed = r->tokenizer != NULL ? r->tokenizer->vocab : 50257;
    if (!o->resume && r->saved_model == NULL) {
        if (o->vocab) c->vocab = o->vocab;
        else if (o->data == NULL && (o->plan || o->calibrate)) {}  // the preset's vocabulary stays
        else if (needed == 256 || c->vocab < needed) c->vocab = needed;
    }
    if (!gpt2_finish(c, &err)) die("%s", err.text);
    // A tokenizer may have added tokens that the saved model lacks. Texts with these are refused.
    const size_t base = r->tokenizer == NULL ? 0 : o->vocab > 0 ? needed : r->tokenizer->base;
    if (base > c->vocab) die("the tokenizer has %zu tokens and the model only %zu", base, c->vocab);
    data_check(&data, c->vocab);
    if (r->task || r->asks) run_open_task(r);
    if (texts) {
        const size_t all = data.tokens, cut = o->val == NULL ? all - all / 10 : all;
        r->train = loader_make(&data, 0, cut, r->T, o->seed, true, o->data);
        if (o->val == NULL) r->val = loader_make(&data, cut, all, r->T, o->seed, false, NULL);
    }
    if (o->val != NULL && !r->asks) {
        const TokenData val = data_open(o->val, r->tokenizer);
        data_check(&val, c->vocab);
        r->val = loader_make(&val, 0, val.tokens, r->T, o->seed, false, o->val);
    }
    const uint64_t hash = hash_word(r->task ? r->task_train.count : r->train.data.tokens,
                                    r->task ? task_hash(&r->task_all) : data_hash(&data));
    if (o->resume && o->data != NULL && hash != r->state.data_hash && r->rank == 0)
        fprintf(stderr, "tide: the data is not what this run began with: it goes on, but not with "
                        "the same bits\n");
    r->state.data_hash = hash;
}

// Returns how many sequences of the validation data are evaluated.
static size_t run_val_rows(const Run *r) {
    const size_t asked = r->o.eval_batches, all = r->val.sequences;
    if (asked == 0 && r->asks) return all;
    return min_size(all, (asked > 0 ? asked : 20) * r->B);
}

// Returns a hash of the validation data, and of the number and length of the rows evaluated.
static uint64_t run_val_hash(const Run *r) {
    const uint64_t parts[] = {run_val_rows(r), r->val.T,
                              r->asks ? task_hash(&r->task_val) : data_hash(&r->val.data)};
    return hash_bytes(parts, sizeof parts);
}

// ---------------------------------------------------------------------------------------------
// The lines that a run prints before its first step, and its refusals

// Prints which model is trained on which data, and the processor. A preset is only a shape: its
// weights are random. A note says so if a sample, an evaluation or MeZO would use such weights, or
// if trained weights have been published under this name.
static void run_describe(const Run *r) {
    const GPT2Config *c = &r->state.config;
    const Options *o = &r->o;
    const bool fresh = !o->resume && r->saved_model == NULL, mezo = o->optimizer == OPTIMIZER_MEZO;
    const bool published = strncmp(o->model, "gpt2", 4) == 0 || c->family == FAMILY_OPT;
    if (fresh && !o->plan && (r->only_sampling || published || (r->training ? mezo : r->batches)))
        fprintf(r->only_sampling ? stderr : stdout, "note: these weights are random; for trained "
                "ones --model DIR, a run's --out or what dev/data/model.sh fetches\n");
    const Chat *chat = o->chat ? &r->chat : &run_task(r)->chat;
    if (chat->format != NULL && !o->plan)
        fprintf(o->chat ? stderr : stdout, "conversations: %s, as %s says; default system message: "
                "%s%s\n", chat->format->name, o->chat_format > 0 ? "--chat-format"
                : chat->has_template ? "the chat template" : "a token", chat->front,
                chat->system != NULL ? chat->system : chat->unread
                ? "none that can be read in the template" : "none");
    if (r->training && r->task && chat->has_template && !chat_stops(r->tokenizer, chat->ids[0]))
        printf("note: generation_config.json lacks token %d, which ends a turn: other programs go "
               "on behind it until its \"eos_token_id\" has it\n", chat->ids[0]);
    if (r->only_sampling && !o->plan) return;
    printf("model: %zu layer%s, %zu head%s", c->layers, plural(c->layers), c->heads,
           plural(c->heads));
    if (config_kv(c) < c->heads) printf(" (%zu of keys)", config_kv(c));
    printf(", %zu channel%s, context %zu", c->channels, plural(c->channels), c->context);
    if (config_slides(c, c->context)) printf(" (sliding window %zu)", c->window);
    printf(", vocabulary %zu: %.2f M parameters; ", c->vocab, 1e-6 * (double)r->table.parameters);
    if (fresh) printf("new, random weights\n");
    else if (!o->resume) printf("weights from %s\n", r->saved_model);
    else printf("weights of step %zu from %s\n", r->state.step, r->resume_from);
    if (r->saved_model != NULL && r->training && !mezo && o->dump == NULL && !option_given(o, "lr"))
        printf("note: --lr %g is for new weights; for trained ones take a tenth or less\n", o->lr);
    if (o->seq == 0 && r->batches && r->T < c->context)
        printf("data: without --seq, rows have %zu tokens; the model's context is %zu\n", r->T,
               c->context);
    const TaskSum sum = task_sum(&r->task_train, r->T), other = task_sum(&r->task_val, r->T);
    if (sum.cut + other.cut > 0)
        printf("data: %zu of %zu examples are longer than --seq %zu: prompts lose their front, "
               "conversations their last turns, other texts their end\n", sum.cut + other.cut,
               r->task_train.count + r->task_val.count, r->T);
    if (r->task && o->labels != NULL && !r->words)
        printf("labels: not all are one token, so each is a choice, of which all tokens count\n");
    if (o->steps == 0 || o->dump != NULL || o->data == NULL) return;
    const size_t train = r->task ? r->task_train.count : r->train.data.tokens;
    const size_t step = r->task ? r->step_sequences : r->step_tokens;
    const size_t held = r->val.sequences, rows = r->train.sequences;
    const size_t val = r->asks ? r->task_val.count : held > 0 ? r->val.data.tokens : 0;
    const char *const names[2] = {"token", "example"};
    const char *what = names[r->task], *unit = r->packed ? "row" : what;
    printf("data: %zu training %s%s, %.2f epochs in %zu step%s of %zu %s%s; %zu validation %s%s\n",
           train, what, plural(train), (double)o->steps * (double)r->step_sequences / (double)rows,
           o->steps, plural(o->steps), step, unit, plural(step), val, names[r->asks], plural(val));
    if (r->task && !r->words)
        printf("data: %zu row%s of %zu tokens%s, %.1f %% full; %zu of %zu tokens are trained\n",
               rows, plural(rows), r->T, r->packed ? ", packed" : "",
               100 * (double)sum.inputs / (double)(rows * r->T), sum.targets, sum.inputs);
    if (held == 0 && o->eval_every > 0)
        printf("data: nothing will be evaluated: the held-out tenth %s; name a file with --val\n",
               r->task ? "has no example" : "is shorter than --seq");
    if (!o->plan) cpu_describe();
}

// Refuses shapes that the GPU's kernels cannot compute: a row must be a multiple of a pack (16
// bytes), and not longer than a block of threads can hold.
static void run_check_shape(const Run *r) {
    const GPT2Config *c = &r->state.config;
    const size_t pack = r->o.precision == PRECISION_FP32 ? 4 : 8;
    const struct { const char *name; size_t n; } rows[] = {
        {"channels", c->channels}, {"channels of embeddings", config_embed(c)},
        {"channels of the MLP", c->ffn}, {"channels in all heads", config_att(c)},
        {"channels in all heads of queries, keys and values", config_qkv(c)}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].n % pack != 0)
            die("the GPU trainer takes multiples of %zu %s, not %zu; the CPU trainer takes any",
                pack, rows[i].name, rows[i].n);
    if (c->channels > 12288 || (c->rope.theta > 0 && config_head(c) > 256))
        die("the GPU trainer takes up to 12288 channels, and rotates heads of up to 256, not %zu "
            "and %zu; the CPU trainer takes any", c->channels, config_head(c));
}

// Ends the run if its ranks have different options or data.
static void run_agree(const Run *r) {
    char text[sizeof r->state.options];
    if (r->o.steps == 0 || r->o.dump != NULL)
        die("with %zu GPUs there is only training: leave the launcher out", r->world);
    options_write(&r->o, text, sizeof text);
    ranks_agree("options", text);
    ranks_agree("--out", r->o.out);
    snprintf(text, sizeof text, "data %016" PRIx64 ", %zu sequences, %zu for evaluation, from "
             "step %zu", r->state.data_hash, r->train.sequences, r->val.sequences, r->state.step);
    ranks_agree("data", text);
}

// Reads the command line, which must be the same on all ranks. Checks and locks --out.
static void run_open_options(Run *r, int argc, char **argv, bool gpu_build) {
    Options *o = &r->o;
    ranks_open();
    r->world = (size_t)ranks.world;
    r->rank = (size_t)ranks.rank;
    options_parse(o, argc, argv, gpu_build);
    if (o->resume_auto) {
        o->resume = state_newest(o->out, SIZE_MAX, false) > 0;
        ranks_broadcast(&o->resume, sizeof o->resume);
        if (!o->resume) options_check(o);
    }
    if (!gpu_build && r->world > 1) die("the CPU trainer is one process; for several: a GPU build");
    if (o->plan && r->world > 1) die("--plan is one process: say --world %zu", r->world);
    if (r->world > 1)  // a difference here could make ranks wait; run_agree() compares all options
        ranks_agree("options", o->resume ? o->no_save ? "--resume, --no-save" : "--resume, saving"
                                         : o->no_save ? "new run, --no-save" : "new run, saving");
    if (o->plan) r->world = o->world;
    omp_set_num_threads(cpu_threads(o->threads, ranks.local_world));  // for this thread's loops
    out_check(o, &r->lock);
}

// Sets the number of steps, the size of a step, and what this run does: train, sample, read data.
static void run_open_steps(Run *r) {
    Options *o = &r->o;
    r->B = o->batch;
    if (o->dump != NULL) o->accum = 1;  // the step that is dumped has one micro-batch
    r->step_sequences = r->B * o->accum * r->world;
    r->step_tokens = r->step_sequences * r->T;
    if (o->epochs > 0) {
        if (r->train.sequences == 0) die("--epochs needs --data, or --steps instead");
        o->steps = (size_t)ceil(o->epochs * (double)r->train.sequences / (double)r->step_sequences);
        printf("--epochs %g: %zu step%s\n", o->epochs, o->steps, plural(o->steps));
        o->epochs = 0;
        options_check(o);
    }
    if (o->zen_warmup == 0) o->zen_warmup = max_size(schedule_warmup(o), 1);
    r->training = o->steps > 0 || o->dump != NULL;
    r->only_sampling = !r->training && (o->chat || option_given(o, "prompt"));
    r->batches = r->training || (!r->only_sampling && (o->data != NULL || o->val != NULL));
    r->sampling = r->only_sampling || (o->steps > 0 && o->sample_every > 0);
}

// Refuses options that need something that the data or the model do not have.
static void run_check_together(Run *r) {
    const Options *o = &r->o;
    const bool trains = r->training && r->task, evaluated = r->val.sequences > 0;
    Error err;
    if (o->gpu_build) run_check_shape(r);
    if (r->only_sampling && r->tokenizer == NULL)
        die("--%s needs --tokenizer: %s", o->chat ? "chat" : "prompt", tokenizer_why.text);
    if (o->chat && !chat_open(&r->chat, r->tokenizer, o->chat_format, run_first_token(r),
                              time(NULL), &err))
        die("--chat: %s", err.text);
    if (trains && run_task(r)->chat.format != NULL)
        chat_export(&run_task(r)->chat, r->tokenizer);
    if (o->scores != NULL && (r->words || !r->batches))
        die(r->words ? "--scores: labels of one token each have no losses by token"
            : "--scores needs --data or --val to evaluate");
    if (trains && r->train.sequences == 0) die("%s has no example to train on", o->data);
    if (o->keep_best && o->steps > 0 && !evaluated && !o->plan)
        die("--keep-best needs validation data, and there is none: name a file with --val");
    if (r->batches && !r->training && !evaluated)
        die("the held-out tenth of %s %s: name a file with --val", o->data,
            r->task ? "has no example" : "is shorter than --seq");
    if (ranks.world > 1) run_agree(r);
}

// Fills *r from the command line and the files that it names. An error in any of these ends the
// program.
static void run_open(Run *r, int argc, char **argv, bool gpu_build) {
    Options *o = &r->o;
    *r = (Run){.lock = -1};
    run_open_options(r, argc, argv, gpu_build);
    run_open_model(r);
    run_open_tokenizer(r);
    run_open_data(r);
    r->table = gpt2_table(&r->state.config);
    run_open_steps(r);
    run_check_together(r);
    if (!o->calibrate) run_describe(r);
    o->seq = r->T;  // saved in checkpoints: the length itself, not 0 (auto)
    if (o->data != NULL && o->val != NULL && strcmp(o->data, o->val) == 0)
        printf("note: --val is --data: its loss says nothing of other data\n");
}

#endif
