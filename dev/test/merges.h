// merges.h: tokenizers for tests, from the text of a merges.txt alone, or of the fixtures. Include it
// after tokenizer.h.
#ifndef TIDE_MERGES_H
#define TIDE_MERGES_H

// Frees a tokenizer, which the trainers keep to their end.
static void tokenizer_free(Tokenizer *t) {
    if (t == NULL) return;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < t->added[k].count; i++) free(t->added[k].tokens[i].content);
        free(t->added[k].tokens);
    }
    for (int i = 0; i < TOKENIZER_FILES; i++) free(t->files[i].text);
    free(t->tokens);
    free(t->bytes);
    free(t->places);
    free(t->merges);
    free(t->joins);
    free(t->stops.ids);
    free(t);
}

// Makes a tokenizer of the texts of vocab.json and merges.txt, or ends the program.
static Tokenizer *tokenizer_of(const char *dir, const char *vocab, const char *merges) {
    Tokenizer *t = ALLOC(Tokenizer, 1, "tokenizer");
    Error err;
    for (int k = FILE_VOCAB; k <= FILE_MERGES; k++) {
        t->files[k].text = strdup(k == FILE_VOCAB ? vocab : merges);
        t->files[k].length = strlen(t->files[k].text);
    }
    if (tokenizer_open(t, dir, &err) != NULL) return t;
    tokenizer_free(t);
    die("%s", err.text);
}

// vocab.json with all 256 bytes, id = value + `first`, and `more` at the end.
static char *byte_vocabulary(unsigned first, const char *more) {
    char *text = NULL, utf8[4];
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (int i = 0; i < 256; i++) {
        fprintf(f, i == 0 ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(tokenizer_byte_to_char(i), utf8));
        fprintf(f, ": %u", (unsigned)i + first);
    }
    fprintf(f, "%s}", more);
    fclose(f);
    return text;
}

// Makes a tokenizer of the bytes (id = value), the results of merges ("a b\n" for each, with a
// newline behind it) from 256 on, and <|endoftext|>.
static Tokenizer *tokenizer_of_merges(const char *merges) {
    char *more = NULL;
    size_t length = 0, id = 256;
    FILE *f = open_memstream(&more, &length);
    for (const char *s = merges, *space; *s != '\0'; s = strchr(space, '\n') + 1) {
        space = strchr(s, ' ');
        fprintf(f, ", \"%.*s%.*s\": %zu", (int)(space - s), s, (int)strcspn(space + 1, "\n"),
                space + 1, id++);
    }
    fprintf(f, ", \"" TOKENIZER_EOT "\": %zu", id);
    fclose(f);
    return tokenizer_of("merges", byte_vocabulary(0, more), merges);
}

// A file of fixtures/tokenizer, or of a folder there.
static char *fixture_read(const char *folder, const char *name, size_t *n) {
    char path[PATH_MAX];
    Error err;
    snprintf(path, sizeof path, "dev/test/fixtures/tokenizer/%s/%s", folder, name);
    char *text = file_read(path, n, &err);
    if (text == NULL) die("%s", err.text);
    return text;
}

// A text with `old`, which is there once, replaced.
static char *altered(const char *text, const char *old, const char *by) {
    const char *at = strstr(text, old);
    char *out = NULL;
    if (at == NULL || strstr(at + 1, old) != NULL) fail("not there once: %s", old);
    if (asprintf(&out, "%.*s%s%s", (int)(at - text), text, by, at + strlen(old)) < 0) exit(1);
    return out;
}

#endif
