// bench_gpu: every function of a training step on its own, against what the GPU can do at most.
//
//   build/gpu/bench_gpu [--fp32] [--align N] [--tiny] [SHAPE]
//
// For the shapes of GPT-2 124M, 1.5B, a 7B and a 20B model (heads of 96 channels) and of LLaMA-3 8B
// (llama8B: grouped heads, a gate, RMS norm), with the rows of a training step that fills the GPU:
// the time of one run among many in a row (timed.cuh; the median of 5 rounds), the operations that
// must be done in a second, or the bytes that must move, and how much of the device's peak
// (tide/gpu/devices.cuh) that is. What moves little does so from memory here; in a training step
// some of it is still in the cache.
// --align: the alignment in bytes that the matrix product's heuristic is told of (tide/gpu/matmul.cuh), to
// see whether more than the trainer's 16 would be faster. --tiny: runs in a second anywhere.
#define TESTING
#include "../../train_gpt2.cu"
#include "timed.cuh"
#include "../tool.h"

typedef struct { const char *name; size_t C, NH, NKV, F, T, N, V; } Shape;

static const Shape shapes[] = {  // a LLaMA model's MLP is not 4 C wide
    {"124M", 768, 12, 12, 4 * 768, 1024, 32768, 50257},
    {"1.5B", 1600, 25, 25, 4 * 1600, 1024, 16384, 50257},
    {"7B", 4096, 32, 32, 4 * 4096, 2048, 16384, 50257},
    {"20B", 6144, 64, 64, 4 * 6144, 2048, 16384, 50257},
    {"llama8B", 4096, 32, 8, 14336, 2048, 16384, 128256},
    {"tiny", 64, 2, 2, 4 * 64, 32, 64, 300},
    {"tiny_llama", 64, 4, 2, 192, 32, 64, 300},
};

static struct {
    Matmul lt;
    Timed timed;
    double flops, bytes_per_second;  // the device's peaks; INFINITY: not known
    const char *shape;
} bench;

// What multiplies matrices is held against the peak of that, everything else against memory's.
static void report(const char *name, double t, double flops, double bytes) {
    const double rate = (flops > 0 ? flops : bytes) / t;
    const double peak = flops > 0 ? bench.flops : bench.bytes_per_second;
    printf("%s %-44s | %10.1f us, %8.1f %s | %5.1f %% of %s\n", bench.shape, name, 1e6 * t,
           rate * (flops > 0 ? 1e-12 : 1e-9), flops > 0 ? "TFLOP/s" : "GB/s", 100 * rate / peak,
           flops > 0 ? "arithmetic" : "memory");
    fflush(stdout);
}

// Times `call`. flops and bytes are what it cannot do without.
#define BENCH(name, flops, bytes, call)                                                          \
    report(name, timed(&bench.timed, (double)(bytes), [&] { call; }), (double)(flops),           \
           (double)(bytes))

// n elements on the device, in [-1, 1).
template <typename X> static X *tensor_of(size_t n) {
    X *x = (X *)gpu_alloc(n * sizeof(X), "a benchmark");
    timed_fill_kernel<<<ceil_div(n, 256), 256, 0, bench.timed.stream>>>(x, n);
    CUDA(cudaGetLastError());
    return x;
}

