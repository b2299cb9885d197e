// test_layers.c: the CPU trainer against itself: the plain definitions of its layers, one thread
// against several, micro-batches against one batch, one token at a time against all at once.
// (Whole gradients, also of documents in a row, are in test_gpt2.c; the GPU's in test_model.cu.)
#ifndef TESTING  // else another test of the same program has included the trainer
#define NO_MAIN
#include "../../../test_gpt2.c"
#endif
#include "../first_values.h"

// A model with random weights that are far from any symmetry, on random tokens.
static void make_random(GPT2 *g, GPT2Config config, size_t B, size_t T, int32_t *tokens) {
    memset(g, 0, sizeof *g);
    g->config = config;
    gpt2_make(g, B, T, 1);
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

static const GPT2Config small = {.layers = 2, .heads = 3, .channels = 36, .ffn = 100,
                                 .context = 80, .vocab = 141, .tied = 1};

// GELU and its derivative against the formula in double: the reference's tolerance on gradients is
// too wide to notice a constant with a digit less.
static void test_gelu(void) {
    const double k = sqrt(2 / M_PI);
    for (double x = -6; x <= 6; x += 0.01) {
        const float inp = (float)x;
        float out, d = 1;
        activation_forward(&out, &inp, 1, 1, ACTIVATION_GELU);
        activation_backward(&d, &inp, 1, 1, ACTIVATION_GELU);
        const double y = inp, t = tanh(k * (y + 0.044715 * y * y * y));
        const double value = 0.5 * y * (1 + t);
        const double slope = 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * k * (1 + 3 * 0.044715 * y * y);
        CHECK(test_within(fabs(out - value), 4e-7 * (1 + fabs(y))), "gelu(%g) = %.9f, not %.9f", y,
              out, value);
        CHECK(test_within(fabs(d - slope), 4e-6), "gelu'(%g) = %.9f, not %.9f", y, d, slope);
    }
}

// The gate and its derivatives, of rows of 37 columns: z and up, and a gradient.
static void test_gate(void) {
    enum { N = 33, F = 37 };
    float inp[N * 2 * F], out[N * F], d[N * 2 * F];
    for (size_t i = 0; i < N * 2 * F; i++) d[i] = NAN;
    for (size_t i = 0; i < N * F; i++) {
        const size_t at = i / F * 2 * F + i % F;
        inp[at] = i == 0 ? -200 : i == 1 ? 200 : 0.02f * (float)i - 12;
        inp[at + F] = sinf((float)i);
        d[at] = cosf(3 * (float)i);
    }
    activation_forward(out, inp, N, F, ACTIVATION_SILU);
    activation_backward(d, inp, N, F, ACTIVATION_SILU);
    for (size_t i = 0; i < N * F; i++) {
        const size_t at = i / F * 2 * F + i % F;
        const double z = inp[at], up = inp[at + F], dout = cosf(3 * (float)i), e = exp(-z);
        const double silu = z / (1 + e), slope = (1 + e + z * e) / (1 + e) / (1 + e);
        CHECK(test_within(fabs(out[i] - silu * up), 3e-7 * (1e-3 + fabs(silu * up))),
              "z %g: %.9g, not %.9g", z, out[i], silu * up);
        CHECK(test_within(fabs(d[at + F] - dout * silu), 3e-7 * (1e-3 + fabs(dout * silu))),
              "z %g: dup %.9g, not %.9g", z, d[at + F], dout * silu);
        CHECK(test_within(fabs(d[at] - dout * up * slope), 1e-6 * fabs(dout * up)),
              "z %g: dz %.9g, not %.9g", z, d[at], dout * up * slope);
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

// Makes the gradient of f at x by differences, in double: they are right to eight digits.
static void differences(float *grad, double (*f)(const void *of, const double *x), const void *of,
                        const float *x, size_t n) {
    double *at = ALLOC(double, n, "point");
    for (size_t i = 0; i < n; i++) at[i] = x[i];
    for (size_t i = 0; i < n; i++) {
        double value[2];
        for (int side = 0; side < 2; side++) {
            at[i] = x[i] + (side ? 1e-5 : -1e-5);
            value[side] = f(of, at);
        }
        grad[i] = (float)((value[1] - value[0]) / 2e-5);
        at[i] = x[i];
    }
    free(at);
}

// Both norms by their formulas: x is the input (N, C), then w (C), then b (C). Returns the sum of
// dout * out.
typedef struct { size_t N, C; double eps; bool rms; float *out; const float *dout; } Norm;

static double norm_definition(const void *of, const double *x) {
    const Norm *s = of;
    const size_t C = s->C;
    const double *w = x + s->N * C, *b = w + C;
    double sum = 0;
    for (size_t n = 0; n < s->N; n++) {
        double mean = 0, variance = 0;
        for (size_t c = 0; c < C && !s->rms; c++) mean += x[n * C + c] / (double)C;
        for (size_t c = 0; c < C; c++) variance += pow(x[n * C + c] - mean, 2) / (double)C;
        for (size_t c = 0; c < C; c++) {
            const double norm = (x[n * C + c] - mean) / sqrt(variance + s->eps);
            const double out = norm * w[c] + (s->rms ? 0 : b[c]);
            s->out[n * C + c] = (float)out;
            sum += out * s->dout[n * C + c];
        }
    }
    return sum;
}

// Layer norm and RMS norm, forward and backward, where eps is small and where it is large.
static void test_norms_are_their_definitions(void) {
    static const size_t widths[] = {1, 7, 64, 100, 130};
    enum { N = 3, MOST = 130 };
    for (int i = 0; i < 20; i++) {
        const size_t C = widths[i / 4], n = N * C;
        const float eps = i / 2 % 2 ? 0.3f : 1e-6f;
        const bool rms = i % 2;
        float x[(N + 2) * MOST], dout[N * MOST], out[N * MOST], want[N * MOST], mean[N], rstd[N];
        float grad[(N + 2) * MOST] = {0}, want_grad[(N + 2) * MOST];  // as x: dinp, dw, db
        float *m = rms ? NULL : mean, *w = x + n, *b = rms ? NULL : w + C;
        float *dw = grad + n, *db = rms ? NULL : dw + C;
        rng_normals(x, n + 2 * C, 1, 0, (uint32_t)i, 0);
        rng_normals(dout, n, 2, 0, (uint32_t)i, 0);
        for (size_t j = 0; j < n; j++) x[j] += 0.5f;
        const Norm shape = {N, C, eps, rms, want, dout};
        differences(want_grad, norm_definition, &shape, x, n + 2 * C);
        double at[(N + 2) * MOST];
        for (size_t j = 0; j < n + 2 * C; j++) at[j] = x[j];
        norm_definition(&shape, at);
        layernorm_forward(out, m, rstd, x, w, b, N, C, eps);
        for (size_t j = n; j < n + (rms ? C : 2 * C); j++) grad[j] = NAN;  // is overwritten
        for (int k = 0; k < 2; k++)  // the second one adds to the first one's
            layernorm_backward(grad, dw, db, dout, x, w, m, rstd, N, C, k > 0);
        for (size_t j = 0; j < n; j++)
            CHECK(test_within(fabsf(out[j] - want[j]), 1e-6 * (1 + fabsf(want[j]))),
                  "%d: %g, not %g", i, out[j], want[j]);
        for (size_t j = 0; j < n + 2 * C; j++)
            CHECK(test_within(fabsf(grad[j] / 2 - want_grad[j]), 5e-6 * (1 + fabsf(want_grad[j]))),
                  "%d, gradient %zu: %g, not %g", i, j, grad[j] / 2, want_grad[j]);
    }
}

// The frequencies by the rules that models' configurations follow, which are of wavelengths; and
// the table, also at late positions.
static void test_rope_table(void) {
    enum { HS = 64, T = 32768 };
    const double theta = 5e5, factor = 8, original = 8192, low = 1, high = 4;
    int kinds[3] = {0};
    float *table = ALLOC(float, T * HS, "table");
    for (int scaling = ROPE_NONE; scaling <= ROPE_LLAMA3; scaling++) {
        const Rope rope = {.theta = theta, .scaling = scaling, .factor = factor, .low = low,
                           .high = high, .original = (size_t)original};
        rope_table(&rope, T, HS, table);
        for (size_t i = 0; i < HS / 2; i++) {
            const double w = pow(theta, -2 * (double)i / HS), wave = 2 * M_PI / w;
            const double between = (original / wave - low) / (high - low);
            const int kind = wave < original / high ? 0 : wave > original / low ? 1 : 2;
            double want = kind == 0 ? w : kind == 1 ? w / factor
                                                    : (1 - between) * w / factor + between * w;
            if (scaling == ROPE_LLAMA3) kinds[kind]++;
            else want = scaling == ROPE_LINEAR ? w / factor : w;
            CHECK(test_within(fabs(rope_frequency(&rope, i, HS) - want), 1e-14 * want),
                  "scaling %d, channel %zu", scaling, i);
            for (size_t t = 0; t < T; t = t * 7 + 1) {
                const float *got = table + t * HS + 2 * i;
                CHECK(test_within(fabs(got[0] - cos((double)t * want)), 3.2e-8)
                      && test_within(fabs(got[1] - sin((double)t * want)), 3.2e-8),
                      "scaling %d, channel %zu at %zu: %.9f, %.9f", scaling, i, t, got[0], got[1]);
            }
        }
    }
    CHECK(kinds[0] > 1 && kinds[1] > 1 && kinds[2] > 1, "a kind of wave is missing");
    free(table);
}

// The rotation of q and k by its formula, of their RMS norms if norm: x is qkv, then the weight of
// q (HS), then that of k. Returns the sum of dout * out.
typedef struct {
    size_t B, T, NH, NKV, HS;
    double theta, eps;
    bool norm;
    const int32_t *begins;
    float *out;
    const float *dout;
} Heads;

static double heads_definition(const void *of, const double *x) {
    const Heads *s = of;
    const size_t HS = s->HS, all = s->NH + 2 * s->NKV;
    const double *w = x + s->B * s->T * all * HS;
    double sum = 0, c[128], r[128];
    for (size_t i = 0; i < s->B * s->T * all; i++) {
        const size_t row = i / all, h = i % all;
        const size_t t = row % s->T - (s->begins == NULL ? 0 : (size_t)s->begins[row]);
        const double *head = x + i * HS;
        double norm = 1;
        for (size_t j = 0; j < HS / 2 && h == 0; j++) {
            c[j] = cos((double)t * pow(s->theta, -2 * (double)j / (double)HS));
            r[j] = sin((double)t * pow(s->theta, -2 * (double)j / (double)HS));
        }
        if (s->norm) {
            norm = 0;
            for (size_t j = 0; j < HS; j++) norm += head[j] * head[j] / (double)HS;
            norm = 1 / sqrt(norm + s->eps);
        }
        for (size_t j = 0; j < HS; j++) {
            const size_t k = (j + HS / 2) % HS, angle = j % (HS / 2);
            const double *scale = w + (h < s->NH ? 0 : HS);
            const double a = head[j] * norm * (s->norm ? scale[j] : 1);
            const double b = head[k] * norm * (s->norm ? scale[k] : 1);
            const double turned = a * c[angle] + (j < HS / 2 ? -b : b) * r[angle];
            const double out = h < s->NH + s->NKV ? turned : head[j];  // v is left as it is
            s->out[i * HS + j] = (float)out;
            sum += out * s->dout[i * HS + j];
        }
    }
    return sum;
}

static void test_heads_are_their_definition(void) {
    static const size_t sizes[] = {2, 8, 20, 64, 128};
    static const int32_t begins[] = {0, 0, 2, 0, 1, 1};
    enum { B = 2, T = 3, NH = 3, NKV = 1, N = B * T, HEADS = NH + NKV, MOST = 128 };
    static float x[N * (HEADS + 1) * MOST + 2 * MOST], want_grad[N * (HEADS + 1) * MOST + 2 * MOST];
    static float y[N * (HEADS + 1) * MOST], want[N * (HEADS + 1) * MOST], table[T * MOST];
    static float dout[N * (HEADS + 1) * MOST], grad[N * (HEADS + 1) * MOST], qk[N * HEADS * MOST];
    static double at[N * (HEADS + 1) * MOST + 2 * MOST];
    for (int i = 0; i < 20; i++) {
        const size_t HS = sizes[i / 4], n = N * (HEADS + 1) * HS;
        const bool norm = i % 2;
        const float eps = i / 4 % 2 ? 0.3f : 1e-6f;
        float rstd[N * HEADS], dw[2 * MOST];
        const Rope rope = {.theta = 100, .scaling = ROPE_NONE};
        const Heads shape = {.B = B, .T = T, .NH = NH, .NKV = NKV, .HS = HS, .theta = rope.theta,
                             .eps = eps, .norm = norm, .begins = i / 2 % 2 ? begins : NULL,
                             .out = want, .dout = dout};
        const float *w_q = norm ? x + n : NULL, *w_k = norm ? x + n + HS : NULL;
        rng_normals(x, n + 2 * HS, 1, 0, (uint32_t)i, 0);
        rng_normals(dout, n, 2, 0, (uint32_t)i, 0);
        differences(want_grad, heads_definition, &shape, x, n + 2 * HS);
        for (size_t j = 0; j < n + 2 * HS; j++) at[j] = x[j];
        heads_definition(&shape, at);
        rope_table(&rope, T, HS, table);
        memcpy(y, x, n * sizeof *y);
        for (size_t j = 0; j < 2 * HS; j++) dw[j] = NAN;  // is overwritten
        heads_forward(y, norm ? qk : NULL, norm ? rstd : NULL, w_q, w_k, table, shape.begins, B, T,
                      NH, NKV, HS, eps);
        for (int k = 0; k < 2; k++) {  // the second one adds to the weights' gradients
            memcpy(grad, dout, n * sizeof *grad);
            heads_backward(grad, dw, dw + HS, qk, rstd, w_q, w_k, table, shape.begins, B, T, NH,
                           NKV, HS, k > 0);
        }
        for (size_t j = 0; j < n; j++) {
            CHECK(test_within(fabsf(y[j] - want[j]), 1e-6 * (1 + fabsf(want[j]))),
                  "%d: %g, not %g", i, y[j], want[j]);
            CHECK(test_within(fabsf(grad[j] - want_grad[j]), 5e-6 * (1 + fabsf(want_grad[j]))),
                  "%d, gradient %zu: %g, not %g", i, j, grad[j], want_grad[j]);
        }
        for (size_t j = 0; j < 2 * HS && norm; j++)
            CHECK(test_within(fabsf(dw[j] / 2 - want_grad[n + j]),
                              5e-6 * (1 + fabsf(want_grad[n + j]))),
                  "%d, weight %zu: %g, not %g", i, j, dw[j] / 2, want_grad[n + j]);
    }
}

// Attention and its backward pass in double, one pair of rows at a time.
static void attention_in_double(float *out, float *lse, float *dqkv, const float *dout,
                                const float *qkv, const int32_t *begins, size_t B, size_t T,
                                size_t NH, size_t NKV, size_t HS) {
    const size_t A = NH * HS, K = NKV * HS, Q = A + 2 * K;
    double *s = ALLOC(double, T + B * T * Q, "attention"), *sums = s + T;  // sums: dqkv
    for (size_t i = 0; i < B * NH * T; i++) {
        const size_t t = i % T, h = i / T % NH, b = i / T / NH, row = b * T + t;
        const size_t q = row * Q + h * HS, k = b * T * Q + A + h / (NH / NKV) * HS, v = k + K;
        const float *d = dout + row * A + h * HS;
        float *o = out + row * A + h * HS;
        const size_t begin = begins == NULL ? 0 : (size_t)begins[row];
        double sum = 0, delta = 0;  // delta: sum over u of p[t,u] dp[t,u]
        for (size_t u = begin; u <= t; u++) {
            s[u] = 0;
            for (size_t c = 0; c < HS; c++) s[u] += (double)qkv[q + c] * qkv[k + u * Q + c];
            s[u] = exp(s[u] / sqrt((double)HS));
            sum += s[u];
        }
        lse[i] = (float)log(sum);
        for (size_t c = 0; c < HS; c++) {
            double x = 0;
            for (size_t u = begin; u <= t; u++) x += s[u] / sum * qkv[v + u * Q + c];
            o[c] = (float)x;
            delta += x * d[c];
        }
        for (size_t u = begin; u <= t; u++) {
            const double p = s[u] / sum;
            double dp = 0;
            for (size_t c = 0; c < HS; c++) dp += (double)d[c] * qkv[v + u * Q + c];
            const double ds = p * (dp - delta) / sqrt((double)HS);
            for (size_t c = 0; c < HS; c++) {
                sums[q + c] += ds * qkv[k + u * Q + c];
                sums[k + u * Q + c] += ds * qkv[q + c];
                sums[v + u * Q + c] += p * d[c];
            }
        }
    }
    for (size_t i = 0; i < B * T * Q; i++) dqkv[i] = (float)sums[i];
    free(s);
}

// The definition and the strips against it, for lengths around the strip's and odd heads, of rows
// with documents, and without; query heads that share key heads.
static void test_attention_is_its_definition(void) {
    static const size_t shapes[][6] = {  // B, T, HS, NH, NKV, tokens of a document (0: no begins)
        {1, 1, 8, 1, 1, 0}, {2, 5, 3, 4, 4, 0}, {1, 63, 3, 3, 3, 0}, {1, 64, 64, 1, 1, 0},
        {2, 65, 8, 5, 5, 0}, {1, 200, 24, 2, 2, 0}, {2, 200, 4, 3, 3, 7}, {1, 200, 16, 1, 1, 90},
        {1, 130, 4, 2, 2, 1}, {2, 65, 8, 6, 2, 0}, {1, 130, 20, 4, 1, 30}, {1, 70, 64, 3, 3, 0},
        {2, 140, 8, 4, 2, 50}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const size_t B = shapes[i][0], T = shapes[i][1], HS = shapes[i][2];
        const size_t NH = shapes[i][3], NKV = shapes[i][4], document = shapes[i][5];
        const size_t n = B * T * NH * HS, all = B * T * (NH + 2 * NKV) * HS, rows = B * NH * T;
        float *qkv = ALLOC(float, all, "qkv");
        float *dout = ALLOC(float, n, "dout");
        float *buffers = ALLOC(float, 3 * n + 3 * all + 3 * rows, "buffers");
        float *out = buffers, *want = out + n, *plain = want + n, *lse = plain + n;
        float *want_lse = lse + rows, *plain_lse = want_lse + rows, *dqkv = plain_lse + rows;
        float *want_dqkv = dqkv + all, *plain_dqkv = want_dqkv + all;
        const size_t floats = (size_t)omp_get_max_threads() * attention_scratch_floats(T);
        float *scratch = ALLOC(float, floats, "scratch");
        rng_normals(qkv, all, 1, 0, 0, 0);
        rng_normals(dout, n, 2, 0, 0, 0);
        for (size_t j = 0; j < all; j++) dqkv[j] = plain_dqkv[j] = NAN;  // must be overwritten
        int32_t *begins = document > 0 ? ALLOC(int32_t, B * T, "begins") : NULL;
        for (size_t j = 0; j < B * T && begins != NULL; j++)
            begins[j] = (int32_t)(j % T / document * document);
        attention_in_double(want, want_lse, want_dqkv, dout, qkv, begins, B, T, NH, NKV, HS);
        attention_definition(plain, plain_lse, qkv, begins, B, T, NH, NKV, HS);
        attention_backward_definition(plain_dqkv, dout, plain, plain_lse, qkv, begins, B, T, NH,
                                      NKV, HS);
        attention_forward(out, lse, qkv, begins, scratch, B, T, NH, NKV, HS);
        attention_backward(dqkv, dout, out, lse, qkv, begins, scratch, B, T, NH, NKV, HS);
        free(begins);
        CHECK(test_within(relative_difference(plain, want, n), 2e-6), "definition, shape %zu", i);
        CHECK(test_within(relative_difference(plain_lse, want_lse, rows), 2e-6),
              "definition's lse, shape %zu", i);
        CHECK(test_within(relative_difference(plain_dqkv, want_dqkv, all), 4e-6),
              "definition's gradient, shape %zu: %g", i,
              relative_difference(plain_dqkv, want_dqkv, all));
        CHECK(test_within(relative_difference(out, want, n), 2e-6), "output, shape %zu", i);
        CHECK(test_within(relative_difference(lse, want_lse, rows), 2e-6), "lse, shape %zu", i);
        CHECK(test_within(relative_difference(dqkv, want_dqkv, all), 4e-6),
              "gradient, shape %zu: %g", i, relative_difference(dqkv, want_dqkv, all));
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
    gpt2_make(&e, B, T, 0);
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

// Feeding one token at a time, or several in parts, through the cache of keys and values gives the
// logits of the whole sequence.
static void test_cached_decoding(void) {
    enum { T = 50 };
    for (int variant = 0; variant < 4; variant++) {
        GPT2Config c = small;
        if (variant > 0) { c.tied = 0; c.activation = ACTIVATION_RELU; }
        if (variant == 2) c.embed = 20;
        if (variant == 3) {
            c.rms = c.qk_norm = 1;
            c.kv_heads = 1;
            c.rope.theta = 100;
            c.activation = ACTIVATION_SILU;
        }
        int32_t tokens[T + 1];
        GPT2 g;
        make_random(&g, c, 1, T, tokens);
        float *logits = ALLOC(float, T * g.config.vocab_padded, "logits");
        gpt2_forward(&g, tokens, NULL, 1, T);
        gpt2_head(&g, tokens + 1, 0, false, logits);
        float *next = ALLOC(float, g.config.vocab, "logits");
        g.max_T = 8;  // from here on, 21 new tokens are three parts
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

// After a signal, the passes compute no layer and no loss; unless a window of ZenFlow is open.
static void test_a_signal_ends_a_pass(void) {
    enum { B = 2, T = 21 };
    for (int waits = 0; waits < 2; waits++) {
        int32_t tokens[B * T + 1];
        GPT2 g;
        make_random(&g, small, B, T, tokens);
        gpt2_forward(&g, tokens, NULL, B, T);
        const LayerWeights d = layer_weights(&g, g.grads, 1);
        float *made[] = {layer_acts(&g, 0).fc, layer_acts(&g, 1).fc, g.losses, d.fc_w};
        for (int i = 0; i < 4; i++) *made[i] = 77;
        stop_requested = SIGTERM;
        stop_waits = waits == 1;
        gpt2_forward(&g, tokens, NULL, B, T);
        gpt2_head(&g, tokens + 1, 1.0f / (B * T), false, NULL);
        gpt2_backward(&g, tokens, false);
        for (int i = 0; i < 4; i++)
            CHECK((*made[i] == 77) == (waits == 0), "waits %d: %d is %g", waits, i, *made[i]);
        stop_requested = stop_waits = 0;
        gpt2_free(&g);
    }
}

int main(void) {
    RUN(test_gelu);
    RUN(test_gate);
    RUN(test_norms_are_their_definitions);
    RUN(test_rope_table);
    RUN(test_heads_are_their_definition);
    RUN(test_attention_is_its_definition);
    RUN(test_threads_do_not_change_bits);
    RUN(test_accumulation);
    RUN(test_words_have_a_gradient);
    RUN(test_cached_decoding);
    RUN(test_a_signal_ends_a_pass);
    return test_summary();
}
