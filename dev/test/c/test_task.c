// test_task.c: task.h. Files of labelled sentences and of JSON lines and what can be wrong with
// them, label words, splitting, packing, and which example comes when, and where in its row.
#include "../../../tide/files/task.h"
#include "../../data/blocks.h"
#include "../test.h"
#include "../dies.h"
#include "../merges.h"
#include "../files.h"

static Tokenizer *bytes;   // a byte is a token
static Tokenizer *merged;  // has " g", "re", "at", " gre", " great", "gr", " b" and "  ", too
enum { SPACE_GREAT = 256 + 4, SPACE_B = 256 + 6 };

// Parses a copy of exactly its size.
static Task parse_with(const char *text, const char *labels, const char *template_text,
                       const Tokenizer *tok, int32_t first_token, size_t vocab) {
    TaskReader r = {labels, template_text, tok, vocab, .t.first_token = first_token};
    return task_parse(&r, "f.tsv", strdup(text));
}

// What most tests have in common: labels '-' (0) and '+' (1), template " = ", no first token.
static Task parse_task(const char *text) { return parse_with(text, "-|+", " = ", bytes, -1, 256); }

// Are these the row's tokens? '.': -1, '_': 0.
static bool are(const int32_t *row, const char *text) {
    for (size_t k = 0; text[k] != '\0'; k++) {
        int32_t want = (unsigned char)text[k];
        if (want == '.') want = -1;
        if (want == '_') want = 0;
        if (row[k] != want) return false;
    }
    return true;
}

// Is the prompt of example i this text, and its label this one?
static bool task_is(const Task *t, size_t i, const char *text, int label) {
    return i < t->count && t->first[i + 1] - t->first[i] == strlen(text) && t->label[i] == label
        && are(t->tokens + t->first[i], text);
}

static void task_reads(void) {
    static const char *const same[] = {
        "sentence\tlabel\n  a b  \t1\nlong one\t0\n\xc3\xa9\t1\n",
        "sentence\tlabel\r\na b\t1\r\nlong one \t0\r\n\v\f\xc3\xa9\t01"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        const Task t = parse_task(same[i]);
        CHECK(t.count == 3 && t.labels == 2 && t.word[0] == '-' && t.word[1] == '+', "shape");
        CHECK(task_is(&t, 0, "a b = ", 1) && task_is(&t, 1, "long one = ", 0)
              && task_is(&t, 2, "\xc3\xa9 = ", 1) && t.longest == 11, "file %zu", i);
    }
    Task t = parse_task("sentence\t1\nlabel\t0");
    const Task other = parse_task("sentence\t1\nlabel\t1");
    CHECK(task_is(&t, 0, "sentence = ", 1) && t.count == 2, "a sentence like the header");
    CHECK(task_hash(&t) != task_hash(&other), "another label is other data");
    t = parse_with("a\t0\nbc\t1", "n|y", "", bytes, 2, 256);
    CHECK(task_is(&t, 1, "\2bc", 1) && t.longest == 3, "with a first token");
}

