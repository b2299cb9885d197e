#!/bin/sh
# The GPU trainer as a user meets it: runs, stops, resumes, refuses, and takes over from the CPU
# trainer and back. In a temporary directory, with models of a few thousand parameters. What tide/run/
# does for both trainers is test_cli.sh's; here is what differs on a GPU.
# usage: sh dev/test/cli/test_cli_gpu.sh      (from the top of the repository, after make;
#        TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: also what only repeats)
set -u
absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
tide=$(absolute "${TIDE_GPU:-train_gpt2emu}")
cpu=$(absolute "${TIDE_CPU:-train_gpt2}")
compare=$(absolute "${COMPARE:-build/compare}")
for program in "$tide" "$cpu" "$compare"; do
    [ -x "$program" ] || { echo "skip cli_gpu: $program is missing"; exit 0; }
done
export OMP_NUM_THREADS=1 EMU_THREADS=1
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; chmod -R u+w "$work"; rm -rf "$work"' EXIT
. dev/test/cli.sh
for i in 1 2 3; do cat LICENSE; done >"$work/text.txt"
cd "$work" || exit 1
# Bytes need 256 tokens; with some more than that, rows of padding take part.
small="--data text.txt --layers 2 --heads 2 --channels 32 --context 32 --vocab 300"
small="$small --batch 4 --lr 3e-3 --"
steps="$small --steps 8 --eval-every 4 --eval-batches 2 --save-every 2 --keep 9 --"

same() { cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
loss() { sed -n "s/.*\"step\":$2,\"loss\":\([0-9.]*\).*/\1/p" "$1/log.jsonl"; }  # RUN STEP
norm() { sed -n "s/.*\"step\":$2,.*\"grad_norm\":\([0-9.]*\).*/\1/p" "$1/log.jsonl"; }
# near A B DISTANCE
near() { awk "BEGIN { d = ($1 + 0) - ($2 + 0); exit !($1 + 0 > 0 && d * d <= ($3) * ($3)) }"; }

# --- a run leaves what it promises ---------------------------------------------------------------

check run_ends "$tide" $steps --out whole
for f in model.safetensors config.json log.jsonl loss.svg vocab.json merges.txt; do
    check "run_leaves_$f" test -s whole/$f
done
check log_has_every_step test "$(grep -c '"loss"' whole/log.jsonl)" -eq 8
check log_has_evaluations test "$(grep -c '"val_loss"' whole/log.jsonl)" -eq 2
check keeps_checkpoints test "$(ls whole/checkpoints | wc -l)" -eq 4
check loss_falls awk "BEGIN { exit !($(loss whole 8) < $(loss whole 1) - 0.3) }"
"$tide" $small --steps 1 --out words >words.out
check says_what_memory_is_for awk '/^GPU memory, in MiB$/ { table = 1; next }
    /^GPU +total .* of .* MiB$/ { ok = table && sum > 32 && $3 - sum < 0.5 && sum - $3 < 0.5 }
    table { sum += $NF }
    table && /^GPU .* 0\.0$/ { bad = 1 }
    END { exit bad || !ok }' words.out
check says_which_device grep -qE '^device: .*(, not in the table of devices: no % of peak|TFLOP/s.*)' words.out
whole || without_measuring

# --- precision -----------------------------------------------------------------------------------

"$tide" $steps --precision fp32 --out fp32 >/dev/null
"$cpu" $steps --out cpu >/dev/null
for step in 1 4 8; do
    check fp32_has_the_losses_of_the_cpu_at_step_$step \
        near "$(loss fp32 $step)" "$(loss cpu $step)" 2e-5
    check bf16_is_near_the_cpu_at_step_$step \
        near "$(loss whole $step)" "$(loss cpu $step)" 0.02
done
check fp32_has_the_norm_of_the_cpu near "$(norm fp32 1)" "$(norm cpu 1)" 2e-5
check bf16_is_the_default_and_is_not_fp32 sh -c \
    '! cmp -s whole/model.safetensors fp32/model.safetensors'
"$tide" $steps --precision bf16 --out bf16 >/dev/null
check same_seed_same_bits same whole bf16

"$cpu" $small --dump cpu.safetensors >/dev/null
"$tide" $small --precision fp32 --dump fp32.safetensors >/dev/null
"$tide" $small --dump bf16.safetensors >/dev/null
"$tide" $small --dump block.safetensors --recompute block >/dev/null
check fp32_dump_is_that_of_the_cpu "$compare" fp32.safetensors cpu.safetensors --rtol 1e-5
check bf16_dump_is_near_that_of_the_cpu "$compare" bf16.safetensors cpu.safetensors --rtol 0.03
check bf16_dump_is_not_exact sh -c "! '$compare' bf16.safetensors cpu.safetensors --rtol 1e-4"
check recomputed_dump_is_the_same "$compare" block.safetensors bf16.safetensors --rtol 0
opt="--data text.txt --model opt-125m --vocab 300 --layers 2 --heads 3 --channels 48"
opt="$opt --context 19 --batch 3 --"
"$cpu" $opt --dump cpu_opt.safetensors >/dev/null
"$tide" $opt --precision fp32 --dump fp32_opt.safetensors >/dev/null
check opt_dump_is_that_of_the_cpu "$compare" fp32_opt.safetensors cpu_opt.safetensors --rtol 1e-5

# --- same bits -----------------------------------------------------------------------------------

"$tide" $steps --recompute none --accum 2 --batch 2 --out none >/dev/null
"$tide" $steps --recompute block --accum 2 --batch 2 --out block >/dev/null
check recomputation_keeps_the_bits same none block
check accumulation_is_used sh -c '! cmp -s none/model.safetensors whole/model.safetensors'
check accumulation_reads_on near "$(loss none 1)" "$(loss whole 1)" 0.01
"$tide" $steps --sample-every 3 --sample-tokens 5 --out sampled >sampled.out
check samples_come_while_training test "$(grep -c '^--- sample' sampled.out)" -eq 3
check samples_do_not_change_bits same sampled whole
"$tide" $steps --sample-every 3 --sample-tokens 5 --offload zero --weights host --out streamed >streamed.out
texts() { sed -n '/^--- sample/,/^---$/p' "$1"; }
check samples_of_streamed_weights_are_the_same test "$(texts streamed.out)" = "$(texts sampled.out)"
check and_change_no_bits same streamed whole
short="$small --seq 8 --batch 1 --steps 2 --"
check samples_longer_than_a_batch "$tide" $short --sample-every 1 --sample-tokens 40 --out long
"$tide" $short --out unsampled >/dev/null
check they_do_not_change_bits same long unsampled
"$tide" $steps --eval-every 0 --save-every 0 --out silent >/dev/null
check evaluations_and_checkpoints_do_not_change_bits same silent whole

"$cpu" $small --steps 4 --accum 3 --batch 2 --clip 0.5 --out accum_cpu >/dev/null
"$tide" $small --steps 4 --accum 3 --batch 2 --clip 0.5 --precision fp32 --out accum_gpu >/dev/null
for step in 1 4; do
    check accumulated_losses_are_those_of_the_cpu_at_step_$step \
        near "$(loss accum_gpu $step)" "$(loss accum_cpu $step)" 2e-5
    check accumulated_norms_are_those_of_the_cpu_at_step_$step \
        near "$(norm accum_gpu $step)" "$(norm accum_cpu $step)" 5e-5
done
accum="$small --accum 2 --batch 2 --warmup 0 --schedule constant --"
"$tide" $accum --steps 8 --out full >/dev/null
"$tide" $accum --steps 5 --out half >/dev/null
"$tide" --resume --out half --steps 8 >/dev/null
check resumed_run_has_the_same_bits same half full
check resumed_log_is_whole test "$(grep -c '"loss"' half/log.jsonl)" -eq 8
if whole; then
    "$tide" $accum --steps 3 --out other >/dev/null
    "$tide" --resume --out other --steps 8 --recompute block >/dev/null
    check resumed_with_recomputation_too same other full
fi

# kill -9 at some moments, then --resume: the same bits as an undisturbed run.
killed_run() {
    long="$small --steps $((40 * times)) --save-every 2 --eval-every 0 --"
    often_killed "$tide" $long
}
check was_killed_several_times longer killed_run
"$tide" $long --out undisturbed >/dev/null
check killed_run_has_the_same_bits same killed undisturbed
check killed_log_is_whole test "$(grep -c '"loss"' killed/log.jsonl)" -eq $((40 * times))

# SIGTERM: the step is finished and saved, and the run can go on.
"$tide" $accum --steps 1000000 --save-every 0 --eval-every 0 --out term >/dev/null &
pid=$!
await $pid grep -qs '"step":3,' term/log.jsonl
comm=$(cat /proc/$pid/comm)
kill -TERM $pid
wait $pid
check sigterm_exits_with_143 test $? -eq 143
stopped=$(grep -c '"loss"' term/log.jsonl)
check sigterm_stops_early test "$stopped" -lt 1000000
check sigterm_saves test -d "term/checkpoints/step_$(printf %08d "$stopped")"
check after_sigterm_it_goes_on "$tide" --resume --out term --steps $((stopped + 1))
check its_process_is_called_as_the_program test "$comm" = "$(basename "$tide" | cut -c1-15)"
# The emulated GPU's handler of invalid accesses is not for a signal that somebody sends.
"$tide" $accum --steps 400 --save-every 0 --eval-every 0 --out crash >/dev/null 2>&1 &
pid=$!
await $pid grep -qs '"step":3,' crash/log.jsonl
kill -SEGV $pid
{ wait $pid; } 2>/dev/null
check a_crash_ends_with_139 test $? -eq 139

# --- CPU and GPU take over from each other -------------------------------------------------------

constant="$small --warmup 0 --schedule constant --eval-every 0 --"
"$cpu" $constant --steps 9 --out on_cpu >/dev/null
"$cpu" $constant --steps 4 --out mixed >/dev/null
check gpu_continues_a_run_of_the_cpu "$tide" --resume --out mixed --steps 7 --precision fp32
check cpu_continues_a_run_of_the_gpu "$cpu" --resume --out mixed --steps 9
check log_of_both_is_whole test "$(grep -c '"loss"' mixed/log.jsonl)" -eq 9
for step in 5 7 8 9; do
    check together_they_have_the_losses_of_the_cpu_at_step_$step \
        near "$(loss mixed $step)" "$(loss on_cpu $step)" 5e-5
done
"$tide" $constant --steps 4 --out begun >/dev/null
cp -r begun begun_too
check cpu_continues_a_run_in_bf16 "$cpu" --resume --out begun --steps 6
check gpu_continues_it_too "$tide" --resume --out begun_too --steps 6
check bf16_and_then_the_cpu near "$(loss begun 5)" "$(loss begun_too 5)" 0.01

# --- --steps 0 -----------------------------------------------------------------------------------

logged=$(sed -n 's/.*"step":8,"val_loss":\([0-9.]*\).*/\1/p' whole/log.jsonl)
"$tide" --model whole --steps 0 --data text.txt --eval-batches 2 --batch 4 >eval.txt
check evaluation_of_saved_weights near "$(sed -n 's/^val loss //p' eval.txt)" "${logged:-0}" 1e-5
all="--model whole --steps 0 --data text.txt --eval-batches 99"
"$tide" $all --batch 1 --precision fp32 >eval1.txt
"$tide" $all --batch 7 --precision fp32 >eval7.txt
check evaluation_does_not_depend_on_the_batch near "$(sed -n 's/^val loss //p' eval1.txt)" \
    "$(sed -n 's/^val loss //p' eval7.txt)" 3e-6
"$cpu" $all --batch 7 >eval_cpu.txt
check evaluation_is_that_of_the_cpu near "$(sed -n 's/^val loss //p' eval7.txt)" \
    "$(sed -n 's/^val loss //p' eval_cpu.txt)" 3e-6
"$tide" --model whole --steps 0 --out copy >/dev/null
check conversion_keeps_the_bits same whole copy
"$tide" --model whole --steps 0 --out short --save-dtype bf16 >/dev/null
check bf16_is_half_as_long test "$(wc -c <short/model.safetensors)" \
    -lt "$(($(wc -c <whole/model.safetensors) * 6 / 10))"

"$cpu" $small --batch 16 --steps 300 --eval-every 0 --out learned >/dev/null
sample() { program=$1; shift; "$program" --model learned --steps 0 --sample-tokens 40 "$@"; }
sample "$tide" --prompt 'Permission is ' --seed 5 >a.txt
sample "$tide" --prompt 'Permission is ' --seed 5 >b.txt
check sampling_repeats cmp a.txt b.txt
check sample_starts_with_the_prompt grep -q 'Permission is ' a.txt
sample "$tide" --prompt 'Permission is ' --seed 6 >b.txt
check seeds_give_other_samples sh -c '! cmp -s a.txt b.txt'
sample "$tide" --prompt 'Permission is ' --precision fp32 --temperature 0 >a.txt
sample "$cpu" --prompt 'Permission is ' --temperature 0 >b.txt
check greedy_sample_is_that_of_the_cpu cmp a.txt b.txt
sample "$tide" --prompt "$(head -c 300 text.txt)" --precision fp32 --temperature 0 >a.txt
sample "$cpu" --prompt "$(head -c 300 text.txt)" --temperature 0 >b.txt
check beyond_the_context_too cmp a.txt b.txt
# A text of several windows, and of grouped heads with rotary positions: each token by its cache.
"$cpu" $small --model nano-llama --heads 4 --batch 16 --steps 300 --eval-every 0 --out learned_llama >/dev/null
for model in learned learned_llama; do
    several="--model $model --steps 0 --sample-tokens 100 --prompt P --temperature 0"
    "$tide" $several --precision fp32 >a.txt
    "$cpu" $several >b.txt
    check "greedy_text_of_several_windows_$model" cmp a.txt b.txt
done

# --- algorithms of products by measurement -------------------------------------------------------

# tuned NAME OPTION...: on the emulated GPU, of three algorithms the second one takes least
tuned() {
    to=$1
    shift
    EMU_CLOCK=virtual EMU_LT_TIMES=3,1,2 "$tide" "$@" --out "$to" >"$to.out" 2>"$to.err"
}
tuned measured $steps --tune products
tuned read $steps --tune products --recompute block
tuned first $steps
check products_are_measured_once grep -q '^--tune products: [0-9]* products measured' measured.out
check what_is_known_is_not_measured sh -c '! grep -q "products measured" read.out'
check a_file_of_algorithms_gives_the_same_bits same measured read
if grep -q '^products Emulated' products; then
    check the_fastest_algorithm_is_taken awk \
        '/algorithm/ { n++; bad += $5 != "1:" || 3 * $6 != $9 } END { exit !(n > 10 && !bad) }' products
    check with_others_the_bits_are_others sh -c '! cmp -s "$1" "$2"' - \
        measured/model.safetensors first/model.safetensors
fi
cp products kept
tuned measured --resume --steps 10
check a_run_goes_on_with_its_algorithms sh -c '! grep -q "algorithms are not" measured.out'
tuned first --resume --steps 10 --tune products
check other_algorithms_than_before_are_told grep -q 'algorithms are not those of the' first.out
check a_file_is_not_touched_without_need cmp products kept
if grep -q '^products Emulated' kept; then
    EMU_SMS=5 tuned foreign $small --steps 1 --tune products
    check a_file_of_another_device_is_told grep -q 'it is of Emulated GPU, 4 .*first algorithms' \
        foreign.out
    check and_left_alone cmp products kept
    EMU_CLOCK=virtual EMU_LT_TIMES=2,2 "$tide" $small --steps 1 --out equal --tune equals >equal.out
    check the_first_one_stays_unless_another_is_faster awk \
        '/algorithm/ { n++; bad += $5 != "0:" } END { exit !(n > 10 && !bad) }' equals
fi
tr '3' '4' <kept >products
refuses a_damaged_file_of_algorithms 2 'not what was written' "$tide" $small --steps 1 --out no \
    --tune products
head -c 300 kept >products
refuses a_file_of_algorithms_that_is_cut 2 'not what was written' "$tide" $small --steps 1 \
    --out no --tune products
refuses a_file_of_algorithms_elsewhere 2 'No such file' "$tide" $small --steps 1 --out no \
    --tune nowhere/products

# --- refusals: one line, exit code 2 (1 while running), nothing lost -----------------------------

refuses too_little_gpu_memory 2 'GPU memory' env EMU_CLOCK=real "$tide" $small --steps 1 \
    --gpu-memory 1M --out little
"$tide" $small --batch 64 --recompute none --dump large.dump >large.out
"$tide" $small --batch 64 --recompute block --dump less.dump >less.out
check recomputation_takes_less awk \
    "BEGIN { exit !($(planned GPU less.out) < $(planned GPU large.out) - 1) }"
between=$(awk "BEGIN { print int(($(planned GPU large.out) + $(planned GPU less.out)) / 2 * 1024) }")
"$tide" $small --batch 64 --dump chosen.dump --gpu-memory "${between}K" >chosen.out
check recomputation_is_chosen_where_it_must grep -q '^recomputing activations in backward' chosen.out
check recomputation_is_not_chosen_elsewhere sh -c "! grep -q recomputing large.out"
odd="$small --channels 36 --heads 3 --steps 1 --"
refuses rows_that_are_not_whole_packs 2 'multiples of' "$tide" $odd --out odd
check fp32_has_smaller_packs "$tide" $odd --precision fp32 --out odd
wide="$small --layers 1 --channels 8448 --steps 1 --offload none --gpu-memory 1M --out wide"
refuses rows_wider_than_a_block_can_sum_up 2 'to train 8448 channels, a block needs 110 KiB' \
    env EMU_CC=89 "$tide" $wide
refuses such_rows_where_it_can 2 'needs .* of GPU memory' "$tide" $wide
refuses such_rows_without_backward 2 'needs .* of GPU memory' env EMU_CC=89 "$tide" $wide \
    --optimizer mezo
refuses channels_and_heads 2 'multiple of heads' "$tide" $small --channels 40 --heads 3
check a_large_head "$tide" $small --channels 272 --heads 1 --layers 1 --steps 1 --out large
refuses precision_unknown 2 'bf16' "$tide" $small --precision fp8
refuses precision_on_the_cpu 2 'GPU' "$cpu" $small --precision bf16
refuses no_device 1 'no CUDA device' env EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" $small --out no
refuses too_large 2 'memory' env EMU_CLOCK=real "$tide" --model opt-175b --data text.txt --out huge
check refused_runs_leave_nothing test ! -e huge -a ! -e no
refuses loss_not_finite 1 'stopped before the update' "$tide" $constant --lr 900 --clip 0 \
    --steps 300 --save-every 1 --out wild
check what_was_saved_before_is_whole "$cpu" --model wild --steps 0 --out wild_copy
