#!/bin/sh
# Nothing of a user's is lost: files that exist, what is written while descriptors are closed or files
# are cut. Whatever ends or disturbs a run costs at most what its checkpoints' interval says: kill -9,
# signals to it and to all that was started with it, a second run in its folder, a disk that is full
# for a while. At random moments, on one process and on several; then it has the bits of a run that nobody
# disturbed.
# usage: sh dev/test/cli/test_lost.sh      (from the top of the repository, after make, make
#        train_gpt2emu; ALL=1: 100 times, not 12)
set -u
. dev/test/cli.sh
# What began under nohup ignores SIGHUP, and so would all that it starts.
[ $((0x0$(sed -n 's/^SigIgn:[^0-9a-f]*//p' /proc/self/status) & 1)) = 0 ] ||
    exec env --default-signal=HUP sh "$0"
# A disk that can be filled needs a name space of its own, to be mounted in.
if [ -z "${SMALL_DISK-}" ]; then
    for enter in "unshare -m" "unshare -Urm"; do
        # shellcheck disable=SC2086  # two words
        $enter mount -t tmpfs none /mnt 2>/dev/null && SMALL_DISK=yes exec $enter sh "$0"
    done
fi
begin lost
gpu=$tide
trap 'kill -9 $(jobs -p) 2>/dev/null; umount "$work/disk" 2>/dev/null; rm -rf "$work"' EXIT
without_measuring
mkdir disk
if [ -n "${SMALL_DISK-}" ]; then mount -t tmpfs -o size=8m none disk || exit 1
else echo "skip lost_disk_full: no disk can be mounted here"; fi
tiny="--data text.txt --layers 2 --heads 2 --channels 32 --context 16 --batch 1 --eval-every 0"
tiny="$tiny --warmup 0 --schedule constant --"
endless="$tiny --steps 1000000 --"

# The last step that was logged, and the last that was saved, or 0.
logged() { tail -n 1 "$1/log.jsonl" | sed 's/{"step":\([0-9]*\),.*/\1/'; }
saved() { ls "$1/checkpoints" 2>/dev/null | sed -n 's/^step_0*//p' | grep . | sort -n | tail -n 1 | grep . || echo 0; }

# start RUN COMMAND...: without an end, in the background, as $pid; at_step N RUN: waits for its step;
# stopped SIGNAL: sends it, and keeps the exit code as $code
start() {
    run=$1
    shift
    : >"$run.out"  # here: what runs in the background may empty it too late
    "$@" --out "$run" >"$run.out" 2>"$run.err" &
    pid=$!
}
at_step() { await $pid grep -qs "\"step\":$1," "$2/log.jsonl"; }
stopped() {
    kill "-$1" $pid
    wait $pid 2>/dev/null
    code=$?
}

# --- one run owns --out -----------------------------------------------------------------------------

brief="timeout 60"  # who is not refused would go on
start own "$cpu" $endless --save-every 20
until_saved $pid own
refuses a_second_run_is_refused 2 "own belongs to a run.*(process $pid on " $brief "$cpu" --resume --out own
refuses a_new_run_too 2 'belongs to a run' $brief "$cpu" $endless --out own
await $pid test -e own/model.safetensors  # it is written after the first checkpoint
check who_only_reads_is_not "$cpu" --model own --steps 0 --prompt x --sample-tokens 3
stopped KILL
check after_a_kill_the_lock_is_free "$cpu" --resume --out own --steps $(($(saved own) + 1))
refuses a_run_that_is_refused_leaves_no_folder 2 'channels' $brief "$gpu" $tiny --channels 34 --out refused
check nor_a_lock test ! -e refused

# --- nothing that exists is overwritten ---------------------------------------------------------------

