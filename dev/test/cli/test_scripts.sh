#!/bin/sh
# The scripts of scripts/ from end to end, on the emulated GPU with tiny models; and that the tables
# at the head of zero_node.sh, in doc/fits.md and of it in README.md are what the
# plan says today (UPDATE=1 writes them anew, whole; else some rows of the longest are computed: each model
# and each card is in one).
# usage: sh dev/test/cli/test_scripts.sh      (from the top of the repository, after make train_gpt2emu)
set -u
. dev/test/cli.sh
TRAINER=$(absolute "${TIDE_GPU:-train_gpt2emu}")
[ -x "$TRAINER" ] || { echo "skip scripts: $TRAINER is missing"; exit 0; }
export TRAINER EMU_THREADS=1 OMP_NUM_THREADS=1
in_a_folder
cat "$top/LICENSE" "$top/LICENSE" "$top/LICENSE" >text.txt
export DATA="$work/text.txt"

# renewed FILE FIRST [TABLE]: with UPDATE=1, its rows that begin with one like FIRST are those of TABLE
renewed() {
    [ "${UPDATE:-0}" = 1 ] || return 0
    awk -v first="$2" -v table="${3:-table}" '
        !done && $0 ~ first { while ((getline line < table) > 0) print line; skip = done = 1 }
        !/^([|]|#   )/ { skip = 0 }
        !skip' "$top/$1" >new
    cat new >"$top/$1"
}
# scaling RATES GPU_MEMORY WORLDS: without its first line
scaling() {
    echo "$1, ${2%G} GiB of each GPU:"
    RATES="$top/scripts/rates/$1.txt" WORLDS=$3 sh "$top/scripts/plan_scaling.sh" --offload auto \
        --recompute auto --gpu-memory "$2" | sed 1d
}

{ scaling paper_h100 79G "2 4"; scaling h200_16cores 139G 8; } | sed 's/^/#   /' >table
renewed scripts/zero_node.sh '^#   '
sed -n '/^#   /p' "$top/scripts/zero_node.sh" >said
check zero_node_says_what_the_plan_says diff said table

# Each model of models.txt fits the machine that its row names, of whose host 5 % stay free.
models=$top/scripts/models.txt
sed -n 's/^\([^ #]*\) .*# \([0-9]*\) GB, \([0-9]*\) GiB$/\1 \2 \3/p' "$models" >machines
check models_name_their_machines test "$(wc -l <machines)" -eq "$(grep -c '^[^ #].*#' "$models")"
while read -r model card host; do
    case $card in 24) card=23 ;; 80) card=79 ;; *) card=131 ;; esac
    check "${model}_fits_its_machine" sh -c 'sh "$1/scripts/train_model.sh" "$2" --plan -- --gpu-memory "$3G" \
        --host-memory "$4" --rates "$1/scripts/rates/rtx4090_desktop.txt" | grep "^fits: "' \
        - "$top" "$model" "$card" "$((host * 1024 * 95 / 100))M"
done <machines
refuses a_model_that_is_none 2 '9b is no model of .*models.txt, which has 7b 8.3b ' sh "$top/scripts/train_model.sh" 9b

# 7B needs at least 43 GiB of host memory beside 23 GiB of the GPU's.
MACHINES="rtx4090_desktop:23:44 rtx4090_desktop:23:47" sh "$top/scripts/plan_offload.sh" \
    --model 7b --batch 1 --seq 2048 --moments bf16 >plan
check five_percent_of_a_host_stay_free test "$(grep -c 'does not fit' plan)" -eq 1
# In a locale with a decimal comma mawk reads 64.1 as 64: scripts set theirs, or
# source what does; launch.sh must leave it to the command that it starts.
(cd "$top" && grep -lE 'awk|sort ' scripts/*.sh scripts/paper/*.sh dev/*.sh dev/data/*.sh dev/bench/*.sh dev/test/*.sh \
    dev/test/*/*.sh | xargs grep -LE 'LC_ALL=C$|LC_ALL=C |/(common|measure|figure|dos|zo|fetch|cli)[.]sh' |
    grep -vxE 'scripts/(launch|zo_measure).sh|dev/gpu_parts.sh|dev/test/build.sh') >said
check every_script_has_one_locale test ! -s said

