// test_data.c: data.h. Token files and what can be wrong with them, text, splitting, and the order
// in which the loader hands out sequences.
#include "../../data/blocks.h"
#include "../../data/tokens.h"
#include "../dies.h"
#include "../merges.h"
#include "../test.h"
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static char dir[PATH_MAX];  // temporary, removed at the end
static Error err;

static const char *path_of(const char *name) {
    static char paths[8][PATH_MAX];
    static int next;
    char *p = paths[next++ % 8];
    path_join(p, dir, name);
    return p;
}

static void write_bytes(const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(path_of(name), "wb");
    CHECK(f != NULL, "%s", name);
    if (f == NULL) return;
    CHECK(fwrite(bytes, 1, n, f) == n, "%s", name);
    CHECK(fclose(f) == 0, "%s", name);
}

static void write_text(const char *name, const char *text) {
    write_bytes(name, text, strlen(text));
}

// Removes the files of the last test.
static void clean(void) {
    glob_t found;
    if (glob(path_of("*"), 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            if (unlink(found.gl_pathv[i]) != 0) rmdir(found.gl_pathv[i]);
    globfree(&found);
}

static bool refused(const char *pattern, const Tokenizer *tok, const char *words) {
    return DIES_WITH(words, data_open(pattern, tok));
}

// A data set in memory, without files: `count` segments, whose token i has the value
// 1000 * segment + i + 1, so that a token tells where it comes from.
static TokenData numbered(const size_t *counts, size_t count) {
    TokenData d;
    memset(&d, 0, sizeof d);
    d.segments = (TokenSegment *)calloc(count, sizeof(TokenSegment));
    for (size_t s = 0; s < count; s++) {
        uint32_t *tokens = (uint32_t *)malloc((counts[s] + 1) * sizeof *tokens);
        for (size_t i = 0; i < counts[s]; i++) tokens[i] = (uint32_t)(1000 * s + i + 1);
        d.segments[s].name = strdup("numbered");
        d.segments[s].tokens = tokens;
        d.segments[s].count = counts[s];
        d.segments[s].width = 4;
        d.tokens += counts[s];
        d.count++;
    }
    return d;
}

static void write_tokens(const char *name, const uint32_t *tokens, size_t n, int width) {
    CHECK(tokens_write(path_of(name), tokens, n, width, &err), "%s", err.text);
}

static void test_round_trip(void) {
    enum { N = 9001 };  // more than two chunks of the writer, and not a multiple of one
    static uint32_t tokens[N];
    for (int width = 2; width <= 4; width += 2) {
        for (size_t i = 0; i < N; i++)
            tokens[i] = (uint32_t)(i * 2654435761u) >> (width == 2 ? 16 : 8);
        tokens[7] = width == 2 ? 0xffff : 0xffffffff;
        write_tokens("a.bin", tokens, N, width);
        CHECK(!path_exists(path_of("a.bin.tmp")), "temporary file left");
        const TokenData d = data_open(path_of("a.bin"), NULL);
        CHECK(d.count == 1 && d.tokens == N && d.segments[0].width == width && !d.text, "shape");
        size_t wrong = 0;
        for (size_t i = 0; i < N; i++) wrong += segment_token(&d.segments[0], i) != tokens[i];
        CHECK(wrong == 0, "%zu tokens changed, width %d", wrong, width);
    }
    // the header, byte by byte, as llm.c writes it
    const uint32_t three[3] = {1, 2, 50256};
    unsigned char expected[1024 + 6] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3};
    expected[1024] = 1;
    expected[1026] = 2;
    expected[1028] = 0x50;
    expected[1029] = 0xc4;
    write_tokens("b.bin", three, 3, 2);
    size_t n;
    const void *bytes = file_map(path_of("b.bin"), &n);
    CHECK(n == sizeof expected && memcmp(bytes, expected, n) == 0, "not llm.c's bytes");
    clean();
}

static void test_write_errors(void) {
    static uint32_t tokens[100000];
    CHECK(!tokens_write(path_of("a.bin"), tokens, 0, 2, &err), "no tokens");
    CHECK(!tokens_write(path_of("a.bin"), tokens, (size_t)1 << 31, 2, &err), "too many tokens");
    tokens[5] = 65536;
    CHECK(!tokens_write(path_of("a.bin"), tokens, 6, 2, &err) && strstr(err.text, "65536"),
          "%s", err.text);
    CHECK(!tokens_write(path_of("none/a.bin"), tokens, 6, 4, &err) && strstr(err.text, "none"),
          "%s", err.text);
    CHECK(mkdir(path_of("taken.bin"), 0777) == 0, "mkdir");
    CHECK(!tokens_write(path_of("taken.bin"), tokens, 6, 4, &err), "renamed over a directory");
    CHECK(!path_exists(path_of("taken.bin.tmp")), "temporary file left");
    // a full disk: a limit on the size of files makes the same calls fail
    const uint32_t old = 42;
    write_tokens("full.bin", &old, 1, 4);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    tokens[5] = 5;
    for (int width = 2; width <= 4; width += 2)
        for (size_t n = 10; n <= 100000; n *= 100) {  // 10: fails only when the buffer is flushed
            bool written = tokens_write(path_of("full.bin"), tokens, n, width, &err);
            CHECK(!written && strstr(err.text, strerror(EFBIG)) && strstr(err.text, "full.bin"),
                  "%s", err.text);
        }
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    CHECK(!path_exists(path_of("full.bin.tmp")), "temporary file left");
    CHECK(segment_token(data_open(path_of("full.bin"), NULL).segments, 0) == 42,
          "the file that was there before is gone");
    clean();
}

// A token file of n bytes in all, with this header.
static void write_bin(const char *name, int32_t magic, int32_t version, int32_t count, size_t n) {
    static int32_t bytes[1024];
    memset(bytes, 0, sizeof bytes);
    bytes[0] = magic;
    bytes[1] = version;
    bytes[2] = count;
    write_bytes(name, bytes, n);
}

static void test_bad_files(void) {
    Tokenizer *tok = tokenizer_bytes();
    const size_t good = 1024 + 2 * 10;
    write_bin("good.bin", BIN_MAGIC_16, 1, 10, good);
    CHECK(data_open(path_of("good.bin"), NULL).tokens == 10, "a good one");
    // one bad shard among good ones, in every place
    for (int wrong = 0; wrong < 3; wrong++) {
        char name[64];
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "shard_%d.bin", i);
            unlink(path_of(name));
            write_bin(name, BIN_MAGIC_16, 1, i == wrong ? 11 : 10, good);
        }
        snprintf(name, sizeof name, "shard_%d.bin: truncated", wrong);
        CHECK(refused(path_of("shard_*.bin"), tok, name), "shard %d", wrong);
    }
    CHECK(refused(path_of("none.bin"), tok, "no such file"), "a missing file");
    CHECK(refused(path_of("*.none"), tok, "*.none"), "a pattern without a match");
    CHECK(refused("", tok, "no such file"), "an empty name");
    CHECK(refused(dir, tok, "is a directory"), "a directory");
    CHECK(mkdir(path_of("d.bin"), 0777) == 0, "mkdir");
    CHECK(refused(path_of("?.bin"), tok, "d.bin is a directory"), "a directory in a pattern");
    CHECK(symlink("l.bin", path_of("l.bin")) == 0, "symlink");
    CHECK(refused(path_of("l*.bin"), tok, "Too many levels"), "a link to itself");
    CHECK(mkfifo(path_of("pipe"), 0666) == 0, "mkfifo");
    CHECK(refused(path_of("pipe"), tok, "regular"), "a pipe");
    if (geteuid() != 0) {  // root may read anything
        CHECK(chmod(path_of("good.bin"), 0) == 0, "chmod");
        CHECK(refused(path_of("good.bin"), tok, "Permission denied"), "an unreadable file");
    }
    clean();
}

