#!/bin/sh
# test_ptx.sh: nvcc's own code of the kernels (PTX for sm_80 and sm_90), on the emulated GPU, in the
# tests of the GPU sources (doc/ptx.md). The three orders of a block's threads and the two GPUs are
# spread over the tests. Each kernel of the PTX must have been launched; kernels of several files
# that say the same are one. Skipped where there is no nvcc or no python3.
# usage: ALL=1 sh dev/test/test_ptx.sh   (from the top of the repository; what is missing is built)
set -u
[ "${ALL:-0}" = 1 ] || { echo "skip ptx: minutes, with ALL=1"; exit 0; }
[ -n "$(make -s --no-print-directory print-PTX)" ] ||
    { echo "skip ptx: no nvcc, or no python3 on this machine"; exit 0; }
jobs=$(nproc 2>/dev/null || echo 2)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2046  # programs
make -s -j"$jobs" $(make -s --no-print-directory print-ptx_programs) >"$work/log" 2>&1 ||
    { tail -n 15 "$work/log"; echo "FAIL ptx: does not build"; exit 1; }

# TEST ORDER GPU: in test_kernels and test_attention are the kernels of all three precisions, so they
# run for both GPUs. The slowest come first.
cat >"$work/plan" <<'END'
END

# one TEST ORDER GPU
if [ "${1-}" = x ]; then :; fi
