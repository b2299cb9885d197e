// Tests of what ZenFlow does to columns on the GPU (columns.cuh), against plain loops over rows and
// columns: bit for bit. Any NaN equals any other where arithmetic or rounding made it.
//
// Each buffer is an allocation of its own, without a spare element at its end, and is all ones,
// which is NaN in every type, where nothing was put: what a kernel must not write has to stay so.
// Columns change places at random; segments do not begin where the arena does.
#include "model_harness.cuh"
#include "cpu_reference.h"
#include "tensors.cuh"
#include <sys/wait.h>

using namespace tensors;

// ---------------------------------------------------------------------------------------------
// Buffers

template <typename T> static T *blank(size_t n) {
    T *x = zeros<T>(n);
    memset((void *)x, 0xff, n * sizeof(T));
    return x;
}

// A device buffer's bits against those of `want`. may_round: of a NaN, only that it is one counts.
template <typename T>
static void check_bits(const char *what, const T *got, const T *want, size_t n, bool may_round) {
    const T *x = fetch(got, n);
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        const float a = to_f32(x[i]), b = to_f32(want[i]);
        T empty;
        memset((void *)&empty, 0xff, sizeof empty);
        if (memcmp(&x[i], &want[i], sizeof(T)) == 0) continue;
        if (may_round && a != a && b != b && memcmp(&x[i], &empty, sizeof empty) != 0
            && memcmp(&want[i], &empty, sizeof empty) != 0) continue;
        if (bad++ == 0) first = i;
    }
    CHECK(bad == 0, "%s, %s: %zu of %zu differ; [%zu] is %.9g, not %.9g", what, shape, bad, n,
          first, (double)to_f32(x[first]), (double)to_f32(want[first]));
}

