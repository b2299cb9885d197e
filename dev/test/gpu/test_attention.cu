// test_attention: the attention kernels against the CPU's (tide/cpu/attention.h), for all three
// storage types, odd shapes and large scores, and a row of a text with its cache; the same launch,
// the same bits.
//
// The CPU gets the very same (rounded) inputs, and the backward pass the CPU's own out and lse. A
// result is rounded once to X; the flash kernels also round p and ds, each of which is a part of a
// sum: FLASH_NOISE units of X of the tensor's root mean square. FP32_NOISE times the amplitude is
// for the order of sums, and exp.
#include "../../../tide/gpu/cache.cuh"
#include "cpu_reference.h"
#include "tensors.cuh"

using namespace tensors;

#define FLASH_NOISE 8
#define FP32_NOISE 1.6e-5

// group: query heads of a key head. window: tokens that each one sees at most, 0: all. parts: of a
// group, for which there is room behind dqkv. amplitude: of queries and keys.
struct Shape {
    size_t B, T, NH, HS;
    unsigned document = 0, group = 1, window = 0, parts = 4;
    float amplitude = 1;
    AttentionShape of(void) const { return attention_shape(B, T, NH, NH / group, HS); }
    size_t room(void) const { return group > 1 ? (size_t)parts * B * T * 2 * of().keys : 0; }
};

// Returns the first token that each of (B, T) sees, in its document, of at most 2 * s.document - 1
// tokens, and in its window. NULL: all see all.
static int32_t *documents(Shape s) {
    if (s.document == 0 && s.window == 0) return NULL;
    int32_t *begins = zeros<int32_t>(s.B * s.T);
    size_t length = 0;
    for (size_t n = 0; n < s.B * s.T; n++, length--) {
        const size_t t = n % s.T;
        if (t == 0 || length == 0) {
            next_float();
            length = s.document == 0 ? s.T : 1 + (seed >> 16) % (2 * s.document - 1);
            begins[n] = (int32_t)t;
        } else {
            begins[n] = begins[n - 1];
        }
        if (s.window > 0 && begins[n] + s.window < t + 1) begins[n] = (int32_t)(t + 1 - s.window);
    }
    return begins;
}

typedef struct {
    size_t n_qkv, n_out, n_lse;
    float *qkv, *dout, *out, *lse;  // as the kernels get them
    float *want_out, *want_dqkv;
    int32_t *begins;
} Reference;

template <typename X> static Reference reference_make(Shape s) {
    const AttentionShape of = s.of();
    const size_t N = s.B * s.T, NKV = s.NH / s.group;
    Reference r;
    seed = (uint32_t)(s.T * 131 + s.HS);
    r.n_qkv = N * of.pitch;
    r.n_out = N * of.width;
    r.n_lse = N * s.NH;
    r.qkv = zeros<float>(r.n_qkv);
    r.dout = zeros<float>(r.n_out);
    r.out = zeros<float>(r.n_out);
    r.lse = zeros<float>(r.n_lse);
    r.want_dqkv = zeros<float>(r.n_qkv);
    r.begins = documents(s);
    for (size_t i = 0; i < r.n_qkv; i++)
        r.qkv[i] = rounded<X>(next_float() * (i % of.pitch < of.width + of.keys ? s.amplitude : 1));
    for (size_t i = 0; i < r.n_out; i++) r.dout[i] = rounded<X>(next_float());
    on_cpu.attention_forward(r.out, r.lse, r.qkv, r.begins, s.B, s.T, s.NH, NKV, s.HS);
    r.want_out = copy(r.out, r.n_out);
    for (size_t i = 0; i < r.n_out; i++) r.out[i] = rounded<X>(r.out[i]);
    on_cpu.attention_backward(r.want_dqkv, r.dout, r.out, r.lse, r.qkv, r.begins, s.B, s.T, s.NH,
                              NKV, s.HS);
    return r;
}

// ---------------------------------------------------------------------------------------------
// Runs of the kernels

enum Kernels { DISPATCH, PLAIN, SMALL };  // SMALL: flash, with tiles for little shared memory

// The three results of a forward and a backward pass on the given inputs.
typedef struct { const float *out, *dqkv, *lse; } Results;

