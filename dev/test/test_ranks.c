// Several processes as one run: they meet, exchange, and end together with one line, whatever
// happens to whom. Every test starts real processes on this machine.
#define _GNU_SOURCE
#define RANKS_PATIENCE 2.0  // seconds: less waiting here for what will not come
#define RANKS_LATE 1.5
#include <sys/mman.h>
#include <sys/wait.h>
#include "../../tide/ranks.h"
#include "test.h"

enum { MOST = 18, FOREVER = 120 };  // seconds: far more than anything here takes

static struct {  // of the processes that are started together
    int world, port;
    pid_t processes[MOST];
    int codes[MOST];  // exit code, or 128 + signal
    int lines;        // on stderr, of all of them
    char text[4096], out[4096];
    double start, seconds;
    int err_file, out_file;
} job;

static struct { int count, ready[MOST]; } *common;  // memory of all processes

static int file_new(void) {
    char path[] = "/tmp/tide_ranks_XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) != 0) { perror(path); exit(1); }
    unlink(path);
    return fd;
}

static size_t read_all(int fd, char *out, size_t size) {
    const ssize_t n = pread(fd, out, size - 1, 0);
    out[n > 0 ? n : 0] = '\0';
    close(fd);
    return n > 0 ? (size_t)n : 0;
}

// A port at which nobody listens, and none of those that the kernel chooses from.
static int free_port(void) {
    for (;;) {
        int port = 20000 + (int)(((unsigned)getpid() * 7919u + (unsigned)rand()) % 12000);
        const int fd = ranks_listen(&port, 1);
        if (fd < 0) continue;
        close(fd);
        return port;
    }
}

