// tokenizer.h: text to tokens and back, as GPT-2 does it: byte-level byte-pair encoding.
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
// printable Latin-1, else the next free one from U+0100 on (a space is U+0120).
// Sources: Radford et al. 2019 (section 2.2), Sennrich et al. 2016 (byte-pair encoding).
#ifndef TIDE_TOKENIZER_H
#define TIDE_TOKENIZER_H
#include "util.h"
#include "json.h"
#include "unicode.h"

#define TOKENIZER_EOT "<|endoftext|>"
#define TOKENIZER_NONE UINT32_MAX          // no such token, no such merge
#define TOKENIZER_MAX_FILE ((size_t)64 << 20)
enum {
    TOKENIZER_MAX_IDS = 1 << 24,
    TOKENIZER_SHORT = 64,                  // words up to here are merged by the plain loop
    TOKENIZER_MAX_PROBES = 1000            // more is no hash table, but a file made to be slow
};

typedef struct {
    uint32_t start, length;                // in Tokenizer.bytes; length 0: no such id
    bool raw;                              // its text in vocab.json is not in byte characters
} TokenText;

typedef struct { uint32_t left, right, result; } TokenMerge;

typedef struct Tokenizer {
    size_t vocab;                          // largest id + 1
    int eot;
    uint32_t byte_id[256];
    TokenText *tokens;                     // [vocab]
    char *bytes;                           // of all tokens
    size_t used;                           // of bytes
    TokenMerge *merges;                    // [merge_count], the first comes first
    size_t merge_count;
    uint32_t *table;                       // hash of (left, right) -> index of the merge + 1
    size_t table_mask;
} Tokenizer;

// ---------------------------------------------------------------------------------------------
// Bytes as printable characters

static inline uint32_t tokenizer_byte_to_char(int byte) {
    if (byte <= 32) return 256 + (uint32_t)byte;
    if (byte >= 127 && byte <= 160) return 289 + (uint32_t)(byte - 127);
    return byte == 173 ? 323 : (uint32_t)byte;
}

// The byte that a code point stands for, or -1.
static inline int tokenizer_char_to_byte(uint32_t c) {
    int byte = c < 256 ? (int)c : c < 289 ? (int)c - 256 : c < 323 ? (int)c - 162 : 173;
    return c <= 323 && tokenizer_byte_to_char(byte) == c ? byte : -1;
}

// Appends the bytes that a text stands for to t->bytes. False if the text is not made of such
// characters; then nothing was appended. There must be room for n bytes.
static inline bool tokenizer_append(Tokenizer *t, const char *text, size_t n) {
    size_t used = t->used;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t step = utf8_decode(text + i, n - i, &c);
        int byte = step == 0 ? -1 : tokenizer_char_to_byte(c);
        if (byte < 0) return false;
        t->bytes[used++] = (char)byte;
        i += step;
    }
    t->used = used;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Building a tokenizer

static inline void tokenizer_free(Tokenizer *t) {
    if (t == NULL) return;
    free(t->tokens);
    free(t->bytes);
    free(t->merges);
    free(t->table);
    free(t);
}

// Room for ids below `vocab`, `bytes` bytes of tokens and `merges` merges. NULL: out of memory.
static inline Tokenizer *tokenizer_new(size_t vocab, size_t bytes, size_t merges) {
    Tokenizer *t = (Tokenizer *)calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    size_t slots = 4;
    while (slots < 2 * merges + 2) slots *= 2;  // at most half full
    t->vocab = vocab;
    t->eot = -1;
    t->table_mask = slots - 1;
    t->tokens = (TokenText *)calloc(vocab, sizeof *t->tokens);
    t->bytes = (char *)malloc(bytes + 1);
    t->merges = (TokenMerge *)malloc((merges + 1) * sizeof *t->merges);
    t->table = (uint32_t *)calloc(slots, sizeof *t->table);
    if (t->tokens != NULL && t->bytes != NULL && t->merges != NULL && t->table != NULL) return t;
    tokenizer_free(t);
    return NULL;
}

static inline size_t tokenizer_slot(const Tokenizer *t, uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 29) & t->table_mask;
}

