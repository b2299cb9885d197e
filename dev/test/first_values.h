// first_values.h: first values for a whole model, as a run has them part by part.
#ifndef TIDE_FIRST_VALUES_H
#define TIDE_FIRST_VALUES_H
#include "../../tide/base/model.h"

// First values for every parameter in `arena` (t->elements floats); what lies between is zero.
static void gpt2_init(const GPT2Table *t, float *arena, uint64_t seed) {
    memset(arena, 0, t->elements * sizeof(float));
    for (int i = 0; i < t->count; i++)
        gpt2_init_range(t, i, 0, t->tensors[i].size, arena + t->tensors[i].offset, seed);
}

#endif