// Labels, which are refused as they stand; tokens that the model does not know, up to token 'z'.
static void task_refuses(void) {
    enum { V = 'z' };
    static const char all[] = "0|1|2|3|4|5|6|7|8|9|a|b|c|d|e|f|g";
    Tokenizer ends = *bytes;
    ends.eot = '~';
    const struct {
        const char *text, *labels, *template_text;
        const Tokenizer *tok;
        int32_t first_token;
        size_t vocab;
        const char *says;
    } bad[] = {
        {"a\t0", "-", "", bytes, -1, 256, "at least two"},
        {"a\t0", "", "", bytes, -1, 256, "a word is empty"},
        {"a\t2", "-|+", "", bytes, -1, 256, "0 to 1"},
        {"a\t0", "-|+|-", "", bytes, -1, 256, "'-' is there twice"},
        {"a\t0", all, "", bytes, -1, 256, "more than 16"},
        {"a\t0", "b|g", "It was ", merged, -1, 1000,
         "'b' is no token of its own behind the template 'It was '"},
        {"a\t0", "b|c", "It  ", merged, -1, 1000,  // "It" "  ", but "It" " " " b"
         "'b' is no token of its own"},
        {"a\t0\nz\t1", "-|+", "", bytes, -1, V, "line 2 has token 122"},
        {"a\t0\nz\t1", "a|z", "", bytes, -1, V, "--labels has token 122"},
        {"a\t0\nz\t1", "a|b", "", bytes, V, V, "line 1 has token 122"},
        {"{\"text\":\"ab\"}\n{\"text\":\"az\"}", NULL, NULL, bytes, -1, V, "line 2 has token 122"},
        {"{\"text\":\"ab\"}", NULL, NULL, &ends, -1, '~', "line 1 has token 126"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(DIES_WITH(bad[i].says, parse_with(bad[i].text, bad[i].labels, bad[i].template_text,
              bad[i].tok, bad[i].first_token, bad[i].vocab)), "row %zu", i);
    const Task t = parse_with("a\t0", " great| b", " It was", merged, -1, 1000);
    CHECK(t.word[0] == SPACE_GREAT && t.word[1] == SPACE_B, "%d %d", t.word[0], t.word[1]);
}

static Task open_file(const char *path) {
    TaskReader r = {"-|+", " = ", bytes, 256, .t.first_token = -1};
    return task_open(&r, path);
}

static void task_files(void) {
    const char *path = in_base("a.tsv");
    put_text(path, "sentence\tlabel\ngood\t1\nbad\t0\nbroken\n");
    CHECK(DIES_WITH("a.tsv, line 4: not", open_file(path)), "a bad line");
    CHECK(truncate(path, 0) == 0 && DIES_WITH("a.tsv: no examples", open_file(path)), "empty");
    CHECK(DIES_WITH("patterns work for text only", open_file(in_base("*.jsonl"))), "a pattern");
    static const struct { const char *name, *text; bool examples; } named[] = {
        {"a.jsonl", "no JSON", true}, {"a.txt", "\xef\xbb\xbf{\"", true}, {"b", "A {\"", false}};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        const char *name = in_base(named[i].name);
        put_text(name, named[i].text);
        CHECK(path_is_examples(name) == named[i].examples, "%s: %s", named[i].name, named[i].text);
    }
    CHECK(!path_is_examples(in_base("none")), "not there");
}

// Labels of several tokens are choices, and what evaluation asks is the likelihood of each.
static void task_long_labels(void) {
    enum { T = 8 };
    int32_t in[6][T], to[6][T];
    size_t choice = 9;
    Task t = parse_with("abc\t1\nde\t0", "no|yes|?", "=", bytes, -1, 256);
    CHECK(t.labels == 0 && t.count == 2 && t.pieces == 8 && t.label[0] == 1, "%zu", t.pieces);
    task_pack(&t, T, false);
    CHECK(t.longest == 4 + 3 - 1 && task_rows(&t, true) == 2 && task_rows(&t, false) == 6, "rows");
    task_batch(&t, 1, false, 0, 6, T, in[0], to[0], NULL);
    static const char *const want[6][2] = {
        {"abc=n___", "...no..."}, {"abc=ye__", "...yes.."}, {"abc=____", "...?...."},
        {"de=n____", "..no...."}, {"de=ye___", "..yes..."}, {"de=_____", "..?....."}};
    for (int b = 0; b < 6; b++)
        CHECK(are(in[b], want[b][0]) && are(to[b], want[b][1]), "row %d", b);
    for (size_t k = 0; k < 6; k++)
        CHECK(task_find(&t, k, &choice) == k / 3 && choice == k % 3, "row %zu: %zu", k, choice);
    CHECK(task_targets(&t, 1, 0, 2, T) == 3 + 2, "trained");
    const Task last = task_view(&t, 1, 2);
    CHECK(task_rows(&last, false) == 3 && task_find(&last, 2, &choice) == 0 && choice == 2
          && last.label[0] == 0, "view");
    task_batch(&last, 1, false, 1, 1, T, in[0], to[0], NULL);
    CHECK(are(in[0], "de=ye___") && are(to[0], "..yes..."), "of a view");
    t = parse_with("abc\t1\nde\t0", "no|yes|!", "=", bytes, -1, 256);
    CHECK(task_hash(&t) != task_hash(&last), "other choices are other data");
}

static Task json(const char *text) { return parse_with(text, NULL, NULL, bytes, -1, 300); }

static void task_json_lines(void) {
    enum { T = 9 };
    int32_t in[4][T], to[4][T];
    const char *lines =
        "{\"prompt\": \"ab\", \"completion\": \"cd\", \"more\": [1, {}]}\r\n\n"
        "{\"text\": \"a\\n\\u00e9\"}\n \t\n"
        "{\"answer\": 1, \"prompt\": \"2+2=\", \"choices\": [\"3\", \"four\"], \"text\": null}\n"
        "{\"prompt\": \"\", \"completion\": \"xyz\"}";
    static const char *const want[4][2] = {
        {"abc", ".cd"}, {"a\n\xc3", "\n\xc3\xa9"}, {"2+2=fou", "...four"}, {"xy", "yz"}};
    Task t = json(lines);
    CHECK(t.count == 4 && t.labels == 0 && t.longest == 7, "%zu", t.count);
    for (uint64_t i = 0; i < 4; i++) {
        const size_t n = task_row(&t, i, (size_t)t.label[i], T, in[i], to[i]);
        CHECK(n == strlen(want[i][0]) && are(in[i], want[i][0]) && are(to[i], want[i][1]),
              "example %d", (int)i);
    }
    Tokenizer ends = *bytes;
    ends.eot = 3;  // as if there were one
    t = parse_with(lines, NULL, NULL, &ends, 257, 300);
    CHECK(task_row(&t, 0, 0, T, in[0], to[0]) == 5 && in[0][0] == 257 && are(to[0], "..cd")
          && to[0][4] == 3, "a completion with both ends");
    CHECK(task_row(&t, 1, 0, T, in[0], to[0]) == 5 && in[0][0] == 257 && are(to[0], "a\n\xc3\xa9")
          && to[0][4] == 3, "a text with both ends");
    CHECK(task_row(&t, 2, 0, T, in[0], to[0]) == 5 && are(to[0], "....3"), "a choice has none");
}

// In the style of SentencePiece a text is given a space in front, but not the part behind a prompt.
static void task_spaces(void) {
    static const struct { const char *line, *prompt, *last; } cases[] = {
        {"{\"prompt\": \"the\", \"completion\": \"king\"}", " the", "king"},
        {"{\"prompt\": \"\", \"completion\": \"king\"}", "", " king"},
        // the begin and the end that a text has itself are not added again
        {"{\"text\": \"<s>king </s>\"}", "", " king"},
        {"{\"prompt\": \"<s>the\", \"completion\": \"king </s>\"}", " the", "king"}};
    const Tokenizer *tok = tokenizer_load(TEST_FIXTURES "/tokenizer/small-llama2");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Task t = parse_with(cases[i].line, NULL, NULL, tok, tok->bos, 2005);
        CHECK(t.tokens[0] == 1, "no <s>, but %d", t.tokens[0]);
        for (int last = 0; last < 2; last++) {
            const size_t piece = last ? t.pieces - 1 : 0, end = t.first[piece + 1];
            char text[100] = "";
            for (size_t k = t.first[piece] + (last ? 0 : 1); k < end && t.tokens[k] != 2; k++) {
                size_t n;
                const char *s = tokenizer_token(tok, (uint32_t)t.tokens[k], &n);
                strncat(text, s, n);
            }
            CHECK(strcmp(text, last ? cases[i].last : cases[i].prompt) == 0, "%s: '%s'",
                  cases[i].line, text);
        }
    }
}

