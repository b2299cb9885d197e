#!/bin/sh
# Trains GPT-2 124M from scratch on one GPU: half a million tokens per step, ten billion in all,
# from FineWeb (20 GB of .bin files), which is fetched if no data is given.
# By the trainer's own plan (bf16, no recomputation) BATCH=16 takes 7.3 GiB of GPU memory, 32 takes
# 12 and 64 takes 21.4; the number of micro-batches follows, so that the step stays the same.
# usage: [BATCH=32] [STEPS=19560] scripts/gpt2_124m.sh [DATA_GLOB VAL_GLOB] [OPTION...]
set -eu
cd "$(dirname "$0")/.."
batch=${BATCH:-32} steps=${STEPS:-19560}
if [ $# -ge 2 ] && [ "${1#--}" = "$1" ]; then
    data=$1 val=$2
    shift 2
else
    sh dev/data/fineweb10B.sh 103
    data='data/fineweb10B/fineweb_train_*.bin' val='data/fineweb10B/fineweb_val_*.bin'
fi
make train_gpt2cu
exec ./train_gpt2cu --model gpt2 --data "$data" --val "$val" --out out/gpt2_124m --batch "$batch" \
    --seq 1024 --accum $((512 / batch)) --steps "$steps" --lr 6e-4 --warmup 700 --min-lr 0 \
    --weight-decay 0.1 --eval-every 250 --save-every 1000 "$@"
