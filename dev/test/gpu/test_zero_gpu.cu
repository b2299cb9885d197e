// test_zero_gpu.cu: several GPUs, each a process: whatever the stage, wherever the state lives, and
// in which order events let the streams run, training leaves the bits of stage 1 with everything on
// the GPU; what a rank takes and gives away is what the formulas say; and moving it costs no time
// that something else can hide.
//
// usage: test_zero_gpu                     all tests
//        test_zero_gpu --config K|some|all [N]  for test_schedules.sh, as in test_model
//        test_zero_gpu --clock 0           what test_overlap runs, with EMU_CLOCK=virtual
#include "model_harness.cuh"
#include <sys/mman.h>
#include <sys/prctl.h>

enum { MOST_RANKS = 4, MOST_STEPS = 20 };

// ---------------------------------------------------------------------------------------------
// The configurations

// With gaps between tensors, padded rows, tied and untied heads. Of "odd" and "five layers" the
// tail is too short for four ranks.
enum { TIED, ODD, ONE, FIVE, LLAMA, SHAPES };
static const Shape shapes[SHAPES] = {
    // name          L NH   C    F    V  ctx  B   T  act  tied recompute accum head repeated
    {"tied",         2, 2,  32,  64, 131, 20, 3, 15, GELU, 1, KEEP, 1, 99, false},
    {"odd",          3, 3,  24,  40, 257, 17, 2,  9, RELU, 1, KEEP, 1,  5, false},
    {"one layer",    1, 2,  48,  72, 131, 17, 1, 17, GELU, 0, KEEP, 1, 99, false},
    {"five layers",  5, 1,  16,  32, 131,  9, 2,  8, RELU, 1, KEEP, 1, 99, false},
    {"llama",        3, 4,  32,  40, 131, 20, 2,  9, GELU, 0, KEEP, 1, 99, false, 0,
     FAMILY_QWEN3, 2, 16},
};

typedef struct {
    int shape;
    size_t world;
    int stage, bits;            // bits: of the stored numbers: 16 or 32
    size_t accum;
    int recompute;
    double clip;                // 0.05: every step is clipped; 1e6: none
    int sizes, evaluate;        // every second step has a smaller batch; an evaluation follows each
    int mode;
    double resident;
    size_t stride;
    double share;
    size_t subgroup;
    int slots, places, wire, tight, threads, serial;  // see Placement; wire: bits of gradients
    int streamed, ring;         // in stage 3: layers whose weights live on the host, and places
} Config;

enum { NONE = OFFLOAD_NONE, ZERO = OFFLOAD_ZERO, TWIN = OFFLOAD_TWINFLOW,
       INTER = OFFLOAD_INTERLEAVE, ALONE = -1 };  // ALONE, for a stage: without --zero

