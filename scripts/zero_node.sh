#!/bin/sh
# Trains the models of Deep Optimizer States (table 2) on the GPUs of one node, as the paper did:
# ZeRO-3, micro-batches of 1 x 2048 on each GPU. --offload auto places the optimizer's state. launch.sh
# starts a process for each GPU.
# usage: scripts/zero_node.sh GPUS SIZE [OPTION...]      (SIZE: 7b, 8.3b, 10b, 13b or 20b)
# MODEL=NAME|DIR: another shape, or a model of yours; then there is no SIZE.
# train_offload.sh says what else can be set.
# What plan_scaling.sh, which explains the columns, says of GPUs that update all that they have room
# for. With --plan it is said of the number and the machine at hand, or of --rates FILE.
#
#   paper_h100, 79 GiB of each GPU:
#   model   GPUs    step   waits   shown    comm   tok/s  x zero     GPU    host  offload
#   7b         2   0.845   0.136   0.003   0.100    2424    3.02    59.9     0.0  none
#   7b         4   0.780   0.071   0.005   0.150    2626    2.16    41.3     0.0  none
#   8.3b       2   1.066   0.169   0.002   0.125    1922    3.00    77.1     0.0  none
#   8.3b       4   0.984   0.086   0.003   0.188    2082    2.15    53.9     0.0  none
#   10b        2   1.304   0.209   0.003   0.206    1571    3.02    78.7     0.0  none
#   10b        4   1.202   0.108   0.005   0.232    1703    2.16    62.7     0.0  none
#   13b        2   1.637   0.279   0.005   0.283    1251    3.00    78.4    15.5  interleave
#   13b        4   1.493   0.135   0.007   0.290    1371    2.17    75.4     0.0  none
#   20b        2   2.995   0.675   0.009   0.489     684    2.81    78.8    81.9  interleave
#   20b        4   2.531   0.211   0.013   0.708     809    2.19    79.0    57.4  interleave
#   h200_16cores, 139 GiB of each GPU:
#   model   GPUs    step   waits   shown    comm   tok/s  x zero     GPU    host  offload
#   7b         8   0.155   0.007   0.002   0.068   13205    2.39    32.0     0.0  none
#   8.3b       8   0.203   0.008   0.001   0.086   10113    2.33    42.3     0.0  none
#   10b        8   0.239   0.010   0.002   0.105    8576    2.39    48.3     0.0  none
#   13b        8   0.290   0.013   0.003   0.130    7065    2.43    57.5     0.0  none
#   20b        8   0.487   0.021   0.004   0.223    4208    2.46    93.9     0.0  none
#
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
if [ -n "${MODEL-}" ]; then
    gpus=${1-} size=$(basename "$MODEL") model=$MODEL
    [ ! -e "$MODEL" ] || model=$(absolute "$MODEL")
    [ $# -eq 0 ] || shift
else
    case ${2-} in 7b|8.3b|10b|13b|20b) ;; *) usage ;; esac
    gpus=$1 size=$2 model=$2
    shift 2
fi
case $gpus in ''|0|*[!0-9]*) usage ;; esac
case " $* " in *" --plan "*) set -- --world "$gpus" "$@" ;; esac
export LAUNCH="sh scripts/launch.sh $gpus"
exec sh "$(dirname "$0")/train_offload.sh" "zero_${size}_$gpus" --model "$model" --batch 1 \
    --seq 2048 --zero 3 -- "$@"
