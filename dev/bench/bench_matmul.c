// bench_matmul: GFLOP/s of the matrix product, and the share of the machine's multiply-add peak
// measured in turn with each shape. Usage: bench_matmul [repeats] [name part]
#include "../fma_peak.h"
#include "machine.h"
#include "../tool.h"

static float *random_floats(size_t n) {
    float *p = (float *)alloc_or_fail(n, sizeof *p, "bench");
    uint32_t s = 12345;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)s * 0x1p-31f;
    }
    return p;
}

// Median over `repeats` of the rate, each with a peak measured right before it; then the best of
// both, which is the number to read when other programs use the machine. serial > 0: that
// many independent products of gemm_serial() per thread and measurement, strided like attention.
static void bench(const char *name, bool ta, bool tb, size_t M, size_t N, size_t K,
                  bool accumulate, size_t lda, size_t ldb, size_t ldo, int serial, int repeats) {
    const size_t na = (ta ? K : M) * lda, nb = (tb ? N : K) * ldb;
    float *a = random_floats(na), *b = random_floats(nb);
    float *out = random_floats(M * ldo), *bias = random_floats(N);
    double rates[101], peaks[101];
    for (int i = -1; i < repeats; i++) {  // one warm-up
        const double peak = fma_peak_gflops(0.01);
        const double flops = 2.0 * (double)M * (double)N * (double)K;
        const int inner = flops < 2e8 ? (int)(2e8 / flops) + 1 : 1;
        int threads = 1;
        const double start = seconds_now();
        if (!serial) {
            for (int j = 0; j < inner; j++)
                gemm(ta, tb, M, N, K, a, lda, b, ldb, out, ldo, bias, accumulate);
        } else {
            #pragma omp parallel
            {
                float *scratch = (float *)alloc_or_fail(gemm_scratch_floats(), 4, "scratch");
                float *own = (float *)alloc_or_fail(M * ldo, 4, "out");
#ifdef _OPENMP
                #pragma omp master
                threads = omp_get_num_threads();
#endif
                for (int j = 0; j < inner; j++)
                    gemm_serial(ta, tb, M, N, K, a, lda, b, ldb, own, ldo, accumulate,
                                scratch);
                free(own);
                free(scratch);
            }
        }
        const double rate = 1e-9 * flops * inner * threads / (seconds_now() - start);
        if (i >= 0) { rates[i] = rate; peaks[i] = peak; }
    }
    const double rate = median_of(rates, (size_t)repeats), peak = median_of(peaks, (size_t)repeats);
    const double best = rates[repeats - 1], best_peak = peaks[repeats - 1];
    printf("%-16s M=%-5zu N=%-5zu K=%-5zu %7.1f GFLOP/s %5.1f %% of %.1f; best %7.1f %5.1f %%\n",
           name, M, N, K, rate, 100.0 * rate / peak, peak, best, 100.0 * best / best_peak);
    fflush(stdout);
    free(a);
    free(b);
    free(out);
    free(bias);
}

int main(int argc, char **argv) {
    const int repeats = (int)(argc > 1 ? tool_number("repeats", argv[1], 1, 101, true) : 7);
    const char *only = argc > 2 ? argv[2] : "";
    machine_describe();
    static const struct { const char *name; size_t OC, C; } layers[] = {
        {"qkv", 2304, 768}, {"attproj", 768, 768}, {"fc", 3072, 768}, {"fcproj", 768, 3072},
        {"head", 50304, 768}};
    for (size_t M = 256; M <= 1024; M += 768)
        for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
            const size_t OC = layers[i].OC, C = layers[i].C;
            char name[64];
            snprintf(name, sizeof name, "%s forward", layers[i].name);
            if (strstr(name, only)) bench(name, 0, 1, M, OC, C, false, C, C, OC, 0, repeats);
            snprintf(name, sizeof name, "%s dinp", layers[i].name);
            if (strstr(name, only)) bench(name, 0, 0, M, C, OC, false, OC, C, C, 0, repeats);
            snprintf(name, sizeof name, "%s dweight", layers[i].name);
            if (strstr(name, only)) bench(name, 1, 0, OC, C, M, true, OC, C, C, 0, repeats);
        }
    if (strstr("odd", only)) {
        bench("odd", 0, 1, 255, 769, 767, false, 767, 767, 769, 0, repeats);
        bench("odd", 0, 0, 257, 1023, 511, false, 511, 1023, 1023, 0, repeats);
        bench("odd", 1, 0, 333, 999, 257, true, 333, 999, 999, 0, repeats);
        bench("odd one row", 0, 1, 1, 3072, 768, false, 768, 768, 3072, 0, repeats);
        bench("odd nano", 0, 1, 256, 128, 128, false, 128, 128, 128, 0, repeats);
    }
    if (strstr("serial", only))
        for (size_t T = 64; T <= 1024; T *= 4) {  // one block of 64 queries against T keys
            bench("serial q k^T", 0, 1, 64, T, 64, false, 2304, 2304, T, 1, repeats);
            bench("serial att v", 0, 0, 64, 64, T, false, T, 2304, 768, 1, repeats);
            bench("serial datt^T q", 1, 0, T, 64, 64, true, T, 2304, 2304, 1, repeats);
        }
    return 0;
}
