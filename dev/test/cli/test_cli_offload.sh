#!/bin/sh
# Offloading as a user meets it: what `auto` chooses, plans and what is then taken, traces, fp16, runs that go
# on elsewhere. The bits and bytes of all placements: test_placement.cu; words and refusals: lines.table. With models of a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_cli_offload.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/timeline; TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: also as deep as
#        120 G, and fp16)
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
train none $steps --offload none --trace none.json
train zero $steps --offload zero --trace trace.json
without_measuring  # that the host reads no GPU memory was seen
train share_auto $steps --offload interleave --rates rates.txt $fine
train weights $steps --offload zero --weights host
train accum_none $steps --accum 3 --offload none
train half_none $steps --offload none --moments bf16
arrive
for run in zero share_auto weights; do same ${run}_gives_the_bits_of_none $run none; done
check moments_in_bf16_are_used differ half_none none
check without_a_trace_none_has_no_counters sh -c '! grep -q offload accum_none/log.jsonl'
check bound_is_logged_where_rates_are_known true_that "$(field share_auto 4 bound_ms) > 0"
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

# --- as deep as a model of 120 G: all of it on the host -------------------------------------------------

if whole; then
    deep="--layers 100 --channels 16 --heads 1 --steps 3 --clip 0"
    train deep_none $deep --offload none --no-overlap
    train deep $deep --offload zero --weights host --activations host
    arrive
    same deep_has_the_bits_of_none deep deep_none
    as_planned gpu_memory_of_deep deep.out
    # weights or gradients of 4096 elements a layer and 6656 of the ends; inputs of 32 tokens, of all but the last
    bytes=$((2 * (4096 * 100 + 6656) + 2 * 32 * 16 * 99))
    is deep_copies_to_the_gpu deep 3 h2d_bytes $bytes
    is deep_copies_to_the_host deep 3 d2h_bytes $bytes
fi

# --- fp16: loss scaling --------------------------------------------------------------------------

if whole; then
    # One token's gradient times 65536 is too large for fp16, so the first steps overflow and update
    # nothing. All steps read the same token. Stopped between skipped steps, and resumed elsewhere.
    head -c 999 /dev/zero | tr '\0' a >same.txt
    one="--precision fp16 --data same.txt --batch 1 --seq 1 --save-every 2 --schedule constant --keep 9 --"
    zen="--offload zenflow --zen-overlap off --zen-window 1 --zen-topk 0.3"
    train f16_none $one --offload none --steps 6
    train f16_part $one --offload zero --steps 2
    train f16_whole $one -- --offload none --precision fp32 --steps 5
    arrive
    cp -r f16_part f16_zen
    go f16_part "$tide" --offload interleave --stride 2 $fine --steps 6 --resume
    go f16_zen "$tide" $zen --steps 6 --resume
    arrive
    same fp16_resumes_with_its_scale f16_part f16_none
    check fp16_resumes_in_zenflow same_weights f16_zen f16_none
    scales() { sed -n 's/.*"step":\([0-9]*\),"\(skipped\|loss\)".*"loss_scale":\([0-9]*\).*/\1 \2 \3/p' $1/log.jsonl; }
    scales f16_none >scales.txt
    check fp16_skips_what_overflows grep -q '^1 skipped 65536$' scales.txt
    check fp16_halves_the_scale grep -q '^2 [a-z]* 32768$' scales.txt
    check fp16_goes_on grep -q '^6 loss' scales.txt
    # The updates are those of a run that skips nothing, whose bias corrections count them alone.
    members f16_none loss >a.txt
    members f16_whole loss | head -n $((6 - $(grep -c skipped scales.txt))) | paste a.txt - >both.txt
    check skipped_steps_do_not_count awk '{ d = $1 - $2; n++; if (d * d > 1e-5) exit bad = 1 } END { exit bad || n < 3 }' both.txt
    # a dump takes a smaller scale where the gradients overflow at the first
    for precision in fp16 fp32; do
        "$tide" $tiny --data same.txt --batch 1 --seq 1 --precision $precision --dump f16_$precision >dump.out 2>&1
    done
    check fp16_dumps_finite_gradients "$top/build/compare" f16_fp16 f16_fp32 --rtol 0.02
    refuses fp16_that_overflows_anyway 1 'activations overflow fp16, so take --precision bf16' "$tide" $tiny $one --steps 40 --lr 1000 \
        --clip 0 --out f16_diverged
