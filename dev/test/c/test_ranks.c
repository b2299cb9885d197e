// Several processes as one run: they meet, exchange, and end together, whatever happens to whom.
// Every test starts real processes on this machine.
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include "../../../tide/base/ranks.h"
#include "../dies.h"
#include "../processes.h"
#include "../test.h"

static struct { int count; } *common;  // memory of all processes

// Lines say `words` (NULL: there are none), and at most one of each rank any. The exit code of the
// ranks in the set `who` is `code`, that of the others `rest`.
static void ends(int line, const char *words, unsigned who, int code, int rest) {
    int lines = 0;
    for (const char *c = job.texts[1]; *c != '\0'; c++) lines += *c == '\n';
    CHECK(words == NULL ? lines == 0 : strstr(job.texts[1], words) != NULL && lines <= job.world,
          "line %d: not '%s': %s", line, words != NULL ? words : "", job.texts[1]);
    for (int r = 0; r < job.world; r++)
        CHECK(job.codes[r] == (who >> r & 1 ? code : rest), "line %d: rank %d ends with %d: %s",
              line, r, job.codes[r], job.texts[1]);
}
#define ENDS(words, who, code, rest) ends(__LINE__, words, who, code, rest)
#define SUCCEEDS() ENDS(NULL, 0, 0, 0)

// In the processes: ends this one without a word to the others, so that all is noticed.
#define MUST(condition)                                                                      \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            dprintf(STDERR_FILENO, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            _exit(99);                                                                       \
        }                                                                                    \
    } while (0)

static void hang(void) { for (;;) pause(); }

// ---------------------------------------------------------------------------------------------
// All goes well

static void scene_talks(int rank) {
    static unsigned char mine[700001], all[MOST * sizeof mine];
    const int world = job.world;
    if (rank == world / 2) usleep(700000);  // whoever starts late is waited for
    ranks_open();
    MUST(ranks.rank == rank && ranks.world == world);
    for (int turn = 0; turn < 12; turn++) {
        const size_t n = turn < 10 ? (size_t)1 << 2 * (turn % 9) : sizeof mine;
        unsigned char *from = turn % 2 == 1 ? all + (size_t)rank * n : mine;  // either is allowed
        if ((turn * 7 + rank) % 11 == 0) usleep(3000);
        for (size_t i = 0; i < n; i++) from[i] = (unsigned char)(turn + rank * 57 + (int)i * 7);
        ranks_exchange(from, n, all);
        for (int p = 0; p < world; p++)
            for (size_t i = 0; i < n; i++)
                MUST(all[(size_t)p * n + i] == (unsigned char)(turn + p * 57 + (int)i * 7));
        memset(mine, rank, n);
        ranks_broadcast(mine, n);
        for (size_t i = 0; i < n; i++) MUST(mine[i] == 0);
        // nobody passes a barrier before all have come
        __atomic_add_fetch(&common->count, 1, __ATOMIC_SEQ_CST);
        ranks_barrier();
        MUST(__atomic_load_n(&common->count, __ATOMIC_SEQ_CST) >= (turn + 1) * world);
    }
    ranks_agree("options", "{\"lr\":0.1,\"batch\":4}");
    printf("rank %d prints\n", rank);
    fflush(stdout);
    MUST(system("echo so does a program") == 0);
    if (world == 2) return;  // without a word, as after --help
    ranks_close();
    usleep(300000 * (unsigned)((rank + world / 2) % world));  // each leaves when it likes
}

static void test_talk(void) {
    for (int world = 1; world <= MOST; world += world < 4 ? 1 : 3) {
        common->count = 0;
        play(world, scene_talks);
        SUCCEEDS();
        CHECK(strcmp(job.texts[0], "rank 0 prints\nso does a program\n") == 0, "%s", job.texts[0]);
    }
}

// ---------------------------------------------------------------------------------------------
// One fails

static unsigned which;  // bits: the ranks that do what others do not
typedef enum { DIES, FAILS_ON_THREAD, IS_AWAITED, IS_KILLED, WAITS, EXITS, HOWS } How;
static How how;
static bool others_exchange;

static bool is_victim(int rank) { return which >> rank & 1; }

static void *fails_on_thread(void *arg) {
    thread_is_awaited = arg != NULL;
    fail("no memory on a thread");
}

static void scene_fails(int rank) {
    static int all[MOST];
    pthread_t thread;
    if (how == WAITS && rank == 2) sleep(2);  // while the others wait, an alarm ends the victim
    if (how == WAITS && is_victim(rank)) alarm(1);
    ranks_open();
    ranks_barrier();
    if (!is_victim(rank)) {
        while (others_exchange) ranks_exchange(&rank, sizeof rank, all);
        hang();
    }
    switch (how) {
        case DIES: die("a file is missing\nor damaged");
        case FAILS_ON_THREAD: case IS_AWAITED:
            pthread_create(&thread, NULL, fails_on_thread, how == IS_AWAITED ? &thread : NULL);
            break;
        case IS_KILLED: kill(getpid(), SIGKILL); break;
        case EXITS: exit(0);
        default: break;
    }
    hang();
}

