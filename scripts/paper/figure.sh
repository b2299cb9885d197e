# figure.sh: shared by the scripts of this folder: cells that are measured, or predicted without a GPU; a table
# of them beside the paper's values; its picture. To be sourced, with these variables set:
#   id=       the name of the figure; rates_of=  the file of rates/ with the paper's machine
# The environment has the variables of ../measure.sh (OUT: default out/paper/ID), and
#   MODELS    instead of the paper's, from small to large
#   SIZE      options for every run, e.g. a smaller shape; default: the paper's batch and sequence
#   PLAN=1    predict although there is a GPU; RATES: from these rates
# shellcheck shell=sh disable=SC2034,SC2154  # $columns, $table .. are those of measure.sh
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${PLAN-}" ] && ! nvidia-smi -L >/dev/null 2>&1; then
    case ${TRAINER-}:${SIZE-} in :* | *emu:) PLAN=1 ;; esac  # a small model is measured
fi
[ -z "${PLAN-}" ] || RATES=${RATES:-$top/scripts/rates/$rates_of.txt}
OUT=${OUT:-$top/out/paper/$id}
# shellcheck source=scripts/measure.sh
. "$top/scripts/measure.sh"
plot=$(absolute "${PLOT:-build/plot}")
[ -x "$plot" ] || make build/plot
runs=$out/runs.tsv table=$runs
line run "$columns" >"$out/columns"
: >"$runs"

# The compared modes, as in the paper: ZeRO-3 with its optimizer offloaded, and TwinFlow, both without overlaps;
# the setting of Deep Optimizer States; and this trainer's own choice.
system() {
    case $1 in
        ZeRO-3) echo --offload zero --no-overlap ;;
        TwinFlow) echo --offload twinflow --resident "${resident:-0.2}" --no-overlap ;;
        DOS)
            echo --offload interleave --stride 2 --subgroup 100000000 --grad-wire fp32 \
                --resident "${resident:-0}" ;;
        tide) echo --offload interleave --resident "${resident:-0}" ;;
        *) refuse "no system $1" ;;
    esac
}

# measure NAME OPTION...: runs the current $model once, and stores its line of the table in $ran.
measure() {
    ran=$(awk -F '\t' -v name="$1" '$1 == name { print; exit }' "$runs")
    [ -z "$ran" ] || return 0
    # shellcheck disable=SC2086  # SIZE is options
    run "$@" -- ${SIZE-$size}
    [ "$ended" != failed ] || failed=1
    ran=$(tail -n 1 "$runs")
}
failed=0

# value COLUMN: prints this column of the last measure(), or "?". ../README.md explains the columns.
value() {
    printf '%s\n' "$columns" | awk -F '\t' -v name="$1" -v ran="$ran" '{
        for (i = 1; i <= NF && $i != name;) i++
        n = split(ran, cell, "\t")
        print i < n && cell[i + 1] + 0 == cell[i + 1] ? cell[i + 1] : "?"
    }'
}
# calculate EXPRESSION: prints the value of an awk expression; "?" if a number in it is unknown
calculate() { case $1 in *"?"*) echo "?" ;; *) awk "BEGIN { printf \"%.4g\\n\", $1 }" ;; esac; }

# row CELL...: adds a row to the figure's table. The first row has the names of the columns.
figure=$out/$id.tsv
: >"$figure"
row() {
    first=$1
    shift
    printf '%s' "$first" >>"$figure"
    [ $# -eq 0 ] || printf '\t%s' "$@" >>"$figure"
    echo >>"$figure"
}

# draw TITLE UNIT [OPTION...]: draws the table as a picture, and on the screen.
draw() {
    title=$1 unit=$2
    shift 2
    case ${plan:-$trainer} in
        1) how="predicted by --plan from $(basename "$rates")$(
            ! grep -qi assumed "$rates" || echo ', which is assumed'): nothing was measured" ;;
        */train_gpt2) how="trained on the CPU" ;;
        *emu) how="run on the emulated GPU: times mean nothing" ;;
        *) how="measured on $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" ;;
    esac
    "$plot" "$figure" -o "$out/$id.svg" --title "$title" --y "$unit" --note "$how" "$@"
    echo
    echo "$title ($unit; $how)"
    awk -F '\t' '{ printf "%-24s", $1; for (i = 2; i <= NF; i++) printf " %18s", $i; print "" }' \
        "$figure"
    echo "$out/$id.svg"
}

# grid COLUMN "X .." "SERIES ..": makes the figure's table of this column. `cell X SERIES` measures each cell: a
# row for each X, a cell for each series. "no-room": there is not enough memory.
grid() {
    # shellcheck disable=SC2086  # these are lists
    row "$xs" $3
    for x in $2; do
        cells=''
        for y in $3; do
            cell "$x" "$y"
            case $ran in *'needs '*' memory') cells="$cells no-room" ;; *) cells="$cells $(value "$1")" ;; esac
        done
        # shellcheck disable=SC2086
        row "$x" $cells
    done
}

# ratio FIRST SECOND: prints the smallest and largest ratio of two series of the table
ratio() {
    awk -F '\t' -v a="$1" -v b="$2" '
        NR == 1 { for (i = 2; i <= NF; i++) { if ($i == a) at = i; if ($i == b) by = i } next }
        $at + 0 > 0 && $by + 0 > 0 {
            x = $at / $by
            if (n++ == 0 || x < least) least = x
            if (n == 1 || x > most) most = x
        }
        END { if (n > 0) printf "%s / %s: %.2f to %.2f\n", a, b, least, most }' "$figure"
}

# finish: ends the script with its exit code.
finish() {
    [ $failed -eq 0 ] || { echo "a run failed: see $out/*.txt" >&2; exit 1; }
}
