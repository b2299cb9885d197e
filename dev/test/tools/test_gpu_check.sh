#!/bin/sh
# dev/gpu_check.sh from end to end, against the emulated GPU and stand-ins for the tools of a
# machine with a real one: all parts of its two calls with tiny models; a part that hangs, one
# that fails, a program that does not start, a call that is cut short. Says nothing about speed.
# usage: ALL=1 sh dev/test/tools/test_gpu_check.sh    (a minute or two; from the top of the repository, after make
#        train_gpt2 train_gpt2emu build/compare build/timeline build/tokenize build/emu/gpu_tests, and build/emu/bench_*)
set -u
. dev/test/cli.sh
whole || { echo "skip gpu_check: minutes, with ALL=1"; exit 0; }
for f in xz strip ldd python3 setsid bash; do
    command -v $f >/dev/null || { echo "skip gpu_check: $f is missing"; exit 0; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
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
tool make <<'EOF'
#!/bin/sh
echo "make $*" >>"$SAID"
[ "${1-}" = -C ] && { cd "$2" || exit; shift 2; }
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
    *-lms*) while :; do echo "700.50 W, 1755 MHz"; sleep 0.05; done ;;
    *gpu=name*) echo "Emulated GPU" ;;
    *) echo "143771 MiB, 580.1, 5, 1980 MHz, 700.00 W" ;;
esac
EOF
tool compute-sanitizer <<'EOF'
#!/bin/sh
tool=$2
while [ "${1#./}" = "$1" ]; do shift; done
if [ "$tool" = racecheck ] && [ -n "${IT_HANGS-}" ]; then
    trap '' TERM
    timeout 1000 sleep 1000 &  # in a process group of its own
    echo "$$ $!" >"$IT_HANGS"
    sleep 1000
fi
"$@" || exit
if [ "$tool" = "${SANITIZER_FINDS-}" ]; then echo "========= ERROR SUMMARY: 3 errors"; exit 9; fi
case $tool in
    racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
    *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
EOF
# --- the pack ----

check pack_packs dev/gpu_check.sh pack
check pack_has_all test "$(find build/pack -name '*.xz' | wc -l)" -eq 17
check pack_is_portable \
    grep -q -- "-C build/pack.tree .*compute_90,code=sm_90 ARCH=-march=x86-64-v3" "$SAID"

# --- the calls ----

mkdir mine && echo mine >mine/run.log
refuses what_it_did_not_make_stays 2 'mine has other files: choose another OUT' dev/gpu_check.sh part bench mine
cp -r mine table && echo earlier >table/rows.tsv
BUDGETS=bench=0 dev/gpu_check.sh part bench table >table.said 2>&1
check an_earlier_call_stays sh -c 'grep -q earlier table-1/rows.tsv && grep -q mine table-1/run.log &&
    ! grep -q earlier table/rows.tsv'

# call CODE NAME CALL [VARIABLE=VALUE]...: into out_NAME; what it prints last is its table
call() {
    code=$1 name=$2 which=$3
    shift 3
    # shellcheck disable=SC2086  # one word, or two
    env "$@" dev/gpu_check.sh $which "out_$name" >"$name.said" 2>&1
    got=$?
    [ "$got" -eq "$code" ] || { tail -n 30 "$name.said"; echo "code $got, not $code"; return 1; }
}
# row CALL WHAT MEASURED VERDICT: there is such a row, whose columns match these patterns
row() {
    awk -F '\t' -v what="$2" -v measured="$3" -v verdict="${4-}" '
        $2 ~ what && $3 ~ measured && $5 ~ verdict { n++ } END { exit !n }' "out_$1/rows.tsv"
}
marked() { awk -F '\t' '$5 ~ /WRONG|CUT/ { print $1 ": " $2 }' "out_$1/rows.tsv" | sort; }
only_marked() { [ "$(marked "$1")" = "$2" ] || { marked "$1"; return 1; }; }
ends_with_table() {
    [ "$(tail -n "$(wc -l <"out_$1/table.md")" "$1.said")" = "$(cat "out_$1/table.md")" ]
}
is_gone() {  # what has hung, and its child; who has to ask for its exit code may be slow to
    read -r tool child <"$work/hung"
    ! cat "/proc/$tool/stat" "/proc/$child/stat" 2>/dev/null | grep -v ') Z '
}
# ran CALL PARTS: they have more rows than the one about their time, and no others have
ran() { [ "$(cut -f1 "out_$1/rows.tsv" | sort | uniq -d | tr '\n' ' ')" = "$2 " ]; }