// Any two settings meet in one of the first MIXED (test_settings_meet). Then special cases.
enum { MIXED = 29 };
static const Config configs[] = {
    // shape, world, stage, bits, accum, recompute, clip, sizes, evaluate, mode, resident, stride,
    // share, subgroup, slots, places, wire, tight, threads, serial, streamed, ring
    {ODD,  1, 1, 16, 3, AGAIN, 1e6, 0, 0, TWIN,  .4, 0,  0,    0, 2, 2, 32, 2, 1, 1, 0, 2},
    {FIVE, 1, 3, 32, 1, KEEP,  1e6, 1, 1, ZERO,   0, 0,  0,    0, 1, 9, 16, 0, 2, 1, 9, 2},
    {ONE,  1, 1, 32, 3, AGAIN, .05, 0, 0, NONE,   1, 0,  0,    0, 2, 2, 32, 0, 1, 0, 0, 2},
    {TIED, 1, 2, 16, 1, AGAIN, .05, 0, 0, INTER, .3, 2,  0,    0, 2, 2, 32, 1, 2, 1, 0, 2},
    {FIVE, 1, 2, 32, 1, AGAIN, .05, 0, 0, INTER, .3, 0,  1,    0, 1, 2, 32, 1, 1, 0, 0, 2},
    {FIVE, 1, 3, 32, 3, AGAIN, .05, 0, 1, INTER,  0, 0, .5, 4096, 2, 3, 16, 1, 2, 0, 9, 3},
    {TIED, 2, 1, 32, 1, AGAIN, .05, 1, 1, NONE,   1, 0,  0,    0, 2, 3, 16, 0, 1, 0, 0, 2},
    {ONE,  2, 2, 16, 1, KEEP,  .05, 0, 0, INTER, .3, 2,  0, 4096, 2, 3, 16, 1, 1, 0, 0, 2},
    {FIVE, 2, 1, 16, 3, KEEP,  .05, 1, 1, INTER, .3, 0,  1,    0, 2, 9, 16, 2, 2, 1, 0, 2},
    {TIED, 2, 2, 32, 3, KEEP,  1e6, 1, 0, INTER,  0, 0, .5,    0, 2, 9, 32, 0, 2, 0, 0, 2},
    {TIED, 2, 3, 32, 3, AGAIN, .05, 1, 0, ZERO,   0, 0,  0,    0, 1, 9, 16, 2, 1, 0, 1, 2},
    {ODD,  2, 3, 32, 1, KEEP,  .05, 1, 0, TWIN,  .4, 0,  0, 4096, 1, 2, 16, 1, 1, 0, 2, 2},
    {ONE,  3, 1, 16, 3, KEEP,  .05, 1, 1, INTER,  0, 0, .5, 4096, 1, 3, 16, 2, 1, 1, 0, 2},
    {TIED, 3, 1, 16, 1, AGAIN, 1e6, 0, 0, INTER, .3, 2,  0,    0, 1, 9, 16, 0, 2, 0, 0, 2},
    {TIED, 3, 2, 16, 1, AGAIN, 1e6, 0, 1, NONE,   1, 0,  0,    0, 1, 3, 32, 1, 2, 1, 0, 2},
    {ONE,  3, 2, 16, 3, KEEP,  .05, 0, 1, ZERO,   0, 0,  0, 4096, 2, 3, 16, 1, 2, 0, 0, 2},
    {FIVE, 3, 2, 32, 1, KEEP,  1e6, 1, 1, TWIN,  .4, 0,  0,    0, 2, 9, 32, 2, 2, 1, 0, 2},
    {ODD,  3, 3, 32, 1, KEEP,  .05, 1, 1, NONE,   1, 0,  0,    0, 1, 2, 32, 2, 2, 1, 0, 2},
    {ONE,  3, 3, 16, 1, AGAIN, 1e6, 0, 0, INTER, .3, 0,  1, 4096, 1, 9, 16, 0, 2, 1, 9, 2},
    {TIED, 4, 2, 32, 3, KEEP,  .05, 0, 0, INTER, .3, 2,  0, 4096, 1, 3, 32, 2, 2, 0, 0, 2},
    {ODD,  4, 2, 32, 3, AGAIN, .05, 0, 1, INTER, .3, 0,  1, 4096, 2, 3, 16, 2, 1, 1, 0, 2},
    {ODD,  4, 1, 16, 3, AGAIN, .05, 1, 0, ZERO,   0, 0,  0,    0, 2, 2, 32, 2, 2, 1, 0, 2},
    {ONE,  4, 1, 32, 3, KEEP,  1e6, 0, 0, TWIN,  .4, 0,  0, 4096, 1, 9, 16, 0, 2, 0, 0, 2},
    {FIVE, 4, 1, 32, 1, KEEP,  .05, 1, 1, NONE,   1, 0,  0, 4096, 1, 9, 16, 1, 1, 0, 0, 2},
    {TIED, 4, 2, 16, 1, KEEP,  .05, 1, 0, TWIN,  .4, 0,  0, 4096, 1, 3, 16, 2, 2, 1, 0, 2},
    {ODD,  4, 2, 16, 1, KEEP,  1e6, 0, 1, INTER,  0, 0, .5,    0, 1, 2, 32, 0, 2, 0, 0, 2},
    {FIVE, 4, 2, 16, 3, AGAIN, 1e6, 0, 1, INTER, .3, 2,  0,    0, 2, 2, 16, 2, 2, 1, 0, 2},
    {TIED, 4, 3, 32, 1, AGAIN, .05, 1, 0, INTER, .3, 0,  1,    0, 2, 3, 32, 0, 2, 1, 9, 3},
    {ODD,  4, 3, 32, 1, AGAIN, .05, 1, 1, INTER, .3, 2,  0,    0, 2, 9, 32, 1, 1, 1, 1, 2},
    // as they are used most
    {FIVE, 2, 2, 16, 1, KEEP,  .05, 0, 1, NONE,   1, 0,  0,    0, 1, 2, 16, 0, 1, 0, 0, 2},
    {FIVE, 2, 3, 16, 1, KEEP,  .05, 0, 1, NONE,   1, 0,  0,    0, 1, 3, 16, 0, 1, 0, 0, 2},
    {FIVE, 2, 3, 16, 3, KEEP,  .05, 0, 0, INTER,  0, 0, .5,    0, 2, 9, 16, 0, 1, 0, 2, 2},
    {ODD,  2, 1, 16, 1, KEEP,  .05, 0, 0, INTER,  0, 2,  0, 4096, 2, 3, 16, 0, 1, 0, 0, 2},
    {ONE,  2, 3, 16, 3, KEEP,  .05, 0, 1, NONE,   1, 0,  0,    0, 1, 2, 16, 0, 1, 0, 0, 2},
    {FIVE, 2, 3, 16, 1, KEEP,  .05, 0, 0, ZERO,   0, 0,  0,    0, 1, 2, 16, 0, 1, 0, 9, 3},
    {FIVE, 3, 3, 16, 3, LIGHT, .05, 0, 1, INTER, .2, 0,  1,    0, 2, 2, 16, 2, 2, 0, 3, 2},
    // the LLaMA family
    {LLAMA, 2, 1, 16, 2, AGAIN, .05, 1, 0, ZERO,  0, 0,  0, 4096, 2, 2, 32, 0, 1, 0, 0, 2},
    {LLAMA, 2, 2, 32, 2, KEEP,  .05, 0, 1, NONE,  1, 0,  0,    0, 1, 2, 16, 0, 1, 0, 0, 2},
    {LLAMA, 3, 2, 16, 1, LIGHT, 1e6, 0, 0, TWIN, .4, 0,  0,    0, 1, 3, 16, 0, 2, 0, 0, 2},
    {LLAMA, 2, 3, 16, 2, LIGHT, .05, 0, 1, INTER, 0, 0, .5,    0, 2, 2, 16, 1, 1, 0, 2, 2},
    {LLAMA, 3, 3, 32, 1, AGAIN, .05, 0, 0, NONE,  1, 0,  0,    0, 1, 2, 16, 0, 1, 0, 0, 2},
};
enum { CONFIGS = sizeof configs / sizeof *configs };
static const int some[] = {3, 15, 16, 20, 29, 30, 31, 32, 34, 35, 39};  // cover what there is

