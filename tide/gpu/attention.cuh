// attention.cuh: causal self-attention on the GPU, forward and backward.
//
// A row of qkv (B, T, (NH + 2 NKV) HS) has NH query heads, then NKV key heads, then NKV value heads
// of HS channels. Query head h reads the keys and values of head h / (NH / NKV): the query heads
// that share a key head are its group. For each sequence and query head:
//     s[t,u]   = q[t] . k[u] / sqrt(HS)                      for begins[t] <= u <= t
//     out[t]   = sum over u of p[t,u] v[u],                  p[t,u] = exp(s[t,u] - lse[t])
//     lse[t]   = log of the sum over u of exp(s[t,u])
// and backward, with delta[t] = dout[t] . out[t] (which is the sum over u of p[t,u] dp[t,u]):
//     dp[t,u]  = dout[t] . v[u]             ds[t,u] = p[t,u] (dp[t,u] - delta[t])
//     dv[u]    = sum over the group and t of p[t,u] dout[t]
//     dk[u]    = sum over the group and t of ds[t,u] q[t] / sqrt(HS)
//     dq[t]    = sum over u of ds[t,u] k[u] / sqrt(HS)
//
// begins (B, T): for each token, the first token of its row that it sees: the begin of its document
// or, if later, of its window. Within a row, begins never decreases. begins NULL: all are 0.
//
// No (T, T) matrix is ever in memory. Going through the keys, a row needs only the largest score m
// so far, the sum l of exp(s - m), and the sum o of exp(s - m) v. When a new key raises m to m', l
// and o are multiplied by exp(m - m'). In the end out = o / l and lse = m + log l (Milakov and
// Gimelshein 2018; Rabe and Staats 2021). The backward pass computes every score again and gets p
// from lse (Dao et al., "FlashAttention", 2022).
//
// The plain kernels below compute this for any storage type and head size, one warp per row. The
// flash kernels compute it for bf16 and f16 and head sizes that are multiples of 8 up to 128, with
// tiles in shared memory and the matrix instructions of the tensor cores:
//   - A block of four warps owns a tile of queries, and streams tiles of keys and values through
//     shared memory; in the dk/dv kernel it owns keys and streams queries. Each warp has rows of
//     its own, so warps exchange nothing (Dao, "FlashAttention-2", 2023).
//   - The next streamed tile is copied while this one is used: two stages, one barrier each.
//   - Scores stay in registers: the layout in which one matrix instruction leaves its result is the
//     one in which the next takes its left operand. For that the dk/dv kernel computes scores
//     transposed, with keys as rows.
//   - Tiles above the diagonal are never loaded; only tiles that touch it are masked.
// Rounding: products add up in fp32. p and ds are rounded to X before they are multiplied with v,
// dout, k or q, and out, dq, dk, dv once in the end; the sum l adds p before rounding. In f16 a
// p below 2^-14 keeps fewer digits, and one below 2^-25 none; the row's largest p so far is 1.
//
// There are no atomic additions. The gradients of keys and of queries are sums over different axes,
// so two kernels compute them, and both compute the scores: 7 products per tile instead of 5. In
// exchange each sum has one fixed order, and the same launch always gives the same bits.
//
// Groups. A block of the dk/dv kernel owns keys of one key head and streams the queries of the
// whole group, head after head: keys and values are read once, dk and dv stay in registers, and
// are summed in the order of the heads. In the forward and the dq kernel a block owns queries of
// one head: 128 rows of several heads would stream as many keys as 128 rows of one head. The heads
// of a group run at once, so that all but the first find their keys in the L2 cache. The dk/dv
// kernel has NKV / NH times as many blocks, each with more work. If these blocks are too few for a
// GPU, each takes a part of a group, and a kernel adds up the parts (attention_parts()).
#ifndef TIDE_ATTENTION_CUH
#define TIDE_ATTENTION_CUH
#include "queue.cuh"
#include "../base/model.h"
#include <cuda_pipeline.h>
#ifdef __CUDA_EMU__
#include "emu_mma.h"
#endif

#define LOG2_E 1.44269504f  // exp(x) = 2^(x LOG2_E)

// The shape of a call, and numbers derived from it, in 32 bits: divisions of 64 bits are slow.
typedef struct {
    unsigned B, T, NH, NKV, HS;
    unsigned group;               // number of query heads that share a key head
    unsigned part;                // query heads of a group that one block sums for dk and dv
    unsigned width, keys;         // channels of the query heads, of the key heads
    unsigned pitch, window;       // channels of a row of qkv; for plans only: see tokens_seen()
    float scale, scale2;          // factors of scores: for exp(x), and for 2^x
} AttentionShape;

static AttentionShape attention_shape(size_t B, size_t T, size_t NH, size_t NKV, size_t HS,
                                      size_t window = 0) {
    index_32(B * T * (NH + NKV));  // all counts below are smaller: they fit 32 bits
    const unsigned heads = (unsigned)NH, key_heads = (unsigned)NKV, size = (unsigned)HS;
    const float scale = 1.0f / sqrtf((float)HS);
    return AttentionShape{.B = (unsigned)B, .T = (unsigned)T, .NH = heads, .NKV = key_heads,
                          .HS = size, .group = heads / key_heads, .part = heads / key_heads,
                          .width = heads * size, .keys = key_heads * size,
                          .pitch = (heads + 2 * key_heads) * size, .window = (unsigned)window,
                          .scale = scale, .scale2 = scale * LOG2_E};
}

// ---------------------------------------------------------------------------------------------
// The plain kernels: the definition. A warp takes one row. First each lane computes the score of
// one of 32 keys (queries); then each lane sums four of 128 channels over these 32. For larger
// heads the warp repeats both for the next 128 channels.

enum { PLAIN_WARPS = 4, PLAIN_CHANNELS = 4 };

template <typename X> __device__ static inline float head_dot(const X *a, const X *b, size_t HS) {
    float sum = 0;
    size_t i = 0;
    if (HS % Pack<X>::N == 0)  // then every row of a head starts at a multiple of 16 bytes
        for (; i < HS; i += Pack<X>::N) {
            const Pack<X> pa = load_pack(a + i), pb = load_pack(b + i);
            for (int j = 0; j < Pack<X>::N; j++) sum += to_f32(pa.x[j]) * to_f32(pb.x[j]);
        }
    for (; i < HS; i++) sum += to_f32(a[i]) * to_f32(b[i]);
    return sum;
}

