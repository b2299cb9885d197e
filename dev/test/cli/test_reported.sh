#!/bin/sh
# What others report of other trainers (doc/reported.md), tried on this one: a check for each thread that no
# other test holds; its name begins with the project and the number. In a temporary directory.
# usage: sh dev/test/cli/test_reported.sh      (from the top of the repository, after make train_gpt2
#        train_gpt2emu; TIDE_GPU=./train_gpt2cu for a real GPU)
set -u
. dev/test/cli.sh
begin reported
cp "$top/LICENSE" .
without_measuring

llama="--data LICENSE --model nano-llama --layers 2 --channels 32 --ffn 48 --context 32 --batch 2"
llama="$llama --eval-every 0 --save-every 0 --schedule constant --warmup 0 --lr 3e-3 --"
# trains RUN PROGRAM OPTION...: a LLaMA of 30 thousand parameters
trains() {
    run=$1 program=$2
    shift 2
    "$program" $llama "$@" --out "$run" >"$run.out" 2>&1 || fail "$run" "$(tail -n 1 "$run.out")"
}
# Six windows of four steps behind a warm-up of four.
zen="--steps 28 --offload zenflow --zen-window 4 --zen-warmup 4"
trains zen_cpu "$cpu" $zen
trains zen_gpu "$tide" $zen --precision fp32
near deepspeed_7759_zenflow_outlives_its_windows zen_gpu zen_cpu 3e-6
check deepspeed_7759_six_were_closed test "$(sed 1,4d zen_gpu/log.jsonl | grep -c '"closes":true')" -eq 6

for precision in fp32 bf16 fp16; do
    trains zo_$precision "$tide" --optimizer mezo --lr 1e-3 --steps 6 --precision $precision
done
for precision in bf16 fp16; do
    near mezo_42_a_llama_in_$precision zo_$precision zo_fp32 5e-4
done

# most_of RUN OPTION...: the most memory that the process had, in MiB, without what its emulated GPU had
most_of() {
    run=$1
    shift
    "$tide" --data LICENSE --layers 4 --channels 384 --context 8 --batch 1 --steps 1 --no-save --out "$run" \
        --eval-every 0 --offload "$@" >"$run.out" 2>&1 &
    while now=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB$/\1/p' /proc/$!/status 2>/dev/null) && [ -n "$now" ]; do
        most=$now
        sleep 0.01
    done
    sed -n "s/^GPU memory: \([0-9.]*\) MiB taken.*/$most \1/p" "$run.out" | awk '{ print $1 / 1024 - $2 }'
}
case $tide in *emu)
    program=$(most_of host_none none)
    for mode in zero "interleave --share 0.5"; do
        name=host_${mode%% *} taken=$(most_of "host_${mode%% *}" $mode)
        check deepspeed_3606_${name}_takes_what_is_planned awk "BEGIN { d = $taken - $program - $(planned host "$name.out")
            exit d < -3 || d > 13 }"  # of 80 MiB or more; Linux may round five buffers up to 2 MiB each
    done ;;
esac

# plan OPTION...: of 8B, by its last words
plan() {
    "$tide" --plan --model llama3.1-8b --batch 1 --seq 2048 --rates rates.txt "$@" >plan.out 2>&1
}
host() { plan --gpu-memory 139G --host-memory 200G --offload twinflow --resident "$1"; planned host plan.out; }
all=$(host 0)
for tenths in 1 2 4 5 7 9; do
    check deepspeed_4775_a_ratio_of_0.${tenths}_acts awk "BEGIN { d = $(host 0.$tenths) / ($all * (1 - 0.$tenths))
        exit d < 0.999 || d > 1.001 }"
done

card="--gpu-memory 24G --host-memory 60G"
refuses deepspeed_6666_8b_with_wide_moments 2 '60.00 GiB are there.*it fits with --moments bf16$' \
    "$tide" --plan --model llama3.1-8b --batch 1 --seq 2048 --rates rates.txt $card
check deepspeed_6666_8b_with_moments_in_16_bits plan $card --moments bf16
