// difference.h: how far apart two tensors of safetensors files are.
#ifndef TIDE_DIFFERENCE_H
#define TIDE_DIFFERENCE_H
#include "../tide/files/safetensors.h"
#include <math.h>

typedef struct {
    double absolute, scale, relative;  // max |a - b|, max |b|, max |a - b| / |b|
    size_t worst;                      // element of the largest |a - b|
    size_t unequal;                    // elements that differ at all
    size_t invalid;                    // NaN on either side, or an infinity on one
} Difference;

static bool is_float(int dtype) { return dtype <= ST_F64; }

// Can two types be compared? Floats can, of any width, and so can integers, except U64. Numbers of
// the other types (U64, complex, of 8 bits) are compared as bits, with those of the same type.
static bool are_comparable(int a, int b) {
    enum { INTEGERS_END = 12 };  // in st_dtypes
    return a == b || (is_float(a) && is_float(b))
        || (!is_float(a) && !is_float(b) && a < INTEGERS_END && b < INTEGERS_END);
}

static double float_at(const SafeTensor *t, size_t i) {
    double wide;
    float narrow;
    if (t->dtype == ST_F64) {
        memcpy(&wide, t->data + 8 * i, 8);
        return wide;
    }
    safetensor_floats(t, i, 1, &narrow);
    return (double)narrow;
}

static int64_t integer_at(const SafeTensor *t, size_t i) {
    const size_t size = st_dtypes[t->dtype].size;
    const int unused = 64 - 8 * (int)size;
    uint64_t x = 0;
    memcpy(&x, t->data + size * i, size);
    const bool has_sign = st_dtypes[t->dtype].name[0] == 'I';
    return has_sign ? (int64_t)(x << unused) >> unused : (int64_t)x;
}

// Compares a with b, of one shape and of types that are comparable.
static Difference difference(const SafeTensor *a, const SafeTensor *b) {
    Difference r;
    memset(&r, 0, sizeof r);
    for (size_t i = 0; i < b->elements; i++) {
        double x = 0, y = 0;
        bool same;
        if (is_float(b->dtype)) {
            x = float_at(a, i);
            y = float_at(b, i);
            same = x == y;
        } else {
            same = integer_at(a, i) == integer_at(b, i);
            x = (double)integer_at(a, i);
            y = (double)integer_at(b, i);
        }
        if (isfinite(y) && fabs(y) > r.scale) r.scale = fabs(y);
        if (same) continue;
        const double d = fabs(x - y);
        if (!isfinite(d) && r.invalid++ == 0) r.worst = i;
        if (d > r.absolute) {
            r.absolute = d;
            if (r.invalid == 0) r.worst = i;
        }
        r.unequal++;
        r.relative = fmax(r.relative, d / fabs(y));
    }
    return r;
}

#endif
