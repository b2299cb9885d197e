#!/bin/sh
# Asks a model HellaSwag's 10,042 questions (Zellers et al. 2019), or the first N of them, and says
# which share it answers, scored as in llm.c: doc/evaluation.md. OUT gets a line for each ending.
# The questions and GPT-2's weights are fetched, unless a file and a directory are given.
# usage: [QUESTIONS=N] [HELLASWAG=FILE.jsonl] [OUT=FILE] [TRAINER=./train_gpt2cu]
#        scripts/hellaswag.sh [gpt2|gpt2-medium|gpt2-large|gpt2-xl|DIRECTORY [OPTION...]]
set -eu
case ${1:-} in -*) sed -n '5,6s/^# //p' "$0" >&2; exit 2 ;; esac
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
model=${1:-gpt2}
[ $# -eq 0 ] || shift
if [ -d "$model" ]; then model=$(absolute "$model"); fi
questions=${HELLASWAG:+$(absolute "$HELLASWAG")} trainer=${TRAINER:+$(absolute "$TRAINER")}
out=$(absolute "${OUT:-$(dirname "$0")/../out/hellaswag_$(basename "$model").jsonl}")
cd "$(dirname "$0")/.."
[ -n "$trainer" ] || make train_gpt2cu
trainer=${trainer:-./train_gpt2cu}
if [ ! -d "$model" ]; then
    sh dev/data/try_trainer.sh "$trainer" || {
        echo "(without a GPU: make, and TRAINER=./train_gpt2 before this command)" >&2
        exit 1
    }
    sh dev/data/gpt2.sh "$model"
    model=data/$model
fi
if [ -z "$questions" ]; then
    sh dev/data/hellaswag.sh
    questions=data/hellaswag/val.jsonl
fi
mkdir -p "$(dirname "$out")"
if [ -n "${QUESTIONS-}" ]; then
    head -n "$QUESTIONS" "$questions" >"$out.questions.jsonl"
    questions=$out.questions.jsonl
fi
exec "$trainer" --model "$model" --steps 0 --choices "$questions" --batch 32 --scores "$out" "$@"
