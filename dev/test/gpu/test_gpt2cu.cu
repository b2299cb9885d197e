// test_gpt2cu.cu: test_gpt2.c's comparison with the reference, for the GPU trainer.
#define ON_GPU
#include "../../../test_gpt2.c"
