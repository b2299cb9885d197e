#!/bin/sh
# 7B on one card of 24 GB, of which 23 GiB are free, in a machine with 64 GiB of host memory, with
# moments in 16 bits; with 128 GiB, --moments fp32 fits. Micro-batches of 8 sequences, because the
# update takes as long for one.
# usage: scripts/run_7b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="rtx4090_desktop:23:64 rtx3090_desktop:23:64 rtx4090_desktop:23:128"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   6.66 G parameters. Disk: 80 GB at the end, for a checkpoint of 53 and model.safetensors;
#   186 GB while --save-every replaces one of --keep 2. GPU memory: at least 10.4 GiB, and
#   then 62.0 GiB of host memory; from 128.3 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   rtx4090_desktop, 64    22.6   53.5    6.54     2503  interleave, recomputing, 20 of 32 layers stream
#   rtx3090_desktop, 64    22.9   49.2   14.25     1149  twinflow, recomputing, 26 of 32 layers stream
#   rtx4090_desktop, 128   22.6   53.5    6.54     2503  interleave, recomputing, 20 of 32 layers stream
exec sh "$(dirname "$0")/train_offload.sh" 7b_24gb --model 7b --batch 8 --seq 2048 --moments bf16 -- "$@"
