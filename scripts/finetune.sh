#!/bin/sh
# Fine-tunes on examples, JSON lines of prompts and completions (doc/finetuning.md), with AdamW.
# usage: scripts/finetune.sh [OPTION...]      without FILE: a small model reads made-up film reviews and
#        is then taught to say what they come to; a minute on a CPU, without network; in out/finetune-demo
#        FILE=my.jsonl [MODEL=DIR] scripts/finetune.sh [OPTION...]      your examples, GPT-2 124M (fetched)
#        or another model; in out/finetune/tuned. [TRAINER=./train_gpt2cu] [OUT=DIR]
# Rows have 256 tokens, or the model's context if that is less; --seq chooses.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:+$(absolute "$TRAINER")} out=${OUT:+$(absolute "$OUT")} file=${FILE:+$(absolute "$FILE")}
model=${MODEL:+$(absolute "$MODEL")} top=$PWD
cd "$(dirname "$0")/.."
if [ "$top" = "$PWD" ]; then top=''; else top=$PWD/; fi  # what is printed works where we were called
trainer=${trainer:-${top:-./}train_gpt2}
[ -n "$file" ] || [ -z "$model" ] || refuse "MODEL without FILE: name your examples with FILE=my.jsonl"
make train_gpt2 build/reviews
if [ -n "$file" ]; then
    if [ -z "$model" ]; then
        sh dev/data/model.sh gpt2
        model=data/gpt2
    fi
    config=$model/config.json
    [ -d "$model" ] || config=$(dirname "$model")/config.json
    context=$([ ! -r "$config" ] || tr -d ' \t\r\n' <"$config" |
        grep -oE '"(n_positions|max_position_embeddings)":[0-9]+' | head -n 1 | cut -d : -f 2)
    if [ "${context:-256}" -lt 256 ]; then seq=$context; else seq=256; fi
    exec "$trainer" --model "$model" --data "$file" --batch 4 --seq "$seq" --steps 300 --lr 3e-5 \
        --eval-every 50 --out "${out:-${top}out/finetune}/tuned" "$@"
fi
out=${out:-${top}out/finetune-demo}
# examples N SEED: a review, and which of two verdicts is right
examples() {
    build/reviews "$1" "$2" | awk -F '\t' 'NR > 1 { printf "{\"prompt\": \"%s so it is\", ", $1
        printf "\"choices\": [\" a bad film.\", \" a good one.\"], \"answer\": %d}\n", $2 }'
}
new_folder "$out" "$trainer"
build/reviews 20000 1 --text >"$out/text.txt"
examples 1000 2 >"$out/train.jsonl"
examples 400 3 >"$out/val.jsonl"
echo "a small model reads made-up reviews:"
./train_gpt2 --data "$out/text.txt" --layers 2 --heads 2 --channels 64 --context 128 --batch 8 \
    --steps 1000 --lr 3e-3 --eval-every 500 --out "$out/read"
echo "which verdict it finds likelier, before and while it is taught:"
"$trainer" --model "$out/read" --val "$out/val.jsonl" --steps 0
"$trainer" --model "$out/read" --data "$out/train.jsonl" --val "$out/val.jsonl" --batch 8 --steps 300 --lr 2e-3 \
    --eval-every 50 --out "$out/tuned" "$@"
echo "ask it: $trainer --model \"$out/tuned\" --steps 0 \\
    --prompt \"i love the plot so it is\" --sample-tokens 12 --temperature 0"
