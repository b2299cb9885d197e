// test_nccl.cu: collectives between ranks. This program starts itself as several ranks, each a
// process with an environment of its own (as schedules are read at the start), and looks at what
// they say and how they end. On real GPUs, with real NCCL, as many ranks as there are GPUs; what
// only the emulated library promises (the order of sums, what it says about mistakes) is left out.
//
//   test_nccl                        all tests
//   test_nccl rank CASE RANK RANKS   one rank of one of them
#include "../../test/test.h"
#ifndef TIDE_NCCL
int main() {
    printf("skip test_nccl: built without NCCL\n");
    return 0;
}
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <string>
#include <type_traits>
#include <vector>

typedef __nv_bfloat16 bf16;
typedef __half f16;
typedef std::vector<std::string> Strings;

static double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A call that has to work, for the rank to go on.
#define OK(call) must((int)(call), #call, __LINE__)
static void must(int error, const char *call, int line) {
    if (error == 0) return;
    printf("test_nccl.cu:%d: error %d from %s\n", line, error, call);
    exit(4);
}

// =============================================================================================
// One rank

static int rank_, ranks_;
static ncclComm_t comm;
static cudaStream_t stream, other;
static size_t wrong;    // results; the rank ends with code 3 if there are any

#define RIGHT(condition, ...)                                                     \
    do {                                                                          \
        if (!(condition) && wrong++ < 10) {                                       \
            printf("rank %d of %d: line %d: %s: ", rank_, ranks_, __LINE__, #condition); \
            printf(__VA_ARGS__);                                                  \
            printf("\n");                                                         \
        }                                                                         \
    } while (0)

// Rank 0 makes the id, and leaves it in a file that all have open.
static ncclUniqueId common_id() {
    ncclUniqueId id;
    const int file = atoi(getenv("TEST_FILE"));
    if (rank_ == 0) {
        OK(ncclGetUniqueId(&id));
        if (pwrite(file, &id, sizeof id, 0) != (ssize_t)sizeof id) exit(5);
    }
    while (pread(file, &id, sizeof id, 0) < (ssize_t)sizeof id) usleep(1000);
    return id;
}

static const char *argument() { return getenv("TEST_ARGUMENT") ? getenv("TEST_ARGUMENT") : ""; }

static void join() { OK(ncclCommInitRank(&comm, ranks_, common_id(), rank_)); }

template <typename T> static T *device_array(const std::vector<T> &host) {
    T *p = NULL;
    OK(cudaMalloc(&p, host.size() * sizeof(T)));
    if (host.empty()) return p;
    OK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return p;
}

template <typename T> static std::vector<T> host_array(const T *p, size_t n) {
    std::vector<T> host(n);
    if (n > 0) OK(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

static uint64_t hash(uint64_t x) {
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

// What `rank` sends at i: sums round, and another order of them gives other bits. Real NCCL has
// other orders, so there they are exact.
template <typename T> static T number(int rank, size_t i, unsigned salt) {
    const uint64_t h = hash((uint64_t)i * 64 + (uint64_t)rank + ((uint64_t)salt << 40));
    if (std::is_integral<T>::value) return (T)h;
#ifdef __CUDA_EMU__
    static const float scale[] = {1e-3f, 1, 30};
    return (T)(((float)(h % 20011) - 10005) * 1e-3f * scale[h >> 32 & 1] * scale[h >> 40 & 1]);
#else
    return (T)((float)(h % 17) - 8);
#endif
}

static ncclDataType_t type_of(uint8_t) { return ncclUint8; }
static ncclDataType_t type_of(float) { return ncclFloat32; }
static ncclDataType_t type_of(bf16) { return ncclBfloat16; }
static ncclDataType_t type_of(f16) { return ncclFloat16; }

enum Kind { REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, KINDS };
static const char *const NAMES[] = {"reduce", "broadcast", "reduce-scatter", "all-gather"};

struct Shape { Kind kind; int root; size_t count; bool in_place; };

static size_t sent(const Shape &s) {
    return s.count * (s.kind == REDUCE_SCATTER ? (size_t)ranks_ : 1);
}
static size_t received(const Shape &s) {
    return s.count * (s.kind == ALL_GATHER ? (size_t)ranks_ : 1);
}

template <typename T> struct Buffers { T *whole, *in, *out; };

// In place there is one buffer, and one side is this rank's part of it.
template <typename T> static Buffers<T> make_buffers(const Shape &s, unsigned salt) {
    Buffers<T> b;
    std::vector<T> in(sent(s));
    for (size_t i = 0; i < in.size(); i++) in[i] = number<T>(rank_, i, salt);
    const size_t mine = (size_t)rank_ * s.count;
    if (!s.in_place) {
        b.in = b.whole = device_array(in);
        b.out = device_array(std::vector<T>(received(s)));
    } else if (s.kind == ALL_GATHER) {
        std::vector<T> whole(received(s));
        for (size_t i = 0; i < s.count; i++) whole[mine + i] = in[i];
        b.out = b.whole = device_array(whole);
        b.in = b.out + mine;
    } else {
        b.in = b.whole = device_array(in);
        b.out = s.kind == REDUCE_SCATTER ? b.in + mine : b.in;
    }
    return b;
}

template <typename T> static void start(const Shape &s, Buffers<T> b, cudaStream_t on) {
    const ncclDataType_t type = type_of(T());
    if (s.kind == REDUCE) OK(ncclReduce(b.in, b.out, s.count, type, ncclSum, s.root, comm, on));
    if (s.kind == BROADCAST) OK(ncclBroadcast(b.in, b.out, s.count, type, s.root, comm, on));
    if (s.kind == REDUCE_SCATTER)
        OK(ncclReduceScatter(b.in, b.out, s.count, type, ncclSum, comm, on));
    if (s.kind == ALL_GATHER) OK(ncclAllGather(b.in, b.out, s.count, type, comm, on));
}

// What this rank has to receive at i, by a plain loop over the ranks.
template <typename T> static T expected(const Shape &s, size_t i, unsigned salt) {
    if (s.kind == BROADCAST) return number<T>(s.root, i, salt);
    if (s.kind == ALL_GATHER) return number<T>((int)(i / s.count), i % s.count, salt);
    const size_t at = s.kind == REDUCE_SCATTER ? (size_t)rank_ * s.count + i : i;
    T sum = number<T>(0, at, salt);
    for (int r = 1; r < ranks_; r++) sum = (T)((float)sum + (float)number<T>(r, at, salt));
    return sum;
}

template <typename T> static void finish(const Shape &s, Buffers<T> b, unsigned salt) {
    const bool receives = s.kind != REDUCE || rank_ == s.root;
    if (receives) {
        const std::vector<T> out = host_array(b.out, received(s));
        size_t bad = 0, first = 0;
        for (size_t i = 0; i < out.size(); i++) {
            const T e = expected<T>(s, i, salt);
            if (memcmp(&out[i], &e, sizeof e) != 0 && bad++ == 0) first = i;
        }
        RIGHT(bad == 0, "%s of type %d, count %zu, root %d%s: %zu numbers, the first at %zu",
              NAMES[s.kind], (int)type_of(T()), s.count, s.root, s.in_place ? ", in place" : "",
              bad, first);
    }
    // What is sent stays, but for the part that is received in place.
    const std::vector<T> in = host_array(b.in, sent(s));
    const bool part = s.in_place && s.kind == REDUCE_SCATTER;
    size_t bad = 0;
    for (size_t i = 0; i < in.size() && (!s.in_place || part); i++) {
        const T e = number<T>(rank_, i, salt);
        if (part && i / s.count == (size_t)rank_) continue;
        bad += memcmp(&in[i], &e, sizeof e) != 0;
    }
    RIGHT(bad == 0, "%s of type %d, count %zu: %zu numbers that were sent are not what they were",
          NAMES[s.kind], (int)type_of(T()), s.count, bad);
    if (!s.in_place) OK(cudaFree(b.out));
    OK(cudaFree(b.whole));
}

template <typename T> static void one(const Shape &s, unsigned salt) {
    const Buffers<T> b = make_buffers<T>(s, salt);
    start(s, b, stream);
    OK(cudaStreamSynchronize(stream));
    finish(s, b, salt);
}

template <typename T> static void all_of_a_type(const std::vector<size_t> &counts) {
    unsigned salt = 1;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t count : counts)
            for (int in_place = 0; in_place < 2; in_place++) {
                const bool sums = kind == REDUCE || kind == REDUCE_SCATTER;
                const Shape s = {(Kind)kind, (int)salt % ranks_, count, in_place != 0};
                if (!sums || sizeof(T) > 1) one<T>(s, salt++);
            }
}

// Odd ones, none, and such that need several steps and a rest.
static void every_collective() {
    join();
    all_of_a_type<f16>({0, 1, 3, 129});
    all_of_a_type<bf16>({0, 1, 2, 5, 1000, 131071, 131073});
    all_of_a_type<uint8_t>({0, 1, 3, 129, 600001});
    all_of_a_type<float>({0, 1, 2, 5, 1000, 65535, 65536, 65537, 200003});
    OK(ncclCommDestroy(comm));
}

static uint64_t roll(uint64_t *state, uint64_t sides) { return hash(++*state) % sides; }

// Many collectives on two streams, and ranks that are late, wait for this or that, or for nothing.
// They are one communicator's, so their order is that of the calls, whatever the stream.
static void at_random_times() {
    struct Started { Shape shape; Buffers<float> buffers; };
    std::vector<Started> all;
    uint64_t common = strtoull(argument(), NULL, 10) << 32;
    uint64_t own = common + ((uint64_t)rank_ + 1) * 1000003;
    join();
    for (unsigned i = 0; i < 100; i++) {
        Shape s = {(Kind)roll(&common, KINDS), (int)roll(&common, (uint64_t)ranks_),
                   (size_t)roll(&common, 5000), roll(&common, 2) == 0};
        if (roll(&common, 20) == 0) s.count = 150000;
        all.push_back({s, make_buffers<float>(s, i)});
    }
    for (const Started &x : all) {
        if (roll(&own, 4) == 0) usleep((unsigned)roll(&own, 5000));
        start(x.shape, x.buffers, roll(&common, 2) ? stream : other);
        const uint64_t what = roll(&own, 10);
        if (what == 0) OK(cudaStreamSynchronize(stream));
        if (what == 1) OK(cudaStreamSynchronize(other));
    }
    OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < all.size(); i++) finish(all[i].shape, all[i].buffers, i);
    OK(ncclCommDestroy(comm));
}

__global__ static void add_kernel(float *y, const float *x, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] += x[i];
}

// Calls of a group go out together, at its end; groups nest.
static void groups() {
    const Shape shapes[] = {{REDUCE, 0, 1001, true}, {ALL_GATHER, 0, 333, false},
                            {REDUCE_SCATTER, 0, 70001, false}};
    Buffers<float> b[3];
    join();
    for (unsigned k = 0; k < 3; k++) b[k] = make_buffers<float>(shapes[k], k);
    OK(ncclGroupStart());
    start(shapes[0], b[0], stream);
    OK(ncclGroupStart());
    start(shapes[1], b[1], other);
    OK(ncclGroupEnd());
    OK(cudaStreamSynchronize(stream));
#ifdef __CUDA_EMU__
    RIGHT(host_array(b[0].out, 1)[0] == number<float>(rank_, 0, 0), "the group has not ended");
#endif
    start(shapes[2], b[2], stream);
    OK(ncclGroupEnd());
    OK(cudaDeviceSynchronize());
    for (unsigned k = 0; k < 3; k++) finish(shapes[k], b[k], k);
    OK(ncclCommDestroy(comm));
}

#define REFUSED(call, code)                                                       \
    do {                                                                          \
        const ncclResult_t got_ = (call);                                         \
        RIGHT(got_ == (code), "%s: %s", ncclGetErrorString(got_), ncclGetLastError(comm)); \
    } while (0)

static void refusals() {
    float *a = device_array(std::vector<float>(64)), *b = device_array(std::vector<float>(64));
    join();
    const ncclResult_t bad = ncclInvalidArgument;
    REFUSED(ncclAllGather(a, b, 16, ncclFloat32, NULL, stream), bad);
    REFUSED(ncclAllGather(a, b, 16, (ncclDataType_t)77, comm, stream), bad);
    REFUSED(ncclBroadcast(a, b, 64, ncclFloat32, ranks_, comm, stream), bad);
    REFUSED(ncclReduce(a, b, 64, ncclFloat32, ncclSum, -1, comm, stream), bad);
    REFUSED(ncclGetUniqueId(NULL), bad);
    REFUSED(ncclGroupEnd(), ncclInvalidUsage);
    RIGHT(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0, "%s",
          ncclGetErrorString(ncclSuccess));
    RIGHT(strstr(ncclGetErrorString(ncclInvalidArgument), "invalid argument") != NULL, "%s",
          ncclGetErrorString(ncclInvalidArgument));
#ifdef __CUDA_EMU__
    // Stricter than the real library, which looks at pointers only if it is asked to.
    float host[64], *pinned;
    OK(cudaMallocHost(&pinned, sizeof host));
    REFUSED(ncclReduceScatter(NULL, b, 1, ncclFloat32, ncclSum, comm, stream), bad);
    REFUSED(ncclReduceScatter(a, NULL, 1, ncclFloat32, ncclSum, comm, stream), bad);
    REFUSED(ncclReduceScatter(host, b, 1, ncclFloat32, ncclSum, comm, stream), bad);
    RIGHT(strstr(ncclGetLastError(comm), "ncclReduceScatter: the send buffer") != NULL, "%s",
          ncclGetLastError(comm));
    REFUSED(ncclAllGather(pinned, b, 1, ncclFloat32, comm, stream), bad);
    REFUSED(ncclReduceScatter(a, host, 1, ncclFloat32, ncclSum, comm, stream), bad);
    REFUSED(ncclReduceScatter(a, b, 1, ncclUint8, ncclSum, comm, stream), bad);
    OK(ncclReduceScatter(NULL, NULL, 0, ncclFloat32, ncclSum, comm, stream));
    OK(ncclBroadcast(rank_ == 0 ? a : NULL, b, 64, ncclFloat32, 0, comm, stream));
    OK(ncclReduce(a, rank_ == 0 ? b : NULL, 64, ncclFloat32, ncclSum, 0, comm, stream));
    // One bad call, and the group does nothing.
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemset(b, 0, 64 * sizeof(float)));
    OK(cudaDeviceSynchronize());
    OK(ncclGroupStart());
    OK(ncclReduceScatter(a, b, 1, ncclFloat32, ncclSum, comm, stream));
    REFUSED(ncclReduceScatter(host, b, 1, ncclFloat32, ncclSum, comm, stream), bad);
    REFUSED(ncclGroupEnd(), bad);
    OK(ncclGroupStart());
    OK(ncclGroupEnd());
    // Ids and places
    ncclComm_t none;
    ncclUniqueId id = {}, fresh;
    REFUSED(ncclCommInitRank(&none, 1, id, 0), bad);
    OK(ncclGetUniqueId(&fresh));
    REFUSED(ncclCommInitRank(&none, 0, fresh, 0), bad);
    REFUSED(ncclCommInitRank(&none, 2, fresh, 2), bad);
    REFUSED(ncclCommInitRank(NULL, 1, fresh, 0), bad);
    OK(ncclCommInitRank(&none, 1, fresh, 0));   // a second communicator, of this rank alone
    OK(ncclReduceScatter(a, b, 64, ncclFloat32, ncclSum, none, stream));
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommDestroy(none));
    REFUSED(ncclReduceScatter(a, b, 64, ncclFloat32, ncclSum, none, stream), bad);
    REFUSED(ncclCommDestroy(none), bad);
    REFUSED(ncclCommDestroy(NULL), bad);
