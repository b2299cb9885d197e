// out.h: the folder --out. Nothing that exists is overwritten: a new run needs an --out that is
// empty or not there; --resume needs one with a run in it. A run that is under way holds a lock.
//
//   out_is_written   does this run write to --out?
//   out_check        refuses an --out with files in it, and other outputs that exist
//   out_take         makes --out, and locks it
#ifndef TIDE_OUT_H
#define TIDE_OUT_H
#include "../files/state.h"
#include "options.h"
#include <sys/file.h>

// Locks --out for a run. Its processes hold a lock (flock) on the file .lock there; the system
// releases it, however they end. how: LOCK_EX, and then LOCK_SH to share it with other ranks.
// warns: print a warning if no lock is possible.
static void out_lock(const char *out, int *lock, int how, bool warns) {
    char path[PATH_MAX], owner[256] = "", host[128] = "";
    path_join(path, out, ".lock");
    if (*lock < 0) *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    const ssize_t n = *lock >= 0 ? pread(*lock, owner, sizeof owner - 1, 0) : 0;
    owner[strcspn(owner, "\n")] = '\0';
    const bool locked = *lock >= 0 && flock(*lock, how | LOCK_NB) == 0;
    if (*lock >= 0 && !locked && errno == EWOULDBLOCK)
        die("--out %s belongs to a run that is still at work (%s): wait for its end, or choose "
            "another --out", out, n > 0 ? owner : "nobody knows which");
    if (!locked && warns)
        fprintf(stderr, "tide: warning: %s cannot be locked (%s): nothing keeps a second run from "
                "writing there\n", path, strerror(errno));
    if (n > 0 && strncmp(owner, "process ", min_size((size_t)n, 8)) != 0)  // it may be cut short
        die("--out %s holds .lock, which this program did not write there", out);
    gethostname(host, sizeof host - 1);
    if (how == LOCK_EX && ftruncate(*lock, 0) == 0 && lseek(*lock, 0, SEEK_SET) == 0)
        dprintf(*lock, "process %d on %s\n", (int)getpid(), host);
}

// Does this run write to --out? With --no-save, it writes its log if --out is given.
static bool out_is_written(const Options *o) {
    const bool given = option_given(o, "out");
    return o->dump == NULL && !o->plan && !o->calibrate
        && (o->steps > 0 ? given || !o->no_save : given && !o->resume && !o->no_save);
}

// Ends a new run if its --out has other files than .lock. used: .lock is from an earlier run. If
// that run was stopped before it saved weights, --resume auto begins it again.
static void out_check_empty(const Options *o, bool used) {
    char name[256] = "";
    bool begun = used;
    DIR *dir = opendir(o->out);
    if (dir == NULL && errno != ENOENT)
        die("--out %s: cannot make or write this directory: %s", o->out, strerror(errno));
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0
            && strcmp(e->d_name, ".lock") != 0) snprintf(name, sizeof name, "%s", e->d_name);
        begun = begun && strcmp(e->d_name, "config.json") != 0
             && fnmatch("*.safetensors*", e->d_name, 0) != 0;
    }
    if (dir != NULL) closedir(dir);
    if (name[0] == '\0' || (o->resume_auto && begun)) return;
    if (begun || state_newest(o->out, SIZE_MAX, false) > 0)
        die("--out %s holds an earlier run: go on with it by --resume auto, or choose another "
            "--out", o->out);
    die("--out %s holds %s, and nothing is overwritten: choose another --out, new or empty", o->out,
        name);
}

// Refuses outputs that exist, and an --out of another run, before anything is computed. Locks an
// --out that was used before. Rank 0 decides for all ranks.
static void out_check(const Options *o, int *lock) {
    char path[PATH_MAX];
    const bool tuned = o->tune != NULL && path_exists(o->tune);  // this file is read
    const struct { const char *option, *path; } outputs[] = {
        {"--dump", o->dump}, {"--scores", o->scores}, {"--trace", o->trace},
        {"--rates", o->calibrate ? o->rates : NULL}, {"--tune", tuned ? NULL : o->tune}};
    if (ranks.rank > 0) return;
    for (int i = 0; i < 5; i++) {
        output_check(outputs[i].option, outputs[i].path);
        for (int k = 0; k < i && outputs[i].path != NULL; k++)
            if (outputs[k].path != NULL && strcmp(outputs[i].path, outputs[k].path) == 0)
                die("%s and %s name one file, %s: name another", outputs[k].option,
                    outputs[i].option, outputs[i].path);
    }
    if (!out_is_written(o)) return;
    if (strlen(o->out) > PATH_MAX - 200) die("--out: a path of more than %d bytes", PATH_MAX - 200);
    path_join(path, o->out, ".lock");
    const bool used = path_exists(path);
    if (o->resume && !used && state_newest(o->out, SIZE_MAX, false) == 0)
        return;  // state_find() prints the error
    if (o->resume || used) out_lock(o->out, lock, LOCK_EX, false);
    if (!o->resume) out_check_empty(o, used);
}

// Makes and locks --out: after all checks that may refuse a run, and before anything is written
// there. All ranks must call it. They share the lock of rank 0, and must see its lock file in their
// --out.
static void out_take(const Options *o, int *lock) {
    char mine[256] = "", first[256];
    if (!out_is_written(o)) return;
    if (ranks.rank == 0) {
        const bool owned = *lock >= 0;
        if (!make_directories(o->out) || access(o->out, W_OK | X_OK) != 0)
            die("--out %s: cannot make or write this directory: %s", o->out, strerror(errno));
        out_lock(o->out, lock, LOCK_EX, true);
        if (!owned && !o->resume) out_check_empty(o, false);  // another run may have begun since
    }
    if (ranks.world == 1) return;
    if (ranks.rank == 0) out_lock(o->out, lock, LOCK_SH, false);
    ranks_barrier();
    if (ranks.rank > 0) out_lock(o->out, lock, LOCK_SH, true);
    (void)!pread(*lock, mine, sizeof mine - 1, 0);
    memcpy(first, mine, sizeof first);
    ranks_broadcast(first, sizeof first);
    if (strcmp(mine, first) != 0)
        die("--out %s is not rank 0's: it must be in a file system that all ranks share", o->out);
    ranks_barrier();
}

#endif
