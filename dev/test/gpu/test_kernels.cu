// Tests of the GPU kernels of one layer each, and of the optimizer's, against train_gpt2.c.
//
// Inputs are first rounded to the storage type X, and the CPU's function, in fp32, gets the same
// numbers. What X = float returns then differs by the order of sums and by exp: bands of about 1e-6
// of the value, or of the tensor's root mean square where terms cancel. What X = bf16 (f16) returns
// is the fp32 result rounded once: half an ulp, 2^-8 (2^-11), more; two roundings in a row would
// not pass. Where one operation makes the result, and for the optimizer and the norm, bits must be
// equal. Each tensor is an allocation of its own, and what a kernel has to write is NaN before.
// (That kernels leave the same bits each time is seen by the rows of test_placement.)
#include "model_harness.cuh"
#include "cpu_reference.h"
#include "tensors.cuh"

using namespace tensors;

// Normal numbers that X can hold.
template <typename X> static float *normals(size_t n, uint32_t seed, float mean, float std) {
    float *x = zeros<float>(n);
    rng_normals(x, n, seed, 1, 2, 0);
    for (size_t i = 0; i < n; i++) x[i] = rounded<X>(mean + std * x[i]);
    return x;
}

static int32_t *random_tokens(size_t n, size_t V, uint32_t seed) {
    int32_t *x = zeros<int32_t>(n);
    for (size_t i = 0; i < n; i++) {  // few are frequent, as in text; both ends are there
        const Philox4 r = philox4x32(seed, (uint32_t)i, 0, 0, 0);
        x[i] = (int32_t)(r.x[0] % 3 == 0 ? V / 2 : r.x[1] % V);
        if (i % 7 == 3) x[i] = (int32_t)V - 1;
        if (i % 11 == 5) x[i] = 0;
    }
    return x;
}

// Where each token's document begins, in rows of several; NULL: a row is one.
static int32_t *document_begins(size_t N, size_t T, size_t document) {
    int32_t *begins = document > 0 ? zeros<int32_t>(N) : NULL;
    for (size_t n = 0; begins != NULL && n < N; n++)
        begins[n] = (int32_t)(n % T / document * document);
    return begins;
}

// ---------------------------------------------------------------------------------------------
// Comparing

// Half the distance between two numbers of X, relative, and a little for a sum that went the other
// way from a tie.
template <typename X> static double rounding(void) {
    return std::is_same_v<X, float> ? 0 : (1 + 0x1p-8) * unit<X>();
}

// The band of the text above, `band` being the fp32 part.
template <typename X>
static void check_band(const char *what, const float *got, const float *want, size_t n,
                       double band) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)want[i] * want[i];
    check_near(what, got, want, n, band + rounding<X>(),
               band * sqrt(squares / (double)n) + tiny<X>());
}

// Equal bits of rounded<X>(want); any NaN equals any other.
template <typename X>
static void check_equal(const char *what, const float *got, const float *want, size_t n) {
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        const float w = rounded<X>(want[i]);
        if (memcmp(&got[i], &w, 4) == 0 || (got[i] != got[i] && w != w)) continue;
        if (bad++ == 0) first = i;
    }
    CHECK(bad == 0, "%s, %s: %zu of %zu differ; [%zu] is %.9g, not %.9g", what, shape, bad, n,
          first, got[first], rounded<X>(want[first]));
}

// ---------------------------------------------------------------------------------------------
// Embeddings

static TokenOrder device_order(const int32_t *tokens, size_t N, size_t V) {
    int32_t *rows = zeros<int32_t>(N), *first = zeros<int32_t>(N + 1);
    int32_t *count = zeros<int32_t>(2 * V);
    TokenOrder order = token_order(rows, first, count, tokens, N, V);
    size_t wrong = 0;
    CHECK(order.groups > 0 && order.groups <= V && first[0] == 0
          && first[order.groups] == (int32_t)N, "ends");
    for (size_t g = 0; g < order.groups; g++) {
        wrong += first[g] >= first[g + 1] || (first[g + 1] - first[g] > 8) != (g < order.large);
        if (g > 0 && g != order.large)
            wrong += tokens[rows[first[g]]] <= tokens[rows[first[g] - 1]];
        for (int32_t i = first[g] + 1; i < first[g + 1]; i++)
            wrong += tokens[rows[i]] != tokens[rows[i - 1]] || rows[i] <= rows[i - 1];
    }
    CHECK(wrong == 0, "%zu rows out of order", wrong);
    order.rows = upload(rows, N);
    order.first = upload(first, order.groups + 1);
    return order;
}

