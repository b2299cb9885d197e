#!/bin/sh
# The GPU trainer under every order of events. On a GPU the order of what no event orders is open,
# and changes from one day to the next; on the emulated one it is chosen. So small models of some
# twenty configurations (test_model.cu), of all places for the optimizer's state
# (test_placement.cu), with importance-aware updates that are late (test_zenflow_gpu.cu), with
# zeroth-order steps and layers that come and go (test_zo_gpu.cu), and on several GPUs
# (test_zero_gpu.cu), train for a few steps while one stream or another runs as far ahead as events
# allow, and thread blocks run forwards, backwards and shuffled: the losses, the norms, the
# parameters and the moments must have the same bits every time. Then the sanitizers.
# usage: sh dev/test/test_schedules.sh      (from the top of the repository; LONG=1: more of all)
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
jobs=$(nproc 2>/dev/null || echo 2)  # before OMP_NUM_THREADS, which it heeds
export EMU_THREADS=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive EMU_MEM_MB=2000
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}"  # the emulated GPU's own memory stays

# SCHED,ORDER. prio:0 is the oldest stream first, prio:1 the youngest; with the other seeds each
# model has an order of its own, and each stream comes first in several.
schedules="eager,forward lazy,forward prio:0,forward prio:1,forward prio:2,random
           lazy,reverse eager,random random:1,reverse"
placed="eager,forward lazy,forward prio:0,forward prio:1,forward prio:2,forward prio:3,reverse
        prio:4,random random:1,reverse"
late="eager,forward lazy,forward prio:0,forward prio:1,forward prio:2,random random:1,reverse"
visiting="eager,forward lazy,forward prio:0,forward prio:1,forward prio:2,random random:1,reverse"
ranks="eager,forward lazy,forward prio:0,forward prio:1,forward prio:2,random random:1,reverse"
steps=4
model="1 5 7 14 16 17 20" model_kernels="20"              # configurations for the sanitizers
placement="0 4 10 14 16 19 24 28 30 31 33" placement_kernels="33"
zenflow="3 8 9 13 16 21 25 27 29 30 31 32 33 35" zenflow_kernels="25 29"
zo="0 2 5 8 13 15 18 20 21 22 23 24" zo_kernels="5 20"
zero="8 11 15 16 18 26 27 28 30 31 32 33" zero_kernels="18"
if [ "${LONG:-0}" = 1 ]; then
    steps=20 model=$(seq 0 21) model_kernels="16 17 20"
    placement=$(seq 0 34) placement_kernels="16 24 33" zo=$(seq 0 24) zo_kernels="1 5 8 20"
    zenflow=$(seq 0 36) zenflow_kernels="21 25 29 34" zero=$(seq 0 34) zero_kernels="6 13 18 28"
    for seed in $(seq 5 24); do
        schedules="$schedules prio:$seed,random random:$seed,reverse"
        placed="$placed prio:$seed,random random:$seed,reverse"
        late="$late prio:$seed,random random:$seed,reverse"
        visiting="$visiting prio:$seed,random random:$seed,reverse"
        ranks="$ranks prio:$seed,random random:$seed,reverse"
    done
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

one_line() { grep -v '^ *$' | grep -v '^[0-9a-f]\{16\} ' | head -n 3 | tr '\n' ' ' | cut -c1-300; }

# same_bits PROGRAM SCHEDULES: of every configuration
same_bits() {
    program=build/emu/$1
    if [ ! -x "$program" ]; then echo "skip $1 under schedules: $program is missing"; return; fi
    for s in $2; do
        in_background "$1.$s" env EMU_SCHED="${s%,*}" EMU_ORDER="${s#*,}" "$program" --config all \
            $steps
    done
    wait
    running=0
    reference=$work/$1.eager,forward
    [ -s "$reference" ] || echo "FAIL $1 under schedules: nothing ran"
    for s in $2; do
        code=$(cat "$work/$1.$s.code")
        [ "$code" = 0 ] ||
            echo "FAIL $1 under $s: code $code: $(cat "$work/$1.$s" "$work/$1.$s.err" | one_line)"
    done
    while read -r line; do
        others=
        for s in $2; do grep -qxF "$line" "$work/$1.$s" || others="$others $s"; done
        if [ -z "$others" ]; then echo "ok $1 ${line#* }"
        else echo "FAIL $1 ${line#* }: other bits under$others"; fi
    done <"$reference"
}

# sanitize NAME PROGRAM CONFIGURATIONS VARIABLE=VALUE
sanitize() {
    name=$1 program=$2 configurations=$3
    if [ ! -x "$program" ]; then echo "skip $name: $program is missing"; return; fi
    name=$name.$(basename "$program")
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

same_bits test_model "$schedules"
same_bits test_placement "$placed"
same_bits test_zenflow_gpu "$late"
same_bits test_zo_gpu "$visiting"
(export EMU_PROTECT=0; same_bits test_zero_gpu "$ranks")  # or it takes three times as long
# A write and a read that no event orders are reported even where the result is right.
sanitize streams_in_thread_sanitizer build/tsan/test_model "$model" EMU_RACECHECK=0
sanitize streams_in_thread_sanitizer build/tsan/test_placement "$placement" EMU_RACECHECK=0
sanitize streams_in_thread_sanitizer build/tsan/test_zenflow_gpu "$zenflow" EMU_RACECHECK=0
sanitize streams_in_thread_sanitizer build/tsan/test_zo_gpu "$zo" EMU_RACECHECK=0
sanitize streams_in_thread_sanitizer build/tsan/test_zero_gpu "$zero" EMU_RACECHECK=0
# The same between the threads of a kernel that no barrier orders.
sanitize kernels_in_thread_sanitizer build/tsan/test_model "$model_kernels" EMU_RACECHECK=1
sanitize kernels_in_thread_sanitizer build/tsan/test_placement "$placement_kernels" EMU_RACECHECK=1
sanitize kernels_in_thread_sanitizer build/tsan/test_zenflow_gpu "$zenflow_kernels" EMU_RACECHECK=1
sanitize kernels_in_thread_sanitizer build/tsan/test_zo_gpu "$zo_kernels" EMU_RACECHECK=1
sanitize kernels_in_thread_sanitizer build/tsan/test_zero_gpu "$zero_kernels" EMU_RACECHECK=1
sanitize address_sanitizer build/asan/emu/test_model "$model" EMU_RACECHECK=0
sanitize address_sanitizer build/asan/emu/test_placement "$placement" EMU_RACECHECK=0
sanitize address_sanitizer build/asan/emu/test_zenflow_gpu "$zenflow" EMU_RACECHECK=0
sanitize address_sanitizer build/asan/emu/test_zo_gpu "$zo" EMU_RACECHECK=0
sanitize address_sanitizer build/asan/emu/test_zero_gpu "$zero" EMU_RACECHECK=0