// The environment that names no launcher.
static void set_none(void) {
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NODEID", "TORCHELASTIC_RUN_ID", "TIDE_JOB", "TIDE_TIMEOUT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

static void set(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

typedef void (*Scene)(int rank);

static void job_new(int processes) {
    memset(&job, 0, sizeof job);
    memset(common, 0, sizeof *common);
    job.err_file = file_new();
    job.out_file = file_new();
    job.port = free_port();
    job.start = seconds_now();
    job.world = processes;
}

// Starts one of the processes; its main() is the scene.
static void start_rank(int slot, int rank, int world, Scene scene) {
    fflush(stdout);
    const pid_t process = fork();
    if (process == 0) {
        set_none();
        set("RANK", rank);
        set("WORLD_SIZE", world);
        set("LOCAL_RANK", rank);
        set("LOCAL_WORLD_SIZE", world);
        set("MASTER_PORT", job.port);
        dup2(job.err_file, STDERR_FILENO);
        dup2(job.out_file, STDOUT_FILENO);
        alarm(FOREVER);
        scene(rank);
        exit(0);
    }
    job.processes[slot] = process;
}

static void finish(void) {  // waits for all
    for (int r = 0; r < job.world; r++) {
        int status;
        while (waitpid(job.processes[r], &status, 0) < 0 && errno == EINTR) {}
        job.codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    job.seconds = seconds_now() - job.start;
    read_all(job.err_file, job.text, sizeof job.text);
    read_all(job.out_file, job.out, sizeof job.out);
    for (const char *c = job.text; *c != '\0'; c++) job.lines += *c == '\n';
}

static void play(int world, Scene scene) {
    job_new(world);
    for (int r = 0; r < world; r++) start_rank(r, r, world, scene);
    finish();
}

static const char *codes(void) {  // for messages
    static char text[8 * MOST];
    text[0] = '\0';
    for (int r = 0; r < job.world; r++)
        snprintf(text + strlen(text), sizeof text - strlen(text), " %d", job.codes[r]);
    return text;
}

// One line, which says `words`. The exit code of `who` is `code`, that of the others `rest`.
static void ends(int line, const char *words, int who, int code, int rest) {
    CHECK(job.lines == 1 && strstr(job.text, words) != NULL, "line %d: not one with '%s': %s", line,
          words, job.text);
    for (int r = 0; r < job.world; r++)
        CHECK(job.codes[r] == (r == who ? code : rest), "line %d: codes%s", line, codes());
    CHECK(job.seconds < FOREVER / 2, "line %d: %g s", line, job.seconds);
}
#define ENDS(words, who, code, rest) ends(__LINE__, words, who, code, rest)

static void succeeds(int line) {
    CHECK(job.lines == 0, "line %d: %s", line, job.text);
    for (int r = 0; r < job.world; r++)
        CHECK(job.codes[r] == 0, "line %d: codes%s", line, codes());
}
#define SUCCEEDS() succeeds(__LINE__)

// In the processes: ends this one without a word to the others, so that all is noticed.
#define MUST(condition)                                                                      \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            dprintf(STDERR_FILENO, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            _exit(99);                                                                       \
        }                                                                                    \
    } while (0)

static void hang(void) { for (;;) pause(); }

static void await_line(void) {  // of anybody, but not for ever
    struct stat s;
    for (int i = 0; i < 40000 && fstat(job.err_file, &s) == 0 && s.st_size == 0; i++) usleep(1000);
}

// ---------------------------------------------------------------------------------------------
// All goes well

static unsigned char value(size_t turn, int rank, size_t i) {
    return (unsigned char)(turn * 31 + (size_t)rank * 57 + i * 7 + (i >> 8));
}

static void scene_talks(int rank) {
    const int world = job.world;
    ranks_open();
    MUST(ranks.rank == rank && ranks.world == world && ranks.launched);
    MUST(ranks.local == rank && ranks.local_world == world);
    for (size_t turn = 0; turn < 40; turn++) {
        static const size_t sizes[] = {0, 1, 8, 1000, 65536};
        const size_t n = turn < 38 ? sizes[turn % 5] : 700001;
        unsigned char *mine = (unsigned char *)malloc(n + 1);
        unsigned char *all = (unsigned char *)malloc(n * (size_t)world + 1);
        unsigned char *from = turn % 2 == 1 ? all + (size_t)rank * n : mine;
        if ((turn * 7 + (size_t)rank) % 11 == 0) usleep(3000);
        for (size_t i = 0; i < n; i++) from[i] = value(turn, rank, i);
        all[n * (size_t)world] = 77;
        mine[n] = 78;
        ranks_exchange(from, n, all);
        for (int p = 0; p < world; p++)
            for (size_t i = 0; i < n; i++) MUST(all[(size_t)p * n + i] == value(turn, p, i));
        MUST(all[n * (size_t)world] == 77);
        for (size_t i = 0; i < n; i++) mine[i] = value(turn, rank, i);
        ranks_broadcast(mine, n);
        for (size_t i = 0; i < n; i++) MUST(mine[i] == value(turn, 0, i));
        MUST(mine[n] == 78);
        free(mine);
        free(all);
        // nobody passes a barrier before all have come
        __atomic_add_fetch(&common->count, 1, __ATOMIC_SEQ_CST);
        ranks_barrier();
        MUST(__atomic_load_n(&common->count, __ATOMIC_SEQ_CST) >= (int)(turn + 1) * world);
    }
    ranks_agree("options", "{\"lr\":0.1,\"batch\":4}");
    ranks_agree("nothing", "");
    printf("rank %d prints\n", rank);
    fflush(stdout);
    MUST(system("echo so does a program") == 0);
    ranks_close();
    ranks_close();
}

static void test_talk(void) {
    static const int worlds[] = {1, 2, 3, 4, 7, MOST};
    for (int i = 0; i < 6; i++) {
        play(worlds[i], scene_talks);
        SUCCEEDS();
        CHECK(strcmp(job.out, "rank 0 prints\nso does a program\n") == 0, "%s", job.out);
    }
}

static void scene_alone(int rank) {
    (void)rank;
    set_none();
    ranks_open();
    int all = 0, one = 5;
    ranks_exchange(&one, sizeof one, &all);
    ranks_broadcast(&one, sizeof one);
    ranks_barrier();
    ranks_agree("text", "x");
    MUST(all == 5 && one == 5 && ranks.rank == 0 && ranks.world == 1 && !ranks.launched);
    fail("no more %s", "room");
}

static void test_alone(void) {
    play(1, scene_alone);
    ENDS("tide: no more room\n", 0, 1, 0);
}

static int victim;

// Whoever starts late is waited for.
static void scene_late(int rank) {
    if (rank == victim) usleep(700000);
    ranks_open();
    ranks_barrier();
    if (rank == victim) usleep(200000);
    ranks_close();
    if (rank == (victim + 1) % 3) usleep(400000);  // and may leave when it likes
}
static void test_late(void) {
    for (victim = 0; victim < 3; victim++) {
        play(3, scene_late);
        SUCCEEDS();
    }
}

static void scene_exits(int rank) {
    ranks_open();
    usleep(250000 * (unsigned)(victim == 0 ? rank : job.world - rank));
}
static void test_all_exit(void) {
    for (victim = 0; victim < 2; victim++) {
        play(4, scene_exits);
        SUCCEEDS();
    }
}

// Numbers of this machine that nobody gave are counted; and rank 0 by another of its names.
static void scene_counts(int rank) {
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    setenv("MASTER_ADDR", "localhost", 1);
    ranks_open();
    MUST(ranks.local == rank && ranks.local_world == job.world);
    ranks_barrier();
    ranks_close();
}
static void test_counted(void) {
    play(3, scene_counts);
    SUCCEEDS();
}

// TCP is told to find out about machines that are gone; but not where a full buffer would count.
static void scene_silence(int rank) {
    ranks_open();
    for (int p = 0; p < (rank == 0 ? job.world : rank); p++) {
        const RanksPeer *x = &ranks_watch->peers[p];
        int alive = 0, silence = 0, of_data = 0;
        socklen_t n = sizeof(int);
        if (p == rank) continue;
        MUST(getsockopt(x->pipe.fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &n) == 0 && alive == 1);
        MUST(getsockopt(x->pipe.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, &n) == 0);
        MUST(silence == 25000);
        if (rank > 0 && p > 0) continue;
        MUST(getsockopt(x->data, IPPROTO_TCP, TCP_USER_TIMEOUT, &of_data, &n) == 0);
        MUST(of_data == 0);
    }
    ranks_barrier();
    ranks_close();
}
static void test_silence(void) {
    play(4, scene_silence);
    SUCCEEDS();
}

// ---------------------------------------------------------------------------------------------
// One fails

typedef enum { DIES, FAILS, FAILS_ON_THREAD, IS_AWAITED, IS_KILLED, CRASHES, EXITS, HOWS } How;
static How how;
static bool others_exchange;

static void *fails_on_thread(void *arg) {
    thread_is_awaited = arg != NULL;
    fail("no memory on a thread");
}

static void scene_one(int rank) {
    static int all[MOST];
    pthread_t thread;
    ranks_open();
    ranks_barrier();
    if (rank != victim) {
        printf("printed before");
        while (others_exchange) ranks_exchange(&rank, sizeof rank, all);
        hang();
    }
    usleep(20000);
    switch (how) {
        case DIES: die("a file is missing\nor damaged");
        case FAILS: fail("no memory");
        case FAILS_ON_THREAD: case IS_AWAITED:
            pthread_create(&thread, NULL, fails_on_thread, how == IS_AWAITED ? &thread : NULL);
            break;
        case IS_KILLED: kill(getpid(), SIGKILL); break;
        case CRASHES: signal(SIGSEGV, SIG_DFL); kill(getpid(), SIGSEGV); break;
        default: exit(0);
    }
    hang();
}

static void test_one_fails(void) {
    static const int worlds[] = {2, 3, 4, 7};
    static const struct { int code; const char *line; } expected[HOWS] = {
        {2, "tide: rank %d: a file is missing?or damaged\n"}, {1, "tide: rank %d: no memory\n"},
        {1, "tide: rank %d: no memory on a thread\n"},
        {1, "tide: rank %d: no memory on a thread\n"},
        {128 + SIGKILL, ", process %d) is gone: it was killed, or crashed\n"},
        {128 + SIGSEGV, ", process %d) is gone: it was killed, or crashed\n"},
        {0, ", process %d) has left the run, but the others go on\n"}};
    int round = 0;
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < HOWS; h++)
            for (victim = 0; victim < worlds[i]; victim++) {
                char line[200];
                how = (How)h;
                others_exchange = (victim + h) % 2 == 0;
                if (worlds[i] > 2 && round++ % (2 * i) != 0) continue;
                play(worlds[i], scene_one);
                snprintf(line, sizeof line, expected[h].line,
                         h < IS_KILLED ? victim : (int)job.processes[victim]);
                ENDS(line, victim, expected[h].code, 1);
                snprintf(line, sizeof line, "tide: rank %d%s", victim, h < IS_KILLED ? ": " : " (");
                CHECK(strncmp(job.text, line, strlen(line)) == 0, "%s", job.text);
                CHECK(strcmp(job.out, victim == 0 ? "" : "printed before") == 0, "%s", job.out);
            }
}

