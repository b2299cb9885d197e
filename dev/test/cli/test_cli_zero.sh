#!/bin/sh
# Several GPUs as a user meets them: ranks that scripts/launch.sh starts train as one process does; a run
# goes on with more or fewer ranks; a rank that dies, a signal and a mistake on one of them end all, with a
# clear line. The bits and bytes of all stages and placements: test_zero_gpu.cu; words and refusals: lines.table.
# usage: sh dev/test/cli/test_cli_zero.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/timeline; TIDE_GPU=./train_gpt2cu where there
#        are four GPUs; ALL=1: with more placements, numbers of ranks and ends)
set -u
. dev/test/cli.sh
begin cli_zero "$(pwd)/build/timeline"
enough_gpus 4 || { echo "skip cli_zero: fewer than four GPUs"; exit 0; }

# Shrunk from OPT-350M, whose bits on ranks no row of runs.cuh has.
small="--layers 3 --heads 2 --channels 32 --context 16 --vocab 300 --model opt-350m"
tiny="--data text.txt $small --batch 1 --lr 3e-3 --"
steps="--steps 4 --save-every 2 --eval-every 2 --eval-batches 3 --"
# train RANKS NAME OPTION...: with 0 ranks, without a launcher; resume RANKS NAME OPTION...
train() {
    world=$1 trained=$2
    shift 2
    if [ "$world" = 0 ]; then go "$trained" "$tide" $tiny "$@"; else go "$trained" ranks "$world" $tiny "$@"; fi
}
resume() {
    world=$1 trained=$2
    shift 2
    ranks "$world" --resume --out "$trained" "$@" >"$trained.out" 2>"$trained.err"
}

# --- each stage gives the same numbers and files -------------------------------------------------

export EMU_PEER_SECONDS=300
train 2 s1 $steps --zero 1 --offload none --recompute none
without_measuring  # that no host reads GPU memory was seen
train 2 s3 $steps --zero 3 --offload interleave --share 0.5 --slots 2 --weights host --no-overlap \
    --sample-every 1 --sample-tokens 3 --trace trace.json
# a token's gradient is too large for fp16's first scale: all ranks skip the same steps
if whole; then
    head -c 999 /dev/zero | tr '\0' a >same.txt
    one="--model nano --precision fp16 --data same.txt --batch 1 --seq 1 --steps 6 --save-every 3 --"
    train 2 f16_s1 $one --zero 1 --offload none
    train 2 f16_s3 $one --zero 3 --offload interleave --share 0.5
    arrive
    same f16_s3_has_the_bits_of_f16_s1 f16_s3 f16_s1
    check ranks_skip_what_overflows grep -q '"skipped":true,"loss_scale":65536' f16_s3/log.jsonl
fi
arrive
same s3_on_two_ranks_has_the_bits_of_stage_1 s3 s1
check only_one_rank_speaks test "$(grep -c '^step 4/4\|^model: \|^ranks: 2' s3.out)" -eq 3
check the_others_are_silent test ! -s s3.err
check trace_is_json "$top/build/timeline" trace.json -o trace.svg
check gradients_end_in_the_trace gradients_end trace.json
for name in reduce gather; do
    check trace_has_$name grep -q "\"ph\":\"X\".*\"name\":\"$name\",\"tid\":8," trace.json
done
for f in config.json loss.svg vocab.json merges.txt; do check ranks_leave_$f test -s s3/$f; done
check ranks_leave_no_rubbish sh -c '! ls s3/checkpoints | grep -q tmp'

# --- memory --------------------------------------------------------------------------------------

if [ -n "$emulated" ]; then  # ranks with different memory gather in one order
    printf '#!/bin/sh\nexport EMU_MEM_MB=16384\n[ "$RANK" = 0 ] && export EMU_MEM_MB=298\n%s\n' \
        "exec $tide \"\$@\"" >uneven
    chmod +x uneven
    check ranks_with_different_memory "$launch" 2 ./uneven --data text.txt --layers 8 --heads 4 \
        --channels 128 --context 64 --vocab 300 --batch 1 --steps 3 --zero 3 --offload zero \
        --weights host --recompute none --out uneven.out
    # NCCL takes its buffers before the plan is made: with ZenFlow those of reduce, broadcast
    # and gather. The limit that the plan names has a hundredth less than is free.
    limit() { EMU_MEM_MB=1000 EMU_NCCL_MB=$1 ranks 2 $tiny --steps 1 --no-save --offload zenflow 2>&1 |
        sed -n 's/^GPU  *total .* of \([0-9.]*\) MiB$/\1/p'; }
    check the_plan_sees_what_nccl_took true_that "(($(limit 0) - $(limit 50)) / (50 * 3 * 0.99) - 1) ^ 2 < 1e-4"
