// device.cpp: settings from the environment, errors, what a launch may ask for, device properties.
#include "internal.h"
#include "../../tide/cpu/cpu.h"
#include <stdarg.h>
#include <unistd.h>
#include <atomic>
#include <map>

namespace emu {

Options options;

static size_t setting(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    char *end = nullptr;
    if (text == nullptr || *text == '\0') return otherwise;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\0') emu_fail("%s=%s: expected a number", name, text);
    return (size_t)value;
}

static void read_schedule() {
    const char *text = getenv("EMU_SCHED");
    options.schedule = options.virtual_clock ? Options::EARLIEST
                     : has_tsan() ? Options::EAGER : Options::LAZY;
    options.seed = 1;
    if (text == nullptr || *text == '\0') return;
    const char *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    const auto is = [text, n](const char *s) { return strlen(s) == n && !strncmp(text, s, n); };
    if (is("eager")) options.schedule = Options::EAGER;
    else if (is("lazy")) options.schedule = Options::LAZY;
    else if (is("prio")) options.schedule = Options::PRIORITY;
    else if (is("random")) options.schedule = Options::RANDOM;
    else if (is("earliest") && options.virtual_clock) options.schedule = Options::EARLIEST;
    else emu_fail("EMU_SCHED=%s: expected eager, lazy, prio:N, random:N, or earliest (which needs "
                  "EMU_CLOCK=virtual)", text);
    if (colon != nullptr) options.seed = strtoull(colon + 1, nullptr, 10);
}

static void read_clock() {
    const char *text = getenv("EMU_CLOCK");
    options.virtual_clock = text != nullptr && !strcmp(text, "virtual");
    if (text != nullptr && *text != '\0' && strcmp(text, "real") && !options.virtual_clock)
        emu_fail("EMU_CLOCK=%s: expected real or virtual", text);
    options.link = (double)setting("EMU_LINK", 1000000000);
    options.kernel_seconds = 1e-6 * (double)setting("EMU_KERNEL_US", 10);
    options.host_seconds = 1e-6 * (double)setting("EMU_HOST_US", 10);
    options.nccl_link = (double)setting("EMU_NCCL_LINK", 1000000000);
    options.nccl_seconds = 1e-6 * (double)setting("EMU_NCCL_US", 10);
    if (options.link == 0) emu_fail("EMU_LINK=0: expected bytes per second");
    if (options.nccl_link == 0) emu_fail("EMU_NCCL_LINK=0: expected bytes per second");
}

static void read_order() {
    const char *text = getenv("EMU_ORDER");
    if (text == nullptr || *text == '\0' || !strcmp(text, "forward"))
        options.order = Options::FORWARD;
    else if (!strcmp(text, "reverse")) options.order = Options::REVERSE;
    else if (!strcmp(text, "random")) options.order = Options::SHUFFLED;
    else emu_fail("EMU_ORDER=%s: expected forward, reverse or random", text);
}

// Before any other constructor: a program may use the GPU from its own.
__attribute__((constructor(101))) static void read_options(int, char **argv) {
#ifdef __GLIBC__  // which passes them
    cpu_wait_briefly(argv);
#endif
    (void)argv;
    const bool sanitizer = has_asan() || has_tsan();
    read_clock();
    read_schedule();
    read_order();
    options.strict = setting("EMU_STRICT", 0) != 0;
    // Worth its cost where the host waits now and then, not after every operation.
    const bool rare = options.schedule != Options::EAGER && options.schedule != Options::RANDOM;
    options.protect = setting("EMU_PROTECT", rare) != 0 && !sanitizer;
    options.racecheck = setting("EMU_RACECHECK", 0) != 0;
    if (options.racecheck && !has_tsan())
        emu_fail("EMU_RACECHECK needs a ThreadSanitizer build");
    options.wait_value = setting("EMU_WAIT_VALUE", 1) != 0;
    options.trace = (int)setting("EMU_TRACE", 0);
    // Chosen orders are there to be repeated, so they use one host thread.
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const bool one = getenv("EMU_ORDER") != nullptr || cores < 1;
    options.threads = (int)setting("EMU_THREADS", one ? 1 : (size_t)cores);
    if (has_tsan() || options.threads < 1) options.threads = 1;
    options.multiprocessors = (int)setting("EMU_SMS", 4);
    options.capability = (int)setting("EMU_CC", 90);
    options.devices = (int)setting("EMU_DEVICES", 1);
    options.stack_bytes = setting("EMU_STACK_KB", sanitizer ? 256 : 64) * KiB;
    options.memory_bytes = setting("EMU_MEM_MB", 16384) * KiB * KiB;
    options.pinned_bytes = setting("EMU_PIN_MB", SIZE_MAX / KiB / KiB) * KiB * KiB;
    options.pinned_call = setting("EMU_PIN_CALL_KB", SIZE_MAX / KiB) * KiB;
    options.pinned_error = (int)setting("EMU_PIN_ERROR", cudaErrorMemoryAllocation);
    options.nccl_bytes = setting("EMU_NCCL_MB", 0) * KiB * KiB;
    options.peer_seconds = (double)setting("EMU_PEER_SECONDS", 600);
    if (!has_asan()) catch_faults();
}

double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    return x * 0x2545f4914f6cdd1dull >> 11;
}