// Of a text whose tokens no machine holds, nothing is read but its first bytes.
static void test_too_much_text(void) {
    Tokenizer *tok = tokenizer_bytes();
    write_text("huge.txt", "text");
    ranks.rank = 1;
    if (truncate(path_of("huge.txt"), (off_t)1 << 43) == 0 || errno != EFBIG)
        CHECK(refused(path_of("huge.txt"), tok, "MiB are available"), "8 TiB of text");
    ranks.rank = 0;
    clean();
}

static void test_shards(void) {
    const char *const names[4] = {"s_000002.bin", "s_000000.bin", "s_000010.bin", "s_000001.bin"};
    const uint32_t values[4] = {3, 1, 4, 2};
    for (int i = 0; i < 4; i++) {
        uint32_t tokens[5];
        for (int j = 0; j < 5; j++) tokens[j] = values[i] * 10 + (uint32_t)j;
        write_tokens(names[i], tokens, 5, i == 3 ? 4 : 2);
    }
    const TokenData d = data_open(path_of("s_*.bin"), NULL);
    CHECK(d.count == 4 && d.tokens == 20, "%zu files, %zu tokens", d.count, d.tokens);
    for (size_t s = 0; s < d.count; s++)
        for (size_t i = 0; i < d.segments[s].count; i++)
            CHECK(segment_token(&d.segments[s], i) == (s + 1) * 10 + i, "file %zu", s);
    const uint32_t one = 7;
    write_tokens("s[0].bin", &one, 1, 2);  // a file whose name looks like a pattern
    CHECK(data_open(path_of("s[0].bin"), NULL).tokens == 1, "s[0]");
    clean();
}

