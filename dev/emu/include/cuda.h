// cuda.h: of the driver's interface only what the runtime's lacks, a stream that waits for a word.
#ifndef CUDA_H
#define CUDA_H
#include "cuda_runtime_api.h"

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NOT_SUPPORTED = 801 };
typedef unsigned long long CUdeviceptr;
typedef cudaStream_t CUstream;
typedef unsigned cuuint32_t;
enum { CU_STREAM_WAIT_VALUE_GEQ = 0 };

// The stream goes on when the word at this address of page-locked memory has come to `value`, by a
// comparison that wraps: (int)(word - value) >= 0. EMU_WAIT_VALUE=0: not supported.
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags);
#endif
