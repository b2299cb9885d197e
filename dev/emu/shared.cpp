// shared.cpp: the shared memory of a block, and cp.async, which fills it. It is poison until it is
// written: a missing store, or a missing wait, becomes a NaN.
//
// Static variables lie in an arena with red zones between them; dynamic shared memory ends at a
// page that no one may touch.
#include "block.h"
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>

namespace emu {

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

const size_t ARENA_BYTES = SHARED_DEFAULT + MAX_SHARED_VARIABLES * (RED_ZONE + SHARED_ALIGN);

// The end is a multiple of 128 bytes, so up to 127 bytes between the data and the guard page are
// watched by a canary.
static void make_dynamic(Sm *s, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), body = round_up(bytes, page);
    if (body > s->dynamic_capacity) {
        if (s->dynamic_map != nullptr) munmap(s->dynamic_map, s->dynamic_capacity + page);
        s->dynamic_map = (char *)mmap(nullptr, body + page, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s->dynamic_map == MAP_FAILED) emu_fail("no memory for dynamic shared memory");
        mprotect(s->dynamic_map + body, page, PROT_NONE);
        s->dynamic_capacity = body;
    }
    s->dynamic = s->dynamic_map + s->dynamic_capacity - round_up(bytes, SHARED_ALIGN);
}

void begin_shared(Sm *s) {
    const size_t bytes = s->launch->config.shared;
    if (s->race != nullptr) {  // fresh memory: ThreadSanitizer remembers who used the old one
        s->arena_bytes = s->arena_need > 0 ? s->arena_need : ARENA_BYTES;
        s->arena = (char *)race_keep(s, s->arena_bytes);
        if (bytes > 0) s->dynamic = (char *)race_keep(s, round_up(bytes, SHARED_ALIGN));
    } else if (s->arena == nullptr) {
        if (posix_memalign((void **)&s->arena, SHARED_ALIGN, ARENA_BYTES) != 0)
            emu_fail("no memory for shared memory");
        if (has_asan()) __asan_poison_memory_region(s->arena, ARENA_BYTES);
    } else if (has_asan() && s->arena_used > 0) {
        __asan_poison_memory_region(s->arena, s->arena_used);
    }
    s->arena_used = s->static_bytes = 0;
    s->variables = 0;
    if (bytes == 0) return;
    if (s->race == nullptr) make_dynamic(s, bytes);
    const size_t all = round_up(bytes, SHARED_ALIGN);
    if (has_asan()) __asan_unpoison_memory_region(s->dynamic, all);
    hidden_fill(s->dynamic, POISON, bytes);
    lay_canary(s->dynamic + bytes, s->dynamic + all);
    if (has_asan()) __asan_poison_memory_region(s->dynamic + bytes, all - bytes);
}

static void check_red_zone(const char *p, size_t bytes, const char *name, size_t size) {
    const char *bad = find_damage(p, p + bytes);
    if (bad != nullptr)
        emu_fail("some thread of this block wrote past the end of %s (offset %zu of %zu bytes)",
                 name, size + (size_t)(bad - p), size);
}

void check_shared(Sm *s) {
    s->arena_need = std::max(s->arena_need, s->arena_used + 4 * KiB);
    if (has_asan()) return;  // which said so at the store
    for (int i = 0; i < s->variables; i++) {
        const SharedVariable *v = &s->variable[i];
        check_red_zone(v->p + v->bytes, RED_ZONE, v->name, v->bytes);
    }
    const size_t bytes = s->launch->config.shared;
    if (bytes > 0)
        check_red_zone(s->dynamic + bytes, round_up(bytes, SHARED_ALIGN) - bytes,
                       "dynamic shared memory", bytes);
}

