#!/bin/sh
# Command lines as a user types them, a row each of lines.table: words, exit codes, files. With models of
# a few thousand parameters, in a temporary directory.
# usage: sh dev/test/cli/test_lines.sh [PATTERN]     (from the top of the repository, after make, make
#        train_gpt2emu; TIDE_GPU=./train_gpt2cu for a real GPU; the rows whose names have the PATTERN)
set -u
. dev/test/cli.sh
begin cli_lines "$(pwd)/build/tokenize" "$(pwd)/build/ask"
without_measuring
mkdir files && mv text.txt rates.txt files
cd files || exit 1
cp "$top/scripts/rates/h200_16cores.txt" .

small="--data text.txt --layers 2 --heads 2 --channels 32 --context 32 --vocab 300 --batch 2 --lr 3e-3 --"
little="--layers 1 --heads 2 --channels 8 --context 32 --batch 2 --steps 1 --"
large="--model gpt2-large --batch 1 --rates rates.txt --host-memory 64G --"
slow="--model 7b --batch 1 --seq 2048 --offload zero --rates h200_16cores.txt --gpu-memory 140G --host-memory 400G --"
opt175="--model opt-175b --optimizer mezo --resident-blocks 0 --batch 1 --seq 2048 --host-memory 2000G --"
published="$opt175 --rates rates.txt --"
eight_b="--model llama3.1-8b --batch 1 --seq 2048 --rates rates.txt --"
eight="--model 20b --world 8 --batch 1 --host-memory 500G --rates rates.txt --"
spaced=$top/dev/test/fixtures/tokenizer/small-llama2
made_by_me=$PWD/made\ by\ me
two_steps="ARGS=--steps 2 --layers 1 --channels 32 --eval-every 0 --sample-every 0"
faster='faster, and the same result but for rounding: --batch 8 --accum 2, 9 tokens/s'
with_a_space='my file.txt' two_words='env RANKS=2'

# --- the files that rows name --------------------------------------------------------------------

