#!/bin/sh
# Fetches tinyshakespeare (1.1 MB of text; Karpathy, char-rnn) into DIR.
# usage: sh dev/data/tinyshakespeare.sh [DIR]        default: data/tinyshakespeare
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
dir=${1:-$root/data/tinyshakespeare}
mirror=TINYSHAKESPEARE_URL
base=${TINYSHAKESPEARE_URL:-https://raw.githubusercontent.com/karpathy/char-rnn/master/data}
get "$base/tinyshakespeare/input.txt" "$dir/input.txt" check_size 1115394
echo "next: ./train_gpt2 --data $dir/input.txt"
