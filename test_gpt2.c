// test_gpt2.c: does the trainer compute what GPT-2 is? It is held against dev/reference/fixtures,
// which an independent float64 implementation wrote: loss, logits and every gradient of one batch,
// and ten AdamW steps. Then against itself: finite differences, the plain definitions, one thread
// against several, one token at a time against all at once.
//
// It includes the trainer's source, so that it tests the very functions that train: the CPU's, or
// (from dev/test/test_gpt2cu.cu, on a GPU real or emulated) the GPU's, in fp32 or bf16.
#ifdef ON_GPU
#include "dev/test/model_harness.cuh"
#else
#define TESTING
#include "train_gpt2.c"
#endif
#include "dev/test/test.h"

#define FIXTURES "dev/reference/fixtures"
static const char *const cases[] = {"gpt2", "gpt2-odd", "gpt2-untied", "gpt2-accum", "gpt2-long",
                                    "gpt2-packed", "opt", "opt-350m"};
enum { CASES = sizeof cases / sizeof cases[0] };

// Largest |a - b| / max|b| that fp32 rounding may cause. dev/reference/README.md has the study
// behind them: rounding alone stays below a tenth of these, the smallest missing term is far above.
#define LOSS_TOLERANCE 2e-6
#define LOGITS_TOLERANCE 1e-5
#define GRAD_TOLERANCE 2e-5
#define NORM_TOLERANCE 2e-5
#define PARAM_TOLERANCE 4e-5

// The same in bf16, which rounds a number by up to 2^-8 of its size: errors add up over the layers
// and, in these models, are not averaged over many channels. Twice what was seen. Where ReLU bends,
// rounding switches a whole unit on or off: four times as much there, for gradients and parameters.
// test_model.cu has bands for each kind of tensor, also in larger models.
#define BF16_LOSS_TOLERANCE 8e-3
#define BF16_LOGITS_TOLERANCE 6e-2
#define BF16_GRAD_TOLERANCE 0.18
#define BF16_NORM_TOLERANCE 8e-2
#define BF16_PARAM_TOLERANCE 0.14
#define TOLERANCE(of) (IS_BF16 ? BF16_##of##_TOLERANCE : of##_TOLERANCE)

static char work_dir[PATH_MAX];  // temporary files of this run

// --- helpers ---------------------------------------------------------------------------------

#ifdef ON_GPU
enum { PACK = Pack<floatX>::N };

static RunState state_of(GPT2 *g) { return gpt2_state(g); }
#else
enum { IS_BF16 = 0, PACK = 1 };

static RunState state_of(GPT2 *g) { return state_in(&g->params, 1); }
#endif

// A model of g->config; the rest of *g is 0. Without training, layers share their activations.
static void gpt2_make(GPT2 *g, size_t B, size_t T, bool training) {
    Error err;
    if (!gpt2_finish(&g->config, &err)) die("%s", err.text);
    g->table = gpt2_table(&g->config);
    g->shards = gpt2_shards_all(&g->table);
    g->max_B = B;
    g->max_T = T;
    g->training = training;
#ifdef ON_GPU
    g->head_rows = 5;
    g->choice.mode = OFFLOAD_NONE;
    gpt2_place(g);
#else
    g->sampling = true;
#endif
    gpt2_allocate(g);
}

static void gpt2_load(GPT2 *g, const char *dir, size_t B, size_t T, size_t accum) {
    memset(g, 0, sizeof *g);
    model_config_load(dir, &g->config);
#ifdef ON_GPU
    g->accumulating = accum > 1;
    g->packed = true;  // room for begins
#endif
    (void)accum;
    gpt2_make(g, B, T, true);
    const RunState here = state_of(g);
    model_load(dir, &g->config, &g->table, &here);
}

// How many of n targets are trained: all but those that are -1.
static size_t targets_of(const int32_t *targets, size_t n) {
    size_t trained = 0;
    for (size_t i = 0; i < n; i++) trained += targets[i] >= 0;
    return trained;
}

// Where the documents of rows begin, if a case has several in a row.
static const int32_t *begins_of(const SafeTensors *reference) {
    const SafeTensor *t = safetensors_find(reference, "begins");
    return t == NULL ? NULL : (const int32_t *)(const void *)t->data;
}

