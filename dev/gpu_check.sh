#!/usr/bin/env bash
# What a real GPU says: is the code correct there, and how fast? In calls of less than ten minutes, as
# machines with one are lent by the minute. From the top of the repository; needs no network.
#
#   dev/gpu_check.sh pack [DIR]       at home: builds all that the calls need into DIR (build/pack), a few
#                                     MB to be brought along. PACK_ARCH="80 90": for these (90)
#   dev/gpu_check.sh first OUT        560 s: is it correct, and how fast is training?
#   dev/gpu_check.sh offload OUT      520 s: a model beyond the GPU, in every placement
#   dev/gpu_check.sh rest OUT         450 s: training again, ZeRO, ZenFlow, zeroth order, more checks
#   dev/gpu_check.sh part NAME OUT    one part of these, or of: offload_more (the update alone; 1.5B under
#                                     caps; 13B), zen_more (7B and larger), zo_more (streams; OPT-13B to
#                                     66B), torch (compiled). LIMIT=570 seconds
#
# Each part has a budget of its own (calls(), below; BUDGETS="bench=60 ..." changes it), and is killed
# and marked when it exceeds it; the table is whole after each. It is printed last: what was measured,
# its share of the device's limit, and what was expected (gpu_expected.txt), with a mark where it is
# not that. OUT gets at most eight files: table.md, a section for doc/gpu_results.md; rows.tsv, all rows;
# h200_measured.txt from `offload`, for scripts/rates/; the logs. What a call needs comes from the folder
# PACK (build/pack) if that is of these sources and starts here; else it is built meanwhile, and its
# parts wait. Ends with 1 if anything is wrong: a test that failed, bits that differ, a part that did
# not end. Slow is not wrong. TINY=1: models of a few thousand parameters, to try the script itself.
set -u -o pipefail
export LC_ALL=C

calls() {  # CALL: its seconds, then its parts with theirs, what is most worth knowing first
    case $1 in
        first) echo 560 facts=30 probe=25 tests=115 train=115 products=45 curves=40 bench=35 \
                    kernels=55 attention=45 sanitize=55 ;;
        offload) echo 520 facts=15 calibrate=40 slice=190 placement=60 whole=160 drift=55 ;;
        rest) echo 450 facts=15 train=95 nccl=45 zen=75 zo=90 tests_all=60 twice=20 sanitize_all=50 ;;
        part) echo "${LIMIT:-570}" facts=15 "$2=${LIMIT:-570}" ;;
    esac
}
programs="train_gpt2cu train_gpt2 build/compare build/timeline build/tokenize build/gpu/gpu_tests \
    build/gpu/test_emu build/gpu/test_nccl build/gpu/bench_probe build/gpu/bench_gpu \
    build/gpu/bench_offload build/gpu/bench_zen build/gpu/bench_zo"

