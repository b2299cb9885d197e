# cli.sh: what the tests of the command line share; to be sourced. They say "ok NAME" and
# "FAIL NAME: why". Leaves check.out, refuses.out and refuses.err in the current directory.
# shellcheck shell=sh
export LC_ALL=C

# All runs and checks (ALL=1, as in `make test-all`), or each feature once? What is tested a second
# time with other parameters, or for another number of ranks, stands behind this.
whole() { [ "${ALL:-0}" = 1 ]; }

# Of the 0.5 s that a process on the emulated GPU takes, 0.4 are for watching over its memory, and
# for measuring how fast it is, which a virtual clock says at once. The first runs of a script have
# both; what follows does without the one, and without the other unless all is tested. (Not what
# measures the link and the CPU's part of an update, too: that needs EMU_CLOCK=real, or --rates.)
without_measuring() {
    export EMU_PROTECT=0
    whole || export EMU_CLOCK=virtual EMU_KERNEL_US=10000 EMU_SCHED=lazy
}

# A GPU has queues for few processes: of 16 at a time, some are out of memory.
case ${tide-} in *emu | '') ;; *) [ "${cores:-1}" -le 4 ] || cores=4 ;; esac

fail() { echo "FAIL $1: $2"; }

# check NAME CONDITION...: the condition is a command
check() {
    checked=$1  # (a condition may be a function, with a $name of its own)
    shift
    if "$@" >check.out 2>&1; then echo "ok $checked"
    else
        head -n 5 check.out
        fail "$checked" "$*"
    fi
}

# refuses NAME CODE PATTERN COMMAND...: ends with CODE and one line that says PATTERN; several ranks
# may say the same
refuses() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >refuses.out 2>refuses.err
    got=$?
    lines=$(sed 's/^tide: rank [0-9]*: /tide: /' refuses.err | sort -u | wc -l)
    if [ "$got" -ne "$code" ]; then fail "$name" "exit code $got, not $code: $(cat refuses.err)"
    elif [ "$lines" -ne 1 ]; then fail "$name" "$lines lines of error: $(cat refuses.err)"
    elif ! grep -q "$pattern" refuses.err; then
        fail "$name" "does not say '$pattern': $(cat refuses.err)"
    else echo "ok $name"; fi
}

# planned PLACE FILE: the total of a memory plan, in MiB
planned() {
    awk -v place="$1" '$1 == place && $2 == "total" { print $3 * (/GiB/ ? 1024 : 1) }' "$2"
}
# plan_of FILE: its memory plan, without what there is
plan_of() { sed -n '/^GPU memory:/d; /^\(GPU\|host\) /{s/ of .*//;s/ [MG]iB$//;p;}' "$1"; }

# A run is stopped at some moment between its begin and its end, and a busy machine chooses that
# moment as well: a test begins anew, with a longer run, where the run was over first.

# newest RUN: the path of its last whole checkpoint
newest() {
    set -- "$1"/checkpoints/step_*
    eval "echo \"\${$#}\""
}

# await PROCESS CONDITION...: until that is true, or the process has ended; or, as something hangs,
# for some minutes
await() {
    process=$1 looks=0
    shift
    until "$@" || ! kill -0 "$process" 2>/dev/null || [ $looks -ge 15000 ]; do
        sleep 0.02
        looks=$((looks + 1))
    done
}

# until_saved PROCESS RUN: until the run has one checkpoint more, or has ended
until_saved() {
    seen=$(newest "$2")
    await "$1" has_another "$2"
}
has_another() { [ "$(newest "$1")" != "$seen" ]; }

# a_moment: up to 60 ms
a_moment() { sleep "$(od -An -N1 -tu1 /dev/urandom | awk '{ printf "%.3f", $1 / 4250 }')"; }

# often_killed PROGRAM OPTION...: the run "killed" is killed after some checkpoint, when it has just
# been resumed, and after another one, and then goes on to its end. False: it was over too early.
often_killed() {
    program=$1
    shift
    rm -rf killed
    for when in saved soon saved; do
        "$program" "$@" --out killed >/dev/null 2>&1 &
        [ $when = soon ] || until_saved $! killed
        a_moment
        kill -9 $! 2>/dev/null
        wait $! 2>/dev/null
        [ $? -eq 137 ] || return 1
        set -- --resume
    done
    "$program" --resume --out killed >/dev/null 2>&1
}

# longer COMMAND: with times=1, and where it fails with 4 and 16: it begins a run that is so many
# times as long
longer() {
    for times in 1 4 16; do "$@" && return; done
    false
}
