#!/bin/sh
# Fine-tunes GPT-2 124M (weights from the Hugging Face hub) on a text, on a CPU with 4 GB of memory.
# usage: scripts/finetune_gpt2.sh TEXT [MODEL_DIR]    fetches the weights if MODEL_DIR is not given
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
[ $# -ge 1 ] || usage
text=$(realpath -- "$1") model=${2:+$(realpath -- "$2")}
cd "$(dirname "$0")/.."
if [ -z "$model" ]; then
    sh dev/data/model.sh gpt2
    model=data/gpt2
fi
make train_gpt2
[ ! -e out/finetune_gpt2/.lock ] || aside out/finetune_gpt2 "$text" "$model"
./train_gpt2 --model "$model" --data "$text" --out out/finetune_gpt2 --batch 4 --seq 128 --steps 200 \
    --lr 3e-5 --warmup 20 --eval-every 50 --eval-batches 10 --save-every 100
./train_gpt2 --model out/finetune_gpt2 --prompt="$(head -c 100 "$text")" --sample-tokens 100