template <typename X>
static Results run(Kernels kernels, Shape s, const Reference *r, const float *qkv_values) {
    const AttentionShape of = s.of();
    const size_t room = s.room(), shared = 100 << 10;
    const size_t n_dqkv = r->n_qkv + room * sizeof(float) / sizeof(X);
    const X *qkv = device<X>(qkv_values, r->n_qkv), *dout = device<X>(r->dout, r->n_out);
    X *out = poison<X>(r->n_out), *dqkv = poison<X>(n_dqkv);
    float *lse = poison<float>(r->n_lse), *delta = poison<float>(r->n_lse);
    float *known = upload(r->lse, r->n_lse);
    const int32_t *begins = r->begins == NULL ? NULL : upload(r->begins, s.B * s.T);
    if (kernels == SMALL)
        attention_queries<X, true>(out, lse, NULL, NULL, qkv, begins, of, shared, stream);
    else
        attention_forward(out, lse, qkv, begins, of, stream, kernels == PLAIN);
    attention_backward(dqkv, room, delta, dout, device<X>(r->out, r->n_out), known, qkv, begins, of,
                       stream, kernels == PLAIN);
    if (kernels == SMALL) {
        CUDA(cudaMemsetAsync(dqkv, 0xff, n_dqkv * sizeof(X), stream));
        attention_keys(dqkv, delta, dout, known, qkv, begins, of, shared, room, stream);
        attention_queries<X, false>(dqkv, known, delta, dout, qkv, begins, of, shared, stream);
    }
    return {host(out, r->n_out), host(dqkv, r->n_qkv), host(lse, r->n_lse)};
}

// absolute: what an error may be, of the root mean square of what is wanted.
template <typename X>
static void compare(const char *what, const float *got, const float *want, size_t n,
                    double absolute) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)want[i] * want[i];
    check_near(what, got, want, n, 1.01 * unit<X>(),
               absolute * sqrt(squares / (double)n) + tiny<X>());
}

// One shape against the reference. Again, with other tiles if these are flash kernels, and with
// what is no number in the last of several sequences: the others, or all, have the same bits.
template <typename X> static void check(Shape s, bool plain) {
    Scope scope;
    const Reference r = reference_make<X>(s);
    const bool flash = sizeof(X) == 2 && !plain && s.HS % 8 == 0 && s.HS <= 128;
    const Kernels kernels = plain ? PLAIN : DISPATCH;
    const double noise = FP32_NOISE * s.amplitude + (flash ? FLASH_NOISE * unit<X>() : 0);
    const Results a = run<X>(kernels, s, &r, r.qkv);
    set_shape("%s, B %zu T %zu NH %zu HS %zu documents %u groups of %u, amplitude %g",
              type_name<X>(), s.B, s.T, s.NH, s.HS, s.document, s.group, s.amplitude);
    compare<X>("out", a.out, r.want_out, r.n_out, noise);
    compare<float>("lse", a.lse, r.lse, r.n_lse, FP32_NOISE);
    compare<X>("dqkv", a.dqkv, r.want_dqkv, r.n_qkv, noise);
    const size_t same = s.B > 1 ? s.B - 1 : 1;
    float *other = copy(r.qkv, r.n_qkv);
    for (size_t i = r.n_qkv / s.B * same; i < r.n_qkv; i++) other[i] = NAN;
    const Results b = run<X>(flash ? SMALL : kernels, s, &r, other);
    CHECK(memcmp(a.out, b.out, r.n_out / s.B * same * 4) == 0
          && memcmp(a.dqkv, b.dqkv, r.n_qkv / s.B * same * 4) == 0
          && memcmp(a.lse, b.lse, r.n_lse / s.B * same * 4) == 0, "other bits: %s", shape);
}

// ---------------------------------------------------------------------------------------------

// Heads that are packs of 16 bytes and others, more channels than a warp takes at once, rows beyond
// a warp's 32 keys.
template <typename X> static void plain(void) {
    static const Shape shapes[] = {
        {1, 1, 1, 4}, {3, 7, 3, 5}, {1, 33, 3, 136}, {2, 65, 2, 16, 20}, {1, 100, 1, 260, 3},
        {2, 37, 6, 8, 0, 3}, {1, 40, 4, 20, 5, 4}, {1, 40, 1, 16, 0, 1, 0, 4, 30}};
    for (const Shape &s : shapes) check<X>(s, s.HS % 8 == 0);
}

