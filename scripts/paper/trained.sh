# trained.sh: shared by the scripts that also train without a GPU: on the CPU, with the reference of
# ZenFlow. To be sourced before figure.sh; sets $top and TRAINER.
# shellcheck shell=sh
unset PLAN
top=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=scripts/common.sh
. "$top/scripts/common.sh"
if [ -z "${TRAINER-}" ] && ! nvidia-smi -L >/dev/null 2>&1; then
    make -C "$top" train_gpt2
    TRAINER=$top/train_gpt2
fi
