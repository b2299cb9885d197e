// saver.h: saving training state.
//
// What a checkpoint consists of, and how it is found and loaded again: checkpoint.h.
//
// Several ranks (ranks.h) save together, each what it has, into the file that one process would
// write. Rank 0 makes the file, and names it when all have flushed; what fails on one rank fails on
// all. Functions that say so must be called by all ranks, at the same point.
#ifndef TIDE_SAVER_H
#define TIDE_SAVER_H
#include "checkpoint.h"

// Elements that are written at a time: a multiple of ALIGN_ELEMENTS.
#ifndef SAVER_UNIT
#define SAVER_UNIT ((size_t)1 << 21)
#endif

typedef struct {
    const char *out;         // first what is to be saved, where: OUT/checkpoints/step_N
    const GPT2Config *config;
    const GPT2Table *table;
    const StatePart *parts;  // in this order; the first are the parameters
    int count;
    int keep;                // then all but so many checkpoints up to this step go; 0: none
    TrainState state;
    SafeWriter file;         // state.safetensors
    char all[PATH_MAX];      // OUT/checkpoints
    char temporary[PATH_MAX], final[PATH_MAX];  // the directory, before and after it is whole
} StateSave;

// Writes elements [at, at + n) of part k, which are at w.
static inline bool state_put(StateSave *x, int k, size_t at, size_t n, const float *w, Error *err) {
    bool ok = true;
    for (int i = 0; ok && i < x->table->count; i++) {
        const GPT2Tensor *y = &x->table->tensors[i];
        const size_t from = y->offset > at ? y->offset : at;
        const size_t to = min_size(y->offset + y->rows * y->cols, at + n);
        if (from < to)
            ok = safewriter_put(&x->file, k * x->table->count + i, (from - y->offset) * sizeof *w,
                                w + (from - at), (to - from) * sizeof *w, err);
    }
    return ok;
}

// Writes everything that this rank has.
static inline bool state_put_all(StateSave *x, Error *err) {
    float *buffer = NULL;
    bool ok = true;
    for (int k = 0; k < x->count; k++) {
        const StatePart *p = &x->parts[k];
        for (const StateSpan *s = p->spans; s < p->spans + p->count; s++) {
            const size_t end = min_size(s->at + s->length, x->table->elements);
            for (size_t at = s->at, n; ok && at < end; at += n) {
                n = min_size(SAVER_UNIT, end - at);
                if (p->move != NULL) {  // one tensor at a time, and no padding
                    const int i = gpt2_tensor_at(x->table, at);
                    const GPT2Tensor *y = &x->table->tensors[i];
                    const size_t last = y->offset + y->rows * y->cols;
                    const size_t next = y->offset + round_up(y->size, ALIGN_ELEMENTS);
                    n = min_size(n, (at < last ? last : next) - at);
                    if (at >= last) continue;
                }
                if (s->gpu && buffer == NULL)
                    buffer = (float *)alloc_or_fail(SAVER_UNIT, sizeof(float), "checkpoint");
                if (s->gpu) part_copy(p, at, n, buffer, true);
                ok = state_put(x, k, at, n, s->gpu ? buffer : s->data + (at - s->at), err);
            }
        }
    }
    free(buffer);
    return ok;
}

// The text of state.json, of *n bytes; free() it.
static inline char *state_describe(const StateSave *x, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    if (f == NULL) fail("out of memory: state.json");
    // 64-bit numbers are strings: most readers of JSON keep 53 bits of a number.
    fprintf(f, "{\"version\":%d,\n\"step\":%zu,\n\"seed\":\"%" PRIu64 "\",\n"
            "\"data_position\":\"%" PRIu64 "\",\n\"data_hash\":\"%" PRIu64 "\",\n"
            "\"hashes\":\"%016" PRIx64, STATE_VERSION, x->state.step, x->state.seed,
            x->state.data_position, x->state.data_hash, x->file.hash);
    for (int i = 0; i < x->file.count; i++) fprintf(f, "%016" PRIx64, x->file.tensors[i].hash);
    fprintf(f, "\",\n\"config\":{\n");
    config_write_sizes(f, *x->config, 2);
    fprintf(f, "  \"family\":%d,\"activation\":%d,\"tied\":%d},", x->config->family,
            x->config->activation, x->config->tied);
    if (x->state.more != NULL) fprintf(f, "%s%s,", state_more_key, x->state.more);
    fprintf(f, "%s%s", state_options_key, x->state.options);
    fflush(f);
    fprintf(f, ",\n\"seal\":\"%016" PRIx64 "\"}\n", hash_bytes(text, *n));
    if (fclose(f) != 0) fail("out of memory: state.json");
    return text;
}

