# tide.c: every target. `make help` lists them; README.md says what they are for.

# The compiler: CC=clang make ... chooses another one.
ifeq ($(origin CC),default)
CC := $(firstword $(foreach c,gcc clang cc,$(if $(shell command -v $(c) 2>/dev/null),$(c),)) cc)
endif

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
HEADERS = $(wildcard *.h tide/*.h tide/*.cuh dev/test/*.h dev/test/*.cuh dev/data/*.h)
SANITIZE = -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

.PHONY: all
all: train_gpt2 build/tokenize build/compare build/columns build/timeline build/reviews  ## build the trainer and its tools
	@echo "./train_gpt2 is there. Next: make run trains a small GPT; ./train_gpt2 --help; make help"

train_gpt2: train_gpt2.c $(HEADERS) | compiler
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

build/%: dev/data/%.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $< -o $@ $(LDLIBS)

build/%: dev/%.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $< -o $@ $(LDLIBS)

build/%: dev/bench/%.c dev/bench/machine.h train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $< -o $@ $(LDLIBS)

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

# Several GPUs need NCCL: from $NCCL_HOME if that is set, from CUDA's folder, or the system's.
# A package may have libnccl.so.2 and no libnccl.so, so the file itself is linked. Where there is
# none of these, that of a Python package: PyTorch brings it along.
nccl_usual := $(CUDA_HOME) /usr/local /usr
nccl_python := $(if $(NVCC),$(if $(NCCL_HOME)$(wildcard $(nccl_usual:%=%/include/nccl.h)),,\
    $(shell python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)))
nccl_dirs = $(or $(NCCL_HOME),$(nccl_usual) $(nccl_python))
nccl_in = $(foreach d,$(nccl_dirs),$(sort $(wildcard $(addprefix $(d)/,$(1)))))
nccl_header := $(firstword $(call nccl_in,include/nccl.h))
nccl_library := $(firstword $(call nccl_in,lib64/libnccl.so* lib/libnccl.so* lib/*/libnccl.so*))
nccl_include := $(filter-out /usr/include /usr/local/include,$(patsubst %/,%,$(dir $(nccl_header))))
NCCL_FLAGS := $(if $(nccl_header),-DTIDE_NCCL $(addprefix -isystem ,$(nccl_include)))
NCCL := $(if $(and $(nccl_header),$(nccl_library)),$(NCCL_FLAGS) -Xlinker $(nccl_library) \
        -Xlinker -rpath$(comma)$(patsubst %/,%,$(dir $(nccl_library))))
say_nccl = @[ -n "$(NCCL)" ] || echo "built without NCCL: one GPU only (nccl.h and libnccl.so" \
    "are not in $(nccl_dirs); NCCL_HOME=folder says where they are)"

train_gpt2cu: train_gpt2.cu $(HEADERS) | nvcc  ## the GPU trainer (nvcc, cuBLASLt; NCCL if there)
	$(NVCC) $(NVFLAGS) $< -o $@ $(NVLIBS) $(NCCL)
	$(say_nccl)

.PHONY: nvcc
nvcc:
	@[ -n "$(NVCC)" ] || { echo "tide: no nvcc found: install the CUDA Toolkit (12.0 or newer), or" \
	    "use ./train_gpt2 (make) or the emulated GPU (make train_gpt2emu)" >&2; exit 2; }