// Numbers of very different sizes, halfway between two of bf16 now and then, and, if `wild`, one in
// eight that is not ordinary.
static float number(uint32_t seed, size_t i, bool wild) {
    static const uint32_t special[] = {
        0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x3f808000, 0x3f818000,
        0x3f807fff, 0x3f808001, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc12345, 0xff800001};
    const Philox4 r = philox4x32(seed, (uint32_t)i, 3, 4, 5);
    uint32_t bits = (r.x[0] & 0x807fffff) | (107 + r.x[1] % 40) << 23;
    if (r.x[2] % 4 == 0) bits = (bits & 0xffff0000) | 0x8000;
    if (wild && r.x[2] % 8 == 1) bits = special[r.x[3] % 16];
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

template <typename X> static X *numbers(size_t n, uint32_t seed, bool wild) {
    X *x = blank<X>(n);
    for (size_t i = 0; i < n; i++) narrow(&x[i], number(seed, i, wild));
    return x;
}

// ---------------------------------------------------------------------------------------------
// Maps

// Both kinds of columns change places at random.
static void permute(ZenMap *map, uint32_t seed) {
    for (int i = 0; i < map->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        int32_t *column = map->column + z->column_at;
        for (size_t j = z->cols - 1; z->cols > 1 && j > 0; j--) {
            const size_t k = philox4x32(seed, (uint32_t)i, (uint32_t)j, 9, 9).x[0] % (j + 1);
            const int32_t c = column[j];
            column[j] = column[k];
            column[k] = c;
        }
    }
}

typedef struct { size_t rows, cols, chosen; } Matrix;

// Around the widths of a block (256) and of a strip of sums (128), around 128 rows, and around the
// rows that a block takes: 16 x 256 of one column, 16 x 85 of three, 16 of 129 and more.
enum { MANY = 16 };
static const Matrix odd[MANY] = {
    {1, 5, 2}, {1, 1, 1}, {3, 13, 5}, {129, 9, 3}, {127, 7, 1}, {128, 6, 5}, {257, 130, 129},
    {300, 3, 1}, {5, 600, 257}, {2, 1300, 513}, {17, 256, 256}, {33, 255, 254}, {1, 257, 0},
    {400, 1, 1}, {260, 2, 1}, {19, 511, 255}};
static const Matrix tall[] = {
    {4096, 3, 1}, {4103, 4, 1}, {1361, 5, 3}, {1360, 4, 3}, {70, 250, 100}, {2, 2, 0},
    {32, 256, 128}, {31, 258, 129}, {1025, 2, 1}, {1, 300, 300}};
enum { TALL = sizeof tall / sizeof *tall };

// A table of these matrices, of which each third one does not decay: one before, the middle
// segment's, and one after.
static ZenMap map_of(const Matrix *m, int count) {
    GPT2Tensor tensors[MANY + 2];
    memset(tensors, 0, sizeof tensors);
    GPT2Table t;
    memset(&t, 0, sizeof t);
    t.tensors = tensors;
    t.count = count + 2;
    for (int i = 0; i < t.count; i++) {
        const Matrix outside = {20, 30, 7};
        const bool inside = i > 0 && i <= count;
        const Matrix x = inside ? m[i - 1] : outside;
        tensors[i].layer = i == 0 ? -1 : inside ? 0 : 1;
        tensors[i].rank = 2;
        tensors[i].decay = i % 3 != 0;
        tensors[i].rows = tensors[i].rows_padded = x.rows;
        tensors[i].cols = x.cols;
        tensors[i].size = x.rows * x.cols;
        tensors[i].offset = t.elements;
        t.elements += round_up(tensors[i].size, ALIGN_ELEMENTS);
    }
    ZenMap map = zen_map(&t, 1, 0.5, 0);
    for (int i = 0; i < t.count; i++)  // so many, and not half of them
        map.tensor[i].chosen = i > 0 && i <= count ? m[i - 1].chosen : 7;
    zen_map_pack(&map);
    for (int i = 0; i < t.count; i++)
        for (size_t j = 0; j < map.tensor[i].cols; j++)
            map.column[map.tensor[i].column_at + j] = (int32_t)j;
    return map;
}

// Elements of a segment's part of the arena, up to the last one, and of what is packed of it.
static size_t part_of(const ZenMap *map, int segment) {
    const ZenSegment *s = &map->segment[segment];
    const ZenTensor *z = &map->tensor[s->first + s->count - 1];
    return z->at - map->tensor[s->first].at + z->rows * z->cols;
}

static size_t slots_of(const ZenTensor *z, bool rest) {
    return rest ? z->cols - z->chosen : z->chosen;
}

static size_t packed_of(const ZenMap *map, int segment, bool rest) {
    const ZenSegment *s = &map->segment[segment];
    size_t end = 0;
    for (int i = s->first; i < s->first + s->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        const size_t at = rest ? z->rest_at - s->rest_at : z->chosen_at - s->chosen_at;
        if (slots_of(z, rest) > 0) end = at + z->rows * slots_of(z, rest);
    }
    return end;
}

// The definition: calls f(element of the arena's part, packed element, tensor) for all of them.
template <typename F>
static void each(const ZenMap *map, int segment, bool rest, F f) {
    const ZenSegment *s = &map->segment[segment];
    for (int i = s->first; i < s->first + s->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        const size_t n = slots_of(z, rest), from = rest ? z->chosen : 0;
        const size_t packed = rest ? z->rest_at - s->rest_at : z->chosen_at - s->chosen_at;
        for (size_t r = 0; r < z->rows; r++)
            for (size_t j = 0; j < n; j++)
                f(z->at - map->tensor[s->first].at + r * z->cols
                      + (size_t)map->column[z->column_at + from + j],
                  packed + r * n + j, i);
    }
}

// Runs f(map, segment) for the matrices above. (Those of models: the rows of test_zenflow_gpu.)
template <typename F> static void cases(F f) {
    for (int i = 0; i < 4; i++) {
        ZenMap map = i % 2 ? map_of(tall, TALL) : map_of(odd, MANY);
        if (i < 2) permute(&map, (uint32_t)i + 100);
        set_shape("%s matrices%s", i % 2 ? "tall" : "odd", i < 2 ? ", permuted" : "");
        Scope scope;
        f(&map, 1);
        zen_map_free(&map);
    }
}

static int32_t *device_columns(const ZenMap *map) { return upload(map->column, map->columns); }

// ---------------------------------------------------------------------------------------------
// The tests

// There, and for numbers of one type back.
template <typename In, typename Out> static void move_case(const ZenMap *map, int segment) {
    const size_t n = part_of(map, segment);
    const bool same_type = std::is_same_v<In, Out>, narrow_in = sizeof(In) == 2;
    In *in = numbers<In>(n, 1, true);
    const In *arena = upload(in, n);
    const int32_t *column = device_columns(map);
    for (int rest = 0; rest < 2; rest++) {
        const size_t packed = packed_of(map, segment, rest);
        Out *want = blank<Out>(packed), *got = upload(want, packed);
        each(map, segment, rest, [&](size_t e, size_t p, int) {
            if constexpr (std::is_same_v<In, Out>) want[p] = in[e];
            else narrow(&want[p], to_f32(in[e]));
        });
        columns_move_gpu(true, got, sizeof(Out) == 2, arena, narrow_in, map, segment, rest, column,
                         stream);
        check_bits(rest ? "rest" : "chosen", got, want, packed, !same_type);
        if (!same_type) continue;
        In *from = numbers<In>(packed, 3, true), *back = blank<In>(n), *to = upload(in, n);
        memcpy((void *)back, in, n * sizeof(In));
        each(map, segment, rest, [&](size_t e, size_t p, int) { back[e] = from[p]; });
        columns_move_gpu(false, to, narrow_in, upload(from, packed), narrow_in, map, segment, rest,
                         column, stream);
        check_bits(rest ? "rest, scattered" : "chosen, scattered", to, back, n, false);
    }
}

static void move(void) {
    cases(move_case<float, float>);
    cases(move_case<float, bf16>);
    cases(move_case<bf16, bf16>);  // nothing makes bf16 wider
}

// HALF: moments in bf16, in 2 bytes of each 4; without what is no number, which may become one.
template <typename X, typename G, bool HALF>
static void adam_case(const ZenMap *map, int segment) {
    const size_t n = part_of(map, segment), packed = packed_of(map, segment, false);
    AdamStep step = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.3, 3, 0.37);
    step.moments_bf16 = HALF;
    X *want_x = numbers<X>(n, 5, true), *x = upload(want_x, n);
    float *state[3], *want[3], *got[3];
    G *g = blank<G>(packed), *wide = numbers<G>(packed, 9, !HALF);
    for (int k = 0; k < 3; k++) {
        float *values = numbers<float>(packed, 6 + (uint32_t)k, !HALF);
        state[k] = blank<float>(packed);
        each(map, segment, false, [&](size_t, size_t p, int) {  // gaps are as empty as they can be
            state[k][p] = k == 2 ? fabsf(values[p]) : values[p];
            g[p] = wide[p];
        });
        for (size_t i = 0; HALF && k > 0 && i < packed; i++)
            ((uint16_t *)state[k])[i] = f32_to_bf16(state[k][i]);
        got[k] = upload(state[k], packed);
        want[k] = state[k];
    }
    const ZenSegment *s = &map->segment[segment];
    for (int i = s->first; i < s->first + s->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        const size_t at = z->chosen_at - s->chosen_at;
        const AdamRun run = {at, z->rows * z->chosen, z->decay, z->chosen_index};
        cpu_adam_update(want[0], want[1], want[2], g, sizeof(G) == 2, NULL, &run, 1, &step);
    }
    each(map, segment, false, [&](size_t e, size_t p, int) { want_x[e] = weight_from<X>(want[0][p]); });
    columns_adam_gpu(x, got[0], got[1], got[2], upload(g, packed), sizeof(G) == 2, map, segment,
                     device_columns(map), &step, stream);
    check_bits("weights", x, want_x, n, true);
    for (int k = 0; k < 3; k++)
        check_bits(k == 0 ? "p" : k == 1 ? "m" : "v", got[k], want[k], packed, true);
}

