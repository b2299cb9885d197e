// columns.cuh: ZenFlow's work on columns of matrices on the GPU (zenflow.h).
//
//   1. The work, and who does it
//   2. Packing and unpacking: columns_move_gpu()
//   3. The update of the chosen columns: columns_adam_gpu()
//   4. Importance: sums over columns: columns_sums_gpu(), columns_scratch()
//
// One or two launches serve a whole segment. zenflow.h and adam.h define the bits of the results.
//
// Memory bounds all of this work. A thread has one column, and walks down some of its rows: so it
// looks the column up once, and has many loads under way. Neighbouring threads have neighbouring
// slots: these are adjacent in packed memory, and mostly in the matrix, where columns begin in
// order and change places rarely. (With several adjacent slots per thread, a warp's loads from the
// matrix would cover several times as much memory; and packed rows are not aligned.)
#ifndef TIDE_COLUMNS_CUH
#define TIDE_COLUMNS_CUH
#include "adam.cuh"
#include "../../zenflow.h"

// ---------------------------------------------------------------------------------------------
// 1. The work

static_assert((int)LAYER_TENSORS <= (int)BATCH_MOST, "one launch has all tensors of a layer");
enum { COLUMNS_THREADS = 256, COLUMNS_EACH = 16 };  // a block's threads; a thread's loads under way

// Columns of a matrix (rows, cols); a slot is a column of the packed matrix (rows, slots). Slots
// are cut into strips of equal width, at most COLUMNS_THREADS; the last may be narrower. A block
// takes `band` rows of a strip at once, as many as it has threads for. If all columns are summed,
// the sums of each block of rows (blocks, cols) begin at packed_at; slots, width and band are 0.
typedef struct {
    size_t at;         // begin of the matrix in its segment of an arena
    size_t packed_at;  // begin of its packed elements
    size_t column_at;  // index of slot 0 in the list of columns
    unsigned rows, cols, strips;
    unsigned slots, width, band;
} ColumnsWork;

static ColumnsWork columns_matrix(const ZenMap *map, const ZenSegment *s, const ZenTensor *z) {
    return ColumnsWork{.at = z->at - map->tensor[s->first].at, .column_at = z->column_at,
                       .rows = (unsigned)z->rows, .cols = (unsigned)z->cols};
}

// Lists the chosen columns of a segment's tensors or, if `rest`, the late ones. A unit of work is a
// block of threads, which takes COLUMNS_EACH bands of a strip.
static inline Batch<ColumnsWork> columns_of(const ZenMap *map, int segment, bool rest) {
    const ZenSegment *s = &map->segment[segment];
    Batch<ColumnsWork> batch = {};
    for (const ZenTensor *z = map->tensor + s->first; z < map->tensor + s->first + s->count; z++) {
        const size_t slots = rest ? z->cols - z->chosen : z->chosen;
        if (slots == 0) continue;
        ColumnsWork w = columns_matrix(map, s, z);
        w.packed_at = rest ? z->rest_at - s->rest_at : z->chosen_at - s->chosen_at;
        w.column_at = z->column_at + (rest ? z->chosen : 0);
        w.slots = (unsigned)slots;
        w.strips = ceil_div(slots, COLUMNS_THREADS);
        w.width = ceil_div(slots, w.strips);
        w.band = COLUMNS_THREADS / w.width;
        batch_add(&batch, w, w.strips * (size_t)ceil_div(z->rows, w.band * COLUMNS_EACH));
    }
    return batch;
}

// ---------------------------------------------------------------------------------------------
// 2. Packing and unpacking

// Rounds a gradient (PACKS) to nearest even, or a weight by weight_from().
template <bool PACKS, typename To, typename From>
__device__ static inline To columns_convert(From x) {
    if constexpr (sizeof(To) == sizeof(From)) return x;
    else if constexpr (PACKS) return from_f32<To>(to_f32(x));
    else return weight_from<To>(to_f32(x));
}

// Copies a thread's elements, one of each band: loads all first; at the matrix's end, one by one.
template <bool PACKS, typename To, typename From>
__device__ static inline void columns_copy(To *__restrict__ to, size_t ahead_to,
                                           const From *__restrict__ from, size_t ahead_from,
                                           unsigned left, unsigned band) {
    if (left > (COLUMNS_EACH - 1) * band) {
        From x[COLUMNS_EACH];
        UNROLL for (int k = 0; k < COLUMNS_EACH; k++, from += ahead_from) x[k] = *from;
        UNROLL for (int k = 0; k < COLUMNS_EACH; k++, to += ahead_to)
            *to = columns_convert<PACKS, To>(x[k]);
    } else {
        for (unsigned row = 0; row < left; row += band, from += ahead_from, to += ahead_to)
            *to = columns_convert<PACKS, To>(*from);
    }
}

