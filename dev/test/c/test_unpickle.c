// Tests of dev/data/unpickle.c, on files that PyTorch has written (dev/test/fixtures/pickle: its
// make_fixture.py) and on programs that nobody should run.
#define TESTING
#include "../../data/unpickle.c"
#include "../test.h"
#include "../zip.h"

#define FIXTURES TEST_FIXTURES "/pickle/"

static Error err;

// Every tensor of files saved by torch.save() has the name, type, shape and bits that safetensors'
// own writer gave it: fp32, fp16, bf16, a scalar, an empty one, two that share a storage, a tied
// one, a parameter, a slice from the middle, and a state dict with its metadata.
static void as_pytorch_saved_it(void) {
    static const char *const names[] = {"plain", "model"};
    for (int k = 0; k < 2; k++) {
        char path[200];
        Tensors list = {NULL, 0};
        SafeTensors st;
        size_t n = 0;
        snprintf(path, sizeof path, FIXTURES "%s.bin", names[k]);
        char *file = file_read(path, &n, &err);
        CHECK(file != NULL && unpickle(file, n, &list, &err), "%s: %s", path, err.text);
        snprintf(path, sizeof path, FIXTURES "%s.safetensors", names[k]);
        CHECK(safetensors_open(&st, path, &err), "%s", err.text);
        CHECK((size_t)st.count == list.count && list.count > 0, "%zu tensors, not %d", list.count,
              st.count);
        for (size_t i = 0; i < list.count; i++) {
            const SafeTensor *t = &list.tensors[i].st, *s = safetensors_find(&st, t->name);
            CHECK(s != NULL, "%s", t->name);
            if (s == NULL) continue;
            CHECK(t->dtype == s->dtype && t->rank == s->rank && t->bytes == s->bytes
                  && memcmp(t->shape, s->shape, sizeof t->shape) == 0
                  && memcmp(t->data, s->data, t->bytes) == 0, "%s differs", t->name);
        }
        // no file is whole without its last byte, or with any part cut off
        for (size_t cut = 1; cut < n; cut += 1 + cut / 7) {
            Tensors none = {NULL, 0};
            CHECK(!unpickle(file, n - cut, &none, &err) && none.count == 0, "%zu cut", cut);
            tensors_free(&none);
        }
        tensors_free(&list);
        safetensors_close(&st);
        free(file);
    }
}

// Reads an archive with this pickle, and 16 bytes in data/0.
static Archive archive;
static bool read_archive(const char *pickle, size_t n, const void *storage, bool wide,
                         Tensors *list) {
    memset(list, 0, sizeof *list);
    archive_pickle(&archive, pickle, n, storage, wide);
    archive_end(&archive, wide);
    return unpickle(archive.file, archive.n, list, &err);
}

// What is said of it; "" if it is accepted.
static const char *said(const char *pickle, size_t n, bool wide) {
    Tensors list;
    if (read_archive(pickle, n, "0123456789abcdef", wide, &list)) err.text[0] = '\0';
    tensors_free(&list);
    return err.text;
}
#define SAID(pickle) said(pickle, sizeof pickle - 1, false)
#define REFUSED(words, pickle) \
    CHECK(strstr(SAID(pickle), words) != NULL, "'%s' should say '%s'", err.text, words)

#define FLOATS(n) STORAGE_("Float", "0", n)
#define ONE(storage, rest) "\200\2}X\1\0\0\0a" TENSOR_(storage, rest) "s."

#define VIEW_OF(type, elements, rest, metadata) \
    "\200\2}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n(" STORAGE_(type, "0", elements) rest \
    "\211ccollections\nOrderedDict\n)R" metadata "tRs."
#define VIEW(type, rest, metadata) VIEW_OF(type, "\4", rest, metadata)
#define NEG "}X\3\0\0\0neg\210s"

// Checks that the one tensor of an archive with this pickle and these 16 bytes in data/0 has the
// elements that are expected, read at once, or in two parts.
static void reads_as(const char *pickle, size_t n, const void *storage, const void *expected,
                     size_t elements) {
    Tensors list;
    unsigned char got[128];
    const bool ok = read_archive(pickle, n, storage, false, &list) && list.count == 1;
    CHECK(ok, "%s", err.text);
    for (size_t part = 1; ok && part < elements; part++) {
        const Tensor *t = &list.tensors[0];
        const size_t size = st_dtypes[t->st.dtype].size;
        CHECK(t->st.elements == elements && t->st.bytes == elements * size, "its size");
        tensor_read(t, 0, part, got);
        tensor_read(t, part, elements - part, got + part * size);
        CHECK(memcmp(got, expected, elements * size) == 0, "cut at %zu", part);
    }
    tensors_free(&list);
}
#define READS_AS(pickle, storage, ...) \
    reads_as(pickle, sizeof pickle - 1, storage, __VA_ARGS__)

