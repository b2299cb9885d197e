// evaluate.h: evaluates the model of a run: the loss of held-out data, the share of questions with
// a right answer, and the loss of each row.
//
//     run_eval()            evaluates --val or the held-out part
//     run_without_steps()   does the work of --steps 0: a sample, a conversation, or an evaluation
//
// A trainer gives the function RunLoss.
#ifndef TIDE_EVALUATE_H
#define TIDE_EVALUATE_H
#include "run.h"

// A trainer's function: returns the mean loss of `rows` sequences of r->val, from number `first`
// on. losses (rows, r->val.T), unless NULL, gets each token's loss. With one-token labels, adds to
// *right how often the right label is the likeliest. Sets r->damage if data cannot be read.
typedef double RunLoss(void *model, Run *r, size_t first, size_t rows, float *losses,
                       size_t *right);

// The score of a batch is the sum of its rows' losses, and the number of right labels. The score of
// a row is the sum of its tokens' losses, and the number of tokens in that sum.
typedef struct { double loss, count; } RunScore;

// Sums a row's losses (T), which are 0 for tokens that are not trained.
static RunScore run_score_row(const Task *t, size_t row, size_t T, const float *losses) {
    RunScore x = {0, (double)T};
    size_t choice = 0;
    if (t != NULL) {
        const size_t i = task_find(t, row, &choice);
        x.count = (double)cut_targets(task_cut(t, i, choice, T));
    }
    for (size_t u = 0; u < T; u++) x.loss += losses[u];
    return x;
}

// Sets *mean to the mean loss of the tokens of all right choices. Returns the share of questions
// (examples with several choices) whose right choice has the highest likelihood per token, which is
// how llm.c scores HellaSwag; -1: there are no questions.
static double run_rank(const Task *t, const RunScore *rows, size_t count, double *mean) {
    RunScore sum = {0, 0};
    double asked = 0, right = 0;
    for (size_t i = 0, row = 0, n; row < count; i++, row += n) {
        const RunScore *x = &rows[row], *answer = &x[t->label[i]];
        size_t best = 0;
        n = t->example[i + 1] - t->example[i] - 1;
        for (size_t k = 1; k < n; k++)
            if (x[k].loss / x[k].count < x[best].loss / x[best].count) best = k;
        sum.loss += answer->loss;
        sum.count += answer->count;
        asked += n > 1;
        right += n > 1 && best == (size_t)t->label[i];
    }
    *mean = sum.loss / sum.count;
    return asked > 0 ? right / asked : -1;
}

// Writes the file of --scores, with a line for each row.
static void run_write_scores(const char *path, const Task *t, const RunScore *rows, size_t count) {
    Error err;
    FILE *f = replace_open(path, &err);
    if (f == NULL) fail("%s", err.text);
    for (size_t row = 0; row < count; row++) {
        size_t i = row, k = 0;
        if (t != NULL) i = task_find(t, row, &k);
        const double mean = rows[row].loss / rows[row].count;
        fprintf(f, "{\"index\":%zu,\"choice\":%zu,\"right\":%s,\"tokens\":%.0f,\"loss\":%.9g,"
                "\"perplexity\":%.9g}\n", i, k,
                t == NULL || (size_t)t->label[i] == k ? "true" : "false", rows[row].count, mean,
                exp(fmin(mean, 700)));
    }
    if (!replace_close(f, path, &err)) fail("%s", err.text);
}