// Adds the sum over i < n of weights[i] * row i of x to acc, for this lane's channels from `first`.
template <typename X>
__device__ static inline void add_rows(float (&acc)[PLAIN_CHANNELS], const float *weights, size_t n,
                                       const X *x, size_t pitch, size_t first, size_t HS) {
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < PLAIN_CHANNELS; j++) {
            const size_t c = first + threadIdx.x % 32 + 32 * j;
            if (c < HS) acc[j] += weights[i] * to_f32(x[i * pitch + c]);
        }
}

template <typename X>
__device__ static inline void store_channels(X *row, const float (&acc)[PLAIN_CHANNELS],
                                             size_t first, size_t HS) {
    for (int j = 0; j < PLAIN_CHANNELS; j++) {
        const size_t c = first + threadIdx.x % 32 + 32 * j;
        if (c < HS) row[c] = from_f32<X>(acc[j]);
    }
}

// Computes p[t,u], and ds[t,u] times 1 / sqrt(HS).
template <typename X>
__device__ static inline void plain_score(float *p, float *ds, const X *q, const X *k, const X *v,
                                          const X *dout, float lse, float delta, size_t HS,
                                          float scale) {
    *p = expf(head_dot(q, k, HS) * scale - lse);
    *ds = *p * (head_dot(dout, v, HS) - delta) * scale;
}

// Computes rows of out (B, T, NH HS) and of lse, if FORWARD; else rows of dq in dqkv.
template <typename X, bool FORWARD>
__global__ static void attention_queries_plain_kernel(X *result, float *lse, const float *delta,
                                                      const X *dout, const X *qkv,
                                                      const int32_t *begins, AttentionShape s) {
    __shared__ float shared_weights[PLAIN_WARPS][32];
    const size_t T = s.T, HS = s.HS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t row = (size_t)blockIdx.x * PLAIN_WARPS + warp;  // number in (B, NH, T)
    if (row >= s.B * s.NH * T) return;  // the whole warp returns; the block has no barrier
    const size_t t = row % T, h = row / T % s.NH, b = row / T / s.NH;
    const X *q = qkv + (b * T + t) * s.pitch + h * HS;
    const X *d = FORWARD ? NULL : dout + (b * T + t) * s.width + h * HS;
    const X *k = qkv + b * T * s.pitch + (s.NH + h / s.group) * HS, *v = k + s.keys;
    float *weights = shared_weights[warp];
    const size_t begin = begins == NULL ? 0 : (size_t)begins[b * T + t];
    for (size_t first = 0; first < HS; first += 32 * PLAIN_CHANNELS) {
        float acc[PLAIN_CHANNELS] = {0}, max = -INFINITY, sum = 0;
        for (size_t u0 = begin; u0 <= t; u0 += 32) {
            const size_t u = u0 + lane;
            float p = 0, ds = 0;
            if (FORWARD) {
                const float score = u <= t ? head_dot(q, k + u * s.pitch, HS) * s.scale : -INFINITY;
                const float new_max = fmaxf(max, warp_max(score)), rescale = expf(max - new_max);
                p = expf(score - new_max);
                max = new_max;
                sum = sum * rescale + p;  // over this lane's keys
                for (int j = 0; j < PLAIN_CHANNELS; j++) acc[j] *= rescale;
            } else if (u <= t) {
                plain_score(&p, &ds, q, k + u * s.pitch, v + u * s.pitch, d, lse[row], delta[row],
                            HS, s.scale);
            }
            __syncwarp();  // all lanes have read the previous weights
            weights[lane] = FORWARD ? p : ds;
            __syncwarp();
            add_rows(acc, weights, t - u0 < 32 ? t - u0 + 1 : 32,
                     (FORWARD ? v : k) + u0 * s.pitch, s.pitch, first, HS);
        }
        if (FORWARD) {
            sum = warp_sum(sum);
            for (int j = 0; j < PLAIN_CHANNELS; j++) acc[j] /= sum;
            if (lane == 0) lse[row] = max + logf(sum);
        }
        store_channels(result + (b * T + t) * (FORWARD ? s.width : s.pitch) + h * HS, acc, first,
                       HS);
    }
}

template <typename X>
__global__ static void attention_keys_plain_kernel(X *dqkv, const float *delta, const X *dout,
                                                   const float *lse, const X *qkv,
                                                   const int32_t *begins, AttentionShape s) {
    __shared__ float shared_p[PLAIN_WARPS][32], shared_ds[PLAIN_WARPS][32];
    const size_t T = s.T, HS = s.HS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t row = (size_t)blockIdx.x * PLAIN_WARPS + warp;  // number in (B, NKV, T)
    if (row >= s.B * s.NKV * T) return;
    const size_t u = row % T, kv = row / T % s.NKV, b = row / T / s.NKV;
    const size_t at_k = (b * T + u) * s.pitch + (s.NH + kv) * HS;
    const X *k = qkv + at_k, *v = k + s.keys;
    for (size_t first = 0; first < HS; first += 32 * PLAIN_CHANNELS) {
        float dk[PLAIN_CHANNELS] = {0}, dv[PLAIN_CHANNELS] = {0};
        for (size_t h = kv * s.group; h < (kv + 1) * s.group; h++) {
            const X *q = qkv + b * T * s.pitch + h * HS, *d = dout + b * T * s.width + h * HS;
            const float *l = lse + (b * s.NH + h) * T, *dl = delta + (b * s.NH + h) * T;
            for (size_t t0 = u; t0 < T; t0 += 32) {
                if (begins != NULL && (size_t)begins[b * T + t0] > u) break;
                const size_t t = t0 + lane;
                float p = 0, ds = 0;
                if (t < T && (begins == NULL || (size_t)begins[b * T + t] <= u))
                    plain_score(&p, &ds, q + t * s.pitch, k, v, d + t * s.width, l[t], dl[t], HS,
                                s.scale);
                __syncwarp();
                shared_p[warp][lane] = p;
                shared_ds[warp][lane] = ds;
                __syncwarp();
                const size_t n = T - t0 < 32 ? T - t0 : 32;
                add_rows(dv, shared_p[warp], n, d + t0 * s.width, s.width, first, HS);
                add_rows(dk, shared_ds[warp], n, q + t0 * s.pitch, s.pitch, first, HS);
            }
        }
        store_channels(dqkv + at_k, dk, first, HS);
        store_channels(dqkv + at_k + s.keys, dv, first, HS);
    }
}

