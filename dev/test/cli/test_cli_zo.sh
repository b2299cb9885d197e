#!/bin/sh
# Zeroth-order training as a user meets it: the same bits wherever the layers are and however often
# a run is stopped and on however many GPUs, a task that is learned
# without a network, plans that are below what others have published, and mistakes in one line.
# With models of a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_cli_zo.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/timeline build/tokenize build/reviews;
#        TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: with more placements, ranks and stops)
set -u
absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
tide=$(absolute "${TIDE_GPU:-train_gpt2emu}")
cpu=$(absolute "${TIDE_CPU:-train_gpt2}")
timeline=$(absolute "${TIMELINE:-build/timeline}")
tokenize=$(absolute "${TOKENIZE:-build/tokenize}")
reviews=$(absolute "${REVIEWS:-build/reviews}")
launch=$(absolute scripts/launch.sh) top=$(pwd)
for program in "$tide" "$cpu" "$timeline" "$tokenize" "$reviews"; do
    [ -x "$program" ] || { echo "skip cli_zo: $program is missing"; exit 0; }
done
cores=$(nproc 2>/dev/null || echo 2)  # (before the next line: nproc minds it)
export OMP_NUM_THREADS=1 EMU_THREADS=1
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
. dev/test/cli.sh
cat LICENSE LICENSE LICENSE >"$work/text.txt"
cp scripts/rates/rtx4090_desktop.txt "$work"
cd "$work" || exit 1

shape="--layers 3 --heads 2 --channels 32 --context 16 --vocab 300"
mezo="--data text.txt --batch 2 --optimizer mezo --lr 3e-3 --weight-decay 0.1 --schedule linear"
mezo="$mezo --warmup 1 --eval-every 0"
tiny="$shape $mezo --"
six="--steps 6 --save-every 2 --keep 9 --"
L=13312  # elements of a layer, with the gaps between its tensors

# go NAME OPTION...: a run in the background, as many at a time as there are cores
going=
go() {
    run=$1
    shift
    "$tide" $tiny "$@" --out "$run" >"$run.out" 2>"$run.err" &
    going="$going $!"
    [ "$(echo "$going" | wc -w)" -lt "$cores" ] || arrive
}
arrive() { for pid in $going; do wait "$pid"; done; going=; }
state() { printf '%s/checkpoints/step_%08d/state' "$1" "$2"; }  # RUN STEP
# All losses, norms and evaluations, with all digits; and one number: RUN STEP MEMBER
losses() { sed -n 's/\("norm":[^,]*\|"grad_norm":[^,]*\|"val_loss":[^}]*\).*/\1/p' "$1/log.jsonl"; }
field() { sed -n "s/^{\"step\":$2,.*\"$3\":\([-0-9.e+]*\).*/\1/p" "$1/log.jsonl"; }
# same NAME RUN REFERENCE: losses, weights, and the weights of every checkpoint in both;
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
    done
    [ $states -gt 0 ] || [ -z "${4-all}" ] || why="$why no state"
    if [ -z "$why" ]; then echo "ok $1"; else fail "$1" "differs: $why $(cat "$2.err" 2>&1)"; fi
}
# steps_of RUN: of which it has checkpoints
steps_of() { (cd "$1/checkpoints" && ls -d step_* | sed 's/^step_0*//'); }
differ() { ! cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
true_that() { awk "BEGIN { exit !($1) }"; }
# near NAME RUN REFERENCE DISTANCE: the losses of all steps
near() {
    sed -n 's/.*"loss":\([^,]*\).*/\1/p' "$2/log.jsonl" >a.txt
    sed -n 's/.*"loss":\([^,]*\).*/\1/p' "$3/log.jsonl" >b.txt
    check "$1" sh -c "paste a.txt b.txt | awk '{ d = \$1 - \$2; n++
        if (NF < 2 || d > $4 || -d > $4) bad = 1 } END { exit bad || n < 3 }'"
}
# is NAME RUN STEP MEMBER NUMBER
is() {
    got=$(field "$2" "$3" "$4")
    if [ "$got" = "$5" ]; then echo "ok $1"; else fail "$1" "$4 is $got, not $5"; fi
}

# --- a task is learned, without a network --------------------------------------------------------

# (in the background, on one core, while the other one is at what follows)
"$reviews" 15000 1 --text >reviews.txt
"$reviews" 1000 1 >train.tsv
"$reviews" "$(whole && echo 400 || echo 200)" 2 >val.tsv
task="--data train.tsv --val val.tsv --tokenizer bytes --optimizer mezo --zo-eps 1e-2"
task="$task --lr 1e-4 --batch 16 --eval-batches 100 --"
labels='-|+'
# judge PROGRAM OPTION...
judge() {
    program=$1
    shift
    "$program" $task --labels "$labels" --template ' = ' -- "$@"
}
learn() {
    "$cpu" --data reviews.txt --tokenizer bytes --layers 2 --heads 2 --channels 64 --context 88 \
        --batch 4 --steps 900 --lr 4e-3 --eval-every 0 --out judge >judge.out 2>&1
    judge "$cpu" --model judge --steps 0 >zero_shot.out 2>&1
    judge "$cpu" --model judge --steps 250 --eval-every 50 --out tuned >tuned.out 2>&1
}
learn &
learning=$!
cores=$((cores > 1 ? cores - 1 : 1))

