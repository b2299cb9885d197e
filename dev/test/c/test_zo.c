// Tests of zeroth-order training: the noise, rounding, updates and loops of zo.h against their
// definitions, and the CPU trainer's steps against what these make of its losses. (The GPU's are
// the CPU's: test_zo_gpu.cu; so is the loss of words: test_model.cu.)
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
    enum { STEP = 20000, QUERY = 255, TENSOR = 147 };
    const uint64_t first = 1ull << 40;
    static const float normal[8] = {-0x1.3633eep-1f, -0x1.13399ep+0f, -0x1.53bfp-2f, 0x1.a3eb08p+0f,
                                    -0x1.4c8ddcp+0f, 0x1.5816d2p+0f, -0x1.099174p+0f,
                                    -0x1.c46dc4p-2f};
    static const char signs[] =
        "---++--+-+++--+-+-+-++-+++---+-+------++++++----+---+++++-+++--+"
        "-+-++++-+++-++-------+++-++++-+---+-+++--+-+-++++----++++-+--++-";
    ZoConfig c = config_of(0x123456789abcdef0, ZO_GAUSSIAN, 1, ZO_FP32);
    float z[64];
    zo_noise(z, 8, &c, STEP, QUERY, TENSOR, first + 8);
    for (int i = 0; i < 8; i++) CHECK(z[i] == normal[i], "number %d is %a", i, (double)z[i]);
    c.noise = ZO_RADEMACHER;
    for (uint64_t i = 0; i < 128; i++) {
        if (i % 64 == 0) zo_noise(z, 64, &c, STEP, QUERY, TENSOR, first + i);
        CHECK(z[i % 64] == (signs[i] == '+' ? 1.0f : -1.0f), "sign %d is %g", (int)i, z[i % 64]);
    }
}

// ---------------------------------------------------------------------------------------------
// Rounding

// Over all 65536 values of the random bits: nothing but the two neighbours, and the upper one as
// often as x is above the lower one, so that the mean is x. What is stored stays.
static void check_stochastic(float x, int storage) {
    const bool fp16 = storage == ZO_FP16;
    const double a = fabs((double)x), last = fp16 ? 65504 : 0x1.fep127;
    const int exponent = a == 0 ? 0 : (int)fmax(ilogb(a), fp16 ? -14 : -126);
    const double step = ldexp(1, exponent - (fp16 ? 10 : 7));
    const double below = fmin(floor(a / step) * step, last), above = fmin(below + step, last);
    const float lo = copysignf((float)below, x), hi = copysignf((float)above, x);
    int ups = 0, downs = 0;
    for (uint32_t random = 0; random < 1 << 16; random++) {
        const float got = zo_round(x, storage, random);
        if (same(&got, &lo, 1)) downs++;
        else if (same(&got, &hi, 1)) ups++;
    }
    const double want = above > below ? 65536 * (a - below) / step : 0;
    CHECK(ups + downs == 65536, "%a (storage %d): %d other results", (double)x, storage,
          65536 - ups - downs);
    // finer than the random bits are only numbers below 2^-16 in fp16
    CHECK(ups == want || (fp16 && a < 0x1p-16 && fabs(ups - want) < 1),
          "%a (storage %d): up %d times, not %g", (double)x, storage, ups, want);
}

static void stochastic_rounding_keeps_the_mean(void) {
    for (int storage = ZO_BF16; storage <= ZO_FP16; storage++) {
        for (uint32_t i = 0; i < 60; i++) {
            const Philox4 r = philox4x32(8, i, 0, 0, 0);
            const float u = (float)(int32_t)r.x[0] * 0x1p-31f;
            check_stochastic(ldexpf(u, -14 - (int)(i % 13)), storage);  // where fp16 ends
            check_stochastic(ldexpf(u, (int)(i % 16)), storage);
            check_stochastic(zo_round(u, storage, r.x[1] & 0xffff), storage);
        }
        const float end = storage == ZO_FP16 ? 65504 : 0x1.fep127f;
        const float some[] = {0.0f, -0.0f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-15f, 0x1p-16f,
                              0x1.004p-15f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1.fffffep-15f,
                              0x1p-126f, 0x1p-149f, -0x1.8p-14f, end, nextafterf(end, 0),
                              -nextafterf(end, INFINITY), FLT_MAX};
        for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
            check_stochastic(some[i], storage);
        for (uint32_t nan = 0x7fffffff; nan != 0; nan = nan == 0x7fffffff ? 0xffffffff : 0)
            CHECK(isnan(zo_round(from_bits(nan), storage, 0xffff)), "NaN %08x", (unsigned)nan);
        CHECK(zo_round(-INFINITY, storage, 0xffff) == -INFINITY, "an overflow is hidden");
    }
    CHECK(zo_round(0x1.fffffep-3f, ZO_FP32, 0xffff) == 0x1.fffffep-3f, "fp32 is not rounded");
}

// ---------------------------------------------------------------------------------------------
// Updates

// Element e of a direction.
static float noise_at(const ZoConfig *c, size_t step, int query, uint32_t tensor, uint64_t e) {
    float z[8];
    zo_noise(z, 8, c, (uint32_t)step, (uint32_t)query, tensor, e / 8 * 8);
    return z[e % 8];
}

