// Tests of tokenizer.h and what it stands on. fixtures/tokenizer/expected.txt has the ids of two
// other implementations (see make_fixture.py there), cases.jsonl those of Hugging Face for variants
// of three tokenizer.json (make_cases.py).
#include "../../data/blocks.h"
#include "../dies.h"
#include "../files.h"
#include "../merges.h"
#include "../refused.h"
#include "../test.h"

static const char fixture[] = TEST_FIXTURES "/tokenizer";

// The tokens of a text, in blocks of at most `limit` bytes where it can be cut.
static Tokens text_ids(const Tokenizer *t, const char *text, size_t n, size_t limit, int how) {
    Tokens list = {NULL, 0, 0};
    size_t at = 0;
    do {
        const size_t m = tokenizer_block(t, text + at, n - at, limit);
        tokenizer_encode(t, text + at, m, how | (at > 0 ? TOKENIZER_GOES_ON : 0), &list);
        at += m;
    } while (at < n);
    return list;
}

// The text of tokens, of which the first begins a text.
static char *decoded(const Tokenizer *t, const Tokens *list, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    for (size_t i = 0; i < list->count; i++) {
        size_t length;
        const char *s = tokenizer_token(t, list->ids[i], &length);
        const bool space = i == 0 && length > 0 && *s == ' ' && (t->steps & STEP_STRIP);
        fwrite(s + space, 1, length - space, f);
    }
    fclose(f);
    return text;
}

// Compares tokens, which are freed, with ids as a text, that has a space behind each.
static void check_list(const char *what, const char *text, Tokens list, const char *ids) {
    char *got = NULL;
    size_t n;
    FILE *f = open_memstream(&got, &n);
    for (size_t i = 0; i < list.count; i++) fprintf(f, "%u ", list.ids[i]);
    fclose(f);
    CHECK(strcmp(got, ids) == 0, "%s, '%.60s': %s, not %s", what, text, got, ids);
    free(got);
    free(list.ids);
}

// Checks the ids of a text whose special tokens are text (plain), of the whole text, and in blocks;
// and what they are decoded to (NULL: the text).
static void check_ids(const Tokenizer *t, const char *what, const char *text, size_t n,
                      const char *ids, const char *plain, const Json *shown) {
    char *exact = (char *)memcpy(malloc(n > 0 ? n : 1), text, n);  // for the address sanitizer
    size_t length = 0;
    Tokens whole = text_ids(t, exact, n, n, 0);
    char *back = decoded(t, &whole, &length);
    const char *expected = shown != NULL ? shown->string : text;
    if (strstr(expected, "\xef\xbf\xbd") == NULL)  // where Hugging Face wrote U+FFFD
        CHECK(length == (shown != NULL ? shown->length : n) && memcmp(back, expected, length) == 0,
              "%s: '%.60s' came back as '%.60s'", what, expected, back);
    check_list(what, text, whole, ids);
    if (plain != NULL) check_list(what, text, text_ids(t, exact, n, n, TOKENIZER_PLAIN), plain);
    for (size_t limit = 1; limit < min_size(n, 40); limit += 1 + n / 20)
        check_list("in blocks", text, text_ids(t, exact, n, limit, 0), ids);
    free(exact);
    free(back);
}

// Every string of expected.txt becomes its ids, with a tokenizer that was saved. Checks the words,
// too: a wrong cut shows in the ids only if a merge crosses it.
static void tokenizer_expected(void) {
    size_t n = 0, strings = 0;
    char *file = fixture_read(".", "expected.txt", &n), *rest = file, *s;
    char *text = (char *)malloc(n);
    tokenizer_save(tokenizer_load(fixture), base);
    Tokenizer *t = tokenizer_load(base);
    for (; (s = strsep(&rest, "\n")) != NULL && *s != '\0'; strings++) {
        size_t length = 0;
        unsigned byte;
        for (; *s != ' ' && sscanf(s, "%2x", &byte) == 1; s += 2) text[length++] = (char)byte;
        char *words = strchr(s, '/');
        *words++ = '\0';
        for (size_t at = 0, word; at < length; at += word) {
            word = word_length(t->rule, text + at, length - at);
            CHECK(word == strtoul(words, &words, 10), "'%.*s' at byte %zu: a word of %zu bytes",
                  (int)(length < 60 ? length : 60), text, at, word);
        }
        text[length] = '\0';
        check_ids(t, "GPT-2", text, length, s + 1, NULL, NULL);
    }
    CHECK(strings > 300, "only %zu strings", strings);
    CHECK(tokenizer_block(t, "ab cd ef", 8, 7) == 5 && tokenizer_block(t, "abc", 3, 2) == 3,
          "a block is as long as it may be, and whole where no cut is");
    t->added[0].tokens[0].rstrip = true;  // takes the white space behind a cut
    CHECK(tokenizer_block(t, "ab cd ef", 8, 7) == 8, "a text is cut");
}

