#!/bin/sh
# The numbers of the lessons that can be computed again: those of the exercises in doc/README.md, of the
# adversary in doc/emulator.md, of packed rows in doc/finetuning.md, of caches in doc/sampling.md; and that README.md's commands
# run, and those which draw pictures draw them. With ALL=1 the exercises' mistakes are made, too: each in its line, in a copy of the
# sources. And that each page's links lead somewhere, and the functions that it names exist.
# usage: sh dev/test/sources/test_docs.sh      (from the top of the repository, after make train_gpt2 train_gpt2emu
#                                       build/timeline build/reviews build/rows)
set -u
for program in train_gpt2 train_gpt2emu build/timeline build/reviews build/rows; do
    [ -x $program ] || { echo "skip docs: $program is missing"; exit 0; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
top=$(pwd)
. dev/test/cli.sh
export EMU_THREADS=1 OMP_NUM_THREADS=1
cd "$work" || exit 1
mkdir out
ln -s "$top/train_gpt2" "$top/train_gpt2emu" "$top/build" "$top/scripts" "$top/LICENSE" .

# says NAME FILE TEXT: that text is in the document, however its lines are broken
says() {
    tr '\n' ' ' <"$top/$2" | tr -s ' ' >text
    check "$1" grep -qF -e "$3" text
}
# small PROGRAM OPTION...: a run of the exercises: their SMALL
small() {
    rm -rf out/x
    program=$1
    shift
    "$program" --data LICENSE --layers 4 --heads 2 --channels 32 --context 32 --batch 2 --eval-every 0 --out out/x \
        "$@" >run.out 2>&1
}
norm() { sed -n 's/^step .* norm \([0-9.]*\) .*/\1/p' run.out | head -n 1; }
loss() { sed -n "s|^step $1/.* loss \([^ ]*\) .*|\1|p" run.out; }
# orders PROGRAM NUMBER OPTION...: of a run in each order of the streams, a number: eager lazy prio0 prio1
orders() {
    tried=$1 number=$2
    shift 2
    for order in eager lazy prio:0 prio:1; do
        EMU_SCHED=$order small "$tried" "$@"
        printf '%s ' "$($number)"
    done
}
loss_4() { loss 4; }

# --- every page: its links lead to a file and a heading, and the functions that it names exist ---------

# headings FILE: as the anchors that a page of them gets
headings() { sed -n 's/^##* *//p' "$1" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }
pages() { (cd "$top" && ls ./*.md doc/*.md scripts/*.md scripts/paper/*.md dev/*/*.md); }
pages | while read -r page; do
    grep -oE '\]\([^)# ]*(#[^) ]*)?\)' "$top/$page" | sed 's/^](//; s/)$//' | sort -u | while read -r link; do
        file=${link%%#*} to=$top/$page
        case $link in http*) continue ;; esac
        [ -z "$file" ] || to=$top/$(dirname "$page")/$file
        case $link in *#*) headings "$to" 2>/dev/null | grep -qxF -e "${link#*#}" ;; *) [ -e "$to" ] ;; esac ||
            echo "$page: $link"
    done
done >dead
check links_lead_somewhere sh -c 'cat dead; test ! -s dead'
(cd "$top" && pages | xargs grep -ohE '`[a-z][a-z0-9_]+\(\)`') | tr -d '`()' | sort -u >named
(cd "$top" && grep -ohE '\b[a-z][a-z0-9_]+\(' ./*.c ./*.cu ./*.h tide/*/* dev/*.[ch] dev/*/*.[ch]* dev/*/*.sh dev/*/*.py \
    dev/*/*/*.[ch]*) | tr -d '(' | sort -u | comm -23 named - >unknown
check functions_are_called_so sh -c 'cat unknown; test ! -s unknown'

# --- README.md: each command, on models and a GPU that this machine has ------------------------------

# The lines that are code, one for each command, without their comments.
sed -n 's/^    //p' "$top/README.md" | sed -e :a -e '/\\$/N; s/\\\n *//; ta' -e 's/   *#.*//' >shown
ln -s train_gpt2emu train_gpt2cu
cp LICENSE book.txt
echo 'train_gpt2 build/ask:' >Makefile
shape="--layers 2 --heads 2 --channels 32 --context 64 --batch 2 --seq 32 --steps 2"
for n in 1 2 3; do sed -n '/{"messages"/p' shown; done >my.jsonl
for model in run hub; do
    # shellcheck disable=SC2086  # options are words
    ./train_gpt2 --data book.txt $shape --out out/$model \
        --tokenizer "$top/dev/test/fixtures/tokenizer/small-llama3" >made.out 2>&1
done
# as_shown LINE: runs it, on another model where that one is fetched or large
as_shown() {
    case $1 in
        *'--model 7b'*--plan) eval "$1 --gpu-memory 46G --host-memory 120G --rates scripts/rates/h200_measured.txt" ;;
        *'--model 7b'*) eval "$1 -- $shape" ;;
        MODEL=*) eval "MODEL=out/hub TRAINER=./train_gpt2 OUT=out/finetune ${1#MODEL=* } --steps 2 --seq 32" ;;
        *--chat) echo Hi | eval "$1 --sample-tokens 4" ;;
        ./train_gpt2*) eval "$1" ;;
        *) return 1 ;;
    esac
}
while IFS= read -r line; do
    case $line in  # needs a network or nvcc; is what a program prints, or what is in a file
        'git clone '* | 'make '* | 'sh dev/data/model.sh '*) continue ;;
        '> '* | before:* | after:* | '... '* | 'fits: '* | '{'*) continue ;;
    esac
    n=$((n + 1))
    if as_shown "$line" >"ran.$n" 2>&1 </dev/null; then echo "ok readme: $line"
    else cat "ran.$n"; fail "readme: $line" "it fails"; fi
