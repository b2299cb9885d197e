#!/bin/sh
# Asks a model the 10,042 questions of HellaSwag (Zellers et al. 2019), or the first N of them. Prints
# the share that it answers right, scored as in llm.c (doc/evaluation.md). OUT gets a line for each
# ending. Questions and weights are fetched, unless a file and a directory are given.
# usage: [QUESTIONS=N] [HELLASWAG=FILE.jsonl] [OUT=FILE] [TRAINER=./train_gpt2cu]
#        scripts/hellaswag.sh [gpt2|gpt2-medium|gpt2-large|gpt2-xl|OWNER/NAME|DIRECTORY [OPTION...]]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case ${1:-} in -*) usage ;; esac
model=${1:-gpt2}
[ $# -eq 0 ] || shift
if [ -d "$model" ]; then model=$(absolute "$model"); fi
questions=${HELLASWAG:+$(absolute "$HELLASWAG")} trainer=${TRAINER:+$(absolute "$TRAINER")}
out=${OUT:+$(absolute "$OUT")}
cd "$(dirname "$0")/.."
[ -z "$out" ] || [ ! -e "$out" ] || refuse "$out is there: choose another OUT"
name=out/hellaswag_$(basename "$model") number=''
while [ -e "$name$number.jsonl" ] || [ -e "$name$number.jsonl.tmp" ]; do number=$((number - 1)); done  # -1, -2 ..
out=${out:-$name$number.jsonl}
[ -n "$trainer" ] || make train_gpt2cu
trainer=${trainer:-./train_gpt2cu}
if [ ! -d "$model" ]; then
    sh dev/data/try_trainer.sh "$trainer" || {
        echo "(without a GPU: make, and TRAINER=./train_gpt2 before this command)" >&2
        exit 1
    }
    sh dev/data/model.sh "$model"
    model=data/$(basename "$model")
fi
if [ -z "$questions" ]; then
    sh dev/data/hellaswag.sh
    questions=data/hellaswag/val.jsonl
fi
mkdir -p "$(dirname "$out")"
if [ -n "${QUESTIONS-}" ]; then
    first=$(mktemp -d)
    trap 'rm -rf "$first"' EXIT
    head -n "$QUESTIONS" "$questions" >"$first/questions.jsonl"
    questions=$first/questions.jsonl
fi
echo "the loss of each ending: $out"
"$trainer" --model "$model" --steps 0 --val "$questions" --batch 32 --scores "$out" -- "$@"
