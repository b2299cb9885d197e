#!/bin/sh
# Fine-tunes all weights of a model with AdamW, on examples or conversations in JSON (doc/finetuning.md). The last tenth
# of them is held out, unless --val names others. Then shows the answers of the model to the last three examples, before
# and after.
# usage: [DEMO=chat] scripts/finetune.sh [OPTION...]      without FILE: a small model reads made-up film reviews
#        and is then taught to say what they come to, with DEMO=chat in conversations; a minute on a CPU,
#        without network; in out/finetune-demo
#        FILE=my.jsonl [MODEL=DIR|OWNER/NAME] scripts/finetune.sh [OPTION...]      your examples, and a model
#        in a folder or of the hub, which is fetched (default GPT-2 124M); in out/finetune/tuned.
#        --plan: what fits, and how fast it is predicted to be; trains nothing; MODEL may be the name of a shape.
#        ROWS=N: the first N rows, as the model gets them; trains nothing.
#        [TRAINER=./train_gpt2cu] [OUT=DIR]; --resume goes on with a run that was stopped.
#        LAUNCH="sh scripts/launch.sh 4": on so many GPUs, the options as they are given; a relative path in it
#        is seen from your folder, so this one works from the top. --plan is of one GPU, or of --world N.
# On a GPU, the trainer chooses a placement that fits. If none does, the script adds the options that the plan proposes,
# and prints them. Rows have 256 tokens, or the model's context if that is shorter, or --seq. A step has 4 rows (16 with
# 1,000 or more examples), or --batch times --accum; the plan predicts which micro-batch is fastest. Without --steps or
# --epochs three epochs are trained; with fewer than 100 examples ten epochs, with one row in a step.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
case " $* " in *" --plan "*) plan=1 ;; *) plan='' ;; esac
trainer=${TRAINER:+$(absolute "$TRAINER")} out=${OUT:+$(absolute "$OUT")} file=${FILE:+$(absolute "$FILE")}
model=${MODEL-} top=$PWD caller=$PWD
case $model in
    */*/* | /* | ./* | ../* | '') hub='' ;;
    */*) if [ -e "$model" ]; then hub=''; else hub=$model; fi ;;
    *) hub='' ;;
esac
case $plan:$model in  # a name without a folder is that of a preset
    1:*/*) ;;
    1:?*) [ -e "$model" ] || preset=$model ;;
esac
[ -z "$model" ] || [ -n "$hub${preset-}" ] || model=$(absolute "$model")
cd "$(dirname "$0")/.."
if [ "$top" = "$PWD" ]; then top=''; else top=$PWD/; fi  # printed commands work in the caller's folder
[ -n "$file" ] || [ -z "$model" ] || refuse "MODEL without FILE: name your examples with FILE=my.jsonl"
[ -n "$file" ] || [ -z "$plan" ] || refuse "--plan without FILE: name your examples with FILE=my.jsonl"
[ -z "$file" ] || { [ -f "$file" ] && [ -r "$file" ]; } || refuse "FILE=$file: there is no such file, or it cannot be read"
case ${DEMO-}:$file in : | :* | chat:) ;; *) refuse "DEMO=$DEMO: it is chat, without FILE" ;; esac

# option NAME OPTION...: prints the last value of this option
option() {
    name=$1
    shift
    for word in "$@"; do
        case $word in "$name"=*) echo "${word#*=}" ;; esac
        [ "${before-}" != "$name" ] || echo "$word"
        before=$word
    done | tail -n 1
}

# count NAME OPTION...: prints the number of this option, or 1; removes leading zeros, which a shell reads as octal
count() {
    number=$(option "$@" | sed 's/^0*\([0-9]\)/\1/')
    case $number in '' | *[!0-9]*) number=1 ;; esac
    echo "$number"
}

# answers MODEL: prints the model's answers to the last three examples
answers() {
    for k in 3 2 1; do
        if asked=$("${top}build/ask" "$file" $k prompt && echo .); then
            "$trainer" --model "$1" ${tokenizer:+--tokenizer "$tokenizer"} --steps 0 --prompt="${asked%.}" \
                --sample-tokens 64 --temperature 0  # with the newlines at its end
        elif asked=$("${top}build/ask" "$file" $k user); then
            system=$("${top}build/ask" "$file" $k system) || system=''
            echo "> $asked"
            echo "$asked" | "$trainer" --model "$1" ${tokenizer:+--tokenizer "$tokenizer"} --steps 0 --chat \
                ${format:+--chat-format "$format"} ${system:+"--prompt=$system"} --sample-tokens 64 \
                --temperature 0 2>&1 | sed '/^conversations: /d'
        fi
    done
}

# faster OPTION...: sets $micro to the --batch and --accum that are predicted to be fastest, with the rows of a step
# that were asked for; to nothing if none fits, or there is no prediction
faster() {
    accum=$(count --accum "$@")
    rows=$(($(count --batch "$@") * accum))
    for micro in "--batch 1 --accum $rows" "--batch $rows --accum 1" ''; do
        # shellcheck disable=SC2086  # words
        [ -z "$micro" ] || ! said=$("$trainer" --plan --out "$tuned" "$@" -- $fits -- $micro 2>/dev/null) || break
    done
    case $micro,$said in ,*) ;; *tokens/s*)
        better=$(echo "$said" | sed -n 's/^faster.*: \(--batch [0-9]* --accum [0-9]*\), .*/\1/p')
        micro=${better:-$micro}
        echo "$rows row$([ "$rows" -eq 1 ] || echo s) to a step: fastest as predicted with $micro" ;;
    *) micro='' ;; esac
}

