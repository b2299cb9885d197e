// run.h: a run, from its command line to what it leaves behind. Everything that a trainer does
// besides computing is here, once for all: what to train on what, first values, samples,
// checkpoints, signals, damaged data, and the words that are said at the end; evaluate.h has
// evaluation. A trainer is
//
//     run_open(r, argc, argv, ..);     // options and data
//     run_load(r, &state);             // first values
//     if (r->o.dump != NULL) return run_dump(r, ..);
//     if (r->o.steps == 0) return run_without_steps(r, loss, next, model);
//     for (size_t step = run_begin(r, peak); run_goes_on(r, step); step++) {
//         const StepResult x = its_step(model, r, step);
//         run_log_step(r, step, &x);
//         if (run_wants_eval(r, step)) run_eval(r, step, loss, model);
//         if (run_wants_sample(r, step)) run_sample(r, step, next, model);
//         if (run_wants_save(r, step)) run_save(r, more);
//     }
//     run_save(r, more);
//     return run_end(r);
//
// and its step reads data with run_micro_batch(), and takes run_adam_step() if that is its update.
#ifndef TIDE_RUN_H
#define TIDE_RUN_H
#include "../base/util.h"
#include "../../adam.h"
#include "../files/state.h"
#include "../cpu/cpu.h"
#include "../files/data.h"
#include "../base/model.h"
#include "log.h"
#include "options.h"
#include "../base/ranks.h"
#include "sample.h"
#include "../files/task.h"
#include "../files/tokenizer.h"
#include <fnmatch.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/statvfs.h>

// Its loaders point into it: it must stay where it is.
typedef struct {
    Options o;
    const char *program;            // argv[0]: what the user called us
    GPT2Config config;
    GPT2Table table;
    Tokenizer *tokenizer;           // NULL: token files, and nobody said how they were made
    TokenData data, val_data;       // the files of --data and --val
    TokenData train_view, val_view;
    bool task;                      // examples (task.h) instead of running text
    bool words;                     // whose --labels are one token each
    bool packed;                    // rows of several examples are trained
    Task task_all, task_val_all;    // the examples of --data and --val
    Task task_train, task_val;      // those to train on, and those held out
    Task task_choices;              // the questions of --choices
    Loader train, val, choices;     // .sequences (rows, of a task) 0: there is no such data
    size_t B, T;                    // of a micro-batch
    size_t world, rank;             // GPUs that train together (ranks.h), and which one this is
    size_t step_sequences;          // of a step: its micro-batches on all GPUs together
    size_t step_tokens;
    const char *saved_model;        // --model is this directory or file; NULL: preset, or --resume
    bool training;                  // gradients are needed: for steps, or for --dump
    bool only_sampling;             // --steps 0 --prompt: nothing but the sample is printed
    bool batches;                   // batches of B x T are read: to train on, or to evaluate
    bool sampling;                  // samples are drawn: as the only thing, or while training
    TrainState state;               // of the newest whole checkpoint; step 0: there is none
    char resume_from[PATH_MAX];     // the one that a resumed run began with
    int lock;                       // the file .lock in --out, see run_lock(); -1: not open
    RunState saves;                 // what run_save() saves; run_load() sets it
    Log log;
    double start;                   // of the step, by seconds_now()
    size_t done;                    // steps that are complete
    size_t idle;                    // steps of zeroth order, in a row, that led nowhere
    bool due;                       // a checkpoint is
    bool unasked;                   // an evaluation is
    double lowest;                  // --keep-best: of all evaluations' losses
    bool best_is_out;               // OUT/best has the weights of state.best
    bool open;                      // one would lack something now: it waits (ZenFlow's window)
    bool waits;                     // a signal came, and waits for that too
    bool ends;                      // what is saved now is the last: then it must not fail
    bool damaged;                   // a token file is, here or on another rank
    Error damage;                   // of a file here
} Run;

// ---------------------------------------------------------------------------------------------
// Before the first step

// A resumed run goes on with as many sequences per step as it began with, so that data and schedule
// do. Unless --accum says how, it follows from --batch and the number of GPUs.
static void run_resume_batch(Run *r) {
    Options *o = &r->o;
    const size_t each = o->batch * r->world, was = o->accum;
    if (r->state.step == 0 || o->steps == 0) return;
    const size_t all = (size_t)(r->state.data_position / r->state.step);
    if (!option_given(o, "accum") && all % each == 0) o->accum = all / each;
    if (all % r->world != 0)
        die("this run has %zu sequences per step: %zu GPUs cannot share them evenly", all,
            r->world);
    size_t fits = min_size(o->batch, all / r->world);  // less, with more --accum
    while (fits > 1 && all / r->world % fits != 0) fits--;
    if (each * o->accum != all)
        die("this run has %zu sequences per step; --batch %zu, --accum %zu and %zu GPU%s make %zu: "
            "take --batch %zu%s", all, o->batch, o->accum, r->world, plural(r->world),
            each * o->accum, fits, option_given(o, "accum") ? ", without --accum" : "");
    if (o->accum != was) printf("--accum is %zu now, for %zu sequences per step\n", o->accum, all);
}

// The model's shape: from the checkpoint to resume, from a saved model, or from a preset.
static void run_choose_model(Run *r) {
    Options *o = &r->o;
    GPT2Config *c = &r->config;
    Error err;
    if (o->resume) {
        if (!state_find(o->out, SIZE_MAX, &r->state, r->resume_from, &err)) die("%s", err.text);
        *c = r->state.config;
        const Options before = options_resume(o, r->state.options);
        const double was = schedule_lr(&before, r->state.step);
        const double would = schedule_lr(&before, r->state.step + 1);
        const double is = schedule_lr(o, r->state.step + 1);
        if (o->steps > r->state.step && o->epochs == 0 && fabs(is - would) > 0.01 * would)
            printf("note: the learning rate goes on at %.1e, after %.1e at step %zu: its schedule "
                   "follows the options, --steps %zu now and %zu before\n", is, was,
                   r->state.step, o->steps, before.steps);
        run_resume_batch(r);
        return;
    }
    if (gpt2_preset(c, o->model)) {
        if (o->layers) c->layers = o->layers;
        if (o->channels) c->channels = o->channels;
        if (o->channels && c->embed > 0) c->embed = c->channels / 2;
        if (o->heads) c->heads = o->heads;
        if (o->context) c->context = o->context;
    } else if (path_exists(o->model)) {
        r->saved_model = o->model;
        model_config_load(o->model, c);
        if (o->layers || o->channels || o->heads || o->context || o->vocab)
            die("--layers, --channels, --heads, --context and --vocab describe a new model; "
                "%s has its own", o->model);
    } else {
        die("--model %s: no such preset (nano, gpt2, gpt2-xl, d12, opt-125m, ..; see --help), "
            "and no such file", o->model);
    }
}

// The tokenizer: as told, or the one saved with the model, or bytes.
static void run_choose_tokenizer(Run *r) {
    const Options *o = &r->o;
    const char *saved = o->resume ? o->out : r->saved_model;
    char home[PATH_MAX] = "", list[PATH_MAX];
    struct stat merges;
    if (saved != NULL) model_directory(saved, home);
    path_join(list, home, "merges.txt");
    const bool lists = saved != NULL && path_exists(list);
    const bool unread = saved != NULL && o->tokenizer == NULL && tokenizer_unread(home);
    const char *dir = o->tokenizer != NULL ? o->tokenizer : lists ? home : "bytes";
    if (strcmp(dir, "bytes") != 0) {
        r->tokenizer = tokenizer_load(dir);
        path_join(list, dir, "vocab.json");
        if (r->config.family == FAMILY_OPT && !path_exists(list))
            die("there is no %s, and merges.txt alone gives GPT-2's tokens, not OPT's", list);
    } else if (o->tokenizer != NULL || saved == NULL || (r->config.vocab == 256 && !unread)) {
        r->tokenizer = tokenizer_bytes();
    }
    // else: a saved model with tokens that nobody explained; token files will do for it
    if (saved != NULL && strcmp(dir, "bytes") == 0 && o->tokenizer != NULL  // whose merges are none
        && (stat(list, &merges) == 0 ? merges.st_size > 16 : r->config.vocab >= 50257))
        die("--tokenizer bytes: the model in %s knows %zu other tokens: leave it out, or name the "
            "directory of theirs", home, r->config.vocab);
}

// With --labels: the task that knows their tokens.
static const Task *run_task(const Run *r) {
    return r->o.data != NULL ? &r->task_all : &r->task_val_all;
}

// The token with which every text begins: OPT has seen all of them begin with </s>. -1: none.
static int32_t run_first_token(const Run *r) {
    if (r->config.family == FAMILY_OPT && r->tokenizer->vocab != 256) return 2;
    return -1;
}

// Opens --choices. If nothing else is evaluated, --seq 0 is their longest one.
static void run_open_choices(Run *r) {
    const Options *o = &r->o;
    Task *t = &r->task_choices;
    *t = task_open(o->choices, NULL, NULL, r->tokenizer, run_first_token(r), r->config.vocab);
    if (task_rows(t, false) == t->count) die("%s: no line has several \"choices\"", o->choices);
    const size_t longest = round_up(t->longest, 8);
    if (o->seq == 0 && o->data == NULL && o->val == NULL)
        r->T = min_size(longest, r->config.context);
    r->choices.T = min_size(longest, r->T);
    r->choices.sequences = task_rows(t, false);
}

// Opens --data and --val as examples (task.h). --seq 0: the longest one, unless rows are packed.
static void run_open_task(Run *r) {
    Options *o = &r->o;
    const size_t V = r->config.vocab;
    const int32_t first = run_first_token(r);
    const char *labels = o->labels, *files[2] = {o->data, o->val};
    Task *opened[2] = {&r->task_all, &r->task_val_all}, *held = &r->task_val_all;
    for (int k = 0; k < 2; k++) {
        if (files[k] == NULL) continue;
        if (path_exists(files[k]) && path_is_examples(files[k]) != (labels == NULL))
            die(labels == NULL ? "%s: of --data and --val, both are JSON lines, or none"
                : "%s: JSON lines have no --labels, but \"choices\"", files[k]);
        *opened[k] = task_open(files[k], labels, o->template_text, r->tokenizer, first, V);
    }
    if (o->data != NULL)
        task_split(&r->task_all, o->val == NULL ? 0.1 : 0, &r->task_train, &r->task_val);
    if (o->val != NULL) r->task_val = task_view(held, 0, held->count);
    r->words = run_task(r)->labels > 0;
    r->packed = o->pack != PACK_OFF && !r->words && r->task_train.count > 0
             && (o->steps > 0 || o->dump != NULL);
    if (r->words && o->pack == PACK_ON)
        die("--pack on: --labels of one token each share their prompts, one in each row");
    const size_t longest = r->task_all.longest > held->longest ? r->task_all.longest
                                                               : held->longest;
    if (o->seq == 0 && !r->packed) r->T = min_size(round_up(longest, 8), r->config.context);
    if (r->T < 2) die("examples need --seq 2 or more, not %zu", r->T);
    r->train.T = r->val.T = r->T;
    if (!r->words) r->val.T = min_size(round_up(r->task_val.longest, 8), r->T);
    if (r->packed) task_pack(&r->task_train, r->T);
    r->train.sequences = task_rows(&r->task_train, true);
    r->val.sequences = task_rows(&r->task_val, false);
}

// Opens --data and --val, cuts off the held-out tenth if there is no --val, and settles the
// vocabulary of a new model: --vocab, or what the tokenizer needs.
static void run_open_data(Run *r) {
    const Options *o = &r->o;
    GPT2Config *c = &r->config;
    Error err;
    r->task = (o->data != NULL && (o->labels != NULL || path_is_examples(o->data)))
           || (o->val != NULL && (o->labels != NULL || path_is_examples(o->val)));
    if (o->pack == PACK_ON && !r->task && o->data != NULL)
        die("--pack on needs examples: JSON lines, or --labels");
    const bool texts = o->data != NULL && !r->task;
    if (texts) r->data = data_open(o->data, r->tokenizer);
    if (texts && !r->data.text && o->tokenizer == NULL && r->tokenizer != NULL
        && r->tokenizer->vocab == 256) {
        tokenizer_free(r->tokenizer);  // it was a guess: token files are GPT-2's unless told
        r->tokenizer = NULL;
    }
    const size_t needed = r->tokenizer != NULL ? r->tokenizer->vocab : 50257;
    if (!o->resume && r->saved_model == NULL) {
        if (o->vocab) c->vocab = o->vocab;
        else if (o->data == NULL && (o->plan || o->calibrate)) {}  // the preset's
        else if (needed == 256 || c->vocab < needed) c->vocab = needed;
    }
    if (!gpt2_finish(c, &err)) die("%s", err.text);
    if (r->tokenizer != NULL && needed > c->vocab)
        die("the tokenizer has %zu tokens and the model only %zu", needed, c->vocab);
    if ((r->task || o->choices != NULL) && r->tokenizer == NULL)
        die("examples need --tokenizer: %s", tokenizer_why);
    if (r->task) run_open_task(r);
    if (o->choices != NULL) run_open_choices(r);
    if (o->val != NULL && !r->task) r->val_data = data_open(o->val, r->tokenizer);
    if (texts) {
        data_split(&r->data, o->val == NULL ? 0.1 : 0, &r->train_view, &r->val_view);
        r->train = loader_make(&r->train_view, r->T, o->seed, true);
        loader_check(&r->train);
    }
    if (!r->task)
        r->val = loader_make(o->val != NULL ? &r->val_data : &r->val_view, r->T, o->seed, false);
    if (!r->task && o->val != NULL) loader_check(&r->val);
    const uint64_t hash = hash_word(r->task ? r->task_train.count : r->train_view.tokens,
                                    r->task ? task_hash(&r->task_all) : data_hash(&r->data));
    if (o->resume && o->data != NULL && hash != r->state.data_hash && r->rank == 0
        && r->state.version == STATE_VERSION)
        fprintf(stderr, "tide: the data is not what this run began with: it goes on, but not with "
                        "the same bits\n");
    r->state.data_hash = hash;
}

// A run that is refused later (no memory, no GPU) leaves no empty --out behind, nor the folders in
// which it was made: all behind the first run_kept characters of its path.
static const char *run_made;
static size_t run_kept;
static void run_unmake(void) {
    static const char *const made[] = {"log.jsonl", "config.json", ".tide", ".lock"};
    char path[PATH_MAX];
    for (int i = 0; i < 4; i++) {
        path_join(path, run_made, made[i]);
        if (i < 2 ? path_exists(path) : unlink(path) != 0) return;
    }
    snprintf(path, sizeof path, "%s", run_made);
    for (size_t n = strlen(path); n > run_kept && rmdir(path) == 0;) {  // not if there is a file
        while (n > 0 && path[n - 1] == '/') n--;
        while (n > 0 && path[n - 1] != '/') n--;
        while (n > 0 && path[n - 1] == '/') n--;
        path[n] = '\0';
    }
}

