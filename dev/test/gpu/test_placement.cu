// test_placement.cu: wherever the optimizer's state lives, and whoever updates it, training leaves
// the same bits; each way of placing it does what it says, in the memory that was planned, and at
// the same time as what it is meant to hide behind.
//
// usage: test_placement                     all tests
//        test_placement --config K|some|all [N]  for test_schedules.sh (runs.cuh)
//        test_placement --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "runs.cuh"

enum { ZERO = OFFLOAD_ZERO, TWIN = OFFLOAD_TWINFLOW, INTER = OFFLOAD_INTERLEAVE };

// ---------------------------------------------------------------------------------------------
// What a placement says

static double distance(double a, double b) { return fabs(a - b); }

// Who updates how much is what was asked for. (test_offload.c knows more about the pieces.)
static void check_pieces(const GPT2 *g, const Config *c) {
    size_t n[PIECE_KINDS] = {0};
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        n[p->kind] += p->length;
        if (c->o.stride > 0 && p->kind != PIECE_RESIDENT)  // Algorithm 1
            CHECK((p->kind == PIECE_VISIT) == ((size_t)(p->subgroup + 1) % c->o.stride == 0),
                  "%s: sub-group %d", c->text, p->subgroup);
    }
    const double P = (double)g->table.elements, away = (double)(n[PIECE_HOST] + n[PIECE_VISIT]);
    const double visits = c->o.offload == INTER ? c->o.share * away : 0;
    CHECK(away + (double)n[PIECE_RESIDENT] == P, "%s: %g elements, not %g", c->text, away, P);
    CHECK(c->o.stride > 0 || (double)n[PIECE_VISIT] <= visits + 1,
          "%s: of %g, %zu visit", c->text, away, n[PIECE_VISIT]);
    CHECK((c->o.stride > 0 && (double)n[PIECE_RESIDENT] <= c->o.resident * P + NORM_BLOCK)
          || distance((double)n[PIECE_RESIDENT], c->o.resident * P) <= NORM_BLOCK,
          "%s: of %g, %zu stay", c->text, P, n[PIECE_RESIDENT]);
}

// The gradients of so many layers in a row, and of embeddings and tail, have places of their own;
// the next layer's is where the first one's was, and there is room for no more.
static void check_places(const GPT2 *g, const Config *c) {
    const int L = g->segments - 2;
    const bool whole = g->in_place && !g->update_in_backward;
    const int P = c->places < L && !whole ? c->places : L;
    size_t end = 0, all = 0;
    for (int i = 0; i < g->segments; i++) {
        const Segment *a = &g->segment[i];
        end = a->grad_at + a->length > end ? a->grad_at + a->length : end;
        if (i < 1 + P || i > L) all += a->length;
        for (int k = 0; k < i; k++) {
            const Segment *b = &g->segment[k];
            const bool shares = k > 0 && i <= L && (i - k) % P == 0;
            const bool apart = a->grad_at >= b->grad_at + b->length
                            || b->grad_at >= a->grad_at + a->length;
            CHECK(shares ? a->grad_at == b->grad_at && a->grad_room == b->grad_room
                         : apart && a->grad_room != b->grad_room, "%s: segments %d and %d", c->text, k, i);
        }
    }
    CHECK(end == all && g->grad_elements == all, "%s: %zu elements of gradients, places of %zu",
          c->text, g->grad_elements, all);
}

// With one micro-batch whose activations are kept, gradients wait in their own layer's range, one
// behind the other, if there is room; and nowhere else.
static void check_over_acts(const GPT2 *g, const Config *c) {
    const bool may = c->o.accum == 1 && c->o.recompute != AGAIN;
    const char *end = NULL;
    size_t all = 0;
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        const char *from = (const char *)p->grad;
        const bool layer = p->segment > 0 && p->segment < g->segments - 1;
        const bool kept = layer && p->grad_on_gpu;
        const size_t bytes = round_up(p->length * sizeof(floatX), 256);
        if (kept && may && !g->in_place && bytes <= acts_place(g).stride / 2 && !p->over_acts)
            CHECK(end != NULL && end + bytes > g->acts + (size_t)p->segment * acts_place(g).stride
                                               + acts_place(g).entry, "%s: %d does not",
                  c->text, i);
        if (!p->over_acts) continue;
        const char *begin = g->acts + ((size_t)p->segment - 1) * acts_place(g).stride
                          + acts_place(g).entry;
        if (end == NULL || end < begin) end = begin;
        CHECK(kept && may && from >= end && from + bytes <= begin + acts_place(g).stride,
              "%s: piece %d waits elsewhere", c->text, i);
        end = from + bytes;
        all += p->length;
    }
    CHECK(all == g->grads_over_acts, "%s: %zu elements wait there, not %zu", c->text,
          g->grads_over_acts, all);
}