die() { echo "gpu_check: $*" >&2; exit 2; }
usage() { sed -n '2,/^set/p' "$0" | sed '/^set/d; s/^# \{0,1\}//'; exit 2; }
now() { date +%s; }
self=$(cd "$(dirname "$0")" && pwd)/gpu_check.sh
expected=${EXPECTED:-$(dirname "$self")/gpu_expected.txt}
tiny=${TINY:-0}
sources() { cat ./*.c ./*.h ./*.cu ./*.cuh Makefile dev/*.c dev/*/*.{c,h,cu,cuh} dev/emu/test/*.cu \
    | cksum | cut -d' ' -f1; }

# --- rows ------------------------------------------------------------------------------------------

# row LEVEL WHAT MEASURED [LIMIT [VALUE]]: LEVEL 0 is always in the table, 1 where there is room, 2 after
# that. VALUE is what gpu_expected.txt has a range for, under "part: what".
row() {
    local said
    said=$(awk -F ' *[|] *' -v key="$part: $2" -v x="${5-}" -v device="$(cat "$work/device")" '
        $1 == "device" && index(device, $2) == 0 { exit }
        x != "" && $1 == key { printf "%s to %s %s\t%s", $2, $3, $4,
            (x + 0 < $2 ? "**below**" : x + 0 > $3 ? "**above**" : "as expected"); exit }' "$expected")
    put "$1" "$2" "$3" "${4-}" "${said:-$'\t'}"
}
put() {  # and what happens to a row: one line of a file, and of what is on the screen
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$part" "$1" "$2" "${3//$'\t'/ }" "$4" "$5" | tee -a "$out/rows.tsv" \
        | awk -F '\t' '$2 < 2 { print $1 ": " $3 ": " $4, $5, $7 }'
}
bad() { put 0 "$1" "$2" "" $'\t**FAIL**'; }
good() { put "${3:-1}" "$1" "$2" "" $'\tok'; }
cut_off() { put 0 "$1" "$2" "" $'\t**CUT**'; }

# The table: rows of level 0, then of 1, then of 2, as far as 100 lines and 12,000 characters go, in
# their order.
table() {
    awk -F '\t' -v head="### $(date -u +%Y-%m-%d), $(commit), $(cat "$work/device"): $call" '
        function cell(x, most) { gsub(/\|/, "/", x); return length(x) > most ? substr(x, 1, most - 2) ".." : x }
        {
            line[NR] = "| " cell($1, 14) " | " cell($3, 52) " | " cell($4, $2 == 0 ? 150 : 62) " | " \
                       cell($5, 34) " | " cell($6, 30) " | " $7 " |"
            level[NR] = $2
            if ($7 ~ /FAIL|CUT/) wrong++
        }
        END {
            lines = 94
            left = 11300 - length(head)
            for (l = 0; l <= 2; l++)
                for (i = 1; i <= NR; i++)
                    if (level[i] == l && lines > 0 && length(line[i]) + 1 <= left) {
                        shown[i] = 1
                        lines--
                        left -= length(line[i]) + 1
                    } else if (level[i] == l) more++
            print head "\n\n| part | what | measured | of its limit | expected | |\n|---|---|---|---|---|---|"
            for (i = 1; i <= NR; i++) if (shown[i]) print line[i]
            printf "\n%s%s\n", (wrong > 0 ? "**" wrong " wrong.**" : "Nothing is wrong."),
                   (more > 0 ? " " more " more rows are in rows.tsv." : "")
        }' "$out/rows.tsv" >"$out/table.new" && mv "$out/table.new" "$out/table.md"
}
commit() {
    git rev-parse --short HEAD 2>/dev/null || sed -n 's/^commit //p' "$pack/manifest" 2>/dev/null \
        || echo "sources $(sources)"
}

# --- what parts share ------------------------------------------------------------------------------

left() { echo $((until - $(now))); }

# limited SECONDS COMMAND...: never longer than that, nor than the part may take. 124: it was too slow.
limited() {
    local limit=$1 left
    shift
    left=$(($(left) - 1))
    [ "$left" -lt "$limit" ] && limit=$left
    [ "$limit" -lt 1 ] && return 124
    timeout -k 2 "$limit" "$@"
}
why() { if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then echo "not done in time"; else echo "ended with code $1"; fi; }
log() { printf '\n== %s\n' "$*"; }
lines() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }

# field NAME FILE: that number from every training line of a log.jsonl.
field() { sed -n "/\"loss\"/s/.*\"$1\":\([^,}]*\).*/\1/p" "$2"; }
median() { sort -g | awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'; }
calculate() { awk "BEGIN { printf \"%.4g\", $* }"; }

# needs PROGRAM...: waits for those that are being built.
needs() {
    local program flag
    for program in "$@"; do
        flag=$work/built/${program//\//_}
        while grep -qx "$program" "$work/missing" && [ ! -e "$flag" ]; do
            [ -e "$work/built/all" ] && { bad "$program" "was not built: $(grep -m 1 -E \
                'error|Error' "$out/tests.log")"; return 1; }
            sleep 0.3
        done
    done
}

# train NAME LIMIT PROGRAM OPTIONS...: a run to its end, into $work/NAME; what it says is in NAME.log.
train() {
    local name=$1 limit=$2 code
    shift 2
    rm -rf "${work:?}/$name"
    limited "$limit" "$@" --out "$work/$name" --eval-every 0 >"$work/$name.log" 2>&1
    code=$?
    { log "$part, $name: $*"; cat "$work/$name.log"; } >>"$out/train.log"
    [ $code -eq 0 ] || bad "$name" "$(why $code): $(tail -n 1 "$work/$name.log")"
    return $code
}

# Random tokens of the whole vocabulary: speed does not depend on what they say.
data() {
    [ "$tiny" = 1 ] && { echo "$work/text.txt"; return; }
    [ -e "$work/tokens.bin" ] || (cd dev/bench && PYTHONDONTWRITEBYTECODE=1 python3 -c \
        "from make_llmc_inputs import write_tokens; write_tokens('$work/tokens.bin', 1 << 21, 1)") || exit
    echo "$work/tokens.bin"
}

mib_of_gpu() { nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1 | tr -cd 0-9; }

# Shapes for the GPU that is here: name, layers, channels, heads, sequence, batch, steps.
shapes() {
    local mib
    mib=$(mib_of_gpu)
    if [ "$tiny" = 1 ]; then printf '%s\n' "124M 1 32 2 16 2 4" "7B 1 64 2 32 1 4"
    elif [ "${mib:-0}" -gt 120000 ]; then printf '%s\n' "124M 12 768 12 1024 32 60" \
        "1.5B 48 1600 25 1024 16 16" "7B,_8_layers 8 4096 32 2048 8 14" "1.5B 48 1600 25 1024 32 10" \
        "7B,_all_layers 32 4096 32 2048 1 12"
    elif [ "${mib:-0}" -gt 70000 ]; then printf '%s\n' "124M 12 768 12 1024 32 60" \
        "1.5B 48 1600 25 1024 8 16" "7B,_8_layers 8 4096 32 2048 4 14"
    elif [ "${mib:-0}" -gt 38000 ]; then printf '%s\n' "124M 12 768 12 1024 16 60" \
        "1.5B 48 1600 25 1024 2 16"
    else echo "124M 12 768 12 1024 4 60"; fi
}
shape_options() {  # LAYERS CHANNELS HEADS SEQ BATCH
    echo "--layers $1 --channels $2 --heads $3 --context $4 --seq $4 --batch $5 --vocab" \
         "$([ "$tiny" = 1 ] && echo 300 || echo 50257) --recompute none"
}

# whole_steps NAME LAYERS CHANNELS HEADS SEQ BATCH STEPS: training, with power and clocks beside it: the
# medians of where it draws power.
whole_steps() {
    local name="${1//_/ }, $6 x $5" run=whole_$1_$6 steps=$7 sampler power percent
    nvidia-smi --query-gpu=power.draw,clocks.sm,temperature.gpu --format=csv,noheader,nounits -lms 200 \
        >"$work/power" 2>/dev/null &
    sampler=$!
    # shellcheck disable=SC2046  # options are words
    train "$run" 80 ./train_gpt2cu --data "$(data)" $(shape_options "${@:2:5}") --steps "$steps" --no-save
    local code=$?
    kill -9 $sampler 2>/dev/null
    wait $sampler 2>/dev/null
    [ $code -eq 0 ] || return
    power=$(awk -F ', *' '{ w[NR] = $1; mhz[NR] = $2; c[NR] = $3; if ($1 > most) most = $1 }
        END { for (i = 1; i <= NR; i++) if (w[i] >= 0.7 * most) { n++; W += w[i]; M += mhz[i]
              if (c[i] > C) C = c[i] }
              if (n > 0) printf "%.0f W, %.0f MHz, %d C", W / n, M / n, C }' "$work/power")
    percent=$(sed -n 's/.*| \([0-9]*\) % of peak.*/\1/p' "$work/$run.log" | tail -n +4 | median)
    row 0 "$name" "$(field tokens_per_s "$work/$run/log.jsonl" | tail -n +4 | median) tokens/s, $(
        field ms "$work/$run/log.jsonl" | tail -n +4 | median) ms, ${power:-power not known}" \
        "${percent:+$percent % of peak}" "$percent"
}

# --- facts -----------------------------------------------------------------------------------------

memory() { awk -v name="$1:" '$1 == name { printf "%.1f", $2 / 1048576 }' /proc/meminfo; }

part_facts() {
    local mib before
    row 1 "GPU" "$(cat "$work/device"), $(nvidia-smi \
        --query-gpu=memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current \
        --format=csv,noheader | head -n 1) (memory, driver, PCIe)"
    row 1 "clocks, power" "$(nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu \
        --format=csv,noheader | head -n 1) (most SM, most memory, limit, C)"
    row 1 "CPU" "$(getconf _NPROCESSORS_ONLN) of $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1); huge pages $(
        grep -o '\[.*\]' /sys/kernel/mm/transparent_hugepage/enabled); $(uname -sr)"
    row 1 "software" "CUDA $(nvcc --version 2>/dev/null | sed -n 's/.*release \([^,]*\).*/\1/p'), PyTorch $(
        limited 20 python3 -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none); locked $(
        ulimit -l) KiB"
    [ "$call" = first ] || [ "$call" = part ] || return 0
    before="MemTotal $(memory MemTotal), available $(memory MemAvailable) GiB"
    row 1 "host memory before" "$before"
    needs build/gpu/bench_probe || return
    mib=$(awk '{ m = $1 < 102400 ? 102400 : $1 }  # what it has once it has grown
               END { print m }' <<<"$(awk '/MemTotal/ { print int($2 / 1024 * 0.8) }' /proc/meminfo)")
    [ "$tiny" = 1 ] && mib=20
    limited 20 build/gpu/bench_probe touch "$mib" >"$work/touch" 2>&1 \
        || row 0 "host memory touched" "ended with code $? at $(tail -n 1 "$work/touch")"
    { log touch; cat "$work/touch"; } >>"$out/bench.log"
    probe_rows "$work/touch"
    row 1 "MemTotal after touching" "$(memory MemTotal) GiB, available $(memory MemAvailable)" "" \
        "$(memory MemTotal)"
}

# probe_rows FILE: those of bench_probe that are "what, number, unit"; what is indented names the row above.
probe_rows() {
    local what value unit
    awk 'length($0) > 56 && substr($0, 57, 13) ~ /^ +[-0-9.]+$/ {
        what = substr($0, 1, 56); sub(/ +$/, "", what); sub(/^ +/, "", what)
        split(substr($0, 57), x, " ")
        print what "\t" x[1] "\t" x[2] }' "$1" | while IFS=$'\t' read -r what value unit; do
        case $what in *after*s | "longest call" | "of alone"*) set -- 2 ;; *) set -- 1 ;; esac
        row "$1" "$what" "$value $unit" "" "$value"
    done
}

