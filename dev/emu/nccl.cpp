// nccl.cpp: NCCL's collectives between the emulated devices of several processes, over shared
// memory. A collective is an operation of its stream; it waits for its peers while it runs.
//
//     segment    one per communicator: what each rank says, and two slots of SLOT bytes for each
//                rank. It is a file in memory without a name, which nobody has to clean up after
//                a crash; the ncclUniqueId says which process has it open, and as what.
//     step       every rank writes its slot, says so, waits until all have, and reads the slots
//                that it needs. The slots take turns: who is at step n + 1 has heard of all that
//                they are, too, and therefore done with step n - 1, whose slots are written now.
//     chunk      what fits into a slot: one step of a collective.
//
// Sums are in the order of the ranks, ((r0 + r1) + r2) + .., each rounded to the type: every rank
// gets the same bits, in every schedule. (Real NCCL has orders of its own.) Whoever receives a sum
// computes it: the ranks share the work.
//
// All ranks compare what they were asked for: another operation, count, type, or root on one of
// them is an error that ends the program. So is a peer that left or died: each process holds a
// record lock on the segment, which its end releases, whatever it dies of.
//
// A rank works off its streams only while its host waits for them; a GPU needs no host for that.
// So it may happen that a peer waits in a collective that this rank has enqueued, while this
// rank's host waits for that peer by other means (a socket): when the peer has waited for
// HELP_AFTER seconds it says so, and a thread of this rank runs what the peer needs.
#include "internal.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "include/nccl.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace emu {

enum { SLOT = 256 * KiB, MAX_RANKS = 64 };
enum Kind { REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER };
static const char *const KINDS[] = {"ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                    "ncclAllGather"};
static const char *type_name(int type) {
    return type == ncclUint8 ? "uint8" : type == ncclFloat16 ? "float16"
         : type == ncclFloat32 ? "float32" : "bfloat16";
}
static size_t type_bytes(int type) { return type == ncclUint8 ? 1 : type == ncclFloat32 ? 4 : 2; }

// A call of a rank, which all ranks have to make. Compared byte by byte, so it has no gaps.
struct Call {
    int kind, type;
    int64_t root;
    uint64_t count, number;  // number: of this call on the communicator, from 0
};

enum State { ABSENT, PRESENT, DESTROYED, ENDED };

// What a rank says to the others, and they to it.
struct alignas(64) Member {
    std::atomic<uint64_t> step;     // how many it has posted
    std::atomic<int> state, pid;
    std::atomic<int> needed;        // a peer waits for it
    int ranks;
    Call call[2];                   // of the last two steps
    double ready[2];                // when it could begin, on the virtual clock
};

struct Segment {
    std::atomic<int> reporter, reported;  // the number of the rank that reports, + 1; it has
    Member member[MAX_RANKS];
};

const size_t SEGMENT_BYTES = sizeof(Segment) + (size_t)MAX_RANKS * 2 * SLOT;  // if all are used

}  // namespace emu
using namespace emu;

struct ncclComm {
    Segment *segment;
    int file, rank, ranks;
    uint64_t steps, calls, done;      // posted; issued; done
    std::shared_ptr<Recording> turn;  // of the last one that was issued
    bool connected[ALL_GATHER + 1];   // kinds that have the memory they need
    std::atomic<bool> closed, aborted, helped;  // aborted: at exit; helped: its helping thread runs
};

namespace emu {

// ---------------------------------------------------------------------------------------------
// Errors

static thread_local char last_error[512];

__attribute__((format(printf, 2, 3)))
static ncclResult_t refuse(ncclResult_t result, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return result;
}

static thread_local bool hidden;  // from ThreadSanitizer, which expects an end of it

static void hide(bool start) {
    hide_accesses(start);
    hidden = start;
}

// Each rank locks the byte of its number; the lock goes when its process ends.
static struct flock lock_of(int rank) {
    struct flock l = {};
    l.l_type = F_WRLCK;
    l.l_whence = SEEK_SET;
    l.l_start = rank;
    l.l_len = 1;
    return l;
}

static bool process_is_gone(const ncclComm *c, int rank) {
    struct flock l = lock_of(rank);
    return rank != c->rank && fcntl(c->file, F_GETLK, &l) == 0 && l.l_type == F_UNLCK;
}

// Another rank reports. This one ends after that: its end may be the end of all, by whoever started
// them.
[[noreturn]] static void end_silently(ncclComm *c) {
    if (hidden) hide(false);
    while (c->segment->reported.load() == 0
           && !process_is_gone(c, c->segment->reporter.load() - 1))
        usleep(1000);
    _exit(1);
}

// What several ranks notice, one of them says.
[[noreturn]] __attribute__((format(printf, 2, 3)))
static void fail_together(ncclComm *c, const char *format, ...) {
    int nobody = 0;
    if (!c->segment->reporter.compare_exchange_strong(nobody, c->rank + 1)) end_silently(c);
    if (hidden) hide(false);
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "emulated GPU: error between ranks: %s\n", text);
    fflush(stderr);
    c->segment->reported.store(1);
    die_after_report();
}

