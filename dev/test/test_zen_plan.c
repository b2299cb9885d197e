// test_zen_plan.c: the model of zen_plan.h against the closed form at its head, and against what must
// be so on any machine. (Against zenflow.cuh itself: test_zen_time.cu.) `test_zen_plan --table` prints what the machines of scripts/rates are predicted to make of it.
#include "../../tide/zen_plan.h"
#include "test.h"
#include <unistd.h>

static bool near(double a, double b, double part) {
    return fabs(a - b) <= part * fmax(fabs(a), fabs(b));
}

#define IS(a, b) CHECK(near(a, b, 1e-9), "%.12g, not %.12g", (double)(a), (double)(b))
#define TAKES(a, b) CHECK(near(a, b, 1e-4), "%.9g s, not %.9g", (double)(a), (double)(b))
#define ABOUT(a, b, part) \
    CHECK(near(a, b, part), "%.6g, not about %.6g", (double)(a), (double)(b))

typedef struct { GPT2Config config; GPT2Table table; ZenMap map; } Model;

static Model model_make(const char *name, double topk, size_t whole) {
    Model m;
    Error err;
    if (!gpt2_preset(&m.config, name) || !gpt2_finish(&m.config, &err)) fail("no model %s", name);
    m.table = gpt2_table(&m.config);
    m.map = zen_map(&m.table, m.config.layers, topk, whole);
    return m;
}

static void model_free(Model *m) {
    zen_map_free(&m->map);
    gpt2_table_free(&m->table);
}

// One sequence of 1024, bf16.
static ZenPlan plan_of(size_t window, bool overlap, int sums) {
    ZenPlan p;
    memset(&p, 0, sizeof p);
    p.run.B = p.run.accum = 1;
    p.run.T = 1024;
    p.run.stored = 2;
    p.window = window;
    p.overlap = overlap;
    p.sums = window == 1 ? 0 : !overlap ? 1 : sums;
    return p;
}

// Nothing limits, but what a test sets.
static Rates unlimited(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    return r;
}

static Prediction predict(const Rates *r, const Model *m, const ZenPlan *p) {
    return zen_plan_step(r, &m->config, &m->map, p, NULL);
}

// Waits, as a share of the step.
static double stall_of(const Prediction *x) {
    return (x->stall_forward + x->stall_backward) / x->step;
}

// ---------------------------------------------------------------------------------------------
// By hand

// What crosses the link in a step, in units of the model in bf16: all but the chosen columns' share
// of gradients, and of weights that share once in a window.
static void the_traffic_is_as_published(void) {
    const double topk[] = {0, 0.05, 0.1, 0.5};
    const Rates r = unlimited();
    for (int i = 0; i < 4; i++) {
        Model m = model_make("7b", topk[i], 0);
        for (size_t S = 1; S <= 8; S *= 2) {
            ZenPlan p = plan_of(S, true, 2);
            const Prediction x = predict(&r, &m, &p);
            const double model = 2 * (double)m.table.parameters;
            ABOUT((x.h2d_bytes + x.d2h_bytes) / model, (1 - topk[i]) * (1 + 1 / (double)S), 2e-3);
            IS(x.d2h_bytes, 2 * (double)m.map.rest);
            IS(x.h2d_bytes, 2 * (double)m.map.rest / (double)S);
            if (topk[i] == 0.1 && S == 4) ABOUT((x.h2d_bytes + x.d2h_bytes) / model, 1.13, 5e-3);
            p.run.stored = 4;
            IS(predict(&r, &m, &p).h2d_bytes, 2 * x.h2d_bytes);
            IS(predict(&r, &m, &p).d2h_bytes, 2 * x.d2h_bytes);
        }
        model_free(&m);
    }
}

