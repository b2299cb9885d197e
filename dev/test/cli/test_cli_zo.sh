#!/bin/sh
# Zeroth-order training as a user meets it: runs beside the CPU's, stopped and resumed, on several GPUs; a
# task that is learned without a network. The bits and bytes of all placements and numbers of ranks:
# test_zo_gpu.cu; words, refusals, plans that are below what others have published: lines.table. With models
# of a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_cli_zo.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/timeline build/tokenize build/reviews;
#        TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: with more plans)
set -u
. dev/test/cli.sh
begin cli_zo "$(pwd)/build/timeline" "$(pwd)/build/tokenize" "$(pwd)/build/reviews"
reviews=$top/build/reviews

# Shrunk from OPT-350M, whose bits in MeZO no row of runs.cuh has.
shape="--model opt-350m --layers 3 --heads 2 --channels 32 --context 16 --vocab 300"
mezo="--data text.txt --batch 2 --optimizer mezo --lr 3e-3 --weight-decay 0.1 --schedule linear"
mezo="$mezo --warmup 1 --eval-every 0"
tiny="$shape $mezo --"
six="--steps 6 --save-every 2 --keep 9 --eval-every 5 --eval-batches 2 --sample-every 5 --sample-tokens 9 --"
train() { trained=$1; shift; go "$trained" "$tide" $tiny "$@"; }

# --- a task, and with ALL=1 that it is learned, without a network --------------------------------

# (in the background, on one core, while the other one is at what follows)
if whole; then learnt=450 tuned=250 every=50; else learnt=9 tuned=4 every=2; fi
"$reviews" 15000 1 --text >reviews.txt
"$reviews" 1000 1 >train.tsv
"$reviews" "$(whole && echo 400 || echo 60)" 2 >val.tsv
task="--data train.tsv --val val.tsv --tokenizer bytes --optimizer mezo --zo-eps 1e-2"
task="$task --lr 1e-4 --batch 16 --eval-batches 100 --"
labels='-|+'
# judge PROGRAM OPTION...
judge() {
    program=$1
    shift
    "$program" $task --labels "$labels" --template ' = ' -- "$@"
}
learn() {
    "$cpu" --data reviews.txt --tokenizer bytes --layers 2 --heads 2 --channels 64 --context 88 \
        --batch 4 --steps $learnt --lr 6e-3 --eval-every 0 --out judge >judge.out 2>&1
    judge "$cpu" --model judge --steps 0 >zero_shot.out 2>&1
    judge "$cpu" --model judge --steps $tuned --eval-every $every --out tuned >tuned.out 2>&1
}
learn &
learning=$!
cores=$((cores > 1 ? cores - 1 : 1))

# --- wherever the layers are, the bits are the same ----------------------------------------------

train memory $six --trace memory.json
train stream $six --resident-blocks 0 --trace stream.json
without_measuring  # that the host reads no GPU memory was seen
train fp32 $six --precision fp32 --resident-blocks 0 --slots 2
"$cpu" $tiny $six --out on_cpu >on_cpu.out
# --steps 0 --resume: what the run has come to
"$cpu" --model on_cpu --steps 0 --data text.txt --batch 2 --eval-batches 2 | grep '^val' >a.txt
check what_is_resumed_is_evaluated sh -c '"$1" --resume --out on_cpu --steps 0 |
    grep "^val" | diff - a.txt' - "$cpu"
arrive
same stream_has_the_bits_of_memory stream memory
near fp32_has_the_losses_of_the_cpu fp32 on_cpu 2e-5
near bf16_is_near_the_cpu memory on_cpu 4e-3
"$cpu" $tiny --model mistral-7b --kv-heads 1 --steps 0 --out window >window.out 2>&1
sed 's/"sliding_window": null/"sliding_window": 5/' window/config.json >a.txt && mv a.txt window/config.json
slides="--model window $mezo --seq 16 --steps 4"
"$cpu" $slides --out window_cpu >window.out 2>&1
"$tide" $slides --precision fp32 --resident-blocks 0 --out window_gpu >window.out 2>&1
near rows_beyond_a_sliding_window_have_the_losses_of_the_cpu window_gpu window_cpu 2e-5
if whole; then  # a LLaMA in 16 bits
    llama="--data text.txt --model nano-llama --layers 2 --channels 32 --ffn 48 --context 32 --batch 2"
    llama="$llama --eval-every 0 --schedule constant --warmup 0 --optimizer mezo --lr 1e-3 --steps 6 --"
    for precision in fp32 bf16 fp16; do go llama_$precision "$tide" $llama --precision $precision; done
    arrive
    for precision in bf16 fp16; do near a_llama_in_$precision llama_$precision llama_fp32 5e-4; done
fi
check evaluations_are_made grep -q '"val_loss"' stream/log.jsonl
check samples_between_steps_are_the_same sh -c 'for r in memory stream; do
    sed -n "/^--- sample/,/^---$/p" $r.out >$r.txt; done; test -s memory.txt && cmp memory.txt stream.txt'
