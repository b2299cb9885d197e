// vocabulary.h: the tokens and merges of a tokenizer in memory, and the merging of a word.
//
//     tokenizer_read_tokens()   reads a vocabulary; tokenizer_read_bytes(): finds the bytes' tokens
//     tokenizer_read_merges()   reads a list of merges
//     tokenizer_find()          finds the token with a text
//     tokenizer_word()          encodes a word, and adds its tokens to a list (Tokens)
//
// A word begins as a token for each of its symbols. Then pairs of neighbours are merged into one
// token, as long as the list of merges has a pair: the pair that stands first in the list, and of
// equal pairs the leftmost one. There are two kinds of vocabularies:
//   - byte-level (GPT-2, Llama-3, Qwen): a symbol is a byte. Files write it as one printable code
//     point: itself if it is printable Latin-1, else the next unused one from U+0100 on. A space is
//     written as U+0120.
//   - in the style of SentencePiece (Llama-2, Mistral): a symbol is a code point that has a token.
//     Others are split into bytes, whose tokens files write as <0x00> .. <0xFF>. A space is U+2581.
// In memory the text of a token is its plain bytes, with a space as a space. Most words are tokens,
// which a hash table finds without merging.
// Source: Sennrich et al. 2016 (byte-pair encoding).
#ifndef TIDE_VOCABULARY_H
#define TIDE_VOCABULARY_H
#include "json.h"
#include "words.h"

#define TOKENIZER_NONE UINT32_MAX          // there is no such token or merge
#define TOKENIZER_SPACE "\xe2\x96\x81"     // U+2581
enum {
    TOKENIZER_MAX_IDS = 1 << 24,
    TOKENIZER_SHORT = 64  // bytes of the longest word that is merged without malloc()
};

typedef struct {
    size_t start;                          // in Tokenizer.bytes
    uint32_t length;                       // 0: there is no token with this id
    bool whole;                            // a word with this text has been merged to this token
    bool front;                            // a space is stored before `start`, and is output, too
} TokenText;
typedef struct { uint32_t hash, place; } TokenPlace;  // place: 1 + an id; 0: unused
typedef struct { uint32_t left, right, result, place; } TokenMerge;  // place: its number in the
                                           // list, from 1 on; 0: unused

// An added token. It is found in a text before the text is cut into words.
typedef struct {
    char *content, *name;                  // content: the text to search for, maybe normalised.
                                           // name: the token's text in the file (same malloc())
    size_t length;
    uint32_t id;
    bool special, normalized, lstrip, rstrip;
} AddedToken;
typedef struct {
    AddedToken *tokens;                    // [count], in the order of added_compare()
    size_t count;
    bool first[256];                       // is there a content that begins with this byte?
} AddedTokens;

// The steps of encoding; from STEP_UNBYTES on, the steps of decoding.
enum {
    STEP_NFC = 1, STEP_PREPEND = 2,         // composes a piece; puts a space in front of it
    STEP_REPLACE = 4,                       // replaces spaces by U+2581
    STEP_METASPACE = 8,                     // replaces spaces; puts one in front of the first piece
    STEP_DIGITS = 16, STEP_SPLIT = 32,      // makes numbers pieces; cuts words by an expression
    STEP_BYTES = 64, STEP_WORDS = 128,      // is byte-level; cuts words by GPT-2's expression
    STEP_UNBYTES = 256,                     // decodes a byte-level text
    STEP_SPACES = 512, STEP_FALLBACK = 1024, STEP_FUSE = 2048,  // decoding: U+2581, <0x00> .., join
    STEP_STRIP = 4096                       // decoding removes the first space
};

// A list of tokens that grows. Zero it first; free(ids) at the end.
typedef struct {
    uint32_t *ids;                         // [count]
    size_t count, room;
} Tokens;

typedef struct { char *text; size_t length; } TokenizerFile;
enum { TOKENIZER_FILES = 9 };

