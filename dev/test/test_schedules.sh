#!/bin/sh
# The GPU trainer under every order of events. On a GPU the order of what no event orders is open,
# and changes from one day to the next; on the emulated one it is chosen. So small models of some
# twenty configurations (test_model.cu) train for a few steps while one stream or another runs as
# far ahead as events allow, and thread blocks run forwards, backwards and shuffled: the losses, the
# norms, the parameters and the moments must have the same bits every time. Then the sanitizers.
# usage: sh dev/test/test_schedules.sh      (from the top of the repository; LONG=1: more of all)
set -u
plain=${TEST_MODEL:-build/emu/test_model}
tsan=${TEST_MODEL_TSAN:-build/tsan/test_model}
asan=${TEST_MODEL_ASAN:-build/asan/emu/test_model}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export EMU_THREADS=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive EMU_MEM_MB=2000
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}"  # the emulated GPU's own memory stays
jobs=$(nproc 2>/dev/null || echo 2)

# SCHED,ORDER. prio:0 is the oldest stream first, prio:1 the youngest, other seeds are between.
schedules="eager,forward lazy,forward prio:0,forward prio:1,forward prio:2,random
           lazy,reverse eager,random random:1,reverse"
steps=4 chosen="1 5 7 14 16 17 20" racechecked="20"  # configurations for the sanitizers
if [ "${LONG:-0}" = 1 ]; then
    steps=20 chosen=$(seq 0 21) racechecked="16 17 20"
    for seed in $(seq 3 22); do schedules="$schedules prio:$seed,random random:$seed,reverse"; done
fi

# in_background NAME COMMAND...: as many at a time as there are cores
running=0
in_background() {
    to=$work/$1
    shift
    ("$@" >"$to" 2>"$to.err"; echo $? >"$to.code") &
    running=$((running + 1))
    if [ $running -ge "$jobs" ]; then wait; running=0; fi
}

one_line() { grep -v '^ *$' "$1" | head -n 3 | tr '\n' ' ' | cut -c1-300; }

if [ ! -x "$plain" ]; then
    echo "skip schedules: $plain is missing"
else
    for s in $schedules; do
        in_background "$s" env EMU_SCHED="${s%,*}" EMU_ORDER="${s#*,}" "$plain" --config all $steps
    done
    wait
    reference=eager,forward
    [ -s "$work/$reference" ] || echo "FAIL schedules: nothing ran"
    for s in $schedules; do
        [ "$(cat "$work/$s.code")" = 0 ] ||
            echo "FAIL schedule $s: code $(cat "$work/$s.code"): $(one_line "$work/$s.err")"
    done
    while read -r line; do
        others=
        for s in $schedules; do grep -qxF "$line" "$work/$s" || others="$others $s"; done
        if [ -z "$others" ]; then echo "ok ${line#* }"
        else echo "FAIL ${line#* }: other bits under$others"; fi
    done <"$work/$reference"
fi

# sanitize NAME PROGRAM CONFIGURATIONS VARIABLE=VALUE
sanitize() {
    name=$1 program=$2 configurations=$3
    if [ ! -x "$program" ]; then echo "skip $name: $program is missing"; return; fi
    for k in $configurations; do in_background "$name.$k" env "$4" "$program" --config "$k" 2; done
    wait
    running=0
    for k in $configurations; do
        code=$(cat "$work/$name.$k.code") err=$work/$name.$k.err
        if [ "$code" = 0 ]; then echo "ok $name config $k"; continue; fi
        places=$(grep -oE '[a-z_0-9]+\.(cu|cuh|h):[0-9]+' "$err" | uniq | head -n 4 | tr '\n' ' ')
        what=$(grep -m1 -E 'WARNING|ERROR|tide:|error' "$err")
        echo "FAIL $name config $k: code $code: $what $places"
    done
}

# A write and a read that no event orders are reported even where the result is right.
sanitize streams_in_thread_sanitizer "$tsan" "$chosen" EMU_RACECHECK=0
# The same between the threads of a kernel that no barrier orders.
sanitize kernels_in_thread_sanitizer "$tsan" "$racechecked" EMU_RACECHECK=1
sanitize address_sanitizer "$asan" "$chosen" EMU_RACECHECK=0
