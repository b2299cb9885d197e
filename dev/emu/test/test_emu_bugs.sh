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

# A mode, its program, its settings.
cat >"$work/modes" <<END
plain $plain
eager $plain EMU_SCHED=eager
lazy $plain EMU_SCHED=lazy
prio0 $plain EMU_SCHED=prio:0
prio1 $plain EMU_SCHED=prio:1
random $plain EMU_SCHED=random:1
reverse $plain EMU_ORDER=reverse
shuffled $plain EMU_ORDER=random
strict $plain EMU_STRICT=1
threads $plain EMU_THREADS=3
asan $asan
tsan $tsan
tsanprio $tsan EMU_SCHED=prio:0
race $tsan EMU_RACECHECK=1
racereverse $tsan EMU_RACECHECK=1 EMU_ORDER=reverse
END

# run MODE ARGUMENTS...: leaves what was printed in $work/out, and in $saw what that means. False if
# the mode's program is not there.
run() {
    # shellcheck disable=SC2046  # (words)
    set -- $(sed -n "s/^$1 //p" "$work/modes") -- "$@"
    program=$1 settings=
    [ -x "$program" ] || return 1
    while shift && [ "$1" != -- ]; do settings="$settings $1"; done
    shift 2
    # shellcheck disable=SC2086  # (words; and outside, the shell's own news of a crash)
    { timeout 300 env $settings "$program" "$@" >"$work/out" 2>&1; } 2>/dev/null
    code=$?
    if grep -q 'WARNING: ThreadSanitizer\|ERROR: AddressSanitizer\|: runtime error: ' "$work/out"; then saw=report
    elif grep -q '^emulated GPU: [ei]' "$work/out"; then saw=stop
    elif [ $code -eq 3 ]; then saw=wrong
    elif [ $code -eq 0 ]; then saw=nothing
    else saw="exit code $code"; fi
}

# said NAME: the verdict, by $wrong.
said() {
    if [ "$wrong" = 0 ]; then echo "ok $1"
    else echo "FAIL $1" && failures=$((failures + 1)); fi
}

[ -x "$tsan" ] || echo "skip emu_bugs_tsan: no ThreadSanitizer build (it needs clang++)"
[ -x "$asan" ] || echo "skip emu_bugs_asan: no AddressSanitizer build"

while read -r mode rest; do
    run "$mode" </dev/null || continue
    wrong=0
    [ "$saw" = nothing ] || { wrong=1; echo "  saw $saw in code without bugs"; tail -n 30 "$work/out"; }
    said "emu_no_false_alarm_$mode"
done <"$work/modes"

"$plain" list >"$work/table"
[ -s "$work/table" ] || failures=1
while read -r name rest; do
    wrong=none pattern=$(echo "$rest" | sed 's/^\([a-z]*=[a-z]* *\)*//')
    for word in ${rest%"$pattern"}; do
        mode=${word%=*} expected=${word#*=}
        [ "$mode" != prio ] || mode=prio0  # one of the two orders has to show it
        run "$mode" "$name" bug </dev/null || continue
        [ "$word" = "$mode=$expected" ] || [ "$saw" = "$expected" ] || run prio1 "$name" bug </dev/null
        [ "$wrong" != none ] || wrong=0
        [ "$saw" = "$expected" ] && { [ "$saw" = wrong ] || grep -q -e "$pattern" "$work/out"; } && continue
        echo "  $name in mode $mode: saw $saw, expected $expected and \"$pattern\""
        grep -v '^bugs: ' "$work/out" | head -n 20
        wrong=1
    done
    if [ $wrong = none ]; then echo "skip emu_catches_$name: the sanitizer that sees it is not there"
    else said "emu_catches_$name"; fi
done <"$work/table"
[ $failures -eq 0 ]
