// zo.h: zeroth-order training: a gradient from forward passes alone.
//
//   1. Noise, and how weights are stored
//   2. The update, and its replay
//   3. The log of scalars
//   4. The loops of the CPU
//
// MeZO (Malladi et al. 2023, Algorithm 1). Per step, for each query j, a direction z_j:
//     g_j = (loss(theta + eps z_j) - loss(theta - eps z_j)) / (2 eps)        about <grad, z_j>
//     theta <- theta - lr (mean over j of g_j z_j) - lr wd theta             wd: matrices only
// z is never stored: its element e of tensor i in step t is a function of (seed, t, j, i, e), the
// same bits in any order, on any processor (rng.h). So a step is known by its few scalars g_j, and
// can be replayed. MeZO perturbs the weights in place and takes the noise off again, which leaves a
// trace in 16 bits; here theta stays as it is and perturbed copies are made from it
// (doc/zeroth_order.md).
//
// Every operation on an element is spelled out here, once, for the CPU and the GPU: bits agree.
#ifndef TIDE_ZO_H
#define TIDE_ZO_H
#include "tide/util.h"
#include "adam.h"
#include "tide/json.h"
#include "tide/rng.h"
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

// ---------------------------------------------------------------------------------------------
// 1. Noise, and how weights are stored

enum { ZO_GAUSSIAN, ZO_RADEMACHER };                // --zo-noise
enum { ZO_STORE_AUTO, ZO_FP32, ZO_FP16, ZO_BF16 };  // --zo-storage
enum { ZO_STOCHASTIC, ZO_NEAREST };                 // --zo-rounding
enum { ZO_ROUND_QUERY = 0xffff };                   // the "query" whose random bits round

typedef struct {
    uint64_t seed;
    float eps;
    int queries, noise;
    int storage, rounding;  // never ZO_STORE_AUTO
    size_t write_back;      // K: every K-th update is rounded and stored; see 2
} ZoConfig;

HOST_DEVICE static inline size_t zo_stored_bytes(int storage) {
    return storage == ZO_FP32 ? 4 : 2;
}

// Elements first .. first + n - 1 of a direction; first is a multiple of n, n a power of two from 4
// to 64. Gaussian: standard normal numbers. Rademacher: the signs +1 and -1, one random bit each.
HOST_DEVICE static inline void zo_noise(float *z, int n, const ZoConfig *c, uint32_t step,
                                        uint32_t query, uint32_t tensor, uint64_t first) {
    if (c->noise == ZO_GAUSSIAN) {
        #pragma omp simd
        for (int i = 0; i < n / 4; i++)
            rng_quad(z + 4 * i, c->seed, step, query, tensor, first / 4 + (uint64_t)i);
        return;
    }
    const uint64_t block = first / 128;
    const Philox4 r = philox4x32(c->seed, (uint32_t)block, (uint32_t)(block >> 32) | query << 16,
                                 tensor, step);
    for (int i = 0; i < n; i += 32) {
        const uint64_t word = (first + (uint64_t)i) / 32;
        const uint32_t even = word & 2 ? r.x[2] : r.x[0], odd = word & 2 ? r.x[3] : r.x[1];
        const uint32_t signs = (word & 1 ? odd : even) >> first % 32;
        for (int k = 0; k < 32 && i + k < n; k++) {
            const uint32_t bits = 0x3f800000u | signs >> k << 31;
            memcpy(&z[i + k], &bits, 4);
        }
    }
}

// x as a number that the storage holds: the nearest one (ties to even), or, stochastically, one of
// its two neighbours, the nearer the likelier, so that the mean is x. random: 16 bits, as many as
// bf16 drops. fp16 ends at +-65504.
HOST_DEVICE static inline float zo_round(float x, int storage, int rounding, uint32_t random) {
    uint32_t bits, sign;
    memcpy(&bits, &x, 4);
    sign = bits & 0x80000000u;
    bits ^= sign;
    if (storage == ZO_FP32 || bits >= 0x7f800000u) return x;
    const bool half = storage == ZO_FP16;
    const uint32_t last = half ? 0x2000u : 0x10000u;  // one unit in the last place that is kept
    if (half && bits < 0x38800000u) {                 // below 2^-14: steps of 2^-24
        float a;
        memcpy(&a, &bits, 4);
        if (rounding == ZO_NEAREST) a = (a + 0.5f) - 0.5f;
        else a = (float)(((uint32_t)(a * 0x1p40f) + random) >> 16) * 0x1p-24f;
        memcpy(&bits, &a, 4);
    } else {
        bits += rounding == ZO_NEAREST ? last / 2 - 1 + (bits / last & 1)
              : half ? random >> 3 : random;
        bits &= ~(last - 1);
        const uint32_t most = half ? 0x477fe000u : 0x7f7f0000u;
        if (bits > most) bits = most;
    }
    bits |= sign;
    memcpy(&x, &bits, 4);
    return x;
}

