#!/bin/sh
# dev/gpu_check.sh from end to end, against the emulated GPU and stand-ins for the tools of a
# machine with a real one: all parts of its three calls with tiny models; a part that hangs, one
# that fails, a program that does not start, a call that is cut short. Says nothing about speed.
# usage: sh dev/test/tools/test_gpu_check.sh    (from the top of the repository, after make train_gpt2
#        train_gpt2emu build/compare build/timeline build/tokenize build/emu/gpu_tests, and
#        build/emu/bench_*; all of it only with ALL=1, as it takes a minute or two)
set -u
for f in xz strip ldd python3 setsid bash; do
    command -v $f >/dev/null || { echo "skip gpu_check: $f is missing"; exit 0; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. dev/test/cli.sh
if ! whole; then
    cp -r dev scripts "$work" && cd "$work" || exit
    check gpu_check_is_bash bash -n dev/gpu_check.sh
    check gpu_parts_are_bash bash -n dev/gpu_parts.sh
    check help_is_its_head sh -c 'dev/gpu_check.sh | grep -q "^  dev/gpu_check.sh first OUT *570 s"'
    refuses no_such_part 2 "no part nonsense: " dev/gpu_check.sh part nonsense out
    mkdir mine tools && echo mine >mine/run.log && cp -r mine table && echo earlier >table/rows.tsv
    printf '#!/bin/sh\necho a GPU\n' >tools/nvidia-smi && chmod +x tools/nvidia-smi
    PATH="$PWD/tools:$PATH"
    refuses what_it_did_not_make_stays 2 'mine has other files: choose another OUT' \
        dev/gpu_check.sh part facts mine
    refuses its_own_rates_stay 2 'table/run.log is in table' env RATES=table/run.log \
        dev/gpu_check.sh part facts table
    BUDGETS=facts=0 dev/gpu_check.sh part facts table >said 2>&1
    check an_earlier_call_stays sh -c 'grep -q earlier table-1/rows.tsv && grep -q mine table-1/run.log &&
        ! grep -q earlier table/rows.tsv'
    refuses another_folder_is_no_pack 2 'mine has files' dev/gpu_check.sh pack mine
    check and_stays sh -c 'grep -q mine mine/run.log'
    exit 0
fi
export TINY=1 EMU_CLOCK=virtual EMU_KERNEL_US=10000 EMU_PROTECT=0 EMU_SCHED=lazy OMP_NUM_THREADS=1
export EMU_THREADS=1 XZ_OPT=-0 TMPDIR="$work" ALL=0
unset NVCC GPU

# Programs under the names that they have on a GPU, all of the emulated one.
mkdir "$work/made" "$work/tools" "$work/tree"
for f in train_gpt2 build/compare build/timeline build/tokenize; do
    cp "$f" "$work/made/${f##*/}" || exit
done
cp train_gpt2emu "$work/made/train_gpt2cu" || exit
for f in gpu_tests gpu_tests_fp32 gpu_tests_fp16 test_emu test_nccl bench_probe bench_gpu \
    bench_offload bench_zen bench_zo bench_zo_fp32 bench_zo_fp16; do
    cp "build/emu/$f" "$work/made/$f" || exit
done
cp -r ./*.c ./*.h ./*.cu tide ./*.md Makefile LICENSE dev scripts "$work/tree" || exit
cd "$work/tree" || exit

tool() { cat >"$work/tools/$1"; chmod +x "$work/tools/$1"; }
export MADE="$work/made" SAID="$work/said" PATH="$work/tools:$PATH"
PYTHON=$(command -v python3)
export PYTHON
tool make <<'EOF'
#!/bin/sh
echo "make $*" >>"$SAID"
[ "${1-}" = -C ] && { cd "$2" || exit; shift 2; }
sleep "${MAKE_TAKES:-0}"
for target in "$@"; do
    case $target in -* | *=* | *.o) continue ;; esac
    [ "$target" != "${CANNOT_BUILD-}" ] || { echo "nvcc error: no $target" >&2; exit 2; }
    mkdir -p "$(dirname "$target")" && cp "$MADE/${target##*/}" "$target" || exit