// The place of the merge of two tokens in the list, or TOKENIZER_NONE.
static inline uint32_t tokenizer_rank(const Tokenizer *t, uint32_t left, uint32_t right) {
    for (size_t slot = tokenizer_slot(t, left, right);; slot = (slot + 1) & t->table_mask) {
        uint32_t entry = t->table[slot];
        if (entry == 0) return TOKENIZER_NONE;
        if (t->merges[entry - 1].left == left && t->merges[entry - 1].right == right)
            return entry - 1;
    }
}

// Adds the next merge. Returns NULL, or what is wrong with it.
static inline const char *tokenizer_add_merge(Tokenizer *t, TokenMerge merge) {
    if (tokenizer_rank(t, merge.left, merge.right) != TOKENIZER_NONE) return "occurs twice";
    size_t slot = tokenizer_slot(t, merge.left, merge.right);
    int probes = 0;
    while (t->table[slot] != 0) {
        slot = (slot + 1) & t->table_mask;
        if (++probes > TOKENIZER_MAX_PROBES) return "collides with too many others";
    }
    t->merges[t->merge_count++] = merge;
    t->table[slot] = (uint32_t)t->merge_count;
    return NULL;
}

// Closes the token whose bytes were appended since `start`.
static inline void tokenizer_set(Tokenizer *t, size_t id, size_t start, bool raw) {
    t->tokens[id].start = (uint32_t)start;
    t->tokens[id].length = (uint32_t)(t->used - start);
    t->tokens[id].raw = raw;
}

// 256 tokens, no merges, id = value of the byte. Ends the program if there is no memory.
static inline Tokenizer *tokenizer_bytes(void) {
    Tokenizer *t = tokenizer_new(256, 256, 0);
    if (t == NULL) fail("out of memory: the byte tokenizer");
    for (size_t i = 0; i < 256; i++) {
        t->bytes[t->used++] = (char)i;
        tokenizer_set(t, i, i, false);
        t->byte_id[i] = (uint32_t)i;
    }
    return t;
}

// ---------------------------------------------------------------------------------------------
// Reading vocab.json and merges.txt

// One pass over merges.txt.
typedef struct {
    const char *at, *end;
    size_t line;
    const char *left, *right;              // of the current merge
    size_t left_length, right_length;
} MergeReader;

// Goes to the next merge. Returns 1, 0 at the end, or -1 with the reason in err.
static inline int merge_next(MergeReader *r, Error *err) {
    while (r->at < r->end) {
        const char *s = r->at;
        const char *newline = (const char *)memchr(s, '\n', (size_t)(r->end - s));
        size_t n = (size_t)((newline == NULL ? r->end : newline) - s);
        r->at = newline == NULL ? r->end : newline + 1;
        r->line++;
        if (n > 0 && s[n - 1] == '\r') n--;
        if (n == 0 || (r->line == 1 && n >= 8 && memcmp(s, "#version", 8) == 0)) continue;
        const char *space = (const char *)memchr(s, ' ', n);
        r->left = s;
        r->left_length = space == NULL ? 0 : (size_t)(space - s);
        r->right = s + r->left_length + 1;
        r->right_length = space == NULL ? 0 : n - r->left_length - 1;
        if (r->left_length > 0 && r->right_length > 0
            && memchr(r->right, ' ', r->right_length) == NULL) return 1;
        error_set(err, "merges.txt, line %zu: not two tokens with a space between", r->line);
        return -1;
    }
    return 0;
}

// All tokens from a parsed vocab.json; `bytes` and `merges` are the room to make.
static inline Tokenizer *tokenizer_from_vocab(const Json *json, size_t bytes, size_t merges,
                                              Error *err) {
    Tokenizer *t = NULL;
    size_t vocab = 0, id = 0;
    if (json->type != JSON_OBJECT) { error_set(err, "vocab.json: not an object"); return NULL; }
    for (const Json *token = json->child; token != NULL; token = token->next) {
        if (!json_size(token, &id) || id >= TOKENIZER_MAX_IDS) {
            error_set(err, "vocab.json: the id of \"%.100s\" is not a number below 2^24",
                      token->key);
            return NULL;
        }
        if (id >= vocab) vocab = id + 1;
    }
    t = tokenizer_new(vocab, bytes, merges);
    if (t == NULL) { error_set(err, "vocab.json: not enough memory"); return NULL; }
    for (const Json *token = json->child; token != NULL; token = token->next) {
        json_size(token, &id);
        const char *problem = token->key_length == 0 ? "is empty"
                            : t->tokens[id].length > 0 ? "has the id of another" : NULL;
        if (problem != NULL) {
            error_set(err, "vocab.json: token %zu, \"%.100s\", %s", id, token->key, problem);
            tokenizer_free(t);
            return NULL;
        }
        size_t start = t->used;
        bool raw = !tokenizer_append(t, token->key, token->key_length);
        if (raw) {
            memcpy(t->bytes + start, token->key, token->key_length);
            t->used += token->key_length;
        }
        tokenizer_set(t, id, start, raw);
    }
    return t;
}

