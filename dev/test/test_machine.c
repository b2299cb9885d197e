// test_machine: how much memory there is (util.h) and which cores a rank's threads get (cores.h),
// on machines that are made up as folders with files of /proc and /sys.
#include "../../tide/cores.h"
#include <dirent.h>
#include "files.h"
#include "test.h"

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

// Sockets of `cores` cores of one or two hardware threads: their numbers are neighbours, or, as on
// most servers, those of the second ones follow all first ones.
static void build(CoresMachine *m, int sockets, int cores, int smt, bool neighbours) {
    char name[128], text[128];
    const int all = sockets * cores;
    new_machine();
    snprintf(text, sizeof text, "0-%d\n", all * smt - 1);
    write_file("sys/devices/system/cpu/online", text);
    for (int c = 0; c < all; c++) {
        const int first = neighbours ? smt * c : c, second = neighbours ? 2 * c + 1 : all + c;
        for (int k = 0; k < smt; k++) {
            snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/"
                     "thread_siblings_list", k == 0 ? first : second);
            snprintf(text, sizeof text, smt == 1 ? "%d\n" : neighbours ? "%d-%d\n" : "%d,%d\n",
                     first, second);
            write_file(name, text);
        }
    }
    snprintf(text, sizeof text, "0-%d\n", sockets - 1);
    write_file("sys/devices/system/node/online", text);
    for (int s = 0; s < sockets; s++) {
        const int from = s * cores;
        snprintf(name, sizeof name, "sys/devices/system/node/node%d/cpulist", s);
        if (smt == 2 && !neighbours)
            snprintf(text, sizeof text, "%d-%d,%d-%d\n", from, from + cores - 1, all + from,
                     all + from + cores - 1);
        else
            snprintf(text, sizeof text, "%d-%d\n", smt * from, smt * (from + cores) - 1);
        write_file(name, text);
    }
    cores_read(m);
}

// So many ranks with these GPUs' nodes, which differ in nothing else.
enum { RANKS = 16 };
static CoresRank ranks[RANKS];
static void with_ranks(CoresMachine *m, int world, const int *nodes) {
    memset(ranks, 0, sizeof ranks);
    for (int p = 0; p < world; p++) ranks[p].node = nodes[p];
    m->ranks = ranks;
    m->world = world;
    m->rank = 0;
}

static void read_list(const char *text, cpu_set_t *set) {
    write_file("list", text);
    if (!cpu_list_read("/list", set)) die("%s", text);
}

// Is this set the one that Linux would write so?
static bool is(const cpu_set_t *set, const char *text) {
    cpu_set_t want;
    read_list(text, &want);
    if (CPU_EQUAL(set, &want)) return true;
    printf("  not %s but ", text);
    cpu_list_print(set);
    printf("\n");
    return false;
}

static Cores alone(CoresMachine *m, int node, int asked, int most) {
    with_ranks(m, 1, &node);
    return cores_deal(m, asked, most);
}

static void lists_are_read(void) {
    cpu_set_t set;
    new_machine();
    read_list("0-3,8,10-11\n", &set);
    CHECK(CPU_COUNT(&set) == 7, "%d", CPU_COUNT(&set));
    for (size_t c = 0; c < 20; c++)
        CHECK(!CPU_ISSET(c, &set) == !(c < 4 || c == 8 || c == 10 || c == 11), "%zu", c);
    CHECK(!cpu_list_read("/none", &set) && CPU_COUNT(&set) == 0, "no file");
    read_list("\n", &set);
    CHECK(CPU_COUNT(&set) == 0, "a node without cores");
}

static void a_core_is_left_where_there_are_many(void) {
    static const struct { int cores, threads; const char *team; } of[] = {
        {1, 1, "0"}, {2, 2, "0-1"}, {4, 4, "0-3"}, {5, 4, "1-4"}, {16, 15, "1-15"}};
    CoresMachine m;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        build(&m, 1, of[i].cores, 1, false);
        const Cores x = alone(&m, 0, 0, 0);
        CHECK(x.threads == of[i].threads && x.bound && is(&x.team, of[i].team), "%d threads on %d",
              x.threads, of[i].cores);
        CHECK(x.node == 0 && x.near == 1 && !x.divided && CPU_COUNT(&x.share) == of[i].cores,
              "%d cores", of[i].cores);
    }
}

