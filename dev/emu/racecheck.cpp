// racecheck.cpp: EMU_RACECHECK=1 in a ThreadSanitizer build. Every CUDA thread gets an identity of
// its own for ThreadSanitizer, and only what orders threads on a GPU orders them here:
// __syncthreads and __syncwarp. A shuffle does not order memory.
//
// ThreadSanitizer knows 255 identities at a time, so the threads of a block share 96 of them: two
// threads with the same one are not checked against each other, and every block deals them out
// differently. Two sets take turns, so that a block is not mixed up with its predecessor.
#include "block.h"

namespace emu {

enum { IDENTITIES = 96, SETS = 2, SHIFT = 37 };

// Addresses that barriers of one block release and acquire; they have no data. Each has two,
// used in turn, as a thread that runs ahead must not order those that lag behind.
struct Tokens {
    char start, barrier[2], meeting[MAX_WARPS][MEETINGS][2];
};

struct RaceCheck {
    Fiber *fiber[SETS][MAX_THREADS];
    int set, shift;
    unsigned phase;  // of the block's barrier
    Tokens *tokens;
    char *kernel_token;
    void **kept;
    size_t kept_count, kept_capacity;
};

// All at once and at the start, as a new identity inherits all that its creator has seen.
RaceCheck *race_create(size_t stack_bytes, void (*main)()) {
    RaceCheck *r = (RaceCheck *)calloc(1, sizeof *r);
    if (r == nullptr) emu_fail("no memory for EMU_RACECHECK");
    for (int set = 0; set < SETS; set++)
        for (int i = 0; i < MAX_THREADS; i++) {
            Fiber *f = r->fiber[set][i] = make_fiber(stack_bytes, main, (unsigned)i * 17);
            f->tsan = i < IDENTITIES ? __tsan_create_fiber(0) : r->fiber[set][i % IDENTITIES]->tsan;
        }
    return r;
}

void *race_keep(Sm *s, size_t bytes) {
    RaceCheck *r = s->race;
    if (r->kept_count == r->kept_capacity) {
        r->kept_capacity = 2 * r->kept_capacity + 64;
        r->kept = (void **)realloc(r->kept, r->kept_capacity * sizeof(void *));
    }
    void *p;
    if (r->kept == nullptr || posix_memalign(&p, SHARED_ALIGN, bytes) != 0)
        emu_fail("no memory for EMU_RACECHECK");
    return r->kept[r->kept_count++] = p;
}

void race_begin_kernel(Sm *s) {
    s->scheduler.tsan = __tsan_get_current_fiber();
    s->race->kernel_token = (char *)race_keep(s, 64);
}

void race_begin_block(Sm *s) {
    RaceCheck *r = s->race;
    r->set ^= 1;
    r->shift += SHIFT;
    r->phase = 0;
    r->tokens = (Tokens *)race_keep(s, sizeof(Tokens));
    __tsan_release(&r->tokens->start);
}

void race_begin_thread(Sm *s) { __tsan_acquire(&s->race->tokens->start); }
void race_end_thread(Sm *s) { __tsan_release(s->race->kernel_token); }

void race_end_kernel(Sm *s) {
    RaceCheck *r = s->race;
    __tsan_acquire(r->kernel_token);
    while (r->kept_count > 0) free(r->kept[--r->kept_count]);
}

Fiber *race_fiber(Sm *s, int thread) {
    return s->race->fiber[s->race->set][(thread + s->race->shift) % MAX_THREADS];
}

char *race_barrier_token(Sm *s) { return &s->race->tokens->barrier[s->race->phase & 1]; }
void race_barrier_done(Sm *s) { s->race->phase++; }
char *race_meeting_token(Sm *s, int warp, int meeting, unsigned generation) {
    return &s->race->tokens->meeting[warp][meeting][generation & 1];
}

}  // namespace emu