static std::string text_of(const Call &c) {
    const bool sums = c.kind == REDUCE || c.kind == REDUCE_SCATTER;
    const bool has_root = c.kind == REDUCE || c.kind == BROADCAST;
    return std::string(KINDS[c.kind]) + "(count " + std::to_string(c.count) + ", "
           + type_name(c.type) + (sums ? ", sum" : "")
           + (has_root ? ", root " + std::to_string(c.root) : "") + ")";
}

// ---------------------------------------------------------------------------------------------
// Waiting for peers, and noticing those that will not come

// In what way a rank that was here is not any more, or null.
static const char *how_gone(const ncclComm *c, int rank) {
    switch (c->segment->member[rank].state.load(std::memory_order_acquire)) {
    case DESTROYED: return "has called ncclCommDestroy";
    case ENDED: return "has ended";
    case ABSENT: return nullptr;
    default: break;
    }
    return process_is_gone(c, rank) ? "is gone" : nullptr;
}

// Sleeps a little: ranks are more than cores.
static void let_others_run(int tries) {
    if (tries < 20) sched_yield();
    else usleep(tries < 200 ? 50 : 500);
}

// A peer that ended may have said why, and whoever started the ranks may know it better: they get
// this long, in seconds, before we say it.
const double GRACE = 1.5;
const double HELP_AFTER = 0.25;

// Waits until every rank is where it has to be: is_there(member). `call` is what this rank is in,
// or null while ranks meet. Ends the program when one will not come. False: at exit.
template <typename F>
static bool wait_for_all(ncclComm *c, const Call *call, double limit, F is_there) {
    double begin = 0, gone_since = 0;
    for (int tries = 0;; tries++) {
        int missing = 0;
        while (missing < c->ranks && is_there(c->segment->member[missing])) missing++;
        if (missing == c->ranks) return true;
        if (c->aborted) return false;
        let_others_run(tries);
        if (tries % 32 != 31) continue;
        if (c->segment->reporter.load() != 0) end_silently(c);
        const double now = seconds_now();
        if (begin == 0) begin = now;
        const char *how = nullptr;
        for (int r = missing; r < c->ranks && how == nullptr; r++) {
            Member *m = &c->segment->member[r];
            if (is_there(*m)) continue;
            if (now - begin > HELP_AFTER) m->needed.store(1, std::memory_order_relaxed);
            how = how_gone(c, r);
            if (how != nullptr) missing = r;
        }
        if (how == nullptr) gone_since = 0;
        else if (gone_since == 0) gone_since = now;
        const bool gone = how != nullptr && now - gone_since > GRACE;
        if (!gone && now - begin < limit) continue;
        const std::string where = call == nullptr ? "ncclCommInitRank"
                                : "collective " + std::to_string(call->number) + ", "
                                  + text_of(*call);
        if (gone)
            fail_together(c, "rank %d waits in %s, for rank %d (process %d), which %s", c->rank,
                          where.c_str(), missing, c->segment->member[missing].pid.load(), how);
        fail_together(c, "rank %d has waited in %s, for rank %d for %.0f seconds", c->rank,
                      where.c_str(), missing, now - begin);
    }
}

// ---------------------------------------------------------------------------------------------
// Steps

static char *slot_of(const ncclComm *c, int rank, uint64_t step) {
    return (char *)(c->segment + 1) + ((size_t)rank * 2 + step % 2) * SLOT;
}

static void compare_calls(ncclComm *c, uint64_t step) {
    const Call &first = c->segment->member[0].call[step % 2];
    for (int r = 1; r < c->ranks; r++) {
        const Call &other = c->segment->member[r].call[step % 2];
        if (memcmp(&first, &other, sizeof first) == 0) continue;
        fail_together(c, "collective %llu is %s on rank 0, but %s on rank %d",
                      (unsigned long long)first.number, text_of(first).c_str(),
                      text_of(other).c_str(), r);
    }
}