// What is longer than a row: the prompt's front goes, but not the first token; then the choice's
// end.
static void task_cuts(void) {
    int32_t in[8], to[8];
    static const struct { const char *prompt, *completion, *in, *to; size_t T; } cases[] = {
        {"abcd", "xy", "abcdx", "...xy", 5}, {"abcd", "xy", "bcdx", "..xy", 4},
        {"abcd", "xyz", "dx", "xy", 2}, {"", "wxyz", "wxy", "xyz", 3}, {"", "wxyz", "wx", "xy", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "{\"prompt\":\"%s\",\"completion\":\"%s\"}", cases[i].prompt,
                 cases[i].completion);
        const size_t T = cases[i].T;
        const size_t full = strlen(cases[i].prompt) + strlen(cases[i].completion) - 1;
        Task t = json(line);
        const size_t n = task_row(&t, 0, 0, T, in, to);
        CHECK(n == strlen(cases[i].in) && are(in, cases[i].in) && are(to, cases[i].to), "case %zu",
              i);
        size_t trained = 0;
        for (size_t k = 0; k < n; k++) trained += to[k] >= 0;
        const TaskSum sum = task_sum(&t, T);
        task_pack(&t, T, false);
        CHECK(sum.cut == (full > T) && sum.inputs == n && sum.targets == trained
              && task_targets(&t, 1, 0, 1, T) == trained, "case %zu: sums", i);
    }
}

