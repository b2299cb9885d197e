#!/bin/sh
# Measures how much of the gradient is in few columns. Trains the model of scripts/tinyshakespeare.sh on the
# first half of a text; with MODEL, takes that one as it is. Prints for each matrix the share of the squared
# norm in the top 1 % and 10 % of the columns and rows, summed over 16 batches: of this text and, as in
# fine-tuning, of OTHER, if given. Takes minutes on two cores; doc/zenflow.md has STEPS=2000.
# usage: [STEPS=600] [OUT=DIR] scripts/zenflow_columns.sh [FILE [OTHER]]    (fetches FILE if it is not given)
#        MODEL=DIR [SIZE="--batch 8"] scripts/zenflow_columns.sh FILE [OTHER]      SIZE: options of a batch;
#        FILE, OTHER: text, or JSON lines
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case "${MODEL-}:${1-}" in ?*:) refuse "MODEL without FILE: name a text, or JSON lines" ;; esac
text=${1:+$(realpath -- "$1")} other=${2:+$(realpath -- "$2")}
out=${OUT:+$(absolute "$OUT")} model=${MODEL:+$(absolute "$MODEL")}
cd "$(dirname "$0")/.."
if [ -z "$text" ]; then
    sh dev/data/tinyshakespeare.sh
    text=data/tinyshakespeare/input.txt
fi
make train_gpt2 build/columns build/plot
out=${out:-out/zenflow_columns} top=$PWD
new_folder "$out" "$text" ${other:+"$other"} ${model:+"$model"}
if [ -z "$model" ]; then
    model=$out/model
    head -c $(($(wc -c <"$text") / 2)) "$text" >"$out/half.txt"
    text=$out/half.txt
    ./train_gpt2 --data "$text" --out "$model" --layers 4 --heads 4 --channels 128 \
        --context 256 --batch 16 --steps "${STEPS:-600}" --lr 3e-3 --eval-every 500
fi
for what in "$text" ${other:+"$other"}; do
    name=$(basename "$what" .txt)
    for seed in $(seq 16); do
        # shellcheck disable=SC2086  # options are words
        ./train_gpt2 --model "$model" --data "$what" ${SIZE-} --seed "$seed" \
            --dump "$out/$seed.safetensors" >"$out/dump.txt" || { cat "$out/dump.txt"; exit 1; }
    done
    echo "--- the gradient of $what"
    # shellcheck disable=SC2046  # names
    (cd "$out" && "$top/build/columns" $(seq -f %g.safetensors 16)) >"$out/$name.txt"
    cat "$out/$name.txt"
    rm -f "$out"/*.safetensors
    # A row "h.2.mlp.fc.w (512, 128) ..." becomes "2 mlp.fc (512, 128) ...", whose seventh word is the
    # share of the top 10 % of the columns.
    sed 's/^h\.\([0-9]*\)\.\([a-z.]*\)\.w /\1 \2 /; t; d' "$out/$name.txt" | awk '
        BEGIN { print "layer\tattn.qkv\tattn.proj\tmlp.fc\tmlp.proj" }
        $2 == "attn.qkv" { printf "%d", $1 }
        { printf "\t%s", $7 }
        $2 == "mlp.proj" { print "" }' >"$out/$name.tsv"
    build/plot "$out/$name.tsv" --lines -o "$out/$name.svg" --y "%" \
        --title "share of the squared norm in the top 10 % of the columns"
done
echo "drawn in $out/*.svg"
