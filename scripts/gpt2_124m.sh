#!/bin/sh
# Trains GPT-2 124M from scratch on one GPU: half a million tokens per step, ten billion in all, from
# FineWeb (20 GB of .bin files), which is fetched if no data is given. By the trainer's plan (bf16, no
# recomputation), BATCH=16 takes 7.2 GiB of GPU memory, 32 takes 12 and 64 takes 21. The number of
# micro-batches is set so that a step keeps its tokens. Products use the algorithms of build/tune.txt,
# which the first run makes (doc/speed.md).
# usage: [BATCH=32] [STEPS=19560] scripts/gpt2_124m.sh [DATA_GLOB VAL_GLOB [OPTION...]]
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case $# in
    0) data='' val='' ;;
    1) usage ;;
    *) data=$1 val=$2; shift 2 ;;
esac
case $data$val in --*) refuse "options come after DATA_GLOB VAL_GLOB" ;; esac
[ -z "$data" ] || { data=$(absolute "$data") val=$(absolute "$val"); }
cd "$(dirname "$0")/.."
batch=${BATCH:-32} steps=${STEPS:-19560}
case $batch in
    1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256 | 512) ;;
    *) refuse "BATCH must be a power of two up to 512, not $batch" ;;
esac
make train_gpt2cu
if [ -z "$data" ]; then
    sh dev/data/try_trainer.sh ./train_gpt2cu
    sh dev/data/fineweb10B.sh 103
    data='data/fineweb10B/fineweb_train_*.bin' val='data/fineweb10B/fineweb_val_*.bin'
fi
mkdir -p build
exec ./train_gpt2cu --tune build/tune.txt --model gpt2 --data "$data" --val "$val" --out out/gpt2_124m --batch "$batch" \
    --seq 1024 --accum $((512 / batch)) --steps "$steps" --lr 6e-4 --warmup 700 --min-lr 0 \
    --weight-decay 0.1 --eval-every 250 --save-every 1000 -- "$@"
