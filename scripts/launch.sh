#!/bin/sh
# Starts a command N times on this machine, as the N ranks of one run, one for each GPU:
#
#     scripts/launch.sh 4 ./train_gpt2cu --data text.txt --model d12 --zero 2
#
# Each gets its number as from torchrun: RANK and LOCAL_RANK, WORLD_SIZE and
# LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free port, unless it is set). Each gets its share
# of the cores as OMP_NUM_THREADS, unless that is set. None of them has a standard input.
#
# On a machine with several NUMA nodes, numactl or taskset keeps each rank on the node of its GPU,
# unless a node has no GPU of this run (its part of the memory's bandwidth would be lost), a GPU's
# node is not known, or the cores are chosen already (taskset, OMP_PLACES, OMP_PROC_BIND). Each then
# has as many threads as the rank with the smallest part of its node.
#
# SIGINT (Ctrl-C), SIGTERM, SIGHUP, and what batch systems send (SIGUSR1, SIGUSR2, SIGXCPU) are
# passed on, and each is one signal for a rank: it saves and ends. If a rank fails, the others have
# 15 seconds to end too. The exit code is that of the first that failed. Nothing that they started
# is left running.
# On several machines: torchrun, mpirun or srun instead (scripts/README.md).
set -u
(true >&2) || exec 2>/dev/null  # closed: what is opened first would be given the number
(true >&1) 2>/dev/null || exec >/dev/null
(true <&0) 2>/dev/null || exec </dev/null
usage() { echo "tide: usage: scripts/launch.sh N COMMAND [ARGUMENT...]" >&2; exit 2; }
[ $# -ge 2 ] || usage
ranks=$1
shift
case $ranks in '' | *[!0-9]* | ?????*) usage ;; esac
[ "$ranks" -ge 1 ] || usage
command -v "$1" >/dev/null || { echo "tide: launch.sh: $1: no such command" >&2; exit 2; }

# A port that nobody uses, below those that the kernel gives to connections.
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
export TIDE_JOB="$$-$MASTER_PORT"  # ranks of another run, at the same port, are strangers
unset TORCHELASTIC_RUN_ID

# near_gpu RANK: "NODE HARDWARE-THREADS" of its GPU; nothing if they are not known
devices=${TIDE_MACHINE-}/sys/bus/pci/devices nodes=${TIDE_MACHINE-}/sys/devices/system/node
near_gpu() {
    gpu=$1
    [ -z "${CUDA_VISIBLE_DEVICES-}" ] || gpu=$(echo "$CUDA_VISIBLE_DEVICES" | cut -d, -f$(($1 + 1)))
    bus=$(nvidia-smi -i "$gpu" --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | tr A-F a-f)
    node=$(cat "$devices/${bus#0000}/numa_node" 2>/dev/null) &&
        threads=$(cat "$nodes/node$node/cpulist" 2>/dev/null) && echo "$node $threads"
}
# One line for each rank, if they are to be kept there.
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
# keeper RANK: the words that start its command
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

# Ranks have sessions of their own: Ctrl-C reaches this script alone, which passes it on, and with a
# rank goes all that it started. A shell starts what is in the background with SIGINT ignored.
session='' group='' signals=''
command -v setsid >/dev/null && session=setsid group=-
env --default-signal=INT,QUIT true 2>/dev/null && signals=--default-signal=INT,QUIT

all='' alive=''
send() { for p in $2; do kill -s "$1" -- "$group$p" 2>/dev/null; done; }
# shellcheck disable=SC2064  # the signal's name now, the ranks then
for s in INT TERM HUP USR1 USR2 XCPU; do trap "send $s \"\$alive\"" $s; done
trap 'send KILL "$all"' EXIT

exec 3>&2 2>/dev/null  # from here on only the ranks speak: bash would tell of each that is killed
rank=0
while [ $rank -lt "$ranks" ]; do
    # shellcheck disable=SC2046,SC2086  # lists of words, or none
    $session env $signals RANK=$rank LOCAL_RANK=$rank $(keeper $rank) "$@" </dev/null 2>&3 3>&- &
    all="$all $!" alive="$alive $!"
    rank=$((rank + 1))
done

# Looks at them every now and then: often at first, and after a failure.
code=0 looks=0 failed=0
while [ -n "$alive" ]; do
    looks=$((looks + 1))
    if [ $looks -lt 100 ]; then sleep 0.05; else sleep 0.5; fi
    left='' first=$code
    for p in $alive; do
        if kill -0 "$p" 2>/dev/null; then left="$left $p"; continue; fi
        wait "$p"
        ended=$?
        # Of those that ended since the last look any may have been the first: whoever follows one
        # that was killed ends with 1, and that has the larger code (128 + a signal).
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