// Between a number that zo_round() has returned and its 16 bits. Exact, both ways.
HOST_DEVICE static inline uint16_t zo_pack(float x, int storage) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (storage == ZO_BF16) return (uint16_t)(bits >> 16 | (x != x ? 0x40u : 0));
#ifdef __CUDA_ARCH__
    return __half_as_ushort(__float2half_rn(x));
#else
    const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    float a;
    memcpy(&a, &rest, 4);
    if (rest >= 0x7f800000u) return (uint16_t)(sign | (rest > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (rest < 0x38800000u) return (uint16_t)(sign | (uint32_t)(a * 0x1p24f));
    return (uint16_t)(sign | ((rest >> 13) - (112u << 10)));
#endif
}

HOST_DEVICE static inline float zo_unpack(uint16_t h, int storage) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
#ifdef __CUDA_ARCH__
    if (storage == ZO_FP16) return __half2float(__ushort_as_half(h));
#else
    if (storage == ZO_FP16) {  // the product moves the exponent, of subnormal numbers, too
        const uint32_t magnitude = (h & 0x7fffu) << 13;
        memcpy(&x, &magnitude, 4);
        x *= 0x1p112f;
        memcpy(&bits, &x, 4);
        if ((h & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
        bits |= (h & 0x8000u) << 16;
    }
#endif
    memcpy(&x, &bits, 4);
    return x;
}

// ---------------------------------------------------------------------------------------------
// 2. The update, and its replay
//
// An update of 1e-7 is lost in 16 bits unless rounding is stochastic, or unless several updates are
// added up in fp32 before their sum is rounded (doc/rounding.md). For the second, only every K-th
// update is rounded and stored. Between these, the weights are what is stored and the updates since
// then, replayed in registers whenever the weights are used.

enum { ZO_REPLAY = 64, ZO_SCALARS = 256 };  // at most so many updates, and scalars of them, at once

typedef struct {
    int count, queries;
    uint32_t round;             // the number of the update whose result is rounded and stored, or 0
    uint32_t step[ZO_REPLAY];
    float shrink[ZO_REPLAY];    // lr wd
    float scale[ZO_SCALARS];    // (count, queries): lr g / queries
} ZoUpdates;

// n numbers become the nearest ones that the storage holds. A loop for each kind: gcc makes no
// vectors of one that decides it for every number.
HOST_DEVICE static inline void zo_round_nearest(float *th, int n, int storage) {
    if (storage == ZO_FP16)
        for (int i = 0; i < n; i++) th[i] = zo_round(th[i], ZO_FP16, ZO_NEAREST, 0);
    if (storage == ZO_BF16)
        for (int i = 0; i < n; i++) th[i] = zo_round(th[i], ZO_BF16, ZO_NEAREST, 0);
}

// Applies updates to elements first .. first + n - 1 of a tensor, which are th. n and first as in
// zo_noise(); n at most 64.
HOST_DEVICE static inline void zo_apply(float *th, int n, const ZoConfig *c, const ZoUpdates *u,
                                        uint32_t tensor, bool decay, uint64_t first) {
    float z[64];
    for (int k = 0; k < u->count; k++) {
        if (decay)
            for (int i = 0; i < n; i++) th[i] = fma_f32(-u->shrink[k], th[i], th[i]);
        for (int j = 0; j < u->queries; j++) {
            const float scale = -u->scale[k * u->queries + j];
            zo_noise(z, n, c, u->step[k], (uint32_t)j, tensor, first);
            for (int i = 0; i < n; i++) th[i] = fma_f32(scale, z[i], th[i]);
        }
    }
    if (u->round == 0 || c->storage == ZO_FP32) return;
    if (c->rounding == ZO_NEAREST) {  // a loop of its own: on the GPU, each would pay for both
        zo_round_nearest(th, n, c->storage);
        return;
    }
    Philox4 r;
    r.x[0] = r.x[1] = r.x[2] = r.x[3] = 0;
    for (int i = 0; i < n; i += 4) {  // 16 of 128 bits for each of 8 elements
        const uint64_t at = (first + (uint64_t)i) / 8;
        if (i % 8 == 0)
            r = philox4x32(c->seed, (uint32_t)at,
                           (uint32_t)(at >> 32) | (uint32_t)ZO_ROUND_QUERY << 16, tensor, u->round);
        const bool upper = (first + (uint64_t)i) % 8 != 0;
        const uint32_t a = upper ? r.x[2] : r.x[0], b = upper ? r.x[3] : r.x[1];
        th[i] = zo_round(th[i], c->storage, ZO_STOCHASTIC, a & 0xffffu);
        th[i + 1] = zo_round(th[i + 1], c->storage, ZO_STOCHASTIC, a >> 16);
        th[i + 2] = zo_round(th[i + 2], c->storage, ZO_STOCHASTIC, b & 0xffffu);
        th[i + 3] = zo_round(th[i + 3], c->storage, ZO_STOCHASTIC, b >> 16);
    }
}

// ---------------------------------------------------------------------------------------------
// 3. The log of scalars

typedef struct { size_t step; double lr, weight_decay; } ZoRecord;

// The updates that are not yet in the stored weights; or, for a replay checkpoint, all of them. A
// step that was skipped has none.
typedef struct {
    int queries;
    size_t count, room;
    ZoRecord *record;
    double *g;          // (count, queries)
    size_t rounded;     // all updates up to this step are in the stored weights
} ZoLog;

static inline void zo_log_add(ZoLog *log, size_t step, double lr, double weight_decay,
                              const double *g) {
    if (log->count == log->room) {
        log->room = 2 * log->room + 64;
        const size_t row = (size_t)log->queries * sizeof *log->g;
        log->record = (ZoRecord *)realloc(log->record, log->room * sizeof *log->record);
        log->g = (double *)realloc(log->g, log->room * row);
        if (log->record == NULL || log->g == NULL) fail("out of memory: log of scalars");
    }
    ZoRecord *r = &log->record[log->count];
    r->step = step;
    r->lr = lr;
    r->weight_decay = weight_decay;
    for (int j = 0; j < log->queries; j++)
        log->g[log->count * (size_t)log->queries + (size_t)j] = g[j];
    log->count++;
}

static inline void zo_log_free(ZoLog *log) {
    free(log->record);
    free(log->g);
    memset(log, 0, sizeof *log);
}

// How many of the records are of steps up to this one.
static inline size_t zo_log_upto(const ZoLog *log, size_t step) {
    size_t n = log->count;
    while (n > 0 && log->record[n - 1].step > step) n--;
    return n;
}

// Forgets the records that are in the stored weights.
static inline void zo_log_trim(ZoLog *log) {
    const size_t done = zo_log_upto(log, log->rounded), q = (size_t)log->queries;
    if (done == 0) return;
    log->count -= done;
    memmove(log->record, log->record + done, log->count * sizeof *log->record);
    memmove(log->g, log->g + done * q, log->count * q * sizeof *log->g);
}

// What turns the stored weights into those after `step` steps. They are to be stored again if
// u->round is not 0; log->rounded then becomes `step`.
static inline void zo_updates(ZoUpdates *u, const ZoConfig *c, const ZoLog *log, size_t step) {
    const size_t first = zo_log_upto(log, log->rounded), end = zo_log_upto(log, step);
    memset(u, 0, sizeof *u);
    u->queries = c->queries;
    u->round = step > log->rounded && step % c->write_back == 0 ? (uint32_t)step : 0;
    if (end - first > ZO_REPLAY || (end - first) * (size_t)c->queries > ZO_SCALARS)
        fail("%zu updates of %d queries are too many for one replay", end - first, c->queries);
    for (size_t i = first; i < end; i++) {
        const ZoRecord *r = &log->record[i];
        const int k = u->count++;
        u->step[k] = (uint32_t)r->step;
        u->shrink[k] = (float)(r->lr * r->weight_decay);
        for (int j = 0; j < c->queries; j++)
            u->scale[k * c->queries + j] =
                (float)(r->lr * log->g[i * (size_t)c->queries + (size_t)j] / c->queries);
    }
}

// Where a replay of a long log stores next on its way to `step`: at the next multiple of K; in
// fp32, where rounding changes nothing, as many of them at once as can be.
static inline size_t zo_next_store(const ZoConfig *c, const ZoLog *log, size_t step) {
    size_t window = ZO_SCALARS / (size_t)c->queries;
    if (window > ZO_REPLAY) window = ZO_REPLAY;
    window = c->storage == ZO_FP32 ? window / c->write_back * c->write_back : c->write_back;
    const size_t next = (log->rounded / window + 1) * window;
    return next < step ? next : step;
}

// The log as the text of a JSON object, to be freed: numbers with all their digits, and per record
// [step, lr, weight decay, g_1, .. g_q].
static inline char *zo_log_text(const ZoLog *log) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL) fail("out of memory: log of scalars");
    fprintf(f, "{\"rounded\":%zu,\"records\":[", log->rounded);
    for (size_t i = 0; i < log->count; i++) {
        const ZoRecord *r = &log->record[i];
        fprintf(f, "%s[%zu,%.17g,%.17g", i > 0 ? ",\n" : "", r->step, r->lr, r->weight_decay);
        for (int j = 0; j < log->queries; j++)
            fprintf(f, ",%.17g", log->g[i * (size_t)log->queries + (size_t)j]);
        fputc(']', f);
    }
    fprintf(f, "]}");
    if (fclose(f) != 0) fail("out of memory: log of scalars");
    return text;
}

