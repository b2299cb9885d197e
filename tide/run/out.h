// out.h: whose folder --out is. One run owns the folder as long as it lives (a lock), files that
// this program did not write are never replaced (a mark), and no output is an input.
//
//   out_is_written   does a run write into --out?
//   out_check_files  refuses outputs that are inputs, or cannot be written
//   out_check        refuses an --out that holds another run, or cannot be written
//   out_take         makes --out, and locks it
//   out_mark         marks what is in --out as written by this program
#ifndef TIDE_OUT_H
#define TIDE_OUT_H
#include "../base/util.h"
#include "../base/ranks.h"
#include "../files/state.h"
#include "../files/tokenizer.h"
#include "options.h"
#include <fnmatch.h>
#include <libgen.h>
#include <sys/file.h>

// One run owns --out: its processes hold a lock (flock) on the file .lock there, which the system
// takes back however they end. how: LOCK_EX, and then LOCK_SH to share it with other ranks. warns:
// says if that cannot be.
static void out_lock(const char *out, int *lock, int how, bool warns) {
    char path[PATH_MAX], owner[256] = "nobody knows which", host[128] = "";
    path_join(path, out, ".lock");
    if (*lock < 0) *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    const bool locked = *lock >= 0 && flock(*lock, how | LOCK_NB) == 0;
    if (*lock >= 0 && !locked && errno == EWOULDBLOCK) {
        (void)!pread(*lock, owner, sizeof owner - 1, 0);
        owner[strcspn(owner, "\n")] = '\0';
        die("--out %s belongs to a run that is still at work (%s): choose another --out", out,
            owner);
    }
    if (!locked && warns)
        fprintf(stderr, "tide: warning: %s cannot be locked (%s): nothing keeps a second run from "
                "writing there\n", path, strerror(errno));
    if (pread(*lock, owner, sizeof owner - 1, 0) > 0 && strncmp(owner, "process ", 8) != 0)
        die("--out %s holds .lock, which this program did not write there", out);
    gethostname(host, sizeof host - 1);
    if (how == LOCK_EX && ftruncate(*lock, 0) == 0 && lseek(*lock, 0, SEEK_SET) == 0)
        dprintf(*lock, "process %d on %s\n", (int)getpid(), host);
}

// The files that a run writes into --out: those that a resumed run replaces, the others of a model,
// the rest. `.tide` there is the mark that this program has written them: a line for each of a
// model, behind one that says whether they are being written.
enum { OUT_RESUMED = 5, OUT_MODEL = OUT_RESUMED + TOKENIZER_FILES, OUT_FILES = OUT_MODEL + 5 };
static const char *const out_files[OUT_FILES] = {
    "model.safetensors", "config.json", "best/model.safetensors", "best/config.json",
    "best/tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    "tokenizer.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "tokenizer.model",
    "log.jsonl", "log.jsonl.old", "loss.svg", "checkpoints", "best"};

// The files of a model and its tokenizer, whoever wrote them.
enum { MODEL_FILES = 11 };
static const char *const model_files[MODEL_FILES] = {
    "*.safetensors", "*.index.json", "*config.json", "tokenizer.*", "vocab.json", "merges.txt",
    "*_tokens.json", "*_map.json", "*.jinja", "*.gguf", "pytorch_model*"};

// The line of a file of `dir`: name, size, and hash of both ends. Empty if there is no such file.
static void out_mark_line(const char *dir, const char *name, char line[128]) {
    char path[PATH_MAX];
    struct stat s;
    size_t n = 0;
    uint64_t hash = 0;
    path_join(path, dir, name);
    line[0] = '\0';
    if (stat(path, &s) != 0) return;
    if (S_ISREG(s.st_mode) && s.st_size > 0) {
        const char *bytes = (const char *)file_map(path, &n);
        const size_t end = min_size(n, 1 << 16);
        hash = hash_bytes(bytes, end) + hash_words(n, bytes + n - end, end);
        munmap((void *)bytes, n);
    }
    snprintf(line, 128, "%.60s %zu %016" PRIx64 "\n", name, n, hash);
}

// Marks what is in --out as this program's; without room on the disk, there is no mark.
static void out_mark(const char *out, bool writing) {
    char path[PATH_MAX], line[128];
    Error err;
    path_join(path, out, ".tide");
    if (ranks.rank > 0) return;
    FILE *f = replace_open(path, &err);
    if (f != NULL) fputs(writing ? "writing\n" : "written\n", f);
    for (int i = 0; f != NULL && i < OUT_MODEL; i++) {
        out_mark_line(out, out_files[i], line);
        fputs(line, f);
    }
    if (f == NULL || !replace_close(f, path, &err)) unlink(path);  // no old one
}