// With a link and a host that take no time, nothing is ever waited for.
static void free_hosts_leave_compute(void) {
    Model m = model_make("gpt2", 0.1, 0);
    Rates r = unlimited();
    r.gpu_flops = 1e14;
    const double N = 1024, C = 768, L = 12;
    const double layer = 2 * 12 * C * C + 2 * C * 1024, head = 2 * 50257 * C;
    const double seconds = 3 * N * (L * layer + head) / 1e14;
    for (size_t S = 1; S <= 32; S *= 2)
        for (int overlap = 0; overlap < 2; overlap++)
            for (int sums = 1; sums <= 2; sums++) {
                ZenPlan p = plan_of(S, overlap, sums);
                Prediction x = predict(&r, &m, &p);
                TAKES(x.step, seconds);
                TAKES(x.compute, seconds);
                CHECK(stall_of(&x) < 1e-6, "S %zu: %g", S, stall_of(&x));
                p.run.accum = 5;
                p.run.recompute = true;
                x = predict(&r, &m, &p);
                const double again = N * (2 * (4 * C * C + C * 4 * C) + 2 * C * 1024);
                TAKES(x.step, 5 * (seconds + (L - 1) * again / 1e14));
                TAKES(x.compute, x.step);
            }
    // the GPU updates the chosen, besides
    r.gpu_adam = 1e9;
    ZenPlan p = plan_of(4, true, 2);
    const Prediction x = predict(&r, &m, &p);
    TAKES(x.step, seconds + (double)m.map.chosen / 1e9);
    TAKES(x.compute, seconds);
    model_free(&m);
    m = model_make("gpt2", 1, 0);  // all columns
    r.h2d = r.d2h = r.host_adam = 1;
    const Prediction all = predict(&r, &m, &p);
    TAKES(all.step, seconds + (double)m.map.chosen / 1e9);
    CHECK(all.d2h_bytes == 0 && all.h2d_bytes == 0, "%g", all.d2h_bytes);
    model_free(&m);
}

// One stream that never rests decides.
static void the_slowest_decides(void) {
    Model m = model_make("gpt2", 0.1, 0);
    const double R = (double)m.map.rest;
    for (size_t S = 1; S <= 16; S++)
        for (int sums = 1; sums <= 2; sums++) {
            ZenPlan p = plan_of(S, true, sums);
            Rates r = unlimited();
            r.d2h = 1e9;
            Prediction x = predict(&r, &m, &p);
            TAKES(x.step, 2 * R / 1e9);
            CHECK(stall_of(&x) > 0.999, "%g", stall_of(&x));
            TAKES(x.stall_forward + x.stall_backward, x.step);
            r.d2h_duplex = 1e9;  // as fast, both ways
            r.h2d = r.h2d_duplex = 1e9;
            ABOUT(predict(&r, &m, &p).step, 2 * R / 1e9, S < 3 ? 1 : 0.3);
            r = unlimited();
            r.host_adam = 1e9 / 28;  // 1e9 bytes/s, of which the link needs none
            x = predict(&r, &m, &p);
            const double bytes = S == 1 ? 28 : sums == 2 ? 10 * (double)S + 26
                               : 10 * (double)S + 18;
            TAKES(x.step, bytes * R / (double)S / 1e9);
            CHECK(stall_of(&x) > 0.999, "%g", stall_of(&x));
            r = unlimited();
            r.dram = 1e9;  // what crosses the link crosses it, too
            r.h2d = r.d2h = 1e12;
            x = predict(&r, &m, &p);
            ABOUT(x.step, (bytes + 2 * (double)S + 2) * R / (double)S / 1e9, 0.02);
            r = unlimited();
            r.h2d = 1e9;  // once in a window, and whoever waits for it waits for all of it
            x = predict(&r, &m, &p);
            TAKES(x.step, 2 * R / 1e9 / (double)S);
            TAKES(x.stall_forward, x.step);
        }
    // fp32: 4 bytes of a gradient, and the new weight is the master
    Rates r = unlimited();
    ZenPlan p = plan_of(4, true, 2);
    p.run.stored = 4;
    r.host_adam = 1e9 / 28;
    TAKES(predict(&r, &m, &p).step, (3 * 12 + 8 + 28) * R / 4 / 1e9);
    p.sums = 1;
    TAKES(predict(&r, &m, &p).step, (2 * 12 + 8 + 24 + 4 + 4) * R / 4 / 1e9);
    p.overlap = false;  // the same work
    TAKES(predict(&r, &m, &p).step, (2 * 12 + 8 + 24 + 4 + 4) * R / 4 / 1e9);
    // a window of a thousand steps is as one of 64, but for what crosses the link
    p = plan_of(1000, true, 2);
    ABOUT(predict(&r, &m, &p).step, 10 * R / 1e9, 0.05);
    IS(predict(&r, &m, &p).h2d_bytes, 2 * R / 1000);
    model_free(&m);
}

