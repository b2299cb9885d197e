// test_layers.c: the CPU trainer against itself: attention against its definition, one thread
// against several, one token at a time against all at once. (Whole gradients, also of documents in
// a row and of micro-batches, are in test_gpt2.c; each layer, and the gradient of words, against
// the GPU's in test_kernels.cu and test_model.cu.)
#ifndef TESTING  // else another test of the same program has included the trainer
#define NO_MAIN
#include "../../../test_gpt2.c"
#endif
#include "../first_values.h"
#include "../numbers.h"

// A model with random weights that are far from any symmetry, on random tokens.
static void make_random(GPT2 *g, GPT2Config config, size_t B, size_t T, int32_t *tokens) {
    memset(g, 0, sizeof *g);
    g->config = config;
    gpt2_make(g, B, T, 1);
    gpt2_init(&g->table, g->params, 42);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        float *noise = floats(x->size);
        rng_normals(noise, x->rows * x->cols, 7, 0, (uint32_t)i, 0);
        for (size_t j = 0; j < x->rows * x->cols; j++) g->params[x->offset + j] += 0.15f * noise[j];
        free(noise);
    }
    for (size_t i = 0; i < B * T + 1; i++)
        tokens[i] = (int32_t)(philox4x32(3, (uint32_t)i, 0, 0, 0).x[0] % config.vocab);
}

static const GPT2Config small = {.layers = 2, .heads = 3, .channels = 36, .ffn = 100,
                                 .context = 80, .vocab = 141, .tied = 1};

// The activations and their derivatives against formulas in double: the reference's tolerance on
// gradients is too wide to notice a constant with a digit less, or numbers beyond exp's range.
static void test_activations(void) {
    const double k = sqrt(2 / M_PI);
    for (double x = -6; x <= 6; x += 0.01) {
        const float inp = (float)x, gated[2] = {(float)(35 * x), 0.7f};
        float out[2], d = 1, d_gated[2] = {0.3f, NAN};
        activation_forward(&out[0], &inp, 1, 1, ACTIVATION_GELU);
        activation_backward(&d, &inp, 1, 1, ACTIVATION_GELU);
        activation_forward(&out[1], gated, 1, 1, ACTIVATION_SILU);
        activation_backward(d_gated, gated, 1, 1, ACTIVATION_SILU);
        const double y = inp, t = tanh(k * (y + 0.044715 * y * y * y));
        const double gelu = 0.5 * y * (1 + t);
        const double slope = 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * k * (1 + 3 * 0.044715 * y * y);
        const double z = gated[0], e = exp(-z), up = gated[1];
        const double silu = z / (1 + e), silu_slope = (1 + e + z * e) / (1 + e) / (1 + e);
        CHECK(test_within(fabs(out[0] - gelu), 4e-7 * (1 + fabs(y)))
              && test_within(fabs(d - slope), 4e-6), "gelu(%g): %.9f, slope %.9f", y, out[0], d);
        CHECK(test_within(fabs(out[1] - silu * up), 4e-7 * (1e-3 + fabs(silu)))
              && test_within(fabs(d_gated[0] - 0.3 * up * silu_slope), 4e-7)
              && test_within(fabs(d_gated[1] - 0.3 * silu), 4e-7 * (1e-3 + fabs(silu))),
              "silu(%g): %.9g, slopes %.9g, %.9g", z, out[1], d_gated[0], d_gated[1]);
    }
}

static double relative_difference(const float *a, const float *b, size_t n) {
    double worst = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        worst = d <= worst ? worst : isnan(d) ? INFINITY : d;
        scale = fmax(scale, fabs((double)b[i]));
    }
    return worst / scale;
}

// The angles of late positions, which fp32 would have wrong by 1e-3.
static void test_late_positions(void) {
    enum { HS = 8, T = 32768 };
    const Rope rope = {.theta = 5e5, .scaling = ROPE_NONE};
    float *table = floats(T * HS);
    rope_table(&rope, T, HS, table);
    for (size_t t = 0; t < T; t = t * 7 + 1)
        for (size_t i = 0; i < HS / 2; i++) {
            const double angle = (double)t * pow(5e5, -2 * (double)i / HS);
            const float *got = table + t * HS + 2 * i;
            CHECK(test_within(fabs(got[0] - cos(angle)) + fabs(got[1] - sin(angle)), 1e-7),
                  "channel %zu at %zu: %.9f, %.9f", i, t, got[0], got[1]);
        }
    free(table);
}

