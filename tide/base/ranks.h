// ranks.h: several processes that are one run, one process for each GPU: how they find each other,
// exchange small data without NCCL, and end together.
//
//     ranks_open       reads the launcher's environment, and connects to the other ranks
//     ranks_exchange   sends bytes of every rank to all ranks, in rank order
//     ranks_broadcast  sends bytes of rank 0 to all ranks
//     ranks_barrier    returns when all ranks have called it
//     ranks_agree      ends the run unless a text is the same on all ranks
//     ranks_close      tells the others that this rank has done its part
//
// The ranks form a star: rank 0 listens on MASTER_PORT, and each other rank has two TCP connections
// to it. One carries data. The other carries news: a byte, sent when a rank ends. In each process a
// thread, the watcher, reads only news, because the main thread may be computing, or waiting in
// NCCL for a rank that has ended. If one rank ends, all end, within seconds:
//   - die() and fail() print their line and send their exit code. Rank 0 sends it to the others.
//   - If a process is killed, its connections end; if its machine fails, TCP notices after about 25
//     seconds. Then rank 0 prints a line; if rank 0 itself is gone, each of the others prints one.
//   - The watcher ends its process by _exit(), because the main thread may hang.
#ifndef TIDE_RANKS_H
#define TIDE_RANKS_H
#include "memory.h"
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

typedef struct {
    int rank, world;         // this process, and how many there are
    int local, local_world;  // the same for this machine; the process uses GPU number `local`
    int port;                // rank 0 listens there, at `address`
    int timeout;             // seconds in which all ranks must meet at the start
    char address[256];
    const char *job;         // the run's name: two runs may use the same port
} Ranks;

ONE_PER_PROGRAM Ranks ranks = {0, 1, 0, 1, 29500, 30, "127.0.0.1", ""};  // a single process

// ---------------------------------------------------------------------------------------------
// The environment

// Reads a number from the environment, or returns `unset`. Slurm's "4(x2)" is read as 4.
static int ranks_number(const char *name, int unset, int most) {
    const char *text = getenv(name);
    char *end;
    if (text == NULL) return unset;
    const long n = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || strchr("(,", *end) == NULL || n > most)
        die("%s is \"%.40s\": not a number from 0 to %d", name, text, most);
    return (int)n;
}

// Reads the variables that the launcher has set. Without any, this process is the only one. If only
// some are there, ends the program: to train alone would be a silent error. Kubernetes sets neither
// LOCAL_RANK nor LOCAL_WORLD_SIZE; then each process has a machine, or a pod, of its own.
static void ranks_find(void) {
    enum { TORCH, LAUNCHERS = 4, MOST = 1 << 16 };
    static const char *const launchers[LAUNCHERS][4] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},  // torchrun, scripts/launch.sh
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE"},                                  // Open MPI
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},  // MPICH, Intel MPI
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}};
    // The variable that only this launcher sets. (PMI_RANK is also srun's, SLURM_PROCID sbatch's.)
    static const int tells[LAUNCHERS] = {0, 0, 2, 1};
    Ranks *const r = &ranks;
    int by = 0;
    while (by < LAUNCHERS && getenv(launchers[by][tells[by]]) == NULL) by++;
    int *const found[4] = {&r->rank, &r->world, &r->local, &r->local_world};
    for (int k = 0; by == LAUNCHERS && k < LAUNCHERS; k++)  // refuses half of the variables
        for (int i = 0; i < 4; i++) {
            const int n = ranks_number(launchers[k][i], *found[i], MOST);
            if (n != *found[i])
                die("%s is %d, but %s is not set: a launcher sets both", launchers[k][i], n,
                    launchers[k][tells[k]]);
        }
    if (by == LAUNCHERS) return;
    const char *const *names = launchers[by];
    const bool here = getenv(names[2]) != NULL || getenv(names[3]) != NULL;
    for (int i = 0; i < (here || by != TORCH ? 4 : 2); i++)
        if (getenv(names[i]) == NULL)
            die("%s is set, but %s is not: a launcher sets both", names[tells[by]], names[i]);
    for (int i = 0; i < 4; i++) *found[i] = ranks_number(names[i], *found[i], MOST);
    r->port = ranks_number("MASTER_PORT", r->port, 65534);
    r->timeout = ranks_number("TIDE_TIMEOUT", r->timeout, 86400);
    if (r->rank >= r->world || r->local >= r->local_world || r->local_world > r->world)
        die("%s %d, %s %d, %s %d and %s %d do not go together", names[0], r->rank, names[1],
            r->world, names[2], r->local, names[3], r->local_world);
    const char *torch = getenv("TORCHELASTIC_RUN_ID"), *job = getenv("TIDE_JOB");
    const char *address = getenv("MASTER_ADDR");
    if (by == TORCH && torch != NULL) r->port++;  // torchrun itself listens on MASTER_PORT
    if (job != NULL || torch != NULL) r->job = job != NULL ? job : torch;
    if (address != NULL && address[0] != '\0')
        snprintf(r->address, sizeof r->address, "%s", address);
    else if (r->local_world < r->world)
        die("MASTER_ADDR is not set: ranks on several machines meet on rank 0's, which it names%s",
            here ? "" : "; on one machine, each needs LOCAL_RANK and LOCAL_WORLD_SIZE");
}