done <shown
# and journey.sh, which README.md names beside them: from a model's folder to a conversation
printf 'Hi\nBye\n' | MODEL=out/hub FILE=my.jsonl TRAINER=./train_gpt2 OUT=out/journey scripts/journey.sh --steps 2 --seq 32 \
    >journey.out 2>&1
check a_journey_shows_what_is_trained grep -q '>>Hello[.]<|eot_id|><<' journey.out
check a_journey_tunes_and_answers test "$(sed -n '/^--- 5/,/^step/p' journey.out | wc -l)" -ge 5 -a -s out/journey/tuned/model.safetensors
check a_journey_says_what_it_took sh -c 'sed "1,/^step  *seconds  *disk$/d" journey.out |
    awk "{ print \$1, \$2 ~ /^[0-9]+\$/ }" | tr "\n" " " | grep -qx "fits 1 fetch 1 data 1 fine-tune 1 talk 1 "'
HF_ENDPOINT=http://127.0.0.1:9 MODEL=Owner/Name FILE=my.jsonl OUT=out/none scripts/journey.sh >journey.out 2>&1
check a_journey_fetches_a_model_by_its_name test $? -ne 0 -a "$(grep -c 'cannot reach http://127.0.0.1:9' journey.out)" = 1
check readme_ran_its_commands test "$(cat ran.* | grep -c -e '^fits: ' -e '^done: ' -e 'answers to the last')" -ge 4
sed -n 's/^\.\.\. //p; s/^\(fits: .*\), \.\.\.$/\1/p' shown >lines
check readme_shows_what_was_planned test "$(wc -l <lines) $(cat ran.* | grep -c -F -f lines)" = "2 2"
rm -r out/*

missing="--accum 2 --steps 1" slot="--steps 4 --offload interleave --share 1 --slots 1"
late="--steps 40 --offload zenflow" uphill="--steps 300 --optimizer mezo --lr 1e-3"
plan="--plan --model gpt2-xl --batch 16 --offload zero --rates scripts/rates/h200_16cores.txt"
says small_is_what_is_run doc/README.md '`SMALL` is `--data LICENSE --layers 4 --heads 2 --channels 32 --context 32 --batch 2 --eval-every 0 --out out/x`'
for options in "$missing" "$slot" "$late" "$uphill" "$plan"; do
    says "and_it_has_$options" doc/README.md "$options"
done

# --- as it is ------------------------------------------------------------------------------------

# shellcheck disable=SC2046,SC2086  # options are words, and so are four numbers
{
    set -- $(orders ./train_gpt2emu norm $missing)
    right=$1
    check exercise_2_all_orders_agree test "$*" = "$1 $1 $1 $1"
    says exercise_2_has_the_norm doc/README.md "says $1, the right one"
    says adversary_has_the_norm doc/emulator.md "| as it is | $1 | $2 | $3 | $4 |"
    set -- $(orders ./train_gpt2emu loss_4 $slot)
    check exercise_4_all_orders_agree test "$*" = "$1 $1 $1 $1"
    says exercise_4_has_the_loss doc/README.md "With the line, it is $1 in all of them."
    small ./train_gpt2emu --steps 4 --offload zero
    says exercise_4_has_the_loss_of_zero doc/README.md "has the loss that it had, $(loss 4):"
    before=$(./train_gpt2emu $plan | sed -n 's/^  step \([0-9.]*\),.*/\1/p')
    says exercise_4_has_the_plan doc/README.md "seconds a step, and $before before"
    small ./train_gpt2 $late
    reference=$(loss 40)
    says exercise_5_has_the_reference doc/README.md "\`./train_gpt2 SMALL $late\`) at $reference."
    small ./train_gpt2emu $late --precision fp32
    check exercise_5_agrees_with_it test "$(loss 40)" = "$reference"
    small ./train_gpt2 $uphill
    begin=$(loss 1) right_end=$(loss 300)
    says exercise_7_has_the_begin doc/README.md "starts at $begin and ends at"
    says exercise_7_has_the_end doc/README.md "instead of $right_end:"
}

