// test_matmul_gpu: gemm() of matmul.cuh against three loops in double, in every form that the
// trainer uses, with pitches, epilogues and fp32 sums of 16 bits; equal bits however often and
// wherever it runs; the table of plans; and the table of devices. Runs on a GPU and on the emulated
// one.
#include "../../../tide/gpu/devices.cuh"
#include "../../../tide/gpu/matmul.cuh"
#include "tensors.cuh"
#include <math.h>

using namespace tensors;

static Matmul lt;

// A matrix on the host and on the device, `shift` elements into its own block of memory. Gaps
// between rows hold NaN, so that reading one poisons the result.
template <typename X> struct Matrix { X *host, *device; size_t n, ld; };

// What is on the host is on the device, too.
template <typename X> static void renew(const Matrix<X> *m) {
    CUDA(cudaMemcpy(m->device, m->host, m->n * sizeof(X), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
}

template <typename X>
static Matrix<X> matrix(size_t rows, size_t cols, size_t pad, size_t shift) {
    Matrix<X> m;
    m.ld = cols + pad;
    m.n = (rows - 1) * m.ld + cols;
    m.host = zeros<X>(m.n);
    for (size_t i = 0; i < m.n; i++) narrow(&m.host[i], i % m.ld < cols ? next_float() : NAN);
    m.device = poison<X>(shift + m.n) + shift;
    renew(&m);
    return m;
}

static double gelu_slope(double x) {
    const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

struct Form {
    bool trans_a, trans_b, bias, accumulate;
    size_t pad, shift;  // elements: between rows, and before the first
    int epilogue = GEMM_BIAS;
};

static size_t unfused;  // products whose epilogue the library does not have

// op(A)(m, k) of a matrix on the host
template <typename X> static double element(const Matrix<X> *a, bool trans, size_t m, size_t k) {
    return wide(trans ? a->host[k * a->ld + m] : a->host[m * a->ld + k]);
}

// The sums that an epilogue has stored: one rounding, as of a product.
template <typename X>
static void check_sums(const Matrix<X> *sums, const Matrix<X> *a, bool trans_a, size_t K) {
    const X *got = fetch(sums->device, sums->n);
    for (size_t m = 0; m < sums->n; m++) {
        double sum = 0, size = 0;
        for (size_t k = 0; k < K; k++) {
            sum += element(a, trans_a, m, k);
            size += fabs(element(a, trans_a, m, k));
        }
        CHECK(test_within(fabs(wide(got[m]) - sum),
                          0x1p-21 * size + 1.01 * unit<X>() * fabs(sum)),
              "%s, sum %zu of %zu over %zu: %.9g, not %.9g", type_name<X>(), m, sums->n, K,
              (double)wide(got[m]), sum);
    }
}

// One product against the definition. What is allowed: 2^-21 of the sum of |a b| for the sum's own
// rounding (TF32 would be off by ten times that, and more for short sums), one rounding to the
// output's type, and 2^-8 of the product by GELU's slope (an H200, bf16: more than 1.5 * 2^-9).
template <typename X, typename O>
static void check(size_t M, size_t N, size_t K, Form f) {
    Scope scope;
    Matrix<X> a = matrix<X>(f.trans_a ? K : M, f.trans_a ? M : K, f.pad, f.shift);
    Matrix<X> b = matrix<X>(f.trans_b ? N : K, f.trans_b ? K : N, f.pad, f.shift);
    const bool sloped = f.epilogue == GEMM_SLOPE, summed = f.bias && f.epilogue == GEMM_SUMS;
    Matrix<X> extra = matrix<X>(sloped ? M : 1, summed ? M : N, sloped ? f.pad : 0, f.shift);
    Matrix<O> out = matrix<O>(M, N, f.pad, f.shift);
    for (size_t i = 0; i < out.n; i++)
        if (i % out.ld >= N || !f.accumulate) narrow(&out.host[i], -7.0f);
    renew(&out);
    const bool done = gemm(&lt, f.trans_a, f.trans_b, M, N, K, a.device, a.ld, b.device, b.ld,
                           out.device, out.ld, f.bias ? extra.device : nullptr, f.accumulate,
                           stream, f.epilogue);
    const O *got = fetch(out.device, out.n);
    if (done && summed) check_sums(&extra, &a, f.trans_a, K);
    unfused += !done;
    size_t wrong = 0, where = 0;
    for (size_t i = 0; i < out.n; i++) {
        const size_t m = i / out.ld, n = i % out.ld;
        const double y = wide(got[i]);
        bool right;
        if (n >= N || !done) {  // a gap, or all of it
            right = y == -7.0;
        } else {
            double sum = 0, size = 0;
            for (size_t k = 0; k < K; k++) {
                const double x = element(&a, f.trans_a, m, k) * element(&b, !f.trans_b, n, k);
                sum += x;
                size += fabs(x);
            }
            const double add = f.accumulate ? wide(out.host[i])
                             : f.bias && f.epilogue == GEMM_BIAS ? wide(extra.host[n]) : 0;
            const double slope = sloped ? gelu_slope(wide(extra.host[i])) : 1;
            const double want = (sum + add) * slope;
            const double slack = (sloped ? 1.2 : 1.0) * 0x1p-21 * (size + fabs(add))
                               + 1.01 * unit<O>() * fabs(want) + sloped * 0x1p-8 * fabs(sum);
            right = test_within(fabs(y - want), slack);
        }
        if (!right && wrong++ == 0) where = i;
    }
    CHECK(wrong == 0, "%s to %s, M=%zu N=%zu K=%zu ta=%d tb=%d bias=%d acc=%d epilogue=%d "
          "pad=%zu shift=%zu: %zu of %zu wrong, first (%zu, %zu): %.9g", type_name<X>(),
          type_name<O>(), M, N, K, f.trans_a, f.trans_b, f.bias, f.accumulate,
          f.epilogue, f.pad, f.shift, wrong, out.n, where / out.ld, where % out.ld,
          (double)wide(got[where]));
}

// The products of a linear layer with rows N, C to OC: forward, gradient of the input, gradient of
// the weight; each overwriting, and in fp32 also adding.
template <typename X> static void check_layer(size_t N, size_t C, size_t OC, size_t pad) {
    check<X, X>(N, OC, C, Form{false, true, true, false, pad, 0});
    check<X, X>(N, OC, C, Form{false, true, false, false, pad, 0});
    check<X, X>(N, C, OC, Form{false, false, false, false, pad, 0});
    check<X, X>(OC, C, N, Form{true, false, false, false, pad, 0});
    if (sizeof(X) == 2) return;
    check<X, X>(N, OC, C, Form{false, true, false, true, pad, 0});
    check<X, X>(N, C, OC, Form{false, false, false, true, pad, 0});
    check<X, X>(OC, C, N, Form{true, false, false, true, pad, 0});
}

template <typename X> static void check_layers(void) {
    check_layer<X>(37, 48, 144, 0);
    check_layer<X>(1, 16, 64, 0);
    check_layer<X>(3, 64, 256, 8);
    check_layer<X>(130, 256, 64, 0);
    check_layer<X>(64, 72, 136, 16);
}

static void test_linear_layers_f16(void) {
    check_layer<f16>(37, 48, 144, 0);
    check_layer<f16>(3, 64, 256, 8);
    check<f16, f16>(16, 24, 5000, Form{false, true, true, false, 0, 0});
    check<f16, f16>(40, 64, 48, Form{false, true, true, false, 0, 24});
    const size_t searches = lt.made;
    check<bf16, bf16>(40, 64, 48, Form{false, true, true, false, 0, 24});
    check<f16, f16>(40, 64, 48, Form{false, true, true, false, 0, 24});
    CHECK(lt.made <= searches + 1, "bf16 has taken the place of f16");
}

// The head: rows of logits over a vocabulary padded to 128, and the weight's gradient summed in
// fp32 over chunks of rows.
template <typename X> static void check_head(size_t rows, size_t C, size_t Vp) {
    check<X, X>(rows, Vp, C, Form{false, true, false, false, 0, 0});
    check<X, X>(rows, C, Vp, Form{false, false, false, false, 0, 0});
    check<X, float>(Vp, C, rows, Form{true, false, false, false, 0, 0});
    check<X, float>(Vp, C, rows, Form{true, false, false, true, 0, 0});
}

static void test_head(void) {
    check_head<float>(33, 48, 256);
    check_head<bf16>(33, 48, 256);
    check_head<bf16>(1, 64, 128);
    check_head<bf16>(128, 32, 384);
    check_head<f16>(33, 48, 256);
    // logits in fp32, as a loss that is compared with another one wants them
    check<f16, float>(33, 256, 48, Form{false, true, false, false, 0, 0});
    check<bf16, float>(33, 256, 48, Form{false, true, false, false, 0, 0});
}

static void test_odd_sizes_fp32(void) {
    for (int form = 0; form < 4; form++) {
        const bool ta = (form & 1) != 0, tb = form > 1;
        check<float, float>(5, 7, 3, Form{ta, tb, true, false, 1, 0});
        check<float, float>(1, 1, 1, Form{ta, tb, false, true, 0, 0});
        check<float, float>(65, 31, 99, Form{ta, tb, true, false, 3, 1});
    }
}

// Operands that begin anywhere, as long as it is a multiple of 16 bytes.
static void test_places(void) {
    for (size_t shift = 8; shift <= 24; shift += 8) {
        check<bf16, bf16>(40, 64, 48, Form{false, true, true, false, 0, shift});
        check<bf16, float>(64, 48, 40, Form{true, false, false, true, 0, shift});
    }
}

// Long sums: where the library may split them. Rounded to bf16 once, or the check fails.
static void test_long_sums(void) {
    check<bf16, bf16>(16, 24, 5000, Form{true, false, false, false, 0, 0});
    check<bf16, float>(16, 24, 5000, Form{true, false, false, true, 0, 0});
    check<float, float>(16, 24, 5000, Form{true, false, false, false, 0, 0});
}

static const Form slope_form = {false, false, true, false, 0, 0, GEMM_SLOPE};
static const Form sums_form = {true, false, true, false, 0, 0, GEMM_SUMS};

// Slopes and sums of the backward pass, in each type of 16 bits; fp32 has none.
template <typename X> static void check_epilogues(void) {
    for (Form f : {slope_form, sums_form}) {
        check<X, X>(37, 128, 32, f);
        check<X, X>(24, 40, 2000, f);
        f.pad = 8;
        check<X, X>(64, 48, 130, f);
        f.shift = 24;
        check<X, X>(64, 48, 130, f);
    }
}

static void test_epilogues(void) {
    unfused = 0;
    check_epilogues<bf16>();
    check_epilogues<f16>();
#ifdef __CUDA_EMU__
    CHECK(unfused == 0, "the emulated library lacks %zu of 16", unfused);
#endif
    if (unfused > 0) SKIP("the library lacks some of the epilogues of gradients");
}

// An epilogue without an algorithm: gemm() returns so each time, having asked once and done
// nothing; the product alone is another shape.
static void test_no_algorithm_for_an_epilogue(void) {
    unfused = 0;
    check_epilogues<float>();
    CHECK(unfused == 8, "fp32: %zu of 8", unfused);
#ifndef __CUDA_EMU__
    SKIP("a real library cannot be told to have none");
#else
    const size_t searches = lt.made;
    unfused = 0;
    emu_lt_without(CUBLASLT_EPILOGUE_DGELU | CUBLASLT_EPILOGUE_BGRADB);
    for (int i = 0; i < 6; i++) check<bf16, bf16>(44, 64, 32, i % 2 ? slope_form : sums_form);
    CHECK(lt.made == searches + 2 && unfused == 6, "%zu searches, %zu of 6",
          lt.made - searches, unfused);
    Form f = sums_form;
    f.bias = false;
    check<bf16, bf16>(44, 64, 32, f);
    // As many others as the table holds: the missing ones are replaced like any other.
    for (size_t m = 1; m <= MATMUL_PLANS; m++)
        check<float, float>(m, 4, 8, Form{false, false, false, false, 0, 0});
    emu_lt_without(0);
    check<bf16, bf16>(44, 64, 32, sums_form);
    CHECK(unfused == 6, "there is one now");
#endif
}

// Equal bits: repeated, after another product used the workspace, and at another address.
template <typename X, typename O> static void check_bits(size_t M, size_t N, size_t K, Form f) {
    Scope scope;
    Matrix<X> a[2], b[2], extra[2];  // extra: of an epilogue's sums
    Matrix<O> out[2];
    const uint32_t start = seed;
    for (size_t i = 0; i < 2; i++) {  // the second is the same, elsewhere
        seed = start;
        a[i] = matrix<X>(f.trans_a ? K : M, f.trans_a ? M : K, 0, i * 8);
        b[i] = matrix<X>(f.trans_b ? N : K, f.trans_b ? K : N, 0, i * 24);
        out[i] = matrix<O>(M, N, 0, i * 8);
        extra[i] = matrix<X>(1, M, 0, i * 8);
    }
    const O *first = NULL;
    const X *first_sums = NULL;
    for (size_t i = 0; i < 4; i++) {
        Matrix<O> *o = &out[i / 2];
        renew(o);
        gemm(&lt, f.trans_a, f.trans_b, M, N, K, a[i / 2].device, a[i / 2].ld, b[i / 2].device,
             b[i / 2].ld, o->device, N, f.bias ? extra[i / 2].device : nullptr, f.accumulate,
             stream, f.epilogue);
        const O *got = fetch(o->device, o->n);
        const X *sums = fetch(extra[i / 2].device, M);
        if (i == 0) first = got, first_sums = sums;
        CHECK(memcmp(first_sums, sums, M * sizeof(X)) == 0, "M=%zu, sums, time %zu", M, i);
        CHECK(memcmp(first, got, o->n * sizeof(O)) == 0, "M=%zu N=%zu K=%zu, time %zu", M, N, K, i);
        check<X, X>(24, 40, 700, Form{true, false, false, false, 0, 0});
    }
}

static void test_same_bits(void) {
    check_bits<bf16, bf16>(37, 144, 48, Form{false, true, false, false, 0, 0});
    check_bits<bf16, bf16>(16, 24, 5000, Form{true, false, false, false, 0, 0});
    check_bits<bf16, bf16>(16, 24, 5000, Form{true, false, true, false, 0, 0, GEMM_SUMS});
    check_bits<bf16, float>(256, 48, 333, Form{true, false, false, true, 0, 0});
    check_bits<float, float>(24, 16, 3000, Form{true, false, false, false, 0, 0});
}

// A shape is searched once; another bias at the next call is used, not the first one.
static void test_plans_are_kept(void) {
    const Form f = {false, true, true, false, 0, 0};
    check<bf16, bf16>(50, 64, 80, f);
    const size_t searches = lt.made;
    for (int i = 0; i < 3; i++) check<bf16, bf16>(50, 64, 80, f);
    CHECK(lt.made == searches, "%zu more searches", lt.made - searches);
    check<bf16, bf16>(51, 64, 80, f);
    CHECK(lt.made == searches + 1, "another shape");
    Form g = f;
    g.bias = false;
    check<bf16, bf16>(50, 64, 80, g);
    g.accumulate = true;
    check<bf16, float>(50, 64, 80, g);
    CHECK(lt.made == searches + 3, "another form");
    check<float, float>(50, 64, 80, f);
    CHECK(lt.made == searches + 4, "another type");
    check<bf16, bf16>(50, 64, 80, f);
    CHECK(lt.made == searches + 4, "the first one is still there");
    // Operands elsewhere are the same shape, or their place could change the algorithm.
    g = f;
    for (g.shift = 8; g.shift <= 64; g.shift *= 2) check<bf16, bf16>(50, 64, 80, g);
    CHECK(lt.made == searches + 4, "%zu searches for other places",
          lt.made - searches - 4);
    // More shapes than the table has room for: the oldest go, the others stay.
    g = {false, false, true, false, 0, 0};
    for (size_t m = 1; m <= MATMUL_PLANS + 10; m++) check<float, float>(m, 4, 8, g);
    const size_t filled = lt.made;
    for (size_t m = 11; m <= MATMUL_PLANS + 10; m++) check<float, float>(m, 4, 8, g);
    CHECK(lt.made == filled, "%zu of the newest were gone", lt.made - filled);
    check<float, float>(1, 4, 8, g);
    CHECK(lt.made == filled + 1, "the oldest was replaced");
    check<bf16, bf16>(50, 64, 80, f);
}

static void check_device(const char *name, const char *row, double bf16_peak) {
    const Device *d = device_find(name);
    const char *found = d != NULL ? d->name : "(none)";
    CHECK(strcmp(found, row) == 0 && (d == NULL || d->bf16 == bf16_peak), "%s: %s", name, found);
}

static void test_device_names(void) {
    check_device("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", 312);
    check_device("A100-SXM4-40GB", "A100-SXM4-40GB", 312);
    check_device("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB", 312);
    check_device("NVIDIA A100 80GB PCIe", "A100 80GB PCIe", 312);
    check_device("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", 989.4);
    check_device("NVIDIA H100 PCIe", "H100 PCIe", 756);
    check_device("NVIDIA H100 NVL", "H100 NVL", 835.5);
    check_device("NVIDIA H200", "H200", 989.4);
    check_device("NVIDIA H200 NVL", "H200 NVL", 835.5);
    check_device("NVIDIA GH200 480GB", "GH200 480GB", 989.4);
    check_device("NVIDIA B200", "B200", 2250);
    check_device("NVIDIA GB200", "GB200", 2500);
    check_device("NVIDIA L4", "L4", 121);
    check_device("NVIDIA L40", "L40", 181);
    check_device("NVIDIA L40S", "L40S", 362);
    check_device("NVIDIA A10", "A10", 125);
    check_device("NVIDIA A40", "A40", 149.7);
    check_device("NVIDIA RTX A6000", "RTX A6000", 154.8);
    check_device("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation", 364.2);
    check_device("NVIDIA GeForce RTX 3090", "GeForce RTX 3090", 71);
    check_device("NVIDIA GeForce RTX 3090 Ti", "GeForce RTX 3090 Ti", 80);
    check_device("NVIDIA GeForce RTX 4090", "GeForce RTX 4090", 165.2);
    check_device("NVIDIA GeForce RTX 5090", "GeForce RTX 5090", 209.5);
    check_device("NVIDIA GeForce RTX 5070 Ti", "GeForce RTX 5070 Ti", 87.9);
    check_device("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
                 "RTX PRO 6000 Blackwell Workstation Edition", 503.8);
    // Others under a number that is in the table, and unknown ones: to be measured.
    check_device("NVIDIA A10G", "(none)", 0);
    check_device("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "(none)", 0);
    check_device("NVIDIA H800 PCIe", "(none)", 0);
    check_device("NVIDIA GeForce RTX 4090 Laptop GPU", "(none)", 0);
    check_device("NVIDIA GeForce RTX 4090 D", "(none)", 0);
    check_device("NVIDIA GeForce RTX 4080 SUPER", "(none)", 0);
    check_device("NVIDIA GeForce RTX 5090 Laptop GPU", "(none)", 0);
    check_device("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "(none)", 0);
    check_device("NVIDIA RTX A4000", "(none)", 0);
    check_device("Tesla V100-SXM2-16GB", "(none)", 0);
    check_device("", "(none)", 0);
    for (size_t i = 0; i < sizeof device_table / sizeof *device_table; i++) {
        const Device *d = &device_table[i];
        CHECK(device_find(d->name) == d, "row %s is found by its own name", d->name);
        CHECK(d->bf16 > d->fp32 && d->fp32 > 1 && d->bandwidth > 100, "%s", d->name);
    }
}

int main(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skip test_matmul_gpu: no GPU\n");
        return 0;
    }
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    matmul_open(&lt);
    CUDA(cudaDeviceSynchronize());
    RUN(check_layers<float>);
    RUN(check_layers<bf16>);
    RUN(test_linear_layers_f16);
    RUN(test_head);
    RUN(test_odd_sizes_fp32);
    RUN(test_places);
    RUN(test_long_sums);
    RUN(test_epilogues);
    RUN(test_no_algorithm_for_an_epilogue);
    RUN(test_same_bits);
    RUN(test_plans_are_kept);
    RUN(test_device_names);
    CUDA(cudaStreamSynchronize(stream));
    matmul_close(&lt);
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