// ---------------------------------------------------------------------------------------------
// News

// The first message on a connection, and rank 0's answer. news: the connection carries news.
typedef struct { char magic[8], job[72]; int32_t world, rank, news; } RanksHello;

ONE_PER_PROGRAM RanksHello ranks_self;
ONE_PER_PROGRAM int *ranks_data;  // on rank 0 a socket to each rank; else [0], to rank 0; -1: none
ONE_PER_PROGRAM struct pollfd *ranks_news;  // sockets for news, in the same order
ONE_PER_PROGRAM pthread_mutex_t ranks_end = PTHREAD_MUTEX_INITIALIZER;  // held until the end

static int ranks_peer_count(void) { return ranks.rank == 0 ? ranks.world : 1; }

// Sends news to all peers: the exit code with which this rank failed, or 0: it has done its part.
static void ranks_tell(int code) {
    const unsigned char news = (unsigned char)code;
    for (int p = 0; p < ranks_peer_count(); p++)
        (void)!send(__atomic_load_n(&ranks_news[p].fd, __ATOMIC_SEQ_CST), &news, 1, MSG_NOSIGNAL);
}

// Waits for news. Ends this process if another rank has failed, or its connection has ended.
static void *ranks_watch(void *unused) {
    for (int p = 0;; p = (p + 1) % ranks_peer_count()) {
        while (p == 0 && poll(ranks_news, (nfds_t)ranks_peer_count(), -1) < 1) {}
        if (ranks_news[p].revents == 0) continue;
        unsigned char news = 1;
        const bool tells = recv(ranks_news[p].fd, &news, 1, 0) == 1;
        __atomic_store_n(&ranks_news[p].fd, -1, __ATOMIC_SEQ_CST);
        if (news == 0) continue;
        if (!tells) usleep(200000);  // if all ranks exit (--help), so does this one
        pthread_mutex_lock(&ranks_end);
        if (!tells)
            dprintf(STDERR_FILENO, "tide: rank %d is gone: it was killed, or crashed\n", p);
        ranks_tell(news);
        _exit(news);
    }
    return unused;
}

// Prints the line of die() or fail(), on any thread. All ranks may have the same error, and one
// line is enough: the waits let the line "rank N is gone" be printed first, then that of rank 0.
static void ranks_report(int code, const char *line) {
    usleep(ranks.rank == 0 ? 400000 : 800000);
    pthread_mutex_lock(&ranks_end);
    report_for_all = NULL;
    dprintf(STDERR_FILENO, "tide: rank %d: %s\n", ranks.rank, line);
    ranks_tell(code);
}

// Tells the others that this rank has done its part: then its exit is no failure.
static void ranks_close(void) {
    if (report_for_all == NULL) return;
    pthread_mutex_lock(&ranks_end);
    report_for_all = NULL;
    ranks_tell(0);
}

// ---------------------------------------------------------------------------------------------
// Meeting

// Sets how long calls wait (0: for ever). Keepalive notices that the other machine has failed.
static void ranks_tune(int fd, double seconds) {
    static const int options[][3] = {
        {IPPROTO_TCP, TCP_NODELAY, 1}, {SOL_SOCKET, SO_REUSEADDR, 1}, {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 10}, {IPPROTO_TCP, TCP_KEEPINTVL, 5},
        {IPPROTO_TCP, TCP_KEEPCNT, 3}, {IPPROTO_IPV6, IPV6_V6ONLY, 0}};
    const struct timeval t = {(time_t)seconds, (suseconds_t)(1e6 * (seconds - (int)seconds))};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        setsockopt(fd, options[i][0], options[i][1], &options[i][2], sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

// Returns a socket that listens at an address, or is connected to it. On error -1, and sets *why.
static int ranks_socket(const char *name, bool listens, double seconds, Error *why) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[16];
    int fd = -1;
    snprintf(port, sizeof port, "%d", ranks.port);
    const int unknown = getaddrinfo(name, port, &hints, &list);
    if (unknown != 0) error_set(why, "%s", gai_strerror(unknown));
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM, 0);
        ranks_tune(fd, seconds);
        if (listens ? bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0
                    : connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
        error_set(why, "%s", strerror(errno == EINPROGRESS ? ETIMEDOUT : errno));
        close(fd);
        fd = -1;
    }
    if (list != NULL) freeaddrinfo(list);
    return fd;
}

