// model_harness.cuh: small models for tests of the GPU trainer: their shapes, batches and steps,
// where the state of their optimizer lives, and a hash of all that training leaves.
#ifndef TIDE_MODEL_HARNESS_CUH
#define TIDE_MODEL_HARNESS_CUH
#define TESTING
#include <cuda_runtime.h>

// What a step must not do is counted: the trainer below is compiled with these.
static struct {
    int waits, allocations, events;  // events: those waited for
} counted;
#define cudaStreamSynchronize(...) (counted.waits++, cudaStreamSynchronize(__VA_ARGS__))
#define cudaDeviceSynchronize(...) (counted.waits++, cudaDeviceSynchronize(__VA_ARGS__))
#define cudaMemcpy(...) (counted.waits++, cudaMemcpy(__VA_ARGS__))
#define cudaEventSynchronize(...) (counted.events++, cudaEventSynchronize(__VA_ARGS__))
#define cudaMalloc(...) (counted.allocations++, cudaMalloc(__VA_ARGS__))
#define cudaFree(...) (counted.allocations++, cudaFree(__VA_ARGS__))
#define cudaMallocHost(...) (counted.allocations++, cudaMallocHost(__VA_ARGS__))
#define cudaHostRegister(...) (counted.allocations++, cudaHostRegister(__VA_ARGS__))
#define cudaEventCreateWithFlags(...) (counted.allocations++, cudaEventCreateWithFlags(__VA_ARGS__))
#include "../../../tide/gpu/gpu.cuh"
#include "../../../tide/plan/plan.h"
#include "../../../zenflow.h"
#include "../../../tide/cpu/adam_fast.h"
#include "../../../tide/cpu/cpu.h"

// On the virtual clock, the host's work for ZenFlow takes as long as a test says: so many seconds
// an element, or its traffic at so many bytes per second; 0: no time. So does AdamW, the latter.
static double add_seconds, update_seconds, host_bytes_per_s;
static void worker_takes(double seconds, double bytes) {
    if (host_bytes_per_s > 0) seconds += bytes / host_bytes_per_s;
#ifdef __CUDA_EMU__
    if (seconds > 0) emu_virtual_seconds(seconds);
#endif
    (void)seconds;
}
#define adam_work(work) \
    do { \
        const AdamRun *const last = (work)->runs + (work)->count - 1;  /* gaps between tensors included */ \
        const double n = (double)round_up(last->at + last->length, ALIGN_ELEMENTS); \
        worker_takes(n * ((work)->w != NULL ? update_seconds : add_seconds), \
                     n * (double)adam_work_bytes(work)); \
        adam_work(work); \
    } while (0)
#define cpu_copy(to, from, bytes) (worker_takes(0, 2.0 * (double)(bytes)), cpu_copy(to, from, bytes))

// Bytes of an element's state in fp32: of the master what the weight is not, m and v.
enum { STATE_BYTES = sizeof(floatX) == 2 ? 10 : 8 };

// Times that of host_adam: with weights and gradients as they are stored.
#define HOST_TAKES ((2 * STATE_BYTES + 3 * sizeof(floatX)) / ADAM_BYTES)

// A test may change what was rehearsed, before it is timed.
static void (*rehearsal_change)(Rehearsal *q);
#define predict(q, ...) \
    (rehearsal_change != NULL ? rehearsal_change(q) : (void)0, predict(q, __VA_ARGS__))

#include "sites.cuh"
#include "../../../train_gpt2.cu"
#include "../../buffer_get.h"
#include "../test.h"
#include "../first_values.h"
#include <sys/wait.h>

// The trainer here is of one precision. A test's configurations of another are for the program that
// was compiled for it: gpu_tests, gpu_tests_fp32, gpu_tests_fp16.
enum { BITS = 8 * sizeof(floatX), IS_HALF = BITS == 16, IS_BF16 = PRECISION == PRECISION_BF16,
       IS_FP16 = PRECISION == PRECISION_FP16 };
static const char *const precision_name = IS_BF16 ? "bf16" : IS_FP16 ? "fp16" : "fp32";

// Of fp16's gradients (run.h).
#define USUAL_SCALE (IS_FP16 ? 4096 : 1)
static float loss_scale = USUAL_SCALE;

