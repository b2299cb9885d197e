// test_model.cu: does the GPU trainer compute what the CPU trainer does? Its whole model, in fp32
// and in bf16, against train_gpt2.c (cpu_reference.h): every activation, every gradient, texts
// token by token. The same source runs on a GPU and on the emulated one. (Steps: test_gpt2cu.)
//
// usage: test_model                     all tests
//        test_model --texts             only sampling with a cache, for mutants.sh
#include "runs.cuh"
#include "cpu_reference.h"

// ---------------------------------------------------------------------------------------------
// What is compared

// Odd sizes, head sizes from 8 to 128 and all switches occur, and meet each other.
static const Shape shapes[] = {
    // name             L NH   C    F    V  ctx  B   T  act  tied recompute accum head repeated
    {"head 8",          1, 3,  24,  40, 257, 17, 1, 17, RELU, 0, KEEP, 4,   5, false},
    {"head 16",         2, 2,  32, 128, 131, 40, 3, 33, GELU, 1, KEEP, 1,  64, false},
    {"head 24",         3, 2,  48,  72, 131, 23, 2, 21, GELU, 0, AGAIN, 4,  16, false},
    {"head 40",         1, 1,  40, 160, 257,  7, 3,  7, GELU, 1, AGAIN, 1,   4, false},
    {"head 64",         2, 2, 128, 256, 131, 66, 1, 65, RELU, 1, AGAIN, 4,  99, false},
    {"head 80",         2, 2, 160,  64, 300, 70, 1, 70, GELU, 0, KEEP, 1,  99, true},
    {"head 128",        1, 1, 128, 136, 131, 80, 2, 67, GELU, 1, KEEP, 1, 100, false},
    {"repeated token",  2, 4,  64,  64, 131, 41, 5, 37, GELU, 1, AGAIN, 4,  99, true},
    {"untied, again",   3, 1,  16,  64, 129, 12, 3,  9, RELU, 0, AGAIN, 1,   7, false},
    {"one position",    2, 2,  32, 128, 131, 40, 5,  1, GELU, 1, AGAIN, 4,  99, false},
    {"one token",       1, 2,  16,  64, 128,  1, 1,  1, GELU, 0, KEEP, 1,   1, false},
    {"documents of 9",  2, 2, 128, 256, 131, 80, 3, 70, GELU, 1, AGAIN, 1,  99, false, 9},
    {"documents of 40", 2, 3,  24,  72, 131, 90, 3, 85, RELU, 0, KEEP, 4,  16, false, 40},
    {"many tokens",     1, 1,  16,  24, 131, 420, 5, 420, GELU, 0, KEEP, 1, 999, false},
    // the LLaMA family: key heads 2 and heads that are wider or narrower than C / NH; Mistral's
    // documents of 9 are longer than the window of 6
    {"llama",           2, 6,  48,  40, 131, 80, 2, 70, GELU, 0, KEEP, 1, 99, false, 0,
     FAMILY_LLAMA, 2, 12},
    {"llama again",     2, 4,  64, 104, 131, 80, 3, 40, GELU, 1, AGAIN, 2, 99, false, 9,
     FAMILY_MISTRAL, 1, 8},
    {"qwen2 light",     2, 2, 128, 136, 131, 90, 2, 72, GELU, 1, LIGHT, 1, 16, false, 0,
     FAMILY_QWEN2, 1, 64},
    {"smollm3",         3, 4,  64,  72, 131, 90, 2, 33, GELU, 1, LIGHT, 1, 99, false, 0,
     FAMILY_SMOLLM3, 2, 16},
    {"qwen3",           2, 4,  40,  72, 300, 90, 2, 33, GELU, 0, LIGHT, 4, 99, false, 20,
     FAMILY_QWEN3, 2, 20},
    {"of 70",           1, 1, 128, 136, 131, 260, 1, 250, GELU, 1, LIGHT, 1, 99, false, 70},
    {"qwen3 again",     3, 3,  64,  72, 131, 90, 1, 85, GELU, 1, AGAIN, 1, 99, false, 0,
     FAMILY_QWEN3, 3, 128},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// What an error may be, by the begin of a tensor's kind: max|a - b| / max|b|, and the same of root
// mean squares. In fp32 it is rounding, less than 1e-6 where this was written, and a wrong term is
// far above. In bf16 every stored number is off by up to 2^-9 = 0.002 of itself, and the layers add
// that up: twice what was seen. fp16 has three more bits, and a quarter of bf16's error is allowed.
static const struct { const char *kind; double fp32, bf16_max, bf16_rms; } bands[] = {
    {"d ln_1.b", 4e-6, 0.036, 0.022}, {"d attn.q_norm", 4e-6, 0.036, 0.033},
    {"d attn.k_norm", 4e-6, 0.033, 0.032}, {"d ", 4e-6, 0.032, 0.026}, {"dx", 4e-6, 0.030, 0.026},
    {"mean_", 4e-6, 0.040, 0.044}, {"rstd_", 4e-6, 0.016, 0.008}, {"qk_rstd", 4e-6, 0.012, 0.004},
    {"loss", 2e-6, 0.005, 0.004}, {"norm", 4e-6, 0.006, 0.006}, {"", 4e-6, 0.029, 0.023}};

static double larger(double a, double b) { return a > b ? a : b; }

static void compare(const char *shape, const char *kind, size_t layer,
                    const float *ours, const float *wanted, size_t n) {
    const auto *band = bands;
    while (strncmp(kind, band->kind, strlen(band->kind)) != 0) band++;
    double worst = 0, largest = 0, squares = 0, of = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)ours[i] - (double)wanted[i]);
        if (!(d < INFINITY)) worst = INFINITY;
        worst = larger(worst, d);
        largest = larger(largest, fabs((double)wanted[i]));
        squares += d * d;
        of += (double)wanted[i] * (double)wanted[i];
    }
    const double max = worst == 0 ? 0 : worst / largest, rms = worst == 0 ? 0 : sqrt(squares / of);
    if (IS_HALF) {
        const double less = IS_FP16 ? 0.25 : 1;
        CHECK(test_within(max, less * band->bf16_max) & test_within(rms, less * band->bf16_rms),
              "%s %s %s (layer %zu): error %.4f, rms %.4f", shape, precision_name, kind, layer, max,
              rms);
    } else {
        CHECK(test_within(max, band->fp32), "%s fp32 %s (layer %zu): error %.2e", shape, kind,
              layer, max);
    }
}

