#!/bin/sh
# The trainer as a user meets it: runs, stops, resumes, keeps what it finds; words and refusals are rows
# of lines.table. Everything happens in a temporary directory, with models of a few thousand parameters.
# usage: sh dev/test/cli/test_cli.sh      (from the top of the repository, after make; ALL=1 is the same)
set -u
. dev/test/cli.sh
TIDE_GPU=train_gpt2 begin cli "$(pwd)/build/tokenize" "$(pwd)/build/compare"
unset OMP_NUM_THREADS
tide=$cpu
tokenize=$top/build/tokenize
compare=$top/build/compare
cat "$top/LICENSE" text.txt text.txt >twice.txt  # of some 7 kB in English, the same everywhere
mv twice.txt text.txt
small="--data text.txt --layers 2 --heads 2 --channels 32 --context 32 --batch 4 --lr 3e-3 --"
steps="$small --steps 12 --eval-every 5 --eval-batches 2 --save-every 3 --keep 3 --"

# --- a run leaves what it promises -----------------------------------------------------------

check run_ends "$tide" $steps --out whole
hint=$(sed -n 's/^try it: //p' check.out)
check hint_is_said expr "$hint" : '.* --model whole --prompt "..."$'
check hint_works sh -c "$hint --sample-tokens 3"
check log_has_every_step test "$(grep -c '"loss"' whole/log.jsonl)" -eq 12
check log_has_evaluations test "$(grep -c '"val_loss"' whole/log.jsonl)" -eq 3
check keeps_three_checkpoints test "$(ls whole/checkpoints | wc -l)" -eq 3
first=$(sed -n 's/.*"step":1,"loss":\([0-9.]*\).*/\1/p' whole/log.jsonl)
last=$(sed -n 's/.*"step":12,"loss":\([0-9.]*\).*/\1/p' whole/log.jsonl)
check loss_falls awk "BEGIN { exit !($last < $first - 0.5) }"

# The plan is what the process then uses, within 10 %. Buffers are large here, as in real runs.
"$tide" --data text.txt --layers 4 --heads 4 --channels 256 --context 128 --batch 8 --steps 2 \
    --eval-every 0 --out memory >memory.out
"$tide" --resume --out memory --steps 3 >memory_resumed.out
"$tide" --model memory --data text.txt --batch 8 --steps 1 --eval-every 0 --sample-every 1 \
    --sample-tokens 4 --no-save >memory_loaded.out
for run in memory memory_resumed memory_loaded; do as_planned ${run}_is_as_planned $run.out 0.1; done
check the_plan_is_a_table test "$(planned CPU memory_loaded.out)" = \
    "$(sed -n 's/^memory: .*planned \([0-9.]*\) MiB$/\1/p' memory_loaded.out | sed 's/[.]0$//')"
"$tide" --model whole --steps 0 --prompt x --sample-tokens 2 >new.out 2>/dev/null
check the_sample_is_alone sh -c '! grep -q "note\|model:" new.out'

# --- what it computes with, and how it waits: tide/cpu/cpu.h ----------------------------------------------

# waits NAME VARIABLE VALUE [SETTING]: what a run has in its environment, once it trains
waits() {
    env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u KMP_BLOCKTIME ${4-} "$tide" $small \
        --steps 1000000 --eval-every 0 --out waits >/dev/null 2>&1 &
    await $! test -s waits/log.jsonl
    check "$1" test "$(tr '\0' '\n' <"/proc/$!/environ" | sed -n "s/^$2=//p")" = "$3"
    kill -9 $!
    wait $! 2>/dev/null
    rm -rf waits
}
if [ -r /proc/self/environ ] && ldd "$tide" | grep -Eq 'lib(g|i)?omp'; then
    waits threads_sleep_soon GOMP_SPINCOUNT 1000
    waits threads_sleep_soon_with_llvm KMP_BLOCKTIME 1
    waits what_the_user_set_stays GOMP_SPINCOUNT "" OMP_WAIT_POLICY=passive
else
    echo "skip threads_sleep_soon: no /proc, or built without OpenMP"
