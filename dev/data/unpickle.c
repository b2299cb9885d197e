// unpickle.c: weights that PyTorch has pickled (torch.save: a .bin or .pt file), as safetensors.
// See usage_text.
//
// Such a file is a zip archive: data.pkl says what there is, and each data/KEY has the bytes of one
// storage. data.pkl is a program for Python's pickle machine, which can call any function there is.
// Nothing is called here: this reader knows the opcodes that a dictionary of tensors needs
// (protocol 2), three functions by their names, and PyTorch's types of storage. It refuses
// everything else.
//
//     unpickle()      a file that lies in memory, as a list of tensors
//     tensor_read()   the elements of one, in order
//
// Formats: APPNOTE.TXT of PKWARE, 4.3 and 4.5.3 (zip, zip64); Lib/pickletools.py of CPython;
// torch/serialization.py and torch/_utils.py of PyTorch. Checksums of the archive are not verified.
#include "../tool.h"
#include "../../tide/files/safetensors.h"

static const char *const usage_text =
"unpickle OUT.safetensors IN.bin...   the tensors of all IN in one file, their values unchanged\n"
"Reads what torch.save() has written since PyTorch 1.6, and only dictionaries of tensors. Nothing\n"
"in the files is executed; whatever is no tensor is refused. A view with strides, as .t() and\n"
".expand() give, is written row by row. OUT is written whole or not at all, and never over a file\n"
"of PyTorch's.\n";

// ---------------------------------------------------------------------------------------------
// The zip archive

typedef struct { const char *name; size_t length; const unsigned char *data; size_t size; } Entry;

typedef struct {
    const unsigned char *bytes;
    size_t n;
    Entry *entries;
    size_t count;
} Zip;

static uint64_t little(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    for (int i = bytes; i-- > 0;) x = x << 8 | p[i];
    return x;
}

// Do `length` bytes from byte `at` exist, and begin with PK and these two?
static bool zip_has(const Zip *z, uint64_t at, size_t length, const char *two) {
    return at <= z->n && z->n - at >= length && memcmp(z->bytes + at, "PK", 2) == 0
        && memcmp(z->bytes + at + 2, two, 2) == 0;
}

// The entry that the directory has at byte *at, which moves behind it. Where 32 bits do not hold a
// number there are ones, and the number is in an extra field.
static bool zip_entry(const Zip *z, uint64_t *at, Entry *e) {
    if (!zip_has(z, *at, 46, "\1\2")) return false;
    const unsigned char *p = z->bytes + *at, *extra;
    const size_t extra_length = little(p + 30, 2);
    const uint64_t packed = little(p + 20, 4);
    uint64_t wide[3] = {little(p + 24, 4), packed, little(p + 42, 4)};  // size, packed size, place
    e->length = little(p + 28, 2);
    e->name = (const char *)p + 46;
    const size_t length = 46 + e->length + extra_length + little(p + 32, 2);
    if (z->n - *at < length) return false;
    extra = p + 46 + e->length;
    for (size_t i = 0, size; i + 4 <= extra_length; i += 4 + size) {
        size = little(extra + i + 2, 2);
        if (size > extra_length - i - 4) return false;
        size_t used = 0;
        for (int k = 0; k < 3 && little(extra + i, 2) == 1; k++) {
            if (wide[k] != UINT32_MAX) continue;
            if (size - used < 8) return false;
            wide[k] = little(extra + i + 4 + used, 8);
            used += 8;
        }
    }
    const bool encrypted = little(p + 8, 2) & 1, stored = little(p + 10, 2) == 0;
    if (encrypted || !stored || wide[0] != wide[1] || !zip_has(z, wide[2], 30, "\3\4"))
        return false;
    p = z->bytes + wide[2];
    const uint64_t begin = wide[2] + 30 + little(p + 26, 2) + little(p + 28, 2);
    if (begin > z->n || z->n - begin < wide[0]) return false;
    e->data = z->bytes + begin;
    e->size = wide[0];
    *at += length;
    return true;
}

