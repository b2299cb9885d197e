#!/bin/sh
# Several GPUs as a user meets them: ranks that scripts/launch.sh starts train the same weights in
# every stage of ZeRO and with the state anywhere, as one process does; a run goes on with more or
# fewer ranks; a rank that dies, a signal and a mistake on one of them end all, with a clear line.
# With models of a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_cli_zero.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/tokenize build/timeline; TIDE_GPU=./train_gpt2cu where there
#        are four GPUs; ALL=1: with more placements, numbers of ranks and ends)
set -u
absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
tide=$(absolute "${TIDE_GPU:-train_gpt2emu}")
cpu=$(absolute "${TIDE_CPU:-train_gpt2}")
launch=$(absolute "${LAUNCH:-scripts/launch.sh}")
tokenize=$(absolute "${TOKENIZE:-build/tokenize}")
timeline=$(absolute "${TIMELINE:-build/timeline}")
for program in "$tide" "$cpu" "$launch" "$tokenize" "$timeline"; do
    [ -x "$program" ] || { echo "skip cli_zero: $program is missing"; exit 0; }
done
case $tide in
    */build/emu/* | *emu) ;;
    *) [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -ge 4 ] ||
        { echo "skip cli_zero: fewer than four GPUs"; exit 0; } ;;
esac
cores=$(nproc 2>/dev/null || echo 2)  # (before the next line: nproc minds it)
export OMP_NUM_THREADS=1 EMU_THREADS=1
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
. dev/test/cli.sh
cat LICENSE LICENSE LICENSE >"$work/text.txt"
cp scripts/rates/rtx4090_desktop.txt "$work/rates.txt"
cd "$work" || exit 1

# With the gaps between tensors and the padding of the vocabulary: 12800 elements of embeddings,
# 13312 of each of three layers, 256 of the tail.
small="--layers 3 --heads 2 --channels 32 --context 16 --vocab 300"
tiny="--data text.txt $small --batch 1 --lr 3e-3 --"
fine="--subgroup 4096"
steps="--steps 4 --save-every 2 --eval-every 2 --eval-batches 3 --"

# go RANKS NAME OPTION...: a run in the background, half as many ranks too many at a time as there
# are cores. With 0 ranks, without a launcher.
going=0
go() {
    ranks=$1 name=$2
    shift 2
    if [ "$ranks" = 0 ]; then "$tide" $tiny "$@" --out "$name" >"$name.out" 2>"$name.err" &
    else "$launch" "$ranks" "$tide" $tiny "$@" --out "$name" >"$name.out" 2>"$name.err" &
    fi
    going=$((going + 1))
    [ $((going % cores)) -ne 0 ] || wait
}

true_that() { awk "BEGIN { exit !($1) }"; }
# What a step in a run's log says; RUN STEP MEMBER. And all losses and norms, with all digits.
field() { grep "\"step\":$2,\"loss\"" "$1/log.jsonl" | sed -n "s/.*\"$3\":\([-0-9.e+]*\).*/\1/p"; }
losses() { sed -n 's/\("norm":[^,]*\|"grad_norm":[^,]*\|"val_loss":[^}]*\).*/\1/p' "$1/log.jsonl"; }
# same NAME RUN REFERENCE: losses, weights and, of every checkpoint in both, parameters and moments
same() {
    losses "$2" >a.txt 2>a.err
    losses "$3" >b.txt 2>b.err
    why=
    cmp -s a.txt b.txt && [ -s a.txt ] || why="losses: $(diff a.txt b.txt | tr '\n' ' ')"
    cmp -s "$2/model.safetensors" "$3/model.safetensors" || why="$why weights"
    states=0
    for s in $(cd "$3" 2>/dev/null && ls checkpoints 2>/dev/null); do
        [ -d "$2/checkpoints/$s" ] || continue
        states=$((states + 1))
        cmp -s "$2/checkpoints/$s/state.safetensors" "$3/checkpoints/$s/state.safetensors" ||
            why="$why $s"
        for r in "$2" "$3"; do grep '^hashes' "$r/checkpoints/$s/state.txt" >"hash_$r.txt"; done
        cmp -s "hash_$2.txt" "hash_$3.txt" || why="$why hashes of $s"
    done
    [ $states -gt 0 ] || why="$why no state"
    if [ -z "$why" ]; then echo "ok $1"; else fail "$1" "differs: $why $(head -n 3 "$2.err")"; fi
}
# near NAME RUN REFERENCE LIMIT: all losses, relative; same steps
near() {
    sed -n 's/.*"\(val_\|\)loss":\([^,}]*\).*/\2/p' "$2/log.jsonl" >a.txt
    sed -n 's/.*"\(val_\|\)loss":\([^,}]*\).*/\2/p' "$3/log.jsonl" >b.txt
    far=$(paste a.txt b.txt | awk -v limit="$4" '{ d = $1 / $2 - 1; if (d < 0) d = -d }
        NF != 2 || d > limit { print NR ": " $0 }')
    if [ -s a.txt ] && [ -z "$far" ]; then echo "ok $1"
    else fail "$1" "$far $(head -n 3 "$2.err")"; fi
}
# is NAME RUN STEP MEMBER NUMBER
is() {
    got=$(field "$2" "$3" "$4")
    if [ "$got" = "$5" ]; then echo "ok $1"; else fail "$1" "$4 is $got, not $5"; fi
}

# --- every stage and placement gives the same numbers and files ---------------------------------

start=$(date +%s)
export EMU_PEER_SECONDS=300
go 2 s1 $steps --zero 1 --offload none --recompute none
without_measuring  # that no host reads GPU memory was seen
go 2 s2 $steps --offload none --recompute block
go 2 s3 $steps --zero 3 --offload none --no-overlap
go 2 s1_zero $steps --zero 1 --offload zero
go 2 s2_wire $steps --zero 2 --offload zero --grad-wire fp32
go 2 s3_twinflow $steps --zero 3 --offload twinflow --resident 0.4 --recompute block
go 2 s2_stride $steps --zero 2 --offload interleave --stride 2 $fine --slots 1
go 2 s3_share $steps --zero 3 --offload interleave --share 1 $fine --slots 2 --no-overlap \
    --sample-every 1 --sample-tokens 3 --trace trace.json
go 2 s3_weights $steps --offload interleave --share 0.5 --weights host
go 2 accum_s1 $steps --accum 3 --zero 1 --offload none
go 2 accum_s2 $steps --accum 3 --zero 2 --offload zero
go 2 fp32_s2 $steps --precision fp32 --zero 2 --offload none
go 2 fp32_s1 $steps --precision fp32 --zero 1 --offload interleave --share 0.5
go 2 half_s1 $steps --zero 1 --offload none --moments bf16
go 2 half_s3 $steps --zero 3 --offload interleave --share 0.5 --moments bf16
go 3 three_s2 $steps --zero 2 --offload none
go 3 three_s3 $steps --zero 3 --offload interleave --share 0.4 --recompute block
# a token's gradient is too large for fp16's first scale: all ranks skip the same steps
head -c 999 /dev/zero | tr '\0' a >same.txt
one="--precision fp16 --data same.txt --batch 1 --seq 1 --steps 6 --save-every 3 --"
go 2 f16_s1 $one --zero 1 --offload none
go 2 f16_s3 $one --zero 3 --offload interleave --share 0.5
go 0 alone $steps --accum 2 --offload none
go 0 alone_s3 $steps --accum 2 --zero 3 --offload interleave --share 0.5
same_as_s1="s2 s3 s1_zero s2_wire s3_twinflow s2_stride s3_share s3_weights"
pairs="accum_s2:accum_s1 fp32_s1:fp32_s2 half_s3:half_s1 f16_s3:f16_s1 three_s3:three_s2 alone_s3:alone"
if whole; then
    go 2 s1_share $steps --zero 1 --offload interleave --share 0.5 --resident 0.2
    go 2 accum_s3 $steps --accum 3 --zero 3 --offload interleave --share 0.5
    go 2 fp32_s3 $steps --precision fp32 --zero 3 --offload zero
    go 3 three_s1 $steps --zero 1 --offload twinflow --resident 0.3
    go 4 four_s2 $steps --accum 3 --zero 2 --offload interleave --stride 2 $fine
    go 4 four_s3 $steps --accum 3 --zero 3 --offload none
    go 1 alone_s1 $steps --accum 2 --zero 1 --offload zero
    same_as_s1="$same_as_s1 s1_share"
    pairs="$pairs accum_s3:accum_s1 fp32_s3:fp32_s2 three_s1:three_s2 four_s3:four_s2"
    pairs="$pairs alone_s1:alone"
fi
wait
for run in $same_as_s1; do same ${run}_on_two_ranks_has_the_bits_of_stage_1 $run s1; done
for pair in $pairs; do
    same ${pair%:*}_has_the_bits_of_${pair#*:} ${pair%:*} ${pair#*:}
done
check ranks_skip_what_overflows grep -q '"skipped":true,"loss_scale":65536' f16_s3/log.jsonl
check stages_are_as_told sh -c 'for s in 1:s1 2:s2 3:s3_twinflow; do
    grep -q "\"stage\":${s%:*},\"world\":2," ${s#*:}/log.jsonl || exit 1; done'
check weights_on_the_host_are_sharded grep -q '"stage":3,"world":2,' s3_weights/log.jsonl
case $tide in *emu)  # ranks with different memory gather in one order
    printf '#!/bin/sh\nexport EMU_MEM_MB=16384\n[ "$RANK" = 0 ] && export EMU_MEM_MB=298\n%s\n' \
        "exec $tide \"\$@\"" >uneven
    chmod +x uneven
    check ranks_with_different_memory "$launch" 2 ./uneven --data text.txt --layers 8 --heads 4 \
        --channels 128 --context 64 --vocab 300 --batch 1 --steps 3 --zero 3 --offload zero \
        --weights host --recompute none --out uneven.out ;;
esac
# One rank may end long after another, which has left in order: rank 0 draws the loss.
cat >slow.c <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int rename(const char *from, const char *to) {
    if (strstr(to, "loss.svg") != NULL) sleep(1);
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
END
check a_slow_end_is_made "${CC:-gcc}" -shared -fPIC slow.c -o slow.so
check a_rank_may_end_later env LD_PRELOAD="$PWD/slow.so" "$launch" 2 "$tide" $tiny --steps 1 --out slow
check and_its_last_file_is_there test -s slow/loss.svg
# NCCL takes its buffers before the plan is made: with ZenFlow those of reduce, broadcast and gather,
# else of two kinds. The limit that the plan names has a hundredth less than is free.
case $tide in *emu)
    limit() { EMU_MEM_MB=1000 EMU_NCCL_MB=$1 "$launch" 2 "$tide" $tiny --steps 1 --no-save --offload $2 2>&1 |
        sed -n 's/^GPU  *total .* of \([0-9.]*\) MiB$/\1/p'; }
    for kinds in 2:none 3:zenflow; do
        taken="$(limit 0 ${kinds#*:}) - $(limit 50 ${kinds#*:})"
        check the_plan_sees_what_nccl_took_${kinds#*:} true_that \
            "($taken) / (50 * ${kinds%:*} * 0.99) > 0.99 && ($taken) / (50 * ${kinds%:*} * 0.99) < 1.01"
    done ;;
esac
check and_come_from_there grep -q '^weights of 3 of 3 layers live on the host' s3_weights.out
check each_step_is_logged_once test "$(grep -c '"loss"' s3/log.jsonl)" -eq 4
check only_one_rank_speaks test "$(grep -c '^step 4/4\|^model: \|^ranks: 2' s3.out)" -eq 3
check how_many_they_are_is_said_first sh -c 'head -n 5 s3.out | grep -qx "ranks: 2, ZeRO-3"'
check the_others_are_silent test ! -s s3.err
check samples_are_said_once test "$(grep -c '^--- sample' s3_share.out)" -eq 4
check trace_is_json "$timeline" trace.json -o trace.svg
for name in reduce gather; do
    check trace_has_$name grep -q "\"ph\":\"X\".*\"name\":\"$name\",\"tid\":8," trace.json
done
for f in config.json loss.svg vocab.json merges.txt; do check ranks_leave_$f test -s s3/$f; done
check ranks_leave_no_rubbish sh -c '! ls s3/checkpoints | grep -q tmp'
check more_ranks_are_other_numbers sh -c '! cmp -s s1/model.safetensors three_s2/model.safetensors'

# --- the bytes that ranks exchange ---------------------------------------------------------------

# A shard of the embeddings, three layers and the tail: with two ranks 6400 + 3 * 6656 + 128, with
# three 4352 + 3 * 4480 + 128, with four 3200 + 3 * 3328 + 128; and some dozens of doubles per step.
two=26496 three=17920 four=13312
# exchanged NAME RUN RANKS REDUCED GATHERED: bytes of a third step to each of the others
exchanged() {
    is "$1_sums_so_much" "$2" 3 reduced_bytes $((($3 - 1) * $4))
    got=$(field "$2" 3 gathered_bytes)
    check "$1_gathers_so_much" test "$got" -ge $((($3 - 1) * $5)) -a \
        "$got" -le $((($3 - 1) * ($5 + 512)))
}
exchanged stage_1 s1_zero 2 $((2 * two)) $((2 * two))
exchanged stage_2 s2_wire 2 $((2 * two)) $((2 * two))
exchanged stage_2_in_fp32 fp32_s1 2 $((4 * two)) $((4 * two))
exchanged three_ranks three_s2 3 $((2 * three)) $((2 * three))
exchanged three_micro_batches accum_s2 2 $((3 * 2 * two)) $((2 * two))
if whole; then
    exchanged three_ranks_in_stage_1 three_s1 3 $((2 * three)) $((2 * three))
    exchanged four_ranks four_s2 4 $((3 * 2 * four)) $((2 * four))
fi
# Stage 3: there is memory for a place for each layer, and the evaluation of step 2 has gathered them.
exchanged stage_3 s3 2 $((2 * two)) 0
if whole; then
    exchanged stage_3_on_four_ranks four_s3 4 $((3 * 2 * four)) 0
fi

# --- what crosses the link is the rank's own -----------------------------------------------------

# Of rank 0, half of all: 26496 elements.
is each_rank_updates_its_own s1_zero 3 cpu_params $two
is each_rank_moves_its_own s1_zero 3 h2d_bytes $((2 * two))

# --- as many sequences per step on other numbers of ranks ----------------------------------------

batch="--steps $(whole && echo 5 || echo 3) --no-save --eval-every 2 --eval-batches 3 --"
go 0 one_fp32 $batch --precision fp32 --accum 12
go 3 three_fp32 $batch --precision fp32 --accum 4 --zero 2
go 0 one_bf16 $batch --accum 12
go 4 four_bf16 $batch --accum 3
teams=three
if whole; then
    teams="two three four"
    go 2 two_fp32 $batch --precision fp32 --accum 6 --zero 1
    go 4 four_fp32 $batch --precision fp32 --accum 3 --zero 3
fi
wait
for run in $teams; do near ${run}_ranks_train_as_one_in_fp32 ${run}_fp32 one_fp32 1e-6; done
near four_ranks_train_as_one_in_bf16 four_bf16 one_bf16 2e-3

# --- memory --------------------------------------------------------------------------------------

# A model of 4 x 12 x 256^2 parameters and some; its weights in bf16 are 6.5 MiB.
big="--data text.txt --layers 4 --heads 4 --channels 256 --context 16 --vocab 300 --batch 1"
big="$big --eval-every 0 --steps 1 --no-save --"
# memory NAME RANKS STAGE OPTION...: a run, and what it says of GPU memory
memory() {
    name=$1 ranks=$2 stage=$3
    shift 3
    "$launch" "$ranks" "$tide" $big --zero "$stage" -- "$@" --out "$name" >"$name.out" 2>"$name.err" &
    going=$((going + 1))
    [ $((going % cores)) -ne 0 ] || wait
}
for s in 1 2 3; do memory mem_2_$s 2 $s --offload none; done
memory mem_3_3 3 3 --offload zero
teams="2_1 2_2 2_3 3_3"
if whole; then
    memory mem_4_3 4 3 --offload none
    teams="$teams 4_3"
fi
wait
rounding=100  # a driver gives out pages of 2 MiB
if grep -q '^device: Emulated' mem_2_1.out; then rounding=0.15; fi
for run in $teams; do
    set -- $(sed -n 's/^GPU memory: \([0-9.]*\) MiB taken, planned \([0-9.]*\) MiB$/\1 \2/p' \
        mem_$run.out)
    check mem_${run}_is_taken_as_planned true_that \
        "${1:-0} > ${2:-1} - 0.15 && $1 < $2 + $rounding"
done
# The plan for so many ranks says what they then take.
said() { plan_of "$1"; grep '^offload \|^recomputing\|^gradients of' "$1"; }
for run in "2_1 --offload none" "2_3 --offload none" "4_3 --offload none" "3_3 --offload zero"; do
    x=${run%% *} R=${run%%_*}
    [ -s "mem_$x.out" ] || continue
    EMU_DEVICES=0 "$tide" $big --plan --world "$R" --zero "$(echo "$x" | cut -c3)" ${run#* } \
        --rates rates.txt --out planned >plan.out 2>plan.err
    said plan.out >a.txt
    said "mem_$x.out" >b.txt
    check plan_says_what_${x}_says sh -c 'test -s a.txt && diff a.txt b.txt'
done
check plan_leaves_nothing test ! -e planned
EMU_DEVICES=0 "$tide" --plan --model 7b --batch 1 --world 8 --rates rates.txt >plan.out 2>plan.err
check plan_takes_a_large_model grep -q '^GPU  *parameters' plan.out
check its_memory_is_of_each_rank grep -qx 'GPU memory per rank, in GiB' plan.out
check it_says_how_many_ranks grep -qx 'ranks: 8, ZeRO-2' plan.out

# --zero auto: 3 where 2 does not fit on one of the ranks
deep="--layers 12 --steps 3 --eval-every 0 --save-every 0 --"
stage_needs() {  # the least of GPU memory, in KiB
    EMU_DEVICES=0 "$tide" $tiny $deep --plan --world 2 --zero "$1" --gpu-memory 1M --rates rates.txt \
        2>&1 | sed -n 's/.* needs \([0-9.]*\) MiB of GPU.*/\1/p' | awk '{ print int(1024 * $1) }'
}
cap=$((($(stage_needs 2) + $(stage_needs 3)) / 2))K
for capped in both one; do  # or rank 1 alone
    "$launch" 2 sh -c '[ "$1$RANK" = one0 ] || memory="--gpu-memory $2"; shift 2; exec "$@" $memory' \
        - $capped "$cap" "$tide" $tiny $deep --rates rates.txt --out stage_$capped \
        >stage_$capped.out 2>stage_$capped.err
    check auto_takes_3_of_$capped grep -q '^--zero auto takes ZeRO-3' stage_$capped.out
done
go 2 stage_2 $deep
wait
check auto_takes_2_elsewhere sh -c 'grep -q "^ranks: 2, ZeRO-2$" stage_2.out && ! grep -q ZeRO-3 stage_2.out'
check stages_have_the_same_weights cmp stage_both/model.safetensors stage_2/model.safetensors

# auto offloads where the state of a rank does not fit, each rank its own
EMU_DEVICES=0 "$tide" $tiny --plan --world 2 --zero 3 --offload zero --recompute none \
    --rates rates.txt >plan.out 2>&1
cap=$(awk "BEGIN { print 1024 * ($(planned GPU plan.out) + 0.1) }")
go 2 auto $steps --zero 3 --gpu-memory "${cap%.*}K" --rates rates.txt
wait
same auto_has_the_bits_of_stage_1 auto s1
check auto_offloads grep -q '^offload auto: .*predicted' auto.out

# --- going on ------------------------------------------------------------------------------------

stay="--warmup 0 --schedule constant --save-every 1 --keep 99 --eval-every 0 --"
go 4 whole $stay --steps 7 --accum 3 --zero 1 --offload none
go 4 moved $stay --steps 2 --accum 3 --zero 3 --offload interleave --share 0.5
go 4 whole_fp32 $stay --steps $(whole && echo 7 || echo 6) --accum 3 --precision fp32 --zero 2 \
    --offload none
go 4 other_fp32 $stay --steps 2 --accum 3 --precision fp32 --zero 3 --offload zero
go 0 one $stay --steps 3 --accum 3
wait
# resume RANKS NAME OPTION...
resume() {
    ranks=$1 name=$2
    shift 2
    "$launch" "$ranks" "$tide" --resume --out "$name" "$@" >"$name.out" 2>"$name.err"
}
resume 4 moved --steps 4 --zero 1 --offload twinflow --resident 0.5
resume 4 moved --steps 5 --zero 2 --offload none
resume 4 moved --steps 7 --zero 3 --offload zero
same resumed_in_every_stage_it_has_the_bits_of_one moved whole
(printf 'x\000' && cat text.txt) >nul.txt  # said once, as all that follows
resume 2 moved --steps 3 --data nul.txt
check ranks_with_nothing_to_do_end test $? -eq 0
check they_say_so_once test "$(grep -c '^nothing to do: .* at step 7' moved.out)" -eq 1
check what_is_not_text_is_said_once test "$(grep -c '^tide: warning: nul.txt is binary' moved.err)" -eq 1
resume 2 other_fp32 --steps 4 --zero 2 --offload none
check fewer_ranks_accumulate_more grep -q 'accum is 6 now, for 12 sequences' other_fp32.out
resume 1 other_fp32 --steps 5 --offload interleave --share 0.5
resume 3 other_fp32 --steps 6 --zero 1 --offload zero
if whole; then resume 4 other_fp32 --steps 7 --batch 3 --zero 3; fi
near from_four_to_two_to_one_to_three_ranks other_fp32 whole_fp32 1e-6
"$launch" 3 "$tide" --resume --out one --steps 5 --offload none >one.out 2>one.err
check one_goes_on_as_three test "$(tail -n 1 one/log.jsonl | grep -c '"step":')" -eq 1 -a \
    -d one/checkpoints/step_00000005
check one_goes_on_with_one_micro_batch_each grep -q 'accum is 1 now, for 3 sequences' one.out
refuses other_number_of_sequences 2 \
    '12 sequences .*; --batch 1, --accum 3 and 2 GPUs make 6: take --batch 1, without --accum$' \
    "$launch" 2 "$tide" --resume --out moved --steps 8 --accum 3
refuses other_batch 2 'batch 4, --accum [36] and 2 GPUs make .*: take --batch 3$' \
    "$launch" 2 "$tide" --resume --out moved --steps 8 --batch 4
refuses no_number_of_sequences 2 '3 sequences per step: 2 GPUs cannot share them evenly' \
    "$launch" 2 "$tide" --resume --out one --steps 6

# --- ZenFlow on several ranks --------------------------------------------------------------------

# Stages 1 and 2 alike; without columns it is AdamW; fewer or more ranks select the same columns.
zen="--offload zenflow --zen-window 3 --zen-reselect 1 --steps 8 --save-every 4 --keep 9"
zen="$zen --eval-every 3 --"
go 2 zen_1 $zen --zero 1 --accum 3
go 2 zen_2 $zen --zero 2 --accum 3 --recompute block
go 2 zen_auto $zen --zen-window auto
go 2 zen_auto_1 $zen --zen-window auto --zero 1 --no-overlap
go 3 zen_plain $steps --offload zenflow --zen-topk 0 --zen-window 1 --zen-overlap off
zen32="$zen --precision fp32"
teams=two
late="$zen32 --zen-window 2 --zen-reselect 9"  # one selection: all later windows are late
go 0 zen_late_one $late --accum 4
go 2 zen_late_two $late --accum 2
[ -n "${EMU_SCHED-}" ] || { export EMU_SCHED=prio:1; go 2 zen_late_prio $late --accum 2; unset EMU_SCHED; }
if whole; then
    go 0 zen_one $zen32 --accum 12
    go 2 zen_two $zen32 --accum 6 --zero 1
    go 3 zen_three $zen32 --accum 4
    go 3 zen_late $zen --zen-topk 0.3
    go 3 zen_late_1 $zen --zen-topk 0.3 --zero 1
    go 4 zen_four $zen32 --accum 3 --zero 1
    teams="two three four"
else
    go 0 zen_one $zen32 --accum 4
    go 2 zen_two $zen32 --accum 2 --zero 1
fi
wait
same zenflow_in_stage_1_has_the_bits_of_stage_2 zen_1 zen_2
if whole; then same zenflow_late_in_stage_1_has_the_bits_of_stage_2 zen_late_1 zen_late; fi
same zenflow_by_its_gradients_in_stage_1_has_the_bits_of_stage_2 zen_auto_1 zen_auto
losses zen_plain >a.txt
losses three_s2 >b.txt
check zenflow_without_columns_is_adamw cmp a.txt b.txt
near zenflow_late_on_two_ranks_trains_as_on_one zen_late_two zen_late_one 1e-6
[ -n "${EMU_SCHED-}" ] || same zenflow_late_has_the_bits_under_another_schedule zen_late_prio zen_late_two
# chosen RUN: the columns of its last checkpoint
chosen() { grep '^zen.columns' "$1"/checkpoints/step_00000008/state.txt; }
chosen zen_one >one.txt
check columns_were_selected test "$(wc -w <one.txt)" -gt 20
for run in $teams; do
    near zenflow_on_${run}_ranks_trains_as_on_one zen_$run zen_one 1e-6
    chosen zen_$run >some.txt
    check ${run}_ranks_select_the_columns_of_one cmp some.txt one.txt
done
# Between two windows only the chosen columns' weights are gathered.
for step in 3 5 6; do
    check "zenflow_gathers_chosen_columns_in_step_$step" test \
        $((10 * $(field zen_2 $step gathered_bytes))) -lt $((4 * $(field zen_2 4 gathered_bytes)))
done
# Selections are by one number of 736 columns, two for a window that follows the gradients.
is zenflow_sends_norms zen_2 4 proxy_bytes $((4 * 736))
is zenflow_sends_magnitudes_too zen_auto 4 proxy_bytes $((8 * 736))
is zenflow_sends_nothing_that_no_selection_counts zen_late_two 4 proxy_bytes 0
is zenflow_gathers_all_behind_a_window zen_2 7 gathered_bytes "$(field zen_2 4 gathered_bytes)"
# not the first ones of each matrix: of one or two perhaps
check first_columns_are_not_selected test "$(grep -o ' 0 1 2 ' one.txt | wc -l)" -lt 3
# goes_on RANKS NAME OPTION...: zen_two from its fourth step on, in NAME
goes_on() {
    ranks=$1 name=$2
    shift 2
    mkdir -p "$name/checkpoints"
    cp -r zen_two/checkpoints/step_00000004 "$name/checkpoints"
    for f in zen_two/*; do [ -d "$f" ] || cp "$f" "$name"; done
    resume "$ranks" "$name" "$@"
    check "${name}_goes_on" test -d "$name/checkpoints/step_00000008"
}
goes_on 2 zen_again --zero 2
same zenflow_goes_on_with_the_same_bits zen_again zen_two
goes_on 1 zen_alone
near zenflow_goes_on_alone zen_alone zen_two 1e-6
if whole; then
    goes_on 3 zen_more
    near zenflow_goes_on_with_more_ranks zen_more zen_two 1e-6
    chosen zen_more >some.txt
    check more_ranks_go_on_with_the_same_columns cmp some.txt one.txt
fi
goes_on 2 zen_left --offload zero --zero 3
refuses zenflow_in_stage_3 2 'works with --zero 1 or 2' "$launch" 2 "$tide" $tiny \
    --offload zenflow --zero 3 --out mistake

# --- ends ----------------------------------------------------------------------------------------

# Each rank leaves its process's number: NAME.RANK.pid
with_pid='echo $$ >$RUN.$RANK.pid; exec "$0" "$@"'
# begin RANKS NAME OPTION...: in the background; $launcher starts it
begin() {
    ranks=$1
    export RUN=$2
    shift 2
    rm -f "$RUN".*.pid
    "$launch" "$ranks" sh -c "$with_pid" "$tide" "$@" --out "$RUN" >"$RUN.out" 2>"$RUN.err" &
    launcher=$!
}
# so_long NAME: a run of 40 steps or more begins; is_over NAME: it has come to its end
so_long() {
    long="--steps $((40 * times)) --save-every 2 --keep 9999 --eval-every 10 --eval-batches 3 --"
    rm -rf "$1"
}
is_over() { [ -d "$1/checkpoints/$(printf 'step_%08d' $((40 * times)))" ]; }

# One rank after the other is killed; what then was is in killed.N.err, .code, .took and .left.
victims="1 0"
whole && victims="1 0 1"
kill_ranks() {
    so_long killed
    n=0
    for victim in $victims; do
        n=$((n + 1))
        case $n in
            1) begin 2 killed $tiny $long --zero 3 --offload zero ;;
            2) begin 2 killed --resume --zero 2 --offload none ;;
            3) begin 2 killed --resume --zero 3 --offload twinflow ;;
        esac
        until_saved $launcher killed
        a_moment
        kill -KILL "$(cat killed.$victim.pid)"
        before=$(date +%s)
        wait $launcher
        echo $? >killed.$n.code
        echo $(($(date +%s) - before)) >killed.$n.took
        cp killed.err killed.$n.err
        for r in 0 1; do kill -0 "$(cat killed.$r.pid)" && echo "rank $r"; done >killed.$n.left
    done
    ! is_over killed
}
check ranks_were_killed_before_the_end longer kill_ranks
n=0
for victim in $victims; do
    n=$((n + 1))
    check kill_${n}_of_rank_${victim}_ends_the_run sh -c '[ "$1" -ne 0 -a "$1" -ne 127 ]' - \
        "$(cat killed.$n.code)"
    # (without a word from the others it would end after EMU_PEER_SECONDS)
    check kill_${n}_ends_it_soon test "$(cat killed.$n.took)" -le 100
    check kill_${n}_is_one_line test "$(sort -u killed.$n.err | wc -l)" -eq 1
    check kill_${n}_is_said grep -q "^tide: rank $victim is gone" killed.$n.err
    check kill_${n}_leaves_no_process test ! -s killed.$n.left
done
go 2 uninterrupted $long --zero 2 --offload zero
resume 2 killed --zero 1 --offload interleave --share 0.5
wait
same a_killed_run_has_the_bits_of_another killed uninterrupted
check a_killed_run_leaves_no_rubbish sh -c '! ls killed/checkpoints | grep -q tmp'

# A signal to one rank, not the one that writes; then one to the launcher, which passes it on.
signal_ranks() {
    so_long term
    begin 2 term $tiny $long --zero 2 --offload zero
    until_saved $launcher term
    kill -TERM "$(cat term.1.pid)"
    wait $launcher
    first=$?
    for f in out err; do cp term.$f first.$f; done
    stopped=$(grep -c '"loss"' term/log.jsonl)
    saved=$(newest term)
    begin 2 term --resume --zero 3
    until_saved $launcher term
    kill -TERM $launcher
    wait $launcher
    second=$?
    ! is_over term
}
check sigterm_stops_early longer signal_ranks
check sigterm_to_one_rank_ends_well test $first -eq 143
check sigterm_is_no_error test ! -s first.err
check sigterm_saves test "$saved" = "term/checkpoints/$(printf 'step_%08d' "$stopped")"
check sigterm_says_how_to_go_on grep -q "signal 15 after step $stopped; continue with" first.out
check sigterm_to_the_launcher_ends_well test $second -eq 143 -a ! -s term.err
resume 2 term --zero 1 --offload zero
if is_over uninterrupted; then :; else
    rm -rf uninterrupted
    go 2 uninterrupted $long --zero 2 --offload zero
    wait
fi
same after_signals_it_has_the_bits_of_another term uninterrupted

# --- mistakes: all ranks say the same, or one says it for all ------------------------------------

# on_rank_1 COMMAND...: with --lr 1e-3 for rank 1; in_its_own COMMAND...: in a directory of the rank
other='[ $RANK = 0 ] || set -- "$@" --lr 1e-3; exec "$0" "$@"'
refuses other_options 2 'lr' "$launch" 2 sh -c "$other" "$tide" $tiny --out mistake
mkdir -p own.0 own.1
cp text.txt own.0
head -c 3000 text.txt >own.1/text.txt
refuses other_data 2 'data' "$launch" 2 sh -c 'cd own.$RANK; exec "$0" "$@"' "$tide" $tiny \
    --steps 2 --out "$work/mistake"
refuses other_out 2 'out' "$launch" 2 sh -c 'exec "$0" "$@" --out mistake.$RANK' "$tide" $tiny
refuses no_such_data 2 'nowhere' "$launch" 3 "$tide" --data nowhere --out mistake
refuses no_option_that_is_one 2 'zerro' "$launch" 2 "$tide" $tiny --zerro 2 --out mistake
refuses stage_4 2 'must be 1 to 3' "$launch" 2 "$tide" $tiny --zero 4 --out mistake
refuses zero_with_mezo 2 'zero' "$launch" 2 "$tide" $tiny --optimizer mezo --zero 2 --out mistake
refuses no_steps_on_several 2 'leave the launcher out' "$launch" 2 "$tide" $tiny --steps 0 \
    --out mistake
refuses no_dump_on_several 2 'leave the launcher out' "$launch" 2 "$tide" $tiny --dump mistake
refuses cpu_on_several 2 'one process' "$launch" 2 "$cpu" --data text.txt --out mistake
refuses plan_on_several 2 'say --world 2' "$launch" 2 "$tide" $tiny --plan
refuses world_without_plan 2 'launcher' "$tide" $tiny --world 2 --out mistake
refuses zero_on_the_cpu 2 'zero' "$cpu" --data text.txt --zero 1 --out mistake
refuses too_little_memory 2 'GPU memory' "$launch" 2 "$tide" $tiny --gpu-memory 1M --offload zero \
    --out mistake
check mistakes_leave_nothing sh -c '! ls -d mistake* 2>/dev/null | grep .'
refuses loss_not_finite 1 'stopped before the update' "$launch" 2 "$tide" $tiny --lr 900 --clip 0 \
    --warmup 0 --schedule constant --steps 300 --save-every 1 --zero 2 --out wild
check what_was_saved_before_is_whole "$tide" --model wild --steps 0 --out wild_copy
# One rank comes to a damaged place of the data, and the others wait for it.
"$tokenize" --tokenizer bytes --out tok text.txt >/dev/null 2>&1
(head -c 3024 tok_train_000000.bin; printf '\377\377'; tail -c +3027 tok_train_000000.bin) >late.bin
for s in 2 $(whole && echo 3); do
    refuses late_token_in_stage_$s 2 'late.bin' "$launch" 2 "$tide" $small --batch 1 --lr 3e-3 \
        --data late.bin --tokenizer bytes --steps 300 --save-every 1 --zero $s --out late_$s
    check late_token_in_stage_${s}_leaves_what_was_saved "$tide" --model late_$s --steps 0 \
        --out late_copy_$s
done
echo "took $(($(date +%s) - start)) s"
