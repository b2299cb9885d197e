// zo_run.h: what a zeroth-order run needs besides its steps: its settings, and its checkpoints.
#ifndef TIDE_ZO_RUN_H
#define TIDE_ZO_RUN_H
#include "run.h"
#include "../zo.h"

// The settings, from the options. automatic: the storage that "auto" means. Call it before
// run_load(): it also says whether the run's checkpoints are to be replayed from its first weights.
static inline ZoConfig zo_config(Run *r, int automatic) {
    Options *o = &r->o;
    ZoConfig c;
    memset(&c, 0, sizeof c);
    if (o->zo_storage == ZO_STORE_AUTO) o->zo_storage = automatic;  // for the checkpoint
    if (o->zo_storage == ZO_FP32 && option_given(o, "zo-rounding"))
        die("--zo-rounding is for weights of 16 bits, and fp32 is not rounded: add --zo-storage "
            "bf16 or fp16");
    c.seed = o->seed;
    c.eps = (float)o->zo_eps;
    c.queries = (int)o->zo_queries;
    c.noise = o->zo_noise;
    c.storage = o->zo_storage;
    c.rounding = o->zo_rounding;
    c.write_back = o->zo_write_back;
    r->keeps_base = o->optimizer == OPTIMIZER_MEZO && o->zo_checkpoint == CHECKPOINT_REPLAY;
    return c;
}

// After run_load(): the log as the checkpoint has it. With a replay checkpoint it has all updates,
// and none of them are in the weights that run_load() has given.
static inline void zo_load(const Run *r, ZoLog *log) {
    Error err;
    memset(log, 0, sizeof *log);
    log->queries = (int)r->o.zo_queries;
    if (r->state.more != NULL && !zo_log_parse(log, r->state.more, &err))
        die("%s: %s", r->resume_from, err.text);
}

// Saves the run after `step` steps: run_save(), with the log. A replay checkpoint
// is a matter of kilobytes: the weights themselves are saved only when the run ends.
static inline void zo_save(Run *r, size_t step, ZoLog *log, const RunState *what) {
    const size_t rounded = log->rounded;
    RunState small = *what;
    if (r->keeps_base && !r->ends) small.weights = NULL;
    if (!r->keeps_base) zo_log_trim(log);
    else log->rounded = 0;
    free(r->state.more);
    r->state.more = zo_log_text(log);
    log->rounded = rounded;
    run_save(r, step, true, &small);
}

// Can a step with this mean loss and norm update anything? NaN and infinity would spread.
static inline bool zo_usable(double loss, double lr, double norm) {
    return isfinite(loss) && lr * norm < 1e30;
}

// What the losses of a step, side (queries, 2) at theta + eps z and theta - eps z, come to. *loss:
// their mean; *norm: the root mean square of the projected gradients g_j. The update joins the log;
// if a loss is no number there is none, and *loss is no number, either.
static inline void zo_estimate(ZoLog *log, const ZoConfig *c, size_t step, double lr,
                               double weight_decay, const double *side, double *loss,
                               double *norm) {
    double g[ZO_SCALARS], squares = 0;
    *loss = 0;
    for (int j = 0; j < c->queries; j++) {
        g[j] = (side[2 * j] - side[2 * j + 1]) / (2 * (double)c->eps);
        squares += g[j] * g[j] / c->queries;
        *loss += (side[2 * j] + side[2 * j + 1]) / (2 * c->queries);
    }
    *norm = sqrt(squares);
    if (zo_usable(*loss, lr, *norm)) zo_log_add(log, step, lr, weight_decay, g);
}

// zo_usable(), to be asked once per step: if not, the run goes on without an update, but not for
// ever: ten in a row end it. So do ten whose losses are all equal to the last bit, of which only
// the decay is left: the run has diverged, or eps is too small.
static inline bool zo_count_skips(const Run *r, size_t step, double loss, double lr, double norm) {
    static int skipped;
    const bool updated = zo_usable(loss, lr, norm);
    skipped = updated && norm > 0 ? 0 : skipped + 1;
    if (skipped == 10)
        fail("the loss is %g and the norm %g at step %zu, and 10 steps in a row led nowhere: try "
             "a lower --lr (what was saved in %s before is intact)", fabs(loss), fabs(norm), step,
             r->o.out);
    return updated;
}

#endif