# fit OPTION...: sets $fits to the options with which the run fits, as the plan proposes them
fit() {
    fits=''
    # shellcheck disable=SC2086  # fits is words
    while ! said=$("$trainer" --plan --out "$tuned" "$@" -- $fits 2>&1 >/dev/null); do
        more=$(echo "$said" | sed -n 's/.*; it fits with \(--[a-z0-9 .-]*\).*/\1/p')
        case "$fits" in *"${more:-none}"*) more='' ;; esac
        if [ -z "$fits$more" ] && [ "$accum" -gt 1 ]; then  # sums of gradients may need too much
            fits="--batch $rows --accum 1"
            continue
        fi
        if [ -z "$more" ]; then
            echo "$said" >&2
            exit 1
        fi
        echo "as asked, this does not fit here; it does with $more"
        fits="${fits:+$fits -- }$more"
    done
}

# made_up N SEED PRINT: prints N lines with the awk statement PRINT, where $1 is a review and v its verdict
made_up() { build/reviews "$1" "$2" | awk -F '\t' "NR > 1 { v = \$2 ? \"good\" : \"bad\"; $3 }"; }

# The model of the demo. With DEMO=chat it is then tuned by conversations, like a user's model.
if [ -z "$file" ]; then
    make train_gpt2 build/reviews
    trainer=${trainer:-${top:-./}train_gpt2} out=${out:-${top}out/finetune-demo}
    new_folder "$out" "$trainer"
    build/reviews 20000 1 --text >"$out/text.txt"
    echo "a small model reads made-up reviews:"
    ./train_gpt2 --data "$out/text.txt" ${DEMO:+--tokenizer dev/test/fixtures/tokenizer/small-llama3} \
        --layers 2 --heads 2 --channels 64 --context 128 --batch 8 --steps 1000 --lr 3e-3 --eval-every 500 \
        --log-every 50 --out "$out/read"
fi
if [ -n "${DEMO-}" ]; then
    file=$out/talks.jsonl model=$out/read
    made_up 500 2 'printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s. so it is?\"}, ", $1
        printf "{\"role\": \"assistant\", \"content\": \"a %s film.\"}, ", v
        printf "{\"role\": \"user\", \"content\": \"sure?\"}, "
        printf "{\"role\": \"assistant\", \"content\": \"yes, %s.\"}]}\n", v' >"$file"
    set -- --steps 300 --lr 2e-3 --batch 8 --log-every 50 -- "$@"