fi

# --- the timeline, and times by the emulated GPU's virtual clock (doc/emulator.md) -----------------

check trace_is_json "$timeline" trace.json -o trace.svg
check trace_has_all sh -c 'for n in forward backward leave update back; do
    grep -q "\"name\":\"$n\"" trace.json || exit 1; done; for s in 1 2 3; do grep -q "\"step\":$s[,}]" trace.json || exit 1; done'
check trace_has_memory sh -c 'grep -q "\"ph\":\"C\".*\"weights\":" trace.json &&
    for n in forward backward; do grep -q "\"name\":\"$n\".*\"number\":1,\"bytes\":" trace.json || exit 1; done'
check trace_of_none_has_no_host sh -c '! grep -q "\"ph\":\"X\".*\"tid\":5," none.json'
(trap '' XFSZ; ulimit -f 100; exec "$tide" $tiny --steps 40 --no-save --offload zero \
    --trace full.json --out full_trace) >full.out 2>full.err
check disk_full_costs_the_trace_and_not_the_run test $? -eq 0 -a -s full_trace/loss.svg
check disk_full_while_tracing_is_said grep -q 'cannot write full.json: .*ends with step' full.err
if [ -n "$emulated" ]; then  # 1 MB/s, 10 ms a kernel
    EMU_SCHED='' EMU_CLOCK=virtual EMU_LINK=1000000 EMU_KERNEL_US=10000 EMU_HOST_US=10000 "$tide" $tiny --steps 5 \
        --offload zero --no-save --out time_zero >time.out
    update=$(field time_zero 5 update_ms)
    check update_takes_what_the_link_does true_that "0$update > 79.3 && 0$update < 130"
    check update_hides_under_forward true_that "$(field time_zero 5 exposed_ms) < 0.9 * $update"
fi

# --- plans ---------------------------------------------------------------------------------------

# plan OPTION...: without a GPU, for the machine of a file
plan() { EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan --out planned "$@"; }
refuses the_least_of_opt 2 '^tide: this run needs 67.1[0-9] GiB of host memory and 61.00 GiB are there' \
    plan --model opt-6.7b --batch 1 --seq 512 --rates rates.txt --gpu-memory 23G --host-memory 61G
least=$(sed -n 's/.* needs \([0-9.]*\) GiB of host memory.*/\1/p' refuses.err)  # (a byte less: test_rehearsal.c)
check it_fits plan --model opt-6.7b --batch 1 --seq 512 --rates rates.txt --gpu-memory 23G \
    --host-memory "$(awk "BEGIN { print int(1024 * $least) + 1 }")M"