// The same classes as those with which an independent database (unicodedata2 16.0.0, White_Space)
// agreed; capitals, small letters and marks as Hugging Face tokenizers 0.23.3 has.
static void unicode_classes(void) {
    word_classes_make();
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char s[4];
        size_t length = 0, n = utf8_encode(c, s);
        const bool surrogate = c >= 0xd800 && c < 0xe000;
        const int bits = surrogate ? UNICODE_OTHER : word_bits(s, n, &length);
        h = (h ^ (uint32_t)(bits & ~WORD_COMPOSES)) * 0x100000001b3u;
        CHECK(surrogate || length == n, "U+%04X", (unsigned)c);
    }
    CHECK(h == 0xbda7426a6834fc48u, "other classes: %llx", (unsigned long long)h);
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
    put_bytes(in_base("tokenizer.json"), text, n);
    free(text);
}

static void tokenizer_saves(void) {
    Tokenizer *bytes = tokenizer_bytes();
    size_t n;
    for (int again = 0; again < 2; again++, bytes = tokenizer_load(base)) {
        CHECK(bytes->vocab == 256 && bytes->eot == -1, "%zu, %d", bytes->vocab, bytes->eot);
        for (int i = 0; i < 256; i++) CHECK(bytes->byte_id[i] == (uint32_t)i, "%d", i);
        CHECK(*tokenizer_token(bytes, 1u << 30, &n) == '\0' && n == 0, "a token that is not there");
        tokenizer_save(bytes, base);
    }
    CHECK(DIES_WITH("/vocab.json/vocab.json", tokenizer_load(in_base("vocab.json"))), "a file");
    put_bytes(in_base("vocab.json"), "{}", 3);
    CHECK(DIES_WITH("/vocab.json has a NUL byte", tokenizer_load(base)), "a NUL");
    CHECK(DIES_WITH("/nonexistent/", tokenizer_save(bytes, "/nonexistent")), "no error");
}

// ---------------------------------------------------------------------------------------------
// tokenizer.json

// The tokenizer of a variant, a line of cases.jsonl, from the base directory.
static Tokenizer *load_variant(const Json *variant) {
    size_t n = 0;
    char *text = fixture_read(json_get(variant, "folder")->string, "tokenizer.json", &n);
    for (const Json *r = json_get(variant, "replace")->child; r != NULL; r = r->next) {
        char *next = altered(text, r->child->string, r->child->next->string);
        free(text);
        text = next;
    }
    put_text(in_base("tokenizer.json"), text);
    free(text);
    return tokenizer_load(base);
}

// The ids of a list of JSON, as a text; NULL if it is no list.
static char *json_ids(const Json *list) {
    char *text = NULL;
    size_t n, id;
    if (list->type != JSON_ARRAY) return NULL;
    FILE *f = open_memstream(&text, &n);
    for (const Json *i = list->child; i != NULL; i = i->next)
        fprintf(f, "%zu ", json_size(i, &id) ? id : SIZE_MAX);
    fclose(f);
    return text;
}

// Member `key` of a case, the list of variant number `number`.
static const Json *of_variant(const Json *line, const char *key, size_t number) {
    const Json *value = json_get(line, key)->child;
    while (number-- > 0) value = value->next;
    return value;
}

// The first line of cases.jsonl has the variants, each other line {"text": .., "ids": [..],
// "plain": [..], "decoded": [..]}: a list with a value for each variant.
static void json_cases(void) {
    size_t n = 0, count = 0, number = 0;
    char *file = fixture_read(".", "cases.jsonl", &n), *rest = file;
    const Json **lines = ALLOC(const Json *, n / 2 + 1, "lines");
    for (char *s; (s = strsep(&rest, "\n")) != NULL && *s != '\0';)
        if ((lines[count++] = json_parse(s, strlen(s), &err)) == NULL) die("%s", err.text);
    remove_files();
    for (const Json *v = json_get(lines[0], "variants")->child; v != NULL; v = v->next, number++) {
        Tokenizer *t = load_variant(v);
        for (size_t i = 1; i < count; i++) {
            const Json *text = json_get(lines[i], "text");
            const Json *shown = of_variant(lines[i], "decoded", number);
            char *ids = json_ids(of_variant(lines[i], "ids", number));
            char *plain = json_ids(of_variant(lines[i], "plain", number));
            check_ids(t, json_get(v, "name")->string, text->string, text->length, ids,
                      plain != NULL ? plain : ids, shown->type == JSON_STRING ? shown : NULL);
            free(ids);
            free(plain);
        }
        tokenizer_free(t);
    }
    CHECK(number == 7 && count > 150, "%zu variants, %zu cases", number, count);
}

