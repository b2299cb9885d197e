// test_machine: how much memory there is (memory.h), on machines that are made up as folders with
// files of /proc and /sys, and how many threads a process has, and where they run (cpu.h).
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
        {"9:cpu,cpuacct:/\n4:memory:/s/j\n0::/\n", "memory/s/j/memory.limit_in_bytes 9223372036854771712 "
         "memory/s/j/memory.usage_in_bytes 900 memory/s/memory.limit_in_bytes 4000 "
         "memory/s/memory.usage_in_bytes 1000 memory/memory.usage_in_bytes 2000 "
         "memory/memory.limit_in_bytes 9223372036854771712", 3000},
        {"4:memory:/docker/1\n", "memory/memory.limit_in_bytes 4000 memory/memory.usage_in_bytes 1000 "
         "memory/memory.stat inactive_file~9\ntotal_inactive_file~100\n", 3100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char files[1024], name[200];
        new_machine();
        write_file("proc/self/cgroup", cases[i].groups);
        snprintf(files, sizeof files, "%s", cases[i].files);
        for (char *file = strtok(files, " "); file != NULL; file = strtok(NULL, " ")) {
            char *text = strtok(NULL, " ");
            for (char *c = text; (c = strchr(c, '~')) != NULL;) *c = ' ';
            snprintf(name, sizeof name, "sys/fs/cgroup/%s", file);
            write_file(name, text);
        }
        CHECK(memory_container() == cases[i].left, "case %zu: %zu", i, memory_container());
    }
    write_file("proc/meminfo", "MemAvailable: 2 kB\n");
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

// A machine of two sockets with 8 cores of two hardware threads each, 0 to 31, and eight GPUs.
static void two_sockets(void) {
    char name[100], text[100];
    new_machine();
    write_file("sys/devices/system/cpu/online", "0-31\n");
    write_file("sys/devices/system/node/node0/cpulist", "0-7,16-23\n");
    write_file("sys/devices/system/node/node1/cpulist", "8-15,24-31\n");
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "sys/bus/pci/devices/0000:%02x:00.0/numa_node", 0x1b + i);
        write_file(name, i < 4 ? "0\n" : "1\n");
    }
    for (int i = 0; i < 32; i++) {
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, "%d,%d\n", i % 16, i % 16 + 16);
        write_file(name, text);
    }
}

static cpu_set_t range(int first, int end) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = first; i < end; i++) CPU_SET(i, &set);
    return set;
}

static void ranks_are_near_their_gpu(void) {
    const cpu_set_t all = range(0, 32);
    static const size_t eight[] = {0, 0, 0, 0, 1, 1, 1, 1}, four[] = {1, 0, 1, 1}, one[] = {0, 0};
    cpu_set_t own, taken = range(0, 0);
    two_sockets();
    unsetenv("OMP_PLACES");
    unsetenv("OMP_PROC_BIND");
    for (int i = 0; i < 8; i++) {
        char address[16];
        snprintf(address, sizeof address, "0000:%02X:00.0", 0x1b + i);
        const size_t node = cpu_node(address);
        const char *why = cpu_near(eight, 8, i, &all, &own);
        CHECK(node == (size_t)i / 4, "%zu", node);
        CHECK(why == NULL && CPU_COUNT(&own) == 4, "rank %d: %s, %d", i, why, CPU_COUNT(&own));
        for (int c = 0; c < 16; c++)
            CHECK(!CPU_ISSET(c, &own) == !CPU_ISSET(c + 16, &own)
                      && (!CPU_ISSET(c, &own) || c / 8 == i / 4), "rank %d has %d", i, c);
        CPU_OR(&taken, &taken, &own);
    }
    CHECK(CPU_EQUAL(&taken, &all), "eight ranks have all hardware threads: %d", CPU_COUNT(&taken));
    int most = 0, fewest = 99, sum = 0;  // 3 and 3 and 2 cores
    for (int rank = 0; rank < 4; rank += rank == 0 ? 2 : 1) {
        CHECK(cpu_near(four, 4, rank, &all, &own) == NULL, "three ranks");
        const int n = CPU_COUNT(&own);
        if (n > most) most = n;
        if (n < fewest) fewest = n;
        sum += n;
    }
    CHECK(most == 6 && fewest == 4 && sum == 16, "%d, %d, %d", most, fewest, sum);
    CHECK(cpu_near(four, 4, 1, &all, &own) == NULL && CPU_COUNT(&own) == 16,
          "one rank has the node");
    const char *why = cpu_near(one, 2, 1, &all, &own);
    CHECK(why != NULL && strcmp(why, "some NUMA nodes have no GPU of this run") == 0, "%s", why);
}

static bool stays(size_t node, const cpu_set_t *allowed, const char *because) {
    cpu_set_t own;
    const size_t nodes[] = {node, node, node, node, node == 0 ? 1 : 0};
    const char *why = cpu_near(nodes, 5, 0, allowed, &own);
    if (why == NULL || strcmp(why, because) != 0)
        printf("  '%s'\n", why != NULL ? why : "moves");
    return why != NULL && strcmp(why, because) == 0;
}

