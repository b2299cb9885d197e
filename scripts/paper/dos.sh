# dos.sh: the setting of Deep Optimizer States (Maurya et al. 2024, section 5.3), for the scripts
# dos_*.sh, which source it: four GPUs with ZeRO-3, one sequence of 2048 tokens each, all activations
# but the layers' inputs recomputed. Predicted for WORLD GPUs, measured on those that LAUNCH starts.
# shellcheck shell=sh disable=SC2034,SC2154
rates_of=paper_h100 WORLD=${WORLD:-4}
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
alone="--batch 1 --seq 2048 --recompute block"
[ -z "$plan" ] || alone="$alone --gpu-memory ${GPU_MEMORY:-79G} --host-memory ${HOST_MEMORY:-480G}"
size=$alone
ranks=${LAUNCH:+2}
[ -z "$plan" ] || ranks=$WORLD
[ "${ranks:-1}" -eq 1 ] || size="$size --zero 3"
models=${MODELS:-7b 8.3b 10b 13b 20b} largest=${MODELS:-20b}
largest=${largest##* }
systems="ZeRO-3 DOS tide"