template <typename X> static void adam(void) {
    cases(adam_case<X, float, false>);
    cases(adam_case<X, bf16, false>);
    cases(adam_case<X, bf16, true>);
}

static bool same(float a, float b) { return memcmp(&a, &b, 4) == 0 || (a != a && b != b); }

template <typename G> static void sums_case(const ZenMap *map, int segment, bool wild) {
    const ZenSegment *s = &map->segment[segment];
    const size_t n = part_of(map, segment), scratch = columns_scratch(map);
    G *grad = numbers<G>(n, 10, wild);
    const size_t all = map->mixed;
    float *want = blank<float>(2 * all), *sums = upload(want, 2 * all);
    ZenSum *empty = blank<ZenSum>(scratch);
    size_t bad = 0, first = 0;
    for (int i = s->first; i < s->first + s->count; i++) {
        const ZenTensor *z = &map->tensor[i];
        const G *x = grad + z->at - map->tensor[s->first].at;
        if (z->chosen == 0 || z->chosen == z->cols) continue;
        float *norms = want + z->column_at, *magnitudes = norms + all;
        zen_sums(norms, magnitudes, x, sizeof(G) == 2, z->rows, z->cols);
    }
    columns_sums_gpu(sums, upload(empty, scratch), upload(grad, n), sizeof(G) == 2, map, segment,
                     stream);
    const float *got = fetch(sums, 2 * all);
    for (size_t j = 0; j < 2 * all; j++) {
        const uint32_t unwritten = UINT32_MAX;
        const bool written = memcmp(&got[j], &unwritten, 4) != 0;
        if (same(got[j], want[j]) && written == (memcmp(&want[j], &unwritten, 4) != 0)) continue;
        if (bad++ == 0) first = j;
    }
    CHECK(bad == 0, "%s: %zu numbers; [%zu] %.9g, not %.9g", shape, bad, first, got[first],
          want[first]);
}

