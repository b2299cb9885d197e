// bench_offload: how fast the optimizer's state is updated where it lives, against what the machine
// allows at most.
//
//   build/gpu/bench_offload [--tiny] [LAYERS]
//   build/gpu/bench_offload --casts       # Table 1 of Deep Optimizer States: casts, pageable copies
//
// The trainer's own gpt2_update() over the state of a 7B model's layers: LAYERS of them, or as many
// as three quarters of the host's and of the GPU's free memory hold, and at most all 32. From a
// gradient norm on, alone, until the last weight and the last state are in their place: nothing is
// prefetched, nothing hides under a forward pass. The bound (tide/plan/rates.h) is that of the rates measured
// first, in the same run. Medians of 7. --tiny: runs in a second anywhere, and says nothing about
// speed, as nothing does on the emulated GPU.
#define TESTING
#include "../../train_gpt2.cu"
#include "../buffer_get.h"
#include "../tool.h"

enum { ROUNDS = 7 };

static GPT2 *bench_model(const GPT2Config *config, const OffloadChoice *choice) {
    GPT2 *g = gpt2_new();
    g->config = *config;
    g->table = gpt2_table(config);
    g->shards = gpt2_shards_all(&g->table);
    g->training = true;
    g->head_rows = HEAD_ROWS;
    g->max_B = 1;
    g->max_T = 8;
    g->choice = *choice;
    gpt2_place(g);
    return g;
}

static void bench_mode(const char *name, const GPT2Config *config, const OffloadChoice *choice,
                       const Rates *r) {
    GPT2 *g = bench_model(config, choice);
    const double needs = (double)gpt2_bytes(g, false), there = (double)gpu_available();
    if (needs > 0.98 * there) {
        printf("%-28s needs %.1f GiB of GPU memory, and %.1f are there\n", name,
               needs / (1 << 30), there / (1 << 30));
        return;
    }
    gpt2_allocate(g);
    Buffer list[MAX_BUFFERS];
    const int count = gpt2_buffers(g, list);
    for (int i = 0; i < count; i++)  // 0.0115: zeros may be faster to divide
        if (list[i].kind != BUFFER_HOST && strcmp(list[i].purpose, "gradients") == 0)
            CUDA(cudaMemset(buffer_get(&list[i]), 0x3c, list[i].bytes));
    memset(g->host_grads, 0x3c, g->pieces.grads_host * g->host_grad_bytes);
    CUDA(cudaDeviceSynchronize());
    const AdamStep step = adam_step_prepare(1e-4, 0.9, 0.95, 1e-8, 0.1, 1, 1);
    double t[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) {
        g->fetched = 0;
        g->moved_in = g->moved_out = 0;
        const double begin = seconds_now();
        gpt2_update(g, &step);
        gpt2_update_wait(g);
        if (i >= 0) t[i] = seconds_now() - begin;
    }
    const double seconds = median_of(t, ROUNDS), all = (double)g->table.elements;
    const size_t *n = g->pieces.elements;
    const double away = (double)(n[PIECE_HOST] + n[PIECE_VISIT]);
    const double share = (double)n[PIECE_VISIT] / away;
    const UpdateBytes bytes = update_bytes(g);
    char limit[40];
    const double bound = away * update_bound(r, &bytes, share, limit);
    printf("%-28s %6.1f %6.1f %8.1f %8.1f %8.2f %8.2f %6.0f  %-14s %6.1f %6.1f\n", name,
           100 * share, 100 * (double)n[PIECE_RESIDENT] / all, 1e3 * t[0], 1e3 * seconds,
           1e-9 * all / seconds, 1e-9 * all / bound, 100 * bound / seconds,
           limit, 1e-9 * (double)g->moved_in / seconds,
           1e-9 * (double)g->moved_out / seconds);
    fflush(stdout);
    gpt2_free(g);
    free(g);
}

