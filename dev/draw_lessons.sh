#!/bin/sh
# Draws the pictures of doc/step_memory.md, doc/offload.md and doc/fits.md ("offload"),
# doc/zo_streaming.md ("zo"), doc/zenflow.md ("zen"), doc/zero.md ("zero"), doc/finetuning.md and doc/chat.md ("rows")
# again, into doc/img/, and prints the numbers of their tables and of one in doc/rounding.md: from --plan, and from runs
# on the emulated GPU by its virtual clock. The same on every machine; needs neither GPU nor
# network, and a few minutes.
# usage: [TRAINER=./train_gpt2emu] [CPU=./train_gpt2] [TIMELINE=build/timeline] [IMG=doc/img]
#        dev/draw_lessons.sh [offload|zo|zen|zero|rows]
set -eu
export LC_ALL=C
what=${1:-offload zo zen zero rows}
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
trainer=${TRAINER:+$(absolute "$TRAINER")} timeline=${TIMELINE:+$(absolute "$TIMELINE")}
cpu=${CPU:+$(absolute "$CPU")}
img=$(absolute "${IMG:-$(dirname "$0")/../doc/img}")
cd "$(dirname "$0")/.."
mkdir -p "$img"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

case $what in *rows*)

# --- finetuning.md, chat.md: rows of tokens, as boxes -------------------------------------------

