// saver.h: saving training state, at once or in the background.
//
//   1. A checkpoint that is being saved
//   2. The background: while a thread writes, training goes on
//
// What a checkpoint consists of, and how it is found and loaded again: checkpoint.h.
#ifndef TIDE_SAVER_H
#define TIDE_SAVER_H
#include "checkpoint.h"
#include <pthread.h>
#include <signal.h>

// ---------------------------------------------------------------------------------------------
// 1. A checkpoint that is being saved

// Elements that are written, or copied out of the way, at a time: a multiple of ALIGN_ELEMENTS.
#ifndef SAVER_UNIT
#define SAVER_UNIT ((size_t)1 << 21)
#endif

typedef struct {
    const char *out;         // first what is to be saved, where: OUT/checkpoints/step_N
    const GPT2Config *config;
    const GPT2Table *table;
    const StatePart *parts;  // in this order; the first are the parameters
    int count;               // 0: state.base says what they are made of again
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

// Writes everything that only the caller's thread reaches, in a GPU's memory or by `move`; or
// everything else.
static inline bool state_put_all(StateSave *x, bool gpu, Error *err) {
    float *buffer = NULL;
    bool ok = true;
    for (int k = 0; k < x->count; k++) {
        for (int i = 0; i < x->parts[k].count; i++) {
            const StateSpan *s = &x->parts[k].spans[i];
            for (size_t at = 0; ok && s->gpu == gpu && at < s->length; at += SAVER_UNIT) {
                const size_t n = min_size(SAVER_UNIT, s->length - at);
                if (gpu && buffer == NULL)
                    buffer = (float *)alloc_or_fail(SAVER_UNIT, sizeof(float), "checkpoint");
                if (gpu) x->parts[k].copy(buffer, s->data + at, n * sizeof(float));
                ok = state_put(x, k, s->at + at, n, gpu ? buffer : s->data + at, err);
            }
        }
        for (int i = 0; gpu && x->parts[k].move != NULL && i < x->table->count; i++) {
            const GPT2Tensor *y = &x->table->tensors[i];
            const size_t end = y->rows * y->cols;
            for (size_t at = 0; ok && at < end; at += SAVER_UNIT) {
                const size_t n = min_size(SAVER_UNIT, end - at);
                if (buffer == NULL)
                    buffer = (float *)alloc_or_fail(SAVER_UNIT, sizeof(float), "checkpoint");
                x->parts[k].move(x->parts[k].owner, y->offset + at, n, buffer, true);
                ok = state_put(x, k, y->offset + at, n, buffer, err);
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
    if (x->state.base != 0) fprintf(f, "\n\"base\":\"%016" PRIx64 "\",", x->state.base);
    if (x->state.more != NULL) fprintf(f, "%s%s,", state_more_key, x->state.more);
    fprintf(f, "%s%s", state_options_key, x->state.options);
    fflush(f);
    fprintf(f, ",\n\"seal\":\"%016" PRIx64 "\"}\n", hash_bytes(text, *n));
    if (fclose(f) != 0) fail("out of memory: state.json");
    return text;
}

// Completes and names a checkpoint of which everything was written, and removes older ones. If
// something has failed since state_begin(), gives it up, returns false and leaves err as it is.
static inline bool state_end(StateSave *x, Error *err) {
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
    if (!ok || !directory_sync(x->all, err)) return false;
    StateEntry *entries = NULL;
    const size_t entry_count = state_list(x->all, &entries, false);
    int kept = 0;
    for (size_t i = 0; i < entry_count; i++) {
        if (entries[i].step > x->state.step) continue;
        const bool replaced = entries[i].old && i > 0 && entries[i - 1].step == entries[i].step;
        if (!replaced && (x->keep <= 0 || kept++ < x->keep)) continue;
        path_join(path, x->all, entries[i].name);
        directory_remove(path);
    }
    free(entries);
    return true;
}

static inline bool state_is_object(const char *text) {
    Error ignored;
    Json *root = json_parse(text, strlen(text), &ignored);
    const bool object = root != NULL && root->type == JSON_OBJECT;
    json_free(root);
    return object;
}

// Begins to save what the first half of *x names: then come state_put() for each element, in any
// order, and state_end(). On failure, also of those, and if the process dies at any point, the
// checkpoints that were there are still there.
static inline bool state_begin(StateSave *x, Error *err) {
    char path[PATH_MAX], name[128];
    const GPT2Table *t = x->table;
    size_t shape[2];
    StateEntry *entries = NULL;
    memset(&x->file, 0, sizeof x->file);
    if (!state_is_object(x->state.options))
        return error_set(err, "the options of a checkpoint must be a JSON object");
    if (x->state.more != NULL
        && (!state_is_object(x->state.more) || strstr(x->state.more, state_options_key) != NULL))
        return error_set(err, "what an optimizer adds to a checkpoint must be a JSON object, "
                         "without a line that begins with \"options\":");
    if ((x->count == 0) != (x->state.base != 0))
        return error_set(err, "a checkpoint must have either parts or the hash of first weights");
    path_join(x->all, x->out, "checkpoints");
    if (!make_directories(x->all))
        return error_set(err, "cannot make %s: %s", x->all, strerror(errno));
    snprintf(name, sizeof name, "tmp_step_%08zu", x->state.step);
    path_join(x->temporary, x->all, name);
    path_join(x->final, x->all, name + 4);
    state_list(x->all, &entries, true);
    free(entries);
    if (mkdir(x->temporary, 0777) != 0)
        return error_set(err, "cannot make %s: %s", x->temporary, strerror(errno));
    for (int k = 0; k < x->count; k++)
        for (int i = 0; i < t->count; i++) {
            const GPT2Tensor *y = &t->tensors[i];
            snprintf(name, sizeof name, "%s.%s", x->parts[k].prefix, y->name);
            safewriter_add(&x->file, name, ST_F32, tensor_shape(y->rank, y->rows, y->cols, shape),
                           shape);
        }
    path_join(path, x->temporary, "state.safetensors");
    return safewriter_open(&x->file, path, err) || state_end(x, err);
}

// Saves a checkpoint, from state_begin() to state_end().
static inline bool state_save(StateSave *x, Error *err) {
    if (!state_begin(x, err)) return false;
    if (state_put_all(x, true, err)) state_put_all(x, false, err);
    return state_end(x, err);
}

// ---------------------------------------------------------------------------------------------
// 2. The background
//
// State in host memory is too large to copy and too slow to wait for: a thread writes it, piece by
// piece in the order in which the next step updates the pieces, and an update waits only where it
// has caught up. There it may first copy what is left of its piece into a bounded pool.

typedef struct { size_t at, length; } StatePiece;  // elements of the arena, of every part

enum { UNIT_WAITS, UNIT_WRITES, UNIT_COPIES, UNIT_COPIED, UNIT_WRITTEN };
typedef struct { int part, state; size_t at, n; float *data; } SaveUnit;

// Zero it, and before a save set what comes first, with the first half of `save`. Only keep and
// state may differ from one save to the next, and all of it stays until the last one is over.
typedef struct {
    StateSave save;
    const StatePiece *pieces;  // all of the arena, in the order of updates
    size_t piece_count;
    size_t bounce;             // bytes of the pool
    bool bf16;                 // for model.safetensors: --save-dtype,
    int eot;                   // and config.json

    double seconds, waited;    // of the last save: until it was whole; how long saver_need() took,
    uint64_t bytes, bounced;   // the file's size, and how much of it went through the pool
    bool running;              // saver_start() was called, and not yet saver_wait()

    pthread_t thread;
    pthread_mutex_t mutex;     // guards the units' state, the pool, failed and over
    pthread_cond_t changed;
    SaveUnit *units;           // in the order in which they are written
    size_t unit_count;
    size_t *first;             // of each piece's units, and the end
    float *pool, **slots;      // room for copies of units; those of them that are free,
    size_t slot_count;         // and how many these are
    bool failed, over;         // nothing is written any more; the thread ends
    double start;
    Error err;
} Saver;

// model.safetensors and config.json of a checkpoint that was just saved.
static inline bool saver_model(const Saver *s, Error *err) {
    char path[PATH_MAX];
    SafeTensors st;
    const int n = s->save.table->count;
    path_join(path, s->save.final, "state.safetensors");
    if (!safetensors_open(&st, path, err)) return false;
    StateSpan *spans = (StateSpan *)alloc_or_fail((size_t)n, sizeof *spans, "list of tensors");
    for (int i = 0; i < n; i++) {  // without what lies between tensors, which is not read
        spans[i].at = s->save.table->tensors[i].offset;
        spans[i].length = s->save.table->tensors[i].size;
        spans[i].data = (float *)st.tensors[i].data;
    }
    const StatePart part = {"param", spans, n, NULL, NULL, NULL};
    const bool ok = model_save(s->save.out, s->save.config, s->save.table, &part, s->bf16, s->eot,
                               err);
    free(spans);
    safetensors_close(&st);
    return ok;
}

static inline void *saver_run(void *argument) {
    Saver *s = (Saver *)argument;
    thread_is_awaited = true;  // at the end of the run
    bool ok = true;
    for (SaveUnit *u = s->units; ok && u < s->units + s->unit_count; u++) {
        pthread_mutex_lock(&s->mutex);
        while (u->state == UNIT_COPIES) pthread_cond_wait(&s->changed, &s->mutex);
        const bool copied = u->state == UNIT_COPIED;
        if (!copied) u->state = UNIT_WRITES;
        pthread_mutex_unlock(&s->mutex);
        ok = state_put(&s->save, u->part, u->at, u->n, u->data, &s->err);
        pthread_mutex_lock(&s->mutex);
        if (copied) s->slots[s->slot_count++] = u->data;
        u->state = UNIT_WRITTEN;
        s->failed = !ok;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->mutex);
    }
    ok = state_end(&s->save, &s->err);
    s->seconds = seconds_now() - s->start;
    ok = ok && saver_model(s, &s->err);
    pthread_mutex_lock(&s->mutex);
    s->failed = !ok;
    s->over = true;
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

// The work for the thread: what is in host memory, cut into units.
static inline void saver_cut(Saver *s) {
    s->unit_count = 0;
    for (size_t p = 0; p < s->piece_count; p++) {
        s->first[p] = s->unit_count;
        for (int k = 0; k < s->save.count; k++)
            for (int i = 0; i < s->save.parts[k].count; i++) {
                const StateSpan *span = &s->save.parts[k].spans[i];
                const size_t end = min_size(s->pieces[p].at + s->pieces[p].length,
                                            span->at + span->length);
                size_t at = span->at > s->pieces[p].at ? span->at : s->pieces[p].at;
                for (; !span->gpu && at < end; at += SAVER_UNIT) {
                    const SaveUnit u = {k, UNIT_WAITS, at, min_size(SAVER_UNIT, end - at),
                                        span->data + (at - span->at)};
                    s->units[s->unit_count++] = u;
                }
            }
    }
    s->first[s->piece_count] = s->unit_count;
}

// Begins to save the state as it is now, which no update may be changing, and returns; first it
// writes what is on a GPU, itself. From now on saver_need() must be called before a piece changes.
// There must be no save going on. On failure false, and there is nothing to wait for.
static inline bool saver_start(Saver *s, Error *err) {
    sigset_t all, before;
    s->start = seconds_now();
    s->waited = 0;
    s->bounced = 0;
    s->failed = s->over = false;
    if (s->units == NULL) {  // the first one
        size_t room = 1;  // a unit ends where it is full, or a piece or a span does
        for (int k = 0; k < s->save.count; k++)
            room += s->save.table->elements / SAVER_UNIT + s->piece_count
                  + (size_t)s->save.parts[k].count;
        s->units = (SaveUnit *)alloc_or_fail(room, sizeof *s->units, "list of units");
        s->first = (size_t *)alloc_or_fail(s->piece_count + 1, sizeof *s->first, "list of pieces");
        saver_cut(s);
        size_t most = 1;
        for (size_t i = 0; i < s->unit_count; i++)
            if (s->units[i].n > most) most = s->units[i].n;
        s->slot_count = min_size(s->bounce / (most * sizeof(float)), s->unit_count);
        s->pool = (float *)malloc(s->slot_count * most * sizeof(float) + 1);  // touched if needed
        if (s->pool == NULL) fail("out of memory: save pool");
        s->slots = (float **)alloc_or_fail(s->slot_count, sizeof *s->slots, "list of slots");
        for (size_t i = 0; i < s->slot_count; i++) s->slots[i] = s->pool + i * most;
        pthread_mutex_init(&s->mutex, NULL);
        pthread_cond_init(&s->changed, NULL);
    }
    saver_cut(s);
    if (!state_begin(&s->save, err)) return false;
    if (!state_put_all(&s->save, true, err)) return state_end(&s->save, err);
    s->bytes = s->save.file.total;
    sigfillset(&all);  // signals are for the trainer
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&s->thread, NULL, saver_run, s) != 0) fail("cannot start a thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s->running = true;
}

// Returns when piece i may change: it is written, or copied. Nothing to do while nothing is saved.
static inline void saver_need(Saver *s, size_t i) {
    if (!s->running) return;
    const double start = seconds_now();
    pthread_mutex_lock(&s->mutex);
    while (!s->failed) {
        SaveUnit *u = NULL;  // the last one that can be copied: the thread comes from the front
        bool ready = true;
        for (size_t j = s->first[i]; j < s->first[i + 1]; j++) {
            if (s->units[j].state == UNIT_WAITS) u = &s->units[j];
            ready = ready && s->units[j].state >= UNIT_COPIED;
        }
        if (ready) break;
        if (u == NULL || s->slot_count == 0) {
            pthread_cond_wait(&s->changed, &s->mutex);
            continue;
        }
        float *slot = s->slots[--s->slot_count];
        u->state = UNIT_COPIES;
        pthread_mutex_unlock(&s->mutex);
        memcpy(slot, u->data, u->n * sizeof(float));
        s->bounced += u->n * sizeof(float);
        pthread_mutex_lock(&s->mutex);
        u->data = slot;
        u->state = UNIT_COPIED;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    s->waited += seconds_now() - start;
}

// Is there nothing that saver_wait() would wait for?
static inline bool saver_over(Saver *s) {
    if (!s->running) return true;
    pthread_mutex_lock(&s->mutex);
    const bool over = s->over;
    pthread_mutex_unlock(&s->mutex);
    return over;
}

// Waits until the save that was started has ended. Returns false, and why in err, if it failed:
// what was saved before is still there then.
static inline bool saver_wait(Saver *s, Error *err) {
    if (!s->running) return true;
    pthread_join(s->thread, NULL);
    s->running = false;
    if (s->failed) *err = s->err;
    return !s->failed;
}

#endif