# --- wherever the layers are, the bits are the same ----------------------------------------------

go memory $six --trace memory.json
go stream $six --resident-blocks 0 --trace stream.json
without_measuring  # that the host reads no GPU memory was seen
go one_slot $six --resident-blocks 0 --slots 1
go two_slots $six --slots 2 --resident-blocks 1
go no_slots $six --resident-blocks 0 --zo-no-slots
go no_fused $six --resident-blocks 0 --zo-no-fused-update
go nothing $six --resident-blocks 0 --no-overlap --zo-no-slots --zo-no-fused-update --threads 2
between="--steps 4 --save-every 2 --eval-every 2 --eval-batches 2 --sample-every 1"
between="$between --sample-tokens 9 --"
go between_memory $between
go between_stream $between --resident-blocks 0 --slots 2
go fp32_memory $six --precision fp32
go fp32_stream $six --precision fp32 --resident-blocks 0 --slots 2
go fp16_memory $six --precision fp16 --zo-noise rademacher
go fp16_stream $six --precision fp16 --zo-noise rademacher --resident-blocks 0
many="--steps 4 --save-every 2 --zo-queries 3 --accum 2 --"
go many_memory $many
go many_stream $many --resident-blocks 0 --slots 2
if whole; then
    go no_overlap $six --resident-blocks 0 --no-overlap
    go plain_memory $six --zo-no-fused-update
fi
"$cpu" $tiny $six --out on_cpu >on_cpu.out
"$cpu" $tiny $many --out many_cpu >many_cpu.out
# --steps 0 --resume: what the run has come to
"$cpu" --model on_cpu --steps 0 --data text.txt --batch 2 | grep '^val' >a.txt
check what_is_resumed_is_evaluated sh -c '"$1" --resume --out on_cpu --steps 0 |
    grep "^val" | diff - a.txt' - "$cpu"
"$cpu" $tiny $six --zo-noise rademacher --out fp16_cpu >fp16_cpu.out
arrive
for run in stream one_slot two_slots no_slots $(whole && echo no_overlap); do
    same ${run}_has_the_bits_of_memory $run memory
done
for run in no_fused nothing $(whole && echo plain_memory); do
    same ${run}_has_the_bits_of_memory $run memory
done
for run in between fp32 fp16 many; do
    same ${run}_has_the_bits_of_memory ${run}_stream ${run}_memory
done
near fp32_has_the_losses_of_the_cpu fp32_memory on_cpu 1e-4
near bf16_is_near_the_cpu memory on_cpu 0.02
near fp16_is_near_the_cpu fp16_memory fp16_cpu 0.01
near queries_and_micro_batches_are_those_of_the_cpu many_memory many_cpu 0.02
for pair in "memory fp32_memory" "memory many_memory" \
    "fp32_memory fp16_memory"; do check "not_the_same: $pair" differ $pair; done
check samples_and_evaluations_are_made sh -c 'grep -q "^--- sample" between_stream.out &&
    grep -q "\"val_loss\"" between_stream/log.jsonl'
check samples_between_steps_are_the_same sh -c 'for r in memory stream; do
    sed -n "/^--- sample/,/^---$/p" between_$r.out >$r.txt; done; cmp memory.txt stream.txt'
for f in config.json loss.svg vocab.json merges.txt; do
    check stream_leaves_$f test -s stream/$f
done

if grep -q '^device: Emulated' memory.out; then  # with a clock that says the same each time
    for every in 0 1; do
        env -u EMU_SCHED EMU_CLOCK=virtual EMU_LINK=1000000 EMU_KERNEL_US=1000 "$tide" $tiny \
            --steps 4 --no-save --resident-blocks 0 --eval-every $every --out timed_$every >timed_$every.out 2>&1
    done
    check evaluations_are_not_in_the_time_of_steps test "$(field timed_0 3 waited_ms)" = \
        "$(field timed_1 3 waited_ms)" -a -n "$(field timed_0 3 waited_ms)"
fi

# Bytes over the link. A layer comes once per micro-batch, and goes home once per step. (After a
# checkpoint it is updated already.)
check memory_moves_nothing test "$(field memory 5 h2d_bytes)" = 0
check without_a_trace_memory_has_no_counters sh -c '! grep -q zo between_memory/log.jsonl'
is stream_brings_each_layer_once stream 4 h2d_bytes $((3 * 2 * L))
is stream_sends_each_layer_once stream 4 d2h_bytes $((3 * 2 * L))
is resident_blocks_stay two_slots 4 h2d_bytes $((2 * 2 * L))
is fp32_is_twice_as_much fp32_stream 4 d2h_bytes $((3 * 4 * L))
is unfused_brings_them_twice no_fused 4 h2d_bytes $((3 * 2 * 2 * L))
is unfused_sends_them_once no_fused 4 d2h_bytes $((3 * 2 * L))
is queries_share_a_visit many_stream 4 h2d_bytes $((2 * 3 * 2 * L))
check slots_are_said sh -c 'grep -q "3 of 3 layers.* visit 1 slot" one_slot.out &&
    grep -q "2 of 3 layers.* visit 2 slots" two_slots.out'
