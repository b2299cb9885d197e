#!/bin/sh
# Fetches Meta's OPT (Zhang et al. 2022; its license allows research only): weights, configuration
# and tokenizer. Where there are only pickled weights, they are converted (dev/data/unpickle.c).
# usage: sh dev/data/opt.sh [opt-125m|opt-350m|opt-1.3b|opt-2.7b|opt-6.7b|opt-13b|opt-30b|opt-66b [DIR]]
#                                                    default: opt-125m, data/opt-125m
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
model=${1:-opt-125m}
case $model in
    opt-125m | opt-350m | opt-1.3b | opt-2.7b | opt-6.7b | opt-13b | opt-30b | opt-66b) ;;
    *) fail "no model '$model'; there are opt-125m, -350m, -1.3b, -2.7b, -6.7b, -13b, -30b and -66b" ;;
esac
dir=${2:-$root/data/$model}

# exists URL: asks for one byte, because some servers do not answer a question for the header only.
exists() {
    reach "$1"
    if command -v curl > /dev/null 2>&1; then curl -sfL -r 0-0 -o /dev/null "$1"
    else wget -q --spider "$1"
    fi
}

# parts_of INDEX SUFFIX: the files that it names
parts_of() {
    parts=$(tr ',{}' '\n\n\n' < "$1" |
        sed -n 's/.*: *"\([A-Za-z0-9._-]*\.'"$2"'\)".*/\1/p' | sort -u)
    [ -n "$parts" ] || fail "$1 names no files. Remove it and run this again"
}

# weights REVISION: fetches them, whole or in parts, if that revision has them as safetensors. What was
# begun is gone on with: its revision is in $dir/revision.
weights() {
    from=$hub/facebook/$model/resolve/$1
    if [ -e "$dir/model.safetensors" ] || exists "$from/model.safetensors"; then
        echo "$1" > "$dir/revision"
        get "$from/model.safetensors" "$dir/model.safetensors" check_safetensors
    elif [ -e "$dir/model.safetensors.index.json" ] || exists "$from/model.safetensors.index.json"; then
        echo "$1" > "$dir/revision"
        index=$dir/model.safetensors.index.json
        get "$from/model.safetensors.index.json" "$index" check_text '{'
        parts_of "$index" safetensors
        for part in $parts; do
            get "$from/$part" "$dir/$part" check_safetensors
        done
    else return 1; fi
}

# pickled: fetches Meta's pickled weights, whole or in parts, and makes one safetensors file of them. Those
# that it fetched, which $dir/.fetched lists, it removes then.
pickled() {
    from=$hub/facebook/$model/resolve/main parts=pytorch_model.bin
    if ! exists "$from/$parts"; then
        exists "$from/$parts.index.json" || return 1
        get "$from/$parts.index.json" "$dir/$parts.index.json" check_text '{'
        parts_of "$dir/$parts.index.json" bin
    fi
    for part in $parts; do
        [ -e "$dir/$part" ] || new=1
        get "$from/$part" "$dir/$part" check_text PK
        [ -z "${new-}" ] || echo "$part" >> "$dir/.fetched"
        new=
    done
    make -s -C "$root" build/unpickle
    # shellcheck disable=SC2086,SC2046  # one word for each file
    (cd "$dir" && "$root/build/unpickle" model.safetensors $parts &&
        { [ ! -e .fetched ] || rm -f $(cat .fetched) .fetched; })
}

# proposals: the revisions that somebody has proposed to Meta, the newest first
proposals() {
    url="$hub/api/models/facebook/$model/refs?include_prs=1"
    { if command -v curl > /dev/null 2>&1; then curl -sfL "$url"; else wget -qO - "$url"; fi; } |
        grep -o '"refs/pr/[0-9]*"' | tr -d '"' | sort -u | sort -t / -k 3nr | sed 's|/|%2F|g'
}

main=$hub/facebook/$model/resolve/main
get "$main/config.json" "$dir/config.json" check_text '{'
get "$main/vocab.json" "$dir/vocab.json" check_text '{'
get "$main/merges.txt" "$dir/merges.txt" check_text '#version'
if [ -e "$dir/revision" ]; then revisions=$(cat "$dir/revision")
else revisions="main $(proposals || true)"; fi
for revision in $revisions; do
    weights "$revision" || continue
    [ "$revision" = main ] || echo "not a file of Meta's: a conversion that was proposed to them,
$hub/facebook/$model/discussions/${revision##*F}"
    echo "next: --model $dir --tokenizer $dir"
    exit
done
pickled || fail "facebook/$model has no weights that are known here"
echo "converted from Meta's pickled weights, whose bits it has
next: --model $dir --tokenizer $dir"
