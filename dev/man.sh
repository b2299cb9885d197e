#!/bin/sh
# Prints the manual page, or bash's completion, of a trainer, made from what its --help all prints.
# usage: dev/man.sh page|completion PROGRAM
set -eu
export LC_ALL=C
case ${1-}:${2-} in page:?* | completion:?*) ;; *) sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2 ;; esac
program=$2 name=$(basename "$2")
case $program in */*) ;; *) program=./$program ;; esac
help=$("$program" --help all)
# Options are indented by two spaces, their help by many; other lines are a group's name, or text.
if [ "$1" = page ]; then
    echo "$help" | sed "s|$program|$name|g" | awk -v name="$name" -v version="$("$program" --version | head -n 1)" '
        function roff(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); sub(/^\./, "\\\\\\&.", s); return s }
        BEGIN {
            split(version, word)
            printf ".TH %s 1 \"\" \"%s %s\"\n.SH NAME\n%s \\- trains GPTs that are bigger than the GPU\n", toupper(name), word[1], word[2], name
            printf ".SH SYNOPSIS\n.B %s\n\\-\\-data FILE [options]\n.SH DESCRIPTION\n.nf\n", name
        }
        /^usage: / { next }
        /^  --/ {
            match($0, /^  --[^ ]+( [^ =][^ ]*)?/)
            option = substr($0, 3, RLENGTH - 2); text = substr($0, RLENGTH + 1); sub(/^ +/, "", text)
            printf ".TP\n.B %s\n", roff(option)
            if (text != "") print roff(text)
            next
        }
        /^          / && options { sub(/^ +/, ""); print roff($0); next }
        /^[A-Z]/ && !/[.:]$/ && !/^Models|^Behind/ {
            if (!options) print ".fi"
            options = 1; printf ".SH %s\n", roff($0); next
        }
        { print roff($0) }'
else
    echo "$help" | awk -v name="$name" '
        /^  --/ {
            match($0, /--[^ ]+/)
            option = substr($0, RSTART, RLENGTH)
            all = all " " option
            rest = substr($0, RSTART + RLENGTH + 1)
            if (match(rest, /^[a-z0-9.-]+([|][a-z0-9.-]+)+/))
                value[option] = substr(rest, 1, RLENGTH)
            else if (rest ~ /^[A-Za-z|]*(PATH|FILE|DIR)/) value[option] = "files"
        }
        END {
            printf "_%s() {\n    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n", name
            printf "    case $before in\n"
            for (i = 1; i <= split(all, options, " "); i++) {
                words = value[options[i]]
                gsub(/[|]/, " ", words)
                if (words == "") continue
                words = words == "files" ? "-f" : "-W \"" words "\""
                printf "        %s) COMPREPLY=($(compgen %s -- \"$word\")) ;;\n", options[i], words
            }
            printf "        *) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")) ;;\n    esac\n}\n", substr(all, 2)
            printf "complete -o filenames -F _%s %s\n", name, name
        }'
fi
