// zero.cuh: ZeRO's collectives between the ranks. zero.h: who owns what. doc/zero.md: the lesson.
//
// All collectives are queued in one stream, in the same order on all ranks, as NCCL demands:
// - in each micro-batch, while backward runs, from the last segment to the first: the gradient is
//   summed over the ranks, and each rank keeps its shard of the sum (reduce-scatter);
// - in each step: all ranks exchange losses and block sums of the gradient's squares;
// - after each segment's update, in forward's order: its weights are gathered; in stage 3, the
//   weights of a layer are gathered shortly before each use (weights.cuh).
#ifndef TIDE_ZERO_CUH
#define TIDE_ZERO_CUH
#include "../../zero.h"
#include "devices.cuh"
#include "gpt2.cuh"
#ifdef TIDE_NCCL
#include <nccl.h>
#endif

// ---------------------------------------------------------------------------------------------
// 1. NCCL

#ifdef TIDE_NCCL
#define NCCL(call) nccl_check((call), #call, __FILE__, __LINE__)

static void nccl_check(ncclResult_t e, const char *call, const char *file, int line) {
    if (e != ncclSuccess)
        fail("NCCL: %s (%s): %s (%s:%d)", ncclGetErrorString(e), ncclGetLastError(NULL), call, file,
             line);
}

static const ncclDataType_t nccl_floatX = PRECISION == PRECISION_FP32 ? ncclFloat32
                                        : PRECISION == PRECISION_FP16 ? ncclFloat16 : ncclBfloat16;
#else
#define NCCL(call) ((void)0)  // zero_open() has refused to train
typedef void *ncclComm_t;
#endif

struct Zero {
    int stage;
    size_t world, rank;
    bool rows;                  // shards are cut between rows (zero.h)
    size_t *begin;              // (segments, world + 1): begins of the shards, zero_begin()
    ncclComm_t comm;
    cudaStream_t stream;        // the stream of all collectives
    cudaEvent_t *reduced;       // per segment: its gradient is summed over the ranks
    cudaEvent_t *gathered;      // per segment: its weights are whole
    size_t *blocks, all_blocks; // blocks of the norm in each shard (zero_blocks()), in all
    size_t exchanged;           // numbers that each rank sends: ZERO_HEAD + a rank's most blocks
    size_t reduced_bytes, gathered_bytes;  // bytes that this rank sent in this step
    // GPU memory.
    double *mine, *all;         // (exchanged): sent by this rank; (world, exchanged): received
    uint32_t *order;            // (all_blocks): in which order block sums are added (zero_order())
    // Page-locked host memory.
    double *host_mine;          // (ZERO_HEAD): the news, which are copied to `mine`
    double *host_all;           // (world, ZERO_HEAD): loss and news of each rank, from `all`
};

enum { ZERO_LOSS, ZERO_NEWS, ZERO_HEAD = ZERO_NEWS + NEWS };  // indices in Zero.mine; sums follow

static int zero_stage(const Zero *zero) { return zero == NULL ? 0 : zero->stage; }

// Returns the begins of the ranks' shards of segment s, and the end of the last one (world + 1).
static const size_t *shards_of(const Zero *zero, size_t s) {
    return zero->begin + s * (zero->world + 1);
}

// Returns true if NCCL is to run a collective. In a rehearsal returns false, and notes how long the
// collective would take: it moves `bytes` on each GPU.
static bool between_gpus(const Zero *zero, size_t bytes) {
    if (rehearsal != NULL)
        rehearse(stream_number(zero->stream), TAKES_COMM,
                 collective_seconds(&rehearsal->rates, zero->world, (double)bytes));
    return rehearsal == NULL;
}

