// test_zen_time.cu: zenflow.cuh takes as long as a rehearsal predicts, on the emulated GPU's virtual
// clock, where a kernel takes 10 us, a copy its bytes, and the host's work what is said here.
//
// usage: test_zen_time               all tests
//        test_zen_time --clock K     what they run, with EMU_CLOCK=virtual
#include "model_harness.cuh"

#ifdef __CUDA_EMU__
// Five layers that are alike, and small embeddings.
static const Shape shape = {"time", 5, 2, 32, 128, 61, 8, 1, 8, GELU, 1, KEEP, 1, 99, false};

typedef struct {
    const char *name;
    double topk;
    size_t window;
    bool overlap;
    size_t sums, accum, whole;
    double host;        // bytes per us of the host's memory; 0: no limit
    bool no_overlap;
    int bits, places;   // of stored numbers; for the layers' gradients
    int streamed;       // layers whose weights live on the host
} Case;

// Bytes per us of the link, each way: the first hides all copies, the second none.
static const double links[2] = {600, 12};
static double link_rate;  // the one that runs

// How exact the prediction must be: what it leaves out is what packing and scattering take.
static const double within = 0.02;

static const Case cases[] = {
    {"free host, two sums", .1, 4, true, 2, 1, 0, 0, false, 16, 9, 0},
    {"a host that keeps up, two sums", .1, 4, true, 2, 1, 0, 250, false, 16, 2, 0},
    {"the same with one", .1, 4, true, 1, 1, 0, 250, false, 16, 9, 0},
    {"the same, nothing late", .1, 4, false, 1, 1, 0, 250, false, 16, 2, 0},
    {"a slow host, two sums", .1, 4, true, 2, 1, 0, 37, false, 16, 9, 0},
    {"a slow host, one sum", .1, 4, true, 1, 1, 0, 37, false, 16, 2, 0},
    {"a slow host, nothing late", .1, 3, false, 1, 1, 0, 37, false, 16, 9, 0},
    {"a slow host, each step, late", 0, 1, true, 1, 1, 0, 75, false, 16, 2, 0},
    {"a slow host, each step", 0, 1, false, 1, 1, 0, 75, false, 16, 9, 0},
    {"half of it chosen", .5, 2, true, 2, 1, 0, 75, false, 16, 2, 0},
    {"two micro-batches", .1, 3, true, 2, 2, 0, 75, false, 16, 9, 0},
    {"three layers on the GPU", .1, 4, true, 1, 1, 3, 75, false, 16, 2, 0},
    {"no overlap", .1, 4, true, 2, 1, 0, 75, true, 16, 9, 0},
    {"all in fp32", .1, 4, true, 2, 1, 0, 75, false, 32, 2, 0},
    {"weights on the host", .1, 4, true, 2, 1, 0, 250, false, 16, 9, 5},
    {"some of them, a slow host", .1, 3, false, 1, 2, 0, 37, false, 16, 2, 3},
    {"the same, no overlap", .1, 4, true, 2, 1, 1, 75, true, 16, 2, 4},
    {"the same in fp32", .1, 4, true, 2, 1, 0, 75, false, 32, 2, 4},
};
enum { CASES = sizeof cases / sizeof *cases };

static void run_of(Run *r, const Case *c) {
    char *argv[] = {(char *)"test", (char *)"--data", (char *)"none", (char *)"--offload",
                    (char *)"zenflow"};
    memset(r, 0, sizeof *r);
    options_parse(&r->o, 5, argv, true);
    r->o.zen_topk = c->topk;
    r->o.zen_window = c->window;
    r->o.zen_reselect = 0;
    r->o.zen_warmup = 1;
    r->o.zen_overlap = c->overlap ? OVERLAP_ON : OVERLAP_OFF;
    r->o.resident = (double)c->whole / (double)shape.L;
    r->o.accum = c->accum;
    r->B = shape.B;
    r->T = shape.T;
    r->o.no_overlap = c->no_overlap;
    r->config = shape_config(&shape);
    r->table = gpt2_table(&r->config);
    r->training = true;
}

// Microseconds of a step, the mean over some windows, and bytes; and what was predicted.
typedef struct { double step, in, out; Prediction planned; } Times;

