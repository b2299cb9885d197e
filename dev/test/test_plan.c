// test_plan.c: the model of plan.h against cases computed by hand, against the bound of rates.h and
// against arithmetic; the choice that --offload auto makes; and the table of
// doc/performance_model.md, which `test_plan --table` prints and which must be the one in the file.
#include "../../tide/plan.h"
#include "test.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b)); }

#define IS(a, b) CHECK(near(a, b), "%.12g, not %.12g", (double)(a), (double)(b))

// ---------------------------------------------------------------------------------------------
// The machine

static PlanTask machine_tasks[16];
static PlanTasks machine;

static int task(int row, double work, int a, int b) {
    machine.tasks = machine_tasks;
    machine.room = 16;
    return plan_add(&machine, row, "task", 0, work, a, b, -1);
}

static double machine_end(int i) { return machine.tasks[i].end; }

static Rates machine_rates(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = 10;
    r.d2h = 20;
    machine.count = 0;
    machine.host_rate = 28;
    return r;
}

static void one_copy_takes_its_bytes_over_its_rate(void) {
    const Rates r = machine_rates();
    const int in = task(ROW_FETCH, 100, -1, -1), out = task(ROW_FLUSH, 100, in, -1);
    const int cpu = task(ROW_HOST, 280, out, -1), gpu = task(ROW_COMPUTE, 7, cpu, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(in), 10);
    IS(machine_end(out), 15);
    IS(machine_end(cpu), 25);
    IS(machine_end(gpu), 32);
}

static void a_stream_keeps_its_order(void) {
    const Rates r = machine_rates();
    const int cpu = task(ROW_HOST, 28 * 3, -1, -1), late = task(ROW_FETCH, 50, cpu, -1);
    const int behind = task(ROW_FETCH, 50, -1, -1), other = task(ROW_BACK, 20, -1, -1);
    const int grad = task(ROW_LEAVE, 40, behind, -1), state = task(ROW_FLUSH, 40, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(other), 2);
    IS(machine_end(late), 8);
    IS(machine_end(behind), 13);
    IS(machine_end(grad), 15);
    IS(machine_end(state), 17);  // the same way out
}

static void streams_share_the_link_and_the_gpu(void) {
    const Rates r = machine_rates();
    const int a = task(ROW_FETCH, 100, -1, -1), b = task(ROW_BACK, 25, -1, -1);
    const int c = task(ROW_COMPUTE, 3, -1, -1), u = task(ROW_UPDATE, 1, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(b), 5);
    IS(machine_end(a), 12.5);
    IS(machine_end(u), 2);
    IS(machine_end(c), 4);
}

static void both_directions_have_rates_of_their_own(void) {
    Rates r = machine_rates();
    r.h2d_duplex = 8;
    r.d2h_duplex = 16;
    int in = task(ROW_FETCH, 100, -1, -1), out = task(ROW_LEAVE, 80, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(out), 5);
    IS(machine_end(in), 5 + 6);  // 60 left, alone at 10
    r = machine_rates();
    r.h2d_duplex = 8;
    r.d2h_duplex = 16;
    r.h2d_busy = 4;
    r.d2h_busy = 5;
    in = task(ROW_FETCH, 100, -1, -1);
    out = task(ROW_LEAVE, 80, -1, -1);
    const int cpu = task(ROW_HOST, 28 * 4, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(cpu), 4);
    IS(machine_end(out), 4 + 60.0 / 16);
    IS(machine_end(in), 4 + 3.75 + (100 - 16 - 30) / 10.0);
}

static void host_memory_is_shared_evenly(void) {
    Rates r = machine_rates();
    r.dram = 24;
    int cpu = task(ROW_HOST, 120, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(cpu), 5);  // not at 28
    machine_rates();
    cpu = task(ROW_HOST, 120, -1, -1);
    int in = task(ROW_FETCH, 50, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(in), 5);
    IS(machine_end(cpu), 5 + 50.0 / 24);  // 14 a second, then 24
    r.dram_dma = 36;
    machine_rates();
    cpu = task(ROW_HOST, 120, -1, -1);
    in = task(ROW_FETCH, 50, -1, -1);
    const int out = task(ROW_FLUSH, 40, -1, -1);
    plan_simulate(&machine, &r);
    const double t = 40.0 / 13;  // 10 in, and 13 each for the other two
    IS(machine_end(out), t);
    IS(machine_end(in), 5);
    IS(machine_end(cpu), 5 + (120 - 13 * t - 14 * (5 - t)) / 24);
    r.dram = r.dram_dma = 15;  // less than either direction could move
    machine_rates();
    in = task(ROW_FETCH, 75, -1, -1);
    const int away = task(ROW_FLUSH, 90, -1, -1);
    plan_simulate(&machine, &r);
    IS(machine_end(in), 10);
    IS(machine_end(away), 11);
}

// ---------------------------------------------------------------------------------------------
// A step

typedef struct { GPT2Config config; GPT2Table table; ShardMap map; } Model;

static Model model_make(const char *name) {
    Model m;
    Error err;
    gpt2_preset(&m.config, name);
    gpt2_finish(&m.config, &err);
    m.table = gpt2_table(&m.config);
    m.map = gpt2_shards_all(&m.table);
    return m;
}

static void model_free(Model *m) {
    free(m->map.shards);
    gpt2_table_free(&m->table);
}

static Prediction predict(const Rates *r, const Model *m, const OffloadChoice *c,
                          const PlanRun *run) {
    Pieces list = offload_pieces(&m->table, &m->map, c);
    const Prediction x = plan_step(r, &m->config, &list, c, run, NULL);
    pieces_free(&list);
    return x;
}

// What one of run->world GPUs has to update.
static ShardMap rank_map(const Model *m, const PlanRun *run) {
    return zero_shards(&m->table, run->world, 0, false);
}

static Prediction predict_rank(const Rates *r, const Model *m, const OffloadChoice *c,
                               const PlanRun *run) {
    ShardMap map = rank_map(m, run);
    Pieces list = offload_pieces(&m->table, &map, c);
    const Prediction x = plan_step(r, &m->config, &list, c, run, NULL);
    pieces_free(&list);
    free(map.shards);
    return x;
}

static OffloadChoice choice_of(int mode, double resident, double share) {
    OffloadChoice c;
    memset(&c, 0, sizeof c);
    c.mode = mode;
    c.resident = resident;
    c.share = share;
    c.slots = 3;
    c.keep_grads = true;
    return c;
}

static PlanRun run_of(size_t accum) {
    PlanRun run;
    memset(&run, 0, sizeof run);
    run.B = 1;
    run.T = 1024;
    run.accum = accum;
    run.stored = 2;
    return run;
}

// A server of our time: the link both ways, host memory, cores, GPU.
static Rates server(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = r.d2h = r.h2d_duplex = r.d2h_duplex = 50e9;
    r.dram = r.dram_dma = 200e9;
    r.host_adam = 12e9;
    r.host_cast = 30e9;  // of use only to other systems
    r.gpu_adam = 100e9;
    r.gpu_flops = 4e14;
    return r;
}

