// main.cu: one program of three. train_gpt2.cu is compiled once for each type of parameters (floatX
// of gpu.cuh), each time with a main() of another name; --precision says which main() runs.
#include "../run/open.h"

int main_BF16(int argc, char **argv);
int main_FP32(int argc, char **argv);
int main_FP16(int argc, char **argv);

int main(int argc, char **argv) {
    program_begin();
    cpu_wait_briefly(argv);
    switch (run_precision(argc, argv)) {
    case PRECISION_FP32: return main_FP32(argc, argv);
    case PRECISION_FP16: return main_FP16(argc, argv);
    default: return main_BF16(argc, argv);
    }
}
