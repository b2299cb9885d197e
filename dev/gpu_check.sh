#!/usr/bin/env bash
# Everything that needs a real GPU, in one call of less than ten minutes on a machine with one.
#
#   dev/gpu_check.sh OUTDIR [PART...]        from the top of the repository; no network
#
# Parts, in this order (all of them if none is named):
#   build      the trainers, the tests and the benchmark, for the GPU that is here
#   tests      every test of the kernels and of the model, on the GPU
#   twice      the same run twice, and with recomputation: the same bits
#   curves     100 steps in fp32 and in bf16 next to the CPU trainer's
#   sanitizer  compute-sanitizer (memcheck, racecheck, initcheck, synccheck) on a tiny model
#   bench      every kernel against the device's limits
#   train      whole steps of GPT-2 124M, 1.5B and a slice of a 7B model: tokens/s, % of peak
#   torch      the same shapes in PyTorch
#   offload    a 7B model under a cap of 48 GB: 100 steps, and every mode of --offload
#   offload_more   the update alone; a 1.5B model under caps of 24 and 48 GB; a 13B model
#   zero       ZeRO over NCCL: one rank, every stage, against none; and one rank per GPU, if there
#              are several
#   zen        ZenFlow: builds what it needs; tests, compute-sanitizer, its kernels; a 1.5B model
#              next to ZeRO-Offload and none, 8 sequences a step
#   zen_more   the same for 7B, and the largest model that --plan admits here
#   zo         zeroth-order training: builds what it needs; tests, compute-sanitizer; its kernel and
#              its step against limits and PyTorch; OPT-1.3B to 6.7B, in memory and streamed
#   zo_more    its streams, with and without what makes them fast; OPT-13B, 30B, 66B
#
# offload, zen and zo, and what is more of each, need most of ten minutes, 110 GB of host memory, and
# no disk: nothing is saved. So: one call for `build tests ...`, and one for each of these.
#
# Leaves OUTDIR/table.md and one log per part. Every part has a time limit, and a part that fails
# does not stop the ones after it. Ends with 1 if anything is wrong: a test that failed, bits that
# differ, a check that could not run. Slow is not wrong. BUDGET=570 (seconds) is for all of it;
# a benchmark that would begin after that is left out and said to be.
set -u -o pipefail

[ $# -ge 1 ] || { sed -n '2,/^set/p' "$0" | sed '/^set/d; s/^# \{0,1\}//'; exit 2; }
out=$1
shift
all_parts="build tests twice curves sanitizer bench train torch offload offload_more zero zen"
all_parts="$all_parts zen_more zo zo_more"
parts=${*:-$all_parts}
for part in $parts; do
    case " $all_parts " in *" $part "*) ;; *) echo "no part $part: $all_parts"; exit 2 ;; esac
done
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
table=$out/table.md
work=$(mktemp -d) || exit 1
trainer_pid='' sampler_pid=''
# shellcheck disable=SC2086  # none, one or two words
trap '[ -n "$trainer_pid$sampler_pid" ] && kill -9 $trainer_pid $sampler_pid 2>/dev/null
      rm -rf "$work"' EXIT
budget=${BUDGET:-570}
wrong=0
PATH=$PATH:/usr/local/cuda/bin
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # the first GPU is the same one for everybody

# --- helpers ---------------------------------------------------------------------------------

note() { printf '%s\n' "$*" | tee -a "$table"; }              # a line of the report
bad() { note "- **FAIL** $*"; wrong=$((wrong + 1)); }
good() { note "- ok: $*"; }
left() { echo $((budget - SECONDS)); }                         # seconds

# limited SECONDS COMMAND...: never longer than that, nor than what is left. 124: it was too slow.
limited() {
    local limit=$1
    shift
    [ "$(left)" -lt "$limit" ] && limit=$(left)
    [ "$limit" -lt 3 ] && return 124
    timeout -k 5 "$limit" "$@"
}

# why CODE LIMIT: how a command ended.
why() { if [ "$1" -eq 124 ]; then echo "not done in $2 s"; else echo "ended with code $1"; fi; }

# lines FILE: how many it has; 0 if it is not there.
lines() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }

# field NAME FILE: that number from every training line of a log.jsonl.
field() { sed -n "/\"loss\"/s/.*\"$1\":\([^,}]*\).*/\1/p" "$2"; }

median() { sort -g | awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'; }

# largest_difference A B: of two columns of numbers, relative to the first; "none" if they do not
# have the same length, or none at all.
largest_difference() {
    if [ "$(wc -l <"$1")" -ne "$(wc -l <"$2")" ] || [ ! -s "$1" ]; then echo none; return; fi
    paste "$1" "$2" | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= m)) m = d }
                           END { printf "%.3g\n", m + 0 }'
}