// Sets *mean to the mean loss of the first --eval-batches batches of r->val, in their order.
// Returns the share of right answers; -1: there are no questions. All ranks evaluate equally many
// batches: a rank that has no more repeats one, because others may need its shard of the weights.
static double run_score(Run *r, RunLoss *loss, void *model, double *mean) {
    const Task *t = r->words ? NULL : run_examples(r, &r->val);
    const size_t B = r->B, T = r->val.T, R = r->world;
    size_t sequences = run_val_rows(r), choice = 0;
    if (t != NULL) {  // the last example is evaluated with all of its choices
        const size_t i = task_find(t, sequences - 1, &choice);
        sequences += t->example[i + 1] - t->example[i] - 2 - choice;
    }
    const size_t batches = (sequences + B - 1) / B, turns = (batches + R - 1) / R;
    const bool by_row = t != NULL || r->o.scores != NULL;
    const size_t each = by_row ? B : 1;
    RunScore *mine = ALLOC(RunScore, turns * each * (1 + R), "evaluation");
    RunScore *all = mine + turns * each, sum = {0, 0};
    float *losses = by_row ? ALLOC(float, B * T, "evaluation") : NULL;
    for (size_t i = 0; i < turns && !r->damaged; i++) {
        const size_t first = min_size(r->rank * turns + i, batches - 1) * B;
        const size_t rows = min_size(B, sequences - first);
        size_t right = 0;
        mine[i * each].loss = loss(model, r, first, rows, losses, &right) * (double)rows;
        mine[i * each].count = (double)right;
        if (r->o.scores != NULL) sum.loss += mine[i * each].loss;  // there is only one rank then
        for (size_t b = 0; by_row && b < rows; b++)
            mine[i * each + b] = run_score_row(t, first + b, T, losses + b * T);
        r->damaged = r->damage.text[0] != '\0' || run_gives_up();
    }
    if (r->damaged && (r->o.steps == 0 || R > 1)) die("%s", r->damage.text);
    ranks_exchange(mine, turns * each * sizeof *mine, all);
    for (size_t i = 0; i < (by_row ? sequences : batches); i++) {
        if (!isfinite(all[i].loss))
            fail("the loss of %s %zu of the validation data is not finite: the weights are damaged,"
                 " or too large for --precision; what was saved before is whole",
                 by_row ? "row" : "batch", i);
        if (by_row) continue;
        sum.loss += all[i].loss;
        sum.count += all[i].count;
    }
    *mean = sum.loss / (double)sequences;
    double share = r->words ? sum.count / (double)sequences : -1;
    if (t != NULL) share = run_rank(t, all, sequences, mean);
    if (r->o.scores != NULL) run_write_scores(r->o.scores, t, all, sequences);
    free(losses);
    free(mine);
    return share;
}

// Evaluates the held-out data. Writes the result to the log; at step 0 prints it. A signal ends the
// evaluation, unless --keep-best uses it, ZenFlow's window is open, or no step follows.
static void run_eval(Run *r, size_t step, RunLoss *loss, void *model) {
    double mean;
    Error err;
    stop_waits = r->o.keep_best || r->open || (step > 0 && step == r->o.steps);
    const double right = run_score(r, loss, model, &mean);
    if (r->damaged) return;
    if (step == 0) {
        printf("val loss %.6f", mean);
        printf(right >= 0 ? ", accuracy %.2f %%\n" : "\n", 100 * right);
        if (run_val_rows(r) < r->val.sequences)
            printf("of %zu sequences, the first %zu were evaluated (--eval-batches)\n",
                   r->val.sequences, run_val_rows(r));
        return;
    }
    log_eval(&r->log, step, mean, right);
    if (!log_plot(&r->log, &err)) fprintf(stderr, "tide: warning: %s\n", err.text);
    if (r->o.keep_best && mean < r->lowest) {
        r->lowest = mean;
        r->due = true;  // it is saved as soon as no window is open
    }
}

// Does the work of --steps 0: a sample, a conversation, or an evaluation. With --out, also writes
// the loaded model there, so as to convert it.
static int run_without_steps(Run *r, RunLoss *loss, SampleNext *next, void *model) {
    if (r->only_sampling) run_sample(r, 0, next, model);
    else if (r->batches) run_eval(r, 0, loss, model);
    if (option_given(&r->o, "out") && !r->o.resume) {
        run_save_tokenizer(r, r->o.out);
        run_write(r, 0, false);
    }
    print_end();
    return stop_requested == 0 ? 0 : 128 + (int)stop_requested;
}

#endif
