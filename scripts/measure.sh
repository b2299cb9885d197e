# measure.sh: shared by compare_offload.sh, zo_compare.sh, sweep_offload.sh and paper/: makes runs of the
# trainer, reads their numbers, and checks that losses agree. To be sourced; changes to the top of the
# repository. Variables of the environment:
#   TRAINER   default ./train_gpt2cu; ./train_gpt2emu tries a script where there is no GPU
#   MODEL     default 7b
#   DATA      default tinyshakespeare, which is fetched
#   OUT       the folder of all results; default out/ and the name of the script. An earlier folder is kept
#             as OUT-1, or the next number that is free
#   RATES     the machine's rates, from --calibrate; default: measured once for all runs, with MODEL
#   STEPS     steps of each run, default 12; the first WARMUP of them, default 2, do not count
#   LIMIT     seconds of each run, which then ends after the step under way (needs timeout(1))
#   LAUNCH    the words that start the ranks of each run, for several GPUs: sh scripts/launch.sh 4
#   PLAN=1    trains nothing: prints what --plan predicts from RATES, without data or GPU, for WORLD GPUs
# shellcheck shell=sh disable=SC2016,SC2034,SC2154  # the scripts use $columns, $ended, and set $table

# shellcheck source=scripts/common.sh
. "${top:-$(dirname "$0")/..}/scripts/common.sh"
out=$(absolute "${OUT:-$(dirname "$0")/../out/$(basename "$0" .sh)}")
trainer=${TRAINER:+$(absolute "$TRAINER")} data=${DATA:+$(absolute "$DATA")}
rates=${RATES:+$(absolute "$RATES")} plan=${PLAN:+1}
cd "${top:-$(dirname "$0")/..}" || exit
model=${MODEL:-7b} steps=${STEPS:-12} warmup=${WARMUP:-2}
[ -z "$plan" ] || steps=1000 warmup=0  # a plan is of a long run
[ "$warmup" -lt "$steps" ] || refuse "of $steps STEPS, WARMUP $warmup leaves none"
[ "$steps" -ge $((warmup + 3)) ] ||
    echo "of $steps STEPS, $warmup of WARMUP: times come two steps late, so some stay empty" >&2
[ -z "${LIMIT-}" ] || command -v timeout >/dev/null || refuse "LIMIT needs the program timeout"
default=train_gpt2cu
[ -z "$plan" ] || default=train_gpt2emu
[ -n "$trainer" ] || make $default
trainer=${trainer:-./$default}
[ -x "$trainer" ] || refuse "$trainer is no program: make train_gpt2cu, or train_gpt2emu"
if [ -z "$data$plan" ]; then
    sh dev/data/tinyshakespeare.sh
    data=data/tinyshakespeare/input.txt
fi
[ -z "$plan" ] || [ -n "$rates" ] || refuse "PLAN wants the machine's RATES: a file of rates/"
[ -z "$rates" ] || [ -r "$rates" ] || refuse "$rates: no such file"
new_folder "$out" "$trainer" "$model" ${data:+"$data"} ${rates:+"$rates"}
if [ -z "$rates" ]; then
    rates=$out/rates.txt
    "$trainer" --calibrate --model "$model" -- "$@" -- --rates "$rates" >"$out/calibrate.txt" || exit
fi
if [ -n "$plan" ]; then echo "predicted from $(basename "$rates"); in milliseconds and GiB"
else printf '%s, %s steps after %s; in milliseconds and GiB\n' "${id:-$model}" $((steps - warmup)) "$warmup"
fi

columns=$(printf '%s\t' steps ms mean forward backward exposed update bound% Gpar/s 'GB in' 'GB out' \
    'plan ms' GPU host waits 'in bwd' Tflop/s GPU% CPU% in% out%)loss
unknown=$(echo "$columns" | awk -F '\t' '{ while (++n < NF) printf "-\t" }')
every=0   # steps between two evaluations
micro=1   # a step of the run counts as this many: its numbers are divided by that
period=1  # above 1: steps differ, and means over whole periods replace medians