at_most() { awk -v x="$1" -v y="$2" 'BEGIN { exit !(x != "none" && x + 0 <= y + 0) }'; }

# train NAME LIMIT LOG PROGRAM OPTIONS...: a run to its end, into $work/NAME.
train() {
    local name=$1 limit=$2 log=$3 program=$4 code
    shift 4
    printf '\n== %s: %s %s\n' "$name" "$program" "$*" >>"$log"
    limited "$limit" "$program" --data "$work/text.txt" --out "$work/$name" --eval-every 0 "$@" \
        >>"$log" 2>&1
    code=$?
    [ $code -eq 0 ] || bad "$name: $(why $code "$limit"): $(tail -n 1 "$log")"
    return $code
}

# --- parts -----------------------------------------------------------------------------------

# The tests that there are: the Makefile makes build/gpu/NAME of NAME.cu (most are names of one
# program, gpu_tests).
gpu_tests() {
    local f
    for f in dev/emu/test/test_*.cu dev/test/test_*.cu; do
        [ -e "$f" ] && echo "build/gpu/$(basename "$f" .cu)"
    done
}

# build LIMIT TARGET...: together, and whether each is there then.
build() {
    local limit=$1 target
    shift
    limited "$limit" make -k -j"$(nproc)" "$@" >>"$out/build.log" 2>&1 \
        || note "make: $(why $? "$limit"); of build.log:"
    grep -E 'error|warning|Error [0-9]|spill' "$out/build.log" | grep -v ' 0 bytes spill' \
        | head -n 20 | sed 's/^/    /' | tee -a "$table"
    for target in "$@"; do
        if [ -x "$target" ]; then good "$target"; else bad "$target was not built"; fi
    done
}

part_build() {
    # shellcheck disable=SC2046  # one word per target
    build 280 train_gpt2cu train_gpt2 build/compare build/timeline build/tokenize $(gpu_tests) \
        build/gpu/bench_gpu build/gpu/bench_offload build/gpu/bench_zen build/gpu/bench_zo
}

# run_tests LIMIT TEST...
run_tests() {
    local limit=$1 log=$out/tests.log one=$work/one.log test code
    shift
    export ALL=1  # whole covering sets: a GPU is fast
    for test in "$@"; do
        [ -e "$test" ] || { bad "$test is not there"; continue; }
        case $test in
            *.sh) TIDE_GPU=./train_gpt2cu limited "$limit" sh "$test" >"$one" 2>&1 ;;
            *) limited "$limit" "$test" >"$one" 2>&1 ;;
        esac
        code=$?
        { printf '\n== %s\n' "$test"; cat "$one"; } >>"$log"
        if [ $code -ne 0 ] || grep -q '^FAIL ' "$one" || ! grep -q '^ok ' "$one"; then
            bad "$test: $(grep -c '^ok ' "$one") ok, $(grep -c '^FAIL ' "$one") failed," \
                "$(why $code "$limit")"
            { grep '^FAIL ' "$one" || tail -n 5 "$one"; } | head -n 20 | sed 's/^/    /' \
                | tee -a "$table"
        else
            good "$test: $(grep -c '^ok ' "$one") ok"
        fi
        grep '^skip ' "$one" | sed 's/^/    /' | tee -a "$table"
    done
}

part_tests() {
    # shellcheck disable=SC2046
    run_tests 90 $(gpu_tests) dev/test/test_cli_gpu.sh dev/test/test_cli_offload.sh
    STEPS=20 RESIDENT=0.3 compare_modes nano 60 "none zero twinflow interleave stride2 \
        zero-published twinflow-published interleave-published" --subgroup 8192 --batch 4
}

# A run is: its losses, its norms, and the weights that it leaves.
same_run() {
    local a=$work/$1 b=$work/$2 name
    for name in loss grad_norm; do
        field $name "$a/log.jsonl" >"$work/a"
        field $name "$b/log.jsonl" >"$work/b"
        if ! cmp -s "$work/a" "$work/b" || [ ! -s "$work/a" ]; then
            bad "$3: $name differs"
            return
        fi
    done
    if cmp -s "$a/model.safetensors" "$b/model.safetensors"; then good "$3: the same bits"
    else bad "$3: the weights differ"; fi
}

part_twice() {
    local log=$out/runs.log precision
    local options="--model nano --batch 5 --seq 250 --accum 2 --steps 100"
    for precision in bf16 fp32; do
        # shellcheck disable=SC2086  # options are words
        train "once_$precision" 40 "$log" ./train_gpt2cu $options --precision $precision \
              --recompute none &&
        train "twice_$precision" 40 "$log" ./train_gpt2cu $options --precision $precision \
              --recompute none &&
        same_run "once_$precision" "twice_$precision" "100 steps in $precision, twice"
        # shellcheck disable=SC2086
        train "block_$precision" 40 "$log" ./train_gpt2cu $options --precision $precision \
              --recompute block &&
        same_run "once_$precision" "block_$precision" "with recomputation, $precision"
    done
}