// As many layers stream as are to, of those that may, evenly; on the host one piece is behind the
// other. They take turns in as many places as are to be, and all others have places of their own.
static void check_weights(const GPT2 *g, const Config *c) {
    const int L = g->segments - 2;
    int may = 0, streams = 0, ring[8] = {0}, seen = 0, before = 0;
    size_t end = 0, stay = 0;
    for (int s = 1; s <= L; s++) {
        const Segment *x = &g->segment[s];
        bool resident = false;
        for (const Piece *p = x->first; p < x->end; p++) {
            if (p->kind == PIECE_RESIDENT) resident = true;
            CHECK(p->params == (const floatX *)x->first->params + (p->at - x->first->at),
                  "%s: weights of %d are not in one piece", c->text, s);
        }
        CHECK(!resident || !x->on_host, "%s: layer %d is resident and streams", c->text, s);
        may += !resident;
        streams += x->on_host;
    }
    CHECK(streams == (c->streamed < may ? c->streamed : may) && streams == g->streamed,
          "%s: %d of %d layers stream", c->text, streams, may);
    const int turns = c->ring < streams ? c->ring : streams;
    for (int s = 0; s < g->segments; s++) {
        const Segment *x = &g->segment[s];
        const bool layer = s >= 1 && s <= L;
        bool resident = !layer;
        for (const Piece *p = x->first; p < x->end; p++) resident |= p->kind == PIECE_RESIDENT;
        end = x->param_at + x->length > end ? x->param_at + x->length : end;
        if (!x->on_host) stay += x->length;
        for (int k = 0; k < s; k++) {
            const Segment *y = &g->segment[k];
            const bool same = x->on_host && y->on_host && (seen - ring[k]) % turns == 0;
            const bool apart = x->param_at >= y->param_at + y->length
                            || y->param_at >= x->param_at + x->length;
            CHECK(same ? x->param_at == y->param_at && x->weight_room == y->weight_room
                       : apart && (x->weight_room != y->weight_room || x->weight_room < 0), "%s: %d and %d", c->text,
                  k, s);
        }
        ring[s] = seen;
        seen += x->on_host;
        before += !resident;
        CHECK(may == 0 || abs(seen * may - before * streams) < may, "%s: not evenly", c->text);
    }
    const size_t all = stay + (size_t)turns * g->segment[1].length;
    CHECK(end == all && g->param_elements == all, "%s: %zu elements of weights, places of %zu",
          c->text, g->param_elements, all);
}

// Returns the number of visitors whose gradients wait on the GPU (model_place()).
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
    const size_t weights = layers_fetched(g->streamed, g->weight_rooms.count, c->o.accum, c->evaluates, steps)
                         * g->segment[1].length * X_;
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