// What is said of a file that is taken as text.
static const char *warned(const char *name, const void *bytes, size_t n, const Tokenizer *tok) {
    write_bytes(name, bytes, n);
    const char *said = SAYS(data_open(path_of(name), tok));
    clean();
    return said;
}

static void test_what_is_not_text(void) {
    static const struct { const char *name, *bytes; size_t n; const char *words; } files[] = {
        {"a", "some text\0", 10, "a is binary (it has NUL bytes)"},
        {"a", "version https://git-lfs.github.com/spec/v1\n", 43, "git lfs pull"},
        {"a", "PAR1 and ARROW1 are marks", 25, "a is a table (NumPy, Parquet"}};
    Tokenizer *tok = tokenizer_bytes();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *said = warned(files[i].name, files[i].bytes, files[i].n, tok);
        const char *end = strchr(said, '\n');
        CHECK(strncmp(said, "tide: warning: ", 15) == 0 && strstr(said, files[i].words)
              && end != NULL && end[1] == '\0', "%zu: %s", i, said);
    }
    static char tar[512];
    memcpy(tar + 257, "ustar", 5);
    write_bytes("a", tar, sizeof tar);
    CHECK(refused(path_of("a"), tok, "a is an archive (tar)"), "tar");
    clean();
    static const char *const texts[] = {"some text", "a, b\nc, d\ne, f\n", "a,b\nc,d\ne,f\ng\n",
        "a\nb\nc\nd\ne\n", "He said, \"no.\"\nShe, too.\nYes, he, and\nyes,\n", "a;b\nc;d\ne;f\ng;h\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        CHECK(*warned("a", texts[i], strlen(texts[i]), tok) == '\0', "text: %s", texts[i]);
    ranks.rank = 1;
    CHECK(*warned("a", "\0", 1, tok) == '\0', "said by another rank, too");
    ranks.rank = 0;
    static const int32_t tokens[256 + 1] = {BIN_MAGIC_16, 1, 2};
    CHECK(*warned("u.bin", tokens, sizeof tokens, tok) == '\0', "a token file");
}

static void test_text(void) {
    Tokenizer *tok = tokenizer_bytes();
    write_text("b.txt", "two\xff");
    write_text("a.txt", "one ");
    write_text("c.txt", "3");
    TokenData d = data_open(path_of("?.txt"), tok);
    const char *const joined = "one two\xff" "3";
    CHECK(d.count == 1 && d.tokens == 9 && d.segments[0].width == 2 && d.text,
          "%zu tokens in %zu segments", d.tokens, d.count);
    for (size_t i = 0; i < 9 && i < d.tokens; i++)
        CHECK(segment_token(d.segments, i) == (unsigned char)joined[i], "byte %zu", i);
    CHECK(refused(path_of("a.txt"), NULL, "name it with --tokenizer DIR"), "no tokenizer");
    write_text("d.txt", "");
    CHECK(refused(path_of("?.txt"), tok, "d.txt is empty"), "empty text");
    const uint32_t one = 7;
    write_tokens("e.txt", &one, 1, 2);
    CHECK(data_open(path_of("e.txt"), NULL).tokens == 1, "magic, not name");
    CHECK(refused(path_of("[ae].txt"), tok, "some of these files are text"), "text and tokens");
    write_text("b.json", "\xef\xbb\xbf [ {\"text\": \"a\"} ]");
    CHECK(refused(path_of("*.json"), tok, "b.json is JSON: name it alone, patterns work for text"),
          "JSON by a pattern");
    CHECK(refused(path_of("b.*"), tok, "b.json is JSON"), "JSON and text");

    // long text is encoded in blocks; nothing is lost where they meet
    enum { LONG = (5 << 20) / 2 };
    char *text = (char *)malloc(LONG);
    for (size_t i = 0; i < LONG; i++) text[i] = (char)("etaoin\nshr "[i * i % 11] ^ (i % 7 == 0));
    write_bytes("long.txt", text, LONG);
    d = data_open(path_of("long.txt"), tok);
    size_t wrong = d.tokens != LONG;
    for (size_t i = 0; i < LONG && wrong == 0; i++)
        wrong = segment_token(d.segments, i) != (unsigned char)text[i];
    CHECK(wrong == 0, "%zu tokens, or other ones", d.tokens);
    clean();
}