# One step's rounding differs in the seventh digit in fp32 and in the third in bf16; training makes
# of that what the bounds below allow.
part_curves() {
    local log=$out/runs.log bound precision difference
    local options="--layers 3 --heads 3 --channels 96 --context 64 --batch 8 --steps 100 --lr 1e-3"
    # shellcheck disable=SC2086
    train cpu 60 "$log" ./train_gpt2 $options || return
    field loss "$work/cpu/log.jsonl" >"$work/cpu.loss"
    for precision in fp32 bf16; do
        # shellcheck disable=SC2086
        train "gpu_$precision" 40 "$log" ./train_gpt2cu $options --precision $precision || continue
        field loss "$work/gpu_$precision/log.jsonl" >"$work/gpu.loss"
        difference=$(largest_difference "$work/cpu.loss" "$work/gpu.loss")
        bound=0.0001
        [ $precision = bf16 ] && bound=0.005
        if at_most "$difference" $bound; then
            good "$precision: losses of 100 steps within $difference of the CPU's (bound $bound)"
        else
            bad "$precision: losses of 100 steps differ from the CPU's by $difference, not $bound"
        fi
    done
}

# sanitize TOOL NAME OPTION...: a tiny run under that tool. The shared memory of NVIDIA's own products
# is not ours to check: racecheck and synccheck look at kernels named *_kernel, as all of ours are.
sanitize() {
    local tool=$1 name=$2 limit=60 only='' code one=$work/one.log
    shift 2
    case $tool in racecheck | synccheck) only="--kernel-name kns=_kernel" ;; esac
    # shellcheck disable=SC2086
    limited $limit compute-sanitizer --tool "$tool" $only --error-exitcode 9 ./train_gpt2cu \
        --data "$work/text.txt" --out "$work/${tool}_$name" --eval-batches 1 --layers 2 --heads 2 \
        --channels 32 --context 32 --batch 2 --seq 19 --steps 2 "$@" >"$one" 2>&1
    code=$?
    { printf '\n== %s, %s\n' "$tool" "$name"; cat "$one"; } >>"$out/sanitizer.log"
    if [ $code -eq 0 ] && grep -Eq ' 0 errors|\(0 errors' "$one"; then
        good "$tool, $name: no errors"
    else
        bad "$tool, $name: $(why $code $limit):" \
            "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|rror' "$one" | tail -n 1)"
    fi
}

part_sanitizer() {
    local tool precision
    command -v compute-sanitizer >/dev/null || { bad "compute-sanitizer is not there"; return; }
    for tool in memcheck racecheck initcheck synccheck; do
        for precision in bf16 fp32; do sanitize $tool $precision --precision $precision; done
    done
}

part_bench() {
    local log=$out/bench.log shape
    [ -x build/gpu/bench_gpu ] || { bad "build/gpu/bench_gpu is not there"; return; }
    for shape in 124M 1.5B 7B; do
        limited 40 build/gpu/bench_gpu $shape >>"$log" 2>&1 || note "$shape: $(why $? 40)"
    done
    note '```'
    tee -a "$table" <"$log"
    note '```'
    # Does the matrix product lose by what makes its bits independent of where tensors lie?
    printf '\n== 1.5B, told of alignment to 256 bytes\n' >>"$log"
    limited 30 build/gpu/bench_gpu --align 256 1.5B >>"$log" 2>&1 || note "--align: $(why $? 30)"
}

# Shapes for the GPU that is here: name, layers, channels, heads, sequence, batch. The 7B one has 8
# of its 32 layers: it fits, a run is soon under way, and a layer's work is the same.
gpu_shapes() {
    local mib
    mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null \
          | head -n 1 | tr -cd '0-9')
    mib=${mib:-0}
    if [ "$mib" -gt 120000 ]; then printf '%s\n' "124M 12 768 12 1024 32" \
        "1.5B 48 1600 25 1024 16" "7B-8-layers 8 4096 32 2048 8"
    elif [ "$mib" -gt 70000 ]; then printf '%s\n' "124M 12 768 12 1024 32" \
        "1.5B 48 1600 25 1024 8" "7B-8-layers 8 4096 32 2048 4"
    elif [ "$mib" -gt 38000 ]; then printf '%s\n' "124M 12 768 12 1024 16" \
        "1.5B 48 1600 25 1024 2"
    else echo "124M 12 768 12 1024 4"; fi
}

