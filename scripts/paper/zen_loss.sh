#!/bin/sh
# ZenFlow: the held-out loss of AdamW and of ZenFlow, by tokens and by time. Without a GPU trains a
# small model on the CPU, with the reference of ZenFlow, at AdamW's speed: its times mean nothing, and
# only the first picture is drawn.
# usage: [MODELS=gpt2] [DATA=FILE] [STEPS=400] [TOPKS="0.05 0.1"] [MORE=1] scripts/paper/zen_loss.sh
# MORE: also the effects of lateness, the warm-up and selections, and of AdamW with the sum of four
# micro-batches: the table of doc/zenflow.md.
id=zen_loss rates_of=h200_16cores STEPS=${STEPS:-400}
# shellcheck source=scripts/paper/trained.sh
. "$(dirname "$0")/trained.sh"
case ${TRAINER-} in */train_gpt2 | */train_gpt2emu)
    DATA=${DATA:-$top/doc/zenflow.md} RATES=${RATES:-$top/scripts/rates/h200_16cores.txt}
    SIZE=${SIZE---layers 4 --heads 4 --channels 128 --context 64 --batch 8} MODELS=${MODELS:-nano} ;;
esac
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
size='' model=${MODELS:-gpt2} every=$((steps / 20)) names='' sum=1
[ "$every" -gt 0 ] || refuse "of $steps STEPS, none is evaluated"
# train NAME OPTION...: trains, and prints the evaluations: step, loss, seconds of training. With $sum
# micro-batches in a step there are as many times fewer steps.
train() {
    name=$1
    shift
    set -- --steps $((steps / sum)) --eval-every $(((every + sum - 1) / sum)) --accum "$sum" "$@"
    rm -rf "${out:?}/$name"
    # shellcheck disable=SC2086  # options are words
    if ! ${LAUNCH-} "$trainer" --model "$model" --data "$data" --out "$out/$name" \
        --no-save "$@" -- ${SIZE-$size} >"$out/$name.txt" 2>&1; then
        tail -n 1 "$out/$name.txt" >&2
        failed=1
        return
    fi
    names="$names $name"
    awk -v name="$name" -v sum="$sum" 'function field(n) {
            if (!match($0, "\"" n "\":[^,}]*")) return ""
            return substr($0, RSTART + length(n) + 3, RLENGTH - length(n) - 3)
        }
        /"loss"/ { ms += field("ms") }
        /"val_loss"/ { printf "%s\t%s\t%s\t%.4g\n", name, sum * field("step"), field("val_loss"), ms / 1000 }
    ' "$out/$name/log.jsonl" >"$out/$name.tsv"
}
mode=''
case $trainer in */train_gpt2) ;; *) mode='--offload zero' ;; esac
# shellcheck disable=SC2086
train AdamW $mode
for topk in ${TOPKS:-0.05 0.2}; do
    train "k=$topk" --offload zenflow --zen-topk "$topk" --zen-window 4
done
if [ -n "${MORE-}" ]; then
    sum=4
    # shellcheck disable=SC2086
    train AdamW,sums-of-4 $mode
    sum=1
    set -- --offload zenflow --zen-window 4
    train one-step-late --offload zenflow --zen-topk 0 --zen-window 1 --zen-warmup 1
    train k=0.1,no-warm-up "$@" --zen-warmup 1
    train k=0.1 "$@"
    train k=0.1,reselect-4 "$@" --zen-reselect 4
    train k=0.1,at-once "$@" --zen-overlap off
    train k=0.1,at-once,reselect-4 "$@" --zen-overlap off --zen-reselect 4
fi
# by COLUMN: prints the loss by step, or by time; each row has one series
by() {
    # shellcheck disable=SC2086
    row "$2" $names
    for name in $names; do
        cut -f "$1,3" "$out/$name.tsv" | awk -v name="$name" -v names="$names" '{
            n = split(names, series, " ")
            printf "%s", $1
            for (i = 1; i <= n; i++) printf "\t%s", series[i] == name ? $2 : "-"
            print ""
        }' >>"$figure"
    done
}
by 2 step
draw "ZenFlow: the held-out loss by steps" nats --lines >"$out/said"
tail -n 1 "$out/said"
for name in $names; do tail -n 1 "$out/$name.tsv"; done
case $trainer in */train_gpt2 | */train_gpt2emu) finish; exit ;; esac
id=zen_loss_time figure=$out/zen_loss_time.tsv
: >"$figure"
by 4 seconds
draw "ZenFlow: the held-out loss by time" nats --lines | tail -n 1
finish
