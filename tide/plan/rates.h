// rates.h: how fast a machine moves and updates optimizer state, and what follows from that. Pure
// functions of measured numbers (calibrate.cuh), or of those in a file (scripts/rates/).
//   rates_load(), rates_write()            the file
//   rates_of_rank(), collective_seconds()  several GPUs: what each has, how long collectives take
//   eq1_stride()                           the split that Deep Optimizer States computes (Maurya et
//                                          al. 2024, Eq. 1)
//   update_bound(), best_share()           what no schedule can beat, and the split for it
#ifndef TIDE_RATES_H
#define TIDE_RATES_H
#include "../base/util.h"
#include <math.h>

// Bytes, parameters or floating-point operations per second; 0: not known. Name and unit of each.
#define RATES(X) \
    /* page-locked memory: one direction alone; both at once; one of them while the host */ \
    /* updates; both while it does */ \
    X(h2d, "bytes/s") X(d2h, "bytes/s") X(h2d_duplex, "bytes/s") X(d2h_duplex, "bytes/s") \
    X(h2d_host, "bytes/s") X(d2h_host, "bytes/s") X(h2d_busy, "bytes/s") X(d2h_busy, "bytes/s") \
    X(dram, "bytes/s")      /* that the cores alone reach in AdamW: 26 bytes per parameter */ \
    X(dram_dma, "bytes/s")  /* of the cores and both directions of the link together */ \
    /* fused AdamW out of cache, all threads (the paper's Uc); a pass of its own from fp32 to 16 \
       bits (the paper's Dc), which Eq. 1 counts and this trainer's update does not need */ \
    X(host_adam, "parameters/s") X(host_cast, "parameters/s") \
    X(gpu_adam, "parameters/s")    /* (the paper's Ug) */ \
    X(gpu_flops, "flop/s")         /* that products reach, not the peak */ \
    X(gpu_attention, "flop/s")     /* of attention's seven products, half of them masked */ \
    X(gpu_bytes, "bytes/s")        /* GPU memory */ \
    X(gpu_normals, "numbers/s")    /* drawn (rng.h): the noise of zeroth-order training */ \
    X(gpu_alloc, "bytes/s")        /* of GPU memory freed and allocated: --zo-no-slots */ \
    /* Several GPUs of a node. All share its memory and cores; each has its own link to them. */ \
    X(host_gpus, "GPUs")           /* so many may have dram .. host_cast at once, each of them; \
                                      0: one, as measured by one process */ \
    /* bus bandwidth of collectives, as nccl-tests define it; time of each */ \
    X(gpu_link, "bytes/s") X(gpu_latency, "s")

#define RATE_FIELD(name, unit) double name;
#define RATE_ROW(name, unit) {#name, unit},
typedef struct { RATES(RATE_FIELD) } Rates;
static const struct { const char *name, *unit; } rate_fields[] = {RATES(RATE_ROW)};
enum { RATE_FIELDS = sizeof rate_fields / sizeof *rate_fields };

static double rate_or(double rate, double otherwise) { return rate > 0 ? rate : otherwise; }

static double *rate_at(const Rates *rates, int field) { return (double *)rates + field; }

// ---------------------------------------------------------------------------------------------
// The file: "name value  # comment" per line; names and units as above

// Rates that the file does not name are 0, but for gpu_attention: such a file counts six products
// of attention in gpu_flops. false, and a sentence with file and line in err, for anything that is
// not such a line, for a name that is not known or comes twice, and for no name.
static bool rates_load(Rates *rates, const char *path, Error *err) {
    size_t n = 0, line = 0;
    bool seen[RATE_FIELDS] = {false}, any = false;
    char *text = file_read(path, &n, err), *next, name[64] = "", value[64] = "", more;
    if (text == NULL) return false;
    memset(rates, 0, sizeof *rates);
    bool wrong = false;
    for (char *at = text; !wrong && at < text + n; at = next) {
        next = at + strcspn(at, "\n") + 1;  // a NUL byte ends a line, too
        next[-1] = '\0';
        at[strcspn(at, "#")] = '\0';
        line++;
        const int words = sscanf(at, "%63s %63s %c", name, value, &more);
        if (words < 1) continue;  // blank, or a comment
        int i = 0;
        while (i < RATE_FIELDS && strcmp(rate_fields[i].name, name) != 0) i++;
        char *end = value;
        const double number = strtod(value, &end);
        wrong = i == RATE_FIELDS || seen[i] || words != 2 || *end != '\0' || !isfinite(number)
             || number < 0;
        if (wrong) break;
        *rate_at(rates, i) = number;
        seen[i] = any = true;
    }
    free(text);
    if (rates->gpu_attention == 0) rates->gpu_attention = 7 * rates->gpu_flops / 6;
    if (wrong)
        return error_set(err, "%.300s, line %zu: %s: no rate of this name, a second one, or "
                         "not a number from 0 on", path, line, name);
    return any || error_set(err, "%.300s: names no rate", path);
}

