// What a run begins with: first values, or those of a checkpoint; labelled sentences for data; and
// samples.
#define _GNU_SOURCE
#include "../../../tide/run/run.h"
#include "../dies.h"
#include "../files.h"
#include "../test.h"
#include "../first_values.h"
#include "../options_of.h"

typedef struct { Run run; float *arena; RunState state; } Trainer;

// Begins a run: the words of `line`, --out OUT.
static Trainer *begin_run(const char *line, const char *out) {
    char text[2048], *arguments[64];
    Trainer *x = ALLOC(Trainer, 1, "run");
    Run *r = &x->run;
    snprintf(text, sizeof text, "tide %s --out %s", line, out);
    run_open(r, words_of(text, arguments), arguments, false);
    x->arena = ALLOC(float, r->table.elements, "weights");
    memset(x->arena, 0xff, r->table.elements * sizeof(float));
    x->state = state_in(&x->arena, 1);
    run_load(r, &x->state);
    options_write(&r->o, r->state.options, sizeof r->state.options);
    return x;
}

static void trainer_free(Trainer *x) {
    close(x->run.lock);
    free(x->arena);
    free(x);
}

static const char *text_file(const char *name, const char *text) {
    put_text(in_base(name), text);
    return in_base(name);
}

static const char *shape;  // of a small model, with its data

// With --master bf16 first weights are bf16 numbers, the nearest; so are those of a checkpoint in
// fp32, unless one is too large.
static void test_weights_in_bf16(void) {
    char *out = in_base("fp32"), line[300];
    snprintf(line, sizeof line, "%s -- --optimizer adamw", shape);
    Trainer *a = begin_run(line, out);
    a->run.done = 1;
    run_save(&a->run, NULL);
    close(a->run.lock);
    strcat(line, " --master bf16");
    Trainer *begun = begin_run(line, in_base("bf16"));
    Trainer *resumed = begin_run("--resume --master bf16", out);
    size_t wrong = 0;
    for (size_t i = 0; i < a->run.table.elements; i++) {
        const float first = bf16_to_f32(f32_to_bf16(a->arena[i]));
        wrong += begun->arena[i] != first || resumed->arena[i] != first;
    }
    CHECK(wrong == 0 && resumed->run.o.master == MASTER_BF16, "%zu weights are others", wrong);
    begun->run.done = 1;
    run_save(&begun->run, NULL);
    trainer_free(begun);
    begun = begin_run("--resume --master fp32", in_base("bf16"));
    wrong = 0;
    for (size_t i = 0; i < a->run.table.elements; i++) wrong += begun->arena[i] != resumed->arena[i];
    CHECK(wrong == 0, "%zu weights are others in fp32 again", wrong);
    resumed->arena[3] = FLT_MAX;
    resumed->run.done = 2;
    run_save(&resumed->run, NULL);
    trainer_free(resumed);
    CHECK(DIES_WITH("too large for this precision", begin_run("--resume", out)), "infinite");
}

// A loaded number is rounded if its part is bf16: weights (parts 0 and 3) by --master, m and v (1 and 2) by --moments.
static void test_parts_in_bf16(void) {
    float arena[4], *arenas[4] = {arena, arena + 1, arena + 2, arena + 3};
    for (int k = 0; k < 16; k++) {
        const int part = k % 4, is_bf16 = part == 1 || part == 2 ? k & 4 : k & 8;
        RunState state = state_in(arenas, 4);
        state.moments_bf16 = (k & 4) != 0;
        state.master_bf16 = (k & 8) != 0;
        float w = 1.001f;
        part_set(&state, part, 0, 1, &w);
        CHECK(arena[part] == (is_bf16 ? 1 : 1.001f), "case %d: %g", k, arena[part]);
    }
}