// An update that takes longer than one step and less than a window: with two sums nobody notices,
// with one the next step's gradients have no room; and if nothing may be late, forward waits.
static void two_sums_spread_what_one_does_at_once(void) {
    Model m = model_make("gpt2-xl", 0.1, 0);
    const double R = (double)m.map.rest;
    Rates r = unlimited();
    r.gpu_flops = 1e14;
    ZenPlan p = plan_of(4, true, 2);
    const double compute = predict(&r, &m, &p).compute;
    r.host_adam = 66 * R / (0.8 * 4 * compute) / 28;  // the host is at work 4/5 of the time
    Prediction x = predict(&r, &m, &p);
    CHECK(stall_of(&x) < 1e-6, "%g", stall_of(&x));
    TAKES(x.step, compute);
    p.sums = 1;
    x = predict(&r, &m, &p);
    CHECK(x.stall_backward > 0.05 * compute && x.stall_forward < 1e-6 * compute, "%g %g",
          x.stall_backward / compute, x.stall_forward / compute);
    p.overlap = false;
    const Prediction now = predict(&r, &m, &p);
    CHECK(now.stall_forward > 0.05 * compute && now.step > x.step, "%g", now.stall_forward);
    // where the host has no time to spare, one sum, 8 bytes less, may be faster
    r.host_adam /= 4;
    p = plan_of(4, true, 2);
    x = predict(&r, &m, &p);
    TAKES(x.step, 66 * R / 4 / (28 * r.host_adam));
    p.sums = 1;
    CHECK(predict(&r, &m, &p).step < 0.95 * x.step, "%g", predict(&r, &m, &p).step / x.step);
    model_free(&m);
}

// Nothing is late, and a window is one step: the sum of all parts, but for what segments overlap.
static void without_delay_parts_add_up(void) {
    Model m = model_make("d1", 0, 0);
    ZenPlan p = plan_of(1, false, 0);
    Rates r = unlimited();
    r.h2d = 3e9;
    r.d2h = 2e9;
    r.host_adam = 1e9;
    r.gpu_flops = 1e13;
    const double f1 = 1024.0 * (2 * (12 * 64 * 64) + 2 * 64 * 1024) / 1e13;
    const double f2 = 1024.0 * 2 * 50257 * 64 / 1e13;
    const double e0 = (50304.0 + 1024) * 64, e1 = 12 * 64 * 64;  // vectors are the GPU's
    const Prediction x = predict(&r, &m, &p);
    CHECK(m.map.rest == (size_t)(e0 + e1), "%zu", m.map.rest);
    // from the norm on, at which the copies have only begun
    const double left = e1 * 2 / 2e9 + e0 * 2 / 2e9;
    const double host0 = left + e0 / 1e9, host1 = host0 + e1 / 1e9;
    const double back0 = host0 + e0 * 2 / 3e9, back1 = fmax(host1, back0) + e1 * 2 / 3e9;
    IS(x.step, back1 + 3 * (f1 + f2));
    IS(x.stall_forward, back1);
    CHECK(x.stall_backward == 0, "%g", x.stall_backward);
    model_free(&m);
}

// ---------------------------------------------------------------------------------------------
// On any machine

static unsigned long long state = 1;

static size_t draw(size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % n;
}

static double log_draw(double low, double high) {
    return low * exp(log(high / low) * (double)draw(1000) / 1000);
}

// A window that follows the gradients is planned for as if it had four steps.
static void auto_windows_have_four_steps(void) {
    Model m = model_make("gpt2", 0.1, 0);
    Rates r = unlimited();
    r.gpu_flops = 1e13;
    r.d2h = r.h2d = 1e9;
    r.host_adam = 1e8;
    ZenPlan p = plan_of(4, true, 2);
    const Prediction four = predict(&r, &m, &p);
    p.window = 0;
    const Prediction x = predict(&r, &m, &p);
    CHECK(memcmp(&x, &four, sizeof x) == 0, "%g %g", x.step, four.step);
    model_free(&m);
}