// One run owns --out: as long as one of its processes lives, it holds a lock (flock) on the file
// .lock there, which the system takes back however a process ends. how: LOCK_EX, and then LOCK_SH
// to share it with other ranks.
static void run_lock(Run *r, int how) {
    char path[PATH_MAX], owner[256] = "nobody knows which", host[128] = "";
    path_join(path, r->o.out, ".lock");
    if (r->lock < 0) r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    const bool locked = r->lock >= 0 && flock(r->lock, how | LOCK_NB) == 0;
    if (r->lock >= 0 && !locked && errno == EWOULDBLOCK) {
        (void)!pread(r->lock, owner, sizeof owner - 1, 0);
        owner[strcspn(owner, "\n")] = '\0';
        die("--out %s belongs to a run that is still at work (%s): choose another --out", r->o.out,
            owner);
    }
    if (!locked)
        fprintf(stderr, "tide: warning: %s cannot be locked (%s): nothing keeps a second run from "
                "writing there\n", path, strerror(errno));
    if (pread(r->lock, owner, sizeof owner - 1, 0) > 0 && strncmp(owner, "process ", 8) != 0)
        die("--out %s holds .lock, which this program did not write there", r->o.out);
    gethostname(host, sizeof host - 1);
    if (how == LOCK_EX && ftruncate(r->lock, 0) == 0)
        dprintf(r->lock, "process %d on %s\n", (int)getpid(), host);
}

// All ranks hold the lock of rank 0, and see in --out what rank 0 has written there, its lock.
static void run_share_lock(Run *r) {
    char mine[256] = "", first[256];
    if (r->rank == 0) run_lock(r, LOCK_SH);
    ranks_barrier();
    if (r->rank > 0) run_lock(r, LOCK_SH);
    (void)!pread(r->lock, mine, sizeof mine - 1, 0);
    memcpy(first, mine, sizeof first);
    ranks_broadcast(first, sizeof first);
    if (strcmp(mine, first) != 0)
        die("--out %s is not rank 0's: it must be in a file system that all ranks share", r->o.out);
    ranks_barrier();
}

// The files that a run writes into --out: those that a resumed run replaces, the others of a model,
// the rest. `.tide` there is the mark that this program has written them: a line for each of a
// model, behind one that says whether they are being written.
enum { OUT_RESUMED = 5, OUT_MODEL = 8, OUT_FILES = 13 };
static const char *const out_files[OUT_FILES] = {
    "model.safetensors", "config.json", "best/model.safetensors", "best/config.json",
    "best/tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    "log.jsonl", "log.jsonl.old", "loss.svg", "checkpoints", "best"};

// The files of a model and its tokenizer, whoever wrote them.
enum { MODEL_FILES = 11 };
static const char *const model_files[MODEL_FILES] = {
    "*.safetensors", "*.index.json", "*config.json", "tokenizer.*", "vocab.json", "merges.txt",
    "*_tokens.json", "*_map.json", "*.jinja", "*.gguf", "pytorch_model*"};

// The line of a file of `dir`: name, size, and hash of both ends. Empty if there is no such file.
static void run_mark_line(const char *dir, const char *name, char line[128]) {
    char path[PATH_MAX];
    struct stat s;
    size_t n = 0;
    uint64_t hash = 0;
    path_join(path, dir, name);
    line[0] = '\0';
    if (stat(path, &s) != 0) return;
    if (S_ISREG(s.st_mode) && s.st_size > 0) {
        const char *bytes = (const char *)file_map(path, &n);
        const size_t end = min_size(n, 1 << 16);
        hash = hash_bytes(bytes, end) + hash_words(n, bytes + n - end, end);
        munmap((void *)bytes, n);
    }
    snprintf(line, 128, "%.60s %zu %016" PRIx64 "\n", name, n, hash);
}

// Marks what is in --out as this program's; without room on the disk, there is no mark.
static void run_mark(const Run *r, bool writing) {
    char path[PATH_MAX], line[128];
    Error err;
    path_join(path, r->o.out, ".tide");
    FILE *f = r->rank == 0 ? replace_open(path, &err) : NULL;
    if (f != NULL) fputs(writing ? "writing\n" : "written\n", f);
    for (int i = 0; f != NULL && i < OUT_MODEL; i++) {
        run_mark_line(r->o.out, out_files[i], line);
        fputs(line, f);
    }
    if (r->rank == 0 && (f == NULL || !replace_close(f, path, &err))) unlink(path);  // no old one
}

// Refuses an --out that holds a model, or files of the names that a run writes, unless the mark
// says that this program wrote them. A resumed run is only refused for what it would replace.
static void run_check_owner(const char *out, bool resume) {
    char path[PATH_MAX], line[128], other[256] = "";
    Error err;
    size_t n;
    path_join(path, out, ".tide");
    char *mark = path_exists(path) ? file_read(path, &n, &err) : NULL;
    const bool writing = mark != NULL && strncmp(mark, "writing\n", 8) == 0;
    if (mark != NULL && !writing && strncmp(mark, "written\n", 8) != 0) strcpy(other, ".tide");
    for (int i = 0; i < (resume ? OUT_RESUMED : OUT_FILES); i++) {
        run_mark_line(out, out_files[i], line);
        if (line[0] == '\0' || writing || (resume && mark == NULL)) continue;
        if (mark == NULL || (i < OUT_MODEL && strstr(mark, line) == NULL))
            strcpy(other, out_files[i]);
    }
    DIR *dir = opendir(out);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        int ours = 0;
        while (ours < OUT_FILES && strcmp(out_files[ours], e->d_name) != 0) ours++;
        for (int i = 0; i < (resume ? 2 : MODEL_FILES) && ours == OUT_FILES; i++)
            if (fnmatch(model_files[i], e->d_name, 0) == 0) strcpy(other, e->d_name);
    }
    if (dir != NULL) closedir(dir);
    free(mark);
    if (other[0] != '\0')
        die("--out %s holds %s, which this program did not write there: %s another --out", out,
            other, resume ? "move it away, or begin in" : "choose");
}

// Refuses the output `to` of option number `row` (OPTION_COUNT: --out) if it is an input, another
// output, or a file of the model or the tokenizer, by whatever name.
static void run_check_file(const Options *o, int row, const char *to) {
    char name[64], other[64], home[PATH_MAX], path[PATH_MAX];
    snprintf(name, sizeof name, "--%s", row < OPTION_COUNT ? option_table[row].name : "out");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char *file = i != row ? option_file(o, i, O_READS) : NULL;
        const char *written = i != row ? option_file(o, i, O_WRITES) : NULL;
        snprintf(other, sizeof other, "--%s", option_table[i].name);
        output_check(name, to, other, file);
        if (written != NULL && (strcmp(written, to) == 0 || path_is_same(written, to)))
            die("%s and %s are one file, %s: name another one", name, other, to);
    }
    for (int i = 0; i < 2; i++) {
        const char *read = i == 0 ? o->model : o->tokenizer;
        if (read == NULL || !path_exists(read) || o->resume) continue;
        model_directory(read, home);
        for (int k = 0; k < MODEL_FILES; k++) {
            path_join(path, home, model_files[k]);
            output_check(name, to, i == 0 ? "--model" : "--tokenizer", path);
        }
    }
}

// Does this run write into --out?
static bool run_writes_out(const Options *o) {
    return o->dump == NULL && !o->plan && !o->calibrate
        && (o->steps > 0 || (!o->resume && option_given(o, "out")));
}

// Refuses outputs that are inputs, before anything is written.
static void run_check_files(const Options *o) {
    char path[PATH_MAX];
    for (int i = 0; i < OPTION_COUNT; i++)
        if (option_file(o, i, O_WRITES) != NULL)
            run_check_file(o, i, option_file(o, i, O_WRITES));
    for (int i = 0; i < OUT_FILES && run_writes_out(o); i++) {
        path_join(path, o->out, out_files[i]);
        run_check_file(o, OPTION_COUNT, path);
    }
}

