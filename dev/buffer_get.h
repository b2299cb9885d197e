// buffer_get.h: buffer_get(), the address of a buffer of a memory plan (tide/base/memory.h).
#ifndef TIDE_BUFFER_GET_H
#define TIDE_BUFFER_GET_H
#include "../tide/base/memory.h"

static void *buffer_get(const Buffer *b) {
    void *p;
    memcpy(&p, b->pointer, sizeof p);
    return p;
}

#endif
