// Training state on disk, of one process and of several ranks: the same bytes, wherever the state is
// and however slow, full or dead the disk is; and damage of every kind.
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
#include "../dies.h"
#include "../files.h"
#include "../processes.h"
#include "../test.h"
#include "../families.h"
#include "../first_values.h"

// ---------------------------------------------------------------------------------------------
// A model's state in many pieces, of which each of several ranks has some.

enum { PARTS = 3, MAX_PIECES = 400 };

typedef struct {
    GPT2Config c;
    GPT2Table t;
    TrainState state;
    RunState here;
    StateRange pieces[MAX_PIECES];
    float *arenas[PARTS];
} Model;

static struct {  // of all ranks
    const char *out;
    int family, slow;
    bool replicated;  // rank 0 has everything, the others nothing
} task;

static Model *model_of(const GPT2Config *c) {
    Model *g = (Model *)alloc_or_fail(1, sizeof *g, "model");
    g->c = g->state.config = *c;
    g->t = gpt2_table(&g->c);
    snprintf(g->state.options, sizeof g->state.options,
             "--lr 1e-3\n--name \xe9 \\nseal 7\n--none\n");
    const RunState here = {PARTS, g->pieces, 0, state_move, g->arenas, false, INFINITY};
    g->here = here;
    for (int k = 0; k < PARTS; k++) g->arenas[k] = ALLOC(float, g->t.elements, "arena");
    for (size_t at = 0, n; at < g->t.elements; at += n) {
        n = min_size(ALIGN_ELEMENTS * (1 + (size_t)rand() % 12), g->t.elements - at);
        const int owner = rand() % ranks.world * !task.replicated;
        if (owner == ranks.rank) g->pieces[g->here.count++] = (StateRange){at, n};
        if (at == 0)  // an empty one, before others
            g->pieces[g->here.count++] = (StateRange){g->t.elements / 2, 0};
    }
    return g;
}

// A model of one layer, so that every bit of its file gets its turn.
static Model *small_model(void) {
    GPT2Config c = {.layers = 1, .heads = 2, .channels = 4, .ffn = 5, .context = 3, .vocab = 7,
                    .tied = 1};
    gpt2_finish(&c, &err);
    return model_of(&c);
}

static void model_free(Model *g) {
    for (int k = 0; k < PARTS; k++) free(g->arenas[k]);
    free(g->t.tensors);
    free(g);
}

static float value_at(int k, size_t at, float seed) {
    static const float special[4] = {NAN, -0.0f, 1e-42f, INFINITY};
    return k == 1 && at < 4 ? special[at] : seed + 0.25f * (float)(k + 1) + (float)at;
}

// Fills part k with values that depend on the seed and the place.
static void fill(const Model *g, int k, float seed) {
    for (const StateRange *s = g->pieces; s < g->pieces + g->here.count; s++)
        for (size_t at = s->at; at < s->at + s->length; at++)
            g->arenas[k][at] = value_at(k, at, seed);
}

static void fill_all(const Model *g, float seed) {
    for (int k = 0; k < PARTS; k++) fill(g, k, seed);
}

// What is stored is there; of the parts that were loaded, zeros where it is padded.
static void check_loaded(const Model *g, int parts, float seed) {
    for (int k = 0; k < PARTS; k++)
        for (const StateRange *s = g->pieces; s < g->pieces + g->here.count; s++)
            for (size_t at = s->at; at < s->at + s->length; at++) {
                const GPT2Tensor *x = &g->t.tensors[gpt2_tensor_at(&g->t, at)];
                const bool inside = at < x->offset + x->rows * x->cols;
                const float value = inside ? value_at(k, at, seed) : 0;
                CHECK(memcmp(&g->arenas[k][at], &value, sizeof value) == 0
                      || (!inside && k >= parts), "%s: element %zu of part %d", x->name, at, k);
            }
}

// A save of it after `step` steps; of older ones only the best stays, step 1.
static const StateSave *what(const Model *g, const char *out, size_t step) {
    static StateSave x;
    x = (StateSave){out, &g->t, &g->here, 1, g->state};
    x.state.config = g->c;
    x.state.step = step;
    x.state.best.step = 1;
    return &x;
}

static bool save(const Model *g, const char *out, size_t step) {
    return state_save(what(g, out, step), &err);
}

static const TextEnds ends = {-1, 50};

static bool save_at_once(const Model *g, const char *out, size_t step) {
    return save(g, out, step)
        && model_save(out, &g->c, &g->t, &g->here, false, ends, NULL, &err);
}