// The means of a step's losses, side (queries, 2), over the micro-batches of all ranks. all: of
// each rank, `stride` numbers that begin with its losses (accum, queries, 2). They are added in the
// order of the data, which is rank by rank within a micro-batch: on one rank with `world` times as
// many micro-batches the sums have the same bits.
static inline void zo_mean(double *side, const double *all, size_t stride, int world, size_t accum,
                           int queries) {
    const size_t n = 2 * (size_t)queries;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t m = 0; m < accum; m++)
            for (size_t r = 0; r < (size_t)world; r++) sum += all[r * stride + m * n + i];
        side[i] = sum / ((double)accum * world);
    }
}

// Reads that text into an empty log of log->queries scalars per record. Steps must rise.
static inline bool zo_log_parse(ZoLog *log, const char *text, Error *err) {
    Json *root = json_parse(text, strlen(text), err);
    if (root == NULL) return false;
    const Json *records = json_get(root, "records");
    bool ok = json_get_size(root, "rounded", &log->rounded) && records != NULL
        && records->type == JSON_ARRAY;
    double *row = (double *)alloc_or_fail((size_t)log->queries + 3, sizeof(double), "log");
    size_t before = 0;
    for (const Json *r = ok ? records->child : NULL; ok && r != NULL; r = r->next) {
        int n = 0;
        ok = r->type == JSON_ARRAY;
        for (const Json *x = ok ? r->child : NULL; ok && x != NULL; x = x->next) {
            ok = x->type == JSON_NUMBER && n < log->queries + 3;
            if (ok) row[n++] = x->number;
        }
        ok = ok && n == log->queries + 3 && row[0] > (double)before && row[0] < 4e9
            && row[0] == (double)(size_t)row[0];
        if (!ok) break;
        before = (size_t)row[0];
        zo_log_add(log, before, row[1], row[2], row + 3);
    }
    free(row);
    json_free(root);
    return ok || error_set(err, "its record of zeroth-order steps is damaged");
}

