#!/bin/sh
# The models of Deep Optimizer States (table 2) on the GPUs of one node, as the paper ran them:
# ZeRO-3, micro-batches of 1 x 2048 on each, the optimizer's state where --offload auto finds that
# it should be. launch.sh starts one process per GPU.
# usage: scripts/zero_node.sh GPUS SIZE [OPTION...]     (train_offload.sh says what else can be set)
# SIZE is 7b, 8.3b, 10b, 13b or 20b.
# What plan_scaling.sh, which explains the columns, says of GPUs that update all that they have room
# for. With --plan it is said of the number and the machine at hand, or of --rates FILE.
#
#   paper_h100, 79 GiB of each GPU:
#   model   GPUs    step   waits   shown    comm   tok/s  x zero     GPU    host  offload
#   7b         2   0.845   0.136   0.003   0.146    2424    3.02    54.9     0.0  none
#   7b         4   0.780   0.071   0.005   0.218    2626    2.16    33.2     0.0  none
#   8.3b       2   1.066   0.169   0.002   0.185    1922    3.00    70.1     0.0  none
#   8.3b       4   0.984   0.086   0.003   0.277    2082    2.15    43.0     0.0  none
#   10b        2   1.271   0.176   0.003   0.227    1611    3.10    78.8    59.0  interleave
#   10b        4   1.202   0.108   0.005   0.341    1703    2.16    49.5     0.0  none
#   13b        2   1.641   0.283   0.007   0.283    1248    2.99    78.6    73.7  interleave
#   13b        4   1.493   0.135   0.007   0.425    1371    2.17    59.1     0.0  none
#   20b        2   3.181   0.861   0.007   0.489     644    2.64    78.9    98.5  interleave
#   20b        4   2.514   0.194   0.014   0.733     814    2.20    78.9    65.0  interleave
#   h200_16cores, 139 GiB of each GPU:
#   model   GPUs    step   waits   shown    comm   tok/s  x zero     GPU    host  offload
#   7b         8   0.163   0.008   0.002   0.099   12606    2.39    22.3     0.0  none
#   8.3b       8   0.204   0.009   0.001   0.127   10020    2.38    29.4     0.0  none
#   10b        8   0.250   0.011   0.002   0.154    8194    2.39    32.7     0.0  none
#   13b        8   0.310   0.014   0.003   0.191    6598    2.40    38.2     0.0  none
#   20b        8   0.529   0.023   0.004   0.328    3869    2.41    60.2     0.0  none
#
set -eu
case ${2-} in 7b|8.3b|10b|13b|20b) ;; *) sed -n '5s/^# //p' "$0" >&2; exit 2 ;; esac
case $1 in ''|0|*[!0-9]*) sed -n '5s/^# //p' "$0" >&2; exit 2 ;; esac
gpus=$1 size=$2
shift 2
case " $* " in *" --plan "*) set -- --world "$gpus" "$@" ;; esac
export LAUNCH="sh scripts/launch.sh $gpus"
exec sh "$(dirname "$0")/train_offload.sh" "zero_${size}_$gpus" --model "$size" --batch 1 \
    --seq 2048 --zero 3 "$@"
