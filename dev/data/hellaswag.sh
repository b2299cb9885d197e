#!/bin/sh
# Fetches HellaSwag's validation set (Zellers et al. 2019: how does a short text go on, by which of
# four endings?) and makes val.jsonl of it, 10,042 lines for --val. As llm.c scores it, the
# prompt is "ctx", and an ending stands behind a space.
# usage: sh dev/data/hellaswag.sh [DIR]              default: data/hellaswag
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
dir=${1:-$root/data/hellaswag}
mirror=HELLASWAG_URL
base=${HELLASWAG_URL:-https://raw.githubusercontent.com/rowanz/hellaswag/master/data}

# convert FILE: strings stay as they are written, with their escapes. A quote within one is \", so
# that a name in quotes is never part of a text.
convert() {
    awk '
        function member(name, value) {
            if (!match($0, "\"" name "\": *" value)) {
                print "line " NR " has no " name >"/dev/stderr"
                failed = 1
                exit 1
            }
            found = substr($0, RSTART, RLENGTH)
            sub(/^"[a-z]*": */, "", found)
            return found
        }
        BEGIN { string = "\"([^\"\\\\]|\\\\.)*\"" }
        {
            prompt = member("ctx", string)
            answer = member("label", "[0-3]")
            rest = member("endings", "\\[" string "(, *" string ")*\\]")
            choices = ""
            for (n = 0; match(rest, string); n++) {
                choices = choices (n > 0 ? ", " : "") "\" " substr(rest, RSTART + 1, RLENGTH - 1)
                rest = substr(rest, RSTART + RLENGTH)
            }
            if (n != 4) member("four endings", "")
            printf "{\"prompt\": %s, \"choices\": [%s], \"answer\": %s}\n", prompt, choices, answer
        }
        END { if (!failed && NR != 10042) { print NR " questions, not 10042" >"/dev/stderr"; exit 1 } }' "$1"
}

get "$base/hellaswag_val.jsonl" "$dir/hellaswag_val.jsonl" check_text '{"ind"'
convert "$dir/hellaswag_val.jsonl" > "$dir/val.jsonl.part" || {
    rm -f "$dir/val.jsonl.part"
    fail "$dir/hellaswag_val.jsonl is damaged. Remove it and run this again"
}
put "$dir/val.jsonl"
echo "next: --steps 0 --val $dir/val.jsonl, or scripts/hellaswag.sh"