static bool zip_open(Zip *z, const void *bytes, size_t n, Error *err) {
    *z = (Zip){(const unsigned char *)bytes, n, NULL, 0};
    size_t end = n < 22 ? n : n - 22;  // of the directory, before a comment of at most 65535 bytes
    while (end > 0 && n - end < 22 + 65535 && !(zip_has(z, end, 22, "\5\6")
           && little(z->bytes + end + 20, 2) == n - end - 22)) end--;
    if (!zip_has(z, end, 22, "\5\6"))
        return error_set(err, "it is no zip archive, as torch.save() writes, or cut short");
    uint64_t count = little(z->bytes + end + 10, 2), at = little(z->bytes + end + 16, 4);
    if (end >= 20 && zip_has(z, end - 20, 20, "\6\7")) {
        const uint64_t wide = little(z->bytes + end - 12, 8);
        if (!zip_has(z, wide, 56, "\6\6")) return error_set(err, "its zip directory is damaged");
        count = little(z->bytes + wide + 32, 8);
        at = little(z->bytes + wide + 48, 8);
    }
    if (count > n / 46) return error_set(err, "its zip directory is damaged");
    z->entries = ALLOC(Entry, count, "entries of an archive");
    for (; z->count < count; z->count++)
        if (!zip_entry(z, &at, &z->entries[z->count]))
            return error_set(err, "entry %zu of its zip directory is damaged, or not merely stored",
                             z->count);
    return true;
}

// The entry whose name is these two parts, or NULL; NULL, too, where two have it.
static const Entry *zip_find(const Zip *z, const char *folder, size_t length, const char *name,
                             size_t name_length) {
    const Entry *found = NULL;
    for (const Entry *e = z->entries; e < z->entries + z->count; e++)
        if (e->length == length + name_length && memcmp(e->name, folder, length) == 0
            && memcmp(e->name + length, name, name_length) == 0) {
            if (found != NULL) return NULL;
            found = e;
        }
    return found;
}

// ---------------------------------------------------------------------------------------------
// The pickle

// What the machine works with. Every opcode makes at most one value, and takes at least a byte.
typedef enum {
    MARK, NOTHING, NUMBER, TEXT, TUPLE, DICT, ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER,
    STORAGE_TYPE, STORAGE, TENSOR
} Kind;

// A tensor is a view of a storage: its `data` is the first element there, and the next one along
// each dimension is a stride further.
typedef struct {
    SafeTensor st;
    size_t strides[ST_MAX_RANK];  // in elements; 0: the same one again
    bool in_order;                // rows side by side: the bytes at `data` are the tensor's
    bool negative;                // each element is the negative of what is stored
} Tensor;

typedef struct Value Value;
struct Value {
    Kind kind;
    int64_t number;        // NUMBER (also true and false); STORAGE_TYPE, STORAGE: ST_*
    const char *text;      // TEXT
    size_t length;         // TEXT: bytes; STORAGE: elements
    Value **items;         // TUPLE: its members; DICT: keys and values in turn
    size_t count;          // of them
    const Entry *entry;    // STORAGE: its bytes
    Tensor tensor;         // TENSOR, without a name
};

typedef struct {
    const Zip *zip;
    const char *folder;    // of the archive, with its slash
    size_t folder_length;
    const Entry *program;
    size_t at;             // bytes of it that are read
    Value *values;         // all that were made
    Value **stack, **memo;
    size_t made, depth;
    Error *err;
} Machine;

static const struct { const char *name; Kind kind; int dtype; } known[] = {
    {"collections\nOrderedDict\n", ORDERED_DICT, 0},
    {"torch._utils\n_rebuild_tensor_v2\n", REBUILD_TENSOR, 0},
    {"torch._utils\n_rebuild_parameter\n", REBUILD_PARAMETER, 0},
    {"torch\nFloatStorage\n", STORAGE_TYPE, ST_F32},
    {"torch\nHalfStorage\n", STORAGE_TYPE, ST_F16},
    {"torch\nBFloat16Storage\n", STORAGE_TYPE, ST_BF16},
    {"torch\nDoubleStorage\n", STORAGE_TYPE, ST_F64},
    {"torch\nIntStorage\n", STORAGE_TYPE, ST_I32},
    {"torch\nLongStorage\n", STORAGE_TYPE, ST_I64},
    {"torch\nByteStorage\n", STORAGE_TYPE, 6},  // U8
    {"torch\nBoolStorage\n", STORAGE_TYPE, 7},
};
enum { KNOWN = sizeof known / sizeof known[0] };

