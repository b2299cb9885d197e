// test_rates: rates.h. The bound against a table that was made without it, to the last digit, and
// its best share against a search; Eq. 1 against the paper's numbers; the file.
#include "../../../tide/plan/rates.h"
#include "../test.h"
#include <glob.h>

// bf16 on the wire, gradients of visitors on the GPU.
static const UpdateBytes wire = {2, 2, 1, 10, 0};

// Is x what `digits` decimals of a table say?
static bool prints(double x, double table, int digits) {
    return fabs(x - table) <= 0.5001 * pow(10, -digits);
}

// B and W in GB/s, Uc in G parameters/s; 0: no limit.
static Rates machine(double B, double W, double Uc) {
    Rates r;
    memset(&r, 0, sizeof r);
    r.h2d_duplex = r.d2h_duplex = 1e9 * B;
    r.dram = r.dram_dma = 1e9 * W;
    r.host_adam = 1e9 * Uc;
    return r;
}

// G parameters per second at a share.
static double speed(const Rates *r, const UpdateBytes *b, double share) {
    return 1e-9 / update_bound(r, b, share, NULL);
}

// Which limits meet at this share.
static const char *limit_at(const Rates *r, double share, char text[40]) {
    update_bound(r, &wire, share, text);
    return text;
}

// Bytes each way over the link and in host memory: the bound where only one of them has a rate, 1.
static void test_traffic(void) {
    static const struct { UpdateBytes b; double f, bytes[3]; } want[] = {
        {{2, 2, 1, 10, 0}, 1, {10, 10, 20}},   // updated by the GPU
        {{2, 2, 1, 10, 0}, 0, {2, 0, 28}},     // by the CPU: 14 read, 12 written, 2 by the link
        {{2, 2, 0, 10, 0}, 1, {12, 10, 22}},      // the gradient goes back to the GPU
        {{2, 2, .5, 10, 0}, 1, {11, 10, 21}},     // half of it does
        {{4, 2, 1, 10, 0}, 0, {2, 0, 30}},     // an fp32 gradient
        {{4, 4, 1, 8, 0}, 0, {4, 0, 32}},      // fp32 all over: the weight is the master weight
        {{4, 4, 0, 8, 0}, .5, {8, 4, 26}},
        {{2, 2, 1, 10, 0}, .25, {4, 2.5, 26}},
        {{2, 2, 1, 6, 0}, 1, {6, 6, 12}},      // moments in bf16
        {{2, 2, 1, 6, 0}, 0, {2, 0, 20}},
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

// G parameters per second at B = 55 GB/s each way: of W GB/s and cores of Uc (0: no limit), all on
// the CPU, all on the GPU, and at the best share; and that share.
static void test_bound_table(void) {
    static const double table[][6] = {
        {60, 0, 2.14, 3.00, 3.00, 1.000},     {80, 0, 2.86, 4.00, 4.00, 1.000},
        {100, 0, 3.57, 5.00, 5.00, 1.000},    {128, 0, 4.57, 5.50, 6.10, 0.877},
        {150, 0, 5.36, 5.50, 6.83, 0.756},    {200, 0, 7.14, 5.50, 8.50, 0.559},
        {240, 0, 8.57, 5.50, 9.83, 0.449},    {300, 0, 10.71, 5.50, 11.83, 0.331},
        {400, 0, 14.29, 5.50, 15.17, 0.203},  {480, 0, 17.14, 5.50, 17.83, 0.136},
        {600, 0, 21.43, 5.50, 21.83, 0.065},
        {0, 1.5, 1.50, 5.50, 6.70, .776},     {0, 2, 2.00, 5.50, 7.10, .718},
        {0, 3, 3.00, 5.50, 7.90, .620},       {0, 5, 5.00, 5.50, 9.50, .474},
        {0, 8, 8.00, 5.50, 11.90, .328},      {0, 10, 10.00, 5.50, 13.50, .259},
        {150, 1.5, 1.50, 5.50, 6.70, .776},   {150, 3, 3.00, 5.50, 6.83, .756},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const double *t = table[i];
        const Rates r = machine(55, t[0], t[1]);
        const double share = best_share(&r, &wire);
        CHECK(prints(speed(&r, &wire, 0), t[2], 2) && prints(speed(&r, &wire, 1), t[3], 2)
              && prints(speed(&r, &wire, share), t[4], 2) && prints(share, t[5], 3),
              "W %g, Uc %g: %g, %g, %g with %g", t[0], t[1], speed(&r, &wire, 0),
              speed(&r, &wire, 1), speed(&r, &wire, share), share);
    }
    Rates slow = machine(40, 150, 0);  // a link that slows down when both directions are busy
    slow.h2d = slow.d2h = 55e9;
    CHECK(prints(speed(&slow, &wire, best_share(&slow, &wire)), 6.33, 2), "with a slower link");
}

// Eq. 1 per GPU at B = 13.75 G parameters/s: Uc, Dc, Ug, k.
static void test_eq1_table(void) {
    static const double table[][4] = {
        {2, 15.5, 25, 0.49}, {2, 15.5, 100, 0.43}, {3, 0, 100, 0.77},
        {5, 0, 100, 1.39},   {8, 0, 100, 2.57},    {10.7, 0, 100, 4.00}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const double *t = table[i];
        Rates r = machine(0, 0, 0);
        r.h2d = 55e9;
        r.host_adam = 1e9 * t[0];
        r.host_cast = 1e9 * t[1];
        r.gpu_adam = 1e9 * t[2];
        CHECK(prints(eq1_stride(&r), t[3], 2), "Uc %g: k %g", t[0], eq1_stride(&r));
    }
    // What it does not know: at W = 300 and its share of .20, memory allows 11.4 G parameters/s.
    const Rates dram = machine(0, 300, 0);
    CHECK(prints(speed(&dram, &wire, .20), 11.4, 1), "%g", speed(&dram, &wire, .20));
    Rates r = machine(0, 0, 0);
    CHECK(isnan(eq1_stride(&r)), "nothing known");
    r.host_adam = 2e9;
    CHECK(isnan(eq1_stride(&r)), "no link known");
    r.h2d = 4e9;  // 1/(2B) = 1/Uc: the weights alone fill the link
    CHECK(eq1_stride(&r) == INFINITY, "%g", eq1_stride(&r));
    r.h2d = 3e9;  // the equation's k would be negative
    CHECK(eq1_stride(&r) == INFINITY, "%g", eq1_stride(&r));
    r.h2d = 8e9;  // B = 2, no Dc, no Ug: (3/2) / (1/2 - 1/4)
    CHECK(fabs(eq1_stride(&r) - 6) < 1e-12, "%g", eq1_stride(&r));
}

// Machines of scripts/rates. All can be planned for; those that were not measured have every rate.
static void test_machines(void) {
    Rates r;
    Error err;
    char text[40];
    memset(&err, 0, sizeof err);
    glob_t files;
    CHECK(glob("scripts/rates/*.txt", 0, NULL, &files) == 0, "none");
    for (size_t i = 0; i < files.gl_pathc; i++)
        CHECK(rates_load(&r, files.gl_pathv[i], &err) && r.h2d > 0 && r.d2h > 0, "%s: %s",
              files.gl_pathv[i], err.text);
    globfree(&files);
    static const char *const assumed[] = {"h200_16cores", "rtx4090_desktop", "rtx3090_desktop"};
    for (size_t i = 0; i < 3; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "scripts/rates/%s.txt", assumed[i]);
        CHECK(rates_load(&r, path, &err), "%s", err.text);
        for (int j = 0; j < RATE_FIELDS; j++)
            CHECK(*rate_at(&r, j) > 0, "%s: no %s", path, rate_fields[j].name);
        CHECK(fabs(r.dram / (ADAM_BYTES * r.host_adam) - 1) < .02, "%s: dram and host_adam", path);
        CHECK(strcmp(limit_at(&r, best_share(&r, &wire), text), "link and DRAM") == 0
              || strcmp(text, "DRAM") == 0, "%s: %s", path, text);
    }
}

// ---------------------------------------------------------------------------------------------
// The best share

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
        const UpdateBytes b = {i % 2 ? 2 : 4, i % 4 < 2 ? 2 : 4, i % 8 < 4 ? 1 : .25 * (i % 3), 10, 0};
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

// Two rates of host memory: `dram_dma` counts while both directions of the link are busy.
static void test_two_dram_rates(void) {
    char text[40];
    Rates r = machine(50, 100, 0);
    r.dram_dma = 160e9;
    CHECK(fabs(update_bound(&r, &wire, 0, NULL) - 28e-9 / 100) < 1e-18, "cores alone");
    // f = .25: 26 bytes, both directions busy for 2.5/50 = .05; (26 - 60 x .05) / 100
    CHECK(fabs(update_bound(&r, &wire, .25, NULL) - .23e-9) < 1e-18, "%g",
          update_bound(&r, &wire, .25, NULL));
    CHECK(strcmp(limit_at(&r, .25, text), "DRAM") == 0, "%s", text);
    r.dram_dma = 0;  // not known: as the cores alone
    CHECK(fabs(update_bound(&r, &wire, .25, NULL) - .26e-9) < 1e-18, "dma unknown");
    r.dram_dma = 160e9;
    r.dram = 0;
    CHECK(fabs(update_bound(&r, &wire, .25, NULL) - 26e-9 / 160) < 1e-18, "cores unknown");
    // The cores at 26 GB/s, the link on top: sharing memory costs them nothing.
    r = machine(55, 26, 0);
    r.dram_dma = 26e9 + 110e9;
    CHECK(fabs(update_bound(&r, &wire, .5, NULL) - 14e-9 / 26) < 1e-18, "%g",
          update_bound(&r, &wire, .5, NULL));
}

static void test_limit_names(void) {
    char text[40];
    Rates r = machine(55, 150, 3);
    r.gpu_adam = 1e9;
    CHECK(strcmp(limit_at(&r, 0, text), "cores") == 0, "%s", text);
    CHECK(strcmp(limit_at(&r, 1, text), "GPU") == 0, "%s", text);
    r.gpu_adam = 100e9;
    CHECK(strcmp(limit_at(&r, 1, text), "link") == 0, "%s", text);
    CHECK(strcmp(limit_at(&r, best_share(&r, &wire), text), "link and DRAM") == 0,
          "%s", text);
    CHECK(strcmp(limit_at(&r, .6, text), "DRAM") == 0, "%s", text);
    r.dram = r.dram_dma = .995e9 * 55 * 20 / 10;  // nearly as slow is not as slow
    CHECK(strcmp(limit_at(&r, 1, text), "DRAM") == 0, "%s", text);
    r = machine(1, 1, 1);
    r.host_adam = 1e9 / 28;
    r.gpu_adam = 1e9 / 12;
    r.h2d_duplex = 1e9 * 2 / 28;
    CHECK(strcmp(limit_at(&r, 0, text), "link and DRAM and cores") == 0, "%s", text);
    r = machine(0, 0, 0);
    CHECK(strcmp(limit_at(&r, .5, text), "nothing") == 0, "%s", text);
    CHECK(best_share(&r, &wire) == 0 && update_bound(&r, &wire, 0, NULL) == 0, "nothing known");
}

// ---------------------------------------------------------------------------------------------
// Several GPUs

// A node of 8 GPUs, whose host one process measured: two of them share it evenly. A host that was
// measured with two at work (or near one of two sockets) has that much for two.
static void test_sharing(void) {
    Rates r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < RATE_FIELDS; i++) *rate_at(&r, i) = 1000 + i;
    for (int given = 0; given <= 4; given++)
        for (size_t local = 1; local <= 9; local++) {
            r.host_gpus = given;
            const Rates x = rates_of_rank(&r, local);
            const double for_all = given > 0 ? given : 1, part = fmin(1, for_all / (double)local);
            for (int i = 0; i < RATE_FIELDS; i++) {
                const char *name = rate_fields[i].name;
                const bool host = strncmp(name, "dram", 4) == 0 || strcmp(name, "host_adam") == 0
                               || strcmp(name, "host_cast") == 0;
                const double got = *rate_at(&x, i), was = *rate_at(&r, i);
                const double want = part < 1 && (strstr(name, "_busy") || strstr(name, "_host")) ? 0
                                  : host ? part * was : was;
                CHECK(fabs(got - want) <= 1e-12 * was, "%s for %zu of %d: %g, not %g", name, local,
                      given, got, want);
            }
        }
}

