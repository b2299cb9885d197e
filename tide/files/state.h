// state.h: training runs on disk, as checkpoints.
//
//   state_save    writes a new checkpoint of a run
//   state_prune   removes the oldest checkpoints when there are more than --keep
//   state_find    finds the newest whole checkpoint
//   state_load    reads the state of a checkpoint that was found
//   state_newest  finds the newest step; removes files of processes that were killed
//   state_model   writes the weights of a checkpoint as a model
//   state_agree   have all ranks succeeded?
//
// A checkpoint gets its name when it is complete and flushed.
#ifndef TIDE_STATE_H
#define TIDE_STATE_H
#include "hf.h"
#include <dirent.h>

// ---------------------------------------------------------------------------------------------
// 1. Training state
//
// OUT/checkpoints/step_N/ holds two files. state.safetensors has every tensor of every part, in our
// own names and layout, without padding: PART.NAME, where PART is param, m, v or shown. state.txt
// has lines "name value": numbers, the hashes of the tensors, lines of the optimizer, the run's
// options; and a hash of all these lines. The directory is named tmp_N until it is complete.
//
// Several ranks save the same file that one process would write, each its own part. Rank 0 makes
// the file, and renames it when all have flushed. An error on one rank is an error on all. All
// ranks call the functions whose comments demand it, at the same point.

// The parts of a parameter's state: the newest weight; AdamW's m and v; and, for ZenFlow, the
// weight that the GPU uses.
enum { STATE_PARTS = 4 };
static const char *const state_parts[STATE_PARTS] = {"param.", "m.", "v.", "shown."};

// The checkpoint with the lowest validation loss (--keep-best), the loss, and the hash of the
// validation data. step 0: there is none.
typedef struct { size_t step; double loss; uint64_t data; } StateBest;

// Loss scaling (run.h): the factor, 0 before the first one; steps since the last overflow; steps
// that were skipped for an overflow.
typedef struct { double scale; uint64_t good, skipped; } LossScale;

typedef struct {
    uint64_t version;        // STATE_VERSION
    size_t step;             // steps done
    uint64_t seed;
    uint64_t data_position;  // the position of the next sequence
    uint64_t data_hash;      // the hash of the training data (data_hash() or task_hash())
    GPT2Config config;
    uint64_t products;       // the hash of the --tune file; 0: none
    StateBest best;
    LossScale scaling;
    char options[4096];      // the run's options, one a line (options.h)
    char *text;              // after loading: all of state.txt. For saving: the optimizer's lines,
                             // which begin with "optimizer"; NULL: it has none
} TrainState;

enum { STATE_VERSION = 10 };

// The numbers in state.txt, in the order of their lines.
#define STATE_FIELD(field) {#field, offsetof(TrainState, field), sizeof ((TrainState *)0)->field}
static const struct { const char *name; size_t at, size; } state_fields[] = {
    STATE_FIELD(version), STATE_FIELD(step), STATE_FIELD(seed), STATE_FIELD(data_position),
    STATE_FIELD(data_hash), STATE_FIELD(config.layers), STATE_FIELD(config.heads),
    STATE_FIELD(config.channels), STATE_FIELD(config.context), STATE_FIELD(config.vocab),
    STATE_FIELD(config.ffn), STATE_FIELD(config.family), STATE_FIELD(config.activation),
    STATE_FIELD(config.tied), STATE_FIELD(products), STATE_FIELD(config.embed),
    STATE_FIELD(best.step), STATE_FIELD(best.loss), STATE_FIELD(best.data),
    STATE_FIELD(scaling.scale), STATE_FIELD(scaling.good), STATE_FIELD(scaling.skipped),
    STATE_FIELD(config.kv_heads), STATE_FIELD(config.head_size), STATE_FIELD(config.rms),
    STATE_FIELD(config.norm_eps), STATE_FIELD(config.unbiased), STATE_FIELD(config.qk_norm),
    STATE_FIELD(config.rope.theta), STATE_FIELD(config.rope.scaling),
    STATE_FIELD(config.rope.factor), STATE_FIELD(config.rope.low), STATE_FIELD(config.rope.high),
    STATE_FIELD(config.rope.original), STATE_FIELD(config.window), STATE_FIELD(config.unturned)};
