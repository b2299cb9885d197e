#!/bin/sh
# Table 1 of ZO-Offloading (Wang et al. 2024): tokens/s and GPU memory of MeZO, and of MeZO with
# streamed layers, in 16 and 32 bits; OPT, one sequence of 2048 tokens. (125M and 350M can be measured
# with MODELS. They are predicted far too fast: starts of kernels take most of their time.)
# usage: [MODELS="opt-1.3b opt-13b"] [PRECISIONS=fp16] scripts/paper/zo_table1.sh; see figure.sh
id=zo_table1 rates_of=a100_80gb_pcie4_zo size="--batch 1 --seq 2048"
# shellcheck source=scripts/paper/zo.sh
. "$(dirname "$0")/zo.sh"
paper() {  # PRECISION MODEL: tokens/s of MeZO and ZO-Offloading, MB of both
    case $1-$2 in
        fp16-opt-125m) echo 31058 31058 1801 1661 ;; fp32-opt-125m) echo 14889 13074 3091 2941 ;;
        fp16-opt-350m) echo 13508 12284 2389 1643 ;; fp32-opt-350m) echo 5274 5099 4219 3393 ;;
        fp16-opt-1.3b) echo 6788 6788 4887 2651 ;; fp32-opt-1.3b) echo 1954 1954 9117 4413 ;;
        fp16-opt-2.7b) echo 4227 4227 7933 3111 ;; fp32-opt-2.7b) echo 1087 1087 15277 5261 ;;
        fp16-opt-6.7b) echo 2455 2455 16311 4539 ;; fp32-opt-6.7b) echo 499 499 32083 8329 ;;
        fp16-opt-13b) echo 1406 1340 29411 6445 ;; fp32-opt-13b) echo 270 270 58251 12113 ;;
        fp16-opt-30b) echo 651 597 63953 10369 ;; fp32-opt-30b) echo '?' 122 '?' 18879 ;;
        fp16-opt-66b) echo '?' 273 '?' 14143 ;; fp32-opt-66b) echo '?' 40 '?' 29937 ;;
        fp16-opt-175b) echo '?' 37 '?' 24667 ;; fp32-opt-175b) echo '?' 14 '?' 49203 ;;
        *) echo '? ? ? ?' ;;
    esac
}
for precision in ${PRECISIONS:-fp16 fp32}; do
    speeds=$out/speeds memories=$out/memories
    precision_rates "$precision"
    : >"$speeds"
    : >"$memories"
    for model in ${MODELS:-opt-1.3b opt-2.7b opt-6.7b opt-13b opt-30b opt-66b opt-175b}; do
        # shellcheck disable=SC2046  # four numbers
        set -- $(paper "$precision" "$model")
        options="--optimizer mezo --precision $precision"
        # shellcheck disable=SC2086
        measure "$precision-$model-memory" $options --resident-blocks 1000
        speed=$(value tokens/s) gib=$(value GPU)
        # shellcheck disable=SC2086
        measure "$precision-$model-streamed" $options --resident-blocks 0
        echo "$model $speed $(value tokens/s) $1 $2" >>"$speeds"
        echo "$model $gib $(value GPU) $(calculate "${3} / 1024") $(calculate "${4} / 1024")" \
            >>"$memories"
    done
    for what in tokens/s GiB; do
        file=$speeds kind=speed
        [ $what = tokens/s ] || file=$memories kind=memory
        id=zo_table1_${precision}_$kind figure=$out/zo_table1_${precision}_$kind.tsv
        : >"$figure"
        row model 'in memory' streamed 'in memory (paper)' 'streamed (paper)'
        while read -r model a b c d; do row "${model#opt-}" "$a" "$b" "$c" "$d"; done <"$file"
        draw "Table 1 of ZO-Offloading, $precision: OPT" $what
    done
done
finish