#ifdef ON_GPU
// Forward and backward of one of a step's `accum` micro-batches.
static void micro_batch(GPT2 *g, const int32_t *inputs, const int32_t *targets,
                        const int32_t *begins, size_t B, size_t T, size_t micro, size_t accum,
                        float *logits) {
    const size_t trained = targets_of(targets, B * T);  // as many in each micro-batch
    gpt2_forward(g, inputs, begins, targets, B, T);
    gpt2_head(g, 1.0f / (float)(trained * accum),
              (double)(B * T) / (double)(trained * accum), micro > 0, logits);
    gpt2_backward(g, micro > 0, micro + 1 == accum);
}

// The square of the gradient's norm, and the loss, of the step.
static double norm_and_loss(GPT2 *g, double *loss) { return gpt2_grad_norm_squared(g, loss); }

#else
// Forward and backward of one of a step's `accum` micro-batches.
static double loss_so_far;
static void micro_batch(GPT2 *g, const int32_t *inputs, const int32_t *targets,
                        const int32_t *begins, size_t B, size_t T, size_t micro, size_t accum,
                        float *logits) {
    const size_t trained = targets_of(targets, B * T);  // as many in each micro-batch
    gpt2_forward(g, inputs, begins, B, T);
    const double loss = gpt2_head(g, targets, 1.0f / (float)(trained * accum), micro > 0, logits)
                      * (double)(B * T) / (double)trained;
    loss_so_far = (micro > 0 ? loss_so_far : 0) + loss / (double)accum;
    gpt2_backward(g, inputs, micro > 0);
}

// The square of the gradient's norm, and the loss, of the step.
static double norm_and_loss(GPT2 *g, double *loss) {
    *loss = loss_so_far;
    return gpt2_grad_norm_squared(g);
}

#endif

// The gradient of a step with one micro-batch, as floats. free() it.
static float *gradients(GPT2 *g) {
    float *grads = ALLOC(float, g->table.elements, "gradients");
#ifdef ON_GPU
    floats_move(g->grads, grads, g->table.elements, true);
#else
    memcpy(grads, g->grads, g->table.elements * sizeof(float));
#endif
    return grads;
}

// How much looser a tolerance is in a model with ReLU; see above.
static double relu(const GPT2 *g) {
    return IS_BF16 && g->config.activation == ACTIVATION_RELU ? 4 : 1;
}

// A GPU works on whole packs of 16 bytes: of the reference's small models, train() refuses some.
static bool refused(const GPT2 *g) { return g->config.channels % PACK != 0; }

static SafeTensors open_file(const char *dir, const char *name) {
    SafeTensors st;
    Error err;
    char path[PATH_MAX];
    path_join(path, dir, name);
    if (!safetensors_open(&st, path, &err)) die("%s", err.text);
    return st;
}

static const SafeTensor *find(const SafeTensors *st, const char *name) {
    const SafeTensor *t = safetensors_find(st, name);
    if (t == NULL) die("no tensor %s", name);
    return t;
}

static double number(const SafeTensors *st, const char *name, size_t i) {
    return ((const double *)(const void *)find(st, name)->data)[i];  // stored as F64
}

static double json_real(const Json *j, const char *key) {
    const Json *v = json_get(j, key);
    if (v == NULL) die("no %s in case.json", key);
    return v->number;
}

static double largest(const SafeTensor *t) {
    double max = 0;
    for (size_t i = 0; i < t->elements; i++) {
        float x = 0;
        safetensor_floats(t, i, 1, &x);
        if (fabs((double)x) > max) max = fabs((double)x);
    }
    return max;
}

// max|a - b| / scale over two tensors; infinity if their sizes differ or anything is not finite.
static double tensor_error(const SafeTensor *a, const SafeTensor *b, double scale) {
    if (a == NULL || b == NULL || a->elements != b->elements) return INFINITY;
    double worst = 0;
    for (size_t i = 0; i < a->elements; i++) {
        float x = 0, y = 0;
        safetensor_floats(a, i, 1, &x);
        safetensor_floats(b, i, 1, &y);
        const double difference = fabs((double)x - (double)y);
        if (!(difference < INFINITY)) return INFINITY;
        if (difference > worst) worst = difference;
    }
    return scale > 0 ? worst / scale : worst > 0 ? INFINITY : 0;
}