enum { STATE_FIELDS = sizeof state_fields / sizeof state_fields[0] };

// Removes a checkpoint's files and its directory; if `path` is a symbolic link, only the link. If
// the directory has other files, it stays, and stderr names it.
static void checkpoint_remove(const char *path) {
    static const char *const files[] = {"state.txt", "state.safetensors", "state.txt.tmp",
                                        "state.safetensors.tmp"};
    char file[PATH_MAX];
    struct stat s;
    const bool link = lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
    for (int i = 0; i < 4 && !link; i++) {
        path_join(file, path, files[i]);
        unlink(file);
    }
    if ((link ? unlink(path) : rmdir(path)) != 0 && errno != ENOENT)
        fprintf(stderr, "tide: cannot remove %s: %s\n", path, strerror(errno));
}

// Writes the path of the checkpoint of a step.
static void state_path(char path[PATH_MAX], const char *out, size_t step) {
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step_%08zu", step);
    path_join(path, out, name);
}

// Returns the step of the newest checkpoint before step `before`, or 0. With `clean`, also removes
// the directories tmp_* of processes that were killed.
static size_t state_newest(const char *out, size_t before, bool clean) {
    char all[PATH_MAX], path[PATH_MAX], end;
    size_t newest = 0, step;
    path_join(all, out, "checkpoints");
    DIR *d = opendir(all);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (sscanf(e->d_name, "step_%zu%c", &step, &end) == 1 && step > newest && step < before)
            newest = step;
        if (!clean || strncmp(e->d_name, "tmp", 3) != 0) continue;
        path_join(path, all, e->d_name);
        checkpoint_remove(path);
    }
    if (d != NULL) closedir(d);
    return newest;
}

// Have all ranks succeeded? If not, err becomes the error of the first rank that failed, on all
// ranks. All ranks must call it.
static bool state_agree(bool ok, Error *err) {
    Error *all = ALLOC(Error, (size_t)ranks.world, "answers"), none = {""};
    int failed = 0, first = 0;
    ranks_exchange(ok ? &none : err, sizeof none, all);
    for (int i = ranks.world - 1; i >= 0; i--) {
        if (all[i].text[0] == '\0') continue;
        failed++;
        first = i;
    }
    if (failed == ranks.world) *err = all[0];  // all have failed: no rank is named
    else if (failed > 0) error_set(err, "%.480s (rank %d)", all[first].text, first);
    free(all);
    return failed == 0;
}

// ---------------------------------------------------------------------------------------------
// 2. Is it whole?

// Parses state.txt, n bytes. *s owns the text from here on, also after an error.
static bool state_parse(char *text, size_t n, TrainState *s, Error *err) {
    const GPT2Config *c = &s->config;
    const size_t end = seal_find(text, n);
    memset(s, 0, sizeof *s);
    s->text = text;
    if (end == SIZE_MAX) return error_set(err, "state.txt is not what was written");
    bool ok = text_line(text, "hashes") != NULL;
    for (int i = 0; i < STATE_FIELDS; i++) {
        const char *number = text_line(text, state_fields[i].name);
        char *rest = NULL;
        const uint64_t value = number != NULL ? strtoull(number, &rest, 10) : 0;
        ok = ok && number != NULL && *number == ' ' && *rest == '\n';
        memcpy((char *)s + state_fields[i].at, &value, state_fields[i].size);
    }
    const char *options = strstr(text, "\n--");
    const size_t length = options != NULL ? (size_t)(text + end - options) - 1 : 0;
    if (s->version != STATE_VERSION)
        return error_set(err, "state.txt is of version %" PRIu64 "; this program reads %d",
                         s->version, STATE_VERSION);
    if (!ok || length >= sizeof s->options || (unsigned)c->family >= FAMILIES
        || (unsigned)c->activation > ACTIVATION_SILU || (unsigned)c->tied > 1)
        return error_set(err, "state.txt lacks a field");
    if (options != NULL) memcpy(s->options, options + 1, length);
    return gpt2_finish(&s->config, err);
}

