// json.h: JSON in (config.json, vocab.json, safetensors headers, training state) and strings out.
//
// A strict reader of RFC 8259: no comments, no trailing commas, no NaN, no byte order mark; strings
// are valid UTF-8. It also refuses what the RFC leaves open and what would hide a mistake: keys
// that occur twice in one object, lone surrogates, numbers too large for a double or longer than
// 400 characters, and more than 64 levels. Memory: one block, at most 73 bytes per byte of text.
#ifndef TIDE_JSON_H
#define TIDE_JSON_H
#include "util.h"

typedef enum {
    JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT
} JsonType;

typedef struct Json {
    JsonType type;
    double number;          // JSON_NUMBER
    const char *string;     // JSON_STRING: decoded, UTF-8, NUL-terminated; JSON_NUMBER: as written
    size_t length;          // bytes of string, without the NUL (a string may contain NULs, too)
    const char *key;        // inside an object, else NULL
    size_t key_length;
    struct Json *child;     // JSON_ARRAY, JSON_OBJECT: the first of count members
    struct Json *next;      // the next member of the same parent
    size_t count;
} Json;

enum { JSON_DEPTH = 64, JSON_NUMBER_LENGTH = 400 };

// One code point of UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF). Returns
// its length in bytes, or 0 if s does not start with a valid one.
static inline size_t utf8_decode(const char *s, size_t n, uint32_t *point) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) { *point = u[0]; return 1; }
    size_t length = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || n < length) return 0;
    uint32_t c = u[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (u[i] & 0x3f);
    }
    if (c < smallest[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *point = c;
    return length;
}

// Writes code point c as 1 to 4 bytes and returns how many.
static inline size_t utf8_encode(uint32_t c, char *out) {
    if (c < 0x80) { out[0] = (char)c; return 1; }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00u >> length & 0xff) | c);
    return length;
}

typedef struct {
    const char *text, *end, *at;
    Json *free_node;      // the next unused node, and
    char *free_string;    // the next unused byte of the strings
    Error *err;
} JsonParser;

static inline bool json_error(JsonParser *p, const char *what) {
    size_t line = 1;
    for (const char *s = p->text; s < p->at; s++) line += *s == '\n';
    return error_set(p->err, "JSON, line %zu, byte %zu: %s", line, (size_t)(p->at - p->text), what);
}

static inline void json_space(JsonParser *p) {
    while (p->at < p->end
           && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) p->at++;
}