static Shape config_shape(const Config *c) {
    Shape s = shapes[c->shape];
    s.accum = c->accum;
    s.recompute = c->recompute;
    return s;
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
    p.tight = c->tight;
    p.threads = c->threads;
    p.serial = c->serial != 0;
    return p;
}

static void config_name(const Config *c, char name[300]) {
    static const char *const tight[] = {"", ", summed on host", ", gradients on host"};
    snprintf(name, 300, "%zu ranks, stage %d, %s %s%d accum %zu%s clip %g%s%s, %s "
             "resident %g stride %zu share %g subgroup %zu slots %d places %d wire %d%s "
             "threads %d streamed %d ring %d%s",
             c->world, c->stage, shapes[c->shape].name, c->bits == 16 ? "bf" : "fp", c->bits,
             c->accum, again_names[c->recompute], c->clip,
             c->sizes ? " two sizes" : "", c->evaluate ? " evaluating" : "",
             offload_names[c->mode], c->resident, c->stride, c->share, c->subgroup, c->slots,
             c->places, c->wire, tight[c->tight], c->threads, c->streamed, c->ring,
             c->serial ? " serial" : "");
}

enum { SETTINGS = 17 };
static double setting(int k, int i) {
    const Config *c = &configs[k];
    const double all[SETTINGS] = {
        c->mode == INTER ? 100 * (double)c->stride + c->share : -c->mode, (double)c->world,
        (double)c->stage, (double)c->shape, (double)c->bits, (double)c->accum,
        (double)c->recompute, c->clip, (double)c->sizes, (double)c->evaluate, (double)c->subgroup,
        (double)c->slots, (double)c->wire, (double)c->tight, (double)c->threads, (double)c->serial,
        (double)c->places};
    return all[i];
}

static void test_settings_meet(void) { check_settings_meet(MIXED, SETTINGS, setting, NULL); }

// ---------------------------------------------------------------------------------------------
// Ranks: processes that are forked here, and leave what they have to say in shared memory

