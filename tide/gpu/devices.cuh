// devices.cuh: the peak rates of GPUs (arithmetic and memory bandwidth, from the vendor's data
// sheets); opening a GPU; how much memory a run may take. The log's "% of peak" and the benchmarks
// divide by these rates; for a GPU that is not in the table they print no percentage.
//   device_peak()                       the current GPU's peak rate of arithmetic
//   has_device(), open_device()         is there a GPU?; opens this rank's GPU
//   gpu_available(), settle_limits()    free GPU memory; the memory that a run may take
#ifndef TIDE_DEVICES_CUH
#define TIDE_DEVICES_CUH
#include "host.cuh"
#include "../run/options.h"

// Peak rates without sparsity (data sheets often print twice that, "with sparsity"), at the sheet's
// boost clock, in TFLOP/s: bf16 on tensor cores with sums in fp32, and plain fp32; memory in GB/s.
// GeForce cards sum in fp32 at half the rate of sums in fp16, and bf16 always sums in fp32; the
// professional cards of the same chips do not have that limit.
typedef struct { const char *name; double bf16, fp32, bandwidth; } Device;

static const Device device_table[] = {
    // NVIDIA A100 data sheet (2021); the 40 GB models: A100 architecture whitepaper
    {"A100-SXM4-40GB",      312,   19.5, 1555},
    {"A100-PCIE-40GB",      312,   19.5, 1555},
    {"A100-SXM4-80GB",      312,   19.5, 2039},
    {"A100 80GB PCIe",      312,   19.5, 1935},
    // NVIDIA A30, A10, A40 and RTX A6000 data sheets
    {"A30",                 165,   10.3, 933},
    {"A10",                 125,   31.2, 600},
    {"A40",                 149.7, 37.4, 696},
    {"RTX A6000",           154.8, 38.7, 768},
    // NVIDIA L4, L40 and L40S data sheets; RTX 6000 Ada: Ada Lovelace architecture whitepaper
    {"L4",                  121,   30.3, 300},
    {"L40",                 181,   90.5, 864},
    {"L40S",                362,   91.6, 864},
    {"RTX 6000 Ada Generation", 364.2, 91.1, 960},
    // NVIDIA H100 data sheet (SXM, PCIe, NVL); H200 data sheet (SXM, NVL); GH200 data sheet
    {"H100 80GB HBM3",      989.4, 67,   3350},
    {"H100 PCIe",           756,   51,   2000},
    {"H100 NVL",            835.5, 60,   3900},
    {"H200",                989.4, 67,   4800},
    {"H200 NVL",            835.5, 60,   4800},
    {"GH200 480GB",         989.4, 67,   4000},
    {"GH200 144G HBM3e",    989.4, 67,   4900},
    // Blackwell architecture technical brief, table 3, and the HGX and GB200 data sheets
    {"B200",                2250,  75,   7700},
    {"GB200",               2500,  80,   8000},
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

// Returns the row of the device of this name, or NULL. The whole name must be equal: a laptop's
// chip, another card with the same number, or a slice of a GPU (MIG) has a longer name.
static const Device *device_find(const char *name) {
    const char *const maker = "NVIDIA ";  // not in old drivers' names
    if (strncmp(name, maker, strlen(maker)) == 0) name += strlen(maker);
    for (const Device &d : device_table)
        if (strcmp(d.name, name) == 0) return &d;
    return NULL;
}

// Prints the device's peaks. Returns flop/s, in fp32 or 16 bits; *bandwidth: bytes/s. 0: unknown.
static double device_peak(bool fp32, double *bandwidth = NULL) {
    cudaDeviceProp device;
    int number = 0;
    CUDA(cudaGetDevice(&number));
    CUDA(cudaGetDeviceProperties(&device, number));
    const Device *known = device_find(device.name);
    const double rate = known == NULL ? 0 : fp32 ? known->fp32 : known->bf16;
    if (bandwidth != NULL) *bandwidth = known == NULL ? 0 : 1e9 * known->bandwidth;
    if (known == NULL)
        printf("device: %s, not in the table of devices: no %% of peak\n", device.name);
    else
        printf("device: %s, %.4g TFLOP/s and %.4g GB/s (data sheet)\n", device.name, rate,
               known->bandwidth);
    return 1e12 * rate;
}

// ---------------------------------------------------------------------------------------------
// Opening a GPU, and its memory

static bool has_device(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// Opens the first GPU (CUDA_VISIBLE_DEVICES chooses another). Each rank of a node opens its own,
// unless its launcher lets it see one GPU alone.
static void open_device(void) {
    int devices = 0;
    cudaDeviceProp device;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e != cudaSuccess || devices == 0)
        fail("no CUDA device can be used (%s): ./train_gpt2 trains on the CPU",
             e != cudaSuccess ? cudaGetErrorString(e) : "there is none");
    const int mine = devices == 1 ? 0 : ranks.local;
    if (mine >= devices) fail("rank %d is number %d of its node, which has %d GPUs", ranks.rank,
                              ranks.local, devices);
    CUDA(cudaSetDevice(mine));
    CUDA(cudaGetDeviceProperties(&device, mine));
    if (device.major < 8)
        fail("%s has compute capability %d.%d; 16 bits need 8.0 (Ampere) or more", device.name,
             device.major, device.minor);
}

// Returns the bytes of GPU memory that are free.
static size_t gpu_available(void) {
    size_t available, total;
    CUDA(cudaMemGetInfo(&available, &total));
    return available;
}

// The bytes of memory that a run may take. here: on this machine, whose GPU settle_limits() opens;
// else on the machine of a plan, by --gpu-memory and --host-memory (SIZE_MAX: no limit is given).
typedef struct { bool here; size_t gpu, host; } Limits;

static void settle_limits(const Options *o, Limits *x) {
    x->here = !o->plan || (o->rates == NULL && has_device());
    if (x->here) open_device();
    const size_t available = x->here ? gpu_available() : SIZE_MAX;
    const size_t sharers = (size_t)ranks.local_world, asked = o->host_memory;
    const size_t host_available = x->here ? memory_available() / sharers : SIZE_MAX;
    const size_t container = x->here ? memory_container() / sharers : SIZE_MAX;
    ranks_barrier();  // no rank allocates before all ranks have measured
    // The margin is for memory that the driver rounds up, and for kernels that it loads later.
    const size_t margin = x->here ? min_size(available, available / 100 + ((size_t)256 << 20)) : 0;
    x->gpu = o->gpu_memory == 0 ? available - margin
           : o->plan ? o->gpu_memory : min_size(available, o->gpu_memory);
    x->host = asked > 0 ? asked : host_available - (x->here ? host_available / 32 : 0);
    if (o->plan || asked <= host_available) return;
    // If --host-memory is more than Linux reports as available, it is believed all the same. But
    // Linux kills a process that exceeds its container's limit.
    x->host = min_size(asked, container - container / 32);
    host_memory_grows = container > host_available;
    printf("--host-memory: %.1f MiB are more than the %.1f MiB that are available now: %s\n",
           mib(asked), mib(host_available), x->host == asked ? "taken as said"
               : "no more is used than the container's limit leaves");
}

#endif