# Random tokens of the whole vocabulary: speed does not depend on what they say.
make_tokens() {
    [ -e "$work/tokens.bin" ] || (cd dev/bench && PYTHONDONTWRITEBYTECODE=1 python3 -c \
        "from make_llmc_inputs import write_tokens; write_tokens('$work/tokens.bin', 1 << 21, 1)")
}

# whole_steps NAME LAYERS CHANNELS HEADS SEQ BATCH OPTIONS...: starts the trainer, waits for some
# steps and ends it, because the checkpoint at the end of a run is gigabytes.
whole_steps() {
    local name=$1 layers=$2 channels=$3 heads=$4 seq=$5 batch=$6 limit=100 want=14
    local log=$work/$1 until
    shift 6
    [ "$(left)" -lt $limit ] && limit=$(left)
    [ "$limit" -lt 15 ] && { note "| $name | no time left | | |"; return; }
    until=$((SECONDS + limit))
    ./train_gpt2cu --data "$work/tokens.bin" --out "$log" --layers "$layers" \
        --channels "$channels" --heads "$heads" --context "$seq" --seq "$seq" --batch "$batch" \
        --vocab 50257 --steps 100000 --eval-every 0 "$@" >"$log.log" 2>&1 &
    trainer_pid=$!
    while [ $SECONDS -lt $until ] && kill -0 $trainer_pid 2>/dev/null; do
        [ "$(lines "$log/log.jsonl")" -ge $want ] && break
        sleep 0.5
    done
    kill -9 $trainer_pid 2>/dev/null
    wait $trainer_pid 2>/dev/null
    trainer_pid=
    { printf '\n== %s\n' "$name"; cat "$log.log"; } >>"$out/train.log"
    if [ "$(lines "$log/log.jsonl")" -lt 6 ]; then
        note "| $name | not $want steps in $limit s: $(tail -n 1 "$log.log" | cut -c1-200) | | |"
        wrong=$((wrong + 1))
        return
    fi
    note "| $name | batch $batch x $seq | $(field tokens_per_s "$log/log.jsonl" | tail -n +4 \
        | median) | $(sed -n 's/.*| \([0-9]*\) % of peak.*/\1/p' "$log.log" | tail -n +4 \
        | median) % |"
    rm -rf "$log"
}

part_train() {
    local shape
    make_tokens || { bad "no random tokens: python3 is needed"; return; }
    note '| shape | step | tokens/s | of peak |'
    note '|---|---|---|---|'
    gpu_shapes >"$work/shapes"
    while read -r shape; do
        # shellcheck disable=SC2086
        whole_steps $shape --recompute none </dev/null
    done <"$work/shapes"
    grep -h '^device:\|^GPU memory' "$out/train.log" 2>/dev/null | sort -u | sed 's/^/    /' \
        | tee -a "$table"
}

part_torch() {
    local log=$out/torch.log name layers channels heads seq batch
    if ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >"$log" 2>&1; then
        note "- skip: no PyTorch that sees the GPU: $(tail -n 1 "$log")"
        return
    fi
    gpu_shapes >"$work/shapes"
    while read -r name layers channels heads seq batch; do
        printf '\n== %s\n' "$name" >>"$log"
        limited 120 python3 dev/bench/versus_pytorch_gpu.py --layers "$layers" \
            --channels "$channels" --heads "$heads" --seq "$seq" --batch "$batch" \
            >"$work/torch" 2>>"$log" </dev/null || note "- $name: $(why $? 120)"
        cat "$work/torch" >>"$log"
        torch_said "$name"
    done <"$work/shapes"
}

# torch_said NAME: the lines of JSON in $work/torch, for people.
torch_said() {
    sed -n "s/.*\"mode\": \"\([a-z]*\)\".*\"tokens_per_s\": \([0-9.]*\).*\"compiled\": \
\"\([a-z]*\)\".*\"torch\": \"\([^\"]*\)\".*/- $1: \2 tokens\/s (\1, compiled: \3, \4)/p" \
        "$work/torch" | tee -a "$table"
}

