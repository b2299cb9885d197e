// plan.h: predicts how long a training step takes, from a rehearsal of the trainer's own step
// (rehearsal.h), and makes the choice of --offload auto by such predictions. No CUDA here.
// doc/speed.md explains how.
//   predict()            computes the Prediction of a rehearsal
//   plan_print_time()    prints a Prediction
//   choice_settle()      completes a choice whose mode is given, so that it fits into memory
//   offload_search()     makes the choice of --offload auto
//
// A prediction does not count: the time to start a kernel or copy; the GPU's work on gradient norms
// and on the embeddings' backward pass; extra kernels where cuBLASLt has no fused operation. It
// assumes that all ranks are alike, and in one node, and that collectives do not use the link to
// the host.
#ifndef TIDE_PLAN_H
#define TIDE_PLAN_H
#include "../../offload.h"
#include "rehearsal.h"

typedef struct {
    double step;               // from one gradient norm to the next. All times here are in seconds
    double forward, backward;  // from the first work to the last, with stalls
    double compute;            // products and attention of forward and backward, without stalls
    double attention;          // the part of compute that is attention
    double other;              // the GPU's other work in the compute stream
    double update;             // from the norm until all weights and state are in their places
    double bound;  // update_bound() of rates.h, if no work began before the norm; 0: unknown
    char limit[40];            // the limits of the machine that make this bound
    double h2d_bytes, d2h_bytes;   // gradients, weights and state on the link
    double stall_forward;      // waits before parts of forward, for new weights
    double stall_backward;     // waits before parts of backward, for free rooms
    double comm;               // all collectives
    double comm_exposed;       // by how much the step is longer because of them
    double reduced_bytes;      // gradients that each GPU sends to the others, to be summed
    double gathered_bytes;     // weights that each GPU sends to the others
    double busy[TRACE_USES];   // share of the time that each part of the machine works; 0: unknown
} Prediction;

// A rehearsed step: the last job of its gradient norm, and the number of jobs up to its update.
typedef struct { int norm, end; } StepMark;

// The most micro-batches that are rehearsed. The last but one counts for each omitted one, too.
enum { REHEARSED_MICRO = 5 };

static bool job_is(const Job *t, const char *name) {
    return t->span.row == ROW_COMPUTE && strcmp(t->span.name, name) == 0;
}

// Adds what jobs (before, end] of a step take to *pred. `more` micro-batches were not rehearsed.
static void predict_step(const Rehearsal *q, int before, int end, size_t more, Prediction *pred) {
    const Job *const last = &q->jobs[end];
    double done = q->jobs[before].span.end, begin = 0, tail = 0, back = 0, times = 1;
    int micro = -1;
    bool forward = false, begins = false;
    pred->step += last->span.end - done;
    for (const Job *t = &q->jobs[before + 1]; t <= last; t++) {
        const bool is_forward = job_is(t, "forward"), is_backward = job_is(t, "backward");
        const bool first = is_forward && t->span.number == 0;
        if (first && !begins) {  // a micro-batch begins
            if (micro >= 0) pred->backward += times * (t->span.begin - tail);
            if (times > 1) pred->step += (times - 1) * (done - back);
            back = done;
            begin = t->span.begin;
            times = ++micro == REHEARSED_MICRO - 2 ? 1 + (double)more : 1;
        }
        if (is_forward || is_backward) {
            const double waited = times * (t->span.begin - done);
            *(is_forward ? &pred->stall_forward : &pred->stall_backward) += waited;
            if (is_backward && forward) pred->forward += times * (done - begin);
            if (is_backward && forward) tail = done;
            forward = is_forward;
            begins = first;
        }
        if (t->span.row == ROW_COMPUTE && t->takes == TAKES_GPU) pred->other += times * t->work;
        if (t->takes == TAKES_ATTENTION) pred->attention += times * t->work;
        if (t->takes == TAKES_PRODUCTS || t->takes == TAKES_ATTENTION)
            pred->compute += times * t->work;
        if (t->span.row == ROW_COMPUTE) done = t->span.end;
        if (t->takes == TAKES_COMM) {  // (the exchange of norms has no bytes)
            const bool sums = strcmp(t->span.name, "reduce") == 0;
            *(sums ? &pred->reduced_bytes : &pred->gathered_bytes) += times * (double)t->span.bytes;
            pred->comm += times * t->work;
        }
        if (t->takes == TAKES_H2D && t->span.row >= 0) pred->h2d_bytes += times * t->work;
        if (t->takes == TAKES_D2H && t->span.row >= 0) pred->d2h_bytes += times * t->work;
    }
    pred->backward += last->span.end - tail;
}