# svg WIDTH HEIGHT: what a picture of boxes begins with
svg() {
    echo "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 $1 $2\" width=\"$1\" height=\"$2\">
<style>text{font:12px sans-serif;fill:#444} .b{text-anchor:middle} .page{fill:#fff} .of{fill:#1118;font-size:11px}
rect{stroke:#fff} .k0{fill:#84b6ea} .k1{fill:#e89a82} .k2{fill:#dcac3d} .k3{fill:#8fc27a} .k4{fill:#d5d9de} .k5{fill:none;stroke:#bbb}
@media(prefers-color-scheme:dark){text:not(.of){fill:#bbb} .page{fill:#161b22} rect{stroke:#161b22} .k5{stroke:#666}}</style>
<rect class=\"page\" width=\"100%\" height=\"100%\"/>"
}

# Documents of 6, 5, 4 and 3 tokens: a row each; in rows of 10 by best fit; and the mask of the second of these.
{
    svg 760 330
    awk '
        function box(class, i, j, text) {
            printf "<rect class=\"k%d\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", class, x + size * i, y + size * j, size, size
            if (text != "") printf "<text class=\"b of\" x=\"%g\" y=\"%g\">%s</text>\n",
                                   x + size * (i + 0.5), y + size * j + size / 2 + 4, text
        }
        function say(x, y, text) { printf "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y, text }
        BEGIN {
            n = split("6 5 4 3", length_of); T = 10; size = 22; rows = 2
            x = 16; y = 40
            say(x, 26, "--pack off: four rows of the longest, 75 % full")
            for (d = 1; d <= n; d++)
                for (t = 0; t < length_of[1]; t++)
                    if (t < length_of[d]) box(d - 1, t, d - 1, t); else box(5, t, d - 1)
            y = 186
            say(x, 172, "--pack on: two rows of ten, 90 % full")
            for (d = 1; d <= n; d++) {  # from the longest on: where it leaves the least room
                best = 0
                for (r = 1; r <= rows; r++) {
                    left = T - used[r] - length_of[d]
                    if (left >= 0 && (best == 0 || left < T - used[best] - length_of[d])) best = r
                }
                for (t = 0; t < length_of[d]; t++) {
                    begins[best, used[best] + t] = used[best]
                    of[best, used[best] + t] = d - 1
                    box(d - 1, used[best] + t, best - 1, t)
                }
                used[best] += length_of[d]
            }
            for (r = 1; r <= rows; r++)
                for (t = used[r]; t < T; t++) {
                    begins[r, t] = used[r]; of[r, t] = 4
                    box(4, t, r - 1, t - used[r])
                }
            say(x, 252, "The number in a box is its position: t - begins[t].")
            say(x, 272, "Grey: the rest of a row, a document of zeros.")
            x = 420; y = 62
            say(x - 20, 26, "Who sees whom in the second row")
            say(x, 50, "key u: 0 to 9")
            for (t = 0; t < T; t++) {
                say(x - 40, y + size * t + 15, (t == 0 ? "query " : "") t)
                for (u = 0; u < T; u++)
                    if (begins[2, t] <= u && u <= t) box(of[2, t], u, t); else box(5, u, t)
                say(x + size * T + 12, y + size * t + 15, "begins " begins[2, t] + 0)
            }
            say(x - 20, y + size * T + 24, "Filled: begins[t] &lt;= u &lt;= t. All else has no weight.")
        }' | sed 's/<text x="380" y="77">query 0/<text x="346" y="77">query 0/'
    echo '</svg>'
} >"$img/packing.svg"

# A conversation of two turns, as build/rows shows it for a model of ChatML; what is between >> and << is trained.
cpu=${CPU:+$(absolute "$CPU")}
[ -n "$cpu" ] || { make train_gpt2 && cpu=./train_gpt2; }
make -s build/rows
"$cpu" --data LICENSE --layers 1 --heads 1 --channels 8 --context 64 --batch 1 --seq 8 --steps 1 --eval-every 0 \
    --tokenizer dev/test/fixtures/tokenizer/small-smollm2 --out "$tmp/model" >"$tmp/model.txt" 2>&1
echo '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]}' | tr -d '\n' >"$tmp/talk.jsonl"
{
    svg 640 222
    build/rows 1 --model "$tmp/model" --data "$tmp/talk.jsonl" --chat-format chatml --batch 1 --seq 64 2>/dev/null |
        sed -n 's/^  //p' | awk '
        { text = text $0 }
        END {
            gsub(/<[|]/, "\n&", text); gsub(/[|]>/, "&\n", text); gsub(/>>|<<|\\n/, "\n&\n", text)
            n = split(text, piece, "\n"); x = 16; y = 44
            for (i = 1; i <= n; i++) {
                p = piece[i]
                if (p == ">>") trained = 1
                else if (p == "<<") trained = 0
                else if (p != "") {
                    wide = 7 * length(p) + 12
                    if (p == "<|im_start|>" && x > 16) { x = 16; y += 36 }
                    gsub(/</, "\\&lt;", p)
                    printf "<rect class=\"k%d\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"26\"/>", trained ? 3 : 4, x, y, wide
                    printf "<text class=\"b of\" x=\"%g\" y=\"%d\">%s</text>\n", x + wide / 2, y + 17, p
                    x += wide + 2
                }
            }
        }'
    echo '<text x="16" y="26">A message a line. Every piece of text is read; the loss is of what is green.</text>
<rect class="k3" x="16" y="190" width="18" height="18"/><text x="40" y="204">trained: a target</text>
<rect class="k4" x="170" y="190" width="18" height="18"/><text x="194" y="204">read only: as a target it is -1</text></svg>'
} >"$img/chat.svg"
;; esac
case $what in *offload* | *zo* | *zen* | *zero*) ;; *) exit 0 ;; esac

[ -n "$trainer" ] || { make train_gpt2emu && trainer=./train_gpt2emu; }
[ -n "$timeline" ] || { make build/timeline && timeline=build/timeline; }
export EMU_THREADS=1 EMU_CLOCK=virtual EMU_KERNEL_US=10 EMU_HOST_US=150

# Of each span of a trace: its row, name, step, begin and duration in microseconds.
spans() {
    awk '
        function field(name) {
            match($0, "\"" name "\":\"?[^,}\"]*")
            value = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
            sub(/"/, "", value)
            return value
        }
        /"ph":"X"/ {
            print field("tid") == 0 ? "compute" : field("name"), field("name"), field("step"),
                  field("ts"), field("dur")
        }' "$1"
}

# begin NAME STEP: seconds in its trace at which the GPU's work on a step begins
begin() {
    spans "$tmp/$1.json" | awk -v n="$2" '$1 == "compute" && $3 == n { print $4 * 1e-6; exit }'
}

case $what in *zen*)

# --- zenflow.md: windows of four steps ----------------------------------------------------------

# zen NAME TITLE OPTION...: fourteen steps, of which 2 to 13 are three windows; draws from the
# second of them on, if there is a title, and prints its mean step and what compute waited in it.
zen() {
    name=zenflow_$1 title=$2
    shift 2
    rm -rf "$tmp/out" "$tmp/$name.json"
    EMU_HOST_US=170 EMU_MEM_MB=128 EMU_LINK=2000000000 "$trainer" --data LICENSE --layers 8 \
        --heads 4 --channels 64 --context 32 --batch 1 --seq 32 --steps 14 --eval-every 0 --no-save \
        --threads 1 --gpu-memory 100M --precision bf16 --lr 1e-3 --out "$tmp/out" \
        --trace "$tmp/$name.json" -- "$@" >"$tmp/$name.txt" 2>&1 ||
        { cat "$tmp/$name.txt" >&2; exit 1; }
    from=$(begin "$name" 6) to=$(begin "$name" 10)
    last=$(awk -v from="$from" 'BEGIN { print from + 0.018 }')
    [ -z "$title" ] || "$timeline" "$tmp/$name.json" >"$img/$name.svg" --from "$from" \
        --to "$last" --title "$title"
    spans "$tmp/$name.json" | awk -v name="$*" -v from="$from" -v to="$to" '
        $1 == "compute" && $2 == "wait" && $4 >= 1e6 * from && $4 < 1e6 * to { wait += $5 / 4e3 }
        END { printf "%-60s step %.2f ms, waiting %.2f\n", name, 250 * (to - from), wait }'
}

zen none '' --offload none
zen zero 'zero: the CPU updates everything at every step' --offload zero
zen at_once 'zenflow --zen-overlap off: the rest at the end of a window, at once' --offload zenflow \
    --zen-overlap off --zen-reselect 0
zen late 'zenflow: the rest one window late, its update dealt out' --offload zenflow --zen-reselect 0
;; esac

case $what in *zo*)

# --- zo_streaming.md: streamed layers ------------------------------------------------------------

# zo NAME LINK OPTION...: eight steps over a link of so many bytes/s each way; leaves
# $tmp/NAME.json, and prints the mean of steps 4 to 6, from the begin of their work on the GPU.
zo() {
    name=$1 link=$2
    shift 2
    rm -rf "$tmp/out" "$tmp/$name.json"
    EMU_MEM_MB=128 EMU_LINK=$link "$trainer" --data LICENSE --layers 8 --heads 4 --channels 64 \
        --context 32 --batch 1 --seq 32 --steps 8 --eval-every 0 --no-save --threads 1 \
        --gpu-memory 100M --precision bf16 --optimizer mezo --resident-blocks 0 --lr 1e-4 \
        --out "$tmp/out" --trace "$tmp/$name.json" -- "$@" >"$tmp/$name.txt" 2>&1 ||
        { cat "$tmp/$name.txt" >&2; exit 1; }
    loss=$(sed -n 's/.*"step":8,"loss":\([^,]*\).*/\1/p' "$tmp/out/log.jsonl")
    spans "$tmp/$name.json" | awk -v name="$link $*" -v loss="$loss" '
        $1 == "compute" && $2 != "wait" && !($3 in begin) { begin[$3] = $4 }
        $3 >= 4 && $3 < 7 { sum[$1 == "compute" ? $2 : $1] += $5 / 3e3 }
        END {
            printf "%-46s step %.3f ms, waiting %.3f, in %.3f, out %.3f; loss %s\n", name,
                   (begin[7] - begin[4]) / 3e3, sum["wait"], sum["fetch"], sum["flush"], loss
        }'
}

# draw NAME MILLISECONDS TITLE: from the begin of step 5.
draw() {
    from=$(begin "$1" 5)
    to=$(awk -v from="$from" -v ms="$2" 'BEGIN { print from + 1e-3 * ms }')
    sed 's/fetch: state to/in: layers to/; s/out: state to/out: layers to/' "$tmp/$1.json" \
        >"$tmp/cut.json"
    "$timeline" "$tmp/cut.json" >"$img/zo_$1.svg" --from "$from" --to "$to" --title "$3"
    sed 's/>state in</>layers in</; s/>state out</>layers out</' "$img/zo_$1.svg" >"$tmp/cut.svg"
    cp "$tmp/cut.svg" "$img/zo_$1.svg"
}

[ -n "$cpu" ] || { make train_gpt2 && cpu=./train_gpt2; }

fast=500000000 slow=230000000
zo streamed $fast
zo no_overlap $fast --no-overlap
zo no_fused $fast --zo-no-fused-update
zo no_slots $fast --zo-no-slots
draw streamed 5.2 'streamed: the way of the layers is hidden'
draw no_overlap 5.2 '--no-overlap: one after the other'
draw no_fused 5.2 '--zo-no-fused-update: all layers come twice'
draw no_slots 5.2 '--zo-no-slots: memory is allocated for each layer'
zo link $slow
zo link_queries $slow --zo-queries 2
draw link 5.2 'half the link: the GPU waits'
draw link_queries 5.2 'half the link, --zo-queries 2: a second direction fits in'
for link in $fast $slow; do
    for slots in 1 2 3; do
        zo table "$link" --slots $slots
        zo table "$link" --slots $slots --zo-queries 3
    done
    zo table "$link" --resident-blocks 4
    zo table "$link" --resident-blocks 7
done

# --- rounding.md: g in 16 bits against g in fp32 -------------------------------------------------

"$cpu" --data LICENSE --layers 4 --heads 4 --channels 128 --context 64 --batch 8 --seq 64 \
    --steps 300 --lr 2e-3 --eval-every 0 --out "$tmp/model" >"$tmp/model.txt" 2>&1 ||
    { cat "$tmp/model.txt" >&2; exit 1; }
echo
for eps in 1e-2 1e-3 1e-4; do
    for precision in fp32 bf16 fp16; do
        rm -rf "$tmp/out"
        EMU_MEM_MB=256 "$trainer" --gpu-memory 250M --model "$tmp/model" --data LICENSE --batch 4 \
            --seq 64 --optimizer mezo --zo-eps $eps --precision $precision --lr 1e-30 --steps 48 \
            --eval-every 0 --no-save --out "$tmp/out" >"$tmp/out.txt" 2>&1 ||
            { cat "$tmp/out.txt" >&2; exit 1; }
        sed -n 's/.*"step":\([0-9]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p' \
            "$tmp/out/log.jsonl" >"$tmp/$precision.g"  # |g|
        paste -d ' ' "$tmp/fp32.g" "$tmp/$precision.g" | awk -v name="eps $eps, $precision" '
            { a += $2 * $2; d += ($4 - $2) ^ 2 }
            END { printf "%s: %d steps, rms of g %.3g, difference from fp32 %.3g of it\n", name, NR,
                         sqrt(a / NR), sqrt(d / a) }'
    done
done
;; esac

case $what in *zero*)

# --- zero.md: four ranks -------------------------------------------------------------------------

# zero NAME TITLE OPTION...: five steps; draws the third, if there is a title, and prints what the
# first rank gave the others in the last, per parameter.
zero() {
    name=zero_$1 title=$2
    shift 2
    rm -rf "$tmp/out" "$tmp/$name.json"
    EMU_HOST_US=60 EMU_MEM_MB=64 EMU_LINK=1000000000 EMU_NCCL_LINK=600000000 sh scripts/launch.sh 4 \
        "$trainer" --data LICENSE --layers 6 --heads 4 --channels 64 --context 32 --batch 1 \
        --seq 32 --steps 5 --eval-every 0 --no-save --threads 1 --gpu-memory 60M \
        --out "$tmp/out" --trace "$tmp/$name.json" -- "$@" >"$tmp/$name.txt" 2>&1 ||
        { cat "$tmp/$name.txt" >&2; exit 1; }
    [ -z "$title" ] || "$timeline" "$tmp/$name.json" >"$img/$name.svg" --step 3 --title "$title"
    awk -v name="$*" '
        function field(name) {
            match($0, "\"" name "\":[^,}]*")
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
        }
        /^model: / { sub(/ M parameters.*/, ""); parameters = 1e6 * $NF }
        /"step":5,/ {
            printf "%-34s reduced %.3f, gathered %.3f bytes per parameter\n", name,
                   field("reduced_bytes") / parameters, field("gathered_bytes") / parameters
        }' "$tmp/$name.txt" "$tmp/out/log.jsonl"
}

zero 1 '' --zero 1
zero 2 'ZeRO-2 on four ranks' --zero 2
zero 3 'ZeRO-3 on four ranks' --zero 3
zero 3_interleave 'ZeRO-3, --offload interleave --share 0.5' --zero 3 --offload interleave --share 0.5 \
    --slots 3
zero 2_accum '' --zero 2 --accum 4
zero 3_accum '' --zero 3 --accum 4
for stage in 1 2 3; do
    "$trainer" --plan --world 8 --zero $stage --model 7b --batch 1 --seq 2048 --recompute block \
        --offload none --gpu-memory 999G --rates scripts/rates/h200_16cores.txt |
        sed -n "s/^GPU  *\(.*[0-9]\)/ZeRO-$stage, 7b on 8 GPUs: \1/p"
done
;; esac

case $what in *offload*) ;; *) exit 0 ;; esac

