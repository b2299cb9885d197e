// cuda_pipeline.h: cp.async. The bytes arrive at the wait and not before, so that a missing wait
// shows: until then the destination is poisoned.
#ifndef EMU_CUDA_PIPELINE_H
#define EMU_CUDA_PIPELINE_H
#include "cuda_emu.h"

void emu_copy_async(void *to, const void *from, size_t bytes, size_t zero_fill);
void emu_copy_commit();
void emu_copy_wait(unsigned newest_left_running);

// bytes is 4, 8 or 16, and both addresses are multiples of it; the last zero_fill bytes become 0.
static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes,
                                           size_t zero_fill = 0) {
    emu_copy_async(to, from, bytes, zero_fill);
}
static inline void __pipeline_commit() { emu_copy_commit(); }
static inline void __pipeline_wait_prior(unsigned n) { emu_copy_wait(n); }

#endif
