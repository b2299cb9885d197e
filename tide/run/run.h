// run.h: the verbs of a trainer's loop. Everything that a trainer does around its steps is here,
// once for all: data, signals, damaged data, and the words that are said at the end. open.h opens a
// run, save.h loads and saves it, evaluate.h has evaluation. A trainer is
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
#include "../../adam.h"
#include "sample.h"
#include "save.h"

// What a step came to.
typedef struct {
    double loss, norm;
    bool skipped;     // nothing was updated: the loss or the norm is no number, or too large
    bool damaged;     // nothing was updated: a token file is damaged, or a signal ended the step
    char more[1024];  // further members of its line in log.jsonl, each after a comma
} StepResult;

// ---------------------------------------------------------------------------------------------
// Data

// The first sequence of a micro-batch (the first is 0) of a step (the first is 1): all GPUs'
// micro-batches of one number lie side by side. So a step has the same sequences on any number of
// GPUs.
static uint64_t run_position(const Run *r, size_t step, size_t micro) {
    return (((uint64_t)(step - 1) * r->o.accum + micro) * r->world + r->rank) * r->B;
}

// Counts the tokens that a step trains, in all its micro-batches on all GPUs; with label words, its
// prompts. The gradient, and the loss, are means over them.
static size_t run_targets(const Run *r, size_t step) {
    if (r->words) return r->step_tokens / r->T;
    if (!r->task || r->train.sequences == 0) return r->step_tokens;  // 0: a plan, without data
    return task_targets(&r->task_train, r->o.seed, run_position(r, step, 0) - r->rank * r->B,
                        r->step_sequences, r->T);
}

// Returns the divisor of a sum of means over whole micro-batches: the number of micro-batches if
// each of their tokens were trained.
static double run_parts(const Run *r, size_t step) {
    const size_t tokens = r->words ? r->B : r->B * r->T;
    return (double)run_targets(r, step) / (double)tokens;
}

// What a loader reads; NULL: running text.
static const Task *run_examples(const Run *r, const Loader *loader) {
    if (loader == &r->train) return r->task ? &r->task_train : NULL;
    return r->asks ? &r->task_val : NULL;
}

// Fills `rows` rows of the loader's T tokens with the sequences at `position` and after. False,
// with the reason in err, on a token that the model does not know. With label words, targets are
// (rows, 2): see task_batch(). begins (rows, T), or NULL: written for packed rows only.
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

// ---------------------------------------------------------------------------------------------
// Signals, and what ranks tell each other

static volatile sig_atomic_t stop_requested;  // a signal that came: save, exit
static volatile double stop_time;             // when this process got one, by seconds_now()
static bool stop_waits;                       // ZenFlow's window is open: finish it

// The terminal, make and launchers pass a signal on that came to the whole group: only one that
// comes a second later is meant to end the program at once. (And only of these: SIGPIPE is each
// line for a `tee` that Ctrl-C has ended; batch systems repeat theirs, Linux SIGXCPU.)
static void request_stop(int n) {
    if (stop_time == 0) {
        stop_time = seconds_now();
        if (stop_requested == 0) stop_requested = n;
    } else if ((n == SIGHUP || n == SIGINT || n == SIGTERM) && seconds_now() - stop_time > 1) {
        signal(n, SIG_DFL);
        raise(n);
    }
}

// Is the step that is being computed given up, because of a signal? It has changed nothing that is
// saved before its update. The CPU's passes ask at each layer. A GPU, which takes seconds, asks at
// each micro-batch of AdamW. Several ranks finish the step, so that they all do the same.
static bool run_gives_up(void) {
    return stop_requested != 0 && !stop_waits && ranks.world == 1;
}

// run_batch() of a step. If it returns false, the step is run_damaged().
static bool run_micro_batch(Run *r, size_t step, size_t micro, int32_t *inputs, int32_t *targets,
                            int32_t *begins) {
    return !run_gives_up() && run_batch(r, &r->train, run_position(r, step, micro), r->B, inputs,
                                        targets, begins, &r->damage);
}

static void run_catch_signals(void) {
    const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU};
    struct sigaction action = {0}, before;
    sigaction(SIGHUP, NULL, &before);
    const int first = before.sa_handler == SIG_IGN;  // nohup
    sigfillset(&action.sa_mask);
    action.sa_handler = request_stop;
    for (int i = first; i < 7; i++) sigaction(signals[i], &action, NULL);
}

// The numbers that ranks exchange at every step, with their losses: the number of a signal, or 0,
// and whether a checkpoint is due. Each rank takes the largest of each, and so all do the same
// after this step.
enum { NEWS_SIGNAL, NEWS_DUE, NEWS };
static double run_news[NEWS];

