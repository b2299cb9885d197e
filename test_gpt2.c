// test_gpt2.c: does the trainer compute what GPT-2 is? An independent float64 implementation has
// written dev/reference/fixtures: loss, logits and every gradient of one batch, and ten AdamW
// steps. This test compares the trainer with them. dev/test/c/test_layers.c compares the CPU
// trainer with itself.
//
// It includes the source of the trainer, so that it tests the functions that train: the CPU's, or,
// in dev/test/gpu/test_gpt2cu.cu, those of a real or emulated GPU, in fp32 or bf16.
#ifdef ON_GPU
#include "dev/test/gpu/model_harness.cuh"
#else
#define TESTING
#include "train_gpt2.c"
#include "dev/test/gpt2_free.h"
#endif
#include "dev/difference.h"
#include "dev/test/files.h"
#include "dev/test/test.h"

#define FIXTURES "dev/reference/fixtures"
static const char *const cases[] = {"gpt2", "gpt2-odd", "gpt2-untied", "gpt2-accum", "gpt2-long",
                                    "gpt2-packed", "opt", "opt-350m", "llama-gqa", "llama-biased",
                                    "mistral-packed", "mistral", "qwen2", "qwen3", "smollm3"};
enum { CASES = sizeof cases / sizeof cases[0] };

// The largest |a - b| / max|b| that fp32 rounding may cause. dev/reference/README.md has the study:
// rounding alone stays below a tenth of these, and the smallest missing term is far above them.
#define LOSS_TOLERANCE 2e-6
#define LOGITS_TOLERANCE 1e-5
#define GRAD_TOLERANCE 2e-5
#define NORM_TOLERANCE 2e-5
#define PARAM_TOLERANCE 4e-5

// --- helpers ---------------------------------------------------------------------------------

// Counts the trained ones of n targets: a target of -1 is not trained.
static size_t targets_of(const int32_t *targets, size_t n) {
    size_t trained = 0;
    for (size_t i = 0; i < n; i++) trained += targets[i] >= 0;
    return trained;
}

#ifdef ON_GPU
#include "dev/test/gpu/gpt2_on_gpu.cuh"
#else
#include "dev/test/gpt2_on_cpu.h"
#endif

static void gpt2_load(GPT2 *g, const char *dir, size_t B, size_t T, size_t accum) {
    memset(g, 0, sizeof *g);
    model_config_load(dir, &g->config);
    gpt2_make(g, B, T, accum);
    const RunState state = state_of(g);
    model_load(dir, &g->config, &g->table, &state);
}

static SafeTensors open_file(const char *dir, const char *name) {
    SafeTensors st;
    char path[PATH_MAX];
    path_join(path, dir, name);
    if (!safetensors_open(&st, path, &err)) die("%s", err.text);
    return st;
}

static const SafeTensor *find(const SafeTensors *st, const char *name) {
    const SafeTensor *ten = safetensors_find(st, name);
    if (ten == NULL) die("no tensor %s", name);
    return ten;
}

// Returns the numbers of a tensor of I32; NULL: there is no such tensor.
static const int32_t *ints(const SafeTensors *st, const char *name) {
    const SafeTensor *ten = safetensors_find(st, name);
    return ten == NULL ? NULL : (const int32_t *)(const void *)ten->data;
}

static double json_real(const Json *j, const char *key) {
    const Json *v = json_get(j, key);
    if (v == NULL) die("no %s in case.json", key);
    return v->number;
}

// Returns max|a - b| / max|measure|; infinity if sizes differ or a number is not finite.
static double tensor_error(const SafeTensor *a, const SafeTensor *b, const SafeTensor *measure) {
    if (a == NULL || b == NULL || a->elements != b->elements) return INFINITY;
    const double scale = difference(measure, measure).scale;
    const Difference d = difference(a, b);
    return d.invalid == 0 && scale > 0 ? d.absolute / scale : d.unequal > 0 ? INFINITY : 0;
}