static void compare_number(const char *shape, const char *kind, double ours,
                           double wanted) {
    const float a = (float)ours, b = (float)wanted;
    compare(shape, kind, 0, &a, &b, 1);
}

// ---------------------------------------------------------------------------------------------
// Models

// n numbers of GPU memory, of floatX or float, as floats. Waits for the GPU.
template <typename Y> static void fetch(float *host, const Y *device, size_t n) {
    Y *copy = (Y *)alloc_or_fail(n, sizeof(Y), "test");
    CUDA(cudaDeviceSynchronize());
    gpu_copy(copy, device, n * sizeof(Y));
    for (size_t i = 0; i < n; i++) host[i] = to_f32(copy[i]);
    free(copy);
}

// The step's gradient, as floats: an arena.
static void gradients(GPT2 *g, float *out) {
    if (g->accumulating) fetch(out, (float *)g->waiting, g->table.elements);
    else fetch(out, g->grads, g->table.elements);
    for (size_t i = 0; i < g->table.elements; i++) out[i] /= loss_scale;
}

// ---------------------------------------------------------------------------------------------
// Forward and backward against the CPU

// `ours` is of type floatX, or fp32 in either precision: mean, rstd, lse and the losses.
template <typename Y>
static void compare_activation(CPUModel *cpu, const Shape *s, const char *kind,
                               size_t layer, const Y *ours, float scale = 1) {
    size_t n;
    const float *wanted = cpu_model_tensor(cpu, kind, layer, &n);
    CHECK((wanted == NULL) == (ours == NULL), "%s of %s is there on one side only", kind, s->name);
    if (wanted == NULL || ours == NULL) return;  // this family has none
    float *host = floats(n);
    fetch(host, ours, n);
    for (size_t i = 0; i < n; i++) host[i] /= scale;
    compare(s->name, kind, layer, host, wanted, n);
    free(host);
}

