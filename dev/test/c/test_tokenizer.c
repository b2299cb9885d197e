// Tests of tokenizer.h and what it stands on. fixtures/tokenizer/expected.txt has the ids of two
// other implementations (see make_fixture.py there), cases.jsonl those of Hugging Face for variants
// of three tokenizer.json (make_cases.py). With TIDE_TOKENIZERS=DIR in the environment those of DIR's
// folders are tested as well, for which DIR/cases.jsonl has the ids (check_published() says how).
#include "../../data/blocks.h"
#include "../dies.h"
#include "../files.h"
#include "../merges.h"
#include "../refused.h"
#include "../test.h"

static const char fixture[] = TEST_FIXTURES "/tokenizer";

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n) {  // xorshift64
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % n;
}

static size_t encode(const Tokenizer *t, const char *text, size_t n, uint32_t **ids) {
    Tokens list = {NULL, 0, 0};
    tokenizer_encode(t, text, n, 0, &list);
    *ids = tokens_room(&list, 1) - list.count;
    return list.count;
}

static char *read_file(const char *dir, const char *name, size_t *n) {
    char path[PATH_MAX];
    Error err;
    path_join(path, dir, name);
    char *text = file_read(path, n, &err);
    if (text == NULL) die("%s", err.text);
    return text;
}

// The text of ids, of which the first begins a text.
static char *decoded(const Tokenizer *t, const uint32_t *ids, size_t count, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *s = tokenizer_token(t, ids[i], &length);
        const bool space = i == 0 && length > 0 && *s == ' ' && (t->steps & STEP_STRIP);
        fwrite(s + space, 1, length - space, f);
    }
    fclose(f);
    return text;
}

// Is a text, in a block of exactly n bytes, that of its ids?
static bool round_trip(const Tokenizer *t, const char *text, size_t n) {
    uint32_t *ids;
    size_t length = 0;
    char *copy = (char *)memcpy(malloc(n > 0 ? n : 1), text, n);
    const size_t count = encode(t, copy, n, &ids);
    char *back = decoded(t, ids, count, &length);
    const bool same = length == n && memcmp(back, text, n) == 0;
    free(copy);
    free(back);
    free(ids);
    return same;
}

static void check_ids(const Tokenizer *t, const char *text, size_t n, const uint32_t *ids,
                      size_t count) {
    uint32_t *got;
    size_t got_count = encode(t, text, n, &got), i = 0;
    while (i < count && i < got_count && ids[i] == got[i]) i++;
    CHECK(i == count && i == got_count, "'%.*s': %zu ids, not %zu, first difference at %zu",
          (int)(n < 60 ? n : 60), text, got_count, count, i);
    CHECK(round_trip(t, text, n), "'%.*s'", (int)(n < 60 ? n : 60), text);
    free(got);
}

// Every string of expected.txt becomes its ids. Checks the words of the string, too: a wrong cut shows
// in the ids only if a merge crosses it.
static void tokenizer_expected(void) {
    const Tokenizer *t = tokenizer_load(fixture);
    size_t n = 0, strings = 0;
    char *file = read_file(fixture, "expected.txt", &n), *s = file;
    char *text = (char *)malloc(n);
    uint32_t *ids = (uint32_t *)malloc(n * sizeof *ids);
    for (; *s != '\0'; strings++) {
        size_t length = 0, count = 0;
        unsigned byte;
        for (; *s != ' ' && sscanf(s, "%2x", &byte) == 1; s += 2) text[length++] = (char)byte;
        while (*s == ' ' && s[1] != '/') ids[count++] = (uint32_t)strtoul(s, &s, 10);
        size_t at = 0;
        for (s += 2; *s == ' ';) {
            size_t expected = strtoul(s, &s, 10);
            size_t got = word_length(t->rule, t->classes, text + at, length - at);
            CHECK(got == expected, "'%.*s' at byte %zu: a word of %zu bytes, not %zu",
                  (int)(length < 60 ? length : 60), text, at, got, expected);
            at += expected;
        }
        if (*s++ != '\n') { printf("  expected.txt is damaged\n"); exit(1); }
        check_ids(t, text, length, ids, count);
    }
    CHECK(strings > 300, "only %zu strings", strings);
    check_ids(t, "", 0, ids, 0);
    free(file);
    free(text);
    free(ids);
}

