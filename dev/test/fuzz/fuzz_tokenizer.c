// Any bytes as a tokenizer, and any bytes as text. The input is cut at its NULs. Behind '@' stands
// a tokenizer.json with ' for ", in which '$': 0 stands for the 256 tokens of bytes, and the text;
// else vocab.json (behind '#': what follows the 256 bytes), merges.txt and the text. Whatever
// loads must encode the text. If nothing is normalised or dropped, the text's own bytes must be the
// result of decoding, and the byte tokenizer must give them, too.
#include "../../../tide/files/tokenizer.h"
#include "../dies.h"
#include "../merges.h"
#include <assert.h>

// Does decoding give the text again? Not if bytes are dropped, if added tokens take white space, or
// if their contents are written in another way.
static bool is_exact(const Tokenizer *t) {
    bool exact = t->byte_level && !(t->steps & STEP_NFC);
    for (int i = 0; i < 256; i++) exact &= t->byte_id[i] != TOKENIZER_NONE;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < t->added[k].count; i++) {
            const AddedToken *a = &t->added[k].tokens[i];
            size_t n;
            const char *text = tokenizer_token(t, a->id, &n);
            exact &= !a->lstrip && !a->rstrip && n == a->length && memcmp(text, a->content, n) == 0;
        }
    return exact;
}

static void check_round_trip(const Tokenizer *t, const char *text, size_t n) {
    const bool exact = is_exact(t);
    char *copy = (char *)malloc(n > 0 ? n : 1);  // for the address sanitizer
    memcpy(copy, text, n);
    for (int how = 0; how < 4; how++) {
        Tokens ids = {NULL, 0, 0};
        tokenizer_encode(t, copy, n, how, &ids);
        size_t at = 0, length;
        for (size_t i = 0; i < ids.count; i++) {
            const char *bytes = tokenizer_token(t, ids.ids[i], &length);
            assert(length > 0);
            assert(!exact || (length <= n - at && memcmp(text + at, bytes, length) == 0));
            at += length;
        }
        assert(!exact || at == n);
        free(ids.ids);
    }
    free(copy);
}

static void check_json(const char *json, const char *text, size_t n) {
    const char *mark = strstr(json, "'$': 0");
    Tokenizer *t = ALLOC(Tokenizer, 1, "tokenizer");
    TokenizerFile *whole = &t->files[FILE_JSON];
    Error err;
    FILE *f = open_memstream(&whole->text, &whole->length);
    fwrite(json, 1, mark != NULL ? (size_t)(mark - json) : strlen(json), f);
    for (int i = 0; i < 256 && mark != NULL; i++)
        fprintf(f, "%s'<0x%02X>': %d", i > 0 ? ", " : "", (unsigned)i, 1000 + i);
    if (mark != NULL) fputs(mark + 6, f);
    fclose(f);
    for (char *c = whole->text; *c != '\0'; c++) {
        if (*c == '\'') *c = '"';
        else if (*c == '^' && c[1] != '\\') *c = '\'';
    }
    if (tokenizer_open(t, "fuzz", &err) != NULL) check_round_trip(t, text, n);
    else assert(strncmp(err.text, "fuzz/tokenizer.json", 19) == 0);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static Tokenizer *plain, *fixed;
    if (plain == NULL) {
        plain = tokenizer_bytes();
        fixed = tokenizer_of_merges("a a\naa aa\nb c\na b\n\xc4\xa0 a\nc b\naa b\n' s\n\xc3\xa9 a\n");
    }
    const char *text = (const char *)data;
    check_round_trip(plain, text, n);
    check_round_trip(fixed, text, n);
    char *copy = strndup(text, n);  // up to the first NUL
    const size_t length = strlen(copy);
    char *merges = strndup(text + length + (length < n), n - length - (length < n));
    char *vocab = NULL;
    Tokenizer *t = NULL;
    if (*copy == '@') {
        check_json(copy + 1, text + length, n - length);
    } else if (*copy == '#') {  // most vocabularies lack a byte: start from all 256
        const char *all = plain->files[FILE_VOCAB].text;  // without the bracket
        if (asprintf(&vocab, "%.*s%s", (int)strlen(all) - 2, all, copy + 1) < 0) abort();
    } else {
        vocab = strdup(copy);
    }
    if (*copy != '@' && length < n && DIES(t = tokenizer_of("fuzz", vocab, merges)) == NULL) {
        check_round_trip(t, text, n);
        tokenizer_free(t);
    }
    free(vocab);
    free(merges);
    free(copy);
    return 0;
}

