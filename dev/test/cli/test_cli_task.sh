#!/bin/sh
# Fine-tuning on examples as a user meets it: a made-up task is learned without a network, on the CPU
# and on the GPU; packed rows have the losses of padded ones; wherever AdamW's state is, on however
# many GPUs, and however often the run is stopped, the bits are the same; the script that does it. Mistakes
# are rows of lines.table.
# usage: sh dev/test/cli/test_cli_task.sh    (from the top of the repository, after make,
#        make train_gpt2emu build/reviews; TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: with more runs)
set -u
. dev/test/cli.sh
begin cli_task "$(pwd)/build/reviews" "$(pwd)/build/ask"
reviews=$top/build/reviews asks=$top/build/ask
cp "$top/LICENSE" text.txt
without_measuring

# OPT has seen every text begin with </s>: a prompt begins with it as the examples did, also while it
# trains. Without it, half of these are answered otherwise.
printf '{"prompt":"ab","completion":" yes"}\n{"prompt":"cd","completion":" no"}\n' >opt.jsonl
printf '{"prompt":"ef","completion":" maybe"}\n{"prompt":"gh","completion":" so"}\n' >>opt.jsonl
"$cpu" --model opt-125m --layers 1 --heads 2 --channels 32 --context 16 --vocab 459 \
    --tokenizer "$top/dev/test/fixtures/tokenizer" --data opt.jsonl --val opt.jsonl --steps 200 --batch 4 --lr 1e-2 \
    --pack off --eval-every 200 --save-every 0 --sample-every 200 --prompt cd --temperature 0 --out opt >opt.out
check opt_samples_begin_as_training_did sh -c 'grep -A1 "^--- sample" opt.out | grep -qx "cd no"'
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

learned="--batch 8 --eval-every 200 --steps 200 --"
go learned "$cpu" $tune $learned
arrive
"$cpu" $tune --steps 0 >random.out
before=$(sed -n 's/.*accuracy \([0-9.]*\) %.*/\1/p' random.out)
check before_it_is_chance true_that "$before > 30 && $before < 70"
check on_the_cpu_it_is_learned true_that "$(field learned 200 val_accuracy) > 0.95"
check what_is_packed_is_said grep -q \
    '^data: 201 rows of 64 tokens, packed, 97.8 % full; 4225 of 12580 tokens are trained$' learned.out
check it_completes sh -c '"$1" --model learned --prompt "look, the old owl" --sample-tokens 8 --temperature 0 |
    grep -a "^look, the old owl sleeps\.$"' - "$cpu"
check the_hint_has_no_template sh -c 'grep "^try it" learned.out | grep -v "It was\|--sample-tokens"'

# --- the same losses, or bits, however it is done ------------------------------------------------

few="--batch 2 --accum 2 --steps 6 --warmup 0 --schedule constant --eval-every 3 --eval-batches 9 --save-every 3 --"
go on_cpu "$cpu" $tune $few
go on_gpu "$tide" $tune $few
go fp32 "$tide" $tune $few --precision fp32
go first "$tide" $tune $few --offload interleave --share 0.5 --recompute block --steps 3
# One step over all: packed rows have the gradients of padded ones, as many as there are.
head -n 40 train.jsonl >some.jsonl
for pack in auto "off --seq 64"; do
    one="--data some.jsonl --batch 1 --pack $pack --steps 1 --warmup 0 --eval-every 0 --"
    rows=$("$cpu" $tune $one --no-save | sed -n 's/^data: \([0-9]*\) rows.*/\1/p')
    go "pack_${pack%% *}" "$tide" $tune $one --precision fp32 --accum "$rows"
done
also=  # what is tested with --offload zenflow, too
! whole || also=zenflow
for optimizer in ${also:+"--offload zenflow --zen-topk 0.3"} "--optimizer mezo --lr 1e-3 --zo-eps 1e-2"; do
    name=$(echo "$optimizer" | sed 's/^--[a-z]* \([a-z]*\).*/\1/')
    go "${name}_cpu" "$cpu" $tune $few $optimizer
    go "${name}_gpu" "$tide" $tune $few $optimizer --precision fp32
done
if enough_gpus 2; then
    go two "$launch" 2 "$tide" $tune $few --accum 1 --precision fp32
    go mezo_two "$launch" 2 "$tide" $tune $few $optimizer --accum 1 --precision fp32
