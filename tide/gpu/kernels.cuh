// kernels.cuh: the layers of a GPT on a GPU, forward and backward.
//
//   encoder_forward, encoder_backward, token_order     tokens and positions
//   layernorm_forward, residual_layernorm_forward, layernorm_backward
//   heads_forward, heads_backward                      rotary positions, the norm of q and k
//   activation_forward, activation_backward, bias_backward
//   matmul_forward, matmul_backward                    linear layers (products: matmul.cuh)
//   crossentropy, loss_accumulate                      loss, fused with its gradient
//   residual_forward, accumulate_gradient, round_gradient    sums of tensors
//
// The functions are those of train_gpt2.c, for X = float, bf16 or f16 in memory and fp32 in
// registers. Each consists of a kernel and a function that launches it and takes the arguments of
// the CPU's function, then scratch memory if it needs some, then the stream. All pointers are
// device memory. A result is rounded to X once, when it is complete. Gradients of weights are of
// one micro-batch: kernels overwrite them, and accumulate_gradient() adds micro-batches up.
//
// For almost all kernels, moving bytes takes longer than arithmetic. So they read every byte once,
// in packs of 16 bytes, with many loads under way. C and F must be multiples of a pack's elements,
// and every row must begin at a multiple of 16 bytes. Grids depend only on the shapes, and the
// order of a sum only on the grid: so the same call gives the same bits on any GPU.
#pragma once
#include "attention.cuh"
#include "matmul.cuh"

enum { BLOCK_THREADS = 256, BLOCK_WARPS = BLOCK_THREADS / 32 };

// If each thread takes one pack: return the number of blocks for n elements, and a thread's number.
template <typename X> static unsigned pack_blocks(size_t n) {
    return ceil_div(n / Pack<X>::N, BLOCK_THREADS);
}

__device__ static inline size_t grid_thread(void) {
    return blockIdx.x * (size_t)blockDim.x + threadIdx.x;
}

// Loads W channels of a head: a pack; or, if half a head is no multiple of a pack, one (W = 1).
template <int W, typename X> __device__ static inline int4 load_run(const X *p) {
    if constexpr (W > 1) return load_bits(p);
    Pack<X> one = {};
    int4 bits;
    one.x[0] = *p;
    memcpy(&bits, &one, sizeof bits);
    return bits;
}

// Makes the compiler believe that *b has changed, so that it drops all that it computed from *b.
__device__ static inline void forget(int4 *b) {
    asm volatile("" : "+r"(b->x), "+r"(b->y), "+r"(b->z), "+r"(b->w));
}

// For one pack of columns, adds rows begin, begin + step, ... below last to sum, in this order.
// column: the pack in row 0. width: elements per row. If rows is not NULL, adds row rows[i] for i.
template <typename X>
__device__ static inline void sum_rows(float (&sum)[Pack<X>::N], const X *column, size_t width,
                                       const int32_t *rows, size_t begin, size_t last,
                                       size_t step) {
    enum { AHEAD = 8 };  // loads under way
    for (size_t first = begin; first < last; first += AHEAD * step) {
        int4 bits[AHEAD];
        UNROLL for (int k = 0; k < AHEAD; k++) {
            const size_t i = first + k * step;
            if (i < last) bits[k] = load_bits(column + (rows ? (size_t)rows[i] : i) * width);
        }
        UNROLL for (int k = 0; k < AHEAD; k++) {
            if (first + k * step >= last) break;
            const Wide<X> x = widen<X>(bits[k]);
            for (int j = 0; j < Pack<X>::N; j++) sum[j] += x.x[j];
        }
    }
}

// Adds up the sums of a block's warps, in order: each lane of each warp has summed one pack of
// columns. Thread i gets the block's sum of column i, if i < 32 * Pack<X>::N. blockDim must be
// BLOCK_THREADS. Has one barrier; a kernel calls it once.
template <typename X> __device__ static inline float fold_warps(const float (&sum)[Pack<X>::N]) {
    __shared__ float part[BLOCK_WARPS][32 * Pack<X>::N];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int j = 0; j < Pack<X>::N; j++) part[warp][lane * Pack<X>::N + j] = sum[j];
    __syncthreads();
    float total = 0;
    if (threadIdx.x < 32 * Pack<X>::N)
        for (int i = 0; i < BLOCK_WARPS; i++) total += part[i][threadIdx.x];
    return total;
}

// For a kernel that sums over N rows: return how many rows a block takes, at least `least`, so that
// there are at most `most` blocks; and the most blocks for N rows or fewer.
static size_t rows_of_block(size_t N, size_t least, size_t most) {
    return max_size(ceil_div(N, most), least);
}
static size_t most_blocks(size_t N, size_t least, size_t most) {
    return min_size(ceil_div(N, least), most);
}

