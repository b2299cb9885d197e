// block.h: the state of the one block that a host thread runs at a time.
#ifndef EMU_BLOCK_H
#define EMU_BLOCK_H
#include "fiber.h"
#include "internal.h"

namespace emu {

enum { MAX_THREADS = 1024, MAX_WARPS = 32, MEETINGS = 4, STREAM_POOLS = 64 };

// A warp collective in progress: who takes part, who is here.
struct Meeting {
    unsigned mask, arrived, generation;
    void (*combine)(void **lane, unsigned present);
    void *lane[32];
};

// Bit i of each set is lane i.
struct Warp {
    unsigned unstarted, ready, alive, at_barrier;
    // Shuffles among all live lanes, the common case. A lane may be one shuffle ahead of another.
    unsigned shuffle_mask, shuffle_arrived, shuffle_turn;
    uint64_t shuffle_value[2][32];
    int meetings;  // how many have someone waiting
    Meeting meeting[MEETINGS];
};

enum { MAX_SHARED_VARIABLES = 32, RED_ZONE = 128, SHARED_ALIGN = 128 };

struct SharedVariable {
    const void *tag;
    const char *name;
    char *p;
    size_t bytes;
};

struct CopyQueue;  // of one thread's asynchronous copies, shared.cpp
struct RaceCheck;  // racecheck.cpp

struct Sm {
    const Launch *launch;
    int threads, warps, alive;
    bool flat;             // blockDim is (n, 1, 1)
    int thread;            // that runs now
    unsigned ready_warps;  // warps with a thread that could run
    Warp warp[MAX_WARPS];

    int barrier_arrived, barrier_value, barrier_result;
    const char *barrier_where;

    Fiber scheduler, *current;
    Fiber *waiting[MAX_THREADS];           // the stack of a thread that waits
    const char *waits_at[MAX_THREADS];
    Fiber *free_fibers[STREAM_POOLS];      // ThreadSanitizer: streams do not share stacks
    int pool;
    unsigned fibers_made;
    uint64_t random;

    char *arena;           // static shared memory
    size_t arena_used, static_bytes;
    size_t arena_bytes, arena_need;  // EMU_RACECHECK: of this block, of other blocks of the kernel
    int variables;
    SharedVariable variable[MAX_SHARED_VARIABLES];
    char *dynamic, *dynamic_map;
    size_t dynamic_capacity;
    CopyQueue *copies;     // one per thread, from the first asynchronous copy on
    RaceCheck *race;       // null unless EMU_RACECHECK
};
extern __thread Sm *sm;  // null in a thread that never ran a kernel

void wait_here(Sm *s, const char *where);  // until another thread sets this one's ready bit

// --- shared.cpp
void begin_shared(Sm *s);        // a new block: everything is poison again
void check_shared(Sm *s);        // its end: did anything write past a variable?
void forget_copies(Sm *s, int thread);

// --- racecheck.cpp
RaceCheck *race_create(size_t stack_bytes, void (*main)());
void race_begin_kernel(Sm *s);
void race_begin_block(Sm *s);
void race_begin_thread(Sm *s);
void race_end_thread(Sm *s);
void race_end_kernel(Sm *s);
void *race_keep(Sm *s, size_t bytes);           // memory until the end of the kernel
Fiber *race_fiber(Sm *s, int thread);
char *race_barrier_token(Sm *s);
void race_barrier_done(Sm *s);
char *race_meeting_token(Sm *s, int warp, int meeting, unsigned generation);

}  // namespace emu
#endif
