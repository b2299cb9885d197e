#!/bin/sh
# Fetches Meta's OPT (Zhang et al. 2022; its license allows research only): weights, configuration
# and tokenizer. opt-350m is another architecture (layer norm after the residual) and not supported.
# usage: sh dev/data/opt.sh [opt-125m|opt-1.3b|opt-2.7b|opt-6.7b|opt-13b|opt-30b|opt-66b [DIR]]
#                                                    default: opt-125m, data/opt-125m
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
model=${1:-opt-125m}
case $model in
    opt-125m | opt-1.3b | opt-2.7b | opt-6.7b | opt-13b | opt-30b | opt-66b) ;;
    *) fail "no model '$model'; there are opt-125m, -1.3b, -2.7b, -6.7b, -13b, -30b and -66b" ;;
esac
dir=${2:-$root/data/$model}

# exists URL: asks for one byte, because some servers do not answer a question for the header only.
exists() {
    if command -v curl > /dev/null 2>&1; then curl -sfL -r 0-0 -o /dev/null "$1"
    else wget -q --spider "$1"
    fi
}

base=$hub/facebook/$model/resolve/main
get "$base/config.json" "$dir/config.json" check_text '{'
get "$base/vocab.json" "$dir/vocab.json" check_text '{'
get "$base/merges.txt" "$dir/merges.txt" check_text '#version'
if [ -e "$dir/model.safetensors" ] || exists "$base/model.safetensors"; then
    get "$base/model.safetensors" "$dir/model.safetensors" check_safetensors
    echo "next: --model $dir --tokenizer $dir"
else
    echo "facebook/$model has no model.safetensors, only pickled or divided weights. To fetch and
convert them with Python, torch and transformers, run:
python3 -c \"import transformers
model = transformers.OPTForCausalLM.from_pretrained('facebook/$model', torch_dtype='auto')
model.save_pretrained('$dir', max_shard_size='1000GB', safe_serialization=True)\"" >&2
    exit 1
fi
