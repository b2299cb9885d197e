#!/bin/sh
# Evaluation as a user meets it: questions ranked by likelihood (in --val), what each row came to
# (--scores), and the best checkpoint (--keep-best): on the CPU, on the emulated GPU, with two ranks,
# resumed, with no room. And HellaSwag's file as questions, from a hub that is a folder.
# usage: sh dev/test/cli/test_eval.sh     (from the top of the repository, after make, make
#        train_gpt2emu; ALL=1 is the same)
set -u
. dev/test/cli.sh
begin eval
gpu=$tide
without_measuring
# The same words in another order: what is learned of words helps there, what is learned by heart
# does not.
cp "$top/LICENSE" text.txt
tr ' ' '\n' <text.txt | sort | tr '\n' ' ' >val.txt
small="--data text.txt --val val.txt --layers 2 --heads 2 --channels 32 --context 32 --batch 4 --lr 3e-2"
small="$small --schedule constant --eval-every 4 --eval-batches 4 --"

# --- the best checkpoint ------------------------------------------------------------------------------

best="$small --steps 40 --save-every 10 --keep 9 --keep-best --"
check keeps_the_best "$cpu" $best --out whole
lowest=$(members whole val_loss | sort -g | head -n 1)
check its_loss_is_the_lowest test "$(members whole best_val_loss | tail -n 1)" = "$lowest"
loss_of() {  # loss_of MODEL: on the same data
    "$cpu" --model "$1" --val val.txt --seq 32 --batch 4 --eval-batches 4 --steps 0 |
        sed -n 's/^val loss //p'
}
check its_weights_are_the_best close "$(loss_of whole/best)" "$lowest" 1e-6
at resumed whole 16 "$cpu"
check a_resumed_run_has_the_same_best cmp resumed/best/model.safetensors whole/best/model.safetensors

# What was best before stays where the new one cannot be written, and is made up for.
"$cpu" $best --steps 8 --out room >room.out
cp room/best/model.safetensors before
mkdir room/best/model.safetensors.tmp
check no_room_is_said_and_at_the_end_fails sh -c '! "$@" 2>room.err &&
    grep -q "warning: cannot write.*best.*goes on" room.err &&
    tail -n 1 room.err | grep -q "cannot write.*best.*; the checkpoint of step 39 is whole"' \
    - "$cpu" --resume --out room --steps 39 --lr 3e-3
check and_the_old_one_stays cmp before room/best/model.safetensors

# A checkpoint has the hash of the data that its best loss was measured on: losses of other data are
# not compared, and the weights that were best on those stay.
head -n 20 "$top/LICENSE" >short.txt
"$cpu" $best --out other >other.out
cp -r other changed
check best_of_other_data sh -c '"$@" >changed.out && grep -q "^note: the best so far is of other validation data" \
    changed.out && cmp changed/best_until_40/model.safetensors other/best/model.safetensors &&
    grep -q "has the weights of step 44" changed.out' - "$cpu" --resume --out changed --steps 44 --seq 32 --val short.txt

# In an open window the evaluation waits, so that what is saved is what was evaluated.
"$cpu" $small --steps 24 --keep 1 --keep-best --offload zenflow --zen-window 3 --out zen >zen.out
evaluated=$(grep '"val_loss"' zen/log.jsonl | sort -t : -k 3 -g | head -n 1 | sed 's/.*"step":\([0-9]*\).*/\1/')
step=$(grep '"best_val_loss"' zen/log.jsonl | tail -n 1 | sed 's/.*"step":\([0-9]*\).*/\1/')
check a_window_is_waited_for test "$step" -eq "$evaluated"

# Of two ranks' shards.
"$launch" 2 "$gpu" $small --precision fp32 --steps 12 --keep 1 --keep-best --save-every 5 --batch 2 \
    --eval-batches 8 --zero 2 --out two >two.out
check ranks_have_their_best close "$(loss_of two/best)" "$(members two val_loss | sort -g | head -n 1)" 2e-5

# --- questions ----------------------------------------------------------------------------------------