// How often each of five tokens is drawn in 1000 draws. Computed by hand, from the rules of Hugging
// Face's TopKLogitsWarper, its TopPLogitsWarper, and softmax.
static void test_sampling(void) {
    static const struct {
        double p[5], temperature, top_p;
        size_t top_k;
        int wanted[5];
    } cases[] = {
        {{.1, .4, .2, .25, .05}, 1, 1, 0, {100, 400, 200, 250, 50}},
        {{.1, .4, .2, .25, .05}, 0, 1, 0, {0, 1000, 0, 0, 0}},         // the likeliest
        {{.1, .4, .2, .25, .05}, 0.5, 1, 2, {0, 719, 0, 281, 0}},      // 0.4^2 : 0.25^2
        {{.1, .4, .2, .25, .05}, 1, 0.9, 0, {105, 421, 211, 263, 0}},  // not .85, but .95
        {{.1, .4, .2, .25, .05}, 0.5, 0.8, 0, {0, 719, 0, 281, 0}},      // the tempered ones count
        {{.1, .4, .2, .25, .05}, 1, 0.75, 3, {0, 615, 0, 385, 0}},       // .65 / .85 of top-k's
        {{.2, .2, .2, .2, .2}, 1, 0.5, 0, {333, 333, 333, 0, 0}},        // of equal ones the first
        {{.2, .2, .2, .2, .2}, 1, 1, 2, {500, 500, 0, 0, 0}},
    };
    float logits[5];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int counts[5] = {0};
        for (int k = 0; k < 1000; k++) {
            for (int j = 0; j < 5; j++) logits[j] = logf((float)cases[i].p[j]);
            counts[sample(logits, 5, cases[i].temperature, cases[i].top_k, cases[i].top_p,
                          ((float)k + 0.5f) / 1000)]++;
        }
        for (int j = 0; j < 5; j++) {
            const int wanted = cases[i].wanted[j];
            CHECK(wanted == 0 ? counts[j] == 0 : abs(counts[j] - wanted) <= 1,
                  "case %zu: token %d is drawn %d times, not %d", i, j, counts[j], wanted);
        }
    }
    for (int j = 0; j < 15; j++) {  // nothing is drawn of what is not finite, whatever would be
        for (int k = 0; k < 5; k++) logits[k] = (float)k;
        logits[j % 5] = j < 5 ? NAN : j < 10 ? INFINITY : -INFINITY;
        CHECK(sample(logits, 5, j % 2 == 0 ? 0 : 1, 2, 0.5, 0.5f) == -1, "%g is drawn from",
              logits[j % 5]);
    }
}

// What sample_text() shows the model, as text: all tokens, /, how many are new, and a blank.
// The model makes the tokens '0', '1', .. the likeliest that may be drawn.
typedef struct { char text[200]; int calls; } Seen;

static void see(void *model, const int32_t *tokens, size_t count, size_t fresh, float *logits) {
    Seen *s = (Seen *)model;
    char *end = s->text + strlen(s->text);
    for (size_t i = 0; i < count; i++) *end++ = (char)tokens[i];
    sprintf(end, "/%zu ", fresh);
    memset(logits, 0, 300 * sizeof *logits);
    logits[299] = 2;  // the tokenizer does not have it
    logits['0' + s->calls++] = 1;
}

// The tokens that the model sees: the last ones of a prompt that is too long, and when the context
// of 7 is full the second half of it. The first token of every text, as of OPT's, here ^, stays the
// first. What is drawn is printed, the end of a text (5) ends it.
static void test_sample_window(void) {
    static const struct {
        const char *prompt;
        size_t tokens;
        int first;
        const char *seen, *says;
    } rows[] = {
        {"abcdefgh", 7, -1, "bcdefgh/7 fgh0/4 fgh01/1 fgh012/1 fgh0123/1 1234/4 ",
         "abcdefgh01234\n"},
        {"abc", 5, '^', "^abc/4 ^abc0/1 ^abc01/1 ^abc012/1 ^123/4 ", "abc01234\n"},
        {"abcdefgh", 1, '^', "^cdefgh/7 ", "abcdefgh0\n"},
        {"", 1, '^', "^/1 ", "0\n"},
    };
    Tokenizer *tokenizer = tokenizer_bytes();
    tokenizer->eot = '5';
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Options o = {.prompt = rows[i].prompt, .sample_tokens = rows[i].tokens};
        Seen seen = {"", 0};
        float logits[300];
        Sampler s = {.o = &o, .tokenizer = tokenizer, .next = see, .model = &seen,
                     .begin = rows[i].first, .end = -1, .V = 256, .context = 7, .logits = logits};
        const char *said = PRINTS(sample_text(&s));
        CHECK(strcmp(seen.text, rows[i].seen) == 0, "%zu: it sees %s", i, seen.text);
        CHECK(strcmp(said, rows[i].says) == 0, "%zu: it says %s", i, said);
    }
}

