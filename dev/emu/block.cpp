// block.cpp: executes a grid. A host thread runs one block at a time, and in it one CUDA thread at
// a time. A CUDA thread is a function call on the current stack for as long as it need not wait;
// when it waits, another stack goes on with the next thread. So a kernel without barriers costs one
// call per thread, and accesses that no barrier orders happen in an order that EMU_ORDER chooses:
// depth-first, one warp as far as it can run, because that is what exposes a missing barrier.
#include "block.h"
#include <unistd.h>
#include <algorithm>

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

__thread Sm *sm;

void describe_thread(char *text, size_t size) {
    if (sm == nullptr || sm->launch == nullptr)
        snprintf(text, size, "host code");
    else
        snprintf(text, size, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", sm->launch->kernel,
                 blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

bool is_stack_overflow(const void *p) {
    if (sm == nullptr || sm->launch == nullptr || sm->current == nullptr) return false;
    const uintptr_t stack = (uintptr_t)sm->current->stack, address = (uintptr_t)p;
    return address < stack && address >= stack - (uintptr_t)sysconf(_SC_PAGESIZE);
}

static inline unsigned bit(int i) { return 1u << (i & 31); }
static inline unsigned first_bits(int n) { return n >= 32 ? ~0u : bit(n) - 1; }

static inline void become(Sm *s, int thread) {
    s->thread = thread;
    threadIdx.x = (unsigned)thread;
    if (!s->flat) {
        const dim3 &b = s->launch->config.block;
        threadIdx = {thread % b.x, thread / b.x % b.y, thread / (b.x * b.y)};
    }
}

// ---------------------------------------------------------------------------------------------
// Which thread runs next

static inline int choose_bit(Sm *s, unsigned set) {
    if (options.order == Options::FORWARD) return __builtin_ctz(set);
    if (options.order == Options::REVERSE) return 31 - __builtin_clz(set);
    for (unsigned n = next_random(&s->random) % __builtin_popcount(set); n > 0; n--)
        set &= set - 1;
    return __builtin_ctz(set);
}

// A thread that can run, or -1. The current warp goes on while it can (shuffled: mostly).
static inline int choose_thread(Sm *s) {
    if (s->ready_warps == 0) return -1;
    int w = s->thread / 32;
    if (!(s->ready_warps & bit(w))
        || (options.order == Options::SHUFFLED && next_random(&s->random) % 16 == 0))
        w = choose_bit(s, s->ready_warps);
    return w * 32 + choose_bit(s, s->warp[w].ready | s->warp[w].unstarted);
}

static inline bool is_unstarted(const Sm *s, int thread) {
    return (s->warp[thread / 32].unstarted & bit(thread)) != 0;
}

static inline void mark_running(Sm *s, int thread) {
    Warp *w = &s->warp[thread / 32];
    w->ready &= ~bit(thread);
    w->unstarted &= ~bit(thread);
    if ((w->ready | w->unstarted) == 0) s->ready_warps &= ~bit(thread / 32);
}

static inline void mark_ready(Sm *s, int warp, unsigned lanes) {
    s->warp[warp].ready |= lanes;
    if (lanes != 0) s->ready_warps |= bit(warp);
}

[[noreturn]] static void deadlock(Sm *s) {
    fprintf(stderr, "emulated GPU: deadlock in kernel %s, block (%u,%u,%u)\n", s->launch->kernel,
            blockIdx.x, blockIdx.y, blockIdx.z);
    const char *last = nullptr;
    for (int t = 0, shown = 0; t < s->threads && shown < 12; t++) {
        if (!(s->warp[t / 32].alive & bit(t)) || s->waits_at[t] == last) continue;
        last = s->waits_at[t];
        fprintf(stderr, "    from thread %d on: wait at %s\n", t, last);
        shown++;
    }
    fprintf(stderr, "    %d of %d threads have not returned, %d are at a __syncthreads\n", s->alive,
            s->threads, s->barrier_arrived);
    die_after_report();
}

// ---------------------------------------------------------------------------------------------
// Running threads

static void fiber_main();

static Fiber *take_fiber(Sm *s, int thread) {
    if (s->race != nullptr) return race_fiber(s, thread);
    Fiber *f = s->free_fibers[s->pool];
    if (f == nullptr) return make_fiber(options.stack_bytes, fiber_main, 17 * ++s->fibers_made);
    s->free_fibers[s->pool] = f->next;
    return f;
}

static inline void switch_to(Sm *s, Fiber *f) {
    Fiber *from = s->current;
    s->current = f;
    switch_fiber(from, f, s->race != nullptr);
}

// Continues `thread`, or starts it on a free stack; returns when someone continues the caller.
static inline void run_thread(Sm *s, int thread) {
    Fiber *f = s->waiting[thread];
    if (is_unstarted(s, thread)) {
        f = take_fiber(s, thread);
        f->thread = thread;
    }
    mark_running(s, thread);
    if (f != s->current) switch_to(s, f);  // (it is when a free stack was this very one)
}

void wait_here(Sm *s, const char *where) {
    const int thread = s->thread;
    s->waiting[thread] = s->current;
    s->waits_at[thread] = where;
    const int next = choose_thread(s);
    if (next < 0) deadlock(s);
    run_thread(s, next);
    become(s, thread);
}

static void open_barrier(Sm *s) {
    for (int i = 0; i < s->warps; i++) {
        mark_ready(s, i, s->warp[i].at_barrier);
        s->warp[i].at_barrier = 0;
    }
    s->barrier_result = s->barrier_value;
    s->barrier_arrived = 0;
    s->barrier_where = nullptr;
    if (s->race != nullptr) race_barrier_done(s);
}

static inline void end_thread(Sm *s, int thread) {
    Warp *w = &s->warp[thread / 32];
    w->alive &= ~bit(thread);
    s->alive--;
    if (s->copies != nullptr) forget_copies(s, thread);
    if (s->barrier_arrived > 0) {
        if (options.strict)
            emu_fail("returns while other threads of the block wait at __syncthreads (%s)",
                     s->barrier_where);
        // A thread that has returned counts as arrived, as on every GPU since Volta.
        if (s->barrier_arrived == s->alive) open_barrier(s);
    }
    if (w->meetings == 0 && w->shuffle_arrived == 0) return;
    unsigned missing = w->shuffle_arrived ? w->shuffle_mask & ~w->shuffle_arrived : 0;
    for (const Meeting &m : w->meeting)
        if (m.arrived != 0) missing |= m.mask & ~m.arrived;
    if (missing & bit(thread))
        emu_fail("returns while other lanes of its warp wait for it in a warp collective");
}

// What every stack does: a thread, and then whatever can run next.
static void fiber_main() {
    Sm *s = sm;
    Fiber *self = s->current;
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
    for (;;) {
        const int thread = self->thread;
        become(s, thread);
        if (s->race != nullptr) race_begin_thread(s);
        s->launch->run(s->launch->args);
        if (s->race != nullptr) race_end_thread(s);
        end_thread(s, thread);

        // The usual case first: the next lane of a warp in which no one waits.
        Warp *w = &s->warp[thread / 32];
        if (options.order == Options::FORWARD && w->ready == 0 && w->unstarted != 0
            && s->race == nullptr) {
            self->thread = thread / 32 * 32 + __builtin_ctz(w->unstarted);
            w->unstarted &= w->unstarted - 1;
            if (w->unstarted == 0) s->ready_warps &= ~bit(thread / 32);
            continue;
        }
        const int next = choose_thread(s);
        if (next < 0 && s->alive > 0) deadlock(s);
        if (next >= 0 && s->race == nullptr && is_unstarted(s, next)) {
            mark_running(s, next);
            self->thread = next;
            continue;
        }
        if (s->race == nullptr) {
            self->next = s->free_fibers[s->pool];
            s->free_fibers[s->pool] = self;
        }
        if (next >= 0) run_thread(s, next);
        else switch_to(s, &s->scheduler);
    }
}

// ---------------------------------------------------------------------------------------------
// Blocks and grids

static void run_block(Sm *s, size_t index) {
    const uint3 g = gridDim;
    blockIdx = {(unsigned)(index % g.x), (unsigned)(index / g.x % g.y),
                (unsigned)(index / ((size_t)g.x * g.y))};
    for (int i = 0; i < s->warps; i++) {
        Warp *w = &s->warp[i];
        w->unstarted = w->alive = first_bits(s->threads - i * 32);
        w->ready = w->at_barrier = w->shuffle_arrived = 0;
        w->meetings = 0;
    }
    s->alive = s->threads;
    s->ready_warps = first_bits(s->warps);
    s->barrier_arrived = 0;
    s->barrier_where = nullptr;
    s->thread = 0;
    begin_shared(s);
    if (s->race != nullptr) race_begin_block(s);  // from here on the threads may be at it
    s->current = &s->scheduler;
    run_thread(s, choose_thread(s));
    check_shared(s);
}

static Sm *make_sm() {
    Sm *s = (Sm *)calloc(1, sizeof(Sm));
    if (s == nullptr) emu_fail("no memory for a block");
    if (!has_asan()) give_fault_stack();
    s->random = (options.seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    return s;
}

// A bijection of the block numbers: i -> (i * step + first) mod blocks, with step prime to blocks.
struct BlockOrder { size_t blocks, step, first; };

static void begin_kernel(const Launch *l, int pool) {
    if (sm == nullptr) {
        sm = make_sm();
        if (options.racecheck) sm->race = race_create(options.stack_bytes, fiber_main);
    }
    const dim3 b = l->config.block;
    sm->launch = l;
    sm->threads = (int)(b.x * b.y * b.z);
    sm->warps = (sm->threads + 31) / 32;
    sm->flat = b.y == 1 && b.z == 1;
    sm->pool = has_tsan() ? pool % STREAM_POOLS : 0;
    sm->arena_need = 0;
    threadIdx = {0, 0, 0};
    blockDim = b;
    gridDim = l->config.grid;
    if (sm->race != nullptr) race_begin_kernel(sm);
}

static void end_kernel() {
    if (sm->race != nullptr) race_end_kernel(sm);
    sm->launch = nullptr;
}

static void run_blocks(const BlockOrder &o, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) run_block(sm, (i * o.step + o.first) % o.blocks);
}

static size_t gcd(size_t a, size_t b) { return b == 0 ? a : gcd(b, a % b); }

static BlockOrder choose_order(size_t blocks) {
    static uint64_t random = options.seed * 0x9e3779b97f4a7c15ull | 1;
    if (blocks == 1 || options.order == Options::FORWARD) return {blocks, 1, 0};
    if (options.order == Options::REVERSE) return {blocks, blocks - 1, blocks - 1};
    BlockOrder o = {blocks, 0, next_random(&random) % blocks};
    do o.step = next_random(&random) % blocks + 1;
    while (gcd(o.step, blocks) != 1);
    return o;
}

static void run_rest(const Launch *l, int pool, const BlockOrder &o, size_t done) {
    const size_t rest = o.blocks - done;
    const size_t chunk = std::max<size_t>(1, rest / ((size_t)options.threads * 8));
    const size_t chunks = (rest + chunk - 1) / chunk;
#pragma omp parallel num_threads(options.threads)
    {
        begin_kernel(l, pool);
#pragma omp for schedule(dynamic, 1)
        for (size_t c = 0; c < chunks; c++)
            run_blocks(o, done + c * chunk, std::min(o.blocks, done + (c + 1) * chunk));
        end_kernel();
    }
}

// Starting other host threads costs as much as a small kernel, so the first blocks run here, and
// only what is left after 100 microseconds, if it looks like as much again, is shared out.
void run_grid(const Launch &l, int pool) {
    const dim3 g = l.config.grid;
    const BlockOrder order = choose_order((size_t)g.x * g.y * g.z);
    const size_t blocks = order.blocks;
    size_t done = 0;
    begin_kernel(&l, pool);
    if (options.threads > 1 && blocks > 1) {
        const double start = seconds_now(), enough = 100e-6;
        for (double spent = 0; done < blocks && spent < enough; spent = seconds_now() - start) {
            run_blocks(order, done, done + 1);
            done++;
        }
        const double per_block = (seconds_now() - start) / (double)done;
        if (per_block * (double)(blocks - done) > enough) {
            end_kernel();
            run_rest(&l, pool, order, done);
            return;
        }
    }
    run_blocks(order, done, blocks);
    end_kernel();
}

}  // namespace emu

// ---------------------------------------------------------------------------------------------
// What kernels call
using namespace emu;

static Sm *this_sm(const char *who) {
    if (sm == nullptr || sm->launch == nullptr) emu_fail("%s outside a kernel", who);
    return sm;
}

int emu_barrier(int predicate, const char *where) {
    Sm *s = this_sm("__syncthreads");
    const int thread = s->thread;
    // Inlined and cloned code may have several copies of one line's name.
    if (s->barrier_where != nullptr && s->barrier_where != where
        && strcmp(s->barrier_where, where) != 0)
        emu_fail("divergent __syncthreads: threads of one block wait at %s and at %s",
                 s->barrier_where, where);
    if (s->barrier_arrived == 0) {
        s->barrier_where = where;
        s->barrier_value = 0;
    }
    s->barrier_value += predicate;
    char *token = nullptr;
    if (s->race != nullptr) {
        token = race_barrier_token(s);
        __tsan_release(token);
    }
    if (++s->barrier_arrived == s->alive) {
        open_barrier(s);
    } else {
        s->warp[thread / 32].at_barrier |= bit(thread);
        wait_here(s, where);
    }
    if (token != nullptr) __tsan_acquire(token);
    return s->barrier_result;
}

static void check_mask(const Sm *s, unsigned mask) {
    const Warp *w = &s->warp[s->thread / 32];
    const unsigned exist = first_bits(s->threads - s->thread / 32 * 32);
    if (!(mask & bit(s->thread)))
        emu_fail("lane %d calls a warp collective, but is not in its mask %08x", s->thread % 32,
                 mask);
    if (mask & exist & ~w->alive)
        emu_fail("the mask %08x of a warp collective names lanes %08x, which have returned", mask,
                 mask & exist & ~w->alive);
}

static void no_overlap(unsigned mask, unsigned other) {
    if (mask & other)
        emu_fail("lanes of one warp wait in two warp collectives, with masks %08x and %08x", mask,
                 other);
}

void emu_warp_collective(unsigned mask, void *mine, void (*combine)(void **, unsigned),
                         bool fence) {
    Sm *s = this_sm("a warp collective");
    const int thread = s->thread, warp = thread / 32;
    Warp *w = &s->warp[warp];
    check_mask(s, mask);
    if (w->shuffle_arrived != 0) no_overlap(mask, w->shuffle_mask);
    Meeting *m = nullptr;
    for (Meeting &x : w->meeting)
        if (x.arrived != 0 && x.mask == mask) m = &x;
    for (Meeting &x : w->meeting) {
        if (m != nullptr) break;
        if (x.arrived == 0) m = &x;
        else no_overlap(mask, x.mask);
    }
    if (m == nullptr) emu_fail("more than %d warp collectives at once in one warp", MEETINGS);
    if (m->arrived == 0) {
        w->meetings++;
        m->mask = mask;
        m->combine = combine;
    } else if (m->combine != combine) {
        emu_fail("lanes of one warp meet in different warp functions (mask %08x)", mask);
    }
    m->lane[thread % 32] = mine;
    m->arrived |= bit(thread);
    char *token = nullptr;
    if (fence && s->race != nullptr) {
        token = race_meeting_token(s, warp, (int)(m - w->meeting), m->generation);
        __tsan_release(token);
    }
    if (m->arrived == (mask & w->alive)) {
        if (combine != nullptr) combine(m->lane, m->arrived);
        mark_ready(s, warp, m->arrived & ~bit(thread));
        m->arrived = 0;
        m->generation++;
        w->meetings--;
    } else {
        wait_here(s, fence ? "__syncwarp" : "a warp collective");
    }
    if (token != nullptr) __tsan_acquire(token);
}

struct ShuffleLane { uint64_t value, result; int source; };

static void shuffle_lanes(void **lane, unsigned present) {
    for (int i = 0; i < 32; i++) {
        if (!(present >> i & 1)) continue;
        ShuffleLane *l = (ShuffleLane *)lane[i];
        const bool valid = l->source >= 0 && l->source < 32 && (present >> l->source & 1);
        l->result = valid ? ((ShuffleLane *)lane[l->source])->value : ~0ull;
    }
}

// Values pass through two rows of a table, used in turn: who runs ahead writes the other row, and
// cannot come round again before everyone has read.
uint64_t emu_shuffle(unsigned mask, uint64_t value, int source) {
    Sm *s = this_sm("a shuffle");
    const int thread = s->thread, warp = thread / 32;
    Warp *w = &s->warp[warp];
    const unsigned all = mask & first_bits(s->threads - warp * 32);
    if (all != w->alive || !(all & bit(thread)) || w->meetings > 0) {
        ShuffleLane mine = {value, 0, source};
        emu_warp_collective(mask, &mine, shuffle_lanes, false);
        return mine.result;
    }
    uint64_t *row = w->shuffle_value[w->shuffle_turn & 1];
    row[thread % 32] = value;
    w->shuffle_mask = all;
    w->shuffle_arrived |= bit(thread);
    if (w->shuffle_arrived == all) {
        w->shuffle_arrived = 0;
        w->shuffle_turn++;
        mark_ready(s, warp, all & ~bit(thread));
    } else {
        wait_here(s, "a shuffle");
    }
    return (unsigned)source < 32 && (all >> source & 1) ? row[source] : ~0ull;
}

unsigned emu_lane() { return this_sm("a warp function")->thread % 32; }