static void ranks_stay_where_they_are(void) {
    const cpu_set_t all = range(0, 32), few = range(0, 8), socket = range(8, 16);
    two_sockets();
    CHECK(cpu_node("0000:99:00.0") == SIZE_MAX && stays(SIZE_MAX, &all, ""), "no such device");
    write_file("sys/bus/pci/devices/0000:1b:00.0/numa_node", "-1\n");
    CHECK(cpu_node("0000:1b:00.0") == SIZE_MAX, "a device of no node");
    write_file("sys/devices/system/node/node3/cpulist", "\n");
    CHECK(stays(3, &all, "the container has none of its node's hardware threads"), "of memory only");
    CHECK(stays(0, &few, "the process was started on chosen hardware threads"), "taskset");
    setenv("OMP_PLACES", "cores", 1);
    CHECK(stays(0, &all, "OMP_PLACES or OMP_PROC_BIND is set"), "OMP_PLACES");
    unsetenv("OMP_PLACES");
    setenv("OMP_PROC_BIND", "close", 1);
    CHECK(stays(1, &all, "OMP_PLACES or OMP_PROC_BIND is set"), "OMP_PROC_BIND");
    unsetenv("OMP_PROC_BIND");
    write_file("sys/fs/cgroup/cpuset.cpus.effective", "8-15\n");  // one socket without siblings
    CHECK(stays(0, &socket, "the container has none of its node's hardware threads"), "a cpuset");
    CHECK(stays(1, &socket, ""), "all that the cpuset has is of this node");
    write_file("sys/fs/cgroup/cpuset.cpus.effective", "6-15\n");
    const cpu_set_t both = range(6, 16);
    CHECK(stays(0, &both, "its node has fewer cores than ranks"), "two cores for four");
    cpu_set_t own;
    static const size_t five[] = {1, 1, 1, 1, 0};
    CHECK(cpu_near(five, 5, 3, &both, &own) == NULL && CPU_COUNT(&own) == 2, "a cpuset of both nodes");
    write_file("sys/fs/cgroup/cpuset.cpus.effective", "16-31\n");
    const cpu_set_t second = range(16, 32);  // of each core
    CHECK(cpu_near(five, 5, 3, &second, &own) == NULL && CPU_ISSET(30, &own) && CPU_ISSET(31, &own)
              && CPU_COUNT(&own) == 2, "second threads");
    write_file("sys/fs/cgroup/cpuset.cpus.effective", "0-31\n");
    write_file("sys/devices/system/node/node0/cpulist", "0-31\n");
    CHECK(stays(0, &all, ""), "one node");
    unsetenv("TIDE_MACHINE");
}

// All threads of the process move, those of a team that is there already, too.
static void threads_stay(void) {
    cpu_set_t before, own = range(0, 0), is;
    sched_getaffinity(0, sizeof before, &before);
    int first = 0;
    while (!CPU_ISSET(first, &before)) first++;
    CPU_SET(first, &own);
    #pragma omp parallel num_threads(3)
    (void)omp_get_thread_num();
    CHECK(cpu_stay(&own), "refused");
    int threads = 0, wrong = 0;
    DIR *all = opendir("/proc/self/task");
    for (struct dirent *t; all != NULL && (t = readdir(all)) != NULL;) {
        if (t->d_name[0] == '.') continue;
        threads++;
        wrong += sched_getaffinity(atoi(t->d_name), sizeof is, &is) != 0 || !CPU_EQUAL(&is, &own);
    }
    closedir(all);
    CHECK(threads > 0 && wrong == 0, "%d of %d threads", wrong, threads);
#ifdef _OPENMP
    CHECK(threads >= 3, "%d threads", threads);
#endif
    setenv("OMP_NUM_THREADS", "3", 1);  // as the launcher sets it, without a look at nodes
    CHECK(cpu_threads(0, 1) == 1 && cpu_threads(5, 1) == 5, "%d", cpu_threads(0, 1));
    unsetenv("OMP_NUM_THREADS");
    CHECK(cpu_threads(0, 4) == 1, "%d", cpu_threads(0, 4));
    cpu_stay(&before);
    CHECK(cpu_threads(0, 9999) == CPU_COUNT(&before), "as many as were kept: %d",
          cpu_threads(0, 9999));
    cpu_own = CPU_SETSIZE;
}

int main(void) {
    snprintf(base, sizeof base, "/tmp/test_machine.%d", (int)getpid());
    RUN(memory_that_is_there);
    RUN(memory_of_a_job);
    RUN(threads_of_a_process);
    RUN(ranks_are_near_their_gpu);
    RUN(ranks_stay_where_they_are);
    RUN(threads_stay);
    remove_tree(base);
    return test_summary();
}
