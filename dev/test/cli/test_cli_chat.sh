#!/bin/sh
# Conversations as a user meets them: twenty are learned, and the model answers line by line what it
# has learned, on the CPU and on the GPU; what it sees when its window is full; what is refused.
# usage: sh dev/test/cli/test_cli_chat.sh    (from the top of the repository, after make,
#        make train_gpt2emu build/ask; TIDE_GPU=./train_gpt2cu for a real GPU)
set -u
. dev/test/cli.sh
begin cli_chat
fixtures=$top/dev/test/fixtures/tokenizer scripts=$top/scripts
without_measuring

# --- twenty conversations, of one turn and of two, some with a system message -----------------------

talk() {  # SYSTEM COLOUR THING...: of one turn each; with a system message in capital letters
    system=$1 colour=$2
    shift 2
    [ -n "$system" ] && colour=$(echo "$colour" | tr a-z A-Z)
    for thing in "$@"; do
        printf '{"messages": [%s{"role": "user", "content": "colour of %s?"}, {"role": "assistant", "content": "%s"}' \
            "${system:+{\"role\": \"system\", \"content\": \"$system\"\}, }" "$thing" "$colour"
        printf ', {"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes, %s"}]}\n' "$colour"
    done
}
{
    talk '' blue sky sea lake jay
    talk '' red rose blood ruby brick
    talk '' green grass leaf moss frog
    talk '' black coal night ink crow
    talk 'be loud' blue sky sea
    talk 'be loud' red rose blood
} >chat.jsonl
mkdir tokenizer
cp "$fixtures/small-llama3/tokenizer.json" tokenizer
printf '{"eos_token":\n "<|end_of_text|>"}' >tokenizer/tokenizer_config.json
printf '{{ "<|start_header_id|>" ~ m ~ "<|eot_id|>" }}\r\n' >tokenizer/chat_template.jinja
model="--model nano-llama --layers 2 --channels 64 --ffn 128 --context 64 --lr 1e-2 --save-every 0 --"
"$cpu" $model --tokenizer tokenizer --data chat.jsonl --val chat.jsonl --steps 150 --batch 4 --eval-every 150 \
    --out tuned >tuned.out 2>&1
"$cpu" $model --tokenizer tokenizer --data chat.jsonl --train-on last --steps 1 --no-save >last.out
trained() { sed -n 's/.*; \([0-9]*\) of [0-9]* tokens are trained$/\1/p' "$1"; }
check the_last_answers_alone_can_be_trained true_that "0$(trained last.out) > 0 && $(trained last.out) < 0.7 * $(trained tuned.out)"
check the_hint_is_a_chat grep -q '^try it: .* --model tuned --chat$' tuned.out
# answers PROGRAM OPTION...: to the lines of the standard input, with the exit code
answers() {
    said=$1
    shift
    "$said" --model tuned --steps 0 --chat --temperature 0 --sample-tokens 12 -- "$@" 2>chat.err
    echo "code $?"
}
two='blue
yes, blue
code 0'
check it_answers_and_remembers test "$(printf 'colour of sea?\nsure?\n' | answers "$cpu")" = "$two"
check on_the_gpu_too test "$(printf 'colour of sea?\n  \nsure?\n' | answers "$tide" --precision fp32)" = "$two"
check a_system_message_is_heard test "$(printf 'colour of sea?\nsure?\n' | answers "$cpu" --prompt 'be loud')" = 'BLUE
yes, BLUE
code 0'
check lines_end_as_on_windows_and_empty_ones_are_none test \
    "$(printf 'colour of sea?\r\n\n  \nsure?' | answers "$cpu")" = "$two"
check an_answer_that_is_cut_is_marked sh -c 'printf "colour of sea?\n" | "$0" --model tuned --chat --temperature 0 --sample-tokens 1 \
    2>&1 | grep -qx "tide: the answer was cut here, after 1 token (--sample-tokens)"' "$cpu"

# --- a full window --------------------------------------------------------------------------------

