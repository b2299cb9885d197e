// run.h: the functions of a trainer's loop. They do everything around a step that the CPU's and the
// GPU's trainer share: data, signals, damaged data, the lines at the end. open.h opens a run,
// save.h loads and saves it, evaluate.h evaluates it. main() in train_gpt2.c calls them in order. A
// step reads data by run_micro_batch(), and gets AdamW's constants from run_adam_step().
#ifndef TIDE_RUN_H
#define TIDE_RUN_H
#include "../../adam.h"
#include "sample.h"
#include "save.h"

// The result of a step.
typedef struct {
    double loss, norm;
    bool skipped;     // nothing was updated: loss or norm is not finite, or too large
    bool damaged;     // nothing was updated: data is damaged, or a signal ended the step
    char more[1024];  // other members of its line in log.jsonl, each after a comma
} StepResult;

// ---------------------------------------------------------------------------------------------
// Data

// Returns the position of the first sequence of a micro-batch (the first is 0) of a step (the first
// is 1). The order of the data is micro-batch 0 of all GPUs, then micro-batch 1 of all, and so on.
// So a step has the same sequences on any number of GPUs.
static uint64_t run_position(const Run *r, size_t step, size_t micro) {
    return (((uint64_t)(step - 1) * r->o.accum + micro) * r->world + r->rank) * r->B;
}

// Counts the tokens (with label words: the prompts) that are trained in a step, in all
// micro-batches on all GPUs. Gradient and loss are means over this number.
static size_t run_targets(const Run *r, size_t step) {
    if (r->words) return r->step_tokens / r->T;
    if (!r->task || r->train.sequences == 0) return r->step_tokens;  // --plan may have no data
    return task_targets(&r->task_train, r->o.seed, run_position(r, step, 0) - r->rank * r->B,
                        r->step_sequences, r->T);
}

// Returns what the sum of all micro-batches' means is divided by, if each mean is over all tokens,
// trained or not: the number of micro-batches if all tokens are trained, else less.
static double run_parts(const Run *r, size_t step) {
    return (double)run_targets(r, step) / (double)(r->words ? r->B : r->B * r->T);
}

// Returns the examples that a loader reads; NULL: it reads running text.
static const Task *run_examples(const Run *r, const Loader *loader) {
    if (loader == &r->train) return r->task ? &r->task_train : NULL;
    return r->asks ? &r->task_val : NULL;
}

// Fills `rows` rows of the loader's T tokens with the sequences from `position` on. Returns false,
// with the reason in err, at a token outside the vocabulary. With label words targets are (rows,
// 2), as task_batch() has them. begins (rows, T), or NULL, is written only for packed rows.
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
        if (!loader_sequence(loader, position + b, r->state.config.vocab, inputs + b * r->T,
                             targets + b * r->T, err))
            return false;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Signals, and what ranks tell each other

static volatile sig_atomic_t stop_requested;  // the number of the signal that asks to save and exit
static volatile double stop_time;  // when the first such signal came, by seconds_now()
static bool stop_waits;  // the program ends later: after a window of ZenFlow, or an evaluation

// Handles a signal. The terminal, make and a launcher may each send the same signal. So the program
// ends at once only by a SIGHUP, SIGINT or SIGTERM more than a second after the first signal; not
// by SIGPIPE, which comes again for each line written to a `tee` that Ctrl-C has ended.
static void request_stop(int n) {
    if (stop_time == 0) {
        stop_time = seconds_now();
        if (stop_requested == 0) stop_requested = n;
    } else if ((n == SIGHUP || n == SIGINT || n == SIGTERM) && seconds_now() - stop_time > 1) {
        signal(n, SIG_DFL);
        raise(n);
    }
}

// Does a signal make the program give up the step under way? (Before its update, a step changes
// nothing that is saved.) The CPU's trainer asks at each layer, a GPU's at each micro-batch of
// AdamW. Several ranks finish the step, so that all do the same.
static bool run_gives_up(void) {
    return stop_requested != 0 && !stop_waits && ranks.world == 1;
}

// Reads a micro-batch by run_batch(). If it returns false, the step must return run_damaged().
static bool run_micro_batch(Run *r, size_t step, size_t micro, int32_t *inputs, int32_t *targets,
                            int32_t *begins) {
    return !run_gives_up() && run_batch(r, &r->train, run_position(r, step, micro), r->B, inputs,
                                        targets, begins, &r->damage);
}

static void run_catch_signals(void) {
    const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU};
    struct sigaction action = {0}, before;
    sigaction(SIGHUP, NULL, &before);
    const int first = before.sa_handler == SIG_IGN;  // 1, to leave SIGHUP alone, under nohup
    sigfillset(&action.sa_mask);
    action.sa_handler = request_stop;
    for (int i = first; i < 7; i++) sigaction(signals[i], &action, NULL);
}

