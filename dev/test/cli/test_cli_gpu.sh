#!/bin/sh
# The GPU trainer as a user meets it: it runs, resumes, and takes over from the CPU trainer and back.
# In a temporary directory, with models of a few thousand parameters. What tide/run/ does for both
# trainers is test_cli.sh's, kills and signals are test_lost.sh's, words and refusals are rows of lines.table;
# here is what differs on a GPU.
# usage: sh dev/test/cli/test_cli_gpu.sh      (from the top of the repository, after make;
#        TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: also what only repeats)
set -u
. dev/test/cli.sh
begin cli_gpu "$(pwd)/build/compare"
compare=$top/build/compare
# Shrunk from OPT-350M, whose norms come last, and whose embeddings are narrower: the bits of its placements
# are in no row of runs.cuh. Bytes need 256 tokens; with some more than that, rows of padding take part.
small="--data text.txt --model opt-350m --layers 2 --heads 2 --channels 32 --context 32 --vocab 300"
small="$small --batch 4 --lr 3e-3 --"
steps="$small --steps 8 --eval-every 4 --eval-batches 2 --save-every 2 --keep 9 --"

# --- a run leaves what it promises ---------------------------------------------------------------

check run_ends "$tide" $steps --out whole
cp check.out whole.out
check loss_falls true_that "$(field whole 8 loss) < $(field whole 1 loss) - 0.03"
check says_what_memory_is_for awk '/^GPU memory, in MiB$/ { table = 1; next }
    /^GPU +total .* of .* MiB$/ { ok = table && sum > 32 && $3 - sum < 0.5 && sum - $3 < 0.5 }
    table { sum += $NF }
    table && /^GPU .* 0\.0$/ { bad = 1 }
    END { exit bad || !ok }' whole.out
as_planned memory_is_as_planned whole.out
whole || without_measuring

# --- precision -----------------------------------------------------------------------------------

"$tide" $steps --precision fp32 --out fp32 >/dev/null
"$cpu" $steps --out cpu >/dev/null
near fp32_has_the_losses_of_the_cpu fp32 cpu 4e-6
near bf16_is_near_the_cpu whole cpu 4e-3
check bf16_is_the_default_and_is_not_fp32 differ whole fp32
dumped="$small --model nano"  # (without ReLU, whose zeros are others in bf16)
"$cpu" $dumped --dump cpu.safetensors >/dev/null
"$tide" $dumped --precision fp32 --dump fp32.safetensors >/dev/null
check fp32_dump_is_that_of_the_cpu "$compare" fp32.safetensors cpu.safetensors --rtol 1e-5
"$tide" $dumped --dump bf16.safetensors >/dev/null
"$tide" $dumped --gpu-memory 33M --dump other.safetensors >/dev/null
check a_dump_has_gradients_that_wait_over_activations "$compare" other.safetensors bf16.safetensors --rtol 0

zen="--offload zenflow --zen-window 2"
"$cpu" $steps $zen --out zen_cpu >/dev/null
"$tide" $steps $zen --precision fp32 --out zen_gpu >/dev/null
near zenflow_in_fp32_has_the_losses_of_the_cpu zen_gpu zen_cpu 1e-4

# --- same bits -----------------------------------------------------------------------------------

sampled="$steps --sample-every 3 --sample-tokens 9 --"
"$tide" $sampled --out sampled >sampled.out
check samples_do_not_change_bits same_weights sampled whole
"$tide" $sampled --offload zero --weights host --activations host --out streamed >streamed.out
texts() { sed -n '/^--- sample/,/^---$/p' "$1"; }
check samples_of_streamed_weights_are_the_same test "$(texts streamed.out)" = "$(texts sampled.out)"
check and_change_no_bits same_weights streamed whole

# --- CPU and GPU take over from each other -------------------------------------------------------

constant="$small --warmup 0 --schedule constant --eval-every 0 --"
"$cpu" $constant --steps 9 --out on_cpu >/dev/null
"$cpu" $constant --steps 4 --out mixed >/dev/null
check gpu_continues_a_run_of_the_cpu "$tide" --resume --out mixed --steps 7 --precision fp32
check cpu_continues_a_run_of_the_gpu "$cpu" --resume --out mixed --steps 9
near together_they_have_the_losses_of_the_cpu mixed on_cpu 1e-5

# --- --steps 0 -----------------------------------------------------------------------------------

value() { "$@" | sed -n 's/^val loss //p'; }
all="--model whole --steps 0 --data text.txt --eval-batches 99"
check evaluation_is_that_of_the_cpu close "$(value "$cpu" $all --batch 7)" \
    "$(value "$tide" $all --batch 3 --precision fp32 --offload zero)" 3e-6

# --- algorithms of products by measurement -------------------------------------------------------

# tuned NAME OPTION...: on the emulated GPU, of three algorithms the second one takes least
tuned() {
    to=$1
    shift
    EMU_CLOCK=virtual EMU_LT_TIMES=3,1,2 "$tide" "$@" --out "$to" >"$to.out" 2>"$to.err"
}
tuned measured $steps --tune products
cp products kept
tuned again $steps --tune products --recompute block
tuned first $steps
check a_file_of_algorithms_gives_the_same_bits same_weights measured again
check a_file_is_not_touched_without_need cmp products kept
if grep -q '^products Emulated' products; then  # (words: lines.table)
    check the_fastest_algorithm_is_taken awk \
        '/algorithm/ { n++; bad += $5 != "1:" || 3 * $6 != $9 } END { exit !(n > 10 && !bad) }' products
    check with_others_the_bits_are_others differ measured first
    EMU_CLOCK=virtual EMU_LT_TIMES=2,2 "$tide" $small --steps 1 --out equal --tune equals >equal.out
    check the_first_one_stays_unless_another_is_faster awk \
        '/algorithm/ { n++; bad += $5 != "0:" } END { exit !(n > 10 && !bad) }' equals
fi
tr '3' '4' <kept >products
refuses a_damaged_file_of_algorithms 2 'not what was written' "$tide" $small --steps 1 --out no \
    --tune products
