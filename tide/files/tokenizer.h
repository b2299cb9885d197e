// tokenizer.h: text to tokens and back, as GPT-2 does it: byte-level byte-pair encoding.
//
//     tokenizer_bytes()    a byte is a token
//     tokenizer_load()     of a directory; tokenizer_parse(): of the texts of its files
//     tokenizer_save()     into another one
//     tokenizer_encode()   text to tokens; tokenizer_begin(): a text from its first token on
//     tokenizer_token()    the text of one token
//     tokenizer_free()
//
// 1. The text is cut into words by the expression of GPT-2's encoder.py, here a small scanner:
//        's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//    A byte that is not part of valid UTF-8 counts as one code point that is no letter, no number
//    and no white space: the ids of any bytes decode to exactly those bytes.
// 2. A word starts as one token per byte. As long as two neighbours are in the list of merges, the
//    pair that comes first in the list (of equal ones the leftmost) becomes one token.
// The text of the end-of-text token, "<|endoftext|>" or OPT's "</s>", becomes that token wherever
// it stands. Other special tokens of a vocabulary (<pad>, <mask>) decode, but text never becomes
// them.
//
// In vocab.json and merges.txt every byte is written as one printable code point: itself if it is
// printable Latin-1, else the next free one from U+0100 on (a space is U+0120). What is wrong with
// these files ends the program with one line.
// Sources: Radford et al. 2019 (section 2.2), Sennrich et al. 2016 (byte-pair encoding).
#ifndef TIDE_TOKENIZER_H
#define TIDE_TOKENIZER_H
#include "../base/util.h"
#include "json.h"
#include "unicode.h"

#define TOKENIZER_EOT "<|endoftext|>"
#define TOKENIZER_NONE UINT32_MAX          // no such token, no such merge
enum {
    TOKENIZER_MAX_IDS = 1 << 24,
    TOKENIZER_SHORT = 64                   // words up to here are merged by the plain loop
};

typedef struct { size_t start, length; } TokenText;  // in Tokenizer.bytes; length 0: no such id
typedef struct { uint32_t left, right, result; } TokenMerge;

typedef struct Tokenizer {
    size_t vocab;                          // largest id + 1
    int eot;                               // the token that ends a text; -1: none
    uint32_t byte_id[256];
    TokenText *tokens;                     // [vocab]
    char *bytes;                           // of all tokens
    TokenMerge *merges;                    // [merge_count], the first comes first
    size_t merge_count;
    uint32_t *table;                       // hash of (left, right) -> index of the merge + 1
    size_t table_mask;
    char *files[2];                        // the texts of vocab.json and merges.txt
} Tokenizer;

// ---------------------------------------------------------------------------------------------
// Bytes as printable characters

static uint32_t tokenizer_byte_to_char(int byte) {
    if (byte <= 32) return 256 + (uint32_t)byte;
    if (byte >= 127 && byte <= 160) return 289 + (uint32_t)(byte - 127);
    return byte == 173 ? 323 : (uint32_t)byte;
}

// The byte that a code point stands for, or -1.
static int tokenizer_char_to_byte(uint32_t c) {
    int byte = c < 256 ? (int)c : c < 289 ? (int)c - 256 : c < 323 ? (int)c - 162 : 173;
    return c <= 323 && tokenizer_byte_to_char(byte) == c ? byte : -1;
}

// Writes the bytes that a text of n bytes stands for and returns how many; if it is not made of
// such characters, as <pad> in other alphabets, it stands for itself.
static size_t tokenizer_decode(const char *text, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        const size_t step = utf8_decode(text + i, n - i, &c);
        const int byte = step == 0 ? -1 : tokenizer_char_to_byte(c);
        if (byte < 0) {
            memcpy(out, text, n);
            return n;
        }
        out[used++] = (char)byte;
        i += step;
    }
    return used;
}

// ---------------------------------------------------------------------------------------------
// Reading vocab.json and merges.txt

// One pass over merges.txt.
typedef struct {
    const char *dir, *at;
    size_t line;
    char *both;                            // the two tokens of the current merge, joined
    size_t left, length;                   // bytes of the first one, and of both
} MergeReader;