# The emulated GPU (dev/emu/README.md): its runtime, and what is linked with it, in three flavours.
CXX := $(if $(filter default,$(origin CXX)),$(firstword $(foreach c,g++ clang++,$(if $(shell command -v $(c) 2>/dev/null),$(c),)) g++),$(CXX))
CLANGXX := $(shell command -v clang++ 2>/dev/null)
EMU = $(wildcard dev/emu/*.cpp dev/emu/*.h dev/emu/*.pl dev/emu/emucc dev/emu/include/*.h)
EMU_OBJECTS = $(patsubst dev/emu/%.cpp,%.o,$(wildcard dev/emu/*.cpp))
EMU_FLAGS = -g $(ARCH) $(EXACT) $(WARN) -Wno-pass-failed -I. -D__CUDACC__ -DTIDE_NCCL $(EXTRA)
EMU_RUN = -std=c++17 -g $(ARCH) $(WARN) $(EXTRA)
emu_plain = $(EMU_OBJECTS:%=build/emu/runtime/%)
emu_tsan = $(EMU_OBJECTS:%=build/emu/runtime-tsan/%)

build/emu/runtime/%.o: dev/emu/%.cpp $(EMU) tide/cpu.h tide/util.h | cxx
	@mkdir -p $(@D)
	$(CXX) $(EMU_RUN) -O3 $(OPENMP) -c $< -o $@

# The runtime of the ThreadSanitizer flavour is not instrumented itself: only the program is.
build/emu/runtime-tsan/%.o: dev/emu/%.cpp $(EMU) tide/cpu.h tide/util.h
	@mkdir -p $(@D)
	$(CLANGXX) $(EMU_RUN) -O2 -c $< -o $@

emucc = CXX=$(1) EMU_RUNTIME=build/emu/$(2) dev/emu/emucc

train_gpt2emu: build/emu/train_gpt2  ## the same sources on an emulated GPU
	cp $< $@

# A program NAME from its .cu, and with it the CPU trainer to be held against:
#   build/emu/NAME   on the emulated GPU        build/asan/emu/NAME   and AddressSanitizer
#   build/tsan/NAME  and ThreadSanitizer        build/gpu/NAME        on a real GPU
build/emu/train_gpt2: train_gpt2.cu $(HEADERS) $(emu_plain)
	$(call emucc,$(CXX),runtime) -O2 $(OPENMP) $(EMU_FLAGS) $< -o $@

vpath %.cu . dev/test dev/emu/test dev/bench
cpu_reference = dev/test/cpu_reference.c dev/test/cpu_reference.h train_gpt2.c test_gpt2.c
CUDA_SOURCES = train_gpt2.cu test_gpt2.c $(wildcard dev/test/*.cu)
GPU_BENCHES = $(patsubst dev/bench/%.cu,%,$(wildcard dev/bench/*.cu))
$(foreach flavour,emu gpu,$(GPU_BENCHES:%=build/$(flavour)/%)): dev/bench/timed.cuh

build/emu/%: %.cu $(HEADERS) $(emu_plain) build/emu/cpu_reference.o $(CUDA_SOURCES)
	$(call emucc,$(CXX),runtime) -O1 $(OPENMP) $(EMU_FLAGS) $< build/emu/cpu_reference.o -o $@

build/asan/emu/%: %.cu $(HEADERS) $(emu_plain) build/asan/emu/cpu_reference.o $(CUDA_SOURCES)
	$(call emucc,$(CXX),runtime) $(SANITIZE) $(OPENMP) $(EMU_FLAGS) $< \
	    build/asan/emu/cpu_reference.o -o $@

build/tsan/%: %.cu $(HEADERS) $(emu_tsan) build/tsan/cpu_reference.o $(CUDA_SOURCES)
	$(call emucc,$(CLANGXX),runtime-tsan) -O1 -fsanitize=thread $(EMU_FLAGS) $< \
	    build/tsan/cpu_reference.o -o $@

build/gpu/%: %.cu $(HEADERS) build/emu/cpu_reference.o $(CUDA_SOURCES) | nvcc
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) $< build/emu/cpu_reference.o -o $@ $(NVLIBS) $(NCCL)
	$(say_nccl)

# All tests of the GPU sources are one program, gpu_tests, which is called by the name of one.
GPU_TESTS = $(filter-out gpu_tests,$(patsubst dev/test/%.cu,%,$(wildcard dev/test/test_*.cu)))
define gpu_test_names
$(GPU_TESTS:%=build/$(1)/%): build/$(1)/gpu_tests
	@ln -sf gpu_tests $$@
endef
$(foreach flavour,emu asan/emu tsan gpu,$(eval $(call gpu_test_names,$(flavour))))

# Every CUDA source through nvcc, even where nothing can run: it keeps the emulator's headers honest.
# Any warning is an error here.
build/nvcc/%.o: %.cu $(HEADERS) $(CUDA_SOURCES) dev/test/device_only.sh
	@mkdir -p $(@D)
	$(NVCC) $(filter-out $(GPU_ARCH),$(NVFLAGS)) -Werror all-warnings -arch=sm_90 -Xptxas -O1 \
	    -Xcompiler -O0,-fno-inline $(NCCL_FLAGS) -c $< -o $@
	@sh dev/test/device_only.sh $@ || { rm $@; exit 1; }

build/emu/cpu_reference.o: $(cpu_reference) $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c $< -o $@

build/asan/emu/cpu_reference.o: $(cpu_reference) $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANITIZE) -c $< -o $@

build/tsan/cpu_reference.o: $(cpu_reference) $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(filter-out -fopenmp,$(CFLAGS)) -c $< -o $@

.SECONDARY: $(emu_plain) $(emu_tsan)
.PHONY: cxx
cxx: compiler  # one after the other: both may have to install something
	@command -v $(CXX) >/dev/null 2>&1 || sh dev/install_compiler.sh

# A fresh Debian or Ubuntu has no compiler: install one. Anywhere else, say what is missing.
.PHONY: compiler
compiler:
	@command -v $(CC) >/dev/null 2>&1 || sh dev/install_compiler.sh

# --- run -------------------------------------------------------------------------------------

# The embedded default: the project's own sources and documentation are the text.
DATA ?= build/self.txt
OUT ?= out/run
ARGS ?=
build/self.txt: $(wildcard *.c *.h *.cu tide/* *.md Makefile doc/*.md dev/*/*.c dev/*/*.md scripts/*.sh)
	@mkdir -p $(@D)
	cat $(sort $^) > $@

# On the GPU, if there is one and nvcc to compile for it.
TRAINER := $(if $(and $(NVCC),$(GPU)),train_gpt2cu,train_gpt2)

# What a shell must take for one word.
quoted_data = '$(subst ','\'',$(DATA))'
quoted_out = '$(subst ','\'',$(patsubst %/,%,$(OUT)))'

run_model = --model nano --context 64 --batch 16 --lr 4e-3

# Done in six minutes where two threads reach 40 GFLOP/s, little for a CPU with AVX2. In that time a
# short context learns most (doc/SPEED.md).
.PHONY: run
run: $(TRAINER) $(filter build/self.txt,$(DATA))  ## train a small GPT (DATA=file.txt: on your text)
	@IFS=; data=$(quoted_data); set -- $$data; [ -e "$$1" ] || \
	    { echo "tide: DATA=$$1: no such file" >&2; exit 2; }
	@said=$$(./$(TRAINER) --data $(quoted_data) $(run_model) $(ARGS) --steps 0 --eval-batches 1 \
	    2>&1 >/dev/null) || { echo "$$said" >&2; exit 2; }
	@out=$(quoted_out); \
	for lock in "$$out/.lock" "$$out-before/.lock"; do \
	    if [ -e "$$lock" ] && command -v flock >/dev/null && ! flock -n "$$lock" true; then \
	        echo "tide: $${lock%/.lock} is in use by a run that is still at work: OUT=... for another" >&2; \
	        exit 2; \
	    fi; \
	done; \
	if [ -e "$$out/log.jsonl" ]; then \
	    [ ! -e "$$out-before" ] || echo "the run in $$out-before is removed"; \
	    rm -rf "$$out-before" && mv "$$out" "$$out-before" && \
	    echo "the earlier $$out is $$out-before now"; \
	fi
	./$(TRAINER) --data $(quoted_data) --out $(quoted_out) $(run_model) --steps 1200 \
	    --eval-every 100 --save-every 300 --sample-every 400 --sample-tokens 400 $(ARGS)

# --- test ------------------------------------------------------------------------------------

# `make test` covers everything once, `make test-all` does what takes long: dev/test/README.md.
# What computes runs as it is shipped in the one and with AddressSanitizer in the other; what reads
# and writes the other way around.
UNIT = $(patsubst dev/test/%.c,%,$(wildcard dev/test/test_*.c))
FUZZ = $(patsubst dev/test/%.c,%,$(wildcard dev/test/fuzz_*.c))
COMPUTES = test_adam test_matmul test_offload test_plan test_rates test_rng test_vmath \
           test_zen_plan test_zenflow test_zero test_zo test_zo_plan
READS = $(filter-out $(COMPUTES),$(UNIT))
CLANG := $(shell command -v clang 2>/dev/null)
SCRIPTS = $(wildcard dev/test/test_*.sh dev/emu/test/test_*.sh)

TOOLS = train_gpt2 build/tokenize build/compare build/columns build/timeline build/reviews
TESTS = $(COMPUTES:%=build/test/%) build/test/test_gpt2 $(READS:%=build/asan/%) \
        $(FUZZ:%=build/asan/%) \
        $(patsubst %,build/emu/%,test_emu test_nccl $(GPU_TESTS)) \
        $(if $(and $(NVCC),$(GPU)),$(patsubst %,build/gpu/%,test_emu test_nccl $(GPU_TESTS)))
TEST_NEEDS = build/emu/gpu_tests train_gpt2emu \
             $(if $(NVCC),$(if $(GPU),train_gpt2cu build/gpu/gpu_tests,build/nvcc/gpu_tests.o)) \
             $(TOOLS) build/test/test_ranks build/emu/bugs

# What one flavour's program has of the GPU's tests; the others train, and are for test_schedules.sh.
KERNELS = test_kernels test_attention test_host test_columns_gpu
TRAINS = test_model test_placement test_zo_gpu test_zenflow_gpu test_zero_gpu
TESTS_ALL = $(READS:%=build/test/%) $(COMPUTES:%=build/asan/%) build/asan/test_gpt2 \
            build/plain/test_gpt2 \
            $(if $(CLANG),$(patsubst %,build/clang/%,test_adam test_rng test_matmul test_vmath \
                test_zo test_zenflow) build/tsan/test_ranks) \
            $(patsubst %,build/asan/emu/%,test_nccl $(KERNELS)) \
            $(if $(CLANGXX),$(patsubst %,build/tsan/%,test_nccl test_timeline $(KERNELS))) \
            $(patsubst %,build/emu/%,test_nccl test_timeline test_zen_time $(TRAINS)) \
            $(if $(and $(NVCC),$(GPU)),$(TRAINS:%=build/gpu/%))
TEST_ALL_NEEDS = build/asan/emu/gpu_tests $(if $(CLANGXX),build/tsan/gpu_tests) \
                 $(if $(NVCC),train_gpt2cu) build/emu/gpu_tests train_gpt2emu $(TOOLS) \
                 build/emu/bugs build/asan/emu/bugs $(if $(CLANGXX),build/tsan/bugs) \
                 $(TRAINS:%=build/asan/emu/%) $(if $(CLANGXX),$(TRAINS:%=build/tsan/%)) \
                 build/emu/test_emu $(GPU_BENCHES:%=build/emu/%) \
                 $(if $(NVCC),$(if $(GPU),,$(patsubst %,build/nvcc/%.o,gpu_tests test_emu \
                     test_nccl $(GPU_BENCHES))))

build/test/%: dev/test/%.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

build/test/test_trace build/asan/test_trace: dev/timeline.c

build/test/test_gpt2: test_gpt2.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

build/asan/%: dev/test/%.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANITIZE) $< -o $@ $(LDLIBS)

build/tsan/%: dev/test/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(filter-out -fopenmp,$(CFLAGS)) -O1 -fsanitize=thread $< -o $@ $(LDLIBS)

build/asan/test_gpt2: test_gpt2.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANITIZE) $< -o $@ $(LDLIBS)

# The same bits from the other compiler, and from a build for the oldest machine with one thread.
build/clang/%: dev/test/%.c train_gpt2.c $(HEADERS)
	@mkdir -p $(@D)
	clang $(CFLAGS) -Wno-pass-failed $< -o $@ $(LDLIBS) || \
	    clang $(filter-out -fopenmp,$(CFLAGS)) -Wno-pass-failed $< -o $@ $(LDLIBS)

build/plain/test_gpt2: test_gpt2.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(filter-out -fopenmp $(ARCH),$(CFLAGS)) $< -o $@ $(LDLIBS)

# The fuzzers' short run: a built-in mutator, so that any compiler will do.
build/asan/fuzz_%: dev/test/fuzz_%.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANITIZE) -DFUZZ_MAIN $< -o $@ $(LDLIBS)

build/fuzz/%: dev/test/%.c $(HEADERS)
	@mkdir -p $(@D)
	clang $(filter-out -fopenmp,$(CFLAGS)) $(SANITIZE) -fsanitize=fuzzer $< -o $@ $(LDLIBS)

machine = CLANG="$(CLANG)" CLANGXX="$(CLANGXX)" NVCC="$(NVCC)" GPU="$(GPU)"
.PHONY: test
test:  ## all features once, in minutes
	@sh dev/test/build.sh $(MAKE) $(TEST_NEEDS) $(TESTS)
	@$(machine) sh dev/test/run.sh $(SCRIPTS) $(TESTS)

.PHONY: test-all
test-all:  ## what `make test` leaves out: sanitizers, all schedules, other compilers
	@sh dev/test/build.sh $(MAKE) $(TEST_ALL_NEEDS) $(TESTS_ALL)
	@$(machine) ALL=1 sh dev/test/run.sh $(SCRIPTS) $(TESTS_ALL)

.PHONY: codegen-flags
codegen-flags:  # of dev/test/test_codegen.sh
	@echo '$(CFLAGS)'

.PHONY: sass-flags
sass-flags:  # of dev/test/test_sass.sh
	@echo '$(NVDEVICE)'

.PHONY: fuzz
FUZZ_SECONDS ?= 600
fuzz: $(FUZZ:%=build/fuzz/%)  ## long fuzzing of every parser (clang; FUZZ_SECONDS=600 each)
	@for f in $(FUZZ); do mkdir -p build/corpus/$$f; echo "== $$f"; \
	    build/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -print_final_stats=1 \
	    build/corpus/$$f || exit 1; done

# --- the rest --------------------------------------------------------------------------------

.PHONY: bench
BENCH = build/bench_matmul build/bench_adam build/bench_step \
        $(if $(and $(NVCC),$(GPU)),$(GPU_BENCHES:%=build/gpu/%))
bench: $(BENCH)  ## speed, as shares of limits measured in the same run
	@for b in $(BENCH); do $$b || exit 1; done

.PHONY: reference
reference:  ## recompute the reference fixtures and compare (needs python3-torch)
	python3 dev/reference/reference.py --check

.PHONY: clean
clean:  ## remove what was built (not what was trained)
	rm -rf build train_gpt2 train_gpt2cu train_gpt2emu

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile
