# tide.c: what is built and run; dev/test/rules.mk has the tests. `make help` lists the targets.

# The compilers: CC=clang make ... chooses another one.
found = $(firstword $(foreach c,$(1),$(if $(shell command -v $(c) 2>/dev/null),$(c),)) $(1))
CC := $(if $(filter default,$(origin CC)),$(call found,gcc clang cc),$(CC))
CXX := $(if $(filter default,$(origin CXX)),$(call found,g++ clang++),$(CXX))

# Flags are tried before they are used. Without OpenMP everything runs on one thread; without
# -march=native the program is for the oldest machine of the architecture.
try = $(shell echo 'int main(void){return 0;}' | $(CC) $(1) -x c - -o /dev/null 2>/dev/null && echo '$(1)')
ARCH ?= $(or $(call try,-march=native),$(call try,-mcpu=native))
OPENMP ?= $(or $(call try,-fopenmp),$(call try,-fopenmp-simd))
OPT ?= -O3
WARN = -Wall -Wextra -Wno-unused-function -Wno-unknown-pragmas -Wno-missing-field-initializers
# Exactness (doc/adamw.md): no contraction, and no -ffast-math. The last two flags say only that
# nobody reads errno or traps, so that loops with sqrtf and comparisons can be vectorised.
EXACT = -ffp-contract=off -fno-math-errno -fno-trapping-math
CFLAGS = -std=gnu11 -g $(OPT) $(ARCH) $(OPENMP) $(EXACT) $(WARN) $(EXTRA)
LDLIBS = -lm -pthread
HEADERS = $(wildcard *.h tide/*/*.h tide/*/*.cuh dev/test/*.h dev/test/gpu/*.h \
          dev/test/gpu/*.cuh dev/*.h dev/data/*.h)

.PHONY: all nvcc cxx compiler run install uninstall test test-all fuzz bench reference clean help
TOOLS = train_gpt2 $(addprefix build/,tokenize compare columns timeline reviews ask rows plot unpickle)
all: $(TOOLS)  ## build the trainer and its tools
	@echo "./train_gpt2 is there. Next: make run trains a small GPT; ./train_gpt2 --help; make help"

train_gpt2: train_gpt2.c $(HEADERS) | compiler
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

# A program from its .c: build/NAME. Other flavours are in dev/test/rules.mk.
vpath %.c . dev dev/data dev/bench dev/test/c dev/test/fuzz build/units
define program
build/$(1)%: %.c train_gpt2.c test_gpt2.c dev/timeline.c dev/data/unpickle.c dev/bench/machine.h $(HEADERS) | compiler
	@mkdir -p $$(@D)
	$(2) -I. $$< -o $$@ $(LDLIBS)
endef
$(eval $(call program,,$$(CC) $$(CFLAGS)))

# --- the GPU trainer, on a GPU and on the emulated one ------------------------------------------

# nvcc compiles for the GPU that is present, or else for Ampere, Hopper and the newest generation
# that it knows, whose first member's code (12.0, not 12.1) all members run.
NVCC := $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
# (In a container the driver's program may be in a folder that is not in PATH.)
GPUS := PATH="$$PATH:/usr/local/nvidia/bin" nvidia-smi --query-gpu=compute_cap,name \
            --format=csv,noheader 2>/dev/null
GPU := $(shell $(GPUS) | awk '$$1 + 0 >= 8' | head -n 1)
OLD_GPU := $(if $(GPU),,$(shell $(GPUS) | awk '$$1 + 0 > 0' | head -n 1))
$(if $(OLD_GPU),$(info tide: GPU $(OLD_GPU): its compute capability is below 8.0 (Ampere): the CPU is used))
newest = $(shell $(NVCC) --list-gpu-code 2>/dev/null | sed -n 's/sm_\(.*0\)$$/\1/p' | sort -n | tail -n 1)
gencode = -gencode arch=compute_$(1),code=sm_$(1)
# Hopper's also as PTX, which the driver translates for GPUs that came after it.
GPU_ARCH ?= $(if $(GPU),-arch=native,$(call gencode,80) \
            -gencode 'arch=compute_90,code=[sm_90,compute_90]' $(call gencode,$(newest)))
space := $(subst ,, )
comma := ,
# Exactness on the GPU: IEEE division and square root, no flush to zero (doc/adamw.md). The host's
# half is compiled as train_gpt2.c is.
NVDEVICE = -std=c++17 -O3 -lineinfo --ftz=false --prec-div=true --prec-sqrt=true -I. \
           -diag-suppress 177  # functions that a source does not use
NVFLAGS = $(NVDEVICE) $(GPU_ARCH) -Xptxas -warn-spills \
          -Xcompiler $(subst $(space),$(comma),$(strip -O3 $(ARCH) $(OPENMP) $(EXACT) $(WARN) \
              $(subst $(comma),\\$(comma),$(EXTRA))))

CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
NVLIBS = -lcublasLt -Xlinker -rpath,$(CUDA_HOME)/lib64

# Several GPUs need NCCL. It is looked for in $NCCL_HOME if that is set; else in CUDA's folder, in
# the system's, and in a Python package, which PyTorch installs. A package may have libnccl.so.2 and
# no libnccl.so, so the file itself is linked.
nccl_usual = $(firstword $(wildcard $(addsuffix /include/nccl.h,$(CUDA_HOME) /usr/local /usr)))
nccl_home := $(if $(NVCC),$(or $(NCCL_HOME),$(nccl_usual:%/include/nccl.h=%),\
    $(shell python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)))
nccl_library := $(firstword $(sort $(wildcard $(addprefix $(nccl_home)/,lib/libnccl.so* \
    lib/*/libnccl.so* lib64/libnccl.so*))))
