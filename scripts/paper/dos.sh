# dos.sh: the setting of Deep Optimizer States (Maurya et al. 2024, section 5.3), for the scripts
# dos_*.sh, which source it: four GPUs with ZeRO-3, one sequence of 2048 tokens each, all activations
# but the layers' inputs recomputed. Predicted for WORLD GPUs, measured on those that LAUNCH starts.
# shellcheck shell=sh disable=SC2034,SC2154
rates_of=paper_h100 WORLD=${WORLD:-4}
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
alone="--batch 1 --seq 2048 --recompute block"
[ -z "$plan" ] || alone="$alone --gpu-memory ${GPU_MEMORY:-79G} --host-memory ${HOST_MEMORY:-480G}"
size=$alone
ranks=${LAUNCH:+2}
[ -z "$plan" ] || ranks=$WORLD
[ "${ranks:-1}" -eq 1 ] || size="$size --zero 3"
models=${MODELS:-7b 8.3b 10b 13b 20b} largest=${MODELS:-20b}
largest=${largest##* }
systems="ZeRO-3 DOS tide"

# in_table2 MODEL: the paper's GB of its 16-bit weights and gradients, and of its fp32 state
in_table2() {
    case $1 in 7b | llama2-7b) echo 24 96 ;; 8.3b) echo 30 121 ;; 10b) echo 37 150 ;;
        13b | llama2-13b) echo 46 188 ;; 20b) echo 73 294 ;; *) echo '? ?' ;; esac
}
# measure_casts: what no plan counts, by bench_offload (BENCH: if it stands elsewhere); for rate()
casts=/dev/null
measure_casts() {
    [ -z "$plan" ] || return 0
    casts=$out/casts.txt
    "${BENCH:-build/gpu/bench_offload}" --casts >"$casts" || refuse "casts: make build/gpu/bench_offload"
}
# rate NAME UNIT [FILE]: what a file of rates, or a comment in it, says of the machine; "?": nothing
paper=scripts/rates/paper_h100.txt
rate() {
    name=$1 unit=$2
    shift 2
    [ $# -gt 0 ] || set -- "$rates" "$casts"
    awk -v name="$name" -v unit="$unit" '{ sub(/^# /, "") }
        $1 == name && $2 > 0 { print $2 / unit; found = 1; exit } END { if (!found) print "?" }' "$@"
}