// Says that the slot of this step is written, and waits until all others are. False: the
// program ends.
static bool post_and_wait(ncclComm *c, const Call &call) {
    Member *me = &c->segment->member[c->rank];
    const uint64_t step = c->steps++;
    me->call[step % 2] = call;
    me->ready[step % 2] = running.begin;
    me->step.store(step + 1, std::memory_order_release);
    const auto posted = [step](const Member &m) {
        return m.step.load(std::memory_order_acquire) > step;
    };
    if (!wait_for_all(c, &call, options.peer_seconds, posted)) return false;
    compare_calls(c, step);
    for (int r = 0; r < c->ranks; r++)
        running.begin = std::max(running.begin, c->segment->member[r].ready[step % 2]);
    return true;
}

// ---------------------------------------------------------------------------------------------
// Sums

template <typename T>
static void add(void *out, size_t n, const std::vector<const char *> &in) {
    T *o = (T *)out;
    memcpy(out, in[0], n * sizeof(T));
    for (size_t r = 1; r < in.size(); r++) {
        const T *x = (const T *)in[r];
        for (size_t i = 0; i < n; i++) o[i] = o[i] + x[i];
    }
}

// out[i] = in[0][i] + in[1][i] + ...
static void reduce(void *out, size_t n, const std::vector<const char *> &in, const Call &call) {
    switch (call.type) {
    case ncclFloat16: add<__half>(out, n, in); break;
    case ncclFloat32: add<float>(out, n, in); break;
    case ncclBfloat16: add<__nv_bfloat16>(out, n, in); break;
    }
}

// ---------------------------------------------------------------------------------------------
// The collectives. `at` and `n` are in elements, of what one rank sends or receives.

struct Collective {
    ncclComm *comm;
    Call call;
    const char *in;
    char *out;
    cudaStream_t stream;
    const void *pc;
};

static size_t in_bytes(const Collective &o) {
    const Call &c = o.call;
    if (c.kind == BROADCAST && o.comm->rank != c.root) return 0;
    return type_bytes(c.type) * c.count * (c.kind == REDUCE_SCATTER ? (size_t)o.comm->ranks : 1);
}

static size_t out_bytes(const Collective &o) {
    const Call &c = o.call;
    if (c.kind == REDUCE && o.comm->rank != c.root) return 0;
    return type_bytes(c.type) * c.count * (c.kind == ALL_GATHER ? (size_t)o.comm->ranks : 1);
}

// The slots of all ranks at this step, `offset` bytes from their start.
static std::vector<const char *> all_slots(const ncclComm *c, uint64_t step, size_t offset) {
    std::vector<const char *> all;
    for (int r = 0; r < c->ranks; r++) all.push_back(slot_of(c, r, step) + offset);
    return all;
}

static void reduce_scatter(const Collective &o) {
    ncclComm *c = o.comm;
    const size_t e = type_bytes(o.call.type), most = SLOT / e / (size_t)c->ranks;
    for (size_t at = 0; at < o.call.count; at += most) {
        const size_t n = std::min(most, o.call.count - at);
        const uint64_t step = c->steps;
        for (size_t r = 0; r < (size_t)c->ranks; r++)
            memcpy(slot_of(c, c->rank, step) + r * most * e, o.in + (r * o.call.count + at) * e,
                   n * e);
        if (!post_and_wait(c, o.call)) return;
        reduce(o.out + at * e, n, all_slots(c, step, (size_t)c->rank * most * e), o.call);
    }
}

static void all_gather(const Collective &o) {
    ncclComm *c = o.comm;
    const size_t e = type_bytes(o.call.type), most = SLOT / e;
    for (size_t at = 0; at < o.call.count; at += most) {
        const size_t n = std::min(most, o.call.count - at);
        const uint64_t step = c->steps;
        memcpy(slot_of(c, c->rank, step), o.in + at * e, n * e);
        if (!post_and_wait(c, o.call)) return;
        for (int r = 0; r < c->ranks; r++)
            memcpy(o.out + ((size_t)r * o.call.count + at) * e, slot_of(c, r, step), n * e);
    }
}

static void broadcast(const Collective &o) {
    ncclComm *c = o.comm;
    const size_t e = type_bytes(o.call.type), most = SLOT / e;
    for (size_t at = 0; at < o.call.count; at += most) {
        const size_t n = std::min(most, o.call.count - at);
        const uint64_t step = c->steps;
        if (c->rank == o.call.root) memcpy(slot_of(c, c->rank, step), o.in + at * e, n * e);
        if (!post_and_wait(c, o.call)) return;
        memcpy(o.out + at * e, slot_of(c, o.call.root, step), n * e);
    }
}

