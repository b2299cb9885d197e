// plan.h: how long a training step takes, before it is taken: what a rehearsal of the trainer's own
// step comes to (rehearsal.h); and with it, the choice that --offload auto makes. No CUDA here.
// doc/speed.md is the lesson.
//   predict()            the Prediction of a rehearsal
//   plan_print_time()    says it
//   choice_settle()      what only costs memory, or only costs time, of a choice
//   offload_search()     --offload auto
//
// Left out: the start of a kernel or a copy; what gradient norms and the backward pass of the
// embeddings need of the GPU; passes where cuBLASLt lacks an epilogue of backward; that collectives
// cross the link to the host where there is no other way, or a network: all ranks are in one node,
// and like the one that is planned.
#ifndef TIDE_PLAN_H
#define TIDE_PLAN_H
#include "../base/model.h"
#include "../../offload.h"
#include "rehearsal.h"

typedef struct {
    double step;               // seconds from one gradient norm to the next; of these:
    double forward, backward;  // from their first work to their last, stalls included
    double compute;            // what products and attention would take in both if they never
    double attention;          // waited; of these, attention; and
    double other;              // what else the compute stream has for the GPU
    double update;             // from the norm to the last weight and the last state in its place
    double bound;              // the update's by rates.h, as if nobody had come before it; 0: none
    char limit[40];            // which of the machine's limits makes the bound
    double h2d_bytes, d2h_bytes;   // gradients, weights and state
    double stall_forward;      // before a part of forward, for new weights; and
    double stall_backward;     // before a part of backward, for room
    double comm;               // seconds of all collectives
    double comm_exposed;       // by so much, the step would be shorter if they took no time
    double reduced_bytes;      // of gradients, from each GPU to the others, to be summed there; and
    double gathered_bytes;     // of weights
    double busy[TRACE_USES];   // shares of the time in which each is at work; 0: not asked for
} Prediction;

// A step of a rehearsal: the job that ends its norm, and the number of jobs up to its update.
typedef struct { int norm, end; } StepMark;

// Micro-batches that are rehearsed, at most: the last but one stands for all that are left out.
enum { REHEARSED_MICRO = 5 };

static bool job_is(const Job *t, const char *name) {
    return t->span.row == ROW_COMPUTE && strcmp(t->span.name, name) == 0;
}

// Adds to *x what jobs (before, end] of one step are, of which `more` micro-batches were left out.
static void predict_step(const Rehearsal *q, int before, int end, size_t more, Prediction *pred) {
    const Job *t = q->jobs;
    double done = t[before].span.end, begin = 0, tail = 0, back = 0, times = 1;
    int micro = -1;
    bool forward = false, begins = false;
    pred->step += t[end].span.end - t[before].span.end;
    for (int i = before + 1; i <= end; i++) {
        const bool is_forward = job_is(&t[i], "forward"), is_backward = job_is(&t[i], "backward");
        const bool first = is_forward && t[i].span.number == 0;
        if (first && !begins) {  // a micro-batch
            if (micro >= 0) pred->backward += times * (t[i].span.begin - tail);
            if (times > 1) pred->step += (times - 1) * (done - back);
            back = done;
            begin = t[i].span.begin;
            times = ++micro == REHEARSED_MICRO - 2 ? 1 + (double)more : 1;
        }
        if (is_forward || is_backward) {
            const double waited = times * (t[i].span.begin - done);
            *(is_forward ? &pred->stall_forward : &pred->stall_backward) += waited;
            if (is_backward && forward) pred->forward += times * (done - begin);
            if (is_backward && forward) tail = done;
            forward = is_forward;
            begins = first;
        }
        if (t[i].span.row == ROW_COMPUTE && t[i].takes == TAKES_GPU)
            pred->other += times * t[i].work;
        if (t[i].takes == TAKES_ATTENTION) pred->attention += times * t[i].work;
        if (t[i].takes == TAKES_PRODUCTS || t[i].takes == TAKES_ATTENTION)
            pred->compute += times * t[i].work;
        if (t[i].span.row == ROW_COMPUTE) done = t[i].span.end;
        if (t[i].takes == TAKES_COMM) {  // without a name and bytes: norms
            const bool sums = strcmp(t[i].span.name, "reduce") == 0;
            *(sums ? &pred->reduced_bytes : &pred->gathered_bytes) += times
                                                                    * (double)t[i].span.bytes;
            pred->comm += times * t[i].work;
        }
        if (t[i].takes == TAKES_H2D && t[i].span.row >= 0) pred->h2d_bytes += times * t[i].work;
        if (t[i].takes == TAKES_D2H && t[i].span.row >= 0) pred->d2h_bytes += times * t[i].work;
    }
    pred->backward += t[end].span.end - tail;
}