static void compare_layer(GPT2 *g, CPUModel *cpu, const Shape *s, size_t l) {
    const LayerActs a = layer_acts(g, l);
    #define ACT_COMPARE(name, ...) compare_activation(cpu, s, #name, l, a.name);
    LAYER_ACTIVATIONS(ACT_COMPARE, &g->config)
    #undef ACT_COMPARE
}

static void compare_gradients(GPT2 *g, CPUModel *cpu, const Shape *s) {
    float *grads = floats(g->table.elements);
    const float *wanted = cpu_model_tensor(cpu, "grads", 0, NULL);
    gradients(g, grads);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        char kind[64];
        snprintf(kind, sizeof kind, "d %s", x->kind >= 0 ? strchr(x->name + 2, '.') + 1 : x->name);
        compare(s->name, kind, (size_t)(x->layer + 1), grads + x->offset,
                wanted + x->offset, x->size);
    }
    free(grads);
}

static int plans_wanted;  // without an algorithm

// One step's gradient, with everything on the way. Where activations are made again in backward,
// the last layer's are there after forward, and the first layer's, remade, after backward. Nothing
// of a larger batch, in front of some, is left in it. words: of the other head, whose sequences
// each have a word to come.
static void check_shape(const Shape *s, bool words = false) {
    const size_t N = s->B * s->T, L = s->L, all = s->accum * N;
    const Words known = {3, {5, (int32_t)s->V - 1, 0}};
    Shape larger = *s;
    larger.B += s->B == 3 && !words;
    float *params = shape_params(s, true);
    GPT2 *g = model_open(&larger, params);
    const size_t Vp = g->config.vocab_padded;
    CPUModel *cpu = cpu_model_new(&g->config, s->B, s->T, params);
    int32_t *inputs = (int32_t *)alloc_or_fail(4 * all, sizeof(int32_t), "test");
    int32_t *targets = inputs + 2 * all;
    float *logits = floats(N * Vp), *wanted_logits = floats(N * Vp);
    int32_t *begins = shape_begins(s);
    double wanted_loss = 0, loss, norm_squared;
    size_t right = 0, wanted_right = 0;
    if (larger.B > s->B) {
        shape_batch(&larger, 2, inputs, targets);
        gpu_gradient(g, &larger, inputs, targets, &norm_squared);
    }
    shape_batch(s, 1, inputs, targets);
    if (words) g->words = known;
    for (size_t i = 0; i < all && words; i++)  // where, and which word
        targets[i] = (int32_t)((size_t)targets[i] % (i % 2 == 0 ? s->T : (size_t)known.count));
    for (size_t micro = 0; micro < s->accum && words; micro++) {  // evaluation
        gpt2_forward(g, inputs + micro * N, NULL, targets + micro * N, s->B, s->T);
        gpt2_classify(g, 0, 1, false);
        gpt2_loss(g);
        right += (size_t)g->host_loss[1];
    }
    for (size_t micro = 0; micro < s->accum; micro++) {
        const int32_t *in = inputs + micro * N, *next = targets + micro * N;
        const float grad_scale = 1.0f / (float)(words ? s->accum * s->B : all);
        const double share = 1 / (double)s->accum;
        const bool first = micro == 0 && !words;
        gpt2_forward(g, in, begins, next, s->B, s->T);
        cpu_model_forward(cpu, in, begins);
        if (first) {
            for (size_t l = 0; l <= L; l++)
                compare_activation(cpu, s, "x", l, layer_input(g, l));
            for (size_t l = shares_acts(g) ? L - 1 : 0; l < L; l++) compare_layer(g, cpu, s, l);
            compare_activation(cpu, s, "ln_f", 0, g->ln_f);
            compare_activation(cpu, s, "mean_f", 0, g->mean_f);
            compare_activation(cpu, s, "rstd_f", 0, g->rstd_f);
        }
        if (words) {
            gpt2_classify(g, loss_scale * grad_scale, share, micro > 0);
            wanted_loss += share * cpu_model_classify(cpu, known.word, known.count, next,
                                                      grad_scale, micro > 0, &wanted_right);
        } else {
            gpt2_head(g, loss_scale * grad_scale, share, micro > 0, logits);
            wanted_loss += share * cpu_model_head(cpu, next, grad_scale, micro > 0, wanted_logits);
        }
        if (first) {
            for (size_t i = 0; i < N; i++)
                for (size_t v = s->V; v < Vp; v++)
                    logits[i * Vp + v] = wanted_logits[i * Vp + v] = 0;
            compare(s->name, "logits", 0, logits, wanted_logits, N * Vp);
            compare_activation(cpu, s, "losses", 0, g->losses);
        }
        gpt2_backward(g, micro > 0, micro + 1 == s->accum);
        cpu_model_backward(cpu, in, micro > 0);
        if (first && shares_acts(g)) compare_layer(g, cpu, s, 0);
        if (first) compare_activation(cpu, s, "dx", 0, g->dx, loss_scale);
    }
    norm_squared = gpt2_grad_norm_squared(g, &loss) / (loss_scale * loss_scale);
    CHECK(right == wanted_right && right <= s->accum * s->B, "%zu and %zu right", right,
          wanted_right);
    compare_number(s->name, "loss", loss, wanted_loss);
    compare_number(s->name, "norm", sqrt(norm_squared),
                   sqrt(cpu_model_grad_norm_squared(cpu)));
    compare_gradients(g, cpu, s);
    int none = 0;
    for (size_t i = 0; i < g->lt.made; i++) none += g->lt.plans[i].none;
    CHECK(none == plans_wanted, "%s: %d products without an algorithm, not %d", s->name, none,
          plans_wanted);
    free(params);
    free(inputs);
    free(begins);
    free(logits);
    free(wanted_logits);
    cpu_model_free(cpu);
    model_close(g);
}

