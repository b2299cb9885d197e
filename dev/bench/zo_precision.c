// zo_precision: the measured tables of doc/rounding.md, doc/zeroth_order.md and doc/noise.md.
//     zo_precision rounding            what becomes of small updates in 16 bits: about a minute
//     zo_precision gradient [file]     how good the estimate is, on tiny models that learn `file`
//     zo_precision noise               what a random number costs
//     zo_precision normal [bits]       how normal 2^bits numbers are: 32 takes minutes
//     zo_precision moments             AdamW's moments in bf16: half a minute
// The first two print the same figures on every machine, up to the order of sums.
#define TESTING
#include "../../train_gpt2.c"
#include "../test/first_values.h"
#include "../test/gpt2_free.h"
#include "../tool.h"

static const char *const storage_name[] = {"fp32", "bf16", "fp16"};

// The distance from x to the next number above it that the storage holds.
static double spacing(double x, int storage) {
    const int digits = storage == ZO_FP32 ? 24 : storage == ZO_FP16 ? 11 : 8;
    const int e = ilogb(fabs(x));
    return ldexp(1, (storage == ZO_FP16 && e < -14 ? -14 : e) - digits + 1);
}

// The nearest number that the storage holds.
static float nearest(float x, int storage) {
    if (storage == ZO_FP32 || x == 0) return x;
    const double unit = spacing(x, storage);
    return (float)(rint(x / unit) * unit);
}

// ---------------------------------------------------------------------------------------------
// rounding

enum { ELEMENTS = 1 << 18 };

