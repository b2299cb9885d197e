// rows.c: shows rows of training data as the model gets them, and which of their tokens are trained.
// See usage_text.
#include "../tool.h"
#include "../../tide/run/run.h"

static const char *const usage_text =
"rows N OPTION...\n"
"    Prints the first N rows that ./train_gpt2 OPTION... would train, and how many of all tokens it\n"
"    trains. Trained tokens are between >> and <<, \\n is a line's end, and special tokens have their\n"
"    names. A document of a packed row begins in a line of its own. Trains and writes nothing.\n";

// Prints a token's text: what is not to be printed as \xHH, and a line's end also as one.
static void print_token(const Tokenizer *t, int32_t token) {
    size_t n;
    if (t == NULL) {
        printf("%d ", token);
        return;
    }
    const char *text = tokenizer_token(t, (uint32_t)token, &n);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\n') fputs("\\n\n  ", stdout);
        else if (c == '\r') fputs("\\r", stdout);
        else if ((c < ' ' && c != '\t') || c == 127) printf("\\x%02X", c);
        else putchar(c);
    }
}

// Prints a document: n inputs and their targets, of which the last is behind the last input.
static void print_document(const Tokenizer *t, const int32_t *inputs, const int32_t *targets,
                           size_t n) {
    bool on = false;
    fputs("  ", stdout);
    for (size_t i = 0; i <= n; i++) {
        const bool trained = i > 0 && targets[i - 1] >= 0;
        if (i == n && !trained) break;
        if (trained != on) fputs(on ? "<<" : ">>", stdout);
        on = trained;
        print_token(t, i < n ? inputs[i] : targets[i - 1]);
    }
    puts(on ? "<<" : "");
}

int main(int argc, char **argv) {
    static Run run, *r = &run;
    program_begin();
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return tool_help(usage_text);
    if (argc < 3) die("usage: rows N OPTION..., with options of ./train_gpt2");
    const size_t rows = (size_t)tool_number("N", argv[1], 1, 1e6, true);
    argv[1] = argv[0];
    char **options = ALLOC(char *, (size_t)argc + 1, "options"), no_save[] = "--no-save";
    memcpy(options, argv + 1, (size_t)(argc - 1) * sizeof *options);
    options[argc - 1] = no_save;
    run_open(r, argc, options, false);
    if (r->train.sequences == 0) die("there is no row to train: --data names none");
    if (r->words) die("with --labels one word behind each prompt is trained: no token of a row is");

    int32_t *inputs = ALLOC(int32_t, 3 * r->T, "a row");  // inputs, targets and begins (T) each
    int32_t *targets = inputs + r->T, *begins = targets + r->T;
    Error err;
    for (size_t k = 0; k < rows && k < r->train.sequences; k++) {
        size_t end = r->T, trained = 0;
        memset(begins, 0, r->T * sizeof *begins);
        if (!run_batch(r, &r->train, k, 1, inputs, targets, begins, &err)) die("%s", err.text);
        while (r->task && end > 0 && targets[end - 1] < 0) end--;  // padding
        for (size_t i = 0; i < end; i++) trained += targets[i] >= 0;
        printf("row %zu of %zu: %zu tokens of %zu, %zu trained\n", k + 1, (size_t)r->train.sequences,
               end, r->T, trained);
        for (size_t at = 0, n; at < end; at += n) {
            for (n = 1; at + n < end && begins[at + n] == begins[at]; n++) {}
            print_document(r->tokenizer, inputs + at, targets + at, n);
        }
    }
    tool_close(stdout, NULL);
    return 0;
}