#endif
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommDestroy(comm));
}

#ifdef __CUDA_EMU__
// ---------------------------------------------------------------------------------------------
// Ranks with mistakes and misfortunes. TEST_ARGUMENT says which one; rank 1 has it.

static float *buffer(size_t n) { return device_array(std::vector<float>(n, 1)); }

// A sum in place, for rank 0.
static void add_up(float *x, size_t n, cudaStream_t on, ncclDataType_t type = ncclFloat32) {
    OK(ncclReduce(x, x, n, type, ncclSum, 0, comm, on));
}

static void mismatch() {
    const std::string what = rank_ == 1 ? argument() : "";
    float *a = buffer(1000), *b = buffer(1000), *c = buffer(1000), *d = buffer(4000);
    join();
    add_up(a, 10, stream);
    OK(cudaStreamSynchronize(stream));
    if (what == "order") OK(ncclAllGather(c, d, 100, ncclFloat32, comm, other));
    add_up(a, what == "count" ? 99 : 100, stream, what == "type" ? ncclBfloat16 : ncclFloat32);
    if (what != "order") OK(ncclAllGather(c, d, 100, ncclFloat32, comm, other));
    OK(ncclBroadcast(a, a, 50, ncclFloat32, what == "root" ? 1 : 0, comm, stream));
    if (what != "missing") OK(ncclReduce(a, b, 60, ncclFloat32, ncclSum, 0, comm, stream));
    OK(cudaDeviceSynchronize());
    OK(ncclCommDestroy(comm));
}