static MergeReader merge_reader(const char *dir, const char *merges) {
    MergeReader r = {dir, merges, 0, ALLOC(char, strlen(merges) + 1, "merges"), 0, 0};
    return r;
}

// Goes to the next merge; false at the end.
static bool merge_next(MergeReader *r) {
    while (*r->at != '\0') {
        const char *s = r->at;
        size_t n = strcspn(s, "\n");
        r->at += n + (s[n] == '\n');
        r->line++;
        if (n > 0 && s[n - 1] == '\r') n--;
        if (n == 0 || (r->line == 1 && strncmp(s, "#version", 8) == 0)) continue;
        const char *space = (const char *)memchr(s, ' ', n);
        r->left = space == NULL ? 0 : (size_t)(space - s);
        r->length = n - 1;
        if (r->left == 0 || r->left == r->length
            || memchr(space + 1, ' ', r->length - r->left) != NULL)
            die("%s/merges.txt, line %zu: not two tokens with a space between", r->dir, r->line);
        memcpy(r->both, s, r->left);
        memcpy(r->both + r->left, space + 1, r->length - r->left);
        return true;
    }
    free(r->both);
    return false;
}

// The vocab.json that belongs to merges.txt by GPT-2's rule: the bytes in the order of their
// characters, the results of the merges in the order of the file, <|endoftext|>. Without merges
// (NULL), every byte is its own id, and nothing ends a text.
static char *tokenizer_vocabulary(const char *dir, const char *merges) {
    char *text = NULL, utf8[4];
    size_t length = 0, id = 0;
    FILE *f = open_memstream(&text, &length);
    if (f == NULL) fail("out of memory: a vocabulary");
    for (int i = 0; i <= 323; i++) {
        if (merges == NULL ? i > 255 : tokenizer_char_to_byte((uint32_t)i) < 0) continue;
        const uint32_t c = merges == NULL ? tokenizer_byte_to_char(i) : (uint32_t)i;
        fprintf(f, id == 0 ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(c, utf8));
        fprintf(f, ": %zu", id++);
    }
    if (merges != NULL) {
        MergeReader r = merge_reader(dir, merges);
        while (merge_next(&r)) {
            fprintf(f, ", ");
            json_write_string(f, r.both, r.length);
            fprintf(f, ": %zu", id++);
        }
        if (id == 256) die("%s: no merges in merges.txt, and there is no vocab.json", dir);
        fprintf(f, ", \"" TOKENIZER_EOT "\": %zu", id);
    }
    fprintf(f, "}\n");
    if (fclose(f) != 0) fail("out of memory: a vocabulary");
    return text;
}

// The id of the token that is written like this, or TOKENIZER_NONE.
static uint32_t tokenizer_find(const Json *vocabulary, const char *key, size_t length) {
    size_t id = TOKENIZER_NONE;
    json_size(*json_place(vocabulary, key, length), &id);
    return (uint32_t)id;
}

// The entry of a merge in the hash table: its place in the list + 1, or 0 where it would be.
static uint32_t *tokenizer_entry(const Tokenizer *t, uint32_t left, uint32_t right) {
    const uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    for (size_t slot = (size_t)(h >> 29);; slot++) {
        uint32_t *entry = &t->table[slot & t->table_mask];
        if (*entry == 0) return entry;
        const TokenMerge *m = &t->merges[*entry - 1];
        if (m->left == left && m->right == right) return entry;
    }
}

// The place of the merge of two tokens in the list, or TOKENIZER_NONE.
static uint32_t tokenizer_rank(const Tokenizer *t, uint32_t left, uint32_t right) {
    return *tokenizer_entry(t, left, right) - 1;
}

