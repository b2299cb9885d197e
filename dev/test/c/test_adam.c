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
// Numbers of 16 bits: a bf16 number, the weight of a master, and what is rounded at random

static void numbers_of_16_bits(void) {
    static const uint32_t known[][3] = {  // a number, the nearest (ties to even), its weight
        {0x3f807fff, 0x3f80, 0x3f80}, {0x3f808000, 0x3f80, 0x3f81}, {0x3f808001, 0x3f81, 0x3f81},
        {0xbf817fff, 0xbf81, 0xbf81}, {0xbf818000, 0xbf82, 0xbf82}, {0xbf80ffff, 0xbf81, 0xbf81},
        {0x00007fff, 0x0000, 0x0000}, {0x80018000, 0x8002, 0x8002}, {0x00000000, 0x0000, 0x0000},
        {0x7f7f7fff, 0x7f7f, 0x7f7f}, {0x7f7f8000, 0x7f80, 0x7f80},  // the last to stay finite
        {0xff7fffff, 0xff80, 0xff80}, {0x7f800000, 0x7f80, 0x7f80}, {0xff800000, 0xff80, 0xff80},
        {0x7f800001, 0x7fc0, 0x7fc0}, {0x7fffffff, 0x7fff, 0x7fff}, {0xffffffff, 0xffff, 0xffff}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const float p = from_bits(known[i][0]);
        const uint16_t weight = master_weight(p);
        CHECK(f32_to_bf16(p) == known[i][1], "%08x", (unsigned)known[i][0]);
        CHECK(weight == known[i][2] && same_float(master_f32(weight, master_low(p)), p), "%08x",
              (unsigned)known[i][0]);
        const bool stays = !isfinite(p) || p == 0;  // at random: has no neighbours
        for (uint32_t random = 0; random < 1 << 16 && stays; random += 0xffff)
            CHECK(same_float(from_bits(random_upper(p, random) & 0xffff0000), p), "%08x",
                  (unsigned)known[i][0]);
    }
}

// ---------------------------------------------------------------------------------------------
// The loop is that of one element

// Runs of all kinds in an arena of RUNS_END elements: many that are shorter than a chunk and start
// anywhere, empty ones, whole chunks, several chunks and a bit, with and without gaps.
enum { RUNS = 66, RUNS_END = 430000 };

// Weights are p, or in `half` and `low`, split. One array; the state, up to low, is its begin.
typedef struct { float *p, *m, *v; uint16_t *half, *low; float *g, *sum; uint16_t *g16; } Arrays;

static Arrays arrays_make(void) {
    float *p = floats(7 * RUNS_END), *halves = p + 3 * RUNS_END, *g = halves + RUNS_END;
    return (Arrays){p, p + RUNS_END, p + 2 * RUNS_END, (uint16_t *)halves,
                    (uint16_t *)halves + RUNS_END, g, g + RUNS_END, (uint16_t *)(g + 2 * RUNS_END)};
}

// Ordinary values, with everything that is not ordinary in between.
static void arrays_fill(Arrays *a) {
    static const uint32_t special[] = {
        0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x00800001, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x1f800000, 0x20000000, 0x3f800000};
    for (uint32_t i = 0; i < RUNS_END; i++) {
        const Philox4 r = philox4x32(4, i, 1, 2, 3), which = philox4x32(4, i, 1, 2, 4);
        float z[8];
        rng_normal8(r, z);
        float *const to[] = {&a->p[i], &a->m[i], &a->v[i], &a->g[i]};
        const float ordinary[] = {z[0], 1e-3f * z[1], 1e-6f * z[2] * z[2], 1e-2f * z[3]};
        for (int k = 0; k < 4; k++)
            *to[k] = which.x[k] % 8 > 0 ? ordinary[k] : from_bits(special[which.x[k] / 8 % 16]);
        a->v[i] = fabsf(a->v[i]);
        a->sum[i] = z[4];
        a->g16[i] = f32_to_bf16(a->g[i]);
    }
    master_move(a->half, a->low, a->p, RUNS_END, false);
}