static void reduce_to_root(const Collective &o) {
    ncclComm *c = o.comm;
    const size_t e = type_bytes(o.call.type), most = SLOT / e;
    for (size_t at = 0; at < o.call.count; at += most) {
        const size_t n = std::min(most, o.call.count - at);
        const uint64_t step = c->steps;
        memcpy(slot_of(c, c->rank, step), o.in + at * e, n * e);
        if (!post_and_wait(c, o.call)) return;
        if (c->rank == o.call.root) reduce(o.out + at * e, n, all_slots(c, step, 0), o.call);
    }
}

// On the virtual clock, from the moment when all ranks could begin: a latency, and what each link
// of a ring of ranks has to carry.
static double seconds_of(const Collective &o) {
    const double ranks = o.comm->ranks;
    const double bytes = (double)std::max(in_bytes(o), out_bytes(o));
    const double share = o.comm->ranks == 1 ? 0
                       : o.call.kind == REDUCE || o.call.kind == BROADCAST ? 1
                       : (ranks - 1) / ranks;
    return options.nccl_seconds + share * bytes / options.nccl_link;
}

// The operation in its stream.
static void run_collective(const Collective &o) {
    o.comm->done++;
    if (o.comm->aborted) return;
    touch(o.in, in_bytes(o), false, KINDS[o.call.kind]);
    touch(o.out, out_bytes(o), true, KINDS[o.call.kind]);
    hide(true);
    if (o.call.count == 0) post_and_wait(o.comm, o.call);  // NCCL would not even look
    else if (o.call.kind == REDUCE) reduce_to_root(o);
    else if (o.call.kind == BROADCAST) broadcast(o);
    else if (o.call.kind == REDUCE_SCATTER) reduce_scatter(o);
    else all_gather(o);
    hide(false);
    running.seconds = seconds_of(o);
}

// The helping thread: see the top of this file. It never waits for the lock, so that others may
// wait for it.
static void *help(void *argument) {
    ncclComm *c = (ncclComm *)argument;
    if (!has_asan()) give_fault_stack();  // it has one of its own, and takes it down
    Member *me = &c->segment->member[c->rank];
    while (!c->closed) {
        usleep(5000);
        if (me->needed.load(std::memory_order_relaxed) == 0 || !try_lock_runtime()) continue;
        me->needed.store(0, std::memory_order_relaxed);
        const uint64_t done = c->done;
        if (!c->closed && c->turn != nullptr && !c->turn->done)
            run_operations([=] { return c->done > done; }, c->turn->stream);
        unlock_runtime();
    }
    c->helped = false;
    return nullptr;
}

static void start_helping(ncclComm *c) {
    sigset_t signals, before;  // those for the program are none of this thread's business
    pthread_t thread;
    sigfillset(&signals);
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&signals, s);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    c->helped = true;
    if (pthread_create(&thread, nullptr, help, c) != 0) emu_fail("no thread for NCCL");
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// ---------------------------------------------------------------------------------------------
// Calls and groups

static thread_local int group_depth;
static thread_local ncclResult_t group_error;
static thread_local std::vector<Collective> group;

static void issue(Collective o) {
    o.call.number = o.comm->calls++;
    enqueue_in_turn(KINDS[o.call.kind], o.stream, [o] { run_collective(o); }, &o.comm->turn, o.pc);
}

static bool is_device_memory(const void *p, const char *who) {
    Lock lock(who);
    const Allocation *a = find_allocation(p);
    return a != nullptr && !a->freed && a->type == cudaMemoryTypeDevice;
}

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

// Real NCCL does not look, and gives some result. In place, the buffer of one side is this rank's
// part of the other's.
static void check_overlap(const Collective &o) {
    const size_t in = in_bytes(o), out = out_bytes(o), rank = (size_t)o.comm->rank;
    if (!overlap(o.in, in, o.out, out)) return;
    if (o.call.kind == ALL_GATHER ? o.in == o.out + rank * in
        : o.call.kind == REDUCE_SCATTER ? o.out == o.in + rank * out : o.in == o.out)
        return;
    emu_fail("%s: the buffers overlap, but not in the way that works in place",
             KINDS[o.call.kind]);
}