// The same classes as those of an independent database (unicodedata2 16.0.0, White_Space); capitals,
// small letters and marks are as many as Hugging Face tokenizers 0.23.3 has.
static void unicode_classes(void) {
    size_t counts[4] = {0}, numeric = 0, capitals = 0, small = 0, marks = 0;
    unsigned char *classes = word_classes_make();
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char s[4];
        size_t length = 0, n = utf8_encode(c, s);
        const bool surrogate = c >= 0xd800 && c < 0xe000;
        const int bits = surrogate ? UNICODE_OTHER : word_bits(classes, s, n, &length);
        const int kind = bits & WORD_CLASS, cases = bits & (WORD_UPPER | WORD_LOWER);
        counts[kind]++;
        h = (h ^ (uint32_t)kind) * 0x100000001b3u;
        CHECK(surrogate || length == n, "U+%04X", (unsigned)c);
        numeric += (bits & WORD_NUMERIC) != 0;
        capitals += cases == WORD_UPPER;
        small += cases == WORD_LOWER;
        marks += cases != 0 && kind == UNICODE_OTHER;
    }
    CHECK(numeric == 1911 + 13 && capitals == 1889 && small == 2258 && marks == 2501,
          "%zu numeric, %zu capitals, %zu small, %zu marks", numeric, capitals, small, marks);
    CHECK(counts[UNICODE_LETTER] == 141028 && counts[UNICODE_NUMBER] == 1911
          && counts[UNICODE_SPACE] == 25 && h == 0x48b1698009766d10u,
          "%zu letters, %zu numbers, %zu white space", counts[1], counts[2], counts[3]);
    free(classes);
}

static void write_file(const char *name, const char *text, size_t n) {
    put_bytes(in_base(name), text, n);
}

static void write_text(const char *name, const char *text) {  // with ' for "
    put_text(in_base(name), quoted(text));
}

static void remove_files(void) {
    remove_tree(base);
    make_directories(base);
}

// Nothing but the tokenizer.json of a fixture.
static void write_fixture(const char *folder) {
    size_t n = 0;
    remove_files();
    char *text = fixture_read(folder, "tokenizer.json", &n);
    write_file("tokenizer.json", text, n);
    free(text);
}

// A long word becomes what its merges say: "aaaa..", of which 2, 4, .. 64 are tokens, and 3.
static void tokenizer_long_words(void) {
    const Tokenizer *t = tokenizer_of_merges("a a\naa aa\naaaa aaaa\naaaaaaaa aaaaaaaa\n"
                                             "aa a\n");
    for (size_t n = 1; n <= 300; n++) {
        char text[600];
        uint32_t want[600];
        size_t count = 0, used = 0;
        for (size_t i = 0; i < n; i++) text[used++] = 'a';
        for (size_t left = n; left > 0;) {  // the merges that stand first take the left
            const size_t part = left >= 16 ? 16 : left >= 8 ? 8 : left >= 4 ? 4 : left;
            want[count++] = part == 16 ? 259 : part == 8 ? 258 : part == 4 ? 257 : part == 3 ? 260
                          : part == 2 ? 256 : t->byte_id['a'];
            left -= part;
        }
        check_ids(t, text, n, want, count);
    }
}

static bool same(const Tokenizer *a, const Tokenizer *b) {
    if (a->vocab != b->vocab || a->eot != b->eot || a->merge_count != b->merge_count) return false;
    for (uint32_t id = 0; id < a->vocab; id++) {
        size_t n, m;
        const char *x = tokenizer_token(a, id, &n), *y = tokenizer_token(b, id, &m);
        if (n != m || memcmp(x, y, n) != 0) return false;
    }
    return memcmp(a->byte_id, b->byte_id, sizeof a->byte_id) == 0
        && memcmp(a->merges, b->merges, a->merge_count * sizeof *a->merges) == 0;
}

static void tokenizer_saves(void) {
    Tokenizer *tokenizers[2] = {tokenizer_load(fixture), tokenizer_bytes()};
    CHECK(tokenizers[1]->vocab == 256 && tokenizers[1]->eot == -1, "of bytes");
    for (uint32_t i = 0; i < 256; i++) {
        const char byte = (char)i;
        check_ids(tokenizers[1], &byte, 1, &i, 1);
    }
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        tokenizer_save(tokenizers[i], base);
        CHECK(same(tokenizers[i], tokenizer_load(base)), "%d is another after saving", i);
        const char *config = read_file(base, "tokenizer_config.json", &n);
        CHECK(strstr(config, i == 1 ? "\"eos_token\": null" : "\"eos_token\": \"<|endoftext|>\""),
              "%s", config);
    }
    CHECK(DIES_WITH("/vocab.json/vocab.json", tokenizer_load(in_base("vocab.json"))), "a file");
    write_file("vocab.json", "{}", 3);
    CHECK(DIES_WITH("/vocab.json has a NUL byte", tokenizer_load(base)), "a NUL");
    remove_files();
    make_directories(in_base("vocab.json"));
    CHECK(DIES_WITH("/vocab.json: not a regular file", tokenizer_load(base)), "a folder");
    CHECK(DIES_WITH("/nonexistent/", tokenizer_save(tokenizers[0], "/nonexistent")), "no error");
    remove_files();
}

