// bench_probe: what has to be known of a device before its speed can be understood, in seconds.
//
//   build/gpu/bench_probe [--tiny] [host] [copies] [products [SHAPE]] [touch MIB] [pin MIB]
//                                         host, copies and products, if nothing is named
//
//   host      does the CPU's work in a stream stop kernels and copies of other streams? Does queueing
//             much of it block the thread that does it? What does handing over cost? Once as the
//             stream waits for the worker's word, once as host functions wait (tide/gpu/host.cuh)
//   copies    page-locked memory, once as CUDA allocates it and once as the trainer does (tide/gpu/host.cuh):
//             how long it takes to get it, and copies each way; and how long a small copy waits
//             behind large ones of another stream
//   products  every product of a training step: the algorithm that the heuristic names first, which
//             is what tide/gpu/matmul.cuh takes, against the best of its first sixteen; all of them give the
//             same bits in every run
//   touch     writes to so much host memory by all threads, as the first to do so: how fast that is,
//             and whether a machine gives what it has, or grows as it is used
//   pin       gets so much page-locked memory as the trainer does, in doubling steps up to MIB: how long
//             that takes, and whether the system refuses it
//
// Each row: what | a number and its unit | its share of the peak. --tiny: runs in a second anywhere,
// and says nothing about speed, as nothing does on the emulated GPU. (No trainer is in this: it
// compiles in no time.)
#include "../../tide/gpu/host.cuh"
#include "../../tide/gpu/matmul.cuh"
#include "timed.cuh"
#include "../tool.h"

static bool tiny;

static void row(const char *what, double value, const char *unit) {
    printf("%-56s | %12.3f %s\n", what, value, unit);
    fflush(stdout);
}

// ---------------------------------------------------------------------------------------------
// The CPU's work

enum { STREAMS = 4, KERNELS = 100 };

static void host_sleep(const void *us) { usleep(*(const useconds_t *)us); }
static void host_nothing(const void *) {}

// Multiplications that depend on each other: some 4 clock cycles each.
__global__ static void probe_busy_kernel(float *x, int n) {
    float y = x[threadIdx.x];
    for (int i = 0; i < n; i++) y = y * 0.999f + 1e-3f;
    x[threadIdx.x] = y;
}

typedef struct {
    HostQueue *queue;
    cudaStream_t stream[STREAMS];
    cudaEvent_t event[KERNELS];
    float *device;
    char *from, *to, *host;  // 1 MiB each; host: two
} Probe;

enum { PIECE = 1 << 20 };

// Kernels in a row, and behind each of them a copy out, in another stream, and beside them copies in.
// Seconds until kernels and copies are over; *worst: of the longest call. Work of `host_us` is
// queued before kernel number `at`.
static double beside(const Probe *p, useconds_t host_us, int at, double *worst) {
    const double begin = seconds_now();
    *worst = 0;
    for (int k = 0; k < KERNELS; k++) {
        const double call = seconds_now();
        if (k == at) host_queue_submit(p->queue, host_sleep, &host_us, sizeof host_us);
        probe_busy_kernel<<<1, 32, 0, p->stream[0]>>>(p->device, tiny ? 10 : 40000);
        CUDA(cudaGetLastError());
        CUDA(cudaEventRecord(p->event[k], p->stream[0]));
        CUDA(cudaStreamWaitEvent(p->stream[1], p->event[k], 0));
        CUDA(cudaMemcpyAsync(p->host, p->from, PIECE, cudaMemcpyDeviceToHost, p->stream[1]));
        CUDA(cudaMemcpyAsync(p->to, p->host + PIECE, PIECE, cudaMemcpyHostToDevice, p->stream[2]));
        *worst = fmax(*worst, seconds_now() - call);
    }
    for (int i = 0; i < STREAMS; i++) CUDA(cudaStreamSynchronize(p->stream[i]));
    return seconds_now() - begin;
}