fi
as_planned memory_is_as_planned s3.out
EMU_DEVICES=0 "$tide" $tiny $steps --zero 3 --offload interleave --share 0.5 --slots 2 --weights host --no-overlap \
    --sample-every 1 --sample-tokens 3 --plan --world 2 --rates rates.txt --out planned >plan.out 2>plan.err
plan_says plan_says_what_is_said plan.out s3.out

# --zero auto: 3 where 2 does not fit on one of the ranks
deep="--layers 12 --steps 3 --eval-every 0 --save-every 0 --"
stage_needs() {  # the least of GPU memory, in KiB
    EMU_DEVICES=0 "$tide" $tiny $deep --plan --world 2 --zero "$1" --gpu-memory 1M --rates rates.txt \
        2>&1 | sed -n 's/.* needs \([0-9.]*\) MiB of GPU.*/\1/p' | awk '{ print int(1024 * $1) }'
}
cap=$((($(stage_needs 2) + $(stage_needs 3)) / 2))K
# of rank 1 alone
"$launch" 2 sh -c '[ "$RANK" = 0 ] || memory="--gpu-memory $1"; shift; exec "$@" $memory' \
    - "$cap" "$tide" $tiny $deep --rates rates.txt --out stage_3 >stage_3.out 2>stage_3.err
check auto_takes_3_where_one_rank_must grep -q '^--zero auto takes ZeRO-3' stage_3.out

# --- going on ------------------------------------------------------------------------------------

stay="--warmup 0 --schedule constant --save-every 1 --keep 99 --eval-every 0 --"
train 2 whole $stay --steps 4 --accum 3 --zero 1 --offload none
train 2 moved $stay --steps 2 --accum 3 --zero 3 --offload interleave --share 0.5
train 4 whole_fp32 $stay --steps 6 --accum 3 --precision fp32 --zero 2 --offload none
train 4 other_fp32 $stay --steps 2 --accum 3 --precision fp32 --zero 3 --offload zero
arrive
resume 2 moved --steps 3 --zero 1 --offload twinflow --resident 0.5
resume 2 moved --steps 4 --zero 2 --offload none
same resumed_in_every_stage_it_has_the_bits_of_one moved whole
resume 2 other_fp32 --steps 4 --zero 2 --offload none
resume 1 other_fp32 --steps 5 --offload interleave --share 0.5
resume 3 other_fp32 --steps 6 --zero 1 --offload zero
near from_four_to_two_to_one_to_three_ranks other_fp32 whole_fp32 1e-6

# --- ZenFlow on several ranks --------------------------------------------------------------------

# Fewer or more ranks select the same columns.
zen="--offload zenflow --zen-window 3 --zen-reselect 1 --steps 8 --save-every 4 --keep 9"
zen="$zen --eval-every 3 --"
zen32="$zen --precision fp32"
late="$zen32 --zen-window 2 --zen-reselect 9"  # one selection: all later windows are late
train 0 zen_late_one $late --accum 4
train 2 zen_late_two $late --accum 2
go zen_late_prio env EMU_SCHED=prio:1 "$launch" 2 "$tide" $tiny $late --accum 2
train 0 zen_one $zen32 --accum 12
train 2 zen_two $zen32 --accum 6 --zero 1
arrive
near zenflow_late_on_two_ranks_trains_as_on_one zen_late_two zen_late_one 1e-6
same zenflow_late_has_the_bits_under_another_schedule zen_late_prio zen_late_two
# chosen RUN: the columns of its last checkpoint
chosen() { grep '^zen.columns' "$(state "$1" 8).txt"; }
chosen zen_one >one.txt
check columns_were_selected test "$(wc -w <one.txt)" -gt 20
near zenflow_on_two_ranks_trains_as_on_one zen_two zen_one 1e-6
chosen zen_two >some.txt
check two_ranks_select_the_columns_of_one cmp some.txt one.txt
# Between two windows only the chosen columns' weights are gathered.
for step in 3 5 6; do
    check "zenflow_gathers_chosen_columns_in_step_$step" test \
        $((10 * $(field zen_two $step gathered_bytes))) -lt $((4 * $(field zen_two 4 gathered_bytes)))
