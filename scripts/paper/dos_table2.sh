#!/bin/sh
# Table 2 of Deep Optimizer States: its models, and the GB of their weights (2 bytes per parameter),
# gradients (2) and state (10: m, v, and 2 of the master) here, without the host's copy of the weights.
# Its 7B and 13B are LLaMA-2's, which follow under their own names. (The paper counts by ZeRO-Infinity's
# formula, with fp32 gradients.)
# usage: [MODELS="7b 20b"] scripts/paper/dos_table2.sh; see figure.sh
id=dos_table2 PLAN=1
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
[ -n "${MODELS-}" ] || models="$models llama2-7b llama2-13b"
row model parameters 'weights' 'gradients' 'state' 'weights and gradients (paper)' 'state (paper)'
for model in $models; do
    measure "$model" --offload zero --recompute block
    parameters=$(sed -n 's/.*: \([0-9.]*\) M parameters;.*/\1/p' "$out/$model.txt")
    # shellcheck disable=SC2046  # two cells
    row "$model" "$(calculate "$parameters / 1000")" "$(calculate "$parameters * 0.002")" \
        "$(calculate "$parameters * 0.002")" "$(calculate "$parameters * 0.010")" $(in_table2 "$model")
done
draw "Table 2: the models, parameters in 10^9, memory in GB" "10^9 parameters, GB"
finish
