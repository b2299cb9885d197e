// save.h: what a run (open.h) loads before its first step, and what it writes to --out. All ranks
// call these functions, after the same steps.
//
//   run_load            loads the first values: of a checkpoint, of a model's files, or random ones
//   run_save            saves a checkpoint and the weights after the steps that are complete
//   run_save_tokenizer  saves the tokenizer beside the weights
//   run_save_next       sets when the next checkpoint is due (--save-every auto)
//   run_find_best       finds the best checkpoint of a resumed run (--keep-best)
//   run_check_disk      prints what disk space a run takes, and refuses a disk without it
#ifndef TIDE_SAVE_H
#define TIDE_SAVE_H
#include "open.h"
#include <sys/statvfs.h>

// Are all weights bf16 numbers, as masters in bf16 are, and MeZO's weights on a GPU?
static bool run_in_bf16(const Options *o) {
    return o->master == MASTER_BF16 || (o->gpu_build && o->optimizer == OPTIMIZER_MEZO
                                        && o->precision == PRECISION_BF16);
}

// Loads the weights of a new run: from the files of --model, or the random ones of a preset.
static void run_load_first(Run *r, const RunState *state) {
    const GPT2Table *t = &r->table;
    if (r->saved_model != NULL) {
        model_load(r->saved_model, &r->state.config, t, state);
        return;
    }
    float *w = ALLOC(float, PART_UNIT, "first weights");
    for (int i = 0; i < t->count; i++) {
        const size_t begin = t->tensors[i].offset;
        const size_t end = begin + round_up(t->tensors[i].size, ALIGN_ELEMENTS);
        for (size_t at = begin, n; (n = state_next(state, &at, end)) > 0; at += n) {
            gpt2_init_range(t, i, at - begin, n, w, r->o.seed);
            part_set(state, 0, at, n, w);
        }
    }
    free(w);
}

// Loads all parts of a checkpoint, or, in a new run, only weights. Damage in a tensor is noticed
// only now: then renames this checkpoint, and loads the one before. Ends the program if there is
// none, if its options differ, or if the damaged one has already set up the trainer (ZenFlow); the
// next --resume then finds the older one. From here on this run owns --out. (noinline saves stack.)
static __attribute__((noinline)) void run_load(Run *r, const RunState *state) {
    Error err, why;
    TrainState before;
    char aside[PATH_MAX], note[3 * PATH_MAX];
    // For each --precision, the smallest number that is rounded to infinity.
    static const float limits[] = {0x1.ffp127f, INFINITY, 65520};
    r->saves = *state;
    r->saves.master_bf16 = r->o.master == MASTER_BF16;
    if (r->o.gpu_build || r->saves.master_bf16) r->saves.limit = limits[r->o.precision];
    state = &r->saves;
    if (!r->o.resume) run_load_first(r, state);
    while (r->o.resume && !state_load(r->resume_from, &r->state, &r->table, state, &err)) {
        snprintf(aside, sizeof aside, "%.4000s.damaged", r->resume_from);
        snprintf(note, sizeof note, "checkpoint %s is damaged (%s), and put aside as %s",
                 r->resume_from, err.text, aside);
        if (r->rank == 0) checkpoint_remove(aside);
        if (r->rank == 0 && rename(r->resume_from, aside) != 0)
            die("cannot rename %s: %s", r->resume_from, strerror(errno));
        if (!state_find(r->o.out, r->state.step, &before, r->resume_from, &why)
            || strcmp(before.options, r->state.options) != 0
            || before.products != r->state.products || r->o.offload == OFFLOAD_ZENFLOW)
            die("%s: --resume again takes the one before, if there is one", note);
        if (r->rank == 0) fprintf(stderr, "tide: %s; going on from %s\n", note, r->resume_from);
        before.data_hash = r->state.data_hash;
        r->state = before;
    }
    r->saves.master_bf16 = run_in_bf16(&r->o);  // MeZO's weights are rounded as its trainer does
    out_take(&r->o, &r->lock);
}

// When --save-every auto saves next, by seconds_now(). Saving may take 5 % of the time: after a
// checkpoint that took d seconds, the next begins 19 d seconds later, at least 10 minutes later.
static double run_save_due;

