#!/bin/sh
# Table 2 of ZO-Offloading: tokens/s of streamed MeZO without each of its three features.
# usage: [MODELS="opt-1.3b opt-6.7b"] scripts/paper/zo_table2.sh; see figure.sh
id=zo_table2 rates_of=a100_80gb_pcie4_zo size="--batch 1 --seq 2048"
# shellcheck source=scripts/paper/zo.sh
. "$(dirname "$0")/zo.sh"
precision_rates fp32
row model MeZO 'no overlap' 'no slots' 'no fused update' streamed 'no overlap (paper)' \
    'no slots (paper)' 'no fused update (paper)' 'streamed (paper)'
for model in ${MODELS:-opt-1.3b opt-2.7b opt-6.7b}; do
    cells=''
    for options in '--resident-blocks 1000' '--resident-blocks 0 --no-overlap' \
            '--resident-blocks 0 --zo-no-slots' '--resident-blocks 0 --zo-no-fused-update' \
            '--resident-blocks 0'; do
        # shellcheck disable=SC2086  # options are words
        measure "$model-$(echo $options | tr -d ' -')" --optimizer mezo --precision fp32 $options
        cells="$cells $(value tokens/s)"
    done
    paper=$(case $model in opt-1.3b) echo 1109 735 1567 1954 ;; opt-2.7b) echo 573 422 849 1087 ;;
        opt-6.7b) echo 225 184 373 499 ;; *) echo '? ? ? ?' ;; esac)
    # shellcheck disable=SC2086
    row "${model#opt-}" $cells $paper
done
draw "Table 2 of ZO-Offloading: what each feature is worth, fp32" tokens/s
finish
