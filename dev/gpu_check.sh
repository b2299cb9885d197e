#!/usr/bin/env bash
# What a real GPU says: is the code correct there, and how fast? In calls of less than ten minutes,
# as machines with one are lent by the minute. From the top of the repository; needs no network.
#
#   dev/gpu_check.sh pack [DIR]     at home: builds all that the calls need into DIR (build/pack), a
#                                   few MB to be brought along. PACK_ARCH="80 90": for these (90)
#   dev/gpu_check.sh first OUT      570 s: is it correct, how fast is training, does offloading hide
#                                   behind it?
#   dev/gpu_check.sh offload OUT    570 s: a model beyond the GPU, in every placement; each kernel
#   dev/gpu_check.sh rest OUT       575 s: training with measured algorithms, ZeRO, ZenFlow, zeroth
#                                   order, more checks
#   dev/gpu_check.sh part NAME OUT  one part of these, or of: offload_more (the update alone; 1.5B
#                                   under caps; 7B, 13B), 20b (on an H200 with 128 GiB of host
#                                   memory), zen_more (7B and larger), zo_more (streams; OPT-13B
#                                   to 66B), torch (compiled). LIMIT=570 seconds
#
# Each part (gpu_parts.sh) has a budget of its own (calls(), below; BUDGETS="bench=60 zo=0" changes
# it), and is killed and marked when it exceeds it; the table is whole after each. It is printed
# last: what was measured, its share of the device's limit, and what was expected
# (gpu_expected.txt), with a mark where it is not that. OUT gets: table.md, a section for
# doc/gpu_results.md; rows.tsv, all rows; log.txt, all that was said; measured_rates.txt, for
# scripts/rates/; a trace, and times by kernel. An OUT of an earlier call becomes OUT-1, or the next
# number that is free.
# Programs come from the folder PACK (build/pack) if that is of these sources and they start here;
# what does not is built first. BUILD=1: all, if the folder is of others.
# RATES=FILE: the rates of an earlier call.
# Ends with 1 if anything is wrong: a test that failed, bits that differ, a part that did not end.
# Slow is not wrong. TINY=1: models of a few thousand parameters, to try the script itself.
set -u -o pipefail
export LC_ALL=C

calls() {  # CALL: its seconds, then its parts with theirs, what is most worth knowing first
    case $1 in
        first) echo 570 facts=8 probe=20 tests=85 train=95 calibrate=40 hidden=75 curves=30 \
                    products=40 kernels=45 sanitize=40 torch=90 ;;
        offload) echo 570 facts=25 calibrate=30 slice=110 placement=170 whole=90 bench=45 \
                      drift=45 ;;
        rest) echo 575 facts=8 tune=130 nccl=35 zen=95 zo=100 tests_all=100 twice=20 attention=40 \
                   sanitize_all=40 ;;
        part) echo "${LIMIT:-570}" facts=10 "$2=${LIMIT:-570}" ;;
    esac
}
programs="train_gpt2cu train_gpt2 build/compare build/timeline build/tokenize build/gpu/gpu_tests \
    build/gpu/gpu_tests_fp32 build/gpu/gpu_tests_fp16 build/gpu/test_emu build/gpu/test_nccl \
    build/gpu/bench_probe build/gpu/bench_gpu build/gpu/bench_offload build/gpu/bench_zen \
    build/gpu/bench_zo build/gpu/bench_zo_fp32 build/gpu/bench_zo_fp16"