cat >q.jsonl <<'END'
{"prompt": "Permission is", "choices": [" hereby granted", " twenty xyz", "!"], "answer": 0}
{"prompt": "", "choices": ["zqj", "the the"], "answer": 0}
{"prompt": "Free of", "completion": " charge"}
{"prompt": "The end of a very long prompt that is longer than the row", "choices": [" here", " there are longer choices than the row, too: these"], "answer": 1}
END
ask() {  # ask NAME COMMAND...: its scores
    name=$1
    shift
    "$@" --val q.jsonl --steps 0 --scores "$name.scores" >"$name.out"
}
check asks ask cpu "$cpu" --model whole --batch 3
check a_line_for_each_choice test "$(wc -l <cpu.scores)" -eq 8
check tokens_are_those_of_choices test "$(sed -n 's/.*"tokens":\([^,}]*\).*/\1/p' cpu.scores | tr '\n' ' ')" = "15 11 1 2 6 7 5 32 "
ranked() {  # the share that is right, from the scores
    awk -F '[:,]' 'function end() { if (n > 1) { asked++; right += best == answer } n = 0 }
        $2 != index_now { end(); index_now = $2 }
        { if (n == 0 || $10 < low) { low = $10; best = n } if ($6 == "true") answer = n; n++ }
        END { end(); printf "%.2f", 100 * right / asked }' "$1"
}
check ranked_by_the_mean grep -q "^val loss [0-9.]*, accuracy $(ranked cpu.scores) %$" cpu.out
check perplexity_is_its_exponential awk -F '[:,}]' \
    '{ if ($12 / exp($10) > 1.00001 || $12 / exp($10) < 0.99999) exit 1 }' cpu.scores
ask one "$cpu" --model whole --batch 1
check batches_change_nothing cmp cpu.scores one.scores
same_scores() {  # same_scores A B TOLERANCE
    paste "$1" "$2" | awk -F '[:,\t]' -v by="$3" '{ x = $10 - $22; if (x < 0) x = -x; if (x > by) { print; exit 1 } }'
}
ask gpu "$gpu" --model whole --batch 3 --precision fp32
check a_gpu_gives_the_same same_scores cpu.scores gpu.scores 2e-4

# While running text is trained: the same of two ranks.
train="--data text.txt --val q.jsonl --model whole --batch 4 --steps 4 --eval-every 2 --no-save --"
check asks_while_training "$cpu" $train --out asked
"$gpu" $train --precision fp32 --out asked_one >asked_one.out
"$top/scripts/launch.sh" 2 "$gpu" $train --batch 2 --precision fp32 --out asked_two >asked_two.out
check of_two_ranks_the_same test "$(members asked_one val_accuracy)" = "$(members asked_two val_accuracy)"

# --- HellaSwag ------------------------------------------------------------------------------------------

command -v curl >/dev/null || { echo "skip hellaswag: no curl on this machine"; exit 0; }
mkdir hub
awk 'BEGIN { for (i = 0; i < 10042; i++) printf "{\"ind\": %d, \"activity_label\": \"Roof \\\"label\\\": 9\", \"ctx_a\": \"A man.\", \"ctx_b\": \"he\", \"ctx\": \"A \\\"man\\\" sits.\\n he\", \"split\": \"val\", \"label\": %d, \"endings\": [\"is, [using] it.\", \"says \\\"no\\\".\", \"\\u00e9t\\u00e9 \\\\\", \"starts.\"], \"source_id\": \"x\"}\n", i, i % 4 }' >hub/hellaswag_val.jsonl
export HELLASWAG_URL="file://$work/hub"
check hellaswag_comes sh "$top/dev/data/hellaswag.sh" h
check as_questions test "$(sed -n 3p h/val.jsonl)" = \
    '{"prompt": "A \"man\" sits.\n he", "choices": [" is, [using] it.", " says \"no\".", " \u00e9t\u00e9 \\", " starts."], "answer": 2}'
check and_asked env HELLASWAG=h/val.jsonl QUESTIONS=8 TRAINER="$cpu" OUT=h/scores.jsonl \
    sh "$top/scripts/hellaswag.sh" whole --batch 4
ask_again() { env HELLASWAG=h/val.jsonl QUESTIONS=4 TRAINER="$cpu" OUT=h/scores.jsonl \
    sh "$top/scripts/hellaswag.sh" whole; }
refuses scores_are_not_overwritten 2 'h/scores.jsonl is there: choose another OUT' ask_again
