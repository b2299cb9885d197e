// cpu.h: which vector instructions this build uses, and which this CPU has.
//   cpu_instructions()    of this build, in one word: for --version and the benchmarks
//   cpu_describe()        the line at the start of a run; one more if the CPU has wider ones
//   cpu_wait_briefly()    first in main(): threads that wait sleep before long
//   cpu_threads_wanted()  what the user says of their number
// A build for instructions that the CPU does not have ends before main(), with one line.
#ifndef TIDE_CPU_H
#define TIDE_CPU_H
#include "util.h"
#if defined __linux__ && defined __aarch64__
#include <sys/auxv.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

// What decides the width of the loops, from narrow to wide.
#if defined __x86_64__
static const char *const cpu_levels[] = {"SSE2", "AVX", "AVX2", "AVX-512"};
#elif defined __aarch64__
static const char *const cpu_levels[] = {"NEON", "SVE"};
#else
static const char *const cpu_levels[] = {"plain C"};
#endif

// An index of cpu_levels: what the compiler was told to use.
static inline int cpu_level_built(void) {
#if defined __AVX512F__
    return 3;
#elif defined __AVX2__ && defined __FMA__
    return 2;
#elif defined __AVX__ || defined __ARM_FEATURE_SVE
    return 1;
#else
    return 0;
#endif
}

// What this CPU has, and the operating system saves.
static inline int cpu_level_present(void) {
#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f")) return 3;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 2;
    return __builtin_cpu_supports("avx") != 0;
#elif defined __linux__ && defined __aarch64__
    return (getauxval(AT_HWCAP) >> 22 & 1) != 0;  // HWCAP_SVE
#else
    return cpu_level_built();
#endif
}

static inline const char *cpu_instructions(void) { return cpu_levels[cpu_level_built()]; }

// The CPU's name, as the kernel has it; of ARM's CPUs it has none.
static inline void cpu_name(char *out, size_t size) {
    char line[256], name[128] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && name[0] == '\0' && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "model name : %127[^\n]", name) != 1) name[0] = '\0';
    if (f != NULL) fclose(f);
    snprintf(out, size, "%s", name[0] != '\0' ? name : "unknown");
}

// Prints what computes, with how many threads.
static inline void cpu_describe(void) {
    char name[128];
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    cpu_name(name, sizeof name);
    printf("cpu: %s, %d thread%s, %s\n", name, threads, threads == 1 ? "" : "s",
           cpu_instructions());
    if (cpu_level_present() > cpu_level_built())
        printf("cpu: it has %s, which this build does not use: `make clean`, then build it here\n",
               cpu_levels[cpu_level_present()]);
}

// OpenMP's threads meet after every loop, and who comes first waits in a loop: with gcc's
// library 300,000 times round, with LLVM's for 200 ms, before it sleeps. Where another process
// wants the core, or the host of a virtual machine takes it, that is time taken from the one that
// is waited for: up to 15 times slower (doc/SPEED.md). 1000 times round, some 30 to 60 us, are
// enough for the waits of an idle machine; LLVM's library, which yields in its loop, counts in ms:
// one. The libraries read this from the environment before main(), so the program starts once more
// with it; whatever the user has set stays.
static inline void cpu_wait_briefly(char **argv) {
#ifdef _OPENMP
    static const char *const settings[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};
    for (int i = 0; i < 3; i++)
        if (getenv(settings[i]) != NULL) return;
    setenv("GOMP_SPINCOUNT", "1000", 1);
    setenv("KMP_BLOCKTIME", "1", 1);
    execv("/proc/self/exe", argv);  // where there is no /proc all goes on as it was
#endif
    (void)argv;
}

// OMP_NUM_THREADS; 0: not set. torchrun sets 1 for several ranks whose user has set nothing.
static inline int cpu_threads_wanted(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    const int n = text != NULL ? atoi(text) : 0;
    return n < 1 || (n == 1 && getenv("TORCHELASTIC_RUN_ID") != NULL) ? 0 : n;
}

// ---------------------------------------------------------------------------------------------
// A build for another CPU

#if defined __x86_64__ && !defined __CUDA_ARCH__
// What a compiler uses unasked once it may: its macro, and the name that says whether it is there.
#define CPU_FEATURES(X)                                                                        \
    X(__SSE3__, "sse3") X(__SSSE3__, "ssse3") X(__SSE4_1__, "sse4.1") X(__SSE4_2__, "sse4.2")  \
    X(__POPCNT__, "popcnt") X(__AVX__, "avx") X(__FMA__, "fma") X(__BMI__, "bmi")              \
    X(__BMI2__, "bmi2") X(__AVX2__, "avx2") X(__AVX512F__, "avx512f")                          \
    X(__AVX512CD__, "avx512cd") X(__AVX512DQ__, "avx512dq") X(__AVX512BW__, "avx512bw")        \
    X(__AVX512VL__, "avx512vl") X(__AVX512IFMA__, "avx512ifma")                                \
    X(__AVX512VBMI__, "avx512vbmi") X(__AVX512VBMI2__, "avx512vbmi2")                          \
    X(__AVX512VNNI__, "avx512vnni") X(__AVX512BITALG__, "avx512bitalg")                        \
    X(__AVX512VPOPCNTDQ__, "avx512vpopcntdq") X(__GFNI__, "gfni")
#define CPU_TEXT(macro) #macro
#define CPU_IS_BUILT(macro) (CPU_TEXT(macro)[0] == '1')  // one that is not defined is its own name
#define CPU_CHECK(macro, name) \
    if (missing == NULL && CPU_IS_BUILT(macro) && !__builtin_cpu_supports(name)) missing = name;

// Compiled for the oldest CPU, it calls nothing of this program: that may be what cannot run.
__attribute__((constructor, target("arch=x86-64,no-avx,no-bmi,no-bmi2")))
static void cpu_check(void) {
    const char *missing = NULL;
    __builtin_cpu_init();
    CPU_FEATURES(CPU_CHECK)
    if (missing == NULL) return;
    fprintf(stderr, "tide: this program was built for a CPU with %s, which this one does not have: "
            "`make clean`, then build it here\n", missing);
    _exit(2);
}
#elif defined __linux__ && defined __ARM_FEATURE_SVE && !defined __CUDA_ARCH__
__attribute__((constructor, target("arch=armv8-a")))
static void cpu_check(void) {
    if (getauxval(AT_HWCAP) >> 22 & 1) return;
    fprintf(stderr, "tide: this program was built for a CPU with SVE, which this one does not have:"
            " `make clean`, then build it here\n");
    _exit(2);
}
#endif

#endif
