// bench_zo: zeroth-order training: its kernel, its step, and its streams, against what they could be.
//
//   build/gpu/bench_zo [--tiny] [PART...]      all parts, if none is named
//
//   kernel   zo_weights_kernel() alone: GB/s as a share of what a plain copy reaches in the same run,
//            and normal numbers per second. Bytes: what each weight cannot do without.
//   step     the in-memory step against two plain forward passes of the same shape in turn, OPT-1.3B
//            and 6.7B; and what the rest is. fp16 has no plain forward pass in this trainer: its
//            steps are held against bf16's, which move as many bytes and have the same peak.
//   stream   streamed against in-memory, and without each of the three things that make it fast,
//            next to the factors that the paper has for its own (ZO-Offloading, table 2)
//   queries  streamed, with 1 to 8 directions per step: where the link is the limit they are free
//
// Everything that is compared runs in turn in this run; times are medians: of the kernel as timed.cuh
// takes them, of steps by the host's clock; weights and tokens are random. A model that does not fit is left out, and said to be. "plan" is
// a rehearsal's prediction from the link's rates of this run and the in-memory step. --tiny: runs in
// seconds anywhere, and says nothing about speed, as nothing does on the emulated GPU.
#define TESTING
#include "../../train_gpt2.cu"
#include "timed.cuh"

enum { BATCH = 4, SLOTS = 3, TIMES = 64 };

static struct {
    bool tiny;
    size_t steps;      // of all models so far
    int rounds;
    Run run;           // what zo_step() wants of one: options, and random tokens
    TokenSegment tokens;
    TokenData data;
    Rates rates;
    Timed timed;       // of the kernel alone
} bench;

// Times of things that take turns: each adds its own, and has its median at the end.
typedef struct { int count; double seconds[TIMES]; } Times;

static void times_add(Times *t, double seconds) {
    if (t->count < TIMES) t->seconds[t->count++] = seconds;
}

static double median(Times *t) {
    return t->count > 0 ? median_of(t->seconds, (size_t)t->count) : 0;
}

// Seconds of what `call` queues, from an idle device to an idle device.
#define TIMED(times, call)                           \
    do {                                             \
        CUDA(cudaDeviceSynchronize());               \
        const double timed_begin = seconds_now();    \
        call;                                        \
        CUDA(cudaDeviceSynchronize());               \
        times_add(times, seconds_now() - timed_begin); \
    } while (0)

static const char *const type_name =
    PRECISION == PRECISION_FP32 ? "fp32" : PRECISION == PRECISION_FP16 ? "fp16" : "bf16";

// ---------------------------------------------------------------------------------------------
// The kernel

static void bench_kernel(size_t n, double copy_rate) {
    floatX *theta = (floatX *)gpu_alloc(n * sizeof(floatX), "a benchmark");
    floatX *plus = (floatX *)gpu_alloc(n * sizeof(floatX), "a benchmark");
    floatX *minus = (floatX *)gpu_alloc(n * sizeof(floatX), "a benchmark");
    const ZoGroup group = {n, 1, {{0, n, 0, 3, 1}}};
    static const char *const noises[] = {"gaussian", "rademacher"};
    CUDA(cudaMemset(theta, 0x3c, n * sizeof(floatX)));  // 0.0115 or so; 1.06 in fp16
    CUDA(cudaDeviceSynchronize());
    for (int noise = 0; noise < 2; noise++)
        for (uint32_t update = 0; update < 2; update++) {
            const ZoConfig c = {1, 1e-3f, 1, noise, ZO_STORAGE};
            const ZoUpdate u = {9 * update, 0, {1e-9f}};
            const double moved = (double)n * (double)sizeof(floatX) * (3 + update);
            const double s = timed(&bench.timed, moved, [&] {
                zo_weights_kernel<<<ceil_div(n, 8 * BLOCK_THREADS), BLOCK_THREADS, 0,
                                    bench.timed.stream>>>(theta, plus, minus, group, c, u, 10, 0,
                                                          c.eps);
                CUDA(cudaGetLastError());
            });
            const double rate = moved / s;
            printf("%-12s %-11s %8u %10.1f %8.0f %8.1f", type_name, noises[noise], update, 1e6 * s,
                   1e-9 * rate, 100 * rate / copy_rate);
            if (noise == ZO_GAUSSIAN) printf(" %12.1f", 1e-9 * (double)n * (update + 1) / s);
            printf("\n");
        }
    CUDA(cudaFree(theta));
    CUDA(cudaFree(plus));
    CUDA(cudaFree(minus));
}