static bool state_read(const char *dir, TrainState *s, Error *err) {
    char path[PATH_MAX];
    size_t n = 0;
    path_join(path, dir, "state.txt");
    char *text = file_read(path, &n, err);
    return text != NULL && state_parse(text, n, s, err);
}

// Does tensor i of a state file have the hash in state.txt? The header belongs to tensor 0.
static bool state_intact(const SafeTensors *st, int i, const TrainState *s, Error *err) {
    enum { CHUNK = 1 << 12 };
    const unsigned char *start = (const unsigned char *)st->map, *data = st->tensors[i].data;
    const unsigned char *from = i > 0 ? data : start, *end = data + st->tensors[i].bytes;
    const char *hashes = text_line(s->text, "hashes");
    uint64_t sum = 0;
    char digits[18];
    #pragma omp parallel for reduction(+ : sum) if (end - from > 1 << 20)
    for (const unsigned char *at = from; at < end; at += CHUNK)
        sum += hash_words((uint64_t)(at - start), at, min_size(CHUNK, (size_t)(end - at)));
    snprintf(digits, sizeof digits, " %016" PRIx64, sum);
    return (strcspn(hashes, "\n") == 17 * (size_t)st->count
            && memcmp(digits, hashes + 17 * i, 17) == 0)
        || error_set(err, "%.100s in state.safetensors is not what was written",
                     st->tensors[i].name);
}

static bool state_open(const char *dir, SafeTensors *st, Error *err) {
    char path[PATH_MAX];
    path_join(path, dir, "state.safetensors");
    return safetensors_open(st, path, err)
        && (st->count > 0 || error_set(err, "%.400s is empty", path));
}