part_probe() {
    local log=$work/probe flag=''
    needs build/gpu/bench_probe || return
    [ "$tiny" = 1 ] && flag=--tiny
    # shellcheck disable=SC2086
    limited 12 build/gpu/bench_probe $flag host >"$log" 2>&1 || bad "host functions" "$(why $?): $(tail -n 1 "$log")"
    # shellcheck disable=SC2086
    limited 20 build/gpu/bench_probe $flag copies >>"$log" 2>&1 || bad "copies" "$(why $?): $(tail -n 1 "$log")"
    { log probe; cat "$log"; } >>"$out/bench.log"
    sed 's/^  of alone, /host function beside kernels, /' "$log" >"$log.rows"
    probe_rows "$log.rows"
}

# --- correctness -----------------------------------------------------------------------------------

# run_test LIMIT TEST: one; its row. They run beside each other.
run_test() {
    local limit=$1 test=$2 code name one
    name=$(basename "$test" .sh)
    one=$work/test_$name.log
    if [ -e "$test" ]; then
        case $test in
            *.sh) TIDE_GPU=./train_gpt2cu limited "$limit" sh "$test" ;;
            *) limited "$limit" "$test" ;;
        esac >"$one" 2>&1
        code=$?
    else echo "it is not there" >"$one"; code=127; fi
    { log "$test"; cat "$one"; } >"$one.all"
    if [ $code -ne 0 ] || grep -q '^FAIL ' "$one" || ! grep -q '^ok \|^skip ' "$one"; then
        bad "$name" "$(grep -c '^FAIL ' "$one") failed, $(grep -c '^ok ' "$one") ok, $(why $code): $({
            grep -m 1 '^FAIL ' "$one" || tail -n 1 "$one"; } | cut -c1-120)"
    else
        good "$name" "$(grep -c '^ok ' "$one") ok$(sed -n 's/^skip \(.*\)/; skipped \1/p' "$one" | head -n 1)" 2
    fi
}

# run_tests LIMIT TEST...: four at a time, and what all have said.
run_tests() {
    local limit=$1 test worst
    shift
    for test in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
        run_test "$limit" "$test" &
    done
    wait
    cat "$work"/test_*.log.all >>"$out/tests.log"
    worst=$(grep -ho 'error / allowance[^0-9]*[0-9.][-+.e0-9]*' "$work"/test_*.log \
        | sed 's/.*[^-+.e0-9]//' | sort -g | tail -n 1)
    row 1 "$# programs" "$(cat "$work"/test_*.log | grep -c '^ok ') ok, $(cat "$work"/test_*.log \
        | grep -c '^FAIL ') failed${worst:+; largest error / allowance $worst}"
    rm -f "$work"/test_*.log "$work"/test_*.log.all
}

# All tests of the GPU sources, those that say most first.
gpu_tests() {
    local name first="test_matmul_gpu test_attention test_kernels test_gpt2cu_bf16 test_model test_gpt2cu \
        test_host test_placement test_timeline"
    for name in $first; do echo "build/gpu/$name"; done
    for name in dev/emu/test/test_*.cu dev/test/test_*.cu; do
        name=$(basename "$name" .cu)
        case " $first " in *" $name "*) ;; *) echo "build/gpu/$name" ;; esac
    done
}
part_tests() {
    needs build/gpu/gpu_tests build/gpu/test_emu build/gpu/test_nccl || return
    set -- build/gpu/test_columns_gpu build/gpu/test_emu
    # shellcheck disable=SC2046  # one word per test
    [ "$tiny" = 1 ] || set -- $(gpu_tests)
    run_tests 70 "$@"
}
part_tests_all() { ALL=1 part_tests; }  # whole covering sets: a GPU is fast

# A run is: its losses, its norms, and the weights that it leaves.
same_run() {
    local a=$work/$1 b=$work/$2 name
    for name in loss grad_norm; do
        if ! cmp -s <(field $name "$a/log.jsonl") <(field $name "$b/log.jsonl") \
            || [ "$(field $name "$a/log.jsonl" | wc -l)" -eq 0 ]; then bad "$3" "$name differs"; return; fi
    done
    if cmp -s "$a/model.safetensors" "$b/model.safetensors"; then good "$3" "the same bits"
    else bad "$3" "the weights differ"; fi
}

# twice PRECISION: the same run twice, and with recomputation.
twice() {
    local name steps=100 options="--data $work/text.txt --model nano --batch 5 --seq 250 --accum 2"
    [ "$tiny" = 1 ] && steps=3 options="--data $work/text.txt $(shape_options 2 32 2 16 2) --accum 2"
    for name in once twice block; do
        # shellcheck disable=SC2046,SC2086
        train "${name}_$1" 40 ./train_gpt2cu $options --steps $steps --precision "$1" \
              --recompute $([ $name = block ] && echo block || echo none) &
    done
    wait
    same_run "once_$1" "twice_$1" "$steps steps in $1, twice"
    same_run "once_$1" "block_$1" "with recomputation, $1"
}
part_twice() { needs train_gpt2cu && { twice fp32; twice bf16; }; }

# One step's rounding differs in the seventh digit in fp32 and in the third in bf16; training makes
# of that what the bounds below allow.
part_curves() {
    local precision difference bound steps=100 cpu
    local options="--layers 3 --heads 3 --channels 96 --context 64 --batch 8 --lr 1e-3"
    [ "$tiny" = 1 ] && steps=4 options="--layers 1 --heads 2 --channels 32 --context 16 --batch 2"
    options="--data $work/text.txt $options --steps $steps"
    needs train_gpt2cu train_gpt2 || return
    # shellcheck disable=SC2086
    train cpu 38 ./train_gpt2 $options &
    cpu=$!
    for precision in fp32 bf16; do
        # shellcheck disable=SC2086
        train "gpu_$precision" 38 ./train_gpt2cu $options --precision $precision &
    done
    twice bf16  # waits for these, too
    wait $cpu
    for precision in fp32 bf16; do
        bound=0.0001
        [ $precision = bf16 ] && bound=0.005
        difference=$(paste <(field loss "$work/cpu/log.jsonl") <(field loss "$work/gpu_$precision/log.jsonl") \
            | awk 'NF == 2 { n++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= m)) m = d }
                   END { if (n != '$steps') print "none"; else printf "%.3g\n", m }')
        if awk -v x="$difference" -v y=$bound 'BEGIN { exit !(x != "none" && x + 0 <= y) }'; then
            good "$steps losses next to the CPU, $precision" "within $difference of $bound"
        else bad "$steps losses next to the CPU, $precision" "differ by $difference, and $bound is allowed"; fi
    done
}

# sanitize_one TOOL NAME OPTION...: a tiny run under that tool. The shared memory of NVIDIA's own products
# is not ours to check: racecheck and synccheck look at kernels named *_kernel, as all of ours are.
sanitize_one() {
    local tool=$1 name=$2 only='' code one=$work/$1_$2.log
    shift 2
    case $tool in racecheck | synccheck) only="--kernel-name kns=_kernel" ;; esac
    # shellcheck disable=SC2086
    limited 55 compute-sanitizer --tool "$tool" $only --error-exitcode 9 ./train_gpt2cu \
        --data "$work/text.txt" --out "$work/${tool}_$name" --eval-batches 1 --layers 2 --heads 2 \
        --channels 32 --context 32 --batch 2 --seq 19 --steps 2 "$@" >"$one" 2>&1
    code=$?
    { log "$tool, $name"; cat "$one"; } >>"$out/sanitizer.log"
    if [ $code -eq 0 ] && grep -Eq ' 0 errors|\(0 errors' "$one"; then good "$tool, $name" "no errors"
    elif [ $code -eq 124 ]; then cut_off "$tool, $name" "not done in time"
    else bad "$tool, $name" "$(why $code): $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|rror' "$one" | tail -n 1)"; fi
}
sanitizes() {  # lines of "TOOL NAME OPTION...", four at a time
    local tool words
    needs train_gpt2cu || return
    command -v compute-sanitizer >/dev/null || { bad "compute-sanitizer" "is not there"; return; }
    while read -r tool words; do
        while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
        # shellcheck disable=SC2086
        sanitize_one "$tool" $words </dev/null &
    done
    wait
}
part_sanitize() { printf '%s\n' "memcheck bf16" "racecheck bf16" | sanitizes; }
part_sanitize_all() {
    local zen="zen_bf16 --offload zenflow --zen-window 2" tool
    local mezo="--optimizer mezo --lr 1e-4 --stream-blocks"
    {
        for tool in memcheck racecheck initcheck synccheck; do echo "$tool $zen"; done
        for tool in memcheck racecheck initcheck synccheck; do
            echo "$tool zo_fp16 $mezo --precision fp16 --slots 1 --zo-queries 2"
        done
        printf '%s\n' "initcheck bf16" "synccheck bf16" "memcheck fp32 --precision fp32" \
            "racecheck fp32 --precision fp32" "initcheck fp32 --precision fp32" \
            "synccheck fp32 --precision fp32" "memcheck zo_bf16 $mezo --zo-storage fp32 --zo-write-back 2" \
            "memcheck zen_fp32 ${zen#* } --precision fp32 --accum 2 --zen-window auto"
    } | if [ "$tiny" = 1 ]; then sed -n 1p; else cat; fi | sanitizes
}