static void work_beside(Probe *p, const char *way, double alone) {
    const useconds_t lasts = tiny ? 2000 : 200000, brief = 200;
    const int many = tiny ? 20 : 1000;
    double worst;
    char what[80];
    HostQueue q;
    setenv("TIDE_HOST_WAIT", way, 1);
    host_queue_open(&q, 1);
    p->queue = &q;
    for (int at = 0; at <= KERNELS / 5; at += KERNELS / 5) {
        const char *const when = at == 0 ? "queued first" : "in between";
        const double begin = seconds_now(), t = beside(p, lasts, at, &worst);
        snprintf(what, sizeof what, "%s: kernels beside work, %s", way, when);
        row(what, t / alone, "x of alone");
        snprintf(what, sizeof what, "%s:   longest call, work %s", way, when);
        row(what, 1e3 * worst, "ms");
        CUDA(cudaStreamSynchronize(q.stream));
        snprintf(what, sizeof what, "%s:   until the work was over, %s", way, when);
        row(what, 1e3 * (seconds_now() - begin), "ms");
    }
    int when = 0;
    worst = 0;
    for (int i = 0; i < many; i++) {
        const double call = seconds_now();
        host_queue_submit(&q, host_sleep, &brief, sizeof brief);
        CUDA(cudaEventRecord(p->event[i % KERNELS], q.stream));
        CUDA(cudaStreamWaitEvent(p->stream[3], p->event[i % KERNELS], 0));
        const double took = seconds_now() - call;
        if (took > 1e-3 && when == 0) when = i;
        worst = fmax(worst, took);
    }
    CUDA(cudaDeviceSynchronize());
    snprintf(what, sizeof what, "%s: work queued, longest call", way);
    row(what, 1e3 * worst, "ms");
    snprintf(what, sizeof what, "%s: work queued before a call takes 1 ms (0: all)", way);
    row(what, when, "");
    const double begin = seconds_now();
    for (int i = 0; i < many; i++) host_queue_submit(&q, host_nothing, "", 0);
    CUDA(cudaStreamSynchronize(q.stream));
    snprintf(what, sizeof what, "%s: handing over to the worker and back", way);
    row(what, 1e6 * (seconds_now() - begin) / many, "us");
    host_queue_close(&q);
    unsetenv("TIDE_HOST_WAIT");
}

static void part_host(void) {
    Probe p;
    double worst, alone = INFINITY;
    for (int i = 0; i < STREAMS; i++)
        CUDA(cudaStreamCreateWithFlags(&p.stream[i], cudaStreamNonBlocking));
    for (int i = 0; i < KERNELS; i++)
        CUDA(cudaEventCreateWithFlags(&p.event[i], cudaEventDisableTiming));
    p.device = (float *)gpu_alloc(32 * sizeof(float), "a probe");
    p.from = (char *)gpu_alloc(PIECE, "a probe");
    p.to = (char *)gpu_alloc(PIECE, "a probe");
    p.host = (char *)pinned_alloc(2 * PIECE, "a probe");
    CUDA(cudaMemset(p.device, 0, 32 * sizeof(float)));
    CUDA(cudaMemset(p.from, 0, PIECE));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 3; i++) alone = fmin(alone, beside(&p, 0, -1, &worst));
    row("kernels and copies alone", 1e3 * alone, "ms");
    row("  longest call, alone", 1e3 * worst, "ms");
    HostQueue q;
    host_queue_open(&q, 1);
    const bool can = q.wait_value != NULL;
    host_queue_close(&q);
    row("streams can wait for a word (1: yes)", can, "");
    if (can) work_beside(&p, "value", alone);
    work_beside(&p, "function", alone);
    for (int i = 0; i < STREAMS; i++) CUDA(cudaStreamDestroy(p.stream[i]));
    for (int i = 0; i < KERNELS; i++) CUDA(cudaEventDestroy(p.event[i]));
    CUDA(cudaFree(p.device));
    CUDA(cudaFree(p.from));
    CUDA(cudaFree(p.to));
    CUDA(cudaFreeHost(p.host));
}

// ---------------------------------------------------------------------------------------------
// Copies