// The other ranks are in the second collective, or will soon be.
static void peer_is_lost() {
    const std::string what_all = argument(), what = rank_ == 1 ? what_all : "";
    float *a = buffer(1000);
    if (what == "never") exit(0);
    if (what == "killed_early") raise(SIGKILL);
    join();
    add_up(a, 1000, stream);
    if (what != "lazy") OK(cudaStreamSynchronize(stream));
    if (what == "killed") usleep(300000), raise(SIGKILL);
    if (what == "exits" || what == "lazy") exit(0);
    if (what == "at_once") _exit(0);
    if (what == "leaves") OK(ncclCommDestroy(comm)), sleep(5), exit(0);
    if (what == "sleeps") sleep(6), exit(0);
    if (what == "any_time") {
        const struct itimerval soon = {{0, 0}, {0, 20000 + (int)(getpid() * 7919 % 200000)}};
        setitimer(ITIMER_REAL, &soon, NULL);    // nobody handles SIGALRM
    }
    float *b = buffer(what_all == "any_time" ? 400000 : 1);
    for (int i = 0; i < 10000 && what_all == "any_time"; i++) {
        add_up(b, 400000, other);
        OK(cudaStreamSynchronize(other));
    }
    add_up(a, 1000, stream);
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommDestroy(comm));
}

