// Checkpoints of several ranks: the same bytes as of one process, wherever the state is and however
// slow, full or dead the disk is.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <pthread.h>
#include "../test.h"
#include "../first_values.h"

// ThreadSanitizer asks for this: no process sleeps for a second when it ends, as many do here.
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; }

// A disk with trouble: every write takes `slow` microseconds. Number `trouble_at` (from 1; 0: none)
// of its writes, flushes and renames fails, or kills the process.
static int trouble_at, trouble_count, slow, writes, flushes;
static enum { FAILS, KILLS } trouble_kind;

static int trouble(void) {
    if (__atomic_add_fetch(&trouble_count, 1, __ATOMIC_RELAXED) != trouble_at) return 0;
    if (trouble_kind == KILLS) kill(getpid(), SIGKILL);
    errno = EIO;
    return -1;
}
static ssize_t test_pwrite(int fd, const void *bytes, size_t n, off_t at) {
    const int before = writes++;
    if (slow > 0) usleep((unsigned)slow);
    if (n > 8 && before % 3 == 0) n /= 2;  // it may also write less than it was told, or nothing
    if (before % 5 == 2) { errno = EINTR; return -1; }
    return trouble() != 0 ? -1 : pwrite(fd, bytes, n, at);
}
static int test_rename(const char *from, const char *to) {
    return trouble() != 0 ? -1 : rename(from, to);
}
static int test_ftruncate(int fd, off_t n) { return trouble() != 0 ? -1 : ftruncate(fd, n); }
static int test_fsync(int fd) {  // no power is cut here
    flushes++;
    return fd < 0 ? -1 : trouble();
}
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