// Refuses an --out or another output that cannot be written, and an --out that holds another run,
// before anything is computed.
static void run_check_output(Run *r) {
    const Options *o = &r->o;
    char path[PATH_MAX];
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char *file = option_file(o, i, O_WRITES);
        const char *name = option_table[i].name;
        if (file == NULL) continue;
        if (!path_is_writable(file)) die("--%s %s: %s", name, file, strerror(errno));
        if (!path_is_file(file)) die("--%s %s is no regular file", name, file);
        const char *slash = strrchr(file, '/'), *base = slash != NULL ? slash + 1 : file;
        for (int k = 0; k < OUT_MODEL; k++)
            if (strcmp(out_files[k], base) == 0 && path_exists(file))
                die("--%s %s would replace a model's file: name another one", name, file);
    }
    if (!run_writes_out(o) || r->rank > 0) return;
    const bool saved = state_newest(o->out, SIZE_MAX, false) > 0;
    path_join(path, o->out, ".lock");
    if (o->resume && !saved && !path_exists(path)) return;  // state_find() says it
    if (o->resume || !saved) run_check_owner(o->out, o->resume);
    if (!path_exists(o->out)) {
        for (size_t n = 1; o->out[n] != '\0'; n++) {
            snprintf(path, sizeof path, "%.*s", (int)n, o->out);
            if (path_exists(path)) run_kept = n;
        }
        run_made = o->out;
        atexit(run_unmake);
    }
    if (!make_directories(o->out) || access(o->out, W_OK | X_OK) != 0)
        die("--out %s: %s", o->out, strerror(errno));
    run_lock(r, LOCK_EX);
    if (!o->resume && saved)
        die("%s holds the checkpoints of an earlier run: continue it with --resume, or choose "
            "another --out", o->out);
    if (!o->resume) run_mark(r, true);
}

// Says what is going to be trained on what, and what a training run computes with. A preset is a
// shape, with random weights: who samples it, evaluates it or tunes it with MeZO is told.
static void run_describe(const Run *r) {
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
    const bool hint = !o->plan && (strncmp(o->model, "gpt2", 4) == 0 || c->family == FAMILY_OPT);
    if (fresh)
        printf("new, random weights%s\n", hint ? " (trained ones: dev/data/gpt2.sh and "
               "opt.sh, then --model DIR)" : "");
    else if (!o->resume) printf("weights from %s\n", r->saved_model);
    else printf("weights of step %zu from %s\n", r->state.step, r->resume_from);
    if (o->resume && mezo && o->zo_noise == 0 && r->state.version == STATE_OLDEST)
        printf("note: normal numbers are drawn otherwise than before: from here on this run has "
               "other noise than the program that began it would give it\n");
    const TaskSum sum = task_sum(&r->task_train, r->T), other = task_sum(&r->task_val, r->T);
    const TaskSum asked = task_sum(&r->task_choices, r->choices.T);
    const size_t cut = sum.cut + other.cut + asked.cut;
    const size_t examples = r->task_train.count + r->task_val.count + r->task_choices.count;
    if (cut > 0)
        printf("data: %zu of %zu examples are longer than --seq %zu: prompts lose their front, "
               "what is too long without one its end\n", cut, examples, r->T);
    if (r->task && o->labels != NULL && !r->words)
        printf("labels: not all are one token, so each is a choice, of which all tokens count\n");
    if (o->steps == 0 || o->dump != NULL || o->data == NULL) return;
    const size_t train = r->task ? r->task_train.count : r->train_view.tokens;
    const size_t step = r->task ? r->step_sequences : r->step_tokens;
    const size_t held = r->val.sequences, rows = r->train.sequences;
    size_t val = held;
    if (!r->task && held > 0) val = r->val.data->tokens;
    if (r->task) val = r->task_val.count;
    const char *what = r->task ? "example" : "token", *unit = r->packed ? "row" : what;
    printf("data: %zu training %s%s, %.2f epochs in %zu step%s of %zu %s%s; %zu validation %s%s\n",
           train, what, plural(train),
           (double)o->steps * (double)r->step_sequences / (double)r->train.sequences, o->steps,
           plural(o->steps), step, unit, plural(step), val, what, plural(val));
    if (r->task && !r->words)
        printf("data: %zu row%s of %zu tokens%s, %.1f %% full; %zu of %zu tokens are trained\n",
               rows, plural(rows), r->T, r->packed ? ", packed" : "",
               100 * (double)sum.inputs / (double)(rows * r->T), sum.targets, sum.inputs);
    if (held + r->choices.sequences == 0 && o->eval_every > 0)
        printf("data: nothing will be evaluated: the held-out tenth %s; name a file with --val\n",
               r->task ? "has no example" : "is shorter than --seq");
    if (!o->plan) cpu_describe();
}

// Prints a note for each option that has no effect in this run, or less than it seems to have.
static void run_describe_unused(const Run *r) {
    const Options *o = &r->o;
    const bool evaluates = r->val.sequences + r->choices.sequences > 0, saves = !o->no_save;
    const bool trains = o->steps > 0 && o->dump == NULL;
    const struct { const char *name; bool used; const char *needs; } options[] = {
        {"prompt", r->sampling, "--sample-every, or --steps 0"},
        {"sample-tokens", r->sampling, "--sample-every"}, {"top-k", r->sampling, "--sample-every"},
        {"temperature", r->sampling, "--sample-every"}, {"template", o->labels != NULL, "--labels"},
        {"eval-batches", evaluates, "data to evaluate"}, {"keep", saves, "no --no-save"},
        {"min-lr", o->schedule != SCHEDULE_CONSTANT, "--schedule cosine or linear"},
        {"save-every", saves, "no --no-save"}, {"save-dtype", saves, "no --no-save"}};
    double highest = 0;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (trains && option_given(o, options[i].name) && !options[i].used)
            printf("note: --%s does nothing here: it needs %s\n", options[i].name,
                   options[i].needs);
    if (o->data != NULL && o->val != NULL && path_is_same(o->data, o->val))
        printf("note: --val is --data: its loss says nothing of other data\n");
    for (size_t step = 1; step <= min_size(o->steps, 100); step++)
        highest = fmax(highest, schedule_lr(o, step));
    if (trains && o->steps <= 100 && highest < 0.95 * o->lr)
        printf("note: in so few steps the learning rate is at most %.1e, not --lr %.1e; "
               "--schedule constant keeps it\n", highest, o->lr);
}

// Refuses shapes that the GPU's kernels do not take: they work on whole packs of 16 bytes, and hold
// a row of channels in one block of threads.
static void run_check_shape(const Run *r) {
    const size_t C = r->config.channels, E = config_embed(&r->config), F = r->config.ffn;
    const size_t pack = r->o.precision == PRECISION_FP32 ? 4 : 8;
    if (C > 12288 || C % pack != 0 || E % pack != 0 || F % pack != 0)
        die("the GPU trainer takes up to 12288 channels (of embeddings, too), and an MLP width, "
            "that are multiples of 8 (of 4 with --precision fp32), not %zu (%zu) and %zu; the CPU "
            "trainer takes any", C, E, F);
}

// Ends a run whose ranks were started with other options, or see other data.
static void run_agree(const Run *r) {
    char text[sizeof r->state.options];
    if (r->o.steps == 0 || r->o.dump != NULL)
        die("with %zu GPUs there is only training: leave the launcher out", r->world);
    options_write(&r->o, text, sizeof text);
    ranks_agree("options", text);
    ranks_agree("--out", r->o.out);
    snprintf(text, sizeof text, "data %016" PRIx64 ", %zu sequences, %zu for evaluation, %zu of "
             "--choices, from step %zu", r->state.data_hash, r->train.sequences, r->val.sequences,
             r->choices.sequences, r->state.step);
    ranks_agree("data", text);
}

