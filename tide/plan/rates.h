// rates.h: how fast a machine moves and updates optimizer state, and what follows from that. All
// functions compute from numbers measured by calibrate.cuh, or those in a file (scripts/rates/).
//   rates_load(), rates_write()            read and write a file of rates
//   rates_of_rank(), collective_seconds()  rates of each of several GPUs; a collective's time
//   eq1_stride()                           Eq. 1 of Deep Optimizer States (Maurya et al. 2024)
//   update_bound(), best_share()           the least possible time of an update; the share with it
#ifndef TIDE_RATES_H
#define TIDE_RATES_H
#include "../base/util.h"

// Rates with their units: bytes, parameters or operations per second; 0: unknown.
#define RATES(X) \
    /* copies of page-locked memory, in one direction; in both at once (_duplex); in one while */ \
    /* the cores run AdamW (_host); in both while they do (_busy) */ \
    X(h2d, "bytes/s") X(d2h, "bytes/s") X(h2d_duplex, "bytes/s") X(d2h_duplex, "bytes/s") \
    X(h2d_host, "bytes/s") X(d2h_host, "bytes/s") X(h2d_busy, "bytes/s") X(d2h_busy, "bytes/s") \
    X(dram, "bytes/s")      /* of the cores in AdamW, which moves 26 bytes per parameter */ \
    X(dram_dma, "bytes/s")  /* of the cores and both directions of the link together */ \
    /* AdamW from memory on all threads (the paper's Uc); a separate pass from fp32 to 16 bits \
       (the paper's Dc), which Eq. 1 counts and this trainer's update does not need */ \
    X(host_adam, "parameters/s") X(host_cast, "parameters/s") \
    X(gpu_adam, "parameters/s")    /* the same on the GPU (the paper's Ug) */ \
    X(gpu_flops, "flop/s")         /* measured in products, not the peak */ \
    X(gpu_attention, "flop/s")     /* in attention's seven products, half of them masked */ \
    X(gpu_bytes, "bytes/s")        /* of GPU memory */ \
    X(gpu_normals, "numbers/s")    /* noise of zeroth-order training (rng.h) */ \
    X(gpu_alloc, "bytes/s")        /* of GPU memory freed and allocated: --zo-no-slots */ \
    /* Several GPUs of a node share its memory and cores; each has its own link to them. */ \
    X(host_gpus, "GPUs")           /* how many GPUs can have dram .. host_cast at the same time; \
                                      0: one, as measured by one process */ \
    /* bus bandwidth of collectives, as nccl-tests define it; time to start one */ \
    X(gpu_link, "bytes/s") X(gpu_latency, "s")

#define RATE_FIELD(name, unit) double name;
#define RATE_ROW(name, unit) {#name, unit},
typedef struct { RATES(RATE_FIELD) } Rates;
static const struct { const char *name, *unit; } rate_fields[] = {RATES(RATE_ROW)};
enum { RATE_FIELDS = sizeof rate_fields / sizeof *rate_fields };

static double rate_or(double rate, double otherwise) { return rate > 0 ? rate : otherwise; }

static double *rate_at(const Rates *rates, int field) { return (double *)rates + field; }

// ---------------------------------------------------------------------------------------------
// The file: "name value  # comment" on each line; names and units as above