// All tokens from merges.txt alone, by GPT-2's rule: the bytes in the order of their characters,
// the results of the merges in the order of the file, <|endoftext|>.
static inline Tokenizer *tokenizer_from_merges(MergeReader r, size_t bytes, size_t merges,
                                               Error *err) {
    if (256 + merges + 1 > TOKENIZER_MAX_IDS) {
        error_set(err, "merges.txt: more than 2^24 lines");
        return NULL;
    }
    Tokenizer *t = tokenizer_new(256 + merges + 1, bytes, merges);
    if (t == NULL) { error_set(err, "merges.txt: not enough memory"); return NULL; }
    size_t id = 0;
    for (uint32_t c = 0; c <= 323; c++) {
        int byte = tokenizer_char_to_byte(c);
        if (byte < 0) continue;
        t->bytes[t->used++] = (char)byte;
        tokenizer_set(t, id++, t->used - 1, false);
    }
    int more;
    while ((more = merge_next(&r, err)) > 0) {
        size_t start = t->used;
        if (!tokenizer_append(t, r.left, r.left_length)
            || !tokenizer_append(t, r.right, r.right_length)) {
            error_set(err, "merges.txt, line %zu: not in byte characters", r.line);
            more = -1;
            break;
        }
        tokenizer_set(t, id++, start, false);
    }
    if (more == 0 && id == 256) { error_set(err, "merges.txt: no merges"); more = -1; }
    if (more < 0) { tokenizer_free(t); return NULL; }
    memcpy(t->bytes + t->used, TOKENIZER_EOT, strlen(TOKENIZER_EOT));
    t->used += strlen(TOKENIZER_EOT);
    tokenizer_set(t, id, t->used - strlen(TOKENIZER_EOT), false);
    t->vocab = id + 1;
    return t;
}

// Token texts in order, to find an id while loading: unlike hashing, no file can make this slow.
typedef struct { const char *bytes; uint32_t length, id; } TokenEntry;

static inline int tokenizer_compare(const void *a, const void *b) {
    const TokenEntry *x = (const TokenEntry *)a, *y = (const TokenEntry *)b;
    int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
    return order != 0 ? order : (x->length > y->length) - (x->length < y->length);
}

static inline uint32_t tokenizer_find(const TokenEntry *sorted, size_t count, const char *bytes,
                                      size_t length) {
    TokenEntry key = {bytes, (uint32_t)length, 0};
    const TokenEntry *found = (const TokenEntry *)bsearch(&key, sorted, count, sizeof key,
                                                          tokenizer_compare);
    return found == NULL ? TOKENIZER_NONE : found->id;
}

