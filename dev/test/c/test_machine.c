// test_machine: how much memory there is (memory.h), on machines that are made up as folders with
// files of /proc and /sys, and how many threads a process has (cpu.h).
#include "../../../tide/base/memory.h"
#include "../../../tide/cpu/cpu.h"
#include "../files.h"
#include "../test.h"

static void write_kernel_file(const char *name, const char *text) {
    char path[PATH_MAX], dir[PATH_MAX];
    path_join(path, base, name);
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = '\0';
    if (!make_directories(dir)) die("%s", dir);
    put_text(path, text);
}

static void new_machine(void) {
    remove_tree(base);
    if (setenv("TIDE_MACHINE", base, 1) != 0) die("environment");
}

static void memory_that_is_there(void) {
    new_machine();
    CHECK(memory_available() == SIZE_MAX && memory_container() == SIZE_MAX, "nothing is known");
    write_kernel_file("proc/meminfo", "MemTotal: 999999 kB\nMemFree: 5 kB\nMemAvailable:    3000 kB\n");
    CHECK(memory_available() == 3000 * 1024 && memory_container() == SIZE_MAX, "Linux");
    write_kernel_file("sys/fs/cgroup/memory.max", "max\n");
    write_kernel_file("sys/fs/cgroup/memory.current", "900000\n");
    CHECK(memory_available() == 3000 * 1024 && memory_container() == SIZE_MAX, "no limit");
    write_kernel_file("sys/fs/cgroup/memory.max", "1000000\n");
    CHECK(memory_available() == 100000 && memory_container() == 100000, "a container");
    write_kernel_file("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 50000\n");
    CHECK(memory_available() == 150000, "files make room: %zu", memory_available());
    write_kernel_file("sys/fs/cgroup/memory.current", "1900000\n");
    CHECK(memory_available() == 0 && memory_container() == 0, "more is used than may be");
    write_kernel_file("sys/fs/cgroup/memory.max", "99000000\n");
    CHECK(memory_available() == 3000 * 1024 && memory_container() == 97150000, "%zu",
          memory_container());
    unsetenv("TIDE_MACHINE");
    CHECK(memory_available() > 0, "this machine");
}

// Limits of a process's groups, as SLURM, systemd and docker set them: the least that any of them
// leaves. A group that has no folder is one that the container does not see.
static void memory_of_a_job(void) {
    static const struct {
        const char *groups, *files;  // of /proc/self/cgroup; a name and a text each, in sys/fs/cgroup
        size_t left;
    } cases[] = {
        {"0::/a/b/c\n", "a/b/memory.max 3000 a/b/memory.current 1000 a/b/c/memory.max max "
         "a/b/c/memory.current 900", 2000},
        {"0::/a/b\n", "a/memory.max 5000 a/memory.current 4000 a/b/memory.max 3000 "
         "a/b/memory.current 500", 1000},
        {"0::/a\n", "a/memory.max 5000 a/memory.current 4000 memory.max 9000 memory.current 8500", 500},
        {"0::/a/b\n", "a/memory.max 5000 a/memory.current 1000 b/memory.max 7 b/memory.current 0", 4000},
        {"0::/\n", "memory.max 5000 memory.current 1000", 4000},
        {"0::/../x\n", "memory.max 5000 memory.current 1000", 4000},
        {"0::/a\n", "a/memory.current 1000", SIZE_MAX}, {"0::/a\n", "a/memory.max 1000", SIZE_MAX},
        {"9:cpu,cpuacct:/\n0::/s/j\n", "s/j/memory.max max s/j/memory.current 900 s/memory.max 4000 "
         "s/memory.current 1000 memory.current 2000", 3000},
        {"0::/docker/1\n", "memory.max 4000 memory.current 1000 memory.stat anon~9\ninactive_file~100\n",
         3100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char files[1024], name[200];
        new_machine();
        write_kernel_file("proc/self/cgroup", cases[i].groups);
        snprintf(files, sizeof files, "%s", cases[i].files);
        for (char *file = strtok(files, " "); file != NULL; file = strtok(NULL, " ")) {
            char *text = strtok(NULL, " ");
            for (char *c = text; (c = strchr(c, '~')) != NULL;) *c = ' ';
            snprintf(name, sizeof name, "sys/fs/cgroup/%s", file);
            write_kernel_file(name, text);
        }
        CHECK(memory_container() == cases[i].left, "case %zu: %zu", i, memory_container());
    }
    write_kernel_file("proc/meminfo", "MemAvailable: 2 kB\n");
    CHECK(memory_available() == 2048, "the machine has less");
    unsetenv("TIDE_MACHINE");
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
    base_new("machine");
    RUN(memory_that_is_there);
    RUN(memory_of_a_job);
    RUN(threads_of_a_process);
    remove_tree(base);
    return test_summary();
}