die() { echo "gpu_check: $*" >&2; exit 2; }
usage() { sed -n '2,/^set/p' "$self" | sed '/^set/d; s/^# \{0,1\}//'; exit 2; }
now() { date +%s; }
sources() {
    cat ./*.c ./*.h ./*.cu tide/*/* Makefile dev/*.{c,h} dev/*/*.{c,h,cu,cuh} dev/emu/test/*.cu | cksum \
        | cut -d' ' -f1
}
commit() {
    git rev-parse --short HEAD 2>/dev/null || sed -n 's/^commit //p' "$pack/manifest" 2>/dev/null \
        || echo "unknown"
}
self=$(cd "$(dirname "$0")" && pwd)/gpu_check.sh
expected=${EXPECTED:-${self%/*}/gpu_expected.txt}
tiny=${TINY:-0} pack=${PACK:-build/pack}

# --- rows and their table ------------------------------------------------------------------------

# row LEVEL WHAT MEASURED [LIMIT]: a row of level 1 is in the table, of level 2 in rows.tsv only. The
# number that LIMIT, or else MEASURED, begins with may have a range in gpu_expected.txt; then the row
# is of level 1.
row() {
    local said level=$1
    said=$(awk -F ' [|] ' -v key="$part: $2" -v x="${4:-$3}" -v device="$(cat "$work/device")" '
        $1 == "device" { other = index(device, $2) == 0 }
        NF == 4 && key ~ "^" $1 "$" && x ~ /^[-+]?[0-9]/ && (said == "" || said == "\t") {
            mark = x + 0 < $2 ? "**below**" : x + 0 > $3 ? "**above**" : "as expected"
            said = (other ? "" : $2 " to " $3 " " $4) "\t" (other ? "" : mark)
        }
        END { printf "%s", said }' "$expected")
    [ -z "$said" ] || level=1
    put "$level" "$2" "$3" "${4-}" "${said:-$'\t'}"
}
put() {
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$part" "$1" "$2" "${3//$'\t'/ }" "$4" "$5" \
        | tee -a "$out/rows.tsv" | awk -F '\t' '$2 == 1 { print $1 ": " $3 ": " $4, $5, $7 }'
}
bad() { put 1 "$1" "$2" "" $'\t**FAIL**'; }
good() { put "${3:-1}" "$1" "$2" "" $'\tok'; }
cut_off() { put 1 "$1" "$2" "" $'\t**CUT**'; }

table() {
    {
        echo "### $(date -u +%Y-%m-%d), $(commit), $(cat "$work/device"): $call"
        printf '\n%s\n' "| part | what | measured | of its limit | expected | |"
        echo "|---|---|---|---|---|---|"
        awk -F '\t' '
            $7 ~ /FAIL|CUT/ { wrong++ }
            $2 == 1 {
                gsub(/\|/, "/")
                printf "| %.14s | %.52s | %.150s | %.34s | %.30s | %s |\n", $1, $3, $4, $5, $6, $7
            }
            END {
                print "\n" (wrong > 0 ? "**" wrong " wrong.**" : "Nothing is wrong.") \
                      " All " NR " rows are in rows.tsv."
            }' "$out/rows.tsv"
    } >"$work/table" && mv "$work/table" "$out/table.md"
}

# --- the pack ------------------------------------------------------------------------------------

# Built in a tree of its own, as what lies here may be for this machine only; stripped, compressed.
make_pack() {
    local dir=${1:-build/pack} tree=build/pack.tree arch='' name kb limit=${PACK_LIMIT:-60000}
    for name in ${PACK_ARCH:-90}; do arch="$arch -gencode arch=compute_$name,code=sm_$name"; done
    # shellcheck source=scripts/common.sh
    . scripts/common.sh
    if [ -n "${1-}" ]; then new_folder "$dir"; else rm -rf "$dir" && mkdir -p "$dir" || exit; fi
    mkdir -p "$tree" || exit
    tar -c --exclude=./build --exclude=./out --exclude=./data --exclude=./.git \
        --exclude=./train_gpt2 --exclude=./train_gpt2cu --exclude=./train_gpt2emu . \
        | tar -x -C "$tree" || die "cannot copy the sources to $tree"
    # shellcheck disable=SC2086
    make -C "$tree" -k -j"$(nproc)" GPU_ARCH="${arch# }" ARCH="${ARCH:--march=x86-64-v3}" \
        $programs >"$tree/log" 2>&1 \
        || die "make: $(grep -m 1 -E 'error|Error' "$tree/log"), in $tree/log"
    {
        echo "commit $(commit)$(git diff --quiet HEAD 2>/dev/null || echo +)"
        echo "sources $(cd "$tree" && sources)"
        echo "for$arch, ${ARCH:--march=x86-64-v3}; made $(date -u +%Y-%m-%d)"
        for name in $programs; do
            strip -o "$dir/one" "$tree/$name" || exit
            echo "program $name $(cksum <"$dir/one" | cut -d' ' -f1)"
            xz -T0 -c "$dir/one" >"$dir/${name//\//+}.xz" || exit
        done
    } >"$dir/manifest" || die "cannot write to $dir"
    rm -f "$dir/one"
    kb=$(du -s --apparent-size -B 1000 "$dir" | cut -f1)
    if [ "$kb" -gt "$limit" ]; then
        rm -rf "$dir"
        die "the pack would have $kb kB, more than $limit: PACK_ARCH=90 for one architecture"
    fi
    echo "$dir: $(wc -w <<<"$programs") programs, $kb kB"
}

starts() { ldd "$1" >"$work/ldd" 2>&1 && ! grep 'not found' "$work/ldd" >>"$out/log.txt"; }

# Libraries that the system does not find may lie in CUDA's folder or in Python's packages.
find_libraries() {
    local dir site
    # shellcheck disable=SC2086
    ldd $programs 2>/dev/null | grep -q 'not found' || return
    site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
    for dir in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 "$site"/nvidia/*/lib; do
        [ -d "$dir" ] && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$dir"
    done
}

