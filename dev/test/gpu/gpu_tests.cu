// gpu_tests.cu: all tests of the GPU sources in one program for each precision, so that the
// trainer, which takes longer to compile than any of them, is compiled once. Each is a namespace
// here, and runs if the program is called by its name: build/emu/test_model is a link to
// build/emu/gpu_tests, build/emu/test_model_fp32 to gpu_tests_fp32. What the precision does not
// change is in the first.
#include "model_harness.cuh"
#include "runs.cuh"
#include "tensors.cuh"
#include "cpu_reference.h"
#include "../zo_feed.h"
#include "../files.h"
#include <pthread.h>

namespace test_zo_gpu {
#include "test_zo_gpu.cu"
}
namespace test_model {
#include "test_model.cu"
}
namespace test_placement {
#include "test_placement.cu"
}
namespace test_zenflow_gpu {
#include "test_zenflow_gpu.cu"
}
namespace test_zero_gpu {
#include "test_zero_gpu.cu"
}
#ifndef ENABLE_FP16
namespace test_gpt2cu {
#include "test_gpt2cu.cu"
}
namespace test_plan {
#include "test_plan.cu"
}
#ifndef ENABLE_FP32
namespace test_attention {
#include "test_attention.cu"
}
namespace test_calibrate {
#include "test_calibrate.cu"
}
namespace test_columns_gpu {
#include "test_columns_gpu.cu"
}
namespace test_host {
#include "test_host.cu"
}
namespace test_kernels {
#include "test_kernels.cu"
}
namespace test_matmul_gpu {
#include "test_matmul_gpu.cu"
}
namespace test_timeline {
#include "test_timeline.cu"
}
#endif
#endif

int main(int argc, char **argv) {
    static const struct { const char *name; int (*main)(int, char **); } tests[] = {
        {"test_zo_gpu", test_zo_gpu::main},
        {"test_model", test_model::main},
        {"test_placement", test_placement::main},
        {"test_zenflow_gpu", test_zenflow_gpu::main},
        {"test_zero_gpu", test_zero_gpu::main},
#ifndef ENABLE_FP16
        {"test_gpt2cu", [](int, char **) { return test_gpt2cu::main(); }},
        {"test_plan", test_plan::main},
#ifndef ENABLE_FP32
        {"test_attention", [](int, char **) { return test_attention::main(); }},
        {"test_calibrate", test_calibrate::main},
        {"test_columns_gpu", [](int, char **) { return test_columns_gpu::main(); }},
        {"test_host", test_host::main},
        {"test_kernels", [](int, char **) { return test_kernels::main(); }},
        {"test_matmul_gpu", [](int, char **) { return test_matmul_gpu::main(); }},
        {"test_timeline", test_timeline::main},
#endif
#endif
    };
    static const char *const suffixes[] = {"", "_fp32", "_fp16"}, *suffix = suffixes[PRECISION];
    const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];
    for (const auto &t : tests) {
        const size_t n = strlen(t.name);
        if (strncmp(name, t.name, n) == 0 && (name[n] == '\0' || strcmp(name + n, suffix) == 0))
            return t.main(argc, argv);
    }
    if (argc != 2 || strcmp(argv[1], "--list") != 0)
        die("%s: no such test; link this program to a name that --list prints", name);
    for (const auto &t : tests) printf("%s%s\n", t.name, suffix);
    return 0;
}
