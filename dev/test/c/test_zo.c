// Tests of zeroth-order training: the noise, rounding, updates and loops of zo.h against their
// definitions, and what the CPU trainer makes of them against the gradient of its backward pass.
#ifndef TESTING  // else another test of the same program has included the trainer
#define TESTING
#include "../../../train_gpt2.c"
#endif
#include "../test.h"
#include "../first_values.h"
#include "../gpt2_free.h"
#include "../numbers.h"
#include "../zo_feed.h"

static uint32_t to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static ZoConfig config_of(uint64_t seed, int noise, int queries, int storage) {
    return (ZoConfig){seed, 1e-3f, queries, noise, storage};
}

// ---------------------------------------------------------------------------------------------
// Noise

// Made by another program: Philox from its paper in integers of any size, then the arithmetic of
// rng.h in exact fractions, each result rounded to fp32, and held against double precision.
static void noise_is_what_it_was(void) {
    static const struct { uint64_t seed, first; uint32_t step, query, tensor; float z[8];
                          const char *signs; } known[2] = {
        {1337, 0, 1, 0, 0,
         {0x1.70a11ap+0f, 0x1.6a7a04p-2f, -0x1.63bb84p+0f, -0x1.24629p-5f,
          -0x1.477a1p-2f, -0x1.99e2a8p-5f, -0x1.ece9a8p-2f, -0x1.08abb8p-1f},
         "+++---++++++++++--+++--+-------+++---+---+-+-+-++-+++--+---++---"
         "++++++++-++++++-+-++++-++-----+-++++-+-++-++--+--+----++-+----++"},
        {0x123456789abcdef0, 1ull << 40, 20000, 255, 147,
         {-0x1.3633eep-1f, -0x1.13399ep+0f, -0x1.53bfp-2f, 0x1.a3eb08p+0f,
          -0x1.4c8ddcp+0f, 0x1.5816d2p+0f, -0x1.099174p+0f, -0x1.c46dc4p-2f},
         "---++--+-+++--+-+-+-++-+++---+-+------++++++----+---+++++-+++--+"
         "-+-++++-+++-++-------+++-++++-+---+-+++--+-+-++++----++++-+--++-"}};
    for (int k = 0; k < 2; k++) {
        ZoConfig c = config_of(known[k].seed, ZO_GAUSSIAN, 1, ZO_FP32);
        float z[64];
        // the second one's first normal number is that of element 2^40 + 8
        zo_noise(z, 8, &c, known[k].step, known[k].query, known[k].tensor,
                 known[k].first + (k == 1 ? 8 : 0));
        for (int i = 0; i < 8; i++)
            CHECK(z[i] == known[k].z[i], "%d: normal number %d is %a", k, i, (double)z[i]);
        c.noise = ZO_RADEMACHER;
        for (uint64_t i = 0; i < 128; i++) {
            if (i % 64 == 0)
                zo_noise(z, 64, &c, known[k].step, known[k].query, known[k].tensor,
                         known[k].first + i);
            CHECK(z[i % 64] == (known[k].signs[i] == '+' ? 1.0f : -1.0f), "%d: sign %d is %g", k,
                  (int)i, (double)z[i % 64]);
        }
    }
}

static void fill_noise(float *z, size_t n, const ZoConfig *c, uint32_t step, uint32_t query,
                 uint32_t tensor, uint64_t first) {
    for (size_t i = 0; i < n; i += 64) zo_noise(z + i, 64, c, step, query, tensor, first + i);
}