done
EOF
tool nvidia-smi <<'EOF'
#!/bin/sh
case "$*" in
    -L) echo "GPU 0: Emulated GPU (UUID: none)" ;;
    *-lms*) while :; do echo "700.50, 1755, 55"; sleep 0.05; done ;;
    *gpu=name*) echo "Emulated GPU" ;;
    *memory.total\ *) echo "143771" ;;
    *) echo "1980 MHz, 3201 MHz, 700.00 W, 30" ;;
esac
EOF
tool nvcc <<'EOF'
#!/bin/sh
echo "Cuda compilation tools, release 13.0, V13.0.88"
EOF
tool ncu <<'EOF'
#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --log-file) csv=$2 ;; ./*) break ;; esac
    shift
done
if [ -n "${NCU_HANGS-}" ]; then
    trap '' TERM
    timeout 1000 sleep 1000 &  # in a process group of its own
    echo "$$ $!" >"$NCU_HANGS"
    sleep 1000
fi
"$@" || exit
{
    echo "==PROF== Connected to process 7"
    printf '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    printf '"Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit",'
    echo '"Metric Value"'
    while IFS=: read -r kernel ns; do
        printf '"0","7","train_gpt2cu","here","%s","1","7","(256, 1, 1)","(32, 1, 1)",' "$kernel"
        echo "\"0\",\"9.0\",\"Metrics\",\"gpu__time_duration.sum\",\"ns\",\"$ns\""
    done <<'END'
void layernorm_forward_kernel<__nv_bfloat16>(T1 *, const T1 *):2,000
void layernorm_forward_kernel<__nv_bfloat16>(T1 *, const T1 *):4,000
nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT:194,000
END
} >"$csv"
EOF
tool compute-sanitizer <<'EOF'
#!/bin/sh
tool=$2
while [ "${1#./}" = "$1" ]; do shift; done
"$@" || exit
if [ "$tool" = "${SANITIZER_FINDS-}" ]; then echo "========= ERROR SUMMARY: 3 errors"; exit 9; fi
case $tool in
    racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
    *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
EOF
tool python3 <<'EOF'
#!/bin/sh
case "$*" in
    *importlib.metadata*) echo 2.11.0 ;;
    *"import torch"*) echo 1 ;;
    *"--mode sdpa"*)
        echo 'PyTorch forward | 288.7 TFLOP/s, 186.0 us'
        echo 'PyTorch backward | 250.1 TFLOP/s, 500.0 us' ;;
    *versus_pytorch*)
        echo '{"what": "PyTorch", "mode": "master", "tokens_per_s": 30000.5, "ms": 546.1,' \
            '"ms_min": 540.0, "compiled": "no"}'
        echo 'PyTorch master | 30000.5 tokens/s, 546.1 ms, compiled: no' ;;
    *) exec "$PYTHON" "$@" ;;
esac
EOF

# --- the pack ----

check pack_packs dev/gpu_check.sh pack
check pack_has_all test "$(find build/pack -name '*.xz' | wc -l)" -eq 17 -a \
    "$(grep -c '^program' build/pack/manifest)" -eq 17
check pack_is_portable \
    grep -q -- "-C build/pack.tree .*compute_90,code=sm_90 ARCH=-march=x86-64-v3" "$SAID"
check pack_is_not_the_tree test ! -e train_gpt2cu
refuses pack_too_large 2 "the pack would have .* kB, more than 1: " env PACK_LIMIT=1 \
    dev/gpu_check.sh pack too_large
check too_large_is_gone test ! -e too_large
refuses no_such_part 2 "no part nonsense: " dev/gpu_check.sh part nonsense out

# --- the calls ----

