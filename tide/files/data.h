// data.h: reads tokens. A data set is a list of segments of uint16 or uint32 tokens. A segment is a
// token file in llm.c's format, mapped into memory, or the tokens of encoded text. A loader maps a
// position to a sequence. It has no state: a position has the same sequence after a restart, on
// another rank, and with any number of threads.
//
//     data_open()         opens the files that match a pattern: token files, or text to be encoded
//     data_check()        ends the program if a token of a text is outside the model's vocabulary
//     loader_make()       makes a loader of sequences of T tokens, of a part of a data set
//     loader_sequence()   reads the sequence at a position
//     segment_parse(), permute()   are also used by other files
//
// A fault in a file ends the program with one line. Files stay open: loaders point into them.
//
// Token files (dev/data/data_common.py of llm.c): a header of 256 int32 that begins with a magic
// number, a version and the number of tokens; then the tokens. All numbers are little-endian.
//   magic 20240520, version 1: uint16 tokens (GPT-2);  magic 20240801, version 7: uint32 tokens.
#ifndef TIDE_DATA_H
#define TIDE_DATA_H
#include "../base/ranks.h"
#include "../base/rng.h"
#include "tokenizer.h"

enum { BIN_HEADER = 256 * 4, BIN_MAGIC_16 = 20240520, BIN_MAGIC_32 = 20240801 };

typedef struct {
    const char *name;      // the file's name, for messages
    const void *tokens;    // count tokens of `width` bytes
    size_t count;
    size_t first;          // the place of tokens[0] in the file, for messages
    int width;             // 2 or 4
} TokenSegment;

typedef struct {
    size_t count;
    TokenSegment *segments;  // sorted by name
    size_t tokens;           // in all segments
    bool text;               // the tokens are of text that was encoded here: one segment
} TokenData;

static uint32_t segment_token(const TokenSegment *s, size_t i) {
    if (s->width == 2) return ((const uint16_t *)s->tokens)[i];
    return ((const uint32_t *)s->tokens)[i];
}

// ---------------------------------------------------------------------------------------------
// Token files

// Returns how many bytes a token has, 2 or 4, if these n bytes begin like a token file; else 0.
static int bin_width(const void *bytes, size_t n) {
    int32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, bytes, sizeof magic);
    return magic == BIN_MAGIC_16 ? 2 : magic == BIN_MAGIC_32 ? 4 : 0;
}

// Returns the tokens of a token file of n bytes in memory (4-byte aligned), without a copy.
static TokenSegment segment_parse(const char *name, const void *bytes, size_t n) {
    int32_t header[3] = {0, 0, 0};
    TokenSegment s = {name, (const char *)bytes + BIN_HEADER, 0, 0, bin_width(bytes, n)};
    const char *kind = file_kind(bytes, n);
    if (s.width == 0)
        die("%s: not a token file (it must start with %d or %d)%s%s", name, BIN_MAGIC_16,
            BIN_MAGIC_32, kind != NULL ? ", but " : "", kind != NULL ? kind : "");
    const int32_t version = s.width == 2 ? 1 : 7;
    memcpy(header, bytes, min_size(n, sizeof header));
    s.count = (size_t)header[2];
    if (header[1] != version || n < BIN_HEADER || header[2] < 0
        || n != BIN_HEADER + s.count * (size_t)s.width)
        die("%s: truncated, damaged or of another version than %d: %zu bytes, but a header of "
            "version %d and %d tokens of %d bytes", name, version, n, header[1], header[2],
            s.width);
    return s;
}

// ---------------------------------------------------------------------------------------------
// Opening

// The reason that there is no tokenizer, for the error that asks for one.
static Error tokenizer_why = {"the model came without one"};

// Encodes `texts` into one segment of tokens. Each segment of `texts` has the bytes of a file. The
// file becomes one document (document_front()), and is unmapped when it is encoded.
static TokenSegment data_encode(const TokenData *texts, const char *name, const Tokenizer *tok) {
    TokenSegment all = {name, NULL, 0, 0, tok->vocab <= 65536 ? 2 : 4};
    // A token takes 4 bytes here, and stands for about 4 bytes of text (1 in a vocabulary of
    // bytes). A normalised text is a copy, which NFC may make three times as long. Memory is
    // checked first, because malloc() does not fail if too little is free: Linux kills the process
    // later, when it writes to this memory.
    const int steps = tok->steps, spaces = STEP_PREPEND | STEP_METASPACE;
    const int copy = steps & STEP_NFC ? 3 : steps & spaces ? 1 : 0;
    const double peak = (double)texts->tokens * (tok->vocab == 256 ? 4 : 1 + copy);
    if (peak > (double)memory_available())
        die("encoding %s takes about %.0f MiB of memory, and %.0f MiB are available: make token "
            "files of it, part by part (dev/data/tokenize.c)", name, peak / (1 << 20),
            mib(memory_available()));
    Tokens list = {NULL, 0, 0};
    for (size_t i = 0; i < texts->count; i++) {
        const TokenSegment *text = &texts->segments[i];
        const size_t n = text->count;
        const bool first = list.count == 0 || (int)list.ids[list.count - 1] == tok->eot;
        tokenizer_text(tok, (const char *)text->tokens, n, 0, document_front(tok, first),
                       tok->behind, &list);
        munmap((void *)text->tokens, n);
    }
    all.count = list.count;
    for (size_t i = 0; i < all.count && all.width == 2; i++) {
        const uint16_t id = (uint16_t)list.ids[i];
        memcpy((char *)list.ids + 2 * i, &id, 2);
    }
    all.tokens = realloc(list.ids, all.count * (size_t)all.width);
    if (all.tokens == NULL) all.tokens = list.ids;
    return all;
}

