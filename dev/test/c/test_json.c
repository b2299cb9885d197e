// Tests of json.h: what it accepts, what it refuses, what it gives.
#include "../../../tide/files/json.h"
#include "../files.h"
#include "../test.h"
#include <float.h>

static Json *parse(const char *text) { return json_parse(text, strlen(text), &err); }

// The refusals' exact bytes may contain NULs and end anywhere: no byte beyond n may be read.
static bool accepts_bytes(const char *bytes, size_t n) {
    char *copy = (char *)malloc(n > 0 ? n : 1);
    memcpy(copy, bytes, n);
    err.text[0] = '\0';
    Json *root = json_parse(copy, n, &err);
    CHECK((root == NULL) == (err.text[0] != '\0'), "error text is '%s'", err.text);
    free(copy);
    bool ok = root != NULL;
    free(root);
    return ok;
}

static void json_strings(void) {
    Json *root = parse("\"\\\"\\\\\\/\\b\\f\\n\\r\\t"
                       "\\u0041\\u00e9\\u20AC\\ud83d\\uDE00 \xc3\xa9\\u0000!\"");
    static const char expected[] = "\"\\/\b\f\n\r\t"
                                   "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa9\0!";
    CHECK(root != NULL && root->length == sizeof expected - 1
          && memcmp(root->string, expected, sizeof expected) == 0, "decoded as '%s'",
          root == NULL ? "nothing" : root->string);
    free(root);
}