// Three merges, so that words and white space form tokens, and an end-of-text token (id 259).
static Tokenizer *small_tokenizer(void) {
    return tokenizer_of_merges("#version: 0.2\nh e\n\xc4\xa0 t\n\xc4\x8a \xc4\x8a\n");
}

static void test_documents(void) {
    Tokenizer *tok = small_tokenizer();
    const uint32_t eot = (uint32_t)tok->eot, expected[5] = {256, eot, 257, eot, 256};
    CHECK(eot == 259, "%u", eot);
    for (int wide = 0; wide < 2; wide++) {
        write_text("1.txt", "he");
        write_text("2.txt", " t");
        write_text("3.txt", "he");
        if (wide) tok->vocab = 65537;  // as if there were more ids than 16 bits can hold
        const TokenData d = data_open(path_of("*.txt"), tok);
        CHECK(d.count == 1 && d.tokens == 5 && d.segments[0].width == 2 + 2 * wide,
              "%zu tokens of %d bytes", d.tokens, d.segments[0].width);
        for (size_t i = 0; i < d.tokens && i < 5; i++)
            CHECK(segment_token(d.segments, i) == expected[i], "token %zu", i);
        CHECK(data_open(path_of("1.txt"), tok).tokens == 1, "one file, no end");
    }
    write_text("1.txt", "he<|endoftext|>");  // a document with an end of its own gets no second one
    tok->vocab = 260;
    CHECK(data_open(path_of("*.txt"), tok).tokens == 5, "an end of its own");
    data_check(&(TokenData){0}, 1);
    const TokenData known = data_open(path_of("*.txt"), tok);
    data_check(&known, 260);
    CHECK(DIES_WITH("token 1 is 259, but the model's vocabulary has 259", data_check(&known, 259)),
          "unknown");
    write_text("1.txt", "bhe<|endoftext|>");
    // a token that begins every text: in front of each document, and the end behind it
    tok->bos = 65;
    tok->behind = tok->eot;
    const TokenData between = data_open(path_of("*.txt"), tok);
    static const uint32_t both[9] = {65, 256, 259, 65, 257, 259, 65, 256, 259};
    CHECK(between.tokens == 9, "%zu tokens", between.tokens);
    for (size_t i = 0; i < between.tokens && i < 9; i++)
        CHECK(segment_token(between.segments, i) == both[i], "token %zu with both", i);
    tok->bos = -1;  // a template may have an end alone
    CHECK(data_open(path_of("1.txt"), tok).tokens == 3, "an end alone");
    tok->behind = -1;
    clean();
    tok->vocab = 260;
    write_text("1.txt", "ab");  // no merges: as many tokens as bytes, and the separator
    write_text("2.txt", "xyz");
    CHECK(data_open(path_of("*.txt"), tok).tokens == 6, "full");
    enum { LONG = 5 << 19 };  // several blocks, one document
    char *text = (char *)malloc(LONG);
    for (size_t i = 0; i < LONG; i++) text[i] = i % 6 == 5 ? ' ' : 'x';
    write_bytes("3.txt", text, LONG);
    TokenData d = data_open(path_of("*.txt"), tok);
    size_t separators = 0;
    for (size_t i = 0; i < d.tokens; i++) separators += segment_token(d.segments, i) == eot;
    CHECK(d.tokens == 7 + LONG && separators == 2, "%zu separators between three", separators);
    tok = tokenizer_bytes();
    tok->vocab = 70001;
    tok->byte_id['x'] = 70000;
    write_text("x.txt", "wxyz");
    d = data_open(path_of("x.txt"), tok);
    CHECK(d.tokens == 4 && segment_token(d.segments, 1) == 70000, "%zu", d.tokens);
    tok->vocab = 65536;
    CHECK(data_open(path_of("x.txt"), tok).segments[0].width == 2, "fits exactly");
    clean();
}

