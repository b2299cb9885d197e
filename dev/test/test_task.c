// test_task.c: task.h. Files of labelled sentences and what can be wrong with them, label words,
// splitting, and which prompt comes when, and where in its row.
#include "../../tide/task.h"
#include "test.h"
#include <dirent.h>
#include "files.h"

static Tokenizer *bytes;   // a byte is a token
static Tokenizer *merged;  // has " g", "re", "at", " gre", " great", "gr", " b" and "  ", too
enum { SPACE_GREAT = 256 + 4, SPACE_B = 256 + 6 };

// What most tests have in common: labels '-' (0) and '+' (1), template " = ", no first token. The
// text is parsed from memory of exactly its size.
static bool parse_bytes(Task *t, const char *text, size_t n) {
    char *exact = (char *)malloc(n > 0 ? n : 1);
    memcpy(exact, text, n);
    memset(&err, 0, sizeof err);
    const bool ok = task_parse(t, "f.tsv", exact, n, "-|+", " = ", bytes, -1, 256, &err);
    free(exact);
    return ok;
}

static bool parse(Task *t, const char *text) { return parse_bytes(t, text, strlen(text)); }

// Is the prompt of example i this text, and its label this one?
static bool is(const Task *t, size_t i, const char *text, int label) {
    const size_t n = strlen(text);
    if (i >= t->count || t->first[i + 1] - t->first[i] != n || t->label[i] != label) return false;
    for (size_t k = 0; k < n; k++)
        if (t->tokens[t->first[i] + k] != (unsigned char)text[k]) return false;
    return true;
}

static void refuses(const char *text, size_t n, const char *line, const char *says) {
    Task t;
    const bool ok = parse_bytes(&t, text, n);
    CHECK(!ok && strstr(err.text, line) != NULL && strstr(err.text, says) != NULL
          && strchr(err.text, '\n') == NULL, "'%.40s': %s", text, ok ? "accepted" : err.text);
    CHECK(t.tokens == NULL && t.first == NULL && t.label == NULL && t.count == 0, "not closed");
}
#define REFUSES(text, line, says) refuses(text, sizeof(text) - 1, line, says)

static void task_reads(void) {
    static const char *const same[] = {
        "sentence\tlabel\n  a b  \t1\nlong one\t0\n\xc3\xa9\t1\n",
        "a b\t1\nlong one\t0\n\xc3\xa9\t1",
        "sentence\tlabel\r\na b\t1\r\nlong one \t0\r\n\v\f\xc3\xa9\t01\r\n",
        "\xef\xbb\xbfsentence\tlabel\na b\t1\nlong one\t0\n\xc3\xa9\t1"};
    for (size_t i = 0; i < 4; i++) {
        Task t;
        CHECK(parse(&t, same[i]), "%s", err.text);
        CHECK(t.count == 3 && t.labels == 2 && t.word[0] == '-' && t.word[1] == '+', "shape");
        CHECK(is(&t, 0, "a b = ", 1) && is(&t, 1, "long one = ", 0) && is(&t, 2, "\xc3\xa9 = ", 1),
              "file %zu", i);
        CHECK(t.longest == 11 && t.first[0] == 0 && t.first_token == -1, "longest %zu", t.longest);
        task_close(&t);
        task_close(&t);  // a closed one, once more
    }
    Task t;
    CHECK(parse(&t, "sentence\t1\nlabel\t0"), "%s", err.text);
    CHECK(is(&t, 0, "sentence = ", 1) && t.count == 2, "a sentence like the header");
    task_close(&t);
    CHECK(task_parse(&t, "f", "a\t0\nbc\t1", 8, "n|y", "", bytes, 2, 256, &err), "%s", err.text);
    CHECK(is(&t, 0, "\2a", 0) && is(&t, 1, "\2bc", 1) && t.longest == 3, "with a first token");
    task_close(&t);
}

