#!/bin/sh
# Importance-aware updates as a user meets them: settings that are plain AdamW have its bits, a run
# that is stopped is saved at the end of a window and goes on with the same ones, other modes go on
# from it. With models of a few thousand parameters, in a temporary directory. (Damage of a checkpoint:
# test_checkpoint_ranks.c; kills: test_lost.sh.)
# usage: sh dev/test/cli/test_cli_zen.sh      (from the top of the repository, after make; ALL=1: with
#        every step to resume after)
set -u
. dev/test/cli.sh
TIDE_GPU=train_gpt2 begin cli_zen "$(pwd)/build/tokenize"

shape="--layers 2 --heads 2 --channels 32 --context 16 --vocab 300 --batch 2"
tiny="--data text.txt $shape --lr 3e-3 --schedule linear --eval-every 0 --"
all="--steps 14 --save-every 1 --keep 99 --"
# steps 1 to 3 are a warm-up, 4-6, 7-9, 10-12 and 13-15 are windows; selections after 3, 9 and 15
zen="--offload zenflow --zen-topk 0.2 --zen-window 3 --zen-reselect 2 --zen-warmup 3 --"

train() { trained=$1; shift; go "$trained" "$cpu" $tiny "$@"; }

# --- a run -------------------------------------------------------------------------------------

train none $all --offload none
train auto $all
train fixed $all $zen --eval-every 4 --eval-batches 2
train at_once $all --offload zenflow --zen-topk 0.5 --zen-window 4 --zen-reselect 1 \
    --zen-overlap off
# This is AdamW: every step a window that shows at once.
train adamw_window $all $zen --zen-window 1 --zen-overlap off
train warm $all $zen --zen-warmup auto --warmup 6
arrive
check loss_falls true_that "$(field fixed 14 loss) < $(field fixed 1 loss)"
same auto_is_none auto none
like adamw_window_has_the_bits_of_adamw adamw_window none
for run in fixed at_once warm; do check ${run}_has_not differ $run none; done
counts() { kept "$1" "$2" | sed -n "s/^zen.$3 //p"; }
# has NAME RUN STEP COUNTER NUMBER
has() {
    got=$(counts "$2" "$3" "$4")
    if [ "$got" = "$5" ]; then echo "ok $1"; else fail "$1" "$4 of step $3 is $got, not $5"; fi
}
saved() { [ "$(steps_of "$1" | tr '\n' ' ')" = "$2 " ]; }
check saves_wait_for_the_end_of_a_window saved fixed '3 6 9 12 14'
check the_first_after_it test "$(steps_of at_once | head -n 1)" -eq 1
has the_warm_up_ends_with_a_selection fixed 3 selections 1
check saves_wait_for_the_first_scores_only saved warm '1 2 3 6 9 12 14'
has the_warm_up_is_as_long_as_the_rates warm 3 selections 0
has and_no_longer warm 6 selections 1
has the_rest_is_updated fixed 6 rest_t 4
has a_selection_after_each_window at_once 13 selections 4
"$cpu" $tiny --steps 14 --save-every 4 --keep 99 $zen --out rarely >rarely.out
check a_save_is_put_off_not_lost saved rarely '6 9 12 14'

# The plan is what the process then uses, within 10 %. Buffers are large here, as in real runs.
"$cpu" --data text.txt --layers 4 --heads 4 --channels 256 --context 128 --batch 8 --steps 2 \
    --eval-every 0 --offload zenflow --no-save --out memory >memory.out
as_planned memory_is_as_planned memory.out 0.1

# --- stopped and resumed, anywhere -------------------------------------------------------------

# with an update that is late, and after a selection
for run in fixed at_once warm; do
    places=$(steps_of $run | sed -n '2p;3p')
    for step in $places; do
        at resumed_$run $run $step "$cpu" --steps 14
        same ${run}_resumed_after_step_$step resumed_$run $run
    done
done
# What is in an open window when training ends is dropped, as in the weights: it goes on all the same.
at further fixed 14 "$cpu" --steps 20
check fixed_goes_on_after_its_end test "$(counts further 20 rest_t)" -eq 8

# A signal in an evaluation, behind the first step of a window: the window is finished, and saved.
for i in 1 2 3 4 5 6 7 8 9; do cat text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt; done >long.txt
"$cpu" --data long.txt --layers 2 --heads 2 --channels 64 --context 64 --batch 4 --steps 12 --offload zenflow \
    --zen-window 4 --zen-warmup 1 --eval-every 6 --eval-batches 500 --save-every 0 --out evaluated >evaluated.out 2>&1 &
while kill -0 $! 2>/dev/null && ! grep -q '^step 6/' evaluated.out; do sleep 0.02; done
kill -TERM $!
wait $!
check an_evaluation_in_a_window_ends_with_it test "$(ls evaluated/checkpoints)" = step_00000009
late_token "$cpu" $shape --tokenizer bytes --schedule constant --warmup 0 --eval-every 0 $zen --zen-window 4 --
check that_was_after_the_warm_up test "$until_then" -gt 4
check and_its_columns_too test "$(kept late "$until_then")" = "$(kept early "$until_then")"

# --- other modes go on, and it goes on from theirs ------------------------------------------------

at left fixed 6 "$cpu" --steps 14 --offload none
check it_is_left differ left fixed
check and_nothing_is_said test ! -s left.err
check it_has_no_columns_any_more sh -c '! grep "^optimizer\|^zen" "$1"' - "$(state left 14).txt"
at left_auto fixed 6 "$cpu" --steps 14 --offload auto
same auto_leaves_as_none_does left_auto left
at stayed left 14 "$cpu" --steps 16
check what_has_left_stays_so sh -c '! grep -q zenflow stayed.out'
# What is plain AdamW with it goes on as plain AdamW without, and the other way round.
at left_adamw adamw_window 9 "$cpu" --steps 14 --offload none
like what_is_adamw_leaves left_adamw none
at entered none 9 "$cpu" --steps 14 $zen --zen-window 1 --zen-overlap off
like what_is_adamw_is_entered entered none
has what_is_entered_counts_on entered 14 rest_t 14
has and_warms_up_first entered 14 warm 3
at entered none 5 "$cpu" --steps 14 $zen
has entered_it_selects entered 8 selections 1
at back left 14 "$cpu" --steps 16 --offload zenflow --zen-topk 0.4
check back_again_with_old_settings_and_others test "$(grep -c '^--zen-topk 0.4$\|^--zen-window 3$' \
    "$(state back 16).txt")" -eq 2

# Evaluated is what is saved for others: the newest weights.
"$cpu" --model fixed --steps 0 --data text.txt --batch 2 --eval-batches 2 | grep '^val' >a.txt
"$cpu" --resume --out fixed --steps 0 --eval-batches 2 | grep '^val' >b.txt
check what_is_resumed_is_evaluated sh -c 'test -s a.txt && cmp a.txt b.txt'
more="--model fixed --data text.txt --batch 2 --steps 2 --"
check what_it_left_is_fine_tuned "$cpu" $more --out tuned
check and_with_it_too "$cpu" $more --offload zenflow --out tuned_zen