typedef struct Tokenizer {
    int steps;
    bool byte_level;                       // else the style of SentencePiece
    const WordRule *rule;                  // cuts a byte-level piece into words
    AddedTokens added[2];                  // [0]: found before a piece is normalised; [1]: after
    size_t vocab, base;                    // vocab: largest id + 1; base: without added tokens
    uint32_t byte_id[256];                 // the token of a byte as a symbol; TOKENIZER_NONE: none
    TokenText *tokens;                     // [vocab]
    char *bytes;                           // the texts of all tokens
    size_t used;                           // bytes of these texts
    TokenPlace *places;                    // a hash table: text -> id
    size_t place_mask;
    TokenMerge *merges;                    // a hash table: (left, right) -> merge
    size_t merge_mask;
    bool ignore_merges;                    // a word that is a token is never merged
    bool *joins;                           // [256 * 256]: does any token have these two bytes side
                                           // by side? NULL if byte-level
    int bos, eot;                          // the tokens that begin and end a text; -1: none
    int named_bos;                         // bos_token, also if it begins no text; -1: none
    int behind;                            // the token after a document; -1: none
    Tokens stops;                          // tokens that end the model's answer, besides eot
    bool generation_stops;                 // stops are from generation_config.json, not config.json
    TokenizerFile files[TOKENIZER_FILES];  // as they were read, in the order of tokenizer_files
} Tokenizer;

// Makes room for n more tokens in a list. Returns the address of the first of them.
static uint32_t *tokens_room(Tokens *out, size_t n) {
    if (out->count + n > out->room) {
        out->room = 2 * (out->count + n);
        out->ids = (uint32_t *)realloc(out->ids, out->room * sizeof *out->ids);
        if (out->ids == NULL) fail("out of memory: %zu tokens", out->room);
    }
    return out->ids + out->count;
}

static void tokens_add(Tokens *out, uint32_t id) {
    *tokens_room(out, 1) = id;
    out->count++;
}

// ---------------------------------------------------------------------------------------------
// Bytes as printable characters

static uint32_t tokenizer_byte_to_char(int byte) {
    if (byte <= 32) return 256 + (uint32_t)byte;
    if (byte >= 127 && byte <= 160) return 289 + (uint32_t)(byte - 127);
    return byte == 173 ? 323 : (uint32_t)byte;
}

// Decodes a byte-level text of n bytes. Returns the number of bytes, or 0 if one of the characters
// stands for no byte.
static size_t tokenizer_decode(const char *text, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0, step; i < n; i += step) {
        uint32_t c = 0;
        step = utf8_decode(text + i, n - i, &c);
        const int byte = c < 256 ? (int)c : c < 289 ? (int)c - 256 : c < 323 ? (int)c - 162 : 173;
        if (step == 0 || tokenizer_byte_to_char(byte) != c) return 0;
        out[used++] = (char)byte;
    }
    return used;
}

// Copies a text of n bytes with a space for each U+2581. Returns its length.
static size_t tokenizer_spaces(const char *text, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n; used++) {
        const bool space = n - i >= 3 && memcmp(text + i, TOKENIZER_SPACE, 3) == 0;
        out[used] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    return used;
}

// Returns the byte for which a text <0x00> .. <0xFF> stands, or -1 for another text.
static int tokenizer_hex(const char *text, size_t n) {
    char digits[3] = "";
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    memcpy(digits, text + 3, 2);
    return strspn(digits, "0123456789abcdefABCDEF") == 2 ? (int)strtol(digits, NULL, 16) : -1;
}

// ---------------------------------------------------------------------------------------------
// Tokens

