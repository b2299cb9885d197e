#!/bin/sh
# test_emu_bugs.sh [PLAIN [TSAN [ASAN]]]: the emulated device must catch every bug of bugs.cu in the
# modes named here, and must never object to the same code without the bug. The three programs are
# bugs.cu built plainly, with ThreadSanitizer (clang++) and with AddressSanitizer; one that is not
# there is skipped. Prints "ok NAME", "FAIL NAME" or "skip NAME: why"; exit code 1 if any failed.
plain=${1:-build/emu/bugs} tsan=${2:-build/tsan/bugs} asan=${3:-build/asan/emu/bugs}
export TSAN_OPTIONS="exitcode=66 atexit_sleep_ms=0 history_size=7"
export ASAN_OPTIONS="exitcode=66 detect_leaks=0"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# Which mode has to see what, and what a report has to name.
#   plain   as a program runs without any setting       wrong   the result is wrong
#   prio    every stream in turn as far as it can go    stop    the emulator stops the program
#   tsan    ThreadSanitizer between streams             report  the sanitizer reports
#   race    ThreadSanitizer inside kernels
#   asan    AddressSanitizer
bugs='
missing_event               prio=wrong  tsan=report  add_kernel
wait_before_record          prio=wrong  tsan=report  add_kernel
event_too_early             prio=wrong  tsan=report  add_kernel
write_after_read            prio=wrong  tsan=report  add_kernel
ring_without_free_event     prio=wrong  tsan=report  fill_kernel
memset_on_another_stream    prio=wrong  tsan=report  add_kernel
host_reads_early            plain=wrong tsan=report  host_reads_early
host_overwrites_source      plain=wrong tsan=report  host_overwrites_source
missing_syncthreads         plain=wrong race=report  reverse_kernel
missing_syncwarp            plain=wrong race=report  halving_kernel
non_atomic_sum              race=report              total_kernel
last_block_without_fence    race=report              last_block_kernel
divergent_barrier           plain=stop               bugs.cu:[0-9]*.*bugs.cu:[0-9]
lane_that_left              plain=stop               leaving_kernel
missing_copy_wait           plain=wrong              .
shared_overrun              plain=stop asan=report   small\|out.of.bounds
small_overrun               plain=stop asan=report   fill_kernel
large_overrun               plain=stop asan=report   fill_kernel
underrun                    plain=stop asan=report   shifted_kernel
read_past_the_end           asan=report              add_kernel
copy_overrun                plain=stop asan=stop     bugs.cu:[0-9].*404 bytes
host_pointer_to_kernel      plain=stop asan=stop     fill_kernel: argument 0
host_touches_device_memory  plain=stop               host code touches device memory
use_after_free              plain=stop asan=report   struct_kernel
unwritten_memory            plain=wrong              .
unwritten_shared_memory     plain=wrong              .
illegal_launch              plain=wrong              .
shared_workspace            tsan=report              emu::touch
product_overrun             plain=stop asan=stop     cublasLtMatmul: D
host_update_before_copy     prio=wrong  tsan=report  scale_on_host
copy_before_host_update     prio=wrong  tsan=report  scale_on_host
copy_into_host_update       prio=wrong  tsan=report  copy_into_host_update
unregistered_too_early      plain=stop tsan=report   cudaHostUnregister.while.a.copy\|free
never_registered            strict=stop              its host memory is pageable
collective_before_its_data  prio=wrong  tsan=report  fill_kernel
kernel_before_the_collective prio=wrong tsan=report  add_kernel
overwritten_while_sent      prio=wrong  tsan=report  fill_kernel
gathered_over_what_is_read  prio=wrong  tsan=report  add_kernel
host_reads_sum_early        plain=wrong tsan=report  host_reads_sum_early
two_streams_one_communicator tsan=report             sum_over_ranks
group_that_depends          plain=stop asan=stop     ncclReduceScatter.and.ncclAllGather.of.one
almost_in_place             plain=stop asan=stop     ncclReduceScatter:.the.buffers.overlap
gathered_too_much           plain=stop asan=stop     ncclAllGather:.8192.bytes.*past.the.end
one_rank_counts_otherwise   plain=stop asan=stop     count.1023,.*rank.0,.*count.1024,.*rank.1
'

