// stream.cpp: streams are queues, and events are records of how far one has come. There are no
// worker threads: what was enqueued runs inside the calls that wait (cudaStreamSynchronize and so
// on), in an order that EMU_SCHED chooses among all that CUDA allows, and that can be repeated:
//
//   lazy      (default) as late as possible, and only what the waiting call needs
//   eager     at once, in the call that enqueues: best for a debugger
//   prio:N    late, one stream as far as events let it go, by a fixed priority: N = 0 the oldest
//             stream first, N = 1 the youngest first, else by seed. So a consumer overtakes its
//             producer wherever no event holds it back.
//   random:N  by priorities that change now and then; early or late
//   earliest  what can start first on the virtual clock (default with EMU_CLOCK=virtual)
//
// With ThreadSanitizer, every stream is one of its fibers, and it is told only what orders
// operations in CUDA: same stream, event record and wait, synchronisation, the launch itself.
//
// A host thread that waits for a word (emu_wait_value()) is one more stream, whose operations are
// such a wait and the thread's turn, by turns. So a program's worker has the adversary's orders too.
#include "internal.h"
#include "include/cuda.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace emu {
struct Operation {
    enum Kind { RUN, HOST, RECORD, WAIT, WORD } kind;
    const char *name;
    const void *pc;
    uint64_t number;  // in the order of enqueuing
    std::function<void()> fn;
    std::shared_ptr<Recording> recording;  // RECORD, WAIT: of that event; of a turn: its own end
    std::shared_ptr<Recording> before;     // of a turn: the end of the one before it, or null
    const char *side[2];  // of a copy: what it writes and reads, `bytes` each
    size_t bytes[2];
    // on the virtual clock
    double enqueued, seconds;
    int engine;  // of a copy: 0 host to device, 1 device to host, else -1
    const unsigned *word = nullptr;  // WORD: waits until it has come to `value`
    unsigned value = 0;
};
}  // namespace emu
using namespace emu;

struct CUstream_st {
    int id;
    int pool;        // of stacks: the lowest number that no other stream has
    bool blocking;   // is ordered with the default stream
    bool busy;       // its first operation is running
    bool destroyed;
    uint64_t priority;  // of the schedules; the one that the program asks for changes nothing:
    int asked;
    std::string name;
    std::deque<std::unique_ptr<Operation>> queue;
    std::vector<void *> tsan;  // identities, used in turn
    size_t turn;
    char order_token, sync_token;
    uint64_t default_seen;     // number of the last default-stream operation ordered before
    double end;                // of its last operation, on the virtual clock
    bool is_thread;            // a host thread's
    std::atomic<int> turns;    // of a thread: odd while it runs
};
struct CUevent_st {
    std::shared_ptr<Recording> latest;
    bool timing;
};

