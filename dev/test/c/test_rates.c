// test_rates: rates.h. The bound against numbers made by hand, and its best share against a search;
// the file. (What is refused: test_refused.c; that it is read again: fuzz_rates.c.)
#include "../../../tide/plan/rates.h"
#include "../files.h"
#include "../test.h"
#include <glob.h>

// bf16 on the wire, gradients of visitors on the GPU.
static const UpdateBytes wire = {2, 2, 1, 10, 0};

// B and W in GB/s, Uc in G parameters/s; 0: no limit.
static Rates machine(double B, double W, double Uc) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d_duplex = r.d2h_duplex = 1e9 * B;
    r.dram = r.dram_dma = 1e9 * W;
    r.host_adam = 1e9 * Uc;
    return r;
}

// Bytes each way over the link and in host memory: the bound where only one of them has a rate, 1.
static void test_traffic(void) {
    static const struct { UpdateBytes b; double f, bytes[3]; } want[] = {
        {{2, 2, 1, 10, 0}, 1, {10, 10, 20}},   // updated by the GPU
        {{2, 2, 1, 10, 0}, 0, {2, 0, 28}},     // by the CPU: 14 read, 12 written, 2 by the link
        {{2, 2, .5, 10, 0}, 1, {11, 10, 21}},  // half of the gradient goes back to the GPU
        {{4, 2, 1, 10, 0}, 0, {2, 0, 30}},     // an fp32 gradient
        {{4, 4, 1, 8, 0}, 0, {4, 0, 32}},      // fp32 all over: the weight is the master weight
        {{2, 2, 1, 10, 0}, .25, {4, 2.5, 26}},
        {{2, 2, 1, 10, 1}, 1, {12, 12, 24}},  // weights live on the host: they visit, too
        {{2, 2, 1, 10, .5}, 0, {1, 0, 27}},   // and do not go back
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        for (int k = 0; k < 3; k++) {
            Rates r = machine(0, 0, 0);
            *(k == 0 ? &r.h2d : k == 1 ? &r.d2h : &r.dram) = 1;
            const double got = update_bound(&r, &want[i].b, want[i].f, NULL);
            CHECK(got == want[i].bytes[k], "case %zu, %d: %g", i, k, got);
        }
}

// Eq. 1 from the paper's rates. (All its numbers: test_plan.cu.)
static void test_eq1(void) {
    Rates r = machine(0, 0, 2);
    r.h2d = 55e9;
    r.host_cast = 15.5e9;
    r.gpu_adam = 25e9;
    CHECK(fabs(eq1_stride(&r) - 0.49) < 0.005, "%g", eq1_stride(&r));
    r.h2d = 3e9;  // the weights alone fill the link, and k would be negative
    CHECK(eq1_stride(&r) == INFINITY, "%g", eq1_stride(&r));
}

// Machines of scripts/rates. All can be planned for.
static void test_machines(void) {
    Rates r;
    glob_t files;
    CHECK(glob("scripts/rates/*.txt", 0, NULL, &files) == 0, "none");
    for (size_t i = 0; i < files.gl_pathc; i++)
        CHECK(rates_load(&r, files.gl_pathv[i], &err) && r.h2d > 0 && r.d2h > 0, "%s", err.text);
    globfree(&files);
}

static uint64_t state = 1;

static double uniform(double low, double high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(state >> 11) * 0x1p-53;
}

static double rarely_known(double low, double high) {
    return uniform(0, 1) < .2 ? 0 : uniform(low, high);
}

// Any rates, any of them unknown: no share of 4000 is better than the best, nor is a smaller one as
// good; and the bound has no jumps.
static void test_against_search(void) {
    for (int i = 0; i < (test_whole() ? 4000 : 1000); i++) {
        Rates r = machine(0, 0, 0);
        r.h2d = uniform(5, 60);
        r.h2d_duplex = rarely_known(5, 60);
        r.d2h = rarely_known(5, 60);
        r.d2h_duplex = rarely_known(5, 60);
        r.dram = rarely_known(20, 400);
        r.dram_dma = rarely_known(20, 400);
        r.host_adam = rarely_known(.5, 20);
        r.gpu_adam = rarely_known(.5, 100);
        const UpdateBytes b = {i % 2 ? 2 : 4, i % 4 < 2 ? 2 : 4, i % 8 < 4 ? 1 : .25 * (i % 3), 10,
                               0};
        const double best = best_share(&r, &b), least = update_bound(&r, &b, best, NULL);
        double last = update_bound(&r, &b, 0, NULL);
        CHECK(best >= 0 && best <= 1 && least > 0, "case %d: %g, %g", i, best, least);
        for (int j = 0; j <= 4000; j++) {
            const double f = j / 4000.0, t = update_bound(&r, &b, f, NULL);
            CHECK(t >= least * (1 - 1e-12), "case %d: %.17g at %g, %.17g at %g", i, t, f, least,
                  best);
            CHECK(f >= best - 1e-9 || t > least * (1 - 1e-12), "case %d: %g is as good", i, f);
            CHECK(fabs(t - last) <= .05 * (t + last), "case %d: a jump at %g", i, f);
            last = t;
        }
    }
}

// Two rates of host memory: `dram_dma` counts while both directions of the link are busy. One that
// is not known is the other. The link is slower in both directions than in one. And what limits.
static void test_bound(void) {
    static const struct { double B, dram, dram_dma, Uc, Ug, share, seconds; const char *limit; }
    rows[] = {
        {50, 100, 160, 0, 0, 0, 28e-9 / 100, "DRAM"},  // cores alone
        {50, 100, 160, 0, 0, .25, .23e-9, "DRAM"},     // both ways for .05: (26 - 60 x .05) / 100
        {50, 100, 0, 0, 0, .25, .26e-9, "DRAM"}, {50, 0, 160, 0, 0, .25, 26e-9 / 160, "DRAM"},
        {55, 26, 26 + 110, 0, 0, .5, 14e-9 / 26, "DRAM"},  // the link costs the cores nothing
        {55, 150, 0, 3, 1, 0, 1e-9 / 3, "cores"}, {55, 150, 0, 3, 1, 1, 1e-9, "GPU"},
        {55, 150, 0, 3, 100, 1, 10e-9 / 55, "link"},
        {55, .995 * 110, 0, 3, 100, 1, 20e-9 / .995 / 110, "DRAM"},  // not quite as slow
        {2. / 28, 1, 0, 1. / 28, 0, 0, 28e-9, "link and DRAM and cores"},
        {0, 0, 0, 0, 0, 0, 0, "nothing"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[40];
        Rates r = machine(rows[i].B, rows[i].dram, rows[i].Uc);
        r.dram_dma = 1e9 * rows[i].dram_dma;
        r.gpu_adam = 1e9 * rows[i].Ug;
        r.h2d = r.d2h = 20 * r.h2d_duplex;
        const double got = update_bound(&r, &wire, rows[i].share, text);
        CHECK(fabs(got - rows[i].seconds) < 1e-18 && strcmp(text, rows[i].limit) == 0,
              "row %zu: %g, %s", i, got, text);
    }
}

// A node of 8 GPUs, whose host one process measured: two of them share it evenly. A host that was
// measured with two at work (or near one of two sockets) has that much for two.
static void test_sharing(void) {
    static const struct { double given; size_t local; double host, beside; } rows[] = {
        {0, 1, 1, 1}, {0, 2, .5, 0}, {1, 2, .5, 0}, {2, 2, 1, 1}, {2, 8, .25, 0}, {4, 2, 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Rates r;
        for (int k = 0; k < RATE_FIELDS; k++) *rate_at(&r, k) = 8;
        r.host_gpus = rows[i].given;
        const Rates x = rates_of_rank(&r, rows[i].local);
        CHECK(x.dram == 8 * rows[i].host && x.dram_dma == x.dram && x.host_adam == x.dram
              && x.host_cast == x.dram && x.h2d_host == 8 * rows[i].beside && x.h2d == 8
              && x.d2h_host == x.h2d_host && x.h2d_busy == x.h2d_host && x.d2h_busy == x.h2d_host,
              "%zu of %g", rows[i].local, rows[i].given);
    }
}

static void test_file_accepted(void) {
    Rates r;
    memset(&r, 0xff, sizeof r);
    put_text(in_base("rates"), "# a machine\r\n\n \t\n  h2d\t55e9   # measured\r\nd2h 5.5E10#x\n"
                               "host_cast 0\ndram 1.5e+11\ngpu_flops 6e14");
    CHECK(rates_load(&r, in_base("rates"), &err), "%s", err.text);
    CHECK(r.h2d == 55e9 && r.d2h == 55e9 && r.dram == 150e9, "%g %g %g", r.h2d, r.d2h, r.dram);
    CHECK(r.host_cast == 0 && r.gpu_adam == 0 && r.host_adam == 0, "what is not named is 0");
    CHECK(r.gpu_attention == 7e14, "six products of attention took the time of seven: %g",
          r.gpu_attention);
}

int main(void) {
    base_new("rates");
    RUN(test_traffic);
    RUN(test_eq1);
    RUN(test_machines);
    RUN(test_against_search);
    RUN(test_bound);
    RUN(test_sharing);
    RUN(test_file_accepted);
    remove_tree(base);
    return test_summary();
}
