// fiber.h: a stack that code can leave in the middle and come back to.
#ifndef EMU_FIBER_H
#define EMU_FIBER_H
#include "sanitizer.h"

#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__))
#define EMU_UCONTEXT  // the portable way, several times slower
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

namespace emu {

struct Fiber {
    void *sp;            // where it was left
    char *stack;         // lowest address
    size_t stack_bytes;
    void *tsan;          // its identity for ThreadSanitizer, if it has one of its own
    void *asan_frames;
    Fiber *next;         // in a list of free fibers
    int thread;          // the CUDA thread that it runs
#ifdef EMU_UCONTEXT
    ucontext_t context;
#endif
};

// A new stack with a guard page below; the first switch to it calls main(), which never returns.
// `color` spreads the hot ends of many stacks over the sets of the cache.
Fiber *make_fiber(size_t stack_bytes, void (*main)(), unsigned color);

extern "C" void emu_switch_stack(void **save_sp, void *sp);

// Leaves `from`, which is running, and continues `to`.
static inline void switch_fiber(Fiber *from, Fiber *to, bool tsan_identities) {
    const bool asan = __sanitizer_start_switch_fiber != nullptr;
    if (__builtin_expect(asan, 0))
        __sanitizer_start_switch_fiber(&from->asan_frames, to->stack, to->stack_bytes);
    if (__builtin_expect(tsan_identities, 0)) __tsan_switch_to_fiber(to->tsan, TSAN_NO_SYNC);
#ifdef EMU_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    emu_switch_stack(&from->sp, to->sp);
#endif
    if (__builtin_expect(asan, 0))
        __sanitizer_finish_switch_fiber(from->asan_frames, nullptr, nullptr);
}

}  // namespace emu
#endif
