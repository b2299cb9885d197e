// cores.h: on which cores the host's team of threads runs (host.cuh), decided by a pure function of
// a description of the machine and of all ranks: each finds by itself what no other takes.
//   - Near the GPU: on its NUMA node. Anywhere, if the node of one of the GPUs is not known, or the
//     process may use none of its cores.
//   - Ranks of a machine that may use the same cores have been told apart by nobody (torchrun,
//     scripts/launch.sh, mpirun --bind-to none): those near one node divide its cores evenly, in
//     rank order. Where a launcher has bound them, their sets differ, and each keeps its own (also
//     if these overlap: somebody has asked for that).
//   - One thread per core, as the hardware threads of a core share its path to memory.
//   - One is left for the thread that launches the GPU's work: a second hardware thread of the
//     cores costs the team nothing; else a core, if there are more than four. AdamW moves 27 GB/s
//     per core where it was measured (doc/SPEED.md): more than four mostly wait for memory, but of
//     two to four one is a quarter to half of the speed, for a thread that works for some ms of a
//     step and sleeps else.
//   - With fewer than two cores per rank each has one thread, and none is bound.
// A rank tells the others its node and the set that it may use (host_meet() of host.cuh): a
// launcher may bind each, or show each only its own GPU, and no other rank can see that.
#ifndef TIDE_CORES_H
#define TIDE_CORES_H
#include "util.h"
#include <sched.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct {
    uint64_t machine;  // where it runs, and
    uint64_t allowed;  // what it may use there: cores_hash()
    int64_t node;      // its GPU's; -1: not known
} CoresRank;

typedef struct {
    cpu_set_t allowed;       // the hardware threads that this process may use
    int core[CPU_SETSIZE];   // of each: the first hardware thread of its core
    int node[CPU_SETSIZE];   // and its NUMA node; -1: not known
    double quota;            // of CPUs' time that all of a machine's ranks may use
    const CoresRank *ranks;  // (world)
    int world, rank;
} CoresMachine;

typedef struct {
    int threads;      // of the team
    bool bound;       // each on one of:
    cpu_set_t team;   // where it runs
    cpu_set_t share;  // all hardware threads that are for this rank, with those for its main thread
    int node;         // near which they all are; -1: not known
    int near;         // ranks that divide this node's cores
    bool divided;     // others have a part of what this process may use
} Cores;

// Linux writes sets of cores like 0-3,8.
static inline bool cpu_list_read(const char *path, cpu_set_t *set) {
    CPU_ZERO(set);
    FILE *f = machine_open(path);
    if (f == NULL) return false;
    for (int first, last, n; (n = fscanf(f, "%d-%d", &first, &last)) >= 1; fgetc(f))
        for (int c = first; c <= (n == 2 ? last : first); c++) CPU_SET((size_t)c, set);
    fclose(f);
    return true;
}

static inline void cpu_list_print(const cpu_set_t *set) {
    const char *comma = "";
    for (size_t c = 0, last; c < CPU_SETSIZE; c = last + 1) {
        for (last = c; CPU_ISSET(c, set) && CPU_ISSET(last + 1, set);) last++;
        if (!CPU_ISSET(c, set)) continue;
        printf(last > c ? "%s%zu-%zu" : "%s%zu", comma, c, last);
        comma = ",";
    }
}

