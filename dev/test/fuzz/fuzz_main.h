// fuzz_main.h: how a fuzz_*.c runs without libFuzzer. Each of them defines
//     int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
// and ends with its seeds and this header:
//     #define FUZZ_SEEDS { FUZZ_SEED("text"), FUZZ_SEED("\0bytes") }
//     #define FUZZ_KINDS {{"json", FUZZ_SEED("")}}  // also the rows of refused.h, behind these bytes
//     #include "fuzz_main.h"
// Compiled with -DFUZZ_MAIN there is a main() that runs the seeds and N mutants of them (first
// argument, 20000 by default), the same ones every time. Other arguments are files to run once.
// Without -DFUZZ_MAIN this header is empty and libFuzzer brings its own main().
#ifdef FUZZ_MAIN
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    if (copy == NULL) abort();
    memcpy(copy, bytes, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static size_t fuzz_mutate(unsigned char *b, size_t n, const FuzzSeed *other) {
    static const unsigned char special[] = "\0\xff\x80{}[]\",:\\ue-+.09 \n\r'<>/\xc3\xe2\xf0\xed";
    size_t i = fuzz_below(n + 1), j = fuzz_below(n + 1), length = fuzz_below(16) + 1;
    switch (fuzz_below(8)) {
    case 0: return i;                                                          // truncate
    case 1: if (n > 0) b[i % n] ^= (unsigned char)(1u << fuzz_below(8)); return n;  // flip a bit
    case 2: if (n > 0) b[i % n] = (unsigned char)fuzz_below(256); return n;
    case 3: if (n > 0) b[i % n] = special[fuzz_below(sizeof special - 1)]; return n;
    case 4:                                                                    // delete a piece
        if (length > n - i) length = n - i;
        memmove(b + i, b + i + length, n - i - length);
        return n - length;
    case 5:                                                                    // insert a byte
        if (n >= FUZZ_MAX) return n;
        memmove(b + i + 1, b + i, n - i);
        b[i] = special[fuzz_below(sizeof special - 1)];
        return n + 1;
    case 6:                                                                    // repeat a piece
        if (length > n - i) length = n - i;
        if (length > FUZZ_MAX - n) return n;
        memmove(b + i + length, b + i, n - i);
        return n + length;
    default:                                                                   // another's end
        if (other->n == 0) return n;
        j %= other->n;
        length = other->n - j;
        if (length > FUZZ_MAX - i) length = FUZZ_MAX - i;
        memcpy(b + i, other->bytes + j, length);
        return i + length;
    }
}

#ifndef FUZZ_KINDS
#define FUZZ_KINDS {{NULL, FUZZ_SEED("")}}
#endif

const FuzzSeed *fuzz_list;  // (seen by the leak sanitizer)

// The seeds of the fuzzer, then the rows of its kinds; *count of them.
static const FuzzSeed *fuzz_seeds(size_t *count) {
    static const FuzzSeed own[] = FUZZ_SEEDS;
    static const struct { const char *kind; FuzzSeed front; } kinds[] = FUZZ_KINDS;
    size_t rows = 0, n = sizeof own / sizeof own[0];
    const Refused *row = refused_rows(&rows);
    FuzzSeed *seeds = (FuzzSeed *)malloc((n + rows) * sizeof *seeds);
    if (seeds == NULL) abort();
    memcpy(seeds, own, sizeof own);
    for (const Refused *r = row; r < row + rows; r++)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            if (kinds[k].kind == NULL || strcmp(kinds[k].kind, r->kind) != 0) continue;
            const size_t front = kinds[k].front.n;
            char *text = quoted_bytes(r->bytes, r->n), *bytes = (char *)malloc(front + r->n);
            if (bytes == NULL) abort();
            memcpy(bytes, kinds[k].front.bytes, front);
            memcpy(bytes + front, text, r->n);
            free(text);
            seeds[n].bytes = bytes;
            seeds[n++].n = front + r->n;
        }
    *count = n;
    return fuzz_list = seeds;
}

int main(int argc, char **argv) {
    static unsigned char buffer[FUZZ_MAX];
    size_t count;
    const FuzzSeed *seeds = fuzz_seeds(&count);
    long runs = argc > 1 ? atol(argv[1]) : 20000;
    for (size_t i = 0; i < count; i++) fuzz_run((const unsigned char *)seeds[i].bytes, seeds[i].n);
    for (long run = 0; run < runs; run++) {
        const FuzzSeed *seed = &seeds[fuzz_below(count)];
        size_t n = seed->n < FUZZ_MAX ? seed->n : FUZZ_MAX;
        memcpy(buffer, seed->bytes, n);
        for (size_t steps = fuzz_below(8) + 1; steps > 0; steps--)
            n = fuzz_mutate(buffer, n, &seeds[fuzz_below(count)]);
        fuzz_run(buffer, n);
    }
    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (f == NULL) { perror(argv[i]); return 1; }
        static unsigned char file[1 << 20];
        fuzz_run(file, fread(file, 1, sizeof file, f));
        fclose(f);
    }
    printf("ok %s: %zu seeds, %ld mutants\n", argv[0], count, runs);
    return 0;
}
#endif
