#!/bin/sh
# ZenFlow's "maintains or improves accuracy": fine-tunes a pretrained model on tasks of label words by
# AdamW, by ZenFlow (Lan et al. 2025) and by MeZO (Malladi et al. 2023), from several seeds. Prints
# the mean and the standard deviation of the accuracy on held-out examples, and draws the means.
# usage: [MODEL=DIR] [TASKS="reviews majority"] [METHODS="AdamW ZenFlow MeZO"] [SEEDS="1 2 3"]
#        scripts/paper/zen_quality.sh      tasks:
#        reviews    one made-up film review (dev/data/reviews.c): is it good or bad?
#        majority   three statements about a film: are more of them good or bad?
#        sst2       the sentences of dev/data/sst2.sh (SST2=DIR): with MODEL, if they are there
#        EXAMPLES=2000 to train on, half as many are held out; SIZE="--batch 16": options of all runs;
#        STEPS=300, LR=1e-3 of AdamW and ZenFlow; MEZO_STEPS=3000, MEZO_LR=3e-5, MEZO_EPS=1e-2;
#        with MODEL LR=1e-5, MEZO_LR=1e-6, MEZO_EPS=1e-3
# Without MODEL a small model first reads made-up reviews, for READ=1200 steps: it learns the marks
# after them, but judges poorly. Needs no network; takes 15 minutes on two cores.
id=zen_quality rates_of=h200_16cores DATA=$0 tuning=${STEPS:-300}
unset STEPS  # those of measure.sh
# shellcheck source=scripts/paper/trained.sh
. "$(dirname "$0")/trained.sh"
RATES=$top/scripts/rates/$rates_of.txt SIZE=${SIZE:---batch 16}  # --batch: or figure.sh would plan
SST2=$(realpath -m "${SST2:-$top/data/sst2}")
[ -z "${MODEL-}" ] || MODEL=$(realpath "$MODEL")
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
make build/reviews
if [ -n "${MODEL-}" ]; then
    template=' It was' labels=' terrible| great' tokenizer='' lr=1e-5 mezo_lr=1e-6 mezo_eps=1e-3
    [ ! -r "$SST2/train1000.tsv" ] || sst2=sst2
else
    template=' = ' labels='-|+' tokenizer=bytes lr=1e-3 mezo_lr=3e-5 mezo_eps=1e-2
    make train_gpt2
    build/reviews 20000 1 --text >"$out/text.txt"
    ./train_gpt2 --data "$out/text.txt" --layers 2 --heads 4 --channels 64 --context 128 --batch 8 \
        --steps "${READ:-1200}" --lr 3e-3 --eval-every 0 --out "$out/read" >"$out/read.txt"
    MODEL=$out/read
fi
tasks=${TASKS:-reviews majority ${sst2-}} seeds=${SEEDS:-1 2 3} examples=${EXAMPLES:-2000}
methods=${METHODS:-AdamW ZenFlow MeZO}

# make_examples TASK N SEED: prints N examples
make_examples() {
    printf 'sentence\tlabel\n'
    case $1 in
        reviews) build/reviews "$2" "$3" | sed 1d ;;
        majority)  # of reviews with one statement, which about half of them have
            build/reviews $(($2 * 8 + 100)) "$3" | awk -F '\t' -v wanted="$2" 'NR > 1 && !/,/ {
                text = text (n ? ". " : "") $1
                good += $2
                if (++n < 3 || made == wanted) next
                print text "\t" (good > 1)
                made++
                text = ""
                n = good = 0
            }' ;;
        *) refuse "no task $1" ;;
    esac
}

# task MODEL TASK OPTION...: trains a model on a task, or evaluates it
task() {
    weights=$1 data_of=$2
    shift 2
    # shellcheck disable=SC2086  # options are words
    ${LAUNCH-} "$trainer" --model "$weights" --val "$out/$data_of-val.tsv" --template "$template" \
        --labels "$labels" ${tokenizer:+--tokenizer $tokenizer} $SIZE -- "$@"
}

# accuracy MODEL TASK: prints it in percent; "?" if there is none
accuracy() {
    task "$1" "$2" --steps 0 2>&1 | awk '/accuracy [0-9.]+ %/ { for (i = 1; i < NF; i++)
        if ($i == "accuracy") found = $(i + 1) } END { print found == "" ? "?" : found }'
}

# tune TASK METHOD OPTION...: prints the accuracies of METHOD, one for each seed
tune() {
    tuned_for=$1 method=$2
    shift 2
    for seed in $seeds; do
        run_of=$out/$tuned_for-$method-$seed
        if task "$MODEL" "$tuned_for" --data "$out/$tuned_for.tsv" --out "$run_of" --seed "$seed" \
            --eval-every 0 "$@" >"$run_of.txt" 2>&1; then
            accuracy "$run_of" "$tuned_for"
        else
            tail -n 1 "$run_of.txt" >&2
            echo "?"
        fi
    done
}

# spread: reads numbers, one on each line; prints their mean and standard deviation
spread() {
    awk '/[?]/ { wrong = 1 } { sum += $1; squares += $1 * $1 }
        END {
            mean = sum / NR
            variance = (squares - NR * mean * mean) / (NR > 1 ? NR - 1 : 1)
            if (wrong) print "? ?"
            else printf "%.1f %.1f\n", mean, sqrt(variance < 0 ? 0 : variance)
        }'
}

# shellcheck disable=SC2086  # methods are words
row task before $methods
table_of="| task | before | $(echo "$methods" | sed 's/ / | /g') |
|---|---|$(echo "$methods" | sed 's/[^ ]* */---|/g')"
for name in $tasks; do
    if [ "$name" = sst2 ]; then
        cp "$SST2/train1000.tsv" "$out/sst2.tsv"
        cp "$SST2/dev.tsv" "$out/sst2-val.tsv"
    else
        make_examples "$name" "$examples" 2 >"$out/$name.tsv"
        make_examples "$name" $((examples / 2)) 3 >"$out/$name-val.tsv"
    fi
    means=$(accuracy "$MODEL" "$name")
    cells="$means |"
    for method in $methods; do
        set -- --steps "$tuning" --lr "${LR:-$lr}"
        case $method in
            ZenFlow) set -- --offload zenflow "$@" ;;
            AdamW) ;;
            MeZO)
                set -- --optimizer mezo --steps "${MEZO_STEPS:-3000}" --lr "${MEZO_LR:-$mezo_lr}" \
                    --zo-eps "${MEZO_EPS:-$mezo_eps}" ;;
            *) refuse "no method $method" ;;
        esac
        said=$(tune "$name" "$method" "$@" | spread)
        echo "$name, $method: $said"
        case $said in *"?"*) failed=1 ;; esac
        means="$means ${said% *}" cells="$cells ${said% *} ± ${said#* } |"
    done
    # shellcheck disable=SC2086
    row "$name" $means
    table_of="$table_of
| $name | $cells"
done
draw "Accuracy after fine-tuning: the means of $(echo "$seeds" | wc -w) seeds" % | tail -n 1
echo "$table_of"
finish
