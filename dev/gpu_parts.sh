# gpu_parts.sh: the parts of gpu_check.sh, which sources this: what is run on a GPU, and the rows
# that come of it. Each part is a session of its own, over at second $until.
# shellcheck shell=bash disable=SC2046,SC2086,SC2153,SC2154  # options are words

# --- what parts share ----------------------------------------------------------------------------

left() { echo $((until - $(now))); }

# limited SECONDS COMMAND...: never longer than that, nor than the part may take. 124: too slow.
limited() {
    local limit=$1 left
    shift
    left=$(($(left) - 1))
    [ "$left" -lt "$limit" ] && limit=$left
    [ "$limit" -lt 1 ] && return 124
    timeout -k 2 "$limit" "$@"
}
why() { case $1 in 124 | 137) echo "not done in time" ;; *) echo "ended with code $1" ;; esac; }

# said LOG TITLE FILE: what a program has said goes to one of the logs that are kept.
said() { { printf '\n== %s: %s\n' "$part" "$2"; cat "$3"; } >>"$out/$1.log"; }

# measure LIMIT LOG FILE COMMAND...: a program whose numbers are in what it says.
measure() {
    local limit=$1 log=$2 file=$3 code
    shift 3
    limited "$limit" "$@" >"$file" 2>&1
    code=$?
    said "$log" "$*" "$file"
    case $code in
        0) ;;
        124 | 137) cut_off "${1##*/} ${*:2}" "$(why $code): $(tail -n 1 "$file")" ;;
        *) bad "${1##*/} ${*:2}" "$(why $code): $(tail -n 1 "$file")" ;;
    esac
    return $code
}

# field NAME RUN: that number from every training line of its log.jsonl; late: without the first.
field() { sed -n "/\"loss\"/s/.*\"$1\":\([^,}]*\).*/\1/p" "$work/$2/log.jsonl"; }
late() { field "$1" "$2" | tail -n +4 | median; }
median() { sort -g | awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'; }
calculate() { awk "BEGIN { printf \"%.4g\", $* }"; }
four_at_once() { while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done; }

# needs PROGRAM...: waits for those that are being built. False: one could not be.
needs() {
    local program
    for program in "$@"; do
        while grep -qx "$program" "$work/missing" && [ ! -e "$work/built/${program//\//_}" ]; do
            if [ -e "$work/built/all" ]; then
                bad "$program" "was not built: $(grep -m 1 -E 'error|Error' "$out/tests.log")"
                return 1
            fi
            sleep 0.3
        done
    done
}

# train NAME LIMIT PROGRAM OPTION...: a run to its end, into $work/NAME; what it says is in
# NAME.log.
train() {
    local name=$1 limit=$2 code
    shift 2
    rm -rf "${work:?}/$name"
    limited "$limit" "$@" --out "$work/$name" --eval-every 0 >"$work/$name.log" 2>&1
    code=$?
    said train "$name, $*" "$work/$name.log"
    [ $code -eq 0 ] || bad "$name" "$(why $code): $(tail -n 1 "$work/$name.log")"
    return $code
}

# sampled QUERY COMMAND...: with nvidia-smi's numbers every 0.2 s beside it, in $work/samples.
sampled() {
    local sampler code
    stdbuf -oL nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits -lms 200 \
        >"$work/samples" 2>/dev/null &
    sampler=$!
    "${@:2}"
    code=$?
    kill -9 $sampler 2>/dev/null
    wait $sampler 2>/dev/null
    return $code
}

# Random tokens of the whole vocabulary: speed does not depend on what they say.
text=$work/text.txt tokens=$work/tokens.bin
make_tokens() {
    [ -e "$tokens" ] || (cd dev/bench && PYTHONDONTWRITEBYTECODE=1 python3 -c \
        "from make_llmc_inputs import write_tokens; write_tokens('$tokens', 1 << 21, 1)") \
        || { bad "random tokens" "python3 is needed"; return 1; }
}

# Models: of tests; the 1.5B one; the 7B one, which is larger than a GPU that is capped. With
# TINY, all are so small that the emulated GPU has done with them at once.
nano="--data $text --model nano --batch 5 --seq 250 --accum 2" steps=50 vocab=50257 flags=''
cpu_size="--layers 3 --heads 3 --channels 96 --context 64 --batch 8"
pieces="--batch 4 --subgroup 8192" large=7b large_size="--batch 1 --seq 2048 --recompute none"
medium=gpt2-xl medium_size="--batch 2 --seq 1024 --recompute none" models="1.5B 7B 124M"
huge=20b huge_size="--batch 8 --seq 2048 --moments bf16 --gpu-memory 131G --host-memory 121G"
gpt2="--model gpt2 --batch 4 --seq 1024" opts="opt-1.3b opt-6.7b"
if [ "$tiny" = 1 ]; then
    cpu_size="--layers 1 --heads 2 --channels 32 --context 16 --batch 2"
    nano="--data $text $cpu_size --layers 2" steps=4 vocab=300 flags=--tiny tokens=$text models=tiny
    pieces="--layers 2 --heads 2 --channels 32 --context 32 --vocab 300 --batch 2 --seq 32"
    pieces="$pieces --subgroup 4096" large=nano large_size=$pieces medium=nano medium_size=$pieces
    gpt2=$cpu_size opts=nano huge=nano huge_size="$pieces --moments bf16"
fi
few() { if [ "$tiny" = 1 ]; then echo 6; else echo "$1"; fi; }  # steps

# Shapes for the GPU that is here: name, layers, channels, heads, sequence, batch, steps, options.
shapes() {
    local mib
    mib=$(smi memory.total | tr -cd 0-9)
    if [ "$tiny" = 1 ]; then printf '%s\n' "124M 1 32 2 16 2 4" "7B 1 64 2 32 1 4" \
        "7B,_light 1 64 2 32 1 4 --recompute light"
    elif [ "${mib:-0}" -gt 120000 ]; then printf '%s\n' "124M 12 768 12 1024 32 60" \
        "1.5B 48 1600 25 1024 16 16" "7B,_8_layers 8 4096 32 2048 8 14" \
        "7B,_8_layers,_light 8 4096 32 2048 8 14 --recompute light" \
        "1.5B 48 1600 25 1024 32 10" "7B,_all_layers 32 4096 32 2048 1 12"
    elif [ "${mib:-0}" -gt 70000 ]; then printf '%s\n' "124M 12 768 12 1024 32 60" \
        "1.5B 48 1600 25 1024 8 16" "7B,_8_layers 8 4096 32 2048 4 14" \
        "7B,_8_layers,_light 8 4096 32 2048 4 14 --recompute light"
    elif [ "${mib:-0}" -gt 38000 ]; then printf '%s\n' "124M 12 768 12 1024 16 60" \
        "1.5B 48 1600 25 1024 2 16"
    else echo "124M 12 768 12 1024 4 60"; fi
}
shape_options() {  # LAYERS CHANNELS HEADS SEQ BATCH
    echo "--data $tokens --layers $1 --channels $2 --heads $3 --context $4 --seq $4 --batch $5" \
         "--vocab $vocab --recompute none --no-save"
}

# whole_steps NAME LAYERS CHANNELS HEADS SEQ BATCH STEPS [OPTION...]: training, and the mean power
# and clock of where power is drawn.
whole_steps() {
    local run=whole_$1_$6 power percent
    sampled power.draw,clocks.sm,temperature.gpu \
        train "$run" 80 ./train_gpt2cu $(shape_options "${@:2:5}") --steps "$7" "${@:8}" \
        || return
    power=$(awk -F ', *' '{ w[NR] = $1; mhz[NR] = $2; c[NR] = $3; if ($1 > most) most = $1 }
        END { for (i = 1; i <= NR; i++) if (w[i] >= 0.7 * most) { n++; W += w[i]; M += mhz[i]
              if (c[i] > C) C = c[i] }
              if (n > 0) printf "%.0f W, %.0f MHz, %d C", W / n, M / n, C }' "$work/samples")
    percent=$(of_peak "$run")
    row 0 "${1//_/ }, $6 x $5" \
        "$(late tokens_per_s "$run") tokens/s, $(late ms "$run") ms, $power" \
        "${percent:+$percent % of peak}" "$percent"
}
of_peak() {
    sed -n 's/.*| \([0-9]*\) % of peak.*/\1/p' "$work/$1.log" | tail -n +4 | median
}

# probe_rows FILE: the lines of bench_probe that are "what, number, unit".
probe_rows() {
    local what value unit level
    awk 'length($0) > 56 && substr($0, 57, 13) ~ /^ +[-0-9.]+$/ {
        what = substr($0, 1, 56); gsub(/^ +| +$/, "", what)
        split(substr($0, 57), x, " ")
        print what "\t" x[1] "\t" x[2] }' "$1" | while IFS=$'\t' read -r what value unit; do
        case $what in *after*s | *"  "* | *"a call "* | *alone*) level=2 ;; *) level=1 ;; esac
        row $level "$what" "$value $unit" "" "$value"
    done
}

# --- the machine ---------------------------------------------------------------------------------

memory() { awk -v name="$1:" '$1 == name { printf "%.1f", $2 / 1048576 }' /proc/meminfo; }
smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }

part_facts() {
    local mib
    row 1 "memory, driver, PCIe" \
        "$(smi memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current)"
    row 1 "most of SM, memory; limit, C" \
        "$(smi clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu)"
    row 1 "CPU" "$(getconf _NPROCESSORS_ONLN) of $(sed -n 's/^model name.*: //p' /proc/cpuinfo \
        | head -n 1); huge pages $(grep -o '\[.*\]' /sys/kernel/mm/transparent_hugepage/enabled)"
    row 1 "software" "$(uname -sr); CUDA $(nvcc --version 2>/dev/null \
        | sed -n 's/.*release \([^,]*\).*/\1/p'); may lock $(ulimit -l) KiB; PyTorch $(
        python3 -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null \
        || echo none)"
    row 1 "host memory before" "$(memory MemTotal) GiB, available $(memory MemAvailable), movable $(
        awk '/zone +Movable/ { in_it = 1 } in_it && $1 == "present" { n += $2; in_it = 0 }
             END { printf "%.1f", n / 262144 }' /proc/zoneinfo)"
    # Some machines show little memory at first, and grow as it is used.
    [ "$call" = offload ] || return 0
    needs build/gpu/bench_probe || return
    mib=$(awk '/MemTotal/ { m = $2 / 1024 * 0.8; printf "%d", (m > 102400 ? m : 102400) }' \
        /proc/meminfo)
    [ "$tiny" = 1 ] && mib=20
    measure 20 bench "$work/touch" build/gpu/bench_probe touch "$mib"
    probe_rows "$work/touch"
    row 1 "host memory after" "$(memory MemTotal) GiB, available $(memory MemAvailable)" "" \
        "$(memory MemTotal)"
}