static bool push(Machine *m, Value *v) {
    m->stack[m->depth++] = v;
    return true;
}

static Value *make(Machine *m, Kind kind) {
    Value *v = &m->values[m->made++];
    v->kind = kind;
    push(m, v);
    return v;
}

// The value on top, which goes; NULL if there is none.
static Value *pop(Machine *m) { return m->depth > 0 ? m->stack[--m->depth] : NULL; }

static bool is(const Value *v, Kind kind) { return v != NULL && v->kind == kind; }

static bool is_text(const Value *v, const char *text) {
    return is(v, TEXT) && v->length == strlen(text) && memcmp(v->text, text, v->length) == 0;
}

// Member i of a tuple, if it is of this kind, else NULL.
static Value *member(const Value *tuple, size_t i, Kind kind) {
    if (!is(tuple, TUPLE) || i >= tuple->count || !is(tuple->items[i], kind)) return NULL;
    return tuple->items[i];
}

// The next n bytes of the program; NULL if there are fewer.
static const unsigned char *take(Machine *m, uint64_t n) {
    if (m->program->size - m->at < n) return NULL;
    m->at += n;
    return m->program->data + m->at - n;
}

// Takes `count` values from the stack, copied: they are a tuple's, or go into a dictionary.
static bool take_items(Machine *m, size_t count, Value *into) {
    if (count > m->depth) return false;
    into->items = (Value **)realloc(into->items, (into->count + count + 1) * sizeof(Value *));
    if (into->items == NULL) fail("out of memory: a pickle");
    m->depth -= count;
    memcpy(into->items + into->count, m->stack + m->depth, count * sizeof(Value *));
    into->count += count;
    return true;
}

// How many values are above the last mark; SIZE_MAX: there is none.
static size_t above_mark(const Machine *m) {
    for (size_t n = 0; n < m->depth; n++)
        if (m->stack[m->depth - 1 - n]->kind == MARK) return n;
    return SIZE_MAX;
}

static bool make_tuple(Machine *m, size_t count, bool mark) {
    Value *v = &m->values[m->made++];
    v->kind = TUPLE;
    if (!take_items(m, count, v)) return false;
    m->depth -= mark;
    return push(m, v);
}

// Two lines name a function or a type.
static bool make_global(Machine *m) {
    const char *name = (const char *)m->program->data + m->at;
    size_t lines = 0, length = 0;
    while (lines < 2 && take(m, 1) != NULL) lines += name[length++] == '\n';
    for (int i = 0; i < KNOWN && lines == 2; i++)
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) {
            make(m, known[i].kind)->number = known[i].dtype;
            return true;
        }
    char said[120];
    snprintf(said, sizeof said, "%.*s", (int)min_size(length, sizeof said - 1), name);
    for (char *c = said; *c != '\0'; c++)
        if (*c == '\n') *c = c[1] != '\0' ? '.' : '\0';
    return error_set(m->err, "it wants %s, which is no part of a tensor", said);
}

// ("storage", type, key, device, elements); the format before PyTorch 1.6 had a sixth.
static bool make_storage(Machine *m) {
    const Value *id = pop(m), *type = member(id, 1, STORAGE_TYPE), *key = member(id, 2, TEXT);
    const Value *elements = member(id, 4, NUMBER), *word = member(id, 0, TEXT);
    char name[64];
    if (type == NULL || key == NULL || key->length > 40 || elements == NULL || elements->number < 0
        || id->count != 5 || !is_text(word, "storage")) return false;
    const int length = snprintf(name, sizeof name, "data/%.*s", (int)key->length, key->text);
    Value *v = make(m, STORAGE);
    v->number = type->number;
    v->length = (size_t)elements->number;
    v->entry = zip_find(m->zip, m->folder, m->folder_length, name, (size_t)length);
    size_t bytes;
    return v->entry != NULL
        && !__builtin_mul_overflow(v->length, st_dtypes[type->number].size, &bytes)
        && bytes == v->entry->size;
}