static ncclUniqueId shared_id;

static void *join_as_rank_1(void *) {
    const ncclResult_t result = ncclCommInitRank(&comm, 2, shared_id, 1);
    printf("refused: %s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
    exit(6);
}

static void wrong_places() {
    const std::string what = argument();
    pthread_t thread;
    shared_id = common_id();
    if (what == "twice") rank_ = 0;
    if (what == "world" && rank_ == 1) ranks_ = 3;
    if (what == "threads" && rank_ == 1) return;
    if (what == "threads") OK(pthread_create(&thread, NULL, join_as_rank_1, NULL));
    const ncclResult_t result = ncclCommInitRank(&comm, ranks_, shared_id, rank_);
    if (result == ncclSuccess) return;
    printf("refused: %s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
    exit(6);
}

// Rank 1 has enqueued its part and waits for a word of rank 0, which waits for the collective. A
// GPU would need no host to come to it.
static void help_is_at_hand() {
    const int socket = atoi(getenv("TEST_SOCKET"));
    char word = 1;
    float *a = buffer(1000);
    cudaEvent_t summed;
    join();
    OK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
    add_up(a, 1000, stream);
    OK(cudaEventRecord(summed, stream));
    OK(cudaStreamWaitEvent(other, summed, 0));
    add_up(a, 1000, other);
    if (rank_ == 0) {
        OK(cudaStreamSynchronize(other));
        RIGHT(write(socket, &word, 1) == 1, "%s", strerror(errno));
    } else if (rank_ == 1) {
        RIGHT(read(socket, &word, 1) == 1, "%s", strerror(errno));
    }
    OK(cudaStreamSynchronize(other));
    const float sum = rank_ == 0 ? (float)(2 * ranks_ - 1) : 1, got = host_array(a, 1000)[999];
    RIGHT(got == sum, "%g, expected %g", got, sum);
    OK(ncclCommDestroy(comm));
}

// Rank r comes r milliseconds late. All begin with the last one and take what doc/emulator.md says,
// one after the other, on two streams. 1000000 bytes/s between ranks, 5 us for a collective,
// 1000 us for a kernel.
static void virtual_time() {
    const size_t n = 250 * (size_t)ranks_;
    float *a = buffer(n), *b = buffer(n), *c = buffer(n), *d = buffer(n);
    cudaEvent_t e[5];
    float ms;
    join();
    for (cudaEvent_t &x : e) OK(cudaEventCreate(&x));
    OK(cudaDeviceSynchronize());
    add_up(a, 1, stream);  // all are here
    OK(cudaEventRecord(e[0], stream));
    for (int r = 0; r < rank_; r++) add_kernel<<<1, 32, 0, stream>>>(a, b, 1);
    OK(ncclReduceScatter(a, b, n / (size_t)ranks_, ncclFloat32, ncclSum, comm, stream));
    OK(cudaEventRecord(e[1], stream));
    OK(ncclAllGather(c, d, n / (size_t)ranks_, ncclFloat32, comm, other));
    OK(cudaEventRecord(e[2], other));
    OK(ncclBroadcast(a, b, n, ncclFloat32, 0, comm, stream));
    OK(cudaEventRecord(e[3], stream));
    OK(ncclReduce(a, b, n, ncclFloat32, ncclSum, 0, comm, stream));
    OK(cudaEventRecord(e[4], stream));
    OK(cudaDeviceSynchronize());
    const double bytes = 1e-6 * (double)n * 4, ring = bytes * (ranks_ - 1) / ranks_;
    const double whole = ranks_ > 1 ? bytes : 0;
    const double want[] = {1e-3 * (ranks_ - 1) + ring + 5e-6, ring + 5e-6, whole + 5e-6,
                           whole + 5e-6};
    static const char *const names[] = {"reduce-scatter", "all-gather", "broadcast", "reduce"};
    for (int k = 0; k < 4; k++) {
        OK(cudaEventElapsedTime(&ms, e[k], e[k + 1]));
        RIGHT(ms > 1e3 * want[k] - 1e-4 && ms < 1e3 * want[k] + 1e-4, "%s: %.6f ms, expected %.6f",
              names[k], ms, 1e3 * want[k]);
    }
    OK(ncclCommDestroy(comm));
}
#endif

#define CASE(name) {#name, name}
static const struct { const char *name; void (*run)(); } cases[] = {
    CASE(every_collective), CASE(at_random_times), CASE(groups), CASE(refusals),
#ifdef __CUDA_EMU__
    CASE(mismatch), CASE(peer_is_lost), CASE(wrong_places), CASE(help_is_at_hand),
    CASE(virtual_time),
#endif
};

static int run_rank(const char *name, int rank, int ranks) {
    rank_ = rank, ranks_ = ranks;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int devices = 0;
    OK(cudaGetDeviceCount(&devices));
    OK(cudaSetDevice(rank % devices));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (const auto &c : cases)
        if (strcmp(c.name, name) == 0) {
            c.run();
            return wrong > 0 ? 3 : 0;
        }
    return 7;
}

// =============================================================================================
// The tests: they start ranks

struct Run {
    std::vector<pid_t> pids;
    std::vector<int> codes;     // exit codes; 128 + N for signal N, 1000 if it had to be stopped
    std::string text;           // what all of them printed
    double begin, seconds;      // when they were started, and how long the last one lived
    int out, file, sockets[2];  // what they print; what they share (see common_id)
};

// settings: "NAME=value NAME=value", in which @ is the rank.
static void set_environment(const char *settings, int rank) {
    std::string setting;
    for (const char *p = settings;; p++) {
        if (*p == '@') setting += std::to_string(rank);
        else if (*p != ' ' && *p != '\0') setting += *p;
        else {
            const size_t equal = setting.find('=');
            if (equal != std::string::npos)
                setenv(setting.substr(0, equal).c_str(), setting.c_str() + equal + 1, 1);
            setting.clear();
            if (*p == '\0') break;
        }
    }
}

static int fresh_file() {
    char path[] = "/tmp/test_nccl.XXXXXX";
    const int file = mkstemp(path);
    OK(file < 0);
    unlink(path);
    return file;
}

// err: where they say what is wrong, if not where they print
static Run begin_run(int ranks, const char *name, const std::string &settings = "", int err = -1) {
    Run r = {};
    r.out = fresh_file();
    r.file = fresh_file();
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, r.sockets));
    r.begin = seconds_now();
    for (int rank = 0; rank < ranks; rank++) {
        const pid_t pid = fork();
        OK(pid < 0);
        r.pids.push_back(pid);
        if (pid > 0) continue;
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(r.out, 1), dup2(err < 0 ? r.out : err, 2);
        setenv("TEST_FILE", std::to_string(r.file).c_str(), 1);
        setenv("TEST_SOCKET", std::to_string(r.sockets[rank == 0]).c_str(), 1);
        set_environment(settings.c_str(), rank);
        execl("/proc/self/exe", "test_nccl", "rank", name, std::to_string(rank).c_str(),
              std::to_string(ranks).c_str(), (char *)NULL);
        _exit(8);
    }
    return r;
}

