// Tests of the GPU kernels where no small model comes, and of the optimizer's, against train_gpt2.c.
// (All kernels of the layers, on small models: test_model.)
//
// Inputs are first rounded to the storage type X, and the CPU's function, in fp32, gets the same
// numbers. What X = float returns then differs by the order of sums and by exp: bands of about 1e-6
// of the value, or of the tensor's root mean square where terms cancel. What X = bf16 (f16) returns
// is the fp32 result rounded once: half an ulp, 2^-8 (2^-11), more; two roundings in a row would
// not pass. Where one operation makes the result, and for the optimizer and the norm, bits must be
// equal. Each tensor is an allocation of its own, and what a kernel has to write is NaN before.
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

// A tensor that a function of the CPU and a kernel have both.
template <typename X> struct Both { float *cpu; X *gpu; size_t n; };

// What both read: normal numbers. n 0: there is no such tensor.
template <typename X> static Both<X> given(size_t n, uint32_t seed, float mean, float std) {
    if (n == 0) return {};
    float *x = normals<X>(n, seed, mean, std);
    return {x, device<X>(x, n), n};
}

// What both write.
template <typename X> static Both<X> wanted(size_t n) {
    if (n == 0) return {};
    return {zeros<float>(n), poison<X>(n), n};
}

// ---------------------------------------------------------------------------------------------
// Comparing

// Half the distance between two numbers of X, relative, and a little for a sum that went the other
// way from a tie.
template <typename X> static double rounding(void) {
    return std::is_same_v<X, float> ? 0 : (1 + 0x1p-8) * unit<X>();
}

