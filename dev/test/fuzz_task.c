// Any bytes as a file of labelled sentences: no crash, no read beyond the end, one sentence for
// what is refused, and what is accepted can be split and made into batches. The input is: T, flags,
// held out share, and the file.
#include "../../tide/task.h"
#include "dies.h"

static void check(bool ok) { if (!ok) abort(); }

static void check_batches(const Task *t, size_t T, size_t vocab, bool shuffle) {
    enum { ROWS = 3 };
    int32_t inputs[ROWS * 256], where[ROWS * 2];
    if (t->count == 0) return;
    for (uint64_t i = 0; i < 3; i++) {
        task_batch(t, i, shuffle, i * (t->count - 1) * 0x9e3779b97f4a7c15u, ROWS, T, inputs, where);
        for (size_t b = 0; b < ROWS; b++) {
            const size_t last = (size_t)where[2 * b];
            check(last < T && last < t->longest);
            check(where[2 * b + 1] >= 0 && where[2 * b + 1] < t->labels);
            check(t->first_token < 0 || inputs[b * T] == t->first_token);
            for (size_t k = 0; k < T; k++) {
                check(inputs[b * T + k] >= 0 && (size_t)inputs[b * T + k] < vocab);
                check(k <= last || inputs[b * T + k] == 0);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static Tokenizer *tok[2];
    static const char merges[] = "\xc4\xa0 g\no o\n\xc4\xa0g oo\n\xc4\xa0goo d\n";
    if (tok[0] == NULL) {
        tok[0] = tokenizer_bytes();
        tok[1] = tokenizer_parse("fuzz", NULL, merges);
    }
    if (n < 3) return 0;
    const size_t T = (size_t)data[0] + 1, vocab = data[1] & 4 ? 128 : 300;
    const int flags = data[1];
    const double held_out = (double)data[2] / 255;
    char *file = (char *)malloc(n - 2);  // of exactly this size
    check(file != NULL);
    memcpy(file, data + 3, n - 3);
    file[n - 3] = '\0';
    Task all, train, val;
    if (DIES(all = task_parse("fuzz", file, flags & 8 ? "-|+|0" : "-|+", flags & 16 ? "" : " It",
                              tok[flags & 1], flags & 2 ? 2 : -1, vocab)) == NULL) {
        check(all.count > 0 && all.first[0] == 0 && all.labels == 2 + (flags & 8) / 8);
        for (size_t i = 0; i < all.count; i++) {
            const size_t length = all.first[i + 1] - all.first[i];
            check(length > 0 && length <= all.longest);
        }
        task_split(&all, held_out, &train, &val);
        check(train.count + val.count == all.count);
        check_batches(&all, T, vocab, false);
        check_batches(&train, T, vocab, true);
        check_batches(&val, T, vocab, true);
        free(all.first);
        free(all.label);
        free(all.tokens);
    }
    free(file);
    return 0;
}

#define FUZZ_SEEDS {                                                                       \
    FUZZ_SEED("\7\1\100sentence\tlabel\na good one \t1\nnot so\t0\n"),                      \
    FUZZ_SEED("\50\2\0a\t0\r\nb\t1\r\nlong and good, good\t1"),                             \
    FUZZ_SEED("\1\12\377x\t2\n \t0\n"), FUZZ_SEED("\1\27\200\xc3\xa9 good\t1\ny\t01\n") }
#include "fuzz_main.h"