// Every tensor of `reference` whose name starts with prefix is in `ours` (under the name without
// `strip`) and agrees. Returns how many were compared.
static int compare_tensors(const char *label, const SafeTensors *ours, const SafeTensors *reference,
                           const char *prefix, size_t strip, double tolerance) {
    int compared = 0;
    for (int i = 0; i < reference->count; i++) {
        const SafeTensor *b = &reference->tensors[i];
        if (strncmp(b->name, prefix, strlen(prefix)) != 0) continue;
        // The gradient of the keys' bias is zero but for rounding (softmax does not see it), so it
        // has no scale of its own: the values' bias lends it one.
        char sibling[128];
        snprintf(sibling, sizeof sibling, "%s", b->name);
        char *key_bias = strstr(sibling, "k_proj.bias");
        if (key_bias != NULL) *key_bias = 'v';
        const double scale = largest(find(reference, sibling));
        const double error = tensor_error(safetensors_find(ours, b->name + strip), b, scale);
        CHECK(test_within(error, tolerance), "%s %s: error %.2e, allowed %.0e", label, b->name,
              error, tolerance);
        compared++;
    }
    return compared;
}

// Entry `step` - 1 of the reference's numbers `name` is this one.
static void check_number(const char *label, const SafeTensors *reference, const char *name,
                         size_t step, double ours, double tolerance) {
    const double wanted = number(reference, name, step - 1);
    CHECK(test_within(fabs(ours - wanted), tolerance * wanted), "%s step %zu: %s %.15g, not %.15g",
          label, step, name, ours, wanted);
}

// --- against the reference -------------------------------------------------------------------

// One forward and backward, through the same dump that --dump writes.
static void test_reference_gradients(void) {
    for (int i = 0; i < CASES; i++) {
        char dir[PATH_MAX], path[PATH_MAX];
        Error err;
        path_join(dir, FIXTURES, cases[i]);
        path_join(path, work_dir, "dump.safetensors");
        SafeTensors reference = open_file(dir, "dump.safetensors");
        const SafeTensor *tokens = find(&reference, "tokens");
        const size_t B = tokens->shape[0], T = tokens->shape[1], N = B * T;
        const int32_t *inputs = (const int32_t *)(const void *)tokens->data;
        const int32_t *targets = (const int32_t *)(const void *)find(&reference, "targets")->data;
        GPT2 g;
        gpt2_load(&g, dir, B, T, 1);
        if (refused(&g)) continue;
        float *logits = ALLOC(float, N * g.config.vocab_padded, "logits");
        double loss;
        const int32_t *begins = begins_of(&reference);
        micro_batch(&g, inputs, targets, begins, B, T, 0, 1, logits);
        norm_and_loss(&g, &loss);
        float *grads = gradients(&g);
        check_number(cases[i], &reference, "loss", 1, loss, TOLERANCE(LOSS));
        if (!dump_save(path, &g.config, &g.table, B, T, inputs, targets, NULL, loss, logits,
                       grads, &err))
            die("%s", err.text);
        SafeTensors ours = open_file(work_dir, "dump.safetensors");
        CHECK(compare_tensors(cases[i], &ours, &reference, "logits", 0, TOLERANCE(LOGITS)) == 1,
              "%s: no logits", cases[i]);
        const int n = compare_tensors(cases[i], &ours, &reference, "grad.", 0,
                                      relu(&g) * TOLERANCE(GRAD));
        CHECK(n == ours.count - 4 && n > 10, "%s: %d gradients compared, %d written", cases[i], n,
              ours.count - 4);
        safetensors_close(&ours);
        safetensors_close(&reference);
        free(logits);
        free(grads);
        gpt2_free(&g);
    }
}

