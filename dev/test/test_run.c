// What a run begins with: first values, kept or made again; and labelled sentences for data.
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>
#include "../../tide/run.h"
#include "dies.h"
#include "files.h"
#include "test.h"

typedef struct { Run run; StateSpan span; float *arena; StatePart part; RunState state; } Trainer;

static Trainer *trainer_new(int argc, const char **argv, bool keeps_base) {
    Trainer *x = (Trainer *)alloc_or_fail(1, sizeof *x, "run");
    Run *r = &x->run;
    run_open(r, argc, (char **)argv, false);
    x->arena = (float *)alloc_or_fail(r->table.elements, sizeof(float), "weights");
    memset(x->arena, 0xff, r->table.elements * sizeof(float));
    x->part = part_whole("param", &x->span, &r->table, x->arena, NULL);
    const RunState state = {&x->part, keeps_base ? 0 : 1, &x->part};
    x->state = state;
    r->keeps_base = keeps_base;
    run_load(r, &x->state);
    options_to_json(&r->o, r->state.options, sizeof r->state.options);
    return x;
}

static void trainer_free(Trainer *x) {
    Run *r = &x->run;
    tokenizer_free(r->tokenizer);
    gpt2_table_free(&r->table);
    options_free(&r->o);
    train_state_free(&r->state);
    free(x->arena);
    free(x);
}

// "tide", the words of `line` (_ is a space), --out OUT. A run's options point into the text: it
// stays for some more runs.
static const char *arguments[64];
static int split(const char *line, const char *out) {
    static char texts[8][2048];
    static int next;
    char *text = texts[next++ % 8];
    int n = 0;
    snprintf(text, sizeof texts[0], "tide %s --out %s", line, out);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        for (char *c = word; *c != '\0'; c++) if (*c == '_') *c = ' ';
        arguments[n++] = word;
    }
    return n;
}
static Trainer *begin(const char *line, const char *out, bool keeps_base) {
    return trainer_new(split(line, out), arguments, keeps_base);
}

// Does the run end with exit code 2 and these words?
static bool refused(const char *line, const char *out, const char *expected) {
    char said[4096] = "";
    int ends[2], status = 0;
    if (pipe(ends) != 0) return false;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        begin(line, out, true);
        _exit(0);
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], said, sizeof said - 1);
    close(ends[0]);
    waitpid(child, &status, 0);
    said[n > 0 ? n : 0] = '\0';
    const bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 2 && strstr(said, expected) != NULL;
    if (!ok) printf("  status %d, it says: %s\n", status, said);
    return ok;
}

static const char *write_text(const char *name, const char *text) {
    FILE *f = fopen(in_base(name), "wb");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0) die("%s", in_base(name));
    return in_base(name);
}

static const char *shape;  // of a small model, with its data

static size_t bytes_in(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (size_t)s.st_size : 0;
}

// A part in bf16.
static void move_bf16(void *owner, size_t at, size_t n, float *w, bool out) {
    uint16_t *half = (uint16_t *)owner + at;
    for (size_t i = 0; i < n; i++)
        if (out) w[i] = bf16_to_f32(half[i]); else half[i] = f32_to_bf16(w[i]);
}

