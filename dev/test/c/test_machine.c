// test_machine: how much memory there is (memory.h), on machines that are made up as folders with
// files of /proc and /sys, and how many threads a process has (cpu.h).
#include "../../../tide/base/memory.h"
#include "../../../tide/cpu/cpu.h"
#include <dirent.h>
#include "../files.h"
#include "../test.h"

static void write_file(const char *name, const char *text) {
    char path[PATH_MAX], dir[PATH_MAX];
    path_join(path, base, name);
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = '\0';
    if (!make_directories(dir)) die("%s", dir);
    FILE *f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0) die("%s", path);
}

static void new_machine(void) {
    remove_tree(base);
    (void)err;
    if (setenv("TIDE_MACHINE", base, 1) != 0) die("environment");
}

static void memory_that_is_there(void) {
    new_machine();
    CHECK(memory_available() == SIZE_MAX && memory_container() == SIZE_MAX, "nothing is known");
    write_file("proc/meminfo", "MemTotal: 999999 kB\nMemFree: 5 kB\nMemAvailable:    3000 kB\n");
    CHECK(memory_available() == 3000 * 1024 && memory_container() == SIZE_MAX, "Linux");
    write_file("sys/fs/cgroup/memory.max", "max\n");
    write_file("sys/fs/cgroup/memory.current", "900000\n");
    CHECK(memory_available() == 3000 * 1024 && memory_container() == SIZE_MAX, "no limit");
    write_file("sys/fs/cgroup/memory.max", "1000000\n");
    CHECK(memory_available() == 100000 && memory_container() == 100000, "a container");
    write_file("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 50000\n");
    CHECK(memory_available() == 150000, "files make room: %zu", memory_available());
    write_file("sys/fs/cgroup/memory.current", "1900000\n");
    CHECK(memory_available() == 0 && memory_container() == 0, "more is used than may be");
    write_file("sys/fs/cgroup/memory.max", "99000000\n");
    CHECK(memory_available() == 3000 * 1024 && memory_container() == 97150000, "%zu",
          memory_container());
    unsetenv("TIDE_MACHINE");
    CHECK(memory_available() > 0, "this machine");
}

static void threads_of_a_process(void) {
#ifdef _OPENMP
    unsetenv("OMP_NUM_THREADS");
    unsetenv("TORCHELASTIC_RUN_ID");
    const int all = omp_get_num_procs(), online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    CHECK(cpu_threads(0, 1) == all, "%d of %d", cpu_threads(0, 1), all);
    for (int ranks = 2; ranks <= 2 * online; ranks++) {
        const int share = online / ranks > 1 ? online / ranks : 1;
        CHECK(cpu_threads(0, ranks) == (all < share ? all : share), "%d ranks: %d", ranks,
              cpu_threads(0, ranks));
    }
    setenv("OMP_NUM_THREADS", "3", 1);
    CHECK(cpu_threads(0, 8) == 3 && cpu_threads(5, 8) == 5, "as said");
    setenv("OMP_NUM_THREADS", "1", 1);
    CHECK(cpu_threads(0, 1) == 1, "one");
    setenv("TORCHELASTIC_RUN_ID", "none", 1);  // torchrun said it, not the user
    CHECK(cpu_threads(0, 1) == all, "%d of %d", cpu_threads(0, 1), all);
#else
    CHECK(cpu_threads(0, 1) == 1, "without OpenMP there is one");
#endif
}

int main(void) {
    snprintf(base, sizeof base, "/tmp/test_machine.%d", (int)getpid());
    RUN(memory_that_is_there);
    RUN(threads_of_a_process);
    remove_tree(base);
    return test_summary();
}