// The band of the text above, `band` being the fp32 part.
template <typename X> static void check_band(const char *what, const Both<X> &x, double band) {
    double squares = 0;
    for (size_t i = 0; i < x.n; i++) squares += (double)x.cpu[i] * x.cpu[i];
    if (x.n > 0)
        check_near(what, host(x.gpu, x.n), x.cpu, x.n, band + rounding<X>(),
                   band * sqrt(squares / (double)x.n) + tiny<X>());
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
// Layer normalisation

template <typename X>
static void layernorm_case(size_t N, size_t C, bool rms, float offset = 0.5f, float size = 2,
                           double band = 2e-6) {
    const float eps = rms ? 1e-6f : 1e-5f;
    Scope scope;
    set_shape("N %zu C %zu rms %d offset %g size %g", N, C, rms, offset, size);
    const size_t n = N * C;
    const Both<X> a = given<X>(n, 1, offset, size), b = given<X>(n, 2, 0, size / 2);
    const Both<X> w = given<X>(C, 3, 1, 0.3f), bias = given<X>(rms ? 0 : C, 4, 0, 0.3f);
    const Both<X> sum = wanted<X>(n), out = wanted<X>(n);
    const Both<float> mean = wanted<float>(rms ? 0 : N), rstd = wanted<float>(N);
    for (size_t i = 0; i < n; i++) sum.cpu[i] = rounded<X>(a.cpu[i] + b.cpu[i]);
    on_cpu.layernorm_forward(out.cpu, mean.cpu, rstd.cpu, sum.cpu, w.cpu, bias.cpu, N, C, eps);
    residual_layernorm_forward(sum.gpu, out.gpu, mean.gpu, rstd.gpu, a.gpu, b.gpu, w.gpu, bias.gpu,
                               N, C, eps, stream);
    check_equal<X>("a + b", host(sum.gpu, n), sum.cpu, n);
    check_band("out", out, band);
    check_band("mean", mean, band);
    check_band("rstd", rstd, band);
    X *alone = poison<X>(n);
    residual_forward(a.gpu, b.gpu, n, stream);
    check_equal<X>("a + b, not fused", host(a.gpu, n), sum.cpu, n);
    layernorm_forward(alone, mean.gpu, rstd.gpu, a.gpu, w.gpu, bias.gpu, N, C, eps, stream);
    check_equal<X>("out, not fused", host(alone, n), host(out.gpu, n), n);

    const Both<X> dout = given<X>(n, 5, 0.2f, 1), dinp = given<X>(n, 6, 0, 1);
    const Both<X> dw = wanted<X>(C), db = wanted<X>(rms ? 0 : C), column = wanted<X>(C);
    float *scratch = poison<float>(layernorm_backward_scratch(N, C));
    on_cpu.layernorm_backward(dinp.cpu, dw.cpu, db.cpu, dout.cpu, sum.cpu, w.cpu, mean.cpu,
                              rstd.cpu, N, C, false);
    layernorm_backward(dinp.gpu, dw.gpu, db.gpu, rms ? column.gpu : NULL, scratch, dout.gpu,
                       sum.gpu, w.gpu, mean.gpu, rstd.gpu, N, C, stream);
    if (!rms) layernorm_dinp_sum(column.gpu, scratch, N, C, stream);
    check_band("dinp", dinp, band);
    check_band("dw", dw, band);
    check_band("db", db, band);
    const float *stored = host(dinp.gpu, n);
    for (size_t i = 0; i < n; i++) column.cpu[i % C] += stored[i];
    check_band("sum of dinp", column, band);
}

template <typename X> static void layernorm(void) {
    for (int rms = 0; rms < 2; rms++) {
        for (size_t C : {24, 1600}) layernorm_case<X>(37, C, rms);
        // 17 rows a block, and a short last block; the CPU's sum of so many terms is less exact
        layernorm_case<X>(8205, 8, rms, 0.5f, 2, 4e-6);
        layernorm_case<X>(17, 12288, rms, 0.5f, 2, 8e-6);
        layernorm_case<X>(7, 24, rms, 0, rms ? 1e-3f : 3e-3f);  // under the root is much of eps
    }
    // E[x^2] - E[x]^2 would lose most digits here; the CPU's mean, without vectors, some
    layernorm_case<X>(3, 768, false, 2000, 2, 5e-3);
}

// ---------------------------------------------------------------------------------------------
// Activation

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
    float *z = normals<X>(N * Vp, 1, 0.5f, STD);
    const Both<float> losses = wanted<float>(N);
    const int32_t targets[N] = {(int32_t)V - 1, 0, (int32_t)V / 2, -1};
    for (size_t i = 0; i < N * Vp; i++) {
        const size_t n = i / Vp, v = i % Vp;
        if (n == 1 && (v == 1 || v == 3 || (v >= 8 && v < 16))) z[i] = -INFINITY;
        if (n == 2) z[i] = 80;
        if (v >= V) z[i] = NAN;
    }
    const float *before = copy(z, N * Vp);
    const Both<X> dz = {z, device<X>(z, N * Vp), N * Vp};
    on_cpu.crossentropy(losses.cpu, z, targets, grad_scale, N, V, Vp);
    crossentropy(losses.gpu, dz.gpu, upload(targets, N), grad_scale, N, V, Vp, stream, twice);
    check_near("losses", host(losses.gpu, N), losses.cpu, N, 2e-6, 2e-6 * (1 + 4 * STD));
    const float *got = host(dz.gpu, dz.n);
    for (size_t i = 0; i < N * Vp; i++)
        if (i % Vp >= V) z[i] = 0;
    if (grad_scale == 0) check_equal<X>("logits", got, before, dz.n);
    else check_near("dlogits", got, z, dz.n, 4e-6 + rounding<X>(), 2e-6 * grad_scale + tiny<X>());
}

