#!/bin/sh
# Shows MeZO from end to end, in half a minute on a CPU, without network. A small model first reads
# made-up film reviews (AdamW, dev/data/reviews.c). Then it learns by forward passes alone to tell good
# from bad. Prints the accuracy on 400 reviews before and after.
# usage: [TRAINER=./train_gpt2] [OUT=DIR] scripts/zo_reviews.sh [OPTION...]      options of the second
#        part, e.g. --zo-noise rademacher; with TRAINER=./train_gpt2emu (slow) also --resident-blocks 0
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:+$(absolute "$TRAINER")} out=${OUT:+$(absolute "$OUT")} top=$PWD
cd "$(dirname "$0")/.."
if [ "$top" = "$PWD" ]; then top=''; else top=$PWD/; fi  # printed commands work in the caller's folder
trainer=${trainer:-${top:-./}train_gpt2} out=${out:-${top}out/zo_reviews}
make train_gpt2 build/reviews
new_folder "$out" "$trainer"
build/reviews 20000 1 --text >"$out/text.txt"
build/reviews 1000 2 >"$out/train.tsv"
build/reviews 400 3 >"$out/val.tsv"
echo "a small model reads made-up reviews:"
./train_gpt2 --data "$out/text.txt" --layers 2 --heads 2 --channels 64 --context 64 --batch 8 \
    --steps 2000 --lr 3e-3 --eval-every 1000 --out "$out/read"

task() {
    "$trainer" --data "$out/train.tsv" --val "$out/val.tsv" --tokenizer bytes --labels '-|+' \
        --template ' = ' "$@"
}
echo "how it judges others, without having been taught to:"
task --model "$out/read" --steps 0
task --model "$out/read" --optimizer mezo --lr 1e-4 --zo-eps 1e-2 --batch 16 --steps 250 \
    --eval-every 50 --out "$out/tuned" -- "$@"
echo "what it makes of a review: $trainer --model \"$out/tuned\" --steps 0 \\
    --prompt \"i love the plot = \" --sample-tokens 1"