// Text in blocks of any size has the tokens of the whole.
static void test_blocks_keep_tokens(void) {
    static const char *const pieces[12] = {"he", "t", " ", "\n", "\n\n", " t", "  ", "\xc2\xa0",
                                           "\xe3\x80\x80", "he's", "\xff", "\t"};
    Tokenizer *tok = small_tokenizer();
    char text[2000];
    Tokens whole = {NULL, 0, 0}, blocks = whole;
    size_t n = 0, cuts = 0;
    for (uint32_t i = 0; n + 8 < sizeof text; i++) {
        const char *piece = pieces[philox4x32(1, i, 0, 0, 0).x[0] % 12];
        memcpy(text + n, piece, strlen(piece));
        n += strlen(piece);
    }
    tokenizer_encode(tok, text, n, 0, &whole);
    for (size_t limit = 1; limit < 200; limit++) {
        blocks.count = 0;
        for (size_t at = 0, m; at < n; at += m, cuts++) {
            m = tokenizer_block(tok, text + at, n - at, limit);
            tokenizer_encode(tok, text + at, m, 0, &blocks);
        }
        CHECK(blocks.count == whole.count && memcmp(whole.ids, blocks.ids, 4 * whole.count) == 0,
              "limit %zu", limit);
    }
    free(whole.ids);
    free(blocks.ids);
    CHECK(cuts > 2000, "only %zu blocks", cuts);
}

static void test_text_blocks(void) {
    Tokenizer *t = small_tokenizer();
    CHECK(tokenizer_block(t, "ab cd ef", 8, 8) == 8, "all fits");
    CHECK(tokenizer_block(t, "ab cd ef", 8, 7) == 5, "before the last space within the limit");
    CHECK(tokenizer_block(t, "ab cd ef", 8, 5) == 5, "a space right at the limit");
    CHECK(tokenizer_block(t, "ab cd ef", 8, 4) == 2, "the one before");
    CHECK(tokenizer_block(t, "ab\ncd ef", 8, 4) == 2, "a newline");
    CHECK(tokenizer_block(t, "a1\tcd ef", 8, 4) == 2, "a tab behind a number");
    CHECK(tokenizer_block(t, "ab  cd", 6, 4) == 2, "never between two spaces");
    CHECK(tokenizer_block(t, "ab\n\ncd", 6, 4) == 2, "nor two newlines");
    CHECK(tokenizer_block(t, "a\xc2\xa0 cd", 6, 4) == 6, "nor after a space that is not ASCII");
    CHECK(tokenizer_block(t, "ab! cd", 6, 4) == 6, "nor after others, which may take a newline");
    CHECK(tokenizer_block(t, " abcdef", 7, 3) == 7, "not in front of everything");
    CHECK(tokenizer_block(t, "abcdefgh", 8, 3) == 8, "no place to cut");
    t->added[0].tokens[0].rstrip = true;
    CHECK(tokenizer_block(t, "ab cd ef", 8, 7) == 8, "a token may take the space");
    t->added[0].tokens[0].rstrip = false;
    t->added[0].tokens[0].content[3] = ' ';
    CHECK(tokenizer_block(t, "ab cd ef", 8, 7) == 8, "a token may reach over it");
}

static void test_split(void) {
    const size_t counts[4] = {10, 1, 7, 2};
    TokenData all = numbered(counts, 4), train, val;
    for (int percent = 0; percent <= 100; percent++) {
        const size_t cut = 20 - (size_t)(20 * (percent / 100.0));
        train = data_view(&all, 0, cut);
        val = data_view(&all, cut, 20);
        CHECK(val.tokens == (size_t)(20 * (percent / 100.0)), "%d%%: %zu", percent, val.tokens);
        CHECK(train.tokens + val.tokens == 20, "%d%%", percent);
        // train, then val: every token once, in order, with its place in the file
        size_t seg = 0, i = 0;
        for (int half = 0; half < 2; half++) {
            const TokenData *d = half == 0 ? &train : &val;
            size_t tokens = 0;
            for (size_t s = 0; s < d->count; s++) {
                const TokenSegment *t = &d->segments[s];
                CHECK(t->count > 0, "an empty view");
                tokens += t->count;
                for (size_t j = 0; j < t->count; j++) {
                    CHECK(segment_token(t, j) == 1000 * seg + i + 1, "%d%%", percent);
                    CHECK(t->first + j == i, "%d%%: place in the file", percent);
                    if (++i == counts[seg]) { i = 0; seg++; }
                }
            }
            CHECK(tokens == d->tokens, "%d%%", percent);
        }
        CHECK(seg == 4, "%d%%: %zu", percent, seg);
    }
}