// ---------------------------------------------------------------------------------------------
// Several fail, at the same time

static unsigned which;  // bits: these ranks
static void scene_same(int rank) {
    if (how == DIES) {  // before they have met
        usleep((unsigned)(rank * 7919 % 5) * 3000);
        die("--speed: no such option");
    }
    ranks_open();
    ranks_barrier();
    if (!(which >> rank & 1)) hang();
    if (how == IS_KILLED) kill(getpid(), SIGKILL);
    fail("no room");
}

static void test_all_fail(void) {
    which = ~0u;
    for (int world = 2; world <= 7; world += world == 4 ? 3 : 1) {
        how = DIES;
        play(world, scene_same);
        ENDS(": --speed: no such option\n", -1, 0, 2);
        how = FAILS;
        play(world, scene_same);
        ENDS(": no room\n", -1, 0, 1);
    }
}

static void test_some_are_killed(void) {
    static const unsigned sets[] = {3, 5, 6, 7, 14, 11, 0x3f, 0x7e, 0x55};
    how = IS_KILLED;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        const int world = sets[i] < 15 ? 4 : 7;
        which = sets[i];
        play(world, scene_same);
        CHECK(job.lines == 1 && strstr(job.text, "is gone: it was killed, or crashed\n") != NULL,
              "killed %x: %s", which, job.text);
        for (int r = 0; r < world; r++)
            CHECK(job.codes[r] == (which >> r & 1 ? 128 + SIGKILL : 1), "codes%s", codes());
    }
}

// Who dies is the cause; what another says of it then is not.
static void scene_effect(int rank) {
    ranks_open();
    ranks_barrier();
    if (rank == 2) kill(getpid(), SIGKILL);
    while (rank == 1 && !__atomic_load_n(&common->count, __ATOMIC_SEQ_CST)) usleep(1000);
    if (rank == 1) fail("a rank does not answer");
    hang();
}
static void test_cause_and_effect(void) {
    siginfo_t info;
    job_new(3);
    for (int r = 0; r < 3; r++) start_rank(r, r, 3, scene_effect);
    CHECK(waitid(P_PID, (id_t)job.processes[2], &info, WEXITED | WNOWAIT) == 0, "waitid");
    __atomic_store_n(&common->count, 1, __ATOMIC_SEQ_CST);
    finish();
    ENDS(") is gone: it was killed, or crashed\n", 2, 128 + SIGKILL, 1);
}