// One layer, three pieces. All of it by hand, with everything one after the other where it must be.
static void a_step_of_three_pieces_is_as_by_hand(void) {
    Model m = model_make("d1");
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = 3e9;
    r.d2h = 2e9;
    r.host_adam = 1e9;
    r.gpu_adam = 5e9;
    r.gpu_flops = 1e13;
    PlanRun run = run_of(1);
    const double flops = 1024.0 * (2 * (12 * 64 * 64) + 2 * 64 * 1024);
    const double head = 1024.0 * 2 * 50257 * 64;
    const double f1 = flops / 1e13, f2 = head / 1e13;  // forward
    const double e0 = (50304.0 + 1024) * 64, e1 = 12 * 64 * 64 + 6 * 128 + 2 * 256, e2 = 256;
    CHECK(m.table.elements == (size_t)(e0 + e1 + e2), "%zu elements", m.table.elements);

    // zero: backward of the tail, layer and embeddings (no work) at once leaves their gradients.
    // The CPU begins with the embeddings, whose gradient comes last.
    OffloadChoice c = choice_of(OFFLOAD_ZERO, 0, 0);
    Prediction x = predict(&r, &m, &c, &run);
    const double norm = 2 * f2 + 2 * f1;  // from the begin of backward
    double left = 2 * f2 + e2 * 2 / 2e9;
    left = fmax(left, norm) + e1 * 2 / 2e9;
    left += e0 * 2 / 2e9;
    const double back0 = left + e0 / 1e9 + e0 * 2 / 3e9, back1 = back0 + e1 * 2 / 3e9;
    const double back2 = back1 + e2 * 2 / 3e9, tail = fmax(back1 + f1, back2);
    IS(x.update, back2 - norm);
    IS(x.compute, 3 * (f1 + f2));
    IS(x.backward, norm);
    IS(x.step, tail + f2);
    IS(x.forward, tail + f2 - back0);
    run.no_overlap = true;
    x = predict(&r, &m, &c, &run);
    const double blocked = 2 * f2 + e2 * 2 / 2e9 + 2 * f1 + (e1 + e0) * 2 / 2e9;
    IS(x.backward, blocked);
    IS(x.step, blocked + f1 + f2 + e0 / 1e9 + e0 * 2 / 3e9 + (e1 + e2) * 2 / 3e9);
    run.no_overlap = false;

    // of a single layer, backward repeats nothing: it is the last
    run.recompute = true;
    IS(predict(&r, &m, &c, &run).backward, norm);
    IS(predict(&r, &m, &c, &run).compute, 3 * (f1 + f2));
    run = run_of(1);

    // everything visits, in one slot; its gradient stays. The first one comes during backward,
    // which it outlasts
    c = choice_of(OFFLOAD_INTERLEAVE, 0, 1);
    c.slots = 1;
    x = predict(&r, &m, &c, &run);
    const double come0 = e0 * 12 / 3e9, go0 = come0 + e0 / 5e9 + e0 * 12 / 2e9;
    const double come1 = go0 + e1 * 12 / 3e9, go1 = come1 + e1 / 5e9 + e1 * 12 / 2e9;
    const double come2 = go1 + e2 * 12 / 3e9, go2 = come2 + e2 / 5e9 + e2 * 12 / 2e9;
    CHECK(come0 > norm, "the first one comes too early: %g", come0);
    IS(x.update, go2 - norm);
    IS(x.step, come2 + e2 / 5e9 + f2);
    // with two slots, the second comes while the first one goes
    c.slots = 2;
    x = predict(&r, &m, &c, &run);
    const double upd0 = come0 + e0 / 5e9, flush0 = upd0 + e0 * 12 / 2e9;
    CHECK(come0 + e1 * 12 / 3e9 < upd0 && e2 * 12 / 3e9 + e2 / 5e9 < e1 * 12 / 2e9, "sizes");
    IS(x.update, flush0 + (e1 + e2) * 12 / 2e9 - norm);

    // all of it on the GPU: its update waits for nothing, the next forward pass for it
    c = choice_of(OFFLOAD_NONE, 0, 0);
    run.no_overlap = true;
    x = predict(&r, &m, &c, &run);
    IS(x.update, (e0 + e1 + e2) / 5e9);
    IS(x.step, x.update + x.compute);
    CHECK(x.bound == 0 && x.h2d_bytes == 0 && x.d2h_bytes == 0, "%g", x.bound);
    model_free(&m);
}

// Choices of all kinds, for the tests below.
static OffloadChoice some_choice(int i, PlanRun *run) {
    const unsigned n = (unsigned)i * 2654435761u >> 4;
    *run = run_of(i % 5 == 4 ? 3 : 1);
    run->no_overlap = n % 3 == 2;
    run->recompute = n % 2;
    run->stored = n % 11 == 10 ? 4 : 2;
    OffloadChoice c = choice_of(OFFLOAD_NONE + i % 4, 0.1 * (n / 3 % 6), 0.15 * (n / 5 % 8));
    c.keep_grads = i % 3 > 0;
    c.sum_on_host = run->accum > 1 && i % 2;
    c.wire_f32 = i % 13 > 9 || run->stored == 4;
    c.slots = 1 + (int)(n / 7 % 4);
    c.places = (int)(n / 11 % 4) * 5;  // two, 5, 10, or more than there are layers
    if (c.mode == OFFLOAD_INTERLEAVE && i % 8 == 7) c.stride = (size_t)(2 + i % 3);
    return c;
}

// The same, on some GPUs: of every stage.
static OffloadChoice some_ranks(int i, PlanRun *run) {
    const OffloadChoice c = some_choice(i, run);
    run->zero = 1 + i / 4 % 3;
    run->world = (size_t)(2 + i % 7);
    return c;
}

// Four layers on several GPUs, all state on them, and an update that takes no time: a step is what
// its collectives and its compute leave of each other. Of a layer, forward takes f, a collective g;
// of the head h (its tail goes around in t, less than f); of the embeddings e; the norm x. Hidden:
// g < f. Exposed: g > 2 f, so that collectives follow each other, but for the last layer's forward
// and backward pass. Between the two, backward hides reductions, but not what ZeRO-3 gathers
// besides.
static void collectives_are_as_by_hand(void) {
    static const double speed[3] = {0.5, 1.5, 3};  // g / f
    Model m = model_make("d4");
    const double tokens = 1024, C = 256, flop = tokens * (24 * C * C + 2 * C * 1024);
    const size_t sizes[3] = {(50304 + 1024) * 256, 12 * 256 * 256 + 13 * 256, 2 * 256};
    CHECK(m.table.elements == sizes[0] + 4 * sizes[1] + sizes[2], "%zu", m.table.elements);
    for (int i = 0; i < 3 * 3 * 2; i++) {
        const int regime = i % 3;
        PlanRun run = run_of(1);
        run.zero = 1 + i / 3 % 3;
        run.world = i / 9 ? 3 : 4;
        const double R = (double)run.world;
        double room[3], c[3];
        for (int k = 0; k < 3; k++)  // padded, so that all shards are as long
            room[k] = R * 128 * ceil(ceil((double)sizes[k] / R) / 128);
        Rates r;
        memset(&r, 0, sizeof r);
        r.gpu_flops = 1e13;
        r.gpu_adam = 1e30;
        r.gpu_latency = 1e-6;
        const double f = flop / 1e13, h = tokens * 2 * 50257 * C / 1e13;
        r.gpu_link = (R - 1) / R * room[1] * 2 / (speed[regime] * f - 1e-6);
        for (int k = 0; k < 3; k++) c[k] = (R - 1) / R * room[k] * 2 / r.gpu_link + 1e-6;
        const double e = c[0], g = c[1];
        const double x = (R - 1) / R * 8 * (double)m.table.elements / 4096 / r.gpu_link + 1e-6;
        CHECK(c[2] < f, "the tail is too long");
        const OffloadChoice choice = choice_of(OFFLOAD_NONE, 0, 0);
        const Prediction y = predict_rank(&r, &m, &choice, &run);
        const double forward = regime == 0 ? e + g + 4 * f + h : e + 4 * g + f + h;
        double backward = 2 * h + 8 * f + g;  // each reduction but the last is hidden
        if (g > 2 * f) backward = 2 * h + 2 * f + 4 * g;
        if (run.zero == 3 && regime == 1) backward = 2 * h + 4 * f + 5 * g;
        if (run.zero == 3 && regime == 2) backward = 2 * h + 2 * f + 6 * g;
        IS(y.step, forward + backward + e + x);
        IS(y.compute, 3 * (4 * f + h));
        IS(y.comm_exposed, y.step - y.compute);
        IS(y.comm, 2 * e + 4 * g + 2 * c[2] + x + (run.zero == 3 ? 6 : 4) * g);
        IS(y.reduced_bytes, (R - 1) / R * 2 * (room[0] + 4 * room[1] + room[2]));
        IS(y.gathered_bytes, (R - 1) / R * 2 * (room[0] + (run.zero == 3 ? 6 : 4) * room[1]
                                                + room[2]));
        // the same over several nodes
        r.node_gpus = 2;
        r.node_link = r.gpu_link;
        r.node_latency = r.gpu_latency;
        r.gpu_link *= 100;
        r.gpu_latency = 0;
        IS(predict_rank(&r, &m, &choice, &run).step, y.step);
    }
    model_free(&m);
}

