#!/bin/sh
# Figure 8 of Deep Optimizer States: parameters updated per second on each GPU's share, by model.
# usage: [MODELS="7b 20b"] [LAUNCH="sh scripts/launch.sh 4"] scripts/paper/dos_8.sh; see figure.sh
id=dos_8 xs=model
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
cell() {
    model=$1
    # shellcheck disable=SC2046  # options are words
    measure "$1-$2" $(system "$2")
}
grid Gpar/s "$models" "$systems"
draw "Figure 8: update throughput. The paper: DOS 70 % above ZeRO-3 on average" \
    "10^9 parameters/s, each rank"
ratio DOS ZeRO-3
finish