// Computes delta[b,h,t] = dout[b,t,h] . out[b,t,h]. Eight lanes take one row of one head.
template <typename X>
__global__ static void attention_delta_kernel(float *delta, const X *dout, const X *out,
                                              unsigned rows, AttentionShape s) {
    const unsigned T = s.T, NH = s.NH, HS = s.HS, N = HS % Pack<X>::N == 0 ? Pack<X>::N : 1;
    const unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 8;  // number in (B, T, NH)
    const unsigned n = i / NH, h = i % NH, b = n / T, t = n % T;
    float sum = 0;
    if (i < rows)
        for (unsigned c = threadIdx.x % 8 * N; c < HS; c += 8 * N)
            sum += head_dot(dout + (size_t)i * HS + c, out + (size_t)i * HS + c, N);
    sum = lanes_sum(sum, 8);
    if (i < rows && threadIdx.x % 8 == 0) delta[(size_t)(b * NH + h) * T + t] = sum;
}

// ---------------------------------------------------------------------------------------------
// Wrappers of instructions that C++ has no name for (PTX ISA, "Warp Level Matrix Instructions").
// All lanes of a warp must call them.

// Computes d (16, 8) += a (16, 16) b (16, 8), for a and b of X = bf16 or f16. With g = i / 4 and c
// = 2 (i % 4), lane i holds these elements:
//   d: [g][c], [g][c+1], [g+8][c], [g+8][c+1]
//   a: pairs in a row that begin at [g][c], [g+8][c], [g][c+8], [g+8][c+8]; low half: the first
//   b: pairs in a column that begin at [c][g] and [c+8][g]
template <typename X>
__device__ static inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
#ifdef __CUDA_EMU__
    const uint32_t b[2] = {b0, b1};
    if constexpr (std::is_same_v<X, bf16>) emu::mma_m16n8k16_bf16(d, a, b);
    else emu::mma_m16n8k16_f16(d, a, b);
#else
#define MMA_16X8X16(type) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (std::is_same_v<X, bf16>) MMA_16X8X16("bf16");
    else MMA_16X8X16("f16");
#undef MMA_16X8X16
#endif
}

// Loads four matrices of 8 x 8 from shared memory. Lane i passes the address of row i % 8 (16
// bytes) of matrix i / 8. The lane gets, of each matrix, elements [i / 4][c] and [i / 4][c + 1],
// with c = 2 (i % 4); if TRANSPOSED, elements [c][i / 4] and [c + 1][i / 4].
template <bool TRANSPOSED>
__device__ static inline void load_matrices(uint32_t (&r)[4], const void *row) {
#ifdef __CUDA_EMU__
    (TRANSPOSED ? emu::ldmatrix_x4_trans : emu::ldmatrix_x4)(r, row);
#else
#define LOAD_MATRICES(trans) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) \
                 : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory")
    if constexpr (TRANSPOSED) LOAD_MATRICES(".trans");
    else LOAD_MATRICES("");
#undef LOAD_MATRICES
#endif
}

// Loops over elements [m][n][e] of a thread's (MI, N) fragments of four numbers (mma_16x8x16()).
#define FOR_FRAGMENTS(m, n, N, e) \
    UNROLL for (int m = 0; m < MI; m++) \
        UNROLL for (int n = 0; n < (N); n++) UNROLL for (int e = 0; e < 4; e++)

// ---------------------------------------------------------------------------------------------
// Tiles. In shared memory a tile has rows of D channels: D is the head size padded with zeros to
// 32, 64, 96 or 128. A block's tile has 64 MI rows, of which a warp owns 16 MI.

enum { FLASH_WARPS = 4, FLASH_THREADS = 32 * FLASH_WARPS };

// Returns where in a tile a chunk (16 bytes, 8 channels) of a row is stored, in elements. The
// chunks of a row are permuted, so that the same chunk of 8 neighbouring rows is in 8 different
// parts of the 32 banks: reading or writing a matrix of 8 x 8 then takes one pass.
template <int D> __device__ static inline int tile_at(int row, int chunk) {
    return row * D + (chunk ^ (D % 64 == 0 ? row % 8 : row / 2 % 4)) * 8;
}

// Returns tile_at(row + row0, chunk + 2 k), given at = tile_at(row, chunk), for row0 a multiple of
// 16 and chunk 0 or 1. If row0 and k are constants, this is one xor with a constant.
template <int D> __device__ static inline int tile_step(int at, int row0, int k) {
    const int period = D % 64 == 0 ? 4 : 2;
    return (at ^ k % period * 16) + k / period * period * 16 + row0 * D;
}

// Starts the copy of `rows` rows of HS channels into a tile of ROWS rows. The rest of the tile
// becomes 0, by copies that fill 16 bytes with zeros and read nothing; so no branch is needed.
// Afterwards every thread must commit and wait, and the block must meet at a barrier.
template <int D, int ROWS, typename X>
__device__ static inline void tile_load(X *tile, const X *x, int pitch, int rows, int HS) {
    enum { CHUNKS = D % 64 == 0 ? 8 : 4, STEP = FLASH_THREADS / CHUNKS };  // STEP rows at once
    const int row0 = threadIdx.x / CHUNKS, chunk0 = threadIdx.x % CHUNKS;
    X *const to0 = tile + tile_at<D>(row0, chunk0);
    const X *const from0 = x + (int64_t)row0 * pitch + chunk0 * 8;
    UNROLL for (int row = 0; row < ROWS; row += STEP)
        UNROLL for (int chunk = 0; chunk < D / 8; chunk += CHUNKS) {  // next CHUNKS: permuted alike
            X *const to = to0 + row * D + chunk * 8;
            const bool inside = row0 + row < rows && chunk0 + chunk < HS / 8;
            __pipeline_memcpy_async(to, from0 + (int64_t)row * pitch + chunk * 8, 16,
                                    inside ? 0 : 16);
        }
}

// Sets s (16 MI, 8 NB) to the warp's rows of tile a, from row0, times the transposed b (8 NB, D)
template <int D, int MI, int NB, typename X>
__device__ static inline void tile_product(float (&s)[MI][NB][4], const X *a, int row0,
                                           const X *b) {
    const int lane = threadIdx.x % 32;
    const int a_at = tile_at<D>(row0 + lane % 16, lane / 16);
    const int b_at = tile_at<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    FOR_FRAGMENTS(m, n, NB, e) s[m][n][e] = 0;
    UNROLL for (int k = 0; k < D / 16; k++) {
        uint32_t ra[MI][4], rb[4];
        UNROLL for (int m = 0; m < MI; m++)
            load_matrices<false>(ra[m], a + tile_step<D>(a_at, 16 * m, k));
        UNROLL for (int n = 0; n < NB; n += 2) {
            load_matrices<false>(rb, b + tile_step<D>(b_at, 8 * n, k));
            UNROLL for (int m = 0; m < MI; m++) {
                mma_16x8x16<X>(s[m][n], ra[m], rb[0], rb[1]);
                mma_16x8x16<X>(s[m][n + 1], ra[m], rb[2], rb[3]);
            }
        }
    }
}