// A shape of model and step.
struct Shape {
    const char *name;
    size_t L, NH, C, F, V, context, B, T;
    int activation, tied, recompute;
    size_t accum, head_rows;                // rows of a chunk of the head, and of an MLP
    bool repeated;                          // nearly all tokens are the same one
    size_t document = 0;                    // rows hold documents of so many tokens; 0: one each
    int family = FAMILY_GPT2;               // of the LLaMA family: its activation, whatever is above
    size_t NKV = 0, HS = 0;                 // 0: NH, C / NH
    size_t E = 0;                           // not 0: as OPT-350M
};

enum { GELU = ACTIVATION_GELU, RELU = ACTIVATION_RELU };
enum { KEEP = RECOMPUTE_NONE, LIGHT = RECOMPUTE_LIGHT, AGAIN = RECOMPUTE_BLOCK };

struct Recipe {
    double lr, eps, clip, decay;
    bool sizes;  // every second step has a smaller batch
    void (*update)(GPT2 *g, const Recipe *r, const AdamStep *adam) = NULL;  // NULL: gpt2_update()
};

// Models that are opened from here on, and their steps, store moments, or masters, in bf16.
static bool moments_bf16, master_bf16;

static float *floats(size_t n) { return (float *)alloc_or_fail(n, sizeof(float), "test"); }

static GPT2Config shape_config(const Shape *s) {
    GPT2Config c = {};
    Error err;
    c.family = s->family;
    config_family(&c);
    c.layers = s->L;
    c.heads = s->NH;
    c.channels = s->C;
    c.ffn = s->F;
    c.context = s->context;
    c.vocab = s->V;
    c.kv_heads = s->NKV;
    c.head_size = s->HS;
    c.embed = s->E;
    if (s->family < FAMILY_LLAMA) c.activation = s->activation;
    c.tied = s->tied;
    if (s->family >= FAMILY_LLAMA) c.rope.theta = s->family == FAMILY_SMOLLM3 ? 2e6 : 1e4;
    if (s->family == FAMILY_SMOLLM3) c.unturned = 2;
    if (s->family == FAMILY_MISTRAL && s->document > 0) c.window = 6;
    if (s->family == FAMILY_QWEN3) c.norm_eps = 1e-3;  // so large that its place matters
    if (!gpt2_finish(&c, &err)) die("%s", err.text);
    return c;
}

// Weights that are far from any symmetry, and round to bf16 without an error: an arena. A ReLU
// whose input is near 0 may be on where the CPU's is off: in bf16 one in 200 of them, which is an
// error of 1 / sqrt(200) in the gradients, and would hide others; in fp32 one in some 100,000, if
// the GPU adds up in another order. With `clear`, biases keep inputs from 0.
static float *shape_params(const Shape *s, bool clear) {
    const GPT2Config c = shape_config(s);
    GPT2Table t = gpt2_table(&c);
    float *params = floats(t.elements);
    gpt2_init(&t, params, 42);
    for (int i = 0; i < t.count; i++) {
        const GPT2Tensor *x = &t.tensors[i];
        float *noise = floats(x->size), *p = params + x->offset;
        rng_normals(noise, x->rows * x->cols, 10, 0, (uint32_t)i, 0);
        for (size_t j = 0; j < x->rows * x->cols; j++) {
            p[j] += 0.6f / sqrtf((float)s->C) * noise[j];
            if (clear && s->activation == RELU && x->kind == FC_B) p[j] = noise[j] < 0 ? -2 : 2;
            p[j] = bf16_to_f32(f32_to_bf16(p[j]));
        }
        free(noise);
    }
    free(t.tensors);
    return params;
}

// A step's micro-batches: (accum, N) tokens, and what follows each of them.
static void shape_batch(const Shape *s, size_t step, int32_t *inputs, int32_t *targets) {
    const size_t n = s->accum * s->B * s->T;
    for (size_t i = 0; i < n; i++) {
        const Philox4 random = philox4x32(3, (uint32_t)i, (uint32_t)step, 0, 0);
        inputs[i] = (int32_t)(random.x[0] % s->V);
        targets[i] = (int32_t)(random.x[1] % s->V);
        if (s->repeated && i % 50 != 3) inputs[i] = 77;
        if (s->document > 0 && random.x[2] % 3 == 0) targets[i] = -1;  // not trained
    }
}