# What fits where. README.md has two rows for each of four models, on four cards: tokens/s of an update after each
# micro-batch, in the host that this takes; and the same with less on the host, where it is smaller.
in_short() {
    awk -F ' *[|] *' '
        NF > 12 && /^[|] (llama3[.]2-3b|llama3[.]1-8b|qwen2[.]5-14b|20b) [|] (8|12|16|24) [|]/ {
            if (!($2 in row)) order[++n] = $2
            row[$2] = row[$2] " " ($4 + 0 == 0 ? "no" : $8 != "" ? $9 " in " $8 : $5 " in " $4) " |"
            lean[$2] = lean[$2] " " ($13 + 0 > 0 ? $14 " in " $13 : "no") " |" }
        END { for (i = 1; i <= n; i++) print "| " order[i] " |" row[order[i]] "\n| lean |" lean[order[i]] }' "$1"
}
if [ "${UPDATE:-0}" = 1 ]; then sh "$top/scripts/fits.sh" >table
else
    for row in gpt2-xl:8 llama3.2-3b:24 llama2-7b:12 llama3.1-8b:16 llama2-13b:48 qwen2.5-14b:80 20b:141; do
        MODELS=${row%:*} CARDS=${row#*:} sh "$top/scripts/fits.sh"
    done >table
fi
renewed doc/fits.md '^[|] model [|] card, GB '
in_short "$top/doc/fits.md" >table.short
renewed README.md '^[|] [a-z0-9.-]*b [|]' table.short
check fits_are_what_the_plan_says sh -c '[ -s table ] && ! grep -v -x -F -f "$1/doc/fits.md" table' - "$top"
check fits_are_in_the_readme sh -c '! grep -v -x -F -f "$1/README.md" table.short' - "$top"
# Holds the measurements of others beside the plan.
sh "$top/scripts/published.sh" >table
renewed doc/speed.md '^[|] measured by '
check published_steps_are_predicted_as_the_lesson_says sh -c '[ "$(wc -l <table)" -gt 9 ] &&
    ! grep -v -x -F -f "$1/doc/speed.md" table' - "$top"
check its_notes_are_there sh -c 'sed -n "s/^| .* | \([0-9]\) |$/\1/p" table | sort -u | while read -r note; do
    sed -n "/^Sources: llmq/,/^Offloading on/p" "$1/doc/speed.md" | grep -q "^$note\. " || exit 1; done' - "$top"
spread=$(awk -F ' *[|] *' '/^[|] (llmq|llm[.]c|ml_dataflow) / { x = $8 > 1 ? $8 - 1 : 1 - $8; if (x > most) most = x }
    END { printf "%.0f", 100 * most }' table)
for lesson in beside fits; do
    check "predictions_are_as_near_as_${lesson}_says" grep -q "within $spread %" "$top/doc/$lesson.md"
done
# The first part of the search fills the memory otherwise than the best choice needs it.
tokens_of() {
    "$TRAINER" --plan --model opt-6.7b --batch 4 --seq 1024 --accum 4 --gpu-memory 23G --host-memory 96G \
        --rates "$top/scripts/rates/rtx5090_desktop.txt" "$@" | sed -n 's/^  step .*: \([0-9]*\) tokens.*/\1/p'
}
check auto_is_as_fast_as_what_it_may_choose test "$(tokens_of)" -ge "$(tokens_of --weights host)"
check most_are_within_15_percent_and_ours_within_10 awk -F ' *[|] *' '
    $2 == "llmq" || $2 == "this trainer" { n++; near += $8 >= 0.85 && $8 <= 1.15
                                           own += $2 != "llmq" && $8 >= 0.9 && $8 <= 1.1 }
    END { exit n != 22 || near < 20 || own != 3 }' "$top/doc/speed.md"

# Tables of other lessons, whose cells are plans for a machine of rates/.
# tabled NAME FILE FIRST: the rows of `table` are in FILE
tabled() {
    renewed "$2" "$3"
    check "$1" sh -c '[ "$(wc -l <table)" -gt 3 ] && ! grep -v -x -F -f "$1" table' - "$top/$2"
}
h200() { "$TRAINER" --plan --seq 2048 --rates "$top/scripts/rates/h200_16cores.txt" --gpu-memory 139G "$@"; }
{
    echo '| OPT-1.3B, ms per step of 2048 tokens | 1 direction | 2 | 3 | 4 |'
    echo '|---|---|---|---|---|'
    for where in '' '--resident-blocks 0'; do
        for directions in 1 2 3 4; do
            # shellcheck disable=SC2086
            h200 --model opt-1.3b --optimizer mezo --precision fp16 --batch 1 --host-memory 200G \
                --zo-queries $directions $where
        done | awk -v where="$([ -z "$where" ] && echo in memory || echo "\`$where\`")" '
            /^  step / { row = row sprintf(" %.1f |", 1000 * $2) } END { print "| " where " |" row }'
    done
} >table
tabled directions_are_as_free_as_the_lesson_says doc/zo_streaming.md '^[|] OPT-1.3B, ms per step'
{
    echo '| `--recompute` | seconds per step | activations, GiB |'
    echo '|---|---|---|'
    for again in none light block; do
        h200 --model 7b --batch 4 --moments bf16 --offload none --recompute $again |
            awk -v again=$again '/^GPU  activations / { gib = $3 }
                /^  step / { printf "| `%s` | %.3f | %.1f |\n", again, $2, gib }'
    done
} >table
tabled what_is_computed_again_takes_what_the_lesson_says doc/recompute.md '^[|] `--recompute` [|]'
{
    echo "| | seconds per 16384 tokens | of which waiting | over the link, of the model's size |"
    echo '|---|---|---|---|'
    while IFS=: read -r name micros options; do
        # shellcheck disable=SC2086
        h200 --model 7b --batch 8 --host-memory 250G $options | awk -v name="$name" -v n="$micros" '
            /^  step / { step = $2; waits = $5 } /^  over the link/ { link = $4 + $9 }
            END { printf "| %s | %.2f | %.2g | %.3g |\n", name, step / n, waits / n, link / n / 13.316 }'
    done <<'END'
zero:1:--offload zero
interleave:1:--offload interleave
zero, 4 micro-batches a step (fp32 sums cross):4:--offload zero --accum 4
zenflow, at once:1:--offload zenflow --zen-overlap off
zenflow, one window late:1:--offload zenflow
END
} >table
tabled zenflow_waits_as_the_lesson_says doc/zenflow.md '^[|] [|] seconds per 16384 tokens'
{
    echo '| rates | micro-batches | tokens in each | `--weights gpu --gpu-memory 199G` | `--weights host --gpu-memory 23G` | |'
    echo '|---|---|---|---|---|---|'
    for row in rtx4090_desktop:1:1 rtx4090_desktop:8:1 rtx4090_desktop:8:2 rtx4090_desktop:8:4 \
        h200_16cores:1:1 h200_16cores:8:2 h200_16cores:8:8; do
        machine=${row%%:*} accum=${row#*:} batch=${row##*:}
        for where in "gpu --gpu-memory 199G" "host --gpu-memory 23G"; do
            # shellcheck disable=SC2086
            "$TRAINER" --plan --model 20b --seq 2048 --moments bf16 --offload zero --recompute block --host-memory 999G \
                --rates "$top/scripts/rates/$machine.txt" --accum "${accum%:*}" --batch "$batch" --weights $where
        done | awk -v machine="$machine" -v accum="${accum%:*}" -v tokens=$((2048 * batch)) '
            /^  step / { step[++n] = $2 + 0 }
            END { printf "| `%s` | %d | %d | %.4g | %.4g | %+.1f %% |\n", machine, accum, tokens, step[1], step[2],
                      100 * (step[2] / step[1] - 1) }'
    done
} >table
tabled streaming_costs_what_the_lesson_says doc/fits.md '^[|] rates [|] micro-batches'
{
    echo '| `scripts/zo_sst2.sh` | GPU, GiB | host, GiB | layers that stream | s per step | 20 000 steps, hours |'
    echo '|---|---|---|---|---|---|'
    for model in opt-1.3b opt-6.7b opt-13b opt-30b; do
        sh "$top/scripts/zo_sst2.sh" $model --plan --gpu-memory 23G --rates "$top/scripts/rates/rtx4090_desktop.txt" |
            awk -v model=$model '/^GPU  total / { gpu = $3 } /^host total / { host = sprintf(" %.1f", $3) }
                / layers, of .* on the host/ { stream = " " $1 " of " $3 } /^  step / { step = $2 + 0 }
                END { printf "| `%s` | %.1f |%s |%s | %.2g | %.1f |\n", model, gpu, host, stream, step, step * 20000 / 3600 }'
    done
} >table
tabled sst2_takes_what_its_table_says scripts/README.md '^[|] `scripts/zo_sst2.sh` [|]'

# With --help a script prints the comment at its head, and does nothing else.
for script in "$top"/scripts/*.sh "$top"/scripts/paper/*.sh; do
    case $script in */launch.sh | */zero_slurm.sh) continue ;; esac  # their words are of others' options
    ! head -n 1 "$script" | grep -q '^#!' ||
        timeout 30 sh "$script" --help 2>/dev/null </dev/null | grep -q '^usage: ' || echo "${script##*/}"
done >helpless
check every_script_has_help test ! -s helpless

# The plans in the lesson: a line with the command, and behind an empty one what it says.
for f in 20b-h200 20b-24gb; do
    line=$(sed -n "s/^    \(scripts\/train_model.sh $f --plan .*\)/\1/p" "$top/doc/fits.md" | head -n 1)
    (cd "$top" && eval "sh $line") >table 2>&1
    awk -v line="    $line" -v table="table" '
        skip == 2 { if (/^$/) skip = 0; else next }
        { print }
        skip == 1 { while ((getline x < table) > 0) print "    " x; skip = 2 }
        $0 == line && !done { skip = done = 1 }' "$top/doc/fits.md" >new
    [ "${UPDATE:-0}" != 1 ] || cat new >"$top/doc/fits.md"
    check "lesson_has_what_${f}_plans" diff "$top/doc/fits.md" new
done

# The shape of these small runs; what is given last counts.
tiny="--layers 2 --heads 2 --channels 32 --context 32 --vocab 300 --batch 2 --seq 32 --"
rates=$top/scripts/rates/rtx4090_desktop.txt
# shellcheck disable=SC2086
check a_model_is_trained env OUT=run STEPS=3 DATA=text.txt \
    sh "$top/scripts/train_model.sh" 7b $tiny --offload interleave --share 0.5
# With the emulated GPU's own clock all scripts together would take half an hour.
export EMU_PROTECT=0 EMU_CLOCK=virtual EMU_KERNEL_US=10000 EMU_SCHED=lazy
# Where the trainer cannot run, nothing is fetched.
mkdir -p web
printf '#!/bin/sh\ntouch "%s/fetched"\nexit 1\n' "$work" | tee web/curl >web/wget
printf '#!/bin/sh\necho "tide: no CUDA device can be used" >&2\nexit 1\n' >no_gpu
chmod +x web/* no_gpu
for script in "zo_sst2.sh opt-125m" "train_model.sh 7b" "zero_node.sh 2 7b"; do
    # shellcheck disable=SC2086
    refuses "${script%%.*}_looks_for_a_gpu_first" 1 'no CUDA device' env -u DATA PATH="$PWD/web:$PATH" \
        TRAINER=./no_gpu OUT=none sh "$top/scripts/"$script
done
check and_nothing_was_fetched test ! -e fetched
check it_is_saved test -s run/model.safetensors -a "$(grep -c '"offload"' run/log.jsonl)" -gt 0
# A GPU's products are measured once, in build/; several ranks only read what is there.
mkdir -p played
printf '#!/bin/sh\necho "$@" >"%s/asked"\n' "$work" >played/train_gpt2cu
chmod +x played/train_gpt2cu
asked() { rm -f asked; env DATA=text.txt TRAINER=played/train_gpt2cu "$@" sh "$top/scripts/train_offload.sh" x; }
asked
check products_are_measured_for_a_gpu grep -q -e '^--tune build/tune.txt --data' asked
asked LAUNCH=env
check ranks_measure_none sh -c 'test -s asked && { test -e "$1/build/tune.txt" || ! grep -q tune asked; }' - "$top"
check its_paths_are_the_callers test ! -e "$top/run"

# compares OUT SCRIPT SETTINGS NAME CODE PATTERN TRAINER MODES [OPTION...]: a script that compares modes
# ends with CODE, and says PATTERN
compares() {
    out=$1 script=$2 settings=$3 name=$1_$4 code=$5 pattern=$6 trainer=$7 modes=$8
    shift 8
    # shellcheck disable=SC2086
    env TRAINER="$trainer" MODES="$modes" MODEL=nano OUT="$out" RATES="$rates" $settings \
        sh "$top/scripts/$script" $tiny "$@" >"$out.out" 2>&1
    got=$?
    if [ $got -eq "$code" ] && grep -q "$pattern" "$out.out"; then echo "ok $name"
    else fail "$name" "code $got, not $code with '$pattern': $(cat "$out.out")"; fi
}
compare() { compares compare compare_offload.sh "STEPS=4 WARMUP=1 RESIDENT=0.3" "$@"; }
# Rows that compute something else.
zen() { compares zen compare_offload.sh "STEPS=${STEPS:-24} WARMUP=2 EVALS=${EVALS:-3}" "$@"; }
zo_compare() { compares zo zo_compare.sh "STEPS=4 WARMUP=1" "$@"; }

# wrong CASE COMMANDS: a trainer which does that first, if its options are this case; else it trains
wrong() {
    printf '#!/bin/sh\ncase "$*" in %s) %s ;; esac\nexec "%s" "$@"\n' "$1" "$2" "$TRAINER" | program wrong
}
all="none zero twinflow interleave stride2 zero-published twinflow-published interleave-published"
all="$all zero-held none-light streamed interleave-streamed"
compare all_modes_agree 0 '(12) are identical' "$TRAINER" "$all" --subgroup 4096
check compare_has_every_number awk -F '\t' 'NF != 23 { exit 1 }
    NR > 1 { for (i = 2; i < 17; i++) if ($i == "-" && i != 9 && i != 13 && $1 !~ /^none/) exit 1 }
    END { exit NR != 13 }' compare/compare.tsv
compare one_mode_alone 0 '^zero ' "$TRAINER" zero
# What an earlier call has made stays, and so does what is a user's.
check compare_keeps_the_earlier_tables sh -c '[ "$(wc -l <compare-1/compare.tsv)" -eq 13 ] &&
    [ -s compare-1/streamed/log.jsonl ] && [ "$(wc -l <compare/compare.tsv)" -eq 2 ]'
mkdir mine && echo mine | tee mine/zero.txt >mine/compare.tsv
cp "$rates" compare/rates.txt
for script in compare_offload zo_compare sweep_offload finetune zo_reviews paper/dos_table1; do
    refuses "${script##*/}_keeps_off_other_files" 2 'mine has files that no earlier call' env OUT=mine \
        RATES="$rates" sh "$top/scripts/$script.sh"
done
check and_they_stay test "$(cat mine/zero.txt mine/compare.tsv | tr '\n' ' ')$(ls mine | wc -l)" = 'mine mine 2'
refuses an_input_is_not_moved_away 2 'compare/rates.txt is in .*/compare, which the results' env OUT=compare \
    RATES=compare/rates.txt sh "$top/scripts/compare_offload.sh"
if command -v flock >/dev/null; then
    refuses a_run_at_work_is_not_moved_away 2 'compare is in use by a run' flock compare/zero/.lock \
        env OUT=compare RATES="$rates" sh "$top/scripts/compare_offload.sh"
fi
# rm, in scripts: of a folder of mktemp, or of one that new_folder() has just made
grep -nE '(^|[^a-z_])rm ' "$top"/scripts/*.sh "$top"/scripts/paper/*.sh | sed "s|^$top/||" >said
cat >table <<'X'
scripts/fits.sh: trap 'rm -rf "$work"' EXIT
scripts/hellaswag.sh: trap 'rm -rf "$first"' EXIT
scripts/measure.sh: rm -rf "${out:?}/$name" "$out/$name.trace"
scripts/measure.sh: rm "$out/first"
scripts/plan_scaling.sh: trap 'rm -f "$other"' EXIT
scripts/zenflow_columns.sh: rm -f "$out"/*.safetensors
scripts/paper/zen_loss.sh: rm -rf "${out:?}/$name"
X
check scripts_remove_only_their_own sh -c 'sed "s/:[0-9]*: */: /" said | diff - table'
# Predictions: without data, a GPU, or a step.
mv compare trained
PLAN=1 compare predicted 0 '^predicted from' "$TRAINER" "none zero interleave zenflow" --subgroup 4096
check predicted_numbers awk -F '\t' 'NR > 1 && ($3 == "-" || $3 != $4 || $3 != $13 || $19 == "-") { exit 1 }
    /^(zero|interleave)/ { for (i = 3; i < 15; i++) if ($i == "-" && i != 11 && i != 12) exit 1
                           if ($20 == "-" || $21 == "-" || $22 == "-") exit 1 }
    END { exit NR != 5 }' compare/compare.tsv

# Trainers that do wrong: another learning rate in one mode; one that ends.
wrong '*"offload zero"*' 'set -- "$@" --lr 6.001e-4'
compare a_changed_loss_is_found 1 '^DIFFERENT: zero has "step":2' ./wrong "none zero"
wrong '*"offload zero"*' 'exit 1'
compare a_failed_run_is_told 1 '^zero .*code 1' ./wrong "none zero twinflow"
# The numbers of a table, from a log whose medians are known. Step 1 does not count.
program canned <<'X'
#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
mkdir -p "$out"
echo 'GPU  total                   100.4 of 999.0 MiB'
echo 'host total                   70.20 of 999.0 GiB'
echo '  step 0.250, of which 0.100 are not compute: 5 tokens/s'
for i in 6 2 1 4 3 5; do
    printf '{"step":%d,"loss":5.%d,"grad_norm":1.5,"lr":1e-4,"ms":%d00,"tokens_per_s":1' $i $i \
        $((i < 6 ? i : 9))
    printf ',"tflops":%d7' $i
    printf ',"offload":{"step":%d,"forward_ms":%d,"backward_ms":%d' $i $((i * 10)) $((i * 20))
    printf ',"update_ms":%d,"exposed_ms":1,"duplex_ms":1,"bound_ms":%d' $((i * 50)) $((i * 30))
    printf ',"gpu_busy_ms":%d,"cpu_busy_ms":40,"h2d_busy_ms":20,"d2h_busy_ms":4' $((i * 30))
    printf ',"h2d_bytes":2000000000,"d2h_bytes":3000000000,"cpu_params":7000000,"gpu_params":1}}\n'
done >"$out/log.jsonl"
X
compare canned_runs_agree 0 identical ./canned "none zero"
check compare_numbers grep -qx "$(printf '%s\t' zero 6 400.0 460.0 40.0 80.0 280.0 200.0 60 0.04 2.00 3.00 \
    250.0 0.10 70.20 1.0 - 47 30 10 5 1)5.5" compare/compare.tsv
# A cap between what none and zero need: none is left out, and that is no error.
compare for_their_sizes 0 identical "$TRAINER" "none zero" --recompute none --channels 256
cap=$(awk "BEGIN { print int(($(planned GPU compare/none.txt) \
    + $(planned GPU compare/zero.txt)) / 2 * 1024) }")
compare what_does_not_fit_is_left_out 0 '^none .*needs .*GPU memory' "$TRAINER" \
    "none zero twinflow" --recompute none --channels 256 --gpu-memory "${cap}K"

late="zero-accum zero-late zenflow-sync zenflow zenflow-serial"
zen rows_are_compared_with_their_kind 0 'of none (2), and of zenflow (3) are identical' "$TRAINER" \
    "none zero $late zenflow-streamed" --subgroup 4096 --slots=2
check zen_rows_have_their_numbers awk -F '\t' 'NF != 23 { wrong = 1 }
    NR > 1 && ($2 != 24 || $3 == "-" || $5 == "-" || $6 == "-" || $16 == "-") { wrong = 1 }
    $1 ~ /zenflow/ && ($3 != $4 || $8 != "-" || $14 == "-" || $15 == "-" || $13 == "-") { wrong = 1 }
    END { exit wrong || NR != 9 }' zen/compare.tsv
check zen_rows_have_their_losses awk -F '\t' 'NF != 5 { wrong = 1 }
    NR > 1 && ($2 != 1536 || !($4 > 1 && $4 < 6)) { wrong = 1 }
    END { exit wrong || NR != 9 }' zen/loss.tsv
# Logs whose means are known. A step of a window of four takes 100, 100, 100 and 200 ms; one that
# accumulates four micro-batches 320. What does not count takes less: the first two windows, and
# those behind an evaluation.
program canned <<'X'
#!/bin/sh
steps='' every='' micro=1 zen=0
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2 ;; --steps) steps=$2 ;; --eval-every) every=$2 ;; --accum) micro=$2 ;;
        --zen-warmup) zen=1 ;;
    esac
    shift
done
mkdir -p "$out"
echo "$steps $every $micro" >"$out/asked"
echo 'GPU  total                   100.4 of 999.0 MiB'
echo '  step 0.250, of which 0.100 are not compute: 5 tokens/s'
awk -v steps="$steps" -v every="$every" -v micro="$micro" -v zen="$zen" 'BEGIN {
    for (i = 1; i <= steps; i++) {
        ms = micro > 1 ? 320 : zen ? (i % 4 ? 100 : 200) : 160
        if (i > every && (i - 1) % every < (zen ? 4 : 1)) ms = 7
        if (zen && i <= 8) ms = 9
        printf "{\"step\":%d,\"loss\":5.%d,\"grad_norm\":1.5,\"lr\":1e-4,\"ms\":%d", i, i, ms
        printf ",\"tokens_per_s\":%g", 64000 * micro / ms
        if (i > 2) {
            printf ",\"offload\":{\"step\":%d,\"forward_ms\":10,\"backward_ms\":20", i - 2
            printf ",\"update_ms\":9,\"exposed_ms\":%d,\"bound_ms\":0", (i - 2) % 4 ? 4 : 12
            printf ",\"h2d_bytes\":%.0f,\"d2h_bytes\":3000000000", i % 4 ? 0 : 8e9
            printf ",\"cpu_params\":7,\"gpu_params\":1}"
            if (zen) printf ",\"zenflow\":{\"stall_backward_ms\":%d}", (i - 2) % 4 ? 0 : 8
        }
        print "}"
        if (i % every == 0)
            printf "{\"step\":%d,\"val_loss\":%g}\n", i, 6 - i * micro / 16 - zen / 8
    }
}' >"$out/log.jsonl"
X
zen canned_runs_agree 0 'of zenflow (2) are identical' ./canned "zero $late"
check zen_steps_are_as_many_tokens grep -qx '6 2 4' zen/zero-accum/asked
check zen_means_over_windows grep -qx "$(printf '%s\t' zenflow 24 125.0 125.0 10.0 20.0 95.0 - - - 2.00 \
    3.00 250.0 0.10 - 6.0 2.0 - - - - -)5.24" zen/compare.tsv
check zen_steps_of_several grep -qx "$(printf '%s\t' zero-accum 24 80.0 80.0 2.5 5.0 72.5 2.2 - 0.00 - \
    0.75 62.5 0.10 - 1.0 - - - - - -)5.6" zen/compare.tsv
# All tokens are seen in 24 x 80 ms. The others are between two evaluations then.
check zen_losses_by_time awk -F '\t' 'NR == 1 && $5 != "at 1.92 s" { wrong = 1 }
    $1 == "zero" && $0 != "zero\t1536\t3.84\t4.5000\t5.2500" { wrong = 1 }
    $1 == "zero-accum" && $0 != "zero-accum\t1536\t1.92\t4.5000\t4.5000" { wrong = 1 }
    $1 == "zenflow" && $0 != "zenflow\t1536\t3\t4.3750\t4.9150" { wrong = 1 }
    END { exit wrong || NR != 7 }' zen/loss.tsv

# shellcheck disable=SC2086
sweep() { env MODEL=nano OUT=sweep STEPS=3 WARMUP=1 RATES="$rates" DRIFT_STEPS=9 "$@" \
    sh "$top/scripts/sweep_offload.sh" $tiny >sweep.out 2>&1; }
check sweeps_run sweep SUBGROUPS=4096 RESIDENTS="0 0.5" SHARES=0.5 STRIDES=2 BATCHES=1 THREADS=1 \
    SLOTS="1 2"
rows() { awk 'END { print NR - 1 }' "sweep/$1.tsv"; }
for sweep in subgroup:2 resident:4 share:1 stride:1 batch:2 threads:2 slots:2 drift:2; do
    check "sweep_${sweep%:*}" test "$(rows "${sweep%:*}")" -eq "${sweep#*:}"
done
# The papers' figures: predicted; and run with tiny models, all of them where there is time.
# paper SCRIPT ENVIRONMENT...: leaves a table and a picture that is XML
paper() {
    script=$1
    shift
    rm -rf paper
    env OUT=paper WARMUP=1 "$@" sh "$top/scripts/paper/$script.sh" >paper.out 2>&1 ||
        { tail -n 3 paper.out; return 1; }
    set -- paper/*.svg
    [ -s "$1" ] && grep -q '</svg>' "$@" || { echo 'no picture'; return 1; }
}
# A benchmark of casts is played here.
printf '#!/bin/sh\n[ "$*" = --casts ] || exit 1\n' >bench
for name in G16-G32 host_cast H-G-pageable G-H-pageable H32-G16 G16-H32; do echo "echo '# $name 3e9'" >>bench; done
chmod +x bench
export BENCH="$work/bench"
for script in "$top"/scripts/paper/dos_[0-9t]*.sh "$top"/scripts/paper/z*_*.sh; do
    script=$(basename "$script" .sh)
    case $script in zo_*) models=opt-1.3b small=opt-125m ;; *) models=7b small=nano ;; esac
    case $script in
        dos_3 | zen_claims | zen_loss | zen_quality) ;;
        *) check "paper_predicts_$script" paper "$script" PLAN=1 TRAINER="$TRAINER" MODELS=$models ;;
    esac
    case $script in
        dos_1 | dos_6 | dos_7 | dos_9 | dos_table1 | zen_steps) check "paper_knows_all_of_$script" sh -c '! grep -l "?" paper/*_*.tsv' ;;
    esac
    case $script in dos_[0-9]* ) [ $script = dos_3 ] || [ $script = dos_17 ] ||
        check "paper_has_zero_3_in_$script" sh -c '! grep -l "^ranks: 4, ZeRO-[12]" paper/*.txt' ;; esac
    clock=  # other figures are of measured rates, too
    case $script in dos_3 | dos_7 | zo_table2) ;; *) whole || continue; clock="EMU_CLOCK=real EMU_SCHED=" ;; esac
    steps=4
    case $script in zen_quality) continue ;; zen_*) steps=20 ;; esac
    # shellcheck disable=SC2086  # settings
    check "paper_runs_$script" paper "$script" $clock STEPS=$steps TRAINER="$TRAINER" DATA="$top/LICENSE" \
        SIZE="$tiny" MODELS=$small RATES="$rates" PRECISIONS=fp32 BATCHES=1 CORES=2 WORLDS=2 RESIDENTS="0 0.5" \
        WINDOWS=2
done
# Measured: the rates, and casts, are all of table 1.
calibrated() {
    # shellcheck disable=SC2086
    env OUT=calibrated TRAINER="$TRAINER" EMU_CLOCK=real SIZE="$tiny" MODEL=nano \
        sh "$top/scripts/paper/dos_table1.sh" $tiny >paper.out 2>&1 || { tail -n 3 paper.out; return 1; }
    awk -F '\t' '$2 == "?" || $3 == "?" { print; wrong = 1 } END { exit wrong || NR != 12 }' \
        calibrated/dos_table1.tsv
}
check paper_measures_table1 calibrated
# The claims of ZenFlow's page: the lesson has their table.
check paper_has_zen_claims paper zen_claims
renewed doc/zenflow.md '^[|] claim [|] the page [|]' paper/zen_claims.md
check lesson_has_zen_claims sh -c '[ "$(grep -vc " [?] " paper/zen_claims.md)" -eq 12 ] &&
    ! grep -v -x -F -f "$1/doc/zenflow.md" paper/zen_claims.md' - "$top"
# The quality of three methods, in few steps.
check paper_runs_zen_quality paper zen_quality TRAINER= READ=20 STEPS=8 MEZO_STEPS=3 EXAMPLES=16 \
    SEEDS="1 2"
check zen_quality_has_each_accuracy sh -c '[ "$(grep -cxE \
    "[|] (reviews|majority) [|] [0-9.]+ [|]( [0-9.]+ ± [0-9.]+ [|]){3}" paper.out)" -eq 2 ]'
check paper_has_each_script sh -c 'for s in "$1"/*_*.sh; do
    [ -x "$s" ] && grep -q "\`${s##*/}\`" "$1/README.md" || exit 1; done' - "$top/scripts/paper"

# Answers of several words: F1 of known ones; a few steps.
# f1 EXACT F1 ANSWERS: of lines for printf
f1() {
    # shellcheck disable=SC2059
    check "f1_of: $3" test "$(printf "$3\n" | LC_ALL=C awk -f "$top/scripts/f1.awk" |
        sed 's/.*answers: //')" = "exact match $1 %, F1 $2 %"
}
f1 100.0 100.0 ' The "very"  DULL, plot. \ta very dull plot'
f1 0.0 50.0 'theory an\tthe theory anew also'  # only whole words are articles: 2 / (1 + 3)
f1 0.0 100.0 'dull, very\tvery dull'  # order is for exact match
f1 0.0 50.0 'b b b c c\tb c d'  # a repeated word counts as often as both have it
f1 50.0 83.3 'so dull\tweak\tso dull dull dull\tso very very\nweak\tdull\tweak'  # the best: 0, 2/3, 2/5
check answers_of_a_small_model env -u DATA OUT=answers TRAINER= READ=20 STEPS=3 MEZO_STEPS=2 QUESTIONS=3 \
    TOKENS=3 sh "$top/scripts/zo_answers.sh"
cp check.out said
check answers_of_all_three sh -c '[ "$(grep -c "^[a-zA-Z]*  *3 answers: " said)" = 3 ] &&
    [ -s answers/val.jsonl ] && [ -d answers/MeZO ]'
check columns_of_a_model env OUT=columns MODEL=answers/read SIZE="--batch 2 --seq 8" \
    sh "$top/scripts/zenflow_columns.sh" answers/val.jsonl
check columns_are_drawn test -s columns/val.jsonl.svg -a ! -e columns/model

# Several GPUs: of one node; and started by stand-ins for other launchers, who say what those say to
# the two that they start, and write down what they were asked for.
program launcher <<'X'
#!/bin/sh
case ${1-} in --version) echo "$FLAVOUR"; exit ;; esac
echo "${MASTER_ADDR-}:${MASTER_PORT-} $*" >"$STARTED"
while :; do
    case $1 in
        --host | -hosts | -n | -np | --bind-to | -bind-to) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
for i in 0 1; do
    case $FLAVOUR in
        srun) env SLURM_PROCID=$i SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=$i SLURM_NODEID=0 \
                  SLURM_STEP_TASKS_PER_NODE=2 "$@" & ;;
        *Open*) env OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_SIZE=2 \
                    OMPI_COMM_WORLD_LOCAL_RANK=$i OMPI_COMM_WORLD_LOCAL_SIZE=2 "$@" & ;;
        *) env PMI_RANK=$i PMI_SIZE=2 MPI_LOCALRANKID=$i MPI_LOCALNRANKS=2 "$@" & ;;
    esac
done
wait
X
mkdir -p slurm
ln -sf ../launcher slurm/srun
printf '#!/bin/sh\necho localhost\necho node2\n' >slurm/scontrol
chmod +x slurm/scontrol
STARTED=$PWD/started
export STARTED
# ranked NAME ASKED COMMAND...: two ranks train, as the log says; the launcher was asked for ASKED
ranked() {
    who=$1 asked=$2
    shift 2
    rm -rf ranked started
    # shellcheck disable=SC2086
    check "$who" env OUT=ranked STEPS=3 DATA=text.txt "$@" $tiny --offload zero
    check "${who}_on_two" grep -q '"step":3,.*"world":2' ranked/log.jsonl
    [ "$asked" = - ] || check "${who}_in_its_words" grep -q -e "$asked" started
}
ranked a_node_trains - sh "$top/scripts/zero_node.sh" 2 13b
asked='MASTER_ADDR=localhost MASTER_PORT=29311 NCCL_DEBUG=WARN /'
ranked open_mpi_trains "^:29311 --host localhost:2 --bind-to none -np 2 env $asked" \
    env MPIRUN="$PWD/launcher" FLAVOUR='mpirun (Open MPI) 4.1.4' MASTER_PORT=29311 NCCL_DEBUG=WARN \
    sh "$top/scripts/zero_mpirun.sh" localhost:2 7b
asked='env MASTER_ADDR=localhost MASTER_PORT=29312 /'
ranked mpich_trains "^:29312 -hosts localhost:1,127.0.0.1:1 -bind-to none -n 2 $asked" \
    env MPIRUN="$PWD/launcher" FLAVOUR='HYDRA build details:' MASTER_PORT=29312 \
    sh "$top/scripts/zero_mpirun.sh" localhost:1,127.0.0.1:1 20b
cp "$top/scripts/zero_slurm.sh" slurm_script  # SLURM runs a copy, in whatever folder
ranked slurm_trains '^localhost:20007 --kill-on-bad-exit=1 --cpu-bind=none /' \
    env PATH="$PWD/slurm:$PATH" FLAVOUR=srun SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$top" \
    SLURM_JOB_NODELIST='localhost,node2' OUT="$PWD/ranked" DATA="$PWD/text.txt" \
    sh ./slurm_script 8.3b
refuses slurm_wants_a_job 2 'submit this with sbatch' sh "$top/scripts/zero_slurm.sh" 7b
# wrong_size SCRIPT ARGUMENT...: is refused by its usage
wrong_size() {
    script=$1
    shift
    refuses "$script has no such words: $*" 2 "usage: .*$script.sh .*SIZE: 7b, 8.3b, 10b, 13b or 20b" \
        env SLURM_JOB_ID=5 sh "$top/scripts/$script.sh" "$@"
}
wrong_size zero_slurm 30b
for words in "2" "2 6b" "x 7b"; do wrong_size zero_node $words; done
for words in "a:8 6b" "a 7b" "a:8,b:0 7b"; do wrong_size zero_mpirun $words; done
check a_node_is_planned sh -c 'sh "$1/scripts/zero_node.sh" 8 7b --plan --gpu-memory 79G \
    --rates "$2" >plan && grep -q "^  between 8 GPUs: " plan' - "$top" "$rates"
check nodes_are_planned sh -c 'sh "$1/scripts/zero_mpirun.sh" a:2,b:1 7b --plan --gpu-memory 79G \
    --rates "$2" | grep -q "^  between 3 GPUs: "' - "$top" "$rates"

# scaled NAME PATTERN VARIABLE=VALUE [OPTION...]: plan_scaling.sh prints a line like this
scaled() {
    name=$1 pattern=$2 variable=$3
    shift 3
    env WORLDS=16 MODELS=7b "$variable" sh "$top/scripts/plan_scaling.sh" "$@" >scaled 2>&1
    check "scaling_$name" grep -q "$pattern" scaled
}
scaled has_a_line '^7b  *16  *0\.[0-9]* .*  interleave$' MODELS=7b
scaled says_what_is_not_known '^7b  *16 .* ?  *? ' "RATES=$top/scripts/rates/paper_v100.txt"
scaled takes_another_link '^7b  *16  *[2-9][0-9]\.[0-9]* .*  none$' 'RATE=gpu_link 1e9' --offload none
scaled says_what_does_not_fit '^7b  *16 does not fit' MODELS=7b --gpu-memory 1G
# The numbers of the lesson.
lesson() {
    env WORLDS="1 2 4 8" "$@" sh "$top/scripts/plan_scaling.sh" | sed 1,2d >table
    sed 's/^    //' "$top/doc/zero.md" | awk 'NR == FNR { line[$0] = 1; next } !($0 in line)' - table
}
for stage in 1 2 3; do
    [ $stage -lt 3 ] && room=999G || room=15500M
    "$TRAINER" --plan --world 8 --zero $stage --model 7b --batch 1 --seq 2048 --recompute block \
        --offload none --gpu-memory $room --rates "$rates" | awk -v stage=$stage '
        /^GPU  *(parameters|gradients) / { gib[$2] = $3 }
        /^GPU  *(master weights|AdamW moments) / { state += $4 }
        /^GPU  *total / {
            rest = $3 - gib["parameters"] - gib["gradients"] - state
            printf "| %d | %.2f | %.2f | %.2f | %.2f | %.2f |\n", stage, gib["parameters"],
                   gib["gradients"], state, rest, $3
        }' >row
    check "lesson_has_stage_$stage" grep -q -x -F -f row "$top/doc/zero.md"
done
check lesson_has_the_plan test -z "$(lesson MODELS="7b 20b")" -a -s table
check lesson_has_the_shared_host test -z "$(lesson MODELS=7b RATE="host_gpus 1")" -a -s table
check lesson_has_a_slow_link test -z "$(lesson MODELS=7b WORLDS="4 8" \
    RATE="gpu_link 12e9")" -a -s table
# Zeroth-order training.
zo_modes="memory streamed no-overlap no-slots no-fused-update slots1 resident1"
zo_compare all_modes_agree 0 '(7) are identical' "$TRAINER" "$zo_modes"
check zo_compare_has_every_number awk -F '\t' 'NF != 11 { exit 1 }
    NR > 1 { for (i = 2; i <= NF; i++) if ($i == "-" && i != 5 && i != 10 && $1 != "memory") exit 1 }
    END { exit NR != 8 }' zo/compare.tsv
check zo_plan_has_a_line_per_model env RATES="$rates" MODELS="opt-1.3b opt-175b" \
    sh -c 'sh "$1/scripts/zo_plan.sh" --zo-queries 2 >zo_plan.out && awk "END { exit NR != 4 }" zo_plan.out' - "$top"
check zo_plan_says_whether_the_link_is_hidden grep -q '^opt-175b .* [0-9]*  hidden$' zo_plan.out
printf 'sentence\tlabel\nbad\t0\ngood\t1\nfine\t1\nawful\t0\n' | tee train1000.tsv dev500.tsv >dev.tsv
# shellcheck disable=SC2086
check a_model_to_fine_tune "$TRAINER" --model nano --data text.txt --tokenizer bytes --steps 1 --out made $tiny
check reviews_are_learned sh -c 'env SST2=. OUT=sst2 STEPS=3 sh "$1/scripts/zo_sst2.sh" made \
    --tokenizer bytes --labels "-|+" --template " = " >sst2.out && tail -n 1 sst2.out | grep -q "accuracy [0-9]" &&
    [ -e sst2/best/model.safetensors ]' - "$top"
check zo_memory_has_both_models sh -c 'sh "$1/scripts/zo_memory.sh" opt-1.3b opt-175b >zo_memory.out &&
    awk "NR > 1 && !(\$2 > \$3 && \$3 > \$4 && \$4 > \$5 && \$5 > \$6 && \$6 > 0) { exit 1 }
        END { exit NR != 3 }" zo_memory.out' - "$top"
check sst2_is_planned_without_data sh -c 'sh "$1/scripts/zo_sst2.sh" opt-13b --plan --gpu-memory 23G \
    --rates "$2" | grep -q "of 40 layers, .* are on the host"' - "$top" "$rates"
