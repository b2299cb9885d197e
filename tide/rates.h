// rates.h: how fast a machine moves and updates optimizer state, and what follows from that: the
// split between CPU and GPU that Deep Optimizer States computes (Maurya et al. 2024, Eq. 1), and a
// bound that no schedule can beat; and how long collectives between GPUs take. Pure functions of
// measured numbers (calibrate.cuh), or of those in a file (scripts/rates/).
#ifndef TIDE_RATES_H
#define TIDE_RATES_H
#include "util.h"
#include "json.h"
#include <math.h>

// Bytes, parameters or floating-point operations per second; 0: not known.
typedef struct {
    double h2d, d2h;                // one direction alone, page-locked memory
    double h2d_duplex, d2h_duplex;  // both directions at once
    double h2d_busy, d2h_busy;      // both while the host updates
    double h2d_pageable, d2h_pageable;
    double dram;        // of the host's AdamW, the cores alone: 28 bytes per parameter
    double dram_dma;    // of the cores and both directions of the link together
    double host_adam;   // parameters: fused AdamW out of cache, all threads (the paper's Uc)
    double cores;       // parameters: the same within the caches, where memory is no limit
    double host_cast;   // parameters: a pass of its own from fp32 to 16 bits (the paper's Dc)
    double gpu_adam;    // parameters (the paper's Ug)
    double gpu_cast;    // bytes read and written, fp32 <-> 16 bits
    double gpu_flops;   // that forward and backward reach, not the peak
    double gpu_bytes;   // GPU memory
    double gpu_normals; // normal numbers drawn (rng.h): the noise of zeroth-order training
    double disk;        // bytes written
    // Several GPUs. In each node all share its memory and cores; each has its own link to them.
    double node_gpus;   // GPUs of a node; 0: there is one node
    double host_gpus;   // so many of a node's may have dram .. host_cast at once, each of them;
                        // 0: one, as measured by one process
    double gpu_link;    // within a node: bus bandwidth of collectives, as nccl-tests define it
    double gpu_latency; // seconds, of each collective
    double node_link;   // the same over several nodes, with all GPUs of each at work
    double node_latency;
} Rates;

typedef struct { const char *name, *unit; size_t offset; } RateField;

#define RATE(name, unit) {#name, unit, offsetof(Rates, name)}
static const RateField rate_fields[] = {
    RATE(h2d, "bytes/s"), RATE(d2h, "bytes/s"), RATE(h2d_duplex, "bytes/s"),
    RATE(d2h_duplex, "bytes/s"), RATE(h2d_busy, "bytes/s"), RATE(d2h_busy, "bytes/s"),
    RATE(h2d_pageable, "bytes/s"), RATE(d2h_pageable, "bytes/s"), RATE(dram, "bytes/s"),
    RATE(dram_dma, "bytes/s"), RATE(host_adam, "parameters/s"), RATE(cores, "parameters/s"),
    RATE(host_cast, "parameters/s"), RATE(gpu_adam, "parameters/s"), RATE(gpu_cast, "bytes/s"),
    RATE(gpu_flops, "flop/s"), RATE(gpu_bytes, "bytes/s"),
    RATE(gpu_normals, "numbers/s"), RATE(disk, "bytes/s"),
    RATE(node_gpus, "GPUs"), RATE(host_gpus, "GPUs"), RATE(gpu_link, "bytes/s"),
    RATE(gpu_latency, "s"), RATE(node_link, "bytes/s"), RATE(node_latency, "s"),
};
#undef RATE
enum { RATE_FIELDS = sizeof rate_fields / sizeof *rate_fields };

static inline double *rate_at(const Rates *r, int field) {
    return (double *)((char *)r + rate_fields[field].offset);
}

// ---------------------------------------------------------------------------------------------
// The file: "name value  # comment" per line; names and units as above, numbers as in JSON

// The word at *at, not past `end` and no comment; its length, 0: none. *at moves behind it.
static inline size_t rates_word(const char **at, const char *end, const char **word) {
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\r')) ++*at;
    *word = *at;
    while (*at < end && strchr(" \t\r#", **at) == NULL) ++*at;
    return (size_t)(*at - *word);
}