// ---------------------------------------------------------------------------------------------
// The file

static char path[] = "/tmp/tide_rates_XXXXXX";

static bool load(Rates *r, const char *bytes, size_t n, Error *err) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0, "%s", path);
    memset(err, 0, sizeof *err);
    return rates_load(r, path, err);
}

static void test_file_not_there(void) {
    Rates r;
    Error err;
    CHECK(!rates_load(&r, "/nowhere/rates", &err) && strstr(err.text, "/nowhere") != NULL, "none");
    CHECK(!rates_load(&r, "/tmp", &err) && strstr(err.text, "regular") != NULL, "%s", err.text);
}

static void test_file_accepted(void) {
    static const char text[] = "# a machine\r\n\n \t\n  h2d\t55e9   # measured\r\nd2h 5.5E10#x\n"
                               "host_cast 0\ndram 1.5e+11\ngpu_flops 6e14";
    Rates r;
    Error err;
    memset(&r, 0xff, sizeof r);
    CHECK(load(&r, text, sizeof text - 1, &err), "%s", err.text);
    CHECK(r.h2d == 55e9 && r.d2h == 55e9 && r.dram == 150e9, "%g %g %g", r.h2d, r.d2h, r.dram);
    CHECK(r.host_cast == 0 && r.gpu_adam == 0 && r.host_adam == 0, "what is not named is 0");
    CHECK(r.gpu_attention == 7e14, "six products of attention took the time of seven: %g",
          r.gpu_attention);
}