// Computes acc (16 MI, D) += w (16 MI, 8 NB), rounded to X, times tile x (8 NB, D)
template <int D, int MI, int NB, typename X>
__device__ static inline void tile_accumulate(float (&acc)[MI][D / 8][4],
                                              const float (&w)[MI][NB][4], const X *x) {
    const int lane = threadIdx.x % 32, at = tile_at<D>(lane % 16, lane / 16);
    UNROLL for (int k = 0; k < NB / 2; k++) {
        uint32_t ra[MI][4], rb[4];
        UNROLL for (int m = 0; m < MI; m++) {
            const float (&left)[4] = w[m][2 * k], (&right)[4] = w[m][2 * k + 1];
            ra[m][0] = pack_pair<X>(left[0], left[1]);
            ra[m][1] = pack_pair<X>(left[2], left[3]);
            ra[m][2] = pack_pair<X>(right[0], right[1]);
            ra[m][3] = pack_pair<X>(right[2], right[3]);
        }
        UNROLL for (int n = 0; n < D / 8; n += 2) {
            load_matrices<true>(rb, x + tile_step<D>(at, 16 * k, n / 2));
            UNROLL for (int m = 0; m < MI; m++) {
                mma_16x8x16<X>(acc[m][n], ra[m], rb[0], rb[1]);
                mma_16x8x16<X>(acc[m][n + 1], ra[m], rb[2], rb[3]);
            }
        }
    }
}

// Writes the warp's accumulators to rows row0, ... of x. They pass through the warp's own rows of
// `tile`, which nothing reads any more, so that lanes write runs of 16 bytes. Rows from `rows` and
// channels from HS on are not written.
template <int D, int MI, typename X>
__device__ static inline void tile_store(X *x, int pitch, int rows, int HS,
                                         const float (&acc)[MI][D / 8][4], X *tile, int row0) {
    const int lane = threadIdx.x % 32;
    __syncwarp();  // other lanes may still read these rows of `tile`
    UNROLL for (int m = 0; m < MI; m++)
        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int r = 0; r < 2; r++) {
                X *to = tile + tile_at<D>(row0 + 16 * m + 8 * r + lane / 4, n) + lane % 4 * 2;
                *reinterpret_cast<uint32_t *>(to) = pack_pair<X>(acc[m][n][2 * r],
                                                                 acc[m][n][2 * r + 1]);
            }
    __syncwarp();
    UNROLL for (int i = lane; i < 16 * MI * D / 8; i += 32) {
        const int row = row0 + i / (D / 8), chunk = i % (D / 8);
        if (row < rows && chunk * 8 < HS)
            store_pack(x + (int64_t)row * pitch + chunk * 8,
                       load_pack(tile + tile_at<D>(row, chunk)));
    }
}