// Computes for each part of the machine the share of time at work, from `begin` to `end`.
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

// Returns the mean of the last `counted` of `steps` rehearsed steps, when they should be all alike.
// In each step `more` micro-batches were not rehearsed; `world` GPUs train together. If trace is
// not NULL: computes pred.busy if `more` is 0; and if the trace has an open file, draws the counted
// steps there, and the update before them. Overwrites *q.
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
    pred.reduced_bytes *= (double)(world - 1) / (double)world;  // a GPU keeps its own share
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

// The facts of the planned run that are printed.
typedef struct {
    size_t tokens;           // tokens of a step, on all GPUs
    size_t world;            // GPUs that train together
    size_t steps;            // steps of the whole run, whose time is printed; 0: it is not printed
    size_t window;           // ZenFlow: the steps of which a Prediction is the mean; else 0
    bool zeroth;             // zeroth order: there is no backward pass
} PlanRun;

// Prints how long a step is, and how busy each part of the machine is in it.
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
    printf("  %zu step%s, %s tokens: %s, without evaluations and checkpoints\n", run->steps,
           plural(run->steps), count_text((double)run->steps * (double)run->tokens).text,
           duration_text(pred->step * (double)run->steps).text);
}

// Prints a Prediction in several lines.
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

// Used if no choice fits: the GPU memory that would be enough with this host's memory, and the host
// memory that would be enough with this GPU. SIZE_MAX: no amount would.
typedef struct { size_t gpu, host; } OffloadLeast;

// The memory into which a choice must fit.
typedef struct {
    // sets the bytes of GPU and host memory that a choice takes, by the trainer's memory plan
    void (*needs)(void *model, const OffloadChoice *c, size_t *gpu, size_t *host);
    void *model;             // for needs()
    size_t gpu, host;        // bytes of memory that may be used
    int recompute;           // --recompute; RECOMPUTE_AUTO: every value may be tried
    bool sums;               // micro-batches' gradients are summed, on the GPU or the host
    int weights, layers;     // where weights may be (WEIGHTS_AUTO: either side); number of layers
    OffloadLeast *least;  // if not NULL, memory_fits() notes the missing memory there, and is false
    bool dealt;              // ZeRO-3: the weights of every layer are gathered into the ring
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

// Changes one number of *c: to the number nearest to `best`, between `worst` and `best`, with which
// *c fits into memory; to `worst` if none fits. n points to the number; NULL: it is c->resident, in
// 256ths. Tries `best` first, because with all pieces resident no memory for slots is needed.
static void choice_search(const OffloadMemory *m, OffloadChoice *c, int *n, int worst, int best) {
    for (int middle = best;; middle = best + (worst - best) / 2) {
        if (n != NULL) *n = middle;
        else c->resident = middle / 256.0;
        if (worst == best) return;
        if (choice_fits(m, c)) worst = middle;
        else best = middle + (worst > best ? 1 : -1);
    }
}

// Returns the largest share of residents with which *c fits on the GPU; -1 if none fits. If
// m->least is not NULL, also notes there what *c needs with as few residents as the host allows.
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

// Lets as many layers as fit keep activations, if --recompute is "auto".
static void choice_keep(const OffloadMemory *m, OffloadChoice *c) {
    if (m->recompute == RECOMPUTE_AUTO && c->recompute == RECOMPUTE_BLOCK)
        choice_search(m, c, &c->kept_layers, c->kept_layers, m->layers - 1);
}

// Uses the GPU memory that *c leaves free. Raises each number that is "auto", in this order:
// weights that stay on the GPU; rooms of gradients and of weights, for which backward waits less
// (no rooms of gradients if they are summed on the GPU); visitors' gradients on the GPU, which then
// need not cross the link twice; slots, which only shorten a wait; layers that keep activations.
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
    choice_keep(m, c);
}