namespace emu {

enum { MAX_QUEUE = 1024 };  // about what a GPU takes before a launch has to wait

static std::vector<CUstream_st *> streams;
static CUstream_st *default_stream;
static int streams_made;
static uint64_t operations_enqueued, operations_run, random_state;
static thread_local void *host_identity;

// ---------------------------------------------------------------------------------------------
// ThreadSanitizer

// A stream has several identities, chained so that they stay in order, because the history from
// which ThreadSanitizer reports the older access of a race is limited for each.
static int identities_left = 230;  // ThreadSanitizer has 255; EMU_RACECHECK needs 192 of them

static void make_identities(CUstream_st *s) {
    const int count = options.racecheck || s->is_thread ? 1 : std::max(1, std::min(24, identities_left));
    identities_left -= count;
    for (int i = 0; i < count; i++) s->tsan.push_back(__tsan_create_fiber(0));
}

static void name_identities(CUstream_st *s) {
    for (void *fiber : s->tsan) __tsan_set_fiber_name(fiber, ("stream " + s->name).c_str());
}

// Between enter() and leave() ThreadSanitizer sees stream s instead of this host thread.
static void enter(CUstream_st *s) {
    host_identity = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(s->tsan[s->turn], TSAN_NO_SYNC);
}
static void leave() { __tsan_switch_to_fiber(host_identity, TSAN_NO_SYNC); }

// What s did so far happens before what the host (or stream `after`) does next.
static void order_after(CUstream_st *s, CUstream_st *after) {
    enter(s);
    __tsan_release(&s->sync_token);
    leave();
    if (after != nullptr) enter(after);
    __tsan_acquire(&s->sync_token);
    if (after != nullptr) leave();
}

static void next_identity(CUstream_st *s) {
    if (s->tsan.size() < 2) return;
    enter(s);
    __tsan_release(&s->order_token);
    leave();
    s->turn = (s->turn + 1) % s->tsan.size();
    enter(s);
    __tsan_acquire(&s->order_token);
    leave();
}

// The default stream waits for all blocking streams, and they wait for it.
static void order_with_default(CUstream_st *s, const Operation *o) {
    if (s == default_stream) {
        for (CUstream_st *t : streams)
            if (t != s && t->blocking) order_after(t, s);
        s->default_seen = o->number;
    } else if (s->blocking && default_stream && s->default_seen < default_stream->default_seen) {
        order_after(default_stream, s);
        s->default_seen = default_stream->default_seen;
    }
}

// ---------------------------------------------------------------------------------------------
// Words of page-locked memory that someone waits for. Who writes one does not say so: what changed
// is looked for when a host function, or a thread's turn, is over.

struct Word { const unsigned *at; unsigned value; double time; };  // when it got this value
static Word words[64];  // at null: free

static unsigned word_now(const unsigned *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static bool word_has_come(const unsigned *at, unsigned value) {
    return (int)(word_now(at) - value) >= 0;
}

static double word_time(const unsigned *at) {
    Word *unused = nullptr;
    for (Word &w : words) {
        if (w.at == at) return w.time;
        if (w.at == nullptr) unused = &w;
    }
    if (unused == nullptr) emu_fail("streams and threads wait for more than 64 words");
    *unused = {at, word_now(at), 0};
    return 0;
}

static void look_at_words(double time) {
    for (Word &w : words)
        if (w.at != nullptr && w.value != word_now(w.at)) w.value = word_now(w.at), w.time = time;
}

// ---------------------------------------------------------------------------------------------
// The virtual clock (EMU_CLOCK=virtual): seconds that follow from the order of operations alone.
// An operation starts when its stream has come to it, the events it waits for are there, the host
// has enqueued it, and its copy engine is free. The host's time stands still until it waits.

static double engine_free[2];       // when each copy engine has done what it was given
static double host_latest;          // of all host threads: where a new one starts
static thread_local double host_time = -1;
static std::atomic<int> host_functions;             // that run now
static std::atomic<long long> host_nanoseconds;     // that they said they take

static double host_now() { return host_time < 0 ? host_time = host_latest : host_time; }

static void host_waits_until(double t) {
    host_time = std::max(host_now(), t);
    host_latest = std::max(host_latest, host_time);
}

// What must be done in another stream before this operation may run, or null.
static const Recording *dependence(const Operation *o) {
    return o->kind == Operation::WAIT ? o->recording.get() : o->before.get();
}

// When all that an operation depends on is done, without its copy engine.
static double ready_time(const CUstream_st *s, const Operation *o) {
    double t = std::max(s->end, o->enqueued);
    if (dependence(o) != nullptr) t = std::max(t, dependence(o)->time);
    if (o->kind == Operation::WORD) t = std::max(t, word_time(o->word));
    for (const CUstream_st *other : streams)    // as order_with_default
        if (other != s && s->blocking && other->blocking
            && (s == default_stream || other == default_stream))
            t = std::max(t, other->end);
    return t;
}

static double start_time(const CUstream_st *s, const Operation *o) {
    const double t = ready_time(s, o);
    return o->engine < 0 ? t : std::max(t, engine_free[o->engine]);
}

// ---------------------------------------------------------------------------------------------
// The scheduler; all of it with the lock held

static CUstream_st *make_stream(bool blocking, bool is_thread = false) {
    if (random_state == 0) random_state = options.seed * 0x9e3779b97f4a7c15ull | 1;
    CUstream_st *s = new CUstream_st();
    s->id = streams_made++;
    const auto has_pool = [s](const CUstream_st *t) { return t->pool == s->pool; };
    while (std::any_of(streams.begin(), streams.end(), has_pool)) s->pool++;
    s->blocking = blocking;
    s->is_thread = is_thread;
    s->name = is_thread ? "thread" : default_stream == nullptr ? "default" : std::to_string(s->id);
    s->priority = (uint64_t)s->id;
    if (options.schedule == Options::PRIORITY && options.seed == 1) s->priority = ~s->priority;
    if (options.schedule == Options::RANDOM
        || (options.schedule == Options::PRIORITY && options.seed > 1))
        s->priority = next_random(&random_state);
    if (has_tsan()) {
        make_identities(s);
        name_identities(s);
    }
    streams.push_back(s);
    return s;
}

static CUstream_st *resolve(CUstream_st *s) {
    if (default_stream == nullptr) default_stream = make_stream(true);
    if (s == nullptr) return default_stream;
    if (s->destroyed) emu_fail("stream %s is used after cudaStreamDestroy", s->name.c_str());
    return s;
}

// The structure stays, so that a use after this can be named.
static void forget(CUstream_st *s) {
    for (void *fiber : s->tsan) __tsan_destroy_fiber(fiber);
    identities_left += (int)s->tsan.size();
    streams.erase(std::find(streams.begin(), streams.end(), s));
}

static bool comes_before(const CUstream_st *s, const Operation *o) {
    return !s->queue.empty() && s->queue.front()->number < o->number;
}

static bool is_ready(const CUstream_st *s) {
    if (s->queue.empty() || s->busy) return false;
    const Operation *o = s->queue.front().get();
    if (s == default_stream) {
        for (const CUstream_st *t : streams)
            if (t != s && t->blocking && comes_before(t, o)) return false;
    } else if (s->blocking && comes_before(default_stream, o)) {
        return false;
    }
    if (o->kind == Operation::WORD) return word_has_come(o->word, o->value);
    return dependence(o) == nullptr || dependence(o)->done;
}

static CUstream_st *ready_thread() {
    for (CUstream_st *s : streams)
        if (s->is_thread && is_ready(s)) return s;
    return nullptr;
}

// The stream whose first operation can start first; of several for one copy engine, the one that
// has been ready for longest.
static CUstream_st *earliest_stream() {
    CUstream_st *best = nullptr;
    double best_start = 0, best_ready = 0;
    for (CUstream_st *s : streams) {
        if (!is_ready(s)) continue;
        const Operation *o = s->queue.front().get();
        const double start = start_time(s, o), ready = ready_time(s, o);
        if (best != nullptr
            && std::make_tuple(best_start, best_ready, best->queue.front()->number)
               < std::make_tuple(start, ready, o->number))
            continue;
        best = s, best_start = start, best_ready = ready;
    }
    return best;
}

// `wanted` is what someone waits for, or null.
static CUstream_st *choose_stream(CUstream_st *wanted) {
    if (options.schedule == Options::EARLIEST) return earliest_stream();
    if (options.schedule == Options::LAZY)
        for (CUstream_st *s = wanted; s != nullptr && !s->queue.empty();) {
            if (is_ready(s)) return s;
            const Operation *o = s->queue.front().get();
            const Recording *r = dependence(o);
            if (o->kind == Operation::WORD && ready_thread() != nullptr) return ready_thread();
            s = r != nullptr && !r->done ? r->stream : nullptr;
        }
    if (options.schedule == Options::RANDOM && next_random(&random_state) % 16 == 0)
        for (CUstream_st *s : streams) s->priority = next_random(&random_state);
    CUstream_st *best = nullptr;
    for (CUstream_st *s : streams)
        if (is_ready(s) && (best == nullptr || s->priority < best->priority)) best = s;
    return best;
}

struct Profile { std::string name; uint64_t calls; double seconds; };
static std::vector<Profile> profile;

static void add_to_profile(const char *name, double seconds) {
    for (Profile &p : profile)
        if (p.name == name) {
            p.calls++;
            p.seconds += seconds;
            return;
        }
    profile.push_back({name, 1, seconds});
}

static struct PrintProfile {
    ~PrintProfile() {
        for (const Profile &p : profile)
            fprintf(stderr, "emulated GPU: %8llu calls %10.3f ms  %s\n",
                    (unsigned long long)p.calls, p.seconds * 1e3, p.name.c_str());
    }
} print_profile;

thread_local bool in_operation;
Period running;
static double held_until;  // the host function that runs, by a word that it waits for

// A host function may take its time, and wait for other host threads: they get the lock.
static void run_host_function(Operation *o) {
    open_device_memory(false);
    host_functions++;
    held_until = 0;
    unlock_runtime();
    in_operation = true;
    o->fn();
    in_operation = false;
    lock_runtime("cudaLaunchHostFunc");
    host_functions--;
    o->seconds += 1e-9 * (double)host_nanoseconds.exchange(0);
    open_device_memory(true);
}

static void run_next(CUstream_st *s) {
    Operation *o = s->queue.front().get();
    const double begin = options.virtual_clock ? start_time(s, o) : 0;
    if (options.trace == 1 && options.virtual_clock) fprintf(stderr, "%11.6f s: ", begin);
    if (options.trace == 1)
        fprintf(stderr, "emulated GPU: #%llu stream %s: %s\n", (unsigned long long)operations_run,
                s->name.c_str(), o->name);
    const double start = options.trace == 2 ? seconds_now() : 0;
    void *const outer_identity = host_identity;
    s->busy = true;
    if (has_tsan()) {
        order_with_default(s, o);
        next_identity(s);
        enter(s);
        __tsan_func_entry((void *)o->pc);
        __tsan_acquire(o);  // the host enqueued it before
        __tsan_acquire(&thread_token);
        if (o->kind == Operation::WAIT) __tsan_acquire(&o->recording->token);
        if (o->kind == Operation::WORD) __tsan_acquire((void *)o->word);
    }
    double end = begin + o->seconds;
    if (o->kind == Operation::RUN) {
        running = {begin, o->seconds};
        in_operation = true;
        o->fn();
        in_operation = false;
        end = running.begin + running.seconds;
    } else if (o->kind == Operation::HOST) {
        run_host_function(o);
        end = std::max(begin + o->seconds, held_until);
        look_at_words(end);
    } else if (o->kind == Operation::RECORD && has_tsan()) {
        __tsan_release(&o->recording->token);
    }
    o->fn = nullptr;  // what it captured dies as part of the stream, for ThreadSanitizer
    if (has_tsan()) {
        __tsan_func_exit();
        leave();
        host_identity = outer_identity;
    }
    if (o->kind == Operation::RUN) check_canaries(o->name, false);
    s->end = end;
    if (o->engine >= 0) engine_free[o->engine] = s->end;
    if (o->kind != Operation::WAIT && o->recording != nullptr) {
        o->recording->done = true;
        o->recording->time = options.virtual_clock ? s->end : seconds_now();
    }
    if (options.trace == 2) add_to_profile(o->name, seconds_now() - start);
    s->busy = false;
    operations_run++;
    Unseen unseen;
    s->queue.pop_front();
    if (s->is_thread && s->destroyed) forget(s);
}

[[noreturn]] static void nothing_can_run() {
    fprintf(stderr, "emulated GPU: deadlock: no stream can go on\n");
    for (const CUstream_st *s : streams)
        if (!s->queue.empty())
            fprintf(stderr, "    stream %s: %zu operations, the first is: %s\n", s->name.c_str(),
                    s->queue.size(), s->queue.front()->name);
    die_after_report();
}

// When nothing can run: waits a little for a host thread, unless none can be expected to help, or
// a word has not come since `idle` began.
static void wait_for_host_threads(double *idle) {
    bool busy = false, word = false;
    for (const CUstream_st *t : streams) {
        busy |= t->busy;
        word |= !t->is_thread && !t->queue.empty()
                && t->queue.front()->kind == Operation::WORD;
    }
    if (*idle == 0) *idle = seconds_now();
    if (!busy && (!word || seconds_now() > *idle + 10)) nothing_can_run();
    unlock_runtime();
    usleep(20);
    lock_runtime("waiting for a host thread");
}

// Runs operations until reached().
template <typename Goal> static void run_until(Goal reached, CUstream_st *wanted) {
    if (reached()) return;
    open_device_memory(true);
    for (double idle = 0; !reached();) {
        CUstream_st *s = choose_stream(wanted);
        if (s == nullptr) wait_for_host_threads(&idle);
        else run_next(s), idle = 0;
    }
    open_device_memory(false);
}

static void synchronize(CUstream_st *s) {
    run_until([s] { return s->queue.empty(); }, s);
    run_until([] { return ready_thread() == nullptr; }, ready_thread());  // one may have to end
    host_waits_until(s->end);
    if (has_tsan()) order_after(s, nullptr);
}

void run_operations(const std::function<bool()> &reached, cudaStream_t wanted) {
    run_until(reached, wanted);
}

void synchronize_device() {
    run_until([] {  // threads wait for ever
        for (const CUstream_st *s : streams)
            if (!s->queue.empty() && !s->is_thread) return false;
        return true;
    }, nullptr);
    for (CUstream_st *s : streams) {
        host_waits_until(s->end);
        if (has_tsan()) order_after(s, nullptr);
    }
}

// For the queries, which do not wait: the GPU gets on a little.
static void run_one(CUstream_st *wanted) {
    CUstream_st *s = choose_stream(wanted);
    if (s == nullptr) return;
    open_device_memory(true);
    run_next(s);
    open_device_memory(false);
}

static void push(CUstream_st *s, Operation *o) {
    o->number = ++operations_enqueued;
    o->enqueued = host_now();
    if (has_tsan()) __tsan_release(o);
    {
        Unseen unseen;
        s->queue.emplace_back(o);
    }
    if (options.schedule == Options::EAGER)
        run_until([] { return choose_stream(nullptr) == nullptr; }, nullptr);
    else if (options.schedule == Options::RANDOM)
        for (uint64_t n = next_random(&random_state) % 4; n > 0; n--) run_one(nullptr);
    if (s->queue.size() > MAX_QUEUE)
        run_until([s] { return s->queue.size() <= MAX_QUEUE / 2; }, s);
}

static void push(CUstream_st *s, Operation::Kind kind, const char *name,
                 std::function<void()> fn, std::shared_ptr<Recording> recording, const void *pc,
                 std::shared_ptr<Recording> before = nullptr) {
    const double seconds = kind == Operation::RUN ? options.kernel_seconds
                         : kind == Operation::HOST ? options.host_seconds : 0;
    push(s, new Operation{kind, name, pc, 0, std::move(fn), std::move(recording),
                          std::move(before), {}, {}, 0, seconds, -1});
}

static Operation *word_wait(const unsigned *word, unsigned value, const void *pc) {
    Unseen unseen;
    Operation *o = new Operation{Operation::WORD, "wait for a word", pc, 0, nullptr, nullptr,
                                 nullptr, {}, {}, 0, 0, -1};
    o->word = word, o->value = value;
    return o;
}

void enqueue(const char *name, cudaStream_t stream, std::function<void()> fn, const void *pc) {
    Lock lock(name);
    push(resolve(stream), Operation::RUN, name, std::move(fn), nullptr, pc);
}

void enqueue_in_turn(const char *name, cudaStream_t stream, std::function<void()> fn,
                     std::shared_ptr<Recording> *turn, const void *pc) {
    Lock lock(name);
    CUstream_st *s = resolve(stream);
    const std::shared_ptr<Recording> before = *turn;
    *turn = std::make_shared<Recording>(Recording{s, false, 0, 0});
    push(s, Operation::RUN, name, std::move(fn), *turn, pc, before);
}

void launch(const Launch &l, const void *pc) {
    Lock lock(l.kernel);
    CUstream_st *s = resolve(l.config.stream);
    const int pool = s->pool;
    push(s, Operation::RUN, l.kernel, [l, pool] {
        run_grid(l, pool);
        l.destroy(l.args);
    }, nullptr, pc);
}

// ---------------------------------------------------------------------------------------------
// Copies

static void check_copy_side(const void *p, size_t bytes, bool is_device, const char *what,
                            Site at) {
    const Allocation *a = find_allocation(p);
    if (a == nullptr && !is_device) return;  // pageable host memory
    if (a == nullptr)
        emu_fail("copy at %s:%d: the %s (%p) is not device memory", at.file, at.line, what, p);
    char text[512];
    describe_allocation(text, sizeof text, a);
    if (a->freed) emu_fail("copy at %s:%d: the %s was freed: %s", at.file, at.line, what, text);
    if (!is_device && a->type == cudaMemoryTypeDevice)
        emu_fail("copy at %s:%d: the %s is not host memory, but %s", at.file, at.line, what, text);
    const size_t offset = (size_t)((const char *)p - a->data);
    if (bytes > a->bytes - offset)
        emu_fail("copy at %s:%d: %zu bytes from offset %zu of the %s run past the end of\n    %s",
                 at.file, at.line, bytes, offset, what, text);
}

static bool is_pageable(const void *p) { return find_allocation(p) == nullptr; }

// Page-locked memory may not go while a copy still needs it, or someone waits for a word of it.
void refuse_while_used(const Allocation *a, const char *who) {
    const auto inside = [a](const void *p) {
        return (const char *)p >= a->data && (const char *)p < a->data + a->bytes;
    };
    for (const CUstream_st *s : streams)
        for (const auto &o : s->queue)
            for (int k = 0; k < 2; k++) {
                const bool waits = k == 1 && o->kind == Operation::WORD && inside(o->word);
                if (!waits && (o->side[k] >= a->data + a->bytes
                               || o->side[k] + o->bytes[k] <= a->data))
                    continue;
                char text[512];
                describe_allocation(text, sizeof text, a);
                emu_fail("%s while a %s in stream %s has yet to %s\n    %s", who, o->name,
                         s->name.c_str(), k == 0 ? "write to" : "read from", text);
            }
    for (Word &w : words)
        if (inside(w.at)) w.at = nullptr;
}

static bool is_on_device(const void *p) {
    const Allocation *a = find_allocation(p);
    return a != nullptr && a->type == cudaMemoryTypeDevice;
}

// From pageable memory the driver makes a copy of its own at once; to pageable memory it waits until
// the copy is done. (On the virtual clock the host waits for both: making the copy takes as long.)
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream, bool wait, Site at, const void *pc) {
    static const char *const NAMES[] = {"copy host to host", "copy host to device",
                                        "copy device to host", "copy device to device", "copy"};
    if (bytes == 0) return cudaSuccess;
    Lock lock("cudaMemcpy");
    if ((unsigned)kind > cudaMemcpyDefault) return set_error(cudaErrorInvalidMemcpyDirection);
    const bool any = kind == cudaMemcpyDefault;
    const auto side = [any](const void *p, bool device) { return any ? is_on_device(p) : device; };
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    check_copy_side(to, bytes, side(to, to_device), "destination", at);
    check_copy_side(from, bytes, side(from, from_device), "source", at);
    if (!wait && options.strict && (is_pageable(to) || is_pageable(from)))
        emu_fail("cudaMemcpyAsync at %s:%d is not asynchronous: its host memory is pageable",
                 at.file, at.line);
    char *staged = nullptr;
    if (is_pageable(from)) {
        staged = (char *)malloc(bytes);
        if (staged == nullptr) emu_fail("no memory to stage a copy of %zu bytes", bytes);
        memcpy(staged, from, bytes);
    }
    CUstream_st *s = resolve(stream);
    const auto run = [=] {
        device_copy(to, staged ? staged : from, bytes);
        free(staged);
    };
    const bool out = is_on_device(to), in = is_on_device(from);
    const double seconds = out == in ? options.kernel_seconds
                                     : (double)bytes / options.link;
    push(s, new Operation{Operation::RUN, NAMES[kind], pc, 0, run, nullptr, nullptr,
                          {(const char *)to, staged ? nullptr : (const char *)from},
                          {bytes, staged ? 0 : bytes}, 0, seconds,
                          out == in ? -1 : in ? 1 : 0});
    if (wait || is_pageable(to) || (staged && options.virtual_clock)) synchronize(s);
    return cudaSuccess;
}

static void fill(void *p, int value, size_t bytes, cudaStream_t stream, Site at, const void *pc) {
    if (bytes == 0) return;
    Lock lock("cudaMemset");
    check_copy_side(p, bytes, true, "destination of cudaMemset", at);
    push(resolve(stream), Operation::RUN, "memset", [=] { device_fill(p, value, bytes); }, nullptr,
         pc);
}

}  // namespace emu

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, Site at) {
    return copy(to, from, bytes, kind, nullptr, true, at, EMU_PC);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream, Site at) {
    return copy(to, from, bytes, kind, stream, false, at, EMU_PC);
}
cudaError_t cudaMemset(void *p, int value, size_t bytes, Site at) {
    fill(p, value, bytes, nullptr, at, EMU_PC);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream, Site at) {
    fill(p, value, bytes, stream, at, EMU_PC);
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------
// Streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    Lock lock("cudaStreamCreate");
    resolve(nullptr);  // the default stream is the first
    *stream = make_stream(!(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    cudaStreamCreateWithFlags(stream, flags);
    (*stream)->asked = priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    Lock lock("cudaStreamGetPriority");
    *priority = resolve(stream)->asked;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Lock lock("cudaStreamDestroy");
    if (stream == nullptr) return set_error(cudaErrorInvalidResourceHandle);
    CUstream_st *s = resolve(stream);
    synchronize(s);
    s->destroyed = true;
    forget(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Lock lock("cudaStreamSynchronize");
    synchronize(resolve(stream));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    Lock lock("cudaDeviceSynchronize");
    synchronize_device();
    open_device_memory(true);
    check_canaries("cudaDeviceSynchronize", true);
    open_device_memory(false);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    Lock lock("cudaLaunchHostFunc");
    push(resolve(stream), Operation::HOST, "host function", [=] { function(data); }, nullptr,
         EMU_PC);
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------
// Waiting for words

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
    Lock lock("cuStreamWaitValue32");
    if (!options.wait_value) return CUDA_ERROR_NOT_SUPPORTED;
    const Allocation *a = find_allocation((const void *)word);
    if (a == nullptr || a->freed || a->type != cudaMemoryTypeHost || word % 4 != 0
        || flags != CU_STREAM_WAIT_VALUE_GEQ)
        return CUDA_ERROR_INVALID_VALUE;
    word_time((const unsigned *)word);
    push(resolve(stream), word_wait((const unsigned *)word, value, EMU_PC));
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
    const bool known = !strcmp(symbol, "cuStreamWaitValue32");
    *function = known ? (void *)cuStreamWaitValue32 : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// ThreadSanitizer knows mutexes, and would take ours for the program's: these are none.
static void sleep_while(std::atomic<int> *turns, int odd) {
    for (int now; (now = turns->load()) % 2 == odd;)
        syscall(SYS_futex, turns, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
}
static void next_turn(std::atomic<int> *turns) {
    ++*turns;
    syscall(SYS_futex, turns, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// A thread's stream, while the thread lives.
static thread_local struct Turns {
    CUstream_st *stream = nullptr;
    ~Turns() {
        if (stream == nullptr) return;
        stream->destroyed = true;  // run_next() sees it
        next_turn(&stream->turns);
    }
} turns;

// Host functions wait themselves, with their stream: only threads go on meanwhile.
static void wait_in_host_function(const unsigned *word, unsigned value) {
    in_operation = false;
    lock_runtime("emu_wait_value");
    open_device_memory(true);
    for (double idle = 0; !word_has_come(word, value);) {
        CUstream_st *s = ready_thread();
        if (s == nullptr) wait_for_host_threads(&idle);
        else run_next(s), idle = 0;
    }
    held_until = word_time(word);
    open_device_memory(false);
    unlock_runtime();
    in_operation = true;
}

void emu_wait_value(const unsigned *word, unsigned value) {
    if (in_operation) {
        wait_in_host_function(word, value);
    } else {
        lock_runtime("emu_wait_value");
        CUstream_st *s = turns.stream;
        const bool first = s == nullptr;
        if (first) s = turns.stream = make_stream(false, true);
        word_time(word);
        const auto turn = [s] {
            next_turn(&s->turns);
            sleep_while(&s->turns, 1);
        };
        {
            Unseen unseen;
            s->queue.emplace_back(word_wait(word, value, EMU_PC));
            s->queue.back()->number = ++operations_enqueued;
            s->queue.emplace_back(new Operation{Operation::HOST, "thread's turn", EMU_PC,
                                                ++operations_enqueued, turn, nullptr, nullptr, {},
                                                {}, 0, 0, -1});
        }
        if (!first) next_turn(&s->turns);
        unlock_runtime();
        sleep_while(&s->turns, 0);
    }
    if (has_tsan()) __tsan_acquire((void *)word);
}

void emu_virtual_seconds(double seconds) {
    if (host_functions > 0) host_nanoseconds += (long long)(1e9 * seconds + 0.5);
    else host_time = host_now() + seconds;
}

double emu_virtual_now() { return host_now(); }

void emu_name_stream(cudaStream_t stream, const char *name) {
    Lock lock("emu_name_stream");
    CUstream_st *s = resolve(stream);
    s->name = name;
    if (has_tsan()) name_identities(s);
}

// ---------------------------------------------------------------------------------------------
// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new CUevent_st{nullptr, !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags) {
    return cudaEventCreateWithFlags(event, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Lock lock("cudaEventDestroy");
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Lock lock("cudaEventRecord");
    CUstream_st *s = resolve(stream);
    event->latest = std::make_shared<Recording>(Recording{s, false, 0, 0});
    push(s, Operation::RECORD, "event record", nullptr, event->latest, EMU_PC);
    return cudaSuccess;
}

// An event that was never recorded orders nothing, as on the device.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Lock lock("cudaStreamWaitEvent");
    CUstream_st *s = resolve(stream);
    if (event->latest == nullptr) {
        if (options.strict)
            fprintf(stderr, "emulated GPU: note: stream %s waits for an event that was never "
                    "recorded, which orders nothing\n", s->name.c_str());
        return cudaSuccess;
    }
    push(s, Operation::WAIT, "event wait", nullptr, event->latest, EMU_PC);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Lock lock("cudaEventSynchronize");
    const std::shared_ptr<Recording> r = event->latest;
    if (r == nullptr) return cudaSuccess;
    run_until([r] { return r->done; }, r->stream);
    host_waits_until(r->time);
    if (has_tsan()) __tsan_acquire(&r->token);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Lock lock("cudaEventQuery");
    const std::shared_ptr<Recording> r = event->latest;
    if (r == nullptr) return cudaSuccess;
    if (!r->done) run_one(r->stream);
    if (!r->done) return set_error(cudaErrorNotReady);
    host_waits_until(r->time);
    if (has_tsan()) __tsan_acquire(&r->token);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    Lock lock("cudaEventElapsedTime");
    const Recording *a = start->latest.get(), *b = end->latest.get();
    if (a == nullptr || b == nullptr || !start->timing || !end->timing)
        return set_error(cudaErrorInvalidResourceHandle);
    if (!a->done || !b->done) return set_error(cudaErrorNotReady);
    *ms = (float)((b->time - a->time) * 1e3);
    return cudaSuccess;
}
