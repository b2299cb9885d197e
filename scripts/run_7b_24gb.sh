#!/bin/sh
# 7B on one card of 24 GB, of which 23 GiB are free, in a machine with 96 GB of host memory. 64 GB
# are not enough: 70 GiB must be free even with --batch 1. Six sequences a micro-batch, because the
# update takes as long for one.
# usage: scripts/run_7b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts for the machines of rates/; memory in GiB:
#
#   6.66 G parameters. Disk: 107 GB at the end, for a checkpoint of 80 and model.safetensors;
#   266 GB while --save-every replaces one of --keep 2. GPU memory: at least 19.9 GiB, and
#   then 86.8 GiB of host memory; from 149.2 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores          138.8    0.3    0.97    12629  twinflow
#   paper_h100             78.7   65.3    4.47     2750  interleave
#   rtx4090_desktop        22.7   86.8    6.86     1792  interleave, recomputing
#   rtx3090_desktop        22.7   86.8   13.86      886  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" 7b_24gb --model 7b --batch 6 --seq 2048 "$@"
