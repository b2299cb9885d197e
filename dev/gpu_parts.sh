# gpu_parts.sh: the parts of gpu_check.sh, which sources this: what is run on a GPU, and the rows
# that come of it. Each part is a session of its own, over at second $until.
# shellcheck shell=bash disable=SC2046,SC2086,SC2153,SC2154  # options are words

# --- what parts share ----------------------------------------------------------------------------

left() { echo $((until - $(now))); }
median() { sort -g | awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'; }
six_at_once() { while [ "$(jobs -rp | wc -l)" -ge 6 ]; do wait -n; done; }

# kept LIMIT FILE COMMAND...: for so many seconds, but never longer than the part may take. FILE and
# the log get the command's output. 124: too slow.
kept() {
    local limit=$(($(left) - 1)) code
    [ "$limit" -lt "$1" ] || limit=$1
    [ "$limit" -ge 1 ] || limit=1
    timeout -k 2 "$limit" "${@:3}" >"$2" 2>&1
    code=$?
    { printf '\n== %s: %s\n' "$part" "${*:3}"; cat "$2"; } >>"$out/log.txt"
    return $code
}
# measure LIMIT WHAT FILE COMMAND...: kept(), with a row if it fails.
measure() {
    kept "$1" "${@:3}" || failed "$2" $? "$(tail -n 1 "$3")"
}
failed() {  # WHAT CODE TEXT
    case $2 in
        124 | 137) cut_off "$1" "not done in time: $3" ;;
        *) bad "$1" "ended with code $2: $3" ;;
    esac
    return 1
}

# rows: one of each line "what | measured | number" of its input.
rows() {
    local what measured number
    sed -n '/|/{s/  */ /g; s/^ //; s/ *| */|/g; p}' | while IFS='|' read -r what measured number; do
        row "$what" "$measured" "$number"
    done
}
# ask LIMIT COMMAND...: a program that prints such lines.
ask() {
    measure "$1" "${2##*/} ${*:3}" "$work/asked" "${@:2}"
    rows <"$work/asked"
}

# train NAME LIMIT PROGRAM OPTION...: a run to its end, into $work/NAME; NAME.log has what it says.
train() {
    rm -rf "${work:?}/$1"
    measure "$2" "$1" "$work/$1.log" "${@:3}" --out "$work/$1" --eval-every 0
}
# field NAME RUN: that number of each step; late NAME RUN: the median without the first ones.
field() { sed -n "/\"loss\"/s/.*\"$1\":\([^,}]*\).*/\1/p" "$work/$2/log.jsonl"; }
late() { field "$1" "$2" | tail -n +4 | median; }

losses() { sed -n 's/.*\("loss":[^,]*,"grad_norm":[^,}]*\).*/\1/p' "$work/$1/log.jsonl"; }
# all_same WHAT RUN RUN...: do the others have the losses, the norms and the weights of the first?
all_same() {
    local run wrong=''
    [ -n "$(losses "$2")" ] || wrong="; $2: nothing"
    for run in "${@:3}"; do
        cmp -s <(losses "$2") <(losses "$run") || wrong="$wrong; $run: losses"
        cmp -s "$work/$2/model.safetensors" "$work/$run/model.safetensors" \
            || wrong="$wrong; $run: weights"
    done
    if [ -z "$wrong" ]; then good "$1" "$(($# - 1)) runs, the same bits"
    else bad "$1" "not those of $2$wrong"; fi
}
# near FAMILY: are its losses those of the CPU, within what one step's rounding becomes in training?
# (With --lr 1e-3 a step may overshoot, and bf16 be off by 20 %. Emulated it is off by 0.0008.)
near() {
    local run bound off all='' verdict=good
    for run in fp32:0.0001 bf16:0.01 fp16:0.002; do
        bound=${run#*:} run=${run%:*}
        off=$(paste <(field loss $1.cpu) <(field loss $1.$run) | awk -v n=$steps -v bound=$bound '
            NF == 2 { found++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= m)) m = d }
            END { printf "%.2g of %s", m, bound; exit !(found == n && m <= bound) }') || verdict=bad
        all="$all, $run $off"
    done
    $verdict "$1, losses beside the CPU" "off by${all#,}"
}