# call CODE NAME CALL [VARIABLE=VALUE]...: into out_NAME; what it prints last is its table
call() {
    code=$1 name=$2 which=$3
    shift 3
    # shellcheck disable=SC2086  # one word, or two
    env "$@" dev/gpu_check.sh $which "out_$name" >"$name.said" 2>&1
    got=$?
    [ "$got" -eq "$code" ] || { tail -n 30 "$name.said"; echo "code $got, not $code"; return 1; }
}
# said CALL WHAT MARK: there is such a row, whose columns match these patterns
said() {
    awk -F '\t' -v what="$2" -v mark="$3" '
        $3 ~ what && $7 ~ mark { n++ } END { exit !n }' "out_$1/rows.tsv"
}
measured() {  # the same of what was measured
    awk -F '\t' -v what="$2" -v is="$3" '
        $3 ~ what && $4 ~ is { n++ } END { exit !n }' "out_$1/rows.tsv"
}
marked() { awk -F '\t' '$7 ~ /FAIL|CUT/ { print $1 ": " $3 }' "out_$1/rows.tsv"; }
only_marked() { [ "$(marked "$1")" = "$2" ] || { marked "$1"; return 1; }; }
is_small() {
    [ "$(wc -l <"out_$1/table.md")" -le 100 ] && [ "$(wc -c <"out_$1/table.md")" -lt 12000 ] \
        && [ "$(find "out_$1" -type f | wc -l)" -le 8 ]
}
ends_with_table() {
    [ "$(tail -n "$(wc -l <"out_$1/table.md")" "$1.said")" = "$(cat "out_$1/table.md")" ]
}
is_gone() {  # what has hung, and its child; who has to ask for its exit code may be slow to
    read -r tool child <"$work/hung"
    ! cat "/proc/$tool/stat" "/proc/$child/stat" 2>/dev/null | grep -v ') Z '
}
# ran CALL: each of its parts has rows, and more than the one about its time
ran() {
    for part in $2; do
        [ "$(cut -f1 "out_$1/rows.tsv" | grep -cx "$part")" -ge 2 ] && continue
        echo "no rows of $part"
        return 1
    done
}

# A program that does not start, one that the tests find fault with, a tool that hangs.
printf 'no program' | xz >build/pack/build+gpu+bench_gpu.xz
cat >expected <<'EOF'
device | Emulated
bench: .* residual_layernorm_forward | 1e8 | 1e9 | % of memory
bench: (124M|tiny) attention_forward | 0 | 100 | % of arithmetic
bench: tiny AdamW | -9 | -5 | % of memory
device | Another
bench: .* crossentropy | 0 | 100 | % of memory
EOF
: >"$SAID"
check first call 1 first first NCU_HANGS="$work/hung" SANITIZER_FINDS=racecheck EMU_CLOCK=real \
    BUDGETS="kernels=5"
check first_table_is_small is_small first
check first_ends_with_its_table ends_with_table first
check first_table_is_one test "$(grep -n '^|---' out_first/table.md)" = "4:|---|---|---|---|---|---|"
check first_ran_all ran first "facts probe tests train calibrate hidden curves products kernels \
    sanitize torch"
check first_marks_what_is_wrong only_marked first "kernels: kernels
sanitize: racecheck, bf16"
check first_killed_what_hangs said first kernels CUT
check nothing_of_it_is_left is_gone
check first_rebuilt_only_what_does_not_start \
    test "$(cat "$SAID")" = "make -k -j$(nproc) build/gpu/bench_gpu"
check first_says_so measured first programs "built here.* build/gpu/bench_gpu"
check power_and_clocks measured first '^7B, 1 x 32' '70[01] W, 1755 MHz, 55 C'
check products_are_rows measured first 'tiny qkv, gradient of the weight' 'TFLOP/s; best: number 0'
check tests_are_counted measured first '2 programs' '[1-9][0-9]* ok, 0 failed'
check same_bits measured first 'in bf16, twice' 'the same bits'
check offloading_is_seen measured first '^interleave$' 'ms, plan .*G parameters/s'

