// test_placement.cu: wherever the optimizer's state lives, and whoever updates it, training leaves
// the same bits; each way of placing it does what it says, in the memory that was planned, and at
// the same time as what it is meant to hide behind.
//
// usage: test_placement                     all tests
//        test_placement --config K|some|all [N]  for test_schedules.sh, as in test_model
//        test_placement --clock K           what test_overlap runs, with EMU_CLOCK=virtual
#include "model_harness.cuh"

// ---------------------------------------------------------------------------------------------
// The configurations

// With gaps between tensors, padded rows, tied and untied heads.
enum { TIED, ODD, ONE, FIVE, LLAMA, CHUNKS, SHAPES };
static const Shape shapes[SHAPES] = {
    // name          L NH   C    F    V  ctx  B   T  act  tied recompute accum head repeated
    {"tied",         2, 2,  32,  64, 131, 20, 3, 15, GELU, 1, KEEP, 1, 99, false},
    {"odd",          3, 3,  24,  40, 257, 17, 2,  9, RELU, 0, KEEP, 1,  5, false},
    {"one layer",    1, 2,  48,  72, 131, 17, 1, 17, GELU, 0, KEEP, 1, 99, false},
    {"five layers",  5, 1,  16,  32, 131,  9, 2,  8, RELU, 1, KEEP, 1, 99, false},
    // the head's gradient is made where it waits; or, in chunks, summed first
    {"llama",        3, 4,  32,  40, 131, 20, 2,  9, GELU, 0, KEEP, 1, 99, false, 0,
     FAMILY_QWEN3, 2, 16},
    {"chunks",       2, 2,  24,  40, 131, 20, 2,  9, GELU, 0, KEEP, 1,  5, false, 4,
     FAMILY_QWEN2, 1, 16},
};

typedef struct {
    int shape, bits;            // of the stored numbers: 16 or 32
    size_t accum;
    int recompute;
    double clip;                // 0.05: every step is clipped; 1e6: none; 0: the norm is not used
    int sizes, evaluate;        // every second step has a smaller batch; an evaluation follows each
    int mode;
    double resident;
    size_t stride;
    double share;
    size_t subgroup;
    int slots, places, wire, tight, threads, serial;  // see Placement; wire: bits of gradients
    int moments;                // bits of them
    int streamed, ring;         // layers whose weights live on the host, and their places
} Config;

enum { ALL = 9 };  // layers, at least
enum { ZERO = OFFLOAD_ZERO, TWIN = OFFLOAD_TWINFLOW, INTER = OFFLOAD_INTERLEAVE };

