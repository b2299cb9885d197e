#!/bin/sh
# Figure 9 of Deep Optimizer States: 100 iterations in a row, from beginning to end, by model. What
# is predicted is a hundred times one.
# usage: [MODELS="7b 20b"] [STEPS=100] scripts/paper/dos_9.sh; see figure.sh
id=dos_9 STEPS=${STEPS:-100} WARMUP=${WARMUP:-3}
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
# seconds: of the whole run
seconds() {
    [ "$(value ms)" != "?" ] || { echo "?"; return; }
    if [ -n "$plan" ]; then calculate "0.1 * $(value ms)"
    else sed -n 's/.*"ms":\([^,]*\),.*/\1/p' "$out/$1/log.jsonl" |
        awk '{ s += $1 } END { print NR == 0 ? "?" : s / 1000 }'; fi
}
# shellcheck disable=SC2086  # a list
row model $systems
for model in $models; do
    cells=''
    for s in $systems; do
        # shellcheck disable=SC2046  # options are words
        measure "$model-$s" $(system "$s")
        cells="$cells $(seconds "$model-$s")"
    done
    # shellcheck disable=SC2086
    row "$model" $cells
done
draw "Figure 9: 100 iterations. The paper: DOS nearly 2.5 times faster than ZeRO-3" seconds
ratio ZeRO-3 DOS
finish