# run MODE ARGUMENTS...: leaves what was printed in $work/out, and in $saw what that means
run() {
    mode=$1
    shift
    case $mode in
    tsan | race | racereverse | tsanprio) program=$tsan ;;
    asan) program=$asan ;;
    *) program=$plain ;;
    esac
    case $mode in
    eager | lazy) set -- EMU_SCHED="$mode" "$program" "$@" ;;
    prio0 | tsanprio) set -- EMU_SCHED=prio:0 "$program" "$@" ;;
    prio1) set -- EMU_SCHED=prio:1 "$program" "$@" ;;
    random*) set -- EMU_SCHED=random:"${mode#random}" "$program" "$@" ;;
    reverse) set -- EMU_ORDER=reverse "$program" "$@" ;;
    shuffled) set -- EMU_ORDER=random "$program" "$@" ;;
    strict) set -- EMU_STRICT=1 "$program" "$@" ;;
    threads) set -- EMU_THREADS=3 "$program" "$@" ;;
    race) set -- EMU_RACECHECK=1 "$program" "$@" ;;
    racereverse) set -- EMU_RACECHECK=1 EMU_ORDER=reverse "$program" "$@" ;;
    *) set -- "$program" "$@" ;;
    esac
    { timeout 300 env "$@" >"$work/out" 2>&1; } 2>/dev/null  # the shell's own news of a crash
    code=$?
    if grep -q 'WARNING: ThreadSanitizer\|ERROR: AddressSanitizer\|: runtime error: ' "$work/out"; then saw=report
    elif grep -q '^emulated GPU: [ei]' "$work/out"; then saw=stop
    elif [ $code -eq 3 ]; then saw=wrong
    elif [ $code -eq 0 ]; then saw=nothing
    else saw="exit code $code"; fi
}

# see BUG MODE OUTCOME PATTERN: does this mode see the bug, and say what it is?
see() {
    if [ "$2" = prio ]; then    # one of the two orders has to show it
        run prio0 "$1" bug
        [ "$saw" = "$3" ] || run prio1 "$1" bug
    else
        run "$2" "$1" bug
    fi
    [ "$saw" = "$3" ] && { [ "$3" = wrong ] || grep -q -e "$4" "$work/out"; } && return 0
    echo "  $1 in mode $2: saw $saw, expected $3 and \"$4\""
    grep -v '^bugs: ' "$work/out" | head -n 20 | sed 's/^/  /'
    return 1
}

available() {  # MODE
    case $1 in
    tsan* | race*) [ -x "$tsan" ] ;;
    asan) [ -x "$asan" ] ;;
    *) true ;;
    esac
}

if [ ! -x "$plain" ]; then
    echo "FAIL emu_bugs: $plain is missing"
    exit 1
fi
[ -x "$tsan" ] || echo "skip emu_bugs_tsan: no ThreadSanitizer build (it needs clang++)"
[ -x "$asan" ] || echo "skip emu_bugs_asan: no AddressSanitizer build"

# A name must stand in the program and here.
"$plain" 2>/dev/null | sed 's/^[a-z]* //' | sort >"$work/have"
echo "$bugs" | sed '/^$/d; s/ .*//' | sort >"$work/listed"
if cmp -s "$work/have" "$work/listed"; then
    echo "ok emu_bugs_are_all_listed"
else
    diff "$work/have" "$work/listed" | sed 's/^/  /'
    echo "FAIL emu_bugs_are_all_listed"
    failures=$((failures + 1))
fi

for mode in plain eager lazy prio0 prio1 random1 random2 reverse shuffled strict threads asan \
            tsan tsanprio race racereverse; do
    available $mode || continue
    run $mode
    if [ "$saw" = nothing ]; then
        echo "ok emu_no_false_alarm_$mode"
    else
        echo "  $mode: saw $saw in code without bugs"
        awk '/^bugs: / { name = $0; next } /^right/ { next }
             name != "" { print "  " name; name = "" } { print "  " $0 }' "$work/out" | head -n 30
        echo "FAIL emu_no_false_alarm_$mode"
        failures=$((failures + 1))
    fi
done

echo "$bugs" | sed '/^$/d' >"$work/table"
while read -r name rest; do
    tried=0 missed=0 pattern=$(echo "$rest" | sed 's/^\([a-z]*=[a-z]* *\)*//')
    for word in $rest; do
        case $word in *=*) ;; *) break ;; esac
        available "${word%=*}" || continue
        tried=$((tried + 1))
        see "$name" "${word%=*}" "${word#*=}" "$pattern" </dev/null || missed=$((missed + 1))
    done
    if [ $tried -eq 0 ]; then
        echo "skip emu_catches_$name: the sanitizer that sees it is not there"
    elif [ $missed -eq 0 ]; then
        echo "ok emu_catches_$name"
    else
        echo "FAIL emu_catches_$name"
        failures=$((failures + 1))
    fi
done <"$work/table"
[ $failures -eq 0 ]