// Threads that fail at the same time: one of them is heard.
static void *fails_too(void *arg) { fail("on thread %d", *(const int *)arg); }
static void scene_threads(int rank) {
    static int numbers[5] = {0, 1, 2, 3, 4};
    pthread_t thread;
    ranks_open();
    ranks_barrier();
    for (int i = 0; i < 5 && rank == victim; i++)
        pthread_create(&thread, NULL, fails_too, &numbers[i]);
    hang();
}
static void test_threads_fail(void) {
    for (victim = 0; victim < 2; victim++) {
        play(2, scene_threads);
        ENDS(": on thread ", -1, 0, 1);
    }
}

// Anything at any time.
static unsigned storm;
static void scene_storm(int rank) {
    static int all[MOST];
    unsigned x = storm * 2654435761u + (unsigned)rank * 40503u;
    x = (x ^ x >> 15) * 2246822519u;
    x ^= x >> 13;
    if (x % 8 == 0) usleep(x / 8 % 100000);
    if (x % 16 == 1) fail("early");
    ranks_open();
    ranks_barrier();
    const double until = seconds_now() + 1e-3 * (double)(x / 32 % 40);
    while (seconds_now() < until)
        if (storm % 3 != 0) ranks_exchange(&rank, sizeof rank, all);
        else usleep(1000);
    if (x / 4096 % 4 == 0) fail("in between");
    if (x / 4096 % 4 == 1) kill(getpid(), SIGKILL);
    if (x / 4096 % 4 == 2 || rank == 0) die("bad");
    while (storm % 3 != 0) ranks_exchange(&rank, sizeof rank, all);
    hang();
}
static void test_storm(void) {
    for (storm = 1; storm <= 24; storm++) {
        const int world = 2 + (int)(storm % 4);
        bool all_killed = true;
        play(world, scene_storm);
        for (int r = 0; r < world; r++) {
            CHECK(job.codes[r] == 1 || job.codes[r] == 2 || job.codes[r] == 128 + SIGKILL,
                  "storm %u: codes%s", storm, codes());
            all_killed &= job.codes[r] == 128 + SIGKILL;
        }
        CHECK(job.lines == 1 || (all_killed && job.lines == 0), "storm %u: codes%s, text %s",
              storm, codes(), job.text);
    }
}

// ---------------------------------------------------------------------------------------------
// Leaving

// A rank that has closed may go, and what happens to it then is its own affair.
static void scene_closes(int rank) {
    ranks_open();
    ranks_barrier();
    if (rank == victim) {
        ranks_close();
        if (how == DIES) die("too late");
        if (how == IS_KILLED) kill(getpid(), SIGKILL);
        return;
    }
    const bool long_after = victim == 1 && how == EXITS;
    usleep(long_after ? (useconds_t)(1e6 * RANKS_PATIENCE) + 700000 : 300000);
    ranks_close();
}
static void test_closed(void) {
    for (victim = 0; victim < 3; victim++) {
        char line[100];
        how = EXITS;
        play(3, scene_closes);
        SUCCEEDS();
        how = IS_KILLED;
        play(3, scene_closes);
        CHECK(job.lines == 0, "%s", job.text);
        how = DIES;
        play(3, scene_closes);
        snprintf(line, sizeof line, "tide: rank %d: too late\n", victim);
        ENDS(line, victim, 2, 0);
    }
}

// But it is missed in an exchange.
static void scene_closes_early(int rank) {
    ranks_open();
    ranks_barrier();
    if (rank != victim) {
        ranks_barrier();
        MUST(!"passed");
    }
    ranks_close();
}
static void test_closed_early(void) {
    for (victim = 0; victim < 3; victim++) {
        char line[100];
        play(3, scene_closes_early);
        snprintf(line, sizeof line, "tide: rank %d (", victim);
        ENDS(line, victim, 0, 1);
        CHECK(strstr(job.text, "has left the run, but the others go on\n") != NULL, "%s", job.text);
    }
}

// After rank 0 has closed, the others still end together.
static void scene_zero_closes(int rank) {
    ranks_open();
    ranks_barrier();
    if (rank == 0) {
        ranks_close();
        return;
    }
    usleep(100000);
    if (rank == victim) fail("no room");
    hang();
}
static void test_zero_closed(void) {
    for (victim = 1; victim < 4; victim++) {
        char line[100];
        play(4, scene_zero_closes);
        snprintf(line, sizeof line, "tide: rank %d: no room\n", victim);
        ENDS(line, 0, 0, 1);
    }
}