static void test_some_fail(void) {
    static const struct { int code, rest; const char *line; } expected[HOWS] = {
        {2, 2, "tide: rank %d: a file is missing?or damaged\n"},
        {1, 1, "tide: rank %d: no memory on a thread\n"},
        {1, 1, "tide: rank %d: no memory on a thread\n"},
        {128 + SIGKILL, 1, "tide: rank %d is gone: it was killed, or crashed\n"},
        {128 + SIGALRM, 1, "tide: rank %d is gone: it was killed, or crashed\n"},
        {0, 1, "tide: rank %d is gone: it was killed, or crashed\n"}};
    static const unsigned sets[] = {1, 2, 4, 6, 0x55, 0x7f};
    for (int i = 0; i < HOWS * 6; i++) {
        char line[200] = "tide: rank ";
        const bool one = i < HOWS * 3;
        how = (How)(i % HOWS);
        which = sets[i / HOWS];
        others_exchange = i % 4 < 2;
        if (!one && how != DIES && how != IS_KILLED) continue;
        if (how == WAITS && which != 2) continue;
        if (one) snprintf(line, sizeof line, expected[how].line, i / HOWS);
        play(one ? 3 : MOST, scene_fails);
        ENDS(which == 0x7f ? "" : line, which, expected[how].code, expected[how].rest);
    }
}

// A rank that has closed may crash; one that is needed may not have left.
static void scene_closes(int rank) {
    ranks_open();
    ranks_barrier();
    if (!is_victim(rank)) usleep(500000);
    if (!is_victim(rank) && how == EXITS) ranks_barrier();
    ranks_close();
    if (is_victim(rank) && how == IS_KILLED) kill(getpid(), SIGKILL);
}

static void test_closed(void) {
    for (int victim = 0; victim < 3; victim++) {
        char line[100];
        which = 1u << victim;
        how = IS_KILLED;
        play(3, scene_closes);
        ENDS(NULL, which, 128 + SIGKILL, 0);
        how = EXITS;
        play(3, scene_closes);
        snprintf(line, sizeof line, "rank %d has left the run, but the others go on\n", victim);
        ENDS(line, which, 0, 1);
    }
}

// ---------------------------------------------------------------------------------------------
// Who does not come, and who else does

static void scene_meets_nobody(int rank) {
    (void)rank;
    set("TIDE_TIMEOUT", 2);
    ranks_open();
    MUST(!"met");
}

// Rank and world of each process that connects; is the port taken?; the words that rank 0 prints.
static void test_who_comes(void) {
    static const struct { int count, come[3][2]; bool taken; const char *words[3]; } rows[] = {
        {2, {{0, 5}, {1, 5}}, false,
         {"tide: rank 0: waited 2 s at 127.0.0.1 port ", ", but of 5 ranks rank 2 did not come\n",
          "waiting for rank 2 at port "}},
        {3, {{1, 4}, {2, 4}, {3, 4}}, false,
         {"tide: rank 1: cannot reach rank 0 at 127.0.0.1 port ",
          "within 2 s: Connection refused\n"}},
        {3, {{0, 3}, {1, 3}, {2, 3}}, true,
         {"tide: rank 0: MASTER_PORT ", ": Address already in use; choose another"}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Error why;
        job_new(rows[i].count);
        const int fd = rows[i].taken ? ranks_socket("::", true, 0, &why) : -1;
        for (int k = 0; k < job.world; k++)
            start_rank(k, rows[i].come[k][0], rows[i].come[k][1], scene_meets_nobody);
        finish();
        ENDS(rows[i].words[0], rows[i].taken, 2, 1);
        for (int k = 1; k < 3 && rows[i].words[k] != NULL; k++)
            CHECK(strstr(job.texts[1], rows[i].words[k]) != NULL
                  || strstr(job.texts[0], rows[i].words[k]) == job.texts[0], "%zu: %s%s", i,
                  job.texts[1], job.texts[0]);
        if (rows[i].taken) close(fd);
    }
}

// Two processes that would have the same GPU.
static void scene_has_no_number(int rank) {
    (void)rank;
    set("LOCAL_RANK", 0);
    ranks_open();
    MUST(!"met");
}
static void test_one_gpu_for_two(void) {
    play(3, scene_has_no_number);
    ENDS("ranks 0 and 1 are both number 0 on ", 0, 0, 2);
}

// Connects to rank 0, and sends these bytes.
static int visit(const void *bytes, size_t n) {
    Error why;
    int fd = -1;
    ranks.port = job.port;
    while ((fd = ranks_socket("127.0.0.1", false, 1, &why)) < 0) usleep(10000);
    CHECK(send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n, "%s", strerror(errno));
    return fd;
}

static void test_strangers(void) {
    const RanksHello hello = {"tide rk", "", 3, 1, 1};
    RanksHello guests[] = {hello, hello, hello};
    char noise[20000];
    int visitors[7], n = 0;
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)rand();
    strcpy(guests[0].job, "another");
    guests[1].rank = 3;
    guests[2].rank = -1;
    which = 0;
    job_new(3);
    start_rank(0, 0, 3, scene_closes);
    visitors[n++] = visit("", 0);
    visitors[n++] = visit("GET / HTTP/1.1\r\n\r\n", 18);
    visitors[n++] = visit(noise, sizeof noise);
    visitors[n++] = visit(&hello, sizeof hello - 1);
    start_rank(1, 1, 3, scene_closes);
    for (int i = 0; i < 3; i++) visitors[n++] = visit(&guests[i], sizeof guests[i]);
    start_rank(2, 2, 3, scene_closes);
    finish();
    SUCCEEDS();
    while (n > 0) close(visitors[--n]);
}