static void json_accepts(void) {
    static const char *const texts[] = {
        "\"\"", " true\n", "\"\x7f\"", "{\"a\":1,\"a\\u0000\":2,\"\":3}", "{\"a\":{\"a\":1}}",
        "\"\xf4\x8f\xbf\xbf\"", "\"\\uffff\\ue000\\ud7ff\"", "\xef\xbb\xbf {\"a\":1}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        CHECK(accepts_bytes(texts[i], strlen(texts[i])), "%s is refused", texts[i]);
}

static void json_refuses(void) {
    CHECK(!accepts_bytes("1\0", 2) && !accepts_bytes("\"a\0b\"", 5), "a NUL is accepted");
    static const char whole[] = "{\"a\": [1, -2.5e-3, "
                                "\"\\ud83d\\ude00 \xe2\x82\xac\", {\"b\": null}]}";
    for (size_t n = 0; n < sizeof whole; n++)
        CHECK(accepts_bytes(whole, n) == (n == sizeof whole - 1), "the first %zu bytes", n);
    char text[300];
    for (int depth = 1; depth <= 100; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        CHECK(accepts_bytes(text, 2 * (size_t)depth) == (depth <= JSON_DEPTH), "depth %d", depth);
    }
}

// Values compared exactly with what the compiler makes of them, and as sizes: -1 is none, and the
// size stays.
static void json_numbers(void) {
    static const struct { const char *text; double value, size; } cases[] = {
        {"-7", -7, -1}, {"0.1", 0.1, -1}, {"1.7976931348623157e308", DBL_MAX, -1},
        {"1e-400", 0, -1}, {"0e99999999999", 0, -1}, {"0", 0, 0}, {"1.0", 1, -1}, {"1e3", 1000, -1},
        {"9007199254740991", 9007199254740991.0, 9007199254740991.0},
        {"9007199254740993", 9007199254740992.0, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size = 77;
        Json *root = parse(cases[i].text);
        CHECK(root != NULL && root->type == JSON_NUMBER && root->number == cases[i].value
              && strcmp(root->string, cases[i].text) == 0, "%s is %.17g", cases[i].text,
              root == NULL ? -1.0 : root->number);
        const bool ok = json_size(root, &size);
        CHECK(ok == (cases[i].size >= 0) && (double)size == (ok ? cases[i].size : 77), "%s: %zu",
              cases[i].text, size);
        free(root);
    }
    Json *text = parse("\"1\"");
    CHECK(!json_size(NULL, &(size_t){0}) && !json_size(text, &(size_t){0}), "no number");
    free(text);
}

static void json_writes(void) {
    char *text = NULL;
    size_t n = 0, length = 0;
    static char all[4 * 0x110000];
    for (uint32_t c = 0, part; c < 0x110000; c += c == 0xd7ff ? 0x801 : 1) {
        char *at = all + length;
        length += utf8_encode(c, at);
        CHECK(utf8_decode(at, (size_t)(all + length - at) - 1, &part) == 0, "a part of %x", c);
    }
    FILE *f = open_memstream(&text, &n);
    json_write_string(f, all, length);
    fclose(f);
    Json *root = json_parse(text, n, &err);
    CHECK(root != NULL && root->length == length && memcmp(root->string, all, length) == 0,
          "every code point, written and read");
    free(root);
    free(text);
    f = open_memstream(&text, &n);
    json_write_string(f, "\"\\\n\x01/\xff\xc3", 7);
    fclose(f);
    CHECK(strcmp(text, "\"\\\"\\\\\\n\\u0001/\\ufffd\\ufffd\"") == 0, "written as %s", text);
    free(text);
}

// The start of what begins like JSON does not yet.
static void json_beginnings(void) {
    static const struct { const char *text; bool begins; } cases[] = {
        {"{ \n\"", true}, {"[{", true}, {"\xef\xbb\xbf{\"", true}, {"\n{\"", true}, {"{", false},
        {"{}", false}, {"[\"a\"]", false}, {"[[", false}, {"a {\"", false}, {"\xef\xbb{\"", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK(json_begins(cases[i].text, strlen(cases[i].text)) == cases[i].begins
              && !json_begins(cases[i].text, strlen(cases[i].text) - 1), "%s", cases[i].text);
}

// Files are texts without their byte order mark; another kind of file is named.
static void text_files(void) {
    static const struct { const char *bytes; size_t n; const char *text, *says; } cases[] = {
        {"\xef\xbb\xbf{\"a\":1}", 10, "{\"a\":1}", NULL}, {"\xef\xbb\xbf", 3, "", NULL},
        {"\xef\xbb", 2, "\xef\xbb", NULL}, {"{\0\"\0a\0", 6, NULL, "UTF-16"},
        {"{\"error\":\"Not found\"}", 21, NULL, "error"}};
    const char *const path = in_base("file"), *const none = in_base("none");
    size_t n = 99;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_bytes(path, cases[i].bytes, cases[i].n);
        char *text = text_read(path, &n, &err);
        CHECK(text == NULL ? strstr(err.text, cases[i].says) && strstr(err.text, path)
              : strcmp(text, cases[i].text) == 0 && n == strlen(text), "%zu: %s", i, err.text);
        free(text);
        Json *root = json_read(path, &err);
        CHECK((root != NULL) == (i == 0) && (i == 0 || strstr(err.text, path)), "%s", err.text);
        free(root);
    }
    CHECK(file_read(base, &n, &err) == NULL && strstr(err.text, "regular") != NULL, "a directory");
    CHECK(file_read(none, &n, &err) == NULL && strstr(err.text, none) != NULL, "a missing file");
}

// What a download, or another program, leaves in place of the file that was meant.
static void files_by_their_first_bytes(void) {
    static const struct { const char *bytes; size_t n; const char *says; } cases[] = {
        {"\x88\xd8\x34\x01\1\0\0\0", 8, "token file"}, {"tjgg\1\0\0\0", 8, "GGML"},
        {"PK\3\4\0\0", 6, "build/unpickle"}, {"\x80\2}q\0.", 6, "build/unpickle"},
        {"version https://git-lfs.github.com/spec/v1\noid", 46, "git lfs pull"},
        {"\xef\xbb\xbf\n \t<HTML>", 12, "web page"}, {"Entry not found", 15, "error message"},
        {"{\"error\":\"Repository not found\"}", 32, "error message"},
        {"\x1f\x8b\x08\0", 4, "compressed"}, {"PAR1\x15\0", 6, "Parquet"},
        {"%PDF-1.7\n", 9, "document"}, {"\xff\xfe{\0", 4, "UTF-16"},
        {"\2\0\0\0\0\0\0\0{}", 10, "a safetensors file"},
        {"\x20\0\0\0\0\0\0\0{\"a\":", 13, "a safetensors file"},
        {"", 0, NULL}, {"G", 1, NULL}, {"GGUF is a format", 16, NULL}, {"PK", 2, NULL},
        {"{\"text\": \"error\"}", 17, NULL}, {"version https://git-lfs", 23, NULL},
        {"\xef\xbb\xbf", 3, NULL}, {"\0\0\0\0\0\0\0\0\0\0", 10, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *copy = (char *)malloc(cases[i].n > 0 ? cases[i].n : 1);  // no byte beyond it is read
        memcpy(copy, cases[i].bytes, cases[i].n);
        const char *kind = file_kind(copy, cases[i].n), *says = cases[i].says;
        CHECK((kind == NULL) == (says == NULL), "case %zu is %s", i, kind != NULL ? kind : "none");
        CHECK(kind == NULL || says == NULL || strstr(kind, says) != NULL, "'%s': %s", says, kind);
        free(copy);
    }
}

int main(void) {
    base_new("json");
    RUN(files_by_their_first_bytes);
    RUN(json_strings);
    RUN(json_accepts);
    RUN(json_refuses);
    RUN(json_numbers);
    RUN(json_writes);
    RUN(json_beginnings);
    RUN(text_files);
    remove_tree(base);
    return test_summary();
}
