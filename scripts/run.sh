#!/bin/sh
# `make run`: trains a small GPT on the text $DATA, in a minute to six. A short context learns most in
# that time (doc/SPEED.md). An earlier run in $OUT becomes $OUT-before.
# usage: [DATA=FILE] [OUT=FOLDER] sh scripts/run.sh TRAINER [OPTION...]
set -u
trainer=$1 data=${DATA:-build/self.txt} out=${OUT:-out/run}
out=${out%/}
shift
refuse() { echo "tide: $1" >&2; exit 2; }
model="--model nano --context 64 --batch 16 --lr 4e-3"
[ -e "$data" ] || refuse "DATA=$data: no such file"
# shellcheck disable=SC2086  # words
said=$("$trainer" --data "$data" $model "$@" --steps 0 --eval-batches 1 2>&1 >/dev/null) \
    || { echo "$said" >&2; exit 2; }
for folder in "$out" "$out-before"; do
    if [ -e "$folder/.lock" ] && command -v flock >/dev/null && ! flock -n "$folder/.lock" true; then
        refuse "$folder is in use by a run that is still at work: OUT=... for another"
    fi
done
if [ -e "$out/log.jsonl" ]; then
    [ ! -e "$out-before" ] || echo "the run in $out-before is removed"
    rm -rf "$out-before" && mv "$out" "$out-before" && echo "the earlier $out is $out-before now"
fi
# shellcheck disable=SC2086
exec "$trainer" --data "$data" --out "$out" $model --steps 1200 --eval-every 100 --save-every 300 \
    --sample-every 400 --sample-tokens 400 "$@"