# Models of tests, and what the others are run with. With TINY, all are so small that the emulated
# GPU has done with them at once; modes() sees to its own.
text=$work/text.txt tokens=$work/tokens.bin flags='' steps=20 sampler=llama2-7b many=400
small="--layers 2 --heads 4 --channels 256 --context 128 --vocab 256"
families="llama3.2-1b mistral qwen2.5-7b qwen3-8b gpt2" models="1.5B llama8B 20B 7B"
size_7b="--batch 1 --seq 2048 --recompute none"
if [ "$tiny" = 1 ]; then
    tokens=$text flags=--tiny steps=4 sampler=nano-llama many=10
    small="--layers 1 --heads 4 --channels 64 --context 64 --vocab 256"
    families="mistral qwen3-8b" models=tiny
fi

# Builds the programs that could not be taken from the pack.
part_build() {
    local name
    make -k -j"$(nproc)" $(<"$work/missing") >"$work/make" 2>&1
    cat "$work/make" >>"$out/log.txt"
    for name in $(<"$work/missing"); do
        [ -x "$name" ] || bad "$name" "was not built: $(grep -m 1 -E 'error|Error' "$work/make")"
    done
}

# The machine's rates: those of RATES, or what an earlier call has left, or they are measured.
rates() {
    local mine="# MEASURED on $device"
    [ ! -s "$work/rates.txt" ] || return 0
    if [ -n "${RATES-}" ]; then cp "$RATES" "$work/rates.txt"
    elif grep -q "^$mine" build/measured_rates.txt 2>/dev/null
    then cp build/measured_rates.txt "$work/rates.txt"
    else
        rm -f "$work/measured"
        measure 35 "rates" "$work/said" ./train_gpt2cu --calibrate --rates "$work/measured" \
            || return
        {
            echo "$mine with $(nproc) cores, $(date -u +%Y-%m-%d), commit $(commit):"
            echo "# --calibrate, nothing else running. What it cannot measure is 0."
            cat "$work/measured"
        } | tee "$work/rates.txt" "$out/measured_rates.txt" >build/measured_rates.txt
    fi
}
part_calibrate() {
    rm -f build/measured_rates.txt
    rates || return
    awk '$3 == "#" && $4 ~ "/s" { printf "%s | %.4g G %s\n", $1, $2 / 1e9, $4 }' \
        "$work/rates.txt" | rows
}

# --- correctness ---------------------------------------------------------------------------------

# run_tests TEST...: six at a time, and what has failed.
run_tests() {
    local code check why
    kept 999 "$work/tests" env OMP_NUM_THREADS=6 sh dev/test/run.sh "$@"
    code=$?
    sed -n 's/^\[.*\] \(.*\): \([0-9]* passed, .*\)/\1 | \2/p' "$work/tests" | rows
    grep '^FAIL ' "$work/tests" | sort -u | head -n 20 | while IFS=: read -r check why; do
        bad "${check#FAIL }" "${why# }"
    done
    set -- "$# programs" "$(tail -n 1 "$work/tests")"
    if [ $code -eq 0 ]; then good "$@"; else failed "$1" $code "$2"; fi
}
# All tests of the GPU sources, each by a link to its program; of what has changed most first. With
# ALL=1 their whole covering sets.
part_tests() {
    local program name first="test_attention test_kernels test_model test_gpt2cu test_zenflow_gpu \
        test_placement test_columns_gpu test_model_fp16 test_placement_fp16 test_zenflow_gpu_fp16"
    for program in gpu_tests gpu_tests_fp32 gpu_tests_fp16; do
        for name in $(build/gpu/$program --list); do
            ln -sf $program build/gpu/$name
            set -- "$@" $name
        done
    done
    set -- $(printf '%s\n' $first test_emu test_nccl "$@" \
        | awk '!seen[$1]++ { print "build/gpu/" $1 }')
    [ "$tiny" != 1 ] || set -- build/gpu/test_columns_gpu build/gpu/test_emu
    run_tests "$@"
    # what others take and free of the GPU's memory would be seen in this one
    [ "$tiny" = 1 ] || TIDE_ALONE=1 run_tests build/gpu/test_model
}

# family NAME: a small model of it. Mistral's attends to fewer tokens than it has positions.
family() {
    case $1 in
        mistral) echo --model "$work/mistral" ;;
        gpt2) echo --model gpt2 $small ;;
        *) echo --model $1 --kv-heads 2 $small ;;
    esac
}
# The losses of each family beside the CPU's, the bits of bf16 in every placement, and its text.
part_llama() {
    local name run place options="--data $text --batch 4 --lr 3e-4"
    local places=("--recompute light" "--recompute block" "--offload zero" "--zero 3"
        "--offload twinflow --resident 0.3" "--offload interleave --share 0.5"
        "--offload interleave --share 0.5 --weights host")
    train mistral 20 ./train_gpt2 $options --steps 1 $(family mistral-7b)
    sed -i 's/"sliding_window": null/"sliding_window": 48/' "$work/mistral/config.json"
    for name in $families; do
        run="$options --steps $steps --warmup $((steps / 2)) $(family $name)"
        train $name.cpu 40 ./train_gpt2 $run --threads 4 &
        for place in fp32 bf16 fp16; do
            six_at_once
            train $name.$place 40 ./train_gpt2cu $run --precision $place &
        done
        for place in "${places[@]}"; do
            six_at_once
            [[ $place != *offload* ]] || place="$place --subgroup 8192"
            train "$name${place// /_}" 40 ./train_gpt2cu $run $place &
        done
    done
    wait
    for name in $families; do
        near $name
        all_same "$name in every placement" $name.bf16 \
            $(cd "$work" && printf '%s\n' $name--*.log | sed 's/[.]log$//')
        same_text $name
    done
}
# same_text NAME: does the model that the CPU has trained write the same on the GPU in fp32? It
# begins anew where its context is full.
same_text() {
    local said
    set -- "$1" --model "$work/$1.cpu" --steps 0 --prompt "int " --temperature 1 --sample-tokens 150
    measure 20 "$1, its text" "$work/said" ./train_gpt2 "${@:2}" || return
    said=$(sed -n '/^int /,$p' "$work/said")
    measure 20 "$1, its text" "$work/said" ./train_gpt2cu "${@:2}" --precision fp32 || return
    if [ -n "$said" ] && [ "$said" = "$(sed -n '/^int /,$p' "$work/said")" ]
    then good "$1, its text" "150 tokens are the CPU's"
    else bad "$1, its text" "not the CPU's"; fi
}

# sanitize TOOLS NAME OPTION...: a tiny run under each tool, side by side. All kernels: where only
# some are looked at, racecheck ends with an error of its own. (Seen with 2025.3 and bf16 products;
# initcheck does not see what these store.)
sanitize() {
    local tool what one
    for tool in $1; do
        what="$tool, $2" one=$work/${tool}_$2
        rm -rf "$one"
        if kept 55 "$one.log" compute-sanitizer --tool "$tool" --error-exitcode 9 \
            ./train_gpt2cu --data "$text" --out "$one" --eval-batches 1 --layers 2 \
            --context 32 --batch 2 --seq 19 --steps 2 "${@:3}" \
            && grep -Eq ' 0 errors|\(0 errors' "$one.log"; then good "$what" "no errors"
        else bad "$what" "$(grep -E ' SUMMARY|rror' "$one.log" | tail -n 1)"; fi &
    done
}
part_sanitize() {
    sanitize "memcheck racecheck synccheck" qwen3 --model qwen3-8b --heads 4 --kv-heads 2 \
        --channels 64 --vocab 256 --sample-every 2 --sample-tokens 8
    set -- --heads 2 --channels 32
    sanitize memcheck zenflow "$@" --offload zenflow --zen-window 2
    sanitize memcheck fp16 "$@" --precision fp16 --offload zero --weights host
    wait
}

# --- speed ---------------------------------------------------------------------------------------

# Shapes for training: model, layers, batch, sequence, steps, what is recomputed, other options.
shapes() {
    if [ "$tiny" = 1 ]; then set -- "nano-llama 1 4 32 6 light" "nano 1 4 32 6 none"
    else
        set -- "llama3.1-8b 8 4 2048 10 none" "llama2-7b 8 8 2048 10 none" \
            "qwen2.5-7b 8 4 2048 10 none" "qwen3-8b 8 4 2048 10 none" "20b 4 8 2048 8 block" \
            "gpt2-xl auto 16 1024 12 none" "7b 8 8 2048 10 none" "gpt2 auto 32 1024 40 none" \
            "gpt2 auto 32 1024 40 none --precision fp16"
    fi
    printf '%s\n' "$@"
}
# A run of each by the algorithms that are measured for its products, in smaller batches on a card
# with less memory; and the power and the clock of a moment when much power was drawn.
part_train() {
    local model layers batch seq n recompute more options watch power code
    while read -r model layers batch seq n recompute more <&3; do
        options="--model $model --layers $layers --seq $seq --recompute $recompute --offload none"
        options="$options $more"
        until ./train_gpt2cu --plan --rates scripts/rates/h200_measured.txt $options \
            --batch "$batch" >"$work/plan" 2>&1; do
            [ $((batch /= 2)) -gt 0 ] || { row "$model" "$(tail -n 1 "$work/plan")"; continue 2; }
        done
        stdbuf -oL nvidia-smi --query-gpu=power.draw,clocks.sm --format=csv,noheader -lms 100 \
            >"$work/samples" 2>/dev/null &
        watch=$!
        train one 30 ./train_gpt2cu --data "$tokens" $options --batch "$batch" --steps "$n" \
            --no-save --tune "$work/algorithms"
        code=$?
        kill -9 $watch
        wait $watch 2>/dev/null
        [ $code -eq 0 ] || continue
        power=$(sort -g "$work/samples" | awk '{ x[NR] = $0 } END { print x[int(0.8 * NR) + 1] }')
        row "$model, ${layers/auto/all} layers, $batch x $seq${more:+ $more}" "$(
            late tokens_per_s one) tokens/s, $(late tflops one) TFLOP/s, $(late ms one) ms, $(
            sed -n 's/^  step \([^,]*\),.*/\1/p' "$work/plan") s planned, $power"
    done 3< <(shapes)
    { echo "== algorithms"; sed 's/ us [ 0-9a-f]*$/ us/' "$work/algorithms"; } >>"$out/log.txt"
}