// Every padded size, with heads that fill it and heads that do not, around all tile borders. Rows
// of several documents, shorter than tiles, and over several of them; windows. Groups of query
// heads that share a key head, with a block for all heads of a group, for two, and for each. Scores
// of up to +-50 and to some hundreds, where exp() without the largest score overflows.
template <typename X> static void flash(void) {
    static const Shape shapes[] = {
        {1, 1, 1, 8}, {3, 2, 1, 16}, {1, 7, 3, 24}, {1, 31, 1, 32}, {1, 33, 3, 40}, {1, 64, 1, 64},
        {1, 65, 1, 72}, {1, 100, 1, 80}, {1, 130, 1, 96}, {1, 200, 1, 128}, {1, 128, 1, 8},
        {3, 65, 3, 64}, {2, 65, 3, 104},
        {1, 200, 1, 32, 3}, {2, 130, 1, 64, 40}, {1, 270, 1, 96, 70}, {1, 300, 1, 128, 90},
        {1, 300, 1, 64, 150}, {1, 300, 1, 40, 1}, {1, 200, 1, 64, 0, 1, 33},
        {1, 300, 1, 128, 90, 1, 50}, {2, 130, 1, 32, 0, 1, 1},
        {1, 40, 6, 64, 0, 3}, {1, 70, 6, 64, 0, 3, 0, 1}, {1, 200, 4, 64, 30, 4, 0, 2},
        {1, 130, 4, 128, 0, 2}, {1, 66, 4, 80, 40, 2, 0, 1}, {2, 33, 4, 128, 5, 4},
        {1, 100, 1, 64, 0, 1, 0, 4, 7}, {1, 70, 1, 128, 0, 1, 0, 4, 30}};
    for (const Shape &s : shapes) check<X>(s, false);
}

// One row of a text, whose keys and values are cached, is the last row of the text's attention.
// Rows and channels that end anywhere; one key head, groups; heads that are no packs, and wider
// than a block; large scores.
template <typename X> static void cached_is_the_last_row(void) {
    static const Shape shapes[] = {
        {1, 1, 1, 4}, {1, 65, 4, 4, 0, 2}, {1, 31, 2, 20}, {1, 255, 2, 64, 0, 2},
        {1, 256, 2, 72, 0, 1, 0, 4, 7}, {1, 257, 4, 128, 0, 4, 0, 4, 30}, {1, 600, 2, 256},
        {1, 520, 1, 516}, {1, 2050, 1, 64, 0, 1, 0, 4, 7}, {1, 770, 2, 5, 0, 1, 0, 4, 30}};
    for (const Shape &s : shapes) {
        Scope scope;
        const AttentionShape of = s.of();
        const size_t row = 2 * of.keys, last = (s.T - 1) * of.width;
        const Reference r = reference_make<X>(s);
        const X *qkv = device<X>(r.qkv, r.n_qkv);
        X *cache = poison<X>(s.T * row), *out = poison<X>(of.width);
        cache_store(cache, qkv, s.T, of, stream);
        const float *got = host(cache, s.T * row);
        size_t other = 0;
        for (size_t i = 0; i < s.T * row; i++)
            other += got[i] != r.qkv[i / row * of.pitch + of.width + i % row];
        set_shape("%s, T %zu HS %zu amplitude %g", type_name<X>(), s.T, s.HS, s.amplitude);
        CHECK(other == 0, "%s: %zu numbers are others", shape, other);
        attention_cached(out, poison<float>(s.T * s.NH), qkv + (s.T - 1) * of.pitch, cache, s.T, of,
                         stream);
        compare<X>("cached", host(out, of.width), r.want_out + last, of.width,
                   FP32_NOISE * s.amplitude);
    }
}

int main(void) {
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(plain<float>);
    RUN(plain<bf16>);
    RUN(flash<bf16>);
    RUN(cached_is_the_last_row<float>);
    RUN(cached_is_the_last_row<bf16>);
    if (test_whole()) {  // the other type of 16 bits
        RUN(plain<f16>);
        RUN(flash<f16>);
        RUN(cached_is_the_last_row<f16>);
    }
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