static inline bool json_take(JsonParser *p, char c) {
    if (p->at >= p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static inline bool json_hex4(JsonParser *p, uint32_t *out) {
    uint32_t v = 0;
    if (p->end - p->at < 4) return json_error(p, "the text ends inside a \\u escape");
    for (int i = 0; i < 4; i++) {
        char c = *p->at++;
        if (c >= '0' && c <= '9') v = v << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f') v = v << 4 | (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F') v = v << 4 | (uint32_t)(c - 'A' + 10);
        else return json_error(p, "a \\u escape needs four hexadecimal digits");
    }
    *out = v;
    return true;
}

// What follows the backslash of an escape, as a code point.
static inline bool json_escape(JsonParser *p, uint32_t *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = p->at < p->end ? *p->at++ : '\0';
    const char *found = c == '\0' ? NULL : strchr(names, c);
    if (found != NULL) { *out = (unsigned char)values[found - names]; return true; }
    if (c != 'u') return json_error(p, "unknown escape in a string");
    if (!json_hex4(p, out)) return false;
    if (*out < 0xd800 || *out >= 0xe000) return true;
    uint32_t low = 0;  // beyond U+FFFF: a pair of surrogates
    if (*out >= 0xdc00 || !json_take(p, '\\') || !json_take(p, 'u'))
        return json_error(p, "half of a surrogate pair in a string");
    if (!json_hex4(p, &low)) return false;
    if (low < 0xdc00 || low >= 0xe000)
        return json_error(p, "half of a surrogate pair in a string");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

// A string never grows when it is decoded, and its two quotes leave room for the NUL.
static inline bool json_string(JsonParser *p, const char **string, size_t *length) {
    char *out = p->free_string;
    if (!json_take(p, '"')) return json_error(p, "expected a string in double quotes");
    for (;;) {
        uint32_t c = 0;
        if (p->at >= p->end) return json_error(p, "the text ends inside a string");
        if (json_take(p, '"')) break;
        if ((unsigned char)*p->at < 0x20) return json_error(p, "control character in a string");
        if (json_take(p, '\\')) {
            if (!json_escape(p, &c)) return false;
            out += utf8_encode(c, out);
        } else {
            size_t used = utf8_decode(p->at, (size_t)(p->end - p->at), &c);
            if (used == 0) return json_error(p, "a string is not valid UTF-8");
            for (size_t i = 0; i < used; i++) *out++ = *p->at++;
        }
    }
    *string = p->free_string;
    *length = (size_t)(out - p->free_string);
    *out = '\0';
    p->free_string = out + 1;
    return true;
}

static inline size_t json_digits(JsonParser *p) {
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    return (size_t)(p->at - start);
}

// strtod() reads the decimal point of the user's locale. It is given none: 12.5e3 becomes 125e2.
static inline bool json_number(JsonParser *p, Json *node) {
    char digits[JSON_NUMBER_LENGTH + 32];
    const char *start = p->at;
    size_t fraction = 0;
    int exponent = 0;
    json_take(p, '-');
    bool zero = p->at < p->end && *p->at == '0';
    size_t whole = json_digits(p);
    if (whole == 0) return json_error(p, "expected a value");
    if (zero && whole > 1) return json_error(p, "a number starts with 0");
    if (json_take(p, '.') && (fraction = json_digits(p)) == 0)
        return json_error(p, "digits missing after a decimal point");
    size_t mantissa = (size_t)(p->at - start);
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        p->at++;
        bool negative = p->at < p->end && *p->at == '-';
        if (p->at < p->end && (*p->at == '-' || *p->at == '+')) p->at++;
        const char *first = p->at;
        if (json_digits(p) == 0) return json_error(p, "digits missing in an exponent");
        for (const char *s = first; s < p->at; s++)
            if (exponent < 100000) exponent = exponent * 10 + (*s - '0');
        if (negative) exponent = -exponent;
    }
    node->length = (size_t)(p->at - start);
    if (node->length > JSON_NUMBER_LENGTH) return json_error(p, "a number is too long");
    size_t n = 0;
    for (size_t i = 0; i < mantissa; i++) if (start[i] != '.') digits[n++] = start[i];
    snprintf(digits + n, sizeof digits - n, "e%d", exponent - (int)fraction);
    node->type = JSON_NUMBER;
    node->number = strtod(digits, NULL);
    if (node->number - node->number != 0) return json_error(p, "a number is too large");
    memcpy(p->free_string, start, node->length);  // fits: something other than a digit follows
    node->string = p->free_string;
    p->free_string[node->length] = '\0';
    p->free_string += node->length + 1;
    return true;
}

static inline int json_compare_keys(const void *a, const void *b) {
    const Json *x = *(Json *const *)a, *y = *(Json *const *)b;
    size_t n = x->key_length < y->key_length ? x->key_length : y->key_length;
    int order = memcmp(x->key, y->key, n);
    return order != 0 ? order : (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

static inline bool json_check_keys(JsonParser *p, const Json *object) {
    if (object->count < 2) return true;
    Json **sorted = (Json **)malloc(object->count * sizeof *sorted);
    if (sorted == NULL) return json_error(p, "not enough memory");
    size_t n = 0;
    for (Json *member = object->child; member != NULL; member = member->next) sorted[n++] = member;
    qsort(sorted, n, sizeof *sorted, json_compare_keys);
    const Json *twice = NULL;
    for (size_t i = 1; i < n; i++)
        if (json_compare_keys(&sorted[i - 1], &sorted[i]) == 0) twice = sorted[i];
    free(sorted);
    if (twice == NULL) return true;
    return error_set(p->err, "JSON: the key \"%.100s\" occurs twice in one object", twice->key);
}

static inline bool json_value(JsonParser *p, Json *node, int depth) {
    static const char *const words[3] = {"null", "false", "true"};  // in the order of JsonType
    json_space(p);
    if (p->at >= p->end) return json_error(p, "the text ends where a value should be");
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(p->end - p->at) < n || memcmp(p->at, words[i], n) != 0) continue;
        p->at += n;
        node->type = (JsonType)i;
        return true;
    }
    if (*p->at == '"') {
        node->type = JSON_STRING;
        return json_string(p, &node->string, &node->length);
    }
    bool object = *p->at == '{';
    if (!object && *p->at != '[') return json_number(p, node);
    if (depth == JSON_DEPTH) return json_error(p, "too many levels");
    p->at++;
    node->type = object ? JSON_OBJECT : JSON_ARRAY;
    char close = object ? '}' : ']';
    Json **link = &node->child;
    json_space(p);
    if (json_take(p, close)) return true;
    for (;;) {
        Json *member = p->free_node++;
        memset(member, 0, sizeof *member);
        json_space(p);
        if (object) {
            if (!json_string(p, &member->key, &member->key_length)) return false;
            json_space(p);
            if (!json_take(p, ':')) return json_error(p, "expected ':' after a key");
        }
        if (!json_value(p, member, depth + 1)) return false;
        *link = member;
        link = &member->next;
        node->count++;
        json_space(p);
        if (json_take(p, close)) break;
        if (!json_take(p, ',')) return json_error(p, "expected ',' or the end of a list");
    }
    return !object || json_check_keys(p, node);
}

// Reads one JSON text of n bytes (which may be gone afterwards). Returns the root, to be freed with
// json_free(), or NULL with the line and the reason in err.
static inline Json *json_parse(const char *text, size_t n, Error *err) {
    size_t nodes = 1;  // every other value follows one of these
    for (size_t i = 0; i < n; i++) nodes += text[i] == ',' || text[i] == '[' || text[i] == '{';
    size_t bytes;
    Json *root = NULL;
    if (!__builtin_mul_overflow(nodes, sizeof(Json), &bytes) && bytes < SIZE_MAX - n)
        root = (Json *)malloc(bytes + n + 1);
    if (root == NULL) { error_set(err, "not enough memory for a JSON text"); return NULL; }
    memset(root, 0, sizeof *root);
    JsonParser p = {text, text + n, text, root + 1, (char *)(root + nodes), err};
    bool ok = json_value(&p, root, 0);
    json_space(&p);
    if (ok && p.at < p.end) ok = json_error(&p, "something follows the end of the value");
    if (ok) return root;
    free(root);
    return NULL;
}

static inline void json_free(Json *root) { free(root); }

// The member of an object with that key, NULL if there is none or if it is not an object.
static inline const Json *json_get(const Json *object, const char *key) {
    if (object == NULL || object->type != JSON_OBJECT) return NULL;
    size_t n = strlen(key);
    for (const Json *member = object->child; member != NULL; member = member->next)
        if (member->key_length == n && memcmp(member->key, key, n) == 0) return member;
    return NULL;
}

// The value of a number written as digits only and below 2^53, where a double is still exact.
static inline bool json_size(const Json *value, size_t *out) {
    if (value == NULL || value->type != JSON_NUMBER) return false;
    if (strspn(value->string, "0123456789") != value->length) return false;
    if (value->number >= 9007199254740992.0) return false;
    *out = (size_t)value->number;
    return true;
}

// json_size() of a member. False, and *out as it was, if there is none or it is something else.
static inline bool json_get_size(const Json *object, const char *key, size_t *out) {
    return json_size(json_get(object, key), out);
}

// Writes n bytes as a JSON string with its quotes. A byte that is not UTF-8 becomes U+FFFD.
static inline void json_write_string(FILE *f, const char *s, size_t n) {
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t used = utf8_decode(s + i, n - i, &c);
        if (used == 0) { fputs("\\ufffd", f); used = 1; }
        else if (c == '"' || c == '\\') fprintf(f, "\\%c", (char)c);
        else if (c == '\n') fputs("\\n", f);
        else if (c < 0x20 || c == 0x7f) fprintf(f, "\\u%04x", (unsigned)c);
        else fwrite(s + i, 1, used, f);
        i += used;
    }
    fputc('"', f);
}