static void noise_does_not_depend_on_slices(void) {
    static const uint64_t from[] = {0, 1ull << 34, (1ull << 39) - 512, (1ull << 47)};
    enum { N = 1024 };
    float whole[N], part[64], octet[8];
    for (int noise = 0; noise < 2; noise++)
        for (int f = 0; f < 4; f++) {
            const ZoConfig c = config_of(99, noise, 1, ZO_FP32);
            fill_noise(whole, N, &c, 5, 6, 7, from[f]);
            for (int n = 8; n <= 64; n *= 2)
                for (uint64_t at = 0; at < N; at += (uint64_t)n) {
                    for (int i = n; i < 64; i++) part[i] = 7;
                    zo_noise(part, n, &c, 5, 6, 7, from[f] + at);
                    CHECK(same(part, whole + at, (size_t)n), "noise %d, %d from %d", noise, n,
                          (int)at);
                    for (int i = n; i < 64; i++) CHECK(part[i] == 7, "wrote past %d", n);
                }
            for (uint64_t i = 0; noise == ZO_GAUSSIAN && i < N; i++) {
                rng_octet(octet, 99, 5, 6, 7, (from[f] + i) / 8);
                CHECK(same(&whole[i], &octet[i % 8], 1), "element %d", (int)i);
            }
            for (uint64_t i = 0; noise == ZO_RADEMACHER && i < N; i++) {
                const uint64_t e = from[f] + i, b = e / 128;
                const Philox4 r = philox4x32(99, (uint32_t)b, (uint32_t)(b >> 32) | 6 << 16, 7, 5);
                const bool minus = r.x[e % 128 / 32] >> e % 32 & 1;
                CHECK(whole[i] == (minus ? -1.0f : 1.0f), "element %d", (int)i);
            }
        }
}

// ---------------------------------------------------------------------------------------------
// Rounding

// The numbers of a storage from its definition: those with sign 0, in order, as doubles.
static double table[1 << 15];
static uint32_t largest;  // index of the last one that is finite

static void table_make(int storage) {
    const int fraction = storage == ZO_FP16 ? 10 : 7, bias = storage == ZO_FP16 ? 15 : 127;
    largest = (storage == ZO_FP16 ? 31u : 255u) << fraction;
    largest--;
    for (uint32_t h = 0; h <= largest; h++) {
        const int e = (int)(h >> fraction), m = (int)(h & ((1u << fraction) - 1));
        table[h] = e == 0 ? ldexp(m, 1 - bias - fraction)
                          : ldexp((1 << fraction) + m, e - bias - fraction);
    }
}

static uint32_t largest_below(double x) {  // or equal
    uint32_t lo = 0, hi = largest + 1;
    while (hi - lo > 1) {
        const uint32_t middle = (lo + hi) / 2;
        if (table[middle] <= x) lo = middle;
        else hi = middle;
    }
    return lo;
}

// Whatever the random bits; and an overflow is not hidden.
static void what_is_stored_stays(void) {
    for (int storage = ZO_BF16; storage <= ZO_FP16; storage++) {
        table_make(storage);
        for (uint32_t h = 0; h <= 2 * largest + 1; h++) {
            const float x = (float)(h > largest ? -table[h - largest - 1] : table[h]);
            for (uint32_t random = 0; random < 1 << 16; random += 0x5555) {
                const float y = zo_round(x, storage, random);
                CHECK(same(&x, &y, 1), "%a (storage %d, random %04x) was rounded to %a", (double)x,
                      storage, (unsigned)random, (double)y);
            }
        }
        static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fc00001, 0xffffffff, 0x7fffffff};
        for (int i = 0; i < 5; i++) {
            const float x = zo_round(from_bits(nans[i]), storage, 0xffff);
            CHECK(x != x, "NaN %08x (storage %d) is stored as %g", (unsigned)nans[i], storage,
                  (double)x);
        }
    }
    for (uint32_t i = 0; i < 1000; i++) {
        const float x = from_bits(philox4x32(6, i, 0, 0, 0).x[0]), y = zo_round(x, ZO_FP32, i);
        CHECK(to_bits(x) == to_bits(y), "fp32 stores %a as %a", (double)x, (double)y);
    }
}