// Any two settings meet in one of the first MIXED (test_settings_meet). Then special cases.
enum { MIXED = 30 };
static const Config configs[] = {
    //                         clip  sizes   mode   resident   share  slots wire threads  moments
    // shape bits accum recompute  | |  evaluate  |  |  stride | subgroup | places | tight | serial
    // (and then: layers that stream, places for their weights)
    {FIVE, 16, 4, AGAIN, 1e6, 1, 1, ZERO,   0, 0,  0,     0, 3, 2, 32, 1, 2, 0, 16, 9, 2},
    {ONE,  32, 1,  KEEP,   0, 1, 0, ZERO,   0, 0,  0,  4096, 3, 9, 16, 0, 1, 0, 32, 0, 2},
    {ODD,  32, 1,  KEEP, .05, 0, 0, ZERO,   0, 0,  0,  8192, 1, 2, 32, 2, 1, 1, 32, 2, 3},
    {TIED, 32, 4, AGAIN,   0, 1, 1, ZERO,   0, 0,  0, 20000, 2, 3, 32, 2, 1, 1, 16, 1, 2},
    {FIVE, 16, 4,  KEEP,   0, 1, 1, TWIN,  .3, 0,  0, 20000, 2, 2, 16, 2, 1, 1, 16, 9, 2},
    {ODD,  16, 1, AGAIN, .05, 0, 1, TWIN,  .9, 0,  0,     0, 3, 3, 16, 0, 2, 0, 16, 2, 2},
    {TIED, 32, 1, AGAIN,   0, 0, 0, TWIN,  .9, 0,  0,  4096, 1, 3, 16, 1, 2, 0, 32, 0, 2},
    {ONE,  32, 1, AGAIN, 1e6, 1, 1, TWIN,  .9, 0,  0,  8192, 3, 9, 32, 2, 2, 1, 16, 1, 3},
    {ODD,  32, 4,  KEEP, .05, 0, 1, INTER, .3, 1,  0,     0, 3, 9, 32, 1, 1, 0, 32, 9, 2},
    {FIVE, 32, 1,  KEEP, 1e6, 0, 0, INTER, .9, 1,  0,  4096, 1, 3, 32, 2, 2, 0, 32, 0, 2},
    {TIED, 16, 4,  KEEP, 1e6, 1, 0, INTER, .9, 1,  0,  8192, 2, 2, 16, 0, 1, 0, 32, 1, 9},
    {ONE,  32, 4, AGAIN, 1e6, 1, 0, INTER,  0, 1,  0,  4096, 1, 2, 16, 1, 1, 0, 16, 9, 2},
    {TIED, 32, 1, AGAIN,   0, 0, 1, INTER,  0, 1,  0, 20000, 1, 3, 32, 0, 2, 1, 32, 1, 3},
    {ONE,  32, 4,  KEEP,   0, 1, 0, INTER, .3, 2,  0,     0, 1, 2, 32, 0, 2, 0, 32, 0, 2},
    {FIVE, 16, 1, AGAIN, .05, 0, 1, INTER, .3, 2,  0,  4096, 2, 3, 16, 1, 1, 1, 16, 3, 2},
    {ODD,  32, 1,  KEEP, 1e6, 1, 0, INTER, .9, 2,  0,  8192, 1, 9, 16, 2, 2, 1, 16, 0, 2},
    {TIED, 32, 4,  KEEP, 1e6, 1, 0, INTER,  0, 2,  0, 20000, 3, 9, 32, 2, 2, 1, 32, 9, 9},
    {TIED, 32, 1, AGAIN, 1e6, 0, 0, INTER, .3, 0, .3, 20000, 1, 2, 16, 0, 2, 1, 16, 1, 2},
    {FIVE, 32, 1, AGAIN,   0, 1, 0, INTER, .9, 0, .3,     0, 1, 9, 16, 2, 2, 1, 16, 0, 2},
    {ONE,  16, 4,  KEEP, 1e6, 0, 0, INTER, .9, 0, .3,  4096, 3, 3, 16, 2, 1, 0, 32, 1, 3},
    {ODD,  32, 4,  KEEP, .05, 1, 1, INTER,  0, 0, .3,  8192, 2, 3, 32, 1, 2, 0, 32, 9, 2},
    {TIED, 32, 4,  KEEP, .05, 0, 0, INTER, .3, 0, .5,     0, 2, 9, 32, 0, 2, 0, 32, 1, 9},
    {FIVE, 32, 1,  KEEP,   0, 0, 1, INTER, .3, 0, .5,  8192, 1, 2, 32, 2, 1, 1, 32, 3, 2},
    {ONE,  16, 1, AGAIN, .05, 1, 1, INTER, .9, 0, .5, 20000, 3, 3, 16, 1, 1, 1, 16, 0, 2},
    {ODD,  16, 1, AGAIN, 1e6, 0, 1, INTER,  0, 0, .5,  4096, 2, 2, 32, 0, 1, 0, 32, 9, 3},
    {ODD,  32, 1, AGAIN, 1e6, 1, 1, INTER, .3, 0,  1,  4096, 3, 3, 32, 0, 2, 0, 32, 2, 2},
    {FIVE, 16, 1,  KEEP, 1e6, 0, 0, INTER, .3, 0,  1,  8192, 1, 2, 32, 0, 2, 0, 16, 9, 2},
    {ONE,  16, 1,  KEEP, .05, 0, 0, INTER, .9, 0,  1,     0, 2, 2, 32, 2, 1, 1, 32, 0, 2},
    {TIED, 32, 4, AGAIN,   0, 1, 1, INTER, .9, 0,  1,  4096, 2, 3, 32, 2, 1, 1, 16, 9, 2},
    {ODD,  16, 4,  KEEP,   0, 1, 0, INTER,  0, 0,  1, 20000, 1, 9, 16, 1, 1, 0, 32, 2, 3},
    // one layer: two segments that leave in different ways, one after the other
    {ONE,  16, 4,  KEEP,   0, 0, 0, INTER,  0, 2,  0,     0, 2, 2, 16, 1, 1, 0, 32, 9, 2},
    {ONE,  32, 4,  KEEP,   0, 0, 0, INTER,  0, 2,  0,     0, 2, 3, 32, 2, 1, 0, 16, 0, 2},
    // every third visits; a share of nothing; slots for more than there is
    {FIVE, 16, 1,  KEEP, .05, 0, 0, INTER,  0, 3,  0,  4096, 2, 9, 16, 0, 1, 0, 32, 3, 2},
    {TIED, 16, 4, AGAIN, .05, 0, 1, INTER, .3, 0,  0,  8192, 2, 3, 16, 1, 2, 0, 16, 0, 2},
    {TIED, 16, 1,  KEEP, .05, 0, 0, INTER,  0, 0,  1,     0, 9, 2, 16, 2, 1, 0, 32, 9, 2},
    {FIVE, 16, 1,  KEEP, .05, 0, 1, OFFLOAD_NONE, 1, 0, 0, 0, 2, 2, 16, 1, 1, 0, 32, 0, 0},
    {ODD,  32, 1,  KEEP, 0,   1, 0, OFFLOAD_NONE, 1, 0, 0, 0, 2, 3, 16, 1, 1, 0, 16, 0, 0},
    {FIVE, 16, 1, LIGHT, .05, 0, 1, INTER, .3, 0, .5,  4096, 2, 3, 16, 0, 2, 0, 16, 2, 2},
    {ODD,  32, 4, LIGHT, 1e6, 1, 0, ZERO,   0, 0,  0,     0, 2, 2, 32, 2, 1, 0, 32, 9, 3},
    // gradients of the first visitor stay, or of the first two
    {FIVE, 16, 4,  KEEP, .05, 0, 0, INTER, .3, 0, .5,  4096, 2, 2, 32, 3, 1, 0, 32, 0, 2},
    {TIED, 32, 1, AGAIN, .05, 0, 1, INTER,  0, 0, .5,  8192, 2, 3, 32, 4, 2, 0, 16, 2, 2},
    // the LLaMA family
    {LLAMA,  16, 2, AGAIN, .05, 0, 1, INTER, .3, 0, .5,  4096, 2, 2, 16, 1, 2, 0, 16, 2, 2},
    {LLAMA,  16, 2,  KEEP,   0, 1, 0, ZERO,   0, 0,  0,     0, 2, 9, 32, 0, 1, 0, 32, 0, 2},
    {LLAMA,  32, 1, LIGHT, .05, 0, 1, TWIN,  .3, 0,  0,  8192, 2, 2, 16, 0, 2, 0, 32, 9, 2},
    {CHUNKS, 16, 2, LIGHT, 1e6, 0, 0, INTER,  0, 2,  0,     0, 2, 2, 16, 2, 1, 0, 32, 9, 2},
    {CHUNKS, 32, 2,  KEEP, .05, 1, 0, INTER,  0, 0,  1,  4096, 1, 3, 32, 1, 1, 0, 16, 1, 3},
    {LLAMA,  16, 1,  KEEP, .05, 0, 1, OFFLOAD_NONE, 1, 0, 0, 0, 2, 2, 16, 1, 1, 0, 32, 0, 0},
};
enum { CONFIGS = sizeof configs / sizeof *configs };
// Those that cover all.
static const int some[] = {0, 4, 10, 14, 16, 19, 24, 26, 28, 30, 31, 32, 33, 35, 37, 39, 40, 41, 45};

