#!/bin/sh
# 13B as in Deep Optimizer States (table 2): 40 layers, 5120 channels, micro-batches of 1 x 2048.
# usage: scripts/run_13b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts by rates/, assumed or a paper's; memory in GiB:
#
#   12.85 G parameters. Disk: 206 GB at the end, for a checkpoint of 154 and model.safetensors;
#   514 GB while --save-every replaces one of --keep 2. GPU memory: at least 5.8 GiB, and
#   then 167.6 GiB of host memory; from 181.5 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          138.6   39.1    0.71     2899  interleave
#   paper_h100             78.7  100.0    2.48      827  interleave
#   rtx4090_desktop        23.0  153.1    6.31      325  interleave, recomputing, 37 of 40 layers stream
#   rtx3090_desktop        22.5  153.6   11.05      185  interleave, 39 of 40 layers stream
exec sh "$(dirname "$0")/train_offload.sh" 13b_offload --model 13b --batch 1 --seq 2048 -- "$@"
