#!/bin/sh
# Compares every placement of the optimizer's state with the same model, data and seed: the time of an
# iteration and its parts, and the memory. Placements that compute the same must have the same losses
# and gradient norms, to the last digit in log.jsonl. If they have not, the script ends with 1.
# usage: [MODEL=7b] [DATA=FILE] [OUT=DIR] [MODES="zero twinflow"] [RESIDENT=0.2] [WINDOW=4]
#        [EVALS=8] [ZEN="--zen-topk 0.05"] [STREAMED="--gpu-memory 8G"]
#        scripts/compare_offload.sh [OPTION...]     e.g. --batch 1 --seq 2048 --gpu-memory 48G
# The options are passed to every run; scripts/measure.sh has more variables. RESIDENT: twinflow's share
# on the GPU (default: all that fits). "published" has no overlaps, like ZeRO-Offload and TwinFlow as
# they were published. "stride2" is the paper's choice. "streamed" is zero with weights on the host, too
# (STREAMED: its options; with all of the GPU's memory each layer would have a place of its own). MODES
# may also name auto, interleave-streamed, zenflow-streamed, interleave-published, none-uncapped
# (without --gpu-memory), none-light (which recomputes a little) and zero-held (in which the CPU's work
# holds a thread of the driver: doc/offload.md). A single mode is measured, and compared with nothing.
# OUT/compare.tsv has the table, too.
#
# The rows from zero-accum on compute something else, so their losses differ. All train on the same
# tokens; times, bytes and waits are per step of the other rows:
#   zero-accum     one update for the tokens of WINDOW steps, whose gradients the GPU sums
#   zero-late      updates on the host are used one step late; those of vectors at once
#   zenflow-sync   ZenFlow, windows of WINDOW steps; their updates are used at once
#   zenflow        ZenFlow as published: updates are used a window late
#   zenflow-serial ZenFlow without any overlap
# ZEN: options for all zenflow rows, which get no --subgroup, --slots and --grad-wire. EVALS: evaluates
# each run so often, and writes OUT/loss.tsv: the losses after the same tokens, and at the same time.
# The first window is warm-up, and in the second no update is late: times are of the windows after it.
set -eu
modes=${MODES:-none zero twinflow interleave stride2 streamed zero-published twinflow-published \
    zero-accum zero-late zenflow-sync zenflow zenflow-serial}
case " $modes " in *" zenflow"*) STEPS=${STEPS:-$((5 * ${WINDOW:-4}))} ;; esac
# shellcheck source=scripts/measure.sh
. "$(dirname "$0")/measure.sh"
table=$out/compare.tsv
published="--no-overlap"
twinflow="--offload twinflow ${RESIDENT:+--resident $RESIDENT}"
window=${WINDOW:-4} evals=${EVALS:-0}
[ "$window" -gt 1 ] || refuse "WINDOW $window: a window has at least 2 steps"
case " $modes " in *" zenflow"* | *" zero-accum "*)  # whole windows, from the first step on
    steps=$((steps / window * window)) warmup=$(((warmup + window - 1) / window * window))
    [ "$warmup" -ge "$window" ] || warmup=$window
    [ $steps -gt $((warmup + window)) ] ||
        refuse "of $steps STEPS in windows of $window, the WARMUP leaves none" ;;
esac
[ "$evals" -eq 0 ] || every=$((steps / evals / window * window))
[ "$evals" -eq 0 ] || [ "$every" -ge $((2 * window)) ] ||
    refuse "$steps STEPS in windows of $window are too few for $evals EVALS"
zenflow="--offload zenflow --zen-window $window --zen-warmup $window -- ${ZEN-}"
all_steps=$steps all_warmup=$warmup all_every=$every
accum=1 before=''
for option in "$@"; do
    case $before$option in --accum=*) accum=${option#*=} ;; --accum?*) accum=$option ;; esac
    before=$option
done

# run_whole NAME OPTION...: is run(), without the options that cut the state into pieces.
run_whole() {
    name=$1 left=$#
    shift
    while [ $((left -= 1)) -gt 0 ]; do
        option=$1
        shift
        case $option in
            --subgroup=* | --slots=* | --grad-wire=*) ;;
            --subgroup | --slots | --grad-wire) [ $left -lt 2 ] || { shift; left=$((left - 1)); } ;;
            *) set -- "$@" "$option" ;;
        esac
    done
    run "$name" "$@"
}

