#!/bin/sh
# Prints, beside step times that others have measured, what --plan predicts for them, as a table in
# Markdown: doc/speed.md has it, with notes. Needs neither GPU nor data.
# usage: [TRAINER=./train_gpt2emu] [ROWS=PATTERN] scripts/published.sh
# The rates of a card (rates/) are from its data sheet and one published measurement of a product; none
# is fitted to a row. ROWS: only rows with this pattern (grep -E).
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
trainer=${TRAINER:-$(dirname "$0")/../train_gpt2cu}
rates=$(dirname "$0")/rates
[ -x "$trainer" ] ||
    { echo "$trainer is no program: make train_gpt2cu, or train_gpt2emu" >&2; exit 2; }

# A row, separated by semicolons: who measured, the card, its file of rates, measured tokens/s, notes,
# options. llmq: 524,288 tokens in a step, its own micro-batch and recomputation, 16-bit moments;
# --offload auto chooses what is stored on the host. 5 % of the card stay free. ml_dataflow: given memory
# of GPU and host; its rounds are micro-batches, all its state has 16 bits.
moments="--seq 1024 --moments bf16 --offload auto --host-memory 480G"
c4090="$moments --gpu-memory 23347M" c5090="$moments --gpu-memory 31130M"
l40s="$moments --gpu-memory 46694M" h100="$moments --gpu-memory 76900M"
flow="--moments bf16 --master bf16 --offload auto" l8="--model llama3.1-8b"
mega="--seq 1024 --activations host --host-memory 1400G --gpu-memory 76900M"
none="--offload none" two="--seq 512 --batch 4 --world 2 --zero 2"
rows() {
    cat <<END
this trainer;H200;h200_16cores;550700;1;--model gpt2 --seq 1024 --batch 32 $none --recompute none
this trainer;H200;h200_16cores;50200;1;--model gpt2-xl --seq 1024 --batch 16 $none --recompute none
this trainer;H200;h200_16cores;49600;1;--model 7b --layers 8 --seq 2048 --batch 8 $none --recompute none
llmq;RTX 4090;rtx4090_desktop;39842;;--model qwen2.5-0.5b --batch 16 --accum 32 $c4090 --recompute none
llmq;RTX 4090;rtx4090_desktop;14072;;--model qwen2.5-1.5b --batch 4 --accum 128 $c4090 --recompute none
llmq;RTX 4090;rtx4090_desktop;7005;;--model qwen2.5-3b --batch 4 --accum 128 $c4090 --recompute light
llmq;RTX 4090;rtx4090_desktop;2777;;--model qwen2.5-7b --batch 16 --accum 32 $c4090 --recompute block
llmq;RTX 4090;rtx4090_desktop;1348;2;--model qwen2.5-14b --batch 8 --accum 64 $c4090 --recompute block
llmq;RTX 5090;rtx5090_desktop;55000;;--model qwen2.5-0.5b --batch 16 --accum 32 $c5090 --recompute none
llmq;RTX 5090;rtx5090_desktop;17000;3;--model qwen2.5-1.5b --batch 8 --accum 64 $c5090 --recompute block
llmq;RTX 5090;rtx5090_desktop;8600;3;--model qwen2.5-3b --batch 8 --accum 64 $c5090 --recompute block
llmq;RTX 5090;rtx5090_desktop;3100;;--model qwen2.5-7b --batch 8 --accum 64 $c5090 --recompute block
llmq;L40S;l40s_server;44000;;--model qwen2.5-0.5b --batch 16 --accum 32 $l40s --recompute none
llmq;L40S;l40s_server;17000;;--model qwen2.5-1.5b --batch 8 --accum 64 $l40s --recompute none
llmq;L40S;l40s_server;8900;;--model qwen2.5-3b --batch 4 --accum 128 $l40s --recompute none
llmq;L40S;l40s_server;3900;;--model qwen2.5-7b --batch 4 --accum 128 $l40s --recompute light
llmq;L40S;l40s_server;1500;4;--model qwen2.5-14b --batch 16 --accum 32 $l40s --recompute block
llmq;H100;h100_server;149500;;--model qwen2.5-0.5b --batch 32 --accum 16 $h100 --recompute none
llmq;H100;h100_server;58800;;--model qwen2.5-1.5b --batch 32 --accum 16 $h100 --recompute none
llmq;H100;h100_server;30900;;--model qwen2.5-3b --batch 16 --accum 32 $h100 --recompute none
llmq;H100;h100_server;13850;;--model qwen2.5-7b --batch 4 --accum 128 $h100 --recompute none
llmq;H100;h100_server;6320;;--model qwen2.5-14b --batch 8 --accum 64 $h100 --recompute block
llm.c;8 x A100;a100_server;1747626;;--model gpt2 --seq 1024 --batch 64 --world 8 --zero 1 $none --recompute none
llm.c;8 x A100;a100_server;639375;;--model gpt2-medium --seq 1024 --batch 64 --world 8 --zero 1 $none --recompute none
llm.c;8 x H100;h100_server;374491;;--model gpt2-xl --seq 1024 --batch 16 --accum 8 --world 8 --zero 1 $none --recompute light
DeepSpeed ZeRO-2;2 x A100;a100_server;17067;5;--model qwen2.5-1.5b $two $none
DeepSpeed ZeRO-Offload;2 x A100;a100_server;3001;5;--model qwen2.5-1.5b $two --offload zero --no-overlap
DeepSpeed ZeRO-Offload;2 x A100;a100_server;1640;5;--model qwen2.5-3b $two --offload zero --no-overlap
DeepSpeed ZenFlow;2 x A100;a100_server;7199;5;--model qwen2.5-1.5b $two --offload zenflow --zen-topk 0.1 --zen-window 4
DeepSpeed ZenFlow;2 x A100;a100_server;3670;5;--model qwen2.5-3b $two --offload zenflow --zen-topk 0.1 --zen-window 4
ml_dataflow;H100, 78 + 75 GiB;h100_server;13014;6;$flow $l8 --batch 16 --seq 1024 --accum 38 --gpu-memory 78G --host-memory 75G
ml_dataflow;H100, 24 + 75 GiB;h100_server;10966;6;$flow $l8 --batch 16 --seq 1024 --accum 38 --gpu-memory 24G --host-memory 75G
ml_dataflow;H100, 24 + 75 GiB;h100_server;9781;6;$flow $l8 --batch 2 --seq 8192 --accum 34 --gpu-memory 24G --host-memory 75G
ml_dataflow;H100, 40 + 192 GiB;h100_server;5671;6;$flow $l8 --layers 64 --batch 16 --seq 1024 --accum 22 --gpu-memory 40G --host-memory 192G
ml_dataflow;H100, 77 + 356 GiB;h100_server;2756;6;$flow --model qwen2.5-32b --batch 16 --seq 1024 --accum 23 --gpu-memory 77G --host-memory 356G
ml_dataflow;A100, 78 + 75 GiB;a100_server;4258;6;$flow $l8 --batch 16 --seq 1024 --accum 12 --gpu-memory 78G --host-memory 75G
ml_dataflow;A100, 24 + 75 GiB;a100_server;3578;6;$flow $l8 --batch 16 --seq 1024 --accum 12 --gpu-memory 24G --host-memory 75G
ml_dataflow;RTX 5090, 30 + 96 GiB;rtx5090_desktop;3941;6;$flow $l8 --batch 8 --seq 1024 --accum 16 --gpu-memory 30G --host-memory 96G
ml_dataflow;RTX 5090, 30 + 176 GiB;rtx5090_desktop;1774;6;$flow $l8 --layers 64 --batch 8 --seq 1024 --accum 9 --gpu-memory 30G --host-memory 176G
ml_dataflow;RTX 3090, 22 + 96 GiB;rtx3090_desktop;1315;6;$flow $l8 --batch 8 --seq 1024 --accum 5 --gpu-memory 22G --host-memory 96G
MegaTrain;H100;h100_server;5953;7;--model qwen2.5-7b --batch 158 $mega
MegaTrain;4 x H100;h100_server;28232;7;--model qwen2.5-7b --batch 158 $mega --world 4 --zero 3
MegaTrain;H100;h100_server;1318;8;--model qwen2.5-32b --batch 96 $mega
MegaTrain;GH200;gh200;2979;9;--model qwen2.5-14b --batch 64 --seq 1024 --activations host --host-memory 440G --gpu-memory 91G
END
}

echo '| measured by | on | model | micro-batch x accumulation | measured, tokens/s | predicted | ratio | note |'
echo '|---|---|---|---|---|---|---|---|'
rows | grep -E -e "${ROWS:-.}" | while IFS=';' read -r who card file measured note options; do
    # shellcheck disable=SC2086  # options are words
    "$trainer" --plan --rates "$rates/$file.txt" $options 2>&1 | awk -v who="$who" -v card="$card" \
        -v measured="$measured" -v note="$note" -v options="$options" '
        /^  step .* tokens/ { sub(/.*: /, ""); predicted = $1 }
        END {
            n = split(options, o, " ")
            for (i = 1; i < n; i++) given[o[i]] = o[i + 1]
            model = given["--model"]
            if ("--layers" in given) model = model ", " given["--layers"] " layers"
            batch = given["--batch"] " x " given["--seq"]
            if ("--accum" in given) batch = batch " x " given["--accum"]
            printf "| %s | %s | %s | %s | %d | %s | %s | %s |\n", who, card, model, batch, measured,
                predicted == "" ? "?" : predicted,
                predicted == "" ? "?" : sprintf("%.2f", predicted / measured), note
        }'
done
