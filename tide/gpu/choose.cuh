// choose.cuh: decides before training where the optimizer's state is stored (--offload auto) and
// whether a run fits, and predicts how long a step takes (--plan). A plan is a rehearsal: it runs
// the trainer's own step (GPT2.steps) with streams that only write the calls down (rehearsal.h).
//   gpt2_rehearse()                   predicts how long a step takes on a machine of these rates
//   model_flops()                     measures the flop/s of forward and backward
//   settle()                          settles all choices, by the options; or names, in an error,
//                                     options with which the run fits
//   calibrate()                       --calibrate
#ifndef TIDE_CHOOSE_CUH
#define TIDE_CHOOSE_CUH
#include "calibrate.cuh"
#include "layout.cuh"

// Returns the bytes per element that update_bound() needs.
static UpdateBytes update_bytes(const GPT2 *g) {
    const double visit = (double)g->pieces.elements[PIECE_VISIT];
    const double leave = (double)(g->pieces.grads_host - g->pieces.elements[PIECE_HOST]);
    return UpdateBytes{(double)g->host_grad_bytes, sizeof(floatX),
                       visit > 0 ? 1 - leave / visit : 1, (double)g->piece_bytes[PIECE_VISIT],
                       (double)g->streamed / (double)g->config.layers};
}

// Predicts how long a step takes on a machine of these rates, by a rehearsal: a copy of the model
// without memory runs the trainer's steps, and between rehearsal_begin() and rehearsal_end()
// queue.cuh writes the calls down instead of running them. The prediction is the time of the third
// step, as all later steps equal it; with ZenFlow, the mean step of the last two windows. A
// window whose end the gradients decide is planned with ZEN_PLANNED steps. A window of more than
// ZEN_PLANNED_MOST steps is rehearsed with ZEN_PLANNED_MOST; its bytes are scaled. In zeroth-order
// training, whose copies run ahead, the last three of nine steps count. `trace` gets these.
enum { ZEN_PLANNED = 4, ZEN_PLANNED_MOST = 64 };

static size_t zen_planned_window(const GPT2 *g) {
    const size_t window = g->zen->config.window;
    return window > 0 ? window : (size_t)ZEN_PLANNED;
}

static Prediction gpt2_rehearse(const GPT2 *model, const Run *r, const Rates *rates,
                                TraceFile *trace) {
    const size_t micros = min_size(r->o.accum, REHEARSED_MICRO), more = r->o.accum - micros;
    GPT2 copy = *model, *const g = &copy;
    Run same = *r, *const run = &same;
    size_t steps = 3, counted = 1, window = 1;
    ZenFlow zen;
    Zero zero;
    Zo zo;
    Rehearsal q;
    run->o.accum = micros;
    memset(&g->host, 0, sizeof g->host);
    memset(&g->owner, 0, sizeof g->owner);
    memset(&g->timeline, 0, sizeof g->timeline);
    if (g->zen != NULL) {
        zen = *g->zen;
        g->zen = &zen;
        window = min_size(zen_planned_window(model), ZEN_PLANNED_MOST);
        steps = 6 * window + 32 / window * window;
        counted = 2 * window;
        zen.config.window = window;
        zen.config.reselect = zen.config.warmup = zen.clock.filled = 0;
        zen.queued = zen.map.segments;
    }
    if (g->zero != NULL) {
        zero = *g->zero;
        g->zero = &zero;
    }
    if (g->zo != NULL) {
        zo = *g->zo;
        g->zo = &zo;
        zo.accum = micros;
        zo.pending = zo_nothing;
        zo.visits = zo.fetched = zo.newest = zo.sent = 0;
        steps = 9;
        counted = 3;
        run->o.steps = steps + 1;  // so the last step also copies a batch ahead
    }
    StepMark marks[6 * ZEN_PLANNED_MOST + 32];
    rehearsal_begin(&q, rates);
    gpt2_allocate(g);
    weights_renew(g);
    for (size_t i = 0; i < steps; i++) {
        g->steps->train(g, run, i + 1);
        marks[i] = StepMark{q.events[event_number(g->step_left)], q.count};  // norm, end
    }
    Prediction pred = predict(&q, marks, (int)steps, (int)counted, more, zen_ranks(g), trace);
    if (g->zen != NULL) pred.h2d_bytes *= (double)window / (double)zen_planned_window(model);
    if (g->zo != NULL)  // its copies ran ahead: a step takes at least their time
        pred.step = fmax(pred.step, fmax(pred.h2d_bytes / rate_or(rates->h2d, UNLIMITED),
                                         pred.d2h_bytes / rate_or(rates->d2h, UNLIMITED)));
    const size_t *of = model->pieces.elements;
    const double visit = (double)of[PIECE_VISIT], away = (double)of[PIECE_HOST] + visit;
    const UpdateBytes bytes = update_bytes(model);
    pred.bound = away * update_bound(rates, &bytes, away > 0 ? visit / away : 0, pred.limit);
    if (g->update_in_backward) pred.bound = 0;  // the bound is for an update that runs alone
    gpt2_release(g);
    rehearsal_end(&q);
    return pred;
}