static void add_variable(Sm *s, const void *tag, size_t bytes, const char *name) {
    // What nvcc refuses, and what a launch of too much static and dynamic memory together gets.
    s->static_bytes += round_up(bytes, 16);
    if (s->static_bytes > SHARED_DEFAULT)
        emu_fail("more than 48 KiB of static __shared__ memory, with %s", name);
    const size_t dynamic = s->launch->config.shared;
    if (s->static_bytes + dynamic > SHARED_DEFAULT) {
        const size_t limit = dynamic_shared_limit(s->launch->entry);
        const size_t most = limit > SHARED_DEFAULT ? shared_opt_in() : (size_t)SHARED_DEFAULT;
        if (s->static_bytes + dynamic > most)
            emu_fail("%zu bytes of static and %zu of dynamic shared memory together are too much: "
                     "a GPU refuses this launch", s->static_bytes, dynamic);
    }
    if (s->variables == MAX_SHARED_VARIABLES)
        emu_fail("more than %d __shared__ variables", MAX_SHARED_VARIABLES);
    char *p = s->arena + round_up(s->arena_used, SHARED_ALIGN);
    s->arena_used = (size_t)(p - s->arena) + bytes + RED_ZONE;
    if (s->race != nullptr && s->arena_used > s->arena_bytes)
        emu_fail("EMU_RACECHECK: this block has 4 KiB more static __shared__ memory than others");
    if (has_asan()) __asan_unpoison_memory_region(p, bytes);
    hidden_fill(p, POISON, bytes);
    if (!has_asan()) lay_canary(p + bytes, p + bytes + RED_ZONE);
    s->variable[s->variables++] = {tag, name, p, bytes};
}

// ---------------------------------------------------------------------------------------------
// cp.async

enum { MAX_COPIES = 64, MAX_GROUPS = 32 };
struct Copy { void *to; const void *from; size_t bytes, zero_fill; };
struct CopyQueue {
    int copies, groups;
    int group_end[MAX_GROUPS];  // how many copies the groups up to this one hold
    Copy copy[MAX_COPIES];
};

void forget_copies(Sm *s, int thread) { s->copies[thread].copies = s->copies[thread].groups = 0; }

static CopyQueue *my_copies() {
    if (sm == nullptr || sm->launch == nullptr) emu_fail("cp.async outside a kernel");
    if (sm->copies == nullptr) sm->copies = (CopyQueue *)calloc(MAX_THREADS, sizeof(CopyQueue));
    if (sm->copies == nullptr) emu_fail("no memory for asynchronous copies");
    return &sm->copies[sm->thread];
}

}  // namespace emu

using namespace emu;

void *emu_shared(const void *tag, size_t bytes, const char *name) {
    Sm *s = sm;
    if (s == nullptr || s->launch == nullptr) emu_fail("__shared__ %s outside a kernel", name);
    for (int i = 0; i < s->variables; i++)
        if (s->variable[i].tag == tag) return s->variable[i].p;
    add_variable(s, tag, bytes, name);
    return s->variable[s->variables - 1].p;
}

void *emu_dynamic_shared() {
    if (sm == nullptr || sm->launch == nullptr) emu_fail("extern __shared__ outside a kernel");
    if (sm->launch->config.shared == 0)
        emu_fail("uses dynamic shared memory, but was launched with 0 bytes of it");
    return sm->dynamic;
}

void emu_copy_async(void *to, const void *from, size_t bytes, size_t zero_fill) {
    CopyQueue *q = my_copies();
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zero_fill > bytes)
        emu_fail("cp.async of %zu bytes, %zu of them 0: it takes 4, 8 or 16", bytes, zero_fill);
    if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0)
        emu_fail("cp.async from %p to %p: not multiples of %zu bytes", from, to, bytes);
    if (q->copies == MAX_COPIES) emu_fail("more than %d cp.async without a wait", MAX_COPIES);
    q->copy[q->copies++] = {to, from, bytes, zero_fill};
    device_fill(to, POISON, bytes);
}

void emu_copy_commit() {
    CopyQueue *q = my_copies();
    if (q->groups == MAX_GROUPS) emu_fail("more than %d groups of cp.async in flight", MAX_GROUPS);
    q->group_end[q->groups++] = q->copies;
}

void emu_copy_wait(unsigned newest_left_running) {
    CopyQueue *q = my_copies();
    const int groups = q->groups - (int)newest_left_running;  // that must be complete now
    if (groups <= 0) return;
    const int copies = q->group_end[groups - 1];
    for (int i = 0; i < copies; i++) {
        const Copy *c = &q->copy[i];
        device_copy(c->to, c->from, c->bytes - c->zero_fill);
        device_fill((char *)c->to + c->bytes - c->zero_fill, 0, c->zero_fill);
    }
    q->copies -= copies;
    q->groups -= groups;
    memmove(q->copy, q->copy + copies, (size_t)q->copies * sizeof(Copy));
    for (int i = 0; i < q->groups; i++) q->group_end[i] = q->group_end[i + groups] - copies;
}
