# gpu_parts.sh: the parts of gpu_check.sh, which sources this: what is run on a GPU, and the rows
# that come of it. Each part is a session of its own, over at second $until.
# shellcheck shell=bash disable=SC2046,SC2086,SC2153,SC2154  # options are words

# --- what parts share ----------------------------------------------------------------------------

left() { echo $((until - $(now))); }
median() { sort -g | awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'; }
calculate() { awk "BEGIN { printf \"%.4g\", $* }"; }
four_at_once() { while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done; }

# kept LIMIT TITLE FILE COMMAND...: for so many seconds, but never longer than the part may take.
# FILE gets the command's output, and the log gets it below the title. 124: too slow.
kept() {
    local limit=$(($(left) - 1)) title=$2 file=$3 code
    [ "$limit" -lt "$1" ] || limit=$1
    [ "$limit" -ge 1 ] || limit=1
    shift 3
    timeout -k 2 "$limit" "$@" >"$file" 2>&1
    code=$?
    { printf '\n== %s: %s\n' "$part" "$title"; cat "$file"; } >>"$out/log.txt"
    return $code
}
# failed WHAT CODE TEXT: the row of a command that kept() has ended.
failed() {
    case $2 in
        124 | 137) cut_off "$1" "not done in time: $3" ;;
        *) bad "$1" "ended with code $2: $3" ;;
    esac
    return 1
}

# measure LIMIT FILE COMMAND...: a program that prints its numbers.
measure() {
    kept "$1" "${*:3}" "$2" "${@:3}" || failed "${3##*/} ${*:4}" $? "$(tail -n 1 "$2")"
}
# rows LEVEL: one of each line "what | measured | of its limit" of its input.
rows() {
    local what measured limit
    sed -n '/|/{s/  */ /g; s/^ //; s/ *| */|/g; p}' | while IFS='|' read -r what measured limit; do
        row "$1" "$what" "$measured" "$limit"
    done
}
# ask LEVEL LIMIT COMMAND...: a program that prints such lines.
ask() {
    measure "$2" "$work/asked" "${@:3}"
    rows "$1" <"$work/asked"
}
# ask_bench NAME LIMIT ARGUMENT...: one whose own table is what one wants to read.
ask_bench() {
    measure "$2" "$work/asked" "build/gpu/$1" $flags "${@:3}"
    sed -n "s/.*[0-9]\.[0-9]/$1 | &/p" "$work/asked" | rows 2
}

# train NAME LIMIT PROGRAM OPTION...: a run to its end, into $work/NAME; NAME.log has what it says.
train() {
    rm -rf "${work:?}/$1"
    kept "$2" "$1, ${*:3}" "$work/$1.log" "${@:3}" --out "$work/$1" --eval-every 0 \
        || failed "$1" $? "$(tail -n 1 "$work/$1.log")"
}
# field NAME RUN: that number from every training line of its log.jsonl; late: the median without
# the first.
field() { sed -n "/\"loss\"/s/.*\"$1\":\([^,}]*\).*/\1/p" "$work/$2/log.jsonl"; }
late() { field "$1" "$2" | tail -n +4 | median; }

# A run is: its losses, its norms, and the weights that it leaves.
same_losses() {  # RUN RUN
    [ -s "$work/$1/log.jsonl" ] && cmp -s <(field loss "$1") <(field loss "$2") \
        && cmp -s <(field grad_norm "$1") <(field grad_norm "$2")
}
same_run() {  # RUN RUN WHAT
    if ! same_losses "$1" "$2"; then bad "$3" "losses or norms differ"
    elif cmp -s "$work/$1/model.safetensors" "$work/$2/model.safetensors"
    then good "$3" "the same bits"
    else bad "$3" "the weights differ"; fi
}
# like RUN WHAT OPTION...: trains with these, and has the bits of that run?
like() { train "$2" 40 ./train_gpt2cu "${@:3}" && same_run "$1" "$2" "$2"; }

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

