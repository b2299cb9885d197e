// test_zero_gpu.cu: several GPUs, each a process: whatever the stage, wherever the state lives, and
// in which order events let the streams run, training leaves the bits of stage 1 with everything on
// the GPU; what a rank takes and gives away is what the formulas say; and moving it costs no time
// that something else can hide.
//
// usage: test_zero_gpu                     all tests
//        test_zero_gpu --config K|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_zero_gpu --clock 0 3         what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"

// ---------------------------------------------------------------------------------------------
// The bytes that a rank receives and sends

// Elements of the embeddings, a layer, and the tail, and of a rank's part of each. (Who owns what:
// test_zero.c.)
typedef struct { size_t n[3], part[3]; } Lengths;

static Lengths lengths_of(const GPT2 *g, size_t R) {
    const int segments[3] = {0, 1, g->segments - 1};
    Lengths x;
    for (int k = 0; k < 3; k++) {
        size_t at;
        x.n[k] = zero_segment(&g->table, segments[k], &at);
        x.part[k] = zero_cut(x.n[k], R);
    }
    return x;
}

static size_t purpose_bytes(const Buffer *list, int n, const char *purpose) {
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].purpose, purpose) == 0) sum += list[i].bytes;
    return sum;
}

// Memory per rank: weights, gradients and state by the table in zero.h, on GPU and host together.
// What it leaves out: shards are whole 128s, gradients pass through some layers' places, weights of
// stage 3 through so many of a ring, and the head's wait in fp32.
static void check_formulas(GPT2 *g, const Config *c) {
    const Shape s = config_shape(c);
    const size_t R = (size_t)c->ranks, rank = (size_t)ranks.rank, X_ = sizeof(floatX);
    const Lengths x = lengths_of(g, R);
    const size_t own = g->shards.elements, ends = R * (x.part[0] + x.part[2]);
    const size_t rooms = ends + s.L * R * x.part[1];
    const size_t places = ends + min_size((size_t)c->ring, s.L) * R * x.part[1];
    const size_t turns = min_size((size_t)c->places, s.L);  // of gradients
    const bool sums = c->o.accum > 1, away = c->o.offload != OFFLOAD_NONE;

    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    const size_t weights = purpose_bytes(list, n, "parameters");
    const size_t masters = purpose_bytes(list, n, "master weights");
    const size_t moments = purpose_bytes(list, n, "AdamW moments");
    const size_t layer_parts = (s.L - (size_t)g->streamed) * x.part[1];
    CHECK(g->streamed == 0 || c->streamed > 0, "%d layers stream: %s", g->streamed, c->text);
    CHECK(g->streamed > 0 || c->streamed == 0 || !away || c->o.resident > 0, "nothing streams: %s",
          c->text);
    CHECK(weights == X_ * (c->o.zero < 3 ? rooms : places + layer_parts), "rank %zu: %zu bytes of "
          "weights: %s", rank, weights, c->text);
    CHECK(moments == (c->o.moments == MOMENTS_BF16 ? 4 : 8) * own, "rank %zu: %zu bytes of "
          "moments: %s", rank, moments, c->text);
    CHECK(masters == (X_ == 2 && c->o.master == MASTER_FP32 ? 2 * own : 0), "rank %zu: %zu bytes "
          "of masters: %s", rank, masters, c->text);  // besides the weights
    if (!away) {
        const size_t passing = ends + turns * R * x.part[1];
        const bool leaves = c->o.zero >= 2 || c->tight > 0;  // the place where it is made
        const bool at_once = g->update_in_backward;  // none waits
        size_t wanted = X_ * (sums || leaves || at_once ? passing : rooms);
        if (sums) wanted += 4 * own;
        else if (leaves && !at_once) wanted += X_ * (own - g->grads_over_acts);
        if (s.tied || s.B * s.T > s.head_rows)  // else the head's is made in its place
            wanted += (size_t)128 * ((s.V + 127) / 128) * s.C * 4;
        const size_t grads = purpose_bytes(list, n, "gradients");
        CHECK(grads == wanted, "rank %zu: %zu bytes of gradients, not %zu: %s", rank, grads, wanted,
              c->text);
    }
}

