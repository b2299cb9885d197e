// test_options.c: the values that the command line stores (what it refuses: refused.h),
// how a checkpoint's options and new ones are merged, and the learning rate (open.h).
#include "../../../tide/run/open.h"
#include "../dies.h"
#include "../options_of.h"
#include "../test.h"

static Options cpu(const char *line) { return options_of(line, false); }

// The command line of a run that goes on, and what its checkpoint has.
static Options resume(const char *line, const char *lines, bool gpu) {
    Options o = options_of(line, gpu);
    options_resume(&o, lines);
    return o;
}

static char lines[8192];
static const char *saved(const Options *o) {
    options_write(o, lines, sizeof lines);
    return lines;
}

// Would a checkpoint of these options have all that the words of a line say?
static bool has_saved(const Options *o, const char *line) {
    char *words = strdup(line), *rest = words, *word;
    bool all = true;
    saved(o);
    while ((word = strsep(&rest, " ")) != NULL) {
        char find[200];
        const bool flag = rest == NULL || strncmp(rest, "--", 2) == 0;
        snprintf(find, sizeof find, "%s %s\n", word, flag ? "true" : strsep(&rest, " "));
        for (char *c = find; *c; c++) if (*c == '~') *c = ' ';
        if (strstr(lines, find) == NULL) printf("  %s lacks %s", lines, find);
        all = all && strstr(lines, find) != NULL;
    }
    free(words);
    return all;
}

static void defaults_are_the_documented_ones(void) {
    const Options o = options_of("--data a.txt", true);
    for (int i = 0; i < OPTION_COUNT; i++) {  // what --help shows is what a run has
        const Option *x = &option_table[i];
        char find[300];
        if (!option_is_saved(&o, x) || x->initial == NULL) continue;
        snprintf(find, sizeof find, "--%s %s\n", x->name, x->initial);
        if (x->type != O_REAL || !strcmp(x->initial, "auto"))
            CHECK(strstr(saved(&o), find), "%s", find);
    }
}

// What suits AdamW would end a run of MeZO: its defaults are others, but what is given counts.
static void mezo_has_defaults_of_its_own(void) {
    #define OTHERS "--optimizer mezo --lr 0.25 --weight-decay 0.5 --schedule linear --warmup 7 " \
        "--min-lr 0.125"
    Options o = cpu("--data d --optimizer mezo");
    CHECK(o.lr == 1e-6 && o.weight_decay == 0 && o.schedule == SCHEDULE_CONSTANT
          && o.warmup == 0 && o.min_lr == AUTO_REAL, "%g", o.lr);
    CHECK(schedule_lr(&o, 1) == 1e-6 && schedule_lr(&o, o.steps) == 1e-6, "constant");
    o = cpu("--optimizer mezo -- --optimizer adamw --data d");
    CHECK(o.lr == 6e-4 && o.weight_decay == 0.1 && o.warmup == AUTO_COUNT, "the last one counts");
    // On --resume the checkpoint's values stand before them.
    const Options run = cpu("--data d " OTHERS);
    char *first = strdup(saved(&run));
    CHECK(has_saved(&run, OTHERS), "given");
    o = resume("--resume", first, false);
    CHECK(has_saved(&o, OTHERS), "restored");
}

