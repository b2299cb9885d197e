// util.h: what every file here needs: how the program ends after an error, memory that is checked,
// time, texts, and whole files.
//
// A function reports an error in one of three ways:
//   die()   bad input: an impossible option, a missing or damaged file. One line, exit code 2.
//   fail()  the machine gave out while running: no memory, disk full. One line, exit code 1.
//   It returns false (or NULL), with one sentence in `err` (error_set()), if its caller may go on,
//   say with an older checkpoint, or has to save first.
//
//     alloc_or_fail(), ALLOC(), array_grow()       memory
//     replace_open(), replace_close()              replace a whole file at once
//     text_open(), text_close()                    a text in memory, written like a file
//     path_join(), path_exists(), ..               names of files
//     program_begin(), print_end()                 set up output and signals; check the output
//     output_check()                               refuses an output that exists
//     file_map(), file_read(), text_read()         map or read a whole file; one that must be text
//     file_kind()                                  recognises a format by a file's first bytes
//     text_line()                                  finds a value in a text of lines "name value"
//     utf8_decode(), utf8_encode()                 one code point
//     hash_word(), hash_words(), hash_bytes()      hashes, to notice damaged files
//     seal_print(), seal_find()                    a text that ends with its own hash
#ifndef TIDE_UTIL_H
#define TIDE_UTIL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#else  // without OpenMP there is one thread
static int omp_get_thread_num(void) { return 0; }
static int omp_get_max_threads(void) { return 1; }
static int omp_get_num_threads(void) { return 1; }
static int omp_get_num_procs(void) { return 1; }
static void omp_set_num_threads(int n) { (void)n; }
#endif

static void end_at_cut_file(int number) {
    static const char line[] = "tide: a file was cut short, or its disk failed, while this program "
                               "read it; what was saved before is whole\n";
    (void)number, (void)!write(STDERR_FILENO, line, sizeof line - 1);
    _exit(1);
}

// Sets up output and signals; main() calls it first. Opens /dev/null in place of closed descriptors
// 0 to 2: else a file or socket would get the number of stdout, and printed lines. From here on
// each line is printed at once, also into a file or a pipe. If a mapped file is cut short, the
// program ends with a line. A write beyond ulimit -f fails, but does not end the program.
static void program_begin(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR); while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGBUS, end_at_cut_file);
    signal(SIGXFSZ, SIG_IGN);
}

static const char *plural(size_t n) { return n == 1 ? "" : "s"; }

// Marks functions that the GPU runs as well. They are always inlined.
#ifdef __CUDACC__
#include <cuda_runtime.h>
#define HOST_DEVICE __host__ __device__ __attribute__((always_inline))
#else
#define HOST_DEVICE __attribute__((always_inline))
#endif

HOST_DEVICE static inline uint32_t float_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
HOST_DEVICE static inline float bits_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

// Returns a b + c, rounded once, with the same bits everywhere. (A CPU without FMA is slow here.)
HOST_DEVICE static inline float fma_f32(float a, float b, float c) { return fmaf(a, b, c); }

#define TIDE_VERSION "0.2.0"

// One sentence about an error: in which file or option, where, why.
typedef struct { char text[512]; } Error;

// Writes the sentence. Returns false, so that a parser can `return error_set(err, ...)`.
__attribute__((format(printf, 2, 3)))
static bool error_set(Error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return false;
}

// Is true in threads that exit() may wait for, like those of CUDA: they must call _exit().
static __thread bool thread_is_awaited;

// Declares a variable that all compilations of a program share. A GPU's trainer has one for each
// precision (that of bf16 has main() and run_open()); a C program has only one.
#ifdef __cplusplus
#define ONE_PER_PROGRAM inline
#else
#define ONE_PER_PROGRAM static
#endif

// If not NULL, prints the program's last line: of several processes only one prints it (ranks.h).
// Tests set it, too, so as to go on after an error (dev/test/dies.h).
ONE_PER_PROGRAM void (*report_for_all)(int code, const char *line);

__attribute__((format(printf, 2, 3), noreturn))
static void end_program(int code, const char *format, ...) {
    char line[PATH_MAX];
    va_list args;
    fflush(stdout);  // earlier output is printed first
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c != '\0'; c++)  // a file's name may have a newline
        if ((unsigned char)*c < 32 || *c == 127) *c = '?';
    if (report_for_all != NULL) report_for_all(code, line);
    else fprintf(stderr, "tide: %s\n", line);
    if (thread_is_awaited) _exit(code);
    exit(code);
}

// die() is for bad input, fail() for a failure while running.
#define die(...) end_program(2, __VA_ARGS__)
#define fail(...) end_program(1, __VA_ARGS__)