// Writes rates for rates_load(), with three digits: the next measurement would differ in the
// fourth.
static void rates_write(FILE *f, const Rates *rates) {
    for (int i = 0; i < RATE_FIELDS; i++) {
        const double v = *rate_at(rates, i);
        fprintf(f, "%-13s %-8.3g # %s\n", rate_fields[i].name, v,
                v > 0 ? rate_fields[i].unit : "not known");
    }
}

// ---------------------------------------------------------------------------------------------
// Several GPUs

// Computes the rates of each of `local` GPUs of a node when all are at work. If more GPUs share the
// host than the rates are for, those of the link beside all cores (_host, _busy) are dropped.
static Rates rates_of_rank(const Rates *rates, size_t local) {
    Rates x = *rates;
    const double sharing = (double)local / fmax(rates->host_gpus, 1);
    if (sharing <= 1) return x;
    x.dram /= sharing;
    x.dram_dma /= sharing;
    x.host_adam /= sharing;
    x.host_cast /= sharing;
    x.h2d_host = x.d2h_host = x.h2d_busy = x.d2h_busy = 0;
    return x;
}

// Returns the seconds of an all-gather to, or a reduce-scatter of, `bytes` on each of `world` GPUs:
// each sends all but its own part (nccl-tests, doc/PERFORMANCE.md). Without gpu_link: the latency.
static double collective_seconds(const Rates *rates, size_t world, double bytes) {
    const double R = (double)world;
    if (world <= 1) return 0;
    return (R - 1) / R * bytes / rate_or(rates->gpu_link, INFINITY) + rates->gpu_latency;
}

// ---------------------------------------------------------------------------------------------
// The paper's model

// Eq. 1: k sub-groups are updated on the CPU for each one on the GPU, so that both take as long:
//   k (1/Uc + 1/Dc) = 3/B + k/(2B) + 1/Ug,   hence   k = (3/B + 1/Ug) / (1/Uc + 1/Dc - 1/(2B))
// with B the link's fp32 parameters per second in one direction. A Dc or Ug that is not known is
// no limit. INFINITY where the CPU updates faster than the link brings its 16-bit weights back: one
// on the GPU never pays. NAN if B or Uc is not known. As published, k has two meanings
// (doc/speed.md); here it is what the equation says.
static double eq1_stride(const Rates *rates) {
    if (!(rates->h2d > 0 && rates->host_adam > 0)) return NAN;
    const double B = rates->h2d / 4, ug = rates->gpu_adam > 0 ? 1 / rates->gpu_adam : 0;
    const double cpu = 1 / rates->host_adam + (rates->host_cast > 0 ? 1 / rates->host_cast : 0);
    return cpu > 1 / (2 * B) ? (3 / B + ug) / (cpu - 1 / (2 * B)) : INFINITY;
}

// ---------------------------------------------------------------------------------------------
// The bound

// The bytes on the link that depend on a run's choices.
typedef struct {
    double grad;         // bytes of a gradient, on the link and in host memory: 2 or 4
    double weight;       // bytes of a weight: 2; or 4
    double kept_grads;   // share of the visitors' gradients that stay on the GPU
    double state;        // bytes of m, v and the rest of the master weight: 10 (fp32: 8); or 6, 4
    double streams;      // share of the weights that live on the host
} UpdateBytes;