check memory_says_nothing_of_slots sh -c '! grep -q "slot\|^host" memory.out'
for run in memory stream; do as_planned gpu_memory_of_${run}_is_as_planned $run.out; done
check trace_is_json "$top/build/timeline" stream.json -o stream.svg
check trace_has_copies_and_kernels sh -c 'for n in forward update fetch flush; do
    grep -q "\"name\":\"$n\"" stream.json || exit 1; done'
check trace_in_memory_has_no_copies sh -c '! grep -q "\"name\":\"fetch\"" memory.json'

# --- stopped and resumed, anywhere ---------------------------------------------------------------

at resumed stream 2 "$tide"
same stream_resumes_with_the_same_bits resumed stream
check resume_keeps_the_placement grep -q "3 of 3 layers" resumed.out
at cpu_to_gpu on_cpu 2 "$tide" --precision fp32 --resident-blocks 0
near gpu_continues_a_run_of_the_cpu cpu_to_gpu on_cpu 2e-5
"$cpu" --data text.txt $shape --batch 2 --steps 1 --eval-every 0 --out adamw >/dev/null
check a_run_of_adamw_is_fine_tuned "$cpu" --model adamw $mezo --steps 2 --out adamw_mezo
check what_mezo_left_is_trained "$cpu" --model adamw_mezo --data text.txt --batch 2 --steps 1 \
    --eval-every 0 --out mezo_adamw

# --- losses that are no number -------------------------------------------------------------------

wild="--schedule constant --lr 900 --weight-decay 0 --save-every 1 --keep 99 --steps 30 --"
refuses wild_ends 1 '10 steps in a row' "$tide" $tiny $wild --out wild --zo-eps 1 --resident-blocks 0
check it_logs_that grep -q '"step":[0-9]*,"skipped":true}' wild/log.jsonl
check it_can_be_resumed_before_that at again wild 1 "$cpu" --lr 0 --steps 2
# In the second micro-batch of a step.
late="--layers 1 --heads 2 --channels 32 --context 16 --batch 1 --accum 2 --tokenizer bytes"
late="$late --optimizer mezo --lr 3e-3 --eval-every 0 --"
elsewhere="--resident-blocks 0"
late_token "$tide" $late

# --- several GPUs: replicas that exchange their losses -------------------------------------------

# ranked N RUN OPTION...: a run of N ranks, of which each has 6/N micro-batches per step
ranked() {
    n=$1 run=$2
    shift 2
    ranks "$n" $tiny --accum $((6 / n)) -- "$@" --out "$run" >"$run.out" 2>"$run.err" ||
        fail "${run}_ends_well" "$(cat "$run.err")"
}
several_gpus() {
    looks="--save-every 2 --eval-every 2 --eval-batches 3 --"
    ranked 1 alone --steps 4 $looks
    ranked 2 two --steps 4 $looks --resident-blocks 0 --sample-every 4 --sample-tokens 9
    same two_ranks_have_the_bits_of_one two alone
    check only_one_of_them_speaks sh -c 'for w in done: model: "step 3/4" "--- sample"; do
        [ "$(grep -c -e "^$w" two.out)" -eq 1 ] || exit 1; done; ! [ -s two.err ]'
    check only_one_of_them_writes_a_log test "$(members two loss | wc -l)" -eq 4
    check it_says_how_many_they_are grep -q '^ranks: 2, each with all weights' two.out
    is what_two_exchange_is_counted two 4 exchanged_bytes $((8 * (2 * 3 + 3)))
    is it_is_known_how_many two 4 ranks 2

    # more or fewer of them go on
    at two_to_one two 2 "$tide"
    same two_to_one two_to_one alone
    check accum_follows grep -q '^--accum is 6 now' two_to_one.out

    # what only one of them meets
    refuses a_late_token_of_one_rank 2 'rank [01].*bad.bin' ranks 2 $late -- --accum 1 --data bad.bin \
        --steps 99 --out late_two
    check what_two_trained_before_it_is_saved same_weights late_two early
    printf 'cd "rank$RANK" && exec "$@"\n' >elsewhere.sh
    mkdir -p rank0 rank1
    cp -r adamw_mezo rank0/base
    cp -r adamw rank1/base
    set -- --data "$work/text.txt" --model base --optimizer mezo --eval-every 0 --batch 2 --steps 2
    refuses other_weights_on_one_rank 2 'weights of all ranks must be the same' \
        "$launch" 2 sh elsewhere.sh "$tide" "$@" --out "$work/unlike"
}
if enough_gpus 3; then several_gpus
else echo "skip several_gpus: fewer than three on this machine"; fi

# --- evaluation, samples, conversion, and memory -------------------------------------------------

for how in "" "--resident-blocks 0 --slots 1"; do
    "$tide" --model memory --optimizer mezo --steps 0 --data text.txt --eval-batches 2 $how |
        grep '^val loss' >>evals.txt
    "$tide" --model memory --optimizer mezo --steps 0 --prompt The --sample-tokens 9 $how | od -An -v -tx1 | tr -d '\n' >>said.txt
    echo >>said.txt