// Weights as they are in a model: normal, standard deviation 0.02, as the storage holds them.
static void weights(float *w, size_t n, int storage) {
    rng_normals(w, n, 7, RNG_INIT, 0, 0);
    for (size_t i = 0; i < n; i++) w[i] = nearest(0.02f * w[i], storage);
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void spacings(float *w) {
    printf("distance to the next weight, and the share of weights that a change of c leaves as it "
           "was\n        median     10 %%       90 %%      c = 1e-7    1e-6    1e-5    1e-4\n");
    for (int s = ZO_FP32; s <= ZO_FP16; s++) {
        size_t kept[4] = {0};
        weights(w, ELEMENTS, s);
        for (size_t i = 0; i < ELEMENTS; i++)
            for (int k = 0; k < 4; k++)
                kept[k] += nearest(w[i] + 1e-7f * powf(10, (float)k), s) == w[i];
        for (size_t i = 0; i < ELEMENTS; i++) w[i] = (float)spacing(w[i], s);
        qsort(w, ELEMENTS, sizeof *w, by_value);
        printf("%s  %9.2g  %9.2g  %9.2g     ", storage_name[s], w[ELEMENTS / 2], w[ELEMENTS / 10],
               w[ELEMENTS / 10 * 9]);
        for (int k = 0; k < 4; k++) printf("  %6.3f", (double)kept[k] / ELEMENTS);
        printf("\n");
    }
}

// MeZO's way: w += eps z; w -= 2 eps z; w += eps z, each operation rounded, z too.
static void in_place(float *w, float *first) {
    enum { STEPS = 4096 };
    const float factor[3] = {1, -2, 1};
    printf("\n+ eps z, - 2 eps z, + eps z in place, eps 1e-3: rms distance from the start, and the "
           "share that moved\n           1 step           16          256         4096\n");
    for (int s = ZO_FP32; s <= ZO_FP16; s++) {
        const ZoConfig c = {.seed = 1, .noise = ZO_GAUSSIAN};
        const float eps = nearest(1e-3f, s);
        const size_t n = ELEMENTS / 16;
        weights(w, n, s);
        memcpy(first, w, n * sizeof *w);
        printf("%s", storage_name[s]);
        for (uint32_t step = 1; step <= STEPS; step++) {
            #pragma omp parallel for
            for (size_t at = 0; at < n; at += 64) {
                float z[64];
                zo_noise(z, 64, &c, step, 0, 0, at);
                for (size_t i = 0; i < 64; i++) {
                    z[i] = nearest(z[i], s);
                    for (int k = 0; k < 3; k++) {
                        const float move = nearest(factor[k] * z[i] * eps, s);
                        w[at + i] = nearest(w[at + i] + move, s);
                    }
                }
            }
            if (step != 1 && step != 16 && step != 256 && step != STEPS) continue;
            double squares = 0;
            size_t moved = 0;
            for (size_t i = 0; i < n; i++) {
                const double d = (double)w[i] - first[i];
                squares += d * d;
                moved += w[i] != first[i];
            }
            printf("   %.2g  %.2f", sqrt(squares / (double)n), (double)moved / (double)n);
        }
        printf("\n");
    }
}

// 64 updates of size lr |g| by zo_apply(), as the trainers do them. What the stored weights moved,
// by what was intended: share = <moved, intended> / |intended|^2, and the rest, |moved - share
// intended| / |intended|.
static void survival(float *w) {
    printf("\nshare of 64 updates that survives | what rounding adds, by what was intended\n"
           "                          lr |g| = 1e-7          1e-6          1e-5          1e-4\n");
    for (int storage = ZO_BF16; storage <= ZO_FP16; storage++) {
        weights(w, ELEMENTS, storage);
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            const ZoConfig c = {.seed = 2, .noise = ZO_GAUSSIAN, .queries = 1,
                                .storage = stochastic ? storage : ZO_FP32};
            const ZoConfig exact = {.seed = 2, .noise = ZO_GAUSSIAN, .queries = 1};
            printf("%s  %-10s  ", storage_name[storage], stochastic ? "stochastic" : "nearest");
            for (int k = 0; k < 4; k++) {
                double dot = 0, norm = 0, moved = 0;
                #pragma omp parallel for reduction(+ : dot, norm, moved)
                for (size_t at = 0; at < ELEMENTS; at += 64) {
                    float th[64], sum[64] = {0};
                    memcpy(th, w + at, sizeof th);
                    for (uint32_t step = 1; step <= 64; step++) {
                        const ZoUpdate u = {step, 0, {1e-7f * powf(10, (float)k)}};
                        zo_apply(th, 64, &c, &u, 0, false, at);
                        zo_apply(sum, 64, &exact, &u, 0, false, at);
                        if (stochastic) continue;
                        for (size_t i = 0; i < 64; i++) th[i] = nearest(th[i], storage);
                    }
                    for (size_t i = 0; i < 64; i++) {
                        const double d = (double)th[i] - w[at + i];
                        dot += d * sum[i];
                        norm += (double)sum[i] * sum[i];
                        moved += d * d;
                    }
                }
                const double share = dot / norm;
                printf("  %6.3f | %4.1f", share, sqrt(moved / norm - share * share));
            }
            printf("\n");
        }
    }
}

static void losses(void) {
    printf("\nsteps in which g can change, eps 1e-3, if a loss is stored as\n"
           "loss       fp32       fp16       bf16\n");
    for (int i = 0; i < 3; i++) {
        const double loss = i == 0 ? 0.7 : i == 1 ? 3 : 10;
        printf("%4.1f", loss);
        for (int s = ZO_FP32; s <= ZO_FP16; s++) printf("  %9.2g", spacing(loss, s) / 2e-3);
        printf("\n");
    }
}

// ---------------------------------------------------------------------------------------------
// gradient

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static double loss_of(GPT2 *g) {
    gpt2_forward(g, g->inputs, NULL, g->max_B, g->max_T);
    return gpt2_head(g, g->targets, 0, false, NULL);
}

// Loss at theta + h u.
static double loss_at(GPT2 *g, const float *u, double h) {
    for (size_t i = 0; i < g->table.elements; i++) g->params[i] = fmaf((float)h, u[i], g->theta[i]);
    return loss_of(g);
}

static double loss_along(GPT2 *g, const ZoConfig *c, size_t step, float eps) {
    gpt2_perturb(g, c, step, 0, eps);
    return loss_of(g);
}

// A direction, whole; the padding stays zero.
static void direction(float *z, const GPT2 *g, const ZoConfig *c, size_t step) {
    memset(z, 0, g->table.elements * sizeof *z);
    for (int i = 0; i < g->table.count; i++) {
        const GPT2Tensor *t = &g->table.tensors[i];
        float *part = z + t->offset;
        zo_perturb(part, part, t->rows * t->cols, c, step, 0, 1, (uint32_t)i, 0);
    }
}