# copy_of DIR: its files, to be compared later
copy_of() { rm -rf "$1.before" && cp -a "$1" "$1.before"; }
as_before() { diff -r --no-dereference -x .lock "$1" "$1.before" >differs.out || { cat differs.out; return 1; }; }
rm -rf own/checkpoints
short="$tiny --steps 2 --"
for there in model.safetensors vocab.json log.jsonl notes.txt .hidden best link; do
    rm -rf theirs
    mkdir theirs
    case $there in best) mkdir theirs/best ;; link) ln -s nowhere theirs/link ;; *) echo mine >theirs/$there ;; esac
    # a conversion that was killed leaves weights and a lock
    [ $there != model.safetensors ] || echo "process 1 on here" >theirs/.lock
    copy_of theirs
    for how in "" "--resume auto" --no-save; do
        refuses "out_with_${there}_is_refused $how" 2 \
            "^tide: --out theirs/ holds $there, and nothing is overwritten: choose another --out, new or empty$" \
            "$cpu" $short --out theirs/ $how
    done
    check "and_nothing_of_${there}_is_changed" as_before theirs
done
copy_of own
ln -s own link
for out in own link; do
    refuses "a_model_is_not_overwritten_in_$out" 2 "out $out holds .*, and nothing is overwritten" \
        "$cpu" --model own --data text.txt --steps 0 --out $out
done
check the_model_is_as_it_was as_before own
ln -s nowhere dangling
mkdir empty
check an_empty_folder_is_taken "$cpu" $short --out empty/
mkdir bare
check without_a_folder_nothing_is_left sh -c 'cd bare && "$@" --data ../text.txt --no-save >../bare.out && [ -z "$(ls -A)" ] &&
    grep -q "^2 of 2 steps; nothing was saved (--no-save)$" ../bare.out' - "$cpu" $short
# Two runs start at once, and only one of them trains. The first is stopped while it makes its weights, and then finds
# the folder taken. (A busy machine may stop it too late. Then it trains, and the second one is refused.)
start race "$cpu" $tiny --steps 1 --layers 4 --channels 512
await $pid grep -qs '^cpu: ' race.out
kill -STOP $pid
"$cpu" $tiny --steps 1 --out race >raced.out 2>raced.err
other=$?
kill -CONT $pid
wait $pid
check of_two_at_once_one_trains test "$(printf '%s\n' $? $other | sort | tr '\n' ' ')" = "0 2 "

# A resumed run owns its folder, but what somebody has put beside its files, or behind links, stays.
"$cpu" $tiny --val text.txt --steps 4 --eval-every 2 --keep-best --out mine >mine.out 2>&1
mv mine/best theirs_best
ln -s ../theirs_best mine/best
refuses resume_over_a_linked_best 2 'best is a link' "$cpu" --resume --steps 8 --out mine
rm mine/best
# checkpoints/ may hold what is not a checkpoint; temporary names and .lock may be links
mkdir -p mine/checkpoints/step_00000001/sub mine/checkpoints/tmp_mine
echo thesis >mine/checkpoints/step_00000001/sub/thesis
echo thesis >mine/checkpoints/tmp_mine/thesis
cp text.txt secret.txt
for name in loss.svg model.safetensors config.json log.jsonl; do ln -sf ../secret.txt mine/$name.tmp; done
check checkpoints_are_removed "$cpu" --resume --steps 16 --save-every 2 --keep 1 --out mine
check and_nothing_else sh -c 'cmp -s secret.txt text.txt && grep -q thesis mine/checkpoints/step_00000001/sub/thesis &&
    grep -q thesis mine/checkpoints/tmp_mine/thesis && [ "$(ls mine/checkpoints | grep -c "^step_0000001[0-6]")" -le 2 ]'
mkdir locked
cp text.txt locked/.lock
refuses a_lock_of_others 2 'holds .lock, which this program did not write' "$cpu" $short --out locked
mkdir linked
ln -s ../secret.txt linked/.lock
"$cpu" $short --out linked >linked.out 2>&1
check a_linked_lock_is_not_written_through cmp text.txt secret.txt

# Outputs: a file of that name, a link, a device, and what has the temporary name.
cp text.txt in.txt
cp text.txt in.tmp
ln -s in.txt soft
ln in.txt hard
copy_of own
over() {  # over NAME FILE COMMAND...
    name=$1 file=$2
    shift 2
    refuses "$name" 2 "$file exists, and nothing is overwritten: name another file" "$@"
    check "${name}_stays" sh -c 'cmp in.txt text.txt && cmp in.tmp text.txt && test -L soft -a -L dangling -a ! -e nowhere -a -c device'
}
ln -s /dev/null device  # (if it is replaced, only the link is lost: never name a device here)
for file in in.txt soft hard dangling device own own/model.safetensors; do
    over "dump_over_$file" $file "$cpu" $tiny --dump $file
