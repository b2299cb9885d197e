#!/bin/sh
# Trains a model that is larger than the GPU: a row of scripts/models.txt. --plan after the name prints
# the plan for this machine; plan_offload.sh has plans for other machines.
# usage: scripts/train_model.sh NAME [OPTION...]     (train_offload.sh says what else can be set)
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
rows=$(dirname "$0")/models.txt
[ $# -ge 1 ] || { (usage) || cat "$rows" >&2; exit 2; }
name=$1
options=$(awk -v name="$name" '$1 == name { sub(/^[^ ]+ +/, ""); sub(/ *#.*/, ""); print }' "$rows")
[ -n "$options" ] || refuse "$name is no model of $rows, which has $(sed -n 's/^\([^ #]*\) .*/\1/p' "$rows" | tr '\n' ' ')"
shift
# shellcheck disable=SC2086  # options are words
exec sh "$(dirname "$0")/train_offload.sh" "$name" $options -- "$@"
