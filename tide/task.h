// task.h: labelled sentences as prompts, for fine-tuning by classification. As in MeZO, a sentence
// and a template make a prompt, and each label is a word that could come next:
//     "a warm and witty film" + " It was"     then " terrible" (label 0) or " great" (label 1)
// If every label is one token, the label words share the prompt, and the cross-entropy over the
// candidates is that over their logits at the prompt's last position: one sequence per example, and
// no softmax over the vocabulary.
//
// The file is that of GLUE's SST-2: lines "sentence TAB number of the label", below a line
// "sentence TAB label" that may be absent.
// Sources: Malladi et al. 2023 (MeZO); Gao, Fisch and Chen 2021 (templates and label words).
#ifndef TIDE_TASK_H
#define TIDE_TASK_H
#include "data.h"

enum { TASK_LABELS = 16, TASK_MAX_LINE = 1 << 20 };

typedef struct {
    size_t count;              // examples
    size_t *first;             // (count + 1): prompt i is tokens first[i] .. first[i+1] - 1
    int32_t *tokens;
    int *label;                // (count), 0 .. labels - 1
    size_t longest;            // tokens of the longest prompt
    int labels;
    int32_t word[TASK_LABELS]; // the token of each label
    int32_t first_token;       // with which every prompt begins, or -1
    bool view;                 // owns nothing
} Task;

// Releases everything; safe on a zeroed struct and on views, which must not be used any more once
// the task that they look into is closed.
static inline void task_close(Task *t) {
    if (!t->view) {
        free(t->first);
        free(t->tokens);
        free(t->label);
    }
    memset(t, 0, sizeof *t);
}

// Reads the label words: one token each, all different, and also one token of their own where they
// stand behind the template (in GPT-2's vocabulary a space belongs to the word behind it, so that
// "It was " and "great" are not what they seem).
static inline bool task_words(Task *t, const char *labels, const char *template_text,
                              const Tokenizer *tok, size_t vocab, Error *err) {
    const size_t room = strlen(template_text) + strlen(labels);
    uint32_t *ids = (uint32_t *)malloc((room + 1) * sizeof *ids);
    char *text = (char *)malloc(room + 1);
    bool ok = ids != NULL && text != NULL;
    if (!ok) error_set(err, "not enough memory for --labels and --template");
    for (const char *word = labels, *next; ok && word != NULL; word = next) {
        const char *bar = strchr(word, '|');
        const int length = (int)(bar != NULL ? bar - word : (ptrdiff_t)strlen(word));
        size_t n = 0, before = 0, after = 0;
        next = bar != NULL ? bar + 1 : NULL;
        ok = tokenizer_encode(tok, word, (size_t)length, ids, &n, err);
        if (ok && t->labels == TASK_LABELS)
            ok = error_set(err, "--labels: more than %d words", TASK_LABELS);
        if (ok && n == 0)
            ok = error_set(err, "--labels '%.100s': a word is empty; they stand like this: "
                           "' terrible| great'", labels);
        if (ok && n > 1) {  // which tokens they are tells what is wrong
            char list[200] = "";
            size_t used = 0, bytes;
            for (size_t i = 0; i < n && used < 100; i++) {
                const char *s = tokenizer_token(tok, ids[i], &bytes);
                used += (size_t)snprintf(list + used, sizeof list - used, " '%.*s'",
                                         bytes < 40 ? (int)bytes : 40, s);
            }
            ok = error_set(err, "--labels: '%.*s' is %zu tokens (%s%s), but a label must be one",
                           length < 60 ? length : 60, word, n, list + 1, used < 100 ? "" : " ..");
        }
        if (ok && ids[0] >= vocab)
            ok = error_set(err, "--labels: '%.*s' is token %u, but the model's vocabulary has %zu "
                           "tokens", length, word, ids[0], vocab);
        for (int k = 0; ok && k < t->labels; k++)
            if (t->word[k] == (int32_t)ids[0])
                ok = error_set(err, "--labels: '%.*s' is there twice", length, word);
        if (!ok) break;
        t->word[t->labels++] = (int32_t)ids[0];
        snprintf(text, room + 1, "%s%.*s", template_text, length, word);
        ok = tokenizer_encode(tok, template_text, strlen(template_text), ids, &before, err)
          && tokenizer_encode(tok, text, strlen(text), ids, &after, err);
        if (ok && (after != before + 1 || ids[before] != (uint32_t)t->word[t->labels - 1]))
            ok = error_set(err, "--labels: '%.*s' is no token of its own behind the template "
                           "'%.100s'; a space between them belongs to the label", length, word,
                           template_text);
    }
    if (ok && t->labels < 2)
        ok = error_set(err, "--labels '%.100s': at least two words, with '|' between them", labels);
    free(ids);
    free(text);
    return ok;
}

