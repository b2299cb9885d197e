#!/bin/sh
# Figure 2 of Deep Optimizer States: an iteration of ZeRO-3 by the size of sub-groups, in millions.
# usage: [MODELS="7b 20b"] [SUBGROUPS="100 1000"] scripts/paper/dos_2.sh; see figure.sh
id=dos_2 xs='sub-group, M parameters'
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
cell() {
    model=$2
    # shellcheck disable=SC2046  # options are words
    measure "$2-$1" $(system ZeRO-3) --subgroup "${1}000000"
}
grid ms "${SUBGROUPS:-100 200 400 600 800 1000}" "$models"
draw "Figure 2: an iteration by the size of sub-groups. The paper: within 4 %" ms --lines
finish
