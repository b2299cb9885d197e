// Any bytes as a vocabulary, and any bytes as text. The input is cut at its NULs into vocab.json
// (nothing before the first NUL: merges alone), merges.txt and text. Whatever loads must encode the
// text, with the text's own bytes as the result of decoding; the byte tokenizer must, too.
#include "../../tide/files/tokenizer.h"
#include "dies.h"

static void check_round_trip(const Tokenizer *t, const char *text, size_t n) {
    uint32_t *ids = (uint32_t *)malloc((n + 1) * sizeof *ids);
    const size_t count = tokenizer_encode(t, text, n, ids);
    size_t at = 0;
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
    if (plain == NULL) {
        plain = tokenizer_bytes();
        fixed = tokenizer_parse("fuzz", NULL, "a a\naa aa\nb c\na b\n\xc4\xa0 a\nc b\naa b\n"
                                              "' s\n\xc3\xa9 a\n");
    }
    const char *text = (const char *)data;
    check_round_trip(plain, text, n);
    check_round_trip(fixed, text, n);
    char *copy = strndup(text, n);  // up to the first NUL
    const size_t length = strlen(copy);
    char *merges = strndup(text + length + (length < n), n - length - (length < n));
    char *vocab = NULL;
    Tokenizer *t = NULL;
    if (*copy == '#') {  // most vocabularies lack a byte: start from all 256
        const int all = (int)strlen(plain->files[0]) - 2;  // without the bracket
        if (asprintf(&vocab, "%.*s%s", all, plain->files[0], copy + 1) < 0) abort();
    } else if (*copy != '\0') {
        vocab = strdup(copy);
    }
    if (length < n && DIES(t = tokenizer_parse("fuzz", vocab, merges)) == NULL) {
        check_round_trip(t, text, n);
        tokenizer_free(t);
    }
    free(vocab);
    free(merges);
    free(copy);
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