# Models of tests, and what the others are run with. With TINY, all are so small that the emulated
# GPU has done with them at once; modes() and zo_run() see to theirs.
text=$work/text.txt tokens=$work/tokens.bin
nano="--data $text --model nano --batch 5 --seq 250 --accum 2" steps=50 vocab=50257 flags=''
cpu_size="--layers 3 --heads 3 --channels 96 --context 64 --batch 8" models="1.5B 7B 124M"
gpt2="--model gpt2 --batch 4 --seq 1024 --steps 20" touch=''
size_xl="--batch 2 --seq 1024 --recompute none" size_7b="--batch 1 --seq 2048 --recompute none"
if [ "$tiny" = 1 ]; then
    cpu_size="--layers 1 --heads 2 --channels 32 --context 16 --batch 2"
    nano="--data $text $cpu_size --layers 2" steps=4 vocab=300 flags=--tiny tokens=$text models=tiny
    gpt2="$cpu_size --steps 6" touch=20
fi

# Shapes for the GPU that is here: name, layers, channels, heads, sequence, batch, steps, options.
shapes() {
    local mib
    mib=$(smi memory.total | tr -cd 0-9)
    if [ "$tiny" = 1 ]; then set -- "124M 1 32 2 16 2 4" "7B 1 64 2 32 1 4" \
        "7B,_light 1 64 2 32 1 4 --recompute light"
    elif [ "${mib:-0}" -gt 120000 ]; then set -- "124M 12 768 12 1024 32 60" \
        "1.5B 48 1600 25 1024 16 16" "7B,_8_layers 8 4096 32 2048 8 14" \
        "7B,_8_layers,_light 8 4096 32 2048 8 14 --recompute light" \
        "1.5B 48 1600 25 1024 32 10" "7B,_all_layers 32 4096 32 2048 1 12"
    elif [ "${mib:-0}" -gt 70000 ]; then set -- "124M 12 768 12 1024 32 60" \
        "1.5B 48 1600 25 1024 8 16" "7B,_8_layers 8 4096 32 2048 4 14" \
        "7B,_8_layers,_light 8 4096 32 2048 4 14 --recompute light"
    elif [ "${mib:-0}" -gt 38000 ]; then set -- "124M 12 768 12 1024 16 60" \
        "1.5B 48 1600 25 1024 2 16"
    else set -- "124M 12 768 12 1024 4 60"; fi
    printf '%s\n' "$@"
}
shape_options() {  # LAYERS CHANNELS HEADS SEQ BATCH
    echo "--data $tokens --layers $1 --channels $2 --heads $3 --context $4 --seq $4 --batch $5" \
         "--vocab $vocab --recompute none --no-save"
}

# whole_steps NAME LAYERS CHANNELS HEADS SEQ BATCH STEPS [OPTION...]: training, and the mean power
# and clock of where power is drawn.
whole_steps() {
    local run=whole_$1_$6 power percent speed
    sampled power.draw,clocks.sm,temperature.gpu \
        train "$run" 80 ./train_gpt2cu $(shape_options "${@:2:5}") --steps "$7" "${@:8}" \
        || return
    power=$(awk -F ', *' '{ w[NR] = $1; mhz[NR] = $2; c[NR] = $3; if ($1 > most) most = $1 }
        END { for (i = 1; i <= NR; i++) if (w[i] >= 0.7 * most) { n++; W += w[i]; M += mhz[i]
              if (c[i] > C) C = c[i] }
              if (n > 0) printf "%.0f W, %.0f MHz, %d C", W / n, M / n, C }' "$work/samples")
    percent=$(sed -n 's/.*| \([0-9]*\) % of peak.*/\1/p' "$work/$run.log" | tail -n +4 | median)
    speed="$(late tokens_per_s "$run") tokens/s, $(late ms "$run") ms"
    row 1 "${1//_/ }, $6 x $5" "$speed, $power" "${percent:--} % of peak"
}

# --- the machine ---------------------------------------------------------------------------------

memory() { awk -v name="$1:" '$1 == name { printf "%.1f", $2 / 1048576 }' /proc/meminfo; }
smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }

# Builds the programs that could not be taken from the pack.
part_build() {
    local name
    make -k -j"$(nproc)" $(<"$work/missing") >"$work/make" 2>&1
    cat "$work/make" >>"$out/log.txt"
    for name in $(<"$work/missing"); do
        [ -x "$name" ] || bad "$name" "was not built: $(grep -m 1 -E 'error|Error' "$work/make")"
    done
}

part_facts() {
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
    ask 2 20 build/gpu/bench_probe touch "${touch:-$(awk '/MemTotal/ {
        m = $2 / 1024 * 0.8; printf "%d", (m > 102400 ? m : 102400) }' /proc/meminfo)}"
    row 1 "host memory after" "$(memory MemTotal) GiB, available $(memory MemAvailable)"
}
part_probe() {
    ask 2 12 build/gpu/bench_probe $flags host
    ask 2 20 build/gpu/bench_probe $flags copies
}

# The machine's rates, once for all that follows; RATES=FILE: they are known.
rates() {
    [ -z "${RATES-}" ] || cp "$RATES" "$work/rates.txt" || bad "RATES" "cannot read $RATES"
    [ -s "$work/rates.txt" ] || measure 35 "$work/calibrate" \
        ./train_gpt2cu --calibrate --rates "$work/rates.txt"
}
part_calibrate() {
    rates || return
    {
        echo "# MEASURED on $(cat "$work/device") with $(getconf _NPROCESSORS_ONLN) cores," \
             "$(date -u +%Y-%m-%d), commit $(commit):"
        echo "# --calibrate, nothing else running. What it cannot measure is 0."
        cat "$work/rates.txt"
    } >"$out/measured_rates.txt"
    awk '/^# .*[/]s$/ { $0 = $2 " " $3 " # " $4 }  # a cast, which no plan counts
    NF == 4 && $4 ~ "/s$" {
        unit = $4
        giga = sub("^flop", "TFLOP", unit) ? 1e12 : 1e9
        sub("^bytes", "GB", unit) || sub("^[a-z]", "G &", unit)
        printf "%s | %.4g %s\n", $1, $2 / giga, unit }' "$work/rates.txt" | rows 1
}

# --- correctness ---------------------------------------------------------------------------------

run_test() {  # PROGRAM or SCRIPT: its row
    local name=${1##*/} limit=70 code ok failed
    local one=$work/test_$name.log
    case $name in *.sh) limit=150; set -- sh "$1" ;; esac
    kept $limit "$*" "$one" env TIDE_GPU=./train_gpt2cu "$@"
    code=$?
    ok=$(grep -c '^ok ' "$one") failed=$(grep -c '^FAIL ' "$one")
    if [ $code -ne 0 ] || [ "$failed" -gt 0 ] || ! grep -q '^ok \|^skip ' "$one"; then
        failed "$name" $code "$failed failed, $ok ok, first: $({
            grep -m 1 '^FAIL ' "$one" || tail -n 1 "$one"; } | cut -c1-110)"
    else good "$name" "$ok ok$(sed -n 's/^skip /; skipped /p' "$one" | head -n 1)" 2; fi
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

# All tests of the GPU sources, each by a link to its program; those that say most first.
part_tests() {
    local program name first="test_matmul_gpu test_attention test_kernels test_gpt2cu test_model \
        test_gpt2cu_fp32 test_host test_placement test_timeline"
    for program in gpu_tests gpu_tests_fp32 gpu_tests_fp16; do
        for name in $(build/gpu/$program --list); do
            ln -sf $program build/gpu/$name
            set -- "$@" $name
        done
    done
    set -- $(printf '%s\n' $first test_emu test_nccl "$@" \
        | awk '!seen[$1]++ { print "build/gpu/" $1 }')
    [ "$tiny" = 1 ] && set -- build/gpu/test_columns_gpu build/gpu/test_emu
    run_tests "$@"
    # what others take and free of the GPU's memory would be seen in this one
    [ "$tiny" = 1 ] || TIDE_ALONE=1 run_tests build/gpu/test_model
}
part_tests_all() { ALL=1 part_tests; }  # whole covering sets: a GPU is fast

part_placement() {
    set -- dev/test/cli/test_cli_offload.sh dev/test/cli/test_cli_gpu.sh
    [ "$tiny" = 1 ] && set -- build/gpu/test_emu
    run_tests "$@"
    STEPS=20 WARMUP=1 RESIDENT=0.3 modes nano nano 60 "none zero twinflow interleave stride2 \
        zero-published twinflow-published interleave-published" --batch 4 --subgroup 8192
}

# twice PRECISION: the same run twice, and with each kind of recomputation.
twice() {
    local way n=$((2 * steps))
    for way in none none.again light block; do
        train $way 40 ./train_gpt2cu $nano --steps $n --precision "$1" --recompute ${way%.*} &
    done
    wait
    same_run none none.again "$n steps in $1, twice"
    same_run none light "with --recompute light, $1"
    same_run none block "with recomputation, $1"
}
part_twice() { twice fp32; twice bf16; }

# One step's rounding differs in the seventh digit in fp32 and in the third in bf16; training makes
# of that what the bounds below allow. (Emulated, bf16 is off by 0.0097 once, else by 0.005; an H200
# by 0.0075 at the same step.)
part_curves() {
    local kind bound what off n=$((2 * steps)) options
    options="--data $text $cpu_size --steps $n --lr 1e-3"
    train cpu 38 ./train_gpt2 $options &
    train fp32 38 ./train_gpt2cu $options --precision fp32 &
    train bf16 38 ./train_gpt2cu $options --precision bf16 &
    twice bf16  # and waits for these, too
    for kind in fp32:0.0001 bf16:0.02; do
        bound=${kind#*:} kind=${kind%:*} what="$n losses next to the CPU, ${kind%:*}"
        if off=$(paste <(field loss cpu) <(field loss $kind) | awk -v n=$n -v bound=$bound '
            NF == 2 { found++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= m)) m = d }
            END { printf "%.3g, %s is allowed", m, bound; exit !(found == n && m <= bound) }')
        then good "$what" "off by $off"
        else bad "$what" "off by $off"; fi
    done
}

# sanitize TOOLS NAME OPTION...: a tiny run under each tool, four at once. All kernels: where only
# some are looked at, racecheck ends with an error of its own (seen with 2025.3 and bf16 products).
sanitize() {
    local tool what one
    for tool in $1; do
        four_at_once
        what="$tool, $2" one=$work/${tool}_$2
        if kept 55 "$what" "$one.log" compute-sanitizer --tool "$tool" --error-exitcode 9 \
            ./train_gpt2cu --data "$text" --out "$one" --eval-batches 1 --layers 2 --heads 2 \
            --channels 32 --context 32 --batch 2 --seq 19 --steps 2 "${@:3}" \
            && grep -Eq ' 0 errors|\(0 errors' "$one.log"; then good "$what" "no errors"
        else bad "$what" "$(grep -E ' SUMMARY|rror' "$one.log" | tail -n 1)"; fi &
    done
}
part_sanitize() { sanitize "memcheck racecheck" bf16; wait; }
# (initcheck in fp32 only: it does not see what 16-bit products of cuBLASLt store, and reports each
# of their numbers as never written.)
part_sanitize_all() {
    local most="memcheck racecheck synccheck" zen="--offload zenflow" mezo="--optimizer mezo"
    mezo="$mezo --lr 1e-4 --resident-blocks 0"
    sanitize "$most" zen_bf16 $zen --zen-window 2
    sanitize "$most" zo_fp16 $mezo --precision fp16 --slots 1 --zo-queries 2
    sanitize "$most initcheck" fp32 --precision fp32
    sanitize synccheck bf16
    sanitize memcheck zen_fp32 $zen --precision fp32 --accum 2 --zen-window auto
    sanitize memcheck zo_bf16 $mezo --zo-no-fused-update
    wait
}

# --- speed ---------------------------------------------------------------------------------------

part_train() {
    local shape
    while read -r shape <&3; do whole_steps $shape; done 3< <(shapes)
    row 2 "limits" "$(grep -h '^device:' "$out/log.txt" | head -n 1)"
}