# A program that does not start, one that the tests find fault with, a tool that hangs.
printf 'no program' | xz >build/pack/build+gpu+bench_gpu.xz
cat >expected <<'EOF'
device | Emulated
bench: .* residual_layernorm_forward | 1e8 | 1e9 | % of memory
bench: (124M|tiny) attention_forward | 0 | 100 | % of arithmetic
EOF
: >"$SAID"
check now call 1 now now IT_HANGS="$work/hung" SANITIZER_FINDS=memcheck EMU_CLOCK=real \
    EXPECTED="$PWD/expected" BUDGETS="llama=240 sanitize=9"
check now_ends_with_its_table ends_with_table now
check now_ran_all ran now "bench calibrate facts hidden llama sanitize tests train"
check now_marks_what_is_wrong only_marked now "sanitize: memcheck, fp16
sanitize: memcheck, qwen3
sanitize: memcheck, zenflow
sanitize: sanitize"
check nothing_of_it_is_left is_gone
check now_rebuilt_only_what_does_not_start \
    test "$(cat "$SAID")" = "make -k -j$(nproc) build/gpu/bench_gpu"
check text_is_the_cpu_s row now 'mistral, its text' . right
check below_what_is_expected row now '^tiny residual_layernorm_forward' . ' % below'
check as_expected row now '^tiny attention_forward' . '^right$'
check rates_can_be_used ./train_gpt2cu --plan --model gpt2 --rates out_now/measured_rates.txt \
    --gpu-memory 8G --host-memory 8G

# It takes the rates of the call before.
check second call 0 second "then" BUDGETS=attention=0  # which is PyTorch's
check second_ran_all ran second "facts nccl products sample visitors zen"
check stages_have_the_same_bits row second 'stages 1 to 3' '^4 runs, the same bits'

# A test that fails, and what cannot be built.
cat >"$work/made/test_emu" <<'EOF'
#!/bin/sh
echo "ok something"
echo "FAIL gelu: 3 of 5"
EOF
xz -c "$work/made/test_emu" >build/pack/build+gpu+test_emu.xz
check a_part_alone call 1 tests "part tests"
check test_that_fails row tests gelu '3 of 5'
check without_a_program call 1 bench "part bench" CANNOT_BUILD=build/gpu/bench_gpu
check what_cannot_be_built row bench build/gpu/bench_gpu "was not built: nvcc error: no "

# Runs that compute something else: those in fp16, and of stage 3.
mv "$work/made/train_gpt2cu" "$work/made/right"
cat >"$work/made/train_gpt2cu" <<'EOF'
#!/bin/sh
case "$*" in *"--precision fp16"* | *"--zero 3"*) set -- $(echo "$*" | sed 's/--lr 3e-4/--lr 0.03/') ;; esac
exec "$MADE/right" "$@"
EOF
chmod +x "$work/made/train_gpt2cu"
printf 'no program' | xz >build/pack/train_gpt2cu.xz
check other_runs call 1 other "part llama"
check only_these_are_wrong only_marked other "llama: mistral in every placement
llama: mistral, losses beside the CPU
llama: qwen3-8b in every placement
llama: qwen3-8b, losses beside the CPU"
cut_short() {
    rm -f "$work/hung"
    env IT_HANGS="$work/hung" dev/gpu_check.sh part sanitize out_cut >cut.said 2>&1 &
    await $! test -s "$work/hung"
    kill -TERM $!
    wait $!
    [ $? -eq 1 ] && row cut sanitize . CUT && ends_with_table cut \
        && is_gone
}
check a_call_that_is_cut_short cut_short
sed -i 's/^sources .*/sources 1/' build/pack/manifest
refuses a_pack_of_other_sources 2 'build/pack is of other sources' dev/gpu_check.sh part bench out_others