// Every example is in one row, whole, and trained as it is by itself; rows are full as far as best
// fit can; begins say where each one begins. Rows are in the order of the epoch (test_data.c holds
// what that is).
static void task_packs(void) {
    enum { T = 16, N = 40 };
    char text[8192] = "";
    int32_t in[T], to[T], begins[T], in_1[T], to_1[T];
    size_t seen[N] = {0}, trained = 0, padded = 0;
    for (int i = 0; i < N; i++)
        snprintf(text + strlen(text), 128, "{\"prompt\":\"%c%.*s\",\"completion\":\"%.*s\"}\n",
                 '0' + i, i * 7 % 9, "pppppppp", 1 + i * 5 % 7, "ccccccc");
    Task t = json(text);
    const TaskSum sum = task_sum(&t, T);
    Task single = t;
    task_pack(&single, T, false);
    for (size_t k = 0; k < N; k++) CHECK(single.packed[single.row[k]] == k, "row %zu", k);
    padded = task_targets(&single, 3, 0, N, T);
    task_pack(&t, T, true);
    CHECK(t.rows >= (sum.inputs + T - 1) / T && t.rows < sum.inputs / T + 3
          && task_rows(&t, true) == t.rows && task_rows(&t, false) == N, "%zu rows for %zu inputs",
          t.rows, sum.inputs);
    for (size_t k = 0; k < t.rows; k++) {
        size_t here = 0, at = 0;
        uint64_t phase;
        task_batch(&t, 3, true, 5 * t.rows + k, 1, T, in, to, begins);
        const size_t row = (size_t)epoch_index(3, 5 * t.rows + k, t.rows, &phase);
        for (size_t j = t.row[row]; j < t.row[row + 1]; j++) {
            const size_t i = t.packed[j], n = task_row(&t, i, 0, T, in_1, to_1);
            CHECK(at + n <= T && memcmp(in + at, in_1, n * sizeof *in) == 0
                  && memcmp(to + at, to_1, n * sizeof *to) == 0, "row %zu at %zu", k, at);
            seen[i]++;
            for (size_t u = at; u < at + n; u++)
                CHECK((size_t)begins[u] == at, "row %zu: %zu", k, u);
            at += n;
        }
        for (size_t u = at; u < T; u++)
            CHECK(in[u] == 0 && to[u] == -1 && (size_t)begins[u] == at, "row %zu: %zu", k, u);
        for (size_t u = 0; u < T; u++) here += to[u] >= 0;
        CHECK(task_targets(&t, 3, 5 * t.rows + k, 1, T) == here, "row %zu: %zu trained", k, here);
        trained += here;
    }
    for (int i = 0; i < N; i++) CHECK(seen[i] == 1, "example %d: %zu times", i, seen[i]);
    CHECK(trained == padded && trained == sum.targets, "%zu trained, %zu padded", trained, padded);
    // 5 + 3 and 4 + 4 fill two rows of 8; in the order of the file there would be three
    t = json("{\"text\":\"abcde\"}\n{\"text\":\"abcdef\"}\n{\"text\":\"vwxyz\"}\n"
             "{\"text\":\"wxyz\"}");
    task_pack(&t, 8, true);
    CHECK(t.rows == 2 && t.row[1] == 2 && t.row[2] == 4, "%zu rows", t.rows);
}

// Evaluation takes the examples as they are in the file, also across the end of an epoch, and far
// behind it.
static void task_batches_in_order(void) {
    enum { T = 3 };
    static const struct { int32_t first; uint64_t at; const char *rows[3]; } cases[] = {
        {'^', 0, {"^a_", "^bb", "^cc"}}, {-1, 2, {"ccc", "a__", "bb_"}},
        {-1, (uint64_t)3 << 50, {"a__", "bb_", "ccc"}}};
    int32_t in[3][T], where[3][2];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Task t = parse_with("a\t0\nbb\t1\nccc\t0", "-|+", "", bytes, cases[i].first, 256);
        memset(in, 0xff, sizeof in);
        task_batch(&t, 1, false, cases[i].at, 3, T, &in[0][0], &where[0][0], NULL);
        for (int b = 0; b < 3; b++) {
            const int last = (int)strcspn(cases[i].rows[b], "_") - 1;
            const int label = (cases[i].at + (uint64_t)b) % 3 == 1;
            CHECK(are(in[b], cases[i].rows[b]) && where[b][0] == last && where[b][1] == label,
                  "case %zu, row %d: last token %d, label %d", i, b, where[b][0], where[b][1]);
        }
    }
}

int main(void) {
    static const char merges[] = "\xc4\xa0 g\nr e\na t\n\xc4\xa0g re\n\xc4\xa0gre at\ng r\n"
                                 "\xc4\xa0 b\n\xc4\xa0 \xc4\xa0\n";
    base_new("task");
    bytes = tokenizer_bytes();
    merged = tokenizer_of_merges(merges);
    RUN(task_reads);
    RUN(task_refuses);
    RUN(task_long_labels);
    RUN(task_json_lines);
    RUN(task_spaces);
    RUN(task_cuts);
    RUN(task_packs);
    RUN(task_files);
    RUN(task_batches_in_order);
    remove_tree(base);
    return test_summary();
}
