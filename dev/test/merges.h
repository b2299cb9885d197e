// merges.h: a tokenizer from the text of a merges.txt alone. Include it after tokenizer.h.

// Makes a list of the lines of merges.txt. Those without a merge count as the version's.
static Json *tokenizer_lines(const char *merges) {
    Error err;
    char *text = NULL;
    size_t length = 0, n;
    FILE *f = open_memstream(&text, &length);
    if (f == NULL) fail("out of memory: merges.txt");
    for (const char *s = merges; *s != '\0'; s += n + (s[n] == '\n')) {
        n = strcspn(s, "\n");
        const size_t used = n > 0 && s[n - 1] == '\r' ? n - 1 : n;
        fputs(s == merges ? "[" : ", ", f);
        json_write_string(f, used > 0 ? s : "#version", used > 0 ? used : 8);
    }
    fputs("]", f);
    if (fclose(f) != 0) fail("out of memory: merges.txt");
    Json *list = json_parse(text, length, &err);
    free(text);
    return list;
}

// The vocab.json that belongs to merges.txt by GPT-2's rule: the bytes in the order of their
// characters, the results of the merges in the order of the file, <|endoftext|>.
static char *vocabulary_of(const char *merges) {
    char *text = NULL, utf8[4];
    size_t length = 0, id = 0;
    Json *list = tokenizer_lines(merges);
    FILE *f = open_memstream(&text, &length);
    for (uint32_t c = 0; c <= 323; c++) {
        if (tokenizer_char_to_byte(c) < 0) continue;
        fprintf(f, id == 0 ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(c, utf8));
        fprintf(f, ": %zu", id++);
    }
    for (const Json *m = list != NULL ? list->child : NULL; m != NULL; m = m->next) {
        if (strncmp(m->string, "#version", 8) == 0) continue;
        char *both = strdup(m->string), *space = strchr(both, ' ');
        if (space != NULL) memmove(space, space + 1, strlen(space));
        fprintf(f, ", ");
        json_write_string(f, both, strlen(both));
        fprintf(f, ": %zu", id++);
        free(both);
    }
    fprintf(f, ", \"" TOKENIZER_EOT "\": %zu}\n", id);
    fclose(f);
    json_free(list);
    return text;
}

static Tokenizer *tokenizer_of_merges(const char *merges) {
    char *vocabulary = vocabulary_of(merges);
    Tokenizer *t = tokenizer_parse("merges", vocabulary, merges);
    free(vocabulary);
    return t;
}
