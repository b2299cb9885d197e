// test_vmath: exp_f32 and tanh_f32 against float64 libm over all floats (every 1009th; in
// `make test-all` every 61st; with ALL_FLOATS=1 every one), special values, and equal bits in a vectorised loop.
#include "../../../tide/base/vmath.h"
#include "../test.h"
#include <float.h>
#include <math.h>

static uint32_t stride;  // prime: meets every mantissa pattern's low bits

// |got - want| in units of the last place of a float near `want` (subnormal spacing below FLT_MIN).
static double ulps(float got, double want) {
    int e;
    frexp(want, &e);
    const double unit = ldexp(1.0, (e < -125 ? -125 : e) - 24);
    return fabs((double)got - want) / unit;
}

typedef struct { double worst; float at; } Worst;

static void take(Worst *w, float x, float got, double want) {
    const double u = ulps(got, want);
    if (!(u <= w->worst)) { w->worst = u; w->at = x; }
}

static void test_exp_all_floats(void) {
    Worst w = {0.0, 0.0f}, tiny = {0.0, 0.0f};
    for (uint64_t u = 0; u <= 0xffffffffu; u += stride) {
        const float x = bits_float((uint32_t)u);
        if (!(x > -150.0f && x < 88.72283f)) continue;
        const double want = exp((double)x);
        take(want < FLT_MIN ? &tiny : &w, x, exp_f32(x), want);
    }
    printf("  exp: worst %.3f ulp at %a; subnormal results %.3f at %a\n", w.worst, (double)w.at,
           tiny.worst, (double)tiny.at);
    CHECK(test_within(w.worst, 1.1), "%g ulp", w.worst);
    CHECK(test_within(tiny.worst, 1.1), "%g units", tiny.worst);
}

static void test_tanh_all_floats(void) {
    Worst w = {0.0, 0.0f};
    for (uint64_t u = 0; u <= 0x7f800000u; u += stride) {
        const float x = bits_float((uint32_t)u), got = tanh_f32(x);
        take(&w, x, got, tanh((double)x));
        CHECK(tanh_f32(-x) == -got, "not odd at %a", (double)x);
        CHECK(got <= 1.0f, "%a gives %a", (double)x, (double)got);
    }
    printf("  tanh: worst %.3f ulp at %a\n", w.worst, (double)w.at);
    CHECK(test_within(w.worst, 2.5), "%g ulp", w.worst);
}

static void test_special_numbers(void) {
    CHECK(exp_f32(0.0f) == 1.0f && exp_f32(-0.0f) == 1.0f, "exp(0)");
    CHECK(exp_f32(INFINITY) == INFINITY, "exp(inf) %g", (double)exp_f32(INFINITY));
    CHECK(exp_f32(FLT_MAX) == INFINITY && exp_f32(89.0f) == INFINITY, "overflow");
    CHECK(exp_f32(0x1.62e43p+6f) == INFINITY, "the first float beyond ln FLT_MAX");
    CHECK(exp_f32(0x1.62e42ep+6f) < INFINITY, "the last float below it");
    CHECK(float_bits(exp_f32(-INFINITY)) == 0, "exp(-inf) is not +0");
    CHECK(float_bits(exp_f32(-FLT_MAX)) == 0 && float_bits(exp_f32(-104.0f)) == 0, "underflow");
    CHECK(exp_f32(-103.0f) == 0x1p-149f, "the smallest subnormal: %a", (double)exp_f32(-103.0f));
    const uint32_t nans[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu, 0x7fbfffffu};
    for (int i = 0; i < 5; i++) {
        CHECK(isnan(exp_f32(bits_float(nans[i]))), "exp of nan %x", nans[i]);
        CHECK(isnan(tanh_f32(bits_float(nans[i]))), "tanh of nan %x", nans[i]);
    }
    CHECK(float_bits(tanh_f32(0.0f)) == 0 && float_bits(tanh_f32(-0.0f)) == 0x80000000u, "tanh(0)");
    CHECK(tanh_f32(INFINITY) == 1.0f && tanh_f32(-INFINITY) == -1.0f, "tanh(inf)");
    CHECK(tanh_f32(9.1f) == 1.0f && tanh_f32(FLT_MAX) == 1.0f, "saturation");
    CHECK(tanh_f32(8.0f) < 1.0f, "saturated too early");
    for (uint32_t u = 1; u < 0x38000000u; u = u * 2 + 1)  // below 2^-15 tanh x rounds to x
        CHECK(tanh_f32(bits_float(u)) == bits_float(u), "tanh(%a)", (double)bits_float(u));
}

static bool equal_bits(float a, float b) {
    return float_bits(a) == float_bits(b) || (isnan(a) && isnan(b));
}

// What the loops in the trainer look like; calls through a volatile pointer are never vectorised.
static void test_same_bits_vectorised(void) {
    enum { N = 100003 };
    static float x[N], e[N], t[N];
    float (*volatile scalar_exp)(float) = exp_f32;
    float (*volatile scalar_tanh)(float) = tanh_f32;
    for (int i = 0; i < N; i++) x[i] = bits_float((uint32_t)i * 42949u);  // over all bit patterns
    #pragma omp simd
    for (int i = 0; i < N; i++) e[i] = exp_f32(x[i]);
    #pragma omp simd
    for (int i = 0; i < N; i++) t[i] = tanh_f32(x[i]);
    for (int i = 0; i < N; i++) {
        const float se = scalar_exp(x[i]), st = scalar_tanh(x[i]);
        CHECK(equal_bits(e[i], se), "exp(%a): %a and %a", (double)x[i], (double)e[i], (double)se);
        CHECK(equal_bits(t[i], st), "tanh(%a): %a and %a", (double)x[i], (double)t[i], (double)st);
    }
}

static uint32_t next_random(void) {  // xorshift
    static uint32_t state = 1;
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
}

static void test_max(void) {
    float x[70];
    CHECK(max_f32(x, 0) == -INFINITY, "of none");
    for (int round = 0; round < 2000; round++) {
        const size_t n = 1 + next_random() % 70;
        float want = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            const float any = bits_float(next_random());
            x[i] = isnan(any) ? -INFINITY : round % 2 ? -fabsf(any) : any;
            if (x[i] > want) want = x[i];
        }
        CHECK(max_f32(x, n) == want, "of %zu: %a, not %a", n, (double)max_f32(x, n), (double)want);
    }
    x[0] = -0.0f;
    CHECK(max_f32(x, 1) == 0.0f, "of -0");
    x[0] = INFINITY;
    x[1] = -1.0f;
    CHECK(max_f32(x, 2) == INFINITY, "of infinity");
}

int main(void) {
    stride = getenv("ALL_FLOATS") != NULL ? 1 : test_whole() ? 61 : 1009;
    RUN(test_exp_all_floats);
    RUN(test_tanh_all_floats);
    RUN(test_special_numbers);
    RUN(test_same_bits_vectorised);
    RUN(test_max);
    return test_summary();
}
