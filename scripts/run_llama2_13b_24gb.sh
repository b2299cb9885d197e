#!/bin/sh
# Llama-2-13B's shape on one card of 24 GB, of which 23 GiB are free, in a machine with 128 GiB of
# host memory, with moments in 16 bits. Micro-batches of 8 sequences, because the update takes as long
# for one. Trained weights: --model DIR.
# usage: scripts/run_llama2_13b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="rtx4090_desktop:23:128 rtx3090_desktop:23:128"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   13.02 G parameters. Disk: 156 GB at the end, for a checkpoint of 104 and model.safetensors;
#   364 GB while --save-every replaces one of --keep 2. GPU memory: at least 14.6 GiB, and
#   then 121.2 GiB of host memory; from 224.4 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   rtx4090_desktop, 128   22.8  118.1   13.16     1245  interleave, recomputing, 30 of 40 layers stream
#   rtx3090_desktop, 128   22.6  112.7   28.03      585  twinflow, recomputing, 38 of 40 layers stream
exec sh "$(dirname "$0")/train_offload.sh" llama2_13b_24gb --model llama2-13b --batch 8 --seq 2048 --moments bf16 -- "$@"
