// test_attention: the attention kernels against plain loops in double precision, for all three
// storage types, odd shapes and large scores; what must not matter does not; the same launch, the
// same bits.
//
// Bands. The reference gets the very same (rounded) inputs, and the backward pass the reference's
// own out and lse, so that every band follows from the roundings that attention.cuh states:
//   - a result is rounded once to X:     2^-24 (float), 2^-8 (bf16) or 2^-11 (f16) of the result
//   - flash only: p and ds are rounded to X:       as much of the sum of |p v|, |ds k|, ...
//   - in f16, of a number below 2^-14:   2^-25; p is there scaled so that its row's largest is 1
//   - fp32 arithmetic: NOISE units of 2^-24 of the sum of all |terms|, times 1 + |scores| + |lse|,
//     because an error of a score is a relative error of its exponential.
#include "../../../tide/gpu/cache.cuh"
#include "../../../tide/run/sample.h"
#include "tensors.cuh"

using namespace tensors;

// ---------------------------------------------------------------------------------------------
// The reference

// group: query heads of a key head; window: tokens that each one sees at most, 0: all
struct Shape {
    size_t B, T, NH, HS;
    unsigned document = 0, group = 1, window = 0;
    AttentionShape of(void) const { return attention_shape(B, T, NH, NH / group, HS); }
};

// Returns the first token that each of (B, T) sees, in its document, of at most 2 * s.document - 1
// tokens, and in its window. NULL: all see all.
static int32_t *documents(Shape s) {
    if (s.document == 0 && s.window == 0) return NULL;
    int32_t *begins = zeros<int32_t>(s.B * s.T);
    seed = (unsigned)s.T * 7 + s.document;
    for (size_t b = 0; b < s.B; b++)
        for (size_t t = 0, length = 0; t < s.T; t++) {
            if (length == 0) {
                next_float();
                length = s.document == 0 ? s.T : 1 + (seed >> 16) % (2 * s.document - 1);
                begins[b * s.T + t] = (int32_t)t;
            } else {
                begins[b * s.T + t] = begins[b * s.T + t - 1];
            }
            length--;
        }
    for (size_t n = 0; n < s.B * s.T && s.window > 0; n++) {
        const int32_t first = (int32_t)(n % s.T + 1) - (int32_t)s.window;
        if (begins[n] < first) begins[n] = first;
    }
    return begins;
}

typedef struct {
    size_t n_qkv, n_out, n_lse;
    float *qkv, *dout, *out, *lse;  // as the kernels get them
    double *want_out, *want_lse, *want_dqkv;
    // sums of absolute values: of what is rounded to X before it enters a product, and of all
    double *round_out, *noise_out, *noise_lse, *round_dqkv, *noise_dqkv;
    double *tiny_out;  // the most that out changes by if each p does by 1 before its row is scaled,
    double *tiny_dqkv; // and that dqkv does if each p, and each ds without the scale, does by 1
} Reference;