# Each shape with the algorithms that are measured for its products (--tune), next to the same shape
# without, which part train has run, or runs now. What is in the file gives the same bits.
part_tune() {
    local name shape batch first tuned gain
    while read -r name shape <&3; do
        batch=$(cut -d' ' -f5 <<<"$shape") first=whole_${name}_$batch
        tuned=whole_$name,_tuned_$batch
        [ -e "$work/$first/log.jsonl" ] || whole_steps $name $shape || continue
        whole_steps $name,_tuned $shape --tune "$work/algorithms" || continue
        gain=$(calculate "100 * $(late tokens_per_s $tuned) / $(late tokens_per_s $first) - 100")
        gain=$(printf '%+.1f' "$gain")
        row 1 "${name//_/ }, batch $batch, tuned to untuned" \
            "$gain % tokens/s; $(sed -n 's/^--tune [^:]*: //p' "$work/$tuned.log")"
        [ -e "$work/again" ] || tuned_again $tuned $shape
    done 3< <(shapes | grep -v light)
    { echo "== algorithms"; sed 's/ us [ 0-9a-f]*$/ us/' "$work/algorithms"; } >>"$out/log.txt"
}
tuned_again() {  # RUN LAYERS CHANNELS HEADS SEQ BATCH STEPS: what it has measured, from the file
    local what="its algorithms from the file"
    train again 60 ./train_gpt2cu $(shape_options "${@:2:5}") --steps "$7" \
        --tune "$work/algorithms" || return
    if grep -q 'products measured' "$work/again.log"; then bad "$what" "are measured again"
    elif same_losses "$1" again; then good "$what" "the same losses and norms"
    else bad "$what" "losses or norms differ"; fi
}

part_products() {
    local model
    for model in $models; do ask 2 30 build/gpu/bench_probe products $model; done
}
part_bench() {
    local model
    for model in $models; do ask 2 15 build/gpu/bench_gpu $flags $model; done
    # Does the matrix product lose by what makes its bits independent of where tensors lie?
    measure 10 "$work/aligned" build/gpu/bench_gpu --align 256 $flags 1.5B
}

