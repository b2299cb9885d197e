#!/bin/sh
# test_sass.sh: what nvcc makes of the kernels. Registers, shared memory and stores of each kernel
# of train_gpt2.cu for sm_90 are those of the table (sass.table), keyed by nvcc's release.
# Under another release kernels may take a quarter and 8 registers more than under the newest one in
# the table, for another GPU three quarters and 8, and store twice as much and once more in less than
# 16 bytes. Under any: nothing is spilled, and a kernel that stores packs does so with instructions
# of 16 bytes. Stores are counted in PTX, where a pack is whole or in four; if there is a cuobjdump,
# in the machine code, too.
# For sm_90; ALL=1: and sm_80, and the newest that this nvcc knows. Skipped where there is no nvcc.
# usage: [ALL=1] sh dev/test/sources/test_sass.sh [--write]  (from the top of the repository; --write puts
#        the rows of this nvcc's release into the table: look at the difference)
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

# Prints a line per kernel of the files given (ptxas -v's, PTX, and machine code, if any):
#     NAME REGISTERS SHARED WIDE NARROW spills N whole N
# Stores to global memory are wide with 16 bytes. whole: as many as that in the machine code, or -1.
cat >"$work/read.awk" <<'AWK'
function short(name,   n, base, args, types, out) {  # _Z6kernelI6__halfLi64EEvPT_: kernel<half,64>
    if (!match(name, /^_ZL?[0-9]+/)) return name
    n = substr(name, 1, RLENGTH)
    gsub(/[^0-9]/, "", n)
    base = substr(name, RLENGTH + 1, n)
    args = substr(name, RLENGTH + 1 + n)
    if (args !~ /^I/ || !index(args, "Ev")) return base
    args = substr(args, 2, index(args, "Ev") - 2)
    while (args != "") {
        if (match(args, /^13__nv_bfloat16/)) { out = out ",bf16"; types = "bf16" }
        else if (match(args, /^6__half/)) { out = out ",f16"; types = "f16" }
        else if (match(args, /^S[0-9]*_/)) out = out "," types
        else if (match(args, /^f/)) out = out ",float"
        else if (match(args, /^t/)) out = out ",uint16"
        else if (match(args, /^L[bijm][0-9]+E/)) out = out "," substr(args, 3, RLENGTH - 3)
        else return name
        args = substr(args, RLENGTH + 1)
    }
    return base "<" substr(out, 2) ">"
}
FNR == 1 { file++ }
file == 1 && /Compiling entry function/ {
    split($0, part, "'")
    list[++kernels] = k = short(part[2])
}
file == 1 && /spill stores/ { spills[k] = $1 + $5 + $9 }  # a stack frame is local memory, too
file == 1 && /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/)
    registers[k] = substr($0, RSTART + 5, RLENGTH - 5)
    shared[k] = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
}
file == 2 && /\.entry / { sub(/.*\.entry /, ""); sub(/\(.*/, ""); k = short($0) }
file == 2 && /st\.(global|volatile\.global|relaxed)/ {
    if (/\.v4\.[bufs]32|\.v2\.[bufs]64|\.v8\.[bufs]32|\.v4\.[bufs]64/) wide[k]++
    else narrow[k]++
}
file == 3 && /Function : / { k = short($NF); whole[k] += 0 }
file == 3 && /[ \t]STG[A-Z0-9.]*\.(128|256)/ { whole[k]++ }
END {
    for (i = 1; i <= kernels; i++) {
        k = list[i]
        print k, registers[k], shared[k], wide[k] + 0, narrow[k] + 0, "spills", spills[k] + 0,
              "whole", k in whole ? whole[k] : -1
    }
}
AWK

# Reads the table and then those lines, and prints a line per complaint.
cat >"$work/judge.awk" <<'AWK'
function like_bf16(name) { gsub(/<f16/, "<bf16", name); gsub(/,f16/, ",bf16", name); return name }
FNR == NR {
    if (/^#/ || NF < 7) next
    row = $3 " " $4 " " $5 " " $6 " " $7  # kernel registers shared wide narrow
    if ($1 == release && $2 == arch) { exact[$3] = row; known = 1 }
    other[$3] = row
    next
}
{
    seen[$1] = 1
    if ($7 > 0) print $1 ": " $7 " bytes of local memory, which is for what registers do not hold"
    if ($9 >= 0 && $9 < $4) print $1 ": " $9 " of " $4 " stores of 16 bytes are whole"
    if (known) {
        now = $1 " " $2 " " $3 " " $4 " " $5
        if (!($1 in exact)) print $1 ": not in the table; --write"
        else if (exact[$1] != now) {
            split(exact[$1], was)
            print $1 ": registers " $2 ", shared memory " $3 ", stores of 16 bytes " $4 \
                ", others " $5 "; in the table " was[2] ", " was[3] ", " was[4] ", " was[5] \
                "; --write, if meant"
        }
    } else if ($1 in other || like_bf16($1) in other) {
        split(other[$1 in other ? $1 : like_bf16($1)], was)
        if ($2 > (arch == "sm_90" ? 1.25 : 1.75) * was[2] + 8) print $1 ": " $2 " registers, " was[2] " in the table"
        if ($3 > was[3]) print $1 ": " $3 " bytes of shared memory, " was[3] " in the table"
        if (2 * $4 < was[4] || $5 > 2 * was[5] + 1)
            print $1 ": " $4 " stores of 16 bytes and " $5 " others, " was[4] " and " was[5] \
                " in the table"
    }
}
END { for (k in exact) if (!(k in seen)) print k ": in the table, but not in the program; --write" }
AWK

# compile ARCH: leaves, of each precision P, ptxas.P, ptx.P and code.P in $work; and lines of all. A
# kernel that is no template, and is another in fp32 or fp16, has the type added to its name. A kernel
# of fp16 that is like that of bf16 has no line.
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
        read_lines $p >"$work/lines.$p"
    done
    awk 'FNR == 1 { type = "<" substr("bf16 floatf16  ", 5 * file++ + 1, 5) ">"; sub(/ +>/, ">", type) }
         $0 in line { next }
         { bf16 = $0; gsub(/<f16/, "<bf16", bf16); gsub(/,f16/, ",bf16", bf16) }
         bf16 != $0 && bf16 in line { next }
         { line[$0] = 1; if ($1 in name) $1 = $1 type; name[$1] = 1; print }' \
        "$work/lines.BF16" "$work/lines.FP32" "$work/lines.FP16" >"$work/lines"
    [ "$(wc -l <"$work/lines")" -gt 50 ]
}
read_lines() { awk -f "$work/read.awk" "$work/ptxas.$1" "$work/ptx.$1" "$work/code.$1"; }
judge() { awk -v release="$release" -v arch="$1" -f "$work/judge.awk" "$table" "$2"; }

if [ "${1-}" = --write ]; then
    {
        grep '^#' "$table"
        {
            grep -v '^#' "$table" | grep -v "^$release "
            compile sm_90 || { echo "does not compile" >&2; exit 1; }
            sed "s/ spills.*//; s/^/$release sm_90 /" "$work/lines"
        } | LC_ALL=C sort -t ' ' -k 1,1V -k 3,3
    } >"$work/table" && cp "$work/table" "$table"
    exit
fi

archs=sm_90
[ "${ALL:-0}" != 1 ] || archs="sm_90 sm_80 $newest"
for arch in $archs; do
    if ! compile "$arch"; then
        echo "FAIL sass_$arch: does not compile, or nvcc reports otherwise than is known"
        continue
    fi
    judge "$arch" "$work/lines" >"$work/said"
    head -n 20 "$work/said"
    if [ -s "$work/said" ]; then echo "FAIL sass_$arch: $(wc -l <"$work/said") complaints"
    else echo "ok sass_$arch"; fi
done

# What is to be noticed: packs stored in four parts, and spills.
release=another
cp "$work/ptx.BF16" "$work/ptx"
sed 's/st\.global\.v4\.b32/st.global.b32/' "$work/ptx" >"$work/ptx.BF16"
read_lines BF16 >"$work/lines"
if judge "$arch" "$work/lines" | grep -q '^attention_queries_flash_kernel<64,bf16,0,1,0>: 0 stores of 16'
then echo "ok sass_notices_narrow_stores"; else echo "FAIL sass_notices_narrow_stores: no"; fi
cp "$work/ptx" "$work/ptx.BF16"
sed 's/0 bytes spill stores/8 bytes spill stores/' "$work/ptxas.BF16" >"$work/ptxas"
mv "$work/ptxas" "$work/ptxas.BF16"
read_lines BF16 >"$work/lines"
if judge "$arch" "$work/lines" | grep -q '^layernorm_forward_kernel<bf16,0>: 8 bytes of local memory'
then echo "ok sass_notices_spills"; else echo "FAIL sass_notices_spills: no"; fi
