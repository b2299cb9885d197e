#!/bin/sh
# Offloading as a user meets it: every placement gives the same numbers and files, plans are what is
# then taken, checkpoints survive whatever happens, and mistakes are one line.
# With models of a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_cli_offload.sh      (from the top of the repository, after make,
#        make train_gpt2emu build/timeline; TIDE_GPU=./train_gpt2cu for a real GPU; ALL=1: with more
#        placements, models and kills)
set -u
absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
tide=$(absolute "${TIDE_GPU:-train_gpt2emu}")
cpu=$(absolute "${TIDE_CPU:-train_gpt2}")
compare=$(absolute "${COMPARE:-build/compare}")
timeline=$(absolute "${TIMELINE:-build/timeline}")
tokenize=$(absolute "${TOKENIZE:-build/tokenize}")
for program in "$tide" "$cpu" "$compare" "$timeline" "$tokenize"; do
    [ -x "$program" ] || { echo "skip cli_offload: $program is missing"; exit 0; }
done
cores=$(nproc 2>/dev/null || echo 2)  # (before the next line: nproc minds it)
export OMP_NUM_THREADS=1 EMU_THREADS=1
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
. dev/test/cli.sh
cat LICENSE LICENSE LICENSE >"$work/text.txt"
cp scripts/rates/*.txt "$work"
cd "$work" || exit 1
desktop=rtx4090_desktop.txt

# 39680 elements with the gaps between tensors: 12800 of embeddings, 13312 of each layer, and 256.
P=39680
tiny="--data text.txt --layers 2 --heads 2 --channels 32 --context 16 --vocab 300 --batch 2"
tiny="$tiny --lr 3e-3 --eval-every 0 --"
fine="--subgroup 4096"

# go NAME OPTION...: a run in the background, as many at a time as there are cores
going=0
go() {
    name=$1
    shift
    case " $* " in *" --resume "*) ;; *) rm -rf "$name" ;; esac
    "$tide" $tiny "$@" --out "$name" >"$name.out" 2>"$name.err" &
    going=$((going + 1))
    [ $((going % cores)) -ne 0 ] || wait
}

# What the newest step in a run's log says; RUN MEMBER. And all losses and norms, with all digits.
field() { grep '"loss"' "$1/log.jsonl" | tail -n 1 | sed -n "s/.*\"$2\":\([-0-9.e+]*\).*/\1/p"; }
losses() { sed -n 's/\("norm":[^,]*\|"grad_norm":[^,]*\|"val_loss":[^}]*\).*/\1/p' "$1/log.jsonl"; }
# same NAME RUN REFERENCE: losses, weights and, of every checkpoint in both, parameters and moments
same() {
    losses "$2" >a.txt
    losses "$3" >b.txt
    why=
    cmp -s a.txt b.txt && [ -s a.txt ] || why="losses: $(diff a.txt b.txt | tr '\n' ' ')"
    cmp -s "$2/model.safetensors" "$3/model.safetensors" || why="$why weights"
    states=0
    for s in $(cd "$3" 2>/dev/null && ls checkpoints 2>/dev/null); do
        [ -d "$2/checkpoints/$s" ] || continue
        states=$((states + 1))
        cmp -s "$2/checkpoints/$s/state.safetensors" "$3/checkpoints/$s/state.safetensors" ||
            why="$why $s"
    done
    [ $states -gt 0 ] || why="$why no state"
    if [ -z "$why" ]; then echo "ok $1"; else fail "$1" "differs: $why $(cat "$2.err" 2>&1)"; fi
}
# is NAME RUN MEMBER NUMBER
is() {
    got=$(field "$2" "$3")
    if [ "$got" = "$4" ]; then echo "ok $1"; else fail "$1" "$3 is $got, not $4"; fi
}
true_that() { awk "BEGIN { exit !($1) }"; }

# --- every placement gives the same numbers, and its counters say that it ran --------------------

steps="--steps 4 --save-every 2 --"
between="$steps --eval-every 2 --eval-batches 2 --sample-every 1 --sample-tokens 3 --"
go none $steps --offload none --trace none.json
go zero $steps --offload zero
go twinflow $steps --offload twinflow --resident 0.3
without_measuring  # that the host reads no GPU memory was seen
go share $steps --offload interleave --share 0.5 $fine
go ring $steps --offload interleave --share 1 --slots 1 $fine
go two_slots $steps --offload interleave --share 1 --slots 2 $fine
go stride $steps --offload interleave --stride 2 $fine
go resident $steps --offload interleave --share 0.5 --resident 0.4 $fine
go stride_auto $steps --offload interleave --stride auto --rates paper_v100.txt $fine
go share_auto $steps --offload interleave --rates $desktop $fine
go wire $steps --offload zero --grad-wire fp32
go no_overlap $steps --offload zero --no-overlap
go threads $steps --offload zero --threads $((cores + 1))
go one_thread $steps --offload interleave --share 0.3 --threads 1 $fine
go block $steps --offload twinflow --resident 0.5 --recompute block
go between_none $between --offload none
go between_zero $between --offload zero
go accum_none $steps --accum 3 --offload none
go accum_zero $steps --accum 3 --offload zero
go accum_share $steps --accum 3 --offload interleave --share 0.5 --grad-wire fp32
go fp32_none $steps --precision fp32 --offload none
go fp32_zero $steps --precision fp32 --offload zero
go weights $steps --offload zero --weights host
go weights_share $steps --offload interleave --share 0.5 --weights host $fine
go weights_accum $steps --accum 3 --offload interleave --share 0.5 --weights host --slots 1
go weights_between $between --offload zero --weights host --no-overlap
go weights_fp32 $steps --precision fp32 --offload interleave --share 0.5 --weights host
go half_none $steps --offload none --moments bf16
go half_zero $steps --offload zero --moments bf16
go half_share $steps --offload interleave --share 1 --moments bf16 $fine
as_none="zero twinflow share ring two_slots stride resident stride_auto share_auto wire"
as_none="$as_none no_overlap threads one_thread block weights weights_share"
if whole; then
    go wire_share $steps --offload interleave --share 0.5 --grad-wire fp32
    go between_share $between --offload interleave --share 0.5
    as_none="$as_none wire_share"
fi
wait
for run in $as_none; do same ${run}_gives_the_bits_of_none $run none; done
check evaluations_between_keep_the_bits cmp between_none/model.safetensors none/model.safetensors
if whole; then same share_with_evaluations_between between_share between_none; fi
same zero_with_evaluations_between between_zero between_none
same weights_with_several_micro_batches weights_accum accum_none
same zero_in_fp32 fp32_zero fp32_none
for run in zero share; do same ${run}_with_moments_in_bf16 half_$run half_none; done
check moments_in_bf16_are_used sh -c '! cmp -s half_none/model.safetensors none/model.safetensors'
same weights_with_evaluations_between weights_between between_none
same weights_in_fp32 weights_fp32 fp32_none
for run in zero share; do same ${run}_with_several_micro_batches accum_$run accum_none; done
check accumulation_and_precision_are_used sh -c '! cmp -s none/model.safetensors \
    accum_none/model.safetensors && ! cmp -s none/model.safetensors fp32_none/model.safetensors'

