// calibrate.cuh: measures the rates of rates.h on this machine, in a second or two: of the link,
// host memory, the cores and the GPU, each alone and, for some, while the others work.
//
// Every rate is the median of several runs. A run is timed between two events of the stream that
// does its work. If a run is too short, the work is made four times as large.
#ifndef TIDE_CALIBRATE_CUH
#define TIDE_CALIBRATE_CUH
#include "adam.cuh"
#include "devices.cuh"
#include "kernels.cuh"
#include "../cpu/adam_fast.h"

enum { CALIBRATE_RUNS = 9, CALIBRATE_PARTS = 32 };

// The state of n parameters, 14 n bytes.
typedef struct { float *m, *v; uint16_t *w, *low, *grad; size_t n; } HostState;

static HostState state_at(void *memory, size_t n) {
    float *m = (float *)memory;
    uint16_t *w = (uint16_t *)(m + 2 * n);
    return HostState{.m = m, .v = m + n, .w = w, .low = w + n, .grad = w + 2 * n, .n = n};
}

typedef struct {
    Owner owner;                // frees all that calibrate_open() makes
    HostQueue *q;
    cudaStream_t in, out;       // one per direction of the link
    cudaEvent_t start, end;
    HostState state;            // larger than the caches
    char *host_in, *host_out;   // `chunk` bytes each
    char *gpu;                  // two chunks: the target of copies, the source of copies
    size_t chunk;
    double seconds;             // time for one measurement
} Calibration;

// ---------------------------------------------------------------------------------------------
// The work

// Runs the CPU's update as training does.
static void calibrate_adam(const void *arg) {
    const HostState *s = (const HostState *)arg;
    const AdamStep step = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 1);
    const AdamRun run = {0, s->n, 1, 0};
    const AdamWork work = {.w = s->w, .low = s->low, .m = s->m, .v = s->v, .grad = s->grad,
                           .grad_is_half = 1, .scale = 1, .runs = &run, .count = 1, .step = step};
    adam_work(&work);
}

// Draws normal numbers, eight per thread, and writes them: writing takes less time than drawing.
__global__ static void calibrate_normals_kernel(bf16 *to, size_t n) {
    const size_t i = 8 * (blockIdx.x * (size_t)blockDim.x + threadIdx.x);
    if (i >= n) return;
    float z[8];
    Pack<bf16> x;
    rng_octet(z, 1, 1, 0, 0, i / 8);
    for (int j = 0; j < 8; j++) x.x[j] = from_f32<bf16>(z[j]);
    store_pack(to + i, x);
}

enum { WORK_H2D, WORK_D2H, WORK_GPU_COPY,                 // works of n bytes
       WORK_GPU_ADAM, WORK_GPU_NORMALS, WORK_HOST_ADAM};  // works of n parameters

// Queues one run of work of size n, a multiple of 8, in stream s, without waiting for it.
static void calibrate_submit(Calibration *c, int work, size_t n, cudaStream_t s) {
    char *to = c->gpu, *from = c->gpu + c->chunk;
    if (work == WORK_H2D) {
        stream_copy(to, c->host_in, n, cudaMemcpyHostToDevice, s);
    } else if (work == WORK_D2H) {
        stream_copy(c->host_out, from, n, cudaMemcpyDeviceToHost, s);
    } else if (work == WORK_GPU_COPY) {
        stream_copy(to, from, n, cudaMemcpyDeviceToDevice, s);
    } else if (work == WORK_GPU_ADAM) {
        const HostState x = state_at(c->gpu, n);
        const AdamRun run = {0, n, 1, 0};
        const AdamStep step = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 1);
        adam_update_gpu(x.w, x.low, x.m, x.v, x.grad, true, &run, 1, &step, s);
    } else if (work == WORK_GPU_NORMALS) {
        LAUNCH(calibrate_normals_kernel, ceil_div(n, 8 * 256), 256, 0, s, (bf16 *)c->gpu, n);
    } else {
        HostState state = c->state;
        state.n = n;
        host_queue_submit(c->q, calibrate_adam, &state, sizeof state);
    }
}

// ---------------------------------------------------------------------------------------------
// Each work alone

// Returns the rate of one kind of work in stream s, in bytes or parameters per second. limit: the
// largest size for which there is memory. A run is queued behind another run, so that the time of
// its launch does not count.
static double calibrate_rate(Calibration *c, int work, size_t limit, cudaStream_t s) {
    const double begin = seconds_now();
    double t[CALIBRATE_RUNS], last = 0;
    size_t n = limit < 4096 ? limit : 4096;
    int count = 0;
    for (bool grown = false; count < CALIBRATE_RUNS;) {
        calibrate_submit(c, work, n, s);
        event_record(c->start, s);
        calibrate_submit(c, work, n, s);
        event_record(c->end, s);
        last = device_seconds(c->start, c->end);
        if (grown) t[count++] = last;
        else if (last < c->seconds / 8 && n < limit) n = n < limit / 4 ? 4 * n : limit;
        else grown = true;
        if (count >= 3 && seconds_now() - begin > c->seconds) break;
    }
    return (double)n / fmax(median_of(t, (size_t)count), 1e-9);
}

