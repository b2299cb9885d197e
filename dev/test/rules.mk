# rules.mk: the tests' programs, and the targets that run them; a part of the Makefile, whose flags
# and flavours it takes. dev/test/README.md says what is run where.

# A program NAME from its .c:              build/test/NAME   as it is shipped
#   build/asan/NAME   AddressSanitizer; a fuzzer with a mutator of its own, so any compiler will do
#   build/tsan/NAME   ThreadSanitizer     build/fuzz/NAME   clang's fuzzer
#   build/clang/NAME  the same bits from the other compiler
#   build/plain/NAME  from a build for the oldest machine, with one thread
CLANG := $(shell command -v clang 2>/dev/null)
alone = $(filter-out -fopenmp,$(CFLAGS))
SANITIZE = -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
$(eval $(call program,test/,$$(CC) $$(CFLAGS)))
$(eval $(call program,asan/,$$(CC) $$(CFLAGS) $(SANITIZE) -DFUZZ_MAIN))
$(eval $(call program,tsan/,$(CLANG) $$(alone) -O1 -fsanitize=thread))
$(eval $(call program,fuzz/,$(CLANG) $$(alone) $(SANITIZE) -fsanitize=fuzzer))
$(eval $(call program,clang/,$(CLANG) $$(alone) -fopenmp-simd -Wno-pass-failed))
$(eval $(call program,plain/,$$(CC) $$(filter-out $$(ARCH),$$(alone))))

# The emulated GPU's runtime for ThreadSanitizer, which is not instrumented itself: only the program is.
CLANGXX := $(shell command -v clang++ 2>/dev/null)
emu_tsan = $(EMU_OBJECTS:%=build/emu/runtime-tsan/%)
$(eval $(call runtime,runtime-tsan,$(CLANGXX) -O2))
.SECONDARY: $(emu_tsan)