static bool same_file(const char *a, const char *b) {
    size_t n = 0, m = 0;
    char *x = file_read(a, &n, &err), *y = file_read(b, &m, &err);
    const bool same = x != NULL && y != NULL && n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

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

// Fills what is in [at, at + n) of part k with values that depend on the seed and the place.
static void fill(const Model *g, int k, size_t at, size_t n, float seed) {
    for (int i = 0; i < g->here.count; i++) {
        const StateRange *s = &g->pieces[i];
        for (size_t j = 0; j < s->length; j++)
            if (s->at + j >= at && s->at + j < at + n)
                g->data[k][i][j] = seed + 0.25f * (float)(k + 1) + (float)(s->at + j);
    }
}

static void fill_all(const Model *g, float seed) {
    for (int k = 0; k < PARTS; k++) fill(g, k, 0, g->t.elements, seed);
}

static bool holds(const Model *g, float seed) {  // all tensors; padding is zero or as it was filled
    bool same = true;
    for (int k = 0; k < PARTS; k++)
        for (int i = 0; i < g->t.count; i++) {
            const GPT2Tensor *x = &g->t.tensors[i];
            for (int p = 0; p < g->here.count; p++) {
                const StateRange *s = &g->pieces[p];
                for (size_t j = 0; j < s->length; j++) {
                    const size_t at = s->at + j;
                    if (at < x->offset || at >= x->offset + x->rows * x->cols) continue;
                    same = same && g->data[k][p][j] == seed + 0.25f * (float)(k + 1) + (float)at;
                }
            }
        }
    return same;
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

// The smallest file size that a write may reach; 0 takes the limit away.
static void limit_file_size(size_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

// ---------------------------------------------------------------------------------------------
// Several ranks: processes of this program

enum { MAX_WORLD = 4 };
static int codes[MAX_WORLD];  // of the last ones: exit codes, or minus the signal
static uint32_t ranks_seed;   // of what each of them has

// Runs body() on so many ranks, with the same random numbers. Returns the code that all of them
// end with, or -1.
static int on_ranks(int world, int (*body)(void)) {
    static const char *const logs[MAX_WORLD] = {"rank0", "rank1", "rank2", "rank3"};
    size_t size;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    pid_t children[MAX_WORLD];
    char number[16];
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int s = socket(AF_INET, SOCK_STREAM, 0);  // finds a free port
    if (bind(s, (struct sockaddr *)&address, length) != 0
        || getsockname(s, (struct sockaddr *)&address, &length) != 0) fail("no port");
    close(s);
    snprintf(number, sizeof number, "%d", ntohs(address.sin_port));
    setenv("MASTER_PORT", number, 1);
    unsetenv("MASTER_ADDR");
    unsetenv("TORCHELASTIC_RUN_ID");
    snprintf(number, sizeof number, "%d", world);
    setenv("WORLD_SIZE", number, 1);
    setenv("LOCAL_WORLD_SIZE", number, 1);
    random_state = ranks_seed;
    fflush(stdout);
    for (int i = 0; i < world; i++) {
        snprintf(number, sizeof number, "%d", i);
        setenv("RANK", number, 1);
        setenv("LOCAL_RANK", number, 1);
        if ((children[i] = fork()) != 0) continue;
        alarm(60);  // instead of hanging
        ranks_open();
        if (freopen(in_base(logs[i]), "w", stdout) == NULL) fail("%s", logs[i]);
        dup2(1, 2);
        test_failures_here = 0;
        int code = body();
        fflush(stdout);
        if (test_failures_here > 0) code = 99;
        ranks_close();
        _exit(code);
    }
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    int same = 0;
    for (int i = 0, status; i < world; i++) {
        waitpid(children[i], &status, 0);
        codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        CHECK(codes[i] != 99 && codes[i] != -SIGALRM, "rank %d of %d: %d", i, world, codes[i]);
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

// What is stored is there, and zeros where it is padded.
static void check_loaded(const Model *g, int parts, float seed) {
    CHECK(holds(g, seed), "other values");
    for (int k = 0; k < parts; k++)
        for (int p = 0; p < g->here.count; p++) {
            const StateRange *s = &g->pieces[p];
            for (size_t j = 0; j < s->length; j++) {
                const GPT2Tensor *x = &g->t.tensors[gpt2_tensor_at(&g->t, s->at + j)];
                CHECK(s->at + j < x->offset + x->rows * x->cols || g->data[k][p][j] == 0,
                      "padding at %zu", s->at + j);
            }
        }
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
        flushes = 0;
        ranks_save(r, step, true, g);
        CHECK(flushes > 0, "nothing goes to the disk");
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
    for (int k = 1; k < PARTS; k++) fill(g, k, 0, g->t.elements, 3);
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

// Step 2, while one rank is in trouble. Every rank comes to the same end:
// 7: there was no trouble, 1: saved anyhow, 0: the reason is said, 2: it is not.
static struct { int rank, kind, at; size_t limit; } victim;
static int *points;  // shared: how many there are on the victim

static int save_in_trouble(void) {
    Model *g = job_model();
    const StateSave *s = what(g, job.out, 2);
    char by[32];
    const bool here = ranks.rank == victim.rank;
    fill_all(g, 2);
    writes = 0;
    trouble_kind = victim.kind;
    trouble_at = here ? victim.at : 0;
    trouble_count = 0;
    if (here && victim.limit > 0) limit_file_size(victim.limit);
    const bool ok = state_save(s, &err)
        && state_agree(ranks.rank > 0 || state_model(s, s->state.step, s->out, false, ends,
                                                          NULL, &err),
                       &err);
    limit_file_size(0);
    bool none = victim.limit == 0, all[MAX_WORLD];
    if (here) {
        *points = trouble_count;
        none = none && trouble_count < trouble_at;
    }
    ranks_exchange(&none, sizeof none, all);
    snprintf(by, sizeof by, "(rank %d)", victim.rank);
    return all[victim.rank] ? 7 : ok ? 1
        : strstr(err.text, victim.limit > 0 ? "File too large" : "Input/output error") != NULL
          && strstr(err.text, by) != NULL ? 0 : 2;
}

static char *before_trouble(Model *g) {
    char *out = in_base("in_trouble");
    remove_tree(out);
    fill_all(g, 1);
    CHECK(save_at_once(g, out, 1), "%s", err.text);
    memset(&job, 0, sizeof job);
    return out;
}

// There is a whole checkpoint, nothing that looks like one and is not, and the next save works.
static void after_trouble(Model *g, bool killed) {
    char *out = in_base("in_trouble"), *all = in_base("in_trouble/checkpoints");
    const size_t found = newest(out);
    CHECK(found == 1 || found == 2, "step %zu", found);
    CHECK((found == 2) == path_exists(in_base("in_trouble/checkpoints/step_00000002")), "damaged");
    CHECK(killed || !path_exists(in_base("in_trouble/checkpoints/tmp_00000002")), "left over");
    CHECK(save_at_once(g, out, 3) && newest(out) == 3 && entries_in(all) == 1, "the next save");
}

// Each rank in turn has a write, flush or rename that fails, or is killed there.
static void test_ranks_trouble(void) {
    Model *g = model_new();
    int tried = 0, saved = 0;
    points = (int *)mmap(NULL, sizeof *points, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0);
    memset(&victim, 0, sizeof victim);
    for (int i = 0; i < 4; i++) {
        const int world = 2 + i / 2;
        victim.rank = i % 2 * (world - 1);
        victim.at = INT_MAX;
        ranks_seed = 40 + (uint32_t)i;
        job.out = before_trouble(g);
        CHECK(on_ranks(world, save_in_trouble) == 7, "no trouble");
        const int count = *points, ends = count - (victim.rank == 0 ? 18 : 3);
        CHECK(ends > 10, "only %d", count);
        for (int at = 1; at <= count;
             at = at >= ends ? at + 1 : (int)min_size((size_t)(at + ends / 3), (size_t)ends)) {
            victim.kind = (count - at + i / 2) % 2 == 0 ? FAILS : KILLS;  // the other, at 3 ranks
            victim.at = at;
            job.out = before_trouble(g);
            const int code = on_ranks(world, save_in_trouble);
            tried++;
            saved += newest(job.out) == 2;
            if (victim.kind == FAILS) CHECK(code == 0, "%d of %d: %d", at, count, code);
            else CHECK(codes[victim.rank] == -SIGKILL, "not killed: %d", codes[victim.rank]);
            after_trouble(g, victim.kind == KILLS);
        }
    }
    CHECK(tried > 50 && saved > 0, "%d points, %d saved", tried, saved);
    victim.at = 0;
    model_free(g);
}

// The disk is full for one of them.
static void test_ranks_disk_full(void) {
    static const size_t limits[3] = {1, 5000, 1 << 22};
    Model *g = model_new();
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 6; i++) {
        victim.rank = i / 3 * 2;
        victim.limit = limits[i % 3];
        job.out = before_trouble(g);
        const int code = on_ranks(3, save_in_trouble);
        CHECK(code == (i % 3 == 2), "limit %zu on rank %d: %d", victim.limit, victim.rank, code);
        CHECK(newest(job.out) == (i % 3 == 2 ? 2 : 1), "%d", i);
        after_trouble(g, false);
    }
    victim.limit = 0;
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
    snprintf(base, sizeof base, "/tmp/tide_checkpoint_XXXXXX");
    if (mkdtemp(base) == NULL) { perror(base); return 1; }
    RUN(test_ranks_same_bytes);
    RUN(test_ranks_first_values);
    RUN(test_ranks_trouble);
    RUN(test_ranks_disk_full);
    RUN(test_ranks_apart);
    remove_tree(base);
    return test_summary();
}
