// Tests of rng.h: the generator against its published answers, the normal numbers against double
// precision, and bit for bit against themselves in other orders.
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

// Of all 2^15 values that an x has: moments, exactly.
static void x_has_the_moments_of_a_normal_number(void) {
    static const double want[9] = {1, 0, 1, 0, 3, 0, 15, 0, 102.6};
    static const double allowed[9] = {1e-9, 1e-9, 1e-7, 1e-9, 1e-6, 1e-9, 1e-5, 1e-9, 1e-2};
    double sum[9] = {0};
    for (int u = -32767; u <= 32767; u += 2) {
        const double x = (float)u * rng_slope((float)u) * sqrt(8.0);
        for (int k = 0; k <= 8; k++) sum[k] += pow(x, k) / 32768;
    }
    for (int k = 0; k <= 8; k++)
        CHECK(test_within(fabs(sum[k] - want[k]), allowed[k]), "moment %d is %.9g", k, sum[k]);
}

// The polynomial in double.
static double shape(int u) {
    const double t = u / 32768.0;
    return t * (4.010509075 + t * t * (-24.5351209724 + t * t * 23.7686295941));
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
    CHECK(test_within(error, 5e-6), "%g", error);
    CHECK(fabs(most - 9.17121) < 1e-5, "end of the tail %.9g", most);
}

// Element e is number e % 8 of the draw with the counter that the comment in rng.h promises, in every
// slice, with any threads.
static void counter_is_as_promised(void) {
    enum { N = 70000 };
    static const uint64_t firsts[] = {0, 1, 2, 3, 4, 5, 6, 7, (1ull << 32) + 2, (1ull << 35) - 6,
                                      (1ull << 49) + 1};
    float z[8], *x = floats(N + 1), *want = floats(N);
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        for (uint64_t i = 0; i < N; i++) {
            const uint64_t e = firsts[f] + i;
            if (i == 0 || e % 8 == 0)
                rng_normal8(philox_rounds(7, 0x123456789abcdef0, (uint32_t)(e >> 3),
                                          (uint32_t)(e >> 35), 88, 77), z);
            want[i] = z[e % 8];
        }
        for (size_t n = 0; n <= 42; n++) {
            const size_t length = n < 40 ? n : N;
            use_threads(n < 40 ? 1 : (int)n - 38);
            x[length] = 1234.5f;
            rng_normals(x, length, 0x123456789abcdef0, 77, 88, firsts[f]);
            CHECK(same(x, want, length), "%zu from %llu", length, (unsigned long long)firsts[f]);
            CHECK(x[length] == 1234.5f, "%zu from %llu: wrote past the end", length,
                  (unsigned long long)firsts[f]);
        }
    }
    use_threads(0);
    float octet[8];
    rng_octet(octet, 1, 2, 3, 4, (1ull << 32) + 5);
    rng_normal8(philox_rounds(7, 1, 5, 1 | 3 << 16, 4, 2), z);
    CHECK(same(octet, z, 8), "query");
    free(x);
    free(want);
}

// The same number from every compiler, optimisation level and instruction set: FNV-1a of the bits
// of 100,003 values.
static void numbers_are_the_same_everywhere(void) {
    enum { N = 100003 };
    float *x = floats(N);
    rng_normals(x, N, 1337, RNG_INIT, 1, 1);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < N; i++) hash = (hash ^ float_bits(x[i])) * 0x100000001b3;
    CHECK(hash == 0x22e407a836256803, "hash is 0x%016llx", (unsigned long long)hash);
    free(x);
}

int main(void) {
    RUN(philox_known_answers);
    RUN(uniform_is_in_range);
    RUN(x_has_the_moments_of_a_normal_number);
    RUN(normal_matches_double);
    RUN(counter_is_as_promised);
    RUN(numbers_are_the_same_everywhere);
    return test_summary();
}
