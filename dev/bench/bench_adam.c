// bench_adam.c: times the host AdamW step, and ZenFlow's sums and updates, against plain loops that
// move the same bytes, all out of cache; and normal numbers per second. Runs are interleaved, so
// that whatever else the machine does hits all alike; medians are reported.
//     bench_adam [millions of parameters, 64] [rounds, 11]
#include "../../tide/cpu/adam_fast.h"
#include "../../tide/base/rng.h"
#include "../../zenflow.h"
#include "machine.h"
#include "../tool.h"

// The same streams as adam_work(), with next to no arithmetic.
#define PLAIN_UPDATE(GRADIENT)                        \
    _Pragma("omp parallel for simd schedule(static)") \
    for (size_t i = 0; i < n; i++) {                  \
        const float x = GRADIENT;                     \
        w[i] = (uint16_t)(w[i] + low[i]);             \
        low[i]++;                                     \
        m[i] = m[i] + x;                              \
        v[i] = v[i] + 1.0f;                           \
    }
static void plain_update(uint16_t *__restrict__ w, uint16_t *__restrict__ low,
                         float *__restrict__ m, float *__restrict__ v,
                         const void *__restrict__ grad, int is_half, size_t n) {
    if (is_half) PLAIN_UPDATE(bf16_to_f32(((const uint16_t *)grad)[i]))
    else PLAIN_UPDATE(((const float *)grad)[i])
}

static void plain_update_fp32(float *__restrict__ p, float *__restrict__ m, float *__restrict__ v,
                              const float *__restrict__ grad, size_t n) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        p[i] = p[i] + grad[i];
        m[i] = m[i] + 1.0f;
        v[i] = v[i] + 1.0f;
    }
}

static void plain_update_bf16(uint16_t *__restrict__ w, uint16_t *__restrict__ low,
                              uint16_t *__restrict__ m, uint16_t *__restrict__ v,
                              const uint16_t *__restrict__ grad, size_t n) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        w[i] = (uint16_t)(w[i] + low[i]);
        low[i] = (uint16_t)(low[i] + grad[i]);
        m[i]++;
        v[i]++;
    }
}

static void plain_update_rounded(uint16_t *__restrict__ w, uint16_t *__restrict__ m,
                                 uint16_t *__restrict__ v, const uint16_t *__restrict__ grad,
                                 size_t n) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        w[i] = (uint16_t)(w[i] + grad[i]);
        m[i]++;
        v[i]++;
    }
}

// What ZenFlow's host does, and the same streams with next to no arithmetic.
typedef struct { const char *name; int grad, first, sum, update, bytes; } ZenBench;  // grad: bytes
static const ZenBench zen_benches[] = {
    {"zenflow: a gradient, the first of a window", 2, 1, 1, 0, 6},
    {"zenflow: a gradient, bf16", 2, 0, 1, 0, 10},
    {"zenflow: a gradient, fp32", 4, 0, 1, 0, 12},
    {"zenflow: an update of a sum", 0, 0, 1, 1, 28},
    {"zenflow: an update of a sum and a bf16 gradient", 2, 0, 1, 1, 30},
    {"zenflow: an update of a bf16 gradient", 2, 0, 0, 1, 26},
};

static void zen_fused(const ZenBench *b, uint16_t *w, uint16_t *low, float *m, float *v, float *acc,
                      const void *g, size_t n, const AdamStep *s) {
    const AdamRun run = {0, n, 1, 0};
    const AdamWork work = {b->update ? w : NULL, low, m, v, b->sum ? acc : NULL,
                           b->grad > 0 ? g : NULL, b->grad == 2, b->first, 0.5f, NULL, &run, 1, *s};
    adam_work(&work);
}

#define PLAIN_LOOP _Pragma("omp parallel for simd schedule(static)") \
    for (size_t i = 0; i < n; i++)
static void zen_plain(const ZenBench *b, uint16_t *__restrict__ w, uint16_t *__restrict__ low,
                      float *__restrict__ m, float *__restrict__ v, float *__restrict__ acc,
                      const void *__restrict__ g, size_t n) {
    const uint16_t *__restrict__ half = (const uint16_t *)g;
    const float *__restrict__ full = (const float *)g;
    if (!b->update && b->first) PLAIN_LOOP acc[i] = bf16_to_f32(half[i]);
    else if (!b->update && b->grad == 2) PLAIN_LOOP acc[i] += bf16_to_f32(half[i]);
    else if (!b->update) PLAIN_LOOP acc[i] += full[i];
    else if (b->grad == 0) PLAIN_UPDATE(acc[i])
    else if (b->sum) PLAIN_UPDATE(acc[i] + bf16_to_f32(half[i]))
    else PLAIN_UPDATE(bf16_to_f32(half[i]))
}