part_probe() {
    needs build/gpu/bench_probe || return
    measure 12 bench "$work/probe" build/gpu/bench_probe $flags host
    probe_rows "$work/probe"
    measure 20 bench "$work/probe" build/gpu/bench_probe $flags copies
    probe_rows "$work/probe"
}

# The machine's rates, once for all that follows; RATES=FILE: they are known.
rates() {
    [ -z "${RATES-}" ] || cp "$RATES" "$work/rates.txt" || bad "RATES" "cannot read $RATES"
    [ -s "$work/rates.txt" ] || measure 35 offload "$work/calibrate" \
        ./train_gpt2cu --calibrate --rates "$work/rates.txt"
}

part_calibrate() {
    local name value unit
    needs train_gpt2cu && rates || return
    {
        echo "# MEASURED on $(cat "$work/device") with $(getconf _NPROCESSORS_ONLN) cores," \
             "$(date -u +%Y-%m-%d), commit $(commit):"
        echo "# --calibrate, nothing else running. What it cannot measure is 0."
        cat "$work/rates.txt"
    } >"$out/measured_rates.txt"
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
}

# --- correctness ---------------------------------------------------------------------------------

# run_test TEST: one, and its row.
run_test() {
    local test=$1 code=127 ok failed one
    one=$work/test_$(basename "$test").log
    : >"$one"
    case $test in
        *.sh) TIDE_GPU=./train_gpt2cu limited 150 sh "$test" ;;
        *) limited 70 "$test" ;;
    esac >"$one" 2>&1
    code=$?
    said tests "$test" "$one"
    ok=$(grep -c '^ok ' "$one") failed=$(grep -c '^FAIL ' "$one")
    if [ $code -ne 0 ] || [ "$failed" -gt 0 ] || ! grep -q '^ok \|^skip ' "$one"; then
        bad "$(basename "$test")" "$failed failed, $ok ok, $(why $code): $({
            grep -m 1 '^FAIL ' "$one" || tail -n 1 "$one"; } | cut -c1-110)"
    else good "$(basename "$test")" "$ok ok$(sed -n 's/^skip /; skipped /p' "$one" \
        | head -n 1)" 2; fi
}

# run_tests TEST...: four at a time, and what all have said.
run_tests() {
    local test worst
    for test in "$@"; do
        four_at_once
        run_test "$test" &
    done
    wait
    worst=$(grep -ho 'error / allowance[^0-9]*[0-9.][-+.e0-9]*' "$work"/test_*.log \
        | sed 's/.*[^-+.e0-9]//' | sort -g | tail -n 1)
    row 1 "$# programs" "$(cat "$work"/test_*.log | grep -c '^ok ') ok, $(cat "$work"/test_*.log \
        | grep -c '^FAIL ') failed${worst:+; largest error / allowance $worst}"
    rm -f "$work"/test_*.log
}

# named_tests PROGRAM...: the names of their tests, each of which becomes a link to its program.
named_tests() {
    local program name
    for program in "$@"; do
        for name in $("build/gpu/$program" --list); do
            ln -sf "$program" "build/gpu/$name"
            echo "$name"
        done
    done
}

# All tests of the GPU sources, those that say most first.
part_tests() {
    local first="test_matmul_gpu test_attention test_kernels test_gpt2cu test_model \
        test_gpt2cu_fp32 test_host test_placement test_timeline"
    needs build/gpu/gpu_tests build/gpu/gpu_tests_fp32 build/gpu/gpu_tests_fp16 \
        build/gpu/test_emu build/gpu/test_nccl || return
    set -- $({ printf '%s\n' $first test_emu test_nccl
        named_tests gpu_tests gpu_tests_fp32 gpu_tests_fp16; } \
        | awk '!seen[$1]++ { print "build/gpu/" $1 }')
    [ "$tiny" = 1 ] && set -- build/gpu/test_columns_gpu build/gpu/test_emu
    run_tests "$@"
    # what others take and free of the GPU's memory would be seen in this one
    [ "$tiny" = 1 ] || TIDE_ALONE=1 run_tests build/gpu/test_model
}
part_tests_all() { ALL=1 part_tests; }  # whole covering sets: a GPU is fast

part_placement() {
    needs train_gpt2cu train_gpt2 build/compare build/timeline build/tokenize build/gpu/gpu_tests \
        || return
    if [ "$tiny" = 1 ]; then named_tests gpu_tests >/dev/null; run_tests build/gpu/test_columns_gpu
    else run_tests dev/test/cli/test_cli_offload.sh dev/test/cli/test_cli_gpu.sh; fi
    STEPS=$(few 20) WARMUP=1 RESIDENT=0.3 modes nano nano 60 "none zero twinflow interleave \
        stride2 zero-published twinflow-published interleave-published" $pieces
}

# A run is: its losses, its norms, and the weights that it leaves.
same_numbers() {  # RUN RUN FIELD
    field "$3" "$1" >"$work/a"
    field "$3" "$2" | cmp -s "$work/a" && [ -s "$work/a" ]
}
same_run() {
    local name
    for name in loss grad_norm; do
        same_numbers "$1" "$2" $name || { bad "$3" "$name differs"; return; }
    done
    if cmp -s "$work/$1/model.safetensors" "$work/$2/model.safetensors"
    then good "$3" "the same bits"
    else bad "$3" "the weights differ"; fi
}