// Sums each rank's part of data over all ranks (`sums`), or copies it to all ranks, in place. For
// shards that are cut between rows. begin (world + 1): the begins of the ranks' parts.
static void between_rows(Zero *zero, floatX *data, const size_t *begin, bool sums) {
    const size_t mine = begin[zero->rank + 1] - begin[zero->rank], all = begin[zero->world];
    if (sums) zero->reduced_bytes += (all - mine) * sizeof *data;
    else zero->gathered_bytes += (zero->world - 1) * mine * sizeof *data;
    if (!between_gpus(zero, all * sizeof *data)) return;
#ifdef TIDE_NCCL
    NCCL(ncclGroupStart());
    for (size_t r = 0; r < zero->world; r++) {
        floatX *shard = data + begin[r];
        const size_t n = begin[r + 1] - begin[r];
        if (sums)
            NCCL(ncclReduce(shard, shard, n, nccl_floatX, ncclSum, (int)r, zero->comm,
                            zero->stream));
        else NCCL(ncclBroadcast(shard, shard, n, nccl_floatX, (int)r, zero->comm, zero->stream));
    }
    NCCL(ncclGroupEnd());
#endif
}

// Sums data (world, cut) over all ranks; each rank keeps its own shard of the sum, in place.
static void sum_shards(Zero *zero, floatX *data, size_t cut) {
    const size_t bytes = cut * sizeof *data;
    zero->reduced_bytes += (zero->world - 1) * bytes;
    if (!between_gpus(zero, zero->world * bytes)) return;
    NCCL(ncclReduceScatter(data, data + zero->rank * cut, cut, nccl_floatX, ncclSum, zero->comm,
                           zero->stream));
}

// Copies the `bytes` at each rank's `mine` to all ranks' `data`, in the order of ranks.
static void all_gather(Zero *zero, void *data, const void *mine, size_t bytes) {
    zero->gathered_bytes += (zero->world - 1) * bytes;
    if (!between_gpus(zero, zero->world * bytes)) return;
    NCCL(ncclAllGather(mine, data, bytes, ncclUint8, zero->comm, zero->stream));
    (void)data, (void)mine;
}

// ---------------------------------------------------------------------------------------------
// 2. Memory

// Returns the stage that --zero names; auto: the stage that is tried first.
static int zero_asked(const Options *o) {
    return o->zero > 0 ? (int)o->zero : o->weights == WEIGHTS_HOST ? 3 : 2;
}

#ifdef TIDE_NCCL
// Runs a collective of each kind that training uses, of several sizes. NCCL allocates its buffers
// in the first one that needs them, so a plan may use all memory that is free afterwards.
static void zero_connect(Zero *zero) {
    const size_t most = 1 << 20;  // elements per rank
    floatX *data = (floatX *)gpu_alloc(zero->world * most * sizeof *data, "NCCL");
    CUDA(cudaMemset(data, 0, zero->world * most * sizeof *data));
    for (size_t n = 64; n <= most; n *= 128) {
        floatX *mine = data + zero->rank * n;
        if (zero->rows) {
            NCCL(ncclReduce(data, data, n, nccl_floatX, ncclSum, 0, zero->comm, NULL));
            NCCL(ncclBroadcast(data, data, n, nccl_floatX, 0, zero->comm, NULL));
        } else {
            NCCL(ncclReduceScatter(data, mine, n, nccl_floatX, ncclSum, zero->comm, NULL));
        }
        NCCL(ncclAllGather(mine, data, n, nccl_floatX, zero->comm, NULL));
    }
    gpu_free(data);  // waits for all collectives
}
#endif

// Returns a Zero for several GPUs or --zero, else NULL. Connects the ranks, but not in a plan.
static Zero *zero_open(const Run *r) {
    const Options *o = &r->o;
    if (!r->training || o->optimizer == OPTIMIZER_MEZO || o->dump != NULL) return NULL;
    if (r->world == 1 && !option_given(o, "zero")) return NULL;
    Zero *zero = ALLOC(Zero, 1, "ranks");
    *zero = Zero{.stage = zero_asked(o), .world = r->world, .rank = r->rank,
                 .rows = o->offload == OFFLOAD_ZENFLOW};
    if (zero->rows && zero->stage == 3) die("--offload zenflow works with --zero 1 or 2, not 3");
    const GPT2Table *t = &r->table;
    const size_t segments = (size_t)zero_segments(t);
    zero->begin = ALLOC(size_t, segments * (zero->world + 1), "shards");
    for (size_t s = 0; s < segments; s++)
        for (size_t i = 0; i <= zero->world; i++)
            zero->begin[s * (zero->world + 1) + i] = zero_begin(t, (int)s, zero->world, i,
                                                                zero->rows);
    zero->blocks = ALLOC(size_t, segments * zero->world, "gradient norm");
    zero->exchanged = ZERO_HEAD + zero_blocks(t, zero->world, zero->rows, zero->blocks);
    for (size_t i = 0; i < segments * zero->world; i++) zero->all_blocks += zero->blocks[i];
    if (zero->world > 1) printf("ranks: %zu, ZeRO-%d\n", zero->world, zero->stage);
    if (o->plan) return zero;
#ifdef TIDE_NCCL
    ncclUniqueId id = {};
    open_device();
    if (zero->rank == 0) NCCL(ncclGetUniqueId(&id));
    ranks_broadcast(&id, sizeof id);
    NCCL(ncclCommInitRank(&zero->comm, (int)zero->world, id, (int)zero->rank));
    zero_connect(zero);
#else
    die("%s: this program was built without NCCL (make train_gpt2cu says how to get it)",
        zero->world > 1 ? "several GPUs" : "--zero");
#endif
    return zero;
}

