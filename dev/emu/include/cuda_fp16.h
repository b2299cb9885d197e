// cuda_fp16.h: half precision, with CUDA's names.
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H
#include "emu_half.h"

EMU_HALF_TYPE(__half, emu::f16_to_f32, emu::f32_to_f16)
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }

#endif
