#!/bin/sh
# test_codegen.sh: are the hot loops vector code? Compiles them (codegen.c) with the Makefile's
# flags for many processors with every compiler that is there, and reads the assembly (codegen.awk).
# The product has to have fused multiply-adds of the widest registers, and its sums in registers;
# every other loop has to have vectors of 256 bits, or of 128 on ARM.
# ALL=1: more processors, and as C++. CODEGEN_CC="path path": other compilers, too.
# usage: [ALL=1] sh dev/test/sources/test_codegen.sh [COMPILER PROCESSOR]  (from the top of the repository;
#        the second form also prints every loop)
set -u
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Function, how many vector loops it has at least, and
#   product: the widest registers, no sums in memory;
#   tail: what is left over has lines of its own, or a copy of the outer loop for no columns at all.
# 0: loops of at most 64 elements, which some compilers unroll into the one around them. That they
# are not scalar is seen all the same: there, too, each line needs packed arithmetic somewhere.
table='
gemm_tile 1 product
gemm_tile_narrow 1 product
fma_chains 1 product
adam_range 20
accumulate_range 4 tail
hot_norm 1 tail
hot_to_bf16 1
hot_from_bf16 1
hot_zo_round_fp16 1
hot_zo_round_bf16 1
rng_normals 1
zen_sums 1
zo_perturb 0
zo_update 1'
c_table='
hot_exp 1
hot_tanh 1
hot_max 1
encoder_forward 1
encoder_backward 1
layernorm_forward 4
layernorm_backward 2
matmul_backward 0
heads_forward 3
heads_backward 4
attention_forward 2
attention_row_backward 2
activation_forward 3 tail
activation_backward 3
residual_forward 1
crossentropy 3 tail
gemv 1 tail
attention_cached 3'
echo "$table" | tee "$work/c++.table" >"$work/fp16.table"
echo "$table$c_table" >"$work/c.table"

intel='native x86-64-v3'
arm='armv8-a'
if [ "${ALL:-0}" = 1 ]; then
    intel="$intel icelake-server x86-64-v4 haswell skylake-avx512
        cascadelake sapphirerapids graniterapids sierraforest znver1 znver3 znver4 znver5"
    arm="$arm neoverse-n1 neoverse-v1 neoverse-v2 apple-m1"
fi
flags=$(make -s --no-print-directory print-CFLAGS ARCH= OPENMP=) || exit 1
cxx_flags=$(echo "$flags" | sed 's/-std=[a-z0-9+]*/-std=c++17 -x c++/')

# check COMPILER PROCESSOR LANGUAGE; fp16 is C++ for the GPU trainer in that precision
check() {
    cc=$1 processor=$2 language=$3
    name="codegen_$(basename "$cc")_${processor}_$language"
    case $processor in
        neoverse* | apple*) target=-mcpu=$processor ;;
        *) target=-march=$processor ;;
    esac
    case $cc,$processor in
        *clang*,armv8* | *clang*,neoverse* | *clang*,apple*)
            target="--target=aarch64-linux-gnu $target" ;;
    esac
    options=$flags
    [ "$language" = c ] || options=$cxx_flags
    [ "$language" != fp16 ] || options="$cxx_flags -DENABLE_FP16"
    # $options, $target and $openmp are lists of words.
    if ! "$cc" $target -dM -E -x c /dev/null >"$work/macros" 2>/dev/null; then
        echo "skip $name: this compiler does not know the processor"
        return
    fi
    openmp=
    for try in -fopenmp -fopenmp-simd; do
        printf '#include <math.h>\n#ifdef _OPENMP\n#include <omp.h>\n#endif\n' >"$work/try.c"
        "$cc" $options -w $target $try -S "$work/try.c" -o "$work/try.s" 2>/dev/null &&
            openmp=$try && break
    done
    if [ -z "$openmp" ]; then
        echo "skip $name: no headers or no compiler for this"
        return
    fi
    if ! "$cc" $options -g1 -w $target $openmp -S dev/test/sources/codegen.c -o "$work/hot.s" \
        >"$work/errors" 2>&1; then
        cat "$work/errors"
        echo "FAIL $name: does not compile"
        return
    fi
    bits=128 widest=128 is_arm=0
    if has __AVX__; then widest=256; fi
    if has __AVX2__ && ! has __znver1; then bits=256; fi  # Zen 1's units have 128, and gcc knows
    if has __AVX512F__; then widest=512; fi
    if has __aarch64__; then is_arm=1; fi
    awk -v arm=$is_arm -v bits=$bits -v widest=$widest -v show="${show-}" \
        -f dev/test/sources/codegen.awk "$work/$language.table" "$work/hot.s" >"$work/said"
    code=$?
    sed 's/^\([^ ]\)/  \1/' "$work/said"
    complaint=$(grep -v '^ ' "$work/said" | head -n 1)
    if [ $code -ne 0 ]; then echo "FAIL $name: codegen.awk ended with code $code"
    elif [ -n "$complaint" ]; then echo "FAIL $name: $complaint"
    else echo "ok $name"; fi
}
has() { grep -q "^#define $1 " "$work/macros"; }

if [ $# -eq 2 ]; then
    show=1
    check "$1" "$2" c
    exit
fi

for cc in ${CC:-gcc} clang aarch64-linux-gnu-gcc ${CODEGEN_CC-}; do
    if ! command -v "$cc" >/dev/null; then
        echo "skip codegen_$(basename "$cc"): not on this machine"
        continue
    fi
    case $cc in
        *aarch64*) processors=$arm ;;
        *clang*) processors="$intel $arm" ;;
        *) processors=$intel ;;
    esac
    if [ "$(uname -m)" != x86_64 ]; then processors=native; fi
    first=1
    for processor in $processors; do
        check "$cc" "$processor" c
        [ "${ALL:-0}" = 1 ] || continue
        if [ $first -eq 1 ]; then check "$cc" "$processor" c++; fi  # here, one will do
        if [ "$processor" = x86-64-v3 ] || [ "$processor" = armv8-a ]; then
            check "$cc" "$processor" fp16
        fi
        first=0
    done
done