// Calls state_find(), and keeps its lines on stderr in `said`.
static const char *said;
static bool find(const char *out, TrainState *s, char dir[PATH_MAX]) {
    bool found = false;
    said = SAYS(found = state_find(out, SIZE_MAX, s, dir, &err));
    return found;
}

static size_t newest(const char *out) {  // the step of the newest whole checkpoint, or 0
    TrainState s;
    char dir[PATH_MAX];
    if (!find(out, &s, dir)) return 0;
    free(s.text);
    return s.step;
}

// ---------------------------------------------------------------------------------------------
// One process

static bool says(const char *expected) { return strstr(err.text, expected) != NULL; }

// Is the checkpoint in dir whole, by what finds it and by what loads it?
static bool is_whole(const char *dir, const Model *g) {
    TrainState s;
    if (!state_check(dir, &s, &err)) return false;
    const bool whole = state_load(dir, &s, &g->t, &g->here, &err);
    free(s.text);
    return whole;
}

// Flips bits of the file at `path` (all of the first `dense` bytes, some of the others), exchanges
// words of 8 bytes, and cuts it to many lengths. Each must be noticed in checkpoint `dir`.
static void damage(const char *dir, const char *path, size_t dense, const Model *g) {
    size_t n = 0, unnoticed = 0;
    char *good = file_read(path, &n, &err), *bad = file_read(path, &n, &err);
    const int file = open(path, O_WRONLY);
    const size_t step = test_whole() ? 1 : 5;
    for (size_t bit = 0; bit < 8 * n; bit += bit < 8 * dense ? step : 13) {
        bad[bit / 8] ^= (char)(1 << bit % 8);
        CHECK(pwrite(file, bad, n, 0) == (ssize_t)n, "write");
        unnoticed += is_whole(dir, g);
        bad[bit / 8] = good[bit / 8];
    }
    for (size_t at = 8; at + 16 <= n; at += 24) {
        memcpy(bad + at, good + at + 8, 8);
        memcpy(bad + at + 8, good + at, 8);
        CHECK(pwrite(file, bad, n, 0) == (ssize_t)n, "write");
        unnoticed += memcmp(bad, good, n) != 0 && is_whole(dir, g);
        memcpy(bad + at, good + at, 16);
    }
    for (size_t length = n; length-- > 0;) {
        if (length > dense && length + 64 < n) length -= 16;
        CHECK(ftruncate(file, (off_t)length) == 0, "truncate");
        unnoticed += is_whole(dir, g);
    }
    CHECK(unnoticed == 0, "%s: %zu", path, unnoticed);
    CHECK(pwrite(file, good, n, 0) == (ssize_t)n && is_whole(dir, g), "%s", err.text);
    close(file);
    free(good);
    free(bad);
}

// A damaged checkpoint is passed over, with its reason, and can be saved again. The last tensor is
// read when it is loaded; if an optimizer adds its lines, which stay as they are, when it is found.
static void test_state_damage(void) {
    Model *g = small_model();
    TrainState s;
    char *out = in_base("damage"), where[PATH_MAX];
    char lines[] = "optimizer a\n\nb 1 2 3\nstep 7\n--c\n";
    char *dir = in_base("damage/checkpoints/step_00000002");
    char *weights = in_base("damage/checkpoints/step_00000002/state.safetensors");
    char *text = in_base("damage/checkpoints/step_00000002/state.txt");
    size_t n = 0;
    CHECK(save(g, out, 1), "%s", err.text);
    g->here.parts = 1;  // a small file, so that every bit of its header gets its turn
    for (int more = 0; more < 2; more++) {
        uint64_t header;
        g->state.text = more ? lines : NULL;
        CHECK(save(g, out, 2) && find(out, &s, where), "%s", err.text);
        CHECK(s.step == 2 && strcmp(where, dir) == 0, "%s", where);
        CHECK(more ? strstr(s.text, lines) != NULL : text_line(s.text, "optimizer") == NULL, "%s",
              s.text);
        char *good = file_read(weights, &n, &err);
        memcpy(&header, good, 8);
        if (!more) damage(dir, weights, 8 + (size_t)header, g);
        damage(dir, text, 10000, g);
        good[n - 1] ^= 1;
        put_bytes(weights, good, n);
        CHECK(newest(out) == (more ? 1 : 2), "%s", said);
        CHECK(!state_load(dir, &s, &g->t, &g->here, &err)
              && says("param.ln_f.b in state.safetensors is not what was written"), "%s", err.text);
        free(s.text);
        free(good);
    }
    CHECK(truncate(weights, (off_t)n - 1) == 0 && newest(out) == 1
          && strstr(said, "step_00000002 is damaged (") != NULL
          && strstr(said, "state.safetensors: cut short, or ") != NULL, "it says: %s", said);
    put_bytes(weights, "\2\0\0\0\0\0\0\0{}", 10);
    CHECK(newest(out) == 1 && strstr(said, "state.safetensors is empty)") != NULL, "%s", said);
    make_directories(in_base("damage/checkpoints/tmp"));
    put_text(in_base("damage/checkpoints/tmp/state.safetensors"), "x");
    make_directories(in_base("damage/checkpoints/step_00000099.damaged"));
    CHECK(save(g, out, 2) && newest(out) == 2 && said[0] == '\0', "saved again: %s", said);
    CHECK(entries_in(in_base("damage/checkpoints")) == 3, "what a process has left stays");
    unlink(text);
    remove_tree(in_base("damage/checkpoints/step_00000001"));
    CHECK(newest(out) == 0 && says("there is no whole checkpoint in"), "%s", err.text);
    model_free(g);
}