// Where a sequence of `numbered` data comes from: *segment and *at. Checks all of it.
static void where(const Loader *l, uint64_t position, size_t *segment, size_t *at) {
    int32_t inputs[64], targets[64];
    const size_t T = l->T;
    memset(inputs, 0xff, sizeof inputs);
    memset(targets, 0xff, sizeof targets);
    bool ok = loader_sequence(l, position, 1 << 20, inputs, targets, &err);
    CHECK(ok, "%s", err.text);
    *segment = *at = 0;
    if (!ok) return;
    *segment = (size_t)(inputs[0] - 1) / 1000;
    *at = (size_t)(inputs[0] - 1) % 1000;
    CHECK(*at + T < l->data->segments[*segment].count, "runs over the end");
    for (size_t t = 0; t < T; t++) {
        CHECK(inputs[t] == (int32_t)(1000 * *segment + *at + t + 1), "input %zu", t);
        CHECK(targets[t] == (int32_t)(1000 * *segment + *at + t + 2), "target %zu", t);
    }
    CHECK(inputs[T] == -1 && targets[T] == -1, "written beyond the end");
}

// Every window of an epoch exactly once: all at multiples of T after one phase.
static void test_coverage(void) {
    const size_t shapes[6][4] = {
        {9, 0, 0, 0}, {64, 0, 0, 0}, {101, 3, 57, 1}, {2, 2, 2, 2}, {33, 34, 35, 36},
        {5, 900, 16, 17}};
    const size_t Ts[6] = {1, 2, 3, 8, 16, 31};
    for (int shape = 0; shape < 6; shape++) {
        TokenData d = numbered(shapes[shape], 4);
        for (int k = 0; k < 6; k++) for (int shuffle = 0; shuffle < 2; shuffle++) {
            const size_t T = Ts[k];
            size_t expected = 0;
            for (size_t s = 0; s < 4; s++) {
                const size_t n = shapes[shape][s];
                if (n > T) expected += shuffle && n >= 2 * T ? (n - T) / T : (n - 1) / T;
            }
            const Loader l = loader_make(&d, T, 5, shuffle);
            CHECK(l.sequences == expected, "T %zu: %zu, not %zu", T, l.sequences, expected);
            for (uint64_t epoch = 0; epoch < 5; epoch++) {
                static int seen[4][1000];
                memset(seen, 0, sizeof seen);
                long phase = -1;
                for (uint64_t i = 0; i < l.sequences; i++) {
                    size_t s, at;
                    where(&l, epoch * l.sequences + i, &s, &at);
                    CHECK(seen[s][at]++ == 0, "T %zu epoch %d: twice", T, (int)epoch);
                    if (!shuffle || d.segments[s].count < 2 * T) {
                        CHECK(at % T == 0, "T %zu: a phase of %zu", T, at % T);
                    } else {
                        CHECK(phase < 0 || (size_t)phase == at % T, "T %zu: two phases", T);
                        phase = (long)(at % T);
                    }
                    if (!shuffle)
                        CHECK(i == 0 || at == 0 || seen[s][at - T] == 1, "not in order");
                }
                // no window but the last one or two may be missing: none in front of any other
                for (size_t s = 0; s < 4; s++)
                    for (size_t at = T; at < 1000; at++)
                        CHECK(!seen[s][at] || seen[s][at - T] || at < T + (size_t)(phase + 1),
                              "T %zu: a hole before %zu", T, at);
            }
        }
    }
}

static void test_phase(void) {
    const size_t one = 997;
    const size_t T = 16;
    TokenData d = numbered(&one, 1);
    const Loader l = loader_make(&d, T, 11, true);
    size_t count[16] = {0};
    for (uint64_t epoch = 0; epoch < 1600; epoch++) {
        size_t s, at;
        where(&l, epoch * l.sequences, &s, &at);
        count[at % T]++;
    }
    double chi2 = 0;
    for (size_t i = 0; i < T; i++) chi2 += (count[i] - 100.0) * (count[i] - 100.0) / 100.0;
    CHECK(chi2 < 40, "phases are not uniform: %f (15 degrees of freedom)", chi2);
}

static void test_stateless(void) {
    const size_t counts[2] = {800, 555};
    TokenData d = numbered(counts, 2);
    const Loader a = loader_make(&d, 8, 1, true), b = loader_make(&d, 8, 1, true);
    const Loader c = loader_make(&d, 8, 2, true);
    size_t seg[600], at[600], s, x, same_seed = 0, same_epoch = 0;
    for (uint64_t p = 0; p < 600; p++) where(&a, p, &seg[p], &at[p]);
    for (uint64_t p = 600; p-- > 0;) {  // backwards, with another loader: nothing is remembered
        where(&b, p, &s, &x);
        CHECK(s == seg[p] && x == at[p], "position %d", (int)p);
        where(&c, p, &s, &x);
        same_seed += s == seg[p] && x == at[p];
    }
    const size_t n = a.sequences;
    for (size_t p = 0; p < n; p++)
        same_epoch += seg[p] == seg[p + n] && at[p] / 8 == at[p + n] / 8;
    CHECK(same_seed < 20, "%zu of 600 equal with another seed", same_seed);
    CHECK(same_epoch < 12, "%zu of %zu equal in the next epoch", same_epoch, n);
    // very late positions, and epochs that differ only beyond 32 bits
    const uint64_t late[4] = {UINT64_MAX, (uint64_t)1 << 63, ((uint64_t)1 << 63) - 1, 1ull << 40};
    for (int i = 0; i < 4; i++) where(&a, late[i], &s, &x);
    size_t equal = 0;
    for (uint64_t p = 0; p < n; p++) {
        where(&a, ((uint64_t)1 << 32) * n + p, &s, &x);
        equal += s == seg[p] && x == at[p];
    }
    CHECK(equal < 12, "epoch 2^32 repeats epoch 0: %zu", equal);
}