# The line at which the debugger stops is found by its text.
line=$(sed -n "s/^    \$ line=\$(grep -n '\(.*\)' tide.gpu.kernels.cuh | cut -d : -f 1)$/\1/p" "$top/doc/emulator.md")
check the_debugger_stops_at_one_line test "$(grep -cF -e "${line:-none}" "$top/tide/gpu/kernels.cuh")" -eq 1

# Examples in rows: as the demo has them.
build/reviews 1000 2 | awk -F '\t' 'NR > 1 { printf "{\"prompt\": \"%s so it is\", ", $1
    printf "\"choices\": [\" a bad film.\", \" a good one.\"], \"answer\": %d}\n", $2 }' >train.jsonl
for pack in on off; do
    rm -rf out/x
    ./train_gpt2 --data train.jsonl --layers 1 --heads 1 --channels 8 --context 128 --batch 1 --pack $pack --steps 1 \
        --val train.jsonl --eval-every 0 --no-save --out out/x >$pack.out 2>&1
    # shellcheck disable=SC2046  # numbers
    set -- "$pack" $(sed -n 's/^data: \([0-9]*\) rows of \([0-9]*\) tokens,.* \([0-9.]*\) % full;.*/\1 \2 \3/p' $pack.out)
    case $pack in on) of='the context' ;; *) of='the longest' ;; esac
    says "rows_with_pack_$pack" doc/finetuning.md "| \`--pack $pack\` | ${2-} | ${3-}, $of | ${4-} % |"
done

# The bytes of a cache of keys and values.
cache_of() {
    ./train_gpt2emu --plan --model "$1" --batch 1 --seq 64 --sample-every 1 --offload zero --gpu-memory 100G \
        --host-memory 400G --rates scripts/rates/h200_16cores.txt | sed -n 's/^GPU  sampling  *//p'
}
for model in gpt2-xl llama2-7b llama3.1-8b qwen2.5-7b; do
    check "cache_of_$model" grep -q "^| $model |.* | $(cache_of $model) |$" "$top/doc/sampling.md"
done

# Pictures, by the commands of doc/step_memory.md.
picture() { TRAINER=./train_gpt2emu OUT=$1 sh "$top/scripts/picture.sh" $2; }
planned=$(sed -n '/scripts.picture.sh --plan/,/rates/p' "$top/doc/step_memory.md" | sed 's/.*picture.sh//; s/[\\#].*//' | tr '\n' ' ')
check a_step_is_drawn picture drawn_step ''
check a_step_has_its_memory grep -q '>visiting state</text>' drawn_step/picture.svg
check a_plan_is_drawn picture drawn_plan "$planned"
check a_plan_has_its_streams grep -q '>update on the CPU</text>' drawn_plan/picture.svg

IMG="$work/rows" CPU="$top/train_gpt2" sh "$top/dev/draw_lessons.sh" rows >drawn 2>&1
for picture in packing chat; do
    check "is_what_is_drawn_$picture.svg" cmp "rows/$picture.svg" "$top/doc/img/$picture.svg"
done

# --- dev/draw_lessons.sh: the same pictures, and the times that doc/zenflow.md says -------------------

