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

train memory $six
train stream $six --resident-blocks 0 --trace stream.json
without_measuring  # that the host reads no GPU memory was seen
train fp32 $six --precision fp32 --resident-blocks 0 --slots 2
"$cpu" $tiny $six --out on_cpu >on_cpu.out
arrive
same stream_has_the_bits_of_memory stream memory
near fp32_has_the_losses_of_the_cpu fp32 on_cpu 2e-5
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
check samples_between_steps_are_the_same sh -c 'for r in memory stream; do
    sed -n "/^--- sample/,/^---$/p" $r.out >$r.txt; done; test -s memory.txt && cmp memory.txt stream.txt'
as_planned gpu_memory_is_as_planned stream.out
check trace_is_json "$top/build/timeline" stream.json -o stream.svg
check trace_has_copies_and_kernels sh -c 'for n in forward update fetch flush; do
    grep -q "\"name\":\"$n\"" stream.json || exit 1; done'

# --- stopped and resumed, anywhere ---------------------------------------------------------------

at resumed stream 2 "$tide"
same stream_resumes_with_the_same_bits resumed stream
at cpu_to_gpu on_cpu 2 "$tide" --precision fp32 --resident-blocks 0
near gpu_continues_a_run_of_the_cpu cpu_to_gpu on_cpu 2e-5

# --- a damaged token, in the second micro-batch of a step -------------------------------------------

late="--layers 1 --heads 2 --channels 32 --context 16 --batch 1 --accum 2 --tokenizer bytes"
late="$late --optimizer mezo --lr 3e-3 --eval-every 0 --"
head -c 1200 text.txt >short.txt
"$top/build/tokenize" --tokenizer bytes --out good short.txt >/dev/null 2>&1
good=good_train_000000.bin
(head -c 2224 $good; printf '\377\377'; tail -c +2227 $good) >bad.bin
refuses late_token 2 'bad.bin' "$tide" $late --data bad.bin --steps 99 --out late
until_then=$(members late loss | wc -l)
"$tide" $late --data $good --steps "$until_then" --resident-blocks 0 --out early >/dev/null
check what_was_trained_before_it_is_saved same_weights late early

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
    check what_two_exchange_is_counted test "$(field two 4 exchanged_bytes)" -eq $((8 * (2 * 3 + 3)))

    # more or fewer of them go on
    at two_to_one two 2 "$tide"
    same two_to_one two_to_one alone

    # what only one of them meets
    printf 'cd "rank$RANK" && exec "$@"\n' >elsewhere.sh
    mkdir -p rank0 rank1
    cp -r memory rank0/base
    cp -r on_cpu rank1/base
    set -- --data "$work/text.txt" --model base --optimizer mezo --eval-every 0 --batch 2 --steps 2
    refuses other_weights_on_one_rank 2 'weights of all ranks must be the same' \
        "$launch" 2 sh elsewhere.sh "$tide" "$@" --out "$work/unlike"
}
if enough_gpus 3; then several_gpus
else echo "skip several_gpus: fewer than three on this machine"; fi

# --- memory ----------------------------------------------------------------------------------------

deep="--layers 20 --heads 2 --channels 64 --context 16 --vocab 300 $mezo --steps 2 --"
"$tide" $deep --out deep >deep.out
# its weights are bf16 numbers, and are saved so
check saved_as_said close "$(cat deep/checkpoints/*/state.safetensors | wc -c) * 1e-6" \
    "$(sed -n 's/^checkpoints: \([0-9.]*\) MB, .*/\1/p' deep.out)" 0.1
check saved_in_bf16 grep -q '"torch_dtype": "bfloat16"' deep/config.json
less=$(planned GPU deep.out)
"$tide" $deep --gpu-memory "$((1024 * ${less%.*} - 1024))K" --out deep_stream >deep_stream.out
check little_memory_turns_streaming_on grep -q 'of 20 layers.*all of them would not fit' \
    deep_stream.out
check and_what_fits_stays sh -c '! grep -q "20 of 20 layers" deep_stream.out'
check streamed_for_want_of_memory_it_is_the_same same_weights deep deep_stream

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
reviewed=$(cksum <made/out/zo_reviews/tuned/model.safetensors)
(cd made && sh scripts/zo_reviews.sh >../again.out 2>&1)
check reviews_keep_the_earlier_ones test "$reviewed" = "$(cksum <made/out/zo_reviews-1/tuned/model.safetensors)"
check reviews_can_be_asked_for_one sh -c 'cd made && sh -c "$(sed -n "/^what it makes/,\$s/^what[^:]*://p;
    /^    --prompt/p" ../made.out)" | grep -a "^i love the plot = "'