// Computes the shares at work between the norms of two steps.
static void predict_busy(const Rehearsal *q, double begin, double end, Prediction *pred) {
    TraceSpan *s = ALLOC(TraceSpan, q->count, "plan");
    int n = 0;
    for (int i = 0; i < q->count; i++) {
        s[n] = q->jobs[i].span;
        s[n].begin = fmax(s[n].begin, begin);
        s[n].end = fmin(s[n].end, end);
        if (s[n].row >= 0 && s[n].begin < s[n].end) n++;
    }
    trace_busy(s, n, pred->busy);
    for (int i = 0; i < TRACE_USES; i++) pred->busy[i] /= end - begin;
    free(s);
}

// Returns the mean of the last `counted` of `steps`, which should be a steady state. `more` micro-
// batches of each were left out; `world` GPUs train together. With a trace (NULL: none), finds what
// is at work when, unless something was left out, and draws the steps, with the update before them,
// from time 0 on, if the file is open. Changes *q.
static Prediction predict(Rehearsal *q, const StepMark *marks, int steps, int counted, size_t more,
                          size_t world, TraceFile *trace) {
    const StepMark *first = &marks[steps - counted - 1], *last = &marks[steps - 1];
    Prediction pred = {0};
    rehearsal_time(q);
    const double start = q->jobs[first->norm].span.end;
    for (const StepMark *m = first; m < last; m++) predict_step(q, m->norm, m[1].norm, more, &pred);
    double *const means[] = {&pred.step, &pred.forward, &pred.backward, &pred.compute,
                             &pred.attention, &pred.other, &pred.h2d_bytes, &pred.d2h_bytes,
                             &pred.stall_forward, &pred.stall_backward, &pred.comm,
                             &pred.reduced_bytes, &pred.gathered_bytes};
    for (size_t i = 0; i < sizeof means / sizeof *means; i++) *means[i] /= counted;
    pred.reduced_bytes *= (double)(world - 1) / (double)world;  // a ring passes on all but one part
    pred.gathered_bytes *= (double)(world - 1) / (double)world;
    for (int i = 0; i < first->end; i++)
        pred.update = fmax(pred.update, q->jobs[i].span.end - start);
    if (trace != NULL && more == 0)
        predict_busy(q, start, q->jobs[last->norm].span.end, &pred);
    if (trace != NULL && trace->file != NULL)
        rehearsal_draw(q, trace, first->norm + 1, last->end, start);
    if (pred.comm == 0) return pred;
    for (int i = 0; i < q->count; i++)
        if (q->jobs[i].takes == TAKES_COMM) q->jobs[i].work = 0;
    Prediction y = {0};
    rehearsal_time(q);
    for (const StepMark *m = first; m < last; m++) predict_step(q, m->norm, m[1].norm, more, &y);
    pred.comm_exposed = fmax(0, pred.step - y.step / counted);
    return pred;
}

// ---------------------------------------------------------------------------------------------
// For people

// The planned run, for the sentences about it.
typedef struct {
    size_t tokens;           // of a step, on all GPUs
    size_t world;            // GPUs that train together
    size_t steps;            // of a run whose time is printed, else 0
    size_t window;           // ZenFlow: steps that a Prediction is the mean of; else 0
    bool zeroth;             // zeroth order: without a backward pass
} PlanRun;

