// safetensors.h: the file format of weights, training state and reference dumps.
//
//   safetensors_open, safetensors_parse, safetensors_close  open a file; one in memory; close
//   safetensors_find, safetensor_floats                 find a tensor; read its elements as fp32
//   safetensor_release                                  frees the pages of a tensor already read
//   safewriter_add, _open, _put, _close                 write a file, also from several ranks
//
// A file has three parts: the header's length (8 bytes, little-endian); the header, JSON with the
// dtype, the shape and the byte range of each tensor; the bytes of all tensors, without gaps.
// Specification: https://github.com/huggingface/safetensors, "Format".
#ifndef TIDE_SAFETENSORS_H
#define TIDE_SAFETENSORS_H
#include "../base/bf16.h"
#include "json.h"

enum { ST_F32, ST_F16, ST_BF16, ST_F64, ST_I32, ST_I64, ST_DTYPES = 16 };
enum { ST_MAX_RANK = 8, ST_MAX_HEADER = 100000000 };

// A file may also have types for which there is no ST_ name. Their elements are never read.
static const struct { const char *name; size_t size; } st_dtypes[ST_DTYPES] = {
    {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I32", 4}, {"I64", 8}, {"U8", 1}, {"BOOL", 1},
    {"I8", 1}, {"I16", 2}, {"U16", 2}, {"U32", 4}, {"U64", 8}, {"C64", 8}, {"F8_E4M3", 1},
    {"F8_E5M2", 1},
};

// ---------------------------------------------------------------------------------------------
// Reading

typedef struct {
    char *name;
    int dtype;                  // ST_*
    int rank;
    size_t shape[ST_MAX_RANK];
    size_t elements, bytes;
    const unsigned char *data;  // in the mapped file, at any alignment
    bool seen;  // a reader has used this tensor; a model with an unused one is refused
    size_t place;               // its first byte, behind the header (SafeWriter)
} SafeTensor;

typedef struct {
    int count;
    SafeTensor *tensors;  // in the order of their bytes in the file
    Json *header;
    void *map;
    size_t map_bytes;
} SafeTensors;

// Writes a shape as "(3, 4)", or "()" for a scalar. Returns out.
static char *shape_text(char out[200], int rank, const size_t *shape) {
    size_t n = (size_t)snprintf(out, 200, "(");
    for (int i = 0; i < rank; i++)
        n += (size_t)snprintf(out + n, 200 - n, i == 0 ? "%zu" : ", %zu", shape[i]);
    snprintf(out + n, 200 - n, ")");
    return out;
}

static int st_compare_data(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);  // empty tensors first
}

// Reads one entry of the header into *ten. The bytes of all tensors begin at `data`.
static bool st_tensor(SafeTensor *ten, const Json *entry, const unsigned char *data, Error *err) {
    const Json *dtype = json_get(entry, "dtype"), *shape = json_get(entry, "shape");
    const Json *offsets = json_get(entry, "data_offsets");
    size_t begin = 0, end = 0;
    bool ok = dtype != NULL && dtype->type == JSON_STRING && shape != NULL
        && shape->type == JSON_ARRAY && shape->count <= ST_MAX_RANK && offsets != NULL
        && offsets->type == JSON_ARRAY && offsets->count == 2 && json_size(offsets->child, &begin)
        && json_size(offsets->child->next, &end) && begin <= end;
    *ten = (SafeTensor){.name = (char *)entry->key, .elements = 1, .data = data + begin};
    while (ok && ten->dtype < ST_DTYPES && strcmp(st_dtypes[ten->dtype].name, dtype->string) != 0)
        ten->dtype++;
    if (ok && ten->dtype == ST_DTYPES)
        return error_set(err, "tensor %.100s has the unknown dtype %.40s", entry->key,
                         dtype->string);
    for (size_t i = 0; i < entry->key_length; i++)  // a name is printed as it is
        ok = ok && (unsigned char)entry->key[i] >= 32 && entry->key[i] != 127;
    for (const Json *value = ok ? shape->child : NULL; value != NULL; value = value->next)
        ok = ok && json_size(value, &ten->shape[ten->rank++])
            && !__builtin_mul_overflow(ten->elements, ten->shape[ten->rank - 1], &ten->elements);
    return (ok && !__builtin_mul_overflow(ten->elements, st_dtypes[ten->dtype].size, &ten->bytes)
            && ten->bytes == end - begin)
        || error_set(err, "tensor %.100s needs a dtype, a shape of at most %d dimensions, and "
                     "data_offsets that fit both", ten->name, ST_MAX_RANK);
}

static void safetensors_close(SafeTensors *st) {
    if (st->map != NULL) munmap(st->map, st->map_bytes);
    free(st->tensors);
    free(st->header);
    memset(st, 0, sizeof *st);
}

// Frees the pages of a mapped tensor that has been copied. Else they would count as this process's
// memory until the file is closed. A later access reads them from the file again.
static void safetensor_release(const SafeTensor *ten) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)ten->data;
    const uintptr_t first = (start + page - 1) / page * page;
    const uintptr_t last = (start + ten->bytes) / page * page;
    if (last > first) madvise((void *)first, last - first, MADV_DONTNEED);
}

// Parses a file of n bytes in memory. Checks the header's length, every dtype, shape and offset,
// and that the tensors fill the data without gap or overlap. *st is zero before. `bytes` must stay
// until safetensors_close(), which is called even after an error.
static bool safetensors_parse(SafeTensors *st, const void *bytes, size_t n, Error *err) {
    uint64_t length = 0;
    if (n >= 8) memcpy(&length, bytes, 8);
    const char *kind = file_kind(bytes, n), *first = (const char *)bytes + 8;
    if (n > 8 && *first != '{' && kind != NULL) return error_set(err, "%s", kind);
    if (n < 9 || length == 0 || length > ST_MAX_HEADER || length > n - 8 || *first != '{')
        return error_set(err, "not a safetensors file, or cut short: %zu bytes", n);
    const unsigned char *data = (const unsigned char *)bytes + 8 + length, *at = data;
    const size_t size = n - 8 - (size_t)length;
    st->header = json_parse((const char *)bytes + 8, (size_t)length, err);
    if (st->header == NULL) return false;
    st->tensors = ALLOC(SafeTensor, st->header->count, "tensors");
    for (const Json *entry = st->header->child; entry != NULL; entry = entry->next)
        if (strcmp(entry->key, "__metadata__") != 0
            && !st_tensor(&st->tensors[st->count++], entry, data, err)) return false;
    qsort(st->tensors, (size_t)st->count, sizeof(SafeTensor), st_compare_data);
    for (int i = 0; i < st->count; at += st->tensors[i++].bytes)
        if (st->tensors[i].data != at)
            return error_set(err, "the tensors do not fill their bytes without gap and overlap");
    return at == data + size || error_set(err, "cut short, or too long: %zu bytes, the header "
                                          "describes %zu", n, n - size + (size_t)(at - data));
}

// Maps a file into memory and parses it.
static bool safetensors_open(SafeTensors *st, const char *path, Error *err) {
    Error why;
    memset(st, 0, sizeof *st);
    st->map = file_open_map(path, &st->map_bytes, err);
    if (st->map == NULL) return false;
    return safetensors_parse(st, st->map, st->map_bytes, &why)
        || error_set(err, "%.200s: %.300s", path, why.text);
}

// Returns the tensor with this name, or NULL.
static SafeTensor *safetensors_find(const SafeTensors *st, const char *name) {
    for (int i = 0; i < st->count; i++)
        if (strcmp(name, st->tensors[i].name) == 0) return &st->tensors[i];
    return NULL;
}

// Copies elements [first, first + n) of a tensor of floats, of any width, to out as fp32.
static void safetensor_floats(const SafeTensor *ten, size_t first, size_t n, float *out) {
    const size_t size = st_dtypes[ten->dtype].size;
    const unsigned char *p = ten->data + first * size;
    uint16_t half;
    double wide;
    if (ten->dtype == ST_F32) memcpy(out, p, n * size);
    for (size_t i = 0; ten->dtype != ST_F32 && i < n; i++, p += size) {
        if (ten->dtype == ST_F64) {
            memcpy(&wide, p, 8);
            out[i] = (float)wide;
        } else {
            memcpy(&half, p, 2);
            out[i] = ten->dtype == ST_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Writing
//
// To write a file: zero a SafeWriter, declare all tensors in file order, open, put their bytes in
// any order, and close, even after an error. The writer keeps its first error and then writes
// nothing; close returns the error. An older file is replaced when the new one is whole
// (replace_open()).
//
// Several processes can write one file. Each sets `writer` and declares the same tensors. Writer 0
// opens first, adds up the sums of all writers, and closes when the others have flushed.

typedef struct {
    int writer;  // the number of this process among the writers; writer 0 makes the file
    int count;
    SafeTensor *tensors;      // only dtype and place are set
    size_t total;             // bytes of all tensors
    char *header;             // the start of the file: its length, and the header, padded to 8
    size_t length;            // bytes of it
    FILE *text;               // writes it
    FILE *file;
    const char *path;         // its name, which the caller stores
    uint64_t *sums;           // hash_words() of each tensor's bytes; tensor 0's has the header
    bool failed;
    Error err;                // the first error
} SafeWriter;

static void safewriter_fail(SafeWriter *w) {
    if (!w->failed) error_set(&w->err, "cannot write %.400s: %s", w->path, strerror(errno));
    w->failed = true;
}

static void safewriter_add(SafeWriter *w, const char *name, int dtype, int rank,
                           const size_t *shape) {
    size_t bytes = st_dtypes[dtype].size;
    w->tensors = (SafeTensor *)array_grow(w->tensors, (size_t)w->count, sizeof(SafeTensor),
                                          "list of tensors");
    if (w->count == 0) {
        w->text = text_open(&w->header, &w->length);
        fprintf(w->text, "12345678{\"__metadata__\":{\"format\":\"pt\"}");
    }
    fputs(",\n", w->text);
    json_write_string(w->text, name, strlen(name));
    fprintf(w->text, ":{\"dtype\":\"%s\",\"shape\":[", st_dtypes[dtype].name);
    for (int i = 0; i < rank; i++) {
        fprintf(w->text, i == 0 ? "%zu" : ",%zu", shape[i]);
        bytes *= shape[i];
    }
    fprintf(w->text, "],\"data_offsets\":[%zu,%zu]}", w->total, w->total + bytes);
    w->tensors[w->count++] = (SafeTensor){.dtype = dtype, .place = w->total};
    w->total += bytes;
}

// Writes n bytes of tensor i from its byte `first` on. n is a multiple of 8, or ends the tensor.
static void safewriter_put(SafeWriter *w, int i, size_t first, const void *bytes, size_t n) {
    const size_t place = w->length + w->tensors[i].place + first;
    w->sums[i] += hash_words(place, bytes, n);
    for (size_t done = 0; done < n && !w->failed;) {
        const ssize_t now = pwrite(fileno(w->file), (const char *)bytes + done, n - done,
                                   (off_t)(place + done));
        if (now > 0) done += (size_t)now;
        else if (now == 0 || errno != EINTR) safewriter_fail(w);
    }
}

// Creates the file and writes the header, on writer 0. Other writers open the file, and for writing
// only: if it could be read, a client of NFS might read a page, change a few bytes, and write the
// page back over the bytes of other writers.
static void safewriter_open(SafeWriter *w, const char *path) {
    char temporary[PATH_MAX];
    w->path = path;
    w->sums = ALLOC(uint64_t, (size_t)w->count, "sums of a file");
    fputc('}', w->text);
    while (ftell(w->text) % 8 != 0) fputc(' ', w->text);
    text_close(w->text);
    const uint64_t announced = w->length - 8;
    memcpy(w->header, &announced, 8);
    if (w->writer == 0) {
        w->file = replace_open(path, &w->err);
        w->failed = w->file == NULL;
        // Gives the file its full size now: a client of NFS fills pages after its end with zeros.
        if (!w->failed && ftruncate(fileno(w->file), (off_t)(w->length + w->total)) != 0)
            safewriter_fail(w);
        if (!w->failed) fwrite(w->header, 1, w->length, w->file);  // replace_close() checks it
        w->sums[0] = hash_words(0, w->header, w->length);
    } else {
        replace_name(temporary, path);
        const int fd = open(temporary, O_WRONLY | O_CLOEXEC);
        w->file = fd >= 0 ? fdopen(fd, "wb") : NULL;
        if (w->file == NULL) safewriter_fail(w);
    }
}

// Closes the file, and frees the writer. Writer 0 also sends the file to the disk, and renames it.
// Returns false, with the first error in err, if any call since safewriter_open() failed: then an
// older file is unchanged.
static bool safewriter_close(SafeWriter *w, Error *err) {
    if (w->writer > 0 && w->file != NULL) fclose(w->file);
    else if (w->file != NULL)
        w->failed = !replace_close(w->file, w->path, w->failed ? NULL : &w->err);
    free(w->tensors);
    free(w->header);
    free(w->sums);
    const bool ok = !w->failed;
    if (!ok) *err = w->err;
    memset(w, 0, sizeof *w);
    return ok;
}

#endif
