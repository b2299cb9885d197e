// bench_zen: ZenFlow's kernels, against a plain copy of as many bytes in turn.
//
//   build/gpu/bench_zen [--tiny] [K...]        shares of columns; 0.01, 0.1 and 0.5 if none is given
//
// On the gradient of a layer of the 1.5B and the 7B shape, in bf16: packing the chosen columns and
// the rest, sums over columns, AdamW of the chosen, and scattering the rest's new weights. Bytes:
// what each cannot do without; chosen columns lie alone among others, so that more has to move. The
// columns are chosen by scores drawn at random. Many runs in a row, the cache overwritten in between
// (timed.cuh), then as many copies: medians of 5 rounds, and their range. (The host's part is in
// bench_adam.) --tiny: runs in a second anywhere, and says nothing about speed, as nothing does on
// the emulated GPU.
#define TESTING
#include "../../train_gpt2.cu"
#include "timed.cuh"

static struct {
    Timed timed;
    char *from, *to;  // a copy's
} bench;

// Times `call` and a copy that reads half of these bytes and writes the other half, in turn.
#define BENCH(name, bytes, call)                                                                 \
    do {                                                                                         \
        const size_t bench_half = ((size_t)(bytes) / 2 + 15) / 16 * 16;                          \
        double bench_s[TIMED_ROUNDS], bench_copy[TIMED_ROUNDS];                                  \
        timed_turns(&bench.timed, (double)(bytes), [&] { call; }, bench_s,                       \
                    [&] { CUDA(cudaMemcpyAsync(bench.to, bench.from, bench_half,                 \
                                               cudaMemcpyDeviceToDevice, stream)); },            \
                    bench_copy);                                                                 \
        report(name, (double)(bytes), bench_s, bench_copy);                                      \
    } while (0)

static void report(const char *name, double bytes, double *seconds, double *copy) {
    const int n = bench.timed.rounds;
    double part[TIMED_ROUNDS];
    for (int i = 0; i < n; i++) part[i] = copy[i] / seconds[i];
    const double middle = median_of(seconds, (size_t)n), of_copy = median_of(part, (size_t)n);
    printf("  %-32s %9.1f %9.1f %8.0f %8.1f   %.1f to %.1f\n", name, 1e6 * middle, 1e-6 * bytes,
           1e-9 * bytes / middle, 100 * of_copy, 100 * part[0], 100 * part[n - 1]);
    fflush(stdout);
}

template <typename T> static T *tensor_of(size_t n) {
    T *x = (T *)gpu_alloc(n * sizeof(T), "a benchmark");
    CUDA(cudaMemset(x, 0x3c, n * sizeof(T)));  // 0.0115 or so
    return x;
}

