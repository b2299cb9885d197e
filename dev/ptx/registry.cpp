// registry.cpp: puts the kernels that ptx2c.py translated in the place of the program's own.
//
//     PTX=SET[,SET...]   the first of these sets (names of PTX files) that has a kernel gives it;
//                        without PTX, the program's own C++ is executed
//     PTX_ONLY=TEXT      only kernels with TEXT in their mangled name
//     PTX_REPORT=FILE    the number of launches of each kernel is appended: "SET KERNEL COUNT", or
//                        "- KERNEL COUNT" if it was the program's own
//
// A kernel is launched by its function's address: the program's symbol table has the name.
#include "ptx.h"
#include "../emu/block.h"
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <map>
#include <mutex>
#include <string>

struct Known { std::string name; const PtxKernel *kernel; long launches; };
static std::map<const void *, Known> known;
static std::map<const void *, std::string> symbols;
static std::mutex lock;

static int find_bias(struct dl_phdr_info *info, size_t, void *bias) {
    *(uintptr_t *)bias = info->dlpi_addr;  // the first is the program
    return 1;
}

static void read_symbols() {
    uintptr_t bias = 0;
    dl_iterate_phdr(find_bias, &bias);
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) emu_fail("ptx: cannot read the program");
    const size_t size = (size_t)st.st_size;
    const char *file = (const char *)mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) emu_fail("ptx: cannot map the program");
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(file + elf->e_shoff);
    for (int i = 0; i < elf->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbol = (const Elf64_Sym *)(file + section[i].sh_offset);
        const char *names = file + section[section[i].sh_link].sh_offset;
        for (size_t k = 0; k < section[i].sh_size / sizeof *symbol; k++)
            if (ELF64_ST_TYPE(symbol[k].st_info) == STT_FUNC && symbol[k].st_value != 0)
                symbols[(const void *)(bias + symbol[k].st_value)] = names + symbol[k].st_name;
    }
    munmap((void *)file, size);
    close(fd);
}

static void report() {
    FILE *f = fopen(getenv("PTX_REPORT"), "a");
    if (f == nullptr) return;
    for (const auto &k : known)
        fprintf(f, "%s %s %ld\n", k.second.kernel != nullptr ? k.second.kernel->set : "-",
                k.second.name.c_str(), k.second.launches);
    fclose(f);
}

// The kernel of this name in the first set of PTX that has one, or null.
static const PtxKernel *find(const std::string &name) {
    const char *only = getenv("PTX_ONLY");
    if (only != nullptr && name.find(only) == std::string::npos) return nullptr;
    const std::string sets = std::string(getenv("PTX")) + ",";
    for (size_t at = 0, end; (end = sets.find(',', at)) != std::string::npos; at = end + 1)
        for (const PtxKernel *k = ptx_kernels; k->set != nullptr; k++)
            if (name == k->name && sets.compare(at, end - at, k->set) == 0) return k;
    return nullptr;
}

Window ptx_dynamic_shared() {
    const size_t bytes = emu::sm->launch->config.shared;
    return {bytes > 0 ? (char *)emu_dynamic_shared() : nullptr, bytes};
}

void ptx_bad_shared(uint32_t address, unsigned n) {
    emu_fail("PTX accesses %u bytes at %u of shared variable %u: outside, or not aligned", n,
             address & 0xffffff, address >> 24);
}

void ptx_bad_address(uint64_t address, unsigned n) {
    emu_fail("PTX accesses %u bytes at %p, which is no multiple", n, (void *)(uintptr_t)address);
}

float ptx_fma(float a, float b, float c, int mode) {
    volatile float x = a, y = b, z = c;  // not computed before the mode is set
    const int old = fegetround();
    fesetround(mode);
    volatile float r = __builtin_fmaf(x, y, z);
    fesetround(old);
    return r;
}

struct Call { void (*run)(const char *param); char *param; };

bool emu::ptx_launch(Launch *l, const Argument *arguments) {
    if (getenv("PTX") == nullptr) return false;
    const PtxKernel *kernel;
    {
        std::lock_guard<std::mutex> guard(lock);
        if (symbols.empty()) {
            read_symbols();
            if (getenv("PTX_REPORT") != nullptr) atexit(report);
        }
        auto k = known.find(l->entry);
        if (k == known.end()) {
            const auto s = symbols.find(l->entry);
            std::string name = s != symbols.end() ? s->second : l->kernel;
            if (name.compare(0, 3, "_ZL") == 0) name.erase(2, 1);  // nvcc has no mark for static
            k = known.emplace(l->entry, Known{name, find(name), 0}).first;
        }
        k->second.launches++;
        kernel = k->second.kernel;
    }
    if (kernel == nullptr) return false;
    size_t bytes = 0;
    for (const Argument *a = arguments; a->p != nullptr; a++)
        bytes = (bytes + a->align - 1) / a->align * a->align + a->bytes;
    if (bytes != kernel->bytes)
        emu_fail("%s: %zu bytes of parameters, and %zu in PTX", l->kernel, bytes, kernel->bytes);
    char *param = (char *)aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (param == nullptr) emu_fail("no memory for parameters");
    size_t at = 0;
    for (const Argument *a = arguments; a->p != nullptr; a++, at += a[-1].bytes) {
        at = (at + a->align - 1) / a->align * a->align;
        memcpy(param + at, a->p, a->bytes);
    }
    l->args = new Call{kernel->run, param};
    l->run = [](void *args) { ((Call *)args)->run(((Call *)args)->param); };
    l->destroy = [](void *args) {
        free(((Call *)args)->param);
        delete (Call *)args;
    };
    return true;
}
