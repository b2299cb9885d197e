#!/bin/sh
# Llama-3.1-8B's shape on one card of 24 GB, of which 23 GiB are free, in a machine with 64 GiB of
# host memory, with moments in 16 bits. Micro-batches of 2 sequences: with 128 GiB of host memory,
# --batch 8 fits and is faster. Trained weights: --model DIR.
# usage: scripts/run_llama3_8b_24gb.sh [OPTION...]     (train_offload.sh says what else can be set)
# MACHINES="rtx4090_desktop:23:64 rtx3090_desktop:23:64"
# What it needs, and what plan_offload.sh predicts for these (rates assumed); memory in GiB:
#
#   8.03 G parameters. Disk: 96 GB at the end, for a checkpoint of 64 and model.safetensors;
#   225 GB while --save-every replaces one of --keep 2. GPU memory: at least 8.4 GiB, and
#   then 74.8 GiB of host memory; from 93.2 GiB on nothing is offloaded.
#   machine                 GPU   host  s/step tokens/s  plan
#   rtx4090_desktop, 64    22.9   60.7    3.42     1198  interleave, recomputing, 29 of 32 layers stream
#   rtx3090_desktop, 64    22.8   59.6    6.16      665  interleave, recomputing
exec sh "$(dirname "$0")/train_offload.sh" llama3_8b_24gb --model llama3.1-8b --batch 2 --seq 2048 --moments bf16 -- "$@"