// counts: how many rows the last four tokens have; NULL: tokens as in text.
template <typename X>
static void encoder_case(size_t B, size_t T, size_t C, size_t V, const size_t *counts = NULL,
                         size_t document = 0) {
    Scope scope;
    set_shape("B %zu T %zu C %zu V %zu documents of %zu", B, T, C, V, document);
    const size_t N = B * T, context = T + 2;
    int32_t *tokens = random_tokens(N, V, 1);
    for (size_t n = 0; counts != NULL && n < N; n++) {
        size_t k = 0, i = n * 37 % N;
        while (i >= counts[k]) i -= counts[k++];
        tokens[n] = (int32_t)(V - 4 + k);
    }
    float *wte = normals<X>(V * C, 2, 0, 1), *wpe = normals<X>(context * C, 3, 0, 1);
    float *dout = normals<X>(N * C, 4, 0, 1), *dwte = normals<float>(V * C, 5, 0, 1);
    float *out = zeros<float>(N * C), *dwte_want = copy(dwte, V * C);
    float *dwpe = zeros<float>(context * C);
    int32_t *begins = document_begins(N, T, document), *places = zeros<int32_t>(N);
    const size_t positions = document > 0 ? document : T;
    for (size_t n = 0; begins != NULL && n < N; n++) places[n] = (int32_t)(n % T) - begins[n];
    on_cpu.encoder_forward(out, tokens, begins, wte, wpe, B, T, C);
    on_cpu.encoder_backward(dwte_want, dwpe, dout, tokens, begins, B, T, C);
    const int32_t *d_tokens = upload(tokens, N);
    X *d_out = poison<X>(N * C), *d_dwpe = poison<X>(context * C);
    const int32_t *d_begins = begins == NULL ? NULL : upload(begins, N);
    encoder_forward(d_out, d_tokens, d_begins, device<X>(wte, V * C),
                    device<X>(wpe, context * C), B, T, C, stream);
    check_equal<X>("out", host(d_out, N * C), out, N * C);
    float *d_dwte = device<float>(dwte, V * C);
    const X *d_dout = device<X>(dout, N * C);
    TokenOrder order = device_order(tokens, N, V), none = {};
    encoder_backward(d_dwte, (X *)NULL, d_dwpe, d_dout, d_tokens, order,
                     begins == NULL ? none : device_order(places, N, T), B, T, C, stream);
    // a row of dwte may have N terms
    check_band<float>("dwte", host(d_dwte, V * C), dwte_want, V * C,
                      counts != NULL ? 5e-6 : 1e-6);
    float *by_blocks = device<float>(dwte, V * C);
    order.large = order.groups;
    encoder_backward(by_blocks, (X *)NULL, (X *)NULL, d_dout, d_tokens, order, none, B, T, C,
                     stream);
    float *same = host(by_blocks, V * C);
    check_equal<float>("dwte by warps", host(d_dwte, V * C), same, V * C);
    check_band<X>("dwpe", host(d_dwpe, positions * C), dwpe, positions * C, 1e-6);
    float *beyond = host(d_dwpe, context * C);
    for (size_t i = positions * C; i < context * C; i++)
        CHECK(beyond[i] != beyond[i], "row %zu of dwpe was written", i / C);
}

template <typename X> static void encoder(void) {
    static const size_t few_and_many[] = {1, 8, 9, 100}, one_token[] = {0, 0, 0, 333};
    encoder_case<X>(1, 1, 8, 5);
    encoder_case<X>(9, 65, 24, 131);
    encoder_case<X>(3, 7, 1600, 131);
    encoder_case<X>(2, 59, 264, 50, few_and_many);
    encoder_case<X>(3, 111, 264, 5, one_token);
    encoder_case<X>(2, 65, 264, 50, NULL, 64);
    encoder_case<X>(2, 5, 24, 5, NULL, 1);
}

// ---------------------------------------------------------------------------------------------
// Layer normalisation

// Sums of columns of (N, C).
static float *columns(const float *x, size_t N, size_t C) {
    float *sum = zeros<float>(C);
    for (size_t i = 0; i < N * C; i++) sum[i % C] += x[i];
    return sum;
}