// The metadata of a tensor is a dictionary of flags. The only one that a real tensor may have is
// "neg", of a view like torch.imag(x.conj()); what else is set could change the values as well.
static bool read_metadata(Machine *m, Tensor *t, const Value *metadata) {
    if (is(metadata, NOTHING)) return true;
    if (!is(metadata, DICT)) return false;
    for (size_t i = 0; i < metadata->count; i += 2) {
        const Value *key = metadata->items[i], *set = metadata->items[i + 1];
        if (is(set, NUMBER) && set->number == 0) continue;
        if (is_text(key, "neg") && is(set, NUMBER) && strcmp(st_dtypes[t->st.dtype].name, "BOOL"))
            t->negative = true;
        else
            return error_set(m->err, "a tensor has \"%.*s\" set in its metadata, which is not "
                             "known here: save it with .resolve_conj().resolve_neg().clone()",
                             is(key, TEXT) ? (int)min_size(key->length, 40) : 0,
                             is(key, TEXT) ? key->text : "");
    }
    return true;
}

// (storage, first element, shape, strides, requires_grad, hooks, and maybe metadata)
static bool make_tensor(Machine *m, const Value *of) {
    const Value *storage = member(of, 0, STORAGE), *first = member(of, 1, NUMBER);
    const Value *shape = member(of, 2, TUPLE), *strides = member(of, 3, TUPLE);
    if (storage == NULL || first == NULL || shape == NULL || strides == NULL
        || shape->count != strides->count || shape->count > ST_MAX_RANK
        || of->count < 6 || of->count > 7) return false;
    Value *v = make(m, TENSOR);
    SafeTensor *t = &v->tensor.st;
    const size_t size = st_dtypes[storage->number].size;
    size_t last = 0, further;  // element of it, counted from the first
    v->tensor.in_order = true;
    t->dtype = (int)storage->number;
    t->rank = (int)shape->count;
    t->elements = 1;
    for (size_t i = shape->count; i-- > 0;) {
        const Value *n = member(shape, i, NUMBER), *stride = member(strides, i, NUMBER);
        if (n == NULL || stride == NULL || n->number < 0) return false;
        t->shape[i] = (size_t)n->number;
        v->tensor.strides[i] = (size_t)stride->number;  // a negative one leads beyond every end
        if (n->number != 1 && v->tensor.strides[i] != t->elements) v->tensor.in_order = false;
        const size_t steps = n->number > 0 ? (size_t)n->number - 1 : 0;
        if (__builtin_mul_overflow(steps, v->tensor.strides[i], &further)
            || __builtin_add_overflow(last, further, &last)) return false;
        if (__builtin_mul_overflow(t->elements, t->shape[i], &t->elements)) return false;
    }
    if (__builtin_mul_overflow(t->elements, size, &t->bytes)) return false;
    if (first->number < 0 || (uint64_t)first->number > storage->length
        || (t->elements > 0 && last >= storage->length - (size_t)first->number)) return false;
    v->tensor.in_order |= t->elements == 0;
    t->data = storage->entry->data + (size_t)first->number * size;
    return of->count == 6 || read_metadata(m, &v->tensor, of->items[6]);
}

static void negate(unsigned char *p, int dtype, size_t n) {
    const int size = (int)st_dtypes[dtype].size;
    for (; n > 0; n--, p += size) {
        const uint64_t x = little(p, size), sign = (uint64_t)1 << (8 * size - 1);
        const uint64_t y = dtype <= ST_F64 ? x ^ sign : 0 - x;
        memcpy(p, &y, (size_t)size);
    }
}

