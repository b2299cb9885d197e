#!/bin/sh
# The shape of the sources: each file compiles alone (with ALL=1), files include only what lies below them, the folders
# of tide/ stand on each other in one order, there are not more lines than agreed, lines
# have at most 100 columns, train_gpt2.cu's table of events has the calls that there are, what the docs
# run as scripts/NAME.sh is executable, README.md is a page, and doc/tour.md's table
# of files has the lines that there are, within a tenth. --write puts today's lines into the table.
# usage: sh dev/test/sources/test_house.sh [--write]   (from the top of the repository)
set -u
export LC_ALL=C
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
CC=${CC:-gcc} CXX=${CXX:-g++}
ideas="adam.h offload.h zenflow.h zo.h zero.h"
files="$ideas $(echo tide/*/*.h tide/*/*.cuh)"

lines_of() { for f in "$@"; do [ -e "$f" ] && cat "$f" || cat tide/*/"$f"; done | wc -l; }

# a file and one that it includes, a line each
for f in train_gpt2.c train_gpt2.cu $files; do
    sed -n 's/^ *#include "\(.*\)"$/\1/p' "$f" | while read -r to; do
        echo "$f $(realpath -m --relative-to=. "$(dirname "$f")/$to")"
    done
done >"$work/includes"

if [ "${1-}" = --write ]; then
    while IFS= read -r line; do
        names=$(echo "$line" | sed -n 's/^| *\(`[^|]*`\) *| *[0-9,]* *|.*/\1/p' | tr -d '`,')
        # shellcheck disable=SC2086
        [ -z "$names" ] || line=$(echo "$line" | sed "s/| *[0-9,]* *|/| $(lines_of $names |
            sed 's/\(.\)\(...\)$/\1,\2/') |/")
        printf '%s\n' "$line"
    done <doc/tour.md >"$work/tour.md" && cat "$work/tour.md" >doc/tour.md
    exit
fi

if tsort "$work/includes" >"$work/order" 2>"$work/loops"; then echo "ok includes_point_downwards"
else echo "FAIL includes_point_downwards: $(tr '\n' ' ' <"$work/loops")"
fi
# the rooms, from the ground up: the ideas stand on base/ and each other, and nothing on a trainer
up=$(awk '
    BEGIN { floors = split("base ideas cpu files plan run gpu trainer", room)
            for (i = 1; i <= floors; i++) floor[room[i]] = i }
    function floor_of(f,    part) {
        if (split(f, part, "/") == 3 && part[1] == "tide") return floor[part[2]]
        return floor[f ~ /^train_gpt2/ ? "trainer" : "ideas"]
    }
    $2 !~ /emu_mma/ && (floor_of($2) == 0 || floor_of($2) > floor_of($1)) { printf "%s -> %s; ", $1, $2 }
    ' "$work/includes")
[ -z "$up" ] && echo "ok rooms_stand_on_those_below" || echo "FAIL rooms_stand_on_those_below: $up"

# ceilings (generated tables apart). The design allows 21,000 in all; the LLaMA family and its
# tokenizers came with more, which is to be cut again
above=$(cat train_gpt2.c train_gpt2.cu $ideas test_gpt2.c | wc -l)
all=$(cat ./*.c ./*.h ./*.cu Makefile $(ls tide/*/* | grep -v /unicode) | wc -l)
[ "$above" -le 4000 ] && echo "ok lines_above: $above of 4000" || echo "FAIL lines_above: $above of 4000"
step=$(wc -l <train_gpt2.cu)
[ "$step" -le 900 ] && echo "ok lines_of_train_gpt2.cu: $step of 900" || echo "FAIL lines_of_train_gpt2.cu: $step of 900"
[ "$all" -le 22520 ] && echo "ok lines_in_all: $all of 22520" || echo "FAIL lines_in_all: $all of 22520"
large=$(wc -l tide/*/* | awk '$1 > 650 && $2 != "total" && $2 !~ /unicode/ { printf "%s %d, ", $2, $1 }')
echo "ok files_of_more_than_650_lines: ${large%, }"

if [ "${ALL:-0}" = 1 ]; then  # half a minute: each file compiles by itself, as C and C++, or as CUDA C
    flags="-Wall -Wextra -Wno-unused-function -Wno-unknown-pragmas -Wno-missing-field-initializers -Werror -fopenmp -I."
    alone=0
    for f in $files; do
        case $f in
            *.h)
                echo "#include \"$f\"" >"$work/alone.c"
                $CC -std=gnu11 $flags -fsyntax-only "$work/alone.c" &&
                    $CXX -std=gnu++17 $flags -fsyntax-only -x c++ "$work/alone.c" ;;
            *.cuh)
                $CXX -E -x c++ -std=c++17 -D__CUDACC__ -Idev/emu/include -include cuda_runtime.h "$f" |
                    perl dev/emu/rewrite.pl >"$work/alone.ii" &&
                    $CXX -std=c++17 $flags -fsyntax-only -x c++-cpp-output "$work/alone.ii" ;;
        esac 2>"$work/err" && alone=$((alone + 1)) ||
            echo "FAIL compiles_alone: $f: $(grep -m 1 error "$work/err")"
    done
    [ $alone -gt 0 ] && echo "ok compiles_alone: $alone files"
fi

long=$(LC_ALL=C.UTF-8 grep -nE '^.{101}' ./*.c ./*.h ./*.cu tide/*/* | cut -d: -f1,2 | head -n 3)
[ -z "$long" ] && echo "ok lines_of_100_columns" || echo "FAIL lines_of_100_columns: $long"

# what is to be changed in the sources by a mutant is there (mutants.sh)
stale=$(perl dev/test/mutants.pl --check <dev/test/mutants.list)
[ -z "$stale" ] && echo "ok mutants_have_their_lines: $(grep -vc '^#' dev/test/mutants.list)" || echo "$stale"

# the table of streams and events, and the calls
unlike=$(perl dev/test/sources/streams.pl train_gpt2.cu tide/gpu/*.cuh)
[ -z "$unlike" ] && echo "ok events_are_as_their_table_says" || echo "FAIL events_are_as_their_table_says: $unlike"

# what the docs run as scripts/NAME.sh can be run so
sed -n 's/^    //p' README.md doc/*.md scripts/README.md scripts/paper/README.md |
    grep -oE '[^ ]* ?scripts/[A-Za-z0-9_./]+[.]sh' | grep -v -e '^"*sh ' -e '="sh ' |
    sed 's/.*scripts/scripts/' | sort -u >"$work/run"
dead=$(while read -r f; do [ -x "$f" ] || echo "$f"; done <"$work/run")
[ -s "$work/run" ] && [ -z "$dead" ] && echo "ok scripts_can_be_run: $(wc -l <"$work/run")" ||
    echo "FAIL scripts_can_be_run:" $dead

# README.md is read at once: lines, columns, words outside code
page=$(awk '{ if (length > 100) wide++ } !/^    / { gsub(/`[^`]*`|[(][^)]*[)]/, ""); words += NF }
    END { print NR, wide + 0, (words <= 1000 ? "" : words) }' README.md)