static void task_bad_lines(void) {
    REFUSES("a\t1\nb 1\n", "f.tsv, line 2:", "no TAB");
    REFUSES("sentence\tlabel\na\t1\nb\t1\t1\n", "line 3:", "more than one TAB");
    REFUSES("a\t1\n\nb\t1\n", "line 2:", "no TAB");
    REFUSES("a\t1\nsentence\tlabel\n", "line 2:", "'label'");
    REFUSES("sentence\tlabel\nsentence\tlabel\na\t1\n", "line 2:", "'label'");
    REFUSES("a\t2\n", "line 1:", "the label is '2', but --labels gives words to 0 .. 1");
    REFUSES("a\t-1\n", "line 1:", "'-1'");
    REFUSES("a\t1.0\n", "line 1:", "'1.0'");
    REFUSES("a\t 1\n", "line 1:", "' 1'");
    REFUSES("a\t\n", "line 1:", "''");
    REFUSES("a\t4294967297\n", "line 1:", "'4294967297'");
    REFUSES("a\t18446744073709551617\n", "line 1:", "label");
    REFUSES("a\t1\r\r\n", "line 1:", "label");
    REFUSES("\t1\n", "line 1:", "empty");
    REFUSES("a\t0\n \r \t1\n", "line 2:", "empty");
    REFUSES("a\0b\t1\n", "line 1:", "NUL");
    REFUSES("a\t1\0\n", "line 1:", "NUL");
    REFUSES("", "f.tsv", "no examples");
    REFUSES("\n", "line 1:", "no TAB");
    REFUSES("sentence\tlabel\n", "f.tsv", "no examples");
    // the longest line, and one byte more
    char *line = (char *)malloc(TASK_MAX_LINE + 8);
    memset(line, 'x', TASK_MAX_LINE + 8);
    Task t;
    memcpy(line + TASK_MAX_LINE - 2, "\t1\nb\t0", 6);
    CHECK(parse_bytes(&t, line, TASK_MAX_LINE + 4) && t.count == 2 && is(&t, 1, "b = ", 0), "%s",
          err.text);
    CHECK(t.longest == TASK_MAX_LINE + 1, "%zu tokens", t.longest);
    task_close(&t);
    memcpy(line + TASK_MAX_LINE - 2, "x\t1\nb\t0", 7);
    refuses(line, TASK_MAX_LINE + 5, "line 1:", "at most 1048576");
    free(line);
}

static void task_vocabulary(void) {
    Task t;
    CHECK(!task_parse(&t, "f", "a\t0\nz\t1", 7, "-|+", "", bytes, -1, 'z', &err)
          && strstr(err.text, "line 2") && strstr(err.text, "token 122") && t.tokens == NULL, "%s",
          err.text);
    CHECK(task_parse(&t, "f", "a\t0\nz\t1", 7, "-|+", "", bytes, -1, 'z' + 1, &err), "%s",
          err.text);
    task_close(&t);
    CHECK(!task_parse(&t, "f", "a\t0", 3, "a|z", "", bytes, -1, 'z', &err)
          && strstr(err.text, "'z' is token 122"), "%s", err.text);
    CHECK(!task_parse(&t, "f", "a\t0", 3, "a|b", "", bytes, 'z', 'z', &err)
          && strstr(err.text, "begin with token 122"), "%s", err.text);
}

static bool words(Task *t, const char *labels, const char *template_text, const Tokenizer *tok) {
    memset(&err, 0, sizeof err);
    return task_parse(t, "f", "a\t0", 3, labels, template_text, tok, -1, 1000, &err);
}

