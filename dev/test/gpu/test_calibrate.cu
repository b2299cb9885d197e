// Tests of calibrate.cuh: updates of as many parameters as are counted, the arithmetic of work that
// overlaps, and whole measurements. On the emulated GPU these run once more on its virtual clock,
// where the link has a known speed and its rates are known beforehand.
#include "../../../tide/gpu/calibrate.cuh"
#include "../test.h"

static HostQueue queue;
static bool is_virtual;

static bool near(double x, double y) { return fabs(x / y - 1) < 2e-3; }

// ---------------------------------------------------------------------------------------------
// The work

// Both updates are of exactly as many parameters as they are asked for, with the same bits.
static void test_work_adam(void) {
    Calibration c;
    calibrate_open(&c, &queue, 32768, 1e-3);
    const size_t n = 5000;
    HostState x = state_at(alloc_or_fail(14 * n, 1, "test"), n);
    CUDA(cudaMemset(c.gpu, 0, 12 * n));  // gradients are behind weights and the rest
    CUDA(cudaDeviceSynchronize());
    calibrate_submit(&c, WORK_HOST_ADAM, n, queue.stream);
    calibrate_submit(&c, WORK_GPU_ADAM, n, c.in);
    CUDA(cudaStreamSynchronize(c.q->stream));
    CUDA(cudaStreamSynchronize(c.in));
    CUDA(cudaMemcpy(x.m, c.gpu, 14 * n, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < c.state.n; i++)
        CHECK(i < n ? x.m[i] == c.state.m[i] && x.v[i] == c.state.v[i] && x.w[i] == c.state.w[i]
                      && x.low[i] == c.state.low[i] && x.v[i] > 0
                    : c.state.v[i] == 0, "parameter %zu", i);
    free(x.m);
    owner_free(&c.owner);
}

// ---------------------------------------------------------------------------------------------
// Overlap

// A row: copies with one part per `in` and `out` seconds (0: none) from 0 on, and an update from
// begin to end (0: none); and the rates of them that must be found.
static const struct { double in, out, begin, end, rates[3]; } overlaps[] = {
    {1, 2.5, 0, 0, {1000, 400, 0}},     // one is done long before the other: only until then
    {1, 2, 16, 64, {1000, 500, 125}},   // the update is done after them, at one speed all the time
    {1, 0, 4, 16, {1000, 0, 500}},      // one direction
    {1, 1, 32, 64, {1000, 1000, 187.5}},  // one after the other: as each is alone
    {0.5, 0.5, 8, 40, {500, 500, 187.5}},  // copies are slower, two seconds, during the update
};

static void test_overlap(void) {
    for (const auto &x : overlaps) {
        double found[3];
        Overlap o = {{{0}}, {1000, x.out > 0 ? (size_t)1000 : 0, x.end > 0 ? (size_t)6000 : 0}};
        for (int i = 0; i <= CALIBRATE_PARTS; i++) {
            const double slow = i < 8 ? i : i < 24 ? 2 * i - 8 : i + 16;
            o.at[0][i] = x.in == 0.5 ? slow : i * x.in;
            o.at[1][i] = x.out == 0.5 ? slow : i * x.out;
            o.at[2][i] = i == 0 ? x.begin : x.end;
        }
        overlap_rates(&o, found);
        for (int k = 0; k < 3; k++)
            CHECK(x.rates[k] == 0 || near(found[k], x.rates[k]), "%zu, %d: %g, not %g",
                  (size_t)(&x - overlaps), k, found[k], x.rates[k]);
    }
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
        else CHECK(x > 0 && isfinite(x) && (!is_virtual || !link || near(x, 1e9)), "%s: %g",
                   rate_fields[i].name, x);
    }
    CHECK(near(r->dram, ADAM_BYTES * r->host_adam), "%g, %g", r->dram, r->host_adam);
    CHECK(r->dram_dma > r->h2d_busy + r->d2h_busy, "%g", r->dram_dma);
    CHECK(!is_virtual || near(r->dram_dma, r->dram + 2e9), "%g %g", r->dram, r->dram_dma);
}

// Several ranks of a node measure at once; and, on the emulated GPU, while nearly all of its memory
// is in use. The libraries allocate what they keep in the first of two measurements.
static void test_measure(void) {
    Rates r;
    size_t gpu = 0;
    for (int i = 0; i < 2; i++) {
        void *most = is_virtual && i == 1
                     ? gpu_alloc(gpu_memory_free() - ((size_t)2 << 20), "all but a little") : NULL;
        memset(&r, 0xff, sizeof r);
        ranks.local_world = i + 1;
        rates_measure(&r, &queue, 0.02);
        CHECK(r.host_gpus == i + 1, "%d ranks: %g GPUs", i + 1, r.host_gpus);
        check_rates(&r);
        CUDA(cudaFree(most));
        if (i == 0) gpu = gpu_memory_free();
    }
    ranks.local_world = 1;
    CHECK(gpu_memory_free() == gpu, "GPU: %zu free, %zu before", gpu_memory_free(), gpu);
}

int main(int argc, char **argv) {
    is_virtual = argc > 1;
    host_queue_open(&queue, 0);
    if (!is_virtual) RUN(test_work_adam);
    if (!is_virtual) RUN(test_overlap);
    RUN(test_measure);
    host_queue_close(&queue);
    if (EMULATED && !is_virtual && test_summary() == 0) {  // settings are read at the start
        setenv("EMU_MEM_MB", "16", 1);
        setenv("EMU_LINK", "1000000000", 1);
        setenv("EMU_CLOCK", "virtual", 1);
        execl("/proc/self/exe", argv[0], "virtual", (char *)NULL);
    }
    return test_summary();
}
