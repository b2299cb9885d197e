#!/bin/sh
# Figure 9 of Deep Optimizer States: 100 iterations in a row, by model: the time of all, and whether
# later steps take longer. A prediction is a hundred times one iteration. That no step takes longer on
# the emulated GPU's clock is a test (test_placement.cu, test_a_hundred_steps()).
# usage: [MODELS="7b 20b"] [STEPS=100] scripts/paper/dos_9.sh; see figure.sh
id=dos_9 STEPS=${STEPS:-100} WARMUP=${WARMUP:-2}
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
# seconds: prints those of the whole run
seconds() {
    [ "$(value ms)" != "?" ] || { echo "?"; return; }
    if [ -n "$plan" ]; then calculate "0.1 * $(value ms)"
    else sed -n 's/.*"ms":\([^,]*\),.*/\1/p' "$out/$1/log.jsonl" |
        awk '{ s += $1 } END { print NR == 0 ? "?" : s / 1000 }'; fi
}
# drift NAME: prints how the steps of a run change, in one line
drift() {
    sed -n 's/.*"ms":\([^,]*\),.*/\1/p' "$out/$1/log.jsonl" | tail -n +$((warmup + 1)) | awk -v name="$1" '
        { ms[NR] = $1; sum += $1 }
        function mean(from, to,    i, s) { for (i = from; i <= to; i++) s += ms[i]; return s / (to - from + 1) }
        END {
            if (NR < 4) exit
            some = NR < 20 ? int(NR / 2) : 10
            first = mean(1, some)
            last = mean(NR - some + 1, NR)
            for (i = 2; i <= NR; i++)
                for (j = i; j > 1 && ms[j - 1] > ms[j]; j--) { x = ms[j]; ms[j] = ms[j - 1]; ms[j - 1] = x }
            printf "%s: mean %.1f ms, median %.1f; the first %d %.1f, the last %d %.1f (%+.1f %%)\n", name,
                   sum / NR, ms[int((NR + 1) / 2)], some, first, some, last, 100 * (last / first - 1)
        }'
}
# shellcheck disable=SC2086  # a list
row model $systems
for model in $models; do
    cells=''
    for s in $systems; do
        # shellcheck disable=SC2046  # options are words
        measure "$model-$s" $(system "$s")
        cells="$cells $(seconds "$model-$s")"
    done
    # shellcheck disable=SC2086
    row "$model" $cells
done
draw "Figure 9: 100 iterations. The paper: DOS nearly 2.5 times faster than ZeRO-3" seconds
ratio ZeRO-3 DOS
for run in "$out"/*/log.jsonl; do
    [ ! -s "$run" ] || drift "$(basename "$(dirname "$run")")"
done
finish