// Ends a sum over rows: adds up the first `width` columns of `count` rows of partial, which are
// `stride` floats apart, and rounds. The first C sums are stored in out, the next C in second, the
// rest in third. A block takes 32 columns; each of its warps takes every 32nd row.
template <typename X>
__global__ static void partial_sum_kernel(X *out, X *second, X *third, const float *partial,
                                          size_t count, size_t stride, size_t width, size_t C) {
    __shared__ float part[32][32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t c = blockIdx.x * (size_t)32 + lane;
    float sum = 0;
    if (c < width) {
        #pragma unroll 8
        for (size_t i = warp; i < count; i += 32) sum += partial[i * stride + c];
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= width) return;
    float total = 0;
    for (int i = 0; i < 32; i++) total += part[i][lane];
    if (c < C) out[c] = from_f32<X>(total);
    else if (c < 2 * C) second[c - C] = from_f32<X>(total);
    else third[c - 2 * C] = from_f32<X>(total);
}

// --- embeddings: out[b,t] = wte[token[b,t]] + wpe[t - begins[b,t]] ----------------------------
//
// If wte or wpe is NULL, out is the row of the other table alone.

template <typename X>
__global__ static void encoder_forward_kernel(X *out, const int32_t *tokens, const int32_t *begins,
                                              const X *wte, const X *wpe, unsigned n_packs,
                                              unsigned T, size_t C) {
    const unsigned packs = (unsigned)C / Pack<X>::N, i = (unsigned)grid_thread();
    if (i >= n_packs) return;  // n_packs: packs of out
    const unsigned n = i / packs, c = i % packs * Pack<X>::N;
    const unsigned t = n % T - (begins == NULL ? 0 : (unsigned)begins[n]);
    Pack<X> x = wte == NULL ? load_pack(wpe + t * C + c)
                            : load_pack(wte + (size_t)tokens[n] * C + c);
    if (wte != NULL && wpe != NULL) {
        const Pack<X> position = load_pack(wpe + t * C + c);
        for (int j = 0; j < Pack<X>::N; j++)
            x.x[j] = from_f32<X>(to_f32(x.x[j]) + to_f32(position.x[j]));
    }
    store_pack(out + (size_t)i * Pack<X>::N, x);
}

template <typename X>
static void encoder_forward(X *out,                 // (B, T, C)
                            const int32_t *tokens,  // (B, T)
                            const int32_t *begins,  // (B, T); NULL: all are 0
                            const X *wte,           // (V, C)
                            const X *wpe,           // (context, C)
                            size_t B, size_t T, size_t C, cudaStream_t stream) {
    GPU_TAKES(stream, 3 * B * T * C * sizeof(X), gpu_bytes);
    LAUNCH(encoder_forward_kernel<X>, pack_blocks<X>(B * T * C), BLOCK_THREADS, 0, stream, out,
           tokens, begins, wte, wpe, index_32(B * T * (C / Pack<X>::N)), (unsigned)T, C);
}

// Rows with the same token add to the same row of dwte, so the order of these additions is fixed:
// the rows of a micro-batch are sorted by token, and one block of threads (for few rows, one warp)
// sums all rows of a token. If rows are packed, they are also sorted by position.
typedef struct {
    const int32_t *rows;   // (N)           the rows 0 .. N-1 by token; equal tokens in row order
    const int32_t *first;  // (groups + 1)  begin of each token's group in rows; first[groups] = N
    unsigned groups;       // number of different tokens
    unsigned large;        // number of groups of more than BLOCK_WARPS rows, which are first
} TokenOrder;

// Sorts by counting, on the host: fills rows (N) and first (at most min(N, V) + 1); count (2, V) is
// scratch. Large groups are in the order of tokens, and so are small ones. N must be below 2^31.
static TokenOrder token_order(int32_t *rows, int32_t *first, int32_t *count, const int32_t *tokens,
                              size_t N, size_t V) {
    TokenOrder order = {rows, first, 0, 0};
    int32_t *next = count + V, at = 0;  // next: where a token's next row belongs
    memset(count, 0, V * sizeof *count);
    for (size_t n = 0; n < N; n++) count[tokens[n]]++;
    for (int small = 0; small < 2; small++) {
        for (size_t v = 0; v < V; v++) {
            if (count[v] == 0 || (count[v] <= BLOCK_WARPS) != small) continue;
            first[order.groups++] = next[v] = at;
            at += count[v];
        }
        if (!small) order.large = order.groups;
    }
    first[order.groups] = at;
    for (size_t n = 0; n < N; n++) rows[next[tokens[n]]++] = (int32_t)n;
    return order;
}

// Sums the rows of each token, 32 packs of channels (a slice) at a time. Adds the sums to dwte, or,
// if out is not NULL, stores them there. A large group takes a block, a small one a warp of a
// block. tokens NULL: group i is position i, as no position has more rows than the one before it.
template <typename X>
__global__ static void encoder_backward_wte_kernel(float *dwte, X *out, const X *dout,
                                                   const int32_t *tokens, TokenOrder order,
                                                   size_t C, unsigned slices) {
    const unsigned blocks = order.large * slices, warp = threadIdx.x / 32;
    const bool small = blockIdx.x >= blocks;
    const unsigned work = small ? blocks + (blockIdx.x - blocks) * BLOCK_WARPS + warp : blockIdx.x;
    const unsigned group = work / slices, slice = work % slices;
    if (group >= order.groups) return;
    const size_t width = 32 * Pack<X>::N;  // channels of a slice
    const size_t c = slice * width + threadIdx.x % 32 * Pack<X>::N;
    const size_t begin = (size_t)order.first[group], last = (size_t)order.first[group + 1];
    const size_t at = C * (tokens == NULL ? group : (size_t)tokens[order.rows[begin]]);
    Wide<X> sum = {};
    if (c < C)
        sum_rows(sum.x, dout + c, C, order.rows, small ? begin : begin + warp, last,
                 small ? 1 : BLOCK_WARPS);
    if (small) {
        if (c < C && out != NULL) store_bits(out + at + c, narrow<X>(sum));
        for (int j = 0; c < C && out == NULL && j < Pack<X>::N; j += 4) {
            Pack<float> total = load_pack(dwte + at + c + j);
            for (int k = 0; k < 4; k++) total.x[k] += sum.x[j + k];
            store_pack(dwte + at + c + j, total);
        }
        return;
    }
    const float total = fold_warps<X>(sum.x);
    const size_t column = slice * width + threadIdx.x;
    if (threadIdx.x >= width || column >= C) return;
    if (out != NULL) out[at + column] = from_f32<X>(total);
    else dwte[at + column] += total;
}

template <typename X>
__global__ static void encoder_backward_wpe_kernel(X *dwpe, const X *dout, size_t B, size_t TC) {
    const size_t i = grid_thread() * Pack<X>::N;  // within (T, C)
    if (i >= TC) return;
    Wide<X> sum = {};
    sum_rows(sum.x, dout + i, TC, (const int32_t *)NULL, 0, B, 1);
    store_bits(dwpe + i, narrow<X>(sum));
}

// Adds the gradients of tokens to dwte (V, C), which is fp32 and has a tied head's gradient; or, if
// rounded (V, C) is not NULL, overwrites its rows of these tokens. Overwrites rows 0 .. T - 1 of
// dwpe or, if rows are packed, the rows in `places`. order: token_order() of the tokens; places: of
// the positions, or empty. Both are on the device. Skips a gradient that is NULL.
template <typename X>
static void encoder_backward(float *dwte, X *rounded, X *dwpe, const X *dout,
                             const int32_t *tokens, TokenOrder order, TokenOrder places, size_t B,
                             size_t T, size_t C, cudaStream_t stream) {
    const unsigned slices = ceil_div(C, 32 * Pack<X>::N);
    const auto blocks = [&](TokenOrder o) {
        return o.large * slices + ceil_div((size_t)(o.groups - o.large) * slices, BLOCK_WARPS);
    };
    if (dwte != NULL || rounded != NULL)
        LAUNCH(encoder_backward_wte_kernel<X>, blocks(order), BLOCK_THREADS, 0, stream, dwte,
               rounded, dout, tokens, order, C, slices);
    if (dwpe == NULL) return;
    if (places.groups > 0)
        LAUNCH(encoder_backward_wte_kernel<X>, blocks(places), BLOCK_THREADS, 0, stream,
               (float *)NULL, dwpe, dout, (const int32_t *)NULL, places, C, slices);
    else
        LAUNCH(encoder_backward_wpe_kernel<X>, pack_blocks<X>(T * C), BLOCK_THREADS, 0, stream,
               dwpe, dout, B, T * C);
}

// --- layer normalisation (Ba et al. 2016): out = (x - mean) / sqrt(var + eps) * w + b --------
//
// mean NULL: this is the RMS norm, as on the CPU, without b and db; RMS is true in the kernels.
//
// A team of warps holds a row in registers, at most four packs in each thread. So the row is read
// once, although the variance is computed after the mean. If one warp holds a row, a block has
// several teams; otherwise the block is the team.

enum { ROW_PACKS = 4 };

// Loops over the packs of a row that thread i of the row's team holds: i, i + team, ...
#define FOR_PACKS(k) UNROLL for (int k = 0; k < ROW_PACKS; k++) if (i + k * team < packs)

// Returns how many threads a team has for rows of C channels.
template <typename X> static unsigned layernorm_team(size_t C) {
    return 32 * ceil_div(C / Pack<X>::N, (size_t)(32 * ROW_PACKS));
}

__device__ static inline float team_sum(float x, unsigned team) {
    return team == 32 ? warp_sum(x) : block_sum(x);
}

// Normalises the rows of inp, if add is NULL; else the rows of inp + add. Rounds this sum as
// residual_forward() does, and stores it in `residual`. fmaf() is written out, because the bits
// must be the same with `add` and without.
template <typename X, bool RMS>
__global__ static void __launch_bounds__(1024)
layernorm_forward_kernel(X *residual, X *out, float *mean, float *rstd, const X *inp, const X *add,
                         const X *w, const X *b, size_t N, size_t C, float eps, unsigned team) {
    const size_t packs = C / Pack<X>::N;
    const unsigned i = threadIdx.x % team;
    const size_t n = blockIdx.x * (size_t)(blockDim.x / team) + threadIdx.x / team;
    if (n >= N) return;  // whole warps return; none, if the team is a block
    int4 row[ROW_PACKS], more[ROW_PACKS];
    float sum = 0, squares = 0, mu = 0;
    FOR_PACKS(k) {
        const size_t at = n * C + (size_t)(i + k * team) * Pack<X>::N;
        row[k] = load_bits(inp + at);
        if (add != NULL) more[k] = load_bits(add + at);
    }
    if (add != NULL)
        FOR_PACKS(k) {
            Wide<X> both = widen<X>(row[k]);
            const Wide<X> other = widen<X>(more[k]);
            for (int j = 0; j < Pack<X>::N; j++) both.x[j] += other.x[j];
            row[k] = narrow<X>(both);
            store_bits(residual + n * C + (size_t)(i + k * team) * Pack<X>::N, row[k]);
        }
    if (!RMS) {
        FOR_PACKS(k) {
            const Wide<X> x = widen<X>(row[k]);
            for (int j = 0; j < Pack<X>::N; j++) sum += x.x[j];
        }
        mu = team_sum(sum, team) / (float)C;
    }
    FOR_PACKS(k) {
        const Wide<X> x = widen<X>(row[k]);
        for (int j = 0; j < Pack<X>::N; j++) {
            const float d = x.x[j] - mu;
            squares = fmaf(d, d, squares);
        }
    }
    const float r = 1.0f / sqrtf(team_sum(squares, team) / (float)C + eps);
    FOR_PACKS(k) {
        const size_t c = (size_t)(i + k * team) * Pack<X>::N;
        const Wide<X> scale = widen<X>(load_bits(w + c));
        const Wide<X> shift = RMS ? Wide<X>{} : widen<X>(load_bits(b + c));
        Wide<X> x = widen<X>(row[k]);
        for (int j = 0; j < Pack<X>::N; j++)
            x.x[j] = fmaf((x.x[j] - mu) * r, scale.x[j], shift.x[j]);
        store_bits(out + n * C + c, narrow<X>(x));
    }
    if (i == 0) {
        if (!RMS) mean[n] = mu;
        rstd[n] = r;
    }
}

// Computes residual = a + b, and out, the normalised residual, with weight w and bias `bias`. The
// bits are those of residual_forward() and then layernorm_forward(), but the sum is not read again.
// A block has room for 32768 channels in bf16, 16384 in fp32.
template <typename X>
static void residual_layernorm_forward(X *residual, X *out, float *mean, float *rstd,
                                       const X *a, const X *b, const X *w, const X *bias,
                                       size_t N, size_t C, float eps, cudaStream_t stream) {
    const unsigned team = layernorm_team<X>(C), rows = team == 32 ? 4 : 1;
    const auto kernel = mean == NULL ? layernorm_forward_kernel<X, true>
                                     : layernorm_forward_kernel<X, false>;
    LAUNCH(kernel, ceil_div(N, rows), rows * team, 0, stream, residual, out, mean, rstd, a, b, w,
           bias, N, C, eps, team);
}

template <typename X>
static void layernorm_forward(X *out, float *mean, float *rstd,  // (N, C), (N), (N)
                              const X *inp, const X *w, const X *b, size_t N, size_t C, float eps,
                              cudaStream_t stream) {
    residual_layernorm_forward<X>(NULL, out, mean, rstd, inp, NULL, w, b, N, C, eps, stream);
}

// Each block takes neighbouring rows, and each of its teams every `teams`-th of them. A thread has
// the same columns in every row. It sums dinp, dw and db over its rows in shared memory, in CELLS
// cells of 16 bytes for each of its packs; only this thread uses them until the end. If HELD, two
// of these sums are in registers until the end. Meanwhile their cells hold the row: after a pack of
// it is used, the next row's is loaded. So two blocks fit on a multiprocessor. Very wide rows need
// blocks so large that no registers are left: all sums are in cells, rows in global memory.
enum { HELD_THREADS = 256 };
template <typename X, bool HELD, bool RMS> struct LayernormBackward {
    enum {
        MAX_THREADS = HELD ? HELD_THREADS : sizeof(X) == 4 ? 768 : 512,  // limited by registers
        QUADS = Pack<X>::N / 4,
        SUMS = RMS ? 2 : 3,
        ROW = (SUMS - 2) * QUADS,  // from this cell on: a row's packs of dout, inp, dinp
        CELLS = ROW + (QUADS == 1 ? 3 : 2 * QUADS)
    };
};

template <typename X, bool HELD, bool RMS>
__global__ static void
__launch_bounds__(LayernormBackward<X, HELD, RMS>::MAX_THREADS, HELD ? 2 : 1)
layernorm_backward_kernel(X *dinp, float *partial /* (blocks, 3, C) */, const X *dout, const X *inp,
                          const X *w, const float *mean, const float *rstd, unsigned N, unsigned C,
                          unsigned rows, unsigned team) {
    typedef LayernormBackward<X, HELD, RMS> As;
    extern __shared__ __align__(16) float cells[];
    __shared__ float2 part[2][32];  // d_mean and d_dot of each warp, for even and for odd rounds
    enum { QUADS = As::QUADS, SUMS = As::SUMS, SHARED = HELD ? SUMS - 2 : SUMS };
    const unsigned packs = C / Pack<X>::N, teams = blockDim.x / team;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned mine = threadIdx.x / team, i = threadIdx.x % team;
    const unsigned begin = blockIdx.x * rows, last = begin + rows < N ? begin + rows : N;
    const X *const arrays[3] = {dout, inp, dinp};
    const auto cell = [&](int k, int c, unsigned thread) {
        const unsigned stride = HELD ? (unsigned)HELD_THREADS : blockDim.x;
        return (Pack<float> *)cells + (k * As::CELLS + c) * stride + thread;
    };
    Pack<float> held[HELD ? ROW_PACKS * QUADS : 1][2];
    const auto sum = [&](int k, int q, int of) {  // finds sum `of` (dinp, dw, db) of 4 channels
        return of < SHARED ? cell(k, of * QUADS + q, threadIdx.x)
                           : &held[k * QUADS + q][of - SHARED];
    };
    float next_mu = 0, next_r = 0;
    const auto from = [&](int a, unsigned n, int k) {
        return arrays[a] + (size_t)(n * packs + i + k * team) * Pack<X>::N;
    };
    const auto fetch = [&](unsigned n, int k) {  // starts to load this thread's k-th pack of row n
        if (n >= last) return;
        if (k == 0 && !RMS) next_mu = mean[n];
        if (k == 0) next_r = rstd[n];
        for (int a = 0; HELD && a < 3; a++)
            __pipeline_memcpy_async(cell(k, As::ROW + a, threadIdx.x), from(a, n, k), 16);
    };
    const auto row = [&](int a, unsigned n, int k) {
        return widen<X>(load_bits(HELD ? (X *)cell(k, As::ROW + a, threadIdx.x) : from(a, n, k)));
    };
    FOR_PACKS(k) {
        for (int q = 0; q < QUADS; q++)
            for (int of = 0; of < SUMS; of++) *sum(k, q, of) = Pack<float>{{0}};
        fetch(begin + mine, k);
    }
    unsigned parity = 0;
    for (unsigned first = begin; first < last; first += teams) {
        const unsigned n = first + mine;
        const bool active = n < last;  // else: the thread only takes part in barriers, shuffles
        const float mu = next_mu, r = next_r;
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncwarp();  // after this, cells may be read
        float d_mean = 0, d_dot = 0;  // means over c of dnorm, and of dnorm * norm
        UNROLL for (int k = 0; k < ROW_PACKS; k++)
            if (active && i + k * team < packs) {
                const Wide<X> scale = widen<X>(load_bits(w + (i + k * team) * Pack<X>::N));
                const Wide<X> d = row(0, n, k), x = row(1, n, k);
                for (int j = 0; j < Pack<X>::N; j++) {
                    const float dnorm = d.x[j] * scale.x[j];
                    if (!RMS) d_mean += dnorm;
                    d_dot += dnorm * ((x.x[j] - mu) * r);
                }
            }
        if (!RMS) d_mean = warp_sum(d_mean);
        d_dot = warp_sum(d_dot);
        if (team > 32) {
            // One barrier per round is enough: part[parity] is written again two rounds later,
            // after the barrier of the round between.
            if (lane == 0) part[parity][warp] = make_float2(d_mean, d_dot);
            __syncthreads();
            d_mean = d_dot = 0;
            for (unsigned j = mine * (team / 32); j < (mine + 1) * (team / 32); j++) {
                d_mean += part[parity][j].x;
                d_dot += part[parity][j].y;
            }
            parity ^= 1;
        }
        d_mean /= (float)C;
        d_dot /= (float)C;
        UNROLL for (int k = 0; k < ROW_PACKS; k++)
            if (active && i + k * team < packs) {
                const Wide<X> scale = widen<X>(load_bits(w + (i + k * team) * Pack<X>::N));
                const Wide<X> d = row(0, n, k), x = row(1, n, k);
                Wide<X> dx = row(2, n, k);
                float norm[Pack<X>::N];
                for (int j = 0; j < Pack<X>::N; j++) {
                    norm[j] = (x.x[j] - mu) * r;
                    const float dnorm = d.x[j] * scale.x[j];
                    dx.x[j] += (dnorm - d_mean - norm[j] * d_dot) * r;
                }
                int4 bits = narrow<X>(dx);
                forget(&bits);  // else nvcc rounds twice: in pairs to store, alone to sum
                store_bits((X *)from(2, n, k), bits);
                fetch(n + teams, k);
                dx = widen<X>(bits);
                for (int q = 0; q < QUADS; q++)
                    for (int j = 0; j < 4; j++) {
                        sum(k, q, 0)->x[j] += dx.x[4 * q + j];
                        sum(k, q, 1)->x[j] += d.x[4 * q + j] * norm[4 * q + j];
                        if (!RMS) sum(k, q, SUMS - 1)->x[j] += d.x[4 * q + j];
                    }
            }
    }
    FOR_PACKS(k)
        for (int q = 0; q < QUADS; q++)
            for (int of = SHARED; of < SUMS; of++)
                *cell(k, of * QUADS + q, threadIdx.x) = *sum(k, q, of);
    __syncthreads();
    for (int c = mine; c < SUMS * QUADS; c += teams)  // adds up the teams' sums
        FOR_PACKS(k) {
            Pack<float> total = {{0}};
            for (unsigned t = 0; t < teams; t++)
                for (int j = 0; j < 4; j++) total.x[j] += cell(k, c, t * team + i)->x[j];
            store_pack(partial + (blockIdx.x * 3 + c / QUADS) * (size_t)C
                           + (i + k * team) * Pack<X>::N + c % QUADS * 4, total);
        }
}

// Returns how many rows a block of layernorm_backward takes: many, so that partial sums are few.
static size_t layernorm_backward_rows(size_t N) { return rows_of_block(N, 16, 512); }

// Returns the floats of scratch that layernorm_backward needs for N rows or fewer.
static size_t layernorm_backward_scratch(size_t N, size_t C) {
    return most_blocks(N, 16, 512) * 3 * C;
}

// Returns the bytes of dynamic shared memory of a block of layernorm_backward, which are fewer for
// RMS norm. Its static shared memory is less than 2 KiB.
template <typename X, bool RMS = false> static size_t layernorm_backward_shared(size_t C) {
    const size_t team = layernorm_team<X>(C), threads = max_size(team, HELD_THREADS);
    return ceil_div(C / Pack<X>::N, team) * LayernormBackward<X, true, RMS>::CELLS * 16 * threads;
}

// Adds the gradient of inp to dinp, which has the gradient of the residual stream around this
// layer. Overwrites dw, db and dinp_sum (C). dinp_sum gets the column sums of the stored dinp: the
// gradient of the bias of the linear layer whose output's gradient is dinp. If dinp_sum is NULL,
// layernorm_dinp_sum() computes it later. scratch: layernorm_backward_scratch(N, C) floats. C is at
// most 16384 in bf16 (A100: 13312), 12288 in fp32 (A100: 10240); on GPUs whose blocks have 99 KiB
// of shared memory, 8192 in bf16, 6144 in fp32 (run_check_shape(), check_device()).
template <typename X>
static void layernorm_backward(X *dinp, X *dw, X *db, X *dinp_sum, float *scratch, const X *dout,
                               const X *inp, const X *w, const float *mean, const float *rstd,
                               size_t N, size_t C, cudaStream_t stream) {
    const unsigned team = layernorm_team<X>(C);
    const unsigned teams = team < BLOCK_THREADS ? BLOCK_THREADS / team : 1;
    const bool held = team <= HELD_THREADS, rms = mean == NULL;
    const size_t shared = rms ? layernorm_backward_shared<X, true>(C)
                              : layernorm_backward_shared<X>(C);
    const size_t rows = layernorm_backward_rows(N);
    const auto kernel = held ? rms ? layernorm_backward_kernel<X, true, true>
                                   : layernorm_backward_kernel<X, true, false>
                             : rms ? layernorm_backward_kernel<X, false, true>
                                   : layernorm_backward_kernel<X, false, false>;
    index_32(N * C / Pack<X>::N);  // the kernel counts packs in 32 bits
    if (shared > 47 << 10) LET_SHARED(kernel, shared + 1024);  // 1024: its static part
    LAUNCH(kernel, ceil_div(N, rows), teams * team, shared, stream, dinp, scratch, dout, inp, w,
           mean, rstd, (unsigned)N, (unsigned)C, (unsigned)rows, team);
    X *const to[4] = {dinp_sum, dw, db, NULL};
    const size_t first = dinp_sum == NULL, width = ((rms ? 2 : 3) - first) * C;
    LAUNCH(partial_sum_kernel<X>, ceil_div(width, 32), 1024, 0, stream, to[first], to[first + 1],
           to[first + 2], scratch + first * C, ceil_div(N, rows), 3 * C, width, C);
}

// Computes dinp_sum from the sums that layernorm_backward() of the same N rows left in scratch.
template <typename X>
static void layernorm_dinp_sum(X *dinp_sum, const float *scratch, size_t N, size_t C,
                               cudaStream_t stream) {
    LAUNCH(partial_sum_kernel<X>, ceil_div(C, 32), 1024, 0, stream, dinp_sum, dinp_sum, dinp_sum,
           scratch, ceil_div(N, layernorm_backward_rows(N)), 3 * C, C, C);
}

// --- rotary positions (Su et al. 2021), and the norm of q and k: as on the CPU ----------------
//
// A team of lanes (a power of two) takes a head. Each half of a head is cut into runs, here W
// neighbouring channels; lane i of the team has runs i, i + team, ... of both halves.

enum { HEAD_MOST = 256 };  // channels of a head

// A lane's channels of a head: runs of the first half, each followed by the run rotated with it.
template <int W> struct HeadPart {
    enum { N = W == 1 ? HEAD_MOST / 32 : 2 * W };
    float x[N];
};
typedef struct { unsigned i, team, half, end; } HeadLane;  // end: half, or 0 if there is no head

// Loops over runs k of a HeadPart; `at`: the run's first channel, counted from its half's start.
#define FOR_RUNS(k, at) UNROLL for (unsigned k = 0, at = lane.i * W; \
    k < HeadPart<W>::N / W && at < lane.end; k++, at = (lane.i + k / 2 * lane.team) * W)