static void run_tell(double *mine) {
    mine[NEWS_SIGNAL] = stop_requested;
    mine[NEWS_DUE] = seconds_now() >= run_save_due;
}

// said: the numbers of rank k's run_tell() begin at said[k * stride].
static void run_hear(const double *said, size_t stride) {
    memset(run_news, 0, sizeof run_news);
    for (size_t k = 0; k < (size_t)ranks.world; k++)
        for (int i = 0; i < NEWS; i++)
            run_news[i] = fmax(run_news[i], said[k * stride + (size_t)i]);
    if (run_news[NEWS_SIGNAL] != 0 && stop_requested == 0)
        stop_requested = (int)run_news[NEWS_SIGNAL];
}

static bool run_hears(int news) {
    if (ranks.world == 1) run_tell(run_news);
    return run_news[news] != 0;
}

// ---------------------------------------------------------------------------------------------
// The loop

// Before the first step of training: what is in --out from the start, and signals end the run well.
// peak: operations per second of all that computes. Returns the first step's number.
static size_t run_begin(Run *r, double peak) {
    char path[PATH_MAX];
    Error err;
    options_write(&r->o, r->state.options, sizeof r->state.options);
    r->state.products = 0;  // unless the trainer has some when it saves
    if (r->rank == 0) run_check_disk(r);
    const char *out = out_is_written(&r->o) ? r->o.out : NULL;
    for (int i = 0; i < TOKENIZER_FILES && !r->o.resume && out != NULL && r->rank == 0; i++) {
        path_join(path, out, tokenizer_files[i]);  // of a run that saved nothing
        unlink(path);
    }
    if (!r->o.resume && out != NULL && !r->o.no_save) run_save_tokenizer(r, out);
    if (!log_open(&r->log, r->rank == 0 ? out : NULL, r->state.step, &err))
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
    stop_waits = r->open;
    r->ends = step > r->o.steps || r->damaged || (signalled && !r->open);
    if (signalled && r->open && !r->waits) {
        log_clear(&r->log);
        printf("signal: the run ends with this window (--zen-window)\n");
    }
    r->waits = signalled;
    return !r->ends;
}

// A step whose data cannot be read, or that is given up. Ranks that step together cannot save
// without the others.
static StepResult run_damaged(const Run *r) {
    const StepResult result = {0, 0, false, true, ""};
    if (r->world > 1) die("%s", r->damage.text);
    return result;
}

static void run_diverged(size_t step, double loss, double norm, const char *what) {
    fail("the loss is %g and the norm %g at step %zu: %s; try a lower --lr (what was saved before "
         "is intact)", loss, norm, step, what);
}

// Loss scaling. In fp16 many gradients would be smaller than the smallest number, so the head's is
// multiplied by a power of two, and with it all others (Micikevicius et al., "Mixed precision
// training", 2018, section 3.2); the update divides by it. A step whose gradients overflow updates
// nothing and halves the factor; after SCALING_STEPS others in a row it is doubled.
enum { SCALING_FIRST = 1 << 16, SCALING_STEPS = 2000 };

// Returns the factor of the next step; 1 in other precisions.
static double run_loss_scale(const Run *r) {
    if (r->o.precision != PRECISION_FP16 || r->o.optimizer == OPTIMIZER_MEZO) return 1;
    return r->state.scaling.scale > 0 ? r->state.scaling.scale : (double)SCALING_FIRST;
}

// Settles the factor after a step.
static void run_scale_loss(Run *r, size_t step, const StepResult *result) {
    LossScale *s = &r->state.scaling;
    if (r->o.precision != PRECISION_FP16 || r->o.optimizer == OPTIMIZER_MEZO) return;
    s->scale = run_loss_scale(r);
    s->good = result->skipped ? 0 : s->good + 1;
    s->skipped += result->skipped;
    if (result->skipped) s->scale /= 2;
    if (s->good == SCALING_STEPS) {
        s->scale *= 2;
        s->good = 0;
    }
    if (s->scale < 1)
        run_diverged(step, result->loss, result->norm, isfinite(result->loss)
                     ? "gradients overflow fp16 without loss scaling"
                     : "activations overflow fp16, so take --precision bf16");
}

