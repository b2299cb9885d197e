#!/bin/sh
# The columns program on hand-made gradients, on real ones, and on what is no dump at all.
# usage: sh dev/test/tools/test_columns.sh [COLUMNS]    (from the top of the repository, after make)
set -u
. dev/test/cli.sh
columns=$(realpath "${1:-build/columns}")
in_a_folder
tide=$top/train_gpt2 fixtures=$top/dev/reference/fixtures

# header FILE: the bytes that begin a safetensors file, up to its data
header() { head -c $((8 + $(od -An -tu4 -N4 "$1"))) "$1"; }

# blank FROM TO: the same tensors, all zero
blank() {
    header "$1" >"$2"
    head -c $(($(wc -c <"$1") - $(wc -c <"$2"))) /dev/zero >>"$2"
}

# begin FILE TENSOR: its first byte
begin() {
    echo $(($(header "$1" | wc -c) + $(header "$1" | tr -d '\n\000' |
        sed "s/.*\"grad\\.$2\":{[^}]*\"data_offsets\":\\[\\([0-9]*\\),.*/\\1/")))
}

# put FILE TENSOR ELEMENT VALUE: a float, its bytes as printf escapes
put() { printf "$4" | dd of="$1" bs=1 seek=$(($(begin "$1" "$2") + 4 * $3)) conv=notrunc 2>dd.err; }
one='\000\000\200\077' two='\000\000\000\300' three='\000\000\100\100'  # two: its negative
nan='\000\000\300\177'

# reads NAME FILE LINE: a line of the table in FILE, spaces aside
reads() {
    tr -s ' ' <"$2" | sed 's/^ //' >reads.out
    check "$1" grep -xF -e "$3" reads.out
}

# --- hand-made gradients -------------------------------------------------------------------------

# GPT-2 stores linear weights as (in, out): a stored row is one of our columns.
small="--layers 2 --heads 1 --channels 20 --context 10 --batch 2 --"
"$tide" --data "$top/LICENSE" $small --dump gpt2 >run.out || cat run.out
blank gpt2 known
h=transformer.h
put known $h.0.attn.c_attn.weight $((3 * 60 + 5)) $three   # columns 10, 4, 1, 1
put known $h.0.attn.c_attn.weight $((3 * 60 + 6)) $one
put known $h.0.attn.c_attn.weight $((7 * 60 + 5)) $two     # rows 13, 1, 1, 1
put known $h.0.attn.c_attn.weight $((8 * 60 + 9)) $one
put known $h.0.attn.c_attn.weight $((9 * 60 + 10)) $one
put known $h.1.mlp.c_proj.weight 20 $one                   # one of 80 columns
for i in 10 11; do put known transformer.wte.weight $((20 * i)) $one; done  # columns 2, 1, 1
put known transformer.wte.weight $((20 * 12 + 1)) $one
put known transformer.wte.weight $((20 * 255 + 19)) $one
put known $h.0.ln_1.bias 3 $two
"$columns" known >known.out 2>&1
check known_runs test $? -eq 0
reads known_qkv known.out 'h.0.attn.qkv.w (60, 20) 64.0 62.5 87.5 81.2 100.0'
reads known_wte known.out 'wte (256, 20) 16.0 50.0 75.0 75.0 100.0'
reads known_zero_kind known.out 'all attn.proj.w 0.0 - - - -'
reads known_all known.out 'all matrices 84.0 61.9 85.7 81.0 100.0'
reads known_even known.out 'evenly spread 4.8 10.0 1.7 10.0'
reads known_vectors known.out 'biases and norms 16.0'

