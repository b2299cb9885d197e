#!/usr/bin/env bash
# What a real GPU says: is the code correct there, and how fast? In two calls, as machines with one
# are lent for 900 seconds. From the top of the repository; needs no network.
#
#   dev/gpu_check.sh pack [DIR]     at home: builds all that the calls need into DIR (build/pack), a
#                                   few MB to be brought along. PACK_ARCH="80 90": for these (90)
#   dev/gpu_check.sh now OUT        490 s: is it correct, LLaMA too; how fast are training, each
#                                   kernel, offloading; the sanitizer
#   dev/gpu_check.sh then OUT       225 s: sampling, memory that is short, PyTorch's attention,
#                                   ZenFlow, NCCL, products
#   dev/gpu_check.sh part NAME OUT  one part of these, in LIMIT=570 seconds
#
# Each part (gpu_parts.sh) has a budget (calls(), below; BUDGETS="bench=60 zen=0" changes it), and
# is killed when it exceeds it. The table is whole after each part and printed last. Its rows have a
# verdict: right; WRONG; CUT, which did not end; or how far it is from what gpu_expected.txt says.
# OUT gets: table.md, for doc/gpu; rows.tsv, all rows; log.txt, all that was said; a trace;
# measured_rates.txt, for scripts/rates. An OUT of before becomes OUT-1, or the next free number.
# Programs come from the folder PACK (build/pack) if that is of these sources and they start here;
# what does not is built first. BUILD=1: all, if the folder is of others.
# RATES=FILE: the rates of an earlier call; else those that the last one has left in build/.
# Ends with 1 if anything is wrong. Slow is not wrong. TINY=1: tiny models, to try the script.
set -u -o pipefail
export LC_ALL=C

calls() {  # CALL: its seconds, then its parts with theirs, what is most worth knowing first
    case $1 in
        now) echo 490 tests=115 llama=65 train=90 bench=45 calibrate=30 hidden=85 sanitize=45 ;;
        then) echo 225 sample=25 visitors=70 attention=35 zen=45 nccl=25 products=25 ;;
        part) echo "${LIMIT:-570}" "$2=${LIMIT:-570}" ;;
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