// Host memory: for the state of parameters that are not resident, their gradients, the weights that
// the CPU updates or that live here, and what else was asked for.
static void check_host_memory(GPT2 *g, const Config *c) {
    const size_t *n = g->pieces.elements, away = n[PIECE_HOST] + n[PIECE_VISIT];
    size_t grads = n[PIECE_HOST];
    for (int i = 0, visits = 0; i < g->pieces.count; i++)
        if (g->pieces.pieces[i].kind == PIECE_VISIT && visits++ >= config_kept(c))
            grads += g->pieces.pieces[i].length;
    const int L = g->segments - 2, P = L < 3 ? L : 3;
    size_t layers = 0, longest = 0;  // without clipping, layers take turns in P rooms
    for (int s = 1; s <= L; s++) {
        size_t of = 0;
        for (const Piece *p = g->segment[s].first; p < g->segment[s].end; p++)
            if (!p->grad_on_gpu) of += p->length;
        layers += of;
        if (of > longest) longest = of;
    }
    if (g->update_in_backward && !(c->o.accum > 1 && c->tight > 0) && (size_t)P * longest < layers)
        grads -= layers - (size_t)P * longest;
    const bool sums = c->o.accum > 1, wide = sums || c->o.grad_wire == WIRE_FP32 || !IS_HALF;
    const size_t state = state_of(c);
    size_t wanted = away * state + grads * (wide ? 4 : 2) + inputs_stored(g);
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        const bool here = p->kind == PIECE_HOST || g->segment[p->segment].on_host;
        if (here) wanted += p->length * sizeof(floatX);
    }
    if (sums && c->tight > 0) wanted += 2 * g->landings.bytes;
    const size_t listed = page_locked(g, "", c->text);
    CHECK(listed == wanted, "%s: %zu bytes of host memory, wanted %zu", c->text, listed, wanted);
}

static void check_open(GPT2 *g, const Config *c) {
    check_pieces(g, c);
    check_places(g, c);
    check_over_acts(g, c);
    check_weights(g, c);
    check_host_memory(g, c);
}

// ---------------------------------------------------------------------------------------------
// The memory plan

// What costs only time is done exactly when the limits demand it: sums on the host, gradients of
// visitors there, activations made again. What does not fit even so is refused in one line.
static void check_fit(const Config *c, size_t B, size_t L) {
    const bool away = c->o.offload != OFFLOAD_NONE;
    Shape s = config_shape(c);
    s.B = B;
    s.L = L;
    const Placement where = config_placement(c);
    Planned bytes[9];  // three by how tight, of each way to recompute
    size_t least = SIZE_MAX;
    for (int i = 0; i < 9; i++) {
        bytes[i] = plan_without_limits(&s, &where, KEEP + i / 3, i % 3);
        if (i % 3 == 0 && i > 0)
            CHECK(bytes[i].gpu < bytes[i - 3].gpu && bytes[i].host == bytes[i - 3].host, "%d", i);
        least = min_size(least, bytes[i].gpu);
        if (i % 3 == 0 || (!away && i > 1)) continue;
        CHECK(bytes[i].gpu < bytes[i - 1].gpu && (bytes[i].host > bytes[i - 1].host || !away),
              "step %d", i);
    }
    // with as much memory as each of these takes, or a byte less, the first one that fits
    for (int i = 0; i < 9 * 4 * 4; i++) {
        const int again = i % 4;
        const size_t gpu = bytes[i / 16].gpu - (i / 4 % 2), host = bytes[i / 16].host - (i / 8 % 2);
        int wanted = again == RECOMPUTE_AUTO ? 0 : 3 * (again - KEEP);
        const int end = again == RECOMPUTE_AUTO ? 9 : wanted + 3;
        while (wanted < end && (bytes[wanted].gpu > gpu || bytes[wanted].host > host)) wanted++;
        if (wanted == end) continue;
        const Planned p = plan(&s, &where, again, gpu, host);
        const bool all = wanted % 3 < 2 || !away;  // visitors' gradients stay, else as many as fit
        size_t kept = bytes[wanted].gpu, more = kept;
        if (!all) {
            kept = plan_without_limits(&s, &where, p.again, 2 + p.kept_grads).gpu;
            more = plan_without_limits(&s, &where, p.again, 3 + p.kept_grads).gpu;
        }
        CHECK(p.again == KEEP + wanted / 3 && (p.sum_on_host == (wanted % 3 > 0) || !away)
              && ((p.kept_grads == KEEP_ALL) == all || !away) && p.gpu == kept && p.gpu <= gpu
              && (all || more > gpu) && p.host <= bytes[wanted].host,
              "case %d: again %d, sums on host %d, keeps %d", i, p.again, p.sum_on_host,
              p.kept_grads);
    }
    const struct { int recompute; size_t gpu, host; const char *words; } refusals[] = {
        {RECOMPUTE_AUTO, least - 1, SIZE_MAX, "GPU memory"},
        {KEEP, bytes[2].gpu - 1, SIZE_MAX, "GPU memory"},
        {AGAIN, SIZE_MAX, bytes[0].host - 1, "host memory"}};
    for (int i = 0; i < 2 + away; i++) {
        char line[1024];
        int status;
        if (in_child(line, &status)) {
            plan(&s, &where, refusals[i].recompute, refusals[i].gpu, refusals[i].host);
            _exit(0);
        }
        CHECK(refused(line, status, refusals[i].words), "status %d: %s", status, line);
    }
}

