// Tests of adam.h: the loop against the scalar definition bit for bit, the definition against
// AdamW in double precision, bf16 rounding, and the norm.
#include "../../../tide/cpu/adam_fast.h"
#include "../../../tide/base/rng.h"
#include "../numbers.h"
#include "../test.h"

static bool same_float(float a, float b) {
    return memcmp(&a, &b, 4) == 0 || (a != a && b != b);
}

// ---------------------------------------------------------------------------------------------
// bf16

static void bf16_rounds_to_nearest_even(void) {
    for (uint32_t b = 0; b < 1 << 16; b++) {
        const float f = bf16_to_f32((uint16_t)b);
        const uint32_t want = f != f ? b | 0x40 : b;
        CHECK(f32_to_bf16(f) == want, "%04x came back as %04x", (unsigned)b, f32_to_bf16(f));
    }
    for (uint32_t i = 0; i < 1 << 20; i++) {
        // every fourth is a tie, or next to one
        uint32_t bits = philox4x32(1, i, 0, 0, 0).x[0];
        if (i % 4 == 0) bits = (bits & 0xffff0000u) | (0x7fff + i / 4 % 3);
        const float f = from_bits(bits);
        const uint16_t got = f32_to_bf16(f), lo = (uint16_t)(bits >> 16), hi = (uint16_t)(lo + 1);
        if (f != f) {
            CHECK((got & 0x7fff) > 0x7f80 && got >> 15 == bits >> 31, "NaN %08x", (unsigned)bits);
            continue;
        }
        if ((bits & 0x7fffffff) >= 0x7f7f0000) continue;  // below
        const double d_lo = fabs((double)f - bf16_to_f32(lo));
        const double d_hi = fabs((double)f - bf16_to_f32(hi));
        const uint16_t want = d_lo < d_hi ? lo : d_hi < d_lo ? hi : lo % 2 == 0 ? lo : hi;
        CHECK(got == want, "%08x gave %04x, not %04x", (unsigned)bits, got, want);
    }
    CHECK(f32_to_bf16(FLT_MAX) == 0x7f80, "overflow is infinity");
    CHECK(f32_to_bf16(-FLT_MAX) == 0xff80, "overflow is infinity");
    CHECK(f32_to_bf16(from_bits(0x7f7f7fff)) == 0x7f7f, "largest finite");
    CHECK(f32_to_bf16(from_bits(0x7f7f8000)) == 0x7f80, "tie above the largest finite");
    CHECK(f32_to_bf16(from_bits(0x7f800001)) == 0x7fc0, "a NaN in the low bits only");
}

// ---------------------------------------------------------------------------------------------
// The loop is the definition

// A call for every element: no compiler can make vectors of this.
__attribute__((noinline))
static void one_element(float *p, float *m, float *v, float g, const AdamStep *s, float decay) {
    adam_scalar(p, m, v, g, s, decay);
}

// Weights are p, or in `half` and `low`, split.
typedef struct { float *p, *m, *v, *g; uint16_t *g16, *half, *low; } Arrays;

static Arrays arrays_make(size_t n) {
    const Arrays a = {floats(n), floats(n), floats(n), floats(n), ALLOC(uint16_t, n, "g16"),
                      ALLOC(uint16_t, n, "half"), ALLOC(uint16_t, n, "low")};
    return a;
}

static void arrays_free(Arrays *a) {
    free(a->p); free(a->m); free(a->v); free(a->g); free(a->g16);
    free(a->half); free(a->low);
}

// Ordinary values, with everything that is not ordinary in between.
static void arrays_fill(Arrays *a, size_t n, uint64_t seed) {
    static const uint32_t special[] = {
        0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x00800001, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x1f800000, 0x20000000, 0x3f800000};
    for (size_t i = 0; i < n; i++) {
        const Philox4 r = philox4x32(seed, (uint32_t)i, 1, 2, 3), which = philox4x32(seed,
            (uint32_t)i, 1, 2, 4);
        float z[8];
        rng_normal8(r, z);
        a->p[i] = z[0];
        a->m[i] = 1e-3f * z[1];
        a->v[i] = 1e-6f * z[2] * z[2];
        a->g[i] = 1e-2f * z[3];
        if (which.x[0] % 8 == 0) a->p[i] = from_bits(special[which.x[0] / 8 % 16]);
        if (which.x[1] % 8 == 0) a->m[i] = from_bits(special[which.x[1] / 8 % 16]);
        if (which.x[2] % 8 == 0) a->v[i] = from_bits(special[which.x[2] / 8 % 16] & 0x7fffffff);
        if (which.x[3] % 8 == 0) a->g[i] = from_bits(special[which.x[3] / 8 % 16]);
        if (which.x[3] % 64 == 1) a->g[i] = from_bits(r.x[0]);
        a->g16[i] = f32_to_bf16(a->g[i]);
    }
    master_move(a->half, a->low, a->p, n, false);
}

