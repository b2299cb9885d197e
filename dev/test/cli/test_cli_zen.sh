#!/bin/sh
# Importance-aware updates as a user meets them: settings that are plain AdamW have its bits, a run
# that is stopped is saved at the end of a window and goes on with the same ones, other modes go on
# from it, and mistakes are one line. With models of a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_cli_zen.sh      (from the top of the repository, after make; ALL=1: with
#        every step to resume after, and every damage)
set -u
absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
cpu=$(absolute "${TIDE_CPU:-train_gpt2}")
tokenize=$(absolute "${TOKENIZE:-build/tokenize}")
for program in "$cpu" "$tokenize"; do
    [ -x "$program" ] || { echo "skip cli_zen: $program is missing"; exit 0; }
done
cores=$(nproc 2>/dev/null || echo 2)  # (before the next line: nproc minds it)
export OMP_NUM_THREADS=1 EMU_THREADS=1
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
. dev/test/cli.sh
cat LICENSE LICENSE LICENSE >"$work/text.txt"
cd "$work" || exit 1

shape="--layers 2 --heads 2 --channels 32 --context 16 --vocab 300 --batch 2"
tiny="--data text.txt $shape --lr 3e-3 --schedule linear --eval-every 0 --"
all="--steps 14 --save-every 1 --keep 99 --"
# steps 1 to 3 are a warm-up, 4-6, 7-9, 10-12 and 13-15 are windows; selections after 3, 9 and 15
zen="--offload zenflow --zen-topk 0.2 --zen-window 3 --zen-reselect 2 --zen-warmup 3 --"

