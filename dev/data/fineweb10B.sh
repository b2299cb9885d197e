#!/bin/sh
# Fetches FineWeb 10B (Penedo et al. 2024) as GPT-2 tokens in the llm.c format: one shard to
# evaluate and N shards to train on, 100M tokens and 200 MB each.
# usage: sh dev/data/fineweb10B.sh [N [DIR]]         default: 1 shard of 103, data/fineweb10B
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
shards=${1:-1}
dir=${2:-$root/data/fineweb10B}
case $shards in
    [1-9] | [1-9][0-9] | 10[0-3]) ;;
    *) fail "the number of shards must be 1 to 103, not '$shards'" ;;
esac

base=$hub/datasets/kjj0/fineweb10B-gpt2/resolve/main
get "$base/fineweb_val_000000.bin" "$dir/fineweb_val_000000.bin" check_bin
i=1
while [ "$i" -le "$shards" ]; do
    name=$(printf 'fineweb_train_%06d.bin' "$i")
    get "$base/$name" "$dir/$name" check_bin
    i=$((i + 1))
done
echo "next: --data '$dir/fineweb_train_*.bin' --val '$dir/fineweb_val_*.bin'"