// Chooses how many of the last segments are updated first, so that a step is shortest. The CPU then
// need not wait for the embeddings' gradient, which reaches the host last.
static void choose_early(GPT2 *g, const Run *r, const Rates *rates) {
    enum { TRIED = 8 };
    OffloadChoice c = g->choice, best = c;
    double least = INFINITY;
    if (!g->offloaded || g->zen != NULL || g->zo != NULL || g->no_overlap) return;
    for (int k = 0; k <= TRIED; k++) {
        c.early = g->segments * k / TRIED;
        gpt2_take(g, &c);
        const double step = gpt2_rehearse(g, r, rates, NULL).step;
        if (step > 0.995 * least) continue;
        least = step;
        best = c;
    }
    gpt2_take(g, &best);
}

// The arguments of search_rehearse(), which implements OffloadSearch.rehearse.
typedef struct { GPT2 *g; const Run *r; const Rates *rates; } Searched;

static Prediction search_rehearse(const void *trainer, const OffloadChoice *c) {
    const Searched *x = (const Searched *)trainer;
    gpt2_take(x->g, c);
    return gpt2_rehearse(x->g, x->r, x->rates, NULL);
}

// Time and floating-point operations of the products of a few layers, in a micro-batch without an
// update; model_flops() extrapolates both to all layers.
typedef struct { double seconds, flops; } LayerTimes;

// Returns the flop/s of attention's seven products, measured with the activations of layer 0.
static double attention_flops(GPT2 *g) {
    enum { RUNS = 8 };
    const GPT2Config *c = &g->config;
    const AttentionShape s =  // without a window, because no `begins` follow
        attention_shape(g->B, g->T, c->heads, config_kv(c), config_head(c));
    const LayerActs a = layer_acts(g, 0);
    cudaEvent_t at[2];
    for (int i = 0; i < 2; i++) CUDA(cudaEventCreate(&at[i]));
    for (int i = -RUNS; i < RUNS; i++) {  // the first RUNS fill the queue: no launch is timed
        if (i == 0) event_record(at[0], g->compute);
        attention_forward(a.atty, a.lse, a.qkv, NULL, s, g->compute);
        attention_backward(g->dwide, attention_room(g), g->delta, g->branch, a.atty, a.lse, a.qkv,
                           NULL, s, g->compute);
    }
    event_record(at[1], g->compute);
    const double seconds = device_seconds(at[0], at[1]);
    for (int i = 0; i < 2; i++) event_free(at[i]);
    return RUNS * 7.0 * s.width * s.B * s.T * s.T / seconds;
}