// A process that is stopped is not dead, and its exchange goes on where it was.
static void scene_stops(int rank) {
    static char all[3][3 << 20], mine[3 << 20];
    ranks_open();
    ranks_barrier();
    __atomic_store_n(&common->ready[rank], 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 3; i++) ranks_exchange(mine, sizeof mine, all);
    ranks_close();
}
static void test_stopped(void) {
    for (victim = 0; victim < 2; victim++) {
        job_new(3);
        for (int r = 0; r < 3; r++) start_rank(r, r, 3, scene_stops);
        while (!__atomic_load_n(&common->ready[victim], __ATOMIC_SEQ_CST)) usleep(100);
        kill(job.processes[victim], SIGSTOP);
        sleep((unsigned)RANKS_PATIENCE + 1);
        kill(job.processes[victim], SIGCONT);
        finish();
        SUCCEEDS();
    }
}

// Who decides does not answer, but a rank that fails does not wait for it for ever; nor is its line
// said again.
static void scene_stopped_zero(int rank) {
    ranks_open();
    ranks_barrier();
    __atomic_store_n(&common->ready[rank], 1, __ATOMIC_SEQ_CST);
    if (rank == 2) {
        while (!__atomic_load_n(&common->count, __ATOMIC_SEQ_CST)) usleep(1000);
        fail("no room");
    }
    hang();
}
static void test_zero_is_stopped(void) {
    job_new(3);
    for (int r = 0; r < 3; r++) start_rank(r, r, 3, scene_stopped_zero);
    while (!__atomic_load_n(&common->ready[0], __ATOMIC_SEQ_CST)) usleep(100);
    kill(job.processes[0], SIGSTOP);
    __atomic_store_n(&common->count, 1, __ATOMIC_SEQ_CST);
    await_line();
    kill(job.processes[0], SIGCONT);
    finish();
    ENDS("tide: rank 2: no room\n", -1, 0, 1);
}

// ---------------------------------------------------------------------------------------------
// Disagreement

