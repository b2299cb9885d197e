// test_data.c: data.h. Token files and what can be wrong with them, text, splitting, and the order
// in which the loader hands out sequences.
#include "../../data/blocks.h"
#include "../../data/tokens.h"
#include "../dies.h"
#include "../files.h"
#include "../merges.h"
#include "../test.h"
#include <math.h>

static void put(const char *name, const char *text) { put_text(in_base(name), text); }

static TokenData open_data(const char *pattern, const Tokenizer *tok) {
    return data_open(in_base(pattern), tok);
}

// Removes the files of the last test.
static void clean(void) {
    remove_tree(base);
    make_directories(base);
}

// A data set in memory, without files: `count` segments, whose token i has the value
// 1000 * segment + i + 1, so that a token tells where it comes from.
static TokenData numbered(const size_t *counts, size_t count) {
    TokenData d = {count, ALLOC(TokenSegment, count, "segments"), 0, false};
    for (size_t s = 0; s < count; s++) {
        uint32_t *tokens = ALLOC(uint32_t, counts[s] + 1, "tokens");
        for (size_t i = 0; i < counts[s]; i++) tokens[i] = (uint32_t)(1000 * s + i + 1);
        d.segments[s] = (TokenSegment){"numbered", tokens, counts[s], 0, 4};
        d.tokens += counts[s];
    }
    return d;
}

static void write_tokens(const char *name, const uint32_t *tokens, size_t n, int width) {
    CHECK(tokens_write(in_base(name), tokens, n, width, &err), "%s", err.text);
}

// Does the data set have one segment, with these tokens?
static bool has_tokens(const TokenData *d, int width, const uint32_t *tokens, size_t n) {
    size_t same = 0;
    while (same < n && same < d->tokens && segment_token(d->segments, same) == tokens[same]) same++;
    return d->count == 1 && d->tokens == n && same == n && d->segments->width == width;
}

// ---------------------------------------------------------------------------------------------
// Token files

static void test_round_trip(void) {
    enum { N = 9001 };  // more than two chunks of the writer, and not a multiple of one
    static uint32_t tokens[N];
    for (int width = 2; width <= 4; width += 2) {
        for (size_t i = 0; i < N; i++)
            tokens[i] = (uint32_t)(i * 2654435761u) >> (width == 2 ? 16 : 8);
        tokens[7] = width == 2 ? 0xffff : 0xffffffff;
        write_tokens("a.bin", tokens, N, width);
        CHECK(!path_exists(in_base("a.bin.tmp")), "temporary file left");
        const TokenData d = open_data("a.bin", NULL);
        CHECK(has_tokens(&d, width, tokens, N) && !d.text, "tokens changed, width %d", width);
    }
    clean();
}

// What cannot be written leaves the file of before, and no temporary one.
static void test_write_errors(void) {
    static const uint32_t tokens[6] = {[5] = 65536}, old = 42;
    static const struct { size_t n, limit; int width; const char *words; } rows[] = {
        {0, 0, 2, "holds 1 to 2147483647 tokens, not 0"},
        {(size_t)1 << 31, 0, 2, "not 2147483648"},
        {6, 0, 2, "old.bin: token 65536 does not fit into 16 bits"},
        {5, 1000, 2, "old.bin: File too large"}};  // a full disk, as the buffer is flushed
    write_tokens("old.bin", &old, 1, 4);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        limit_file_size(rows[i].limit);
        const bool ok = tokens_write(in_base("old.bin"), tokens, rows[i].n, rows[i].width, &err);
        limit_file_size(0);
        CHECK(!ok && strstr(err.text, rows[i].words) != NULL, "%zu: %s", i, err.text);
        CHECK(entries_in(base) == 1, "%zu: a temporary file is left", i);
        const TokenData d = open_data("old.bin", NULL);
        CHECK(has_tokens(&d, 4, &old, 1), "the file that was there before is gone");
    }
    clean();
}

