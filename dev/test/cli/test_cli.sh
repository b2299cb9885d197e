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
as_planned memory_is_as_planned memory.out 0.1
check the_plan_is_a_table test "$(planned CPU memory.out)" = \
    "$(sed -n 's/^memory: .*planned \([0-9.]*\) MiB$/\1/p' memory.out | sed 's/[.]0$//')"
# So is the disk: all numbers have 16 bits here.
"$tide" --data text.txt --layers 4 --heads 4 --channels 256 --context 128 --steps 1 --eval-every 0 --master bf16 \
    --moments bf16 --offload zenflow --out halves >halves.out
for run in memory halves; do
    check disk_is_as_said_$run close "$(cat $run/checkpoints/*/state.safetensors | wc -c) * 1e-6" \
        "$(sed -n 's/^checkpoints: \([0-9.]*\) MB, .*/\1/p' $run.out)" 0.1
done
check weights_are_halves_too grep -q '"torch_dtype": "bfloat16"' halves/config.json
"$tide" --model whole --steps 0 --prompt x --sample-tokens 2 >new.out 2>/dev/null
check the_sample_is_alone sh -c '! grep -q "note\|model:" new.out'

# tide/cpu/cpu.h: how threads wait
if ldd "$tide" | grep -q libgomp; then
    check threads_sleep_soon sh -c 'env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT -u KMP_BLOCKTIME OMP_DISPLAY_ENV=verbose \
        "$0" --version 2>&1 | grep -q "GOMP_SPINCOUNT = .1000.\$"' "$tide"
fi

# A stack of 72 KiB is enough, of which Linux may leave 8 unused: no function has large arrays there. (With gcc's
# code 64 is enough, with clang's nearly always. A trivial program with OpenMP needs 16.)
on_a_small_stack() { env -i PATH="$PATH" sh -c 'ulimit -s 72 && exec "$@"' - "$tide" "$@"; }
little="$small --eval-every 2 --save-every 2 --keep-best --offload zenflow --out little"
check small_stack_saves on_a_small_stack $little --steps 4
check small_stack_resumes on_a_small_stack $little --steps 6 --resume
check small_stack_loads on_a_small_stack --model little/best --prompt x --sample-tokens 3
check small_stack_mezo on_a_small_stack $small --steps 2 --optimizer mezo --out little_mezo

# --- same bits ---------------------------------------------------------------------------------

"$tide" $steps --out other --seed 2 >/dev/null
check another_seed_other_bits differ whole other
"$tide" $steps --out threads --threads 3 >/dev/null
check same_bits_with_3_threads same_weights whole threads

"$tide" $steps --out half --steps 7 --warmup 0 --schedule constant >/dev/null
"$tide" $steps --out full --steps 12 --warmup 0 --schedule constant >/dev/null
"$tide" --resume --out half --steps 12 >/dev/null
check resumed_run_has_the_same_bits same_weights half full
check resumed_log_is_whole test "$(grep -c '"loss"' half/log.jsonl)" -eq 12

"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 60 --seed 5 >a.txt
"$tide" --model whole --steps 0 --prompt 'The ' --sample-tokens 60 --seed 6 >b.txt
check seeds_give_other_samples sh -c '! cmp -s a.txt b.txt'
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
fi
"$tide" --model whole --steps 0 --data text.txt --eval-batches 2 --batch 4 >a.txt
check evaluation_of_saved_weights close "$(sed -n 's/^val loss //p' a.txt)" "$(field whole 12 val_loss)" 1e-5
"$tide" --model whole --steps 0 --out copy >/dev/null
check conversion_keeps_the_bits same_weights whole copy

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
    "$tide" --model whole --data packed.jsonl --batch 2 --dump d5.safetensors >/dev/null
    check packed_rows_are_what_transformers_says "$torch" "$top/dev/reference/check.py" whole d5.safetensors
    check dump_is_what_transformers_says "$torch" "$top/dev/reference/check.py" whole d4.safetensors
    sed 's/"n_head": [0-9]*/"n_head": 1/' whole/config.json >config.tmp
    mkdir wrong && cp whole/model.safetensors wrong && mv config.tmp wrong/config.json
    check transformers_finds_a_wrong_term sh -c '! "$0" "$1" wrong d4.safetensors >torch.out' "$torch" "$top/dev/reference/check.py"
else
    echo "skip dump_in_transformers: no torch, or no transformers"
fi

for what in "--model whole --prompt x" "--model whole --data text.txt --steps 0" "--help all" --version \
    "--plan --model nano --rates rates.txt"; do
    check "a_full_screen_fails_${what#--model whole --}" sh -c "! '$tide' $what --out screen >/dev/full 2>screen.err &&
        grep -q 'cannot print' screen.err; rm -rf screen"
done

# A damaged checkpoint of a session with other options is put aside, and the next one goes on from the one before.
cp -r whole longer
"$tide" --resume --out longer --steps 14 >/dev/null
cp -r longer altered_longer
state=altered_longer/checkpoints/step_00000014/state.safetensors
printf 'x' | dd of=$state bs=1 seek=$(($(wc -c <$state) / 2)) conv=notrunc 2>/dev/null
refuses damage_of_another_session 2 'step_00000014.damaged: --resume again' "$tide" --resume --out altered_longer
"$tide" --resume --out altered_longer --steps 14 >/dev/null
check the_one_before_it_gives_the_same_bits same_weights altered_longer longer