// Prints how long a step is, and what is at work in it.
static void plan_print_speed(const Rates *rates, const PlanRun *run, const Prediction *pred) {
    const double flops = rates->gpu_flops * (pred->compute - pred->attention)
                       + rates->gpu_attention * pred->attention;
    printf("  step %.4g, of which %.4g are not compute: %.0f tokens/s", pred->step,
           fmax(pred->step - pred->compute - pred->other, 0), (double)run->tokens / pred->step);
    if (rates->gpu_flops > 0)
        printf(" at %.0f Tflop/s%s\n", 1e-12 * flops / pred->step,
               run->world > 1 ? " on each GPU" : "");
    else printf(", as if compute took no time: gpu_flops is not known\n");
    const double *s = pred->busy;
    if (s[USES_GPU] > 0)
        printf("  at work: GPU %.0f %%, CPU %.0f %%, link %.0f %% to the GPU, %.0f %% to the host"
               "\n", 100 * s[USES_GPU], 100 * s[USES_CPU], 100 * s[USES_H2D], 100 * s[USES_D2H]);
    if (run->steps == 0) return;
    const double seconds = pred->step * (double)run->steps;
    const int k = (seconds >= 60) + (seconds >= 3600) + (seconds >= 360000);
    const double units[] = {1, 60, 3600, 86400}, length = seconds / units[k];
    const char *const names[] = {"seconds", "minutes", "hours", "days"};
    printf("  %zu step%s, %s tokens: %.*f %s, without evaluations and checkpoints\n", run->steps,
           plural(run->steps), count_text((double)run->steps * (double)run->tokens).text,
           length < 10 ? 2 : length < 100 ? 1 : 0, length, names[k]);
}

// Prints a Prediction in lines.
static void plan_print_time(const Rates *rates, const PlanRun *run, const Prediction *pred) {
    printf("predicted time of a step, in seconds: ");
    if (run->zeroth)
        printf("products %.4g, updates and noise %.4g\n", pred->compute, pred->other);
    else printf("forward %.4g, backward %.4g, ", pred->forward, pred->backward);
    if (run->window > 0)
        printf("of which %.4g are waits; the mean of a window of %zu\n",
               pred->stall_forward + pred->stall_backward, run->window);
    else if (!run->zeroth) printf("update %.4g\n", pred->update);
    if (pred->bound > 0 && run->window == 0)
        printf("  the update's bound is %.4g (%s), %.0f %% of what it takes%s\n", pred->bound,
               pred->limit, 100 * pred->bound / pred->update,
               pred->bound > pred->update ? ": the first visitors come before it" : "");
    plan_print_speed(rates, run, pred);
    if (pred->h2d_bytes + pred->d2h_bytes > 0)
        printf("  over the link: %.2f GB to the GPU, %.2f GB to the host\n", 1e-9 * pred->h2d_bytes,
               1e-9 * pred->d2h_bytes);
    if (run->zeroth || run->world <= 1) return;
    printf("  between %zu GPUs: %.4g, of which %.4g are not hidden; each gives %.4g GB of "
           "gradients and %.4g GB of weights to the others\n", run->world, pred->comm,
           pred->comm_exposed, 1e-9 * pred->reduced_bytes, 1e-9 * pred->gathered_bytes);
    if (rates->gpu_link <= 0) printf("  as if that took no time: gpu_link is not known\n");
}

// ---------------------------------------------------------------------------------------------
// The choice

// Bytes of GPU and host memory that the trainer would take with this choice: its own memory plan.
typedef void (*OffloadNeeds)(void *model, const OffloadChoice *c, size_t *gpu, size_t *host);

// The least memory that would do if nothing fits: of the GPU, with this host's, and of the host,
// with this GPU's. SIZE_MAX: no amount would.
typedef struct { size_t gpu, host; } OffloadLeast;

// The memory that a choice has to fit into.
typedef struct {
    OffloadNeeds needs;
    void *model;             // for needs()
    size_t gpu, host;        // bytes that are there
    int recompute;           // RECOMPUTE_AUTO, or the one that it must be
    bool sums;               // gradients are summed, on the GPU or, if that is too small, the host
    int weights, layers;     // --weights, as far as there is a choice; the model's layers
    OffloadLeast *least;     // not NULL: of all that is tried, nothing fits, and this is noted
    bool dealt;              // ZeRO-3: every layer's weights are gathered into the ring
} OffloadMemory;

static bool memory_fits(const OffloadMemory *m, size_t gpu, size_t host) {
    if (m->least == NULL) return gpu <= m->gpu && host <= m->host;
    if (host <= m->host) m->least->gpu = min_size(m->least->gpu, gpu);
    if (gpu <= m->gpu) m->least->host = min_size(m->least->host, host);
    return false;
}

static bool choice_fits(const OffloadMemory *m, const OffloadChoice *c) {
    size_t gpu = 0, host = 0;
    m->needs(m->model, c, &gpu, &host);
    return memory_fits(m, gpu, host);
}