// Checks a file that is taken as text. Refuses a binary file of a known kind. Warns of NUL bytes
// (UTF-16 has them), and of text in a known format.
static void data_warn(const char *name, const char *bytes, size_t n) {
    const char *kind = file_kind(bytes, n);
    uint32_t c = 9;
    for (size_t i = 0, length = 1; kind != NULL && i < min_size(n, 64); i += length) {
        length = utf8_decode(bytes + i, n - i, &c);
        if (length == 0 || c < 9) die("%s is %s", name, kind);
    }
    if (kind == NULL && memchr(bytes, 0, min_size(n, 1 << 20)) != NULL)
        kind = "binary (it has NUL bytes): unpack it, or write it as UTF-8 first";
    if (kind == NULL || ranks.rank > 0) return;
    fprintf(stderr, "tide: warning: %s is %s; its bytes are taken as text\n", name, kind);
}

// Opens a file, or each file that matches a glob pattern, in the order of their names. All must be
// token files, or all text, which `tok` encodes; with tok NULL, text is refused. Mapped files must
// not be cut short while they are used. The string `pattern` must stay.
static TokenData data_open(const char *pattern, const Tokenizer *tok) {
    glob_t found = {0};
    TokenData d = {1, NULL, 0, false};
    char *single = (char *)pattern, **paths = &single;
    if (!path_exists(pattern)) {  // the name of a file that exists is no pattern, even with a '['
        if (glob(pattern, 0, NULL, &found) != 0) die("%s: there is no such file", pattern);
        paths = found.gl_pathv;   // sorted by byte in the C locale; the names are never freed
        d.count = found.gl_pathc;
    }
    d.segments = ALLOC(TokenSegment, d.count, "list of data files");
    for (size_t i = 0; i < d.count; i++) {
        TokenSegment *s = &d.segments[i];
        s->name = paths[i];
        s->tokens = file_map(s->name, &s->count);  // s->count: bytes until the file is parsed
        const bool named_bin = fnmatch("?*.bin", s->name, 0) == 0;
        const bool text = !named_bin && bin_width(s->tokens, s->count) == 0;
        if (i > 0 && text != d.text) die("%s: some of these files are text, some tokens", pattern);
        if (text && tok == NULL)
            die("%s is text, and nobody said how to encode it: name it with --tokenizer DIR (%s)",
                s->name, tokenizer_why.text);
        if (text && json_begins((const char *)s->tokens, s->count))
            die("%s is JSON: name it alone, patterns work for text only; to be read as running "
                "text, it must be a token file (build/tokenize)", s->name);
        if (text) data_warn(s->name, (const char *)s->tokens, s->count);
        else *s = segment_parse(s->name, s->tokens, s->count);
        d.text = text;
        d.tokens += s->count;
    }
    if (!d.text) return d;
    d.segments[0] = data_encode(&d, pattern, tok);
    d.count = 1;
    d.tokens = d.segments[0].count;
    return d;
}

// Ends the program if an encoded text has a token outside the model's vocabulary.
static void data_check(const TokenData *d, size_t vocab) {
    for (size_t i = 0; d->text && i < d->tokens; i++)
        if (segment_token(d->segments, i) >= vocab)
            die("%s: token %zu is %u, but the model's vocabulary has %zu tokens",
                d->segments->name, i, segment_token(d->segments, i), vocab);
}

// ---------------------------------------------------------------------------------------------
// Loading

typedef struct {
    TokenData data;    // a part of a data set
    size_t T;          // tokens per sequence
    uint64_t seed;
    bool shuffle;
    size_t sequences;  // in an epoch
} Loader;

// Do the sequences of a segment begin at other tokens in each epoch? The segment needs 2 T tokens.
static bool segment_has_phase(const Loader *l, const TokenSegment *s) {
    return l->shuffle && s->count / 2 >= l->T;
}

// Returns how many sequences of T + 1 tokens a segment has in an epoch. A sequence's last token is
// the next one's first. A phase skips up to T - 1 tokens first: the number is that for T - 1.
static size_t segment_sequences(const Loader *l, const TokenSegment *s) {
    if (s->count <= l->T) return 0;
    return (segment_has_phase(l, s) ? s->count - l->T : s->count - 1) / l->T;
}

