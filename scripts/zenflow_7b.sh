#!/bin/sh
# 7B with ZenFlow: the tenth of the columns that matters most is updated at every step of 8 x 2048
# tokens, the rest every fourth, one window late.
# usage: scripts/zenflow_7b.sh [OPTION...]     (train_offload.sh says what else can be set)
# What --plan says, in GiB: 101.0 on the GPU, or 42.8 with activations recomputed; on the host 122.8
# or, with one sum of gradients instead of two, 100.5. With less there, layers live on the GPU: 61.0
# on the host with the last 13 of 32, and 131.7 on the GPU.
# scripts/zenflow_7b.sh --plan --rates scripts/rates/h200_16cores.txt predicts the time.
exec sh "$(dirname "$0")/train_offload.sh" zenflow_7b --model 7b --batch 8 --seq 2048 \
    --offload zenflow --zen-warmup 50 "$@"
