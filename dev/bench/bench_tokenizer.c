// bench_tokenizer.c: text to tokens on one thread, beside Hugging Face's tokenizers and tiktoken
// where Python has them (time_tokenizers.py; PYTHON names another python3), in turn.
//     build/bench_tokenizer [FILE [DIR...]]
// The text is FILE, else this project's own sources and documents, in documents of some 10 kB. The
// tokenizers are those of the DIRs, else of the folders of $TIDE_TOKENIZERS, else the tests' small
// ones.
#include "machine.h"
#include "../data/blocks.h"

enum { ROUNDS = 3, DOCUMENT = 10000, NAMES = 3 };
static const char *const names[NAMES] = {"tide", "tokenizers", "tiktoken"};

// Gives the bytes of a document of some 10 kB, up to the end of a line.
static size_t document_length(const char *text, size_t n) {
    if (n <= DOCUMENT) return n;
    const char *end = (const char *)memchr(text + DOCUMENT, '\n', n - DOCUMENT);
    return end != NULL ? (size_t)(end + 1 - text) : n;
}

// Encodes all documents and returns the seconds.
static double encode_all(const Tokenizer *t, const char *text, size_t n, size_t *tokens) {
    Tokens ids = {NULL, 0, 0};
    const double start = seconds_now();
    *tokens = 0;
    for (size_t at = 0, length; at < n; at += length) {
        length = document_length(text + at, n - at);
        ids.count = 0;
        tokenizer_encode(t, text + at, length, 0, &ids);
        *tokens += ids.count;
    }
    const double seconds = seconds_now() - start;
    free(ids.ids);
    return seconds;
}

// Reads the seconds of the two in Python, in lines "NAME SECONDS".
static void time_others(const char *dir, const char *file, double seconds[NAMES]) {
    char command[3 * PATH_MAX], line[256];
    snprintf(command, sizeof command, "${PYTHON:-python3} dev/bench/time_tokenizers.py '%s' '%s' "
             "%d 2>/dev/null", dir, file, DOCUMENT);
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        for (int k = 1; k < NAMES; k++)
            if (strncmp(line, names[k], strlen(names[k])) == 0)
                seconds[k] = strtod(line + strlen(names[k]), NULL);
    if (f != NULL) pclose(f);
}

static void bench(const char *dir, const char *file, const char *text, size_t n) {
    const char *slash = strrchr(dir, '/');
    double all[NAMES][ROUNDS];
    size_t tokens = 0;
    const double start = seconds_now();
    Tokenizer *t = tokenizer_load(dir);
    const double load = seconds_now() - start;
    for (int round = 0; round < ROUNDS; round++) {
        double seconds[NAMES] = {0, 0, 0};
        seconds[0] = encode_all(t, text, n, &tokens);
        time_others(dir, file, seconds);
        for (int k = 0; k < NAMES; k++) all[k][round] = seconds[k];
    }
    printf("%-20s %10.2f %7.0f ms", slash != NULL ? slash + 1 : dir, (double)n / (double)tokens,
           1e3 * load);
    for (int k = 0; k < NAMES; k++) {
        const double median = median_of(all[k], ROUNDS);
        if (median > 0) printf(" %11.1f", 1e-6 * (double)n / median);
        else printf(" %11s", "-");
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *folder = getenv("TIDE_TOKENIZERS");
    char made[] = "/tmp/tide_bench_XXXXXX", command[300], pattern[PATH_MAX];
    Error err;
    size_t n = 0;
    glob_t found;
    program_begin();
    machine_describe();
    if (argc < 2) {
        if (close(mkstemp(made)) != 0) fail("%s: %s", made, strerror(errno));
        snprintf(command, sizeof command, "cat *.md doc/*.md *.c *.cu *.h tide/*/[a-tv-z]* "
                 "dev/test/*/*.[ch] dev/test/*/*.sh dev/emu/* >%s 2>/dev/null", made);
        (void)!system(command);
    }
    const char *file = argc < 2 ? made : argv[1];
    char *text = text_read(file, &n, &err);
    if (text == NULL) die("%s", err.text);
    snprintf(pattern, sizeof pattern, "%s/*/tokenizer.json", folder != NULL ? folder
             : "dev/test/fixtures/tokenizer");
    printf("%.1f MB of text; MB/s on one thread\n%-20s %10s %10s", 1e-6 * (double)n, "",
           "bytes/token", "load");
    for (int k = 0; k < NAMES; k++) printf(" %11s", names[k]);
    printf("\n");
    for (int i = 2; i < argc; i++) bench(argv[i], file, text, n);
    if (argc < 3 && glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            *strrchr(found.gl_pathv[i], '/') = '\0';
            bench(found.gl_pathv[i], file, text, n);
        }
    if (argc < 2) unlink(made);
    return 0;
}