// Times a micro-batch of a model of `layers` layers, as the median of up to 9 runs in 3 s. Counts
// its operations in a rehearsal. Returns zeros if the model does not fit. Sets gpu_attention.
static LayerTimes time_layers(const Steps *steps, const Run *r, size_t layers, int recompute,
                              Rates *rates) {
    enum { RUNS = 9 };
    const double begin = seconds_now();
    LayerTimes x = {0, 0};
    Run same = *r, *const run = &same;
    double seconds[RUNS];
    cudaEvent_t after[RUNS];
    int count = 0;
    run->state.config.layers = layers;
    run->o.accum = run->world = 1;
    run->step_tokens = r->B * r->T;
    run->words = run->packed = run->task = false;
    GPT2 some = {.config = run->state.config, .table = gpt2_table(&run->state.config),
                 .max_B = r->B, .max_T = r->T, .training = true, .head_rows = HEAD_ROWS,
                 .choice = {.mode = OFFLOAD_NONE, .recompute = recompute}, .steps = steps};
    GPT2 *const g = &some;
    gpt2_place(g);
    if (gpt2_bytes(g, false) > gpu_available()) {
        gpt2_free(g);
        return x;
    }
    gpt2_allocate(g);
    for (int i = 0; i < g->table.count; i++) {  // products of zeros would be faster
        const size_t n = g->table.tensors[i].size;
        float *w = ALLOC(float, n, "calibration");
        gpt2_init_range(&g->table, i, 0, n, w, 1);
        floats_move(tensor(g, i), w, n, false);
        free(w);
    }
    for (size_t n = 0; n < run->step_tokens; n++)
        g->inputs[n] = g->targets[n] = (int32_t)(n * 7919 % g->config.vocab);
    for (int i = 0; i < RUNS; i++) CUDA(cudaEventCreate(&after[i]));
    for (int i = 0; i < RUNS; i++) {  // queues run i before waiting for run i - 1
        steps->micro_batch(g, r->B, r->T, (float)(run_loss_scale(run) / (double)run->step_tokens));
        event_record(after[i], g->compute);
        if (i > 1) seconds[count++] = device_seconds(after[i - 2], after[i - 1]);
        if (count > 0 && seconds_now() - begin > 3) break;
    }
    device_sync();
    for (int i = 0; i < RUNS; i++) event_free(after[i]);
    rates->gpu_attention = attention_flops(g);
    rates->gpu_flops = 1e12;
    const Prediction pred = gpt2_rehearse(g, run, rates, NULL);
    const double median = median_of(seconds, (size_t)count);
    x.flops = 1e12 * (pred.compute - pred.attention);
    x.seconds = fmax(median - pred.attention - pred.other, median / 10);  // other: layer_passes()
    gpt2_free(g);
    return x;
}

// Sets gpu_flops and gpu_attention by timing models of four layers and of two. If four layers do
// not fit, recomputes activations; if four still do not fit, times two layers and one. Sets both
// rates to 0 if nothing fits, or if a large model would run on the emulated GPU.
static void model_flops(const Steps *steps, const Run *r, Rates *rates) {
    const size_t L = r->state.config.layers;
    const bool large = gpt2_flops_per_token(&r->state.config, r->T) * (double)(r->B * r->T) > 2e10;
    rates->gpu_flops = rates->gpu_attention = 0;
    for (int k = 0; k < 3 && !(EMULATED && large); k++) {
        const int asked = r->o.recompute;
        const int recompute = asked != RECOMPUTE_AUTO ? asked
                            : k == 0 ? RECOMPUTE_NONE : RECOMPUTE_BLOCK;
        const size_t more = min_size(L, k < 2 ? 4 : 2), few = more > 1 ? more / 2 : 1;
        const LayerTimes b = time_layers(steps, r, more, recompute, rates);
        if (b.seconds == 0) continue;
        const LayerTimes a = time_layers(steps, r, few, recompute, rates);
        const double n = (double)(L - few) / fmax((double)(more - few), 1);
        rates->gpu_flops = (a.flops + n * (b.flops - a.flops))
                         / (a.seconds + n * (b.seconds - a.seconds));
        return;
    }
}

// Finds the rates of this machine with this model, unless *rates has them: reads --rates, or
// measures, which takes a second or two. All ranks measure at once, so each measures its own share
// of the machine. Opens the host's queue if it is closed.
static void know_rates(GPT2 *g, const Run *r, Rates *rates) {
    const Options *o = &r->o;
    Error err;
    if (rates->h2d > 0) return;
    if (o->rates != NULL) {
        if (!rates_load(rates, o->rates, &err)) die("--rates: %s", err.text);
        if (!(rates->h2d > 0 && rates->d2h > 0)) die("--rates %s: it lacks h2d or d2h", o->rates);
        *rates = rates_of_rank(rates, o->plan ? o->world : (size_t)ranks.local_world);
        return;
    }
    if (!has_device()) die("describe the machine that is planned for: --rates FILE");
    if (g->host.stream == NULL) host_queue_open(&g->host, g->host_threads);
    rates_measure(rates, &g->host, 1.5);
    if (EMULATED)
        printf("rates: measured on an emulated GPU; what is predicted from them means nothing\n");
    if (o->plan) *rates = rates_of_rank(rates, o->world);
    model_flops(g->steps, r, rates);
}