// A checkpoint without weights is small, and gives the run fresh ones again, by its seed; how they
// are stored does not matter. Weights for others are saved with it, or not.
static void test_replay_of_fresh_weights(void) {
    char *out = in_base("fresh"), more[] = "{\"records\":[[1,2,3]]}";
    const char *json = in_base("fresh/checkpoints/step_00000002/state.json");
    const char *model = in_base("fresh/model.safetensors");
    Trainer *a = begin(shape, out, true);
    float *first = (float *)alloc_or_fail(a->run.table.elements, sizeof(float), "weights");
    gpt2_init(&a->run.table, first, 5);
    CHECK(memcmp(a->arena, first, a->run.table.elements * 4) == 0, "other weights");
    CHECK(!a->run.replays && a->run.state.base != 0, "no base");
    a->run.state.more = strdup(more);
    run_save(&a->run, 2, true, &a->state);
    CHECK(bytes_in(model) > a->run.table.parameters * 4, "no model");
    CHECK(bytes_in(json) > 100 && bytes_in(json) < 8192, "%zu bytes", bytes_in(json));
    CHECK(bytes_in(in_base("fresh/checkpoints/step_00000002/state.safetensors")) < 100, "large");
    unlink(model);
    a->state.weights = NULL;
    run_save(&a->run, 3, true, &a->state);
    CHECK(!path_exists(model), "saved though it was not asked for");

    for (int i = 0; i < 3; i++) {
        Trainer *b = begin("--resume", out, i < 2);
        CHECK(b->run.replays && b->run.state.step == 3, "step %zu", b->run.state.step);
        CHECK(strcmp(b->run.state.more, more) == 0, "%s", b->run.state.more);
        CHECK(memcmp(b->arena, first, b->run.table.elements * 4) == 0, "other weights");
        CHECK(b->run.state.base == (i < 2 ? a->run.state.base : 0), "another base");
        uint16_t *half = (uint16_t *)alloc_or_fail(b->run.table.elements, 2, "weights");
        b->part = part_moved("param", half, move_bf16);
        if (i < 2) run_load(&b->run, &b->state);  // dies if the hash depends on the rounding
        CHECK(i == 2 || half[7] == f32_to_bf16(first[7]), "other weights");
        free(half);
        trainer_free(b);
    }
    Trainer *other = begin("--resume --steps 9", out, true);
    CHECK(strcmp(other->run.o.model, "nano") == 0 && other->run.saved_model == NULL, "model");
    trainer_free(other);
    trainer_free(a);
    Trainer *full = begin(shape, in_base("full"), false);
    CHECK(full->run.state.base == 0 && !full->run.replays, "nobody asked for a base");
    full->arena[3] = 77;
    run_save(&full->run, 2, true, &full->state);
    trainer_free(full);
    full = begin("--resume", in_base("full"), false);
    CHECK(full->arena[3] == 77 && full->run.state.base == 0 && !full->run.replays, "loaded");
    trainer_free(full);
    free(first);
}

// The same of weights from a file, which must stay what they are.
static void test_replay_of_loaded_weights(void) {
    char line[1024], *out = in_base("tuned"), *model = in_base("model");
    Trainer *a = begin(shape, model, false);
    for (size_t i = 0; i < a->run.table.parameters; i++) a->arena[i] += 0.5f;  // no preset's
    memset(a->arena + a->run.table.tensors[0].rows * a->run.table.tensors[0].cols, 0,
           (a->run.table.tensors[0].rows_padded - a->run.table.tensors[0].rows)
           * a->run.table.tensors[0].cols * 4);
    run_save(&a->run, 1, false, &a->state);
    snprintf(line, sizeof line, "--data %s --model %s --seq 8 --optimizer mezo "
             "--zo-checkpoint replay --steps 4 --batch 2", in_base("text"), model);
    Trainer *b = begin(line, out, true);
    CHECK(memcmp(a->arena, b->arena, 4 * a->run.table.tensors[0].rows) == 0, "other weights");
    run_save(&b->run, 2, true, &b->state);
    Trainer *c = begin("--resume", out, true);
    CHECK(c->run.replays && memcmp(b->arena, c->arena, b->run.table.elements * 4) == 0, "weights");
    trainer_free(c);
    trainer_free(b);
    CHECK(refused(line, model, "choose another --out"), "the first weights would be replaced");

    const float whole = a->arena[0];
    for (int i = 0; i < 2; i++) {
        a->arena[0] = nextafterf(whole, i == 0 ? -9 : 9);
        run_save(&a->run, 1, false, &a->state);
        CHECK(refused("--resume", out, "are not those that this run began with"), "one ulp");
    }
    CHECK(rename(model, in_base("elsewhere")) == 0, "rename");
    CHECK(refused("--resume", out, "say with --model where they are"), "no model");
    trainer_free(a);
}