// Over all 65536 values of the random bits: nothing but the two neighbours, and the upper one as
// often as x is above the lower one, so that the mean is x.
static void check_stochastic(float x, int storage) {
    const double a = fabs((double)x);
    const uint32_t below = largest_below(a), above = below < largest ? below + 1 : below;
    const float sign = signbit(x) ? -1.0f : 1.0f;
    const float lo = sign * (float)table[below], hi = sign * (float)table[above];
    int ups = 0, downs = 0;
    for (uint32_t random = 0; random < 1 << 16; random++) {
        const uint32_t got = to_bits(zo_round(x, storage, random));
        if (got == to_bits(lo)) downs++;
        else if (got == to_bits(hi)) ups++;
    }
    // finer than the random bits are only numbers below 2^-16 in fp16
    const double step = table[above] - table[below];
    const double want = step == 0 ? 0 : 65536 * (a - table[below]) / step;
    CHECK(ups + downs == 65536, "%a (storage %d): %d other results", (double)x, storage,
          65536 - ups - downs);
    CHECK(want == floor(want) ? ups == (int)want : fabs(ups - want) < 1,
          "%a (storage %d): up %d times, not %g", (double)x, storage, ups, want);
    CHECK(want == floor(want) || (storage == ZO_FP16 && a < 0x1p-16), "%a: a share of %.17g",
          (double)x, want);
}

static void stochastic_rounding_keeps_the_mean(void) {
    for (int storage = ZO_BF16; storage <= ZO_FP16; storage++) {
        table_make(storage);
        for (uint32_t i = 0; i < 40; i++) {
            const Philox4 r = philox4x32(8, i, 0, 0, 0);
            const float u = (float)(int32_t)r.x[0] * 0x1p-31f;
            check_stochastic(0.02f * u, storage);
            check_stochastic(ldexpf(u, -14 - (int)(i % 13)), storage);  // where fp16 ends
            check_stochastic(ldexpf(u, (int)(i % 16)), storage);
            const uint32_t h = r.x[1] % largest;
            check_stochastic((float)table[h], storage);
            check_stochastic((float)((table[h] + table[h + 1]) / 2), storage);
        }
        static const float some[] = {0.0f, -0.0f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-15f,
                                     0x1.004p-15f, 0x1p-16f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 1.0f,
                                     0x1.fffffep-15f, 0x1p-126f, 0x1p-149f, -0x1.8p-14f};
        for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
            check_stochastic(some[i], storage);
        const float last = (float)table[largest];
        check_stochastic(last, storage);
        check_stochastic(nextafterf(last, 0), storage);
        check_stochastic(-nextafterf(last, INFINITY), storage);
        check_stochastic(FLT_MAX, storage);
    }
}

// ---------------------------------------------------------------------------------------------
// Updates

// Of the size of training.
static ZoUpdate update_of(uint32_t step, int queries, float scale) {
    ZoUpdate u = {step, queries, 0.1f * scale, {0}};
    for (int j = 0; j < queries; j++)
        u.scale[j] = scale * (float)(1 + 2 * j % 5) * (j % 2 ? -1 : 1);
    return u;
}

// What an update makes of element e of a tensor, each operation written out: any other order gives
// other bits. A stored number rounds up by a draw of its own, which is none of the noise's.
static float updated_by_definition(float x, const ZoConfig *c, const ZoUpdate *u, uint32_t tensor,
                                   bool decay, uint64_t e) {
    float z[8];
    if (decay) x = fmaf(-u->shrink, x, x);
    for (int j = 0; j < u->queries; j++) {
        zo_noise(z, 8, c, u->step, (uint32_t)j, tensor, e / 8 * 8);
        x = fmaf(-u->scale[j], z[e % 8], x);
    }
    const Philox4 r = philox4x32(c->seed, (uint32_t)(e / 8), 0xffff0000u | e >> 35, tensor,
                                 u->step);
    return zo_round(x, c->storage, r.x[e % 8 / 2] >> 16 * (e % 2) & 0xffff);
}

