#!/bin/sh
# Figure 4 of Deep Optimizer States: the traffic of the link in an iteration and the update before it,
# in GB/s each way, for ZeRO-3 and DOS. The bytes of a copy are spread evenly over its time. So where
# two copies share the link, a peak may be above its speed.
# usage: [MODELS=20b] scripts/paper/dos_4.sh; see figure.sh
id=dos_4
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
model=$largest
# over_time TRACE: prints its last 80 % in 200 parts: seconds, GB/s to the GPU and to the host
over_time() {
    awk '
        function field(name) {
            if (!match($0, "\"" name "\":[^,}]*")) return 0
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
        }
        /"ph":"X"/ {
            begin[++n] = field("ts")
            takes[n] = field("dur")
            row = field("tid")
            way[n] = row == 2 || row == 6 || row == 7 ? 1 : row == 1 || row == 4 ? 2 : 0
            bytes[n] = field("bytes")
            if (begin[n] + takes[n] > end) end = begin[n] + takes[n]
        }
        END {
            if (end == 0) exit 1
            part = end * 0.8 / 200
            for (i = 1; i <= n; i++) {
                if (way[i] == 0 || takes[i] <= 0) continue
                for (k = int((begin[i] - end * 0.2) / part); k < 200; k++) {
                    from = end * 0.2 + k * part
                    if (from >= begin[i] + takes[i]) break
                    to = from + part < begin[i] + takes[i] ? from + part : begin[i] + takes[i]
                    if (from < begin[i]) from = begin[i]
                    moved[k, way[i]] += bytes[i] * (to - from) / takes[i]
                }
            }
            for (k = 0; k < 200; k++)
                printf "%.6g\t%.4g\t%.4g\n", k * part * 1e-6, 1e-3 * moved[k, 1] / part,
                       1e-3 * moved[k, 2] / part
        }' "$1"
}
for s in ZeRO-3 DOS; do
    # shellcheck disable=SC2046  # options are words
    measure "$s" $(system "$s")
    [ "$ended" = ok ] || continue
    id=dos_4_$s figure=$out/dos_4_$s.tsv
    printf 'seconds\tto the GPU\tto the host\n' >"$figure"
    over_time "$out/$s.trace" >>"$figure"
    draw "Figure 4: the link in an iteration of $model, $s. The paper: below a tenth, of ZeRO-3" GB/s \
        --lines >"$out/said"
    tail -n 1 "$out/said"
done
finish