// Copies elements [first, first + n), in the order of rows. There is at least one.
static void tensor_read(const Tensor *t, size_t first, size_t n, unsigned char *out) {
    const size_t size = st_dtypes[t->st.dtype].size;
    size_t at[ST_MAX_RANK], rest = first, place = 0;
    for (int d = t->st.rank - 1; d >= 0; d--) {
        at[d] = rest % t->st.shape[d];
        rest /= t->st.shape[d];
        place += at[d] * t->strides[d];
    }
    if (t->in_order) memcpy(out, t->st.data + first * size, n * size);
    for (size_t i = 0; i < n && !t->in_order; i++) {
        memcpy(out + i * size, t->st.data + place * size, size);
        for (int d = t->st.rank - 1; d >= 0; d--) {  // to the next one
            place += t->strides[d];
            if (++at[d] < t->st.shape[d]) break;
            place -= at[d] * t->strides[d];
            at[d] = 0;
        }
    }
    if (t->negative) negate(out, t->st.dtype, n);
}

// A known function is called, by us: with its arguments, which are on top of it.
static bool call(Machine *m) {
    const Value *of = pop(m), *function = pop(m);
    if (is(function, ORDERED_DICT) && is(of, TUPLE) && of->count == 0) return make(m, DICT) != NULL;
    if (is(function, REBUILD_TENSOR)) return make_tensor(m, of);
    Value *tensor = member(of, 0, TENSOR);
    return is(function, REBUILD_PARAMETER) && tensor != NULL && push(m, tensor);
}

static bool fill_dict(Machine *m, size_t count, bool mark) {
    if (count == SIZE_MAX || count % 2 > 0 || m->depth < count + mark + 1) return false;
    Value *dict = m->stack[m->depth - count - mark - 1];
    if (dict->kind != DICT || !take_items(m, count, dict)) return false;
    m->depth -= mark;
    return true;
}

static bool memo_put(Machine *m, uint64_t i) {
    if (i >= m->program->size || m->depth == 0) return false;
    m->memo[i] = m->stack[m->depth - 1];
    return true;
}

static bool memo_get(Machine *m, uint64_t i) {
    return i < m->program->size && m->memo[i] != NULL && push(m, m->memo[i]);
}

static bool make_text(Machine *m, const unsigned char *text, uint64_t length) {
    if (text == NULL) return false;
    Value *v = make(m, TEXT);
    v->text = (const char *)text;
    v->length = length;
    return true;
}

static bool make_number(Machine *m, int64_t number) {
    make(m, NUMBER)->number = number;
    return true;
}

// One opcode and what follows it. False: it is none that is known, or it makes no sense here.
static bool opcode(Machine *m, unsigned char code) {
    static const struct { unsigned char code, bytes; } arguments[] = {
        {0x80, 1}, {'K', 1}, {'M', 2}, {'J', 4}, {'q', 1}, {'r', 4}, {'h', 1}, {'j', 4}, {'X', 4},
        {0x8a, 1}};
    uint64_t x = 0;
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        const unsigned char *p;
        if (arguments[i].code != code) continue;
        if ((p = take(m, arguments[i].bytes)) == NULL) return false;
        x = little(p, arguments[i].bytes);
    }
    const unsigned char *long_number;
    switch (code) {
    case 0x80:                                                 // PROTO
        return x == 2 || error_set(m->err, "it is pickled by protocol %d: save it with "
                                   "torch.save()'s own, which is 2", (int)x);
    case '}': return make(m, DICT) != NULL;                    // EMPTY_DICT
    case ')': return make_tuple(m, 0, false);                  // EMPTY_TUPLE
    case '(': return make(m, MARK) != NULL;                    // MARK
    case 't': return above_mark(m) < SIZE_MAX && make_tuple(m, above_mark(m), true);  // TUPLE
    case 0x85: case 0x86: case 0x87: return make_tuple(m, code - 0x84u, false);  // TUPLE1 .. 3
    case 'q': case 'r': return memo_put(m, x);                 // BINPUT, LONG_BINPUT
    case 'h': case 'j': return memo_get(m, x);                 // BINGET, LONG_BINGET
    case 'X': return make_text(m, take(m, x), x);              // BINUNICODE
    case 'K': case 'M': return make_number(m, (int64_t)x);     // BININT1, BININT2
    case 'J': return make_number(m, (int32_t)x);               // BININT
    case 0x8a:                                                 // LONG1
        long_number = x <= 7 ? take(m, x) : NULL;
        return long_number != NULL && (x == 0 || long_number[x - 1] < 128)
            && make_number(m, (int64_t)little(long_number, (int)x));
    case 'N': return make(m, NOTHING) != NULL;                 // NONE
    case 0x88: case 0x89: return make_number(m, code == 0x88);  // NEWTRUE, NEWFALSE
    case 'c': return make_global(m);                           // GLOBAL
    case 'Q': return make_storage(m);                          // BINPERSID
    case 'R': return call(m);                                  // REDUCE
    case 's': return fill_dict(m, 2, false);                   // SETITEM
    case 'u': return fill_dict(m, above_mark(m), true);        // SETITEMS
    case 'b': return is(pop(m), DICT) && m->depth > 0 && is(m->stack[m->depth - 1], DICT);  // BUILD
    }
    return false;
}