static double run_save_pause(void) {
    const char *seconds = getenv("TIDE_SAVE_SECONDS");  // for tests
    return seconds != NULL ? strtod(seconds, NULL) : 600;
}

static void run_save_next(double seconds) {
    run_save_due = seconds_now() + fmax(run_save_pause(), 19 * seconds);
}

static void run_save_tokenizer(const Run *r, const char *dir) {
    if (r->tokenizer != NULL && r->rank == 0) tokenizer_save(r->tokenizer, dir);
}

static bool run_saves_bf16(const Options *o) {
    return o->save_dtype == SAVE_AUTO ? run_in_bf16(o) : o->save_dtype == SAVE_BF16;
}

// Writes to --out weights, which other programs can load, and, with `state`, a checkpoint, from
// which --resume goes on. After an error, the older files are still whole. With several ranks, no
// rank has all weights: rank 0 reads them from the checkpoint. If the disk is full, all checkpoints
// but the newest whole one and the best are removed. If it is still full, the run ends only if
// there is no checkpoint, or if this save is its last one.
static void run_write(Run *r, size_t step, bool state) {
    const Tokenizer *tok = r->tokenizer;
    const TextEnds ends = {tok != NULL ? tok->bos : -1, tok != NULL ? tok->eot : -1};
    const bool bf16 = run_saves_bf16(&r->o);
    const double start = seconds_now();
    const bool improved = state && r->o.keep_best && r->lowest < r->state.best.loss;
    StateSave save = {r->o.out, &r->table, &r->saves, (int)r->o.keep, r->state};
    char path[PATH_MAX];
    Error err;
    if (r->o.no_save) return;
    save.state.step = step;
    save.state.seed = r->o.seed;
    save.state.data_position = step * r->step_sequences;
    path_join(path, r->o.out, "config.json");
    const char *origin = !r->o.resume ? r->saved_model : path_exists(path) ? r->o.out : r->o.model;
    path_join(path, r->o.out, "best");
    if (improved) {
        save.state.best = (StateBest){step, r->lowest, run_val_hash(r)};
        log_best(&r->log, step, r->lowest);
    }
    for (int again = 0; again < 2; again++) {
        bool ok = !state || state_save(&save, &err);
        if (state && ok) {
            r->state.step = step;
            r->state.best = save.state.best;
            if (improved) r->best_is_out = false;
        }
        state = state && !ok;
        if (ok && ranks.rank == 0)
            ok = ranks.world > 1 ? state_model(&save, step, r->o.out, bf16, ends, origin, &err)
                : model_save(save.out, &r->state.config, save.table, save.here, bf16, ends, origin,
                             &err);
        if (ok && ranks.rank == 0 && r->state.best.step > 0 && !r->best_is_out)
            r->best_is_out = ok = state_model(&save, r->state.best.step, path, bf16, ends, origin,
                                                &err);
        if (state_agree(ok, &err)) break;
        if (again == 0 && r->state.step > 0 && strstr(err.text, strerror(ENOSPC)) != NULL) {
            save.keep = 1;  // older checkpoints are removed to make room
            state_prune(save.out, save.keep, &r->state);
            continue;
        }
        if (r->state.step == 0) fail("%s", err.text);
        if (r->ends) fail("%s; the checkpoint of step %zu is whole", err.text, r->state.step);
        if (r->rank == 0)
            fprintf(stderr, "tide: warning: %s; the run goes on, and the checkpoint of step %zu is "
                    "whole\n", err.text, r->state.step);
        break;
    }
    r->lowest = r->state.best.loss;
    run_save_next(seconds_now() - start);
}

// Saves the run after its complete steps. more: lines of the optimizer for the checkpoint
// (TrainState.text), which the run frees; or NULL.
static void run_save(Run *r, char *more) {
    free(r->state.text);
    r->state.text = more;
    r->due = false;
    if (r->done > 0) run_write(r, r->done, r->done != r->state.step);
}