static Tokenizer *parse_tokenizer(const char *more, const char *merges) {
    return tokenizer_of("test", byte_vocabulary(-1, 5, more), merges);
}

// An OPT-like vocabulary: </s>, ids with holes, tokens that are no byte characters.
static void tokenizer_special(void) {
    Tokenizer *t = parse_tokenizer(", \"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, \"madeupword0000\": 300, "
                         "\"<|endoftext|>\": 299, "
                         "\"\\u2581x y\": 16777215, \"ab\": 290, \"\\u0120a\": 291", "a b\n");
    CHECK(t->eot == 2 && t->vocab == 1 << 24, "eot %d", t->eot);
    static const struct { uint32_t id; const char *text; } cases[] = {
        {1, "<pad>"}, {2, "</s>"}, {300, "madeupword0000"}, {16777215, "\xe2\x96\x81x y"},
        {290, "ab"}, {291, " a"}, {5 + ' ', " "}, {4, ""}, {298, ""}, {16777216, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token(t, cases[i].id, &n);
        CHECK(n == strlen(cases[i].text) && memcmp(bytes, cases[i].text, n) == 0, "id %u: '%.*s'",
              cases[i].id, (int)n, bytes);
    }
    static const uint32_t expected[] = {290, 2, 5 + '<', 5 + 'p', 5 + 'a', 5 + 'd', 5 + '>'};
    check_ids(t, "ab</s><pad>", 11, expected, 7);
    t = parse_tokenizer(", \"<s>\": 0, \"</s>\": 2, \"madeupword0000\": 300, \"ab\": 290", "a b\n");
    tokenizer_save(t, base);  // ids with holes
    CHECK(same(t, tokenizer_load(base)), "another after saving");
    remove_files();
}

static void tokenizer_merge_files(void) {
    static const char *const good[] = {"#version: 0.2\r\na b\r\nab c\r\n", "a b\nab c",
                                       "a b\n\nab c\n\n", "#version\na b\nab c\r\n"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const Tokenizer *t = parse_tokenizer(", \"ab\": 400, \"abc\": 1", good[i]);
        const uint32_t id = 1;
        CHECK(t->merge_count == 2, "%s", good[i]);
        check_ids(t, "abc", 3, &id, 1);
    }
    const Tokenizer *twice = parse_tokenizer(", \"ab\": 400, \"bc\": 1, \"abc\": 2",
                                             "a b\nb c\nab c\na bc\n");
    CHECK(twice->merge_count == 4, "two ways to one token");
}

static void tokenizer_bad_files(void) {
    // one long token and a merge as long: both need their room (for the address sanitizer)
    char more[5100], merge[5100];
    snprintf(more, sizeof more, ", \"%05000d\": 300", 0);
    snprintf(merge, sizeof merge, "%02500d %02500d\n", 0, 0);
    const char *const rows[][3] = {  // vocab.json, merges.txt, what is said
        {byte_vocabulary(-1, 0, more), merge, "merges a token that is not"},
        {vocabulary_of(merge), merge, "merges a token that is not"},
        {"[]", "a b\n", "not an object"}, {"{}", "a b\n", "without vocab"}};
    for (int i = 0; i < 4; i++)
        CHECK(DIES_WITH(rows[i][2], tokenizer_of("test", rows[i][0], rows[i][1])), "row %d", i);
    CHECK(DIES_WITH("bytes that have no token",
                    tokenizer_of("test", byte_vocabulary(255, 0, ""), "#version\n")), "a byte");
}

// Byte order marks are no part of the files, nor of what is saved of them.
static void tokenizer_marks(void) {
    char *vocab = byte_vocabulary(-1, 0, ", \"ab\": 256"), *marked = NULL;
    if (asprintf(&marked, "\xef\xbb\xbf%s", vocab) < 0) exit(1);
    put_text(in_base("vocab.json"), marked);
    put_text(in_base("merges.txt"), "\xef\xbb\xbf" "a b\n");
    const Tokenizer *t = tokenizer_load(base);
    CHECK(t->merge_count == 1 && strcmp(t->files[FILE_VOCAB].text, vocab) == 0
          && strcmp(t->files[FILE_MERGES].text, "a b\n") == 0, "byte order marks");
    remove_files();
}

// ---------------------------------------------------------------------------------------------
// tokenizer.json

// The tokenizer of a variant, a line of cases.jsonl or {"folder": ..}, from the base directory.
static Tokenizer *load_variant(const Json *variant) {
    size_t n = 0;
    const Json *all = json_get(variant, "replace");
    char *text = fixture_read(json_get(variant, "folder")->string, "tokenizer.json", &n);
    for (const Json *r = all != NULL ? all->child : NULL; r != NULL; r = r->next) {
        char *next = altered(text, r->child->string, r->child->next->string);
        free(text);
        text = next;
    }
    write_file("tokenizer.json", text, strlen(text));
    free(text);
    return tokenizer_load(base);
}

static void check_same_ids(const Json *expected, const uint32_t *ids, size_t count,
                           const char *what, const char *text) {
    size_t i = 0, id = 0;
    for (const Json *e = expected->child; e != NULL && i < count; e = e->next, i++)
        if (!json_size(e, &id) || id != ids[i]) break;
    CHECK(i == count && i == expected->count, "%s, '%.60s': %zu ids, not %zu, the first other one "
          "at %zu", what, text, count, expected->count, i);
}

// Checks the ids and the text of a case, in one piece and in blocks.
static void check_case(const Tokenizer *t, const char *what, const char *text, size_t n,
                       const Json *ids, const Json *plain, const Json *shown) {
    Tokens got = {NULL, 0, 0};
    size_t length = 0;
    char *exact = (char *)malloc(n + 1);  // for the address sanitizer
    exact = (char *)realloc(exact, n > 0 ? n : 1);
    memcpy(exact, text, n);
    tokenizer_encode(t, exact, n, TOKENIZER_PLAIN, &got);
    const bool other = plain != NULL && plain->type == JSON_ARRAY;
    check_same_ids(other ? plain : ids, got.ids, got.count, what, text);
    got.count = 0;
    tokenizer_encode(t, exact, n, 0, &got);
    check_same_ids(ids, got.ids, got.count, what, text);
    char *back = decoded(t, got.ids, got.count, &length);
    const bool given = shown != NULL && shown->type == JSON_STRING;
    const char *expected = given ? shown->string : text;
    if (strstr(expected, "\xef\xbf\xbd") == NULL)  // where Hugging Face wrote U+FFFD
        CHECK(length == (given ? shown->length : n) && memcmp(back, expected, length) == 0,
              "%s: '%.60s' came back as '%.60s'", what, expected, back);
    for (size_t limit = 1; limit < min_size(n, 40); limit += 1 + n / 20) {
        got.count = 0;
        for (size_t at = 0, m; at < n; at += m) {
            m = tokenizer_block(t, exact + at, n - at, limit);
            tokenizer_encode(t, exact + at, m, at > 0 ? TOKENIZER_GOES_ON : 0, &got);
        }
        check_same_ids(ids, got.ids, got.count, "in blocks", text);
    }
    free(exact);
    free(back);
    free(got.ids);
}

// Reads a file of JSON lines; all lines, to be freed with the values.
static Json **json_lines(const char *dir, const char *name, size_t *count) {
    size_t n = 0;
    char *text = read_file(dir, name, &n), *rest = text;
    Json **lines = ALLOC(Json *, n / 2 + 1, "lines");
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0';) {
        Error err;
        lines[*count] = json_parse(line, strlen(line), &err);
        if (lines[*count] == NULL) die("%s: %s", name, err.text);
        ++*count;
    }
    free(text);
    return lines;
}

