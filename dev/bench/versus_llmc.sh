#!/bin/sh
# versus_llmc.sh LLMC_DIR [ROUNDS, 5] [STEPS, 5]: the CPU training step of tide.c and that of
# llm.c's train_gpt2.c, in turn: GPT-2 124M, fp32, 4 sequences of 64 tokens, random weights and
# tokens.
#
# LLMC_DIR is a clone of llm.c. What is needed of it and of this project is copied and built, each
# by its own Makefile and with the same compiler; both folders stay as they are. Each round starts
# both programs, drops their first steps and keeps the times that they print of the next STEPS
# ones. Needs Python 3 and 1.5 GB in $TMPDIR.
#     THREADS=n     threads of both programs (all CPUs)
#     CC=compiler   of both (gcc)
#     ARCH=flag     of both, in place of -march=native: ARCH=-march=haswell compares AVX2 with AVX2
#     TRAINER=path  our trainer, not to be built
set -eu
export LC_ALL=C
fail() { echo "versus_llmc.sh: $*" >&2; exit 1; }

[ $# -ge 1 ] && [ $# -le 3 ] || fail "usage: versus_llmc.sh LLMC_DIR [ROUNDS] [STEPS]"
llmc=$1 rounds=${2:-5} steps=${3:-5} warmup=2
case $rounds$steps in *[!0-9]*) fail "ROUNDS and STEPS are whole numbers" ;; esac
# llm.c counts its steps from 0, and before step 10 it evaluates: stay below.
[ "$rounds" -ge 1 ] && [ "$steps" -ge 1 ] && [ "$steps" -le 8 ] || fail "ROUNDS >= 1, STEPS 1 to 8"
[ -f "$llmc/Makefile" ] && [ -f "$llmc/train_gpt2.c" ] || fail "$llmc is not a clone of llm.c"
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../..
threads=${THREADS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}
CC=${CC:-$(command -v gcc || command -v clang || command -v cc)} || fail "there is no C compiler"
export CC OMP_NUM_THREADS="$threads"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

mkdir -p "$tmp/llmc" "$tmp/tide"
cp -R "$llmc/Makefile" "$llmc/train_gpt2.c" "$llmc/llmc" "$tmp/llmc/"
cp "$root"/Makefile "$root"/*.c "$root"/*.h "$tmp/tide/"
cp -R "$root/tide" "$root/dev" "$tmp/tide/"
build() {  # program, folder, target, the name of its Makefile's variable for -march
    make -C "$2" "$3" ${ARCH:+"$4=$ARCH"} >"$tmp/make" 2>&1 \
        || { cat "$tmp/make" >&2; fail "$1 does not build"; }
    grep -e '-march\|-mcpu\|-O' "$tmp/make" || :  # the compiler and its flags
}
build llm.c "$tmp/llmc" train_gpt2 CFLAGS_COND
build tide.c "$tmp/tide" build/machine ARCH >/dev/null
if [ -z "${TRAINER:-}" ]; then
    build tide.c "$tmp/tide" train_gpt2 ARCH
    TRAINER=$tmp/tide/train_gpt2
fi
case $TRAINER in /*) ;; *) TRAINER=$PWD/$TRAINER ;; esac
[ -x "$TRAINER" ] || fail "$TRAINER is not there"
python3 "$here/make_llmc_inputs.py" "$tmp/llmc"
tokens=$tmp/llmc/dev/data/tinyshakespeare/tiny_shakespeare_train.bin

# Both programs would go on for longer than needed, llm.c with 41 steps and samples, ours with a
# checkpoint: sed stops reading after the last step of interest, and the next line that they print
# ends them. llm.c's output must come line by line for that; without stdbuf it runs to its end.
unbuffered=
if command -v stdbuf >/dev/null; then unbuffered="stdbuf -oL"; fi

ours() {
    rm -rf "$tmp/out"
    "$TRAINER" --model gpt2 --data "$tokens" --batch 4 --seq 64 --threads "$threads" \
        --steps $((warmup + steps + 2)) --lr 1e-4 --warmup 0 --schedule constant --eval-every 0 \
        --out "$tmp/out" 2>&1 | sed "/^step $((warmup + steps))\//q" > "$tmp/text"
    sed -n 's/^{"step":.*"ms":\([^,}]*\).*/\1/p' "$tmp/out/log.jsonl" > "$tmp/ms" 2> /dev/null || :
    keep tide.c
}

theirs() {
    (cd "$tmp/llmc" && $unbuffered ./train_gpt2 2>&1 | sed "/^step $((warmup + steps - 1)):/q") \
        > "$tmp/text"
    sed -n 's/^step [0-9]*: train loss .* (took \([0-9.]*\) ms)$/\1/p' "$tmp/text" > "$tmp/ms"
    keep llm.c
}

# Appends "round program ms" for the steps after the warm-up.
keep() {
    sed -n "$((warmup + 1)),$((warmup + steps))s/^/$round $1 /p" "$tmp/ms" > "$tmp/kept"
    [ "$(wc -l < "$tmp/kept")" -eq "$steps" ] || { cat "$tmp/text" >&2; fail "$1 did not run"; }
    cat "$tmp/kept" >> "$tmp/times"
    awk -v line="round $round: $1" '{ line = line sprintf(" %.1f", $3) }
                                    END { print line, "ms" }' "$tmp/kept"
}

"$tmp/tide/build/machine"
echo "GPT-2 124M, B=4 T=64, $threads threads, $rounds rounds of $steps steps (and $warmup dropped)"
round=1
while [ $round -le "$rounds" ]; do  # who goes first changes with the round
    if [ $((round % 2)) -eq 1 ]; then ours; theirs; else theirs; ours; fi
    round=$((round + 1))
done

# Medians over all steps; the ratio is that of the two medians of a round, so that a machine that
# is slower for a while changes both sides of it.
awk '
function sort(a, n,    i, j, x) {
    for (i = 2; i <= n; i++) {
        x = a[i]
        for (j = i - 1; j >= 1 && a[j] > x; j--) a[j + 1] = a[j]
        a[j + 1] = x
    }
}
function median(a, n) {
    sort(a, n)
    return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
function of(who, round,    n, i) {  # round 0: all of them; leaves the sorted times in t
    for (i = 1; i <= NR; i++) if (name[i] == who && (!round || at[i] == round)) t[++n] = ms[i]
    middle = median(t, n)
    return n
}
{ at[NR] = $1; name[NR] = $2; ms[NR] = $3 + 0; if ($1 > rounds) rounds = $1 + 0 }
END {
    for (k = 1; k <= 2; k++) {
        who = k == 1 ? "tide.c" : "llm.c"
        n = of(who, 0)
        printf "%-8s median %8.1f ms per step (%.1f .. %.1f), %.0f tokens/s\n", who, middle, t[1],
               t[n], 256e3 / middle
    }
    for (r = 1; r <= rounds; r++) {
        of("llm.c", r)
        theirs = middle
        of("tide.c", r)
        ratio[r] = theirs / middle
    }
    middle = median(ratio, rounds)
    printf "llm.c takes %.2f times as long as tide.c (median of %d rounds; %.2f .. %.2f)\n", middle,
           rounds, ratio[1], ratio[rounds]
}' "$tmp/times"