// Reads a checkpoint's state.txt into *s. Checks the header of state.safetensors and the hash of
// tensor 0. If state.txt has lines of the optimizer, checks the hashes of all tensors, because
// these lines are used before tensors are loaded.
static bool state_check(const char *dir, TrainState *s, Error *err) {
    SafeTensors st;
    if (!state_read(dir, s, err)) return false;
    bool ok = state_open(dir, &st, err);
    const bool all = text_line(s->text, "optimizer") != NULL;
    for (int i = 0; ok && i < st.count && (all || i == 0); i++) ok = state_intact(&st, i, s, err);
    safetensors_close(&st);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// 3. Saving it

typedef struct {
    const char *out;         // the checkpoint is OUT/checkpoints/step_N
    const GPT2Table *table;
    const RunState *here;
    int keep;                // how many checkpoints stay, with this one; 0: all
    TrainState state;
} StateSave;

// Makes the text of state.txt, of *n bytes, to be freed.
static char *state_describe(const StateSave *save, const SafeWriter *file, size_t *n) {
    char *text = NULL;
    FILE *f = text_open(&text, n);
    const TrainState *s = &save->state;
    fprintf(f, "version %d\n", STATE_VERSION);
    for (int i = 1; i < STATE_FIELDS; i++) {
        uint64_t value = 0;
        memcpy(&value, (const char *)s + state_fields[i].at, state_fields[i].size);
        fprintf(f, "%s %" PRIu64 "\n", state_fields[i].name, value);
    }
    fprintf(f, "hashes");
    for (int i = 0; i < file->count; i++) fprintf(f, " %016" PRIx64, file->sums[i]);
    fprintf(f, "\n%s%s", s->text != NULL ? s->text : "", s->options);
    fflush(f);
    seal_print(f, text, *n);
    text_close(f);
    return text;
}

// Sets file->sums, on each rank, to the sums over all ranks.
static void state_gather(SafeWriter *file) {
    const size_t sums = (size_t)file->count, all_sums = (size_t)ranks.world * sums;
    uint64_t *all = ALLOC(uint64_t, all_sums, "hashes");
    ranks_exchange(file->sums, sums * sizeof *all, all);
    memset(file->sums, 0, sums * sizeof *all);
    for (size_t i = 0; i < all_sums; i++) file->sums[i % sums] += all[i];
    free(all);
}

// Completes the checkpoint and renames it, or removes it after an error. Rank 0 calls it.
static bool state_commit(const StateSave *save, SafeWriter *file, const char *made, Error *err) {
    char path[PATH_MAX];
    size_t n = 0;
    FILE *f = NULL;
    char *text = state_describe(save, file, &n);
    path_join(path, made, "state.txt");
    bool ok = safewriter_close(file, err) && (f = replace_open(path, err)) != NULL;
    if (ok) fwrite(text, 1, n, f);
    ok = ok && replace_close(f, path, err) && directory_sync(made, err);
    free(text);
    state_path(path, save->out, save->state.step);
    if (ok) checkpoint_remove(path);  // an old, damaged step_N
    if (ok && rename(made, path) != 0)
        ok = error_set(err, "cannot rename %s: %s", made, strerror(errno));
    if (!ok) checkpoint_remove(made);
    path_join(path, save->out, "checkpoints");
    return ok && directory_sync(path, err);
}

// Removes old checkpoints, on rank 0. The newest `keep` stay, and the one with the lowest loss.
static void state_prune(const char *out, int keep, const TrainState *newest) {
    char path[PATH_MAX];
    size_t step = newest->step + 1;
    if (ranks.rank > 0 || keep <= 0) return;
    for (int kept = 0; (step = state_newest(out, step, false)) > 0; kept++) {
        state_path(path, out, step);
        if (kept >= keep && step != newest->best.step) checkpoint_remove(path);
    }
}

// Saves a checkpoint. Older checkpoints stay whole on failure, and if the process dies at any
// point. All ranks must call it. (noinline: its paths leave the stack before weights are written.)
static __attribute__((noinline)) bool state_save(const StateSave *save, Error *err) {
    char made[PATH_MAX], path[PATH_MAX], name[64];
    const bool first = ranks.rank == 0;
    SafeWriter file = {ranks.rank};
    // Each step has another name: a client of NFS may cache what a name meant before.
    snprintf(name, sizeof name, "checkpoints/tmp_%08zu", save->state.step);
    path_join(made, save->out, name);
    if (first) state_newest(save->out, 0, true);
    bool ok = !first || make_directories(made)
        || error_set(err, "cannot make %s: %s", made, strerror(errno));
    if (!state_agree(ok, err)) return false;
    path_join(path, made, "state.safetensors");
    for (int k = 0; k < save->here->parts; k++)
        tensors_add(&file, NULL, save->table, state_parts[k],
                    part_is_bf16(save->here, k) ? ST_BF16 : ST_F32);
    if (first) safewriter_open(&file, path);
    ranks_barrier();
    if (!first) safewriter_open(&file, path);
    for (int k = 0; k < save->here->parts; k++)
        tensors_put(&file, NULL, save->table, save->here, k, k * save->table->count);
    state_gather(&file);
    if (!first && !file.failed && fsync(fileno(file.file)) != 0) safewriter_fail(&file);
    file.failed = !state_agree(!file.failed, &file.err);
    ok = first ? state_commit(save, &file, made, err) : safewriter_close(&file, err);
    if (!state_agree(ok, err)) return false;
    state_prune(save->out, save->keep, &save->state);
    return true;
}

// ---------------------------------------------------------------------------------------------
// 4. Loading it

// Finds the newest whole checkpoint of the run in `out` before step `before`. Reads its state.txt
// into *s, and writes its path to dir. Names damaged checkpoints on stderr. Returns
// false if no checkpoint is whole. Rank 0 decides; all ranks must call this function.
static bool state_find(const char *out, size_t before, TrainState *s, char dir[PATH_MAX],
                       Error *err) {
    const bool first = ranks.rank == 0;
    bool ok = !first;
    Error why;
    error_set(err, "there is no whole checkpoint in %s/checkpoints", out);
    for (size_t step = before; !ok && (step = state_newest(out, step, false)) > 0;) {
        state_path(dir, out, step);
        ok = state_check(dir, s, &why);
        if (!ok) fprintf(stderr, "tide: checkpoint %s is damaged (%s)\n", dir, why.text);
    }
    if (!state_agree(ok, err)) return false;
    ranks_broadcast(dir, PATH_MAX);
    return state_agree(first || state_read(dir, s, err), err);
}

// Loads the checkpoint *s, which state_find() has found in dir, into *state. The file must have the
// first state->parts of state_parts; its other parts are not read. Padding becomes zero. Parts are
// converted if their type in the file is another. For each tensor, one of the ranks checks the
// hash while loading it. All ranks must call this function.
static bool state_load(const char *dir, const TrainState *s, const GPT2Table *t,
                       const RunState *state, Error *err) {
    SafeTensors st;
    bool ok = state_open(dir, &st, err);
    for (int k = 0; ok && k < state->parts; k++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", state_parts[k], t->tensors[0].name);
        const SafeTensor *first = safetensors_find(&st, name);
        if (first == NULL) ok = error_set(err, "tensor %s is missing", name);
        else if (k == 1 && (first->dtype == ST_BF16) != state->moments_bf16)
            printf(state->moments_bf16 ? "AdamW's moments, saved in fp32, are rounded to bf16\n"
                                      : "AdamW's moments, saved in bf16, are fp32 from here on\n");
        for (int i = 0; ok && i < t->count; i++) {
            const HfTensor hf = own_tensor(t, i);
            const int number = (int)(first + i - st.tensors);
            if (number >= st.count || first[i].elements != hf.n)
                ok = error_set(err, "tensor %s is of a model of another shape", first->name);
            else if (number % ranks.world == ranks.rank) ok = state_intact(&st, number, s, err);
            if (ok && !part_read(state, k, t, &hf, &first[i]) && k == 0)
                die("%s: tensor %s has a number that is not finite, or too large for this "
                    "precision: resume with the one before", dir, hf.name);
        }
    }
    safetensors_close(&st);
    return state_agree(ok, err);
}

// The owner of a RunState that only reads: move() reads weights (part 0) of a checkpoint's file.
typedef struct { const GPT2Table *table; SafeTensors file; } StateFile;

static void state_file_move(void *owner, int part, size_t at, size_t n, float *w, bool out) {
    const StateFile *x = (const StateFile *)owner;
    const int i = gpt2_tensor_at(x->table, at);
    if (out && part == 0)
        safetensor_floats(&x->file.tensors[i], at - x->table->tensors[i].offset, n, w);
}

// Writes the weights of a step's checkpoint as a model in `out`. Rank 0 calls it.
static bool state_model(const StateSave *save, size_t step, const char *out, bool bf16,
                        TextEnds ends, const char *origin, Error *err) {
    char dir[PATH_MAX];
    StateFile from = {save->table, {0, NULL, NULL, NULL, 0}};
    RunState state = state_in(NULL, 1);
    state.move = state_file_move;
    state.owner = &from;
    state_path(dir, save->out, step);
    const bool ok = state_open(dir, &from.file, err)
        && model_save(out, &save->state.config, save->table, &state, bf16, ends, origin, err);
    safetensors_close(&from.file);
    return ok;
}

#endif
