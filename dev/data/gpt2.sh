#!/bin/sh
# Fetches OpenAI's GPT-2: weights, configuration and tokenizer (MIT license).
# usage: sh dev/data/gpt2.sh [gpt2|gpt2-medium|gpt2-large|gpt2-xl [DIR]]
#                                                    default: gpt2, data/gpt2
#        sh dev/data/gpt2.sh tokenizer [DIR]         only vocab.json and merges.txt
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
model=${1:-gpt2}
case $model in
    gpt2 | gpt2-medium | gpt2-large | gpt2-xl) repository=$model ;;
    tokenizer) repository=gpt2 ;;
    *) fail "no model '$model': gpt2, gpt2-medium, gpt2-large, gpt2-xl or tokenizer" ;;
esac
dir=${2:-$root/data/$repository}

base=$hub/openai-community/$repository/resolve/main
get "$base/merges.txt" "$dir/merges.txt" check_text '#version'
get "$base/vocab.json" "$dir/vocab.json" check_text '{'
if [ "$model" != tokenizer ]; then
    get "$base/config.json" "$dir/config.json" check_text '{'
    get "$base/model.safetensors" "$dir/model.safetensors" check_safetensors
    echo "next: --model $dir --tokenizer $dir"
fi
