// fuzz_main.h: how a fuzz_*.c runs without libFuzzer. Each of them defines
//     int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
// which asserts what must hold, and ends with its seeds and this header:
//     #define FUZZ_SEEDS { FUZZ_SEED("text"), FUZZ_SEED("\0bytes") }
//     #define FUZZ_KINDS {{"tsv", FUZZ_SEED("")}}  // also the rows of refused.h, behind these bytes
//     #include "fuzz_main.h"
// Compiled with -DFUZZ_MAIN there is a main() that runs the seeds and N mutants of them (first
// argument, 20000 by default), the same ones every time.
// Without -DFUZZ_MAIN this header is empty and libFuzzer brings its own main().
#ifdef FUZZ_MAIN
#include "../refused.h"

typedef struct { const char *bytes; size_t n; } FuzzSeed;
#define FUZZ_SEED(text) {text, sizeof(text) - 1}
enum { FUZZ_MAX = 4096 };

static uint64_t fuzz_state = 0x9e3779b97f4a7c15u;

static size_t fuzz_below(size_t n) {  // xorshift64
    fuzz_state ^= fuzz_state << 13;
    fuzz_state ^= fuzz_state >> 7;
    fuzz_state ^= fuzz_state << 17;
    return (size_t)(fuzz_state >> 11) % n;
}

// Runs a copy of exactly n bytes, so that the address sanitizer sees a read beyond the end.
static void fuzz_run(const unsigned char *bytes, size_t n) {
    uint8_t *copy = (uint8_t *)malloc(n > 0 ? n : 1);
    assert(copy != NULL);
    memcpy(copy, bytes, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

// Flips a bit, or replaces a piece: by nothing, by a byte that means something to a parser, by a
// piece of these bytes, or by the end of other ones. Sometimes the piece is empty, sometimes it is
// all that follows.
static size_t fuzz_mutate(unsigned char *b, size_t n, const FuzzSeed *other) {
    static const char special[] = "\0\xff\x80{}[]\",:\\ue-+.09 \n\r'<>/\xc3\xe2\xf0\xed";
    unsigned char by[FUZZ_MAX];
    const size_t at = fuzz_below(n + 1), how = fuzz_below(8), most = n - at < 16 ? n - at : 16;
    size_t length = how < 4 ? fuzz_below(most + 1) : how == 4 ? n - at : 0, put = 0;
    if (how == 0 && at < n) {
        b[at] ^= (unsigned char)(1u << fuzz_below(8));
        return n;
    }
    if (how == 2 || how == 5) by[put++] = (unsigned char)special[fuzz_below(sizeof special - 1)];
    if (how == 3 || how == 6) memcpy(by, b + at, put = fuzz_below(most + 1));
    if (how == 7 && other->n > 0) {
        const size_t from = fuzz_below(other->n);
        length = n - at;
        put = other->n - from < FUZZ_MAX ? other->n - from : FUZZ_MAX;
        memcpy(by, other->bytes + from, put);
    }
    if (n - length + put > FUZZ_MAX) return n;
    memmove(b + at + put, b + at + length, n - at - length);
    memcpy(b + at, by, put);
    return n - length + put;
}

const FuzzSeed *fuzz_list;  // (seen by the leak sanitizer)

// The seeds of the fuzzer, then the rows of its kinds; *count of them.
static const FuzzSeed *fuzz_seeds(size_t *count) {
    static const FuzzSeed own[] = FUZZ_SEEDS;
    static const struct { const char *kind; FuzzSeed front; } kinds[] = FUZZ_KINDS;
    size_t rows = 0, n = sizeof own / sizeof own[0];
    const Refused *row = refused_rows(&rows);
    FuzzSeed *seeds = (FuzzSeed *)malloc((n + rows) * sizeof *seeds);
    assert(seeds != NULL);
    memcpy(seeds, own, sizeof own);
    for (size_t i = 0; i < rows * sizeof kinds / sizeof kinds[0]; i++) {
        const Refused *r = &row[i % rows];
        const FuzzSeed front = kinds[i / rows].front;
        if (strcmp(kinds[i / rows].kind, r->kind) != 0) continue;
        char *text = quoted_bytes(r->bytes, r->n), *bytes = (char *)malloc(front.n + r->n);
        memcpy(bytes, front.bytes, front.n);
        memcpy(bytes + front.n, text, r->n);
        free(text);
        seeds[n++] = (FuzzSeed){bytes, front.n + r->n};
    }
    *count = n;
    return fuzz_list = seeds;
}

int main(int argc, char **argv) {
    static unsigned char buffer[FUZZ_MAX];
    size_t count;
    const FuzzSeed *seeds = fuzz_seeds(&count);
    const long runs = argc > 1 ? atol(argv[1]) : 20000;
    for (size_t i = 0; i < count; i++) fuzz_run((const unsigned char *)seeds[i].bytes, seeds[i].n);
    for (long run = 0; run < runs; run++) {
        const FuzzSeed *seed = &seeds[fuzz_below(count)];
        size_t n = seed->n < FUZZ_MAX ? seed->n : FUZZ_MAX;
        memcpy(buffer, seed->bytes, n);
        for (size_t steps = fuzz_below(8) + 1; steps > 0; steps--)
            n = fuzz_mutate(buffer, n, &seeds[fuzz_below(count)]);
        fuzz_run(buffer, n);
    }
    printf("ok %s: %zu seeds, %ld mutants\n", argv[0], count, runs);
    return 0;
}
#endif
