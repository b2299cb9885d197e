#!/bin/sh
# Prints which model trains on which card, by --plan: the smallest host on which it fits, the options
# that --offload auto chooses there, and the predicted speed of a step of one micro-batch; the smallest
# host with 95 % of the speed on the largest one; and, for a step of 524,288 tokens (--accum), the
# smallest host on which this is no slower: sums of gradients need room. Needs neither GPU nor data.
# usage: [TRAINER=./train_gpt2emu] [MODELS="7b 20b"] [CARDS="24 80"] [HOSTS="64 128"]
#        scripts/fits.sh [OPTION...]
# Prints a table in Markdown; doc/fits.md has all of it. 5 % of the memory of the card and of the host
# stay free, for CUDA's context, cuBLASLt and the system. Takes the fastest micro-batch that fits, of
# 2,048 to 32,768 tokens. Another column has the small step with less memory of the host, by
# --activations host --clip 0 --moments bf16 (never chosen unasked), if it then fits, or fits a smaller
# host. The rates are in rates/; that a larger host may have more memory channels is not counted.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=$(dirname "$0")/rates
models=${MODELS:-gpt2-xl llama3.2-3b llama2-7b llama3.1-8b llama2-13b qwen2.5-14b 20b} cards=${CARDS:-8 12 16 24 48 80 141}
little="--activations host --clip 0 --moments bf16"
hosts=${HOSTS:-32 64 96 128 192 256 512}
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# machine CARD: writes the card's rates to $work/rates, and its memory to $gib. A card without a file
# gets the rates of another desktop, with its own arithmetic (87 % of the data sheet's, as for the RTX
# 4090) and memory: Tflop/s, GB/s (89 % of the data sheet's, as in rates/), share of the link.
machine() {
    case $1 in
        8) gib=8 made="rtx4090_desktop 26 272 0.5" ;;   # RTX 4060, 30.2 and 272; PCIe 4 x8
        12) gib=12 made="rtx4090_desktop 53 672 1" ;;   # RTX 5070, 61.7 and 672
        16) gib=16 made="rtx4090_desktop 84 717 1" ;;   # RTX 4080, 97.5 and 717
        24) gib=24 made=rtx4090_desktop ;;
        48) gib=48 made=l40s_server ;;
        80) gib=79 made=h100_server ;;
        141) gib=139 made=h200_16cores ;;
        *) echo "no card of $1 GB: 8, 12, 16, 24, 48, 80 or 141" >&2; exit 2 ;;
    esac
    # shellcheck disable=SC2086  # words
    set -- $made
    awk -v flops="${2-}" -v bytes="${3-}" -v link="${4-1}" '
        $1 == "gpu_flops" && flops { $2 = flops "e12" }
        $1 == "gpu_bytes" && bytes { $2 = 0.89 * bytes * 1e9 }
        $1 == "gpu_adam" && bytes { $2 = 0.85 * bytes / 26 * 1e9 }
        /^[hd]2[hd]/ { $2 *= link }
        { print $1, $2 }' "$rates/$1.txt" | sed '/^#/d' >"$work/rates"
}

# plan HOST BATCH OPTION...: prints the plan, with 5 % of memory free. BATCH: units of 2,048 tokens.
# With $spread a step has 256 units.
plan() {
    host=$1 batch=$2
    shift 2
    [ -z "$spread" ] || set -- "$@" -- --accum $((256 / batch))
    "$trainer" --plan --model "$model" --seq "$seq" --batch $((batch * 2048 / seq)) \
        --gpu-memory $((gib * 1024 * 95 / 100))M --host-memory $((host * 1024 * 95 / 100))M -- "$@" 2>&1
}

# best HOST FLOOR OPTION...: prints "HOST TOKENS/S BATCH OPTIONS" of the smallest host on which it fits
# and makes FLOOR tokens/s or more; nothing if there is none below HOST
best() {
    end=$1 floor=$2
    shift 2
    for h in $hosts; do
        [ "$h" != "$end" ] || return 0
        # With the least memory there are as many residents as fit: no rates and no search are needed.
        plan "$h" 1 "$@" -- --offload twinflow >/dev/null || continue
        for batch in 1 2 4 8 16; do
            plan "$h" $batch "$@" -- --offload auto --rates "$work/rates" >"$work/plan" || break
            awk -v host="$h" -v batch=$((batch * 2048 / seq)) '
                /^offload [a-z]*:/ && !/^offload auto/ { sub(/:/, ""); how = $2 how }
                /^recomputing activations/ { how = how ", recompute" }
                /^recomputing layer/ { how = how ", light" }
                /^weights of / { how = how ", stream " $3 " of " $5 }
                /^  step .* tokens/ { sub(/.*: /, ""); printf "%d %d %d %s\n", host, $1, batch, how }
                ' "$work/plan"
        done | sort -k2,2nr | head -n 1 >"$work/best"
        read -r _ speed _ <"$work/best" || continue
        [ "$speed" -lt "$floor" ] || { cat "$work/best"; return; }
    done
}

# The options must be valid, whether the run fits or not.
spread=
machine "${cards%% *}"
model=${models%% *} seq=1024
plan 99999 1 "$@" >"$work/said" || grep -q 'this run needs' "$work/said" ||
    { cat "$work/said" >&2; exit 2; }
# row SPREAD END FLOOR OPTION...: prints best()'s line, or an empty one
row() {
    spread=$1
    shift
    { best "$@"; echo; } | head -n 1
}

echo '| model | card, GB | smallest host, GiB | tokens/s | batch | options | faster on: host | tokens/s | 524,288 tokens a step: host | tokens/s | micro-batch | less on the host: host | tokens/s | batch | options |'
echo '|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|'
for model in $models; do
    seq=2048
    [ "$model" != gpt2-xl ] || seq=1024
    for card in $cards; do
        machine "$card"
        row '' none 0 "$@" >"$work/once"
        speed=$(cut -d' ' -f2 "$work/once")
        fastest=$(hosts=${hosts##* } && row '' none 0 "$@" | cut -d' ' -f2)
        row '' none $((${fastest:-0} * 95 / 100)) "$@" >"$work/fast"
        row yes none "${speed:-0}" "$@" >"$work/more"
        # shellcheck disable=SC2086  # words
        row '' "$(cut -d' ' -f1 "$work/fast")" 0 "$@" -- $little >"$work/less"
        cat "$work/once" "$work/fast" "$work/more" "$work/less" | awk -v model="$model" -v card="$card" '
            function cells(options) {
                if ($1 == "") return " does not fit | | |" (options ? " |" : "")
                how = $0
                sub(/^[^ ]* [^ ]* [^ ]* /, "", how)
                return sprintf(" %d | %d | %d |", $1, $2, $3) (options ? " " how " |" : "")
            }
            NR == 1 { row = cells(1); host = $1 }
            NR == 2 { row = row ($1 == host ? " | |" : sprintf(" %d | %d |", $1, $2)) }
            NR == 3 { row = row cells(0) }
            NR == 4 { row = row (host != "" && $1 == "" ? " | | | |" : cells(1)) }
            END { print "| " model " | " card " |" row }'
    done
done
