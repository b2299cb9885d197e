#!/bin/sh
# Figure 7 of Deep Optimizer States: the parts of an iteration, by model. (Most of an update is in the
# time of the next forward pass.)
# usage: [MODELS="7b 20b"] [LAUNCH="sh scripts/launch.sh 4"] scripts/paper/dos_7.sh; see figure.sh
id=dos_7
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
row 'model and system' forward backward rest
for model in $models; do
    for s in $systems; do
        # shellcheck disable=SC2046  # options are words
        measure "$model-$s" $(system "$s")
        rest=$(calculate "$(value ms) - $(value forward) - $(value backward)")
        case $rest in -*) rest=0 ;; esac  # by a virtual clock
        row "$model $s" "$(value forward)" "$(value backward)" "$rest"
    done
done
draw "Figure 7: an iteration. The paper: DOS is 2 to 2.5 times faster than ZeRO-3" ms --stack
finish
