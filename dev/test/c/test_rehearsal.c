// test_rehearsal.c: rehearsal.h and plan.h without a trainer: the machine against cases computed by
// hand; what waits for what; what is read off; and what is settled of a choice. A rehearsed trainer
// is tested by test_plan.cu.
#include "../../../tide/plan/plan.h"
#include "../test.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b)); }

#define IS(a, b) CHECK(near(a, b), "%.12g, not %.12g", (double)(a), (double)(b))

// Streams of a test.
enum { COMPUTE = 1, UPDATE, FETCH, BACK, OUT, AWAY, CPU, COMM, STREAMS };

static Rehearsal q;

static void begin(const Rates *r) {
    if (rehearsal != NULL) rehearsal_end(&q);
    rehearsal_begin(&q, r);
    for (int s = 1; s < STREAMS; s++) CHECK(rehearse_stream() == s, "stream %d", s);
    const char *first = (const char *)rehearse_memory(4096), *next = (const char *)rehearse_memory(1);
    CHECK(next - first > 4096, "memory overlaps");
}

#define MACHINE .h2d = 10, .d2h = 20, .host_adam = 1
static const Rates plain_machine = {MACHINE};

static double end(int i) { return q.jobs[i].span.end; }

// ---------------------------------------------------------------------------------------------
// The machine

#define DUPLEX .h2d_duplex = 8, .d2h_duplex = 16

static const int takes[STREAMS] = {TAKES_NOTHING, TAKES_PRODUCTS, TAKES_GPU, TAKES_H2D, TAKES_H2D,
                                   TAKES_D2H, TAKES_D2H, TAKES_HOST, TAKES_COMM};

// A job of a scene, all of which are queued at once: its stream, its work, the job that it waits
// for (-1: none), and the time when it ends.
typedef struct { int stream; double work; int after; double end; } SceneJob;

static const struct { Rates rates; SceneJob jobs[7]; } scenes[] = {
    // work takes its size over its rate
    {{MACHINE}, {{FETCH, 100, -1, 10}, {OUT, 100, 0, 15}, {CPU, 10 * ADAM_BYTES, 1, 25},
                 {COMPUTE, 7, 2, 32}, {COMM, 3, 3, 35}}},
    // a stream keeps its order
    {{MACHINE}, {{CPU, 3 * ADAM_BYTES, -1, 3}, {FETCH, 50, 0, 8}, {FETCH, 50, -1, 13},
                 {BACK, 20, -1, 2}, {OUT, 40, 2, 15}, {OUT, 40, -1, 17}}},
    // streams share the link and the GPU, of which a collective takes nothing
    {{MACHINE}, {{FETCH, 100, -1, 12.5}, {BACK, 25, -1, 5}, {COMPUTE, 3, -1, 4},
                 {UPDATE, 1, -1, 2}, {COMM, 1, -1, 1}, {OUT, 40, -1, 3}, {AWAY, 20, -1, 2}}},
    // both directions have rates of their own: 60 bytes are left, alone at 10
    {{MACHINE, DUPLEX}, {{FETCH, 100, -1, 11}, {OUT, 80, -1, 5}, {OUT, 40, 0, 13}}},
    // and others beside the cores: 16 bytes and 20 in their 4 s; 30 more, until the way out is free
    {{MACHINE, DUPLEX, .h2d_busy = 4, .d2h_busy = 5},
     {{FETCH, 100, -1, 4 + 3.75 + 5.4}, {OUT, 80, -1, 4 + 60.0 / 16},
      {CPU, 4 * ADAM_BYTES, -1, 4}}},
    // one direction beside the cores, which do not get what it takes of memory: 16, then 24; rates
    // of both directions do not count then
    {{MACHINE, .dram = 24, .h2d_host = 8, .h2d_duplex = 1, .d2h_duplex = 1, .h2d_busy = 1,
      .d2h_busy = 1}, {{CPU, 120, -1, 5 + 40.0 / 24}, {FETCH, 40, -1, 5}}},
    // nor does the other direction's: if its own is not known, memory is shared evenly
    {{MACHINE, .dram = 24, .h2d_host = 8},
     {{CPU, 70, -1, 70.0 / 12}, {OUT, 80, -1, 70.0 / 12 + 0.5}}},
    // host memory is shared evenly: the cores alone get 24, not 26; beside the link 14, then 24
    {{MACHINE, .dram = 24}, {{CPU, 120, -1, 5 + 50.0 / 24}, {FETCH, 50, -1, 5}}},
    // of 36, the way in needs 10, and 13 each are for the other two
    {{MACHINE, .dram = 24, .dram_dma = 36},
     {{CPU, 120, -1, 5 + (120 - 40 - 14 * (5 - 40.0 / 13)) / 24}, {FETCH, 50, -1, 5},
      {OUT, 40, -1, 40.0 / 13}}},
    // it has less than either direction could move
    {{MACHINE, .dram = 15, .dram_dma = 15}, {{FETCH, 75, -1, 10}, {OUT, 90, -1, 11}}},
};

