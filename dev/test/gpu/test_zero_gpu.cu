// test_zero_gpu.cu: several GPUs, each a process: whatever the stage, wherever the state lives, and
// in which order events let the streams run, training leaves the bits of stage 1 with everything on
// the GPU; what a rank takes and gives away is what the formulas say; and moving it costs no time
// that something else can hide.
//
// usage: test_zero_gpu                     all tests
//        test_zero_gpu --config K|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_zero_gpu --clock 0           what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"

// ---------------------------------------------------------------------------------------------
// The bytes that a rank receives and sends

// Elements of each rank's part of n, and of a rank's part: by other means than zero.h.
static size_t part_of(size_t n, size_t world) {
    return (n + 128 * world - 1) / (128 * world) * 128;
}

static size_t owned(size_t n, size_t world, size_t rank) {
    const size_t part = part_of(n, world), from = part * rank;
    return from >= n ? 0 : n - from < part ? n - from : part;
}

// Elements of the embeddings, a layer, and the tail.
typedef struct { size_t n[3], L; } Lengths;

static Lengths lengths_of(const Shape *s) {
    const GPT2Config c = shape_config(s);
    GPT2Table t = gpt2_table(&c);
    Lengths x;
    const size_t layers = t.tensors[t.first_layer].offset, tail = t.tensors[t.tail].offset;
    x.L = s->L;
    x.n[0] = layers;
    x.n[1] = (tail - layers) / s->L;
    x.n[2] = t.elements - tail;
    gpt2_table_free(&t);
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
    const Lengths x = lengths_of(&s);
    const size_t R = (size_t)c->ranks, rank = (size_t)ranks.rank, X_ = sizeof(floatX);
    size_t own = 0, rooms = 0, parts = 0;
    for (int k = 0; k < 3; k++) {
        const size_t times = k == 1 ? x.L : 1, room = R * part_of(x.n[k], R);
        own += times * owned(x.n[k], R, rank);
        parts += times * part_of(x.n[k], R);
        rooms += times * room;
    }
    const size_t ends = R * (part_of(x.n[0], R) + part_of(x.n[2], R));
    const size_t places = ends + min_size((size_t)c->ring, x.L) * R * part_of(x.n[1], R);
    const size_t turns = min_size((size_t)c->places, x.L);  // of gradients
    const bool sums = c->o.accum > 1, away = c->o.offload != OFFLOAD_NONE;

    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    const size_t weights = purpose_bytes(list, n, "parameters");
    const size_t masters = purpose_bytes(list, n, "master weights");
    const size_t moments = purpose_bytes(list, n, "AdamW moments");
    const size_t layer_parts = parts - part_of(x.n[0], R) - part_of(x.n[2], R)
                             - (size_t)g->streamed * part_of(x.n[1], R);
    CHECK(g->streamed == 0 || c->streamed > 0, "%d layers stream: %s", g->streamed, c->text);
    CHECK(g->streamed > 0 || c->streamed == 0 || !away || c->o.resident > 0, "nothing streams: %s", c->text);
    CHECK(weights == X_ * (c->o.zero < 3 ? rooms : places + layer_parts), "rank %zu: %zu bytes of "
          "weights: %s", rank, weights, c->text);
    CHECK(moments == (c->o.moments == MOMENTS_BF16 ? 4 : 8) * own, "rank %zu: %zu bytes of moments: %s", rank, moments, c->text);
    CHECK(masters == (X_ == 2 && c->o.master == MASTER_FP32 ? 2 * own : 0), "rank %zu: %zu bytes of masters: %s", rank, masters,
          c->text);  // besides the weights
    if (!away) {
        const size_t passing = ends + turns * R * part_of(x.n[1], R);
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
    const Shape s = config_shape(c);
    const Lengths x = lengths_of(&s);
    const size_t R = (size_t)c->ranks, L = x.L;
    const size_t ends = part_of(x.n[0], R) + part_of(x.n[2], R), layer = part_of(x.n[1], R);
    size_t blocks = 0, numbers = 0;
    for (size_t r = 0; r < R; r++) {
        ShardMap map = zero_shards(&g->table, R, r, false);
        size_t sum = 0;
        for (int i = 0; i < map.count; i++) sum += (map.shards[i].length + 4095) / 4096;
        if (sum > blocks) blocks = sum;
        free(map.shards);
    }
    numbers = steps * (3 + blocks) * 8;  // loss and flags, and sums of squares
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
    if (g->zero == NULL) return;
    check_formulas(g, c);
    CHECK(is_urgent(g->zero->stream), "collectives wait for products");
}

// No rank's host reads the GPU's memory, or writes it.
static void test_host_keeps_off(void) {
#ifdef __CUDA_EMU__
    int tried = 0;
    for (int k = rows.drawn; k < rows.count && tried < (test_whole() ? 3 : 1); k++) {
        if (!row_is_here(k) || rows.row[k].o.offload == OFFLOAD_NONE) continue;
        run_again("test_zero_gpu", "--config", k, "EMU_PROTECT=1");
        tried++;
    }
#else
    SKIP("only the emulated GPU can close its memory");
#endif
}

// ---------------------------------------------------------------------------------------------
// Other numbers of ranks

// The same micro-batches dealt out to more or fewer ranks: the same training, to rounding. With a
// large epsilon: else AdamW makes of a gradient that is nothing but rounding a whole step.
typedef struct { double losses, norms, weights; } Apart;

static Apart apart(const Config *c, size_t steps) {
    const Config other = config_of("%s --accum %zu --clip 0.5", c->shape->name,
                                   ranks_of(c) * c->o.accum);
    Shared *a = shared_open(c), *b = shared_open(c);
    Apart x = {0, 0, 0};
    train_ranks(c, 1, steps, a);
    train_ranks(&other, 1, steps, b);
    for (size_t i = 0; i < steps; i++) {
        const double *p = a->rank[0].of_step[i], *q = b->rank[0].of_step[i];
        x.losses = fmax(x.losses, fabs(p[0] / q[0] - 1));
        x.norms = fmax(x.norms, fabs(p[1] / q[1] - 1));
    }
    double difference = 0, length = 0;
    for (size_t i = 0; i < a->P; i++) {
        difference += pow(arena(a, 0)[i] - arena(b, 0)[i], 2);
        length += pow(arena(b, 0)[i], 2);
    }
    x.weights = sqrt(difference / length);
    shared_close(a);
    shared_close(b);
    return x;
}

static Config spread(const char *shape, int world, int stage) {
    return config_of("%s ranks=%d --zero %d --accum %d --clip 0.5", shape, world, stage,
                     12 / world);
}

static void test_other_worlds(void) {
    if (ranks_at_most() < 2) SKIP("one GPU");
    eps_here = 1e-2;
    for (int world = 2; world <= ranks_at_most() && BITS == 32; world++)
        for (int stage = 1; stage <= 3; stage += 2) {
            if (!test_whole() && (world + stage / 2) % 2) continue;
            const Config c = spread(world % 2 ? "odd" : "five", world, stage);
            const Apart x = apart(&c, 3);
            CHECK(test_within(x.losses, 1e-6) & test_within(x.norms, 1e-5)
                  & test_within(x.weights, 1e-5), "fp32, %d ranks, stage %d: losses %g, norms %g, "
                  "weights %g", world, stage, x.losses, x.norms, x.weights);
        }
    if (BITS == 32) return;
    const Config rounded = spread("tied", ranks_at_most(), 2);
    const Apart x = apart(&rounded, 3);
    CHECK(test_within(x.losses, 2e-4) & test_within(x.weights, 1e-3),
          "bf16: losses %g, norms %g, weights %g", x.losses, x.norms, x.weights);
}

// ---------------------------------------------------------------------------------------------
// What happens at the same time, on the emulated GPU's virtual clock. Times in microseconds.

#ifdef __CUDA_EMU__
// How long a kernel and a collective take at least; bytes per us between the ranks. A layer's
// collective then takes 112, its forward pass 200, its backward pass 400.
enum { KERNEL = 20, LATENCY = 10, PEER = 30 };

// Of a second step, and of the forward pass after it.
static void rank_measure(const Config *c, Shared *to) {
    const Shape s = config_shape(c);
    const Placement where = config_placement(c);
    float *params = shape_params(&s, false);
    GPT2 *g = rank_new(c, &s, &where);
    model_begin(g, &s, params, &where);
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * s.B * s.T, sizeof(int32_t), "test");
    int32_t *targets = inputs + s.B * s.T;
    shape_batch(&s, 1, inputs, targets);
    double norm_squared, loss, at[5] = {0};
    for (size_t step = 1; step <= 2; step++) {
        CUDA(cudaDeviceSynchronize());
        at[0] = 1e6 * emu_virtual_now();
        gpt2_forward(g, inputs, NULL, targets, s.B, s.T);
        gpt2_head(g, 1.0f / (float)(s.B * s.T), 1, false, NULL);
        CUDA(cudaStreamSynchronize(g->compute));
        at[1] = 1e6 * emu_virtual_now();
        gpt2_backward(g, false, true);
        norm_squared = gpt2_grad_norm_squared(g, &loss);
        at[2] = 1e6 * emu_virtual_now();
        const AdamStep adam = recipe_step(&plain, step, norm_squared);
        gpt2_update(g, &adam);
    }
    at[3] = 1e6 * emu_virtual_now();
    gpt2_forward(g, inputs, NULL, NULL, s.B, s.T);
    CUDA(cudaStreamSynchronize(g->compute));
    at[4] = 1e6 * emu_virtual_now();
    const double times[3] = {at[1] - at[0], at[2] - at[1], at[4] - at[3]};
    memcpy(to->rank[ranks.rank].times, times, sizeof times);
    free(inputs);
    free(params);
    model_close(g);
}

