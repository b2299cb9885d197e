// merges.h: tokenizers for tests, from the text of a merges.txt alone, or of the fixtures. Include it
// after tokenizer.h.
#ifndef TIDE_MERGES_H
#define TIDE_MERGES_H

// The vocab.json that belongs to merges.txt by GPT-2's rule: the bytes in the order of their
// characters, the results of the merges in the order of the file, <|endoftext|>.
static char *vocabulary_of(const char *merges) {
    char *text = NULL, utf8[4];
    size_t length = 0, id = 0, n;
    FILE *f = open_memstream(&text, &length);
    for (uint32_t c = 0; c <= 323; c++) {
        if (tokenizer_char_to_byte(c) < 0) continue;
        fprintf(f, id == 0 ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(c, utf8));
        fprintf(f, ": %zu", id++);
    }
    for (const char *s = merges; *s != '\0'; s += n + (s[n] == '\n')) {
        n = strcspn(s, "\n");
        const size_t used = n - (n > 0 && s[n - 1] == '\r');
        if (used == 0 || strncmp(s, "#version", 8) == 0) continue;
        char *both = strndup(s, used), *space = strchr(both, ' ');
        if (space != NULL) memmove(space, space + 1, strlen(space));
        fprintf(f, ", ");
        json_write_string(f, both, strlen(both));
        fprintf(f, ": %zu", id++);
        free(both);
    }
    fprintf(f, ", \"" TOKENIZER_EOT "\": %zu}\n", id);
    fclose(f);
    return text;
}

// Makes a tokenizer of the texts of vocab.json and merges.txt, or ends the program.
static Tokenizer *tokenizer_of(const char *dir, const char *vocab, const char *merges) {
    Tokenizer *t = ALLOC(Tokenizer, 1, "tokenizer");
    Error err;
    for (int k = FILE_VOCAB; k <= FILE_MERGES; k++) {
        t->files[k].text = strdup(k == FILE_VOCAB ? vocab : merges);
        t->files[k].length = strlen(t->files[k].text);
    }
    t = tokenizer_parse(t, dir, &err);
    if (t == NULL) die("%s", err.text);
    return t;
}

static Tokenizer *tokenizer_of_merges(const char *merges) {
    char *vocabulary = vocabulary_of(merges);
    Tokenizer *t = tokenizer_of("merges", vocabulary, merges);
    free(vocabulary);
    return t;
}

// vocab.json with all 256 bytes (but `missing`), id = value + `first`, and `more` at the end.
static char *byte_vocabulary(int missing, unsigned first, const char *more) {
    char *text = NULL, utf8[4];
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (int i = 0; i < 256; i++) {
        if (i == missing) continue;
        fprintf(f, i == (missing == 0) ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(tokenizer_byte_to_char(i), utf8));
        fprintf(f, ": %u", (unsigned)i + first);
    }
    fprintf(f, "%s}", more);
    fclose(f);
    return text;
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
