// test_nccl.cu: collectives between ranks. This program starts itself as several ranks, each a
// process with an environment of its own (as schedules are read at the start), and looks at what
// they say and how they end. On real GPUs, with real NCCL, as many ranks as there are GPUs; what
// only the emulated library promises (what it says about mistakes) is left out. (The order of sums,
// types and groups: test_zero_gpu.cu, test_zo_gpu.cu; mistakes that one process sees: bugs.cu.)
//
//   test_nccl                                 all tests
//   test_nccl rank CASE RANK RANKS ARGUMENT   one rank of one of them
#include "../../test/test.h"
#ifndef TIDE_NCCL
int main() {
    printf("skip test_nccl: built without NCCL\n");
    return 0;
}
#else
#include <cuda_runtime.h>
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <string>
#include <vector>

static double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A call that has to work, for the rank to go on.
#define OK(call) must((int)(call), #call, __LINE__)
static void must(int error, const char *call, int line) {
    if (error == 0) return;
    printf("test_nccl.cu:%d: error %d from %s\n", line, error, call);
    exit(4);
}

// =============================================================================================
// One rank

enum { ID_FILE = 100, SOCKET };  // descriptors that the ranks of a run inherit: a file, a pair

static int rank_, ranks_;
static ncclComm_t comm;
static cudaStream_t stream, other;
static size_t wrong;    // results; the rank ends with code 3 if there are any