// Ends the program if what it has printed could not be written; else returns 0.
static int print_end(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) fail("cannot print: %s", strerror(errno));
    return 0;
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// Allocates memory of zeros at a 64-byte boundary (a cache line, and the widest vector register),
// to be freed by free(). `what` names the buffer in the error.
static void *alloc_or_fail(size_t count, size_t size, const char *what) {
    const double needed = (double)count * (double)size / (1 << 20);  // a size_t may overflow
    const size_t bytes = count * size > 0 ? round_up(count * size, 64) : 64;
    void *p = needed < 1e12 ? aligned_alloc(64, bytes) : NULL;
    if (p == NULL) fail("out of memory: %s needs %.1f MiB", what, needed);
    memset(p, 0, bytes);
    return p;
}
#define ALLOC(type, count, what) ((type *)alloc_or_fail(count, sizeof(type), what))

// Returns the array p with room for one more than `count` elements. Doubles an array that is full.
static void *array_grow(void *p, size_t count, size_t size, const char *what) {
    if ((count & (count - 1)) != 0) return p;
    p = realloc(p, (count > 0 ? 2 * count : 1) * size);
    if (p == NULL) fail("out of memory: %s", what);
    return p;
}

// For qsort(), ascending: compare doubles, or structures that begin with one; 64-bit words.
static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int compare_words(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Returns the median of n > 0 numbers (of an even n, the larger one of two), and sorts them.
static double median_of(double *x, size_t n) {
    qsort(x, n, sizeof *x, compare_doubles);
    return x[n / 2];
}

// Returns seconds of a clock that never jumps.
static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Formats a number of parameters for people: "0.42 M", "12.85 G".
typedef struct { char text[32]; } NumberText;
static NumberText count_text(double n) {
    NumberText c;
    snprintf(c.text, sizeof c.text, "%.4g %c", n * (n < 1e9 ? 1e-6 : 1e-9), n < 1e9 ? 'M' : 'G');
    return c;
}

// Formats a duration: "41 s", "3 m 12 s", "2 h 05 m", "4 d 03 h".
static NumberText duration_text(double seconds) {
    const unsigned long s = seconds < 1e9 ? (unsigned long)(seconds + 0.5) : 1000000000UL;
    NumberText d;
    if (s < 60) snprintf(d.text, sizeof d.text, "%lu s", s);
    else if (s < 3600) snprintf(d.text, sizeof d.text, "%lu m %02lu s", s / 60, s % 60);
    else if (s < 86400) snprintf(d.text, sizeof d.text, "%lu h %02lu m", s / 3600, s % 3600 / 60);
    else snprintf(d.text, sizeof d.text, "%lu d %02lu h", s / 86400, s % 86400 / 3600);
    return d;
}

// Writes dir + "/" + name to out. Ends the program if that is too long.
static void path_join(char out[PATH_MAX], const char *dir, const char *name) {
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        die("path too long: %s/%s", dir, name);
}

// Replace a file. The new one is written to PATH.tmp, flushed to the disk, and renamed: at every
// moment PATH is the whole old file or the whole new one. replace_open() returns the FILE to write
// to. replace_close() renames it. After an error, or if err is NULL, it removes the new file, and
// the old one stays.
static void replace_name(char out[PATH_MAX], const char *path) {
    if (snprintf(out, PATH_MAX, "%s.tmp", path) >= PATH_MAX) die("path too long: %s", path);
}

static FILE *replace_open(const char *path, Error *err) {
    char temporary[PATH_MAX];
    replace_name(temporary, path);
    // PATH.tmp may be a link to a file that must not be written.
    FILE *f = unlink(temporary) == 0 || errno == ENOENT ? fopen(temporary, "wbx") : NULL;
    if (f == NULL) error_set(err, "cannot write %.400s: %s", path, strerror(errno));
    return f;
}

static bool replace_close(FILE *f, const char *path, Error *err) {
    char temporary[PATH_MAX];
    replace_name(temporary, path);
    const bool whole = err != NULL && fflush(f) == 0 && !ferror(f) && fsync(fileno(f)) == 0;
    if (fclose(f) == 0 && whole && rename(temporary, path) == 0) return true;
    if (err != NULL) error_set(err, "cannot write %.400s: %s", path, strerror(errno));
    unlink(temporary);
    return false;
}

// Opens *text for writing. After text_close() it has *n bytes, and is to be freed.
static FILE *text_open(char **text, size_t *n) {
    FILE *f = open_memstream(text, n);
    if (f == NULL) fail("out of memory: a text");
    return f;
}

static void text_close(FILE *f) {
    if (fclose(f) != 0) fail("out of memory: a text");
}

// Returns the text after a name in a text of lines "name value" or "name"; NULL: there is none.
static const char *text_line(const char *text, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, name, n) == 0 && (at[n] == ' ' || at[n] == '\n')) return at + n;
    }
    return NULL;
}

