#!/bin/sh
# 13B on one card of 24 GB, of which 23 GiB are free, in a machine with 128 GiB of host memory, with
# moments in 16 bits; with 256 GiB, --moments fp32 fits. Micro-batches of 8 sequences, because the
# update takes as long for one.
# usage: scripts/run_13b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="rtx4090_desktop:23:128 rtx3090_desktop:23:128 rtx4090_desktop:23:64"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   12.85 G parameters. Disk: 154 GB at the end, for a checkpoint of 103 and model.safetensors;
#   360 GB while --save-every replaces one of --keep 2. GPU memory: at least 14.6 GiB, and
#   then 119.7 GiB of host memory; from 222.5 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   rtx4090_desktop, 128   23.0  117.6   12.71     1289  interleave, recomputing, 30 of 40 layers stream
#   rtx3090_desktop, 128   22.7  111.8   27.04      606  twinflow, recomputing, 37 of 40 layers stream
#   rtx4090_desktop, 64      23      -       -        -  does not fit
exec sh "$(dirname "$0")/train_offload.sh" 13b_24gb --model 13b --batch 8 --seq 2048 --moments bf16 -- "$@"
