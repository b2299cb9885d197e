// test_finetune.c: what a step of fine-tuning computes. Rows of several examples have the gradient
// of rows of one, and micro-batches count by their trained tokens. (That prompts are not trained:
// test_task.c, test_gpt2.c.)
#ifndef TESTING  // else another test of the same program has included the trainer
#define TESTING
#include "../../../train_gpt2.c"
#endif
#include "../dies.h"
#include "../files.h"
#include "../gpt2_free.h"
#include "../options_of.h"
#include "../test.h"

static const char *examples =
    "{\"prompt\":\"a short one:\",\"completion\":\" yes\"}\n"
    "{\"text\":\"a document of some more words\"}\n"
    "{\"prompt\":\"which?\",\"choices\":[\" this one\",\" that\"],\"answer\":1}\n"
    "{\"prompt\":\"\",\"completion\":\"nothing before\"}\n"
    "{\"prompt\":\"?\",\"completion\":\"!\"}\n"
    "{\"text\":\"last\"}\n";

typedef struct { double loss, targets; size_t rows, n; float *grads; } Step;

// The loss and the gradient of the first step of a run on the examples.
static Step step_of(const char *options) {
    char text[1024], *argv[64], *val = in_base("val.jsonl"), *data = in_base("data.jsonl");
    put_text(data, examples);
    put_text(val, "{\"text\":\"held out\"}\n");
    snprintf(text, sizeof text, "tide --model nano --layers 2 --heads 2 --channels 16 --context 64 "
             "--steps 1 --lr 0 --clip 0 --eval-every 0 --data %s --val %s --out %s %s", data, val,
             in_base("out"), options);
    const int argc = words_of(text, argv);
    Run *r = (Run *)alloc_or_fail(1, sizeof *r, "run");
    GPT2 *g = (GPT2 *)alloc_or_fail(1, sizeof *g, "model");
    run_open(r, argc, argv, false);
    gpt2_open(g, r);
    const StepResult x = adamw_step(g, r, 1);
    Step s = {x.loss, (double)run_targets(r, 1), r->train.sequences, g->table.elements, NULL};
    s.grads = ALLOC(float, s.n, "gradient");
    memcpy(s.grads, g->grads, s.n * sizeof *s.grads);
    gpt2_free(g);
    close(r->lock);
    return s;
}

static void check_near(const Step *a, const Step *b, const char *what) {
    double apart = 0, length = 0;
    for (size_t i = 0; i < a->n; i++) {
        const double x = (double)a->grads[i], y = (double)b->grads[i];
        apart += (x - y) * (x - y);
        length += y * y;
    }
    CHECK(a->targets == b->targets, "%s: %g and %g are trained", what, a->targets, b->targets);
    CHECK(fabs(a->loss - b->loss) < 1e-6, "%s: loss %.9g and %.9g", what, a->loss, b->loss);
    CHECK(test_within(sqrt(apart / length), 1e-6), "%s: %g apart", what, sqrt(apart / length));
}

// The mean is over the step's tokens, not over those of its micro-batches.
static void packed_is_padded(void) {
    const Step padded = step_of("--batch 6 --seq 48 --pack off");
    const Step packed = step_of("--batch 1 --accum 2 --seq 48");
    const Step short_rows = step_of("--batch 2 --accum 3 --pack off");
    CHECK(packed.rows == 2 && padded.rows == 6, "%zu rows and %zu", packed.rows, padded.rows);
    CHECK(padded.targets == 4 + 28 + 5 + 13 + 1 + 3, "%g", padded.targets);
    check_near(&packed, &padded, "two packed micro-batches");
    check_near(&short_rows, &padded, "three, with rows as long as the longest");
}

int main(void) {
    base_new("finetune");
    RUN(packed_is_padded);
    remove_tree(base);
    return test_summary();
}