static void a_second_hardware_thread_is_enough(void) {
    CoresMachine m;
    build(&m, 1, 8, 2, true);  // 16 CPUs of a virtual machine that are 8 cores
    Cores x = alone(&m, -1, 0, 0);
    CHECK(x.threads == 8 && x.bound && x.node == -1, "%d", x.threads);
    CHECK(is(&x.team, "0,2,4,6,8,10,12,14") && is(&x.share, "0-15"), "team");
    x = alone(&m, 0, 16, 0);
    CHECK(x.threads == 16 && x.bound && is(&x.team, "0-15"), "one on each hardware thread");
    read_list("1,3,5,7,9,11", &m.allowed);  // the other hardware threads are somebody else's
    x = alone(&m, 0, 0, 0);
    CHECK(x.threads == 5 && x.bound && is(&x.team, "3,5,7,9,11"), "%d", x.threads);
}

static void what_is_asked_for_is_taken(void) {
    static const struct { int asked, most, threads; bool bound; const char *team; } of[] = {
        {8, 0, 8, true, "0-7"}, {7, 0, 7, true, "1-7"}, {6, 0, 6, false, "0-7"},
        {9, 0, 9, false, "0-7"}, {1, 0, 1, false, "0-7"}, {0, 3, 3, false, "0-7"},
        {0, 8, 7, true, "1-7"}, {8, 3, 8, true, "0-7"}};
    CoresMachine m;
    build(&m, 1, 8, 1, false);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const Cores x = alone(&m, 0, of[i].asked, of[i].most);
        CHECK(x.threads == of[i].threads && x.bound == of[i].bound && is(&x.team, of[i].team),
              "--threads %d, OMP_NUM_THREADS %d: %d", of[i].asked, of[i].most, x.threads);
    }
}

static void eight_gpus_of_two_sockets(void) {
    static const int nodes[8] = {0, 0, 1, 1, 0, 0, 1, 1};
    static const char *const team[8] = {"0-11", "12-23", "48-59", "60-71", "24-35", "36-47",
                                        "72-83", "84-95"};
    CoresMachine m;
    build(&m, 2, 48, 2, false);
    with_ranks(&m, 8, nodes);
    for (m.rank = 0; m.rank < 8; m.rank++) {
        const Cores x = cores_deal(&m, 0, 0);
        CHECK(x.threads == 12 && x.bound && is(&x.team, team[m.rank]), "rank %d: %d", m.rank,
              x.threads);
        CHECK(x.node == nodes[m.rank] && x.near == 4 && x.divided && CPU_COUNT(&x.share) == 24,
              "rank %d: %d of %d", m.rank, CPU_COUNT(&x.share), x.near);
    }
    build(&m, 2, 48, 1, false);  // without second hardware threads one core is left
    with_ranks(&m, 8, nodes);
    m.rank = 3;
    const Cores x = cores_deal(&m, 0, 0);
    CHECK(x.threads == 11 && x.bound && is(&x.team, "61-71") && is(&x.share, "60-71"), "%d",
          x.threads);
}

static void ranks_of_other_machines_take_nothing(void) {
    static const int nodes[4] = {0, 0, 0, 0};
    CoresMachine m;
    build(&m, 1, 16, 1, false);
    with_ranks(&m, 4, nodes);
    ranks[0].machine = ranks[2].machine = 1;
    m.rank = 2;
    Cores x = cores_deal(&m, 0, 0);
    CHECK(x.near == 2 && is(&x.team, "9-15"), "half");
    m.quota = 8;  // of two
    x = cores_deal(&m, 0, 0);
    CHECK(x.threads == 4 && !x.bound && is(&x.team, "8-15"), "%d", x.threads);
}