static void json_cases(void) {
    size_t count = 0, number = 0;
    Json **lines = json_lines(fixture, "cases.jsonl", &count);
    CHECK(count > 150, "only %zu cases", count);
    remove_files();
    for (const Json *v = json_get(lines[0], "variants")->child; v != NULL; v = v->next, number++) {
        Tokenizer *t = load_variant(v);
        for (size_t i = 1; i < count; i++) {
            const Json *text = json_get(lines[i], "text"), *part[3];
            static const char *const keys[3] = {"ids", "plain", "decoded"};
            for (int k = 0; k < 3; k++) {
                part[k] = json_get(lines[i], keys[k])->child;
                for (size_t j = 0; j < number; j++) part[k] = part[k]->next;
            }
            check_case(t, json_get(v, "name")->string, text->string, text->length, part[0], part[1],
                       part[2]);
        }
        tokenizer_free(t);
    }
    CHECK(number == 7, "%zu variants", number);
    remove_files();
    for (size_t i = 0; i < count; i++) json_free(lines[i]);
    free(lines);
}

#define OF_LLAMA3 "small-llama3"
#define SMOLLM2 "small-smollm2"
#define LLAMA2 "small-llama2"

// Ids as text, with a space behind each.
static const char *ids_text(const Tokenizer *t, const char *text, int how) {
    static char line[1000];
    Tokens ids = {NULL, 0, 0};
    size_t at = 0;
    tokenizer_encode(t, text, strlen(text), how, &ids);
    line[0] = '\0';
    for (size_t i = 0; i < ids.count; i++) at += (size_t)sprintf(line + at, "%u ", ids.ids[i]);
    free(ids.ids);
    return line;
}