# twice PRECISION: the same run twice, and with each kind of recomputation.
twice() {
    local name way n=$((2 * steps))
    for name in once twice light block; do
        case $name in once | twice) way=none ;; *) way=$name ;; esac
        train "${name}_$1" 40 ./train_gpt2cu $nano --steps $n --precision "$1" --recompute $way &
    done
    wait
    same_run "once_$1" "twice_$1" "$n steps in $1, twice"
    same_run "once_$1" "light_$1" "with --recompute light, $1"
    same_run "once_$1" "block_$1" "with recomputation, $1"
}
part_twice() { needs train_gpt2cu && { twice fp32; twice bf16; }; }

# One step's rounding differs in the seventh digit in fp32 and in the third in bf16; training makes
# of that what the bounds below allow. (Emulated, bf16 is off by 0.0097 once, else by 0.005; an H200
# by 0.0075 at the same step.)
part_curves() {
    local kind bound difference n=$((2 * steps)) options
    needs train_gpt2cu train_gpt2 || return
    options="--data $text $cpu_size --steps $n --lr 1e-3"
    train cpu 38 ./train_gpt2 $options &
    for kind in fp32 bf16; do
        train gpu_$kind 38 ./train_gpt2cu $options --precision $kind &
    done
    twice bf16  # and waits for these, too
    for kind in fp32:0.0001 bf16:0.02; do
        bound=${kind#*:} kind=${kind%:*}
        difference=$(paste <(field loss cpu) <(field loss gpu_$kind) | awk -v n=$n '
            NF == 2 { found++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= m)) m = d }
            END { if (found != n) print "none"; else printf "%.3g\n", m }')
        if awk -v x="$difference" -v y="$bound" 'BEGIN { exit !(x != "none" && x + 0 <= y + 0) }'
        then good "$n losses next to the CPU, $kind" "within $difference, $bound is allowed"
        else bad "$n losses next to the CPU, $kind" "differ by $difference, $bound is allowed"; fi
    done
}

# sanitize_one TOOL NAME OPTION...: a tiny run under that tool, all kernels: where only some are
# looked at, racecheck ends with an error of its own (seen with 2025.3 and bf16 products).
sanitize_one() {
    local tool=$1 name=$2 code one=$work/$1_$2.log
    shift 2
    limited 55 compute-sanitizer --tool "$tool" --error-exitcode 9 ./train_gpt2cu \
        --data "$text" --out "$work/${tool}_$name" --eval-batches 1 --layers 2 --heads 2 \
        --channels 32 --context 32 --batch 2 --seq 19 --steps 2 "$@" >"$one" 2>&1
    code=$?
    said tests "$tool, $name" "$one"
    if [ $code -eq 0 ] && grep -Eq ' 0 errors|\(0 errors' "$one"
    then good "$tool, $name" "no errors"
    else bad "$tool, $name" "$(why $code): $(grep -E ' SUMMARY|rror' "$one" | tail -n 1)"; fi
}
sanitize() {  # lines of "TOOL NAME OPTION...", four at a time
    local tool words
    needs train_gpt2cu || return
    command -v compute-sanitizer >/dev/null || { bad "compute-sanitizer" "is not there"; return; }
    while read -r tool words; do
        four_at_once
        sanitize_one "$tool" $words </dev/null &
    done
    wait
}
part_sanitize() { printf '%s\n' "memcheck bf16" "racecheck bf16" | sanitize; }
# (initcheck in fp32 only: it does not see what 16-bit products of cuBLASLt store, and reports each
# of their numbers as never written.)
part_sanitize_all() {
    local name zen="--offload zenflow --zen-window 2"
    local mezo="--optimizer mezo --lr 1e-4 --resident-blocks 0"
    for name in "zen_bf16 $zen" "zo_fp16 $mezo --precision fp16 --slots 1 --zo-queries 2" \
        "fp32 --precision fp32" "bf16"; do
        printf '%s\n' "memcheck $name" "racecheck $name" "initcheck $name" "synccheck $name"
    done | grep -v 'memcheck bf16\|racecheck bf16\|initcheck .*[a-z]f*16' >"$work/sanitize"
    echo "memcheck zen_fp32 $zen --precision fp32 --accum 2 --zen-window auto" >>"$work/sanitize"
    echo "memcheck zo_bf16 $mezo --zo-no-fused-update" >>"$work/sanitize"
    [ "$tiny" = 1 ] && sed -i 4q "$work/sanitize"
    sanitize <"$work/sanitize"
}

# --- speed ---------------------------------------------------------------------------------------

part_train() {
    local shape
    needs train_gpt2cu && make_tokens || return
    shapes >"$work/shapes"
    while read -r shape; do whole_steps $shape </dev/null; done <"$work/shapes"
    row 2 "limits" "$(grep -h '^device:' "$out/train.log" | head -n 1)"
}