// Labelled sentences: what is trained on and held out, the rows, and their length.
static void test_task(void) {
    char lines[4096] = "sentence\tlabel\n", line[1024];
    for (int i = 0; i < 25; i++)
        snprintf(lines + strlen(lines), 64, "%.*s%c\t%d\n", i % 7, "xxxxxxx", 'A' + i, i % 2);
    snprintf(line, sizeof line, "--data %s --labels 0|1 --template ~is --model nano --layers 1 "
             "--channels 8 --heads 2 --context 32 --seed 5 --steps 4 --batch 4 --optimizer mezo",
             text_file("task.tsv", lines));
    Trainer *a = begin_run(line, in_base("task"));
    Run *r = &a->run;
    int32_t inputs[4 * 16], where[4 * 16];
    CHECK(r->task && r->words && !r->packed && r->train.sequences == 23 && r->val.sequences == 2,
          "%zu and %zu", r->train.sequences, r->val.sequences);
    CHECK(r->T == 16 && r->o.seq == 16 && r->step_tokens == 64, "T %zu", r->T);  // 6 + 1 + 3 = 10
    CHECK(run_batch(r, &r->val, 0, 2, inputs, where, NULL, &err), "%s", err.text);
    CHECK(inputs[2] == 'X' && inputs[3] == ' ' && where[0] == 5 && where[1] == 1, "%d at %d",
          where[1], where[0]);
    CHECK(inputs[16 + 3] == 'Y' && where[2] == 6 && where[3] == 0, "%d at %d", where[3], where[2]);
    CHECK(run_batch(r, &r->train, 0, 1, inputs, where, NULL, &err), "%s", err.text);
    CHECK(inputs[where[0] - 3] != 'A' && where[1] == (inputs[where[0] - 3] - 'A') % 2,
          "not shuffled, or another label");
    CHECK(r->state.data_hash == hash_word(23, task_hash(&r->task_all)), "other data go unnoticed");
    // OPT's texts begin with </s>, those of bytes and of other models not
    r->state.config.family = FAMILY_OPT;
    CHECK(run_first_token(r) == -1, "bytes");
    r->tokenizer = tokenizer_open(ALLOC(Tokenizer, 1, "tokenizer"), TEST_FIXTURES "/tokenizer",
                                  &err);
    CHECK(run_first_token(r) == 2, "no </s>");
    r->state.config.family = FAMILY_GPT2;
    CHECK(run_first_token(r) == -1, "GPT-2");
    trainer_free(a);
}