// The numbers that ranks exchange at each step, with their losses: the number of a signal that
// came, or 0; and 1 if a checkpoint is due, or 0. Each rank uses the largest number of all ranks.
// So all ranks do the same after the step.
enum { NEWS_SIGNAL, NEWS_DUE, NEWS };
static double run_news[NEWS];

static void run_tell(double *mine) {
    mine[NEWS_SIGNAL] = stop_requested;
    mine[NEWS_DUE] = seconds_now() >= run_save_due;
}

// Sets run_news to what any rank tells: run_tell()'s numbers of rank k are at said[k * stride].
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

// Prepares a run for its first step: writes the first files to --out, and catches signals. peak:
// the FLOP/s of all devices. Returns the number of the first step.
static size_t run_begin(Run *r, double peak) {
    char path[PATH_MAX];
    Error err;
    options_write(&r->o, r->state.options, sizeof r->state.options);
    r->state.products = 0;  // a trainer with a --tune file sets this when it saves
    if (r->rank == 0) run_check_disk(r);
    const char *out = out_is_written(&r->o) ? r->o.out : NULL;
    for (int i = 0; i < TOKENIZER_FILES && !r->o.resume && out != NULL && r->rank == 0; i++) {
        path_join(path, out, tokenizer_files[i]);  // files of an earlier run that saved nothing
        unlink(path);
    }
    if (!r->o.resume && out != NULL && !r->o.no_save) run_save_tokenizer(r, out);
    if (!log_open(&r->log, r->rank == 0 ? out : NULL, r->state.step, &err))
        die("%s", err.text);
    r->log.peak = peak;
    r->log.every = r->o.log_every;
    if (r->o.keep_best && !r->o.no_save && r->rank == 0) run_find_best(r);
    ranks_broadcast(&r->state.best, sizeof r->state.best);
    r->lowest = r->state.best.loss;
    r->done = r->state.step;
    run_catch_signals();
    run_save_next(0);
    return r->done + 1;
}

// Is there another step? A signal ends the run as soon as its state can be saved.
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

// Returns the result of a step that is given up, or whose data cannot be read. With several ranks
// the program ends here: no rank can save without the others.
static StepResult run_damaged(const Run *r) {
    if (r->world > 1) die("%s", r->damage.text);
    return (StepResult){0, 0, false, true, ""};
}

static void run_diverged(size_t step, double loss, double norm, const char *what) {
    fail("the loss is %g and the norm %g at step %zu: %s; try a lower --lr (what was saved before "
         "is intact)", loss, norm, step, what);
}

// Loss scaling. Many gradients are too small for fp16. So the head's gradient is multiplied by a
// power of two, and with it all gradients; the update divides by it (Micikevicius et al., "Mixed
// precision training", 2018, section 3.2). If gradients overflow, the step updates nothing, and the
// factor is halved. After SCALING_STEPS good steps in a row it is doubled.
enum { SCALING_FIRST = 1 << 16, SCALING_STEPS = 2000 };

// Returns the factor that scales the next step's loss; 1 without fp16.
static double run_loss_scale(const Run *r) {
    if (r->o.precision != PRECISION_FP16 || r->o.optimizer == OPTIMIZER_MEZO) return 1;
    return r->state.scaling.scale > 0 ? r->state.scaling.scale : (double)SCALING_FIRST;
}

// Updates this factor after a step.
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

// Returns AdamW's constants of a step, which include the schedule's learning rate and the clip
// scale, and sets result->norm. norm_squared: of the gradient, multiplied by the loss scale. If
// loss or norm is not finite, fp16 skips the step; in other precisions the run ends, and saves
// nothing of the step. Skipped steps do not count in the bias corrections.
static AdamStep run_adam_step(const Run *r, size_t step, double norm_squared, StepResult *result) {
    const Options *o = &r->o;
    const double scale = run_loss_scale(r), squared = norm_squared / (scale * scale);
    result->norm = sqrt(squared);
    if (o->precision == PRECISION_FP16)
        snprintf(result->more, sizeof result->more, ",\"loss_scale\":%g", scale);
    result->skipped = !isfinite(result->loss) || !isfinite(squared);
    if (result->skipped && o->precision != PRECISION_FP16)
        run_diverged(step, result->loss, result->norm, "the run stops");
    AdamStep adam = adam_step_prepare(schedule_lr(o, step), o->beta1, o->beta2, o->eps,
                                      o->weight_decay, step - r->state.scaling.skipped,
                                      clip_scale(squared, o->clip) / scale);
    adam.moments_bf16 = o->moments == MOMENTS_BF16;
    adam.master_bf16 = o->master == MASTER_BF16;
    return adam;
}