// Refuses an --out that holds a model, or files of the names that a run writes, unless the mark
// says that this program wrote them. A resumed run is only refused for what it would replace.
static void out_check_owner(const char *out, bool resume) {
    char path[PATH_MAX], line[128], other[256] = "";
    Error err;
    size_t n;
    path_join(path, out, ".tide");
    char *mark = path_exists(path) ? file_read(path, &n, &err) : NULL;
    const bool writing = mark != NULL && strncmp(mark, "writing\n", 8) == 0;
    if (mark != NULL && !writing && strncmp(mark, "written\n", 8) != 0) strcpy(other, ".tide");
    for (int i = 0; i < (resume ? OUT_RESUMED : OUT_FILES); i++) {
        out_mark_line(out, out_files[i], line);
        if (line[0] == '\0' || writing || (resume && mark == NULL)) continue;
        if (mark == NULL || (i < OUT_MODEL && strstr(mark, line) == NULL))
            strcpy(other, out_files[i]);
    }
    DIR *dir = opendir(out);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        int ours = 0;
        while (ours < OUT_FILES && strcmp(out_files[ours], e->d_name) != 0) ours++;
        for (int i = 0; i < (resume ? 2 : MODEL_FILES) && ours == OUT_FILES; i++)
            if (fnmatch(model_files[i], e->d_name, 0) == 0) strcpy(other, e->d_name);
    }
    if (dir != NULL) closedir(dir);
    free(mark);
    if (other[0] != '\0')
        die("--out %s holds %s, which this program did not write there: %s another --out", out,
            other, resume ? "move it away, or begin in" : "choose");
}

// Refuses the output `to` of option number `row` (OPTION_COUNT: --out) if it is an input, another
// output, or a file of the model or the tokenizer, by whatever name.
static void out_check_file(const Options *o, int row, const char *to) {
    char name[64], other[64], home[PATH_MAX], path[PATH_MAX];
    snprintf(name, sizeof name, "--%s", row < OPTION_COUNT ? option_table[row].name : "out");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char *file = i != row ? option_file(o, i, O_READS) : NULL;
        const char *written = i != row ? option_file(o, i, O_WRITES) : NULL;
        snprintf(other, sizeof other, "--%s", option_table[i].name);
        output_check(name, to, other, file);
        if (written != NULL && (strcmp(written, to) == 0 || path_is_same(written, to)))
            die("%s and %s are one file, %s: name another one", name, other, to);
    }
    for (int i = 0; i < 2; i++) {
        const char *read = i == 0 ? o->model : o->tokenizer;
        if (read == NULL || !path_exists(read) || o->resume) continue;
        model_directory(read, home);
        for (int k = 0; k < MODEL_FILES; k++) {
            path_join(path, home, model_files[k]);
            output_check(name, to, i == 0 ? "--model" : "--tokenizer", path);
        }
    }
}

// Does this run write into --out?
static bool out_is_written(const Options *o) {
    return o->dump == NULL && !o->plan && !o->calibrate
        && (o->steps > 0 || (!o->resume && option_given(o, "out")));
}

// Refuses outputs that are inputs, or cannot be written, before anything is written.
static void out_check_files(const Options *o) {
    char path[PATH_MAX];
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char *file = option_file(o, i, O_WRITES);
        const char *name = option_table[i].name;
        if (file == NULL) continue;
        out_check_file(o, i, file);
        if (!path_is_writable(file)) die("--%s %s: %s", name, file, strerror(errno));
        if (!path_is_file(file)) die("--%s %s is no regular file", name, file);
        const char *slash = strrchr(file, '/'), *base = slash != NULL ? slash + 1 : file;
        for (int k = 0; k < OUT_MODEL; k++)
            if (strcmp(out_files[k], base) == 0 && path_exists(file))
                die("--%s %s would replace a model's file: name another one", name, file);
    }
    for (int i = 0; i < OUT_FILES && out_is_written(o); i++) {
        path_join(path, o->out, out_files[i]);
        out_check_file(o, OPTION_COUNT, path);
    }
}

// Refuses an --out that holds another run or cannot be written. Locks one that a run had before.
static void out_check(const Options *o, int *lock) {
    char path[PATH_MAX];
    struct stat s;
    if (!out_is_written(o) || ranks.rank > 0) return;
    const bool saved = state_newest(o->out, SIZE_MAX, false) > 0;
    path_join(path, o->out, ".lock");
    const bool used = o->resume || path_exists(path);
    if (o->resume && !saved && !path_exists(path)) return;  // state_find() says it
    if (o->resume || !saved) out_check_owner(o->out, o->resume);
    snprintf(path, sizeof path, "%s", o->out);
    const char *there = path;  // --out, or the folder above it that exists
    for (errno = 0; lstat(there, &s) != 0 && errno == ENOENT; errno = 0) there = dirname(path);
    if (errno == 0 && !path_is_directory(there)) errno = ENOTDIR;
    if (errno != 0 || access(there, W_OK | X_OK) != 0)
        die("--out %s: cannot make or write this directory: %s", o->out, strerror(errno));
    if (used) out_lock(o->out, lock, LOCK_EX, false);
    if (!o->resume && saved)
        die("%s holds the checkpoints of an earlier run: continue it with --resume, or choose "
            "another --out", o->out);
}

// Makes --out, and locks it, before anything is written there: a run that was refused before has
// left nothing. All ranks then hold the lock of rank 0, and see in --out what it has written there,
// its lock. All call it.
static void out_take(const Options *o, int *lock) {
    char mine[256] = "", first[256];
    if (!out_is_written(o)) return;
    if (ranks.rank == 0) {
        if (!o->resume) out_check(o, lock);  // another run may have had it since
        if (!make_directories(o->out))
            die("--out %s: cannot make or write this directory: %s", o->out, strerror(errno));
        out_lock(o->out, lock, LOCK_EX, true);
        if (!o->resume) out_mark(o->out, true);
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
