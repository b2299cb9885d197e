// devices.cuh: what a GPU can do at most: arithmetic and memory bandwidth. The log's "% of peak"
// and the benchmarks are shares of these. Known devices have a row in a table, copied from the
// vendor's data sheets; any other is measured, and said to be.
#ifndef TIDE_DEVICES_CUH
#define TIDE_DEVICES_CUH
#include "gpu.cuh"
#include "matmul.cuh"

// Dense peak rates (data sheets often print the double, "with sparsity") at the boost clock of the
// sheet, in TFLOP/s: bf16 on tensor cores with sums in fp32, and plain fp32; memory in GB/s.
// GeForce cards sum in fp32 at half the rate of sums in fp16, and bf16 always sums in fp32; the
// professional cards of the same chips do not have that limit.
typedef struct { const char *name; double bf16, fp32, bandwidth; } Device;

static const Device device_table[] = {
    // NVIDIA A100 data sheet (2021); the 40 GB models: A100 architecture whitepaper
    {"A100-SXM4-40GB",      312,   19.5, 1555},
    {"A100-PCIE-40GB",      312,   19.5, 1555},
    {"A100-SXM4-80GB",      312,   19.5, 2039},
    {"A100 80GB PCIe",      312,   19.5, 1935},
    {"A800-SXM4-80GB",      312,   19.5, 2039},
    {"A800 80GB PCIe",      312,   19.5, 1935},
    // NVIDIA A30, A10, A40 and RTX A6000 data sheets
    {"A30",                 165,   10.3, 933},
    {"A10",                 125,   31.2, 600},
    {"A40",                 149.7, 37.4, 696},
    {"RTX A6000",           154.8, 38.7, 768},
    // NVIDIA L4, L40 and L40S data sheets; RTX 6000 Ada: Ada Lovelace architecture whitepaper
    {"L4",                  121,   30.3, 300},
    {"L40",                 181,   90.5, 864},
    {"L40S",                362,   91.6, 864},
    {"RTX 6000 Ada",        364.2, 91.1, 960},
    // NVIDIA H100 data sheet (SXM, PCIe, NVL); H200 data sheet (SXM, NVL); GH200 data sheet
    {"H100 80GB HBM3",      989.4, 67,   3350},
    {"H100 PCIe",           756,   51,   2000},
    {"H100 NVL",            835.5, 60,   3900},
    {"H800",                989.4, 67,   3350},
    {"H200",                989.4, 67,   4800},
    {"H200 NVL",            835.5, 60,   4800},
    {"GH200 480GB",         989.4, 67,   4000},
    {"GH200 144G HBM3e",    989.4, 67,   4900},
    // Blackwell architecture technical brief, table 3, and the HGX and GB200 data sheets
    {"B100",                1750,  60,   8000},
    {"B200",                2250,  75,   7700},
    {"GB200",               2500,  80,   8000},
    {"B300",                2250,  75,   8000},
    // RTX PRO Blackwell architecture whitepaper; the Max-Q and Server editions are slower
    {"RTX PRO 6000 Blackwell Workstation Edition",       503.8, 126, 1792},
    // GA102 architecture whitepaper, and GeForce RTX 3090 Ti specifications
    {"GeForce RTX 3090",    71,    35.6, 936},
    {"GeForce RTX 3090 Ti", 80,    40,   1008},
    // Ada Lovelace architecture whitepaper (4080, 4090)
    {"GeForce RTX 4080",    97.5,  48.7, 717},
    {"GeForce RTX 4090",    165.2, 82.6, 1008},
    // RTX Blackwell architecture whitepaper (GeForce 50 series)
    {"GeForce RTX 5070",    61.7,  30.9, 672},
    {"GeForce RTX 5070 Ti", 87.9,  43.9, 896},
    {"GeForce RTX 5080",    112.6, 56.3, 960},
    {"GeForce RTX 5090",    209.5, 104.8, 1792},
};

// Does `text` contain `word`, between spaces or the ends?
static inline bool device_has_word(const char *text, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        if ((at == text || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

// The row whose name the device's name contains as whole words; NULL if there is none. "L40S" is no
// L40, and a device whose name also says one of `other`, where the row's does not, is another chip
// under the same number, or a slice of it.
static inline const Device *device_find(const char *name) {
    static const char *const other[] = {"Laptop", "Mobile", "Max-Q", "MIG", "Ti", "SUPER", "D",
                                        "PCIe", "NVL"};
    for (size_t i = 0; i < sizeof device_table / sizeof *device_table; i++) {
        const Device *d = &device_table[i];
        bool matches = device_has_word(name, d->name);
        for (size_t j = 0; matches && j < sizeof other / sizeof *other; j++)
            matches = !device_has_word(name, other[j]) || device_has_word(d->name, other[j]);
        if (matches) return d;
    }
    return NULL;
}

typedef struct {
    double flops, bytes_per_second;  // arithmetic in the run's precision, and memory
    bool measured;                   // true: no data sheet, see device_measure()
    char name[256];
} DevicePeak;

// Numbers in [-1, 1): a product of zeros would draw less power and run at a higher clock.
template <typename X> __global__ static void device_fill_kernel(X *x, size_t n) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) x[i] = from_f32<X>((float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f);
}

// Seconds that the device took between two events, both recorded on `stream`.
static inline double device_seconds(cudaEvent_t start, cudaEvent_t end) {
    float ms = 0;
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, start, end));
    return 1e-3 * (double)ms;
}