done
check evaluations_agree test "$(sort -u evals.txt | wc -l)" -eq 1
check samples_agree test "$(sort -u said.txt | wc -l)" -eq 1 -a "$(head -n 1 said.txt | wc -c)" -gt 33

deep="--layers 20 --heads 2 --channels 64 --context 16 --vocab 300 $mezo --steps 2 --"
"$tide" $deep --out deep >deep.out
less=$(planned GPU deep.out)
"$tide" $deep --gpu-memory "$((1024 * ${less%.*} - 1024))K" --out deep_stream >deep_stream.out
check little_memory_turns_streaming_on grep -q 'of 20 layers.*all of them would not fit' \
    deep_stream.out
check and_what_fits_stays sh -c '! grep -q "20 of 20 layers" deep_stream.out'
check streamed_for_want_of_memory_it_is_the_same same_weights deep deep_stream
rated="--plan --rates rates.txt"
"$tide" $deep $rated --slots 1 --resident-blocks 0 >plan.out
one=$(planned GPU plan.out)
refuses fewer_residents_are_named 2 '; it fits with --resident-blocks auto$' "$tide" $deep $rated \
    --resident-blocks 6 --gpu-memory "$(awk "BEGIN { print int($one * 1024) + 200 }")K"
check little_memory_takes_slots sh -c '"$@" | grep -q "visit 1 slot:"' - "$tide" $deep $rated \
    --gpu-memory "$(awk "BEGIN { printf \"%d\", 1024 * $one + 1 }")K"

# --- plans ----------------------------------------------------------------------------------------

# What a plan and a run with the same options say.
for run in "memory $six" "stream $six --resident-blocks 0"; do
    EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan $tiny ${run#* } >plan.out
    plan_says "plan_says_what_${run%% *}_says" plan.out "${run%% *}.out"
done

# --- what was learned in the meantime ------------------------------------------------------------

arrive
wait $learning
accuracy() { sed -n 's/.*accuracy \([0-9.]*\) %.*/\1/p' "$1" | tail -n 1; }
before=$(accuracy zero_shot.out) after=$(accuracy tuned.out)
echo "accuracy: $before % without tuning, $after % after $tuned steps"
whole && check the_task_is_learned true_that "$before + 0 > 0 && $after > $before + 15 && $after > 72"
check accuracy_is_logged close "$(awk "BEGIN { print 100 * $(field tuned $tuned val_accuracy) }")" "$after" 0.1
for program in "$cpu" "$tide --precision fp32"; do  # no --optimizer, and all of --val
    check "evaluated_by_$(basename ${program%% *})" test "$(judged=$($program --model tuned --val val.tsv --labels "$labels" \
        --template ' = ' --steps 0); echo "$judged" | sed -n 's/.*accuracy \([0-9.]*\) %.*/\1/p')" = "$after"
done
# The script that does the same, in a folder of its own and in few steps.
mkdir -p made/scripts made/build
cp "$top/scripts/zo_reviews.sh" "$top/scripts/common.sh" made/scripts
ln -s "$reviews" made/build/reviews
echo 'train_gpt2 build/reviews:' >made/Makefile
printf '#!/bin/sh\ncase "$*" in *"--steps 0"*) ;; *) set -- "$@" -- --steps 3 ;; esac\nexec "%s" "$@"\n' \
    "$cpu" >made/train_gpt2
chmod +x made/train_gpt2
(cd made && sh scripts/zo_reviews.sh >../made.out 2>&1)
check reviews_show_their_first_steps sh -c 'grep "^step" made.out | head -n 1 | grep "^step 1/3 "'
reviewed=$(cksum <made/out/zo_reviews/tuned/model.safetensors)
(cd made && sh scripts/zo_reviews.sh >../again.out 2>&1)
check reviews_keep_the_earlier_ones test "$reviewed" = "$(cksum <made/out/zo_reviews-1/tuned/model.safetensors)"
check reviews_have_clean_paths grep -q ' are in out/zo_reviews/tuned$' made.out
check reviews_can_be_asked_for_one sh -c 'cd made && sh -c "$(sed -n "/^what it makes/,\$s/^what[^:]*://p;
    /^    --prompt/p" ../made.out)" | grep -a "^i love the plot = "'
few="--model judge --batch 4 --steps 3 --eval-every 2 --eval-batches 4 --"
judge "$tide" $few --precision fp32 --resident-blocks 0 --out judge_fp32 >judge_fp32.out
judge "$cpu" $few --out judge_cpu >judge_cpu.out
near a_task_in_fp32_has_the_losses_of_the_cpu judge_fp32 judge_cpu 1e-4
check its_accuracy_is_that_of_the_cpu test "$(accuracy judge_fp32.out)" = "$(accuracy judge_cpu.out)"