// With tokens and layers enough for gradients to lie over activations, too.
static void test_fit(void) {
    const Config away = config_of("tied --accum 4 --offload interleave --resident 0.3 --share 0.5 "
                                  "--subgroup 4096 --slots 1");
    const Config here = config_of("tied");
    check_fit(&away, 3, 2);
    check_fit(&here, 16, 8);
}

// ---------------------------------------------------------------------------------------------
// What happens at the same time, on the emulated GPU's virtual clock. Times in microseconds.

#ifdef __CUDA_EMU__
enum { KERNEL, HOST, LINK };  // how long one takes; bytes per us, each way
enum { CLOCKS = 4 };
static const double clocks[CLOCKS][3] = {{20, 150, 167}, {1, 150, 17}, {20, 0, 10.3}, {20, 0, 200}};
static const double *now;     // the one that runs

typedef struct { double forward, backward, update, next; } Times;

// Of a second step, and of the forward pass after it; `apart`: that waits for all of the update.
static Times measure(const Placement *where, bool apart) {
    Shape s = *shape_named("five");
    s.accum = where->tight > 0 ? 2 : 1;
    float *params = shape_params(&s, false);
    GPT2 *g = model_open(&s, params, where);
    int32_t *inputs = (int32_t *)alloc_or_fail(4 * s.B * s.T, sizeof(int32_t), "test");
    int32_t *targets = inputs + 2 * s.B * s.T;
    shape_batch(&s, 1, inputs, targets);
    double norm_squared, loss, at[5] = {0};
    for (size_t step = 1; step <= 2; step++) {
        at[0] = emu_virtual_now();
        gpt2_forward(g, inputs, NULL, targets, s.B, s.T);
        gpt2_head(g, 1.0f / (float)(s.B * s.T), 1, false, NULL);
        CUDA(cudaStreamSynchronize(g->compute));
        at[1] = emu_virtual_now();
        gpt2_backward(g, false, true);
        if (where->serial) CUDA(cudaStreamSynchronize(g->compute));
        norm_squared = gpt2_grad_norm_squared(g, &loss);
        CUDA(cudaStreamSynchronize(g->out));
        CUDA(cudaStreamSynchronize(g->fetch));
        at[2] = emu_virtual_now();
        const AdamStep adam = recipe_step(&plain, step, norm_squared);
        gpt2_update(g, &adam);
        if (apart || step == 1) gpt2_update_wait(g);
        at[3] = emu_virtual_now();
    }
    gpt2_forward(g, inputs, NULL, NULL, s.B, s.T);
    CUDA(cudaStreamSynchronize(g->compute));
    at[4] = emu_virtual_now();
    free(params);
    free(inputs);
    model_close(g);
    return {1e6 * (at[1] - at[0]), 1e6 * (at[2] - at[1]), 1e6 * (at[3] - at[2]),
            1e6 * (at[4] - at[3])};
}

static Placement placement(int mode, size_t stride, double share, int slots) {
    Placement p = {};
    p.choice.mode = mode;
    p.choice.stride = stride;
    p.choice.share = share;
    p.choice.slots = slots;
    p.choice.grad_rooms = 2;
    p.threads = 1;
    return p;
}

static double elements(void) {
    const GPT2Config config = shape_config(shape_named("five"));
    GPT2Table t = gpt2_table(&config);
    const double n = (double)t.elements;
    gpt2_table_free(&t);
    return n;
}