typedef struct { double forward, backward, next; } Times;

typedef struct {
    uint64_t numbers, evaluations, weights;  // hashes: of losses and norms, .., of all weights
    double loss[MOST_STEPS], norm[MOST_STEPS];
    size_t elements[3];                      // of the state, by part
    int failures;
    Times times;
} Report;

// Arenas of fp32 masters, m, v, and the weights that forward uses: each rank brings what it owns.
typedef struct {
    Report rank[MOST_RANKS];
    size_t P;
    float arena[4];  // (4, P)
} Shared;

static float *arena(Shared *x, int k) { return x->arena + (size_t)k * x->P; }

static size_t shared_bytes(size_t P) { return sizeof(Shared) + 4 * P * sizeof(float); }

static Shared *shared_open(const Config *c) {
    const Shape s = config_shape(c);
    const GPT2Config config = shape_config(&s);
    GPT2Table t = gpt2_table(&config);
    const size_t P = t.elements;
    gpt2_table_free(&t);
    void *p = mmap(NULL, shared_bytes(P), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    if (p == MAP_FAILED) die("mmap: %s", strerror(errno));
    Shared *x = (Shared *)p;
    x->P = P;
    memset(x->arena, 0xff, 4 * P * sizeof(float));  // NaNs, for what nobody brings
    return x;
}

static void shared_close(Shared *x) { munmap(x, shared_bytes(x->P)); }

// Runs rank_train() as so many ranks, and counts what each of them checked in vain.
static void run_ranks(const Config *c, Shared *x, const char *name,
                      void (*rank_train)(const Config *, Shared *)) {
    pid_t child[MOST_RANKS];
    const int port = free_port();
    fflush(stdout);
    for (size_t r = 0; r < c->world; r++) {
        child[r] = fork();
        if (child[r] < 0) die("fork: %s", strerror(errno));
        if (child[r] > 0) continue;
        const int out = dup(STDOUT_FILENO);  // what a rank finds is said, whichever it is
        test_failures_here = 0;
        alarm(500);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#ifdef _OPENMP
        omp_set_num_threads(1);
#endif
        if (c->world > 1) launched_as(r, c->world, port);
        ranks_open();
        dup2(out, STDOUT_FILENO);
        rank_train(c, x);
        x->rank[r].failures = test_failures_here;
        fflush(stdout);
        ranks_close();
        _exit(0);
    }
    for (size_t r = 0; r < c->world; r++) {
        int status;
        waitpid(child[r], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %zu: status %d: %s", r, status,
              name);
        CHECK(x->rank[r].failures == 0, "rank %zu found %d: %s", r, x->rank[r].failures, name);
    }
}

// How many ranks can be run: NCCL wants a GPU for each. The first caller forks.
static size_t ranks_at_most(void) {
#ifdef __CUDA_EMU__
    return MOST_RANKS;
#else
    static int devices;
    if (devices > 0) return min_size((size_t)devices, MOST_RANKS);
    const pid_t child = fork();
    if (child == 0) _exit(cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0);
    int status;
    waitpid(child, &status, 0);
    devices = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return min_size((size_t)devices, MOST_RANKS);
#endif
}

// ---------------------------------------------------------------------------------------------
// What a rank does

// A model of one rank of several, of which nothing is settled.
static GPT2 *rank_new(const Config *c, const Shape *s,
                      const Placement *where) {
    GPT2 *g = model_new(s, where);
    Run r;
    if (c->stage == ALONE) return g;
    memset(&r, 0, sizeof r);
    r.training = true;
    r.world = c->world;
    r.rank = (size_t)ranks.rank;
    r.table = g->table;
    r.o.zero = (size_t)c->stage;
    r.o.given[option_find("zero", 4)] = true;
    r.o.precision = PRECISION;
    g->zero = zero_open(&r);
    free(g->shards.shards);
    g->shards = zero_shards(&g->table, r.world, r.rank, g->zero->rows);
    return g;
}

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
static void check_formulas(GPT2 *g, const Config *c, const char *name) {
    const Shape s = config_shape(c);
    const Lengths x = lengths_of(&s);
    const size_t R = c->world, rank = (size_t)ranks.rank, X_ = sizeof(floatX);
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
    const bool sums = c->accum > 1, away = c->mode != NONE;

    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    const size_t weights = purpose_bytes(list, n, "parameters");
    const size_t masters = purpose_bytes(list, n, "master weights");
    const size_t moments = purpose_bytes(list, n, "AdamW moments");
    const size_t layer_parts = parts - part_of(x.n[0], R) - part_of(x.n[2], R)
                             - (size_t)g->streamed * part_of(x.n[1], R);
    CHECK(g->streamed == 0 || c->streamed > 0, "%d layers stream: %s", g->streamed, name);
    CHECK(g->streamed > 0 || c->streamed == 0 || !away, "nothing streams: %s", name);
    CHECK(weights == X_ * (c->stage < 3 ? rooms : places + layer_parts), "rank %zu: %zu bytes of "
          "weights: %s", rank, weights, name);
    CHECK(moments == 8 * own, "rank %zu: %zu bytes of moments: %s", rank, moments, name);
    CHECK(masters == (X_ == 2 ? 2 * own : 0), "rank %zu: %zu bytes of masters: %s", rank, masters,
          name);  // besides the weights
    if (!away) {
        const size_t passing = ends + turns * R * part_of(x.n[1], R);
        const bool leaves = c->stage >= 2 || c->tight > 0;  // the place where it is made
        size_t wanted = X_ * (sums || leaves ? passing : rooms);
        if (sums) wanted += 4 * own;
        else if (leaves) wanted += X_ * (own - g->grads_over_acts);
        if (s.tied || s.B * s.T > s.head_rows)  // else the head's is made in its place
            wanted += (size_t)128 * ((s.V + 127) / 128) * s.C * 4;
        const size_t grads = purpose_bytes(list, n, "gradients");
        CHECK(grads == wanted, "rank %zu: %zu bytes of gradients, not %zu: %s", rank, grads, wanted,
              name);
    }
}

// How often layers' weights come in training: each pass uses the layers one after the other, and a
// layer finds its weights only if no other has come to its place since.
typedef struct { size_t place[8], places, count; } Visits;

static void layers_pass(Visits *v, size_t L, bool back) {
    for (size_t i = 1; i <= L; i++) {
        const size_t l = back ? L + 1 - i : i;
        v->count += v->place[l % v->places] != l;
        v->place[l % v->places] = l;
    }
}

// The bytes that this rank has given away since it began.
static void check_given(const GPT2 *g, const Config *c, size_t steps, const char *name) {
    const Shape s = config_shape(c);
    const Lengths x = lengths_of(&s);
    const size_t R = c->world, L = x.L;
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
    Visits v = {{0}, (size_t)c->ring, 0};
    size_t whole = 0;  // all segments' gradients or weights; then: embeddings and tail
    if (c->stage < 3) whole = 1 + steps;
    for (size_t step = 1; step <= steps && c->stage == 3; step++) {
        for (size_t micro = 0; micro < c->accum; micro++) {
            layers_pass(&v, L, false);
            layers_pass(&v, L, true);
        }
        memset(v.place, 0, sizeof v.place);  // updated
        if (c->evaluate) layers_pass(&v, L, false);
    }
    size_t weights = whole * (ends + L * layer);
    if (c->stage == 3) weights = v.count * layer + (steps + (c->evaluate ? 1 : 0)) * ends;
    CHECK(g->zero->reduced_bytes
              == (R - 1) * steps * c->accum * (ends + L * layer) * sizeof(floatX),
          "%zu bytes reduced: %s", g->zero->reduced_bytes, name);
    CHECK(g->zero->gathered_bytes == (R - 1) * (weights * sizeof(floatX) + numbers),
          "%zu bytes gathered, not %zu: %s", g->zero->gathered_bytes,
          (R - 1) * (weights * sizeof(floatX) + numbers), name);
}

// Brings everything that training leaves to where the other ranks' is. In stage 1 and 2 all weights
// are on every rank, too: their hash is the report's.
static void bring(GPT2 *g, const Config *c, Shared *to, const char *name) {
    Report *report = &to->rank[ranks.rank];
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    const RunState state = gpt2_state(g);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < state.count; i++) {
            const StateRange *s = &state.ranges[i];
            report->elements[k] += s->length;
            gpt2_move(g, k, s->at, s->length, arena(to, k) + s->at, true);
        }
    for (int i = 0; i < g->pieces.count; i++) {  // as they are stored: masters, rounded
        const Piece *p = &g->pieces.pieces[i];
        const size_t at = arena_at(g, p);
        float *w = floats(p->length);
        floats_move((floatX *)p->params, w, p->length, true);
        size_t wrong = 0;
        for (size_t j = 0; j < p->length; j++) {
            const float master = arena(to, 0)[at + j];
            wrong += w[j] != (sizeof(floatX) == 2 ? half_to_f32(master_weight(master)) : master);
        }
        CHECK(wrong == 0, "rank %d: %zu weights of piece %d are not the masters: %s", ranks.rank,
              wrong, i, name);
        memcpy(arena(to, 3) + at, w, p->length * sizeof(float));
        free(w);
    }
    if (c->stage == 3) return;
    float *whole = floats(to->P);
    for (int i = 0; i < g->segments; i++)
        floats_move(g->params + g->segment[i].param_at, whole + g->segment[i].at,
                    g->segment[i].length, true);
    report->weights = hash_bytes(whole, to->P * sizeof(float));
    free(whole);
}