: >"$table"
line mode "$columns"
wrong=0 same='' ran='' plain='' windowed='' small=0 host_wait=${TIDE_HOST_WAIT-}
export TIDE_HOST_WAIT
for mode in $modes; do
    micro=1 period=1 TIDE_HOST_WAIT=$host_wait
    case $mode in
        none | auto | zero | interleave) options="--offload $mode" ;;
        zero-held) options="--offload zero" TIDE_HOST_WAIT=function ;;
        none-uncapped) options="--offload none --gpu-memory 0" ;;
        none-light) options="--offload none --gpu-memory 0 --recompute light" ;;
        streamed) options="--offload zero --weights host ${STREAMED-}" ;;
        interleave-streamed) options="--offload interleave --weights host ${STREAMED-}" ;;
        twinflow) options=$twinflow ;;
        stride2) options="--offload interleave --stride 2" ;;
        zero-published) options="--offload zero $published" ;;
        twinflow-published) options="$twinflow $published" ;;
        interleave-published)
            options="--offload interleave --stride 2 --grad-wire fp32" ;;
        zero-accum) options="--offload zero --accum $((accum * window))" micro=$window ;;
        zero-late) options="--offload zenflow --zen-topk 0 --zen-window 1" ;;
        zenflow-sync) options="$zenflow -- --zen-overlap off" period=$window ;;
        zenflow) options="$zenflow" period=$window ;;
        zenflow-streamed) options="$zenflow -- --weights host ${STREAMED-}" period=$window ;;
        zenflow-serial) options="$zenflow --no-overlap" period=$window ;;
        *) refuse "no mode $mode" ;;
    esac
    steps=$((all_steps / micro)) every=$((all_every / micro))
    warmup=$((all_warmup / micro + (period > 1 ? window : 0)))
    # shellcheck disable=SC2086  # options are words
    case $options in
        *zenflow*) run_whole "$mode" "$@" -- $options ;;
        *) run "$mode" "$@" -- $options ;;
    esac
    case $ended in
        ok)
            ran="$ran $mode"
            case $mode in
                zenflow | zenflow-streamed | zenflow-serial) windowed="$windowed $mode" ;;
                zero-accum | zero-late | zenflow-sync) ;;
                *) plain="$plain $mode" ;;
            esac ;;
        small) small=$((small + 1)) ;;
        *) wrong=1 ;;
    esac
done

# shellcheck disable=SC2086
set -- $ran
if [ $# -lt 2 ] && [ "$*" != "$modes" ]; then
    echo "nothing to compare: $# of the modes ran" >&2
    exit 1
fi
# shellcheck disable=SC2086
agree $plain
# shellcheck disable=SC2086
agree $windowed

# The table of losses: the loss of each row after the tokens that all have trained, and at the time at
# which the fastest had trained them. Between two evaluations the loss is taken from a straight line.
# The time is that of the table above, per step, without evaluations.
if [ "$evals" -gt 0 ]; then
    for mode in "$@"; do
        case $mode in zero-accum) micro=$window ;; *) micro=1 ;; esac
        awk -F '\t' -v mode="$mode" '$1 == mode { print "ms", $3 }' "$table"
        sed -n 's/.*"ms":\([^,]*\),"tokens_per_s":\([^,}]*\).*/tokens \1 \2/p' \
            "$out/$mode/log.jsonl" | head -n 1
        sed -n 's/.*"step":\([0-9]*\),"val_loss":\([^,}]*\).*/val \1 \2/p' \
            "$out/$mode/log.jsonl"
        echo "end $mode $micro"
    done | awk '
        $1 == "ms" { ms[n + 1] = $2 }
        $1 == "tokens" { tokens[n + 1] = $2 * $3 / 1000 }
        $1 == "val" { at[n + 1, ++vals[n + 1]] = $2; val[n + 1, vals[n + 1]] = $3 }
        $1 == "end" {  # steps of so many become steps
            mode[++n] = $2
            for (i = 1; i <= vals[n]; i++) at[n, i] *= $3
            tokens[n] /= $3
            if (n == 1 || at[n, vals[n]] < seen) seen = at[n, vals[n]]
        }
        function loss(k, step,    i, part) {
            for (i = 1; i <= vals[k]; i++) {
                if (at[k, i] < step) continue
                if (i == 1) return at[k, i] == step ? val[k, i] : "-"
                part = (step - at[k, i - 1]) / (at[k, i] - at[k, i - 1])
                return val[k, i - 1] + part * (val[k, i] - val[k, i - 1])
            }
            return "-"
        }
        function cell(x) { return x == "-" ? x : sprintf("%.4f", x) }
        END {
            for (k = 1; k <= n; k++) if (fastest == 0 || ms[k] < ms[fastest]) fastest = k
            printf "mode\ttokens\tseconds\tval loss\tat %.3g s\n", ms[fastest] * seen / 1000
            for (k = 1; k <= n; k++)
                printf "%s\t%.0f\t%.3g\t%s\t%s\n", mode[k], seen * tokens[k], ms[k] * seen / 1000,
                       cell(loss(k, seen)), cell(loss(k, ms[fastest] * seen / ms[k]))
        }' >"$out/loss.tsv"
    echo
    awk -F '\t' '{ printf "%-22s %12s %10s %10s %12s\n", $1, $2, $3, $4, $5 }' "$out/loss.tsv"
    echo "val loss with the same tokens, and when the fastest had seen them all"
fi
agreed