static float weight_at(const Arrays *a, size_t i, int is_split) {
    return is_split ? master_f32(a->half[i], a->low[i]) : a->p[i];
}

// Of an element with this master: are these what is stored of it?
static int same_weight(float p, const Arrays *a, size_t i, int is_split) {
    if (is_split && !isnan(p) && a->half[i] != master_weight(p)) return 0;
    return same_float(p, weight_at(a, i, is_split));
}

static void copy_inputs(Arrays *to, const Arrays *from, size_t n) {
    memcpy(to->p, from->p, n * 4);
    memcpy(to->m, from->m, n * 4);
    memcpy(to->v, from->v, n * 4);
    memcpy(to->half, from->half, n * 2);
    memcpy(to->low, from->low, n * 2);
}

// Runs of all kinds in an arena of RUNS_END elements: many that are shorter than a chunk and start
// anywhere, empty ones, whole chunks, several chunks and a bit, with and without gaps.
enum { RUNS = 66, RUNS_END = 430000 };

static void runs_make(AdamRun *runs) {
    static const size_t longer[] = {ADAM_CHUNK, 3 * ADAM_CHUNK + 1, NORM_BLOCK, ADAM_CHUNK - 1,
                                    ADAM_CHUNK + NORM_BLOCK + 33, 5000};
    size_t at = 1;
    for (int i = 0; i < RUNS; i++) {
        runs[i].at = at;
        runs[i].length = i % 11 == 6 ? longer[i / 11] : (size_t)(i * i) % 97;
        runs[i].decay = i % 3 != 0;
        runs[i].index = 0xfffffff0u + 3 * at;  // crosses 2^32
        at += runs[i].length + (size_t)(i % 4 == 0 ? i : 0);
    }
    CHECK(at < RUNS_END, "%zu", at);
}

__attribute__((noinline))
static void one_element_bf16(float *p, uint16_t *m, uint16_t *v, float g, const AdamStep *s,
                             float decay, size_t index) {
    adam_bf16(p, m, v, g, s, decay, (uint32_t)index);
}

// By its words, from the bits: one of the two bf16 neighbours, by 16 bits of a hash of their own.
__attribute__((noinline))
static float rounded_weight(float p, const AdamStep *s, size_t index) {
    const uint32_t random = mix_bits((uint32_t)index ^ s->noise) * 0x9e3779b1u >> 16;
    if (isnan(p)) return p;
    return from_bits((float_bits(p) + random) & 0xffff0000);
}

