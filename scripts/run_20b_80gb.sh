#!/bin/sh
# 20B on one card of 80 GB, in a machine with 256 GiB of host memory. Micro-batches of 8 sequences,
# because the update takes as long for one.
# usage: scripts/run_20b_80gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="paper_h100:79:256 h200_16cores:79:256"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   22.07 G parameters. Disk: 353 GB at the end, for a checkpoint of 265 and model.safetensors;
#   883 GB while --save-every replaces one of --keep 2. GPU memory: at least 19.5 GiB, and
#   then 287.7 GiB of host memory; from 435.1 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   paper_h100, 256        78.7  241.6   23.27      704  interleave, recomputing
#   h200_16cores, 256      78.5  231.4    6.22     2634  interleave, recomputing, 41 of 48 layers stream
exec sh "$(dirname "$0")/train_offload.sh" 20b_80gb --model 20b --batch 8 --seq 2048 -- "$@"