// The --precision of a run that is not open yet: the command line's, or with --resume that of its
// newest readable checkpoint. It ends nothing: what is wrong is told by run_open(), for all ranks.
static int run_precision(int argc, char **argv) {
    static const char *const names[] = {"bf16", "fp32", "fp16"};
    const char *given = NULL, *out = "out";
    char dir[PATH_MAX];
    bool resume = false;
    TrainState s;
    Error err;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strncmp(argv[i], "--resume", 8) == 0) resume = true;  // or --resume=auto
        if (strcmp(argv[i], "--precision") == 0) given = next;
        if (strncmp(argv[i], "--precision=", 12) == 0) given = argv[i] + 12;
        if (strcmp(argv[i], "--out") == 0) out = next;
        if (strncmp(argv[i], "--out=", 6) == 0) out = argv[i] + 6;
    }
    memset(&s, 0, sizeof s);
    size_t step = resume && given == NULL ? state_newest(out, SIZE_MAX, false) : 0;
    for (; step > 0; step = state_newest(out, step, false)) {
        state_path(dir, out, step);
        if (state_check(dir, &s, false, &err)) break;
    }
    const char *saved = text_line(s.options, "--precision");
    if (saved != NULL) given = saved + 1;
    int precision = PRECISION_BF16;
    for (int i = 0; given != NULL && i < 3; i++)
        if (strncmp(given, names[i], 4) == 0) precision = i;
    train_state_free(&s);
    return precision;
}

// Fills *r from the command line and the files that it names. Everything that can be wrong with
// them is found here, and ends the program.
static void run_open(Run *r, int argc, char **argv, bool gpu_build) {
    Options *o = &r->o;
    memset(r, 0, sizeof *r);
    r->lock = -1;
    r->program = argv[0];
    ranks_open();
    r->world = (size_t)ranks.world;
    r->rank = (size_t)ranks.rank;
    data_is_quiet = r->rank > 0;
    options_parse(o, argc, argv, gpu_build);
    if (o->resume_auto) {
        o->resume = state_newest(o->out, SIZE_MAX, false) > 0;
        ranks_broadcast(&o->resume, sizeof o->resume);
        if (!o->resume) options_check(o);
    }
    if (!gpu_build && r->world > 1) die("the CPU trainer is one process; for several: a GPU build");
    if (o->plan && r->world > 1) die("--plan is one process: say --world %zu", r->world);
    if (r->world > 1)  // before they do different things; run_agree() compares the others
        ranks_agree("options", o->resume ? o->no_save ? "--resume, --no-save" : "--resume, saving"
                                         : o->no_save ? "new run, --no-save" : "new run, saving");
    if (o->plan) r->world = o->world;
    omp_set_num_threads(cpu_threads(o->threads, ranks.local_world));  // of this thread's loops
    // From here on nobody else writes there. Several ranks agree first on what they are to do:
    // where one ends the others, nothing is left behind.
    const bool early = o->resume || ranks.world == 1;
    if (!o->resume) run_check_files(o);
    if (early) run_check_output(r);
    run_choose_model(r);
    if (o->resume) run_check_files(o);  // the options of its checkpoint among them
    r->T = o->seq > 0 ? o->seq : r->config.context;
    if (r->T > r->config.context)
        die("--seq %zu is longer than the model's context of %zu", r->T, r->config.context);
    run_choose_tokenizer(r);
    run_open_data(r);
    o->seq = r->T;  // what "0" meant, for the checkpoint
    r->B = o->batch;
    if (o->dump != NULL) o->accum = 1;  // the first micro-batch, as if it were the step
    r->step_sequences = r->B * o->accum * r->world;
    if (o->epochs > 0) {
        if (r->train.sequences == 0) die("--epochs needs --data, or --steps instead");
        o->steps = (size_t)ceil(o->epochs * (double)r->train.sequences / (double)r->step_sequences);
        printf("--epochs %g: %zu step%s\n", o->epochs, o->steps, plural(o->steps));
        o->epochs = 0;
        options_check(o);
    }
    if (o->zen_warmup == 0) o->zen_warmup = schedule_warmup(o) > 0 ? schedule_warmup(o) : 1;
    r->step_tokens = r->step_sequences * r->T;
    if (gpu_build) run_check_shape(r);
    r->table = gpt2_table(&r->config);
    const bool data = o->data != NULL || o->val != NULL || o->choices != NULL;
    r->training = o->steps > 0 || o->dump != NULL;
    r->only_sampling = !r->training && option_given(o, "prompt");
    r->batches = r->training || (!r->only_sampling && data);
    r->sampling = r->only_sampling || (o->steps > 0 && o->sample_every > 0);
    if (r->only_sampling && r->tokenizer == NULL)
        die("--prompt needs --tokenizer: %s", tokenizer_why);
    if (o->scores != NULL && (r->words || !r->batches))
        die(r->words ? "--scores: labels of one token each have no losses by token"
            : "--scores needs --data, --val or --choices to evaluate");
    if (r->task && r->training && r->train.sequences == 0)
        die("%s has no example to train on", o->data);
    if (o->keep_best && o->steps > 0 && r->val.sequences == 0 && !o->plan)
        die("--keep-best needs validation data, and there is none: name a file with --val");
    if (r->batches && !r->training && r->val.sequences + r->choices.sequences == 0)
        die("the held-out tenth of %s %s: name a file with --val", o->data,
            r->task ? "has no example" : "is shorter than --seq");
    if (ranks.world > 1) run_agree(r);
    if (!early) run_check_output(r);
    if (ranks.world > 1) run_share_lock(r);
    if (!o->calibrate) run_describe(r);
    if (!r->only_sampling) run_describe_unused(r);
}

// The weights that --model names, a file's or a preset's fresh ones.
static void run_load_first(Run *r, const RunState *here) {
    const GPT2Table *t = &r->table;
    if (r->saved_model != NULL) {
        model_load(r->saved_model, &r->config, t, here);
        return;
    }
    float *w = ALLOC(float, PART_UNIT, "first weights");
    for (int i = 0; i < t->count; i++) {
        const size_t begin = t->tensors[i].offset;
        const size_t end = begin + round_up(t->tensors[i].size, ALIGN_ELEMENTS);
        for (size_t at = begin, n; (n = state_next(here, &at, end)) > 0; at += n) {
            gpt2_init_range(t, i, at - begin, n, w, r->o.seed);
            here->move(here->owner, 0, at, n, w, false);
        }
    }
    free(w);
}

// Values for the first step: the checkpoint's, or, of the first part, those that --model names.
// That tensors are damaged is seen only now: that checkpoint is put aside, and the one before takes
// its place if it has the same settings, and if nothing was set up by what this one says. Else the
// next --resume takes it.
static void run_load(Run *r, const RunState *here) {
    Error err, why;
    TrainState before;
    char aside[PATH_MAX], note[3 * PATH_MAX];
    // The first numbers that are rounded to infinity.
    static const float limits[] = {0x1.ffp127f, INFINITY, 65520};  // by --precision
    r->saves = *here;
    r->saves.limit = r->o.gpu_build ? limits[r->o.precision] : 0;
    here = &r->saves;
    if (!r->o.resume) run_load_first(r, here);
    while (r->o.resume
           && !state_load(r->resume_from, &r->state, &r->table, here, &err)) {
        snprintf(aside, sizeof aside, "%.4000s.damaged", r->resume_from);
        snprintf(note, sizeof note, "checkpoint %s is damaged (%s), and put aside as %s",
                 r->resume_from, err.text, aside);
        if (r->rank == 0) checkpoint_remove(aside);
        if (r->rank == 0 && rename(r->resume_from, aside) != 0)
            die("cannot rename %s: %s", r->resume_from, strerror(errno));
        if (!state_find(r->o.out, r->state.step, &before, r->resume_from, &why)
            || strcmp(before.options, r->state.options) != 0
            || before.products != r->state.products || r->o.offload == OFFLOAD_ZENFLOW)
            die("%s: --resume again takes the one before, if there is one", note);
        if (r->rank == 0) fprintf(stderr, "tide: %s; going on from %s\n", note, r->resume_from);
        before.data_hash = r->state.data_hash;
        train_state_free(&r->state);
        r->state = before;
    }
    if (r->o.offload != OFFLOAD_ZENFLOW) train_state_free(&r->state);  // zenflow's, if at all
}

