// tokens.h: writes token files. tide/files/data.h reads them, and describes them.
#ifndef TIDE_TOKENS_H
#define TIDE_TOKENS_H
#include "../../tide/files/data.h"

#define BIN_MAX_TOKENS 0x7fffffff  // the header counts in an int32

// Writes n tokens as a token file of `width` 2 or 4 bytes per token, replacing an older file
// when the new one is whole. At most 2^31 - 1 tokens.
static inline bool tokens_write(const char *path, const uint32_t *tokens, size_t n, int width,
                                Error *err) {
    uint16_t narrow[4096];
    const size_t chunk = sizeof narrow / sizeof narrow[0];
    int32_t header[256] = {width == 2 ? BIN_MAGIC_16 : BIN_MAGIC_32, width == 2 ? 1 : 7,
                           (int32_t)n};
    if (n == 0 || n > BIN_MAX_TOKENS)
        return error_set(err, "%s: a token file holds 1 to %d tokens, not %zu", path,
                         BIN_MAX_TOKENS, n);
    for (size_t i = 0; width == 2 && i < n; i++)
        if (tokens[i] > 0xffff)
            return error_set(err, "%s: token %u does not fit into 16 bits", path, tokens[i]);
    FILE *f = replace_open(path, err);
    if (f == NULL) return false;
    bool ok = fwrite(header, sizeof header, 1, f) == 1;
    if (width == 4) ok = ok && fwrite(tokens, 4, n, f) == n;
    for (size_t at = 0; width == 2 && ok && at < n; at += chunk) {
        const size_t m = n - at < chunk ? n - at : chunk;
        for (size_t i = 0; i < m; i++) narrow[i] = (uint16_t)tokens[at + i];
        ok = fwrite(narrow, 2, m, f) == m;
    }
    return replace_close(f, path, err);  // knows if a write failed
}

#endif