static size_t steps_here;     // how many rank_train() makes
static double eps_here = 1e-8;

// Trains as train() does, and brings what it leaves.
static void rank_train(const Config *c, Shared *to) {
    const Shape s = config_shape(c);
    const Placement where = config_placement(c);
    const Recipe recipe = {1e-2, eps_here, c->clip, 0.1, c->sizes != 0};
    const size_t R = c->world, rank = (size_t)ranks.rank;
    Report *report = &to->rank[rank];
    char name[300];
    config_name(c, name);
    float *params = shape_params(&s, false);
    GPT2 *g = rank_new(c, &s, &where);
    const size_t before = free_memory();
    model_begin(g, &s, params, &where);
    const size_t allocated = before - free_memory();
    check_memory(g, name, allocated);
    if (g->zero != NULL) check_formulas(g, c, name);
    CHECK(g->zero == NULL || is_urgent(g->zero->stream), "collectives wait for products");

    Shape all = s, less;  // all ranks' micro-batches: those of one number lie side by side
    all.accum *= R;
    less = all;
    less.B = s.B > 1 ? s.B - 1 : 1;
    less.T = s.T - 4;
    const size_t room = all.accum * s.B * s.T;
    int32_t *inputs = (int32_t *)alloc_or_fail(2 * room, sizeof(int32_t), "test");
    int32_t *targets = inputs + room;
    for (size_t step = 1; step <= steps_here; step++) {
        const Shape *now = c->sizes && step % 2 == 0 ? &less : &all;
        const size_t N = now->B * now->T;
        double loss;
        shape_batch(now, step, inputs, targets);
        for (size_t micro = 0; micro < c->accum; micro++) {
            const size_t at = (micro * R + rank) * N;
            gpt2_forward(g, inputs + at, NULL, targets + at, now->B, now->T);
            gpt2_head(g, loss_scale / (float)(N * all.accum), 1 / (double)all.accum, micro > 0, NULL);
            gpt2_backward(g, micro > 0, micro + 1 == c->accum);
        }
        if (step == 2 && rank == R - 1) stop_requested = 15;  // of which all ranks learn
        run_save_due = step == 2 && rank == 0 ? 0 : INFINITY;
        const double norm_squared = gpt2_grad_norm_squared(g, &loss) / (loss_scale * loss_scale);
        if (g->zero != NULL)
            CHECK(run_news[NEWS_SIGNAL] == (step >= 2 ? 15 : 0)
                  && stop_requested == (int)run_news[NEWS_SIGNAL]
                  && run_news[NEWS_DUE] == (step == 2), "rank %zu, step %zu: signal %d, due %g: %s",
                  rank, step, stop_requested, run_news[NEWS_DUE], name);
        AdamStep adam = recipe_step(&recipe, step, norm_squared);
        adam.grad_scale /= loss_scale;
        gpt2_update(g, &adam);
        if (step <= MOST_STEPS) report->loss[step - 1] = loss;
        if (step <= MOST_STEPS) report->norm[step - 1] = sqrt(norm_squared);
        const double numbers[2] = {loss, norm_squared};
        report->numbers = hash_with(report->numbers, numbers, sizeof numbers);
        if (!c->evaluate) continue;
        g->timeline.between = true;
        gpt2_forward(g, targets, NULL, inputs, (s.B + 1) / 2, s.T);
        gpt2_head(g, 0, 1, false, NULL);
        g->timeline.between = false;
        const double value = gpt2_loss(g);
        report->evaluations = hash_with(report->evaluations, &value, sizeof value);
    }
    if (g->zero != NULL) check_given(g, c, steps_here, name);
    bring(g, c, to, name);
#ifdef __CUDA_EMU__
    CHECK(before - free_memory() == allocated, "%s: training allocates", name);
#endif
    model_close(g);
#ifdef __CUDA_EMU__
    CHECK(before == free_memory(), "%s: %zu bytes are not freed", name, before - free_memory());
#endif
    free(inputs);
    free(params);
}