done
over dump_by_its_temporary_name in.tmp "$cpu" $tiny --dump in
over scores in.txt "$cpu" --model own --steps 0 --val text.txt --scores in.txt
over trace in.txt "$gpu" $tiny --trace empty/../in.txt
over rates in.txt "$gpu" --calibrate --rates in.txt
refuses tune_that_is_none 2 'in.txt: it is not what was written' "$gpu" $short --tune in.txt --no-save
check nothing_of_the_model_is_lost as_before own

# --- closed descriptors, and files that others cut -----------------------------------------------------

for closed in '<&-' '>&-' '2>&-' '<&- >&-' '<&- >&- 2>&-'; do
    rm -rf closed
    eval '"$cpu" $short --out closed >/dev/null' "$closed"
    eval '"$cpu" $short --resume --steps 4 --out closed >/dev/null' "$closed"
    check "closed_$closed" sh -c '[ "$(grep -c "^{\"step\":[0-9]*,\"loss\".*}$" closed/log.jsonl)" -eq 4 ] &&
        ! grep -v "^{.*}$" closed/log.jsonl && grep -q "^process [0-9]* on " closed/.lock &&
        [ "$(wc -l <closed/.lock)" -eq 1 ]'
done
head -c 1024 /dev/zero >tokens.bin
printf '\210\330\064\001\001\000\000\000\000\000\040\000' | dd of=tokens.bin conv=notrunc 2>/dev/null
truncate -s $((1024 + 2 * 2097152)) tokens.bin
start cut "$cpu" $endless --data tokens.bin --save-every 20
until_saved $pid cut
truncate -s 1024 tokens.bin
await $pid false
wait $pid
check a_file_that_is_cut_ends_with_a_line test $? -eq 1 -a "$(cat cut.err)" = "tide: a file was cut short, or its disk \
failed, while this program read it; what was saved before is whole"
start unsaved_yet "$cpu" $endless --save-every 0
at_step 3 unsaved_yet
stopped KILL
refuses a_run_that_saved_nothing_is_not_overwritten 2 'unsaved_yet holds an earlier run: go on with it by --resume auto' \
    "$cpu" $short --out unsaved_yet

# All ranks own it: as long as one of them lives, even without the others.
cat >ranked <<'END'
echo $$ >pid.$RANK
exec "$@"
END
start ranks "$launch" 2 sh ranked "$gpu" $endless --save-every 5
until_saved $pid ranks
refuses ranks_own_it 2 'ranks belongs to a run' $brief "$gpu" --resume --out ranks
kill -STOP "$(cat pid.1)"
kill -9 "$(cat pid.0)"
refuses one_of_them_is_enough 2 'ranks belongs to a run' $brief "$gpu" --resume --out ranks
kill -CONT "$(cat pid.1)"
wait $pid
check then_it_is_free "$gpu" --resume --out ranks --steps $(($(saved ranks) + 1))

# --- signals ----------------------------------------------------------------------------------------

for signal in 1:HUP 2:INT 15:TERM 10:USR1 12:USR2 24:XCPU; do
    start ends "$cpu" $endless
    at_step 3 ends
    stopped "${signal#*:}"
    check "the_exit_code_tells_of_${signal#*:}" test $code -eq $((128 + ${signal%:*}))
    check "${signal#*:}_saves" test "$(logged ends)" = "$(saved ends)"
    rm -rf ends
done
# A step of hours: the lines printed before it are in a file at once, and a signal ends the step.
for signal in 9:KILL 15:TERM; do
    start ends "$cpu" $endless --accum 1000000
    await $pid grep -q '^checkpoints: ' ends.out
    sleep 0.2
    stopped "${signal#*:}"
    check "a_step_of_hours_ends_with_${signal#*:}" test $code -eq $((128 + ${signal%:*})) -a -s ends.out
    rm -rf ends
