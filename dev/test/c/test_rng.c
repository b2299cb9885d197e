// Tests of rng.h: the generator against its published answers, the normal numbers against double
// precision, against their distribution, and bit for bit against themselves in other orders.
#include "../../../tide/base/rng.h"
#include "../numbers.h"
#include "../test.h"

// Answers published with Random123 (kat_vectors, "philox4x32 7" and "philox4x32 10").
static void philox_known_answers(void) {
    static const uint32_t in[3][6] = {  // counter, key
        {0, 0, 0, 0, 0, 0},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0}};
    static const uint32_t out[2][3][4] = {
        {{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48},
         {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662},
         {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
        {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (int rounds = 7; rounds <= 10; rounds += 3)
        for (int i = 0; i < 3; i++) {
            const Philox4 r = philox_rounds(rounds, in[i][4] | (uint64_t)in[i][5] << 32, in[i][0],
                                            in[i][1], in[i][2], in[i][3]);
            for (int k = 0; k < 4; k++)
                CHECK(r.x[k] == out[rounds / 10][i][k], "%d rounds, vector %d word %d is %08x",
                      rounds, i, k, (unsigned)r.x[k]);
        }
}

static void uniform_is_in_range(void) {
    const Philox4 r = {{0, 0xffffffff, 0x80000000, 0x000000ff}};
    CHECK(rng_uniform(r, 0) == 0.0f, "smallest");
    CHECK(rng_uniform(r, 1) == 1.0f - 0x1p-24f, "largest is %.9g", rng_uniform(r, 1));
    CHECK(rng_uniform(r, 2) == 0.5f, "middle");
    CHECK(rng_uniform(r, 3) == 0.0f, "the low 8 bits do not count");
}

// The polynomial in double.
static double shape(int u) {
    const double t = u / 32768.0;
    return t * (4.010509075 + t * t * (-24.5351209724 + t * t * 23.7686295941));
}

// Of all 2^15 values that an x has: moments, exactly; and each against double precision.
static void x_has_the_moments_of_a_normal_number(void) {
    double sum[9] = {0}, most = 0, error = 0;
    for (int u = -32767; u <= 32767; u += 2) {
        const double x = (float)u * rng_slope((float)u) * sqrt(8.0);
        for (int k = 1; k <= 8; k++) sum[k] += pow(x, k) / 32768;
        most = fmax(most, fabs(x));
        error = fmax(error, fabs(x - shape(u)));
    }
    printf("  x: moments %.8f %.8f %.8f %.4f, largest %.5f, error %.2g\n", sum[2], sum[4], sum[6],
           sum[8], most, error);
    CHECK(fabs(sum[1]) + fabs(sum[3]) + fabs(sum[5]) + fabs(sum[7]) < 1e-9, "odd moments");
    CHECK(test_within(fabs(sum[2] - 1), 1e-7), "second moment %.9g", sum[2]);
    CHECK(test_within(fabs(sum[4] - 3), 1e-6), "fourth moment %.9g", sum[4]);
    CHECK(test_within(fabs(sum[6] - 15), 1e-5), "sixth moment %.9g", sum[6]);
    CHECK(fabs(sum[8] - 102.6) < 0.01, "eighth moment %.9g", sum[8]);
    CHECK(test_within(error, 2e-6), "%g", error);
}

// Sign (-1)^(ones of i & j), for x_j in z_i: an orthogonal matrix.
static void normal_matches_double(void) {
    double error = 0, most = 0;
    for (uint32_t n = 0; n < 1 << 16; n++) {
        Philox4 r = philox4x32(1, n, 0, 0, 0);
        if (n < 8)  // the ends: z_n is largest
            for (uint32_t k = 0; k < 4; k++) {
                const uint32_t ones = (n >> 1) & k, minus = (ones ^ ones >> 1) & 1;
                const uint32_t low = minus ? 0x8000 : 0x7fff, high = minus ^ (n & 1);
                r.x[k] = low | (high ? 0x8000u : 0x7fffu) << 16;
            }
        float z[8];
        rng_normal8(r, z);
        for (int i = 0; i < 8; i++) {
            double want = 0;
            for (int j = 0; j < 8; j++) {
                const int ones = i & j, minus = (ones ^ ones >> 1 ^ ones >> 2) & 1;
                const int u = (int16_t)(r.x[j / 2] >> 16 * (j % 2)) | 1;
                want += (minus ? -1 : 1) * shape(u) / sqrt(8.0);
            }
            error = fmax(error, fabs(z[i] - want));
            most = fmax(most, fabs(z[i]));
        }
    }
    printf("  largest error of a normal number %.2g; largest number %.4f\n", error, most);
    CHECK(test_within(error, 5e-6), "%g", error);
    CHECK(fabs(most - 9.17121) < 1e-5, "end of the tail %.9g", most);
}

// Bins and correlations: an x has the moments, but eight of them make a number. The seed is fixed,
// so this passes always or never; 5 standard deviations of what N independent samples would show.
static void normals_are_normal(void) {
    const size_t n = 1 << 21;
    const double N = (double)n, sd = 5 / sqrt(N);
    float *x = floats(n);
    rng_normals(x, n, 42, 3, 5, 0);
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
    free(x);
}

// Element e is number e % 8 of the draw with the counter that the comment in rng.h promises.
static void counter_is_as_promised(void) {
    const uint64_t firsts[] = {0, 7, (1ull << 32) + 2, (1ull << 35) - 6, (1ull << 49) + 1};
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        float x[20], z[8];
        rng_normals(x, 20, 0x123456789abcdef0, 77, 88, firsts[f]);
        for (uint64_t i = 0; i < 20; i++) {
            const uint64_t e = firsts[f] + i;
            rng_normal8(philox_rounds(7, 0x123456789abcdef0, (uint32_t)(e >> 3),
                                      (uint32_t)(e >> 35), 88, 77), z);
            CHECK(memcmp(&x[i], &z[e % 8], 4) == 0, "element %llu", (unsigned long long)e);
        }
    }
    float a[8], b[8];
    rng_octet(a, 1, 2, 3, 4, (1ull << 32) + 5);
    rng_normal8(philox_rounds(7, 1, 5, 1 | 3 << 16, 4, 2), b);
    CHECK(memcmp(a, b, sizeof a) == 0, "query");
}

static void slices_and_threads_agree(void) {
    enum { N = 70000 };
    float *whole = (float *)alloc_or_fail(N + 64, 4, "x");
    float *part = (float *)alloc_or_fail(N, 4, "y");
    rng_normals(whole, N + 64, 9, 1, 2, 0);
    for (size_t first = 0; first < 18; first++)
        for (size_t n = 0; n < 40; n++) {
            part[n] = 1234.5f;
            rng_normals(part, n, 9, 1, 2, first);
            CHECK(memcmp(part, whole + first, n * 4) == 0, "%zu from %zu", n, first);
            CHECK(part[n] == 1234.5f, "%zu from %zu wrote past the end", n, first);
        }
    for (int threads = 1; threads <= 4; threads++) {
        use_threads(threads);
        memset(part, 0, N * 4);
        rng_normals(part, N, 9, 1, 2, 3);
        CHECK(memcmp(part, whole + 3, N * 4) == 0, "%d threads", threads);
    }
    use_threads(0);
    free(whole);
    free(part);
}

// The same number from every compiler, optimisation level and instruction set: FNV-1a of the bits
// of 100,003 values.
static void numbers_are_the_same_everywhere(void) {
    enum { N = 100003 };
    float *x = (float *)alloc_or_fail(N, 4, "x");
    rng_normals(x, N, 1337, RNG_INIT, 1, 1);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        hash = (hash ^ bits) * 0x100000001b3;
    }
    CHECK(hash == 0x22e407a836256803, "hash is 0x%016llx", (unsigned long long)hash);
    free(x);
}

int main(void) {
    RUN(philox_known_answers);
    RUN(uniform_is_in_range);
    RUN(x_has_the_moments_of_a_normal_number);
    RUN(normal_matches_double);
    RUN(normals_are_normal);
    RUN(counter_is_as_promised);
    RUN(slices_and_threads_agree);
    RUN(numbers_are_the_same_everywhere);
    return test_summary();
}