# go PROGRAM NAME OPTION...: a run in the background, as many at a time as there are cores
going=
go() {
    program=$1 to=$2
    shift 2
    "$program" $tiny "$@" --out "$to" >"$to.out" 2>"$to.err" &
    going="$going $!"
    [ "$(echo "$going" | wc -w)" -lt "$cores" ] || arrive
}
arrive() { for pid in $going; do wait "$pid"; done; going=; }
state() { printf '%s/checkpoints/step_%08d/state' "$1" "$2"; }  # RUN STEP
said() { grep '^optimizer\|^zen' "$(state "$1" "$2").txt"; }
# All losses, norms and evaluations, with all digits
losses() { sed -n 's/\("grad_norm":[^,]*\|"val_loss":[^}]*\).*/\1/p' "$1/log.jsonl"; }
# same NAME RUN REFERENCE: losses, weights, and every checkpoint that both have;
# like NAME RUN REFERENCE: losses and weights
like() { same "$1" "$2" "$3" ""; }
same() {
    losses "$2" >a.txt
    losses "$3" >b.txt
    why=
    cmp -s a.txt b.txt && [ -s a.txt ] || why="losses: $(diff a.txt b.txt | tr '\n' ' ')"
    cmp -s "$2/model.safetensors" "$3/model.safetensors" || why="$why weights"
    states=0
    for s in ${4-$(steps_of "$2")}; do
        [ -f "$(state "$3" $s).txt" ] || continue
        states=$((states + 1))
        cmp -s "$(state "$2" $s).safetensors" "$(state "$3" $s).safetensors" || why="$why state $s"
        [ "$(said "$2" $s)" = "$(said "$3" $s)" ] || why="$why columns $s"
    done
    [ $states -gt 0 ] || [ -z "${4-all}" ] || why="$why no state"
    if [ -z "$why" ]; then echo "ok $1"; else fail "$1" "differs: $why $(cat "$2.err" 2>&1)"; fi
}
# steps_of RUN: of which it has checkpoints
steps_of() { (cd "$1/checkpoints" && ls -d step_* | sed 's/^step_0*//'); }
differ() { ! cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
# copy RUN COPY STEP: a run as it was after STEP steps, without the weights
copy() {
    rm -rf "$2"
    mkdir -p "$2/checkpoints"
    cp -r "$(dirname "$(state "$1" "$3")")" "$2/checkpoints"
    cp "$1/log.jsonl" "$1/config.json" "$1/vocab.json" "$1/merges.txt" "$2"
}
# at PROGRAM RUN COPY STEP STEPS OPTION...: the copy goes on
at() {
    program=$1 to=$3 steps=$5
    copy "$2" "$3" "$4"
    shift 5
    "$program" --resume --out "$to" --steps "$steps" -- "$@" >"$to.out" 2>"$to.err"
}

# --- a run -------------------------------------------------------------------------------------

go "$cpu" none $all --offload none
go "$cpu" auto $all
go "$cpu" fixed $all $zen --eval-every 4 --eval-batches 2
go "$cpu" follow $all --offload zenflow --zen-topk 0.3 --zen-window auto --zen-reselect 1 \
    --zen-warmup 2
go "$cpu" at_once $all --offload zenflow --zen-topk 0.5 --zen-window 4 --zen-reselect 1 \
    --zen-overlap off
go "$cpu" once $all --offload zenflow --zen-window 5 --zen-reselect 0 --accum 2
go "$cpu" threads $all $zen --eval-every 4 --eval-batches 2 --threads 3
go "$cpu" clipped $all $zen --clip 0.1
# These are AdamW: every step a window that shows at once; all columns chosen; only a warm-up.
go "$cpu" adamw_window $all $zen --zen-window 1 --zen-overlap off
go "$cpu" adamw_all $all $zen --zen-topk 1
go "$cpu" adamw_none $all $zen --zen-topk 0 --zen-window 1 --zen-overlap off
go "$cpu" adamw_warm $all $zen --zen-warmup 99
go "$cpu" warm $all $zen --zen-warmup auto --warmup 6
arrive
for f in model.safetensors config.json log.jsonl loss.svg vocab.json merges.txt; do
    check fixed_leaves_$f test -s fixed/$f
done
check log_has_every_step test "$(grep -c '"loss"' fixed/log.jsonl)" -eq 14
check log_has_evaluations test "$(grep -c '"val_loss"' fixed/log.jsonl)" -eq 4
check loss_falls awk "BEGIN { exit !($(sed -n 's/.*"step":14,"loss":\([0-9.]*\).*/\1/p' \
    fixed/log.jsonl) < $(sed -n 's/.*"step":1,"loss":\([0-9.]*\).*/\1/p' fixed/log.jsonl)) }"
same auto_is_none auto none
same thread_count_keeps_the_bits threads fixed
for run in adamw_window adamw_all adamw_none adamw_warm; do
    like ${run}_has_the_bits_of_adamw $run none ""
done
for run in fixed follow at_once once clipped warm; do check ${run}_has_not differ $run none; done
check clip_is_used differ clipped fixed
counts() { said "$1" "$2" | sed -n "s/^zen.$3 //p"; }
# is NAME RUN STEP COUNTER NUMBER
is() {
    got=$(counts "$2" "$3" "$4")
    if [ "$got" = "$5" ]; then echo "ok $1"; else fail "$1" "$4 of step $3 is $got, not $5"; fi
}
saved() { [ "$(steps_of "$1" | tr '\n' ' ')" = "$2 " ]; }
check saves_wait_for_the_end_of_a_window saved fixed '3 6 9 12 14'
check the_first_after_it test "$(steps_of at_once | head -n 1)" -eq 1
is the_warm_up_ends_with_a_selection fixed 3 selections 1
is no_window_of_the_warm_up_is_counted fixed 3 windows 0
is every_warm_step_is_an_update fixed 3 rest_t 3
check saves_wait_for_the_first_scores_only saved warm '1 2 3 6 9 12 14'
is the_warm_up_is_as_long_as_the_rates warm 3 selections 0
is and_no_longer warm 6 selections 1
is the_rest_is_updated fixed 6 rest_t 4
is two_windows_later_there_is_a_selection fixed 9 selections 2
is after_the_first_there_is_none fixed 6 selections 1
is only_one_selection_if_told once 14 selections 1
is a_selection_after_each_window at_once 13 selections 4
check a_selection_changes_columns sh -c '[ "$1" != "$2" ]' - \
    "$(said fixed 6 | grep -A99 columns)" "$(said fixed 9 | grep -A99 columns)"
"$cpu" $tiny --steps 14 --save-every 4 --keep 99 $zen --out rarely >rarely.out
check a_save_is_put_off_not_lost saved rarely '6 9 12 14'

# The plan is what the process then uses, within 10 %. Buffers are large here, as in real runs.
"$cpu" --data text.txt --layers 4 --heads 4 --channels 256 --context 128 --batch 8 --steps 2 \
    --eval-every 0 --offload zenflow --no-save --out memory >memory.out
set -- $(sed -n 's/^memory: at most \([0-9.]*\) MiB, planned \([0-9.]*\) MiB$/\1 \2/p' memory.out)
check memory_is_as_planned awk \
    "BEGIN { exit !(${1:-0} > 0.9 * ${2:-1} && ${1:-0} < 1.1 * ${2:-1}) }"

# --- stopped and resumed, anywhere -------------------------------------------------------------

# with an update that is late, and after a selection
for run in fixed follow at_once once warm; do
    places=$(steps_of $run | sed -n '2p;3p')
    whole && places=$(steps_of $run | sed '$d')
    for step in $places; do
        at "$cpu" $run resumed_$run $step 14
        same ${run}_resumed_after_step_$step resumed_$run $run
    done
done
# What is in an open window when training ends is dropped, as in the weights: it goes on all the same.
at "$cpu" fixed further 14 20
check fixed_goes_on_after_its_end test "$(counts further 20 rest_t)" -eq 8
at "$cpu" fixed resumed 14 14
same fixed_resumed_after_its_last_step resumed fixed

# stopped SIGNAL PROGRAM OPTION...: the run "stopped" is begun or resumed, and stopped after one
# more save; how it ended
stopped() {
    signal=$1 program=$2
    shift 2
    if [ -d stopped ]; then set -- --resume "$@"; else set -- $tiny $long $zen "$@"; fi
    "$program" "$@" --out stopped >stopped.out 2>stopped.err &
    pid=$!
    until_saved $pid stopped
    kill "-$signal" $pid 2>/dev/null
    wait $pid 2>/dev/null
}
stop_and_go_on() {
    long="--steps $((24 * times)) --save-every 1 --keep 9999 --"
    rm -rf stopped
    stopped TERM "$cpu"
    terminated=$?
    cp stopped.out terminated.out
    stopped KILL "$cpu"
    killed=$?
    stopped TERM "$cpu" --threads 2
    stopped KILL "$cpu"
    [ ! -d "stopped/checkpoints/$(printf 'step_%08d' $((24 * times)))" ]
}
check it_was_stopped_before_the_end longer stop_and_go_on
check sigterm_exits_with_143 test $terminated -eq 143
check sigterm_says_how_to_go_on grep -q 'continue with --resume' terminated.out
check it_was_killed test $killed -eq 137
go "$cpu" uninterrupted $long $zen
"$cpu" --resume --out stopped >stopped.out 2>stopped.err
arrive
same stopped_run_has_the_bits_of_a_whole_one stopped uninterrupted

# A damaged token: what was trained before it is saved, as if the run had ended there.
# A signal in an evaluation, behind the first step of a window: the window is finished, and saved.
for i in 1 2 3 4 5 6 7 8 9; do cat text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt; done >long.txt
"$cpu" --data long.txt --layers 2 --heads 2 --channels 64 --context 64 --batch 4 --steps 12 --offload zenflow \
    --zen-window 4 --zen-warmup 1 --eval-every 6 --eval-batches 500 --save-every 0 --out evaluated >evaluated.out 2>&1 &
while kill -0 $! 2>/dev/null && ! grep -q '^step 6/' evaluated.out; do sleep 0.02; done
kill -TERM $!
wait $!
check an_evaluation_in_a_window_ends_with_it test "$(ls evaluated/checkpoints)" = step_00000009
head -c 1200 text.txt >short.txt
"$tokenize" --tokenizer bytes --out good short.txt >/dev/null 2>&1
good=good_train_000000.bin
(head -c 2224 $good; printf '\377\377'; tail -c +2227 $good) >bad.bin
late="$shape --tokenizer bytes --schedule constant --warmup 0 --eval-every 0 $zen --zen-window 4 --"
refuses late_token 2 'bad.bin' "$cpu" $late --data bad.bin --steps 99 --out late
until_then=$(grep -c '"loss"' late/log.jsonl)
"$cpu" $late --data $good --steps "$until_then" --out early >/dev/null
check some_steps_were_before_it test "$until_then" -gt 4
check what_was_trained_before_it_is_saved cmp late/model.safetensors early/model.safetensors
check and_its_columns_too test "$(said late "$until_then")" = "$(said early "$until_then")"

# --- other modes go on, and it goes on from theirs ------------------------------------------------

# leave NAME STEP: the run "fixed" goes on without it
leave() {
    at "$cpu" fixed "$1" "$2" 14 --offload none
    check "$1_goes_on" test -s "$1/model.safetensors"
    check "$1_says_nothing" test ! -s "$1.err"
    check "$1_is_another_run" differ "$1" fixed
    check "$1_has_no_columns_any_more" test -z "$(said "$1" 14)"
}
leave leave_warm 3
leave leave_late 6
at "$cpu" fixed leave_auto 6 14 --offload auto
same auto_leaves_as_none_does leave_auto leave_late
at "$cpu" leave_late left 9 14
same what_has_left_stays_so left leave_late
check and_says_nothing sh -c '! grep -q zenflow left.out'
# What is plain AdamW with it goes on as plain AdamW without, and the other way round.
for run in adamw_window adamw_all adamw_none; do
    for step in 9; do
        at "$cpu" $run left $step 14 --offload none
        like ${run}_leaves_after_step_$step left none
        case $run in
            adamw_window) ways="$zen --zen-window 1 --zen-overlap off" ;;
            adamw_all) ways="$zen --zen-topk 1" ;;
            adamw_none) ways="$zen --zen-window 1 --zen-overlap off --zen-topk 0" ;;
        esac
        at "$cpu" none entered $step 14 $ways
        like ${run}_is_entered_after_step_$step entered none
    done