typedef struct { double forward, backward, next; } Times;

// stage 0: on one GPU, without others.
static Times measure(int stage, bool serial) {
    static Times known[4][2];
    if (known[stage][serial].forward > 0) return known[stage][serial];
    Config c = stage == 0 ? config_of("five") : config_of("five ranks=2 --zero %d", stage);
    c.o.no_overlap = serial;
    Shared *x = shared_open(&c);
    run_ranks(&c, x, rank_measure);
    const double *took = x->rank[0].times;
    const Times t = known[stage][serial] = {took[0], took[1], took[2]};
    shared_close(x);
    return t;
}

// What a collective takes with the weights or gradients of the embeddings, a layer, or the tail.
static double moving(int which) {
    const Lengths x = lengths_of(shape_named("five"));
    return LATENCY + (double)part_of(x.n[which], 2) * sizeof(bf16) / PEER;
}

// Gradients are summed while backward goes on. Only the last segment's is waited for.
static void test_reduce_hides(void) {
    const double hidden = 5 * moving(1) + moving(2);
    for (int stage = 1; stage <= 3; stage++) {
        const double together = measure(stage, false).backward;
        const double serial = measure(stage, true).backward;
        CHECK(serial - together > 0.9 * hidden, "stage %d: %.0f us, one after the other %.0f; "
              "%.0f can hide", stage, together, serial, hidden);
    }
}