is none_moves_nothing none h2d_bytes 0
check without_a_trace_none_has_no_counters sh -c '! grep -q offload between_none/log.jsonl'
for run in zero wire accum_zero fp32_zero; do
    is ${run}_is_updated_by_the_cpu $run cpu_params $P
    is ${run}_and_not_by_the_gpu $run gpu_params 0
done
is zero_brings_weights_back_in_bf16 zero h2d_bytes $((2 * P))
is zero_sends_gradients_in_bf16 zero d2h_bytes $((2 * P))
is wire_brings_weights_back_in_bf16 wire h2d_bytes $((2 * P))
is wire_sends_gradients_in_fp32 wire d2h_bytes $((4 * P))
is sums_leave_in_fp32 accum_zero d2h_bytes $((4 * P))
is fp32_brings_weights_back_in_fp32 fp32_zero h2d_bytes $((4 * P))
is fp32_sends_gradients_in_fp32 fp32_zero d2h_bytes $((4 * P))
is share_1_brings_all_state ring h2d_bytes $((10 * P))
is with_moments_in_bf16_that_is_less half_share h2d_bytes $((6 * P))
is share_1_sends_all_state_and_no_gradient ring d2h_bytes $((10 * P))
is share_1_leaves_nothing_to_the_cpu ring cpu_params 0
for run in share stride resident stride_auto share_auto twinflow one_thread; do
    c=$(field $run cpu_params) g=$(field $run gpu_params) r=0
    [ $run = twinflow ] && r=$g
    if [ $run = resident ]; then  # a share of what is not resident
        r=$(sed -n 's/.* \([0-9.e-]*\) M resident.*/\1/p' resident.out | awk '{ print 1e6 * $1 }')
        check share_is_of_what_is_not_resident true_that \
            "$r > 0.37 * $P && $r < 0.46 * $P && $c > 0.4 * ($P - $r) && $c < 0.7 * ($P - $r)"
    fi
    check ${run}_leaves_nothing_out test $((c + g)) -eq $P -a "$c" -gt 0 -a "$g" -gt 0
    check ${run}_moves_what_it_must true_that "$(field $run h2d_bytes) == \
        10 * ($g - $r) + 2 * $c && $(field $run d2h_bytes) == 10 * ($g - $r) + 2 * $c"
done
check share_is_a_half true_that "$(field share cpu_params) > 0.4 * $P && \
    $(field share cpu_params) < 0.6 * $P"
check three_tenths_are_less true_that "$(field one_thread gpu_params) < 0.4 * $P && \
    $(field one_thread gpu_params) > 0.2 * $P"
check resident_is_a_share true_that "$(field twinflow gpu_params) > 0.25 * $P && \
    $(field twinflow gpu_params) < 0.35 * $P"
# Eq. 1 with the rates of its section 5.4: (3/3 + 1/35) / (1/2 + 1/8.7 - 1/6) = 2.3.
check stride_auto_is_stride_2 test "$(field stride_auto cpu_params)" = "$(field stride cpu_params)"
check slots_are_as_told sh -c 'grep -q "have 1 slot$" ring.out && grep -q "have 2 slots" two_slots.out'
check threads_are_as_told grep -q "^host: $((cores + 1)) threads" threads.out
check one_thread_is_as_told grep -q '^host: 1 thread$' one_thread.out
check recomputes_as_told grep -q '^recomputing' block.out
check bound_is_logged_where_rates_are_known true_that "$(field share_auto bound_ms) > 0"
check none_says_so grep -q '^offload none: ' none.out
check none_has_no_host sh -c '! grep -q "^host" none.out'
for f in config.json loss.svg vocab.json merges.txt; do check zero_leaves_$f test -s zero/$f; done

# The least GPU memory, in KiB, that a plan takes; OPTION...
least() {
    low=30000 high=40000
    while [ $((high - low)) -gt 1 ]; do
        middle=$(((low + high) / 2))
        if EMU_DEVICES=0 "$tide" $tiny --plan --rates $desktop --gpu-memory ${middle}K -- "$@" \
            >least.out 2>/dev/null; then high=$middle; else low=$middle; fi
    done
    echo $high
}

# In the least memory gradients of visitors wait on the host, and sums are made there; or, where
# activations are kept, in their place.
tight="--offload interleave --share 0.5 --slots 2 --recompute block $fine --"
over="--offload interleave --share 0.5 --slots 2 --recompute none $fine --"
go over $steps $over --gpu-memory "$(least $over)K"
go tight $steps $tight --gpu-memory "$(least $tight)K"
go tight_sums $steps --accum 3 $tight --gpu-memory "$(least --accum 3 $tight)K"
wait
same tight_memory_keeps_the_bits tight none
same gradients_over_activations_keep_the_bits over none
same tight_memory_keeps_the_bits_of_sums tight_sums accum_none
c=$(field tight cpu_params) g=$(field tight gpu_params)
check gradients_over_activations_are_said grep -q 'update where activations were' over.out
is gradients_over_activations_stay over d2h_bytes $((10 * g + 2 * c))
is gradients_of_visitors_leave tight d2h_bytes $((10 * g + 2 * P))
is gradients_of_visitors_return tight h2d_bytes $((12 * g + 2 * c))
is sums_on_the_host_take_each_gradient tight_sums d2h_bytes $((10 * g + 6 * P))
is sums_on_the_host_return tight_sums h2d_bytes $((14 * g + 2 * c))
check sums_on_the_host_are_said grep -q 'summed on the host' tight_sums.out
check sums_on_the_gpu_are_said grep -q 'summed on the GPU' accum_share.out

# --- fp16: loss scaling --------------------------------------------------------------------------

