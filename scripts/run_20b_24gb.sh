#!/bin/sh
# 20B on one card of 24 GB, of which 23 GiB are free, in a machine with 256 GiB of host memory, with
# moments in 16 bits; with 512 GiB, --moments fp32 fits. With 128 or 64 GiB of host memory 20B does
# not fit; 13B and 7B do. Micro-batches of 8 sequences, because the update takes as long for one.
# usage: scripts/run_20b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="rtx4090_desktop:23:256 rtx3090_desktop:23:256 rtx4090_desktop:23:128 rtx4090_desktop:23:64"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   22.07 G parameters. Disk: 265 GB at the end, for a checkpoint of 177 and model.safetensors;
#   618 GB while --save-every replaces one of --keep 2. GPU memory: at least 19.5 GiB, and
#   then 205.5 GiB of host memory; from 352.9 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   rtx4090_desktop, 256   22.9  202.3   21.80      751  twinflow, recomputing, 47 of 48 layers stream
#   rtx3090_desktop, 256   22.9  202.3   45.87      357  twinflow, recomputing, 47 of 48 layers stream
#   rtx4090_desktop, 128     23      -       -        -  does not fit
#   rtx4090_desktop, 64      23      -       -        -  does not fit
exec sh "$(dirname "$0")/train_offload.sh" 20b_24gb --model 20b --batch 8 --seq 2048 --moments bf16 -- "$@"