// Ten AdamW steps with warm-up, clipping, decay and, in one case, accumulation.
static void test_reference_training(void) {
    for (int i = 0; i < CASES; i++) {
        char dir[PATH_MAX], path[PATH_MAX];
        Error err;
        size_t bytes;
        path_join(dir, FIXTURES, cases[i]);
        path_join(path, dir, "case.json");
        char *text = file_read(path, &bytes, &err);
        Json *j = text != NULL ? json_parse(text, bytes, &err) : NULL;
        if (j == NULL) die("%s", err.text);
        Options o;
        memset(&o, 0, sizeof o);
        o.lr = json_real(j, "lr");
        o.min_lr = json_real(j, "min_lr");
        o.warmup = (size_t)json_real(j, "warmup");
        o.steps = (size_t)json_real(j, "steps");
        o.accum = (size_t)json_real(j, "accum");
        const size_t B = (size_t)json_real(j, "B"), T = (size_t)json_real(j, "T");
        SafeTensors reference = open_file(dir, "train.safetensors");
        const int32_t *inputs = (const int32_t *)(const void *)find(&reference, "tokens")->data;
        const int32_t *targets = (const int32_t *)(const void *)find(&reference, "targets")->data;
        const int32_t *begins = begins_of(&reference);
        GPT2 g;
        gpt2_load(&g, dir, B, T, o.accum);
        if (refused(&g)) continue;
        for (size_t step = 1; step <= o.steps; step++) {
            double loss;
            for (size_t micro = 0; micro < o.accum; micro++) {
                micro_batch(&g, inputs, targets, begins, B, T, micro, o.accum, NULL);
                inputs += B * T;
                targets += B * T;
                if (begins != NULL) begins += B * T;
            }
            const double norm_squared = norm_and_loss(&g, &loss), norm = sqrt(norm_squared);
            const double lr = schedule_lr(&o, step);
            const AdamStep adam = adam_step_prepare(
                lr, json_real(j, "beta1"), json_real(j, "beta2"), json_real(j, "eps"),
                json_real(j, "weight_decay"), step, clip_scale(norm_squared, json_real(j, "clip")));
            gpt2_update(&g, &adam);
            check_number(cases[i], &reference, "losses", step, loss, TOLERANCE(LOSS));
            check_number(cases[i], &reference, "grad_norm", step, norm, TOLERANCE(NORM));
            check_number(cases[i], &reference, "lr", step, lr, 1e-12);
        }
        const RunState here = state_of(&g);
        if (!model_save(work_dir, &g.config, &g.table, &here, false, -1, &err))
            die("%s", err.text);
        SafeTensors ours = open_file(work_dir, "model.safetensors");
        const int n = compare_tensors(cases[i], &ours, &reference, "param.", 6,
                                      relu(&g) * TOLERANCE(PARAM));
        CHECK(n == ours.count && n > 10, "%s: %d parameters compared, %d saved", cases[i], n,
              ours.count);
        safetensors_close(&ours);
        safetensors_close(&reference);
        json_free(j);
        free(text);
        gpt2_free(&g);
    }
}

#ifndef ON_GPU  // the GPU's are in dev/test/test_model.cu
// --- against itself --------------------------------------------------------------------------

// A model with random weights that are far from any symmetry, on random tokens.
static void make_random(GPT2 *g, GPT2Config config, size_t B, size_t T, int32_t *tokens) {
    memset(g, 0, sizeof *g);
    g->config = config;
    gpt2_make(g, B, T, true);
    gpt2_init(&g->table, g->params, 42);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        float *noise = ALLOC(float, x->size, "noise");
        rng_normals(noise, x->rows * x->cols, 7, 0, (uint32_t)i, 0);
        for (size_t j = 0; j < x->rows * x->cols; j++) g->params[x->offset + j] += 0.15f * noise[j];
        free(noise);
    }
    for (size_t i = 0; i < B * T + 1; i++)
        tokens[i] = (int32_t)(philox4x32(3, (uint32_t)i, 0, 0, 0).x[0] % config.vocab);
}

static const GPT2Config small = {2, 3, 36, 100, 80, 141, 0, FAMILY_GPT2, ACTIVATION_GELU, 1, 0};