fi
if [ -n "$file" ]; then
    tuned=${out:-${top}out/finetune}/tuned
    case " $* " in *" --resume "* | *" --plan "*) ;; *)
        [ -z "$(ls -A "$tuned" 2>/dev/null)" ] ||
            refuse "$tuned is of an earlier call: go on with it by --resume auto, or choose another folder by OUT="
    esac
    make build/ask
    case $(tr -d ' \t\r\n\357\273\277' <"$file" | head -c 2) in
        '{"' | '[{') ;;
        *)
        said=$("${top}build/ask" "$file" 1 prompt 2>&1 >/dev/null) || :
        said=${said#tide: }
        refuse "${said:-$file has no JSON lines}: FILE is examples, each a line like \
{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}; doc/finetuning.md has a command that makes them of a CSV" ;;
    esac
    if [ -z "$trainer" ] && { [ -n "$plan" ] || [ -e /dev/nvidiactl ]; }; then
        # shellcheck source=scripts/trainer.sh
        . scripts/trainer.sh
        trainer=$(absolute "$trainer")
    elif [ -z "$trainer" ]; then
        make train_gpt2
        trainer=${top:-./}train_gpt2
    fi
    if [ -n "${preset-}" ]; then :  # only the shape: no weights are fetched
    elif [ -n "$hub" ] || [ -z "$model" ]; then
        sh dev/data/model.sh ${plan:+--tokenizer} "${hub:-gpt2}"
        model=${top}data/$(basename "${hub:-gpt2}")
    fi
    cd "$caller"  # options name files from the caller's folder
    config=$model/config.json
    [ -d "$model" ] || config=$(dirname "$model")/config.json
    context=$([ ! -r "$config" ] || tr -d ' \t\r\n' <"$config" |
        grep -oE '"(n_positions|max_position_embeddings)":[0-9]+' | head -n 1 | cut -d : -f 2)
    if [ "${context:-256}" -lt 256 ]; then seq=$context; else seq=256; fi
    lines=$("${top}build/ask" "$file" count)
    held=$((lines < 30 ? lines / 10 : 3)) steps='--epochs 3' batch='--batch 4'
    [ "$lines" -lt 1000 ] || batch='--batch 4 --accum 4'
    case " $* " in *" --epochs"* | *" --steps"*) steps='' ;; esac
    [ "$lines" -ge 100 ] || [ -z "$steps" ] || steps='--epochs 10' batch='--batch 1'
    case " $* " in *" --batch"* | *" --accum"*) batch="${batch%% --accum*}" ;; esac
    case " $* " in *" --val"*) held=0 ;; esac
    format=$(option --chat-format "$@") tokenizer=$(option --tokenizer "$@")
    # shellcheck disable=SC2086  # steps is words
    if [ -n "${preset-}" ]; then  # without a tokenizer the plan cannot read the examples
        set -- --model "$preset" $batch --seq "$seq" -- "$@"
        if [ -n "$steps" ]; then
            case " $* " in *" --val"*) ;; *) lines=$((lines - lines / 10)) ;; esac
            rows=$(($(count --batch "$@") * $(count --accum "$@") * $(count --world "$@")))
            number=$(((lines * ${steps#* } + rows - 1) / (rows > 0 ? rows : 1)))
            echo "${steps#* } epochs of $lines lines: at most $number steps; short lines share a row"
            set -- --steps "$number" "$@"
        fi
    else
        set -- --model "$model" --data "$file" $batch --seq "$seq" $steps --lr 3e-5 --eval-every 50 -- "$@"
    fi
    if [ -n "${ROWS-}" ]; then  # build/rows lacks the options of a GPU build: then those that decide what a row has
        make -C "${top:-.}" build/rows >/dev/null
        "${top}build/rows" "$ROWS" --out "$tuned" "$@" 2>/dev/null ||
            "${top}build/rows" "$ROWS" --model "$model" --data "$file" --seq "$seq" --steps 1 --batch 1
        exit
    fi
    fits='' micro=''
    case ${trainer##*/}${LAUNCH:+ } in train_gpt2 | *' '*) ;; *)
        faster "$@"
        if [ -z "$micro" ]; then
            fit "$@"
            [ -z "$fits" ] || faster "$@"
        fi ;;
    esac
    # shellcheck disable=SC2086  # words
    [ -z "$fits$micro" ] || set -- "$@" -- $fits -- $micro
    [ -z "$plan" ] || exec "$trainer" --out "$tuned" "$@"
    # shellcheck disable=SC2086  # LAUNCH is words
    ${LAUNCH-} "$trainer" --out "$tuned" "$@"
    case " $* " in *" --no-save "*) exit ;; esac
    echo "answers to the last three examples ($held of them held out)"
    echo "before:"
    answers "$model"
    echo "after:"
    answers "$tuned"
    exit
fi
# examples N SEED: prints N reviews, each with two verdicts and the right one
examples() {
    made_up "$1" "$2" 'printf "{\"prompt\": \"%s so it is\", ", $1
        printf "\"choices\": [\" a bad film.\", \" a good one.\"], \"answer\": %d}\n", $2'
}
examples 1000 2 >"$out/train.jsonl"
examples 400 3 >"$out/val.jsonl"
echo "which verdict it finds likelier, before and while it is taught:"
"$trainer" --model "$out/read" --val "$out/val.jsonl" --steps 0
"$trainer" --model "$out/read" --data "$out/train.jsonl" --val "$out/val.jsonl" --batch 8 --steps 300 --lr 2e-3 \
    --eval-every 50 --log-every 50 --out "$out/tuned" -- "$@"
case " $* " in *" --no-save "*) exit ;; esac
echo "ask it: $trainer --model \"$out/tuned\" --steps 0 \\
    --prompt \"i love the plot so it is\" --sample-tokens 12 --temperature 0"