// Both directions of the link are busy at once if there is more than one slot.
static void test_both_directions(void) {
    const double one_way = STATE_BYTES * elements() / now[LINK];
    double took[4];
    for (int slots = 1; slots <= 3; slots++) {
        const Placement p = placement(INTER, 0, 1, slots);
        took[slots] = measure(&p, true).update;
    }
    // (the first visitors have come during backward)
    CHECK(took[1] > 1.6 * one_way && took[1] < 1.95 * one_way, "one slot: %.0f us, one way %.0f",
          took[1], one_way);
    CHECK(took[2] > one_way && took[2] < 1.1 * one_way, "two slots: %.0f us", took[2]);
    CHECK(took[3] <= took[2], "three slots: %.0f us, two: %.0f us", took[3], took[2]);
}

// While visitors travel, the CPU updates what does not.
static void test_both_processors(void) {
    const Placement p = placement(INTER, 2, 0, 2), all = placement(ZERO, 0, 0, 2);
    const Placement visits = placement(INTER, 0, 1, 2);
    const double half = measure(&p, true).update, cpu = measure(&all, true).update;
    const double gpu = measure(&visits, true).update;
    CHECK(half < 0.65 * (cpu > gpu ? cpu : gpu), "%.0f us; all on the CPU %.0f, on the GPU %.0f",
          half, cpu, gpu);
}

// The next forward pass begins when the first layers are updated, not when all are.
static void test_update_hides(void) {
    const Placement p[3] = {placement(ZERO, 0, 0, 2), placement(INTER, 0, 1, 2),
                            placement(INTER, 0, .5, 2)};
    for (int i = 0; i < 3; i++) {
        const Times apart = measure(&p[i], true), hidden = measure(&p[i], false);
        CHECK(hidden.update == 0, "the host waits for %.0f us", hidden.update);
        CHECK(hidden.next < 0.75 * (apart.update + apart.next), "%d: %.0f us, apart %.0f and %.0f",
              i, hidden.next, apart.update, apart.next);
    }
    const Placement none = placement(OFFLOAD_NONE, 0, 0, 2);
    CHECK(measure(&none, true).update > 0, "nobody waits for the GPU's update");
}

// Gradients leave while backward goes on: that takes longer by the time of all of them otherwise.
static void test_gradients_leave_at_once(void) {
    Placement p = placement(ZERO, 0, 0, 2);
    const double together = measure(&p, true).backward, leave = 2 * elements() / now[LINK];
    p.serial = true;
    const double serial = measure(&p, true).backward;
    CHECK(serial - together > 0.9 * leave, "%.0f us, one after the other %.0f; they need %.0f",
          together, serial, leave);
}

// While the host adds a gradient to the sum, the next one lands.
static void test_landings(void) {
    Placement p = placement(ZERO, 0, 0, 2);
    p.tight = 1;
    const double took = measure(&p, true).backward, leave = 2 * elements() / now[LINK];
    CHECK(took < leave + 2 * now[HOST], "%.0f us, of which the link needs %.0f", took, leave);
}

// Figure 9 of Deep Optimizer States: a hundred steps whose copies and updates run on under the next
// forward pass. If a copy fell behind, each step would begin later than the one before: none does.
// From norm to norm, after two steps; every second sub-group visits, gradients leave in fp32.
static void test_a_hundred_steps(void) {
    enum { FIRST = 2, STEPS = 100, SOME = 10 };
    const Shape *s = shape_named("five");
    Placement p = placement(INTER, 2, 0, 2);
    p.choice.wire_f32 = true;
    float *params = shape_params(s, false);
    GPT2 *g = model_open(s, params, &p);
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * s->B * s->T, sizeof(int32_t), "test");
    double ms[STEPS], sum = 0, first = 0, last = 0, begin = 0;
    for (size_t step = 1; step <= FIRST + STEPS; step++) {
        double norm_squared, loss;
        shape_batch(s, step, inputs, inputs + s->B * s->T);
        gpt2_forward(g, inputs, NULL, inputs + s->B * s->T, s->B, s->T);
        gpt2_head(g, 1.0f / (float)(s->B * s->T), 1, false, NULL);
        gpt2_backward(g, false, true);
        norm_squared = gpt2_grad_norm_squared(g, &loss);
        const double end = emu_virtual_now();
        const AdamStep adam = recipe_step(&plain, step, norm_squared);
        gpt2_update(g, &adam);
        if (step > FIRST) ms[step - FIRST - 1] = 1e3 * (end - begin);
        begin = end;
    }
    gpt2_update_wait(g);
    const double late = 1e3 * (emu_virtual_now() - begin);
    for (int i = 0; i < STEPS; i++) {
        sum += ms[i] / STEPS;
        if (i < SOME) first += ms[i] / SOME;
        if (i >= STEPS - SOME) last += ms[i] / SOME;
    }
    const double middle = calibrate_median(ms, STEPS);
    printf("  %d steps: mean %.4f ms, median %.4f, %.4f to %.4f; the first %d %.4f, the last %d "
           "%.4f; after the last, its update went on for %.4f\n", STEPS, sum, middle, ms[0],
           ms[STEPS - 1], SOME, first, SOME, last, late);
    CHECK(late > 0.2 * middle, "nothing runs on under the next step: %.4f ms", late);
    CHECK(fabs(last / first - 1) < 1e-3, "steps drift: %.4f ms, then %.4f", first, last);
    CHECK(fabs(sum / middle - 1) < 1e-3, "mean %.4f ms, median %.4f", sum, middle);
    free(params);
    free(inputs);
    model_close(g);
}

