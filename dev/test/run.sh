#!/bin/sh
# Runs test programs and test scripts, as many at a time as there are cores, shows what failed or
# was skipped, and counts: the last line is "N passed, N failed, N skipped". A test prints
# "ok NAME", "FAIL NAME: why" or "skip NAME: why" on a line of its own; a program that crashes or
# ends without a result counts as one failure.
# usage: dev/test/run.sh PROGRAM|SCRIPT...     (from the top of the repository)
#        MAKE=make: each program is built first, and is run while others are still compiled
#        ALL=1: the covering sets, schedules and plans that `make test` samples, whole
set -u
export LC_ALL=C

run_one() {  # name, command...: its results go to $RESULTS, and what is worth reading to stdout
    name=$1
    log=$RESULTS/$(echo "$name" | tr / _)
    shift
    start=$(date +%s)
    "$@" >"$log" 2>&1 </dev/null
    code=$?
    {
        if [ $code -ne 0 ] && ! grep -q '^FAIL ' "$log"; then
            tail -n 15 "$log"
            echo "FAIL $name: ended with code $code" >>"$log"
        elif ! grep -q '^ok \|^FAIL \|^skip ' "$log"; then
            echo "FAIL $name: printed no result" >>"$log"
        fi
        grep -q '^FAIL ' "$log" && cat "$log" || grep '^skip ' "$log"
        echo x >>"$RESULTS.done"
        echo "$program $(($(date +%s) - start))" >>"$SECONDS_FILE"
        echo "[$(wc -l <"$RESULTS.done")/$COUNT] $name: $(grep -c '^ok ' "$log") passed," \
             "$(grep -c '^FAIL ' "$log") failed, $(grep -c '^skip ' "$log") skipped" \
             "($(($(date +%s) - start)) s)"
    } >"$log.said"
    cat "$log.said"  # at once: others print, too
    rm "$log.said"
}

run() {  # a program or a script
    program=$1
    case $program in
        build/tsan/test_timeline | build/tsan/test_nccl)  # between streams
            run_one "${program#build/}" "$program" ;;
        build/tsan/*) run_one "${program#build/}" env EMU_RACECHECK=1 "$program" ;;
        build/asan/emu/*)  # the emulated GPU's own memory stays
            run_one "${program#build/}" env ASAN_OPTIONS=detect_leaks=0 "$program" ;;
        build/emu/test_gpt2cu)  # watching over its memory is three quarters of its time
            [ "${ALL:-0}" = 1 ] || export EMU_PROTECT=0
            run_one "${program#build/}" "$program" ;;
        build/emu/test_timeline)  # its own order; the other extreme where there is time
            [ "${ALL:-0}" = 1 ] && export EMU_SCHED=lazy
            run_one "${program#build/}" "$program" ;;
        *.sh)
            [ "${ALL:-0}" = 1 ] || [ -n "${TIDE_GPU-}" ] || export TIDE_GPU=build/emu/train_gpt2emu
            run_one "$(basename "$program")" sh "$program" ;;
        *) run_one "${program#build/}" "$program" ;;
    esac
}

if [ "${1-}" = --one ]; then  # one of those that are started below
    unset MAKE  # a test may call this script, or make: that has the variables which were given, no flags
    case ${MAKEFLAGS-} in *"-- "*) MAKEFLAGS="-- ${MAKEFLAGS#*-- }" ;; *) MAKEFLAGS= ;; esac
    export MAKEFLAGS
    run "$2"
    exit 0
fi
RESULTS=$(mktemp -d) || exit 1
COUNT=$#
SECONDS_FILE=build/seconds_$(uname -n)_${ALL:-0}
mkdir -p build
touch "$SECONDS_FILE"
export RESULTS COUNT SECONDS_FILE
export TSAN_OPTIONS="${TSAN_OPTIONS:-atexit_sleep_ms=0}"  # or each program sleeps for a second
trap 'rm -rf "$RESULTS" "$RESULTS.done"' EXIT

if [ -z "${CLANG-}" ]; then
    echo "skip bits_of_clang: no clang on this machine" | tee -a "$RESULTS/machine"
fi
[ -n "${CLANGXX-}" ] || echo "skip thread_sanitizer: no clang++ on this machine" \
    | tee -a "$RESULTS/machine"
if [ -z "${NVCC-}" ]; then echo "skip nvcc_compiles: no nvcc on this machine"
elif [ "${ALL:-0}${GPU:+1}" = 0 ]; then echo "skip nvcc_compiles: minutes, with make test-all"
else echo "ok nvcc_compiles"; fi | tee -a "$RESULTS/machine"  # or make stops
[ -n "${NVCC-}" ] && [ -n "${GPU-}" ] || echo "skip tests_on_gpu: no GPU on this machine" \
    | tee -a "$RESULTS/machine"

built=0 jobs=$(nproc 2>/dev/null || echo 2)
if [ -n "${MAKE-}" ]; then
    # Tests without a time begin first, then those that took longest the last time. There is one job
    # more than there are cores, because some tests wait more than they compute.
    [ -r "$SECONDS_FILE" ] || SECONDS_FILE=/dev/null
    ordered=$(printf '%s\n' "$@" | awk '!tests { last[$1] = $2; next }
        { print ($1 in last ? last[$1] : 1e9), $1 }' "$SECONDS_FILE" tests=1 - | sort -s -rn -k1,1 | cut -d' ' -f2)
    # shellcheck disable=SC2046,SC2086  # a list
    sh dev/test/build.sh "$MAKE" $((jobs + 1)) $(printf ' run/%s' $ordered) || built=$?
else
    printf '%s\n' "$@" | xargs -r -P "$jobs" -n 1 sh dev/test/run.sh --one
fi

cat "$RESULTS"/* | grep '^FAIL '  # once more, where a reader looks first
passed=$(cat "$RESULTS"/* | grep -c '^ok ')
failed=$(cat "$RESULTS"/* | grep -c '^FAIL ')
skipped=$(cat "$RESULTS"/* | grep -c '^skip ')
echo "$passed passed, $failed failed, $skipped skipped"
[ $built -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