#define OF_LLAMA3 "small-llama3"
#define SMOLLM2 "small-smollm2"
#define LLAMA2 "small-llama2"

// What the files beside the vocabulary say, as transformers 5.24 reads them: the class of
// vocab.json and merges.txt, added tokens, the end. A vocabulary of <s>, <pad>, </s>, the bytes
// from 3 on, 259: " a", 260: "11", 261: <|endoftext|>; or Llama-3's, whose last token is 2010.
static void tokenizer_beside(void) {
    #define CLASS(name) "{'tokenizer_class':'" name "',"
    #define DECODER(id, content) "'added_tokens_decoder':{'" id "':{'content':'" content "'"
    #define BYTES_END "63 50 118 65 "  // of </s>
    static const struct {
        const char *folder;  // NULL: vocab.json
        const char *text, *ids;
        const char *ends;  // what begins a text, ends one and is behind it: all that end one
        const char *files[5];  // config, generation_config, special_tokens_map, added_tokens, model
        int how;  // TOKENIZER_PLAIN: special tokens are text
    } cases[] = {
        {NULL, "11</s>", "260 2 ", "-1 2 -1: 2", {NULL}},  // <s> tells OPT
        {NULL, "11</s>", "260 " BYTES_END, "-1 261 -1: 261", {0, 0, 0, 0, "{'model_type':'gpt2'}"}},
        {NULL, "a</s>a a", "100 2 100 259 ", "-1 2 -1: 2",
         {CLASS("GPT2TokenizerFast") "'eos_token':'</s>','add_prefix_space':false}"}},
        {NULL, "<s>", "0 ", "0 2 2: 2",
         {CLASS("GPT2Tokenizer") "'eos_token':'</s>','bos_token':'<s>','add_bos_token':true}"}},
        {NULL, "11<|b|>", "260 263 ", "-1 261 -1: 1 261",
         {"{" DECODER("263", "<|b|>") "}}}", "{'eos_token_id':[1]}", 0,
          "{'<|b|>':9}"}},  // the older file is not read
        {NULL, "<pad></s>", "1 2 ", "-1 1 -1: 1",
         {0, 0, "{'eos_token':{'content':'<pad>'},'additional_special_tokens':['</s>']}", 0,
          "{'model_type':'gpt2'}"}},
        {NULL, "</s><pad>", BYTES_END "1 ", "-1 1 -1: 1",
         {CLASS("GPT2Tokenizer") "'eos_token':'</s>'}", 0, "{'eos_token':'<pad>'}"}},
        {NULL, "", "", "261 261 261: 261",  // GPT-2's default tokens
         {CLASS("GPT2Tokenizer") "'add_bos_token':true,'add_eos_token':true}"}},
        {NULL, "[11]", "94 260 96 ", "-1 261 -1: 261", {"{'pad_token':'[11]'}"}},  // it has no id
        {OF_LLAMA3, "<x>>><x>><x>", "2012 2011 2013 ", "2000 -1 -1:",  // the longest
         {"{" DECODER("2011", "<x>>") "},'2012':{'content':'<x>>>'},'2013':{'content':'<x>'}}}"}},
        {OF_LLAMA3, "<|eot_id|> \na", "2009 64 ", "2000 -1 -1:",
         {"{" DECODER("2009", "<|eot_id|>") ",'rstrip':true,'special':true}}}"}},
        {OF_LLAMA3, "a", "64 ", "2000 2009 2009: 2009",
         {"{'eos_token':null}", 0, "{'eos_token':'<|eot_id|>','bos_token':'<|begin_of_text|>'}"}},
        // a token that is named is special: in a user's message it is text
        {OF_LLAMA3, "the", "83 260 ", "2000 -1 -1:", {"{'pad_token':'he'}"}},
        {OF_LLAMA3, "the", "1086 ", "2000 -1 -1:", {"{'pad_token':'he'}"}, TOKENIZER_PLAIN},
        // normalised is what is not special: the space of " <x>" is looked for
        {LLAMA2, "a<x>", "266 2005 ", "1 2 2: 2",
         {"{" DECODER("2005", "<x>") ",'special':true}}}"}},
        {LLAMA2, "a<x>", "266 1814 1771 1783 ", "1 2 2: 2", {"{" DECODER("2005", "<x>") "}}}"}},
        {LLAMA2, "<|right|>x a", "2004 260 1739 ", "1 2 2: 2",  // no block ends behind <|right|>x
         {"{" DECODER("2000", "<|right|>") ",'special':true}}}"}},
        {LLAMA2, "", "", "1 2 2: 2", {NULL}},  // </s>, as nobody names another
        {LLAMA2, "", "", "1 2000 2000: 2000",
         {"{}", "{'eos_token_id': 2000}", 0, 0, "{'eos_token_id': 5}"}},
        {LLAMA2, "", "", "1 3 3: 3 2000 2001",
         {"{'eos_token': '<pad>'}", "{'eos_token_id': [2000, 99999, 2001]}"}},
        {LLAMA2, "", "", "1 1 -1: 1 8",
         {"{'eos_token': '<s>'}", 0, 0, 0, "{'eos_token_id': 8, 'hidden_size': 9}"}},
        {SMOLLM2, "", "", "-1 2 -1: 2", {0, 0, 0, 0, "{'bos_token_id': 1, 'eos_token_id': 2}"}},
        {SMOLLM2, "", "", "-1 0 -1: 0", {NULL}},  // <|endoftext|>
    };
    const char *vocab = byte_vocabulary(3, ", \"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, "
                      "\"\\u0120a\": 259, \"11\": 260, \"<|endoftext|>\": 261, \"made up\": 300");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool merges = cases[i].folder == NULL;
        if (!merges) write_fixture(cases[i].folder);
        else remove_files();
        if (merges) put_text(in_base("vocab.json"), vocab);
        if (merges) put_text(in_base("merges.txt"), "\xef\xbb\xbf\xc4\xa0 a\r\n\n1 1");
        for (int k = 0; k < 5; k++)
            if (cases[i].files[k] != NULL)
                put_text(in_base(k < 4 ? tokenizer_files[k] : "config.json"),
                         quoted(cases[i].files[k]));
        for (int again = 0; again < 2; again++) {  // from the files, and from those that are saved
            const Tokenizer *t = tokenizer_load(base);
            char ends[200];
            sprintf(ends, "%d %d %d:", t->bos, t->eot, t->behind);
            for (size_t id = 0; id < t->vocab; id++)
                if (tokenizer_ends(t, (int32_t)id)) sprintf(ends + strlen(ends), " %zu", id);
            CHECK(strcmp(ends, cases[i].ends) == 0 && !tokenizer_ends(t, -1), "case %zu, %d: %s", i,
                  again, ends);
            const size_t n = strlen(cases[i].text);
            for (size_t less = 0; less <= min_size(n, 2); less++)
                check_list("beside", cases[i].text,
                           text_ids(t, cases[i].text, n, n - less, cases[i].how), cases[i].ids);
            tokenizer_save(t, base);
            if (merges) put_text(in_base("config.json"), "{\"model_type\": \"llama\"}");
        }
    }
}

