// data.h: tokens in. A data set is a list of segments of uint16 or uint32 tokens: the shards of an
// llm.c token file, mapped into memory, or the tokens of text. A loader turns a position into a
// sequence, and keeps no state: the same position gives the same sequence after a restart, on
// another rank, and with any number of threads.
//
// Token files are those of llm.c (dev/data/data_common.py there): 256 int32, of which the first
// three are magic, version and number of tokens, then the tokens; all little-endian.
//   magic 20240520, version 1: uint16 tokens (GPT-2);  magic 20240801, version 7: uint32 tokens.
#ifndef TIDE_DATA_H
#define TIDE_DATA_H
#include "util.h"
#include "rng.h"
#include "tokenizer.h"
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>

enum { BIN_HEADER = 256 * 4, BIN_MAGIC_16 = 20240520, BIN_MAGIC_32 = 20240801 };

typedef struct {
    const char *name;      // the file, for messages
    const void *tokens;    // count tokens of `width` bytes
    size_t count;
    size_t first;          // index within the file of tokens[0], for messages
    int width;             // 2 or 4
    void *map;             // what munmap() or free() gets; NULL in a view
    size_t map_bytes;      // 0: map is from malloc()
} TokenSegment;

typedef struct {
    size_t count;
    TokenSegment *segments;  // sorted by name
    size_t tokens;           // in all segments
} TokenData;

static inline uint32_t segment_token(const TokenSegment *s, size_t i) {
    if (s->width == 2) return ((const uint16_t *)s->tokens)[i];
    return ((const uint32_t *)s->tokens)[i];
}

// ---------------------------------------------------------------------------------------------
// Token files

// Bytes per token if these n bytes begin like a token file, else 0.
static inline int bin_width(const void *bytes, size_t n) {
    int32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, bytes, sizeof magic);
    return magic == BIN_MAGIC_16 ? 2 : magic == BIN_MAGIC_32 ? 4 : 0;
}

// Checks a token file of n bytes in memory (4-byte aligned) and makes *s a view of its tokens.
// `name` is for messages and must outlive *s.
static inline bool segment_parse(TokenSegment *s, const char *name, const void *bytes, size_t n,
                                 Error *err) {
    int32_t header[3];
    memset(s, 0, sizeof *s);
    s->name = name;
    s->width = bin_width(bytes, n);
    if (s->width == 0)
        return error_set(err, "%s: not a token file (it must start with %d or %d)", name,
                         BIN_MAGIC_16, BIN_MAGIC_32);
    if (n < BIN_HEADER)
        return error_set(err, "%s: truncated: %zu bytes, the header alone has %d", name, n,
                         BIN_HEADER);
    memcpy(header, bytes, sizeof header);
    const int32_t version = s->width == 2 ? 1 : 7;
    if (header[1] != version)
        return error_set(err, "%s: token file of version %d, expected %d", name, header[1],
                         version);
    if (header[2] == 0) return error_set(err, "%s: the token file has no tokens", name);
    if (header[2] < 0)
        return error_set(err, "%s: damaged: it claims to have %d tokens", name, header[2]);
    s->count = (size_t)header[2];
    const size_t expected = BIN_HEADER + s->count * (size_t)s->width;
    if (n != expected)
        return error_set(err, "%s: %s: %zu bytes, but %zu tokens of %d bytes make %zu", name,
                         n < expected ? "truncated" : "trailing bytes", n, s->count, s->width,
                         expected);
    s->tokens = (const char *)bytes + BIN_HEADER;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Opening

// Maps a whole, non-empty, regular file read-only. munmap(result, *n) releases it.
static inline void *file_map(const char *path, size_t *n, Error *err) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait on a pipe
    if (fd < 0) { error_set(err, "cannot open %s: %s", path, strerror(errno)); return NULL; }
    void *map = NULL;
    if (fstat(fd, &st) != 0) error_set(err, "cannot read %s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        error_set(err, "%s is a directory; '%s/*' names the files in it", path, path);
    else if (!S_ISREG(st.st_mode)) error_set(err, "%s is not a regular file", path);
    else if (st.st_size == 0) error_set(err, "%s is empty", path);
    else {
        *n = (size_t)st.st_size;
        map = mmap(NULL, *n, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            error_set(err, "cannot map %s: %s", path, strerror(errno));
            map = NULL;
        }
    }
    close(fd);
    return map;
}

static inline void segment_close(TokenSegment *s) {
    if (s->map == NULL) return;  // a view owns nothing
    if (s->map_bytes > 0) munmap(s->map, s->map_bytes); else free(s->map);
    free((void *)s->name);
}

// Releases everything; safe on a zeroed struct and on views, which must not be used any more once
// the data set they look into is closed.
static inline void data_close(TokenData *d) {
    for (size_t i = 0; i < d->count; i++) segment_close(&d->segments[i]);
    free(d->segments);
    memset(d, 0, sizeof *d);
}

// How much of the text to encode at once: all if n <= limit, else at most `limit` bytes if they can
// be cut between a visible ASCII character and a space or newline. GPT-2's pattern never joins such
// a pair into one token, so the pieces give the tokens of the whole. Text without such a place is
// taken whole.
static inline size_t text_block(const char *text, size_t n, size_t limit) {
    if (n <= limit) return n;
    for (size_t i = limit; i > 0; i--)
        if ((text[i] == ' ' || text[i] == '\n') && text[i - 1] > 0x20 && text[i - 1] < 0x7f)
            return i;
    return n;
}

// Replaces mapped text files by one segment of their tokens, with an end-of-text token between two
// files if the tokenizer has one.
static inline bool data_encode(TokenData *d, const char *name, const Tokenizer *tok, Error *err) {
    const int eot = tokenizer_eot(tok);
    TokenSegment all;
    uint32_t *ids = NULL;
    size_t room = 0, most = 0, count = 0;
    bool ok = true;
    memset(&all, 0, sizeof all);
    all.width = tokenizer_vocab(tok) <= 65536 ? 2 : 4;
    for (size_t i = 0; i < d->count; i++) most += d->segments[i].map_bytes + 1;
    all.map = malloc(most * (size_t)all.width);  // a byte is at most one token
    all.name = strdup(name);
    if (all.map == NULL || all.name == NULL)
        ok = error_set(err, "%s: not enough memory for the tokens of %zu bytes", name, most);
    for (size_t i = 0; ok && i < d->count; i++) {
        const char *text = (const char *)d->segments[i].map;
        const size_t n = d->segments[i].map_bytes;
        for (size_t at = 0, m, k = 0; ok && at < n; at += m) {
            m = text_block(text + at, n - at, 1 << 20);
            if (room < m + 1) {
                free(ids);
                room = m + 1;  // one more for the end-of-text token
                ids = (uint32_t *)malloc(room * sizeof *ids);
            }
            if (ids == NULL) {
                ok = error_set(err, "%s: not enough memory to encode it", d->segments[i].name);
                break;
            }
            const size_t separator = at == 0 && i > 0 && eot >= 0;
            if (separator) ids[0] = (uint32_t)eot;
            ok = tokenizer_encode(tok, text + at, m, ids + separator, &k, err);
            if (!ok) break;
            for (size_t j = 0; j < separator + k; j++, count++) {
                if (all.width == 2) ((uint16_t *)all.map)[count] = (uint16_t)ids[j];
                else ((uint32_t *)all.map)[count] = ids[j];
            }
        }
    }
    free(ids);
    if (!ok || count == 0) {
        free(all.map);
        free((void *)all.name);
        return ok ? error_set(err, "%s: no tokens", name) : false;
    }
    void *smaller = realloc(all.map, count * (size_t)all.width);
    all.map = smaller != NULL ? smaller : all.map;
    all.tokens = all.map;
    all.count = count;
    for (size_t i = 0; i < d->count; i++) segment_close(&d->segments[i]);
    d->segments[0] = all;
    d->count = 1;
    return true;
}

// What is not text: how it begins (JSON also by its name; "": a NUL byte in the first MiB), and the
// remedy.
static const char *const not_text[][3] = {
    {"gzip", "\x1f\x8b", "gunzip it first"}, {"zstd", "\x28\xb5\x2f\xfd", "unzstd it first"},
    {"xz", "\xfd\x37zXZ", "unxz it first"}, {"bzip2", "BZh91AY&SY", "bunzip2 it first"},
    {"zip", "PK\3\4", "unzip it first"}, {"PDF", "%PDF-", "pdftotext makes text of it"},
    {"Parquet", "PAR1", "write its texts to a file first"},
    {"UTF-16", "\xff\xfe", "iconv -f UTF-16 -t UTF-8 makes text of it"},
    {"UTF-16", "\xfe\xff", "iconv -f UTF-16 -t UTF-8 makes text of it"},
    {"JSON", "{", "build/tokenize takes the texts out of .jsonl"},
    {"JSON", "[", "take its texts out first"},
    {"binary (it has NUL bytes)", "", "if there is text in it, take that out first"},
};
static bool data_is_quiet;  // of several ranks, the first one warns

static inline void data_warn(const char *name, const void *bytes, size_t n) {
    const char *dot = strrchr(name, '.');
    const bool json = dot != NULL && strncasecmp(dot, ".json", 5) == 0;
    for (size_t i = 0; !data_is_quiet && i < sizeof not_text / sizeof not_text[0]; i++) {
        const size_t m = strlen(not_text[i][1]);
        if (n < m || memcmp(bytes, not_text[i][1], m) != 0 || (m == 1 && !json)
            || (m == 0 && memchr(bytes, 0, n < 1 << 20 ? n : 1 << 20) == NULL)) continue;
        fprintf(stderr, "tide: warning: %s is %s, and its bytes are taken as text: %s\n", name,
                not_text[i][0], not_text[i][2]);
        return;
    }
}

// Opens a file, or every file that matches a glob pattern, in order of name: token files, told by
// their magic, or text, which is encoded with `tok` (NULL: text is an error). Close with
// data_close(). Mapped files must not be cut short while they are in use.
static inline bool data_open(TokenData *d, const char *pattern, const Tokenizer *tok, Error *err) {
    glob_t found;
    char *single = (char *)pattern, **paths = &single;
    size_t n = 1, binary = 0, bytes = 0;
    memset(d, 0, sizeof *d);
    memset(&found, 0, sizeof found);
    if (!path_exists(pattern)) {  // a file whose name has a '[' is found by that name first
        const int status = glob(pattern, 0, NULL, &found);  // sorts (bytewise in the C locale)
        paths = found.gl_pathv;
        n = found.gl_pathc;
        if (status != 0 || n == 0) {
            globfree(&found);
            return error_set(err, "no file matches %s", pattern);
        }
    }
    d->segments = (TokenSegment *)alloc_or_fail(n, sizeof(TokenSegment), "list of data files");
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        TokenSegment *s = &d->segments[i];
        s->map = file_map(paths[i], &s->map_bytes, err);
        ok = s->map != NULL;
        if (!ok) break;
        d->count++;
        s->name = strdup(paths[i]);
        if (s->name == NULL) ok = error_set(err, "not enough memory to open %s", pattern);
        bytes += s->map_bytes;
        binary += bin_width(s->map, s->map_bytes) > 0;
    }
    globfree(&found);
    for (size_t i = 0; ok && i < d->count; i++) {
        TokenSegment *s = &d->segments[i], file = *s;
        const size_t length = strlen(s->name);
        const bool is_binary = bin_width(s->map, s->map_bytes) > 0;
        const bool named_binary = length > 4 && strcmp(s->name + length - 4, ".bin") == 0;
        if (is_binary || named_binary) {
            ok = segment_parse(s, file.name, file.map, file.map_bytes, err);
            s->map = file.map;
            s->map_bytes = file.map_bytes;
        }
        if (ok && !is_binary && binary > 0)
            ok = error_set(err, "%s is text, but other files of %s hold tokens", s->name, pattern);
        if (ok && !is_binary && tok == NULL)
            ok = error_set(err, "%s is text, and there is no tokenizer to encode it", s->name);
        if (ok && !is_binary) data_warn(s->name, s->map, s->map_bytes);
    }
    if (ok && binary == 0) ok = data_encode(d, pattern, tok, err);
    if (!ok) { data_close(d); return false; }
    // Windows come in random order. What fits in memory is soon all there, so reading ahead helps;
    // of what does not fit, reading ahead would throw most away.
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    for (size_t i = 0; i < d->count; i++) {
        TokenSegment *s = &d->segments[i];
        d->tokens += s->count;
        if ((double)bytes > memory / 2 && s->map_bytes > 0)
            madvise(s->map, s->map_bytes, MADV_RANDOM);
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// Splitting

// Views of tokens from .. to-1, counted over all segments of `all`.
static inline TokenData data_view(const TokenData *all, size_t from, size_t to) {
    TokenData view;
    memset(&view, 0, sizeof view);
    view.segments = (TokenSegment *)alloc_or_fail(all->count, sizeof(TokenSegment), "data view");
    for (size_t i = 0, start = 0; i < all->count; start += all->segments[i++].count) {
        TokenSegment s = all->segments[i];
        const size_t a = from > start ? from - start : 0;
        const size_t b = to < start ? 0 : to - start < s.count ? to - start : s.count;
        if (a >= b) continue;
        s.tokens = (const char *)s.tokens + a * (size_t)s.width;
        s.first += a;
        s.count = b - a;
        s.map = NULL;
        s.map_bytes = 0;
        view.segments[view.count++] = s;
        view.tokens += s.count;
    }
    return view;
}

// The last `held_out` share (0 to 1, of the tokens of all files together) goes to val, what is
// before it to train. Nothing is copied: close both before `all`.
static inline void data_split(const TokenData *all, double held_out, TokenData *train,
                              TokenData *val) {
    const double share = held_out > 0 ? (held_out < 1 ? held_out : 1) : 0;
    const size_t held = (size_t)((double)all->tokens * share);
    *train = data_view(all, 0, all->tokens - held);
    *val = data_view(all, all->tokens - held, all->tokens);
}

// ---------------------------------------------------------------------------------------------
// Loading

typedef struct {
    const TokenData *data;
    size_t T;          // tokens per sequence
    uint64_t seed;
    bool shuffle;
    size_t sequences;  // per epoch
} Loader;

// True if windows of this segment move from epoch to epoch: for that a segment needs T - 1 tokens
// more than one window has.
static inline bool segment_has_phase(const Loader *l, const TokenSegment *s) {
    return l->shuffle && s->count / 2 >= l->T;
}

// Sequences per epoch in a segment, each T + 1 tokens of which the last is the next one's first.
// With a phase it is what remains at the largest phase, T - 1, so that every epoch has as many.
static inline size_t segment_sequences(const Loader *l, const TokenSegment *s) {
    if (s->count <= l->T) return 0;
    return (segment_has_phase(l, s) ? s->count - l->T : s->count - 1) / l->T;
}

// Prepares sequences of T tokens. With shuffle, the order and the phase of the windows depend on
// seed and epoch; without, they come in the order of the files. Fails if no file has T + 1 tokens.
static inline bool loader_init(Loader *l, const TokenData *data, size_t T, uint64_t seed,
                               bool shuffle, Error *err) {
    size_t longest = 0;
    l->data = data;
    l->T = T;
    l->seed = seed;
    l->shuffle = shuffle;
    l->sequences = 0;
    if (T == 0) return error_set(err, "--seq must be at least 1");
    for (size_t i = 0; i < data->count; i++) {
        const TokenSegment *s = &data->segments[i];
        l->sequences += segment_sequences(l, s);
        longest = s->count > longest ? s->count : longest;
    }
    if (l->sequences > 0) return true;
    if (longest < 2)
        return error_set(err, "%zu tokens are too few: a sequence and its target need at least 2",
                         data->tokens);
    return error_set(err, "%s: %zu tokens, at most %zu in one piece, are too few for --seq %zu; "
                     "--seq %zu or less works", data->segments[0].name, data->tokens, longest, T,
                     longest - 1);
}

// Where index i of 0 .. n-1 goes in the pseudorandom permutation that belongs to `key`. A Feistel
// network is a bijection whatever its round function is (Luby and Rackoff 1988); numbers outside
// 0 .. n-1 go around again until they are inside (cycle walking: Black and Rogaway 2002), fewer
// than 4 times on average. Eight rounds, because with halves of a few bits four are visibly biased.
static inline uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
    int half = 1;  // bits
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

// The sequence at `position`, counted from the start of training over all epochs and ranks: T
// inputs, and T targets that are the inputs one token later. Fails on a token >= vocab.
static inline bool loader_sequence(const Loader *l, uint64_t position, size_t vocab,
                                   int32_t *inputs, int32_t *targets, Error *err) {
    const uint64_t epoch = position / l->sequences;
    uint64_t index = position % l->sequences, phase = 0;
    if (l->shuffle) {
        const Philox4 k = philox4x32(l->seed, (uint32_t)epoch, (uint32_t)(epoch >> 32), 0,
                                     RNG_SHUFFLE);
        phase = ((uint64_t)k.x[2] << 32 | k.x[3]) % l->T;
        index = permute(index, l->sequences, (uint64_t)k.x[0] << 32 | k.x[1]);
    }
    const TokenSegment *s = l->data->segments;
    for (; index >= segment_sequences(l, s); s++) index -= segment_sequences(l, s);
    const size_t at = (size_t)index * l->T + (segment_has_phase(l, s) ? (size_t)phase : 0);
    for (size_t t = 0; t <= l->T; t++) {
        const uint32_t token = segment_token(s, at + t);
        if (token >= vocab || token > INT32_MAX)
            return error_set(err, "%s: token %zu is %u, but the model's vocabulary has %zu tokens",
                             s->name, s->first + at + t, token, vocab);
        if (t < l->T) inputs[t] = (int32_t)token;
        if (t > 0) targets[t - 1] = (int32_t)token;
    }
    return true;
}

#endif