# Puts the packed programs in their places, and builds what does not start: a part like others.
bring() {
    local name from missing=" $programs"
    part=pack
    if [ "$(sed -n 's/^sources //p' "$pack/manifest" 2>/dev/null)" = "$(sources)" ]; then
        missing=''
        for name in $programs; do
            from=$pack/${name//\//+}.xz
            rm -f "$name"
            mkdir -p "$(dirname "$name")"
            { xz -dc "$from" || python3 -c 'import lzma, sys
sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' "$from"; } >"$name" 2>/dev/null
            chmod +x "$name"
        done
        find_libraries
        for name in $programs; do starts "$name" || missing="$missing $name"; done
        # or they are for another processor
        [[ $missing = *train_gpt2cu* ]] || ./train_gpt2cu --help >/dev/null 2>&1 \
            || missing=" $programs"
        # shellcheck disable=SC2086  # make would take it for up to date
        rm -f $missing
    elif [ -e "$pack/manifest" ] && [ "${BUILD:-0}" != 1 ]; then
        die "$pack is of other sources: dev/gpu_check.sh pack; or BUILD=1, to build here"
    fi
    [ -n "$missing" ] || return
    row 1 "programs" "built here, as they are not in $pack, or do not start:$missing"
    command -v nvcc >/dev/null || bad "nvcc" "is not there: install the CUDA Toolkit"
    echo "$missing" >"$work/missing"
    run_part build 400
}

# --- a call --------------------------------------------------------------------------------------

# kill_session ID: all that a part has started, whatever process group it is in. False if something
# will not end: a driver that hangs keeps a process for ever.
kill_session() {
    local alive last=$(($(now) + 15))
    while alive=$(cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$1" '
        { id = $1; sub(/.*\) /, "") }  # then: its state, parent, group, session
        $4 == session && $1 != "Z" { print id }'); [ -n "$alive" ]; do
        [ "$(now)" -lt "$last" ] || return 1
        # shellcheck disable=SC2086
        kill -KILL $alive 2>/dev/null
        sleep 0.1
    done
}

run_part() {  # NAME SECONDS
    local limit=$2 code began
    part=$1 began=$(now)
    [ $((end - began - 4)) -ge "$limit" ] || limit=$((end - began - 4))
    [ "$limit" -ge 4 ] || { cut_off "$1" "left out: no time left"; table; return; }
    until=$((began + limit)) setsid timeout --foreground -s KILL "$limit" bash "$self" _part "$1" &
    running=$!
    wait $running
    code=$?
    kill_session $running || bad "$1" "something in it cannot be killed"
    case $code in
        0) ;;
        137) cut_off "$1" "killed after its $limit s" ;;
        *) bad "$1" "the part ended with code $code" ;;
    esac
    running=''
    row 2 "$1" "$(($(now) - began)) s of $2"
    table
}