// A tensor may be a view of its storage: from an element on, with strides, of which 0 repeats
// (.expand(), whose storage is smaller than it), and with the other sign (torch._neg_view).
static void views(void) {
    static const float x[4] = {1, -2, 0, 4};
    READS_AS(VIEW("Float", "K\0K\2K\2\206K\1K\2\206", ""), x, (float[]){1, 0, -2, 4}, 4);
    READS_AS(VIEW("Float", "K\1K\3K\2\206K\0K\2\206", ""), x,
             (float[]){-2, 4, -2, 4, -2, 4}, 6);
    READS_AS(VIEW("Float", "K\0K\4\205K\1\205", NEG), x, (float[]){-1, 2, -0.0f, -4}, 4);
    READS_AS(VIEW("Float", "K\0K\4\205K\1\205", "}X\3\0\0\0neg\211s"), x, x, 4);
    static const int32_t y[4] = {1, -2, 0, INT32_MIN};
    READS_AS(VIEW("Int", "K\0K\4\205K\1\205", NEG), y, (int32_t[]){-1, 2, 0, INT32_MIN}, 4);
    READS_AS(VIEW_OF("Double", "\2", "K\0K\2\205K\1\205", NEG), ((double[]){1, -2}), (double[]){-1, 2}, 2);
    READS_AS(VIEW_OF("Byte", "\20", "K\1K\2\205K\1\205", NEG), "0123456789abcdef", "\317\316", 2);
    Tensors list;
    static const char empty[] = VIEW("Float", "K\4K\0K\3\206K\3K\1\206", "");
    CHECK(read_archive(empty, sizeof empty - 1, x, false, &list) && list.tensors[0].st.bytes == 0,
          "%s", err.text);
    tensors_free(&list);
}