static void part_copies(void) {
    const size_t n = tiny ? (size_t)PIECE : (size_t)2 << 30;
    HostQueue q;
    Timed t;
    cudaStream_t other;
    timed_open(&t, tiny);
    host_queue_open(&q, 0);
    host_describe(&q);
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    char *device = (char *)gpu_alloc(n, "a probe");
    CUDA(cudaMemset(device, 0, n));
    CUDA(cudaDeviceSynchronize());
    static const char *const names[2][3] = {
        {"cudaMallocHost, and zeroed", "cudaMallocHost: to the GPU", "cudaMallocHost: back"},
        {"host_alloc", "host_alloc: to the GPU", "host_alloc: back"}};
    for (int way = 0; way < 2; way++) {
        const double begin = seconds_now(), bytes = (double)n;
        char *host = (char *)(way == 0 ? pinned_alloc(n, "a probe") : host_alloc(&q, n, "a probe"));
        row(names[way][0], 1e-9 * bytes / (seconds_now() - begin), "GB/s");
        for (int back = 0; back < 2; back++)
            row(names[way][1 + back], 1e-9 * bytes / timed(&t, INFINITY, [&] {
                CUDA(cudaMemcpyAsync(back ? host : device, back ? device : host, n,
                                     back ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                                     t.stream));
            }), "GB/s");
        for (int back = 0; back < 2 && way == 1; back++) {
            const cudaMemcpyKind kind = back ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
            for (int i = 0; i < 3; i++)
                CUDA(cudaMemcpyAsync(back ? host : device, back ? device : host, n - 8192, kind,
                                     t.stream));
            usleep(tiny ? 0 : 3000);  // now the first of them is under way
            const double small = seconds_now();
            char *const there = host + n - 8192, *const here = device + n - 8192;
            CUDA(cudaMemcpyAsync(back ? there : here, back ? here : there, 8192, kind, other));
            CUDA(cudaStreamSynchronize(other));
            row(back ? "8 KiB back behind three large copies"
                     : "8 KiB to the GPU behind three large copies",
                1e3 * (seconds_now() - small), "ms");
            CUDA(cudaDeviceSynchronize());
        }
        if (way == 0) CUDA(cudaFreeHost(host));
        else host_free(host);
    }
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(other));
    host_queue_close(&q);
    timed_close(&t);
}

// ---------------------------------------------------------------------------------------------
// Products

typedef struct { const char *name; size_t C, F, N, Vp; } ProductShape;

static const ProductShape shapes[] = {
    {"124M", 768, 3072, 32768, 50304},
    {"1.5B", 1600, 6400, 16384, 50304},
    {"7B", 4096, 16384, 16384, 50304},
    {"tiny", 64, 256, 64, 384},
};

enum { ALGORITHMS = 16, HEAD_CHUNK = 4096 };  // rows of the head at once, as in train_gpt2.cu

static struct {
    Timed timed;
    Matmul lt;
    double peak;  // flop/s
    bf16 *a, *b, *bias, *fc;
    void *out;
    double first, best;  // seconds of a layer's products, summed
} products;

// Returns the seconds of a product by this algorithm; INFINITY if the library refuses it.
static double product_seconds(const MatmulPlan *p, const cublasLtMatmulAlgo_t *algo) {
    const float alpha = 1, beta = p->shape.accumulate ? 1 : 0;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    const double s = timed(&products.timed, INFINITY, [&] {
        if (status != CUBLAS_STATUS_SUCCESS) return;
        status = cublasLtMatmul(products.lt.handle, p->op, &alpha, products.b, p->b, products.a,
                                p->a, &beta, products.out, p->out, products.out, p->out, algo,
                                products.lt.workspace, MATMUL_WORKSPACE,
                                products.timed.stream);
    });
    return status == CUBLAS_STATUS_SUCCESS ? s : INFINITY;
}

