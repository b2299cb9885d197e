#!/bin/sh
# Figure 6 of Deep Optimizer States (section 4.1): the time in which the fp16 gradients of a sub-group
# of 100M parameters become fp32 on the host. ZeRO-3 allocates pageable memory, copies into it and
# converts there, in turn. Deep Optimizer States converts on the GPU, in chunks, and copies fp32. tide.c
# copies the 16 bits, which the update reads. Measured by --calibrate and build/gpu/bench_offload
# --casts; without a GPU from RATES (a file of rates/).
# usage: [MODEL=7b] scripts/paper/dos_6.sh [OPTION...]; see figure.sh
id=dos_6
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
# ms BYTES RATE: prints the milliseconds for 100M parameters of BYTES each, at RATE GB/s
ms() { calculate "100 * $1 / $2"; }
# flush NAME ALLOCATE COPY CONVERT: adds a row, and its rate
flush() {
    row "$@"
    said="$said$1: $(calculate "200 / ($2 + $3 + $4)") GB/s of fp16
"
}
said=''
measure_casts
convert=$(ms 4 "$(calculate "4 * $(rate host_cast 1e9)")")
copy=$(ms 2 "$(rate G-H-pageable 1e9)")
row 'way' allocate copy convert
rest=$(calculate "$(ms 2 "$(rate G16-H32 1e9)") - $copy - $convert")
case $rest in -*) rest=0 ;; esac  # parts that were measured one by one may have a larger sum
flush 'ZeRO-3 here' "$rest" "$copy" "$convert"
flush 'ZeRO-3 paper' "$(ms 2 4)" "$(ms 2 10)" "$(ms 4 62)"
flush 'DOS here' 0 "$(ms 4 "$(rate d2h 1e9)")" "$(ms 4 "$(rate G16-G32 1e9)")"
flush 'DOS paper' 0 "$(ms 4 "$(rate d2h 1e9 $paper)")" "$(ms 4 "$(rate G16-G32 1e9 $paper)")"
flush 'tide here' 0 "$(ms 2 "$(rate d2h 1e9)")" 0
draw "Figure 6: gradients of 100M parameters to the host. The paper: 2.5 GB/s, and 10 times that" ms \
    --stack
printf '%s' "$said"
finish