// One layer on two GPUs (ZeRO-2), the CPU updates: backward, reduction, way to the host, update,
// way back, gathering, forward, each behind the one before it.
static void an_offloaded_shard_is_as_by_hand(void) {
    Model m = model_make("d1");
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d = 3e9;
    r.d2h = 2e9;
    r.host_adam = 1e9;
    r.gpu_flops = 1e13;
    r.gpu_link = 1.5e9;
    r.gpu_latency = 1e-5;
    PlanRun run = run_of(1);
    run.world = 2;
    run.zero = 2;
    const double f1 = 1024.0 * (2 * (12 * 64 * 64) + 2 * 64 * 1024) / 1e13;
    const double f2 = 1024.0 * 2 * 50257 * 64 / 1e13;
    const double n[3] = {(50304.0 + 1024) * 64, 12 * 64 * 64 + 6 * 128 + 2 * 256, 256};
    const double work[3] = {0, 2 * f1, 2 * f2};  // of backward
    double own[3], go[3], left[3], back[3], come[3];
    for (int k = 0; k < 3; k++) {
        own[k] = 128 * ceil(n[k] / 2 / 128);
        go[k] = 2 * own[k] * 2 / 2 / 1.5e9 + 1e-5;
    }
    const OffloadChoice c = choice_of(OFFLOAD_ZERO, 0, 0);
    for (int apart = 0; apart < 2; apart++) {  // times are from backward's begin
        double made = 0, gone = 0, sent = 0, cpu = 0, returned = 0;
        for (int k = 2; k >= 0; k--) {
            made += work[k];
            gone = fmax(gone, made) + go[k];
            sent = left[k] = fmax(sent, gone) + own[k] * 2 / 2e9;
            if (apart) made = sent;
        }
        const double norm = fmax(gone, made)
                          + 0.5 * 8 * (double)m.table.elements / 4096 / 1.5e9 + 1e-5;
        double free_at = norm;
        for (int k = 0; k < 3; k++) {
            cpu = fmax(fmax(cpu, norm), left[k]) + own[k] / 1e9;
            returned = back[k] = fmax(returned, cpu) + own[k] * 2 / 3e9;
        }
        for (int k = 0; k < 3; k++) free_at = come[k] = fmax(free_at, back[k]) + go[k];
        run.no_overlap = apart;
        const Prediction x = predict_rank(&r, &m, &c, &run);
        const double first = apart ? fmax(returned, fmax(come[0], come[1])) : fmax(come[0], come[1]);
        IS(x.step, fmax(first + f1, come[2]) + f2);
        if (!apart) IS(x.update, come[2] - norm);
        if (!apart) continue;
        run.zero = 3;  // then nothing is gathered before the host has waited
        const double at0 = returned + go[0], at1 = at0 + go[1], at2 = at1 + go[2];
        IS(predict_rank(&r, &m, &c, &run).step, fmax(at1 + f1, at2) + f2);
    }
    model_free(&m);
}

// If nothing else takes any time, a step is its collectives, also of many micro-batches.
static void collectives_alone_fill_a_step(void) {
    static const size_t accum[] = {1, 2, 3, 4, 5, 9, 64};
    static const char *const models[] = {"d1", "d2", "d3", "gpt2"};
    Rates r;
    memset(&r, 0, sizeof r);
    r.gpu_flops = 1e30;
    r.gpu_link = 1e6;
    r.gpu_latency = 1e-4;
    for (int k = 0; k < 4 * 4 * 7 * 2; k++) {
        Model m = model_make(models[k / 28 % 4]);
        PlanRun run = run_of(accum[k / 4 % 7]);
        run.zero = k % 4;
        run.world = 5;
        OffloadChoice c = choice_of(k / 112 ? OFFLOAD_INTERLEAVE : OFFLOAD_NONE, 0.3, 0.5);
        const Prediction x = predict_rank(&r, &m, &c, &run);
        IS(x.step, x.comm);
        IS(x.comm_exposed, x.comm);
        model_free(&m);
    }
}

// A link that takes no time changes nothing; a faster one is not slower; the stages in their order:
// each has the waits of the one before it, and more.
static void links_and_stages_are_in_order(void) {
    Model m = model_make("gpt2-xl");
    for (int i = 0; i < 200; i++) {
        PlanRun run;
        OffloadChoice c = some_ranks(i, &run);
        Rates r = server();
        r.gpu_link = 5e9 * (1 + i % 41);
        r.gpu_latency = 1e-5 * (i % 3);
        const Prediction x = predict_rank(&r, &m, &c, &run);
        Rates faster = r;
        faster.gpu_link *= 1.5;
        CHECK(predict_rank(&faster, &m, &c, &run).step <= x.step * 1.005, "choice %d", i);
        faster.gpu_latency = 0;
        CHECK(predict_rank(&faster, &m, &c, &run).step <= x.step * 1.005, "choice %d", i);
        CHECK(x.step >= x.comm * 0.9999 && x.comm_exposed <= x.comm * 1.1, "choice %d: %g of %g", i,
              x.comm_exposed, x.comm);
        faster.gpu_link = 0;  // not known
        const Prediction y = predict_rank(&faster, &m, &c, &run);
        CHECK(y.comm == 0 && y.comm_exposed == 0, "choice %d: %g", i, y.comm);
        IS(x.step - x.comm_exposed, fmin(x.step, y.step));
        if (run.zero > 0) {
            ShardMap map = rank_map(&m, &run);
            Pieces list = offload_pieces(&m.table, &map, &c);
            PlanRun alone = run;
            alone.world = 1;
            IS(y.step, plan_step(&r, &m.config, &list, &c, &alone, NULL).step);
            pieces_free(&list);
            free(map.shards);
        }
        double last = 0;
        for (run.zero = 1; run.zero <= 3; run.zero++) {
            const double t = predict_rank(&r, &m, &c, &run).step;
            CHECK(t >= last * 0.995, "choice %d: stage %d takes %g, the one before %g", i, run.zero,
                  t, last);
            last = t;
        }
    }
    model_free(&m);
}

// On one GPU nothing that is said of several counts: the same bits.
static void one_gpu_has_no_others(void) {
    Model m = model_make("gpt2");
    for (int i = 0; i < 200; i++) {
        PlanRun run;
        OffloadChoice c = some_choice(i, &run);
        Rates r = server();
        r.gpu_link = r.node_link = r.gpu_latency = r.node_latency = r.node_gpus = 0;
        const Prediction x = predict(&r, &m, &c, &run);
        run.world = (size_t)i % 2;
        run.zero = i / 2 % 4;
        r.gpu_link = r.node_link = 1;
        r.gpu_latency = r.node_latency = 1000;
        r.node_gpus = 1;
        r.host_gpus = i % 3;
        const Prediction y = predict(&r, &m, &c, &run);
        CHECK(memcmp(&x, &y, sizeof x) == 0, "choice %d: %g %g", i, x.step, y.step);
    }
    model_free(&m);
}

