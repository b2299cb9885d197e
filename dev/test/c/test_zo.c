// Tests of zeroth-order training: the noise, rounding, updates and loops of zo.h against their
// definitions, and what the CPU trainer makes of them against the gradient of its backward pass.
// (The GPU's are the CPU's: test_zo_gpu.cu; so is the loss of words: test_model.cu.)
#ifndef TESTING  // else another test of the same program has included the trainer
#define TESTING
#include "../../../train_gpt2.c"
#endif
#include "../test.h"
#include "../first_values.h"
#include "../gpt2_free.h"
#include "../numbers.h"
#include "../zo_feed.h"

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

// ---------------------------------------------------------------------------------------------
// Rounding

// The numbers that a storage has, those with sign 0, in order.
static float stored(int storage, uint32_t h) {
    return storage == ZO_FP16 ? f16_to_f32((uint16_t)h) : bf16_to_f32((uint16_t)h);
}

static uint32_t last_finite(int storage) { return storage == ZO_FP16 ? 0x7bff : 0x7f7f; }

static uint32_t largest_below(double x, int storage) {  // or equal
    uint32_t lo = 0, hi = last_finite(storage) + 1;
    while (hi - lo > 1) {
        const uint32_t middle = (lo + hi) / 2;
        if (stored(storage, middle) <= x) lo = middle;
        else hi = middle;
    }
    return lo;
}

// Over all 65536 values of the random bits: nothing but the two neighbours, and the upper one as
// often as x is above the lower one, so that the mean is x. What is stored stays.
static void check_stochastic(float x, int storage) {
    const double a = fabs((double)x);
    const uint32_t below = largest_below(a, storage);
    const uint32_t above = below < last_finite(storage) ? below + 1 : below;
    const float lo = copysignf(stored(storage, below), x), hi = copysignf(stored(storage, above), x);
    int ups = 0, downs = 0;
    for (uint32_t random = 0; random < 1 << 16; random++) {
        const float got = zo_round(x, storage, random);
        if (same(&got, &lo, 1)) downs++;
        else if (same(&got, &hi, 1)) ups++;
    }
    const double step = fabs((double)hi - lo);
    const double want = step == 0 ? 0 : 65536 * fabs((double)x - lo) / step;
    CHECK(ups + downs == 65536, "%a (storage %d): %d other results", (double)x, storage,
          65536 - ups - downs);
    // finer than the random bits are only numbers below 2^-16 in fp16
    CHECK(ups == want || (storage == ZO_FP16 && a < 0x1p-16 && fabs(ups - want) < 1),
          "%a (storage %d): up %d times, not %g", (double)x, storage, ups, want);
}

static void stochastic_rounding_keeps_the_mean(void) {
    for (int storage = ZO_BF16; storage <= ZO_FP16; storage++) {
        const uint32_t last = last_finite(storage);
        for (uint32_t i = 0; i < 40; i++) {
            const Philox4 r = philox4x32(8, i, 0, 0, 0);
            const float u = (float)(int32_t)r.x[0] * 0x1p-31f;
            const uint32_t h = r.x[1] % last;
            check_stochastic(0.02f * u, storage);
            check_stochastic(ldexpf(u, -14 - (int)(i % 13)), storage);  // where fp16 ends
            check_stochastic(ldexpf(u, (int)(i % 16)), storage);
            check_stochastic(stored(storage, h), storage);
            check_stochastic((stored(storage, h) + stored(storage, h + 1)) / 2, storage);
        }
        const float end = stored(storage, last);
        const float some[] = {0.0f, -0.0f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-15f, 0x1p-16f,
                              0x1.004p-15f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1.fffffep-15f,
                              0x1p-126f, 0x1p-149f, -0x1.8p-14f, end, nextafterf(end, 0),
                              -nextafterf(end, INFINITY), FLT_MAX};
        for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
            check_stochastic(some[i], storage);
        static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fc00001, 0xffffffff, 0x7fffffff};
        for (int i = 0; i < 5; i++)
            CHECK(isnan(zo_round(from_bits(nans[i]), storage, 0xffff)), "NaN %08x (storage %d)",
                  (unsigned)nans[i], storage);
        CHECK(zo_round(-INFINITY, storage, 0xffff) == -INFINITY, "an overflow is hidden");
    }
    CHECK(zo_round(0x1.fffffep-3f, ZO_FP32, 0xffff) == 0x1.fffffep-3f, "fp32 is not rounded");
}

// ---------------------------------------------------------------------------------------------
// Updates

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

