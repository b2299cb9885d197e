#!/bin/sh
# Draws a step of a run, like README.md's picture: what each stream does, and what is in GPU memory. Writes
# picture.svg, and trace.json for ui.perfetto.dev, to OUT.
# usage: [OUT=out/picture] [STEP=3] [TRAINER=./train_gpt2cu] scripts/picture.sh [OPTION...]
#        OPTION... are the trainer's: those of your run, whose first STEP + 2 steps are trained and not
#        saved; with --plan, those of a run that is rehearsed by --rates. Without any: README's picture.
# Without a GPU the emulated one is used. Times are then those of its virtual clock: each kernel takes 10 us, each
# piece on the CPU 150 us, each direction of the link 2 GB/s (EMU_KERNEL_US, EMU_HOST_US, EMU_LINK).
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
out=$(realpath -m "${OUT:-$(dirname "$0")/../out/picture}") trainer=${TRAINER:+$(absolute "$TRAINER")}
step=${STEP:-3}
cd "$(dirname "$0")/.."
[ -e /dev/nvidiactl ] || [ -n "$trainer" ] || { make train_gpt2emu && trainer=./train_gpt2emu; }
[ $# -gt 0 ] || set -- --layers 8 --heads 4 --channels 64 --context 32 --batch 1 --seq 32 \
    --offload interleave --share 0.5 --slots 3 --data LICENSE
# shellcheck source=scripts/trainer.sh
. scripts/trainer.sh
make build/timeline
title="tide.c $*"
new_folder "$out" "$trainer"
export EMU_CLOCK="${EMU_CLOCK:-virtual}" EMU_KERNEL_US="${EMU_KERNEL_US:-10}" \
       EMU_HOST_US="${EMU_HOST_US:-150}" EMU_LINK="${EMU_LINK:-2000000000}"
case " $* " in
    *" --plan "*)  # one step, without its memory
        "$trainer" "$@" -- --trace "$out/trace.json"
        set -- ;;
    *)
        "$trainer" --eval-every 0 -- "$@" -- --steps $((step + 2)) --no-save --out "$out/run" \
            --trace "$out/trace.json"
        set -- --step "$step" --memory ;;
esac
build/timeline "$out/trace.json" "$@" --title "$title" -o "$out/picture.svg"
echo "$out/picture.svg"