static void what_a_launcher_has_bound_is_not_divided(void) {
    static const int nodes[4] = {0, 0, 1, 1};
    static const char *const own[4] = {"0-3,16-19", "4-7", "8-15", "8-15"};
    static const char *const team[4] = {"0-3", "4-7", "8-11", "12-15"};
    CoresMachine m;
    build(&m, 2, 8, 2, false);
    with_ranks(&m, 4, nodes);
    for (int p = 0; p < 4; p++) {
        cpu_set_t set;
        read_list(own[p], &set);
        ranks[p].allowed = cores_hash(0, &set, sizeof set);
    }
    for (m.rank = 0; m.rank < 4; m.rank++) {
        read_list(own[m.rank], &m.allowed);
        const Cores x = cores_deal(&m, 0, 0);
        CHECK(x.threads == 4 && x.bound && is(&x.team, team[m.rank]), "rank %d: %d", m.rank,
              x.threads);
        CHECK(x.divided == (m.rank > 1), "rank %d", m.rank);
    }
}

static void nodes_that_do_not_help(void) {
    static const int unknown[2] = {0, -1}, no_core[2] = {1, 0}, no_such[2] = {7, 0};
    CoresMachine m;
    build(&m, 2, 4, 1, false);
    for (int i = 0; i < 3; i++) {
        with_ranks(&m, 2, i == 0 ? unknown : i == 1 ? no_core : no_such);
        if (i == 1) read_list("0-3", &m.allowed);  // of a container
        if (i == 2) read_list("0-7", &m.allowed);
        const char *const team[2] = {i == 1 ? "0-1" : "0-3", i == 1 ? "2-3" : "4-7"};
        for (m.rank = 0; m.rank < 2; m.rank++) {
            const Cores x = cores_deal(&m, 0, 0);
            CHECK(x.node == -1 && x.near == 2 && x.bound && is(&x.team, team[m.rank]), "%d: %d", i,
                  m.rank);
        }
    }
    const Cores x = alone(&m, 1, 0, 0);
    CHECK(x.node == 1 && is(&x.team, "4-7") && is(&x.share, "4-7"), "alone");
    CPU_ZERO(&m.allowed);  // a machine with more CPUs than a set has
    CHECK(alone(&m, 0, 0, 0).threads == 1 && !alone(&m, 0, 0, 0).bound, "no core is known");
}

static void quotas(void) {
    static const struct { const char *text; double cpus; } files[] = {
        {"max 100000\n", CPU_SETSIZE}, {"1600000 100000\n", 16}, {"250000 100000\n", 2.5},
        {"50000 100000\n", 0.5}, {"", CPU_SETSIZE}, {"7 0\n", CPU_SETSIZE}, {"100000 100000\n", 1}};
    CoresMachine m;
    build(&m, 1, 16, 2, false);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_file("sys/fs/cgroup/cpu.max", files[i].text);
        CHECK(cores_quota() == files[i].cpus, "\"%s\": %g", files[i].text, cores_quota());
    }
    write_file("sys/fs/cgroup/cpu.max", "150000 100000\n");
    cores_read(&m);
    Cores x = alone(&m, 0, 0, 0);
    CHECK(x.threads == 1 && !x.bound && is(&x.team, "0-31"), "%d", x.threads);
    m.quota = 0.5;
    CHECK(alone(&m, 0, 0, 0).threads == 1, "half a CPU");
    m.quota = 8;
    x = alone(&m, 0, 0, 0);
    CHECK(x.threads == 7 && !x.bound, "one is left of the time: %d", x.threads);
    m.quota = 16;
    x = alone(&m, 0, 0, 0);
    CHECK(x.threads == 15 && x.bound, "no time for second hardware threads: %d", x.threads);
    m.quota = 16.5;
    x = alone(&m, 0, 8, 0);
    CHECK(x.threads == 8, "--threads is more than a quota: %d", x.threads);
}

