#!/bin/sh
# 13B as in Deep Optimizer States (table 2): 40 layers, 5120 channels, micro-batches of 1 x 2048.
# usage: scripts/run_13b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts for the machines of rates/; memory in GiB:
#
#   12.85 G parameters. Disk: 206 GB at the end, for a checkpoint of 154 and model.safetensors;
#   514 GB while --save-every replaces one of --keep 2. GPU memory: at least 28.1 GiB, and
#   then 167.6 GiB of host memory; from 205.4 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          138.5   60.4    0.98     2095  interleave
#   paper_h100             78.5  119.5    2.71      756  interleave
#   rtx4090_desktop          23      -       -        -  does not fit
#   rtx3090_desktop          23      -       -        -  does not fit
exec sh "$(dirname "$0")/train_offload.sh" 13b_offload --model 13b --batch 1 --seq 2048 "$@"
