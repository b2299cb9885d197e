#!/bin/sh
# Figure 17 of Deep Optimizer States: how many times faster an iteration is than with ZeRO-3, by the
# number of GPUs, each with the same micro-batch. Measured on this machine's GPUs.
# usage: [MODELS="7b 20b"] [WORLDS="1 2"] scripts/paper/dos_17.sh; see figure.sh
id=dos_17
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
all=$(nvidia-smi -L 2>/dev/null | wc -l)
[ "$all" -gt 0 ] || all=1
worlds=${WORLDS:-$([ -n "$plan" ] && echo 1 2 4 8 16 32 ||
    awk -v n="$all" 'BEGIN { for (i = 1; i <= n; i *= 2) print i }')}
# shellcheck disable=SC2086  # a list
row GPUs $models
for world in $worlds; do
    cells=''
    for model in $models; do
        WORLD=$world LAUNCH="sh scripts/launch.sh $world" stage=''
        [ "$world" -eq 1 ] || stage='--zero 3'
        # shellcheck disable=SC2086
        measure "$model-$world-zero" --offload zero --no-overlap -- ${SIZE-$alone} -- $stage
        zero=$(value ms)
        # shellcheck disable=SC2046,SC2086
        measure "$model-$world-dos" $(system DOS) -- ${SIZE-$alone} -- $stage
        cells="$cells $(calculate "$zero / $(value ms)")"
    done
    # shellcheck disable=SC2086
    row "$world" $cells
done
draw "Figure 17: ZeRO-3's iteration by DOS's. The paper: 4.4 with few GPUs, to 2.5 with many" times
finish