static void test_file_round_trip(void) {
    CHECK(sizeof(Rates) == RATE_FIELDS * sizeof(double), "a rate without a name in the file");
    for (int i = 0; i < 200; i++) {
        Rates r, back;
        Error err;
        for (int j = 0; j < RATE_FIELDS; j++) {
            *rate_at(&r, j) = i % 7 == j % 7 ? 0 : exp(uniform(-20, 50));
            if (strcmp(rate_fields[j].unit, "GPUs") == 0) *rate_at(&r, j) = i * j % 11;
        }
        FILE *f = fopen(path, "wb");
        CHECK(f != NULL, "%s", path);
        rates_write(f, &r);
        fclose(f);
        CHECK(rates_load(&back, path, &err), "%s", err.text);
        for (int j = 0; j < RATE_FIELDS; j++) {
            char text[32];
            snprintf(text, sizeof text, "%.3g", *rate_at(&r, j));
            double want = strtod(text, NULL);
            if (rate_at(&r, j) == &r.gpu_attention && want == 0) want = 7 * back.gpu_flops / 6;
            CHECK(*rate_at(&back, j) == want, "round trip %d: %.17g, not %s", i,
                  *rate_at(&back, j), text);
        }
    }
}

int main(void) {
    const int fd = mkstemp(path);
    if (fd < 0) die("cannot make a file in /tmp");
    close(fd);
    RUN(test_traffic);
    RUN(test_bound_table);
    RUN(test_eq1_table);
    RUN(test_machines);
    RUN(test_against_search);
    RUN(test_two_dram_rates);
    RUN(test_limit_names);
    RUN(test_sharing);
    RUN(test_file_not_there);
    RUN(test_file_accepted);
    RUN(test_file_round_trip);
    unlink(path);
    return test_summary();
}
