// zero.cuh: ZeRO on the GPU: what moves between the ranks, and when (zero.h says who owns what, and
// doc/zero.md is the lesson).
//
// All of it is queued in one stream, in an order that is the same on all ranks: NCCL asks for that.
// In each micro-batch, while backward runs, segment after segment from the last to the first: the
// gradient is summed over the ranks, and each keeps its shard of the sum (reduce-scatter). In each
// step: all ranks exchange losses and block sums of the gradient's squares. After each segment's
// update, in the order of forward: its weights are gathered; in stage 3 only shortly before forward
// and backward use a layer's (weights.cuh).
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
typedef void *ncclComm_t;
#endif

struct Zero {
    int stage;
    size_t world, rank;
    bool rows;                  // shards are cut between rows (zero.h)
    size_t *begin;              // (segments, world + 1): where shards begin, zero_begin()
    ncclComm_t comm;
    cudaStream_t stream;        // all that this file queues
    cudaEvent_t *reduced;       // per segment: its gradient is summed over the ranks
    cudaEvent_t *gathered;      // per segment: its weights are whole
    size_t *blocks, all_blocks; // of the norm: zero_blocks(), and their sum
    size_t exchanged;           // numbers that each rank sends to the others: ZERO_HEAD + the most
    size_t reduced_bytes, gathered_bytes;  // that this rank gave away in this step
    // GPU memory.
    double *mine, *all;         // (exchanged), (world, exchanged)
    uint32_t *order;            // (all_blocks): zero_order()
    // Page-locked host memory.
    double *host_mine;          // (ZERO_HEAD)
    double *host_all;           // (world, ZERO_HEAD)
};

enum { ZERO_LOSS, ZERO_NEWS, ZERO_HEAD = ZERO_NEWS + NEWS };  // before a rank's block sums

static int zero_stage(const Zero *z) { return z == NULL ? 0 : z->stage; }

// Returns the begin of rank r's shard of segment s or, if r == world, the end of the last shard.
static size_t shard_begin_of(const Zero *z, size_t s, size_t r) {
    return z->begin[s * (z->world + 1) + r];
}

// Rehearses a collective: a ring of so many bytes on each GPU. Returns whether it is to be run.
static bool between_gpus(const Zero *z, size_t bytes) {
    if (rehearsal != NULL)
        rehearse(stream_number(z->stream), TAKES_COMM,
                 collective_seconds(&rehearsal->rates, z->world, (double)bytes));
    return rehearsal == NULL;
}

// Sums every rank's shard of segment s over all ranks (sums), or gives it to all of them: in place,
// where shards are cut between rows.
static void between_rows(Zero *z, floatX *data, size_t s, bool sums) {
#ifdef TIDE_NCCL
    NCCL(ncclGroupStart());
    for (size_t r = 0; r < z->world; r++) {
        floatX *shard = data + shard_begin_of(z, s, r);
        const size_t n = shard_begin_of(z, s, r + 1) - shard_begin_of(z, s, r);
        if (sums)
            NCCL(ncclReduce(shard, shard, n, nccl_floatX, ncclSum, (int)r, z->comm, z->stream));
        else NCCL(ncclBroadcast(shard, shard, n, nccl_floatX, (int)r, z->comm, z->stream));
    }
    NCCL(ncclGroupEnd());
#endif
    (void)z, (void)data, (void)s, (void)sums;
}

// Gives all ranks the `bytes` at each rank's `mine`, in their order, at data. In place, or apart.
static void all_gather(Zero *z, void *data, const void *mine, size_t bytes) {
    const bool runs = between_gpus(z, z->world * bytes);
#ifdef TIDE_NCCL
    if (runs) NCCL(ncclAllGather(mine, data, bytes, ncclUint8, z->comm, z->stream));
#endif
    (void)data, (void)mine, (void)runs;
    z->gathered_bytes += (z->world - 1) * bytes;
}

// ---------------------------------------------------------------------------------------------
// 2. Memory

// --zero, or what auto is where it fits.
static int zero_asked(const Options *o) {
    return o->zero > 0 ? (int)o->zero : o->weights == WEIGHTS_HOST ? 3 : 2;
}

