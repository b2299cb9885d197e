#!/bin/sh
# 3.3B (40 layers, 2560 channels) on one card of 24 GB, of which 23 GiB are free, in a machine with
# 64 GB of host memory. Eight sequences a micro-batch, because the update takes as long for one.
# usage: scripts/run_3b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# What it needs, and what plan_offload.sh predicts by rates/, assumed or a paper's; memory in GiB:
#
#   3.28 G parameters. Disk: 52 GB at the end, for a checkpoint of 39 and model.safetensors;
#   131 GB while --save-every replaces one of --keep 2. GPU memory: at least 6.9 GiB, and
#   then 42.8 GiB of host memory; from 94.4 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores           94.4    0.0    0.66    24987  none: all of it fits
#   paper_h100             78.9   36.0    2.93     5599  interleave, 35 of 40 layers stream
#   rtx4090_desktop        23.0   30.3    3.56     4605  interleave, recomputing
#   rtx3090_desktop        23.0   28.4    7.46     2197  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" 3b_24gb --model d40 --context 2048 --batch 8 --seq 2048 -- "$@"