// Where the documents of a micro-batch begin: (B, T); free() it. NULL: a row is one.
static int32_t *shape_begins(const Shape *s) {
    if (s->document == 0) return NULL;
    int32_t *begins = ALLOC(int32_t, s->B * s->T, "test");
    for (size_t n = 0; n < s->B * s->T; n++)  // of the second row on, the first one is shorter
        begins[n] = (int32_t)((n % s->T + n / s->T) / s->document * s->document - n / s->T);
    for (size_t n = 0; n < s->B * s->T; n++) begins[n] = begins[n] < 0 ? 0 : begins[n];
    return begins;
}

// A model of which nothing is settled; model_forget() frees it.
static GPT2 *model_new(const Shape *s) {
    GPT2 *g = gpt2_new();
    g->config = shape_config(s);
    g->table = gpt2_table(&g->config);
    g->shards = gpt2_shards_all(&g->table);
    g->training = true;
    g->packed = s->document > 0;
    g->moments_bf16 = moments_bf16;
    g->master_bf16 = master_bf16;
    g->accumulating = s->accum > 1;
    g->head_rows = mlp_chunk = s->head_rows;
    g->max_B = s->B;
    g->max_T = s->T;
    g->choice.mode = OFFLOAD_NONE;
    return g;
}

static void model_forget(GPT2 *g) {
    free(g->zo);
    free(g->segment);
    free(g->visits);
    pieces_free(&g->pieces);
    free(g->shards.shards);
    free(g->table.tensors);
    free(g);
}

// Makes of it one that trains, from params. model_close() frees it. tight: from 1 on, gradients are
// summed on the host; from 2 on, tight - 2 visitors' gradients stay on the GPU (choice_settle()).
static void model_begin(GPT2 *g, const Shape *s, const float *params, int tight = 0) {
    g->choice.recompute = s->recompute;
    g->choice.sum_on_host = tight > 0 && g->accumulating;
    g->choice.kept_grads = tight < 2 ? KEEP_ALL : tight - 2;
    g->choice.apart = tight > 0;
    gpt2_place(g);
    gpt2_allocate(g);
    for (int i = 0; i < g->table.count; i++) {  // padding and gaps stay as they were allocated
        const GPT2Tensor *x = &g->table.tensors[i];
        gpt2_move(g, 0, x->offset, x->rows * x->cols, (float *)params + x->offset, false);
    }
    weights_renew(g);
}

static GPT2 *model_open(const Shape *s, const float *params) {
    GPT2 *g = model_new(s);
    model_begin(g, s, params);
    return g;
}

static void model_close(GPT2 *g) {
    gpt2_free(g);
    free(g);
}

static AdamStep recipe_step(const Recipe *r, size_t step, double norm_squared) {
    AdamStep s = adam_step_prepare(r->lr, 0.9, 0.95, r->eps, r->decay, step,
                                   clip_scale(norm_squared, r->clip));
    s.moments_bf16 = moments_bf16;
    s.master_bf16 = master_bf16;
    return s;
}

// A step's gradient on the GPU: the loss and, in *norm_squared, the square of its norm. Micro-batches
// of one number lie side by side, those of all ranks. update: what begins in backward, or NULL.
static double gpu_gradient(GPT2 *g, const Shape *s, const int32_t *inputs, const int32_t *targets,
                           double *norm_squared, const AdamStep *update = NULL) {
    const size_t N = s->B * s->T, R = (size_t)ranks.world, all = s->accum * R;
    int32_t *begins = shape_begins(s);
    double loss;
    for (size_t micro = 0; micro < s->accum; micro++) {
        const size_t at = (micro * R + (size_t)ranks.rank) * N;
        gpt2_forward(g, inputs + at, begins, targets + at, s->B, s->T);
        gpt2_head(g, loss_scale / (float)(N * all), 1 / (double)all, micro > 0, NULL);
        const bool last = micro + 1 == s->accum;
        gpt2_backward(g, micro > 0, last, update);
    }
    *norm_squared = gpt2_grad_norm_squared(g, &loss) / (loss_scale * loss_scale);
    free(begins);
    return loss;
}

