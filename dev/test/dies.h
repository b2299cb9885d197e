// dies.h: for tests and fuzzers of what ends the program on bad input.
//     const char *said = DIES(data_open("none", NULL));  // NULL: it went on
//     const char *warned = SAYS(data_open("text", NULL));
// Memory and files that were open then stay so: there is no search for leaks. What a test's
// variables had before stays, what the call gave them does not.
#ifndef TIDE_DIES_H
#define TIDE_DIES_H
#include "../../tide/base/util.h"
#include <setjmp.h>
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wclobbered"
#endif

static jmp_buf dies_back;
static char dies_line[PATH_MAX];

static void dies_report(int code, const char *line) {
    snprintf(dies_line, sizeof dies_line, "%s", line);
    longjmp(dies_back, code);
}

#define DIES(call) ({ \
    void (*before_)(int, const char *) = report_for_all; \
    const char *volatile said_ = NULL; \
    report_for_all = dies_report; \
    if (setjmp(dies_back) == 0) call; \
    else said_ = dies_line; \
    report_for_all = before_; \
    said_; })

// Does the call end the program with a line that has these words?
#define DIES_WITH(words, call) ({ \
    const char *line_ = DIES(call); \
    const bool good_ = line_ != NULL && strstr(line_, words) != NULL; \
    if (!good_) printf("  '%s' should say '%s'\n", line_ != NULL ? line_ : "nothing", words); \
    good_; })

// Returns the text that the call prints on stderr, or on stdout. The next call overwrites it.
#define SAYS(call) (says_begin(2), (void)(call), says_end())
#define PRINTS(call) (says_begin(1), (void)(call), says_end())

static FILE *says_file;
static int says_fd, says_before;

static void says_begin(int fd) {
    fflush(stdout);
    says_file = tmpfile();
    says_fd = fd;
    says_before = dup(fd);
    if (says_file == NULL || dup2(fileno(says_file), fd) < 0) fail("no temporary file");
}

static const char *says_end(void) {
    static char text[1 << 14];
    fflush(stdout);
    dup2(says_before, says_fd);
    close(says_before);
    rewind(says_file);
    text[fread(text, 1, sizeof text - 1, says_file)] = '\0';
    fclose(says_file);
    return text;
}

const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif
