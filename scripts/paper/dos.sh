# dos.sh: the setting of Deep Optimizer States (Maurya et al. 2024, section 5.3), for dos_*.sh, which
# source it: four GPUs with ZeRO-3, one sequence of 2048 tokens on each, all activations recomputed but
# the layers' inputs. Predicts for WORLD GPUs; measures on the GPUs that LAUNCH starts.
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

# in_table2 MODEL: prints the paper's GB of 16-bit weights and gradients, and of fp32 state
in_table2() {
    case $1 in 7b | llama2-7b) echo 24 96 ;; 8.3b) echo 30 121 ;; 10b) echo 37 150 ;;
        13b | llama2-13b) echo 46 188 ;; 20b) echo 73 294 ;; *) echo '? ?' ;; esac
}
# measure_casts: measures casts, which no plan counts, by bench_offload (or BENCH); for rate()
casts=/dev/null
measure_casts() {
    [ -z "$plan" ] || return 0
    casts=$out/casts.txt
    "${BENCH:-build/gpu/bench_offload}" --casts >"$casts" || refuse "casts: make build/gpu/bench_offload"
}
# rate NAME UNIT [FILE]: prints a rate from a file of rates, or from a comment in it; "?": none
paper=scripts/rates/paper_h100.txt
rate() {
    name=$1 unit=$2
    shift 2
    [ $# -gt 0 ] || set -- "$rates" "$casts"
    awk -v name="$name" -v unit="$unit" '{ sub(/^# /, "") }
        $1 == name && $2 > 0 { print $2 / unit; found = 1; exit } END { if (!found) print "?" }' "$@"
}