# One token's gradient times 65536 is too large for fp16, so the first steps overflow and update
# nothing. All steps read the same token.
head -c 999 /dev/zero | tr '\0' a >same.txt
one="--precision fp16 --data same.txt --batch 1 --seq 1 --save-every 2 --schedule constant --keep 9 --"
without_measuring
go f16_none $one --offload none --steps 6
go f16_zero $one --offload zero --steps 6
go f16_inter $one --offload interleave --stride 2 $fine --slots 2 --steps 6
go f16_host $one --offload zero --weights host --steps 6
go f16_wide $one --offload zero --grad-wire fp32 --steps 6
go f16_zen $one --offload zenflow --zen-overlap off --zen-window 1 --zen-topk 0.3 --steps 6
go f16_first $one --offload none --steps 1
go f16_whole $one -- --offload none --precision fp32 --steps 5
wait
"$tide" $tiny $one --steps 0 --out f16_start >f16_start.out 2>&1
for run in zero inter host wide; do same "fp16_is_the_same_on_$run" f16_$run f16_none; done
check fp16_is_the_same_in_zenflow cmp f16_zen/model.safetensors f16_none/model.safetensors
scales() { sed -n 's/.*"step":\([0-9]*\),"\(skipped\|loss\)".*"loss_scale":\([0-9]*\).*/\1 \2 \3/p' $1/log.jsonl; }
scales f16_none >scales.txt
check fp16_skips_what_overflows grep -q '^1 skipped 65536$' scales.txt
check fp16_halves_the_scale grep -q '^2 [a-z]* 32768$' scales.txt
check fp16_goes_on grep -q '^6 loss' scales.txt
check a_skipped_step_leaves_the_weights cmp f16_first/model.safetensors f16_start/model.safetensors
# The updates are those of a run that skips nothing, whose bias corrections count them alone.
skipped=$(grep -c skipped scales.txt)
check skipped_steps_do_not_count sh -c 'losses() { sed -n "s/.*\"loss\":\([0-9.]*\).*/\1/p" "$1/log.jsonl"; }
    losses f16_none >a.txt; losses f16_whole | head -n $((6 - $0)) | paste a.txt - |
    awk "{ d = \$1 - \$2; n++; if (d * d > 1e-5) exit 1 } END { exit n < 3 }"' "$skipped"
# Stopped between skipped steps, and resumed elsewhere: the scale is in the checkpoint.
go f16_part $one --offload zero --steps 2
go f16_to_zen $one --offload zero --steps 2
wait
go f16_part $one --offload interleave --stride 2 $fine --steps 6 --resume
go f16_to_zen $one --offload zenflow --zen-overlap off --zen-window 1 --zen-topk 0.3 --steps 6 --resume
wait
same fp16_resumes_with_its_scale f16_part f16_none
check fp16_resumes_in_zenflow cmp f16_to_zen/model.safetensors f16_none/model.safetensors
# a dump takes a smaller scale where the gradients overflow at the first
for precision in fp16 fp32; do
    "$tide" $tiny --data same.txt --batch 1 --seq 1 --precision $precision --dump f16_$precision >dump.out 2>&1
done
check fp16_dumps_finite_gradients "$compare" f16_fp16 f16_fp32 --rtol 0.02
check each_step_has_its_line sh -c 'grep -c "\"step\"" f16_part/log.jsonl | grep -qx 6'
refuses fp16_that_overflows_anyway 1 'activations overflow fp16, so take --precision bf16' "$tide" $tiny $one --steps 40 --lr 1000 \
    --clip 0 --out f16_diverged

# --- time, by the emulated GPU's virtual clock (doc/emulator.md): 1 MB/s, 10 ms a kernel ---------

emulated=
if grep -q '^device: Emulated' none.out; then emulated=yes; fi
if [ -z "$emulated" ]; then
    echo "skip cli_offload_times: for the emulated GPU's virtual clock"
else
    unset EMU_SCHED
    export EMU_CLOCK=virtual EMU_LINK=1000000 EMU_KERNEL_US=10000 EMU_HOST_US=10000
    go time_zero --steps 5 --offload zero
    go time_apart --steps 5 --offload zero --no-overlap
    go time_ring --steps 5 --offload interleave --share 1 --slots 3 $fine
    go time_one_slot --steps 5 --offload interleave --share 1 --slots 1 $fine
    go time_share --steps 5 --offload interleave --share 0.5 $fine
    for mode in zenflow interleave; do
        go time_$mode --steps 5 --offload $mode --rates $desktop --no-save
        go time_evaluated_$mode --steps 5 --offload $mode --rates $desktop --no-save --eval-every 1 \
            --sample-every 1 --sample-tokens 3
    done
    wait
    unset EMU_CLOCK EMU_LINK EMU_KERNEL_US EMU_HOST_US
    without_measuring
    for run in zero apart ring one_slot share; do
        check ${run}_has_forward_and_backward true_that "$(field time_$run forward_ms) > 50 && \
            $(field time_$run backward_ms) > $(field time_$run forward_ms)"
    done
    # 2 P bytes at 1 MB/s, and four pieces of 10 ms on the CPU of which the first is seen
    check update_takes_what_the_link_does true_that "$(field time_zero update_ms) > 79.3 && \
        $(field time_zero update_ms) < 130"
    check update_hides_under_forward true_that \
        "$(field time_zero exposed_ms) < 0.9 * $(field time_zero update_ms)"
    check no_overlap_exposes_update_and_gradients true_that \
        "$(field time_apart exposed_ms) >= 0.999 * $(field time_apart update_ms) + 50"
    check zero_has_nothing_in_both_directions true_that "$(field time_zero duplex_ms) < 1"
    check three_slots_use_both_directions true_that \
        "$(field time_ring duplex_ms) > 0.3 * $(field time_ring update_ms)"
    check one_slot_does_not true_that "$(field time_one_slot duplex_ms) < 5"
    check three_slots_are_faster true_that \
        "$(field time_ring update_ms) < 0.8 * $(field time_one_slot update_ms)"
    for mode in zenflow interleave; do
        check the_update_of_${mode}_has_no_evaluation_in_it true_that \
            "$(field time_evaluated_$mode update_ms) == $(field time_$mode update_ms)"
        check what_${mode}_waits_for_has_none_either true_that \
            "$(field time_evaluated_$mode exposed_ms) <= $(field time_$mode exposed_ms)"
    done
    check half_a_share_is_faster true_that \
        "$(field time_share update_ms) < 0.8 * $(field time_ring update_ms)"
fi

# --- the timeline --------------------------------------------------------------------------------

go trace --steps 3 --offload interleave --share 0.5 --resident 0.3 --trace trace.json
refuses trace_nowhere 2 'nowhere' "$tide" $tiny --steps 2 --trace nowhere/t.json --out no_trace
check a_refused_trace_leaves_nothing test ! -e no_trace
wait
check trace_is_json "$timeline" trace.json -o trace.svg
check trace_of_none_is_json "$timeline" none.json -o none.svg
rows=0
for row in 0 1 2 3 4 5 6; do
    grep -q "\"ph\":\"X\".*\"tid\":$row," trace.json && rows=$((rows + 1))
done
check trace_has_spans_of_all_streams test $rows -eq 7
for name in forward backward leave fetch update flush back; do
    check trace_has_$name grep -q "\"name\":\"$name\"" trace.json
done
check trace_has_all_steps sh -c 'for s in 1 2 3; do grep -q "\"step\":$s[,}]" trace.json || exit 1
    done'
check trace_has_memory grep -q '"ph":"C".*"resident state":' trace.json
check trace_of_none_has_no_host sh -c '! grep -q "\"ph\":\"X\".*\"tid\":5," none.json'
(trap '' XFSZ; ulimit -f 100; exec "$tide" $tiny --steps 40 --no-save --offload zero \
    --trace full.json --out full_trace) >full.out 2>full.err
check disk_full_costs_the_trace_and_not_the_run test $? -eq 0 -a -s full_trace/loss.svg
check disk_full_while_tracing_is_one_line test "$(wc -l <full.err)" -eq 1
check disk_full_while_tracing_is_said grep -q 'cannot write full.json: .*ends with step' full.err

# --- plans ---------------------------------------------------------------------------------------

# plan OPTION...: without a GPU, for the machine of a file
plan() { EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan --out planned "$@"; }
models="gpt2 gpt2-xl 20b opt-125m opt-13b"
whole && models="nano gpt2 gpt2-medium gpt2-large gpt2-xl 7b 8.3b 10b 13b 20b opt-125m opt-1.3b
    opt-2.7b opt-6.7b opt-13b opt-30b opt-66b opt-175b d48"
for model in $models; do
    why= files='*_*.txt'
    case $model in opt-66b|opt-175b) files=$desktop ;; esac  # these take longer
    whole || [ $model = gpt2 ] || files=$desktop
    for rates in $files; do
        start=$(date +%s%N)
        plan --model $model --batch 1 --rates "$rates" --gpu-memory 400G --host-memory 4000G \
            >plan.out 2>plan.err || why="$why $rates: $(cat plan.err)"
        took=$((($(date +%s%N) - start) / 1000000))
        [ $took -lt 60000 ] || why="$why $rates took $took ms"
        grep -q '^GPU  *total ' plan.out || why="$why $rates: no memory"
        grep -q '^predicted' plan.out || why="$why $rates: no time"
    done
    if [ -z "$why" ]; then echo "ok plan_of_$model"; else fail plan_of_$model "$why"; fi
done
plan --model 20b --batch 1 --offload zero --gpu-memory 99T >plan.out
check parameters_are_plain_numbers grep -q '^offload zero: 22.07 G parameters, 22.07 G up' plan.out
early='^the last [1-9][0-9]* of 34 segments are updated first: their gradients leave first$'
slow="--model 7b --batch 1 --seq 2048 --offload zero --rates h200_16cores.txt --gpu-memory 140G --host-memory 400G --"
plan $slow >plan.out
check updates_begin_with_what_has_arrived grep -q "$early" plan.out
plan $slow --no-overlap >plan.out
check not_without_overlap sh -c '! grep -q "updated first" plan.out && grep -q "^predicted" plan.out'
step_of() { sed -n 's/^  step \([0-9.]*\),.*/\1/p' plan.out; }
neither=$(step_of)
TIDE_NO_OVERLAP=gradients plan $slow >plan.out
only_updates=$(step_of)
TIDE_NO_OVERLAP=updates plan $slow >plan.out
only_gradients=$(step_of)
plan $slow >plan.out
check each_overlap_is_worth_something true_that "$(step_of) < $only_gradients && \
    $only_gradients < $only_updates && $only_updates < $neither"
# What a plan and a run with the same options say about memory, and what was taken.
said() { plan_of "$1"; grep '^offload \|^recomputing\|^gradients \|^weights ' "$1"; }
for run in "zero $steps --offload zero" "share $steps --offload interleave --share 0.5 $fine" \
    "twinflow $steps --offload twinflow --resident 0.3" \
    "fp32_zero --precision fp32 --offload zero" \
    "weights $steps --offload zero --weights host" "accum_none --accum 3 --offload none" \
    "wire --offload zero --grad-wire fp32" \
    "accum_share --accum 3 --offload interleave --share 0.5 --grad-wire fp32"; do
    plan $tiny ${run#* } >plan.out 2>&1
    said plan.out >a.txt
    said "${run%% *}.out" >b.txt
    check plan_says_what_${run%% *}_says sh -c 'test -s a.txt && diff a.txt b.txt'
done
large="--model gpt2-large --batch 1 --rates $desktop --host-memory 64G --"
# chooses NAME MODE GPU_MEMORY [OPTION...]
chooses() {
    name=$1 mode=$2 memory=$3
    shift 3
    plan $large --gpu-memory "$memory" -- "$@" >plan.out 2>&1
    check "auto_chooses_$name" grep -q "^offload $mode[:,]\|^offload auto: $mode" plan.out
    check "its_plan_fits_$name" true_that "$(planned GPU plan.out) <= ${memory%M} + 5 && \
        $(planned GPU plan.out) > 0.9 * ${memory%M}"
}
plan $large --gpu-memory 24G >plan.out
check auto_chooses_none_where_it_fits grep -q '^offload none: ' plan.out
check and_nothing_crosses_the_link_there sh -c '! grep -q "over the link" plan.out'
check and_recomputes_nothing_there sh -c '! grep -q "^host \|recomputing" plan.out'
chooses none_with_recomputation none 12000M --batch 4
chooses twinflow twinflow 10400M --weights gpu
chooses interleave interleave 8000M --weights gpu
chooses interleave_without_recomputation interleave 8000M --recompute none --weights gpu
chooses zero zero 2203M --weights gpu
check auto_says_why grep -q '^offload auto: .*zero.*; none does not fit' plan.out
check all_weights_stay_there sh -c '! grep -q "^weights of" plan.out'
for memory in 2000 1600 1200; do  # the less there is, the more layers' weights come from the host
    plan $large --offload zero --recompute block --gpu-memory ${memory}M >plan.out
    sed -n 's/^weights of \([0-9]*\) of 36 layers.*/\1/p' plan.out >>streamed
done
check ever_more_layers_stream sh -c 'test "$(wc -l <streamed)" = 3 && sort -n -u -C streamed'
chooses streamed_weights twinflow 1000M
check their_weights_come grep -q '^weights of 3[0-9] of 36 layers' plan.out
refuses weights_that_must_stay 2 'GPU memory' plan $large --gpu-memory 1400M --weights gpu
plan $large --gpu-memory 24G --weights host >plan.out
check weights_on_the_host_if_they_are_to_be grep -q '^weights of 36 of 36 layers' plan.out
# Of a dump, gradients wait over activations where there is no room for all of them; it is the same.
wide="--data text.txt --layers 8 --heads 4 --channels 128 --context 64 --vocab 300 --batch 4 --"
"$tide" $wide --dump roomy.safetensors >/dev/null
"$tide" $wide --dump tight.safetensors --gpu-memory 61M >/dev/null
check a_dump_over_activations cmp roomy.safetensors tight.safetensors
refuses weights_without_state_on_the_host 2 '^tide: --weights host.*none' plan $large \
    --weights host --offload none
refuses weights_of_residents 2 '^tide: --weights host.*resident' plan $large --weights host \
    --offload twinflow --resident 1
plan $large --weights host --offload zenflow >plan.out
check weights_on_the_host_with_zenflow grep -q '^weights of 36 of 36 layers' plan.out
for memory in 4000M 3500M; do
    plan $large --offload zenflow --gpu-memory $memory | grep '^weights of' >zenflow_$memory.out
done
check zenflow_keeps_weights_that_fit test ! -s zenflow_4000M.out
check and_streams_others test -s zenflow_3500M.out
refuses weights_with_mezo 2 '^tide: --weights needs --optimizer adamw' plan $large --weights host \
    --optimizer mezo
refuses weights_with_zero_2 2 '^tide: --weights host needs --zero 3' plan $large --weights host \
    --zero 2
plan $large --weights host --world 2 --gpu-memory 24G >plan.out
check weights_on_the_host_of_each_rank grep -q '^weights of 36 of 36 layers' plan.out
refuses moments_in_bf16_would_fit 2 '; it fits with --moments bf16$' \
    plan $large --gpu-memory 6144M --host-memory 3500M
chooses twinflow_with_moments_in_bf16 twinflow 6144M --host-memory 2500M --moments bf16
chooses twinflow_for_little_host_memory twinflow 6144M --host-memory 5300M
check and_that_fits true_that "$(planned host plan.out) <= 5305"
plan --model gpt2-large --batch 1 --offload twinflow --gpu-memory 6144M \
    --host-memory 6500M >plan.out
check twinflow_keeps_as_much_as_fits true_that "$(planned GPU plan.out) > 0.98 * 6144 && \
    $(planned host plan.out) <= 6505"
check without_rates_it_asks_for_them grep -q 'rates FILE' plan.out
# Places and slots: as many as fit, as there are layers or visitors, or as are asked for.
gives() {
    name=$1 line=$2
    shift 2
    plan $large -- --recompute none --offload "$@" >plan.out 2>&1
    check "memory_gives_$name" grep -qx "gradients leave through $line" plan.out
}
gives least_places '2 places' zero --gpu-memory 3550M
gives some_places '17 places' zero --gpu-memory 4G
gives all_places '36 places' zero --gpu-memory 20G
gives zenflow_all_places '36 places' zenflow --gpu-memory 20G
gives many_slots '36 places, visitors have 26 slots' interleave --gpu-memory 20G
gives slots_as_told '36 places, visitors have 5 slots' interleave --gpu-memory 20G --slots 5
check plan_without_steps plan --model nano --steps 0 --rates "$desktop"
check plan_without_steps_or_gradients plan --model nano --steps 0 --rates "$desktop" --optimizer mezo
refuses plan_without_gpu_or_rates 2 'rates FILE' plan --offload interleave
refuses auto_without_gpu_or_rates 2 'rates FILE' plan --gpu-memory 50M
refuses nothing_fits_the_gpu 2 'GPU memory' plan $large --gpu-memory 600M
refuses nothing_fits_the_host 2 'host memory' plan $large --gpu-memory 6G --host-memory 4G
refuses zero_does_not_fit_the_host 2 'host memory' plan $large --offload zero --host-memory 4G
# What a refusal names is the least that would do, and in the unit of the table, which is that plan's.
# named PLACE STEPS: the MiB of a place that it names, in whole ones, less so many steps of its last
# digit
named() {
    grep -o "[0-9.]* [GM]iB of $1 memory" first.err | awk -v steps="$2" '{
        mib = $2 == "GiB" ? 1024 * ($1 - 0.01 * steps) : $1 - 0.1 * steps
        print mib == int(mib) ? mib : int(mib) + 1 }'
}
within() { plan $needy --gpu-memory "$1M" --host-memory "$2M" >plan.out 2>plan.err; }
# least NAME GPU_MIB HOST_MIB OPTION...
least_is() {
    name=$1 gpu=$2 host=$3
    shift 3
    needy=$*
    if within "$gpu" "$host"; then fail "$name" "it fits"; return; fi
    cp plan.err first.err
    more_gpu=$(named GPU 0) more_host=$(named host 0) why=
    [ -n "$more_gpu$more_host" ] || why="nothing is named"
    if grep -q ', and [0-9]' first.err; then
        within "$more_gpu" "$more_host" || why="with both it does not fit"
        ! within "$(named GPU 2)" "$more_host" || why="with less on the GPU it fits"
        ! within "$more_gpu" "$(named host 2)" || why="with less on the host it fits"
    else
        [ -z "$more_host" ] || within "$gpu" "$more_host" || why="with $more_host it does not fit"
        [ -z "$more_host" ] || ! within "$gpu" "$(named host 2)" || why="with less on the host it fits"
        [ -z "$more_gpu" ] || within "$more_gpu" "$host" || why="with $more_gpu it does not fit"
        [ -z "$more_gpu" ] || ! within "$(named GPU 2)" "$host" || why="with less on the GPU it fits"
    fi
    if [ -z "$why" ]; then echo "ok $name"; else fail "$name" "$why: $(cat first.err)"; fi
}
opt="--model opt-6.7b --batch 1 --seq 512 --rates $desktop --"
refuses the_least_of_opt 2 '^tide: this run needs 67.1[0-9] GiB of host memory and 61.00 GiB are there' \
    plan $opt --gpu-memory 23G --host-memory 61G
check its_table_is_of_that_plan grep -q '^host total  *67.1[0-9] of 61.00 GiB$' refuses.out
refuses the_unit_is_the_tables 2 'needs [0-9]*\.[0-9] MiB of GPU memory and 100.0 MiB are there' \
    plan --model gpt2 --batch 1 --seq 64 --gpu-memory 100M --rates "$desktop"