static Shape config_shape(const Config *c) {
    Shape s = shapes[c->shape];
    s.accum = c->accum;
    s.recompute = c->recompute;
    moments_bf16 = c->moments == 16;
    return s;
}

static Recipe config_recipe(const Config *c) { return {1e-2, 1e-8, c->clip, 0.1, c->sizes != 0}; }

// Of the configurations above: each number of segments that are updated first meets some.
static int config_early(const Config *c) {
    const bool here = c >= configs && c < configs + CONFIGS;
    return here ? (int)((c - configs) % 3 * (c - configs) % 8) : 0;
}

static Placement config_placement(const Config *c) {
    Placement p;
    memset(&p, 0, sizeof p);
    p.choice.mode = c->mode;
    p.choice.resident = c->resident;
    p.choice.stride = c->stride;
    p.choice.share = c->share;
    p.choice.subgroup = c->subgroup;
    p.choice.slots = c->slots;
    p.choice.places = c->places;
    p.choice.wire_f32 = c->wire == 32;
    p.choice.streamed = c->streamed;
    p.choice.ring = c->ring;
    p.choice.early = config_early(c);
    p.tight = c->tight;
    p.threads = c->threads;
    p.serial = c->serial != 0;
    return p;
}

static void config_name(const Config *c, char name[300]) {
    static const char *const tight[] = {"", ", summed on host", ", gradients on host",
                                        ", of one visitor on the GPU", ", of two"};
    snprintf(name, 300, "%s %s%d accum %zu%s clip %g%s%s, %s resident %g stride %zu share %g "
             "subgroup %zu slots %d places %d wire %d%s threads %d moments %d streamed %d ring "
             "%d early %d%s",
             shapes[c->shape].name, c->bits == 16 ? "bf" : "fp", c->bits, c->accum,
             again_names[c->recompute], c->clip, c->sizes ? " two sizes" : "",
             c->evaluate ? " evaluating" : "",
             offload_names[c->mode], c->resident, c->stride, c->share, c->subgroup, c->slots,
             c->places, c->wire, tight[c->tight], c->threads, c->moments,
             c->streamed, c->ring, config_early(c), c->serial ? " serial" : "");
}