static void batch(GPT2 *g, const char *text, size_t bytes, uint32_t number) {
    for (size_t b = 0; b < g->max_B; b++) {
        const size_t at = philox4x32(3, number, (uint32_t)b, 0, 0).x[0] % (bytes - g->max_T);
        for (size_t t = 0; t < g->max_T; t++) {
            g->inputs[b * g->max_T + t] = text[at + t] & 127;
            g->targets[b * g->max_T + t] = text[at + t + 1] & 127;
        }
    }
}

static void tiny_open(GPT2 *g, size_t layers, size_t channels, const char *text, size_t bytes,
                       int steps) {
    Error err;
    memset(g, 0, sizeof *g);
    if (!gpt2_preset(&g->config, "nano")) die("no nano");
    g->config.layers = layers;
    g->config.heads = 2;
    g->config.channels = channels;
    g->config.context = 32;
    g->config.vocab = 128;
    g->config.ffn = 0;
    if (!gpt2_finish(&g->config, &err)) die("%s", err.text);
    g->table = gpt2_table(&g->config);
    g->max_B = 8;
    g->max_T = 32;
    g->training = g->zeroth = true;
    gpt2_allocate(g, 0, true);
    gpt2_init(&g->table, g->params, 1);
    memset(g->m, 0, g->table.elements * sizeof(float));
    memset(g->v, 0, g->table.elements * sizeof(float));
    for (int step = 1; step <= steps + 1; step++) {  // the last one only makes the gradient
        batch(g, text, bytes, (uint32_t)step);
        gpt2_forward(g, g->inputs, NULL, g->max_B, g->max_T);
        gpt2_head(g, g->targets, 1.0f / (float)(g->max_B * g->max_T), false, NULL);
        gpt2_backward(g, g->inputs, false);
        if (step > steps) break;
        const double norm = gpt2_grad_norm_squared(g);
        const AdamStep adam = adam_step_prepare(2e-3, 0.9, 0.95, 1e-8, 0, (size_t)step,
                                                clip_scale(norm, 1));
        gpt2_update(g, &adam);
    }
    memcpy(g->theta, g->params, g->table.elements * sizeof(float));
}

// Averages of g z against the gradient.
static void cosines(GPT2 *g, size_t P) {
    enum { MOST = 1 << 14 };
    const size_t n = g->table.elements;
    float *z = (float *)alloc_or_fail(n, sizeof *z, "direction");
    double *sum[2];
    const float e = 1e-3f;
    printf("directions n   n / (n + P + 1)   cos^2, gaussian   cos^2, rademacher\n");
    double cosine[2][32];
    for (int noise = 0; noise < 2; noise++) {
        const ZoConfig c = {.seed = 5, .eps = e, .queries = 1, .noise = noise};
        sum[noise] = (double *)calloc(n, sizeof(double));
        if (sum[noise] == NULL) fail("out of memory");
        for (int k = 1, row = 0; k <= MOST; k++) {
            const double d = (loss_along(g, &c, (size_t)k, e) - loss_along(g, &c, (size_t)k, -e))
                             / (2 * (double)e);
            direction(z, g, &c, (size_t)k);
            double ab = 0, aa = 0, bb = 0;
            for (size_t i = 0; i < n; i++) {
                const double s = sum[noise][i] += d * z[i];
                ab += s * g->grads[i];
                aa += s * s;
                bb += (double)g->grads[i] * g->grads[i];
            }
            if ((k & (k - 1)) == 0) cosine[noise][row++] = ab * ab / aa / bb;
        }
        free(sum[noise]);
    }
    for (int k = 1, row = 0; k <= MOST; k *= 2, row++)
        if (row % 2 == 0)
            printf("%12d %17.5f %17.5f %19.5f\n", k, k / (double)(k + P + 1), cosine[0][row],
                   cosine[1][row]);
    free(z);
}