// Returns the bytes of `checkpoints` checkpoints and of the weights, which are there twice with
// --keep-best. The disk is fullest while a new checkpoint stands beside all that are kept. (New
// weights are written after an old checkpoint was removed, and are not larger.)
static double run_disk(const Run *r, size_t checkpoints) {
    const Options *o = &r->o;
    const double moment = o->optimizer == OPTIMIZER_MEZO ? 0 : o->moments == MOMENTS_BF16 ? 2 : 4;
    const double weight = run_in_bf16(o) ? 2 : 4;
    const double state = 2 * moment + weight * (o->offload == OFFLOAD_ZENFLOW ? 2 : 1);
    const double weights = (run_saves_bf16(o) ? 2 : 4) * (o->keep_best ? 2 : 1);
    return (double)r->table.parameters * ((double)checkpoints * state + weights);
}

// Prints when the run saves, and the disk space that takes. Refuses a disk with too little.
static void run_check_disk(const Run *r) {
    const Options *o = &r->o;
    const double least = run_disk(r, 1), most = run_disk(r, o->keep + 1 + o->keep_best);
    char when[80] = "only at the end";
    struct statvfs disk;
    double there = 0, state = least - run_disk(r, 0);
    size_t step = state_newest(o->out, SIZE_MAX, true);
    for (; step > 0; step = state_newest(o->out, step, false)) there += state;
    if (o->no_save || statvfs(o->out, &disk) != 0) return;
    const double room = (double)disk.f_bavail * (double)disk.f_frsize;
    if (room + fmax(there - state, 0) < least)  // all checkpoints but the newest may be removed
        die("--out %s: a checkpoint and the weights take %sB, and only %sB are free there: make "
            "room, name another disk, or save nothing (--no-save)", o->out,
            count_text(least).text, count_text(room).text);
    if (o->save_every == AUTO_COUNT)
        snprintf(when, sizeof when, "every %.3g minutes, or less often: at most 5 %% of the time",
                 run_save_pause() / 60);
    else if (o->save_every > 0) snprintf(when, sizeof when, "every %zu steps", o->save_every);
    printf("checkpoints: %sB, %s; on disk, with --keep %zu%s and the weights, up to %sB; free: %sB"
           "%s\n", count_text(state).text, when, o->keep, o->keep_best ? ", the best one" : "",
           count_text(most).text, count_text(room).text,
           room + there < most ? ", NOT ENOUGH for so many: older ones go when it is full" : "");
}

// Finds the best checkpoint for --keep-best. A resumed run's best one stays if its weights exist
// and its loss is of the same validation data. Else OUT/best is renamed, and the best one is chosen
// anew.
static void run_find_best(Run *r) {
    StateBest *b = &r->state.best;
    char best[PATH_MAX], path[PATH_MAX], name[64];
    path_join(best, r->o.out, "best");
    path_join(path, best, "model.safetensors");
    r->best_is_out = path_exists(path);
    state_path(path, r->o.out, b->step);
    if (b->step > 0 && b->data == run_val_hash(r) && (r->best_is_out || path_exists(path))) {
        r->best_is_out = !path_exists(path);  // if the checkpoint exists, OUT/best is written again
    } else if (b->step > 0 || r->best_is_out) {
        snprintf(name, sizeof name, "best_until_%zu", r->state.step);
        path_join(path, r->o.out, name);
        if (r->best_is_out && rename(best, path) != 0)
            die("cannot rename %s to %s: %s", best, path, strerror(errno));
        printf("note: the best so far is of other validation data (--val, --seq, --batch, "
               "--eval-batches), or its weights are gone: the best is chosen anew%s%s\n",
               r->best_is_out ? ", and that one is kept as " : "", r->best_is_out ? path : "");
        b->step = 0;
        r->best_is_out = false;
    }
    if (b->step == 0) *b = (StateBest){0, INFINITY, 0};  // any loss is lower
    struct stat s;
    if (lstat(best, &s) == 0 && S_ISLNK(s.st_mode))
        die("%s is a link: move it away, or what it leads to would be overwritten", best);
    if (!make_directories(best)) die("%s: %s", best, strerror(errno));
    run_save_tokenizer(r, best);
}

#endif
