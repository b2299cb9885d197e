#!/bin/sh
# Compares zeroth-order training in GPU memory, streamed from the host, and streamed without each
# feature that makes it fast, with the same model, data and seed: the time of a step, the waits of the
# GPU, the memory. Checks that the losses of all are the same, to the last digit in log.jsonl. Ends with
# 1 if they are not.
# usage: [MODEL=opt-1.3b] [DATA=FILE] [OUT=DIR] [MODES="memory streamed"]
#        scripts/zo_compare.sh [OPTION...]        e.g. --batch 1 --seq 2048 --zo-queries 2
# The options are passed to every run; scripts/measure.sh has more variables. Other modes: slotsN and
# residentN, with N slots and N resident layers. "waited": for layers, by the events between streams.
# "plan ms": what --plan predicts. OUT/compare.tsv has the table, too.
set -eu
MODEL=${MODEL:-opt-1.3b}
# shellcheck source=scripts/measure.sh
. "$(dirname "$0")/measure.sh"
modes=${MODES:-memory streamed no-overlap no-slots no-fused-update slots2}
table=$out/compare.tsv
# shellcheck source=scripts/zo_measure.sh
. scripts/zo_measure.sh
: >"$table"
line mode "$columns"
wrong=0 same='' ran=''
for mode in $modes; do
    case $mode in
        memory) options="--resident-blocks 1000" ;;  # else it would stream layers that do not fit
        streamed) options="--resident-blocks 0" ;;
        no-overlap) options="--resident-blocks 0 --no-overlap" ;;
        no-slots | no-fused-update) options="--resident-blocks 0 --zo-$mode" ;;
        slots[1-9]*) options="--resident-blocks 0 --slots ${mode#slots}" ;;
        resident[0-9]*) options="--resident-blocks ${mode#resident}" ;;
        *) refuse "no mode $mode" ;;
    esac
    # shellcheck disable=SC2086  # options are words
    run "$mode" --optimizer mezo -- "$@" -- $options
    case $ended in
        ok) ran="$ran $mode" ;;
        small) ;;
        *) wrong=1 ;;
    esac
done

# shellcheck disable=SC2086
set -- $ran
[ $# -gt 1 ] || { echo "nothing to compare: $# of the modes ran" >&2; exit 1; }
agree "$@"
agreed