// Reads the first message of the other side. Returns false if that is no rank of this run.
static bool ranks_knows(int fd, RanksHello *h) {
    return recv(fd, h, sizeof *h, MSG_WAITALL) == sizeof *h
        && memcmp(h, &ranks_self, offsetof(RanksHello, rank)) == 0;
}

// Connects this rank, which is not rank 0, to rank 0.
static int ranks_reach(bool news, double until) {
    Error why = {"no answer"};
    RanksHello zero;
    ranks_self.news = news;
    for (double left; (left = until - seconds_now()) > 0; usleep(50000)) {
        const int fd = ranks_socket(ranks.address, false, left, &why);
        if (fd < 0) continue;
        (void)!send(fd, &ranks_self, sizeof ranks_self, MSG_NOSIGNAL);
        if (ranks_knows(fd, &zero) && zero.rank == 0) {
            ranks_tune(fd, 0);
            return fd;
        }
        close(fd);
        error_set(&why, "who answers there expects no rank %d of %d", ranks.rank, ranks.world);
    }
    fail("cannot reach rank 0 at %s port %d within %d s: %s", ranks.address, ranks.port,
         ranks.timeout, why.text);
}

// Accepts, on rank 0, two connections from each other rank. Closes all other connections.
static void ranks_gather(double until) {
    Error why;
    int listener = ranks_socket("::", true, 5, &why);  // accepts IPv4, too
    if (listener < 0) listener = ranks_socket("0.0.0.0", true, 5, &why);
    if (listener < 0)
        die("MASTER_PORT %d: %s; choose another, if another run or program has it", ranks.port,
            why.text);
    for (int missing = 1; missing < ranks.world;) {
        if (seconds_now() > until)
            fail("waited %d s at %s port %d, but of %d ranks rank %d did not come", ranks.timeout,
                 ranks.address, ranks.port, ranks.world, missing);
        RanksHello h;
        int *place = NULL;
        const int fd = accept(listener, NULL, NULL);
        if (fd < 0) {
            dprintf(STDOUT_FILENO, "waiting for rank %d at port %d\n", missing, ranks.port);
            continue;
        }
        ranks_tune(fd, 1);
        if (ranks_knows(fd, &h) && h.rank > 0 && h.rank < ranks.world)
            place = h.news ? &ranks_news[h.rank].fd : &ranks_data[h.rank];
        if (place == NULL || *place >= 0) {
            close(fd);
            continue;
        }
        (void)!send(fd, &ranks_self, sizeof ranks_self, MSG_NOSIGNAL);
        ranks_tune(fd, 0);
        *place = fd;
        while (missing < ranks.world && ranks_data[missing] >= 0) missing++;
    }
    close(listener);
}

// ---------------------------------------------------------------------------------------------
// Small data. One thread of each rank calls these functions, in the same order on all ranks. Rank 0
// receives `bytes` from each of R ranks, and sends R * bytes to each.

// Sends or receives bytes. If the connection has ended, first gives the watcher, which often knows
// the reason, two seconds to end the process.
static void ranks_pass(bool out, int peer, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        char *const p = (char *)data + at;
        const ssize_t n = out ? send(ranks_data[peer], p, bytes - at, MSG_NOSIGNAL)
                              : recv(ranks_data[peer], p, bytes - at, 0);
        if (n > 0) at += (size_t)n;
        if (n > 0 || (n < 0 && errno == EINTR)) continue;
        sleep(2);
        fail("rank %d has left the run, but the others go on", peer);
    }
}

// Copies `bytes` at data on rank 0 to data on all ranks.
static void ranks_broadcast(void *data, size_t bytes) {
    for (int p = 1; p < ranks_peer_count(); p++) ranks_pass(true, p, data, bytes);
    if (ranks.rank > 0) ranks_pass(false, 0, data, bytes);
}