static void task_label_words(void) {
    Task t;
    static const struct { bool merged; const char *labels, *template_text, *says; } bad[] = {
        {false, "-", "", "at least two"},
        {false, "", "", "empty"},
        {false, "|", "", "empty"},
        {false, "-|", "", "empty"},
        {false, "-||+", "", "empty"},
        {false, "-|+|-", "", "'-' is there twice"},
        {false, "0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f|g", "", "more than 16"},
        {false, "-|yes", "", "'yes' is 3 tokens ('y' 'e' 's')"},
        {false, "-|abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", "", "52 tokens ('a' 'b'"},
        {true, " great| bad", " It was", "' bad' is 3 tokens (' b' 'a' 'd')"},
        {true, "b|g", "It was ", "'b' is no token of its own behind the template 'It was '"},
        {true, "b|c", "It  ", "'b' is no token of its own"},  // "It" "  ", but "It" " " " b"
        {true, "e|s", "r", "'e' is no token of its own behind the template 'r'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const Tokenizer *tok = bad[i].merged ? merged : bytes;
        const bool ok = words(&t, bad[i].labels, bad[i].template_text, tok);
        CHECK(!ok && strstr(err.text, bad[i].says) != NULL, "%s: %s", bad[i].labels, err.text);
        CHECK(t.labels == 0 && t.tokens == NULL, "not closed");
    }
    CHECK(words(&t, "0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f", " = ", bytes), "%s", err.text);
    CHECK(t.labels == 16 && t.word[0] == '0' && t.word[15] == 'f', "%d labels", t.labels);
    task_close(&t);
    CHECK(words(&t, " great| b", " It was", merged), "%s", err.text);
    CHECK(t.word[0] == SPACE_GREAT && t.word[1] == SPACE_B, "%d %d", t.word[0], t.word[1]);
    task_close(&t);
    // where the last label, number 15, is used, and 16 is not there
    const char *sixteen = "0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f";
    CHECK(task_parse(&t, "f", "a\t15", 4, sixteen, "", bytes, -1, 256, &err) && t.label[0] == 15,
          "%s", err.text);
    task_close(&t);
    CHECK(!task_parse(&t, "f", "a\t16", 4, sixteen, "", bytes, -1, 256, &err), "label 16 of 16");
}

// The sentence and the template are encoded as one text: "at" + " great" merges, " g" + "re" too.
static void task_joins(void) {
    Task t;
    CHECK(task_parse(&t, "f", "at g \t1", 7, " great| b", "re", merged, -1, 300, &err), "%s",
          err.text);
    CHECK(t.first[1] == 2 && t.tokens[0] == 256 + 2 && t.tokens[1] == 256 + 3, "%zu tokens",
          t.first[1]);
    task_close(&t);
}

static void task_files(void) {
    Task t;
    const char *path = in_base("a.tsv");
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fputs("sentence\tlabel\ngood\t1\nbad\t0\nbroken\n", f) >= 0, "write");
    if (f != NULL) fclose(f);
    CHECK(!task_open(&t, path, "-|+", " = ", bytes, -1, 256, &err) && strstr(err.text, path)
          && strstr(err.text, ", line 4: no TAB"), "%s", err.text);
    CHECK(truncate(path, 15 + 7 + 6) == 0, "truncate");
    CHECK(task_open(&t, path, "-|+", " = ", bytes, -1, 256, &err), "%s", err.text);
    CHECK(t.count == 2 && is(&t, 0, "good = ", 1) && is(&t, 1, "bad = ", 0), "%zu", t.count);
    task_close(&t);
    CHECK(truncate(path, 0) == 0 && !task_open(&t, path, "-|+", " = ", bytes, -1, 256, &err)
          && strstr(err.text, "empty") && t.tokens == NULL, "%s", err.text);
    CHECK(!task_open(&t, base, "-|+", "", bytes, -1, 256, &err) && strstr(err.text, "directory"),
          "%s", err.text);
    CHECK(!task_open(&t, in_base("none"), "-|+", "", bytes, -1, 256, &err)
          && strstr(err.text, "none") && t.tokens == NULL, "%s", err.text);
    unlink(path);
}

// n examples: number i is i + 1 times the same letter, and has the label i % 2.
static Task numbered(size_t n, int32_t first_token) {
    char text[4096];
    size_t used = 0;
    Task t;
    for (size_t i = 0; i < n; i++) {
        memset(text + used, 'a' + (int)i, i + 1);
        used += i + 1;
        used += (size_t)sprintf(text + used, "\t%zu\n", i % 2);
    }
    if (!task_parse(&t, "n", text, used, "-|+", "", bytes, first_token, 256, &err))
        die("%s", err.text);
    return t;
}