done
is what_is_entered_counts_on entered 14 rest_t 14
is and_warms_up_first entered 14 warm 3
at "$cpu" none entered 5 14 $zen
is entered_it_selects entered 8 selections 1
at "$cpu" entered again 11 14
same entered_it_resumes again entered
at "$cpu" leave_late back 10 14 --offload zenflow
check back_again_with_the_old_settings grep -q '^--zen-window 3$' "$(state back 14).txt"
at "$cpu" leave_late back 10 14 --offload zenflow --zen-window 2 --zen-topk 0.4
check back_again_with_others test "$(grep -c '^--zen-topk 0.4$\|^--zen-window 2$' \
    "$(state back 14).txt")" -eq 2
is back_again_it_warms_up back 13 warm 3

# Evaluated and sampled is what is saved for others: the newest weights.
"$cpu" --model fixed --steps 0 --data text.txt --batch 2 --eval-batches 2 | grep '^val' >a.txt
"$cpu" --resume --out fixed --steps 0 --eval-batches 2 | grep '^val' >b.txt
check what_is_resumed_is_evaluated sh -c 'test -s a.txt && cmp a.txt b.txt'
"$cpu" --model fixed --steps 0 --prompt The --sample-tokens 9 >a.txt
"$cpu" --resume --out fixed --steps 0 --prompt The --sample-tokens 9 >b.txt
check what_is_resumed_is_sampled cmp a.txt b.txt
more="--model fixed --data text.txt --batch 2 --steps 2 --"
check what_it_left_is_fine_tuned "$cpu" $more --out tuned
check and_with_it_too "$cpu" $more --offload zenflow --out tuned_zen