// What the files beside the vocabulary say, as transformers 5.24 reads them: the class of vocab.json
// and merges.txt, added tokens, the end. A vocabulary of <s>, <pad>, </s>, the bytes from 3 on,
// 259: " a", 260: "11"; or that of Llama-3, whose last token is 2010.
static void tokenizer_beside(void) {
    #define MADE_UP "{\"tokenizer_class\": \"GPT2Tokenizer\""  // begins what is written
    #define CLASS(name) "{'tokenizer_class':'" name "',"
    #define DECODER(id, content) "'added_tokens_decoder':{'" id "':{'content':'" content "'"
    #define BYTES_END "63 50 118 65 "  // of </s>
    static const struct {
        const char *folder;  // NULL: vocab.json
        const char *text, *ids;
        const char *ends;  // what begins a text, ends one and is behind it: all that end one
        const char *files[5];  // config, generation_config, special_tokens_map, added_tokens, model
    } cases[] = {
        {NULL, "11</s>", "260 2 ", "-1 2 -1: 2", {NULL}},  // <s> tells OPT
        {NULL, "11</s>", "260 " BYTES_END, "-1 -1 -1:", {0, 0, 0, 0, "{'model_type':'gpt2'}"}},
        {NULL, "11</s>", "260 " BYTES_END, "-1 -1 -1:",
         {CLASS("GPT2Tokenizer") "'model_max_length':9}"}},
        {NULL, "a</s>a a", "100 2 100 259 ", "-1 2 -1: 2",
         {CLASS("GPT2TokenizerFast") "'eos_token':'</s>','add_prefix_space':false}"}},
        {NULL, "<s>", "0 ", "0 2 2: 2",
         {CLASS("GPT2Tokenizer") "'eos_token':'</s>','bos_token':'<s>','add_bos_token':true}"}},
        {NULL, "11<|b|>", "260 261 ", "-1 261 -1: 261",
         {CLASS("GPT2Tokenizer") DECODER("261", "<|b|>") "}},'eos_token':'<|b|>'}", 0,
          "{'eos_token':'<pad>'}", 0, "{'model_type':'qwen2'}"}},
        {NULL, "11<|b|>", "260 261 ", "-1 -1 -1: 1",
         {"{" DECODER("261", "<|b|>") "}}}", "{'eos_token_id':[1]}", 0,
          "{'<|b|>':9}"}},  // the older file is not read
        {NULL, "<pad></s>", "1 2 ", "-1 1 -1: 1",
         {0, 0, "{'eos_token':{'content':'<pad>'},'additional_special_tokens':['</s>']}", 0,
          "{'model_type':'gpt2'}"}},
        {NULL, "</s><pad>", BYTES_END "1 ", "-1 1 -1: 1",
         {CLASS("GPT2Tokenizer") "'eos_token':'</s>'}", 0, "{'eos_token':'<pad>'}"}},
        {NULL, "11", "260 ", "-1 -1 -1:",
         {"{'special_tokens_map_file':'/x'}", 0, 0, 0, "{'model_type':'gpt2'}"}},
        {NULL, "[11]", "94 260 96 ", "-1 -1 -1:", {"{'pad_token':'[11]'}"}},  // it has no id
        {OF_LLAMA3, "a <|bot|> b", "64 220 2011 280 ", "2000 -1 -1:",
         {"{" DECODER("2011", "<|bot|>") "}}}"}},
        {OF_LLAMA3, "<x>>><x>><x>", "2012 2011 2013 ", "2000 -1 -1:",  // the longest
         {"{" DECODER("2011", "<x>>") "},'2012':{'content':'<x>>>'},'2013':{'content':'<x>'}}}"}},
        {OF_LLAMA3, "<|eot_id|> \na", "2009 64 ", "2000 -1 -1:",
         {"{" DECODER("2009", "<|eot_id|>") ",'rstrip':true,'special':true}}}"}},
        {OF_LLAMA3, "a", "64 ", "2000 2009 2009: 2009",
         {"{'eos_token':null}", 0, "{'eos_token':'<|eot_id|>','bos_token':'<|begin_of_text|>'}"}},
        {OF_LLAMA3, "the", "83 260 ", "2000 -1 -1:",
         {"{'extra_special_tokens':{'image_token':'he'}}"}},
        {LLAMA2, "", "", "1 2 2: 2", {NULL}},  // </s>, as nobody names another
        {LLAMA2, "", "", "1 2000 2000: 2000",
         {"{}", "{'eos_token_id': 2000}", 0, 0, "{'eos_token_id': 5}"}},
        {LLAMA2, "", "", "1 3 3: 3 2000 2001",
         {"{'eos_token': '<pad>'}", "{'eos_token_id': [2000, 99999, 2001]}"}},
        {LLAMA2, "", "", "1 2 2: 2 7",
         {"{'eos_token': {'content': '</s>'}}", 0, 0, 0, "{'eos_token_id': [7], 'x': 9}"}},
        {LLAMA2, "", "", "1 1 -1: 1 8",
         {"{'eos_token': '<s>'}", 0, 0, 0, "{'eos_token_id': 8, 'hidden_size': 9}"}},
        {SMOLLM2, "", "", "-1 2 -1: 2", {0, 0, 0, 0, "{'bos_token_id': 1, 'eos_token_id': 2}"}},
        {SMOLLM2, "", "", "-1 0 -1: 0", {NULL}},  // <|endoftext|>
    };
    const char *vocab = byte_vocabulary(-1, 3, ", \"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, "
                                        "\"\\u0120a\": 259, \"11\": 260");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = 0;
        remove_files();
        if (cases[i].folder != NULL) {
            write_fixture(cases[i].folder);
        } else {
            write_file("vocab.json", vocab, strlen(vocab));
            write_file("merges.txt", "\xc4\xa0 a\n1 1\n", 9);
        }
        for (int k = 0; k < 5; k++)
            if (cases[i].files[k] != NULL)
                write_text(k < 4 ? tokenizer_files[k] : "config.json", cases[i].files[k]);
        for (int again = 0; again < 2; again++) {  // from the files, and from those that are saved
            const Tokenizer *t = tokenizer_load(base);
            const char *ids = ids_text(t, cases[i].text, 0);
            char ends[200];
            sprintf(ends, "%d %d %d:", t->bos, t->eot, t->behind);
            for (size_t id = 0; id < t->vocab; id++)
                if (tokenizer_ends(t, (int32_t)id)) sprintf(ends + strlen(ends), " %zu", id);
            CHECK(strcmp(ids, cases[i].ids) == 0 && strcmp(ends, cases[i].ends) == 0
                  && !tokenizer_ends(t, -1), "case %zu, %d: %s, %s", i, again, ids, ends);
            const char *warns = SAYS(tokenizer_load(base));
            CHECK(*warns == '\0', "case %zu: %s", i, warns);
            tokenizer_save(t, base);
        }
        for (int k = 0; k < 4; k++)
            if (cases[i].files[k] != NULL) {
                const char *text = read_file(base, tokenizer_files[k], &n);
                const char *before = quoted(cases[i].files[k]), *front = MADE_UP ", ";
                if (k == 0 && cases[i].folder == NULL && strstr(before, "tokenizer_class") == NULL
                    && strncmp(text, front, strlen(front)) == 0)  // that is put in front
                    text += strlen(front), before++;
                CHECK(strcmp(text, before) == 0, "case %zu: another %s", i, tokenizer_files[k]);
            }
    }
    // GPT-2's default tokens
    remove_files();
    vocab = byte_vocabulary(-1, 0, ", \"<|endoftext|>\": 256");
    write_file("vocab.json", vocab, strlen(vocab));
    write_file("merges.txt", "#version\n", 9);
    write_text("tokenizer_config.json",
               CLASS("GPT2Tokenizer") "'add_bos_token':true,'add_eos_token':true}");
    const Tokenizer *both = tokenizer_load(base);
    CHECK(both->bos == 256 && both->behind == 256, "%d, %d", both->bos, both->behind);
    // normalised is what is not special: the space of " <x>" is looked for
    write_fixture(LLAMA2);
    for (int special = 0; special < 2; special++) {
        write_text("tokenizer_config.json",
                   special ? "{" DECODER("2005", "<x>") ",'special':true}}}"
                           : "{" DECODER("2005", "<x>") "}}}");
        CHECK((strstr(ids_text(tokenizer_load(base), "a<x>", 0), "2005 ") != NULL) == special,
              "special %d", special);
    }
    // a token that is named is special: in a user's message it is text
    write_fixture(OF_LLAMA3);
    write_text("tokenizer_config.json", "{'pad_token':'he'}");
    const Tokenizer *named = tokenizer_load(base);
    CHECK(strcmp(ids_text(named, "the", TOKENIZER_PLAIN), "1086 ") == 0
          && strcmp(ids_text(named, "the", 0), "83 260 ") == 0, "special");
    remove_files();
}