# --- speed -----------------------------------------------------------------------------------------

part_train() {
    local shape
    needs train_gpt2cu || return
    data >/dev/null || { bad "random tokens" "python3 is needed"; return; }
    # shellcheck disable=SC2086
    shapes | while read -r shape; do whole_steps $shape </dev/null; done
    row 2 "limits" "$(grep -h '^device:' "$out/train.log" | sort -u | head -n 1)"
}

models() { if [ "$tiny" = 1 ]; then echo tiny; else echo "1.5B 7B 124M"; fi; }

part_products() {
    local model one=$work/products what us flops percent best gain
    needs build/gpu/bench_probe || return
    for model in $(models); do
        limited 30 build/gpu/bench_probe products "$model" >"$one" 2>&1 || cut_off "$model" "$(why $?): $(tail -n 1 "$one")"
        { log "products $model"; cat "$one"; } >>"$out/bench.log"
        sed -n 's/^\(.*[^ ]\) \+\([0-9.]*\) us \+\([0-9.]*\) TFLOP\/s \+\([0-9.]*\) % \+best of *[0-9]*: *\([0-9]*\) .* us *\([-+0-9.]*\) %/\1\t\2\t\3\t\4\t\5\t\6/p' \
            "$one" | while IFS=$'\t' read -r what us flops percent best gain; do
            case $what in *GELU*) set -- 1 ;; *) set -- 2 ;; esac
            [ "${gain%%.*}" -ge 5 ] && set -- 1
            row "$1" "$what" "$us us, $flops TFLOP/s; best: number $best, $gain %" "$percent % of peak" "$flops"
        done
        probe_rows "$one"
    done
}

part_bench() {
    local model one=$work/bench flags='' level name us rate flops share
    [ "$tiny" = 1 ] && flags=--tiny
    needs build/gpu/bench_gpu || return
    for model in $(models); do
        # shellcheck disable=SC2086
        limited 15 build/gpu/bench_gpu $flags $model >"$one" 2>&1 || cut_off "$model" "$(why $?): $(tail -n 1 "$one")"
        { log "bench_gpu $model"; cat "$one"; } >>"$out/bench.log"
        awk '/ % of (memory|arithmetic)$/ {
            name = substr($0, 1, 34); gsub(/^ +| +$/, "", name)
            n = split(substr($0, 35), x, " ")
            print name "\t" x[1] "\t" x[4] "\t" (n == 9 ? x[5] : "-") "\t" x[n - 3] " % of " x[n] }' "$one" \
            | while IFS=$'\t' read -r name us rate flops share; do
            level=2
            case $name in attention* | AdamW | crossentropy | layernorm_backward | residual_layer* | bias*)
                level=1 ;;
            esac
            case $name in
                attention*) row 1 "$model $name" "$us us, $flops TFLOP/s" "$share" "$flops" ;;
                *) row $level "$model $name" "$us us, $rate GB/s" "$share" "$us" ;;
            esac
        done
    done
    # Does the matrix product lose by what makes its bits independent of where tensors lie?
    # shellcheck disable=SC2086
    { log "1.5B, told of alignment to 256 bytes"
      limited 10 build/gpu/bench_gpu --align 256 $flags 1.5B; } >>"$out/bench.log" 2>&1
}

# Time by kernel in a step of a few layers, with the clocks as they are.
part_kernels() {
    local name layers channels heads seq batch csv=$work/kernels.csv kernel n each share
    needs train_gpt2cu || return
    command -v ncu >/dev/null || { bad "ncu" "is not there"; return; }
    data >/dev/null || { bad "random tokens" "python3 is needed"; return; }
    if [ "$tiny" = 1 ]; then echo "tiny 1 32 2 16 2"
    else printf '%s\n' "1.5B 4 1600 25 1024 16" "7B 2 4096 32 2048 8"; fi \
        | while read -r name layers channels heads seq batch; do
        rm -rf "${work:?}/ncu" "$csv"
        # shellcheck disable=SC2046
        limited 40 ncu --clock-control none --metrics gpu__time_duration.sum --print-units base --csv \
            --log-file "$csv" ./train_gpt2cu --data "$(data)" --out "$work/ncu" --eval-every 0 --no-save \
            --steps 1 $(shape_options "$layers" "$channels" "$heads" "$seq" "$batch") </dev/null \
            >"$work/ncu.log" 2>&1 || bad "$name" "ncu: $(why $?): $(tail -n 1 "$work/ncu.log")"
        gzip -c "$csv" >>"$out/kernels.csv.gz"
        python3 - "$csv" <<'PY' | while IFS=$'\t' read -r kernel n each share; do
import csv, re, sys
rows = [r for r in csv.reader(l for l in open(sys.argv[1], errors="replace") if l.startswith('"'))]
if rows:
    name, value = rows[0].index("Kernel Name"), rows[0].index("Metric Value")
    times = {}
    for r in rows[1:]:
        kernel = re.sub(r"\(anonymous namespace\)::", "", r[name])
        kernel = re.sub(r"^(void|static) ", "", kernel).split("(")[0].split("<")[0]
        times.setdefault(kernel, []).append(float(r[value].replace(",", "")) * 1e-3)
    total = sum(map(sum, times.values()))
    for k, t in sorted(times.items(), key=lambda x: -sum(x[1]))[:14]:
        print(k[:40], len(t), "%.1f" % (sum(t) / len(t)), "%.1f" % (100 * sum(t) / total), sep="\t")
PY
            row 1 "$name, $layers layers: $kernel" "$n times $each us" "$share % of all kernels" "$each"
        done
    done
}