// Rates that the file does not name are 0. false, and a sentence with file and line in err, for
// anything that is not such a line, for a name that is not known or comes twice, and for no name.
static inline bool rates_load(Rates *r, const char *path, Error *err) {
    size_t n = 0, line = 0;
    bool seen[RATE_FIELDS] = {false}, ok = true;
    int found = 0;
    char *text = file_read(path, &n, err);
    if (text == NULL) return false;
    memset(r, 0, sizeof *r);
    for (const char *at = text; ok && at < text + n;) {
        const char *end = (const char *)memchr(at, '\n', (size_t)(text + n - at)), *name, *value;
        const char *next = end != NULL ? end + 1 : text + n, *rest;
        if (end == NULL) end = next;
        line++;
        if (memchr(at, '\0', (size_t)(end - at)) != NULL) {
            ok = error_set(err, "%.300s, line %zu: a NUL byte", path, line);
            break;
        }
        const size_t name_length = rates_word(&at, end, &name);
        const size_t length = rates_word(&at, end, &value);
        const size_t more = rates_word(&at, end, &rest);
        at = next;
        if (name_length == 0) continue;  // blank, or a comment
        int i = 0;
        while (i < RATE_FIELDS && (strlen(rate_fields[i].name) != name_length
                                   || memcmp(rate_fields[i].name, name, name_length) != 0)) i++;
        if (i == RATE_FIELDS)
            ok = error_set(err, "%.300s, line %zu: unknown rate \"%.*s\"", path, line,
                           (int)(name_length < 60 ? name_length : 60), name);
        else if (seen[i])
            ok = error_set(err, "%.300s, line %zu: a second %s", path, line,
                           rate_fields[i].name);
        else if (more > 0)
            ok = error_set(err, "%.300s, line %zu: more than a name and a number; a comment "
                           "begins with #", path, line);
        if (!ok) break;
        Error ignored;
        Json *number = json_parse(value, length, &ignored);
        if (number == NULL || number->type != JSON_NUMBER)
            ok = error_set(err, "%.300s, line %zu: %s \"%.*s\" is not a number", path, line,
                           rate_fields[i].name, (int)(length < 60 ? length : 60), value);
        else if (*value == '-')
            ok = error_set(err, "%.300s, line %zu: %s is negative", path, line,
                           rate_fields[i].name);
        else if (strcmp(rate_fields[i].unit, "GPUs") == 0
                 && number->number != floor(number->number))
            ok = error_set(err, "%.300s, line %zu: %s is no whole number", path, line,
                           rate_fields[i].name);
        else
            *rate_at(r, i) = number->number;
        json_free(number);
        seen[i] = true;
        found++;
    }
    free(text);
    return ok && found == 0 ? error_set(err, "%.300s: names no rate", path) : ok;
}

// What rates_load() reads back, to three digits: the next measurement has others after them.
static inline void rates_write(FILE *f, const Rates *r) {
    for (int i = 0; i < RATE_FIELDS; i++) {
        const double v = *rate_at(r, i);
        fprintf(f, "%-12s %-8.3g # %s\n", rate_fields[i].name, v,
                v > 0 ? rate_fields[i].unit : "not known");
    }
}

// ---------------------------------------------------------------------------------------------
// Several GPUs

// How many of `world` GPUs are in one node.
static inline size_t rates_local(const Rates *r, size_t world) {
    return r->node_gpus > 0 && (double)world > r->node_gpus ? (size_t)r->node_gpus : world;
}

// What each of `local` GPUs of a node has when all are at work. Where more share the host than the
// rates are for, what the link does beside all of the cores (_busy) says nothing any more.
static inline Rates rates_of_rank(const Rates *r, size_t local) {
    Rates x = *r;
    const double sharing = (double)local / fmax(r->host_gpus, 1);
    if (sharing <= 1) return x;
    x.dram /= sharing;
    x.dram_dma /= sharing;
    x.host_adam /= sharing;
    x.cores /= sharing;
    x.host_cast /= sharing;
    x.h2d_busy = x.d2h_busy = 0;
    return x;
}

// Do the rates say what lies between `world` GPUs?
static inline bool rates_connect(const Rates *r, size_t world) {
    return world <= 1 || (rates_local(r, world) < world ? r->node_link : r->gpu_link) > 0;
}