// With many pieces, an update comes near to what no schedule can beat, whatever limits it, and the
// better, the smaller the pieces; it never beats it by more than what came during backward.
static void updates_reach_their_bound(void) {
    static const double dram[] = {0, 150e9, 300e9}, dma[] = {0, 210e9, 260e9};
    static const double cores[] = {2e9, 6e9, 100e9}, shares[] = {0, 0.1, 0.4, 0.6, 0.8, 1};
    Model m = model_make("20b");
    PlanRun run = run_of(1);
    run.no_overlap = true;
    double worst = 1;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 6; k++) {
                Rates r = server();
                r.dram = dram[i];
                r.dram_dma = dma[i];
                r.host_adam = cores[j];
                OffloadChoice c = choice_of(OFFLOAD_INTERLEAVE, 0, shares[k]);
                c.subgroup = 50000000;
                const Prediction x = predict(&r, &m, &c, &run);
                const double early = c.slots * 12 * 50e6 / r.h2d;
                worst = fmin(worst, x.bound / x.update);
                CHECK(x.bound / x.update > 0.95, "dram %g cores %g share %g: %.3f of %.3f by %s",
                      dram[i], cores[j], shares[k], x.update, x.bound, x.limit);
                CHECK(x.update + early >= x.bound * 0.9999, "dram %g cores %g share %g: %.3f < "
                      "%.3f", dram[i], cores[j], shares[k], x.update, x.bound);
            }
    printf("  at worst %.1f %% of the bound\n", 100 * worst);
    model_free(&m);
}

static void a_faster_machine_is_not_slower(void) {
    Model m = model_make("gpt2-xl");
    for (int i = 0; i < 100; i++) {
        PlanRun run;
        OffloadChoice c = some_choice(i, &run);
        Rates r = server();
        r.dram = 60e9 + 3e9 * i;
        r.dram_dma = r.dram * (0.9 + 0.01 * (i % 30));
        r.h2d_duplex = r.d2h_duplex = 44e9;
        r.h2d_busy = r.d2h_busy = 36e9 - 2e9 * (i % 9);
        r.host_adam = 0.5e9 * (1 + i % 16);
        const Prediction x = predict(&r, &m, &c, &run);
        CHECK(x.step >= x.compute * 0.9999 && x.forward + x.backward <= x.step * 1.0001,
              "choice %d: %g %g", i, x.step, x.compute);
        for (int k = 0; k < RATE_FIELDS; k++) {
            Rates faster = r;
            *rate_at(&faster, k) *= 1.25;
            const Prediction y = predict(&faster, &m, &c, &run);
            if (k >= RATE_FIELDS - 6) continue;  // of several GPUs
            // a faster link takes more of the memory, at moments when the cores needed it; and what
            // is ready earlier may share with something else, or change what the CPU begins with
            const double worse = strstr(rate_fields[k].name, "2") != NULL ? 1.04 : 1.01;
            CHECK(y.step <= x.step * worse, "choice %d, %s: %g after %g", i, rate_fields[k].name,
                  y.step, x.step);
        }
        PlanRun apart = run;
        apart.no_overlap = true;
        const Prediction y = predict(&r, &m, &c, &apart);
        CHECK(y.step >= x.step * 0.999, "choice %d: %g overlapped, %g not", i, x.step, y.step);
        IS(y.step, y.update + y.forward + y.backward);
    }
    model_free(&m);
}

// Bytes over the link: what is predicted is what the tasks carry, and what arithmetic says.
static void bytes_are_those_of_arithmetic(void) {
    Model m = model_make("gpt2");
    const Rates r = server();
    const double P = (double)m.table.elements;
    for (int i = 0; i < 100; i++) {
        PlanRun run;
        OffloadChoice c = some_choice(i, &run);
        Pieces list = offload_pieces(&m.table, &m.map, &c);
        const Prediction x = plan_step(&r, &m.config, &list, &c, &run, NULL);
        PlanStep steps[PLAN_STEPS];
        PlanTasks p = plan_tasks(&r, &m.config, &list, &c, &run, steps);
        double in = 0, out = 0;
        for (int t = steps[1].end; t < p.count; t++) {
            if (p.tasks[t].row == ROW_FETCH || p.tasks[t].row == ROW_BACK)
                in += (double)p.tasks[t].bytes;
            if (p.tasks[t].row == ROW_LEAVE || p.tasks[t].row == ROW_FLUSH)
                out += (double)p.tasks[t].bytes;
        }
        CHECK(in == x.h2d_bytes && out == x.d2h_bytes, "choice %d: %.0f %.0f, not %.0f %.0f", i, in,
              out, x.h2d_bytes, x.d2h_bytes);
        free(p.tasks);
        pieces_free(&list);
    }
    OffloadChoice c = choice_of(OFFLOAD_ZERO, 0, 0);
    PlanRun run = run_of(1);
    Prediction x = predict(&r, &m, &c, &run);
    CHECK(x.h2d_bytes == 2 * P && x.d2h_bytes == 2 * P, "zero: %g %g", x.h2d_bytes, x.d2h_bytes);
    run.accum = 8;
    x = predict(&r, &m, &c, &run);
    CHECK(x.d2h_bytes == 4 * P, "summed on the GPU: %g", x.d2h_bytes / P);
    c.sum_on_host = true;
    x = predict(&r, &m, &c, &run);
    CHECK(x.d2h_bytes == 16 * P, "summed on the host: %g", x.d2h_bytes / P);
    run.accum = 1;
    c = choice_of(OFFLOAD_INTERLEAVE, 0, 1);
    x = predict(&r, &m, &c, &run);
    CHECK(x.h2d_bytes == 12 * P && x.d2h_bytes == 12 * P, "all visit: %g", x.h2d_bytes / P);
    c.keep_grads = false;
    x = predict(&r, &m, &c, &run);
    CHECK(x.h2d_bytes == 14 * P && x.d2h_bytes == 14 * P, "with gradients: %g", x.h2d_bytes / P);
    model_free(&m);
}

// Of many micro-batches only four are followed; the others take what those in the middle take.
static void many_micro_batches_add_up(void) {
    Model m = model_make("gpt2");
    const Rates r = server();
    for (int sum = 0; sum < 2; sum++) {
        OffloadChoice c = choice_of(OFFLOAD_INTERLEAVE, 0.2, 0.4);
        c.sum_on_host = sum;
        PlanRun run = run_of(4);
        const Prediction a = predict(&r, &m, &c, &run);
        run.accum = 64;
        const Prediction b = predict(&r, &m, &c, &run);
        const double each = (b.step - a.step) / 60;
        IS(b.compute, 16 * a.compute);
        CHECK(each >= a.compute / 4 * 0.9999, "%g a micro-batch", each);
        if (!sum) IS(each, a.compute / 4);
        // summed on the host: at least what it takes to read and write the sum, and a gradient
        Pieces list = offload_pieces(&m.table, &m.map, &c);
        if (sum) CHECK(each >= 10 * (double)list.grads_host / r.dram * 0.999, "%g", each);
        pieces_free(&list);
        CHECK(b.forward + b.backward <= b.step * 1.0001 && b.step < 1.02 * (b.forward + b.backward)
              + b.update, "%g %g %g", b.forward, b.backward, b.step);
    }
    model_free(&m);
}

