// Tests of rng.h: the generator against its published answers, and the normal numbers bit for bit
// against themselves in other orders. (Eight of them against another program's, which was written
// from the papers: test_zo.c.)
#include "../../../tide/base/rng.h"
#include "../numbers.h"
#include "../test.h"

// Answers published with Random123 (kat_vectors, "philox4x32 10").
static void philox_known_answers(void) {
    static const uint32_t known[3][10] = {  // counter, key, answer
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
         0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
         0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        const uint32_t *k = known[i];
        const Philox4 r = philox4x32(k[4] | (uint64_t)k[5] << 32, k[0], k[1], k[2], k[3]);
        CHECK(memcmp(r.x, k + 6, sizeof r.x) == 0, "vector %d: %08x ..", i, (unsigned)r.x[0]);
    }
}

static void uniform_is_in_range(void) {
    const Philox4 r = {{0, 0xffffffff, 0x80000000, 0x000000ff}};
    CHECK(rng_uniform(r, 0) == 0.0f, "smallest");
    CHECK(rng_uniform(r, 1) == 1.0f - 0x1p-24f, "largest is %.9g", rng_uniform(r, 1));
}

// Element e is number e % 8 of the draw with the counter that the comment in rng.h promises, in every
// slice, with any threads.
static void counter_is_as_promised(void) {
    enum { N = 70000 };
    static const uint64_t firsts[] = {0, 1, 6, 7, (1ull << 32) + 2, (1ull << 35) - 6, 1ull << 49};
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
            CHECK(same(x, want, length) && x[length] == 1234.5f, "%zu from %llu", length,
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
    RUN(counter_is_as_promised);
    RUN(numbers_are_the_same_everywhere);
    return test_summary();
}
