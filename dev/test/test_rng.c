// Tests of rng.h: the generator against its published answers, the normal numbers against double
// precision, against their distribution, and bit for bit against themselves in other orders.
#include "../../tide/rng.h"
#include "test.h"
#ifdef _OPENMP
#include <omp.h>
#endif

// The three answers published with Random123 (kat_vectors, "philox4x32 10").
static void philox_known_answers(void) {
    static const uint32_t in[3][6] = {  // counter, key
        {0, 0, 0, 0, 0, 0},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0}};
    static const uint32_t out[3][4] = {
        {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        const Philox4 r = philox4x32(in[i][4] | (uint64_t)in[i][5] << 32, in[i][0], in[i][1],
                                     in[i][2], in[i][3]);
        for (int k = 0; k < 4; k++)
            CHECK(r.x[k] == out[i][k], "vector %d word %d is %08x", i, k, (unsigned)r.x[k]);
    }
}

static void uniform_is_in_range(void) {
    const Philox4 r = {{0, 0xffffffff, 0x80000000, 0x000000ff}};
    CHECK(rng_uniform(r, 0) == 0.0f, "smallest");
    CHECK(rng_uniform(r, 1) == 1.0f - 0x1p-24f, "largest is %.9g", rng_uniform(r, 1));
    CHECK(rng_uniform(r, 2) == 0.5f, "middle");
    CHECK(rng_uniform(r, 3) == 0.0f, "the low 8 bits do not count");
}

// Relative error of the radius against double, in units of 2^-24, for the same fp32 uniform; the
// absolute error of the circle likewise.
static double radius_error(uint32_t x) {
    const float u = (float)(((double)(float)x + 0.5) * 0x1p-32);
    const double want = sqrt(-2 * log((double)u)), got = rng_radius(x);
    if (want == 0) return got == 0 ? 0 : HUGE_VAL;
    return fabs(got - want) / want * 0x1p24;
}

static double circle_error(uint32_t x) {
    const double angle = 2 * 3.14159265358979323846 * 0x1p-32 * (double)x;
    float c, s;
    rng_circle(x, &c, &s);
    return fmax(fabs(c - cos(angle)), fabs(s - sin(angle))) * 0x1p24;
}

static void normal_matches_double(void) {
    double radius = 0, circle = 0;
    for (uint32_t i = 0; i < 1 << 20; i++) {
        const uint32_t x = i * 4096u + (i * 2654435761u >> 20);
        radius = fmax(radius, radius_error(x));
        circle = fmax(circle, circle_error(x));
    }
    for (int bit = 0; bit < 32; bit++)  // the ends, the octants, every power of two
        for (int d = -64; d <= 64; d++) {
            const uint32_t x = ((uint32_t)1 << bit) + (uint32_t)d;
            radius = fmax(radius, fmax(radius_error(x), radius_error(3 * x)));
            circle = fmax(circle, fmax(circle_error(x), circle_error(3 * x)));
        }
    printf("  largest error in 2^-24: radius %.2f (relative), circle %.2f (absolute)\n",
           radius, circle);
    CHECK(test_within(radius, 2.5), "%.3f", radius);
    CHECK(test_within(circle, 2.0), "%.3f", circle);
    CHECK(fabs((double)rng_radius(0) - 6.763706) < 1e-5, "end of the tail %.9g", rng_radius(0));
    CHECK(rng_radius(0xffffffff) == 0, "u = 1 gives %.9g", rng_radius(0xffffffff));
    float c, s;
    for (uint32_t q = 0; q < 4; q++) {
        static const float cosine[4] = {1, 0, -1, 0}, sine[4] = {0, 1, 0, -1};
        rng_circle(q << 30, &c, &s);
        CHECK(c == cosine[q] && s == sine[q], "quadrant %d: %g %g", (int)q, c, s);
    }
    // the four lanes: two pairs, radius from the first word and angle from the second
    const Philox4 r = {{123456789, 987654321, 55555, 3333333333u}};
    float z[4];
    rng_normal4(r, z);
    for (int k = 0; k < 4; k += 2) {
        const double u = (r.x[k] + 0.5) * 0x1p-32, a = 2 * 3.14159265358979 * 0x1p-32 * r.x[k + 1];
        CHECK(fabs(z[k] - sqrt(-2 * log(u)) * cos(a)) < 2e-6, "lane %d is %g", k, z[k]);
        CHECK(fabs(z[k + 1] - sqrt(-2 * log(u)) * sin(a)) < 2e-6, "lane %d is %g", k + 1, z[k + 1]);
    }
}