static void part_kernel(void) {
    const size_t n = bench.tiny ? 1 << 12 : (size_t)1 << 30;  // ms
    char *a = (char *)gpu_alloc(4 * n, "a benchmark");
    timed_open(&bench.timed, bench.tiny);
    CUDA(cudaMemset(a, 0x3c, 4 * n));
    CUDA(cudaDeviceSynchronize());
    const double copy_rate = 4 * (double)n / timed(&bench.timed, 4 * (double)n, [&] {
        CUDA(cudaMemcpyAsync(a + 2 * n, a, 2 * n, cudaMemcpyDeviceToDevice, bench.timed.stream));
    });
    CUDA(cudaFree(a));
    printf("\n== kernel: %zu weights; a plain copy moves %.0f GB/s (read and written)\n", n,
           1e-9 * copy_rate);
    printf("%-12s %-11s %8s %10s %8s %8s %12s\n", "weights", "noise", "updates", "us", "GB/s",
           "of copy%", "G normals/s");
    bench_kernel(n, copy_rate);
    timed_close(&bench.timed);
}

// ---------------------------------------------------------------------------------------------
// Models of random weights

// Weight number i, about as large as first weights are.
HOST_DEVICE static inline float bench_weight(size_t i) {
    return (float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-36f;
}

__global__ static void bench_fill_kernel(floatX *p, size_t n) {
    const size_t i = grid_thread();
    if (i < n) p[i] = from_f32<floatX>(bench_weight(i));
}

static void bench_fill(floatX *p, size_t n) {
    for (size_t at = 0, count; at < n; at += count) {
        count = min_size(n - at, (size_t)1 << 30);
        bench_fill_kernel<<<ceil_div(count, BLOCK_THREADS), BLOCK_THREADS>>>(p + at, count);
        CUDA(cudaGetLastError());
    }
    CUDA(cudaDeviceSynchronize());
}

static GPT2Config bench_config(const char *name) {
    GPT2Config c;
    Error err;
    if (!gpt2_preset(&c, name)) die("no model %s", name);
    if (bench.tiny) {
        c.layers = 3;
        c.channels = 32;
        c.heads = 2;
        c.vocab = 300;
        c.context = 16;
    }
    if (!gpt2_finish(&c, &err)) die("%s", err.text);
    return c;
}

// The tokens of a pass: B sequences of the model's length.
static void bench_batch(const GPT2Config *c, size_t B) {
    Run *r = &bench.run;
    r->state.config = *c;
    r->B = B;
    r->T = c->context;
    r->o.accum = 1;
    r->step_tokens = B * r->T;
    r->o.steps = SIZE_MAX;
    r->train = loader_make(&bench.data, 0, bench.data.tokens, r->T, 1, true, NULL);
}

static GPT2 *bench_model(const GPT2Config *c, size_t B) {
    GPT2 *g = gpt2_new();
    g->config = *c;
    g->table = gpt2_table(c);
    g->head_rows = HEAD_ROWS;
    g->max_B = B;
    g->max_T = c->context;
    return g;
}

// NULL, and said, if there is not enough memory. Says what it took.
static GPT2 *zo_model(const char *name, const GPT2Config *c, size_t B, bool stream, int queries) {
    GPT2 *g = bench_model(c, B);
    g->shards = gpt2_shards_all(&g->table);
    Zo *z = g->zo = (Zo *)alloc_or_fail(1, sizeof(Zo), "model");
    z->config = ZoConfig{1, 1e-3f, queries, ZO_GAUSSIAN, ZO_STORAGE};
    z->keeps_slots = z->fused = true;
    z->accum = 1;
    zo_place(g, stream ? 0 : c->layers, SLOTS);
    const size_t planned = gpt2_bytes(g, false), host = gpt2_bytes(g, true), there = gpu_available();
    const char *where = stream ? "streamed" : "in memory";
    if (planned > there / 100 * 98 || host > memory_available() / 100 * 90) {
        printf("%s %s, %s: left out, needs %.1f GiB on the GPU and %.1f on the host; %.1f and %.1f "
               "are there\n", name, type_name, where, mib(planned) / 1024, mib(host) / 1024,
               mib(there) / 1024, mib(memory_available()) / 1024);
        free(g->table.tensors);
        free(z);
        free(g);
        return NULL;
    }
    gpt2_allocate(g);
    bench_fill(g->params, g->param_elements);
    const size_t away = (size_t)g->streamed * g->segment[1].length;
    floatX *const home = g->host_weights;
    #pragma omp parallel for if (away > 1 << 16)
    for (size_t i = 0; i < away; i++) home[i] = from_f32<floatX>(bench_weight(i));
    printf("%s %s, %s: %.1f MiB of GPU memory taken, planned %.1f; on the host %.1f\n", name,
           type_name, where, mib(there - gpu_available()), mib(planned), mib(host));
    return g;
}

// One step of the trainer's, in seconds.
static double bench_step(GPT2 *g) {
    const double begin = seconds_now();
    const StepResult x = zo_step(g, &bench.run, ++bench.steps, 1e-7);
    const double seconds = seconds_now() - begin;
    if (!isfinite(x.loss)) fail("the loss is %g", x.loss);
    return seconds;
}

// To be called when the batch, or what follows, has changed: nothing that was sent or fetched ahead
// counts.
static void bench_restart(GPT2 *g) {
    CUDA(cudaDeviceSynchronize());
    g->zo->sent = bench.steps;
    g->zo->fetched = g->zo->visits;
    g->zo->newest = 0;
}

// The last update, which was of another number of queries, is dropped.
static void bench_queries(GPT2 *g, int queries) {
    g->zo->config.queries = queries;
    g->zo->pending = zo_nothing;
    bench_restart(g);
}

// ---------------------------------------------------------------------------------------------
// The step in memory

// The trainer's forward pass as evaluation runs it.
static GPT2 *plain_model(const GPT2Config *c, size_t B) {
    GPT2 *g = bench_model(c, B);
    g->shards = gpt2_shards_all(&g->table);
    g->choice.mode = OFFLOAD_NONE;
    g->choice.slots = SLOTS;
    gpt2_place(g);
    if (gpt2_bytes(g, false) > gpu_available() / 100 * 98) {
        printf("two forward passes of %zu layers: left out, they need %.1f GiB of GPU memory\n",
               c->layers, mib(gpt2_bytes(g, false)) / 1024);
        return NULL;
    }
    gpt2_allocate(g);
    bench_fill(g->params, g->table.elements);
    return g;
}

static double two_forwards(GPT2 *g, const int32_t *tokens) {
    const Run *r = &bench.run;
    const double begin = seconds_now();
    for (int i = 0; i < 2; i++) {
        gpt2_forward(g, tokens, NULL, tokens, r->B, r->T);
        gpt2_head(g, 0, 0.5, i > 0, NULL);
    }
    gpt2_loss(g);
    return seconds_now() - begin;
}

// All that a step does to weights, and nothing else; the head's chunks as well.
static void all_weights(GPT2 *g, const ZoPass *p) {
    const GPT2Table *t = &g->table;
    const ZoPass quiet = {zo_nothing, 0, 1, 0, p->step, NULL};
    const ZoGroup head = zo_group(t, t->wte, 2);
    zo_weights(g, tensor(g, t->wte), &head, &p->update, &quiet, 0);
    for (size_t l = 0; l < g->config.layers; l++)
        for (int k = 0; k < LAYER_PARTS; k++) zo_perturb_group(g, p, l, k, NULL, 0);
    for (size_t v0 = 0; v0 < g->config.vocab; v0 += g->zo->chunk)
        zo_head_weights(g, p, 0, v0, min_size(g->zo->chunk, g->config.vocab_padded - v0));
}

static void bench_step_of(const char *name, const GPT2Config *c, GPT2 *plain) {
    static const char *const noises[] = {"gaussian", "rademacher"};
    GPT2 *g = zo_model(name, c, BATCH, false, 1);
    if (g == NULL) return;
    Zo *z = g->zo;
    int32_t *tokens = (int32_t *)alloc_or_fail(BATCH * c->context, sizeof *tokens, "tokens");
    for (size_t i = 0; i < BATCH * c->context; i++)
        tokens[i] = (int32_t)segment_token(&bench.tokens, i);
    for (size_t B = 1; B <= BATCH; B += BATCH - 1)
        for (int noise = 0; noise < 2; noise++) {
            Times step = {0, {0}}, two = {0, {0}}, weights = {0, {0}}, head = {0, {0}};
            Times plain_head = {0, {0}}, head_weights = {0, {0}};
            bench_batch(c, B);
            bench_restart(g);
            z->config.noise = noise;
            for (int i = -2; i < 3 * bench.rounds; i++) {
                const double a = bench_step(g), b = two_forwards(plain, tokens);
                if (i < 0) continue;
                times_add(&step, a);
                times_add(&two, b);
            }
            // The parts, each alone. The update that is due here is of the last step, once more.
            const ZoPass p = {z->pending, 2, 1, z->config.eps, (uint32_t)bench.steps,
                              &g->staging[bench.steps % 2]};
            for (int i = 0; i < bench.rounds; i++) {
                TIMED(&weights, all_weights(g, &p));
                TIMED(&head, zo_head(g, &p, 0, z->totals));
                TIMED(&head_weights, for (size_t v0 = 0; v0 < c->vocab; v0 += z->chunk)
                    zo_head_weights(g, &p, 0, v0, min_size(z->chunk, c->vocab_padded - v0)));
                TIMED(&plain_head, gpt2_head(plain, 0, 1, false, NULL));
            }
            const double s = median(&step), f = median(&two), w = median(&weights);
            const double h = median(&head) - median(&head_weights) - 2 * median(&plain_head);
            const bool goal = B * c->context == (noise == ZO_RADEMACHER ? 2048 : 8192);
            printf("%-9s %-5s %-11s %7zu %9.2f %9.2f %7.3f %9.2f %8.2f %8.2f%s\n", name,
                   type_name, noises[noise], B * c->context, 1e3 * s, 1e3 * f, s / f, 1e3 * w,
                   1e3 * h, 1e3 * (s - f - w - h),
                   !goal ? "" : s <= 1.15 * f ? "  at most 1.15: reached" : "  above 1.15: missed");
            fflush(stdout);
        }
    free(tokens);
    gpt2_free(g);
    free(g);
}

static void part_step(void) {
    if (PRECISION == PRECISION_FP32) return;
    static const char *const names[] = {"opt-1.3b", "opt-6.7b"};
    printf("\n== step: in memory, against two plain forward passes; ms. Of what is left: "
           "kernels on weights, the head in chunks against two plain heads, and the rest\n");
    printf("%-9s %-5s %-11s %7s %9s %9s %7s %9s %8s %8s\n", "", "", "noise", "tokens", "step",
           "forwards", "ratio", "weights", "head", "rest");
    for (size_t i = 0; i < (bench.tiny ? 1 : 2); i++) {
        const GPT2Config c = bench_config(names[i]);
        GPT2 *g = plain_model(&c, BATCH);
        if (g == NULL) continue;
        bench_step_of(names[i], &c, g);
        gpt2_free(g);
        free(g);
    }
}

// ---------------------------------------------------------------------------------------------
// Streams

// paper: its speed for OPT-1.3B, 2.7B, 6.7B in fp32; 1: overlap, keeps and fused together; 0: none.
typedef struct { const char *name; size_t slots; bool overlap, keeps, fused; double paper[3]; } Way;

static const Way ways[] = {
    {"3 slots",         3, true,  true,  true,  {1, 1, 1}},
    {"2 slots",         2, true,  true,  true,  {0, 0, 0}},
    {"no overlap",      3, false, true,  true,  {0.57, 0.53, 0.45}},  // 1109, 573, 225 tokens/s
    {"no slots",        3, true,  false, true,  {0.38, 0.39, 0.37}},  //  735, 422, 184
    {"no fused update", 3, true,  true,  false, {0.80, 0.78, 0.75}},  // 1567, 849, 373
};                                                                    // of 1954, 1087, 499

enum { WAYS = sizeof ways / sizeof *ways };

// Makes a streamed model go another way, as if it had been opened with it. fetch, out: its streams.
static void bench_way(GPT2 *g, const Way *w, cudaStream_t fetch, cudaStream_t out) {
    Zo *z = g->zo;
    bench_restart(g);
    z->slots = min_size(w->slots, min_size(SLOTS, (size_t)g->streamed));
    g->no_overlap = !w->overlap;
    z->keeps_slots = w->keeps;
    z->fused = w->fused;
    g->fetch = w->overlap ? fetch : g->compute;
    g->out = w->overlap ? out : g->compute;
}

// Predicts a step's seconds, with the gpu_flops that make the in-memory step take the measured
// `seconds`.
static double bench_plan(const GPT2 *memory, const GPT2 *g, double seconds) {
    Rates r = bench.rates;
    r.gpu_bytes = r.gpu_normals = 0;
    r.gpu_flops = 1e14;
    r.gpu_flops *= gpt2_rehearse(memory, &bench.run, &r, NULL).step / seconds;
    return gpt2_rehearse(g, &bench.run, &r, NULL).step;
}

// The first `count` ways, at B sequences, in turn with the model in memory.
static void bench_ways(const char *name, const GPT2Config *c, GPT2 *memory, GPT2 *g,
                       size_t B, int count, int paper) {
    const int rounds = paper >= 0 ? 1 : (bench.rounds + 1) / 2;  // those in fp32 are slow
    cudaStream_t fetch = g->fetch, out = g->out;
    Times times[WAYS + 1];
    memset(times, 0, sizeof times);
    bench_batch(c, B);
    for (int round = 0; round < rounds; round++) {
        bench_restart(memory);
        for (int i = -1; i < bench.rounds; i++) {
            const double s = bench_step(memory);
            if (i >= 0) times_add(&times[WAYS], s);
        }
        for (int k = 0; k < count; k++) {
            bench_way(g, &ways[k], fetch, out);
            for (int i = -1; i < bench.rounds; i++) {
                const double s = bench_step(g);
                if (i >= 0) times_add(&times[k], s);
            }
        }
    }
    const double m = median(&times[WAYS]), full = median(&times[0]);
    const double tokens = (double)(B * c->context);
    printf("%-9s %-5s %7.0f  %-16s %9.1f %9.0f\n", name, type_name, tokens, "in memory",
           1e3 * m, tokens / m);
    for (int k = 0; k < count; k++) {
        const double s = median(&times[k]);
        const double moved = (double)((size_t)g->streamed * zo_layer_bytes(g));
        printf("%-9s %-5s %7.0f  %-16s %9.1f %9.0f %9.3f %8.2f", name, type_name, tokens,
               ways[k].name, 1e3 * s, tokens / s, s / m, full / s);
        if (paper >= 0 && ways[k].paper[paper] > 0) printf(" %8.2f", ways[k].paper[paper]);
        else printf(" %8s", "-");
        bench_way(g, &ways[k], fetch, out);
        printf(" %8.1f %9.1f\n", 1e-9 * moved / s, 1e3 * bench_plan(memory, g, m));
    }
    bench_way(g, &ways[0], fetch, out);
    fflush(stdout);
}

static void bench_stream_of(const char *name, int paper, const size_t *batches, int count) {
    const GPT2Config c = bench_config(name);
    GPT2 *memory = zo_model(name, &c, batches[count - 1], false, 1);
    GPT2 *g = memory != NULL ? zo_model(name, &c, batches[count - 1], true, 1) : NULL;
    // the paper's ablations are at one sequence of 2048 tokens; of more, what matters is the link
    for (int i = 0; i < count && g != NULL; i++)
        bench_ways(name, &c, memory, g, batches[i], i == 0 ? WAYS : 2, paper);
    if (g != NULL) gpt2_free(g);
    if (memory != NULL) gpt2_free(memory);
    free(g);
    free(memory);
}

static void part_stream(void) {
    static const size_t batches[] = {1, 4, 8};
    printf("\n== stream: ms per step; x: of the time in memory; of full: speed relative to 3 slots, "
           "and the paper's; GB/s: over the link, each way\n");
    printf("%-9s %-5s %7s  %-16s %9s %9s %9s %8s %8s %8s %9s\n", "", "", "tokens", "", "ms",
           "tokens/s", "x", "of full", "paper", "GB/s", "plan ms");
    if (PRECISION != PRECISION_FP32) {
        bench_stream_of("opt-6.7b", -1, batches, bench.tiny ? 1 : 3);
        return;
    }
    bench_stream_of("opt-1.3b", 0, batches, 1);
    if (bench.tiny) return;
    bench_stream_of("opt-2.7b", 1, batches, 1);
    bench_stream_of("opt-6.7b", 2, batches, 1);
}

static void part_queries(void) {
    enum { QUERIES = 8 };
    const char *name = "opt-6.7b";
    const GPT2Config c = bench_config(name);
    printf("\n== queries: %s %s, streamed, %zu tokens\n", name, type_name, c.context);
    GPT2 *g = zo_model(name, &c, 1, true, QUERIES);
    if (g == NULL) return;
    Times times[QUERIES];
    memset(times, 0, sizeof times);
    bench_batch(&c, 1);
    for (int round = 0; round < (bench.rounds + 1) / 2; round++)
        for (int q = 1; q <= QUERIES; q++) {
            bench_queries(g, q);
            for (int i = -1; i < bench.rounds; i++) {
                const double s = bench_step(g);
                if (i >= 0) times_add(&times[q - 1], s);
            }
        }
    printf("%7s %9s %9s %13s %8s\n", "queries", "ms", "x of 1", "directions/s", "GB/s");
    const double one = median(&times[0]);
    const double moved = (double)((size_t)g->streamed * zo_layer_bytes(g));
    for (int q = 1; q <= QUERIES; q++) {
        const double s = median(&times[q - 1]);
        printf("%7d %9.1f %9.2f %13.2f %8.1f\n", q, 1e3 * s, s / one, q / s, 1e-9 * moved / s);
    }
    bench_queries(g, QUERIES);
    gpt2_free(g);
    free(g);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"kernel", "step", "stream", "queries"};
    static void (*const parts[])(void) = {part_kernel, part_step, part_stream, part_queries};
    enum { PARTS = sizeof parts / sizeof *parts };
    bool wanted[PARTS] = {false}, all = true;
    for (int i = 1; i < argc; i++) {
        bool known = strcmp(argv[i], "--tiny") == 0;
        bench.tiny = bench.tiny || known;
        for (int k = 0; k < PARTS; k++) {
            if (strcmp(argv[i], names[k]) != 0) continue;
            known = wanted[k] = true;
            all = false;
        }
        if (!known) die("usage: bench_zo [--tiny] [kernel] [step] [stream] [queries]");
    }
    open_device();
    bench.rounds = bench.tiny ? 1 : 3;
    const size_t count = (size_t)1 << 18, vocab = bench.tiny ? 300 : 50272;
    uint16_t *tokens = (uint16_t *)alloc_or_fail(count, sizeof *tokens, "tokens");
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint16_t)((uint32_t)i * 2654435761u % 4294967291u % vocab);
    bench.tokens = TokenSegment{"random tokens", tokens, count, 0, 2};
    bench.run.world = 1;
    bench.data.count = 1;
    bench.data.segments = &bench.tokens;
    bench.data.tokens = count;
#ifdef __CUDA_EMU__
    printf("on the emulated GPU: the times below say nothing about speed\n");
#endif
    if (all || wanted[2]) {  // the link's rates
        HostQueue queue;
        memset(&queue, 0, sizeof queue);
        host_queue_open(&queue, 0);
        rates_measure(&bench.rates, &queue, bench.tiny ? 0.2 : 3);
        host_queue_close(&queue);
        printf("link: %.1f GB/s to the GPU and %.1f back; %.1f and %.1f at the same time\n",
               1e-9 * bench.rates.h2d, 1e-9 * bench.rates.d2h, 1e-9 * bench.rates.h2d_duplex,
               1e-9 * bench.rates.d2h_duplex);
    }
    for (int k = 0; k < PARTS; k++)
        if (all || wanted[k]) parts[k]();
    free(tokens);
    return 0;
}
