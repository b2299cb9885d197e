// Tests of dev/data/unpickle.c, on files that PyTorch has written (dev/test/fixtures/pickle: its
// make_fixture.py) and on programs that nobody should run.
#define TESTING
#include "../data/unpickle.c"
#include "test.h"
#include "zip.h"

#define FIXTURES "dev/test/fixtures/pickle/"

static Error err;

// Every tensor of files saved by torch.save() has the name, type, shape and bits that safetensors'
// own writer gave it: fp32, fp16, bf16, a scalar, an empty one, two that share a storage, a tied
// one, a parameter, a slice from the middle, and a state dict with its metadata.
static void as_pytorch_saved_it(void) {
    static const char *const files[] = {"plain.bin", "model.bin"};
    static const char *const expected[] = {"plain.safetensors", "model.safetensors"};
    for (int k = 0; k < 2; k++) {
        char path[200];
        Tensors list = {NULL, 0};
        SafeTensors st;
        size_t n = 0;
        snprintf(path, sizeof path, FIXTURES "%s", files[k]);
        char *file = file_read(path, &n, &err);
        CHECK(file != NULL && unpickle(file, n, &list, &err), "%s: %s", path, err.text);
        snprintf(path, sizeof path, FIXTURES "%s", expected[k]);
        CHECK(safetensors_open(&st, path, &err), "%s", err.text);
        CHECK((size_t)st.count == list.count && list.count > 0, "%zu tensors, not %d", list.count,
              st.count);
        for (size_t i = 0; i < list.count; i++) {
            const SafeTensor *t = &list.tensors[i], *s = safetensors_find(&st, t->name);
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

// What is said of an archive with this pickle, of 16 bytes in data/0; "" if it is accepted.
static const char *said(const char *pickle, size_t n, bool wide) {
    Tensors list = {NULL, 0};
    Archive a = {0};
    archive_add(&a, "x/data.pkl", pickle, n, wide);
    archive_add(&a, "x/data/0", "0123456789abcdef", 16, wide);
    archive_end(&a, wide);
    if (unpickle(a.file, a.n, &list, &err)) err.text[0] = '\0';
    tensors_free(&list);
    return err.text;
}
#define SAID(pickle) said(pickle, sizeof pickle - 1, false)
#define REFUSED(words, pickle) \
    CHECK(strstr(SAID(pickle), words) != NULL, "'%s' should say '%s'", err.text, words)

#define STORAGE_(type, n) \
    "(X\7\0\0\0storagectorch\n" type "Storage\nX\1\0\0\0000X\3\0\0\0cpuK" n "tQ"
#define TENSOR_(storage, rest) \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage rest "\211ccollections\nOrderedDict\n)RtR"
#define ONE(storage, rest) "\200\2}X\1\0\0\0a" TENSOR_(storage, rest) "s."

static void refusals(void) {
    CHECK(*SAID(ONE(STORAGE_("Float", "\4"), "K\0K\2K\2\206K\2K\1\206")) == '\0', "%s", err.text);
    static const char same[] = ONE(STORAGE_("Float", "\4"), "K\1K\3\205K\1\205");
    CHECK(*said(same, sizeof same - 1, true) == '\0', "zip64: %s", err.text);
    REFUSED("os.system, which is no part of a tensor", "\200\2cos\nsystem\nX\4\0\0\0true\205R.");
    REFUSED("builtins.eval", "\200\2cbuiltins\neval\nX\1\0\0\0001\205R.");
    REFUSED("opcode 0x69", "\200\2(X\4\0\0\0trueios\nsystem\n.");  // INST calls, too
    REFUSED("opcode 0x81", "\200\2ccollections\nOrderedDict\n)\201.");  // and NEWOBJ
    REFUSED("opcode 0x80 at byte 0", "\200\4}.");
    REFUSED("opcode 0x52", "\200\2ccollections\nOrderedDict\nK\1\205R.");
    REFUSED("strides", ONE(STORAGE_("Float", "\4"), "K\0K\2K\2\206K\1K\2\206"));
    REFUSED("opcode 0x52", ONE(STORAGE_("Float", "\4"), "K\1K\2K\2\206K\2K\1\206"));  // beyond it
    REFUSED("opcode 0x52", ONE(STORAGE_("Float", "\4"), "K\0J\377\377\377\377\205K\1\205"));
    REFUSED("opcode 0x51", ONE(STORAGE_("Float", "\5"), "K\0K\2\205K\1\205"));  // 20 bytes of 16
    REFUSED("torch.ComplexFloatStorage", ONE(STORAGE_("ComplexFloat", "\2"), "K\0K\2\205K\1\205"));
    REFUSED("entry a is no tensor", "\200\2}X\1\0\0\0aK\1s.");
    REFUSED("printable", "\200\2}X\1\0\0\0\nK\1s.");
    REFUSED("there twice", "\200\2}(X\1\0\0\0a"
            TENSOR_(STORAGE_("Float", "\4"), "K\0K\1\205K\1\205") "q\0X\1\0\0\0ah\0u.");
    REFUSED("no dictionary", "\200\2K\1.");
    REFUSED("cut short", "\200\2}");
    CHECK(!unpickle("\200\2\212\12l\374\234F\371 j\250P\31.", 15, &(Tensors){NULL, 0}, &err)
          && strstr(err.text, "before 1.6") != NULL, "%s", err.text);
}

int main(void) {
    RUN(as_pytorch_saved_it);
    RUN(refusals);
    return test_summary();
}