// A state whose hashes are right and whose contents are not: nothing may be believed.
static void test_state_forged(void) {
    static const struct { const char *from, *to, *expected; } edits[] = {
        {"version 10", "version 11", "of version 11; this program reads 10"},
        {"hashes ", "hashes 0", "param.wte in state.safetensors"},
        {"\nstep 1", "\nstep 1.5", "lacks a field"},
        {"config.layers 1", "config.layers 2", "of a model of another shape"},
        {"config.vocab 7", "config.vocab 9", "of a model of another shape"},
        {"config.heads 2", "config.heads 3", "multiple of heads"},
        {"config.family 0", "config.family 7", "lacks a field"},
        {"--lr 1e-3", "--lr %5000d", "lacks a field"},
    };
    Model *g = small_model();
    TrainState s;
    CHECK(save(g, in_base("forged"), 1), "%s", err.text);
    char *dir = in_base("forged/checkpoints/step_00000001"), changed[8192], to[6000];
    char *path = in_base("forged/checkpoints/step_00000001/state.txt");
    size_t n = 0;
    char *text = file_read(path, &n, &err);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        const char *at = strstr(text, edits[i].from), *rest = at + strlen(edits[i].from);
        snprintf(to, sizeof to, edits[i].to, 7);
        const int m = snprintf(changed, sizeof changed, "%.*s%s%.*s", (int)(at - text), text, to,
                               (int)(text + n - SEAL - rest), rest);
        FILE *f = fopen(path, "wb");
        fwrite(changed, 1, (size_t)m, f);
        seal_print(f, changed, (size_t)m);
        fclose(f);
        bool ok = state_check(dir, &s, &err);
        if (ok) {
            const GPT2Table t = gpt2_table(&s.config);
            RunState none = state_in(NULL, PARTS);
            none.count = 0;
            ok = state_load(dir, &s, &t, &none, &err);
        }
        if (ok) free(s.text);
        CHECK(!ok && says(edits[i].expected), "%s: %s", edits[i].to, err.text);
    }
    free(text);
    model_free(g);
}

// ---------------------------------------------------------------------------------------------
// Several ranks: processes of this program

static int (*body)(void);    // of what they do
static unsigned ranks_seed;  // of what each of them has

static void run_body(int rank) {
    (void)rank;
    ranks_open();
    dup2(job.files[0], STDOUT_FILENO);
    test_failures_here = 0;
    const int code = body();
    fflush(stdout);
    ranks_close();
    _exit(test_failures_here > 0 ? 99 : code);
}

// Runs `call` on `world` ranks, which draw the same random numbers. Returns the exit code that all
// ranks have, or -1.
static int on_ranks(int world, int (*call)(void)) {
    bool same = true;
    body = call;
    srand(ranks_seed);
    play(world, run_body);
    for (int i = 0; i < world; i++) {
        CHECK(job.codes[i] != 99 && job.codes[i] != 128 + SIGALRM, "rank %d of %d: %d\n%s%s", i,
              world, job.codes[i], job.texts[0], job.texts[1]);
        same = same && job.codes[i] == job.codes[0];
    }
    return same ? job.codes[0] : -1;
}

static const uint64_t SEED = UINT64_MAX - 5;

static Run *ranks_run(const Model *g, const char *out) {
    static Run r;
    memset(&r, 0, sizeof r);
    r.o.out = out;
    r.table = g->t;
    r.step_sequences = (size_t)1 << 60;
    r.o.seed = SEED;
    r.state = g->state;
    return &r;
}