// Packs columns of matrices (PACKS), or unpacks them. A thread has one slot, and one row of each of
// COLUMNS_EACH bands; the first of these rows is `row`.
template <bool PACKS, typename To, typename From>
__global__ static void __launch_bounds__(COLUMNS_THREADS)
columns_move_kernel(void *__restrict__ to_arena, const void *__restrict__ from_arena,
                    const int32_t *__restrict__ column, Batch<ColumnsWork> batch) {
    To *to = (To *)to_arena;
    const From *from = (const From *)from_arena;
    unsigned block = blockIdx.x;
    const ColumnsWork w = batch_find(batch, &block);
    const unsigned line = threadIdx.x / w.width;
    const unsigned slot = block % w.strips * w.width + threadIdx.x % w.width;
    const unsigned row = block / w.strips * (w.band * COLUMNS_EACH) + line, left = w.rows - row;
    if (line >= w.band || slot >= w.slots || row >= w.rows) return;
    const size_t at = w.at + (size_t)row * w.cols + (size_t)column[w.column_at + slot];
    const size_t packed_at = w.packed_at + (size_t)row * w.slots + slot;
    const size_t ahead = (size_t)w.band * w.cols, packed_ahead = (size_t)w.band * w.slots;
    if (PACKS)
        columns_copy<PACKS>(to + packed_at, packed_ahead, from + at, ahead, left, w.band);
    else
        columns_copy<PACKS>(to + at, ahead, from + packed_at, packed_ahead, left, w.band);
}

// Packs the chosen columns of all tensors of a segment or, if `rest`, the late ones, from an arena
// into `to`. Without `packs`, unpacks them, and writes no other columns and no gaps. Numbers are
// floats or halfX (rounding: columns_convert()). One pointer is to the segment's first element in
// the arena, the other to its first packed one. column: ZenMap's list of columns, on the GPU.
static void columns_move_gpu(bool packs, void *to, bool to_half, const void *from, bool from_half,
                             const ZenMap *map, int segment, bool rest, const int32_t *column,
                             cudaStream_t stream) {
    const Batch<ColumnsWork> batch = columns_of(map, segment, rest);
    const unsigned blocks = batch_units(&batch);
    if (blocks == 0) return;
    auto kernel = packs ? columns_move_kernel<true, float, float>
                        : columns_move_kernel<false, float, float>;
    if (to_half) kernel = packs ? columns_move_kernel<true, halfX, float>
                                : columns_move_kernel<false, halfX, float>;
    if (from_half) kernel = packs ? columns_move_kernel<true, halfX, halfX>
                                  : columns_move_kernel<false, halfX, halfX>;
    LAUNCH(kernel, blocks, COLUMNS_THREADS, 0, stream, to, from, column, batch);
}

// ---------------------------------------------------------------------------------------------
// 3. The update of the chosen columns

// Makes an AdamW step for a segment's chosen columns; p, m, v and grad are packed. Then, if
// arena_part is not NULL, writes the new weights into it. *step says how p, m and v are stored.
template <typename X>
static void columns_adam_gpu(X *arena_part, void *p, void *m, void *v, const void *grad,
                             bool grad_is_half, const ZenMap *map, int segment,
                             const int32_t *column, const AdamStep *step, cudaStream_t stream) {
    const ZenSegment *s = &map->segment[segment];
    AdamRun runs[LAYER_TENSORS];
    int count = 0;
    for (const ZenTensor *z = map->tensor + s->first; z < map->tensor + s->first + s->count; z++)
        runs[count++] = AdamRun{z->chosen_at - s->chosen_at, z->rows * z->chosen, z->decay,
                                z->chosen_index};
    adam_update_gpu(p, NULL, m, v, grad, grad_is_half, runs, count, step, stream);
    if (arena_part != NULL)
        columns_move_gpu(false, arena_part, sizeof(X) == 2, p, step->master_bf16, map, segment,
                         false, column, stream);
}

// ---------------------------------------------------------------------------------------------
// 4. Importance
//
// zen_sums() in two kernels: first a thread adds up one column of one block of ZEN_BLOCK rows; then
// a thread adds up a column's blocks. A block of threads takes COLUMNS_STRIP adjacent columns.

enum { COLUMNS_STRIP = 128 };