#define ADAM_BYTES 26.0  // that host_adam reads and writes: weight, state and a gradient of 2 bytes

enum { UPDATE_LINES = 6 };

// Sets t to seconds per parameter if the GPU updates `share` of the state that lives on the host,
// as linear functions of it: H2D, D2H, host memory (two, see update_bound()), cores, GPU. The line
// of an unknown rate is 0. Each byte of the link is one of host memory, too; the cores read weight,
// state and gradient, and write weight and state. Backward hides the gradients' way.
static void update_lines(const Rates *rates, const UpdateBytes *b, double share,
                         double t[UPDATE_LINES]) {
    const double cpu = 1 - share, d2h = (b->state + b->streams * b->weight) * share;
    const double h2d = d2h + share * b->grad * (1 - b->kept_grads)
                     + cpu * (1 - b->streams) * b->weight;
    const double adam = 2 * (b->weight + b->state) + b->grad, bytes = h2d + d2h + cpu * adam;
    const double update = adam / ADAM_BYTES;
    const double in = rate_or(rates->h2d_duplex, rates->h2d),
        out = rate_or(rates->d2h_duplex, rates->d2h);
    const double dma = rate_or(rates->dram_dma, rates->dram), alone = rate_or(rates->dram, dma);
    t[0] = in > 0 ? h2d / in : 0;
    t[1] = out > 0 ? d2h / out : 0;
    for (int i = 0; i < 2; i++)
        t[2 + i] = alone > 0 ? (bytes - (dma - alone) * t[i]) / alone : 0;
    t[4] = rates->host_adam > 0 ? cpu * update / rates->host_adam : 0;
    t[5] = rates->gpu_adam > 0 ? share * update / rates->gpu_adam : 0;
}

// Returns the seconds per parameter that no schedule can beat at this share (0 to 1), but for what
// it does before the update begins, like fetching the first visitors; 0 if no rate is known. Host
// memory gives `dram_dma` while both directions of the link are busy, which is as long as the one
// with less to do takes, and `dram` for the rest of the step's time T:
//   bytes = dram_dma t + dram (T - t).
// doc/speed.md has T where each is one rate.
// limit, if not NULL: which of them binds, for people, or several that meet, as at most best
// shares: "link and DRAM"; "nothing" if no rate is known.
static double update_bound(const Rates *rates, const UpdateBytes *b, double share, char limit[40]) {
    static const char *const names[] = {"link", "DRAM", "cores", "GPU"};
    double t[UPDATE_LINES];
    update_lines(rates, b, share, t);
    const double s[] = {fmax(t[0], t[1]), t[0] < t[1] ? t[2] : t[3], t[4], t[5]};
    const double bound = fmax(fmax(s[0], s[1]), fmax(s[2], s[3]));
    if (limit != NULL) snprintf(limit, 40, "nothing");
    for (size_t i = 0, n = 0; limit != NULL && bound > 0 && i < 4; i++)
        if (s[i] >= bound * (1 - 1e-6))
            n += (size_t)snprintf(limit + n, 40 - n, "%s%s", n > 0 ? " and " : "", names[i]);
    return bound;
}

// Returns the share with the least bound. Between two crossings of its lines the bound is linear,
// so that it is least at a crossing, or at 0 or 1. 0 if no rate is known.
static double best_share(const Rates *rates, const UpdateBytes *b) {
    double at0[UPDATE_LINES], at1[UPDATE_LINES], best = 0, least = update_bound(rates, b, 0, NULL);
    update_lines(rates, b, 0, at0);
    update_lines(rates, b, 1, at1);
    for (int i = 0; i < UPDATE_LINES; i++)
        for (int j = 0; j <= i; j++) {
            const double gap0 = at0[i] - at0[j], gap1 = at1[i] - at1[j];
            const double f = i == j ? 1 : gap0 / (gap0 - gap1);
            if (!(f > 0 && f <= 1)) continue;
            const double t = update_bound(rates, b, f, NULL);
            if (t < least * (1 - 1e-12)) {
                best = f;
                least = t;
            }
        }
    return best;
}

#endif