fi

# What is said of a build for a CPU.
cat >cpu.c <<'END'
#include "tide/cpu/cpu.h"
int main(void) { cpu_describe(); return 0; }
END
built_for() {  # name, what is used; then what the build uses
    name=$1 used=$2
    shift 2
    ${CC:-cc} -std=gnu11 "$@" -I"$top" cpu.c -o cpu_program
    ./cpu_program >cpu.out
    check "${name}_is_used" grep -q "^cpu: .*, $used\$" cpu.out
}
if [ "$(uname -m)" != x86_64 ]; then echo "skip other_cpus: the test knows those of x86-64"
else
    avx2="-D__AVX__ -D__AVX2__ -D__FMA__"
    built_for sse2 'no AVX2'
    built_for avx2 AVX2 $avx2
    built_for avx512 AVX-512 $avx2 -D__AVX512F__
fi

# --- same bits ---------------------------------------------------------------------------------

"$tide" $steps --out again >/dev/null
check same_seed_same_bits same_weights whole again
"$tide" $steps --out other --seed 2 >/dev/null
check another_seed_other_bits sh -c '! cmp -s whole/model.safetensors other/model.safetensors'
for n in 1 3; do
    "$tide" $steps --out threads$n --threads $n >/dev/null
    check same_bits_with_${n}_threads same_weights whole threads$n
done

"$tide" $steps --out half --steps 7 --warmup 0 --schedule constant >/dev/null
"$tide" $steps --out full --steps 12 --warmup 0 --schedule constant >/dev/null
"$tide" --resume --out half --steps 12 >/dev/null
check resumed_run_has_the_same_bits same_weights half full
check resumed_log_is_whole test "$(grep -c '"loss"' half/log.jsonl)" -eq 12

check schedule_is_used sh -c '! cmp -s whole/model.safetensors full/model.safetensors'
"$tide" $steps --out clipped --clip 0.01 >/dev/null
check clip_is_used sh -c '! cmp -s whole/model.safetensors clipped/model.safetensors'

# --- other ways in ----------------------------------------------------------------------------

"$tokenize" --tokenizer bytes --out tok text.txt >/dev/null 2>&1
"$tide" $steps --data 'tok_train_*.bin' --tokenizer bytes --out bin >/dev/null
check token_file_gives_the_bits_of_its_text same_weights whole bin

"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 40 --temperature 0 >a.txt
"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 40 --temperature 0 >b.txt
check greedy_sampling_repeats cmp a.txt b.txt
"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 40 --temperature 1 --top-p 1e-9 >b.txt
check the_smallest_nucleus_is_greedy cmp a.txt b.txt
"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 60 --seed 5 >a.txt
"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 60 --seed 6 >b.txt
check seeds_give_other_samples sh -c '! cmp -s a.txt b.txt'
"$tide" --model whole --prompt 'The ' --sample-tokens 60 --seed 6 >a.txt
check a_prompt_without_data_samples cmp a.txt b.txt
"$tide" --model whole --steps 0 --prompt x --sample-tokens 100 --temperature 1000 >a.txt
check every_token_is_drawn_anew test "$(od -An -v -tx1 -w1 a.txt | sort -u | wc -l)" -gt 40
# A terminal gets no control characters: of ESC and the like, C2 80 to C2 9F, only '?'.
wild="--model whole --prompt $(printf 'x\302') --temperature 1000 --sample-tokens 2000"
if ! script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    echo "skip controls_on_a_terminal: no script(1)"
else
    controls='[[:cntrl:]]|\xc2[\x80-\x9f]'
    "$tide" $wild | tr '\n\t' '  ' >a.txt
    script -qec "$tide $wild" /dev/null </dev/null | tr -d '\r' | tr '\n\t' '  ' >b.txt
    check controls_in_a_pipe sh -c "LC_ALL=C grep -Pq '$controls' a.txt"
    check controls_on_a_terminal sh -c "! LC_ALL=C grep -Paq '$controls' b.txt"
    LC_ALL=C tr '[:cntrl:]' '?' <a.txt | tr -d '?\200-\237' >c.txt
    check the_rest_is_the_same sh -c "tr -d '?\200-\237' <b.txt | cmp - c.txt"