// What is drawn is a step: JSON, every row, and as much work as was predicted.
static void a_step_can_be_drawn(void) {
    Model m = model_make("gpt2");
    const Rates r = server();
    OffloadChoice c = choice_of(OFFLOAD_INTERLEAVE, 0.1, 0.5);
    const PlanRun run = run_of(1);
    Pieces list = offload_pieces(&m.table, &m.map, &c);
    char path[] = "/tmp/test_plan_XXXXXX";
    Error err;
    TraceFile trace;
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && trace_open(&trace, path, &err), "%s", path);
    const Prediction x = plan_step(&r, &m.config, &list, &c, &run, &trace);
    CHECK(trace_close(&trace, &err), "%s", err.text);
    size_t n = 0;
    char *text = file_read(path, &n, &err);
    Json *json = text != NULL ? json_parse(text, n, &err) : NULL;
    CHECK(json != NULL, "%s", err.text);
    const Json *events = json != NULL ? json_get(json, "traceEvents") : NULL;
    double row[ROWS] = {0}, bytes = 0, waits = 0;
    for (const Json *e = events != NULL ? events->child : NULL; e != NULL; e = e->next) {
        const Json *tid = json_get(e, "tid"), *dur = json_get(e, "dur");
        if (dur == NULL || tid == NULL) continue;
        const Json *b = json_get(json_get(e, "args"), "bytes");
        if (b != NULL) bytes += b->number;
        if (strcmp(json_get(e, "name")->string, "wait") == 0) waits += 1e-6 * dur->number;
        else row[(int)tid->number] += 1e-6 * dur->number;
    }
    for (int i = 0; i < ROWS; i++)
        CHECK(row[i] > 0 || i == ROW_COMM, "row %d is empty", i);
    CHECK(row[ROW_COMM] == 0, "alone, and yet %g s between the GPUs", row[ROW_COMM]);
    CHECK(row[ROW_COMPUTE] + waits >= x.step * 0.999, "%g of %g", row[ROW_COMPUTE] + waits, x.step);
    CHECK(bytes > 1.4 * (x.h2d_bytes + x.d2h_bytes) && bytes < 2 * (x.h2d_bytes + x.d2h_bytes),
          "%g of %g bytes", bytes, x.h2d_bytes + x.d2h_bytes);
    json_free(json);
    free(text);
    unlink(path);
    pieces_free(&list);
    model_free(&m);
}

// ---------------------------------------------------------------------------------------------
// The choice

// A trainer's memory plan, in the small.
typedef struct { const Model *model; double activations; } Memory;

static size_t layer_elements(const Model *m) {
    size_t at;
    return zero_segment(&m->table, 1, &at);
}

static void memory_needs(void *arg, const OffloadChoice *c, bool recompute, size_t *gpu,
                         size_t *host) {
    const Memory *m = (Memory *)arg;
    const size_t P = m->model->table.elements;
    Pieces list = offload_pieces(&m->model->table, &m->model->map, c);
    const size_t away = m->model->map.elements - list.elements[PIECE_RESIDENT];
    *gpu = 2 * P + (size_t)(m->activations / (recompute ? 8 : 1))
         + 12 * list.elements[PIECE_RESIDENT] + 2 * list.grads_gpu
         + (size_t)slots_of(c->slots, list.count) * 12 * list.longest_visit
         + (size_t)places_of(c->places, (int)m->model->config.layers) * 2
           * layer_elements(m->model);
    *host = 12 * away + 2 * list.grads_host;
    if (c->sum_on_host) *host += P;
    pieces_free(&list);
}

// A choice in words.
static const char *said(const OffloadSearch *q) {
    static char text[200];
    const OffloadChoice *c = &q->choice;
    snprintf(text, sizeof text, "%s share %g resident %g, %d places, %d slots, %s%s%s%.4g s",
             offload_names[c->mode], c->share, c->resident, c->places, c->slots,
             q->run.recompute ? "again, " : "", c->keep_grads ? "keeps grads, " : "",
             c->sum_on_host ? "sums on the host, " : "", q->predicted.step);
    return text;
}

static OffloadSearch search_for(const Rates *r, const Model *m, Memory *memory, double gpu,
                                double host) {
    OffloadSearch q;
    memset(&q, 0, sizeof q);
    memory->model = m;
    q.rates = r;
    q.config = &m->config;
    q.table = &m->table;
    q.shards = &m->map;
    q.run = run_of(1);
    q.memory.recompute = RECOMPUTE_AUTO;
    q.memory.gpu = (size_t)gpu;
    q.memory.host = (size_t)host;
    q.memory.needs = memory_needs;
    q.memory.model = memory;
    q.choice.slots = 3;
    return q;
}

static void none_is_chosen_where_it_fits(void) {
    Model m = model_make("gpt2-xl");
    const Rates r = server();
    Memory memory = {&m, 1e9};
    OffloadSearch q = search_for(&r, &m, &memory, 80e9, 0);
    CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_NONE && !q.run.recompute, "%s", said(&q));
    // with recomputation, if a step is long beside an update of everything
    memory.activations = 60e9;
    q = search_for(&r, &m, &memory, 40e9, 200e9);
    CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_NONE && q.run.recompute, "%s", said(&q));
    q = search_for(&r, &m, &memory, 80e9, 200e9);
    q.memory.recompute = RECOMPUTE_BLOCK;
    CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_NONE && q.run.recompute, "%s", said(&q));
    q = search_for(&r, &m, &memory, 70e9, 200e9);
    q.memory.recompute = RECOMPUTE_NONE;
    CHECK(offload_search(&q) && q.choice.mode != OFFLOAD_NONE && !q.run.recompute, "%s", said(&q));
    model_free(&m);
}

static void the_faster_side_gets_the_work(void) {
    Model m = model_make("7b");
    Rates r = server();
    Memory memory = {&m, 2e9};
    // cores and memory that outrun a slow link: no visits, and as many residents as there is room
    r.dram = r.dram_dma = 500e9;
    r.host_adam = 40e9;
    r.h2d = r.d2h = r.h2d_duplex = r.d2h_duplex = 25e9;
    OffloadSearch q = search_for(&r, &m, &memory, 40e9, 200e9);
    CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_TWINFLOW, "%s", said(&q));
    size_t gpu, host;
    memory_needs(&memory, &q.choice, q.run.recompute, &gpu, &host);
    CHECK((double)gpu > 0.96 * 40e9 && gpu <= q.memory.gpu, "%zu bytes used", gpu);
    // no room for any: zero
    q = search_for(&r, &m, &memory, 14.6e9, 200e9);
    CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_ZERO, "%s", said(&q));
    // slow cores: most of it visits the GPU
    r = server();
    r.host_adam = 1.5e9;
    q = search_for(&r, &m, &memory, 40e9, 200e9);
    CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_INTERLEAVE, "%s", said(&q));
    CHECK(q.choice.share > 0.6 && q.choice.share < 0.95, "%s", said(&q));
    printf("  %s\n", said(&q));
    model_free(&m);
}

static void no_room_is_found(void) {
    Model m = model_make("7b");
    const Rates r = server();
    Memory memory = {&m, 2e9};
    OffloadSearch q = search_for(&r, &m, &memory, 10e9, 200e9);
    CHECK(!offload_search(&q), "%s", said(&q));
    q = search_for(&r, &m, &memory, 24e9, 40e9);
    CHECK(!offload_search(&q), "%s", said(&q));
    // little host memory: what does not fit there must be resident
    q = search_for(&r, &m, &memory, 80e9, 40e9);
    CHECK(offload_search(&q) && q.choice.resident > 0.5, "%s", said(&q));
    model_free(&m);
}

// Nothing on a grid of choices that fit is clearly faster.
static void the_search_finds_what_a_grid_finds(void) {
    Model m = model_make("gpt2-xl");
    for (int i = 0; i < 12; i++) {
        Rates r = server();
        r.dram = r.dram_dma = 60e9 * (1 + i % 4);
        r.host_adam = 1.5e9 * (1 + i % 3) * (1 + i % 3);
        r.h2d_busy = r.d2h_busy = 30e9 + 5e9 * (i % 5);
        Memory memory = {&m, 3e9};
        OffloadSearch q = search_for(&r, &m, &memory, 6e9 + 1.5e9 * i, 200e9);
        q.run.accum = i % 3 == 2 ? 4 : 1;
        q.memory.sums = q.run.accum > 1;
        CHECK(offload_search(&q), "%s", said(&q));
        double best = INFINITY;
        OffloadChoice found = q.choice;
        for (int k = 0; k < 21 * 11 * 2 * 2; k++) {
            OffloadChoice c = choice_of(OFFLOAD_INTERLEAVE, k / 21 % 11 * 0.1, k % 21 * 0.05);
            PlanRun run = q.run;
            run.recompute = k / 231 % 2;
            c.keep_grads = k / 462;
            size_t gpu, host;
            memory_needs(&memory, &c, run.recompute, &gpu, &host);
            if (gpu > q.memory.gpu || host > q.memory.host) continue;
            const Prediction x = predict(&r, &m, &c, &run);
            if (x.step < best) found = c;
            best = fmin(best, x.step);
        }
        CHECK(q.predicted.step <= 1.03 * best, "%d: %s; but %.3f s with share %.2f resident %.2f",
              i, said(&q), best, found.share, found.resident);
        PlanRun run = q.run;
        IS(predict(&r, &m, &q.choice, &run).step, q.predicted.step);
    }
    model_free(&m);
}

// What is left of the GPU's memory is used for places and slots; what is said of them is kept.
static void memory_is_used(void) {
    Model m = model_make("7b");
    Rates r = server();
    Memory memory = {&m, 1e9};
    r.host_adam = 1.5e9;
    for (int i = 0; i < 3; i++) {
        OffloadSearch q = search_for(&r, &m, &memory, 17e9 + 8e9 * i, 200e9);
        q.choice.slots = 0;
        CHECK(offload_search(&q) && q.choice.mode == OFFLOAD_INTERLEAVE, "%s", said(&q));
        CHECK(q.choice.places >= LEAST_PLACES && q.choice.slots >= LEAST_SLOTS, "%s", said(&q));
        size_t bytes, host_bytes;
        OffloadChoice more = q.choice;
        more.slots++;
        memory_needs(&memory, &more, q.run.recompute, &bytes, &host_bytes);
        CHECK(more.slots > 1000 || bytes > q.memory.gpu, "%d: room for more: %s", i, said(&q));
        OffloadSearch told = search_for(&r, &m, &memory, 17e9 + 8e9 * i, 200e9);
        told.choice.places = 6;
        told.choice.slots = 4;
        CHECK(offload_search(&told) && told.choice.places == 6 && told.choice.slots == 4, "%s",
              said(&told));
        CHECK(q.predicted.step <= 1.03 * told.predicted.step, "%d: %s; but %.4g s if told", i,
              said(&q), told.predicted.step);
    }
    model_free(&m);
}

// 7B with the rates of scripts/rates/h200_16cores.txt, as in doc/performance_model.md: in two
// places backward takes as long as the link, in as many as there are layers as if it never waited.
static void places_free_backward_from_the_link(void) {
    Model m = model_make("7b");
    Rates r;
    Error err;
    if (!rates_load(&r, "scripts/rates/h200_16cores.txt", &err)) fail("%s", err.text);
    PlanRun run = run_of(1);
    run.T = 2048;
    OffloadChoice c = choice_of(OFFLOAD_ZERO, 0, 0);
    const double layer = (double)layer_elements(&m) * 2 / r.d2h;
    const PlanFlops f = plan_flops(&m.config, &run);
    const double compute = 2 * (32 * f.layer + f.head) / r.gpu_flops;
    double last = INFINITY, step = INFINITY;
    for (c.places = 2; c.places <= 32; c.places *= 2) {
        const Prediction x = predict(&r, &m, &c, &run);
        printf("  %2d places: backward %.4g s, of which %.4g are compute; step %.4g s\n", c.places,
               x.backward, compute, x.step);
        // all but the last ones to be made must have left, as far as they need the place
        const double link = (32 - c.places) * layer;
        CHECK(x.backward >= link && x.backward >= compute * 0.9999
              && x.backward <= fmax(compute, 2 * (f.head + f.layer) / r.gpu_flops + link
                                             + c.places * 2 * f.layer / r.gpu_flops) * 1.0001,
              "%d places: %g, compute %g, link %g", c.places, x.backward, compute, link);
        CHECK(x.backward <= last && x.step <= step * 1.0001, "%d places", c.places);
        last = x.backward;
        step = x.step;
    }
    IS(last, compute);
    c.places = 2;
    CHECK(predict(&r, &m, &c, &run).backward > 1.8 * compute, "two are enough");
    model_free(&m);
}

// One of several GPUs is planned for with its part of the state and its waits for the others.
static void a_rank_is_searched_for_with_its_waits(void) {
    Model m = model_make("7b"), one = m;
    Rates r = server();
    r.gpu_link = 100e9;
    Memory memory = {&one, 2e9};
    PlanRun run = run_of(1);
    run.world = 8;
    run.zero = 3;
    one.map = rank_map(&m, &run);
    double last = 0;
    for (int i = 0; i < 3; i++) {  // on ever slower links
        OffloadSearch q = search_for(&r, &one, &memory, 20e9, 20e9);
        q.run = run;
        CHECK(offload_search(&q) && q.choice.mode != OFFLOAD_NONE, "%s", said(&q));
        IS(predict_rank(&r, &m, &q.choice, &q.run).step, q.predicted.step);
        CHECK(q.predicted.step > last && q.predicted.comm_exposed > 0, "%s", said(&q));
        last = q.predicted.step;
        r.gpu_link /= 4;
    }
    free(one.map.shards);
    model_free(&m);
}

// ---------------------------------------------------------------------------------------------
// Section 5.4 of Deep Optimizer States (Maurya et al. 2024), from the paper's own rates

// DeepSpeed: a gradient leaves at 2.5 GB/s (section 4.1) while backward waits; the CPU updates a
// sub-group, rounds it in a second pass, and waits until it is on the GPU. OVERLAPPED: only the
// former is mended. DEEP: Deep Optimizer States. TIDE: this trainer.
typedef enum { DEEPSPEED, OVERLAPPED, DEEP, TIDE } System;

typedef struct {
    Rates rates;
    const char *model;
    System system;
    size_t stride, batch, ranks, subgroup;
    bool collectives;        // of ZeRO-3 between the ranks; else they take no time
    int slots;
    double resident, share;  // share: if stride is 0
} Case;

static Rates paper_rates(const char *name) {
    Rates r;
    Error err;
    char path[64];
    snprintf(path, sizeof path, "scripts/rates/%s.txt", name);
    if (!rates_load(&r, path, &err)) fail("%s", err.text);
    return r;
}

// 20B on four H100, one sequence of 2048 tokens each, nothing resident.
static Case case_of(System system, size_t stride) {
    Case c;
    memset(&c, 0, sizeof c);
    c.rates = paper_rates("paper_h100");
    c.model = "20b";
    c.system = system;
    c.stride = stride;
    c.batch = 1;
    c.ranks = 4;
    c.subgroup = 100000000;
    c.slots = system == DEEP ? 1 : 3;
    return c;
}

static size_t case_visits, case_host, case_elements;  // of the last one that was run

