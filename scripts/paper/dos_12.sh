#!/bin/sh
# Figure 12 of Deep Optimizer States: an iteration by model, with a fifth of the state on the GPU.
# usage: [MODELS="7b 20b"] scripts/paper/dos_12.sh; see figure.sh
id=dos_12 xs=model resident=0.2
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
cell() {
    model=$1
    # shellcheck disable=SC2046  # options are words
    measure "$1-$2" $(system "$2")
}
grid ms "$models" "TwinFlow DOS tide"
draw "Figure 12: an iteration, 20 % resident. The paper: DOS 1.7 to 2.3 times faster" ms
ratio TwinFlow DOS
finish