#define RIGHT(condition, ...)                                                     \
    do {                                                                          \
        if (!(condition) && wrong++ < 10) {                                       \
            printf("rank %d of %d: line %d: %s: ", rank_, ranks_, __LINE__, #condition); \
            printf(__VA_ARGS__);                                                  \
            printf("\n");                                                         \
        }                                                                         \
    } while (0)

// Rank 0 makes the id, and leaves it in a file that all have open.
static ncclUniqueId common_id() {
    ncclUniqueId id;
    if (rank_ == 0) {
        OK(ncclGetUniqueId(&id));
        OK(pwrite(ID_FILE, &id, sizeof id, 0) != (ssize_t)sizeof id);
    }
    while (pread(ID_FILE, &id, sizeof id, 0) < (ssize_t)sizeof id) usleep(1000);
    return id;
}

static void join() { OK(ncclCommInitRank(&comm, ranks_, common_id(), rank_)); }

static float *device_array(const std::vector<float> &host) {
    float *p = NULL;
    OK(cudaMalloc(&p, host.size() * sizeof *p));
    OK(cudaMemcpy(p, host.data(), host.size() * sizeof *p, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return p;
}

static std::vector<float> host_array(const float *p, size_t n) {
    std::vector<float> host(n);
    OK(cudaMemcpy(host.data(), p, n * sizeof *p, cudaMemcpyDeviceToHost));
    return host;
}

// What `rank` sends at i. Sums are exact, as real NCCL has orders of its own.
static float number(int rank, size_t i, size_t salt) {
    return (float)((31 * i + 7 * (size_t)rank + 5 * salt) % 17) - 8;
}

enum Kind { REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, KINDS };
static const char *const NAMES[] = {"reduce", "broadcast", "reduce-scatter", "all-gather"};

static ncclResult_t call(Kind kind, const float *in, float *out, size_t n, int root,
                         cudaStream_t on, ncclDataType_t type = ncclFloat32,
                         ncclComm_t of = comm) {
    if (kind == REDUCE) return ncclReduce(in, out, n, type, ncclSum, root, of, on);
    if (kind == BROADCAST) return ncclBroadcast(in, out, n, type, root, of, on);
    if (kind == REDUCE_SCATTER) return ncclReduceScatter(in, out, n, type, ncclSum, of, on);
    return ncclAllGather(in, out, n, type, of, on);
}

// A collective, in place: one side is this rank's part of the other. (bugs.cu has some of two
// buffers.)
struct Shape {
    Kind kind;
    int root;
    size_t count, salt;
    float *in, *out;
    size_t sent() const { return count * (kind == REDUCE_SCATTER ? (size_t)ranks_ : 1); }
    size_t received() const { return count * (kind == ALL_GATHER ? (size_t)ranks_ : 1); }
};

static void make_buffers(Shape *s) {
    const size_t mine = (size_t)rank_ * s->count, at = s->kind == ALL_GATHER ? mine : 0;
    std::vector<float> whole(s->sent() + s->received() + 1);
    for (size_t i = 0; i < s->sent(); i++) whole[at + i] = number(rank_, i, s->salt);
    float *p = device_array(whole);
    s->in = p + at;
    s->out = s->kind == REDUCE_SCATTER ? p + mine : p;
}

// What this rank has to receive at i, by a plain loop over the ranks.
static float expected(const Shape &s, size_t i) {
    if (s.kind == BROADCAST) return number(s.root, i, s.salt);
    if (s.kind == ALL_GATHER) return number((int)(i / s.count), i % s.count, s.salt);
    float sum = 0;
    for (int r = 0; r < ranks_; r++)
        sum += number(r, s.kind == REDUCE_SCATTER ? (size_t)rank_ * s.count + i : i, s.salt);
    return sum;
}

static void finish(const Shape &s) {
    const std::vector<float> out = host_array(s.out, s.received());
    size_t bad = 0;
    for (size_t i = 0; i < out.size() && (s.kind != REDUCE || rank_ == s.root); i++)
        bad += out[i] != expected(s, i);
    RIGHT(bad == 0, "%s, count %zu, root %d: %zu numbers", NAMES[s.kind], s.count, s.root, bad);
}

// Collectives on two streams, some of nothing, some that need several steps, and ranks that are
// late, wait for one stream or the other, or for nothing. They are one communicator's, so their
// order is that of the calls, whatever the stream.
static void at_all_times(const char *) {
    std::vector<Shape> all;
    join();
    for (size_t i = 0; i < 100; i++) {
        const size_t few = i * i * 37 % 5000, turn = i / KINDS % 5;
        Shape s = {(Kind)(i % KINDS), (int)(i / KINDS % (size_t)ranks_),
                   turn == 1 ? 0 : turn == 2 ? 150001 : few, i, NULL, NULL};
        make_buffers(&s);
        all.push_back(s);
    }
    for (const Shape &s : all) {
        const size_t mine = s.salt * 7 + (size_t)rank_ * 13;
        if (mine % 4 == 0) usleep((unsigned)(mine % 5000));
        OK(call(s.kind, s.in, s.out, s.count, s.root, s.salt / 3 % 2 ? stream : other));
        if (mine % 10 == 0) OK(cudaStreamSynchronize(stream));
        if (mine % 10 == 1) OK(cudaStreamSynchronize(other));
    }
    OK(cudaDeviceSynchronize());
    for (const Shape &s : all) finish(s);
    OK(ncclCommDestroy(comm));
}

static void refuses(ncclResult_t got, ncclResult_t wanted, int line) {
    RIGHT(got == wanted, "line %d: %s: %s", line, ncclGetErrorString(got), ncclGetLastError(comm));
}
#define REFUSES(call, code) refuses((call), (code), __LINE__)

static void refusals(const char *) {
    float *a = device_array(std::vector<float>(64)), *b = device_array(std::vector<float>(64));
    const ncclResult_t bad = ncclInvalidArgument;
    join();
    REFUSES(call(ALL_GATHER, a, b, 16, 0, stream, ncclFloat32, NULL), bad);
    REFUSES(call(ALL_GATHER, a, b, 16, 0, stream, (ncclDataType_t)77), bad);
    REFUSES(call(BROADCAST, a, b, 64, ranks_, stream), bad);
    REFUSES(ncclGroupEnd(), ncclInvalidUsage);
#ifdef __CUDA_EMU__
    // Stricter than the real library, which looks at pointers only if it is asked to.
    float host[64];
    REFUSES(call(REDUCE_SCATTER, a, host, 1, 0, stream), bad);
    REFUSES(call(REDUCE_SCATTER, a, b, 1, 0, stream, ncclUint8), bad);
    OK(call(BROADCAST, rank_ == 0 ? a : NULL, b, 64, 0, stream));
    OK(call(REDUCE, a, rank_ == 0 ? b : NULL, 64, 0, stream));
    OK(ncclGroupStart());  // one bad call, and the group does nothing
    OK(call(REDUCE_SCATTER, a, b, 1, 0, stream));
    REFUSES(call(REDUCE_SCATTER, host, b, 1, 0, stream), bad);
    REFUSES(ncclGroupEnd(), bad);
    ncclComm_t alone, none_too;
    ncclUniqueId none = {}, fresh;
    OK(ncclGetUniqueId(&fresh));
    REFUSES(ncclCommInitRank(&alone, 1, none, 0), bad);
    OK(ncclCommInitRank(&alone, 1, fresh, 0));   // a second communicator, of this rank alone
    REFUSES(ncclCommInitRank(&none_too, 2, fresh, 1), ncclInvalidUsage);  // a rank is a process
    OK(ncclCommDestroy(alone));
    REFUSES(call(REDUCE_SCATTER, a, b, 64, 0, stream, ncclFloat32, alone), bad);
#endif
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommDestroy(comm));
}

#ifdef __CUDA_EMU__
// ---------------------------------------------------------------------------------------------
// Ranks with mistakes and misfortunes. The argument says which one; rank 1 has it.

static float *buffer(size_t n) { return device_array(std::vector<float>(n, 1)); }

// A sum in place, for rank 0.
static void add_up(float *x, size_t n, cudaStream_t on, ncclDataType_t type = ncclFloat32) {
    OK(ncclReduce(x, x, n, type, ncclSum, 0, comm, on));
}

static void misfortune(const char *argument) {
    const std::string what = rank_ == 1 ? argument : "";
    float *a = buffer(1000), *c = buffer(1000), *d = buffer(4000);
    if (what == "never") exit(0);
    if (what == "world") ranks_++;
    join();
    add_up(a, 10, stream);
    OK(cudaStreamSynchronize(stream));
    if (what == "killed") raise(SIGKILL);
    if (what == "exits") exit(0);
    if (what == "leaves") OK(ncclCommDestroy(comm)), sleep(5), exit(0);
    if (what == "sleeps") sleep(6), exit(0);
    add_up(a, what == "count" ? 99 : 100, stream);
    OK(ncclAllGather(c, d, 100, ncclFloat32, comm, other));
    OK(cudaDeviceSynchronize());
    OK(ncclCommDestroy(comm));
}

// Rank 1 has enqueued its part and waits for a word of rank 0, which waits for the collective. A
// GPU would need no host to come to it.
static void help_is_at_hand(const char *) {
    char word = 1;
    float *a = buffer(1000);
    join();
    add_up(a, 1000, stream);
    if (rank_ == 0) {
        OK(cudaStreamSynchronize(stream));
        RIGHT(write(SOCKET, &word, 1) == 1, "%s", strerror(errno));
    } else if (rank_ == 1) {
        RIGHT(read(SOCKET + 1, &word, 1) == 1, "%s", strerror(errno));
    }
    OK(ncclCommDestroy(comm));
}
#endif

#define CASE(name) {#name, name}
static const struct { const char *name; void (*run)(const char *argument); } cases[] = {
    CASE(at_all_times), CASE(refusals),
#ifdef __CUDA_EMU__
    CASE(misfortune), CASE(help_is_at_hand),
#endif
};

static int run_rank(const char *name, int rank, int ranks, const char *with) {
    rank_ = rank, ranks_ = ranks;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int devices = 0;
    OK(cudaGetDeviceCount(&devices));
    OK(cudaSetDevice(rank % devices));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (const auto &c : cases)
        if (strcmp(c.name, name) == 0) c.run(with);
    return wrong > 0 ? 3 : 0;
}

// =============================================================================================
// The tests: they start ranks

struct Run {
    std::vector<pid_t> pids;
    std::vector<int> codes;     // exit codes; 128 + N for signal N, 1000 if it had to be stopped
    std::string text;           // what all of them printed
    double begin;               // when they were started
    int out;                    // what they print
};

static int fresh_file() {
    char path[] = "/tmp/test_nccl.XXXXXX";
    const int file = mkstemp(path);
    OK(file < 0);
    unlink(path);
    return file;
}

// settings: "NAME=value NAME=value"
static Run begin_run(int ranks, const char *name, const char *settings, const char *with) {
    Run r = {};
    int sockets[2];
    const int file = fresh_file();
    r.out = fresh_file();
    r.begin = seconds_now();
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    for (int rank = 0; rank < ranks; rank++) {
        const pid_t pid = fork();
        OK(pid < 0);
        r.pids.push_back(pid);
        if (pid > 0) continue;
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(r.out, 1), dup2(r.out, 2);
        dup2(file, ID_FILE), dup2(sockets[0], SOCKET), dup2(sockets[1], SOCKET + 1);
        std::string set = settings;
        for (char *s = strtok(&set[0], " "); s != NULL; s = strtok(NULL, " ")) putenv(s);
        execl("/proc/self/exe", "test_nccl", "rank", name, std::to_string(rank).c_str(),
              std::to_string(ranks).c_str(), with, (char *)NULL);
        _exit(8);
    }
    close(file), close(sockets[0]), close(sockets[1]);
    return r;
}

static bool has_ended(pid_t pid) {  // and stays a zombie
    siginfo_t info = {};
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
}

// Waits until all have ended, but not longer than two minutes from their start. Until then nobody
// is reaped: a zombie's peers have to notice that it is dead.
static Run end_run(Run r) {
    for (size_t ended = 0; ended < r.pids.size() && seconds_now() - r.begin < 120;) {
        usleep(5000);
        ended = 0;
        for (pid_t pid : r.pids) ended += has_ended(pid);
    }
    for (pid_t pid : r.pids) {
        int status = 0;
        const bool late = !has_ended(pid);
        if (late) kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        r.codes.push_back(late ? 1000 : WIFEXITED(status) ? WEXITSTATUS(status)
                          : 128 + WTERMSIG(status));
    }
    char part[4096];
    lseek(r.out, 0, SEEK_SET);
    for (ssize_t n; (n = read(r.out, part, sizeof part)) > 0;) r.text.append(part, (size_t)n);
    close(r.out);
    return r;
}

static int most_ranks() {
    int devices = 4;
#ifndef __CUDA_EMU__
    if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
#endif
    return devices < 4 ? devices : 4;
}

// Runs that go well: the case, on how many ranks, with which settings.
static const struct { const char *name; int ranks; const char *settings; } right[] = {
    {"at_all_times", 1, ""}, {"at_all_times", 2, ""}, {"at_all_times", 4, ""}, {"refusals", 2, ""},
#ifdef __CUDA_EMU__
    {"help_is_at_hand", 3, "EMU_SCHED=lazy"}, {"help_is_at_hand", 2, "EMU_SCHED=prio:0"},
    {"at_all_times", 3, "EMU_SCHED=eager"}, {"at_all_times", 3, "EMU_SCHED=prio:0"},
    {"at_all_times", 3, "EMU_SCHED=prio:1"}, {"at_all_times", 3, "EMU_SCHED=random:1"},
    {"at_all_times", 2, "EMU_CLOCK=virtual"}, {"at_all_times", 2, "EMU_STRICT=1"},
#endif
};

// All ranks are right, and silent.
static void what_is_right_is_so_on_all_ranks(void) {
    for (const auto &x : right) {
        if (x.ranks > most_ranks()) continue;
        const Run r = end_run(begin_run(x.ranks, x.name, x.settings, ""));
        for (int code : r.codes)
            CHECK(code == 0, "%s %s: a rank of %d ended with %d", x.name, x.settings, x.ranks,
                  code);
        CHECK(r.text.empty(), "%s %s: %.3000s", x.name, x.settings, r.text.c_str());
    }
}

#ifdef __CUDA_EMU__
static size_t lines_with(const std::string &text, const char *what) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at++) n++;
    return n;
}

