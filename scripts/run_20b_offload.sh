#!/bin/sh
# 20B as in Deep Optimizer States (table 2): 48 layers, 6144 channels, micro-batches of 1 x 2048.
# usage: scripts/run_20b_offload.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts by rates/, assumed or a paper's; memory in GiB:
#
#   22.07 G parameters. Disk: 353 GB at the end, for a checkpoint of 265 and model.safetensors;
#   883 GB while --save-every replaces one of --keep 2. GPU memory: at least 7.7 GiB, and
#   then 287.7 GiB of host memory; from 307.4 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          138.5  173.7    2.37      865  interleave
#   paper_h100             78.9  228.8    4.70      435  interleave
#   rtx4090_desktop        22.5  276.2   11.28      182  interleave, recomputing, 46 of 48 layers stream
#   rtx3090_desktop        22.8  286.1   19.73      104  interleave, recomputing a little, 47 of 48 layers stream
exec sh "$(dirname "$0")/train_offload.sh" 20b_offload --model 20b --batch 1 --seq 2048 -- "$@"
