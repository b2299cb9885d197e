// test_vmath: exp_f32 and tanh_f32 against float64 libm over all floats (every 1009th; in
// `make test-all` every 61st; with ALL_FLOATS=1 every one), and special values. (Normalising and
// rotary positions: test_gpt2.c, test_layers.c.)
#include "../../../tide/base/vmath.h"
#include "../test.h"
#include <float.h>
#include <math.h>

// |got - want| in units of the last place of a float near `want` (subnormal spacing below FLT_MIN).
static double ulps(float got, double want) {
    int e;
    frexp(want, &e);
    const double unit = ldexp(1.0, (e < -125 ? -125 : e) - 24);
    return fabs((double)got - want) / unit;
}

static void test_all_floats(void) {
    static const struct {
        const char *name;
        float (*ours)(float);
        double (*exact)(double);
        float least, most;
        double allowed;
    } rows[] = {{"exp", exp_f32, exp, -150, 88.72283f, 1.1},
                {"tanh", tanh_f32, tanh, -FLT_MAX, FLT_MAX, 2.5}};
    // prime: meets every mantissa pattern's low bits
    const uint32_t stride = getenv("ALL_FLOATS") != NULL ? 1 : test_whole() ? 61 : 1009;
    for (int k = 0; k < 2; k++) {
        double worst = 0;
        float at = 0;
        for (uint64_t u = 0; u <= 0xffffffffu; u += stride) {
            const float x = bits_float((uint32_t)u);
            if (!(x > rows[k].least && x < rows[k].most)) continue;
            const double error = ulps(rows[k].ours(x), rows[k].exact((double)x));
            if (error <= worst) continue;
            worst = error;
            at = x;
        }
        CHECK(test_within(worst, rows[k].allowed), "%s: %g ulp at %a", rows[k].name, worst,
              (double)at);
    }
}

static void test_special_numbers(void) {
    static const float known[][3] = {  // x, exp x, tanh x
        {0.0f, 1, 0.0f}, {-0.0f, 1, -0.0f}, {INFINITY, INFINITY, 1}, {-INFINITY, 0, -1},
        {FLT_MAX, INFINITY, 1}, {-FLT_MAX, 0, -1}, {89, INFINITY, 1}, {-104, 0, -1},
        {-103, 0x1p-149f, -1}, {0x1.62e43p+6f, INFINITY, 1}};  // the first beyond ln FLT_MAX
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const float x = known[i][0], e = exp_f32(x), t = tanh_f32(x);
        CHECK(float_bits(e) == float_bits(known[i][1]), "exp(%a) is %a", (double)x, (double)e);
        CHECK(float_bits(t) == float_bits(known[i][2]), "tanh(%a) is %a", (double)x, (double)t);
    }
    CHECK(exp_f32(0x1.62e42ep+6f) < INFINITY, "the last float below ln FLT_MAX");
    CHECK(tanh_f32(9.1f) == 1.0f && tanh_f32(8.0f) < 1.0f, "saturation");
    CHECK(isnan(exp_f32(NAN)) && isnan(tanh_f32(-NAN)), "nan");
}

static void test_max(void) {
    float x[70];
    for (size_t n = 0; n <= 70; n++)
        for (size_t top = 0; top < n; top++) {
            for (size_t i = 0; i < n; i++) x[i] = i == top ? -1 : -2;
            CHECK(max_f32(x, n) == -1, "of %zu", n);
        }
    CHECK(max_f32(x, 0) == -INFINITY, "of none");
}

// A sum over a vocabulary of 49,152 keeps numbers that are each too small to change 1 in fp32.
static void test_exp_sum(void) {
    enum { N = 49152 };
    static float x[N];
    for (int at = 0; at < N; at += N / 7) {
        double want = 0;
        for (int i = 0; i < N; i++) x[i] = i == at ? 3 : -5.75f;
        for (int i = 0; i < N; i++) want += exp(2 * ((double)x[i] - 3));
        const float sum = exp_sum_f32(x, N, 3, 2);
        CHECK(test_within(fabs(sum / want - 1), 2e-5), "%.9g, not %.9g", (double)sum, want);
        CHECK(x[at] == 1 && x[(at + 1) % N] == exp_f32(-17.5f), "the numbers");
    }
}

int main(void) {
    RUN(test_all_floats);
    RUN(test_special_numbers);
    RUN(test_max);
    RUN(test_exp_sum);
    return test_summary();
}