// Completes a choice whose mode is given. If c->resident is below 0, chooses it. Until *c fits,
// takes one of these steps after the other: gradients summed on the host, or stored where
// activations were; visitors' gradients on the host; more recomputation; weights on the host. Then
// fills the free memory. If nothing fits, returns false; *c is then what needs the least memory.
static bool choice_settle(const OffloadMemory *m, OffloadChoice *c) {
    const bool any = c->resident < 0;
    const int weights = c->mode == OFFLOAD_NONE ? WEIGHTS_GPU : m->weights;
    for (int away = weights == WEIGHTS_HOST; away <= (weights != WEIGHTS_GPU); away++)
        for (int again = RECOMPUTE_NONE; again <= RECOMPUTE_BLOCK; again++)
            for (int tight = 0; tight < 3; tight++) {
                if (m->recompute != RECOMPUTE_AUTO && again != m->recompute) continue;
                c->recompute = again;
                c->kept_layers = 0;
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

typedef struct {
    const Rates *rates;
    OffloadMemory memory;
    Prediction (*rehearse)(const void *trainer, const OffloadChoice *c);  // predicts a step
    const void *trainer;     // for rehearse()
    UpdateBytes bytes;       // bytes of the run's update on the link
    OffloadChoice choice;  // .subgroup and .wire_f32 are given, and numbers of rooms that are not 0
    Prediction predicted;
    double none;             // seconds of a step without offloading; INFINITY: it does not fit
} OffloadSearch;

// Tries a choice without residents; if `residents`, before that also with as many as fit; with
// layers that keep activations, as many as fit before or after all else. Each time adds all rooms
// that fit. Keeps the choice if its step is clearly shorter than that of each choice tried before,
// as earlier choices are simpler.
static void search_try(OffloadSearch *q, const OffloadChoice *tried, bool residents) {
    const OffloadMemory *m = &q->memory;
    for (int stay = residents && tried->mode != OFFLOAD_NONE; stay >= 0; stay--)
        for (int after = 1; after >= 0; after--) {
            OffloadChoice c = *tried;
            if (!after) choice_keep(m, &c);
            if (!after && c.kept_layers == 0) continue;
            if (stay) c.resident = choice_residents(m, c);
            if (c.mode == OFFLOAD_TWINFLOW && c.resident == 0) c.mode = OFFLOAD_ZERO;
            if (c.resident < 0 || !choice_fits(m, &c)) continue;
            choice_fill(m, &c);
            const Prediction pred = q->rehearse(q->trainer, &c);
            if (c.mode == OFFLOAD_NONE) q->none = fmin(q->none, pred.step);
            if (pred.step > 0.995 * q->predicted.step) continue;
            q->choice = c;
            q->predicted = pred;
        }
}

// Completes c: with `streamed` layers on the host, tries OFFLOAD_NONE; twinflow (or zero, without
// residents); interleave, at shares near the best one of rates.h. Tries each with and without
// recomputation; with sums, and visitors' gradients, on the GPU or the host. residents: as above.
static void search_all(OffloadSearch *q, OffloadChoice c, int streamed, bool residents) {
    static const double shares[] = {1, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5};  // of the best share
    static const int keeps[] = {KEEP_ALL, 0, -1};
    const OffloadMemory *m = &q->memory;
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

// Makes the choice of --offload auto: the one that is fastest in rehearsals. Puts weights on the
// host only if this is clearly faster, or if --weights host asks for it. With --weights host, tries
// residents (their layers' weights stay on the GPU) only if nothing fits without residents.
static bool offload_search(OffloadSearch *q) {
    const OffloadMemory *m = &q->memory;
    const OffloadChoice given = q->choice;
    q->predicted.step = q->none = INFINITY;
    if (m->weights != WEIGHTS_HOST) search_all(q, given, 0, true);
    for (int stay = m->weights != WEIGHTS_HOST; stay < 2 && m->weights != WEIGHTS_GPU; stay++)
        if (m->weights == WEIGHTS_AUTO || q->predicted.step == INFINITY)
            search_all(q, given, m->layers, stay);
    return q->predicted.step < INFINITY;
}

// Prints the choice, and how it compares with offloading nothing.
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
