// Any text as the state of importance-aware updates: no crash, one sentence for what is refused;
// of what is accepted every column is there once, the next step can be made, and it comes back from
// what zen_text() makes of it.
#include "../../tide/zen_run.h"

static void check(bool ok) { if (!ok) abort(); }

// A model of 52 columns in 16 tensors.
static const GPT2Table *tiny(void) {
    static GPT2Table table;
    GPT2Config c = {.layers = 1, .heads = 1, .channels = 3, .ffn = 2, .context = 1, .vocab = 2,
                    .tied = 1};
    Error err;
    if (table.count == 0 && gpt2_finish(&c, &err)) table = gpt2_table(&c);
    return &table;
}

static void check_map(const ZenMap *map) {
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        bool seen[16] = {false};
        for (size_t j = 0; j < z->cols; j++) {
            const int32_t column = map->column[z->column_at + j];
            check(column >= 0 && (size_t)column < z->cols && !seen[column]);
            seen[column] = true;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *text = (char *)calloc(n + 1, 1);
    check(text != NULL);
    memcpy(text, data, n);
    for (int k = 0; k < 4; k++) {
        const ZenConfig c = {k == 3 ? 1 : 0.5, k == 1 ? 0 : 3, 2, 2, k == 2 ? 2 : ZEN_WINDOW, 0};
        ZenMap map, again;
        ZenClock clock, then;
        Error err;
        err.text[0] = '\0';
        if (!zen_parse(text, tiny(), 1, &c, &map, &clock, &err)) {
            check(err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
            check(map.tensor == NULL && map.column == NULL && clock.scores == NULL);
            continue;
        }
        check_map(&map);
        char *first = zen_text(&c, &map, &clock);
        check(zen_parse(first, tiny(), 1, &c, &again, &then, &err));
        char *second = zen_text(&c, &again, &then);
        check(strcmp(first, second) == 0);

        ZenSum *sums = (ZenSum *)alloc_or_fail(map.columns, sizeof *sums, "sums");
        ZenSwap swaps[16];
        for (size_t j = 0; j < map.columns; j++) sums[j].squares = sums[j].magnitudes = 1e-3;
        const ZenTurn turn = zen_turn(&c, &map, &clock, sums);
        for (int i = 0; i < map.count; i++)
            zen_swap(&map, i, swaps, zen_select(&map, i, clock.scores + map.tensor[i].column_at,
                                                swaps));
        zen_turn_end(&c, &clock, &turn);
        check_map(&map);
        free(sums);
        free(first);
        free(second);
        zen_map_free(&map);
        zen_map_free(&again);
        zen_clock_free(&clock);
        zen_clock_free(&then);
    }
    free(text);
    return 0;
}

#define ZEN_COUNTS "{\"zenflow\":{\"whole\":0,\"warm\":2,\"chosen_t\":9,\"rest_t\":5,\"filled\":"
#define ZEN_LISTS "\"selections\":1,\n\"columns\":[[0,2],\n[1,2],\n[2,1],\n[2,0],\n[0,1],\n[1]]"
#define ZEN_DIGITS "3ff8000000000000400123456789abcd00000000000000007fefffffffffffff"
#define ZEN_FOUR ZEN_DIGITS ZEN_DIGITS ZEN_DIGITS ZEN_DIGITS
#define ZEN_SCORES ",\n\"scores\":\"" ZEN_FOUR ZEN_FOUR ZEN_FOUR ZEN_DIGITS "\""
#define FUZZ_SEEDS { \
    FUZZ_SEED(ZEN_COUNTS "0,\"late\":1,\"windows\":0," ZEN_LISTS "}}"), \
    FUZZ_SEED(ZEN_COUNTS "2,\"late\":0,\"windows\":1," ZEN_LISTS ZEN_SCORES "}}"), \
    FUZZ_SEED(ZEN_COUNTS "1,\"late\":1,\"windows\":1," ZEN_LISTS ZEN_SCORES \
              ",\n\"chosen_mean\":\"" ZEN_FOUR "\",\n\"rest_mean\":\"" ZEN_FOUR "\"}}"), \
    FUZZ_SEED("{\"zenflow\":{\"whole\":1,\"warm\":0,\"chosen_t\":9007199254740991,\"rest_t\":0," \
              "\"filled\":0,\"late\":0,\"windows\":0,\"selections\":0,\"columns\":" \
              "[[0,1],[1,0]]}}"), \
    FUZZ_SEED("{\"zenflow\":{\"whole\":0,\"warm\":2,\"chosen_t\":1,\"rest_t\":1,\"filled\":2," \
              "\"late\":1,\"windows\":7,\"selections\":0,\"columns\":[]}}") }
#include "fuzz_main.h"