template <typename X, int W>
__device__ static inline HeadPart<W> load_part(const X *head, HeadLane lane) {
    HeadPart<W> part = {};
    FOR_RUNS(k, at) {
        const Wide<X> x = widen<X>(load_run<W>(head + k % 2 * lane.half + at));
        for (int j = 0; j < W; j++) part.x[k * W + j] = x.x[j];
    }
    return part;
}

template <typename X, int W>
__device__ static inline void store_part(X *head, const HeadPart<W> &part, HeadLane lane) {
    FOR_RUNS(k, at) {
        X *to = head + k % 2 * lane.half + at;
        Pack<X> x;
        for (int j = 0; j < W; j++) x.x[j] = from_f32<X>(part.x[k * W + j]);
        if (W > 1) store_pack(to, x);
        else *to = x.x[0];
    }
}

template <int W> __device__ static inline void rotate_part(HeadPart<W> *part, const float *turn,
                                                           float sign, HeadLane lane) {
    FOR_RUNS(k, at)
        for (int j = 0; j < W && k % 2 == 0; j++) {
            const float2 t = reinterpret_cast<const float2 *>(turn)[at + j];
            const float a = part->x[k * W + j], b = part->x[k * W + W + j], s = sign * t.y;
            part->x[k * W + j] = fmaf(a, t.x, -(b * s));
            part->x[k * W + W + j] = fmaf(b, t.x, a * s);
        }
}