// Of the rows from `first` on.
template <typename X>
static Reference reference_make(Shape s, float qk_amplitude, uint32_t data_seed,
                                size_t first = 0) {
    const size_t B = s.B, T = s.T, NH = s.NH, HS = s.HS, C = NH * HS;
    const size_t keys_C = C / s.group, Q = C + 2 * keys_C;
    Reference r;
    r.n_qkv = B * T * Q; r.n_out = B * T * C; r.n_lse = B * NH * T;
    r.qkv = zeros<float>(r.n_qkv); r.dout = zeros<float>(r.n_out);
    r.out = zeros<float>(r.n_out); r.lse = zeros<float>(r.n_lse);
    r.want_out = zeros<double>(r.n_out); r.want_lse = zeros<double>(r.n_lse);
    r.want_dqkv = zeros<double>(r.n_qkv);
    r.round_out = zeros<double>(r.n_out); r.noise_out = zeros<double>(r.n_out);
    r.noise_lse = zeros<double>(r.n_lse); r.tiny_out = zeros<double>(r.n_out);
    r.round_dqkv = zeros<double>(r.n_qkv); r.noise_dqkv = zeros<double>(r.n_qkv);
    r.tiny_dqkv = zeros<double>(r.n_qkv);
    double *sc = zeros<double>(T), *sa = zeros<double>(T);
    int32_t *begins = documents(s);
    seed = data_seed;
    for (size_t i = 0; i < r.n_qkv; i++)
        r.qkv[i] = rounded<X>(next_float() * (i % Q < C + keys_C ? qk_amplitude : 1));
    for (size_t i = 0; i < r.n_out; i++) r.dout[i] = rounded<X>(next_float());
    const double scale = 1 / sqrt((double)HS);
    for (size_t b = 0; b < B; b++)
    for (size_t h = 0; h < NH; h++)
    for (size_t t = first; t < T; t++) {
        const size_t row = (b * T + t) * Q + h * HS, keys = b * T * Q + C + h / s.group * HS;
        const size_t at = (b * T + t) * C + h * HS, l = (b * NH + h) * T + t;
        const size_t begin = begins ? (size_t)begins[b * T + t] : 0;
        double max = -INFINITY, sum = 0, largest = 0;
        for (size_t u = begin; u <= t; u++) {
            sc[u] = sa[u] = 0;
            for (size_t i = 0; i < HS; i++) {
                const double qk = (double)r.qkv[row + i] * r.qkv[keys + u * Q + i] * scale;
                sc[u] += qk;
                sa[u] += fabs(qk);
            }
            max = fmax(max, sc[u]);
            largest = fmax(largest, sa[u]);
        }
        for (size_t u = begin; u <= t; u++) sum += exp(sc[u] - max);
        r.want_lse[l] = max + log(sum);
        r.noise_lse[l] = 1 + largest + fabs(r.want_lse[l]);
        r.lse[l] = (float)r.want_lse[l];
        for (size_t u = begin; u <= t; u++)
            for (size_t i = 0; i < HS; i++) {
                const double p = exp(sc[u] - r.want_lse[l]);
                const double v = r.qkv[keys + keys_C + u * Q + i];
                r.want_out[at + i] += p * v;
                r.round_out[at + i] += p * fabs(v);
                r.tiny_out[at + i] += fabs(v) / sum;
                r.noise_out[at + i] += p * fabs(v) * (1 + sa[u] + largest);
            }
        // the backward pass, from the rounded out and lse
        double delta = 0, delta_abs = 0;
        for (size_t i = 0; i < HS; i++) {
            r.out[at + i] = rounded<X>((float)r.want_out[at + i]);
            delta += (double)r.dout[at + i] * r.out[at + i];
            delta_abs += fabs((double)r.dout[at + i] * r.out[at + i]);
        }
        for (size_t u = begin; u <= t; u++) {
            double dp = 0, dp_abs = 0;
            for (size_t i = 0; i < HS; i++) {
                const double dv = (double)r.dout[at + i] * r.qkv[keys + keys_C + u * Q + i];
                dp += dv;
                dp_abs += fabs(dv);
            }
            const double p = exp(sc[u] - (double)r.lse[l]), ds = p * (dp - delta) * scale;
            const double noise = 1 + sa[u] + fabs((double)r.lse[l]);
            const double ds_noise = p * (dp_abs + delta_abs) * scale * noise;
            for (size_t i = 0; i < HS; i++) {
                const size_t iq = row + i, ik = keys + u * Q + i, iv = ik + keys_C;
                const double q = r.qkv[iq], k = r.qkv[ik], d = r.dout[at + i];
                r.want_dqkv[iq] += ds * k;
                r.want_dqkv[ik] += ds * q;
                r.want_dqkv[iv] += p * d;
                r.round_dqkv[iq] += fabs(ds * k);
                r.round_dqkv[ik] += fabs(ds * q);
                r.round_dqkv[iv] += fabs(p * d);
                r.noise_dqkv[iq] += ds_noise * fabs(k);
                r.noise_dqkv[ik] += ds_noise * fabs(q);
                r.noise_dqkv[iv] += p * fabs(d) * noise;
                r.tiny_dqkv[iq] += fabs(k) * scale;
                r.tiny_dqkv[ik] += fabs(q) * scale;
                r.tiny_dqkv[iv] += fabs(d);
            }
        }
    }
    return r;
}

// ---------------------------------------------------------------------------------------------
// Runs of the kernels

enum Kernels { DISPATCH, PLAIN, FLASH };
static const char *const kernels_name[] = {"dispatch", "plain", "flash"};
static size_t flash_shared_kib = 228;  // FLASH: of a multiprocessor, an H100's
static unsigned parts_allowed = 4;     // of a group: there is room behind dqkv for so many

