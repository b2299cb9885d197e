#!/bin/sh
# The models of Deep Optimizer States (table 2) on the GPUs of one node, as the paper ran them:
# ZeRO-3, micro-batches of 1 x 2048 on each, the optimizer's state where --offload auto finds that
# it should be. launch.sh starts one process per GPU.
# usage: scripts/zero_node.sh GPUS SIZE [OPTION...]      (SIZE: 7b, 8.3b, 10b, 13b or 20b)
# MODEL=NAME|DIR: another shape, or a model of yours; then there is no SIZE.
# train_offload.sh says what else can be set.
# What plan_scaling.sh, which explains the columns, says of GPUs that update all that they have room
# for. With --plan it is said of the number and the machine at hand, or of --rates FILE.
#
#   paper_h100, 79 GiB of each GPU:
#   model   GPUs    step   waits   shown    comm   tok/s  x zero     GPU    host  offload
#   7b         2   0.845   0.136   0.003   0.146    2424    3.02    48.7     0.0  none
#   7b         4   0.780   0.071   0.005   0.218    2626    2.16    30.1     0.0  none
#   8.3b       2   1.066   0.169   0.002   0.185    1922    3.00    62.4     0.0  none
#   8.3b       4   0.984   0.086   0.003   0.277    2082    2.15    39.1     0.0  none
#   10b        2   1.304   0.209   0.003   0.227    1571    3.02    73.4     0.0  none
#   10b        4   1.202   0.108   0.005   0.341    1703    2.16    44.7     0.0  none
#   13b        2   1.592   0.234   0.004   0.283    1287    3.08    78.5    62.5  interleave
#   13b        4   1.493   0.135   0.007   0.425    1371    2.17    53.2     0.0  none
#   20b        2   2.993   0.673   0.009   0.489     684    2.81    78.8    81.9  interleave
#   20b        4   2.486   0.166   0.009   0.733     824    2.23    78.7    57.4  interleave
#   h200_16cores, 139 GiB of each GPU:
#   model   GPUs    step   waits   shown    comm   tok/s  x zero     GPU    host  offload
#   7b         8   0.142   0.007   0.002   0.099   14399    2.51    20.8     0.0  none
#   8.3b       8   0.181   0.008   0.001   0.127   11327    2.49    27.5     0.0  none
#   10b        8   0.219   0.010   0.002   0.154    9364    2.52    30.3     0.0  none
#   13b        8   0.270   0.013   0.003   0.191    7591    2.54    35.2     0.0  none
#   20b        8   0.458   0.021   0.004   0.328    4474    2.55    55.1     0.0  none
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