least_is least_auto 23552 62464 $opt
least_is least_host_weights 23552 62464 $opt --weights host
least_is least_interleave 23552 62464 $opt --offload interleave
least_is least_of_both 1024 3072 $opt --offload zero
least_is least_mezo 1024 10240 $opt --optimizer mezo
least_is least_mezo_of_both 1024 2048 $opt --optimizer mezo --resident-blocks 3
least_is least_of_4_ranks 4096 10240 $opt --world 4
least_is least_of_2_ranks_in_stage_1 4096 10240 $opt --world 2 --zero 1
if whole; then
    least_is least_zenflow 3072 3072 --model gpt2-large --rates "$desktop" --offload zenflow
    least_is least_twinflow_sums 23552 62464 $opt --offload twinflow --accum 2
    least_is least_without_recomputation 6144 3072 --model gpt2-large --batch 4 --recompute none \
        --rates "$desktop"
    least_is least_none 1024 3072 --model gpt2-large --offload none --rates "$desktop"
    least_is least_fp32 200 4096 --model gpt2 --precision fp32 --offload twinflow --weights host \
        --rates "$desktop"
    least_is least_of_8_ranks 2048 4096 --model 20b --batch 1 --world 8 --rates "$desktop"
    least_is least_of_8_ranks_in_stage_3 2048 40960 --model 20b --batch 1 --world 8 --zero 3 \
        --rates "$desktop"
fi
# --zero auto: 2 where it fits, else 3.
ranks="--model 20b --world 8 --batch 1 --host-memory 500G --rates $desktop --"
plan $ranks --gpu-memory 23G >plan.out 2>plan.err
check auto_takes_stage_3_where_it_must grep -q '^--zero auto takes ZeRO-3.*ZeRO-2 does not fit$' plan.out
check and_stage_3_fits grep -q '^GPU  *total  *[12][0-9.]* of 23.00 GiB$' plan.out
plan $ranks --gpu-memory 60G >plan.out
check auto_keeps_stage_2_where_it_fits sh -c '! grep -q ZeRO-3 plan.out'
# What else would do is said only if it would, and if this run can have it.
says() { check "$1" grep -q "$2" plan.err; }
not() { check "$1" sh -c "! grep -q -- '$2' plan.err"; }
plan $large --batch 4 --gpu-memory 2400M --weights gpu >plan.out 2>plan.err
says a_smaller_batch_is_named ' with --batch 1'
not no_mezo_where_another_option_does mezo
says other_weights_are_named ' with --weights auto'
plan $large --gpu-memory 600M --offload zero >plan.out 2>plan.err
not no_smaller_batch_than_1 --batch
not nothing_that_does_not_help 'fits with'
plan --model gpt2 --batch 1 --seq 64 --gpu-memory 1M --rates "$desktop" >plan.out 2>plan.err
not nothing_that_does_not_help_any_host 'fits with'
plan --model gpt2 --batch 1 --offload zero --host-memory 100M --rates "$desktop" >plan.out 2>plan.err
not nothing_that_does_not_help_any_gpu 'fits with --seq'
plan $large --gpu-memory 2500M --recompute none >plan.out 2>plan.err
not recompute_is_not_named_where_it_is_auto 'more GPUs'
plan $ranks --gpu-memory 23G --zero 2 >plan.out 2>plan.err
says stage_3_is_named_where_it_helps '; it fits with --zero auto$'
plan $large --gpu-memory 6G --host-memory 6000M --offload twinflow --resident 0.1 >plan.out 2>plan.err
says a_share_that_does_not_fit 'needs .* of host memory'
not no_offload_that_contradicts_resident '--offload auto'
plan $large --gpu-memory 6G --host-memory 6000M --offload zero >plan.out 2>plan.err
says another_offload_is_named ' with --offload auto'
plan $large --offload twinflow --gpu-memory 24G >plan.out
check twinflow_keeps_all_where_it_fits grep -q '^offload twinflow: .* parameters, [^,]* resident$' plan.out
if [ -n "$emulated" ]; then  # sizes as said, on a machine that has less; and rates of no machine
    EMU_CLOCK=real EMU_MEM_MB=1000 "$tide" $tiny --plan --gpu-memory 80G --host-memory 900G >plan.out
    check a_plan_is_for_what_is_said grep -q '^fits: .* of 80.00 GiB on the GPU' plan.out
    check a_plan_takes_what_is_said true_that "$(sed -n 's/^GPU.* of \([0-9]*\).*/\1/p' plan.out) > 80000"
    check rates_of_an_emulated_gpu_mean_nothing grep -q '^rates: .* emulated GPU.*nothing' plan.out
    EMU_CLOCK=real EMU_MEM_MB=1000 "$tide" $tiny --plan >plan.out
    check a_plan_says_what_is_here grep -q '^fits: .* of 7[0-9][0-9]\.[0-9] MiB on the GPU, and' plan.out
fi
# Its last sentence: the totals of the tables, and the disk for checkpoints of 4 bytes a parameter and two moments,
# and for the weights. While a third checkpoint of --keep 2 is written, all three and the weights are there.
fits() {  # NAME BYTES_OF_A_CHECKPOINT BYTES_OF_WEIGHTS OTHER_CHECKPOINTS COPIES_OF_WEIGHTS OPTION...
    name=$1 state=$2 weights=$3 others=$4 copies=$5
    shift 5
    plan $large --gpu-memory 6G --host-memory 20G -- "$@" >plan.out
    p=$(sed -n 's/^model: .*: \([0-9.]*\) M parameters.*/\1 \/ 1000/p' plan.out)
    tail -n 1 plan.out | sed -n 's/^fits: \(.*\) GiB of 6.00 GiB on the GPU, \(.*\) GiB of 20.00 GiB on the host, and \(.*\) GB of disk for the weights and a checkpoint, up to \(.*\) GB with --keep [25]$/\1 \2 \3 \4/p' >fits.txt
    read -r gpu host least most <fits.txt
    check "the_last_sentence_$name" true_that "($gpu * 1024 - $(planned GPU plan.out)) ^ 2 < 200 &&
        ($host * 1024 - $(planned host plan.out)) ^ 2 < 200 && ($least / (($state + $copies * $weights) * $p) - 1) ^ 2 < 1e-5 &&
        ($most / (($state + $copies * $weights + $others * $state) * $p) - 1) ^ 2 < 1e-5"
}
fits has_the_disk 12 4 2 1 --offload zero
fits knows_moments_in_bf16 8 4 2 1 --offload zero --moments bf16
fits knows_the_best 12 4 3 2 --offload zero --keep-best
fits knows_what_is_kept 12 2 5 1 --offload zero --keep 5 --save-dtype bf16
fits knows_zenflow 16 4 2 1 --offload zenflow
plan $large --gpu-memory 24G --no-save --offload none >plan.out
check nothing_is_saved_no_disk grep -q '^fits: [0-9.]* GiB of 24.00 GiB on the GPU$' plan.out
# How long the run takes; what would be faster with as many tokens to a step, as its own plan says (within 1 %).
plan $large --gpu-memory 24G --accum 8 --steps 500 >plan.out
check a_plan_has_the_minutes true_that "($(sed -n 's/^  500 steps, 4.096 M tokens: \(.*\) minutes.*/\1/p' plan.out) * 0.12 / $(sed -n 's/^  step \([0-9.]*\),.*/\1/p' plan.out) - 1) ^ 2 < 1e-4"
plan $large --gpu-memory 24G $(sed -n 's/^faster.*: \(--batch 8 --accum 1\), .*/\1/p' plan.out) >other.out
check a_plan_ends_with_what_is_faster true_that "($(sed -n '$s/^faster.*, \([0-9]*\) tokens.s$/\1/p' plan.out) / $(sed -n 's/^  step .*: \([0-9]*\) tokens.*/\1/p' other.out) - 1) ^ 2 < 1e-4"
check no_length_is_made_up sh -c '! grep "1000 steps" other.out'
check or_with_nothing_if_nothing_is test "$(sed -n '$s/^fits.*/fits/p' other.out)" = fits
plan $large --gpu-memory 2G --host-memory 1G >plan.out 2>plan.err
says what_no_other_option_fits ' are there .*; --optimizer mezo, forward passes alone, fits$'
for own in "--moments bf16" "--offload zero" "--recompute block"; do
    plan $large --gpu-memory 2G --host-memory 1G $own >plan.out 2>plan.err
    says "mezo_does_not_know_${own%% *}" ' are there ([^;]*)$'
