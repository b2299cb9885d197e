#!/bin/sh
# scripts/launch.sh: what it tells its ranks, how they end, and that nothing of them stays.
# usage: sh dev/test/cli/test_launch.sh      (from the top of the repository; ALL=1: waits as long as a user
#                                        would. With ranks that know each other: test_cli_zero.sh)
set -u
. dev/test/cli.sh
launch=$(pwd)/scripts/launch.sh
in_a_folder
unset OMP_NUM_THREADS MASTER_PORT MASTER_ADDR RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

program tell <<'END'
#!/bin/sh
echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $*"
echo "$MASTER_PORT" >>ports
[ -z "$(cat)" ]  # there is no input, and no waiting for one
END
share=$(($(nproc) / 3))
[ $share -gt 0 ] || share=1
for r in 0 1 2; do echo "$r $r 3 3 127.0.0.1 $share a b  c"; done >expected
told() { sh "$launch" 3 ./tell a 'b  c' >said && sort said | diff - expected; }
check ranks_are_told_who_they_are told
one_port() { [ "$(wc -l <ports)" -eq 3 ] && [ "$(sort -u ports | wc -l)" -eq 1 ]; }
check they_have_one_port one_port
check it_is_not_one_of_the_kernels awk '$1 < 20000 || $1 >= 32000 { exit 1 }' ports
kept() {
    MASTER_PORT=4321 OMP_NUM_THREADS=7 sh "$launch" 2 ./tell >said \
        && [ "$(grep -c ' 7 $' said)" -eq 2 ] && [ "$(grep -cx 4321 ports)" -eq 2 ]
}
check what_is_set_is_kept kept

for n in '' 0 x 1x -1 08 99999; do refuses "not_a_number_'$n'" 2 usage: sh "$launch" "$n" true; done
refuses no_command 2 usage: sh "$launch" 2
refuses unknown_command 2 'no such command' sh "$launch" 2 ./no_such_command

# Two GPUs on a machine that is made up, and a numactl that says what it is asked for.
mkdir -p bin node/sys/devices/system/node/node0 node/sys/devices/system/node/node1 \
    node/sys/bus/pci/devices/0000:1b:00.0 node/sys/bus/pci/devices/0000:ca:00.0
echo 0-7 >node/sys/devices/system/node/node0/cpulist
echo 8-15 >node/sys/devices/system/node/node1/cpulist
cat >bin/nvidia-smi <<'END'
#!/bin/sh
case $2 in 0) echo 00000000:CA:00.0 ;; 1) echo 00000000:1B:00.0 ;; *) exit 6 ;; esac
END
cat >bin/numactl <<'END'
#!/bin/sh
[ -z "${BROKEN-}" ] && echo "$RANK $1${SHOW:+ $OMP_NUM_THREADS}"
END
printf '#!/bin/sh\necho "$RANK $2"\n' >bin/taskset
printf '#!/bin/sh\necho 20\n' >bin/nproc
chmod +x bin/*
# near NODE NODE [VARIABLE=VALUE..]: which nodes the ranks are kept on if their GPUs, 0 and 1, are at these
near() {
    echo "$1" >node/sys/bus/pci/devices/0000:ca:00.0/numa_node
    echo "$2" >node/sys/bus/pci/devices/0000:1b:00.0/numa_node
    shift 2
    env "PATH=$work/bin:$PATH" "TIDE_MACHINE=$work/node" "$@" sh "$launch" 2 echo here 2>/dev/null | sort | tr '\n' ' '
}
check ranks_run_near_their_gpu test "$(near 0 1)" = '0 --cpunodebind=0 1 --cpunodebind=1 '
check in_the_order_of_their_gpus test "$(near 1 0)" = '0 --cpunodebind=1 1 --cpunodebind=0 '
check visible_gpus_are_counted test "$(near 0 1 CUDA_VISIBLE_DEVICES=1,0)" = '0 --cpunodebind=1 1 --cpunodebind=0 '
check no_node_is_known test "$(near 0 -1)" = 'here here '
check a_numactl_that_cannot_is_replaced test "$(near 0 1 BROKEN=1)" = '0 0-7 1 8-15 '
echo 8-9,12 >node/sys/devices/system/node/node1/cpulist
check the_smallest_node_bounds_the_threads test "$(near 0 1 SHOW=1)" = '0 --cpunodebind=0 3 1 --cpunodebind=1 3 '

# ends CODE COMMAND...: within some minutes
ends() {
    expected=$1
    shift
    timeout -k 1 300 sh "$launch" "$@"
    got=$?
    [ $got -eq "$expected" ] || { echo "code $got"; return 1; }
}
# shellcheck disable=SC2016  # these are the ranks' variables
{
check all_succeed ends 0 4 true
check the_last_fails ends 3 4 sh -c '[ $RANK -lt 3 ] || { sleep 1; exit 3; }'
check a_killed_rank ends 137 3 sh -c '[ $RANK != 1 ] || kill -9 $$'
}

# Whoever does not end has 15 seconds, in many short sleeps: here these take a hundredth.
mkdir quick
program quick/sleep <<END
#!/bin/sh
case \$1 in 0.*) set -- "0.00\${1#0.}" ;; esac
exec $(command -v sleep) "\$1"
END
real=$PATH
whole || PATH=$work/quick:$PATH
program stay <<'END'
#!/bin/sh
# Rank 1 fails; the others stay, one with a child and one that does not hear SIGTERM.
sleep 1000 &
echo "$$ $!" >>pids
case $RANK in
    0) wait ;;
    1) while [ "$(wc -l <pids)" -lt 3 ]; do sleep 0.1; done; exit 7 ;;
    2) trap '' TERM; while :; do sleep 1; done ;;
esac
END
# Who was killed takes a moment to end, on a busy machine.
gone() {
    [ "$(wc -l <pids)" -eq 3 ] || return 1
    for p in $(cat pids); do
        looks=0
        while kill -0 "$p" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$p/status"; do
            looks=$((looks + 1))
            [ $looks -lt 100 ] || { echo "$p still runs"; return 1; }
            PATH=$real sleep 0.05
        done
    done
}
check one_fails_and_others_stay ends 7 3 ./stay
check nothing_is_left_of_them gone
PATH=$real

program hear <<'END'
#!/bin/sh
for s in INT TERM HUP USR1 USR2 XCPU; do trap "echo $s >>heard; exit 0" $s; done
echo $$ >>pids
while :; do sleep 0.1; done
END
# SIGNAL TO: each rank hears it once, and ends well. TO is empty: only the script gets it; -: all that
# a terminal would send it to.
hears() {
    : >pids
    : >heard
    setsid $as_in_a_terminal sh "$launch" 3 ./hear &
    script=$!
    while [ "$(wc -l <pids)" -lt 3 ]; do sleep 0.1; done
    kill -s "$1" -- "$2$script"
    wait $script
    got=$?
    [ $got -eq 0 ] && [ "$(grep -cx "$1" heard)" -eq 3 ] && [ "$(wc -l <heard)" -eq 3 ] \
        || { echo "code $got, heard $(cat heard)"; return 1; }
}
as_in_a_terminal="env --default-signal=INT,TERM,HUP"  # no signal is ignored, as it is with nohup
if command -v setsid >/dev/null && $as_in_a_terminal true 2>/dev/null; then
    for s in INT TERM HUP USR1 USR2 XCPU; do
        check "signal_${s}_is_passed_on" hears $s ''
        check "signal_${s}_comes_once" hears $s -
        check "nothing_is_left_after_$s" gone
    done
else
    echo "skip launch_signals: no setsid, or an env without --default-signal"
fi
