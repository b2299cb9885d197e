#!/bin/sh
# Trains the models of Deep Optimizer States (table 2) on the GPUs of several nodes: ZeRO-3, micro-batches of 1 x 2048 on each GPU, the optimizer's
# state placed by --offload auto. mpirun (of Open MPI, or MPICH's) only starts the processes and sets their ranks: they do not use MPI. All nodes must
# have NCCL, and see the repository, DATA and OUT under the same paths. Build and fetch first.
# usage: [MPIRUN=mpirun] [MASTER_PORT=29500] scripts/zero_mpirun.sh HOST:GPUS,... SIZE [OPTION...] (SIZE: 7b, 8.3b, 10b, 13b or 20b)
# e.g.   scripts/zero_mpirun.sh node1:8,node2:8 20b --save-every 100
# train_offload.sh says what else can be set.
# NCCL chooses the network by itself. If it takes a wrong one, NCCL_SOCKET_IFNAME or NCCL_IB_HCA names the right one, and NCCL_DEBUG=INFO shows it.
# These variables are passed on.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case ${2-} in 7b|8.3b|10b|13b|20b) ;; *) usage ;; esac
hosts=$1 size=$2
shift 2
gpus=$(echo "$hosts" | awk -F , '{
    for (i = 1; i <= NF; i++) {
        if ($i !~ /^[^:]+:[1-9][0-9]*$/) exit
        sub(/.*:/, "", $i)
        n += $i
    }
    print n
}')
[ -n "$gpus" ] || usage
case " $* " in *" --plan "*) set -- --world "$gpus" "$@" ;; esac
mpirun=${MPIRUN:-mpirun}
# Rank 0 is on the first host.
set -- "zero_${size}_$gpus" --model "$size" --batch 1 --seq 2048 --zero 3 -- "$@"
environment="MASTER_ADDR=${MASTER_ADDR:-${hosts%%:*}} MASTER_PORT=${MASTER_PORT:-29500}"
for name in NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_DEBUG NCCL_HOME LD_LIBRARY_PATH; do
    eval "value=\${$name-}"
    [ -z "$value" ] || environment="$environment $name=$value"
done
# No process may be bound to one core: it has several threads.
case $($mpirun --version 2>&1) in
    *"Open MPI"*|*"Open RTE"*) start="$mpirun --host $hosts --bind-to none -np $gpus" ;;
    *) start="$mpirun -hosts $hosts -bind-to none -n $gpus" ;;
esac
export LAUNCH="$start env $environment"
exec sh "$(dirname "$0")/train_offload.sh" "$@"
