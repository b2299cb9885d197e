#!/bin/sh
# Goes from the name of a model to a conversation with it, in five steps: 1. does it fit, 2. fetch it, 3. look at the
# data, 4. fine-tune, 5. talk. Prints the time and disk of each. Uses finetune.sh (1, 3, 4), dev/data/model.sh (2) and
# the trainer (5).
# usage: FILE=my.jsonl [MODEL=OWNER/NAME|DIR] scripts/journey.sh [OPTION...]
#        FILE has your conversations or examples (doc/finetuning.md). MODEL is of the hub, or a folder; default GPT-2
#        124M. OPTION..., OUT and TRAINER are finetune.sh's; what is tuned is in OUT/tuned (out/finetune/tuned).
# The conversation is read from the standard input, a line for each turn. If FILE has no conversations, step 5 is left
# out. With the CPU trainer, step 1 has no prediction.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case " $* " in *" --plan "*) usage ;; esac
[ -n "${FILE-}" ] || refuse "name your examples with FILE=my.jsonl"
[ -r "$FILE" ] || refuse "FILE=$FILE: there is no such file"
top=$(dirname "$0")/..
model=${MODEL:-gpt2} out=${OUT:-$top/out/finetune} began=$(date +%s) took=
export MODEL="$model" FILE OUT="$out"
trainer=${TRAINER:-$top/train_gpt2$([ ! -e /dev/nvidiactl ] || echo cu)}

# noted STEP [FOLDER]: notes the seconds of this step, and the disk space of FOLDER
noted() {
    now=$(date +%s)
    size=$([ -z "${2-}" ] || du -sk "$2" | awk '{ printf $1 < 1e6 ? "%.0f MB" : "%.1f GB", $1 / ($1 < 1e6 ? 1e3 : 1e6) }')
    took="$took$(printf '%-10s %8d %10s' "$1" $((now - began)) "$size")
"
    began=$now
}

echo "--- 1. does it fit?"
case ${trainer##*/} in
    train_gpt2) echo "the CPU trains, in 16 bytes of memory for each parameter (other machines: finetune.sh --plan)" ;;
    *) sh "$top/scripts/finetune.sh" --plan "$@" ;;
esac
noted fits
echo "--- 2. the model"
if [ ! -e "$model" ]; then
    sh "$top/dev/data/model.sh" "$model"
    MODEL=$top/data/$(basename "$model")
fi
noted fetch "$MODEL"
echo "--- 3. the data, as the model gets it"
ROWS=2 sh "$top/scripts/finetune.sh" "$@"
noted data "$FILE"
echo "--- 4. fine-tuning"
sh "$top/scripts/finetune.sh" "$@"
noted fine-tune "$out"
if grep -q '"\(messages\|conversations\|instruction\)"' "$FILE"; then
    echo "--- 5. talk to it (Ctrl-D ends this)"
    "$trainer" --model "$out/tuned" --chat
    noted talk
fi
printf '\n%-10s %8s %10s\n%s' step seconds disk "$took" | sed 's/ *$//'