// Reads the list of merges of tokens of the vocabulary.
static void tokenizer_read_merges(Tokenizer *t, const Json *vocabulary, MergeReader r) {
    size_t lines = 1, slots = 4;
    for (const char *c = r.at; *c != '\0'; c++) lines += *c == '\n';
    while (slots < 2 * lines + 2) slots *= 2;  // at most half full
    t->table_mask = slots - 1;
    t->table = ALLOC(uint32_t, slots, "merges");
    t->merges = ALLOC(TokenMerge, lines, "merges");
    while (merge_next(&r)) {
        TokenMerge m = {tokenizer_find(vocabulary, r.both, r.left),
                        tokenizer_find(vocabulary, r.both + r.left, r.length - r.left),
                        tokenizer_find(vocabulary, r.both, r.length)};
        if (m.left == TOKENIZER_NONE || m.right == TOKENIZER_NONE || m.result == TOKENIZER_NONE)
            die("%s/merges.txt, line %zu: %s a token that is not in the vocabulary", r.dir, r.line,
                m.left == TOKENIZER_NONE || m.right == TOKENIZER_NONE ? "merges" : "gives");
        uint32_t *entry = tokenizer_entry(t, m.left, m.right);
        if (*entry != 0) die("%s/merges.txt, line %zu: occurs twice", r.dir, r.line);
        t->merges[t->merge_count++] = m;
        *entry = (uint32_t)t->merge_count;
    }
}

// A tokenizer from the texts of vocab.json and merges.txt; without the first (NULL) see
// tokenizer_vocabulary(). `dir` is for messages.
static Tokenizer *tokenizer_parse(const char *dir, const char *vocab, const char *merges) {
    Tokenizer *t = ALLOC(Tokenizer, 1, "tokenizer");
    size_t id = 0, used = 0;
    Error err;
    if (*merges == '\0') die("%s/merges.txt: empty", dir);
    t->files[0] = vocab != NULL ? strdup(vocab) : tokenizer_vocabulary(dir, merges);
    t->files[1] = strdup(merges);
    Json *json = json_parse(t->files[0], strlen(t->files[0]), &err);
    if (json == NULL) die("%s/vocab.json: %s", dir, err.text);
    if (json->type != JSON_OBJECT) die("%s/vocab.json: not an object", dir);
    for (const Json *token = json->child; token != NULL; token = token->next) {
        if (!json_size(token, &id) || id >= TOKENIZER_MAX_IDS)
            die("%s/vocab.json: the id of \"%.100s\" is not a number below 2^24", dir, token->key);
        if (id >= t->vocab) t->vocab = id + 1;
    }
    t->tokens = ALLOC(TokenText, t->vocab, "vocabulary");
    t->bytes = ALLOC(char, strlen(t->files[0]), "vocabulary");
    for (Json *token = json->child; token != NULL; token = token->next) {
        json_size(token, &id);
        if (token->key_length == 0 || t->tokens[id].length > 0)
            die("%s/vocab.json: token %zu, \"%.100s\", %s", dir, id, token->key,
                token->key_length == 0 ? "is empty" : "has the id of another");
        t->tokens[id].start = used;
        t->tokens[id].length = tokenizer_decode(token->key, token->key_length, t->bytes + used);
        used += t->tokens[id].length;
    }
    for (int i = 0; i < 256; i++) {
        char utf8[4];
        const size_t n = utf8_encode(tokenizer_byte_to_char(i), utf8);
        t->byte_id[i] = tokenizer_find(json, utf8, n);
        if (t->byte_id[i] == TOKENIZER_NONE)
            die("%s/vocab.json: no token for the byte 0x%02x", dir, (unsigned)i);
    }
    // OPT's vocabulary has GPT-2's token as well, and never uses it.
    const bool opt = tokenizer_find(json, "<s>", 3) != TOKENIZER_NONE;
    const char *eot = opt ? "</s>" : TOKENIZER_EOT;
    t->eot = (int)tokenizer_find(json, eot, strlen(eot));  // TOKENIZER_NONE is -1
    tokenizer_read_merges(t, json, merge_reader(dir, merges));
    json_free(json);
    return t;
}

// 256 tokens, no merges, id = value of the byte.
static Tokenizer *tokenizer_bytes(void) {
    char *vocab = tokenizer_vocabulary("bytes", NULL);
    Tokenizer *t = tokenizer_parse("bytes", vocab, "#version: 0.2\n");
    free(vocab);
    return t;
}

