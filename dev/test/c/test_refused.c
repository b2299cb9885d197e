// test_refused.c: each row of refused.h is read as its kind of file, and is refused in its words.
#include "../../../tide/plan/rates.h"
#include "../../../tide/run/open.h"
#include "../../data/blocks.h"
#include "../dies.h"
#include "../files.h"
#include "../merges.h"
#include "../options_of.h"
#include "../refused.h"
#include "../test.h"

// ---------------------------------------------------------------------------------------------
// Kinds of files. A text ends with a NUL; some kinds have several. Where the kind has a file's name,
// its bytes are there, and `bytes` is its path.

static Tokenizer *tokens;  // a byte is a token

static char *exact(const char *bytes, size_t n) {  // for the address sanitizer
    return (char *)memcpy(malloc(n > 0 ? n : 1), bytes, n);
}

static void try_json(const char *bytes, size_t n) {
    if (json_parse(exact(bytes, n), n, &err) == NULL) die("%s", err.text);
}

static void try_config(const char *path, size_t n) {
    GPT2Config c;
    (void)path, (void)n;
    model_config_load(base, &c);
}

static void try_index(const char *path, size_t n) {
    int count;
    (void)path, (void)n;
    model_open(base, &count);
}

static void try_safetensors(const char *bytes, size_t n) {
    SafeTensors st = {0};
    if (!safetensors_parse(&st, exact(bytes, n), n, &err)) die("%s", err.text);
}

static void try_header(const char *bytes, size_t n) {
    const uint64_t length = strlen(bytes);
    char *file = (char *)malloc(8 + n - 1);
    memcpy(file, &length, 8);
    memcpy(file + 8, bytes, length);
    memcpy(file + 8 + length, bytes + length + 1, n - length - 1);
    try_safetensors(file, 8 + n - 1);
}

static void try_tsv(const char *bytes, size_t n) {
    TaskReader r = {"-|+", " = ", tokens, 256, .t.first_token = -1};
    task_parse(&r, "f.tsv", strndup(bytes, n));
}

static void try_jsonl(const char *bytes, size_t n) {
    TaskReader r = {NULL, NULL, tokens, 300, .t.first_token = -1};
    task_parse(&r, "f.jsonl", strndup(bytes, n));
}

static void try_data(const char *path, size_t n) {
    (void)n;
    data_open(path, tokens);
}

static void try_tokens(const char *bytes, size_t n) {
    char file[2 * BIN_HEADER] = {0};
    memcpy(file, bytes, 12);
    memcpy(file + BIN_HEADER, bytes + 12, n - 12);
    segment_parse("x.bin", file, BIN_HEADER + n - 12);
}

static void try_rates(const char *path, size_t n) {
    Rates r;
    (void)n;
    if (!rates_load(&r, path, &err)) die("%s", err.text);
}

static void try_cpu(const char *bytes, size_t n) { options_of(strndup(bytes, n), false); }
static void try_gpu(const char *bytes, size_t n) { options_of(strndup(bytes, n), true); }

static void try_saved(const char *bytes, size_t n) {
    Options o = options_of("--resume", false);
    options_resume(&o, strndup(bytes, n));
}

static const char *kind;  // of the row that is tried

static void new_folder(void) {
    remove_tree(in_base("folder"));
    make_directories(in_base("folder"));
}

// A tokenizer.json of the folder that the kind names, with one text for another.
static void try_altered(const char *bytes, size_t n) {
    const char *text = fixture_read(kind, "tokenizer.json", &n);
    new_folder();
    put_text(in_base("folder/tokenizer.json"),
             altered(text, bytes, bytes + strlen(bytes) + 1));
    tokenizer_load(in_base("folder"));
}

static void try_vocab(const char *bytes, size_t n) {
    (void)n;
    tokenizer_of("test", byte_vocabulary(5, bytes), bytes + strlen(bytes) + 1);
}

// Names and texts of files, alone or beside those that the kind names.
static void try_folder(const char *bytes, size_t n) {
    char name[PATH_MAX];
    new_folder();
    if (strcmp(kind, "beside vocab") == 0) {
        put_text(in_base("folder/vocab.json"),
                 byte_vocabulary(3, ", \"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, "
                                 "\"\\u0120a\": 259, \"11\": 260"));
        put_text(in_base("folder/merges.txt"), "\xc4\xa0 a\n1 1\n");
    } else if (strcmp(kind, "beside llama3") == 0) {
        size_t length = 0;
        put_text(in_base("folder/tokenizer.json"),
                 fixture_read("small-llama3", "tokenizer.json", &length));
    }
    for (const char *s = bytes, *text; s < bytes + n; s = text + strlen(text) + 1) {
        text = s + strlen(s) + 1;
        path_join(name, in_base("folder"), s);
        put_text(name, text);
    }
    tokenizer_load(in_base("folder"));
}

// ---------------------------------------------------------------------------------------------
// `names`: what every line of the kind has, beside the row's words; NULL: the folder. file: its name.
static const struct {
    const char *kind, *names, *file;
    void (*try)(const char *bytes, size_t n);
} kinds[] = {
    {"json", "", NULL, try_json},
    {"config", "config.json: ", "config.json", try_config},
    {"index", NULL, "model.safetensors.index.json", try_index},
    {"header", "", NULL, try_header},
    {"safetensors", "", NULL, try_safetensors},
    {"tsv", "f.tsv", NULL, try_tsv},
    {"jsonl", "f.jsonl", NULL, try_jsonl},
    {"data", NULL, "a", try_data},
    {"data.bin", NULL, "data.bin", try_data},
    {"tokens", "x.bin", NULL, try_tokens},
    {"rates", NULL, "rates", try_rates},
    {"cpu", "", NULL, try_cpu},
    {"gpu", "", NULL, try_gpu},
    {"saved", "", NULL, try_saved},
    {"small-llama2", NULL, NULL, try_altered},
    {"small-llama3", NULL, NULL, try_altered},
    {"small-smollm2", NULL, NULL, try_altered},
    {"vocab", "test/", NULL, try_vocab},
    {"folder", NULL, NULL, try_folder},
    {"beside vocab", NULL, NULL, try_folder},
    {"beside llama3", NULL, NULL, try_folder},
};

static void test_rows(void) {
    size_t count;
    const Refused *rows = refused_rows(&count);
    for (const Refused *r = rows; r < rows + count; r++) {
        size_t k = 0;
        while (strcmp(kinds[k].kind, r->kind) != 0) k++;
        const char *bytes = quoted_bytes(r->bytes, r->n), *words = quoted(r->words);
        const char *names = kinds[k].names != NULL ? kinds[k].names : base;
        const char *path = kinds[k].file != NULL ? in_base(kinds[k].file) : NULL;
        kind = r->kind;
        if (path != NULL) put_bytes(path, bytes, r->n);
        const char *line = DIES(kinds[k].try(path != NULL ? path : bytes, r->n));
        CHECK(line != NULL && strstr(line, words) != NULL && strstr(line, names) != NULL
              && strchr(line, '\n') == NULL, "%s: %s\n  '%s' should say '%s'", r->kind, bytes,
              line != NULL ? line : "nothing", words);
    }
}

int main(void) {
    base_new("refused");
    tokens = tokenizer_bytes();
    ranks.rank = 1;  // which prints no warnings
    RUN(test_rows);
    remove_tree(base);
    return test_summary();
}