// ---------------------------------------------------------------------------------------------
// What all ranks together have made

typedef struct { uint64_t training, evaluations; } Hashes;

// Runs a configuration. If kept is not NULL, it becomes what the ranks have left.
static Hashes run(const Config *c, size_t steps, Shared **kept = NULL) {
    char name[300];
    config_name(c, name);
    Shared *x = shared_open(c);
    steps_here = steps;
    run_ranks(c, x, name, rank_train);
    Hashes h = {0, x->rank[0].evaluations};
    for (int k = 0; k < 3; k++) {
        size_t elements = 0, nobodys = 0;
        for (size_t r = 0; r < c->world; r++) elements += x->rank[r].elements[k];
        for (size_t i = 0; i < x->P; i++) nobodys += isnan(arena(x, k)[i]);
        CHECK(elements == x->P && nobodys == 0, "part %d: %zu elements of %zu, %zu are nobody's: "
              "%s", k, elements, x->P, nobodys, name);
    }
    const uint64_t weights = hash_bytes(arena(x, 3), x->P * sizeof(float));
    for (size_t r = 0; r < c->world; r++) {
        CHECK(x->rank[r].numbers == x->rank[0].numbers, "losses, norms: rank %zu: %s", r, name);
        CHECK(x->rank[r].evaluations == h.evaluations, "evaluations: rank %zu: %s", r, name);
        CHECK(c->stage == 3 || x->rank[r].weights == weights, "weights: rank %zu: %s", r, name);
    }
    for (size_t i = 0; i < steps; i++) {
        const double numbers[2] = {x->rank[0].loss[i], x->rank[0].norm[i]};
        h.training = hash_with(h.training, numbers, sizeof numbers);
    }
    for (int k = 0; k < 4; k++)
        h.training = hash_with(h.training, arena(x, k), x->P * sizeof(float));
    if (kept != NULL) *kept = x;
    else shared_close(x);
    return h;
}