template <typename G> static void sums(void) {
    cases([](const ZenMap *map, int segment) { sums_case<G>(map, segment, false); });
    cases([](const ZenMap *map, int segment) { sums_case<G>(map, segment, true); });
}

// Tensors with all columns chosen, or none, need none; the rest one per column and 128 rows.
static void scratch_is_that_of_the_largest(void) {
    const Matrix m[] = {{128, 3, 1}, {300, 50, 2}, {1000, 7, 7}, {1000, 7, 0}, {1, 11, 10}};
    ZenMap map = map_of(m, 5);
    CHECK(columns_scratch(&map) == 3 + 3 * 50 + 11, "%zu", columns_scratch(&map));
    zen_map_free(&map);
    map = map_of(m + 2, 2);  // the segments beside it have one matrix (20, 30) each
    CHECK(columns_scratch(&map) == 30, "%zu", columns_scratch(&map));
    zen_map_free(&map);
}

#ifdef __CUDA_EMU__
#include <sys/mman.h>

// Places in an arena and in packed state are beyond 32 bits in large models, and no matrix should
// be too large either. Here in memory of which only the pages exist that are touched.
static void far_away(void) {
    Scope scope;
    const size_t far = ((size_t)1 << 32) + 128, wide = (size_t)1 << 29;
    const size_t bytes = 17 * wide * sizeof(float);
    float *sparse = (float *)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sparse == MAP_FAILED) SKIP("no 34 GiB of addresses");
    CUDA(cudaHostRegister(sparse, bytes, cudaHostRegisterDefault));
    const Matrix m[] = {{1, 9, 9}, {40, 9, 4}};
    ZenMap map = map_of(m, 2);
    permute(&map, 7);
    ZenTensor *z = &map.tensor[2];
    z->at = map.tensor[1].at + far;
    z->chosen_at = map.segment[1].chosen_at + far;
    set_shape("far away");
    float *part[6], *near[6], *x = numbers<float>(6 * 1024, 30, false);
    for (int k = 0; k < 6; k++) {  // arena, p, m, v, g, packed
        part[k] = sparse + 1024 * k;
        near[k] = part[k] + far;
        for (size_t i = 0; i < 1024; i++) {
            part[k][i] = fabsf(x[1024 * k + i]);
            near[k][i] = fabsf(x[1024 * k + i]);
        }
    }
    const int32_t *column = device_columns(&map), *of = map.column + z->column_at;
    float *want = blank<float>(1024), *state[4];
    memcpy(want, near[5], 1024 * sizeof(float));
    for (size_t r = 0; r < 40; r++)
        for (size_t j = 0; j < 4; j++) want[r * 4 + j] = near[0][r * 9 + (size_t)of[j]];
    columns_move_gpu(true, part[5], false, part[0], false, &map, 1, false, column, stream);
    check_bits("packed", near[5], want, 1024, false);

    const AdamStep step = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.3, 3, 0.37);
    for (int k = 0; k < 4; k++) {
        state[k] = blank<float>(160);
        memcpy(state[k], near[1 + k], 160 * sizeof(float));
    }
    const AdamRun run = {0, 160, z->decay, 0};
    cpu_adam_update(state[0], state[1], state[2], state[3], false, NULL, &run, 1, &step);
    memcpy(want, near[0], 1024 * sizeof(float));
    for (size_t r = 0; r < 40; r++)
        for (size_t j = 0; j < 4; j++) want[r * 9 + (size_t)of[j]] = state[0][r * 4 + j];
    columns_adam_gpu(part[0], part[1], part[2], part[3], part[4], false, &map, 1, column, &step,
                     stream);
    check_bits("weights", near[0], want, 1024, false);
    for (int k = 0; k < 4; k++) check_bits("state", near[1 + k], state[k], 160, false);

    const size_t all = map.mixed;
    float *sums = poison<float>(2 * all), near_sums[18];
    zen_sums(near_sums, near_sums + 9, near[0], 0, 40, 9);
    columns_sums_gpu(sums, poison<ZenSum>(columns_scratch(&map)), part[0], false, &map, 1, stream);
    check_bits("norms", sums + z->column_at, near_sums, 9, false);
    check_bits("magnitudes", sums + all + z->column_at, near_sums + 9, 9, false);

    CUDA(cudaHostUnregister(sparse));
    munmap(sparse, bytes);
    zen_map_free(&map);
}
#endif

// Is it refused to name the columns of segment 1?
static bool refuses(const ZenMap *map) {
    char line[1024];
    int status;
    if (in_child(line, &status)) {
        columns_of(map, 1, false);
        _exit(0);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

// What has no room in a launch is refused, not left out.
static void limits(void) {
    ZenMap map = map_of(odd, MANY);
    for (int i = 0; i < map.count; i++) map.tensor[i].chosen = 1;
    map.segment[1].first--;
    map.segment[1].count++;
    CHECK(refuses(&map), "17 tensors");
    map.segment[1].first++;
    map.segment[1].count--;
    CHECK(!refuses(&map), "16 tensors");
    map.tensor[3].rows = (size_t)1 << 31;
    CHECK(refuses(&map), "2^31 rows");
    zen_map_free(&map);
}

int main(void) {
    RUN(limits);
    RUN(scratch_is_that_of_the_largest);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(move);
    RUN(adam<float>);
    RUN(adam<bf16>);
    RUN(sums<float>);
    RUN(sums<bf16>);
#ifdef __CUDA_EMU__
    RUN(far_away);
#endif
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