static bool config_is_here(int k) { return config_of_bits(k, configs[k].bits); }

// Two hashes: of training, and of the evaluations in between.
typedef struct { uint64_t training, evaluations; } Hashes;

// With everything on the GPU.
static Hashes reference(const Config *c, size_t steps) {
    const Shape s = config_shape(c);
    const Recipe r = config_recipe(c);
    Hashes h;
    h.training = train_hash(&s, steps, &h.evaluations, &r);
    return h;
}

enum { SETTINGS = 18 };
static double setting(int k, int i) {
    const Config *c = &configs[k];
    const double all[SETTINGS] = {
        c->mode == INTER ? 100 * (double)c->stride + c->share : -c->mode, c->resident,
        (double)c->shape, (double)c->bits, (double)c->accum, (double)c->recompute, c->clip,
        (double)c->sizes, (double)c->evaluate, (double)c->subgroup, (double)c->slots,
        (double)c->wire, (double)c->tight, (double)c->threads, (double)c->serial,
        (double)c->places, (double)c->moments, (double)(c->streamed < ALL ? c->streamed > 0 : 2)};
    return all[i];
}

// Nothing stays with `zero`, and something does with `twinflow`.
static bool never(int a, double one, int b, double other) {
    return a == 0 && b == 1 && ((one == -ZERO && other > 0) || (one == -TWIN && other == 0));
}

static void test_settings_meet(void) { check_settings_meet(MIXED, SETTINGS, setting, never); }

// ---------------------------------------------------------------------------------------------
// What a placement says

static double distance(double a, double b) { return fabs(a - b); }

// Who updates how much is what was asked for. (test_offload.c knows more about the pieces.)
static void check_pieces(const GPT2 *g, const Config *c, const char *name) {
    size_t n[PIECE_KINDS] = {0};
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        n[p->kind] += p->length;
        if (c->stride > 0 && p->kind != PIECE_RESIDENT)  // Algorithm 1
            CHECK((p->kind == PIECE_VISIT) == ((size_t)(p->subgroup + 1) % c->stride == 0),
                  "%s: sub-group %d", name, p->subgroup);
    }
    const double P = (double)g->table.elements, away = (double)(n[PIECE_HOST] + n[PIECE_VISIT]);
    const double visits = c->mode == INTER ? c->share * away : 0;
    CHECK(away + (double)n[PIECE_RESIDENT] == P, "%s: %g elements, not %g", name, away, P);
    CHECK(c->stride > 0 || (double)n[PIECE_VISIT] <= visits + 1,
          "%s: of %g, %zu visit", name, away, n[PIECE_VISIT]);
    CHECK((c->stride > 0 && (double)n[PIECE_RESIDENT] <= c->resident * P + NORM_BLOCK)
          || distance((double)n[PIECE_RESIDENT], c->resident * P) <= NORM_BLOCK,
          "%s: of %g, %zu stay", name, P, n[PIECE_RESIDENT]);
}