# Each shape with the algorithms that are measured for its products (--tune), next to the same shape
# without, which part train has run, or runs now. What is in the file gives the same bits.
part_tune() {
    local name shape batch first tuned gain percent file=$work/algorithms
    needs train_gpt2cu && make_tokens || return
    shapes | grep -v light >"$work/shapes"
    while read -r name shape <&3; do
        batch=$(cut -d' ' -f5 <<<"$shape") first=whole_${name}_$batch
        tuned=whole_$name,_tuned_$batch
        [ -e "$work/$first/log.jsonl" ] || whole_steps $name $shape || continue
        whole_steps $name,_tuned $shape --tune "$file" || continue
        gain=$(calculate "100 * $(late tokens_per_s $tuned) / $(late tokens_per_s $first) - 100")
        gain=$(printf '%+.1f' "$gain")
        percent=$(of_peak $first)
        row 0 "${name//_/ }, batch $batch, tuned to untuned" "$gain % tokens/s; $(
            sed -n 's/^--tune [^:]*: //p' "$work/$tuned.log")" \
            "${percent:+$percent % of peak untuned}" "$gain"
        [ -e "$work/again" ] || tuned_again $tuned $shape
    done 3<"$work/shapes"
    sed 's/ us [ 0-9a-f]*$/ us/' "$file" >"$work/chosen" && said train algorithms "$work/chosen"
}
tuned_again() {  # RUN LAYERS CHANNELS HEADS SEQ BATCH STEPS: what it has measured, from the file
    local what="its algorithms from the file"
    train again 60 ./train_gpt2cu $(shape_options "${@:2:5}") --steps "$7" --tune "$file" || return
    if grep -q 'products measured' "$work/again.log"; then bad "$what" "are measured again"
    elif same_numbers "$1" again loss && same_numbers "$1" again grad_norm
    then good "$what" "the same losses and norms"
    else bad "$what" "losses or norms differ"; fi
}

part_products() {
    local model one=$work/products level what us flops percent best gain
    needs build/gpu/bench_probe || return
    for model in $models; do
        measure 30 bench "$one" build/gpu/bench_probe products $model
        sed -n 's/^\(.*[^ ]\) \+\([0-9.]*\) us \+\([0-9.]*\) TFLOP\/s \+\([0-9.]*\) % \+best of'\
' *[0-9]*: *\([0-9]*\) .* us *\([-+0-9.]*\) %/\1\t\2\t\3\t\4\t\5\t\6/p' "$one" \
            | while IFS=$'\t' read -r what us flops percent best gain; do
            level=2
            case $what in *GELU*) level=1 ;; esac
            [ "${gain%%.*}" -ge 5 ] && level=1
            row $level "$what" "$us us, $flops TFLOP/s; best: number $best, $gain %" \
                "$percent % of peak" "$flops"
        done
        probe_rows "$one"
    done
}

part_bench() {
    local model one=$work/bench level name us rate flops share
    needs build/gpu/bench_gpu || return
    for model in $models; do
        measure 15 bench "$one" build/gpu/bench_gpu $flags $model
        awk '/ % of (memory|arithmetic)$/ {
            name = substr($0, 1, 34); sub(/ +$/, "", name)
            if (!sub(/^ +/, "", name)) of = name; else name = of ", " name
            n = split(substr($0, 35), x, " ")
            print name "\t" x[1] "\t" x[4] "\t" (n == 9 ? x[5] : "-") "\t" x[n - 3] " % of " x[n]
            }' "$one" | while IFS=$'\t' read -r name us rate flops share; do
            level=2
            case $name in
                attention*) level=1 rate="$flops TFLOP/s" ;;
                AdamW | crossentropy | layernorm_backward | residual_layer* | bias*)
                    level=1 rate="$rate GB/s" flops=$us ;;
                *) rate="$rate GB/s" flops='' ;;
            esac
            row $level "$model $name" "$us us, $rate" "$share" "$flops"
        done
    done
    # Does the matrix product lose by what makes its bits independent of where tensors lie?
    measure 10 bench "$one" build/gpu/bench_gpu --align 256 $flags 1.5B
}