// The gradient of a few elements of every tensor against the difference of two losses. fp32 losses
// allow about three digits; the reference test above is the sharp one, this one needs no file.
static void test_finite_differences(void) {
    enum { B = 2, T = 21 };
    for (int variant = 0; variant < 4; variant++) {
        GPT2Config c = small;
        if (variant == 1) { c.tied = 0; c.activation = ACTIVATION_RELU; }
        if (variant == 3) c.embed = 20;
        if (variant == 2) { c.heads = 1; c.ffn = 50; c.layers = 1; }
        int32_t tokens[B * T + 1];
        GPT2 g;
        make_random(&g, c, B, T, tokens);
        gpt2_forward(&g, tokens, NULL, B, T);
        gpt2_head(&g, tokens + 1, 1.0f / (B * T), false, NULL);
        gpt2_backward(&g, tokens, false);
        for (int i = 0; i < g.table.count; i++) {
            // along the gradient itself: the derivative there is its length
            const GPT2Tensor *x = &g.table.tensors[i];
            float *p = g.params + x->offset, *d = g.grads + x->offset;
            double length = 0;
            for (size_t j = 0; j < x->size; j++) length += (double)d[j] * d[j];
            length = sqrt(length);
            if (length < 1e-4) continue;  // too flat for a difference of fp32 losses
            float *kept = ALLOC(float, x->size, "kept");
            memcpy(kept, p, x->size * sizeof(float));
            double loss[2];
            const double h = 2e-3 / (length > 0.2 ? length / 0.2 : 1);
            for (int side = 0; side < 2; side++) {
                for (size_t j = 0; j < x->size; j++)
                    p[j] = kept[j] + (float)((side ? h : -h) * d[j] / length);
                gpt2_forward(&g, tokens, NULL, B, T);
                loss[side] = gpt2_head(&g, tokens + 1, 0, false, NULL);
            }
            memcpy(p, kept, x->size * sizeof(float));
            free(kept);
            const double slope = (loss[1] - loss[0]) / (2 * h);
            CHECK(test_within(fabs(slope - length), 0.02 * length + 2e-4),
                  "variant %d %s: gradient %.6f, slope %.6f", variant, x->name, length, slope);
        }
        gpt2_free(&g);
    }
}

// GELU and its derivative against the formula in double: the reference's tolerance on gradients is
// too wide to notice a constant with a digit less.
static void test_gelu(void) {
    const double k = sqrt(2 / M_PI);
    for (double x = -6; x <= 6; x += 0.01) {
        const float inp = (float)x;
        float out, d = 1;
        activation_forward(&out, &inp, 1, ACTIVATION_GELU);
        activation_backward(&d, &inp, 1, ACTIVATION_GELU);
        const double y = inp, t = tanh(k * (y + 0.044715 * y * y * y));
        const double value = 0.5 * y * (1 + t);
        const double slope = 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * k * (1 + 3 * 0.044715 * y * y);
        CHECK(test_within(fabs(out - value), 4e-7 * (1 + fabs(y))), "gelu(%g) = %.9f, not %.9f", y,
              out, value);
        CHECK(test_within(fabs(d - slope), 4e-6), "gelu'(%g) = %.9f, not %.9f", y, d, slope);
    }
}

static double relative_difference(const float *a, const float *b, size_t n) {
    double worst = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst)) worst = d;
        if (fabs((double)b[i]) > scale) scale = fabs((double)b[i]);
    }
    return worst / scale;
}

// Attention's definition (train_gpt2.c has the formulas) in double, one pair of rows at a time.
static void attention_definition(float *out, float *lse, float *dqkv, const float *dout,
                                 const float *qkv, const int32_t *begins, size_t B, size_t T,
                                 size_t C, size_t NH) {
    const size_t HS = C / NH;
    double *s = ALLOC(double, T + 3 * B * T * C, "attention"), *sums = s + T;  // sums: dqkv
    for (size_t i = 0; i < B * NH * T; i++) {
        const size_t t = i % T, h = i / T % NH, b = i / T / NH, row = b * T + t;
        const size_t q = row * 3 * C + h * HS, k = b * T * 3 * C + C + h * HS, v = k + C;
        const float *d = dout + row * C + h * HS;
        float *o = out + row * C + h * HS;
        const size_t begin = begins == NULL ? 0 : (size_t)begins[row];
        double sum = 0, delta = 0;  // delta: sum over u of p[t,u] dp[t,u]
        for (size_t u = begin; u <= t; u++) {
            s[u] = 0;
            for (size_t c = 0; c < HS; c++) s[u] += (double)qkv[q + c] * qkv[k + u * 3 * C + c];
            s[u] = exp(s[u] / sqrt((double)HS));
            sum += s[u];
        }
        lse[i] = (float)log(sum);
        for (size_t c = 0; c < HS; c++) {
            double x = 0;
            for (size_t u = begin; u <= t; u++) x += s[u] / sum * qkv[v + u * 3 * C + c];
            o[c] = (float)x;
            delta += x * d[c];
        }
        for (size_t u = begin; u <= t; u++) {
            const double p = s[u] / sum;
            double dp = 0;
            for (size_t c = 0; c < HS; c++) dp += (double)d[c] * qkv[v + u * 3 * C + c];
            const double ds = p * (dp - delta) / sqrt((double)HS);
            for (size_t c = 0; c < HS; c++) {
                sums[q + c] += ds * qkv[k + u * 3 * C + c];
                sums[k + u * 3 * C + c] += ds * qkv[q + c];
                sums[v + u * 3 * C + c] += p * d[c];
            }
        }
    }
    for (size_t i = 0; i < 3 * B * T * C; i++) dqkv[i] = (float)sums[i];
    free(s);
}

