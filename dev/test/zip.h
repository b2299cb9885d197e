// zip.h: small archives for tests, of entries that are merely stored, and pickles as torch.save()
// puts them there.
//     Archive a = {0};
//     archive_pickle(&a, pickle, n, bytes, zip64); archive_end(&a, zip64);
#ifndef TIDE_ZIP_H
#define TIDE_ZIP_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { ARCHIVE_MAX = 1 << 14 };
typedef struct {
    unsigned char file[ARCHIVE_MAX], directory[ARCHIVE_MAX / 4];
    size_t n, directory_n, entries;
} Archive;

static void archive_number(unsigned char *to, size_t *at, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) to[(*at)++] = i < 8 ? (unsigned char)(x >> 8 * i) : 0;
}

static void archive_bytes(unsigned char *to, size_t *at, const void *bytes, size_t n) {
    memcpy(to + *at, bytes, n);
    *at += n;
}

// What a header of either kind says of an entry from its version on. wide: the size is elsewhere.
static void archive_header(unsigned char *to, size_t *at, const char *kind, const char *name,
                           size_t n, bool wide) {
    archive_bytes(to, at, kind, 4);
    if (kind[2] == 1) archive_number(to, at, 45, 2);
    archive_number(to, at, 45, 2);
    archive_number(to, at, 0, 12);  // flags, stored, time, checksum
    archive_number(to, at, wide ? UINT32_MAX : n, 4);
    archive_number(to, at, wide ? UINT32_MAX : n, 4);
    archive_number(to, at, strlen(name), 2);
}

static void archive_add(Archive *a, const char *name, const void *bytes, size_t n, bool wide) {
    const size_t begin = a->n;
    archive_header(a->file, &a->n, "PK\3\4", name, n, false);
    archive_number(a->file, &a->n, 0, 2);
    archive_bytes(a->file, &a->n, name, strlen(name));
    archive_bytes(a->file, &a->n, bytes, n);
    archive_header(a->directory, &a->directory_n, "PK\1\2", name, n, wide);
    archive_number(a->directory, &a->directory_n, wide ? 28 : 0, 2);
    archive_number(a->directory, &a->directory_n, 0, 10);  // comment, disk, attributes
    archive_number(a->directory, &a->directory_n, wide ? UINT32_MAX : begin, 4);
    archive_bytes(a->directory, &a->directory_n, name, strlen(name));
    if (wide) {
        archive_number(a->directory, &a->directory_n, 24 << 16 | 1, 4);
        archive_number(a->directory, &a->directory_n, n, 8);
        archive_number(a->directory, &a->directory_n, n, 8);
        archive_number(a->directory, &a->directory_n, begin, 8);
    }
    a->entries++;
}

static void archive_end(Archive *a, bool wide) {
    const size_t begin = a->n;
    archive_bytes(a->file, &a->n, a->directory, a->directory_n);
    const size_t end = a->n;
    if (wide) {
        archive_bytes(a->file, &a->n, "PK\6\6", 4);
        archive_number(a->file, &a->n, 44, 8);
        archive_number(a->file, &a->n, 0, 12);
        archive_number(a->file, &a->n, a->entries, 8);
        archive_number(a->file, &a->n, a->entries, 8);
        archive_number(a->file, &a->n, a->directory_n, 8);
        archive_number(a->file, &a->n, begin, 8);
        archive_bytes(a->file, &a->n, "PK\6\7", 4);
        archive_number(a->file, &a->n, 0, 4);
        archive_number(a->file, &a->n, end, 8);
        archive_number(a->file, &a->n, 1, 4);
    }
    archive_bytes(a->file, &a->n, "PK\5\6", 4);
    archive_number(a->file, &a->n, 0, 4);
    archive_number(a->file, &a->n, wide ? UINT16_MAX : a->entries, 2);
    archive_number(a->file, &a->n, wide ? UINT16_MAX : a->entries, 2);
    archive_number(a->file, &a->n, wide ? UINT32_MAX : a->directory_n, 4);
    archive_number(a->file, &a->n, wide ? UINT32_MAX : begin, 4);
    archive_number(a->file, &a->n, 0, 2);
}

// Adds a pickle, and its storage "0" of 16 bytes.
static void archive_pickle(Archive *a, const void *pickle, size_t n, const void *storage,
                           bool wide) {
    memset(a, 0, sizeof *a);
    archive_add(a, "x/data.pkl", pickle, n, wide);
    archive_add(a, "x/data/0", storage, 16, wide);
}

// A storage of so many elements (a character), and a tensor of it.
#define STORAGE_(type, key, n) \
    "(X\7\0\0\0storagectorch\n" type "Storage\nX\1\0\0\0" key "X\3\0\0\0cpuK" n "tQ"
#define TENSOR_(storage, rest) "ctorch._utils\n_rebuild_tensor_v2\n(" storage rest \
    "\211ccollections\nOrderedDict\n)RtR"
#endif