# --- damage --------------------------------------------------------------------------------------

damage() {  # NAME FILE COMMAND...: of a checkpoint with an update that is late
    name=$1 file=$2
    shift 2
    copy fixed damaged 6
    "$@" <"$(state fixed 6).$file" >"$(state damaged 6).$file"
    check "${name}_is_damage" sh -c '! cmp -s "$@"' - "$(state fixed 6).$file" \
        "$(state damaged 6).$file"
    "$cpu" --resume --out damaged >damaged.out 2>damaged.err
    check "${name}_is_found" test $? -eq 2
    check "${name}_is_said" grep -q 'step_00000006 is damaged (' damaged.err
    check "${name}_leaves_no_way" grep -q 'no whole checkpoint in damaged/' damaged.err
    check "${name}_is_so_without_it" sh -c '"$1" --resume --out damaged --offload none 2>&1 |
        grep -q "is damaged ("' - "$cpu"
}
damage another_column txt sed 's/^zen.columns [0-9]*/zen.columns 31/'
if whole; then
    damage another_count txt sed 's/^zen.windows 1/zen.windows 0/'
    damage columns_that_were_cut_off txt sed 's/^zen.columns.*/zen.columns/'
fi
damage a_sum_that_was_altered safetensors sh -c \
    'n=$(($(wc -c <"$1") * 7 / 10)); head -c $n "$1"; printf x; tail -c +$((n + 2)) "$1"' - \
    "$(state fixed 6).safetensors"