int main(int argc, char **argv) {
    if (argc > 3) die("usage: bench_adam [millions of parameters] [rounds]");
    const size_t n =
        (size_t)(argc > 1 ? tool_number("millions", argv[1], 1, 1 << 20, true) : 64) << 20;
    const size_t rounds = (size_t)(argc > 2 ? tool_number("rounds", argv[2], 1, 1e6, true) : 11);
    machine_describe();
    float *p = (float *)alloc_or_fail(n, 4, "p"), *m = (float *)alloc_or_fail(n, 4, "m");
    float *v = (float *)alloc_or_fail(n, 4, "v"), *g = (float *)alloc_or_fail(n, 4, "g");
    uint16_t *w = (uint16_t *)p, *low = w + n;  // in the same memory
    double *sums = (double *)alloc_or_fail(norm_blocks(n), sizeof(double), "sums");
    double *adam = (double *)alloc_or_fail(rounds, sizeof(double), "times");
    double *plain = (double *)alloc_or_fail(rounds, sizeof(double), "times");
    double *ratio = (double *)alloc_or_fail(rounds, sizeof(double), "times");

    static const char *const names[] = {"fp32", "bf16 weights, fp32 gradient", "bf16",
                                        "bf16, moments in bf16", "bf16, moments and masters too"};
    static const int element_bytes[] = {28, 28, 26, 18, 14};
    for (int kind = 0; kind < 5; kind++) {
        const int is_half = kind >= 2;
        const double bytes = (double)n * element_bytes[kind];
        for (size_t r = 0; r < rounds; r++) {
            rng_normals(p, n, 1, 0, 0, 0);
            rng_normals(g, n, 1, 0, 1, 0);
            for (size_t i = 0; kind > 0 && i < n; i++) w[i] = 0x3c00 + (uint16_t)(i % 256);
            if (is_half)
                for (size_t i = 0; i < n; i++) ((uint16_t *)g)[i] = f32_to_bf16(g[i]);
            memset(m, 0, n * sizeof *m);
            memset(v, 0, n * sizeof *v);
            AdamStep s = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, r + 1, 1);
            s.moments_bf16 = kind >= 3;
            s.master_bf16 = kind == 4;
            const AdamRun run = {0, n, 1, 0};
            const AdamWork work = {.w = p, .low = kind > 0 && kind < 4 ? low : NULL, .m = m, .v = v,
                                   .grad = g, .grad_is_half = is_half, .scale = 1, .runs = &run,
                                   .count = 1, .step = s, .halves = kind == 4};
            for (int k = 0; k < 2; k++) {  // who goes first changes with the round
                const double start = seconds_now();
                if ((k + r) % 2 == 0) {
                    adam_work(&work);
                    adam[r] = seconds_now() - start;
                } else {
                    if (kind == 4)
                        plain_update_rounded(w, (uint16_t *)m, (uint16_t *)v, (uint16_t *)g, n);
                    else if (kind == 3)
                        plain_update_bf16(w, low, (uint16_t *)m, (uint16_t *)v, (uint16_t *)g, n);
                    else if (kind == 0) plain_update_fp32(p, m, v, g, n);
                    else plain_update(w, low, m, v, g, is_half, n);
                    plain[r] = seconds_now() - start;
                }
            }
            ratio[r] = plain[r] / adam[r];
        }
        const double seconds = median_of(adam, rounds);
        printf("adam_work, %s: %.2f G parameters/s, %.1f GB/s, plain loop %.1f GB/s, median "
               "ratio %.1f %%\n", names[kind], (double)n / seconds * 1e-9, bytes / seconds * 1e-9,
               bytes / median_of(plain, rounds) * 1e-9, 100 * median_of(ratio, rounds));
    }
    float *acc = (float *)alloc_or_fail(n, 4, "sums");
    for (size_t k = 0; k < sizeof zen_benches / sizeof *zen_benches; k++) {
        const ZenBench *b = &zen_benches[k];
        const AdamStep s = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, 9, 0.25);
        for (size_t i = 0; i < n; i++) w[i] = 0x3c00 + (uint16_t)(i % 256);
        memset(m, 0, n * sizeof *m);
        memset(v, 0, n * sizeof *v);
        for (size_t r = 0; r < rounds; r++) {
            rng_normals(acc, n, 1, 0, 1, 0);
            rng_normals(g, n, 1, 0, 2, 0);
            if (b->grad == 2)
                for (size_t i = 0; i < n; i++) ((uint16_t *)g)[i] = f32_to_bf16(g[i]);
            for (int i = 0; i < 2; i++) {
                const double start = seconds_now();
                if ((i + r) % 2 == 0) {
                    zen_fused(b, w, low, m, v, acc, g, n, &s);
                    adam[r] = seconds_now() - start;
                } else {
                    zen_plain(b, w, low, m, v, acc, g, n);
                    plain[r] = seconds_now() - start;
                }
            }
            ratio[r] = plain[r] / adam[r];
        }
        const double bytes = (double)n * b->bytes;
        printf("%s: %.1f GB/s, plain loop %.1f GB/s, median ratio %.1f %%\n", b->name,
               bytes / median_of(adam, rounds) * 1e-9, bytes / median_of(plain, rounds) * 1e-9,
               100 * median_of(ratio, rounds));
    }
    free(acc);
    static const AdamStep none;
    const AdamRun whole = {0, n, 1, 0};
    const AdamWork sum = {NULL, NULL, NULL, NULL, p, g, 1, 0, 1, sums, &whole, 1, none};
    for (size_t r = 0; r < rounds; r++) {
        const double start = seconds_now();
        adam_work(&sum);
        adam[r] = seconds_now() - start;
    }
    printf("accumulate with sums, bf16: %.1f GB/s\n",
           10.0 * (double)n / median_of(adam, rounds) * 1e-9);
    rng_normals(g, n, 1, 0, 1, 0);
    for (size_t r = 0; r < rounds; r++) {
        const double start = seconds_now();
        norm_block_sums(g, n, sums);
        adam[r] = seconds_now() - start;
    }
    printf("norm_block_sums: %.1f GB/s (sum %.6g)\n", 4.0 * (double)n / median_of(adam, rounds) * 1e-9,
           norm_total(sums, norm_blocks(n)));
    for (size_t r = 0; r < rounds; r++) {
        const double start = seconds_now();
        rng_normals(p, n, 1, 0, (uint32_t)r, 0);
        adam[r] = seconds_now() - start;
    }
    printf("rng_normals: %.0f M/s\n", (double)n / median_of(adam, rounds) * 1e-6);
    free(p); free(m); free(v); free(g); free(sums); free(adam); free(plain); free(ratio);
    return 0;
}