// The error of g, by the root mean square of g itself.
static void sizes_of_eps(GPT2 *g) {
    enum { TRIES = 64 };
    float *z = (float *)alloc_or_fail(g->table.elements, sizeof *z, "direction");
    printf("\n    eps   error of g / rms of g   mean of both losses - loss\n");
    memcpy(g->params, g->theta, g->table.elements * sizeof(float));
    const double loss = loss_of(g);
    for (double eps = 1e-1; eps > 5e-7; eps /= eps < 2e-2 && eps > 2e-3 ? 3.1622776601683795 : 10) {
        const ZoConfig c = {.seed = 6, .eps = (float)eps, .queries = 1, .noise = ZO_GAUSSIAN};
        double squares = 0, error = 0, above = 0;
        for (size_t k = 1; k <= TRIES; k++) {
            const double plus = loss_along(g, &c, k, c.eps), minus = loss_along(g, &c, k, -c.eps);
            direction(z, g, &c, k);
            const double exact = dot(g->grads, z, g->table.elements);
            const double e = (plus - minus) / (2 * (double)c.eps) - exact;
            squares += exact * exact;
            error += e * e;
            above += ((plus + minus) / 2 - loss) / TRIES;
        }
        printf("%7.1g %17.2g %26.2g\n", eps, sqrt(error / squares), above);
    }
    free(z);
}

// Curvature: what the size of a step may be. trace H = E z.Hz; along the gradient a: a.Ha / a.a.
static void curvature(GPT2 *g, const char *name, size_t P) {
    enum { TRIES = 512, STEPS = 256 };
    const size_t n = g->table.elements;
    float *u = (float *)alloc_or_fail(n, sizeof *u, "gradient");
    const double aa = dot(g->grads, g->grads, n), eps = 1e-2, h = 2e-2;
    const ZoConfig c = {.seed = 8, .eps = (float)eps, .queries = 1, .noise = ZO_GAUSSIAN};
    for (size_t i = 0; i < n; i++) u[i] = (float)(g->grads[i] / sqrt(aa));
    const double loss = loss_at(g, u, 0);
    double trace = 0;
    for (size_t k = 1; k <= TRIES; k++)
        trace += (loss_along(g, &c, k, c.eps) + loss_along(g, &c, k, -c.eps) - 2 * loss)
                 / (eps * eps) / TRIES;
    const double along = (loss_at(g, u, h) + loss_at(g, u, -h) - 2 * loss) / (h * h);
    // The best step of each, and what it gains by the second-order expansion; and by trying.
    const double lr = 1 / (trace + 2 * along), sgd = loss - loss_at(g, u, -sqrt(aa) / along);
    double gained = 0;
    for (size_t k = TRIES + 1; k <= TRIES + STEPS; k++) {
        const double d = (loss_along(g, &c, k, 1e-3f) - loss_along(g, &c, k, -1e-3f)) / 2e-3;
        gained += (loss - loss_along(g, &c, k, (float)(-lr * d))) / STEPS;
    }
    printf("%-26s %7zu %6.2f %6.2f %9.1f %7.2f %9.0f %9.1e %9.1e  %9.1e %9.1e\n", name, P, loss,
           sqrt(aa), trace, along, trace / along + 2, lr, aa * lr / 2, gained, sgd);
    free(u);
}

static void gradient(const char *path) {
    size_t bytes;
    const char *text = (const char *)file_map(path, &bytes);
    GPT2 g;
    for (int i = 0; i < 2; i++) {
        tiny_open(&g, 1, 16, text, bytes, i == 0 ? 0 : 1000);
        size_t P = 0;
        for (int k = 0; k < g.table.count; k++) P += g.table.tensors[k].size;
        if (i == 0) {
            printf("1 layer, 16 channels, %zu parameters, untrained\n", P);
            cosines(&g, P);
        } else {
            printf("\nthe same after 1000 steps of AdamW\n");
            sizes_of_eps(&g);
        }
        gpt2_free(&g);
    }
    printf("\nafter 1000 steps of AdamW; a: the gradient, H: the loss's second derivatives\n"
           "layers x channels     P   loss   |a|   trace H   aHa/aa   slower   best lr   gain: "
           "predicted, measured, by the gradient's best step\n");
    for (int i = 0; i < 3; i++) {
        const size_t layers = (size_t)1 << i, channels = 16 * layers;
        char name[100];
        snprintf(name, sizeof name, "%zu x %zu", layers, channels);
        tiny_open(&g, layers, channels, text, bytes, 1000);
        size_t P = 0;
        for (int k = 0; k < g.table.count; k++) P += g.table.tensors[k].size;
        curvature(&g, name, P);
        gpt2_free(&g);
    }
    munmap((void *)text, bytes);
}

