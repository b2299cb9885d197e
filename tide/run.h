// run.h: a run, from its command line to what it leaves behind. Everything that a trainer does
// besides computing is here, once for the CPU and the GPU: what to train on what, first values,
// checkpoints, signals, and the words that are said at the end. The loop itself is the trainer's.
#ifndef TIDE_RUN_H
#define TIDE_RUN_H
#include "util.h"
#include "checkpoint.h"
#include "cpu.h"
#include "data.h"
#include "model.h"
#include "log.h"
#include "options.h"
#include "ranks.h"
#include "saver.h"
#include "task.h"
#include "tokenizer.h"
#include <signal.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// What a run has read from its command line and its files before the first step. Its loaders point
// into it: it must stay where it is.
typedef struct {
    Options o;
    const char *program;            // what the user called us: argv[0]
    GPT2Config config;
    GPT2Table table;
    Tokenizer *tokenizer;           // NULL: token files, and nobody said how they were made
    TokenData data, val_data;       // files that were opened
    TokenData train_view, val_view;
    Task task_all, task_val_all, task_train, task_val;  // instead of these, with --labels: the
    bool task;                      // files, and what of them is trained on and held out
    Loader train, val;              // .sequences (or examples) 0: there is no such data
    size_t B, T;                    // of a micro-batch
    size_t world, rank;             // GPUs that train together (ranks.h), and which one this is
    size_t step_sequences;          // of a step: its micro-batches on all GPUs together,
    size_t step_tokens;             // and their tokens
    const char *saved_model;        // --model is this file or directory; NULL: preset, or --resume
    TrainState state;               // of the newest whole checkpoint; step 0: there is none
    char resume_from[PATH_MAX];     // the one that a resumed run began with
    StateSave last;                 // the last one that this process has saved
    bool ends;                      // what is saved now is the last: then it must not fail
    bool open;                      // a save would lack something now: it waits (ZenFlow's window)
    bool save_due;                  // one does
    int skipped;                    // steps in a row that led nowhere
    bool training;                  // gradients are needed: for steps, or for --dump
    bool only_sampling;             // --steps 0 --prompt: nothing but the sample is printed
    bool batches;                   // batches of B x T are read: to train on, or to evaluate
    bool sampling;                  // samples are drawn: as the only thing, or while training
} Run;

// What a run saves. The first values go to parts[0].
typedef struct {
    const StatePart *parts;    // of a checkpoint
    int count;
    const StatePart *weights;  // of model.safetensors; NULL: not now
} RunState;

// One line of a trainer's memory plan: what it is for, how large it is, where its address goes (a
// pointer of any type); and whether it begins as zeros. One list is printed, allocated and freed.
typedef struct { const char *purpose; size_t bytes; void *pointer; bool zero; } Buffer;
enum { MAX_BUFFERS = 64 };

static inline void buffer_set(const Buffer *b, void *p) { memcpy(b->pointer, &p, sizeof p); }
static inline void *buffer_get(const Buffer *b) {
    void *p;
    memcpy(&p, b->pointer, sizeof p);
    return p;
}

// Prints what each of `world` ranks plans for a place ("GPU", "host") as a table: a line for each
// purpose, like "GPU gradients 12.55", and "GPU total 40.10 of 79.00 GiB"; in MiB, if that is less
// than 1 GiB. What is too small for a line, and padding, is "other". limit SIZE_MAX: there is none.
static inline void plan_print(const char *place, const Buffer *list, int n, size_t total,
                              size_t limit, size_t world) {
    const bool large = total >> 30 > 0;
    const double unit = large ? 1 << 30 : 1 << 20, least = large ? 0.005 : 0.05;
    const int digits = large ? 2 : 1;
    const char *name = large ? "GiB" : "MiB";
    double rest = (double)total / unit;
    printf("%s memory%s, in %s\n", place, world > 1 ? " per rank" : "", name);
    for (int i = 0; i <= n; i++) {
        const char *purpose = i < n ? list[i].purpose : "other";
        double size = i < n ? 0 : rest;
        bool seen = false;
        for (int j = 0; j < n; j++) {
            if (strcmp(purpose, list[j].purpose) != 0) continue;
            if (j < i) seen = true;
            size += (double)list[j].bytes / unit;
        }
        if (seen || size < least) continue;
        rest -= size;
        printf("%-4s %-20s %8.*f\n", place, purpose, digits, size);
    }
    printf("%-4s %-20s %8.*f", place, "total", digits, (double)total / unit);
    if (limit != SIZE_MAX) printf(" of %.*f", digits, (double)limit / unit);
    printf(" %s\n", name);
}

// A number of parameters for people: "0.42 M", "12.85 G".
typedef struct { char text[24]; } Count;
static inline Count count_text(double n) {
    Count c;
    snprintf(c.text, sizeof c.text, "%.4g %c", n * (n < 1e9 ? 1e-6 : 1e-9), n < 1e9 ? 'M' : 'G');
    return c;
}

// ---------------------------------------------------------------------------------------------
// Before the first step

