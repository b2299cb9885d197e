#!/bin/sh
# Table 1 of Deep Optimizer States, and the rates of Eq. 1: the speed of this machine's link, CPU and
# GPU beside the paper's. G and H are tensors on the GPU and on the host, of 32 and 16 bits; the host's
# are page-locked unless called pageable. Casts count the bytes of fp32; H32-G16 and G16-H32, which cast
# on the host through pageable memory, those on the link. Measured by --calibrate and
# build/gpu/bench_offload --casts; without a GPU from RATES (a file of rates/).
# usage: [MODEL=7b] scripts/paper/dos_table1.sh [OPTION...]; see figure.sh
id=dos_table1
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
# compare NAME UNIT RATE [FACTOR]: adds a row with this machine's rate and the paper's
compare() {
    row "$1" "$(calculate "${4:-1} * $(rate "$3" "$2")")" \
        "$(calculate "${4:-1} * $(rate "$3" "$2" $paper)")"
}
measure_casts
row rate here paper
compare 'G32-G16,TB/s' 1e12 G16-G32
compare 'H32-H16,GB/s' 1e9 host_cast 4
row 'H16-G16,GB/s' "$(rate h2d 1e9)" "$(rate H16-G16 1e9 $paper)"
compare 'H32-G16,GB/s' 1e9 H32-G16
compare 'G16-H32,GB/s' 1e9 G16-H32
compare 'H2D,GB/s' 1e9 h2d
compare 'D2H,GB/s' 1e9 d2h
compare 'H2D,pageable' 1e9 H-G-pageable
compare 'D2H,pageable' 1e9 G-H-pageable
compare 'AdamW,CPU' 1e9 host_adam
compare 'AdamW,GPU' 1e9 gpu_adam
draw "Table 1, sections 1 and 5.1: rates of each GPU. AdamW in 10^9 parameters/s" \
    "GB/s, TB/s, 10^9 parameters/s"
grep -h 'Eq. 1' "$out/calibrate.txt" 2>/dev/null || true
finish