# row WHAT MEASURED [NUMBER]: a row. What NUMBER, or else MEASURED, begins with is held against its
# range in gpu_expected.txt, if it has one there.
row() {
    local measured=$2${3:+; $3} verdict
    verdict=$(awk -F ' [|] ' -v key="$part: $1" -v x="${3:-$2}" -v device="$device" '
        $1 == "device" { other = index(device, $2) == 0 }
        NF == 4 && !other && !found && key ~ "^" $1 "$" && x ~ /^[-+]?[0-9]/ {
            found = 1
            said = x + 0 < $2 ? off($2) " below**" : x + 0 > $3 ? off($3) " above**" : "right"
            printf "%s to %s %s\t%s", $2, $3, $4, said
        }
        function off(end) {
            if (end == 0) return "**" x + 0
            x = 100 * (x - end) / end
            return sprintf("**%.1f %%", x < 0 ? -x : x)
        }' "$expected")
    put "$1" "$measured" "${verdict:-$'\t'}"
}
put() {  # WHAT MEASURED EXPECTED-AND-VERDICT
    printf '%s\t%s\t%s\t%s\n' "$part" "$1" "${2//$'\t'/ }" "$3" | tee -a "$out/rows.tsv" \
        | awk -F '\t' '$5 != "" { print $1 ": " $2 ": " $3 ": " $5 }'
}
good() { put "$1" "$2" $'\tright'; }
bad() { put "$1" "$2" $'\t**WRONG**'; }
cut_off() { put "$1" "$2" $'\t**CUT**'; }

table() {
    {
        echo "### $(date -u +%Y-%m-%d), $(commit), $device: $call"
        awk -F '\t' '
            { gsub(/\|/, "/") }
            $5 ~ /WRONG|CUT/ { wrong++ }
            $5 != "" { row[++rows] = sprintf("| %.14s | %.52s | %.150s | %.30s | %s |",
                                             $1, $2, $3, $4, $5) }
            $1 == "facts" { printf "%s%s: %s", n++ ? "; " : "\n", $2, $3 }
            END {
                print "\n\n| part | what | measured | expected | verdict |\n|---|---|---|---|---|"
                for (i = 1; i <= rows; i++) print row[i]
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
        mkdir -p build/gpu
        for name in $programs; do
            from=$pack/${name//\//+}.xz
            rm -f "$name"
            { { xz -dc "$from" || python3 -c 'import lzma, sys
sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' "$from"; } >"$name" 2>/dev/null
            chmod +x "$name"; } &
        done
        wait
        find_libraries
        for name in $programs; do
            ldd "$name" >"$work/ldd" 2>&1 && ! grep 'not found' "$work/ldd" >>"$out/log.txt" \
                || missing="$missing $name"
        done
        # or they are for another processor
        [[ $missing = *train_gpt2cu* ]] || ./train_gpt2cu --help >/dev/null 2>&1 \
            || missing=" $programs"
        # shellcheck disable=SC2086  # make would take it for up to date
        rm -f $missing
    elif [ -e "$pack/manifest" ] && [ "${BUILD:-0}" != 1 ]; then
        die "$pack is of other sources: dev/gpu_check.sh pack; or BUILD=1, to build here"
    fi
    [ -n "$missing" ] || return
    row "programs" "built here, as they are not in $pack, or do not start:$missing"
    echo "$missing" >"$work/missing"
    run_part build 400
}

# --- a call --------------------------------------------------------------------------------------

# kill_session ID: all that a part has started. False if something will not end, as in a driver.
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
    row "$1" "$(($(now) - began)) s of $2"
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
    cat "$out/table.md"
    grep -q 'WRONG\*\|CUT\*' "$out/rows.tsv" && exit 1
    exit 0
}

main() {  # CALL OUT, or part NAME OUT
    local spec budget
    call=$1 out=${*: -1} running=''
    # shellcheck source=scripts/common.sh
    . scripts/common.sh
    nvidia-smi -L >/dev/null 2>&1 || die "no GPU: nvidia-smi finds none"
    [ -z "${RATES-}" ] || [ -r "$RATES" ] || die "RATES: cannot read $RATES"
    if [ -e "$out/rows.tsv" ]; then aside "$out" ${RATES:+"$RATES"}
    elif [ -n "$(ls -A "$out" 2>/dev/null)" ]
    then die "$out has other files: choose another OUT"; fi
    mkdir -p "$out" || exit
    out=$(cd "$out" && pwd)
    work=$(mktemp -d) || exit
    export work out call device
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
    trap finish EXIT
    trap 'exit 1' TERM INT HUP
    : >"$out/rows.tsv"
    part=facts
    row "GPU" "$(nvidia-smi --format=csv,noheader --query-gpu=memory.total,driver_version,$(
        )pcie.link.gen.current,clocks.max.sm,power.limit | head -n 1)"
    row "host" "$(nproc) x$(sed -n 's/^model name.*://p' /proc/cpuinfo | head -n 1), $(
        sed -n 's/^MemTotal: *//p' /proc/meminfo), $(uname -sr)"
    part=data  # a text; random tokens: speed does not depend on what they say
    cat ./*.c ./*.h tide/*/*.h README.md >"$work/text.txt"
    (cd dev/bench && PYTHONDONTWRITEBYTECODE=1 python3 -c "import make_llmc_inputs as inputs
inputs.VOCAB = 32000  # the smallest of the models
inputs.write_tokens('$work/tokens.bin', 1 << 21, 1)") || bad "random tokens" "python3 is needed"
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
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_MODULE_LOADING=LAZY
export LIBRARIES=${LIBRARIES-${LD_LIBRARY_PATH-}}  # of the machine, for others than our programs
# Programs that find these set do not start themselves again (cpu_wait_briefly in tide/cpu/cpu.h):
# the sanitizer follows the first process only.
export GOMP_SPINCOUNT=1000 KMP_BLOCKTIME=1
case ${1-}:$# in
    pack:[12]) make_pack "${2-}" ;;
    now:2 | then:2) main "$@" ;;
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
