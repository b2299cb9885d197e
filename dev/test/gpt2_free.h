// gpt2_free.h: frees the model of train_gpt2.c, which that trainer keeps to its end.
#ifndef TIDE_GPT2_FREE_H
#define TIDE_GPT2_FREE_H
#include "../buffer_get.h"
#include "zen_free.h"

static void gpt2_free(GPT2 *g) {
    Buffer list[MAX_BUFFERS];
    const int n = gpt2_buffers(g, list);
    for (int i = 0; i < n; i++) free(buffer_get(&list[i]));
    zen_reference_free(&g->zen);
    free(g->table.tensors);
}

#endif