# --- offload.md: a step of each mode, as --plan predicts it, all on one scale --------------------

# plan NAME TITLE OPTION...: from one gradient norm to the next; then everything begins again, and
# what would come is cut off.
plan() {
    name=$1 title=$2
    shift 2
    rm -f "$tmp/plan.json"
    "$trainer" --plan --model 7b --batch 1 --seq 2048 --rates scripts/rates/paper_h100.txt \
        --gpu-memory 80G --host-memory 200G --trace "$tmp/plan.json" -- "$@" >"$tmp/plan.txt"
    step=$(sed -n 's/^  step \([0-9.]*\),.*/\1/p' "$tmp/plan.txt")
    awk -v end="$step" '
        /"ph":"X"/ && /"name":"(update|fetch|flush|back)"/ {
            split($0, part, "\"ts\":")
            if (part[2] + 0 >= 1e6 * end - 600) next  # the printed time is rounded
        }
        /"ph":/ { sub(/,$/, ""); printf "%s%s", comma, $0; comma = ",\n"; next }
        { print }' "$tmp/plan.json" >"$tmp/cut.json"
    "$timeline" "$tmp/cut.json" >"$img/mode_$name.svg" --from 0 --to 4.5 \
        --title "$title: $step s from one gradient norm to the next"
    printf '%-15s %s s; GPU and host memory: %s\n' "$name" "$step" \
        "$(sed -n 's/^[A-Za-z]*  *total  *\([0-9.]*\) .*/\1/p' "$tmp/plan.txt" | tr '\n' ' ')GiB"
}