// Each option is in its field, as what a checkpoint has of it shows.
static void options_are_stored_in_their_fields(void) {
    static const struct { bool gpu; const char *line; } runs[] = {
        {0, "--model gpt2-xl --layers 1 --heads 2 --channels 3 --context 4 --vocab 5 --data a=b "
            "--val v --tokenizer bytes --batch 6 --seq 7 --accum 8 --seed 9007199254740991 "
            "--steps 100 --lr 0.5 --warmup 10 --schedule linear --min-lr 0.25 --weight-decay 0 "
            "--beta1 0.5 --beta2 0.999 --eps 1e-06 --clip 0"},
        {0, "--data d --eval-every 1 --eval-batches 2 --sample-every 3 --sample-tokens 4 "
            "--temperature 0 --top-k 5 --top-p 0.9 --save-every 6 --keep 7 --save-dtype bf16 "
            "--warmup auto --prompt x --keep-best"},
        {0, "--data d --offload zenflow --zen-topk 0.25 --zen-window 7 --zen-reselect 0 "
            "--zen-warmup 99 --zen-overlap off"},
        {0, "--data d --offload zenflow --zen-window auto"},
        // at the limits
        {0, "--data d --steps 10 --warmup 10 --lr 0.25 --min-lr 0.25 --zen-window 0.5 "
            "--offload zenflow"},
        {0, "--steps 0 --data d --warmup 99 --lr 0 --offload zenflow --zen-topk 0 "
            "--zen-window 1048576"},
        {1, "--data d --offload interleave --stride auto --resident 0.2 --subgroup 4096 --slots 1"},
        {1, "--data d --offload twinflow --resident 1"},
        {1, "--data d --optimizer mezo --zo-eps 0.01 --zo-queries 4 --zo-noise rademacher "
            "--labels ~bad|~good --template ~= --precision fp16 --slots 2 --resident-blocks 5 "
            "--no-overlap --zo-no-slots --zo-no-fused-update"}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const Options o = options_of(runs[i].line, runs[i].gpu);
        CHECK(has_saved(&o, runs[i].line), "line %zu", i);
    }
    Options o = cpu("--data=d --out o --threads 8 --dump f --prompt _ --lr .5e-3");
    CHECK(strcmp(o.data, "d") == 0 && strcmp(o.out, "o") == 0 && o.threads == 8, "not saved");
    CHECK(strcmp(o.dump, "f") == 0 && *o.prompt == '\0' && o.lr == 5e-4, "not saved");
    CHECK(strcmp(cpu("--val q --scores s --steps 0").scores, "s") == 0, "alone");
    CHECK(cpu("--data d --lr 1 -- --lr 2 --lr 2 --").lr == 2, "behind --, it replaces the first");
    CHECK(strcmp(cpu("--data d --no-save --no-save --data d").data, "d") == 0, "the same again");
    CHECK(strcmp(cpu("--data d --prompt=--x").prompt, "--x") == 0, "dashes");
    static const struct { const char *text; size_t bytes; } sizes[] = {
        {"3000K", 3000 << 10}, {"0", 0}, {"24gib", (size_t)24 << 30}, {"1t", (size_t)1 << 40},
        {"1048576", 1 << 20}, {"23.5G", (size_t)47 << 29}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char line[80];
        snprintf(line, sizeof line, "--data d --host-memory %s", sizes[i].text);
        CHECK(options_of(line, true).host_memory == sizes[i].bytes, "%s", line);
    }
    char big[5000];  // a long word must neither overflow nor hide what is wrong
    memset(big, 'x', sizeof big);
    big[0] = big[1] = '-';
    big[sizeof big - 1] = '\0';
    CHECK(DIES_WITH("see --help", cpu(big)), "long");
    // A run with a prompt and without data only samples.
    CHECK(cpu("--model m --prompt x").steps == 0, "a sample");
    CHECK(options_of("--plan --model m --prompt x", true).steps == 1000, "a plan");
}

// What --help shows without a word: the rows of what most runs need, on a screen. With `all`: each
// row, in narrow lines.
static void help_is_complete_and_narrow(void) {
    size_t lines_of[2] = {0, 0};
    for (int whole = 0; whole < 2; whole++) {
        char *text, find[80];
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        options_help(f, "train_gpt2", whole);
        fclose(f);
        for (int i = 0; i < OPTION_COUNT; i++) {
            const Option *x = &option_table[i];
            snprintf(find, sizeof find, x->type == O_TITLE ? "\n%s\n" : "\n  --%s ", x->name);
            CHECK((strstr(text, find) != NULL) == (whole || (x->flags & O_MOST) != 0)
                  || x->type == O_TITLE, "%s", x->name);
        }
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1, lines_of[whole]++)
            CHECK(strcspn(line, "\n") <= 100, "%.120s", line);
    }
    CHECK(lines_of[0] <= 48, "%zu lines", lines_of[0]);
}

static void a_checkpoint_restores_what_was_not_given(void) {
    const Options run = cpu("--data a\"b\\.txt --model d12 --batch 3 --seq 64 --warmup 7 "
                            "--lr 0.1234567890123456 --schedule linear --clip 0.30000000000000004 "
                            "--seed 9007199254740991 --prompt a~\x01\n\\n --keep 9 --threads 3 --out o "
                            "--eps 1e-9 --steps 500 --weight-decay 0");
    char *first = strdup(saved(&run));
    Options o = resume("--resume", first, false);
    CHECK(o.lr == run.lr && o.clip == run.clip && strcmp(o.prompt, "a \x01\n\\n") == 0, "%s",
          o.prompt);
    CHECK(o.threads == 0 && strcmp(o.out, "out/default") == 0, "threads and out are not restored");
    CHECK(strcmp(first, saved(&o)) == 0, "%s", lines);
    // Given and allowed to change; given and equal; the auto values.
    #define CHANGES "--steps 900 --lr 1 --schedule cosine --warmup auto --data other --batch 3 " \
        "--seq 64 --keep 1 --min-lr 0.5 --eval-every 0 --save-dtype bf16 --val v"
    o = resume("--resume " CHANGES, first, false);
    CHECK(has_saved(&o, CHANGES " --seed 9007199254740991"), "new and old values");
    for (size_t n = strlen(first); n <= strlen(first) + 1; n++) {
        char *exact = (char *)malloc(n);
        CHECK((DIES(options_write(&run, exact, n)) == NULL) == (n > strlen(first)), "%zu bytes", n);
        free(exact);
    }
}

