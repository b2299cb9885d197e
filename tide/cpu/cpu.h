// cpu.h: which vector instructions this build uses, and how many threads it has.
//   cpu_instructions()    of this build, in one word: for --version and the benchmarks
//   cpu_describe()        the line at the start of a run
//   cpu_wait_briefly()    first in main(): threads that wait sleep before long
//   cpu_threads()         of one process, which may share the machine with others
//   cpu_copy()            with all of them
#ifndef TIDE_CPU_H
#define TIDE_CPU_H
#include "../base/memory.h"
#include <sys/prctl.h>

static const char *cpu_instructions(void) {
#if defined __AVX512F__
    return "AVX-512";
#elif defined __AVX2__ && defined __FMA__
    return "AVX2";
#elif defined __AVX__
    return "AVX";
#elif defined __x86_64__
    return "SSE2";
#elif defined __ARM_FEATURE_SVE
    return "SVE";
#elif defined __aarch64__
    return "NEON";
#else
    return "plain C";
#endif
}

// Prints what computes, with how many threads. The name is the kernel's; of ARM's CPUs it has none.
static void cpu_describe(void) {
    const int threads = omp_get_max_threads();
    const MachineText model = machine_text("/proc/cpuinfo", "model name\t: ");
    const char *name = model.text[0] != '\0' ? model.text : "unknown";
    printf("cpu: %.*s, %d thread%s, %s\n", (int)strcspn(name, "\n"), name, threads,
           plural((size_t)threads), cpu_instructions());
}

// Lets threads that wait for each other after a loop sleep after some 30 to 60 us: the libraries'
// own waits take the core from the one that is waited for (doc/speed.md). The libraries read this
// from the environment before main(), so the program starts once more with it, and then takes its
// name back from /proc's "exe"; whatever the user has set stays.
static void cpu_wait_briefly(char **argv) {
#ifdef _OPENMP
    prctl(PR_SET_NAME, program_invocation_short_name);
    static const char *const settings[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (int i = 0; i < 3; i++)
        if (getenv(settings[i]) != NULL) return;
    setenv("GOMP_SPINCOUNT", "1000", 1);
    setenv("KMP_BLOCKTIME", "1", 1);
    execv("/proc/self/exe", argv);  // where there is no /proc all goes on as it was
#endif
    (void)argv;
}

// Threads of a team: as asked for (--threads; 0: not said), else OMP_NUM_THREADS (torchrun sets 1
// for several ranks whose user has set nothing), else this rank's share of the machine: of the
// hardware threads that the process may use, at most as many as each of `ranks` on this machine can
// have. No thread is bound to a core: the scheduler keeps those of several ranks apart, and moves
// one whose core another process wants.
static int cpu_threads(size_t asked, int ranks) {
    const char *text = getenv("OMP_NUM_THREADS");
    const int said = text != NULL ? atoi(text) : 0;
    const int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / ranks;
    const int n = omp_get_num_procs() < share ? omp_get_num_procs() : share;
    if (asked > 0) return (int)asked;
    if (said > 1 || (said == 1 && getenv("TORCHELASTIC_RUN_ID") == NULL)) return said;
    return n > 1 ? n : 1;
}

// memcpy(), by a team.
static void cpu_copy(void *to, const void *from, size_t bytes) {
    const size_t chunk = 1 << 16;
    #pragma omp parallel for schedule(dynamic) if (bytes > chunk)
    for (size_t at = 0; at < bytes; at += chunk)
        memcpy((char *)to + at, (const char *)from + at, min_size(chunk, bytes - at));
}

#endif