// A resumed run goes on with as many sequences per step as it began with, so that data and schedule
// do. Unless --accum says how, it follows from --batch and the number of GPUs.
static inline void run_resume_batch(Run *r) {
    Options *o = &r->o;
    const size_t each = o->batch * r->world, was = o->accum;
    if (r->state.step == 0 || o->steps == 0) return;
    const size_t all = (size_t)(r->state.data_position / r->state.step);
    if (!option_given(o, "accum") && all % each == 0) o->accum = all / each;
    if (each * o->accum != all)
        die("this run has %zu sequences per step; --batch %zu, --accum %zu and %zu GPU%s make %zu",
            all, o->batch, o->accum, r->world, r->world > 1 ? "s" : "", each * o->accum);
    if (o->accum != was) printf("--accum is %zu now, for %zu sequences per step\n", o->accum, all);
}

// The model's shape: from the checkpoint to resume, from a saved model, or from a preset.
static inline void run_choose_model(Run *r) {
    Options *o = &r->o;
    GPT2Config *c = &r->config;
    Error err;
    if (o->resume) {
        if (!state_find(o->out, &r->state, c, r->resume_from, &err)) die("%s", err.text);
        options_resume(o, r->state.options);
        run_resume_batch(r);
        return;
    }
    if (gpt2_preset(c, o->model)) {
        if (o->layers) c->layers = o->layers;
        if (o->channels) c->channels = o->channels;
        if (o->heads) c->heads = o->heads;
        if (o->context) c->context = o->context;
    } else if (path_exists(o->model)) {
        r->saved_model = o->model;
        if (!model_config_load(o->model, c, &err)) die("%s", err.text);
        if (o->layers || o->channels || o->heads || o->context || o->vocab)
            die("--layers, --channels, --heads, --context and --vocab describe a new model; "
                "%s has its own", o->model);
    } else {
        die("--model %s: no such preset (nano, gpt2, gpt2-xl, d12, opt-125m, ..; see --help), "
            "and no such file", o->model);
    }
}

// The tokenizer: as told, or the one saved with the model, or bytes.
static inline void run_choose_tokenizer(Run *r) {
    const Options *o = &r->o;
    const char *saved = o->resume ? o->out : r->saved_model;
    char home[PATH_MAX], list[PATH_MAX] = "";
    struct stat merges;
    const char *file;
    Error err;
    if (saved != NULL && !model_path(saved, home, &file, &err)) die("%s", err.text);
    if (saved != NULL) path_join(list, home, "merges.txt");
    const char *dir = o->tokenizer != NULL ? o->tokenizer : path_exists(list) ? home : "bytes";
    if (strcmp(dir, "bytes") != 0) {
        r->tokenizer = tokenizer_load(dir);
        path_join(list, dir, "vocab.json");
        if (r->config.family == FAMILY_OPT && !path_exists(list))
            die("there is no %s, and merges.txt alone gives GPT-2's tokens, not OPT's", list);
    } else if (o->tokenizer != NULL || saved == NULL || r->config.vocab == 256) {
        r->tokenizer = tokenizer_bytes();
    }
    // else: a saved model with tokens that nobody explained; token files will do for it
    if (saved != NULL && strcmp(dir, "bytes") == 0 && o->tokenizer != NULL  // whose merges are none
        && (stat(list, &merges) == 0 ? merges.st_size > 16 : r->config.vocab >= 50257))
        die("--tokenizer bytes: the model in %s knows %zu other tokens: leave it out, or name the "
            "directory of theirs", home, r->config.vocab);
}

// Tells one training text from another without reading all of it: by sizes and both ends of files.
static inline uint64_t run_data_hash(const TokenData *d) {
    uint64_t hash = 0;
    for (size_t i = 0; i < d->count; i++) {
        const TokenSegment *s = &d->segments[i];
        const size_t bytes = s->count * (size_t)s->width, end = min_size(bytes, 1 << 16);
        const uint64_t parts[] = {hash, bytes, hash_bytes(s->tokens, end),
                                  hash_bytes((const char *)s->tokens + bytes - end, end)};
        hash = hash_bytes(parts, sizeof parts);
    }
    return hash;
}

// Opens --data and --val as labelled sentences (task.h). --seq 0: the longest prompt;
// --eval-batches, unless given: all.
static inline void run_open_task(Run *r) {
    Options *o = &r->o;
    const size_t V = r->config.vocab;
    Task *all = &r->task_all, *held = &r->task_val_all;
    if (r->tokenizer == NULL) die("--labels needs --tokenizer: the model came without one");
    // OPT has seen every text begin with </s>
    const bool opt = r->config.family == FAMILY_OPT && tokenizer_vocab(r->tokenizer) != 256;
    const int32_t first = opt ? 2 : -1;
    if (o->data != NULL)
        *all = task_open(o->data, o->labels, o->template_text, r->tokenizer, first, V);
    if (o->val != NULL)
        *held = task_open(o->val, o->labels, o->template_text, r->tokenizer, first, V);
    if (o->data != NULL) task_split(all, o->val == NULL ? 0.1 : 0, &r->task_train, &r->task_val);
    if (o->val != NULL) r->task_val = task_view(held, 0, held->count);
    if (o->seq == 0) {
        const size_t most = all->longest > held->longest ? all->longest : held->longest;
        r->T = min_size(round_up(most, 8), r->config.context);
    }
    if (r->T < 2) die("--labels needs --seq 2 or more, not %zu", r->T);
    r->train.sequences = r->task_train.count;
    r->val.sequences = r->task_val.count;
    if (!o->resume && !option_given(o, "eval-batches"))  // they are short: all of them
        o->eval_batches = (r->val.sequences + o->batch - 1) / o->batch + 1;
}