// Why there is no tokenizer, for the line that says that one is needed.
static char tokenizer_why[ERR_MAX] = "the model came without one";

// Is `dir` a file, or has it a tokenizer.json and no merges.txt? Then tokenizer_why says so.
static bool tokenizer_unread(const char *dir) {
    char path[PATH_MAX];
    path_join(path, dir, "merges.txt");
    if (path_exists(path)) return false;
    path_join(path, dir, "tokenizer.json");
    const char *file = path_exists(path) ? path : dir;
    if (!path_exists(file) || path_is_directory(file)) return false;
    snprintf(tokenizer_why, sizeof tokenizer_why, "%.200s is not read yet, only a folder's "
             "vocab.json and merges.txt: they are where the model is from, or was tuned from; "
             "dev/data/model.sh fetches GPT-2's and OPT's", file);
    return true;
}

static bool data_is_quiet;  // of several ranks, the first one warns

// Warns of a token that added_tokens.json adds to the vocabulary.
static void tokenizer_check_added(const Tokenizer *t, const char *dir) {
    char path[PATH_MAX];
    Error ignored;
    size_t id = 0;
    path_join(path, dir, "added_tokens.json");
    Json *root = !data_is_quiet && path_exists(path) ? json_read(path, &ignored) : NULL;
    for (const Json *m = root != NULL ? root->child : NULL; m != NULL; m = m->next) {
        if (!json_size(m, &id) || (id < t->vocab && t->tokens[id].length > 0)) continue;
        fprintf(stderr, "tide: warning: %s adds token %zu to vocab.json, which is not read yet: no "
                "text becomes it, and what is saved lacks it\n", path, id);
        break;
    }
    json_free(root);
}

// Reads dir/vocab.json and dir/merges.txt, or merges.txt alone if there is no vocab.json.
static Tokenizer *tokenizer_load(const char *dir) {
    static const char *const names[2] = {"vocab.json", "merges.txt"};
    char path[PATH_MAX], *text[2] = {NULL, NULL};
    if (tokenizer_unread(dir)) die("%s", tokenizer_why);
    for (int i = 0; i < 2; i++) {
        Error err;
        size_t n = 0;
        path_join(path, dir, names[i]);
        if (i == 0 && !path_exists(path)) continue;
        if ((text[i] = text_read(path, &n, &err)) == NULL) die("%s", err.text);
    }
    Tokenizer *t = tokenizer_parse(dir, text[0], text[1]);
    tokenizer_check_added(t, dir);
    free(text[0]);
    free(text[1]);
    return t;
}

static void tokenizer_free(Tokenizer *t) {
    if (t == NULL) return;
    free(t->tokens);
    free(t->bytes);
    free(t->merges);
    free(t->table);
    free(t->files[0]);
    free(t->files[1]);
    free(t);
}

// ---------------------------------------------------------------------------------------------
// Text to tokens

// The class of the code point at s and its length; a byte that is not UTF-8 stands for itself.
static int tokenizer_class(const char *s, size_t n, size_t *length) {
    uint32_t c = 0;
    unsigned char first = (unsigned char)*s;
    *length = 1;
    if (first < 0x80) {
        if ((first | 32) >= 'a' && (first | 32) <= 'z') return UNICODE_LETTER;
        if (first >= '0' && first <= '9') return UNICODE_NUMBER;
        return first == ' ' || (first >= 9 && first <= 13) ? UNICODE_SPACE : UNICODE_OTHER;
    }
    size_t used = utf8_decode(s, n, &c);
    if (used == 0) return UNICODE_OTHER;
    *length = used;
    return unicode_class(c);
}

