#!/bin/sh
# `make run`: trains a small GPT on the text $DATA, in one to six minutes. A short context learns most
# in that time (doc/speed.md). An earlier run in $OUT is kept as $OUT-1, or the next free number.
# usage: [DATA=FILE] [OUT=FOLDER] sh scripts/run.sh TRAINER [OPTION...]
set -u
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
refuse() { echo "tide: $*" >&2; exit 2; }
[ $# -ge 1 ] || usage
trainer=$1 data=${DATA:-build/self.txt} out=${OUT:-out/run}
out=${out%/}
shift
model="--model nano --context 64 --batch 16 --lr 4e-3"
[ -e "$data" ] || refuse "DATA=$data: no such file"
# shellcheck disable=SC2086  # words
said=$("$trainer" --data "$data" $model -- "$@" -- --steps 0 --eval-batches 1 2>&1 >/dev/null) \
    || { echo "$said" >&2; exit 2; }
[ ! -e "$out/.lock" ] || aside "$out" "$data" "$trainer"
# shellcheck disable=SC2086
exec "$trainer" --data "$data" --out "$out" $model --steps 1200 --log-every 10 --eval-every 100 \
    --save-every 300 --sample-every 400 --sample-tokens 400 -- "$@"