// The same with everything on the GPU, in stage 1; a single one does without zero.cuh.
static Config reference(const Config *c) {
    Config r = *c;
    r.stage = c->world == 1 ? ALONE : 1;
    r.mode = NONE;
    r.resident = 1;
    r.recompute = KEEP;
    r.subgroup = r.stride = 0;
    r.share = 0;
    r.slots = 1;
    r.places = 2;
    r.tight = r.serial = 0;
    r.wire = 16;
    return r;
}

static bool config_is_here(int k) { return config_of_bits(k, configs[k].bits); }

static void test_same_bits(void) {
    size_t done = 0;
    for (int k = 0; k < CONFIGS; k++) {
        if (!config_is_here(k) || !config_is_tested(some, k)) continue;
        const Config *c = &configs[k], plain = reference(c);
        char name[300];
        if (c->world > ranks_at_most()) continue;
        config_name(c, name);
        const Hashes wanted = run(&plain, 3), h = run(c, 3);
        CHECK(h.training == wanted.training, "config %d: %s", k, name);
        CHECK(h.evaluations == wanted.evaluations, "config %d: %s", k, name);
        done++;
    }
    if (done == 0) SKIP("no GPU");
}

// No rank's host reads the GPU's memory, or writes it.
static void test_host_keeps_off(void) {
#ifdef __CUDA_EMU__
    for (int k = CONFIGS - (test_whole() ? 4 : 2); k < CONFIGS - 1; k++)
        if (config_is_here(k)) run_again("test_zero_gpu", "--config", k, "EMU_PROTECT=1");
#else
    SKIP("only the emulated GPU can close its memory");
#endif
}

// ---------------------------------------------------------------------------------------------
// Other numbers of ranks

// The same micro-batches dealt out to more or fewer ranks: the same training, to rounding. With a
// large epsilon: else AdamW makes of a gradient that is nothing but rounding a whole step.
typedef struct { double losses, norms, weights; } Apart;