# All tests of the GPU sources are one program for each precision, gpu_tests, gpu_tests_fp32 and
# gpu_tests_fp16, which is called by the name of a test: test_model, test_model_fp32.
vpath %.cu . dev/test/gpu dev/emu/test dev/bench
GPU_TESTS = $(patsubst dev/test/gpu/%.cu,%,$(wildcard dev/test/gpu/test_*.cu))
TRAINS = test_model test_placement test_zo_gpu test_zenflow_gpu test_zero_gpu
GPU_TESTS_fp32 = $(addsuffix _fp32,$(TRAINS) test_gpt2cu test_plan)
GPU_TESTS_fp16 = $(addsuffix _fp16,$(TRAINS))
GPU_ALL = $(GPU_TESTS) $(GPU_TESTS_fp32) $(GPU_TESTS_fp16)
GPU_BENCHES = $(patsubst dev/bench/%.cu,%,$(wildcard dev/bench/*.cu)) bench_zo_fp16 bench_zo_fp32
gpu_programs = gpu_tests gpu_tests_fp32 gpu_tests_fp16

# A program NAME from its .cu, and with it the CPU trainer to be held against:
#   build/emu/NAME   on the emulated GPU        build/asan/emu/NAME   and AddressSanitizer
#   build/tsan/NAME  and ThreadSanitizer        build/gpu/NAME        on a real GPU
CUDA_SOURCES = train_gpt2.cu test_gpt2.c $(wildcard dev/test/gpu/*.cu) dev/bench/timed.cuh
define cuda_program
build/$(1)/%$(6): %.cu $(HEADERS) build/$(1)/cpu_reference$(filter _fp16,$(6)).o $(CUDA_SOURCES) $(4)
	$(3) $(subst _fp,-DENABLE_FP,$(6)) $$< build/$(1)/cpu_reference$(filter _fp16,$(6)).o -o $$@ $(5)
$(GPU_TESTS$(6):%=build/$(1)/%): build/$(1)/gpu_tests$(6)
	@ln -sf gpu_tests$(6) $$@
endef
# folder, how to compile the CPU trainer and the program, what it needs, what it is linked with
define cuda_programs
build/$(1)/cpu_reference.o build/$(1)/cpu_reference_fp16.o: dev/test/gpu/cpu_reference.c train_gpt2.c test_gpt2.c $(HEADERS) | compiler
	@mkdir -p $$(@D)
	$$(CC) $(2) $$(if $$(findstring fp16,$$@),-DENABLE_FP16) -c $$< -o $$@
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
build/nvcc/%.o: %.cu $(HEADERS) $(CUDA_SOURCES) dev/test/gpu/device_only.sh
	@mkdir -p $(@D)
	$(NVCC) $(filter-out $(GPU_ARCH),$(NVFLAGS)) -Werror all-warnings -arch=sm_90 -Xptxas -O1 \
	    -Xcompiler -O0,-fno-inline $(NCCL_FLAGS) -c $< -o $@
	@sh dev/test/gpu/device_only.sh $@ || { rm $@; exit 1; }

# What nvcc makes of the kernels, in the emulated GPU's tests (doc/ptx.md): PTX of each precision for
# two GPUs, in C++, is linked with what build/emu/gpu_tests was; test_ptx.sh runs it.
PTX := $(and $(NVCC),$(shell command -v python3 2>/dev/null))
PTX_SETS = $(foreach p,bf16 fp32 fp16,$(p)_sm_80 $(p)_sm_90)
PTX_PARTS = $(patsubst %,build/ptx/kernels.%,0 1 2 3 4 5 6 7 table)
PTX_FLAGS = -std=c++17 $(ARCH) $(EXACT) -Idev/emu/include -Idev/ptx -D__CUDACC__ $(EXTRA)
ptx_macro = $(subst fp,FP,$(subst bf,BF,$(firstword $(subst _, ,$(1)))))
build/ptx/%.ptx: train_gpt2.cu $(HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(filter-out -lineinfo,$(NVDEVICE)) -arch=compute_$(lastword $(subst _, ,$*)) \
	    -DENABLE_$(call ptx_macro,$*) -ptx $< -o $@
build/ptx/kernels.made: dev/ptx/ptx2c.py $(PTX_SETS:%=build/ptx/%.ptx)
	python3 $< --parts 8 build/ptx/kernels $(filter %.ptx,$^) >$@.new
	@mv $@.new $@
# (An empty recipe: make looks at them again, and compiles those that have changed.)
$(PTX_PARTS:%=%.cpp): build/ptx/kernels.made ;
$(PTX_PARTS:%=%.o): %.o: %.cpp dev/ptx/ptx.h $(EMU)
	$(CXX) $(PTX_FLAGS) -Og -c $< -o $@
build/ptx/registry.o: dev/ptx/registry.cpp dev/ptx/ptx.h $(EMU)
	@mkdir -p $(@D)
	$(CXX) $(PTX_FLAGS) -O1 $(WARN) -c $< -o $@
ptx_programs = $(gpu_programs:%=build/ptx/%)
$(ptx_programs): build/ptx/%: build/emu/% $(PTX_PARTS:%=%.o) build/ptx/registry.o $(emu_plain)
	$(CXX) $(OPENMP) $(EXTRA) $<.o build/emu/cpu_reference$(findstring _fp16,$*).o $(filter %.o,$^) -lpthread -o $@

# `make test` covers each feature once, `make test-all` does the rest: dev/test/README.md.
# What computes runs as it is shipped in the one and with AddressSanitizer in the other; what reads
# and writes the other way around.
UNIT = $(patsubst dev/test/c/%.c,%,$(wildcard dev/test/c/*.c))
FUZZ = $(patsubst dev/test/fuzz/%.c,%,$(wildcard dev/test/fuzz/*.c))
COMPUTES = test_adam test_finetune test_layers test_matmul test_offload test_rates test_rehearsal \
           test_rng test_vmath test_zenflow test_zero test_zo
READS = $(filter-out $(COMPUTES),$(UNIT))
# Of each kind all are one program, which is called by the name of a test (build/units/test_adam),
# so that the headers are compiled once. Those that put another function in the place of one, or
# that contain another program, stand APART.
APART = test_checkpoint_ranks test_ranks test_trace test_unpickle
computes = test_gpt2 $(COMPUTES)
reads = $(filter-out $(APART),$(READS))
define units
build/units/$(1).c: dev/test/rules.mk
	@mkdir -p $$(@D)
	@{ for t in $$($(1)); do f=dev/test/c/$$$$t.c; [ -e $$$$f ] || f=$$$$t.c; \
	    printf '#define main main_of_%s\n#include "%s"\n#undef main\n' $$$$t $$$$f; done; \
	    echo 'int main(int argc, char **argv) { const char *name = strrchr(argv[0], 47) + 1;'; \
	    for t in $$($(1)); do printf 'if (!strcmp(name, "%s")) return main_of_%s();\n' $$$$t $$$$t; done; \
	    echo 'return argc; }'; } >$$@
build/test/$(1) build/asan/$(1): $(wildcard dev/test/c/*.c)
$$($(1):%=build/units/%): build/test/$(1)
	@ln -sf ../test/$(1) $$@
$$($(1):%=build/units-asan/%): build/asan/$(1)
	@mkdir -p $$(@D) && ln -sf ../asan/$(1) $$@
endef
$(eval $(call units,computes))
$(eval $(call units,reads))
# What needs the trainers and their tools alone, beginning with what takes longest.
CLI = dev/test/cli/test_scripts.sh \
      $(filter-out %/test_scripts.sh %/test_schedules.sh,$(wildcard dev/test/cli/test_*.sh))
OTHERS = $(filter-out $(CLI),$(wildcard dev/test/*/test_*.sh dev/emu/test/test_*.sh))
SCRIPTS = $(filter-out %/test_scripts.sh,$(CLI)) $(filter %/test_tools.sh %/test_house.sh %/test_emu_bugs.sh,$(OTHERS))

