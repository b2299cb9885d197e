// Any bytes as a token file: no crash, no read beyond the end, and what is accepted can be split
// and loaded. The input is: T, flags, vocabulary (16 bits), and the file, of which (unless flag 2
// is set) only the first 12 bytes of the header are given.
#include "../../../tide/files/data.h"
#include "../dies.h"
#include <assert.h>

static void check_loader(const TokenData *d, size_t T, size_t vocab, uint64_t seed, bool shuffle) {
    int32_t inputs[256], targets[256];
    Error err;
    size_t longest = 0;
    for (size_t i = 0; i < d->count; i++)
        if (d->segments[i].count > longest) longest = d->segments[i].count;
    const Loader l = loader_make(d, T, seed, shuffle);
    assert((l.sequences > 0) == (longest > T) && (DIES(loader_check(&l)) == NULL) == (longest > T));
    for (uint64_t i = 0; i < 4 && longest > T; i++) {
        const uint64_t position = i < 2 ? i * (l.sequences - 1) : i * seed * 0x9e3779b97f4a7c15u;
        if (!loader_sequence(&l, position, vocab, inputs, targets, &err)) continue;
        for (size_t t = 0; t < T; t++) {
            assert(inputs[t] >= 0 && (size_t)inputs[t] < vocab);
            assert(targets[t] >= 0 && (size_t)targets[t] < vocab);
            assert(t == 0 || inputs[t] == targets[t - 1]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 4) return 0;
    const size_t T = data[0] > 0 ? data[0] : 1, vocab = data[2] | (size_t)data[3] << 8;
    const int flags = data[1];
    data += 4;
    n -= 4;
    const size_t start = n < 12 ? n : 12, gap = (flags & 2) || n < 12 ? 0 : BIN_HEADER - 12;
    unsigned char *file = (unsigned char *)calloc(n + gap, 1);  // calloc aligns, as mmap does
    assert(file != NULL);
    memcpy(file, data, start);
    memcpy(file + start + gap, data + start, n - start);
    TokenSegment s;
    if (DIES(s = segment_parse("fuzz", file, n + gap)) == NULL) {
        assert(s.count <= n + gap && BIN_HEADER + s.count * (size_t)s.width == n + gap);
        const TokenData all = {1, &s, s.count, false};
        const size_t cut = s.count - s.count * (size_t)flags / 255;
        const TokenData train = data_view(&all, 0, cut), val = data_view(&all, cut, s.count);
        assert(train.tokens + val.tokens == s.count);
        check_loader(&all, T, vocab, (uint64_t)flags, flags & 1);
        check_loader(&train, T, vocab, (uint64_t)flags, flags & 1);
        check_loader(&val, T, vocab, (uint64_t)flags, flags & 1);
        free(train.segments);
        free(val.segments);
    }
    free(file);
    return 0;
}

#define FUZZ_SEEDS {                                                                              \
    FUZZ_SEED("\2\1\20\0\x88\xd8\x34\1\1\0\0\0\5\0\0\0\1\0\2\0\3\0\4\0\5\0"),                     \
    FUZZ_SEED("\1\0\377\377\xa1\xd9\x34\1\7\0\0\0\3\0\0\0\1\0\0\0\2\0\0\0\377\377\0\0"),          \
    FUZZ_SEED("\2\100\20\0\x88\xd8\x34\1\1\0\0\0\11\0\0\0\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0\11\0"), \
    FUZZ_SEED("\1\2\20\0\x88\xd8\x34\1\1\0\0\0\377\377\377\377") }
#define FUZZ_KINDS {{"tokens", FUZZ_SEED("\2\1\20\0")}}
#include "fuzz_main.h"