done
plan $large --world 2 >plan.out
check without_limits_it_needs grep -q '^needs: [0-9.]* GiB on the GPU per rank, and' plan.out
plan $large --gpu-memory 8G --weights gpu --trace plan.json >plan.out
check trace_of_a_plan_is_json "$timeline" plan.json -o plan.svg
check trace_of_a_plan_has_the_update sh -c 'for n in fetch update flush back leave forward; do
    grep -q "\"name\":\"$n\"" plan.json || exit 1; done'
refuses trace_of_a_plan_nowhere 2 'nowhere' plan $large --trace nowhere/t.json
plan --steps 0 >/dev/null
plan --dump planned.safetensors >/dev/null
check plan_beside_a_run plan $tiny --out zero
check plans_leave_nothing test ! -e planned -a ! -e planned.safetensors

# The same on the GPU: what auto chooses is what runs, and a run that is refused leaves nothing.
cap=$(EMU_DEVICES=0 least --offload twinflow --resident 0.3 --recompute none)
go auto $steps --gpu-memory "${cap}K" --rates $desktop
go auto_none --steps 2 --no-save
refuses little_gpu_memory 2 'GPU memory' "$tide" $tiny --gpu-memory 1M --rates $desktop --out little
refuses little_host_memory 2 'host memory' "$tide" $tiny --channels 256 --gpu-memory 48M --host-memory 1M \
    --rates $desktop --out little
refuses little_for_zero 2 'host memory' "$tide" $tiny --channels 256 --offload zero --host-memory 1M \
    --out little
check a_refused_run_leaves_nothing test ! -e little
# What a machine says of its memory may grow, but what a container may use does not.
mkdir -p small/proc small/sys/fs/cgroup
echo 'MemAvailable: 100 kB' >small/proc/meminfo
TIDE_MACHINE=$PWD/small
export TIDE_MACHINE
refuses memory_is_short 2 'host memory and 0\.1' "$tide" $tiny --offload zero --out little
go said $steps --offload zero --host-memory 10M
wait
echo 100000 >small/sys/fs/cgroup/memory.max
echo 1000 >small/sys/fs/cgroup/memory.current
refuses a_container_is_limited 2 'host memory and 0\.1' "$tide" $tiny --offload zero \
    --host-memory 10M --out little
unset TIDE_MACHINE
wait
same auto_has_the_bits_of_none auto none
same memory_as_said_has_the_same_bits said none
check memory_as_said_is_told grep -q 'memory: 10.0 MiB are more than .* now: taken as said$' said.out
check auto_offloads_where_it_must grep -q '^offload auto: .*predicted' auto.out
check auto_offloads test -n "$(field auto h2d_bytes)"
check auto_does_not_elsewhere grep -q '^offload none: ' auto_none.out
check no_save_leaves_a_log test -s auto_none/log.jsonl
check no_save_leaves_no_state sh -c '! ls auto_none | grep -q "model\|check"'

# --- another placement on --resume ---------------------------------------------------------------

# --resume takes the placement of the checkpoint, or another one, and checks both together.
stay="--warmup 0 --schedule constant --"
go whole $stay --steps 6 --offload none
"$tide" $tiny $stay --steps 2 --offload interleave --stride 2 $fine --out moved >moved.out
"$tide" --resume --out moved --steps 3 >moved.out 2>moved.err
check resume_keeps_the_placement grep -q '^offload interleave: .*visiting' moved.out
refuses resume_share_without_interleave 2 'interleave' "$tide" --resume --out moved \
    --offload zero --share 0.5
"$tide" --resume --out moved --steps 4 --share 1 >moved.out 2>moved.err
check resume_share_replaces_the_stride sh -c '! grep -q "updated by the CPU" moved.out'
"$tide" --resume --out moved --steps 5 --offload zero --accum 1 >moved.out 2>moved.err
"$tide" --resume --out moved --steps 6 --offload none >moved.out 2>moved.err
wait
same resumed_everywhere_it_has_the_bits_of_none moved whole
rm -rf half_zero/checkpoints/step_00000004
"$tide" --resume --out half_zero --offload interleave --share 0.5 >half.out 2>half_zero.err
same moments_in_bf16_go_on_elsewhere half_zero half_none
rm -rf weights/checkpoints/step_00000004
"$tide" --resume --out weights --weights gpu >weights.out 2>weights.err
same weights_go_on_the_gpu weights none
rm -rf weights/checkpoints/step_00000004
"$tide" --resume --out weights --weights host --offload interleave --share 1 >weights.out \
    2>weights.err
same weights_go_on_the_host weights none
"$tide" --resume --out half_none --steps 5 --moments fp32 >half.out 2>half.err
check moments_are_wide_from_here_on grep -q "saved in bf16, are fp32 from here on" half.out
"$cpu" --resume --out half_none --steps 6 --moments bf16 >half.out 2>half.err
check moments_are_rounded_from_here_on grep -q "saved in fp32, are rounded to bf16" half.out
check cpu_continues_a_run_of_zero "$cpu" --resume --out zero --steps 5
check zero_continues_a_run_of_the_cpu "$tide" --resume --out zero --steps 6
check it_is_still_zero test "$(tail -n 1 zero/log.jsonl | grep -c '"step":6')" -eq 1

# --- memory: what was planned is taken -----------------------------------------------------------

