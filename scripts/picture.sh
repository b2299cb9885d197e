#!/bin/sh
# Draws one step of a run as README.md's picture does: what each stream does when, and what is in GPU
# memory. OUT then has picture.svg, and trace.json, which ui.perfetto.dev opens.
# usage: [OUT=out/picture] [STEP=3] [TRAINER=./train_gpt2cu] scripts/picture.sh [OPTION...]
#        OPTION... are the trainer's: those of your run, whose first STEP + 2 steps are trained and not
#        saved; with --plan, those of a run that is rehearsed by --rates. Without any: README's picture.
# On the emulated GPU, which is taken if there is no other, times are those of its virtual clock: each kernel
# takes 10 us, each piece on the CPU 150 us, each direction of the link 2 GB/s (EMU_KERNEL_US, EMU_HOST_US, EMU_LINK).
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
    *" --plan "*)  # one step, of which memory is not drawn
        "$trainer" "$@" -- --trace "$out/trace.json"
        set -- ;;
    *)
        "$trainer" --eval-every 0 -- "$@" -- --steps $((step + 2)) --no-save --out "$out/run" \
            --trace "$out/trace.json"
        set -- --step "$step" --memory ;;
esac
build/timeline "$out/trace.json" "$@" --title "$title" -o "$out/picture.svg"
echo "$out/picture.svg"