// In every mode, with any threads, for any cut of the runs; with moments in fp32 or in bf16, which
// then take 2 bytes of each 4; and with weights that are rounded at random, without lower halves.
static void check_runs(int half, int rounded) {
    Arrays a = arrays_make(RUNS_END), b = arrays_make(RUNS_END), want = arrays_make(RUNS_END);
    AdamRun runs[RUNS], cut[2 * RUNS];
    runs_make(runs);
    for (int r = 0; r < RUNS; r++) {
        const size_t third = runs[r].length / 3 / NORM_BLOCK * NORM_BLOCK;
        cut[2 * r] = cut[2 * r + 1] = runs[r];
        cut[2 * r].length = third;
        cut[2 * r + 1].at += third;
        cut[2 * r + 1].index += third;
        cut[2 * r + 1].length -= third;
    }
    arrays_fill(&a, RUNS_END, 4);
    for (size_t i = 0; half && i < RUNS_END; i++) {
        ((uint16_t *)a.m)[i] = f32_to_bf16(a.m[i]);
        ((uint16_t *)a.v)[i] = f32_to_bf16(a.v[i]);
    }
    AdamStep s = adam_step_prepare(3e-4, 0.9, 0.999, 1e-8, 0.1, 10, 0.5);
    s.moments_bf16 = half;
    s.master_bf16 = rounded;
    for (size_t i = 0; rounded && i < RUNS_END; i++) {
        a.half[i] = f32_to_bf16(a.p[i]);
        a.low[i] = 0;
        a.p[i] = bf16_to_f32(a.half[i]);
    }
    // of a gradient; of a sum; of a sum and a gradient
    enum { FP32, SPLIT_FP32, SPLIT_BF16, SUM, SPLIT_SUM, SUM_FP32, SPLIT_SUM_BF16, MODES };
    float *sum = (float *)alloc_or_fail(RUNS_END, 4, "sum");
    rng_normals(sum, RUNS_END, 7, 0, 2, 0);
    for (int mode = FP32; mode < MODES; mode++) {
        const int is_split = mode != FP32 && mode != SUM && mode != SUM_FP32;
        const int is_half = mode == SPLIT_BF16 || mode == SPLIT_SUM_BF16;
        const int has_grad = mode != SUM && mode != SPLIT_SUM;
        copy_inputs(&want, &a, RUNS_END);
        for (size_t i = 0; i < RUNS_END; i++) want.p[i] = weight_at(&a, i, is_split);
        for (int r = 0; r < RUNS; r++)
            for (size_t k = 0, i = runs[r].at; k < runs[r].length; k++, i++) {
                const float decay = runs[r].decay ? s.weight_decay : 0.0f;
                float g = is_half ? bf16_to_f32(a.g16[i]) : a.g[i];
                if (mode >= SUM) g = has_grad ? fmaf(0.7f, g, sum[i]) : sum[i];
                if (half)
                    one_element_bf16(&want.p[i], (uint16_t *)want.m + i, (uint16_t *)want.v + i, g,
                                     &s, decay, runs[r].index + k);
                else one_element(&want.p[i], &want.m[i], &want.v[i], g, &s, decay);
                if (rounded) want.p[i] = rounded_weight(want.p[i], &s, runs[r].index + k);
            }
        for (int threads = 1; threads <= 7; threads++) {
            const bool cuts = threads % 2 == 0;
            use_threads(threads);
            copy_inputs(&b, &a, RUNS_END);
            const void *grad = is_half ? (const void *)a.g16 : (const void *)a.g;
            uint16_t *low = is_split && !rounded ? b.low : NULL;  // it stays as it is
            const AdamWork work = {is_split ? (void *)b.half : b.p, low, b.m, b.v, mode >= SUM ? sum : NULL,
                                   has_grad ? grad : NULL, is_half, 0, 0.7f, NULL,
                                   cuts ? cut : runs, cuts ? 2 * RUNS : RUNS, s, is_split};
            adam_work(&work);
            size_t wrong = 0;
            for (size_t i = 0; i < RUNS_END; i++) {
                const bool m = half ? ((uint16_t *)b.m)[i] == ((uint16_t *)want.m)[i]
                                    : same_float(b.m[i], want.m[i]);
                const bool v = half ? ((uint16_t *)b.v)[i] == ((uint16_t *)want.v)[i]
                                    : same_float(b.v[i], want.v[i]);
                wrong += !same_weight(want.p[i], &b, i, is_split) || !m || !v;
                wrong += rounded && b.low[i] != 0;
            }
            CHECK(wrong == 0, "%zu differ (mode %d, %d threads)", wrong, mode, threads);
            CHECK(!half || (memcmp((uint16_t *)b.m + RUNS_END, (uint16_t *)a.m + RUNS_END,
                                   RUNS_END * 2) == 0), "wrote past the moments");
        }
    }
    free(sum);
    use_threads(0);
    arrays_free(&a);
    arrays_free(&b);
    arrays_free(&want);
}

static void runs_are_scalar_with_any_threads(void) {
    for (int rounded = 0; rounded < 2; rounded++)
        for (int half = 0; half < 2; half++) check_runs(half, rounded);
}

// ---------------------------------------------------------------------------------------------
// Masters as a bf16 weight and 16 bits more

