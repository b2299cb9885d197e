// Checkpoints of one process and of several ranks: the same bytes, wherever the state is and
// however slow, full or dead the disk is.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

// A disk with trouble: every write takes `slow` microseconds. Number `trouble_at` (from 1; 0: none)
// of its writes (w), flushes (f), renames (r) and truncations (t) fails, or kills the process.
enum { POINTS = 4096 };
static char *points;  // shared by all processes: these letters, in their order on the victim
static int trouble_at, trouble_count, slow, writes;
static int victim_pid, trouble_kills;

static int trouble(char what) {
    const int number = __atomic_add_fetch(&trouble_count, 1, __ATOMIC_RELAXED);
    if (getpid() == victim_pid && number < POINTS) points[number - 1] = what;
    if (number != trouble_at) return 0;
    if (trouble_kills) kill(getpid(), SIGKILL);
    errno = EIO;
    return -1;
}
static ssize_t test_pwrite(int fd, const void *bytes, size_t n, off_t at) {
    const int before = writes++;
    if (slow > 0) usleep((unsigned)slow);
    if (n > 8 && before % 3 == 0) n /= 2;  // it may also write less than it was told, or nothing
    if (before % 5 == 2) { errno = EINTR; return -1; }
    return trouble('w') != 0 ? -1 : pwrite(fd, bytes, n, at);
}
static int test_rename(const char *from, const char *to) {
    return trouble('r') != 0 ? -1 : rename(from, to);
}
static int test_ftruncate(int fd, off_t n) { return trouble('t') != 0 ? -1 : ftruncate(fd, n); }
static int test_fsync(int fd) { return fd < 0 ? -1 : trouble('f'); }  // no power is cut here
#define pwrite test_pwrite
#define rename test_rename
#define fsync test_fsync
#define ftruncate test_ftruncate
#define PART_UNIT ((size_t)256)
#include "../../../tide/run/run.h"
#undef pwrite
#undef rename
#undef fsync
#undef ftruncate
#include "../files.h"
#include "../processes.h"
#include "../test.h"
#include "../first_values.h"

static uint32_t random_state = 1;
static size_t random_below(size_t n) {
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

// ---------------------------------------------------------------------------------------------
// A model's state in many places: every piece of it has memory of its own. Of several ranks, each
// has some of the pieces.

enum { PARTS = 3, MAX_PIECES = 400 };

typedef struct {
    GPT2Config c;
    GPT2Table t;
    TrainState state;
    RunState here;
    StateRange pieces[MAX_PIECES];
    float *data[PARTS][MAX_PIECES];
} Model;

static bool replicated;  // rank 0 has everything, the others nothing
static bool in_a_row;    // each rank has one piece

static void move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    const Model *g = (const Model *)owner;
    size_t moved = 0;
    CHECK(n <= PART_UNIT || ranks.rank == 0, "%zu elements at a time", n);
    for (int i = 0; i < g->here.count; i++) {
        const StateRange *s = &g->pieces[i];
        const size_t from = s->at > at ? s->at : at, to = min_size(s->at + s->length, at + n);
        if (from >= to) continue;
        float *here = w + (from - at), *there = g->data[part][i] + (from - s->at);
        memcpy(out ? here : there, out ? there : here, (to - from) * sizeof *w);
        moved += to - from;
    }
    CHECK(moved == n, "%zu of %zu elements are ours", moved, n);
}

static Model *model_new(void) {
    Model *g = (Model *)alloc_or_fail(1, sizeof *g, "model");
    g->c.layers = 2; g->c.heads = 4; g->c.channels = 20; g->c.ffn = 37; g->c.context = 9;
    g->c.vocab = 131;
    g->c.tied = 1;
    gpt2_finish(&g->c, &err);
    g->t = gpt2_table(&g->c);
    snprintf(g->state.options, sizeof g->state.options, "--lr 0.1\n");
    const RunState here = {PARTS, g->pieces, 0, move, g, false, 0};
    g->here = here;
    for (size_t at = 0, n; at < g->t.elements; at += n) {
        n = ALIGN_ELEMENTS * (1 + random_below(12));
        size_t owner = ranks.world == 1 || replicated ? 0 : random_below((size_t)ranks.world);
        if (in_a_row && ranks.world > 1) {
            n = round_up(g->t.elements / (size_t)ranks.world, ALIGN_ELEMENTS);
            owner = at / n;
        }
        n = min_size(n, g->t.elements - at);
        if (owner != (size_t)ranks.rank) continue;
        for (int k = 0; k < PARTS; k++)
            g->data[k][g->here.count] = (float *)alloc_or_fail(n, sizeof(float), "piece");
        g->pieces[g->here.count].at = at;
        g->pieces[g->here.count++].length = n;
    }
    return g;
}

