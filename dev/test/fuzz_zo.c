// Any text as a log of scalars: no crash, one sentence for what is refused; what is accepted has
// rising steps, and comes back from what zo_log_text() makes of it, to the bit.
#include "../../zo.h"

static void check(bool ok) { if (!ok) abort(); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *text = (char *)calloc(n + 1, 1);
    check(text != NULL);
    memcpy(text, data, n);
    for (int queries = 1; queries <= 3; queries += 2) {
        ZoLog log, again;
        Error err;
        memset(&log, 0, sizeof log);
        log.queries = queries;
        again = log;
        err.text[0] = '\0';
        if (!zo_log_parse(&log, text, &err)) {
            check(err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
            zo_log_free(&log);
            continue;
        }
        for (size_t i = 0; i < log.count; i++)
            check(log.record[i].step > (i > 0 ? log.record[i - 1].step : 0));
        char *copy = zo_log_text(&log);
        check(zo_log_parse(&again, copy, &err) && again.count == log.count
              && again.rounded == log.rounded);
        for (size_t i = 0; i < log.count; i++)
            check(memcmp(&log.record[i], &again.record[i], sizeof log.record[i]) == 0);
        const size_t bytes = log.count * (size_t)queries * sizeof(double);
        check(bytes == 0 || memcmp(log.g, again.g, bytes) == 0);
        zo_log_trim(&log);
        check(log.count == 0 || log.record[0].step > log.rounded);
        free(copy);
        zo_log_free(&log);
        zo_log_free(&again);
    }
    free(text);
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("{\"rounded\":2,\"records\":[[1,1e-6,0,-1.5],\n[3,5e-324,0.1,2.25e300]]}"), \
    FUZZ_SEED("{\"rounded\":0,\"records\":[[7,1e-6,-0,1,2,-0.125],[3999999999,0,0,0,0,0]]}"), \
    FUZZ_SEED("{\"rounded\":9007199254740991,\"records\":[],\"more\":{}}"), \
    FUZZ_SEED("[[1,2,3,4]]"), FUZZ_SEED("{\"rounded\":1e1,\"records\":[[0.5,1,1,1,1,1]]}") }
#include "fuzz_main.h"
