// sanitizer.h: what the emulated GPU tells AddressSanitizer and ThreadSanitizer. The hooks are
// weak: they are there when the program is linked with that sanitizer, and null otherwise. The
// runtime itself is not instrumented, so a sanitizer sees the program and what is said here.
#ifndef EMU_SANITIZER_H
#define EMU_SANITIZER_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#define EMU_HOOK __attribute__((weak))
EMU_HOOK void *__tsan_get_current_fiber();
EMU_HOOK void *__tsan_create_fiber(unsigned flags);
EMU_HOOK void __tsan_destroy_fiber(void *fiber);
EMU_HOOK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
EMU_HOOK void __tsan_set_fiber_name(void *fiber, const char *name);
EMU_HOOK void __tsan_acquire(void *token);
EMU_HOOK void __tsan_release(void *token);
EMU_HOOK void __tsan_func_entry(void *pc);
EMU_HOOK void __tsan_func_exit();
EMU_HOOK void AnnotateIgnoreReadsBegin(const char *file, int line);
EMU_HOOK void AnnotateIgnoreReadsEnd(const char *file, int line);
EMU_HOOK void AnnotateIgnoreWritesBegin(const char *file, int line);
EMU_HOOK void AnnotateIgnoreWritesEnd(const char *file, int line);
EMU_HOOK void __tsan_read_range(void *p, unsigned long n);
EMU_HOOK void __tsan_write_range(void *p, unsigned long n);
EMU_HOOK void __asan_poison_memory_region(const volatile void *p, size_t n);
EMU_HOOK void __asan_unpoison_memory_region(const volatile void *p, size_t n);
EMU_HOOK void *__asan_region_is_poisoned(void *p, size_t n);
EMU_HOOK void __sanitizer_start_switch_fiber(void **save, const void *stack, size_t size);
EMU_HOOK void __sanitizer_finish_switch_fiber(void *save, const void **stack, size_t *size);
#undef EMU_HOOK
}

namespace emu {

static inline bool has_tsan() { return __tsan_create_fiber != nullptr; }
static inline bool has_asan() { return __asan_poison_memory_region != nullptr; }
const unsigned TSAN_NO_SYNC = 1;  // switching to a fiber orders nothing

// Around the emulator's own free(), of what another host thread may have allocated.
struct Unseen {
    Unseen() { if (has_tsan()) AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
    ~Unseen() { if (has_tsan()) AnnotateIgnoreWritesEnd(__FILE__, __LINE__); }
};

// Around a library's work in its own buffers, which all streams use in turn. What it reads and
// writes for the program is declared by touch(); but ThreadSanitizer sees every memset and memcpy
// that the compiler makes of a loop.
static inline void hide_accesses(bool hide) {
    if (!has_tsan()) return;
    (hide ? AnnotateIgnoreReadsBegin : AnnotateIgnoreReadsEnd)(__FILE__, __LINE__);
    (hide ? AnnotateIgnoreWritesBegin : AnnotateIgnoreWritesEnd)(__FILE__, __LINE__);
}

// The emulator's own stores, of poison and canaries, which no sanitizer shall take for the
// program's: plain memset and memcpy are intercepted even here.
static inline void hidden_fill(void *p, int value, size_t n) {
    if (!has_asan() && !has_tsan()) {
        memset(p, value, n);
        return;
    }
#if defined(__x86_64__)
    asm volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(value) : "memory");
#else
    for (volatile char *q = (volatile char *)p; n > 0; n--) *q++ = (char)value;
#endif
}

// Stores on behalf of the stream or CUDA thread that runs now: the sanitizers check them.
static inline void device_fill(void *p, int value, size_t n) {
    if (!has_tsan()) {
        memset(p, value, n);
        return;
    }
    __tsan_write_range(p, n);
    hidden_fill(p, value, n);
}

static inline void device_copy(void *to, const void *from, size_t n) {
    if (!has_tsan()) {
        memcpy(to, from, n);
        return;
    }
    __tsan_read_range((void *)from, n);
    __tsan_write_range(to, n);
#if defined(__x86_64__)
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
#else
    volatile char *q = (volatile char *)to;
    for (const char *p = (const char *)from; n > 0; n--) *q++ = *p++;
#endif
}

}  // namespace emu
#endif