// Normalises (NORM) and rotates the heads of q and k; `all`: their number. sign -1: rotates back.
template <typename X, int W, bool NORM>
__global__ static void heads_forward_kernel(X *qkv, X *qk, float *qk_rstd, const X *q_norm_w,
                                            const X *k_norm_w, const float *table,
                                            const int32_t *begins, float sign, unsigned all,
                                            AttentionShape s, float eps, unsigned team) {
    const unsigned head = blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
    const unsigned n = head / (s.NH + s.NKV), h = head % (s.NH + s.NKV);
    const HeadLane lane = {threadIdx.x % team, team, s.HS / 2, head < all ? s.HS / 2 : 0};
    X *y = qkv + (size_t)n * s.pitch + h * s.HS;
    HeadPart<W> part = load_part<X, W>(y, lane);
    if (NORM) {
        const HeadPart<W> w = load_part<X, W>(h < s.NH ? q_norm_w : k_norm_w, lane);
        float squares = 0;
        if (qk != NULL) store_part(qk + (size_t)head * s.HS, part, lane);
        for (int j = 0; j < part.N; j++) squares = fmaf(part.x[j], part.x[j], squares);
        const float r = 1.0f / sqrtf(lanes_sum(squares, team) / (float)s.HS + eps);
        for (int j = 0; j < part.N; j++) part.x[j] = part.x[j] * r * w.x[j];
        if (qk != NULL && lane.i == 0 && head < all) qk_rstd[head] = r;
    }
    if (head >= all) return;
    const unsigned t = n % s.T - (begins == NULL ? 0 : (unsigned)begins[n]);
    rotate_part(&part, table + (size_t)t * s.HS, sign, lane);
    store_part(y, part, lane);
}

