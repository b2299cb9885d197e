// timed.cuh: how long the device takes for something when it is not left idle: as many runs as take
// some milliseconds lie between two events, and the host waits for the last one only. So clocks and
// power are those of training, where a GPU that waits for the host between runs has higher ones.
#ifndef TIDE_TIMED_CUH
#define TIDE_TIMED_CUH
#include "../../tide/gpu/devices.cuh"

enum { TIMED_ROUNDS = 5, TIMED_RUNS = 500 };

// Numbers in [-1, 1): a product of zeros would draw less power and run at a higher clock.
template <typename X> __global__ static void timed_fill_kernel(X *x, size_t n) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) x[i] = from_f32<X>((float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f);
}

typedef struct {
    cudaStream_t stream;
    cudaEvent_t start, end;
    char *flush;         // overwritten before each run of what moves less than that, so that it
    size_t flush_bytes;  // comes from memory: several times the cache
    int rounds;
    double seconds;      // of a round
} Timed;

static inline void timed_open(Timed *t, bool tiny) {
    t->rounds = tiny ? 1 : TIMED_ROUNDS;
    t->seconds = tiny ? 0 : 10e-3;
    t->flush_bytes = tiny ? (size_t)1 << 20 : (size_t)256 << 20;
    t->flush = (char *)gpu_alloc(t->flush_bytes, "a benchmark");
    CUDA(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&t->start));
    CUDA(cudaEventCreate(&t->end));
}

static inline void timed_close(Timed *t) {
    CUDA(cudaStreamSynchronize(t->stream));
    CUDA(cudaFree(t->flush));
    CUDA(cudaEventDestroy(t->start));
    CUDA(cudaEventDestroy(t->end));
    CUDA(cudaStreamDestroy(t->stream));
}

// Seconds of one of `runs` in a row.
template <typename F> static double timed_runs(const Timed *t, int runs, bool flush, F call) {
    CUDA(cudaEventRecord(t->start, t->stream));
    for (int i = 0; i < runs; i++) {
        if (flush) CUDA(cudaMemsetAsync(t->flush, 0, t->flush_bytes, t->stream));
        call();
    }
    CUDA(cudaEventRecord(t->end, t->stream));
    return device_seconds(t->start, t->end) / runs;
}

// Seconds of one `call`, which queues in t->stream what moves `bytes`: first[i] of each of t->rounds
// rounds, and with a second call, which takes turns with it, second[i]. The time of what overwrites
// the cache is measured in turn as well, and subtracted.
template <typename F, typename G>
static void timed_turns(const Timed *t, double bytes, F call, double *first, G other,
                        double *second) {
    const bool flush = bytes < (double)t->flush_bytes;
    timed_runs(t, 1, flush, call);  // the first one loads the kernel
    if (second != NULL) timed_runs(t, 1, flush, other);
    const double wanted = t->seconds / timed_runs(t, 2, flush, call);
    const int runs = wanted < 2 ? 2 : wanted > TIMED_RUNS ? TIMED_RUNS : (int)wanted;
    for (int i = 0; i < t->rounds; i++) {
        first[i] = timed_runs(t, runs, flush, call);
        if (second != NULL) second[i] = timed_runs(t, runs, flush, other);
        const double nothing = flush ? timed_runs(t, runs, true, [] {}) : 0;
        first[i] = fmax(first[i] - nothing, 1e-9);
        if (second != NULL) second[i] = fmax(second[i] - nothing, 1e-9);
    }
}

// The median of the rounds.
template <typename F> static double timed(const Timed *t, double bytes, F call) {
    double s[TIMED_ROUNDS];
    timed_turns(t, bytes, call, s, call, NULL);
    return median_of(s, (size_t)t->rounds);
}

#endif
