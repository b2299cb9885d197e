// json.h: reads JSON (config.json, vocab.json, headers of safetensors files) and writes strings.
//
//   json_parse, json_read    parse a text, or a file, into a tree of values, which free() frees
//   json_named               parses a file's text, with the file's name in errors
//   json_get                 a member of an object
//   json_size, json_flag     a number that is a size; a member that is true or false
//   json_is, json_empty      is a value this string?; is it null, "", [], {} or missing?
//   json_begins              does a text begin like JSON?
//   json_write_string, json_write_others   write a string with its quotes; members of an object
//
// The reader is as strict as RFC 8259: no comments, no trailing commas, no NaN, only valid UTF-8.
// Two more things are allowed: numbers like 01, +1 or .5, and a byte order mark in front. Refused
// are lone surrogates, numbers too large for a double, more than 64 levels, and a key twice in an
// object: another reader may take the other value. Memory: at most 106 bytes per byte of text.
#ifndef TIDE_JSON_H
#define TIDE_JSON_H
#include "../base/util.h"

typedef enum {
    JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT
} JsonType;

typedef struct Json {
    JsonType type;
    double number;          // JSON_NUMBER
    const char *string;  // JSON_STRING: decoded UTF-8 and a NUL; other types: the text in the file
    size_t length;          // bytes of string, without the last NUL; a string may contain NULs
    const char *key;        // the key of an object's member; NULL if the parent is no object
    size_t key_length;
    struct Json *child;     // JSON_ARRAY, JSON_OBJECT: the first of its members
    struct Json *next;      // the next member of the same parent
    size_t count;
    struct Json **table;    // JSON_OBJECT: 2 count + 1 places of a hash table (json_place())
} Json;

enum { JSON_DEPTH = 64 };

typedef struct {
    const char *text, *end, *at;
    Json *free_node;    // the next unused node
    Json **free_place;  // the next unused place of the hash tables
    char *free_string;  // the next unused byte of the strings
    bool failed;        // err has the reason, and `at` is the end of the text
    Error *err;
} JsonParser;

// Stores an error, unless there is one already. Ends the text here, so that no loop reads on.
static void json_error(JsonParser *p, const char *what) {
    size_t line = 1;
    if (p->failed) return;
    for (const char *s = p->text; s < p->at; s++) line += *s == '\n';
    error_set(p->err, "JSON, line %zu, byte %zu: %s", line, (size_t)(p->at - p->text), what);
    p->failed = true;
    p->at = p->end;
}

// Skips white space. Then, if the next character is c, reads it and returns true.
static bool json_take(JsonParser *p, char c) {
    while (p->at < p->end && memchr(" \t\r\n", *p->at, 4) != NULL) p->at++;
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    return true;
}

// The letters of escapes like \n, and the characters that they mean. Writing escapes all but the /.
static const char json_letters[] = "\"\\bfnrt/", json_meanings[] = "\"\\\b\f\n\r\t/";

// Reads the u and the four digits of an escape \uXXXX.
static uint32_t json_hex4(JsonParser *p) {
    char digits[5] = "";
    if (p->end - p->at >= 5 && *p->at == 'u') memcpy(digits, p->at + 1, 4);
    if (strspn(digits, "0123456789abcdefABCDEF") < 4)
        json_error(p, "unknown escape in a string, or \\u without four hexadecimal digits");
    else p->at += 5;
    return (uint32_t)strtoul(digits, NULL, 16);
}

