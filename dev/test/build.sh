#!/bin/sh
# Builds what the tests need, on all cores, and says what it is at and how many there are.
# usage: dev/test/build.sh MAKE TARGET...      (from the Makefile; V=1: whole commands)
set -u
make=$1
shift
# A make that was told how many jobs to run passes that on.
case " ${MAKEFLAGS-} " in *" -j"*) jobs= ;; *) jobs=-j$(nproc 2>/dev/null || echo 2) ;; esac
"$make" -s compiler cxx || exit
[ -z "${V-}" ] || exec "$make" $jobs "$@"

# Of what make says: how many compilers it calls (total=0), or one line for each.
progress() {
    awk -v total="$1" '
        { line = line $0 }
        sub(/\\$/, "", line) { next }
        line ~ /^([^ ]*\/)?(CXX=|gcc|g\+\+|cc|c\+\+|clang|nvcc)/ && line ~ / -o / {
            match(line, / -o [^ ]+/)
            n++
            if (total) printf "[%d/%d] %s\n", n, total, substr(line, RSTART + 4, RLENGTH - 4)
            fflush()
            line = ""
        }
        line != "" && total && line !~ /^(mkdir|ln|cp|make)/ { print line; fflush() }
        { line = "" }
        END { if (!total) print n + 0 }'
}
total=$("$make" -n "$@" | progress 0)
[ "$total" -gt 0 ] || exec "$make" -s "$@"
echo "building $total programs and objects"
failed=$(mktemp) || exit 1
trap 'rm -f "$failed"' EXIT
{ "$make" $jobs "$@" 2>&1 || echo $? >"$failed"; } | progress "$total"
[ ! -s "$failed" ] || exit "$(cat "$failed")"
