#!/bin/sh
# Figure 1 (c) of Deep Optimizer States: the planned memory with all optimizer state on the host, by
# model, in GB for each of the four GPUs. The paper's numbers are a quarter of table 2's: 4 bytes per
# parameter on the GPU (fp16 weights and gradients), 16 on the host (fp32 weights, gradients, m and v).
# Here the host has 14, because gradients have 16 bits, and the GPU has places for the gradients of as
# many layers as fit.
# usage: [MODELS="7b 20b"] [GPU_MEMORY=24G] scripts/paper/dos_1.sh; see figure.sh
id=dos_1 PLAN=1
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
# planned PLACE NAME..: prints these parts of the last plan, in GB
planned() {
    awk -v place="$1" -v names=" $2 " '
        /^(GPU|host) memory/ { unit = /GiB/ ? 1.0737418 : 0.0010485760 }
        $1 == place && index(names, " " $2 " ") { sum += $(NF) * unit }
        END { if (unit > 0) printf "%.3g\n", sum; else print "?" }' "$out/$model.txt"
}
row model 'GPU weights' 'GPU gradients' 'GPU, both (paper)' \
    'host weights' 'host gradients' 'host m, v' 'host, all (paper)'
for model in $models; do
    # shellcheck disable=SC2046  # options are words
    measure "$model" $(system ZeRO-3)
    # shellcheck disable=SC2046  # two cells
    set -- $(in_table2 "$model")
    row "$model" "$(planned GPU parameters)" "$(planned GPU gradients)" "$(calculate "$1 / 4")" \
        "$(planned host 'master weights')" "$(planned host gradients)" "$(planned host AdamW)" \
        "$(calculate "$2 / 4")"
done
draw "Figure 1 (c): weights, gradients and optimizer state of each of four GPUs" GB
finish
