// test_matmul: gemm() and gemm_serial() against a copy of their definition of the bits, and
// gemm_plain() near it; every form, odd sizes, strides, any threads; no read or write outside the
// operands.
// (How fast: bench_matmul. That it is vector code: test_codegen.sh.)
#include "../../../tide/cpu/matmul.h"
#include "../numbers.h"
#include "../test.h"
#include <math.h>

// LLVM's libomp does not free what it allocates when a team grows; that is not a leak of ours.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libomp"; }

static uint32_t seed = 1;

static float next_float(void) {  // in [-1, 1)
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}

// The definition of the bits: blocks of KC, each a sum from 0 in order of k, added in order.
static float element_bits(bool ta, bool tb, size_t m, size_t n, size_t K, const float *a,
                          size_t lda, const float *b, size_t ldb, float start) {
    for (size_t k0 = 0; k0 < K; k0 += 384) {
        float sum = 0.0f;
        for (size_t k = k0; k < K && k < k0 + 384; k++) {
            const float x = ta ? a[k * lda + m] : a[m * lda + k];
            const float y = tb ? b[n * ldb + k] : b[k * ldb + n];
#if defined __FMA__ || defined __ARM_FEATURE_FMA
            sum = fmaf(x, y, sum);
#else
            sum += x * y;
#endif
        }
        start += sum;
    }
    return start;
}

// Fills n floats; those behind the columns of each row are NaN: reading one poisons the result.
static void fill(float *p, size_t n, size_t columns, size_t ld) {
    for (size_t i = 0; i < n; i++) p[i] = i % ld >= columns ? NAN : next_float();
}

// Runs gemm (serial == 0) or gemm_serial on operands in exactly sized heap blocks (the address
// sanitizer sees any read beyond the last row), with every stride `pad` longer than the row. The
// gaps between rows of out must stay.
static void check_product(bool ta, bool tb, size_t M, size_t N, size_t K, size_t pad, bool bias_on,
                          bool accumulate, bool serial) {
    const size_t ar = ta ? K : M, ac = ta ? M : K, br = tb ? N : K, bc = tb ? K : N;
    const size_t lda = ac + pad, ldb = bc + pad, ldo = N + pad;
    const size_t na = ar && ac ? (ar - 1) * lda + ac : 0, nb = br && bc ? (br - 1) * ldb + bc : 0;
    const size_t no = M && N ? (M - 1) * ldo + N : 0;
    float *a = floats(na + 1), *b = floats(nb + 1), *bias = floats(N + 1);
    float *out = floats(no + 1), *want = floats(no + 1), *plain = floats(no + 1);
    float *scratch = floats(gemm_scratch_floats());
    const float *add = bias_on && !serial ? bias : NULL;
    fill(a, na, ac, lda);
    fill(b, nb, bc, ldb);
    fill(bias, N, N, N);
    fill(scratch, gemm_scratch_floats(), 0, 1);
    for (size_t i = 0; i < no; i++)
        out[i] = want[i] = plain[i] = accumulate || i % ldo >= N ? next_float() : NAN;
    for (size_t m = 0; m < M; m++)
        for (size_t n = 0; n < N; n++)
            want[m * ldo + n] = element_bits(ta, tb, m, n, K, a, lda, b, ldb,
                accumulate ? want[m * ldo + n] : add != NULL ? bias[n] : 0.0f);
    gemm_plain(ta, tb, M, N, K, a, lda, b, ldb, plain, ldo, add, accumulate);
    if (!serial) gemm(ta, tb, M, N, K, a, lda, b, ldb, out, ldo, add, accumulate);
    else gemm_serial(ta, tb, M, N, K, a, lda, b, ldb, out, ldo, accumulate, scratch);
    size_t wrong = 0, where = 0;
    for (size_t i = no; i-- > 0;)
        if (!(out[i] == want[i] && fabsf(plain[i] - want[i]) < 1e-4f)) { wrong++; where = i; }
    CHECK(wrong == 0, "%s M=%zu N=%zu K=%zu ta=%d tb=%d pad=%zu bias=%d acc=%d: %zu of %zu, first "
          "(%zu, %zu): %.9g, plain %.9g, not %.9g", serial ? "gemm_serial" : "gemm", M, N, K, ta,
          tb, pad, bias_on, accumulate, wrong, no, where / ldo, where % ldo, (double)out[where],
          (double)plain[where], (double)want[where]);
    float *const all[] = {a, b, bias, out, want, plain, scratch};
    for (int i = 0; i < 7; i++) free(all[i]);
}

// All four layouts, overwrite with and without bias, accumulate, both functions.
static void check_forms(size_t M, size_t N, size_t K, size_t pad) {
    for (int form = 0; form < 24; form++)
        check_product(form & 1, form >> 1 & 1, M, N, K, pad, form / 8 == 1, form / 8 == 2,
                      form >> 2 & 1);
}

static void test_sizes(void) {
    static const size_t sizes[] = {0, 1, 5, 6, 7, 13};
    static const size_t columns[] = {0, 1, 3, 8, 9, 16, 19, 63, 64, 66};
    static const size_t depths[] = {1, 3, 4, 9};
    for (size_t i = 0; i < 6 * 10 * 4; i++)
        check_forms(sizes[i % 6], columns[i / 6 % 10], depths[i / 60], i % 7 % 3);
    static const size_t larger[][4] = {  // M, N, K, pad
        {50, 129, 383, 1}, {49, 127, 384, 0}, {55, 66, 385, 3},  // on both sides of a block of k
        {97, 130, 769, 5}, {97, 66, 1152, 0},                    // three of them, the last of one
        {64, 64, 64, 2240},  // attention's tile: a head's columns of (T, 3 C)
        {1535, 9, 11, 1}, {1536, 5, 390, 0}, {3079, 67, 5, 2},   // blocks of rows
        {600, 9, 1200, 0}};  // packed in two rounds: a missing barrier shows
    static const int threads[] = {0, 1, 3, 0, 7};
    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
        use_threads(threads[i % 5]);
        check_forms(larger[i][0], larger[i][1], larger[i][2], larger[i][3]);
    }
    use_threads(0);
}

int main(void) {
    RUN(test_sizes);
    return test_summary();
}