// Makes a loader of sequences of T > 0 tokens, of the tokens `from` to `to` - 1 of a data set,
// numbered over all segments. With shuffle, the order and the phase of sequences depend on the seed
// and the epoch; without, sequences are in the order of the files. name: that of the data; the
// program ends if there is no sequence. NULL: there may be none.
static Loader loader_make(const TokenData *all, size_t from, size_t to, size_t T, uint64_t seed,
                          bool shuffle, const char *name) {
    Loader l = {{0, ALLOC(TokenSegment, all->count, "data"), 0, false}, T, seed, shuffle, 0};
    size_t longest = 0;
    for (size_t i = 0, start = 0; i < all->count; start += all->segments[i++].count) {
        TokenSegment s = all->segments[i];
        const size_t a = from > start ? from - start : 0;
        const size_t b = to < start ? 0 : to - start < s.count ? to - start : s.count;
        if (a >= b) continue;
        s.tokens = (const char *)s.tokens + a * (size_t)s.width;
        s.first += a;
        s.count = b - a;
        l.data.segments[l.data.count++] = s;
        l.data.tokens += s.count;
        l.sequences += segment_sequences(&l, &s);
        longest = max_size(longest, s.count);
    }
    if (l.sequences > 0 || name == NULL) return l;
    if (longest < 2) die("%s: nothing to train on or to evaluate: %zu tokens", name, l.data.tokens);
    die("%s: %zu tokens, at most %zu in one piece, are too few for --seq %zu; --seq %zu or less "
        "works", name, l.data.tokens, longest, T, longest - 1);
}

// Maps index i of 0 .. n-1 to its place in the pseudorandom permutation of `key`. A Feistel network
// is a bijection for any round function (Luby and Rackoff 1988). A result outside 0 .. n-1 is
// mapped again until one is inside (cycle walking: Black and Rogaway 2002), fewer than 4 times on
// average. There are eight rounds: four are visibly biased when a half has only a few bits.
static uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
    int half = 1;  // how many bits left has, and right
    while (half < 32 && (n - 1) >> (2 * half) != 0) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint32_t round = 0; round < 8; round++) {
            const Philox4 f = philox4x32(key, (uint32_t)right, round, 1, RNG_SHUFFLE);
            const uint64_t mixed = left ^ (f.x[0] & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

// Returns which of n sequences or rows stands at `position` in the shuffled order of its epoch.
// Positions count over all epochs. *phase becomes a random number of the epoch.
static uint64_t epoch_index(uint64_t seed, uint64_t position, uint64_t n, uint64_t *phase) {
    const uint64_t epoch = position / n;
    const Philox4 k = philox4x32(seed, (uint32_t)epoch, (uint32_t)(epoch >> 32), 0, RNG_SHUFFLE);
    *phase = (uint64_t)k.x[2] << 32 | k.x[3];
    return permute(position % n, n, (uint64_t)k.x[0] << 32 | k.x[1]);
}

// Reads the sequence at `position`, which counts from the start of training over all epochs and
// ranks. Stores T inputs, and as T targets the token after each. Fails if a token is >= vocab.
static bool loader_sequence(const Loader *l, uint64_t position, size_t vocab, int32_t *inputs,
                            int32_t *targets, Error *err) {
    uint64_t index = position % l->sequences, phase = 0;
    if (l->shuffle) index = epoch_index(l->seed, position, l->sequences, &phase);
    const TokenSegment *s = l->data.segments;
    for (; index >= segment_sequences(l, s); s++) index -= segment_sequences(l, s);
    const size_t at = (size_t)index * l->T + (segment_has_phase(l, s) ? phase % l->T : 0);
    for (size_t t = 0; t <= l->T; t++) {
        const uint32_t token = segment_token(s, at + t);
        if (token >= vocab)
            return error_set(err, "%s: token %zu is %u, but the model's vocabulary has %zu tokens",
                             s->name, s->first + at + t, token, vocab);
        if (t < l->T) inputs[t] = (int32_t)token;
        if (t > 0) targets[t - 1] = (int32_t)token;
    }
    return true;
}

// Returns a hash by which a resumed run recognises its data. If a file has more than 2^30 bytes,
// only about 1,024 blocks, spread over the file, and its end are hashed.
static uint64_t data_hash(const TokenData *d) {
    const size_t BLOCK = 1 << 16;
    uint64_t hash = 0;
    for (size_t i = 0; i < d->count; i++) {
        const TokenSegment *s = &d->segments[i];
        const size_t n = s->count * (size_t)s->width;
        const size_t stride = n >> 30 == 0 ? BLOCK : round_up(n / 1024, BLOCK);
        const unsigned char *bytes = (const unsigned char *)s->tokens;
        uint64_t sum = n > BLOCK ? hash_words(n, bytes + n - BLOCK, BLOCK) : 0;
        #pragma omp parallel for reduction(+ : sum) if (n > 1 << 20)
        for (size_t at = 0; at < n; at += stride)
            sum += hash_words(at, bytes + at, min_size(BLOCK, n - at));
        const uint64_t parts[] = {hash, n, sum};
        hash = hash_bytes(parts, sizeof parts);
    }
    return hash;
}

#endif
