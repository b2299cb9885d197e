#!/bin/sh
# Figure 14 of Deep Optimizer States: an iteration of 20B by the cores of each GPU. Measured with this
# number of threads; predicted as if the CPU's speed grew with its cores. The paper's machine has 24
# cores for each GPU, with the rates of paper_h100.txt.
# usage: [MODELS=20b] [CORES="6 24"] scripts/paper/dos_14.sh; see figure.sh
id=dos_14 xs='cores for each GPU'
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
model=$largest all=$rates
cell() {
    # shellcheck disable=SC2086  # options are words
    if [ -n "$plan" ]; then
        rates=$out/$1_cores.txt
        awk -v n="$1" '/^host_(adam|cast) / { $2 *= n / 24 } { print }' "$all" >"$rates"
        threads=''
    else
        threads="--threads $1" rates=$out/$1_cores.txt
        [ -s "$rates" ] || "$trainer" --calibrate $threads --rates "$rates" >"$out/calibrate.txt"
    fi
    # shellcheck disable=SC2046
    measure "$2-$1" $(system "$2") $threads
}
grid ms "${CORES:-6 12 24 48}" "$systems"
rates=$all
draw "Figure 14: an iteration of $model. The paper: up to 3 times with few cores, then uniform" ms
ratio ZeRO-3 DOS
finish
