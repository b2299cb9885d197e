#!/bin/sh
# OPT-350M as a user meets it, shrunk to 0.2 M parameters: the GPU's steps are the CPU's; every
# placement, recomputation, number of ranks and MeZO's streaming keep the bits; what was saved is
# loaded. (Against transformers: dev/reference, and test_gpt2.c for its fixture opt-350m.)
# usage: sh dev/test/cli/test_cli_350m.sh    (from the top of the repository, after make,
#        make train_gpt2emu; TIDE_GPU=./train_gpt2cu where there is a GPU)
set -u
. dev/test/cli.sh
begin cli_350m
export EMU_MEM_MB=500
cp "$top/LICENSE" text.txt
without_measuring
printf '%s\n' '{"prompt": "two and two is", "completion": " four"}' '{"text": "a text"}' \
    '{"prompt": "one and one is", "completion": " two"}' '{"text": "words in a row"}' >rows.jsonl

shape="--model opt-350m --layers 3 --channels 64 --heads 4 --context 48 --vocab 256"
tiny="$shape --tokenizer bytes --data text.txt --schedule constant --batch 2 --seq 32 --steps 4 \
    --warmup 0 --lr 3e-3 --save-every 0 --eval-batches 2 --"
# start NAME PROGRAM OPTION...
start() { name=$1 program=$2; shift 2; go "$name" "$program" $tiny "$@"; }
start cpu "$cpu"
start none "$tide" --precision fp32 --offload none
start half "$tide" --offload none
start moved "$tide" --offload interleave --recompute light --weights host
start recomputed "$tide" --offload twinflow --resident 0.5 --recompute block
go left env EMU_SCHED=prio:1 "$tide" $tiny --offload zero --activations host
start zen_cpu "$cpu" --offload zenflow --zen-window 2
start zen "$tide" --offload zenflow --zen-window 2 --precision fp32
start packed_cpu "$cpu" --data rows.jsonl --val rows.jsonl --pack on
start packed "$tide" --data rows.jsonl --val rows.jsonl --pack on --precision fp32
start mezo_cpu "$cpu" --optimizer mezo --zo-queries 2
start mezo "$tide" --optimizer mezo --zo-queries 2 --precision fp32
start streamed "$tide" --optimizer mezo --zo-queries 2 --precision fp32 --resident-blocks 1
for stage in 1 3; do go ranks$stage ranks 2 $tiny --batch 1 --zero $stage --offload zero; done
start more "$cpu" --steps 2
arrive
near fp32_is_the_cpus none cpu 1e-4
near bf16_follows_it half cpu 0.03
for run in moved recomputed left; do like "as_before: $run" $run half; done
near zenflow_is_the_cpus zen zen_cpu 1e-4
near packed_rows_are_the_cpus packed packed_cpu 1e-4
like ranks_are_one_another ranks1 ranks3
near mezo_is_the_cpus mezo mezo_cpu 1e-2
like mezo_streams_the_same streamed mezo

"$cpu" --model none --steps 0 --prompt The --temperature 0 --sample-tokens 9 >a.txt 2>/dev/null
"$tide" --model none --precision fp32 --steps 0 --prompt The --temperature 0 --sample-tokens 9 \
    >b.txt 2>/dev/null
check what_was_saved_is_sampled cmp a.txt b.txt
"$cpu" --resume --out more --steps 4 >more.out 2>&1
check resumed same_weights more cpu