// A step of 7B's proportions, by scripts/rates/h200_16cores.txt: 32 layers, embeddings as large as
// one; a layer's forward takes half of its backward, its gradient over the link 2.3 times that, its
// update by the CPU 11.7 times. From norm to norm; and what plan.h says.
static const Shape shape_7b = {"7B", 32, 2, 16, 64, 131, 8, 1, 8, GELU, 1, KEEP, 1, 99, false};

typedef struct { double backward, step; Prediction planned; } Step;

static Step measure_7b(const Placement *where, const Step *none) {
    enum { FIRST = 2, LAST = 4 };
    Shape shape = shape_7b, *const s = &shape;
    if (where->choice.recompute == AGAIN) s->recompute = AGAIN;
    float *params = shape_params(s, false);
    GPT2 *g = model_open(s, params, where);
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * s->B * s->T, sizeof(int32_t), "test");
    int32_t *targets = inputs + s->B * s->T;
    double norm_squared, loss, backward = 0, at[3] = {0};
    shape_batch(s, 1, inputs, targets);
    for (size_t step = 1; step <= LAST; step++) {
        gpt2_forward(g, inputs, NULL, targets, s->B, s->T);
        gpt2_head(g, 1.0f / (float)(s->B * s->T), 1, false, NULL);
        CUDA(cudaStreamSynchronize(g->compute));
        at[1] = emu_virtual_now();
        const AdamStep unclipped = recipe_step(&plain, step, 0);
        gpt2_backward(g, false, true, g->update_in_backward ? &unclipped : NULL);
        CUDA(cudaStreamSynchronize(g->compute));
        if (step > FIRST) backward += emu_virtual_now() - at[1];
        norm_squared = gpt2_grad_norm_squared(g, &loss);
        at[2] = emu_virtual_now();
        if (step == FIRST) at[0] = at[2];
        const AdamStep adam = recipe_step(&plain, step, norm_squared);
        gpt2_update(g, &adam);
    }
    Step t;
    memset(&t, 0, sizeof t);
    t.backward = 1e6 * backward / (LAST - FIRST);
    t.step = 1e6 * (at[2] - at[0]) / (LAST - FIRST);
    if (none != NULL) {
        Rates r;
        memset(&r, 0, sizeof r);
        r.h2d = r.d2h = 1e6 * now[LINK];
        r.host_adam = host_bytes_per_s / ADAM_BYTES;
        t.planned = rehearsed(g, s, &r, 1e-6 * none->step);
    }
    free(params);
    free(inputs);
    model_close(g);
    return t;
}

// gpu_flops is measured of a few layers, and predicts a step of all.
static void calibrated_on_its_layers(const Shape *s, const Step *none) {
    static Run run;
    const Placement p = placement(OFFLOAD_NONE, 0, 0, 2);
    float *params = shape_params(s, false);
    GPT2 *g = model_open(s, params, &p);
    Rates r;
    memset(&r, 0, sizeof r);
    run.config = g->config;
    run.B = s->B;
    run.T = s->T;
    run.world = run.o.accum = 1;
    run.step_tokens = s->B * s->T;
    model_flops(g->steps, &run, &r);
    const double off = gpt2_rehearse(g, &run, &r, NULL).step / (1e-6 * none->step) - 1;
    printf("  with gpu_flops of 2 and 4 of its %zu layers, a step is predicted %+.1f %% from it\n",
           s->L, 100 * off);
    CHECK(s->L > 4 && fabs(off) < 0.05, "predicted %.1f %% from it", 100 * off);
    free(params);
    model_close(g);
}