// ---------------------------------------------------------------------------------------------
// Several works at once

// When three works ran: [0] copies to the GPU, [1] copies back, [2] the host's update. Part j of
// work i ran from at[i][j] to at[i][j + 1], in seconds. The update is a single part.
typedef struct {
    double at[3][CALIBRATE_PARTS + 1];
    size_t part[3];  // bytes or parameters in a part; 0: the work did not run
} Overlap;

// Computes the rates of the three works when they run at once: bytes per second to the GPU and
// back, and parameters per second. A part of a copy counts if all works ran during all of it. If
// no part of a copy counts, as on the emulated GPU, all its parts do.
static void overlap_rates(const Overlap *o, double rates[3]) {
    double from = -INFINITY, to = INFINITY;
    for (int i = 0; i < 3; i++) {
        if (o->part[i] == 0) continue;
        from = fmax(from, o->at[i][0]);
        to = fmin(to, o->at[i][CALIBRATE_PARTS]);
    }
    for (int i = 0; i < 3; i++) {
        if (o->part[i] == 0) continue;
        const double *at = o->at[i];
        int first = 0, last = CALIBRATE_PARTS;
        while (first < last && at[first] < from) first++;
        while (last > first && at[last] > to) last--;
        if (i == 2 || first == last) {
            first = 0;
            last = i == 2 ? 1 : CALIBRATE_PARTS;
        }
        rates[i] = (last - first) * (double)o->part[i] / (at[last] - at[first]);
    }
}

// Measures at once: copies to the GPU, if rates[0] > 0; copies back, if rates[1] > 0; the host's
// update, if host_seconds > 0, which is its time when it runs alone. On entry rates has the
// bytes per second of each copy alone. Sets rates to those at once ([2]: parameters per second).
static void calibrate_together(Calibration *c, double host_seconds, double rates[3]) {
    enum { TRIES = 3 };
    const cudaStream_t streams[3] = {c->in, c->out, c->q->stream};
    cudaEvent_t e[3][CALIBRATE_PARTS + 1];
    double tried[3][TRIES], one[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j <= CALIBRATE_PARTS; j++)
            CUDA(cudaEventCreateWithFlags(&e[i][j], cudaEventBlockingSync));
    // The copies take twice as long as the update alone, and copy the chunk part by part.
    const double wanted = host_seconds > 0 ? 2 * host_seconds : c->seconds / 8;
    const double slower = rate_or(fmin(rates[0], rates[1]), fmax(rates[0], rates[1]));
    const size_t pages = (size_t)(slower * wanted / CALIBRATE_PARTS) / 4096;
    const size_t part = min_size(max_size(pages, 1) * 4096, c->chunk);
    Overlap o = {{{0}}, {rates[0] > 0 ? part : 0, rates[1] > 0 ? part : 0,
                         host_seconds > 0 ? c->state.n : 0}};
    for (int k = 0; k < TRIES; k++) {
        event_record(c->start, c->in);
        for (int i = 0; i < 3; i++) {
            stream_wait(streams[i], c->start);
            event_record(e[i][0], streams[i]);
        }
        if (o.part[2] > 0) host_queue_submit(c->q, calibrate_adam, &c->state, sizeof c->state);
        for (size_t j = 0; j < CALIBRATE_PARTS; j++) {
            const size_t at = j % (c->chunk / part) * part;
            stream_copy(c->gpu + at, c->host_in + at, o.part[0], cudaMemcpyHostToDevice, c->in);
            event_record(e[0][j + 1], c->in);
            stream_copy(c->host_out + at, c->gpu + c->chunk + at, o.part[1], cudaMemcpyDeviceToHost,
                        c->out);
            event_record(e[1][j + 1], c->out);
            event_record(e[2][j + 1], c->q->stream);
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j <= CALIBRATE_PARTS; j++)
                o.at[i][j] = device_seconds(c->start, e[i][j]);
        overlap_rates(&o, one);
        for (int i = 0; i < 3; i++) tried[i][k] = one[i];
    }
    for (int i = 0; i < 3; i++) rates[i] = median_of(tried[i], TRIES);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j <= CALIBRATE_PARTS; j++) event_free(e[i][j]);
}