static void test_every_tensor(void) {
    const size_t ahead = IS_FP16 ? 2 : 1;
    for (size_t i = 0; i < SHAPES; i += ahead) {
        check_shape(&shapes[i]);
        if (shapes[i].B > 1 && shapes[i].T > 1 && shapes[i].document == 0)
            check_shape(&shapes[i], true);
    }
}

// GELU's slopes and the biases' sums, where the library lacks one or both: passes of ours, within
// the same bands. In fp32 they always are, and the library is not asked.
static void test_passes_for_epilogues(void) {
#ifndef __CUDA_EMU__
    SKIP("a real library cannot be told to have none");
#else
    static const struct { uint32_t lacks; int none; } cases[] = {
        {CUBLASLT_EPILOGUE_DGELU, 1}, {CUBLASLT_EPILOGUE_BGRADB, 2},  // fc's and qkv's
        {CUBLASLT_EPILOGUE_DGELU | CUBLASLT_EPILOGUE_BGRADB, 2}};  // with slopes, fc's sums
    for (const auto &c : cases) {
        emu_lt_without(c.lacks);
        plans_wanted = IS_HALF * c.none;
        check_shape(&shapes[5]);
    }
    plans_wanted = 0;
    emu_lt_without(0);
#endif
}

// ---------------------------------------------------------------------------------------------
// Bits