// What happens to rank 1; whether it ends well, which no other rank does; and what is in the one
// line that all ranks together print.
static const struct { const char *what, *settings; bool well; const char *says; } misfortunes[] = {
    {"count", "EMU_SCHED=eager", false,
     "collective 1 is ncclReduce(count 100, float32, sum, root 0) on rank 0, but ncclReduce(count "
     "99, float32, sum, root 0) on rank 1"},
    {"world", "", false, "rank 1 is one of "},
    {"killed", "", false, ", which is gone"},
    {"exits", "", true, ", which has ended"},
    {"leaves", "", true, ", which has called ncclCommDestroy"},
    {"sleeps", "EMU_PEER_SECONDS=3", true,
     " has waited in collective 1, ncclReduce(count 100, float32, sum, root 0), for"},
    {"never", "EMU_PEER_SECONDS=3", true, " has waited in ncclCommInitRank, for rank 1 for "},
};

static void misfortunes_are_reported(void) {
    std::vector<Run> runs;  // they sleep most of the time: all at once
    for (const auto &x : misfortunes)
        runs.push_back(begin_run(3, "misfortune", x.settings, x.what));
    for (size_t i = 0; i < runs.size(); i++) {
        const Run r = end_run(runs[i]);
        const auto &x = misfortunes[i];
        for (size_t k = 0; k < r.codes.size(); k++)
            CHECK((r.codes[k] == 0) == (k == 1 && x.well) && r.codes[k] < 1000,
                  "%s: rank %zu ended with %d", x.what, k, r.codes[k]);
        CHECK(lines_with(r.text, "\n") == 1 && lines_with(r.text, x.says) == 1,
              "%s: expected one line with \"%s\", not: %s", x.what, x.says, r.text.c_str());
    }
}
#endif

int main(int argc, char **argv) {
    if (argc == 6) return run_rank(argv[2], atoi(argv[3]), atoi(argv[4]), argv[5]);
    if (most_ranks() == 0) {
        printf("skip test_nccl: no device\n");
        return 0;
    }
    RUN(what_is_right_is_so_on_all_ranks);
#ifdef __CUDA_EMU__
    RUN(misfortunes_are_reported);
#endif
    return test_summary();
}
#endif