static void test_permutation_is_bijection(void) {
    static unsigned char seen[70000];
    const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4096,
                              4097, 65536, 65537};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        const uint64_t n = sizes[k];
        memset(seen, 0, sizeof seen);
        size_t bad = 0;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t j = permute(i, n, 77 + k);
            bad += j >= n || seen[j]++ != 0;
        }
        CHECK(bad == 0, "n = %d: %zu hit twice or outside", (int)n, bad);
    }
    for (int bits = 33; bits <= 64; bits++)  // too many to visit: in range, and distinct
        for (int minus = 0; minus < 2; minus++) {
            const uint64_t n = bits < 64 ? ((uint64_t)1 << bits) - (uint64_t)minus : UINT64_MAX;
            uint64_t x[3] = {permute(0, n, 1), permute(1, n, 1), permute(n - 1, n, 1)};
            CHECK(x[0] < n && x[1] < n && x[2] < n, "%d bits: outside", bits);
            CHECK(x[0] != x[1] && x[1] != x[2] && x[0] != x[2], "%d bits: equal", bits);
        }
}

// Over many keys: where each index lands, and where the pair (0, 1) lands. The bound of each chi2
// is its expectation k plus 5 standard deviations sqrt(2 k), with something for small k.
static void test_permutation_is_random(void) {
    const uint64_t sizes[] = {2, 3, 4, 5, 8, 16, 17, 33};
    enum { KEYS = 4000 };
    for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
        const uint64_t n = sizes[z];
        static double place[33][33], pair[33][33];
        memset(place, 0, sizeof place);
        memset(pair, 0, sizeof pair);
        for (uint64_t key = 0; key < KEYS; key++) {
            const uint64_t zero = permute(0, n, key), one = permute(1, n, key);
            pair[zero][one]++;
            for (uint64_t i = 0; i < n; i += n - 1) place[i][permute(i, n, key)]++;
        }
        for (uint64_t i = 0; i < n; i += n - 1) {
            const double e = (double)KEYS / (double)n, k = (double)n - 1;
            double chi2 = 0;
            for (uint64_t j = 0; j < n; j++) chi2 += (place[i][j] - e) * (place[i][j] - e) / e;
            CHECK(chi2 < k + 5 * sqrt(2 * k) + 8, "n %d, index %d: %f", (int)n, (int)i, chi2);
        }
        const double e = (double)KEYS / (double)(n * (n - 1)), k = (double)(n * (n - 1)) - 1;
        double chi2 = 0;
        for (uint64_t i = 0; i < n; i++) for (uint64_t j = 0; j < n; j++)
            if (i != j) chi2 += (pair[i][j] - e) * (pair[i][j] - e) / e;
            else CHECK(pair[i][j] == 0, "0 and 1 at the same place");
        CHECK(chi2 < k + 5 * sqrt(2 * k) + 8, "n %d, pairs: %f of %f", (int)n, chi2, k);
    }
    // one large permutation: on average one fixed point and one kept neighbour, no trend
    const uint64_t n = 20000;
    double fixed = 0, neighbours = 0, trend = 0;
    uint64_t last = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t j = permute(i, n, 3);
        fixed += i == j;
        neighbours += i > 0 && j == last + 1;
        trend += ((double)i / (double)n - 0.5) * ((double)j / (double)n - 0.5);
        last = j;
    }
    CHECK(fixed < 9 && neighbours < 9, "%g fixed points, %g neighbours", fixed, neighbours);
    CHECK(fabs(trend) / (double)n * 12 < 5 / sqrt((double)n), "trend %g", trend);
}

