// What is refused, and what is then said: the rows of refused.h, each read as its kind of file.
#include "../../../tide/files/state.h"
#include "../dies.h"
#include "../files.h"
#include "../refused.h"
#include "../test.h"

static void write_base(const char *name, const char *bytes, size_t n) {
    FILE *f = fopen(in_base(name), "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) die("cannot write %s", name);
}

static Json *json_of(const char *bytes, size_t n) {
    Json *root = json_parse(bytes, n, &err);
    if (root == NULL) die("%s", err.text);
    return root;
}

static void try_config(const char *bytes, size_t n) {
    GPT2Config c;
    config_read(json_of(bytes, n), "config.json", &c);
}

static void try_index(const char *bytes, size_t n) {
    int count;
    write_base("model.safetensors.index.json", bytes, n);
    model_open(base, true, &count);
}

static void try_safetensors(const char *bytes, size_t n) {
    SafeTensors st;
    if (!safetensors_parse(&st, bytes, n, &err)) die("%s", err.text);
}

static void try_header(const char *bytes, size_t n) {
    const uint64_t length = strlen(bytes);
    char *file = (char *)malloc(8 + n);
    memcpy(file, &length, 8);
    memcpy(file + 8, bytes, length);
    memcpy(file + 8 + length, bytes + length + 1, n - length - 1);
    try_safetensors(file, 8 + n - 1);
}

// `names`: what every line of the kind names.
static const struct {
    const char *kind, *names;
    void (*try)(const char *bytes, size_t n);
} kinds[] = {
    {"config", "", try_config},
    {"index", "", try_index},
    {"header", "", try_header},
    {"safetensors", "", try_safetensors},
};

static void test_refused(void) {
    size_t count;
    const Refused *rows = refused_rows(&count);
    for (const Refused *r = rows; r < rows + count; r++) {
        size_t k = 0;
        while (k < sizeof kinds / sizeof kinds[0] && strcmp(kinds[k].kind, r->kind) != 0) k++;
        char *bytes = quoted_bytes(r->bytes, r->n), *exact = (char *)malloc(r->n > 0 ? r->n : 1);
        char *words = quoted(r->words);
        memcpy(exact, bytes, r->n);  // for the address sanitizer
        const char *said = DIES(kinds[k].try(exact, r->n));
        CHECK(said != NULL, "%s is accepted: %s", r->kind, bytes);
        if (said == NULL) continue;
        CHECK(strstr(said, words) != NULL && strstr(said, kinds[k].names) != NULL
              && strchr(said, '\n') == NULL, "%s: %s\n  '%s' should say '%s'", r->kind, bytes, said,
              words);
    }
}

int main(void) {
    snprintf(base, sizeof base, "/tmp/tide_refused_XXXXXX");
    if (mkdtemp(base) == NULL) { perror(base); return 1; }
    RUN(test_refused);
    remove_tree(base);
    return test_summary();
}