// Computes AdamW's constants of a step, with the schedule's rate and clipped, and result->norm,
// from the squared norm of the scaled gradient. If loss or norm is no number, fp16 skips the step;
// in other precisions the run ends before they spoil the weights. Steps that are skipped do not
// count in the bias corrections.
static AdamStep run_adam_step(const Run *r, size_t step, double norm_squared, StepResult *result) {
    const Options *o = &r->o;
    const double scale = run_loss_scale(r), squared = norm_squared / (scale * scale);
    result->norm = sqrt(squared);
    if (o->precision == PRECISION_FP16)
        snprintf(result->more, sizeof result->more, ",\"loss_scale\":%g", scale);
    result->skipped = !isfinite(result->loss) || !isfinite(squared);
    if (result->skipped && o->precision != PRECISION_FP16)
        run_diverged(step, result->loss, result->norm, "stopped before the update");
    AdamStep adam = adam_step_prepare(schedule_lr(o, step), o->beta1, o->beta2, o->eps,
                                      o->weight_decay, step - r->state.scaling.skipped,
                                      clip_scale(squared, o->clip) / scale);
    adam.moments_bf16 = o->moments == MOMENTS_BF16;
    return adam;
}

// After a step. Zeroth order goes on without an update, but not for ever: ten steps in a row end
// the run. So do ten whose losses are all equal to the last bit, of which only the decay is left:
// it has diverged, or eps is too small.
static void run_log_step(Run *r, size_t step, const StepResult *result) {
    const double seconds = seconds_now() - r->start, lr = schedule_lr(&r->o, step);
    const bool mezo = r->o.optimizer == OPTIMIZER_MEZO, idle = result->skipped || result->norm == 0;
    double flops = gpt2_flops_per_token(&r->config, r->T) * (double)r->step_tokens;
    if (mezo) flops *= 2.0 / 3 * (double)r->o.zo_queries;  // two forward passes per direction
    r->damaged = result->damaged;
    if (result->damaged) return;
    r->done = step;
    run_scale_loss(r, step, result);
    r->idle = mezo && idle ? r->idle + 1 : 0;
    if (r->idle == 10)
        run_diverged(step, fabs(result->loss), fabs(result->norm),
                     "10 steps in a row led nowhere");
    if (result->skipped)
        log_skip(&r->log, step, r->o.steps, result->loss, result->norm, mezo ? "" : result->more);
    else log_step(&r->log, step, r->o.steps, result->loss, result->norm, lr, 1e3 * seconds,
                  (double)r->step_tokens / seconds, flops / seconds, result->more);
}

// After a step: is it time to evaluate, for a sample, for a checkpoint?
static bool run_is_time(const Run *r, size_t step, size_t every) {
    return !r->damaged && every > 0 && (step % every == 0 || step == r->o.steps);
}

// With --keep-best it waits for what can be saved.
static bool run_wants_eval(Run *r, size_t step) {
    if (r->val.sequences == 0 || r->damaged) return false;
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

// Prints --prompt and its continuation, or has a conversation, which a signal ends.
static void run_sample(Run *r, size_t step, SampleNext *next, void *model) {
    if (step > 0) log_clear(&r->log);
    if (r->o.chat) run_catch_signals();
    if (r->o.chat) sample_chat(&r->o, &r->chat, &r->config, next, model, &stop_requested);
    else sample_text(&r->o, r->tokenizer, &r->config, run_first_token(r), (uint32_t)step, next,
                     model);
}

// ---------------------------------------------------------------------------------------------
// At its end

// Says how to sample from what a run has saved, where it has a tokenizer.
static void run_hint(const Run *r) {
    const bool chats = run_task(r)->chat.format != NULL;
    const int format = chats ? r->o.chat_format : 0;
    const char *words = strpbrk(r->o.out, " \t\n\"'$`\\*?[&;|<>()#!~");  // for a shell
    const char *quote = words == NULL ? "" : strchr(r->o.out, '\'') != NULL ? "\"" : "'";
    if (r->tokenizer == NULL) return;
    printf("try it: %s --model %s%s%s %s%s%s\n", r->program, quote, r->o.out, quote,
           chats ? "--chat" : "--prompt \"...\"", format > 0 ? " --chat-format " : "",
           format > 0 ? chat_formats[format - 1].name : "");
}

// After what the steps made was saved: the plot, and the last words. Returns the program's exit
// code: of a run that a signal has stopped, the one that a shell gives it. Dies if its data is
// damaged; of several ranks the one that has found it ends all.
static int run_end(Run *r) {
    const char *out = r->o.out;
    const char *where = out_is_written(&r->o) ? "log.jsonl and loss.svg are in " : "";
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
        printf("%zu of %zu steps; %s%s%snothing was saved (--no-save)\n", step, r->o.steps, where,
               where[0] != '\0' ? out : "", where[0] != '\0' ? ", " : "");
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