// Computes backward with a norm. A block takes the heads of q (even blocks) or k (odd blocks) of
// neighbouring rows; each of its teams takes every `teams`-th of these heads. In each head a lane
// sums the same channels.
template <typename X, int W>
__global__ static void __launch_bounds__(BLOCK_THREADS)
heads_backward_kernel(X *dqkv, float *partial /* (blocks, 2, s.HS) */, const X *qk,
                      const float *qk_rstd, const X *q_norm_w, const X *k_norm_w,
                      const float *table, const int32_t *begins, AttentionShape s, unsigned rows,
                      unsigned team) {
    __shared__ float sums[BLOCK_THREADS * HeadPart<W>::N];  // (teams, s.HS)
    const unsigned mine = threadIdx.x / team, teams = blockDim.x / team, is_k = blockIdx.x % 2;
    const unsigned N = s.B * s.T, begin = blockIdx.x / 2 * rows;
    const unsigned last = begin + rows < N ? begin + rows : N;
    const unsigned heads = is_k ? s.NKV : s.NH, count = (last - begin) * heads;
    HeadLane lane = {threadIdx.x % team, team, s.HS / 2, s.HS / 2};
    const HeadPart<W> w = load_part<X, W>(is_k ? k_norm_w : q_norm_w, lane);
    HeadPart<W> sum = {};
    for (unsigned first = 0; first < count; first += teams) {
        const bool active = first + mine < count;  // else: the team only takes part in shuffles
        const unsigned n = begin + (first + mine) / heads;
        const unsigned h = is_k * s.NH + (first + mine) % heads;
        const unsigned t = !active ? 0 : n % s.T - (begins == NULL ? 0 : (unsigned)begins[n]);
        const size_t head = (size_t)n * (s.NH + s.NKV) + h;
        const float r = active ? qk_rstd[head] : 0;
        X *y = dqkv + (head + (size_t)n * s.NKV) * s.HS;
        lane.end = active ? s.HS / 2 : 0;
        HeadPart<W> d = load_part<X, W>(y, lane), norm = load_part<X, W>(qk + head * s.HS, lane);
        float d_dot = 0;  // mean over c of dnorm * norm
        rotate_part(&d, table + (size_t)t * s.HS, -1, lane);
        for (int j = 0; j < d.N; j++) {
            norm.x[j] *= r;
            sum.x[j] += d.x[j] * norm.x[j];
            d.x[j] *= w.x[j];
            d_dot += d.x[j] * norm.x[j];
        }
        d_dot = lanes_sum(d_dot, team) / (float)s.HS;
        for (int j = 0; j < d.N; j++) d.x[j] = (d.x[j] - norm.x[j] * d_dot) * r;
        store_part(y, d, lane);
    }
    lane.end = s.HS / 2;
    FOR_RUNS(k, at)
        for (int j = 0; j < W; j++)
            sums[mine * s.HS + k % 2 * lane.half + at + j] = sum.x[k * W + j];
    __syncthreads();
    for (unsigned c = threadIdx.x; c < s.HS; c += blockDim.x) {
        float total = 0;
        for (unsigned j = 0; j < teams; j++) total += sums[j * s.HS + c];
        partial[(size_t)blockIdx.x * s.HS + c] = total;
    }
}

// Return how many channels a run has, and how many lanes a team has.
template <typename X> static unsigned head_run(size_t HS) {
    return HS % (2 * Pack<X>::N) == 0 ? Pack<X>::N : 1;
}
template <typename X> static unsigned head_team(size_t HS) {
    unsigned team = 1;
    while (team < 32 && team * head_run<X>(HS) < HS / 2) team *= 2;
    return team;
}

