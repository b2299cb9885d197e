// Any bytes as JSON: no crash, and what is accepted is consistent, and its strings survive
// being written again.
#include "../../../tide/files/json.h"
#include <assert.h>

static void check_string(const char *string, size_t n) {
    char *text = NULL;
    size_t length = 0;
    Error err;
    FILE *f = open_memstream(&text, &length);
    json_write_string(f, string, n);
    fclose(f);
    Json *again = json_parse(text, length, &err);
    assert(string[n] == '\0' && again != NULL && again->length == n
           && memcmp(again->string, string, n) == 0);
    json_free(again);
    free(text);
}

static void check_value(const Json *j, int depth) {
    size_t count = 0;
    assert(depth <= JSON_DEPTH);
    if (j->type == JSON_STRING) check_string(j->string, j->length);
    for (const Json *member = j->child; member != NULL; member = member->next, count++) {
        assert((member->key != NULL) == (j->type == JSON_OBJECT));
        if (member->key != NULL) check_string(member->key, member->key_length);
        check_value(member, depth + 1);
    }
    assert(count == j->count && (count == 0 || j->type >= JSON_ARRAY));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Error err;
    err.text[0] = '\0';
    Json *root = json_parse((const char *)data, n, &err);
    if (root == NULL) assert(err.text[0] != '\0');
    else check_value(root, 0);
    json_free(root);
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