// With --labels: the task that knows their tokens.
static inline const Task *run_task(const Run *r) {
    return r->o.data != NULL ? &r->task_all : &r->task_val_all;
}

// run_data_hash() of a task: all of its tokens and labels.
static inline uint64_t run_task_hash(const Task *t) {
    if (t->count == 0) return 0;
    const uint64_t parts[] = {hash_bytes(t->first, (t->count + 1) * sizeof *t->first),
                              hash_bytes(t->tokens, t->first[t->count] * sizeof *t->tokens),
                              hash_bytes(t->label, t->count * sizeof *t->label)};
    return hash_bytes(parts, sizeof parts);
}

// Opens --data and --val, cuts off the held-out tenth if there is no --val, and settles the
// vocabulary of a new model: --vocab, or what the tokenizer needs.
static inline void run_open_data(Run *r) {
    const Options *o = &r->o;
    GPT2Config *c = &r->config;
    Error err;
    r->task = o->labels != NULL && (o->data != NULL || o->val != NULL);
    const bool texts = o->data != NULL && !r->task;
    if (texts) r->data = data_open(o->data, r->tokenizer);
    if (texts && !r->data.text && o->tokenizer == NULL && r->tokenizer != NULL
        && tokenizer_vocab(r->tokenizer) == 256) {
        tokenizer_free(r->tokenizer);  // it was a guess: token files are GPT-2's unless told
        r->tokenizer = NULL;
    }
    const size_t needed = r->tokenizer != NULL ? tokenizer_vocab(r->tokenizer) : 50257;
    if (!o->resume && r->saved_model == NULL) {
        if (o->vocab) c->vocab = o->vocab;
        else if (o->data == NULL && o->plan) {}  // the preset's
        else if (needed == 256 || c->vocab < needed) c->vocab = needed;
    }
    if (!gpt2_finish(c, &err)) die("%s", err.text);
    if (r->tokenizer != NULL && needed > c->vocab)
        die("the tokenizer has %zu tokens and the model only %zu", needed, c->vocab);
    if (r->task) run_open_task(r);
    if (o->val != NULL && !r->task) r->val_data = data_open(o->val, r->tokenizer);
    if (texts) {
        data_split(&r->data, o->val == NULL ? 0.1 : 0, &r->train_view, &r->val_view);
        r->train = loader_make(&r->train_view, r->T, o->seed, true);
        loader_check(&r->train);
    }
    if (!r->task) {
        const TokenData *val = o->val != NULL ? &r->val_data : &r->val_view;
        r->val = loader_make(val, r->T, o->seed, false);
        if (o->val != NULL) loader_check(&r->val);
    }
    const uint64_t hash = r->task ? run_task_hash(&r->task_all) : run_data_hash(&r->data);
    if (o->resume && o->data != NULL && hash != r->state.data_hash && r->rank == 0)
        fprintf(stderr, "tide: the data is not what this run began with: it goes on, but not with "
                        "the same bits\n");
    r->state.data_hash = hash;
}

static inline bool run_state_exists(const char *out) {
    char dir[PATH_MAX];
    StateEntry *entries;
    path_join(dir, out, "checkpoints");
    const size_t count = state_list(dir, &entries, false);
    free(entries);
    return count > 0;
}

// A run that is refused later (no memory, no GPU) leaves no empty --out behind.
static const char *run_made;
static inline void run_unmake(void) {
    char path[PATH_MAX], log[PATH_MAX];
    path_join(path, run_made, ".lock");
    path_join(log, run_made, "log.jsonl");
    if (!path_exists(log) && unlink(path) == 0) (void)rmdir(run_made);  // not if there is a file
}