# Functions in awk that both numbers() use: read a line of a log; take the median, or the mean over whole
# periods, of the steps that count (`counted`, with their `sum`); read what the run printed.
reader='
    function field(line, name) {  # a number of a JSON object, "" if there is none
        if (!match(line, "\"" name "\":[^,}]*")) return ""
        return substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
    }
    function add(name, line,    step) {
        step = field(line, "step") + 0
        if (field(line, name) == "") return
        v[name, step] = field(line, name) / micro
        if (step > last[name]) last[name] = step
    }
    function typical(name,    i, j, sorted, x, first) {
        counted = sum = 0
        for (i = 1; i <= last[name]; i++) {
            first = i - (i - 1) % period
            if (!((name, i) in v) || hidden[i]) continue
            if (first <= warmup || first + period - 1 > last[name]) continue
            x = v[name, i]
            sum += x
            for (j = ++counted; j > 1 && sorted[j - 1] > x; j--) sorted[j] = sorted[j - 1]
            sorted[j] = x
        }
        if (counted == 0) return 0
        return period > 1 ? sum / counted : sorted[int((counted + 1) / 2)]
    }
    function cell(x, decimals) { return x > 0 ? sprintf("%." decimals "f", x) : "-" }
    function read_text() {
        world = 1
        while ((getline < text) > 0) {
            if (/^(GPU|host) +total /) gib[$1] = $3 / (/GiB/ ? 1 : 1024)
            if (/^  step [0-9.e+-]+, of which/) {
                plan = 1000 * $2 / micro
                waits = 1000 * $5 / micro
                speed = $9
                if (match($0, / at [0-9]+ Tflop/)) rate = substr($0, RSTART + 4, RLENGTH - 10)
            }
            if (/^predicted time.* update/) { forward = $9; backward = $11; update = $13 }
            if (/^ranks: [0-9]/) world = $2 + 0
            if (/bound is/) { bound = $0; sub(/.*\), /, "", bound) }
            if (/^offload [a-z]*:/) parameters = $3 * ($4 == "G" ? 1 : $4 == "M" ? 1e-3 : 1e-6)
            if (/^  over the link: /) { moved_in = $4 / micro; moved_out = $9 / micro }
            if (/^  at work/) { gpu = $4; cpu = $7; to_gpu = $10; to_host = $15 }
        }
    }'

# numbers NAME: prints the numbers of $columns in one line, with tabs: medians over the steps that count, for
# ms also the mean, and numbers that the run printed. "-": unknown. exposed: the time outside forward and
# backward. bound%: the share of the bound of the update that is reached. waits: the time that compute waited
# for copies and updates; in bwd: the part of it before backward. The counters of a step are in the line of a
# later step. The step after an evaluation, which hides its update, does not count.
numbers() {
    awk -v warmup="$warmup" -v text="$out/$1.txt" -v micro="$micro" -v period="$period" "$reader"'
        /"val_loss"/ {
            for (i = 1; i <= period; i++) hidden[field($0, "step") + i] = 1
        }
        /"grad_norm"/ {
            steps++
            loss = field($0, "loss")
            add("ms", $0)
            add("tflops", $0)
            if (!(at = index($0, "\"offload\""))) next
            $0 = substr($0, at)
            n = split("forward_ms backward_ms update_ms bound_ms h2d_bytes d2h_bytes exposed_ms " \
                      "stall_backward_ms gpu_busy_ms cpu_busy_ms h2d_busy_ms d2h_busy_ms", names, " ")
            for (i = 1; i <= n; i++) add(names[i], $0)
            parameters = (field($0, "cpu_params") + field($0, "gpu_params")) / micro
        }
        END {
            read_text()
            ms = typical("ms")
            mean = counted > 0 ? sum / counted : 0
            update = period > 1 ? 0 : typical("update_ms")  # in a period no update is by itself
            compute = typical("forward_ms") + typical("backward_ms")
            exposed = ms > compute ? ms - compute : 0
            bound = update > 0 ? 100 * typical("bound_ms") / update : 0
            speed = update > 0 ? 1e-6 * parameters / update : 0
            busy = ms > 0 ? 100 / ms : 0
            printf "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t",
                   steps * micro, cell(ms, 1), cell(mean, 1), cell(typical("forward_ms"), 1),
                   cell(typical("backward_ms"), 1), (compute > 0 ? sprintf("%.1f", exposed) : "-"),
                   cell(update, 1), cell(bound, 0), cell(speed, 2),
                   cell(1e-9 * typical("h2d_bytes"), 2), cell(1e-9 * typical("d2h_bytes"), 2),
                   cell(plan, 1), cell(gib["GPU"], 2), cell(gib["host"], 2),
                   (compute > 0 ? sprintf("%.1f", typical("exposed_ms")) : "-"),
                   cell(typical("stall_backward_ms"), 1)
            printf "%s\t%s\t%s\t%s\t%s\t%s\n", cell(micro * typical("tflops") / world, 0),
                   cell(busy * typical("gpu_busy_ms"), 0), cell(busy * typical("cpu_busy_ms"), 0),
                   cell(busy * typical("h2d_busy_ms"), 0), cell(busy * typical("d2h_busy_ms"), 0),
                   loss == "" ? "-" : loss
        }' "$out/$1/log.jsonl"
}