// What is put together is what was taken apart; and the weight is one of the two neighbours, the
// nearer one. All lower halves, of upper ones from all over; all others at the ends of a few.
static void masters_come_back(void) {
    size_t wrong = 0, far = 0;
    for (uint32_t upper = 0; upper < 1 << 16; upper++) {
        const uint32_t step = upper % 257 == 0 ? 1 : 0x7ffd;
        for (uint32_t lower = 0; lower < 1 << 16; lower += step) {
            const float p = from_bits(upper << 16 | lower);
            const uint16_t w = master_weight(p), low = master_low(p);
            const float back = master_f32(w, low);
            if (isnan(p)) {
                wrong += !isnan(bf16_to_f32(w)) || !isnan(back);
                continue;
            }
            wrong += memcmp(&back, &p, 4) != 0;
            if (!isfinite(p)) continue;
            const double down = fabs((double)p - from_bits(upper << 16));
            const float above = from_bits((upper + 1) << 16);  // farther from 0
            if (!isfinite(above)) continue;
            const double up = fabs((double)above - p);
            far += bf16_to_f32(w) != (up <= down ? above : from_bits(upper << 16));
        }
    }
    CHECK(wrong == 0, "%zu masters are others", wrong);
    CHECK(far == 0, "%zu weights are not the nearest", far);
}

// ---------------------------------------------------------------------------------------------
// Moments in bf16

// Of 65536 random numbers, as many round up as what is dropped says: the mean is exact.
static void random_rounding_has_the_mean(void) {
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t bits = philox4x32(7, i, 0, 0, 0).x[0] % 0x7f7f0000u | i << 31;
        const float f = from_bits(bits);
        uint32_t up = 0, wrong = 0;
        for (uint32_t random = 0; random < 1 << 16; random++) {
            const uint32_t got = random_upper(f, random) >> 16;
            up += got == (bits >> 16) + 1;
            wrong += got != bits >> 16 && got != (bits >> 16) + 1;
        }
        CHECK(wrong == 0 && up == (bits & 0xffff), "%08x: %u up, %u elsewhere", (unsigned)bits,
              (unsigned)up, (unsigned)wrong);
    }
    for (uint32_t random = 0; random < 1 << 16; random += 0xffff) {
        CHECK(random_upper(0, random) >> 16 == 0 && random_upper(INFINITY, random) >> 16 == 0x7f80
              && random_upper(-INFINITY, random) >> 16 == 0xff80, "what has no neighbours");
        for (int k = 0; k < 4; k++) {  // the first is a GPU's
            static const uint32_t nans[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0xffc00000};
            const float stored = bf16_to_f32((uint16_t)(random_upper(from_bits(nans[k]), random)
                                                        >> 16));
            CHECK(stored != stored, "NaN %08x becomes %g", (unsigned)nans[k], stored);
        }
    }
}

// Chi-square of 256 equally likely values, of 255 degrees of freedom, in their standard deviations.
static double unevenness(const size_t bins[256], size_t n) {
    const double mean = (double)n / 256;
    double chi = 0;
    for (int b = 0; b < 256; b++) chi += ((double)bins[b] - mean) * ((double)bins[b] - mean) / mean;
    return fabs(chi - 255) / sqrt(2 * 255.0);
}

// Returns the 16 random bits of a weight, from how adam_weight() rounds what has no bits of its own.
static uint32_t weight_noise(uint32_t index, const AdamStep *s) {
    uint32_t random = 0;
    for (uint32_t bit = 1 << 15; bit > 0; bit >>= 1)  // the first sum without a carry
        random += adam_weight(from_bits(0x3f800000 + 0xffff - (random + bit) + 1), s, index)
                  == 0x3f810000 ? bit : 0;
    return random;
}

// The noise of m, of v and of weights takes each of 256 values as often as the others; and so does
// the sum of any two: of both, and of elements and of steps that are 1, 2, 3, .. apart.
static void noise_is_even_and_independent(void) {
    enum { N = 1 << 17 };
    static const uint32_t away[] = {0, 1, 2, 3, 4, 8, 16, 48, 64, 128, 512, 768, 1024, 50304,
                                    1 << 20};
    double worst = 0;
    for (size_t k = 0; k < sizeof away / sizeof *away; k++) {
        const AdamStep s = adam_step_prepare(1, 0.9, 0.95, 1e-8, 0, 1000, 1);
        const AdamStep t = adam_step_prepare(1, 0.9, 0.95, 1e-8, 0, 1000 + away[k], 1);
        size_t bins[11][256] = {{0}};
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t x = mix_bits(i ^ s.noise), y = mix_bits((i + away[k]) ^ s.noise);
            const uint32_t z = mix_bits(i ^ t.noise);
            bins[0][(k == 0 ? x : x + y) >> 8 & 0xff]++;
            bins[1][(k == 0 ? x >> 16 : (x >> 16) + (y >> 16)) >> 8 & 0xff]++;
            bins[2][(x + (y >> 16)) >> 8 & 0xff]++;
            bins[3][(k == 0 ? x : x + z) >> 8 & 0xff]++;
            bins[4][(x + (z >> 16)) >> 8 & 0xff]++;
            const uint32_t w = weight_noise(i, &s);
            bins[5][(k == 0 ? w : w + weight_noise(i, &t)) >> 8 & 0xff]++;
            bins[6][(k == 0 ? w : w + weight_noise(i + away[k], &s)) >> 8 & 0xff]++;
            bins[7][(w + y) >> 8 & 0xff]++;
            bins[8][(w + (y >> 16)) >> 8 & 0xff]++;
            bins[9][(w + z) >> 8 & 0xff]++;
            bins[10][(w + (z >> 16)) >> 8 & 0xff]++;
        }
        for (int b = 0; b < 11; b++) {
            const double x = unevenness(bins[b], N);
            CHECK(x < 4.5, "%u apart, kind %d: %.1f", (unsigned)away[k], b, x);
            if (x > worst) worst = x;
        }
    }
    printf("  unevenness of the noise: at most %.1f standard deviations\n", worst);
}