// Every file of a tokenizer is saved byte for byte.
static void json_saves(void) {
    char *out = in_base("out"), path[PATH_MAX];
    write_fixture(LLAMA2);
    make_directories(out);
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        const char *text = i < FILE_TEMPLATE ? "{\"added_tokens_decoder\": {}}" : "\0any\xff";
        if (i != FILE_JSON) write_file(tokenizer_files[i], text, i < FILE_TEMPLATE ? 28 : 5);
    }
    const Tokenizer *t = tokenizer_load(base);
    tokenizer_save(t, out);
    CHECK(same(t, tokenizer_load(out)), "another after saving");
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        path_join(path, out, tokenizer_files[i]);
        CHECK(same_file(path, in_base(tokenizer_files[i])), "%s", tokenizer_files[i]);
    }
    CHECK(entries_in(out) == TOKENIZER_FILES, "%d files", entries_in(out));
    remove_files();
}

// One "word" of a megabyte, or of a quarter, of GPT-2's bytes or SentencePiece's pieces. Quadratic
// would take minutes.
static void megabyte_words(void) {
    size_t m = 0;
    write_fixture(LLAMA2);
    Tokenizer *tokenizers[2] = {tokenizer_load(fixture), tokenizer_load(base)};
    const size_t length = test_whole() ? 1 << 20 : 1 << 18;
    char *text = (char *)malloc(length);
    const double start = seconds_now();
    for (int kind = 0; kind < 10; kind++) {
        for (size_t i = 0; i < length; i++)
            text[i] = kind / 2 == 0 ? 'a' : kind / 2 == 1 ? (char)('a' + random_below(26))
                    : kind / 2 == 2 ? ' ' : kind / 2 == 3 ? "et"[random_below(2)]
                    : (char)(0x80 + random_below(64));
        uint32_t *ids;
        const size_t count = encode(tokenizers[kind % 2], text, length, &ids);
        char *back = decoded(tokenizers[kind % 2], ids, count, &m);
        CHECK(m == length && memcmp(back, text, m) == 0, "kind %d", kind);
        free(back);
        free(ids);
    }
    CHECK(seconds_now() - start < 50, "%.1f seconds", seconds_now() - start);
    free(text);
}