NCCL_FLAGS := $(if $(wildcard $(nccl_home)/include/nccl.h),-DTIDE_NCCL \
    $(addprefix -isystem ,$(filter-out /usr/include /usr/local/include,$(nccl_home)/include)))
NCCL := $(if $(and $(NCCL_FLAGS),$(nccl_library)),$(NCCL_FLAGS) -Xlinker $(nccl_library) \
        -Xlinker -rpath$(comma)$(patsubst %/,%,$(dir $(nccl_library))))

nvcc:
	@[ -n "$(NVCC)" ] || { echo "tide: no nvcc found: install the CUDA Toolkit (12.0 or newer), or" \
	    "use ./train_gpt2 (make) or the emulated GPU (make train_gpt2emu)" >&2; exit 2; }
	@[ -n "$(NCCL)" ] || echo "without NCCL: one GPU only (NCCL_HOME=folder says where" \
	    "include/nccl.h and lib/libnccl.so are)"

-include dev/emu/rules.mk

# The trainer in a folder: train_gpt2.cu is compiled once for each --precision.
trainer = $(patsubst %,build/$(1)/train_gpt2_%.o,BF16 FP32 FP16)
define objects
build/$(1)/train_gpt2_%.o: train_gpt2.cu $(HEADERS) $(EMU) | $(3)
	@mkdir -p $$(@D)
	$(2) -DENABLE_$$* -c $$< -o $$@
endef
$(eval $(call objects,gpu,$$(NVCC) $$(NVFLAGS) $$(if $$(NCCL),$$(NCCL_FLAGS)),nvcc))
$(eval $(call objects,emu,CXX=$$(CXX) dev/emu/emucc -O1 $$(OPENMP) $$(EMU_FLAGS),cxx))

train_gpt2cu: $(call trainer,gpu)  ## the GPU trainer (nvcc, cuBLASLt; NCCL if there)
	$(NVCC) $(NVFLAGS) $^ -o $@ $(NVLIBS) $(NCCL)

train_gpt2emu: $(call trainer,emu) $(emu_plain)  ## the same sources on an emulated GPU
	$(CXX) $(OPENMP) $(EXTRA) $^ -lpthread -o $@

.SECONDARY: $(emu_plain)
cxx: compiler  # not at the same time: both may have to install something
	@command -v $(CXX) >/dev/null 2>&1 || sh dev/install_compiler.sh $(CXX)

# The script prints the line that installs a compiler, and runs it for root or who agrees.
compiler:
	@command -v $(CC) >/dev/null 2>&1 || sh dev/install_compiler.sh $(CC)

# --- run -------------------------------------------------------------------------------------

# The default text: the project's own sources and documentation.
DATA ?= build/self.txt
build/self.txt: $(wildcard *.c *.h *.cu tide/*/* *.md Makefile doc/*.md dev/*/*.c dev/*/*.md scripts/*.sh)
	@mkdir -p $(@D)
	cat $(sort $^) > $@

# Trains on the GPU if there are one and nvcc.
TRAINER := $(if $(and $(NVCC),$(GPU)),train_gpt2cu,train_gpt2)

# Done in six minutes where two threads reach 40 GFLOP/s, little for a CPU with AVX2.
run: $(TRAINER) $(filter build/self.txt,$(DATA))  ## train a small GPT (DATA=file.txt: on your text)
	@exec sh scripts/run.sh ./$(TRAINER) $(ARGS)

# What was built is for this machine's processor.
PREFIX ?= /usr/local
install: train_gpt2  ## programs and manual pages to PREFIX (/usr/local), below DESTDIR
	@sh dev/install.sh install "$(DESTDIR)$(PREFIX)"
uninstall:  ## removes them
	@sh dev/install.sh remove "$(DESTDIR)$(PREFIX)"

-include dev/test/rules.mk  # a tree without tests builds as well

clean:  ## remove what was built (not what was trained)
	@! run=$$(find build -name log.jsonl 2>/dev/null | grep .) || \
	    { echo "tide: what was trained is in build/; move it first:" $$run >&2; exit 2; }
	rm -rf build train_gpt2 train_gpt2cu train_gpt2emu

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' \
	    $(MAKEFILE_LIST)
