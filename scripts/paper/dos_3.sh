#!/bin/sh
# Figure 3 of Deep Optimizer States: what is in GPU memory during an iteration with all state on the
# host, with all activations stored, or recomputed. It is traced, not planned. Without a GPU it is of a
# small model, with the proportions of SIZE, on the emulated GPU with its virtual clock.
# usage: [MODELS=20b] [LAUNCH="sh scripts/launch.sh 4"] scripts/paper/dos_3.sh; see figure.sh
id=dos_3 STEPS=${STEPS:-6} WARMUP=${WARMUP:-2}
top=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${TRAINER-}" ] && ! nvidia-smi -L >/dev/null 2>&1; then
    make -C "$top" train_gpt2emu
    TRAINER=$top/train_gpt2emu
fi
case ${TRAINER-} in *emu)
    DATA=${DATA:-$top/LICENSE} RATES=${RATES:-$top/scripts/rates/paper_h100.txt}
    SIZE=${SIZE---layers 12 --heads 4 --channels 64 --context 64 --batch 2 --seq 64}
    export EMU_CLOCK=virtual EMU_KERNEL_US=20 EMU_HOST_US=150 MODELS="${MODELS:-nano}" ;;
esac
unset PLAN
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
model=$largest
timeline=$(absolute "${TIMELINE:-build/timeline}")
[ -x "$timeline" ] || make build/timeline
for recompute in none block; do
    SIZE="${SIZE-$size} -- --recompute $recompute"
    measure $recompute --offload zero
    [ "$ended" = ok ] || continue
    "$timeline" "$out/$recompute.trace" --step $((steps - 2)) --memory -o "$out/dos_3_$recompute.svg" \
        --title "Figure 3: $model, --recompute $recompute. The paper: memory rises and falls like this"
    echo "$out/dos_3_$recompute.svg"
done
finish