static Apart apart(const Config *c, size_t world, size_t steps) {
    Config other = *c;
    other.world = world;
    other.accum = c->accum * c->world / world;
    if (world == 1) other.stage = ALONE;
    Shared *a, *b;
    Apart x = {0, 0, 0};
    run(c, steps, &a);
    run(&other, steps, &b);
    for (size_t i = 0; i < steps; i++) {
        const Report *p = &a->rank[0], *q = &b->rank[0];
        x.losses = fmax(x.losses, fabs(p->loss[i] / q->loss[i] - 1));
        x.norms = fmax(x.norms, fabs(p->norm[i] / q->norm[i] - 1));
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

static Config spread(int shape, size_t world, int stage, int bits) {
    return {shape, world, stage, bits, 12 / world, KEEP, 0.5, 0, 0, NONE, 1, 0, 0, 0, 1, 2, 16, 0,
            1, 0, 0, 2};
}

static void test_other_worlds(void) {
    if (ranks_at_most() < 2) SKIP("one GPU");
    eps_here = 1e-2;
    for (size_t world = 2; world <= ranks_at_most() && BITS == 32; world++)
        for (int stage = 1; stage <= 3; stage += 2) {
            if (!test_whole() && (world + (size_t)stage / 2) % 2) continue;
            const Config c = spread(world % 2 ? ODD : FIVE, world, stage, 32);
            const Apart x = apart(&c, 1, 3);
            CHECK(test_within(x.losses, 1e-6) & test_within(x.norms, 1e-5)
                  & test_within(x.weights, 1e-5), "fp32, %zu ranks, stage %d: losses %g, norms %g, "
                  "weights %g", world, stage, x.losses, x.norms, x.weights);
        }
    if (BITS == 32) return;
    const size_t world = ranks_at_most();
    const Config rounded = spread(TIED, world, 2, 16);
    const Apart x = apart(&rounded, 1, 3);
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
    to->rank[ranks.rank].times = {at[1] - at[0], at[2] - at[1], at[4] - at[3]};
    free(inputs);
    free(params);
    model_close(g);
}

// stage 0: on one GPU, without others.
static Times measure(int stage, bool serial) {
    static Times known[4][2];
    if (known[stage][serial].forward > 0) return known[stage][serial];
    const size_t world = stage == 0 ? 1 : 2;
    const Config c = {FIVE, world, stage == 0 ? ALONE : stage, 16, 1, KEEP, 0, 0, 0, NONE, 1, 0, 0,
                      0, 1, 2, 16, 0, 1, serial, 0, 2};
    Shared *x = shared_open(&c);
    run_ranks(&c, x, "virtual clock", rank_measure);
    const Times t = known[stage][serial] = x->rank[0].times;
    shared_close(x);
    return t;
}

// What a collective takes with the weights or gradients of the embeddings, a layer, or the tail.
static double moving(int which) {
    const Lengths x = lengths_of(&shapes[FIVE]);
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

static uint64_t config_hash(int k, size_t steps, char name[300]) {
    char whole[300];
    config_name(&configs[k], whole);
    snprintf(name, 300, "%.299s", whole);
    const Hashes h = run(&configs[k], steps);
    return hash_bytes(&h, sizeof h);
}

int main(int argc, char **argv) {
    wire_chunk = 3000;  // several for a piece
    if (argc >= 3 && strcmp(argv[1], "--config") == 0)
        return run_configs(argc, argv, CONFIGS, some, config_is_here, config_hash);
#ifdef __CUDA_EMU__
    if (argc >= 3 && strcmp(argv[1], "--clock") == 0) {
        RUN(test_reduce_hides);
        RUN(test_gather_hides);
        RUN(test_prefetch);
        return test_summary();
    }
    if (getenv("EMU_PROTECT") == NULL) {  // it takes time; and the cores are for the ranks
        setenv("EMU_PROTECT", "0", 1);
        setenv("EMU_THREADS", "1", 0);
        execv("/proc/self/exe", argv);
        die("/proc/self/exe: %s", strerror(errno));
    }
#endif
    if (IS_BF16) RUN(test_settings_meet);
    RUN(test_same_bits);
    RUN(test_host_keeps_off);
    RUN(test_other_worlds);
    if (IS_BF16) RUN(test_overlap);
    return test_summary();
}