check memory_says_nothing_of_slots sh -c '! grep -q "slot\|^host" memory.out'
check gpu_memory_is_as_planned sh -c 'for r in memory stream one_slot no_slots nothing; do
    sed -n "s/^GPU memory: \([0-9.]*\) MiB taken, planned \([0-9.]*\) MiB$/\1 \2/p" $r.out |
    awk "{ n++; if (\$1 > 1.03 * \$2 || \$1 < 0.97 * \$2) exit 1 } END { exit n != 1 }" || exit 1
    done'
check trace_is_json "$timeline" stream.json -o stream.svg
check trace_in_memory_is_json "$timeline" memory.json -o memory.svg
check trace_has_copies_and_kernels sh -c 'for n in forward update fetch flush; do
    grep -q "\"name\":\"$n\"" stream.json || exit 1; done'
check trace_in_memory_has_no_copies sh -c '! grep -q "\"name\":\"fetch\"" memory.json'

# --- stopped and resumed, anywhere ---------------------------------------------------------------

# stopped SIGNAL OPTION...: the run "stopped" is begun or resumed, and stopped after one more save;
# how it ended
stopped() {
    signal=$1
    shift
    if [ -d stopped ]; then set -- --resume "$@"; else set -- $tiny $long "$@"; fi
    "$tide" "$@" --out stopped >stopped.out 2>stopped.err &
    pid=$!
    until_saved $pid stopped
    kill "-$signal" $pid 2>/dev/null
    wait $pid 2>/dev/null
}
stop_and_go_on() {
    long="--steps $((24 * times)) --save-every 1 --keep 9999 --"
    rm -rf stopped
    stopped TERM
    terminated=$?
    cp stopped.out terminated.out
    stopped KILL --resident-blocks 0 --slots 2
    killed=$?
    if whole; then
        stopped TERM --slots 1 --resident-blocks 2
        stopped KILL --slots 3 --resident-blocks 0 --no-overlap --zo-no-slots
    fi
    [ ! -d "stopped/checkpoints/$(printf 'step_%08d' $((24 * times)))" ]
}
check it_was_stopped_before_the_end longer stop_and_go_on
check sigterm_exits_with_143 test $terminated -eq 143
check sigterm_says_how_to_go_on grep -q 'continue with --resume' terminated.out
check it_was_killed test $killed -eq 137
go whole $long
"$tide" --resume --out stopped >stopped.out 2>stopped.err
arrive
check resume_keeps_the_placement grep -q '3 of 3 layers' stopped.out
same stopped_run_has_the_bits_of_a_whole_one stopped whole
# at PROGRAM RUN COPY STEP STEPS OPTION...: a copy of the run as it was after STEP steps goes on
at() {
    program=$1 from=$2 to=$3 step=$4 steps=$5
    shift 5
    rm -rf "$to"
    cp -r "$from" "$to"
    rm -r "$to"/checkpoints/* "$to/model.safetensors"
    cp -r "$(dirname "$(state "$from" "$step")")" "$to/checkpoints"
    "$program" --resume --out "$to" --steps "$steps" -- "$@" >"$to.out" 2>"$to.err"
}
at "$cpu" on_cpu cpu_resumed 2 6
same on_the_cpu_too cpu_resumed on_cpu
if whole; then
    at "$tide" many_memory many_resumed 2 4 --resident-blocks 0
    same between_steps_of_many_micro_batches many_resumed many_stream
fi
at "$tide" on_cpu cpu_to_gpu 2 6 --precision fp32 --resident-blocks 0
near gpu_continues_a_run_of_the_cpu cpu_to_gpu on_cpu 1e-4
at "$cpu" fp32_stream gpu_to_cpu 2 6
near cpu_continues_a_run_of_the_gpu gpu_to_cpu on_cpu 1e-4
at "$cpu" stream bf16_to_cpu 2 6
near cpu_continues_a_bf16_run bf16_to_cpu on_cpu 0.02
for given in "--zo-eps 1e-2" "--zo-queries 2" "--zo-noise rademacher" "--optimizer adamw" \
    "--labels a|b" "--seed 3"; do
    refuses "resume_with_another_${given%% *}" 2 'contradicts the checkpoint' \
        "$tide" --resume --out memory --steps 7 $given
done
"$cpu" --data text.txt $shape --batch 2 --steps 1 --eval-every 0 --out adamw >/dev/null
refuses a_run_of_adamw_goes_on_with_it 2 'contradicts.*adamw' "$cpu" --resume --out adamw \
    --steps 2 --optimizer mezo
check a_run_of_adamw_is_fine_tuned "$cpu" --model adamw $mezo --steps 2 --out adamw_mezo
check what_mezo_left_is_trained "$cpu" --model adamw_mezo --data text.txt --batch 2 --steps 1 \
    --eval-every 0 --out mezo_adamw

# Damage is found, and nothing else is loaded in its place.
damage() {  # NAME SED-SCRIPT: of the text of the newest checkpoint
    at true whole damaged 6 0
    sed "$2" "$(state whole 6).txt" >"$(state damaged 6).txt"
    check "${1}_is_damage" sh -c '! cmp -s "$@"' - "$(state whole 6).txt" "$(state damaged 6).txt"
    "$tide" --resume --out damaged >damaged.out 2>damaged.err
    check "${1}_is_found" test $? -eq 2
    check "${1}_is_said" grep -q 'step_00000006 is damaged (state.txt' damaged.err
    check "${1}_leaves_no_way" grep -q 'no whole checkpoint in damaged/' damaged.err
}
damage a_step_that_was_altered '/^step/s/6/5/'
if whole; then damage a_file_that_ends_early '/^config.channels/q'; fi

# Disk full: one line, and what was there stays.
cp -r memory full_disk
(trap '' XFSZ; ulimit -f 40; exec "$tide" --resume --out full_disk --steps 9) >full.out 2>full.err
check disk_full_exits_with_1 test $? -eq 1
check disk_full_is_a_warning test "$(grep -c '^tide: warning: cannot write.*step 6 is whole' full.err)" -eq 1
check disk_full_at_the_end_is_an_error sh -c "tail -n 1 full.err | grep -q '^tide: cannot write.*checkpoints/tmp'"
check disk_full_keeps_the_weights cmp full_disk/model.safetensors memory/model.safetensors
check disk_full_keeps_the_checkpoints diff -r full_disk/checkpoints memory/checkpoints
check after_disk_full_it_goes_on "$tide" --resume --out full_disk --steps 7

# --- losses that are no number -------------------------------------------------------------------

wild="--schedule constant --lr 900 --weight-decay 0 --save-every 1 --keep 99 --steps 30 --"
for options in "wild_memory --zo-eps 1" "wild_stream --zo-eps 1 --resident-blocks 0" \
    "wild_half --precision fp16 --zo-eps 1 --resident-blocks 0"; do
    run=${options%% *}
    whole || [ $run != wild_half ] || continue
    refuses "${run}_ends" 1 '10 steps in a row' "$tide" $tiny $wild --out $options
    check "${run}_says_what_it_skips" grep -q '^step .*skipped' refuses.out
    check "${run}_logs_it" grep -q '"step":[0-9]*,"skipped":true}' "$run/log.jsonl"
    check "${run}_saved_weights_that_are_numbers" sh -c "od -An -v -tx4 $run/model.safetensors |
        awk '{ for (i = 1; i <= NF; i++) if (\$i ~ /^[7f]f[89a-f]/) bad = 1 } END { exit bad }'"
    check "${run}_can_be_resumed_before_it" at "$cpu" "$run" "${run}_again" 1 2 --lr 0
done
check streamed_it_skips_the_same sh -c 'grep skipped wild_memory/log.jsonl >a.txt
    grep skipped wild_stream/log.jsonl | diff - a.txt'
# A damaged token, met in the second micro-batch of a step: what was trained before it is saved, as
# if the run had ended there.
head -c 1200 text.txt >short.txt
"$tokenize" --tokenizer bytes --out good short.txt >/dev/null 2>&1
good=good_train_000000.bin
(head -c 2224 $good; printf '\377\377'; tail -c +2227 $good) >bad.bin
late="--layers 1 --heads 2 --channels 32 --context 16 --batch 1 --accum 2 --tokenizer bytes"
late="$late --optimizer mezo --lr 3e-3 --eval-every 0 --"
refuses late_token 2 'bad.bin' "$tide" $late --data bad.bin --steps 99 --out late
refuses late_token_when_streaming 2 'bad.bin' "$tide" $late --data bad.bin --steps 99 \
    --resident-blocks 0 --out late_stream
until_then=$(grep -c '"loss"' late/log.jsonl)
"$tide" $late --data $good --steps "$until_then" --out early >/dev/null
check some_steps_were_before_it test "$until_then" -gt 2
check what_was_trained_before_it_is_saved cmp late/model.safetensors early/model.safetensors
check and_so_it_is_when_streaming cmp late_stream/model.safetensors early/model.safetensors

# --- several GPUs: replicas that exchange their losses -------------------------------------------

# on N PROGRAM ARGUMENT...: N ranks of it; of K of them: on2, as a program of one word
on() {
    n=$1
    shift
    sh "$launch" "$n" "$@"
}
on2() { on 2 "$tide" "$@"; }
on3() { on 3 "$tide" "$@"; }
# ranked N RUN OPTION...: a run of N ranks, of which each has 6/N micro-batches per step
ranked() {
    n=$1 run=$2
    shift 2
    if [ "$n" -eq 1 ]; then "$tide" $tiny --accum 6 -- "$@" --out "$run"
    else on "$n" "$tide" $tiny --accum $((6 / n)) -- "$@" --out "$run"
    fi >"$run.out" 2>"$run.err" || fail "${run}_ends_well" "$(cat "$run.err")"
}
several_gpus() {
    looks="--save-every 2 --eval-every 2 --eval-batches 3 --"
    ranked 1 alone --steps 4 $looks
    ranked 2 two --steps 4 $looks --resident-blocks 0
    ranked 3 three --steps 4 $looks --sample-every 4 --sample-tokens 9
    same two_ranks_have_the_bits_of_one two alone
    same three_ranks_have_the_bits_of_one three alone
    more="--steps 3 --save-every 1 --keep 9 --zo-queries $(whole && echo 3 || echo 2)"
    more="$more --zo-noise rademacher --"
    ranked 1 signs_alone $more --precision fp32
    ranked 3 signs_three $more --precision fp32 --resident-blocks 0 --slots 2
    same signs_and_queries_in_fp32_do signs_three signs_alone
    if whole; then
        more="--steps 5 --save-every 1 --keep 9 --precision fp16 --"
        ranked 1 half_alone $more
        ranked 2 half_two $more --zo-no-fused-update
        same unfused_in_fp16_does half_two half_alone
    fi
    check only_one_of_them_speaks sh -c 'for w in done: model: "step 3/4" "--- sample"; do
        [ "$(grep -c -e "^$w" three.out)" -eq 1 ] || exit 1; done; ! [ -s three.err ]'
    check only_one_of_them_writes_a_log test "$(grep -c '"loss"' three/log.jsonl)" -eq 4
    check it_says_how_many_they_are grep -q '^ranks: 3, each with all weights' three.out
    is what_two_exchange_is_counted two 4 exchanged_bytes $((8 * (2 * 3 + 3)))
    is and_what_three_do signs_three 3 exchanged_bytes \
        $((8 * (2 * $(whole && echo 3 || echo 2) * 2 + 3)))
    is it_is_known_how_many two 4 ranks 2
    check one_exchanges_nothing sh -c '! grep -q "exchange\|ranks" alone/log.jsonl'

    # more or fewer of them go on
    at "$tide" two two_to_one 2 4
    same two_to_one two_to_one alone
    check accum_follows grep -q '^--accum is 6 now' two_to_one.out
    at on3 alone one_to_three 2 4 --resident-blocks 0
    same one_to_three one_to_three alone
    if whole; then
        at on2 three three_to_two 2 4 --no-overlap
        same three_to_two three_to_two alone
    fi
    refuses another_batch 2 'has 12 sequences per step' on2 --resume --out two --steps 5 --batch 4 \
        --accum 3

    # stopped: a signal that only one of them gets; a kill
    cat >numbered.sh <<'END'
echo $$ >"pid.$RANK"
exec "$@"
END
    signalled() {  # SIGNAL RANK OPTION...: the run "halted" is begun or resumed, and then stopped
        signal=$1 who=$2
        shift 2
        if [ -d halted ]; then set -- --resume "$@"; else set -- $tiny $long --accum 1 "$@"; fi
        on 2 sh numbered.sh "$tide" "$@" --out halted >halted.out 2>halted.err &
        pid=$!
        until_saved $pid halted
        kill "-$signal" "$(cat "pid.$who")"
        wait $pid 2>/dev/null
    }
    end_of() {  # NAME: what the run has said, and its processes
        for f in out err; do cp halted.$f "$1.$f"; done
        ! kill -0 "$(cat pid.0)" && ! kill -0 "$(cat pid.1)"
    }
    stop_ranks() {
        long="--steps $((24 * times)) --save-every 1 --keep 9999 --"
        rm -rf halted
        signalled TERM 1
        terminated=$?
        end_of terminated
        signalled KILL 1 --resident-blocks 0 --slots 2
        killed=$?
        end_of killed
        left=$?
        if whole; then
            signalled KILL 0
            killed_0=$?
            end_of killed_0
        fi
        [ ! -d "halted/checkpoints/$(printf 'step_%08d' $((24 * times)))" ]
    }
    check they_were_stopped_before_the_end longer stop_ranks
    check a_signal_to_one_ends_all_well test $terminated -eq 143
    check it_is_said_by_rank_0 grep -q '^stopped by signal 15 after step.*--resume' terminated.out
    check and_without_a_complaint test ! -s terminated.err
    check a_kill_ends_all test $killed -ne 0
    check a_kill_is_one_line test "$(grep -c '^tide:' killed.err)" -eq 1
    check a_kill_is_said grep -q '^tide: rank 1' killed.err
    check nobody_is_left test $left -eq 0
    if whole; then
        check a_kill_of_rank_0_ends_all test $killed_0 -ne 0
        check a_kill_of_rank_0_is_one_line test "$(grep -c '^tide: rank 0' killed_0.err)" -eq 1
    fi
    on2 --resume --out halted >halted.out 2>halted.err
    ranked 1 whole_of_two $long --accum 2
    same what_was_killed_has_the_bits_of_one halted whole_of_two

    # what only one of them meets
    refuses a_late_token_of_one_rank 2 'rank [01].*bad.bin' on2 $late -- --accum 1 --data bad.bin \
        --steps 99 --out late_two
    check what_two_trained_before_it_is_saved cmp late_two/model.safetensors early/model.safetensors
    refuses two_that_diverge_end 1 '10 steps in a row' on2 $tiny $wild --zo-eps 1 --out wild_two
    check they_say_what_they_skip grep -q '^step .*skipped' refuses.out
    check and_log_it grep -q '"skipped":true}' wild_two/log.jsonl
    cat >elsewhere.sh <<'END'
cd "rank$RANK" && exec "$@"
END
    mkdir -p rank0 rank1
    cp -r adamw_mezo rank0/base
    cp -r adamw rank1/base
    set -- --data "$work/text.txt" --model base --optimizer mezo --eval-every 0 --batch 2 --steps 2
    refuses other_weights_on_one_rank 2 'weights of all ranks must be the same' \
        on 2 sh elsewhere.sh "$tide" "$@" --out "$work/unlike"
    refuses zero_with_mezo 2 'zero needs --optimizer adamw' "$tide" $tiny --zero 2
    "$tide" $tiny --plan --rates rtx4090_desktop.txt >plan.out
    one=$(sed -n 's/.*: \([0-9]*\) tokens.s.*/\1/p' plan.out)
    "$tide" $tiny --plan --rates rtx4090_desktop.txt --world 4 >plan.out
    four=$(sed -n 's/.*: \([0-9]*\) tokens.s.*/\1/p' plan.out)
    check a_plan_for_four true_that "0$one > 0 && $four > 3.9 * $one && $four < 4.1 * $one"
    check a_plan_says_that_all_have_all grep -q '^ranks: 4, each with all weights' plan.out
}
# (without an emulated GPU: a GPU each)
case $tide in
    *emu) several_gpus ;;
    *) if [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -ge 3 ]; then several_gpus
       else echo "skip several_gpus: fewer than three on this machine"; fi ;;