static bool has_ended(pid_t pid) {  // and stays a zombie
    siginfo_t info = {};
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
}

// Waits until all have ended, but not longer than `limit` seconds from their start. Until then
// nobody is reaped: a zombie's peers have to notice that it is dead.
static Run end_run(Run r, double limit = 120) {
    for (size_t ended = 0; ended < r.pids.size() && seconds_now() - r.begin < limit;) {
        usleep(5000);
        ended = 0;
        for (pid_t pid : r.pids) ended += has_ended(pid);
    }
    r.seconds = seconds_now() - r.begin;
    for (pid_t pid : r.pids) {
        int status = 0;
        const bool late = !has_ended(pid);
        if (late) kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        r.codes.push_back(late ? 1000 : WIFEXITED(status) ? WEXITSTATUS(status)
                          : 128 + WTERMSIG(status));
    }
    char part[4096];
    lseek(r.out, 0, SEEK_SET);
    for (ssize_t n; (n = read(r.out, part, sizeof part)) > 0;) r.text.append(part, (size_t)n);
    close(r.out), close(r.file), close(r.sockets[0]), close(r.sockets[1]);
    return r;
}

static Run run(int ranks, const char *name, const std::string &settings = "", double limit = 120) {
    return end_run(begin_run(ranks, name, settings), limit);
}