// Saves it after `step` steps: if that step is saved, the weights for others alone.
static void ranks_save(Run *r, size_t step, const Model *g) {
    r->saves = g->here;
    r->done = step;
    run_save(r, strdup(g->state.text));
}

static Model *task_model(void) {
    static char more[] = "optimizer a\nb 1\n";
    const GPT2Config c = config_of(task.family, task.family != FAMILY_QWEN3);
    Model *g = model_of(&c);
    g->state.text = more;
    return g;
}

static void flip_last_byte(const char *path) {
    FILE *f = fopen(path, "r+b");
    fseek(f, -1, SEEK_END);
    const int c = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

// A new run, which has the first values of one process, and three steps. Resumed, it has all that
// it had, and notices a damage, whichever rank looks for it; and it loads its weights for others.
static int save_three(void) {
    Model *g = task_model();
    Run *r = ranks_run(g, task.out);
    char file[PATH_MAX];
    float *whole = ALLOC(float, g->t.elements, "model");
    gpt2_init(&g->t, whole, SEED);
    fill_all(g, -1);
    r->state.text = NULL;
    run_load(r, &g->here);
    for (int i = 0; i < g->here.count; i++) {
        const StateRange *s = &g->pieces[i];
        CHECK(memcmp(g->arenas[0] + s->at, whole + s->at, s->length * sizeof(float)) == 0, "%zu",
              s->at);
    }
    r->state = g->state;
    r->state.text = NULL;
    slow = ranks.rank == 1 ? task.slow : 0;
    for (size_t step = 1; step <= 3; step++) {
        fill_all(g, (float)step);
        ranks_save(r, step, g);
        CHECK(newest(task.out) == step && r->state.step == step, "%s", err.text);
    }
    fill_all(g, ranks.world == 1 || task.replicated ? 3 : 50);  // 50: nobody saves this
    ranks_save(r, 3, g);
    r = ranks_run(g, task.out);
    TrainState *s = &r->state;
    r->o.resume = true;
    s->text = NULL;
    fill_all(g, -1);
    CHECK(state_find(ranks.rank == 0 ? task.out : "no/such", SIZE_MAX, s, r->resume_from, &err),
          "%s", err.text);
    CHECK(s->step == 3 && s->data_position == (size_t)3 << 60 && s->seed == SEED
          && strstr(s->text, g->state.text) != NULL && strcmp(s->options, g->state.options) == 0
          && memcmp(&s->config, &g->c, sizeof g->c) == 0, "step %zu, or others", s->step);
    path_join(file, r->resume_from, "state.safetensors");
    for (int damaged = 1; damaged >= 0; damaged--) {
        if (ranks.rank == 0) flip_last_byte(file);
        ranks_barrier();
        CHECK(state_load(r->resume_from, s, &g->t, &g->here, &err) == !damaged, "%s", err.text);
        ranks_barrier();
    }
    run_load(r, &g->here);
    check_loaded(g, PARTS, 3);
    fill_all(g, -1);
    model_load(task.out, &g->c, &g->t, &g->here);
    for (int k = 1; k < PARTS; k++) fill(g, k, 3);
    check_loaded(g, 1, 3);
    return 0;
}

// Whatever each of so many ranks has, of each family, they write what one process writes, and read
// it.
static void test_ranks_same_bytes(void) {
    static const struct { int family, world, slow; bool replicated; } rows[] = {
        {FAMILY_GPT2, 2, 100, false}, {FAMILY_OPT, 3, 100, false}, {FAMILY_MISTRAL, 1, 0, false},
        {FAMILY_QWEN3, 4, 0, false}, {FAMILY_SMOLLM3, 3, 0, false}, {FAMILY_LLAMA, 4, 0, true}};
    char *one = in_base("one"), *many = in_base("many"), command[3 * PATH_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        task.family = rows[i].family;
        for (int k = 0; k < 2; k++) {
            const int world = k == 0 ? 1 : rows[i].world;
            task.out = k == 0 ? one : many;
            task.slow = k * rows[i].slow;
            task.replicated = k == 1 && rows[i].replicated;
            ranks_seed++;
            remove_tree(task.out);
            CHECK(on_ranks(world, save_three) == 0, "row %zu: %d ranks", i, world);
        }
        snprintf(command, sizeof command, "diff -r '%s' '%s'", one, many);
        CHECK(system(command) == 0, "%s and %s differ", one, many);
        CHECK(entries_in(many) == 3 && entries_in(in_base("many/checkpoints")) == 3, "others");
    }
}

// Step 2 and its model, while one rank is in trouble: number `at` of its writes, flushes, renames
// and truncations fails, or kills it; or files can only be `at` bytes long; or it has another
// directory, as on another node. Every rank comes to the same end. 1: saved, 0: the reason is said,
// 2: it is not.
typedef enum { NONE, FAILS, KILLS, FULL, APART } Kind;
static struct { int world, rank, at; Kind kind; } victim;

static int save_in_trouble(void) {
    Model *g = task_model();
    const bool apart = victim.kind == APART;
    const StateSave *s = what(g, apart ? "in_trouble" : task.out, 2);
    char by[32], dir[PATH_MAX];
    TrainState found;
    CHECK(!apart || chdir(ranks.rank == victim.rank ? in_base("elsewhere") : base) == 0, "chdir");
    fill_all(g, 2);
    writes = trouble_count = 0;
    if (ranks.rank == victim.rank) {
        victim_pid = getpid();
        trouble_kills = victim.kind == KILLS;
        trouble_at = victim.kind == FAILS || victim.kind == KILLS ? victim.at : 0;
        if (victim.kind == FULL) limit_file_size((size_t)victim.at);
    }
    bool ok = state_save(s, &err);
    const bool model = ok && (ranks.rank > 0 || state_model(s, 2, s->out, false, ends, NULL, &err));
    if (ok) ok = state_agree(model, &err);
    limit_file_size(0);
    snprintf(by, sizeof by, "(rank %d)", victim.rank);
    const char *reason = victim.kind == FULL ? "File too large"
        : apart ? "cannot write in_trouble/checkpoints" : "Input/output error";
    const bool said = strstr(err.text, reason) != NULL
        && (ranks.world == 1 || strstr(err.text, by) != NULL);
    CHECK(!apart || (!state_find(s->out, SIZE_MAX, &found, dir, &err)
                     && strstr(err.text, "state.txt: No such file") != NULL), "%s", err.text);
    return ok ? 1 : said ? 0 : 2;
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
    memset(points, 0, POINTS);
    task.out = out;
    victim.kind = kind;
    victim.at = at;
    const int code = on_ranks(victim.world, save_in_trouble);
    const size_t found = newest(out);
    if (kind == KILLS) CHECK(job.codes[victim.rank] == 128 + SIGKILL, "%d at %d", code, at);
    else CHECK(code == (kind == NONE), "kind %d at %d: %d", kind, at, code);
    CHECK(found == 1 || found == 2, "step %zu", found);
    CHECK((found == 2) == path_exists(in_base("in_trouble/checkpoints/step_00000002")), "damaged");
    CHECK(safetensors_open(&st, in_base("in_trouble/model.safetensors"), &err), "%s", err.text);
    safetensors_close(&st);
    CHECK(kind == KILLS || (entries_in(out) == 3 && !path_exists(made)), "left over");
    CHECK(save_at_once(g, out, 3) && newest(out) == 3 && entries_in(all) == 2, "the next save");
    CHECK(entries_in(out) == 3, "still left over");
}

static void test_ranks_trouble(void) {
    static const struct { int world, rank; } rounds[] = {{1, 0}, {2, 0}, {3, 0}, {2, 1}, {3, 2}};
    memset(&task, 0, sizeof task);
    Model *g = task_model();
    make_directories(in_base("elsewhere/in_trouble/checkpoints/step_00000001"));
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        char all[POINTS], *without = all;
        int count = 0, writes = 0;
        victim.world = rounds[i].world;
        victim.rank = rounds[i].rank;
        ranks_seed = 40 + (unsigned)i;
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
        for (int at = 1; at <= count; at++) {
            if (all[at - 1] == 'w' && at % (count / 3) != 2) continue;
            if (i == 0 || at % 2 == 0) try_trouble(g, FAILS, at);
            if (i == 0 || at % 2 == 1) try_trouble(g, KILLS, at);
        }
        if (victim.rank > 0) try_trouble(g, APART, 0);
        for (int limit = 1; limit < 10000 && i % 2 == 0; limit *= 5000) try_trouble(g, FULL, limit);
    }
    model_free(g);
}

int main(void) {
    base_new("checkpoint");
    points = (char *)mmap(NULL, POINTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RUN(test_state_damage);
    RUN(test_state_forged);
    RUN(test_ranks_same_bytes);
    RUN(test_ranks_trouble);
    remove_tree(base);
    return test_summary();
}
