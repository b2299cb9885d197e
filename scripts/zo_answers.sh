#!/bin/sh
# Teaches answers of several words by AdamW and by MeZO (Malladi et al. 2023), which scores SQuAD and
# DROP like this: held-out questions are answered by the likeliest token each time, and the words of the
# answers are compared with the right ones. Prints exact match and F1 (scripts/f1.awk), before and
# after.
# usage: scripts/zo_answers.sh [OPTION...]      made-up questions on film reviews, without network
#        MODEL=DIR DATA=train.jsonl VAL=val.jsonl scripts/zo_answers.sh [OPTION...]      lines of
#        {"prompt": "..", "completion": " .."}; VAL's may add right answers: "answers": ["..", ".."]
#        QUESTIONS=200: the last ones of VAL are asked; an answer is the first line of TOKENS=50;
#        METHODS="AdamW MeZO"; SIZE="--batch 16 --pack off", and OPTIONs: of both;
#        STEPS=300, LR=1e-3; MEZO_STEPS=1500, MEZO_LR=1e-4, MEZO_EPS=1e-2; with MODEL LR=1e-5,
#        MEZO_LR=1e-6, MEZO_EPS=1e-3; [TRAINER=./train_gpt2] [OUT=DIR]
# Without MODEL a small model first reads reviews with questions and wordy answers, for READ=2000 steps,
# and then learns short answers. Each question starts the trainer, which loads the model.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:+$(absolute "$TRAINER")} out=${OUT:+$(absolute "$OUT")}
model=${MODEL:+$(absolute "$MODEL")} train=${DATA:+$(absolute "$DATA")}
val=${VAL:+$(absolute "$VAL")}
case $model:$train:$val in
    ::) ;;
    *::* | :* | *:) refuse "MODEL, DATA and VAL: name all three, or none" ;;
esac
for file in "$model" "$train" "$val"; do
    [ -z "$file" ] || [ -r "$file" ] || refuse "$file: there is no such file"
done
cd "$(dirname "$0")/.."
out=${out:-$PWD/out/zo_answers}
if [ -z "$trainer" ] && [ -e /dev/nvidiactl ] && [ -n "$model" ]; then
    # shellcheck source=scripts/trainer.sh
    . scripts/trainer.sh
fi
make build/ask
[ -n "$trainer" ] || make train_gpt2
trainer=${trainer:-./train_gpt2}
new_folder "$out" "$trainer" ${model:+"$model" "$train" "$val"}

# made_up N SEED WORDY: prints N reviews of two statements, each with a question about one of them, as
# JSON lines. WORDY=0: the answer is the judgement on that part of the film, "very dull" or "i hate".
# WORDY=1: prompt and answer are one text, and two of three answers repeat the statement.
made_up() {
    build/reviews $(($1 * 3 + 200)) "$2" | awk -F '\t' -v wanted="$1" -v wordy="$3" '
        # returns "very dull" of "the plot is very dull", and "i hate" of "i hate the plot"
        function said_of(text) {
            if (text ~ /^the /) return substr(text, index(text, " is ") + 4)
            return substr(text, 1, index(text, " the ") - 1)
        }
        NR > 1 && made < wanted && (comma = index($1, ", ")) > 0 {
            if (made % 2) {
                which = "first"
                statement = substr($1, 1, comma - 1)
            } else {
                which = "second"
                statement = substr($1, comma + 2)
            }
            answer = wordy && int(made / 2) % 3 > 0 ? statement : said_of(statement)
            made++
            if (wordy) form = "{\"text\": \"%s. the %s? %s.\"}\n"
            else form = "{\"prompt\": \"%s. the %s?\", \"completion\": \" %s.\"}\n"
            printf form, $1, which, answer
        }'
}

# score NAME MODEL: asks the model all questions, and writes its answers beside the right ones to
# NAME.answers
score() {
    k=$asked_of
    while [ "$k" -gt 0 ]; do
        if ! asked=$(build/ask "$val" "$k" prompt && echo .) ||
            ! right=$(build/ask "$val" "$k" answers); then
            refuse "$val: line $k from the end has no prompt and completion"
        fi
        asked=${asked%.}  # with the newlines at its end
        said=$("$trainer" --model "$2" --steps 0 --prompt="$asked" --sample-tokens "${TOKENS:-50}" \
            --temperature 0 && echo .) || exit 1
        said=${said%.}
        answer=$(printf '%s' "${said#"$asked"}" | tr '\t' ' ' | sed -n '/[^[:space:]]/ { p; q; }')
        printf '%s\t%s\n' "$answer" "$right"
        k=$((k - 1))
    done >"$out/$1.answers"
    printf '%-7s' "$1"
    awk -f scripts/f1.awk "$out/$1.answers"
}

if [ -z "$model" ]; then
    lr=1e-3 mezo_lr=1e-4 mezo_eps=1e-2 train=$out/train.jsonl val=$out/val.jsonl model=$out/read
    make train_gpt2 build/reviews
    made_up 12000 1 1 >"$out/text.jsonl"
    made_up 1000 2 0 >"$train"
    made_up "${QUESTIONS:-200}" 3 0 >"$val"
    ./train_gpt2 --data "$out/text.jsonl" --tokenizer dev/test/fixtures/tokenizer/small-llama3 \
        --layers 2 --heads 4 --channels 64 --context 64 --batch 8 --steps "${READ:-2000}" \
        --lr 3e-3 --eval-every 0 --out "$model" >"$out/read.txt"
else
    lr=1e-5 mezo_lr=1e-6 mezo_eps=1e-3
fi
lines=$(grep -c '[^[:space:]]' "$val") || refuse "$val has no lines"
asked_of=${QUESTIONS:-200}
[ "$asked_of" -le "$lines" ] || asked_of=$lines
score before "$model"

# tune METHOD OPTION...: trains the model by METHOD, and scores the result
tune() {
    method=$1
    shift
    # shellcheck disable=SC2086  # options are words
    "$trainer" --model "$model" --data "$train" --val "$val" --eval-every 0 \
        --out "$out/$method" -- ${SIZE:---batch 16 --pack off} -- "$@" >"$out/$method.txt" ||
        refuse "$method: its run failed, $out/$method.txt has what it said"
    score "$method" "$out/$method"
}
for name in ${METHODS:-AdamW MeZO}; do
    case $name in
        AdamW) tune AdamW --steps "${STEPS:-300}" --lr "${LR:-$lr}" -- "$@" ;;
        MeZO)
            tune MeZO --optimizer mezo --steps "${MEZO_STEPS:-1500}" --lr "${MEZO_LR:-$mezo_lr}" \
                --zo-eps "${MEZO_EPS:-$mezo_eps}" --schedule constant -- "$@" ;;
        *) refuse "no method $name" ;;
    esac
done
echo "what was said, and what is right: $out/*.answers"