damage a_file_that_ends_early safetensors head -c 400000

# --- refusals ------------------------------------------------------------------------------------

for given in "--zen-topk 0.2" "--zen-window 3" "--zen-window auto" "--zen-reselect 2" \
    "--zen-warmup 3" "--zen-overlap off"; do
    refuses "without_it_${given%% *}" 2 "^tide: ${given%% *} needs --offload zenflow$" \
        "$cpu" $tiny $given
    refuses "with_none_${given%% *}" 2 'needs --offload zenflow' "$cpu" $tiny --offload none $given
    refuses "on_resume_${given%% *}" 2 'needs --offload zenflow' "$cpu" --resume --out none $given
    refuses "leaving_${given%% *}" 2 'needs --offload zenflow\|contradicts the checkpoint' "$cpu" \
        --resume --out fixed $given --offload none
    refuses "with_mezo_${given%% *}" 2 'needs --optimizer adamw' "$cpu" $tiny --optimizer mezo \
        $given
    refuses "contradicting_${given%% *}" 2 "^tide: ${given%% *} contradicts the checkpoint" \
        "$cpu" --resume --out once $(echo "$given" | sed 's/p 3$/p 4/')
done
for mode in zero twinflow interleave; do
    refuses "nothing_to_offload_$mode" 2 'CPU trainer has nothing to offload' "$cpu" $tiny \
        --offload $mode
done
refuses no_such_mode 2 'must be one of auto|none|zero|twinflow|interleave|zenflow' "$cpu" $tiny \
    --offload zen
refuses more_than_all 2 'zen-topk 1.5: must be 0 to 1' "$cpu" $tiny $zen --zen-topk 1.5
refuses less_than_nothing 2 'zen-topk -0.1: must be 0 to 1' "$cpu" $tiny $zen --zen-topk -0.1
refuses no_warm_up 2 'zen-warmup 0: must be 1 to' "$cpu" $tiny $zen --zen-warmup 0
refuses no_window 2 'zen-window 0: must be 0.01 to' "$cpu" $tiny $zen --zen-window 0
refuses neither_on_nor_off 2 'zen-overlap.*on|off' "$cpu" $tiny $zen --zen-overlap late
refuses no_number 2 'zen-reselect: "auto" is not' "$cpu" $tiny $zen --zen-reselect auto
refuses no_dump 2 'dump shows the gradient' "$cpu" $tiny $zen --dump d.safetensors
refuses mezo 2 'places the state of AdamW' "$cpu" $tiny --optimizer mezo --offload zenflow
"$cpu" --help >help.txt
for option in topk window reselect warmup overlap; do
    check "help_has_zen_$option" grep -q "^  --zen-$option " help.txt
done
check help_has_zenflow grep -q -- '--offload auto|none|zero|twinflow|interleave|zenflow' help.txt