// All ranks are right, and silent.
static void check_right(const Run &r, const char *what) {
    for (size_t i = 0; i < r.codes.size(); i++)
        CHECK(r.codes[i] == 0, "%s: rank %zu of %zu ended with %d", what, i, r.codes.size(),
              r.codes[i]);
    CHECK(r.text.empty(), "%s: %.3000s", what, r.text.c_str());
}

static int most_ranks() {
    int devices = 0;
#ifdef __CUDA_EMU__
    devices = 4;
#else
    if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
#endif
    return devices < 4 ? devices : 4;
}

// Numbers do not depend on ThreadSanitizer, which makes every start slow: there it is enough to run
// each case once or twice. (It is clang's.)
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define FEW_RUNS 1
#endif
#endif
#ifndef FEW_RUNS
#define FEW_RUNS 0
#endif

// Runs that go well: the case, its settings, on how many ranks (3, or fewer, if few runs).
static void what_is_right_is_so_on_all_ranks(void) {
    static const struct { const char *name, *settings; int from, to; } all[] = {
        {"every_collective", "", 1, 4}, {"groups", "", 1, 4}, {"refusals", "", 1, 4},
#ifdef __CUDA_EMU__
        {"help_is_at_hand", "EMU_SCHED=lazy", 2, 4}, {"help_is_at_hand", "EMU_SCHED=prio:0", 2, 4},
        {"help_is_at_hand", "EMU_CLOCK=virtual", 2, 4},
        {"virtual_time", "EMU_CLOCK=virtual EMU_NCCL_LINK=1000000 EMU_NCCL_US=5 EMU_KERNEL_US=1000",
         1, 4},
#endif
    };
    for (const auto &x : all)
        for (int ranks = x.from; ranks <= x.to && ranks <= most_ranks(); ranks++)
            if (!FEW_RUNS || ranks == 3)
                check_right(run(ranks, x.name, x.settings), x.name);
}

