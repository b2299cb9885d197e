#!/bin/sh
# Offloading as a user meets it: what `auto` chooses, plans and what is then taken, traces, fp16, runs that
# go on elsewhere. The bits and bytes of all placements: test_placement.cu; words and refusals: lines.table.
# usage: sh dev/test/cli/test_cli_offload.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/timeline; TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: also fp16)
set -u
. dev/test/cli.sh
begin cli_offload "$(pwd)/build/compare" "$(pwd)/build/timeline" "$(pwd)/build/tokenize"
timeline=$top/build/timeline
cp "$top"/scripts/rates/*.txt .

tiny="--data text.txt --layers 2 --heads 2 --channels 32 --context 16 --vocab 300 --batch 2"
tiny="$tiny --lr 3e-3 --eval-every 0 --"
fine="--subgroup 4096"
train() { trained=$1; shift; go "$trained" "$tide" $tiny "$@"; }

# --- offloaded or not: the same numbers -----------------------------------------------------------

steps="--steps 4 --save-every 2 --"
train none $steps --offload none
train zero $steps --offload zero --trace trace.json
without_measuring  # that the host reads no GPU memory was seen
train share_auto $steps --offload interleave --rates rates.txt $fine --trace shares.json
train weights $steps --offload zero --weights host
train accum_none $steps --accum 3 --offload none
arrive
for run in zero share_auto weights; do same ${run}_gives_the_bits_of_none $run none; done
for run in none zero share_auto weights; do as_planned gpu_memory_of_${run}_is_as_planned $run.out; done

# Of 33 MiB or so, those that keep activations leave no room for all of the state.
"$tide" $tiny --plan --rates rates.txt --gpu-memory 1M --offload twinflow --resident 0.3 \
    --recompute none >least.out 2>least.err
least=$(sed -n 's/.* needs \([0-9.]*\) MiB of GPU memory.*/\1/p' least.err)
least=$(awk "BEGIN { print int(1024 * $least) + 10 }")K
"$tide" $tiny $steps --gpu-memory $least --rates rates.txt --out auto >auto.out
same auto_has_the_bits_of_none auto none
check auto_offloads_where_it_must grep -q '^offload auto: .*predicted' auto.out

# most_of RUN OPTION...: the most memory that the process had, in MiB, without what its emulated GPU had
most_of() {
    run=$1
    shift
    "$tide" --data text.txt --layers 4 --channels 384 --context 8 --batch 1 --steps 1 --no-save --out "$run" \
        --eval-every 0 --offload "$@" >"$run.out" 2>&1 &
    while now=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB$/\1/p' /proc/$!/status 2>/dev/null) && [ -n "$now" ]; do
        most=$now
        sleep 0.01
    done
    sed -n "s/^GPU memory: \([0-9.]*\) MiB taken.*/$most \1/p" "$run.out" | awk '{ print $1 / 1024 - $2 }'
}
if whole && [ -n "$emulated" ]; then
    program=$(most_of host_none none)
    for mode in zero "interleave --share 0.5"; do
        name=host_${mode%% *} taken=$(most_of "host_${mode%% *}" $mode)
        check ${name}_takes_what_is_planned awk "BEGIN { d = $taken - $program - $(planned host "$name.out")
            exit d < -3 || d > 13 }"  # of 80 MiB or more; Linux may round five buffers up to 2 MiB each
    done
fi

# --- fp16: loss scaling --------------------------------------------------------------------------

if whole; then
    # One token's gradient times 65536 is too large for fp16, so the first steps overflow and update
    # nothing. All steps read the same token. Stopped between skipped steps, and resumed elsewhere.
    head -c 999 /dev/zero | tr '\0' a >same.txt
    one="--precision fp16 --data same.txt --batch 1 --seq 1 --save-every 2 --schedule constant --keep 9 --"
    train f16_none $one --offload none --steps 6
    train f16_part $one --offload zero --steps 2
    arrive
    go f16_part "$tide" --offload interleave --stride 2 $fine --steps 6 --resume
    arrive
    same fp16_resumes_with_its_scale f16_part f16_none
    scales() { sed -n 's/.*"step":\([0-9]*\),"\(skipped\|loss\)".*"loss_scale":\([0-9]*\).*/\1 \2 \3/p' $1/log.jsonl; }
    scales f16_none >scales.txt
    check fp16_skips_what_overflows grep -q '^1 skipped 65536$' scales.txt
    check fp16_halves_the_scale grep -q '^2 [a-z]* 32768$' scales.txt
    check fp16_goes_on grep -q '^6 loss' scales.txt
    # a dump takes a smaller scale where the gradients overflow at the first
    for precision in fp16 fp32; do
        "$tide" $tiny --data same.txt --batch 1 --seq 1 --precision $precision --dump f16_$precision >dump.out 2>&1
    done
    check fp16_dumps_finite_gradients "$top/build/compare" f16_fp16 f16_fp32 --rtol 0.02
    refuses fp16_that_overflows_anyway 1 'activations overflow fp16, so take --precision bf16' "$tide" $tiny $one --steps 40 --lr 1000 \
        --clip 0 --out f16_diverged
fi

