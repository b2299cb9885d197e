#!/bin/sh
# Runs the compare program on fixtures and on hand-made files.
# usage: sh dev/test/tools/test_compare.sh [COMPARE]    (from the top of the repository, after make)
. dev/test/cli.sh
compare=$(absolute "${1:-build/compare}") fixtures=$(pwd)/dev/reference/fixtures
in_a_folder

# expect NAME CODE PATTERN ARGUMENTS...: exit code, and a pattern in what it prints
expect() {
    name=compare_$1 code=$2 pattern=$3
    shift 3
    "$compare" "$@" >out 2>&1
    got=$?
    if [ "$got" -eq "$code" ] && grep -q -e "$pattern" out; then echo "ok $name"
    else fail "$name" "exit code $got, not $code with \"$pattern\", of $*: $(cat out)"; fi
}

# tensor FILE DTYPE SHAPE BYTES DATA: a file with the one tensor x; DATA as printf escapes
tensor() {
    header="{\"x\":{\"dtype\":\"$2\",\"shape\":[$3],\"data_offsets\":[0,$4]}}"
    { printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0"; printf %s "$header"; printf "$5"; } >"$1"
}
one='\000\000\200\077' nan='\000\000\300\177' inf='\000\000\200\177'
tensor one F32 2 8 "$one$one"
tensor ulp F32 2 8 "$one"'\001\000\200\077'     # 1 + 2^-23
tensor near F32 2 8 "$one"'\000\004\200\077'    # 1 + 2^-13, 1.2e-4
tensor wide F32 2,2 16 '\000\000\200\104'"$one$one$one"  # 1024 first
tensor widenear F32 2,2 16 '\000\000\200\104'"$one$one"'\000\004\200\077'
tensor f64 F64 2 16 '\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077'
tensor f16 F16 2 4 '\000\074\000\074'
tensor nan F32 2 8 "$one$nan"
tensor inf F32 2 8 "$one$inf"
tensor infnear F32 2 8 '\000\004\200\077'"$inf"
tensor f64ulp F64 2 16 '\0\0\0\0\0\0\360\077\001\0\0\0\0\0\360\077'  # 1 + 2^-52
tensor i2 I32 2 8 '\377\000\000\000\010\000\000\000'
tensor i1 I32 2 8 '\377\000\000\000\007\000\000\000'
tensor i64 I64 2 16 '\377\0\0\0\0\0\0\0\007\0\0\0\0\0\0\0'
tensor u16 U16 2 4 '\377\000\010\000'
tensor i16 I16 2 4 '\377\000\007\000'
tensor i8 I8 2 2 '\377\007'
tensor u8 U8 2 2 '\377\007'
tensor c64 C64 1 8 "$one$one"
tensor bits I64 1 8 "$one$one"
tensor c64ulp C64 1 8 "$one"'\001\000\200\077'

dump=$fixtures/gpt2/dump.safetensors
expect directories 0 '28 tensors: 28 identical' "$fixtures/gpt2" "$fixtures/gpt2/model.safetensors"
expect all 0 'ok, identical' "$dump" "$dump" --all
expect other_model 1 'ONLY IN B' "$fixtures/gpt2" "$fixtures/opt"
expect only_in_a 1 'ONLY IN A' "$fixtures/gpt2-untied" "$fixtures/gpt2"
expect other_shapes 1 'SHAPE IN A (61, 16)' "$fixtures/gpt2" "$fixtures/gpt2-accum"

expect rounding 0 '1 within' "ulp" "one"
expect beyond 1 '1.22e-04 *1.22e-04 *1.22e-04  DIFFERS at \[1\]' "near" "one"
expect rtol_small 1 '1 beyond' "near" "one" --rtol 1.2e-4 --atol 0
expect atol 0 '1 within' "near" "one" --rtol 0 --atol 1.3e-4
expect norm_wise 0 '1.22e-04 *1.19e-07 *1.22e-04  ok at \[1,1\]' "widenear" "wide"
expect double_precision 1 'DIFFERS' "f64ulp" "f64" --rtol 1e-16 --atol 0
expect other_width 0 '1 identical' "one" "f64"
expect f16 0 '1 identical' "f16" "one"
expect nan 1 'NOT FINITE (1) at \[1\]' "nan" "nan" --rtol 1e30
expect inf_same 0 '1 identical' "inf" "inf"
expect inf_in_b 1 'NOT FINITE' "one" "inf" --rtol 1e300
expect inf_hides_nothing 1 'DIFFERS at \[0\]' "infnear" "inf"
expect integers 1 'DIFFERS at \[1\]' "i1" "i2" --rtol 1e9
expect integer_widths 0 '1 identical' "i1" "i64"
expect last_byte_of_two 1 'DIFFERS at \[1\]' "i16" "u16"
expect two_bytes 0 '1 identical' "i16" "i64"
expect one_byte 0 '1 identical' "u8" "i64"
expect one_byte_with_a_sign 1 '2.56e+02 .*DIFFERS at \[0\]' "i8" "u8"
expect complex 1 'DIFFERS at \[0\]' "c64ulp" "c64"
expect complex_is_no_integer 1 'ANOTHER KIND' "c64" "bits"
expect other_kind 1 'ANOTHER KIND' "i1" "one"
expect no_match 2 'nothing to compare' "$dump" "$dump" --match nothing.
expect unknown_option 2 'no such option: --rtoll' "$dump" "$dump" --rtoll 1