template <typename X>
static void layernorm_case(size_t N, size_t C, bool rms, float offset = 0.5f, float size = 2,
                           double band = 2e-6) {
    const float eps = rms ? 1e-6f : LAYERNORM_EPS;
    Scope scope;
    set_shape("N %zu C %zu rms %d offset %g size %g", N, C, rms, offset, size);
    float *a = normals<X>(N * C, 1, offset, size), *b = normals<X>(N * C, 2, 0, size / 2);
    float *w = normals<X>(C, 3, 1, 0.3f), *bias = rms ? NULL : normals<X>(C, 4, 0, 0.3f);
    float *dout = normals<X>(N * C, 5, 0.2f, 1), *dinp = normals<X>(N * C, 6, 0, 1);
    float *sum = copy(a, N * C), *out = zeros<float>(N * C), *dx = copy(dinp, N * C);
    float *mean = rms ? NULL : zeros<float>(N), *rstd = zeros<float>(N);
    float *dw = zeros<float>(C), *db = rms ? NULL : zeros<float>(C);
    on_cpu.residual_forward(sum, b, N * C);
    for (size_t i = 0; i < N * C; i++) sum[i] = rounded<X>(sum[i]);
    on_cpu.layernorm_forward(out, mean, rstd, sum, w, bias, N, C, eps);
    on_cpu.layernorm_backward(dx, dw, db, dout, sum, w, mean, rstd, N, C, false);
    const X *d_w = device<X>(w, C), *d_bias = rms ? NULL : device<X>(bias, C);
    const X *d_a = device<X>(a, N * C), *d_b = device<X>(b, N * C);
    X *d_sum = poison<X>(N * C), *d_out = poison<X>(N * C), *d_alone = poison<X>(N * C);
    float *d_mean = rms ? NULL : poison<float>(N), *d_rstd = poison<float>(N);
    residual_layernorm_forward(d_sum, d_out, d_mean, d_rstd, d_a, d_b, d_w, d_bias, N, C, eps,
                               stream);
    const float *got = host(d_out, N * C);
    check_equal<X>("a + b", host(d_sum, N * C), sum, N * C);
    check_band<X>("out", got, out, N * C, band);
    if (!rms) check_band<float>("mean", host(d_mean, N), mean, N, band);
    check_band<float>("rstd", host(d_rstd, N), rstd, N, band);
    layernorm_forward(d_alone, d_mean, d_rstd, d_sum, d_w, d_bias, N, C, eps, stream);
    check_equal<X>("out, not fused", host(d_alone, N * C), got, N * C);

    // backward, from the CPU's mean and rstd
    X *d_dinp = device<X>(dinp, N * C), *d_dw = poison<X>(C), *d_db = rms ? NULL : poison<X>(C);
    X *d_column = poison<X>(C), *at_once = rms ? d_column : NULL;
    float *scratch = poison<float>(layernorm_backward_scratch(N, C));
    layernorm_backward(d_dinp, d_dw, d_db, at_once, scratch, device<X>(dout, N * C),
                       device<X>(sum, N * C), d_w, rms ? NULL : device<float>(mean, N),
                       device<float>(rstd, N), N, C, stream);
    if (at_once == NULL) layernorm_dinp_sum(d_column, scratch, N, C, stream);
    check_band<X>("dinp", host(d_dinp, N * C), dx, N * C, band);
    check_band<X>("dw", host(d_dw, C), dw, C, band);
    if (!rms) check_band<X>("db", host(d_db, C), db, C, band);
    const float *column = columns(host(d_dinp, N * C), N, C);
    check_band<X>("sum of dinp", host(d_column, C), column, C, band);
}

template <typename X> static void layernorm(void) {
    for (int rms = 0; rms < 2; rms++) {
        for (size_t C : {8, 24, 768, 1600}) layernorm_case<X>(37, C, rms);
        // 17 rows a block, and a short last block; the CPU's sum of so many terms is less exact
        layernorm_case<X>(8205, 8, rms, 0.5f, 2, 4e-6);
        layernorm_case<X>(17, 4104, rms);
        layernorm_case<X>(3, 12288, rms);
        layernorm_case<X>(7, 24, rms, 0, rms ? 1e-3f : 3e-3f);  // under the root is much of eps
    }
    // E[x^2] - E[x]^2 would lose most digits here; the CPU's mean, without vectors, some
    layernorm_case<X>(3, 768, false, 2000, 2, 5e-3);
}

// ---------------------------------------------------------------------------------------------
// Rotary positions, the norm of q and k

