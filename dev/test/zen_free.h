// zen_free.h: frees the reference of zenflow.h, which a trainer keeps to its end.
#ifndef TIDE_ZEN_FREE_H
#define TIDE_ZEN_FREE_H

static void zen_reference_free(ZenReference *ref) {
    zen_map_free(&ref->map);
    zen_clock_free(&ref->clock);
    free(ref->sums);
    free(ref->swaps);
}

#endif