static void scenes_end_when_they_should(void) {
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        const SceneJob *jobs = scenes[i].jobs;
        begin(&scenes[i].rates);
        for (int k = 0; k < 7 && jobs[k].stream > 0; k++) {
            rehearse_wait_for(jobs[k].stream, jobs[k].after);
            rehearse(jobs[k].stream, takes[jobs[k].stream], jobs[k].work);
            q.streams[jobs[k].stream].sealed = true;  // nothing joins it
        }
        rehearsal_time(&q);
        for (int k = 0; k < q.count; k++)
            CHECK(near(end(k), jobs[k].end), "scene %zu, job %d: %.12g, not %.12g", i, k, end(k),
                  jobs[k].end);
    }
}

// ---------------------------------------------------------------------------------------------
// Waits

// A simulator of what waits for what: when each stream has done all that it was given, when the
// host goes on (number THE_HOST), and when each event is complete. Streams take seconds of their
// own here, so what is given later is never done earlier.
enum { EVENTS = 6, OPERATIONS = 60 };
typedef struct { double streams[STREAMS], events[EVENTS]; } Simulator;

static unsigned draw(unsigned n) {
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return (state >> 16) % n;
}

static void wait_until(double *at, double time) { *at = fmax(*at, time); }

// Programs that are drawn take as long as the simulator says: an event is what its stream had been
// given when it was recorded last, whatever follows there; a job waits for all, of whatever number;
// what is queued while the host waits is queued later; and a stream hands on what it waits for.
static void programs_are_as_simulated(void) {
    for (int k = 0; k < 2000; k++) {
        Simulator x;
        int events[EVENTS];
        memset(&x, 0, sizeof x);
        begin(&plain_machine);
        for (int i = 0; i < EVENTS; i++) events[i] = rehearse_event();
        for (int i = 0; i < OPERATIONS; i++) {
            const int s = 1 + (int)draw(STREAMS - 1), e = (int)draw(EVENTS);
            const unsigned what = draw(20), seconds = 1 + draw(9);
            const int waits = what == 0 ? THE_HOST : s;
            if (what > 12) {
                wait_until(&x.streams[s], x.streams[THE_HOST]);
                x.streams[s] += seconds;
                rehearse(s, TAKES_COMM, seconds);
            } else if (what > 8) {
                x.events[e] = x.streams[s];
                rehearse_record(events[e], s);
            } else if (what > 1 || waits == THE_HOST) {
                wait_until(&x.streams[waits], x.events[e]);
                rehearse_wait(waits, events[e]);
            } else {
                wait_until(&x.streams[THE_HOST], x.streams[s]);
                rehearse_rest(s);
            }
        }
        for (int s = 1; s < STREAMS; s++) rehearse(s, TAKES_COMM, 1);
        rehearsal_time(&q);
        for (int s = 1; s < STREAMS; s++) {
            wait_until(&x.streams[s], x.streams[THE_HOST]);
            CHECK(near(end(q.streams[s].last), x.streams[s] + 1), "program %d, stream %d: %g, not "
                  "%g", k, s, end(q.streams[s].last), x.streams[s] + 1);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// What is read off

#define FIRST_DRAWN ",\n{\"ph\":\"X\",\"pid\":0,\"name\":\"gather\",\"tid\":8,\"ts\":0.000,"
#define LAST_DRAWN "\"name\":\"fetch\",\"tid\":2,\"ts\":%.3f,\"dur\":4000000.000," \
    "\"args\":{\"step\":0,\"number\":0,\"bytes\":40,\"GB/s\":1e-08}}"

// A step of so many micro-batches: forward (segments 0 to 2: 1 s each, 1 waits for *weights),
// backward (1: 3 s; 0: 1 s behind 1 s of a wait for room), a collective of 2 s behind it; and its
// update.
static void made_up_step(StepMark *mark, int micros, int *weights) {
    for (int i = 0; i < micros; i++) {
        rehearse_span(COMPUTE, ROW_COMPUTE, "forward", 0, 0);
        rehearse(COMPUTE, TAKES_GPU, 1);
        if (i == 0) rehearse_wait_for(COMPUTE, *weights);
        for (size_t s = 1; s < 3; s++) {
            rehearse_span(COMPUTE, ROW_COMPUTE, "forward", s, 0);
            rehearse(COMPUTE, TAKES_PRODUCTS, 1);
        }
        rehearse_span(COMPUTE, ROW_COMPUTE, "backward", 1, 0);
        const int made = rehearse(COMPUTE, TAKES_PRODUCTS, 3);
        rehearse_wait_for(OUT, made);
        rehearse_span(OUT, ROW_LEAVE, "leave", 1, 20);
        rehearse_wait_for(COMPUTE, rehearse(OUT, TAKES_D2H, 20));
        rehearse_span(COMPUTE, ROW_COMPUTE, "backward", 0, 0);
        rehearse_wait_for(COMM, rehearse(COMPUTE, TAKES_PRODUCTS, 1));
        rehearse_span(COMM, ROW_COMM, "reduce", 0, 300);
        rehearse(COMM, TAKES_COMM, 2);
    }
    rehearse_rest(COMM);
    mark->norm = q.streams[COMM].last;
    rehearse_span(COMM, ROW_COMM, "gather", 0, 600);
    rehearse(COMM, TAKES_COMM, 0.5);
    rehearse_span(FETCH, ROW_FETCH, "fetch", 0, 40);
    *weights = rehearse(FETCH, TAKES_H2D, 40);
    rehearse_span(FETCH, -1, "", 0, 0);
    rehearse(FETCH, TAKES_H2D, 10);  // tokens, or the like: in no row, and no bytes of an update
    mark->end = q.count;
}

static void a_prediction_is_read_off(void) {
    for (int more = 0; more < 8; more += 7) {
        const int micros = more > 0 ? REHEARSED_MICRO : 3;
        StepMark marks[4];
        char last[200], *text = NULL;
        size_t length;
        TraceFile trace = {open_memstream(&text, &length), NULL, 0};
        begin(&plain_machine);
        int weights = NO_JOB;
        for (int i = 0; i < 4; i++) made_up_step(&marks[i], micros, &weights);
        const Prediction x = predict(&q, marks, 4, 2, (size_t)more, 4, &trace);
        const double n = micros + more;
        // all but the last micro-batch's collective are hidden: 8 s follow, before the next
        const double step = 4 + 2 + 5 + 8 * (n - 1) + 2;
        IS(x.step, step);
        IS(x.stall_forward, 3);  // 4 s from the norm on, of which the first segment takes 1
        IS(x.stall_backward, n);
        IS(x.forward, 6 + 3 * (n - 1));
        IS(x.backward, 5 * n + 2);
        IS(x.compute, 6 * n);
        IS(x.other, n);
        IS(x.update, 5);
        IS(x.comm, 2 * n + 0.5);
        IS(x.comm_exposed, 2);
        IS(x.h2d_bytes, 40);
        IS(x.d2h_bytes, 20 * n);
        IS(x.reduced_bytes, 300 * n * 3 / 4);
        IS(x.gathered_bytes, 600 * 3.0 / 4);
        IS(x.busy[USES_GPU], more > 0 ? 0 : 7 * n / step);  // unknown, if some were left out
        IS(x.busy[USES_H2D], more > 0 ? 0 : 4 / step);
        IS(x.busy[USES_D2H], more > 0 ? 0 : n / step);
        // drawn, with its waits: from a norm to the end of another's update, two steps later
        int waits = 0;
        fclose(trace.file);
        for (const char *s = text; (s = strstr(s, "\"wait\"")) != NULL; s++) waits++;
        CHECK(waits == 2 * (1 + micros) + 1 && strstr(text, "\"number\":2}") != NULL, "%s", text);
        CHECK(strncmp(text, FIRST_DRAWN, strlen(FIRST_DRAWN)) == 0, "%s", text);
        snprintf(last, sizeof last, LAST_DRAWN, 2e6 * (step - 8.0 * more));
        CHECK(length > strlen(last) && strcmp(text + length - strlen(last), last) == 0, "%s", text);
        free(text);
    }
}

// ---------------------------------------------------------------------------------------------
// The choice

// A model of 1000 bytes of weights, 20 in each of 40 layers, and 12000 of state, in the small.
// Everything of it that may wait on the GPU or the host takes room there. ZeRO-3 (dealt) gathers
// all layers into the ring.
typedef struct { bool sums, dealt; } Toy;

static int ring_of(const OffloadChoice *c, bool dealt) {
    return rooms_of(c->weight_rooms, LEAST_ROOMS, dealt ? 40 : c->streamed);
}

static void toy_needs(void *arg, const OffloadChoice *c, size_t *gpu, size_t *host) {
    static const size_t kept[] = {0, 800, 600, 300};  // activations, by RECOMPUTE_*
    const double resident = c->mode == OFFLOAD_NONE ? 1 : c->resident;
    const Toy *toy = (const Toy *)arg;
    *gpu = 1000 - (size_t)(20 * ((toy->dealt ? 40 : c->streamed) - ring_of(c, toy->dealt)))
         + (size_t)(12000 * resident) + kept[c->recompute] + 7 * (size_t)c->kept_layers
         + 20 * (size_t)fmin(fmax(c->kept_grads, 0), 20)
         + (toy->sums && !c->sum_on_host ? 2000 : 0)
         + (size_t)rooms_of(c->grad_rooms, LEAST_ROOMS, 32) * 50
         + (size_t)rooms_of(c->slots, LEAST_SLOTS, 20) * 120;
    *host = (size_t)(12000 * (1 - resident)) + (toy->sums && c->sum_on_host ? 2000 : 0);
}

// What a choice becomes. Given: --weights, the mode, bytes of the GPU, whether gradients are
// summed. Then: whether it fits, what is computed again, whether sums are on the host, visitors'
// gradients that stay, places, slots, layers that stream, and places in their ring (-1: not looked
// at). At last whether it is ZeRO-3.
static const struct {
    int weights, mode;
    size_t gpu;
    bool sums, fits;
    int again;
    bool on_host;
    int kept, places, slots, streamed, ring;
    bool dealt;
} settled[] = {
    // the order in which a tight choice gives up what only costs time; what is left is used
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 9999, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, 32, 20, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 2700, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, 2, 3, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 2600, 0, 1, RECOMPUTE_NONE, 0, 2, 8, 3, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 2250, 0, 1, RECOMPUTE_LIGHT, 0, 2, 5, 3, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 2059, 0, 1, RECOMPUTE_BLOCK, 0, 2, 7, 3, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 1760, 0, 1, RECOMPUTE_BLOCK, 0, 0, 2, 3, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 1759, 0, 0, RECOMPUTE_BLOCK, 0, -1, -1, -1, 0, -1},
    // sums on the GPU need no places, those on the host do
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 9999, 1, 1, RECOMPUTE_NONE, 0, KEEP_ALL, 2, 20, 0, -1},
    {WEIGHTS_GPU, OFFLOAD_INTERLEAVE, 4659, 1, 1, RECOMPUTE_NONE, 1, KEEP_ALL, 32, 7, 0, -1},
    // weights are on the host only if nothing else helps, and then as few as may be; or all of them
    {WEIGHTS_AUTO, OFFLOAD_INTERLEAVE, 9999, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, 32, 20, 0, 0},
    {WEIGHTS_AUTO, OFFLOAD_INTERLEAVE, 1759, 0, 1, RECOMPUTE_NONE, 0, 0, 2, 3, 28, 2},
    {WEIGHTS_AUTO, OFFLOAD_INTERLEAVE, 1000, 0, 1, RECOMPUTE_BLOCK, 0, 0, 2, 3, 40, 2},
    {WEIGHTS_AUTO, OFFLOAD_INTERLEAVE, 999, 0, 0, RECOMPUTE_BLOCK, 0, -1, -1, -1, 40, -1},
    {WEIGHTS_HOST, OFFLOAD_INTERLEAVE, 9999, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, -1, -1, 40, 40},
    {WEIGHTS_HOST, OFFLOAD_INTERLEAVE, 3440, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, -1, -1, 40, 4},
    {WEIGHTS_HOST, OFFLOAD_NONE, 99999, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, -1, -1, 0, -1},
    // a ring of gathered weights has what memory is left
    {WEIGHTS_GPU, OFFLOAD_NONE, 13899, 0, 1, RECOMPUTE_NONE, 0, -1, 2, 3, 0, 21, true},
    {WEIGHTS_GPU, OFFLOAD_NONE, 99999, 0, 1, RECOMPUTE_NONE, 0, KEEP_ALL, -1, -1, 0, 40, true},
};

static bool is_as(int want, int is) { return want == -1 || is == want; }

static void a_choice_is_settled(void) {
    for (size_t i = 0; i < sizeof settled / sizeof *settled; i++) {
        Toy toy = {settled[i].sums, settled[i].dealt};
        const OffloadMemory m = {.needs = toy_needs, .model = &toy, .gpu = settled[i].gpu,
                                 .host = toy.sums ? 14000 : 12000, .recompute = RECOMPUTE_AUTO,
                                 .sums = toy.sums, .weights = settled[i].weights, .layers = 40,
                                 .dealt = toy.dealt};
        OffloadChoice c;
        memset(&c, 0, sizeof c);
        c.mode = settled[i].mode;
        const bool fits = choice_settle(&m, &c);
        const int places = rooms_of(c.grad_rooms, LEAST_ROOMS, 32);
        const int slots = rooms_of(c.slots, LEAST_SLOTS, 20), ring = ring_of(&c, toy.dealt);
        CHECK(fits == settled[i].fits && c.recompute == settled[i].again
              && c.sum_on_host == settled[i].on_host && c.kept_grads == settled[i].kept
              && is_as(settled[i].places, places) && is_as(settled[i].slots, slots)
              && c.streamed == settled[i].streamed && is_as(settled[i].ring, ring)
              && (c.weight_rooms == 0 || toy.dealt || c.streamed > 0),
              "case %zu: fits %d, again %d, on the host %d, %d kept, %d places, %d slots, %d "
              "stream through %d", i, fits, c.recompute, c.sum_on_host, c.kept_grads, places, slots,
              c.streamed, ring);
        const bool block = fits && c.recompute == RECOMPUTE_BLOCK;
        CHECK(block || c.kept_layers == 0, "case %zu: %d layers keep", i, c.kept_layers);
        c.kept_layers++;  // as many as fit
        CHECK(!block || c.kept_layers > 39 || !choice_fits(&m, &c), "case %zu: %d layers keep", i,
              c.kept_layers - 1);
        c.slots = 4;  // what is said is kept
        c.grad_rooms = 6;
        if (fits && choice_settle(&m, &c)) CHECK(c.slots == 4 && c.grad_rooms == 6, "case %zu", i);
    }
}

// As many residents as fit, on the GPU; what is left on the host must fit there.
static void residents_are_as_many_as_fit(void) {
    Toy toy = {false, false};
    OffloadMemory m = {toy_needs, &toy, 9000, 99999, RECOMPUTE_NONE, false, WEIGHTS_GPU, 0, NULL};
    OffloadChoice c = {.mode = OFFLOAD_TWINFLOW, .resident = -1};
    CHECK(choice_settle(&m, &c), "does not fit");
    const double room = 9000 - (1000 + 800 + 400 + 2 * 50 + 3 * 120);
    CHECK(c.resident * 12000 <= room && (c.resident + 1 / 256.0) * 12000 > room, "%g", c.resident);
    m.host = 12000 - (size_t)room - 450;  // 400 more: what visitors' gradients take
    c.resident = -1;
    CHECK(!choice_settle(&m, &c), "%g fits into %zu", c.resident, m.host);
}

// If nothing fits, the named least of either memory fits, and a byte less does not.
static void the_least_is_noted(void) {
    static const int modes[] = {OFFLOAD_ZERO, OFFLOAD_TWINFLOW, OFFLOAD_INTERLEAVE};
    for (int i = 0; i < 3 * 2 * 4; i++) {
        Toy toy = {i / 3 % 2, false};
        const size_t gpu = 2500 + 1500 * (size_t)(i / 6), host = 3000;
        OffloadLeast least = {SIZE_MAX, SIZE_MAX};
        OffloadMemory m = {toy_needs, &toy, gpu, host, RECOMPUTE_AUTO, toy.sums, WEIGHTS_AUTO, 40,
                           &least};
        const double resident = modes[i % 3] == OFFLOAD_TWINFLOW ? -1 : 0;
        OffloadChoice c = {.mode = modes[i % 3], .resident = resident};
        CHECK(!choice_settle(&m, &c), "case %d fits while the least is looked for", i);
        CHECK(least.host < SIZE_MAX && (c.mode != OFFLOAD_TWINFLOW || least.gpu < SIZE_MAX),
              "case %d: nothing is noted", i);
        m.least = NULL;
        for (int k = 0; k < 4; k++) {
            const bool less = k & 1, of_host = k & 2;
            m.host = of_host ? least.host - less : host;
            m.gpu = of_host ? gpu : least.gpu - less;
            c = (OffloadChoice){.mode = modes[i % 3], .resident = resident};
            if (m.gpu < SIZE_MAX - 1)
                CHECK(choice_settle(&m, &c) == !less, "case %d: %zu, %zu", i, m.gpu, m.host);
        }
    }
}

int main(void) {
    RUN(scenes_end_when_they_should);
    RUN(programs_are_as_simulated);
    RUN(a_prediction_is_read_off);
    RUN(a_choice_is_settled);
    RUN(residents_are_as_many_as_fit);
    RUN(the_least_is_noted);
    rehearsal_end(&q);
    return test_summary();
}
