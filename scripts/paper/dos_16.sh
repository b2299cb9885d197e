#!/bin/sh
# Figure 16 of Deep Optimizer States: parameters updated per second by the share that visits the
# GPU, by model.
# usage: [MODELS="7b 20b"] scripts/paper/dos_16.sh; see figure.sh
id=dos_16 xs=model
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
cell() {
    model=$1
    case $2 in
        none) options="--offload zero" ;;
        best) options="--offload interleave --resident 0 --share auto" ;;
        *) options="--offload interleave --resident 0 --stride $((100 / ${2%?}))" ;;
    esac
    # shellcheck disable=SC2086  # options are words
    measure "$1-${2%?}" $options --subgroup 100000000
}
grid Gpar/s "$models" "none 25% 33% 50% best"
draw "Figure 16: update throughput by share. The paper: 50 % is best of 25, 33, 50" \
    "10^9 parameters/s, each rank"
finish