// FNV-1a of the state after five steps: the same from every compiler and instruction set.
static void same_bits(int moments_bf16, int master_bf16, uint64_t expected) {
    enum { N = 20011 };
    Arrays a = arrays_make(N);
    rng_normals(a.p, N, 3, 0, 0, 0);
    master_move(a.half, a.low, a.p, N, false);
    if (master_bf16) memset(a.low, 0, N * sizeof *a.low);
    uint64_t hash = 0xcbf29ce484222325;
    for (uint32_t t = 1; t <= 5; t++) {
        rng_normals(a.g, N, 3, t, 1, 0);
        AdamStep s = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.1, t, 0.25);
        s.moments_bf16 = moments_bf16;
        s.master_bf16 = master_bf16;
        const AdamRun run = {0, N, 1, 0};
        const AdamWork work = {.w = a.half, .low = master_bf16 ? NULL : a.low, .m = a.m, .v = a.v,
                               .grad = a.g, .scale = 1, .runs = &run, .count = 1, .step = s,
                               .halves = 1};
        adam_work(&work);
    }
    for (size_t i = 0; i < N; i++) {
        uint32_t bits[3];
        const float p = master_f32(a.half[i], a.low[i]);
        memcpy(&bits[0], &p, 4);
        memcpy(&bits[1], &a.m[i], 4);
        memcpy(&bits[2], &a.v[i], 4);
        for (int k = 0; k < 3; k++) hash = (hash ^ bits[k]) * 0x100000001b3;
        hash = (hash ^ a.half[i]) * 0x100000001b3;
    }
    CHECK(hash == expected, "hash is 0x%016llx", (unsigned long long)hash);
    arrays_free(&a);
}

static void bits_are_the_same_everywhere(void) {
    same_bits(0, 0, 0x6d6c83ed61918b67);
    same_bits(1, 0, 0x573306102c65f75d);
    same_bits(0, 1, 0x49faf0179f6748d7);
    same_bits(1, 1, 0x2937022651b0e451);
}

// ---------------------------------------------------------------------------------------------
// The definition is AdamW

// AdamW as in Loshchilov and Hutter, in double; decay first, as PyTorch does it.
static void adamw_double(double *p, double *m, double *v, double g, double lr, double b1,
                         double b2, double eps, double wd, int t) {
    *p *= 1 - lr * wd;
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    *p -= lr * *m / (1 - pow(b1, t)) / (sqrt(*v / (1 - pow(b2, t))) + eps);
}

// 300 steps over 256 parameters, whose gradients have sizes from 1e-9 (where eps rules) to 1 and a
// mean (so that the steps add up).
static void definition_is_adamw(void) {
    enum { N = 256, STEPS = 300 };
    float p[N], m[N] = {0}, v[N] = {0}, z[N];
    double P[N], M[N] = {0}, V[N] = {0};
    rng_normals(p, N, 11, 0, 0, 0);
    for (int i = 0; i < N; i++) P[i] = p[i];
    for (int t = 1; t <= STEPS; t++) {
        const double lr = 2e-3 * (1.0 + 0.5 * sin(t)), scale = 1.0 / (1 + t % 3);
        const AdamStep s = adam_step_prepare(lr, 0.9, 0.95, 1e-8, 0.1, (uint64_t)t, scale);
        rng_normals(z, N, 11, (uint32_t)t, 1, 0);
        for (int i = 0; i < N; i++) {
            const float g = (z[i] + 0.5f) * (float)pow(10, -(i % 10));
            adam_scalar(&p[i], &m[i], &v[i], g, &s, s.weight_decay);
            adamw_double(&P[i], &M[i], &V[i], g * scale, lr, 0.9, 0.95, 1e-8, 0.1, t);
        }
    }
    for (int i = 0; i < N; i++)
        CHECK(test_within(fabs(P[i] - p[i]), 4e-6), "parameter %d: %g, not %g", i, p[i], P[i]);
}

