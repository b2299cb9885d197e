#!/bin/sh
# Figure 15 of Deep Optimizer States: for 20B, the share of an iteration in which GPU, CPU and each
# direction of the link work, and the TFLOP/s, by the share that visits the GPU. (The paper reads NVML,
# for which a GPU that copies is busy.)
# usage: [MODELS=20b] [STRIDES="2 4"] scripts/paper/dos_15.sh; see figure.sh
id=dos_15
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
model=$largest
row 'share that visits' GPU CPU 'link in' 'link out' Tflop/s 'CPU (paper)' 'Tflop/s (paper)'
add() { row "$1" "$(value GPU%)" "$(value CPU%)" "$(value in%)" "$(value out%)" "$(value Tflop/s)" \
    "$2" "$3"; }
# shellcheck disable=SC2046  # options are words
measure zero-3 $(system ZeRO-3)
add 0% 70 30
for stride in ${STRIDES:-4 3 2}; do
    # shellcheck disable=SC2046
    measure "stride-$stride" $(system DOS) -- --stride "$stride"
    case $stride in 2) add 50% 60 75 ;; 3) add 33% '?' 71 ;; 4) add 25% '?' 71 ;;
        *) add "1/$stride" '?' '?' ;; esac
done
draw "Figure 15: what is at work in an iteration of $model" "%, TFLOP/s"
finish
