#!/bin/sh
# Every way to place the optimizer's state, with the same model, data and seed: what an iteration
# takes, what it is made of, and the memory; and that the losses and gradient norms of all of them
# are the same to the last digit that log.jsonl has. Ends with 1 if they are not.
# usage: [MODEL=7b] [DATA=FILE] [OUT=DIR] [MODES="zero twinflow"] [RESIDENT=0.2]
#        scripts/compare_offload.sh [OPTION...]     e.g. --batch 1 --seq 2048 --gpu-memory 48G
# The options go to every run; further variables are in scripts/measure.sh. RESIDENT: what twinflow
# keeps on the GPU; without it, all that fits. "published" is without the overlaps, as ZeRO-Offload
# and TwinFlow are; stride2 is the paper's choice; there are also auto, interleave-published, and
# none-uncapped, which ignores --gpu-memory. The table is also in OUT/compare.tsv.
set -eu
# shellcheck source=scripts/measure.sh
. "$(dirname "$0")/measure.sh"
modes=${MODES:-none zero twinflow interleave stride2 zero-published twinflow-published}
table=$out/compare.tsv
published="--no-grad-overlap --no-update-overlap"
twinflow="--offload twinflow ${RESIDENT:+--resident $RESIDENT}"
: >"$table"
line mode "$columns"
wrong=0 ran='' small=0
for mode in $modes; do
    case $mode in
        none | auto | zero | interleave) options="--offload $mode" ;;
        none-uncapped) options="--offload none --gpu-memory 0" ;;
        twinflow) options=$twinflow ;;
        stride2) options="--offload interleave --stride 2" ;;
        zero-published) options="--offload zero $published" ;;
        twinflow-published) options="$twinflow $published" ;;
        interleave-published)
            options="--offload interleave --stride 2 --grad-wire fp32 --no-update-overlap" ;;
        *) refuse "no mode $mode" ;;
    esac
    # shellcheck disable=SC2086  # options are words
    run "$mode" "$@" $options
    case $ended in
        ok) ran="$ran $mode" ;;
        small) small=$((small + 1)) ;;
        *) wrong=1 ;;
    esac
done

# The first that ran, against the others, over the steps that both took.
# shellcheck disable=SC2086
set -- $ran
[ $# -gt 1 ] || { echo "nothing to compare: $# of the modes ran" >&2; exit 1; }
first=$1
shift
sed -n 's/.*\("step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*\),.*/\1/p' "$out/$first/log.jsonl" \
    >"$out/first"
for mode in "$@"; do
    sed -n 's/.*\("step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*\),.*/\1/p' "$out/$mode/log.jsonl" |
        awk -v mode="$mode" -v first="$first" -v file="$out/first" '
            (getline other < file) > 0 && ++n && $0 != other {
                print "DIFFERENT: " mode " has " $0 ", " first " " other
                exit wrong = 1
            }
            END { if (n == 0) print "DIFFERENT: " mode " has no step of " first "'"'"'s"
                  exit wrong || n == 0 }' || wrong=1
done
rm "$out/first"
[ $wrong -eq 0 ] || { echo "something is wrong" >&2; exit 1; }
echo "the losses and gradient norms of all that ran ($(($# + 1))) are identical, digit by digit"