// Reads an escape whose backslash has been read. Returns its code point.
static uint32_t json_escape(JsonParser *p) {
    const char *found = p->at < p->end ? (const char *)memchr(json_letters, *p->at, 8) : NULL;
    if (found != NULL) {
        p->at++;
        return (unsigned char)json_meanings[found - json_letters];
    }
    const uint32_t c = json_hex4(p);
    if (c < 0xd800 || c >= 0xe000) return c;
    // A code point beyond U+FFFF is written as a pair of surrogates.
    const bool pair = c < 0xdc00 && p->at < p->end && *p->at == '\\';
    p->at += pair;
    const uint32_t low = pair ? json_hex4(p) : 0;
    if (low < 0xdc00 || low >= 0xe000) json_error(p, "half of a surrogate pair in a string");
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

// Reads a string. Decoded, with a NUL, it never has more bytes than in the file, with its quotes.
static void json_string(JsonParser *p, const char **string, size_t *length) {
    char *out = p->free_string;
    if (!json_take(p, '"')) json_error(p, "expected a string in double quotes");
    while (!p->failed) {
        uint32_t c = 0;
        const size_t used = utf8_decode(p->at, (size_t)(p->end - p->at), &c);
        if (used == 0 || c < 0x20)
            json_error(p, "a string has no end, a control character, or is not valid UTF-8");
        else p->at += used;
        if (c == '"') break;
        if (c == '\\') c = json_escape(p);
        out += utf8_encode(c, out);
    }
    *out = '\0';
    *string = p->free_string;
    *length = (size_t)(out - p->free_string);
    p->free_string = out + 1;
}

// Reads a number, null, false or true: all characters up to the next delimiter.
static void json_bare(JsonParser *p, Json *node) {
    static const char *const words[3] = {"null", "false", "true"};  // as JsonType orders them
    const size_t n = node->length = strcspn(p->at, " \t\r\n,:[]{}\"");
    char *end;
    p->at += n;
    for (int i = 0; i < 3; i++) {
        node->type = (JsonType)i;
        if (n == strlen(words[i]) && memcmp(node->string, words[i], n) == 0) return;
    }
    node->type = JSON_NUMBER;
    node->number = strtod(node->string, &end);  // C locale: the point is a '.'
    if (n == 0 || strspn(node->string, "0123456789+-.eE") < n || end != p->at
        || node->number - node->number != 0) json_error(p, "expected a value");
}

// Returns a key's place in an object's hash table. *place is NULL if the object lacks the key.
static Json **json_place(const Json *object, const char *key, size_t length) {
    for (uint64_t at = hash_bytes(key, length);; at++) {
        Json **place = &object->table[at % (2 * object->count + 1)];
        if (*place == NULL || ((*place)->key_length == length
                               && memcmp((*place)->key, key, length) == 0)) return place;
    }
}

// Fills the hash table of an object. A key that occurs twice is an error.
static void json_index(JsonParser *p, Json *object) {
    char what[128];
    object->table = p->free_place;
    p->free_place += 2 * object->count + 1;
    for (Json *member = object->child; member != NULL && !p->failed; member = member->next) {
        Json **place = json_place(object, member->key, member->key_length);
        if (*place != NULL) {
            snprintf(what, sizeof what, "the object that ends here has \"%.80s\" twice",
                     member->key);
            json_error(p, what);
        }
        *place = member;
    }
}

// Reads a value into a node whose bytes are zero.
static void json_value(JsonParser *p, Json *node, int depth) {
    const bool object = json_take(p, '{'), list = object || json_take(p, '[');
    node->string = p->at - list;
    if (!list) {
        node->type = JSON_STRING;
        if (p->at < p->end && *p->at == '"') json_string(p, &node->string, &node->length);
        else json_bare(p, node);
        return;
    }
    if (depth == JSON_DEPTH) json_error(p, "too many levels");
    node->type = object ? JSON_OBJECT : JSON_ARRAY;
    const char close = object ? '}' : ']';
    bool more = !json_take(p, close);
    for (Json **link = &node->child; more && !p->failed; link = &(*link)->next) {
        Json *member = *link = p->free_node++;
        node->count++;
        if (object) {
            json_string(p, &member->key, &member->key_length);
            if (!json_take(p, ':')) json_error(p, "expected ':' after a key");
        }
        if (!p->failed) json_value(p, member, depth + 1);
        more = !json_take(p, close);
        if (more && !json_take(p, ',')) json_error(p, "expected ',' or the end of a list");
    }
    node->length = (size_t)(p->at - node->string);
    if (object && !p->failed) json_index(p, node);
}

// Does a text begin with {" or [{, where white space may stand before each character?
static bool json_begins(const char *text, size_t n) {
    JsonParser p = {text, text + n, text + utf8_mark(text, n), NULL, NULL, NULL, false, NULL};
    return json_take(&p, '{') ? json_take(&p, '"') : json_take(&p, '[') && json_take(&p, '{');
}

// Parses n bytes of JSON. Returns the root, to be freed, or NULL and sets err.
static Json *json_parse(const char *text, size_t n, Error *err) {
    size_t nodes = 1;  // the root; each other value follows a comma or a bracket
    for (size_t i = 0; i < n; i++) nodes += text[i] == ',' || text[i] == '[' || text[i] == '{';
    Json *root = (Json *)calloc(1, nodes * (sizeof(Json) + 3 * sizeof(Json *)) + 2 * n + 2);
    if (root == NULL) fail("out of memory: a JSON text of %zu bytes", n);
    Json **places = (Json **)(root + nodes);  // of hash tables: 2 for a member, 1 for an object
    char *strings = (char *)(places + 3 * nodes), *copy = strings + n + 1;
    memcpy(copy, text, n);
    JsonParser p = {copy, copy + n, copy + utf8_mark(copy, n), root + 1, places, strings, false,
                    err};
    json_value(&p, root, 0);
    json_take(&p, ' ');  // skips white space at the end
    if (p.at < p.end) json_error(&p, "something follows the end of the value");
    if (!p.failed) return root;
    free(root);
    return NULL;
}

// Returns the member with this key. NULL: there is none, or `object` is no object.
static const Json *json_member(const Json *object, const char *key) {
    if (object == NULL || object->type != JSON_OBJECT) return NULL;
    return *json_place(object, key, strlen(key));
}

// Returns the member with this key. NULL also if the member is null.
static const Json *json_get(const Json *object, const char *key) {
    const Json *member = json_member(object, key);
    return member == NULL || member->type == JSON_NULL ? NULL : member;
}

// Stores a number that is written as digits only and is below 2^53, where a double is exact.
// Returns false, and leaves *out, for any other value.
static bool json_size(const Json *value, size_t *out) {
    if (value == NULL || value->type != JSON_NUMBER || value->number >= 9007199254740992.0
        || strspn(value->string, "0123456789") != value->length) return false;
    *out = (size_t)value->number;
    return true;
}

// Is this value the string `text`?
static bool json_is(const Json *value, const char *text) {
    return value != NULL && value->type == JSON_STRING && value->length == strlen(text)
        && memcmp(value->string, text, value->length) == 0;
}

// Returns 1 if the member is true, 0 if false, `missing` if null or not there, -1 otherwise.
static int json_flag(const Json *object, const char *key, bool missing) {
    const Json *member = json_get(object, key);
    if (member == NULL) return missing;
    return member->type == JSON_TRUE ? 1 : member->type == JSON_FALSE ? 0 : -1;
}

static bool json_empty(const Json *value) {
    return value == NULL || value->type == JSON_NULL
        || (value->type == JSON_STRING ? value->length == 0
            : value->type >= JSON_ARRAY && value->count == 0);
}

// Writes n bytes as a JSON string in quotes. A byte that is not UTF-8 is written as U+FFFD.
static void json_write_string(FILE *f, const char *s, size_t n) {
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t used = utf8_decode(s + i, n - i, &c);
        const char *known = c < 0x80 ? (const char *)memchr(json_meanings, (int)c, 7) : NULL;
        if (used == 0) { fputs("\\ufffd", f); used = 1; }
        else if (known != NULL) fprintf(f, "\\%c", json_letters[known - json_meanings]);
        else if (c < 0x20) fprintf(f, "\\u%04x", (unsigned)c);
        else fwrite(s + i, 1, used, f);
        i += used;
    }
    fputc('"', f);
}

