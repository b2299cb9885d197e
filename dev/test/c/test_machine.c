// test_machine: how much memory there is (memory.h), on machines that are made up as folders with
// files of /proc and /sys, and how many threads a process has (cpu.h).
#include "../../../tide/base/memory.h"
#include "../../../tide/cpu/cpu.h"
#include "../files.h"
#include "../test.h"

// What Linux says, as names and texts, of which spaces are ~: files of proc, or of sys/fs/cgroup. A
// limit of a process's groups, as SLURM, systemd and docker set them, is the least that any of them
// leaves. A group that has no folder is one that the container does not see.
static void memory_that_is_there(void) {
    #define INFO "proc/meminfo MemTotal:~999999~kB\nMemFree:~5~kB\nMemAvailable:~~~3000~kB\n "
    #define GROUPS "proc/self/cgroup "
    enum { AVAILABLE = 3000 * 1024 };
    static const struct { const char *files; size_t container, available; } cases[] = {
        {"", SIZE_MAX, SIZE_MAX},
        {INFO, SIZE_MAX, AVAILABLE},
        {INFO "memory.max 1000000\n memory.current 900000\n", 100000, 100000},
        {INFO "memory.max 1000000\n memory.current 900000\n "
         "memory.stat anon~5\ninactive_file~50000\n", 150000, 150000},  // files make room
        {INFO "memory.max 1000000 memory.current 1900000", 0, 0},
        {GROUPS "0::/a/b/c\n a/b/memory.max 3000 a/b/memory.current 1000 a/b/c/memory.max max "
         "a/b/c/memory.current 900", 2000, 2000},
        {GROUPS "0::/a/b\n a/memory.max 5000 a/memory.current 4000 a/b/memory.max 3000 "
         "a/b/memory.current 500", 1000, 1000},
        {GROUPS "0::/a\n a/memory.max 5000 a/memory.current 4000 memory.max 9000 "
         "memory.current 8500", 500, 500},
        {GROUPS "0::/a/b\n a/memory.max 5000 a/memory.current 1000 b/memory.max 7 "
         "b/memory.current 0 memory.max 9000 memory.current 1000", 4000, 4000},
        {GROUPS "0::/../x\n memory.max 5000 memory.current 1000", 4000, 4000},
        {GROUPS "0::/a\n a/memory.max 1000", SIZE_MAX, SIZE_MAX},
        {GROUPS "9:cpu,cpuacct:/\n0::/s/j\n s/j/memory.max max s/j/memory.current 900 "
         "s/memory.max 4000 s/memory.current 1000 memory.current 2000", 3000, 3000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char files[1024], path[PATH_MAX];
        remove_tree(base);
        setenv("TIDE_MACHINE", base, 1);
        snprintf(files, sizeof files, "%s", cases[i].files);
        for (char *file = strtok(files, " "); file != NULL; file = strtok(NULL, " ")) {
            char *text = strtok(NULL, " ");
            for (char *c = text; (c = strchr(c, '~')) != NULL;) *c = ' ';
            const bool proc = strncmp(file, "proc/", 5) == 0;
            snprintf(path, sizeof path, "%s/%s%s", base, proc ? "" : "sys/fs/cgroup/", file);
            char *slash = strrchr(path, '/');
            *slash = '\0';
            if (!make_directories(path)) die("%s", path);
            *slash = '/';
            put_text(path, text);
        }
        CHECK(memory_container() == cases[i].container && memory_available() == cases[i].available,
              "case %zu: %zu, %zu", i, memory_container(), memory_available());
    }
    unsetenv("TIDE_MACHINE");
    CHECK(memory_available() > 0, "this machine");
}

static void threads_of_a_process(void) {
#ifdef _OPENMP
    unsetenv("OMP_NUM_THREADS");
    unsetenv("TORCHELASTIC_RUN_ID");
    const int all = omp_get_num_procs(), online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int ranks = 1; ranks <= 2 * online; ranks++) {
        const int share = ranks == 1 ? all : online / ranks > 1 ? online / ranks : 1;
        CHECK(cpu_threads(0, ranks) == (all < share ? all : share), "%d ranks: %d", ranks,
              cpu_threads(0, ranks));
    }
    setenv("OMP_NUM_THREADS", "3", 1);
    CHECK(cpu_threads(0, 8) == 3 && cpu_threads(5, 8) == 5, "as said");
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);  // torchrun said it, not the user
    CHECK(cpu_threads(0, 1) == all, "%d of %d", cpu_threads(0, 1), all);
#else
    CHECK(cpu_threads(0, 1) == 1, "without OpenMP there is one");
#endif
}

int main(void) {
    base_new("machine");
    RUN(memory_that_is_there);
    RUN(threads_of_a_process);
    remove_tree(base);
    return test_summary();
}
