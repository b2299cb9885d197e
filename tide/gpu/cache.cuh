// cache.cuh: the keys and values of a text so far, for a model that continues it token by token.
//
// A new token changes nothing in the rows of the tokens before it, because no row sees a later one.
// So a sample keeps the keys and values of each layer, and computes one row for each new token: its
// query sees the cached keys, its own among them. tide/cpu/attention.h has the same in plain C.
//
//     cache_store()        copies the keys and values of some rows into a layer's cache
//     attention_cached()   the attention of one row
//
// A layer's cache is (window, 2, NKV HS): a row has the token's key heads, then its value heads.
// The query heads of a group share one key head and one value head (attention.cuh).
#ifndef TIDE_CACHE_CUH
#define TIDE_CACHE_CUH
#include "kernels.cuh"

// This is a kernel, because cudaMemcpy2DAsync() would wait for a copy engine.
template <typename X>
__global__ static void cache_store_kernel(X *cache, const X *qkv, size_t all, AttentionShape s) {
    const size_t i = grid_thread(), row = 2 * s.keys;
    if (i < all) cache[i] = qkv[i / row * s.pitch + s.width + i % row];
}

template <typename X>
static void cache_store(X *cache,      // (rows, 2, NKV HS)
                        const X *qkv,  // (rows, (NH + 2 NKV) HS)
                        size_t rows, AttentionShape s, cudaStream_t stream) {
    const size_t all = rows * 2 * s.keys;
    LAUNCH(cache_store_kernel<X>, ceil_div(all, BLOCK_THREADS), BLOCK_THREADS, 0, stream, cache,
           qkv, all, s);
}

// A block takes a query head. If splits > 1, it takes only one of `splits` equal parts of the
// cached rows, and stores the part's largest score and sums, which attention_merge_kernel() adds
// up. First, each team of eight lanes takes AHEAD keys at a time, whose loads are under way
// together. Then each thread takes W channels of every `groups`-th value, AHEAD values at once;
// neighbouring threads read neighbouring bytes. Loads after the last row read the last row again,
// and the result is ignored: with a branch each load would wait for the one before. Scores, softmax
// and sums are in fp32; the order of each sum depends on the shape and on the number of rows alone.
enum { CACHED_THREADS = 512, CACHED_TEAM = 8, CACHED_AHEAD = 4 };