// Writes the members of an object as they were read, each on a line that ends with a comma. Leaves
// out the keys in `but`, a list that ends with NULL. Writes nothing if `object` is no object.
static void json_write_others(FILE *f, const Json *object, const char *const *but) {
    const Json *m = object != NULL && object->type == JSON_OBJECT ? object->child : NULL;
    for (; m != NULL; m = m->next) {
        const char *const *key = but;
        while (*key != NULL && strcmp(m->key, *key) != 0) key++;
        if (*key != NULL) continue;
        fprintf(f, "  ");
        json_write_string(f, m->key, m->key_length);
        fprintf(f, ": ");
        if (m->type == JSON_STRING) json_write_string(f, m->string, m->length);
        else fwrite(m->string, 1, m->length, f);
        fprintf(f, ",\n");
    }
}

// Parses the text of a file. Errors begin with its path.
static Json *json_named(const char *path, const char *text, size_t n, Error *err) {
    Error inner;
    Json *root = json_parse(text, n, &inner);
    if (root == NULL) error_set(err, "%.200s: %.290s", path, inner.text);
    return root;
}

// Reads and parses a file.
static Json *json_read(const char *path, Error *err) {
    size_t n = 0;
    char *text = text_read(path, &n, err);
    Json *root = text != NULL ? json_named(path, text, n, err) : NULL;
    free(text);
    return root;
}

#endif