// Adds up what all ranks have written, when it is on the disk. If one has failed, all have then.
static inline void state_gather(StateSave *x, Error *err) {
    SafeWriter *w = &x->file;
    if (ranks.world == 1) return;
    safewriter_flush(w, err);
    w->failed = !state_agree(!w->failed, err);
    const size_t n = (size_t)w->count + 2, world = (size_t)ranks.world;
    uint64_t *all = (uint64_t *)alloc_or_fail((world + 1) * n, sizeof *all, "hashes");
    uint64_t *sums = all + world * n;
    sums[0] = w->written;
    sums[1] = w->hash;
    for (int i = 0; i < w->count; i++) sums[i + 2] = w->tensors[i].hash;
    ranks_exchange(sums, n * sizeof *sums, all);
    memset(sums, 0, n * sizeof *sums);
    for (size_t i = 0; i < world * n; i++) sums[i % n] += all[i];
    w->written = sums[0];
    w->hash = sums[1];
    for (int i = 0; i < w->count; i++) w->tensors[i].hash = sums[i + 2];
    free(all);
}

// Completes and names it, or removes what there is; on rank 0.
static inline bool state_commit(StateSave *x, Error *err) {
    char path[PATH_MAX], old[PATH_MAX + 4];
    size_t n = 0;
    FILE *f = NULL;
    char *text = state_describe(x, &n);
    path_join(path, x->temporary, "state.json");
    bool ok = safewriter_close(&x->file, err) && (f = replace_open(path, err)) != NULL;
    if (ok) fwrite(text, 1, n, f);
    ok = ok && replace_close(f, path, err) && directory_sync(x->temporary, err);
    free(text);
    snprintf(old, sizeof old, "%s.old", x->final);
    const bool again = path_exists(x->final);
    if (ok && again && path_exists(old)) directory_remove(old);  // not needed beside step_N
    if (ok && ((again && rename(x->final, old) != 0) || rename(x->temporary, x->final) != 0))
        ok = error_set(err, "cannot rename %s: %s", x->temporary, strerror(errno));
    if (!ok) directory_remove(x->temporary);
    return ok && directory_sync(x->all, err);
}

// Completes and names a checkpoint of which everything was written. If something has failed since
// state_begin(), gives it up, returns false and leaves err as it is. All ranks call it.
static inline bool state_end(StateSave *x, Error *err) {
    state_gather(x, err);
    return state_agree(ranks.rank > 0 ? safewriter_close(&x->file, err) : state_commit(x, err),
                       err);
}

// Removes the checkpoints that a new one leaves too many; on rank 0.
static inline void state_prune(const StateSave *x) {
    char path[PATH_MAX];
    StateEntry *entries = NULL;
    const size_t entry_count = ranks.rank > 0 ? 0 : state_list(x->all, &entries, false);
    int kept = 0;
    for (size_t i = 0; i < entry_count; i++) {
        if (entries[i].step > x->state.step) continue;
        const bool replaced = entries[i].old && i > 0 && entries[i - 1].step == entries[i].step;
        if (!replaced && (x->keep <= 0 || kept++ < x->keep)) continue;
        path_join(path, x->all, entries[i].name);
        directory_remove(path);
    }
    free(entries);
}

static inline bool state_is_object(const char *text) {
    Error ignored;
    Json *root = json_parse(text, strlen(text), &ignored);
    const bool object = root != NULL && root->type == JSON_OBJECT;
    json_free(root);
    return object;
}

// Makes the directory of a new checkpoint, and removes stale ones; on rank 0.
static inline bool state_make(const StateSave *x, Error *err) {
    StateEntry *entries = NULL;
    if (!state_is_object(x->state.options))
        return error_set(err, "the options of a checkpoint must be a JSON object");
    if (x->state.more != NULL
        && (!state_is_object(x->state.more) || strstr(x->state.more, state_options_key) != NULL))
        return error_set(err, "what an optimizer adds to a checkpoint must be a JSON object, "
                         "without a line that begins with \"options\":");
    if (!make_directories(x->all))
        return error_set(err, "cannot make %s: %s", x->all, strerror(errno));
    state_list(x->all, &entries, true);
    free(entries);
    return mkdir(x->temporary, 0777) == 0
        || error_set(err, "cannot make %s: %s", x->temporary, strerror(errno));
}