#ifdef ENABLE_FP16
// A master in fp16 and 16 bits more: the nearest weight, nothing lost from 2^-16 on, less than 2^-39
// below, and the same halves again. 13 apart: numbers of every exponent.
static void test_masters_of_fp16(void) {
    size_t wrong = 0;
    for (uint32_t bits = 0; bits < 0x477ff000u; bits += 13) {
        const float f = bits_float(bits);
        const uint16_t weight = master_weight(f), low = master_low(f);
        const float master = master_f32(weight, low);
        const f16 nearest = from_f32<f16>(f), of_master = from_f32<f16>(master);
        uint16_t half[2];
        memcpy(half, &nearest, 2);
        memcpy(half + 1, &of_master, 2);
        wrong += !(f - master <= (f < 0x1p-16f ? 0x1p-39f : 0) && f >= master)
                 || weight != half[1] || f32_to_half(f) != half[0]
                 || half_to_f32(weight) != to_f32(of_master)
                 || master_weight(master) != weight || master_low(master) != low
                 || master_f32(master_weight(-f), master_low(-f)) != -master;
    }
    CHECK(wrong == 0, "%zu masters", wrong);
    CHECK(isinf(half_to_f32(master_weight(65520))) && isinf(half_to_f32(f32_to_half(-1e9f)))
          && isnan(half_to_f32(master_weight(NAN))) && isnan(master_f32(master_weight(NAN), 0)),
          "what is no number");
}

#endif

// ---------------------------------------------------------------------------------------------
// A text token by token, with a cache of keys and values

static const Shape cached[] = {
    // name              L NH   C    F    V  ctx B   T  act  tied recompute accum head repeated
    {"cache gpt2",       2, 2,  32,  64, 131, 20, 3, 15, GELU, 1, KEEP,  1, 99, false},
    {"cache opt",        3, 4,  48,  72, 131, 70, 2, 15, RELU, 0, AGAIN, 1, 16, false, 0,
     FAMILY_OPT},
    {"cache opt-350m",   2, 2,  32,  64, 131, 21, 3, 15, RELU, 1, LIGHT, 2, 99, false, 0,
     FAMILY_OPT, 0, 0, 16},
    {"cache qwen3",      2, 4,  40,  72, 300, 36, 2, 33, GELU, 0, LIGHT, 2, 99, false, 20,
     FAMILY_QWEN3, 2, 24},
    {"cache of one",     1, 2,  16,  64, 128,  1, 1,  1, GELU, 0, KEEP,  1, 99, false},
};

// Continues a random text as sample_text() does: a prompt, then one token after the other; a window
// that is full begins again with its second half. One time, two tokens are new. The logits of each
// call against the CPU's of a whole pass over the window.
static void compare_text(GPT2 *g, CPUModel *cpu, const Shape *s, size_t prompt) {
    const size_t T = s->context, V = s->V, Vp = g->config.vocab_padded, half = (T + 1) / 2;
    float *ours = floats(T * V), *wanted = floats(T * Vp);
    int32_t *text = ALLOC(int32_t, 2 * T, "test");
    for (size_t i = 0; i < 2 * T; i++)
        text[i] = (int32_t)(philox4x32(7, (uint32_t)i, (uint32_t)prompt, 0, 0).x[0] % V);
    for (int again = 0; again < 2; again++) {
        const int32_t *window = text + (again ? T + 1 - half : 0);
        const size_t first = again ? half : prompt;
        cpu_model_forward(cpu, window, NULL);
        cpu_model_head(cpu, window, 1, false, wanted);
        for (size_t count = first, fresh = first; count <= T; count++) {
            if (count == first + 3 && count < T) {  // comes with the next one
                memcpy(ours + (count - 1) * V, wanted + (count - 1) * Vp, V * sizeof *ours);
                fresh = 2;
                continue;
            }
            gpt2_next(g, window, count, fresh, ours + (count - 1) * V);
            fresh = 1;
        }
        for (size_t t = 0; t < T; t++) memmove(wanted + t * V, wanted + t * Vp, V * sizeof *ours);
        compare(s->name, "logits", prompt, ours + (first - 1) * V, wanted + (first - 1) * V,
                (T + 1 - first) * V);
    }
    free(ours);
    free(wanted);
    free(text);
}