// The strips against the definition, for lengths around the strip's and odd heads, of rows with
// documents, and without.
static void test_attention_is_its_definition(void) {
    static const size_t shapes[][5] = {  // B, T, C, NH, tokens of a document (0: no begins)
        {1, 1, 8, 1, 0}, {2, 5, 12, 4, 0}, {1, 63, 9, 3, 0}, {1, 64, 64, 1, 0}, {2, 65, 40, 5, 0},
        {1, 200, 48, 2, 0}, {2, 200, 12, 3, 7}, {1, 200, 16, 1, 90}, {1, 130, 8, 2, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const size_t B = shapes[i][0], T = shapes[i][1], C = shapes[i][2], NH = shapes[i][3];
        const size_t n = B * T * C;
        float *qkv = ALLOC(float, 3 * n, "qkv");
        float *dout = ALLOC(float, n, "dout");
        float *buffers = ALLOC(float, 8 * n + 2 * B * NH * T, "buffers");
        float *out = buffers, *out_plain = out + n, *dqkv = out + 2 * n, *dqkv_plain = out + 5 * n;
        float *lse = out + 8 * n, *lse_plain = lse + B * NH * T;
        const size_t floats = (size_t)omp_get_max_threads() * attention_scratch_floats(T);
        float *scratch = ALLOC(float, floats, "scratch");
        rng_normals(qkv, 3 * n, 1, 0, 0, 0);
        rng_normals(dout, n, 2, 0, 0, 0);
        for (size_t j = 0; j < 3 * n; j++) dqkv[j] = NAN;  // must be overwritten
        const size_t document = shapes[i][4];
        int32_t *begins = document > 0 ? ALLOC(int32_t, B * T, "begins") : NULL;
        for (size_t j = 0; j < B * T && begins != NULL; j++)
            begins[j] = (int32_t)(j % T / document * document);
        attention_definition(out_plain, lse_plain, dqkv_plain, dout, qkv, begins, B, T, C, NH);
        attention_forward(out, lse, qkv, begins, scratch, B, T, C, NH);
        attention_backward(dqkv, dout, out, lse, qkv, begins, scratch, B, T, C, NH);
        free(begins);
        CHECK(test_within(relative_difference(out, out_plain, n), 2e-6), "output, shape %zu", i);
        CHECK(test_within(relative_difference(lse, lse_plain, B * NH * T), 2e-6), "lse, shape %zu",
              i);
        CHECK(test_within(relative_difference(dqkv, dqkv_plain, 3 * n), 4e-6),
              "gradient, shape %zu: %g", i, relative_difference(dqkv, dqkv_plain, 3 * n));
        free(qkv);
        free(dout);
        free(buffers);
        free(scratch);
    }
}

// Padding never enters a result: the rows beyond the vocabulary stay zero in weights, gradients and
// moments, and so does every gap between tensors.
static void check_padding(const GPT2 *g) {
    size_t padding = 0;
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        const size_t end = i + 1 < g->table.count ? x[1].offset : g->table.elements;
        for (size_t j = x->offset + x->rows * x->cols; j < end; j++, padding++)
            CHECK(g->params[j] == 0 && g->grads[j] == 0 && ((float *)g->m)[j] == 0
                  && ((float *)g->v)[j] == 0, "%s, element %zu", x->name, j - x->offset);
    }
    CHECK(padding > 100, "nothing was padded");
}

