#!/bin/sh
# Fetches SST-2 (Socher et al. 2013; GLUE, Wang et al. 2019): sentences from film reviews, negative
# (0) and positive (1). Makes train.tsv (67,349 examples), dev.tsv (872) and, as MeZO does, a choice
# of 1000 examples of train.tsv to train on, train1000.tsv, and of 500 others, dev500.tsv, to choose
# the best step by. SEED numbers the choice. Needs unzip, bsdtar or python3, too.
# usage: sh dev/data/sst2.sh [DIR [SEED]]            default: data/sst2, 0
set -eu
# shellcheck source=dev/data/fetch.sh
. "$(dirname "$0")/fetch.sh"
dir=${1:-$root/data/sst2}
seed=${2:-0}
case $seed in
    '' | *[!0-9]* | ??????????*) fail "SEED must be a number of at most nine digits, not '$seed'" ;;
esac

# extract ZIP NAME: the file NAME of the archive, to stdout.
extract() {
    if command -v unzip > /dev/null 2>&1; then unzip -p "$1" "$2"
    elif command -v bsdtar > /dev/null 2>&1; then bsdtar -xOf "$1" "$2"
    elif command -v python3 > /dev/null 2>&1; then
        python3 -c 'import sys, zipfile
sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' "$1" "$2"
    else fail "needs unzip, bsdtar or python3"
    fi
}

# make FILE LINES COMMAND...: what the command prints, if it has that many lines.
make() {
    file=$1 lines=$2
    shift 2
    "$@" > "$file.part" || { rm -f "$file.part"; fail "cannot make $file"; }
    [ "$(wc -l < "$file.part")" -eq "$lines" ] ||
        { rm -f "$file.part"; fail "$file would not have $lines lines"; }
    put "$file"
    echo "$file: $((lines - 1)) examples"
}

# choose FROM TO: the examples of train.tsv that come FROM .. TO in a pseudorandom order. Park and
# Miller's generator gives each its place: its products fit into a double, so that every awk has
# the same numbers, and it repeats none within 2^31 - 2.
choose() {
    printf 'sentence\tlabel\n'
    awk -v seed="$seed" 'BEGIN { x = seed + 1; for (i = 0; i < 20; i++) x = x * 16807 % 2147483647 }
        NR > 1 { x = x * 16807 % 2147483647; printf "%.0f\t%s\n", x, $0 }' "$dir/train.tsv" |
        sort -n -k 1,1 | sed -n "$1,$2p" | cut -f 2-
}

mirror=GLUE_URL
base=${GLUE_URL:-https://dl.fbaipublicfiles.com/glue/data}
get "$base/SST-2.zip" "$dir/SST-2.zip" check_size 7439277
make "$dir/train.tsv" 67350 extract "$dir/SST-2.zip" SST-2/train.tsv
make "$dir/dev.tsv" 873 extract "$dir/SST-2.zip" SST-2/dev.tsv
make "$dir/train1000.tsv" 1001 choose 1 1000
make "$dir/dev500.tsv" 501 choose 1001 1500
echo "next: --optimizer mezo --data $dir/train1000.tsv --val $dir/dev500.tsv --template ' It was' \\
    --labels ' terrible| great', and at the end --val $dir/dev.tsv"