// One step of training with its own batch, as train() does it. numbers: loss and norm.
static void train_one(GPT2 *g, const Shape *s, const Recipe *r, size_t step, double numbers[2]) {
    const AdamStep unclipped = recipe_step(r, step, 0);
    Shape now = *s, all;
    double norm_squared;
    if (r->sizes && step % 2 == 0) {
        now.B = s->B > 1 ? s->B - 1 : 1;
        now.T = s->T > 4 ? s->T - 4 : 1;
    }
    all = now;
    all.accum *= (size_t)ranks.world;
    const size_t n = all.accum * all.B * all.T;
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * n, sizeof(int32_t), "test");
    shape_batch(&all, step, inputs, inputs + n);
    numbers[0] = gpu_gradient(g, &now, inputs, inputs + n, &norm_squared,
                              g->update_in_backward ? &unclipped : NULL);
    numbers[1] = sqrt(norm_squared);
    AdamStep adam = recipe_step(r, step, norm_squared);
    adam.grad_scale /= loss_scale;
    if (r->update != NULL) r->update(g, r, &adam);
    else gpt2_update(g, &adam);
    free(inputs);
}

// ---------------------------------------------------------------------------------------------
// Hashes

static uint64_t hash_with(uint64_t seed, const void *data, size_t bytes) {
    const uint64_t both[2] = {seed, hash_bytes(data, bytes)};
    return hash_bytes(both, sizeof both);
}

// ---------------------------------------------------------------------------------------------
// Memory, and what is refused

// Settles what is "auto" within these limits, and refuses what does not fit.
static size_t model_plan(GPT2 *g, int recompute, size_t limit, size_t host_limit) {
    const OffloadMemory memory = gpt2_memory(g, recompute, limit, host_limit);
    if (!gpt2_settle(g, &memory))
        die("needs more %s memory", gpt2_bytes(g, false) > limit ? "GPU" : "host");
    return gpt2_bytes(g, false);
}

static size_t free_memory(void) {
    size_t available, total;
    CUDA(cudaMemGetInfo(&available, &total));
    return available;
}

// Checks that the model has taken `allocated` bytes of the GPU's memory, that this and its host
// memory are the plan, and that the latter is page-locked from the first byte to the last.
static void check_memory(GPT2 *g, const char *name, size_t allocated) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    const size_t planned = gpt2_bytes(g, false), on_host = gpt2_bytes(g, true);
    size_t listed = 0, all = 0;
    for (int i = 0; i < n; i++) {
        const size_t bytes = list[i].bytes;
        cudaPointerAttributes a;
        if (list[i].kind == BUFFER_HOST) all += bytes;
        else listed += bytes;
        if (list[i].kind != BUFFER_HOST || bytes == 0 || list[i].pointer == NULL) continue;
        const char *p = (const char *)buffer_get(&list[i]);
        for (size_t at : {(size_t)0, bytes - 1, bytes}) {
            if (at == bytes && !EMULATED) continue;  // a driver locks whole pages
            CUDA(cudaPointerGetAttributes(&a, p + at));
            CHECK((a.type == cudaMemoryTypeHost) == (at < bytes), "%s: %s of %zu bytes at %zu",
                  name, list[i].purpose, bytes, at);
        }
    }
    CHECK(planned >= listed && planned - listed < 256 * (size_t)n
          && on_host >= all && on_host - all <= 4096 * (size_t)n, "%s: planned %zu, buffers %zu; "
          "on the host %zu, %zu", name, planned, listed, on_host, all);
#ifdef __CUDA_EMU__
    CHECK(allocated == listed, "%s: planned %zu, allocated %zu", name, listed, allocated);
#else  // a driver gives out pages of 2 MiB, and shares them between small buffers
    if (getenv("TIDE_ALONE") == NULL) return;  // or another process may run there
    CHECK(allocated + ((size_t)2 << 20) >= planned
          && allocated <= planned + ((size_t)MAX_BUFFERS << 21),
          "%s: planned %zu, allocated %zu", name, planned, allocated);
#endif
}