// As gemm() in tide/gpu/matmul.cuh describes it. `counts`: it is one of a layer's 12 products.
static void product(const char *shape, const char *name, bool trans_a, bool trans_b, size_t M,
                    size_t N, size_t K, int epilogue, bool fp32, bool counts) {
    MatmulShape s;
    MatmulPlan p;
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int count = 0, best = 0;
    char what[64];
    snprintf(what, sizeof what, "%s %s", shape, name);
    memset(&s, 0, sizeof s);
    s.M = M; s.N = N; s.K = K;
    s.lda = trans_a ? M : K;
    s.ldb = trans_b ? K : N;
    s.ldo = N;
    s.trans_a = trans_a;
    s.trans_b = trans_b;
    s.type = CUDA_R_16BF;
    s.out_type = fp32 ? CUDA_R_32F : CUDA_R_16BF;
    s.accumulate = fp32;
    s.epilogue = epilogue;
    s.align_a = s.align_b = s.align_out = MATMUL_ALIGNMENT;
    if (epilogue != GEMM_PLAIN) s.align_extra = MATMUL_ALIGNMENT;
    matmul_plan(&products.lt, &s, &p);
    if (p.none) {  // the trainer's product has none either
        matmul_plan_free(&p);
        product(shape, name, trans_a, trans_b, M, N, K, GEMM_PLAIN, fp32, counts);
        return;
    }
    matmul_extra(&p, epilogue == GEMM_SLOPE ? products.fc : products.bias);
    const double first = product_seconds(&p, &p.algo);
    double least = first;
    LT(cublasLtMatmulAlgoGetHeuristic(products.lt.handle, p.op, p.b, p.a, p.out, p.out,
                                      products.lt.preference, ALGORITHMS, found, &count));
    for (int i = 1; i < count; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const double t = product_seconds(&p, &found[i].algo);
        if (t < least) best = i, least = t;
    }
    const double flops = 2.0 * (double)M * (double)N * (double)K;
    printf("%-40s | %9.1f us, %7.1f TFLOP/s; best: number %2d of %2d, %+6.1f %% | %5.1f %% of peak"
           "\n", what, 1e6 * first, 1e-12 * flops / first, best, count,
           100 * (first / least - 1), 100 * flops / first / products.peak);
    fflush(stdout);
    if (counts) products.first += first, products.best += least;
    matmul_plan_free(&p);
}

static bf16 *product_tensor(size_t n) {
    bf16 *x = (bf16 *)gpu_alloc(n * sizeof *x, "a probe");
    timed_fill_kernel<<<ceil_div(n, 256), 256, 0, products.timed.stream>>>(x, n);
    CUDA(cudaGetLastError());
    return x;
}

static void products_of(const ProductShape *s) {
    const size_t C = s->C, F = s->F, N = s->N, Vp = s->Vp;
    const size_t rows = N < HEAD_CHUNK ? N : (size_t)HEAD_CHUNK;
    size_t most = N * F > F * C ? N * F : F * C;
    if (most < Vp * C) most = Vp * C;
    if (most < rows * Vp) most = rows * Vp;
    products.a = product_tensor(most);
    products.b = product_tensor(most);
    products.bias = product_tensor(F > 3 * C ? F : 3 * C);
    products.fc = product_tensor(N * F);
    products.out = product_tensor(2 * most);
    products.first = products.best = 0;
    const struct { const char *name; size_t in, out; } linear[] = {
        {"qkv", C, 3 * C}, {"attproj", C, C}, {"fc", C, F}, {"fcproj", F, C}};
    for (const auto &l : linear) {
        char name[64];
        snprintf(name, sizeof name, "%s", l.name);
        product(s->name, name, false, true, N, l.out, l.in, GEMM_BIAS, false, true);
        snprintf(name, sizeof name, "%s, gradient of the input", l.name);
        const bool slope = strcmp(l.name, "fcproj") == 0;
        const bool sums = strcmp(l.name, "qkv") == 0 || strcmp(l.name, "fc") == 0;
        product(s->name, name, false, false, N, l.in, l.out, GEMM_PLAIN, false, !slope);
        snprintf(name, sizeof name, "%s, gradient of the weight", l.name);
        product(s->name, name, true, false, l.out, l.in, N, GEMM_PLAIN, false, !sums);
        snprintf(name, sizeof name, "%s, %s", l.name, slope ? "input, GELU's slope"
                                                            : "weight and bias");
        if (slope) product(s->name, name, false, false, N, l.in, l.out, GEMM_SLOPE, false, true);
        if (sums) product(s->name, name, true, false, l.out, l.in, N, GEMM_SUMS, false, true);
    }
    product(s->name, "logits", false, true, rows, Vp, C, GEMM_PLAIN, false, false);
    product(s->name, "logits, gradient of the input", false, false, rows, C, Vp, GEMM_PLAIN,
            false, false);
    product(s->name, "wte, gradient in fp32", true, false, Vp, C, rows, GEMM_PLAIN, true,
            false);
    char what[64];
    snprintf(what, sizeof what, "%s: products of a layer", s->name);
    row(what, 6e-12 * (double)N * (double)C * (double)(4 * C + 2 * F) / products.first,
        "TFLOP/s");
    snprintf(what, sizeof what, "%s: best instead of first would save", s->name);
    row(what, 100 * (1 - products.best / products.first), "%");
    CUDA(cudaStreamSynchronize(products.timed.stream));
    for (void *x : {(void *)products.a, (void *)products.b, (void *)products.bias,
                    (void *)products.fc, products.out})
        CUDA(cudaFree(x));
}