// Copies the `bytes` at `mine` of each rank to `all` (world, bytes) on every rank. `bytes` must be
// equal on all ranks. `mine` may be this rank's row of `all`.
static void ranks_exchange(const void *mine, size_t bytes, void *all) {
    char *const out = (char *)all, *const own = out + (size_t)ranks.rank * bytes;
    memmove(own, mine, bytes);
    if (ranks.rank > 0) ranks_pass(true, 0, own, bytes);
    for (int p = 1; p < ranks_peer_count(); p++)
        ranks_pass(false, p, out + (size_t)p * bytes, bytes);
    ranks_broadcast(all, (size_t)ranks.world * bytes);
}

static void ranks_barrier(void) {
    char *all = (char *)alloc_or_fail((size_t)ranks.world, 1, "ranks");
    ranks_exchange("", 1, all);
    free(all);
}

// Ends the run unless `text` is the same on all ranks. The error begins with `what`, like
// "options", and shows the first line, or part between commas, that differs.
static void ranks_agree(const char *what, const char *text) {
    size_t length = strlen(text), at = 0;
    ranks_broadcast(&length, sizeof length);
    char *zero = (char *)alloc_or_fail(length + 1, 1, what);
    memcpy(zero, text, ranks.rank == 0 ? length : 0);
    ranks_broadcast(zero, length);
    for (size_t i = 0; i < length && text[i] == zero[i]; i++)
        if (strchr(",\n", text[i]) != NULL) at = i + 1;
    at += text[at] == ' ' && zero[at] == ' ';
    if (strcmp(text, zero) != 0)
        die("the %s of all ranks must be the same: here %.*s, on rank 0 %.*s", what,
            (int)strcspn(text + at, ",\n"), text + at, (int)strcspn(zero + at, ",\n"), zero + at);
    free(zero);
    ranks_barrier();  // all ranks have compared before any goes on
}

// Ends the run if two processes would use the same GPU. On several machines, prints which rank has
// which GPU. Two machines may have one name, but not one boot id of the kernel.
static void ranks_meet(void) {
    typedef struct { char host[64], boot[64]; int local; } Place;
    Place mine = {"", "", ranks.local}, *all = ALLOC(Place, (size_t)ranks.world, "ranks");
    gethostname(mine.host, sizeof mine.host - 1);
    snprintf(mine.boot, sizeof mine.boot, "%.60s",
             machine_text("/proc/sys/kernel/random/boot_id", "").text);
    ranks_exchange(&mine, sizeof mine, all);
    for (int r = 0; r < ranks.world; r++) {
        for (int k = 0; k < r; k++)
            if (memcmp(&all[k], &all[r], sizeof mine) == 0)
                die("ranks %d and %d are both number %d on %s: LOCAL_RANK is missing, or wrong", k,
                    r, mine.local, all[r].host);
        if (ranks.local_world < ranks.world)
            printf("rank %d: GPU %d on %s\n", r, all[r].local, all[r].host);
    }
    free(all);
}

// Connects the ranks; run_open() calls it first. Sends stdout of all ranks but 0 to /dev/null, so
// that only rank 0 prints.
static void ranks_open(void) {
    pthread_t watcher;
    ranks_find();
    if (ranks.world == 1) return;
    if (ranks.rank > 0 && freopen("/dev/null", "w", stdout) == NULL) fail("cannot open /dev/null");
    const double until = seconds_now() + ranks.timeout;
    const size_t n = (size_t)ranks_peer_count();
    ranks_data = (int *)alloc_or_fail(n, sizeof *ranks_data, "ranks");
    ranks_news = (struct pollfd *)alloc_or_fail(n, sizeof *ranks_news, "ranks");
    for (size_t p = 0; p < n; p++) {
        ranks_data[p] = ranks_news[p].fd = -1;
        ranks_news[p].events = POLLIN;
    }
    ranks_self = (RanksHello){"tide rk", "", ranks.world, ranks.rank, 0};
    snprintf(ranks_self.job, sizeof ranks_self.job, "%s", ranks.job);
    report_for_all = ranks_report;
    if (ranks.rank == 0) ranks_gather(until);
    if (ranks.rank > 0) ranks_news[0].fd = ranks_reach(true, until);
    if (ranks.rank > 0) ranks_data[0] = ranks_reach(false, until);
    if (pthread_create(&watcher, NULL, ranks_watch, NULL) != 0) fail("cannot start a thread");
    pthread_detach(watcher);
    ranks_agree("versions of this program", TIDE_VERSION);
    ranks_meet();
}
#endif
