// test_placement.cu: wherever the optimizer's state lives, and whoever updates it, training leaves
// the same bits; each way of placing it does what it says, in the memory that was planned, and at
// the same time as what it is meant to hide behind.
//
// usage: test_placement                     all tests
//        test_placement --config TEXT|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_placement --clock K            what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"

// ---------------------------------------------------------------------------------------------
// What a placement says

static bool has_residents(const Segment *s) {
    for (const Piece *p = s->first; p < s->end; p++)
        if (p->kind == PIECE_RESIDENT) return true;
    return false;
}

// Checks that the number of layers that stream, and the number of their places, are those of the
// row; that they have no residents and are spread evenly; and that no more memory is taken.
static void check_weights(GPT2 *g, const Config *c) {
    const int L = g->segments - 2;
    int may = 0, seen = 0, before = 0;
    size_t stay = g->segment[0].length + g->segment[L + 1].length;
    for (int s = 1; s <= L; s++) may += !has_residents(&g->segment[s]);
    const int streams = c->streamed < may ? c->streamed : may;
    for (int s = 1; s <= L; s++) {
        const Segment *x = &g->segment[s];
        const bool resident = has_residents(x);
        seen += x->on_host;
        before += !resident;
        if (!x->on_host) stay += x->length;
        CHECK(!resident || !x->on_host, "%s: layer %d is resident and streams", c->text, s);
        CHECK(may == 0 || abs(seen * may - before * streams) < may, "%s: not evenly", c->text);
    }
    CHECK(seen == streams && g->streamed == streams, "%s: %d of %d layers stream", c->text, seen,
          may);
    const size_t turns = (size_t)(c->ring < streams ? c->ring : streams);
    const size_t all = stay + turns * g->segment[1].length;
    CHECK(g->param_elements == all, "%s: %zu elements of weights, places of %zu", c->text,
          g->param_elements, all);
}

// Returns the number of visitors whose gradients wait on the GPU (model_begin()).
static int config_kept(const Config *c) { return c->tight < 2 ? (int)KEEP_ALL : c->tight - 2; }

// The bytes that crossed the link in each direction in `steps` steps.
static void check_moved(GPT2 *g, const Config *c, size_t steps, Report *) {
    const size_t X_ = sizeof(floatX);
    const bool sums = c->o.accum > 1, on_host = sums && c->tight > 0;
    // of one element's gradient, in a step: when it leaves, and when it waits on the host
    const size_t waits = sums || c->o.grad_wire == WIRE_FP32 ? 4 : X_;
    const size_t leaves = on_host ? c->o.accum * X_ : waits;
    const size_t state = state_of(c);
    const size_t inputs = inputs_moved(c, steps);
    size_t in = 0, out = 0;
    int visits = 0;
    const size_t layers = layers_fetched(g->streamed, g->weight_rooms.count, c->o.accum,
                                         c->evaluates, steps);
    const size_t weights = layers * g->segment[1].length * X_;
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        const bool streams = g->segment[p->segment].on_host;
        const bool with_grad = p->kind == PIECE_VISIT && visits++ >= config_kept(c);
        if (p->kind == PIECE_HOST) out += p->length * leaves, in += streams ? 0 : p->length * X_;
        if (p->kind == PIECE_VISIT && streams) out += p->length * X_;
        if (p->kind == PIECE_VISIT && streams) in += p->length * X_;
        if (p->kind == PIECE_VISIT) out += p->length * (state + (with_grad ? leaves : 0));
        if (p->kind == PIECE_VISIT) in += p->length * (state + (with_grad ? waits : 0));
    }
    CHECK(g->moved_in == steps * in + weights + inputs && g->moved_out == steps * out + inputs,
          "%s: %zu in, %zu out; wanted %zu, %zu", c->text, g->moved_in, g->moved_out,
          steps * in + weights + inputs, steps * out + inputs);
}

// ---------------------------------------------------------------------------------------------
// Overlap: how long steps take on the emulated GPU's virtual clock

#define DEEP_STATES "five --offload interleave --stride 2 --grad-wire fp32 steps=100"