// The gradients of so many layers in a row, and of embeddings and tail, have places of their own;
// the next layer's is where the first one's was, and there is room for no more.
static void check_places(const GPT2 *g, const Config *c,
                         const char *name) {
    const int L = g->segments - 2, P = c->places < L && !g->in_place ? c->places : L;
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
            CHECK(shares ? a->grad_at == b->grad_at && a->place == b->place
                         : apart && a->place != b->place, "%s: segments %d and %d", name, k, i);
        }
    }
    CHECK(end == all && g->grad_elements == all, "%s: %zu elements of gradients, places of %zu",
          name, g->grad_elements, all);
}

// With one micro-batch whose activations are kept, gradients wait in their own layer's range, one
// behind the other, if there is room; and nowhere else.
static void check_over_acts(const GPT2 *g, const Config *c, const char *name) {
    const bool may = c->accum == 1 && c->recompute != AGAIN;
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
                                               + acts_place(g).entry, "%s: %d does not", name, i);
        if (!p->over_acts) continue;
        const char *begin = g->acts + ((size_t)p->segment - 1) * acts_place(g).stride + acts_place(g).entry;
        if (end == NULL || end < begin) end = begin;
        CHECK(kept && may && from >= end && from + bytes <= begin + acts_place(g).stride,
              "%s: piece %d waits elsewhere", name, i);
        end = from + bytes;
        all += p->length;
    }
    CHECK(all == g->grads_over_acts, "%s: %zu elements wait there, not %zu", name,
          g->grads_over_acts, all);
}

// As many layers stream as are to, of those that may, evenly; on the host one piece is behind the
// other. They take turns in as many places as are to be, and all others have places of their own.
static void check_weights(const GPT2 *g, const Config *c, const char *name) {
    const int L = g->segments - 2;
    int may = 0, streams = 0, ring[8] = {0}, seen = 0, before = 0;
    size_t end = 0, stay = 0;
    for (int s = 1; s <= L; s++) {
        const Segment *x = &g->segment[s];
        bool resident = false;
        for (const Piece *p = x->first; p < x->end; p++) {
            if (p->kind == PIECE_RESIDENT) resident = true;
            CHECK(p->params == (const floatX *)x->first->params + (p->at - x->first->at),
                  "%s: weights of %d are not in one piece", name, s);
        }
        CHECK(!resident || !x->on_host, "%s: layer %d is resident and streams", name, s);
        may += !resident;
        streams += x->on_host;
    }
    CHECK(streams == (c->streamed < may ? c->streamed : may) && streams == g->streamed,
          "%s: %d of %d layers stream", name, streams, may);
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
            CHECK(same ? x->param_at == y->param_at && x->ring == y->ring
                       : apart && (x->ring != y->ring || x->ring < 0), "%s: %d and %d", name, k, s);
        }
        ring[s] = seen;
        seen += x->on_host;
        before += !resident;
        CHECK(may == 0 || abs(seen * may - before * streams) < may, "%s: not evenly", name);
    }
    const size_t all = stay + (size_t)turns * g->segment[1].length;
    CHECK(end == all && g->param_elements == all, "%s: %zu elements of weights, places of %zu",
          name, g->param_elements, all);
}

// Returns the number of visitors whose gradients wait on the GPU (model_place()).
static int config_kept(const Config *c) { return c->tight < 2 ? (int)KEEP_ALL : c->tight - 2; }

// The bytes that crossed the link in each direction in `steps` steps.
static void check_moved(const GPT2 *g, const Config *c, size_t steps, const char *name) {
    const size_t X_ = sizeof(floatX);
    const bool sums = c->accum > 1, on_host = sums && c->tight > 0;
    // of one element's gradient, in a step: when it leaves, and when it waits on the host
    const size_t waits = sums || c->wire == 32 ? 4 : X_, leaves = on_host ? c->accum * X_ : waits;
    const size_t state = c->moments == 16 ? STATE_BYTES - 4 : STATE_BYTES;
    size_t in = 0, out = 0;
    int visits = 0;
    const size_t weights = layers_fetched(g, c->accum, c->evaluate, steps) * g->segment[1].length * X_;
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
    CHECK(g->moved_in == steps * in + weights && g->moved_out == steps * out,
          "%s: %zu in, %zu out; wanted %zu, %zu", name, g->moved_in, g->moved_out,
          steps * in + weights, steps * out);
}

