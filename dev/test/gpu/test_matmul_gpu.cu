// test_matmul_gpu: gemm() of matmul.cuh against three loops in double, in every form that the
// trainer uses, with pitches, epilogues and fp32 sums of 16 bits; equal bits wherever it runs, and
// after another product; the table of plans; and the table of devices. Runs on a GPU and on the
// emulated one. (Products without an epilogue in the library: test_model.)
#include "../../../tide/gpu/devices.cuh"
#include "../../../tide/gpu/matmul.cuh"
#include "tensors.cuh"
#include <math.h>

using namespace tensors;

static Matmul lt;

// A matrix on the host and on the device. Gaps between rows hold NaN, so that reading one poisons
// the result.
template <typename X> struct Matrix { X *host, *device; size_t n, ld; };

// Copies what is on the host to the device, `shift` elements behind an allocation's begin.
template <typename X> static void put(Matrix<X> *m, size_t shift) {
    m->device = poison<X>(shift + m->n) + shift;
    CUDA(cudaMemcpy(m->device, m->host, m->n * sizeof(X), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
}

template <typename X> static Matrix<X> matrix(size_t rows, size_t cols, size_t pad) {
    Matrix<X> m;
    m.ld = cols + pad;
    m.n = (rows - 1) * m.ld + cols;
    m.host = zeros<X>(m.n);
    for (size_t i = 0; i < m.n; i++) narrow(&m.host[i], i % m.ld < cols ? next_float() : NAN);
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
// Again, elsewhere and after another product: the same bits.
template <typename X, typename O>
static void check(size_t M, size_t N, size_t K, Form f) {
    Scope scope;
    Matrix<X> a = matrix<X>(f.trans_a ? K : M, f.trans_a ? M : K, f.pad);
    Matrix<X> b = matrix<X>(f.trans_b ? N : K, f.trans_b ? K : N, f.pad);
    const bool sloped = f.epilogue == GEMM_SLOPE, summed = f.bias && f.epilogue == GEMM_SUMS;
    Matrix<X> extra = matrix<X>(sloped ? M : 1, summed ? M : N, sloped ? f.pad : 0);
    Matrix<O> out = matrix<O>(M, N, f.pad);
    bool done = false;
    const O *got = NULL;
    const X *sums = NULL;
    for (size_t i = 0; i < out.n; i++)
        if (i % out.ld >= N || !f.accumulate) narrow(&out.host[i], -7.0f);
    for (size_t time = 0; time < 2; time++) {
        put(&a, f.shift + 8 * time);
        put(&b, f.shift + 24 * time);
        put(&extra, f.shift + 8 * time);
        put(&out, f.shift + 8 * time);
        done = gemm(&lt, f.trans_a, f.trans_b, M, N, K, a.device, a.ld, b.device, b.ld, out.device,
                    out.ld, f.bias ? extra.device : nullptr, f.accumulate, stream, f.epilogue);
        const O *again = fetch(out.device, out.n);
        const X *again_sums = fetch(extra.device, extra.n);
        CHECK(time == 0 || (memcmp(got, again, out.n * sizeof(O)) == 0
                            && memcmp(sums, again_sums, extra.n * sizeof(X)) == 0),
              "%s to %s, M=%zu N=%zu K=%zu: other bits elsewhere", type_name<X>(), type_name<O>(),
              M, N, K);
        got = again;
        sums = again_sums;
        const bf16 *other = poison<bf16>(24 * 700);
        gemm(&lt, true, false, 24, 24, 700, other, 24, other, 24, poison<bf16>(24 * 24), 24,
             (bf16 *)NULL, false, stream);
    }
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
// the weight, which is also summed in fp32 over chunks of rows, as the head's. Operands begin
// anywhere, as long as it is a multiple of 16 bytes; of 5000 rows the library may split the sum.
template <typename X> static void products(void) {
    static const struct { size_t N, C, OC, pad, shift; } layers[] = {
        {37, 48, 144}, {1, 16, 64}, {3, 64, 256, 8}, {64, 72, 136, 16}, {40, 48, 64, 0, 24},
        {33, 48, 256, 0, 8}, {5000, 24, 16}};
    for (const auto &x : layers) {
        const size_t N = x.N, C = x.C, OC = x.OC;
        check<X, X>(N, OC, C, Form{false, true, true, false, x.pad, x.shift});
        check<X, X>(N, OC, C, Form{false, true, false, false, x.pad, x.shift});
        check<X, float>(N, OC, C, Form{false, true, false, false, x.pad, x.shift});
        check<X, X>(N, C, OC, Form{false, false, false, false, x.pad, x.shift});
        check<X, X>(OC, C, N, Form{true, false, false, false, x.pad, x.shift});
        check<X, float>(OC, C, N, Form{true, false, false, false, x.pad, x.shift});
        check<X, float>(OC, C, N, Form{true, false, false, true, x.pad, x.shift});
    }
}

// Slopes and sums of the backward pass, in each type of 16 bits; fp32 has none.
template <typename X> static void check_epilogues(void) {
    unfused = 0;
    for (Form f : {Form{false, false, true, false, 0, 0, GEMM_SLOPE},
                   Form{true, false, true, false, 0, 0, GEMM_SUMS}}) {
        check<X, X>(37, 128, 32, f);
        check<X, X>(24, 40, 2000, f);
        f.pad = 8;
        f.shift = 24;
        check<X, X>(64, 48, 130, f);
    }
    const size_t wanted = sizeof(X) == 4 ? 6 : 0;
    CHECK(!EMULATED || unfused == wanted, "%s: %zu of 6", type_name<X>(), unfused);
}

static void epilogues(void) {
    check_epilogues<float>();
    check_epilogues<bf16>();
    check_epilogues<f16>();
    if (unfused > 0) SKIP("the library lacks some of the epilogues of gradients");
}

// A shape is searched once, wherever its operands are. A full table drops its oldest shapes.
static void plans_are_kept(void) {
    const Form plain = {false, true, false, false, 0, 0};
    check<bf16, bf16>(50, 64, 80, plain);
    const size_t searches = lt.made;
    for (Form f = plain; f.shift <= 64; f.shift += 8) check<bf16, bf16>(50, 64, 80, f);
    CHECK(lt.made == searches, "%zu searches for other places", lt.made - searches);
    for (size_t m = 1; m < MATMUL_PLANS + 10; m++) check<float, float>(m, 4, 8, plain);
    const size_t filled = lt.made;
    for (size_t m = 15; m < MATMUL_PLANS + 10; m++) check<float, float>(m, 4, 8, plain);
    CHECK(lt.made == filled, "%zu of the newest were gone", lt.made - filled);
    check<bf16, bf16>(50, 64, 80, plain);
    CHECK(lt.made > filled, "the oldest was replaced");
}

// Whole words of a name make the row; others under a number that is in the table, and unknown ones,
// are to be measured.
static void device_names(void) {
    static const char *const names[][2] = {
        {"NVIDIA A100 80GB PCIe", "A100 80GB PCIe"}, {"NVIDIA H200", "H200"},
        {"NVIDIA H200 NVL", "H200 NVL"}, {"NVIDIA L4", "L4"}, {"NVIDIA L40S", "L40S"},
        {"NVIDIA GeForce RTX 3090 Ti", "GeForce RTX 3090 Ti"},
        {"NVIDIA A10G", NULL}, {"NVIDIA A100-SXM4-80GB MIG 1g.10gb", NULL},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", NULL}, {"NVIDIA GeForce RTX 4090 D", NULL},
        {"Tesla V100-SXM2-16GB", NULL}, {"", NULL}};
    for (const auto &name : names) {
        const Device *d = device_find(name[0]);
        CHECK(d == NULL ? name[1] == NULL : name[1] != NULL && strcmp(d->name, name[1]) == 0,
              "%s: %s", name[0], d != NULL ? d->name : "(none)");
    }
    for (const Device &d : device_table)
        CHECK(device_find(d.name) == &d, "row %s is found by its own name", d.name);
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
    RUN(products<float>);
    RUN(products<bf16>);
    RUN(products<f16>);
    RUN(epilogues);
    RUN(plans_are_kept);
    RUN(device_names);
    CUDA(cudaStreamSynchronize(stream));
    matmul_close(&lt);
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