fi
check samples_beyond_the_context "$tide" --model whole --steps 0 --sample-tokens 100 \
    --prompt "$(head -c 300 text.txt)"

# Of a prompt that is too long the last 32 tokens, the context, count; and when the context is full,
# it goes on from the 16 last ones.
continue_with() { "$tide" --model whole --steps 0 --temperature 0 --sample-tokens "$1" --prompt "$2"; }
continue_with 1 "$(head -c 300 text.txt)" | tail -c 2 >a.txt
continue_with 1 "$(head -c 300 text.txt | tail -c 32)" | tail -c 2 >b.txt
check a_long_prompt_counts_by_its_end cmp a.txt b.txt
"$tide" $small --batch 16 --steps 300 --eval-every 0 --out learned >/dev/null
continue_with() { "$tide" --model learned --steps 0 --temperature 0 --sample-tokens "$1" --prompt "$2"; }
: >a.txt
: >b.txt
for end in 210 230 250 270 290 310 330 350; do
    continue_with 2 "$(head -c $end text.txt | tail -c 32)" | head -c 34 >full.txt
    continue_with 1 "$(head -c 33 full.txt | tail -c 16)" | head -c 17 >half.txt
    tail -c 1 full.txt >>a.txt
    tail -c 1 half.txt >>b.txt
done
check a_full_context_goes_on_from_its_half cmp a.txt b.txt

# Two micro-batches of two are the four sequences of one batch of four.
"$tide" $steps --steps 1 --warmup 0 --batch 2 --accum 2 --out accum >/dev/null
"$tide" $steps --steps 1 --warmup 0 --out one_batch >/dev/null
loss() { sed -n 's/.*"step":1,"loss":\([0-9.]*\),"grad_norm":\([0-9.]*\).*/\1 \2/p' "$1/log.jsonl"; }
check accumulation_reads_on awk "BEGIN { split(\"$(loss accum) $(loss one_batch)\", x, \" \")
    exit !(x[1] > 0 && (x[1] - x[3])^2 < 1e-10 && (x[2] - x[4])^2 < 1e-8) }"

"$tide" --model whole --steps 0 --data text.txt --eval-batches 2 --batch 4 >a.txt
logged=$(sed -n 's/.*"step":12,"val_loss":\([0-9.]*\).*/\1/p' whole/log.jsonl)
check evaluation_of_saved_weights grep -q "val loss $(printf '%.5f' "$logged" | cut -c1-6)" a.txt

# A last batch that is not full counts by its sequences, not as a batch.
"$tide" --model whole --steps 0 --data text.txt --eval-batches 100 --batch 1 | tail -n 1 | cut -c1-14 >a.txt
"$tide" --model whole --steps 0 --data text.txt --eval-batches 100 --batch 7 | tail -n 1 | cut -c1-14 >b.txt
check evaluation_does_not_depend_on_the_batch cmp a.txt b.txt
"$tide" --model whole --steps 0 --out copy >/dev/null
check conversion_keeps_the_bits same_weights whole copy
"$tide" --model whole --steps 0 --out bf16 --save-dtype bf16 >/dev/null
check bf16_is_half_as_long test "$(wc -c <bf16/model.safetensors)" -lt "$(($(wc -c <whole/model.safetensors) * 6 / 10))"
check bf16_weights_load "$tide" --model bf16 --steps 0 --prompt x --sample-tokens 5
check fine_tuning "$tide" --model whole --data text.txt --steps 3 --batch 2 --out tuned

# A run that is where it should be, or further, stays as it is; but if it was killed before it wrote
# its weights for others, it does that.
cp -r whole finished
for n in 7 12; do
    "$tide" --resume --out finished --steps $n >a.txt
    check "nothing_to_do_is_no_error $n" test $? -eq 0
    check "nothing_to_do_is_said $n" grep -q "^nothing to do: .* at step 12, and --steps is $n:" a.txt