// Makes what several GPUs or --zero need, connected unless this is only a plan; else returns NULL.
static Zero *zero_open(const Run *r) {
    const Options *o = &r->o;
    if (!r->training || o->optimizer == OPTIMIZER_MEZO || o->dump != NULL) return NULL;
    if (r->world == 1 && !option_given(o, "zero")) return NULL;
    Zero *z = ALLOC(Zero, 1, "ranks");
    z->stage = zero_asked(o);
    z->world = r->world;
    z->rank = r->rank;
    z->rows = o->offload == OFFLOAD_ZENFLOW;
    if (z->rows && z->stage == 3) die("--offload zenflow works with --zero 1 or 2, not 3");
    const GPT2Table *t = &r->table;
    const size_t segments = (size_t)zero_segments(t);
    z->begin = ALLOC(size_t, segments * (z->world + 1), "shards");
    for (size_t s = 0; s < segments; s++)
        for (size_t i = 0; i <= z->world; i++)
            z->begin[s * (z->world + 1) + i] = zero_begin(t, (int)s, z->world, i, z->rows);
    z->blocks = ALLOC(size_t, segments * z->world, "gradient norm");
    z->exchanged = ZERO_HEAD + zero_blocks(t, z->world, z->rows, z->blocks);
    for (size_t i = 0; i < segments * z->world; i++) z->all_blocks += z->blocks[i];
    if (z->world > 1) printf("ranks: %zu, ZeRO-%d\n", z->world, z->stage);
    if (o->plan) return z;
#ifdef TIDE_NCCL
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    open_device();
    if (z->rank == 0) NCCL(ncclGetUniqueId(&id));
    ranks_broadcast(&id, sizeof id);
    NCCL(ncclCommInitRank(&z->comm, (int)z->world, id, (int)z->rank));
#else
    die("%s: this program was built without NCCL (make train_gpt2cu says how to get it)",
        z->world > 1 ? "several GPUs" : "--zero");
#endif
    return z;
}

// Says how segment s is dealt out.
static void zero_place(const Zero *z, int s, Segment *x) {
    const size_t begin = shard_begin_of(z, (size_t)s, z->rank);
    x->cut = z->rows ? 0 : zero_cut(x->length, z->world);
    x->room = z->rows ? x->length : x->cut * z->world;
    x->own = shard_begin_of(z, (size_t)s, z->rank + 1) - begin;
    // where an empty shard would be counts, too: NCCL wants it there to work in place
    x->own_from = x->at + (z->rows ? begin : z->rank * x->cut);
}

// Adds the lines of this file to the memory plan of the GPU; returns how many there are now.
static int zero_buffers(GPT2 *g, Buffer list[MAX_BUFFERS], int n) {
    Zero *z = g->zero;
    const size_t bytes = z->exchanged * sizeof(double);
    BUFFER(ZERO, "backward", bytes, z->mine);
    BUFFER(ZERO, "backward", z->world * bytes, z->all);
    BUFFER(ANY, "backward", z->all_blocks * sizeof(uint32_t), z->order);
    return n;
}

// After the buffers are there.
static void zero_allocate(GPT2 *g) {
    Zero *z = g->zero;
    z->stream = stream_make("ranks", true);  // where a collective begins late, all ranks wait
    z->reduced = events_make((size_t)g->segments);
    z->gathered = events_make((size_t)g->segments);
    const size_t head = ZERO_HEAD * sizeof(double);
    z->host_mine = (double *)pinned_alloc(head, "gradient norm");
    z->host_all = (double *)pinned_alloc(z->world * head, "gradient norm");
    if (rehearsal != NULL) return;
    uint32_t *order = ALLOC(uint32_t, z->all_blocks, "gradient norm");
    zero_order(order, z->exchanged, z->blocks, g->segments, z->world);
    gpu_copy(z->order, order, z->all_blocks * sizeof(uint32_t));
    free(order);
}

static void zero_free(Zero *z) {
#ifdef TIDE_NCCL
    if (z->comm != NULL) NCCL(ncclCommDestroy(z->comm));
#endif
    free(z->blocks);
    free(z->begin);
    free(z);
}

// ---------------------------------------------------------------------------------------------
// 3. Gradients

// Segment s of this rank's gradient is complete: it is summed over the ranks, in the type in which
// it is stored. Every rank keeps its shard of the sum, where that part of its own gradient was.
static void zero_reduce(GPT2 *g, size_t s) {
    Zero *z = g->zero;
    const Segment *x = &g->segment[s];
    floatX *const grad = g->grads + x->grad_at;
    stream_wait(z->stream, g->grad_ready[s]);
    const int span = timeline_begin(&g->timeline, ROW_COMM, "reduce", s, x->room * sizeof(floatX),
                                    z->stream);
    const bool runs = between_gpus(z, x->room * sizeof(floatX));
    if (runs && z->rows) between_rows(z, grad, s, true);
#ifdef TIDE_NCCL
    if (runs && !z->rows)
        NCCL(ncclReduceScatter(grad, grad + z->rank * x->cut, x->cut, nccl_floatX, ncclSum,
                               z->comm, z->stream));
#endif
    z->reduced_bytes += (x->room - (z->rows ? x->own : x->cut)) * sizeof(floatX);
    timeline_end(&g->timeline, span, z->stream);
    event_record(z->reduced[s], z->stream);
}