// A whole regular file with a NUL after its *n bytes, to be freed with free(); NULL and the reason
// in err if it is not there, not a regular file, or changes while it is read.
static inline char *file_read(const char *path, size_t *n, Error *err) {
    struct stat s;
    if (stat(path, &s) != 0) { error_set(err, "%s: %s", path, strerror(errno)); return NULL; }
    if (!S_ISREG(s.st_mode)) { error_set(err, "%s: not a regular file", path); return NULL; }
    FILE *f = fopen(path, "rb");
    if (f == NULL) { error_set(err, "%s: %s", path, strerror(errno)); return NULL; }
    size_t size = (size_t)s.st_size;
    char *text = (char *)malloc(size + 1);
    bool ok = text != NULL && fread(text, 1, size, f) == size && fgetc(f) == EOF && !ferror(f);
    fclose(f);
    if (!ok) {
        if (text == NULL) error_set(err, "%s: not enough memory for %zu bytes", path, size);
        else error_set(err, "%s: cannot be read as a whole", path);
        free(text);
        return NULL;
    }
    text[size] = '\0';
    *n = size;
    return text;
}

// file_read() and json_parse(); the error names the file.
static inline Json *json_read(const char *path, Error *err) {
    size_t n = 0;
    char *text = file_read(path, &n, err);
    if (text == NULL) return NULL;
    Error inner;
    Json *root = json_parse(text, n, &inner);
    free(text);
    if (root == NULL) error_set(err, "%.200s: %.290s", path, inner.text);
    return root;
}

#endif
