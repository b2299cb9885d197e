// Any bytes as a file of rates: no crash, one sentence for what is refused, and what is accepted
// comes back from what rates_write() makes of it, to three digits.
#include "../../../tide/plan/rates.h"
#include <sys/mman.h>
#include <assert.h>

static bool load(Rates *r, const void *data, size_t n, Error *err) {
    char path[64];
    const int file = memfd_create("rates", 0);
    assert(file >= 0 && write(file, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    const bool ok = rates_load(r, path, err);
    close(file);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Rates first, second;
    Error err;
    err.text[0] = '\0';
    if (!load(&first, data, n, &err)) {
        assert(err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
        return 0;
    }
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    rates_write(f, &first);
    fclose(f);
    for (int i = 0; i < RATE_FIELDS; i++)
        if (*rate_at(&first, i) > 1e308) { free(text); return 0; }  // rounded, it is infinite
    assert(load(&second, text, length, &err));
    for (int i = 0; i < RATE_FIELDS; i++)
        assert(fabs(*rate_at(&second, i) - *rate_at(&first, i)) <= 5.001e-3 * *rate_at(&first, i)
              || *rate_at(&first, i) < 1e-300);
    free(text);
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("h2d 55e9 # of the link\nd2h 5.4E10\n\ncores 1e999\n"), \
    FUZZ_SEED("h2d_busy\t0.000001") }
#define FUZZ_KINDS {{"rates", FUZZ_SEED("")}}
#include "fuzz_main.h"