// The words of literal texts by each expression (GPT-2's: expected.txt), with a '|' between them.
static void words_are_cut(void) {
    static const struct { int rule; const char *words; } cases[] = {
        {RULE_LLAMA3, "I|'LL| don|'T|'Ve|'RE|'m|'D|'S|'\xc5\xbf|'s|mall"},
        {RULE_LLAMA3, "'S|x|'\xc5\xbf|x"}, {RULE_QWEN2, "\xe2\x80\x99s|'s|mall"},
        {RULE_QWEN2, "a|\tb|\xc2\xa0" "c|(d| e"}, {RULE_LLAMA3, "a|\n|b| c|\n\n|d"},
        {RULE_QWEN2, "\n|a|\r|b|1|c|!!|d|\n|\xc3\xa9"}, {RULE_LLAMA3, "123|45| |678|x|1"},
        {RULE_QWEN2, "1|2| |3|x"}, {RULE_QWEN2, "!?\n\n| !\r\n|x| !\n| "},
        {RULE_QWEN2, "a| \n \n|  | b"}, {RULE_QWEN2, "a|  | b|\xe3\x80\x80| b|   "},
        {RULE_QWEN2, "\xff\xe4\xbd\xa0\xe5\xa5\xbd|\xcc\x81\xf0\x9f\x98\x80\n"},
        {RULE_TEKKEN, "camel|Case|HTTPServer| I|'LL| don|'t"},
        {RULE_TEKKEN, "AB\xe3\x81\x82|C| AB\xe3\x81\x82"},
        {RULE_TEKKEN, "\xc7\x85" "ab\xc2\xaa|AB\xcc\x81" "Cd"},
        {RULE_TEKKEN, "\xcc\x81" "AB\xcc\x81\xcc\x81x"}, {RULE_TEKKEN, "\xcc\x81|AB"}, {RULE_TEKKEN, "'small|'S"},
        {RULE_TEKKEN, "!Ab|-c|D|\n|_x|Y"}, {RULE_TEKKEN, "1|2|/|3|\n|/| a|!/\n//|x"},
        {RULE_TEKKEN, "1|A\xe2\x83\x9d" "b| \xf3\xa0\x84\x80|C"}, {RULE_TEKKEN, "a| \n|\tB| | C"},
        {RULE_TEKKEN, "\xf0\x9d\x90\x80\xf0\x9d\x90\x9a|\xf0\x9d\x90\x80"},
    };
    unsigned char *classes = word_classes_make();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[100], cut[100] = "";
        size_t n = 0;
        for (const char *c = cases[i].words; *c != '\0'; c++) if (*c != '|') text[n++] = *c;
        for (size_t at = 0, length; at < n; at += length) {
            char *exact = strndup(text + at, n - at);
            length = word_length(&word_rules[cases[i].rule], classes, exact, n - at);
            strncat(strcat(cut, at > 0 ? "|" : ""), exact, length);
            free(exact);
        }
        CHECK(strcmp(cut, cases[i].words) == 0, "%s: %s", cases[i].words, cut);
    }
    free(classes);
}