// Lets the work be on *to, a copy of *from.
static void start(AdamWork *w, Arrays *to, const Arrays *from) {
    memcpy(to->p, from->p, RUNS_END * 16);
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

static size_t different_state(const Arrays *a, const Arrays *b, bool half_moments) {
    const size_t n = RUNS_END;
    size_t count = different(a->p, b->p, n);
    for (size_t i = 0; i < n; i++) {
        count += !same_float(master_f32(a->half[i], a->low[i]), master_f32(b->half[i], b->low[i]));
        count += !isnan(bf16_to_f32(a->half[i])) && a->half[i] != b->half[i];
    }
    if (!half_moments) return count + different(a->m, b->m, 2 * n);
    return count + (memcmp(a->m, b->m, n * 8) != 0);
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

// In every mode, with any threads, against the step of one element at a time by the whole gradient.
// Moments are fp32, or bf16, which take 2 bytes of each 4; weights have lower halves, or are rounded
// at random.
static void check_runs(int half, int rounded) {
    Arrays a = arrays_make(), b = arrays_make(), want = arrays_make();
    AdamRun runs[RUNS];
    runs_make(runs);
    arrays_fill(&a);
    for (size_t i = 0; half && i < RUNS_END; i++) {
        ((uint16_t *)a.m)[i] = f32_to_bf16(a.m[i]);
        ((uint16_t *)a.v)[i] = f32_to_bf16(a.v[i]);
    }
    AdamWork work = {.scale = 0.7f, .runs = runs, .count = RUNS,
                     .step = adam_step_prepare(3e-4, 0.9, 0.999, 1e-8, 0.1, 10, 0.5)};
    work.step.moments_bf16 = half;
    work.step.master_bf16 = rounded;
    // of a gradient; of a sum; of a sum and a gradient
    enum { FP32, SPLIT_FP32, SPLIT_BF16, SUM, SPLIT_SUM, SUM_FP32, SPLIT_SUM_BF16, MODES };
    float *total = floats(RUNS_END);
    for (int mode = FP32; mode < MODES; mode++) {
        work.halves = mode != FP32 && mode != SUM && mode != SUM_FP32;
        work.grad_is_half = mode == SPLIT_BF16 || mode == SPLIT_SUM_BF16;
        work.grad = work.grad_is_half ? (const void *)a.g16 : (const void *)a.g;
        if (mode == SUM || mode == SPLIT_SUM) work.grad = NULL;
        work.sum = mode >= SUM ? a.sum : NULL;
        for (size_t i = 0; i < RUNS_END; i++) {
            const float x = work.grad_is_half ? bf16_to_f32(a.g16[i]) : a.g[i];
            total[i] = mode < SUM ? x : work.grad == NULL ? a.sum[i] : fmaf(0.7f, x, a.sum[i]);
        }
        AdamWork one = work;
        one.sum = NULL;
        one.grad = total;
        one.grad_is_half = 0;
        start(&one, &want, &a);
        for (const AdamRun *r = runs; r < runs + RUNS; r++)
            for (size_t i = r->at; i < r->at + r->length; i++)
                adam_range(&one, i, i + 1, (uint32_t)(r->index - r->at), r->decay);
        for (int threads = 1; threads <= 4; threads++) {
            use_threads(threads);
            start(&work, &b, &a);
            adam_work(&work);
            const size_t wrong = different_state(&b, &want, half);
            CHECK(wrong == 0, "%zu differ (mode %d, %d threads)", wrong, mode, threads);
        }
        CHECK(different_state(&a, &want, half) > 1, "mode %d has no effect", mode);
    }
    use_threads(0);
    float *const all[] = {a.p, b.p, want.p, total};
    for (int i = 0; i < 4; i++) free(all[i]);
}

static void runs_are_scalar_with_any_threads(void) {
    for (int mode = 0; mode < 4; mode++) check_runs(mode & 1, mode >> 1);
}

// ---------------------------------------------------------------------------------------------
// Bits

// FNV-1a of the state after five steps: the same from every compiler and instruction set.
static void same_bits(int moments_bf16, int master_bf16, uint64_t expected) {
    enum { N = 20011 };
    Arrays a = arrays_make();
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
    free(a.p);
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
    for (int k = 0; k < 4; k++) {
        const float sign = k % 2 ? -1 : 1, size = FLT_MIN * (k < 2 ? 1.9f : 2);
        float p = 1, m = sign * size, v = size;
        adam_scalar(&p, &m, &v, 0, &s, 0);
        CHECK(same_float(m, k < 2 ? 0 : sign * FLT_MIN) && same_float(v, k < 2 ? 0 : FLT_MIN)
              && (k > 1 || p == 1), "of %g: m %g, v %g", sign * size, m, v);
    }
    for (int k = 0; k < 3; k++) {  // NaN in m, v, g
        float p = 1, nan[3] = {1, 1, 1};
        nan[k] = NAN;
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
    Arrays a = arrays_make();
    float *acc = floats(n), *want = floats(n);
    double sums[MOST], want_sums[MOST];
    runs_make(runs);
    arrays_fill(&a);
    for (int mode = 0; mode < 8; mode++) {
        const int is_half = mode & 1;
        const AdamWork work = {.sum = acc, .grad = is_half ? (void *)a.g16 : (void *)a.g,
                               .grad_is_half = is_half, .first = mode >> 1 & 1, .scale = 0.7f,
                               .block_sums = mode >> 2 ? sums : NULL, .runs = runs, .count = RUNS};
        memcpy(want, a.sum, n * 4);
        for (int b = 0; b < MOST; b++) want_sums[b] = -7;
        size_t block = 0;
        for (const AdamRun *r = runs; r < runs + RUNS; r++) {
            for (size_t i = r->at; i < r->at + r->length; i++) {
                const float x = is_half ? bf16_to_f32(a.g16[i]) : a.g[i];
                want[i] = work.first ? 0.7f * x : fmaf(0.7f, x, want[i]);
            }
            if (work.block_sums != NULL) norm_block_sums(want + r->at, r->length, want_sums + block);
            block += norm_blocks(r->length);
        }
        for (int threads = 1; threads <= 4; threads++) {
            use_threads(threads);
            memcpy(acc, a.sum, n * 4);
            for (int b = 0; b < MOST; b++) sums[b] = -7;
            adam_work(&work);
            CHECK(different(acc, want, n) == 0, "mode %d, %d threads", mode, threads);
            for (int b = 0; b < MOST; b++)
                CHECK(sums[b] == want_sums[b] || (isnan(sums[b]) && isnan(want_sums[b])),
                      "mode %d, block %d: %.17g, not %.17g", mode, b, sums[b], want_sums[b]);
        }
    }
    use_threads(0);
    float *const all[] = {a.p, acc, want};
    for (int i = 0; i < 3; i++) free(all[i]);
}

static void clip_scale_cases(void) {
    CHECK(clip_scale(9, 1) == (float)(1.0 / 3), "%.9g", clip_scale(9, 1));
    CHECK(clip_scale(1, 1) == 1 && clip_scale(0.99, 1) == 1, "below");
    CHECK(clip_scale(1e30, 0) == 1 && clip_scale(1e30, -1) == 1, "no clipping");
    for (int clip = 0; clip < 2; clip++)
        CHECK(isnan(clip_scale(HUGE_VAL, clip)) && isnan(clip_scale(NAN, clip)), "%d", clip);
}

int main(void) {
    RUN(numbers_of_16_bits);
    RUN(runs_are_scalar_with_any_threads);
    RUN(bits_are_the_same_everywhere);
    RUN(tiny_moments_become_zero);
    RUN(accumulation_is_its_definition);
    RUN(clip_scale_cases);
    return test_summary();
}