published="--no-overlap"
plan none 'none, on a GPU with 96 GiB free' --offload none --gpu-memory 200G
# shellcheck disable=SC2086  # options are words
plan zero_published 'zero, without the overlaps' --offload zero $published
plan zero 'zero' --offload zero
plan twinflow 'twinflow, 20 % resident' --offload twinflow --resident 0.2
plan stride 'interleave, every second sub-group' --offload interleave --stride 2 --slots 3
plan share 'interleave, by share (auto: 72 %)' --offload interleave --slots 3

# --- runs on the emulated GPU -------------------------------------------------------------------

export EMU_MEM_MB=64 EMU_LINK=2000000000

# run NAME OPTION...: five steps; leaves $tmp/NAME.json and $tmp/NAME.log
run() {
    name=$1
    shift
    rm -rf "$tmp/out" "$tmp/$name.json"
    "$trainer" --data LICENSE --layers 8 --heads 4 --channels 64 --context 32 --batch 1 --seq 32 \
        --steps 5 --eval-every 0 --no-save --threads 1 --gpu-memory 60M \
        --out "$tmp/out" --trace "$tmp/$name.json" -- "$@" >"$tmp/$name.txt" 2>&1 ||
        { cat "$tmp/$name.txt" >&2; exit 1; }
    mv "$tmp/out/log.jsonl" "$tmp/$name.log"
}

for mode in none interleave; do
    for recompute in none block; do
        name=step_$mode$([ $recompute = none ] || echo _block)
        share=$([ $mode = none ] || echo '--share 0.5 --slots 3')
        # shellcheck disable=SC2086
        run "$name" --offload $mode --recompute $recompute $share
        "$timeline" "$tmp/$name.json" >"$img/$name.svg" --step 3 --memory \
            --title "--offload $mode $share --recompute $recompute, step 3 of a run"
    done
done

# --- fits.md ------------------------------------------------------------------------------------

streamed="--offload zero --recompute none --moments bf16 --weights host"
# shellcheck disable=SC2086
run step_streamed $streamed --gpu-memory 33950K
"$timeline" "$tmp/step_streamed.json" >"$img/step_streamed.svg" --step 3 --memory --title "$streamed, step 3 of a run"

# --- the table of bytes per parameter, and that of slots ----------------------------------------

# bytes OPTIONS GRAD SUMS: by the counters of the third step. In host memory: what crosses the link;
# of each parameter that the CPU updates its weight and state in and out, and its gradient (GRAD
# bytes); and the SUMS bytes of adding up micro-batches there.
bytes() {
    options=$1 grad=$2 sums=$3
    # shellcheck disable=SC2086
    run bytes $options
    awk -v options="$options" -v grad="$grad" -v sums="$sums" '
        function field(name) {
            match($0, "\"" name "\":[^,}]*")
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
        }
        /"offload":{"step":3/ {
            cpu = field("cpu_params"); all = cpu + field("gpu_params")
            moved_in = field("h2d_bytes") / all; moved_out = field("d2h_bytes") / all
            printf "%-58s cpu %.3f  in %6.3f  out %6.3f  dram %6.3f  update %.2f ms, both %.2f\n",
                   options, cpu / all, moved_in, moved_out,
                   moved_in + moved_out + cpu / all * (24 + grad + sums), field("update_ms"),
                   field("duplex_ms")
        }' "$tmp/bytes.log"
    sed -n 's/^gradients of/    gradients of/p
            s/^GPU  *\(gradients\|total\) /    GPU \1 /p' \
        "$tmp/bytes.txt"
}

echo
bytes '--offload none' 2 0
bytes '--offload zero' 2 0
bytes '--offload zero --grad-wire fp32' 4 0
bytes '--offload zero --accum 4' 4 0
bytes '--offload zero --accum 4 --gpu-memory 34M' 4 36
bytes '--offload twinflow --resident 0.2' 2 0
bytes '--offload interleave --stride 2' 2 0
bytes '--offload interleave --share 0.5' 2 0
bytes '--offload interleave --share 0.5 --weights gpu --gpu-memory 35900K' 2 0
bytes '--offload interleave --share 1' 2 0
for slots in 1 2 3 4; do
    bytes "--offload interleave --share 1 --slots $slots --no-overlap" 2 0
done