# pytorch NAME OPTION...: rows of what versus_pytorch_gpu.py says.
pytorch() {
    local name=$1 one=$work/torch.log
    shift
    if ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        good "PyTorch" "skipped: none that sees the GPU" 1
        return 1
    fi
    env -u LD_LIBRARY_PATH timeout -k 2 "$(left)" python3 dev/bench/versus_pytorch_gpu.py "$@" >"$one" 2>&1 \
        || cut_off "PyTorch, $name" "$(why $?): $(tail -n 1 "$one")"
    { log "PyTorch, $name"; cat "$one"; } >>"$out/train.log"
    sed -n 's/.*"mode": "\([a-z]*\)".*"tokens_per_s": \([0-9.]*\).*"ms": \([0-9.]*\).*"compiled": "\([a-z]*\)".*/\1 \2 \3 \4/p' \
        "$one" | while read -r mode tokens ms compiled; do
        row 0 "PyTorch, $name, $mode" "$tokens tokens/s, $ms ms, compiled: $compiled"
    done
    sed -n 's/.*"mode": "sdpa \([a-z]*\)".*"us": \([0-9.]*\).*"tflops": \([0-9.]*\).*/\1 \2 \3/p' "$one" \
        | while read -r pass us flops; do
        row 0 "PyTorch $pass, $name" "$us us, $flops TFLOP/s" "" "$flops"
    done
}
part_attention() {
    local device=''
    [ "$tiny" = 1 ] && device="--device cpu --steps 1"
    # shellcheck disable=SC2086
    pytorch "16 x 25 heads of 64, T 1024" --mode sdpa --batch 16 --heads 25 --channels 1600 --seq 1024 $device || return
    # shellcheck disable=SC2086
    pytorch "8 x 32 heads of 128, T 2048" --mode sdpa --batch 8 --heads 32 --channels 4096 --seq 2048 $device
    pytorch "1.5B, 16 x 1024" --mode master --compile no --layers 48 --channels 1600 --heads 25 --seq 1024 --batch 16
}
part_torch() {
    local name layers channels heads seq batch steps
    shapes | grep -v all_layers | while read -r name layers channels heads seq batch steps; do
        pytorch "$name, $batch x $seq" --layers "$layers" --channels "$channels" --heads "$heads" \
            --seq "$seq" --batch "$batch" </dev/null || return
    done
}

# --- offloading ------------------------------------------------------------------------------------

# The machine's rates, once for all that follows.
rates() {
    [ -s "$work/rates.txt" ] && return
    limited 35 ./train_gpt2cu --calibrate --rates "$work/rates.txt" >"$work/calibrate" 2>&1 \
        || { bad "--calibrate" "$(why $?): $(tail -n 1 "$work/calibrate")"; return 1; }
    { log calibrate; cat "$work/calibrate"; } >>"$out/offload.log"
}
part_calibrate() {
    local name value unit line
    needs train_gpt2cu || return
    rates || return
    {
        echo "# MEASURED on $(cat "$work/device") with $(getconf _NPROCESSORS_ONLN) cores, $(date -u +%Y-%m-%d), commit $(commit):"
        echo "# --calibrate, nothing else running. What it cannot measure is 0."
        cat "$work/rates.txt"
    } >"$out/h200_measured.txt"
    sed -n 's/^\([a-z_0-9]*\) *\([0-9.e+-]*\) *# \(.*\)/\1 \2 \3/p' "$work/rates.txt" \
        | while read -r name value unit; do
        case $unit in
            bytes/s) value=$(calculate "$value * 1e-9") unit=GB/s ;;
            parameters/s | numbers/s) value=$(calculate "$value * 1e-9") unit="G $unit" ;;
            flop/s) value=$(calculate "$value * 1e-12") unit=TFLOP/s ;;
            *) continue ;;
        esac
        row 1 "$name" "$value $unit" "" "$value"
    done
    line=$(grep '^host AdamW by threads' "$work/calibrate") && row 1 "${line%%:*}" "${line#*: }"
}