// Paths that are no files, and one bad file among good ones. (JSON among text: lines.table.)
static void test_bad_files(void) {
    static const struct { const char *pattern, *words; } rows[] = {
        {"none.bin", "no such file"}, {"*.none", "*.none"}, {"", "is a directory"},
        {"shard_*.bin", "shard_1.bin: truncated"}, {"*.txt", "empty.txt is empty"},
        {"[as]*_2*", "some of these files are text"}};
    Tokenizer *tok = tokenizer_bytes();
    static const char *const names[3] = {"shard_0.bin", "shard_1.bin", "shard_2.bin"};
    const uint32_t tokens[3] = {1, 2, 3};
    for (int i = 0; i < 3; i++) write_tokens(names[i], tokens, 3, 2);
    put("a_2.txt", "text");
    put("empty.txt", "");
    CHECK(truncate(in_base(names[1]), 1029) == 0, "%s", strerror(errno));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK(DIES_WITH(rows[i].words, open_data(rows[i].pattern, tok)), "%s", rows[i].pattern);
    CHECK(DIES_WITH("name it with --tokenizer DIR", open_data("a_2.txt", NULL)), "no tokenizer");
    clean();
}

static void test_shards(void) {
    static const char *const names[4] = {"s_02.bin", "s_00.bin", "s_10.bin", "s_01.bin"};
    static const uint32_t values[4][2] = {{30, 31}, {10, 11}, {40, 41}, {20, 21}};
    for (int i = 0; i < 4; i++) write_tokens(names[i], values[i], 2, i == 3 ? 4 : 2);
    const TokenData d = open_data("s_*.bin", NULL);
    CHECK(d.count == 4 && d.tokens == 8, "%zu files, %zu tokens", d.count, d.tokens);
    for (size_t s = 0; s < d.count; s++)
        for (size_t i = 0; i < d.segments[s].count; i++)
            CHECK(segment_token(&d.segments[s], i) == (s + 1) * 10 + i, "file %zu", s);
    write_tokens("s[0].bin", values[0], 1, 2);  // a file whose name looks like a pattern
    CHECK(open_data("s[0].bin", NULL).tokens == 1, "s[0]");
    clean();
}

// ---------------------------------------------------------------------------------------------
// Text

// What is said of a file that is taken as text; NULL: nothing.
static void test_what_is_not_text(void) {
    static const struct { const char *bytes; size_t n; const char *words; } files[] = {
        {"some text\0", 10, "a.txt is binary (it has NUL bytes)"},
        {"PAR1 and ARROW1 are marks", 25, "a.txt is a table (NumPy, Parquet"},
        {"some text", 9, NULL}};
    Tokenizer *tok = tokenizer_bytes();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        for (ranks.rank = 1; ranks.rank >= 0; ranks.rank--) {  // one rank says it
            put_bytes(in_base("a.txt"), files[i].bytes, files[i].n);
            const char *said = SAYS(open_data("a.txt", tok)), *end = strchr(said, '\n');
            CHECK(files[i].words == NULL || ranks.rank > 0 ? *said == '\0'
                  : strncmp(said, "tide: warning: ", 15) == 0 && end != NULL && end[1] == '\0'
                    && strstr(said, files[i].words) != NULL, "%zu: %s", i, said);
        }
    // Of a text whose tokens no machine holds, nothing is read but its first bytes.
    put("huge.txt", "text");
    ranks.rank = 1;
    if (truncate(in_base("huge.txt"), (off_t)1 << 43) == 0 || errno != EFBIG)
        CHECK(DIES_WITH("MiB are available", open_data("huge.txt", tok)), "8 TiB of text");
    ranks.rank = 0;
    clean();
}

static void test_text(void) {
    static const uint32_t joined[9] = {'o', 'n', 'e', ' ', 't', 'w', 'o', 0xff, '3'}, one = 7;
    put("b.txt", "two\xff");
    put("a.txt", "one ");
    put("c.txt", "3");
    const TokenData d = open_data("?.txt", tokenizer_bytes());
    CHECK(has_tokens(&d, 2, joined, 9) && d.text, "%zu tokens", d.tokens);
    write_tokens("e.txt", &one, 1, 2);
    CHECK(open_data("e.txt", NULL).tokens == 1, "magic, not name");
    clean();
}