// Writes a step to the log. Ends zeroth-order training after ten steps in a row that had no effect:
// that were skipped, or whose losses with both signs were equal, bit for bit, so that only weight
// decay changed the weights. Then training has diverged, or eps is too small.
static void run_log_step(Run *r, size_t step, const StepResult *result) {
    const double seconds = seconds_now() - r->start, lr = schedule_lr(&r->o, step);
    const bool mezo = r->o.optimizer == OPTIMIZER_MEZO, idle = result->skipped || result->norm == 0;
    double flops = gpt2_flops_per_token(&r->state.config, r->T) * (double)r->step_tokens;
    if (mezo) flops *= 2.0 / 3 * (double)r->o.zo_queries;  // each direction has two forward passes
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

// Is this step a multiple of `every`, or the last one?
static bool run_is_time(const Run *r, size_t step, size_t every) {
    return !r->damaged && every > 0 && (step % every == 0 || step == r->o.steps);
}

// Is an evaluation due? With --keep-best it waits until a checkpoint can be saved.
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

// Is a checkpoint due? It waits while ZenFlow's window is open.
static bool run_wants_save(Run *r, size_t step) {
    const size_t every = r->o.save_every;
    if (every == AUTO_COUNT) r->due = r->due || run_hears(NEWS_DUE);
    else if (every > 0) r->due = r->due || step % every == 0;
    if (r->o.no_save || step == r->o.steps) return false;  // the end of the run saves
    return r->due && !r->open && !r->damaged;
}

// Prints a sample of --prompt; or, with --chat, answers in a conversation until a signal. The seed
// and the step (0: without training) decide which text is drawn.
static void run_sample(Run *r, size_t step, SampleNext *next, void *model) {
    const Chat *chat = r->o.chat ? &r->chat : NULL;
    const size_t V = min_size(r->state.config.vocab, r->tokenizer->vocab);
    Sampler s = {.o = &r->o, .tokenizer = r->tokenizer, .next = next, .model = model,
                 .begin = chat != NULL ? chat->begin : run_first_token(r),
                 .end = chat != NULL ? chat->ids[0] : -1, .number = (uint32_t)step, .V = V,
                 .context = config_window(&r->state.config),
                 .logits = ALLOC(float, r->state.config.vocab, "sampling")};
    if (step > 0) log_clear(&r->log);
    if (chat != NULL) {
        run_catch_signals();
        s.stop = &stop_requested;
        sample_chat(&s, chat);
    } else sample_text(&s);
    free(s.tokens.ids);
    free(s.logits);
}

// ---------------------------------------------------------------------------------------------
// At its end

// Prints the command that samples from the saved model, if it has a tokenizer.
static void run_hint(const Run *r) {
    const bool chats = run_task(r)->chat.format != NULL;
    const int format = chats ? r->o.chat_format : 0;
    const char *words = strpbrk(r->o.out, " \t\n\"'$`\\*?[&;|<>()#!~");  // needs quotes in a shell
    const char *quote = words == NULL ? "" : strchr(r->o.out, '\'') != NULL ? "\"" : "'";
    if (r->tokenizer == NULL) return;
    printf("try it: %s --model %s%s%s %s%s%s\n", program_invocation_name, quote, r->o.out, quote,
           chats ? "--chat" : "--prompt \"...\"", format > 0 ? " --chat-format " : "",
           format > 0 ? chat_formats[format - 1].name : "");
}

// Ends a run after its last save: draws the plot, prints the last lines. Returns the exit code;
// after a signal it is 128 + its number, as for a shell. Ends the program if data is damaged; with
// several ranks, the rank that found the damage ends all.
static int run_end(Run *r) {
    const char *out = r->o.out;
    const char *where = out_is_written(&r->o) ? "log.jsonl and loss.svg are in " : "";
    const size_t step = r->done, resumed = r->log.resumed;
    Error err;
    if (r->damaged) {
        ranks_barrier();  // all ranks have saved
        if (r->damage.text[0] != '\0') die("%s", r->damage.text);
        ranks_barrier();
    }
    if (!log_plot(&r->log, &err)) fail("%s", err.text);
    log_clear(&r->log);
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

// Writes the file of --dump, which other implementations can check: loss, logits (B*T, Vp) and
// gradients (an arena) of the first batch. All are in host memory.
static int run_dump(const Run *r, const int32_t *inputs, const int32_t *targets,
                    const int32_t *begins, double loss, const float *logits, const float *grads) {
    Error err;
    bool finite = isfinite(loss);
    for (size_t i = 0; i < r->table.elements; i++) finite = finite && isfinite(grads[i]);
    if (!finite) fail("the loss is %g, and not all gradients are finite: nothing is dumped", loss);
    if (!dump_save(r->o.dump, &r->state.config, &r->table, r->B, r->T, inputs, targets, begins,
                   loss, logits, grads, &err))
        fail("%s", err.text);
    printf("loss %.6f; dump written to %s\n", loss, r->o.dump);
    return 0;
}

#endif
