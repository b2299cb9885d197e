# trainer.sh: the GPU trainer of a script, made if need be; --plan needs no GPU: where there is none,
# a trainer that is there, or the emulated one. To be sourced at the top of the repository, with the
# script's options as arguments; sets $trainer, unless it has one.
# shellcheck shell=sh disable=SC2154
default=train_gpt2cu
case " $* " in *" --plan "*)
    for t in ./train_gpt2emu ./train_gpt2cu; do
        [ -n "$trainer" ] || [ -e /dev/nvidiactl ] || [ ! -x $t ] || trainer=$t
    done
    [ -e /dev/nvidiactl ] || default=train_gpt2emu ;;
esac
[ -n "$trainer" ] || make $default
trainer=${trainer:-./$default}
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }
