#!/bin/sh
# Fine-tuning on examples as a user meets it: a made-up task is learned without a network; GPU and CPU have the
# same losses, and so have packed and padded rows; the script that does it. Mistakes are rows of lines.table.
# usage: sh dev/test/cli/test_cli_task.sh    (from the top of the repository, after make,
#        make train_gpt2emu build/reviews; TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1 is the same)
set -u
. dev/test/cli.sh
begin cli_task "$(pwd)/build/reviews" "$(pwd)/build/ask"
reviews=$top/build/reviews asks=$top/build/ask
cp "$top/LICENSE" text.txt
without_measuring

# OPT has seen every text begin with </s>: a prompt begins with it as the examples did. Without it, half of
# these are answered otherwise.
printf '{"prompt":"ab","completion":" yes"}\n{"prompt":"cd","completion":" no"}\n' >opt.jsonl
printf '{"prompt":"ef","completion":" maybe"}\n{"prompt":"gh","completion":" so"}\n' >>opt.jsonl
"$cpu" --model opt-125m --layers 1 --heads 2 --channels 32 --context 16 --vocab 459 \
    --tokenizer "$top/dev/test/fixtures/tokenizer" --data opt.jsonl --val opt.jsonl --steps 200 --batch 4 --lr 1e-2 \
    --pack off --eval-every 0 --save-every 0 --out opt >opt.out
for answer in "ab yes" "cd no" "ef maybe" "gh so"; do
    check "opt_says_${answer% *}" test "$("$tide" --model opt --steps 0 --temperature 0 --sample-tokens 12 \
        --prompt "${answer% *}")" = "$answer"
done

# What sleeps, and what holds water? examples N SEED FORM
examples() {
    awk -v n="$1" -v x="$2" -v form="$3" 'function r(k) { x = x * 16807 % 2147483647
        return int(x / 1000) % k }
    BEGIN {
        split("cat dog cow hen fox owl bat eel", what, " ")
        split("cup jar pan pot mug bin box tin", other, " ")
        split("|look, |here is what i saw: |over there ", front, "|")
        split(" sleeps.| holds water.", end, "|")
        while (n-- > 0) {
            answer = r(2)
            prompt = front[r(4) + 1] "the " (r(2) ? "old " : "little ") \
                (answer ? other[r(8) + 1] : what[r(8) + 1])
            if (form == "tsv") print prompt "\t" answer
            else if (form == "choices") printf "{\"prompt\": \"%s\", \"choices\": [\"%s\", \"%s\"], \"answer\": %d}\n",
                prompt, end[1], end[2], answer
            else printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", prompt, end[answer + 1]
        }
    }'
}
examples 400 1 completions >train.jsonl
examples 100 7 choices >val.jsonl
examples 400 1 tsv >train.tsv
examples 100 7 tsv >val.tsv
model="--layers 2 --heads 2 --channels 32 --context 64 --lr 5e-3 --save-every 0"
tune="$model --data train.jsonl --val val.jsonl --"
labels="$model --data train.tsv --val val.tsv --template _ --"

# --- a task is learned ---------------------------------------------------------------------------

"$cpu" $tune --batch 8 --eval-every 200 --steps 200 --out learned >learned.out
check on_the_cpu_it_is_learned true_that "$(field learned 200 val_accuracy) > 0.95"
check it_completes sh -c '"$1" --model learned --prompt "look, the old owl" --sample-tokens 8 --temperature 0 |
    grep -a "^look, the old owl sleeps\.$"' - "$cpu"

# --- the same losses, or bits, however it is done ------------------------------------------------

few="--batch 2 --accum 2 --steps 6 --warmup 0 --schedule constant --eval-every 3 --eval-batches 9 --save-every 3 --"
go on_cpu "$cpu" $tune $few
go fp32 "$tide" $tune $few --precision fp32
# One step over all: packed rows have the gradients of padded ones, as many as there are.
head -n 40 train.jsonl >some.jsonl
for pack in auto "off --seq 64"; do
    one="--data some.jsonl --batch 1 --pack $pack --steps 1 --warmup 0 --eval-every 0 --"
    rows=$("$cpu" $tune $one --no-save | sed -n 's/^data: \([0-9]*\) rows.*/\1/p')
    go "pack_${pack%% *}" "$tide" $tune $one --precision fp32 --accum "$rows"
done
mezo="--optimizer mezo --lr 1e-3 --zo-eps 1e-2"
go mezo_cpu "$cpu" $tune $few $mezo
go mezo_gpu "$tide" $tune $few $mezo --precision fp32
go words_cpu "$cpu" $labels --labels 's|h' $few
go words_gpu "$tide" $labels --labels 's|h' $few --precision fp32 --offload zero
arrive
near fp32_has_the_losses_of_the_cpu fp32 on_cpu 2e-5
check packed_is_padded_on_the_gpu close "$(field pack_auto 1 loss)" "$(field pack_off 1 loss)" 1e-5
check and_so_is_its_norm close "$(field pack_auto 1 grad_norm)" "$(field pack_off 1 grad_norm)" 1e-4
near mezo_on_examples_has_the_losses_of_the_cpu mezo_gpu mezo_cpu 2e-5
near words_on_the_gpu_have_the_losses_of_the_cpu words_gpu words_cpu 1e-4

# --- the script, in a folder of its own and in few steps -----------------------------------------

mkdir -p made/scripts made/build
cp "$top/scripts/finetune.sh" "$top/scripts/common.sh" made/scripts
ln -s "$reviews" made/build/reviews
ln -s "$asks" made/build/ask
echo 'train_gpt2 build/reviews build/ask:' >made/Makefile
printf '#!/bin/sh\ncase "$*" in *"--steps 0"*) ;; *) set -- "$@" -- --steps 3 --warmup 0 ;; esac\nexec "%s" "$@"\n' \
    "$cpu" >made/train_gpt2
chmod +x made/train_gpt2
(cd made && sh scripts/finetune.sh >../made.out 2>&1)
check the_script_evaluates_and_tunes sh -c 'grep -q "^val loss.*accuracy" made.out &&
    grep -q "^data: .* rows of 128 tokens, packed" made.out && grep -q "are in out/finetune-demo/tuned$" made.out'
# The demo of conversations shows answers before and after, to three that are held out.
mkdir -p made/dev
ln -s "$top/dev/test" made/dev/test
(cd made && DEMO=chat OUT=talks sh scripts/finetune.sh >../talks.out 2>&1)
check the_demo_talks sh -c 'grep -q "^answers to the last three examples (3 of them held out)" talks.out &&
    [ "$(grep -c "^> .*\. so it is?$" talks.out)" = 6 ]'
# What an earlier call has trained is never removed: neither by the same script nor by the other.
hash_of() { cksum <"$1/model.safetensors"; }
tune_own() { (cd made && FILE=../train.jsonl MODEL=out/finetune-demo/read sh scripts/finetune.sh --steps 3); }
check own_examples_are_tuned tune_own
refuses the_script_knows_its_earlier_run 2 'finetune/tuned is of an earlier call: go on with it by --resume' tune_own
demo=$(hash_of made/out/finetune-demo/tuned)
(cd made && sh scripts/finetune.sh >../again.out 2>&1)
check the_demo_runs_again grep -q '^the earlier out/finetune-demo is out/finetune-demo-1 now$' again.out
check the_demo_keeps_the_earlier_one test "$demo" = "$(hash_of made/out/finetune-demo-1/tuned)"