# damaged MODEL FILE COMMAND...: a copy of the run "whole", with another file
damaged() {
    model=$1 file=$2
    shift 2
    mkdir -p "$model"
    cp whole/model.safetensors whole/config.json whole/vocab.json whole/merges.txt "$model"
    "$@" >"$model/$file"
}
# weights BYTES: of "whole", all of these
weights() {
    header=$(($(od -An -tu8 -N8 whole/model.safetensors) + 8))
    head -c $header whole/model.safetensors
    yes "$(printf "$1")" | tr -d '\n' | head -c $(($(wc -c <whole/model.safetensors) - header))
}
make_files() {
    "$cpu" $small --steps 12 --eval-every 4 --eval-batches 2 --save-every 6 --batch 4 --out whole
    "$cpu" $small --batch 3 --steps 1 --out three
    "$top/build/tokenize" --tokenizer bytes --out tok text.txt
    tokens=tok_train_000000.bin
    head -c 1500 $tokens >cut.bin
    (head -c 3024 $tokens; printf '\377\377'; tail -c +3027 $tokens) >late.bin
    : >empty.txt
    printf 'short' >short.txt
    head -c 50 text.txt >little.txt
    head -c 1009 text.txt >held_out.txt
    cp text.txt text.jsonl
    cp text.txt mixed_a.txt
    (printf 'x\000' && cat text.txt) >nul.txt
    printf '\377\376{\000' >utf16.jsonl
    for i in $(seq 29); do echo '{"prompt": "a", "completion": " b"}'; done >held_out.jsonl
    (printf '\357\273\277 \n' && head -n 12 held_out.jsonl) >named
    for name in named.txt mixed_b.txt; do cp named $name; done
    (echo '['; sed '$!s/$/,/' held_out.jsonl; echo ']') >array.json
    printf '{"text": "fine"}\n{"text": "broken}\n' >broken.jsonl
    for i in 1 2; do echo '{"prompt": "a", "choices": ["b", "c"], "answer": 0}'; done >questions.jsonl
    printf 'good\t0\nbad\t1\n' >labelled.tsv

    damaged cut_model model.safetensors head -c 20000 whole/model.safetensors
    damaged only_json tokenizer.json echo '{"added_tokens": []}'
    echo x >only_json/tokenizer.model  # the reason is the other's
    rm only_json/vocab.json only_json/merges.txt
    damaged wide model.safetensors cat whole/model.safetensors
    rm wide/merges.txt
    damaged nan model.safetensors weights '~~~~'  # 8e37, of which layers make infinity
    damaged large_numbers model.safetensors weights '\377\377\177\177'
    sed '20s/./x/' text.txt >edited.txt
    mkdir -p died adapter poor/proc poor/sys/fs/cgroup contained/sys/fs/cgroup merges_only
    cp whole/log.jsonl died
    printf pro >died/.lock  # its disk was full
    echo '{}' >adapter/adapter_config.json
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' >model.gguf
    "$cpu" $small --model mistral-7b --kv-heads 1 --steps 0 --out slides
    sed 's/"sliding_window": null/"sliding_window": 16/' slides/config.json >config && mv config slides/config.json
    rm slides/vocab.json slides/merges.txt
    echo x >slides/tokenizer.model
    "$cpu" --model nano --vocab 600 --tokenizer bytes --steps 0 --out large
    "$cpu" $little --steps 0 -- --vocab 50257 --out gpt2_size
    cp "$top/dev/test/fixtures/tokenizer/merges.txt" merges_only
    printf 'the king is the king of the sea\n%.0s' 1 2 3 4 5 6 7 8 9 >king.txt
    # a token that the model does not know is refused where a text has it
    "$cpu" $small --data king.txt --tokenizer "$spaced" --vocab 2005 --steps 1 --out padded
    sed 's/^{/{"added_tokens_decoder": {"2005": {"content": "[PAD]"}}, /' "$spaced/tokenizer_config.json" \
        >padded/tokenizer_config.json
    echo 'the king [PAD] of the sea' >pad.txt

    mkdir unlocked
    for link in dangling unlocked/.lock; do ln -s nowhere "$link"; done
    printf 'h2d 25e9\nd2h fast\n' >word.txt
    echo 'MemAvailable: 100 kB' >poor/proc/meminfo  # what may grow, and what a container may use
    cp -r poor/proc contained
    echo 100000 >contained/sys/fs/cgroup/memory.max
    echo 1000 >contained/sys/fs/cgroup/memory.current
    cp text.txt "it's my book.txt"
    mkdir -p clean/build/run clean/build/asan cleaner/build/asan
    echo '{}' >clean/build/run/log.jsonl
    cp "$top/Makefile" clean
    cp "$top/Makefile" cleaner
    tuned_by_scripts
}

# stands_in NAME: a trainer, which standard input is
stands_in() { (echo '#!/bin/sh' && cat) >"$1" && chmod +x "$1"; }

# lines N: examples
lines() { seq "$1" | sed 's/.*/{"prompt": "&", "completion": "x"}/'; }

# tuned_by_scripts: what rows of scripts/finetune.sh name: the script in a folder of its own, which builds and
# fetches nothing; files of examples; models, of which it reads the context; and trainers that say what
# they are given, unless it is a plan.
tuned_by_scripts() {
    mkdir -p tune/scripts tune/build tune/dev/data at64 at100 at1024 at0
    cp "$top/scripts/finetune.sh" "$top/scripts/common.sh" tune/scripts
    ln -s "$top/build/ask" tune/build/ask
    echo 'train_gpt2 build/ask:' >tune/Makefile
    echo 'echo "fetched: $*"' >tune/dev/data/model.sh
    for name in x.json x.jsonl "my file.txt"; do lines 1 >"$name"; done
    for n in 100 1000; do lines $n >lines$n.jsonl; done
    printf '%s\n' '{"prompt": "--steps\n", "completion": "x"}' >dashes.jsonl
    echo '[{"instruction": "Add.", "input": "2 + 2", "output": "4"}]' >alpaca.json
    printf '{"n_layer": 2,\n  "n_positions": 64,\n "n_head": 1}\n' >at64/config.json
    printf '{"n_layer": 2,\n  "max_position_embeddings" : 100,\n "n_head": 1}\n' >at100/config.json
    echo '{"n_layer": 2, "n_positions":1024, "n_head": 1}' >at1024/config.json
    echo '{"n_layer":1}' >at0/config.json
    printf 'prompt,completion\nHi,"Hello, you"\n' >qa.csv
    printf 'PAR1\025\004' >x.parquet

    echo 'echo "$@"' | stands_in say
    stands_in say_none <<'X'
echo "tide: this run needs 9 GiB" >&2
exit 2
X
    stands_in say_moments <<'X'
case "$*" in
    *--plan*"--moments bf16"*) ;;
    *--plan*) echo "tide: this run needs 9 GiB; it fits with --moments bf16" >&2; exit 2 ;;
