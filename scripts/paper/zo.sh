# zo.sh: shared by zo_table1.sh, zo_table2.sh and zo_1.sh, which source it.
# shellcheck shell=sh disable=SC2034,SC2154
# shellcheck source=scripts/paper/figure.sh
. "$(dirname "$0")/figure.sh"
# shellcheck source=scripts/zo_measure.sh
. scripts/zo_measure.sh
[ -z "$plan" ] || size="${size-} --gpu-memory ${GPU_MEMORY:-79G} --host-memory ${HOST_MEMORY:-2048G}"
line run "$columns" >"$out/columns"
: >"$runs"
all=$rates
# The rates have no products in fp32: this is the 15 TFLOP/s that the paper's times imply
# (doc/speed.md).
precision_rates() {
    [ -n "$plan" ] || return 0
    if [ "$1" = fp32 ]; then
        rates=$out/$(basename "$all" .txt)_15_tflops.txt
        sed 's/^gpu_flops .*/gpu_flops 15e12/' "$all" >"$rates"
    else rates=$all; fi
}
