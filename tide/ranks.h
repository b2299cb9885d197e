// ranks.h: several processes that are one run, one process per GPU: who is here, how they talk
// before and besides NCCL, and how they end together.
//
// A launcher (torchrun, mpirun, srun, scripts/launch.sh) starts them and tells each its number by
// environment variables. They meet at rank 0, which listens on MASTER_PORT: two TCP connections
// from each to rank 0. One carries what ranks_exchange() and its like send. The other carries news,
// and a thread in each process, the watcher, does nothing but read it: the main thread may compute,
// or wait in NCCL for a rank that is no more.
//
// The end of one is the end of all, within seconds, and stderr gets one line from all of them:
//   - die() and fail() do not print their line. They hand it to the watcher, which sends it to the
//     rank that decides: the lowest that is here, so mostly rank 0. It prints the first line that
//     it gets and tells everybody that the run is over; what others had to say is dropped.
//   - A process that disappears closes its connections; if its whole machine does, TCP notices
//     after about 25 seconds. The rank that decides then prints that line.
//   - If the rank that decides disappears, the next one decides. For that the first ranks, the
//     deputies, have a connection from each later rank too.
//   - The watcher ends its process by _exit(), as the main thread may hang. The rank whose line it
//     was leaves before the others, so that its exit code is the first that a launcher sees.
// A process that is only stopped (by a debugger) is waited for.
// Until a process has met rank 0 nobody hears it, and so that not all of them say the same, only
// rank 0 speaks, or, about a rank 0 that cannot be reached, rank 1 and the first on each machine.
#ifndef TIDE_RANKS_H
#define TIDE_RANKS_H
#include "util.h"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum {
    RANKS_DEPUTIES = 16,  // rank 0 is one: a run survives the death of so many with one line
    RANKS_GUESTS = 64,    // connections at a time that have not said who they are
    RANKS_MAX = 1 << 20
};

// Seconds.
#define RANKS_SETTLE 0.2      // between bad news and the line: what is the cause, what the effect?
#define RANKS_LAST 2.0        // for the rank that knew, to leave first
#ifndef RANKS_PATIENCE        // (tests have less)
#define RANKS_PATIENCE 10.0   // for ranks that should leave too, or should answer
#define RANKS_LATE 5.0        // for those that have not even come, to hear that it is over
#endif

typedef struct {
    int rank, world;         // this process, and how many there are
    int local, local_world;  // the same on this machine: rank `local` uses GPU number `local`
    bool launched;           // a launcher started this process, perhaps as the only one
    bool local_known;        // else ranks_open() counts the processes with the same host name
    char address[256];       // of rank 0, and where it listens
    int port;
    double timeout;          // seconds to wait for each other at the start
    char job[72];            // tells this run from another that meets at the same port
} Ranks;

#define RANKS_ALONE {0, 1, 0, 1, false, true, "127.0.0.1", 29500, 30, ""}
static Ranks ranks = RANKS_ALONE;  // until ranks_open()

// ---------------------------------------------------------------------------------------------
// The environment

static inline bool ranks_number(const char *name, int most, int *out, Error *err) {
    const char *text = getenv(name);
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || n > most)
        return error_set(err, "%s is \"%.40s\": not a number from 0 to %d", name, text, most);
    *out = (int)n;
    return true;
}

// How many processes Slurm started on its node number `node` (from 0), which it writes like
// "4(x2),3": four on each of two nodes and three on another. 0 if that is not in the text.
static inline int ranks_slurm_tasks(const char *text, int node) {
    for (int length = 0, many, nodes; sscanf(text, "%d%n", &many, &length) == 1; text++) {
        text += length;
        nodes = 1;
        length = 0;
        if (sscanf(text, "(x%d)%n", &nodes, &length) == 1) text += length;
        if (node < nodes) return many;
        node -= nodes;
        if (*text != ',') break;
    }
    return 0;
}