static void model_free(Model *g) {
    for (int k = 0; k < PARTS; k++)
        for (int i = 0; i < MAX_PIECES; i++) free(g->data[k][i]);
    gpt2_table_free(&g->t);
    free(g);
}

static float value_at(int k, size_t at, float seed) {
    return seed + 0.25f * (float)(k + 1) + (float)at;
}

// Fills part k with values that depend on the seed and the place.
static void fill(const Model *g, int k, float seed) {
    for (int i = 0; i < g->here.count; i++)
        for (size_t j = 0; j < g->pieces[i].length; j++)
            g->data[k][i][j] = value_at(k, g->pieces[i].at + j, seed);
}

static void fill_all(const Model *g, float seed) {
    for (int k = 0; k < PARTS; k++) fill(g, k, seed);
}

// What is stored is there; of the parts that were loaded, zeros where it is padded.
static void check_loaded(const Model *g, int parts, float seed) {
    for (int k = 0; k < PARTS; k++)
        for (int p = 0; p < g->here.count; p++)
            for (size_t j = 0; j < g->pieces[p].length; j++) {
                const size_t at = g->pieces[p].at + j;
                const GPT2Tensor *x = &g->t.tensors[gpt2_tensor_at(&g->t, at)];
                const bool inside = at < x->offset + x->rows * x->cols;
                CHECK(g->data[k][p][j] == (inside ? value_at(k, at, seed) : 0)
                      || (!inside && k >= parts), "%s: element %zu of part %d", x->name, at, k);
            }
}

static const StateSave *what(const Model *g, const char *out, size_t step) {
    static StateSave x;
    x.out = out;
    x.table = &g->t;
    x.here = &g->here;
    x.keep = 1;
    x.state = g->state;
    x.state.config = g->c;
    x.state.step = step;
    return &x;
}

static const TextEnds ends = {-1, 50};

static bool save_at_once(const Model *g, const char *out, size_t step) {
    return state_save(what(g, out, step), &err)
        && model_save(out, &g->c, &g->t, &g->here, false, ends, NULL, &err);
}

static size_t newest(const char *out) {  // the step of the newest whole checkpoint, or 0
    TrainState s;
    char dir[PATH_MAX];
    if (!state_find(out, SIZE_MAX, &s, dir, &err)) return 0;
    train_state_free(&s);
    return s.step;
}

// ---------------------------------------------------------------------------------------------
// Several ranks: processes of this program

enum { MAX_WORLD = 4 };
static int codes[MAX_WORLD];  // of the last ones
static uint32_t ranks_seed;   // of what each of them has

// Runs body() on so many ranks, with the same random numbers. Returns the code that all of them
// end with, or -1.
static int on_ranks(int world, int (*body)(void)) {
    static const char *const logs[MAX_WORLD] = {"rank0", "rank1", "rank2", "rank3"};
    pid_t children[MAX_WORLD];
    const int port = free_port();
    int same = 0;
    random_state = ranks_seed;
    for (int i = 0; i < world; i++) {
        if ((children[i] = fork_rank(i, world, port, 60)) != 0) continue;
        ranks_open();
        if (freopen(in_base(logs[i]), "w", stdout) == NULL) fail("%s", logs[i]);
        dup2(1, 2);
        test_failures_here = 0;
        const int code = body();
        fflush(stdout);
        ranks_close();
        _exit(test_failures_here > 0 ? 99 : code);
    }
    for (int i = 0; i < world; i++) {
        size_t size;
        codes[i] = code_of(children[i]);
        CHECK(codes[i] != 99 && codes[i] != 128 + SIGALRM, "rank %d of %d: %d", i, world, codes[i]);
        char *said = codes[i] == 99 ? file_read(in_base(logs[i]), &size, &err) : NULL;
        if (said != NULL) printf("%.*s", (int)size, said);
        free(said);
        if (codes[i] != codes[0]) same = -1;
    }
    return same == 0 ? codes[0] : same;
}