finish() {
    local code=$?
    trap - EXIT TERM INT HUP
    [ $code -ne 2 ] || { rm -rf "$work"; exit 2; }  # die() has said why
    if [ -n "$running" ]; then
        kill_session "$running" && wait "$running" 2>/dev/null
        cut_off "$part" "the call was ended"
    fi
    table
    rm -rf "$work"
    find "$out" -maxdepth 1 -size +15M -exec gzip -f {} +
    echo
    cat "$out/table.md"
    grep -q 'FAIL\|CUT' "$out/rows.tsv" && exit 1
    exit 0
}

main() {  # CALL OUT, or part NAME OUT
    local spec budget
    call=$1
    out=${*: -1}
    # shellcheck source=scripts/common.sh
    . scripts/common.sh
    nvidia-smi -L >/dev/null 2>&1 || die "no GPU: nvidia-smi finds none"
    if [ -e "$out/rows.tsv" ]; then aside "$out" ${RATES:+"$RATES"}
    elif [ -n "$(ls -A "$out" 2>/dev/null)" ]; then die "$out has other files: choose another OUT"; fi
    mkdir -p "$out" || exit
    out=$(cd "$out" && pwd)
    work=$(mktemp -d) || exit
    running=''
    export work out call
    nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 >"$work/device"
    trap finish EXIT
    trap 'exit 1' TERM INT HUP
    : >"$out/rows.tsv"
    part=data  # a text; random tokens of the whole vocabulary: speed does not depend on what they say
    cat ./*.c ./*.h tide/*/*.h README.md >"$work/text.txt"
    (cd dev/bench && PYTHONDONTWRITEBYTECODE=1 python3 -c "from make_llmc_inputs import write_tokens
write_tokens('$work/tokens.bin', 1 << 21, 1)") || bad "random tokens" "python3 is needed"
    # shellcheck disable=SC2046
    set -- $(calls "$@")
    end=$(($(now) - SECONDS + $1))
    shift
    bring
    for spec in "$@"; do
        budget=$(tr ' ' '\n' <<<"${BUDGETS-}" | sed -n "s/^${spec%=*}=//p")
        [ "${budget:=${spec#*=}}" = 0 ] || run_part "${spec%=*}" "$budget"
    done
    exit 0
}

cd "${self%/*}/.." || exit
export PATH="$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin"
for dir in /opt/nvidia/nsight-compute/*/; do PATH=$PATH:${dir%/}; done
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_MODULE_LOADING=LAZY
export LIBRARIES=${LIBRARIES-${LD_LIBRARY_PATH-}}  # of the machine, for others than our programs
# Programs that find these set do not start themselves again (cpu_wait_briefly in tide/cpu/cpu.h): the
# profiler and the sanitizer follow the first process only.
export GOMP_SPINCOUNT=1000 KMP_BLOCKTIME=1
case ${1-}:$# in
    pack:[12]) make_pack "${2-}" ;;
    first:2 | offload:2 | rest:2) main "$@" ;;
    part:3)
        grep -q "^part_$2()" dev/gpu_parts.sh || die "no part $2: $(
            sed -n 's/^part_\([a-z0-9_]*\)().*/\1/p' dev/gpu_parts.sh | tr '\n' ' ')"
        main "$@" ;;
    _part:2)
        part=$2
        # shellcheck source=dev/gpu_parts.sh
        . dev/gpu_parts.sh
        "part_$2" </dev/null
        exit 0 ;;
    *) usage ;;
esac