template <typename X>
static void heads_case(size_t B, size_t T, size_t NH, size_t NKV, size_t HS, bool norm,
                       size_t document = 0) {
    Scope scope;
    set_shape("B %zu T %zu heads %zu/%zu of %zu, norm %d, documents of %zu", B, T, NH, NKV, HS,
              norm, document);
    const size_t N = B * T, heads = NH + NKV, wide = N * (heads + NKV) * HS, n = N * heads * HS;
    const float eps = 1e-2f;
    const Rope rope = {.theta = 1e4, .scaling = ROPE_NONE, .factor = 1, .low = 1, .high = 4,
                       .original = 8192};
    float *table = zeros<float>(T * HS), *x = normals<X>(wide, 1, 0.2f, 1);
    float *y = copy(x, wide), *d = normals<X>(wide, 2, 0, 1), *dx = copy(d, wide);
    float *w_q = normals<X>(HS, 3, 1, 0.3f), *w_k = normals<X>(HS, 4, 1, 0.3f);
    float *qk = zeros<float>(n), *rstd = zeros<float>(N * heads);
    float *dw_q = zeros<float>(HS), *dw_k = zeros<float>(HS);
    const int32_t *begins = document_begins(N, T, document);
    rope_table(&rope, T, HS, table);
    on_cpu.heads_forward(y, norm ? qk : NULL, norm ? rstd : NULL, norm ? w_q : NULL,
                      norm ? w_k : NULL, table, begins, B, T, NH, NKV, HS, eps);
    on_cpu.heads_backward(dx, norm ? dw_q : NULL, norm ? dw_k : NULL, qk, rstd, norm ? w_q : NULL,
                       norm ? w_k : NULL, table, begins, B, T, NH, NKV, HS, false);
    const float *d_table = device<float>(table, T * HS);
    const int32_t *d_begins = begins == NULL ? NULL : upload(begins, N);
    X *d_x = device<X>(x, wide), *d_d = device<X>(d, wide), *d_dw = poison<X>(2 * HS);
    X *d_qk = norm ? poison<X>(n) : NULL, *d_w = norm ? device<X>(w_q, HS) : NULL;
    X *d_wk = norm ? device<X>(w_k, HS) : NULL;
    float *d_rstd = norm ? poison<float>(N * heads) : NULL;
    float *scratch = norm ? poison<float>(heads_backward_scratch(N, HS)) : NULL;
    const AttentionShape s = attention_shape(B, T, NH, NKV, HS);
    heads_forward(d_x, d_qk, d_rstd, d_w, d_wk, d_table, d_begins, s, eps, stream);
    heads_backward(d_d, d_dw, d_dw + HS, scratch, d_qk, d_rstd, d_w, d_wk, d_table, d_begins, s,
                   stream);
    check_band<X>("y", host(d_x, wide), y, wide, 2e-6);
    check_band<X>("dx", host(d_d, wide), dx, wide, 2e-6);
    if (!norm) return;
    check_equal<X>("qk", host(d_qk, n), qk, n);
    check_band<float>("rstd", host(d_rstd, N * heads), rstd, N * heads, 2e-6);
    float *dw = host(d_dw, 2 * HS);
    check_band<X>("dw of q", copy(dw, HS), dw_q, HS, 5e-6);
    check_band<X>("dw of k", copy(dw + HS, HS), dw_k, HS, 5e-6);
}

template <typename X> static void heads(void) {
    for (size_t HS : {2, 8, 20, 100, 128, 256}) {
        heads_case<X>(1, 3, 2, 1, HS, false);
        heads_case<X>(2, 9, 3, 3, HS, false, 4);
        heads_case<X>(2, 9, 4, 2, HS, true, 4);
    }
    heads_case<X>(3, 1000, 2, 1, 16, true, 300);  // six rows a block
}

// ---------------------------------------------------------------------------------------------
// Activation, and the sums of a bias

// Each kind: GELU and ReLU of rows of F, SiLU with its gate of rows of 2 F, in which what lies
// behind the gradient is not read.
template <typename X> static void activation(void) {
    const size_t rows[] = {1, 8, 65, 333, 1, 4200}, widths[] = {8, 256, 264, 24, 5000, 24};
    for (int i = 0; i < 6 * 3; i++) {
        const int kind = ACTIVATION_GELU + i % 3;
        const bool gate = kind == ACTIVATION_SILU;
        const size_t N = rows[i / 3], F = widths[i / 3], wide = gate ? 2 * F : F, n = N * wide;
        Scope scope;
        set_shape("N %zu F %zu kind %d", N, F, kind);
        float *x = normals<X>(n, 1, 0, 3), *d = normals<X>(n, 2, 0, 1), *out = zeros<float>(N * F);
        const float special[] = {0, -0.0f, 1e-30f, -1e-30f, 12, -12, 60, -60, 1e4f, -1e4f};
        for (size_t j = 0; j < (gate ? 8 : 10) && n > 8; j++) x[j] = rounded<X>(special[j]);
        for (size_t j = 0; j < n; j++) if (gate && j / F % 2 == 1) d[j] = NAN;
        float *dx = copy(d, n);
        on_cpu.activation_forward(out, x, N, F, kind);
        on_cpu.activation_backward(dx, x, N, F, kind);
        const X *d_x = device<X>(x, n);
        X *d_out = poison<X>(N * F), *d_d = device<X>(d, n), *d_db = poison<X>(2 * wide);
        X *no_bias = device<X>(d, n);
        float *scratch = poison<float>(bias_backward_scratch(N, wide));
        activation_forward(d_out, d_x, N, F, kind, stream);
        activation_backward(no_bias, (X *)NULL, scratch, d_x, N, F, kind, stream);
        activation_backward(d_d, d_db, scratch, d_x, N, F, kind, stream);
        bias_backward(d_db + wide, scratch, d_d, N, wide, stream);
        const float *db = host(d_db, 2 * wide), *slope = host(d_d, n);
        check_equal<X>("db", db, db + wide, wide);
        check_band<X>("db", db, columns(slope, N, wide), wide, 4e-6);
        check_equal<X>("dinp without a bias", host(no_bias, n), slope, n);
        // absolute: what 1 + tanh(u) loses on the CPU where tanh(u) is near -1
        const bool gelu = kind == ACTIVATION_GELU;
        check_near("out", host(d_out, N * F), out, N * F, (gate ? 2e-6 : 1e-6) + rounding<X>(),
                   gelu ? 1e-6 : 1e-30 + tiny<X>());
        check_near("dinp", slope, dx, n, 2e-6 + rounding<X>(), gelu || gate ? 4e-6 : 0);
    }
}