static Prediction case_run(Case x) {
    Model m = model_make(x.model);
    PlanRun run = run_of(1);
    Prediction seen;
    memset(&seen, 0, sizeof seen);
    const bool cpu_only = x.system <= OVERLAPPED;
    OffloadChoice c = choice_of(cpu_only ? OFFLOAD_TWINFLOW : OFFLOAD_INTERLEAVE, x.resident,
                                x.share);
    run.B = x.batch;
    run.T = 2048;
    run.recompute = true;
    run.world = x.collectives ? x.ranks : 1;
    run.zero = 3;
    x.rates.node_gpus = 0;  // as if all were on one node
    run.no_overlap = x.system != TIDE;
    c.stride = cpu_only ? 0 : x.stride;
    c.wire_f32 = x.system == OVERLAPPED || x.system == DEEP;
    c.slots = x.slots;
    c.subgroup = x.system == TIDE ? 0 : x.subgroup * x.ranks;
    Pieces list = offload_pieces(&m.table, &m.map, &c);
    PlanStep steps[PLAN_STEPS];
    PlanTasks p = plan_tasks(&x.rates, &m.config, &list, &c, &run, steps);
    const double cores = x.rates.host_adam;
    for (int i = 0, back = PLAN_NOTHING; i < p.count; i++) {
        PlanTask *t = &p.tasks[i];
        const bool shared = t->row != ROW_COMPUTE && t->row != ROW_COMM;
        if (shared) t->work /= (double)x.ranks;
        if (t->row == ROW_LEAVE && x.system == DEEPSPEED) t->work *= x.rates.d2h / 2.5e9;
        if (t->row == ROW_HOST && x.system != TIDE) t->work *= 1 + cores / x.rates.host_cast;
        if (t->row == ROW_HOST && cpu_only) t->waits[2] = back;
        if (t->row == ROW_BACK) back = i;
        if (t->row == ROW_COMPUTE && t->work == 0 && t->waits[0] >= 0 && x.system != DEEPSPEED
            && p.tasks[t->waits[0]].row == ROW_LEAVE)
            t->waits[0] = PLAN_NOTHING;  // only DeepSpeed's backward waits for what leaves
    }
    plan_simulate(&p, &x.rates);
    const PlanStep *before = &steps[PLAN_STEPS - 2];
    const double start = p.tasks[before->norm].end;
    for (int i = before->norm; i < before->end; i++)
        seen.update = fmax(seen.update, p.tasks[i].end - start);
    seen.step = p.tasks[steps[PLAN_STEPS - 1].norm].end - start;
    seen.compute = plan_compute(&x.rates, &m.config, &run);
    free(p.tasks);
    case_visits = list.elements[PIECE_VISIT];
    case_host = list.elements[PIECE_HOST];
    case_elements = m.table.elements;
    pieces_free(&list);
    model_free(&m);
    return seen;
}

// The node's update throughput, in G parameters/s.
static double case_throughput(Case x) {
    const Prediction p = case_run(x);
    return 1e-9 * (double)case_elements / p.update;
}

static double faster(Case slow, Case fast) { return case_run(slow).step / case_run(fast).step; }

static char table[16384];
static size_t table_length;

__attribute__((format(printf, 1, 2)))
static void row(const char *format, ...) {
    va_list args;
    va_start(args, format);
    table_length += (size_t)vsnprintf(table + table_length, sizeof table - table_length, format,
                                      args);
    va_end(args);
    if (table_length + 1 < sizeof table) table[table_length++] = '\n';
}

static void table_iterations(void) {
    static const char *const models[] = {"7b", "8.3b", "10b", "13b", "20b"};
    Case zero = case_of(DEEPSPEED, 0), deep = case_of(DEEP, 2);
    double least = INFINITY, most = 0, update = 0, slow = INFINITY, fast = 0, seconds[5];
    for (int i = 0; i < 5; i++) {
        zero.model = deep.model = models[i];
        seconds[i] = case_run(zero).step;
        least = fmin(least, faster(zero, deep));
        most = fmax(most, faster(zero, deep));
        update += (case_throughput(deep) / case_throughput(zero) - 1) / 5;
        slow = fmin(slow, case_throughput(deep));
        fast = fmax(fast, case_throughput(deep));
    }
    row("| 7B to 20B: iterations faster than ZeRO-3 | 2 to 2.5 | %.2f to %.2f | 1 |", least, most);
    row("| 8.3B against 10B, ZeRO-3: time of an iteration | longer | %.2f | 2 |",
        seconds[1] / seconds[2]);
    Case half = case_of(OVERLAPPED, 0);
    zero.model = deep.model = "20b";
    row("| 20B: faster by gradients that leave beside backward | 1.9 | %.2f | 3 |",
        faster(zero, half));
    row("| 20B: faster again by the interleaved update | 1.6; in all 2.5 | %.2f; in all %.2f | 3 |",
        faster(half, deep), faster(zero, deep));
    row("| update throughput over ZeRO-3, mean of the sizes | +70 %% | %+.0f %% | 4 |",
        100 * update);
    row("| the same for all sizes (Fig. 8), G parameters/s | \"near uniform\" | %.1f to %.1f | |",
        slow, fast);
    row("| 100 iterations, 20B: faster than ZeRO-3 | 2.5 | %.2f | 5 |", faster(zero, deep));
    zero.model = "7b";
    row("| 20B with Deep Optimizer States against 7B with ZeRO-3: time | 1 | %.2f | 6 |",
        case_run(deep).step / case_run(zero).step);
}

static void table_residents(void) {
    static const char *const models[] = {"7b", "8.3b", "10b", "13b", "20b"};
    Case twin = case_of(DEEPSPEED, 0), deep = case_of(DEEP, 2);
    double least = INFINITY, most = 0;
    for (int r = 0; r <= 5; r++) {
        twin.resident = deep.resident = 0.1 * r;
        least = fmin(least, case_run(twin).update / case_run(deep).update);
        most = fmax(most, case_run(twin).update / case_run(deep).update);
    }
    row("| 20B, residents 0 to 50 %%: updates faster than TwinFlow's | at least 1.7 | %.2f to %.2f "
        "| 4 |", least, most);
    row("| 20B, residents 50 %%: iterations faster than TwinFlow's | about 2 | %.2f | |",
        faster(twin, deep));
    deep.resident = 0;
    const double t = case_run(twin).step, d = case_run(deep).step;
    row("| 20B: without residents, against TwinFlow with 50 %% | 3 s and 4.3 s: 1.43 | %.2f s and "
        "%.2f s: %.2f | 7 |", d, t, t / d);
    Case zero = case_of(DEEPSPEED, 0);
    twin.resident = deep.resident = 0.2;
    row("| residents 20 %%: TwinFlow's update faster than ZeRO-3's | 20 %% | %.0f %% | 8 |",
        100 * (case_run(zero).update / case_run(twin).update - 1));
    least = INFINITY;
    most = 0;
    for (int i = 0; i < 5; i++) {
        twin.model = deep.model = models[i];
        least = fmin(least, faster(twin, deep));
        most = fmax(most, faster(twin, deep));
    }
    row("| residents 20 %%, 7B to 20B: iterations faster than TwinFlow's | 1.7 to 2.3 | %.2f to "
        "%.2f | |", least, most);
}

static void table_scaling(void) {
    Case zero = case_of(DEEPSPEED, 0), deep = case_of(DEEP, 2);
    double at[8];
    for (int i = 0; i < 4; i++) {
        zero.batch = deep.batch = (size_t)1 << i;
        at[i] = faster(zero, deep);
    }
    row("| 20B, micro-batch 1, 2, 4, 8: faster than ZeRO-3 | 2.5 to 1.6 | %.2f, %.2f, %.2f, %.2f "
        "| 9 |", at[0], at[1], at[2], at[3]);
    zero.batch = deep.batch = 1;
    for (int i = 0; i < 5; i++) {
        zero.rates.host_adam = deep.rates.host_adam = 0.5e9 * (1 << i);
        zero.rates.host_cast = deep.rates.host_cast = 15.5e9 / 4 * (1 << i);
        at[i] = faster(zero, deep);
    }
    row("| 20B, cores per GPU: 1/4, 1/2, 1, 2, 4 of the testbed's | up to 3 with few; then uniform "
        "| %.2f, %.2f, %.2f, %.2f, %.2f | 10 |", at[0], at[1], at[2], at[3], at[4]);
    zero = case_of(DEEPSPEED, 0);
    deep = case_of(DEEP, 2);
    for (int i = 0; i < 4; i++) {
        zero.ranks = deep.ranks = (size_t)1 << i;
        at[i] = faster(zero, deep);
    }
    row("| 20B, 1, 2, 4, 8 GPUs: faster than ZeRO-3 | 4.4 with few, 2.5 with many | %.2f, %.2f, "
        "%.2f, %.2f | 11 |", at[0], at[1], at[2], at[3]);
    zero.collectives = deep.collectives = true;
    for (int i = 0; i < 4; i++) {
        zero.ranks = deep.ranks = (size_t)1 << i;
        at[i] = faster(zero, deep);
    }
    row("| the same with collectives, all at 133 GB/s | | %.2f, %.2f, %.2f, %.2f | 11 |", at[0],
        at[1], at[2], at[3]);
    zero.collectives = false;
    zero.ranks = 4;
    Case large = zero;
    large.subgroup = 1000000000;
    const double slower = case_run(large).step / case_run(zero).step;
    row("| section 3, Fig. 2: sub-groups of 100M to 1B parameters | within 4 %% | %.1f %% | |",
        100 * fabs(slower - 1));
}