// Three merges, so that words and white space form tokens, and an end-of-text token (id 259).
static Tokenizer *small_tokenizer(void) {
    return tokenizer_of_merges("h e\n\xc4\xa0 t\n\xc4\x8a \xc4\x8a\n");
}

// Texts as documents: the vocabulary's size, the tokens around each text (-1: the tokenizer's), and
// all tokens.
static void test_documents(void) {
    static const struct {
        const char *texts[3];
        size_t vocab;
        int bos, behind, width;
        size_t count;
        uint32_t tokens[9];
    } rows[] = {
        {{"he", " t", "he"}, 65536, -1, -1, 2, 5, {256, 259, 257, 259, 256}},
        {{"he", " t", "he"}, 65537, -1, -1, 4, 5, {256, 259, 257, 259, 256}},
        {{"he"}, 260, -1, -1, 2, 1, {256}},  // one file, no end
        // a document with an end of its own gets no second one
        {{"he<|endoftext|>", " t", "he"}, 260, -1, -1, 2, 5, {256, 259, 257, 259, 256}},
        {{"ab", "xyz"}, 260, -1, -1, 2, 6, {'a', 'b', 259, 'x', 'y', 'z'}},
        // a token that begins every text, and the end behind it; or the end alone
        {{"he", " t", "he"}, 260, 'b', 259, 2, 9, {'b', 256, 259, 'b', 257, 259, 'b', 256, 259}},
        {{"bhe<|endoftext|>"}, 260, 'b', 259, 2, 3, {'b', 256, 259}},
        {{"bhe<|endoftext|>"}, 260, -1, 259, 2, 3, {'b', 256, 259}},
    };
    static const char *const names[3] = {"1.txt", "2.txt", "3.txt"};
    Tokenizer *tok = small_tokenizer();
    const int behind = tok->behind;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        clean();
        for (int k = 0; k < 3 && rows[i].texts[k] != NULL; k++) put(names[k], rows[i].texts[k]);
        tok->vocab = rows[i].vocab;
        tok->bos = rows[i].bos;
        tok->behind = rows[i].behind < 0 ? behind : rows[i].behind;
        const TokenData d = open_data("*.txt", tok);
        CHECK(has_tokens(&d, rows[i].width, rows[i].tokens, rows[i].count), "%zu: %zu tokens", i,
              d.tokens);
        data_check(&d, 260);
        if (i == 0)
            CHECK(DIES_WITH("token 1 is 259, but the model's vocabulary has 259",
                            data_check(&d, 259)), "unknown");
    }
    clean();
}

// ---------------------------------------------------------------------------------------------
// Sequences

// Two parts: every token once, in order, with its place in the file.
static void test_split(void) {
    const size_t counts[4] = {10, 1, 7, 2};
    TokenData all = numbered(counts, 4);
    for (size_t cut = 0; cut <= 20; cut++) {
        const TokenData halves[2] = {loader_make(&all, 0, cut, 1, 1, false, NULL).data,
                                     loader_make(&all, cut, 20, 1, 1, false, NULL).data};
        size_t seg = 0, i = 0;
        CHECK(halves[0].tokens == cut && halves[1].tokens == 20 - cut, "cut at %zu", cut);
        for (int half = 0; half < 2; half++)
            for (size_t s = 0; s < halves[half].count; s++) {
                const TokenSegment *t = &halves[half].segments[s];
                CHECK(t->count > 0, "an empty segment");
                for (size_t j = 0; j < t->count; j++) {
                    CHECK(segment_token(t, j) == 1000 * seg + i + 1, "cut at %zu", cut);
                    CHECK(t->first + j == i, "cut at %zu: place in the file", cut);
                    if (++i == counts[seg]) { i = 0; seg++; }
                }
            }
        CHECK(seg == 4, "cut at %zu: %zu", cut, seg);
    }
}