static size_t parts_room(Shape s) {
    return s.group > 1 ? (size_t)parts_allowed * s.B * s.T * 2 * s.of().keys : 0;
}

template <typename X>
static void forward(Kernels kernels, X *out, float *lse, const X *qkv, const int32_t *begins,
                    Shape s) {
    if (kernels == FLASH)
        attention_queries<X, true>(out, lse, NULL, NULL, qkv, begins, s.of(),
                                   flash_shared_kib << 10, stream);
    else
        attention_forward(out, lse, qkv, begins, s.of(), stream, kernels == PLAIN);
}

template <typename X>
static void backward(Kernels kernels, X *dqkv, float *delta, const X *dout, const X *out,
                     const float *lse, const X *qkv, const int32_t *begins, Shape s) {
    const size_t room = parts_room(s);
    attention_backward(dqkv, room, delta, dout, out, lse, qkv, begins, s.of(), stream,
                       kernels != DISPATCH);
    if (kernels != FLASH) return;
    CUDA(cudaMemsetAsync(dqkv, 0xff, s.B * s.T * s.of().pitch * sizeof(X) + room * 4, stream));
    const size_t shared = flash_shared_kib << 10;
    attention_keys(dqkv, delta, dout, lse, qkv, begins, s.of(), shared, room, stream);
    attention_queries<X, false>(dqkv, (float *)lse, delta, dout, qkv, begins, s.of(), shared,
                                stream);
}

// The three results of a forward and a backward pass on the given inputs.
template <typename X> struct Results { const X *out, *dqkv; const float *lse; };

template <typename X>
static Results<X> run(Kernels kernels, Shape s, const Reference *r, const float *qkv_values) {
    const X *qkv = device<X>(qkv_values, r->n_qkv), *dout = device<X>(r->dout, r->n_out);
    const size_t n_dqkv = r->n_qkv + parts_room(s) * sizeof(float) / sizeof(X);
    X *out = poison<X>(r->n_out), *dqkv = poison<X>(n_dqkv);
    float *lse = poison<float>(r->n_lse), *delta = poison<float>(r->n_lse);
    const int32_t *begins = documents(s);
    if (begins != NULL) begins = upload(begins, s.B * s.T);
    forward(kernels, out, lse, qkv, begins, s);
    backward(kernels, dqkv, delta, dout, device<X>(r->out, r->n_out), upload(r->lse, r->n_lse), qkv,
             begins, s);
    return {fetch(out, r->n_out), fetch(dqkv, r->n_qkv), fetch(lse, r->n_lse)};
}

template <typename X>
static void compare(const char *what, Kernels kernels, Shape s, const X *got, size_t n,
                    const double *want, const double *rounded, const double *noise,
                    const double *small) {
    const double NOISE = 8;
    size_t bad = 0, where = 0;
    for (size_t i = 0; i < n; i++) {
        double band = unit<X>() * fabs(want[i]) + NOISE * 0x1p-24 * noise[i] + 1e-37 + tiny<X>();
        if (kernels == FLASH) band += unit<X>() * rounded[i] + tiny<X>() * (small ? small[i] : 0);
        if (!test_within(fabs((double)wide(got[i]) - want[i]), band) && bad++ == 0) where = i;
    }
    CHECK(bad == 0, "%s, %s, %s, B %zu T %zu NH %zu HS %zu documents %u groups of %u: %zu of %zu "
          "outside, first at %zu: %.9g, not %.9g", what, kernels_name[kernels], type_name<X>(), s.B,
          s.T, s.NH, s.HS, s.document, s.group, bad, n, where, (double)wide(got[where]),
          want[where]);
}

template <typename X> static bool same_results(const Results<X> *a, const Results<X> *b,
                                               const Reference *r) {
    return memcmp(a->out, b->out, r->n_out * sizeof(X)) == 0
           && memcmp(a->dqkv, b->dqkv, r->n_qkv * sizeof(X)) == 0
           && memcmp(a->lse, b->lse, r->n_lse * 4) == 0;
}

// One shape against the reference; again, as it is chosen, with the same bits.
template <typename X> static void check(Kernels kernels, Shape s, float amplitude, bool again) {
    Scope scope;
    Reference r = reference_make<X>(s, amplitude, (uint32_t)(s.T * 131 + s.HS));
    Results<X> a = run<X>(kernels, s, &r, r.qkv);
    compare("out", kernels, s, a.out, r.n_out, r.want_out, r.round_out, r.noise_out, r.tiny_out);
    compare("lse", PLAIN, s, a.lse, r.n_lse, r.want_lse, r.noise_lse, r.noise_lse, NULL);
    compare("dqkv", kernels, s, a.dqkv, r.n_qkv, r.want_dqkv, r.round_dqkv, r.noise_dqkv,
            r.tiny_dqkv);
    if (again) {
        Results<X> b = run<X>(kernels == FLASH ? DISPATCH : kernels, s, &r, r.qkv);
        CHECK(same_results(&a, &b, &r), "other bits from another launch, or other kernels were "
              "chosen: T %zu HS %zu", s.T, s.HS);
    }
}

// ---------------------------------------------------------------------------------------------

static void plain_float(void) {
    const Shape shapes[] = {{1, 1, 1, 4}, {3, 2, 1, 8}, {1, 7, 3, 136}, {1, 31, 1, 16},
                            {1, 33, 3, 5}, {1, 64, 1, 64}, {1, 65, 1, 260}, {1, 100, 1, 32}};
    for (const Shape &s : shapes) check<float>(DISPATCH, s, 1, s.T == 33);
    check<float>(DISPATCH, Shape{2, 65, 2, 16, 20}, 1, true);
    check<float>(DISPATCH, Shape{1, 100, 1, 260, 3}, 1, false);
}

template <typename X> static void plain_16(void) {
    const Shape shapes[] = {{1, 1, 1, 8}, {1, 2, 3, 4}, {1, 33, 1, 136}, {3, 65, 1, 24}};
    for (const Shape &s : shapes) check<X>(PLAIN, s, 1, s.T == 33);
    check<X>(DISPATCH, Shape{1, 31, 1, 4}, 1, false);
    check<X>(DISPATCH, Shape{1, 31, 1, 136}, 1, false);
    check<X>(PLAIN, Shape{1, 65, 1, 24, 9}, 1, false);
}

// Every padded size, with heads that fill it and heads that do not, around all tile borders.
template <typename X> static void flash_16(void) {
    const Shape shapes[] = {
        {1, 1, 1, 8}, {3, 2, 1, 16}, {1, 7, 3, 24}, {1, 31, 1, 32}, {1, 33, 3, 40}, {1, 64, 1, 64},
        {1, 65, 1, 72}, {1, 100, 1, 80}, {1, 130, 1, 96}, {1, 200, 1, 128}, {1, 200, 1, 64},
        {1, 130, 1, 32}, {3, 65, 3, 64}, {1, 33, 1, 128}, {1, 2, 1, 128}, {1, 128, 1, 8}};
    const size_t step = std::is_same_v<X, f16> ? 2 : 1;  // of the same kernels, fewer are enough
    for (size_t i = step - 1; i < sizeof shapes / sizeof *shapes; i += step)
        check<X>(FLASH, shapes[i], 1, shapes[i].T == 65 || shapes[i].T == 33);
    // Rows of several documents: shorter than tiles, and over several of them.
    const Shape packed[] = {{1, 200, 1, 32, 3}, {2, 130, 1, 64, 40}, {1, 270, 1, 96, 70},
                            {1, 300, 1, 128, 90}, {1, 300, 1, 64, 150}, {1, 300, 1, 40, 1},
                            {2, 65, 3, 128, 10}, {1, 260, 1, 32, 130}, {1, 200, 1, 64, 0, 1, 33},
                            {1, 300, 1, 128, 90, 1, 50}, {2, 130, 1, 32, 0, 1, 1}};
    for (size_t i = step - 1; i < sizeof packed / sizeof *packed; i += step)
        check<X>(FLASH, packed[i], i % 3 == 0 ? 7 : 1, i == 1);
}

// Groups of query heads that share a key head: one head in all, as many as query heads, between.
// With a block for all heads of a group, for two, and for each.
template <typename X> static void groups(void) {
    const Shape shapes[] = {{2, 37, 6, 8, 0, 3}, {1, 40, 4, 20, 0, 4}, {1, 70, 6, 64, 0, 3},
                            {1, 70, 6, 20, 9, 3}, {1, 200, 4, 64, 30, 4}, {1, 130, 4, 128, 0, 2},
                            {1, 33, 4, 128, 5, 4}, {1, 66, 4, 80, 40, 2}, {1, 65, 3, 64, 0, 1}};
    for (const Shape &s : shapes) {
        const bool flash = sizeof(X) == 2 && s.HS % 8 == 0;
        for (parts_allowed = 4; flash && s.group > 1 && parts_allowed > 1; parts_allowed -= 3)
            check<X>(FLASH, s, 1, s.document == 30 || s.T == 70);
        parts_allowed = s.T == 200 ? 2 : 1;
        check<X>(flash ? FLASH : DISPATCH, s, 1, s.document == 30 || s.T == 70);
        if (s.T < 50) check<X>(PLAIN, s, 1, false);
        parts_allowed = 4;
    }
}

// Scores of up to +-50 and to some hundreds, where exp() without the largest score overflows.
static void large_scores(void) {
    for (const float amplitude : {7.0f, 30.0f}) {
        check<float>(PLAIN, Shape{1, 40, 1, 16}, amplitude, false);
        check<bf16>(PLAIN, Shape{1, 40, 1, 16}, amplitude, false);
        check<bf16>(FLASH, Shape{1, 100, 1, 64}, amplitude, false);
        check<bf16>(FLASH, Shape{1, 70, 1, 128}, amplitude, false);
        check<f16>(PLAIN, Shape{1, 40, 1, 16}, amplitude, false);
        check<f16>(FLASH, Shape{1, 100, 1, 64}, amplitude, false);
        check<f16>(FLASH, Shape{1, 70, 1, 128}, amplitude, false);
    }
}

// With the tiles for GPUs of little shared memory the bits are the same. With the heads of a group
// in parts those of keys' and values' gradients are others (bf16 is too coarse to show it), those
// of queries the same.
template <typename X> static void other_blocks(void) {
    for (const Shape &s : {Shape{1, 200, 1, 128}, Shape{2, 65, 3, 104}, Shape{1, 300, 1, 128, 90},
                           Shape{1, 70, 4, 64, 0, 4}}) {
        if (s.group > 1 && std::is_same_v<X, bf16>) continue;
        Scope scope;
        Reference r = reference_make<X>(s, 2, 5);
        Results<X> a = run<X>(FLASH, s, &r, r.qkv);
        flash_shared_kib = 100;
        parts_allowed = 1;
        Results<X> b = run<X>(FLASH, s, &r, r.qkv);
        flash_shared_kib = 228;
        parts_allowed = 4;
        size_t keys = 0, queries = 0;
        for (size_t i = 0; i < r.n_qkv; i++)
            (i % s.of().pitch < s.of().width ? queries : keys)
                += wide(a.dqkv[i]) != wide(b.dqkv[i]);
        CHECK(same_results(&a, &b, &r) == (s.group == 1) && queries == 0
              && (keys > 0) == (s.group > 1), "%s, T %zu HS %zu, groups of %u: %zu and %zu differ",
              type_name<X>(), s.T, s.HS, s.group, keys, queries);
    }
}