// One run owns --out: as long as one of its processes lives, it holds a lock (flock) on the file
// .lock there, which the system takes back however a process ends. Rank 0 takes the lock alone,
// and later (share) passes it on to all ranks.
static inline void run_lock(const Run *r, bool share) {
    static int fd = -1;
    char path[PATH_MAX], owner[256] = "", host[128] = "";
    path_join(path, r->o.out, ".lock");
    if (fd >= 0 && !share) return;  // by --resume
    if (fd < 0) fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return;  // nothing to lose, or not shared
    if (fd >= 0 && flock(fd, (share ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) {
        gethostname(host, sizeof host - 1);
        if (!share && ftruncate(fd, 0) == 0) dprintf(fd, "process %d on %s\n", (int)getpid(), host);
        return;
    }
    if (fd < 0 || errno != EWOULDBLOCK) {
        fprintf(stderr, "tide: warning: %s cannot be locked (%s): nothing keeps a second run from "
                "writing there\n", path, strerror(errno));
        return;
    }
    const ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    owner[strcspn(owner, "\n")] = '\0';
    die("--out %s belongs to a run that is still at work (%s): choose another --out", r->o.out,
        n > 0 ? owner : "nobody knows which");
}

// Refuses an --out or a --dump that cannot be written, and an --out that holds another run, before
// anything is computed.
static inline void run_check_output(const Run *r) {
    const Options *o = &r->o;
    char file[PATH_MAX];
    if (o->dump != NULL && !path_is_writable(o->dump))
        die("--dump %s: %s", o->dump, strerror(errno));
    if (o->dump != NULL || (o->steps == 0 && (o->resume || !option_given(o, "out")))) return;
    if (o->plan || o->calibrate || r->rank > 0) return;
    const bool is_new = !path_exists(o->out);
    if (!make_directories(o->out)) die("--out %s: %s", o->out, strerror(errno));
    path_join(file, o->out, "log.jsonl");
    if (!path_is_writable(file)) die("--out %s: %s", o->out, strerror(errno));
    run_lock(r, false);
    if (is_new) {
        run_made = o->out;
        atexit(run_unmake);
    }
    if (!o->resume && run_state_exists(o->out))
        die("%s holds the checkpoints of an earlier run: continue it with --resume, or choose "
            "another --out", o->out);
}

// Says what is going to be trained on what, and what a training run computes with. A preset is a
// shape, with random weights: who samples it, evaluates it or tunes it with MeZO is told.
static inline void run_describe(const Run *r) {
    const GPT2Config *c = &r->config;
    const Options *o = &r->o;
    const bool fresh = !o->resume && r->saved_model == NULL, mezo = o->optimizer == OPTIMIZER_MEZO;
    if (fresh && !o->plan && (r->only_sampling || (r->training ? mezo : r->batches)))
        fprintf(r->only_sampling ? stderr : stdout, "note: these weights are random; for trained "
                "ones --model DIR, a run's --out or what dev/data/gpt2.sh and opt.sh fetch\n");
    if (r->only_sampling) return;
    printf("model: %zu layer%s, %zu head%s, %zu channel%s, context %zu, vocabulary %zu: "
           "%.2f M parameters; ", c->layers, plural(c->layers), c->heads, plural(c->heads),
           c->channels, plural(c->channels), c->context, c->vocab,
           1e-6 * (double)r->table.parameters);
    if (fresh) printf("new, random weights\n");
    else if (!o->resume) printf("weights from %s\n", r->saved_model);
    else printf("weights of step %zu from %s\n", r->state.step, r->resume_from);
    if (o->steps == 0 || o->dump != NULL || o->data == NULL) return;
    const size_t train = r->task ? r->train.sequences : r->train_view.tokens;
    const size_t step = r->task ? r->step_sequences : r->step_tokens;
    const size_t held = r->val.sequences, val = r->task || held == 0 ? held : r->val.data->tokens;
    const char *what = r->task ? "example" : "token";
    printf("data: %zu training %s%s, %.2f epochs in %zu step%s of %zu %s%s; %zu validation %s%s\n",
           train, what, plural(train),
           (double)o->steps * (double)r->step_sequences / (double)r->train.sequences, o->steps,
           plural(o->steps), step, what, plural(step), val, what, plural(val));
    if (held == 0 && o->eval_every > 0)
        printf("data: nothing will be evaluated: the held-out tenth %s; name a file with --val\n",
               r->task ? "has no example" : "is shorter than --seq");
    if (!o->plan) cpu_describe();
}

// Refuses shapes that the GPU's kernels do not take: they work on whole packs of 16 bytes, and hold
// a row of channels in one block of threads.
static inline void run_check_shape(const Run *r) {
    const size_t C = r->config.channels, F = r->config.ffn;
    const size_t pack = r->o.precision == PRECISION_FP32 ? 4 : 8;
    if (C > 12288) die("the GPU trainer takes at most 12288 channels, not %zu", C);
    if (C % pack != 0 || F % pack != 0)
        die("the GPU trainer needs channels and an MLP width that are multiples of 8 (of 4 with "
            "--precision fp32), not %zu and %zu; the CPU trainer takes any", C, F);
}

// Ends a run whose ranks were started with other options, or see other data.
static inline void run_agree(const Run *r) {
    char text[sizeof r->state.options];
    if (r->o.steps == 0 || r->o.dump != NULL)
        die("with %zu GPUs there is only training: leave the launcher out", r->world);
    options_to_json(&r->o, text, sizeof text);
    ranks_agree("options", text);
    ranks_agree("--out", r->o.out);
    snprintf(text, sizeof text, "data %016" PRIx64 ", %zu sequences, %zu for evaluation, from step "
             "%zu", r->state.data_hash, r->train.sequences, r->val.sequences, r->state.step);
    ranks_agree("data", text);
}

// Fills *r from the command line and the files that it names. Everything that can be wrong with
// them is found here, and ends the program.
static inline void run_open(Run *r, int argc, char **argv, bool gpu_build) {
    Options *o = &r->o;
    memset(r, 0, sizeof *r);
    r->program = argv[0];
    ranks_open();
    r->world = (size_t)ranks.world;
    r->rank = (size_t)ranks.rank;
    data_is_quiet = r->rank > 0;
    options_parse(o, argc, argv, gpu_build);
    if (!gpu_build && r->world > 1) die("the CPU trainer is one process; for several: a GPU build");
    if (o->plan && r->world > 1) die("--plan is one process: say --world %zu", r->world);
    if (o->plan) r->world = o->world;
#ifdef _OPENMP
    omp_set_num_threads(cpu_threads(o->threads, ranks.local_world));  // of this thread's loops
#endif
    if (o->resume && o->steps > 0 && !o->plan && r->rank == 0 && run_state_exists(o->out))
        run_lock(r, false);
    run_choose_model(r);
    r->T = o->seq > 0 ? o->seq : r->config.context;
    if (r->T > r->config.context)
        die("--seq %zu is longer than the model's context of %zu", r->T, r->config.context);
    run_choose_tokenizer(r);
    run_open_data(r);
    o->seq = r->T;  // what "0" meant, for the checkpoint
    r->B = o->batch;
    r->step_sequences = r->B * o->accum * r->world;
    r->step_tokens = r->step_sequences * r->T;
    if (gpu_build) run_check_shape(r);
    r->table = gpt2_table(&r->config);
    const bool data = o->data != NULL || o->val != NULL;
    r->training = o->steps > 0 || o->dump != NULL;
    r->only_sampling = !r->training && option_given(o, "prompt");
    r->batches = r->training || (!r->only_sampling && data);
    r->sampling = r->only_sampling || (o->steps > 0 && o->sample_every > 0);
    if (r->only_sampling && r->tokenizer == NULL)
        die("--prompt needs --tokenizer: the model came without one");
    if (r->task && r->training && r->train.sequences == 0)
        die("%s has no example to train on", o->data);
    if (r->task && r->batches && !r->training && r->val.sequences == 0)
        die("%s has fewer than 10 examples, none to hold out: name a file with --val", o->data);
    if (r->batches && !r->training && r->val.sequences == 0)
        die("the held-out tenth of %s is shorter than --seq %zu: name a file with --val", o->data,
            r->T);
    if (r->world > 1 && !o->plan) run_agree(r);
    run_check_output(r);
    Error err;
    if (ranks.world > 1 && !o->no_save && !state_is_shared(o->out, &err)) die("%s", err.text);
    if (ranks.world > 1 && r->rank == 0) run_lock(r, true);
    if (ranks.world > 1) ranks_barrier();
    if (ranks.world > 1 && r->rank > 0) run_lock(r, true);
    if (!o->calibrate) run_describe(r);
}

// The weights that --model names, a file's or a preset's fresh ones.
static inline void run_load_first(Run *r, const StatePart *part) {
    const GPT2Table *t = &r->table;
    const char *model = r->saved_model;
    Error err;
    if (model != NULL && !model_load(model, &r->config, t, part, &err)) die("%s", err.text);
    float *buffer = model == NULL ? part_buffer(part, 1, t) : NULL;
    for (int i = 0; model == NULL && i < t->count; i++) {
        const GPT2Tensor *x = &t->tensors[i];
        if (!part_has(part, x->offset, part_extent(x, 0, x->rows * x->cols))) continue;
        float *w = part_room(part, x, 0, x->rows * x->cols, buffer);
        gpt2_init_tensor(t, i, w, r->o.seed);
        part_put(part, x, 0, x->rows * x->cols, w);
    }
    free(buffer);
}

// Values for the first step: the checkpoint's, or those that --model names. Parts that are not
// there (AdamW's moments "m" and "v" without training) are passed over.
static inline void run_load(Run *r, const RunState *x) {
    Error err;
    if (!r->o.resume) run_load_first(r, &x->parts[0]);
    else if (!state_load(r->resume_from, &r->config, &r->table, x->parts, x->count, &err))
        die("%s", err.text);
    if (r->o.optimizer == OPTIMIZER_ADAMW && r->o.offload != OFFLOAD_ZENFLOW)
        train_state_free(&r->state);  // zenflow's, from here on without it
}

// ---------------------------------------------------------------------------------------------
// During the run

// The first sequence of a micro-batch (the first is 0) of a step (the first is 1): all GPUs'
// micro-batches of one number lie side by side. Which sequences a step has is then the same on any
// number of GPUs.
static inline uint64_t run_position(const Run *r, size_t step, size_t micro) {
    return (((uint64_t)(step - 1) * r->o.accum + micro) * r->world + r->rank) * r->B;
}

// Fills `rows` rows of T tokens with the sequences at `position` and after. False, with the reason
// in err, on a token that the model does not know. Of a task (rows, 2) targets: see task_batch().
static inline bool run_batch(const Run *r, const Loader *loader, uint64_t position, size_t rows,
                             int32_t *inputs, int32_t *targets, Error *err) {
    if (r->task) {
        const bool train = loader == &r->train;
        task_batch(train ? &r->task_train : &r->task_val, r->o.seed, train, position, rows, r->T,
                   inputs, targets);
        return true;
    }
    for (size_t b = 0; b < rows; b++)
        if (!loader_sequence(loader, position + b, r->config.vocab, inputs + b * r->T,
                             targets + b * r->T, err))
            return false;
    return true;
}

static inline void run_save_tokenizer(const Run *r) {
    if (r->tokenizer != NULL && r->rank == 0) tokenizer_save(r->tokenizer, r->o.out);
}

// --save-every auto: when the next checkpoint is due, by seconds_now(). Saving may take 5 % of the
// time: after one that took d seconds, the next one begins 19 d seconds later, or after 10 minutes.
static double run_save_due;

static inline double run_save_pause(void) {
    const char *seconds = getenv("TIDE_SAVE_SECONDS");  // tests are in a hurry
    return seconds != NULL ? strtod(seconds, NULL) : 600;
}

static inline void run_save_next(double seconds) {
    run_save_due = seconds_now() + fmax(run_save_pause(), 19 * seconds);
}

// A checkpoint that cannot be saved, because the disk is full, ends the run only if there is no
// earlier one, or no later chance.
static inline void run_save_failed(const Run *r, const Error *err) {
    if (r->state.step == 0) fail("%s", err->text);
    if (r->ends) fail("%s; the checkpoint of step %zu is whole", err->text, r->state.step);
    if (r->rank == 0)
        fprintf(stderr, "tide: warning: %s; the run goes on, and the checkpoint of step %zu is "
                "whole\n", err->text, r->state.step);
}

// Of several ranks, all call the following functions, at the same steps.

// What to save: the state after `step` steps.
static inline StateSave *run_save_what(Run *r, size_t step, const RunState *what) {
    StateSave *x = &r->last;
    x->out = r->o.out;
    x->config = &r->config;
    x->table = &r->table;
    x->parts = what->parts;
    x->count = what->count;
    x->keep = (int)r->o.keep;
    x->state = r->state;
    x->state.step = step;
    x->state.seed = r->o.seed;
    x->state.data_position = step * r->step_sequences;
    return x;
}

// Leaves weights that other programs load in --out, and with `state` a checkpoint to resume from,
// unless there is one of this step. Each is whole or not there; what was saved before stays if they
// fail. Where rank 0 has not all weights, they come from a checkpoint.
static inline void run_save(Run *r, size_t step, bool state, const RunState *x) {
    const Options *o = &r->o;
    StateSave *last = &r->last;
    const int eot = r->tokenizer != NULL ? tokenizer_eot(r->tokenizer) : -1;
    const bool bf16 = o->save_dtype == SAVE_BF16;
    bool whole = ranks.world == 1 || x->weights == NULL || part_is_whole(x->weights, &r->table);
    Error err;
    if (o->no_save) return;
    const double start = seconds_now();
    state = state && step != r->state.step;
    ranks_broadcast(&whole, sizeof whole);
    if (!whole && (last->final[0] == '\0' || last->state.step != step)) state = true;
    bool ok = !state || state_save(run_save_what(r, step, x), &err);
    if (!ok && r->state.step > 0 && strstr(err.text, strerror(ENOSPC)) != NULL) {
        last->keep = 1;  // room is worth more than the checkpoints before the newest
        last->state.step = r->state.step;
        state_prune(last);
        ok = state_save(run_save_what(r, step, x), &err);
    }
    if (state && ok) r->state.step = step;
    if (ok && x->weights != NULL)
        ok = state_agree(ranks.rank > 0 ||
                         (whole ? model_save(o->out, &r->config, &r->table, x->weights, bf16, eot,
                                             &err) : state_model(last, bf16, eot, &err)), &err);
    if (!ok) run_save_failed(r, &err);
    run_save_next(seconds_now() - start);
}

static volatile sig_atomic_t stop_requested;  // a signal that came: finish the step, save, exit
static volatile double stop_time;             // when, by seconds_now()

// The terminal, make and launchers pass a signal on that came to the whole group: only one that
// comes a second later is meant to end the program at once. (Not SIGPIPE, which is each line for a
// `tee` that Ctrl-C has ended.)
static inline void request_stop(int signal_number) {
    if (stop_requested == 0) {
        stop_time = seconds_now();
        stop_requested = signal_number;
    } else if (signal_number != SIGPIPE && seconds_now() - stop_time > 1) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

// What ranks tell each other at every step, with their losses: whether a signal came (its number),
// and whether a checkpoint is due. All then know, by the largest of each, the same, and do the same
// after this step.
enum { NEWS_SIGNAL, NEWS_DUE, NEWS };
static double run_news[NEWS];

static inline void run_tell(double *mine) {
    mine[NEWS_SIGNAL] = stop_requested;
    mine[NEWS_DUE] = seconds_now() >= run_save_due;
}

// said: of rank k, what run_tell() said, at said[k * stride].
static inline void run_hear(const double *said, size_t stride) {
    memset(run_news, 0, sizeof run_news);
    for (size_t k = 0; k < (size_t)ranks.world; k++)
        for (int i = 0; i < NEWS; i++)
            run_news[i] = fmax(run_news[i], said[k * stride + (size_t)i]);
    if (run_news[NEWS_SIGNAL] != 0 && stop_requested == 0)
        request_stop((int)run_news[NEWS_SIGNAL]);
}

static inline bool run_hears(int news) {
    if (ranks.world == 1) run_tell(run_news);
    return run_news[news] != 0;
}

// Floating-point operations of a step: forward and backward; or two forward passes per direction.
static inline double run_step_flops(const Run *r) {
    const double both = gpt2_flops_per_token(&r->config, r->T) * (double)r->step_tokens;
    return r->o.optimizer == OPTIMIZER_MEZO ? both / 3 * 2 * (double)r->o.zo_queries : both;
}

// Logs a step that took so many seconds, or that nothing was updated. more: see log_step(). A run
// may go on without an update, but not for ever: ten in a row end it. So do ten whose losses are
// all equal to the last bit, of which only the decay is left.
static inline void run_stepped(Run *r, Log *log, size_t step, double loss, double norm, double lr,
                               double seconds, bool updated, const char *more) {
    Error err;
    r->skipped = updated && norm > 0 ? 0 : r->skipped + 1;
    if (r->skipped == 10)
        fail("the loss is %g and the norm %g at step %zu, and 10 steps in a row led nowhere: try "
             "a lower --lr (what was saved in %s before is intact)", fabs(loss), fabs(norm), step,
             r->o.out);
    if (!updated) log_skip(log, step, r->o.steps, loss, norm);
    else if (!log_step(log, step, r->o.steps, loss, norm, lr, 1e3 * seconds,
                       (double)r->step_tokens / seconds, run_step_flops(r) / seconds, more, &err))
        fail("%s", err.text);
}

// After `step` steps: is it time to evaluate, for a sample, for a checkpoint?
static inline bool run_is_every(const Run *r, size_t step, size_t every) {
    return every > 0 && (step % every == 0 || step == r->o.steps);
}
static inline bool run_evaluates(const Run *r, size_t step) {
    return r->val.sequences > 0 && run_is_every(r, step, r->o.eval_every);
}
static inline bool run_samples(const Run *r, size_t step) {
    return r->tokenizer != NULL && run_is_every(r, step, r->o.sample_every);
}
static inline bool run_saves(Run *r, size_t step) {
    const size_t every = r->o.save_every;
    if (every == 0 || r->o.no_save || step == r->o.steps) return false;  // the end saves anyway
    if (every == AUTO_COUNT ? run_hears(NEWS_DUE) : step % every == 0) r->save_due = true;
    if (!r->save_due || r->open) return false;
    r->save_due = false;
    return true;
}

// Has a signal come that ends the run, now that it can be saved?
static inline bool run_stops(const Run *r) { return run_hears(NEWS_SIGNAL) && !r->open; }

// "1.5 GB"
static inline const char *run_bytes(char text[32], double bytes) {
    const double unit = bytes < 1e9 ? 1e6 : bytes < 1e12 ? 1e9 : 1e12;
    snprintf(text, 32, "%.*f %s", bytes < 10 * unit, bytes / unit,
             unit < 1e9 ? "MB" : unit < 1e12 ? "GB" : "TB");
    return text;
}

// Says when the run saves what, and what disk that takes: a new checkpoint is written before an old
// one goes, and so are the weights. Refuses a disk without room for one of each.
static inline void run_check_disk(const Run *r, const RunState *x) {
    const Options *o = &r->o;
    const double weights = (double)r->table.parameters * (o->save_dtype == SAVE_BF16 ? 2 : 4);
    const double state = 4.0 * x->count * (double)r->table.parameters;
    const double most = ((double)o->keep + 1) * state + 2 * weights;
    char dir[PATH_MAX], each[32], all[32], left[32], when[80] = "only at the end";
    struct statvfs disk;
    StateEntry *entries = NULL;
    path_join(dir, o->out, "checkpoints");
    const double there = (double)state_list(dir, &entries, true) * state;
    free(entries);
    if (o->no_save || statvfs(o->out, &disk) != 0) return;
    const double room = (double)disk.f_bavail * (double)disk.f_frsize;
    run_bytes(left, room);
    if (room + fmax(there - state, 0) < state + weights)  // all but the newest may go
        die("--out %s: a checkpoint and the weights take %s, and only %s are free there: make "
            "room, name another disk, or save nothing (--no-save)", o->out,
            run_bytes(all, state + weights), left);
    if (o->save_every == AUTO_COUNT)
        snprintf(when, sizeof when, "every %.3g minutes, or less often: at most 5 %% of the time",
                 run_save_pause() / 60);
    else if (o->save_every > 0) snprintf(when, sizeof when, "every %zu steps", o->save_every);
    printf("checkpoints: %s, %s; on disk, with --keep %zu and the weights, up to %s; free: %s%s\n",
           run_bytes(each, state), when, o->keep, run_bytes(all, most), left,
           room + there < most ? ", NOT ENOUGH for so many: older ones go when it is full" : "");
}

// Before the first step of training: what is in --out from the start, and signals end the run well.
static inline void run_begin(Run *r, Log *log, const RunState *x) {
    const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action, before;
    Error err;
    options_to_json(&r->o, r->state.options, sizeof r->state.options);
    if (r->rank == 0) run_check_disk(r, x);
    if (!r->o.resume) run_save_tokenizer(r);
    if (!log_open(log, r->rank == 0 ? r->o.out : NULL, r->state.step, &err)) die("%s", err.text);
    memset(&action, 0, sizeof action);
    sigfillset(&action.sa_mask);
    action.sa_handler = request_stop;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        sigaction(signals[i], &action, &before);
        if (signals[i] == SIGHUP && before.sa_handler == SIG_IGN)  // nohup
            sigaction(SIGHUP, &before, NULL);
    }
    run_save_next(0);
}

// An evaluation, after `step` steps: to the log, or, without one, printed. accuracy: of --labels.
static inline void run_evaluated(const Run *r, Log *log, size_t step, double loss,
                                 double accuracy) {
    Error err;
    if (!r->task) accuracy = -1;
    if (log == NULL) {
        printf("val loss %.6f", loss);
        if (r->task) printf(", accuracy %.1f %%", 100 * accuracy);
        printf("\n");
    } else if (!log_eval(log, step, loss, accuracy, &err)) {
        fail("%s", err.text);
    } else if (!log_plot(log, &err)) {
        fprintf(stderr, "tide: warning: %s\n", err.text);
    }
}

// ---------------------------------------------------------------------------------------------
// At its end

// How to sample from what a run has saved, where it has a tokenizer: with the run's precision and,
// if one GPU may be too small for the model, with layers that stream. In quotes, if a shell would
// not take a path as it is.
static inline void run_hint(const Run *r) {
    const Options *o = &r->o;
    const char *special = " \t\n\"$`\\*?[]{}()<>|;&#~!'", *out = o->out;
    const char *q = strpbrk(r->program, special) || strpbrk(out, special) ? "'" : "";
    const bool ask = r->task && strpbrk(o->template_text, "\"$`\\!") == NULL;
    const bool stream = o->optimizer == OPTIMIZER_MEZO || (r->world > 1 && o->zero == 3);
    char merges[PATH_MAX];
    path_join(merges, out, "merges.txt");
    if (!path_exists(merges) || strchr(r->program, '\'') || strchr(out, '\'')) return;
    printf("try it: %s%s%s --model %s%s%s%s%s --steps 0 --prompt \"...%s\"%s\n", q, r->program, q,
           q, out, q,
           !o->gpu_build || o->precision == PRECISION_BF16 ? "" :
           o->precision == PRECISION_FP32 ? " --precision fp32" : " --precision fp16",
           o->gpu_build && stream ? " --optimizer mezo" : "", ask ? o->template_text : "",
           r->task ? " --sample-tokens 1" : "");
}

// After `step` steps, and after what they made was saved: the plot, and the last words. Returns the
// program's exit code: of a run that a signal has stopped, the one that a shell gives it.
static inline int run_end(const Run *r, Log *log, size_t step) {
    const char *out = r->o.out;
    const bool idle = step == log->resumed;
    Error err;
    if (!log_plot(log, &err)) fail("%s", err.text);
    log_close(log);
    if (idle && step >= r->o.steps)
        printf("nothing to do: the run in %s is at step %zu, and --steps is %zu: raise it to go "
               "on\n", out, step, r->o.steps);
    else if (r->o.no_save)
        printf("%zu of %zu steps; log.jsonl and loss.svg are in %s, nothing was saved "
               "(--no-save)\n", step, r->o.steps, out);
    else if (step == 0)
        printf("stopped by signal %d before the first step\n", (int)stop_requested);
    else if (step < r->o.steps)
        printf("stopped by signal %d after step %zu; continue with --resume --out %s\n",
               (int)stop_requested, step, out);
    else {
        printf("done: %zu steps; model.safetensors, log.jsonl and loss.svg are in %s\n", step, out);
        run_hint(r);
    }
    return step < r->o.steps ? 128 + (int)stop_requested : 0;
}

// --steps 0 --out: saves the model as it was loaded, which converts it.
static inline void run_convert(Run *r, const RunState *x) {
    if (!option_given(&r->o, "out") || r->o.resume) return;
    run_save_tokenizer(r);
    run_save(r, 0, false, x);
}

// --dump: loss, logits (B*T, Vp) and gradients (an arena) of the first batch, all in host memory,
// for other implementations to check.
static inline void run_dump(const Run *r, const int32_t *inputs, const int32_t *targets,
                            double loss, const float *logits, const float *grads) {
    Error err;
    if (!dump_save(r->o.dump, &r->config, &r->table, r->B, r->T, inputs, targets, loss, logits,
                   grads, &err))
        fail("%s", err.text);
    printf("loss %.6f; dump written to %s\n", loss, r->o.dump);
}

#endif