// The best that was seen: square products, and copies from memory to memory (which read and write),
// doubled in size until one takes long enough for the clock, or takes a quarter of what is free.
// What a data sheet would say is more.
template <typename X>
static void device_measure(DevicePeak *peak, Matmul *lt, cudaStream_t stream) {
    enum { TRIES = 3 };
    cudaEvent_t start, end;
    size_t free_bytes = 0, total = 0;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    double seconds = 0;
    peak->flops = 0;
    const double begun = seconds_now();  // the device may have a clock of its own (dev/emu)
    for (size_t n = 256; n <= 8192 && seconds < 0.01 && seconds_now() - begun < 0.3; n *= 2) {
        if (3 * n * n * sizeof(X) > free_bytes / 4) break;
        X *a = (X *)gpu_alloc(3 * n * n * sizeof(X), "measuring the device"), *b = a + n * n;
        device_fill_kernel<<<ceil_div(2 * n * n, 256), 256, 0, stream>>>(a, 2 * n * n);
        CUDA(cudaGetLastError());
        // The first one loads the kernel. Where one takes long, one more is enough.
        for (int i = 0; i <= TRIES && (i < 2 || seconds < 0.02); i++) {
            CUDA(cudaEventRecord(start, stream));
            gemm(lt, false, true, n, n, n, a, n, b, n, b + n * n, n, nullptr, false, GEMM_PLAIN,
                 nullptr, stream);
            CUDA(cudaEventRecord(end, stream));
            seconds = device_seconds(start, end);
            const double flops = 2 * (double)n * (double)n * (double)n / seconds;
            if (i > 0 && flops > peak->flops) peak->flops = flops;
        }
        CUDA(cudaFree(a));
    }
    seconds = 0;
    for (size_t n = (size_t)1 << 20; n <= (size_t)512 << 20 && seconds < 1e-3; n *= 2) {
        if (2 * n > free_bytes / 4 || seconds_now() - begun > 1) break;
        char *a = (char *)gpu_alloc(2 * n, "measuring the device");
        peak->bytes_per_second = 0;  // of the largest size alone: small ones stay in the cache
        for (int i = 0; i <= TRIES; i++) {
            CUDA(cudaEventRecord(start, stream));
            CUDA(cudaMemcpyAsync(a + n, a, n, cudaMemcpyDeviceToDevice, stream));
            CUDA(cudaEventRecord(end, stream));
            seconds = device_seconds(start, end);
            if (2 * (double)n / seconds > peak->bytes_per_second)
                peak->bytes_per_second = 2 * (double)n / seconds;
        }
        CUDA(cudaFree(a));
    }
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    peak->measured = true;
}

// The current device's peak for training in X (float or bf16). Takes no time where the table knows
// the device, and some tenths of a second and a quarter of the free memory where it does not.
template <typename X> static DevicePeak device_peak(Matmul *lt, cudaStream_t stream) {
    DevicePeak peak;
    cudaDeviceProp properties;
    int device = 0;
    memset(&peak, 0, sizeof peak);
    CUDA(cudaGetDevice(&device));
    CUDA(cudaGetDeviceProperties(&properties, device));
    snprintf(peak.name, sizeof peak.name, "%s", properties.name);
    const Device *known = device_find(peak.name);
    if (known == NULL) {
        device_measure<X>(&peak, lt, stream);
        return peak;
    }
    peak.flops = 1e12 * (sizeof(X) == sizeof(float) ? known->fp32 : known->bf16);
    peak.bytes_per_second = 1e9 * known->bandwidth;
    return peak;
}

// One line: "device: NAME, 989.4 TFLOP/s and 3350 GB/s (data sheet)".
static inline void device_print(const DevicePeak *peak) {
    if (!(peak->flops > 0)) {
        printf("device: %s, not in the table of devices, and without free memory to measure it\n",
               peak->name);
        return;
    }
    printf("device: %s, %.4g TFLOP/s and %.4g GB/s (%s)\n", peak->name, 1e-12 * peak->flops,
           1e-9 * peak->bytes_per_second,
           peak->measured ? "measured; not in the table of devices" : "data sheet");
}

#endif