# offload_script SCRIPT DIR LIMIT OPTION...: compare_offload or sweep_offload; more variables come
# from the caller. What it prints goes into the report as it comes.
offload_script() {
    local script=$1 dir=$2 limit=$3 code one data=$work/tokens.bin
    shift 3
    # shellcheck disable=SC2153  # MODEL is the caller's
    if [ "$MODEL" = nano ]; then data=$work/text.txt
    else make_tokens || { bad "no random tokens: python3 is needed"; return 1; }; fi
    note '```'
    note "$script $dir: $*"
    DATA=$data OUT=$work/$dir RATES=$work/rates.txt TRAINER=./train_gpt2cu \
        limited "$limit" sh "scripts/$script.sh" "$@" 2>&1 | tee -a "$table"
    code=${PIPESTATUS[0]}
    note '```'
    for one in "$work/$dir"/*.txt; do
        { printf '\n== %s\n' "$one"; cat "$one"; } >>"$out/offload.log"
    done
    return "$code"
}

# The machine's rates, once for all that follows.
offload_rates() {
    [ -s "$work/rates.txt" ] && return
    note '```'
    limited 60 ./train_gpt2cu --calibrate --rates "$work/rates.txt" 2>&1 | tee -a "$table"
    note '```'
    cp "$work/rates.txt" "$out/rates.txt" || { bad "--calibrate left no rates"; return 1; }
}

# compare_modes MODEL LIMIT MODES OPTION...: the same losses from all; taken memory as planned; and
# for people, how iterations compare with what the machine allows.
compare_modes() {
    local model=$1 limit=$2 modes=$3 code=0
    shift 3
    offload_rates || return
    MODEL=$model MODES=$modes offload_script compare_offload "$model" "$limit" "$@" || code=$?
    case $code in
        0) good "$model: the same losses and gradient norms wherever the same is computed" ;;
        124) note "- $model: $(why 124 "$limit"); what is missing above was left out" ;;
        *) bad "$model: $(why $code "$limit")" ;;
    esac
    awk '/MiB taken, planned/ { d = ($3 - $7) / $7; if (d > 0.03 || d < -0.03) {
             print FILENAME ": " $0; wrong = 1 } } END { exit wrong }' "$work/$model"/*.txt \
        >"$work/memory" || bad "$model: memory differs from the plan by more than 3 %:" \
                               "$(head -n 1 "$work/memory")"
    # forward + backward + bound / 0.8: what issue 3 asks of an iteration
    awk -F '\t' '$8 + 0 > 0 && $6 + 0 > 0 {
        goal = $4 + $5 + $7 * $8 / 80
        printf "- %s: %.1f ms an iteration; forward, backward and the bound / 0.8 are %.1f: %s\n",
               $1, $3, goal, $3 <= goal ? "reached" : "missed" }' "$work/$model/compare.tsv" \
        | tee -a "$table"
}

part_offload() {
    local shape="--batch 1 --seq 2048 --recompute none --gpu-memory 48G"
    offload_rates || return
    # shellcheck disable=SC2086
    MODEL=7b SWEEPS=drift LIMIT=220 offload_script sweep_offload 7b-drift 260 $shape \
        || bad "100 steps: $(why $? 260)"
    # shellcheck disable=SC2086
    STEPS=10 LIMIT=100 compare_modes 7b "$(left)" "interleave zero none-uncapped twinflow stride2 \
        zero-published twinflow-published" $shape
}

part_offload_more() {
    local shape="--batch 2 --seq 1024 --recompute none"
    offload_rates || return
    note '```'
    limited 90 build/gpu/bench_offload 8 2>&1 | tee -a "$table" || bad "bench_offload: $(why $? 90)"
    note '```'
    # shellcheck disable=SC2086
    LIMIT=40 compare_modes gpt2-xl 220 "none-uncapped interleave zero twinflow stride2 \
        zero-published twinflow-published" $shape --gpu-memory 24G
    STEPS=8 LIMIT=120 compare_modes 13b 240 "auto twinflow" --batch 1 --seq 2048
    mv "$work/gpt2-xl" "$work/gpt2-xl-24G"
    # shellcheck disable=SC2086
    LIMIT=40 compare_modes gpt2-xl 120 "none interleave twinflow" $shape --gpu-memory 48G
}

# Several ranks on one GPU are refused by NCCL: with one GPU, one rank goes through all of it.
part_zero() {
    local log=$out/runs.log name gpus ms
    local options="--model nano --batch 4 --seq 250 --accum 2 --steps 50"
    local some="--model gpt2 --vocab 50257 --batch 4 --seq 1024 --steps 20"
    build 240 train_gpt2cu
    ldd ./train_gpt2cu | grep -q libnccl || { bad "train_gpt2cu was built without NCCL"; return; }
    # shellcheck disable=SC2086  # options are words
    train none 40 "$log" ./train_gpt2cu $options || return
    for name in 0 1 2 3; do
        # shellcheck disable=SC2086
        train "stage_$name" 40 "$log" ./train_gpt2cu $options --zero $name &&
        same_run none "stage_$name" "one rank, stage $name, next to none"
    done
    # shellcheck disable=SC2086
    train interleave 40 "$log" ./train_gpt2cu $options --zero 3 --offload interleave --share 0.5 \
        --subgroup 8192 && same_run none interleave "one rank, stage 3, interleaved, next to none"
    # shellcheck disable=SC2086
    train zen 40 "$log" ./train_gpt2cu $options --offload zenflow &&
    train zen_2 40 "$log" ./train_gpt2cu $options --offload zenflow --zero 2 &&
    same_run zen zen_2 "one rank, stage 2, ZenFlow, next to it without ZeRO"
    for name in none 0 2 3; do
        # shellcheck disable=SC2046,SC2086  # no option, or two words
        train "ms_$name" 60 "$log" ./train_gpt2cu $some --no-save \
            $([ $name = none ] || echo --zero $name) || continue
        ms=$(field ms "$work/ms_$name/log.jsonl" | tail -n 10 | median)
        note "- 124M, 4 x 1024 tokens, one rank, ZeRO $name: $ms ms a step"
    done
    gpus=$(nvidia-smi -L | grep -c '^GPU ')
    [ "$gpus" -ge 2 ] || { note "- one GPU: several ranks were not tried"; return; }
    printf '#!/bin/sh\nexec sh scripts/launch.sh %d ./train_gpt2cu "$@"\n' "$gpus" >"$work/ranks"
    chmod +x "$work/ranks"
    for name in 0 1 2 3; do
        # shellcheck disable=SC2086
        train "ranks_$name" 60 "$log" "$work/ranks" $options --zero $name || continue
        [ $name = 0 ] || same_run ranks_0 "ranks_$name" "$gpus ranks, stage $name next to 0"
        # shellcheck disable=SC2086
        train "ranks_ms_$name" 60 "$log" "$work/ranks" $some --no-save --zero $name || continue
        ms=$(field ms "$work/ranks_ms_$name/log.jsonl" | tail -n 10 | median)
        note "- 124M, 4 x 1024 tokens on each of $gpus GPUs, ZeRO $name: $ms ms a step"
    done
}

zen_modes="none zero zero-accum zero-late zenflow-sync zenflow-1sum zenflow"

part_zen() {
    local way zen="--offload zenflow --zen-window 2"
    build 240 train_gpt2cu build/gpu/test_zenflow_gpu build/gpu/test_columns_gpu build/gpu/bench_zen
    run_tests 90 build/gpu/test_columns_gpu build/gpu/test_zenflow_gpu
    # shellcheck disable=SC2086  # options are words
    bench_part bench_zen 40 ${ZEN_BENCH:-}
    STEPS=40 EVALS=4 compare_modes nano 90 "$zen_modes" --batch 4
    STEPS=32 LIMIT=60 compare_modes gpt2-xl 240 "$zen_modes" --batch 8 --seq 1024 --recompute block
    command -v compute-sanitizer >/dev/null || { bad "compute-sanitizer is not there"; return; }
    # shellcheck disable=SC2086
    for way in memcheck racecheck initcheck synccheck; do sanitize $way zen_bf16 $zen; done
    # shellcheck disable=SC2086
    sanitize memcheck zen_fp32 $zen --precision fp32 --accum 2 --zen-window auto
}

part_zen_more() {
    local model
    STEPS=24 LIMIT=100 compare_modes 7b 330 "zero zero-accum zenflow-sync zenflow-1sum zenflow" \
        --batch 4 --seq 2048 --recompute block
    for model in 20b 13b 10b; do  # the largest that fits here, where --rates would mean elsewhere
        ./train_gpt2cu --plan --model $model --offload zenflow --zen-sums 1 --batch 1 --seq 2048 \
            --recompute block >"$work/fits" 2>&1 \
            || { note "- $model: $(tail -n 1 "$work/fits")"; continue; }
        STEPS=20 LIMIT=150 compare_modes $model "$(left)" "zero zenflow-1sum" --batch 1 --seq 2048 \
            --recompute block
        return
    done
    note "- none of 20b, 13b, 10b fits with zenflow"
}

# zo_fits MIB: does the GPU have more memory than that?
zo_fits() {
    local mib
    mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null \
          | head -n 1 | tr -cd '0-9')
    [ "${mib:-0}" -gt "$1" ]
}

# bench_part NAME LIMIT ARGUMENT...: a benchmark, into the report.
bench_part() {
    local name=$1 limit=$2
    shift 2
    [ -x "build/gpu/$name" ] || { bad "build/gpu/$name is not there"; return; }
    note '```'
    limited "$limit" "build/gpu/$name" "$@" 2>&1 | tee -a "$out/bench.log" "$table"
    case ${PIPESTATUS[0]} in
        0) note '```' ;;
        124) note '```'; note "- $name $*: $(why 124 "$limit"); what is missing was left out" ;;
        *) note '```'; bad "$name $*: ended early" ;;
    esac
}

# What ZO-Offloading's table 1 has for this: tokens/s and MB, fp16, on an A100 of 80 GB.
zo_paper() {
    case $1-$2 in
        opt-1.3b-memory) echo "6788, 4887" ;;   opt-1.3b-streamed) echo "6788, 2651" ;;
        opt-2.7b-memory) echo "4227, 7933" ;;   opt-2.7b-streamed) echo "4227, 3111" ;;
        opt-6.7b-memory) echo "2455, 16311" ;;  opt-6.7b-streamed) echo "2455, 4539" ;;
        opt-13b-memory) echo "1406, 29411" ;;   opt-13b-streamed) echo "1340, 6445" ;;
        opt-30b-memory) echo "651, 63953" ;;    opt-30b-streamed) echo "597, 10369" ;;
        opt-66b-streamed) echo "273, 14143" ;;  *) echo "-, -" ;;
    esac
}

# zo_run MODEL memory|streamed STEPS LIMIT OPTION...: the trainer as people run it, in fp16, a batch
# as in the paper: a row of the report. Its memory: as planned, as taken, and as nvidia-smi counts
# it, with the driver's own. Leaves $work/MODEL-memory or -streamed.
zo_run() {
    local model=$1 where=$2 steps=$3 limit=$4 code began=$SECONDS said ms taken
    local name=$1-$2 log=$work/$1-$2
    shift 4
    case $where in streamed) set -- --stream-blocks "$@" ;; esac
    rm -rf "$log"
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 300 >"$work/used" \
        2>/dev/null &
    sampler_pid=$!
    # shellcheck disable=SC2086
    limited "$limit" ./train_gpt2cu --optimizer mezo --model "$model" --data "$work/tokens.bin" \
        --out "$log" --steps "$steps" --eval-every 0 --no-save --precision fp16 \
        ${ZO_SHAPE:---batch 1 --seq 2048} "$@" >"$log.log" 2>&1
    code=$?
    kill -9 $sampler_pid 2>/dev/null  # a plain one, this early, would run our own trap
    wait $sampler_pid 2>/dev/null
    sampler_pid=
    { printf '\n== %s %s\n' "$name" "$*"; cat "$log.log"; } >>"$out/zo.log"
    if [ $code -ne 0 ] && [ "$(lines "$log/log.jsonl")" -lt 5 ]; then
        said=$(tail -n 1 "$log.log" | cut -c1-160)
        note "| $model | $where${*:+ $*} | $(why $code "$limit"): $said | | | | | | | |"
        # what does not fit, or has no time, is no fault of the code
        [ $code -eq 124 ] || [ "${said#*needs *MiB of }" != "$said" ] || wrong=$((wrong + 1))
        return
    fi
    cp "$log/log.jsonl" "$out/$name.jsonl"
    ms=$(field ms "$log/log.jsonl" | tail -n +4 | median)
    taken=$(sed -n 's/^GPU memory: \(.*\) MiB taken, .*/\1/p' "$log.log")
    note "| $model | $where${*:+ $*} | $ms | $(field tokens_per_s "$log/log.jsonl" | tail -n +4 | median) |" \
        "$(sed -n 's/.*| \([0-9]*\) % of peak.*/\1/p' "$log.log" | tail -n +4 | median) % |" \
        "$(sed -n 's/^GPU memory: .* total \([0-9.]*\).*/\1/p' "$log.log") | ${taken:--} |" \
        "$(sort -n "$work/used" | tail -n 1) | $(zo_paper "$model" "$where") |" \
        "$((SECONDS - began)) s |"
}