check offload call 0 offload offload EMU_CLOCK=real EXPECTED="$PWD/expected"
check offload_table_is_small is_small offload
check offload_ran_all ran offload "facts calibrate slice placement whole bench drift"
check casts_are_measured measured offload '^G16-G32$' '[0-9] GB/s'
check modes_are_compared measured offload '^interleave$' 'ms, plan .*G parameters/s'
check weights_stream measured offload '^streamed$' 'ms, plan .*G parameters/s'
check a_little_is_recomputed measured offload '^none-light$' 'ms, plan'
check below_what_is_expected said offload '^tiny residual_layernorm_forward' below
check as_expected said offload '^tiny attention_forward' 'as expected'
check above_what_is_expected said offload '^tiny AdamW$' above
check nothing_of_other_devices said offload '^tiny crossentropy' '^$'
check trace_is_there sh -c 'gzip -dc out_offload/trace.json.gz | grep -q traceEvents'
check rates_can_be_used ./train_gpt2cu --plan --model gpt2 --rates out_offload/measured_rates.txt \
    --gpu-memory 8G --host-memory 8G
check rates_say_where_from grep -q "MEASURED on Emulated GPU with" out_offload/measured_rates.txt

# of three algorithms the second one takes least
check rest call 0 rest rest RATES="$PWD/out_offload/measured_rates.txt" EMU_LT_TIMES=3,1,2
check rest_table_is_small is_small rest
check rest_ran_all ran rest "facts tune nccl zen zo tests_all twice attention \
    sanitize_all"
check algorithms_are_measured measured rest '^124M, batch 2, tuned to untuned' \
    '^[-+][0-9.]* % tokens/s; [1-9][0-9]* products measured, [1-9]'
check tuned_is_a_row measured rest '^7B, tuned, 1 x 32' 'tokens/s'
check and_the_same_from_their_file measured rest 'from the file' 'the same losses'
check which_they_are grep -q '^[0-9 ]* algorithm 1: [0-9.]* us, first: [0-9.]* us$' \
    out_rest/log.txt
check pytorch_is_a_row measured rest 'PyTorch backward, 8 x 32' '250.1 TFLOP/s'
check light_has_the_same_bits measured rest 'with --recompute light, bf16' 'the same bits'
check zenflow_streams_weights measured rest '^zenflow-streamed' 'ms, plan'
check stages_have_the_same_bits measured rest 'stage 3, next to none' 'the same bits'
check streamed_has_the_same_bits measured rest 'streamed --zo-no-slots' 'the same bits'

# A part waits for what is being built. A test that fails, what cannot be built, and a call that is cut short.
cat >"$work/made/test_emu" <<'EOF'
#!/bin/sh
echo "ok something"
echo "FAIL gelu: 3 of 5"
EOF
xz -c "$work/made/test_emu" >build/pack/build+gpu+test_emu.xz
check a_part_alone call 1 tests "part tests" BUDGETS=facts=0
check test_that_fails measured tests test_emu '1 failed, 1 ok, .*: FAIL gelu: 3 of 5'
check waits call 0 bench "part bench" MAKE_TAKES=3 BUDGETS=facts=0
check it_has_waited measured bench '^tiny AdamW' '^10000.0 us'
check without_a_program call 1 bench "part bench" CANNOT_BUILD=build/gpu/bench_gpu BUDGETS=facts=0
check what_cannot_be_built measured bench build/gpu/bench_gpu "was not built: nvcc error: no "

check kernels call 0 kernels "part kernels" BUDGETS=facts=0
check kernels_by_their_time measured kernels '1 layers: layernorm_forward_kernel' '^2 times 3.0 us'

check 20b call 0 20b "part 20b" RATES="$PWD/out_offload/measured_rates.txt" BUDGETS=facts=0
check 20b_is_a_row measured 20b '^auto$' 'ms, plan .*G parameters/s'

cut_short() {
    env NCU_HANGS="$work/hung" dev/gpu_check.sh part kernels out_cut >cut.said 2>&1 &
    rm -f "$work/hung"
    await $! test -s "$work/hung"
    kill -TERM $!
    wait $!
    [ $? -eq 1 ] && said cut kernels CUT && ends_with_table cut \
        && is_gone
}
check a_call_that_is_cut_short cut_short
sed -i 's/^sources .*/sources 1/' build/pack/manifest
check a_pack_of_other_sources call 2 other "part bench"
check says_so grep -qx "gpu_check: build/pack is of other sources: .*; or BUILD=1, to build here" \
    other.said
