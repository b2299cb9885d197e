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

# in_a_folder: what follows is done in a new folder, $work, which goes in the end; $top is the repository's
in_a_folder() {
    top=$(pwd)
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
    cd "$work" || exit 1
}

# program NAME: standard input is one
program() { cat >"$1" && chmod +x "$1"; }

# --- what the tests of the trainers share ----------------------------------------------------------

absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }

# begin NAME [TOOL...]: the trainers ($cpu and $tide), the launcher and tools of build/ by their
# paths, one thread each, and a folder for this test with text.txt; ends the script where one is missing
begin() {
    begun=$1 top=$(pwd)
    shift
    cpu=$(absolute "${TIDE_CPU:-train_gpt2}") tide=$(absolute "${TIDE_GPU:-train_gpt2emu}")
    launch=$top/scripts/launch.sh
    for program in "$cpu" "$tide" "$@"; do
        [ -x "$program" ] || { echo "skip $begun: $program is missing"; exit 0; }
    done
    cores=$(nproc 2>/dev/null || echo 2)  # (before the next line: nproc minds it)
    export OMP_NUM_THREADS=1 EMU_THREADS=1
    # A GPU has queues for few processes: of 16 at a time, some are out of memory.
    case $tide in *emu) emulated=1 ;; *) emulated= ; [ "$cores" -le 4 ] || cores=4 ;; esac
    work=$(mktemp -d) || exit 1
    trap 'kill $(jobs -p) 2>/dev/null; chmod -R u+w "$work"; rm -rf "$work"' EXIT
    cat LICENSE LICENSE LICENSE >"$work/text.txt"
    cp scripts/rates/rtx4090_desktop.txt "$work/rates.txt"
    cd "$work" || exit 1
}

# ranks N OPTION...: the GPU trainer, N times
ranks() {
    number=$1
    shift
    "$launch" "$number" "$tide" "$@"
}
# enough_gpus N: are there so many?
enough_gpus() { [ -n "$emulated" ] || [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -ge "$1" ]; }

# go NAME COMMAND...: with --out NAME, in the background, as many at a time as there are cores
going=
go() {
    began=$1
    shift
    case " $* " in *" --resume "*) ;; *) rm -rf "$began" ;; esac
    "$@" --out "$began" >"$began.out" 2>"$began.err" &
    going="$going $!"
    [ "$(echo "$going" | wc -w)" -lt "$cores" ] || arrive
}
arrive() { for pid in $going; do wait "$pid"; done; going=; }