done
if whole; then
    train 0 auto_one $zen32 --accum 4 --zen-window auto
    train 2 auto_two $zen32 --accum 2 --zen-window auto
    arrive
    near zenflow_by_its_gradients_on_two_ranks_trains_as_on_one auto_two auto_one 1e-6
fi
at zen_again zen_two 4 ranks 2 --zero 2
same zenflow_goes_on_with_the_same_bits zen_again zen_two
at zen_more zen_two 4 ranks 3
near zenflow_goes_on_with_more_ranks zen_more zen_two 1e-6

# --- ends ----------------------------------------------------------------------------------------

# Each rank leaves its process's number: NAME.RANK.pid
with_pid='echo $$ >$RUN.$RANK.pid; exec "$0" "$@"'
# begin_ranks NAME OPTION...: two, in the background; $launcher starts them
begin_ranks() {
    export RUN=$1
    shift
    rm -f "$RUN".*.pid
    "$launch" 2 sh -c "$with_pid" "$tide" "$@" --out "$RUN" >"$RUN.out" 2>"$RUN.err" &
    launcher=$!
}
# so_long NAME: a run of 40 steps or more begins; is_over NAME: it has come to its end
so_long() {
    long="--steps $((40 * times)) --save-every 2 --keep 9999 --eval-every 10 --eval-batches 3 --"
    rm -rf "$1"
}
is_over() { [ -d "$1/checkpoints/$(printf 'step_%08d' $((40 * times)))" ]; }

kill_a_rank() {
    so_long killed
    begin_ranks killed $tiny $long --zero 3 --offload zero
    until_saved $launcher killed
    a_moment
    kill -KILL "$(cat killed.1.pid)"
    before=$(date +%s)
    wait $launcher
    code=$? took=$(($(date +%s) - before))
    for r in 0 1; do kill -0 "$(cat killed.$r.pid)" && echo "rank $r"; done >killed.left
    ! is_over killed
}
check a_rank_was_killed_before_the_end longer kill_a_rank
check its_death_ends_the_run test $code -ne 0 -a $code -ne 127
# (without a word from the other it would end after EMU_PEER_SECONDS)
check it_ends_it_soon test $took -le 100
check it_is_said_in_one_line test "$(sort -u killed.err | cut -c1-21)" = "tide: rank 1 is gone:"
check it_leaves_no_process test ! -s killed.left  # (the bits: test_lost.sh)

# A signal to one rank, not the one that writes. (To the launcher: test_launch.sh)
signal_a_rank() {
    so_long term
    begin_ranks term $tiny $long --zero 2 --offload zero
    until_saved $launcher term
    kill -TERM "$(cat term.1.pid)"
    wait $launcher
    code=$?
    stopped=$(members term loss | wc -l)
    ! is_over term
}
check sigterm_stops_early longer signal_a_rank
check sigterm_to_one_rank_ends_well test $code -eq 143 -a ! -s term.err
check sigterm_saves test "$(newest term)" = "term/checkpoints/$(printf 'step_%08d' "$stopped")"
check sigterm_says_how_to_go_on grep -q "signal 15 after step $stopped; continue with" term.out

# --- mistakes: all ranks say the same, or one says it for all ------------------------------------

other='[ $RANK = 0 ] || set -- "$@" --lr 1e-3; exec "$0" "$@"'
refuses other_options 2 'lr' "$launch" 2 sh -c "$other" "$tide" $tiny --out mistake
mkdir -p own.0 own.1
cp text.txt own.0
head -c 3000 text.txt >own.1/text.txt
refuses other_data 2 'data' "$launch" 2 sh -c 'cd own.$RANK; exec "$0" "$@"' "$tide" $tiny \
    --steps 2 --out "$work/mistake"
refuses other_out 2 'out' "$launch" 2 sh -c 'exec "$0" "$@" --out mistake.$RANK' "$tide" $tiny
check mistakes_leave_nothing sh -c '! ls -d mistake* 2>/dev/null | grep .'

# A token outside the vocabulary is in the data that one of the ranks reads.
head -c 1200 text.txt >short.txt
"$top/build/tokenize" --tokenizer bytes --out good short.txt >tokenize.out 2>&1
good=good_train_000000.bin
(head -c 2224 $good; printf '\377\377'; tail -c +2227 $good) >bad.bin
EMU_PEER_SECONDS=20 refuses damaged_data_of_one_rank 2 'bad.bin.*token' ranks 2 --data bad.bin $small --batch 1 \
    --steps 99 --save-every 0 --out damaged
check damaged_data_are_not_saved test ! -e damaged/model.safetensors