// Seconds of an all-gather to, or a reduce-scatter of, `bytes` on each of `world` GPUs: in a ring
// each passes on all but its own part (nccl-tests, doc/PERFORMANCE.md). A bandwidth that is not
// known is no limit.
static inline double collective_seconds(const Rates *r, size_t world, double bytes) {
    const bool far = rates_local(r, world) < world;
    const double bandwidth = far ? r->node_link : r->gpu_link, R = (double)world;
    if (world <= 1) return 0;
    return (bandwidth > 0 ? (R - 1) / R * bytes / bandwidth : 0)
         + (far ? r->node_latency : r->gpu_latency);
}

// ---------------------------------------------------------------------------------------------
// The paper's model

// Eq. 1: k sub-groups are updated on the CPU for each one on the GPU, so that both take as long:
//   k (1/Uc + 1/Dc) = 3/B + k/(2B) + 1/Ug,   hence   k = (3/B + 1/Ug) / (1/Uc + 1/Dc - 1/(2B))
// with B the link's fp32 parameters per second in one direction. A Dc or Ug that is not known is
// no limit. INFINITY where the CPU updates faster than the link brings its 16-bit weights back: one
// on the GPU never pays. NAN if B or Uc is not known.
// As published, k has two meanings. Section 4.2 derives k : 1, a share of 1 / (k + 1) on the GPU.
// Algorithm 1 tests (i + 1) % k == 0, a share of 1 / k; so does section 5.3, "k = 2, i.e., every
// alternate subgroup". Here it is what the equation says.
static inline double eq1_stride(const Rates *r) {
    if (!(r->h2d > 0 && r->host_adam > 0)) return NAN;
    const double B = r->h2d / 4, ug = r->gpu_adam > 0 ? 1 / r->gpu_adam : 0;
    const double cpu = 1 / r->host_adam + (r->host_cast > 0 ? 1 / r->host_cast : 0);
    return cpu > 1 / (2 * B) ? (3 / B + ug) / (cpu - 1 / (2 * B)) : INFINITY;
}

// Seconds per parameter at any share on the GPU: the larger of what Eq. 1 equates; NAN likewise.
static inline double eq1_seconds(const Rates *r, double share) {
    if (!(r->h2d > 0 && r->host_adam > 0)) return NAN;
    const double B = r->h2d / 4, ug = r->gpu_adam > 0 ? 1 / r->gpu_adam : 0;
    const double cpu = 1 / r->host_adam + (r->host_cast > 0 ? 1 / r->host_cast : 0);
    return fmax((1 - share) * cpu, share * (3 / B + ug) + (1 - share) / (2 * B));
}

// ---------------------------------------------------------------------------------------------
// The bound

// Of what crosses the link, what the choices of a run decide. State is always 12 bytes (p, m, v).
typedef struct {
    double grad;         // bytes of a gradient, on the link and in host memory: 2 or 4
    double weight;       // bytes of a new weight, going back: 2; or 4, the master weight as it is
    bool keep_grads;     // gradients of GPU-updated parameters stay on the GPU
    bool grads_in_step;  // gradients leave within the update's time; else backward hides them
} UpdateBytes;

// Bytes per parameter if the GPU updates `share` of the state that lives on the host: each way over
// the link, and read or written in host memory, where each byte of the link is one, too. The cores
// read p, m, v and the gradient and write p, m, v and the weight that goes back.
static inline void update_traffic(const UpdateBytes *b, double share, double *h2d, double *d2h,
                                  double *dram) {
    const double cpu = 1 - share, visitors_grads = b->keep_grads ? 0 : share * b->grad;
    *h2d = 12 * share + visitors_grads + cpu * b->weight;
    *d2h = 12 * share + (b->grads_in_step ? visitors_grads + cpu * b->grad : 0);
    *dram = *h2d + *d2h + cpu * (24 + b->grad + (b->weight < 4 ? b->weight : 0));
}

enum { LIMIT_LINK, LIMIT_DRAM, LIMIT_CORES, LIMIT_GPU, LIMITS, UPDATE_LINES = 6 };