done
check nothing_is_changed diff -r -x .lock whole finished
rm finished/model.safetensors
check weights_are_still_to_do "$tide" --resume --out finished --steps 12
check they_are_written same_weights whole finished
"$tide" $small --dump d1.safetensors --threads 1 >dump.out
check dump_is_of_the_first_batch grep -q "^loss $(printf '%.4f' "$first" | cut -c1-5)" dump.out
"$tide" $small --dump d2.safetensors --threads 2 >/dev/null
check dumps_agree "$compare" d1.safetensors d2.safetensors --rtol 0

# doc/backward.md: rows of one's own; the same step in transformers, and what that says of a wrong term.
for row in 0 1; do  # 4-byte ids 1 2 .. 17 and 101 102 .. 117
    { printf '\241\331\064\001\7\0\0\0\021'; head -c 1015 /dev/zero
        for id in $(seq 1 17); do printf "\\$(printf %o $((100 * row + id)))\0\0\0"; done; } >row$row.bin
done
"$tide" --model whole --data 'row?.bin' --val 'row?.bin' --seq 16 --batch 2 --dump d4.safetensors >/dev/null
od -An -v -tu4 -w64 -N 256 -j $(($(od -An -tu8 -N 8 d4.safetensors) + 8)) d4.safetensors | tr -s ' ' | sort >a.txt
for first in 1 2 101 102; do echo " $(seq -s ' ' $first $((first + 15)))"; done | sort >b.txt  # tokens, targets
check dump_has_rows_of_ones_own cmp a.txt b.txt
torch=$(for python in python3 /usr/bin/python3; do
    "$python" -c 'import torch, transformers' 2>/dev/null && echo "$python" && break; done)
if [ -n "$torch" ]; then
    awk 'length > 8 { gsub(/["\\]/, "_"); printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n",
        substr($0, 1, 3 + NR % 5), substr($0, 9, 2 + NR % 7) }' text.txt >packed.jsonl
    "$tide" $small --model llama3.2-1b --kv-heads 1 --vocab 300 --steps 3 --out llama >/dev/null
    for model in whole llama; do
        "$tide" --model $model --data packed.jsonl --batch 2 --dump d5.safetensors >/dev/null
        check "packed_rows_are_what_transformers_says_of_$model" "$torch" "$top/dev/reference/check.py" $model d5.safetensors
        rm d5.safetensors
    done
    check dump_is_what_transformers_says "$torch" "$top/dev/reference/check.py" whole d4.safetensors
    sed 's/"n_head": [0-9]*/"n_head": 1/' whole/config.json >config.tmp
    mkdir wrong && cp whole/model.safetensors wrong && mv config.tmp wrong/config.json
    check transformers_finds_a_wrong_term sh -c '! "$0" "$1" wrong d4.safetensors >torch.out' "$torch" "$top/dev/reference/check.py"
else
    echo "skip dump_in_transformers: no torch, or no transformers"
fi

check dump_with_a_prompt "$tide" $small --steps 0 --prompt x --dump d3.safetensors
check dump_is_the_same "$compare" d1.safetensors d3.safetensors --rtol 0

# Another text under the same name: the run says so, and goes on.
cp text.txt moving.txt
"$tide" $small --data moving.txt --steps 2 --out moved >/dev/null
check unchanged_data_is_silent sh -c \
    "'$tide' --resume --out moved --steps 3 2>&1 | grep -q 'not what this run' && exit 1 || exit 0"
echo more >>moving.txt
check data_edited_in_the_middle_is_noticed sh -c "sed '20s/./x/' text.txt >edited.txt && cp -r moved edited &&
    '$tide' --resume --out edited --data edited.txt --steps 4 2>&1 | grep -q 'not what this run'"
check other_held_out_data_is_noticed sh -c "cp -r moved valued &&
    '$tide' --resume --out valued --val edited.txt --steps 4 2>&1 | grep -q 'not what this run'"
for what in "--model whole --prompt x" "--model whole --data text.txt --steps 0"; do
    check "a_full_screen_fails_${what#--model whole --}" sh -c "! '$tide' $what --out screen >/dev/full 2>screen.err &&
        grep -q 'cannot print' screen.err; rm -rf screen"