// The length of the first word of a text of n > 0 bytes.
static size_t tokenizer_word(const char *s, size_t n) {
    if (s[0] == '\'') {
        if (n >= 2 && (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd')) return 2;
        if (n >= 3 && (memcmp(s + 1, "re", 2) == 0 || memcmp(s + 1, "ve", 2) == 0
                       || memcmp(s + 1, "ll", 2) == 0)) return 3;
    }
    size_t at = 0, last, length, second;
    int kind = tokenizer_class(s, n, &length);
    if (s[0] == ' ' && n > 1) {  // one space belongs to the word behind it
        int behind = tokenizer_class(s + 1, n - 1, &second);
        if (behind != UNICODE_SPACE) { kind = behind; at = 1; length = second; }
    }
    do {
        last = at;
        at += length;
    } while (at < n && tokenizer_class(s + at, n - at, &length) == kind);
    // \s+(?!\S): white space before a word leaves its last character to that word
    return kind == UNICODE_SPACE && at < n && last > 0 ? last : at;
}

// Merges the n <= TOKENIZER_SHORT tokens of a word in place and returns how many are left. This is
// the definition; it is quadratic, but for words of the usual length nothing is faster.
static size_t tokenizer_merge_short(const Tokenizer *t, uint32_t *ids, size_t n) {
    uint32_t rank[TOKENIZER_SHORT + 1];  // of the pair that starts at i
    for (size_t i = 0; i + 1 < n; i++) rank[i] = tokenizer_rank(t, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) if (rank[i] < rank[best]) best = i;
        if (rank[best] == TOKENIZER_NONE) break;
        ids[best] = t->merges[rank[best]].result;
        n--;
        for (size_t i = best + 1; i < n; i++) ids[i] = ids[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) rank[i] = rank[i + 1];
        if (best + 1 < n) rank[best] = tokenizer_rank(t, ids[best], ids[best + 1]);
        if (best > 0) rank[best - 1] = tokenizer_rank(t, ids[best - 1], ids[best]);
    }
    return n;
}

// Adds a pair to a binary heap, smallest first: rank << 32 | position, so that equal ranks go
// leftmost first. A pair that nothing merges is left out.
static void tokenizer_heap_push(const Tokenizer *t, uint64_t *heap, size_t *count,
                                const uint32_t *ids, size_t left, size_t right) {
    const uint32_t rank = tokenizer_rank(t, ids[left], ids[right]);
    const uint64_t item = (uint64_t)rank << 32 | left;
    if (rank == TOKENIZER_NONE) return;
    size_t i = (*count)++;
    for (; i > 0 && heap[(i - 1) / 2] > item; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = item;
}

static uint64_t tokenizer_heap_pop(uint64_t *heap, size_t *count) {
    const uint64_t top = heap[0], item = heap[--*count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *count; i = child) {
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= item) break;
        heap[i] = heap[child];
    }
    heap[i] = item;
    return top;
}

// The same in O(n log n), for a "word" of any length: the tokens are a linked list, the pairs a
// heap. A pair that has changed since it was pushed is recognised by its rank, and dropped. Each
// merge pops one and pushes at most two, so 2n places are enough.
static size_t tokenizer_merge_long(const Tokenizer *t, uint32_t *ids, size_t n) {
    uint64_t *heap = ALLOC(uint64_t, 2 * n, "a long word");
    uint32_t *next = ALLOC(uint32_t, 2 * n, "a long word"), *previous = next + n;
    size_t count = 0, left = 0;
    if (n >= UINT32_MAX) die("a word of %zu bytes is too long", n);
    for (size_t i = 0; i < n; i++) {
        next[i] = (uint32_t)i + 1;
        previous[i] = (uint32_t)i - 1;
        if (i + 1 < n) tokenizer_heap_push(t, heap, &count, ids, i, i + 1);
    }
    while (count > 0) {
        const uint64_t top = tokenizer_heap_pop(heap, &count);
        const uint32_t rank = (uint32_t)(top >> 32), i = (uint32_t)top, j = next[i];
        if (ids[i] == TOKENIZER_NONE || j >= n || tokenizer_rank(t, ids[i], ids[j]) != rank)
            continue;
        ids[i] = t->merges[rank].result;
        ids[j] = TOKENIZER_NONE;
        next[i] = next[j];
        if (next[i] < n) previous[next[i]] = i;
        if (next[i] < n) tokenizer_heap_push(t, heap, &count, ids, i, next[i]);
        if (i > 0) tokenizer_heap_push(t, heap, &count, ids, previous[i], i);
    }
    for (size_t i = 0; i < n; i = next[i]) ids[left++] = ids[i];
    free(heap);
    free(next);
    return left;
}

// Encodes n bytes. `out` has room for n ids; returns how many were written. Memory beyond that is
// 24 bytes per byte of the longest word.
static size_t tokenizer_encode(const Tokenizer *t, const char *text, size_t n, uint32_t *out) {
    const TokenText none = {0, 0}, eot = t->eot >= 0 ? t->tokens[t->eot] : none;
    size_t used = 0, at = 0;
    while (at < n) {
        const char *hit = NULL;
        if (eot.length > 0)
            hit = (const char *)memmem(text + at, n - at, t->bytes + eot.start, eot.length);
        const size_t stop = hit == NULL ? n : (size_t)(hit - text);
        while (at < stop) {
            const size_t length = tokenizer_word(text + at, stop - at);
            uint32_t *ids = out + used;  // used <= at, so the word fits
            for (size_t i = 0; i < length; i++) ids[i] = t->byte_id[(unsigned char)text[at + i]];
            used += length <= TOKENIZER_SHORT ? tokenizer_merge_short(t, ids, length)
                                              : tokenizer_merge_long(t, ids, length);
            at += length;
        }
        if (hit == NULL) continue;
        out[used++] = (uint32_t)t->eot;
        at += eot.length;
    }
    return used;
}

// Encodes a text from its beginning: the token `first` (-1: none), with which every text of the
// model begins, then those of n bytes. `out` has room for n + 1 ids.
static size_t tokenizer_begin(const Tokenizer *t, int32_t first, const char *text, size_t n,
                              uint32_t *out) {
    if (first >= 0) *out = (uint32_t)first;
    return (first >= 0) + tokenizer_encode(t, text, n, out + (first >= 0));
}

// ---------------------------------------------------------------------------------------------
// Tokens to text

// The bytes of one token, not NUL-terminated; *length is 0 if there is no such id. The text of a
// sequence is the bytes of its tokens behind each other.
static const char *tokenizer_token(const Tokenizer *t, uint32_t id, size_t *length) {
    *length = id < t->vocab ? t->tokens[id].length : 0;
    return *length > 0 ? t->bytes + t->tokens[id].start : "";
}

// Writes vocab.json, merges.txt and tokenizer_config.json into an existing directory, as the
// transformers library's GPT2Tokenizer reads them; tokenizer_load() gives the same tokenizer again.
// Each file is replaced at once; merges.txt comes last, so that it never is without the others.
static void tokenizer_save(const Tokenizer *t, const char *dir) {
    static const char *const names[3] = {"vocab.json", "tokenizer_config.json", "merges.txt"};
    char eos[64] = "null", config[512], path[PATH_MAX];
    size_t n;
    const char *eot = t->eot >= 0 ? tokenizer_token(t, (uint32_t)t->eot, &n) : NULL;
    if (eot != NULL) snprintf(eos, sizeof eos, "\"%.*s\"", (int)n, eot);
    // null, not absent: without an entry transformers adds its own <|endoftext|> to the vocabulary
    snprintf(config, sizeof config, "{\"tokenizer_class\": \"GPT2Tokenizer\", "
             "\"add_prefix_space\": false, \"clean_up_tokenization_spaces\": false, "
             "\"bos_token\": %s, \"eos_token\": %s, \"unk_token\": %s}\n", eos, eos, eos);
    const char *const texts[3] = {t->files[0], config, t->files[1]};
    for (int i = 0; i < 3; i++) {
        Error err;
        path_join(path, dir, names[i]);
        FILE *f = replace_open(path, &err);
        if (f != NULL) fputs(texts[i], f);
        if (f == NULL || !replace_close(f, path, &err)) fail("%s", err.text);
    }
}

#endif
