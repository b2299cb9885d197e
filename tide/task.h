// task.h: labelled sentences as prompts, for fine-tuning by classification. As in MeZO, a sentence
// and a template make a prompt, and each label is a word that could come next:
//     "a warm and witty film" + " It was"     then " terrible" (label 0) or " great" (label 1)
// If every label is one token, the label words share the prompt, and the cross-entropy over the
// candidates is that over their logits at the prompt's last position: one sequence per example, and
// no softmax over the vocabulary.
//
//     task_open()    reads a file; task_parse(): the text of one
//     task_split()   the last part is held out; task_view(): any part
//     task_batch()   the prompts and labels at a position
//
// The file is that of GLUE's SST-2: lines "sentence TAB number of the label", below a line
// "sentence TAB label" that may be absent. What is wrong with it ends the program with one line.
// Sources: Malladi et al. 2023 (MeZO); Gao, Fisch and Chen 2021 (templates and label words).
#ifndef TIDE_TASK_H
#define TIDE_TASK_H
#include "data.h"

enum { TASK_LABELS = 16 };

typedef struct {
    size_t count;              // examples
    size_t *first;             // (count + 1): prompt i is tokens first[i] .. first[i+1] - 1
    int32_t *tokens;
    int *label;                // (count), 0 .. labels - 1
    size_t longest;            // tokens of the longest prompt of the file
    int labels;
    int32_t word[TASK_LABELS]; // the token of each label
    int32_t first_token;       // with which every prompt begins, or -1
} Task;

// Encodes a + b into `out`, which has room for a token per byte; returns how many. The model must
// know all of them.
static size_t task_encode(const char *where, const char *a, const char *b, const Tokenizer *tok,
                          size_t vocab, int32_t *out) {
    char *text = ALLOC(char, strlen(a) + strlen(b) + 1, "a prompt");
    // ids are below 2^24, so that it does not matter that the encoder's are unsigned
    const size_t n = tokenizer_encode(tok, text, (size_t)sprintf(text, "%s%s", a, b),
                                      (uint32_t *)out);
    for (size_t i = 0; i < n; i++)
        if ((size_t)out[i] >= vocab)
            die("%s has token %d, but the model's vocabulary has %zu tokens", where, out[i], vocab);
    free(text);
    return n;
}

// Reads the label words: one token each, all different, and also one token of their own where they
// stand behind the template (in GPT-2's vocabulary a space belongs to the word behind it, so that
// "It was " and "great" are not what they seem).
static void task_words(Task *t, const char *labels, const char *template_text,
                       const Tokenizer *tok, size_t vocab) {
    int32_t *ids = ALLOC(int32_t, strlen(template_text) + strlen(labels) + 1, "labels");
    char *words = strdup(labels), *rest = words, *word;
    while ((word = strsep(&rest, "|")) != NULL) {
        const size_t n = task_encode("--labels", word, "", tok, vocab, ids);
        if (t->labels == TASK_LABELS) die("--labels: more than %d words", TASK_LABELS);
        if (n != 1)
            die("--labels: '%s' is %zu tokens, but a label must be one, and they stand like this: "
                "' terrible| great'", word, n);
        for (int k = 0; k < t->labels; k++)
            if (t->word[k] == ids[0]) die("--labels: '%s' is there twice", word);
        t->word[t->labels++] = ids[0];
        const size_t before = task_encode("--template", template_text, "", tok, vocab, ids);
        if (task_encode("--template", template_text, word, tok, vocab, ids) != before + 1
            || ids[before] != t->word[t->labels - 1])
            die("--labels: '%s' is no token of its own behind the template '%s'; a space between "
                "them belongs to the label", word, template_text);
    }
    if (t->labels < 2) die("--labels '%s': at least two words, with '|' between them", labels);
    free(words);
    free(ids);
}

