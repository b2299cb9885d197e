// Any bytes as JSON: no crash, and what is accepted is consistent and survives being written again.
#include "../../../tide/files/json.h"

static void check(bool ok) { if (!ok) abort(); }

static void write_value(FILE *f, const Json *j, int depth) {
    check(depth <= JSON_DEPTH);
    if (j->type == JSON_NUMBER) fwrite(j->string, 1, j->length, f);
    if (j->type == JSON_STRING) json_write_string(f, j->string, j->length);
    if (j->type == JSON_NULL) fputs("null", f);
    if (j->type == JSON_FALSE) fputs("false", f);
    if (j->type == JSON_TRUE) fputs("true", f);
    if (j->type < JSON_ARRAY) return;
    fputc(j->type == JSON_ARRAY ? '[' : '{', f);
    size_t count = 0;
    for (const Json *member = j->child; member != NULL; member = member->next, count++) {
        if (count > 0) fputc(',', f);
        check((member->key != NULL) == (j->type == JSON_OBJECT));
        if (member->key != NULL) {
            check(member->key[member->key_length] == '\0');
            json_write_string(f, member->key, member->key_length);
            fputc(':', f);
        }
        write_value(f, member, depth + 1);
    }
    check(count == j->count);
    fputc(j->type == JSON_ARRAY ? ']' : '}', f);
}

static void check_equal(const Json *a, const Json *b) {
    check(a->type == b->type && a->number == b->number && a->count == b->count);
    check(a->key_length == b->key_length);
    check(a->type >= JSON_ARRAY || (a->length == b->length
          && (a->length == 0 || memcmp(a->string, b->string, a->length) == 0)));
    check(a->key_length == 0 || memcmp(a->key, b->key, a->key_length) == 0);
    for (a = a->child, b = b->child; a != NULL; a = a->next, b = b->next) check_equal(a, b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Error err;
    err.text[0] = '\0';
    Json *root = json_parse((const char *)data, n, &err);
    if (root == NULL) { check(err.text[0] != '\0'); return 0; }
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    check(f != NULL);
    write_value(f, root, 0);
    fclose(f);
    Json *again = json_parse(text, length, &err);
    check(again != NULL);
    check_equal(root, again);
    json_free(again);
    json_free(root);
    free(text);
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("{\"a\": [1, -2.5e-3, 0, true, false, null], \"\": {\"\\n\\ud83d\\ude00\": \"\"}}"), \
    FUZZ_SEED("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[" \
              "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"), \
    FUZZ_SEED("{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"m\":{}}"), \
    FUZZ_SEED("\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \\\" \\\\ \\/ \\b\\f\\r\\t \\u0000\""), \
    FUZZ_SEED("123456789012345678901234567890.1234567890E+12") }
#define FUZZ_KINDS {{"json", FUZZ_SEED("")}}
#include "fuzz_main.h"
