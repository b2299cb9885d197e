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
    if grep -qxF -e "$3" reads.out; then echo "ok $1"
    else
        cat "$2"
        fail "$1" "no line: $3"
    fi
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
for i in 0 9 12 13 20 31 40 41 42 43 54 65 76 77 78 79; do  # 16 columns of 80, one row of 20
    put known $h.1.mlp.c_proj.weight $((20 * i)) $one
done
for i in 10 11; do put known transformer.wte.weight $((20 * i)) $one; done  # columns 2, 1, 1
put known transformer.wte.weight $((20 * 12 + 1)) $one
put known transformer.wte.weight $((20 * 255 + 19)) $one
put known transformer.wpe.weight 0 $one
put known $h.0.ln_1.bias 3 $two
"$columns" known >known.out 2>&1
check known_runs test $? -eq 0
reads known_qkv known.out 'h.0.attn.qkv.w (60, 20) 39.0 62.5 87.5 81.2 100.0'
reads known_mlp_proj known.out 'h.1.mlp.proj.w (20, 80) 39.0 6.2 50.0 100.0 100.0'
reads known_wte known.out 'wte (256, 20) 9.8 50.0 75.0 75.0 100.0'
reads known_wpe known.out 'wpe (10, 20) 2.4 100.0 100.0 100.0 100.0'
reads known_zero_kind known.out 'all attn.proj.w 0.0 - - - -'
reads known_all known.out 'all matrices 90.2 37.8 70.3 89.2 100.0'
reads known_even known.out 'evenly spread 3.4 10.0 3.3 10.0'
reads known_vectors known.out 'biases and norms 9.8'

# Several dumps: squares are added up; the first one's largest columns (3 and 7) have so much of
# the last one, whose largest are 3 and 8.
blank gpt2 other
put other $h.0.attn.c_attn.weight $((3 * 60)) $three      # columns 9, 4, 1
put other $h.0.attn.c_attn.weight $((8 * 60)) $two
put other $h.0.attn.c_attn.weight $((7 * 60)) $one
"$columns" known other >two.out
reads sum_of_two two.out 'h.0.attn.qkv.w (60, 20) 54.5 63.3 80.0 46.7 100.0 71.4 1 of 2'
reads kept_of_all two.out 'all matrices 92.7 45.1 70.6 66.7 100.0 71.4 1 of 32'
reads kept_by_lot two.out 'evenly spread 3.8 10.0 2.8 10.0 10.0 3.2 of 32'
"$columns" known other known >three.out
reads last_against_first three.out 'h.0.attn.qkv.w (60, 20) 47.9 63.0 82.6 56.5 100.0 87.5 2 of 2'

# OPT stores (out, in); q, k and v are parts of our qkv; two rows of positions are not ours.
blank "$fixtures/opt/dump.safetensors" opt
d=model.decoder
put opt $d.layers.0.self_attn.q_proj.weight $((16 * 2 + 5)) $one    # row 2
put opt $d.layers.0.self_attn.k_proj.weight $((16 * 2 + 5)) $one    # row 18
put opt $d.layers.0.self_attn.v_proj.weight $((16 * 2 + 6)) $one    # row 34
put opt $d.layers.0.self_attn.v_proj.weight $((16 * 2 + 7)) $one    # row 34
put opt $d.layers.1.fc1.weight $((16 * 7 + 3)) $one
put opt $d.layers.1.fc1.weight $((16 * 7 + 4)) $three
put opt $d.embed_positions.weight $((16 * 1 + 3)) $three
put opt $d.embed_positions.weight $((16 * 2 + 3)) $one
put opt $d.embed_positions.weight $((16 * 13 + 3)) $one
"$columns" opt >opt.out
reads opt_qkv opt.out 'h.0.attn.qkv.w (48, 16) 25.0 50.0 75.0 50.0 100.0'
reads opt_positions opt.out 'wpe (12, 16) 12.5 100.0 100.0 50.0 50.0'

# A head of its own.
untied=$fixtures/gpt2-untied/dump.safetensors
"$columns" "$untied" >untied.out
check untied_head grep -q '^lm_head  *(50, 16) ' untied.out

# --- what it refuses -----------------------------------------------------------------------------

refuses no_files 2 'usage' "$columns"
refuses no_such_file 2 'No such file' "$columns" gpt2 absent
refuses unknown_option 2 'no such option: --svg' "$columns" gpt2 --svg x
check refused_without_a_table test ! -s refuses.out
refuses no_dump 2 'model.safetensors: it has no gradients' "$columns" \
    "$fixtures/gpt2/model.safetensors"
head -c 20000 gpt2 >cut
refuses cut_short 2 'cut' "$columns" cut
refuses no_safetensors 2 'LICENSE' "$columns" "$top/LICENSE"
blank gpt2 zero
refuses all_zero 2 'zero: all gradients are zero' "$columns" zero
refuses other_model 2 'dump.safetensors: not of the same model' "$columns" gpt2 \
    "$fixtures/gpt2/dump.safetensors"
sed 's/"grad.lm_head/"good.lm_head/' "$untied" >tied
refuses other_head 2 'tied: not of the same model' "$columns" "$untied" tied
"$tide" --data "$top/LICENSE" --model opt-125m --vocab 256 $small --dump alike >run.out ||
    cat run.out
check same_sizes_in_opt "$columns" alike
refuses other_naming 2 'alike: not of the same model' "$columns" gpt2 alike
cp gpt2 nan && put nan $h.1.ln_2.weight 3 $nan
refuses nan_in_a_vector 2 'nan: grad.transformer.h.1.ln_2.weight is not finite' "$columns" nan
cp gpt2 large && put large $h.1.mlp.c_fc.weight 3 '\377\377\177\177'  # its square is larger than any float
check large_is_not_infinite "$columns" large
while read -r name change words; do
    sed "$change" gpt2 >changed
    refuses "$name" 2 "$words" "$columns" changed
done <<'END'
missing_tensor s/h\.1\.ln_2\.bias/h.1.ln_3.bias/ there is no grad.transformer.h.1.ln_2.bias
unknown_tensor s/"logits"/"grad.x"/ no parameter for grad.x
no_layers s/grad\(.transformer.h.0.mlp.c_fc.weight\)/good\1/ there is no grad.transformer.h.0.mlp.c_fc.weight
other_shape s/"shape":\[20,60\]/"shape":[60,20]/ h.0.attn.c_attn.weight is (60, 20), not (20, 60)
no_matrix s/"shape":\[256,20\]/"shape":[5120\x20\x20]/ wte.weight is no matrix
no_floats s/\("grad.transformer.ln_f.bias":{"dtype":"\)F32/\1I32/ grad.transformer.ln_f.bias has no floats
END
if [ -w /dev/full ]; then
    refuses full_disk 1 'cannot write to the standard output' sh -c '"$1" gpt2 >/dev/full' - "$columns"
fi