// Texts after prompts of one token, two, half a window and a whole one. Memory is what was planned.
static void check_cached(const Shape *s, const Placement *where) {
    const size_t prompts[] = {1, 2, (s->context + 1) / 2, s->context};
    float *params = shape_params(s, true);
    GPT2 *g = model_new(s, where);
    g->packed = false;
    if (s->B * s->T < s->context) {
        g->max_B = 1;
        g->max_T = s->context;
    }
    model_place(g, s->recompute, where != NULL ? where->tight : 0);
    const size_t without = gpt2_bytes(g, false), before = free_memory();
    g->sampling = true;
    CHECK(gpt2_bytes(g, false) - without == round_up(s->L * s->context * 2 * config_kv(&g->config)
                                              * config_head(&g->config) * sizeof(floatX), 256),
          "%s: %zu bytes of cache", s->name, gpt2_bytes(g, false) - without);
    model_begin(g, s, params, where);
    check_memory(g, s->name, before - free_memory());
    CPUModel *cpu = cpu_model_new(&g->config, 1, s->context, params);
    for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++)
        if (prompts[k] <= s->context) compare_text(g, cpu, s, prompts[k]);
    model_close(g);
    cpu_model_free(cpu);
    free(params);
}

// A text between two steps leaves every bit as it was.
static void check_text_between(const Shape *s, const Placement *where) {
    const size_t window = s->context;
    float *params = shape_params(s, false), *logits = floats(s->V);
    int32_t *text = ALLOC(int32_t, window, "test");
    uint64_t hashes[2];
    for (int texts = 0; texts < 2; texts++) {
        double numbers[3][2];
        GPT2 *g = model_new(s, where);
        g->sampling = texts;
        if (texts && s->B * s->T < window) {
            g->max_B = 1;
            g->max_T = window;
        }
        model_begin(g, s, params, where);
        for (size_t step = 1; step <= 3; step++) {
            train_one(g, s, &plain, step, numbers[step - 1]);
            for (size_t n = 3; texts && n <= window; n++)
                gpt2_next(g, text, n, n == 3 ? 3 : 1, logits);
        }
        hashes[texts] = hash_with(hash_state(g), numbers, sizeof numbers);
        model_close(g);
    }
    CHECK(hashes[0] == hashes[1], "%s: a text between steps changes bits", s->name);
    free(params);
    free(logits);
    free(text);
}

static void test_texts_token_by_token(void) {
    Placement streams = {};
    streams.choice.mode = OFFLOAD_ZERO;
    streams.choice.streamed = 3;  // layers, whose weights take turns in one place
    streams.choice.weight_rooms = 1;
    for (const Shape &s : cached) check_cached(&s, NULL);
    check_text_between(&cached[0], NULL);
    check_cached(&cached[1], &streams);
    check_text_between(&cached[1], &streams);
    check_text_between(&cached[3], NULL);
}

// Short kernels that others wait for come first; the products, and streams of copies, do not.
static void test_short_work_is_urgent(void) {
    float *params = shape_params(&shapes[0], false);
    GPT2 *g = model_open(&shapes[0], params);
    int streams = 0;
    for (int i = 0; i < g->owner.count; i++) {
        const cudaStream_t s = (cudaStream_t)g->owner.list[i].p;
        if (g->owner.list[i].free != stream_free) continue;
        CHECK(is_urgent(s) == (s == g->sums || s == g->update), "stream %d", streams);
        streams++;
    }
    CHECK(streams == 8, "%d streams", streams);
    free(params);
    model_close(g);
}

int main(int argc, char **argv) {
    if (!test_whole()) without_protection(argv);
    if (argc == 2 && strcmp(argv[1], "--texts") == 0) {
        RUN(test_texts_token_by_token);
        return test_summary();
    }
    if (IS_BF16) RUN(test_short_work_is_urgent);
    RUN(test_every_tensor);
    RUN(test_passes_for_epilogues);
#ifdef ENABLE_FP16
    RUN(test_masters_of_fp16);
#endif
    // in 16 bits, too, where there is time: fp32's allowance is the small one
    if (!IS_HALF || !EMULATED || getenv("ALL") != NULL) RUN(test_texts_token_by_token);
    return test_summary();
}