static void weights_make(float *w, size_t n, int storage) {
    rng_normals(w, n, 77, RNG_INIT, 1, 0);
    for (size_t i = 0; i < n; i++) w[i] = zo_round(0.02f * w[i], storage, 0);
}

// With any threads and slices, of all kinds of noise and storage, early and late in a tensor.
static void loops_are_their_definition(void) {
    enum { N = 20011, ROOM = N + 64 };
    float *theta = floats(ROOM), *w = floats(ROOM), *once = floats(ROOM);
    float *want_w = floats(ROOM), *want = floats(ROOM);
    for (int mode = 0; mode < 12; mode++) {
        const ZoConfig c = config_of(8, mode & 1, 2, ZO_FP32 + mode / 2 % 3);
        const bool decay = mode != 4;
        ZoUpdate u = update_of(3, 2, 1e-4f);
        const uint64_t first = mode < 6 ? 192 : 1ull << 36;  // theta + 64 is element 256
        weights_make(theta, ROOM, c.storage);
        memcpy(once, theta, ROOM * sizeof *once);
        for (size_t i = 0; i < ROOM; i++) {
            float z[8];
            zo_noise(z, 8, &c, 6, 1, 4, first + i / 8 * 8);
            want_w[i] = fmaf(-1e-3f, z[i % 8], theta[i]);
            want[i] = updated_by_definition(theta[i], &c, &u, 4, decay, first + i);
        }
        for (int threads = 1; threads <= 3; threads++) {
            use_threads(threads);
            for (size_t i = 0; i < ROOM; i++) w[i] = 1234.5f;
            memcpy(theta, once, ROOM * sizeof *theta);
            zo_perturb(w, theta, N, &c, 6, 1, -1e-3f, 4, first);
            CHECK(same(theta, once, ROOM), "theta was touched");
            zo_update(theta, N, &c, &u, 4, decay, first);
            CHECK(same(w, want_w, N), "mode %d, %d threads: perturbed", mode, threads);
            CHECK(same(theta, want, N), "mode %d, %d threads: updated", mode, threads);
            for (size_t i = N; i < ROOM; i++)
                CHECK(w[i] == 1234.5f && same(&theta[i], &once[i], 1), "wrote past the end");
        }
        memcpy(theta, once, ROOM * sizeof *theta);
        for (size_t at = 0, n = 64; at < N; at += n, n = 64 * (n / 64 * 5 % 13)) {
            const size_t rows = n < N - at ? n : N - at;
            zo_perturb(w + at, theta + at, rows, &c, 6, 1, -1e-3f, 4, first + at);
            zo_update(theta + at, rows, &c, &u, 4, decay, first + at);
        }
        CHECK(same(w, want_w, N) && same(theta, want, N), "mode %d: in slices", mode);
        u.step = 0;  // no update
        zo_update(theta, N, &c, &u, 4, decay, first);
        CHECK(same(theta, want, N), "mode %d: step 0", mode);
    }
    use_threads(0);
    free(theta); free(w); free(once); free(want_w); free(want);
}

// ---------------------------------------------------------------------------------------------
// The trainer

enum { B = 2, T = 8 };

// First weights: a loss that is curved needs such as keep activations near 1.
static void model_begin(GPT2 *g, float size) {
    gpt2_init(&g->table, g->theta, 17);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        float *w = g->theta + x->offset, more;
        for (size_t e = 0; e < x->rows * x->cols; e++) {
            rng_normals(&more, 1, 18, RNG_INIT, (uint32_t)i, e);
            if (x->rank == 2) w[e] = more * size / sqrtf((float)g->config.channels);
            else w[e] += 0.2f * more;
        }
    }
}

