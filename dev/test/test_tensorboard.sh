#!/bin/sh
# log.jsonl as TensorBoard's event file. (The golden file was read by TensorBoard 2.15's own reader.)
# usage: sh dev/test/test_tensorboard.sh [TENSORBOARD]    (from the top of the repository, after make)
set -u
tensorboard=$(realpath "${1:-build/tensorboard}")
top=$(pwd)
work=$(mktemp -d) || exit 1
trap 'kill "${follower:-}" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
export LC_ALL=C

. "$top/dev/test/cli.sh"

events=events.out.tfevents.0.tide
first='{"step":1,"loss":5.5,"ms":1500,"offload":{"step":0,"h2d_bytes":300000},"zenflow":{"closes":true}}'
mkdir run
printf '%s\n' "$first" '{"step":2,"skipped":true}' damaged '[1]' '{"step":130,"val_loss":2.25}' \
    >run/log.jsonl
printf '{"step":131,' >>run/log.jsonl  # a line that is being written
touch -d @1000000 run/log.jsonl
check converts "$tensorboard" run
cat >golden <<'END'
 18 00 00 00 00 00 00 00 a3 7f 4b 22 09 00 00 00
 00 7d 84 2e 41 1a 0d 62 72 61 69 6e 2e 45 76 65
 6e 74 3a 32 33 51 62 b8 6b 00 00 00 00 00 00 00
 87 ef a6 e1 09 00 00 00 00 80 84 2e 41 10 01 2a
 5e 0a 0b 0a 04 6c 6f 73 73 15 00 00 b0 40 0a 09
 0a 02 6d 73 15 00 80 bb 44 0a 13 0a 0c 6f 66 66
 6c 6f 61 64 2f 73 74 65 70 15 00 00 00 00 0a 18
 0a 11 6f 66 66 6c 6f 61 64 2f 68 32 64 5f 62 79
 74 65 73 15 00 7c 92 48 0a 15 0a 0e 7a 65 6e 66
 6c 6f 77 2f 63 6c 6f 73 65 73 15 00 00 80 3f 60
 df 31 2f 1d 00 00 00 00 00 00 00 60 2f df 23 09
 00 00 00 00 80 84 2e 41 10 02 2a 10 0a 0e 0a 07
 73 6b 69 70 70 65 64 15 00 00 80 3f b0 43 c5 63
 1f 00 00 00 00 00 00 00 51 4b 44 18 09 00 00 00
 00 80 84 2e 41 10 82 01 2a 11 0a 0f 0a 08 76 61
 6c 5f 6c 6f 73 73 15 00 00 10 40 b5 75 43 67
END
od -An -tx1 -v "run/$events" >got
check to_the_byte cmp golden got
cp "run/$events" whole

# The time of day of the last line is that of the file.
later() {
    printf '"ms":2500}\n' >>run/log.jsonl
    touch -d @1000004 run/log.jsonl
    "$tensorboard" run && [ "$(od -An -tfD -j 13 -N 8 "run/$events" | tr -d ' ')" = 1000000 ]
}
check times_are_those_of_the_steps later

# sizes FILE N: waits until it has N bytes
sizes() {
    looks=0
    while [ "$(wc -c <"$1")" -ne "$2" ]; do
        looks=$((looks + 1))
        [ $looks -lt 200 ] || { echo "$(wc -c <"$1") bytes, not $2"; return 1; }
        sleep 0.1
    done
}
bytes() { wc -c <"$1"; }
printf '%s\n' "$first" >run/log.jsonl
"$tensorboard" run --follow &
follower=$!
one=$(($(bytes whole) - 16 - 29 - 16 - 31))
check follows_from_the_begin sizes "run/$events" $one
printf '{"step":2,' >>run/log.jsonl
sleep 1.2
printf '"skipped":true}\n' >>run/log.jsonl
check adds_what_comes sizes "run/$events" $((one + 16 + 29))
printf '%s\n' "$first" >run/log.jsonl
check a_log_that_was_cut_back sizes "run/$events" $one
check still_there kill $follower
follower=''

refuses no_run 2 'usage' "$tensorboard"
refuses no_log 2 'none/log.jsonl: No such file' "$tensorboard" none
refuses unknown_option 2 'no such option: --fast' "$tensorboard" run --fast
mkdir empty
: >empty/log.jsonl
refuses no_lines 2 'empty/log.jsonl: no line in it' "$tensorboard" empty
if [ -w /dev/full ]; then
    rm "run/$events" && ln -s /dev/full "run/$events"
    refuses full_disk 1 'cannot write run/events' "$tensorboard" run
fi
"$tensorboard" --help >help.out
check help test $? -eq 0 -a "$(head -c 18 help.out)" = 'usage: tensorboard'

# Each field that the trainers write is documented.
missing=''
for field in $(cd "$top" && grep -ho '\\"[a-z0-9_]*\\":' tide/run/log.h tide/gpu/timeline.cuh tide/gpu/zo.cuh \
        tide/gpu/zero.cuh tide/gpu/zenflow.cuh train_gpt2.cu | tr -d '\\":' | sort -u); do
    grep -q "\`$field\`" "$top/doc/logs.md" || missing="$missing $field"
done
check fields_are_documented test -z "$missing"