if whole; then
    IMG="$work/img" TRAINER="$top/train_gpt2emu" TIMELINE="$top/build/timeline" CPU="$top/train_gpt2" \
        sh "$top/dev/draw_lessons.sh" 'zen zero offload' >drawn 2>&1
    check lessons_are_drawn test "$(ls img | wc -l)" -eq 17
    for picture in img/*.svg; do
        check "is_what_is_drawn_$(basename "$picture")" cmp "$picture" "$top/doc/$picture"
    done
    set -- $(sed -n 's/^--offload .* step \([0-9.]*\) ms, waiting \([0-9.]*\)$/\1 \2/p' drawn)  # in four modes
    says zenflow_without doc/zenflow.md "Nothing offloaded, a step takes $1 ms."
    says zenflow_zero doc/zenflow.md "\`zero\`: $3 ms, of which compute waits $4."
    says zenflow_at_once doc/zenflow.md "\`--zen-overlap off\`: $5 ms, $6."
    says zenflow_late doc/zenflow.md "One window late: $7 ms, $8."
fi

# --- the mistakes --------------------------------------------------------------------------------

if ! whole; then
    echo "skip exercises_with_their_mistakes: minutes of compiling, with ALL=1"
    exit 0
fi
mkdir tree
(cd "$top" && cp -rp ./*.c ./*.h ./*.cu tide dev Makefile LICENSE "$work/tree" && mkdir "$work/tree/build" &&
    cp -rp build/emu "$work/tree/build") 2>/dev/null
cd tree || exit 1
# mistake FILE LINE OLD NEW: in the line that begins with LINE (after its spaces), which must be one
mistake() {
    awk -v line="$2" -v old="$3" -v new="$4" '
        { x = $0; sub(/^ */, "", x) }
        index(x, line) == 1 && (at = index($0, old)) {
            $0 = substr($0, 1, at - 1) new substr($0, at + length(old)); n++
        }
        { print }
        END { exit n != 1 }' "$1" >new
    check "there_is_one_line_$2" test $? -eq 0
    cat new >"$1"
}
is='atoi(getenv("EXERCISE"))'
wait='stream_wait(g->compute, g->grad_rooms.free[seg->grad_room])'
mistake train_gpt2.cu "$wait" "$wait" "if ($is != 2) $wait"
wait='stream_wait(g->fetch, g->slots.free[v->slot])'
mistake train_gpt2.cu "$wait" "$wait" "if ($is != 4) $wait"
mistake tide/gpu/gpt2.cuh 'return i < early ?' 'i < early' "$is == 44 || i < early"
mistake tide/gpu/zenflow.cuh 'z->late_step = zen_rest_step(' 'turn.steps' "$is == 5 ? 1 : turn.steps"
touch build/emu/runtime/*.o build/emu/*FP16.o 2>/dev/null  # they have none of these
check mistakes_are_compiled make -s train_gpt2emu
mistake train_gpt2.c 'dx[c] += (d[c] * w[c] - d_mean' ' - d_mean' ''
mistake zo.h 'const float scale = -u->scale[j];' '-u->scale' 'u->scale'
check more_mistakes_are_compiled make -s OPT=-O1 train_gpt2 build/test/test_gpt2
build/test/test_gpt2 >wrong.out 2>&1
cd ..
off=$(sed -n 's/.*gpt2 grad.transformer.wte.weight: error \([0-9.e+-]*\), allowed \([0-9.e+-]*\)$/\1 \2/p' tree/wrong.out |
    head -n 1 | awk '{ printf "`wte` by %.0f %% where %.3f %% is allowed", 100 * $1, 100 * $2 }')
says exercise_1_has_the_error doc/README.md "${off:-nothing}"
# shellcheck disable=SC2046,SC2086
{
    export EXERCISE=2
    set -- $(orders tree/train_gpt2emu norm $missing)
    check exercise_2_one_order_is_wrong test "$1 $2 $4" = "$right $right $right" -a "$3" != "$right"
    says exercise_2_has_the_wrong_norm doc/README.md "says norm $3."
    says adversary_has_the_wrong_norm doc/emulator.md "| without the wait | $1 | $2 | **$3** | $4 |"
    EXERCISE=4
    losses=$(for order in eager lazy prio:1; do
        EMU_SCHED=$order small tree/train_gpt2emu $slot
        loss 4
    done)
    set -- $losses
    says exercise_4_has_the_losses doc/README.md "the loss is $1, $2, no number at all, and $3."
    EMU_SCHED=prio:0 small tree/train_gpt2emu $slot
    check exercise_4_no_number_at_all grep -qi 'nan' run.out
    EXERCISE=44
    small tree/train_gpt2emu --steps 4 --offload zero
    says exercise_4_order_changes_no_bit doc/README.md "has the loss that it had, $(loss 4):"
    says exercise_4_order_takes_longer doc/README.md "says $(tree/train_gpt2emu $plan |
        sed -n 's/^  step \([0-9.]*\),.*/\1/p') seconds a step, and $before before"
    EXERCISE=5
    small tree/train_gpt2emu $late --precision fp32
    says exercise_5_has_the_loss doc/README.md "ends at $(loss 40), the reference"
    small tree/train_gpt2 $uphill
    says exercise_7_has_the_wrong_end doc/README.md "starts at $(loss 1) and ends at $(loss 300) instead of $right_end:"
}
