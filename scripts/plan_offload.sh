#!/bin/sh
# What a model needs, and what the machines of scripts/rates/ are predicted to make of it: the table
# at the head of the run_*.sh. Needs neither GPU nor data. "host": of memory that such a machine
# must have; how much it has is not asked. A card of 24 GB has some 23 GiB free.
# usage: [TRAINER=./train_gpt2emu] scripts/plan_offload.sh OPTION...      e.g. --model 7b --batch 1
set -eu
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=$(dirname "$0")/rates
[ $# -ge 1 ] || { sed -n '5s/^# //p' "$0" >&2; exit 2; }
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }
"$trainer" --plan "$@" --rates "$rates/h200_16cores.txt" >/dev/null  # or says what is wrong

# plan GPU_MEMORY OPTION...: what --plan says, or why it cannot be
plan() {
    memory=$1
    shift
    "$trainer" --plan --gpu-memory "$memory" --host-memory 99T "$@" 2>&1 || true
}

{
    plan 99T "$@" --offload none --recompute none | sed 's/^/none /'
    plan 1M "$@" --offload zero --recompute block | sed 's/^/zero /'
} | awk '
    /^none model:/ { sub(/.*: /, ""); millions = $1 }
    / total .*iB$/ { gib[$1 $2] = $4 / (/GiB/ ? 1 : 1024) }
    END {
        printf "%.2f G parameters. Disk: %.0f GB at the end, for a checkpoint of %.0f and",
               millions / 1000, 16e-3 * millions, 12e-3 * millions
        printf " model.safetensors;\n%.0f GB while --save-every replaces one of --keep 2.",
               40e-3 * millions
        printf " GPU memory: at least %.1f GiB, and\nthen %.1f GiB of host memory;",
               gib["zeroGPU"], gib["zerohost"]
        printf " from %.1f GiB on nothing is offloaded.\n", gib["noneGPU"]
    }'
printf '%-15s %6s %6s %7s %8s  %s\n' machine GPU host s/step tokens/s plan
for machine in h200_16cores:139 paper_h100:79 rtx4090_desktop:23 rtx3090_desktop:23; do
    name=${machine%:*}
    plan "${machine#*:}G" "$@" --offload auto --rates "$rates/$name.txt" |
        awk -v name="$name" -v there="${machine#*:}" '
        /^offload auto: / {
            plan = $0
            sub(/^offload auto: /, "", plan)
            sub(/, predicted.*/, "", plan)
            gsub(/ (the GPU|there|on the GPU)/, "", plan)
        }
        / total .*iB$/ { gib[$1] = $3 / (/GiB/ ? 1 : 1024) }
        /^  step .* tokens/ { step = $2; sub(/.*: /, ""); speed = $1 }
        END {
            if (step == "")
                printf "%-15s %6d %6s %7s %8s  does not fit\n", name, there, "-", "-", "-"
            else
                printf "%-15s %6.1f %6.1f %7.2f %8d  %s\n", name, gib["GPU"], gib["host"], step,
                       speed, plan == "" ? "none: all of it fits" : plan
        }'
done