# Several dumps: squares are added up; the first one's largest columns (3 and 7) have so much of
# the last one, whose largest are 3 and 8.
blank gpt2 other
put other $h.0.attn.c_attn.weight $((3 * 60)) $three      # columns 9, 4, 1
put other $h.0.attn.c_attn.weight $((8 * 60)) $two
put other $h.0.attn.c_attn.weight $((7 * 60)) $one
"$columns" known other >two.out
reads sum_of_two two.out 'h.0.attn.qkv.w (60, 20) 76.9 63.3 80.0 46.7 100.0 71.4 1 of 2'
reads kept_of_all two.out 'all matrices 89.7 62.9 80.0 51.4 100.0 71.4 1 of 32'
reads kept_by_lot two.out 'evenly spread 4.9 10.0 1.7 10.0 10.0 3.2 of 32'
# OPT stores (out, in); q, k and v are parts of our qkv; two rows of positions are not ours.
blank "$fixtures/opt/dump.safetensors" opt
d=model.decoder
put opt $d.layers.0.self_attn.q_proj.weight $((16 * 2 + 5)) $one    # row 2
put opt $d.layers.0.self_attn.k_proj.weight $((16 * 2 + 5)) $one    # row 18
put opt $d.layers.0.self_attn.v_proj.weight $((16 * 2 + 6)) $one    # row 34
put opt $d.layers.0.self_attn.v_proj.weight $((16 * 2 + 7)) $one    # row 34
put opt $d.embed_positions.weight $((16 * 1 + 3)) $three
put opt $d.embed_positions.weight $((16 * 2 + 3)) $one
put opt $d.embed_positions.weight $((16 * 13 + 3)) $one
"$columns" opt >opt.out
reads opt_qkv opt.out 'h.0.attn.qkv.w (48, 16) 66.7 50.0 75.0 50.0 100.0'
reads opt_positions opt.out 'wpe (12, 16) 33.3 100.0 100.0 50.0 50.0'

# LLaMA: q, k and v are parts of our qkv, whose heads differ in number; gate and up are parts of our fc.
blank "$fixtures/llama-gqa/dump.safetensors" llama
d=model.layers.0
put llama $d.self_attn.q_proj.weight $((18 * 2 + 5)) $one    # row 2
put llama $d.self_attn.k_proj.weight $((18 * 2 + 5)) $one    # row 62
put llama $d.self_attn.v_proj.weight $((18 * 2 + 6)) $one    # row 82
put llama $d.mlp.gate_proj.weight $((18 + 3)) $one           # row 1
put llama $d.mlp.up_proj.weight $((18 + 3)) $two             # row 30
"$columns" llama >llama.out
reads llama_qkv llama.out 'h.0.attn.qkv.w (100, 18) 37.5 66.7 100.0 33.3 100.0'
reads llama_fc llama.out 'h.0.mlp.fc.w (58, 18) 62.5 100.0 100.0 80.0 100.0'
for family in llama-biased mistral qwen2 qwen3 smollm3 opt-350m; do
    "$columns" "$fixtures/$family/dump.safetensors" >"$family.out" 2>&1
    check "reads_$family" grep -q '^all matrices' "$family.out"
done

# A head of its own.
untied=$fixtures/gpt2-untied/dump.safetensors
"$columns" "$untied" >untied.out
check untied_head grep -q '^lm_head  *(50, 16) ' untied.out

# --- what it refuses -----------------------------------------------------------------------------

refuses no_files 2 'usage' "$columns"
refuses no_dump 2 'model.safetensors: it has no gradients' "$columns" \
    "$fixtures/gpt2/model.safetensors"
blank gpt2 zero
refuses all_zero 2 'zero: all gradients are zero' "$columns" zero
refuses other_model 2 'dump.safetensors: not of the same model' "$columns" gpt2 \
    "$fixtures/gpt2/dump.safetensors"
cp gpt2 nan && put nan $h.1.ln_2.weight 3 $nan
refuses nan_in_a_vector 2 'nan: grad.transformer.h.1.ln_2.weight is not finite' "$columns" nan
while read -r name change words; do
    sed "$change" gpt2 >changed
    refuses "$name" 2 "$words" "$columns" changed
done <<'END'
missing_tensor s/h\.1\.ln_2\.bias/h.1.ln_3.bias/ there is no grad.transformer.h.1.ln_2.bias
unknown_tensor s/"logits"/"grad.x"/ no parameter for grad.x
other_shape s/"shape":\[20,60\]/"shape":[60,20]/ h.0.attn.c_attn.weight is (60, 20), not (20, 60)
no_matrix s/"shape":\[256,20\]/"shape":[5120\x20\x20]/ wte.weight is no matrix
no_floats s/\("grad.transformer.ln_f.bias":{"dtype":"\)F32/\1I32/ grad.transformer.ln_f.bias has no floats
END
