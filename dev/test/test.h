// test.h: the smallest test harness that says what it did. A test program runs its tests with RUN()
// and ends with `return test_summary();`. Each test prints one line, "ok NAME", "FAIL NAME" or
// "skip NAME: reason", and how much of its tolerances was used; dev/test/run.sh adds those lines up
// over all programs.
#ifndef TIDE_TEST_H
#define TIDE_TEST_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TEST_FIXTURES "dev/test/fixtures"  // tests are run from the top of the repository

static int test_failures_here, test_failures, test_count;
static const char *test_skip_reason;
static double test_part;  // the largest error / allowance of the running test; -1: it has none

// Fails the running test with a message if the condition does not hold; the test goes on.
#define CHECK(condition, ...)                                                        \
    do {                                                                             \
        if (!(condition)) {                                                          \
            if (test_failures_here++ < 20) {                                         \
                printf("  %s:%d: %s: ", __FILE__, __LINE__, #condition);             \
                printf(__VA_ARGS__);                                                 \
                printf("\n");                                                        \
            }                                                                        \
        }                                                                            \
    } while (0)

// Is the error within what is allowed? A NaN is not. The largest part of an allowance that the test
// has used is printed with its result.
static inline int test_within(double error, double allowed) {
    const double part = error == 0 ? 0 : error / allowed;
    if (!(part <= test_part)) test_part = part == part ? part : INFINITY;
    return error <= allowed;
}

// Ends the running test and counts it as skipped, with its reason.
#define SKIP(reason) do { test_skip_reason = (reason); return; } while (0)

// Is everything to be tested (make test-all), or what covers all there is (make test)?
static inline int test_whole(void) {
    const char *all = getenv("ALL");
    return all != NULL && all[0] == '1';
}

#if defined __GLIBC__ && !defined __CUDACC__  // the emulated GPU does it for its programs
#include "../../tide/cpu/cpu.h"
__attribute__((constructor)) static void test_waits_briefly(int argc, char **argv) {
    (void)argc;
    cpu_wait_briefly(argv);
}
#endif

#define RUN(function) test_run(#function, function)

static inline void test_run(const char *name, void (*function)(void)) {
    test_failures_here = 0;
    test_skip_reason = NULL;
    test_part = -1;
    function();
    test_count++;
    if (test_failures_here > 0) { test_failures++; printf("FAIL %s", name); }
    else if (test_skip_reason != NULL) printf("skip %s: %s", name, test_skip_reason);
    else printf("ok %s", name);
    if (test_part >= 0) printf(": error / allowance %.2g", test_part);
    printf("\n");
    fflush(stdout);
}

static inline int test_summary(void) {
    return test_failures > 0 || test_count == 0;
}
#endif