static void model_make(GPT2 *g, int tied, float size) {
    const GPT2Config c = {.layers = 2, .heads = 2, .channels = 16, .context = T + 1, .vocab = 50,
                          .tied = tied};
    Error err;
    memset(g, 0, sizeof *g);
    g->config = c;
    if (!gpt2_finish(&g->config, &err)) die("%s", err.text);
    g->table = gpt2_table(&g->config);
    g->max_B = B;
    g->max_T = T;
    g->training = g->zeroth = true;
    gpt2_allocate(g, 0, true);
    model_begin(g, size);
    for (size_t i = 0; i < B * T; i++) {
        const Philox4 r = philox4x32(19, (uint32_t)i, 0, 0, 0);
        g->inputs[i] = (int32_t)(r.x[0] % c.vocab);
        g->targets[i] = (int32_t)(r.x[1] % c.vocab);
    }
}

static double loss_at(GPT2 *g, const ZoConfig *c, size_t step, int query, float scale) {
    gpt2_perturb(g, c, step, query, scale);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        for (size_t e = x->rows * x->cols; e < x->size; e++)
            CHECK(g->params[x->offset + e] == 0, "padding of %s is perturbed", x->name);
    }
    gpt2_forward(g, g->inputs, NULL, B, T);
    return gpt2_head(g, g->targets, 0, false, NULL);
}

// Returns <grad, z>: over the numbers of the model, not its padding, eight at a time.
static double along(const GPT2 *g, const ZoConfig *c, size_t step, int query) {
    double dot = 0;
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        const size_t n = x->rows * x->cols;
        float z[8];
        for (size_t e = 0; e < n; e++) {
            if (e % 8 == 0) zo_noise(z, 8, c, (uint32_t)step, (uint32_t)query, (uint32_t)i, e);
            dot += (double)g->grads[x->offset + e] * z[e % 8];
        }
    }
    return dot;
}

// Central differences against the backward pass.
static void difference_is_the_gradient(void) {
    use_threads(1);
    for (int mode = 0; mode < 4; mode++) {
        GPT2 g;
        model_make(&g, mode >> 1, 0.7f);
        const float eps = 1e-3f;
        gpt2_perturb(&g, &(ZoConfig){0}, 0, 0, 0);
        gpt2_forward(&g, g.inputs, NULL, B, T);
        gpt2_head(&g, g.targets, 1.0f / (B * T), false, NULL);
        gpt2_backward(&g, g.inputs, false);
        double norm = 0;
        for (size_t i = 0; i < g.table.elements; i++) norm += (double)g.grads[i] * g.grads[i];
        norm = sqrt(norm);
        double worst = 0, one_sided = 0, relative = 0, sum = 0;
        int n = 0, counted = 0;
        for (uint64_t seed = 1; seed <= 3; seed++)
            for (size_t step = 1; step <= 2; step++)
                for (int query = 0; query < 3; query++, n++) {
                    const ZoConfig c = config_of(seed, mode & 1, 3, ZO_FP32);
                    const double here = loss_at(&g, &c, step, query, 0);
                    const double up = loss_at(&g, &c, step, query, eps);
                    const double down = loss_at(&g, &c, step, query, -eps);
                    const double want = along(&g, &c, step, query);
                    const double error = fabs((up - down) / (2 * (double)eps) - want);
                    worst = fmax(worst, error / norm);
                    one_sided = fmax(one_sided, fabs((up - here) / (double)eps - want) / norm);
                    if (fabs(want) > 0.2 * norm) {
                        relative = fmax(relative, error / fabs(want));
                        counted++;
                    }
                    sum += want * want;
                }
        printf("  noise %d, tied %d: |grad| %.3f, rms of <grad, z> %.3f; largest error %.1e of "
               "|grad|, %.1e of <grad, z>; one-sided %.1e\n", mode & 1, mode >> 1, norm,
               sqrt(sum / n), worst, relative, one_sided);
        CHECK(test_within(worst, 3e-3), "mode %d: %g", mode, worst);
        CHECK(test_within(relative, 1e-2) && counted > 9, "mode %d: %g of %d", mode, relative,
              counted);
        CHECK(one_sided > 4 * worst, "mode %d: the loss is not curved, %g", mode, one_sided);
        CHECK(sqrt(sum / n) > 0.6 * norm && sqrt(sum / n) < 1.4 * norm, "%g", sqrt(sum / n));
        gpt2_free(&g);
    }
    use_threads(0);
}