// Settles ZenFlow's columns: takes a checkpoint's columns or makes new ones. The last layers may
// have all state on the GPU: a share --resident of the layers or, by default, as few as will fit.
static void zen_choose(GPT2 *g, const Run *r, size_t limit, size_t host_limit) {
    const Options *o = &r->o;
    const size_t L = g->config.layers;
    ZenFlow *z = g->zen = ALLOC(ZenFlow, 1, "columns");
    const bool given = o->resident >= 0;
    const OffloadChoice asked = g->choice;
    const OffloadMemory memory = gpt2_memory(g, o->recompute, limit, host_limit);
    z->config = zen_config(o);
    const bool fixed = given || zen_is_saved(r);
    size_t whole = given ? (size_t)(o->resident * (double)L + 0.5) : 0;
    for (bool fits = fixed; !fits && whole <= L; whole += !fits) {
        z->map = zen_map(&r->table, L, o->zen_topk, whole);
        zen_own(g);
        fits = gpt2_settle(g, &memory);
        g->choice = asked;
        zen_maps_free(z);
    }
    if (!given && whole > L) whole = 0;  // nothing fits: choose_offload() says so
    // All ranks must have the same columns: the rank that needs the most whole layers decides.
    if (g->zero != NULL && !fixed && !o->plan) whole = ~zero_least(~whole, r->world);
    zen_open(r, &z->map, &z->clock, whole);
    zen_own(g);
    if (given && z->map.whole != whole)
        die("--resident %g contradicts the checkpoint, in which the last %zu layers are on "
            "the GPU: leave it out", o->resident, z->map.whole);
}

// Places a model for zeroth-order training: --resident-blocks layers on the GPU (auto: as many as
// fit). If the default number of slots for the other layers does not fit, takes fewer slots.
// Returns false if nothing fits.
static bool zo_choose(GPT2 *g, const Options *o, size_t limit, size_t host_limit) {
    const OffloadMemory m = gpt2_memory(g, o->recompute, limit, host_limit);
    const bool automatic = o->resident_blocks == AUTO_COUNT;
    const size_t least = automatic ? 0 : o->resident_blocks, fewest = o->slots > 0 ? o->slots : 1;
    size_t stay = automatic ? g->config.layers : least;
    size_t slots = o->slots > 0 ? o->slots : (size_t)LEAST_SLOTS;
    for (;;) {
        zo_place(g, stay, slots);
        if (memory_fits(&m, gpt2_bytes(g, false), gpt2_bytes(g, true))) return true;
        if (stay > least) stay--;
        else if (slots > fewest) slots--;
        else return false;
    }
}