in = $(patsubst %,build/$(1)/%,$(2))
on = emu $(if $(and $(NVCC),$(GPU)),gpu)
TESTS = $(foreach o,$(on),$(call in,$(o),test_emu $(GPU_TESTS))) \
        $(call in,units,$(computes)) $(call in,units-asan,$(reads)) $(call in,asan,$(APART))
# (With ALL=1 the whole emulated trainer; else one without fp16, which takes as long to compile as bf16.)
build/emu/no_fp16.o: | cxx
	@mkdir -p $(@D)
	echo 'struct Run; int train_fp16(Run *) { return 3; }' | $(CXX) -x c++ -c - -o $@
build/emu/train_gpt2emu: $(filter-out %_FP16.o,$(call trainer,emu)) build/emu/no_fp16.o $(emu_plain)
	$(CXX) $(OPENMP) $(EXTRA) $^ -lpthread -o $@
TEST_NEEDS = $(if $(filter 1,$(ALL)),,build/emu/)train_gpt2emu $(TOOLS) build/emu/bugs $(if $(word 2,$(on)),train_gpt2cu)

# The kernels' tests, which are short enough for each sanitizer; those that train are for
# test_schedules.sh.
KERNELS = test_kernels test_attention test_host test_columns_gpu
TESTS_ALL = $(foreach o,$(on),$(call in,$(o),test_emu test_nccl $(GPU_ALL))) \
            $(call in,units,$(reads)) $(call in,units-asan,$(computes)) \
            $(call in,test,$(APART)) $(call in,asan,$(FUZZ)) \
            $(call in,plain,test_gpt2 test_layers) \
            $(if $(CLANG),build/tsan/test_ranks $(call in,clang,test_adam test_rng test_matmul \
                test_vmath test_zo test_zenflow)) \
            $(call in,asan/emu,test_nccl $(KERNELS)) \
            $(if $(CLANGXX),$(call in,tsan,test_nccl test_timeline $(KERNELS)))
TEST_ALL_NEEDS = $(foreach o,asan/emu $(if $(CLANGXX),tsan),$(call in,$(o),gpu_tests bugs \
                     gpu_tests_fp32 $(TRAINS) $(TRAINS:%=%_fp32))) \
                 $(call in,emu,$(GPU_ALL) bugs test_emu test_nccl $(GPU_BENCHES)) train_gpt2emu \
                 $(TOOLS) $(if $(PTX),$(ptx_programs)) \
                 $(if $(NVCC),train_gpt2cu $(if $(GPU),,$(patsubst %,build/nvcc/%.o,gpu_tests \
                     test_emu test_nccl $(filter-out bench_zo_%,$(GPU_BENCHES)))))

machine = CLANG="$(CLANG)" CLANGXX="$(CLANGXX)" NVCC="$(NVCC)" GPU="$(GPU)"
# A test runs as soon as its own program is there; a script needs several.
.PHONY: $(patsubst %,run/%,$(sort $(TESTS) $(TESTS_ALL)) $(CLI) $(OTHERS))
$(sort $(TESTS:%=run/%) $(TESTS_ALL:%=run/%)): run/%: %
	@sh dev/test/run.sh --one $*
$(CLI:%=run/%): $(TEST_NEEDS)
$(OTHERS:%=run/%): $(if $(filter 1,$(ALL)),$(TEST_ALL_NEEDS),$(TEST_NEEDS))
$(patsubst %,run/%,$(CLI) $(OTHERS)): run/%:
	@sh dev/test/run.sh --one $*

test:  ## all features once, in minutes
	@$(machine) MAKE="$(MAKE)" sh dev/test/run.sh $(TESTS) $(SCRIPTS)

test-all:  ## what `make test` leaves out: sanitizers, all schedules, other compilers
	@$(machine) MAKE="$(MAKE)" ALL=1 sh dev/test/run.sh $(CLI) $(OTHERS) $(TESTS_ALL)

print-%:  # a variable, for scripts
	@echo '$($*)'

FUZZ_SECONDS ?= 600
fuzz: $(FUZZ:%=build/fuzz/%)  ## long fuzzing of every parser (clang; FUZZ_SECONDS=600 each)
	@for f in $(FUZZ); do mkdir -p build/corpus/$$f; echo "== $$f"; \
	    build/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -print_final_stats=1 \
	    build/corpus/$$f || exit 1; done

BENCH = build/bench_matmul build/bench_adam build/bench_step build/bench_tokenizer \
        $(if $(and $(NVCC),$(GPU)),$(GPU_BENCHES:%=build/gpu/%))
bench: $(BENCH)  ## speed, as shares of limits measured in the same run
	@for b in $(BENCH); do $$b || exit 1; done

reference:  ## recompute the reference fixtures and compare (needs python3-torch)
	python3 dev/reference/reference.py --check