static void refusals(void) {
    CHECK(*SAID(ONE(FLOATS("\4"), "K\0K\2K\2\206K\2K\1\206")) == '\0', "%s", err.text);
    static const char same[] = ONE(FLOATS("\4"), "K\1K\3\205K\1\205");
    CHECK(*said(same, sizeof same - 1, true) == '\0', "zip64: %s", err.text);
    CHECK(*SAID("\200\2ccollections\nOrderedDict\n(tR(X\1\0\0\0a" TENSOR_(FLOATS("\4"), "M\1\0K\3\205K\1\205")
                "r\7\0\0\0X\1\0\0\0bj\7\0\0\0u.") == '\0', "%s", err.text);
    REFUSED("os.system, which is no part of a tensor", "\200\2cos\nsystem\nX\4\0\0\0true\205R.");
    REFUSED("opcode 0x69", "\200\2(X\4\0\0\0trueios\nsystem\n.");  // INST calls, too
    REFUSED("protocol 4", "\200\4}.");
    REFUSED("opcode 0x52", "\200\2ccollections\nOrderedDict\nK\1\205R.");
    // strides lead out of the storage; so they do where a product has 65 bits
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0K\2K\2\206K\1K\3\206"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\4K\2\205K\0\205"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0K\2\205J\377\377\377\377\205"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0\212\5\1\0\0\0\1\205\212\5\0\0\0\0\1\205"));
    REFUSED("\"conj\" set", VIEW("Float", "K\0K\4\205K\1\205", "}X\4\0\0\0conj\210s"));
    REFUSED("opcode 0x52", VIEW("Float", "K\0K\4\205K\1\205", "NN"));
    REFUSED("opcode 0x52", VIEW("Float", "K\0K\4\205K\1\205", "K\1"));
    REFUSED("opcode 0x51", ONE("(X\7\0\0\0storagectorch\nFloatStorage\n"
                               "X\1\0\0\0000X\3\0\0\0cpuK\4NtQ", "K\0K\4\205K\1\205"));
    REFUSED("opcode 0x51", ONE(FLOATS("\5"), "K\0K\2\205K\1\205"));  // 20 bytes of 16
    REFUSED("opcode 0x51", ONE(FLOATS("\3"), "K\0K\2\205K\1\205"));
    REFUSED("opcode 0x51", ONE("(X\1\0\0\0sctorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ", "K\0K\4\205K\1\205"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\5K\1\205K\1\205"));  // begins behind the storage
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0K\2\205K\1K\1\206"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0J\377\377\377\377\205K\0\205"));
    // 2^64 elements, 2^64 bytes, a last element at 2^64
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0\212\5\0\0\0\0\1\212\5\0\0\0\0\1\206K\0K\0\206"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0\212\5\0\0\0\200\0\212\5\0\0\0\200\0\206K\0K\0\206"));
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0M\1\2M\1\2\206\212\7\0\0\0\0\0\0@\212\7\0\0\0\0\0\0@\206"));
    REFUSED("opcode 0x52", "\200\2}K\0ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS("\4") "K\0K\1\205K\1\205tRs.");
    REFUSED("\"neg\" set", VIEW("Float", "K\0K\4\205K\1\205", "}X\3\0\0\0negNs"));
    REFUSED("\"neg\" set", VIEW_OF("Bool", "\20", "K\0K\4\205K\1\205", NEG));
    REFUSED("opcode 0x73", "\200\2K\0K\1K\2s.");
    REFUSED("opcode 0x71", "\200\2}q\377.");
    REFUSED("opcode 0x71", "\200\2q\0}.");
    REFUSED("opcode 0x68", "\200\2h\0.");
    REFUSED("opcode 0x8a", "\200\2\212\10\0\0\0\0\0\0\0\0.");
    REFUSED("opcode 0x8a", "\200\2\212\1\200.");
    REFUSED("opcode 0x62", "\200\2}K\1b.");
    REFUSED("opcode 0x62", "\200\2K\1}b.");
    REFUSED("no dictionary", "\200\2K\1}.");
    REFUSED("printable", "\200\2}X\0\0\0\0K\1s.");
    CHECK(!unpickle("\200\2}.", 4, &(Tensors){NULL, 0}, &err) && strstr(err.text, "before 1.6"), "%s", err.text);
    REFUSED("entry a is no tensor", "\200\2}X\1\0\0\0aK\1s.");
    REFUSED("printable", "\200\2}X\1\0\0\0\177K\1s.");
    REFUSED("there twice", "\200\2}(X\1\0\0\0a"
            TENSOR_(FLOATS("\4"), "K\0K\1\205K\1\205") "q\0X\1\0\0\0ah\0u.");
    REFUSED("opcode 0x75", "\200\2}(X\1\0\0\0au.");  // a key alone
    REFUSED("no dictionary", "\200\2}))))))))))))))))))))))))))).");  // a value per byte
    REFUSED("opcode 0x52", ONE(FLOATS("\4"), "K\0(K\1K\1K\1K\1K\1K\1K\1K\1K\1tq\0h\0"));
    REFUSED("no dictionary", "\200\2K\1.");
    REFUSED("cut short", "\200\2}");
    // encrypted; compressed, by method or size; 65536 bytes too large; zip64: a field too long, or too short
    static const struct { bool wide; int at, also, is; } damaged[] = {{false, 8, 8, 1}, {false, 10, 10, 1},
        {false, 20, 20, 1}, {false, 22, 26, 1}, {true, 58, 58, 25}, {true, 58, 58, 16}};
    for (int k = 0; k < 6; k++) {
        archive_pickle(&archive, same, sizeof same - 1, "0123456789abcdef", damaged[k].wide);
        archive.directory[damaged[k].at] = archive.directory[damaged[k].also] = damaged[k].is;
        archive_end(&archive, damaged[k].wide);
        CHECK(!unpickle(archive.file, archive.n, &(Tensors){NULL, 0}, &err), "%d", k);
    }
    said(same, sizeof same - 1, true);
    archive.file[archive.n - 98]++;  // the end of zip64's directory
    CHECK(!unpickle(archive.file, archive.n, &(Tensors){NULL, 0}, &err), "is not there");
    said(same, sizeof same - 1, false);
    archive.file[archive.n - 2] = 23;  // a comment, in which another end seems to be
    archive_bytes(archive.file, &archive.n, "PK\5\6an archive's comment", 23);
    Tensors commented = {NULL, 0};
    CHECK(unpickle(archive.file, archive.n, &commented, &err), "%s", err.text);
    tensors_free(&commented);
    static const struct { const char *name, *bytes; bool good; } more[] = {
        {"x/byteorder", "little", true}, {"x/byteorder", "big", false}, {"x/byteorder", "littles", false},
        {"x/data/0", "fedcba9876543210", false}, {"x/data/01", "", true}, {"y/data/0", "", true},
        {"y/data.pkl", "\200\2}.", false}};
    for (int k = 0; k < 7; k++) {
        archive_pickle(&archive, same, sizeof same - 1, "0123456789abcdef", false);
        archive_add(&archive, more[k].name, more[k].bytes, strlen(more[k].bytes), false);
        archive_end(&archive, false);
        Tensors list = {NULL, 0};
        CHECK(unpickle(archive.file, archive.n, &list, &err) == more[k].good, "%d: %s", k,
              err.text);
        tensors_free(&list);
    }
}

int main(void) {
    RUN(as_pytorch_saved_it);
    RUN(views);
    RUN(refusals);
    return test_summary();
}
