# cli.sh: how test_cli.sh and test_cli_gpu.sh say "ok NAME" and "FAIL NAME: why"; to be sourced.
# Leaves check.out, refuses.out and refuses.err in the current directory.
# shellcheck shell=sh

fail() { echo "FAIL $1: $2"; }

# check NAME CONDITION...: the condition is a command
check() {
    name=$1
    shift
    if "$@" >check.out 2>&1; then echo "ok $name"; else head -n 5 check.out; fail "$name" "$*"; fi
}

# refuses NAME CODE PATTERN COMMAND...: ends with CODE and one line that says PATTERN
refuses() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >refuses.out 2>refuses.err
    got=$?
    lines=$(wc -l <refuses.err)
    if [ "$got" -ne "$code" ]; then fail "$name" "exit code $got, not $code: $(cat refuses.err)"
    elif [ "$lines" -ne 1 ]; then fail "$name" "$lines lines of error: $(cat refuses.err)"
    elif ! grep -q "$pattern" refuses.err; then
        fail "$name" "does not say '$pattern': $(cat refuses.err)"
    else echo "ok $name"; fi
}
