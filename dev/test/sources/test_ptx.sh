#!/bin/sh
# test_ptx.sh: nvcc's own code of the kernels (PTX for sm_80 and sm_90), on the emulated GPU, in the
# tests of the GPU sources (doc/ptx.md). Each kernel of the PTX must have been launched; kernels of
# several files that say the same are one. Skipped where there is no nvcc or no python3.
# usage: ALL=1 sh dev/test/sources/test_ptx.sh   (from the top of the repository; what is missing is built)
set -u
export LC_ALL=C
[ "${ALL:-0}" = 1 ] || { echo "skip ptx: minutes, with ALL=1"; exit 0; }
value() { make -s --no-print-directory "print-$1"; }
[ -n "$(value PTX)" ] || { echo "skip ptx: no nvcc, or no python3 on this machine"; exit 0; }
jobs=$(nproc 2>/dev/null || echo 2)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2046  # programs
make -s -j"$jobs" $(value ptx_programs) >"$work/log" 2>&1 ||
    { grep -m 5 'ptx2c\|[Ee]rror' "$work/log"; echo "FAIL ptx: does not build"; exit 1; }

# An instruction without a rule ends the translation, by its name.
sed 's/ex2\.approx\.ftz/tanh.approx/' build/ptx/bf16_sm_90.ptx >"$work/unknown.ptx"
if ! python3 dev/ptx/ptx2c.py --only activation_forward "$work/out" "$work/unknown.ptx" >"$work/log" 2>&1 &&
    grep -q 'unknown.ptx line [0-9]*, kernel .*activation_forward.*: unknown instruction tanh.approx.f32' \
        "$work/log"
then echo "ok ptx_refuses_the_unknown"; else echo "FAIL ptx_refuses_the_unknown"; cat "$work/log"; fi

# What runs: TEST ORDER GPU, the slowest first. Orders of a block's threads and GPUs are spread over
# the tests. Those of placements (but in fp16, whose moments in bf16 no other test has), ranks, plans, clocks and
# products launch no other kernels, and are left out. test_kernels and test_attention have kernels of
# all three precisions; in fp32 and fp16 what trains covers the rest.
cat >"$work/plan" <<'END'
test_zenflow_gpu random sm_90
test_model forward sm_80
test_model_fp32 random sm_80
test_zo_gpu reverse sm_80
test_zo_gpu_fp16 random sm_90
test_model_fp16 reverse sm_90
test_placement_fp16 random sm_80
test_zenflow_gpu_fp16 random sm_80
test_gpt2cu random sm_80
test_zo_gpu_fp32 forward sm_80
test_kernels reverse sm_90
test_kernels random sm_80
test_gpt2cu_fp32 reverse sm_90
test_zenflow_gpu_fp32 forward sm_80
test_attention reverse sm_80
test_attention random sm_90
test_columns_gpu random sm_90
test_calibrate forward sm_80
test_host random sm_80
END

# what a line does
cat >"$work/one.sh" <<'END'
test=$1 order=$2 gpu=$3 name=$1.$2.$3
case $test in
    *_fp32) precision=_fp32 sets=fp32_$gpu ;;
    *_fp16) precision=_fp16 sets=fp16_$gpu ;;
    *) precision= sets=bf16_$gpu,fp16_$gpu,fp32_$gpu ;;
esac
[ "$test" != test_attention ] || export ALL=1  # fp16's too
ln -sf "$PWD/build/ptx/gpu_tests$precision" "build/ptx/$test"
PTX=$sets PTX_REPORT=$work/report.$name EMU_ORDER=$order "build/ptx/$test" >"$work/out.$name" 2>&1 &&
    grep -q '^ok ' "$work/out.$name" && ! grep '^FAIL ' "$work/out.$name" &&
    [ -s "$work/report.$name" ] &&
    echo "ok ptx_$name: $(grep -c '^ok ' "$work/out.$name") passed" ||
    { tail -n 5 "$work/out.$name"; echo "FAIL ptx_$name: see above"; }
END
export work ALL=0 OMP_NUM_THREADS=1
xargs -P "$jobs" -L 1 sh "$work/one.sh" <"$work/plan"

awk -F '[ ",{}]+' 'FNR == NR {
    if (/_sm_/) {
        known[$2 " " $3] = $4
        if (!($4 in name)) name[$4] = $2 " " $3
        needed[$4]
        sets[$2]
    }
    next
}
$1 != "-" { seen[known[$1 " " $2]] += $3; launches += $3 }
END {
    for (k in needed) {
        kernels++
        if (!(k in seen)) print "FAIL ptx_launched: no test has launched " name[k]
        else launched++
    }
    if (launched == kernels && kernels > 100)
        print "ok ptx_launched: all of " kernels " kernels of " length(sets) " files, " \
            launches " launches"
    else print "FAIL ptx_launched: " launched + 0 " of " kernels + 0 " kernels"
}' build/ptx/kernels.table.cpp "$work"/report.*