// Host memory: page-locked from the first to the last byte; for the state of parameters that are
// not resident, their gradients, the weights that the CPU updates or that live here, and what else
// was asked for.
static void check_host_memory(GPT2 *g, const Config *c, const char *name) {
    Buffer list[MAX_BUFFERS];
    const size_t *n = g->pieces.elements, away = n[PIECE_HOST] + n[PIECE_VISIT];
    size_t grads = n[PIECE_HOST];
    for (int i = config_kept(c); i < g->pieces.visits; i++) grads += g->visits[i].piece->length;
    const bool sums = c->accum > 1, wide = sums || c->wire == 32 || c->bits == 32;
    const size_t state = c->moments == 16 ? STATE_BYTES - 4 : STATE_BYTES;
    size_t wanted = away * state + grads * (wide ? 4 : 2);
    for (int i = 0; i < g->pieces.count; i++) {
        const Piece *p = &g->pieces.pieces[i];
        const bool here = p->kind == PIECE_HOST || g->segment[p->segment].on_host;
        if (here) wanted += p->length * sizeof(floatX);
    }
    if (sums && c->tight > 0) wanted += 2 * g->longest_segment * sizeof(floatX);
    const int buffers = gpt2_buffers(g, list);
    size_t listed = 0;
    for (int i = 0; i < buffers; i++) {
        if (list[i].kind != BUFFER_HOST) continue;
        const char *p = (const char *)buffer_get(&list[i]);
        listed += list[i].bytes;
        cudaPointerAttributes a;
        for (size_t at = 0; at < list[i].bytes; at += list[i].bytes - 1) {
            CUDA(cudaPointerGetAttributes(&a, p + at));
            CHECK(a.type == cudaMemoryTypeHost, "%s: %s at %zu", name, list[i].purpose, at);
        }
#ifdef __CUDA_EMU__
        if (list[i].bytes == 0) continue;
        CUDA(cudaPointerGetAttributes(&a, p + list[i].bytes));
        CHECK(a.type == cudaMemoryTypeUnregistered, "%s: %s is larger", name, list[i].purpose);
#endif
    }
    const size_t planned = gpt2_bytes(g, true);
    CHECK(listed == wanted && planned >= listed && planned - listed <= 4096 * (size_t)buffers,
          "%s: %zu bytes of host memory, wanted %zu, planned %zu", name, listed, wanted, planned);
}

static Hashes run(const Config *c, size_t steps) {
    const Shape s = config_shape(c);
    const Recipe r = config_recipe(c);
    const Placement where = config_placement(c);
    char name[300];
    config_name(c, name);
    float *params = shape_params(&s, false);
    const size_t before = free_memory();
    GPT2 *g = model_open(&s, params, &where);
    const size_t allocated = before - free_memory();
    Hashes h = {0, 0};
    check_pieces(g, c, name);
    check_places(g, c, name);
    check_over_acts(g, c, name);
    check_weights(g, c, name);
    check_memory(g, name, allocated);
    check_host_memory(g, c, name);
    h.training = train_steps(g, &s, &r, 1, steps, 0, c->evaluate ? &h.evaluations : NULL);
    const uint64_t both[2] = {h.training, hash_state(g)};
    h.training = hash_bytes(both, sizeof both);
    check_moved(g, c, steps, name);
#ifdef __CUDA_EMU__
    CHECK(before - free_memory() == allocated, "%s: training allocates", name);
#endif
    model_close(g);
#ifdef __CUDA_EMU__
    CHECK(before == free_memory(), "%s: %zu bytes are not freed", name, before - free_memory());
#endif
    free(params);
    return h;
}

