// Any bytes as a file of labelled sentences, or of JSON lines, conversations among them: no crash,
// no read beyond the end, one sentence for what is refused, and what is accepted can be split,
// packed and made into batches. The input is: T, flags, held out share, and the file.
#include "../../../tide/files/task.h"
#include "../dies.h"
#include "../merges.h"
#include <assert.h>

static void check_batches(const Task *t, size_t T, size_t vocab, bool training) {
    enum { ROWS = 3 };
    int32_t inputs[ROWS * 256], targets[ROWS * 256], begins[ROWS * 256];
    if (t->count == 0) return;
    for (uint64_t i = 0; i < 3; i++) {
        const uint64_t position = i * (t->count - 1) * 0x9e3779b97f4a7c15u;
        size_t trained = 0;
        task_batch(t, i, training, position, ROWS, T, inputs, targets, begins);
        for (size_t b = 0; b < ROWS; b++) {
            const size_t last = (size_t)targets[2 * b];
            for (size_t k = 0; k < T; k++) {
                const size_t at = b * T + k;
                assert(inputs[at] >= 0 && (size_t)inputs[at] < vocab);
                assert((size_t)begins[at] <= k && (k == 0 || begins[at] >= begins[at - 1]));
                assert(t->labels == 0 || k <= last || inputs[at] == 0);
                if (t->labels > 0) continue;
                assert(targets[at] >= -1 && targets[at] < (int32_t)vocab);
                trained += targets[at] >= 0;
            }
            assert(t->first_token < 0 || inputs[b * T] == t->first_token);
            if (t->labels == 0) continue;
            assert(last < T && last < t->longest);
            assert(targets[2 * b + 1] >= 0 && targets[2 * b + 1] < t->labels);
            trained++;
        }
        assert(trained >= ROWS && (!training || trained == task_targets(t, i, position, ROWS, T)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static Tokenizer *tok[2];
    static const char merges[] = "\xc4\xa0 g\no o\n\xc4\xa0g oo\n\xc4\xa0goo d\n";
    if (tok[0] == NULL) {
        tok[0] = tokenizer_bytes();
        tok[1] = tokenizer_of_merges(merges);  // which has a token that ends a text
    }
    if (n < 3) return 0;
    const size_t T = (size_t)data[0] + 1, vocab = data[1] & 4 ? 128 : 300;
    const int flags = data[1];
    const double held_out = (double)data[2] / 255;
    char *file = (char *)malloc(n - 2);  // of exactly this size
    assert(file != NULL);
    memcpy(file, data + 3, n - 3);
    file[n - 3] = '\0';
    Task all, train, val;
    const char *labels = flags & 8 ? "-|+|0" : "-|+";
    if (flags & 32) labels = flags & 64 ? NULL : "no|+";
    TaskReader r = {labels, flags & 16 ? "" : " It", tok[flags & 1], vocab,
                    flags & 128 ? CHAT_MISTRAL : CHAT_LLAMA2, flags & 4,
                    {.first_token = flags & 2 ? 2 : -1}};
    if (DIES(all = task_parse(&r, "fuzz", file)) == NULL) {
        assert(all.count > 0 && all.first[0] == 0 && all.example[all.count] == all.pieces);
        assert(all.labels == (flags & 32 ? 0 : 2 + (flags & 8) / 8));
        for (size_t k = 0; k < all.pieces; k++) assert(all.first[k + 1] >= all.first[k]);
        for (size_t i = 0; i < all.count; i++)
            assert(cut_inputs(task_cut(&all, i, (size_t)all.label[i], SIZE_MAX - 1)) <= all.longest);
        const size_t cut = all.count - (size_t)((double)all.count * held_out);
        train = task_view(&all, 0, cut);
        val = task_view(&all, cut, all.count);
        assert(train.count + val.count == all.count);
        if (T > 1) {
            size_t trained = 0;
            check_batches(&all, T, vocab, false);
            for (int packs = 0; packs < (all.labels == 0 ? 2 : 1); packs++) {
                Task rows = train, held = val;
                task_pack(&rows, T, packs);
                task_pack(&held, T, packs);
                check_batches(&rows, T, vocab, true);
                check_batches(&held, T, vocab, true);
                const size_t targets = task_targets(&rows, 1, 0, rows.rows, T);
                assert(packs == 0 || targets == trained);
                trained = targets;
                free(rows.row);
                free(rows.packed);
                free(held.row);
                free(held.packed);
            }
        }
        free(all.first);
        free(all.example);
        free(all.label);
        free(all.tokens);
    }
    free(file);
    return 0;
}

#define FUZZ_SEEDS {                                                                           \
    FUZZ_SEED("\7\1\100sentence\tlabel\na good one \t1\nnot so\t0\n"),                         \
    FUZZ_SEED("\7\140\100{\"prompt\":\"good\",\"completion\":\" one\"}\n{\"text\":\"a b\"}"),  \
    FUZZ_SEED("\11\143\1{\"prompt\":\"a\",\"choices\":[\" b\",\"good\"],\"answer\":1}\n"),     \
    FUZZ_SEED("\17\40\20not so\t1\na good one\t0\n"),                                          \
    FUZZ_SEED("\37\141\40{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"      \
              "\"assistant\",\"content\":\" good\"},{\"role\":\"user\",\"content\":\"so\"},{\"role\":"\
              "\"assistant\",\"content\":\"b\"}]}\n{\"text\":\"a b\"}"),                       \
    FUZZ_SEED("\77\341\0{\"messages\":[{\"role\":\"system\",\"content\":\"x\"},{\"role\":\"user\","\
              "\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"good\"}]}"),            \
    FUZZ_SEED("\1\12\377x\t2\n \t0\n"), FUZZ_SEED("\1\27\200\xc3\xa9 good\t1\ny\t01\n") }
#define FUZZ_KINDS {{"tsv", FUZZ_SEED("\7\1\100")}, {"jsonl", FUZZ_SEED("\7\140\100")}}
#include "fuzz_main.h"