done
# The steps before it are saved, and it is done again: the same bits.
given_up() {  # given_up NAME ACCUM COMMAND...
    name=given_up_$1
    set -- "$3" $tiny --steps 3 --accum "$2" $4
    "$@" --out whole_$name >/dev/null
    start $name "$@"
    at_step 1 $name
    sleep 0.05
    stopped USR1
    check "${name}_saves_the_step_before" test $code -eq 138 -a "$(saved $name)" -eq 1 -a "$(logged $name)" -eq 1
    "$1" --resume --out $name >/dev/null
    check "${name}_has_the_same_bits" cmp whole_$name/model.safetensors $name/model.safetensors
}
given_up adamw 2000 "$cpu" ""
given_up offload 60 "$gpu" "--offload interleave --stride 2"
# Where tee dies of the Ctrl-C that the trainer has got, too, its lines go nowhere; and a reader that
# has enough ends a run, which saves.
("$cpu" $endless --out ends 2>ends.err; echo $? >code) | head -n 90 >ends.out
check a_reader_that_goes_is_a_signal test "$(cat code)" -eq 141 -a "$(logged ends)" = "$(saved ends)"
rm -rf ends
start ends nohup "$cpu" $endless
at_step 3 ends
kill -HUP $pid
at_step $(($(logged ends) + 9)) ends
check nohup_is_minded kill -TERM $pid
wait $pid
rm -rf ends
# An evaluation is ended by a signal.
minutes="$endless --eval-every 5 --eval-batches 100000 --val $cpu"
start ends "$cpu" $minutes
at_step 5 ends
sleep 0.1
stopped INT
check an_evaluation_is_given_up test $code -eq 130 -a "$(saved ends)" -eq 5 -a "$(grep -c val_loss ends/log.jsonl)" -eq 0

# --- when checkpoints are saved -----------------------------------------------------------------------