static int32_t *upload(const int32_t *from, size_t n) {
    int32_t *x = (int32_t *)gpu_alloc(n * sizeof *x, "a benchmark");
    CUDA(cudaMemcpy(x, from, n * sizeof *x, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    return x;
}

// The three products of a linear layer.
template <typename X>
static void bench_linear(const char *name, X *out, X *inp, X *w, X *bias, X *dw, size_t N, size_t C,
                         size_t OC) {
    Matmul *lt = &bench.lt;
    const double flops = 2.0 * (double)N * (double)C * (double)OC;
    const size_t bytes = (N * C + C * OC + N * OC) * sizeof(X);
    char line[64];
    const int end = snprintf(line, sizeof line, "%s (%zu, %zu)", name, C, OC);
    BENCH(line, flops, bytes, matmul_forward(lt, out, inp, w, bias, N, C, OC, bench.timed.stream));
    snprintf(line + end, sizeof line - (size_t)end, ", gradient of the input");
    BENCH(line, flops, bytes, gemm(lt, false, false, N, C, OC, out, OC, w, C, inp, C, nullptr,
                                   false, bench.timed.stream));
    snprintf(line + end, sizeof line - (size_t)end, ", gradient of the weight");
    BENCH(line, flops, bytes, gemm(lt, true, false, OC, C, N, out, OC, inp, C, dw, C, nullptr,
                                   false, bench.timed.stream));
}

template <typename X> static void bench_shape(const Shape *s) {
    const size_t C = s->C, F = s->F, NH = s->NH, T = s->T, N = s->N, B = N / T, V = s->V;
    const bool llama = F != 4 * C;
    const size_t HS = C / NH, Q = C + 2 * s->NKV * HS, M = llama ? 2 * F : F;
    const size_t Vp = round_up(V, ALIGN_ELEMENTS), rows = min_size(N, HEAD_ROWS), E = sizeof(X);
    Matmul *lt = &bench.lt;
    cudaStream_t stream = bench.timed.stream;
    bench.shape = s->name;
    printf("\n%s: C=%zu NH=%zu T=%zu, %zu rows, %s\n", s->name, C, NH, T, N,
           E == 2 ? "bf16" : "fp32");

    // Tensors by their width; those of one width serve several functions.
    X *x = tensor_of<X>(N * C), *x2 = tensor_of<X>(N * C), *x3 = tensor_of<X>(N * C);
    X *qkv = tensor_of<X>(N * Q), *dqkv = tensor_of<X>(N * (M > Q ? M : Q));
    X *fc = tensor_of<X>(N * M), *act = tensor_of<X>(N * M), *w = tensor_of<X>(M * C);
    X *dw = tensor_of<X>(M * C), *bias = tensor_of<X>(M), *dbias = tensor_of<X>(M);
    X *wte = tensor_of<X>(Vp * C), *wpe = tensor_of<X>(T * C), *logits = tensor_of<X>(rows * Vp);
    float *means = tensor_of<float>(N), *rstd = tensor_of<float>(N), *losses = tensor_of<float>(N);
    float *mean = llama ? NULL : means, *table = tensor_of<float>(T * HS);
    X *const b = llama ? NULL : bias, *const db = llama ? NULL : dbias + C;
    X *const dsum = llama ? NULL : dbias + 2 * C;
    float *lse = tensor_of<float>(N * NH), *delta = tensor_of<float>(N * NH);
    float *dwte = tensor_of<float>(Vp * C);
    float *scratch = tensor_of<float>(layernorm_backward_scratch(N, C)
                                      + bias_backward_scratch(N, F));
    int32_t *host = (int32_t *)alloc_or_fail(3 * N + 2 * V + 1, sizeof(int32_t), "tokens");
    int32_t *host_rows = host + N, *host_first = host + 2 * N, *count = host + 3 * N + 1;
    for (size_t i = 0; i < N; i++)  // as skewed as text is: a few tokens make up much of it
        host[i] = (int32_t)((double)V * pow((double)((i * 2654435761u) % 65536) / 65536, 4));
    TokenOrder order = token_order(host_rows, host_first, count, host, N, V);
    int32_t *tokens = upload(host, N), *order_rows = upload(host_rows, N);
    int32_t *order_first = upload(host_first, order.groups + 1);
    order.rows = order_rows;
    order.first = order_first;

    BENCH("encoder_forward", 0, (2 * N + T) * C * E,
          encoder_forward(x, tokens, (const int32_t *)NULL, wte, wpe, B, T, C, stream));
    BENCH("encoder_backward", 0, (2 * N + T) * C * E + 8 * order.groups * C,
          encoder_backward(dwte, (decltype(wpe))NULL, wpe, x, tokens, order, TokenOrder{}, B, T,
                           C, stream));
    BENCH("layernorm_forward", 0, 2 * N * C * E,
          layernorm_forward(x2, mean, rstd, x, bias, b, N, C, 1e-5f, stream));
    BENCH("residual_layernorm_forward", 0, 4 * N * C * E,
          residual_layernorm_forward(x3, x2, mean, rstd, x, x, bias, b, N, C,
                                     1e-5f, stream));
    BENCH("layernorm_backward", 0, 4 * N * C * E,
          layernorm_backward(x2, dbias, db, dsum, scratch, x3, x, bias, mean, rstd, N, C, stream));
    bench_linear("qkv", qkv, x, w, b, dw, N, C, Q);
    bench_linear("attproj", x2, x, w, b, dw, N, C, C);
    bench_linear("fc", fc, x, w, b, dw, N, C, M);
    bench_linear("fcproj", x, act, w, b, dw, N, F, C);
    if (!llama
        && gemm(lt, true, false, Q, C, N, qkv, Q, x, C, dw, C, bias, false, stream, GEMM_SUMS)
        && gemm(lt, false, false, N, F, C, x, C, w, F, act, F, fc, false, stream, GEMM_SLOPE)) {
        const double of_qkv = 2.0 * (double)(N * C * Q), of_fc = 2.0 * (double)(N * C * F);
        BENCH("qkv, gradient of weight and bias", of_qkv, (N * C + C * Q + N * Q) * E,
              gemm(lt, true, false, Q, C, N, qkv, Q, x, C, dw, C, bias, false, stream, GEMM_SUMS));
        BENCH("fc, gradient of weight and bias", of_fc, (N * C + C * F + N * F) * E,
              gemm(lt, true, false, F, C, N, fc, F, x, C, dw, C, bias, false, stream, GEMM_SUMS));
        BENCH("fcproj, input, GELU's slope", of_fc,
              (N * C + C * F + 2 * N * F) * E,
              gemm(lt, false, false, N, F, C, x, C, w, F, act, F, fc, false, stream, GEMM_SLOPE));
    }
    if (!llama)
        BENCH("bias_backward (3 C)", 0, N * Q * E,
              bias_backward(dbias, scratch, qkv, N, Q, stream));
    // Two products of (T, HS) and (HS, T) per head, half of which a causal mask leaves; in backward
    // five: scores again, dv, dp, dq, dk. (The kernels may do some of it twice.)
    const double product = (double)N * (double)T * (double)C;
    const AttentionShape heads = attention_shape(B, T, NH, s->NKV, HS);
    X *const none = NULL;
    if (llama) {
        BENCH("heads_forward", 0, 2 * N * (C + s->NKV * HS) * E,
              heads_forward(qkv, none, NULL, none, none, table, NULL, heads, 0, stream));
        BENCH("heads_backward", 0, 2 * N * (C + s->NKV * HS) * E,
              heads_backward(dqkv, none, none, scratch, none, NULL, none, none, table, NULL, heads,
                             stream));
    }
    BENCH("attention_forward", 2 * product, N * (Q + C) * E,
          attention_forward(x, lse, qkv, NULL, heads, stream));
    BENCH("attention_backward", 5 * product, 2 * N * (Q + C) * E,
          attention_backward(dqkv, (M > Q ? M - Q : 0) * N * E / 4, delta, x2, x, lse, qkv, NULL,
                             heads, stream));
    const int activation = llama ? ACTIVATION_SILU : ACTIVATION_GELU;
    BENCH("activation_forward", 0, N * (M + F) * E,
          activation_forward(act, fc, N, F, activation, stream));
    BENCH("activation_backward", 0, N * (2 * M + F) * E,
          activation_backward(act, llama ? NULL : dbias, scratch, fc, N, F, activation, stream));
    BENCH("residual_forward", 0, 3 * N * C * E, residual_forward(x, x2, N * C, stream));
    const double head = 2.0 * (double)rows * (double)Vp * (double)C;
    const size_t head_bytes = (rows * C + Vp * C + rows * Vp) * E;
    BENCH("logits, a chunk of rows", head, head_bytes,
          gemm(lt, false, true, rows, Vp, C, x, C, wte, C, logits, Vp, nullptr, false, stream));
    BENCH("crossentropy", 0, 2 * rows * Vp * E,
          crossentropy(losses, logits, tokens, 1.0f, rows, V, Vp, stream));
    BENCH("logits, gradient of the input", head, head_bytes,
          gemm(lt, false, false, rows, C, Vp, logits, Vp, wte, C, x, C, nullptr, false, stream));
    BENCH("logits, gradient of wte, added in fp32", head, (rows * C + rows * Vp) * E + 8 * Vp * C,
          gemm(lt, true, false, Vp, C, rows, logits, Vp, x, C, dwte, C, nullptr, true, stream));
    BENCH("round_gradient (wte)", 0, Vp * C * (4 + E), round_gradient(wte, dwte, Vp * C, stream));
    BENCH("accumulate_gradient (wte)", 0, Vp * C * (8 + E),
          accumulate_gradient(dwte, wte, Vp * C, false, stream));

    // The optimizer, on one tensor of wte's size: master weights, moments and a gradient.
    const size_t n = Vp * C;
    float *p = tensor_of<float>(n), *m = tensor_of<float>(n), *v = tensor_of<float>(n);
    uint16_t *low = E == 2 ? (uint16_t *)dwte : NULL;  // with weights in bf16
    double *sums = (double *)gpu_alloc(norm_blocks(n) * sizeof *sums, "a benchmark");
    const AdamRun run = {0, n, 1, 0};
    const AdamStep step = adam_step_prepare(1e-4, 0.9, 0.95, 1e-8, 0.1, 1, 1);
    BENCH("gradient norm", 0, n * E, norm_block_sums_gpu(wte, E == 2, &run, 1, sums, stream));
    double *total = (double *)gpu_alloc((1 + norm_runs(norm_blocks(n))) * sizeof *total,
                                        "a benchmark");
    BENCH("gradient norm, total", 0, norm_blocks(n) * sizeof *sums,
          norm_total_gpu(total, total + 1, sums, NULL, norm_blocks(n), stream));
    BENCH("AdamW", 0, n * (24 + E),
          adam_update_gpu(p, low, m, v, wte, E == 2, &run, 1, &step, stream));
    AdamStep half = step;
    half.moments_bf16 = 1;
    BENCH("AdamW, moments in bf16", 0, n * (16 + E),
          adam_update_gpu(p, low, m, v, wte, E == 2, &run, 1, &half, stream));
    half.master_bf16 = 1;
    BENCH("AdamW, moments and masters in bf16", 0, n * (12 + E),
          adam_update_gpu(p, NULL, m, v, wte, E == 2, &run, 1, &half, stream));

    CUDA(cudaStreamSynchronize(stream));
    void *const blocks[] = {x, x2, x3, qkv, dqkv, fc, act, w, dw, bias, dbias, wte, wpe, logits,
                            means, rstd, table, losses, lse, delta, dwte, scratch, tokens,
                            order_rows, order_first, p, m, v, sums, total};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) CUDA(cudaFree(blocks[i]));
    free(host);
}

int main(int argc, char **argv) {
    bool fp32 = false, tiny = false;
    uint32_t alignment = MATMUL_ALIGNMENT;
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--fp32") == 0) fp32 = true;
        else if (strcmp(argv[i], "--tiny") == 0) tiny = true;
        else if (strcmp(argv[i], "--align") == 0 && i + 1 < argc)
            alignment = (uint32_t)tool_number("--align", argv[++i], 1, 256, true);
        else only = argv[i];
    }
    if (only != NULL && *only == '-') die("usage: bench_gpu [--fp32] [--align N] [--tiny] [SHAPE]");
    if ((alignment & (alignment - 1)) != 0) die("--align %u: must be a power of two", alignment);
    timed_open(&bench.timed, tiny);
    matmul_open(&bench.lt);
    bench.lt.alignment = alignment;
    CUDA(cudaDeviceSynchronize());
    bench.flops = device_peak(fp32, &bench.bytes_per_second);
    if (!(bench.flops > 0)) bench.flops = bench.bytes_per_second = INFINITY;
    bool any = false;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool is_tiny = strncmp(shapes[i].name, "tiny", 4) == 0;
        if (tiny ? !is_tiny : only != NULL ? strcmp(only, shapes[i].name) != 0 : is_tiny) continue;
        any = true;
        if (fp32) bench_shape<float>(&shapes[i]);
        else bench_shape<bf16>(&shapes[i]);
    }
    if (!any) die("no shape %s: 124M, 1.5B, 7B, 20B, llama8B or tiny", only);
    matmul_close(&bench.lt);
    timed_close(&bench.timed);
    return 0;
}