// Tflop/s, and how much of the update the cores work and the link into the host is busy, in %.
static void utilisation(Case x, double v[3]) {
    const Prediction p = case_run(x);
    const double away = (double)case_host / (double)x.ranks, visit = (double)case_visits;
    v[0] = 1e-12 * x.rates.gpu_flops * p.compute / p.step;
    v[1] = 100 * away * (1 / x.rates.host_adam + 1 / x.rates.host_cast) / p.update;
    v[2] = 100 * 12 * visit / (double)x.ranks / x.rates.d2h / p.update;
    if (visit == 0) v[2] = 100 * 2 * away / x.rates.h2d / p.update;
}

static void table_utilisation(void) {
    double none[3], two[3], three[3], four[3];
    utilisation(case_of(DEEPSPEED, 0), none);
    utilisation(case_of(DEEP, 2), two);
    utilisation(case_of(DEEP, 3), three);
    utilisation(case_of(DEEP, 4), four);
    row("| 20B, Tflop/s: ZeRO-3, and 50, 33, 25 %% on the GPU | 30; 75, 71, 71 | %.0f; %.0f, %.0f, "
        "%.0f | 12 |", none[0], two[0], three[0], four[0]);
    row("| 20B, cores at work in the update: ZeRO-3, 50 %% | 70 %%, 60 %% | %.0f %%, %.0f %% | 13 "
        "|", none[1], two[1]);
    row("| 20B, link at work in the update: ZeRO-3, 50 %% | 2 %%, 40 %% | %.0f %%, %.0f %% | 14 |",
        none[2], two[2]);
}

static void table_strides(void) {
    Case deep = case_of(DEEP, 2);
    double at[8];
    for (size_t i = 0; i < 3; i++) {
        deep.stride = 2 + i;
        at[i] = case_throughput(deep);
    }
    row("| 20B, 50, 33, 25 %% on the GPU: G parameters/s | 50 %% is best | %.1f, %.1f, %.1f | |",
        at[0], at[1], at[2]);
    double best[2] = {0, 0}, where[2] = {0, 0};
    deep.stride = 0;
    for (int i = 0; i <= 200; i++) {
        const int k = i / 101;
        deep.slots = k == 0 ? 1 : 3;
        deep.share = 0.01 * (i % 101);
        const double t = case_throughput(deep);
        if (t > best[k]) where[k] = deep.share;
        best[k] = fmax(best[k], t);
    }
    row("| not tested: the best share; with room for three visitors | | %.0f %%: %.1f; %.0f %%: "
        "%.1f | 15 |", 100 * where[0], best[0], 100 * where[1], best[1]);
    row("| not said: k of Eq. 1 for one H100, and 1 / (k + 1) | \"2\" | %.2f, %.0f %% | 15 |",
        eq1_stride(&deep.rates), 100 / (1 + eq1_stride(&deep.rates)));
    const Rates v100 = paper_rates("paper_v100");
    row("| V100: k of Eq. 1 | \"2\" | %.2f | 16 |", eq1_stride(&v100));
    Case old = deep;
    old.model = "7b";
    old.rates = v100;
    old.ranks = 1;
    old.share = 0;
    old.slots = 3;
    row("| V100, 7B, G parameters/s: the CPU alone | not said | %.2f | 17 |", case_throughput(old));
    for (size_t i = 0; i < 4; i++) {
        old.stride = 2 + i;
        at[i] = case_throughput(old);
    }
    row("| V100, 7B: k = 2, 3, 4, 5, as Algorithm 1 reads it | not said, 1.67, 1.62, 1.28 | %.2f, "
        "%.2f, %.2f, %.2f | 17 |", at[0], at[1], at[2], at[3]);
    for (size_t i = 0; i < 4; i++) {
        old.stride = 3 + i;
        at[i] = case_throughput(old);
    }
    row("| V100, 7B: k = 2, 3, 4, 5, as Eq. 1 means it | not said, 1.67, 1.62, 1.28 | %.2f, %.2f, "
        "%.2f, %.2f | 17 |", at[0], at[1], at[2], at[3]);
}

static void table_dram(void) {
    static const double dram[] = {0, 120e9, 60e9};
    static const char *const names[] = {"not known", "120 GB/s", "60 GB/s"};
    for (int i = 0; i < 3; i++) {
        Case tide = case_of(TIDE, 0);
        tide.rates.dram = tide.rates.dram_dma = dram[i];
        const UpdateBytes bytes = {2, 2, true};
        const double f = best_share(&tide.rates, &bytes);
        double at[3];
        for (int k = 0; k < 3; k++) {
            tide.share = k == 0 ? 0 : k == 1 ? 0.5 : f;
            at[k] = case_throughput(tide);
        }
        tide.share = f;
        row("| this trainer, host memory per GPU %s: best share; G parameters/s with 0, 50 %%, "
            "best; iteration | | %.0f %%; %.1f, %.1f, %.1f; %.2f s | 18 |", names[i], 100 * f,
            at[0], at[1], at[2], case_run(tide).step);
    }
}

static void table_make(void) {
    table_length = 0;
    row("| what section 5.4 says | the paper | the model | note |");
    row("|---|---|---|---|");
    table_iterations();
    table_residents();
    table_scaling();
    table_utilisation();
    table_strides();
    table_dram();
    table[table_length] = '\0';
}

// The table in the lesson is the one that the model makes.
static void the_lesson_has_this_table(void) {
    size_t n;
    Error err;
    table_make();
    char *lesson = file_read("doc/performance_model.md", &n, &err);
    CHECK(lesson != NULL, "%s", err.text);
    if (lesson == NULL) return;
    for (char *line = strtok(table, "\n"); line != NULL; line = strtok(NULL, "\n"))
        CHECK(strstr(lesson, line) != NULL, "doc/performance_model.md lacks: %s", line);
    free(lesson);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--table") == 0) {
        table_make();
        fputs(table, stdout);
        return 0;
    }
    RUN(one_copy_takes_its_bytes_over_its_rate);
    RUN(a_stream_keeps_its_order);
    RUN(streams_share_the_link_and_the_gpu);
    RUN(both_directions_have_rates_of_their_own);
    RUN(host_memory_is_shared_evenly);
    RUN(a_step_of_three_pieces_is_as_by_hand);
    RUN(collectives_are_as_by_hand);
    RUN(an_offloaded_shard_is_as_by_hand);
    RUN(collectives_alone_fill_a_step);
    RUN(links_and_stages_are_in_order);
    RUN(one_gpu_has_no_others);
    RUN(updates_reach_their_bound);
    RUN(a_faster_machine_is_not_slower);
    RUN(bytes_are_those_of_arithmetic);
    RUN(many_micro_batches_add_up);
    RUN(a_step_can_be_drawn);
    RUN(none_is_chosen_where_it_fits);
    RUN(the_faster_side_gets_the_work);
    RUN(no_room_is_found);
    RUN(the_search_finds_what_a_grid_finds);
    RUN(memory_is_used);
    RUN(places_free_backward_from_the_link);
    RUN(a_rank_is_searched_for_with_its_waits);
    RUN(the_lesson_has_this_table);
    return test_summary();
}