// Default tokens are those that stand for merges.txt: a tokenizer.json has none.
static void json_has_no_defaults(void) {
    size_t n = 0;
    write_fixture(OF_LLAMA3);
    char *json = file_read(in_base("tokenizer.json"), &n, &err);
    char *more = ALLOC(char, n + 99, "json");
    sprintf(more, "{\"default_tokens\":{\"pad_token\":\"he\"},%s", strchr(json, '{') + 1);
    put_text(in_base("tokenizer.json"), more);
    CHECK(tokenizer_added(tokenizer_load(base), "he") == TOKENIZER_NONE, "it is added");
    free(json);
    free(more);
}

// Every file of a tokenizer is saved byte for byte.
static void json_saves(void) {
    char *out = in_base("out"), path[PATH_MAX];
    write_fixture(LLAMA2);
    make_directories(out);
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        const char *text = i < FILE_TEMPLATE ? "{\"added_tokens_decoder\": {}}" : "\0any\xff";
        if (i != FILE_JSON)
            put_bytes(in_base(tokenizer_files[i]), text, i < FILE_TEMPLATE ? 28 : 5);
    }
    tokenizer_save(tokenizer_load(base), out);
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        path_join(path, out, tokenizer_files[i]);
        CHECK(same_file(path, in_base(tokenizer_files[i])), "%s", tokenizer_files[i]);
    }
    CHECK(entries_in(out) == TOKENIZER_FILES, "%d files", entries_in(out));
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
    for (int kind = 0; kind < 6; kind++) {
        for (size_t i = 0; i < length; i++)
            text[i] = kind / 2 == 0 ? 'a' : kind / 2 == 1 ? "et"[rand() % 2]
                    : (char)(0x80 + rand() % 64);
        Tokens list = text_ids(tokenizers[kind % 2], text, length, SIZE_MAX, 0);
        char *back = decoded(tokenizers[kind % 2], &list, &m);
        CHECK(m == length && memcmp(back, text, m) == 0, "kind %d", kind);
        free(back);
        free(list.ids);
    }
    CHECK(seconds_now() - start < 50, "%.1f seconds", seconds_now() - start);
}