// Gradients of three steps and parameters after them, with another number of threads: same bits.
static void test_threads_do_not_change_bits(void) {
#ifdef _OPENMP
    enum { B = 3, T = 70 };
    const int before = omp_get_max_threads();
    static float first[2][400000];
    for (int run = 0; run < 4; run++) {
        static const int threads[] = {1, 2, 3, 5};
        omp_set_num_threads(threads[run]);
        int32_t tokens[B * T + 1];
        GPT2 g;
        make_random(&g, small, B, T, tokens);
        if (g.table.elements > 400000) die("make the test's buffer larger");
        for (size_t step = 1; step <= 3; step++) {
            gpt2_forward(&g, tokens, NULL, B, T);
            gpt2_head(&g, tokens + 1, 1.0f / (B * T), false, NULL);
            gpt2_backward(&g, tokens, false);
            const AdamStep adam = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.1, step,
                                                    clip_scale(gpt2_grad_norm_squared(&g), 1));
            gpt2_update(&g, &adam);
        }
        const size_t bytes = g.table.elements * sizeof(float);
        if (run == 0) { memcpy(first[0], g.params, bytes); memcpy(first[1], g.grads, bytes); }
        CHECK(memcmp(first[0], g.params, bytes) == 0, "parameters, %d threads", threads[run]);
        CHECK(memcmp(first[1], g.grads, bytes) == 0, "gradients, %d threads", threads[run]);
        check_padding(&g);
        gpt2_free(&g);
    }
    omp_set_num_threads(before);
#else
    SKIP("built without OpenMP: there is one thread");
#endif
}

// Four micro-batches of one sequence give the gradient of one micro-batch of four, which is more
// rows than the head takes at a time. Without gradients, where the layers share one set of
// activations, the loss is the same to the bit.
static void test_accumulation(void) {
    enum { B = 4, T = 70 };
    CHECK(B * T > HEAD_ROWS, "the head has only one chunk of rows");
    int32_t tokens[B * T + 1];
    GPT2 g, e;
    make_random(&g, small, B, T, tokens);
    const size_t n = g.table.elements;
    memset(&e, 0, sizeof e);
    e.config = small;
    gpt2_make(&e, B, T, false);
    memcpy(e.params, g.params, n * sizeof(float));
    float *whole = ALLOC(float, n, "gradients");
    gpt2_forward(&g, tokens, NULL, B, T);
    const double loss = gpt2_head(&g, tokens + 1, 1.0f / (B * T), false, NULL);
    gpt2_backward(&g, tokens, false);
    memcpy(whole, g.grads, n * sizeof(float));
    gpt2_forward(&e, tokens, NULL, B, T);
    CHECK(gpt2_head(&e, tokens + 1, 0, false, NULL) == loss, "another loss without gradients");
    gpt2_free(&e);
    for (int i = 0; i < g.table.count; i++) {  // what an older step left; padding is never written
        const GPT2Tensor *x = &g.table.tensors[i];
        for (size_t j = 0; j < x->rows * x->cols; j += 7) g.grads[x->offset + j] = 1e3f;
    }
    double sum = 0;
    for (size_t b = 0; b < B; b++) {
        gpt2_forward(&g, tokens + b * T, NULL, 1, T);
        sum += gpt2_head(&g, tokens + b * T + 1, 1.0f / (B * T), b > 0, NULL) / B;
        gpt2_backward(&g, tokens + b * T, b > 0);
    }
    CHECK(test_within(fabs(sum - loss), 1e-6), "loss %.9f and %.9f", sum, loss);
    CHECK(test_within(relative_difference(g.grads, whole, n), 2e-6), "%g",
          relative_difference(g.grads, whole, n));
    free(whole);
    gpt2_free(&g);
}

// A row of documents gives what they give one by one, each a row of its own: the sum of the losses,
// and of every gradient.
static void test_documents_in_a_row(void) {
    enum { T = 90, DOCUMENTS = 4 };
    static const size_t ends[DOCUMENTS] = {1, 30, 75, T};
    for (int variant = 0; variant < 2; variant++) {
        GPT2Config c = small;
        if (variant == 1) { c.tied = 0; c.activation = ACTIVATION_RELU; }
        int32_t tokens[T + 1], begins[T];
        double sum = 0;
        GPT2 g;
        make_random(&g, c, 1, T, tokens);
        const size_t n = g.table.elements;
        float *apart = ALLOC(float, n, "gradients");
        for (size_t d = 0, at = 0; d < DOCUMENTS; at = ends[d++]) {
            const size_t length = ends[d] - at;
            for (size_t t = at; t < ends[d]; t++) begins[t] = (int32_t)at;
            gpt2_forward(&g, tokens + at, NULL, 1, length);
            sum += gpt2_head(&g, tokens + at + 1, 1.0f / T, d > 0, NULL) * (double)length / T;
            gpt2_backward(&g, tokens + at, d > 0);
        }
        memcpy(apart, g.grads, n * sizeof(float));
        gpt2_forward(&g, tokens, begins, 1, T);
        const double loss = gpt2_head(&g, tokens + 1, 1.0f / T, false, NULL);
        gpt2_backward(&g, tokens, false);
        CHECK(test_within(fabs(loss - sum), 1e-6), "loss %.9f and %.9f", loss, sum);
        for (int i = 0; i < g.table.count; i++) {
            const GPT2Tensor *x = &g.table.tensors[i];
            CHECK(test_within(relative_difference(g.grads + x->offset, apart + x->offset, x->size),
                              4e-6), "variant %d, %s", variant, x->name);
        }
        free(apart);
        gpt2_free(&g);
    }
}