# at NEW RUN STEP COMMAND...: a copy of the run, as it was after STEP steps, is resumed
at() {
    copied=$1
    copy "$@"
    shift 3
    "$@" --resume --out "$copied" >"$copied.out" 2>"$copied.err"
}
copy() {
    rm -rf "$1"
    mkdir -p "$1/checkpoints"
    cp -r "$(dirname "$(state "$2" "$3")")" "$1/checkpoints"
    for f in "$2"/*; do [ -d "$f" ] || cp "$f" "$1"; done
    rm -f "$1/model.safetensors"
}
state() { printf '%s/checkpoints/step_%08d/state' "$1" "$2"; }  # RUN STEP
# steps_of RUN: of which it has checkpoints
steps_of() { (cd "$1/checkpoints" && ls -d step_* | sed 's/^step_0*//'); }

# field RUN STEP MEMBER: a number of the log; members RUN MEMBER: of all lines
field() { sed -n "s/^{\"step\":$2,.*\"$3\":\([-0-9.e+]*\).*/\1/p" "$1/log.jsonl"; }
members() { sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p" "$1/log.jsonl"; }
# losses RUN: and norms and evaluations, with all digits
losses() { sed -n 's/\("norm":[^,]*\|"grad_norm":[^,]*\|"val_loss":[^}]*\).*/\1/p' "$1/log.jsonl"; }

# same NAME RUN REFERENCE: losses, weights and, of every checkpoint in both, parameters, moments and
# columns
same() {
    losses "$2" >a.txt
    losses "$3" >b.txt
    why= states=0
    cmp -s a.txt b.txt && [ -s a.txt ] || why="losses: $(diff a.txt b.txt | tr '\n' ' ')"
    cmp -s "$2/model.safetensors" "$3/model.safetensors" || why="$why weights"
    for s in $(steps_of "$2"); do
        [ -f "$(state "$3" "$s").txt" ] || continue
        states=$((states + 1))
        cmp -s "$(state "$2" "$s").safetensors" "$(state "$3" "$s").safetensors" || why="$why state $s"
        [ "$(kept "$2" "$s")" = "$(kept "$3" "$s")" ] || why="$why columns $s"
    done
    [ $states -gt 0 ] || why="$why no state"
    if [ -z "$why" ]; then echo "ok $1"; else fail "$1" "differs: $why $(head -n 3 "$2.err" 2>&1)"; fi
}
kept() { grep '^hashes\|^optimizer\|^zen' "$(state "$1" "$2").txt"; }  # RUN STEP
same_weights() { cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
differ() { ! same_weights "$1" "$2"; }

# near NAME RUN REFERENCE LIMIT: all losses and evaluations, relative
near() {
    for compared in "$2" "$3"; do
        sed -n 's/.*"\(val_\|\)loss":\([^,}]*\).*/\2/p' "$compared/log.jsonl" >"near.$compared"
    done
    check "$1" sh -c 'paste "near.$1" "near.$2" | awk -v limit="$3" "{ d = \$1 / \$2 - 1
        if (NF != 2 || !(d <= limit && -d <= limit)) { print NR \": \" \$0; bad = 1 } }
        END { exit bad || NR < 3 }"' - "$2" "$3" "$4"
}
true_that() { awk "BEGIN { exit !($1) }"; }
# close A B DISTANCE: numbers
close() { true_that "($1 + 0) - ($2 + 0) <= $3 && ($2 + 0) - ($1 + 0) <= $3 && $1 + 0 > 0"; }
# as_planned NAME OUTPUT [PART]: the memory that was taken, the GPU's or the CPU trainer's, within a part of it
as_planned() {
    check "$1" awk -v part="${3:-0.03}" '/^GPU memory: .* MiB taken, planned .* MiB$/ ||
        /^memory: at most .* MiB, planned .* MiB$/ { gsub("[a-zA-Z:]+", ""); gsub(",", ""); n++
            if ($1 > (1 + part) * $2 || $1 < (1 - part) * $2) exit bad = 1 } END { exit bad || n != 1 }' "$2"
}

# planned PLACE FILE: the total of a memory plan, in MiB
planned() {
    awk -v place="$1" '$1 == place && $2 == "total" { print $3 * (/GiB/ ? 1024 : 1) }' "$2"
}
# plan_of FILE: its memory plan, without what there is
plan_of() { sed -n '/^GPU memory:/d; /^\(GPU\|host\) /{s/ of .*//;s/ [MG]iB$//;p;}' "$1"; }

# plan_says NAME PLAN OUTPUT: a plan and a run with the same options print the same memory and placement
plan_says() {
    for f in "$2" "$3"; do
        { plan_of "$f"; grep '^offload \|^recomputing\|^gradients \|^weights \|layers, of' "$f"; } >"$f.said"
    done
    check "$1" sh -c 'test -s "$1.said" && diff "$1.said" "$2.said"' - "$2" "$3"
}

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

# longer COMMAND: with times=1, and where it fails with 4 and 16: it begins a run that is so many
# times as long
longer() {
    for times in 1 4 16; do "$@" && return; done
    false
}

# gradients_end TRACE: all bytes of each segment's gradient leave, or updates on the GPU read them
gradients_end() {
    sed -n 's/.*"name":"\(backward\|leave\|update\)".*"number":\([0-9]*\),"bytes":\([0-9]*\).*/\1 \2 \3/p' "$1" |
        awk '$1 == "backward" { made[$2] = $3 } $1 != "backward" { ended[$2] += $3; ended[$1]++ }
             END { for (s in made) if (ended[s] == 0 || ended[s] % made[s]) exit 1; exit !ended["update"] }'
}