// The words of literal texts, with a '|' between them: Tekken's, and those of Llama-3 that no case
// of cases.jsonl shows. (GPT-2's: expected.txt.)
static void words_are_cut(void) {
    static const struct { int rule; const char *words; } cases[] = {
        {RULE_LLAMA3, "I|'LL| don|'T|'Ve|'RE|'m|'D|'S|'\xc5\xbf|'s|mall"},
        {RULE_LLAMA3, "\n|a|\r|b|123|45| |678|x| \n \n|  | b"}, {RULE_LLAMA3, "'S|x|'\xc5\xbf|x"},
        {RULE_TEKKEN, "camel|Case|HTTPServer| I|'LL| don|'t"},
        {RULE_TEKKEN, "AB\xe3\x81\x82|C| AB\xe3\x81\x82"},
        {RULE_TEKKEN, "\xc7\x85" "ab\xc2\xaa|AB\xcc\x81" "Cd"},
        {RULE_TEKKEN, "\xcc\x81" "AB\xcc\x81\xcc\x81x"}, {RULE_TEKKEN, "\xcc\x81|AB"},
        {RULE_TEKKEN, "'small|'S"}, {RULE_TEKKEN, "!Ab|-c|D|\n|_x|Y"},
        {RULE_TEKKEN, "1|2|/|3|\n|/| a|!/\n//|x"}, {RULE_TEKKEN, "a| \n|\tB| | C"},
        {RULE_TEKKEN, "1|A\xe2\x83\x9d" "b| \xf3\xa0\x84\x80|C"}};
    word_classes_make();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[100], cut[100] = "";
        size_t n = 0;
        for (const char *c = cases[i].words; *c != '\0'; c++) if (*c != '|') text[n++] = *c;
        for (size_t at = 0, length; at < n; at += length) {
            char *exact = strndup(text + at, n - at);
            length = word_length(&word_rules[cases[i].rule], exact, n - at);
            strncat(strcat(cut, at > 0 ? "|" : ""), exact, length);
            free(exact);
        }
        CHECK(strcmp(cut, cases[i].words) == 0, "%s: %s", cases[i].words, cut);
    }
}

// Compositions that no case of cases.jsonl shows: two marks of one class, bytes that are not UTF-8,
// a syllable without a trailing consonant, and a result of three times the bytes.
static void nfc_composes(void) {
    static const struct { const char *text, *expected; } cases[] = {
        {"a\xcc\x8d\xcc\x81", "a\xcc\x8d\xcc\x81"}, {"e\xff\xcc\x81", "e\xff\xcc\x81"},
        {"\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"},
        {"\xf0\x9d\x87\x80", "\xf0\x9d\x86\xba\xf0\x9d\x85\xa5\xf0\x9d\x85\xaf"}};
    word_classes_make();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *room = NULL;
        size_t n = strlen(cases[i].text);
        const char *got = nfc_text(cases[i].text, &n, &room);
        CHECK(n == strlen(cases[i].expected) && memcmp(got, cases[i].expected, n) == 0,
              "case %zu", i);
        free(room);
    }
}

int main(void) {
    base_new("tokenizer");
    RUN(unicode_classes);
    RUN(tokenizer_expected);
    RUN(tokenizer_saves);
    RUN(tokenizer_beside);
    RUN(json_cases);
    RUN(json_has_no_defaults);
    RUN(json_saves);
    RUN(megabyte_words);
    RUN(words_are_cut);
    RUN(nfc_composes);
    remove_tree(base);
    return test_summary();
}