// Finds the 256 bytes, the end of text, and the three tokens of every merge.
static inline bool tokenizer_connect(Tokenizer *t, TokenEntry *sorted, MergeReader r, Error *err) {
    size_t count = 0;
    for (size_t id = 0; id < t->vocab; id++) {
        TokenText text = t->tokens[id];
        if (text.length == 0 || text.raw) continue;
        TokenEntry entry = {t->bytes + text.start, text.length, (uint32_t)id};
        sorted[count++] = entry;
    }
    qsort(sorted, count, sizeof *sorted, tokenizer_compare);
    for (size_t i = 1; i < count; i++)  // cannot be in a vocab.json, whose keys differ
        if (tokenizer_compare(&sorted[i - 1], &sorted[i]) == 0)
            return error_set(err, "merges.txt: two merges give the same token, so vocab.json is "
                             "needed, too");
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        t->byte_id[i] = tokenizer_find(sorted, count, &byte, 1);
        if (t->byte_id[i] == TOKENIZER_NONE)
            return error_set(err, "vocab.json: no token for the byte 0x%02x", (unsigned)i);
    }
    // OPT's vocabulary has GPT-2's token as well, and never uses it.
    const bool opt = tokenizer_find(sorted, count, "<s>", 3) != TOKENIZER_NONE;
    const uint32_t eot = tokenizer_find(sorted, count, opt ? "</s>" : TOKENIZER_EOT,
                                        strlen(opt ? "</s>" : TOKENIZER_EOT));
    if (eot != TOKENIZER_NONE) t->eot = (int)eot;
    int more;
    while ((more = merge_next(&r, err)) > 0) {
        // the two texts, behind each other, after the last token; they are not kept
        size_t start = t->used;
        const char *problem = "is not in byte characters", *text = t->bytes + start;
        if (tokenizer_append(t, r.left, r.left_length)) {
            size_t middle = t->used;
            if (tokenizer_append(t, r.right, r.right_length)) {
                TokenMerge m = {tokenizer_find(sorted, count, text, middle - start),
                                tokenizer_find(sorted, count, t->bytes + middle, t->used - middle),
                                tokenizer_find(sorted, count, text, t->used - start)};
                problem = m.left == TOKENIZER_NONE || m.right == TOKENIZER_NONE
                        ? "merges a token that is not in the vocabulary"
                        : m.result == TOKENIZER_NONE ? "gives a token that is not in the vocabulary"
                        : tokenizer_add_merge(t, m);
            }
        }
        t->used = start;
        if (problem != NULL) return error_set(err, "merges.txt, line %zu: %s", r.line, problem);
    }
    return more == 0;
}

// A tokenizer from the text of merges.txt and of vocab.json (NULL: merges alone, see
// tokenizer_from_merges). NULL, and the reason in err, if anything in them is not as it should be.
static inline Tokenizer *tokenizer_parse(const char *vocab, size_t vocab_length, const char *merges,
                                         size_t merges_length, Error *err) {
    Tokenizer *t = NULL;
    if (merges_length == 0) { error_set(err, "merges.txt: empty"); return NULL; }
    if (vocab_length > TOKENIZER_MAX_FILE || merges_length > TOKENIZER_MAX_FILE) {
        error_set(err, "vocab.json or merges.txt: too large");
        return NULL;
    }
    MergeReader r = {merges, merges + merges_length, 0, NULL, NULL, 0, 0};
    size_t lines = 1;
    for (size_t i = 0; i < merges_length; i++) lines += merges[i] == '\n';
    if (vocab != NULL) {
        Error inner;
        Json *json = json_parse(vocab, vocab_length, &inner);
        if (json == NULL) { error_set(err, "vocab.json: %.400s", inner.text); return NULL; }
        t = tokenizer_from_vocab(json, vocab_length + merges_length, lines, err);
        json_free(json);
    } else {
        t = tokenizer_from_merges(r, 2 * merges_length + 512, lines, err);
    }
    if (t == NULL) return NULL;
    TokenEntry *sorted = (TokenEntry *)malloc((t->vocab + 1) * sizeof *sorted);
    bool ok = sorted != NULL ? tokenizer_connect(t, sorted, r, err)
                             : error_set(err, "not enough memory for a vocabulary");
    free(sorted);
    if (ok) return t;
    tokenizer_free(t);
    return NULL;
}

// Reads dir/vocab.json and dir/merges.txt, or merges.txt alone if there is no vocab.json.
static inline Tokenizer *tokenizer_load(const char *dir, Error *err) {
    static const char *const names[2] = {"vocab.json", "merges.txt"};
    char path[PATH_MAX], *text[2] = {NULL, NULL};
    size_t length[2] = {0, 0};
    bool ok = true;
    for (int i = 0; i < 2 && ok; i++) {
        struct stat s;
        path_join(path, dir, names[i]);
        bool there = stat(path, &s) == 0;
        if (i == 0 && !there) continue;
        if (there && (uint64_t)s.st_size > TOKENIZER_MAX_FILE)
            ok = error_set(err, "%s: too large for a vocabulary", path);
        else ok = (text[i] = file_read(path, &length[i], err)) != NULL;
    }
    Error inner;
    Tokenizer *t = NULL;
    if (ok) {
        t = tokenizer_parse(text[0], length[0], text[1], length[1], &inner);
        if (t == NULL) error_set(err, "%.200s: %.280s%s", dir, inner.text,
                                 text[0] == NULL ? "; there is no vocab.json" : "");
    }
    free(text[0]);
    free(text[1]);
    return t;
}