part_products() { ask 24 build/gpu/bench_probe products ${models##* }; }
# Each kernel alone; and the products if told that tensors lie at multiples of 256 bytes, not 16.
part_bench() {
    local model told
    for model in $models; do ask 15 build/gpu/bench_gpu $flags $model; done
    measure 15 "told of 256 bytes" "$work/told" build/gpu/bench_gpu --align 256 $flags $model
    told=$(awk -F '|' '$1 ~ / (qkv|attproj|fc|fcproj) / { sum[FILENAME] += $2 }
        END { printf "%.3f", sum[ARGV[2]] / sum[ARGV[1]] }' "$work/asked" "$work/told")
    row "$model products, told of 256 bytes" "$told of the time"
}

# One text: what a token takes behind a short one and a long one. Each is a byte of the output.
part_sample() {
    local length prompt what
    for length in 1 3500; do
        prompt=$(tr -c '[:lower:]' x <"$text" | head -c $length)
        what="$sampler, behind $length tokens"
        measure 24 "$what" "$work/sampled" bash -o pipefail -c "./train_gpt2cu --model $sampler \
            --vocab 256 --steps 0 --prompt $prompt --sample-tokens $((many + 20)) | python3 -c '
import os, time
times = []
while os.read(0, 1): times.append(time.monotonic())
print(\"%.1f tokens/s\" % ($many / (times[-1] - times[-1 - $many])))'" \
            && row "$what" "$(tail -n 1 "$work/sampled")"
    done
}

# Attention by PyTorch, which calls FlashAttention's or cuDNN's kernels.
part_attention() {
    export LD_LIBRARY_PATH=$LIBRARIES
    set -- dev/bench/versus_pytorch_gpu.py --mode sdpa
    ask 17 python3 "$@" --batch 16 --heads 25 --channels 1600 --seq 1024
    ask 17 python3 "$@" --batch 8 --heads 32 --channels 4096 --seq 2048
}

# modes NAME MODEL LIMIT MODES OPTION...: the same losses from all, memory as planned, and for each
# how long an iteration takes next to the plan.
modes() {
    local name=$1 model=$2 limit=$3 modes=$4 dir=$work/$1 code memory
    shift 4
    rates || return
    if [ "$tiny" = 1 ]; then
        model=nano
        set -- --layers 2 --heads 2 --channels 32 --context 32 --vocab 300 --batch 2 --seq 32 \
            --subgroup 4096
        [[ $modes = *zenflow* ]] || export STEPS=6
    fi
    MODEL=$model MODES=$modes DATA=$tokens OUT=$dir RATES=$work/rates.txt TRAINER=./train_gpt2cu \
        kept "$limit" "$work/$name.said" bash scripts/compare_offload.sh "$@"
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
    awk -F '\t' -v of="$name" '$3 + 0 > 0 && $13 + 0 > 0 {
        printf "%s, %s | %s ms, plan %s, ", of, $1, $3, $13
        printf "%s %% of the bound | %.2f of the plan\n", $9, $3 / $13 }' "$dir/compare.tsv" | rows
}

# Does an update on the host hide behind compute? 7B, with moments of 32 and 16 bits; ten layers.
part_hidden() {
    export STEPS=8 WARMUP=2 LIMIT=40
    modes fp32 7b 45 auto $size_7b --gpu-memory 48G
    [ ! -s "$work/fp32/auto.trace" ] || gzip -c "$work/fp32/auto.trace" >"$out/trace.json.gz"
    modes bf16 7b 45 auto $size_7b --gpu-memory 48G --moments bf16
    modes slice 7b "$(left)" "none-uncapped zero" --layers 10 $size_7b --gpu-memory 24G
}
# 7B where its layers' gradients have little room, and where its weights have none.
part_visitors() {
    STEPS=6 WARMUP=1 LIMIT=30 STREAMED="--gpu-memory 16G" \
        modes 24G 7b "$(left)" "auto streamed" $size_7b --gpu-memory 24G
}
part_zen() {
    measure 20 "bench_zen" "$work/bench_zen" build/gpu/bench_zen $flags
    STEPS=16 LIMIT=25 modes zen gpt2-xl "$(left)" "zero zenflow" --seq 1024 --recompute block \
        --batch 8
}

# Several ranks on one GPU are refused by NCCL: with one GPU, one rank goes through all of it.
part_nccl() {
    local stage options
    options="--data $text --batch 4 --steps $steps $(family gpt2)"
    ldd ./train_gpt2cu | grep -q libnccl || [ "$tiny" = 1 ] || bad "NCCL" "built without"
    train none 40 ./train_gpt2cu $options
    train zen 40 ./train_gpt2cu $options --offload zenflow
    for stage in 1 2 3; do train zero_$stage 40 ./train_gpt2cu $options --zero $stage; done
    all_same "stages 1 to 3, next to none" none zero_1 zero_2 zero_3
    train zen_2 40 ./train_gpt2cu $options --offload zenflow --zero 2
    all_same "ZenFlow, stage 2 next to none" zen zen_2
}