static void a_checkpoint_refuses_another_run(void) {
    static const char *const fixed[] = {
        "--model gpt2", "--layers 3", "--heads 3", "--channels 12", "--context 9", "--vocab 99",
        "--seq 65", "--seed 1", "--beta1 0.8", "--beta2 0.8", "--eps 1", "--optimizer mezo",
        "--zo-eps 1", "--zo-queries 2", "--zo-noise rademacher", "--labels a|b", "--template x"};
    const Options run = cpu("--data d --model d12 --batch 3 --seq 64");
    saved(&run);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        char line[200];
        snprintf(line, sizeof line, "--resume %s", fixed[i]);
        CHECK(DIES_WITH("contradicts the checkpoint", resume(line, lines, false)), "%s", fixed[i]);
    }
    CHECK(DIES_WITH("longer", resume("--resume --steps 10 --warmup 11", lines, false)),
          "checked after the merge");
    // What this build does not have is skipped, so that CPU and GPU load each other's checkpoints.
    const Options o = resume("--resume", "--data d\\n\\\\n\\x\\\n--precision int4\n--news 1\n"
                                         "--threads 0.5\n", false);
    CHECK(strcmp(o.data, "d\n\\n\\x\\") == 0 && o.threads == 0, "%s", o.data);
}

// Importance-aware updates: their settings stay while they run, and may be others after they did
// not.
static void settings_of_a_mode_that_is_left_may_change(void) {
    #define ZEN "--offload zenflow --zen-topk 0.2 --zen-window auto --zen-reselect 5 --zen-warmup 6"
    static const char *const fixed[] = {"--zen-topk 0.3", "--zen-window 3", "--zen-reselect 3",
                                        "--zen-warmup 3", "--zen-overlap off"};
    const Options run = cpu("--data d " ZEN);
    char line[200], *first = strdup(saved(&run)), *left;
    Options o = resume("--resume --zen-window auto --zen-topk 0.2", first, false);
    CHECK(has_saved(&o, ZEN), "restored, and the same");
    o = resume("--resume --offload none", first, false);
    left = strdup(saved(&o));
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        snprintf(line, sizeof line, "--resume %s", fixed[i]);
        CHECK(DIES_WITH("contradicts", resume(line, first, false))
              && DIES_WITH("needs --offload zenflow", resume(line, left, false)), "%s", line);
        snprintf(line, sizeof line, "--resume --offload zenflow %s", fixed[i]);
        o = resume(line, left, false);
        CHECK(has_saved(&o, fixed[i]) && (o.zen_topk == 0.2) == (i > 0)
              && (o.zen_window < 0) == (i != 1), "what is not given is as before: %s", line);
    }
}

static void the_learning_rate_follows_its_schedule(void) {
    #define HUNDRED "--data d --steps 110 --warmup 10 --lr 1 --min-lr 0.2"
    static const struct { const char *line; size_t step; double lr; } rows[] = {
        {HUNDRED, 1, 0.1}, {HUNDRED, 10, 1},
        {HUNDRED, 35, 0.2 + 0.8 * 0.5 * (1 + 0.70710678118654752)},  // a quarter
        {HUNDRED, 110, 0.2}, {HUNDRED, 111, 0.2}, {HUNDRED " --schedule linear", 35, 0.8},
        {HUNDRED " --schedule constant", 5, 0.5}, {HUNDRED " --schedule constant", 110, 1},
        {"--data d --steps 100 --lr 1", 4, 0.8},    // auto: 5
        {"--data d --steps 100 --lr 1", 100, 0.1},  // and lr / 10
        {"--data d --steps 1 --lr 1", 1, 0.1}};     // one step is the last
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const Options o = cpu(rows[i].line);
        const double lr = schedule_lr(&o, rows[i].step);
        CHECK(fabs(lr - rows[i].lr) <= 1e-15 * rows[i].lr, "%s, step %zu: %.17g", rows[i].line,
              rows[i].step, lr);
    }
    const Options o = cpu("--data d --steps 5 --warmup 0 --lr 1");
    CHECK(schedule_lr(&o, 1) < 1 && schedule_lr(&o, 1) > 0.9, "no warm-up");
}

int main(void) {
    RUN(defaults_are_the_documented_ones);
    RUN(mezo_has_defaults_of_its_own);
    RUN(options_are_stored_in_their_fields);
    RUN(help_is_complete_and_narrow);
    RUN(a_checkpoint_restores_what_was_not_given);
    RUN(a_checkpoint_refuses_another_run);
    RUN(settings_of_a_mode_that_is_left_may_change);
    RUN(the_learning_rate_follows_its_schedule);
    return test_summary();
}
