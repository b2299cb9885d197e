// Any bytes as a file of torch.save(): no crash, no read outside, and every tensor that is accepted
// lies within the file. The first byte chooses: 0 a file as it is; else the pickle of a whole
// archive, with 1 or 2: of zip or zip64, which has 16 bytes of data/0 and none of data/1.
#define TESTING
#include "../../data/unpickle.c"
#include "../zip.h"
#include <assert.h>

static void use(const uint8_t *bytes, size_t n) {
    Tensors list = {NULL, 0};
    Error err;
    unsigned sum = 0;
    err.text[0] = '\0';
    if (!unpickle(bytes, n, &list, &err)) assert(err.text[0] != '\0');
    for (size_t i = 0; i < list.count; i++) {
        const SafeTensor *t = &list.tensors[i].st;
        const size_t size = st_dtypes[t->dtype].size;
        unsigned char part[8 * 8];
        assert(t->bytes == t->elements * size && t->name[0] != '\0');
        assert(t->bytes == 0 || !list.tensors[i].in_order
              || (t->data >= bytes && t->data + t->bytes <= bytes + n));
        for (size_t at = 0, m; at < t->elements; at += m) {
            m = min_size(8, t->elements - at);
            tensor_read(&list.tensors[i], at, m, part);
            for (size_t j = 0; j < m * size; j++) sum += part[j];
            if (at == 8) at = t->elements - m - min_size(8, t->elements - at - m);  // and the end
        }
    }
    assert(sum < UINT_MAX);
    tensors_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static Archive a;
    if (n == 0 || n > 8192) return 0;
    if (data[0] == 0) {
        use(data + 1, n - 1);
        return 0;
    }
    const bool wide = data[0] == 2;
    archive_pickle(&a, data + 1, n - 1, "0123456789abcdef", wide);
    archive_add(&a, "x/data/1", "", 0, wide);
    archive_end(&a, wide);
    uint8_t *copy = (uint8_t *)malloc(a.n);  // exactly as long, for the address sanitizer
    assert(copy != NULL);
    memcpy(copy, a.file, a.n);
    use(copy, a.n);
    free(copy);
    return 0;
}

#define FUZZ_SEEDS { \
    FUZZ_SEED("\1\200\2}."), \
    FUZZ_SEED("\1\200\2}q\1(X\1\0\0\0aq\2" \
              TENSOR_(STORAGE_("Float", "0", "\4"), "K\0K\2K\2\206K\2K\1\206") "u."), \
    FUZZ_SEED("\2\200\2ccollections\nOrderedDict\n)Rq\0(X\1\0\0\0b" \
              TENSOR_(STORAGE_("Half", "0", "\10"), "M\4\0K\3\205K\1\205") "q\5X\1\0\0\0ch\5" \
              "X\1\0\0\0dctorch._utils\n_rebuild_parameter\nh\5\210N\207Ru" \
              "}X\11\0\0\0_metadataccollections\nOrderedDict\n)Rsb."), \
    FUZZ_SEED("\2\200\2}X\1\0\0\0e" \
              TENSOR_(STORAGE_("Long", "1", "\0"), "J\0\0\0\0\212\1\0K\5\206K\5K\1\206") "s."), \
    FUZZ_SEED("\1\200\2}X\1\0\0\0fctorch._utils\n_rebuild_tensor_v2\n(" \
              STORAGE_("Float", "0", "\4") "K\1M\1\2K\2K\2\207K\0K\2K\1\207" \
              "\211ccollections\nOrderedDict\n)R}X\3\0\0\0neg\210stRs."), \
    FUZZ_SEED("\1\200\2cos\nsystem\nX\4\0\0\0true\205R."), \
    FUZZ_SEED("\0PK\3\4-\0\0\0\0\0\0\0\0\0\0\0\0\0\4\0\0\0\4\0\0\0\12\0\0\0x/data.pkl\200\2}." \
              "PK\1\2-\0-\0\0\0\0\0\0\0\0\0\0\0\0\0\4\0\0\0\4\0\0\0\12\0\0\0\0\0\0\0\0\0\0\0\0\0" \
              "\0\0\0\0x/data.pklPK\5\6\0\0\0\0\1\0\1\0\70\0\0\0\54\0\0\0\0\0") }
#define FUZZ_KINDS {{"no rows", FUZZ_SEED("")}}
#include "fuzz_main.h"
