// test_zero_gpu.cu: several GPUs, each a process: whatever the stage, wherever the state lives, and
// in which order events let the streams run, training leaves the bits of stage 1 with everything on
// the GPU; what a rank takes and gives away is what the formulas say; and moving it costs no time
// that something else can hide.
//
// usage: test_zero_gpu                     all tests
//        test_zero_gpu --config TEXT|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_zero_gpu --clock 0           what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"

// ---------------------------------------------------------------------------------------------
// The bytes that a rank receives and sends

// Sets the elements of a rank's part of the embeddings, of a layer, and of the tail. (Who owns what:
// test_zero.c.)
static void parts_of(const GPT2 *g, size_t R, size_t part[3]) {
    const int segments[3] = {0, 1, g->segments - 1};
    for (int k = 0; k < 3; k++) {
        size_t at;
        part[k] = zero_cut(zero_segment(&g->table, segments[k], &at), R);
    }
}

// Memory per rank: weights, gradients and state by the table in zero.h, on GPU and host together.
// What it leaves out: shards are whole 128s, gradients pass through some layers' places, weights of
// stage 3 through so many of a ring, and the head's wait in fp32.
static void check_formulas(GPT2 *g, const Config *c) {
    static const char *const purposes[] = {"parameters", "master weights", "AdamW moments",
                                           "gradients"};
    const Shape s = config_shape(c);
    const size_t R = (size_t)c->ranks, X_ = sizeof(floatX);
    size_t part[3];
    parts_of(g, R, part);
    const size_t own = g->shards.elements, ends = R * (part[0] + part[2]);
    const size_t rooms = ends + s.L * R * part[1];
    const size_t places = ends + min_size((size_t)c->ring, s.L) * R * part[1];
    const size_t passing = ends + min_size((size_t)c->places, s.L) * R * part[1];
    const size_t layer_parts = (s.L - (size_t)g->streamed) * part[1];
    const bool sums = c->o.accum > 1, away = c->o.offload != OFFLOAD_NONE;
    const bool leaves = c->o.zero >= 2 || c->tight > 0;  // the place where it is made
    const bool at_once = g->update_in_backward;  // none waits
    size_t grads = X_ * (sums || leaves || at_once ? passing : rooms);
    if (sums) grads += 4 * own;
    else if (leaves && !at_once) grads += X_ * (own - g->grads_over_acts);
    if (s.tied || s.B * s.T > s.head_rows)  // else the head's is made in its place
        grads += (size_t)128 * ((s.V + 127) / 128) * s.C * 4;
    const size_t wanted[4] = {X_ * (c->o.zero < 3 ? rooms : places + layer_parts),
                              X_ == 2 && c->o.master == MASTER_FP32 ? 2 * own : 0,
                              (c->o.moments == MOMENTS_BF16 ? 4 : 8) * own, grads};
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    for (int k = 0; k < (away ? 3 : 4); k++) {
        size_t bytes = 0;
        for (int i = 0; i < n; i++)
            if (strcmp(list[i].purpose, purposes[k]) == 0) bytes += list[i].bytes;
        CHECK(bytes == wanted[k], "rank %d: %zu bytes of %s, not %zu: %s", ranks.rank, bytes,
              purposes[k], wanted[k], c->text);
    }
    CHECK(g->streamed == 0 || c->streamed > 0, "%d layers stream: %s", g->streamed, c->text);
    CHECK(g->streamed > 0 || c->streamed == 0 || !away || c->o.resident > 0, "nothing streams: %s",
          c->text);
}

// The bytes that this rank has given away since it began.
static void check_given(GPT2 *g, const Config *c, size_t steps, Report *) {
    if (g->zero == NULL) return;
    const size_t R = (size_t)c->ranks, L = c->shape->L;
    size_t part[3];
    parts_of(g, R, part);
    const size_t ends = part[0] + part[2], layer = part[1];
    size_t counts[32 * MOST_RANKS] = {0};
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
    if (IS_BF16) RUN(test_overlap);
}

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    adamw.opened = check_open;
    adamw.trained = check_given;
    rows_fork = true;
    return rows_main(argc, argv, "test_zero_gpu", zero_clocks, 1, tests);
}
