#!/bin/sh
# test_sass.sh: what nvcc makes of the kernels. Nothing is spilled, and a kernel that stores packs
# does so with instructions of 16 bytes. For sm_90, registers, shared memory and stores of each
# kernel of train_gpt2.cu, in all its types and precisions, are those of the table (sass.table), if
# it has rows of nvcc's release. Stores are counted in PTX, where a pack is whole or in four; if
# there is a cuobjdump, in the machine code, too.
# For sm_90; ALL=1: and sm_80, and the newest that this nvcc knows. Skipped where there is no nvcc.
# usage: [ALL=1] sh dev/test/sources/test_sass.sh [--write]  (from the top of the repository;
#        --write puts the rows of this nvcc's release into the table: look at the difference)
set -u
export LC_ALL=C
table=dev/test/sources/sass.table
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "skip sass: no nvcc on this machine"; exit 0; }
[ "${ALL:-0}" = 1 ] || [ -z "${RESULTS-}" ] || { echo "skip sass: a minute, with ALL=1"; exit 0; }
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
newest=sm_$("$nvcc" --list-gpu-code | sed 's/sm_//' | sort -n | tail -n 1)
cuobjdump=$(command -v cuobjdump)
[ -n "$cuobjdump" ] || cuobjdump=${nvcc%/*}/cuobjdump
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Prints a line per kernel and types of the files given (ptxas -v's, PTX, and machine code, if any):
#     MANGLED_NAME REGISTERS SHARED WIDE NARROW SPILLS WHOLE
# Stores to global memory are wide with 16 bytes. WHOLE: as many as that in the machine code, or -1.
cat >"$work/read.awk" <<'AWK'
FNR == 1 { file++ }
file == 1 && /Compiling entry function/ {
    split($0, part, "'")
    list[++kernels] = k = part[2]
}
file == 1 && /spill stores/ { spills[k] = $1 + $5 + $9 }  # a stack frame is local memory, too
file == 1 && /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/)
    registers[k] = substr($0, RSTART + 5, RLENGTH - 5)
    shared[k] = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
}
file == 2 && /\.entry / { sub(/.*\.entry /, ""); sub(/\(.*/, ""); k = $0 }
file == 2 && /st\.(global|volatile\.global|relaxed)/ {
    if (/\.v4\.[bufs]32|\.v2\.[bufs]64|\.v8\.[bufs]32|\.v4\.[bufs]64/) wide[k]++
    else narrow[k]++
}
file == 3 && /Function : / { k = $NF; whole[k] += 0 }
file == 3 && /[ \t]STG[A-Z0-9.]*\.(128|256)/ { whole[k]++ }
END {
    for (i = 1; i <= kernels; i++) {
        k = list[i]
        print k, registers[k], shared[k], wide[k] + 0, narrow[k] + 0, spills[k] + 0,
              k in whole ? whole[k] : -1
    }
}
AWK

# compile ARCH: leaves $work/lines, of all precisions; a kernel that is the same in two has one.
compile() {
    for p in BF16 FP32 FP16; do
        # shellcheck disable=SC2046  # options
        if ! "$nvcc" $(make -s --no-print-directory print-NVDEVICE) -arch="$1" -Xptxas -v -cubin \
            -DENABLE_$p --keep --keep-dir "$work" train_gpt2.cu -o "$work/cubin" \
            >"$work/ptxas.$p" 2>&1; then
            grep -v '^ptxas info' "$work/ptxas.$p" | head -n 5
            return 1
        fi
        mv "$work/train_gpt2.ptx" "$work/ptx.$p"
        : >"$work/code.$p"
        [ ! -x "$cuobjdump" ] || "$cuobjdump" --dump-sass "$work/cubin" >"$work/code.$p"
    done
    read_lines
    [ "$(wc -l <"$work/lines")" -gt 50 ]
}
read_lines() {
    for p in BF16 FP32 FP16; do
        awk -f "$work/read.awk" "$work/ptxas.$p" "$work/ptx.$p" "$work/code.$p"
    done | sort -u >"$work/lines"
}

# rows ARCH: the table's rows of these lines: the same kernels of all types are one.
rows() {
    awk -v begin="$release $1" '{
        match($1, /^_ZL?[0-9]+/)  # _Z6kernelI6__halfLi64EEvPT_
        n = substr($1, 1, RLENGTH)
        gsub(/[^0-9]/, "", n)
        k = substr($1, RLENGTH + 1, n)
        kinds[k]++
        if ($2 > most[k]) most[k] = $2
        registers[k] += $2; shared[k] += $3; wide[k] += $4; narrow[k] += $5
    }
    END {
        for (k in kinds)
            print begin, k, kinds[k], most[k], registers[k], shared[k], wide[k], narrow[k]
    }' "$work/lines" | sort
}

# judge ARCH: a line per complaint
judge() {
    awk '$6 > 0 { print $1 ": " $6 " bytes of local memory, for what registers do not hold" }
         $7 >= 0 && $7 < $4 { print $1 ": " $7 " of " $4 " stores of 16 bytes are whole" }' \
        "$work/lines"
    grep "^$release $1 " "$table" >"$work/known" || return
    rows "$1" | diff "$work/known" - | sed -n 's/^</in the table:/p; s/^>/--write, if meant:/p'
}

if [ "${1-}" = --write ]; then
    compile sm_90 || { echo "does not compile" >&2; exit 1; }
    grep '^#' "$table" >"$work/table"
    { grep -v "^#\|^$release " "$table"; rows sm_90; } | sort -s -k 1,1V >>"$work/table"
    cp "$work/table" "$table"
    exit
fi

archs=sm_90
[ "${ALL:-0}" != 1 ] || archs="sm_80 $newest sm_90"
for arch in $archs; do
    if ! compile "$arch"; then
        echo "FAIL sass_$arch: does not compile, or nvcc reports otherwise than is known"
        continue
    fi
    judge "$arch" >"$work/said"
    head -n 20 "$work/said"
    if [ -s "$work/said" ]; then echo "FAIL sass_$arch: $(wc -l <"$work/said") complaints"
    else echo "ok sass_$arch"; fi
done

# What is to be noticed: packs stored in four parts, if the table has this release; and spills.
sed -i 's/st\.global\.v4\.b32/st.global.b32/' "$work/ptx.BF16"
sed -i 's/0 bytes spill stores/8 bytes spill stores/' "$work/ptxas.BF16"
read_lines
judge sm_90 >"$work/said"
if { [ ! -s "$work/known" ] || grep -q "^in the table: .* attention_queries_flash" "$work/said"; } &&
    grep -q 'layernorm_forward_kernel.*: 8 bytes of local memory' "$work/said"
then echo "ok sass_notices_narrow_stores_and_spills"
else echo "FAIL sass_notices_narrow_stores_and_spills: no"; fi