static const char *texts[3];
static void scene_disagrees(int rank) {
    ranks_open();
    ranks_agree("options", texts[rank]);
    ranks_barrier();
    ranks_close();
}
static void test_disagree(void) {
    static const struct { const char *texts[3], *says; } cases[] = {
        {{"{\"a\":1,\"lr\":0.1}", "{\"a\":1,\"lr\":0.1}", "{\"a\":1,\"lr\":0.25}"},
         "rank 2 has \"lr\":0.25, rank 0 has \"lr\":0.1\n"},
        {{"{\"a\":[1,2], \"s\": \"x, \\\"y\"}", "{\"a\":[1,3], \"s\": \"x, \\\"y\"}", "{}"},
         "rank 1 has \"a\":[1,3], rank 0 has \"a\":[1,2]\n"},
        {{"{\"a\":{\"b\":1,\"c\":2}, \"s\": \"x, \\\"y\"}",
          "{\"a\":{\"b\":1,\"c\":2}, \"s\": \"x, \\\"z\"}", "{}"},
         "rank 1 has \"s\": \"x, \\\"z\", rank 0 has \"s\": \"x, \\\"y\"\n"},
        {{"gpt2 fp32 8", "gpt2 fp32 8", "gpt2 bf16 8"}, "rank 2 has bf16, rank 0 has fp32\n"},
        {{"one", "one two", "one"}, "rank 1 has two, rank 0 has no more\n"},
        {{"{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":2}", "{\"a\":1}"},
         "rank 2 has no more, rank 0 has \"b\":2\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(texts, cases[i].texts, sizeof texts);
        play(3, scene_disagrees);
        ENDS("tide: rank 0: the options of all ranks must be the same: ", 0, 2, 1);
        CHECK(strstr(job.text, cases[i].says) != NULL, "%s not %s", job.text, cases[i].says);
    }
}

// Ranks that do not do the same are told so, before one takes the other's data for its own.
static void scene_out_of_step(int rank) {
    static char some[8], all[24];
    ranks_open();
    if (victim == 0) ranks_exchange(some, rank == 1 ? 8 : 4, all);
    else if ((rank == 1) == (victim == 1)) ranks_broadcast(some, 8);
    else ranks_exchange(some, 8, all);
    ranks_barrier();
    MUST(!"passed");
}
static void test_out_of_step(void) {
    for (victim = 0; victim < 3; victim++) {
        play(3, scene_out_of_step);
        ENDS(": out of step: turn 1 is here ", -1, 0, 1);
    }
}

// ---------------------------------------------------------------------------------------------
// Meeting

static void scene_hangs(int rank) {
    (void)rank;
    ranks_open();
    hang();
}

static void scene_meets_nobody(int rank) {
    (void)rank;
    setenv("TIDE_TIMEOUT", "2", 1);
    ranks_open();
    MUST(!"met");
}

static void test_missing(void) {
    job_new(2);
    start_rank(0, 0, 5, scene_meets_nobody);
    start_rank(1, 3, 5, scene_meets_nobody);
    finish();
    ENDS("tide: rank 0: waited 2 s at 127.0.0.1 port ", -1, 0, 1);
    CHECK(strstr(job.text, ", but of 5 ranks 1, 2, 4 are missing\n") != NULL, "%s", job.text);
    job_new(3);
    for (int i = 0; i < 3; i++) start_rank(i, i + 1, 4, scene_meets_nobody);
    finish();
    ENDS("tide: rank 1: cannot reach rank 0 at 127.0.0.1 port ", -1, 0, 1);
    CHECK(strstr(job.text, "within 2 s: Connection refused\n") != NULL, "%s", job.text);
}

static void scene_unknown(int rank) {
    setenv("MASTER_ADDR", "no.such.host.invalid", 1);
    scene_meets_nobody(rank);
}
static void test_unknown_host(void) {  // or one that cannot be asked for at the moment
    play(3, scene_unknown);
    CHECK(job.lines == 1 && (strstr(job.text, "tide: rank 0: MASTER_ADDR no.such.host.invalid: ")
                             || strstr(job.text, "tide: rank 0: waited 2 s at no.such.host.inv")),
          "%s", job.text);
    for (int r = 0; r < 3; r++) CHECK(job.codes[r] == 1 || job.codes[r] == 2, "codes%s", codes());
}

static void test_port_is_taken(void) {
    job_new(3);
    const int fd = ranks_listen(&job.port, 10);
    for (int r = 0; r < 3; r++) start_rank(r, r, 3, scene_meets_nobody);
    finish();
    ENDS("tide: rank 0: MASTER_PORT ", 0, 2, 1);
    CHECK(strstr(job.text, ": Address already in use, by another program") != NULL, "%s", job.text);
    close(fd);
}

static void scene_no_address(int rank) {
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    scene_meets_nobody(rank);
}
static void test_no_address(void) {
    play(3, scene_no_address);
    ENDS("tide: rank 0: MASTER_ADDR is not set: ", -1, 0, 2);
}

static void test_wrong_numbers(void) {
    job_new(4);
    for (int i = 0; i < 4; i++) start_rank(i, i == 3 ? 1 : i, 4, scene_hangs);
    finish();
    ENDS("tide: two are rank 1: rank 1 (", 0, 2, 1);
    job_new(3);
    for (int r = 0; r < 3; r++) start_rank(r, r, r == 1 ? 4 : 3, scene_hangs);
    finish();
    ENDS(") is one of 4, rank 0 one of 3\n", 0, 2, 1);
}

// One fails or is killed while they wait for the last.
static void scene_waits(int rank) {
    if (rank == victim) die("bad");
    scene_hangs(rank);
}
static void test_while_waiting(void) {
    for (victim = 0; victim < 3; victim++) {
        char line[100];
        play(3, scene_waits);
        snprintf(line, sizeof line, "tide: rank %d: bad\n", victim);
        ENDS(line, victim, 2, 1);
        job_new(3);
        for (int r = 0; r < 3; r++) start_rank(r, r, 4, scene_hangs);
        sleep(2);  // they have met rank 0 by now
        kill(job.processes[victim], SIGKILL);
        finish();
        snprintf(line, sizeof line, "tide: rank %d (", victim);
        ENDS(line, victim, 128 + SIGKILL, 1);
        CHECK(strstr(job.text, ") is gone: it was killed, or crashed\n") != NULL, "%s", job.text);
    }
}

// Who comes when it is over is told so.
static void scene_comes_late(int rank) {
    if (rank == 0) die("bad");
    await_line();
    scene_hangs(rank);
}
static void test_too_late(void) {
    play(3, scene_comes_late);
    ENDS("tide: rank 0: bad\n", 0, 2, 1);
    CHECK(job.seconds < 20, "%g s", job.seconds);  // else they wait for 30
}

// ---------------------------------------------------------------------------------------------
// Strangers

static void scene_goes_well(int rank) {
    ranks_open();
    ranks_barrier();
    MUST(ranks.rank == rank);
    ranks_barrier();
    ranks_close();
}

static int visit(const void *bytes, size_t n) {
    Error why;
    int unknown, fd = -1;
    while (fd < 0) {
        fd = ranks_connect("127.0.0.1", job.port, seconds_now() + 1, &unknown, &why);
        if (fd < 0) usleep(10000);
    }
    CHECK(send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n, "%s", strerror(errno));
    return fd;
}

static RanksMessage letter(int type, int rank, int world) {
    static RanksWatch w;
    RanksMessage m;
    ranks_message(&w, &m, type);
    m.rank = rank;
    m.world = world;
    return m;
}

static void test_strangers(void) {
    static const char http[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    char noise[20000];
    int visitors[100], n = 0;
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)rand();
    const RanksMessage hello = letter(RANKS_HELLO, 1, 3), data = letter(RANKS_DATA, 2, 3);
    const RanksMessage link = letter(RANKS_LINK, 2, 3);
    RanksMessage other_run = hello, odd = hello;
    strcpy(other_run.job, "another");
    odd.type = 1000;
    job_new(3);
    start_rank(0, 0, 3, scene_goes_well);
    visitors[n++] = visit("", 0);
    visitors[n++] = visit("tide", 4);
    visitors[n++] = visit(http, sizeof http);
    visitors[n++] = visit(noise, sizeof noise);
    visitors[n++] = visit(&hello, sizeof hello - 1);
    visitors[n++] = visit(&data, sizeof data);
    visitors[n++] = visit(&link, sizeof link);
    visitors[n++] = visit(&other_run, sizeof other_run);
    visitors[n++] = visit(&odd, sizeof odd);
    start_rank(1, 1, 3, scene_goes_well);
    while (n < 100) visitors[n++] = visit("t", 1);
    start_rank(2, 2, 3, scene_goes_well);
    finish();
    SUCCEEDS();
    while (n > 0) close(visitors[--n]);
    for (int i = 0; i < 4; i++) {  // of another version, or number
        static const char *const says[] = {
            "tide: rank 0: on 127.0.0.1 runs version 9.8.7 of this program, here runs "
            TIDE_VERSION "\n", ") is one of 4, rank 0 one of 3\n", "rank 3 (", "rank -1 ("};
        RanksMessage m = letter(RANKS_HELLO, i == 2 ? 3 : i == 3 ? -1 : 2, i == 1 ? 4 : 3);
        if (i == 0) strcpy(m.version, "9.8.7");
        job_new(2);
        for (int r = 0; r < 2; r++) start_rank(r, r, 3, scene_hangs);
        const int fd = visit(&m, i == 0 ? 40 : sizeof m);
        finish();
        close(fd);
        ENDS(says[i], 0, 2, 1);
    }
    RanksMessage m = letter(RANKS_OVER, 0, 3);  // and if rank 0 is of another version, it says so
    strcpy(m.version, "9.8.7");
    job_new(1);
    const int listener = ranks_listen(&job.port, 10);
    start_rank(0, 1, 3, scene_hangs);
    int fd = -1;
    while ((fd = accept(listener, NULL, NULL)) < 0) usleep(1000);
    CHECK(send(fd, &m, sizeof m, MSG_NOSIGNAL) == sizeof m, "%s", strerror(errno));
    finish();
    close(fd);
    close(listener);
    CHECK(job.lines == 0 && job.codes[0] == 2, "codes%s: %s", codes(), job.text);
}

// ---------------------------------------------------------------------------------------------
// The environment

static bool find(Ranks *r, Error *err, const char *settings) {
    char text[1000], *rest = text;
    snprintf(text, sizeof text, "%s", settings);
    set_none();
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    err->text[0] = '\0';
    const bool ok = ranks_find(r, err);
    set_none();
    return ok;
}

static void test_environment(void) {
    static const struct {
        const char *settings;
        int rank, world, local, local_world;
        bool launched, local_known;
        const char *address;
        int port;
    } good[] = {
        {"", 0, 1, 0, 1, false, true, "127.0.0.1", 29500},
        {"MASTER_PORT=77 MASTER_ADDR=far TIDE_TIMEOUT=x", 0, 1, 0, 1, false, true, "127.0.0.1",
         29500},
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", 0, 1, 0, 1, true, true,
         "127.0.0.1", 29500},
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=far MASTER_PORT=1234",
         5, 8, 1, 4, true, true, "far", 1234},
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 TORCHELASTIC_RUN_ID=none", 5, 8, 5, 8,
         true, true, "127.0.0.1", 29501},
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 TORCHELASTIC_RUN_ID=none "
         "MASTER_PORT=4000", 5, 8, 5, 8, true, true, "127.0.0.1", 4001},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=far", 1, 2, 0, 1, true, false, "far", 29500},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 "
         "SLURM_STEP_TASKS_PER_NODE=1", 3, 4, 3, 4, true, true, "127.0.0.1", 29500},
        {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_ADDR=a "
         "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
         2, 4, 0, 2, true, true, "a", 29500},
        {"PMI_RANK=2 PMI_SIZE=4 MASTER_ADDR=a SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 "
         "SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NODEID=1",
         2, 4, 0, 2, true, true, "a", 29500},
        {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0", 0, 1, 0, 1, false, true,
         "127.0.0.1", 29500},  // a batch script
        {"SLURM_PROCID=7 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=7 SLURM_STEP_TASKS_PER_NODE=8", 7, 8,
         7, 8, true, true, "127.0.0.1", 29500},
        {"SLURM_PROCID=10 SLURM_STEP_NUM_TASKS=11 SLURM_LOCALID=2 SLURM_NODEID=2 MASTER_ADDR=n1 "
         "SLURM_STEP_TASKS_PER_NODE=4(x2),3", 10, 11, 2, 3, true, true, "n1", 29500},
        {"SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=11 SLURM_LOCALID=0 SLURM_NODEID=1 MASTER_ADDR=n1 "
         "SLURM_STEP_TASKS_PER_NODE=4(x2),3", 4, 11, 0, 4, true, true, "n1", 29500}};
    static const struct { const char *settings, *says; } bad[] = {
        {"RANK=0", "RANK is set, but WORLD_SIZE is not"},
        {"WORLD_SIZE=2", "WORLD_SIZE is set, but RANK is not"},
        {"LOCAL_RANK=0", "LOCAL_RANK is set, but RANK is not"},
        {"LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE is set, but RANK is not"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", "LOCAL_RANK is set, but LOCAL_WORLD_SIZE is not"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2",
         "LOCAL_WORLD_SIZE is set, but LOCAL_RANK is not"},
        {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not"},
        {"PMI_RANK=1", "PMI_RANK is set, but PMI_SIZE is not"},
        {"MPI_LOCALRANKID=1", "MPI_LOCALRANKID is set, but PMI_RANK is not"},
        {"SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_TASKS is set, but SLURM_PROCID is not"},
        {"RANK=x WORLD_SIZE=2", "RANK is \"x\": not a number"},
        {"RANK= WORLD_SIZE=2", "RANK is \"\": not a number"},
        {"RANK=-1 WORLD_SIZE=2", "RANK is \"-1\": not a number"},
        {"RANK=1 WORLD_SIZE=2x", "WORLD_SIZE is \"2x\": not a number"},
        {"RANK=1 WORLD_SIZE=99999999999999999999", "not a number"},
        {"RANK=2 WORLD_SIZE=2", "RANK is 2, and WORLD_SIZE 2"},
        {"RANK=0 WORLD_SIZE=0", "RANK is 0, and WORLD_SIZE 0"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "do not go with"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3", "do not go with"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=", "MASTER_ADDR is not set"},
        {"RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not set"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", "MASTER_ADDR is not set"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=0", "MASTER_PORT is 0"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=65536", "MASTER_PORT is \"65536\""},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=x TORCHELASTIC_RUN_ID=n MASTER_PORT=65535",
         "MASTER_PORT is \"65535\""},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=x TIDE_TIMEOUT=soon", "TIDE_TIMEOUT is \"soon\""},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=a",
         "do not go with"},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=2 "
         "SLURM_STEP_TASKS_PER_NODE=1(x2)", "do not go with"}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        Ranks r;
        Error err;
        CHECK(find(&r, &err, good[i].settings), "%s: %s", good[i].settings, err.text);
        CHECK(r.rank == good[i].rank && r.world == good[i].world && r.local == good[i].local
              && r.local_world == good[i].local_world && r.launched == good[i].launched
              && r.local_known == good[i].local_known && strcmp(r.address, good[i].address) == 0
              && r.port == good[i].port, "%s: %d %d %d %d %s %d", good[i].settings, r.rank, r.world,
              r.local, r.local_world, r.address, r.port);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Ranks r;
        Error err;
        CHECK(!find(&r, &err, bad[i].settings) && strstr(err.text, bad[i].says) != NULL, "%s: %s",
              bad[i].settings, err.text);
    }
}