static bool path_is_directory(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool path_exists(const char *path) { return access(path, F_OK) == 0; }

// Finds the directory of a file; of a directory, the path itself.
static void path_directory(const char *path, char dir[PATH_MAX]) {
    snprintf(dir, PATH_MAX, "%s", path);
    if (path_is_directory(path)) return;
    char *slash = strrchr(dir, '/');
    if (slash == NULL) snprintf(dir, PATH_MAX, ".");
    else slash[slash == dir] = '\0';
}

// Refuses the output `path` of an option if the file or its temporary file exists, or if its
// directory cannot be written. path NULL: there is no output.
static void output_check(const char *option, const char *path) {
    char temporary[PATH_MAX], dir[PATH_MAX];
    struct stat s;
    if (path == NULL) return;
    replace_name(temporary, path);
    if (lstat(path, &s) == 0)
        die("%s %s exists, and nothing is overwritten: name another file", option, path);
    if (lstat(temporary, &s) == 0)
        die("%s %s exists, and nothing is overwritten: name another file, or remove this one if an "
            "earlier call was stopped", option, temporary);
    path_directory(path, dir);
    if (access(dir, W_OK | X_OK) != 0) die("%s %s: %s", option, path, strerror(errno));
}

// Makes a directory and those above it. Returns false, with errno set, if it cannot.
static bool make_directories(const char *path) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) { errno = ENAMETOOLONG; return false; }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return false;
    }
    if (!path_is_directory(path)) { errno = ENOTDIR; return false; }
    return true;
}

// ---------------------------------------------------------------------------------------------
// UTF-8

// Decodes one code point of UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF).
// Returns its bytes; 0 if s does not begin with a valid one.
static size_t utf8_decode(const char *s, size_t n, uint32_t *point) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) { *point = u[0]; return 1; }
    size_t length = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || n < length) return 0;
    uint32_t c = u[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (u[i] & 0x3f);
    }
    if (c < smallest[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *point = c;
    return length;
}

// Writes code point c, and returns its bytes, 1 to 4.
static size_t utf8_encode(uint32_t c, char *out) {
    if (c < 0x80) { out[0] = (char)c; return 1; }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00u >> length & 0xff) | c);
    return length;
}

