#!/bin/sh
# 20B on one H200 in a machine with 128 GiB of host memory, with moments in 16 bits. The card has some
# 139 GiB: 5 % stay free, and 1 GiB for CUDA's context and what cuBLASLt has of its own. Of the
# host 5 % stay free. Micro-batches of 8 sequences: with one, the update takes as long.
# usage: scripts/run_20b_h200.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="h200_16cores:131:128"
# What it needs, and what plan_offload.sh predicts for it (rates assumed); memory in GiB:
#
#   22.07 G parameters. Disk: 265 GB at the end, for a checkpoint of 177 and model.safetensors;
#   618 GB while --save-every replaces one of --keep 2. GPU memory: at least 19.5 GiB, and
#   then 205.5 GiB of host memory; from 352.9 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   h200_16cores, 128     130.9  108.7    5.01     3267  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" 20b_h200 --model 20b --batch 8 --seq 2048 --moments bf16 --gpu-memory 131G --host-memory 121G -- "$@"