// ---------------------------------------------------------------------------------------------
// Data

// The first sequence of a micro-batch (the first is 0) of a step (the first is 1): all GPUs'
// micro-batches of one number lie side by side. Which sequences a step has is then the same on any
// number of GPUs.
static uint64_t run_position(const Run *r, size_t step, size_t micro) {
    return (((uint64_t)(step - 1) * r->o.accum + micro) * r->world + r->rank) * r->B;
}

// How many tokens are trained in a step, of all its micro-batches on all GPUs; of label words, how
// many prompts. The gradient, and the loss, are means over them.
static size_t run_targets(const Run *r, size_t step) {
    if (r->words) return r->step_tokens / r->T;
    if (!r->task || r->train.sequences == 0) return r->step_tokens;  // 0: a plan, without data
    return task_targets(&r->task_train, r->o.seed, run_position(r, step, 0) - r->rank * r->B,
                        r->step_sequences, r->T);
}

// How many micro-batches these would be if each of their tokens were trained: what the sum of
// means over whole micro-batches is divided by.
static double run_parts(const Run *r, size_t step) {
    const size_t tokens = r->words ? r->B : r->B * r->T;
    return (double)run_targets(r, step) / (double)tokens;
}

// What a loader reads; NULL: running text.
static const Task *run_examples(const Run *r, const Loader *loader) {
    if (loader == &r->choices) return &r->task_choices;
    if (!r->task) return NULL;
    return loader == &r->train ? &r->task_train : &r->task_val;
}

// Fills `rows` rows of the loader's T tokens with the sequences at `position` and after. False,
// with the reason in err, on a token that the model does not know. Of label words (rows, 2)
// targets: see task_batch(). begins (rows, T), or NULL: only written of packed rows.
static bool run_batch(const Run *r, const Loader *loader, uint64_t position, size_t rows,
                      int32_t *inputs, int32_t *targets, int32_t *begins, Error *err) {
    const bool train = loader == &r->train;
    const Task *t = run_examples(r, loader);
    if (t != NULL) {
        task_batch(t, r->o.seed, train, position, rows,
                   loader->T, inputs, targets, train && r->packed ? begins : NULL);
        return true;
    }
    for (size_t b = 0; b < rows; b++)
        if (!loader_sequence(loader, position + b, r->config.vocab, inputs + b * r->T,
                             targets + b * r->T, err))
            return false;
    return true;
}

// run_batch() of a step. If it returns false, the step is run_damaged().
static bool run_micro_batch(Run *r, size_t step, size_t micro, int32_t *inputs, int32_t *targets,
                            int32_t *begins) {
    return run_batch(r, &r->train, run_position(r, step, micro), r->B, inputs, targets, begins,
                     &r->damage);
}

// Returns how many sequences of the validation data are evaluated.
static size_t run_val_rows(const Run *r) {
    const size_t asked = r->o.eval_batches, all = r->val.sequences;
    if (asked == 0 && r->task) return all;
    return min_size(all, (asked > 0 ? asked : 20) * r->B);
}

// The hash of the rows that a validation loss is measured on.
static uint64_t run_val_hash(const Run *r) {
    const size_t rows = run_val_rows(r), T = r->val.T;
    uint64_t parts[] = {rows, T, r->task ? task_hash(&r->task_val) : 0};
    int32_t *both = ALLOC(int32_t, 2 * T, "a row");
    Error ignored;  // a damaged row is named when it is evaluated
    for (size_t row = 0; row < rows && !r->task; row++) {
        loader_sequence(&r->val, row, r->config.vocab, both, both + T, &ignored);
        parts[2] = hash_word(parts[2], hash_bytes(both, 2 * T * sizeof *both));
    }
    free(both);
    return hash_bytes(parts, sizeof parts);
}

// ---------------------------------------------------------------------------------------------
// Signals, and what ranks tell each other

static volatile sig_atomic_t stop_requested;  // a signal that came: finish the step, save, exit
static volatile double stop_time;             // when, by seconds_now()

// The terminal, make and launchers pass a signal on that came to the whole group: only one that
// comes a second later is meant to end the program at once. (Not SIGPIPE, which is each line for a
// `tee` that Ctrl-C has ended.)
static void request_stop(int signal_number) {
    if (stop_requested == 0) {
        stop_time = seconds_now();
        stop_requested = signal_number;
    } else if (signal_number != SIGPIPE && seconds_now() - stop_time > 1) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

static void run_catch_signals(void) {
    const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE};
    struct sigaction action;
    sigaction(SIGHUP, NULL, &action);
    const int first = action.sa_handler == SIG_IGN;  // nohup
    memset(&action, 0, sizeof action);
    sigfillset(&action.sa_mask);
    action.sa_handler = request_stop;
    for (int i = first; i < 4; i++) sigaction(signals[i], &action, NULL);
}

// --save-every auto: when the next checkpoint is due, by seconds_now(). Saving may take 5 % of the
// time: after one that took d seconds, the next one begins 19 d seconds later, or after 10 minutes.
static double run_save_due;

static double run_save_pause(void) {
    const char *seconds = getenv("TIDE_SAVE_SECONDS");  // tests are in a hurry
    return seconds != NULL ? strtod(seconds, NULL) : 600;
}

static void run_save_next(double seconds) {
    run_save_due = seconds_now() + fmax(run_save_pause(), 19 * seconds);
}

// What ranks tell each other at every step, with their losses: whether a signal came (its number),
// and whether a checkpoint is due. All then know, by the largest of each, the same, and do the same
// after this step.
enum { NEWS_SIGNAL, NEWS_DUE, NEWS };
static double run_news[NEWS];

static void run_tell(double *mine) {
    mine[NEWS_SIGNAL] = stop_requested;
    mine[NEWS_DUE] = seconds_now() >= run_save_due;
}

// said: of rank k, what run_tell() said, at said[k * stride].
static void run_hear(const double *said, size_t stride) {
    memset(run_news, 0, sizeof run_news);
    for (size_t k = 0; k < (size_t)ranks.world; k++)
        for (int i = 0; i < NEWS; i++)
            run_news[i] = fmax(run_news[i], said[k * stride + (size_t)i]);
    if (run_news[NEWS_SIGNAL] != 0 && stop_requested == 0)
        request_stop((int)run_news[NEWS_SIGNAL]);
}

static bool run_hears(int news) {
    if (ranks.world == 1) run_tell(run_news);
    return run_news[news] != 0;
}

// ---------------------------------------------------------------------------------------------
// Saving. Of several ranks, all call these functions, after the same steps.

static void run_save_tokenizer(const Run *r, const char *dir) {
    run_mark(r, true);
    if (r->tokenizer != NULL && r->rank == 0) tokenizer_save(r->tokenizer, dir);
    run_mark(r, false);
}

// The validation loss of the best checkpoint, which the next one must be below.
static double run_best_loss(const Run *r) {
    return r->state.best.step > 0 ? r->state.best.loss : INFINITY;
}