// The gradient behind gpt2_classify(), along itself, against the difference of two losses.
static void test_words_have_a_gradient(void) {
    enum { B = 3, T = 12 };
    const int32_t word[4] = {3, 60, 17, 0}, where[2 * B] = {4, 1, 11, 3, 0, 0};
    for (int tied = 0; tied < 2; tied++) {
        GPT2Config c = small;
        int32_t tokens[B * T + 1];
        size_t right = 0;
        double loss[2], length = 0;
        GPT2 g;
        c.tied = tied;
        make_random(&g, c, B, T, tokens);
        const size_t n = g.table.elements;
        for (int micro = 0; micro < 2; micro++) {  // the same twice, half each
            gpt2_forward(&g, tokens, NULL, B, T);
            gpt2_classify(&g, word, 4, where, 0.5f / B, micro > 0, &right);
            gpt2_backward(&g, tokens, micro > 0);
        }
        float *kept = ALLOC(float, n, "kept");
        memcpy(kept, g.params, n * sizeof(float));
        for (size_t j = 0; j < n; j++) length += (double)g.grads[j] * g.grads[j];
        length = sqrt(length);
        for (int side = 0; side < 2; side++) {
            const double h = (side ? 2e-3 : -2e-3) / length;
            for (size_t j = 0; j < n; j++) g.params[j] = kept[j] + (float)(h * g.grads[j]);
            gpt2_forward(&g, tokens, NULL, B, T);
            loss[side] = gpt2_classify(&g, word, 4, where, 0, false, &right);
        }
        const double slope = (loss[1] - loss[0]) / 4e-3;
        CHECK(length > 0.1 && test_within(fabs(slope - length), 0.005 * length),
              "tied %d: gradient %.6f, slope %.6f", tied, length, slope);
        free(kept);
        gpt2_free(&g);
    }
}

// Feeding one token at a time through the key/value cache gives the logits of the whole sequence.
static void test_cached_decoding(void) {
    enum { T = 50 };
    for (int variant = 0; variant < 3; variant++) {
        GPT2Config c = small;
        if (variant > 0) { c.tied = 0; c.activation = ACTIVATION_RELU; }
        if (variant == 2) c.embed = 20;
        int32_t tokens[T + 1];
        GPT2 g;
        make_random(&g, c, 1, T, tokens);
        float *logits = ALLOC(float, T * g.config.vocab_padded, "logits");
        gpt2_forward(&g, tokens, NULL, 1, T);
        gpt2_head(&g, tokens + 1, 0, false, logits);
        float *next = ALLOC(float, g.config.vocab, "logits");
        for (size_t t = 0; t < T; t++) {
            gpt2_next(&g, tokens, t + 1, t == 20 ? t + 1 : 1, next);  // and all of them once
            const double error = relative_difference(next, logits + t * g.config.vocab_padded,
                                                     g.config.vocab);
            CHECK(test_within(error, 5e-6), "variant %d, position %zu: %g", variant, t, error);
        }
        free(next);
        free(logits);
        gpt2_free(&g);
    }
}

#endif

int main(void) {
    snprintf(work_dir, sizeof work_dir, "/tmp/tide-test-XXXXXX");
    if (mkdtemp(work_dir) == NULL) die("cannot make a temporary directory");
    RUN(test_reference_gradients);
    RUN(test_reference_training);
#ifndef ON_GPU
    RUN(test_finite_differences);
    RUN(test_gelu);
    RUN(test_attention_is_its_definition);
    RUN(test_threads_do_not_change_bits);
    RUN(test_accumulation);
    RUN(test_documents_in_a_row);
    RUN(test_words_have_a_gradient);
    RUN(test_cached_decoding);
#endif
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf %s", work_dir);
    if (system(command) != 0) return 1;
    return test_summary();
}