static void bench_layer(const char *name, size_t channels, double topk) {
    GPT2Config c;
    Error err;
    gpt2_preset(&c, "d1");
    c.channels = channels;
    c.heads = 1;
    c.ffn = 4 * channels;
    c.vocab = c.context = 128;
    if (!gpt2_finish(&c, &err)) die("%s", err.text);
    GPT2Table t = gpt2_table(&c);
    ZenMap map = zen_map(&t, 1, topk, 0);
    double *scores = (double *)alloc_or_fail(map.columns, sizeof(double), "a benchmark");
    ZenSwap *swaps = (ZenSwap *)alloc_or_fail(map.columns, sizeof(ZenSwap), "a benchmark");
    for (size_t j = 0; j < map.columns; j++)
        scores[j] = (double)philox4x32(1, (uint32_t)j, 0, 0, 0).x[0];
    for (int i = 0; i < map.count; i++)
        zen_swap(&map, i, swaps, zen_select(&map, i, scores + map.tensor[i].column_at, swaps));

    const ZenSegment *s = &map.segment[1];
    const size_t first = map.tensor[s->first].at, end = map.tensor[s->first + s->count].at;
    size_t mixed = 0, mixed_columns = 0, chosen = 0;
    for (int i = s->first; i < s->first + s->count; i++) {
        const ZenTensor *z = &map.tensor[i];
        chosen += z->rows * z->chosen;
        if (zen_is_mixed(z)) mixed += z->rows * z->cols, mixed_columns += z->cols;
    }
    const size_t rest = end - first - chosen;
    bf16 *matrix = tensor_of<bf16>(end - first), *packed = tensor_of<bf16>(s->rest);
    bf16 *grad = tensor_of<bf16>(s->chosen);
    float *p = tensor_of<float>(s->chosen), *m = tensor_of<float>(s->chosen);
    float *v = tensor_of<float>(s->chosen);
    float *sums = tensor_of<float>(2 * map.mixed);
    ZenSum *scratch = tensor_of<ZenSum>(columns_scratch(&map));
    int32_t *column = tensor_of<int32_t>(map.columns);
    CUDA(cudaMemcpy(column, map.column, map.columns * sizeof *column, cudaMemcpyHostToDevice));
    bench.from = tensor_of<char>(14 * (end - first));
    bench.to = tensor_of<char>(14 * (end - first));
    CUDA(cudaDeviceSynchronize());
    const AdamStep step = adam_step_prepare(1e-4, 0.9, 0.95, 1e-8, 0.1, 9, 1);
    printf("%s, %.3g of the columns: %.1f M parameters, %.1f M in chosen columns\n", name, topk,
           1e-6 * (double)(end - first), 1e-6 * (double)chosen);
    cudaStream_t stream = bench.timed.stream;
    BENCH("pack the rest", 4 * rest,
          columns_move_gpu(true, packed, true, matrix, true, &map, 1, true, column, stream));
    BENCH("pack the chosen", 4 * chosen,
          columns_move_gpu(true, grad, true, matrix, true, &map, 1, false, column, stream));
    BENCH("sums over columns", 2 * mixed + 2 * mixed_columns * sizeof(float),
          columns_sums_gpu(sums, scratch, matrix, true, &map, 1, stream));
    BENCH("AdamW of the chosen", 28 * chosen,
          columns_adam_gpu(matrix, p, m, v, grad, true, &map, 1, column, &step, stream));
    BENCH("scatter the rest", 4 * rest,
          columns_move_gpu(false, matrix, true, packed, true, &map, 1, true, column, stream));
    for (void *x : {(void *)matrix, (void *)packed, (void *)grad, (void *)p, (void *)m, (void *)v,
                    (void *)sums, (void *)scratch, (void *)column, (void *)bench.from,
                    (void *)bench.to})
        CUDA(cudaFree(x));
    free(scores);
    free(swaps);
    zen_map_free(&map);
    free(t.tensors);
}

int main(int argc, char **argv) {
    double shares[16] = {0.01, 0.1, 0.5};
    int count = 0;
    bool tiny = false;
    for (int i = 1; i < argc; i++) {
        char *end;
        if (strcmp(argv[i], "--tiny") == 0) { tiny = true; continue; }
        const double k = strtod(argv[i], &end);
        if (*argv[i] == '\0' || *end != '\0' || !(k > 0 && k < 1) || count == 16)
            die("usage: bench_zen [--tiny] [K...], 0 < K < 1");
        shares[count++] = k;
    }
    if (count == 0) count = 3;
    open_device();
    timed_open(&bench.timed, tiny);
    CUDA(cudaDeviceSynchronize());
#ifdef __CUDA_EMU__
    printf("on the emulated GPU: the times below say nothing about speed\n");
#endif
    printf("%-34s %9s %9s %8s %8s   %s\n", "", "us", "MB", "GB/s", "of copy%", "range of the rounds");
    for (int k = 0; k < count; k++) {
        if (!tiny) bench_layer("1.5B", 1600, shares[k]);
        bench_layer(tiny ? "tiny" : "7B", tiny ? 64 : 4096, shares[k]);
    }
    return 0;
}
