#!/bin/sh
# The GPU trainer under every order of events. On a GPU the order of what no event orders is open,
# and changes from one day to the next; on the emulated one it is chosen. So the rows of runs.cuh
# (the optimizer's state in all places, importance-aware updates that are late, zeroth-order steps
# with layers that come and go, several GPUs) train for a few steps while one stream or another runs
# as far ahead as events allow, and thread blocks run forwards, backwards and shuffled: the losses,
# the norms, the parameters and the moments must have the same bits every time. Then the sanitizers.
# usage: sh dev/test/cli/test_schedules.sh      (from the top of the repository; ALL=1: all schedules,
#                                           all configurations, sanitizers; LONG=1: more of all)
set -u
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
jobs=$(nproc 2>/dev/null || echo 2)  # before OMP_NUM_THREADS, which it heeds
export EMU_THREADS=1 OMP_NUM_THREADS=1 EMU_MEM_MB=2000
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}"  # the emulated GPU's own memory stays
export TSAN_OPTIONS="${TSAN_OPTIONS:-atexit_sleep_ms=0}"  # or each program sleeps for a second

# SCHED,ORDER. prio:0 is the oldest stream first, prio:1 the youngest; with the other seeds (LONG=1)
# each model has an order of its own, and each stream comes first in several. fp32 and fp16 have the
# two that find most.
schedules="eager,forward lazy,forward prio:0,random prio:1,reverse random:1,reverse"
two="eager,forward prio:1,reverse"
steps=4
# Rows for the sanitizer of kernels, by their begins, with + for a space.
kernels="test_placement_fp32=rows+ test_placement=llama+--accum
    test_zenflow_gpu=tied+--clip,odd+--accum test_zo_gpu=odd+--optimizer+mezo+--zo
    test_zo_gpu_fp32=llama+--precision test_zero_gpu=five+ranks=2+--zero+3+--accum"
these=all
if [ "${ALL:-0}${LONG:-0}" = 00 ]; then
    # The oldest work first; and the youngest, with the blocks of kernels reversed.
    schedules=$two these=some
fi
if [ "${LONG:-0}" = 1 ]; then
    steps=20
    kernels="$kernels test_placement=deep test_placement_fp32=chunks
        test_zenflow_gpu=wide+--accum,llama+--accum test_zero_gpu=odd+ranks test_zero_gpu_fp32=llama"
    for seed in $(seq 5 24); do
        schedules="$schedules prio:$seed,random random:$seed,reverse"
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

# same_bits PROGRAM SCHEDULES
same_bits() {
    program=build/emu/$1
    if [ ! -x "$program" ]; then echo "skip $1 under schedules: $program is missing"; return; fi
    for s in $2; do
        in_background "$1.$s" env EMU_SCHED="${s%,*}" EMU_ORDER="${s#*,}" "$program" \
            --config $these $steps
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
    while IFS= read -r line; do
        others=
        for s in $2; do grep -qxF "$line" "$work/$1.$s" || others="$others $s"; done
        if [ -z "$others" ]; then echo "ok $1 ${line#* }"
        else echo "FAIL $1 ${line#* }: other bits under$others"; fi
    done <"$reference"
}

# (test_zero_gpu without protection, or it takes three times as long; what is sampled, all without)
[ "$these" = all ] || export EMU_PROTECT=0
same_bits test_placement "$schedules"
same_bits test_zenflow_gpu "$schedules"
same_bits test_zo_gpu "$schedules"
(export EMU_PROTECT=0; same_bits test_zero_gpu "$schedules")
if [ "$these" = all ]; then
    [ "${LONG:-0}" = 1 ] || schedules=$two
    for t in test_placement_fp32 test_zenflow_gpu_fp32 test_zo_gpu_fp32 test_zo_gpu_fp16 test_placement_fp16; do
        same_bits $t "$schedules"
    done
    (export EMU_PROTECT=0; same_bits test_zero_gpu_fp32 "$schedules")
fi

[ "$these" = all ] || exit 0

# sanitize NAME FLAVOUR CONFIGURATIONS VARIABLE=VALUE: of each program, in one process
sanitize() {
    name=$1 flavour=$2
    for t in $3; do
        program=build/$flavour/${t%%=*}
        if [ ! -x "$program" ]; then echo "skip $name: $program is missing"; continue; fi
        for k in $(echo "${t#*=}" | tr , ' '); do
            in_background "$name.${t%%=*}.$k" env "$4" "$program" --config "$(echo "$k" | tr + ' ')" 2
        done
    done
    wait
    running=0
    for t in $3; do
        for k in $(echo "${t#*=}" | tr , ' '); do
            to=$work/$name.${t%%=*}.$k
            [ -e "$to" ] || continue
            sed "s/^[0-9a-f]\{16\} /ok $name ${t%%=*} /" "$to"
            [ "$(cat "$to.code")" != 0 ] || continue
            places=$(grep -oE '[a-z_0-9]+\.(cu|cuh|h):[0-9]+' "$to.err" | uniq | head -n 4 |
                tr '\n' ' ')
            what=$(grep -m1 -E 'WARNING|ERROR|tide:|error' "$to.err")
            echo "FAIL $name ${t%%=*}, after these: code $(cat "$to.code"): $what $places"
        done
    done
}
trains=$(for t in test_zero_gpu test_zenflow_gpu test_placement test_zo_gpu; do
    echo "$t=some ${t}_fp32=some"; done)
# A write and a read that no event orders are reported even where the result is right.
sanitize streams_in_thread_sanitizer tsan "$trains" EMU_RACECHECK=0
# The same between the threads of a kernel that no barrier orders.
sanitize kernels_in_thread_sanitizer tsan "$kernels" EMU_RACECHECK=1
sanitize address_sanitizer asan/emu "$trains" EMU_RACECHECK=0