// Returns the event that is recorded when segment s of the gradient is ready for the update.
static cudaEvent_t gradient_event(const GPT2 *g, size_t s) {
    return g->zero != NULL ? g->zero->reduced[s] : g->grad_ready[s];
}

// gpt2_grad_norm_squared() of several ranks: behind what the stream `sums` has been given, each
// sends its loss, its block sums and its other numbers to all others, and each rank's GPU adds all
// block sums in one order. (Sums of runs would be fewer, but shards cut runs.)
static double zero_norm_squared(GPT2 *g, double *loss) {
    Zero *z = g->zero;
    const size_t n = z->exchanged;
    run_tell(z->host_mine + ZERO_NEWS);
    stream_copy(z->mine, z->host_mine, ZERO_HEAD * sizeof(double), cudaMemcpyHostToDevice,
                g->sums);
    stream_copy(z->mine + ZERO_LOSS, g->loss, sizeof(double), cudaMemcpyDeviceToDevice, g->sums);
    stream_copy(z->mine + ZERO_HEAD, g->norm_sums, g->blocks * sizeof(double),
                cudaMemcpyDeviceToDevice, g->sums);
    order(g, g->sums, z->stream);
    all_gather(z, z->all, z->mine, n * sizeof(double));
    norm_total_gpu(g->loss + 1, g->run_sums, z->all + ZERO_HEAD, z->order, z->all_blocks,
                   z->stream);
    tell_host(g->host_loss + 1, g->loss + 1, 1, 0, 1, z->stream);
    tell_host(z->host_all, z->all, (unsigned)z->world, n, ZERO_HEAD, z->stream);
    event_record(g->step_left, z->stream);
    event_wait(g->step_left);
    *loss = 0;
    for (size_t r = 0; r < z->world; r++) *loss += z->host_all[r * ZERO_HEAD + ZERO_LOSS];
    run_hear(z->host_all + ZERO_NEWS, ZERO_HEAD);
    return g->host_loss[1];
}

// ---------------------------------------------------------------------------------------------
// 4. Weights

// Gathers segment s's weights from all ranks, once they are updated and, if need be, on the GPU.
static void zero_gather(GPT2 *g, size_t s) {
    Zero *z = g->zero;
    const Segment *x = &g->segment[s];
    stream_wait(z->stream, g->updated[s]);
    stream_wait(z->stream, g->returned[s]);
    if (x->streams) stream_wait(z->stream, g->arrived[s]);
    const int span = timeline_begin(&g->timeline, ROW_COMM, "gather", s, x->room * sizeof(floatX),
                                    z->stream);
    floatX *const place = g->params + x->param_at;
    if (!z->rows) all_gather(z, place, g->params + x->own_param_at, x->cut * sizeof(floatX));
    else if (between_gpus(z, x->room * sizeof(floatX))) between_rows(z, place, s, false);
    if (z->rows) z->gathered_bytes += (z->world - 1) * x->own * sizeof(floatX);
    timeline_end(&g->timeline, span, z->stream);
    event_record(z->gathered[s], z->stream);
}

// ---------------------------------------------------------------------------------------------
// 5. The host

// Returns the least of all ranks' numbers. It first waits for all queued work: a rank that waits
// for the exchange would not do its part of a collective on the emulated GPU.
static size_t zero_least(size_t mine, size_t world) {
    size_t *all = ALLOC(size_t, world, "ranks");
    device_rest();
    ranks_exchange(&mine, sizeof mine, all);
    for (size_t i = 0; i < world; i++) mine = min_size(mine, all[i]);
    free(all);
    return mine;
}

// Adds counters for log.jsonl: bytes that this rank gave to others in this step; and how long
// forward and backward waited in the newest step that is complete (see offload_log()).
static void zero_log(const GPT2 *g, char *json, size_t n) {
    const Zero *z = g->zero;
    const TimelineStep *d = &g->timeline.done;
    const size_t used = strlen(json);
    snprintf(json + used, n - used, ",\"zero\":{\"stage\":%d,\"world\":%zu,\"reduced_bytes\":%zu,"
             "\"gathered_bytes\":%zu,\"stalled_ms\":%.6g}", z->stage, z->world, z->reduced_bytes,
             z->gathered_bytes, 1e3 * d->stalled);
}

// The same for people, of the last step, when all is over.
static void zero_end(const GPT2 *g) {
    const Zero *z = g->zero;
    printf("ZeRO-%d on %zu GPU%s: in the last step each gave the others %.1f MiB to sum and %.1f "
           "MiB to gather; forward and backward waited %.1f ms\n", z->stage, z->world,
           z->world > 1 ? "s" : "", mib(z->reduced_bytes), mib(z->gathered_bytes),
           1e3 * g->timeline.done.stalled);
}

#endif
