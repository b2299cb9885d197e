#!/bin/sh
# Runs test programs and test scripts, as many at a time as there are cores, shows what failed or
# was skipped, and counts: the last line is "N passed, N failed, N skipped". A test prints
# "ok NAME", "FAIL NAME: why" or "skip NAME: why" on a line of its own; a program that crashes or
# ends without a result counts as one failure.
# usage: dev/test/run.sh PROGRAM...     (from the top of the repository; scripts are added below)
set -u
export OMP_WAIT_POLICY=passive  # the emulated GPU's threads and ours share few cores

run_one() {  # name, command...: its results go to $RESULTS, and what is worth reading to stdout
    name=$1
    log=$RESULTS/$(echo "$name" | tr / _)
    shift
    start=$(date +%s)
    "$@" >"$log" 2>&1
    code=$?
    {
        if [ $code -ne 0 ] && ! grep -q '^FAIL ' "$log"; then
            tail -n 15 "$log"
            echo "FAIL $name: ended with code $code" >>"$log"
        elif ! grep -q '^ok \|^FAIL \|^skip ' "$log"; then
            echo "FAIL $name: printed no result" >>"$log"
        fi
        grep -q '^FAIL ' "$log" && cat "$log" || grep '^skip ' "$log"
        echo "$name: $(grep -c '^ok ' "$log") passed, $(grep -c '^FAIL ' "$log") failed," \
             "$(grep -c '^skip ' "$log") skipped ($(($(date +%s) - start)) s)"
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
        build/emu/test_timeline)
            run_one "${program#build/}" "$program"
            run_one "${program#build/}_lazy" env EMU_SCHED=lazy "$program" ;;
        *.sh) run_one "$(basename "$program")" sh "$program" ;;
        *) run_one "${program#build/}" "$program" ;;
    esac
}

if [ -n "${RESULTS-}" ]; then  # one of those that are started below
    run "$1"
    exit 0
fi
RESULTS=$(mktemp -d) || exit 1
export RESULTS
trap 'rm -rf "$RESULTS"' EXIT

if [ -z "${CLANG-}" ]; then
    echo "skip bits_of_clang: no clang on this machine" | tee -a "$RESULTS/machine"
fi
[ -n "${CLANGXX-}" ] || echo "skip thread_sanitizer: no clang++ on this machine" \
    | tee -a "$RESULTS/machine"
if [ -z "${NVCC-}" ]; then echo "skip nvcc_compiles: no nvcc on this machine"
else echo "ok nvcc_compiles"; fi | tee -a "$RESULTS/machine"  # or make would have stopped
[ -n "${NVCC-}" ] && [ -n "${GPU-}" ] || echo "skip tests_on_gpu: no GPU on this machine" \
    | tee -a "$RESULTS/machine"

# The scripts take longest: they come first.
printf '%s\n' dev/test/test_schedules.sh dev/test/test_*.sh dev/emu/test/test_*.sh "$@" \
    | awk '!seen[$0]++' | xargs -P "$(nproc)" -n 1 sh dev/test/run.sh

passed=$(cat "$RESULTS"/* | grep -c '^ok ')
failed=$(cat "$RESULTS"/* | grep -c '^FAIL ')
skipped=$(cat "$RESULTS"/* | grep -c '^skip ')
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
