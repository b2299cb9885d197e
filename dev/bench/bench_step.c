// bench_step: one whole training step of GPT-2 124M, and where its time goes. The shares are of the
// FMA peak measured in the same run, in turn with the steps.
#define TESTING
#include "../../train_gpt2.c"
#include "../fma_peak.h"
#include "machine.h"
#include "../test/first_values.h"
#include "../test/gpt2_free.h"
#include "../tool.h"

enum { REPEATS = 5 };

static void bench(const char *model, size_t B, size_t T) {
    GPT2 g;
    Error err;
    memset(&g, 0, sizeof g);
    if (!gpt2_preset(&g.config, model) || !gpt2_finish(&g.config, &err)) die("no model %s", model);
    g.table = gpt2_table(&g.config);
    g.max_B = B;
    g.max_T = T;
    g.training = true;
    gpt2_allocate(&g, 0, true);
    gpt2_init(&g.table, g.params, 1);
    const size_t N = B * T, C = g.config.channels, NH = g.config.heads;
    const size_t NKV = config_kv(&g.config), HS = config_head(&g.config);
    int32_t *tokens = (int32_t *)alloc_or_fail(N + 1, sizeof(int32_t), "tokens");
    for (size_t i = 0; i <= N; i++)
        tokens[i] = (int32_t)(philox4x32(1, (uint32_t)i, 0, 0, 0).x[0] % g.config.vocab);
    enum { FORWARD, HEAD, BACKWARD, UPDATE, ATTENTION_FORWARD, ATTENTION_BACKWARD, STEP, PEAK,
           PHASES };
    static const char *const names[] = {"forward", "head and loss", "backward", "norm and AdamW",
                                        "(attention forward)", "(attention backward)",
                                        "whole step"};
    const double attention = 2.0 * (double)g.config.layers * (double)(T * T * B * C);  // forward
    const double head = 6.0 * (double)(N * C) * (double)g.config.vocab;
    const double all = gpt2_flops_per_token(&g.config, T) * (double)N;
    const double flops[] = {(all - head) / 3, head, (all - head) * 2 / 3, 0, attention,
                            2.5 * attention, all};
    double t[PHASES][REPEATS + 1];
    for (int i = 0; i <= REPEATS; i++) {  // the first is a warm-up
        const double t0 = seconds_now();
        gpt2_forward(&g, tokens, NULL, B, T);
        const double t1 = seconds_now();
        gpt2_head(&g, tokens + 1, 1.0f / (float)N, false, NULL);
        const double t2 = seconds_now();
        gpt2_backward(&g, tokens, false);
        const double t3 = seconds_now();
        const AdamStep step = adam_step_prepare(1e-4, 0.9, 0.95, 1e-8, 0.1, (size_t)i + 1,
                                                clip_scale(gpt2_grad_norm_squared(&g), 1));
        gpt2_update(&g, &step);
        const double t4 = seconds_now();
        const LayerActs a = layer_acts(&g, 0);
        for (size_t l = 0; l < g.config.layers; l++)
            attention_forward(a.atty, a.lse, a.qkv, NULL, g.scratch, B, T, NH, NKV, HS);
        const double t5 = seconds_now();
        for (size_t l = 0; l < g.config.layers; l++)
            attention_backward(g.dwide, g.dc, a.atty, a.lse, a.qkv, NULL, g.scratch, B, T, NH, NKV,
                               HS);
        const double t6 = seconds_now();
        t[FORWARD][i] = t1 - t0;
        t[HEAD][i] = t2 - t1;
        t[BACKWARD][i] = t3 - t2;
        t[UPDATE][i] = t4 - t3;
        t[ATTENTION_FORWARD][i] = t5 - t4;
        t[ATTENTION_BACKWARD][i] = t6 - t5;
        t[STEP][i] = t4 - t0;
        t[PEAK][i] = fma_peak_gflops(0.1);
    }
    const double peak = median_of(t[PEAK] + 1, REPEATS);
    printf("\n%s, B=%zu T=%zu, %d threads, medians of %d; FMA peak %.0f GFLOP/s\n", model, B, T,
           omp_get_max_threads(), REPEATS, peak);
    for (int i = 0; i < PEAK; i++) {
        const double s = median_of(t[i] + 1, REPEATS);
        printf("  %-22s %8.1f ms", names[i], 1e3 * s);
        if (flops[i] > 0) printf("  %5.1f %% of the peak", 100 * flops[i] / s / (1e9 * peak));
        printf("\n");
    }
    printf("  %.0f tokens/s\n", (double)N / median_of(t[STEP] + 1, REPEATS));
    free(tokens);
    gpt2_free(&g);
}

int main(int argc, char **argv) {
    if (argc != 1 && argc != 3) die("usage: bench_step [B T]");
    const double B = argc == 3 ? tool_number("B", argv[1], 1, 1e6, true) : 0;
    const double T = argc == 3 ? tool_number("T", argv[2], 1, 1024, true) : 0;
    machine_describe();
    if (argc == 3) {  // only this shape
        bench("gpt2", (size_t)B, (size_t)T);
        return 0;
    }
    bench("gpt2", 4, 64);
    bench("gpt2", 1, 1024);
    return 0;
}
