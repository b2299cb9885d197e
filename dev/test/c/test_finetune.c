// test_finetune.c: what a step of fine-tuning computes. Prompts are not trained, rows of several
// examples have the gradient of rows of one, and micro-batches count by their trained tokens.
#ifndef TESTING  // else another test of the same program has included the trainer
#define TESTING
#include "../../../train_gpt2.c"
#endif
#include "../dies.h"
#include "../files.h"
#include "../gpt2_free.h"
#include "../options_of.h"
#include "../test.h"

typedef struct { double loss, targets; size_t rows, n; double *grads; } Step;

// The loss and the gradient of the first step of a run on these lines.
static Step step_of(const char *lines, const char *options) {
    static const char model[] = "tide --model nano --layers 2 --heads 2 --channels 16 --context 64 "
                                "--steps 1 --lr 0 --clip 0 --eval-every 0";
    char text[1024], *argv[64], *val = in_base("val.jsonl"), *data = in_base("data.jsonl");
    put_text(data, lines);
    put_text(val, "{\"text\":\"held out\"}\n");
    snprintf(text, sizeof text, "%s --data %s --val %s --out %s %s", model, data, val,
             in_base("out"), options);
    const int argc = words_of(text, argv);
    Run *r = (Run *)alloc_or_fail(1, sizeof *r, "run");
    GPT2 *g = (GPT2 *)alloc_or_fail(1, sizeof *g, "model");
    run_open(r, argc, argv, false);
    gpt2_open(g, r);
    const StepResult x = adamw_step(g, r, 1);
    Step s = {x.loss, (double)run_targets(r, 1), r->train.sequences, g->table.elements, NULL};
    s.grads = ALLOC(double, s.n, "gradient");
    for (size_t i = 0; i < s.n; i++) s.grads[i] = (double)g->grads[i];
    gpt2_free(g);
    close(r->lock);
    return s;
}

// How far a is from b, as a share of b's length.
static double distance(const double *a, const double *b, size_t n) {
    double apart = 0, length = 0;
    for (size_t i = 0; i < n; i++) {
        apart += (a[i] - b[i]) * (a[i] - b[i]);
        length += b[i] * b[i];
    }
    return sqrt(apart / length);
}

// Of a text the loss is a sum over all its tokens but the first. A completion has the part of its
// own, and what is missing to the whole is, to the last term, that of the prompt as a text.
static void prompts_are_not_trained(void) {
    const char *options = "--batch 1 --seq 32 --pack off";
    const Step whole = step_of("{\"text\":\"who is there? the cat\"}", options);
    const Step prompt = step_of("{\"text\":\"who is there?\"}", options);
    const Step half = step_of("{\"prompt\":\"who is there?\",\"completion\":\" the cat\"}",
                              options);
    CHECK(whole.targets == 20 && prompt.targets == 12 && half.targets == 8, "%g %g %g",
          whole.targets, prompt.targets, half.targets);
    const double own = distance(half.grads, whole.grads, whole.n);
    CHECK(own > 0.1, "the prompt has no gradient of its own: %g", own);
    for (size_t i = 0; i < whole.n; i++)
        half.grads[i] = (8 * half.grads[i] + 12 * prompt.grads[i]) / 20;
    const double apart = distance(half.grads, whole.grads, whole.n);
    CHECK(test_within(apart, 1e-6), "the parts are %g from the whole", apart);
    CHECK(fabs(20 * whole.loss - 12 * prompt.loss - 8 * half.loss) < 1e-5, "%g, %g, %g",
          whole.loss, prompt.loss, half.loss);
}

static const char *examples =
    "{\"prompt\":\"a short one:\",\"completion\":\" yes\"}\n"
    "{\"text\":\"a document of some more words\"}\n"
    "{\"prompt\":\"which?\",\"choices\":[\" this one\",\" that\"],\"answer\":1}\n"
    "{\"prompt\":\"\",\"completion\":\"nothing before\"}\n"
    "{\"prompt\":\"?\",\"completion\":\"!\"}\n"
    "{\"text\":\"last\"}\n";

static void check_near(const Step *a, const Step *b, const char *what) {
    const double apart = distance(a->grads, b->grads, a->n);
    CHECK(a->targets == b->targets, "%s: %g and %g are trained", what, a->targets, b->targets);
    CHECK(fabs(a->loss - b->loss) < 1e-6, "%s: loss %.9g and %.9g", what, a->loss, b->loss);
    CHECK(test_within(apart, 1e-6), "%s: %g apart", what, apart);
}

// The mean is over the step's tokens, not over those of its micro-batches.
static void packed_is_padded(void) {
    const Step padded = step_of(examples, "--batch 6 --seq 48 --pack off");
    const Step packed = step_of(examples, "--batch 1 --accum 2 --seq 48");
    const Step short_rows = step_of(examples, "--batch 2 --accum 3 --pack off");
    CHECK(packed.rows == 2 && padded.rows == 6, "%zu rows and %zu", packed.rows, padded.rows);
    CHECK(padded.targets == 4 + 28 + 5 + 13 + 1 + 3, "%g", padded.targets);
    check_near(&packed, &padded, "two packed micro-batches");
    check_near(&short_rows, &padded, "three, with rows as long as the longest");
}

int main(void) {
    base_new("finetune");
    RUN(prompts_are_not_trained);
    RUN(packed_is_padded);
    remove_tree(base);
    return test_summary();
}
