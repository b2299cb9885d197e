// Tests of calibrate.cuh: each kind of work does what its rate is said to count, the arithmetic of
// work that overlaps, and whole measurements. On the emulated GPU these run twice: on its virtual
// clock, where the link has a known speed and every rate is known beforehand; and on the real one.
#include "../../../tide/gpu/calibrate.cuh"
#include "../test.h"
#include <sys/wait.h>

static HostQueue queue;

static bool is_virtual(void) {
    const char *clock = getenv("EMU_CLOCK");
    return clock != NULL && strcmp(clock, "virtual") == 0;
}

static bool near(double x, double y) { return fabs(x / y - 1) < 2e-3; }

// ---------------------------------------------------------------------------------------------
// The work

// Sizes are multiples of 8, as calibrate_submit() asks; behind what it should touch, nothing moves.
static void test_work_copies(void) {
    Calibration c;
    calibrate_open(&c, &queue, 8192, 1e-3);
    const size_t n = 12344;
    unsigned char *got = (unsigned char *)alloc_or_fail(c.chunk, 1, "test");
    memset(c.host_in, 1, c.chunk);
    memset(c.host_out, 2, c.chunk);
    calibrate_submit(&c, WORK_H2D, n);
    CUDA(cudaStreamSynchronize(c.in));
    CUDA(cudaMemcpy(got, c.gpu, c.chunk, cudaMemcpyDeviceToHost));
    calibrate_submit(&c, WORK_D2H, n);
    CUDA(cudaStreamSynchronize(c.out));
    for (size_t i = 0; i < c.chunk; i++)
        CHECK(got[i] == (i < n ? 1 : 0x3c) && c.host_out[i] == (i < n ? 0x3c : 2),
              "byte %zu: %d on the GPU, %d back", i, got[i], c.host_out[i]);
    calibrate_submit(&c, WORK_GPU_COPY, n);
    CUDA(cudaStreamSynchronize(c.in));
    CUDA(cudaMemcpy(got, c.gpu, n, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) CHECK(got[i] == 0x3c, "on the GPU, byte %zu: %d", i, got[i]);
    free(got);
    owner_free(&c.owner);
}

// Both updates by adam_scalar(), for exactly as many parameters as they are asked for.
static void test_work_adam(void) {
    Calibration c;
    calibrate_open(&c, &queue, 32768, 1e-3);
    const AdamStep step = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 1);
    float p = 0, m = 0, v = 0;
    adam_scalar(&p, &m, &v, bf16_to_f32(0x3c3c), &step, step.weight_decay);
    const size_t n = 5000;
    HostState x = state_at(alloc_or_fail(14 * n, 1, "test"), n);
    CUDA(cudaMemset(c.gpu, 0, 12 * n));  // gradients are behind weights and the rest
    CUDA(cudaDeviceSynchronize());
    calibrate_submit(&c, WORK_HOST_ADAM, n);
    calibrate_submit(&c, WORK_GPU_ADAM, n);
    CUDA(cudaStreamSynchronize(c.q->stream));
    CUDA(cudaStreamSynchronize(c.in));
    CUDA(cudaMemcpy(x.m, c.gpu, 14 * n, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < c.state.n; i++) {
        const bool host = i < n;
        CHECK(c.state.w[i] == (host ? master_weight(p) : 0) && c.state.m[i] == (host ? m : 0)
              && c.state.low[i] == (host ? master_low(p) : 0) && c.state.v[i] == (host ? v : 0)
              && c.state.grad[i] == 0x3c3c, "host, %zu", i);
        CHECK(!host || (x.m[i] == m && x.v[i] == v && x.w[i] == master_weight(p)
                        && x.low[i] == master_low(p) && x.grad[i] == 0x3c3c), "GPU, %zu", i);
    }
    free(x.m);
    CHECK(14 * calibrate_limit(&c, WORK_GPU_ADAM) <= 2 * c.chunk, "more than there is room for");
    owner_free(&c.owner);
}

// ---------------------------------------------------------------------------------------------
// Overlap

// A row: copies with one part per `in` and `out` seconds (0: none) from 0 on, and an update from
// begin to end (0: none); and the rates of them that must be found.
static const struct { double in, out, begin, end, rates[3]; } overlaps[] = {
    {1, 2.5, 0, 0, {1000, 400, 0}},     // one is done long before the other: only until then
    {1, 1, 4, 16, {1000, 1000, 500}},   // the update is done before them
    {1, 2, 16, 64, {1000, 500, 125}},   // or after: it went at the same speed all the time
    {1, 0, 4, 16, {1000, 0, 500}},      // one direction
    {1, 1, 32, 64, {1000, 1000, 187.5}},  // one after the other: as each is alone
    {4, 1, 30, 60, {250, 1000, 200}},   // or nearly so: half a part of one, two of the other
};

static void test_overlap(void) {
    double found[3];
    for (const auto &x : overlaps) {
        Overlap o = {{{0}}, {1000, x.out > 0 ? (size_t)1000 : 0, x.end > 0 ? (size_t)6000 : 0}};
        for (int i = 0; i <= CALIBRATE_PARTS; i++) {
            o.at[0][i] = i * x.in;
            o.at[1][i] = i * x.out;
            o.at[2][i] = i == 0 ? x.begin : x.end;
        }
        overlap_rates(&o, found);
        for (int k = 0; k < 3; k++)
            CHECK(x.rates[k] == 0 || near(found[k], x.rates[k]), "%zu, %d: %g, not %g",
                  (size_t)(&x - overlaps), k, found[k], x.rates[k]);
    }
    Overlap o = {{{0}}, {1000, 1000, 6000}};  // copies are faster before and after the update
    for (int i = 0; i <= CALIBRATE_PARTS; i++) {
        o.at[0][i] = o.at[1][i] = i < 8 ? i : i < 24 ? 2 * i - 8 : i + 16;
        o.at[2][i] = i == 0 ? 8 : 40;
    }
    overlap_rates(&o, found);
    CHECK(near(found[0], 500) && near(found[1], 500) && near(found[2], 187.5), "%g %g %g", found[0],
          found[1], found[2]);
}

// ---------------------------------------------------------------------------------------------
// Measurements

static size_t gpu_memory_free(void) {
    size_t free_bytes, total;
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

// On the virtual clock: EMU_LINK bytes per second each way, at the same time; whatever the host
// does, takes as long.
static void check_rates(const Rates *r) {
    for (int i = 0; i < RATE_FIELDS; i++) {
        const double x = *rate_at(r, i), *at = rate_at(r, i);
        const bool link = at < &r->dram;  // and what is measured of it
        if (at == &r->gpu_flops || at == &r->gpu_attention || at == &r->host_cast
            || at >= &r->gpu_link)
            CHECK(x == 0, "%s: %g", rate_fields[i].name, x);
        else CHECK(x > 0 && isfinite(x) && (!is_virtual() || !link || near(x, 1e9)), "%s: %g",
                   rate_fields[i].name, x);
    }
    CHECK(near(r->dram, ADAM_BYTES * r->host_adam), "%g, %g", r->dram, r->host_adam);
    CHECK(r->dram_dma > r->h2d_busy + r->d2h_busy, "%g", r->dram_dma);
    CHECK(!is_virtual() || near(r->dram_dma, r->dram + 2e9), "%g %g", r->dram, r->dram_dma);
}

// Several ranks of a node measure at once. What the libraries keep, they have after the first time.
static void test_measure(void) {
    Rates r;
    size_t gpu = 0;
    for (int i = 0; i < 2; i++) {
        memset(&r, 0xff, sizeof r);
        ranks.local_world = i + 1;
        rates_measure(&r, &queue, 0.02);
        CHECK(r.host_gpus == i + 1, "%d ranks: %g GPUs", i + 1, r.host_gpus);
        check_rates(&r);
        if (i == 0) gpu = gpu_memory_free();
    }
    ranks.local_world = 1;
    CHECK(gpu_memory_free() == gpu, "GPU: %zu free, %zu before", gpu_memory_free(), gpu);
}

// Nearly all of the GPU's memory is in use.
static void test_measure_little_memory(void) {
#ifndef __CUDA_EMU__
    SKIP("a driver needs memory of its own, and so do other processes");
#endif
    void *p = gpu_alloc(gpu_memory_free() - ((size_t)2 << 20), "all but a little");
    Rates r;
    rates_measure(&r, &queue, 0.02);
    check_rates(&r);
    CUDA(cudaFree(p));
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
#ifdef __CUDA_EMU__
    if (*only == '\0') {  // the emulated GPU reads its settings when the program starts
        int failed = 0, status = 0;
        setenv("EMU_MEM_MB", "16", 1);
        setenv("EMU_LINK", "1000000000", 1);
        static const char *const clocks[] = {"virtual", "real"};
        for (int i = 0; i < 2; i++) {
            setenv("EMU_CLOCK", clocks[i], 1);
            if (i == 1) unsetenv("EMU_LINK");
            const pid_t child = fork();
            if (child == 0) execl("/proc/self/exe", argv[0], clocks[i], (char *)NULL);
            failed |= child < 0 || waitpid(child, &status, 0) != child || status != 0;
        }
        return failed;
    }
#endif
    host_queue_open(&queue, 0);
    if (strcmp(only, "real") != 0) {
        RUN(test_work_copies);
        RUN(test_work_adam);
        RUN(test_overlap);
    }
    RUN(test_measure);
    RUN(test_measure_little_memory);
    host_queue_close(&queue);
    return test_summary();
}