template <typename X, int W>
__global__ static void __launch_bounds__(CACHED_THREADS)
attention_cached_kernel(X *out, float *parts, const X *q, const X *cache, AttentionShape s,
                        unsigned all, unsigned splits) {
    enum { TEAMS = CACHED_THREADS / CACHED_TEAM, AHEAD = CACHED_AHEAD };
    extern __shared__ float weights[];             // (seen): scores, then exp(score - max)
    __shared__ float part[CACHED_THREADS * W];     // (groups, width): sums of weighted values
    const unsigned h = blockIdx.x / splits, split = blockIdx.x % splits, HS = s.HS;
    const unsigned begin = all * split / splits, seen = all * (split + 1) / splits - begin;
    const unsigned row = 2 * s.keys;
    const unsigned team = threadIdx.x / CACHED_TEAM, lane = threadIdx.x % CACHED_TEAM;
    const X *k = cache + (size_t)begin * row + h / s.group * HS, *v = k + s.keys;
    float max = -INFINITY, sum = 0;
    q += h * HS;
    parts += (size_t)blockIdx.x * (HS + 2);
    const auto at_row = [&](unsigned u) { return (size_t)(u < seen ? u : seen - 1) * row; };
    for (unsigned first = 0; first < seen; first += AHEAD * TEAMS) {
        float dot[AHEAD] = {0};
        for (unsigned c = lane * W; c < HS; c += CACHED_TEAM * W) {
            int4 keys[AHEAD];
            UNROLL for (unsigned a = 0; a < AHEAD; a++)
                keys[a] = load_run<W>(k + at_row(first + a * TEAMS + team) + c);
            const Pack<X> query = as_pack<X>(load_run<W>(q + c));
            UNROLL for (unsigned a = 0; a < AHEAD; a++) {
                const Pack<X> key = as_pack<X>(keys[a]);
                for (int j = 0; j < W; j++) dot[a] += to_f32(query.x[j]) * to_f32(key.x[j]);
            }
        }
        UNROLL for (unsigned a = 0; a < AHEAD; a++) {
            const unsigned u = first + a * TEAMS + team;
            dot[a] = lanes_sum(dot[a], CACHED_TEAM);
            if (u < seen) max = fmaxf(max, dot[a] * s.scale);
            if (u < seen && lane == 0) weights[u] = dot[a] * s.scale;
        }
    }
    max = block_max(max);  // its barriers also let all threads see the weights
    for (unsigned u = threadIdx.x; u < seen; u += CACHED_THREADS) {
        weights[u] = expf(weights[u] - max);
        sum += weights[u];
    }
    sum = block_sum(sum);
    const unsigned threads = CACHED_THREADS, runs = HS / W < threads ? HS / W : threads;
    const unsigned width = runs * W, groups = threads / runs, mine = threadIdx.x / runs;
    for (unsigned first = 0; first < HS; first += width) {  // more than once for very wide heads
        const unsigned at = threadIdx.x % runs * W, c = first + at;
        float acc[W] = {0};
        if (mine < groups && c < HS) {
            for (unsigned u = mine; u < seen; u += AHEAD * groups) {
                int4 values[AHEAD];
                UNROLL for (unsigned a = 0; a < AHEAD; a++)
                    values[a] = load_run<W>(v + at_row(u + a * groups) + c);
                UNROLL for (unsigned a = 0; a < AHEAD; a++) {
                    const float w = u + a * groups < seen ? weights[u + a * groups] : 0;
                    const Pack<X> value = as_pack<X>(values[a]);
                    for (int j = 0; j < W; j++) acc[j] += w * to_f32(value.x[j]);
                }
            }
            for (int j = 0; j < W; j++) part[mine * width + at + j] = acc[j];
        }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < width && first + i < HS; i += CACHED_THREADS) {
            float total = 0;
            for (unsigned g = 0; g < groups; g++) total += part[g * width + i];
            if (splits == 1) out[h * HS + first + i] = from_f32<X>(total / sum);
            else parts[2 + first + i] = total;
        }
        __syncthreads();
    }
    if (splits == 1 || threadIdx.x > 0) return;
    parts[0] = max;
    parts[1] = sum;
}

// A block takes a query head, and adds up its `splits` parts in order. parts: (NH, splits, 2 + HS).
template <typename X>
__global__ static void attention_merge_kernel(X *out, const float *parts, unsigned HS,
                                              unsigned splits) {
    for (unsigned c = threadIdx.x; c < HS; c += blockDim.x) {
        const float *part = parts + (size_t)blockIdx.x * splits * (HS + 2);
        float max = -INFINITY, sum = 0, total = 0;
        for (unsigned i = 0; i < splits; i++, part += HS + 2) {
            const float top = fmaxf(max, part[0]), old = expf(max - top), now = expf(part[0] - top);
            sum = sum * old + part[1] * now;
            total = total * old + part[2 + c] * now;
            max = top;
        }
        out[blockIdx.x * HS + c] = from_f32<X>(total / sum);
    }
}

// Computes attention of one row. A part has at least the rows that a block takes at once, and at
// least HS + 2: so scratch, a float for each row and head, has room for HS + 2 floats a part.
template <typename X>
static void attention_cached(X *out,          // (NH HS)
                             float *scratch,  // (seen, NH)
                             const X *qkv,    // ((NH + 2 NKV) HS): of the newest token
                             const X *cache,  // (seen, 2, NKV HS); the newest row is last
                             size_t seen, AttentionShape s, cudaStream_t stream) {
    enum { W = Pack<X>::N };
    const auto kernel = s.HS % W == 0 ? attention_cached_kernel<X, W>
                                      : attention_cached_kernel<X, 1>;
    const size_t once = CACHED_THREADS / CACHED_TEAM * CACHED_AHEAD;
    const size_t part = s.HS + 2 > once ? s.HS + 2 : once, splits = seen < part ? 1 : seen / part;
    LAUNCH(kernel, s.NH * splits, CACHED_THREADS, (seen / splits + 1) * sizeof(float), stream, out,
           scratch, qkv, cache, s, (unsigned)seen, (unsigned)splits);
    if (splits > 1)
        LAUNCH(attention_merge_kernel<X>, s.NH, 128, 0, stream, out, scratch, s.HS,
               (unsigned)splits);
}

#endif