// Moments, bins and correlations. The seed is fixed, so this passes always or never; 5 standard
// deviations of what N independent samples would show.
static void normals_are_normal(void) {
    const size_t n = 1 << 21;
    float *x = (float *)alloc_or_fail(n, 4, "x"), *y = (float *)alloc_or_fail(n, 4, "y");
    rng_normals(x, n, 42, 3, 5, 0);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, m6 = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = x[i], b = a * a;
        m1 += a; m2 += b; m3 += a * b; m4 += b * b; m6 += b * b * b;
        largest = fmax(largest, fabs(a));
    }
    const double N = (double)n, sd = 5 / sqrt(N);  // var of x^k: 1, 2, 15, 96, 10170
    CHECK(fabs(m1 / N) < sd, "mean %g", m1 / N);
    CHECK(fabs(m2 / N - 1) < sd * sqrt(2.0), "variance %g", m2 / N);
    CHECK(fabs(m3 / N) < sd * sqrt(15.0), "third moment %g", m3 / N);
    CHECK(fabs(m4 / N - 3) < sd * sqrt(96.0), "fourth moment %g", m4 / N);
    CHECK(fabs(m6 / N - 15) < sd * sqrt(10170.0), "sixth moment %g", m6 / N);
    CHECK(largest > 4.6 && largest < 6.8, "largest %g", largest);

    enum { BINS = 100 };  // of width 0.08 from -4 to 4, and the two tails
    double count[BINS + 2] = {0}, chi2 = 0;
    for (size_t i = 0; i < n; i++)
        count[x[i] < -4 ? BINS : x[i] >= 4 ? BINS + 1 : (int)((x[i] + 4.0) / 0.08)]++;
    for (int b = 0; b < BINS + 2; b++) {
        const double lo = b < BINS ? -4 + 0.08 * b : b == BINS ? -40 : 4;
        const double hi = b < BINS ? lo + 0.08 : b == BINS ? -4 : 40;
        const double want = N * 0.5 * (erf(hi / sqrt(2.0)) - erf(lo / sqrt(2.0)));
        chi2 += (count[b] - want) * (count[b] - want) / want;
    }
    CHECK(chi2 < 101 + 5 * sqrt(2 * 101.0), "chi squared %g for 101 degrees of freedom", chi2);

    // neighbours within one draw and across draws, values and squares
    for (size_t lag = 1; lag <= 8; lag++) {
        double s = 0, q = 0;
        for (size_t i = 0; i + lag < n; i++) {
            s += (double)x[i] * x[i + lag];
            q += ((double)x[i] * x[i] - 1) * ((double)x[i + lag] * x[i + lag] - 1);
        }
        CHECK(fabs(s / N) < sd, "lag %zu: %g", lag, s / N);
        CHECK(fabs(q / N) < 2 * sd, "squares, lag %zu: %g", lag, q / N);
    }
    // another seed (each half), step, tensor: unrelated numbers
    for (int what = 0; what < 4; what++) {
        double s = 0;
        rng_normals(y, n, 42 + (what == 0) + ((uint64_t)(what == 1) << 32), 3 + (what == 2),
                    5 + (what == 3), 0);
        for (size_t i = 0; i < n; i++) s += (double)x[i] * y[i];
        CHECK(fabs(s / N) < sd, "stream %d: correlation %g", what, s / N);
    }
    free(x);
    free(y);
}

// Element e is lane e % 4 of the draw with the counter that the comment in rng.h promises.
static void counter_is_as_promised(void) {
    const uint64_t firsts[] = {0, 7, (1ull << 32) + 2, (1ull << 34) - 6, (1ull << 49) + 1};
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        float x[20], z[4];
        rng_normals(x, 20, 0x123456789abcdef0, 77, 88, firsts[f]);
        for (uint64_t i = 0; i < 20; i++) {
            const uint64_t e = firsts[f] + i;
            rng_normal4(philox4x32(0x123456789abcdef0, (uint32_t)(e >> 2), (uint32_t)(e >> 34), 88,
                                   77), z);
            CHECK(memcmp(&x[i], &z[e % 4], 4) == 0, "element %llu", (unsigned long long)e);
        }
    }
    float a[4], b[4];
    rng_quad(a, 1, 2, 3, 4, (1ull << 32) + 5);
    rng_normal4(philox4x32(1, 5, 1 | 3 << 16, 4, 2), b);
    CHECK(memcmp(a, b, sizeof a) == 0, "query");
}

static void slices_and_threads_agree(void) {
    enum { N = 70000 };
    float *whole = (float *)alloc_or_fail(N + 64, 4, "x");
    float *part = (float *)alloc_or_fail(N, 4, "y");
    rng_normals(whole, N + 64, 9, 1, 2, 0);
    for (size_t first = 0; first < 10; first++)
        for (size_t n = 0; n < 40; n++) {
            part[n] = 1234.5f;
            rng_normals(part, n, 9, 1, 2, first);
            CHECK(memcmp(part, whole + first, n * 4) == 0, "%zu from %zu", n, first);
            CHECK(part[n] == 1234.5f, "%zu from %zu wrote past the end", n, first);
        }
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    for (int threads = 1; threads <= 4; threads++) {
        omp_set_num_threads(threads);
        memset(part, 0, N * 4);
        rng_normals(part, N, 9, 1, 2, 3);
        CHECK(memcmp(part, whole + 3, N * 4) == 0, "%d threads", threads);
    }
    omp_set_num_threads(before);
#endif
    free(whole);
    free(part);
}

// The same number from every compiler, optimisation level and instruction set: FNV-1a of the bits
// of 100,003 values.
static void bits_are_the_same_everywhere(void) {
    enum { N = 100003 };
    float *x = (float *)alloc_or_fail(N, 4, "x");
    rng_normals(x, N, 1337, RNG_INIT, 1, 1);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        hash = (hash ^ bits) * 0x100000001b3;
    }
    CHECK(hash == 0x79f7fbbf3807b3e6, "hash is 0x%016llx", (unsigned long long)hash);
    free(x);
}

int main(void) {
    RUN(philox_known_answers);
    RUN(uniform_is_in_range);
    RUN(normal_matches_double);
    RUN(normals_are_normal);
    RUN(counter_is_as_promised);
    RUN(slices_and_threads_agree);
    RUN(bits_are_the_same_everywhere);
    return test_summary();
}