// Chooses where the optimizer's state is stored, by the options and, for those that are "auto", by
// the machine's rates. Returns false if nothing fits.
static bool choose_offload(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    const Options *o = &r->o;
    OffloadChoice *c = &g->choice;
    memset(c, 0, sizeof *c);
    c->mode = g->training && o->dump == NULL ? o->offload : OFFLOAD_NONE;
    c->stride = option_given(o, "share") ? 0 : o->stride;  // replaces a checkpoint's stride
    c->subgroup = o->subgroup;
    c->slots = (int)o->slots;
    c->wire_f32 = o->grad_wire == WIRE_FP32;
    c->resident = o->resident >= 0 && c->mode != OFFLOAD_ZENFLOW ? o->resident : 0;
    c->share = o->share;
    c->inputs_leave = o->activations == ACTIVATIONS_HOST;
    gpt2_sizes(g);
    if (c->subgroup > 0 && g->shards.elements / c->subgroup > 100000)
        die("--subgroup %zu cuts this model into %zu sub-groups; at most 100000 are sensible",
            c->subgroup, g->shards.elements / c->subgroup);
    if (c->mode == OFFLOAD_ZENFLOW) zen_choose(g, r, limit, host_limit);
    const OffloadMemory memory = gpt2_memory(g, o->recompute, limit, host_limit);
    if (c->mode == OFFLOAD_AUTO) {
        OffloadMemory kept = memory;  // first tries to keep all activations
        if (kept.recompute == RECOMPUTE_AUTO) kept.recompute = RECOMPUTE_NONE;
        c->mode = OFFLOAD_NONE;
        const OffloadChoice asked = *c;
        if (g->weights != WEIGHTS_HOST && gpt2_settle(g, &kept)) return true;
        if (g->least == NULL) know_rates(g, r, rates);
        const Searched searched = {g, r, rates};
        OffloadSearch search = {rates, memory, search_rehearse, &searched, update_bytes(g), asked,
                                {}, 0};
        if (!offload_search(&search)) return false;
        if (g->predicted.step == 0) search_print(&search);  // not for print_faster()
        gpt2_take(g, &search.choice);
        return true;
    }
    if (c->mode == OFFLOAD_TWINFLOW && o->resident < 0) c->resident = -1;  // as much as fits
    // --stride auto takes the stride from equation 1 of Deep Optimizer States
    if (c->mode == OFFLOAD_INTERLEAVE && option_given(o, "stride") && c->stride == 0) {
        know_rates(g, r, rates);
        const double k = eq1_stride(rates);
        if (isnan(k)) die("--stride auto needs h2d, d2h and host_adam in --rates");
        c->stride = k > 1 && k < 1e6 ? (size_t)(k + 0.5) : 1;
    } else if (c->mode == OFFLOAD_INTERLEAVE && c->stride == 0 && c->share < 0) {
        know_rates(g, r, rates);
        UpdateBytes bytes = update_bytes(g);
        bytes.streams = g->weights == WEIGHTS_HOST;
        bytes.kept_grads = 1;
        c->share = best_share(rates, &bytes);
    }
    return gpt2_settle(g, &memory);
}

// Ends the run if the norms' backward pass needs more shared memory than this GPU gives a block.
static void check_device(const GPT2 *g, bool resumed) {
    const size_t C = g->config.channels;
    const size_t needed = 2048 + (g->config.rms ? layernorm_backward_shared<floatX, true>(C)
                                                : layernorm_backward_shared<floatX>(C));
    int device, most;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (g->training && needed > (size_t)most)
        die("to train %zu channels, a block needs %zu KiB of shared memory, and has %d on this "
            "GPU%s", g->config.channels, (needed + 1023) / 1024, most / 1024,
            resumed ? "" : ": --optimizer mezo needs less");
}

// Sets the fields of g that decide how much memory is needed, from the options and ZeRO's stage.
static void gpt2_follow(GPT2 *g, const Run *r, int stage) {
    const bool stay = !g->training || r->o.dump != NULL;
    if (g->zero != NULL) g->zero->stage = stage;
    g->weights = stay || (g->zero != NULL && stage < 3) ? (int)WEIGHTS_GPU : r->o.weights;
    g->moments_bf16 = r->o.moments == MOMENTS_BF16;
    g->master_bf16 = r->o.master == MASTER_BF16;
    g->accumulating = g->training && r->o.accum > 1 && r->o.dump == NULL;
    g->update_in_backward = g->training && r->o.clip == 0 && r->o.dump == NULL && !r->o.no_overlap
                         && r->o.offload != OFFLOAD_ZENFLOW && PRECISION != PRECISION_FP16;
    g->max_B = r->batches ? r->B : 1;
    g->max_T = r->batches ? r->T : 1;
    g->sampling = r->sampling && g->zo == NULL;
    const size_t window = config_window(&g->config);
    if (r->sampling && g->max_B * g->max_T < window) {  // one sample may have `window` tokens
        g->max_B = 1;
        g->max_T = window;
    }
    // Chunks of rows need a sum in fp32, which takes as much memory as the logits of `more` rows.
    const size_t N = g->max_B * g->max_T, more = 4 * config_embed(&g->config) / sizeof(floatX);
    g->head_rows = HEAD_ROWS;
    if (!g->config.tied && N > HEAD_ROWS && N <= HEAD_ROWS + more) g->head_rows = N;
}

