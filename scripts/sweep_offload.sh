#!/bin/sh
# Measures how each setting of offloading changes a step: a table for each sweep, on the screen and in
# OUT/SWEEP.tsv. Figures are those of Deep Optimizer States (Maurya et al. 2024).
#   subgroup  parameters of a sub-group (figure 2)     SUBGROUPS  25 to 1000 million
#   resident  share that stays on the GPU (10, 11)     RESIDENTS  0 to 0.5
#   share     share that visits the GPU (16)           SHARES     0 to 1
#   stride    the same in the paper's terms (16)       STRIDES    1 to 5
#   batch     sequences in a micro-batch (13)          BATCHES    1 to 16
#   threads   of the host (14)                         THREADS    1 to all cores
#   slots     rooms on the GPU for visitors            SLOTS      1 to 6
#   drift     100 iterations in a row (9): the median of their first quarter and of their last
# usage: [SWEEPS="share drift"] [MODEL=7b] [DATA=FILE] [OUT=DIR] [SHARES="0.1 0.9"]
#        scripts/sweep_offload.sh [OPTION...]     e.g. --batch 1 --seq 2048 --gpu-memory 48G
# The options are passed to every run; scripts/measure.sh has more variables. Ends with 1 if a run
# failed; a run that does not fit has a line that says so.
set -eu
# shellcheck source=scripts/measure.sh
. "$(dirname "$0")/measure.sh"
threads=$(getconf _NPROCESSORS_ONLN)
wrong=0

# sweep NAME MODES OPTION VALUES [OPTION...]: makes a table of each value in each mode
sweep() {
    sweep=$1 modes=$2 option=$3 values=$4
    shift 4
    table=$out/$sweep.tsv
    : >"$table"
    mkdir -p "$out/$sweep"
    echo
    line "$sweep" "$columns"
    for value in $values; do
        for mode in $modes; do
            run "$sweep/$mode-$value" "$@" -- --offload "$mode" "$option" "$value"
            [ "$ended" != failed ] || wrong=1
        done
    done
}

for sweep in ${SWEEPS:-subgroup resident share stride batch threads slots drift}; do
    case $sweep in
        subgroup) sweep subgroup "zero interleave" --subgroup \
            "${SUBGROUPS:-25000000 50000000 100000000 200000000 500000000 1000000000}" "$@" ;;
        resident) sweep resident "twinflow interleave" --resident \
            "${RESIDENTS:-0 0.1 0.2 0.3 0.4 0.5}" "$@" ;;
        share) sweep share interleave --share "${SHARES:-0 0.2 0.33 0.5 0.6 0.7 0.8 0.9 1}" "$@" ;;
        stride) sweep stride interleave --stride "${STRIDES:-1 2 3 4 5}" "$@" ;;
        batch) sweep batch "zero interleave" --batch "${BATCHES:-1 2 4 8 16}" "$@" ;;
        threads) sweep threads "zero interleave" --threads "${THREADS:-$(awk -v n="$threads" \
            'BEGIN { for (i = 1; i < n; i *= 2) print i; print n }')}" "$@" ;;
        slots) sweep slots interleave --slots "${SLOTS:-1 2 3 4 6}" "$@" ;;
        drift)
            steps=${DRIFT_STEPS:-100} table=$out/drift.tsv
            : >"$table"
            echo
            line drift "$columns"
            run drift --offload interleave -- "$@"
            steps=${STEPS:-12}
            if [ "$ended" = ok ]; then
                awk -v warmup="$warmup" -v micro=1 -v period=1 "$reader"'
                    /"grad_norm"/ { add("ms", $0) }
                    END {
                        steps = last["ms"]
                        n = steps - warmup
                        if (n < 4) { print "too few steps to tell"; exit }
                        last["ms"] = warmup + int(n / 4)
                        begin = typical("ms")
                        last["ms"] = steps
                        warmup = steps - int(n / 4)
                        printf "drift: %.1f ms in the first quarter of %d steps, %.1f in the last:",
                               begin, n, typical("ms")
                        printf " %+.1f %%\n", 100 * (typical("ms") / begin - 1)
                    }' "$out/drift/log.jsonl" | tee -a "$table"
            else wrong=1; fi ;;
        *) refuse "no sweep $sweep" ;;
    esac
done
exit $wrong