static Run *ranks_run(const Model *g, const char *out) {
    static Run r;
    memset(&r, 0, sizeof r);
    r.o.out = out;
    r.config = g->c;
    r.table = g->t;
    r.step_sequences = 6;
    r.state = g->state;
    return &r;
}

// Saves it after `step` steps.
static void ranks_save(Run *r, size_t step, bool state, const Model *g) {
    r->saves = g->here;
    run_write(r, step, state && step != r->state.step);
}

static struct {
    const char *out;
    int slow;
    bool replicated, in_a_row;
} job;

static Model *job_model(void) {
    replicated = job.replicated;
    in_a_row = job.in_a_row;
    Model *g = model_new();
    static char more[] = "optimizer a\nb 1\n";
    g->state.text = more;
    return g;
}

// Three steps.
static int save_three(void) {
    Model *g = job_model();
    Run *r = ranks_run(g, job.out);
    slow = ranks.rank == 1 ? job.slow : 0;
    for (size_t step = 1; step <= 3; step++) {
        fill_all(g, (float)step);
        ranks_save(r, step, true, g);
        CHECK(newest(job.out) == step && r->state.step == step, "%s", err.text);
    }
    fill_all(g, ranks.world == 1 || replicated ? 3 : 50);  // 50: nobody saves this
    ranks_save(r, 3, true, g);
    CHECK(newest(job.out) == 3, "%s", err.text);
    return 0;
}

// A run that is resumed after its last step, and leaves its weights.
static int load_and_save(void) {
    Model *g = job_model();
    Run *r = ranks_run(g, job.out);
    r->o.resume = true;
    r->o.model = "nano";
    r->state.text = NULL;
    fill_all(g, -1);
    CHECK(state_find(ranks.rank == 0 ? job.out : "no/such", SIZE_MAX, &r->state, r->resume_from,
                     &err), "%s", err.text);
    CHECK(r->state.step == 3 && r->state.data_position == 18
          && strstr(r->state.text, g->state.text) != NULL
          && strcmp(r->state.options, g->state.options) == 0, "step %zu", r->state.step);
    run_load(r, &g->here);
    check_loaded(g, PARTS, 3);
    ranks_save(r, 3, false, g);
    fill_all(g, -1);
    model_load(job.out, &g->c, &g->t, &g->here);
    for (int k = 1; k < PARTS; k++) fill(g, k, 3);
    check_loaded(g, 1, 3);
    return 0;
}

static void check_same_files(const char *a, const char *b, size_t last) {
    char from[PATH_MAX], to[PATH_MAX], name[80];
    for (size_t i = 0; i < 2 * last + 2; i++) {
        if (i >= 2 * last) snprintf(name, sizeof name, i % 2 ? "config.json" : "model.safetensors");
        else snprintf(name, sizeof name, "checkpoints/step_%08zu/state.%s", i / 2 + 1,
                      i % 2 ? "txt" : "safetensors");
        path_join(from, a, name);
        path_join(to, b, name);
        CHECK(same_file(from, to), "%s differs", to);
    }
    path_join(to, b, "checkpoints");
    CHECK(entries_in(b) == 3 && entries_in(to) == (int)last, "something else is there");
}

// Whatever each of so many ranks has, they write what one process writes, and any other number of
// them reads it.
static void test_ranks_same_bytes(void) {
    char *one = in_base("one"), *many = in_base("many");
    for (int i = 0; i < 5; i++)
        for (int world = 1; world <= MAX_WORLD; world++) {
            if (i % 4 > 0 && world == 1) continue;
            job.out = world == 1 ? one : many;
            ranks_seed++;
            job.slow = i == 0 ? 100 : 0;
            job.in_a_row = i == 3;
            job.replicated = i == 4;
            remove_tree(job.out);
            CHECK(on_ranks(world, save_three) == 0, "%d ranks, case %d", world, i);
            check_same_files(one, job.out, 3);
            if (job.replicated) continue;
            job.in_a_row = false;
            ranks_seed++;
            char weights[PATH_MAX];
            path_join(weights, job.out, "model.safetensors");
            unlink(weights);
            CHECK(on_ranks(1 + (world + i) % MAX_WORLD, load_and_save) == 0, "%d ranks", world);
            check_same_files(one, job.out, 3);
        }
    Model *g = model_new();  // and that is right
    TrainState state;
    char dir[PATH_MAX];
    CHECK(state_find(one, SIZE_MAX, &state, dir, &err)
          && state_load(dir, &state, &g->t, &g->here, &err), "%s", err.text);
    check_loaded(g, PARTS, 3);
    train_state_free(&state);
    model_free(g);
}

// First values: the same as of one process.
static int load_first(void) {
    Model *g = job_model();
    Run *r = ranks_run(g, job.out);
    float *whole = (float *)alloc_or_fail(g->t.elements, sizeof(float), "model");
    r->state.text = NULL;
    r->o.seed = 5;
    gpt2_init(&g->t, whole, 5);
    fill_all(g, -1);
    run_load(r, &g->here);
    for (int i = 0; i < g->here.count; i++) {
        const StateRange *s = &g->pieces[i];
        CHECK(memcmp(g->data[0][i], whole + s->at, s->length * sizeof(float)) == 0, "%zu", s->at);
    }
    return 0;
}

static void test_ranks_first_values(void) {
    memset(&job, 0, sizeof job);
    for (int world = 1; world <= MAX_WORLD; world++) {
        ranks_seed++;
        job.out = in_base("first");
        CHECK(on_ranks(world, load_first) == 0, "%d ranks", world);
    }
}

// Step 2 and its model, while one rank is in trouble: number `at` of its writes, flushes, renames
// and truncations fails, or kills it; or files can only be `at` bytes long. Every rank comes to the
// same end. 1: saved, 0: the reason is said, 2: it is not.
typedef enum { NONE, FAILS, KILLS, FULL } Kind;
static struct { int world, rank, at; Kind kind; } victim;

static int save_in_trouble(void) {
    Model *g = job_model();
    const StateSave *s = what(g, job.out, 2);
    char by[32];
    fill_all(g, 2);
    writes = trouble_count = 0;
    if (ranks.rank == victim.rank) {
        victim_pid = getpid();
        trouble_kills = victim.kind == KILLS;
        trouble_at = victim.kind == FULL ? 0 : victim.at;
        if (victim.kind == FULL) limit_file_size((size_t)victim.at);
    }
    bool ok = state_save(s, &err);
    const bool model = ok && (ranks.rank > 0 || state_model(s, 2, s->out, false, ends, NULL, &err));
    if (ok) ok = state_agree(model, &err);
    limit_file_size(0);
    snprintf(by, sizeof by, "(rank %d)", victim.rank);
    const char *reason = victim.kind == FULL ? "File too large" : "Input/output error";
    return ok ? 1 : strstr(err.text, reason) != NULL
        && (ranks.world == 1 || strstr(err.text, by) != NULL) ? 0 : 2;
}

// Whatever fails, there is a whole checkpoint, and nothing that looks like one and is not; a whole
// model; nothing is left over, unless by who was killed; and the next save works.
static void try_trouble(Model *g, Kind kind, int at) {
    char *out = in_base("in_trouble"), *all = in_base("in_trouble/checkpoints");
    char *made = in_base("in_trouble/checkpoints/tmp_00000002");
    SafeTensors st;
    remove_tree(out);
    fill_all(g, 1);
    CHECK(save_at_once(g, out, 1), "%s", err.text);
    memset(&job, 0, sizeof job);
    memset(points, 0, POINTS);
    job.out = out;
    victim.kind = kind;
    victim.at = at;
    const int code = on_ranks(victim.world, save_in_trouble);
    const size_t found = newest(out);
    if (kind == KILLS) CHECK(codes[victim.rank] == 128 + SIGKILL, "%d at %d", code, at);
    else CHECK(code == (kind == NONE), "kind %d at %d: %d", kind, at, code);
    CHECK(found == 1 || found == 2, "step %zu", found);
    CHECK((found == 2) == path_exists(in_base("in_trouble/checkpoints/step_00000002")), "damaged");
    CHECK(safetensors_open(&st, in_base("in_trouble/model.safetensors"), &err), "%s", err.text);
    safetensors_close(&st);
    CHECK(kind == KILLS || (entries_in(out) == 3 && !path_exists(made)), "left over");
    CHECK(save_at_once(g, out, 3) && newest(out) == 3 && entries_in(all) == 1, "the next save");
    CHECK(entries_in(out) == 3, "still left over");
}