done
check changed_data_is_noticed sh -c "'$tide' --resume --out moved --steps 4 2>&1 | grep -q 'not what this run'"

# tokenizer.json: its ids for texts and prompts, and its files in --out, byte for byte. The model of
# such a run brings it along. <s>, 1, begins every text; </s>, 2, ends it.
spaced=$top/dev/test/fixtures/tokenizer/small-llama2
printf 'the king is the king of the sea\n%.0s' 1 2 3 4 5 6 7 8 9 >king.txt
"$tide" $small --data king.txt --tokenizer "$spaced" --steps 2 --eval-every 0 --out spaced >/dev/null
for f in tokenizer.json tokenizer_config.json; do
    check "out_has_the_$f" cmp "$spaced/$f" spaced/$f
done
talks() { "$tide" --model "$1" --steps 0 --sample-tokens 9 --prompt "$2" | sed 's/^<s>//'; }
check a_prompt_has_one_begin test "$(talks spaced '<s>the king')" = "$(talks spaced 'the king')"
cp -r spaced padded
sed 's/^{/{"added_tokens_decoder": {"2005": {"content": "[PAD]"}}, /' "$spaced/tokenizer_config.json" \
    >padded/tokenizer_config.json
check a_token_more_than_the_model test "$(talks padded 'the king')" = "$(talks spaced 'the king')"
"$tokenize" --tokenizer "$spaced" --out king king.txt >/dev/null
check documents_begin_and_end sh -c "'$tokenize' --show king_train_000000.bin --tokens 3 | tail -n 1 | grep -q '^1 274 '"
# this </s> is normalised: it is written as it is looked for, with a space
check documents_come_back sh -c "'$tokenize' --show king_train_000000.bin --tokenizer '$spaced' --tokens 99999 |
    tail -n +2 >king.shown; (printf '<s> '; cat king.txt; echo ' </s>') | cmp - king.shown"

# A folder of the hub's cache is a model.
mkdir -p models--o--m/snapshots/5eed models--o--m/snapshots/1dea models--o--m/refs
cp whole/* models--o--m/snapshots/5eed 2>/dev/null
printf 5eed >models--o--m/refs/main
"$tide" --model whole --steps 0 --prompt a --sample-tokens 9 >a.txt
"$tide" --model models--o--m --steps 0 --prompt a --sample-tokens 9 >b.txt
check model_of_a_cache cmp a.txt b.txt
rm -r models--o--m/refs models--o--m/snapshots/1dea
"$tide" --model models--o--m --steps 0 --prompt a --sample-tokens 9 >b.txt
check model_of_a_cache_without_refs cmp a.txt b.txt

# --- requeued jobs, epochs, lines ---------------------------------------------------------------------

# One command line for a job that may begin or go on: --resume auto.
requeued() { "$tide" $small --steps 12 --eval-every 0 --save-every 3 --resume auto --out requeued; }
check a_job_begins requeued
cp requeued/model.safetensors requeued.whole
rm -r requeued/checkpoints/step_00000012
check and_goes_on sh -c '"$@" >requeued.out && grep -q "weights of step 9 from requeued" requeued.out' - "$tide" $small --steps 12 --eval-every 0 \
    --save-every 3 --resume=auto --out requeued
check with_the_same_bits cmp requeued/model.safetensors requeued.whole
rm -r requeued/checkpoints requeued/model.safetensors requeued/config.json
check a_job_that_died_before_its_first_checkpoint_begins_anew requeued
check with_the_same_bits_again cmp requeued/model.safetensors requeued.whole
check epochs_are_steps sh -c '"$0" $2 --epochs 1.5 --out epochs >epochs.out && n=$(sed -n "s/^--epochs 1.5: \([0-9]*\) steps$/\1/p" \
    epochs.out) && [ "$n" = "$(grep -c "\"loss\"" epochs/log.jsonl)" ] && grep -q ", 1.5[0-9] epochs in $n steps" epochs.out' \
    "$tide" - "$small --eval-every 0 --log-every 7"
check a_line_every_seven_steps sh -c 'n=$(grep -c "\"loss\"" epochs/log.jsonl)
    [ "$(grep -c "^step [0-9]*/" epochs.out)" -eq $((n / 7 + (n % 7 > 0))) ] && ! grep "^step [123456]/" epochs.out'