// Reads a file of rates. A rate that is not in the file is 0. If gpu_attention is not in the file,
// attention's seven products are taken to last as long as six at gpu_flops. Returns false, with the
// reason in err, if a line has another form, an unknown or a repeated name, or there is no rate.
static bool rates_load(Rates *rates, const char *path, Error *err) {
    size_t n = 0, line = 0;
    bool seen[RATE_FIELDS] = {false}, any = false, wrong = false;
    char *text = file_read(path, &n, err), *next, name[64] = "", value[64] = "", more;
    if (text == NULL) return false;
    memset(rates, 0, sizeof *rates);
    for (char *at = text; at < text + n; at = next) {
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

// Writes rates for rates_load(), with three digits: a fourth would differ at each measurement.
static void rates_write(FILE *f, const Rates *rates) {
    for (int i = 0; i < RATE_FIELDS; i++) {
        const double v = *rate_at(rates, i);
        fprintf(f, "%-13s %-8.3g # %s\n", rate_fields[i].name, v,
                v > 0 ? rate_fields[i].unit : "not known");
    }
}

// ---------------------------------------------------------------------------------------------
// Several GPUs

// Returns the rates of each of `local` GPUs of a node when all of them work. If more GPUs share the
// host than were measured, sets the rates of the link while the cores work (_host, _busy) to 0.
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

// Returns the seconds of an all-gather to, or a reduce-scatter of, `bytes` on each of `world` GPUs.
// A GPU sends all but its own part (nccl-tests, doc/PERFORMANCE.md). Without gpu_link: gpu_latency.
static double collective_seconds(const Rates *rates, size_t world, double bytes) {
    const double R = (double)world;
    if (world <= 1) return 0;
    return (R - 1) / R * bytes / rate_or(rates->gpu_link, INFINITY) + rates->gpu_latency;
}

// ---------------------------------------------------------------------------------------------
// The paper's model

// Computes Eq. 1: k sub-groups are updated on the CPU for each one on the GPU, so that both take
// equal time:
//   k (1/Uc + 1/Dc) = 3/B + k/(2B) + 1/Ug,   hence   k = (3/B + 1/Ug) / (1/Uc + 1/Dc - 1/(2B))
// B is the link's fp32 parameters per second in one direction. An unknown Dc or Ug is no limit.
// Returns INFINITY if the CPU updates faster than the link returns its 16-bit weights, and NAN if B
// or Uc is unknown. The paper uses k in two ways (doc/speed.md); here k is as in the equation.
static double eq1_stride(const Rates *rates) {
    if (!(rates->h2d > 0 && rates->host_adam > 0)) return NAN;
    const double B = rates->h2d / 4, ug = rates->gpu_adam > 0 ? 1 / rates->gpu_adam : 0;
    const double cpu = 1 / rates->host_adam + (rates->host_cast > 0 ? 1 / rates->host_cast : 0);
    return cpu > 1 / (2 * B) ? (3 / B + ug) / (cpu - 1 / (2 * B)) : INFINITY;
}

// ---------------------------------------------------------------------------------------------
// The bound

// The bytes of an update per parameter, which depend on the run's options.
typedef struct {
    double grad;         // of a gradient, on the link and in host memory: 2 or 4
    double weight;       // of a weight: 2 or 4
    double kept_grads;   // share of the visitors' gradients that stay on the GPU
    double state;  // m, v, and a master weight's lower half, if any: 10 or 8; bf16 m, v: 6 or 4
    double streams;      // share of the weights that are stored on the host
} UpdateBytes;

#define ADAM_BYTES 26.0  // read and written for host_adam: weight, state, a 2-byte gradient

enum { UPDATE_LINES = 6 };

// Computes six times of an update, in seconds per parameter, if the GPU updates `share` of the
// state on the host: t = {H2D, D2H, host memory twice (see update_bound()), cores, GPU}. Each is a
// linear function of `share`; it is 0 if its rate is unknown. A byte on the link is also read or
// written in host memory. The cores read weight, state and gradient, and write weight and state.
// Copies of gradients to the host are not counted, because backward hides them.
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

// Returns the seconds per parameter that no schedule can beat at this share (0 to 1); 0 if no rate
// is known. (Work before the update, as when the first visitors are fetched, is not counted.) The
// less busy direction of the link is busy for a time t: then both directions are, and host memory
// has the rate dram_dma. In the rest of the update's time T it has the rate dram, so that
//   bytes = dram_dma t + dram (T - t).
// doc/speed.md derives T from one rate. limit, if not NULL, gets the names of the limits that are
// reached, like "link and DRAM" (at a best share several are), or "nothing" if no rate is known.
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

// Returns the share with the least bound; 0 if no rate is known. The bound is linear between two
// crossings of its six lines, so the least one is at a crossing, at 0 or at 1.
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
