// cuda_runtime_api.h: the part of the CUDA runtime that a trainer uses, with NVIDIA's names,
// numbers and errors. memory.cpp, stream.cpp and device.cpp implement it.
#ifndef EMU_CUDA_RUNTIME_API_H
#define EMU_CUDA_RUNTIME_API_H
#include <stddef.h>

#define CUDART_VERSION 12080

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorNotSupported = 801,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged,
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
};
enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

enum { cudaDeviceScheduleBlockingSync = 4 };
enum { cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
};
enum { cudaHostRegisterDefault = 0 };

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock;
    int maxThreadsPerMultiProcessor, maxThreadsDim[3], maxGridSize[3], regsPerBlock, l2CacheSize;
    int memoryBusWidth, asyncEngineCount, concurrentKernels, integrated, canMapHostMemory;
    int unifiedAddressing, managedMemory, pciBusID, pciDeviceID, pciDomainID;
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *);

namespace emu {
// Where in the sources an allocation or a copy was asked for; as a default argument it is the
// caller's line.
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};
cudaError_t allocate(void **p, size_t bytes, cudaMemoryType type, Site site);
cudaError_t set_function_attribute(const void *entry, cudaFuncAttribute attribute, int value);
}  // namespace emu

// Errors, devices
cudaError_t cudaGetLastError();
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest);
cudaError_t cudaDeviceSynchronize();

// Memory
cudaError_t cudaFree(void *p);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags,
                             emu::Site site = emu::Site::here());
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p);
// Not CUDA's: names an allocation in every report (only under #ifdef __CUDA_EMU__).
void emu_name_memory(const void *p, const char *name);

template <typename T>
static inline cudaError_t cudaMalloc(T **p, size_t bytes, emu::Site site = emu::Site::here()) {
    return emu::allocate((void **)p, bytes, cudaMemoryTypeDevice, site);
}
template <typename T>
static inline cudaError_t cudaMallocHost(T **p, size_t bytes, unsigned flags = 0,
                                         emu::Site site = emu::Site::here()) {
    (void)flags;
    return emu::allocate((void **)p, bytes, cudaMemoryTypeHost, site);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                       emu::Site site = emu::Site::here());
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr, emu::Site site = emu::Site::here());
cudaError_t cudaMemset(void *p, int value, size_t bytes, emu::Site site = emu::Site::here());
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream = nullptr,
                            emu::Site site = emu::Site::here());

// Streams and events
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data);
// Only of cuStreamWaitValue32 (cuda.h).
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result);
cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags = cudaEventDefault);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
// Not CUDA's (only under #ifdef __CUDA_EMU__): names a stream in every report.
void emu_name_stream(cudaStream_t stream, const char *name);
// For EMU_CLOCK=virtual. While a host function runs, in it or in a thread that works for it: it
// takes `seconds` longer. Otherwise: this host thread has computed for so long.
void emu_virtual_seconds(double seconds);
double emu_virtual_now();  // this host thread's time: moved by that, and by waiting
// Not CUDA's: waits, in a host thread, until a word has come to `value`, as cuStreamWaitValue32
// does. The thread is like one more stream then: it goes on when EMU_SCHED chooses it, and nothing
// else runs until it waits again, or ends. In a host function: lets such threads go on until then.
void emu_wait_value(const unsigned *word, unsigned value);

template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute,
                                               int value) {
    return emu::set_function_attribute((const void *)kernel, attribute, value);
}

#endif