check more_epochs_of_a_run sh -c '"$0" --resume --epochs 2 --out epochs >more.out &&
    grep -q "^--epochs 2: [0-9]* steps$" more.out' "$tide"
refuses epochs_and_steps 2 'leave one out' "$tide" $small --epochs 2 --steps 3
"$tide" $small --steps 2 --eval-every 0 --out noted >/dev/null
"$tide" --resume --steps 4 --out noted >/dev/null
rm -r noted/checkpoints/step_00000004
check as_many_steps_keep_the_rate sh -c '"$@" >more.out; ! grep "^note" more.out' - "$tide" --resume --steps 2 --out noted

mkdir locked && chmod 555 locked && chmod 755 "$work"
cp "$tide" tide_copy
as_user=
[ "$(id -u)" != 0 ] || as_user="setpriv --reuid=65534 --clear-groups"
if [ -n "$as_user" ] && ! $as_user ./tide_copy --version >/dev/null 2>&1; then
    echo "skip no_permission: root may write everywhere, and cannot become somebody else here"
else
    refuses no_permission 2 locked $as_user ./tide_copy $steps --out locked/run
    refuses no_permission_in_a_directory_that_is_there 2 locked $as_user ./tide_copy $steps --out locked
fi

# A checkpoint that was altered is named and the one before it used.
cp -r whole altered
printf 'x' | dd of=altered/checkpoints/step_00000012/state.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
"$tide" --resume --out altered >altered.out 2>altered.err
check altered_checkpoint_is_named grep -q 'step_00000012.*damaged' altered.err
check the_one_before_gives_the_same_bits same_weights altered whole
# Of a session with other options it is put aside, and the next one goes on from the one before.
cp -r whole longer
"$tide" --resume --out longer --steps 14 >/dev/null
cp -r longer altered_longer
state=altered_longer/checkpoints/step_00000014/state.safetensors
printf 'x' | dd of=$state bs=1 seek=$(($(wc -c <$state) / 2)) conv=notrunc 2>/dev/null
refuses damage_of_another_session 2 'step_00000014.damaged: --resume again' "$tide" --resume --out altered_longer
"$tide" --resume --out altered_longer --steps 14 >/dev/null
check the_one_before_it_gives_the_same_bits same_weights altered_longer longer

# Disk full: a file size limit makes write() fail the same way.
cp -r whole full_disk
(trap '' XFSZ; ulimit -f 40; exec "$tide" --resume --out full_disk --steps 20) >full.out 2>full.err
check disk_full_exits_with_1 test $? -eq 1
check disk_full_costs_a_checkpoint_not_the_run grep -q '^step 20/20' full.out
check disk_full_is_a_warning_and_at_the_end_an_error sh -c \
    "grep -v '^tide: warning: .*; the run goes on, and the checkpoint of step 12 is whole' full.err |
    grep -c . | grep -qx 1 && tail -n 1 full.err | grep -q '^tide: cannot write.*checkpoints/tmp'"
check disk_full_keeps_the_weights same_weights whole full_disk
check disk_full_keeps_the_checkpoint test -d full_disk/checkpoints/step_00000012
check disk_full_leaves_no_rubbish sh -c '! ls -R full_disk | grep -q tmp'
check after_disk_full_it_goes_on "$tide" --resume --out full_disk --steps 14

# make run moves no folder aside in which a run is at work.
if command -v flock >/dev/null; then
    mkdir held && touch held/.lock "held/at work"
    flock held/.lock make -s -C "$top" run TRAINER=train_gpt2 OUT="$work/held" >make.out 2>&1
    check make_run_keeps_off_a_run_at_work grep -q 'held is in use by a run' make.out
    check and_leaves_it_there test -e "held/at work"
fi