// Returns a hash of a text. Reads eight bytes at a time.
static uint32_t tokenizer_hash(const char *text, size_t n) {
    uint64_t h = n, word;
    for (; n >= 8; text += 8, n -= 8) {
        memcpy(&word, text, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    word = 0;
    for (size_t i = 0; i < n; i++) word = word << 8 | (unsigned char)text[i];
    return (uint32_t)(((h ^ word) * 0x9e3779b97f4a7c15u) >> 32);
}

// Returns the place in the hash table of the token with this text, or an unused place.
static TokenPlace *tokenizer_place(const Tokenizer *t, const char *text, size_t n, uint32_t hash) {
    for (size_t slot = hash;; slot++) {
        TokenPlace *p = &t->places[slot & t->place_mask];
        if (p->place == 0) return p;
        const TokenText *token = &t->tokens[p->place - 1];
        if (p->hash == hash && token->length == n
            && memcmp(t->bytes + token->start, text, n) == 0) return p;
    }
}

// Returns the token of the vocabulary with this text, or TOKENIZER_NONE.
static uint32_t tokenizer_find(const Tokenizer *t, const char *text, size_t n) {
    return tokenizer_place(t, text, n, tokenizer_hash(text, n))->place - 1;
}

// Returns the id of the token that files write as `key`, or TOKENIZER_NONE.
static uint32_t vocabulary_find(const Json *vocabulary, const char *key, size_t length) {
    size_t id = TOKENIZER_NONE;
    json_size(*json_place(vocabulary, key, length), &id);
    return (uint32_t)id;
}

// Stores the text of token `id`, which the file writes as `key`, in n bytes. Returns true if the
// text consists of symbols, so that merges can make the token.
static bool tokenizer_store(Tokenizer *t, size_t id, const char *key, size_t n) {
    char *text = t->bytes + t->used;
    const int byte = t->byte_level ? -1 : tokenizer_hex(key, n);
    size_t length = t->byte_level ? tokenizer_decode(key, n, text) : 0;
    const bool symbols = t->byte_level ? length > 0 : byte < 0 && memchr(key, ' ', n) == NULL;
    if (byte >= 0) text[length++] = (char)byte;
    else if (!t->byte_level) length = tokenizer_spaces(key, n, text);
    else if (!symbols) memcpy(text, key, length = n);  // the key is the text itself
    t->tokens[id] = (TokenText){t->used, (uint32_t)length, false, false};
    t->used += length;
    return symbols;
}

// Returns the size of a hash table for `count` entries, which is at most half full.
static size_t places_for(size_t count) {
    size_t places = 4;
    while (places < 2 * count + 2) places *= 2;
    return places;
}

// Reads a vocabulary {"text": id, ..}. Leaves room for added tokens (`more`: bytes of their JSON).
static bool tokenizer_read_tokens(Tokenizer *t, const char *file, const Json *vocabulary,
                                  size_t more, Error *err) {
    size_t id = 0;
    for (const Json *token = vocabulary->child; token != NULL; token = token->next) {
        if (!json_size(token, &id) || id >= TOKENIZER_MAX_IDS)
            return error_set(err, "%.200s: the id of \"%.100s\" is not a number below 2^24", file,
                             token->key);
        if (id >= t->vocab) t->vocab = id + 1;
    }
    t->place_mask = places_for(vocabulary->count) - 1;
    t->places = ALLOC(TokenPlace, t->place_mask + 1, "vocabulary");
    t->tokens = ALLOC(TokenText, t->vocab + more / 4 + 1, "vocabulary");
    t->bytes = ALLOC(char, vocabulary->length + 4 * more + 64, "vocabulary");
    if (!t->byte_level) t->joins = ALLOC(bool, 1 << 16, "vocabulary");
    for (const Json *token = vocabulary->child; token != NULL; token = token->next) {
        json_size(token, &id);
        if (token->key_length == 0 || t->tokens[id].length > 0)
            return error_set(err, "%.200s: token %zu, \"%.100s\", %s", file, id, token->key,
                             token->key_length == 0 ? "is empty" : "has the id of another");
        if (!tokenizer_store(t, id, token->key, token->key_length)) continue;
        const TokenText *s = &t->tokens[id];
        const TokenPlace place = {tokenizer_hash(t->bytes + s->start, s->length), (uint32_t)id + 1};
        *tokenizer_place(t, t->bytes + s->start, s->length, place.hash) = place;
        const unsigned char *text = (const unsigned char *)t->bytes + s->start;
        for (size_t i = 1; i < s->length && !t->byte_level; i++)
            t->joins[text[i - 1] << 8 | text[i]] = true;
    }
    return true;
}

// Finds the tokens of the 256 bytes. Returns how many bytes have none.
static int tokenizer_read_bytes(Tokenizer *t, const Json *vocabulary) {
    char key[8];
    int missing = 0;
    for (int i = 0; i < 256; i++) {
        const char text = (char)i;
        const bool symbol = t->byte_level || i < 128;
        const uint32_t own = symbol ? tokenizer_find(t, &text, 1) : TOKENIZER_NONE;
        const int n = snprintf(key, sizeof key, "<0x%02X>", (unsigned)i);
        const uint32_t byte = t->byte_level ? own : vocabulary_find(vocabulary, key, (size_t)n);
        missing += byte == TOKENIZER_NONE;
        t->byte_id[i] = own != TOKENIZER_NONE ? own : byte;
    }
    return missing;
}

// ---------------------------------------------------------------------------------------------
// Lists of merges

// Returns the place of a merge in the hash table, or an unused place.
static TokenMerge *merge_place(const Tokenizer *t, uint32_t left, uint32_t right) {
    const uint64_t hash = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    for (size_t slot = hash >> 32;; slot++) {
        TokenMerge *m = &t->merges[slot & t->merge_mask];
        if (m->place == 0 || (m->left == left && m->right == right)) return m;
    }
}

// Reads a list of merges, each "left right" or ["left", "right"]. All tokens must be in the
// vocabulary. file: the name, for messages.
static bool tokenizer_read_merges(Tokenizer *t, const char *file, const Json *vocabulary,
                                  const Json *list, Error *err) {
    const char *what = NULL;
    char *both = ALLOC(char, list->length, "merges");
    size_t number = 0;
    t->merge_mask = places_for(list->count) - 1;
    t->merges = ALLOC(TokenMerge, t->merge_mask + 1, "merges");
    for (const Json *m = list->child; m != NULL && what == NULL; m = m->next) {
        const Json *left = m->child, *right = left != NULL ? left->next : NULL;
        const bool text = m->type == JSON_STRING;
        const bool pair = m->type == JSON_ARRAY && m->count == 2 && left->type == JSON_STRING
                       && right->type == JSON_STRING;
        const size_t a = pair ? left->length : text ? strcspn(m->string, " ") : 0;
        const size_t b = pair ? right->length : text && a < m->length ? m->length - a - 1 : 0;
        number++;
        // Hugging Face skips a line with #version at any place of the list.
        if (text && strncmp(m->string, "#version", 8) == 0) continue;
        memcpy(both, pair ? left->string : m->string, a);
        memcpy(both + a, pair ? right->string : m->string + m->length - b, b);
        const TokenMerge merge = {vocabulary_find(vocabulary, both, a),
                                  vocabulary_find(vocabulary, both + a, b),
                                  vocabulary_find(vocabulary, both, a + b), (uint32_t)number};
        TokenMerge *found = merge_place(t, merge.left, merge.right);
        if (a == 0 || b == 0 || (text && memchr(both + a, ' ', b) != NULL))
            what = "not two tokens with a space between";
        else if (merge.left == TOKENIZER_NONE || merge.right == TOKENIZER_NONE)
            what = "merges a token that is not in the vocabulary";
        else if (merge.result == TOKENIZER_NONE)
            what = "gives a token that is not in the vocabulary";
        else if (found->place > 0) what = "occurs twice";
        if (!t->byte_level && (tokenizer_hex(both, a) >= 0 || tokenizer_hex(both + a, b) >= 0))
            memset(t->joins, true, 1 << 16);  // a byte's token may merge with any other
        *found = merge;
    }
    free(both);
    return what == NULL || error_set(err, "%.300s, merge %zu: %s", file, number, what);
}

// ---------------------------------------------------------------------------------------------
// Merging

// Adds the pair of the tokens at `left` and `right` to a binary heap, if the list has a merge for
// it. An item is rank << 32 | left; the rank is the merge's number in the list. The smallest item
// is at the top: of equal pairs, the leftmost.
static void tokenizer_heap_push(const Tokenizer *t, const TokenMerge **pair, uint64_t *heap,
                                size_t *count, const uint32_t *ids, size_t left, size_t right) {
    const TokenMerge *merge = pair[left] = merge_place(t, ids[left], ids[right]);
    const uint64_t item = (uint64_t)merge->place << 32 | left;
    if (merge->place == 0) return;
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

// Merges the n tokens of a word in place, and returns how many are left. The tokens are a linked
// list. Their pairs are in a heap, with 2n places: each merge takes one pair out of the heap and
// adds at most two. A pair is dropped if its tokens have changed when it is taken out. pair[i]: the
// merge of the tokens at i and next[i].
static size_t tokenizer_merge(const Tokenizer *t, uint32_t *ids, size_t n) {
    uint64_t few[4 * TOKENIZER_SHORT], *room = few;
    if (n > TOKENIZER_SHORT) room = ALLOC(uint64_t, 4 * n, "a long word");
    uint64_t *heap = room + n;
    const TokenMerge **pair = (const TokenMerge **)(heap + 2 * n);
    uint32_t *next = (uint32_t *)room, *previous = next + n;
    size_t count = 0, left = 0;
    if (n >= UINT32_MAX) die("a word of %zu bytes is too long", n);
    for (size_t i = 0; i < n; i++) {
        next[i] = (uint32_t)i + 1;
        previous[i] = (uint32_t)i - 1;
        if (i + 1 < n) tokenizer_heap_push(t, pair, heap, &count, ids, i, i + 1);
    }
    while (count > 0) {
        const uint64_t top = tokenizer_heap_pop(heap, &count);
        const uint32_t i = (uint32_t)top, j = next[i];
        if (pair[i] == NULL || pair[i]->place != top >> 32) continue;  // token i or j has changed
        ids[i] = pair[i]->result;
        pair[i] = pair[j] = NULL;
        next[i] = next[j];
        if (next[i] < n) previous[next[i]] = i;
        if (next[i] < n) tokenizer_heap_push(t, pair, heap, &count, ids, i, next[i]);
        if (i > 0) tokenizer_heap_push(t, pair, heap, &count, ids, previous[i], i);
    }
    for (size_t i = 0; i < n; i = next[i]) ids[left++] = ids[i];
    if (room != few) free(room);
    return left;
}

// Writes the symbols of a word of n bytes as tokens, and returns their number, at most n.
static size_t tokenizer_symbols(const Tokenizer *t, const char *s, size_t n, uint32_t *ids) {
    size_t count = 0, step;
    for (size_t i = 0; i < n; i += step) {
        uint32_t c;
        const bool wide = !t->byte_level && (s[i] & 0x80) != 0;
        step = wide ? utf8_decode(s + i, n - i, &c) : 0;
        ids[count] = step > 0 ? tokenizer_find(t, s + i, step) : TOKENIZER_NONE;
        if (ids[count] == TOKENIZER_NONE) {  // this code point is split into bytes
            step = 1;
            ids[count] = t->byte_id[(unsigned char)s[i]];
        }
        count += ids[count] != TOKENIZER_NONE;
    }
    return count;
}

// Encodes a word of n bytes. A long one takes 32 bytes of memory for each byte. A word that became
// one token is marked, and is not merged the next time.
static void tokenizer_word(const Tokenizer *t, const char *s, size_t n, Tokens *out) {
    const uint32_t id = tokenizer_find(t, s, n);
    TokenText *token = id != TOKENIZER_NONE ? &t->tokens[id] : NULL;
    uint32_t *ids = tokens_room(out, n);
    size_t count = 1;
    if (token != NULL && (token->whole || t->ignore_merges)) {
        *ids = id;
    } else {
        count = tokenizer_symbols(t, s, n, ids);
        count = tokenizer_merge(t, ids, count);
        if (token != NULL && count == 1 && *ids == id) token->whole = true;
    }
    out->count += count;
}

#endif
