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
trained=$(sed -n 's/.*; \([0-9]*\) of [0-9]* tokens are trained$/\1/p' tuned.out)
"$cpu" $model --tokenizer tokenizer --data chat.jsonl --val chat.jsonl --train-on last --steps 1 --no-save >last.out
last=$(sed -n 's/.*; \([0-9]*\) of [0-9]* tokens are trained$/\1/p' last.out)
sed 's/"content": "[A-Za-z]*"}, {"role": "user", "content": "sure?"/"weight": 0, &/' chat.jsonl >weights.jsonl
"$cpu" $model --tokenizer tokenizer --data weights.jsonl --val weights.jsonl --steps 1 --no-save >weights.out
check the_last_answers_are_those_without_a_weight_of_0 sh -c "[ $last -gt 0 ] && [ $last -lt $trained ] &&
    grep -q '; $last of [0-9]* tokens are trained' weights.out && grep -q '^step 1' last.out &&
    [ \"\$(sed -n 's/^step 1.*loss \([0-9.]*\).*/\1/p' last.out)\" = \"\$(sed -n 's/^step 1.*loss \([0-9.]*\).*/\1/p' weights.out)\" ]"
"$cpu" --model tuned --steps 0 --val chat.jsonl --scores scores.jsonl >scores.out
check answers_alone_are_evaluated test "$(sed -n 's/.*"tokens":\([0-9]*\),.*/\1/p' scores.jsonl |
    awk '{ n += $1 } END { print n }')" = "$trained"
check what_they_cost_is_the_loss sh -c "sed 's/.*\"tokens\":\([0-9]*\),\"loss\":\([^,]*\),.*/\1 \2/' scores.jsonl |
    awk -v loss=\"\$(sed -n 's/^val loss \([0-9.]*\).*/\1/p' scores.out)\" '{ n += \$1; sum += \$1 * \$2 }
        END { d = sum / n - loss; exit !(n > 0 && loss != \"\" && d < 1e-4 && d > -1e-4 && loss < 0.05) }'"
for name in tokenizer.json tokenizer_config.json chat_template.jinja; do
    check "saved_byte_for_byte_$name" cmp tokenizer/$name tuned/$name
done
check the_format_is_said grep -qx 'conversations: llama3, as the chat template says; default system message: none' tuned.out
check a_template_whose_end_of_turn_stops_nothing_is_noted grep -q '^note: generation_config.json lacks token 2009, ' tuned.out
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
check on_the_gpu_too test "$(printf 'colour of sea?\nsure?\n' | answers "$tide" --precision fp32)" = "$two"
check a_system_message_is_heard test "$(printf 'colour of sea?\nsure?\n' | answers "$cpu" --prompt 'be loud')" = 'BLUE
yes, BLUE
code 0'
check lines_end_as_on_windows_and_empty_ones_are_none test \
    "$(printf 'colour of sea?\r\n\n  \nsure?' | answers "$cpu")" = "$two"
check a_seed_draws_the_same sh -c 'for i in 1 2; do printf "what?\nwhat?\n" | "$0" --model tuned --chat --seed 5 \
    --temperature 3 --sample-tokens 9 2>&1; done | sort | uniq -c | awk "\$1 % 2 { odd = 1 } END { exit odd || NR < 2 }"' "$cpu"
check a_turn_of_two_lines_has_one_answer test "$(printf 'colour of sea?\\\n\nsure?\n\\\n \n' | answers "$cpu" | wc -l)" = 3
check an_answer_that_ends_is_not_cut sh -c '! grep -q "was cut" chat.err'
check an_answer_that_is_cut_is_marked sh -c 'printf "colour of sea?\n" | "$0" --model tuned --chat --temperature 0 --sample-tokens 1 \
    2>&1 | grep -qx "tide: the answer was cut here, after 1 token (--sample-tokens)"' "$cpu"
check a_special_token_of_a_user_is_text sh -c 'printf "<|eot_id|>\n" | "$0" --model tuned --chat >special.out' "$cpu"

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

# --- a template that asks for the day: this one's in a chat, the same one in every training -------------

cp -r tuned dated
printf '{%%- set date_string = strftime_now("%%d %%b %%Y") %%}{{- "Cutting Knowledge Date: December 2023\\n" }}%s' \
    '{{ "<|start_header_id|>" ~ m ~ "<|eot_id|>" }}' >dated/chat_template.jinja
days="$(date '+%d %b %Y')"
"$cpu" --model dated --chat </dev/null >dated.out 2>dated.err
days="$days\|$(date '+%d %b %Y')"
check a_chat_has_the_day grep -qx "Today Date: \($days\)" dated.err
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

FILE=chat.jsonl MODEL=tuned TRAINER="$cpu" OUT=named sh "$scripts/finetune.sh" --val chat.jsonl --steps 1 --lr 1e-6 --seq 64 \
    --eval-every 0 --save-every 0 --chat-format=llama2 >named.out 2>&1
check the_script_asks_in_the_named_format test "$(grep -c '^> colour of' named.out)" = 6

# --- formats by their names, and what is refused ------------------------------------------------------

for format in llama2 mistral; do
    "$cpu" --model nano --layers 1 --channels 64 --context 128 --tokenizer "$fixtures" --data chat.jsonl --val chat.jsonl \
        --chat-format $format --steps 150 --batch 4 --lr 1e-2 --eval-every 0 --save-every 0 --out $format >$format.out 2>&1
    check "the_hint_names_$format" grep -q "^try it: .* --chat --chat-format $format\$" $format.out
    check "its_template_is_saved_$format" grep -q '\[INST\] ' $format/chat_template.jinja
    check "it_answers_in_$format" test "$(printf 'colour of sea?\nsure?\n' | "$cpu" --model $format --steps 0 --chat \
        --temperature 0 --sample-tokens 12 --chat-format $format | sed 's/ $//')" = 'blue
yes, blue'
done
"$cpu" $model --tokenizer tokenizer --data chat.jsonl --steps 1 --out 'two words' >words.out
check the_hint_is_for_a_shell grep -q "^try it: .* --model 'two words' --chat$" words.out
talk='--model tuned --steps 0 --chat'
"$tide" $talk --plan --gpu-memory 1G --host-memory 1G >plan.out
check a_plan_of_a_chat sh -c 'grep -q "^model: 2 layers" plan.out && n=$(sed -n "s/^GPU  total  *\([0-9.]*\) of .*/\1/p" plan.out) &&
    tail -n 1 plan.out | grep -qx "fits: $n MiB of 1.00 GiB on the GPU"'
refuses a_chat_that_does_not_fit 2 'this run needs .* GPU memory' "$tide" $talk --plan --gpu-memory 1M
rm -f llama2/chat_template.jinja
refuses a_chat_without_a_format 2 'name it with --chat-format mistral' "$cpu" --model llama2 --steps 0 --chat
refuses a_format_without_its_tokens 2 'mistral-v3 needs the token \[INST\]' "$cpu" $talk --chat-format mistral-v3
echo '{"messages": [{"role": "tool", "content": "x"}]}' >>chat.jsonl
refuses a_tool 2 'chat.jsonl, line 21: message 1 has the role "tool": the format chatml has none\|the format llama3 has none' \
    "$cpu" $model --tokenizer tokenizer --data chat.jsonl