// The cross-entropy over a few words' logits, in double, from all logits of gpt2_head().
static double classify_by_definition(GPT2 *g, const int32_t *word, int words, const int32_t *where,
                                     size_t *right) {
    float *logits = floats(B * T * g->config.vocab_padded);
    int32_t zeros[B * T] = {0};
    double sum = 0;
    gpt2_head(g, zeros, 0, false, logits);
    for (size_t b = 0; b < B; b++) {
        const float *row = logits + (b * T + (size_t)where[2 * b]) * g->config.vocab_padded;
        double total = 0;
        bool best = true;
        for (int k = 0; k < words; k++) {
            const double more = (double)row[word[k]] - (double)row[word[where[2 * b + 1]]];
            total += exp(more);
            best = best && more <= 0;
        }
        sum += log(total);
        *right += best;
    }
    free(logits);
    return sum / B;
}

static void classifying_is_its_definition(void) {
    GPT2 g;
    size_t all_right = 0;
    for (int tied = 0; tied < 2; tied++) {
        model_make(&g, tied, 1.0f);
        gpt2_perturb(&g, &(ZoConfig){0}, 0, 0, 0);
        gpt2_forward(&g, g.inputs, NULL, B, T);
        for (uint32_t i = 0; i < 50; i++) {
            const Philox4 r = philox4x32(60, i, 0, 0, 0);
            const int words = i % 5 == 0 ? TASK_LABELS : 2 + (int)(i % 5);
            int32_t word[TASK_LABELS], where[2 * B];
            for (int k = 0; k < words; k++) word[k] = (int32_t)((r.x[0] + 3u * (uint32_t)k) % 50);
            for (int b = 0; b < B; b++) {
                where[2 * b] = (int32_t)(r.x[1 + b] % T);
                where[2 * b + 1] = (int32_t)(r.x[1 + b] / T % (uint32_t)words);
            }
            size_t right = 100, want_right = 100;
            const double loss = gpt2_classify(&g, word, words, where, 0, false, &right);
            const double want = classify_by_definition(&g, word, words, where, &want_right);
            CHECK(test_within(fabs(loss - want), 2e-6 * (1 + want)), "%d words: %.9g, not %.9g",
                  words, loss, want);
            CHECK(right == want_right, "%d words: %zu right, not %zu", words, right, want_right);
            all_right += right - 100;
        }
        gpt2_free(&g);
    }
    CHECK(all_right > 20 && all_right < 180, "%zu of 200 are right: no test", all_right);
}