// Forks. In the child it returns true, and the standard error is caught: it must end with _exit().
// In the parent it returns false when the child has ended, with what it said in `line`, and how it
// ended in *status. Not once the GPU has been used.
static bool in_child(char line[1024], int *status) {
    int ends[2];
    if (pipe(ends) != 0) die("pipe: %s", strerror(errno));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        return true;
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], line + n, 1023 - n)) > 0;) n += (size_t)got;
    close(ends[0]);
    line[n] = '\0';
    waitpid(child, status, 0);
    return false;
}

// ---------------------------------------------------------------------------------------------
// Rehearsals of presets

static bool is_about(double a, double b, double part) {
    return fabs(a - b) <= part * fmax(fabs(a), fabs(b));
}

#define IS(a, b) \
    CHECK(is_about(a, b, 1e-9), "%.12g, not %.12g", (double)(a), (double)(b))
#define ABOUT(a, b, part) \
    CHECK(is_about(a, b, part), "%.6g, not about %.6g", (double)(a), (double)(b))

// What is planned. world: 0, 1: one GPU.
typedef struct {
    const char *model;
    size_t B, T, accum, world;
    int zero;
    int recompute;
    bool no_overlap;
    const ZenConfig *zen;    // --offload zenflow; else NULL
} Step;

// One of zeroth order, for test_zo_*: zo_place() says where its layers live.
static GPT2 *zo_new(const GPT2Config *c, size_t B, size_t T) {
    GPT2 *g = gpt2_new();
    g->config = *c;
    g->table = gpt2_table(c);
    g->shards = gpt2_shards_all(&g->table);
    g->zo = (Zo *)alloc_or_fail(1, sizeof(Zo), "model");
    g->max_B = B;
    g->max_T = T;
    g->head_rows = HEAD_ROWS;
    return g;
}

// A trainer that settle() has been through with --plan, and its run.
typedef struct { GPT2 *g; Run run; } Trainer;

static Trainer *trainer_open(const Step *s) {
    Trainer *x = ALLOC(Trainer, 1, "test");
    GPT2 *g = x->g = gpt2_new();
    Run *r = &x->run;
    Error err;
    r->o.plan = r->training = g->training = true;
    r->o.zero = s->zero;
    r->o.accum = s->accum;
    r->o.no_overlap = g->no_overlap = s->no_overlap;
    r->B = g->max_B = s->B;
    r->T = g->max_T = s->T;
    r->world = s->world > 1 ? s->world : 1;
    r->step_tokens = s->B * s->T * s->accum * r->world;
    GPT2Config *c = &r->state.config;
    if (!gpt2_preset(c, s->model) || !gpt2_finish(c, &err)) die("%s", s->model);
    g->config = *c;
    g->table = r->table = gpt2_table(c);
    if (s->zen != NULL) r->o.offload = OFFLOAD_ZENFLOW;
    g->zero = zero_open(r);
    g->shards = g->zero == NULL ? gpt2_shards_all(&g->table)
              : zero_shards(&g->table, r->world, r->rank, g->zero->rows);
    g->accumulating = s->accum > 1;
    g->head_rows = HEAD_ROWS;
    if (s->zen == NULL) return x;
    ZenFlow *z = g->zen = ALLOC(ZenFlow, 1, "test");
    z->config = *s->zen;
    z->map = zen_map(&g->table, g->config.layers, z->config.topk, 0);
    z->clock = zen_clock(&z->map);
    zen_own(g);
    return x;
}

static void trainer_close(Trainer *x) {
    if (x->g->zero != NULL) zero_free(x->g->zero);
    if (x->g->zen != NULL) zen_free(x->g->zen);
    model_forget(x->g);
    free(x);
}

static Prediction trainer_predict(Trainer *x, const Rates *r, const OffloadChoice *c,
                                  int recompute) {
    OffloadChoice with = *c;
    with.recompute = recompute;
    gpt2_take(x->g, &with);
    gpt2_bytes(x->g, false);  // as settle() does: zero.cuh counts its blocks there
    return gpt2_rehearse(x->g, &x->run, r, NULL);
}

// Those of scripts/rates.
static Rates rates_named(const char *name) {
    Rates r;
    Error err;
    char path[64];
    snprintf(path, sizeof path, "scripts/rates/%s.txt", name);
    if (!rates_load(&r, path, &err)) fail("%s", err.text);
    return r;
}

#endif
