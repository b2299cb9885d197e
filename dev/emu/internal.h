// internal.h: what the parts of the emulated GPU know of each other, and what the library calls
// (cublaslt.cpp) build on.
#ifndef EMU_INTERNAL_H
#define EMU_INTERNAL_H
#include "include/cuda_runtime.h"
#include "sanitizer.h"
#include <functional>
#include <memory>

// The caller's code address: ThreadSanitizer shows it as where an operation was enqueued.
#define EMU_PC __builtin_return_address(0)

namespace emu {

// For library calls. enqueue(): fn runs when `stream` comes to it; it may not call CUDA.
// touch(): inside fn, says that [p, p + n) will be read or written: fails if that is not device
// (or pinned) memory, and tells the sanitizers.
void enqueue(const char *name, cudaStream_t stream, std::function<void()> fn, const void *pc);
void touch(const void *p, size_t n, bool write, const char *who);

// One recording of an event, or the end of an operation. Waits refer to the recording that was the
// latest when they were enqueued, so no operation ever waits for a later one: streams cannot
// deadlock.
struct Recording {
    CUstream_st *stream;
    bool done;
    double time;
    char token;  // what ThreadSanitizer's acquire and release refer to: an address
};

// enqueue_in_turn(): as enqueue(), and not before the operation that was last enqueued with the
// same `turn` is done, in whatever stream that is. This order is the emulator's own: it is none
// that ThreadSanitizer gets to know.
void enqueue_in_turn(const char *name, cudaStream_t stream, std::function<void()> fn,
                     std::shared_ptr<Recording> *turn, const void *pc);

// When the operation that runs now began on the virtual clock, and what it takes. fn may change it.
struct Period { double begin, seconds; };
extern Period running;

// --- device.cpp: settings from the environment (README.md), errors

struct Options {
    enum { EAGER, LAZY, PRIORITY, RANDOM, EARLIEST } schedule;
    enum { FORWARD, REVERSE, SHUFFLED } order;
    uint64_t seed;
    bool strict, protect, racecheck, virtual_clock, wait_value;
    int trace, threads, multiprocessors, capability, devices;
    size_t stack_bytes, memory_bytes;
    size_t pinned_bytes, pinned_call;           // page-locked memory: of all, and of a call, at most
    int pinned_error;                           // of a call for more
    size_t nccl_bytes;                          // that a kind of collective takes for good
    double link, kernel_seconds, host_seconds;  // virtual clock: bytes/s; of one kernel, function
    double nccl_link, nccl_seconds;             // and between ranks: bytes/s; of a collective
    double peer_seconds;                        // how long one waits for a peer that lives
};
extern Options options;

enum { KiB = 1024, SHARED_DEFAULT = 48 * KiB };
size_t shared_opt_in();                          // of this device, in bytes
size_t dynamic_shared_limit(const void *entry);  // of this kernel, in bytes
cudaError_t set_error(cudaError_t e);            // e, remembered for cudaGetLastError()
uint64_t next_random(uint64_t *state);           // xorshift64*
double seconds_now();

// The start of every report: "emulated GPU: error in KERNEL, block (..), thread (..): ".
void report_header();
[[noreturn]] void die_after_report();

// The lock around everything that host threads share. It is not a mutex, which ThreadSanitizer
// would take for an ordering that the program itself does not have.
void lock_runtime(const char *who);  // fails inside an operation: CUDA calls are not allowed there
void unlock_runtime();
bool try_lock_runtime();
extern char thread_token;  // what host threads release in their first call: that they started
struct Lock {
    explicit Lock(const char *who) { lock_runtime(who); }
    ~Lock() { unlock_runtime(); }
    Lock(const Lock &) = delete;
};

// --- block.cpp: kernels

void run_grid(const Launch &l, int pool);         // every block; returns when all are done
void describe_thread(char *text, size_t size);    // "kernel K, block (..), thread (..)"
bool is_stack_overflow(const void *p);

// --- memory.cpp, called with the lock held

struct Allocation {
    char *data;
    size_t bytes;
    cudaMemoryType type;
    Site site;
    const char *name;
    char *map;  // with its guard pages; null if the memory is not the emulator's own
    size_t map_bytes;
    bool freed, registered;  // registered: the program's own, page-locked later
};
const Allocation *find_allocation(const void *p);  // that holds this byte, or starts at it
bool take_device_memory(size_t bytes);             // for good: buffers of a library
void describe_allocation(char *text, size_t size, const Allocation *a);
void open_device_memory(bool open);                // while operations run; calls nest
void check_canaries(const char *after, bool every_byte);

const unsigned char POISON = 0xff;  // all ones is a NaN in fp32, bf16 and fp16
void lay_canary(char *p, char *end);
const char *find_damage(const char *p, const char *end);  // the first byte changed, or null
void catch_faults();
void give_fault_stack();

// --- stream.cpp

// With the lock held.
void synchronize_device();  // until every stream is empty
// Until reached(); those first that `wanted` needs.
void run_operations(const std::function<bool()> &reached, cudaStream_t wanted);
void refuse_while_used(const Allocation *a, const char *who);  // if something queued uses it

}  // namespace emu
#endif