static void test_ranks_trouble(void) {
    static const struct { int world, rank; } rounds[] = {{1, 0}, {1, 0}, {2, 0}, {3, 0}, {2, 1},
                                                         {3, 2}};
    Model *g = model_new();
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        char all[POINTS], *without = all;
        int count = 0, writes = 0;
        victim.world = rounds[i].world;
        victim.rank = rounds[i].rank;
        ranks_seed = 40 + (uint32_t)i;
        try_trouble(g, NONE, 0);
        for (; points[count] != '\0'; count++) {
            if (points[count] == 'w') writes++;
            else *without++ = points[count];
        }
        *without = '\0';
        // A rename follows each flush: the checkpoint's files, its directories, the weights.
        CHECK(strcmp(all, victim.rank > 0 ? "f" : "tfrfrfrf" "tfrfrf") == 0, "%s", all);
        CHECK(writes > 10, "only %d", writes);
        memcpy(all, points, POINTS);
        for (int at = 1; at <= count; at++)
            if (all[at - 1] != 'w' || at % (count / 3) == 2)
                try_trouble(g, (at + i) % 2 == 0 ? FAILS : KILLS, at);
        for (int limit = 1; limit < 10000 && i % 2 == 0; limit *= 5000) try_trouble(g, FULL, limit);
    }
    model_free(g);
}

// What nobody has is missed.
static int save_less(void) {
    Model *g = job_model();
    if (ranks.rank == 1) g->here.count--;
    fill_all(g, 2);
    CHECK(!state_save(what(g, job.out, 9), &err)
          && strstr(err.text, "bytes were written") != NULL, "%s", err.text);
    CHECK(newest(job.out) == 0, "half a checkpoint");
    return 0;
}

// Two nodes, each with a directory of its own.
static int save_apart(void) {
    Model *g = job_model();
    char dir[PATH_MAX];
    TrainState s;
    CHECK(chdir(in_base(ranks.rank == 0 ? "node0" : "node1")) == 0, "chdir");
    CHECK(entries_in("out") == 1, "something is left");
    CHECK(!state_save(what(g, "out", 9), &err)
          && strstr(err.text, "cannot write out/checkpoints") != NULL
          && strstr(err.text, "(rank 1)") != NULL, "%s", err.text);
    CHECK(entries_in("out/checkpoints") == 1, "something is left");
    memset(&s, 0xff, sizeof s);
    CHECK(!state_find("out", SIZE_MAX, &s, dir, &err) && s.text == NULL
          && strstr(err.text, "state.txt: No such file") != NULL, "%s", err.text);
    return 0;
}

static void test_ranks_apart(void) {
    memset(&job, 0, sizeof job);
    Model *g = model_new();
    char *out[2] = {in_base("node0/out"), in_base("node1/out")};
    for (int i = 0; i < 2; i++) {
        fill_all(g, (float)i);
        CHECK(save_at_once(g, out[i], 3), "%s", err.text);
        for (int k = 0; k < 2; k++) {
            char name[PATH_MAX];
            path_join(name, out[i], k == 0 ? "model.safetensors" : "config.json");
            unlink(name);
        }
    }
    remove_tree(in_base("node1/out/checkpoints/step_00000003"));
    make_directories(in_base("node1/out/checkpoints/step_00000003"));
    CHECK(on_ranks(2, save_apart) == 0, "no checkpoint");
    job.out = in_base("less");
    CHECK(on_ranks(3, save_less) == 0, "a part is missing");
    model_free(g);
}


int main(void) {
    base_new("checkpoint");
    points = (char *)mmap(NULL, POINTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RUN(test_ranks_same_bytes);
    RUN(test_ranks_first_values);
    RUN(test_ranks_trouble);
    RUN(test_ranks_apart);
    remove_tree(base);
    return test_summary();
}
