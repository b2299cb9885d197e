#!/bin/sh
# Fine-tunes OPT by forward passes alone to tell good film reviews from bad ones, with the data and
# settings of MeZO (Malladi et al. 2023): 1000 sentences of SST-2, prompts "... It was" before "
# terrible" or " great", batches of 16, eps 1e-3, 20000 steps in fp16. Measures the accuracy on 500
# other sentences every 4000 steps, and on the 872 of the development set at the end. Sentences and
# weights are fetched, unless a directory of weights is given.
# usage: [LR=1e-6] [STEPS=20000] [OUT=DIR] [SST2=DIR] [TRAINER=./train_gpt2cu]
#        scripts/zo_sst2.sh [opt-125m|opt-1.3b|..|opt-66b|DIRECTORY [OPTION...]]
# Example: LR=1e-7 scripts/zo_sst2.sh opt-13b --gpu-memory 8G: layers that do not fit stream from the
# host. --plan fetches nothing; --resume goes on; fp16 needs a GPU trainer. MeZO tries LR 1e-6 and 1e-7,
# and keeps the best on the 500 sentences: here the weights of the lowest loss (OUT/best), which are
# evaluated at the end. A checkpoint has all weights in fp32, 51 GB of OPT-13B: the newest two and the
# best one are kept, and OUT and OUT/best have the weights again.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case ${1:-} in -*) usage ;; esac
model=${1:-opt-1.3b}
[ $# -eq 0 ] || shift
if [ -d "$model" ]; then model=$(absolute "$model"); fi
out=$(absolute "${OUT:-$(dirname "$0")/../out/zo_sst2_$(basename "$model")}")
trainer=${TRAINER:+$(absolute "$TRAINER")} sst2=${SST2:+$(absolute "$SST2")}
cd "$(dirname "$0")/.."
# shellcheck source=scripts/trainer.sh
. scripts/trainer.sh
case " $* " in *" --plan "*)
    exec "$trainer" --model "$model" --optimizer mezo --precision fp16 --batch 16 --seq 64 \
        --labels ' terrible| great' -- "$@" ;;  # SST-2's prompts are about as long
esac
if [ ! -d "$model" ]; then  # many GB
    sh dev/data/try_trainer.sh "$trainer" --optimizer mezo --precision fp16
    sh dev/data/model.sh "$model"
    model=data/$(basename "$model")
fi
if [ -z "$sst2" ]; then
    sh dev/data/sst2.sh
    sst2=data/sst2
fi

# MODEL VAL OPTION...: with the prompts
task() {
    weights=$1 val=$2
    shift 2
    "$trainer" --model "$weights" --data "$sst2/train1000.tsv" --val "$sst2/$val" \
        --optimizer mezo --precision fp16 --batch 16 --labels ' terrible| great' \
        --template ' It was' "$@"
}

task "$model" dev500.tsv --out "$out" --steps "${STEPS:-20000}" --lr "${LR:-1e-6}" --zo-eps 1e-3 \
    --eval-every 4000 --save-every 4000 --keep-best -- "$@"
n=$#
while [ $n -gt 0 ]; do  # what is not for an evaluation goes
    n=$((n - 1)) option=$1
    shift
    case $option in
        --resume) ;;
        --save-every | --keep | --eval-every | --out) n=$((n - 1)); shift ;;
        *) set -- "$@" "$option" ;;
    esac
done
echo "on the development set:"
best=$out/best
[ -d "$best" ] || best=$out
task "$best" dev.tsv -- "$@" -- --steps 0
