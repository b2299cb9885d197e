// fma_peak.h: what the processor could do: the multiply-adds that tests and benchmarks compare with.
#ifndef DEV_FMA_PEAK_H
#define DEV_FMA_PEAK_H
#include "../tide/cpu/matmul.h"

// Does one thread's part of the measurement below: `rounds` multiply-adds in each of 10 independent
// chains (more than latency times units, 4 x 2 on most machines; few enough for 16 registers).
enum { PEAK_CHAINS = 10 };
static __attribute__((noinline)) float fma_chains(int rounds, float factor_value) {
    const Vec zero = {0}, factor = factor_value - zero, term = 1.0f - zero;
    Vec x[PEAK_CHAINS], sum = zero;
    UNROLL for (int c = 0; c < PEAK_CHAINS; c++) x[c] = term * (float)c;
    for (int round = 0; round < rounds; round++)
        UNROLL for (int c = 0; c < PEAK_CHAINS; c++) x[c] = vec_fma(factor, x[c], term);
    UNROLL for (int c = 0; c < PEAK_CHAINS; c++) sum += x[c];
    return sum[0];
}

// Measures GFLOP/s of all threads, which only multiply and add in registers for about `seconds`:
// the limit of a product. The best of several runs, because the clock and other programs vary.
static double fma_peak_gflops(double seconds) {
    const int rounds = 400000;
    const double end = seconds_now() + seconds;
    double best = 0.0;
    do {
        int threads = 0;
        float keep = 0.0f;
        const double start = seconds_now();
        #pragma omp parallel reduction(+ : keep, threads)
        {
            keep += fma_chains(rounds, 0.5f);
            threads++;
        }
        const double flops = 2.0 * PEAK_CHAINS * VEC_LANES * rounds * threads;
        const double rate = flops / (seconds_now() - start);
        if (keep > 0.0f && rate > best) best = rate;  // `keep` is used, so compilers keep the loop
    } while (seconds_now() < end);
    return 1e-9 * best;
}

#endif
