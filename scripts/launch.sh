#!/bin/sh
# Starts a command N times on this machine, as the N ranks of one run, one for each GPU:
#
#     scripts/launch.sh 4 ./train_gpt2cu --data text.txt --model d12 --zero 2
#
# Each process gets the variables that torchrun would set: RANK, LOCAL_RANK, WORLD_SIZE,
# LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free port, unless it is set). OMP_NUM_THREADS is its
# share of the cores, unless that is set. None of them has a standard input.
#
# On a machine with several NUMA nodes, numactl or taskset keeps each rank on the node of its GPU. This
# is not done if a node has no GPU of this run (the bandwidth of its memory would be lost), if a GPU's
# node is unknown, or if the cores are chosen already (taskset, OMP_PLACES, OMP_PROC_BIND). Then each
# rank has as many threads as the one with the smallest part of its node.
#
# SIGINT (Ctrl-C), SIGTERM, SIGHUP, and the signals of batch systems (SIGUSR1, SIGUSR2, SIGXCPU) are
# passed on. Each is one signal for a rank, which saves and ends. If a rank fails, the others have 15
# seconds to end, too. The exit code is that of the first rank that failed. Nothing that a rank has
# started is left running. On several machines use torchrun, mpirun or srun (scripts/README.md).
set -u
(true >&2) || exec 2>/dev/null  # if a descriptor is closed, the next file would get its number
(true >&1) 2>/dev/null || exec >/dev/null
(true <&0) 2>/dev/null || exec </dev/null
usage() { echo "tide: usage: scripts/launch.sh N COMMAND [ARGUMENT...]" >&2; exit 2; }
[ $# -ge 2 ] || usage
ranks=$1
shift
case $ranks in '' | *[!0-9]* | 0* | ?????*) usage ;; esac  # (a shell may take 010 for 8)
command -v "$1" >/dev/null || { echo "tide: launch.sh: $1: no such command" >&2; exit 2; }

# free_port: prints an unused port, below those that the kernel gives to connections.
free_port() {
    taken=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '{ sub(/.*:/, "", $2); print $2 }')
    while :; do
        port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000))
        echo "$taken" | grep -q "^$(printf '%04X' $port)\$" || break
    done
    echo "$port"
}

cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
share=$((cores / ranks))
[ $share -gt 0 ] || share=1
export MASTER_ADDR=127.0.0.1 WORLD_SIZE="$ranks" LOCAL_WORLD_SIZE="$ranks"
export MASTER_PORT="${MASTER_PORT:-$(free_port)}"
export TIDE_JOB="$$-$MASTER_PORT"  # ranks of another run on this port are refused
unset TORCHELASTIC_RUN_ID

# near_gpu RANK: prints "NODE HARDWARE-THREADS" of its GPU; fails if they are unknown
devices=${TIDE_MACHINE-}/sys/bus/pci/devices nodes=${TIDE_MACHINE-}/sys/devices/system/node
near_gpu() {
    gpu=$1
    [ -z "${CUDA_VISIBLE_DEVICES-}" ] || gpu=$(echo "$CUDA_VISIBLE_DEVICES" | cut -d, -f$(($1 + 1)))
    bus=$(nvidia-smi -i "$gpu" --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | tr A-F a-f)
    node=$(cat "$devices/${bus#0000}/numa_node" 2>/dev/null) &&
        threads=$(cat "$nodes/node$node/cpulist" 2>/dev/null) && echo "$node $threads"
}
# near: the node and threads of each rank, a line each; empty if ranks are not kept on nodes.
near=''
if [ "$(cat "$nodes"/node*/cpulist 2>/dev/null | grep -c .)" -gt 1 ] &&
    [ -z "${OMP_PLACES-}${OMP_PROC_BIND-}" ] &&
    [ "$(env -u OMP_NUM_THREADS nproc)" = "$(env -u OMP_NUM_THREADS nproc --all)" ]; then
    rank=0
    near=$(while [ $rank -lt "$ranks" ]; do near_gpu $rank || echo unknown; rank=$((rank + 1)); done)
    for list in "$nodes"/node*/cpulist; do
        node=${list%/cpulist} node=${node##*node}
        [ -z "$(cat "$list")" ] || echo "$near" | grep -q "^$node " || near=''
    done
    case $near in *unknown*) near='' ;; esac
fi
# keeper RANK: prints the words before its command
keeper() {
    place=$(echo "$near" | sed -n "$(($1 + 1))p")
    if [ -z "$place" ]; then return
    elif numactl --cpunodebind="${place% *}" true >/dev/null 2>&1; then  # a container may forbid it
        echo "numactl --cpunodebind=${place% *}"
    elif taskset -c "${place#* }" true >/dev/null 2>&1; then echo "taskset -c ${place#* }"
    fi
}
if [ -n "$(keeper 0)" ]; then
    echo "tide: ranks run on the NUMA nodes of their GPUs: $(echo "$near" | cut -d" " -f1 | tr "\n" " ")" >&2
    share=$(echo "$near" | awk -v least=$share '
        { ranks[$1]++; list[$1] = $2 }
        END {
            for (node in list) {
                threads = 0
                for (i = split(list[node], part, ","); i > 0; i--)
                    threads += split(part[i], at, "-") > 1 ? at[2] - at[1] + 1 : 1
                each = int(threads / ranks[node])
                if (each < least) least = each
            }
            print (least > 0 ? least : 1)
        }')
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$share}"

# Each rank has a session of its own. So Ctrl-C reaches only this script, which passes it on, and a rank
# can be ended with all that it has started. (A shell starts background jobs with SIGINT ignored.)
session='' group='' signals=''
command -v setsid >/dev/null && session=setsid group=-
env --default-signal=INT,QUIT true 2>/dev/null && signals=--default-signal=INT,QUIT

all='' alive=''
send() { for p in $2; do kill -s "$1" -- "$group$p" 2>/dev/null; done; }
# shellcheck disable=SC2064  # $s is replaced now, $alive when the signal comes
for s in INT TERM HUP USR1 USR2 XCPU; do trap "send $s \"\$alive\"" $s; done
trap 'send KILL "$all"' EXIT

exec 3>&2 2>/dev/null  # only ranks print from here on; bash would report each that is killed
rank=0
while [ $rank -lt "$ranks" ]; do
    # shellcheck disable=SC2046,SC2086  # lists of words, or none
    $session env $signals RANK=$rank LOCAL_RANK=$rank $(keeper $rank) "$@" </dev/null 2>&3 3>&- &
    all="$all $!" alive="$alive $!"
    rank=$((rank + 1))
done

# Looks at the ranks in turn: often at first, and after a failure.
code=0 looks=0 failed=0
while [ -n "$alive" ]; do
    looks=$((looks + 1))
    if [ $looks -lt 100 ]; then sleep 0.05; else sleep 0.5; fi
    left='' first=$code
    for p in $alive; do
        if kill -0 "$p" 2>/dev/null; then left="$left $p"; continue; fi
        wait "$p"
        ended=$?
        # Any of the ranks that ended since the last look may have been the first. One that only
        # followed a killed rank ends with 1; the killed one has a larger code (128 + a signal).
        if [ $first -eq 0 ] && [ $ended -gt $code ]; then code=$ended; fi
    done
    alive=$left
    [ $code -ne 0 ] || continue
    [ $failed -ne 0 ] || looks=0
    failed=$((failed + 1))
    if [ $looks -eq 100 ]; then send TERM "$alive"; fi      # after 5 s
    if [ $looks -eq 120 ]; then send KILL "$alive"; fi      # and 10 s more
done
exit $code
