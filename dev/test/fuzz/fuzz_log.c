// fuzz_log.c: any bytes as the log.jsonl of a run that is resumed. What is kept must be whole lines
// of steps that are not too late, and reading it again must keep all of it.
#include "../../../tide/run/log.h"
#include <assert.h>

static char *load(Log *l, const char *text, size_t n, size_t *kept) {
    char *out = NULL;
    memset(l, 0, sizeof *l);
    FILE *f = open_memstream(&out, kept);
    log_load(l, text, n, 7, f);
    assert(fclose(f) == 0);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Log first, second;
    size_t kept = 0, again = 0;
    char *a = load(&first, (const char *)data, n, &kept), *b = load(&second, a, kept, &again);
    assert(kept <= n && kept == again && memcmp(a, b, kept) == 0);
    assert(kept == 0 || a[kept - 1] == '\n');
    assert(first.train.count == second.train.count && first.val.count == second.val.count);
    for (size_t i = 0; i < first.train.count; i++) assert(first.train.points[i].x <= 7);
    free(a);
    free(b);
    free(first.train.points);
    free(first.val.points);
    free(second.train.points);
    free(second.val.points);
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("{\"step\":1,\"loss\":4.25,\"norm\":1,\"lr\":6e-4}\n{\"step\":8,\"loss\":1}\n"), \
    FUZZ_SEED("{\"step\":7,\"val_loss\":3}\n\n{}\n{\"step\":2,\"loss\":1e9}\n{\"step\":3,\"") }
#include "fuzz_main.h"