// ---------------------------------------------------------------------------------------------
// noise

static void noise_rates(void) {
    enum { ROUNDS = 9 };
    static const char *const name[] = {"gaussian", "rademacher"};
    GPT2 g;
    Error err;
    memset(&g, 0, sizeof g);
    if (!gpt2_preset(&g.config, "nano")) die("no nano");
    g.config.layers = 24;
    if (!gpt2_finish(&g.config, &err)) die("%s", err.text);
    g.table = gpt2_table(&g.config);
    g.max_B = g.max_T = 1;
    g.zeroth = true;
    gpt2_allocate(&g, 0, true);
    const size_t n = g.table.elements;
    memset(g.theta, 0, n * sizeof *g.theta);
    printf("nanoseconds per weight, %.1f M weights, best of %d, %d threads\n", 1e-6 * (double)n,
           ROUNDS, omp_get_max_threads());
    double best[3] = {1e30, 1e30, 1e30};
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < 3; k++) {
            const ZoConfig c = {.seed = 1, .eps = 1e-3f, .noise = k % 2};
            const double start = seconds_now();
            if (k < 2) gpt2_perturb(&g, &c, (size_t)r, 0, c.eps);
            else
                #pragma omp parallel for simd
                for (size_t i = 0; i < n; i++) g.params[i] = g.theta[i] + c.eps;
            best[k] = fmin(best[k], seconds_now() - start);
        }
    for (int k = 0; k < 3; k++)
        printf("theta + %-17s %.2f\n", k < 2 ? name[k] : "a constant", 1e9 * best[k] / (double)n);
    gpt2_free(&g);
}

// ---------------------------------------------------------------------------------------------
// normal: of 2^bits Gaussian numbers, all in standard deviations of what independent normal numbers
// would show; and their exact distribution

static double factorial2(int k) { return k < 2 ? 1 : k * factorial2(k - 2); }  // k (k - 2) ..

static void normal_fill(float *x, size_t n, uint64_t first, int stream) {
    const ZoConfig c = {.seed = 1 + (stream == 4), .noise = ZO_GAUSSIAN};
    for (size_t at = 0; at < n; at += 64)
        zo_noise(x + at, 64, &c, 1 + (stream == 1), stream == 2, stream == 3, first + at);
}

// The characteristic function of a number, the eighth power of that of one x, less a normal one's.
enum { FREQUENCIES = 4000 };

static void normal_excess(double excess[FREQUENCIES]) {
    #pragma omp parallel for
    for (int k = 0; k < FREQUENCIES; k++) {
        const double t = 0.01 * k;
        double sum = 0;
        for (int u = 1; u < 32768; u += 2) sum += cos(t * (double)((float)u * rng_slope((float)u)));
        excess[k] = pow(sum / 16384, 8) - exp(-t * t / 2);
    }
}

// What the exact share of numbers beyond a, on one side, differs by from a normal distribution's.
static double normal_difference(const double excess[FREQUENCIES], double a) {
    double sum = 0;
    for (int k = 1; k < FREQUENCIES; k++) sum += sin(0.01 * k * a) / k * excess[k];
    return -sum / 3.14159265358979323846;
}

