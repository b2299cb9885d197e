#!/bin/sh
# Prints a table of the memory that a model needs, and of the predicted speed on the machines of
# scripts/rates/. Needs neither GPU nor data. "host": the memory that the machine must have. In a row
# like "rtx4090_desktop, 128" the host has 128 GiB, of which 5 % stay free; in the others it may have
# any size. A card of 24 GB has about 23 GiB free.
# usage: [TRAINER=./train_gpt2emu] [MACHINES="NAME:GPU[:HOST] .."] scripts/plan_offload.sh OPTION...
# e.g. --model 7b --batch 1. MACHINES: files of rates/, GiB of GPU memory that are free, and of a host
set -eu
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=$(dirname "$0")/rates
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
[ $# -ge 1 ] || usage
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }
"$trainer" --plan "$@" -- --gpu-memory 99T --host-memory 99T --rates "$rates/h200_16cores.txt" \
    >/dev/null  # or ends with an error

# plan GPU_MEMORY HOST_MEMORY OPTION...: prints the plan, or why there is none
plan() {
    gpu=$1 host=$2
    shift 2
    "$trainer" --plan "$@" -- --gpu-memory "$gpu" --host-memory "$host" 2>&1 || true
}

{
    plan 99T 99T "$@" -- --offload none --recompute none | sed 's/^/none /'
    plan 1M 99T "$@" -- --offload zero --recompute block | sed 's/^/zero /'
} | awk -v state="$(case " $* " in *' --moments bf16 '*) echo 8 ;; *) echo 12 ;; esac)" '
    /^none model:/ { sub(/.*: /, ""); millions = $1 }
    / total .*iB$/ { gib[$1 $2] = $4 / (/GiB/ ? 1 : 1024) }
    END {
        printf "%.2f G parameters. Disk: %.0f GB at the end, for a checkpoint of %.0f and",
               millions / 1000, (state + 4) * millions / 1000, state * millions / 1000
        printf " model.safetensors;\n%.0f GB while --save-every replaces one of --keep 2.",
               (3 * state + 4) * millions / 1000
        printf " GPU memory: at least %.1f GiB, and\nthen %.1f GiB of host memory;",
               gib["zeroGPU"], gib["zerohost"]
        printf " from %.1f GiB on nothing is offloaded.\n", gib["noneGPU"]
    }'
printf '%-20s %6s %6s %7s %8s  %s\n' machine GPU host s/step tokens/s plan
for machine in ${MACHINES:-h200_16cores:139 paper_h100:79 rtx4090_desktop:23 rtx3090_desktop:23}; do
    name=${machine%%:*} gpu=${machine#*:} host=
    case $gpu in *:*) host=${gpu#*:} gpu=${gpu%:*} ;; esac
    cap=99T
    [ -z "$host" ] || cap=$((host * 1024 * 95 / 100))M
    plan "${gpu}G" $cap "$@" -- --offload auto --rates "$rates/$name.txt" |
        awk -v name="$name${host:+, $host}" -v there="$gpu" '
        /^offload auto: / {
            plan = $0
            sub(/^offload auto: /, "", plan)
            sub(/, predicted.*/, "", plan)
            gsub(/ (the GPU|there|on the GPU)/, "", plan)
        }
        /^weights of / { plan = plan ", " $3 " of " $5 " layers stream" }
        / total .*iB$/ { gib[$1] = $3 / (/GiB/ ? 1 : 1024) }
        /^  step .* tokens/ { step = $2; sub(/.*: /, ""); speed = $1 }
        END {
            if (step == "")
                printf "%-20s %6d %6s %7s %8s  does not fit\n", name, there, "-", "-", "-"
            else
                printf "%-20s %6.1f %6.1f %7.2f %8d  %s\n", name, gib["GPU"], gib["host"], step,
                       speed, plan == "" ? "none: all of it fits" : plan
        }'
done