// Leaves weights that other programs load in --out, and with `state` a checkpoint to resume from.
// Each is whole or not there; what was saved before stays if they fail. Of several ranks none has
// all weights: they come from the checkpoint. If the disk is full, the checkpoints before the
// newest whole one, but not the best, make room; else the run ends only if there is none, or no
// later chance.
static void run_write(Run *r, size_t step, bool state) {
    const int eot = r->tokenizer != NULL ? r->tokenizer->eot : -1;
    const bool bf16 = r->o.save_dtype == SAVE_BF16;
    const double start = seconds_now();
    const bool improved = state && r->o.keep_best && r->lowest < run_best_loss(r);
    StateSave x = {r->o.out, &r->table, &r->saves, (int)r->o.keep, 0, r->state};
    char best[PATH_MAX];
    Error err;
    if (r->o.no_save) return;
    run_mark(r, true);
    x.state.config = r->config;
    x.state.seed = r->o.seed;
    x.state.data_position = step * r->step_sequences;
    path_join(best, r->o.out, "best");
    if (improved) {
        const StateBest now = {step, r->lowest, run_val_hash(r)};
        x.state.best = now;
        log_best(&r->log, step, r->lowest);
    }
    for (int again = 0; again < 2; again++) {
        x.state.step = step;
        x.best = x.state.best.step;
        bool ok = !state || state_save(&x, &err);
        if (state && ok) {
            r->state.step = step;
            r->state.best = x.state.best;
            if (improved) r->best_is_out = false;
        }
        state = state && !ok;
        if (ok && ranks.rank == 0)
            ok = ranks.world > 1 ? state_model(&x, step, r->o.out, bf16, eot, &err)
                : model_save(r->o.out, &r->config, &r->table, &r->saves, bf16, eot, &err);
        if (ok && ranks.rank == 0 && r->state.best.step > 0 && !r->best_is_out)
            r->best_is_out = ok = state_model(&x, r->state.best.step, best, bf16, eot, &err);
        if (state_agree(ok, &err)) break;
        if (again == 0 && r->state.step > 0 && strstr(err.text, strerror(ENOSPC)) != NULL) {
            x.keep = 1;  // room is worth more than the others
            x.best = r->state.best.step;
            x.state.step = r->state.step;
            state_prune(&x);
            continue;
        }
        if (r->state.step == 0) fail("%s", err.text);
        if (r->ends) fail("%s; the checkpoint of step %zu is whole", err.text, r->state.step);
        if (r->rank == 0)
            fprintf(stderr, "tide: warning: %s; the run goes on, and the checkpoint of step %zu is "
                    "whole\n", err.text, r->state.step);
        break;
    }
    run_mark(r, false);
    r->lowest = run_best_loss(r);
    run_save_next(seconds_now() - start);
}

// Saves the run after the steps that are complete. more: what its optimizer adds to the checkpoint
// (TrainState.text), or NULL; it is the run's from here on.
static void run_save(Run *r, char *more) {
    free(r->state.text);
    r->state.text = more;
    r->due = false;
    if (r->done > 0) run_write(r, r->done, r->done != r->state.step);
}

// Says when the run saves what, and what disk that takes: a new checkpoint is written before an old
// one goes, and so are the weights. Refuses a disk without room for one of each.
static void run_check_disk(const Run *r) {
    const Options *o = &r->o;
    const double weights = (double)r->table.parameters * (o->save_dtype == SAVE_BF16 ? 2 : 4);
    double state = 0;
    for (int k = 0; k < r->saves.parts; k++)
        state += (state_dtype(&r->saves, k) == ST_BF16 ? 2 : 4) * (double)r->table.parameters;
    const double best = o->keep_best ? weights : 0;
    const double most = ((double)o->keep + (o->keep_best ? 2 : 1)) * state + 2 * weights + best;
    char when[80] = "only at the end";
    struct statvfs disk;
    double there = 0;
    size_t step = state_newest(o->out, SIZE_MAX, true);
    for (; step > 0; step = state_newest(o->out, step, false)) there += state;
    if (o->no_save || statvfs(o->out, &disk) != 0) return;
    const double room = (double)disk.f_bavail * (double)disk.f_frsize;
    if (room + fmax(there - state, 0) < state + weights + best)  // all but the newest may go
        die("--out %s: a checkpoint and the weights take %sB, and only %sB are free there: make "
            "room, name another disk, or save nothing (--no-save)", o->out,
            count_text(state + weights + best).text, count_text(room).text);
    if (o->save_every == AUTO_COUNT)
        snprintf(when, sizeof when, "every %.3g minutes, or less often: at most 5 %% of the time",
                 run_save_pause() / 60);
    else if (o->save_every > 0) snprintf(when, sizeof when, "every %zu steps", o->save_every);
    printf("checkpoints: %sB, %s; on disk, with --keep %zu%s and the weights, up to %sB; free: %sB"
           "%s\n", count_text(state).text, when, o->keep, o->keep_best ? ", the best one" : "",
           count_text(most).text,
           count_text(room).text,
           room + there < most ? ", NOT ENOUGH for so many: older ones go when it is full" : "");
}

// ---------------------------------------------------------------------------------------------
// The loop

// What a step came to.
typedef struct {
    double loss, norm;
    bool skipped;     // nothing was updated: the loss or the norm is no number, or too large
    bool damaged;     // nothing was computed: a token file is damaged
    char more[1024];  // further members of its line in log.jsonl, each after a comma
} StepResult;

// --keep-best: the best checkpoint stays the best if its weights are there and its loss is of this
// run's validation data. Else the best is chosen anew, and OUT/best gets another name.
static void run_find_best(Run *r) {
    StateBest *b = &r->state.best;
    char best[PATH_MAX], path[PATH_MAX], name[64];
    path_join(best, r->o.out, "best");
    path_join(path, best, "model.safetensors");
    r->best_is_out = path_exists(path);
    state_path(path, r->o.out, b->step);
    if (b->step > 0 && b->data == run_val_hash(r) && (r->best_is_out || path_exists(path))) {
        r->best_is_out = !path_exists(path);  // else they are written again
    } else if (b->step > 0 || r->best_is_out) {
        snprintf(name, sizeof name, "best_until_%zu", r->state.step);
        path_join(path, r->o.out, name);
        if (r->best_is_out && rename(best, path) != 0)
            die("cannot rename %s to %s: %s", best, path, strerror(errno));
        printf("note: the best so far is of other validation data (--val, --seq, --batch, "
               "--eval-batches), or its weights are gone: the best is chosen anew%s%s\n",
               r->best_is_out ? ", and that one is kept as " : "", r->best_is_out ? path : "");
        memset(b, 0, sizeof *b);
        r->best_is_out = false;
    }
    if (!make_directories(best)) die("%s: %s", best, strerror(errno));
    run_save_tokenizer(r, best);
}

// Before the first step of training: what is in --out from the start, and signals end the run well.
// peak: operations per second of all that computes. Returns the first step's number.
static size_t run_begin(Run *r, double peak) {
    Error err;
    options_write(&r->o, r->state.options, sizeof r->state.options);
    r->state.products = 0;  // unless the trainer has some when it saves
    if (r->rank == 0) run_check_disk(r);
    if (!r->o.resume) run_save_tokenizer(r, r->o.out);
    if (!log_open(&r->log, r->rank == 0 ? r->o.out : NULL, r->state.step, &err))
        die("%s", err.text);
    r->log.peak = peak;
    r->log.every = r->o.log_every;
    if (r->o.keep_best && !r->o.no_save && r->rank == 0) run_find_best(r);
    ranks_broadcast(&r->state.best, sizeof r->state.best);
    r->lowest = run_best_loss(r);
    r->done = r->state.step;
    run_catch_signals();
    run_save_next(0);
    return r->done + 1;
}

