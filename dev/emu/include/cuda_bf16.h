// cuda_bf16.h: the brain float, with CUDA's names.
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H
#include "emu_half.h"

EMU_HALF_TYPE(__nv_bfloat16, emu::bf16_to_f32, emu::f32_to_bf16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }

#endif
