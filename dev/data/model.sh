#!/bin/sh
# Fetches a GPT-2, OPT, LLaMA, Mistral or Qwen model from the hub: configuration, tokenizer, and
# weights, whole or in parts. Where the hub has pickled weights only, they are converted
# (dev/data/unpickle.c). Each model has a license of its own; where its owner asks to accept that
# first, do so on the model's page, and set HF_TOKEN to a token of yours.
# usage: sh dev/data/model.sh [--tokenizer] [NAME|OWNER/NAME [DIR]]      default: gpt2, data/NAME
#        NAME: gpt2, gpt2-medium, gpt2-large, gpt2-xl, opt-125m, opt-350m, opt-1.3b, opt-2.7b,
#              opt-6.7b, opt-13b, opt-30b, opt-66b
#        --tokenizer: only the configuration and the tokenizer
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
only_tokenizer=
if [ "${1-}" = --tokenizer ]; then
    only_tokenizer=1
    shift
fi
model=${1:-gpt2}
case $model in
    *[!A-Za-z0-9._/-]* | */*/* | */ | [/.-]* | */.*) fail "no model '$model': a model is OWNER/NAME" ;;
    */*) ;;
    gpt2 | gpt2-medium | gpt2-large | gpt2-xl) model=openai-community/$model ;;
    opt-125m | opt-350m | opt-1.3b | opt-2.7b | opt-6.7b | opt-13b | opt-30b | opt-66b)
        model=facebook/$model ;;
    *) fail "no model '$model': name it OWNER/NAME, as the hub does; or gpt2, gpt2-medium, -large, -xl, \
opt-125m, -350m, -1.3b, -2.7b, -6.7b, -13b, -30b, -66b" ;;
esac
dir=${2:-$root/data/${model#*/}}

# url REVISION FILE
url() { echo "$hub/$model/resolve/$1/$2"; }

# has REVISION FILE: whether the hub has it. Asks for one byte, because some servers do not answer a
# question for the header only.
has() {
    asked=$(url "$1" "$2")
    reach "$asked"
    if command -v curl > /dev/null 2>&1; then
        code=0
        answer=$(ask -sL -r 0-0 -o /dev/null -w '%{http_code}' "$asked") || code=$?
        case $code:$answer in 0:000) answer=200 ;; 37:*) answer=404 ;; esac  # of a file:
    else answer=$(wget -S --spider "$asked" 2>&1 | awk '/^ *HTTP\// { x = $2 } END { print x }')
    fi
    case $answer in
        200 | 206 | 416) ;;  # 416: there is no first byte
        404) return 1 ;;
        401 | 403) fail "$model: the hub says $answer: accept its license at $hub/$model and set \
HF_TOKEN to a token of yours (it needs curl), or there is no such model" ;;
        *) fail "cannot ask for $asked: the answer is ${answer:-none}" ;;
    esac
}

# parts_of INDEX SUFFIX: the files that it names
parts_of() {
    parts=$(tr ',{}' '\n\n\n' < "$1" |
        sed -n 's/.*: *"\([A-Za-z0-9._-]*\.'"$2"'\)".*/\1/p' | sort -u)
    [ -n "$parts" ] || fail "$1 names no files. Remove it and run this again"
}

# weights REVISION: fetches them if that revision has them as safetensors. A second run goes on with
# the revision that was begun, which is in $dir/revision.
weights() {
    index=$dir/model.safetensors.index.json
    if [ -e "$dir/model.safetensors" ] || has "$1" model.safetensors; then
        echo "$1" > "$dir/revision"
        get "$(url "$1" model.safetensors)" "$dir/model.safetensors" check_safetensors
    elif [ -e "$index" ] || has "$1" model.safetensors.index.json; then
        echo "$1" > "$dir/revision"
        get "$(url "$1" model.safetensors.index.json)" "$index" check_text '{'
        parts_of "$index" safetensors
        for part in $parts; do
            get "$(url "$1" "$part")" "$dir/$part" check_safetensors
        done
    else return 1; fi
    [ "$1" = main ] || echo "not a file of the owner's: a conversion that was proposed to them,
$hub/$model/discussions/${1##*F}"
}

# pickled: fetches pickled weights and makes one safetensors file of them. Those that it fetched,
# which $dir/.fetched lists, it removes then.
pickled() {
    parts=pytorch_model.bin
    if ! has main $parts; then
        has main $parts.index.json || return 1
        get "$(url main $parts.index.json)" "$dir/$parts.index.json" check_text '{'
        parts_of "$dir/$parts.index.json" bin
    fi
    for part in $parts; do
        [ -e "$dir/$part" ] || new=1
        get "$(url main "$part")" "$dir/$part" check_text PK
        [ -z "${new-}" ] || echo "$part" >> "$dir/.fetched"
        new=
    done
    make -s -C "$root" build/unpickle
    rm -f "$dir/model.safetensors.tmp"  # of a conversion that was stopped
    # shellcheck disable=SC2086,SC2046  # one word for each file
    (cd "$dir" && "$root/build/unpickle" model.safetensors $parts &&
        { [ ! -e .fetched ] || rm -f $(cat .fetched) .fetched; })
    echo "converted from the pickled weights, whose bits it has"
}

# proposed: fetches the newest conversion to safetensors that somebody has proposed to the owner
proposed() {
    refs="$hub/api/models/$model/refs?include_prs=1"
    for revision in $({ if command -v curl > /dev/null 2>&1; then ask -sfL "$refs"
                        else wget -qO - "$refs"; fi; } | grep -o '"refs/pr/[0-9]*"' | tr -d '"' |
                      sort -u | sort -t / -k 3nr | sed 's|/|%2F|g'); do
        ! weights "$revision" || return 0
    done
    return 1
}

# Models have some of the files in this loop. Those of a folder with weights were fetched before the
# weights: the hub is not asked again, and a network is not needed.
complete=
if [ -e "$dir/config.json" ] && [ -z "$only_tokenizer" ]; then
    [ ! -e "$dir/model.safetensors" ] && [ ! -e "$dir/model.safetensors.index.json" ] || complete=1
elif [ ! -e "$dir/config.json" ] && ! has main config.json; then
    fail "cannot download $(url main config.json): there is none ($mirror=URL names a mirror)"
fi
get "$(url main config.json)" "$dir/config.json" check_text '{'
for file in generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json \
    chat_template.jinja vocab.json merges.txt tokenizer.model; do
    case $file in *.json) start='{' ;; *) start='' ;; esac
    if [ -e "$dir/$file" ] || { [ -z "$complete" ] && has main $file; }; then
        get "$(url main $file)" "$dir/$file" check_text "$start"
    fi
done
if [ -n "$only_tokenizer" ]; then
    echo "next: --tokenizer $dir"
    exit
fi
if [ -e "$dir/revision" ]; then weights "$(cat "$dir/revision")"
else weights main || proposed || pickled || fail "$model has no weights that are known here"
fi
echo "next: --model $dir --tokenizer $dir"
