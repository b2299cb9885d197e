#!/bin/sh
# Importance-aware updates as a user meets them: settings that are plain AdamW have its bits, a run
# that is stopped is saved at the end of a window and goes on with the same ones, other modes go on
# from it. With models of a few thousand parameters, in a temporary directory. (Damage of a checkpoint:
# test_checkpoint_ranks.c; kills: test_lost.sh.)
# usage: sh dev/test/cli/test_cli_zen.sh      (from the top of the repository, after make)
set -u
. dev/test/cli.sh
TIDE_GPU=train_gpt2 begin cli_zen

shape="--layers 2 --heads 2 --channels 32 --context 16 --vocab 300 --batch 2"
tiny="--data text.txt $shape --lr 3e-3 --schedule linear --eval-every 0 --"
all="--steps 14 --save-every 1 --keep 99 --"
# steps 1 to 3 are a warm-up, 4-6, 7-9, 10-12 and 13-15 are windows; selections after 3, 9 and 15
zen="--offload zenflow --zen-topk 0.2 --zen-window 3 --zen-reselect 2 --zen-warmup 3 --"

train() { trained=$1; shift; go "$trained" "$cpu" $tiny "$@"; }

# --- a run -------------------------------------------------------------------------------------

train none $all --offload none
train fixed $all $zen --eval-every 4 --eval-batches 2
train warm $all $zen --zen-warmup auto --warmup 6
arrive
check loss_falls true_that "$(field fixed 14 loss) < $(field fixed 1 loss)"
check the_weights_are_others differ fixed none
saved() { [ "$(steps_of "$1" | tr '\n' ' ')" = "$2 " ]; }
check saves_wait_for_the_end_of_a_window saved fixed '3 6 9 12 14'
check saves_wait_for_the_first_scores_only saved warm '1 2 3 6 9 12 14'
"$cpu" $tiny --steps 14 --save-every 4 --keep 99 $zen --out rarely >rarely.out
check a_save_is_put_off_not_lost saved rarely '6 9 12 14'

# The plan is what the process then uses, within 10 %. Buffers are large here, as in real runs.
"$cpu" --data text.txt --layers 4 --heads 4 --channels 256 --context 128 --batch 8 --steps 2 \
    --eval-every 0 --offload zenflow --no-save --out memory >memory.out
as_planned memory_is_as_planned memory.out 0.1

# --- stopped and resumed, anywhere -------------------------------------------------------------

# with an update that is late, and after a selection
for step in $(steps_of fixed | sed -n '2p;3p'); do
    at resumed fixed $step "$cpu" --steps 14
    same resumed_after_step_$step resumed fixed
done
# What is in an open window when training ends is dropped, as in the weights: it goes on all the same.
at further fixed 14 "$cpu" --steps 20
check fixed_goes_on_after_its_end test "$(kept further 20 | sed -n "s/^zen.rest_t //p")" -eq 8

# A signal in an evaluation, behind the first step of a window: the window is finished, and saved.
for i in 1 2 3 4 5 6 7 8 9; do cat text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt; done >long.txt
"$cpu" --data long.txt --layers 2 --heads 2 --channels 64 --context 64 --batch 4 --steps 12 --offload zenflow \
    --zen-window 4 --zen-warmup 1 --eval-every 6 --eval-batches 500 --save-every 0 --out evaluated >evaluated.out 2>&1 &
while kill -0 $! 2>/dev/null && ! grep -qs '^step 6/' evaluated.out; do sleep 0.02; done
kill -TERM $!
wait $!
check an_evaluation_in_a_window_ends_with_it test "$(ls evaluated/checkpoints)" = step_00000009

# --- other modes go on, and it goes on from theirs ------------------------------------------------

at left fixed 6 "$cpu" --steps 14 --offload none
check it_has_no_columns_any_more sh -c '! grep "^optimizer\|^zen" "$1"' - "$(state left 14).txt"
# Plain AdamW goes on as plain AdamW with it: every step a window that shows at once.
at entered none 9 "$cpu" --steps 14 $zen --zen-window 1 --zen-overlap off
check what_is_adamw_is_entered same_weights entered none
