#!/bin/sh
# Fetches TinyStories (Eldan and Li 2023), the stories by GPT-4: 2.2 GB of text for training and
# 22 MB held out, into DIR.
# usage: sh dev/data/tinystories.sh [DIR]            default: data/tinystories
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
dir=${1:-$root/data/tinystories}

# check_stories FILE BYTES: at least that long, and stories, each of which ends with the mark.
check_stories() {
    if ! head -c 100000 "$1" | grep -q '<|endoftext|>'; then echo "not the stories"; return 1; fi
    [ "$(size_of "$1")" -ge "$2" ] && return
    echo "$(size_of "$1") bytes, expected at least $2"
    return 1
}

base=$hub/datasets/roneneldan/TinyStories/resolve/main
get "$base/TinyStoriesV2-GPT4-valid.txt" "$dir/valid.txt" check_stories 20000000
get "$base/TinyStoriesV2-GPT4-train.txt" "$dir/train.txt" check_stories 2000000000
echo "next, with a tokenizer from dev/data/model.sh --tokenizer gpt2, for each of train and valid:"
echo "  tokenize --tokenizer data/gpt2 --split-at '<|endoftext|>' --out $dir/valid $dir/valid.txt"