zo_head() {
    note '| model | | ms per step | tokens/s | of peak | MiB planned | taken | nvidia-smi, at most |' \
         'the paper: tokens/s, MB (A100) | whole run |'
    note '|---|---|---|---|---|---|---|---|---|---|'
}

# zo_both MODEL STEPS LIMIT: in memory and streamed, which must have the same losses.
zo_both() {
    local name
    zo_run "$1" memory "$2" "$3"
    zo_run "$1" streamed "$2" "$3"
    [ -s "$work/$1-memory/log.jsonl" ] && [ -s "$work/$1-streamed/log.jsonl" ] || return
    for name in loss grad_norm; do
        field $name "$work/$1-memory/log.jsonl" >"$work/a"
        field $name "$work/$1-streamed/log.jsonl" >"$work/b"
        head -n "$(lines "$work/b")" "$work/a" | cmp -s - "$work/b" \
            || bad "$1: $name differs, streamed from in memory"
    done
}

zo_torch() {
    local name layers channels heads
    if ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        note "- skip: no PyTorch that sees the GPU"
        return
    fi
    for name in 1.3B:24:2048:32 6.7B:32:4096:32; do
        IFS=: read -r name layers channels heads <<<"$name"
        limited 60 python3 dev/bench/versus_pytorch_gpu.py --mode mezo --dtype float16 \
            --activation relu --layers "$layers" --channels "$channels" --heads "$heads" \
            --vocab 50272 --seq 2048 --batch 1 >"$work/torch" 2>>"$out/torch.log" \
            || note "- $name: $(why $? 60)"
        cat "$work/torch" >>"$out/torch.log"
        torch_said "OPT-$name, fp16, 2048 tokens, in memory"
    done
}