// Is there a step to do? A signal ends the run, once its state can be saved.
static bool run_goes_on(Run *r, size_t step) {
    const bool signalled = run_hears(NEWS_SIGNAL);
    r->start = seconds_now();
    r->ends = step > r->o.steps || r->damaged || (signalled && !r->open);
    if (signalled && r->open && !r->waits) {
        log_clear(&r->log);
        printf("signal: the run ends with this window (--zen-window)\n");
    }
    r->waits = signalled;
    return !r->ends;
}

// A step whose data cannot be read. Ranks that step together cannot save without the others.
static StepResult run_damaged(const Run *r) {
    const StepResult x = {0, 0, false, true, ""};
    if (r->world > 1) die("%s", r->damage.text);
    return x;
}

static void run_diverged(const Run *r, size_t step, double loss, double norm, const char *what) {
    fail("the loss is %g and the norm %g at step %zu: %s; try a lower --lr (what was saved in %s "
         "before is intact)", loss, norm, step, what, r->o.out);
}

// AdamW's constants of a step: with the schedule's rate, and clipped. Ends the run before a loss or
// a gradient that is no number spoils the weights.
static AdamStep run_adam_step(const Run *r, size_t step, double loss, double norm_squared) {
    const Options *o = &r->o;
    if (!isfinite(loss) || !isfinite(norm_squared))
        run_diverged(r, step, loss, sqrt(norm_squared), "stopped before the update");
    AdamStep adam = adam_step_prepare(schedule_lr(o, step), o->beta1, o->beta2, o->eps,
                                      o->weight_decay, step, clip_scale(norm_squared, o->clip));
    adam.moments_bf16 = o->moments == MOMENTS_BF16;
    return adam;
}

// After a step. Zeroth order goes on without an update, but not for ever: ten steps in a row end
// the run. So do ten whose losses are all equal to the last bit, of which only the decay is left:
// it has diverged, or eps is too small.
static void run_log_step(Run *r, size_t step, const StepResult *x) {
    const double seconds = seconds_now() - r->start, lr = schedule_lr(&r->o, step);
    const bool mezo = r->o.optimizer == OPTIMIZER_MEZO, idle = x->skipped || x->norm == 0;
    double flops = gpt2_flops_per_token(&r->config, r->T) * (double)r->step_tokens;
    if (mezo) flops *= 2.0 / 3 * (double)r->o.zo_queries;  // two forward passes per direction
    r->damaged = x->damaged;
    if (x->damaged) return;
    r->done = step;
    r->idle = mezo && idle ? r->idle + 1 : 0;
    if (r->idle == 10)
        run_diverged(r, step, fabs(x->loss), fabs(x->norm), "10 steps in a row led nowhere");
    if (x->skipped) log_skip(&r->log, step, r->o.steps, x->loss, x->norm);
    else log_step(&r->log, step, r->o.steps, x->loss, x->norm, lr, 1e3 * seconds,
                  (double)r->step_tokens / seconds, flops / seconds, x->more);
}

// After a step: is it time to evaluate, for a sample, for a checkpoint?
static bool run_is_time(const Run *r, size_t step, size_t every) {
    return !r->damaged && every > 0 && (step % every == 0 || step == r->o.steps);
}

// With --keep-best it waits for what can be saved.
static bool run_wants_eval(Run *r, size_t step) {
    if (r->val.sequences + r->choices.sequences == 0 || r->damaged) return false;
    r->unasked = r->unasked || run_is_time(r, step, r->o.eval_every);
    if (!r->unasked || (r->o.keep_best && r->open && step != r->o.steps)) return false;
    r->unasked = false;
    return true;
}

static bool run_wants_sample(const Run *r, size_t step) {
    return r->tokenizer != NULL && run_is_time(r, step, r->o.sample_every);
}

// One that is due waits while it would lack something.
static bool run_wants_save(Run *r, size_t step) {
    const size_t every = r->o.save_every;
    if (every == AUTO_COUNT) r->due = r->due || run_hears(NEWS_DUE);
    else if (every > 0) r->due = r->due || step % every == 0;
    if (r->o.no_save || step == r->o.steps) return false;  // the end saves anyway
    return r->due && !r->open && !r->damaged;
}

// Prints --prompt and its continuation.
static void run_sample(Run *r, size_t step, SampleNext *next, void *model) {
    if (step > 0) log_clear(&r->log);
    sample_text(&r->o, r->tokenizer, &r->config, run_first_token(r), (uint32_t)step, next, model);
}

// ---------------------------------------------------------------------------------------------
// At its end

// How to sample from what a run has saved, where it has a tokenizer: with the run's precision and,
// if one GPU may be too small for the model, with layers that stream. In quotes, if a shell would
// not take a path as it is.
static void run_hint(const Run *r) {
    const Options *o = &r->o;
    static const char *const precisions[] = {"", " --precision fp32", " --precision fp16"};
    const char *special = " \t\n\"$`\\*?[]{}()<>|;&#~!'", *out = o->out;
    const char *q = strpbrk(r->program, special) || strpbrk(out, special) ? "'" : "";
    const bool ask = r->task && o->labels != NULL && strpbrk(o->template_text, "\"$`\\!") == NULL;
    const bool streams = o->gpu_build && (o->optimizer == OPTIMIZER_MEZO
                                          || (r->world > 1 && o->zero == 3));
    if (r->tokenizer == NULL || strchr(r->program, '\'') || strchr(out, '\'')) return;
    printf("try it: %s%s%s --model %s%s%s%s%s --steps 0 --prompt \"...%s\"%s\n", q, r->program, q,
           q, out, q, precisions[o->precision], streams ? " --optimizer mezo" : "",
           ask ? o->template_text : "", r->words ? " --sample-tokens 1" : "");
    if (streams && o->optimizer != OPTIMIZER_MEZO)
        printf("(--optimizer mezo: so its layers stream through one GPU)\n");
}

// After what the steps made was saved: the plot, and the last words. Returns the program's exit
// code: of a run that a signal has stopped, the one that a shell gives it. Dies if its data is
// damaged; of several ranks the one that has found it ends all.
static int run_end(Run *r) {
    const char *out = r->o.out;
    const size_t step = r->done, resumed = r->log.resumed;
    Error err;
    if (r->damaged) {
        ranks_barrier();  // all have saved
        if (r->damage.text[0] != '\0') die("%s", r->damage.text);
        ranks_barrier();
    }
    if (!log_plot(&r->log, &err)) fail("%s", err.text);
    log_close(&r->log);
    if (step == resumed && step >= r->o.steps)
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
    if (r->o.keep_best && r->state.best.step > 0)
        printf("%s/best has the weights of step %zu: the lowest validation loss, %.4f\n", out,
               r->state.best.step, r->state.best.loss);
    return step < r->o.steps ? 128 + (int)stop_requested : 0;
}

// --dump: loss, logits (B*T, Vp) and gradients (an arena) of the first batch, all in host memory,
// for other implementations to check.
static int run_dump(const Run *r, const int32_t *inputs, const int32_t *targets,
                    const int32_t *begins, double loss, const float *logits, const float *grads) {
    Error err;
    bool finite = isfinite(loss);
    for (size_t i = 0; i < r->table.elements; i++) finite = finite && isfinite(grads[i]);
    if (!finite) fail("the loss is %g, and not all gradients are finite: nothing is dumped", loss);
    if (!dump_save(r->o.dump, &r->config, &r->table, r->B, r->T, inputs, targets, begins, loss,
                   logits, grads, &err))
        fail("%s", err.text);
    printf("loss %.6f; dump written to %s\n", loss, r->o.dump);
    return 0;
}

#endif
