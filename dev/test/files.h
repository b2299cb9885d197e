// files.h: a directory for the files of a test, and what is done with it. Include it after what it is
// to use: util.h, and dirent.h.
static char base[64];  // everything happens below this directory
static Error err;

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
