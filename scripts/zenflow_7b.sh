#!/bin/sh
# Llama-2-7B's shape with ZenFlow, whose own example fine-tunes that model: the tenth of the columns
# that matters most is updated at every step of 8 x 2048 tokens, the rest every fourth, one window
# late. Trained weights: --model DIR.
# usage: scripts/zenflow_7b.sh [OPTION...]     (train_offload.sh says what else can be set)
# What --plan says, in GiB: 101.3 on the GPU, or 42.8 with activations recomputed; on the host 124.3
# or, with one sum of gradients instead of two, 101.7. With less there, layers live on the GPU: 63.1
# on the host with the last 12 of 32, and 131.3 on the GPU (72.9 with activations recomputed).
# scripts/zenflow_7b.sh --plan --rates scripts/rates/h200_16cores.txt predicts the time.
exec sh "$(dirname "$0")/train_offload.sh" zenflow_7b --model llama2-7b --batch 8 --seq 2048 \
    --offload zenflow --zen-warmup 50 -- "$@"