static void task_batches_in_order(void) {
    enum { T = 4 };
    Task t = numbered(6, -1), first = numbered(6, 2);
    int32_t in[6][T], where[6][2];
    memset(in, 0xff, sizeof in);
    task_batch(&t, 1, false, 0, 6, T, &in[0][0], &where[0][0]);
    static const char rows[6][T] = {"a\0\0", "bb\0", "ccc", "dddd", "eeee", "ffff"};
    static const char last[6][T] = {"\2a\0", "\2bb", "\2ccc", "\2ddd", "\2eee", "\2fff"};
    for (int b = 0; b < 6; b++) {
        for (int k = 0; k < T; k++) CHECK(in[b][k] == rows[b][k], "row %d: %d", b, in[b][k]);
        CHECK(where[b][0] == (b < 3 ? b : 3) && where[b][1] == b % 2, "row %d: last token %d, "
              "label %d", b, where[b][0], where[b][1]);
    }
    task_batch(&first, 1, false, 0, 6, T, &in[0][0], &where[0][0]);
    for (int b = 0; b < 6; b++) {
        for (int k = 0; k < T; k++) CHECK(in[b][k] == last[b][k], "row %d: %d", b, in[b][k]);
        CHECK(where[b][0] == (b < 2 ? b + 1 : 3), "row %d: last token %d", b, where[b][0]);
    }
    // across the end of an epoch, and far behind it
    task_batch(&t, 1, false, 4, 6, T, &in[0][0], &where[0][0]);
    for (int b = 0; b < 6; b++) CHECK(in[b][0] == 'a' + (b + 4) % 6, "row %d: %d", b, in[b][0]);
    task_batch(&t, 1, false, (uint64_t)6 << 50, 2, T, &in[0][0], &where[0][0]);
    CHECK(in[0][0] == 'a' && in[1][0] == 'b', "position 6 * 2^50");
    // the front goes, the end stays
    Task one;
    CHECK(parse(&one, "abcdef\t1"), "%s", err.text);
    task_batch(&one, 1, true, 7, 1, T, &in[0][0], &where[0][0]);
    CHECK(in[0][0] == 'f' && in[0][1] == ' ' && in[0][2] == '=' && in[0][3] == ' ', "its end");
    task_close(&one);
    task_close(&t);
    task_close(&first);
}

static void task_shuffles(void) {
    enum { N = 25, T = 30, EPOCHS = 3 };
    Task t = numbered(N, -1);
    static int32_t in[N * EPOCHS][T], again[7][T], other[N][T];
    int32_t where[N * EPOCHS][2], where_again[7][2];
    task_batch(&t, 5, true, 0, N * EPOCHS, T, &in[0][0], &where[0][0]);
    int orders[EPOCHS] = {0}, moved = 0;
    for (int e = 0; e < EPOCHS; e++) {
        int seen[N] = {0};
        for (int i = 0; i < N; i++) {
            const int b = e * N + i, which = in[b][0] - 'a';
            CHECK(which >= 0 && which < N, "row %d", b);
            seen[which]++;
            CHECK(where[b][0] == which && where[b][1] == which % 2 && in[b][which] == 'a' + which
                  && in[b][which + 1] == 0, "row %d: %d", b, where[b][0]);
            orders[e] += which == in[i][0] - 'a';
            moved += which != i;
        }
        for (int i = 0; i < N; i++) CHECK(seen[i] == 1, "%d: %d times in epoch %d", i, seen[i], e);
    }
    CHECK(orders[0] == N && orders[1] < N / 2 && orders[2] < N / 2, "same order in every epoch");
    CHECK(moved > EPOCHS * N / 2, "%d moved", moved);
    // the same from any position, in any portions
    for (uint64_t at = 0; at + 7 <= N * EPOCHS; at += 3) {
        task_batch(&t, 5, true, at, 7, T, &again[0][0], &where_again[0][0]);
        CHECK(memcmp(again, in[at], sizeof again) == 0
              && memcmp(where_again, where[at], sizeof where_again) == 0, "position %d", (int)at);
    }
    task_batch(&t, 6, true, 0, N, T, &other[0][0], &where[0][0]);
    int equal = 0;
    for (int i = 0; i < N; i++) equal += other[i][0] == in[i][0];
    CHECK(equal < N / 2, "seed 6 has the order of seed 5");
    task_batch(&t, 5, true, ((uint64_t)1 << 32) * N, N, T, &other[0][0], &where[0][0]);
    equal = 0;
    for (int i = 0; i < N; i++) equal += other[i][0] == in[i][0];
    CHECK(equal < N / 2, "epoch 2^32 has the order of epoch 0");
    task_close(&t);
}