// ---------------------------------------------------------------------------------------------
// 4. The loops of the CPU
//
// Both take elements first .. first + n - 1 of a tensor, in fp32; `first` is a multiple of 64.

// w = theta + scale z, for a direction of this step. scale is eps, or -eps.
static inline void zo_perturb(float *w, const float *theta, size_t n, const ZoConfig *c,
                              size_t step, int query, float scale, uint32_t tensor,
                              uint64_t first) {
    #pragma omp parallel for if (n > 1 << 12)
    for (size_t at = 0; at < n; at += 64) {
        float z[64];
        const size_t rows = n - at < 64 ? n - at : 64;
        zo_noise(z, 64, c, (uint32_t)step, (uint32_t)query, tensor, first + at);
        for (size_t i = 0; i < rows; i++) w[at + i] = fma_f32(scale, z[i], theta[at + i]);
    }
}

// theta becomes what the updates make of it.
static inline void zo_update(float *theta, size_t n, const ZoConfig *c, const ZoUpdates *u,
                             uint32_t tensor, bool decay, uint64_t first) {
    #pragma omp parallel for if (n > 1 << 12)
    for (size_t at = 0; at < n; at += 64) {
        float th[64] = {0};
        const size_t rows = n - at < 64 ? n - at : 64;
        memcpy(th, theta + at, rows * sizeof *th);
        zo_apply(th, 64, c, u, tensor, decay, first + at);
        memcpy(theta + at, th, rows * sizeof *th);
    }
}

// Weights as they were loaded or first made become numbers that the storage holds.
static inline void zo_round_all(float *theta, size_t n, const ZoConfig *c) {
    const int storage = c->storage;
    #pragma omp parallel for if (n > 1 << 16)
    for (size_t at = 0; at < n; at += 64)
        zo_round_nearest(theta + at, n - at < 64 ? (int)(n - at) : 64, storage);
}

#endif