// Weights in bf16 alone, of 64 sizes between two powers of two, whose updates are a hundredth of the
// distance of two bf16 numbers, forwards and then backwards: their mean goes where AdamW in double
// goes, within five standard errors of rounding; rounded to nearest, none would ever move. Each
// update ends at one of the two neighbours, and both occur.
static void rounded_weights_have_the_mean(void) {
    enum { SIZES = 64, EACH = 4096, STEPS = 200 };
    float *p = (float *)alloc_or_fail(SIZES * EACH, 4, "p"), *m = (float *)alloc_or_fail(EACH, 4, "m");
    float *v = (float *)alloc_or_fail(EACH, 4, "v");
    const double unit = 0x1p-7, lr = unit / 100;  // of bf16 numbers between 1 and 2
    size_t moved = 0, stayed = 0, elsewhere = 0;
    for (int k = 0; k < SIZES; k++) {
        double P = 1 + (double)(k + SIZES / 2) / SIZES / 2, M = 0, V = 0, mean = 0, squares = 0;
        const double first = P;
        float *w = p + (size_t)k * EACH;
        memset(m, 0, EACH * sizeof *m);
        memset(v, 0, EACH * sizeof *v);
        for (size_t i = 0; i < EACH; i++) w[i] = (float)P;
        for (int t = 1; t <= STEPS; t++) {
            const AdamStep s = adam_step_prepare(lr, 0.9, 0.95, 1e-8, 0, (uint64_t)t, 1);
            const float g = t % 64 < 48 ? 1 : -1;
            for (size_t i = 0; i < EACH; i++) {
                float exact = w[i];
                adam_scalar(&exact, &m[i], &v[i], g, &s, 0);
                w[i] = bits_float(adam_weight(exact, &s, (uint32_t)(k * EACH + (int)i)));
                const double steps = ((double)w[i] - bits_float(float_bits(exact) & 0xffff0000)) / unit;
                moved += steps == 1;
                stayed += steps == 0;
                elsewhere += steps != 0 && steps != 1;
            }
            adamw_double(&P, &M, &V, g, lr, 0.9, 0.95, 1e-8, 0, t);
        }
        for (size_t i = 0; i < EACH; i++) mean += w[i] / EACH;
        for (size_t i = 0; i < EACH; i++) squares += (w[i] - mean) * (w[i] - mean);
        const double error = sqrt(squares) / EACH;
        CHECK(fabs(first - P) > unit / 2 && fabs(mean - P) < 5 * error && error < unit / 16,
              "from %g to %g, not %g; error %g", first, mean, P, error);
    }
    CHECK(moved > 0 && stayed > 0 && elsewhere == 0, "%zu up, %zu down, %zu elsewhere", moved,
          stayed, elsewhere);
    free(p); free(m); free(v);
}

static void tiny_moments_become_zero(void) {
    const AdamStep s = adam_step_prepare(1e-3, 0.5, 0.5, 1e-8, 0, 1000, 1);
    for (int sign = -1; sign <= 1; sign += 2) {
        float p = 1, m = (float)sign * FLT_MIN * 1.9f, v = FLT_MIN * 1.9f;
        adam_scalar(&p, &m, &v, 0, &s, 0);
        CHECK(same_float(m, 0) && same_float(v, 0), "m %g v %g", m, v);
        CHECK(p == 1, "p %g", p);
        m = (float)sign * FLT_MIN * 2;
        v = FLT_MIN * 2;
        adam_scalar(&p, &m, &v, 0, &s, 0);
        CHECK(m == (float)sign * FLT_MIN && v == FLT_MIN, "m %g v %g are normal", m, v);
    }
    float p = 0, m = 0, v = 0;
    adam_scalar(&p, &m, &v, 0, &s, 0.1f);
    CHECK(same_float(p, 0) && same_float(m, 0) && same_float(v, 0), "padding stays +0");
    p = 1; m = NAN; v = 1;
    adam_scalar(&p, &m, &v, 0, &s, 0);
    CHECK(m != m && p != p, "NaN in m must stay");
    p = 1; m = 1; v = NAN;
    adam_scalar(&p, &m, &v, 0, &s, 0);
    CHECK(v != v && p != p, "NaN in v must stay");
    p = 1; m = 0; v = 0;
    adam_scalar(&p, &m, &v, NAN, &s, 0);
    CHECK(m != m && v != v && p != p, "NaN in g must show");
}