// Returns the length of the byte order mark at the start of a text: 3, or 0.
static size_t utf8_mark(const char *text, size_t n) {
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

// ---------------------------------------------------------------------------------------------
// Whole files

// Returns what a file is, by its first n bytes, and what to do with it, as the end of a sentence
// that begins with "PATH is "; NULL: unknown. Patterns are separated by '|', and ignore case.
static const char *file_kind(const void *bytes, size_t n) {
    static const struct { const char *patterns, *kind; } kinds[] = {
        {"\xc6\xd7\x34\x01", "an llm.c checkpoint: no weights in Hugging Face's naming: llm.c's "
         "dev/eval/export_hf.py makes those"},
        {"\xc7\xd7\x34\x01|\x8f\xd8\x34\x01", "a state of llm.c (a test's, or AdamW's): no model"},
        {"\x88\xd8\x34\x01|\xa1\xd9\x34\x01", "a token file: name it with --data or --val"},
        {"GGUF\1|GGUF\2|GGUF\3|lmgg|fmgg|tjgg", "a GGUF or GGML file: take the safetensors"},
        {"PK\3\4|\x80\2|\x80\3|\x80\4|\x80\5", "a pickled PyTorch file, or an archive: "
         "build/unpickle model.safetensors FILE makes safetensors of the former"},
        {"version https://git-lfs.github.com/spec/", "a pointer of git-lfs: git lfs pull, or "
         "download the file itself"},
        {"<!doctype|<html|<?xml", "a web page: the download failed, or needs a login"},
        {"{\"error\":\"|{\"error\": \"|{\"message\":\"Not Found|Entry not found|"
         "Repository not found", "a server's error message: the download failed, or needs a login"},
        {"\x1f\x8b|\x1f\x9d|\x28\xb5\x2f\xfd|\xfd" "7zXZ|BZh11AY|BZh21AY|BZh31AY|BZh41AY|"
         "BZh51AY|BZh61AY|BZh71AY|BZh81AY|BZh91AY|LZIP\1|\x04\x22\x4d\x18|7z\xbc\xaf|Rar!\x1a",
         "compressed: unpack it first"},
        {"\x93NUMPY|PAR1|ARROW1|\xff\xff\xff\xff|FEA1|\x89HDF|SQLite format 3",
         "a table (NumPy, Parquet, Arrow, HDF5, SQLite): save it as text, or as JSON lines"},
        {"%pdf-|{\\rtf|\xd0\xcf\x11\xe0", "a document (PDF, RTF, Word): save it as plain text"},
        {"\xff\xfe|\xfe\xff", "text in UTF-16: write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"},
    };
    const char *s = (const char *)bytes, *end = s + n;
    if (n > 9 && s[7] == 0 && s[8] == '{' && (s[9] == '"' || s[9] == '}'))
        return "a safetensors file: name it, or its folder, with --model";
    if (n > 262 && memcmp(s + 257, "ustar", 5) == 0) return "an archive (tar): unpack it first";
    s += utf8_mark(s, n);
    while (s < end && memchr(" \t\r\n", *s, 4) != NULL) s++;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (const char *at = kinds[i].patterns; *at != '\0'; at += *at == '|') {
            const size_t length = strcspn(at, "|");
            if ((size_t)(end - s) >= length && strncasecmp(s, at, length) == 0)
                return kinds[i].kind;
            at += length;
        }
    return NULL;
}

// Maps a whole regular file, read-only; sets *n to its bytes. On failure returns NULL, with err.
static void *file_open_map(const char *path, size_t *n, Error *err) {
    struct stat s;
    void *map = MAP_FAILED;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // does not wait on a pipe
    const bool there = fd >= 0 && fstat(fd, &s) == 0, regular = there && S_ISREG(s.st_mode);
    *n = regular ? (size_t)s.st_size : 0;
    if (regular) map = mmap(NULL, *n > 0 ? *n : 1, PROT_READ, MAP_PRIVATE, fd, 0);
    error_set(err, "%.300s: %s", path, there && !regular ? "not a regular file" : strerror(errno));
    if (fd >= 0) close(fd);
    return map == MAP_FAILED ? NULL : map;
}

// Maps a file. Ends the program if it cannot, or if the file is empty.
static void *file_map(const char *path, size_t *n) {
    Error err;
    void *map = file_open_map(path, n, &err);
    if (path_is_directory(path)) die("%s is a directory; '%s/*' names the files in it", path, path);
    if (map == NULL) die("%s", err.text);
    if (*n == 0) die("%s is empty", path);
    return map;
}

// Reads a whole regular file, without a byte order mark, and adds a NUL after its *n bytes. The
// caller frees it. On failure returns NULL, with the reason in err.
static char *file_read(const char *path, size_t *n, Error *err) {
    char *map = (char *)file_open_map(path, n, err);
    if (map == NULL) return NULL;
    const size_t all = *n, mark = utf8_mark(map, all);
    char *text = (char *)alloc_or_fail(all + 1, 1, path);
    memcpy(text, map + mark, *n -= mark);
    munmap(map, all > 0 ? all : 1);
    return text;
}

// Reads a text file. Refuses one with a NUL, or with another format that file_kind() recognises.
static char *text_read(const char *path, size_t *n, Error *err) {
    char *text = file_read(path, n, err);
    const char *kind = text != NULL ? file_kind(text, *n) : NULL;
    if (text == NULL || (kind == NULL && strlen(text) == *n)) return text;
    error_set(err, "%.200s %s%s", path, kind != NULL ? "is " : "has a NUL byte: it is no text, ",
              kind != NULL ? kind : "or UTF-16: write it as UTF-8");
    free(text);
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// Hash
//
// The hash is a sum with one number for each 8-byte word, so parts of a file can be hashed in any
// order. The number depends on the word and its place, by splitmix64's mixing (Steele, Lea, Flood
// 2014). For a given place that is a bijection: a change of one word always changes the sum. Other
// damage is not noticed with a chance of 2^-64. The hash is no defence against a forger.

static uint64_t hash_word(uint64_t place, uint64_t x) {
    x ^= place * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Returns the hash of n bytes from byte `place` of a file. n is a multiple of 8, except at the end.
static uint64_t hash_words(uint64_t place, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = 0;
        if (n - i >= 8) memcpy(&x, p + i, 8);
        else memcpy(&x, p + i, n - i);
        sum += hash_word(place + i, x);
    }
    return sum;
}

static uint64_t hash_bytes(const void *bytes, size_t n) {
    return hash_word(n, hash_words(0, bytes, n));
}

// Prints the last line of a text, "seal 16 digits": the hash of the text before this line.
enum { SEAL = 22 };
static void seal_print(FILE *f, const char *text, size_t n) {
    fprintf(f, "seal %016" PRIx64 "\n", hash_bytes(text, n));
}

// Returns the length of a text of n bytes without its seal; SIZE_MAX if the seal is wrong.
static size_t seal_find(const char *text, size_t n) {
    char seal[SEAL + 1];
    if (n < SEAL) return SIZE_MAX;
    snprintf(seal, sizeof seal, "seal %016" PRIx64 "\n", hash_bytes(text, n - SEAL));
    return memcmp(text + n - SEAL, seal, SEAL) == 0 ? n - SEAL : SIZE_MAX;
}

#endif