// The strips against the definition, for lengths around the strip's and odd heads, of rows with
// documents, and without; query heads that share key heads. (test_gpt2.c holds the strips.)
static void test_attention_is_its_definition(void) {
    static const size_t shapes[][6] = {  // B, T, HS, NH, NKV, tokens of a document (0: no begins)
        {1, 1, 8, 1, 1, 0}, {1, 63, 3, 3, 3, 0}, {1, 64, 64, 1, 1, 0}, {2, 65, 8, 6, 2, 0},
        {2, 200, 4, 3, 3, 7}, {1, 200, 16, 1, 1, 90}, {1, 130, 4, 2, 2, 1}, {2, 140, 20, 4, 2, 50}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const size_t B = shapes[i][0], T = shapes[i][1], HS = shapes[i][2];
        const size_t NH = shapes[i][3], NKV = shapes[i][4], document = shapes[i][5];
        const size_t n = B * T * NH * HS, all = B * T * (NH + 2 * NKV) * HS, rows = B * NH * T;
        // what attention makes: out, lse and dqkv; of the strips, and by the definition
        const size_t strip = (size_t)omp_get_max_threads() * attention_scratch_floats(T);
        float *out[2] = {floats(n + rows + all), floats(n + rows + all)};
        float *qkv = floats(all), *dout = floats(n), *scratch = floats(strip);
        int32_t *begins = ALLOC(int32_t, B * T, "begins");
        rng_normals(qkv, all, 1, 0, 0, 0);
        rng_normals(dout, n, 2, 0, 0, 0);
        for (size_t j = 0; j < B * T && document > 0; j++)
            begins[j] = (int32_t)(j % T / document * document);
        const int32_t *sees = document > 0 ? begins : NULL;
        float *lse = out[0] + n, *want_lse = out[1] + n, *d = lse + rows, *want_d = want_lse + rows;
        for (size_t j = 0; j < all; j++) d[j] = want_d[j] = NAN;  // must be overwritten
        attention_definition(out[1], want_lse, qkv, sees, B, T, NH, NKV, HS);
        attention_backward_definition(want_d, dout, out[1], want_lse, qkv, sees, B, T, NH, NKV, HS);
        attention_forward(out[0], lse, qkv, sees, scratch, B, T, NH, NKV, HS);
        attention_backward(d, dout, out[0], lse, qkv, sees, scratch, B, T, NH, NKV, HS);
        CHECK(test_within(relative_difference(out[0], out[1], n), 2e-6), "output, shape %zu", i);
        CHECK(test_within(relative_difference(lse, want_lse, rows), 2e-6), "lse, shape %zu", i);
        CHECK(test_within(relative_difference(d, want_d, all), 4e-6), "gradient, shape %zu", i);
        float *const made[] = {out[0], out[1], qkv, dout, scratch};
        for (int k = 0; k < 5; k++) free(made[k]);
        free(begins);
    }
}

// Gradients of three steps and parameters after them, with another number of threads: same bits.
static void test_threads_do_not_change_bits(void) {
    enum { B = 3, T = 70 };
    GPT2 models[5];
    for (int threads = 1; threads <= 5; threads++) {
        GPT2 *g = &models[threads - 1];
        use_threads(threads);
        int32_t tokens[B * T + 1];
        make_random(g, small, B, T, tokens);
        for (size_t step = 1; step <= 3; step++) {
            gpt2_forward(g, tokens, NULL, B, T);
            gpt2_head(g, tokens + 1, 1.0f / (B * T), false, NULL);
            gpt2_backward(g, tokens, false);
            const AdamStep adam = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.1, step,
                                                    clip_scale(gpt2_grad_norm_squared(g), 1));
            gpt2_update(g, &adam);
        }
        const size_t bytes = g->table.elements * sizeof(float);
        CHECK(memcmp(models[0].params, g->params, bytes) == 0, "parameters, %d threads", threads);
        CHECK(memcmp(models[0].grads, g->grads, bytes) == 0, "gradients, %d threads", threads);
    }
    for (int i = 0; i < 5; i++) gpt2_free(&models[i]);
    use_threads(0);
}

// Feeding one token at a time, or several in parts, through the cache of keys and values gives the
// logits of the whole sequence, also where all layers share their activations.
static void test_cached_decoding(void) {
    enum { T = 50 };
    GPT2Config variants[] = {small, small, small};
    variants[1].embed = 20;
    variants[1].tied = 0;
    variants[1].activation = ACTIVATION_RELU;
    variants[2].rms = variants[2].qk_norm = variants[2].kv_heads = 1;
    variants[2].rope.theta = 100;
    variants[2].activation = ACTIVATION_SILU;
    for (int i = 0; i < 3; i++) {
        int32_t tokens[T + 1];
        GPT2 g, e = {.config = variants[i]};
        make_random(&g, variants[i], 1, T, tokens);
        gpt2_make(&e, 1, 8, 0);  // 21 new tokens are three parts
        memcpy(e.params, g.params, g.table.elements * sizeof(float));
        const size_t V = g.config.vocab, padded = g.config.vocab_padded;
        float *logits = floats(T * padded), *next = floats(V);
        gpt2_forward(&g, tokens, NULL, 1, T);
        gpt2_head(&g, tokens + 1, 0, false, logits);
        for (size_t t = 0; t < T; t++) {
            gpt2_next(&e, tokens, t + 1, t == 20 ? t + 1 : 1, next);  // and all of them once
            const double error = relative_difference(next, logits + t * padded, V);
            CHECK(test_within(error, 5e-6), "variant %d, position %zu: %g", i, t, error);
        }
        free(next);
        free(logits);
        gpt2_free(&g);
        gpt2_free(&e);
    }
}

// After a signal, the passes compute no layer and no loss; unless a window of ZenFlow is open.
static void test_a_signal_ends_a_pass(void) {
    enum { B = 2, T = 21 };
    int32_t tokens[B * T + 1];
    GPT2 g;
    make_random(&g, small, B, T, tokens);
    gpt2_forward(&g, tokens, NULL, B, T);
    float *made[] = {layer_acts(&g, 1).fc, g.losses, layer_weights(&g, g.grads, 1).fc_w};
    for (int waits = 0; waits < 2; waits++) {
        for (int i = 0; i < 3; i++) *made[i] = 77;
        stop_requested = SIGTERM;
        stop_waits = waits == 1;
        gpt2_forward(&g, tokens, NULL, B, T);
        gpt2_head(&g, tokens + 1, 1.0f / (B * T), false, NULL);
        gpt2_backward(&g, tokens, false);
        for (int i = 0; i < 3; i++)
            CHECK((*made[i] == 77) == (waits == 0), "waits %d: %d is %g", waits, i, *made[i]);
        stop_requested = stop_waits = 0;
    }
    gpt2_free(&g);
}

// With a sliding window, a step's operations are those of the tokens that are seen.
static void test_operations(void) {
    GPT2Config c = small;
    const size_t T = 64;
    const double whole = gpt2_flops_per_token(&c, T);
    for (size_t window = 1; window < T; window += 9) {
        double seen = 0;
        for (size_t t = 0; t < T; t++) seen += (double)min_size(t + 1, window) / (double)T;
        CHECK(fabs(tokens_seen(T, window) - seen) <= 0.5, "window %zu: %g of %g", window,
              tokens_seen(T, window), seen);
        c.window = window;
        const double less = 12 * 2 * 36 * (32 - tokens_seen(T, window));  // of both layers
        CHECK(fabs(whole - gpt2_flops_per_token(&c, T) - less) < 1e-6 * whole, "window %zu", window);
    }
}

int main(void) {
    RUN(test_activations);
    RUN(test_operations);
    RUN(test_late_positions);
    RUN(test_attention_is_its_definition);
    RUN(test_threads_do_not_change_bits);
    RUN(test_cached_decoding);
    RUN(test_a_signal_ends_a_pass);
    return test_summary();
}
