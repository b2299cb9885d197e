#!/bin/sh
# Prints the GPU memory of AdamW, SGD, MeZO and streamed MeZO, in GiB, as in figure 1 of ZO-Offloading
# (Wang et al. 2024): OPT with 2048 tokens, by --plan. Needs neither GPU nor data. SGD is AdamW without
# master weights and moments; both keep all activations.
# usage: [TRAINER=./train_gpt2emu] scripts/zo_memory.sh [MODEL...]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=$(dirname "$0")/rates/h200_16cores.txt  # with --rates, --plan needs no GPU
case $trainer in */*) ;; *) trainer=./$trainer ;; esac
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }
[ $# -ge 1 ] || set -- opt-1.3b opt-2.7b opt-6.7b opt-13b opt-30b opt-66b opt-175b

for model in "$@"; do  # a wrong model ends the script with an error
    "$trainer" --plan --optimizer mezo --model "$model" --seq 2048 --rates "$rates" >/dev/null
done
plan() { "$trainer" --plan --batch 1 --seq 2048 --rates "$rates" "$@"; }

printf '%-9s %8s %8s %8s %10s %10s   %s\n' model AdamW SGD MeZO '3 slots' '2 slots' 'on the host'
for model in "$@"; do
    {
        plan --model "$model" --offload none --recompute none
        plan --model "$model" --optimizer mezo
        plan --model "$model" --optimizer mezo --resident-blocks 0 --slots 3
        plan --model "$model" --optimizer mezo --resident-blocks 0 --slots 2
    } | awk -v model="$model" '
        /^GPU +(master weights|AdamW moments) / { state += $4 }
        /^host +total / { host = $3 / (/GiB/ ? 1 : 1024) }
        /^GPU +total / {
            gib[++n] = $3 / (/GiB/ ? 1 : 1024)
            if (n == 1) sgd = gib[1] - state / (/GiB/ ? 1 : 1024)
        }
        END {
            printf "%-9s %8.1f %8.1f %8.1f %10.2f %10.2f   %.1f\n", model, gib[1], sgd, gib[2],
                   gib[3], gib[4], host
        }'
done