template <typename X> static void layers(void) {
    layernorm<X>();
    for (size_t V : {5, 8192})
        for (float scale : {0.0f, 0.25f})
            for (int twice = 0; twice < 2; twice++) crossentropy_case<X>(V, scale, twice);
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

// n numbers of `size` bytes on the GPU, `skip` of them behind the begin of an allocation.
static void *behind(size_t skip, const void *x, size_t n, size_t size) {
    char *p = poison<char>((skip + n) * size) + skip * size;
    CUDA(cudaMemcpy(p, x, n * size, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    return p;
}

// Floats (size 4) or numbers in bf16 (2) as floats.
static float *as_floats(const void *x, size_t n, size_t size) {
    float *y = zeros<float>(n);
    for (size_t i = 0; i < n && size == 2; i++) y[i] = bf16_to_f32(((const uint16_t *)x)[i]);
    if (size == 4) memcpy(y, x, n * size);
    return y;
}

// How weights are: floats; with lower halves; without.
enum { WHOLE, SPLIT, ROUNDED };

// skip: elements by which the arenas start after a multiple of 16 bytes.
static void adam_case(bool is_half, int weights, bool moments_bf16, size_t skip, int count) {
    Scope scope;
    set_shape("gradient bf16 %d, weights %d, moments bf16 %d, skip %zu, runs %d", is_half, weights,
              moments_bf16, skip, count);
    static const char *const names[] = {"weights", "m", "v", "gradient"};
    const float stds[] = {1, 1e-3f, 1e-3f, 1e-2f};
    const bool halves[] = {weights != WHOLE, moments_bf16, moments_bf16, is_half};
    const size_t n = ARENA;
    uint16_t *low = zeros<uint16_t>(n);
    void *cpu[4], *gpu[4];
    AdamRun runs[RUNS];
    make_runs(runs);
    for (int k = 0; k < 4; k++) {
        float *x = unusual(n, 1 + (uint32_t)k, stds[k], k == 2);
        uint16_t *half = zeros<uint16_t>(n);
        for (size_t i = 0; i < n; i++) half[i] = f32_to_bf16(x[i]);
        if (k == 0 && weights == SPLIT) master_move(half, low, x, n, false);
        cpu[k] = halves[k] ? (void *)half : x;
        gpu[k] = behind(skip, cpu[k], n, halves[k] ? 2 : 4);
    }
    uint16_t *d_low = (uint16_t *)behind(skip, low, n, 2);
    AdamStep step = adam_step_prepare(1e-3, 0.9, 0.95, 1e-8, 0.1, 3, 0.37);
    step.moments_bf16 = moments_bf16;
    step.master_bf16 = weights == ROUNDED;
    const AdamWork work = {.w = cpu[0], .low = weights == SPLIT ? low : NULL, .m = cpu[1],
                           .v = cpu[2], .grad = cpu[3], .grad_is_half = is_half, .scale = 1,
                           .runs = runs, .count = count, .step = step, .halves = halves[0]};
    adam_work(&work);
    adam_update_gpu(gpu[0], weights == SPLIT ? d_low : NULL, gpu[1], gpu[2], gpu[3], is_half, runs,
                    count, &step, stream);
    for (int k = 0; k < 3; k++) {
        const size_t size = halves[k] ? 2 : 4;
        check_equal<float>(names[k], as_floats(fetch((char *)gpu[k], n * size), n, size),
                           as_floats(cpu[k], n, size), n);
    }
    const uint16_t *w = (uint16_t *)cpu[0], *got = fetch(d_low, n);
    size_t bad = 0;
    for (size_t i = 0; i < n && weights == SPLIT; i++)
        bad += got[i] != low[i] && !isnan(bf16_to_f32(w[i]));
    CHECK(bad == 0, "%s: %zu lower halves", shape, bad);
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
    for (size_t i = 0; i < n; i++) adam_scalar(p + i, m + i, v + i, g[i], &step, 0);
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

// Kernels that count in 32 bits refuse more: 2^31 packs are the most. Sums of products are fp32: in
// 16 bits the library would round twice. Needs no GPU: it is the first test, as it forks.
static void sizes_and_sums_are_refused(void) {
    const size_t B = (size_t)1 << 17, T = 2048, C = 64;
    index_32(B * T * C / Pack<bf16>::N);
    for (int sums = 0; sums < 2; sums++) {
        Matmul lt = {};
        char line[1024];
        int status;
        if (in_child(line, &status)) {
            bf16 *none = NULL;
            if (!sums) encoder_forward(none, NULL, NULL, none, none, B + 1, T, C, NULL);
            else gemm(&lt, false, true, 8, 8, 8, none, 8, none, 8, none, 8, NULL, true, NULL);
            _exit(0);
        }
        CHECK(status != 0 && strstr(line, sums ? "sums are fp32" : "32 bits"), "%s", line);
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