# modes NAME MODEL LIMIT MODES OPTION...: compare_offload.sh: the same losses from all, memory as
# planned, and for each how long an iteration takes next to the plan.
modes() {
    local name=$1 model=$2 limit=$3 modes=$4 code=0 dir=$work/$1 data=$work/text.txt way ms bound speed plan goal
    shift 4
    rates || return
    [ "$model" = nano ] || data=$(data) || { bad "random tokens" "python3 is needed"; return; }
    MODEL=$model MODES=$modes DATA=$data OUT=$dir RATES=$work/rates.txt TRAINER=./train_gpt2cu \
        limited "$limit" bash scripts/compare_offload.sh "$@" >"$dir.said" 2>&1 || code=$?
    { log "$name: $modes, $*"; cat "$dir.said" "$dir"/*.txt; } >>"$out/offload.log"
    case $code in
        0) good "$name" "the same losses and gradient norms wherever the same is computed" ;;
        124) cut_off "$name" "what is missing was left out" ;;
        *) bad "$name" "$(grep -m 1 'DIFFERENT\|code' "$dir.said" || tail -n 1 "$dir.said")" ;;
    esac
    awk '/MiB taken, planned/ { d = ($3 - $7) / $7; if (d > 0.03 || d < -0.03) { print FILENAME ": " $0; exit 1 } }' \
        "$dir"/*.txt >"$work/memory" || bad "$name" "memory is not the plan's within 3 %: $(cat "$work/memory")"
    # forward + backward + bound / 0.8: what is asked of an iteration
    awk -F '\t' -v OFS='\t' '$3 + 0 > 0 {
        goal = $6 + 0 > 0 && $8 + 0 > 0 ? sprintf("; goal %.0f", $4 + $5 + $7 * $8 / 80) : " "
        print $1, $3, $8, $9, $12, goal }' "$dir/compare.tsv" | while IFS=$'\t' read -r way ms bound speed plan goal; do
        set -- "$ms"
        [ "$part" = whole ] || set -- "$(awk -v a="$ms" -v b="$plan" 'BEGIN { if (b > 0) printf "%.3f", a / b }')"
        row 0 "$way" "$ms ms (plan $plan$goal), $speed G parameters/s" "$bound % of the bound" "$1"
    done
}
slice="--layers 10 --batch 1 --seq 2048 --recompute none"
small="--layers 2 --heads 2 --channels 32 --context 32 --vocab 300 --batch 2 --seq 32 --subgroup 4096"

part_slice() {
    needs train_gpt2cu || return
    if [ "$tiny" = 1 ]; then
        # shellcheck disable=SC2086
        STEPS=4 WARMUP=1 RESIDENT=0.3 modes slice nano 60 "none zero interleave" $small
        return
    fi
    # shellcheck disable=SC2086
    STEPS=10 LIMIT=40 modes slice 7b "$(left)" "zero interleave none twinflow auto stride2 zero-published \
        twinflow-published" $slice --gpu-memory 24G
}
part_placement() {
    needs train_gpt2cu train_gpt2 build/compare build/timeline build/tokenize || return
    # shellcheck disable=SC2046
    run_tests 55 $([ "$tiny" = 1 ] || echo dev/test/test_cli_offload.sh dev/test/test_cli_gpu.sh) build/gpu/test_calibrate
    # shellcheck disable=SC2046,SC2086
    STEPS=$([ "$tiny" = 1 ] && echo 4 || echo 20) WARMUP=1 RESIDENT=0.3 modes nano nano 60 "none zero twinflow \
        interleave stride2 zero-published twinflow-published interleave-published" \
        $([ "$tiny" = 1 ] && echo $small || echo --subgroup 8192 --batch 4)
}
part_whole() {
    local trace
    needs train_gpt2cu || return
    if [ "$tiny" = 1 ]; then
        # shellcheck disable=SC2086
        STEPS=4 WARMUP=1 modes whole nano 60 "zero auto" $small
    else
        STEPS=8 LIMIT=75 modes whole 7b "$(left)" "zero auto" --batch 1 --seq 2048 --recompute none --gpu-memory 48G
    fi
    for trace in "$work/whole/zero.trace" "$work/whole/auto.trace"; do
        [ -s "$trace" ] || continue
        gzip -c "$trace" >"$work/trace.gz"
        [ "$(wc -c <"$work/trace.gz")" -lt 15000000 ] && mv "$work/trace.gz" "$out/trace.json.gz" && break
    done
}
# Is the machine what it was, and does it stay so?
part_drift() {
    local steps=100 said shape
    needs train_gpt2cu || return
    rates || return
    data >/dev/null || { bad "random tokens" "python3 is needed"; return; }
    shape=$(shapes | sed -n 2p)
    # shellcheck disable=SC2086
    whole_steps ${shape:-$(shapes | tail -n 1)}
    set -- --batch 2 --seq 1024 --recompute none
    [ "$tiny" = 1 ] && { steps=12; eval "set -- $small"; }
    SWEEPS=drift DRIFT_STEPS=$steps WARMUP=3 MODEL=$([ "$tiny" = 1 ] && echo nano || echo gpt2-xl) LIMIT=45 \
        DATA=$(data) OUT=$work/drift RATES=$work/rates.txt TRAINER=./train_gpt2cu \
        limited 50 bash scripts/sweep_offload.sh "$@" >"$work/drift.said" 2>&1 \
        || bad "$steps steps" "$(why $?): $(tail -n 1 "$work/drift.said")"
    { log drift; cat "$work/drift.said"; } >>"$out/offload.log"
    said=$(sed -n 's/^drift: //p' "$work/drift.said")
    [ -z "$said" ] || row 1 "100 steps, last quarter to first" "$said" "" "$(grep -o '[-+0-9.]* %$' <<<"$said")"
}
part_offload_more() {
    local shape="--batch 2 --seq 1024 --recompute none" away="interleave zero twinflow stride2"
    needs train_gpt2cu build/gpu/bench_offload || return
    bench_log bench_offload 90 8
    # shellcheck disable=SC2086
    LIMIT=40 modes 1.5B-24G gpt2-xl 200 "none-uncapped $away zero-published twinflow-published" $shape --gpu-memory 24G
    # shellcheck disable=SC2086
    LIMIT=40 modes 1.5B-48G gpt2-xl 100 "none interleave twinflow" $shape --gpu-memory 48G
    STEPS=8 LIMIT=120 modes 13b 13b "$(left)" "auto twinflow" --batch 1 --seq 2048
    STEPS=8 LIMIT=100 modes 7b 7b "$(left)" "none-uncapped $away zero-published" --batch 1 --seq 2048 \
        --recompute none --gpu-memory 48G
}
# bench_log NAME LIMIT ARGUMENT...: a benchmark whose own table is what one wants to read.
bench_log() {
    local name=$1 limit=$2 one=$work/$1.log line
    shift 2
    [ "$tiny" = 1 ] && set -- --tiny "$@"
    limited "$limit" "build/gpu/$name" "$@" >"$one" 2>&1 || cut_off "$name $*" "$(why $?): $(tail -n 1 "$one")"
    { log "$name $*"; cat "$one"; } >>"$out/bench.log"
    grep -E '[0-9]\.[0-9]' "$one" | while read -r line; do row 2 "$name" "$line"; done
}

# --- several ranks, ZenFlow, zeroth order -----------------------------------------------------------

# Several ranks on one GPU are refused by NCCL: with one GPU, one rank goes through all of it.
part_nccl() {
    local name gpus ms none='' steps=50 options="--data $work/text.txt --model nano --batch 4 --seq 250 --accum 2"
    local some
    needs train_gpt2cu || return
    some="--data $(data) --model gpt2 --vocab 50257 --batch 4 --seq 1024 --steps 20"
    [ "$tiny" = 1 ] && steps=3 options="--data $work/text.txt $(shape_options 2 32 2 16 2)" \
        some="--data $work/text.txt $(shape_options 2 32 2 16 2) --steps 14"
    options="$options --steps $steps"
    ldd ./train_gpt2cu | grep -q libnccl || [ "$tiny" = 1 ] || { bad "NCCL" "train_gpt2cu was built without"; return; }
    # shellcheck disable=SC2086  # options are words
    train none 40 ./train_gpt2cu $options || return
    for name in 0 1 2 3; do
        # shellcheck disable=SC2086
        train "stage_$name" 40 ./train_gpt2cu $options --zero $name \
            && same_run none "stage_$name" "one rank, stage $name, next to none"
    done
    # shellcheck disable=SC2086
    train interleave 40 ./train_gpt2cu $options --zero 3 --offload interleave --share 0.5 --subgroup 8192 \
        && same_run none interleave "one rank, stage 3, interleaved, next to none"
    # shellcheck disable=SC2086
    train zen 40 ./train_gpt2cu $options --offload zenflow \
        && train zen_2 40 ./train_gpt2cu $options --offload zenflow --zero 2 \
        && same_run zen zen_2 "one rank, stage 2, ZenFlow, next to it without ZeRO"
    for name in none 0 2 3; do
        # shellcheck disable=SC2046,SC2086  # no option, or two words
        train "ms_$name" 60 ./train_gpt2cu $some --no-save $([ $name = none ] || echo --zero $name) || continue
        ms=$(field ms "$work/ms_$name/log.jsonl" | tail -n 10 | median)
        [ $name = none ] && none=$ms
        row 1 "124M, one rank, stage $name, to none" "$ms ms" "" "$(calculate "$ms / ${none:-$ms}")"
    done
    gpus=$(nvidia-smi -L | grep -c '^GPU ')
    [ "$gpus" -ge 2 ] || return 0
    for name in 0 1 2 3; do
        # shellcheck disable=SC2086
        train "ranks_$name" 60 sh scripts/launch.sh "$gpus" ./train_gpt2cu $options --zero $name || continue
        [ $name = 0 ] || same_run ranks_0 "ranks_$name" "$gpus ranks, stage $name next to 0"
        # shellcheck disable=SC2086
        train "ranks_ms_$name" 60 sh scripts/launch.sh "$gpus" ./train_gpt2cu $some --no-save --zero $name || continue
        row 1 "124M on each of $gpus GPUs, stage $name" "$(field ms "$work/ranks_ms_$name/log.jsonl" | tail -n 10 | median) ms"
    done
}

part_zen() {
    local all="zero zenflow zenflow-1sum none zero-accum zero-late zenflow-sync"
    needs train_gpt2cu build/gpu/bench_zen || return
    bench_log bench_zen 20
    # shellcheck disable=SC2086
    if [ "$tiny" = 1 ]; then STEPS=20 modes zen_nano nano 60 "none zero zenflow" $small; return; fi
    STEPS=16 LIMIT=25 modes zen gpt2-xl "$(($(left) - 15))" "$all" --batch 8 --seq 1024 --recompute block
    STEPS=40 EVALS=4 modes zen_nano nano "$(left)" "$all" --batch 4
}
part_zen_more() {
    local model
    needs train_gpt2cu || return
    rates || return
    STEPS=24 LIMIT=100 modes zen_7b 7b 330 "zero zero-accum zenflow-sync zenflow-1sum zenflow" \
        --batch 4 --seq 2048 --recompute block
    for model in 13b 10b; do  # the largest that fits here, where --rates would mean elsewhere
        ./train_gpt2cu --plan --model $model --offload zenflow --zen-sums 1 --batch 1 --seq 2048 \
            --recompute block >"$work/fits" 2>&1 || { row 1 "$model" "$(tail -n 1 "$work/fits")"; continue; }
        STEPS=20 LIMIT=150 modes zen_$model $model "$(left)" "zero zenflow-1sum" --batch 1 --seq 2048 --recompute block
        return
    done
}

# What ZO-Offloading's table 1 has for this: tokens/s and MB, fp16, on an A100 of 80 GB.
zo_paper() {
    case $1-$2 in
        opt-1.3b-memory) echo "6788, 4887" ;;   opt-1.3b-streamed) echo "6788, 2651" ;;
        opt-2.7b-memory) echo "4227, 7933" ;;   opt-2.7b-streamed) echo "4227, 3111" ;;
        opt-6.7b-memory) echo "2455, 16311" ;;  opt-6.7b-streamed) echo "2455, 4539" ;;
        opt-13b-memory) echo "1406, 29411" ;;   opt-13b-streamed) echo "1340, 6445" ;;
        opt-30b-memory) echo "651, 63953" ;;    opt-30b-streamed) echo "597, 10369" ;;
        opt-66b-streamed) echo "273, 14143" ;;
    esac
}
# zo_run MODEL memory|streamed STEPS LIMIT OPTION...: the trainer as people run it, in fp16, a batch as in
# the paper; its memory as planned, as taken, and as nvidia-smi counts it, with the driver's own.
zo_run() {
    local model=$1 where=$2 steps=$3 limit=$4 run=$1-$2 sampler code paper began=$SECONDS
    shift 4
    [ "$where" = streamed ] && set -- --stream-blocks "$@"
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 300 >"$work/used" 2>/dev/null &
    sampler=$!
    # shellcheck disable=SC2046
    train "$run" "$limit" ./train_gpt2cu --optimizer mezo --model "$model" --data "$(data)" --steps "$steps" \
        --no-save --precision fp16 --batch 1 $([ "$tiny" = 1 ] && echo --seq 32 || echo --seq 2048) "$@"
    code=$?
    kill -9 $sampler 2>/dev/null
    wait $sampler 2>/dev/null
    [ $code -eq 0 ] || return
    paper=$(zo_paper "$model" "$where")
    row 1 "$model, $where" "$(field ms "$work/$run/log.jsonl" | tail -n +4 | median) ms, $(
        field tokens_per_s "$work/$run/log.jsonl" | tail -n +4 | median) tokens/s, MiB $(
        sed -n 's/^GPU memory: \(.*\) MiB taken, planned \(.*\) MiB/\1 of \2/p' "$work/$run.log"), $(
        sort -n "$work/used" | tail -n 1) seen; $((SECONDS - began)) s" "${paper:+paper (A100): $paper MB}"
}
# zo_both MODEL STEPS LIMIT: in memory and streamed, which must have the same losses.
zo_both() {
    local name
    zo_run "$1" memory "$2" "$3" && zo_run "$1" streamed "$2" "$3" || return
    for name in loss grad_norm; do
        cmp -s <(field $name "$work/$1-memory/log.jsonl") <(field $name "$work/$1-streamed/log.jsonl") \
            || bad "$1" "$name differs, streamed from in memory"
    done
}
part_zo() {
    local way steps=50 run="--data $work/text.txt --model nano --batch 5 --seq 250"
    needs train_gpt2cu build/gpu/bench_zo || return
    [ "$tiny" = 1 ] && steps=3 run="--data $work/text.txt --layers 2 --heads 2 --channels 32 --context 16 --batch 2"
    run="$run --steps $steps --optimizer mezo --lr 1e-4 --precision fp16"
    # shellcheck disable=SC2086
    if train zo_memory 30 ./train_gpt2cu $run; then
        for way in "--slots 2" "--slots 3" "--resident-blocks 1" --zo-no-overlap --zo-no-slots --zo-no-fused-update; do
            train zo_streamed 30 ./train_gpt2cu $run --stream-blocks $way \
                && same_run zo_memory zo_streamed "$steps steps in fp16, streamed $way"
        done
    fi
    bench_log bench_zo 45 kernel step
    if [ "$tiny" = 1 ]; then zo_both nano 5 30; return; fi
    zo_both opt-1.3b 10 30
    zo_both opt-6.7b 8 40
    pytorch "OPT-1.3B" --mode mezo --dtype float16 --activation relu --layers 24 --channels 2048 --heads 32 \
        --vocab 50272 --seq 2048 --batch 1
}
part_zo_more() {
    needs train_gpt2cu build/gpu/bench_zo || return
    bench_log bench_zo 270 stream queries
    zo_both opt-2.7b 12 60
    zo_both opt-13b 12 60
    zo_both opt-30b 8 120
    # 122 GiB of weights, half of them on the host: a seventh more would fit into the GPU's 139
    zo_run opt-66b streamed 6 "$(left)" --resident-blocks 32
    pytorch "OPT-6.7B" --mode mezo --dtype float16 --activation relu --layers 32 --channels 4096 --heads 32 \
        --vocab 50272 --seq 2048 --batch 1
}

# --- the pack --------------------------------------------------------------------------------------

# Built in a tree of its own, as what lies here may be for this machine only; stripped and compressed.
make_pack() {
    local dir=${1:-build/pack} tree=build/pack.tree arch='' name mb
    for name in ${PACK_ARCH:-90}; do arch="$arch -gencode arch=compute_$name,code=sm_$name"; done
    mkdir -p "$tree" && tar -c --exclude=./build --exclude=./out --exclude=./data --exclude=./.git \
        --exclude='./train_gpt2' --exclude='./train_gpt2cu' --exclude='./train_gpt2emu' . | tar -x -C "$tree" \
        || die "cannot copy the sources to $tree"
    # shellcheck disable=SC2086
    make -C "$tree" -k -j"$(nproc)" GPU_ARCH="${arch# }" ARCH="${ARCH:--march=x86-64-v3}" $programs \
        >"$tree/log" 2>&1 || die "make: $(grep -m 1 -E 'error|Error' "$tree/log"); the rest is in $tree/log"
    rm -rf "$dir" && mkdir -p "$dir" || exit
    {
        echo "commit $(git rev-parse --short HEAD 2>/dev/null)$(git diff --quiet HEAD 2>/dev/null || echo +)"
        echo "sources $(sources)"
        echo "for$arch, ${ARCH:--march=x86-64-v3}; made $(date -u +%Y-%m-%d)"
        for name in $programs; do
            strip -o "$dir/one" "$tree/$name" || exit
            echo "program $name $(cksum <"$dir/one" | cut -d' ' -f1)"
            xz -T0 -c "$dir/one" >"$dir/${name//\//+}.xz" || exit
        done
    } >"$dir/manifest" || die "cannot write to $dir"
    rm -f "$dir/one"
    mb=$(du -s --apparent-size -B 1000 "$dir" | cut -f1)
    if [ "$mb" -gt "${PACK_LIMIT:-60000}" ]; then
        rm -rf "$dir"
        die "the pack would have $mb kB, more than ${PACK_LIMIT:-60000}: PACK_ARCH for one architecture"
    fi
    echo "$dir: $(wc -w <<<"$programs") programs, $mb kB"
}

starts() { [ -x "$1" ] && ldd "$1" >"$work/ldd" 2>&1 && ! grep -q 'not found' "$work/ldd"; }

# Puts the packed programs in their places, and begins to build what does not start. Libraries that the
# system does not find may lie in CUDA's folder or in Python's packages.
bring() {
    local name dir missing='' site
    part=pack
    : >"$work/missing"
    mkdir -p "$work/built" build/gpu
    if [ "$(sed -n 's/^sources //p' "$pack/manifest" 2>/dev/null)" = "$(sources)" ]; then
        for name in $programs; do
            { xz -dc "$pack/${name//\//+}.xz" 2>/dev/null || python3 -c 'import lzma, sys
sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' "$pack/${name//\//+}.xz"; } >"$work/one" 2>/dev/null
            mkdir -p "$(dirname "$name")"
            rm -f "$name"
            cp "$work/one" "$name" && chmod +x "$name"
        done
        site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
        # shellcheck disable=SC2086
        for name in $(ldd $programs 2>/dev/null \
            | sed -n 's/^[[:space:]]*\([^ ]*\) => not found/\1/p' | sort -u); do
            for dir in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 "$site"/nvidia/*/lib; do
                [ -e "$dir/$name" ] && export LD_LIBRARY_PATH="$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" && break
            done
        done
        for name in $programs; do starts "$name" || missing="$missing $name"; done
        ./train_gpt2cu --help >/dev/null 2>&1 || missing="$programs"  # made for another CPU
        [ -z "$missing" ] || row 0 "programs" "built here, as packed they do not start:$missing; $(tail -n 1 "$work/ldd")"
    else
        missing=$programs  # make knows what is there already
        row 1 "programs" "no pack of these sources in $pack: built here"
    fi
    for name in dev/test/test_*.cu; do ln -sf gpu_tests "build/gpu/$(basename "$name" .cu)"; done
    [ -n "$missing" ] || return
    command -v nvcc >/dev/null || { bad "nvcc" "is not there: install the CUDA Toolkit, or bring a pack"; return; }
    # shellcheck disable=SC2086
    printf '%s\n' $missing >"$work/missing"
    setsid bash "$self" _build "$out" >>"$out/tests.log" 2>&1 &
    builder=$!
}
build() {
    local name
    if [ -s "$pack/manifest" ]; then
        while read -r name; do rm -f "$name"; done <"$work/missing"  # what does not start is not up to date
    fi
    make build/emu/cpu_reference.o
    while read -r name; do
        { make "$name" && touch "$work/built/${name//\//_}"; } </dev/null &
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    done <"$work/missing"
    wait
    touch "$work/built/all"
}

# --- a call ----------------------------------------------------------------------------------------

# kill_session ID: all that a part has started, whatever group it is in.
kill_session() {
    local stat line again=1
    while [ $again = 1 ]; do
        again=0
        for stat in /proc/[0-9]*/stat; do
            { read -r line <"$stat"; } 2>/dev/null || continue
            # shellcheck disable=SC2086  # state, parent, group, session
            set -- "$1" ${line##*) }
            [ "$5" = "$1" ] && [ "$2" != Z ] && kill -KILL "${line%% *}" 2>/dev/null && again=1
        done
    done
}

run_part() {  # NAME SECONDS
    local limit=$2 pid code began
    part=$1
    [ $((end - $(now) - 4)) -lt "$limit" ] && limit=$((end - $(now) - 4))
    [ "$limit" -ge 4 ] || { cut_off "$1" "left out: no time left"; table; return; }
    began=$(now)
    until=$((began + limit)) setsid bash "$self" _part "$1" "$out" &
    pid=$!
    running=$pid
    while kill -0 $pid 2>/dev/null && [ "$(now)" -lt $((began + limit)) ]; do sleep 0.2; done
    if kill -0 $pid 2>/dev/null; then
        kill_session $pid
        wait $pid 2>/dev/null
        cut_off "$1" "killed after its $limit s"
    else
        wait $pid
        code=$?
        kill_session $pid  # what it left behind
        [ $code -eq 0 ] || bad "$1" "the part ended with code $code"
    fi
    running=''
    put 2 "$1" "$(($(now) - began)) s of $2" "" $'\t'
    table
}

finish() {
    trap - EXIT TERM INT HUP
    [ -z "$running" ] || { kill_session "$running"; cut_off "$part" "the call was ended"; }
    [ -z "$builder" ] || kill_session "$builder"
    table
    rm -rf "$work"
    find "$out" -maxdepth 1 -size +15M -exec gzip -f {} +
    echo
    cat "$out/table.md"
    ! grep -q 'FAIL\|CUT' "$out/rows.tsv"
    exit
}

main() {
    call=$1
    [ "$call" = part ] && shift
    mkdir -p "$2" || exit
    out=$(cd "$2" && pwd)
    work=$(mktemp -d) || exit
    export work out call until=0
    rm -f "$out"/*.log "$out"/*.gz "$out"/{rows.tsv,table.md,h200_measured.txt}
    : >"$out/rows.tsv"
    nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 >"$work/device"
    [ -s "$work/device" ] || { rm -rf "$work"; die "no GPU: nvidia-smi finds none"; }
    cat ./*.c ./*.h README.md >"$work/text.txt"
    trap finish EXIT TERM INT HUP
    bring
    # shellcheck disable=SC2046
    set -- $(calls "$call" "$1")
    end=$(($(now) - SECONDS + $1))
    shift
    for spec in "$@"; do
        case " ${BUDGETS-} " in *" ${spec%=*}="*) spec=$(tr ' ' '\n' <<<"$BUDGETS" | grep "^${spec%=*}=") ;; esac
        [ "${spec#*=}" = 0 ] || run_part "${spec%=*}" "${spec#*=}"
    done
    finish
}

cd "$(dirname "$self")/.." || exit
PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin
export PATH CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_MODULE_LOADING=LAZY
pack=${PACK:-build/pack} running='' builder='' part=''
case ${1-} in
    pack) make_pack "${2-}" ;;
    first | offload | rest) [ $# -eq 2 ] || usage; main "$@" ;;
    part)
        [ $# -eq 3 ] || usage
        [ "$(type -t "part_$2")" = function ] || die "no part $2: $(declare -F | sed -n 's/.* part_//p' | tr '\n' ' ')"
        main "$@" ;;
    _part) part=$2; "part_$2" </dev/null; exit 0 ;;
    _build) build ;;
    *) usage ;;
esac
