#!/bin/sh
# ZenFlow (Lan et al. 2025): the numbers of its page beside the predictions of --plan for four A100s, as
# the table in doc/zenflow.md, and a picture of a step. Everything is predicted twice: with a CPU as
# fast as the times of the page imply, and with the A100 server of the other tables.
# usage: [MODELS=llama2-7b] scripts/paper/zen_claims.sh; see figure.sh
# The page names no batch. The example of its authors has 4 x 512 tokens for each GPU; with these a step
# in GPU memory takes the 0.5 s of the page.
id=zen_claims rates_of=a100_server PLAN=1
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
size="--batch 4 --seq 512 --recompute block --gpu-memory 79G --host-memory 960G"
WORLD=4 small=${MODELS:-llama2-7b} large=${MODELS:-llama2-13b}

# options RUN: prints the options of a run, which has one letter in the table
options() {
    case $1 in
        A) echo --zero 2 --offload none ;;
        B | F) echo --zero 2 --offload zero --no-overlap ;;
        C) echo --zero 3 --offload zero --weights host --no-overlap ;;
        D) echo --zero 2 --offload zenflow --zen-window 4 ;;
        E) echo --zero 2 --offload zenflow --zen-window 16 ;;
    esac
}

# of RUN COLUMN: prints a number of this run with the current rates
of() {
    model=$small
    [ "$1" != F ] || model=$large
    # shellcheck disable=SC2046  # options are words
    measure "$1-$(basename "$rates" .txt)" $(options "$1") >&2
    value "$2"
}

# predicted FORMAT EXPRESSION...: prints two cells, one for each file of rates, from RUN.COLUMN
predicted() {
    format=$1
    shift
    for file in paper_zenflow_a100 a100_server; do
        rates=$top/scripts/rates/$file.txt
        h2d=$(awk '$1 == "h2d" { print $2 }' "$rates")
        numbers=''
        for expression in "$@"; do
            for run in A B C D E F; do
                case $expression in *$run.*) ;; *) continue ;; esac
                for column in ms:ms wait:exposed in:'GB in' out:'GB out'; do
                    case $expression in *$run."${column%%:*}"*) ;; *) continue ;; esac
                    expression=$(echo "$expression" |
                        sed "s|$run\.${column%%:*}|$(of "$run" "${column#*:}")|g")
                done
            done
            numbers="$numbers $(calculate "$(echo "$expression" | sed "s/h2d/$h2d/g")")"
        done
        # shellcheck disable=SC2059,SC2086  # a format and its numbers
        printf " $format |" $numbers
    done
}
# claim TEXT PAGE RUNS VERDICT FORMAT EXPRESSION...: prints a line of the table
claim() {
    said=$1 page=$2 runs_of=$3 verdict=$4
    shift 4
    echo "| $said | $page | $runs_of |$(predicted "$@") $verdict |"
}

weights='2*6.738'  # GB in 16 bits
# Matrices of a layer of Llama-2-7B have 3 x 4096 + 11008 columns; embedding and head 4096 each.
columns_7b="(32*(3*4096+11008)+2*4096)"
{
    echo '| claim | the page | runs | predicted with its CPU | predicted for a server | reached? |'
    echo '|---|---|---|---|---|---|'
    claim 'a step in GPU memory' '0.5 s' A 'yes: the batch was chosen for that' '%.2f s' A.ms/1000
    claim 'a step with ZeRO-Offload, as many times slower' 'over 7 s, 14' B \
        'no: gradients leave faster here' '%.1f s, %.1f' B.ms/1000 B.ms/A.ms
    claim 'the share of that step in which the GPU idles' 'over 60 %' B yes '%.0f %%' \
        '100*B.wait/B.ms'
    claim 'ZenFlow, times faster than ZeRO-Offload' 'up to 5' 'B / D, B / E' 'no' '%.1f, %.1f' \
        B.ms/D.ms B.ms/E.ms
    claim 'times faster than ZeRO-Infinity' 'up to 6.3' 'C / D, C / E' \
        'no: C stores nothing on NVMe' '%.1f, %.1f' C.ms/D.ms C.ms/E.ms
    claim 'stalls fall by' 'over 85 %' 'B to D, to E' 'by the CPU of a server' '%.0f %%, %.0f %%' \
        '100*(1-D.wait/B.wait)' '100*(1-E.wait/B.wait)'
    claim 'bytes over the link, of the model: ZenFlow, ZeRO' '1.13, 2' 'D, B' yes '%.2f, %.2f' \
        "4*(D.in+D.out)/($weights)" "4*(B.in+B.out)/($weights)"
    claim "a step's update is smaller by" 'nearly 50 %' 'B to D' 'nearly, in bytes over the link' \
        '%.0f %%' '100*(1-(D.in+D.out)/(B.in+B.out))'
    claim '13B: bytes over the link in a step, time' '40 GB, over 1 s' F \
        'more bytes, over four links' '%.0f GB, %.1f s' '4*(F.in+F.out)' '(F.in+F.out)*1e9/h2d'
    claim 'norms of columns, times lighter than gradients: one GPU, four' '4,000 and 6,000' - \
        'yes, of one GPU' '%.0f, %.0f' "2*6738.42e6/(4*$columns_7b)" "2*6738.42e6/(4*4*$columns_7b)"
} | tee "$out/zen_claims.md"
row system "page's CPU" "A100 server"
for run in A B C D E; do
    cells=''
    for file in paper_zenflow_a100 a100_server; do
        rates=$top/scripts/rates/$file.txt
        cells="$cells $(of $run ms)"
    done
    case $run in
        A) name=memory ;; B) name=ZeRO-Offload ;; C) name=ZeRO-Infinity ;; *) name="ZenFlow $run" ;;
    esac
    # shellcheck disable=SC2086
    row "$name" $cells
done
rates="$out/paper_zenflow_a100.txt and a100_server.txt"
cat "$top"/scripts/rates/paper_zenflow_a100.txt "$top"/scripts/rates/a100_server.txt >"$rates"
draw "ZenFlow: a step of $small on four A100s" ms
finish