# --- the timeline --------------------------------------------------------------------------------

check trace_is_json "$timeline" trace.json -o trace.svg
check trace_has_all sh -c 'for n in forward backward leave update back; do
    grep -q "\"name\":\"$n\"" trace.json || exit 1; done; for s in 1 2 3; do grep -q "\"step\":$s[,}]" trace.json || exit 1; done'
check trace_has_memory sh -c 'grep -q "\"ph\":\"C\".*\"weights\":" trace.json &&
    for n in forward backward; do grep -q "\"name\":\"$n\".*\"number\":1,\"bytes\":" trace.json || exit 1; done'
(trap '' XFSZ; ulimit -f 100; exec "$tide" $tiny --steps 40 --no-save --offload zero \
    --trace full.json --out full_trace) >full.out 2>full.err
check disk_full_costs_the_trace_and_not_the_run test $? -eq 1 -a -s full_trace/loss.svg
check disk_full_while_tracing_is_said sh -c 'grep -q "cannot write full.json: .*ends before step" full.err &&
    [ "$(tail -n 1 full.err)" = "tide: --trace lacks the last steps" ]'
check and_leaves_whole_steps "$timeline" full.json -o full.svg
check gradients_end_in_a_trace gradients_end shares.json

# --- plans ---------------------------------------------------------------------------------------

# plan OPTION...: without a GPU, for the machine of a file
plan() { EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan --out planned "$@"; }
for run in "zero $steps --offload zero" "weights $steps --offload zero --weights host" "accum_none --accum 3 --offload none"; do
    plan $tiny ${run#* } >plan.out 2>&1
    plan_says plan_says_what_${run%% *}_says plan.out "${run%% *}.out"
done
large="--model gpt2-large --batch 1 --rates rates.txt --host-memory 64G --"
# How long the run takes; what would be faster with as many tokens to a step, as its own plan says (within 1 %).
plan $large --gpu-memory 24G --accum 8 --steps 500 >plan.out
check a_plan_has_the_minutes true_that "(($(sed -n 's/^  500 steps, 4.096 M tokens: \(.*\) m \(.*\) s, .*/\1 * 60 + \2/p' plan.out)) / 500 / $(sed -n 's/^  step \([0-9.]*\),.*/\1/p' plan.out) - 1) ^ 2 < 1e-4"
plan $large --gpu-memory 24G $(sed -n 's/^faster.*: \(--batch 8 --accum 1\), .*/\1/p' plan.out) >other.out
check a_plan_ends_with_what_is_faster true_that "($(sed -n '$s/^faster.*, \([0-9]*\) tokens.s$/\1/p' plan.out) / $(sed -n 's/^  step .*: \([0-9]*\) tokens.*/\1/p' other.out) - 1) ^ 2 < 1e-4"
plan $large --gpu-memory 8G --weights gpu --trace plan.json >plan.out
check trace_of_a_plan_is_json "$timeline" plan.json -o plan.svg
check trace_of_a_plan_has_the_update sh -c 'for n in fetch update flush back leave forward; do
    grep -q "\"name\":\"$n\"" plan.json || exit 1; done'
plan --model 7b --offload none --gpu-memory 400G --rates rates.txt --trace pieces.json >plan.out
check gradients_end_in_a_plan gradients_end pieces.json
plan --dump planned.safetensors >/dev/null
check plans_leave_nothing test ! -e planned -a ! -e planned.safetensors

# --- another placement on --resume ---------------------------------------------------------------

# --resume takes the placement of the checkpoint, or another one, and checks both together.
stay="--warmup 0 --schedule constant --"
train whole $stay --steps 6 --offload none
"$tide" $tiny $stay --steps 2 --offload interleave --stride 2 $fine --out moved >moved.out
"$tide" --resume --out moved --steps 4 >moved.out 2>moved.err
check resume_keeps_the_placement grep -q '^offload interleave: .*visiting' moved.out
"$tide" --resume --out moved --steps 5 --offload zero --weights host >moved.out 2>moved.err
"$tide" --resume --out moved --steps 6 --offload none --weights gpu >moved.out 2>moved.err
arrive
same resumed_everywhere_it_has_the_bits_of_none moved whole

# --- a machine that exists, shrunk ---------------------------------------------------------------

# 20B on a card of 24 GB with 256 GiB: both memories divided by what divides the weights, 41.11 GiB of 20B
# (the workspace is the same); moments in bf16, as there.
model="--layers 24 --channels 64 --batch 1 --moments bf16"
"$tide" $tiny $model --plan --rates rates.txt --gpu-memory 1G --offload none >plan.out
weights=$(awk '$1 == "GPU" && $2 == "parameters" { print 1024 * $3 }' plan.out)  # KiB
shrunk() { awk "BEGIN { print int($1 * $weights / 41.11 + $2) \"K\" }"; }
there="--rates rtx4090_desktop.txt --gpu-memory $(shrunk 23 32768) --host-memory $(shrunk 243 0)"
train shrunk $model $steps $there
arrive
as_planned the_shrunk_card_takes_what_is_planned shrunk.out
check the_shrunk_card_has_weights_on_the_host grep -q 'weights.*host' shrunk.out