static void part_products(const char *only) {
    timed_open(&products.timed, tiny);
    matmul_open(&products.lt);
    products.peak = device_peak(false);
    if (!(products.peak > 0)) products.peak = INFINITY;
    if (tiny) only = "tiny";
    bool any = false;
    for (const ProductShape &s : shapes) {
        if (only != NULL ? strcmp(only, s.name) != 0 : strcmp(s.name, "tiny") == 0) continue;
        any = true;
        products_of(&s);
    }
    if (!any) die("no shape %s: 124M, 1.5B, 7B or tiny", only);
    matmul_close(&products.lt);
    timed_close(&products.timed);
}

// ---------------------------------------------------------------------------------------------
// Host memory

static void part_touch(size_t mib) {
    FILE *f = fopen("/proc/self/oom_score_adj", "w");
    if (f != NULL) fprintf(f, "1000"), fclose(f);  // if there is too little, this is what ends
    const size_t bytes = mib << 20, step = bytes / 8 / 4096 * 4096 + 4096;
    char *p = (char *)mmap(NULL, 9 * step, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail("cannot map %zu MiB", mib);
    madvise(p, 9 * step, MADV_HUGEPAGE);
    const double begin = seconds_now();
    for (int part = 0; part < 8; part++) {
        #pragma omp parallel for schedule(static)
        for (size_t i = 0; i < step; i += 4096) p[(size_t)part * step + i] = 1;
        char what[64];
        snprintf(what, sizeof what, "host memory touched after %.2f s", seconds_now() - begin);
        row(what, (double)((size_t)(part + 1) * step) / (1 << 30), "GiB");
    }
    row("host memory touched for the first time", 8e-9 * (double)step / (seconds_now() - begin),
        "GB/s");
    munmap(p, 9 * step);
}

static void part_pin(size_t mib) {
    HostQueue q;
    host_queue_open(&q, 0);
    for (size_t n = mib < 64 ? mib : 64; n > 0; n = n == mib ? 0 : min_size(2 * n, mib)) {
        char what[64];
        snprintf(what, sizeof what, "%zu MiB: zeroed and page-locked", n);
        const double begin = seconds_now();
        void *p = host_alloc(&q, n << 20, "a probe");
        row(what, seconds_now() - begin, "s");
        host_free(p);
    }
    host_queue_close(&q);
}

int main(int argc, char **argv) {
    size_t touch = 0, pin = 0;
    bool host = false, copies = false, multiply = false;
    const char *shape = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) tiny = true;
        else if (strcmp(argv[i], "host") == 0) host = true;
        else if (strcmp(argv[i], "copies") == 0) copies = true;
        else if (strcmp(argv[i], "products") == 0) multiply = true;
        else if (strcmp(argv[i], "touch") == 0 && i + 1 < argc)
            touch = (size_t)tool_number("touch", argv[++i], 1, 1 << 30, true);
        else if (strcmp(argv[i], "pin") == 0 && i + 1 < argc)
            pin = (size_t)tool_number("pin", argv[++i], 1, 1 << 30, true);
        else if (multiply && shape == NULL && *argv[i] != '-') shape = argv[i];
        else die("usage: bench_probe [--tiny] [host] [copies] [products [SHAPE]] "
                 "[touch MIB] [pin MIB]");
    }
    const bool all = !host && !copies && !multiply && touch == 0 && pin == 0;
#ifdef __CUDA_EMU__
    printf("on the emulated GPU: the times below say nothing about speed\n");
#endif
    if (touch > 0) part_touch(touch);
    if (pin > 0) part_pin(pin);
    if (all || host) part_host();
    if (all || copies) part_copies();
    if (all || multiply) part_products(shape);
    return 0;
}