// Checks that `ours` has each tensor of `reference` whose name begins with `prefix`, under this
// name without its first `strip` characters, and that both agree. Returns how many were compared.
static int compare_tensors(const char *label, const SafeTensors *ours, const SafeTensors *reference,
                           const char *prefix, size_t strip, double tolerance) {
    int compared = 0;
    for (int i = 0; i < reference->count; i++) {
        const SafeTensor *b = &reference->tensors[i];
        if (strncmp(b->name, prefix, strlen(prefix)) != 0) continue;
        // The gradient of the keys' bias is zero but for rounding, because softmax does not see
        // this bias. So its error is measured by the gradient of the values' bias.
        char sibling[128];
        snprintf(sibling, sizeof sibling, "%s", b->name);
        char *key_bias = strstr(sibling, "k_proj.bias");
        if (key_bias != NULL) *key_bias = 'v';
        const double error = tensor_error(safetensors_find(ours, b->name + strip), b,
                                          find(reference, sibling));
        CHECK(test_within(error, tolerance), "%s %s: error %.2e, allowed %.0e", label, b->name,
              error, tolerance);
        compared++;
    }
    return compared;
}

// Checks that `ours` is entry `step` - 1 of the reference's numbers `name`.
static void check_number(const char *label, const SafeTensors *reference, const char *name,
                         size_t step, double ours, double tolerance) {
    const double wanted = ((const double *)(const void *)find(reference, name)->data)[step - 1];
    CHECK(test_within(fabs(ours - wanted), tolerance * wanted), "%s step %zu: %s %.15g, not %.15g",
          label, step, name, ours, wanted);
}

// --- against the reference -------------------------------------------------------------------

// Compares one forward and backward pass, through a file as --dump writes it.
static void test_reference_gradients(void) {
    for (int i = 0; i < CASES; i++) {
        char dir[PATH_MAX];
        path_join(dir, FIXTURES, cases[i]);
        SafeTensors reference = open_file(dir, "dump.safetensors");
        const SafeTensor *tokens = find(&reference, "tokens");
        const size_t B = tokens->shape[0], T = tokens->shape[1], N = B * T;
        const int32_t *inputs = ints(&reference, "tokens");
        const int32_t *targets = ints(&reference, "targets");
        GPT2 g;
        gpt2_load(&g, dir, B, T, 1);
        if (refused(&g)) continue;
        float *logits = ALLOC(float, N * g.config.vocab_padded, "logits");
        double loss;
        const int32_t *begins = ints(&reference, "begins");
        micro_batch(&g, inputs, targets, begins, B, T, 0, 1, logits);
        norm_and_loss(&g, &loss);
        float *grads = gradients(&g);
        check_number(cases[i], &reference, "loss", 1, loss, TOLERANCE(LOSS));
        if (!dump_save(in_base("dump.safetensors"), &g.config, &g.table, B, T, inputs, targets,
                       NULL, loss, logits, grads, &err))
            die("%s", err.text);
        SafeTensors ours = open_file(base, "dump.safetensors");
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

// Compares ten AdamW steps with warm-up, clipping, decay and, in one case, accumulation.
static void test_reference_training(void) {
    for (int i = 0; i < CASES; i++) {
        char dir[PATH_MAX], path[PATH_MAX];
        path_join(dir, FIXTURES, cases[i]);
        path_join(path, dir, "case.json");
        Json *j = json_read(path, &err);
        if (j == NULL) die("%s", err.text);
        const Options o = {.accum = (size_t)json_real(j, "accum"),
                           .steps = (size_t)json_real(j, "steps"),
                           .warmup = (size_t)json_real(j, "warmup"),
                           .lr = json_real(j, "lr"), .min_lr = json_real(j, "min_lr")};
        const size_t B = (size_t)json_real(j, "B"), T = (size_t)json_real(j, "T");
        SafeTensors reference = open_file(dir, "train.safetensors");
        const int32_t *inputs = ints(&reference, "tokens");
        const int32_t *targets = ints(&reference, "targets");
        const int32_t *begins = ints(&reference, "begins");
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
        const RunState state = state_of(&g);
        const TextEnds no_ends = {-1, -1};
        if (!model_save(base, &g.config, &g.table, &state, false, no_ends, NULL, &err))
            die("%s", err.text);
        SafeTensors ours = open_file(base, "model.safetensors");
        const int n = compare_tensors(cases[i], &ours, &reference, "param.", 6,
                                      relu(&g) * TOLERANCE(PARAM));
        CHECK(n == ours.count && n > 10, "%s: %d parameters compared, %d saved", cases[i], n,
              ours.count);
        safetensors_close(&ours);
        safetensors_close(&reference);
        free(j);
        gpt2_free(&g);
    }
}

#ifndef NO_MAIN  // dev/test/c/test_layers.c has its own main()
int main(void) {
    base_new("gpt2");
    RUN(test_reference_gradients);
    RUN(test_reference_training);
    remove_tree(base);
    return test_summary();
}
#endif