// On many machines: no two ranks have the same core or hardware thread, every team is on cores of
// its own, near its GPU, and as large as it may be.
static void none_is_given_twice(void) {
    uint64_t random = 1;
    int bound = 0;
    CoresMachine m;
    build(&m, 1, 1, 1, false);  // the rest of it is filled in here: a folder per CPU takes long
    m.quota = CPU_SETSIZE;
    for (int i = 0; i < 400; i++) {
        int of[5], nodes[RANKS];
        for (int k = 0; k < 5; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            of[k] = (int)(random >> 40);
        }
        const int sockets = 1 + of[0] % 3, cores = 1 + of[1] % 20, smt = 1 + of[2] % 2;
        const int world = 1 + of[3] % RANKS, all = sockets * cores;
        CPU_ZERO(&m.allowed);
        for (int c = 0; c < all * smt; c++) {
            CPU_SET((size_t)c, &m.allowed);
            m.core[c] = c % all;
            m.node[c] = c % all / cores;
        }
        for (int p = 0; p < world; p++) nodes[p] = (of[4] >> p) % sockets;
        with_ranks(&m, world, nodes);
        cpu_set_t taken, teams, both;
        int given = 0;
        CPU_ZERO(&taken);
        CPU_ZERO(&teams);
        for (m.rank = 0; m.rank < world; m.rank++) {
            int near = 0;
            for (int p = 0; p < world; p++) near += nodes[p] == nodes[m.rank];
            const Cores x = cores_deal(&m, 0, 0);
            CHECK(x.near == near && x.node == nodes[m.rank], "%d: rank %d", i, m.rank);
            CPU_AND(&both, &x.team, &x.share);
            CHECK(CPU_EQUAL(&both, &x.team), "%d: rank %d", i, m.rank);
            for (size_t c = 0; c < CPU_SETSIZE; c++)
                CHECK(!CPU_ISSET(c, &x.share) || m.node[c] == nodes[m.rank], "%d: far", i);
            if (!x.bound) {
                CHECK(x.threads == 1 && cores < 2 * near, "%d: %d of %d", i, cores, near);
                continue;
            }
            bound++;
            CHECK(near == 1 || cores >= 2 * near, "%d: %d of %d", i, cores, near);
            CPU_AND(&both, &taken, &x.share);
            CHECK(CPU_COUNT(&both) == 0, "%d: rank %d shares", i, m.rank);
            CPU_OR(&taken, &taken, &x.share);
            CPU_OR(&teams, &teams, &x.team);
            CHECK(CPU_COUNT(&x.team) == x.threads, "%d: rank %d", i, m.rank);
            CHECK(x.threads + 1 >= cores / near && x.threads <= (cores + near - 1) / near,
                  "%d: %d threads of %d cores for %d", i, x.threads, cores, near);
            given += x.threads;
        }
        CHECK(CPU_COUNT(&teams) == given, "%d: %d", i, given);
        for (size_t c = 0; c < CPU_SETSIZE; c++)
            for (size_t d = 0; d < c; d++)
                CHECK(!CPU_ISSET(c, &teams) || !CPU_ISSET(d, &teams) || m.core[c] != m.core[d],
                      "%d: %zu and %zu are one core", i, c, d);
    }
    CHECK(bound > 100, "%d", bound);
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

int main(void) {
    snprintf(base, sizeof base, "/tmp/test_machine.%d", (int)getpid());
    RUN(lists_are_read);
    RUN(a_core_is_left_where_there_are_many);
    RUN(a_second_hardware_thread_is_enough);
    RUN(what_is_asked_for_is_taken);
    RUN(eight_gpus_of_two_sockets);
    RUN(ranks_of_other_machines_take_nothing);
    RUN(what_a_launcher_has_bound_is_not_divided);
    RUN(nodes_that_do_not_help);
    RUN(quotas);
    RUN(none_is_given_twice);
    RUN(memory_that_is_there);
    remove_tree(base);
    return test_summary();
}
