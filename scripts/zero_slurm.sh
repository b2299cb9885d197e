#!/bin/sh
#SBATCH --job-name=tide
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=TERM@120
# Trains the models of Deep Optimizer States (table 2) on the GPUs of several nodes of a SLURM cluster,
# with a task for each GPU: ZeRO-3, micro-batches of 1 x 2048 on each, the optimizer's state placed by
# --offload auto. Submit it from the top of the repository; all nodes must see that folder, DATA and
# OUT. Build and fetch first. Two minutes before its time is over the run saves and ends; submit it
# again with --resume auto.
# usage: sbatch [SBATCH OPTION...] scripts/zero_slurm.sh SIZE [OPTION...]      (SIZE: 7b, 8.3b, 10b, 13b or 20b)
# e.g.   sbatch --nodes=4 --time=8:00:00 scripts/zero_slurm.sh 20b --save-every 100
# train_offload.sh says what else can be set.
set -eu
say() { echo "tide: zero_slurm.sh: $*" >&2; }  # SLURM runs a copy of this file, from another folder
case ${1-} in 7b|8.3b|10b|13b|20b) ;; *) sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2 ;; esac
[ -n "${SLURM_JOB_ID-}" ] || { say "not in a job: submit this with sbatch"; exit 2; }
cd "${SLURM_SUBMIT_DIR:-.}"
[ -r scripts/train_offload.sh ] ||
    { say "submit this from the top of the repository, not from $PWD"; exit 2; }
size=$1
shift
# srun sets the rank of each task, but not the host of rank 0.
nodes=${SLURM_JOB_NODELIST-}
MASTER_ADDR=$(scontrol show hostnames "$nodes" 2>/dev/null | head -n 1)
[ -n "$MASTER_ADDR" ] ||
    { say "scontrol show hostnames \"$nodes\" (SLURM_JOB_NODELIST) names no host"; exit 1; }
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
LAUNCH="srun --kill-on-bad-exit=1 --cpu-bind=none"
export MASTER_ADDR MASTER_PORT LAUNCH
exec sh scripts/train_offload.sh "zero_${size}_slurm" --model "$size" --batch 1 --seq 2048 \
    --zero 3 -- "$@"