// ---------------------------------------------------------------------------------------------
// The environment

// Finds the ranks with these settings. Returns why not, or NULL.
static const char *find(const char *settings) {
    static const Ranks alone = {0, 1, 0, 1, 29500, 30, "127.0.0.1", ""};
    char text[1000], *rest = text;
    snprintf(text, sizeof text, "%s", settings);
    set_none();
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    ranks = alone;
    return DIES(ranks_find());
}

// What is set (after +: beside what makes rank 0 of 2), and what is found: rank/world, the same on
// this machine, address and port; or why it is refused.
static void test_environment(void) {
    static const struct { const char *settings, *found; } rows[] = {
        {"", "0/1 0/1 127.0.0.1 29500"},
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=far MASTER_PORT=1234",
         "5/8 1/4 far 1234"},
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 TORCHELASTIC_RUN_ID=none "
         "MASTER_PORT=4000", "5/8 5/8 127.0.0.1 4001"},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 "
         "SLURM_STEP_TASKS_PER_NODE=1", "3/4 3/4 127.0.0.1 29500"},
        {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_ADDR=a "
         "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
         "2/4 0/2 a 29500"},
        {"PMI_RANK=2 PMI_SIZE=4 MASTER_ADDR=a SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 "
         "SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(x2)", "2/4 0/2 a 29500"},
        {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0",
         "0/1 0/1 127.0.0.1 29500"},  // a batch script; and torchrun in one, and under srun
        {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a PMI_RANK=1 PMI_SIZE=2 "
         "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
         "3/4 1/2 a 29500"},
        {"WORLD_SIZE=4 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=2 "
         "SLURM_STEP_TASKS_PER_NODE=4", "2/4 2/4 127.0.0.1 29500"},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", "1/2 0/1 a 29500"},  // Kubernetes
        {"PMI_RANK=0 PMI_SIZE=1", "0/1 0/1 127.0.0.1 29500"},
        // half a description
        {"WORLD_SIZE=2", "WORLD_SIZE is 2, but RANK is not set"},
        {"PMI_SIZE=2", "PMI_SIZE is 2, but MPI_LOCALRANKID is not set"},
        {"RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not set: ranks on several machines meet on rank "
         "0's, which it names; on one machine, each needs LOCAL_RANK and LOCAL_WORLD_SIZE"},
        {"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2", "RANK is set, but LOCAL_RANK is not"},
        {"+ RANK=-1", "RANK is \"-1\": not a number"},
        {"+ RANK=2",
         "RANK 2, WORLD_SIZE 2, LOCAL_RANK 0 and LOCAL_WORLD_SIZE 2 do not go together"},
        {"+ LOCAL_WORLD_SIZE=1 MASTER_ADDR=", "MASTER_ADDR is not set"},
        {"+ MASTER_PORT=65535", "MASTER_PORT is \"65535\""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char all[500], found[400];
        const bool two = rows[i].settings[0] == '+';
        snprintf(all, sizeof all, "%s%s", two ? "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 "
                 "LOCAL_WORLD_SIZE=2 " : "", rows[i].settings + (two ? 2 : 0));
        const char *refusal = find(all);
        snprintf(found, sizeof found, "%d/%d %d/%d %s %d", ranks.rank, ranks.world, ranks.local,
                 ranks.local_world, ranks.address, ranks.port);
        CHECK(refusal != NULL ? strstr(refusal, rows[i].found) != NULL
              : strcmp(found, rows[i].found) == 0, "%s: %s %s", all, found, refusal);
    }
    find("");
}

// ---------------------------------------------------------------------------------------------

int main(void) {
    void *memory = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    if (memory == MAP_FAILED) { perror("mmap"); return 1; }
    memcpy(&common, &memory, sizeof common);
    RUN(test_environment);
    RUN(test_talk);
    RUN(test_some_fail);
    RUN(test_closed);
    RUN(test_who_comes);
    RUN(test_one_gpu_for_two);
    RUN(test_strangers);
    return test_summary();
}