// Finds the number from `worst` to `best` that is nearest to `best` and with which *c fits: where
// none does, `worst`. n: the number, in *c; NULL: of residents, in 256ths. The best is tried first:
// where all is resident, nothing needs slots.
static void choice_search(const OffloadMemory *m, OffloadChoice *c, int *n, int worst, int best) {
    for (int middle = best;; middle = best + (worst - best) / 2) {
        if (n != NULL) *n = middle;
        else c->resident = middle / 256.0;
        if (worst == best) return;
        if (choice_fits(m, c)) worst = middle;
        else best = middle + (worst > best ? 1 : -1);
    }
}

// Returns the largest share of residents with which *c fits on the GPU; -1: none. If m->least is
// set, also tries the smallest with which it fits on the host.
static double choice_residents(const OffloadMemory *m, OffloadChoice c) {
    OffloadMemory gpu = *m, host = *m;
    gpu.host = host.gpu = SIZE_MAX;
    gpu.least = host.least = NULL;
    if (m->least != NULL) {
        choice_search(&host, &c, NULL, 256, 0);
        choice_fits(m, &c);
    }
    choice_search(&gpu, &c, NULL, 0, 256);
    return c.resident > 0 || choice_fits(&gpu, &c) ? c.resident : -1;
}

// Uses what *c leaves of the GPU's memory for weights that stay, unless all are to stream; then for
// rooms of gradients and of weights, whose bytes spare backward a wait (there is none where
// gradients are summed on the GPU); then for visitors' gradients, which spare the link two copies;
// then for slots, which only shorten a wait. All if "auto".
static void choice_fill(const OffloadMemory *m, OffloadChoice *c) {
    if (m->weights == WEIGHTS_AUTO) choice_search(m, c, &c->streamed, c->streamed, 0);
    const bool leaves = c->mode == OFFLOAD_ZENFLOW || !m->sums || c->sum_on_host;
    if (c->grad_rooms == 0 && c->mode != OFFLOAD_NONE && leaves)
        choice_search(m, c, &c->grad_rooms, LEAST_ROOMS, 1000);
    if (c->weight_rooms == 0 && (c->streamed > 0 || m->dealt))
        choice_search(m, c, &c->weight_rooms, LEAST_ROOMS, 1000);
    if (c->kept_grads < 0 && c->mode == OFFLOAD_INTERLEAVE)
        choice_search(m, c, &c->kept_grads, 0, 1000);
    if (c->slots == 0 && c->mode == OFFLOAD_INTERLEAVE)
        choice_search(m, c, &c->slots, LEAST_SLOTS, 1000);
}

// Completes a choice whose mode is given: residents, if they are below 0; then, one by one, until
// it fits: sums on the host, or gradients over activations; visitors' gradients on the host;
// recomputation; weights on the host. Then fills the memory that is left. False: nothing fits, and
// *c is the choice that needs the least.
static bool choice_settle(const OffloadMemory *m, OffloadChoice *c) {
    const bool any = c->resident < 0;
    const int weights = c->mode == OFFLOAD_NONE ? WEIGHTS_GPU : m->weights;
    for (int away = weights == WEIGHTS_HOST; away <= (weights != WEIGHTS_GPU); away++)
        for (int again = RECOMPUTE_NONE; again <= RECOMPUTE_BLOCK; again++)
            for (int tight = 0; tight < 3; tight++) {
                if (m->recompute != RECOMPUTE_AUTO && again != m->recompute) continue;
                c->recompute = again;
                c->streamed = away ? m->layers : 0;
                c->sum_on_host = tight > 0 && m->sums;
                c->kept_grads = tight < 2 ? (int)KEEP_ALL : -1;
                c->apart = tight > 0;
                if (any) c->resident = fmax(choice_residents(m, *c), 0);
                if (!choice_fits(m, c)) continue;
                choice_fill(m, c);
                return true;
            }
    return false;
}

// How long a step would take with this choice.
typedef Prediction (*OffloadRehearse)(const void *trainer, const OffloadChoice *c);

typedef struct {
    const Rates *rates;
    OffloadMemory memory;
    OffloadRehearse rehearse;
    const void *trainer;     // for rehearse()
    UpdateBytes bytes;       // of the run
    OffloadChoice choice;    // .subgroup, .wire_f32 are given; numbers of rooms, if not 0
    Prediction predicted;
    double none;             // seconds of a step with nothing offloaded; INFINITY: it does not fit
} OffloadSearch;