esac
echo "$@"
X
    stands_in say_no_plan <<'X'
case "$*" in *--plan*) exit 2 ;; esac
echo "$@"
X
    # has room for no sums of gradients, and then for no moments in fp32
    stands_in say_no_sums <<'X'
case "$*" in
    *--plan*--moments*) echo "  step 2: 7 tokens/s" ;;
    *--plan*--out*"--accum 1"*) echo "tide: this run needs 9 GiB; it fits with --moments bf16" >&2; exit 2 ;;
    *--plan*) echo "tide: this run needs 9 GiB" >&2; exit 2 ;;
    *) echo "$@" ;;
esac
X
    # has room for $ROOM rows at a time
    stands_in say_rows <<'X'
case "$*" in
    *--plan*"--batch $ROOM "*) echo "  step 2, of which 1 are not compute: 7 tokens/s"; echo "${FASTER-}" ;;
    *--plan*) exit 2 ;;
    *) echo "$@" ;;
esac
X
}
make_files >../made 2>&1

# --- the rows ------------------------------------------------------------------------------------

# typed NAME COMMAND...: with the row's options, which settings of the environment may precede; says
# whether all is as the row has it. ../new lists the new files.
typed() {
    typed=$1 settings= given=$options why=
    shift
    while :; do
        case $given in [A-Z]*=*) settings="$settings ${given%% *}" given=${given#* } ;; *) break ;; esac
    done
    ls -A >../before
    eval "set -- env $settings \"\$@\" $given"
    "$@" >../out 2>../err
    got=$?
    ls -A | grep -vxF -f ../before >../new
    grep -v '^tide: warning: \|^make\(\[[0-9]*\]\)\{0,1\}: ' ../err | sed 's/^tide: rank [0-9]*: /tide: /' | sort -u >../lines
    [ "$code" -eq 0 ] && cat ../out ../err >../lines
    [ "$got" -eq "$code" ] || why="; exit code $got"
    [ "$code" -eq 0 ] || [ "$(wc -l <../lines)" -eq 1 ] || why="$why; not one line"
    case $words in
        !*) grep -qa -e "${words#!}" ../lines && why="$why; it says so" ;;
        *) grep -qa -e "$words" ../lines || why="$why; it does not say so" ;;
    esac
    for file in $files; do
        case $file in
            !*) [ ! -e "${file#!}" ] || why="$why; $file" ;;
            *) [ -s "$file" ] || why="$why; no $file" ;;
        esac
    done
    [ "$code" -ne 2 ] || [ -n "$files" ] || [ ! -s ../new ] || why="$why; it leaves $(cat ../new)"
    if [ -z "$why" ]; then echo "ok $typed"
    else fail "$typed" "${why#; }: $(tail -n 3 ../err) $(tail -n 1 ../out)"; fi
}

grep -v '^#\|^$' "$top/dev/test/cli/lines.table" | grep -e "${1-}" >../rows
while read -r row <&3; do
    rest="$row | "
    for column in name on options code words files; do
        eval "$column=\${rest%% | *}"
        rest=${rest#* | }
    done
    case $options in *"precision fp16"*) whole || continue ;; esac
    case $on in
        cpu) typed "$name" "$cpu" ;;
        emu) if [ -n "$emulated" ]; then typed "$name" "$tide"; fi ;;
        gpu) typed "$name" "$tide" ;;
        both)
            typed "${name}_on_the_cpu" "$cpu"
            whole || continue
            while read -r file; do rm -rf "$file"; done <../new
            typed "$name" "$tide" ;;
        "cpu ranks") typed "$name" "$launch" 2 "$cpu" ;;
        ranks) if enough_gpus 2; then typed "$name" "$launch" 2 "$tide"; fi ;;
        script) typed "$name" sh ;;
        make) typed "$name" make -s ;;
        plan) typed "$name" env EMU_DEVICES=0 CUDA_VISIBLE_DEVICES= "$tide" --plan --out planned ;;
        *) fail "$name" "on $on" ;;
    esac
done 3<../rows