static inline bool task_is_space(char c) { return c == ' ' || (c >= 9 && c <= 13); }

// Reads one line, without its end, as the next example. There is room for its tokens.
static inline bool task_line(Task *t, const char *where, const char *line, size_t n, char *text,
                             const char *template_text, const Tokenizer *tok, size_t vocab,
                             Error *err) {
    const char *tab = (const char *)memchr(line, '\t', n);
    if (n > TASK_MAX_LINE)
        return error_set(err, "%s: %zu bytes, but a line has at most %d", where, n, TASK_MAX_LINE);
    if (memchr(line, '\0', n) != NULL)
        return error_set(err, "%s: a NUL byte: this is no text", where);
    if (tab == NULL || memchr(tab + 1, '\t', n - (size_t)(tab + 1 - line)) != NULL)
        return error_set(err, "%s: %s TAB; a line is a sentence, a TAB and the number of its label",
                         where, tab == NULL ? "no" : "more than one");
    const char *number = tab + 1, *end = line + n;
    int label = number < end ? 0 : -1;
    for (const char *c = number; c < end && label >= 0 && label < t->labels; c++)
        label = *c >= '0' && *c <= '9' ? 10 * label + (*c - '0') : -1;
    if (label < 0 || label >= t->labels)
        return error_set(err, "%s: the label is '%.*s', but --labels gives words to 0 .. %d", where,
                         end - number < 30 ? (int)(end - number) : 30, number, t->labels - 1);
    while (line < tab && task_is_space(*line)) line++;
    while (tab > line && task_is_space(tab[-1])) tab--;
    if (line == tab) return error_set(err, "%s: the sentence is empty", where);

    size_t k = 0, used = t->first[t->count];
    if (t->first_token >= 0) t->tokens[used++] = t->first_token;
    memcpy(text, line, (size_t)(tab - line));
    memcpy(text + (tab - line), template_text, strlen(template_text));
    // ids are below 2^24, so that it does not matter that the encoder's are unsigned
    if (!tokenizer_encode(tok, text, (size_t)(tab - line) + strlen(template_text),
                          (uint32_t *)t->tokens + used, &k, err)) return false;
    for (size_t i = used; i < used + k; i++)
        if ((size_t)t->tokens[i] >= vocab)
            return error_set(err, "%s: the text has token %d, but the model's vocabulary has %zu "
                             "tokens", where, t->tokens[i], vocab);
    t->label[t->count] = label;
    t->first[++t->count] = used + k;
    const size_t length = used + k - t->first[t->count - 1];
    if (length > t->longest) t->longest = length;
    return true;
}