// ---------------------------------------------------------------------------------------------
// The norm

// The definition, read aloud: lane sums by fma, folded by halves.
static double block_sum_by_definition(const float *g, size_t n) {
    double lane[32];
    for (size_t j = 0; j < 32; j++) {
        lane[j] = 0;
        for (size_t i = j; i < n; i += 32) lane[j] = fma((double)g[i], (double)g[i], lane[j]);
    }
    for (size_t half = 16; half >= 1; half /= 2)
        for (size_t j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

static void norm_is_its_definition(void) {
    enum { N = 50001, MOST = N / 4096 + 1 };
    float *g = (float *)alloc_or_fail(N, 4, "g");
    double sums[MOST + 1];
    rng_normals(g, N, 5, 0, 0, 0);
    g[0] = FLT_MAX;
    g[4096] = from_bits(1);  // the smallest: squares of both are representable
    const size_t lengths[] = {0, 1, 31, 32, 33, 63, 4095, 4096, 4097, 8192, 8193, 40960, N};
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
        for (int threads = 1; threads <= 4; threads++) {
            use_threads(threads);
            const size_t n = lengths[k], blocks = norm_blocks(n);
            CHECK(blocks == n / 4096 + (n % 4096 != 0), "%zu blocks for %zu", blocks, n);
            sums[blocks] = -7;
            norm_block_sums(g, n, sums);
            CHECK(sums[blocks] == -7, "wrote past the last block");
            for (size_t b = 0; b < blocks; b++) {
                const size_t at = b * 4096, length = n - at < 4096 ? n - at : 4096;
                CHECK(sums[b] == block_sum_by_definition(g + at, length), "block %zu of %zu", b, n);
            }
        }
    use_threads(0);
    free(g);
}

// Of the blocks' sums: each run of 1024 in 32 lanes, which are folded, and the runs in order. The
// sums are such that another order would be another number.
static void total_is_its_definition(void) {
    static const size_t counts[] = {0, 1, 2, 31, 32, 33, 64, 65, 1023, 1024, 1025, 1057, 2048,
                                    3072, 5000, 40 * 1024 + 7};
    enum { MOST = 40 * 1024 + 7 };
    double *sums = (double *)alloc_or_fail(MOST, sizeof(double), "sums");
    float *x = (float *)alloc_or_fail(MOST, sizeof(float), "sums");
    rng_normals(x, MOST, 8, 0, 0, 0);
    for (size_t i = 0; i < MOST; i++) sums[i] = exp(3 * (double)x[i]);
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        const size_t n = counts[k];
        double total = 0, plain = 0;
        for (size_t first = 0; first < n; first += 1024) {
            double lane[32];
            for (size_t j = 0; j < 32; j++) {
                lane[j] = 0;
                for (size_t i = j; i < 1024 && first + i < n; i += 32) lane[j] += sums[first + i];
            }
            for (size_t half = 16; half >= 1; half /= 2)
                for (size_t j = 0; j < half; j++) lane[j] += lane[j + half];
            total += lane[0];
        }
        for (size_t i = 0; i < n; i++) plain += sums[i];
        const double got = norm_total(sums, n);
        CHECK(got == total, "%zu blocks: %.17g, not %.17g", n, got, total);
        CHECK(n <= 1025 || got != plain, "%zu blocks: another order would not be noticed", n);
        CHECK(fabs(got - plain) <= 1e-12 * plain, "%zu blocks: %.17g %.17g", n, got, plain);
    }
    free(sums);
    free(x);
}

static void accumulation_is_its_definition(void) {
    const size_t n = RUNS_END;
    enum { MOST = RUNS + RUNS_END / NORM_BLOCK };
    AdamRun runs[RUNS];
    runs_make(runs);
    static const AdamStep none;
    float *g = (float *)alloc_or_fail(n, 4, "g"), *g0 = (float *)alloc_or_fail(n, 4, "g");
    float *acc = (float *)alloc_or_fail(n, 4, "acc"), *want = (float *)alloc_or_fail(n, 4, "want");
    uint16_t *g16 = (uint16_t *)alloc_or_fail(n, 2, "g16");
    double sums[MOST];
    rng_normals(g, n, 6, 0, 0, 0);
    rng_normals(g0, n, 6, 0, 1, 0);
    g[runs[5].at] = -0.0f;
    g[runs[7].at + 3] = NAN;
    g[runs[8].at + 3] = HUGE_VALF;
    for (size_t i = 0; i < n; i++) g16[i] = f32_to_bf16(g[i]);
    for (int mode = 0; mode < 16; mode++)
        for (int threads = 1; threads <= 5; threads++) {
            const int is_half = mode & 1, first = mode >> 1 & 1, with_sums = mode >> 2 & 1;
            const float scale = mode < 8 ? 1 : 0.7f;
            use_threads(threads);
            memcpy(acc, g0, n * 4);
            memcpy(want, g0, n * 4);
            for (int b = 0; b < MOST; b++) sums[b] = -7;
            const AdamWork work = {NULL, NULL, NULL, NULL, acc,
                                   is_half ? (const void *)g16 : (const void *)g, is_half, first,
                                   scale, with_sums ? sums : NULL, runs, RUNS, none};
            adam_work(&work);
            size_t block = 0, wrong = 0;
            for (int r = 0; r < RUNS; r++) {
                const size_t at = runs[r].at, length = runs[r].length;
                for (size_t i = at; i < at + length; i++) {
                    const float x = is_half ? bf16_to_f32(g16[i]) : g[i];
                    want[i] = first ? scale * x : fmaf(scale, x, g0[i]);
                }
                for (size_t b = 0; with_sums && b < norm_blocks(length); b++, block++) {
                    const size_t left = length - b * 4096;
                    const double sum = block_sum_by_definition(want + at + b * 4096,
                                                               left < 4096 ? left : 4096);
                    CHECK(memcmp(&sums[block], &sum, 8) == 0 || (isnan(sums[block]) && isnan(sum)),
                          "run %d block %zu: %.17g, not %.17g", r, b, sums[block], sum);
                }
            }
            CHECK(sums[block] == -7, "wrote past the last of %zu blocks", block);
            for (size_t i = 0; i < n; i++) wrong += !same_float(acc[i], want[i]);
            CHECK(wrong == 0, "%zu differ (bf16 %d, first %d, sums %d, scale %g, %d threads)",
                  wrong, is_half, first, with_sums, (double)scale, threads);
        }
    use_threads(0);
    free(g); free(g0); free(acc); free(want); free(g16);
}

static void clip_scale_cases(void) {
    CHECK(clip_scale(16, 1) == 0.25f, "%g", clip_scale(16, 1));
    CHECK(clip_scale(9, 1) == (float)(1.0 / 3), "%.9g", clip_scale(9, 1));
    CHECK(clip_scale(1, 1) == 1 && clip_scale(0.99, 1) == 1 && clip_scale(0, 1) == 1, "below");
    CHECK(clip_scale(1e30, 0) == 1 && clip_scale(1e30, -1) == 1, "no clipping");
    CHECK(clip_scale(0, 0) == 1, "zero gradient, no clipping");
    const double bad[3] = {HUGE_VAL, NAN, -NAN};
    for (int i = 0; i < 3; i++)
        for (int clip = 0; clip < 2; clip++) {
            const float scale = clip_scale(bad[i], clip);
            CHECK(scale != scale, "%g gives %g", bad[i], scale);
        }
}

int main(void) {
    RUN(bf16_rounds_to_nearest_even);
    RUN(runs_are_scalar_with_any_threads);
    RUN(masters_come_back);
    RUN(random_rounding_has_the_mean);
    RUN(noise_is_even_and_independent);
    RUN(bits_are_the_same_everywhere);
    RUN(definition_is_adamw);
    RUN(rounded_weights_have_the_mean);
    RUN(tiny_moments_become_zero);
    RUN(norm_is_its_definition);
    RUN(total_is_its_definition);
    RUN(accumulation_is_its_definition);
    RUN(clip_scale_cases);
    return test_summary();
}
