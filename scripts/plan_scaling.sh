#!/bin/sh
# Predicts weak scaling by --plan, as in figure 17 of Deep Optimizer States: the models of its table 2
# on more and more GPUs, each with the same micro-batch. Needs neither GPU nor data; memory of the
# machine is no limit. "step": seconds. "waits": seconds in which a GPU does not compute. "comm":
# seconds of collectives. "shown": by how much the step would be shorter without them. "tok/s": of each
# GPU. "x zero": times faster than ZeRO-Offload as published, without interleaving and overlaps. Memory
# is in GiB, of each GPU, and of the host for each GPU. "?": a rate is missing. RATE: a rate that
# replaces one of the file.
# usage: [TRAINER=./train_gpt2emu] [RATES=FILE] [RATE="gpu_link 12e9"] [MODELS="7b 20b"]
#        [WORLDS="1 8"] scripts/plan_scaling.sh [OPTION...]     e.g. --zero 2, --offload auto
# Without options, as in the paper: ZeRO-3, one sequence of 2048 tokens, recomputation, and no state
# that stays on the GPU.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=${RATES:-$(dirname "$0")/rates/h200_16cores.txt}
models=${MODELS:-7b 8.3b 10b 13b 20b} worlds=${WORLDS:-1 2 4 8}
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }

name=$(basename "$rates" .txt)${RATE:+, $RATE}
if [ -n "${RATE-}" ]; then
    other=$(mktemp)
    trap 'rm -f "$other"' EXIT
    sed "/^${RATE%% *} /d" "$rates" >"$other"
    echo "$RATE" >>"$other"
    rates=$other
fi

plan() {
    "$trainer" --plan --zero 3 --batch 1 --seq 2048 --recompute block --offload interleave \
        --gpu-memory 99T --host-memory 99T --rates "$rates" -- "$@"
}

# Ends here with an error if the options are wrong.
plan --model "${models%% *}" -- "$@" -- --gpu-memory 99T --host-memory 99T >/dev/null
echo "$name, --zero 3 --batch 1 --seq 2048 --recompute block${*:+ $*}"
printf '%-6s %5s %7s %7s %7s %7s %7s %7s %7s %7s  %s\n' model GPUs step waits shown comm tok/s \
    'x zero' GPU host offload
for model in $models; do
    for world in $worlds; do
        {
            plan --model "$model" --world "$world" -- "$@" || echo 'does not fit'
            plan --model "$model" --world "$world" -- "$@" -- --offload zero --no-overlap \
                | sed 's/^/zero: /' || true
        } 2>/dev/null | awk -v model="$model" -v world="$world" '
            /^zero:   step / { zero = $3 }
            /^zero: / { next }
            /^does not fit/ { none = 1 }
            / total .*iB$/ { gib[$1] = $3 / (/GiB/ ? 1 : 1024) }
            /^offload [a-z]*:/ && !/^offload auto/ || /^offload none/ { sub(/:/, ""); mode = $2 }
            /^  step .* tokens/ {
                step = $2
                waits = $5
                sub(/.*: /, "")
                speed = $1 / world
            }
            /^  between / {
                sub(/.*GPUs: /, "")
                comm = $1 + 0
                shown = $4
            }
            /^  as if that took no time/ { shown = comm = "?" }
            function seconds(x) { return x == "?" ? x : sprintf("%.3f", x) }
            END {
                printf "%-6s %5d ", model, world
                if (none) print "does not fit"
                else
                    printf "%7.3f %7.3f %7s %7s %7d %7s %7.1f %7.1f  %s\n", step, waits,
                           seconds(shown), seconds(comm), speed,
                           zero == "" ? "-" : sprintf("%.2f", zero / step), gib["GPU"],
                           gib["host"], mode
            }'
    done
done