// Examples from the text of a file, which is cut into pieces on the way; see task_open().
static Task task_parse(const char *name, char *text, const char *labels, const char *template_text,
                       const Tokenizer *tok, int32_t first_token, size_t vocab) {
    size_t lines = 1, number = 0, used = 0;
    Task t;
    memset(&t, 0, sizeof t);
    t.first_token = first_token;
    if (first_token >= 0 && (size_t)first_token >= vocab)
        die("prompts begin with token %d, but the model's vocabulary has %zu", first_token, vocab);
    task_words(&t, labels, template_text, tok, vocab);
    for (const char *c = text; *c != '\0'; c++) lines += *c == '\n';
    t.first = ALLOC(size_t, lines + 1, "examples");
    t.label = ALLOC(int, lines, "examples");
    // a byte is at most one token
    t.tokens = ALLOC(int32_t, strlen(text) + lines * (strlen(template_text) + 1), "prompts");
    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        static const char space[] = " \t\r\v\f";
        char where[PATH_MAX], *end = line + strlen(line), *tab;
        if (end > line && end[-1] == '\r') *--end = '\0';
        number++;
        if ((number == 1 && strcmp(line, "sentence\tlabel") == 0) || (text == NULL && !*line))
            continue;
        snprintf(where, sizeof where, "%s, line %zu", name, number);
        end = tab = strchr(line, '\t');
        const size_t digits = tab == NULL ? 0 : strspn(tab + 1, "0123456789");
        const long label = digits > 0 && digits < 10 ? atol(tab + 1) : -1;
        if (label < 0 || label >= t.labels || tab[1 + digits] != '\0')
            die("%s: not a sentence, a TAB and the number of its label, 0 to %d", where,
                t.labels - 1);
        while (end > line && strchr(space, end[-1]) != NULL) end--;
        *end = '\0';
        line += strspn(line, space);
        if (*line == '\0') die("%s: the sentence is empty", where);
        if (first_token >= 0) t.tokens[used++] = first_token;
        used += task_encode(where, line, template_text, tok, vocab, t.tokens + used);
        t.label[t.count] = (int)label;
        t.first[++t.count] = used;
        if (used - t.first[t.count - 1] > t.longest) t.longest = used - t.first[t.count - 1];
    }
    if (t.count == 0) die("%s: no examples", name);
    return t;
}

// Opens a file of labelled sentences. Label number i is the i-th word of `labels`, "word|word|..",
// 2 to 16 of them, each one token of `tok`. A prompt is `first_token` (OPT: 2; -1: none), the
// sentence without white space around it, and `template_text`. All tokens must be < `vocab`.
static Task task_open(const char *path, const char *labels, const char *template_text,
                      const Tokenizer *tok, int32_t first_token, size_t vocab) {
    size_t n = 0;
    Error err;
    char *text = file_read(path, &n, &err);
    if (text == NULL) die("%s", err.text);
    if (strlen(text) != n) die("%s: a NUL byte: this is no text", path);
    const Task t = task_parse(path, text, labels, template_text, tok, first_token, vocab);
    free(text);
    return t;
}

// A view of examples from .. to-1.
static Task task_view(const Task *all, size_t from, size_t to) {
    Task v = *all;
    v.count = to - from;
    v.first += from;  // whose entries count from the start of all->tokens, which stays
    v.label += from;
    return v;
}

// The last `held_out` share of the examples (0 to 1) goes to val, what is before it to train;
// either may end up empty. Nothing is copied.
static void task_split(const Task *all, double held_out, Task *train, Task *val) {
    const size_t held = (size_t)((double)all->count * held_out);
    *train = task_view(all, 0, all->count - held);
    *val = task_view(all, all->count - held, all->count);
}

// Fills rows of T tokens with the examples at `position` and behind it, counted from the start of
// training over all epochs; with shuffle, in an order that depends on seed and epoch, without, in
// the file's. A prompt of more than T tokens loses the ones at its front, but not the first token
// of all; a shorter one is followed by zeros, which causal attention never sees.
// inputs (rows, T); where (rows, 2): the index of the prompt's last token in its row, and the
// label. t->count and T must not be 0.
static void task_batch(const Task *t, uint64_t seed, bool shuffle, uint64_t position, size_t rows,
                       size_t T, int32_t *inputs, int32_t *where) {
    for (size_t b = 0; b < rows; b++) {
        const uint64_t epoch = (position + b) / t->count;
        uint64_t i = (position + b) % t->count;
        if (shuffle) {
            const Philox4 k = philox4x32(seed, (uint32_t)epoch, (uint32_t)(epoch >> 32), 0,
                                         RNG_SHUFFLE);
            i = permute(i, t->count, (uint64_t)k.x[0] << 32 | k.x[1]);
        }
        const int32_t *prompt = t->tokens + t->first[i];
        int32_t *row = inputs + b * T;
        const size_t n = t->first[i + 1] - t->first[i], kept = n < T ? n : T;
        memcpy(row, prompt + (n - kept), kept * sizeof *row);
        if (t->first_token >= 0) row[0] = t->first_token;
        memset(row + kept, 0, (T - kept) * sizeof *row);
        where[2 * b] = (int32_t)kept - 1;
        where[2 * b + 1] = t->label[i];
    }
}

// Tells one task from another: of all its tokens and labels.
static uint64_t task_hash(const Task *t) {
    if (t->count == 0) return 0;
    const uint64_t parts[] = {hash_bytes(t->first, (t->count + 1) * sizeof *t->first),
                              hash_bytes(t->tokens, t->first[t->count] * sizeof *t->tokens),
                              hash_bytes(t->label, t->count * sizeof *t->label)};
    return hash_bytes(parts, sizeof parts);
}

#endif
