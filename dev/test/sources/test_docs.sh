#!/bin/sh
# Each page's links lead somewhere, and the functions that it names exist; README.md's commands run; the
# numbers of the exercises in doc/README.md can be computed again, and the lines that they change are
# there; commands draw the pictures of the lessons (with ALL=1 all of them).
# usage: sh dev/test/sources/test_docs.sh      (from the top of the repository, after make train_gpt2 train_gpt2emu
#                                       build/timeline build/rows)
set -u
for program in train_gpt2 train_gpt2emu build/timeline build/rows; do
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
loss() { sed -n "s|^step $1/.* loss \([^ ]*\) .*|\1|p" run.out; }

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
check a_journey_shows_the_rows_of_its_training test "$(grep '^data: ' journey.out | sort | uniq -d | wc -l)" -ge 2
check a_journey_tunes_and_answers test "$(sed -n '/^--- 5/,/^step/p' journey.out | wc -l)" -ge 5 -a -s out/journey/tuned/model.safetensors
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

# --- the exercises, without their mistakes ---------------------------------------------------------

# there_is FILE LINE: once, so that a reader finds what the page wants changed
there_is() { check "there_is_one_line_$2" test "$(grep -cF -e "$2" "$top/$1")" -eq 1; }
there_is train_gpt2.c 'dx[c] += (d[c] * w[c] - d_mean'
there_is train_gpt2.cu 'stream_wait(g->compute, g->grad_rooms.free[seg->grad_room])'
there_is train_gpt2.cu 'stream_wait(g->fetch, g->slots.free[v->slot])'
there_is tide/gpu/gpt2.cuh 'return i < early ?'
there_is tide/gpu/zenflow.cuh 'z->late_step = zen_rest_step('
there_is zo.h 'const float scale = -u->scale[j];'

# shellcheck disable=SC2086  # options are words
{
    small ./train_gpt2emu $missing
    right=$(sed -n 's/^step .* norm \([0-9.]*\) .*/\1/p' run.out)
    says exercise_2_has_the_norm doc/README.md "says $right, the right one"
    says adversary_has_the_norm doc/emulator.md "| as it is | $right | $right | $right | $right |"
    small ./train_gpt2emu $slot
    says exercise_4_has_the_loss doc/README.md "With the line, it is $(loss 4) in all of them."
    small ./train_gpt2emu --steps 4 --offload zero
    says exercise_4_has_the_loss_of_zero doc/README.md "has the loss that it had, $(loss 4):"
    before=$(./train_gpt2emu $plan | sed -n 's/^  step \([0-9.]*\),.*/\1/p')
    says exercise_4_has_the_plan doc/README.md "seconds a step, and $before before"
    small ./train_gpt2 $late
    says exercise_5_has_the_reference doc/README.md "\`./train_gpt2 SMALL $late\`) at $(loss 40)."
    small ./train_gpt2 $uphill
    says exercise_7_has_the_begin doc/README.md "starts at $(loss 1) and ends at"
    says exercise_7_has_the_end doc/README.md "instead of $(loss 300):"
}

# The line at which the debugger stops is found by its text.
line=$(sed -n "s/^    \$ line=\$(grep -n '\(.*\)' tide.gpu.kernels.cuh | cut -d : -f 1)$/\1/p" "$top/doc/emulator.md")
check the_debugger_stops_at_one_line test "$(grep -cF -e "${line:-none}" "$top/tide/gpu/kernels.cuh")" -eq 1

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
