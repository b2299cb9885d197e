// memory.h: how much memory there is, and a trainer's plan of its own memory.
//
//   memory_available   returns the bytes that this process can still allocate
//   memory_container   returns the bytes that the limits of a container or a job leave
//   memory_held        returns the bytes that this process has, or had at most
//   Buffer             a line of a memory plan; buffer_set() sets its address
//   plan_print         prints a plan as a table
//   size_text          prints bytes for people
#ifndef TIDE_MEMORY_H
#define TIDE_MEMORY_H
#include "util.h"

// Returns the text after `key` in the first line that has it, in a file of /proc or /sys; "" if
// there is none. For tests, TIDE_MACHINE names a folder whose files describe another machine.
typedef struct { char text[PATH_MAX / 2]; } MachineText;

static MachineText machine_text(const char *path, const char *key) {
    MachineText rest = {""};
    char file[PATH_MAX], line[sizeof rest.text];
    const char *folder = getenv("TIDE_MACHINE");
    snprintf(file, sizeof file, "%s%s", folder != NULL ? folder : "", path);
    FILE *f = fopen(file, "r");
    while (rest.text[0] == '\0' && f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strstr(line, key) != NULL) strcpy(rest.text, strstr(line, key) + strlen(key));
    if (f != NULL) fclose(f);
    return rest;
}

// Returns the number after `key`, or SIZE_MAX if there is none.
static size_t machine_number(const char *path, const char *key) {
    size_t number = SIZE_MAX;
    sscanf(machine_text(path, key).text, "%zu", &number);
    return number;
}

// Returns the bytes that the limits of this process's control group, and of all groups above it,
// still allow. Containers, SLURM and systemd set such limits. SIZE_MAX: there is none. In a
// container, the group's name may be the one outside; then only the root's folder is found.
static size_t memory_container(void) {
    static const char root[] = "/sys/fs/cgroup";
    static const char *const files[3] = {"memory.max", "memory.current", "memory.stat"};
    const MachineText group = machine_text("/proc/self/cgroup", "0::");
    char folder[PATH_MAX / 2], path[PATH_MAX / 2 + 64], *end;
    size_t n[3], least = SIZE_MAX;
    snprintf(folder, sizeof folder, "%s%.*s/", root, (int)strcspn(group.text, "\n"), group.text);
    while ((end = strrchr(folder, '/')) >= folder + strlen(root)) {
        *end = '\0';
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, files[i]);
            n[i] = machine_number(path, i < 2 ? "" : "inactive_file ");
        }
        // Cached files count as used, but Linux drops them when memory is needed.
        const size_t used = n[2] == SIZE_MAX ? n[1] : n[1] > n[2] ? n[1] - n[2] : 0;
        if (n[0] < SIZE_MAX && n[1] < SIZE_MAX)
            least = min_size(least, n[0] - min_size(used, n[0]));
    }
    return least;
}

// Returns the bytes that this process can still allocate before the machine swaps: what Linux calls
// available, but at most memory_container(). SIZE_MAX if neither is known.
static size_t memory_available(void) {
    const size_t container = memory_container();
    const size_t kib = machine_number("/proc/meminfo", "MemAvailable:");
    return kib < container / 1024 ? kib * 1024 : container;
}

// Returns the bytes of memory that this process has now, or had at most; 0 if unknown.
static size_t memory_held(bool most) {
    const size_t kib = machine_number("/proc/self/status", most ? "VmHWM:" : "VmRSS:");
    return kib != SIZE_MAX ? kib * 1024 : 0;
}

// A line of a memory plan: the purpose of a buffer, its size, the pointer (of any type) to set to
// its address, and the kind of memory. The same list is printed, allocated and freed.
typedef struct { const char *purpose; size_t bytes; void *pointer; int kind; } Buffer;
enum { MAX_BUFFERS = 64 };

enum { BUFFER_ANY,      // device memory, not initialised
       BUFFER_ZERO,     // device memory, set to zero
       BUFFER_HOST };   // page-locked host memory, set to zero

static void buffer_set(const Buffer *b, void *p) { memcpy(b->pointer, &p, sizeof p); }

// Prints a table of what each of `world` ranks plans for a place ("host", or a device): a line for
// each purpose, like "GPU gradients 12.55", then "GPU total 40.10 of 79.00 GiB"; MiB if the total
// is below 1 GiB. "other" is padding, and purposes too small for a line. limit SIZE_MAX: none.
static void plan_print(const char *place, const Buffer *list, int n, size_t total, size_t limit,
                       size_t world) {
    const bool large = total >> 30 > 0;
    const double unit = large ? 1 << 30 : 1 << 20, least = large ? 0.005 : 0.05;
    const int digits = large ? 2 : 1;
    const char *name = large ? "GiB" : "MiB";
    const bool host = strcmp(place, "host") == 0;
    double rest = (double)total / unit;
    printf("%s memory%s, in %s\n", place, world > 1 ? " per rank" : "", name);
    for (int i = 0; i < n; i++) {
        double size = 0;
        int first = n;
        for (int j = n - 1; j >= 0; j--) {
            if (strcmp(list[i].purpose, list[j].purpose) != 0) continue;
            if ((list[j].kind == BUFFER_HOST) != host) continue;
            size += (double)list[j].bytes / unit;
            first = j;
        }
        if (first != i || size < least) continue;
        rest -= size;
        printf("%-4s %-20s %8.*f\n", place, list[i].purpose, digits, size);
    }
    if (rest >= least) printf("%-4s %-20s %8.*f\n", place, "other", digits, rest);
    printf("%-4s %-20s %8.*f", place, "total", digits, (double)total / unit);
    if (limit != SIZE_MAX) printf(" of %.*f", digits, (double)limit / unit);
    printf(" %s\n", name);
}

// Formats bytes as in that table: "67.15 GiB", "812.3 MiB". Rounds up, or to the nearest.
static NumberText size_text(size_t bytes, bool up) {
    const bool large = bytes >> 30 > 0;
    const double step = large ? (1 << 30) / 100.0 : (1 << 20) / 10.0, n = (double)bytes / step;
    const double whole = (double)(size_t)n;
    NumberText c;
    snprintf(c.text, sizeof c.text, large ? "%.2f GiB" : "%.1f MiB",
             (up && whole < n ? whole + 1 : n) / (large ? 100 : 10));
    return c;
}

#endif