// With any threads, of all kinds of noise and storage, early and late in a tensor.
static void loops_are_their_definition(void) {
    enum { N = 20011, ROOM = N + 64 };
    float *theta = floats(ROOM), *w = floats(ROOM), *once = floats(ROOM);
    float *want_w = floats(ROOM), *want = floats(ROOM);
    for (int mode = 0; mode < 12; mode++) {
        const ZoConfig c = config_of(8, mode & 1, 2, ZO_FP32 + mode / 2 % 3);
        const bool decay = mode != 4;
        const uint64_t first = mode < 6 ? 192 : 1ull << 36;  // theta + 64 is element 256
        ZoUpdate u = {3, 2, 1e-5f, {1e-4f, -3e-4f}};
        rng_normals(once, ROOM, 77, RNG_INIT, 1, 0);
        for (size_t i = 0; i < ROOM; i++) {
            float z[8];
            once[i] = zo_round(0.02f * once[i], c.storage, 0);
            zo_noise(z, 8, &c, 6, 1, 4, first + i / 8 * 8);
            want_w[i] = i < N ? fmaf(-1e-3f, z[i % 8], once[i]) : 1234.5f;
            want[i] = i < N ? updated_by_definition(once[i], &c, &u, 4, decay, first + i) : once[i];
        }
        for (int threads = 1; threads <= 3; threads++) {
            use_threads(threads);
            for (size_t i = 0; i < ROOM; i++) w[i] = 1234.5f;
            memcpy(theta, once, ROOM * sizeof *theta);
            zo_perturb(w, theta, N, &c, 6, 1, -1e-3f, 4, first);
            CHECK(same(theta, once, ROOM), "theta was touched");
            zo_update(theta, N, &c, &u, 4, decay, first);
            CHECK(same(w, want_w, ROOM), "mode %d, %d threads: perturbed", mode, threads);
            CHECK(same(theta, want, ROOM), "mode %d, %d threads: updated", mode, threads);
        }
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

// A model on one batch of random tokens. A loss that is curved needs weights such as keep activations
// near 1.
static void model_make(GPT2 *g, int tied) {
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
    gpt2_init(&g->table, g->theta, 17);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        float *w = g->theta + x->offset, more;
        for (size_t e = 0; e < x->rows * x->cols; e++) {
            rng_normals(&more, 1, 18, RNG_INIT, (uint32_t)i, e);
            if (x->rank == 2) w[e] = more * 0.7f / sqrtf((float)c.channels);
            else w[e] += 0.2f * more;
        }
    }
    for (size_t i = 0; i < B * T; i++) {
        const Philox4 r = philox4x32(19, (uint32_t)i, 0, 0, 0);
        g->inputs[i] = (int32_t)(r.x[0] % c.vocab);
        g->targets[i] = (int32_t)(r.x[1] % c.vocab);
    }
}

static double loss_at(GPT2 *g, const ZoConfig *c, int query, float scale) {
    gpt2_perturb(g, c, 1, query, scale);
    gpt2_forward(g, g->inputs, NULL, B, T);
    return gpt2_head(g, g->targets, 0, false, NULL);
}

// Returns <grad, z>: over the numbers of the model, not its padding, eight at a time.
static double along(const GPT2 *g, const ZoConfig *c, int query) {
    double dot = 0;
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        float z[8];
        for (size_t e = 0; e < x->rows * x->cols; e++) {
            if (e % 8 == 0) zo_noise(z, 8, c, 1, (uint32_t)query, (uint32_t)i, e);
            dot += (double)g->grads[x->offset + e] * z[e % 8];
        }
    }
    return dot;
}

// Central differences against the backward pass, and better than one-sided ones.
static void difference_is_the_gradient(void) {
    const float eps = 1e-3f;
    for (int mode = 0; mode < 4; mode++) {
        GPT2 g;
        model_make(&g, mode >> 1);
        gpt2_perturb(&g, &(ZoConfig){0}, 0, 0, 0);
        gpt2_forward(&g, g.inputs, NULL, B, T);
        const double here = gpt2_head(&g, g.targets, 1.0f / (B * T), false, NULL);
        gpt2_backward(&g, g.inputs, false);
        const double norm = sqrt(gpt2_grad_norm_squared(&g));
        double worst = 0, one_sided = 0, sum = 0;
        for (int query = 0; query < 18; query++) {
            const ZoConfig c = config_of(1 + (uint64_t)query / 6, mode & 1, 18, ZO_FP32);
            const double up = loss_at(&g, &c, query, eps), want = along(&g, &c, query);
            const double down = loss_at(&g, &c, query, -eps);
            worst = fmax(worst, fabs((up - down) / (2 * (double)eps) - want) / norm);
            one_sided = fmax(one_sided, fabs((up - here) / (double)eps - want) / norm);
            sum += want * want;
        }
        CHECK(test_within(worst, 3e-3), "mode %d: %g", mode, worst);
        CHECK(one_sided > 4 * worst, "mode %d: the loss is not curved, %g", mode, one_sided);
        CHECK(sqrt(sum / 18) > 0.6 * norm && sqrt(sum / 18) < 1.4 * norm, "%g", sqrt(sum / 18));
        gpt2_free(&g);
    }
}

// A whole step of training, on tokens and on prompts: the update follows from the losses, and the
// weights, and nothing else, from the update.
static void step_is_its_definition(void) {
    static Feed f;
    use_threads(1);
    for (int mode = 0; mode < 4; mode++) {
        const bool task = mode & 1;
        const size_t accum = 1 + (size_t)(mode >> 1);
        const int queries = 3;
        GPT2 g;
        Error err;
        model_make(&g, 1);
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
    RUN(stochastic_rounding_keeps_the_mean);
    RUN(loops_are_their_definition);
    RUN(difference_is_the_gradient);
    RUN(step_is_its_definition);
    RUN(what_losses_come_to);
    return test_summary();
}