static void normal(int bits) {
    enum { N = 4096, MORE = 64, LAGS = 8, STREAMS = 5, PAIRS = LAGS + STREAMS - 1, BINS = 2048 };
    static const char *const names[] = {"next step", "next query", "next tensor", "next seed"};
    static const double tails[] = {3, 4, 4.5, 5, 5.5, 6};
    double moment[9] = {0}, pair[PAIRS] = {0}, square[PAIRS] = {0};
    size_t bin[BINS] = {0}, tail[6] = {0};
    double excess[FREQUENCIES], farthest = 0;
    const double count = ldexp(1, bits), sd = sqrt(count);
    #pragma omp parallel for reduction(+ : moment, pair, square, bin, tail)
    for (uint64_t first = 0; first < (uint64_t)1 << bits; first += N) {
        float x[STREAMS][N + MORE];
        for (int s = 0; s < STREAMS; s++) normal_fill(x[s], N + MORE, first, s);
        for (size_t i = 0; i < N; i++) {
            const double z = x[0][i];
            double power = 1;
            for (int k = 1; k <= 8; k++) moment[k] += power *= z;
            for (int t = 0; t < 6; t++) tail[t] += fabs(z) > tails[t];
            bin[(int)fmin(fmax(128 * (z + 8), 0), BINS - 1)]++;
        }
        for (int p = 0; p < PAIRS; p++) {
            const float *y = p < LAGS ? x[0] + p + 1 : x[p - LAGS + 1];
            float a = 0, b = 0;
            #pragma omp simd reduction(+ : a, b)
            for (size_t i = 0; i < N; i++) {
                a += x[0][i] * y[i];
                b += (x[0][i] * x[0][i] - 1) * (y[i] * y[i] - 1);
            }
            pair[p] += a;
            square[p] += b;
        }
    }
    normal_excess(excess);
    for (double a = 0; a < 8; a += 0.01)
        farthest = fmax(farthest, fabs(normal_difference(excess, a)));
    printf("2^%d numbers; the difference from the normal distribution, by its standard deviation, "
           "and exactly\n", bits);
    for (int k = 1; k <= 8; k++) {
        const double want = k % 2 == 0 ? factorial2(k - 1) : 0;
        const double off = moment[k] / count - want;
        printf("moment %d            %9.2g  %6.2f\n", k, off,
               off * sd / sqrt(factorial2(2 * k - 1) - want * want));
    }
    for (int t = 0; t < 6; t++) {
        const double p = erfc(tails[t] / sqrt(2)), want = p * count;
        printf("beyond %-3g sigma     %9.2g  %6.2f  %8.2g\n", tails[t], (double)tail[t] / want - 1,
               ((double)tail[t] - want) / sqrt(want),
               2 * normal_difference(excess, tails[t]) / p);
    }
    double below = 0, distance = 0, chi = 0, rest = 0, seen = 0;
    int cells = -1;
    for (int b = 0; b < BINS; b++) {  // cells where at least 32 are expected
        const double hi = b == BINS - 1 ? INFINITY : (b + 1) / 128.0 - 8;
        const double lo = b == 0 ? -INFINITY : b / 128.0 - 8;
        below += (double)bin[b];
        distance = fmax(distance, fabs(below / count - 0.5 * erfc(-hi / sqrt(2))));
        rest += count * 0.5 * (lo < 0 ? erfc(-hi / sqrt(2)) - erfc(-lo / sqrt(2))
                                      : erfc(lo / sqrt(2)) - erfc(hi / sqrt(2)));
        seen += (double)bin[b];
        if (rest < 32) continue;
        chi += (seen - rest) * (seen - rest) / rest;
        rest = seen = 0;
        cells++;
    }
    printf("largest distance of the distributions %.2g, exactly %.2g; times the root of the number "
           "%.2f (5 %%: 1.36)\n", distance, farthest, distance * sd);
    printf("chi squared %.1f for %d, %.2f standard deviations\n", chi, cells,
           (chi - cells) / sqrt(2 * cells));
    printf("correlations        of z    of z^2\n");
    for (int p = 0; p < PAIRS; p++) {
        if (p < LAGS) printf("element + %d    ", p + 1);
        else printf("%-15s", names[p - LAGS]);
        printf("%9.2f %9.2f\n", pair[p] / sd, square[p] / sd / 2);
    }
}

// ---------------------------------------------------------------------------------------------
// moments: AdamW's, stored in fp32, in bf16 to the nearest number, and in bf16 at random

enum { MOMENTS = 1 << 14 };

typedef struct { float m[MOMENTS], v[MOMENTS]; } Moments;