// Canonical composition of literal texts: also what later versions of Unicode compose, and Hugging
// Face does not; what is no UTF-8; marks by the thousand.
static void nfc_composes(void) {
    static const struct { const char *text, *expected; } cases[] = {
        {"", ""}, {"plain \xc3\xa9", "plain \xc3\xa9"}, {"xe\xcc\x81y", "x\xc3\xa9y"},
        {"\xcc\x81", "\xcc\x81"},
        {"e\xcc\xa3\xcc\x81", "\xe1\xba\xb9\xcc\x81"},
        {"e\xcc\x81\xcc\xa3", "\xe1\xba\xb9\xcc\x81"},
        {"a\xcc\x8d\xcc\x81", "a\xcc\x8d\xcc\x81"},  // two marks of one class
        {"e\xff\xcc\x81", "e\xff\xcc\x81"}, {"e\xcc", "e\xcc"}, {"\xe2\x84\xab", "\xc3\x85"},
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"},
        {"\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81"},
        {"\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"},
        {"\xea\xb0\x81\xe1\x86\xa8", "\xea\xb0\x81\xe1\x86\xa8"},
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"}, {"\xef\xac\xac", "\xd7\xa9\xd6\xbc\xd7\x81"},
        {"\xf0\x9d\x87\x80", "\xf0\x9d\x86\xba\xf0\x9d\x85\xa5\xf0\x9d\x85\xaf"},
        {"\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0"},  // of Unicode 13
    };
    unsigned char *classes = word_classes_make();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *room = NULL, *exact = strdup(cases[i].text);
        size_t n = strlen(exact);
        const char *got = nfc_text(classes, exact, &n, &room);
        CHECK(n == strlen(cases[i].expected) && memcmp(got, cases[i].expected, n) == 0,
              "case %zu", i);
        free(room);
        free(exact);
    }
    enum { MARKS = 500000 };
    char *marks = (char *)malloc(2 * MARKS + 1), *room = NULL;
    marks[0] = 'x';
    for (size_t i = 0; i < MARKS; i++)
        memcpy(marks + 1 + 2 * i, i % 2 ? "\xcc\x81" : "\xcc\xa3", 2);
    size_t n = 2 * MARKS + 1;
    const double start = seconds_now();
    const char *sorted = nfc_text(classes, marks, &n, &room);
    CHECK(n > 2 * MARKS - 10 && memcmp(sorted + n - 2, "\xcc\x81", 2) == 0
          && memcmp(sorted + 3, "\xcc\xa3", 2) == 0, "%zu bytes", n);
    CHECK(seconds_now() - start < 20, "%.1f seconds", seconds_now() - start);
    free(room);
    free(marks);
    free(classes);
}

// Checks the folders of TIDE_TOKENIZERS=DIR by DIR/cases.jsonl, which has in each line {"text": ..,
// "ids": {FOLDER: [..]}, "ids_plain": {..}, "decoded": {..}}. A folder that is not there is left
// out.
static void check_published(void) {
    const char *dir = getenv("TIDE_TOKENIZERS");
    if (dir == NULL) SKIP("TIDE_TOKENIZERS names no folder of published tokenizers");
    size_t count = 0, folders = 0;
    Json **lines = json_lines(dir, "cases.jsonl", &count);
    for (const Json *f = json_get(lines[0], "ids")->child; f != NULL; f = f->next) {
        char path[PATH_MAX];
        path_join(path, dir, f->key);
        if (!path_is_directory(path)) continue;
        const Tokenizer *t = tokenizer_load(path);
        folders++;
        for (size_t i = 0; i < count; i++) {
            const Json *text = json_get(lines[i], "text");
            if (text == NULL) continue;  // no UTF-8
            check_case(t, f->key, text->string, text->length,
                       json_get(json_get(lines[i], "ids"), f->key),
                       json_get(json_get(lines[i], "ids_plain"), f->key),
                       json_get(json_get(lines[i], "decoded"), f->key));
        }
    }
    printf("  %zu folders, %zu cases\n", folders, count);
    CHECK(folders > 0, "none of the folders is there");
}

int main(void) {
    base_new("tokenizer");
    RUN(unicode_classes);
    RUN(tokenizer_expected);
    RUN(tokenizer_long_words);
    RUN(tokenizer_saves);
    RUN(tokenizer_special);
    RUN(tokenizer_merge_files);
    RUN(tokenizer_bad_files);
    RUN(tokenizer_marks);
    RUN(tokenizer_beside);
    RUN(json_cases);
    RUN(json_saves);
    RUN(megabyte_words);
    RUN(words_are_cut);
    RUN(nfc_composes);
    RUN(check_published);
    remove_tree(base);
    return test_summary();
}