static void task_splits(void) {
    Task all = numbered(10, -1), train, val;
    static const struct { double share; size_t held; } cases[] = {
        {0, 0}, {0.3, 3}, {0.39, 3}, {1, 10}, {2, 10}, {-1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t held = cases[i].held;
        task_split(&all, cases[i].share, &train, &val);
        CHECK(train.count == 10 - held && val.count == held, "%g: %zu", cases[i].share, val.count);
        CHECK(train.longest == 10 - held && val.longest == (held > 0 ? 10 : 0), "longest");
        CHECK(train.labels == 2 && val.word[1] == '+' && train.tokens == all.tokens, "copied");
        int32_t in[2], where[4];
        if (held > 0) {
            task_batch(&val, 1, false, held - 1, 2, 1, in, where);
            CHECK(in[0] == 'j' && in[1] == 'j' - (int)held + 1 && where[1] == 1, "%d %d", in[0],
                  in[1]);
        }
        task_close(&train);
        task_close(&val);
    }
    CHECK(is(&all, 9, "jjjjjjjjjj", 1), "a view has taken it along");
    task_close(&all);
}

// With GPT-2's vocabulary, and with OPT's numbers for it: four special tokens first, all others in
// another order (here reversed), so that "</s>" is 2.
static void task_gpt2(void) {
    const char *dir = getenv("TIDE_GPT2_TOKENIZER");
    if (dir == NULL) SKIP("TIDE_GPT2_TOKENIZER does not name GPT-2's vocabulary");
    Tokenizer *gpt2 = tokenizer_load(dir, &err);
    CHECK(gpt2 != NULL, "%s", err.text);
    if (gpt2 == NULL) return;
    FILE *f = fopen(in_base("vocab.json"), "wb");
    fprintf(f, "{\"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, \"<unk>\": 3");
    for (uint32_t id = 0; id < 50256; id++) {
        fprintf(f, ", \"");
        tokenizer_write(gpt2, id, true, f);
        fprintf(f, "\": %u", 50259 - id);
    }
    fprintf(f, "}");
    fclose(f);
    char command[PATH_MAX];
    snprintf(command, sizeof command, "cp '%s/merges.txt' '%s'", dir, base);
    CHECK(system(command) == 0, "merges.txt");
    Tokenizer *opt = tokenizer_load(base, &err);
    CHECK(opt != NULL && tokenizer_eot(opt) == 2, "%s", err.text);
    static const char text[] = "a warm , funny film \t1\n";
    static const int32_t ids[] = {64, 5814, 837, 8258, 2646, 632, 373};  // .. " It was"
    Task t;
    for (int i = 0; i < 2 && opt != NULL; i++) {
        CHECK(task_parse(&t, "f", text, strlen(text), " terrible| great", " It was",
                         i == 0 ? gpt2 : opt, i == 0 ? -1 : 2, 50272, &err), "%s", err.text);
        if (t.count == 0) continue;
        CHECK(t.word[0] == (i == 0 ? 7818 : 50259 - 7818), "terrible: %d", t.word[0]);
        CHECK(t.word[1] == (i == 0 ? 1049 : 50259 - 1049), "great: %d", t.word[1]);
        CHECK(t.first[1] == (size_t)(7 + i) && (i == 0 || t.tokens[0] == 2), "%zu", t.first[1]);
        for (int k = 0; k < 7; k++)
            CHECK(t.tokens[i + k] == (i == 0 ? ids[k] : 50259 - ids[k]), "token %d: %d", k,
                  t.tokens[i + k]);
        task_close(&t);
    }
    CHECK(!words(&t, "terrible|great", " It was ", gpt2), "accepted");
    tokenizer_free(gpt2);
    tokenizer_free(opt);
}

int main(void) {
    static const char merges[] = "\xc4\xa0 g\nr e\na t\n\xc4\xa0g re\n\xc4\xa0gre at\ng r\n"
                                 "\xc4\xa0 b\n\xc4\xa0 \xc4\xa0\n";
    snprintf(base, sizeof base, "/tmp/tide_task_XXXXXX");
    if (mkdtemp(base) == NULL) { perror(base); return 1; }
    bytes = tokenizer_bytes();
    merged = tokenizer_parse(NULL, 0, merges, strlen(merges), &err);
    if (merged == NULL) die("%s", err.text);
    RUN(task_reads);
    RUN(task_bad_lines);
    RUN(task_vocabulary);
    RUN(task_label_words);
    RUN(task_joins);
    RUN(task_files);
    RUN(task_batches_in_order);
    RUN(task_shuffles);
    RUN(task_splits);
    RUN(task_gpt2);
    tokenizer_free(bytes);
    tokenizer_free(merged);
    remove_tree(base);
    return test_summary();
}