check its_table_is_of_that_plan grep -q '^host total  *67.1[0-9] of 61.00 GiB$' refuses.out
host() {
    plan --model llama3.1-8b --batch 1 --rates rates.txt --gpu-memory 139G --host-memory 200G --offload twinflow \
        --resident "$1" >plan.out
    planned host plan.out
}
check a_ratio_acts true_that "($(host 0.4) / (0.6 * $(host 0)) - 1) ^ 2 < 1e-6"
plan --model gpt2-large --batch 1 --offload twinflow --gpu-memory 6144M --host-memory 6500M >plan.out
check twinflow_keeps_as_much_as_fits true_that "$(planned GPU plan.out) > 0.98 * 6144 && $(planned host plan.out) <= 6505"
slow="--model 7b --batch 1 --seq 2048 --offload zero --rates h200_16cores.txt --gpu-memory 140G --host-memory 400G --"
step_of() { plan $slow "$@" | sed -n 's/^  step \([0-9.]*\),.*/\1/p'; }
check overlap_is_worth_something true_that "1.1 * $(step_of) < $(step_of --no-overlap)"
for run in "zero $steps --offload zero" "weights $steps --offload zero --weights host" "accum_none --accum 3 --offload none"; do
    plan $tiny ${run#* } >plan.out 2>&1
    plan_says plan_says_what_${run%% *}_says plan.out "${run%% *}.out"
done
large="--model gpt2-large --batch 1 --rates rates.txt --host-memory 64G --"
# How long the run takes; what would be faster with as many tokens to a step, as its own plan says (within 1 %).
plan $large --gpu-memory 24G --accum 8 --steps 500 >plan.out
check a_plan_has_the_minutes true_that "($(sed -n 's/^  500 steps, 4.096 M tokens: \(.*\) minutes.*/\1/p' plan.out) * 0.12 / $(sed -n 's/^  step \([0-9.]*\),.*/\1/p' plan.out) - 1) ^ 2 < 1e-4"
plan $large --gpu-memory 24G $(sed -n 's/^faster.*: \(--batch 8 --accum 1\), .*/\1/p' plan.out) >other.out
check a_plan_ends_with_what_is_faster true_that "($(sed -n '$s/^faster.*, \([0-9]*\) tokens.s$/\1/p' plan.out) / $(sed -n 's/^  step .*: \([0-9]*\) tokens.*/\1/p' other.out) - 1) ^ 2 < 1e-4"
plan $large --gpu-memory 8G --weights gpu --trace plan.json >plan.out
check trace_of_a_plan_is_json "$timeline" plan.json -o plan.svg
check trace_of_a_plan_has_the_update sh -c 'for n in fetch update flush back leave forward; do
    grep -q "\"name\":\"$n\"" plan.json || exit 1; done'
plan --dump planned.safetensors >/dev/null
check plans_leave_nothing test ! -e planned -a ! -e planned.safetensors

# --- another placement on --resume ---------------------------------------------------------------

# --resume takes the placement of the checkpoint, or another one, and checks both together.
stay="--warmup 0 --schedule constant --"
train whole $stay --steps 6 --offload none
"$tide" $tiny $stay --steps 2 --offload interleave --stride 2 $fine --out moved >moved.out
"$tide" --resume --out moved --steps 3 >moved.out 2>moved.err
check resume_keeps_the_placement grep -q '^offload interleave: .*visiting' moved.out
refuses resume_share_without_interleave 2 'interleave' "$tide" --resume --out moved \
    --offload zero --share 0.5
"$tide" --resume --out moved --steps 4 --share 1 >moved.out 2>moved.err
check resume_share_replaces_the_stride sh -c '! grep -q "updated by the CPU" moved.out'
"$tide" --resume --out moved --steps 5 --offload zero --weights host >moved.out 2>moved.err
"$tide" --resume --out moved --steps 6 --offload none --weights gpu >moved.out 2>moved.err
arrive
same resumed_everywhere_it_has_the_bits_of_none moved whole
"$tide" --resume --out half_none --steps 5 --moments fp32 >half.out 2>half.err
check moments_are_wide_from_here_on grep -q "saved in bf16, are fp32 from here on" half.out
"$cpu" --resume --out half_none --steps 6 --moments bf16 >half.out 2>half.err
check moments_are_rounded_from_here_on grep -q "saved in fp32, are rounded to bf16" half.out
"$cpu" --resume --out zero --steps 5 >zero.out 2>&1
"$tide" --resume --out zero --steps 6 >zero.out 2>&1
check cpu_takes_over_and_gives_back test $? -eq 0
check it_is_still_zero grep -q '^offload zero: .* updated by the CPU$' zero.out

# --- a machine that exists, shrunk ---------------------------------------------------------------

# 20B on a card of 24 GB with 256 GiB: both memories divided by what divides the weights, 41.11 GiB of 20B
# (the workspace is the same); moments in bf16, as there.
model="--layers 24 --channels 64 --batch 1 --moments bf16"
"$tide" $tiny $model --plan --rates rates.txt --gpu-memory 1G --offload none >plan.out
weights=$(awk '$1 == "GPU" && $2 == "parameters" { print 1024 * $3 }' plan.out)  # KiB
shrunk() { awk "BEGIN { print int($1 * $weights / 41.11 + $2) \"K\" }"; }
there="--rates rtx4090_desktop.txt --gpu-memory $(shrunk 23 32768) --host-memory $(shrunk 243 0)"
train shrunk_none $model $steps --offload none
train shrunk $model $steps $there
arrive
at again shrunk 2 "$tide" $there
same the_shrunk_card_has_the_bits_of_none shrunk shrunk_none
same the_shrunk_card_goes_on again shrunk_none
as_planned the_shrunk_card_takes_what_is_planned shrunk.out
check the_shrunk_card_has_weights_on_the_host grep -q 'weights.*host' shrunk.out
