#!/bin/sh
# Do the tests of nvcc's code (test_ptx.sh) notice mistakes that only nvcc's code has? Those are the
# lines of mutants.list whose name begins with "ptx":
#     NAME :: FILE :: LINE :: OLD :: NEW :: KERNEL :: TEST
# In a line of FILE that only nvcc sees, OLD is NEW; that the emulated GPU's program is the same as
# before, so that its own tests pass, is checked. If FILE is "ptx", the mistake is one that a
# compiler could make: the line is the first with LINE (or the last) in nvcc's code for KERNEL. Then
# TEST runs with nvcc's code for KERNEL, and must fail. (Without a mistake: test_ptx.sh.)
# usage: sh dev/test/mutants.sh ptx [PATTERN]     (from the top; a quarter of an hour)
set -u
export LC_ALL=C
here=$PWD
nvcc=$(make -s --no-print-directory print-NVCC)
flags=$(make -s --no-print-directory print-NVDEVICE)
cxx="$(make -s --no-print-directory print-CXX) $(make -s --no-print-directory print-PTX_FLAGS) -O0"
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
[ -n "$(make -s --no-print-directory print-PTX)" ] || { echo "skip mutants_ptx: no nvcc"; exit 0; }
make -s -j"$jobs" build/emu/gpu_tests build/ptx/registry.o build/ptx/bf16_sm_90.ptx >/dev/null ||
    exit 1
export OMP_NUM_THREADS=1 EMU_THREADS=1 EMU_MEM_MB=2000
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# preprocessed FOLDER: what the emulated GPU's compiler gets, without the lines' numbers
preprocessed() {
    (cd "$1" && g++ -E -P -x c++ -std=c++17 -D__CUDACC__ -I "$here/dev/emu/include" -I. \
        -include cuda_runtime.h -DENABLE_BF16 train_gpt2.cu)
}
preprocessed "$here" >"$work/plain"

# passes FOLDER KERNEL TEST: with FOLDER/bf16_sm_90.ptx
passes() {
    python3 dev/ptx/ptx2c.py --only "$2" "$1/k" "$1/bf16_sm_90.ptx" >"$1/log" 2>&1 &&
    for part in 0 table; do
        $cxx -c "$1/k.$part.cpp" -o "$1/k.$part.o" >>"$1/log" 2>&1 || return 2
    done &&
    g++ -fopenmp build/emu/gpu_tests.o build/emu/cpu_reference.o "$1"/k.*.o build/ptx/registry.o \
        build/emu/runtime/*.o -lpthread -o "$1/$3" >>"$1/log" 2>&1 || return 2
    PTX=bf16_sm_90 PTX_REPORT="$1/report" timeout 900 "$1/$3" >>"$1/log" 2>&1 || return 1
    grep -q '^bf16' "$1/report" || return 2
}

# try NUMBER: the verdict about a line of the list
try() {
    line=$(sed -n "$1p" "$work/list")
    name=${line%% :: *}
    mkdir "$work/$1"
    (
        cd "$work/$1" || exit 1
        printf '%s\n' "$line" | PTX_FILE="$here/build/ptx/bf16_sm_90.ptx" HERE="$here" \
            perl "$here/dev/test/mutants_ptx.pl" || exit 1
        [ ! -e tree ] && exit
        preprocessed tree | cmp -s - "$work/plain" || { echo "the emulated GPU sees it"; exit 1; }
        cd tree &&
            $nvcc $flags -arch=compute_90 -DENABLE_BF16 -ptx train_gpt2.cu -o ../bf16_sm_90.ptx
    ) >"$work/$1.log" 2>&1 || { echo "FAIL mutant $name: $(head -n 2 "$work/$1.log")"; return; }
    kernel=$(printf '%s' "$line" | sed 's/ :: [^:]*$//; s/.* :: //')
    passes "$work/$1" "$kernel" "${line##* :: }"
    case $? in
        0) echo "FAIL mutant $name: not noticed" ;;
        1) echo "ok $name: $(grep -m 1 '^FAIL\|^emulated GPU' "$work/$1/log" | cut -c1-90)" ;;
        *) echo "FAIL mutant $name: $(tail -n 2 "$work/$1/log")" ;;
    esac
    rm -rf "${work:?}/$1"
}

grep '^ptx ' dev/test/mutants.list | grep -F -- "${1:-}" >"$work/list"
number=0
total=$(wc -l <"$work/list")
while [ $number -lt "$total" ]; do
    number=$((number + 1))
    try $number &
    [ $((number % jobs)) -ne 0 ] || wait
done
wait
