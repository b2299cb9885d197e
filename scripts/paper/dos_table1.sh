#!/bin/sh
# Table 1 of Deep Optimizer States, and the rates of Eq. 1: what this machine's link and CPU do beside
# the paper's. Measured by --calibrate; without a GPU, what RATES (a file of rates/) says.
# usage: scripts/paper/dos_table1.sh; see figure.sh
id=dos_table1
# shellcheck source=scripts/paper/dos.sh
. "$(dirname "$0")/dos.sh"
rate() { awk -v name="$1" -v unit="$2" '$1 == name { print $2 / unit; found = 1 }
    END { if (!found) print "?" }' "$rates"; }
row rate here paper
row 'H2D,GB/s' "$(rate h2d 1e9)" 55
row 'D2H,GB/s' "$(rate d2h 1e9)" 55
row 'H32-H16,GB/s' "$(calculate "4 * $(rate host_cast 1e9)")" 62
row 'AdamW,CPU' "$(rate host_adam 1e9)" 2
row 'AdamW,GPU' "$(rate gpu_adam 1e9)" 25
draw "Table 1, section 1: rates of each GPU. AdamW in 10^9 parameters/s" "GB/s, 10^9 parameters/s"
grep -h 'Eq. 1' "$out/calibrate.txt" 2>/dev/null || true
finish
