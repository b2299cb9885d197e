#!/bin/sh
# Figure 1 of ZO-Offloading: GPU memory of AdamW, SGD, MeZO and streamed MeZO, from zo_memory.sh.
# usage: [MODELS="opt-1.3b opt-13b"] scripts/paper/zo_1.sh; see figure.sh
id=zo_1 rates_of=a100_80gb_pcie4_zo PLAN=1
# shellcheck source=scripts/paper/zo.sh
. "$(dirname "$0")/zo.sh"
row model AdamW SGD MeZO '3 slots' '2 slots'
# shellcheck disable=SC2086  # a list
TRAINER=$trainer sh scripts/zo_memory.sh ${MODELS:-} >"$out/memory.txt"
while read -r model adamw sgd mezo three two _; do
    [ "$model" = model ] || row "${model#opt-}" "$adamw" "$sgd" "$mezo" "$three" "$two"
done <"$out/memory.txt"
draw "Figure 1 of ZO-Offloading: GPU memory, OPT at 2048 tokens" GiB
finish