// Sets how segment s is cut into shards, and which shard this rank owns.
static void zero_place(const Zero *zero, int s, Segment *seg) {
    const size_t *shard = shards_of(zero, (size_t)s) + zero->rank;
    seg->cut = zero->rows ? 0 : zero_cut(seg->length, zero->world);
    seg->padded = zero->rows ? seg->length : seg->cut * zero->world;
    seg->own = shard[1] - shard[0];
    // an empty shard also has a begin, which NCCL needs to work in place
    seg->own_from = seg->at + (zero->rows ? shard[0] : zero->rank * seg->cut);
}

// Adds the buffers of this file to the list; returns the new length of the list.
static int zero_buffers(GPT2 *g, Buffer list[MAX_BUFFERS], int n) {
    Zero *zero = g->zero;
    const size_t bytes = zero->exchanged * sizeof(double);
    BUFFER(ZERO, "backward", bytes, zero->mine);
    BUFFER(ZERO, "backward", zero->world * bytes, zero->all);
    BUFFER(ANY, "backward", zero->all_blocks * sizeof(uint32_t), zero->order);
    return n;
}

// Makes the stream, the events and host memory, and fills zero->order; the buffers must exist.
static void zero_allocate(GPT2 *g) {
    Zero *zero = g->zero;
    zero->stream = stream_make("ranks", true);  // if a collective begins late, all ranks wait
    zero->reduced = events_make((size_t)g->segments);
    zero->gathered = events_make((size_t)g->segments);
    const size_t head = ZERO_HEAD * sizeof(double);
    zero->host_mine = (double *)pinned_alloc(head, "gradient norm");
    zero->host_all = (double *)pinned_alloc(zero->world * head, "gradient norm");
    if (rehearsal != NULL) return;
    uint32_t *order = ALLOC(uint32_t, zero->all_blocks, "gradient norm");
    zero_order(order, zero->exchanged, zero->blocks, g->segments, zero->world);
    gpu_copy(zero->order, order, zero->all_blocks * sizeof(uint32_t));
    free(order);
}

static void zero_free(Zero *zero) {
    if (zero->comm != NULL) NCCL(ncclCommDestroy(zero->comm));
    free(zero->blocks);
    free(zero->begin);
    free(zero);
}

// ---------------------------------------------------------------------------------------------
// 3. Gradients

// Sums segment s of the gradient over the ranks, in floatX, once this rank's gradient is complete.
// Each rank keeps its own shard of the sum, in place.
static void zero_reduce(GPT2 *g, size_t s) {
    Zero *zero = g->zero;
    const Segment *seg = &g->segment[s];
    floatX *const grad = g->grads + seg->grad_at;
    stream_wait(zero->stream, g->grad_rooms.full[seg->grad_room]);
    const int span = timeline_begin(&g->timeline, ROW_COMM, "reduce", s,
                                    seg->padded * sizeof(floatX), zero->stream);
    if (zero->rows) between_rows(zero, grad, shards_of(zero, s), true);
    else sum_shards(zero, grad, seg->cut);
    timeline_end(&g->timeline, span, zero->stream);
    event_record(zero->reduced[s], zero->stream);
}

// Returns the event that is recorded when segment s of the gradient is complete.
static cudaEvent_t gradient_event(const GPT2 *g, size_t s) {
    return g->zero != NULL ? g->zero->reduced[s] : g->grad_rooms.full[g->segment[s].grad_room];
}