// tokenizer.json with ' for ": check_json() puts them in. An apostrophe is written ^.
#define BYTES "{'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}"
#define SPLIT(numbers) "'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [" \
    "{'type': 'Split', 'pattern': {'Regex': '(?i:^s|^t|^re|^ve|^m|^ll|^d)|" \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers "|" \
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+'}, 'behavior': 'Isolated', 'invert': false}, " BYTES "]}, " \
    "'decoder': " BYTES
#define REPLACES(a, b) "{'type': 'Replace', 'pattern': {'String': '" a "'}, 'content': '" b "'}"
#define SPACES "'decoder': {'type': 'Sequence', 'decoders': [" REPLACES(TOKENIZER_SPACE, " ") ", " \
    "{'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, " \
    "'stop': 0}]}, 'model': {'byte_fallback': true, 'vocab': {'$': 0, '" TOKENIZER_SPACE "': 0, " \
    "'a': 1, '" TOKENIZER_SPACE "a': 2, '\xc3\xa9': 3, 'a\xc3\xa9': 4}, " \
    "'merges': ['" TOKENIZER_SPACE " a', 'a \xc3\xa9']}"
#define FUZZ_SEEDS { \
    FUZZ_SEED("#, \"aa\": 300, \"ab\": 257, \"aab\": 999}\0a a\r\na b\r\naa b\r\n\0aab ab"), \
    FUZZ_SEED("#, \"</s>\": 260, \"a b\": 261, \"<pad>\": 262}\0#version\n\0</s> <pad>"), \
    FUZZ_SEED("{\"a\": 0, \"b\": 1, \"ab\": 2}\0a b\n"), \
    FUZZ_SEED("I'll  don't\t\n 12\xc2\xbd \xe4\xbd\xa0\xe2\x80\x83x<|endoftext|>\xed\xa0\x80"), \
    FUZZ_SEED("@{'model': {'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': ['a b']}, " \
              "'added_tokens': [{'id': 3, 'content': '<x>', 'special': true, 'rstrip': true}], " \
              SPLIT("\\\\p{N}{1,3}") "}\0abab <x> abc\r\n\r\n 1234'Sab"), \
    FUZZ_SEED("@{'normalizer': {'type': 'NFC'}, 'model': {'ignore_merges': true, 'vocab': " \
              "{'a': 0, '\xc3\x83': 1, '\xc2\xa9': 2, 'a\xc3\x83': 3}, 'merges': " \
              "[['a', '\xc3\x83']]}, " SPLIT("\\\\p{N}") \
              "}\0ae\xcc\x81 a\xc3\xa9 \xea\xb0\x80\xe1\x86\xa8\xcc\xa3\xcc\x81"), \
    FUZZ_SEED("@{'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'Prepend', " \
              "'prepend': '" TOKENIZER_SPACE "'}, " REPLACES(" ", TOKENIZER_SPACE) "]}, " \
              "'added_tokens': [{'id': 261, 'content': '</s>', 'normalized': true, 'lstrip': " \
              "true}], " SPACES ", 'post_processor': {'type': 'TemplateProcessing', 'single': " \
              "[{'SpecialToken': {'id': '</s>'}}, {'Sequence': {'id': 'A'}}], " \
              "'special_tokens': {'</s>': {'ids': [261]}}}}" \
              "\0a a\xc3\xa9 </s> \xff\xe2\x96\x81"), \
    FUZZ_SEED("@{'pre_tokenizer': {'type': 'Metaspace', 'replacement': '" TOKENIZER_SPACE "', " \
              "'prepend_scheme': 'first', 'split': false}, " SPACES "}\0 a  a\xe2\x96\x81"), \
    FUZZ_SEED("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcbcaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0") }
#define FUZZ_KINDS {{"vocab", FUZZ_SEED("#")}}
#include "fuzz_main.h"
