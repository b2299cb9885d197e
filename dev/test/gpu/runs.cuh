// runs.cuh: the table of training runs and the loop over its rows. A row is what a user would type,
// with a shape's name and words for what a plan decides ("five --offload zero places=9"). Training
// leaves the bits of the same row with everything on the GPU, also after a stop and a resume as
// another row. A program adds its own checks of a model that is open and of one that has trained.
#ifndef TIDE_RUNS_CUH
#define TIDE_RUNS_CUH
#include "model_harness.cuh"
#include <sys/mman.h>
#include <sys/prctl.h>

// ---------------------------------------------------------------------------------------------
// Rows

enum { ROW_TEXT = 400, MOST_ROWS = 120, MOST_SETTINGS = 24, MOST_VALUES = 10, FIRST_ROWS = 12 };

typedef struct {
    char text[ROW_TEXT];
    Options o;
    const Shape *shape;
    int ranks;                         // 0: one, without zero.cuh
    int places, tight, ring, early;    // see Placement
    int streamed;                      // layers whose weights live on the host
    int sizes, evaluates;              // every second step has a smaller batch; each is evaluated
} Config;

static const struct { const char *name; size_t at; } row_words[] = {
    {"ranks", offsetof(Config, ranks)}, {"places", offsetof(Config, places)},
    {"tight", offsetof(Config, tight)}, {"streamed", offsetof(Config, streamed)},
    {"ring", offsetof(Config, ring)}, {"early", offsetof(Config, early)},
    {"sizes", offsetof(Config, sizes)}, {"evaluates", offsetof(Config, evaluates)}};

static const Shape *row_shapes;  // of this program; the last has no name
static struct { int count, drawn; Config row[MOST_ROWS]; } rows;  // those drawn are the first

// Reads a row: "NAME" or "NAME=N" is a word or a shape, all else is for the options' parser.
__attribute__((format(printf, 1, 2)))
static Config config_of(const char *format, ...) {
    Config c;
    char words[ROW_TEXT], data[] = "--data", none[] = "none", *argv[64] = {data, data, none};
    int argc = 3;
    va_list list;
    memset(&c, 0, sizeof c);
    va_start(list, format);
    vsnprintf(c.text, sizeof c.text, format, list);
    va_end(list);
    c.places = c.ring = 2;
    memcpy(words, c.text, sizeof words);
    for (char *w = strtok(words, " "); w != NULL; w = strtok(NULL, " ")) {
        bool known = false;
        for (const Shape *s = row_shapes; s->name != NULL; s++)
            if (strcmp(w, s->name) == 0) c.shape = s, known = true;
        for (const auto &word : row_words) {
            const size_t n = strlen(word.name);
            if (strncmp(w, word.name, n) != 0 || (w[n] != '\0' && w[n] != '=')) continue;
            *(int *)((char *)&c + word.at) = w[n] == '=' ? atoi(w + n + 1) : 1;
            known = true;
        }
        if (!known) argv[argc++] = w;
    }
    Options *o = &c.o;
    options_parse(o, argc, argv, true);
    o->data = NULL;
    if (c.shape == NULL) die("a row without a shape: %s", c.text);
    if (o->offload == OFFLOAD_AUTO) o->offload = OFFLOAD_NONE;
    if (o->recompute == RECOMPUTE_AUTO) o->recompute = KEEP;
    if (o->resident < 0) o->resident = o->offload == OFFLOAD_NONE;
    if (o->share < 0) o->share = 0;
    if (o->slots == 0) o->slots = 2;
    if (!option_given(o, "threads")) o->threads = 1;
    return c;
}

static void row_add(const char *text) {
    if (rows.count == MOST_ROWS) die("more than %d rows", MOST_ROWS);
    rows.row[rows.count++] = config_of("%s", text);
}

static bool met[MOST_SETTINGS][MOST_VALUES][MOST_SETTINGS][MOST_VALUES];  // of any two settings

// Returns the value, of n, of setting i that meets most of a row's others anew; of several, any.
static int value_that_meets(const int *row, int count, int i, int n) {
    const int from = (int)(philox4x32(1, (uint32_t)rows.count, (uint32_t)i, 0, 0).x[0] >> 8);
    int most = -1, best = 0;
    for (int turn = 0; turn < n; turn++) {
        const int v = (from + turn) % n;
        int fresh = 0;
        for (int j = 0; j < count; j++) fresh += row[j] >= 0 && !met[i][v][j][row[j]];
        if (fresh > most) most = fresh, best = v;
    }
    return best;
}

// Adds rows in which any two values of the settings meet: "a|b|" are two values, and none. Each
// begins with two that have not met.
static void rows_draw(const char *const *settings, int count) {
    static char value[MOST_SETTINGS][MOST_VALUES][64];
    int n[MOST_SETTINGS] = {0}, row[MOST_SETTINGS];
    for (int a = 0; a < count; a++)
        for (const char *s = settings[a]; s != NULL; s = strchr(s, '|')) {
            s += n[a] > 0;
            snprintf(value[a][n[a]++], 64, "%.*s", (int)strcspn(s, "|"), s);
        }
    for (int a = 0; a < count; a++)
        for (int b = a + 1; b < count; b++)
            for (int pair = 0; pair < n[a] * n[b]; pair++) {
                char text[ROW_TEXT] = "";
                size_t end = 0;
                if (met[a][pair / n[b]][b][pair % n[b]]) continue;
                for (int i = 0; i < count; i++) row[i] = -1;
                row[a] = pair / n[b];
                row[b] = pair % n[b];
                for (int i = 0; i < count; i++) {
                    if (row[i] < 0) row[i] = value_that_meets(row, count, i, n[i]);
                    const char *v = value[i][row[i]];
                    end += (size_t)snprintf(text + end, sizeof text - end, "%s%s",
                                            end > 0 && v[0] != '\0' ? " " : "", v);
                }
                for (int i = 0; i < count; i++)
                    for (int j = 0; j < count; j++) met[i][row[i]][j][row[j]] = true;
                row_add(text);
            }
    rows.drawn = rows.count;
}

// What a user may say of AdamW's step, whose state is somewhere; or, `or_none`, also on the GPU.
#define PLACEMENTS(or_none) \
    "--precision bf16|--precision fp32", "|--accum 3", "|--recompute block", \
    "--clip 0.05|--clip 1e6|--clip 0", "|sizes", "|evaluates", \
    "--offload zero|--offload twinflow --resident 0.3|--offload twinflow --resident 0.9" \
        "|--offload interleave --stride 1 --resident 0.3|--offload interleave --stride 2" \
        "|--offload interleave --share 0.3 --resident 0.9|--offload interleave --share 0.5" \
        "|--offload interleave --share 1 --resident 0.3" or_none, \
    "|--subgroup 4096|--subgroup 8192|--subgroup 20000", "--slots 2|--slots 1|--slots 3", \
    "|places=3|places=9", "|--grad-wire fp32", "|tight=1|tight=2", "|--threads 2", "|--no-overlap"

static Shape config_shape(const Config *c) {
    Shape s = *c->shape;
    s.accum = c->o.accum;
    s.recompute = c->o.recompute;
    return s;
}

static Placement config_placement(const Config *c) {
    const Options *o = &c->o;
    Placement p;
    memset(&p, 0, sizeof p);
    p.choice.mode = o->offload;
    p.choice.resident = o->resident;
    p.choice.stride = o->stride;
    p.choice.share = o->share;
    p.choice.subgroup = o->subgroup;
    p.choice.slots = (int)o->slots;
    p.choice.grad_rooms = c->places;
    p.choice.wire_f32 = o->grad_wire == WIRE_FP32;
    p.choice.streamed = c->streamed;
    p.choice.weight_rooms = c->ring;
    p.choice.early = c->early;
    p.tight = c->tight;
    p.threads = (int)o->threads;
    p.serial = o->no_overlap;
    return p;
}

// Row k is for the program of its precision; fp16's takes two of three of bf16's.
static bool row_is_here(int k) {
    const int precision = rows.row[k].o.precision;
    return precision == PRECISION || (IS_FP16 && precision == PRECISION_BF16 && k % 3 != 2);
}

// Of those that are drawn, the first ones cover most of what there is: enough for `make test`.
static bool row_is_one_of_some(int k) { return k < FIRST_ROWS || k >= rows.drawn; }

static bool row_is_tested(int k) {
    return row_is_here(k) && (test_whole() || row_is_one_of_some(k));
}

// The same with everything on the GPU and all activations kept, in ZeRO's stage 1 if there are
// several ranks. An evaluation, of which no bit may depend, follows each step.
static Config reference(const Config *c) {
    Config r = config_of("%s", c->shape->name);
    r.ranks = c->ranks > 1 ? c->ranks : 0;
    r.o.zero = 1;
    r.o.accum = c->o.accum;
    r.o.clip = c->o.clip;
    r.o.moments = c->o.moments;
    r.o.threads = c->o.threads;
    r.sizes = c->sizes;
    r.evaluates = 1;
    snprintf(r.text, sizeof r.text, "reference of %.380s", c->text);
    return r;
}

// The training of c, in the place of another row.
static Config elsewhere(const Config *c, const Config *other) {
    Config r = *other;
    r.shape = c->shape;
    r.ranks = c->ranks;
    r.o.accum = c->o.accum;
    r.o.clip = c->o.clip;
    r.o.moments = c->o.moments;
    r.sizes = c->sizes;
    r.evaluates = c->evaluates;
    return r;
}

// ---------------------------------------------------------------------------------------------
// Ranks: processes that are forked here, and leave what they have to say in shared memory

enum { MOST_RANKS = 4, MOST_STEPS = 20 };

typedef struct {
    uint64_t numbers, evaluations, weights;  // hashes: of losses and norms, .., of all weights
    double of_step[MOST_STEPS][2];           // loss and norm
    size_t elements[3];                      // of the state, by part
    int failures;
    double times[3];                         // what a test on the virtual clock has measured
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
    const GPT2Config config = shape_config(c->shape);
    GPT2Table t = gpt2_table(&config);
    const size_t P = t.elements;
    gpt2_table_free(&t);
    void *p = mmap(NULL, shared_bytes(P), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    if (p == MAP_FAILED) die("mmap: %s", strerror(errno));
    Shared *x = (Shared *)p;
    x->P = P;
    return x;
}

static void shared_close(Shared *x) { munmap(x, shared_bytes(x->P)); }

static size_t ranks_of(const Config *c) { return c->ranks > 1 ? (size_t)c->ranks : 1; }

static bool rows_fork;  // for each run, as several ranks must: this process never uses the GPU

// Runs rank_train() as so many ranks, and counts what each of them checked in vain.
static void run_ranks(const Config *c, Shared *x, void (*rank_train)(const Config *, Shared *)) {
    pid_t child[MOST_RANKS];
    const int port = rows_fork ? free_port() : 0;
    fflush(stdout);
    if (!rows_fork) rank_train(c, x);
    for (size_t r = 0; rows_fork && r < ranks_of(c); r++) {
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
        if (c->ranks > 1) launched_as(r, (size_t)c->ranks, port);
        ranks_open();
        dup2(out, STDOUT_FILENO);
        rank_train(c, x);
        x->rank[r].failures = test_failures_here;
        fflush(stdout);
        ranks_close();
        _exit(0);
    }
    for (size_t r = 0; rows_fork && r < ranks_of(c); r++) {
        int status;
        waitpid(child[r], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %zu: status %d: %s", r, status,
              c->text);
        CHECK(x->rank[r].failures == 0, "rank %zu found %d: %s", r, x->rank[r].failures, c->text);
    }
}

// Returns how many ranks can be run: NCCL wants a GPU for each. The first caller forks.
static int ranks_at_most(void) {
#ifdef __CUDA_EMU__
    return MOST_RANKS;
#else
    static int devices;
    if (!rows_fork) return 1;
    if (devices > 0) return devices < MOST_RANKS ? devices : MOST_RANKS;
    const pid_t child = fork();
    if (child == 0) _exit(cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0);
    int status;
    waitpid(child, &status, 0);
    devices = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return devices < MOST_RANKS ? devices : MOST_RANKS;
#endif
}

// ---------------------------------------------------------------------------------------------
// What a rank does

// A model of one rank of several, of which nothing is settled.
static GPT2 *rank_new(const Config *c, const Shape *s, const Placement *where) {
    GPT2 *g = model_new(s, where);
    Run r;
    if (c->ranks == 0) return g;
    memset(&r, 0, sizeof r);
    r.training = true;
    r.world = (size_t)c->ranks;
    r.rank = (size_t)ranks.rank;
    r.table = g->table;
    r.o.zero = c->o.zero;
    r.o.given[option_find("zero", 4)] = true;
    r.o.precision = PRECISION;
    g->zero = zero_open(&r);
    free(g->shards.shards);
    g->shards = zero_shards(&g->table, r.world, r.rank, g->zero->rows);
    return g;
}

// Brings everything that training leaves to where the other ranks' is. The hash of all weights, as
// forward uses them, is the report's, where a rank has them all.
static void bring(GPT2 *g, const Config *c, Shared *to) {
    Report *report = &to->rank[ranks.rank];
    const RunState state = gpt2_state(g);
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    for (int k = 0; k < 3; k++) {
        report->elements[k] = 0;
        for (int i = 0; i < state.count; i++) {
            const StateRange *s = &state.ranges[i];
            report->elements[k] += s->length;
            gpt2_move(g, k, s->at, s->length, arena(to, k) + s->at, true);
        }
    }
    for (int i = 0; i < g->pieces.count; i++) {  // as they are stored: masters, rounded
        const Piece *p = &g->pieces.pieces[i];
        const size_t at = arena_at(g, p);
        float *w = arena(to, 3) + at;
        size_t wrong = 0;
        floats_move((floatX *)p->params, w, p->length, true);
        for (size_t j = 0; j < p->length; j++) {
            const float master = arena(to, 0)[at + j];
            wrong += w[j] != (IS_HALF ? half_to_f32(master_weight(master)) : master);
        }
        CHECK(wrong == 0, "rank %d: %zu weights of piece %d are not the masters: %s", ranks.rank,
              wrong, i, c->text);
    }
    if (g->zero != NULL && c->o.zero == 3) return;
    floatX *whole = ALLOC(floatX, to->P, "test");
    weights_whole(g, whole);
    report->weights = hash_bytes(whole, to->P * sizeof(floatX));
    free(whole);
}

static size_t first_step, last_step;  // that rank_train() makes
static double eps_here = 1e-8;
static void (*row_opened)(GPT2 *g, const Config *c);  // the program's own checks
static void (*row_trained)(GPT2 *g, const Config *c, size_t steps);

// Trains as train() does, from the first weights or from what other ranks have left, and brings
// what it leaves. In step 2 one rank gets a signal, and another's checkpoint is due: all must know.
static void rank_train(const Config *c, Shared *to) {
    const Shape s = config_shape(c);
    const Placement where = config_placement(c);
    const Recipe recipe = {1e-2, eps_here, c->o.clip, 0.1, c->sizes != 0};
    const bool begins = first_step == 1;
    Report *report = &to->rank[ranks.rank];
    moments_bf16 = c->o.moments == MOMENTS_BF16;
    float *params = shape_params(&s, false);
    const size_t before = free_memory();
    GPT2 *g = rank_new(c, &s, &where);
    model_begin(g, &s, params, &where);
    const size_t allocated = before - free_memory();
    check_memory(g, c->text, allocated);
    row_opened(g, c);
    const RunState state = gpt2_state(g);
    for (int i = 0; i < 3 * state.count && !begins; i++) {
        const StateRange *x = &state.ranges[i / 3];
        gpt2_move(g, i % 3, x->at, x->length, arena(to, i % 3) + x->at, false);
    }
    if (!begins) weights_renew(g);
    for (size_t step = first_step; step <= last_step; step++) {
        if (step == 2 && ranks.rank == ranks.world - 1 && g->zero != NULL) stop_requested = 15;
        run_save_due = step == 2 && ranks.rank == 0 ? 0 : INFINITY;
        report->numbers = train_steps(g, &s, &recipe, step, step, report->numbers,
                                      c->evaluates ? &report->evaluations : NULL,
                                      report->of_step[(step - 1) % MOST_STEPS]);
        if (g->zero != NULL && begins)
            CHECK(run_news[NEWS_SIGNAL] == (step >= 2 ? 15 : 0)
                  && stop_requested == (int)run_news[NEWS_SIGNAL]
                  && run_news[NEWS_DUE] == (step == 2), "rank %d, step %zu: signal %d, due %g: %s",
                  ranks.rank, step, stop_requested, run_news[NEWS_DUE], c->text);
    }
    if (begins) row_trained(g, c, last_step);
    bring(g, c, to);
#ifdef __CUDA_EMU__
    CHECK(before - free_memory() == allocated, "%s: training allocates", c->text);
#endif
    model_close(g);
#ifdef __CUDA_EMU__
    CHECK(before == free_memory(), "%s: %zu bytes are not freed", c->text, before - free_memory());
#endif
    free(params);
    moments_bf16 = false;
}

// ---------------------------------------------------------------------------------------------
// The loop

typedef struct { uint64_t training, evaluations; } Hashes;

// Trains from step `first` to `last`, and returns hashes of all that ranks have left in *x so far.
static Hashes train_ranks(const Config *c, size_t first, size_t last, Shared *x) {
    first_step = first;
    last_step = last;
    if (first == 1) memset(x->arena, 0xff, 4 * x->P * sizeof(float));  // NaNs: nobody brings them
    run_ranks(c, x, rank_train);
    Hashes h = {x->rank[0].numbers, x->rank[0].evaluations};
    for (int k = 0; k < 4; k++) {
        size_t elements = 0, nobodys = 0;
        for (size_t r = 0; r < ranks_of(c) && k < 3; r++) elements += x->rank[r].elements[k];
        for (size_t i = 0; i < x->P; i++) nobodys += isnan(arena(x, k)[i]);
        CHECK((elements == x->P || k == 3) && nobodys == 0, "part %d: %zu elements of %zu, %zu are "
              "nobody's: %s", k, elements, x->P, nobodys, c->text);
        h.training = hash_with(h.training, arena(x, k), x->P * sizeof(float));
    }
    for (size_t r = 0; r < ranks_of(c); r++) {
        const Report *report = &x->rank[r];
        CHECK(report->numbers == x->rank[0].numbers, "losses, norms: rank %zu: %s", r, c->text);
        CHECK(report->evaluations == h.evaluations, "evaluations: rank %zu: %s", r, c->text);
        CHECK(report->weights == x->rank[0].weights, "weights: rank %zu: %s", r, c->text);
    }
    return h;
}

static void check_row(const Config *c, size_t first, size_t last, const Config *now, Shared *x) {
    const Config plain = reference(c);
    Shared *y = shared_open(c);
    const Hashes wanted = train_ranks(&plain, 1, last, y), h = train_ranks(now, first, last, x);
    CHECK(h.training == wanted.training, "steps %zu to %zu: %s%s%s", first, last, now->text,
          first > 1 ? ", resumed of " : "", first > 1 ? c->text : "");
    CHECK(!c->evaluates || h.evaluations == wanted.evaluations, "evaluations: %s", now->text);
    shared_close(y);
}

// Every row is held against its reference; every sixth, or second, then goes on as another row.
static void test_same_bits(void) {
    size_t done = 0;
    for (int k = 0; k < rows.count; k++) {
        const Config *c = &rows.row[k];
        if (!row_is_tested(k) || c->ranks > ranks_at_most()) continue;
        const size_t steps = c->ranks > 0 ? 3 : 2;
        Shared *x = shared_open(c);
        check_row(c, 1, steps, c, x);
        const Config other = elsewhere(c, &rows.row[(k + 11) % rows.count]);
        if (k % (test_whole() ? 2 : 6) == 0) check_row(c, steps + 1, 2 * steps, &other, x);
        shared_close(x);
        done++;
    }
    if (done == 0) SKIP("no GPU");
}

// For test_schedules.sh: "--config all|some|K [STEPS]" prints the hash of each row that is for this
// program.
static int rows_print(int argc, char **argv) {
    const bool all = strcmp(argv[2], "all") == 0, some = strcmp(argv[2], "some") == 0;
    const int only = atoi(argv[2]);
    if (only < 0 || only >= rows.count) die("there are %d rows", rows.count);
    if (!all && !some && !row_is_here(only)) die("row %d is of another precision", only);
    for (int k = 0; k < rows.count; k++) {
        if (!row_is_here(k) || (!all && !(some ? row_is_one_of_some(k) : k == only))) continue;
        Shared *x = shared_open(&rows.row[k]);
        const Hashes h = train_ranks(&rows.row[k], 1, argc > 3 ? (size_t)atoi(argv[3]) : 4, x);
        printf("%016llx config %d: %s\n", (unsigned long long)hash_bytes(&h, sizeof h), k,
               rows.row[k].text);
        fflush(stdout);
        shared_close(x);
    }
    return test_failures_here > 0;
}
#endif