// More of anything good is never slower.
static void nothing_good_does_harm(void) {
    Model m = model_make("d6", 0.1, 0);
    for (int i = 0; i < 300; i++) {
        ZenPlan p = plan_of(2 + draw(5), draw(2) == 0, 1 + (int)draw(2));
        Rates r = unlimited();
        r.gpu_flops = 1e13;
        const double compute = plan_compute(&r, &m.config, &p.run), R = (double)m.map.rest;
        r.d2h = 2 * R / compute * log_draw(0.3, 10);
        r.h2d = 2 * R / compute * log_draw(0.1, 5);
        r.host_adam = R / compute * log_draw(0.1, 5);
        const double before = predict(&r, &m, &p).step;
        Rates better = r;
        *(draw(3) == 0 ? &better.d2h : draw(2) ? &better.h2d : &better.host_adam) *= 1.5;
        const double after = predict(&better, &m, &p).step;
        CHECK(after <= before * (1 + 1e-6), "%d: %g after %g: S %zu, overlap %d, sums %d", i,
              after, before, p.window, p.overlap, p.sums);
        ZenPlan late = p;
        late.overlap = true;
        // of a slow link the last result may free its room late: the host begins with that
        if (p.sums == 1) CHECK(predict(&r, &m, &late).step <= before * 1.05, "%d: late", i);
    }
    model_free(&m);
}

// Several GPUs. Where host and link take no time, a step is one of plan.h with all state on the
// GPU. If collectives take none, there might be one GPU; a faster link between them does no harm.
static void several_gpus_wait_for_each_other(void) {
    Model m = model_make("d6", 0.1, 0);
    ShardMap own = gpt2_shards_all(&m.table);
    OffloadChoice none;
    memset(&none, 0, sizeof none);
    none.mode = OFFLOAD_NONE;
    Pieces list = offload_pieces(&m.table, &own, &none);
    int waits = 0;
    for (int i = 0; i < 300; i++) {
        ZenPlan p = plan_of(1 + draw(5), draw(2) == 0, 1 + (int)draw(2));
        p.run.accum = 1 + (draw(3) == 0) * draw(6);
        p.run.world = 2 + draw(8);
        p.run.zero = 1 + (int)draw(2);
        p.run.no_overlap = draw(8) == 0;
        Rates r = unlimited();
        r.gpu_flops = 1e13;
        r.gpu_adam = 1e30;
        const double compute = plan_compute(&r, &m.config, &p.run), R = (double)m.map.rest;
        r.gpu_link = 4 * R / compute * log_draw(0.3, 10);
        r.gpu_latency = 1e-6 * (double)draw(3);
        Prediction x = predict(&r, &m, &p);
        PlanRun run = p.run;
        run.zero = 2;  // as ZenFlow, it has places for two layers' gradients
        const Prediction y = plan_step(&r, &m.config, &list, &none, &run, NULL);
        IS(x.comm, y.comm);
        IS(x.reduced_bytes + x.gathered_bytes, y.reduced_bytes + y.gathered_bytes);
        if (!p.run.no_overlap)  // which waits for what leaves, here
            ABOUT(x.step, y.step, p.run.accum <= 2 ? 1e-7 : 0.05);
        CHECK(x.step >= x.comm * (1 - 1e-9), "%d: %g of %g", i, x.step, x.comm);
        waits += x.comm_exposed > 0.1 * x.step;

        r.d2h = 2 * R / compute * log_draw(0.3, 10);
        r.h2d = 2 * R / compute * log_draw(0.1, 5);
        r.host_adam = R / compute * log_draw(0.1, 5);
        x = predict(&r, &m, &p);
        Rates faster = r;
        faster.gpu_link *= 1.5;
        CHECK(predict(&faster, &m, &p).step <= x.step * 1.005, "%d: a faster link", i);
        faster.gpu_link = faster.gpu_latency = 0;  // not known
        const Prediction free_of_it = predict(&faster, &m, &p);
        IS(x.step - x.comm_exposed, fmin(x.step, free_of_it.step));
        p.run.world = 1;
        const Prediction alone = predict(&r, &m, &p);
        IS(free_of_it.step, alone.step);
        CHECK(alone.comm == 0 && alone.comm_exposed == 0, "%g", alone.comm);
    }
    CHECK(waits > 50 && waits < 300, "%d", waits);
    pieces_free(&list);
    free(own.shards);
    model_free(&m);
}

