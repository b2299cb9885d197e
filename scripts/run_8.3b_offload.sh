#!/bin/sh
# 8.3B as in Deep Optimizer States (table 2): 72 layers, 3072 channels, micro-batches of 1 x 2048.
# usage: scripts/run_8.3b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts for the machines of rates/; memory in GiB:
#
#   8.32 G parameters. Disk: 133 GB at the end, for a checkpoint of 100 and model.safetensors;
#   333 GB while --save-every replaces one of --keep 2. GPU memory: at least 18.1 GiB, and
#   then 108.5 GiB of host memory; from 138.4 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          138.4    0.0    0.25     8091  none: all of it fits
#   paper_h100             79.0   54.4    1.60     1276  interleave
#   rtx4090_desktop        22.9  105.9    4.30      476  interleave, recomputing
#   rtx3090_desktop        22.9  105.9    7.66      268  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" 8.3b_offload --model 8.3b --batch 1 --seq 2048 "$@"