// Places everything within these limits. Returns whether it fits. (--zero auto tries 2, then 3.)
static bool choose(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    const bool two = g->zero != NULL && r->o.zero == 0 && r->world > 1 && !g->zero->rows;
    for (int stage = zero_asked(&r->o);; stage = 3) {
        gpt2_follow(g, r, stage);
        bool fits = g->zo != NULL ? zo_choose(g, &r->o, limit, host_limit)
                                  : choose_offload(g, r, limit, host_limit, rates);
        if (stage == 2 && two && !r->o.plan) fits = zero_least(fits, r->world) > 0;
        if (fits || stage == 3 || !two) return fits;
    }
}

// Returns the smallest GPU and host memory that is enough for a run that does not fit these limits.
static OffloadLeast choose_least(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    OffloadLeast least = {SIZE_MAX, SIZE_MAX};
    g->least = &least;
    choose(g, r, limit, host_limit, rates);
    g->least = NULL;
    return least;
}

// Tries other options, and prints those with which the run fits.
static void refuse_ways(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates, FILE *f) {
    const Run asked = *r;
    const int again = asked.o.recompute;
    char half[24];
    size_t gpu = SIZE_MAX;
    const char *const ways[][4] = {
        {"batch", "1"}, {"seq", half}, {"moments", "bf16"}, {"recompute", "auto"},
        {"offload", "auto"}, {"weights", "auto"}, {"activations", "host"}, {"zero", "auto"},
        {"slots", "auto"}, {"resident-blocks", "auto"}, {"clip", "0"}, {"master", "bf16"},
        {"batch", "1", "moments", "bf16"}};
    const char *const first = "; it fits with", *joint = first;
    snprintf(half, sizeof half, "%zu", r->T > 3 ? r->T / 2 : r->T);
    for (const char *const *way : ways) {
        bool fits = way[2] == NULL || joint == first;  // tries a pair only if no single one fits
        for (int k = 0; k < 4 && way[k] != NULL; k += 2) {
            const Option *opt = &option_table[option_find(way[k], strlen(way[k]))];
            option_set(&r->o, opt, way[k + 1]);
            fits &= !option_same(&asked.o, &r->o, opt) && !(r->o.resume && (opt->flags & O_FIXED));
        }
        if (way == ways[4] && asked.o.offload > OFFLOAD_ZERO) fits = false;  // its options clash
        if (way == ways[6] && (again == RECOMPUTE_NONE || again == RECOMPUTE_LIGHT)) fits = false;
        if (r->o.resume && option_given(&r->o, "accum")) fits = false;
        if (r->o.master == MASTER_BF16 && PRECISION != PRECISION_BF16) fits = false;
        r->B = r->o.batch;
        if (way == ways[1]) r->T = r->o.seq;
        if (r->o.resume) r->o.accum = asked.o.accum * asked.B / r->B;
        if (fits) gpu = choose_least(g, r, limit, host_limit, rates).gpu;
        if (fits && gpu < SIZE_MAX && gpu <= limit) {
            fprintf(f, "%s --%s %s", joint, way[0], way[1]);
            if (way[2] != NULL) fprintf(f, " --%s %s", way[2], way[3]);
            joint = ", or with";
        }
        *r = asked;
    }
}