// Where a sequence of `numbered` data comes from: *segment and *at. Checks all of it.
static void where(const Loader *l, uint64_t position, size_t *segment, size_t *at) {
    int32_t inputs[64], targets[64];
    const size_t T = l->T;
    inputs[T] = targets[T] = -1;
    CHECK(loader_sequence(l, position, 1 << 20, inputs, targets, &err), "%s", err.text);
    *segment = (size_t)(inputs[0] - 1) / 1000;
    *at = (size_t)(inputs[0] - 1) % 1000;
    for (size_t t = 0; t < T; t++)
        CHECK(inputs[t] == (int32_t)(1000 * *segment + *at + t + 1) && targets[t] == inputs[t] + 1,
              "token %zu", t);
    CHECK(inputs[T] == -1 && targets[T] == -1, "written beyond the end");
}

// Every window of an epoch exactly once: all at multiples of T after one phase. Another epoch, or
// another seed, has another order and another phase, which may be any.
static void test_coverage(void) {
    static const size_t shapes[4][4] = {
        {9, 0, 0, 0}, {101, 3, 57, 1}, {2, 2, 2, 2}, {33, 34, 35, 36}};
    static const size_t Ts[5] = {1, 2, 3, 16, 31};
    for (int run = 0; run < 4 * 5 * 2; run++) {
        const size_t *counts = shapes[run % 4], T = Ts[run / 4 % 5];
        const bool shuffle = run / 20;
        const TokenData d = numbered(counts, 4);
        const Loader l = loader_make(&d, 0, d.tokens, T, 5, shuffle, NULL);
        size_t expected = 0, s, at;
        for (s = 0; s < 4; s++)
            if (counts[s] > T)
                expected += (counts[s] - (shuffle && counts[s] >= 2 * T ? T : 1)) / T;
        CHECK(l.sequences == expected, "T %zu: %zu, not %zu", T, l.sequences, expected);
        for (uint64_t epoch = 0; epoch < 5; epoch++) {
            static int seen[4][1000];
            size_t phase = SIZE_MAX;
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < l.sequences; i++) {
                where(&l, epoch * l.sequences + i, &s, &at);
                CHECK(seen[s][at]++ == 0, "T %zu epoch %d: twice", T, (int)epoch);
                CHECK(shuffle || at == 0 || seen[s][at - T] == 1, "T %zu: not in order", T);
                if (shuffle && counts[s] >= 2 * T && phase == SIZE_MAX) phase = at % T;
                CHECK(at % T == (shuffle && counts[s] >= 2 * T ? phase : 0), "T %zu: %zu", T, at);
            }
        }
    }
    const size_t counts[2] = {800, 555};
    const TokenData d = numbered(counts, 2);
    const Loader a = loader_make(&d, 0, 1355, 8, 1, true, NULL);
    const Loader b = loader_make(&d, 0, 1355, 8, 2, true, NULL);
    size_t same[4] = {0}, s[4], at[4], phases = 0;
    for (uint64_t p = 0; p < 600; p++) {
        where(&a, p, &s[0], &at[0]);
        where(&a, p + a.sequences, &s[1], &at[1]);
        where(&b, p, &s[2], &at[2]);
        where(&a, p + (a.sequences << 32), &s[3], &at[3]);  // an epoch beyond 32 bits
        for (int k = 1; k < 4; k++) same[k] += s[k] == s[0] && at[k] / 8 == at[0] / 8;
        same[0] += at[1] % 8 == at[0] % 8;
        where(&a, p * a.sequences, &s[0], &at[0]);
        phases |= 1u << at[0] % 8;
    }
    CHECK(same[1] < 20 && same[2] < 20 && same[3] < 20 && same[0] < 500 && phases == 255,
          "%zu %zu %zu of 600 in order, %zu in phase, of %zu", same[1], same[2], same[3], same[0],
          phases);
}

