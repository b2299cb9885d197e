#!/bin/sh
# ZenFlow (Lan et al. 2025): the time of a step, the waits of the GPU in it, and the traffic of the
# link, by the share of chosen columns k, by the window S, and with and without overlap, beside
# ZeRO-Offload.
# usage: [MODELS=7b] [TOPKS="0.05 0.1"] [WINDOWS="2 4"] scripts/paper/zen_steps.sh; see figure.sh
id=zen_steps rates_of=paper_zenflow_a100 STEPS=${STEPS:-52}  # two whole windows of 16
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
size="--batch 4 --seq 2048 --recompute block"
[ -z "$plan" ] || size="$size --gpu-memory ${GPU_MEMORY:-79G} --host-memory ${HOST_MEMORY:-480G}"
model=${MODELS:-7b} model=${model##* }
traffic=$out/traffic
: >"$traffic"
add() {  # LABEL: of the last run, times in ms, traffic in GB
    row "$1" "$(value ms)" "$(value "$stalls")"
    printf '%s\t%s\t%s\n' "$1" "$(value 'GB in')" "$(value 'GB out')" >>"$traffic"
}
stalls=waits
[ -z "$plan" ] || stalls=exposed  # a plan counts all time without compute
row 'k and S' step 'not compute'
measure zero --offload zero
add ZeRO-Offload
for window in ${WINDOWS:-1 4 16}; do
    period=$window
    for topk in ${TOPKS:-0.05 0.1}; do
        options="--offload zenflow --zen-topk $topk --zen-window $window"
        # shellcheck disable=SC2086
        measure "zenflow-$topk-$window" $options
        add "k=$topk S=$window"
    done
done
period=4
# shellcheck disable=SC2086
measure zenflow-sync --offload zenflow --zen-topk 0.1 --zen-window 4 --zen-overlap off
add "k=0.1,S=4 synchronous"
draw "ZenFlow: a step of $model. It says: up to 5 times faster, 85 % fewer stalls" ms
id=zen_traffic figure=$out/zen_traffic.tsv
: >"$figure"
row 'k and S' 'to the GPU' 'to the host'
cat "$traffic" >>"$figure"
draw "ZenFlow: the link in a step of $model. It says: 1.13 times the model, ZeRO twice" GB --stack
finish