static void test_same_bits(void) {
    for (int k = 0; k < CONFIGS; k++) {
        if (!config_is_here(k) || !config_is_tested(some, k)) continue;
        const Config *c = &configs[k];
        char name[300];
        config_name(c, name);
        const Hashes wanted = reference(c, 2);
        const Hashes h = run(c, 2);
        CHECK(h.training == wanted.training, "config %d: %s", k, name);
        CHECK(!c->evaluate || h.evaluations == wanted.evaluations, "config %d: %s", k, name);
    }
    moments_bf16 = false;
}

// ---------------------------------------------------------------------------------------------
// A run that goes on in another place

static void carry(GPT2 *from, GPT2 *to) {
    const size_t P = from->table.elements;
    float *whole = floats(P);
    gpt2_update_wait(from);
    for (int k = 0; k < 3; k++) {
        gpt2_move(from, k, 0, P, whole, true);
        gpt2_move(to, k, 0, P, whole, false);
    }
    free(whole);
}

// Two steps as in configuration a, two more with the state as in b.
static void check_resume(int a, int b) {
    const Config *c = &configs[a];
    Shape s = config_shape(c);
    const Recipe r = config_recipe(c);
    const Placement before = config_placement(c), after = config_placement(&configs[b]);
    float *params = shape_params(&s, false);
    GPT2 *g = model_open(&s, params, &before);
    uint64_t hash = train_steps(g, &s, &r, 1, 2, 0, NULL);
    memset(params, 0, g->table.elements * sizeof(float));
    s.recompute = configs[b].recompute;
    GPT2 *other = model_open(&s, params, &after);
    carry(g, other);
    model_close(g);
    hash = train_steps(other, &s, &r, 3, 4, hash, NULL);
    const uint64_t both[2] = {hash, hash_state(other)};
    CHECK(hash_bytes(both, sizeof both) == reference(c, 4).training, "from %d to %d", a, b);
    model_close(other);
    free(params);
}

static void test_resume_elsewhere(void) {
    for (int k = 0; k < CONFIGS; k += test_whole() ? 2 : 6) {
        const int other = (k + 11) % CONFIGS;
        if (config_is_here(k)) check_resume(k, other);
    }
    moments_bf16 = false;
}

// ---------------------------------------------------------------------------------------------
// The memory plan