// Computes gpt2_grad_norm_squared() for several ranks. After all work of stream `sums`, each rank
// sends to all others its loss, its block sums, and whether it must stop or save (run_tell()). Each
// rank's GPU adds up all block sums in one order. (Shards may cut the 1024 blocks of a run_sum.)
static double zero_norm_squared(GPT2 *g, double *loss) {
    Zero *zero = g->zero;
    const size_t n = zero->exchanged;
    run_tell(zero->host_mine + ZERO_NEWS);
    stream_copy(zero->mine, zero->host_mine, ZERO_HEAD * sizeof(double), cudaMemcpyHostToDevice,
                g->sums);
    stream_copy(zero->mine + ZERO_LOSS, g->loss, sizeof(double), cudaMemcpyDeviceToDevice, g->sums);
    stream_copy(zero->mine + ZERO_HEAD, g->norm_sums, g->pieces.blocks * sizeof(double),
                cudaMemcpyDeviceToDevice, g->sums);
    order(g, g->sums, zero->stream);
    all_gather(zero, zero->all, zero->mine, n * sizeof(double));
    norm_total_gpu(g->loss + 1, g->run_sums, zero->all + ZERO_HEAD, zero->order, zero->all_blocks,
                   zero->stream);
    tell_host(g->host_loss + 1, g->loss + 1, 1, 0, 1, zero->stream);
    tell_host(zero->host_all, zero->all, (unsigned)zero->world, n, ZERO_HEAD, zero->stream);
    event_record(g->step_left, zero->stream);
    event_wait(g->step_left);
    *loss = 0;
    for (size_t r = 0; r < zero->world; r++) *loss += zero->host_all[r * ZERO_HEAD + ZERO_LOSS];
    run_hear(zero->host_all + ZERO_NEWS, ZERO_HEAD);
    return g->host_loss[1];
}

// ---------------------------------------------------------------------------------------------
// 4. Weights

// Gathers segment s's weights from all ranks, once the own shard is updated and on the GPU.
static void zero_gather(GPT2 *g, size_t s) {
    Zero *zero = g->zero;
    const Segment *seg = &g->segment[s];
    stream_wait(zero->stream, g->updated[s]);
    stream_wait(zero->stream, g->returned[s]);
    if (seg->on_host) stream_wait(zero->stream, g->weight_rooms.full[seg->weight_room]);
    const int span = timeline_begin(&g->timeline, ROW_COMM, "gather", s,
                                    seg->padded * sizeof(floatX), zero->stream);
    floatX *const weights = g->params + seg->param_at;
    if (zero->rows) between_rows(zero, weights, shards_of(zero, s), false);
    else all_gather(zero, weights, g->params + seg->own_param_at, seg->cut * sizeof(floatX));
    timeline_end(&g->timeline, span, zero->stream);
    event_record(zero->gathered[s], zero->stream);
}

// ---------------------------------------------------------------------------------------------
// 5. The host

// Returns the least of all ranks' numbers. First waits for all queued work: on the emulated GPU, a
// rank that waits for the exchange would not do its part of a queued collective.
static size_t zero_least(size_t mine, size_t world) {
    size_t *all = ALLOC(size_t, world, "ranks");
    device_sync();
    ranks_exchange(&mine, sizeof mine, all);
    for (size_t i = 0; i < world; i++) mine = min_size(mine, all[i]);
    free(all);
    return mine;
}

// Adds ZeRO's counters to the line of log.jsonl: the bytes that this rank sent in this step; and
// how long forward and backward waited in the newest complete step (step_log()).
static void zero_log(const GPT2 *g, char *json, size_t n) {
    const Zero *zero = g->zero;
    const TimelineStep *d = &g->timeline.done;
    const size_t used = strlen(json);
    snprintf(json + used, n - used, ",\"zero\":{\"stage\":%d,\"world\":%zu,\"reduced_bytes\":%zu,"
             "\"gathered_bytes\":%zu,\"stalled_ms\":%.6g}", zero->stage, zero->world,
             zero->reduced_bytes, zero->gathered_bytes, 1e3 * d->stalled);
}

#endif