"$cpu" $tiny --steps 1 --out auto >auto.out
check by_default_it_saves_by_time grep -q '^checkpoints: .* every 10 minutes' auto.out
often() {
    rm -rf disk/*
    env TIDE_SAVE_SECONDS=0.05 "$cpu" $tiny --steps $((1000 * times)) --keep 9 --out disk/often >often.out 2>&1 &&
        [ "$(ls disk/often/checkpoints | wc -l)" -ge 4 ]
}
check it_is_often_time longer often

# --- a disk that is full --------------------------------------------------------------------------------

fill() { cat /dev/zero >disk/fill 2>/dev/null; }
# leave BYTES: fills it, but for so many
leave() {
    head -c "$1" /dev/zero >disk/little
    fill
    rm disk/little
}
rm -rf disk/*
if [ -n "${SMALL_DISK-}" ]; then
    refuses a_disk_that_is_too_small 2 'take 1.* MB, and only 8.* MB are free' "$cpu" $tiny --channels 192 \
        --out disk/no
    check and_leaves_no_weights test ! -e disk/no/model.safetensors
    # Full, but for one checkpoint: an older one makes room, so that the end is saved.
    "$cpu" $tiny --steps 6 --save-every 3 --out disk/end >/dev/null
    leave 300000
    check an_old_checkpoint_makes_room "$cpu" --resume --out disk/end --steps 8
    check so_the_end_is_saved test "$(saved disk/end)" -eq 8 -a ! -d disk/end/checkpoints/step_00000003 -a -s disk/end/model.safetensors
    rm -r disk/*
    # What is best so far is none of those that make room.
    "$cpu" $tiny --eval-every 3 --save-every 3 --keep-best --steps 6 --keep 9 --out disk/end >/dev/null
    leave $(($(wc -c <disk/end/checkpoints/step_00000006/state.safetensors) + 60000))
    cp disk/end/best/model.safetensors before.safetensors
    check others_make_room "$cpu" --resume --out disk/end --lr 9 --steps 12
    check but_not_the_best test "$(ls disk/end/checkpoints | tr '\n' ' ')" = "step_00000006 step_00000012 "
    check whose_weights_stay cmp disk/end/best/model.safetensors before.safetensors
    rm -r disk/*
    # Full from its first checkpoint on to the end: nothing was whole, or what was stays.
    "$cpu" $endless --save-every 3000 --out disk/first >first.out 2>first.err &
    pid=$!
    at_step 5 disk/first
    fill
    wait $pid
    check without_an_earlier_one_it_ends test $? -eq 1
    check and_says_why sh -c "tail -n 1 first.err | grep -q '^tide: cannot.*No space left'"
    rm -r disk/*
fi

# --- at random moments ----------------------------------------------------------------------------------

# A hundred thousand lines of a log have room here.
[ -z "${SMALL_DISK-}" ] || mount -o remount,size=32m disk

kill_it() { kill -s KILL -- -$pid; }
kill_a_rank() { kill -9 "$(cat "pid.$(below 2)")"; }  # (which have sessions of their own)
below() { echo $(($(od -An -N2 -tu2 /dev/urandom) % $1)); }
# disturb RUN INTERVAL HOW COMMAND...: begins or resumes RUN, and disturbs it once. Says what was lost.
disturb() {
    run=$1 interval=$2 how=$3  # 0 to 4
    shift 3
    if [ -d "$(newest "$run")" ]; then set -- "$@" --resume; else set -- "$@" $endless --resume auto; fi
    before=$(saved "$run")
    setsid "$@" --save-every "$interval" --out "$run" >run.out 2>run.err &
    pid=$!
    seen=$(newest "$run")
    await $pid has_another "$run"
    a_moment
    slack=$((2 * interval))  # one that is being written does not count
    case $how in
        0) $kill ;;
        1) kill -s TERM -- -$pid; kill -TERM $pid ;;
        2) kill -HUP $pid ;;
        3)
            "$program" --resume --out "$run" >second.out 2>second.err
            grep -q 'belongs to a run' second.err || echo "the second run: $(cat second.err)"
            $kill ;;
        4)
            [ -z "${SMALL_DISK-}" ] || {
                fill
                sleep 0.2
                rm -f disk/fill
                slack=999999
                kill -0 $pid || echo "a full disk has ended it: $(cat run.err)"
                seen=$(newest "$run")
                await $pid has_another "$run"
            }
            $kill ;;
    esac
    wait $pid 2>/dev/null
    code=$?
    after=$(saved "$run") there=$(logged "$run")
    case $how in
        1 | 2) [ "$after" = "$there" ] && [ $code -gt 128 ] || [ $code = 1 ] ||
            echo "$how ended with $code after step $there, and $after is saved: $(cat run.err)" ;;
        *) [ "$after" -ge "$before" ] && [ $((there - after)) -le $slack ] ||
            echo "$how lost steps $after to $there, with checkpoints every $interval" ;;
    esac
}
# disturbed NAME TIMES INTERVAL COMMAND...: then it ends as if nothing had been
disturbed() {
    name=$1 count=$2 interval=$3
    shift 3
    : >"$name.said"
    i=0
    while [ $i -lt "$count" ]; do
        disturb "disk/$name" "$interval" $((turn % 5)) "$@" >>"$name.said" 2>&1
        i=$((i + 1)) turn=$((turn + 1))
    done
    last=$(($(saved "disk/$name") + 2))
    check "${name}_${count}_times_nothing_is_lost" sh -c "cat $name.said; ! grep -q . $name.said"
    check "${name}_goes_on" "$@" --resume --steps $last --out "disk/$name"
    "$@" $tiny --steps $last --save-every 0 --out "whole_$name" >whole.out 2>&1
    check "${name}_has_the_bits_of_an_undisturbed_run" cmp "whole_$name/model.safetensors" \
        "disk/$name/model.safetensors"
    check "${name}_log_is_whole" test "$(logged "disk/$name")" -eq $last
    check "${name}_leaves_no_rubbish" sh -c "! ls disk/$name/checkpoints | grep tmp"
    rm -rf "disk/$name"
}
few=1 turn=0
whole && few=10
kill=kill_it program=$cpu
disturbed one $((4 * few + 2)) 20 "$cpu"
program=$gpu
disturbed offloaded $((2 * few)) 5 "$gpu" --offload zero
kill=kill_a_rank
disturbed two_ranks $((4 * few - 2)) 5 "$launch" 2 sh ranked "$gpu" --zero 2 --offload zero