fi
for how in "zero" ${also:+"zenflow --zen-topk 0.3"}; do
    on_the_cpu=${how#zero}  # which has no --offload but zenflow
    go "words_cpu_${how%% *}" "$cpu" $labels --labels 's|h' $few ${on_the_cpu:+--offload $how}
    go "words_gpu_${how%% *}" "$tide" $labels --labels 's|h' $few --precision fp32 --offload $how
done
arrive
near fp32_has_the_losses_of_the_cpu fp32 on_cpu 2e-5
near bf16_is_near on_gpu on_cpu 6e-3
"$tide" --resume --out first --steps 6 --offload none >resumed.out 2>&1
same bits_of_a_run_that_is_resumed_elsewhere first on_gpu
check packed_is_padded_on_the_gpu close "$(field pack_auto 1 loss)" "$(field pack_off 1 loss)" 1e-5
check and_so_is_its_norm close "$(field pack_auto 1 grad_norm)" "$(field pack_off 1 grad_norm)" 1e-4
for name in $also mezo; do near "${name}_on_examples_has_the_losses_of_the_cpu" ${name}_gpu ${name}_cpu 2e-5; done
if enough_gpus 2; then
    near two_ranks_have_the_losses_of_one two fp32 2e-6
    same two_ranks_of_mezo_have_the_bits_of_one mezo_two mezo_gpu
fi
for how in zero $also; do
    near "words_on_the_gpu_have_the_losses_of_the_cpu: $how" words_gpu_$how words_cpu_$how 1e-4
done

# --- what is cut -----------------------------------------------------------------------------------

"$cpu" $tune --seq 24 --steps 1 --eval-every 0 --no-save >cut.out
check what_is_cut_is_said grep -q '^data: [0-9]* of 500 examples are longer than --seq 24: prompts lose their front' cut.out

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
check the_demo_teaches_the_right_verdicts sh -c '! grep -E "(dull|weak|clumsy|stale|boring|flat|hate|nobody|regret).*a good" "$1" &&
    ! grep -E "(fine|witty|warm|clever|lovely|bright|love|like the|adore).*a bad" "$1" &&
    [ "$(grep -c "\(a good film.*yes, good\|a bad film.*yes, bad\)" "$1")" = 500 ]' - made/talks/talks.jsonl
# What it shows: answers to the last three examples, before and after.
tail -n 3 train.jsonl | sed 's/.*"prompt": "\([^"]*\)".*/\1/' >asked
check the_script_shows_answers sh -c 'FILE=../train.jsonl; cd made; export FILE
    MODEL=out/finetune-demo/read OUT=shown sh scripts/finetune.sh --steps 3 --seq 64 >../shown.out 2>&1
    sed -n "/^before:/,/^after:/p" ../shown.out | grep -cF -f ../asked | grep -qx 3 &&
        sed -n "/^after:/,\$p" ../shown.out | grep -cF -f ../asked | grep -qx 3'
printf 'prompt,completion\nHi,"Hello, you"\n' >qa.csv
check a_csv_becomes_examples sh -c 'command -v python3 >/dev/null || exit 0
    eval "$(sed -n "s/^    \(python3 -c .*\) <qa.csv >my.jsonl/\1/p" "$0/doc/finetuning.md")" <qa.csv |
        grep -qx "{\"prompt\": \"Hi\", \"completion\": \"Hello, you\"}"' "$top"

# What an earlier call has trained is never removed: neither by the same script nor by the other.
hash_of() { cksum <"$1/model.safetensors"; }
tune_own() { (cd made && FILE=../train.jsonl MODEL=out/finetune-demo/read sh scripts/finetune.sh --steps 3); }
check own_examples_are_tuned tune_own
refuses the_script_knows_its_earlier_run 2 'finetune/tuned is of an earlier call: go on with it by --resume' tune_own
own=$(hash_of made/out/finetune/tuned) demo=$(hash_of made/out/finetune-demo/tuned)
(cd made && sh scripts/finetune.sh >../again.out 2>&1)
check the_demo_runs_again grep -q '^the earlier out/finetune-demo is out/finetune-demo-1 now$' again.out
check the_demo_keeps_what_others_tuned test "$own" = "$(hash_of made/out/finetune/tuned)"
check the_demo_keeps_the_earlier_one test "$demo" = "$(hash_of made/out/finetune-demo-1/tuned)"