// Reads what the launcher has set; nothing set: one process, alone. False, with the reason in err,
// if that is half a description or none: a process that then trained alone would be a silent error.
static inline bool ranks_find(Ranks *r, Error *err) {
    static const struct { const char *names[4]; } launchers[] = {  // the first that is there counts
        {{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},  // torchrun, scripts/launch.sh
        {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE"}},                                     // Open MPI
        {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},     // MPICH, Intel MPI
        {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}}};
    const Ranks alone = RANKS_ALONE;
    int timeout = 30;
    *r = alone;
    for (int i = 0; i < 4 && !r->launched; i++) {
        const char *const *names = launchers[i].names;
        const bool slurm = i == 3;
        bool set[4], any = false;
        for (int k = 0; k < 4; k++) any |= set[k] = getenv(names[k]) != NULL;
        // A batch script of Slurm has a number, but is not one of several. And what srun starts
        // for MPICH has both sets, but only Slurm's tells the numbers on this machine.
        if (!any || (slurm && !set[1])) continue;
        if (i == 2 && !set[2] && !set[3] && getenv(launchers[3].names[1]) != NULL) continue;
        for (int k = 0; k < 4; k++) {
            const bool needed = k < 2 || set[5 - k];
            const int other = set[0] ? 0 : set[1] ? 1 : set[2] ? 2 : 3;
            if (needed && !set[k])
                return error_set(err, "%s is set, but %s is not: a launcher sets both",
                                 names[k < 2 ? other : 5 - k], names[k]);
        }
        Ranks found = alone;
        found.launched = true;
        found.local_known = set[2];
        if (!ranks_number(names[1], RANKS_MAX, &found.world, err)
            || !ranks_number(names[0], RANKS_MAX, &found.rank, err)
            || (set[2] && !ranks_number(names[2], RANKS_MAX, &found.local, err)))
            return false;
        int node = 0;
        if (set[3] && !slurm && !ranks_number(names[3], RANKS_MAX, &found.local_world, err))
            return false;
        if (slurm && getenv("SLURM_NODEID") != NULL
            && !ranks_number("SLURM_NODEID", RANKS_MAX, &node, err))
            return false;
        if (set[3] && slurm) found.local_world = ranks_slurm_tasks(getenv(names[3]), node);
        if (found.rank >= found.world)
            return error_set(err, "%s is %d, and %s %d: the ranks are 0 to %s - 1", names[0],
                             found.rank, names[1], found.world, names[1]);
        if (found.local >= found.local_world || found.local_world > found.world)
            return error_set(err, "%s (%d) and %s (%.40s) do not go with %s (%d) and %s (%d)",
                             names[2], found.local, names[3], set[3] ? getenv(names[3]) : "unset",
                             names[0], found.rank, names[1], found.world);
        *r = found;
        // torchrun itself listens on its port
        if (i == 0 && getenv("TORCHELASTIC_RUN_ID") != NULL) r->port++;
    }
    if (!r->launched) return true;
    const int shift = r->port - alone.port;
    if (getenv("MASTER_PORT") != NULL) {
        if (!ranks_number("MASTER_PORT", 65535 - shift, &r->port, err)) return false;
        r->port += shift;
        if (r->port == 0) return error_set(err, "MASTER_PORT is 0: not a port");
    }
    if (getenv("TIDE_TIMEOUT") != NULL) {
        if (!ranks_number("TIDE_TIMEOUT", 86400, &timeout, err)) return false;
        r->timeout = timeout;
    }
    const char *job = getenv("TIDE_JOB"), *address = getenv("MASTER_ADDR");
    if (job == NULL) job = getenv("TORCHELASTIC_RUN_ID");
    snprintf(r->job, sizeof r->job, "%s", job != NULL ? job : "");
    if (address != NULL && strlen(address) >= sizeof r->address)
        return error_set(err, "MASTER_ADDR is too long");
    if (address != NULL && address[0] != '\0') {
        snprintf(r->address, sizeof r->address, "%s", address);
    } else if (r->world > 1 && (!r->local_known || r->local_world < r->world)) {
        r->address[0] = '\0';
        return error_set(err, "MASTER_ADDR is not set: ranks on several machines meet on the one "
                         "that it names, rank 0's");
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// News

enum {  // what is sent on the connections that the watchers read
    RANKS_HELLO,   // to rank 0: I am here                        ranks 1..
    RANKS_HERE,    // its answer
    RANKS_DATA,    // the first words on the connection for data  ranks 1..
    RANKS_TABLE,   // all have come; the deputies' addresses      rank 0
    RANKS_LINK,    // to a deputy: I am here                      all later ranks
    RANKS_READY,   // I have met the deputies before me           ranks 1..
    RANKS_GO,      // so have all                                 rank 0
    RANKS_FAILED,  // to the one that decides: .text, and .code of this process
    RANKS_SAID,    // and it did not answer: I have printed it
    RANKS_OVER,    // the run is over; who knew why is .rank
    RANKS_CLOSED,  // I have called ranks_close()
    RANKS_EXITED   // I have called exit() without it
};

// One size for all: news are rare.
typedef struct {
    char magic[8], version[24];  // at this place in every version of the program
    int32_t type, rank, world, code, port, local, local_world;
    int32_t plain;               // .text is a whole line: it does not begin with "rank N: "
    int64_t process;
    char host[64], job[72];
    char text[PATH_MAX];
} RanksMessage;

// A connection, and what of the next message has arrived. fd -1: there is none (yet, or any more).
typedef struct { int fd; size_t got; RanksMessage in; } RanksPipe;

enum { RANKS_ABSENT, RANKS_PRESENT, RANKS_LEFT, RANKS_LEFT_EARLY, RANKS_LOST };

typedef struct {
    RanksPipe pipe;
    int data;          // the connection for data; -1: none
    int state, error;  // error: errno of the connection that was lost, or 0
    int port;          // a deputy's, for the later ranks
    int local;         // -1: it was not told
    int local_world;
    bool ready;
    double left_at;
    int64_t process;
    char host[64];
    char address[64];  // a deputy's, as rank 0 sees it
} RanksPeer;

// Who has connected and not yet said who it is.
typedef struct { RanksPipe pipe; double since; char address[64]; } RanksGuest;

// A line that is to be said, who knew it and with which exit code; code 0: there is none.
typedef struct { int code, rank; bool plain; double at; char text[PATH_MAX]; } RanksFailure;

typedef enum { RANKS_GATHER, RANKS_MEET, RANKS_RUN } RanksPhase;

// What the watcher shares with the other threads, under the mutex.
static pthread_mutex_t ranks_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ranks_changed = PTHREAD_COND_INITIALIZER;
typedef struct {
    int awaiting;         // threads that wait for `met` or `over`
    bool met;             // all are here
    bool over;            // the line has been said: exit() with `code`
    int code;
    RanksFailure posted;  // by die() or fail()
    int needed;           // who owes data to this rank, but its connection has ended; -1: none
    int leaving;          // RANKS_CLOSED or RANKS_EXITED: tell it, and end the watcher; 0: no
    int wake[2];          // a pipe: something of this has changed
} RanksShared;

// What the watcher knows. The sockets for data belong to the main thread once the ranks have met.
typedef struct {
    RanksShared shared;
    pthread_t thread;
    pid_t process;            // a fork() of it has no watcher
    double limit, start;      // how long to wait for each other
    RanksPhase phase;
    int listener, port;       // -1: none
    char host[64];
    RanksPeer *peers;         // (world)
    RanksGuest *guests;       // (RANKS_GUESTS)
    struct pollfd *polled;
    RanksFailure own, told;   // of this process; of another, which asks this one to decide
    int gone;                 // the first rank that was lost; -1: none
    bool said;                // by a rank that had no answer from this one
    bool ended;               // it is said who ended the run: rank `ended_by`, or one that is gone
    int ended_by;             // (-1)
    int sent_to;              // the rank that was told of `own`; -1: none
    double sent_at, since, needed_since;  // since: the first bad news; 0: none
    bool done;
    uint32_t turn;            // exchanges until now (the main thread's)
} RanksWatch;

static RanksWatch *ranks_watch;  // NULL: alone, not yet open, or closed
static bool ranks_begun;         // there is or was one

static inline void ranks_message(const RanksWatch *w, RanksMessage *m, int type) {
    memset(m, 0, sizeof *m);
    memcpy(m->magic, "tide rk1", sizeof m->magic);
    snprintf(m->version, sizeof m->version, "%s", TIDE_VERSION);
    m->type = type;
    m->rank = ranks.rank;
    m->world = ranks.world;
    m->local = ranks.local_known ? ranks.local : -1;
    m->local_world = ranks.local_world;
    m->port = w->port;
    m->process = getpid();
    snprintf(m->host, sizeof m->host, "%s", w->host);
    snprintf(m->job, sizeof m->job, "%s", ranks.job);
}

// Never waits: there is room for more messages than a run can have, even if nobody reads them.
static inline void ranks_send(int fd, const RanksMessage *m) {
    if (fd >= 0) (void)!send(fd, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// 1: a whole message is in p->in (p->got is to be set to 0); 0: not yet; -1: the connection has
// ended (*error: errno, or 0), or what comes is no message.
static inline int ranks_receive(RanksPipe *p, int *error) {
    *error = 0;
    while (p->got < sizeof p->in) {
        const ssize_t n = recv(p->fd, (char *)&p->in + p->got, sizeof p->in - p->got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n < 0) *error = errno;
        if (n <= 0) return -1;
        p->got += (size_t)n;
        if (memcmp(p->in.magic, "tide rk1", p->got < 8 ? p->got : 8) != 0) return -1;
        // another version's messages may be shorter
        if (p->got >= offsetof(RanksMessage, type)
            && strncmp(p->in.version, TIDE_VERSION, sizeof p->in.version) != 0) {
            memset((char *)&p->in + p->got, 0, sizeof p->in - p->got);
            break;
        }
    }
    p->in.version[sizeof p->in.version - 1] = p->in.host[sizeof p->in.host - 1] = '\0';
    p->in.job[sizeof p->in.job - 1] = p->in.text[sizeof p->in.text - 1] = '\0';
    return 1;
}

static inline void ranks_hang_up(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

// Waits until the other side has closed, or `seconds`.
static inline void ranks_await_end(int fd, double seconds) {
    const double until = seconds_now() + seconds;
    char bytes[4096];
    for (double left = seconds; fd >= 0 && left > 0; left = until - seconds_now()) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, (int)(left * 1000) + 1) < 1) continue;
        const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    }
}

// What a new connection should be like. watched: the watcher's. A machine that is gone is found
// within about 25 s; not on those for data, where a full buffer, of a rank that is stopped, counts
// as silence.
static inline void ranks_tune(int fd, bool watched) {
    const int one = 1, idle = 10, interval = 5, count = 3;
    const unsigned silence = 25000;  // ms
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!watched) return;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#ifdef TCP_USER_TIMEOUT
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
#else
    (void)idle, (void)interval, (void)count, (void)silence;
#endif
}

// The address of the other side as text, in out[64].
static inline void ranks_address(int fd, char *out) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getpeername(fd, (struct sockaddr *)&a, &n) != 0
        || getnameinfo((struct sockaddr *)&a, n, out, 64, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
    if (strncmp(out, "::ffff:", 7) == 0 && strchr(out, '.') != NULL)  // IPv4, seen by IPv6
        memmove(out, out + 7, strlen(out + 7) + 1);
}

static inline bool ranks_is_this_machine(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

// ---------------------------------------------------------------------------------------------
// The end. These are the watcher's.

// The line of this process, from the watcher itself. The first counts.
__attribute__((format(printf, 4, 5)))
static inline void ranks_fails(RanksWatch *w, int code, bool plain, const char *format, ...) {
    if (w->own.code != 0) return;
    va_list args;
    va_start(args, format);
    vsnprintf(w->own.text, sizeof w->own.text, format, args);
    va_end(args);
    w->own.code = code;
    w->own.plain = plain;
    w->own.rank = ranks.rank;
    w->own.at = seconds_now();
}

// One line, and all at once: others may write to the same file.
static inline void ranks_print(int rank, bool plain, const char *text) {
    char line[PATH_MAX + 64];
    const int n = plain ? snprintf(line, sizeof line, "tide: %s\n", text)
                        : snprintf(line, sizeof line, "tide: rank %d: %s\n", rank, text);
    for (int at = 0; at < n;) {
        const ssize_t written = write(STDERR_FILENO, line + at, (size_t)(n - at));
        if (written < 0 && errno != EINTR) break;
        if (written > 0) at += (int)written;
    }
}

// Ends the process: from the thread that waits for that, if one does, so that what is to run at
// exit runs; else at once, with what was printed, if that can be written without waiting.
static inline void ranks_leave(RanksWatch *w, int code) {
    struct timespec until;
    RanksShared *s = &w->shared;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)RANKS_PATIENCE;
    pthread_mutex_lock(&ranks_mutex);
    bool at_once = s->awaiting == 0 || s->leaving != 0;
    s->over = true;
    s->code = s->posted.code != 0 ? s->posted.code : code;
    pthread_cond_broadcast(&ranks_changed);
    while (!at_once && s->leaving == 0)
        at_once = pthread_cond_timedwait(&ranks_changed, &ranks_mutex, &until) == ETIMEDOUT;
    if (at_once) {
        struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
        if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) && ftrylockfile(stdout) == 0)
            fflush(stdout);
        _exit(s->code);
    }
    pthread_mutex_unlock(&ranks_mutex);
    w->done = true;
}