// Overwrites q and k in qkv, normalised (if q_norm_w is not NULL) and rotated. With a norm, first
// copies q and k to qk, unless qk is NULL. HS must be even, and at most HEAD_MOST. sign -1 rotates
// back (heads_backward()).
template <typename X>
static void heads_forward(X *qkv,          // (B, T, (NH + 2 NKV) HS)
                          X *qk,           // (B, T, (NH + NKV) HS)
                          float *qk_rstd,  // (B, T, NH + NKV)
                          const X *q_norm_w, const X *k_norm_w,  // (HS), (HS)
                          const float *table,     // (T, HS/2, 2)
                          const int32_t *begins,  // (B, T); NULL: all are 0
                          AttentionShape s, float eps, cudaStream_t stream, float sign = 1) {
    enum { W = Pack<X>::N };
    const bool packs = head_run<X>(s.HS) == W, norm = q_norm_w != NULL;
    const unsigned team = head_team<X>(s.HS), all = s.B * s.T * (s.NH + s.NKV);
    const auto kernel =
        packs ? norm ? heads_forward_kernel<X, W, true> : heads_forward_kernel<X, W, false>
              : norm ? heads_forward_kernel<X, 1, true> : heads_forward_kernel<X, 1, false>;
    LAUNCH(kernel, ceil_div(all, BLOCK_THREADS / team), BLOCK_THREADS, 0, stream, qkv, qk, qk_rstd,
           q_norm_w, k_norm_w, table, begins, sign, all, s, eps, team);
}

// Returns the floats of scratch that heads_backward needs for N rows or fewer, with a norm.
static size_t heads_backward_scratch(size_t N, size_t HS) {
    return most_blocks(N, 4, 512) * 2 * HS;
}

// dqkv has the gradients of the q and k that heads_forward() wrote. Replaces them by the gradients
// of the q and k that it read. With a norm, overwrites dq_norm_w and dk_norm_w.
template <typename X>
static void heads_backward(X *dqkv, X *dq_norm_w, X *dk_norm_w, float *scratch, const X *qk,
                           const float *qk_rstd, const X *q_norm_w, const X *k_norm_w,
                           const float *table, const int32_t *begins, AttentionShape s,
                           cudaStream_t stream) {
    if (q_norm_w == NULL) {
        heads_forward<X>(dqkv, NULL, NULL, NULL, NULL, table, begins, s, 0, stream, -1);
        return;
    }
    // q has as many blocks as k
    const size_t N = (size_t)s.B * s.T, rows = rows_of_block(N, 4, 512), blocks = ceil_div(N, rows);
    const auto kernel = head_run<X>(s.HS) > 1 ? heads_backward_kernel<X, Pack<X>::N>
                                              : heads_backward_kernel<X, 1>;
    LAUNCH(kernel, (unsigned)(2 * blocks), BLOCK_THREADS, 0, stream, dqkv, scratch, qk, qk_rstd,
           q_norm_w, k_norm_w, table, begins, s, (unsigned)rows, head_team<X>(s.HS));
    LAUNCH(partial_sum_kernel<X>, ceil_div(2 * s.HS, 32), 1024, 0, stream, dq_norm_w, dk_norm_w,
           (X *)NULL, scratch, blocks, 2 * s.HS, 2 * s.HS, s.HS);
}

// --- the MLP's non-linearity -----------------------------------------------------------------
//
// GELU (Hendrycks & Gimpel 2016, tanh form): x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3).
// Computed as x s, s = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which costs half of tanh and keeps
// all digits if tanh is near -1. The derivative is s + x ds/du du/dx, ds/du = 2 s (1 - s).

// For 16-bit X the exponential and the reciprocal are approximate, with errors of a few units of
// fp32's last place: with exact ones, arithmetic took twice as long as memory.

#define GELU_SCALE 0.7978845608028654f  // sqrt(2 / pi)

template <typename X> __device__ static inline float gelu_sigmoid(float x) {
    if constexpr (sizeof(X) == 2) {
        const float scale = -2.0f * GELU_SCALE * LOG2_E;
        return rcp_fast(1.0f + exp2_fast(x * fmaf(scale * 0.044715f, x * x, scale)));
    } else {
        const float u = GELU_SCALE * (x + 0.044715f * x * x * x);
        return 1.0f / (1.0f + expf(-2.0f * u));
    }
}

// Returns the sigmoid in silu(z) = z sigmoid(z), as exact as gelu_sigmoid().
template <typename X> __device__ static inline float sigmoid(float z) {
    if constexpr (sizeof(X) == 2) return rcp_fast(1.0f + exp2_fast(-LOG2_E * z));
    else return 1.0f / (1.0f + expf(-z));
}

// If GATE, a row of inp is a gate of F channels, then F that the gate multiplies. all: out's packs.
template <typename X, bool GATE>
__global__ static void activation_forward_kernel(X *out, const X *inp, unsigned all, unsigned F,
                                                 int activation) {
    const unsigned packs = F / Pack<X>::N, i = (unsigned)grid_thread();
    if (i >= all) return;
    const X *from = inp + (size_t)(GATE ? i / packs * (2 * packs) + i % packs : i) * Pack<X>::N;
    Wide<X> v = widen<X>(load_bits(from)), up;
    if (GATE) up = widen<X>(load_bits(from + F));
    for (int j = 0; j < Pack<X>::N; j++) {
        const float z = v.x[j];
        v.x[j] = GATE                            ? z * sigmoid<X>(z) * up.x[j]
                 : activation == ACTIVATION_RELU ? (z > 0 ? z : 0)
                                                 : z * gelu_sigmoid<X>(z);
    }
    store_bits(out + (size_t)i * Pack<X>::N, narrow<X>(v));
}

template <typename X>
__global__ static void gate_backward_kernel(X *d, const X *inp, unsigned all, unsigned F) {
    const unsigned packs = F / Pack<X>::N, i = (unsigned)grid_thread();
    if (i >= all) return;
    const size_t at = (size_t)(i / packs) * 2 * F + i % packs * Pack<X>::N;
    const Wide<X> gate = widen<X>(load_bits(inp + at)), up = widen<X>(load_bits(inp + at + F));
    Wide<X> d_gate = widen<X>(load_bits(d + at)), d_up;
    for (int j = 0; j < Pack<X>::N; j++) {
        const float z = gate.x[j], s = sigmoid<X>(z), dout = d_gate.x[j];
        d_up.x[j] = dout * (z * s);
        d_gate.x[j] = dout * up.x[j] * (s * (1.0f + z * (1.0f - s)));
    }
    store_bits(d + at, narrow<X>(d_gate));
    store_bits(d + at + F, narrow<X>(d_up));
}

// Computes out (N, F) from inp (N, F) or, with a gate, (N, 2F). F: a multiple of a pack's elements.
template <typename X>
static void activation_forward(X *out, const X *inp, size_t N, size_t F, int activation,
                               cudaStream_t stream) {
    const auto kernel = activation == ACTIVATION_SILU ? activation_forward_kernel<X, true>
                                                      : activation_forward_kernel<X, false>;
    LAUNCH(kernel, pack_blocks<X>(N * F), BLOCK_THREADS, 0, stream, out, inp,
           index_32(N * F / Pack<X>::N), (unsigned)F, activation);
}