// Over many keys: where the first and the last index land. The bound of the counts' chi2 is its
// expectation k plus 5 standard deviations sqrt(2 k), with something for small k.
static void test_permutation_is_random(void) {
    static const uint64_t sizes[] = {2, 3, 5, 8, 17, 33};
    for (size_t z = 0; z < sizeof sizes / sizeof sizes[0]; z++) {
        const uint64_t n = sizes[z], cells = n * (n - 1);
        double pairs[33 * 32] = {0}, chi2 = 0;
        const double e = 4000.0 / (double)cells, k = (double)cells - 1;
        for (uint64_t key = 0; key < 4000; key++) {
            const uint64_t first = permute(0, n, key), last = permute(n - 1, n, key);
            CHECK(first != last, "both at the same place");
            pairs[first * (n - 1) + last - (last > first)]++;
        }
        for (size_t i = 0; i < cells; i++) chi2 += (pairs[i] - e) * (pairs[i] - e) / e;
        CHECK(chi2 < k + 5 * sqrt(2 * k) + 8, "%d: chi2 is %g", (int)n, chi2);
    }
}

static void test_loader_errors(void) {
    static const struct { size_t counts[3], T; const char *words; } rows[] = {
        {{1, 0, 0}, 1, "t: nothing to train on or to evaluate: 1 token"},
        {{5, 9, 7}, 9, "--seq 8 or less"}, {{5, 9, 7}, 8, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const TokenData d = numbered(rows[i].counts, 3);
        const Loader l = loader_make(&d, 0, d.tokens, rows[i].T, 1, true, NULL);
        CHECK((l.sequences > 0) == (rows[i].words == NULL), "%zu: %zu", i, l.sequences);
        if (rows[i].words == NULL) loader_make(&d, 0, d.tokens, rows[i].T, 1, true, "t");
        else CHECK(DIES_WITH(rows[i].words, loader_make(&d, 0, d.tokens, rows[i].T, 1, true, "t")),
                   "%zu", i);
    }
    // A token that the model does not know is named, with its place in the file.
    int32_t inputs[16], targets[16];
    const TokenData d = numbered((size_t[2]){33, 40}, 2);
    // from token 4 of the second segment
    const Loader l = loader_make(&d, 37, 73, 16, 1, false, NULL);
    CHECK(loader_sequence(&l, 0, 1022, inputs, targets, &err)
          && !loader_sequence(&l, 0, 1021, inputs, targets, &err)
          && strstr(err.text, "numbered: token 20 is 1021") != NULL, "%s", err.text);
}

// A change of any token, anywhere, is noticed; so is another cut into files.
static void test_data_hash(void) {
    enum { N = 300001 };
    static uint16_t tokens[N];
    TokenSegment s[2] = {{"a", tokens, N, 0, 2}, {"b", tokens, 100, 0, 2}};
    TokenData d = {1, s, N, false};
    const uint64_t before = data_hash(&d);
    for (size_t i = 0; i < N; i += i < N - 1500 ? 1500 : 1) {
        tokens[i] ^= 1;
        CHECK(data_hash(&d) != before, "token %zu", i);
        tokens[i] ^= 1;
    }
    d.count = 2;
    const uint64_t two = data_hash(&d);
    s[1].count = 99;
    CHECK(two != before && data_hash(&d) != two, "a second file");
    s[1].count = 100;
    s[0].count--;
    CHECK(data_hash(&d) != two, "a token of the first");
}

int main(void) {
    base_new("data");
    RUN(test_round_trip);
    RUN(test_write_errors);
    RUN(test_bad_files);
    RUN(test_shards);
    RUN(test_what_is_not_text);
    RUN(test_text);
    RUN(test_documents);
    RUN(test_split);
    RUN(test_coverage);
    RUN(test_permutation_is_random);
    RUN(test_loader_errors);
    RUN(test_data_hash);
    remove_tree(base);
    return test_summary();
}