# Time by kernel in a step of a few layers, with the clocks as they are.
part_kernels() {
    local shape layers csv=$work/kernels.csv kernel n each share
    needs train_gpt2cu && make_tokens || return
    command -v ncu >/dev/null || { bad "ncu" "is not there"; return; }
    set -- "1.5B 4 1600 25 1024 8" "7B 2 4096 32 2048 4"
    [ "$tiny" = 1 ] && set -- "tiny 1 32 2 16 2"
    for shape in "$@"; do
        rm -rf "${work:?}/ncu" "$csv"
        layers=${shape#* } layers=${layers%% *}
        measure 40 bench "$work/ncu.log" ncu --clock-control none --cache-control none \
            --print-units base --csv --metrics gpu__time_duration.sum --log-file "$csv" \
            ./train_gpt2cu $(shape_options ${shape#* }) --out "$work/ncu" --eval-every 0 \
            --steps 1 || continue
        gzip -c "$csv" >>"$out/kernels.csv.gz"
        python3 - "$csv" <<'PY' >"$work/kernels"
import csv, re, sys
rows = list(csv.reader(line for line in open(sys.argv[1], errors="replace") if line[0] == '"'))
name, value = rows[0].index("Kernel Name"), rows[0].index("Metric Value")
times = {}
for r in rows[1:]:
    kernel = re.sub(r"^(void|static) |\(anonymous namespace\)::", "", r[name])
    try: us = 1e-3 * float(r[value].replace(",", ""))
    except ValueError: continue  # "n/a"
    times.setdefault(re.split("[<(]", kernel)[0], []).append(us)
total = sum(map(sum, times.values()))
for k, t in sorted(times.items(), key=lambda x: -sum(x[1]))[:14]:
    print(k[:40], len(t), "%.1f" % (sum(t) / len(t)), "%.1f" % (100 * sum(t) / total))
PY
        while read -r kernel n each share; do
            row 1 "${shape%% *}, $layers layers: $kernel" "$n times $each us" \
                "$share % of all kernels" "$each"
        done <"$work/kernels"
    done
}

# pytorch NAME OPTION...: rows of what versus_pytorch_gpu.py says.
pytorch() {
    local name=$1 one=$work/torch.log mode a b compiled
    shift
    [ -e "$work/torch" ] || env LD_LIBRARY_PATH="$LIBRARIES" python3 -c \
        'import torch; print(int(torch.cuda.is_available()))' >"$work/torch" 2>/dev/null
    if ! grep -q 1 "$work/torch"; then
        good "PyTorch" "skipped: none that sees the GPU"
        return
    fi
    measure "$(left)" train "$one" env LD_LIBRARY_PATH="$LIBRARIES" \
        python3 dev/bench/versus_pytorch_gpu.py "$@"
    sed -n 's/.*"mode": "\([a-z]*\)".*"tokens_per_s": \([0-9.]*\).*"ms": \([0-9.]*\).*'\
'"compiled": "\([a-z]*\)".*/\1 \2 \3 \4/p; s/.*"mode": "sdpa \([a-z]*\)".*"us": \([0-9.]*\).*'\
'"tflops": \([0-9.]*\).*/\1 \2 \3/p' "$one" | while read -r mode a b compiled; do
        if [ -n "$compiled" ]; then
            row 0 "PyTorch $mode, $name" "$a tokens/s, $b ms, compiled: $compiled"
        else row 0 "PyTorch $mode, $name" "$a us, $b TFLOP/s" "" "$b"; fi
    done
}
part_attention() {
    set -- --mode sdpa --batch
    pytorch "16 x 25 heads of 64, T 1024" "$@" 16 --heads 25 --channels 1600 --seq 1024
    pytorch "8 x 32 heads of 128, T 2048" "$@" 8 --heads 32 --channels 4096 --seq 2048
    pytorch "1.5B, 8 x 1024, eager" --mode master --compile no --layers 48 --channels 1600 \
        --heads 25 --seq 1024 --batch 8
}
part_torch() {
    local name layers channels heads seq batch
    shapes | grep -v 'all_layers\|light' | while read -r name layers channels heads seq batch _; do
        pytorch "$name, $batch x $seq" --layers "$layers" --channels "$channels" --heads "$heads" \
            --seq "$seq" --batch "$batch" </dev/null
    done
}

# bench_log NAME LIMIT ARGUMENT...: a benchmark whose own table is what one wants to read.
bench_log() {
    local line
    measure "$2" bench "$work/$1.log" "build/gpu/$1" $flags "${@:3}"
    grep '[0-9]\.[0-9]' "$work/$1.log" | while read -r line; do row 2 "$1" "$line"; done
}

# --- offloading ----------------------------------------------------------------------------------

# offload_script SCRIPT NAME LIMIT OPTION...: compare_offload or sweep_offload, MODEL and more from
# the caller, into $work/NAME; what it says is in NAME.said.
offload_script() {
    local script=$1 dir=$work/$2 limit=$3 code data=$tokens
    shift 3
    [ "$MODEL" = nano ] && data=$text
    DATA=$data OUT=$dir RATES=$work/rates.txt TRAINER=./train_gpt2cu \
        limited "$limit" bash "scripts/$script.sh" "$@" >"$dir.said" 2>&1
    code=$?
    said offload "$MODEL ${MODES-$SWEEPS} $*" "$dir.said"
    cat "$dir"/*.txt >>"$out/offload.log" 2>/dev/null
    return $code
}

# modes NAME MODEL LIMIT MODES OPTION...: the same losses from all, memory as planned, and for each
# how long an iteration takes next to the plan. NAME is in the rows if it is not the part's.
modes() {
    local name=$1 model=$2 limit=$3 modes=$4 code way ms bound speed plan goal value level of=''
    shift 4
    rates && make_tokens || return
    [ "$name" = "$part" ] || of="$name, "
    MODEL=$model MODES=$modes offload_script compare_offload "$name" "$limit" "$@"
    code=$?
    case $code in
        0) case $modes in *" "*)
               good "$name" "the same losses and gradient norms wherever the same is computed" ;;
           esac ;;
        124 | 137) cut_off "$name" "what is missing was left out" ;;
        *) bad "$name" "$(grep -m 1 'DIFFERENT\|code' "$work/$name.said" \
            || tail -n 1 "$work/$name.said")" ;;
    esac
    # (a driver takes some MiB, however small the model is)
    awk '/MiB taken, planned/ { d = $3 - $7
                                if (d < 0) d = -d
                                if (d > 32 && d > 0.03 * $7) { print FILENAME ": " $0; exit 1 } }' \
        "$work/$name"/*.txt >"$work/memory" \
        || bad "$name" "memory is not the plan's within 3 %: $(cat "$work/memory")"
    # the goal, forward + backward + bound / 0.8, is what is asked of an iteration
    awk -F '\t' '$3 + 0 > 0 {
        goal = $7 + 0 > 0 && $9 + 0 > 0 ? sprintf("%.0f", $5 + $6 + $8 * $9 / 80) : "-"
        print $1, $3, $9, $10, $13, goal }' "$work/$name/compare.tsv" \
        | while read -r way ms bound speed plan goal; do
        value=$ms level=0
        [ "$model" = nano ] && level=1
        [ "$part" = whole ] || value=$(awk "BEGIN { if ($plan + 0 > 0) print $ms / $plan }")
        [ "$bound" = - ] && bound='' || bound="$bound % of the bound"
        row $level "$of$way" "$ms ms, plan $plan, goal $goal; $speed G parameters/s" "$bound" \
            "$value"
    done
}

# Does an update on the host hide behind compute? Ten layers of 7B, with and without offloading.
part_hidden() {
    needs train_gpt2cu || return
    STEPS=$(few 6) WARMUP=1 LIMIT=30 modes hidden $large "$(left)" "none-uncapped zero interleave" \
        --layers 10 $large_size --gpu-memory 24G
}
part_slice() {
    needs train_gpt2cu || return
    STEPS=$(few 10) WARMUP=2 LIMIT=40 RESIDENT=0.3 STREAMED="--gpu-memory 8G" modes slice $large \
        "$(left)" "none-uncapped zero interleave streamed twinflow zero-held none-light auto \
        twinflow-published" --layers 10 $large_size --gpu-memory 24G
}
part_whole() {
    local trace
    needs train_gpt2cu || return
    STEPS=$(few 8) WARMUP=2 LIMIT=75 modes whole $large "$(left)" "zero auto" $large_size \
        --gpu-memory 48G
    for trace in "$work/whole/zero.trace" "$work/whole/auto.trace"; do
        gzip -c "$trace" 2>/dev/null | head -c 15000000 >"$out/trace.json.gz"
        gzip -t "$out/trace.json.gz" 2>/dev/null && return
    done
    rm -f "$out/trace.json.gz"
}
# Is the machine what it was, and does it stay so?
part_drift() {
    local said
    needs train_gpt2cu && rates && make_tokens || return
    whole_steps $(shapes | sed -n 2p)
    MODEL=$medium SWEEPS=drift DRIFT_STEPS=$((2 * steps + 4)) LIMIT=45 \
        offload_script sweep_offload drift 50 $medium_size \
        || bad "100 steps" "$(why $?): $(tail -n 1 "$work/drift.said")"
    said=$(sed -n 's/^drift: //p' "$work/drift.said")
    row 0 "100 steps, last quarter to first" "${said:-too few}" "" \
        "$(grep -o '[-+0-9.]* %$' <<<"$said")"
}
part_offload_more() {
    local away="interleave zero twinflow stride2"
    needs train_gpt2cu build/gpu/bench_offload || return
    bench_log bench_offload 90 8
    # none has its gradients where activations were: else it would not fit
    LIMIT=40 modes 1.5B-24G $medium 210 "none-uncapped none $away zero-published \
        twinflow-published" $medium_size --gpu-memory 24G
    LIMIT=40 modes 1.5B-48G $medium 100 "none interleave twinflow" $medium_size --gpu-memory 48G
    STEPS=8 LIMIT=120 modes 13b 13b "$(left)" "auto twinflow" --batch 1 --seq 2048
    STEPS=8 LIMIT=100 STREAMED="--gpu-memory 16G" modes 7b 7b "$(left)" "none-uncapped $away \
        streamed interleave-streamed" $large_size --gpu-memory 48G
}
# What scripts/run_20b_h200.sh trains: memory and time next to the plan.
part_20b() {
    local mib
    needs train_gpt2cu || return
    mib=$(smi memory.total | tr -cd 0-9)
    [ "${mib:-0}" -gt 140000 ] || { good 20b "skipped: it needs a card of 141 GB"; return; }
    STEPS=$(few 10) WARMUP=2 LIMIT=400 modes 20b $huge "$(left)" auto $huge_size
}

# --- several ranks, ZenFlow, zeroth order --------------------------------------------------------

# Several ranks on one GPU are refused by NCCL: with one GPU, one rank goes through all of it.
part_nccl() {
    local name gpus ms none='' options="$nano --steps $steps"
    local some="--data $tokens $gpt2 --vocab $vocab --no-save --steps"
    some="$some $(few 20)"
    needs train_gpt2cu && make_tokens || return
    ldd ./train_gpt2cu | grep -q libnccl || [ "$tiny" = 1 ] || bad "NCCL" "built without"
    train none 40 ./train_gpt2cu $options || return
    for name in 1 2 3; do
        train stage_$name 40 ./train_gpt2cu $options --zero $name \
            && same_run none stage_$name "one rank, stage $name, next to none"
    done
    train interleave 40 ./train_gpt2cu $options --zero 3 --offload interleave --share 0.5 \
        --subgroup 8192 && same_run none interleave "one rank, stage 3, interleaved, next to none"
    train zen_1 40 ./train_gpt2cu $options --offload zenflow \
        && train zen_2 40 ./train_gpt2cu $options --offload zenflow --zero 2 \
        && same_run zen_1 zen_2 "one rank, stage 2, ZenFlow, next to it without ZeRO"
    for name in none 1 2 3; do
        set -- --zero $name
        [ $name = none ] && set --
        train ms_$name 60 ./train_gpt2cu $some "$@" || continue
        ms=$(late ms ms_$name)
        [ $name = none ] && none=$ms
        row 1 "124M, one rank, stage $name, to none" "$ms ms" "" "$(calculate "$ms / ${none:-$ms}")"
    done
    gpus=$(nvidia-smi -L | grep -c '^GPU ')
    [ "$gpus" -ge 2 ] || return 0
    for name in 1 2 3; do
        train ranks_$name 60 sh scripts/launch.sh "$gpus" ./train_gpt2cu $options --zero $name \
            && same_run ranks_1 ranks_$name "$gpus ranks, stage $name next to 1"
        train ranks_ms_$name 60 sh scripts/launch.sh "$gpus" ./train_gpt2cu $some --zero $name \
            && row 1 "124M on each of $gpus GPUs, stage $name" "$(late ms ranks_ms_$name) ms"
    done
}

zen_modes="none zero zenflow zenflow-streamed zenflow-serial zero-accum zero-late zenflow-sync"
zen_size="$medium_size"
[ "$tiny" = 1 ] || zen_size="--batch 8 --seq 1024 --recompute block"
zen_streamed="--gpu-memory 8G"  # else each layer has a place of its own
part_zen() {
    local STREAMED=$zen_streamed
    export STREAMED
    needs train_gpt2cu build/gpu/bench_zen || return
    bench_log bench_zen 20
    STEPS=16 LIMIT=25 modes zen $medium "$(($(left) - 20))" \
        "none zero zenflow zenflow-streamed" $zen_size
    [ "$tiny" = 1 ] || STEPS=40 EVALS=4 modes zen_nano nano "$(left)" "$zen_modes" --batch 4
}
part_zen_more() {
    local model size="--seq 2048 --recompute block --batch"
    needs train_gpt2cu && rates || return
    STEPS=32 LIMIT=60 STREAMED=$zen_streamed modes zen $medium 250 "$zen_modes" $zen_size
    STEPS=24 LIMIT=100 modes zen_7b 7b 330 "zero zero-accum zenflow-sync zenflow-serial zenflow" \
        $size 4
    for model in 13b 10b; do  # the largest that fits here, where --rates would mean elsewhere
        ./train_gpt2cu --plan --model $model --offload zenflow $size 1 \
            >"$work/fits" 2>&1 || { row 1 $model "$(tail -n 1 "$work/fits")"; continue; }
        STEPS=20 LIMIT=150 modes zen_$model $model "$(left)" "zero zenflow" $size 1
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
# zo_run MODEL memory|streamed STEPS LIMIT OPTION...: the trainer as people run it, in fp16, a batch
# as in the paper; its memory as taken, as planned, and as nvidia-smi counts it, with the driver's.
zo_run() {
    local model=$1 where=$2 run=$1-$2 paper began=$SECONDS
    set -- "$3" "$4" --seq "$([ "$tiny" = 1 ] && echo 32 || echo 2048)" "${@:5}"
    [ "$where" = streamed ] && set -- "$@" --resident-blocks 0
    sampled memory.used train "$run" "$2" ./train_gpt2cu --optimizer mezo --model "$model" \
        --data "$tokens" --steps "$1" --no-save --precision fp16 --batch 1 "${@:3}" || return
    paper=$(zo_paper "$model" "$where")
    row 1 "$model, $where" "$(late ms "$run") ms, $(late tokens_per_s "$run") tokens/s, MiB $(
        sed -n 's/^GPU memory: \(.*\) MiB taken, planned \(.*\) MiB/\1 of \2/p' \
            "$work/$run.log"), $(sort -n "$work/samples" | tail -n 1) seen; $((SECONDS - began
        )) s" \
        "${paper:+paper (A100): $paper MB}"
}
# zo_both MODEL STEPS LIMIT: in memory and streamed, which must have the same losses.
zo_both() {
    zo_run "$1" memory "$2" "$3" && zo_run "$1" streamed "$2" "$3" || return
    if same_numbers "$1-memory" "$1-streamed" loss \
        && same_numbers "$1-memory" "$1-streamed" grad_norm; then return; fi
    bad "$1" "streamed differs from in memory"
}
zo_torch() {
    pytorch "OPT, $1 layers of $2" --mode mezo --dtype float16 --activation relu --layers "$1" \
        --channels "$2" --heads 32 --vocab 50272 --seq 2048 --batch 1
}
part_zo() {
    local way model run="$nano --steps $steps --optimizer mezo --lr 1e-4 --precision fp16 --accum 1"
    needs train_gpt2cu build/gpu/bench_zo build/gpu/bench_zo_fp16 build/gpu/bench_zo_fp32 \
        && make_tokens || return
    if train zo_memory 30 ./train_gpt2cu $run; then
        for way in "--slots 2" "--slots 3" "--resident-blocks 1" --no-overlap --zo-no-slots \
            --zo-no-fused-update; do
            train zo_streamed 30 ./train_gpt2cu $run --resident-blocks 0 $way \
                && same_run zo_memory zo_streamed "$steps steps in fp16, streamed $way"
        done
    fi
    bench_log bench_zo 30 kernel step
    bench_log bench_zo_fp16 20 kernel step
    bench_log bench_zo_fp32 10 kernel
    for model in $opts; do zo_both $model 8 40; done
    zo_torch 24 2048
}
part_zo_more() {
    needs train_gpt2cu build/gpu/bench_zo build/gpu/bench_zo_fp32 && make_tokens || return
    bench_log bench_zo 100 stream queries
    bench_log bench_zo_fp32 170 stream
    zo_both opt-2.7b 12 60
    zo_both opt-13b 12 60
    zo_both opt-30b 8 120
    # 122 GiB of weights, half of them on the host: a seventh more would fit into the GPU's 139
    zo_run opt-66b streamed 6 "$(left)" --resident-blocks 32
    zo_torch 32 4096
}