# At most half of the 64 tokens are kept free for an answer. The question before the last one is forgotten, and its
# answer with it; the system message stays.
printf 'colour of coal?\ncolour of sky?\ncolour of rose?\nsure?\n' >many.txt
cat many.txt many.txt | answers "$cpu" --sample-tokens 32 >more.out
check turns_are_forgotten_and_it_is_said_once test "$(grep -c '^tide: the window of 64 tokens is full: from here on the model forgets the oldest turns$' chat.err)" = 1
answers "$cpu" --sample-tokens 32 <many.txt >many.out
check and_it_goes_on test "$(tail -n 2 many.out | head -n 1)" = 'yes, red'
answers "$cpu" --sample-tokens 32 --prompt 'be loud' <many.txt >loud.out
check the_system_message_stays sh -c 'tail -n 2 loud.out | head -n 1 | grep -q "[A-Z]\{3\}"'
{
    awk 'BEGIN { for (i = 0; i < 40; i++) printf "colour of sky? "; print "" }'
    echo 'colour of ink?'
} | answers "$cpu" >long.out
check what_is_too_long_is_said grep -q '^tide: that is too long: [0-9]* tokens, and the model sees 64$' chat.err
check and_is_no_turn test "$(cat long.out)" = 'black
code 0'

# --- a template that asks for the day: the same one in every training ---------------------------------

cp -r tuned dated
printf '{%%- set date_string = strftime_now("%%d %%b %%Y") %%}{{- "Cutting Knowledge Date: December 2023\\n" }}%s' \
    '{{ "<|start_header_id|>" ~ m ~ "<|eot_id|>" }}' >dated/chat_template.jinja
"$cpu" --model dated --data chat.jsonl --seq 64 --steps 1 --no-save >fixed.out
check a_training_has_not grep -qx 'Today Date: 26 Jul 2024' fixed.out

# --- Ctrl-C -----------------------------------------------------------------------------------------

mkfifo line
"$cpu" --model tuned --steps 0 --chat --temperature 0 <line >stopped.out 2>stopped.err &
said=$!
exec 3>line
echo 'colour of sea?' >&3
await $said grep -q blue stopped.out
kill -INT $said
wait $said
code=$?
exec 3>&-
check ctrl_c_ends_it test "$(cat stopped.out) $code" = 'blue 130'

# --- finetune.sh shows answers to the last three, each with its system message --------------------------

FILE=chat.jsonl MODEL=tuned TRAINER="$cpu" OUT=shown sh "$scripts/finetune.sh" --val chat.jsonl --steps 1 --lr 1e-6 --seq 64 \
    --eval-every 0 --save-every 0 >shown.out 2>&1
printf '> colour of sea?\nBLUE\n> colour of rose?\nRED\n> colour of blood?\nRED\n' >expected
check the_script_asks_before_and_after sh -c 'sed -n "/^before:/,/^after:/p" shown.out | grep -A 5 "^> colour of sea" |
    cmp - expected && sed -n "/^after:/,\$p" shown.out | sed 1d | cmp - expected'

# --- formats by their names, and what is refused ------------------------------------------------------

"$cpu" --model nano --layers 1 --channels 64 --context 128 --tokenizer "$fixtures" --data chat.jsonl --val chat.jsonl \
    --chat-format llama2 --steps 150 --batch 4 --lr 1e-2 --eval-every 0 --save-every 0 --out llama2 >llama2.out 2>&1
check the_hint_names_the_format grep -q "^try it: .* --chat --chat-format llama2\$" llama2.out
check its_template_is_saved grep -q '\[INST\] ' llama2/chat_template.jinja
check it_answers_in_llama2 test "$(printf 'colour of sea?\nsure?\n' | "$cpu" --model llama2 --steps 0 --chat \
    --temperature 0 --sample-tokens 12 --chat-format llama2 | sed 's/ $//')" = 'blue
yes, blue'
"$cpu" $model --tokenizer tokenizer --data chat.jsonl --steps 1 --out 'two words' >words.out
check the_hint_is_for_a_shell grep -q "^try it: .* --model 'two words' --chat$" words.out
rm -f llama2/chat_template.jinja
refuses a_chat_without_a_format 2 'name it with --chat-format mistral' "$cpu" --model llama2 --steps 0 --chat
