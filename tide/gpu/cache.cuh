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
// Heads of one group share them (attention.cuh), so the cache has key heads only.
#ifndef TIDE_CACHE_CUH
#define TIDE_CACHE_CUH
#include "kernels.cuh"

template <typename X>
static void cache_store(X *cache,      // (rows, 2, NKV HS)
                        const X *qkv,  // (rows, (NH + 2 NKV) HS)
                        size_t rows, AttentionShape s, cudaStream_t stream) {
    const size_t keys = s.keys * sizeof(X), queries = s.width * sizeof(X);
    if (rehearsal == NULL)
        CUDA(cudaMemcpy2DAsync(cache, 2 * keys, (const char *)qkv + queries, queries + 2 * keys,
                               2 * keys, rows, cudaMemcpyDeviceToDevice, stream));
}

// A block takes a query head. First, teams of eight lanes take a key each, AHEAD times: those loads
// are under way together. Then each thread takes a run of channels of every `groups`-th value,
// AHEAD of them at once, so that neighbours read neighbouring bytes. Loads after the last row take
// it again, and are ignored: a branch would let each load wait for the one before. Scores,
// softmax and sums are in fp32; the order of each sum depends on the shape and on `seen` alone.
enum { CACHED_THREADS = 512, CACHED_TEAM = 8, CACHED_AHEAD = 4, CACHED_MOST = 4096 };

template <typename X, int W>
__global__ static void __launch_bounds__(CACHED_THREADS)
attention_cached_kernel(X *out, const X *q, const X *cache, AttentionShape s, unsigned seen) {
    enum { TEAMS = CACHED_THREADS / CACHED_TEAM, AHEAD = CACHED_AHEAD };
    extern __shared__ float weights[];             // (seen): scores, then exp(score - max)
    __shared__ float part[CACHED_THREADS * W];     // (groups, width): sums of weighted values
    const unsigned h = blockIdx.x, HS = s.HS, row = 2 * s.keys;
    const unsigned team = threadIdx.x / CACHED_TEAM, lane = threadIdx.x % CACHED_TEAM;
    const X *k = cache + h / s.group * HS, *v = k + s.keys;
    float max = -INFINITY, sum = 0;
    q += h * HS;
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
    max = block_max(max);  // its barriers also order the weights
    for (unsigned u = threadIdx.x; u < seen; u += CACHED_THREADS) {
        weights[u] = expf(weights[u] - max);
        sum += weights[u];
    }
    sum = block_sum(sum);
    const unsigned threads = CACHED_THREADS, runs = HS / W < threads ? HS / W : threads;
    const unsigned width = runs * W, groups = threads / runs, mine = threadIdx.x / runs;
    for (unsigned first = 0; first < HS; first += width) {  // once, but for very wide heads
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
            out[h * HS + first + i] = from_f32<X>(total / sum);
        }
        __syncthreads();
    }
}

// Ends the program where `seen` is more than config_window() allows: a block has its scores in
// shared memory.
template <typename X>
static void attention_cached(X *out,          // (NH HS)
                             const X *qkv,    // ((NH + 2 NKV) HS): of the newest token
                             const X *cache,  // (seen, 2, NKV HS): its own row is the last
                             size_t seen, AttentionShape s, cudaStream_t stream) {
    enum { W = Pack<X>::N };
    const auto kernel = s.HS % W == 0 ? attention_cached_kernel<X, W>
                                      : attention_cached_kernel<X, 1>;
    if (seen > CACHED_MOST) fail("attention: %zu cached tokens are too many", seen);
    LAUNCH(kernel, s.NH, CACHED_THREADS, seen * sizeof(float), stream, out, qkv, cache, s,
           (unsigned)seen);
}

#endif
