// test_model.cu: does the GPU trainer compute what the CPU trainer does? Its whole model, in fp32
// and in bf16, against train_gpt2.c (cpu_reference.h): logits, every gradient, texts token by
// token. The same source runs on a GPU and on the emulated one. (Steps: test_gpt2cu.)
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
    {"d attn.k_norm", 4e-6, 0.033, 0.032}, {"d ", 4e-6, 0.032, 0.026},
    {"loss", 2e-6, 0.005, 0.004}, {"norm", 4e-6, 0.006, 0.006}, {"", 4e-6, 0.029, 0.023}};

static void compare(const char *shape, const char *kind, size_t layer,
                    const float *ours, const float *wanted, size_t n) {
    const auto *band = bands;
    while (strncmp(kind, band->kind, strlen(band->kind)) != 0) band++;
    double worst = 0, largest = 0, squares = 0, of = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)ours[i] - (double)wanted[i]);
        if (!(d < INFINITY)) worst = INFINITY;
        worst = fmax(worst, d);
        largest = fmax(largest, fabs((double)wanted[i]));
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

// ---------------------------------------------------------------------------------------------
// Forward and backward against the CPU

// Compares the step's gradient, tensor by tensor.
static void compare_gradients(GPT2 *g, CPUModel *cpu, const Shape *s) {
    const size_t P = g->table.elements;
    float *grads = floats(P);
    const float *wanted = cpu_model_tensor(cpu, "grads", 0, NULL);
    CUDA(cudaDeviceSynchronize());
    if (g->accumulating) gpu_copy(grads, g->waiting, P * sizeof(float));
    else floats_move(g->grads, grads, P, true);
    for (size_t i = 0; i < P; i++) grads[i] /= loss_scale;
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        char kind[64];
        snprintf(kind, sizeof kind, "d %s", x->kind >= 0 ? strchr(x->name + 2, '.') + 1 : x->name);
        compare(s->name, kind, (size_t)(x->layer + 1), grads + x->offset,
                wanted + x->offset, x->size);
    }
    free(grads);
}

// One step's logits, loss, norm and gradient. Nothing of a larger batch, in front of some, is left
// in it. words: of the other head, whose sequences each have a word to come.
static void check_shape(const Shape *s, bool words = false) {
    const size_t N = s->B * s->T, all = s->accum * N;
    const Words known = {3, {5, (int32_t)s->V - 1, 0}};
    Shape larger = *s;
    larger.B += s->B == 3 && !words;
    float *params = shape_params(s, true);
    GPT2 *g = model_open(&larger, params);
    const size_t V = s->V, Vp = g->config.vocab_padded;
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
        gpt2_forward(g, in, begins, next, s->B, s->T);
        cpu_model_forward(cpu, in, begins);
        if (words) {
            gpt2_classify(g, loss_scale * grad_scale, share, micro > 0);
            wanted_loss += share * cpu_model_classify(cpu, known.word, known.count, next,
                                                      grad_scale, micro > 0, &wanted_right);
        } else {
            gpt2_head(g, loss_scale * grad_scale, share, micro > 0, logits);
            wanted_loss += share * cpu_model_head(cpu, next, grad_scale, micro > 0, wanted_logits);
        }
        for (size_t i = 0; i < N * Vp; i++)
            if (i % Vp >= V) logits[i] = wanted_logits[i] = 0;  // padding
        if (!words) compare(s->name, "logits", micro, logits, wanted_logits, N * Vp);
        gpt2_backward(g, micro > 0, micro + 1 == s->accum);
        cpu_model_backward(cpu, in, micro > 0);
    }
    norm_squared = gpt2_grad_norm_squared(g, &loss) / (loss_scale * loss_scale);
    CHECK(right == wanted_right && right <= s->accum * s->B, "%zu and %zu right", right,
          wanted_right);
    const float numbers[2] = {(float)loss, (float)sqrt(norm_squared)};
    const float wanted[2] = {(float)wanted_loss, (float)sqrt(cpu_model_grad_norm_squared(cpu))};
    compare(s->name, "loss", 0, numbers, wanted, 1);
    compare(s->name, "norm", 0, numbers + 1, wanted + 1, 1);
    compare_gradients(g, cpu, s);
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
    const uint32_t slopes = CUBLASLT_EPILOGUE_DGELU, sums = CUBLASLT_EPILOGUE_BGRADB;
    for (const uint32_t lacks : {slopes, sums, slopes | sums}) {
        emu_lt_without(lacks);
        check_shape(&shapes[3]);
    }
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

// Texts after prompts of one token, two, half a window and a whole one; a gradient after them has
// the bits of the one before. Memory is what was planned. streamed: layers whose weights take turns.
static void check_cached(const Shape *s, int streamed) {
    const size_t prompts[] = {1, 2, (s->context + 1) / 2, s->context};
    int32_t *batch = ALLOC(int32_t, 2 * s->accum * s->B * s->T, "test");
    double numbers[2][2];
    float *params = shape_params(s, true);
    GPT2 *g = model_new(s);
    g->choice.mode = streamed > 0 ? OFFLOAD_ZERO : OFFLOAD_NONE;
    g->choice.streamed = streamed;
    g->choice.weight_rooms = 1;
    if (s->B * s->T < s->context) {
        g->max_B = 1;
        g->max_T = s->context;
    }
    const size_t before = free_memory();
    g->sampling = true;
    model_begin(g, s, params);
    check_memory(g, s->name, before - free_memory());
    CPUModel *cpu = cpu_model_new(&g->config, 1, s->context, params);
    shape_batch(s, 1, batch, batch + s->accum * s->B * s->T);
    for (int after = 0; after < 2; after++) {
        numbers[after][0] = gpu_gradient(g, s, batch, batch + s->accum * s->B * s->T,
                                         &numbers[after][1]);
        for (size_t prompt : prompts)
            if (prompt <= s->context && !after) compare_text(g, cpu, s, prompt);
    }
    CHECK(memcmp(numbers[0], numbers[1], sizeof *numbers) == 0, "%s: a text changes bits", s->name);
    model_close(g);
    cpu_model_free(cpu);
    free(params);
    free(batch);
}

static void test_texts_token_by_token(void) {
    for (const Shape &s : cached) check_cached(&s, 0);
    check_cached(&cached[1], 3);
}

int main(int, char **argv) {
    if (!test_whole()) without_protection(argv);
    RUN(test_every_tensor);
    RUN(test_passes_for_epilogues);
#ifdef ENABLE_FP16
    RUN(test_masters_of_fp16);
#endif
    // in 16 bits, too, where there is time: fp32's allowance is the small one
    if (!IS_HALF || !EMULATED || getenv("ALL") != NULL) RUN(test_texts_token_by_token);
    return test_summary();
}
