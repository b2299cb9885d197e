#!/bin/sh
# device_only.sh OBJECT: does host code in this object call a function that only the GPU has? nvcc
# lets a host template do that, without a warning, and the call then ends the program. Where the
# object was compiled by nvcc with -Xcompiler -O0,-fno-inline, such a function is among its symbols.
# usage: sh dev/test/gpu/device_only.sh build/nvcc/test_model.o      (from the top of the repository)
set -eu
export LC_ALL=C
names=$(sed -n 's/^\(template <[^>]*> \)*__device__[^(]* \**\([a-z0-9_][a-z0-9_]*\)[(<].*/\2/p' tide/*/*.cuh ./*.cu |
    sort -u | tr '\n' '|')
[ -n "$names" ] || { echo "device_only.sh: no function found in the sources" >&2; exit 1; }
found=$(nm -C "$1" | grep -E "^[0-9a-f]* [tTwW] (.* )?(${names%|})(<.*>)?\(" || true)
[ -z "$found" ] && exit 0
echo "$1: host code calls what only the GPU has:" >&2
echo "$found" >&2
exit 1