// Runs the program. What it leaves must be a dictionary of tensors; otherwise NULL.
static const Value *run_program(Machine *m) {
    const unsigned char *code;
    error_set(m->err, "%s", "");
    while ((code = take(m, 1)) != NULL && *code != '.') {
        const size_t at = m->at - 1;
        if (opcode(m, *code)) continue;
        if (m->err->text[0] == '\0')
            error_set(m->err, "opcode 0x%02x at byte %zu of its pickle is damaged, or none that "
                      "tensors need", *code, at);
        return NULL;
    }
    const Value *top = pop(m);
    if (code == NULL) error_set(m->err, "its pickle is cut short");
    else if (!is(top, DICT) || m->depth > 0) error_set(m->err, "it is no dictionary of tensors");
    else return top;
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// A file

typedef struct { Tensor *tensors; size_t count; } Tensors;

static bool has_tensor(const Tensors *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->tensors[i].st.name, name) == 0) return true;
    return false;
}

// Adds one entry of the dictionary.
static bool add_tensor(Tensors *list, const Value *key, const Value *value, Error *err) {
    bool fine = is(key, TEXT) && key->length > 0 && key->length < 200;
    for (size_t i = 0; fine && i < key->length; i++)
        fine = key->text[i] > 32 && key->text[i] < 127;
    if (!fine) return error_set(err, "a tensor's name is not of printable ASCII");
    if (is(value, DICT))
        return error_set(err, "entry %.*s is a dictionary itself: torch.save() only what is in it",
                         (int)key->length, key->text);
    if (!is(value, TENSOR))
        return error_set(err, "entry %.*s is no tensor", (int)key->length, key->text);
    list->tensors = (Tensor *)array_grow(list->tensors, list->count, sizeof(Tensor), "tensors");
    SafeTensor *t = &list->tensors[list->count].st;
    list->tensors[list->count] = value->tensor;
    t->name = strndup(key->text, key->length);
    if (has_tensor(list, t->name)) {
        error_set(err, "tensor %s is there twice", t->name);
        free(t->name);
        return false;
    }
    list->count++;
    return true;
}