// Multiplies a pack of columns of d (N, width), in rows begin, begin + BLOCK_WARPS, ... below last,
// by the activation's slope at inp. Stores the products, and adds them to sum in this order.
template <typename X>
__device__ static inline void slope_rows(float (&sum)[Pack<X>::N], X *d, const X *inp, size_t width,
                                         int activation, size_t begin, size_t last) {
    enum { AHEAD = 2 };  // rows loaded at once; with more, registers suffice for fewer threads
    for (size_t first = begin; first < last; first += AHEAD * BLOCK_WARPS) {
        int4 bits_d[AHEAD], bits_x[AHEAD];
        UNROLL for (int k = 0; k < AHEAD; k++) {
            const size_t i = first + k * BLOCK_WARPS;
            if (i < last) bits_d[k] = load_bits(d + i * width);
            if (i < last) bits_x[k] = load_bits(inp + i * width);
        }
        UNROLL for (int k = 0; k < AHEAD; k++) {
            const size_t i = first + k * BLOCK_WARPS;
            if (i >= last) break;
            const Pack<X> v = as_pack<X>(bits_x[k]);  // widen() needs more registers: fewer blocks
            Wide<X> g = widen<X>(bits_d[k]);
            for (int j = 0; j < Pack<X>::N; j++) {
                const float x = to_f32(v.x[j]);
                float slope = x > 0;
                if (activation != ACTIVATION_RELU) {
                    const float s = gelu_sigmoid<X>(x);
                    const float du = GELU_SCALE * (1.0f + 3.0f * 0.044715f * x * x);
                    slope = s + 2.0f * x * s * (1.0f - s) * du;
                }
                g.x[j] *= slope;
            }
            bits_d[k] = narrow<X>(g);
            forget(&bits_d[k]);  // else nvcc rounds twice: in pairs to store, alone to sum
            store_bits(d + i * width, bits_d[k]);
            g = widen<X>(bits_d[k]);
            for (int j = 0; j < Pack<X>::N; j++) sum[j] += g.x[j];
        }
    }
}

// --- bias of a linear layer: db = sum over the rows of dout ----------------------------------

// A block takes `rows` rows of a slice, 32 packs of columns; each of its 8 warps takes every 8th
// row. If SLOPES, first multiplies d by the activation's slope at inp.
template <typename X, bool SLOPES>
__global__ static void bias_backward_kernel(float *partial /* (splits, OC) */, X *d, const X *inp,
                                            int activation, size_t N, size_t OC, size_t rows,
                                            unsigned slices) {
    const size_t split = blockIdx.x / slices, slice = blockIdx.x % slices;
    const size_t width = 32 * Pack<X>::N;
    const size_t o = slice * width + threadIdx.x % 32 * Pack<X>::N;
    const size_t begin = split * rows + threadIdx.x / 32;
    const size_t last = split * rows + rows < N ? split * rows + rows : N;
    float sum[Pack<X>::N] = {0};
    if (SLOPES && o < OC) slope_rows(sum, d + o, inp + o, OC, activation, begin, last);
    else if (o < OC) sum_rows(sum, d + o, OC, (const int32_t *)NULL, begin, last, BLOCK_WARPS);
    const float total = fold_warps<X>(sum);
    const size_t column = slice * width + threadIdx.x;
    if (threadIdx.x < width && column < OC) partial[split * OC + column] = total;
}

// Returns into how many blocks the rows of a slice are split: about 2048 blocks for all slices.
static size_t bias_backward_splits(size_t OC) {
    const size_t slices = ceil_div(OC, 256);
    return slices < 2048 ? 2048 / slices : 1;
}

// Returns the floats of scratch of column_sums() for at most N rows (a larger OC may need fewer).
static size_t bias_backward_scratch(size_t N, size_t OC) {
    return most_blocks(N, 64, bias_backward_splits(OC)) * OC;
}

template <typename X, bool SLOPES>
static void column_sums(X *db, float *scratch, X *d, const X *inp, int activation, size_t N,
                        size_t OC, cudaStream_t stream) {
    const size_t rows = rows_of_block(N, 64, bias_backward_splits(OC));
    const unsigned splits = ceil_div(N, rows), slices = ceil_div(OC, 32 * Pack<X>::N);
    const auto kernel = bias_backward_kernel<X, SLOPES>;
    LAUNCH(kernel, splits * slices, BLOCK_THREADS, 0, stream, scratch, d, inp, activation, N, OC,
           rows, slices);
    if (db != NULL)
        LAUNCH(partial_sum_kernel<X>, ceil_div(OC, 32), 1024, 0, stream, db, db, db, scratch,
               splits, OC, OC, OC);
}

// Overwrites db (OC) by the column sums of dout (N, OC). OC: a multiple of a pack's elements.
template <typename X>
static void bias_backward(X *db, float *scratch, const X *dout, size_t N, size_t OC,
                          cudaStream_t stream) {
    column_sums<X, false>(db, scratch, (X *)dout, NULL, 0, N, OC, stream);
}

// d is as wide as inp, and has dout in its first F columns. Overwrites all columns of d by dinp;
// then db, unless it is NULL, by the column sums of d. F must be a multiple of a pack's elements.
template <typename X>
static void activation_backward(X *d, X *db, float *scratch, const X *inp, size_t N, size_t F,
                                int activation, cudaStream_t stream) {
    if (activation != ACTIVATION_SILU) {
        column_sums<X, true>(db, scratch, d, inp, activation, N, F, stream);
        return;
    }
    LAUNCH(gate_backward_kernel<X>, pack_blocks<X>(N * F), BLOCK_THREADS, 0, stream, d, inp,
           index_32(N * F / Pack<X>::N), (unsigned)F);
    if (db != NULL) bias_backward(db, scratch, d, N, 2 * F, stream);
}

// --- linear layer: out (N, OC) = inp (N, C) . w (OC, C)^T + b --------------------------------

template <typename X>
static void matmul_forward(Matmul *lt, X *out, const X *inp, const X *w, const X *b,
                           size_t N, size_t C, size_t OC, cudaStream_t stream) {
    gemm(lt, false, true, N, OC, C, inp, C, w, C, out, OC, (X *)b, false, stream);
}

// Overwrites dinp and dw; or, if `adds`, adds to dw, which is fp32 then. The rows of dinp (N, C)
// are `pitch` elements apart. If db is not NULL, overwrites it by dout's column sums, in the
// epilogue of dw's product or by bias_backward(). If fc is not NULL, inp is GELU of fc: then the
// epilogue multiplies dinp by GELU's slopes (returns true), or activation_backward() has to.
template <typename X, typename D>
static bool matmul_backward(Matmul *lt, X *dinp, size_t pitch, D *dw, const X *dout, const X *inp,
                            const X *w, size_t N, size_t C, size_t OC, cudaStream_t stream,
                            typename MatmulType<X>::type *fc = NULL,
                            typename MatmulType<X>::type *db = NULL, float *scratch = NULL,
                            bool adds = false) {
    const bool sloped = gemm(lt, false, false, N, C, OC, dout, OC, w, C, dinp, pitch, fc, false,
                             stream, GEMM_SLOPE);
    if (!sloped)
        gemm(lt, false, false, N, C, OC, dout, OC, w, C, dinp, pitch, NULL, false, stream);
    if (!gemm(lt, true, false, OC, C, N, dout, OC, inp, C, dw, C, db, adds, stream, GEMM_SUMS)) {
        gemm(lt, true, false, OC, C, N, dout, OC, inp, C, dw, C, NULL, adds, stream);
        bias_backward(db, scratch, dout, N, OC, stream);
    }
    return sloped && fc != NULL;
}

// --- loss: cross-entropy of softmax(logits), fused with its gradient -------------------------
//
// losses[n] = log sum exp(logits[n,:]) - logits[n, target[n]]. If grad_scale is not 0, the logits
// are overwritten by their gradient, grad_scale (softmax - onehot(target)), and the padding,
// columns V to Vp, by 0. The padding counts for nothing. A row whose target is -1 is not trained:
// its loss and gradient are 0.