// A whole step of training, on tokens and on prompts: the update follows from the
// losses, and the weights from the update.
static void step_is_its_definition(void) {
    static Feed f;
    use_threads(1);
    for (int mode = 0; mode < 4; mode++) {
        const bool task = mode & 1;
        const size_t accum = 1 + (size_t)(mode >> 1);
        const int queries = 3;
        GPT2 g;
        Error err;
        model_make(&g, 1, 0.7f);
        feed_fill(&f, &g.config, B, T, g.config.vocab, task);
        f.r.o.accum = accum;
        f.r.o.seed = 3;
        f.r.o.weight_decay = 0.1;
        f.r.step_tokens = B * T * accum;
        const ZoConfig c = config_of(70, mode >> 1, queries, ZO_FP32);
        const size_t n = g.table.elements;
        float *want = floats(n);
        memcpy(want, g.theta, n * sizeof *want);
        double want_loss = 0, want_norm = 0;
        g.zo = c;
        for (size_t step = 1; step <= 4; step++) {
            double side[6] = {0};
            size_t right = 0;
            const double lr = 1e-3 / (double)step;
            ZoUpdate u;
            for (size_t micro = 0; micro < accum; micro++) {
                if (!run_batch(&f.r, &f.r.train, ((step - 1) * accum + micro) * B, B, g.inputs,
                               g.targets, NULL, &err)) die("%s", err.text);
                for (int i = 0; i < 2 * queries; i++) {
                    gpt2_perturb(&g, &c, step, i / 2, i % 2 == 0 ? c.eps : -c.eps);
                    gpt2_forward(&g, g.inputs, NULL, B, T);
                    side[i] += gpt2_loss(&g, &f.r, 0, false, &right) / (double)accum;
                }
            }
            zo_estimate(&u, &c, step, lr, 0.1, side, &want_loss, &want_norm);
            for (int i = 0; i < g.table.count; i++) {
                const GPT2Tensor *x = &g.table.tensors[i];
                for (size_t e = 0; e < x->rows * x->cols; e++) {
                    float *w = &want[x->offset + e];
                    *w = updated_by_definition(*w, &c, &u, (uint32_t)i, x->rank == 2, e);
                }
            }
            f.r.o.lr = lr;
            f.r.o.schedule = SCHEDULE_CONSTANT;
            const StepResult x = mezo_step(&g, &f.r, step);
            CHECK(x.loss == want_loss && x.norm == want_norm && x.loss > 0 && x.norm > 0,
                  "mode %d: loss %.9g, not %.9g", mode, x.loss, want_loss);
            CHECK(same(g.theta, want, n), "mode %d, step %zu: weights", mode, step);
            CHECK(same(g.params, want, n), "mode %d, step %zu: what is used", mode, step);
        }
        // a loss that is no number: the weights stay
        float *const last = &g.theta[g.table.tensors[g.table.ln_f_b].offset], before = *last;
        *last = NAN;
        const StepResult x = mezo_step(&g, &f.r, 5);
        CHECK(x.skipped && x.loss != x.loss, "a loss of %g", x.loss);
        *last = before;
        CHECK(same(g.theta, want, n), "mode %d: a skipped step moved the weights", mode);
        free(want);
        gpt2_free(&g);
    }
    use_threads(0);
}

// Equal losses are an update of the decay alone; losses that are no numbers are none.
static void what_losses_come_to(void) {
    const ZoConfig c = {1, 0.5f, 2, ZO_GAUSSIAN, ZO_FP32};
    ZoUpdate u;
    double loss, norm;
    zo_estimate(&u, &c, 1, 0.1, 0.2, (double[]){5, 3, 1, 4}, &loss, &norm);
    CHECK(loss == 3.25 && norm == sqrt(6.5), "loss %g, norm %g", loss, norm);
    CHECK(u.step == 1 && u.queries == 2 && u.shrink == (float)(0.1 * 0.2)
          && u.scale[0] == 0.1f && u.scale[1] == (float)(0.1 * -3 / 2), "%g", (double)u.scale[1]);
    zo_estimate(&u, &c, 2, 0.1, 0.2, (double[]){5, NAN, 1, 4}, &loss, &norm);
    CHECK(u.step == 0 && isnan(loss), "an update of what is no number");
    zo_estimate(&u, &c, 3, 1e30, 0.2, (double[]){5, 3, 1, 4}, &loss, &norm);
    CHECK(u.step == 0 && loss == 3.25, "an update that is too large");
    zo_estimate(&u, &c, 3, 0.1, 0.2, (double[]){5, 5, 4, 4}, &loss, &norm);
    CHECK(u.step == 3 && norm == 0 && u.shrink > 0 && u.scale[0] == 0, "no decay");
}

int main(void) {
    RUN(noise_is_what_it_was);
    RUN(noise_does_not_depend_on_slices);
    RUN(what_is_stored_stays);
    RUN(stochastic_rounding_keeps_the_mean);
    RUN(loops_are_their_definition);
    RUN(difference_is_the_gradient);
    RUN(classifying_is_its_definition);
    RUN(step_is_its_definition);
    RUN(what_losses_come_to);
    return test_summary();
}
