// files.h: a directory for the files of a test, and what is done with it. Include it after what it
// is to use: util.h.
#ifndef TIDE_TEST_FILES_H
#define TIDE_TEST_FILES_H
#include <dirent.h>
#include <sys/resource.h>
static char base[64];  // everything happens below this directory
static Error err;

static void base_new(const char *name) {
    snprintf(base, sizeof base, "/tmp/tide_%s_XXXXXX", name);
    if (mkdtemp(base) == NULL) fail("cannot make %s: %s", base, strerror(errno));
}

static char *in_base(const char *name) {  // a path that stays
    static char *paths[200];
    char path[PATH_MAX];
    path_join(path, base, name);
    for (int i = 0; i < 200; i++) {
        if (paths[i] == NULL) paths[i] = strdup(path);
        if (strcmp(paths[i], path) == 0) return paths[i];
    }
    die("too many paths");
}

static void put_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        fail("cannot write %s: %s", path, strerror(errno));
}

static void put_text(const char *path, const char *text) { put_bytes(path, text, strlen(text)); }

static bool same_file(const char *a, const char *b) {
    size_t n = 0, m = 0;
    char *x = file_read(a, &n, &err), *y = file_read(b, &m, &err);
    const bool same = x != NULL && y != NULL && n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

// The largest size that a file can reach by a write: a full disk. 0 takes the limit away.
static void limit_file_size(size_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void remove_tree(const char *path) {
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) printf("  cannot remove %s\n", path);
}

static int entries_in(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    if (d == NULL) return -1;
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

#endif