// Begins to save what the first half of *x names: then come state_put() for each element that this
// rank has, in any order, and state_end(). On failure, also of those, and if the process dies at
// any point, the checkpoints that were there are still there. All ranks call it.
static inline bool state_begin(StateSave *x, Error *err) {
    char path[PATH_MAX], name[128];
    const GPT2Table *t = x->table;
    const bool first = ranks.rank == 0;
    size_t shape[2];
    memset(&x->file, 0, sizeof x->file);
    x->file.writers = ranks.world;
    x->file.writer = ranks.rank;
    path_join(x->all, x->out, "checkpoints");
    snprintf(name, sizeof name, "tmp_step_%08zu", x->state.step);
    path_join(x->temporary, x->all, name);
    path_join(x->final, x->all, name + 4);
    if (!state_agree(!first || state_make(x, err), err)) return false;
    for (int k = 0; k < x->count; k++)
        for (int i = 0; i < t->count; i++) {
            const GPT2Tensor *y = &t->tensors[i];
            snprintf(name, sizeof name, "%s.%s", x->parts[k].prefix, y->name);
            safewriter_add(&x->file, name, ST_F32, tensor_shape(y->rank, y->rows, y->cols, shape),
                           shape);
        }
    path_join(path, x->temporary, "state.safetensors");
    bool ok = state_agree(!first || safewriter_open(&x->file, path, err), err);
    ok = ok && state_agree(first || safewriter_open(&x->file, path, err), err);
    x->file.failed = !ok;
    return ok || state_end(x, err);
}

// Saves a checkpoint, from state_begin() to state_end(). All ranks call it.
static inline bool state_save(StateSave *x, Error *err) {
    if (!state_begin(x, err)) return false;
    state_put_all(x, err);
    if (!state_end(x, err)) return false;
    state_prune(x);
    return true;
}

// model.safetensors and config.json of a checkpoint that was just saved; on rank 0.
static inline bool state_model(const StateSave *x, bool bf16, int eot, Error *err) {
    char path[PATH_MAX];
    SafeTensors st;
    const int n = x->table->count;
    path_join(path, x->final, "state.safetensors");
    if (!safetensors_open(&st, path, err)) return false;
    StateSpan *spans = (StateSpan *)alloc_or_fail((size_t)n, sizeof *spans, "list of tensors");
    for (int i = 0; i < n; i++) {  // without what lies between tensors, which is not read
        spans[i].at = x->table->tensors[i].offset;
        spans[i].length = x->table->tensors[i].size;
        spans[i].data = (float *)st.tensors[i].data;
    }
    const StatePart part = {"param", spans, n, NULL, NULL, NULL};
    const bool ok = model_save(x->out, x->config, x->table, &part, bf16, eot, err);
    free(spans);
    safetensors_close(&st);
    return ok;
}

// Is `out`, a directory that is there on rank 0, the same one on all ranks? All ranks call it.
static inline bool state_is_shared(const char *out, Error *err) {
    char name[64] = "", path[PATH_MAX];
    struct timespec now;
    if (ranks.world == 1) return true;
    clock_gettime(CLOCK_REALTIME, &now);  // a name that nobody has looked for before
    snprintf(name, sizeof name, ".seen-by-all-%ld-%ld-%ld", (long)getpid(), (long)now.tv_sec,
             now.tv_nsec);
    ranks_broadcast(name, sizeof name);
    path_join(path, out, name);
    const int fd = ranks.rank > 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    bool ok = ranks.rank > 0 || fd >= 0 || error_set(err, "--out %.300s: %s", out, strerror(errno));
    if (!state_agree(ok, err)) return false;
    ok = path_exists(path)
        || error_set(err, "--out %.300s must be in a file system that all ranks share: what rank 0 "
                     "makes there is not seen", out);
    ok = state_agree(ok, err);
    if (ranks.rank == 0) unlink(path);
    return ok;
}

#endif