// Return row and column of element e of this lane's fragment [m][n] of scores (mma_16x8x16())
__device__ static inline int fragment_row(int m, int e) {
    return 16 * m + 8 * (e / 2) + threadIdx.x % 32 / 4;
}
__device__ static inline int fragment_column(int n, int e) {
    return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

// Return the maximum and the sum over the four lanes that share a row of a score matrix
__device__ static inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ static inline float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Returns how many heads run at once, so that the rows that they stream fit in the L2 cache. These
// are query heads, which stream the keys and values of their groups; if of_keys, parts of groups,
// which stream queries and dout. The heads run in as few rounds as possible, of equal size: a short
// last round would begin its longest tiles while other multiprocessors are at their last.
static unsigned flash_at_once(AttentionShape s, bool of_keys) {
    const size_t channels = of_keys ? s.part * s.HS : s.HS;
    const size_t heads = of_keys ? s.B * s.NH / s.part : s.B * s.NKV;
    const size_t fit = ((size_t)16 << 20) / (s.T * channels * 2 * sizeof(bf16));
    const size_t runs = ceil_div(heads, fit < 1 ? 1 : fit);
    return ceil_div(heads, runs) * (of_keys ? 1 : s.group);
}

// ---------------------------------------------------------------------------------------------
// The flash kernels

// Sizes. A warp owns MI times 16 rows, and each read of the streamed tile serves all of them. With
// MI = 1, reads of shared memory take longer than the tensor cores; but dk and dv of large heads
// leave no registers for MI = 2. A multiprocessor holds two blocks of 128 threads with up to 255
// registers in a thread, or three with up to 168. 168 suffice in forward for heads of 64; dq would
// move some to memory. No kernel needs more than 96 KiB of shared memory, which a block may have on
// every GPU since sm_80; an H100 has room for two such blocks, an A100 for two of 80 KiB. SMALL is
// for heads of 128 on a multiprocessor of 100 KiB (sm_86, sm_89, sm_120), which has no room for two
// blocks of 64 KiB: a block takes 48 KiB, and owns or streams fewer rows at a time. The bits are
// the same: rows are independent, and sums add 16 terms at a time. QUERY_: sizes of blocks that own
// queries and stream keys (forward, dq). KEY_: of blocks that own keys and stream queries (dk, dv).
#define QUERY_MI(SMALL) ((SMALL) ? 1 : 2)
#define QUERY_KEYS(FORWARD, SMALL) ((SMALL) && !(FORWARD) ? 16 : 32)
#define KEY_MI(D) ((D) <= 64 ? 2 : 1)
#define KEY_QUERIES(SMALL) ((SMALL) ? 16 : 32)
#define FLASH_SMALL(D, shared) ((D) == 128 && (shared) < 132u << 10)

// Returns into how many parts a group is divided for dk and dv: the fewest that make 512 blocks,
// enough for an H100 or H200 (almost four for each of 132 multiprocessors), if the parts' sums fit
// in `room` floats. Another number of parts gives other bits, so no property of the GPU decides.
static unsigned attention_parts(AttentionShape s, size_t room) {
    const size_t blocks = (size_t)ceil_div(s.T, 64 * KEY_MI(s.HS)) * s.B * s.NKV, enough = 512;
    unsigned parts = 1;
    for (unsigned n = 2; n <= s.group && blocks * parts < enough; n++)
        if (s.group % n == 0 && (size_t)n * s.B * s.T * 2 * s.keys <= room) parts = n;
    return parts;
}

// A tile of rows of a query head; or of a key head: then `head` is the first query head streamed.
typedef struct {
    unsigned head;        // number of the query head, in (B, NH)
    unsigned at_q, at_k;  // where in a row of qkv the query head begins, and the key head
    unsigned at_row;      // the sequence's first row, in (B, T)
    int first, rows;      // the tile's first row; rows from there to the sequence's end
} FlashWork;

// Returns the work of this block. Blocks take at_once heads at a time, and the tiles of these heads
// with the most work first: the last tiles of queries, the first of keys. So the last blocks to
// start are the shortest. A kernel calls this before its loop and again after it: the loop has no
// registers to keep the result. (The asm hides from the compiler that both calls are equal.)
__device__ static inline FlashWork flash_work(int tile_rows, bool of_keys, AttentionShape s,
                                              unsigned at_once) {
    const unsigned tiles = (s.T + tile_rows - 1) / tile_rows;
    unsigned block = blockIdx.x;
    asm volatile("" : "+r"(block));
    const unsigned part = of_keys ? s.part : 1, heads = s.B * s.NH / part;
    const unsigned first = block / (tiles * at_once) * at_once;
    const unsigned in_run = heads - first < at_once ? heads - first : at_once;
    const unsigned i = block % (tiles * at_once);
    const unsigned tile = of_keys ? i / in_run : tiles - 1 - i / in_run;
    const unsigned head = (first + i % in_run) * part, h = head % s.NH;
    const int row = (int)(tile * tile_rows);
    return FlashWork{.head = head, .at_q = h * s.HS, .at_k = (s.NH + h / s.group) * s.HS,
                     .at_row = head / s.NH * s.T, .first = row, .rows = (int)s.T - row};
}

// Starts to copy ROWS rows of x and y, from row0 on, to stage j % 2. stages: (2, x and y, ROWS, D).
template <int D, int ROWS, typename X>
__device__ static inline void stage_load(X *stages, int j, const X *x, int x_pitch, const X *y,
                                         int y_pitch, int row0, size_t T, int HS) {
    X *to = stages + j % 2 * 2 * ROWS * D;
    tile_load<D, ROWS>(to, x + (int64_t)row0 * x_pitch, x_pitch, (int)T - row0, HS);
    tile_load<D, ROWS>(to + ROWS * D, y + (int64_t)row0 * y_pitch, y_pitch, (int)T - row0, HS);
}

// With PACKED, begins[t] is the first row that row t sees. A block does not load tiles that none of
// its rows sees; a warp skips tiles that none of its rows sees; a tile is masked if a row sees only
// some of it. Without PACKED, none of this is in the machine code.

// Masks scores for which the warp's row does not see the key. Columns are the keys from key0 on.
// first: the first row of the block's tile. APART chooses between two equal conditions: nvcc has
// registers only for the one in the forward kernel, and only for the other in the dq kernel.
template <bool APART, int MI, int NB>
__device__ static inline void mask_unseen(float (&s)[MI][NB][4], const int32_t *begin, int key0,
                                          int first, int row0) {
    if (key0 >= begin[row0 + 16 * MI - 1] && key0 + 8 * NB - 1 <= first + row0) return;
    UNROLL for (int m = 0; m < MI; m++)
        UNROLL for (int r = 0; r < 2; r++) {
            const int row = row0 + fragment_row(m, 2 * r);
            const int from = begin[row] - key0, to = first + row - key0;
            const unsigned more = (unsigned)(first + row - begin[row]);
            UNROLL for (int n = 0; n < NB; n++)
                UNROLL for (int e = 2 * r; e < 2 * r + 2; e++) {
                    const int key = fragment_column(n, e);
                    if (APART ? key < from || key > to : (unsigned)(key - from) > more)
                        s[m][n][e] = -INFINITY;
                }
        }
}

// Masks scores whose key is later than the query. Rows, from row0 on, are the warp's queries, and
// columns, from column0 on, are keys; with KEYS, rows are keys and columns are queries.
template <bool KEYS, int MI, int NB>
__device__ static inline void mask_future(float (&s)[MI][NB][4], int row0, int column0) {
    if (KEYS ? column0 >= row0 + 16 * MI - 1 : column0 + 8 * NB - 1 <= row0) return;
    const int ahead = row0 + fragment_row(0, 0) - column0 - fragment_column(0, 0);
    FOR_FRAGMENTS(m, n, NB, e) {
        const int column = 8 * n + e % 2 - 16 * m - 8 * (e / 2);
        if (KEYS ? column < ahead : column > ahead) s[m][n][e] = -INFINITY;
    }
}

// Replaces the scores s by p, and adds the tile's values, weighted by p, to the warp's rows of o.
// max: a row's largest q . k so far, without the scale. sum: this lane's part of the sum of p.
template <int D, int MI, int NB, typename X>
__device__ static inline void softmax_tile(float (&o)[MI][D / 8][4], float (&max)[MI][2],
                                           float (&sum)[MI][2], float (&s)[MI][NB][4],
                                           float scale2, const X *v_tile) {
    float rescale[MI][2];
    bool moved = false;
    UNROLL for (int m = 0; m < MI; m++)
        UNROLL for (int r = 0; r < 2; r++) {
            float top = max[m][r];
            UNROLL for (int n = 0; n < NB; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            top = row_max(top);
            rescale[m][r] = exp2_fast((max[m][r] - top) * scale2);
            moved |= top > max[m][r];
            max[m][r] = top;
            const float bias = top * scale2;
            float part = 0;
            UNROLL for (int n = 0; n < NB; n++)
                UNROLL for (int e = 2 * r; e < 2 * r + 2; e++)
                    part += s[m][n][e] = exp2_fast(fmaf(s[m][n][e], scale2, -bias));
            sum[m][r] = sum[m][r] * rescale[m][r] + part;
        }
    if (__any_sync(0xffffffffu, moved))  // seldom true after the first tiles
        FOR_FRAGMENTS(m, n, D / 8, e) o[m][n][e] *= rescale[m][e / 2];
    tile_accumulate<D>(o, s, v_tile);
}

// Replaces s = q . k by p, and dp by ds. scale2, lse2: scale and lse times log2(e), for 2^x.
__device__ static inline void score_gradient(float &s, float &dp, float scale2, float lse2,
                                             float delta) {
    s = exp2_fast(fmaf(s, scale2, -lse2));
    dp = s * (dp - delta);
}

// Computes out (B, T, NH HS) and lse, if FORWARD; else dq in dqkv. Blocks own queries.
template <int D, typename X, bool PACKED, bool FORWARD, bool SMALL>
__global__ static void __launch_bounds__(FLASH_THREADS, D == 64 && FORWARD ? 3 : 2)
attention_queries_flash_kernel(X *result, float *lse, const float *delta, const X *dout,
                               const X *qkv, const int32_t *begins, AttentionShape shape,
                               unsigned at_once) {
    enum { MI = QUERY_MI(SMALL), ROWS = 64 * MI };
    enum { KEYS = QUERY_KEYS(FORWARD, SMALL), NB = KEYS / 8 };
    extern __shared__ int4 flash_shared[];
    X *const q_tile = reinterpret_cast<X *>(flash_shared);   // (ROWS, D)
    X *const d_tile = q_tile + ROWS * D;                     // (ROWS, D) of dout, if not FORWARD
    X *const stages = FORWARD ? d_tile : d_tile + ROWS * D;  // (2, k and v, KEYS, D)
    int32_t *const begin = reinterpret_cast<int32_t *>(stages + 4 * KEYS * D);  // (ROWS), if PACKED
    const int row0 = threadIdx.x / 32 * 16 * MI, HS = (int)shape.HS;
    const FlashWork w = flash_work(ROWS, false, shape, at_once);
    const size_t T = shape.T, width = shape.width;
    const int pitch = (int)shape.pitch, first = w.first, rows = w.rows;
    const X *q = qkv + (size_t)w.at_row * shape.pitch + w.at_q;
    const X *k = qkv + (size_t)w.at_row * shape.pitch + w.at_k, *v = k + shape.keys;
    if (PACKED) begins += w.at_row + first;
    if (PACKED && threadIdx.x < ROWS)  // rows past the end take the last row's begin
        begin[threadIdx.x] = begins[(int)threadIdx.x < rows ? (int)threadIdx.x : rows - 1];
    const int key_end = first + (rows < ROWS ? rows : ROWS), tiles = (key_end + KEYS - 1) / KEYS;

    float acc[MI][D / 8][4];
    float max[MI][2], sum[MI][2];             // forward: see softmax_tile()
    float row_lse2[MI][2], row_delta[MI][2];  // backward
    FOR_FRAGMENTS(m, n, D / 8, e) acc[m][n][e] = 0;
    UNROLL for (int m = 0; m < MI; m++)
        UNROLL for (int r = 0; r < 2; r++) {
            max[m][r] = PACKED ? -1e30f : -INFINITY;  // finite: its first tiles may be masked
            sum[m][r] = 0;
            if (FORWARD) continue;
            const int row = row0 + fragment_row(m, 2 * r);
            row_lse2[m][r] = row < rows ? lse[(size_t)w.head * T + first + row] * LOG2_E : 0;
            row_delta[m][r] = row < rows ? delta[(size_t)w.head * T + first + row] : 0;
        }
    tile_load<D, ROWS>(q_tile, q + (int64_t)first * pitch, pitch, rows, HS);
    if (!FORWARD)
        tile_load<D, ROWS>(d_tile, dout + (size_t)(w.at_row + first) * width + w.at_q, (int)width,
                           rows, HS);
    const int tile0 = PACKED ? begins[0] / KEYS : 0;
    stage_load<D, KEYS>(stages, tile0, k, pitch, v, pitch, tile0 * KEYS, T, HS);
    __pipeline_commit();
    for (int j = tile0; j < tiles; j++) {
        const int key0 = j * KEYS;
        const X *k_tile = stages + j % 2 * 2 * KEYS * D, *v_tile = k_tile + KEYS * D;
        __pipeline_wait_prior(0);
        __syncthreads();  // all threads see tile j, and none reads tile j - 1 any more
        if (j + 1 < tiles) {
            stage_load<D, KEYS>(stages, j + 1, k, pitch, v, pitch, key0 + KEYS, T, HS);
            __pipeline_commit();
        }
        if (row0 >= rows || key0 > first + row0 + 16 * MI - 1) continue;  // the warp sees no key
        if (PACKED && key0 + KEYS <= begin[row0]) continue;

        float s[MI][NB][4], dp[MI][NB][4];
        tile_product<D>(s, q_tile, row0, k_tile);
        if (!FORWARD) tile_product<D>(dp, d_tile, row0, v_tile);
        if (!PACKED) mask_future<false>(s, first + row0, key0);
        if (PACKED) mask_unseen<FORWARD>(s, begin, key0, first, row0);
        if (FORWARD) {
            softmax_tile<D>(acc, max, sum, s, shape.scale2, v_tile);
        } else {
            FOR_FRAGMENTS(m, n, NB, e)
                score_gradient(s[m][n][e], dp[m][n][e], shape.scale2, row_lse2[m][e / 2],
                               row_delta[m][e / 2]);
            tile_accumulate<D>(acc, dp, k_tile);
        }
    }
    const FlashWork to = flash_work(ROWS, false, shape, at_once);
    float factor[MI][2];
    UNROLL for (int m = 0; m < MI; m++)
        UNROLL for (int r = 0; r < 2; r++) {
            factor[m][r] = shape.scale;
            if (!FORWARD) continue;
            const float total = row_sum(sum[m][r]);
            const int row = row0 + fragment_row(m, 2 * r);
            factor[m][r] = 1.0f / total;
            if (threadIdx.x % 4 == 0 && row < to.rows)
                lse[(size_t)to.head * T + to.first + row] = mul_f32(max[m][r], shape.scale)
                                                            + logf(total);
        }
    FOR_FRAGMENTS(m, n, D / 8, e) acc[m][n][e] *= factor[m][e / 2];
    const size_t result_pitch = FORWARD ? width : shape.pitch;
    tile_store<D>(result + (to.at_row + to.first) * result_pitch + to.at_q, (int)result_pitch,
                  to.rows, HS, acc, q_tile, row0);
}

// Computes dk and dv in dqkv. Blocks own keys; scores are transposed: a row is a key, a column a
// query. A block streams the queries of a part of the group, head after head. If the part is not
// the whole group, its sums are stored in fp32, as (group / part, B, T, 2, NKV HS) after dqkv.
template <int D, typename X, bool PACKED, bool SMALL>
__global__ static void __launch_bounds__(FLASH_THREADS, 2)
attention_keys_flash_kernel(X *dqkv, const float *delta, const X *dout, const float *lse,
                            const X *qkv, const int32_t *begins, AttentionShape shape,
                            unsigned at_once) {
    enum { MI = KEY_MI(D), ROWS = 64 * MI };
    enum { QUERIES = KEY_QUERIES(SMALL), NB = QUERIES / 8 };
    extern __shared__ int4 flash_shared[];
    X *const k_tile = reinterpret_cast<X *>(flash_shared);  // (ROWS, D)
    X *const v_tile = k_tile + ROWS * D;                    // (ROWS, D)
    X *const stages = v_tile + ROWS * D;                    // (2, q and dout, QUERIES, D)
    float *const statistics = reinterpret_cast<float *>(stages + 4 * QUERIES * D);
    enum { STATISTICS = PACKED ? 3 : 2 };  // (2, STATISTICS, QUERIES) of lse, delta, begins
    const int row0 = threadIdx.x / 32 * 16 * MI, HS = (int)shape.HS;
    FlashWork w = flash_work(ROWS, true, shape, at_once);
    const size_t T = shape.T, width = shape.width;
    const int pitch = (int)shape.pitch, first = w.first, rows = w.rows;
    const X *k = qkv + (size_t)w.at_row * shape.pitch + w.at_k, *v = k + shape.keys;
    int tiles = (rows + QUERIES - 1) / QUERIES;  // tiles of a head's queries, from the diagonal on
    if (PACKED) {  // counts tiles whose first query sees some of the keys
        int seen = 0;
        for (int i = threadIdx.x; i - (int)threadIdx.x < tiles; i += FLASH_THREADS)
            seen += __syncthreads_count(i < tiles && begins[w.at_row + first + i * QUERIES]
                                                     < first + ROWS);
        tiles = seen;
    }
    const int all_tiles = tiles * (int)shape.part;

    float dk[MI][D / 8][4], dv[MI][D / 8][4];
    FOR_FRAGMENTS(m, n, D / 8, e) dk[m][n][e] = dv[m][n][e] = 0;
    // Starts the copies of a tile of head w.head into stage j % 2. For queries past the end, begin
    // is T, and q, dout, lse, delta are 0: then p is finite, ds is 0, and dk and dv do not change.
    const auto load_queries = [&](int j, int tile) {
        const int query0 = first + tile * QUERIES;
        const X *q = qkv + (size_t)w.at_row * shape.pitch + w.at_q;
        const X *d = dout + (size_t)w.at_row * width + w.at_q;
        stage_load<D, QUERIES>(stages, j, q, pitch, d, (int)width, query0, T, HS);
        float *at = statistics + j % 2 * STATISTICS * QUERIES + threadIdx.x;
        const int query = query0 + threadIdx.x % QUERIES;
        if (threadIdx.x < 2 * QUERIES) {
            const float *from = threadIdx.x < QUERIES ? lse : delta;
            if (query < (int)T) __pipeline_memcpy_async(at, from + w.head * T + query, 4);
            else *at = 0;
        } else if (PACKED && threadIdx.x < 3 * QUERIES) {
            if (query < (int)T) __pipeline_memcpy_async(at, begins + w.at_row + query, 4);
            else *at = __int_as_float((int)T);
        }
        __pipeline_commit();
    };
    tile_load<D, ROWS>(k_tile, k + (int64_t)first * pitch, pitch, rows, HS);
    tile_load<D, ROWS>(v_tile, v + (int64_t)first * pitch, pitch, rows, HS);
    load_queries(0, 0);
    for (int j = 0, tile = 0, next; j < all_tiles; j++, tile = next) {
        const int query0 = tile * QUERIES;  // counted from `first`, like rows of the keys' tile
        const X *q_tile = stages + j % 2 * 2 * QUERIES * D, *d_tile = q_tile + QUERIES * D;
        const float *tile_lse = statistics + j % 2 * STATISTICS * QUERIES;
        const float *tile_delta = tile_lse + QUERIES;
        const int32_t *begin = reinterpret_cast<const int32_t *>(tile_delta + QUERIES);
        __pipeline_wait_prior(0);
        __syncthreads();  // all threads see tile j, and none reads tile j - 1 any more
        next = tile + 1;
        if (next == tiles) {  // the part's next head
            next = 0;
            w.head++;
            w.at_q += shape.HS;
        }
        if (j + 1 < all_tiles) load_queries(j + 1, next);
        if (row0 >= rows || query0 + QUERIES - 1 < row0) continue;
        if (PACKED && begin[0] >= first + row0 + 16 * MI) continue;

        float s[MI][NB][4], dp[MI][NB][4];
        tile_product<D>(s, k_tile, row0, q_tile);
        tile_product<D>(dp, v_tile, row0, d_tile);
        mask_future<true>(s, row0, query0);
        if (PACKED && begin[QUERIES - 1] > first + row0)
            UNROLL for (int n = 0; n < NB; n++)
                UNROLL for (int c = 0; c < 2; c++) {
                    const int from = begin[fragment_column(n, c)] - first - row0;
                    UNROLL for (int m = 0; m < MI; m++)
                        UNROLL for (int e = c; e < 4; e += 2)
                            if (from > fragment_row(m, e)) s[m][n][e] = -INFINITY;
                }
        UNROLL for (int n = 0; n < NB; n++)
            UNROLL for (int c = 0; c < 2; c++) {
                const int column = fragment_column(n, c);
                const float lse2 = tile_lse[column] * LOG2_E, dl = tile_delta[column];
                UNROLL for (int m = 0; m < MI; m++)
                    UNROLL for (int e = c; e < 4; e += 2)
                        score_gradient(s[m][n][e], dp[m][n][e], shape.scale2, lse2, dl);
            }
        tile_accumulate<D>(dv, s, d_tile);
        tile_accumulate<D>(dk, dp, q_tile);
    }
    const FlashWork to = flash_work(ROWS, true, shape, at_once);
    FOR_FRAGMENTS(m, n, D / 8, e) dk[m][n][e] *= shape.scale;
    if (shape.part < shape.group) {
        const unsigned row = to.head % shape.group / shape.part * shape.B * shape.T + to.at_row;
        float *sums = reinterpret_cast<float *>(dqkv + (size_t)shape.B * T * shape.pitch)
                      + (size_t)(row + to.first) * 2 * shape.keys + to.at_k - shape.width;
        const auto store = [&](float *x, const float (&acc)[MI][D / 8][4]) {
            FOR_FRAGMENTS(m, n, D / 8, e) {
                const int r = row0 + fragment_row(m, e), c = fragment_column(n, e);
                float *const at = x + (int64_t)r * 2 * (int)shape.keys + c;
                if (e % 2 == 0 && r < to.rows && c < HS)  // four lanes write 32 bytes
                    *reinterpret_cast<float2 *>(at) = make_float2(acc[m][n][e], acc[m][n][e | 1]);
            }
        };
        store(sums, dk);
        store(sums + shape.keys, dv);
        return;
    }
    dqkv += (size_t)(to.at_row + to.first) * shape.pitch + to.at_k;
    tile_store<D>(dqkv, pitch, to.rows, HS, dk, k_tile, row0);
    tile_store<D>(dqkv + shape.keys, pitch, to.rows, HS, dv, v_tile, row0);
}

// Adds up the parts of dk and dv, in the order of the heads. A thread computes one number.
template <typename X>
__global__ static void attention_parts_kernel(X *dqkv, AttentionShape s) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, width = 2 * s.keys;
    const size_t all = s.B * s.T * width;
    const float *sums = reinterpret_cast<float *>(dqkv + (size_t)s.B * s.T * s.pitch);
    float sum = 0;
    if (i >= all) return;
    for (unsigned part = 0; part < s.group / s.part; part++) sum += sums[part * all + i];
    dqkv[(size_t)(i / width) * s.pitch + s.width + i % width] = from_f32<X>(sum);
}

// ---------------------------------------------------------------------------------------------
// Launches. shared: a multiprocessor's bytes of shared memory, if the flash kernels can take the
// shape; 0: the plain kernels take it.

template <typename X> static size_t flash_shared(AttentionShape s, bool plain) {
    return plain || sizeof(X) != 2 || s.HS % 8 > 0 || s.HS > 128 ? 0 : multiprocessor_shared();
}

// Picks a flash kernel for heads padded to D channels. `...`: its other template arguments.
#define FLASH_KERNEL(kernel, D, small, ...) \
    ((D) == 32 ? kernel<32, __VA_ARGS__, false> : (D) == 64 ? kernel<64, __VA_ARGS__, false> \
     : (D) == 96 ? kernel<96, __VA_ARGS__, false> \
     : (small) ? kernel<128, __VA_ARGS__, true> : kernel<128, __VA_ARGS__, false>)

// Launches the kernels in which a warp, or a block, owns queries.
template <typename X, bool FORWARD>
static void attention_queries(X *result, float *lse, const float *delta, const X *dout,
                              const X *qkv, const int32_t *begins, AttentionShape s, size_t shared,
                              cudaStream_t stream) {
    const size_t D = round_up(s.HS, 32), tiles = FORWARD ? 1 : 2;
    const bool small = FLASH_SMALL(D, shared);
    const size_t rows = 64 * QUERY_MI(small), keys = QUERY_KEYS(FORWARD, small);
    const size_t numbers = begins != NULL ? rows : 0;
    const size_t bytes = (tiles * rows + 4 * keys) * D * sizeof(X) + 4 * numbers;
    if constexpr (sizeof(X) == 2)
        if (shared > 0) {
            const auto kernel = begins != NULL
                ? FLASH_KERNEL(attention_queries_flash_kernel, D, small, X, true, FORWARD)
                : FLASH_KERNEL(attention_queries_flash_kernel, D, small, X, false, FORWARD);
            LET_SHARED(kernel, bytes);
            LAUNCH(kernel, ceil_div(s.T, rows) * s.B * s.NH, FLASH_THREADS, bytes, stream, result,
                   lse, delta, dout, qkv, begins, s, flash_at_once(s, false));
            return;
        }
    const auto kernel = attention_queries_plain_kernel<X, FORWARD>;
    LAUNCH(kernel, ceil_div(s.B * s.NH * s.T, PLAIN_WARPS), 32 * PLAIN_WARPS, 0, stream, result,
           lse, delta, dout, qkv, begins, s);
}

// Launches the kernels in which a warp, or a block, owns keys. room: floats for attention_parts().
template <typename X>
static void attention_keys(X *dqkv, const float *delta, const X *dout, const float *lse,
                           const X *qkv, const int32_t *begins, AttentionShape s, size_t shared,
                           size_t room, cudaStream_t stream) {
    const size_t D = round_up(s.HS, 32), rows = 64 * (size_t)KEY_MI(D);
    const bool small = FLASH_SMALL(D, shared);
    const size_t queries = KEY_QUERIES(small), numbers = (begins != NULL ? 6 : 4) * queries;
    const size_t bytes = (2 * rows + 4 * queries) * D * sizeof(X) + 4 * numbers;
    if constexpr (sizeof(X) == 2)
        if (shared > 0) {
            const auto kernel = begins != NULL
                ? FLASH_KERNEL(attention_keys_flash_kernel, D, small, X, true)
                : FLASH_KERNEL(attention_keys_flash_kernel, D, small, X, false);
            LET_SHARED(kernel, bytes);
            s.part = s.group / attention_parts(s, room);
            LAUNCH(kernel, ceil_div(s.T, rows) * s.B * s.NH / s.part, FLASH_THREADS, bytes, stream,
                   dqkv, delta, dout, lse, qkv, begins, s, flash_at_once(s, true));
            if (s.part < s.group)
                LAUNCH(attention_parts_kernel<X>, ceil_div(s.B * s.T * s.keys, 128), 256, 0, stream,
                       dqkv, s);
            return;
        }
    LAUNCH(attention_keys_plain_kernel<X>, ceil_div(s.B * s.NKV * s.T, PLAIN_WARPS),
           32 * PLAIN_WARPS, 0, stream, dqkv, delta, dout, lse, qkv, begins, s);
}

// Computes attention. plain: always uses the plain kernels (for tests).
template <typename X>
static void attention_forward(X *out,        // (B, T, NH HS)
                              float *lse,    // (B, NH, T)
                              const X *qkv,  // (B, T, (NH + 2 NKV) HS): queries, keys, values
                              const int32_t *begins,  // (B, T); NULL: all are 0
                              AttentionShape s, cudaStream_t stream, bool plain = false) {
    GPU_TAKES(stream, 4.0 * s.width * s.B * s.T * tokens_seen(s.T, s.window), gpu_attention);
    attention_queries<X, true>(out, lse, NULL, NULL, qkv, begins, s, flash_shared<X>(s, plain),
                               stream);
}

// Overwrites all of dqkv, which has the layout of qkv. out and lse: results of the forward pass.
// delta, and `room` floats after dqkv, are scratch.
template <typename X>
static void attention_backward(X *dqkv, size_t room, float *delta /* (B, NH, T) */, const X *dout,
                               const X *out, const float *lse, const X *qkv, const int32_t *begins,
                               AttentionShape s, cudaStream_t stream, bool plain = false) {
    const unsigned rows = index_32((size_t)8 * s.B * s.T * s.NH) / 8;
    const size_t shared = flash_shared<X>(s, plain);
    GPU_TAKES(stream, 10.0 * s.width * s.B * s.T * tokens_seen(s.T, s.window), gpu_attention);
    LAUNCH(attention_delta_kernel<X>, ceil_div(rows, 32), 256, 0, stream, delta, dout, out, rows,
           s);
    attention_keys(dqkv, delta, dout, lse, qkv, begins, s, shared, room, stream);
    attention_queries<X, false>(dqkv, (float *)lse, delta, dout, qkv, begins, s, shared, stream);
}

#endif
