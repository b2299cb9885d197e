// test_gpt2cu.cu: test_gpt2.c's comparison with the reference, for the GPU trainer in fp32.
#define STORAGE float
#include "../../test_gpt2.c"
