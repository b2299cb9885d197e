// Any bytes as a vocabulary, and any bytes as text. The input is cut at its NULs into vocab.json
// (nothing before the first NUL: merges alone), merges.txt and text. Whatever loads must encode the
// text, with the text's own bytes as the result of decoding; the byte tokenizer must, too.
#include "../../tide/tokenizer.h"

static void check_round_trip(const Tokenizer *t, const char *text, size_t n) {
    Error err;
    size_t count = 0, at = 0;
    uint32_t *ids = (uint32_t *)malloc((n + 1) * sizeof *ids);
    if (ids == NULL || !tokenizer_encode(t, text, n, ids, &count, &err)) abort();
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = tokenizer_token(t, ids[i], &length);
        if (length == 0 || length > n - at || memcmp(text + at, bytes, length) != 0) abort();
        at += length;
    }
    if (at != n) abort();
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static Tokenizer *plain, *fixed;
    Error err;
    if (plain == NULL) {
        static const char merges[] = "a a\naa aa\nb c\na b\n\xc4\xa0 a\nc b\naa b\n"
                                     "' s\n\xc3\xa9 a\n";
        plain = tokenizer_bytes();
        fixed = tokenizer_parse(NULL, 0, merges, sizeof merges - 1, &err);
        if (fixed == NULL) abort();
    }
    const char *text = (const char *)data;
    check_round_trip(plain, text, n);
    check_round_trip(fixed, text, n);
    const char *first = (const char *)memchr(text, '\0', n);
    if (first == NULL) return 0;
    size_t vocab_length = (size_t)(first - text), rest = n - vocab_length - 1;
    const char *merges = first + 1, *second = (const char *)memchr(merges, '\0', rest);
    size_t merges_length = second == NULL ? rest : (size_t)(second - merges);
    err.text[0] = '\0';
    Tokenizer *t = NULL;
    if (vocab_length > 0 && data[0] == '#') {  // most vocabularies lack a byte: start from all 256
        char *vocab = NULL;
        size_t length = 0;
        FILE *f = open_memstream(&vocab, &length);
        if (f == NULL) abort();
        for (uint32_t i = 0; i < 256; i++) {
            fprintf(f, i == 0 ? "{\"" : ", \"");
            tokenizer_write(plain, i, true, f);
            fprintf(f, "\": %u", (unsigned)i);
        }
        fwrite(data + 1, 1, vocab_length - 1, f);
        fclose(f);
        t = tokenizer_parse(vocab, length, merges, merges_length, &err);
        free(vocab);
    } else {
        t = tokenizer_parse(vocab_length > 0 ? text : NULL, vocab_length, merges, merges_length,
                            &err);
    }
    if (t == NULL) { if (err.text[0] == '\0') abort(); return 0; }
    check_round_trip(t, text, n);
    tokenizer_free(t);
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("\0#version: 0.2\na a\naa aa\nb c\naaaa bc\n\0aaaaaaaabc aab"), \
    FUZZ_SEED("#, \"aa\": 300, \"ab\": 257, \"aab\": 999}\0a a\r\na b\r\naa b\r\n\0aab ab"), \
    FUZZ_SEED("#, \"</s>\": 260, \"a b\": 261, \"<pad>\": 262}\0#version\n\0</s> <pad>"), \
    FUZZ_SEED("{\"a\": 0, \"b\": 1, \"ab\": 2}\0a b\n"), \
    FUZZ_SEED("I'll  don't\t\n 12\xc2\xbd \xe4\xbd\xa0\xe2\x80\x83x<|endoftext|>\xed\xa0\x80"), \
    FUZZ_SEED("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcbcaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0") }
#include "fuzz_main.h"
