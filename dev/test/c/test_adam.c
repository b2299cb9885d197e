// Tests of adam.h: the loop against itself element by element, rounding, the sum of gradients, and
// bits that are the same everywhere. (That the definition is AdamW: test_gpt2.c. That the loop's one
// element is adam_scalar(), and the norm its definition: test_kernels.cu, against the GPU's.)
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
    static const uint32_t known[][2] = {
        {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80},  // overflow is infinity
        {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80},  // the last to stay finite, the tie above it
        {0x7f800000, 0x7f80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        CHECK(f32_to_bf16(from_bits(known[i][0])) == known[i][1], "%08x", (unsigned)known[i][0]);
}

// ---------------------------------------------------------------------------------------------
// The loop is that of one element

// Runs of all kinds in an arena of RUNS_END elements: many that are shorter than a chunk and start
// anywhere, empty ones, whole chunks, several chunks and a bit, with and without gaps.
enum { RUNS = 66, RUNS_END = 430000 };

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

// Lets the work be on *to, a copy of *from.
static void start(AdamWork *w, Arrays *to, const Arrays *from) {
    memcpy(to->p, from->p, RUNS_END * 4);
    memcpy(to->m, from->m, RUNS_END * 4);
    memcpy(to->v, from->v, RUNS_END * 4);
    memcpy(to->half, from->half, RUNS_END * 2);
    memcpy(to->low, from->low, RUNS_END * 2);
    w->w = w->halves ? (void *)to->half : to->p;
    w->low = w->halves && !w->step.master_bf16 ? to->low : NULL;
    w->m = to->m;
    w->v = to->v;
}

// Which NaN a sum of two NaNs is depends on the instruction.
static size_t different(const float *a, const float *b, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += !same_float(a[i], b[i]);
    return count;
}

static size_t different_state(const Arrays *a, const Arrays *b, size_t n, bool half_moments) {
    size_t count = different(a->p, b->p, n);
    for (size_t i = 0; i < n; i++) {
        count += !same_float(master_f32(a->half[i], a->low[i]), master_f32(b->half[i], b->low[i]));
        count += !isnan(bf16_to_f32(a->half[i])) && a->half[i] != b->half[i];
    }
    if (!half_moments) return count + different(a->m, b->m, n) + different(a->v, b->v, n);
    return count + (memcmp(a->m, b->m, n * 4) != 0) + (memcmp(a->v, b->v, n * 4) != 0);
}

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

// In every mode, with any threads, for any cut of the runs, against the step of one element at a time
// by the whole gradient. Moments are fp32, or bf16, which take 2 bytes of each 4; weights have lower
// halves, or are rounded at random.
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
    AdamWork work = {.scale = 0.7f, .step = adam_step_prepare(3e-4, 0.9, 0.999, 1e-8, 0.1, 10, 0.5)};
    work.step.moments_bf16 = half;
    work.step.master_bf16 = rounded;
    // of a gradient; of a sum; of a sum and a gradient
    enum { FP32, SPLIT_FP32, SPLIT_BF16, SUM, SPLIT_SUM, SUM_FP32, SPLIT_SUM_BF16, MODES };
    float *sum = floats(RUNS_END), *total = floats(RUNS_END);
    rng_normals(sum, RUNS_END, 7, 0, 2, 0);
    for (int mode = FP32; mode < MODES; mode++) {
        work.halves = mode != FP32 && mode != SUM && mode != SUM_FP32;
        work.grad_is_half = mode == SPLIT_BF16 || mode == SPLIT_SUM_BF16;
        work.grad = work.grad_is_half ? (const void *)a.g16 : (const void *)a.g;
        if (mode == SUM || mode == SPLIT_SUM) work.grad = NULL;
        work.sum = mode >= SUM ? sum : NULL;
        for (size_t i = 0; i < RUNS_END; i++) {
            const float g = work.grad_is_half ? bf16_to_f32(a.g16[i]) : a.g[i];
            total[i] = mode < SUM ? g : work.grad == NULL ? sum[i] : fmaf(0.7f, g, sum[i]);
        }
        AdamWork one = work;
        one.sum = NULL;
        one.grad = total;
        one.grad_is_half = 0;
        start(&one, &want, &a);
        for (const AdamRun *r = runs; r < runs + RUNS; r++)
            for (size_t i = r->at; i < r->at + r->length; i++)
                adam_range(&one, i, i + 1, (uint32_t)(r->index - r->at), r->decay);
        for (int threads = 1; threads <= 5; threads++) {
            work.runs = threads % 2 == 0 ? cut : runs;
            work.count = threads % 2 == 0 ? 2 * RUNS : RUNS;
            use_threads(threads);
            start(&work, &b, &a);
            adam_work(&work);
            const size_t wrong = different_state(&b, &want, RUNS_END, half);
            CHECK(wrong == 0, "%zu differ (mode %d, %d threads)", wrong, mode, threads);
        }
        CHECK(different_state(&a, &want, RUNS_END, half) > 1, "mode %d has no effect", mode);
    }
    free(sum);
    free(total);
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
    static const uint32_t stay[] = {0, 0x7f800000, 0xff800000};  // what has no neighbours
    static const uint32_t nans[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0xffc00000};  // a GPU's first
    for (uint32_t random = 0; random < 1 << 16; random += 0xffff) {
        for (int k = 0; k < 3; k++)
            CHECK(random_upper(from_bits(stay[k]), random) >> 16 == stay[k] >> 16, "%08x",
                  (unsigned)stay[k]);
        for (int k = 0; k < 4; k++) {
            const uint32_t upper = random_upper(from_bits(nans[k]), random) & 0xffff0000;
            CHECK(isnan(from_bits(upper)), "NaN %08x becomes %08x", (unsigned)nans[k],
                  (unsigned)upper);
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

// The noise of an element in a step: for m, for v and for the weight.
static void noise_of(uint32_t index, const AdamStep *s, uint32_t noise[3]) {
    const uint32_t x = mix_bits(index ^ s->noise);
    noise[0] = x & 0xffff;
    noise[1] = x >> 16;
    noise[2] = weight_noise(index, s);
}

// Each noise takes each of 256 values as often as the others; and so does the sum of any two: of an
// element's, and of elements and of steps that are 1, 2, 3, .. apart.
static void noise_is_even_and_independent(void) {
    enum { N = 1 << 17, SUMS = 18 };
    static const uint32_t away[] = {0, 1, 2, 3, 4, 8, 16, 48, 64, 128, 512, 768, 1024, 50304,
                                    1 << 20};
    double worst = 0;
    for (size_t k = 0; k < sizeof away / sizeof *away; k++) {
        const AdamStep s = adam_step_prepare(1, 0.9, 0.95, 1e-8, 0, 1000, 1);
        const AdamStep t = adam_step_prepare(1, 0.9, 0.95, 1e-8, 0, 1000 + away[k], 1);
        size_t bins[SUMS][256] = {{0}};
        for (uint32_t i = 0; i < N; i++) {
            uint32_t here[3], other[2][3];
            noise_of(i, &s, here);
            noise_of(i + away[k], &s, other[0]);
            noise_of(i, &t, other[1]);
            for (int b = 0; b < SUMS; b++) {
                const uint32_t first = here[b / 6], second = other[b / 3 % 2][b % 3];
                const bool itself = away[k] == 0 && b / 6 == b % 3;
                bins[b][(itself ? first : first + second) >> 8 & 0xff]++;
            }
        }
        for (int b = 0; b < SUMS; b++) {
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
        const float numbers[3] = {master_f32(a.half[i], a.low[i]), a.m[i], a.v[i]};
        for (int k = 0; k < 3; k++) hash = (hash ^ float_bits(numbers[k])) * 0x100000001b3;
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
// Numbers that are not ordinary

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
    for (int k = 0; k < 3; k++) {  // NaN in m, v, g
        float nan[3] = {1, 1, 1};
        nan[k] = NAN;
        p = 1;
        adam_scalar(&p, &nan[0], &nan[1], nan[2], &s, 0);
        CHECK(isnan(p) && (k == 1 || isnan(nan[0])) && (k == 0 || isnan(nan[1])), "NaN %d", k);
    }
}

// ---------------------------------------------------------------------------------------------
// Sums of gradients

static void accumulation_is_its_definition(void) {
    const size_t n = RUNS_END;
    enum { MOST = RUNS + RUNS_END / NORM_BLOCK };
    AdamRun runs[RUNS];
    runs_make(runs);
    float *g = floats(n), *g0 = floats(n), *acc = floats(n), *want = floats(n);
    uint16_t *g16 = ALLOC(uint16_t, n, "g16");
    double sums[MOST], want_sums[MOST];
    rng_normals(g, n, 6, 0, 0, 0);
    rng_normals(g0, n, 6, 0, 1, 0);
    g[runs[5].at] = -0.0f;
    g[runs[7].at + 3] = NAN;
    g[runs[8].at + 3] = HUGE_VALF;
    for (size_t i = 0; i < n; i++) g16[i] = f32_to_bf16(g[i]);
    for (int mode = 0; mode < 8; mode++) {
        const AdamWork work = {.sum = acc, .grad = mode & 1 ? (const void *)g16 : (const void *)g,
                               .grad_is_half = mode & 1, .first = mode >> 1 & 1, .scale = 0.7f,
                               .block_sums = mode >> 2 ? sums : NULL, .runs = runs, .count = RUNS};
        memcpy(want, g0, n * 4);
        for (int b = 0; b < MOST; b++) want_sums[b] = -7;
        size_t block = 0;
        for (const AdamRun *r = runs; r < runs + RUNS; r++) {
            for (size_t i = r->at; i < r->at + r->length; i++) {
                const float x = work.grad_is_half ? bf16_to_f32(g16[i]) : g[i];
                want[i] = work.first ? 0.7f * x : fmaf(0.7f, x, g0[i]);
            }
            if (work.block_sums != NULL) norm_block_sums(want + r->at, r->length, want_sums + block);
            block += norm_blocks(r->length);
        }
        for (int threads = 1; threads <= 5; threads++) {
            use_threads(threads);
            memcpy(acc, g0, n * 4);
            for (int b = 0; b < MOST; b++) sums[b] = -7;
            adam_work(&work);
            CHECK(different(acc, want, n) == 0, "mode %d, %d threads", mode, threads);
            for (int b = 0; b < MOST; b++)
                CHECK(sums[b] == want_sums[b] || (isnan(sums[b]) && isnan(want_sums[b])),
                      "mode %d, block %d: %.17g, not %.17g", mode, b, sums[b], want_sums[b]);
        }
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
    RUN(tiny_moments_become_zero);
    RUN(accumulation_is_its_definition);
    RUN(clip_scale_cases);
    return test_summary();
}