// Reads the n bytes of a file; see task_open().
static inline bool task_parse(Task *t, const char *name, const char *bytes, size_t n,
                              const char *labels, const char *template_text, const Tokenizer *tok,
                              int32_t first_token, size_t vocab, Error *err) {
    static const char header[] = "sentence\tlabel";
    size_t lines = 1, more = strlen(template_text) + (first_token >= 0), longest = 0;
    memset(t, 0, sizeof *t);
    t->first_token = first_token;
    if (first_token >= 0 && (size_t)first_token >= vocab)
        return error_set(err, "prompts begin with token %d, but the model's vocabulary has %zu "
                         "tokens", first_token, vocab);
    if (!task_words(t, labels, template_text, tok, vocab, err)) {
        task_close(t);
        return false;
    }
    if (n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {  // a byte order mark
        bytes += 3;
        n -= 3;
    }
    for (size_t i = 0, start = 0; i < n; i++) {
        if (i - start > longest) longest = i - start;
        if (bytes[i] == '\n') { lines++; start = i + 1; }
    }
    // a byte is at most one token
    const size_t room = n + lines * more;
    t->first = (size_t *)calloc(lines + 1, sizeof *t->first);
    t->label = (int *)calloc(lines, sizeof *t->label);
    t->tokens = (int32_t *)malloc((room + 1) * sizeof *t->tokens);
    char *text = (char *)malloc(longest + more + 1);
    bool ok = t->first != NULL && t->label != NULL && t->tokens != NULL && text != NULL;
    if (!ok) error_set(err, "%s: not enough memory for the tokens of %zu bytes", name, n);
    for (size_t at = 0, line = 1, next; ok && at < n; at = next, line++) {
        char where[ERR_MAX / 2];
        const char *newline = (const char *)memchr(bytes + at, '\n', n - at);
        size_t length = (newline != NULL ? (size_t)(newline - bytes) : n) - at;
        next = at + length + 1;
        if (length > 0 && bytes[at + length - 1] == '\r') length--;
        if (line == 1 && length == strlen(header) && memcmp(bytes, header, length) == 0) continue;
        snprintf(where, sizeof where, "%.200s, line %zu", name, line);
        ok = task_line(t, where, bytes + at, length, text, template_text, tok, vocab, err);
    }
    if (ok && t->count == 0) ok = error_set(err, "%s: no examples", name);
    free(text);
    if (ok) {
        int32_t *smaller = (int32_t *)realloc(t->tokens, t->first[t->count] * sizeof *t->tokens);
        if (smaller != NULL) t->tokens = smaller;
    } else task_close(t);
    return ok;
}

// Opens a file of labelled sentences. Label number i is the i-th word of `labels`, "word|word|..",
// 2 to 16 of them, each one token of `tok`. A prompt is `first_token` (OPT: 2; -1: none), the
// sentence without white space around it, and `template_text`. All tokens must be < `vocab`.
// On failure nothing is open, and err says why in one sentence. Close with task_close().
static inline bool task_open(Task *t, const char *path, const char *labels,
                             const char *template_text, const Tokenizer *tok, int32_t first_token,
                             size_t vocab, Error *err) {
    size_t n;
    memset(t, 0, sizeof *t);
    void *map = file_map(path, &n, err);
    if (map == NULL) return false;
    const bool ok = task_parse(t, path, (const char *)map, n, labels, template_text, tok,
                               first_token, vocab, err);
    munmap(map, n);
    return ok;
}

// A view of examples from .. to-1.
static inline Task task_view(const Task *all, size_t from, size_t to) {
    Task v = *all;
    v.view = true;
    v.count = to - from;
    v.first += from;  // whose entries count from the start of all->tokens, which stays
    v.label += from;
    v.longest = 0;
    for (size_t i = 0; i < v.count; i++)
        if (v.first[i + 1] - v.first[i] > v.longest) v.longest = v.first[i + 1] - v.first[i];
    return v;
}

// The last `held_out` share of the examples (0 to 1) goes to val, what is before it to train;
// either may end up empty. Nothing is copied: close `all` last.
static inline void task_split(const Task *all, double held_out, Task *train, Task *val) {
    const double share = held_out > 0 ? (held_out < 1 ? held_out : 1) : 0;
    const size_t held = (size_t)((double)all->count * share);
    *train = task_view(all, 0, all->count - held);
    *val = task_view(all, all->count - held, all->count);
}

// Fills rows of T tokens with the examples at `position` and behind it, counted from the start of
// training over all epochs; with shuffle, in an order that depends on seed and epoch, without, in
// the file's. A prompt of more than T tokens loses the ones at its front, but not the first token
// of all; a shorter one is followed by zeros, which causal attention never sees.
// inputs (rows, T); where (rows, 2): the index of the prompt's last token in its row, and the
// label. t->count and T must not be 0.
static inline void task_batch(const Task *t, uint64_t seed, bool shuffle, uint64_t position,
                              size_t rows, size_t T, int32_t *inputs, int32_t *where) {
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

#endif