for run in none zero share weights; do
    set -- $(sed -n 's/^GPU memory: \([0-9.]*\) MiB taken, planned \([0-9.]*\) MiB$/\1 \2/p' $run.out)
    check gpu_memory_of_${run}_is_as_planned true_that \
        "${1:-0} > 0.97 * ${2:-1} && ${1:-0} < 1.03 * ${2:-1}"
done

# --- machines that exist, shrunk -----------------------------------------------------------------

# 20B on an H200 with 128 GiB, and on a card of 24 GB with 256 GiB: both memories divided by what
# divides the weights, 41.11 GiB of 20B (the workspace is the same); moments in bf16, as there.
model="--layers 24 --channels 64 --batch 1 --moments bf16"
"$tide" $tiny $model --plan --rates $desktop --gpu-memory 1G --offload none >plan.out
weights=$(awk '$1 == "GPU" && $2 == "parameters" { print 1024 * $3 }' plan.out)  # KiB
shrunk() { awk "BEGIN { print int($1 * $weights / 41.11 + $2) \"K\" }"; }
go shrunk_none $model $steps --offload none
for machine in h200:131:121:h200_16cores card:23:243:rtx4090_desktop; do
    set -- $(echo $machine | tr : ' ')
    there="--rates $4.txt --gpu-memory $(shrunk $2 32768) --host-memory $(shrunk $3 0)"
    refuses the_${1}_needs_moments_in_bf16 2 'it fits with --moments bf16$' \
        "$tide" $tiny $model --plan $there -- --moments fp32
    "$tide" $tiny $model --plan $there >plan.out
    "$tide" $tiny $model --save-every 2 --steps 4 $there --out shrunk_$1 >shrunk_$1.out 2>shrunk_$1.err
    rm -rf shrunk_$1/checkpoints/step_00000004
    "$tide" --resume --out shrunk_$1 $there >again.out 2>>shrunk_$1.err
    wait
    same the_shrunk_$1_has_the_bits_of_none shrunk_$1 shrunk_none
    for f in shrunk_$1.out again.out; do
        plan_of plan.out >a.txt
        plan_of $f >b.txt
        check the_shrunk_${1}_takes_what_is_planned_${f%.out} cmp a.txt b.txt
        set -- $1 $(sed -n 's/^GPU memory: \([0-9.]*\) MiB taken, planned \([0-9.]*\) MiB$/\1 \2/p' $f)
        check the_shrunk_${1}_takes_it_${f%.out} true_that "${2:-0} > 0.97 * ${3:-1} && \
            ${2:-0} < 1.03 * ${3:-1}"
    done
done
check the_shrunk_card_has_weights_on_the_host grep -q 'weights.*host' shrunk_card.out

# --- rates ---------------------------------------------------------------------------------------

env EMU_CLOCK=real "$tide" --calibrate --rates measured.txt --out calibrated >calibrate.out 2>calibrate.err &
calibrating=$!
echo 'h2d 25e9' >few.txt
: >empty.txt
printf 'h2d 25e9\nd2h fast\n' >word.txt
printf '# mine\n\nh2d 25e9\nd2h 25e9\nspeed 3\n' >unknown.txt
for wrong in "word.txt line.2" "unknown.txt line.5" "empty.txt no.rate" "absent.txt No.such" \
    ". file"; do
    refuses "rates_in_${wrong%% *}" 2 "${wrong%% *}.*${wrong#* }" "$tide" $tiny --plan \
        --rates "${wrong%% *}"
done
refuses damaged_rates_before_a_run 2 'word.txt.*line 2' "$tide" $tiny --steps 1 --offload zero \
    --rates word.txt --out no_rates
check damaged_rates_leave_nothing test ! -e no_rates
refuses calibrate_nowhere 2 'nowhere' "$tide" --calibrate --rates nowhere/rates.txt
wait $calibrating
check calibrate_ends test $? -eq 0
check calibrate_leaves_rates grep -q '^h2d *[0-9]' measured.txt
check calibrate_says_what_follows grep -q '^Eq. 1: k = ' calibrate.out
check in_three_digits awk '/^#/ { $0 = $2 " " $3 } sprintf("%.3g", $2) + 0 != $2 { exit 1 }' measured.txt
check calibrate_leaves_nothing_else test ! -e calibrated
check its_rates_are_taken "$tide" $tiny --steps 3 --offload interleave --rates measured.txt \
    --out rated
check they_are_used true_that "$(field rated bound_ms) > 0"

# --- the rest, with state on the host ------------------------------------------------------------

"$tide" $tiny --dump dump_none.safetensors --offload none >dump.out
for mode in zero "interleave --share 0.5" auto; do
    rm -f dump.safetensors
    "$tide" $tiny --dump dump.safetensors --offload $mode >dump.out
    check "dump_of_${mode%% *}" "$compare" dump.safetensors dump_none.safetensors --rtol 0
    check "dump_of_${mode%% *}_is_on_the_gpu" sh -c '! grep -q "^host" dump.out'
done
"$tide" --model none --steps 0 --data text.txt --eval-batches 2 --offload none >eval_none.out
"$tide" --model none --steps 0 --data text.txt --eval-batches 2 --offload zero >eval.out
check evaluation_of_zero sh -c 'grep -q "^val loss" eval.out && diff eval.out eval_none.out'
"$tide" --model none --steps 0 --out copy --offload zero >/dev/null
check conversion_of_zero cmp none/model.safetensors copy/model.safetensors
"$tide" --model none --steps 0 --prompt The --sample-tokens 9 --offload none >a.txt
"$tide" --model none --steps 0 --prompt The --sample-tokens 9 --offload zero >b.txt
check sample_of_zero cmp a.txt b.txt
refuses loss_not_finite 1 'stopped before the update' "$tide" $tiny --lr 900 --clip 0 --warmup 0 --schedule constant --steps 300 --save-every 1 \
    --offload zero --out wild
check what_was_saved_before_is_whole "$cpu" --model wild --steps 0 --out wild_copy
check the_save_that_was_going_on_is_completed sh -c '! ls wild/checkpoints | grep -q tmp'
"$tokenize" --tokenizer bytes --out tok text.txt >/dev/null 2>&1
(head -c 5024 tok_train_000000.bin; printf '\377\377'; tail -c +5027 tok_train_000000.bin) >late.bin
late="--layers 1 --heads 2 --channels 32 --context 16 --batch 1 --lr 3e-3 --eval-every 0"
late="$late --data late.bin --tokenizer bytes --steps 300 --offload"
refuses late_token 2 'late.bin' "$tide" $late interleave --share 0.5 --out late
refuses late_token_with_none 2 'late.bin' "$tide" $late none --out late_none
check what_was_trained_before_it_is_saved cmp late/model.safetensors late_none/model.safetensors

refuses offload_on_the_cpu 2 'nothing to offload' "$cpu" --data text.txt --offload zero