// Labelled sentences: what is trained on and held out, the rows, the length of a row.
static void test_task(void) {
    char lines[4096] = "sentence\tlabel\n", line[1024], targets_of[64] = "";
    for (int i = 0; i < 25; i++)
        snprintf(lines + strlen(lines), 64, "%.*s%c\t%d\n", i % 7, "xxxxxxx", 'A' + i, i % 2);
    const char *tsv = write_text("task.tsv", lines);
    snprintf(line, sizeof line, "--data %s --labels 0|1 --template _is --model nano --layers 1 "
             "--channels 8 --heads 2 --context 32 --seed 5 --steps 4 --batch 4 --optimizer mezo",
             tsv);
    Trainer *a = begin(line, in_base("task"), false);
    Run *r = &a->run;
    int32_t inputs[4 * 16], where[4 * 16];
    CHECK(r->task && r->train.sequences == 23 && r->val.sequences == 2, "%zu and %zu",
          r->train.sequences, r->val.sequences);
    CHECK(r->T == 16 && r->o.seq == 16 && r->step_tokens == 64, "T %zu", r->T);  // 6 + 1 + 3 = 10
    CHECK(run_batch(r, &r->val, 0, 2, inputs, where, &err), "%s", err.text);
    CHECK(inputs[2] == 'X' && inputs[3] == ' ' && where[0] == 5 && where[1] == 1, "%d at %d",
          where[1], where[0]);
    CHECK(inputs[16 + 3] == 'Y' && where[2] == 6 && where[3] == 0, "%d at %d", where[3], where[2]);
    for (uint64_t i = 0; i < 23; i++) {  // an epoch has each once, in another order
        CHECK(run_batch(r, &r->train, i, 1, inputs, where, &err), "%s", err.text);
        targets_of[inputs[where[0] - 3] - 'A']++;
        CHECK(where[1] == (inputs[where[0] - 3] - 'A') % 2, "label");
        if (i == 0) CHECK(inputs[where[0] - 3] != 'A', "not shuffled (or one chance in 23)");
    }
    for (int i = 0; i < 25; i++) CHECK(targets_of[i] == (i < 23), "%d times", targets_of[i]);
    const uint64_t hash = r->state.data_hash;
    trainer_free(a);

    char *label = strrchr(lines, '0');
    *label = '1';
    write_text("task.tsv", lines);
    a = begin(line, in_base("task"), false);
    CHECK(a->run.state.data_hash != hash, "another label is other data");
    trainer_free(a);
    snprintf(line + strlen(line), 400, " --val %s --seq 8",
             write_text("val.tsv", "bad\t0\ngood\t1\nso so, and then some\t1\n"));
    a = begin(line, in_base("task"), false);
    CHECK(a->run.train.sequences == 25 && a->run.val.sequences == 3 && a->run.T == 8, "--val");
    trainer_free(a);
    snprintf(line + strlen(line), 400, " --seq 1");
    CHECK(refused(line, in_base("task"), "--seq 2 or more"), "no room for the targets");
    snprintf(line, sizeof line, "--data %s --labels 0|1 --template _is --steps 0 --optimizer mezo",
             write_text("few.tsv", "a\t0\nb\t1\n"));
    CHECK(refused(line, in_base("task"), "fewer than 10 examples"), "nothing held out");

    const char *slash = strrchr(__FILE__, '/');  // OPT's texts begin with </s>, those of bytes not
    const int folder = slash != NULL ? (int)(slash - __FILE__) : 1;
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "--data %s --labels 0|1 --template _is --model %s --layers 1 "
                 "--channels 8 --heads 2 --context 32 --steps 4 --optimizer mezo --tokenizer "
                 "%.*s%s", tsv, i < 2 ? "opt-125m" : "gpt2", i == 1 ? 0 : folder,
                 slash != NULL ? __FILE__ : ".", i == 1 ? "bytes" : "/fixtures/tokenizer");
        a = begin(line, in_base("task"), false);
        CHECK(a->run.task_all.first_token == (i == 0 ? 2 : -1), "%d: %d", i,
              a->run.task_all.first_token);
        trainer_free(a);
    }
}

int main(void) {
    static char text[1024];
    snprintf(base, sizeof base, "/tmp/tide-run-XXXXXX");
    if (mkdtemp(base) == NULL) { perror(base); return 1; }
    memset(text, 'x', sizeof text - 1);
    const char *data = write_text("text", text);
    snprintf(text, sizeof text, "--data %s --model nano --layers 1 --channels 8 --heads 2 "
             "--context 8 --seed 5 --optimizer mezo --zo-checkpoint replay --steps 4 --batch 2",
             data);
    shape = text;
    RUN(test_replay_of_fresh_weights);
    RUN(test_replay_of_loaded_weights);
    RUN(test_task);
    remove_tree(base);
    return test_summary();
}