static void test_loader_errors(void) {
    TokenData empty;
    memset(&empty, 0, sizeof empty);
    const size_t counts[3] = {5, 9, 7};
    TokenData d = numbered(counts, 3);
    Loader l = loader_make(&empty, 4, 1, true);
    CHECK(DIES_WITH("nothing to train on or to evaluate: 0 tokens", loader_check(&l)), "empty");
    const size_t one = 1;
    TokenData single = numbered(&one, 1);
    l = loader_make(&single, 1, 1, true);
    CHECK(DIES_WITH("nothing to train on or to evaluate: 1 token", loader_check(&l)), "one");
    l = loader_make(&d, SIZE_MAX, 1, true);
    CHECK(l.sequences == 0, "T = SIZE_MAX");
    l = loader_make(&d, SIZE_MAX / 2 + 1, 1, true);
    CHECK(l.sequences == 0, "2 T = 0");
    l = loader_make(&d, 9, 1, true);
    CHECK(DIES_WITH("21 tokens", loader_check(&l)), "too few");
    CHECK(DIES_WITH("--seq 8 or less", loader_check(&l)), "too few");
    l = loader_make(&d, 8, 1, true);
    CHECK(DIES(loader_check(&l)) == NULL && l.sequences == 1, "what it said does not work");
}

static void test_vocabulary(void) {
    const size_t counts[2] = {33, 40};
    TokenData d = numbered(counts, 2), val;  // tokens 1 .. 33 and 1001 .. 1040
    int32_t inputs[64], targets[64];
    Loader l = loader_make(&d, 16, 1, false);
    CHECK(loader_sequence(&l, 1, 34, inputs, targets, &err), "largest is vocab - 1: %s", err.text);
    CHECK(!loader_sequence(&l, 1, 33, inputs, targets, &err)
          && strstr(err.text, "numbered: token 32 is 33"), "the last target: %s", err.text);
    CHECK(!loader_sequence(&l, 2, 1001, inputs, targets, &err)
          && strstr(err.text, "token 0 is 1001"), "%s", err.text);
    val = data_view(&d, d.tokens - d.tokens / 2, d.tokens);  // from token 4 of the second segment
    l = loader_make(&val, 16, 1, false);
    CHECK(!loader_sequence(&l, 0, 1010, inputs, targets, &err)
          && strstr(err.text, "token 9 is 1010"), "its place in the file: %s", err.text);
    ((uint32_t *)d.segments[0].tokens)[3] = 0xffffffff;
    l = loader_make(&d, 16, 1, false);
    CHECK(!loader_sequence(&l, 0, SIZE_MAX, inputs, targets, &err), "does not fit an int32");
}

// A change of any token, anywhere, is noticed; so is another cut into files.
static void test_hash(void) {
    enum { N = 300001 };
    uint16_t *tokens = ALLOC(uint16_t, N, "tokens");
    for (size_t i = 0; i < N; i++) tokens[i] = (uint16_t)(i * 7919);
    TokenSegment s[2] = {{"a", tokens, N, 0, 2}, {"b", tokens, 100, 0, 2}};
    TokenData d = {1, s, N, false};
    const uint64_t before = data_hash(&d);
    for (size_t k = 0; k < 200; k++) {
        const size_t i = k == 0 ? 0 : k == 1 ? N - 1 : k * 1499;
        tokens[i] ^= 1;
        CHECK(data_hash(&d) != before, "token %zu", i);
        tokens[i] ^= 1;
    }
    CHECK(data_hash(&d) == before, "it is the same again");
    d.count = 2;
    const uint64_t two = data_hash(&d);
    s[1].tokens = tokens + 1;
    CHECK(two != before && data_hash(&d) != two, "a second file");
    free(tokens);
}

int main(void) {
    const char *base = getenv("TMPDIR");
    path_join(dir, base != NULL && base[0] != '\0' ? base : "/tmp", "tide_test_XXXXXX");
    if (mkdtemp(dir) == NULL) fail("cannot make %s: %s", dir, strerror(errno));
    RUN(test_round_trip);
    RUN(test_write_errors);
    RUN(test_bad_files);
    RUN(test_too_much_text);
    RUN(test_shards);
    RUN(test_what_is_not_text);
    RUN(test_text);
    RUN(test_documents);
    RUN(test_text_blocks);
    RUN(test_blocks_keep_tokens);
    RUN(test_split);
    RUN(test_coverage);
    RUN(test_phase);
    RUN(test_stateless);
    RUN(test_permutation_is_bijection);
    RUN(test_permutation_is_random);
    RUN(test_loader_errors);
    RUN(test_hash);
    RUN(test_vocabulary);
    clean();
    rmdir(dir);
    return test_summary();
}