// Times what Table 1 of Deep Optimizer States has and no plan counts, as comments for a file of
// rates. Names as there, of G and H on the GPU and the host, 32 and 16 bits, or as in rates.h. Bytes
// are fp32's; in those with a copy, those that cross the link. There the 16 bits are in pageable
// memory that is allocated for them, as PyTorch copies to a tensor of another type (section 4.1).
static void bench_casts(bool tiny) {
    static const struct { const char *name, *unit; size_t each; } rows[] = {
        {"G16-G32", "bytes/s", 4}, {"host_cast", "parameters/s", 1}, {"H-G-pageable", "bytes/s", 2},
        {"G-H-pageable", "bytes/s", 2}, {"H32-G16", "bytes/s", 2}, {"G16-H32", "bytes/s", 2}};
    const size_t n = tiny ? 1 << 16 : (size_t)1 << 27;
    float *wide = ALLOC(float, n, "casts"), *gpu_wide = (float *)gpu_alloc(4 * n, "casts");
    bf16 *gpu = (bf16 *)gpu_alloc(2 * n, "casts");
    uint16_t *kept = ALLOC(uint16_t, n, "casts");
    CUDA(cudaMemset(gpu, 0x3c, 2 * n));
    for (int k = 0; k < 6; k++) {
        double t[ROUNDS];
        for (int i = 0; i < ROUNDS; i++) {
            CUDA(cudaDeviceSynchronize());
            const double begin = seconds_now();
            uint16_t *half = k < 4 ? kept : (uint16_t *)malloc(2 * n);  // (not cleared by us)
            if (half == NULL) fail("out of memory: a cast");
            if (k == 0) accumulate_gradient(gpu_wide, gpu, n, true, 0);
            if (k == 1 || k == 4) bf16_move(half, wide, n, false);
            if (k == 2 || k == 4) CUDA(cudaMemcpy(gpu, half, 2 * n, cudaMemcpyHostToDevice));
            if (k == 3 || k == 5) CUDA(cudaMemcpy(half, gpu, 2 * n, cudaMemcpyDeviceToHost));
            if (k == 5) bf16_move(half, wide, n, true);
            CUDA(cudaDeviceSynchronize());
            t[i] = seconds_now() - begin;
            if (half != kept) free(half);
        }
        printf("# %-12s %-8.3g %s\n", rows[k].name,
               (double)(rows[k].each * n) / median_of(t, ROUNDS), rows[k].unit);
    }
}

int main(int argc, char **argv) {
    bool tiny = false, casts = false;
    size_t layers = 0;
    GPT2Config config;
    HostQueue queue;
    Rates rates;
    Error err;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) tiny = true;
        else if (strcmp(argv[i], "--casts") == 0) casts = true;
        else layers = (size_t)tool_number("LAYERS", argv[i], 1, 1000, true);
    }
    open_device();
    if (casts) return bench_casts(tiny), 0;
    gpt2_preset(&config, "7b");
    if (tiny) config.channels = 64, config.heads = 2, config.vocab = 300;
    config.context = 8;
    config.layers = layers > 0 ? layers : tiny ? 2 : 32;
    OffloadChoice c;
    memset(&c, 0, sizeof c);
    c.mode = OFFLOAD_ZERO;
    c.slots = 3;
    c.kept_grads = KEEP_ALL;
    for (bool fits = false; !fits; config.layers -= !fits) {
        if (!gpt2_finish(&config, &err)) die("%s", err.text);
        c.mode = OFFLOAD_ZERO;  // takes most of the host's memory
        const size_t host = gpt2_bytes(bench_model(&config, &c), true);
        c.mode = OFFLOAD_INTERLEAVE;  // and this of the GPU's
        c.share = 1;
        const size_t gpu = gpt2_bytes(bench_model(&config, &c), false);
        fits = (host <= memory_available() / 4 * 3 && gpu <= gpu_available() / 4 * 3)
            || layers > 0 || config.layers == 1;
    }
    c.mode = OFFLOAD_ZERO;
    c.share = 0;
#ifdef __CUDA_EMU__
    printf("on the emulated GPU: the times below say nothing about speed\n");
#endif
    host_queue_open(&queue, 0);
    host_describe(&queue);
    rates_measure(&rates, &queue, tiny ? 0.2 : 3);
    host_queue_close(&queue);
    rates_write(stdout, &rates);

    printf("\n%zu layers of %zu channels\n%-28s %6s %6s %8s %8s %8s %8s %6s  %-14s %6s %6s\n",
           config.layers, config.channels, "", "visit%", "stay%", "best ms", "ms", "Gpar/s",
           "bound", "of it%", "bound by", "in", "out");
    const UpdateBytes bytes = {.grad = 2, .weight = 2, .kept_grads = 1, .state = 10};
    bench_mode("zero", &config, &c, &rates);
    c.mode = OFFLOAD_TWINFLOW;
    c.resident = 0.2;
    bench_mode("twinflow, a fifth stays", &config, &c, &rates);
    c.mode = OFFLOAD_INTERLEAVE;
    c.resident = 0;
    c.share = best_share(&rates, &bytes);
    bench_mode("interleave, best share", &config, &c, &rates);
    c.share = 0.5;
    bench_mode("interleave, half visits", &config, &c, &rates);
    c.share = 1;
    bench_mode("interleave, all visit", &config, &c, &rates);
    c.share = 0;
    c.stride = 2;
    bench_mode("interleave, stride 2", &config, &c, &rates);
    return 0;
}