// ---------------------------------------------------------------------------------------------
// All rates

// Allocates state of n parameters (a multiple of 4096) on the host, and buffers for copies.
static void calibrate_open(Calibration *c, HostQueue *q, size_t n, double seconds) {
    const size_t chunk = min_size(7 * n, gpu_available() / 4 / 4096 * 4096);
    *c = Calibration{.q = q, .chunk = chunk, .seconds = seconds};
    if (c->chunk == 0) c->chunk = 4096;  // the allocation below fails, and names what is missing
    owner_begin(&c->owner);
    c->state = state_at(host_alloc(q, 14 * n + 2 * c->chunk, "measuring the host"), n);
    c->host_in = (char *)(c->state.grad + n);
    c->host_out = c->host_in + c->chunk;
    c->gpu = (char *)gpu_alloc(2 * c->chunk, "measuring the GPU");
    c->in = stream_make("in", false);
    c->out = stream_make("out", false);
    CUDA(cudaEventCreate(&c->start));
    CUDA(cudaEventCreateWithFlags(&c->end, cudaEventBlockingSync));  // the waiting thread sleeps
    owner_add(event_free, c->start);
    owner_add(event_free, c->end);
    owner_end();
    memset(c->state.grad, 0x3c, 2 * n);  // each number is 0.0115: division of zeros may be faster
    CUDA(cudaMemsetAsync(c->gpu, 0x3c, 2 * c->chunk, c->in));
    stream_sync(c->in);
}

// Measures all rates in about `seconds`, and some tenths of a second to page-lock memory; but not
// gpu_flops and gpu_attention (model_flops()), host_cast (a rate of other trainers), and the rates
// between GPUs. The queue must be idle. Takes at most an eighth of the host's free memory and half
// of the GPU's free memory, and frees both. All ranks of a node measure at once.
//   dram      rate of host memory in the update, which reads 14 and writes 12 bytes per parameter
//   dram_dma  rate of host memory while the update runs and both directions of the link are busy:
//             the update's bytes and the link's, each of which is read or written there, too
static void rates_measure(Rates *rates, HostQueue *q, double seconds) {
    Calibration c;
    memset(rates, 0, sizeof *rates);
    const double cache = (double)sysconf(_SC_LEVEL3_CACHE_SIZE);
    // (With twice a cache of 300 MiB, 8 to 11 G parameters/s were measured; the true rate was 6.1.)
    const double wanted = EMULATED ? 1 << 20 : fmax(16 * cache / 14, 32 << 20);
    const double most = fmin(wanted, (double)memory_available() / 8 / 37);
    const size_t n = most < 4096 ? 4096 : (size_t)most / 4096 * 4096;
    calibrate_open(&c, q, n, seconds / 12);
    rates->h2d = calibrate_rate(&c, WORK_H2D, c.chunk, c.in);
    rates->d2h = calibrate_rate(&c, WORK_D2H, c.chunk, c.out);
    double together[3] = {rates->h2d, rates->d2h, 0};
    double in[3] = {rates->h2d, 0, 0}, out[3] = {0, rates->d2h, 0};
    calibrate_together(&c, 0, together);
    rates->h2d_duplex = together[0];
    rates->d2h_duplex = together[1];
    rates->host_adam = calibrate_rate(&c, WORK_HOST_ADAM, n, q->stream);
    rates->dram = ADAM_BYTES * rates->host_adam;
    const double alone = (double)n / rates->host_adam;
    calibrate_together(&c, alone, together);
    calibrate_together(&c, alone, in);
    calibrate_together(&c, alone, out);
    rates->h2d_busy = together[0];
    rates->d2h_busy = together[1];
    rates->h2d_host = in[0];
    rates->d2h_host = out[1];
    rates->dram_dma = ADAM_BYTES * together[2] + rates->h2d_busy + rates->d2h_busy;
    rates->gpu_adam = calibrate_rate(&c, WORK_GPU_ADAM, c.chunk / 8, c.in);
    rates->gpu_bytes = 2 * calibrate_rate(&c, WORK_GPU_COPY, c.chunk, c.in);
    rates->gpu_normals = calibrate_rate(&c, WORK_GPU_NORMALS, c.chunk / 4, c.in);
    owner_free(&c.owner);
    enum { PAIRS = 8 };
    const size_t bytes = min_size(4 * n, gpu_available() / 2);
    const double begin = seconds_now();
    for (int i = 0; i < PAIRS; i++) gpu_free(gpu_alloc(bytes, "calibration"));
    rates->gpu_alloc = PAIRS * (double)bytes / fmax(seconds_now() - begin, 1e-9);
    rates->host_gpus = ranks.local_world;
}

#endif
