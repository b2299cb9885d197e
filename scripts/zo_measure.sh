# zo_measure.sh: the columns of zo_compare.sh and paper/zo_*.sh, for a step of zeroth order. They source it
# after measure.sh.
# shellcheck shell=sh disable=SC2016,SC2034,SC2154
columns=$(printf '%s\t' steps ms tokens/s waited 'GB in' 'GB out' 'plan ms' GPU host)loss
unknown=$(echo "$columns" | awk -F '\t' '{ while (++n < NF) printf "-\t" }')

# numbers NAME: as in measure.sh
numbers() {
    awk -v warmup="$warmup" -v text="$out/$1.txt" -v micro=1 -v period=1 "$reader"'
        /"grad_norm"/ {
            steps++
            loss = field($0, "loss")
            add("ms", $0)
            add("tokens_per_s", $0)
            if (!(at = index($0, "\"zo\""))) next  # counters of an earlier step
            $0 = substr($0, at)
            add("waited_ms", $0)
            add("h2d_bytes", $0)
            add("d2h_bytes", $0)
        }
        END {
            read_text()
            printf "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", steps, cell(typical("ms"), 1),
                   cell(typical("tokens_per_s"), 0), cell(typical("waited_ms"), 1),
                   cell(1e-9 * typical("h2d_bytes"), 2), cell(1e-9 * typical("d2h_bytes"), 2),
                   cell(plan, 1), cell(gib["GPU"], 2), cell(gib["host"], 2),
                   loss == "" ? "-" : loss
        }' "$out/$1/log.jsonl"
}
planned_numbers() {
    awk -v text="$out/$1.txt" -v micro=1 "$reader"'
        BEGIN {
            read_text()
            printf "-\t%s\t%s\t%s\t-\t-\t%s\t%s\t%s\t-\n", cell(plan, 1), cell(speed, 0),
                   cell(exposed, 1), cell(plan, 1), cell(gib["GPU"], 2), cell(gib["host"], 2)
        }'
}
