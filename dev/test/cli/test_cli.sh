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
check log_has_every_step test "$(members whole loss | wc -l) $(members whole val_loss | wc -l)" = "12 3"
check keeps_three_checkpoints test "$(ls whole/checkpoints | wc -l)" -eq 3
first=$(field whole 1 loss)
check loss_falls true_that "$(field whole 12 loss) < $first - 0.5"

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
printf '#include "tide/cpu/cpu.h"\nint main(void) { cpu_describe(); return 0; }\n' >cpu.c
for built in "no AVX2:" "AVX2:-D__AVX2__ -D__FMA__" "AVX-512:-D__AVX512F__ -D__AVX2__ -D__FMA__"; do
    [ "$(uname -m)" = x86_64 ] || { echo "skip other_cpus: the test knows those of x86-64"; break; }
    # shellcheck disable=SC2086  # options are words
    ${CC:-cc} -std=gnu11 ${built#*:} -I"$top" cpu.c -o cpu_program
    ./cpu_program >cpu.out
    check "${built%%:*}_is_said" grep -q "^cpu: .*, ${built%%:*}\$" cpu.out
done

# --- same bits ---------------------------------------------------------------------------------

"$tide" $steps --out other --seed 2 >/dev/null
check another_seed_other_bits differ whole other
for n in 1 3; do
    "$tide" $steps --out threads$n --threads $n >/dev/null
    check same_bits_with_${n}_threads same_weights whole threads$n
done

"$tide" $steps --out half --steps 7 --warmup 0 --schedule constant >/dev/null
"$tide" $steps --out full --steps 12 --warmup 0 --schedule constant >/dev/null
"$tide" --resume --out half --steps 12 >/dev/null
check resumed_run_has_the_same_bits same_weights half full
check resumed_log_is_whole test "$(grep -c '"loss"' half/log.jsonl)" -eq 12

check schedule_is_used differ whole full
"$tide" $steps --out clipped --clip 0.01 >/dev/null
check clip_is_used differ whole clipped

# --- other ways in ----------------------------------------------------------------------------

"$tokenize" --tokenizer bytes --out tok text.txt >/dev/null 2>&1
"$tide" $steps --data 'tok_train_*.bin' --tokenizer bytes --out bin >/dev/null
check token_file_gives_the_bits_of_its_text same_weights whole bin

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
"$tide" --model whole --steps 0 --data text.txt --eval-batches 2 --batch 4 >a.txt
check evaluation_of_saved_weights close "$(sed -n 's/^val loss //p' a.txt)" "$(field whole 12 val_loss)" 1e-5
"$tide" --model whole --steps 0 --out copy >/dev/null
check conversion_keeps_the_bits same_weights whole copy
"$tide" --model whole --steps 0 --out bf16 --save-dtype bf16 >/dev/null
check bf16_weights_load "$tide" --model bf16 --steps 0 --prompt x --sample-tokens 5
check fine_tuning "$tide" --model whole --data text.txt --steps 3 --batch 2 --out tuned

# A run that is where it should be, or further, stays as it is; but if it was killed before it wrote
# its weights for others, it does that.
cp -r whole finished
check nothing_to_do_is_no_error "$tide" --resume --out finished --steps 12
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

for what in "--model whole --prompt x" "--model whole --data text.txt --steps 0"; do
    check "a_full_screen_fails_${what#--model whole --}" sh -c "! '$tide' $what --out screen >/dev/full 2>screen.err &&
        grep -q 'cannot print' screen.err; rm -rf screen"
done

# tokenizer.json: its ids for texts and prompts, and its files in --out, byte for byte. <s> begins every
# text; </s> ends it.
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
# this </s> is normalised: it is written as it is looked for, with a space
check documents_come_back sh -c "'$tokenize' --show king_train_000000.bin --tokenizer '$spaced' --tokens 99999 |
    tail -n +2 >king.shown; (printf '<s> '; cat king.txt; echo ' </s>') | cmp - king.shown"

mkdir locked && chmod 555 locked && chmod 755 "$work"
cp "$tide" tide_copy
as_user=
[ "$(id -u)" != 0 ] || as_user="setpriv --reuid=65534 --clear-groups"
if [ -n "$as_user" ] && ! $as_user ./tide_copy --version >/dev/null 2>&1; then
    echo "skip no_permission: root may write everywhere, and cannot become somebody else here"
else
    refuses no_permission 2 locked $as_user ./tide_copy $steps --out locked
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

# make run moves no folder aside in which a run is at work.
if command -v flock >/dev/null; then
    mkdir held && touch held/.lock "held/at work"
    flock held/.lock make -s -C "$top" run TRAINER=train_gpt2 OUT="$work/held" >make.out 2>&1
    check make_run_keeps_off_a_run_at_work grep -q 'held is in use by a run' make.out
    check and_leaves_it_there test -e "held/at work"
fi