// ---------------------------------------------------------------------------------------------
// Errors and the lock

void report_header() {
    char text[512];
    fflush(stdout);
    describe_thread(text, sizeof text);
    fprintf(stderr, "emulated GPU: error in %s: ", text);
}

void die_after_report() {
    fflush(stderr);
    abort();
}

static thread_local cudaError_t last_error;

cudaError_t set_error(cudaError_t e) {
    if (e != cudaSuccess) last_error = e;
    return e;
}

extern thread_local bool in_operation;
static std::atomic_flag locked = ATOMIC_FLAG_INIT;

char thread_token;

// Streams will run here, on this thread's own variables.
static void introduce_thread() {
    static thread_local bool known;
    if (has_tsan() && !known) __tsan_release(&thread_token);
    known = true;
}

bool try_lock_runtime() {
    introduce_thread();
    return !locked.test_and_set(std::memory_order_acquire);
}

void lock_runtime(const char *who) {
    introduce_thread();
    if (in_operation)
        emu_fail("%s in a kernel or a host function, where CUDA may not be called", who);
    for (int tries = 0; locked.test_and_set(std::memory_order_acquire); tries++)
        if (tries > 100) usleep(20);
}

void unlock_runtime() { locked.clear(std::memory_order_release); }

// ---------------------------------------------------------------------------------------------
// Launches: what a GPU refuses, with its error

static std::map<const void *, size_t> *dynamic_limits;  // kernels that asked for more than 48 KiB

size_t dynamic_shared_limit(const void *entry) {
    if (dynamic_limits == nullptr) return SHARED_DEFAULT;
    const auto it = dynamic_limits->find(entry);
    return it == dynamic_limits->end() ? +SHARED_DEFAULT : it->second;
}

// Shared memory that a block may ask for (CUDA C++ Programming Guide, compute capabilities).
size_t shared_opt_in() {
    const int cc = options.capability;
    return (cc == 80 || cc == 87 ? 163 : cc < 90 || cc >= 120 ? 99 : 227) * KiB;
}

cudaError_t set_function_attribute(const void *entry, cudaFuncAttribute attribute, int value) {
    Lock lock("cudaFuncSetAttribute");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0
        || (size_t)value > shared_opt_in())
        return set_error(cudaErrorInvalidValue);
    if (dynamic_limits == nullptr) dynamic_limits = new std::map<const void *, size_t>();
    (*dynamic_limits)[entry] = (size_t)value;
    return cudaSuccess;
}

static cudaError_t launch_error(const Launch &l) {
    const dim3 g = l.config.grid, b = l.config.block;
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;
    // the error is that of CUDA 13.0 on an H200
    if (g.x == 0 || g.y == 0 || g.z == 0 || threads == 0) return cudaErrorInvalidValue;
    if (g.x > 0x7fffffff || g.y > 65535 || g.z > 65535) return cudaErrorInvalidValue;
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || threads > 1024) return cudaErrorInvalidValue;
    if (threads > (uint64_t)l.max_threads) return cudaErrorInvalidValue;
    Lock lock(l.kernel);
    return l.config.shared > dynamic_shared_limit(l.entry) ? cudaErrorInvalidValue : cudaSuccess;
}

bool launch_allowed(const Launch &l) {
    const cudaError_t e = set_error(launch_error(l));
    const dim3 g = l.config.grid, b = l.config.block;
    if (e != cudaSuccess && options.strict)
        fprintf(stderr, "emulated GPU: note: %s for kernel %s, grid (%u,%u,%u), block (%u,%u,%u), "
                "%zu bytes of shared memory\n", cudaGetErrorName(e), l.kernel, g.x, g.y, g.z, b.x,
                b.y, b.z, l.config.shared);
    return e == cudaSuccess;
}

}  // namespace emu

using namespace emu;

void emu_fail(const char *format, ...) {
    va_list args;
    report_header();
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    die_after_report();
}

cudaError_t cudaGetLastError() {
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

static const struct { cudaError_t e; const char *name, *text; } ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};
const char *cudaGetErrorName(cudaError_t e) {
    for (const auto &known : ERRORS)
        if (known.e == e) return known.name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t e) {
    for (const auto &known : ERRORS)
        if (known.e == e) return known.text;
    return "unrecognized error code";
}

// ---------------------------------------------------------------------------------------------
// Devices. Ranks of a distributed run are processes, so a process uses one; it may have any number.

static thread_local int current_device;

cudaError_t cudaGetDeviceCount(int *count) {
    *count = options.devices;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= options.devices) return set_error(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device < 0 || device >= options.devices) return set_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    p->totalGlobalMem = options.memory_bytes;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->sharedMemPerBlockOptin = shared_opt_in();
    p->sharedMemPerMultiprocessor = shared_opt_in() + KiB;
    p->major = options.capability / 10;
    p->minor = options.capability % 10;
    p->multiProcessorCount = options.multiprocessors;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->regsPerBlock = 65536;
    p->l2CacheSize = 50 * KiB * KiB;
    p->asyncEngineCount = 2;
    p->concurrentKernels = p->canMapHostMemory = p->unifiedAddressing = 1;
    p->pciBusID = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    const cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess) return e;
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)shared_opt_in(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)(shared_opt_in() + KiB); break;
    default: return set_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