// Ends a run that does not fit. Prints the smallest memory that is enough, the plan with this
// memory, and other options with which the run fits.
static void refuse(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = text_open(&text, &n);
    r->o.plan = true;  // asks no other rank: the run may fit there
    OffloadLeast need = choose_least(g, r, limit, host_limit, rates);
    const bool both = need.gpu == SIZE_MAX && need.host == SIZE_MAX;
    if (both) {
        need.gpu = choose_least(g, r, 0, SIZE_MAX, rates).gpu;
        need.host = choose_least(g, r, need.gpu, SIZE_MAX, rates).host;
    }
    if (need.gpu == SIZE_MAX && need.host == SIZE_MAX)
        die("--weights host: the state of every layer is on the GPU, and so are its weights: take "
            "a smaller --resident");
    for (int host = 1; host >= 0; host--) {
        const size_t bytes = host ? need.host : need.gpu, there = host ? host_limit : limit;
        if (bytes == SIZE_MAX) continue;
        if (!host && need.host < SIZE_MAX) fprintf(f, both ? ", and " : ", or ");
        fprintf(f, "%s of %s memory and %s are there (%s)", size_text(bytes, true).text,
                host ? "host" : "GPU", size_text(there, false).text,
                host ? "available, or --host-memory" : "free, or --gpu-memory");
    }
    refuse_ways(g, r, limit, host_limit, rates, f);
    const size_t gpu = both || need.host == SIZE_MAX ? need.gpu : limit;
    const size_t host = need.host == SIZE_MAX ? host_limit : need.host;
    text_close(f);
    choose(g, r, gpu, host, rates);
    if (!r->only_sampling) gpt2_print(g, r, limit, host_limit);
    die("this run needs %s", text);
}

// Prints the last line of a plan: how much memory and disk the run takes.
static void print_fits(GPT2 *g, const Run *r, size_t limit, size_t host_limit) {
    for (int host = 0; host <= (int)(gpt2_bytes(g, true) > 0); host++) {
        const size_t most = host ? host_limit : limit;
        printf("%s%s", host ? ", " : most == SIZE_MAX ? "needs: " : "fits: ",
               size_text(gpt2_bytes(g, host), true).text);
        if (most != SIZE_MAX) printf(" of %s", size_text(most, false).text);
        printf(" on the %s%s", host ? "host" : "GPU", r->world > 1 ? " per rank" : "");
    }
    if (r->training && !r->o.no_save && r->o.dump == NULL)
        printf(", and %sB of disk for the weights and a checkpoint, up to %sB with --keep %zu",
               count_text(run_disk(r, 1)).text,
               count_text(run_disk(r, r->o.keep + 1 + r->o.keep_best)).text, r->o.keep);
    printf("\n");
}

// Tries larger micro-batches with as many tokens per step. If a step is predicted to be faster with
// one of them, prints the best one. Afterwards g is placed for the last micro-batch that was tried.
static void print_faster(GPT2 *g, Run *r, size_t limit, size_t host_limit, Rates *rates) {
    const size_t batch = r->o.batch, accum = r->o.accum;
    double least = g->predicted.step;
    size_t best = 1;
    for (size_t k = 2; k <= accum; k++) {
        if (accum % k > 0) continue;
        r->o.batch = r->B = batch * k;
        r->o.accum = accum / k;
        if (!choose(g, r, limit, host_limit, rates)) break;
        const double step = gpt2_rehearse(g, r, rates, NULL).step;
        if (step > 0.99 * least) break;
        least = step;
        best = k;
    }
    if (best > 1)
        printf("faster, and the same result but for rounding: --batch %zu --accum %zu, %.0f "
               "tokens/s\n", batch * best, accum / best, (double)r->step_tokens / least);
}