part_zo() {
    local log=$out/runs.log way model models="opt-1.3b opt-2.7b opt-6.7b"
    local mezo="--optimizer mezo --lr 1e-4 --precision fp16"
    local small="--model nano --batch 5 --seq 250 --steps 50 $mezo"
    build 240 train_gpt2cu build/gpu/test_zo_gpu build/gpu/test_kernels build/gpu/test_attention \
        build/gpu/test_matmul_gpu build/gpu/bench_zo
    run_tests 60 build/gpu/test_zo_gpu build/gpu/test_kernels build/gpu/test_attention \
        build/gpu/test_matmul_gpu
    # shellcheck disable=SC2086
    if train zo_memory 30 "$log" ./train_gpt2cu $small; then
        for way in "--slots 2" "--slots 3" "--resident-blocks 2" --zo-no-overlap --zo-no-slots \
            --zo-no-fused-update; do
            rm -rf "$work/zo_streamed"
            train zo_streamed 30 "$log" ./train_gpt2cu $small --stream-blocks $way &&
                same_run zo_memory zo_streamed "50 steps in fp16, in memory and streamed $way"
        done
    fi
    # shellcheck disable=SC2086
    bench_part bench_zo 150 ${ZO_BENCH:-} kernel step
    make_tokens || { bad "no random tokens: python3 is needed"; return; }
    zo_fits 40000 || models=nano ZO_SHAPE="--batch 2 --seq 32"
    zo_head
    for model in $models; do zo_both "$model" 12 60; done
    zo_torch
    command -v compute-sanitizer >/dev/null || { bad "compute-sanitizer is not there"; return; }
    # shellcheck disable=SC2086
    for way in memcheck racecheck initcheck synccheck; do
        sanitize $way zo_fp16 $mezo --stream-blocks --slots 1 --zo-queries 2
    done
    # shellcheck disable=SC2086
    sanitize memcheck zo_bf16 --optimizer mezo --stream-blocks --zo-storage fp32 --zo-write-back 2
}