// In two places, backward takes as long as the link; in as many as there are layers, as long as if
// nothing left.
static void test_places_free_backward(void) {
    const Shape *s = &shape_7b;
    const GPT2Config config = shape_config(s);
    GPT2Table table = gpt2_table(&config);
    size_t at;
    const double layer = (double)zero_segment(&table, 1, &at);
    gpt2_table_free(&table);
    Placement p = placement(OFFLOAD_NONE, 0, 0, 2);
    const Step none = measure_7b(&p, NULL);
    const double back = none.backward / s->L, link = 2 * layer / now[LINK];
    host_bytes_per_s = 1e6 * ADAM_BYTES * layer / (11.7 * back);
    printf("  all on the GPU: backward %.0f us, step %.0f us; of a layer %.0f, on the link %.0f\n",
           none.backward, none.step, back, link);
    CHECK(link > 2.1 * back && link < 2.5 * back, "not 7B's proportions");
    calibrated_on_its_layers(s, &none);
    Step t[9];
    for (int k = 0; k < 9; k++) {
        p = k < 3 || k == 6 || k == 7 ? placement(ZERO, 0, 0, 3)
                                      : placement(INTER, 0, 0.6, k == 5 ? 24 : 3);
        p.choice.grad_rooms = k >= 6 ? 32 : k % 3 == 0 ? 2 : k == 1 ? 8 : 32;
        p.choice.early = k == 6 ? 8 : 0;
        p.in_backward = k > 6;
        t[k] = measure_7b(&p, &none);
        printf("  %s, %2d places, %2d slots, %d early%s: backward %.0f us, step %.0f us, planned "
               "%.0f\n", offload_names[p.choice.mode], p.choice.grad_rooms, p.choice.slots,
               p.choice.early, p.in_backward ? ", in backward" : "", t[k].backward, t[k].step,
               1e6 * t[k].planned.step);
        const double off = 1e6 * t[k].planned.step / t[k].step - 1;
        CHECK(fabs(off) < 0.02, "planned %.1f %% from it", 100 * off);
    }
    host_bytes_per_s = 0;
    CHECK(t[0].backward > 0.9 * (double)s->L * link && t[0].backward > 1.8 * none.backward
          && t[1].backward < t[0].backward && t[2].backward < t[1].backward, "it does not wait");
    CHECK(t[2].backward < 1.01 * none.backward, "backward waits for the link");
    CHECK(t[2].step < 1.001 * t[0].step, "the step takes longer");
    CHECK(t[5].step < 0.97 * t[4].step, "slots gain nothing");
    const double late = (double)s->L * link - none.backward;  // the last gradient, after backward
    CHECK(t[7].step < t[6].step - 0.5 * none.backward && t[8].step < t[4].step,
          "an update in backward gains nothing");
    CHECK(t[6].step < t[2].step - 0.8 * late, "%.0f us, %.0f with an early start; the last gradient "
          "is late by %.0f", t[2].step, t[6].step, late);
}

// The same model, with so many layers whose weights live on the host.
static Step measure_weights(int streamed, bool serial, const Step *none) {
    Placement p = placement(OFFLOAD_NONE, 0, 0, 3);
    if (none != NULL) p.choice.mode = ZERO;
    p.choice.grad_rooms = 32;
    p.choice.streamed = streamed;
    p.serial = serial;
    const Step t = measure_7b(&p, none);
    if (none == NULL) return t;
    printf("  %2d layers stream%s: step %.0f us, planned %.0f; the link brings weights for %.0f\n",
           streamed, serial ? ", serial" : "", t.step, 1e6 * t.planned.step,
           t.planned.h2d_bytes / now[LINK]);
    if (!serial) ABOUT(1e6 * t.planned.step, t.step, 0.02);
    return t;
}

