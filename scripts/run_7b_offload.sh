#!/bin/sh
# 7B as in Deep Optimizer States (table 2): 32 layers, 4096 channels, micro-batches of 1 x 2048.
# usage: scripts/run_7b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts by rates/, assumed or a paper's; memory in GiB:
#
#   6.66 G parameters. Disk: 107 GB at the end, for a checkpoint of 80 and model.safetensors;
#   266 GB while --save-every replaces one of --keep 2. GPU memory: at least 4.2 GiB, and
#   then 86.8 GiB of host memory; from 96.0 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores           96.0    0.0    0.19    10761  none: all of it fits
#   paper_h100             78.8   13.6    0.99     2076  interleave
#   rtx4090_desktop        22.9   74.7    2.94      696  interleave, recomputing
#   rtx3090_desktop        23.0   73.4    4.93      415  interleave, recomputing a little
exec sh "$(dirname "$0")/train_offload.sh" 7b_offload --model 7b --batch 1 --seq 2048 -- "$@"
