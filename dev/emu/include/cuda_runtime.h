// cuda_runtime.h: as in CUDA, the language and the runtime. emucc includes it first, as nvcc does.
#include "cuda_emu.h"
#include "cuda_runtime_api.h"
#include "emu_launch.h"
