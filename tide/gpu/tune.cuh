// tune.cuh: a file (--tune) with the algorithm of each matrix product. All later runs use an
// algorithm that was measured once, so they compute the same bits.
//   tune_open()   reads the file, if it exists and is of this device and library
//   tune_find()   finds the algorithm of a shape
//   tune_add()    adds an algorithm, and writes the whole file anew
//   tune_print()  prints how many products have been measured or are missing, if it is new
// matmul.cuh measures. An algorithm is 64 bytes that only the library understands; a file may keep
// them for the same version of the library (cuBLAS documentation, cublasLtMatmulAlgo_t). So the
// file names the device and the library, and is not used with another device or library.
#ifndef TIDE_TUNE_CUH
#define TIDE_TUNE_CUH
#include "gpu.cuh"
#include <cublasLt.h>

// All that an algorithm may depend on. Shapes are compared bytewise: they have no gaps.
typedef struct {
    size_t M, N, K, lda, ldb, ldo;
    int trans_a, trans_b, type, out_type, epilogue, accumulate;
    uint32_t align_a, align_b, align_out, align_extra;  // alignments in bytes; 0: no operand
} MatmulShape;

typedef struct {
    MatmulShape shape;           // accumulate is 0: all products of a sum use one algorithm
    cublasLtMatmulAlgo_t algo;
    int number;                  // the algorithm's index in the heuristic's list
    double us, first_us;         // times of this algorithm and of the first in the list
} Tuned;

typedef struct {
    const char *file;            // NULL: no --tune
    bool measures;               // products that are not in the file are measured
    char device[320];            // the file's first line: names the device and the library
    Tuned *list;
    int count, measured;         // numbers of entries; of entries that this run has added
    int missing, told;  // products that the file lacks; measured + missing at the last print
    uint64_t seal;               // the hash of the file's contents; 0: no file
} Tune;

static const Tuned *tune_find(const Tune *t, const MatmulShape *s) {
    for (int i = 0; i < t->count; i++)
        if (memcmp(&t->list[i].shape, s, sizeof *s) == 0) return &t->list[i];
    return NULL;
}

// A line of the file: M, N, K, number and times, for people; then shape and algorithm as in memory.
enum { TUNE_WORDS = (sizeof(MatmulShape) + sizeof(cublasLtMatmulAlgo_t)) / 8 };

static bool tune_parse(const char *line, Tuned *tuned) {
    uint64_t words[TUNE_WORDS];
    int used, n;
    if (sscanf(line, "%*u %*u %*u algorithm %d: %lf us, first: %lf us%n", &tuned->number,
               &tuned->us, &tuned->first_us, &used) != 3) return false;
    for (int i = 0; i < TUNE_WORDS; i++, used += n)
        if (sscanf(line + used, "%" SCNx64 "%n", &words[i], &n) != 1) return false;
    memcpy(tuned, words, sizeof words);
    return line[used] == '\n';
}

static void tune_write(FILE *f, const Tuned *tuned) {
    uint64_t words[TUNE_WORDS];
    memcpy(words, tuned, sizeof words);
    fprintf(f, "%zu %zu %zu algorithm %d: %.2f us, first: %.2f us", tuned->shape.M, tuned->shape.N,
            tuned->shape.K, tuned->number, tuned->us, tuned->first_us);
    for (int i = 0; i < TUNE_WORDS; i++) fprintf(f, " %016" PRIx64, words[i]);
    fputc('\n', f);
}

static void tune_add(Tune *t, const Tuned *tuned) {
    char *text = NULL;
    size_t n = 0;
    Error err;
    t->list = (Tuned *)array_grow(t->list, (size_t)t->count, sizeof(Tuned), "--tune");
    t->list[t->count++] = *tuned;
    t->measured++;
    FILE *f = text_open(&text, &n);
    fputs(t->device, f);
    for (int i = 0; i < t->count; i++) tune_write(f, &t->list[i]);
    text_close(f);
    t->seal = hash_bytes(text, n);
    f = replace_open(t->file, &err);
    if (f == NULL) fail("--tune: %s", err.text);
    fputs(text, f);
    seal_print(f, text, n);
    free(text);
    if (!replace_close(f, t->file, &err)) fail("--tune: %s", err.text);
}

// Opens the file of --tune (file NULL: none). measures: products that it lacks are measured, added.
// Reports and ignores a file of another device or library; ends the program if it is damaged.
static void tune_open(Tune *t, const char *file, bool measures) {
    cudaDeviceProp device;
    int number = 0;
    size_t n = 0;
    Error err;
    *t = Tune{.file = file, .measures = measures};
    if (file == NULL) return;
    CUDA(cudaGetDevice(&number));
    CUDA(cudaGetDeviceProperties(&device, number));
    snprintf(t->device, sizeof t->device, "products %.200s, %d multiprocessors, cuBLASLt %zu\n",
             device.name, device.multiProcessorCount, cublasLtGetVersion());
    if (!path_exists(file)) return;
    char *text = file_read(file, &n, &err);
    if (text == NULL) die("--tune: %s", err.text);
    const size_t end = seal_find(text, n);
    if (end == SIZE_MAX)
        die("--tune %s: it is not what was written: remove it, and products are measured anew",
            file);
    const size_t same = strlen(t->device);
    if (strncmp(text, t->device, same) != 0) {
        printf("--tune %s: it is of %.*s; the products' first algorithms are used\n", file,
               (int)strcspn(text, "\n") - 9, text + 9);
        t->file = NULL;
        free(text);
        return;
    }
    t->seal = hash_bytes(text, end);
    text[end] = '\0';
    const char *line = text + same - 1;
    for (; line != NULL && line[1] != '\0'; line = strchr(line + 1, '\n')) {
        t->list = (Tuned *)array_grow(t->list, (size_t)t->count, sizeof(Tuned), "--tune");
        if (!tune_parse(line + 1, &t->list[t->count++]))
            die("--tune %s: a line of it is none of ours; without the file, products are measured "
                "anew", file);
    }
    free(text);
}

// Prints how many products have been measured or are missing, if the numbers have changed.
static void tune_print(Tune *t) {
    if (t->measured + t->missing == t->told) return;
    t->told = t->measured + t->missing;
    if (t->measured > 0) printf("--tune %s: %d products measured\n", t->file, t->measured);
    else printf("--tune %s lacks products of this run, which take their first algorithms: one "
                "process alone measures them\n", t->file);
}

#endif
