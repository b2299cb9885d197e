#!/bin/sh
# Trains a model larger than the GPU, in bf16. --offload auto places the optimizer's state. train_model.sh and zero_*.sh call this script.
# usage: [DATA=FILES] [VAL=FILES] [OUT=DIR] [STEPS=1000] [TRAINER=./train_gpt2cu] [LAUNCH=WORDS]
#        scripts/train_offload.sh NAME OPTION...
# LAUNCH: on several GPUs, the words that start as many processes, as seen from the top of the repository, like "sh scripts/launch.sh 4" or "torchrun
# --nproc-per-node 4 --no-python". Without DATA, 100M tokens of FineWeb, and as many to evaluate, are fetched (0.4 GB). OUT is out/NAME by default.
# Products use the algorithms of build/tune.txt (or --tune FILE), which a run on one GPU makes (doc/speed.md). Checkpoints are saved by time, unless
# --save-every is given. --plan only prints the plan (on several GPUs with --world); --no-save leaves only the log.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
[ $# -ge 1 ] || usage
out=$(absolute "${OUT:-$(dirname "$0")/../out/$1}") trainer=${TRAINER:+$(absolute "$TRAINER")}
data=${DATA:+$(absolute "$DATA")} val=${VAL:+$(absolute "$VAL")}
shift
cd "$(dirname "$0")/.."
# shellcheck source=scripts/trainer.sh
. scripts/trainer.sh
case " $* " in *" --plan "*)  # needs no data
    exec "$trainer" --steps "${STEPS:-1000}" --offload auto -- "$@" ;;
esac
launcher=${LAUNCH-}
launcher=${launcher%% *}
[ -z "$launcher" ] || command -v "$launcher" >/dev/null ||
    refuse "$launcher is to start the ranks, and there is no such command here"
if [ -z "$data" ]; then
    case ${LAUNCH-} in '' | *launch.sh*) sh dev/data/try_trainer.sh "$trainer" ;; esac
    sh dev/data/fineweb10B.sh 1
    data='data/fineweb10B/fineweb_train_*.bin' val='data/fineweb10B/fineweb_val_*.bin'
fi
# One process alone measures the algorithms of products; several ranks only read them.
mkdir -p build
tune=''
case $trainer in *cu) [ -n "${LAUNCH-}" ] && [ ! -e build/tune.txt ] || tune='--tune build/tune.txt' ;; esac
# shellcheck disable=SC2086  # words
exec ${LAUNCH-} "$trainer" $tune --data "$data" ${val:+--val "$val"} --out "$out" \
    --steps "${STEPS:-1000}" --lr 1.2e-4 --weight-decay 0.1 --offload auto --eval-every 250 \
    --eval-batches 50 -- "$@"