#ifdef __CUDA_EMU__
static const char *const SCHEDULES[] = {
    "EMU_SCHED=eager", "EMU_SCHED=lazy", "EMU_SCHED=prio:0", "EMU_SCHED=prio:1",
    "EMU_SCHED=prio:2@", "EMU_SCHED=random:1", "EMU_SCHED=random:2@", "EMU_CLOCK=virtual",
    "EMU_STRICT=1"};

static void ranks_at_random_times(void) {
    const int seeds = getenv("LONG") ? 30 : FEW_RUNS ? 1 : 3;
    for (int seed = 1; seed <= seeds; seed++)
        for (const char *schedule : SCHEDULES) {
            const std::string settings = "TEST_ARGUMENT=" + std::to_string(seed) + " " + schedule;
            check_right(run(2 + (seed - 1) % 3, "at_random_times", settings), settings.c_str());
        }
}

static size_t lines_with(const std::string &text, const char *what) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at++) n++;
    return n;
}

// No rank ends well but those in `well` (a bit each), one line is printed and says `what`.
static void check_stopped(const Run &r, unsigned well, const char *what, double most, int line) {
    for (size_t i = 0; i < r.codes.size(); i++)
        CHECK((r.codes[i] == 0) == ((well >> i & 1) != 0) && r.codes[i] < 1000,
              "line %d: rank %zu of %zu ended with %d", line, i, r.codes.size(), r.codes[i]);
    CHECK(lines_with(r.text, "\n") == 1 && lines_with(r.text, what) == 1,
          "line %d: expected one line with \"%s\", not: %s", line, what, r.text.c_str());
    CHECK(r.seconds < most, "line %d: %.1f s", line, r.seconds);
}
#define STOPPED(run, well, what, most) check_stopped(run, well, what, most, __LINE__)

static void mismatches_are_reported(void) {
    static const struct { const char *what, *says; unsigned well; } all[] = {
        {"count", "collective 1 is ncclReduce(count 100, float32, sum, root 0) on rank 0, but "
                  "ncclReduce(count 99, float32, sum, root 0) on rank 1", 0},
        {"type", "ncclReduce(count 100, bfloat16, sum, root 0) on rank 1", 0},
        {"order", "collective 1 is ncclReduce(count 100, float32, sum, root 0) on rank 0, but "
                  "ncclAllGather(count 100, float32) on rank 1", 0},
        {"root", "collective 3 is ncclBroadcast(count 50, float32, root 0) on rank 0, but "
                 "ncclBroadcast(count 50, float32, root 1) on rank 1", 0},
        {"missing", "in collective 4, ncclReduce(count 60, float32, sum, root 0), for rank 1 (", 2},
    };
    int ranks = 2;
    for (const char *schedule : {"EMU_SCHED=lazy", "EMU_SCHED=eager", "EMU_SCHED=prio:1"}) {
        const std::string set = std::string(schedule) + " TEST_ARGUMENT=";
        if (FEW_RUNS && ranks > 2) break;
        check_right(run(ranks, "mismatch", set + "nothing"), schedule);
        for (const auto &x : all)
            STOPPED(run(ranks, "mismatch", set + x.what, 60), x.well, x.says, 30);
        ranks++;
    }
}

