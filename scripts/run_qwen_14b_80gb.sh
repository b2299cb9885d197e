#!/bin/sh
# Qwen2.5-14B's shape on one card of 80 GB, in a machine with 192 GiB of host memory. Micro-batches
# of 8 sequences, because the update takes as long for one. Trained weights: --model DIR.
# usage: scripts/run_qwen_14b_80gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="paper_h100:79:192 h200_16cores:79:192"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   14.77 G parameters. Disk: 236 GB at the end, for a checkpoint of 177 and model.safetensors;
#   591 GB while --save-every replaces one of --keep 2. GPU memory: at least 23.1 GiB, and
#   then 192.6 GiB of host memory; from 307.1 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   paper_h100, 192        78.7  143.1   15.06     1088  interleave, recomputing
#   h200_16cores, 192      79.0  148.2    3.97     4127  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" qwen_14b_80gb --model qwen2.5-14b --batch 8 --seq 2048 -- "$@"