// What costs only time is done exactly when the limits demand it: sums on the host, gradients of
// visitors there, activations made again. What does not fit even so is refused in one line.
static void test_fit(void) {
    Shape s = shapes[TIED];
    s.accum = 4;
    const Config c = {TIED, 16, 4, KEEP, 0, 0, 0, INTER, .3, 0, .5, 4096, 1, 2, 16, 0, 1, 0, 32,
                      0, 2};
    const Placement where = config_placement(&c);
    Planned bytes[9];  // three by how tight, of each way to recompute
    for (int i = 0; i < 9; i++) {
        bytes[i] = plan_without_limits(&s, &where, KEEP + i / 3, i % 3);
        if (i % 3 == 0 && i > 0)
            CHECK(bytes[i].gpu < bytes[i - 3].gpu && bytes[i].host == bytes[i - 3].host, "%d", i);
        if (i % 3 == 0) continue;
        CHECK(bytes[i].gpu < bytes[i - 1].gpu && bytes[i].host > bytes[i - 1].host, "step %d", i);
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
        const bool all = wanted % 3 < 2;  // visitors' gradients stay, else as many as fit
        size_t kept = bytes[wanted].gpu, more = kept;
        if (!all) {
            kept = plan_without_limits(&s, &where, p.again, 2 + p.kept_grads).gpu;
            more = plan_without_limits(&s, &where, p.again, 3 + p.kept_grads).gpu;
        }
        CHECK(p.again == KEEP + wanted / 3 && p.sum_on_host == (wanted % 3 > 0)
              && (p.kept_grads == KEEP_ALL) == all && p.gpu == kept && p.gpu <= gpu
              && (all || more > gpu) && p.host <= bytes[wanted].host,
              "case %d: again %d, sums on host %d, keeps %d", i, p.again, p.sum_on_host,
              p.kept_grads);
    }
    const struct { int recompute; size_t gpu, host; const char *words; } refusals[] = {
        {RECOMPUTE_AUTO, bytes[8].gpu - 1, SIZE_MAX, "GPU memory"},
        {KEEP, bytes[2].gpu - 1, SIZE_MAX, "GPU memory"},
        {AGAIN, SIZE_MAX, bytes[0].host - 1, "host memory"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char line[1024];
        int status;
        if (in_child(line, &status)) {
            plan(&s, &where, refusals[i].recompute, refusals[i].gpu, refusals[i].host);
            _exit(0);
        }
        CHECK(refused(line, status, refusals[i].words), "status %d: %s", status, line);
    }
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
    Shape s = shapes[FIVE];
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
    const Config c = {FIVE, 16, 1, KEEP, 0, 0, 0, mode, 0, stride, share, 0, slots, 2, 16, 0, 1, 0,
                      32, 0, 2};
    return config_placement(&c);
}

static double elements(int shape) {
    const GPT2Config config = shape_config(&shapes[shape]);
    GPT2Table t = gpt2_table(&config);
    const double n = (double)t.elements;
    gpt2_table_free(&t);
    return n;
}

// Both directions of the link are busy at once if there is more than one slot.
static void test_both_directions(void) {
    const double one_way = STATE_BYTES * elements(FIVE) / now[LINK];
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
    const double together = measure(&p, true).backward, leave = 2 * elements(FIVE) / now[LINK];
    p.serial = true;
    const double serial = measure(&p, true).backward;
    CHECK(serial - together > 0.9 * leave, "%.0f us, one after the other %.0f; they need %.0f",
          together, serial, leave);
}

// While the host adds a gradient to the sum, the next one lands.
static void test_landings(void) {
    Placement p = placement(ZERO, 0, 0, 2);
    p.tight = 1;
    const double took = measure(&p, true).backward, leave = 2 * elements(FIVE) / now[LINK];
    CHECK(took < leave + 2 * now[HOST], "%.0f us, of which the link needs %.0f", took, leave);
}

// Figure 9 of Deep Optimizer States: a hundred steps whose copies and updates run on under the next
// forward pass. If a copy fell behind, each step would begin later than the one before: none does.
// From norm to norm, after two steps; every second sub-group visits, gradients leave in fp32.
static void test_a_hundred_steps(void) {
    enum { FIRST = 2, STEPS = 100, SOME = 10 };
    const Shape *s = &shapes[FIVE];
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
    const Shape *s = &shape_7b;
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
        gpt2_backward(g, false, true);
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
    Step t[7];
    for (int k = 0; k < 7; k++) {
        p = k < 3 || k == 6 ? placement(ZERO, 0, 0, 3) : placement(INTER, 0, 0.6, k == 5 ? 24 : 3);
        p.choice.places = k == 6 ? 32 : k % 3 == 0 ? 2 : k == 1 ? 8 : 32;
        p.choice.early = k == 6 ? 8 : 0;
        t[k] = measure_7b(&p, &none);
        printf("  %s, %2d places, %2d slots, %d early: backward %.0f us, step %.0f us, planned "
               "%.0f\n", offload_names[p.choice.mode], p.choice.places, p.choice.slots,
               p.choice.early, t[k].backward, t[k].step, 1e6 * t[k].planned.step);
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
    CHECK(t[6].step < t[2].step - 0.8 * late, "%.0f us, %.0f with an early start; the last gradient "
          "is late by %.0f", t[2].step, t[6].step, late);
}

// The same model, with so many layers whose weights live on the host.
static Step measure_weights(int streamed, bool serial, const Step *none) {
    Placement p = placement(OFFLOAD_NONE, 0, 0, 3);
    if (none != NULL) p.choice.mode = ZERO;
    p.choice.places = 32;
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

static uint64_t config_hash(int k, size_t steps, char name[300]) {
    config_name(&configs[k], name);
    const Hashes h = run(&configs[k], steps);
    return hash_bytes(&h, sizeof h);
}

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    if (argc >= 3 && strcmp(argv[1], "--config") == 0)
        return run_configs(argc, argv, CONFIGS, some, config_is_here, config_hash);
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
        }
        return test_summary();
    }
#endif
    if (IS_BF16) RUN(test_fit);  // first: it forks
    if (IS_BF16) RUN(test_settings_meet);
    RUN(test_same_bits);
    RUN(test_resume_elsewhere);
    if (IS_BF16) RUN(test_overlap);
    return test_summary();
}