// Whatever stands in another sequence, in another group of heads or (finite) in the future or in
// another document of a token: its out, lse and gradients of the query keep their bits, and so do
// those of keys and values, of another sequence and group.
template <typename X> static void check_isolation(Kernels kernels, Shape s, size_t now) {
    const size_t C = s.NH * s.HS, keys_C = C / s.group, Q = C + 2 * keys_C, other = 1;
    Scope scope;
    Reference r = reference_make<X>(s, 2, 77);
    float *changed = zeros<float>(r.n_qkv);
    int32_t *begins = documents(s);
    const size_t begin = begins ? (size_t)begins[now] : 0;
    const bool ends = now + 1 == s.T || (begins && begins[now + 1] > (int)now);
    for (size_t i = 0; i < r.n_qkv; i++) {
        const size_t b = i / Q / s.T, t = i / Q % s.T, c = i % Q;
        const size_t group = c < C ? c / s.HS / s.group : (c - C) % keys_C / s.HS;
        const bool unseen = t > now || t < begin;
        changed[i] = b == other || group == other ? NAN : unseen ? 30 * r.qkv[i] : r.qkv[i];
    }
    Results<X> a = run<X>(kernels, s, &r, r.qkv), c = run<X>(kernels, s, &r, changed);
    size_t differ = 0;
    for (size_t b = 0; b < s.B; b++)
    for (size_t h = 0; h < s.NH; h++)
    for (size_t t = 0; t < s.T; t++) {
        if (b == other || h / s.group == other || t > now || t < begin) continue;
        const size_t at = (b * s.T + t) * C + h * s.HS, l = (b * s.NH + h) * s.T + t;
        const size_t row = (b * s.T + t) * Q, key = row + C + h / s.group * s.HS;
        differ += memcmp(a.out + at, c.out + at, s.HS * sizeof(X)) != 0;
        differ += memcmp(a.lse + l, c.lse + l, 4) != 0;
        differ += memcmp(a.dqkv + row + h * s.HS, c.dqkv + row + h * s.HS, s.HS * sizeof(X)) != 0;
        if (ends)
            for (size_t i = key; i <= key + keys_C; i += keys_C)
                differ += memcmp(a.dqkv + i, c.dqkv + i, s.HS * sizeof(X)) != 0;
    }
    CHECK(differ == 0, "%s HS %zu, groups of %u: %zu rows", kernels_name[kernels], s.HS, s.group,
          differ);
}

static void what_must_not_matter(void) {
    check_isolation<bf16>(FLASH, Shape{1, 70, 1, 64}, 40);
    check_isolation<bf16>(FLASH, Shape{1, 70, 1, 128}, 63);
    check_isolation<bf16>(FLASH, Shape{3, 40, 3, 16}, 39);
    check_isolation<f16>(FLASH, Shape{1, 70, 1, 64}, 40);
    check_isolation<bf16>(PLAIN, Shape{1, 40, 1, 12}, 31);
    check_isolation<float>(PLAIN, Shape{3, 20, 3, 4}, 19);
    check_isolation<bf16>(FLASH, Shape{2, 70, 9, 16, 0, 3}, 69);
    check_isolation<bf16>(FLASH, Shape{1, 70, 4, 64, 30, 2}, 40);
    check_isolation<float>(PLAIN, Shape{2, 40, 9, 4, 0, 3}, 39);
    for (const size_t now : {40, 99, 150, 299}) {
        check_isolation<bf16>(FLASH, Shape{1, 300, 1, 64, 30}, now);
        check_isolation<bf16>(FLASH, Shape{1, 300, 1, 128, 80}, now);
        check_isolation<float>(PLAIN, Shape{1, 300, 1, 4, 30}, now);
    }
}

// Every tile of every head is worked on exactly once, the longest first in every run of heads.
__global__ static void block_work_kernel(unsigned *seen, unsigned *order, unsigned tiles,
                                         unsigned heads, unsigned at_once) {
    unsigned tile;
    const unsigned head = block_work(&tile, blockIdx.x, tiles, heads, at_once);
    if (threadIdx.x == 0 && head < heads && tile < tiles) {
        seen[head * tiles + tile] = 1;
        order[blockIdx.x] = head / at_once * tiles + tiles - 1 - tile;
    }
}

static void work_is_divided(void) {
    const unsigned cases[][3] = {{1, 1, 1}, {5, 1, 1}, {3, 7, 2}, {4, 6, 6}, {2, 9, 4}};
    for (const auto &c : cases) {
        Scope scope;
        const unsigned tiles = c[0], heads = c[1], n = tiles * heads;
        unsigned *seen = poison<unsigned>(n), *order = poison<unsigned>(n);
        block_work_kernel<<<n, 32, 0, stream>>>(seen, order, tiles, heads, c[2]);
        CUDA(cudaGetLastError());
        const unsigned *s = fetch(seen, n), *o = fetch(order, n);
        size_t missing = 0, early = 0;
        for (unsigned i = 0; i < n; i++) {
            missing += s[i] != 1;
            early += i > 0 && o[i] < o[i - 1];
        }
        CHECK(missing == 0 && early == 0, "%u tiles, %u heads: %zu, %zu", tiles, heads, missing,
              early);
    }
    CHECK(flash_at_once(attention_shape(1, 4096, 1000, 1000, 128), false) == 8
          && flash_at_once(attention_shape(1, 4096, 1000, 1000, 128), true) == 8
          && flash_at_once(attention_shape(5, 1, 1, 1, 8), false) == 5
          && flash_at_once(attention_shape(16, 1024, 25, 25, 64), false) == 58
          && flash_at_once(attention_shape(1, 1 << 20, 3, 3, 128), false) == 1
          && flash_at_once(attention_shape(1, 4096, 1000, 250, 128), false) == 32
          && flash_at_once(attention_shape(1, 4096, 1000, 250, 128), true) == 2, "heads at once");
    const AttentionShape s = attention_shape(1, 2048, 32, 8, 128);  // llama3.1-8b
    const size_t sums = (size_t)2 * 2048 * 8 * 128;                 // of a part
    CHECK(attention_parts(s, 2 * sums) == 2 && attention_parts(s, 2 * sums - 1) == 1
          && attention_parts(attention_shape(2, 2048, 32, 8, 128), 9 * sums) == 1
          && attention_parts(attention_shape(1, 512, 32, 8, 128), 9 * sums) == 4
          && attention_parts(attention_shape(1, 2048, 28, 4, 128), 9 * sums) == 7
          && attention_parts(attention_shape(1, 2048, 32, 8, 64), 9 * sums) == 4,
          "parts of a group");
}

// One row of a text, whose keys and values are cached, is the last row of the text's attention, to
// the kernels' roundings. Rows and channels that end anywhere; one key head, groups; heads that are
// no packs, and wider than a block; large scores.
template <typename X> static void cached_is_the_last_row(void) {
    static const struct { size_t T, NH; unsigned group; size_t HS; float amplitude; } cases[] = {
        {1, 1, 1, 4, 1}, {2, 3, 1, 8, 1}, {65, 4, 2, 4, 1}, {31, 2, 1, 20, 1}, {64, 6, 3, 16, 1},
        {255, 2, 2, 64, 1}, {256, 2, 1, 72, 7}, {257, 4, 4, 128, 30}, {300, 1, 1, 80, 1},
        {600, 2, 1, 256, 1}, {33, 1, 1, 272, 1}, {520, 1, 1, 516, 1}, {4096, 1, 1, 64, 7},
        {513, 8, 2, 96, 1}, {70, 1, 1, 5, 1}, {770, 2, 1, 5, 30}};
    for (const auto &c : cases) {
        Scope scope;
        const Shape s = {1, c.T, c.NH, c.HS, 0, c.group};
        const AttentionShape of = s.of();
        const size_t row = 2 * of.keys, last = (c.T - 1) * of.width;
        const Reference r = reference_make<X>(s, c.amplitude, (uint32_t)c.T, c.T - 1);
        const X *qkv = device<X>(r.qkv, r.n_qkv);
        X *cache = poison<X>(c.T * row), *out = poison<X>(of.width);
        cache_store(cache, qkv, c.T, of, stream);
        const X *got = fetch(cache, c.T * row);
        size_t other = 0;
        for (size_t i = 0; i < c.T * row; i++)
            other += wide(got[i]) != r.qkv[i / row * of.pitch + of.width + i % row];
        CHECK(other == 0, "%s, T %zu HS %zu: %zu numbers are others", type_name<X>(), c.T, c.HS,
              other);
        attention_cached(out, poison<float>(c.T * c.NH), qkv + (c.T - 1) * of.pitch, cache, c.T,
                         of, stream);
        compare("cached", PLAIN, s, fetch(out, of.width), of.width, r.want_out + last,
                r.round_out + last, r.noise_out + last, NULL);
    }
}

int main(void) {
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(plain_float);
    RUN(plain_16<bf16>);
    RUN(flash_16<bf16>);
    RUN(groups<float>);
    RUN(groups<bf16>);
    RUN(cached_is_the_last_row<float>);
    RUN(cached_is_the_last_row<bf16>);
    RUN(large_scores);
    RUN(other_blocks<bf16>);
    if (test_whole()) {  // the other type of 16 bits
        RUN(plain_16<f16>);
        RUN(flash_16<f16>);
        RUN(groups<f16>);
        RUN(cached_is_the_last_row<f16>);
        RUN(other_blocks<f16>);
    }
    RUN(what_must_not_matter);
    RUN(work_is_divided);
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