// In stage 1 and 2 the next forward pass begins when the first weights are there.
static void test_gather_hides(void) {
    for (int stage = 1; stage <= 2; stage++) {
        const Times t = measure(stage, false), none = measure(0, false);
        CHECK(t.next < none.next + moving(0) + moving(1) + 0.3 * moving(1), "stage %d: %.0f us, "
              "without gathering %.0f", stage, t.next, none.next);
    }
}

// In stage 3 each layer's weights come while the one before is used, in both directions.
static void test_prefetch(void) {
    const Times t = measure(3, false), all = measure(2, false), none = measure(0, false);
    CHECK(t.next < none.next + moving(0) + moving(1) + 0.3 * moving(1), "forward: %.0f us, without "
          "gathering %.0f", t.next, none.next);
    CHECK(t.backward < all.backward + 0.3 * moving(1), "backward: %.0f us, without gathering %.0f",
          t.backward, all.backward);
}
#endif

static void test_overlap(void) {
#ifdef __CUDA_EMU__
    run_again("test_zero_gpu", "--clock", 0, ON_A_CLOCK "EMU_KERNEL_US=%d EMU_NCCL_US=%d "
              "EMU_NCCL_LINK=%d000000", KERNEL, LATENCY, PEER);
#else
    SKIP("only on the virtual clock of the emulated GPU");
#endif
}

// ---------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    adamw.opened = check_open;
    adamw.trained = check_given;
    rows_fork = true;
    rows_make("test_zero_gpu");
    if (rows_asked(argc, argv)) return rows_print(argc, argv);
#ifdef __CUDA_EMU__
    if (argc >= 3 && strcmp(argv[1], "--clock") == 0) {
        RUN(test_reduce_hides);
        RUN(test_gather_hides);
        RUN(test_prefetch);
        return test_summary();
    }
#endif
    without_protection(argv);
    RUN(test_same_bits);
    RUN(test_host_keeps_off);
    RUN(test_other_worlds);
    if (IS_BF16) RUN(test_overlap);
    return test_summary();
}
