# tide.c: every target. `make help` lists them; README.md says what they are for.

# The compilers: CC=clang make ... chooses another one.
found = $(firstword $(foreach c,$(1),$(if $(shell command -v $(c) 2>/dev/null),$(c),)) $(1))
CC := $(if $(filter default,$(origin CC)),$(call found,gcc clang cc),$(CC))
CXX := $(if $(filter default,$(origin CXX)),$(call found,g++ clang++),$(CXX))

# Flags are tried before they are used: without OpenMP everything runs on one thread, without
# -march=native on the oldest machine of the architecture.
try = $(shell echo 'int main(void){return 0;}' | $(CC) $(1) -x c - -o /dev/null 2>/dev/null && echo '$(1)')
ARCH ?= $(or $(call try,-march=native),$(call try,-mcpu=native))
OPENMP ?= $(or $(call try,-fopenmp),$(call try,-fopenmp-simd))
OPT ?= -O3
WARN = -Wall -Wextra -Wno-unused-function -Wno-unknown-pragmas
# Exactness (doc/adamw.md): no contraction, nothing "fast"; the last two only say that nobody reads
# errno or traps, which lets loops with sqrtf and compares be vectorised.
EXACT = -ffp-contract=off -fno-math-errno -fno-trapping-math
CFLAGS = -std=gnu11 -g $(OPT) $(ARCH) $(OPENMP) $(EXACT) $(WARN) $(EXTRA)
LDLIBS = -lm -pthread
HEADERS = $(wildcard *.h tide/*.h tide/*.cuh dev/test/*.h dev/test/*.cuh dev/*.h dev/data/*.h)
SANITIZE = -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

.PHONY: all nvcc cxx compiler run test test-all fuzz bench reference clean help
TOOLS = train_gpt2 $(addprefix build/,tokenize compare columns timeline reviews tensorboard plot \
                   unpickle)
all: $(TOOLS)  ## build the trainer and its tools
	@echo "./train_gpt2 is there. Next: make run trains a small GPT; ./train_gpt2 --help; make help"

train_gpt2: train_gpt2.c $(HEADERS) | compiler
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

# A program from its .c, in flavours:    build/NAME, build/test/NAME  as it is shipped
#   build/asan/NAME   AddressSanitizer; a fuzzer with a mutator of its own, so any compiler will do
#   build/tsan/NAME   ThreadSanitizer     build/fuzz/NAME   clang's fuzzer
#   build/clang/NAME  the same bits from the other compiler
#   build/plain/NAME  from a build for the oldest machine, with one thread
vpath %.c . dev dev/data dev/bench dev/test
CLANG := $(shell command -v clang 2>/dev/null)
alone = $(filter-out -fopenmp,$(CFLAGS))
define program
build/$(1)%: %.c train_gpt2.c dev/timeline.c dev/data/unpickle.c dev/bench/machine.h $(HEADERS) | compiler
	@mkdir -p $$(@D)
	$(2) -I. $$< -o $$@ $(LDLIBS)
endef
$(eval $(call program,,$$(CC) $$(CFLAGS)))
$(eval $(call program,test/,$$(CC) $$(CFLAGS)))
$(eval $(call program,asan/,$$(CC) $$(CFLAGS) $(SANITIZE) -DFUZZ_MAIN))
$(eval $(call program,tsan/,$(CLANG) $$(alone) -O1 -fsanitize=thread))
$(eval $(call program,fuzz/,$(CLANG) $$(alone) $(SANITIZE) -fsanitize=fuzzer))
$(eval $(call program,clang/,$(CLANG) $$(alone) -fopenmp-simd -Wno-pass-failed))
$(eval $(call program,plain/,$$(CC) $$(filter-out $$(ARCH),$$(alone))))

# --- the GPU trainer, on a GPU and on the emulated one ------------------------------------------

# nvcc compiles for the GPU that is present, or for Ampere, Hopper and the newest that it knows.
NVCC := $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
# (A driver that is mounted into a container may lie where no PATH leads.)
GPU := $(shell PATH="$$PATH:/usr/local/nvidia/bin" nvidia-smi -L 2>/dev/null | grep '^GPU ' | head -n 1)
newest = $(shell $(NVCC) --list-gpu-code 2>/dev/null | sed 's/sm_//' | sort -n | tail -n 1)
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

# Several GPUs need NCCL: in $NCCL_HOME if that is set, else in CUDA's folder or the system's, else
# in that of a Python package: PyTorch brings it along. A package may have libnccl.so.2 and no
# libnccl.so, so the file itself is linked.
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

# The emulated GPU (dev/emu/README.md): its runtime, and what is linked with it, in three flavours.
CLANGXX := $(shell command -v clang++ 2>/dev/null)
EMU = $(wildcard dev/emu/*.cpp dev/emu/*.h dev/emu/*.pl dev/emu/emucc dev/emu/include/*.h)
EMU_OBJECTS = $(patsubst dev/emu/%.cpp,%.o,$(wildcard dev/emu/*.cpp))
EMU_FLAGS = -g $(ARCH) $(EXACT) $(WARN) -Wno-pass-failed -I. -D__CUDACC__ -DTIDE_NCCL $(EXTRA)
EMU_RUN = -std=c++17 -g $(ARCH) $(WARN) $(EXTRA)
emu_plain = $(EMU_OBJECTS:%=build/emu/runtime/%)
emu_tsan = $(EMU_OBJECTS:%=build/emu/runtime-tsan/%)

# The runtime of the ThreadSanitizer flavour is not instrumented itself: only the program is.
define runtime
build/emu/$(1)/%.o: dev/emu/%.cpp $(EMU) tide/cpu.h tide/util.h | cxx
	@mkdir -p $$(@D)
	$(2) $$(EMU_RUN) -c $$< -o $$@
endef
$(eval $(call runtime,runtime,$$(CXX) -O3 $$(OPENMP)))
$(eval $(call runtime,runtime-tsan,$(CLANGXX) -O2))

# The trainer in a folder: train_gpt2.cu is compiled once for each --precision (tide/main.cu).
trainer = $(patsubst %,build/$(1)/%.o,train_gpt2_BF16 train_gpt2_FP32 train_gpt2_FP16 main)
define objects
build/$(1)/train_gpt2_%.o: train_gpt2.cu $(HEADERS) $(EMU) | $(3)
	@mkdir -p $$(@D)
	$(2) -DENABLE_$$* -DENTRY=main_$$* -c $$< -o $$@
build/$(1)/main.o: tide/main.cu $(HEADERS) $(EMU) | $(3)
	@mkdir -p $$(@D)
	$(2) -c $$< -o $$@
endef
$(eval $(call objects,gpu,$$(NVCC) $$(NVFLAGS) $$(if $$(NCCL),$$(NCCL_FLAGS)),nvcc))
$(eval $(call objects,emu,CXX=$$(CXX) dev/emu/emucc -O2 $$(OPENMP) $$(EMU_FLAGS),cxx))

train_gpt2cu: $(call trainer,gpu)  ## the GPU trainer (nvcc, cuBLASLt; NCCL if there)
	$(NVCC) $(NVFLAGS) $^ -o $@ $(NVLIBS) $(NCCL)

train_gpt2emu: $(call trainer,emu) $(emu_plain)  ## the same sources on an emulated GPU
	$(CXX) $(OPENMP) $(EXTRA) $^ -lpthread -o $@

# All tests of the GPU sources are one program for each precision, gpu_tests, gpu_tests_fp32 and
# gpu_tests_fp16, which is called by the name of a test: test_model, test_model_fp32.
vpath %.cu . dev/test dev/emu/test dev/bench
GPU_TESTS = $(filter-out gpu_tests,$(patsubst dev/test/%.cu,%,$(wildcard dev/test/test_*.cu)))
TRAINS = test_model test_placement test_zo_gpu test_zenflow_gpu test_zero_gpu
GPU_TESTS_fp32 = $(addsuffix _fp32,$(TRAINS) test_gpt2cu test_plan test_zen_plan \
                             test_zen_time test_zo_plan)
GPU_TESTS_fp16 = test_zo_gpu_fp16
GPU_ALL = $(GPU_TESTS) $(GPU_TESTS_fp32) $(GPU_TESTS_fp16)
GPU_BENCHES = $(patsubst dev/bench/%.cu,%,$(wildcard dev/bench/*.cu)) bench_zo_fp16 bench_zo_fp32
gpu_programs = gpu_tests gpu_tests_fp32 gpu_tests_fp16

# A program NAME from its .cu, and with it the CPU trainer to be held against:
#   build/emu/NAME   on the emulated GPU        build/asan/emu/NAME   and AddressSanitizer
#   build/tsan/NAME  and ThreadSanitizer        build/gpu/NAME        on a real GPU
CUDA_SOURCES = train_gpt2.cu test_gpt2.c $(wildcard dev/test/*.cu) dev/bench/timed.cuh
define cuda_program
build/$(1)/%$(6): %.cu $(HEADERS) build/$(1)/cpu_reference.o $(CUDA_SOURCES) $(4)
	$(3) $(subst _fp,-DENABLE_FP,$(6)) $$< build/$(1)/cpu_reference.o -o $$@ $(5)
$(GPU_TESTS$(6):%=build/$(1)/%): build/$(1)/gpu_tests$(6)
	@ln -sf gpu_tests$(6) $$@
endef
# folder, how to compile the CPU trainer and the program, what it needs, what it is linked with
define cuda_programs
build/$(1)/cpu_reference.o: dev/test/cpu_reference.c train_gpt2.c test_gpt2.c $(HEADERS) | compiler
	@mkdir -p $$(@D)
	$$(CC) $(2) -c $$< -o $$@
$(call cuda_program,$(1),$(2),$(3),$(4),$(5),)
$(call cuda_program,$(1),$(2),$(3),$(4),$(5),_fp32)
$(call cuda_program,$(1),$(2),$(3),$(4),$(5),_fp16)
endef
# compiler, runtime, options
emulated = CXX=$(1) EMU_RUNTIME=build/emu/$(2) dev/emu/emucc $(3) $$(EMU_FLAGS)
$(eval $(call cuda_programs,emu,$$(CFLAGS),\
    $(call emulated,$$(CXX),runtime,-O1 $$(OPENMP)),$(emu_plain)))
$(eval $(call cuda_programs,asan/emu,$$(CFLAGS) $(SANITIZE),\
    $(call emulated,$$(CXX),runtime,$(SANITIZE) $$(OPENMP)),$(emu_plain)))
$(eval $(call cuda_programs,tsan,$$(alone),\
    $(call emulated,$(CLANGXX),runtime-tsan,-O1 -fsanitize=thread),$(emu_tsan)))
$(eval $(call cuda_programs,gpu,$$(CFLAGS),$$(NVCC) $$(NVFLAGS),| nvcc,$$(NVLIBS) $$(NCCL)))

# Every CUDA source through nvcc, even where nothing can run: it keeps the emulator's headers honest.
# Any warning is an error here.
build/nvcc/%.o: %.cu $(HEADERS) $(CUDA_SOURCES) dev/test/device_only.sh
	@mkdir -p $(@D)
	$(NVCC) $(filter-out $(GPU_ARCH),$(NVFLAGS)) -Werror all-warnings -arch=sm_90 -Xptxas -O1 \
	    -Xcompiler -O0,-fno-inline $(NCCL_FLAGS) -c $< -o $@
	@sh dev/test/device_only.sh $@ || { rm $@; exit 1; }

.SECONDARY: $(emu_plain) $(emu_tsan)
cxx: compiler  # one after the other: both may have to install something
	@command -v $(CXX) >/dev/null 2>&1 || sh dev/install_compiler.sh $(CXX)

# A fresh Debian or Ubuntu has no compiler: what installs one is said, and done if one may or says yes.
compiler:
	@command -v $(CC) >/dev/null 2>&1 || sh dev/install_compiler.sh $(CC)

# --- run -------------------------------------------------------------------------------------

# The embedded default: the project's own sources and documentation are the text.
DATA ?= build/self.txt
build/self.txt: $(wildcard *.c *.h *.cu tide/* *.md Makefile doc/*.md dev/*/*.c dev/*/*.md scripts/*.sh)
	@mkdir -p $(@D)
	cat $(sort $^) > $@

# On the GPU, if there is one and nvcc to compile for it.
TRAINER := $(if $(and $(NVCC),$(GPU)),train_gpt2cu,train_gpt2)

# Done in six minutes where two threads reach 40 GFLOP/s, little for a CPU with AVX2.
run: $(TRAINER) $(filter build/self.txt,$(DATA))  ## train a small GPT (DATA=file.txt: on your text)
	@exec sh scripts/run.sh ./$(TRAINER) $(ARGS)

# --- test ------------------------------------------------------------------------------------

# `make test` covers everything once, `make test-all` does what takes long: dev/test/README.md.
# What computes runs as it is shipped in the one and with AddressSanitizer in the other; what reads
# and writes the other way around.
UNIT = $(patsubst dev/test/%.c,%,$(wildcard dev/test/test_*.c))
FUZZ = $(patsubst dev/test/%.c,%,$(wildcard dev/test/fuzz_*.c))
COMPUTES = test_adam test_matmul test_offload test_rates test_rehearsal test_rng test_vmath \
           test_zenflow test_zero test_zo
READS = $(filter-out $(COMPUTES),$(UNIT))
SCRIPTS = $(wildcard dev/test/test_*.sh dev/emu/test/test_*.sh)

in = $(patsubst %,build/$(1)/%,$(2))
with_gpu := $(and $(NVCC),$(GPU))
TESTS = $(call in,test,$(COMPUTES) test_gpt2) $(call in,asan,$(READS) $(FUZZ)) \
        $(foreach on,emu $(if $(with_gpu),gpu),$(call in,$(on),test_emu test_nccl $(GPU_ALL)))
TEST_NEEDS = $(call in,emu,$(gpu_programs) bugs) train_gpt2emu $(TOOLS) build/test/test_ranks \
             $(if $(with_gpu),train_gpt2cu $(call in,gpu,$(gpu_programs)),\
                 $(if $(NVCC),build/nvcc/gpu_tests.o))

# What one flavour's program has of the GPU's tests; the others train, and are for test_schedules.sh.
KERNELS = test_kernels test_attention test_host test_columns_gpu
trains = $(TRAINS) $(GPU_TESTS_fp32) $(GPU_TESTS_fp16)
TESTS_ALL = $(call in,test,$(READS)) $(call in,asan,$(COMPUTES) test_gpt2) build/plain/test_gpt2 \
            $(if $(CLANG),build/tsan/test_ranks $(call in,clang,test_adam test_rng test_matmul \
                test_vmath test_zo test_zenflow)) \
            $(call in,asan/emu,test_nccl $(KERNELS)) \
            $(if $(CLANGXX),$(call in,tsan,test_nccl test_timeline $(KERNELS))) \
            $(call in,emu,test_nccl test_timeline test_zen_time $(trains)) \
            $(if $(with_gpu),$(call in,gpu,$(trains)))
TEST_ALL_NEEDS = $(foreach on,asan/emu $(if $(CLANGXX),tsan),$(call in,$(on),gpu_tests bugs \
                     gpu_tests_fp32 $(TRAINS) $(TRAINS:%=%_fp32))) \
                 $(call in,emu,$(gpu_programs) bugs test_emu $(GPU_BENCHES)) train_gpt2emu \
                 $(TOOLS) \
                 $(if $(NVCC),train_gpt2cu $(if $(GPU),,$(patsubst %,build/nvcc/%.o,gpu_tests \
                     test_emu test_nccl $(filter-out bench_zo_%,$(GPU_BENCHES)))))

machine = CLANG="$(CLANG)" CLANGXX="$(CLANGXX)" NVCC="$(NVCC)" GPU="$(GPU)"
test:  ## all features once, in minutes
	@sh dev/test/build.sh $(MAKE) $(TEST_NEEDS) $(TESTS)
	@$(machine) sh dev/test/run.sh $(SCRIPTS) $(TESTS)

test-all:  ## what `make test` leaves out: sanitizers, all schedules, other compilers
	@sh dev/test/build.sh $(MAKE) $(TEST_ALL_NEEDS) $(TESTS_ALL)
	@$(machine) ALL=1 sh dev/test/run.sh $(SCRIPTS) $(TESTS_ALL)

print-%:  # a variable, for scripts
	@echo '$($*)'

FUZZ_SECONDS ?= 600
fuzz: $(FUZZ:%=build/fuzz/%)  ## long fuzzing of every parser (clang; FUZZ_SECONDS=600 each)
	@for f in $(FUZZ); do mkdir -p build/corpus/$$f; echo "== $$f"; \
	    build/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -print_final_stats=1 \
	    build/corpus/$$f || exit 1; done

# --- the rest --------------------------------------------------------------------------------

BENCH = build/bench_matmul build/bench_adam build/bench_step \
        $(if $(and $(NVCC),$(GPU)),$(GPU_BENCHES:%=build/gpu/%))
bench: $(BENCH)  ## speed, as shares of limits measured in the same run
	@for b in $(BENCH); do $$b || exit 1; done

reference:  ## recompute the reference fixtures and compare (needs python3-torch)
	python3 dev/reference/reference.py --check

clean:  ## remove what was built (not what was trained)
	@! run=$$(find build -name log.jsonl 2>/dev/null | grep .) || \
	    { echo "tide: what was trained is in build/; move it first:" $$run >&2; exit 2; }
	rm -rf build train_gpt2 train_gpt2cu train_gpt2emu

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile
