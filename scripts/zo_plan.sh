#!/bin/sh
# Predicts zeroth-order training of OPT, from 1.3B to 175B, on a machine of scripts/rates/, by --plan: with
# all layers in GPU memory, and all on the host. Needs neither GPU nor data; the memory of the machine is no
# limit. Memory is in GiB. The link is hidden, or the table has the share of a step that waits for it.
# usage: [TRAINER=./train_gpt2emu] [RATES=FILE] [MODELS="opt-13b"] scripts/zo_plan.sh [OPTION...]
#        e.g. RATES=scripts/rates/rtx4090_desktop.txt scripts/zo_plan.sh --batch 16 --seq 64
# Without options, as ZO-Offloading was measured (Wang et al. 2024): one sequence of 2048 tokens.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=${RATES:-$(dirname "$0")/rates/h200_16cores.txt}
models=${MODELS:-opt-1.3b opt-2.7b opt-6.7b opt-13b opt-30b opt-66b opt-175b}
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }

plan() {
    planned=$1
    shift
    "$trainer" --plan --optimizer mezo --batch 1 --seq 2048 --gpu-memory 99T --host-memory 99T \
        --rates "$rates" --model "$planned" -- "$@"
}

first=${models%% *}
plan "$first" --resident-blocks 0 -- "$@" >/dev/null  # or ends with an error
echo "$(basename "$rates" .txt), --batch 1 --seq 2048${*:+ $*}"
printf '%-9s %8s %9s | %8s %8s %8s %9s  %s\n' model GPU tokens/s GPU host s/step tokens/s \
    'the link is'
for model in $models; do
    {
        plan "$model" "$@"
        plan "$model" --resident-blocks 0 -- "$@"
    } | awk -v model="$model" '
        / total .*iB$/ { gib[++n] = $3 / (/GiB/ ? 1 : 1024) }
        /^  step .* tokens/ {
            step = $2 + 0
            link = $5 < 0.01 * step ? "hidden" : sprintf("%.0f %% seen", 100 * $5 / step)
            sub(/.*: /, "")
            speed[++runs] = $1
        }
        END {
            printf "%-9s %8.1f %9d | %8.1f %8.1f %8.2f %9d  %s\n", model, gib[1], speed[1], gib[2],
                   gib[3], step, speed[2], link
        }'
done