// Figure 9 of Deep Optimizer States: a hundred steps whose copies and updates run on under the next
// forward pass. If a copy fell behind, each step would begin later than the one before: none does.
// From norm to norm, after two steps; every second sub-group visits, gradients leave in fp32.
static void test_a_hundred_steps(void) {
#ifdef __CUDA_EMU__
    enum { FIRST = 2, STEPS = 100, SOME = 10 };
    const Config c = config_of("%s", DEEP_STATES);
    const double late = 1e-3 * measure(&c, in_memory(&c)).late, *const end = end_of_step + FIRST;
    double ms[STEPS];
    for (int i = 0; i < STEPS; i++) ms[i] = 1e-3 * (end[i + 1] - end[i]);
    const double sum = 1e-3 * (end[STEPS] - end[0]) / STEPS, middle = median_of(ms, STEPS);
    const double first = 1e-3 * (end[SOME] - end[0]) / SOME;
    const double last = 1e-3 * (end[STEPS] - end[STEPS - SOME]) / SOME;
    printf("  %d steps: mean %.4f ms, median %.4f; the first %d %.4f, the last %d %.4f; after the "
           "last, its update went on for %.4f\n", STEPS, sum, middle, SOME, first, SOME, last,
           late);
    CHECK(late > 0.2 * middle, "nothing runs on under the next step: %.4f ms", late);
    CHECK(fabs(last / first - 1) < 1e-3, "steps drift: %.4f ms, then %.4f", first, last);
    CHECK(fabs(sum / middle - 1) < 1e-3, "mean %.4f ms, median %.4f", sum, middle);
#endif
}

// A step of 7B's proportions, by scripts/rates/h200_16cores.txt: a layer's forward takes half of
// its backward, its gradient over the link 2.3 times that, its update by the CPU 11.7 times.
#define SLOWLY " updates=814"

#define SLOW_LINK "EMU_KERNEL_US=20 EMU_HOST_US=0 EMU_LINK=10300000"
#define FAST_LINK "EMU_KERNEL_US=20 EMU_HOST_US=0 EMU_LINK=200000000"

static const Clock placement_clocks[] = {
    {SLOW_LINK, 0.02, {
        // places for all layers' gradients do not help where the link is the limit, but slots do
        {"7B --offload zero places=2" SLOWLY, NULL, 9.5, 10},
        {"7B --offload zero places=32" SLOWLY, "7B --offload zero places=2" SLOWLY, 0.99, 1.001},
        {"7B --offload interleave --share 0.6 --slots 24 places=32" SLOWLY,
         "7B --offload interleave --share 0.6 --slots 3 places=32" SLOWLY, 0.9, 0.97},
        // the update begins early, or in backward
        {"7B --offload zero places=32 early=8" SLOWLY, "7B --offload zero places=32" SLOWLY,
         0.89, 0.92},
        {"7B --clip 0 --offload zero places=32" SLOWLY,
         "7B --offload zero places=32 early=8" SLOWLY, 0.95, 0.97},
        // weights come at the link's speed, and compute is hidden behind that
        {"7B --offload zero places=32 streamed=32", "link", 1, 1.09},
        // the GPU's speed with a few layers predicts a step of all
        {"7B measured", NULL, 0.999, 1.001}}},
    {FAST_LINK, 0.02, {
        // weights hide where a layer takes longer than they do; so do inputs of layers
        {"7B --offload zero places=32 streamed=32", "7B --offload zero places=32", 1, 1.01},
        {"7B --activations host", "7B --recompute block", 0.999, 1.0002}}},
    {SLOW_LINK, 1, {
        // with more than one slot, both directions are busy at once
        {"five --offload interleave --share 1 --slots 1", "link", 1.9, 2.1},
        {"five --offload interleave --share 1 --slots 2", "link", 1, 1.24},
        {"five --offload interleave --share 1 --slots 3",
         "five --offload interleave --share 1 --slots 2", 0.95, 1},
        // while visitors travel, the CPU updates what does not
        {"five --offload interleave --stride 2 updates=650", "five --offload zero updates=650",
         0.5, 0.65},
        {"five --offload interleave --stride 2 updates=650",
         "five --offload interleave --share 1 --slots 2", 0.5, 0.65},
        // gradients leave while backward goes on; while one is added to its sum, the next one lands
        {"five --offload zero", "five --offload zero --no-overlap", 0.7, 0.78},
        {"five --accum 2 --offload zero tight=1 updates=40", "link", 1.6, 1.72}}},
    {FAST_LINK, 1, {
        {"7B --offload zero places=32 streamed=32 --no-overlap",
         "7B --offload zero places=32 --no-overlap", 1.06, 1.07},
        {"7B --activations host --no-overlap", "7B --recompute block --no-overlap", 1.0036, 1.005},
        // the next forward pass begins when the first layers are updated, not when all are
        {"five --offload interleave --share 0.5 updates=80",
         "five --offload interleave --share 0.5 updates=80 --no-overlap", 0.8, 0.88}}},
    {"EMU_KERNEL_US=1 EMU_HOST_US=150 EMU_LINK=17000000", 1, {
        {DEEP_STATES, NULL, 0, 99}}, test_a_hundred_steps},
};

// ---------------------------------------------------------------------------------------------

static void tests(void) {
    RUN(test_same_bits);
    if (IS_BF16) RUN(test_overlap);
}

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    adamw.opened = check_weights;
    adamw.trained = check_moved;
    return rows_main(argc, argv, "test_placement", placement_clocks,
                     sizeof placement_clocks / sizeof *placement_clocks, tests);
}