# Time by kernel in a step of a few layers, with the clocks as they are.
part_kernels() {
    local shape csv=$work/kernels.csv
    set -- "1.5B 4 1600 25 1024 8" "7B 2 4096 32 2048 4"
    [ "$tiny" = 1 ] && set -- "tiny 1 32 2 16 2"
    for shape in "$@"; do
        set -- $shape
        rm -rf "${work:?}/ncu" "$csv"
        measure 40 "$work/ncu.log" ncu --clock-control none --cache-control none \
            --print-units base --csv --metrics gpu__time_duration.sum --log-file "$csv" \
            ./train_gpt2cu $(shape_options "${@:2}") --out "$work/ncu" --eval-every 0 --steps 1 \
            || continue
        gzip -c "$csv" >>"$out/kernels.csv.gz"
        awk -F '","' -v of="$1, $2 layers" '
            /^"/ && !found {  # the head
                for (i = 1; i <= NF; i++) { gsub(/"/, "", $i); column[$i] = i }
                found = 1
                next
            }
            /^"/ {
                name = $column["Kernel Name"]
                gsub(/^(void|static) |\(anonymous namespace\)::/, "", name)
                sub(/[<(].*/, "", name)
                ns = $column["Metric Value"]
                gsub(/[",]/, "", ns)  # "n/a" is 0
                n[name]++
                sum[name] += ns
                all += ns
            }
            END { for (name in n) printf "%s: %.40s | %d times %.1f us | %.1f %% of all kernels\n",
                      of, name, n[name], 1e-3 * sum[name] / n[name], 100 * sum[name] / all
            }' "$csv" | sort -t '|' -k 3,3gr | head -n 14 | rows 1
    done
}

# pytorch NAME OPTION...: rows of what versus_pytorch_gpu.py says.
pytorch() {
    local name=$1
    shift
    [ -e "$work/torch" ] || env LD_LIBRARY_PATH="$LIBRARIES" python3 -c \
        'import torch; print(int(torch.cuda.is_available()))' >"$work/torch" 2>/dev/null
    grep -q 1 "$work/torch" || { good "PyTorch" "skipped: none that sees the GPU"; return; }
    measure "$(left)" "$work/asked" env LD_LIBRARY_PATH="$LIBRARIES" \
        python3 dev/bench/versus_pytorch_gpu.py "$@"
    sed -n "s/^\(PyTorch [a-z]*\) |/\1, $name |/p" "$work/asked" | rows 1
}
part_attention() {
    set -- --mode sdpa --batch
    pytorch "16 x 25 heads of 64, T 1024" "$@" 16 --heads 25 --channels 1600 --seq 1024
    pytorch "8 x 32 heads of 128, T 2048" "$@" 8 --heads 32 --channels 4096 --seq 2048
    pytorch "1.5B, 8 x 1024, eager" --mode master --compile no --layers 48 --channels 1600 \
        --heads 25 --seq 1024 --batch 8
}
part_torch() {
    local shape
    while read -r shape <&3; do
        set -- $shape
        pytorch "$1, $6 x $5" --layers $2 --channels $3 --heads $4 --seq $5 --batch $6
    done 3< <(shapes | grep -v 'all_layers\|light')
}

# --- offloading ----------------------------------------------------------------------------------

# modes NAME MODEL LIMIT MODES OPTION...: the same losses from all, memory as planned, and for each
# how long an iteration takes next to the plan. NAME is in the rows if it is not the part's.
modes() {
    local name=$1 model=$2 limit=$3 modes=$4 dir=$work/$1 data=$tokens of='' code memory
    shift 4
    rates || return
    [ "$name" = "$part" ] || of="$name, "
    if [ "$tiny" = 1 ]; then
        model=nano
        set -- --layers 2 --heads 2 --channels 32 --context 32 --vocab 300 --batch 2 --seq 32 \
            --subgroup 4096
        [[ $modes = *zenflow* ]] || export STEPS=6
    fi
    [ "$model" != nano ] || data=$text
    MODEL=$model MODES=$modes DATA=$data OUT=$dir RATES=$work/rates.txt TRAINER=./train_gpt2cu \
        kept "$limit" "$model, $modes, $*" "$work/$name.said" bash scripts/compare_offload.sh "$@"
    code=$?
    cat "$dir"/*.txt >>"$out/log.txt" 2>/dev/null
    if [ $code -ne 0 ]; then
        failed "$name" $code "$(grep -m 1 'DIFFERENT\|code' "$work/$name.said" \
            || tail -n 1 "$work/$name.said")"
    elif [[ $modes = *" "* ]]; then
        good "$name" "the same losses and gradient norms wherever the same is computed"
    fi
    # (a driver takes some MiB, however small the model is)
    memory=$(grep 'MiB taken, planned' "$dir"/*.txt /dev/null 2>/dev/null | awk '
        { d = $3 > $7 ? $3 - $7 : $7 - $3 }
        d > 32 && d > 0.03 * $7' | head -n 1)
    [ -z "$memory" ] || bad "$name" "memory is not the plan's within 3 %: $memory"
    # the goal, forward + backward + bound / 0.8, is what is asked of an iteration
    awk -F '\t' -v of="$of" '$3 + 0 > 0 {
        goal = $8 + 0 > 0 && $9 + 0 > 0 ? sprintf("%.0f", $5 + $6 + $8 * $9 / 80) : "-"
        printf "%s%s | %s ms, plan %s, goal %s; ", of, $1, $3, $13, goal
        printf "%s %% of the bound, %s G parameters/s | %s of the plan\n", $9, $10,
               ($13 + 0 > 0 ? sprintf("%.2f", $3 / $13) : "-") }' "$dir/compare.tsv" | rows 1
}

# Does an update on the host hide behind compute? Ten layers of 7B, with and without offloading.
part_hidden() {
    STEPS=6 WARMUP=1 LIMIT=30 modes hidden 7b "$(left)" "none-uncapped zero interleave" \
        --layers 10 $size_7b --gpu-memory 24G
}
part_slice() {
    STEPS=10 WARMUP=2 LIMIT=40 RESIDENT=0.3 STREAMED="--gpu-memory 8G" modes slice 7b "$(left)" \
        "none-uncapped zero interleave streamed twinflow zero-held none-light auto \
        twinflow-published" --layers 10 $size_7b --gpu-memory 24G
}
part_whole() {
    local trace
    STEPS=8 WARMUP=2 LIMIT=75 modes whole 7b "$(left)" "zero auto" $size_7b --gpu-memory 48G
    for trace in "$work/whole/auto.trace" "$work/whole/zero.trace"; do  # the last that is there
        [ ! -s "$trace" ] || gzip -c "$trace" >"$out/trace.json.gz"
    done
}
# Is the machine what it was, and does it stay so?
part_drift() {
    local run=drift/interleave n first last
    whole_steps $(shapes | sed -n 2p)
    STEPS=104 LIMIT=45 modes drift gpt2-xl 50 interleave $size_xl
    n=$(field ms $run | wc -l)
    [ "$n" -ge 4 ] || return
    first=$(field ms $run | sed -n "4,$((3 + n / 4))p" | median)
    last=$(field ms $run | tail -n $((n / 4)) | median)
    row 1 "100 steps, last quarter to first" "$first ms, then $last" \
        "$(calculate "100 * $last / $first - 100") %"
}
part_offload_more() {
    local away="interleave zero twinflow stride2"
    ask_bench bench_offload 90 8
    # none has its gradients where activations were: else it would not fit
    LIMIT=40 modes 1.5B-24G gpt2-xl 210 "none-uncapped none $away zero-published \
        twinflow-published" $size_xl --gpu-memory 24G
    LIMIT=40 modes 1.5B-48G gpt2-xl 100 "none interleave twinflow" $size_xl --gpu-memory 48G
    STEPS=8 LIMIT=120 modes 13b 13b "$(left)" "auto twinflow" --batch 1 --seq 2048
    STEPS=8 LIMIT=100 STREAMED="--gpu-memory 16G" modes 7b 7b "$(left)" "none-uncapped $away \
        streamed interleave-streamed" $size_7b --gpu-memory 48G
}
# What scripts/run_20b_h200.sh trains: memory and time next to the plan.
part_20b() {
    local mib
    mib=$(smi memory.total | tr -cd 0-9)
    [ "${mib:-0}" -gt 140000 ] || { good 20b "skipped: it needs a card of 141 GB"; return; }
    STEPS=10 WARMUP=2 LIMIT=400 modes 20b 20b "$(left)" auto --batch 8 --seq 2048 --moments bf16 \
        --gpu-memory 131G --host-memory 121G
}

# --- several ranks, ZenFlow, zeroth order --------------------------------------------------------

# Several ranks on one GPU are refused by NCCL: with one GPU, one rank goes through all of it.
part_nccl() {
    local name gpus ms none='' options="$nano --steps $steps"
    local some="--data $tokens $gpt2 --vocab $vocab --no-save"
    ldd ./train_gpt2cu | grep -q libnccl || [ "$tiny" = 1 ] || bad "NCCL" "built without"
    train none 40 ./train_gpt2cu $options || return
    for name in 1 2 3; do
        like none "one rank, stage $name, next to none" $options --zero $name
    done
    like none "one rank, stage 3, interleaved, next to none" $options --zero 3 \
        --offload interleave --share 0.5 --subgroup 8192
    train zenflow 40 ./train_gpt2cu $options --offload zenflow && like zenflow \
        "one rank, stage 2, ZenFlow, next to it without ZeRO" $options --offload zenflow --zero 2
    for name in none 1 2 3; do
        set -- --zero $name
        [ $name != none ] || set --
        train ms 60 ./train_gpt2cu $some "$@" || continue
        ms=$(late ms ms)
        [ -n "$none" ] || none=$ms
        row 1 "124M, one rank, stage $name, to none" "$ms ms" "$(calculate "$ms / $none") of none"
    done
    gpus=$(nvidia-smi -L | grep -c '^GPU ')
    [ "$gpus" -ge 2 ] || return 0
    for name in 1 2 3; do
        train ranks_$name 60 sh scripts/launch.sh "$gpus" ./train_gpt2cu $options --zero $name \
            && same_run ranks_1 ranks_$name "$gpus ranks, stage $name next to 1"
        train ms 60 sh scripts/launch.sh "$gpus" ./train_gpt2cu $some --zero $name \
            && row 1 "124M on each of $gpus GPUs, stage $name" "$(late ms ms) ms"
    done
}

zen_modes="none zero zenflow zenflow-streamed zenflow-serial zero-accum zero-late zenflow-sync"
zen_size="--seq 1024 --recompute block --batch 8"
part_zen() {
    export STREAMED="--gpu-memory 8G"  # else each layer has a place of its own
    ask_bench bench_zen 20
    STEPS=16 LIMIT=25 modes zen gpt2-xl "$(($(left) - 20))" \
        "none zero zenflow zenflow-streamed" $zen_size
    [ "$tiny" = 1 ] || STEPS=40 EVALS=4 modes zen_nano nano "$(left)" "$zen_modes" --batch 4
}
part_zen_more() {
    local model size="--seq 2048 --recompute block --batch"
    STEPS=32 LIMIT=60 STREAMED="--gpu-memory 8G" modes zen gpt2-xl 250 "$zen_modes" $zen_size
    STEPS=24 LIMIT=100 modes zen_7b 7b 330 "zero zero-accum zenflow-sync zenflow-serial zenflow" \
        $size 4
    for model in 13b 10b; do  # the largest that fits here, where --rates would mean elsewhere
        ./train_gpt2cu --plan --model $model --offload zenflow $size 1 \
            >"$work/fits" 2>&1 || { row 1 $model "$(tail -n 1 "$work/fits")"; continue; }
        STEPS=20 LIMIT=150 modes zen_$model $model "$(left)" "zero zenflow" $size 1
        return
    done
}

# zo_run MODEL memory|streamed STEPS LIMIT OPTION...: the trainer as people run it, in fp16, a batch
# as in the paper; its memory as taken, as planned, and as nvidia-smi counts it, with the driver's.
# Beside it what ZO-Offloading's table 1 has: tokens/s and MB, on an A100 of 80 GB.
zo_run() {
    local run=$1-$2 began=$SECONDS size="--model $1 --seq 2048" paper
    [ "$tiny" != 1 ] || size="--model nano --seq 32"
    sampled memory.used train "$run" "$4" ./train_gpt2cu --optimizer mezo $size --data "$tokens" \
        --steps "$3" --no-save --precision fp16 --batch 1 "${@:5}" || return
    paper=$(sed -n "s/.* fp16-$1) echo \([^;]*\) ;; .*/\1/p" scripts/paper/zo_table1.sh \
        | awk -v way="$2" '{ n = way == "streamed"; print $(1 + n) " tokens/s, " $(3 + n) " MB" }')
    row 1 "$1, $2" "$(late ms "$run") ms, $(late tokens_per_s "$run") tokens/s, MiB $(
        sed -n 's/^GPU memory: \(.*\) MiB taken, planned \(.*\) MiB/\1 of \2/p' \
            "$work/$run.log"), $(sort -n "$work/samples" | tail -n 1) seen; $((SECONDS - began
        )) s" "${paper:+A100: $paper}"
}
# zo_both MODEL STEPS LIMIT: in memory and streamed, which must have the same losses.
zo_both() {
    zo_run "$1" memory "$2" "$3" && zo_run "$1" streamed "$2" "$3" --resident-blocks 0 || return
    same_losses "$1-memory" "$1-streamed" || bad "$1" "streamed differs from in memory"
}
zo_torch() {
    pytorch "OPT, $1 layers of $2" --mode mezo --dtype float16 --activation relu --layers "$1" \
        --channels "$2" --heads 32 --vocab 50272 --seq 2048 --batch 1
}
part_zo() {
    local way run="$nano --steps $steps --optimizer mezo --lr 1e-4 --precision fp16 --accum 1"
    if train memory 30 ./train_gpt2cu $run; then
        for way in "--slots 2" "--slots 3" "--resident-blocks 1" --no-overlap --zo-no-slots \
            --zo-no-fused-update; do
            like memory "$steps steps in fp16, streamed $way" $run --resident-blocks 0 $way
        done
    fi
    ask_bench bench_zo 30 kernel step
    ask_bench bench_zo_fp16 20 kernel step
    ask_bench bench_zo_fp32 10 kernel
    zo_both opt-1.3b 8 40
    zo_both opt-6.7b 8 40
    zo_torch 24 2048
}
part_zo_more() {
    ask_bench bench_zo 100 stream queries
    ask_bench bench_zo_fp32 170 stream
    zo_both opt-2.7b 12 60
    zo_both opt-13b 12 60
    zo_both opt-30b 8 120
    # 122 GiB of weights, half of them on the host: a seventh more would fit into the GPU's 139
    zo_run opt-66b streamed 6 "$(left)" --resident-blocks 32
    zo_torch 32 4096
}