static void scene_half(int rank) {
    (void)rank;
    unsetenv("WORLD_SIZE");
    ranks_open();
    MUST(!"alone");
}
static void test_half_an_environment(void) {
    play(1, scene_half);
    ENDS("tide: RANK is set, but WORLD_SIZE is not: a launcher sets both\n", 0, 2, 0);
}

// ---------------------------------------------------------------------------------------------

// ThreadSanitizer asks: else each process sleeps for a second when it ends.
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=20"; }

// For test_launch.sh: one rank of those that launch.sh starts. Rank 1 does what the word says.
static int be_a_rank(const char *word) {
    ranks_open();
    ranks_agree("words", word);
    if (ranks.rank == 1 && strcmp(word, "die") == 0) die("bad input");
    if (ranks.rank == 1 && strcmp(word, "kill") == 0) kill(getpid(), SIGKILL);
    while (strcmp(word, "talk") != 0) ranks_barrier();
    printf("%d ranks\n", ranks.world);
    ranks_close();
    return 0;
}

// usage: test_ranks       all tests
//        test_ranks WORD  one rank: die, kill or talk
int main(int argc, char **argv) {
    if (argc > 1) return be_a_rank(argv[1]);
    void *memory = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    if (memory == MAP_FAILED) { perror("mmap"); return 1; }
    memcpy(&common, &memory, sizeof common);
    set_none();
    RUN(test_environment);
    RUN(test_half_an_environment);
    RUN(test_alone);
    RUN(test_talk);
    RUN(test_late);
    RUN(test_all_exit);
    RUN(test_counted);
    RUN(test_silence);
    RUN(test_one_fails);
    RUN(test_all_fail);
    RUN(test_some_are_killed);
    RUN(test_cause_and_effect);
    RUN(test_threads_fail);
    RUN(test_storm);
    RUN(test_closed);
    RUN(test_closed_early);
    RUN(test_zero_closed);
    RUN(test_stopped);
    RUN(test_zero_is_stopped);
    RUN(test_disagree);
    RUN(test_out_of_step);
    RUN(test_missing);
    RUN(test_unknown_host);
    RUN(test_port_is_taken);
    RUN(test_no_address);
    RUN(test_wrong_numbers);
    RUN(test_while_waiting);
    RUN(test_too_late);
    RUN(test_strangers);
    return test_summary();
}