// Tokens of a row without --seq: what examples need, packed or not, the context, or 2048.
static void test_row_length(void) {
    static const struct {
        const char *context, *options;  // %s: a file of so many examples
        int examples, each;
        size_t T;
    } cases[] = {
        // 10 inputs each ("x..x", and no token behind it), 8 at a time
        {"9000", "--data %s", 3, 10, 32}, {"24", "--data %s", 3, 10, 24},
        {"9000", "--data %s", 400, 10, 2048}, {"9000", "--data %s", 2, 3000, 2048},
        {"9000", "--steps 0 --val %s", 3, 10, 16},
        {"600", "--data LICENSE --val %s", 3, 10, 600},  // questions beside a text
        {"9000", "--data doc/tour.md", 0, 0, 2048}, {"1024", "--data doc/tour.md", 0, 0, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[1024], options[200], text[3001] = "";
        const char *path = in_base("length.jsonl");
        Trainer *a = NULL;
        FILE *f = fopen(path, "w");
        memset(text, 'x', (size_t)cases[i].each);
        for (int k = 0; k < cases[i].examples; k++)
            fprintf(f, "{\"prompt\":\"%s\",\"completion\":\"y\"}\n", text);
        fclose(f);
        snprintf(options, sizeof options, cases[i].options, path);
        snprintf(line, sizeof line, "--model nano --layers 1 --channels 8 --heads 2 --context %s "
                 "--steps 4 --optimizer mezo --tokenizer bytes -- %s", cases[i].context, options);
        const char *said = PRINTS(a = begin_run(line, in_base("length")));
        const Run *r = &a->run;
        CHECK(r->T == cases[i].T && r->o.seq == r->T, "case %zu: %zu tokens", i, r->T);
        CHECK((strstr(said, "without --seq") != NULL) == (r->T < r->state.config.context)
              && (strstr(said, "longer than --seq 2048:") != NULL) == (cases[i].each > 2048),
              "case %zu says: %s", i, said);
        trainer_free(a);
    }
}

// First values of a model of 4 layers: the spread that the table says, smaller where 2 L
// projections add up, one for the norms' weights, nothing in the padding.
static void test_first_values(void) {
    GPT2Config c;
    gpt2_preset(&c, "d4");
    c.vocab = 1000;
    CHECK(gpt2_finish(&c, &err), "%s", err.text);
    GPT2Table t = gpt2_table(&c);
    float *arena = ALLOC(float, t.elements, "parameters");
    gpt2_init(&t, arena, 5);
    for (const GPT2Tensor *x = t.tensors; x < t.tensors + t.count; x++) {
        const size_t n = x->rows * x->cols;
        const float *p = arena + x->offset;
        double sum = 0, squares = 0;
        for (size_t j = 0; j < n; j++) { sum += p[j]; squares += (double)p[j] * p[j]; }
        const bool residual = strstr(x->name, "proj.w") != NULL;
        const bool ones = strstr(x->name, "ln_") != NULL && strstr(x->name, ".w") != NULL;
        const double std = x->rank < 2 ? (ones ? 1 : 0) : residual ? 0.02 / sqrt(8) : 0.02;
        const double spread = sqrt(squares / (double)n);
        CHECK(fabs(spread - std) <= 0.02 * std, "%s: %g, not %g", x->name, spread, std);
        CHECK(x->rank < 2 || fabs(sum / (double)n) < 0.05 * std, "%s is not centred", x->name);
        for (size_t j = n; j < x->size; j++) CHECK(p[j] == 0, "%s: padding", x->name);
    }
    free(t.tensors);
    free(arena);
}

// The factor of fp16's gradients: halved by a step that overflows, doubled after SCALING_STEPS
// others in a row, and 1 in other precisions. AdamW's constants take it out, and do not count what
// was skipped.
static void test_loss_scaling(void) {
    Run *r = ALLOC(Run, 1, "test");
    StepResult fine = {.loss = 2, .norm = 3}, wild = {.loss = 2, .norm = INFINITY, .skipped = true};
    r->o = options_of("--data d --precision fp16 --weight-decay 0 --steps 100", true);
    CHECK(run_loss_scale(r) == SCALING_FIRST, "%g at first", run_loss_scale(r));
    run_scale_loss(r, 1, &wild);
    CHECK(run_loss_scale(r) == SCALING_FIRST / 2 && r->state.scaling.skipped == 1, "%g, halved",
          run_loss_scale(r));
    for (int i = 1; i < SCALING_STEPS; i++) run_scale_loss(r, 2, &fine);
    run_scale_loss(r, 3, &wild);
    for (int i = 1; i < SCALING_STEPS; i++) run_scale_loss(r, 4, &fine);
    CHECK(run_loss_scale(r) == SCALING_FIRST / 4, "%g after two", run_loss_scale(r));
    run_scale_loss(r, 5, &fine);
    CHECK(run_loss_scale(r) == SCALING_FIRST / 2 && r->state.scaling.good == 0, "%g, doubled",
          run_loss_scale(r));
    const double scale = SCALING_FIRST / 2;
    const AdamStep step = run_adam_step(r, 12, 16 * scale * scale, &fine);
    const AdamStep want = adam_step_prepare(schedule_lr(&r->o, 12), 0.9, 0.95, 1e-8, 0, 10,
                                            0.25 / scale);
    CHECK(memcmp(&step, &want, sizeof step) == 0 && fine.norm == 4 && !fine.skipped,
          "norm %g, scale %g", fine.norm, (double)step.grad_scale);
    run_adam_step(r, 13, INFINITY, &wild);
    fine.loss = NAN;
    run_adam_step(r, 13, 1, &fine);
    CHECK(wild.skipped && fine.skipped, "an overflow, or a loss that is no number");
    r->o.precision = PRECISION_BF16;
    run_scale_loss(r, 14, &wild);
    CHECK(run_loss_scale(r) == 1 && r->state.scaling.scale == scale, "bf16");
}

// What a batch system sends, a second later as well, ends nothing at once; nor does the first
// signal of a rank that has heard of another's long before.
static void test_signals_that_are_repeated(void) {
    const double said[NEWS] = {[NEWS_SIGNAL] = SIGXCPU};
    run_hear(said, NEWS);
    if (stop_time != 0) stop_time -= 5;
    request_stop(SIGTERM);
    stop_time -= 5;
    request_stop(SIGUSR1);
    request_stop(SIGPIPE);
    CHECK(stop_requested == SIGXCPU, "%d", (int)stop_requested);
    stop_time = stop_requested = 0;
}

int main(void) {
    static char text[1024];
    base_new("run");
    memset(text, 'x', sizeof text - 1);
    const char *data = text_file("text", text);
    snprintf(text, sizeof text, "--data %s --model nano --layers 1 --channels 8 --heads 2 "
             "--context 8 --seed 5 --optimizer mezo --steps 4 --batch 2 --",
             data);
    shape = text;
    RUN(test_first_values);
    RUN(test_weights_in_bf16);
    RUN(test_parts_in_bf16);
    RUN(test_sampling);
    RUN(test_sample_window);
    RUN(test_task);
    RUN(test_row_length);
    remove_tree(base);
    RUN(test_loss_scaling);
    RUN(test_signals_that_are_repeated);
    return test_summary();
}