// The window that is drawn has its spans, from time 0, and its waits.
static void a_window_is_drawn(void) {
    Model m = model_make("d4", 0.1, 0);
    Rates r = unlimited();
    r.gpu_flops = 1e13;
    r.d2h = r.h2d = 1e8;
    r.host_adam = 1e8;
    r.gpu_adam = 1e9;
    const ZenPlan p = plan_of(3, true, 2);
    char path[] = "/tmp/tide_zen_plan_XXXXXX";
    TraceFile trace;
    Error err;
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && trace_open(&trace, path, &err), "%s", path);
    const Prediction x = zen_plan_step(&r, &m.config, &m.map, &p, &trace);
    CHECK(trace_close(&trace, &err), "%s", err.text);
    size_t n = 0;
    char *text = file_read(path, &n, &err);
    Json *json = text != NULL ? json_parse(text, n, &err) : NULL;
    const Json *events = json != NULL ? json_get(json, "traceEvents") : NULL;
    CHECK(events != NULL, "%s", err.text);
    double waits = 0, leaves = 0;
    int seen[5] = {0};
    static const char *const names[5] = {"forward", "accumulate", "update", "back", "leave"};
    for (const Json *e = events != NULL ? events->child : NULL; e != NULL; e = e->next) {
        const Json *name = json_get(e, "name"), *ts = json_get(e, "ts"), *d = json_get(e, "dur");
        if (ts == NULL || d == NULL) continue;
        CHECK(ts->number >= 0, "%g", ts->number);
        if (strcmp(name->string, "wait") == 0) waits += 1e-6 * d->number;
        if (strcmp(name->string, "leave") == 0)
            leaves += json_get(json_get(e, "args"), "bytes")->number;
        for (int i = 0; i < 5; i++) seen[i] += strcmp(name->string, names[i]) == 0;
    }
    for (int i = 0; i < 5; i++) CHECK(seen[i] > 0, "no %s", names[i]);
    // 5 of the 6 segments have a rest; three steps, and what comes behind the norm before them
    CHECK(seen[1] == 20 && seen[3] == 10 && seen[4] == 15, "%d %d %d", seen[1], seen[3], seen[4]);
    ABOUT(waits, 3 * (x.stall_forward + x.stall_backward), 0.1);
    ABOUT(leaves, 3 * x.d2h_bytes, 1e-6);
    json_free(json);
    free(text);
    unlink(path);
    close(fd);
    model_free(&m);
}

// ---------------------------------------------------------------------------------------------

// 7B on the machines of scripts/rates, against the CPU's update of everything, at once or after S
// micro-batches, whose gradients the GPU sums: seconds per micro-batch.
static void print_table(void) {
    static const char *const names[] = {"h200_16cores", "paper_h100", "rtx4090_desktop"};
    const size_t batches[] = {1, 4, 16};
    Model m = model_make("7b", 0.1, 0);
    ShardMap shards = gpt2_shards_all(&m.table);
    printf("| 7b, per micro-batch of 2048 tokens a sequence | sequences | compute | zero | zero, 4 "
           "at once | zenflow, nothing late | one sum | two sums | waits |\n");
    printf("|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < 3; i++)
        for (int b = 0; b < 3; b++) {
            Rates r;
            Error err;
            char path[64];
            snprintf(path, sizeof path, "scripts/rates/%s.txt", names[i]);
            if (!rates_load(&r, path, &err)) fail("%s", err.text);
            ZenPlan p = plan_of(4, false, 1);
            p.run.B = batches[b];
            p.run.T = 2048;
            const double sync = predict(&r, &m, &p).step;
            p.overlap = true;
            const double one = predict(&r, &m, &p).step;
            p.sums = 2;
            const Prediction two = predict(&r, &m, &p);
            OffloadChoice c;
            memset(&c, 0, sizeof c);
            c.mode = OFFLOAD_ZERO;
            Pieces list = offload_pieces(&m.table, &shards, &c);
            PlanRun run = p.run;
            const double zero = plan_step(&r, &m.config, &list, &c, &run, NULL).step;
            run.accum = 4;
            const double four = plan_step(&r, &m.config, &list, &c, &run, NULL).step / 4;
            pieces_free(&list);
            printf("| %s | %zu | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.0f %% |\n",
                   names[i], batches[b], two.compute, zero, four, sync, one, two.step,
                   100 * stall_of(&two));
        }
    free(shards.shards);
    model_free(&m);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--table") == 0) {
        print_table();
        return 0;
    }
    RUN(the_traffic_is_as_published);
    RUN(free_hosts_leave_compute);
    RUN(the_slowest_decides);
    RUN(two_sums_spread_what_one_does_at_once);
    RUN(without_delay_parts_add_up);
    RUN(auto_windows_have_four_steps);
    RUN(nothing_good_does_harm);
    RUN(several_gpus_wait_for_each_other);
    RUN(a_window_is_drawn);
    return test_summary();
}