static inline void ranks_over(const RanksWatch *w, int fd) {
    RanksMessage m;
    ranks_message(w, &m, RANKS_OVER);
    m.rank = w->ended_by;
    ranks_send(fd, &m);
}

static inline void ranks_welcome(RanksWatch *w);

// This process decides: says the line, tells all, and leaves. who: whose line it is; -1: nobody's,
// a rank is gone.
static inline void ranks_end(RanksWatch *w, int who, const RanksFailure *f) {
    // not yet met: others may have seen the same
    const bool speaks = ranks.rank <= 1 || w->phase == RANKS_RUN
                     || (ranks.local_known && ranks.local == 0);
    char rest[4096];
    if (!w->said && speaks) ranks_print(f->rank, f->plain, f->text);
    w->ended = true;
    w->ended_by = who;
    for (int p = 0; p < ranks.world; p++) ranks_over(w, w->peers[p].pipe.fd);
    if (w->phase == RANKS_GATHER && ranks.rank == 0 && w->listener >= 0) {  // some are on their way
        const double late = seconds_now() + RANKS_LATE, limit = w->start + w->limit;
        const double until = late < limit ? late : limit;
        for (bool all = false; !all && seconds_now() < until; usleep(10000)) {
            ranks_welcome(w);
            all = true;
            for (int p = 1; p < ranks.world; p++) all &= w->peers[p].state != RANKS_ABSENT;
        }
    }
    if (who >= 0 && who != ranks.rank) ranks_await_end(w->peers[who].pipe.fd, RANKS_LAST);
    // A connection that is closed with something unread is cut, and with it what it still carries.
    for (int p = 0; p < ranks.world; p++)
        while (w->peers[p].pipe.fd >= 0
               && recv(w->peers[p].pipe.fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {}
    ranks_leave(w, who == ranks.rank ? f->code : 1);
}

// Another decided, and has said it.
static inline void ranks_obey(RanksWatch *w, int fd, const RanksMessage *m) {
    if (m->rank != ranks.rank) ranks_await_end(fd, RANKS_LAST);
    ranks_leave(w, 1);
}

// ---------------------------------------------------------------------------------------------
// Meeting

// The socket that listens on `port` of all this machine's addresses, or -1 with errno set; *port 0:
// a free one, which is then there.
static inline int ranks_listen(int *port, int backlog) {
    const int on = 1, off = 0;
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    memset(&six, 0, sizeof six);
    memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons((uint16_t)*port);
    for (int version = 6; version >= 4; version -= 2) {  // 6 takes 4 too
        struct sockaddr *a = version == 6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
        socklen_t n = version == 6 ? (socklen_t)sizeof six : (socklen_t)sizeof four;
        const int fd = socket(a->sa_family, SOCK_STREAM, 0);
        if (fd < 0) continue;
        ranks_tune(fd, false);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (version == 6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(fd, a, n) == 0 && listen(fd, backlog) == 0 && getsockname(fd, a, &n) == 0) {
            fcntl(fd, F_SETFL, O_NONBLOCK);
            *port = ntohs(version == 6 ? six.sin6_port : four.sin_port);
            return fd;
        }
        const int error = errno;
        close(fd);
        errno = error;
        if (error == EADDRINUSE || error == EACCES) break;
    }
    return -1;
}

// A connection to one address, or -1 with the reason in errno; `until`: the latest time.
static inline int ranks_dial(const struct addrinfo *a, double until) {
    struct sockaddr_storage here, there;
    socklen_t n = sizeof here, m = sizeof there;
    int error = 0;
    const int fd = socket(a->ai_family, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        error = errno;
        for (int ready = 0; ready == 0 && error == EINPROGRESS;) {
            struct pollfd p = {fd, POLLOUT, 0};
            const double left = until - seconds_now();
            socklen_t size = sizeof error;
            ready = poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
            if (ready > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            else if (ready < 0 && errno == EINTR) ready = 0;
            else if (ready == 0 && left <= 0) error = ETIMEDOUT;
        }
    }
    // where nobody listens, a connection within one machine may meet itself
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    if (error == 0 && getsockname(fd, (struct sockaddr *)&here, &n) == 0
        && getpeername(fd, (struct sockaddr *)&there, &m) == 0
        && memcmp(&here, &there, sizeof here) == 0)
        error = ECONNREFUSED;
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    fcntl(fd, F_SETFL, 0);
    return fd;
}

// The same to a name or address; *unknown: what getaddrinfo() says of it, 0 if it knows it.
static inline int ranks_connect(const char *name, int port, double until, int *unknown,
                                Error *why) {
    struct addrinfo hints, *list = NULL;
    char number[16];
    int fd = -1;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    snprintf(number, sizeof number, "%d", port);
    *unknown = getaddrinfo(name, number, &hints, &list);
    if (*unknown != 0) {
        error_set(why, "%s", *unknown == EAI_SYSTEM ? strerror(errno) : gai_strerror(*unknown));
        return -1;
    }
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = ranks_dial(a, until);
        if (fd < 0) error_set(why, "%s", strerror(errno));
    }
    freeaddrinfo(list);
    return fd;
}

// "rank 2 (host, process 4711)".
static inline const char *ranks_name(char out[128], int rank, const char *host, int64_t process) {
    snprintf(out, 128, "rank %d (%s, process %lld)", rank, host, (long long)process);
    return out;
}

// A guest has said who it is: takes its connection, or closes it.
static inline void ranks_seat(RanksWatch *w, RanksGuest *g) {
    const RanksMessage *m = &g->pipe.in;
    char name[128], other[128];
    int fd = g->pipe.fd;
    bool wrong = true;
    g->pipe.fd = -1;
    g->pipe.got = 0;
    if (ranks.rank == 0 && strncmp(m->version, TIDE_VERSION, sizeof m->version) != 0) {
        ranks_fails(w, 2, false, "on %s runs version %.23s of this program, here runs "
                    TIDE_VERSION, g->address, m->version);
    } else if (strcmp(m->version, TIDE_VERSION) != 0 || strcmp(m->job, ranks.job) != 0) {
        wrong = false;  // a stranger
    } else if (m->rank < 1 || m->rank >= ranks.world || m->world != ranks.world) {
        ranks_fails(w, 2, false, "%s is one of %d, rank %d one of %d",
                    ranks_name(name, m->rank, m->host, m->process), m->world, ranks.rank,
                    ranks.world);
    } else {
        RanksPeer *p = &w->peers[m->rank];
        wrong = false;
        if (ranks.rank == 0 && m->type == RANKS_HELLO && p->state != RANKS_ABSENT) {
            ranks_fails(w, 2, true, "two are rank %d: %s and %s", m->rank,
                        ranks_name(name, m->rank, p->host, p->process),
                        ranks_name(other, m->rank, m->host, m->process));
            wrong = true;
        } else if (ranks.rank == 0 && m->type == RANKS_DATA) {
            if (p->state == RANKS_PRESENT && p->data < 0 && p->process == m->process) {
                p->data = fd;
                fd = -1;
            }
        } else if (m->type == (ranks.rank == 0 ? RANKS_HELLO : RANKS_LINK)
                   && m->rank > ranks.rank && p->state == RANKS_ABSENT) {
            ranks_tune(fd, true);
            p->state = RANKS_PRESENT;
            p->pipe.fd = fd;
            p->port = m->port;
            p->local = m->local;
            p->process = m->process;
            snprintf(p->host, sizeof p->host, "%s", m->host);
            snprintf(p->address, sizeof p->address, "%s", g->address);
            if (ranks.rank == 0 && !w->ended) {
                RanksMessage here;
                ranks_message(w, &here, RANKS_HERE);
                ranks_send(fd, &here);
            }
            if (w->ended) ranks_over(w, fd);
            fd = -1;
        }
    }
    if (wrong) {
        w->ended_by = w->ended ? w->ended_by : ranks.rank;
        ranks_over(w, fd);
    }
    ranks_hang_up(&fd);
}

// Takes new connections, as long as there is room for guests, and what they say.
static inline void ranks_welcome(RanksWatch *w) {
    int error;
    for (RanksGuest *g = w->guests; g < w->guests + RANKS_GUESTS && w->listener >= 0; g++) {
        if (g->pipe.fd >= 0) continue;
        g->pipe.fd = accept(w->listener, NULL, NULL);
        if (g->pipe.fd < 0) break;
        fcntl(g->pipe.fd, F_SETFL, 0);
        ranks_tune(g->pipe.fd, false);
        g->pipe.got = 0;
        g->since = seconds_now();
        ranks_address(g->pipe.fd, g->address);
    }
    for (RanksGuest *g = w->guests; g < w->guests + RANKS_GUESTS; g++) {
        if (g->pipe.fd < 0) continue;
        const int got = ranks_receive(&g->pipe, &error);
        if (got > 0) ranks_seat(w, g);
        else if (got < 0 || seconds_now() - g->since > RANKS_LATE) ranks_hang_up(&g->pipe.fd);
    }
}

// Rank 0, at its beginning.
static inline void ranks_invite(RanksWatch *w) {
    struct addrinfo hints, *list = NULL;
    w->port = ranks.port;
    // a moment's patience: a connection that met itself, in ranks_dial(), may hold the port
    do w->listener = ranks_listen(&w->port, 1024);
    while (w->listener < 0 && errno == EADDRINUSE && seconds_now() < w->start + 1
           && usleep(50000) == 0);
    if (w->listener < 0) {
        ranks_fails(w, 2, false, "MASTER_PORT %d: %s%s", ranks.port, strerror(errno),
                    errno == EADDRINUSE ? ", by another program or another run; choose another"
                                        : "");
        return;
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    const int unknown = getaddrinfo(ranks.address, NULL, &hints, &list);
    if (unknown == 0) freeaddrinfo(list);
    if (unknown == EAI_NONAME)
        ranks_fails(w, 2, false, "MASTER_ADDR %s: %s", ranks.address, gai_strerror(unknown));
    w->start = seconds_now();  // to ask for a name may take long
}

// Rank 0, when all have come: tells each who is where.
static inline void ranks_introduce(RanksWatch *w) {
    RanksMessage m;
    int at = 0;
    bool unknown = false;
    for (int p = 0; p < ranks.world; p++) unknown |= w->peers[p].local < 0;
    for (int p = 0; p < ranks.world; p++) {
        RanksPeer *x = &w->peers[p];
        if (!unknown) continue;
        x->local = x->local_world = 0;  // counted by the names of the machines
        for (int q = 0; q < ranks.world; q++) {
            const bool same = strcmp(w->peers[q].host, x->host) == 0;
            x->local_world += same;
            x->local += same && q < p;
        }
    }
    if (unknown) {
        ranks.local = w->peers[0].local;
        ranks.local_world = w->peers[0].local_world;
    }
    ranks_message(w, &m, RANKS_TABLE);
    for (int p = 1; p < ranks.world && p < RANKS_DEPUTIES; p++)
        at += snprintf(m.text + at, sizeof m.text - (size_t)at, "%s %d %lld %s\n",
                       w->peers[p].address, w->peers[p].port, (long long)w->peers[p].process,
                       w->peers[p].host);
    for (int p = 1; p < ranks.world; p++) {
        m.local = unknown ? w->peers[p].local : -1;
        m.local_world = w->peers[p].local_world;
        ranks_send(w->peers[p].pipe.fd, &m);
    }
    w->phase = RANKS_MEET;
}

// A later rank that has got this: meets the deputies. One that cannot be reached is done without:
// it only matters if rank 0 is lost.
static inline void ranks_meet(RanksWatch *w, const RanksMessage *table) {
    RanksMessage m;
    const char *line = table->text;
    const double until = seconds_now() + RANKS_LATE;
    if (table->local >= 0) {
        ranks.local = table->local;
        ranks.local_world = table->local_world;
    }
    for (int p = 1; p < ranks.rank && p < RANKS_DEPUTIES; p++) {
        RanksPeer *d = &w->peers[p];
        long long process;
        int unknown;
        Error why;
        if (sscanf(line, "%63s %d %lld %63s", d->address, &d->port, &process, d->host) != 4) break;
        line += strcspn(line, "\n") + 1;
        d->process = process;
        // a deputy on rank 0's machine is where that is for this rank
        d->pipe.fd = d->port <= 0 ? -1
                   : ranks_connect(ranks_is_this_machine(d->address) ? w->peers[0].address
                                   : d->address, d->port, until, &unknown, &why);
        if (d->pipe.fd < 0) continue;
        ranks_tune(d->pipe.fd, true);
        d->state = RANKS_PRESENT;
        ranks_message(w, &m, RANKS_LINK);
        ranks_send(d->pipe.fd, &m);
    }
    ranks_message(w, &m, RANKS_READY);
    ranks_send(w->peers[0].pipe.fd, &m);
    w->phase = RANKS_MEET;
}

// Ranks 1.. at their beginning: finds rank 0, or ends the process.
static inline void ranks_reach(RanksWatch *w) {
    const double until = w->start + w->limit;
    RanksPeer *zero = &w->peers[0];
    RanksMessage m;
    Error why = {""};
    int unknown, error;
    bool stranger;
    if (ranks.rank < RANKS_DEPUTIES && ranks.rank < ranks.world - 1) {
        w->port = 0;
        w->listener = ranks_listen(&w->port, 1024);
        if (w->listener < 0) w->port = -1;
    }
    for (;; usleep(50000)) {
        stranger = false;
        zero->pipe.fd = ranks_connect(ranks.address, ranks.port, until, &unknown, &why);
        zero->pipe.got = 0;
        int got = 0;
        if (zero->pipe.fd >= 0) {
            ranks_tune(zero->pipe.fd, true);
            ranks_address(zero->pipe.fd, zero->address);
            ranks_message(w, &m, RANKS_HELLO);
            ranks_send(zero->pipe.fd, &m);
            while (got == 0) {
                struct pollfd p = {zero->pipe.fd, POLLIN, 0};
                (void)poll(&p, 1, 100);
                got = ranks_receive(&zero->pipe, &error);
                if (got == 0 && seconds_now() > until + RANKS_LATE) got = -1;
            }
        }
        if (got > 0) {
            const RanksMessage *answer = &zero->pipe.in;
            zero->pipe.got = 0;
            if (strcmp(answer->version, TIDE_VERSION) != 0) ranks_leave(w, 2);  // it says so
            else if (answer->type == RANKS_OVER) ranks_obey(w, zero->pipe.fd, answer);
            if (w->done) return;
            if (answer->type == RANKS_HERE) break;
        }
        stranger = zero->pipe.fd >= 0;
        ranks_hang_up(&zero->pipe.fd);
        if (seconds_now() < until && unknown != EAI_NONAME) continue;
        bool speaks = ranks.local_known && ranks.local == 0;
        if (unknown != 0) {        // rank 0 knows as much, or tells who has not come
            ranks_fails(w, 2, false, "MASTER_ADDR %s: %s", ranks.address, why.text);
        } else if (stranger) {     // so rank 0 cannot listen there, or listens elsewhere
            ranks_fails(w, 1, false, "who answers at %s port %d is not rank 0 of this run",
                        ranks.address, ranks.port);
        } else {
            speaks |= ranks.rank == 1;
            ranks_fails(w, 1, false, "cannot reach rank 0 at %s port %d within %g s: %s",
                        ranks.address, ranks.port, w->limit, why.text);
        }
        pthread_mutex_lock(&ranks_mutex);
        const RanksFailure *f = w->shared.posted.code != 0 ? &w->shared.posted : &w->own;
        if (speaks || (f != &w->own && ranks.rank == 1)) ranks_print(ranks.rank, false, f->text);
        pthread_mutex_unlock(&ranks_mutex);
        ranks_leave(w, w->own.code);
        return;
    }
    zero->state = RANKS_PRESENT;
    zero->process = zero->pipe.in.process;
    snprintf(zero->host, sizeof zero->host, "%s", zero->pipe.in.host);
    zero->data = ranks_connect(zero->address, ranks.port, seconds_now() + RANKS_LATE, &unknown,
                               &why);
    if (zero->data < 0) {
        ranks_fails(w, 1, false, "cannot reach rank 0 at %s port %d again: %s", zero->address,
                    ranks.port, why.text);
        return;
    }
    ranks_tune(zero->data, false);
    ranks_message(w, &m, RANKS_DATA);
    ranks_send(zero->data, &m);
}

// ---------------------------------------------------------------------------------------------
// The watcher

static inline void ranks_go(RanksWatch *w) {
    w->phase = RANKS_RUN;
    pthread_mutex_lock(&ranks_mutex);
    w->shared.met = true;
    pthread_cond_broadcast(&ranks_changed);
    pthread_mutex_unlock(&ranks_mutex);
}

static inline void ranks_news(RanksWatch *w, int from) {
    RanksPeer *p = &w->peers[from];
    const RanksMessage *m = &p->pipe.in;
    switch (m->type) {
        case RANKS_TABLE: if (from == 0 && w->phase == RANKS_GATHER) ranks_meet(w, m); break;
        case RANKS_READY: p->ready = true; break;
        case RANKS_GO: if (from == 0 && w->phase == RANKS_MEET) ranks_go(w); break;
        case RANKS_FAILED:
            if (w->told.code != 0) break;
            w->told.code = m->code;
            w->told.rank = from;
            w->told.plain = m->plain;
            w->told.at = seconds_now();
            snprintf(w->told.text, sizeof w->told.text, "%s", m->text);
            break;
        case RANKS_SAID: w->said = true; break;
        case RANKS_OVER: ranks_obey(w, p->pipe.fd, m); break;
        case RANKS_CLOSED: p->state = RANKS_LEFT; break;
        case RANKS_EXITED:
            p->state = RANKS_LEFT_EARLY;
            p->left_at = seconds_now();
            break;
        default: break;
    }
}

// Reads all that a rank has sent.
static inline void ranks_listen_to(RanksWatch *w, int from) {
    RanksPeer *p = &w->peers[from];
    while (p->pipe.fd >= 0 && !w->done) {
        int error;
        const int got = ranks_receive(&p->pipe, &error);
        if (got == 0) return;
        p->pipe.got = 0;
        if (got > 0) {
            ranks_news(w, from);
            continue;
        }
        ranks_hang_up(&p->pipe.fd);
        p->error = error;
        if (p->state == RANKS_PRESENT) {
            p->state = RANKS_LOST;
            if (w->gone < 0) w->gone = from;
        }
    }
}

// The meeting, as rank 0 sees it.
static inline void ranks_gather(RanksWatch *w, double now) {
    char missing[200] = "";
    size_t at = 0;
    int count = 0;
    const double until = w->start + w->limit + (w->phase == RANKS_MEET ? 2 * RANKS_PATIENCE : 0);
    for (int p = 1; p < ranks.world; p++) {
        const RanksPeer *x = &w->peers[p];
        if (w->phase == RANKS_MEET ? x->ready : x->state != RANKS_ABSENT && x->data >= 0) continue;
        if (count++ < 20)
            at += (size_t)snprintf(missing + at, sizeof missing - at, at > 0 ? ", %d" : "%d", p);
    }
    if (count > 0 && now < until) return;
    const char *more = count > 20 ? ", .." : "";
    if (count > 0 && w->phase == RANKS_GATHER) {
        ranks_fails(w, 1, false, "waited %g s at %s port %d, but of %d ranks %s%s %s missing",
                    w->limit, ranks.address, ranks.port, ranks.world, missing, more,
                    count > 1 ? "are" : "is");
    } else if (count > 0) {
        ranks_fails(w, 1, false, "of %d ranks %s%s did not answer", ranks.world, missing, more);
    } else if (w->phase == RANKS_GATHER) {
        ranks_introduce(w);
    } else {
        RanksMessage m;
        ranks_message(w, &m, RANKS_GO);
        for (int p = 1; p < ranks.world; p++) ranks_send(w->peers[p].pipe.fd, &m);
        ranks_go(w);
    }
}

// What do the news mean?
static inline void ranks_judge(RanksWatch *w) {
    const double now = seconds_now();
    RanksMessage m;
    char name[128];
    int decides = 0;
    while (decides < ranks.rank && w->peers[decides].state != RANKS_PRESENT) decides++;
    pthread_mutex_lock(&ranks_mutex);
    const int needed = w->shared.needed, leaving = w->shared.leaving;
    const bool posted = w->shared.posted.code != 0 && w->own.code == 0;
    if (posted) w->own = w->shared.posted;
    pthread_mutex_unlock(&ranks_mutex);

    if (ranks.rank == 0 && w->phase != RANKS_RUN && w->since == 0) ranks_gather(w, now);
    if (needed >= 0) {
        const RanksPeer *p = &w->peers[needed];
        if (w->needed_since == 0) w->needed_since = now;
        if (p->state == RANKS_LEFT || p->state == RANKS_LEFT_EARLY)
            ranks_fails(w, 1, true, "%s has left the run, but the others go on",
                        ranks_name(name, needed, p->host, p->process));
        else if (p->state == RANKS_PRESENT && now - w->needed_since > RANKS_PATIENCE)
            ranks_fails(w, 1, false, "lost its connection to %s",
                        ranks_name(name, needed, p->host, p->process));
    }
    for (int p = 0; p < ranks.world && decides == ranks.rank && leaving == 0; p++)
        if (w->peers[p].state == RANKS_LEFT_EARLY && now - w->peers[p].left_at > RANKS_PATIENCE)
            ranks_fails(w, 1, true, "%s has left the run, but the others go on",
                        ranks_name(name, p, w->peers[p].host, w->peers[p].process));

    const bool bad = w->own.code != 0 || w->told.code != 0 || w->gone >= 0;
    if (bad && w->since == 0) w->since = now;
    if (bad && decides == ranks.rank) {
        if (now - w->since < RANKS_SETTLE) return;
        if (w->gone >= 0 && !(w->told.code != 0 && w->told.rank == w->gone)) {
            // what the others say now is what that has done to them
            const RanksPeer *p = &w->peers[w->gone];
            RanksFailure f = {1, w->gone, true, now, ""};
            snprintf(f.text, sizeof f.text, "%s is gone: %s",
                     ranks_name(name, w->gone, p->host, p->process),
                     p->error == 0 || p->error == ECONNRESET ? "it was killed, or crashed"
                                                             : "its machine does not answer");
            ranks_end(w, -1, &f);
        } else if (w->told.code != 0 && (w->own.code == 0 || w->told.at < w->own.at)) {
            ranks_end(w, w->told.rank, &w->told);
        } else {
            ranks_end(w, ranks.rank, &w->own);
        }
    } else if (w->own.code != 0 && w->sent_to != decides) {
        ranks_message(w, &m, RANKS_FAILED);
        m.code = w->own.code;
        m.plain = w->own.plain;
        snprintf(m.text, sizeof m.text, "%s", w->own.text);
        ranks_send(w->peers[decides].pipe.fd, &m);
        w->sent_to = decides;
        w->sent_at = now;
    } else if (w->own.code != 0 && now - w->sent_at > RANKS_PATIENCE) {  // it does not decide
        ranks_message(w, &m, RANKS_SAID);
        ranks_send(w->peers[decides].pipe.fd, &m);
        ranks_print(w->own.rank, w->own.plain, w->own.text);
        ranks_leave(w, w->own.code);
    } else if (w->own.code == 0 && leaving != 0) {
        ranks_message(w, &m, leaving);
        for (int p = 0; p < ranks.world; p++) ranks_send(w->peers[p].pipe.fd, &m);
        w->done = true;
    }
}

// Waits for something, for a short time only if time matters, and looks at it.
static inline void ranks_turn(RanksWatch *w) {
    struct pollfd *p = w->polled;
    char bytes[64];
    bool soon = w->phase != RANKS_RUN || w->since != 0 || w->needed_since != 0;
    int n = 2;
    p[0].fd = w->shared.wake[0];
    p[1].fd = -1;
    for (int i = 0; i < RANKS_GUESTS; i++) {
        p[n++].fd = w->guests[i].pipe.fd;
        if (w->guests[i].pipe.fd >= 0) soon = true;
        else p[1].fd = w->listener;  // there is room
    }
    for (int i = 0; i < ranks.world; i++) {
        p[n++].fd = w->peers[i].pipe.fd;
        soon |= w->peers[i].state == RANKS_LEFT_EARLY;
    }
    for (int i = 0; i < n; i++) p[i].events = POLLIN;
    if (poll(p, (nfds_t)n, soon ? 20 : -1) < 0) usleep(1000);
    while (read(w->shared.wake[0], bytes, sizeof bytes) > 0) {}
    ranks_welcome(w);
    if (w->listener >= 0 && w->phase == RANKS_RUN) {
        bool all = true;
        for (int i = ranks.rank + 1; i < ranks.world; i++)
            all &= w->peers[i].state != RANKS_ABSENT;
        if (all) ranks_hang_up(&w->listener);
    }
    for (int i = 0; i < ranks.world && !w->done; i++) ranks_listen_to(w, i);
    if (!w->done) ranks_judge(w);
}

static void *ranks_thread(void *arg) {
    RanksWatch *w = (RanksWatch *)arg;
    if (ranks.rank == 0) ranks_invite(w);
    else ranks_reach(w);
    while (!w->done) ranks_turn(w);
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// The other threads

static inline void ranks_wake(const RanksWatch *w) { (void)!write(w->shared.wake[1], "", 1); }

// Ends the watcher, after it has told the others why; if the run has failed meanwhile, it ends this
// process instead.
static inline void ranks_stop(int why) {
    RanksWatch *w = ranks_watch;
    pthread_mutex_lock(&ranks_mutex);
    w->shared.leaving = why;
    ranks_wake(w);
    pthread_cond_broadcast(&ranks_changed);
    pthread_mutex_unlock(&ranks_mutex);
    pthread_join(w->thread, NULL);
}

static void ranks_stop_at_exit(void) {  // other threads may still use what there is
    if (ranks_watch != NULL && ranks_watch->process == getpid()) ranks_stop(RANKS_EXITED);
}

// Starts the watcher; the mutex is held. False, with errno set, if there is no room for it.
static inline bool ranks_start(double limit) {
    RanksWatch *w = (RanksWatch *)calloc(1, sizeof *w);
    const rlim_t files = 2 * (rlim_t)ranks.world + 1024;  // rank 0's sockets, and others
    struct rlimit limits;
    sigset_t all, before;
    ranks_begun = true;
    if (getrlimit(RLIMIT_NOFILE, &limits) == 0 && limits.rlim_cur < files
        && limits.rlim_cur < limits.rlim_max) {
        limits.rlim_cur = limits.rlim_max < files ? limits.rlim_max : files;
        setrlimit(RLIMIT_NOFILE, &limits);
    }
    if (w == NULL) return false;
    w->peers = (RanksPeer *)calloc((size_t)ranks.world, sizeof *w->peers);
    w->guests = (RanksGuest *)calloc(RANKS_GUESTS, sizeof *w->guests);
    w->polled = (struct pollfd *)calloc((size_t)ranks.world + RANKS_GUESTS + 2, sizeof *w->polled);
    if (w->peers == NULL || w->guests == NULL || w->polled == NULL || pipe(w->shared.wake) != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        fcntl(w->shared.wake[i], F_SETFL, O_NONBLOCK);
        fcntl(w->shared.wake[i], F_SETFD, FD_CLOEXEC);
    }
    for (int i = 0; i < RANKS_GUESTS; i++) w->guests[i].pipe.fd = -1;
    for (int p = 0; p < ranks.world; p++) w->peers[p].pipe.fd = w->peers[p].data = -1;
    w->listener = w->port = w->gone = w->sent_to = w->shared.needed = -1;
    w->start = seconds_now();
    w->limit = limit;
    w->process = getpid();
    gethostname(w->host, sizeof w->host - 1);
    for (char *c = w->host; *c != '\0'; c++) if (*c <= ' ' || *c > '~') *c = '?';
    RanksPeer *self = &w->peers[ranks.rank];
    memcpy(self->host, w->host, sizeof self->host);
    self->local = ranks.local_known ? ranks.local : -1;
    sigfillset(&all);  // signals are the other threads'
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&w->thread, NULL, ranks_thread, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        ranks_watch = w;
        atexit(ranks_stop_at_exit);
    }
    errno = error;
    return error == 0;
}

// die() and fail(), on any thread: returns when somebody has said the line, or another that came
// before it. Before ranks_open() the others are met for that: the same may have happened to them.
static void ranks_report(int code, const char *line) {
    Error ignored;
    pthread_mutex_lock(&ranks_mutex);
    if (!ranks_begun && ranks_find(&ranks, &ignored) && ranks.world > 1)
        ranks_start(ranks.timeout < RANKS_LATE ? ranks.timeout : RANKS_LATE);
    RanksWatch *w = ranks_watch;
    if (w == NULL || w->process != getpid() || w->shared.leaving != 0) {
        pthread_mutex_unlock(&ranks_mutex);
        ranks_print(ranks.rank, ranks.world == 1, line);
        return;
    }
    RanksShared *s = &w->shared;
    while (s->posted.code != 0) {  // the other thread will end the process
        pthread_mutex_unlock(&ranks_mutex);
        pause();
        pthread_mutex_lock(&ranks_mutex);
    }
    s->posted.rank = ranks.rank;
    s->posted.at = seconds_now();
    snprintf(s->posted.text, sizeof s->posted.text, "%s", line);
    s->posted.code = code;
    s->awaiting++;
    ranks_wake(w);
    while (!s->over) pthread_cond_wait(&ranks_changed, &ranks_mutex);
    pthread_mutex_unlock(&ranks_mutex);
}

__attribute__((constructor)) static void ranks_hook(void) { report_for_all = ranks_report; }

// Reads the launcher's environment and meets the other ranks, within `timeout` seconds: all return,
// or the run ends. To be the first thing in main(): what is printed before it is printed by every
// rank. From here on stdout of all but rank 0 is /dev/null.
static inline void ranks_open(void) {
    Error err;
    if (!ranks_find(&ranks, &err)) {
        if (ranks.rank > 0) exit(2);  // a whole description, but no address: rank 0 says that
        die("%s", err.text);
    }
    if (ranks.world == 1) return;
    if (ranks.rank > 0) {
        const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        fflush(stdout);
        if (null < 0 || dup2(null, STDOUT_FILENO) < 0) fail("/dev/null: %s", strerror(errno));
        close(null);
    }
    pthread_mutex_lock(&ranks_mutex);
    if (!ranks_start(ranks.timeout)) {
        pthread_mutex_unlock(&ranks_mutex);
        fail("cannot start the thread that watches the other ranks: %s", strerror(errno));
    }
    RanksShared *s = &ranks_watch->shared;
    s->awaiting++;
    while (!s->met && !s->over) pthread_cond_wait(&ranks_changed, &ranks_mutex);
    if (!s->over) s->awaiting--;
    const bool over = s->over;
    const int code = s->code;
    pthread_mutex_unlock(&ranks_mutex);
    if (over) exit(code);
}

// This rank has done its part: from here on nobody waits for it, and that it leaves is no failure.
// It waits for nobody either. At exit the sockets of a rank that has not called this close too: if
// the others then go on for more than 10 seconds, or want its data, the run has failed.
static inline void ranks_close(void) {
    RanksWatch *w = ranks_watch;
    if (w == NULL || w->process != getpid()) return;
    ranks_stop(RANKS_CLOSED);
    pthread_mutex_lock(&ranks_mutex);
    ranks_watch = NULL;
    pthread_mutex_unlock(&ranks_mutex);
    for (int p = 0; p < ranks.world; p++) {
        ranks_hang_up(&w->peers[p].pipe.fd);
        ranks_hang_up(&w->peers[p].data);
    }
    for (int i = 0; i < RANKS_GUESTS; i++) ranks_hang_up(&w->guests[i].pipe.fd);
    ranks_hang_up(&w->listener);
    ranks_hang_up(&w->shared.wake[0]);
    ranks_hang_up(&w->shared.wake[1]);
    free(w->polled);
    free(w->guests);
    free(w->peers);
    free(w);
}

// ---------------------------------------------------------------------------------------------
// Data of the host, between all ranks: calls of one thread, in the same order on all of them. Not
// for tensors: all goes through rank 0, which receives `bytes` from each of R ranks and sends
// R * bytes to each. That is a few round trips for small things, and R * R * bytes through rank 0's
// network for large ones: well below 100 MB.

enum { RANKS_EXCHANGE = 1, RANKS_BROADCAST };

// Goes before the data: do both sides mean the same?
typedef struct { uint32_t kind, turn; uint64_t bytes; } RanksHeader;

// The connection has ended, and so will this process: the watcher knows why.
__attribute__((noreturn))
static inline void ranks_lost(int rank) {
    pthread_mutex_lock(&ranks_mutex);
    if (ranks_watch != NULL) {
        ranks_watch->shared.needed = rank;
        ranks_wake(ranks_watch);
    }
    pthread_mutex_unlock(&ranks_mutex);
    for (;;) pause();
}

static inline void ranks_put(int rank, const void *p, size_t bytes) {
    const int fd = ranks_watch->peers[rank].data;
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = send(fd, (const char *)p + at, bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) ranks_lost(rank);
        if (n > 0) at += (size_t)n;
    }
}

static inline void ranks_get(int rank, void *p, size_t bytes) {
    const int fd = ranks_watch->peers[rank].data;
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = recv(fd, (char *)p + at, bytes - at, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) ranks_lost(rank);
        if (n > 0) at += (size_t)n;
    }
}

static inline RanksHeader ranks_header(uint32_t kind, size_t bytes) {
    if (ranks_watch == NULL)
        fail("data for other ranks before ranks_open() or after ranks_close()");
    const RanksHeader h = {kind, ++ranks_watch->turn, bytes};
    return h;
}

static inline void ranks_put_header(int rank, const RanksHeader *h) {
    ranks_put(rank, h, sizeof *h);
}

static inline void ranks_get_header(int rank, const RanksHeader *mine) {
    static const char *const names[] = {"", "exchange", "broadcast"};
    RanksHeader h;
    ranks_get(rank, &h, sizeof h);
    if (h.kind == mine->kind && h.turn == mine->turn && h.bytes == mine->bytes) return;
    fail("out of step: turn %u is here %s of %llu bytes, but rank %d's turn %u is %s of %llu bytes",
         mine->turn, names[mine->kind], (unsigned long long)mine->bytes, rank, h.turn,
         names[h.kind <= RANKS_BROADCAST ? h.kind : 0], (unsigned long long)h.bytes);
}

// The `bytes` (as many on all) at every rank's `mine` go to `all` (world x bytes) on every rank, in
// rank order. `mine` may lie in its place of `all`.
static inline void ranks_exchange(const void *mine, size_t bytes, void *all) {
    char *const out = (char *)all;
    if (bytes > 0) memmove(out + (size_t)ranks.rank * bytes, mine, bytes);
    if (ranks.world == 1) return;
    const size_t total = (size_t)ranks.world * bytes;
    const RanksHeader h = ranks_header(RANKS_EXCHANGE, bytes);
    if (ranks.rank > 0) {
        ranks_put_header(0, &h);
        ranks_put(0, out + (size_t)ranks.rank * bytes, bytes);
        ranks_get_header(0, &h);
        ranks_get(0, all, total);
        return;
    }
    for (int p = 1; p < ranks.world; p++) {
        ranks_get_header(p, &h);
        ranks_get(p, out + (size_t)p * bytes, bytes);
    }
    for (int p = 1; p < ranks.world; p++) {
        ranks_put_header(p, &h);
        ranks_put(p, all, total);
    }
}

// Nobody returns before all have called it.
static inline void ranks_barrier(void) { ranks_exchange(NULL, 0, NULL); }

// Rank 0's `bytes` at data go to the same place on all.
static inline void ranks_broadcast(void *data, size_t bytes) {
    if (ranks.world == 1) return;
    const RanksHeader h = ranks_header(RANKS_BROADCAST, bytes);
    if (ranks.rank > 0) {
        ranks_put_header(0, &h);
        ranks_get_header(0, &h);
        ranks_get(0, data, bytes);
        return;
    }
    for (int p = 1; p < ranks.world; p++) ranks_get_header(p, &h);
    for (int p = 1; p < ranks.world; p++) {
        ranks_put_header(p, &h);
        ranks_put(p, data, bytes);
    }
}

// The next member of a JSON object, or word: up to the comma, brace or space that ends it. *text
// moves behind it; the result's length is in *n, 0 at the end.
static inline const char *ranks_item(const char **text, size_t *n) {
    const char *c = *text;
    int depth = 0;
    bool quoted = false;
    while (*c == ' ' || *c == '\n' || *c == ',' || *c == '{' || *c == '}') c++;
    const char *const start = c;
    for (; *c != '\0'; c++) {
        if (*c == '\\' && quoted && c[1] != '\0') { c++; continue; }
        if (*c == '"') quoted = !quoted;
        if (quoted) continue;
        if (depth == 0 && (*c == ',' || *c == '}' || *c == '\n' || (*c == ' ' && c[-1] != ':')))
            break;
        depth += (*c == '[' || *c == '{') - (*c == ']' || *c == '}');
    }
    *n = (size_t)(c - start);
    *text = c;
    return start;
}

// Ends the run unless `text` (JSON or words) is the same on all ranks; `what` says what it is, like
// "options".
static inline void ranks_agree(const char *what, const char *text) {
    const size_t world = (size_t)ranks.world;
    const uint64_t bytes = strlen(text) + 1;
    uint64_t longest = 0;
    uint64_t *lengths = (uint64_t *)alloc_or_fail(world, sizeof *lengths, "lengths of texts");
    ranks_exchange(&bytes, sizeof bytes, lengths);
    for (size_t p = 0; p < world; p++) if (lengths[p] > longest) longest = lengths[p];
    char *texts = (char *)alloc_or_fail(world, longest, "texts of all ranks");
    memcpy(texts + (size_t)ranks.rank * longest, text, bytes);
    ranks_exchange(texts + (size_t)ranks.rank * longest, longest, texts);
    for (size_t p = 1; p < world; p++) {
        const char *a = texts, *b = texts + p * longest, *x, *y;
        char here[160], there[160];
        size_t n, m;
        if (strcmp(a, b) == 0) continue;
        if (ranks.rank > 0) ranks_barrier();  // rank 0 says it
        do {
            x = ranks_item(&a, &n);
            y = ranks_item(&b, &m);
        } while (n > 0 && n == m && memcmp(x, y, n) == 0);
        snprintf(here, sizeof here, "%.*s", n > 0 ? (int)n : 7, n > 0 ? x : "no more");
        snprintf(there, sizeof there, "%.*s", m > 0 ? (int)m : 7, m > 0 ? y : "no more");
        free(texts);
        free(lengths);
        die("the %s of all ranks must be the same: rank %zu has %s, rank 0 has %s", what, p, there,
            here);
    }
    free(texts);
    free(lengths);
}
#endif