static inline uint64_t cores_hash(uint64_t hash, const void *bytes, size_t n) {  // FNV-1a
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

// CPUs' worth of time that a container may use, from cgroup 2's cpu.max ("QUOTA PERIOD" or "max
// PERIOD", in microseconds). More threads than that would all be stopped together for a part of
// each period, and with them who waits for them.
static inline double cores_quota(void) {
    double quota = 0, period = 0;
    FILE *f = machine_open("/sys/fs/cgroup/cpu.max");
    const bool limited = f != NULL && fscanf(f, "%lf %lf", &quota, &period) == 2 && period > 0;
    if (f != NULL) fclose(f);
    return limited && quota / period < CPU_SETSIZE ? quota / period : CPU_SETSIZE;
}

// What Linux and OpenMP say; .ranks is the caller's.
static inline void cores_read(CoresMachine *m) {
    char path[128];
    cpu_set_t set, nodes;
    memset(m, 0, sizeof *m);
    m->quota = cores_quota();
    if (machine_is_made_up()) cpu_list_read("/sys/devices/system/cpu/online", &m->allowed);
    else sched_getaffinity(0, sizeof m->allowed, &m->allowed);
#ifdef _OPENMP  // with OMP_PROC_BIND this thread has been put on the first of the places
    for (int i = 0, ids[CPU_SETSIZE]; i < omp_get_num_places() && !machine_is_made_up(); i++) {
        if (omp_get_place_num_procs(i) > CPU_SETSIZE) continue;
        omp_get_place_proc_ids(i, ids);
        for (int j = 0; j < omp_get_place_num_procs(i); j++) CPU_SET((size_t)ids[j], &m->allowed);
    }
#endif
    for (size_t c = 0; c < CPU_SETSIZE; c++) {
        m->core[c] = (int)c;
        m->node[c] = -1;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list",
                 c);
        if (!CPU_ISSET(c, &m->allowed) || !cpu_list_read(path, &set)) continue;
        for (int first = (int)c; first >= 0; first--)
            if (CPU_ISSET((size_t)first, &set)) m->core[c] = first;
    }
    cpu_list_read("/sys/devices/system/node/online", &nodes);
    for (size_t n = 0; n < CPU_SETSIZE; n++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%zu/cpulist", n);
        if (!CPU_ISSET(n, &nodes) || !cpu_list_read(path, &set)) continue;
        for (size_t c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &set)) m->node[c] = (int)n;
    }
}

// The first hardware thread that may be used of each core on a node (-1: of all), in ascending
// order; returns how many.
static inline int cores_of_node(const CoresMachine *m, int64_t node, size_t list[CPU_SETSIZE]) {
    bool seen[CPU_SETSIZE] = {false};
    int n = 0;
    for (size_t c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &m->allowed) || (node >= 0 && m->node[c] != node)) continue;
        if (!seen[m->core[c]]) list[n++] = c;
        seen[m->core[c]] = true;
    }
    return n;
}

// asked: --threads, 0: not given; most: OMP_NUM_THREADS, the same.
static inline Cores cores_deal(const CoresMachine *m, int asked, int most) {
    const CoresRank *self = &m->ranks[m->rank];
    size_t list[CPU_SETSIZE];
    bool known = true;
    int here = 0, sharers = 0, place = 0;
    Cores x;
    memset(&x, 0, sizeof x);
    for (int p = 0; p < m->world; p++) {
        const CoresRank *other = &m->ranks[p];
        if (other->machine != self->machine) continue;
        here++;
        if (other->allowed != self->allowed) continue;
        sharers++;
        known &= other->node >= 0 && cores_of_node(m, other->node, list) > 0;
    }
    x.node = known ? (int)self->node : -1;
    for (int p = 0; p < m->world; p++) {
        const CoresRank *other = &m->ranks[p];
        if (other->machine != self->machine || other->allowed != self->allowed) continue;
        if (known && other->node != self->node) continue;
        place += p < m->rank;
        x.near++;
    }
    int cores = cores_of_node(m, x.node, list), first = 0;
    const bool enough = x.near == 1 || cores >= 2 * x.near;
    if (enough) {
        first = cores * place / x.near;
        cores = cores * (place + 1) / x.near - first;
    }
    x.divided = enough && sharers > 1;
    for (int i = first; i < first + cores; i++)
        for (size_t c = 0; c < CPU_SETSIZE; c++)
            if (CPU_ISSET(c, &m->allowed) && m->core[c] == m->core[list[i]]) CPU_SET(c, &x.share);

    const int quota = (int)(m->quota / here), cpus = CPU_COUNT(&x.share);
    const bool second = cpus > cores && quota > cores;  // hardware threads, and time for them
    const int room = quota < cores ? quota : cores, left = !second && room > 4;
    x.threads = asked > 0 ? asked : !enough || room == 0 ? 1 : room - left;
    if (asked == 0 && most > 0 && most < x.threads) x.threads = most;
    // Fewer or more stay free to move: programs that share the machine would else meet on one core.
    x.team = x.share;
    x.bound = enough && cores > 0 && (x.threads == cpus || x.threads == cores
                                      || x.threads == cores - left);
    if (!x.bound || x.threads == cpus) return x;
    CPU_ZERO(&x.team);  // the first core is left: Linux puts interrupts there
    for (int i = cores - x.threads; i < cores; i++) CPU_SET(list[first + i], &x.team);
    return x;
}
#endif