// Lists the matrices of a segment with both chosen and late columns, as work for the two kernels.
// Returns how many ZenSum of scratch memory this work needs.
static size_t columns_sums_of(const ZenMap *map, int segment, Batch<ColumnsWork> *blocks,
                              Batch<ColumnsWork> *strips) {
    const ZenSegment *s = &map->segment[segment];
    size_t scratch = 0;
    *blocks = *strips = {};
    for (const ZenTensor *z = map->tensor + s->first; z < map->tensor + s->first + s->count; z++) {
        const size_t n = ceil_div(z->rows, ZEN_BLOCK);
        if (!zen_is_mixed(z)) continue;
        ColumnsWork w = columns_matrix(map, s, z);
        w.packed_at = scratch;
        w.strips = ceil_div(z->cols, COLUMNS_STRIP);
        batch_add(blocks, w, n * w.strips);
        batch_add(strips, w, w.strips);
        scratch += n * z->cols;
    }
    return scratch;
}

// Returns the most ZenSum of scratch memory that a segment takes.
static size_t columns_scratch(const ZenMap *map) {
    Batch<ColumnsWork> blocks, strips;
    size_t most = 0;
    for (int s = 0; s < map->segments; s++)
        most = max_size(most, columns_sums_of(map, s, &blocks, &strips));
    return most;
}

template <typename G>
__global__ static void __launch_bounds__(COLUMNS_STRIP)
columns_block_sums_kernel(ZenSum *__restrict__ scratch, const void *__restrict__ arena_part,
                          Batch<ColumnsWork> batch) {
    unsigned block = blockIdx.x;
    const ColumnsWork w = batch_find(batch, &block);
    const unsigned b = block / w.strips, j = block % w.strips * COLUMNS_STRIP + threadIdx.x;
    if (j >= w.cols) return;
    const unsigned left = w.rows - b * ZEN_BLOCK;
    const unsigned rows = left < ZEN_BLOCK ? left : (unsigned)ZEN_BLOCK;
    const G *grad = (const G *)arena_part + w.at + (size_t)b * ZEN_BLOCK * w.cols + j;
    ZenSum sum = {0, 0};
    #pragma unroll 16
    for (unsigned row = 0; row < rows; row++) {
        const double x = to_f32(grad[(size_t)row * w.cols]);
        sum.squares += x * x;  // exact in double: a fused multiply-add gives the same
        sum.magnitudes += fabs(x);
    }
    scratch[w.packed_at + (size_t)b * w.cols + j] = sum;
}

__global__ static void __launch_bounds__(COLUMNS_STRIP)
columns_sums_kernel(float *__restrict__ norms, float *__restrict__ magnitudes,
                    const ZenSum *__restrict__ scratch, Batch<ColumnsWork> batch) {
    unsigned strip = blockIdx.x;
    const ColumnsWork w = batch_find(batch, &strip);
    const unsigned j = strip * COLUMNS_STRIP + threadIdx.x;
    const unsigned blocks = (w.rows + ZEN_BLOCK - 1) / ZEN_BLOCK;
    if (j >= w.cols) return;
    scratch += w.packed_at + j;
    ZenSum sum = {0, 0};
    #pragma unroll 8
    for (unsigned b = 0; b < blocks; b++) {
        sum.squares += scratch[(size_t)b * w.cols].squares;
        sum.magnitudes += scratch[(size_t)b * w.cols].magnitudes;
    }
    norms[w.column_at + j] = (float)sqrt(sum.squares);
    magnitudes[w.column_at + j] = (float)sum.magnitudes;
}

// Does the work of zen_sums() for each matrix of a segment that has chosen and late columns: fills
// sums (norms, magnitudes). arena_part: the gradient, float or halfX. scratch: (columns_scratch()).
static void columns_sums_gpu(float *sums, ZenSum *scratch, const void *arena_part, bool is_half,
                             const ZenMap *map, int segment, cudaStream_t stream) {
    Batch<ColumnsWork> blocks, strips;
    columns_sums_of(map, segment, &blocks, &strips);
    if (blocks.count == 0) return;
    const auto kernel = is_half ? columns_block_sums_kernel<halfX>
                                : columns_block_sums_kernel<float>;
    LAUNCH(kernel, batch_units(&blocks), COLUMNS_STRIP, 0, stream, scratch, arena_part, blocks);
    LAUNCH(columns_sums_kernel, batch_units(&strips), COLUMNS_STRIP, 0, stream, sums,
           sums + map->mixed, scratch, strips);
}

#endif