enum { ALL_16 = 1 << 16 };

// GELU, SiLU and their derivatives of all finite numbers of 16 bits, as they are stored, against
// double. 2^a is the exponential in a sigmoid: its error and the reciprocal's are 4 units of 2^-23
// at most (PTX manual), and a's roundings add two for each of |a|.
template <typename X> static void all_of_16_bits(void) {
    Scope scope;
    set_shape("%s", type_name<X>());
    X *all = zeros<X>(ALL_16);
    float *x = zeros<float>(2 * ALL_16), *ones = zeros<float>(2 * ALL_16);
    for (size_t i = 0; i < ALL_16; i++) {
        const uint16_t bits = (uint16_t)i;
        memcpy((void *)&all[i], &bits, 2);
        x[i] = isfinite(wide(all[i])) ? wide(all[i]) : 0;
        x[ALL_16 + i] = ones[i] = ones[ALL_16 + i] = 1;  // what the gates let through
    }
    X *d_x = device<X>(x, 2 * ALL_16);
    for (int kind : {ACTIVATION_GELU, ACTIVATION_SILU}) {
        const bool gelu = kind == ACTIVATION_GELU;
        X *out = poison<X>(ALL_16), *d = device<X>(ones, 2 * ALL_16);
        activation_forward(out, d_x, 1, ALL_16, kind, stream);
        activation_backward(d, (X *)NULL, poison<float>(bias_backward_scratch(1, 2 * ALL_16)), d_x,
                            1, ALL_16, kind, stream);
        const float *got = host(out, ALL_16), *slope = host(d, 2 * ALL_16);
        for (size_t i = 0; i < ALL_16; i++) {
            const double z = x[i], scale = sqrt(2 / 3.14159265358979324);
            const double u = gelu ? 2 * scale * (z + 0.044715 * z * z * z) : z;
            const double du = gelu ? 2 * scale * (1 + 3 * 0.044715 * z * z) : 1;
            const double want = 1 / (1 + exp(-u)), rest = 1 / (1 + exp(u));  // rest: 1 - want
            const double a = fmin(fabs(u / log(2)), 127);
            const double error = (4 + 2 * a) * 0x1p-23 + rounding<X>();
            CHECK(test_within(fabs(got[i] - z * want), error * fabs(z * want) + tiny<X>()
                              + (1 + fabs(z)) * 0x1p-126), "%d of %g: %.9g, not %.9g", kind, z,
                  got[i], z * want);
            if (fabs(z) > 1e18) continue;  // in fp32, z^2 overflows
            const double grad = want + z * want * rest * du;
            CHECK(test_within(fabs(slope[i] - grad), rounding<X>() * fabs(grad) + 2e-6 + tiny<X>()),
                  "slope %d of %g: %.9g, not %.9g", kind, z, slope[i], grad);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Loss. (Its sum: test_model.)

// Rows with single logits of -INFINITY, and all that one thread sees; with equal ones; and one that
// is not trained. Rows are kept by a block, or read twice.
template <typename X> static void crossentropy_case(size_t V, float grad_scale, bool twice) {
    enum { N = 4, STD = 3 };
    Scope scope;
    set_shape("V %zu scale %g, read twice %d", V, grad_scale, twice);
    const size_t Vp = round_up(V, ALIGN_ELEMENTS);
    float *z = normals<X>(N * Vp, 1, 0.5f, STD), *losses = zeros<float>(N);
    const int32_t targets[N] = {(int32_t)V - 1, 0, (int32_t)V / 2, -1};
    for (size_t v = 1; v < V; v++)
        if (v == 1 || v == 3 || (v >= 8 && v < 16)) z[Vp + v] = -INFINITY;
    for (size_t v = 0; v < V; v++) z[2 * Vp + v] = 80;
    for (size_t n = 0; n < N; n++)
        for (size_t v = V; v < Vp; v++) z[n * Vp + v] = NAN;
    float *dz = copy(z, N * Vp), *d_losses = poison<float>(N);
    X *d_z = device<X>(z, N * Vp);
    on_cpu.crossentropy(losses, dz, targets, grad_scale, N, V, Vp);
    crossentropy(d_losses, d_z, upload(targets, N), grad_scale, N, V, Vp, stream, twice);
    const float *got = host(d_z, N * Vp);
    check_near("losses", host(d_losses, N), losses, N, 2e-6, 2e-6 * (1 + 4 * STD));
    if (grad_scale == 0) {  // all is as it was
        check_equal<X>("logits", got, z, N * Vp);
        return;
    }
    for (size_t i = 0; i < N * Vp; i++)
        if (i % Vp >= V) dz[i] = 0;
    check_near("dlogits", got, dz, N * Vp, 4e-6 + rounding<X>(), 2e-6 * grad_scale + tiny<X>());
}

template <typename X> static void loss(void) {
    for (size_t V : {5, 131, 8192})
        for (float scale : {0.0f, 0.25f})
            for (int twice = 0; twice < 2; twice++) crossentropy_case<X>(V, scale, twice);
}

// ---------------------------------------------------------------------------------------------
// Gradients of micro-batches

template <typename X> static void gradients(void) {
    const size_t n = 3968;
    Scope scope;
    set_shape("n %zu", n);
    float *g = normals<X>(n, 1, 0, 1), *more = normals<X>(n, 2, 0, 1e-3f);
    float *sum = zeros<float>(n), *wide = normals<float>(n, 3, 0, 1), *acc = poison<float>(n);
    X *out = poison<X>(n);
    for (size_t i = 0; i < n; i++) sum[i] = g[i] + more[i];
    accumulate_gradient(acc, device<X>(g, n), n, true, stream);
    accumulate_gradient(acc, device<X>(more, n), n, false, stream);
    check_equal<float>("sum", host(acc, n), sum, n);
    round_gradient(out, device<float>(wide, n), n, stream);
    check_equal<X>("rounded", host(out, n), wide, n);
}

template <typename X> static void layers(void) {
    encoder<X>();
    layernorm<X>();
    heads<X>();
    activation<X>();
    loss<X>();
    gradients<X>();
}

// ---------------------------------------------------------------------------------------------
// AdamW and the norm: bits

// Ordinary numbers; of each 256, one in eight of the first 64 is not, and the next 64 are eights of
// any size.
static float *unusual(size_t n, uint32_t seed, float std, bool squares) {
    static const uint32_t special[] = {
        0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x00800001, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x1f800000, 0x20000000, 0x3f800000};
    float *x = normals<float>(n, seed, 0, std);
    for (size_t i = 0; i < n; i++) {
        const Philox4 r = philox4x32(seed, (uint32_t)i, 7, 7, 7);
        const Philox4 eight = philox4x32(seed, (uint32_t)(i / 8), 7, 7, 8);
        if (squares) x[i] *= x[i];
        if (i / 64 % 4 == 0 && r.x[0] % 8 == 0) memcpy(&x[i], &special[r.x[1] % 16], 4);
        if (i / 64 % 4 == 1) x[i] = ldexpf(x[i], (int)(eight.x[0] % 240) - 120);
        if (squares) x[i] = fabsf(x[i]);
    }
    return x;
}

enum { ARENA = 13000, RUNS = 21 };

// Runs of all kinds: whole tensors, odd starts, odd lengths, next to each other, empty.
static void make_runs(AdamRun *runs) {
    const size_t at[RUNS] = {0, 128, 131, 140, 141, 145, 256, 260, 301, 306, 400, 1408, 1409, 1500,
                             1600, 6401, 12000, 12001, 12002, 12100, 12991};
    const size_t length[RUNS] = {100, 3, 9, 1, 2, 4, 4, 41, 5, 0, 1001, 1, 3, 64, 4097, 5000, 1, 1,
                                 97, 800, 9};
    for (int i = 0; i < RUNS; i++) {
        runs[i].at = at[i];
        runs[i].length = length[i];
        runs[i].decay = i % 3 != 0;
        runs[i].index = 7 + 5 * at[i];
    }
}

// Elements x on the GPU, `skip` of them behind the begin of an allocation.
template <typename T> static T *upload_behind(size_t skip, const T *x, size_t n) {
    T *p = poison<T>(skip + n) + skip;
    CUDA(cudaMemcpy(p, x, n * sizeof(T), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    return p;
}

static float *widened(const void *halves, size_t n) {
    float *x = zeros<float>(n);
    for (size_t i = 0; i < n; i++) x[i] = bf16_to_f32(((const uint16_t *)halves)[i]);
    return x;
}

// How weights are: floats; with lower halves; without.
enum { WHOLE, SPLIT, ROUNDED };

// skip: elements by which the arenas start after a multiple of 16 bytes.
static void adam_case(bool is_half, int weights, bool moments_bf16, size_t skip, int count) {
    Scope scope;
    set_shape("gradient bf16 %d, weights %d, moments bf16 %d, skip %zu, runs %d", is_half, weights,
              moments_bf16, skip, count);
    const bool split = weights != WHOLE;
    const size_t n = ARENA;
    AdamRun runs[RUNS];
    make_runs(runs);
    float *p = unusual(n, 1, 1, false), *g = unusual(n, 4, 1e-2f, false);
    float *moments[2] = {unusual(n, 2, 1e-3f, false), unusual(n, 3, 1e-3f, true)};
    uint16_t *w16 = zeros<uint16_t>(n), *g16 = zeros<uint16_t>(n), *low = zeros<uint16_t>(n);
    for (size_t i = 0; i < n; i++) {
        g16[i] = f32_to_bf16(g[i]);
        for (int k = 0; k < 2 && moments_bf16; k++)  // in place: 2 bytes of each 4
            ((uint16_t *)moments[k])[i] = f32_to_bf16(moments[k][i]);
        if (weights == ROUNDED) p[i] = bf16_to_f32(f32_to_bf16(p[i]));
    }
    master_move(w16, low, p, n, false);
    void *d_w = split ? (void *)upload_behind(skip, w16, n) : upload_behind(skip, p, n);
    void *d_moments[2];
    uint16_t *d_low = upload_behind(skip, low, n);
    for (int k = 0; k < 2; k++)
        d_moments[k] = moments_bf16 ? upload_behind(skip, (uint16_t *)moments[k], 2 * n)
                                    : (void *)upload_behind(skip, moments[k], n);
    const void *d_g = is_half ? (void *)upload_behind(skip, g16, n) : upload_behind(skip, g, n);
    AdamStep step = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, 3, 0.37);
    step.moments_bf16 = moments_bf16;
    step.master_bf16 = weights == ROUNDED;
    const AdamWork work = {.w = split ? (void *)w16 : p, .low = weights == SPLIT ? low : NULL,
                           .m = moments[0], .v = moments[1],
                           .grad = is_half ? (void *)g16 : g, .grad_is_half = is_half, .scale = 1,
                           .runs = runs, .count = count, .step = step, .halves = split};
    adam_work(&work);
    adam_update_gpu(d_w, weights == SPLIT ? d_low : NULL, d_moments[0], d_moments[1], d_g, is_half,
                    runs, count, &step, stream);
    if (split) {
        const uint16_t *got_low = fetch(d_low, n);
        size_t bad = 0;
        for (size_t i = 0; i < n; i++)
            bad += got_low[i] != low[i] && !isnan(bf16_to_f32(w16[i]));
        CHECK(bad == 0, "%s: %zu lower halves", shape, bad);
        check_equal<float>("weights", host((bf16 *)d_w, n), widened(w16, n), n);
    } else {
        check_equal<float>("weights", host((float *)d_w, n), p, n);
    }
    for (int k = 0; k < 2; k++)
        if (moments_bf16)
            check_equal<float>("moments", host((bf16 *)d_moments[k], n), widened(moments[k], n), n);
        else
            check_equal<float>("moments", host((float *)d_moments[k], n), moments[k], n);
}

static void adam_is_the_cpu_s_bit_for_bit(void) {
    for (int mode = 0; mode < 6; mode++) {
        if (mode == 1) continue;  // gradients in bf16 have weights of two halves
        adam_case(mode & 1, mode >> 1, false, 0, 16);
        adam_case(mode & 1, mode >> 1, false, 1, RUNS);
        adam_case(mode & 1, mode >> 1, true, 0, RUNS);
        adam_case(mode & 1, mode >> 1, true, 1, 1);
    }
}

// Every root of which another is a power of 4 times it (without a GPU, each 256th), and as many
// quotients; some are in the middle of two subnormal numbers, 6 being no power of 2. beta is 1, so
// the moments stay; lr is -1, and p takes the step.
static void adam_divides_as_ieee_does(void) {
#ifdef __CUDA_EMU__
    const size_t n = 1 << 16;
#else
    const size_t n = 1 << 24;
#endif
    const AdamStep step = {.grad_scale = 1, .beta1 = 1, .beta2 = 1, .root_scale = 1, .eps = 1e-30f,
                           .minus_lr = 1};
    const AdamRun run = {0, n, 0, 0};
    float *p = zeros<float>(n), *v = zeros<float>(n), *g = zeros<float>(n);
    float *m = normals<float>(n, 1, 0, 1);
    for (size_t i = 0; i < n; i++) v[i] = bits_float(0x3f800000 + (uint32_t)(i * ((1 << 24) / n)));
    for (size_t i = 0; i < n / 64; i++) v[i] = 36, m[i] = ldexpf(6e6f * 3 + 6 + 12 * i, -150);
    Scope scope;
    set_shape("%zu", n);
    float *d_p = device<float>(p, n), *d_m = device<float>(m, n), *d_v = device<float>(v, n);
    adam_update_gpu(d_p, NULL, d_m, d_v, device<float>(g, n), false, &run, 1, &step, stream);
    adam_update(p, NULL, m, v, g, false, n, &step, 0);
    check_equal<float>("step", host(d_p, n), p, n);
}

// The sum of the blocks' sums, which are such that another order would give another number; also
// where they are not in order, as those of several ranks.
static void total_case(size_t count, bool shuffled) {
    Scope scope;
    set_shape("%zu blocks, shuffled %d", count, shuffled);
    const size_t room = count + 3;
    double *sums = zeros<double>(2 * room), *given = sums + room;
    uint32_t *order = zeros<uint32_t>(room);
    float *x = normals<float>(room, 9, 0, 3);
    for (size_t i = 0; i < room; i++) sums[i] = given[i] = exp((double)x[i]);
    for (size_t i = 0; i < count; i++) {
        order[i] = (uint32_t)((i * 7919 + 2) % room);  // prime, and no divisor of any room here
        if (shuffled) given[order[i]] = sums[i];
    }
    const double want = norm_total(sums, count);
    double plain = 0;
    for (size_t i = 0; i < count; i++) plain += sums[i];
    CHECK(count < 1000 || plain != want, "another order would not be noticed");
    double *total = poison<double>(1);
    norm_total_gpu(total, poison<double>(norm_runs(count)), upload(given, room),
                   shuffled ? upload(order, room) : NULL, count, stream);
    const double got = *fetch(total, 1);
    CHECK(memcmp(&got, &want, 8) == 0, "%.17g, not %.17g", got, want);
}

static void norm_is_the_cpu_s_bit_for_bit(void) {
    for (size_t count : {0, 1, 33, 1024, 8 * 1024 + 1, 67 * 1024 + 1000})
        for (int shuffled = 0; shuffled < 2; shuffled++) total_case(count, shuffled);
}

// The room that is planned for max_B x max_T is enough for every batch up to that size.
static void scratch_is_enough(void) {
    static const size_t rows[] = {1, 15, 64, 100, 2048, 9216, 10000, 25600, 32768, 76800, 131072};
    enum { ROWS = sizeof rows / sizeof *rows };
    for (size_t C = 8; C <= 12288; C += C < 1024 ? 8 : 128)
        for (int i = 0; i < ROWS; i++)
            for (int j = i; j < ROWS; j++) {
                const size_t N = rows[i], wide = 3 * C;
                CHECK(ceil_div(N, layernorm_backward_rows(N)) * 3 * C
                          <= layernorm_backward_scratch(rows[j], C)
                      && ceil_div(N, rows_of_block(N, 64, bias_backward_splits(wide))) * wide
                          <= bias_backward_scratch(rows[j], wide)
                      && 2 * C * ceil_div(N, rows_of_block(N, 4, 512))
                          <= heads_backward_scratch(rows[j], C),
                      "%zu channels, %zu rows in room for %zu", C, N, rows[j]);
            }
}

// Kernels that count in 32 bits refuse more: these are 2^31 packs, and more. Sums of products are
// fp32: in 16 bits the library would round twice. Needs no GPU: it is the first test, as it forks.
static void sizes_and_sums_are_refused(void) {
    for (int i = 0; i < 5; i++) {
        const size_t B = ((size_t)1 << 17) + (size_t)(i % 2), T = 2048, C = 64;
        const char *words = i < 4 ? "32 bits" : "sums are fp32";
        Matmul lt;
        char line[1024];
        int status;
        memset(&lt, 0, sizeof lt);
        if (in_child(line, &status)) {
            bf16 *none = NULL;
            if (i < 2) index_32(B * T * C / Pack<bf16>::N);
            else if (i == 2) encoder_forward<bf16>(NULL, NULL, NULL, NULL, NULL, B + 1, T, C, NULL);
            else if (i == 3)
                attention_backward<bf16>(NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
                                         attention_shape(B, T, 1, 1, C), NULL);
            else gemm(&lt, false, true, 8, 8, 8, none, 8, none, 8, none, 8, NULL, true, NULL);
            _exit(0);
        }
        CHECK(i == 0 ? status == 0 : WIFEXITED(status) && WEXITSTATUS(status) != 0
                                     && strstr(line, words) != NULL, "%d: %d, %s", i, status, line);
    }
}

int main(void) {
    RUN(sizes_and_sums_are_refused);
    RUN(scratch_is_enough);
    CHECK(!EMULATED || (two_blocks_fit(50304 * 2) && !two_blocks_fit(50304 * 4)), "rows are read "
          "twice");
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(layers<float>);
    RUN(layers<bf16>);
    RUN(layers<f16>);
    RUN(all_of_16_bits<bf16>);
    RUN(all_of_16_bits<f16>);
    RUN(adam_is_the_cpu_s_bit_for_bit);
    RUN(adam_divides_as_ieee_does);
    RUN(norm_is_the_cpu_s_bit_for_bit);
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