case $page in 110\ 0\ | 10?\ 0\ | ??\ 0\ ) echo "ok readme_is_a_page" ;; *)
    echo "FAIL readme_is_a_page: lines (110), wide ones, words: $page" ;; esac

# doc/tour.md: | `FILE` `FILE` | LINES | ... of each row all files together; those of tide/ by their names
sed -n 's/^| *\(`[^|]*`\) *| *\([0-9,]*\) *|.*/\2 \1/p' doc/tour.md | tr -d '`,' >"$work/rows"
[ -s "$work/rows" ] || echo "FAIL tour_has_lines_per_file: no table"
while read -r said names; do
    # shellcheck disable=SC2086
    is=$(lines_of $names)
    if [ $((is * 10)) -gt $((said * 11)) ] || [ $((is * 11)) -lt $((said * 10)) ]; then
        echo "FAIL tour_has_lines_per_file: $names: $is lines, not $said"
    else echo "ok tour_has_lines_per_file: $names: $is"
    fi
done <"$work/rows"
listed=$(cut -d' ' -f2- "$work/rows" | tr ' ' '\n')
for f in train_gpt2.c train_gpt2.cu test_gpt2.c $files; do
    echo "$listed" | grep -qx "${f##*/}" || echo "FAIL tour_has_lines_per_file: $f is not in the table"
done
