#!/bin/sh
# 7B with ZenFlow: the tenth of the columns that matters most is updated at every step of 8 x 2048
# tokens, the rest every fourth, one step late.
# usage: scripts/zenflow_7b.sh [OPTION...]     (train_offload.sh says what else can be set)
# What --plan says, in GiB: 89.7 on the GPU, or 31.5 with activations recomputed; 111.7 on the host.
# With less there, layers live on the GPU: 61.0 on the host with the last 15 of 32, and 67.0 on the
# GPU (recomputing). --zen-delay 2 or more keeps two sums of gradients, 134.0 on the host.
# scripts/zenflow_7b.sh --plan --rates scripts/rates/h200_16cores.txt predicts the time.
exec sh "$(dirname "$0")/train_offload.sh" zenflow_7b --model 7b --batch 8 --seq 2048 \
    --offload zenflow --zen-delay 1 --zen-rest-lr auto --zen-warmup 50 "$@"