// Adds the tensors of the n bytes of a file, which must stay: their data is there. On error some
// may have been added.
static bool unpickle(const void *bytes, size_t n, Tensors *list, Error *err) {
    Machine m = {0};
    Zip zip = {0};
    const char *kind = file_kind(bytes, n);
    const bool zipped = n >= 4 && memcmp(bytes, "PK\3\4", 4) == 0;
    bool ok = true;
    const unsigned char *begin = (const unsigned char *)bytes;
    if (n > 1 && begin[0] == 0x80 && begin[1] >= 2 && begin[1] <= 5)
        ok = error_set(err, "PyTorch before 1.6 wrote this format, or torch.save() was told to: "
                       "torch.load() it and torch.save() it again");
    else if (kind != NULL && !zipped) ok = error_set(err, "it is %s", kind);
    ok = ok && zip_open(&zip, bytes, n, err);
    const Value *dict = NULL;
    int programs = 0;
    for (const Entry *e = zip.entries; ok && e < zip.entries + zip.count; e++) {
        if (e->length < 9 || memcmp(e->name + e->length - 9, "/data.pkl", 9) != 0) continue;
        m.program = e;
        programs++;
    }
    if (ok && (programs != 1 || m.program->size > 1 << 24))
        ok = error_set(err, "it needs one data.pkl, of at most 16 MiB");
    if (ok) {
        m.zip = &zip;
        m.err = err;
        m.folder = m.program->name;
        m.folder_length = m.program->length - strlen("data.pkl");
        const Entry *order = zip_find(&zip, m.folder, m.folder_length, "byteorder", 9);
        if (order != NULL && (order->size != 6 || memcmp(order->data, "little", 6) != 0))
            ok = error_set(err, "its numbers are not little-endian");
    }
    if (ok) {  // zeros from calloc(): most of them are never touched, and take no memory
        m.values = (Value *)calloc(m.program->size + 1, sizeof(Value));
        m.stack = (Value **)calloc(m.program->size + 1, sizeof(Value *));
        m.memo = (Value **)calloc(m.program->size + 1, sizeof(Value *));
        if (m.values == NULL || m.stack == NULL || m.memo == NULL) fail("out of memory: a pickle");
        dict = run_program(&m);
        ok = dict != NULL;
    }
    for (size_t i = 0; ok && i < dict->count; i += 2)
        ok = add_tensor(list, dict->items[i], dict->items[i + 1], err);
    for (size_t i = 0; i < m.made; i++) free(m.values[i].items);
    free(m.values);
    free(m.stack);
    free(m.memo);
    free(zip.entries);
    return ok;
}

static void tensors_free(Tensors *list) {
    for (size_t i = 0; i < list->count; i++) free(list->tensors[i].st.name);
    free(list->tensors);
}

#ifndef TESTING
static const void *map_or_die(const char *path, size_t *n) {
    struct stat s;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // does not wait on a pipe
    if (fd < 0 || fstat(fd, &s) != 0) die("%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        die("%s is %s", path, S_ISDIR(s.st_mode) ? "a directory" : "no regular file");
    if (s.st_size == 0) die("%s is empty", path);
    *n = (size_t)s.st_size;
    const void *map = mmap(NULL, *n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) die("%s: %s", path, strerror(errno));
    close(fd);
    return map;
}

int main(int argc, char **argv) {
    enum { CHUNK = 1 << 20 };  // elements
    Tensors list = {NULL, 0};
    SafeWriter w;
    Error err;
    program_begin();
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return tool_help(usage_text);
    if (argc < 3) { fputs(usage_text, stderr); return 2; }
    output_check("OUT", argv[1]);
    for (int i = 2; i < argc; i++) {
        size_t n = 0;
        const void *map = map_or_die(argv[i], &n);
        if (!unpickle(map, n, &list, &err)) die("%s: %s", argv[i], err.text);
    }
    if (list.count == 0) die("%s: there is no tensor in it", argv[2]);
    memset(&w, 0, sizeof w);
    for (size_t i = 0; i < list.count; i++) {
        const SafeTensor *t = &list.tensors[i].st;
        safewriter_add(&w, t->name, t->dtype, t->rank, t->shape);
    }
    unsigned char *chunk = ALLOC(unsigned char, CHUNK * sizeof(double), "a part of a tensor");
    safewriter_open(&w, argv[1]);  // from here on nothing may fail() and leave OUT.tmp
    for (size_t i = 0; i < list.count; i++) {
        SafeTensor *t = &list.tensors[i].st;
        const size_t size = st_dtypes[t->dtype].size;
        for (size_t at = 0, n; at < t->elements; at += n) {
            n = min_size(t->elements - at, CHUNK);
            tensor_read(&list.tensors[i], at, n, chunk);
            safewriter_put(&w, (int)i, at * size, chunk, n * size);
        }
        if (list.tensors[i].in_order) safetensor_release(t);
    }
    free(chunk);
    if (!safewriter_close(&w, &err)) fail("%s", err.text);
    printf("%s: %zu tensor%s\n", argv[1], list.count, plural(list.count));
    tool_close(stdout, NULL);
    tensors_free(&list);
    return 0;
}
#endif