// Places everything on this machine or, with --plan, on the machine that --rates, --gpu-memory and
// --host-memory describe. Prints the result and, if the rates are known, the time of a step.
// Returns the bytes of GPU memory.
static size_t settle(GPT2 *g, Run *r) {
    const Options *o = &r->o;
    Limits limits;
    settle_limits(o, &limits);
    if (limits.here) check_device(g, o->resume);
    const size_t limit = limits.gpu, host_limit = limits.host;
    Rates rates = {};
    if (!choose(g, r, limit, host_limit, &rates)) refuse(g, r, limit, host_limit, &rates);
    if (zero_stage(g->zero) == 3 && !o->plan) {  // to gather in one order, all need equal rooms
        g->choice.weight_rooms = (int)zero_least((size_t)g->weight_rooms.count, r->world);
        gpt2_place(g);
    }
    if (r->training && (o->rates != NULL || (o->plan && limits.here)))
        know_rates(g, r, &rates);
    if (rates.h2d > 0 && r->training && !g->update_in_backward) choose_early(g, r, &rates);
    if (!r->only_sampling || o->plan) gpt2_print(g, r, limit, host_limit);
    const size_t planned = gpt2_bytes(g, false);
    if (rates.h2d > 0 && r->training) {
        const bool length = option_given(o, "steps") || option_given(o, "epochs");
        const PlanRun run = {r->step_tokens, r->world, o->plan && length ? o->steps : 0,
                             g->zen != NULL ? zen_planned_window(g) : 0, g->zo != NULL};
        const bool draw = o->plan && o->trace != NULL;
        TraceFile trace = {NULL, NULL, 0};
        Error err;
        if (draw && !trace_open(&trace, o->trace, &err)) fail("%s", err.text);
        g->predicted = gpt2_rehearse(g, r, &rates, &trace);
        if (draw && !trace_close(&trace, &err)) fail("%s", err.text);
        plan_print_time(&rates, &run, &g->predicted);
    } else if (o->plan && r->training) {
        printf("for the time of a step, describe the machine: --rates FILE\n");
    }
    if (o->plan) print_fits(g, r, limit, host_limit);
    if (o->plan && g->predicted.step > 0) print_faster(g, r, limit, host_limit, &rates);
    return planned;
}

// Measures the rates, prints them, and writes them to the file --rates (--calibrate).
static int calibrate(const Run *r, const Steps *steps) {
    const Options *o = &r->o;
    Rates rates = {};
    HostQueue queue = {};
    open_device();
    ranks_barrier();
    host_queue_open(&queue, (int)o->threads);
    host_describe(&queue);
    rates_measure(&rates, &queue, 3);
    model_flops(steps, r, &rates);
    if (rates.gpu_flops == 0)
        die("--calibrate: layers of %s with %zu x %zu tokens are too much for this device: try a "
            "smaller %s--seq or --model", o->model, r->B, r->T, r->B > 1 ? "--batch, " : "");
    if (ranks.rank > 0) return 0;
    rates_write(stdout, &rates);
    host_queue_close(&queue);
    if (o->rates == NULL) return print_end();
    Error err;
    FILE *f = replace_open(o->rates, &err);
    if (f != NULL) rates_write(f, &rates);
    if (f == NULL || !replace_close(f, o->rates, &err)) fail("%s", err.text);
    return 0;
}

// ---------------------------------------------------------------------------------------------
// The measured time of a step

// Adds the counters of a step of AdamW to its line in log.jsonl. The bytes are those of this step.
// The times are those of the newest complete step ("step"), two steps before this one, because no
// thread waits for the end of a step.
static void step_log(const GPT2 *g, StepResult *result) {
    const TimelineStep *d = &g->timeline.done;
    const size_t *of = g->pieces.elements, used = strlen(result->more);
    const ZenMap *map = g->zen != NULL ? &g->zen->map : NULL;
    char busy[160], *const json = result->more + used;
    timeline_log(&g->timeline, busy, sizeof busy);
    if (d->step > 0 && (g->offloaded || g->timeline.trace.file != NULL))
        snprintf(json, sizeof result->more - used, ",\"offload\":{\"step\":%zu,"
                 "\"forward_ms\":%.6g,\"backward_ms\":%.6g%s,\"update_ms\":%.6g,"
                 "\"exposed_ms\":%.6g,\"duplex_ms\":%.6g,\"bound_ms\":%.6g,\"h2d_bytes\":%zu,"
                 "\"d2h_bytes\":%zu,\"cpu_params\":%zu,\"gpu_params\":%zu}", d->step,
                 1e3 * d->forward, 1e3 * d->backward, busy, 1e3 * d->update_seconds,
                 1e3 * d->stalled, 1e3 * d->busy[USES_DUPLEX], 1e3 * g->predicted.bound,
                 g->moved_in, g->moved_out,
                 map != NULL ? map->elements - map->chosen_elements : of[PIECE_HOST],
                 map != NULL ? map->chosen_elements : of[PIECE_VISIT] + of[PIECE_RESIDENT]);
    if (g->zen != NULL && d->step > 0) zen_log(g, result->more, sizeof result->more);
    if (g->zero != NULL) zero_log(g, result->more, sizeof result->more);
}

#endif
