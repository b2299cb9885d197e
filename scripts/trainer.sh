# trainer.sh: sets $trainer to the GPU trainer, unless it is set, and makes it if needed. --plan needs
# no GPU: without one, any trainer that exists is taken, or the emulated one. To be sourced at the top
# of the repository, with the options of the script as arguments.
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
