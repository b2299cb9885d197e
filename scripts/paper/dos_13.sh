#!/bin/sh
# Figure 13 of Deep Optimizer States: an iteration, and the TFLOP/s, by the micro-batch, for 20B.
# (Predicted TFLOP/s count what is recomputed, measured ones what the model needs.)
# usage: [MODELS=20b] [BATCHES="1 4"] scripts/paper/dos_13.sh; see figure.sh
id=dos_13 xs='sequences in a micro-batch'
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
model=$largest batches=${BATCHES:-1 2 4 8 16}
cell() {
    # shellcheck disable=SC2046  # options are words
    measure "$2-$1" $(system "$2") $size -- --batch "$1"
}
SIZE=${SIZE-}
grid ms "$batches" "$systems"
draw "Figure 13: an iteration of $model. The paper: DOS 1.6 to 2.5 times faster; 16: out of memory" ms
ratio ZeRO-3 DOS
id=dos_13_tflops figure=$out/dos_13_tflops.tsv
: >"$figure"
grid Tflop/s "$batches" "$systems"
draw "Figure 13: TFLOP/s of each GPU, $model. The paper: they grow with the micro-batch" TFLOP/s
finish
