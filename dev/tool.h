// tool.h: what the tools in this folder and in data/ share.
//
//     tool_number()               a number of the command line
//     tool_check_kind()           a file that is no such input at all is named
//     tool_open(), tool_close()   the output: whole, or not there
//     tool_help()                 prints the help
#ifndef TIDE_TOOL_H
#define TIDE_TOOL_H
#include "../tide/base/util.h"
#include <math.h>

// Reads the number `text` of an option or argument; dies if there is none, if it is not from `low`
// to `high`, or if it must be whole and is not.
static double tool_number(const char *option, const char *text, double low, double high,
                          bool whole) {
    char *end;
    const double x = strtod(text, &end);
    // strtod() also reads blanks, hexadecimal numbers, inf and nan: these are refused
    if (end == text || text[strspn(text, "+-.0123456789eE")] != '\0' || *end != '\0')
        die("%s: \"%.60s\" is not a number", option, text);
    if (whole && x != floor(x)) die("%s: \"%.60s\" is not a whole number", option, text);
    if (x < low || x > high)
        die("%s %.60s: must be %.10g to %.16g", option, text, low, high);
    return x;
}

// Is it a regular file, or not there?
static bool path_is_file(const char *path) {
    struct stat s;
    return stat(path, &s) != 0 || S_ISREG(s.st_mode);
}

// Dies if `path` is a folder or empty, or if its first bytes say that it is something else than
// what the tool reads. Pipes are left alone.
static void tool_check_kind(const char *path) {
    char bytes[64];
    FILE *f = path_is_file(path) ? fopen(path, "rb") : NULL;
    if (path_is_directory(path)) die("%s is a directory", path);
    if (f == NULL) return;
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    const char *kind = file_kind(bytes, n);
    if (n == 0) die("%s is empty", path);
    if (kind != NULL) die("%s is %s", path, kind);
}

// Opens the output of -o: a new file, which has its name when it is whole, a pipe or device, or the
// standard output (NULL).
static FILE *tool_open(const char *out) {
    Error err;
    if (out == NULL) return stdout;
    if (path_is_file(out) || path_is_directory(out)) output_check("-o", out);
    FILE *f = path_is_file(out) ? replace_open(out, &err) : fopen(out, "wb");
    if (f == NULL) die("cannot write %s: %s", out, strerror(errno));
    return f;
}

static void tool_close(FILE *f, const char *out) {
    Error err;
    const int why = errno;  // why an earlier write failed
    const bool file = out != NULL && path_is_file(out);
    errno = why;
    if (file) {
        if (!replace_close(f, out, &err)) fail("%s", err.text);
        return;
    }
    bool ok = fflush(f) == 0 && !ferror(f);
    if (out != NULL) ok = fclose(f) == 0 && ok;
    if (!ok) fail("cannot write %s: %s", out != NULL ? out : "to the standard output",
                  strerror(errno));
}

// Prints the help. Returns the exit code, 0.
static int tool_help(const char *text) {
    fputs(text, stdout);
    tool_close(stdout, NULL);
    return 0;
}

#endif
