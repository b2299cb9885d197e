// cpu.h: which vector instructions this build uses, and how many threads it has.
//   CPU_VECTORS           the vector instructions, for --version
//   cpu_describe()        prints the line at the start of a run
//   cpu_wait_briefly()    makes waiting threads sleep soon; main() calls it first
//   cpu_threads()         returns the threads of a process, which may share the machine
//   cpu_copy()            copies memory with all threads
#ifndef TIDE_CPU_H
#define TIDE_CPU_H
#include "../base/memory.h"
#include <sys/prctl.h>

#if defined __AVX512F__
#define CPU_VECTORS "AVX-512"
#elif defined __AVX2__ && defined __FMA__
#define CPU_VECTORS "AVX2"
#elif defined __aarch64__
#define CPU_VECTORS "NEON"
#else
#define CPU_VECTORS "no AVX2"
#endif

// Prints the CPU's name, as Linux has it (it has none for ARM), the threads and the instructions.
static void cpu_describe(void) {
    const int threads = omp_get_max_threads();
    const MachineText model = machine_text("/proc/cpuinfo", "model name\t: ");
    const char *name = model.text[0] != '\0' ? model.text : "unknown";
    printf("cpu: %.*s, %d thread%s, %s\n", (int)strcspn(name, "\n"), name, threads,
           plural((size_t)threads), CPU_VECTORS);
}

// Makes a thread that waits at the end of a loop sleep after 30 to 60 us. By default the OpenMP
// libraries spin longer, and may take the core of the thread for which all wait (doc/speed.md).
// They read this setting from the environment before main() runs. So the program sets it, and
// starts itself once more, under its old name. If the user has set it, nothing changes.
static void cpu_wait_briefly(char **argv) {
#ifdef _OPENMP
    prctl(PR_SET_NAME, program_invocation_short_name);
    static const char *const settings[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (int i = 0; i < 3; i++)
        if (getenv(settings[i]) != NULL) return;
    setenv("GOMP_SPINCOUNT", "1000", 1);
    setenv("KMP_BLOCKTIME", "1", 1);
    execv("/proc/self/exe", argv);  // fails without /proc; then the program just goes on
#endif
    (void)argv;
}

// Returns the number of threads: `asked` (--threads), if not 0; else OMP_NUM_THREADS, except the 1
// that torchrun sets for several ranks; else the hardware threads that this process may use, at
// most its share of the machine if `ranks` processes run there. No thread is bound to a core:
// Linux's scheduler keeps ranks apart, and moves a thread away from another process.
static int cpu_threads(size_t asked, int ranks) {
    const char *text = getenv("OMP_NUM_THREADS");
    const int said = text != NULL ? atoi(text) : 0;
    const int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / ranks;
    const int n = omp_get_num_procs() < share ? omp_get_num_procs() : share;
    if (asked > 0) return (int)asked;
    if (said > 1 || (said == 1 && getenv("TORCHELASTIC_RUN_ID") == NULL)) return said;
    return n > 1 ? n : 1;
}

// Copies memory with all threads.
static void cpu_copy(void *to, const void *from, size_t bytes) {
    const size_t chunk = 1 << 16;
    #pragma omp parallel for schedule(dynamic) if (bytes > chunk)
    for (size_t at = 0; at < bytes; at += chunk)
        memcpy((char *)to + at, (const char *)from + at, min_size(chunk, bytes - at));
}

#endif