// A block takes one row, and walks over it twice. The first walk finds maximum and sum; a thread
// rescales its sum whenever its maximum grows. The second writes the gradient. exp(x - max) is 2^(x
// LOG2_E - bias): one multiply-add, one instruction. If KEEPS, each thread keeps its packs in
// shared memory for the second walk, so that the row is read once.
template <typename X, bool KEEPS>
__global__ static void __launch_bounds__(1024)
crossentropy_kernel(float *losses, X *logits, const int32_t *targets, float grad_scale, unsigned V,
                    unsigned Vp) {
    extern __shared__ int4 kept[];  // (Vp)
    X *z = logits + (size_t)blockIdx.x * Vp;
    const unsigned target = (unsigned)targets[blockIdx.x], stride = blockDim.x * Pack<X>::N;
    if ((int)target < 0) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        if (grad_scale == 0) return;
        for (unsigned v = threadIdx.x * Pack<X>::N; v < Vp; v += stride) store_bits(z + v, int4{});
        return;
    }
    const float target_logit = to_f32(z[target]);  // all threads read it before the first barrier
    float max = -1e38f, sum = 0;  // max LOG2_E must be finite, too: infinity - infinity is NaN
    #pragma unroll 4
    for (unsigned v = threadIdx.x * Pack<X>::N; v < (KEEPS ? Vp : V); v += stride) {
        const int4 bits = load_bits(z + v);
        if (KEEPS) kept[v / Pack<X>::N] = bits;
        Wide<X> x = widen<X>(bits);
        float top = max;
        if (v + Pack<X>::N > V)  // the last pack has columns of the padding
            for (int j = 0; j < Pack<X>::N; j++) x.x[j] = v + j < V ? x.x[j] : -INFINITY;
        for (int j = 0; j < Pack<X>::N; j++) top = fmaxf(top, x.x[j]);
        sum *= exp2_fast((max - top) * LOG2_E);
        max = top;
        const float bias = max * LOG2_E;
        for (int j = 0; j < Pack<X>::N; j++) sum += exp2_fast(fmaf(x.x[j], LOG2_E, -bias));
    }
    const float row_max = block_max(max), row_bias = row_max * LOG2_E;
    const float row_sum = block_sum(sum * exp2_fast((max - row_max) * LOG2_E));
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(row_sum) + row_max - target_logit;
    if (grad_scale == 0) return;
    const float scale = grad_scale / row_sum;
    for (unsigned v = threadIdx.x * Pack<X>::N; v < Vp; v += stride) {
        Wide<X> x = widen<X>(KEEPS ? kept[v / Pack<X>::N] : load_bits(z + v));
        for (int j = 0; j < Pack<X>::N; j++) {
            float d = exp2_fast(fmaf(x.x[j], LOG2_E, -row_bias)) * scale;
            if (v + j == target) d -= grad_scale;
            x.x[j] = v + j < V ? d : 0.0f;
        }
        store_bits(z + v, narrow<X>(x));
    }
}

// Do two blocks with so much dynamic shared memory fit a multiprocessor? Each also has less than 1
// KiB of static memory, and CUDA takes 1 KiB.
static bool two_blocks_fit(size_t shared) { return 2 * (shared + 2048) <= multiprocessor_shared(); }

// Computes losses (N) of logits (N, Vp) and targets (N). Vp: a multiple of a pack's elements. Reads
// a row once if shared memory can keep it; else, or if `twice` (tests), twice, with the same bits.
template <typename X>
static void crossentropy(float *losses, X *logits, const int32_t *targets, float grad_scale,
                         size_t N, size_t V, size_t Vp, cudaStream_t stream, bool twice = false) {
    const size_t threads = (size_t)ceil_div(Vp / Pack<X>::N, 32) * 32, row = Vp * sizeof(X);
    const bool keeps = !twice && grad_scale != 0 && two_blocks_fit(row);
    const size_t shared = keeps ? row : sizeof(int4);  // the emulated GPU has no empty arrays
    const auto kernel = keeps ? crossentropy_kernel<X, true> : crossentropy_kernel<X, false>;
    LET_SHARED(kernel, shared + 1024);  // 1024: its static part
    LAUNCH(kernel, (unsigned)N, (unsigned)min_size(threads, 1024), shared, stream, losses, logits,
           targets, grad_scale, index_32(V), index_32(Vp));
}

__global__ static void loss_accumulate_kernel(double *total, const float *losses, size_t N,
                                              double scale, bool first) {
    double sum = 0;
    #pragma unroll 8
    for (size_t n = threadIdx.x; n < N; n += blockDim.x) sum += losses[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = (first ? 0 : *total) + sum * scale;
}

// Adds scale * (sum of losses (N)), in double, to *total; `first`: overwrites *total.
static void loss_accumulate(double *total, const float *losses, size_t N, double scale, bool first,
                            cudaStream_t stream) {
    LAUNCH(loss_accumulate_kernel, 1, 1024, 0, stream, total, losses, N, scale, first);
}

// --- sums of two tensors, element by element ---------------------------------------------------
//
// Adds residual branches, and gradients of several micro-batches. n must be a multiple of 8.

// Computes out = in, or (ADDS) out += in: in fp32, rounded once.
template <typename O, typename I, bool ADDS>
__global__ static void add_kernel(O *out, const I *in, size_t n) {
    enum { N = 16 / (sizeof(O) < sizeof(I) ? sizeof(O) : sizeof(I)) };
    const size_t first = grid_thread() * N;
    float more[N];
    if (first >= n) return;
    for (int i = 0; i < N; i += Pack<I>::N) {
        const Wide<I> x = widen<I>(load_bits(in + first + i));
        for (int j = 0; j < Pack<I>::N; j++) more[i + j] = x.x[j];
    }
    for (int i = 0; i < N; i += Pack<O>::N) {
        Wide<O> sum;
        if (ADDS) sum = widen<O>(load_bits(out + first + i));
        for (int j = 0; j < Pack<O>::N; j++) sum.x[j] = ADDS ? sum.x[j] + more[i + j] : more[i + j];
        store_bits(out + first + i, narrow<O>(sum));
    }
}

// Computes out += inp. In backward, both summands have the gradient of the sum.
template <typename X>
static void residual_forward(X *out, const X *inp, size_t n, cudaStream_t stream) {
    const auto kernel = add_kernel<X, X, true>;
    LAUNCH(kernel, pack_blocks<X>(n), BLOCK_THREADS, 0, stream, out, inp, n);
}

// Computes out = in, rounded to X: the only rounding of a gradient that was summed in fp32.
template <typename X>
static void round_gradient(X *out, const float *in, size_t n, cudaStream_t stream) {
    GPU_TAKES(stream, (sizeof(float) + sizeof(X)) * n, gpu_bytes);
    const auto kernel = add_kernel<X, float, false>;
    LAUNCH(kernel, pack_blocks<X>(n), BLOCK_THREADS, 0, stream, out, in, n);
}

// Computes acc += g in fp32 or, if `first`, acc = g.
template <typename X>
static void accumulate_gradient(float *acc, const X *g, size_t n, bool first,
                                cudaStream_t stream) {
    GPU_TAKES(stream, ((first ? 1 : 2) * sizeof(float) + sizeof(X)) * n, gpu_bytes);
    const auto kernel = first ? add_kernel<float, X, false> : add_kernel<float, X, true>;
    LAUNCH(kernel, pack_blocks<X>(n), BLOCK_THREADS, 0, stream, acc, g, n);
}