static Times measure(const Case *c, double compute) {
    const size_t windows = c->window > 1 ? 2 : 4;
    Shape s = shape;
    s.accum = c->accum;
    Placement where;
    memset(&where, 0, sizeof where);
    where.choice.mode = OFFLOAD_ZENFLOW;
    where.choice.kept_grads = KEEP_ALL;
    where.choice.grad_rooms = c->places;
    where.serial = c->no_overlap;
    where.threads = 1;
    Run r;
    Times t;
    run_of(&r, c);
    memset(&t, 0, sizeof t);
    host_bytes_per_s = 1e6 * c->host;
    GPT2 *g = model_new(&s, &where);
    zen_choose(g, &r, SIZE_MAX, SIZE_MAX);
    zen_settle_sums(g->zen, c->sums == 1);
    gpt2_place(g);
    const size_t host = gpt2_bytes(g, true);  // leaves no room for more sums
    model_plan(g, RECOMPUTE_NONE, SIZE_MAX, host);
    g->choice.streamed = c->streamed;
    gpt2_place(g);
    CHECK(g->streamed == c->streamed, "%s: %d layers stream", c->name, g->streamed);
    gpt2_allocate(g);
    float *params = shape_params(&s, false);
    g->zen->queued = g->zen->map.segments;
    for (int i = 0; i < g->table.count; i++)
        for (int k = 0; k < STATE_PARTS; k += STATE_PARTS - 1)
            zen_move(g, k, g->table.tensors[i].offset, g->table.tensors[i].size,
                     params + g->table.tensors[i].offset, false);
    free(params);

    const size_t room = s.accum * s.B * s.T, first = 1 + windows * c->window;
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * room, sizeof(int32_t), "test");
    double begin = 0;
    for (size_t step = 1; step <= first + windows * c->window; step++) {
        double norm_squared;
        shape_batch(&s, step, inputs, inputs + room);
        gpu_gradient(g, &s, inputs, inputs + room, &norm_squared);
        if (step == first) begin = emu_virtual_now();
        if (step == first) g->moved_in = g->moved_out = 0;
        t.step = 1e6 * (emu_virtual_now() - begin);
        if (step == first + windows * c->window) break;
        const ZenRates rates = zen_rates(&r.o, step);
        zen_update(g, step, clip_scale(norm_squared, 1), &rates);
        if (c->no_overlap) gpt2_update_wait(g);
    }
    const double steps = (double)(windows * c->window);
    t.step /= steps;
    t.in = (double)g->moved_in / steps;
    t.out = (double)g->moved_out / steps;
    free(inputs);

    if (compute > 0) {
        Rates rates;
        memset(&rates, 0, sizeof rates);
        rates.h2d = rates.d2h = 1e6 * link_rate;
        rates.host_adam = 1e6 * c->host / ADAM_BYTES;
        t.planned = rehearsed(g, &s, &rates, 1e-6 * compute);
    }
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    model_close(g);
    gpt2_table_free(&r.table);
    return t;
}

static void test_predictions(void) {
    double worst = 0, sum = 0;
    int n = 0;
    for (int k = 0; k < CASES; k++) {
        if (cases[k].bits != BITS) continue;
        if (BITS == 16 && !test_whole() && (k % 2 == 0) != (link_rate == links[0])) continue;
        const Case *c = &cases[k];
        Case all = *c;  // everything on the GPU: nothing is waited for
        all.topk = 1;
        all.whole = all.streamed = 0;
        all.window = 1;
        all.no_overlap = false;
        const double compute = measure(&all, 0).step;
        const Times t = measure(c, compute);
        const double planned = 1e6 * t.planned.step, off = planned / t.step - 1;
        worst = fmax(worst, fabs(off));
        sum += fabs(off);
        n++;
        printf("  %-32s %7.0f us, planned %7.0f: %+.1f %%; compute %.0f, forward waits %.0f, "
               "backward %.0f\n", c->name, t.step, planned, 100 * off, compute,
               1e6 * t.planned.stall_forward, 1e6 * t.planned.stall_backward);
        CHECK(test_within(fabs(off), within), "%s: %.0f us, planned %.0f", c->name, t.step,
              planned);
        CHECK(fabs(t.in - t.planned.h2d_bytes) < 1 && fabs(t.out - t.planned.d2h_bytes) < 1,
              "%s: %.0f bytes in, planned %.0f; %.0f out, planned %.0f", c->name, t.in,
              t.planned.h2d_bytes, t.out, t.planned.d2h_bytes);
    }
    printf("  %.0f bytes per us: the worst is %.1f %% off, the mean %.1f %%\n", link_rate,
           100 * worst, 100 * sum / n);
}
#endif

static void test_plan_on_the_virtual_clock(void) {
#ifdef __CUDA_EMU__
    for (int i = 0; i < 2; i++) {
        char link[40], which[2] = {(char)('0' + i), '\0'};
        int status;
        snprintf(link, sizeof link, "%.0f", 1e6 * links[i]);
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            setenv("EMU_CLOCK", "virtual", 1);
            setenv("EMU_KERNEL_US", "10", 1);
            setenv("EMU_HOST_US", "0", 1);
            setenv("EMU_LINK", link, 1);
            unsetenv("EMU_SCHED");
            execl("/proc/self/exe", "test_zen_time", "--clock", which, (char *)NULL);
            _exit(127);
        }
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    }
#else
    SKIP("only on the virtual clock of the emulated GPU");
#endif
}

int main(int argc, char **argv) {
#ifdef __CUDA_EMU__
    if (argc == 3 && strcmp(argv[1], "--clock") == 0) {
        link_rate = links[atoi(argv[2])];
        RUN(test_predictions);
        return test_summary();
    }
#endif
    (void)argc;
    (void)argv;
    RUN(test_plan_on_the_virtual_clock);
    return test_summary();
}
