// Any bytes as a safetensors file, config.json or state.txt: no crash, no read outside, and what
// is accepted is consistent. The first byte chooses: 0 a file as it is, 1 a config.json, 2 a
// state.txt, also under a seal that fits, and behind numbers that are there; else a header with its
// length before it and data after it.
#include "../../../tide/files/state.h"
#include "../dies.h"
#include <assert.h>

static void use(const uint8_t *bytes, size_t n) {
    SafeTensors st = {0};
    Error err;
    err.text[0] = '\0';
    const bool ok = safetensors_parse(&st, bytes, n, &err);
    uint64_t header = 0, total = 8;
    unsigned sum = 0;
    if (ok) memcpy(&header, bytes, 8);
    for (int i = 0; ok && i < st.count; i++) {
        const SafeTensor *t = &st.tensors[i];
        assert(strcmp(safetensors_find(&st, t->name)->name, t->name) == 0);
        assert(t->data >= bytes && t->data + t->bytes <= bytes + n);
        for (size_t j = 0; j < t->bytes; j++) sum += t->data[j];
        float f = 0;
        if (t->dtype <= ST_F64 && t->elements > 0) {
            safetensor_floats(t, 0, 1, &f);
            safetensor_floats(t, t->elements - 1, 1, &f);
        }
        total += t->bytes;
    }
    assert(ok ? header + total == n && sum < UINT_MAX : err.text[0] != '\0');
    safetensors_close(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum { DATA = 40 };
    Error err;
    GPT2Config c;
    if (n == 0) return 0;
    const uint8_t kind = *data++;
    n--;
    if (kind == 0) {
        use(data, n);
    } else if (kind == 1) {
        Json *root = json_parse((const char *)data, n, &err);
        if (root != NULL && DIES(config_read(root, "config.json", &c)) == NULL)
            assert(c.layers > 0 && c.ffn > 0 && c.vocab_padded >= c.vocab
                  && (c.head_size > 0 || c.channels % c.heads == 0));
        free(root);
    } else if (kind == 2) {
        for (int how = 0; how < 3; how++) {
            TrainState s;
            char *text = NULL;
            size_t length = 0;
            FILE *f = open_memstream(&text, &length);
            for (int i = 0; how == 2 && i < STATE_FIELDS; i++)  // a character is a number: '1', 1
                fprintf(f, "%s %d\n", state_fields[i].name, (size_t)i < n ? data[i] - '0' : 0);
            fwrite(data, 1, n, f);
            fflush(f);
            if (how > 0) seal_print(f, text, length);
            fclose(f);
            if (state_parse(text, length, &s, &err))
                assert(s.config.layers > 0 && memchr(s.options, '\0', sizeof s.options) != NULL);
            free(s.text);
        }
    } else {
        uint8_t *file = (uint8_t *)calloc(8 + n + DATA, 1);
        assert(file != NULL);
        memcpy(file, &n, 8);
        memcpy(file + 8, data, n);
        use(file, 8 + n + kind % (DATA + 1));
        free(file);
    }
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("\0" "\2\0\0\0\0\0\0\0{}"), \
    FUZZ_SEED("\0" "\74\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1,2]," \
              "\"data_offsets\":[0,8]}}    " "\0\0\200?\0\0\300\177"), \
    FUZZ_SEED("\30{\"x\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]}," \
              "\"__metadata__\":{\"format\":\"pt\"},\"y\":{\"dtype\":\"F16\",\"shape\":[2]," \
              "\"data_offsets\":[0,4]},\"z\":{\"dtype\":\"F64\",\"shape\":[]," \
              "\"data_offsets\":[16,24]}}"), \
    FUZZ_SEED("\4{\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}," \
              "\"b\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]}}"), \
    FUZZ_SEED("\1{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8," \
              "\"n_positions\":4,\"vocab_size\":9,\"n_inner\":null," \
              "\"layer_norm_epsilon\":1e-05}"), \
    FUZZ_SEED("\2:300012437500100000000000000000000000000\nhashes 01\noptimizer a\n--lr 1\n") }
#define FUZZ_KINDS {{"safetensors", FUZZ_SEED("\0")}, {"config", FUZZ_SEED("\1")}, \
    {"json", FUZZ_SEED("\1")}, {"header", FUZZ_SEED("\4")}}
#include "fuzz_main.h"
