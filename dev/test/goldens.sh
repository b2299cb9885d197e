#!/bin/sh
# What the trainers compute, as one line per run: hashes of the losses and norms, and of the weights
# that are saved, on the CPU and on the emulated GPU in every mode; and of the texts of --plan. Made before sources are moved or rewritten, and compared after each commit:
#     sh dev/test/goldens.sh >before; ...; sh dev/test/goldens.sh | diff before -
# usage: sh dev/test/goldens.sh [PATTERN]    (from the top, after make train_gpt2 train_gpt2emu;
#                                             the runs whose line matches)
set -u
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export EMU_PROTECT=0 EMU_CLOCK=virtual EMU_KERNEL_US=10 EMU_SCHED=lazy OMP_NUM_THREADS=1
export EMU_THREADS=1 EMU_MEM_MB=2000
awk 'BEGIN { for (x = 1; n < 9000; n++) {  # a text that stays as it is
    x = (x * 16807) % 2147483647
    printf "%s%s", substr("the cat sat on a mat and the dog ran to its red hat in the sun", x % 40 + 1,
        x % 7 + 2), x % 11 ? " " : "\n" } }' >"$work/text"
tiny="--layers 3 --heads 2 --channels 64 --context 32 --batch 2 --seq 32 --eval-batches 2 \
    --eval-every 3 --lr 3e-3 --warmup 0 --save-every 0 --"

hash() { sha256sum "$@" | cut -c1-12; }
# golden COMMAND NAME STEPS OPTION...: one line
golden() {
    command=$1 name=$2 steps=$3
    shift 3
    echo "$name $*" | grep -q -- "$pattern" || return 0
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    if $command --data "$work/text" --out "$work/out" $tiny --steps "$steps" -- "$@" >"$work/said" 2>"$work/err"; then
        losses "$work/out/log.jsonl" >"$work/losses"
        echo "$name $*: losses $(hash <"$work/losses") weights $(hash <"$work/out/model.safetensors")"
    else
        echo "$name $*: refused: $(grep -m 1 tide "$work/err")"
    fi
}
losses() {
    case $name in
        ranks*) grep -o '"\(val_loss\|loss\|grad_norm\)":[^,}]*' "$1" ;;
        *) sed 's/.*"step":\([0-9]*\).*"\(val_loss\|loss\)":\([^,}]*\)\(,"grad_norm":\([^,}]*\)\)*.*/\1 \2 \3 \5/' "$1" |
            grep '^[0-9]* [a-z]' ;;
    esac
}
run() { golden "./$1" "$@"; }
plan() {
    echo "plan $*" | grep -q -- "$pattern" || return 0
    ./train_gpt2emu --plan --data "$work/text" --rates scripts/rates/rtx4090_desktop.txt "$@" \
        >"$work/said" 2>&1
    echo "plan $*: $(sed '/^GPU memory:/d' "$work/said" | hash)"
}
pattern=${1-.}

run train_gpt2 6
run train_gpt2 6 --accum 2 --clip 0.1
run train_gpt2 6 --schedule linear --weight-decay 0 --seed 7
run train_gpt2 9 --offload zenflow --zen-window 3 --zen-reselect 2
run train_gpt2 9 --offload zenflow --zen-window 3 --zen-reselect 2 --zen-topk 0.3 --accum 2
run train_gpt2 6 --optimizer mezo --lr 1e-3
run train_gpt2 6 --optimizer mezo --lr 1e-3 --zo-queries 2 --zo-noise rademacher --accum 2
for precision in bf16 fp32; do
    p="--precision $precision"
    for o in none zero interleave; do
        run train_gpt2emu 5 $p --offload $o
        run train_gpt2emu 5 $p --offload $o --accum 2 --recompute block
    done
    run train_gpt2emu 5 $p --offload interleave --stride 2 --subgroup 20000 --slots 2
    run train_gpt2emu 5 $p --offload interleave --share 0.4 --resident 0.2 --accum 3
    run train_gpt2emu 5 $p --offload interleave --share 1 --slots 1 --grad-wire fp32 --accum 2
    run train_gpt2emu 5 $p --clip 0.05
    run train_gpt2emu 9 $p --offload zenflow --zen-window 3 --zen-reselect 2
    run train_gpt2emu 9 $p --offload zenflow --zen-window 2 --zen-reselect 0 --resident 0.3 --accum 2
    run train_gpt2emu 9 $p --offload zenflow --zen-window 2 --zen-reselect 1 --zen-warmup 2 --zen-topk 0.5
    run train_gpt2emu 4 $p --optimizer mezo --lr 1e-3
    run train_gpt2emu 4 $p --optimizer mezo --lr 1e-3 --zo-noise rademacher --zo-queries 2 --accum 2
    run train_gpt2emu 4 $p --optimizer mezo --lr 1e-3 --resident-blocks 0 --zo-no-slots --zo-no-fused-update
done
run train_gpt2emu 5 --precision fp16 --offload interleave --stride 2 --subgroup 20000 --slots 2
run train_gpt2emu 5 --precision fp16 --offload zenflow --zen-window 2 --accum 2
run train_gpt2emu 4 --precision fp16 --optimizer mezo --lr 1e-3
run train_gpt2emu 4 --precision fp16 --optimizer mezo --lr 1e-3 --resident-blocks 0
# ranks WORLD OPTION...: on so many
ranks() {
    world=$1
    shift
    golden "sh scripts/launch.sh $world ./train_gpt2emu" "ranks $world" 4 "$@"
}
for stage in 1 2 3; do
    ranks 2 --zero $stage
    ranks 2 --zero $stage --offload interleave --accum 2
    ranks 3 --zero $stage --offload zero --precision fp32
done
ranks 2 --offload zenflow --zen-window 2 --zero 2
ranks 2 --optimizer mezo --lr 1e-3
for m in gpt2 gpt2-xl 7b 20b; do
    for o in none zero twinflow interleave zenflow; do plan --model $m --seq 1024 --batch 1 --offload $o; done
    plan --model $m --seq 1024 --batch 2 --accum 4
    plan --model $m --seq 1024 --batch 2 --zero 3 --world 8
    plan --model $m --optimizer mezo --resident-blocks 0 --seq 1024
done
plan --model opt-13b --optimizer mezo --precision fp16 --resident-blocks 0
plan --model 7b --seq 2048 --batch 1 --offload interleave --stride 3 --gpu-memory 40G
