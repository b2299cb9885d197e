#!/bin/sh
# test_emu_bugs.sh [PLAIN [TSAN [ASAN]]]: the emulated device must catch every bug of bugs.cu in the
# modes named there, and must never object to the same code without the bug. The three programs are
# bugs.cu built plainly, with ThreadSanitizer (clang++) and with AddressSanitizer; one that is not
# there is skipped. Prints "ok NAME", "FAIL NAME" or "skip NAME: why"; exit code 1 if any failed.
plain=${1:-build/emu/bugs} tsan=${2:-build/tsan/bugs} asan=${3:-build/asan/emu/bugs}
export TSAN_OPTIONS="exitcode=66 atexit_sleep_ms=0 history_size=7"
export ASAN_OPTIONS="exitcode=66 detect_leaks=0"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# run MODE ARGUMENTS...: leaves what was printed in $work/out, and in $saw what that means
run() {
    mode=$1 program=$plain set=
    shift
    case $mode in
    tsan* | race*) program=$tsan ;;
    asan) program=$asan ;;
    esac
    case $mode in
    eager | lazy) set=EMU_SCHED=$mode ;;
    prio0 | tsanprio) set=EMU_SCHED=prio:0 ;;
    prio1) set=EMU_SCHED=prio:1 ;;
    random*) set=EMU_SCHED=random:${mode#random} ;;
    reverse) set=EMU_ORDER=reverse ;;
    shuffled) set=EMU_ORDER=random ;;
    strict) set=EMU_STRICT=1 ;;
    threads) set=EMU_THREADS=3 ;;
    race) set=EMU_RACECHECK=1 ;;
    racereverse) set="EMU_RACECHECK=1 EMU_ORDER=reverse" ;;
    esac
    # shellcheck disable=SC2086  # (words; and outside, the shell's own news of a crash)
    { timeout 300 env $set "$program" "$@" >"$work/out" 2>&1; } 2>/dev/null
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

"$plain" list >"$work/table"
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