// Whoever reports is held up by a full pipe: no other rank ends meanwhile, as its end may be that
// of all.
static void a_report_comes_before_any_end(void) {
    int held[2];
    OK(pipe2(held, O_CLOEXEC));
    const int room = fcntl(held[1], F_SETPIPE_SZ, 4096);
    std::string text((size_t)room, '.');
    OK(write(held[1], text.data(), text.size()) != room);
    Run r = begin_run(3, "mismatch", "TEST_ARGUMENT=count", held[1]);
    close(held[1]);
    usleep(2000000);
    for (size_t i = 0; i < r.pids.size(); i++) CHECK(!has_ended(r.pids[i]), "rank %zu", i);
    text.clear();
    char part[4096];
    for (ssize_t n; (n = read(held[0], part, sizeof part)) > 0;) text.append(part, (size_t)n);
    close(held[0]);
    CHECK(text.find("error between ranks: collective 1 is") < text.size(), "no report");
    r = end_run(r);
    for (size_t i = 0; i < r.codes.size(); i++)
        CHECK(r.codes[i] != 0 && r.codes[i] < 1000, "rank %zu ended with %d", i, r.codes[i]);
}

static void lost_peers_are_noticed(void) {
    static const struct { const char *what, *says; unsigned well; } all[] = {
        {"killed", "in collective 1, ncclReduce(count 1000, float32, sum, root 0), for rank 1 (",
         0},
        {"killed", ", which is gone", 0},
        {"any_time", "ncclReduce(count 400000, float32, sum, root 0), for rank 1 (process ", 0},
        {"exits", ", which has ended", 2},
        {"lazy", ", which has ended", 2},
        {"at_once", ", which is gone", 2},
        {"leaves", ", which has called ncclCommDestroy", 2},
        {"sleeps", " has waited in collective 1, ncclReduce(count 1000, float32, sum, root 0), for",
         2},
        {"never", " has waited in ncclCommInitRank, for rank 1 for ", 2},
        {"killed_early", " has waited in ncclCommInitRank, for rank 1 for ", 0},
    };
    for (int ranks = FEW_RUNS ? 3 : 2; ranks <= 3; ranks++) {
        std::vector<Run> runs;  // they sleep most of the time: all at once
        for (const auto &x : all)
            runs.push_back(begin_run(ranks, "peer_is_lost", std::string("TEST_ARGUMENT=") + x.what
                                     + (strstr(x.says, "waited") ? " EMU_PEER_SECONDS=3" : "")));
        for (size_t i = 0; i < runs.size(); i++)
            STOPPED(end_run(runs[i], 60), all[i].well, all[i].says, 40);
    }
}

static void places_are_taken_once(void) {
    Run r = run(2, "wrong_places", "TEST_ARGUMENT=twice EMU_PEER_SECONDS=2", 20);
    CHECK(r.codes[0] != 0 && r.codes[1] != 0, "%d %d", r.codes[0], r.codes[1]);
    CHECK(lines_with(r.text, "refused: invalid usage: rank 0: process ") == 1
          && lines_with(r.text, "has waited in ncclCommInitRank, for rank 1") == 1, "%s",
          r.text.c_str());
    STOPPED(run(2, "wrong_places", "TEST_ARGUMENT=world", 20), 0,
            "rank 0 is one of 2, but rank 1 is one of 3", 15);
    r = run(2, "wrong_places", "TEST_ARGUMENT=threads", 20);
    CHECK(r.codes[0] == 6 && lines_with(r.text, "every rank is a process") > 0, "%s",
          r.text.c_str());
}

#endif

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "rank") == 0)
        return run_rank(argv[2], atoi(argv[3]), atoi(argv[4]));
    if (most_ranks() == 0) {
        printf("skip test_nccl: no device\n");
        return 0;
    }
    RUN(what_is_right_is_so_on_all_ranks);
#ifdef __CUDA_EMU__
    RUN(ranks_at_random_times);
    RUN(mismatches_are_reported);
    RUN(a_report_comes_before_any_end);
    RUN(lost_peers_are_noticed);
    RUN(places_are_taken_once);
#endif
    return test_summary();
}
#endif