// ---------------------------------------------------------------------------------------------
// Text to tokens

// The class of the code point at s and its length; a byte that is not UTF-8 stands for itself.
static inline int tokenizer_class(const char *s, size_t n, size_t *length) {
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
static inline size_t tokenizer_word(const char *s, size_t n) {
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
static inline size_t tokenizer_merge_short(const Tokenizer *t, uint32_t *ids, size_t n) {
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

// A binary heap of pairs, smallest first: rank << 32 | position, so that equal ranks go leftmost
// first.
static inline void tokenizer_heap_push(uint64_t *heap, size_t *count, uint64_t item) {
    size_t i = (*count)++;
    for (; i > 0 && heap[(i - 1) / 2] > item; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = item;
}

static inline uint64_t tokenizer_heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0], item = heap[--*count];
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
// merge pops one and pushes at most two, so 2n places are enough. Returns false without memory.
static inline bool tokenizer_merge_long(const Tokenizer *t, uint32_t *ids, size_t *length) {
    size_t n = *length, count = 0;
    if (n >= UINT32_MAX) return false;
    uint64_t *heap = (uint64_t *)malloc(2 * n * sizeof *heap);
    uint32_t *next = (uint32_t *)malloc(2 * n * sizeof *next), *previous = next + n;
    if (heap == NULL || next == NULL) { free(heap); free(next); return false; }
    for (size_t i = 0; i < n; i++) {
        next[i] = (uint32_t)i + 1;
        previous[i] = (uint32_t)i - 1;
        uint32_t rank = i + 1 < n ? tokenizer_rank(t, ids[i], ids[i + 1]) : TOKENIZER_NONE;
        if (rank != TOKENIZER_NONE) tokenizer_heap_push(heap, &count, (uint64_t)rank << 32 | i);
    }
    while (count > 0) {
        uint64_t top = tokenizer_heap_pop(heap, &count);
        uint32_t rank = (uint32_t)(top >> 32), i = (uint32_t)top, j = next[i];
        if (ids[i] == TOKENIZER_NONE || j >= n || tokenizer_rank(t, ids[i], ids[j]) != rank)
            continue;
        ids[i] = t->merges[rank].result;
        ids[j] = TOKENIZER_NONE;
        next[i] = next[j];
        if (next[i] < n) {
            previous[next[i]] = i;
            rank = tokenizer_rank(t, ids[i], ids[next[i]]);
            if (rank != TOKENIZER_NONE)
                tokenizer_heap_push(heap, &count, (uint64_t)rank << 32 | i);
        }
        if (i > 0) {
            rank = tokenizer_rank(t, ids[previous[i]], ids[i]);
            if (rank != TOKENIZER_NONE)
                tokenizer_heap_push(heap, &count, (uint64_t)rank << 32 | previous[i]);
        }
    }
    *length = 0;
    for (size_t i = 0; i < n; i = next[i]) ids[(*length)++] = ids[i];
    free(heap);
    free(next);
    return true;
}

// Encodes n bytes. `out` has room for n ids; *count is how many were written. Memory beyond that is
// 24 bytes per byte of the longest word; false only if that is not there.
static inline bool tokenizer_encode(const Tokenizer *t, const char *text, size_t n, uint32_t *out,
                                    size_t *count, Error *err) {
    size_t used = 0, at = 0;
    TokenText none = {0, 0, false}, eot = t->eot >= 0 ? t->tokens[t->eot] : none;
    while (at < n) {
        const char *hit = NULL;
        if (eot.length > 0)
            hit = (const char *)memmem(text + at, n - at, t->bytes + eot.start, eot.length);
        size_t stop = hit == NULL ? n : (size_t)(hit - text);
        while (at < stop) {
            size_t length = tokenizer_word(text + at, stop - at), left = length;
            uint32_t *ids = out + used;  // used <= at, so the word fits
            for (size_t i = 0; i < length; i++) ids[i] = t->byte_id[(unsigned char)text[at + i]];
            if (length <= TOKENIZER_SHORT) left = tokenizer_merge_short(t, ids, length);
            else if (!tokenizer_merge_long(t, ids, &left))
                return error_set(err, "not enough memory to encode a word of %zu bytes", length);
            used += left;
            at += length;
        }
        if (hit != NULL) { out[used++] = (uint32_t)t->eot; at += eot.length; }
    }
    *count = used;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Tokens to text

// Largest id + 1.
static inline size_t tokenizer_vocab(const Tokenizer *t) { return t->vocab; }

// The id of <|endoftext|>, or, in a vocabulary with <s>, of </s>; else -1.
static inline int tokenizer_eot(const Tokenizer *t) { return t->eot; }

// The bytes of one token, not NUL-terminated; *length is 0 if there is no such id. The text of a
// sequence is the bytes of its tokens behind each other.
static inline const char *tokenizer_token(const Tokenizer *t, uint32_t id, size_t *length) {
    *length = id < t->vocab ? t->tokens[id].length : 0;
    return *length > 0 ? t->bytes + t->tokens[id].start : "";
}

// Writes the bytes of a token as characters.
static inline void tokenizer_write(const Tokenizer *t, uint32_t id, bool json, FILE *f) {
    char utf8[4];
    for (size_t i = 0; i < t->tokens[id].length; i++) {
        uint32_t c = tokenizer_byte_to_char((unsigned char)t->bytes[t->tokens[id].start + i]);
        if (json && (c == '"' || c == '\\')) fputc('\\', f);
        fwrite(utf8, 1, utf8_encode(c, utf8), f);
    }
}

// Writes vocab.json, merges.txt and tokenizer_config.json into an existing directory, as the
// transformers library's GPT2Tokenizer reads them; tokenizer_load() gives the same tokenizer again.
// Each file is replaced at once; merges.txt comes last, so that it never is without the others.
static inline bool tokenizer_save(const Tokenizer *t, const char *dir, Error *err) {
    char path[PATH_MAX];
    FILE *f;
    path_join(path, dir, "vocab.json");
    if ((f = replace_open(path, err)) == NULL) return false;
    const char *separator = "{";
    for (uint32_t id = 0; id < t->vocab; id++) {
        TokenText text = t->tokens[id];
        if (text.length == 0) continue;
        fprintf(f, "%s", separator);
        separator = ", ";
        if (text.raw) {
            json_write_string(f, t->bytes + text.start, text.length);
        } else {
            fputc('"', f);
            tokenizer_write(t, id, true, f);
            fputc('"', f);
        }
        fprintf(f, ": %u", (unsigned)id);
    }
    fprintf(f, "}\n");
    if (!replace_close(f, path, err)) return false;

    // null, not absent: without an entry transformers adds its own <|endoftext|> to the vocabulary
    static const char *const names[3] = {"bos_token", "eos_token", "unk_token"};
    path_join(path, dir, "tokenizer_config.json");
    if ((f = replace_open(path, err)) == NULL) return false;
    fprintf(f, "{\"tokenizer_class\": \"GPT2Tokenizer\", \"add_prefix_space\": false, "
            "\"clean_up_tokenization_spaces\": false");
    for (int i = 0; i < 3; i++) {
        size_t n = 0;
        const char *eot = t->eot < 0 ? NULL : tokenizer_token(t, (uint32_t)t->eot, &n);
        fprintf(f, ", \"%s\": ", names[i]);
        if (eot == NULL) fprintf(f, "null");
        else json_write_string(f, eot, n);
    }
    fprintf(f, "}\n");
    if (!replace_close(f, path, err)) return false;

    path_join(path, dir, "merges.txt");
    if ((f = replace_open(path, err)) == NULL) return false;
    fprintf(f, "#version: 0.2\n");
    for (size_t i = 0; i < t->merge_count; i++) {
        tokenizer_write(t, t->merges[i].left, false, f);
        fputc(' ', f);
        tokenizer_write(t, t->merges[i].right, false, f);
        fputc('\n', f);
    }
    return replace_close(f, path, err);
}

#endif