// Seconds per parameter at this share, as linear functions of it: H2D, D2H, host memory (two, see
// update_limits()), cores, GPU. Of what is not known, 0.
static inline void update_lines(const Rates *r, const UpdateBytes *b, double share,
                                double t[UPDATE_LINES]) {
    double h2d, d2h, bytes;
    update_traffic(b, share, &h2d, &d2h, &bytes);
    const double in = r->h2d_duplex > 0 ? r->h2d_duplex : r->h2d;
    const double out = r->d2h_duplex > 0 ? r->d2h_duplex : r->d2h;
    const double dma = r->dram_dma > 0 ? r->dram_dma : r->dram;
    const double alone = r->dram > 0 ? r->dram : dma;
    const double cores = r->cores > 0 ? r->cores : r->host_adam;
    t[0] = in > 0 ? h2d / in : 0;
    t[1] = out > 0 ? d2h / out : 0;
    for (int i = 0; i < 2; i++)
        t[2 + i] = alone > 0 ? (bytes - (dma - alone) * t[i]) / alone : 0;
    t[4] = cores > 0 ? (1 - share) / cores : 0;
    t[5] = r->gpu_adam > 0 ? share / r->gpu_adam : 0;
}

// Seconds per parameter that each limit asks for. Host memory gives `dram_dma` while both
// directions of the link are busy, which is as long as the one with less to do takes, and `dram`
// for the rest of the step's time T:  bytes = dram_dma t + dram (T - t).
// With one rate W for both, one rate B each way, bf16 on the wire and gradients that stay:
//   T >= max{(2 + 10 f) / B, 12 f / B, (30 - 6 f) / W, (1 - f) / Uc}
static inline void update_limits(const Rates *r, const UpdateBytes *b, double share,
                                 double seconds[LIMITS]) {
    double t[UPDATE_LINES];
    update_lines(r, b, share, t);
    seconds[LIMIT_LINK] = fmax(t[0], t[1]);
    seconds[LIMIT_DRAM] = t[0] < t[1] ? t[2] : t[3];
    seconds[LIMIT_CORES] = t[4];
    seconds[LIMIT_GPU] = t[5];
}

// Seconds per parameter that no schedule can beat at this share (0 to 1), but for what it does
// before the update begins, like fetching the first visitors; 0 if no rate is known.
static inline double update_bound(const Rates *r, const UpdateBytes *b, double share) {
    double s[LIMITS];
    update_limits(r, b, share, s);
    return fmax(fmax(s[LIMIT_LINK], s[LIMIT_DRAM]), fmax(s[LIMIT_CORES], s[LIMIT_GPU]));
}

// The share with the least bound. Between two crossings of its lines the bound is linear, so that
// it is least at a crossing, or at 0 or 1. 0 if no rate is known.
static inline double best_share(const Rates *r, const UpdateBytes *b) {
    double at0[UPDATE_LINES], at1[UPDATE_LINES], best = 0, least = update_bound(r, b, 0);
    update_lines(r, b, 0, at0);
    update_lines(r, b, 1, at1);
    for (int i = 0; i < UPDATE_LINES; i++)
        for (int j = 0; j <= i; j++) {
            const double gap0 = at0[i] - at0[j], gap1 = at1[i] - at1[j];
            const double f = i == j ? 1 : gap0 / (gap0 - gap1);
            if (!(f > 0 && f <= 1)) continue;
            const double t = update_bound(r, b, f);
            if (t < least * (1 - 1e-12)) {
                best = f;
                least = t;
            }
        }
    return best;
}

// Which limit binds, for people: "link", "DRAM", "cores", "GPU", or two of them where they meet,
// as at most best shares: "link and DRAM". "nothing" if no rate is known. Returns text.
static inline const char *update_limit(const Rates *r, const UpdateBytes *b, double share,
                                       char text[40]) {
    static const char *const names[LIMITS] = {"link", "DRAM", "cores", "GPU"};
    const double bound = update_bound(r, b, share);
    double s[LIMITS];
    update_limits(r, b, share, s);
    snprintf(text, 40, "nothing");
    size_t n = 0;
    for (int i = 0; i < LIMITS; i++)
        if (bound > 0 && s[i] >= bound * (1 - 1e-6))
            n += (size_t)snprintf(text + n, 40 - n, "%s%s", n > 0 ? " and " : "", names[i]);
    return text;
}

#endif
