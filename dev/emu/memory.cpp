// memory.cpp: device and pinned memory. Every allocation has mappings of its own:
//
//     [1 MiB guard] [canary, data, canary: whole pages] [1 MiB guard]
//
// with the end of the data as close to the guard as an alignment of 256 bytes allows. Guards fault;
// canaries are compared after every operation, at every synchronisation and at exit. New memory is
// poison (NaN); freed memory faults for ever. While host code runs, device memory faults too.
//
// With AddressSanitizer, its own red zones do this.
#include "internal.h"
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <vector>

namespace emu {

const size_t GUARD = (size_t)1024 * KiB, DATA_ALIGN = 256;

// By address. A freed one stays, so that its use can be named.
static std::map<uintptr_t, Allocation> allocations;
static std::vector<Allocation *> live;  // that have canaries
static size_t bytes_in_use;             // of device memory
static size_t bytes_pinned;             // of page-locked memory
static int open_count;                  // > 0: operations run, device memory is accessible

static const char *type_name(const Allocation *a) {
    return a->type == cudaMemoryTypeHost ? "pinned host" : "device";
}

void describe_allocation(char *text, size_t size, const Allocation *a) {
    snprintf(text, size, "%s%s%s memory of %zu bytes, %s at %s:%d",
             a->name ? a->name : "", a->name ? ", " : "", type_name(a), a->bytes,
             a->registered ? "registered" : "allocated", a->site.file, a->site.line);
}

const Allocation *find_allocation(const void *p) {
    auto it = allocations.upper_bound((uintptr_t)p);
    if (it == allocations.begin()) return nullptr;
    const Allocation *a = &(--it)->second;
    const size_t offset = (size_t)((const char *)p - a->data);
    return offset < a->bytes || offset == 0 ? a : nullptr;
}

// ---------------------------------------------------------------------------------------------
// Canaries

// 16 bits that are a NaN as bf16 and fp16, and twice as fp32: reading past the end shows, too. Not
// all ones, as a program may well write -1 there.
const uint16_t CANARY = 0xfffe;

void lay_canary(char *p, char *end) {
    for (; p < end; p++) *p = (char)(CANARY >> ((uintptr_t)p & 1) * 8);
}

const char *find_damage(const char *p, const char *end) {
    const uint64_t word = 0x0001000100010001ull * CANARY;
    for (; p < end; p++) {
        uint64_t x = 0;
        while ((uintptr_t)p % 8 == 0 && end - p >= 8) {  // most of it, by words
            memcpy(&x, p, 8);
            if (x != word) break;
            p += 8;
        }
        if (p < end && *p != (char)(CANARY >> ((uintptr_t)p & 1) * 8)) return p;
    }
    return nullptr;
}

static char *body(const Allocation *a) { return a->map + GUARD; }
static char *body_end(const Allocation *a) { return a->map + a->map_bytes - GUARD; }

[[noreturn]] static void report_overrun(const Allocation *a, const char *p, const char *after) {
    char text[512];
    describe_allocation(text, sizeof text, a);
    report_header();
    if (p < a->data)
        fprintf(stderr, "write %zu bytes before the start of", (size_t)(a->data - p));
    else
        fprintf(stderr, "write past the end, at offset %zu of", (size_t)(p - a->data));
    fprintf(stderr, "\n    %s\n", text);
    fprintf(stderr, "    noticed after: %s\n", after);
    die_after_report();
}

// reach: how far from the data to look.
static void check_canary(const Allocation *a, size_t reach, const char *after) {
    const char *end = a->data + a->bytes;
    const size_t below = (size_t)(a->data - body(a)), above = (size_t)(body_end(a) - end);
    const char *bad = find_damage(end, end + std::min(reach, above));
    if (bad == nullptr) bad = find_damage(a->data - std::min(reach, below), a->data);
    if (bad != nullptr) report_overrun(a, bad, after);
}

// After each operation only the closest bytes of up to 64 allocations, in turn.
void check_canaries(const char *after, bool every_byte) {
    static size_t next;
    const size_t n = every_byte ? live.size() : std::min<size_t>(live.size(), 64);
    for (size_t i = 0; i < n; i++) {
        if (next >= live.size()) next = 0;
        check_canary(live[next++], every_byte ? GUARD : 64, after);
    }
}

// ---------------------------------------------------------------------------------------------
// Device memory is closed while host code runs

// Closing and opening takes a system call for each allocation, so a program that waits very often
// gets it every time at first, and then every sixteenth time.
static bool closed = true;

static bool shall_close() {
    static unsigned times;
    times++;
    return times < 100 || times % 16 == 0;
}

static bool is_closable(const Allocation *a) {
    return options.protect && a->type == cudaMemoryTypeDevice && !a->freed;
}

static void set_access(const Allocation *a, bool open) {
    const int access = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (is_closable(a)) mprotect(body(a), (size_t)(body_end(a) - body(a)), access);
}

void open_device_memory(bool open) {
    open_count += open ? 1 : -1;
    if (!options.protect || open_count != (open ? 1 : 0)) return;
    if (open ? !closed : !shall_close()) return;
    closed = !open;
    for (const Allocation *a : live) set_access(a, open);
}

// ---------------------------------------------------------------------------------------------
// Allocating

// Address space, by large pieces: ThreadSanitizer keeps two mappings of its own for each of ours,
// and Linux allows 65530 of them. Null if there is none.
static char *reserve(size_t bytes) {
    static char *next;
    static size_t left;
    if (left < bytes) {
        const size_t piece = std::max(bytes, (size_t)4096 * KiB * KiB);
        void *p = mmap(nullptr, piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (p == MAP_FAILED) return nullptr;
        next = (char *)p, left = piece;
    }
    next += bytes, left -= bytes;
    return next - bytes;
}

static bool map_guarded(Allocation *a) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t span = (a->bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    const size_t pages = (span + page - 1) / page * page;
    a->map_bytes = pages + 2 * GUARD;
    a->map = reserve(a->map_bytes);
    if (a->map == nullptr) return false;
    if (mprotect(body(a), pages, PROT_READ | PROT_WRITE) != 0) return false;
    a->data = body_end(a) - span;
    lay_canary(body(a), a->data);
    lay_canary(a->data + a->bytes, body_end(a));
    return true;
}

bool take_device_memory(size_t bytes) {
    if (bytes > options.memory_bytes - bytes_in_use) return false;
    bytes_in_use += bytes;
    return true;
}

// Counts page-locked memory. Refuses more than the system locks, or the driver in one call.
static cudaError_t count_pinned(size_t bytes) {
    if (bytes > options.pinned_call || bytes > options.pinned_bytes - bytes_pinned)
        return set_error((cudaError_t)options.pinned_error);
    bytes_pinned += bytes;
    return cudaSuccess;
}

cudaError_t allocate(void **p, size_t bytes, cudaMemoryType type, Site site) {
    Lock lock("cudaMalloc");
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (type == cudaMemoryTypeDevice && bytes > options.memory_bytes - bytes_in_use)
        return set_error(cudaErrorMemoryAllocation);
    const cudaError_t locked = type == cudaMemoryTypeHost ? count_pinned(bytes) : cudaSuccess;
    if (locked != cudaSuccess) return locked;
    Allocation a = {nullptr, bytes, type, site, nullptr, nullptr, 0, false, false};
    if (has_asan()) {
        if (posix_memalign((void **)&a.data, DATA_ALIGN, bytes) != 0)
            return set_error(cudaErrorMemoryAllocation);
    } else if (!map_guarded(&a)) {
        return set_error(cudaErrorMemoryAllocation);
    }
    hidden_fill(a.data, POISON, bytes);
    if (type == cudaMemoryTypeDevice) bytes_in_use += bytes;
    Allocation *kept = &(allocations[(uintptr_t)a.data] = a);
    if (a.map != nullptr) live.push_back(kept);
    if (closed) set_access(kept, false);
    *p = a.data;
    return cudaSuccess;
}

static cudaError_t release(void *p, cudaMemoryType type, const char *who) {
    if (p == nullptr) return cudaSuccess;
    Lock lock(who);
    auto it = allocations.find((uintptr_t)p);
    if (it == allocations.end() || it->second.freed || it->second.type != type
        || it->second.registered)
        return set_error(cudaErrorInvalidValue);
    Allocation *a = &it->second;
    if (type == cudaMemoryTypeHost) refuse_while_used(a, who);
    synchronize_device();
    (type == cudaMemoryTypeDevice ? bytes_in_use : bytes_pinned) -= a->bytes;
    if (a->map == nullptr) {
        free(a->data);
        allocations.erase(it);
        return cudaSuccess;
    }
    live.erase(std::find(live.begin(), live.end(), a));
    set_access(a, true);
    check_canary(a, GUARD, who);
    a->freed = true;
    madvise(body(a), a->map_bytes - 2 * GUARD, MADV_DONTNEED);
    mprotect(body(a), a->map_bytes - 2 * GUARD, PROT_NONE);
    return cudaSuccess;
}

// At exit, so that an overrun is found even if nothing was freed or synchronised.
static struct AtExit {
    ~AtExit() {
        open_device_memory(true);
        check_canaries("the end of the program", true);
    }
} at_exit;

// ---------------------------------------------------------------------------------------------
// Checks of pointers

void check_pointer(const char *kernel, int index, const void *p) {
    if (p == nullptr) return;
    Lock lock(kernel);
    const Allocation *a = find_allocation(p);
    if (a == nullptr) a = find_allocation((const char *)p - 1);  // one past the end is valid too
    if (a != nullptr && !a->freed) return;
    report_header();
    fprintf(stderr, "kernel %s: argument %d (%p) is not a pointer to device or pinned memory\n",
            kernel, index, p);
    char text[512];
    if (a != nullptr) describe_allocation(text, sizeof text, a);
    if (a != nullptr) fprintf(stderr, "    it was freed: %s\n", text);
    else fprintf(stderr, "    it points into the host's own memory\n");
    die_after_report();
}

void touch(const void *p, size_t n, bool write, const char *who) {
    if (n == 0) return;
    const Allocation *a = find_allocation(p);
    if (a == nullptr) emu_fail("%s: %p is not device or pinned memory", who, p);
    const size_t offset = (size_t)((const char *)p - a->data);
    if (a->freed || n > a->bytes - offset) {
        char text[512];
        describe_allocation(text, sizeof text, a);
        emu_fail("%s: %zu bytes from offset %zu %s\n    %s", who, n, offset,
                 a->freed ? "of memory that was freed:" : "run past the end of", text);
    }
    if (has_tsan() && write) __tsan_write_range((void *)p, n);
    if (has_tsan() && !write) __tsan_read_range((void *)p, n);
    if (has_asan() && __asan_region_is_poisoned((void *)p, n) != nullptr)
        emu_fail("%s: touches poisoned memory", who);
}

// ---------------------------------------------------------------------------------------------
// Faults: says which memory it was, and then lets the signal do what it always does

static const Allocation *nearest(const char *p) {
    const Allocation *best = nullptr;
    size_t distance = (size_t)-1;
    for (const auto &entry : allocations) {
        const Allocation *a = &entry.second;
        const size_t d = p < a->data ? (size_t)(a->data - p)
                       : p < a->data + a->bytes ? 0 : (size_t)(p - a->data - a->bytes) + 1;
        if (d < distance) best = a, distance = d;
    }
    return distance <= (size_t)1 << 30 ? best : nullptr;
}

static void on_fault(int number, siginfo_t *info, void *) {
    if (info->si_code <= 0) {  // no access: a signal that somebody sent
        signal(number, SIG_DFL);
        raise(number);  // pending until this handler returns
        return;
    }
    const char *p = (const char *)info->si_addr;
    char thread[512], memory[512];
    describe_thread(thread, sizeof thread);
    fprintf(stderr, "emulated GPU: invalid access to address %p in %s\n", (const void *)p, thread);
    const Allocation *a = nearest(p);
    if (is_stack_overflow(p)) {
        fprintf(stderr, "    the stack of a CUDA thread overflowed: set EMU_STACK_KB (now %zu)\n",
                options.stack_bytes / KiB);
    } else if (a != nullptr) {
        describe_allocation(memory, sizeof memory, a);
        if (p >= a->data + a->bytes)
            fprintf(stderr, "    past the end, at offset %zu of ", (size_t)(p - a->data));
        else if (p < a->data)
            fprintf(stderr, "    %zu bytes before the start of ", (size_t)(a->data - p));
        else
            fprintf(stderr, "    %s at offset %zu of ", a->freed ? "use after free,"
                    : "host code touches device memory,", (size_t)(p - a->data));
        fprintf(stderr, "%s\n", memory);
    }
    signal(number, SIG_DFL);  // and the access is tried again
}

// Every host thread needs a stack for the handler: the one that overflowed is of no use.
void give_fault_stack() {
    stack_t alternate = {};
    alternate.ss_size = 64 * KiB;
    alternate.ss_sp = malloc(alternate.ss_size);
    if (alternate.ss_sp != nullptr) sigaltstack(&alternate, nullptr);
}

void catch_faults() {
    give_fault_stack();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace emu

// ---------------------------------------------------------------------------------------------
using namespace emu;

cudaError_t cudaFree(void *p) { return release(p, cudaMemoryTypeDevice, "cudaFree"); }
cudaError_t cudaFreeHost(void *p) { return release(p, cudaMemoryTypeHost, "cudaFreeHost"); }

// Copies from and to it are asynchronous from now on. No part of it may be registered already.
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned, Site site) {
    Lock lock("cudaHostRegister");
    if (p == nullptr || bytes == 0) return set_error(cudaErrorInvalidValue);
    auto next = allocations.lower_bound((uintptr_t)p);
    if (find_allocation(p) != nullptr
        || (next != allocations.end() && next->first < (uintptr_t)p + bytes))
        return set_error(cudaErrorHostMemoryAlreadyRegistered);
    const cudaError_t locked = count_pinned(bytes);
    if (locked != cudaSuccess) return locked;
    allocations[(uintptr_t)p] = {(char *)p, bytes, cudaMemoryTypeHost, site, nullptr, nullptr, 0,
                                 false, true};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p) {
    Lock lock("cudaHostUnregister");
    auto it = allocations.find((uintptr_t)p);
    if (it == allocations.end() || !it->second.registered)
        return set_error(cudaErrorHostMemoryNotRegistered);
    refuse_while_used(&it->second, "cudaHostUnregister");
    bytes_pinned -= it->second.bytes;
    allocations.erase(it);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *p) {
    Lock lock("cudaPointerGetAttributes");
    const Allocation *a = find_allocation(p);
    if (a == nullptr || a->freed)
        *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, (void *)p};
    else if (a->type == cudaMemoryTypeHost)
        *attributes = {a->type, 0, (void *)p, (void *)p};
    else
        *attributes = {a->type, 0, (void *)p, nullptr};
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    Lock lock("cudaMemGetInfo");
    *total = options.memory_bytes;
    *free = options.memory_bytes - bytes_in_use;
    return cudaSuccess;
}

void emu_name_memory(const void *p, const char *name) {
    Lock lock("emu_name_memory");
    auto it = allocations.find((uintptr_t)p);
    if (it != allocations.end()) it->second.name = strdup(name);
}