// One step of all elements with these gradients; how: 0 fp32, 1 nearest, 2 at random.
static void moments_step(Moments *x, const float *g, const AdamStep *s, int how) {
    for (uint32_t i = 0; i < MOMENTS; i++) {
        float p = 0;
        uint16_t m = f32_to_bf16(x->m[i]), v = f32_to_bf16(x->v[i]);  // exact, unless fp32
        if (how == 2) {
            adam_bf16(&p, &m, &v, g[i], s, 0, i);
        } else {
            adam_scalar(&p, &x->m[i], &x->v[i], g[i], s, 0);
            if (how == 0) continue;
            m = f32_to_bf16(x->m[i]);
            v = f32_to_bf16(x->v[i]);
        }
        x->m[i] = bf16_to_f32(m);
        x->v[i] = bf16_to_f32(v);
    }
}

// Against those in fp32: the mean of v; the root mean square of the difference of v / E v, m and
// m / sqrt(v), by that of m and of m / sqrt(v).
static void moments_row(const Moments *x, const Moments *exact, const char *name) {
    double v = 0, exact_v = 0, dv = 0, dm = 0, mm = 0, du = 0, uu = 0;
    for (int i = 0; i < MOMENTS; i++) {
        const double u = x->m[i] / sqrt(x->v[i]), exact_u = exact->m[i] / sqrt(exact->v[i]);
        v += x->v[i];
        exact_v += exact->v[i];
        dv += pow((double)x->v[i] / exact->v[i] - 1, 2);
        dm += pow((double)x->m[i] - exact->m[i], 2);
        mm += pow((double)exact->m[i], 2);
        du += pow(u - exact_u, 2);
        uu += exact_u * exact_u;
    }
    printf("  %-8s  v: mean %.4f, off by %.4f   m: off by %.4f   step: off by %.4f\n", name,
           v / exact_v, sqrt(dv / MOMENTS), sqrt(dm / mm), sqrt(du / uu));
}

// Gradients of size 1 for 5 / (1 - beta2) steps, and then of size 1/10 for 3 / (1 - beta2).
static void moments(void) {
    static const double betas[] = {0.95, 0.99, 0.999};
    static const char *const names[] = {"fp32", "nearest", "random"};
    float *g = ALLOC(float, MOMENTS, "gradients");
    Moments *x = ALLOC(Moments, 3, "moments");
    for (int b = 0; b < 3; b++) {
        const size_t first = (size_t)(5 / (1 - betas[b]) + 0.5);
        const size_t last = first + (size_t)(3 / (1 - betas[b]) + 0.5);
        memset(x, 0, 3 * sizeof *x);
        for (size_t t = 1; t <= last; t++) {
            const AdamStep s = adam_step_prepare(0, 0.9, betas[b], 1e-8, 0, t,
                                                 t <= first ? 1 : 0.1);
            rng_normals(g, MOMENTS, 5, (uint32_t)t, 0, 0);
            #pragma omp parallel for
            for (int how = 0; how < 3; how++) moments_step(&x[how], g, &s, how);
            if (t != first && t != last) continue;
            printf("beta2 %g, step %zu%s\n", betas[b], t,
                   t == last ? ", gradients a tenth of what they were" : "");
            for (int how = 1; how < 3; how++) moments_row(&x[how], &x[0], names[how]);
        }
    }
    free(g);
    free(x);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "rounding") == 0) {
        float *w = (float *)alloc_or_fail(2 * ELEMENTS, sizeof *w, "weights");
        spacings(w);
        in_place(w, w + ELEMENTS);
        survival(w);
        losses();
        free(w);
    } else if (strcmp(what, "gradient") == 0) {
        gradient(argc > 2 ? argv[2] : "LICENSE");
    } else if (strcmp(what, "noise") == 0) {
        noise_rates();
    } else if (strcmp(what, "normal") == 0) {
        normal((int)(argc > 2 ? tool_number("bits", argv[2], 1, 40, true) : 28));
    } else if (strcmp(what, "moments") == 0) {
        moments();
    } else {
        die("usage: zo_precision rounding | gradient [file] | noise | normal [bits] | moments");
    }
    return 0;
}