// What one operation of a group writes must be no other's business: NCCL may run them at once.
static void check_group(const std::vector<Collective> &all) {
    for (const Collective &a : all)
        for (const Collective &b : all)
            if (&a != &b && (overlap(a.out, out_bytes(a), b.in, in_bytes(b))
                             || (&a < &b && overlap(a.out, out_bytes(a), b.out, out_bytes(b)))))
                emu_fail("%s and %s of one group use the same memory, which one of them writes",
                         KINDS[std::min(&a, &b)->call.kind], KINDS[std::max(&a, &b)->call.kind]);
}

static ncclResult_t check(const Collective &o) {
    const char *name = KINDS[o.call.kind];
    if (o.comm == nullptr || o.comm->closed)
        return refuse(ncclInvalidArgument, "%s: the communicator is null or destroyed", name);
    if (o.call.root < 0 || o.call.root >= o.comm->ranks)
        return refuse(ncclInvalidArgument, "%s: root %d of %d ranks", name, (int)o.call.root,
                      o.comm->ranks);
    const bool sums = o.call.kind == REDUCE || o.call.kind == REDUCE_SCATTER;
    const int type = o.call.type;
    if (type != ncclFloat16 && type != ncclFloat32 && type != ncclBfloat16
        && (sums || type != ncclUint8))
        return refuse(ncclInvalidArgument, "%s: type %d is unknown, or not emulated", name, type);
    if (in_bytes(o) > 0 && !is_device_memory(o.in, name))
        return refuse(ncclInvalidArgument, "%s: the send buffer is not device memory", name);
    if (out_bytes(o) > 0 && !is_device_memory(o.out, name))
        return refuse(ncclInvalidArgument, "%s: the receive buffer is not device memory", name);
    check_overlap(o);
    return ncclSuccess;
}

// As NCCL connects its ranks: with the first call that needs it.
static ncclResult_t connect(ncclComm *c, Kind kind) {
    Lock lock(KINDS[kind]);
    if (!c->connected[kind] && !take_device_memory(options.nccl_bytes))
        return refuse(ncclUnhandledCudaError, "%s: no device memory for its buffers", KINDS[kind]);
    c->connected[kind] = true;
    return ncclSuccess;
}

static ncclResult_t call(Kind kind, const void *in, void *out, size_t count, int type, int root,
                         ncclComm_t comm, cudaStream_t stream, const void *pc) {
    Collective o = {comm, {}, (const char *)in, (char *)out, stream, pc};
    o.call.kind = kind, o.call.type = type, o.call.root = root;
    o.call.count = count;
    ncclResult_t result = check(o);
    if (result == ncclSuccess) result = connect(comm, kind);
    if (result != ncclSuccess) {
        if (group_depth > 0 && group_error == ncclSuccess) group_error = result;
        return result;
    }
    if (group_depth > 0) group.push_back(o);
    else issue(o);
    return ncclSuccess;
}

// ---------------------------------------------------------------------------------------------
// Communicators

const char MAGIC[] = "emulated";

// What an ncclUniqueId holds: where the segment is.
struct Place {
    char magic[sizeof MAGIC];
    int pid, file;
};
static_assert(sizeof(Place) <= sizeof(ncclUniqueId), "a place fits into an ncclUniqueId");

// Ranks come here at about the same time, as the id has just come to them.
const double MEETING_SECONDS = 60;

// The process that made the segment must keep its own descriptor: to close it would release this
// process's locks.
static int open_segment(const Place &place) {
    char path[64];
    if (place.pid == (int)getpid()) return place.file;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place.pid, place.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        refuse(ncclSystemError, "the memory of process %d, which made the id: %s: %s", place.pid,
               path, strerror(errno));
    return file;
}

// Takes this rank's place, and waits until all are there and agree on how many they are.
static ncclResult_t meet(ncclComm *c) {
    Member *me = &c->segment->member[c->rank];
    struct flock mine = lock_of(c->rank);
    const int pid = (int)getpid();
    int nobody = 0;
    if (!me->pid.compare_exchange_strong(nobody, pid))
        return refuse(ncclInvalidUsage, "rank %d: process %d is that already", c->rank, nobody);
    for (int r = 0; r < MAX_RANKS; r++) {
        if (r == c->rank || c->segment->member[r].pid != pid) continue;
        me->pid = 0;
        return refuse(ncclInvalidUsage, "rank %d: this process is rank %d already: every rank is "
                      "a process", c->rank, r);
    }
    if (fcntl(c->file, F_SETLK, &mine) != 0)
        return refuse(ncclSystemError, "rank %d: no lock: %s", c->rank, strerror(errno));
    me->ranks = c->ranks;
    me->state.store(PRESENT, std::memory_order_release);
    const double limit = std::min(MEETING_SECONDS, options.peer_seconds);
    wait_for_all(c, nullptr, limit, [](const Member &m) {
        return m.state.load(std::memory_order_acquire) != ABSENT;
    });
    for (int r = 0; r < c->ranks; r++)
        if (c->segment->member[r].ranks != c->ranks)
            fail_together(c, "rank %d is one of %d, but rank %d is one of %d", c->rank, c->ranks,
                          r, c->segment->member[r].ranks);
    return ncclSuccess;
}