// The bytes that this rank has given away since it began.
static void check_given(GPT2 *g, const Config *c, size_t steps, Report *) {
    if (g->zero == NULL) return;
    const size_t R = (size_t)c->ranks, L = c->shape->L;
    const Lengths x = lengths_of(g, R);
    const size_t ends = x.part[0] + x.part[2], layer = x.part[1];
    size_t counts[32 * MOST_RANKS];
    const size_t blocks = zero_blocks(&g->table, R, false, counts);
    const size_t numbers = steps * (3 + blocks) * 8;  // loss and flags, and sums of squares
    // segments' gradients or weights: all, or embeddings and tail and the layers that come
    size_t weights = (1 + steps) * (ends + L * layer);
    if (c->o.zero == 3)
        weights = layers_fetched((int)L, c->ring, c->o.accum, c->evaluates, steps) * layer
                + (steps + (c->evaluates != 0)) * ends;
    CHECK(g->zero->reduced_bytes
              == (R - 1) * steps * c->o.accum * (ends + L * layer) * sizeof(floatX),
          "%zu bytes reduced: %s", g->zero->reduced_bytes, c->text);
    CHECK(g->zero->gathered_bytes == (R - 1) * (weights * sizeof(floatX) + numbers),
          "%zu bytes gathered, not %zu: %s", g->zero->gathered_bytes,
          (R - 1) * (weights * sizeof(floatX) + numbers), c->text);
}

static void check_open(GPT2 *g, const Config *c) {
    if (g->zero != NULL) check_formulas(g, c);
}

// ---------------------------------------------------------------------------------------------
// Other numbers of ranks

// The same micro-batches dealt out to one rank: the same training, to rounding. With a large
// epsilon: else AdamW makes of a gradient that is nothing but rounding a whole step.
static void check_world(const char *shape, int world, int stage) {
    enum { STEPS = 3 };
    const double losses = IS_HALF ? 2e-4 : 1e-6, weights = IS_HALF ? 1e-3 : 1e-5;
    const double norms = IS_HALF ? 1 : 1e-5;
    const Config c = config_of("%s ranks=%d --zero %d --accum %d --clip 0.5", shape, world, stage,
                               12 / world);
    const Config alone = config_of("%s --accum 12 --clip 0.5", shape);
    Shared *a = shared_open(&c), *b = shared_open(&c);
    double difference = 0, length = 0;
    train_ranks(&c, 1, STEPS, a);
    train_ranks(&alone, 1, STEPS, b);
    for (int i = 0; i < STEPS; i++) {
        const double *p = a->rank[0].of_step[i], *q = b->rank[0].of_step[i];
        CHECK(test_within(fabs(p[0] / q[0] - 1), losses)
              & test_within(fabs(p[1] / q[1] - 1), norms), "%s: step %d: loss %g, norm %g; "
              "alone %g, %g", c.text, i + 1, p[0], p[1], q[0], q[1]);
    }
    for (size_t i = 0; i < a->P; i++) {
        difference += pow(arena(a, 0)[i] - arena(b, 0)[i], 2);
        length += pow(arena(b, 0)[i], 2);
    }
    CHECK(test_within(sqrt(difference / length), weights), "%s: weights are off by %g", c.text,
          sqrt(difference / length));
    shared_close(a);
    shared_close(b);
}

static void test_other_worlds(void) {
    if (ranks_at_most() < 2) SKIP("one GPU");
    eps_here = 1e-2;
    if (!IS_HALF) check_world("five", 2, 3);
    if (!IS_HALF && ranks_at_most() >= 3) check_world("odd", 3, 1);
    if (ranks_at_most() >= 4) check_world("tied", 4, 2);
}

// ---------------------------------------------------------------------------------------------
// Overlap: how long steps take on the emulated GPU's virtual clock

// A layer's collective takes 112 us, its forward pass 200, its backward pass 400. Gradients are
// summed while backward goes on; the next forward pass begins when the first weights are there; in
// stage 3 each layer's weights come while the one before is used, in both directions.
static const Clock zero_clocks[] = {
    {"EMU_KERNEL_US=20 EMU_NCCL_US=10 EMU_NCCL_LINK=30000000 EMU_LINK=1000000000000", 1, {
        {"five ranks=2 --zero 1", NULL, 1, 1.18},
        {"five ranks=2 --zero 2", NULL, 1, 1.185},
        {"five ranks=2 --zero 3", "five ranks=2 --zero 2", 0.99, 1.01},
        {"five ranks=2 --zero 1", "five ranks=2 --zero 1 --no-overlap", 0.75, 0.78},
        {"five ranks=2 --zero 2", "five ranks=2 --zero 2 --no-overlap", 0.75, 0.78},
        {"five ranks=2 --zero 3", "five ranks=2 --zero 3 --no-overlap", 0.8, 0.85}}}};

// ---------------------------------------------------------------------------------------------

static void tests(void) {
    RUN(test_same_bits);
    RUN(test_other_worlds);
    if (IS_BF16) RUN(test_overlap);
}

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    adamw.opened = check_open;
    adamw.trained = check_given;
    rows_fork = true;
    return rows_main(argc, argv, "test_zero_gpu", zero_clocks, 1, tests);
}
