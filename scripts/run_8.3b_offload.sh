#!/bin/sh
# 8.3B as in Deep Optimizer States (table 2): 72 layers, 3072 channels, micro-batches of 1 x 2048.
# usage: scripts/run_8.3b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts by rates/, assumed or a paper's; memory in GiB:
#
#   8.32 G parameters. Disk: 133 GB at the end, for a checkpoint of 100 and model.safetensors;
#   333 GB while --save-every replaces one of --keep 2. GPU memory: at least 3.4 GiB, and
#   then 108.5 GiB of host memory; from 122.9 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          122.9    0.0    0.25     8271  none: all of it fits
#   paper_h100             78.8   36.0    1.40     1465  interleave, recomputing a little
#   rtx4090_desktop        22.8   95.9    3.78      542  interleave, recomputing a little, 25 of 72 layers stream
#   rtx3090_desktop        22.9   90.5    6.55      313  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" 8.3b_offload --model 8.3b --batch 1 --seq 2048 -- "$@"