// Where a layer takes longer than its weights on the link, nothing waits for them.
static void test_weights_hide(void) {
    const Step none = measure_weights(0, false, NULL), here = measure_weights(0, false, &none);
    const Step all = measure_weights(32, false, &none), serial = measure_weights(32, true, &none);
    const double more = all.planned.h2d_bytes - here.planned.h2d_bytes;
    CHECK(all.step < 1.01 * here.step, "%.0f us, not %.0f", all.step, here.step);
    const double apart = serial.step - measure_weights(0, true, &none).step;
    CHECK(apart > 0.9 * more / now[LINK], "one after the other, only %.0f us more", apart);
}

// So do inputs of layers, on their way to the host and back.
static void test_inputs_hide(void) {
    Placement p = placement(OFFLOAD_NONE, 0, 0, 3);
    const Step none = measure_7b(&p, NULL);
    Step t[4];
    p.choice.recompute = AGAIN;
    for (int k = 0; k < 4; k++) {
        p.choice.inputs_leave = k % 2 > 0;
        p.serial = k > 1;
        t[k] = measure_7b(&p, &none);
        printf("  inputs of layers %s%s: step %.1f us, planned %.1f\n", k % 2 > 0 ? "leave" : "stay",
               k > 1 ? ", serial" : "", t[k].step, 1e6 * t[k].planned.step);
    }
    const double one_way = t[1].planned.h2d_bytes / now[LINK];
    const size_t bytes = (shape_7b.L - 1) * shape_7b.B * shape_7b.T * shape_7b.C * sizeof(floatX);
    CHECK(t[1].planned.h2d_bytes == (double)bytes && t[1].planned.d2h_bytes == (double)bytes
          && t[0].planned.h2d_bytes == 0, "planned: %g bytes", t[1].planned.h2d_bytes);
    CHECK(t[1].step < t[0].step + 0.1 * one_way, "%.1f us, not %.1f", t[1].step, t[0].step);
    CHECK(t[3].step > t[2].step + 1.9 * one_way, "one after the other, only %.1f us more",
          t[3].step - t[2].step);
    ABOUT(1e6 * t[1].planned.step, 1e6 * t[0].planned.step, 1e-3);
}

// Where it is shorter, a step takes as long as the link, and compute is hidden behind that.
static void test_weights_come_at_the_links_speed(void) {
    const Step none = measure_weights(0, false, NULL), all = measure_weights(32, false, &none);
    const double link = all.planned.h2d_bytes / now[LINK];
    CHECK(link > 3 * none.step, "the link is too fast: %.0f us", link);
    CHECK(all.step > link && all.step < link + 0.3 * none.step, "%.0f us", all.step);
}
#endif

static void test_overlap(void) {
#ifdef __CUDA_EMU__
    for (int i = 0; i < CLOCKS; i++)
        run_again("test_placement", "--clock", i, ON_A_CLOCK "EMU_KERNEL_US=%.0f EMU_HOST_US=%.0f "
                  "EMU_LINK=%.0f", clocks[i][KERNEL], clocks[i][HOST], 1e6 * clocks[i][LINK]);
#else
    SKIP("only on the virtual clock of the emulated GPU");
#endif
}

// ---------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    adamw.opened = check_open;
    adamw.trained = check_moved;
    rows_make("test_placement");
    if (rows_asked(argc, argv)) return rows_print(argc, argv);
#ifdef __CUDA_EMU__
    if (argc == 4 && strcmp(argv[1], "--clock") == 0) {
        now = clocks[atoi(argv[2])];
        if (now == clocks[0]) {
            RUN(test_both_directions);
            RUN(test_both_processors);
            RUN(test_update_hides);
            RUN(test_gradients_leave_at_once);
        } else if (now == clocks[1]) {
            RUN(test_landings);
            RUN(test_a_hundred_steps);
        } else if (now == clocks[2]) {
            RUN(test_places_free_backward);
            RUN(test_weights_come_at_the_links_speed);
        } else {
            RUN(test_weights_hide);
            RUN(test_inputs_hide);
        }
        return test_summary();
    }
#endif
    if (IS_BF16) RUN(test_fit);  // first: it forks
    RUN(test_same_bits);
    if (IS_BF16) RUN(test_overlap);
    return test_summary();
}