// At exit, without ncclCommDestroy: peers learn of it, and no operation runs any more while the
// program is taken down.
static std::vector<ncclComm *> *all_open;

static void close_all() {
    for (ncclComm *c : *all_open) {
        if (c->closed) continue;
        c->aborted = c->closed = true;
        c->segment->member[c->rank].state.store(ENDED, std::memory_order_release);
        for (int tries = 0; c->helped && tries < 400; tries++) usleep(5000);
    }
}

}  // namespace emu

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    if (id == nullptr) return refuse(ncclInvalidArgument, "ncclGetUniqueId: no place for it");
    Place place = {};
    memcpy(place.magic, MAGIC, sizeof MAGIC);
    place.pid = (int)getpid();
    place.file = memfd_create("emulated NCCL", MFD_CLOEXEC);
    if (place.file < 0 || ftruncate(place.file, (off_t)SEGMENT_BYTES) != 0)
        return refuse(ncclSystemError, "no shared memory: %s", strerror(errno));
    memset(id, 0, sizeof *id);
    memcpy(id, &place, sizeof place);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    Place place;
    memcpy(&place, &id, sizeof place);
    if (comm == nullptr || memcmp(place.magic, MAGIC, sizeof MAGIC) != 0)
        return refuse(ncclInvalidArgument, "ncclCommInitRank: no communicator, or no id");
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return refuse(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d (at most %d)", rank,
                      ranks, MAX_RANKS);
    if (group_depth > 0 && ranks > 1)
        return refuse(ncclInvalidUsage, "ncclCommInitRank in a group: every rank is a process");
    const int file = open_segment(place);
    if (file < 0) return ncclSystemError;
    void *p = mmap(nullptr, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) {
        close(file);
        return refuse(ncclSystemError, "rank %d: shared memory: %s", rank, strerror(errno));
    }
    ncclComm *c = new ncclComm();
    c->segment = (Segment *)p, c->file = file, c->rank = rank, c->ranks = ranks;
    const ncclResult_t result = meet(c);
    if (result != ncclSuccess) {
        munmap(p, SEGMENT_BYTES);
        delete c;
        return result;
    }
    if (ranks > 1) start_helping(c);
    Lock lock("ncclCommInitRank");
    hide(true);
    if (all_open == nullptr) {
        all_open = new std::vector<ncclComm *>();
        atexit(close_all);
    }
    all_open->push_back(c);
    hide(false);
    *comm = c;
    return ncclSuccess;
}

// Nothing is freed but the memory, so that a use after this can be refused.
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    if (c == nullptr || c->closed)
        return refuse(ncclInvalidArgument, "the communicator is null or destroyed");
    {
        Lock lock("ncclCommDestroy");
        const std::shared_ptr<Recording> last = c->turn;
        if (last != nullptr) run_operations([last] { return last->done; }, last->stream);
        c->closed = true;
        c->segment->member[c->rank].state.store(DESTROYED, std::memory_order_release);
    }
    while (c->helped) usleep(1000);
    munmap(c->segment, SEGMENT_BYTES);
    close(c->file);
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t) { return last_error; }

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    default: return "unknown result code";
    }
}

ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (group_depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0) return ncclSuccess;
    std::vector<Collective> all;
    all.swap(group);
    const ncclResult_t result = group_error;
    group_error = ncclSuccess;
    if (result != ncclSuccess) return result;  // then none of them
    check_group(all);
    for (const Collective &o : all) issue(o);
    return ncclSuccess;
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t, int root, ncclComm_t comm, cudaStream_t stream) {
    return call(REDUCE, send, receive, count, type, root, comm, stream, EMU_PC);
}
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    return call(BROADCAST, send, receive, count, type, root, comm, stream, EMU_PC);
}
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    return call(REDUCE_SCATTER, send, receive, count, type, 0, comm, stream, EMU_PC);
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return call(ALL_GATHER, send, receive, count, type, 0, comm, stream, EMU_PC);
}
