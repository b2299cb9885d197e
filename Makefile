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
LDLIBS = -lm
HEADERS = $(wildcard *.h dev/test/*.h)
SANITIZE = -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

.PHONY: all
all: train_gpt2 build/tokenize build/compare  ## build the trainer and its tools

train_gpt2: train_gpt2.c $(HEADERS) | compiler
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

build/%: dev/data/%.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $< -o $@ $(LDLIBS)

build/%: dev/%.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $< -o $@ $(LDLIBS)

build/%: dev/bench/%.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. $< -o $@ $(LDLIBS)

# A fresh Debian or Ubuntu has no compiler: install one. Anywhere else, say what is missing.
.PHONY: compiler
compiler:
	@command -v $(CC) >/dev/null 2>&1 || sh dev/install_compiler.sh

# --- run -------------------------------------------------------------------------------------

# The embedded default: the project's own sources and documentation are the text.
DATA ?= build/self.txt
OUT ?= out/run
ARGS ?=
build/self.txt: $(wildcard *.c *.h *.md Makefile doc/*.md dev/*/*.c dev/*/*.md scripts/*.sh)
	@mkdir -p $(@D)
	cat $(sort $^) > $@

.PHONY: run
run: train_gpt2 $(DATA)  ## train a small GPT for a few minutes (DATA=file.txt: on your text)
	@if [ -e $(OUT) ]; then mv $(OUT) $(OUT)-$$(date -r $(OUT) +%Y%m%d-%H%M%S) && \
	    echo "the earlier $(OUT) was renamed"; fi
	./train_gpt2 --data $(DATA) --out $(OUT) --model nano --batch 16 --steps 1500 --lr 2e-3 \
	    --eval-every 100 --save-every 250 --sample-every 500 --sample-tokens 400 $(ARGS)

# --- test ------------------------------------------------------------------------------------

UNIT = $(patsubst dev/test/%.c,%,$(wildcard dev/test/test_*.c))
FUZZ = $(patsubst dev/test/%.c,%,$(wildcard dev/test/fuzz_*.c))
CLANG := $(shell command -v clang 2>/dev/null)
TESTS = $(UNIT:%=build/test/%) build/test/test_gpt2 build/plain/test_gpt2 $(UNIT:%=build/asan/%) \
        build/asan/test_gpt2 $(FUZZ:%=build/asan/%) \
        $(if $(CLANG),$(patsubst %,build/clang/%,test_adam test_rng test_matmul test_vmath))

build/test/%: dev/test/%.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

build/test/test_gpt2: test_gpt2.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< -o $@ $(LDLIBS)

build/asan/%: dev/test/%.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANITIZE) $< -o $@ $(LDLIBS)

build/asan/test_gpt2: test_gpt2.c train_gpt2.c $(HEADERS) | compiler
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANITIZE) $< -o $@ $(LDLIBS)

# The same bits from the other compiler, and from a build for the oldest machine with one thread.
build/clang/%: dev/test/%.c $(HEADERS)
	@mkdir -p $(@D)
	clang $(CFLAGS) $< -o $@ $(LDLIBS) || clang $(filter-out -fopenmp,$(CFLAGS)) $< -o $@ $(LDLIBS)

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

.PHONY: test
test: train_gpt2 build/tokenize build/compare $(TESTS)  ## all tests
	@CLANG="$(CLANG)" sh dev/test/run.sh $(TESTS)

.PHONY: fuzz
FUZZ_SECONDS ?= 600
fuzz: $(FUZZ:%=build/fuzz/%)  ## long fuzzing of every parser (clang; FUZZ_SECONDS=600 each)
	@for f in $(FUZZ); do mkdir -p build/corpus/$$f; echo "== $$f"; \
	    build/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -print_final_stats=1 \
	    build/corpus/$$f || exit 1; done

# --- the rest --------------------------------------------------------------------------------

.PHONY: bench
bench: build/bench_matmul build/bench_adam build/bench_step  ## speed, as shares of limits measured in the same run
	@build/bench_matmul && build/bench_adam && build/bench_step

.PHONY: reference
reference:  ## recompute the reference fixtures and compare (needs python3-torch)
	python3 dev/reference/reference.py --check

.PHONY: clean
clean:  ## remove what was built (not what was trained)
	rm -rf build train_gpt2

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
