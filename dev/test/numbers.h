// numbers.h: what tests of arithmetic share: floats by their bits, and how many threads compute.
#ifndef TIDE_NUMBERS_H
#define TIDE_NUMBERS_H
#include "../../tide/base/util.h"
#ifdef _OPENMP
#include <omp.h>
#endif

// 0: as many as there are cores.
static inline void use_threads(int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs());
#else
    (void)threads;
#endif
}

static inline float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline bool same(const float *a, const float *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

static inline float *floats(size_t n) { return ALLOC(float, n, "floats"); }
#endif