part_zo_more() {
    build 240 train_gpt2cu build/gpu/bench_zo
    # shellcheck disable=SC2086
    bench_part bench_zo 270 ${ZO_BENCH:-} stream queries
    make_tokens || { bad "no random tokens: python3 is needed"; return; }
    zo_head
    zo_fits 40000 || { ZO_SHAPE="--batch 2 --seq 32" zo_both nano 12 60; return; }
    zo_both opt-13b 12 60
    zo_both opt-30b 8 120
    # 122 GiB of weights, half of them on the host: a seventh more would fit into the GPU's 139
    zo_run opt-66b streamed 6 "$(left)" --resident-blocks 32
}

# --- the run ---------------------------------------------------------------------------------

: >"$table"
note "# tide.c on a GPU"
note ""
note "- commit: $(git rev-parse --short HEAD 2>/dev/null || echo "unknown; sources" \
    "$(cat ./*.cu ./*.cuh ./*.h | cksum | cut -d' ' -f1)")"
note "- date: $(date -u '+%Y-%m-%d %H:%M UTC')"
note "- GPU: $(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader \
    2>&1 | head -n 1)"
note "- CUDA: $(nvcc --version 2>/dev/null | sed -n 's/.*release //p'); $(nproc) CPU cores"
if ! command -v nvcc >/dev/null; then
    bad "nvcc is not there: install the CUDA Toolkit, or put its bin directory into PATH"
    exit 1
fi
if ! nvidia-smi >/dev/null 2>&1; then
    bad "no GPU: nvidia-smi finds none"
    exit 1
fi
cat ./*.c ./*.h README.md >"$work/text.txt"
rm -f "$out"/{build,tests,runs,sanitizer,bench,train,torch,offload,zo}.log
for part in $all_parts; do
    case " $parts " in *" $part "*) ;; *) continue ;; esac
    note ""
    note "## $part"
    note ""
    if [ "$(left)" -lt 10 ]; then
        case $part in
            bench | train | torch | offload* | zero | zen* | zo*) note "- left out: no time left" ;;
            *) bad "$part: no time left" ;;
        esac
        continue
    fi
    start=$SECONDS
    "part_$part"
    note ""
    note "($((SECONDS - start)) s)"
done
note ""
if [ $wrong -eq 0 ]; then note "Nothing is wrong."; else note "**$wrong wrong.**"; fi
[ $wrong -eq 0 ]