// Tries a choice, if `residents` with all that fit, and without; then with all rooms that fit.
// Takes it if its step is clearly shorter than that of those tried before, which are simpler.
static void search_try(OffloadSearch *q, const OffloadChoice *tried, bool residents) {
    for (int stay = residents && tried->mode != OFFLOAD_NONE; stay >= 0; stay--) {
        OffloadChoice c = *tried;
        if (stay) c.resident = choice_residents(&q->memory, c);
        if (c.mode == OFFLOAD_TWINFLOW && c.resident == 0) c.mode = OFFLOAD_ZERO;
        if (c.resident < 0 || !choice_fits(&q->memory, &c)) continue;
        choice_fill(&q->memory, &c);
        const Prediction pred = q->rehearse(q->trainer, &c);
        if (c.mode == OFFLOAD_NONE) q->none = fmin(q->none, pred.step);
        if (pred.step > 0.995 * q->predicted.step) continue;
        q->choice = c;
        q->predicted = pred;
    }
}

// Tries, with so many layers streaming: none, twinflow (zero, if nothing stays), interleave
// at shares around the best of rates.h; each with and without recomputation, with the sums of
// gradients on either side, and those of visitors; with as many residents as fit, too, or without.
static void search_all(OffloadSearch *q, int streamed, bool residents) {
    static const double shares[] = {1, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5};  // times the best
    static const int keeps[] = {KEEP_ALL, 0, -1};
    const OffloadMemory *m = &q->memory;
    OffloadChoice c = q->choice;
    c.stride = 0;
    c.streamed = streamed;
    q->bytes.streams = streamed > 0;
    for (c.recompute = RECOMPUTE_NONE; c.recompute <= RECOMPUTE_BLOCK; c.recompute++)
        for (int sum = 0; sum <= (int)m->sums; sum++) {
            if (m->recompute != RECOMPUTE_AUTO && c.recompute != m->recompute) continue;
            c.sum_on_host = sum;
            c.kept_grads = KEEP_ALL;
            c.share = c.resident = 0;
            c.mode = OFFLOAD_NONE;
            for (int apart = 0; apart < 2 - (c.recompute == RECOMPUTE_BLOCK); apart++) {
                c.apart = apart;
                if (!sum && streamed == 0) search_try(q, &c, residents);
            }
            c.apart = false;
            c.mode = OFFLOAD_TWINFLOW;
            search_try(q, &c, residents);
            c.mode = OFFLOAD_INTERLEAVE;
            for (int keep = 0; keep < 3; keep++) {
                c.kept_grads = keeps[keep];
                q->bytes.kept_grads = keep == 0 ? 1 : 0.5 * (keep - 1);
                const double best = fmax(best_share(q->rates, &q->bytes), 0.05);
                for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
                    c.share = fmin(best * shares[i], 1);
                    search_try(q, &c, residents);
                }
            }
        }
}

// Chooses for --offload auto what a rehearsal finds fastest; with weights on the host only if that
// is clearly faster, or if it is asked for, and then with residents, whose layers' weights stay,
// only if nothing fits without. False if nothing fits.
static bool offload_search(OffloadSearch *q) {
    const OffloadMemory *m = &q->memory;
    q->predicted.step = q->none = INFINITY;
    if (m->weights != WEIGHTS_HOST) search_all(q, 0, true);
    for (int stay = m->weights != WEIGHTS_HOST; stay < 2 && m->weights != WEIGHTS_GPU; stay++)
        if (m->weights == WEIGHTS_AUTO || q->predicted.step == INFINITY)
            search_all(q, m->layers, stay);
    return q->predicted.step < INFINITY;
}

// Prints what was found, and why.
static void search_print(const OffloadSearch *q) {
    const OffloadChoice *c = &q->choice;
    printf("offload auto: %s%s, predicted %.3g s per step", offload_names[c->mode],
           c->recompute == RECOMPUTE_BLOCK ? ", recomputing"
           : c->recompute == RECOMPUTE_LIGHT ? ", recomputing a little" : "", q->predicted.step);
    if (c->mode == OFFLOAD_INTERLEAVE)
        printf("; of what does not stay on the GPU, %.0f %% visits it", 100 * c->share);
    if (q->memory.weights == WEIGHTS_HOST) printf("; none was not tried");
    else if (q->none == INFINITY) printf("; none does not fit");
    else if (c->mode != OFFLOAD_NONE) printf("; none takes %.3g s", q->none);
    printf("\n");
}

#endif
