#!/bin/sh
# OPT-350M as a user meets it, shrunk to 0.2 M parameters: the GPU's steps are the CPU's; every
# placement, recomputation, number of ranks and MeZO's streaming keep the bits; what was saved is
# loaded. (Against transformers: dev/reference, and test_gpt2.c for its fixture opt-350m.)
# usage: sh dev/test/cli/test_cli_350m.sh    (from the top of the repository, after make,
#        make train_gpt2emu; TIDE_GPU=./train_gpt2cu where there is a GPU)
set -u
absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
tide=$(absolute "${TIDE_GPU:-train_gpt2emu}")
cpu=$(absolute "${TIDE_CPU:-train_gpt2}")
launch=$(absolute "${LAUNCH:-scripts/launch.sh}")
for program in "$tide" "$cpu" "$launch"; do
    [ -x "$program" ] || { echo "skip cli_350m: $program is missing"; exit 0; }
done
export OMP_NUM_THREADS=1 EMU_THREADS=1 EMU_MEM_MB=500
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. dev/test/cli.sh
cp LICENSE "$work/text.txt"
cd "$work" || exit 1
without_measuring
printf '%s\n' '{"prompt": "two and two is", "completion": " four"}' '{"text": "a text"}' \
    '{"prompt": "one and one is", "completion": " two"}' '{"text": "words in a row"}' >rows.jsonl

shape="--model opt-350m --layers 3 --channels 64 --heads 4 --context 48 --vocab 256"
tiny="$shape --tokenizer bytes --data text.txt --schedule constant --batch 2 --seq 32 --steps 4 \
    --warmup 0 --lr 3e-3 --save-every 0 --eval-batches 2 --"
# go PROGRAM NAME OPTION...
go() {
    program=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    "$program" $tiny "$@" --out "$name" >"$name.out" 2>"$name.err" || cat "$name.err"
}
same() { cmp "$1/model.safetensors" "$2/model.safetensors"; }
losses() { sed -n 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\).*/\1 \2/p' "$1/log.jsonl"; }
# close A B TOLERANCE: losses and norms of all steps
close() {
    losses "$1" >a.txt
    losses "$2" >b.txt
    paste -d ' ' a.txt b.txt | awk -v most="$3" '
        function far(x, y) { return (x > y ? x - y : y - x) > most * y }
        far($1, $3) || far($2, $4) { bad++ } END { exit bad > 0 || NR != 4 }'
}

go "$cpu" cpu
go "$tide" none --precision fp32 --offload none
check fp32_is_the_cpus close none cpu 1e-4
go "$tide" half --offload none
check bf16_follows_it close half cpu 0.03
for options in "none --recompute light" "none --recompute block" "zero" "twinflow --resident 0.5" \
    "interleave --recompute light --weights host"; do
    # shellcheck disable=SC2086
    go "$tide" "moved" --offload $options
    check "as_before: $options" same moved half
    rm -rf moved
done
go "$cpu" zen_cpu --offload zenflow --zen-window 2
go "$tide" zen --offload zenflow --zen-window 2 --precision fp32
check zenflow_is_the_cpus close zen zen_cpu 1e-4

go "$cpu" packed_cpu --data rows.jsonl --val rows.jsonl --pack on
go "$tide" packed --data rows.jsonl --val rows.jsonl --pack on --precision fp32
check packed_rows_are_the_cpus close packed packed_cpu 1e-4

for stage in 1 3; do
    # shellcheck disable=SC2086
    "$launch" 2 "$tide" $tiny --batch 1 --zero $stage --offload zero --out ranks$stage >r.out 2>&1 ||
        cat r.out
done
check ranks_are_one_another same ranks1 ranks3

go "$cpu" mezo_cpu --optimizer mezo --zo-queries 2
go "$tide" mezo --optimizer mezo --zo-queries 2 --precision fp32
check mezo_is_the_cpus close mezo mezo_cpu 1e-2
go "$tide" streamed --optimizer mezo --zo-queries 2 --precision fp32 --resident-blocks 1
check mezo_streams_the_same same streamed mezo

"$cpu" --model none --steps 0 --prompt The --temperature 0 --sample-tokens 9 >a.txt 2>/dev/null
"$tide" --model none --precision fp32 --steps 0 --prompt The --temperature 0 --sample-tokens 9 \
    >b.txt 2>/dev/null
check what_was_saved_is_sampled cmp a.txt b.txt
go "$cpu" more --steps 2
"$cpu" --resume --out more --steps 4 >more.out 2>&1
check resumed same more cpu
