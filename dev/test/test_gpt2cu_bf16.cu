// test_gpt2cu_bf16.cu: test_gpt2.c's comparison with the reference, for the GPU trainer in bf16.
#define STORAGE bf16
#include "../../test_gpt2.c"
