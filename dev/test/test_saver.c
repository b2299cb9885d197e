// Checkpoints that are written in the background: the same bytes as at once, whatever is updated
// meanwhile and however slow, full or dead the disk is.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <pthread.h>
#include "test.h"

static pthread_t main_thread;

// A disk with trouble: every write takes `slow` microseconds. Number `trouble_at` (from 1; 0: none)
// of its writes, flushes and renames fails, or kills the process.
static int trouble_at, trouble_count, slow, writes, sent, awaited;
static enum { FAILS, KILLS } trouble_kind;

static int trouble(void) {
    if (__atomic_add_fetch(&trouble_count, 1, __ATOMIC_RELAXED) != trouble_at) return 0;
    if (trouble_kind == KILLS) kill(getpid(), SIGKILL);
    errno = EIO;
    return -1;
}
static ssize_t test_pwrite(int fd, const void *bytes, size_t n, off_t at) {
    const int before = __atomic_fetch_add(&writes, 1, __ATOMIC_RELAXED);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    CHECK(pthread_equal(pthread_self(), main_thread) || sigismember(&blocked, SIGINT), "signals");
    if (slow > 0) usleep((unsigned)slow);
    if (n > 8 && before % 3 == 0) n /= 2;  // it may also write less than it was told, or nothing
    if (before % 5 == 2) { errno = EINTR; return -1; }
    return trouble() != 0 ? -1 : pwrite(fd, bytes, n, at);
}
static int test_rename(const char *from, const char *to) {
    return trouble() != 0 ? -1 : rename(from, to);
}
static int test_fsync(int fd) { return fd < 0 ? -1 : trouble(); }  // no power is cut here
static int test_sync(int fd, off_t at, off_t n, unsigned flags) {
    static struct { int fd; off_t at, n; } started[2];  // the last, and the one before
    if ((flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0) {
        CHECK(at == started[1].at && n == started[1].n && fd == started[1].fd, "not that one");
        awaited++;
        return trouble();
    }
    CHECK(at > 8 && n > 0, "%lld bytes at %lld", (long long)n, (long long)at);
    started[1] = started[0];
    started[0].fd = fd;
    started[0].at = at;
    started[0].n = n;
    sent++;
    return 0;
}
#define pwrite test_pwrite
#define rename test_rename
#define fsync test_fsync
#define sync_file_range test_sync
#define SAVER_UNIT ((size_t)256)
#include "../../saver.h"
#undef pwrite
#undef rename
#undef fsync
#undef sync_file_range
#include "files.h"

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
// A model's state in many places: every piece of it has memory of its own, some on a "GPU", at an
// address that only far_copy() reaches.

enum { PARTS = 3, MAX_PIECES = 400 };
#define FAR ((uintptr_t)1 << 62)

typedef struct {
    GPT2Config c;
    GPT2Table t;
    TrainState state;
    StatePart parts[PARTS], plain[PARTS];  // plain: with spans
    StateSpan spans[PARTS][MAX_PIECES];
    StatePiece pieces[MAX_PIECES];  // in the order of updates
    int count;
} Model;

static void far_copy(void *to, const void *from, size_t bytes) {
    const bool to_far = (uintptr_t)to >= FAR, from_far = (uintptr_t)from >= FAR;
    CHECK(to_far != from_far, "a copy must be from here to there, or back");
    CHECK(pthread_equal(pthread_self(), main_thread), "a copy by another thread");
    memcpy((void *)((uintptr_t)to - (to_far ? FAR : 0)),
           (const void *)((uintptr_t)from - (from_far ? FAR : 0)), bytes);
}

static void move(void *owner, size_t at, size_t n, float *w, bool out) {
    CHECK(pthread_equal(pthread_self(), main_thread), "a copy by another thread");
    CHECK(!out || n <= SAVER_UNIT, "%zu elements at a time", n);
    part_copy((const StatePart *)owner, at, n, w, out);
}
static int moving;  // bit k: nobody but move() knows where part k of the next model is

static float *span_memory(const StateSpan *s) {
    return (float *)((uintptr_t)s->data - (s->gpu ? FAR : 0));
}

// far_share: of 100 pieces, how many are on the GPU; whole: one piece, one span.
static Model *model_new(size_t far_share, bool whole) {
    static const char *const names[PARTS] = {"param", "m", "v"};
    Model *g = (Model *)alloc_or_fail(1, sizeof *g, "model");
    g->c.layers = 2; g->c.heads = 4; g->c.channels = 20; g->c.ffn = 37; g->c.context = 9;
    g->c.vocab = 131;
    g->c.tied = 1;
    gpt2_finish(&g->c, &err);
    g->t = gpt2_table(&g->c);
    snprintf(g->state.options, sizeof g->state.options, "{\"lr\":0.1}");
    for (size_t at = 0; at < g->t.elements; g->count++) {
        const size_t n = whole ? g->t.elements : min_size(g->t.elements - at, ALIGN_ELEMENTS
                                                          * (1 + random_below(12)));
        const bool far = random_below(100) < far_share;
        for (int k = 0; k < PARTS; k++) {
            StateSpan *s = &g->spans[k][g->count];
            float *data = (float *)alloc_or_fail(n, sizeof(float), "piece");
            s->at = at;
            s->length = n;
            s->gpu = far;
            s->data = far ? (float *)((uintptr_t)data + FAR) : data;
        }
        g->pieces[g->count].at = at;
        g->pieces[g->count].length = n;
        at += n;
    }
    for (int i = g->count; i-- > 1;) {  // any order
        const size_t j = random_below((size_t)i + 1);
        const StatePiece p = g->pieces[i];
        g->pieces[i] = g->pieces[j];
        g->pieces[j] = p;
    }
    for (int k = 0; k < PARTS; k++) {
        const StatePart p = {names[k], g->spans[k], g->count, far_copy, NULL, NULL};
        g->plain[k] = p;
        g->parts[k] = moving >> k & 1 ? part_moved(names[k], &g->plain[k], move) : p;
    }
    return g;
}

static void model_free(Model *g) {
    for (int k = 0; k < PARTS; k++)
        for (int i = 0; i < g->count; i++) free(span_memory(&g->spans[k][i]));
    gpt2_table_free(&g->t);
    free(g);
}

// Fills what is in [at, at + n) of part k with values that depend on the seed and the place.
static void fill(const Model *g, int k, size_t at, size_t n, float seed) {
    for (int i = 0; i < g->count; i++) {
        const StateSpan *s = &g->spans[k][i];
        for (size_t j = 0; j < s->length; j++)
            if (s->at + j >= at && s->at + j < at + n)
                span_memory(s)[j] = seed + 0.25f * (float)(k + 1) + (float)(s->at + j);
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
            for (int p = 0; p < g->count; p++) {
                const StateSpan *s = &g->spans[k][p];
                for (size_t j = 0; j < s->length; j++) {
                    const size_t at = s->at + j;
                    if (at < x->offset || at >= x->offset + x->rows * x->cols) continue;
                    same = same && span_memory(s)[j] == seed + 0.25f * (float)(k + 1) + (float)at;
                }
            }
        }
    return same;
}

static bool save_at_once(const Model *g, const char *out, size_t step, int keep) {
    static StateSave x;
    x.out = out;
    x.config = &g->c;
    x.table = &g->t;
    x.parts = g->plain;
    x.count = PARTS;
    x.keep = keep;
    x.state = g->state;
    x.state.step = step;
    return state_save(&x, &err)
        && model_save(out, &g->c, &g->t, &g->plain[0], false, 50, &err);
}

// Another one in the place of the last.
static void saver_new(Saver *s, const Model *g, const char *out, size_t bounce, int keep) {
    free(s->first);
    free(s->units);
    free(s->pool);
    free(s->slots);
    memset(s, 0, sizeof *s);
    s->save.out = out;
    s->save.config = &g->c;
    s->save.table = &g->t;
    s->save.parts = g->parts;
    s->save.count = PARTS;
    s->save.keep = keep;
    s->pieces = g->pieces;
    s->piece_count = (size_t)g->count;
    s->bounce = bounce;
    s->eot = 50;
}

static bool start(Saver *s, const Model *g, size_t step) {
    s->save.state = g->state;
    s->save.state.step = step;
    return saver_start(s, &err);
}

// The next step: every piece, in order, is updated by another thread once it may change.
typedef struct { const Model *g; size_t piece; float seed; } Update;

static void *update(void *argument) {
    const Update *u = (const Update *)argument;
    const StatePiece *p = &u->g->pieces[u->piece];
    for (int k = 0; k < PARTS; k++) fill(u->g, k, p->at, p->length, u->seed);
    return NULL;
}

static void update_all(Saver *s, const Model *g, float seed) {
    static Update updates[MAX_PIECES];
    static pthread_t threads[MAX_PIECES];
    for (int i = 0; i < g->count; i++) {
        const Update u = {g, (size_t)i, seed};
        updates[i] = u;
        saver_need(s, (size_t)i);
        pthread_create(&threads[i], NULL, update, &updates[i]);
    }
    for (int i = 0; i < g->count; i++) pthread_join(threads[i], NULL);
}

static size_t newest(const char *out) {  // the step of the newest whole checkpoint, or 0
    TrainState s;
    GPT2Config c;
    char dir[PATH_MAX];
    if (!state_find(out, &s, &c, dir, &err)) return 0;
    train_state_free(&s);
    return s.step;
}

// ---------------------------------------------------------------------------------------------

// With pools and disks of every kind, the files are those of a save at once.
static void test_same_bytes(void) {
    static const struct { size_t bounce, far_share; int slow, moving; } cases[] = {
        {0, 0, 0, 0}, {0, 20, 50, 0}, {SAVER_UNIT * 4, 20, 50, 2}, {SAVER_UNIT * 4 * 5, 0, 100, 0},
        {SAVER_UNIT * 4 * 5, 50, 0, 0}, {12 * ALIGN_ELEMENTS * 4 * PARTS, 20, 100, 0},
        {1 << 22, 20, 100, 0}, {1 << 22, 0, 0, 5}, {1 << 22, 100, 0, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char more[] = "{\"records\":[[1,0.5]]}";
        moving = cases[i].moving;
        Model *g = model_new(cases[i].far_share, false);
        static Saver s;
        if (i % 2 == 1) g->state.more = more;
        remove_tree(in_base("back"));
        saver_new(&s, g, in_base("back"), cases[i].bounce, 1);
        for (size_t step = 1; step <= 3; step++) {  // one saver, several saves
            fill_all(g, (float)step);
            slow = 0;
            remove_tree(in_base("once"));
            CHECK(save_at_once(g, in_base("once"), step, 0), "%s", err.text);
            slow = cases[i].slow;
            CHECK(start(&s, g, step), "%s", err.text);
            update_all(&s, g, -100);
            CHECK(saver_wait(&s, &err), "%s", err.text);
            for (int k = 0; k < 4; k++) {
                static const char *const files[4] = {
                    "checkpoints/step_%08zu/state.safetensors", "checkpoints/step_%08zu/state.json",
                    "model.safetensors", "config.json"};
                char once[PATH_MAX] = "once/", back[PATH_MAX] = "back/";
                snprintf(once + 5, 80, files[k], step);
                snprintf(back + 5, 80, files[k], step);
                CHECK(same_file(in_base(once), in_base(back)), "%s differs, case %zu", back, i);
            }
            CHECK(entries_in(in_base("back/checkpoints")) == 1, "the older one is still there");
            CHECK(s.bounced <= PARTS * 4 * g->t.elements && (s.bounced == 0 || cases[i].bounce > 0),
                  "%zu copied", (size_t)s.bounced);
            CHECK(s.bytes > PARTS * 4 * g->t.parameters, "%zu bytes", (size_t)s.bytes);
        }
        slow = 0;
        CHECK(newest(in_base("back")) == 3, "%s", err.text);
        model_free(g);
        moving = 0;
    }
}

// On a slow disk: saver_start() returns at once, need(i) waits for what comes first, but not for
// more, and not at all where there is room for copies; room is used again; and what it waited is
// counted.
static void test_waits(void) {
    Model *g = model_new(0, false);
    static Saver s;
    fill_all(g, 1);
    for (int i = 0; i < 4; i++) {
        const bool large = i >= 2;
        if (i < 3) saver_new(&s, g, in_base("waits"), large ? 1 << 22 : (size_t)i * 16 * SAVER_UNIT,
                             0);
        slow = 2000;
        writes = sent = awaited = 0;
        CHECK(start(&s, g, 1), "%s", err.text);
        CHECK(!saver_over(&s) && s.running, "start waits for the end");
        const double start = seconds_now();
        saver_need(&s, 0);
        const int first = __atomic_load_n(&writes, __ATOMIC_RELAXED);
        for (int j = 1; j < g->count; j++) saver_need(&s, (size_t)j);
        const double waited = seconds_now() - start;
        CHECK(!large || !saver_over(&s), "there is room for copies, but it waits");
        CHECK(s.waited <= waited && s.waited > 0.9 * waited - 0.01, "%g of %g", s.waited, waited);
        CHECK(i > 0 ? s.bounced > s.bytes / 2 : s.bounced == 0, "%zu copied", (size_t)s.bounced);
        for (int j = 0; j < 3000 && !saver_over(&s); j++) usleep(10000);
        CHECK(saver_over(&s), "it does not end");
        CHECK(saver_wait(&s, &err) && !s.running && saver_over(&s), "%s", err.text);
        CHECK(sent > 10 && awaited == sent - 1, "%d of %d ranges waited for", awaited, sent);
        CHECK(first < writes / 3, "the first piece waits for %d of %d writes", first, writes);
        CHECK(s.seconds > 2e-3 * writes, "it took %g seconds for %d writes", s.seconds, writes);
        CHECK(large ? s.waited < s.seconds / 2 : s.waited > s.seconds / 2, "%g of %g", s.waited,
              s.seconds);
        saver_need(&s, 0);  // nothing is being saved
        CHECK(saver_wait(&s, &err), "%s", err.text);
    }
    slow = 0;
    model_free(g);
}

// What was saved in one layout is loaded in any other.
static void test_layouts(void) {
    for (int i = 0; i < 6; i++) {
        moving = i == 2 ? 1 : i == 3 ? 7 : 0;
        Model *g = model_new(i % 3 * 30, i == 1 || i == 4);
        moving = i == 3 ? 2 : i == 5 ? 7 : 0;
        Model *back = model_new(30, i == 0 || i == 4);
        moving = 0;
        TrainState state;
        GPT2Config c;
        char dir[PATH_MAX];
        static Saver s;
        fill_all(g, 7);
        fill_all(back, -1);
        remove_tree(in_base("layouts"));
        saver_new(&s, g, in_base("layouts"), 4000, 0);
        CHECK(start(&s, g, 5) && saver_wait(&s, &err), "%s", err.text);
        CHECK(state_find(in_base("layouts"), &state, &c, dir, &err) && state.step == 5, "%s",
              err.text);
        CHECK(state_load(dir, &back->c, &back->t, back->parts, PARTS, &err), "%s", err.text);
        CHECK(holds(back, 7), "other values, layout %d", i);
        fill_all(back, -1);
        CHECK(model_load(in_base("layouts"), &back->c, &back->t, &back->parts[0], &err), "%s",
              err.text);
        for (int k = 1; k < PARTS; k++) fill(back, k, 0, back->t.elements, 7);
        CHECK(holds(back, 7), "other parameters, layout %d", i);
        model_free(g);
        model_free(back);
    }
}

// Damage anywhere is noticed, and what is damaged is named.
static void test_damage(void) {
    Model *g = model_new(0, false);
    SafeTensors st;
    GPT2Config c;
    TrainState state;
    const char *dir = in_base("damage/checkpoints/step_00000001");
    fill_all(g, 3);
    CHECK(save_at_once(g, in_base("damage"), 1, 0), "%s", err.text);
    char path[PATH_MAX];
    path_join(path, dir, "state.safetensors");
    CHECK(state_check(dir, &state, &c, &err), "%s", err.text);
    CHECK(safetensors_open(&st, path, &err), "%s", err.text);
    const int file = open(path, O_RDWR);
    for (int i = 0; i < st.count; i++) {
        char expected[200];
        const off_t first = st.tensors[i].data - (const unsigned char *)st.map;
        snprintf(expected, sizeof expected, "%s in state.safetensors is not what was written",
                 st.tensors[i].name);
        for (int end = 0; end < 2; end++) {
            const off_t at = first + (end ? (off_t)st.tensors[i].bytes - 1 : 0);
            char byte, other;
            CHECK(pread(file, &byte, 1, at) == 1, "read");
            other = (char)(byte ^ 16);
            CHECK(pwrite(file, &other, 1, at) == 1, "write");
            CHECK(!state_check(dir, &state, &c, &err) && strcmp(err.text, expected) == 0,
                  "%s: it says %s", st.tensors[i].name, err.text);
            CHECK(pwrite(file, &byte, 1, at) == 1, "write");
        }
    }
    const char *metadata = strstr((const char *)st.map + 8, "\"pt\"");
    CHECK(pwrite(file, "x", 1, metadata + 1 - (const char *)st.map) == 1, "write");
    CHECK(!state_check(dir, &state, &c, &err) && strstr(err.text, "the header") != NULL, "%s",
          err.text);
    close(file);
    safetensors_close(&st);
    model_free(g);
}

// The smallest file size that a write may reach; 0 takes the limit away.
static void limit_file_size(size_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

// A full disk, or pieces that are not everything: said once, at the end; nobody waits for ever; the
// older checkpoint stays.
static void test_failing(void) {
    signal(SIGXFSZ, SIG_IGN);
    for (size_t limit = 1; limit < (size_t)1 << 22; limit = limit * 3 + 1) {
        Model *g = model_new(limit % 2 * 30, false);
        static Saver s;
        char *out = in_base("full");
        remove_tree(out);
        fill_all(g, 1);
        CHECK(save_at_once(g, out, 1, 1), "%s", err.text);
        struct stat size;
        const char *file = in_base("full/checkpoints/step_00000001/state.safetensors");
        const bool fits = stat(file, &size) == 0 && (size_t)size.st_size <= limit;
        saver_new(&s, g, out, limit % 3 * 2000, 1);
        limit_file_size(limit);
        bool ok = start(&s, g, 2);
        if (ok) update_all(&s, g, 9);
        ok = ok && saver_wait(&s, &err);
        limit_file_size(0);
        CHECK(ok == fits, "limit %zu: %d", limit, ok);
        CHECK(ok || (strstr(err.text, "cannot write") && strstr(err.text, "File too large")), "%s",
              err.text);
        CHECK(entries_in(in_base("full/checkpoints")) == 1, "limit %zu: files are left", limit);
        CHECK(newest(out) == (fits ? 2 : 1), "limit %zu", limit);
        model_free(g);
    }
    Model *g = model_new(0, false);
    static Saver s;
    saver_new(&s, g, in_base("short"), 0, 1);
    s.piece_count--;
    CHECK(start(&s, g, 1) && !saver_wait(&s, &err)
          && strstr(err.text, "bytes were written") != NULL, "%s", err.text);
    CHECK(newest(in_base("short")) == 0, "half a checkpoint");
    model_free(g);
}

// Each write, flush and rename in turn fails, or is where the process is killed. There is always a
// whole checkpoint, and the next save works.
static void test_trouble(void) {
    Model *g = model_new(20, false);
    char *out = in_base("trouble");
    int points = 0;
    for (int kind = FAILS; kind <= KILLS; kind++)
        for (int at = 1; at < 100000; at += at < 20 ? 1 : 17 + kind) {
            remove_tree(out);
            fill_all(g, 1);
            CHECK(save_at_once(g, out, 1, 1), "%s", err.text);
            fflush(stdout);
            const pid_t child = fork();
            if (child == 0) {
                static Saver s;
                bool ok;
                saver_new(&s, g, out, 5000, 1);
                trouble_kind = kind;
                trouble_at = at;
                trouble_count = 0;
                ok = start(&s, g, 2);
                if (ok) update_all(&s, g, 2);
                ok = ok && saver_wait(&s, &err);
                _exit(trouble_count < at ? 7 : ok ? 1
                      : strstr(err.text, "Input/output error") != NULL ? 0 : 2);
            }
            int status = 0;
            waitpid(child, &status, 0);
            if (WIFEXITED(status) && WEXITSTATUS(status) == 7) break;  // past the last one
            points++;
            CHECK(kind == KILLS ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                : WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "trouble %d at %d: status %d", kind, at, status);
            const size_t found = newest(out);
            CHECK(found == 1 || found == 2, "trouble %d at %d: step %zu", kind, at, found);
            CHECK(save_at_once(g, out, 3, 1) && newest(out) == 3
                  && entries_in(in_base("trouble/checkpoints")) == 1, "the next save");
        }
    CHECK(points > 60, "only %d points", points);
    model_free(g);
}

int main(void) {
    main_thread = pthread_self();
    snprintf(base, sizeof base, "/tmp/tide_saver_XXXXXX");
    if (mkdtemp(base) == NULL) { perror(base); return 1; }
    RUN(test_same_bytes);
    RUN(test_waits);
    RUN(test_layouts);
    RUN(test_damage);
    RUN(test_failing);
    RUN(test_trouble);
    remove_tree(base);
    return test_summary();
}
