#!/bin/sh
# Runs test programs and test scripts, shows what failed or was skipped, and counts: the last line
# is "N passed, N failed, N skipped". A test prints "ok NAME", "FAIL NAME: why" or "skip NAME: why"
# on a line of its own; a program that crashes or ends without a result counts as one failure.
# usage: dev/test/run.sh PROGRAM...     (from the top of the repository; scripts are added below)
set -u
export OMP_WAIT_POLICY=passive  # the emulated GPU's threads and ours share few cores
log=$(mktemp) && all=$(mktemp) || exit 1
trap 'rm -f "$log" "$all"' EXIT

run_one() {  # name, command...
    name=$1
    shift
    start=$(date +%s)
    "$@" >"$log" 2>&1
    code=$?
    if [ $code -ne 0 ] && ! grep -q '^FAIL ' "$log"; then
        tail -n 15 "$log"
        echo "FAIL $name: ended with code $code" >>"$log"
    elif ! grep -q '^ok \|^FAIL \|^skip ' "$log"; then
        echo "FAIL $name: printed no result" >>"$log"
    fi
    grep -q '^FAIL ' "$log" && cat "$log" || grep '^skip ' "$log"
    echo "$name: $(grep -c '^ok ' "$log") passed, $(grep -c '^FAIL ' "$log") failed," \
         "$(grep -c '^skip ' "$log") skipped ($(($(date +%s) - start)) s)"
    cat "$log" >>"$all"
}

if [ -z "${CLANG-}" ]; then
    echo "skip bits_of_clang: no clang on this machine" | tee -a "$all"
fi
[ -n "${CLANGXX-}" ] || echo "skip thread_sanitizer: no clang++ on this machine" | tee -a "$all"
if [ -z "${NVCC-}" ]; then echo "skip nvcc_compiles: no nvcc on this machine"
else echo "ok nvcc_compiles"; fi | tee -a "$all"  # or make would have stopped
[ -n "${NVCC-}" ] && [ -n "${GPU-}" ] || echo "skip tests_on_gpu: no GPU on this machine" | tee -a "$all"

for program in "$@"; do
    case $program in
        build/tsan/test_timeline | build/tsan/test_nccl) run_one "${program#build/}" "$program" ;;  # of streams
        build/tsan/*) run_one "${program#build/}" env EMU_RACECHECK=1 "$program" ;;
        build/asan/emu/*)  # the emulated GPU's own memory stays
            run_one "${program#build/}" env ASAN_OPTIONS=detect_leaks=0 "$program" ;;
        build/emu/test_timeline)
            run_one "${program#build/}" "$program"
            run_one "${program#build/}_lazy" env EMU_SCHED=lazy "$program" ;;
        *) run_one "${program#build/}" "$program" ;;
    esac
done
for script in dev/test/test_*.sh dev/emu/test/test_*.sh; do
    run_one "$(basename "$script")" sh "$script"
done

passed=$(grep -c '^ok ' "$all")
failed=$(grep -c '^FAIL ' "$all")
skipped=$(grep -c '^skip ' "$all")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