// What an update makes of element e of a tensor, each operation written out: any other order gives
// other bits. A stored number rounds up by a draw of its own, which is none of the noise's.
static float updated_by_definition(float x, const ZoConfig *c, const ZoUpdate *u, uint32_t tensor,
                                   bool decay, uint64_t e) {
    if (decay) x = fmaf(-u->shrink, x, x);
    for (int j = 0; j < c->queries; j++)
        x = fmaf(-u->scale[j], noise_at(c, u->step, j, tensor, e), x);
    const Philox4 r = philox4x32(c->seed, (uint32_t)(e / 8), 0xffff0000u | e >> 35, tensor,
                                 u->step);
    return zo_round(x, c->storage, r.x[e % 8 / 2] >> 16 * (e % 2) & 0xffff);
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
        ZoUpdate u = {3, 1e-5f, {1e-4f, -3e-4f}};
        rng_normals(once, ROOM, 77, RNG_INIT, 1, 0);
        for (size_t i = 0; i < ROOM; i++) {
            once[i] = zo_round(0.02f * once[i], c.storage, 0);
            want_w[i] = i < N ? fmaf(-1e-3f, noise_at(&c, 6, 1, 4, first + i), once[i]) : 1234.5f;
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

static void model_make(GPT2 *g) {
    Error err;
    memset(g, 0, sizeof *g);
    g->config = (GPT2Config){.layers = 2, .heads = 2, .channels = 16, .context = T + 1, .vocab = 50,
                             .tied = 1};
    if (!gpt2_finish(&g->config, &err)) die("%s", err.text);
    g->table = gpt2_table(&g->config);
    g->max_B = B;
    g->max_T = T;
    g->training = g->zeroth = true;
    gpt2_allocate(g, 0, true);
    gpt2_init(&g->table, g->theta, 17);
}

// Makes the weights that are used: theta + scale z, in the model's numbers, not in its padding.
// With an update, updates theta instead.
static void weights_by_definition(GPT2 *g, float *theta, const ZoConfig *c, size_t step, int query,
                                  float scale, const ZoUpdate *u) {
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *x = &g->table.tensors[i];
        for (size_t e = 0; e < x->rows * x->cols; e++) {
            float *w = &theta[x->offset + e];
            if (u != NULL) *w = updated_by_definition(*w, c, u, (uint32_t)i, x->rank == 2, e);
            else g->params[x->offset + e] =
                fmaf(scale, noise_at(c, step, query, (uint32_t)i, e), *w);
        }
    }
}

// A whole step of training, on tokens and on prompts: the update follows from the losses, and the
// weights, and nothing else, from the update.
static void step_is_its_definition(void) {
    static Feed f;
    use_threads(1);
    for (int mode = 0; mode < 2; mode++) {  // tokens; prompts, in two micro-batches
        const size_t accum = 1 + (size_t)mode;
        const int queries = 3;
        GPT2 g;
        Error err;
        model_make(&g);
        feed_fill(&f, &g.config, B, T, g.config.vocab, mode);
        f.r.o.accum = accum;
        f.r.o.seed = 3;
        f.r.o.weight_decay = 0.1;
        f.r.step_tokens = B * T * accum;
        const ZoConfig c = config_of(70, mode, queries, ZO_FP32);
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
                    const float scale = i % 2 == 0 ? c.eps : -c.eps;
                    weights_by_definition(&g, want, &c, step, i / 2, scale, NULL);
                    gpt2_forward(&g, g.inputs, NULL, B, T);
                    side[i] += gpt2_loss(&g, &f.r, 0, false, &right) / (double)accum;
                }
            }
            zo_estimate(&u, &c, step, lr, 0.1, side, &want_loss, &want_norm);
            weights_by_definition(&g, want, &c, step, 0, 0, &u);
            f.r.o.lr = lr;
            f.r.o.schedule = SCHEDULE_CONSTANT;
            const StepResult x = mezo_step(&g, &f.r, step);
            CHECK(x.loss == want_loss && x.norm == want_norm && x.loss > 0 && x.norm > 0,
                  "mode %d: loss %.9g, not %.9g", mode, x.loss, want_loss);
            CHECK(same(g.theta, want, n) && same(g.params, want, n), "mode %d, step %zu: weights",
                  mode, step);
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

// Losses that are no numbers are no update.
static void what_losses_come_to(void) {
    const ZoConfig c = {1, 0.5f, 2, ZO_GAUSSIAN, ZO_FP32};
    ZoUpdate u;
    double loss, norm;
    zo_estimate(&u, &c, 1, 0.1, 0.2, (double[]){5, 3, 1, 4}, &loss, &norm);
    CHECK(loss == 3.25 && norm == sqrt(6.5), "loss %g, norm %g", loss, norm);
    CHECK(u.step == 1 && u.shrink == (float)(0.1 * 0.2)
          && u.scale[0] == 0.1f && u.scale[1] == (float)(0.1 * -3 / 2), "%g", (double)u.scale[1]);
    zo_estimate(&u, &c, 2, 0.1, 0.2, (double[]){5, NAN, 1, 4}, &loss, &norm);
    CHECK(u.step == 0 && isnan(loss), "an update of what is no number");
    zo_estimate(&u, &c, 3, 1e30, 0.2, (double[]){5, 3, 1, 4}, &loss, &norm);
    CHECK(u.step == 0 && loss == 3.25, "an update that is too large");
}

int main(void) {
    RUN(noise_is_what_it_was);
    RUN(stochastic_rounding_keeps_the_mean);
    RUN(loops_are_their_definition);
    RUN(step_is_its_definition);
    RUN(what_losses_come_to);
    return test_summary();
}