# planned_numbers NAME: the same from --plan. Its Tflop/s include recomputation.
planned_numbers() {
    awk -v text="$out/$1.txt" -v micro="$micro" "$reader"'
        BEGIN {
            read_text()
            printf "-\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t", cell(plan, 1), cell(plan, 1),
                   cell(1000 * forward / micro, 1), cell(1000 * backward / micro, 1),
                   cell(waits, 1), cell(1000 * update / micro, 1),
                   cell(bound + 0, 0), cell(update > 0 ? parameters / update : 0, 2)
            printf "%s\t%s\t%s\t%s\t%s\t-\t-\t%s\t%s\t%s\t%s\t%s\t-\n", cell(moved_in, 2),
                   cell(moved_out, 2), cell(plan, 1), cell(gib["GPU"], 2), cell(gib["host"], 2),
                   cell(rate, 0), cell(gpu, 0), cell(cpu, 0), cell(to_gpu, 0), cell(to_host, 0)
        }'
}

# line NAME NUMBERS: adds a line to $table, and prints it in columns.
line() {
    printf '%s\t%s\n' "$1" "$2" | tee -a "$table" | awk -F '\t' '{
        printf "%-22s", $1
        for (i = 2; i < NF; i++) printf " %8s", $i
        print "  " $NF
    }'
}

# run NAME OPTION...: trains with these options, into $out/NAME, NAME.txt and NAME.trace (only a run with a
# trace has counters). Adds a line to the table. Sets $ended to ok, small (there is not enough memory) or
# failed.
run() {
    name=$1
    shift
    code=0
    rm -rf "${out:?}/$name" "$out/$name.trace"
    if [ -n "$plan" ]; then
        "$trainer" --plan --model "$model" --rates "$rates" ${WORLD:+--world "$WORLD"} \
            --trace "$out/$name.trace" -- "$@" >"$out/$name.txt" 2>&1 || code=$?
    else
        # shellcheck disable=SC2086  # LAUNCH is words
        ${LIMIT:+timeout --foreground --preserve-status -k 60 "$LIMIT"} ${LAUNCH-} "$trainer" \
            --model "$model" --data "$data" --out "$out/$name" --rates "$rates" --steps "$steps" \
            --eval-every "$every" --no-save --trace "$out/$name.trace" -- "$@" >"$out/$name.txt" 2>&1 \
            || code=$?
    fi
    said=$(tail -n 1 "$out/$name.txt") ended=failed
    if [ $code -eq 0 ]; then
        said=$("${plan:+planned_}numbers" "$name") && ended=ok
        line "${name##*/}" "$said"
    elif [ $code -eq 2 ] && expr "$said" : '.*needs [0-9.]* [MG]iB of ' >/dev/null; then
        ended=small
        said=$(expr "$said" : '.*\(needs [0-9.]* [MG]iB of [A-Za-z]* memory\)')
        line "${name##*/}" "$unknown$said"
    else
        line "${name##*/}" "${unknown}code $code: $said"
    fi
}

losses() {  # of a run, with the gradient norms
    sed -n 's/.*\("step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*\),.*/\1/p' "$out/$1/log.jsonl"
}

# agree MODE...: compares the first run with the others, over the steps that both made; sets $wrong and $same
agree() {
    [ $# -gt 1 ] && [ -z "$plan" ] || return 0
    first=$1 others=0 number=$#
    shift
    losses "$first" >"$out/first"
    for mode in "$@"; do
        losses "$mode" | awk -v mode="$mode" -v first="$first" -v file="$out/first" '
            (getline other < file) > 0 && ++n && $0 != other {
                print "DIFFERENT: " mode " has " $0 ", " first " " other
                exit wrong = 1
            }
            END { if (n == 0) print "DIFFERENT: " mode " has no step of " first "'"'"'s"
                  exit wrong || n == 0 }' || others=1
    done
    rm "$out/first"
    if [ $others -eq 0 ]; then same="$same${same:+, and of }$first ($number)"; else wrong=1; fi
}

# agreed: prints the result of all agree(). Ends the script if runs differ.
agreed() {
    [ "$wrong" -eq 0 ] || { echo "something is wrong" >&2; exit 1; }
    [ -z "$same" ] || echo "the losses and gradient norms of $same are identical, digit by digit"
}
