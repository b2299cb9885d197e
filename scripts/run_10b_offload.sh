#!/bin/sh
# 10B as in Deep Optimizer States (table 2): 50 layers, 4096 channels, micro-batches of 1 x 2048.
# usage: scripts/run_10b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts by rates/, assumed or a paper's; memory in GiB:
#
#   10.28 G parameters. Disk: 165 GB at the end, for a checkpoint of 123 and model.safetensors;
#   411 GB while --save-every replaces one of --keep 2. GPU memory: at least 4.5 GiB, and
#   then 134.1 GiB of host memory; from 147.7 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          136.4    0.0    0.29     6961  none: all of it fits
#   paper_h100             78.5  104.0    1.87     1093  interleave
#   rtx4090_desktop        22.9  121.8    4.89      419  interleave, recomputing a little, 34 of 50 layers stream
#   rtx3090_desktop        22.7  116.8    8.57      239  interleave, 49 of 50 layers stream
exec sh "$(dirname "$0")/train_offload.sh" 10b_offload --model 10b --batch 1 --seq 2048 -- "$@"
