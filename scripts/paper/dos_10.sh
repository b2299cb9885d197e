#!/bin/sh
# Figures 10 and 11 of Deep Optimizer States: the update, and the whole iteration, by the share of
# the state that stays on the GPU, for 20B.
# usage: [MODELS=20b] [RESIDENTS="0 0.25"] scripts/paper/dos_10.sh; see figure.sh
id=dos_10 xs='share of the state that is resident'
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
model=$largest residents=${RESIDENTS:-0 0.1 0.2 0.3 0.4 0.5}
cell() {
    resident=$1
    # shellcheck disable=SC2046  # options are words
    measure "$2-$1" $(system "$2")
}
grid update "$residents" "TwinFlow DOS tide"
draw "Figure 10: the update of $model. The paper: DOS at least 1.7 times faster than TwinFlow" ms
ratio TwinFlow DOS
id=dos_11 figure=$out/dos_11.tsv
: >"$figure"
grid ms "$residents" "TwinFlow DOS tide"
draw "Figure 11: an iteration of $model. The paper: about 2 times; 3 s at 0, TwinFlow 4.3 s at 0.5" ms
ratio TwinFlow DOS
finish
