#!/bin/sh
# dev/data/opt.sh against a hub that is a folder: weights in main or proposed, whole or in parts,
# or pickled. Then all scripts that fetch, without a network, and with one that breaks off.
# usage: sh dev/test/test_fetch.sh    (from the top of the repository; needs curl)
set -u
top=$(pwd)
command -v curl >/dev/null || { echo "skip fetch: no curl on this machine"; exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export LC_ALL=C HF_ENDPOINT="file://$work/hub"

. "$top/dev/test/cli.sh"

# tensors FILE BYTES: a safetensors file of one tensor
tensors() {
    mkdir -p "$(dirname "$1")"
    header="{\"x\":{\"dtype\":\"U8\",\"shape\":[$2],\"data_offsets\":[0,$2]}}"
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >"$1"
    head -c "$2" /dev/zero >>"$1"
}
# model NAME: what each has
model() {
    repo=hub/facebook/$1/resolve
    mkdir -p "$repo/main" "hub/api/models/facebook/$1"
    echo '{"model_type": "opt"}' | tee "$repo/main/config.json" >"$repo/main/vocab.json"
    echo '#version: 0.2' >"$repo/main/merges.txt"
    echo '{"branches":[],"pullRequests":[{"ref":"refs/pr/9"},{"ref":"refs/pr/25"},{"ref":"refs/pr/31"}]}' \
        >"hub/api/models/facebook/$1/refs"
}
opt() { sh "$top/dev/data/opt.sh" "$@" >fetch.out 2>fetch.err; }

model opt-125m
tensors hub/facebook/opt-125m/resolve/main/model.safetensors 2000
check main_has_it opt opt-125m a
check it_came cmp a/model.safetensors hub/facebook/opt-125m/resolve/main/model.safetensors
check it_is_metas sh -c '! grep -q proposed fetch.out && grep -q "next: --model a" fetch.out'

model opt-1.3b
tensors hub/facebook/opt-1.3b/resolve/refs/pr/9/model.safetensors 2000
tensors hub/facebook/opt-1.3b/resolve/refs/pr/25/model.safetensors 3000
check a_proposal_has_it opt opt-1.3b b
check the_newest_that_has cmp b/model.safetensors \
    hub/facebook/opt-1.3b/resolve/refs/pr/25/model.safetensors
check it_is_said grep -q 'facebook/opt-1.3b/discussions/25$' fetch.out

model opt-6.7b
parts=hub/facebook/opt-6.7b/resolve/refs/pr/31
for i in 1 2; do tensors $parts/model-0000$i-of-00002.safetensors $((2000 * i)); done
echo '{"metadata": {"total_size": 6000}, "weight_map": {"a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}}' \
    >$parts/model.safetensors.index.json
mv $parts/model-00002-of-00002.safetensors later
check an_interrupted_one_is_told sh -c '! sh "$1"/dev/data/opt.sh opt-6.7b c >fetch.out 2>fetch.err &&
    grep -q "cannot download.*00002-of" fetch.err' - "$top"
mv later $parts/model-00002-of-00002.safetensors
tensors hub/facebook/opt-6.7b/resolve/main/model.safetensors 2000  # Meta's own, meanwhile
check it_goes_on_with_the_same opt opt-6.7b c
check all_parts_came sh -c 'for i in 1 2; do
    cmp c/model-0000$i-of-00002.safetensors "$1"/model-0000$i-of-00002.safetensors || exit 1; done' - $parts
check nothing_is_fetched_twice sh -c 'rm -r hub/facebook/opt-6.7b && sh "$1"/dev/data/opt.sh opt-6.7b c' \
    - "$top"
mkdir -p d2 && cp c/*.json c/merges.txt c/revision d2/ && echo '{"weight_map": {}}' >d2/model.safetensors.index.json
check an_index_without_files_is_told sh -c '! sh "$1"/dev/data/opt.sh opt-6.7b d2 >fetch.out 2>fetch.err &&
    grep -q "names no files" fetch.err' - "$top"
head -c 1500 c/model-00001-of-00002.safetensors >cut && mv cut c/model-00001-of-00002.safetensors
check a_damaged_part_is_named sh -c '! sh "$1"/dev/data/opt.sh opt-6.7b c >fetch.out 2>fetch.err &&
    grep -q "00001-of-00002.safetensors is damaged: 1500 bytes" fetch.err' - "$top"

model opt-13b
mkdir c13 && cp "$top"/dev/test/fixtures/pickle/*.bin c13/
parts=hub/facebook/opt-13b/resolve/main
cp c13/plain.bin $parts/pytorch_model-00001-of-00002.bin
echo '{"weight_map": {"float": "pytorch_model-00001-of-00002.bin",
    "0.weight": "pytorch_model-00002-of-00002.bin"}}' >$parts/pytorch_model.bin.index.json
check an_interrupted_pickle_is_told sh -c '! sh "$1"/dev/data/opt.sh opt-13b d >fetch.out 2>fetch.err &&
    grep -q "cannot download.*00002-of-00002.bin" fetch.err && [ ! -e d/model.safetensors ]' - "$top"
cp c13/model.bin $parts/pytorch_model-00002-of-00002.bin
check pickled_ones_are_converted opt opt-13b d
check all_of_it sh -c 'grep -q "22 tensors" fetch.out && [ ! -e d/pytorch_model-00001-of-00002.bin ] &&
    grep -aq "\"parameter\"" d/model.safetensors && grep -aq "\"1.bias\"" d/model.safetensors'
check a_second_time_nothing_is_fetched opt opt-13b d
model opt-350m
cp c13/model.bin hub/facebook/opt-350m/resolve/main/pytorch_model.bin
check one_file opt opt-350m e
check its_tensors grep -q '9 tensors' fetch.out
model opt-30b
check no_weights_is_told sh -c '! sh "$1"/dev/data/opt.sh opt-30b f >fetch.out 2>fetch.err &&
    grep -q "no weights that are known" fetch.err' - "$top"
refuses no_such_model 1 "no model 'opt-350'" sh "$top/dev/data/opt.sh" opt-350 f

# What a user has put there stays, the pickled weights too.
mkdir g && cp c13/model.bin g/pytorch_model.bin
check your_own_pickle_is_converted opt opt-350m g
check and_stays cmp g/pytorch_model.bin c13/model.bin

# Without a network a script says so at once, and leaves nothing behind.
export no_proxy='*'
offline() { env HF_ENDPOINT=http://127.0.0.1:1/ GLUE_URL=http://127.0.0.1:1 HELLASWAG_URL=http://127.0.0.1:1 \
    TINYSHAKESPEARE_URL=http://127.0.0.1:1 sh "$top/dev/data/$@"; }
began=$(date +%s)
for asked in "gpt2.sh gpt2 HF_ENDPOINT" "gpt2.sh tokenizer HF_ENDPOINT" "opt.sh opt-125m HF_ENDPOINT" \
    "fineweb10B.sh 1 HF_ENDPOINT" "tinystories.sh - HF_ENDPOINT" "sst2.sh - GLUE_URL" \
    "hellaswag.sh - HELLASWAG_URL" "tinyshakespeare.sh - TINYSHAKESPEARE_URL"; do
    # shellcheck disable=SC2086
    set -- $asked
    which=$2
    [ "$which" != - ] || which=''
    refuses "without_a_network_$1_$2" 1 "cannot reach http://127.0.0.1:1: .*$3=URL" \
        offline "$1" $which none/here
done
check in_seconds test $(($(date +%s) - began)) -lt 10
check without_a_trace test ! -e none
cp -r a known && rm known/model.safetensors known/revision
refuses weights_without_a_network 1 'cannot reach' offline opt.sh opt-125m known
if command -v wget >/dev/null; then
    mkdir wget
    for tool in sh wget dirname basename; do ln -s "$(command -v $tool)" wget/; done
    refuses without_curl_too 1 'cannot reach' env PATH="$work/wget" HF_ENDPOINT=http://127.0.0.1:1 \
        sh "$top/dev/data/gpt2.sh" gpt2 none/here
fi
check what_is_not_there_leaves_nothing sh -c '! sh "$1"/dev/data/gpt2.sh gpt2 none/here >fetch.out 2>fetch.err &&
    grep -q "cannot download .*merges.txt (HF_ENDPOINT" fetch.err && ! grep -q remove fetch.err &&
    [ ! -e none ]' - "$top"
# A connection that breaks off leaves a part, which is gone on with.
mkdir -p broken
cat >broken/curl <<'X'
#!/bin/sh
case $* in *-sI*) exit 0 ;; esac
while [ "$1" != -o ]; do shift; done
printf '#ver' >>"$2"
exit 18
X
chmod +x broken/curl
check a_part_is_kept sh -c '! PATH="$PWD/broken:$PATH" sh "$1"/dev/data/gpt2.sh gpt2 part >fetch.out 2>fetch.err &&
    grep -q "remove part/merges.txt.part and start over" fetch.err && [ -s part/merges.txt.part ]' - "$top"
if command -v python3 >/dev/null; then
    mkdir llmc && echo mine >llmc/gpt2_124M.bin
    refuses random_weights_replace_nothing 1 'gpt2_124M.bin exists' \
        python3 "$top/dev/bench/make_llmc_inputs.py" llmc
    check the_true_ones_stay grep -q mine llmc/gpt2_124M.bin
fi
