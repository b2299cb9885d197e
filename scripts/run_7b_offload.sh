#!/bin/sh
# 7B as in Deep Optimizer States (table 2): 32 layers, 4096 channels, micro-batches of 1 x 2048.
# usage: scripts/run_7b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts for the machines of rates/; memory in GiB:
#
#   6.66 G parameters. Disk: 107 GB at the end, for a checkpoint of 80 and model.safetensors;
#   266 GB while --save-every replaces one of --keep 2. GPU memory: at least 15.4 GiB, and
#   then 86.8 GiB of host memory; from 108.4 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          108.4    0.0    0.20    10216  none: all of it fits
#   paper_h100             78.8   25.2    1.11     1848  interleave
#   rtx4090_desktop        22.8   82.1    3.35      612  interleave, recomputing
#   rtx3090_desktop        22.8   82.1    5.95      344  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" 7b_offload --model 7b --batch 1 --seq 2048 "$@"
