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

static bool is_float(int dtype) {  // else it is a type of integers
    return dtype == ST_F32 || dtype == ST_F16 || dtype == ST_BF16 || dtype == ST_F64;
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
    int64_t wide;
    int32_t narrow;
    if (t->dtype == ST_I64) { memcpy(&wide, t->data + 8 * i, 8); return wide; }
    if (t->dtype == ST_I32) { memcpy(&narrow, t->data + 4 * i, 4); return narrow; }
    return t->data[i];
}

// Compares a with b, of one kind and of one shape.
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