esac

# --- evaluation, samples, conversion, and memory -------------------------------------------------

for how in "" "--resident-blocks 0" "--resident-blocks 0 --slots 1"; do
    whole || [ "$how" != "--resident-blocks 0" ] || continue
    "$tide" --model memory --optimizer mezo --steps 0 --data text.txt --eval-batches 2 $how |
        grep '^val loss' >>evals.txt
    "$tide" --model memory --optimizer mezo --steps 0 --prompt The --sample-tokens 9 $how |
        od -An -v -tx1 | tr -d '\n' >>said.txt
    echo >>said.txt
done
check evaluations_agree test "$(sort -u evals.txt | wc -l)" -eq 1
for run in between_stream; do  # what was evaluated is what is saved
    "$tide" --model $run --optimizer mezo --steps 0 --data text.txt --batch 2 \
        --eval-batches 2 >eval.out
    logged=$(sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' $run/log.jsonl | tail -n 1)
    again=$(sed -n 's/^val loss //p' eval.out)
    check "${run}_evaluates_what_it_saves" true_that "$again > 1 && ($again - $logged) ^ 2 < 1e-12"
done
check samples_agree test "$(sort -u said.txt | wc -l)" -eq 1 -a \
    "$(head -n 1 said.txt | wc -c)" -gt 33
"$tide" --resume --out memory --steps 0 --prompt The --sample-tokens 9 --resident-blocks 0 |
    od -An -v -tx1 | tr -d '\n' >resumed.txt
check a_run_is_sampled_from_its_checkpoint test "$(cat resumed.txt)" = "$(head -n 1 said.txt)"
"$tide" --model memory --optimizer mezo --steps 0 --out copy --resident-blocks 0 >/dev/null
check conversion_keeps_16_bit_weights cmp copy/model.safetensors \
    memory/model.safetensors

deep="--layers 20 --heads 2 --channels 64 --context 16 --vocab 300 $mezo --steps 2 --"
"$tide" $deep --out deep >deep.out
less=$(planned GPU deep.out)
"$tide" $deep --gpu-memory "$((1024 * ${less%.*} - 1024))K" --out deep_stream >deep_stream.out
check random_weights_have_a_note grep -q '^note: these weights are random' deep.out
check little_memory_turns_streaming_on grep -q 'of 20 layers.*all of them would not fit' \
    deep_stream.out
check and_what_fits_stays sh -c '! grep -q "20 of 20 layers" deep_stream.out'
check and_much_does_not sh -c '! grep -q "layers, of" deep.out'
check streamed_for_want_of_memory_it_is_the_same cmp deep/model.safetensors \
    deep_stream/model.safetensors
refuses too_little_gpu_memory 2 'GPU memory.*--gpu-memory)$' "$tide" $deep --gpu-memory 30M \
    --out little
rated="--plan --rates rtx4090_desktop.txt"
"$tide" $deep $rated --slots 1 --resident-blocks 0 >plan.out
one=$(planned GPU plan.out)
refuses fewer_residents_are_named 2 '; it fits with --resident-blocks auto$' "$tide" $deep $rated \
    --resident-blocks 6 --gpu-memory "$(awk "BEGIN { print int($one * 1024) + 200 }")K"
check little_memory_takes_slots sh -c '"$@" | grep -q "visit 1 slot:"' - "$tide" $deep $rated \
    --gpu-memory "$(awk "BEGIN { printf \"%d\", 1024 * $one + 1 }")K"
refuses too_little_host_memory 2 'host memory.*--resident-blocks' "$tide" $deep --host-memory 1M \
    --resident-blocks 0 --out little
check a_refused_run_leaves_nothing test ! -e little

# --- plans: what others have published, in less memory -------------------------------------------

# plan OPTION...: without a GPU
plan() {
    EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan --out planned --optimizer mezo --batch 1 \
        --seq 2048 --host-memory 2000G -- "$@"
}
total() { planned "$1" plan.out; }
# Model, layers, width; ZO2's README, fp16, in GB; ZO-Offloading's table, fp16 and fp32, in MB
while read -r size layers width zo2 half single; do
    plan --model opt-$size --resident-blocks 0 --precision fp16 >plan.out 2>&1
    check "opt-${size}_is_below_zo2_in_fp16" true_that "0$(total GPU) > 0 && \
        $(total GPU) * 1048576 < $zo2 * 1e9 && $(total GPU) * 1048576 < $half * 1e6"
    check "opt-${size}_is_on_the_host" true_that "($(total host) + 5) * 1048576 > \
        2 * $layers * 12 * $width * $width && $(total host) * 1048576 < \
        2.02 * $layers * (12 * $width + 13) * $width"
    plan --model opt-$size --resident-blocks 0 --precision fp32 >plan.out 2>&1
    check "opt-${size}_is_below_zo2_in_fp32" true_that "0$(total GPU) > 0 && \
        $(total GPU) * 1048576 < $single * 1e6"
done <<END
1.3b 24 2048 3.75 2651 4413
2.7b 32 2560 4.14 3111 5261
6.7b 32 4096 4.99 4539 8329
13b 40 5120 6.18 6445 12113
30b 48 7168 8.86 10369 18879
66b 64 9216 12.07 14143 29937
175b 96 12288 18.04 24667 49203
END
big="--model opt-175b --precision fp16 --resident-blocks 0 --"
plan $big --slots 2 >plan.out
check opt-175b_in_2_slots_is_below_13_GiB true_that "$(total GPU) < 13 * 1024"
plan $big --slots 3 --gpu-memory 24G >plan.out
check opt-175b_in_3_slots_is_below_16_GiB true_that "$(total GPU) < 16 * 1024"
check without_rates_it_asks_for_them grep -q 'rates FILE' plan.out
plan $big --rates rtx4090_desktop.txt >plan.out
check a_small_batch_is_not_hidden grep -q 'not hidden: .*hidden from [0-9]* tokens' plan.out
plan $big --rates rtx4090_desktop.txt --batch 4 >plan.out
check a_larger_batch_is_hidden grep -q '; hidden; ' plan.out
plan --model gpt2 --seq 1024 --rates rtx4090_desktop.txt >plan.out
check in_memory_there_is_no_link sh -c 'grep -q ^predicted plan.out && ! grep -q over.the.link plan.out'
check plans_leave_nothing test ! -e planned
# What a plan and a run with the same options say.
for run in "memory $six" "stream $six --resident-blocks 0" "fp32_stream $six --precision fp32
    --resident-blocks 0 --slots 2" "two_slots $six --slots 2 --resident-blocks 1"; do
    EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan $tiny ${run#* } >plan.out
    { plan_of plan.out; grep 'layers, of' plan.out; } >a.txt
    { plan_of "${run%% *}.out"; grep 'layers, of' "${run%% *}.out"; } >b.txt
    check "plan_says_what_${run%% *}_says" sh -c 'test -s a.txt && diff a.txt b.txt'
done

# --- mistakes ------------------------------------------------------------------------------------

printf 'sentence\tlabel\ngood film\t1\nbad film\t2\n' >three.tsv
printf 'good film\t1\nno tab here\n' >no_tab.tsv
printf 'sentence\tlabel\n' >none.tsv
refuses a_label_without_a_word 2 'three.tsv, line 3: not a sentence, a TAB and the number of its label, 0 to 1' judge "$cpu" --data three.tsv
refuses a_line_without_a_tab 2 'no_tab.tsv, line 2: not a sentence' judge "$cpu" --data no_tab.tsv
refuses no_examples 2 'none.tsv: no examples' judge "$cpu" --data none.tsv
refuses text_for_a_task 2 'line 1: not a sentence' judge "$cpu" --data text.txt
refuses labels_that_are_the_same 2 'is there twice' judge "$cpu" --labels '+|-|+'
refuses one_label 2 'at least two' judge "$cpu" --labels '+'
refuses samples_of_a_task 2 'running text' judge "$cpu" --sample-every 2
data="--data text.txt"
refuses eps_with_adamw 2 'zo-eps needs --optimizer mezo' "$cpu" $data --zo-eps 1e-2
refuses streaming_with_adamw 2 'resident-blocks needs --optimizer mezo' "$tide" $data \
    --resident-blocks 0
refuses dump_with_mezo 2 'gradient' "$cpu" $data --optimizer mezo --dump x
refuses offload_with_mezo 2 'resident-blocks' "$tide" $data --optimizer mezo --offload zero
refuses streaming_on_the_cpu 2 'GPU builds' "$cpu" $data --optimizer mezo --resident-blocks 0
refuses lr_1e30 2 'must be 0 to 1000' "$cpu" $data --optimizer mezo --lr 1e30

# --- what was learned in the meantime ------------------------------------------------------------

arrive
wait $learning
accuracy() { sed -n 's/.*accuracy \([0-9.]*\) %.*/\1/p' "$1" | tail -n 1; }
before=$(accuracy zero_shot.out) after=$(accuracy tuned.out)
echo "accuracy: $before % without tuning, $after % after 250 steps"
check the_task_is_learned true_that "$before + 0 > 0 && $after > $before + 15 && $after > 72"
check accuracy_is_logged true_that "100 * $(field tuned 250 val_accuracy) > $after - 0.1 &&
    100 * $(field tuned 250 val_accuracy) < $after + 0.1"
longest=$(cut -f 1 train.tsv val.tsv | awk '{ if (length > n) n = length } END { print n + 3 }')
check its_length_is_that_of_the_longest_prompt grep -q "^--seq $(((longest + 7) / 8 * 8))$" \
    tuned/checkpoints/step_00000250/state.txt
check the_tuned_model_judges sh -c 'grep -o "accuracy.*" tuned.out | tail -n 1 >a.txt
    "$@" --model tuned --steps 0 | grep -o "accuracy.*" | sed "s/^accuracy/&/" | diff - a.txt' - \
    "$cpu" $task --labels "$labels" --template ' = '
for program in "$cpu" "$tide --precision fp32"; do  # no --optimizer, and all of --val
    check "evaluated_by_$(basename ${program%% *})" sh -c '"$@" | grep -o "accuracy.*" |
        diff - a.txt' - $program --model tuned --val val.tsv --labels "$labels" --template ' = ' \
        --steps 0
done
# The script that does the same, in a folder of its own and in few steps.
mkdir -p made/scripts made/build
cp "$top/scripts/zo_reviews.sh" "$top/scripts/common.sh" made/scripts
ln -s "$reviews" made/build/reviews
echo 'train_gpt2 build/reviews:' >made/Makefile
printf '#!/bin/sh\ncase "$*" in *"--steps 0"*) ;; *) set -- "$@" -- --steps 3 ;; esac\nexec "%s" "$@"\n' \
    "$cpu" >made/train_gpt2
chmod +x made/train_gpt2
(cd made && sh scripts/zo_reviews.sh >../made.out 2>&1)
check reviews_show_their_first_steps sh -c 'grep "^step" made.out | head -n 1 | grep "^step 1/3 "'
reviewed=$(cksum <made/out/zo_reviews/tuned/model.safetensors)
(cd made && sh scripts/zo_reviews.sh >../again.out 2>&1)
check reviews_keep_the_earlier_ones test "$reviewed" = "$(cksum <made/out/zo_reviews-1/tuned/model.safetensors)"
check reviews_have_clean_paths grep -q ' are in out/zo_reviews/tuned$' made.out
check reviews_can_be_asked_for_one sh -c 'cd made && sh -c "$(sed -n "/^what it makes/,\$s/^what[^:]*://p;
    /^    --prompt/p" ../made.out)" | grep -a "^i love the plot = "'
few="--model judge --batch 4 --steps 3 --eval-every 2 --eval-batches 4 --"
judge "$tide" $few --out judge_memory >judge_memory.out
judge "$tide" $few --resident-blocks 0 --slots 1 --out judge_stream >judge_stream.out
judge "$tide" $few --precision fp32 --out judge_fp32 >judge_fp32.out
judge "$cpu" $few --out judge_cpu >judge_cpu.out
same streamed_a_task_has_the_same_bits judge_stream judge_memory
near a_task_in_fp32_has_the_losses_of_the_cpu judge_fp32 judge_cpu 1e-4
near a_task_in_bf16_is_near judge_memory judge_cpu 0.03
check its_accuracy_is_that_of_the_cpu test "$(accuracy judge_fp32.out)" = \
    "$(accuracy judge_cpu.out)"
check its_accuracy_is_logged test -n "$(field judge_stream 2 val_accuracy)"
