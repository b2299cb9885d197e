#!/bin/sh
# What the tools in dev/ and dev/data/ do with a user's files: nothing that exists is overwritten,
# and what is no input of theirs is named.
# usage: sh dev/test/tools/test_tools.sh    (from the top of the repository, after make)
set -u
. dev/test/cli.sh
in_a_folder
timeline=$top/build/timeline plot=$top/build/plot tokenize=$top/build/tokenize
unpickle=$top/build/unpickle reviews=$top/build/reviews rows=$top/build/rows

echo '[{"ph":"X","name":"forward","tid":1,"ts":1,"dur":9}]' >trace
printf 'a\tb\nx\t1\ny\t2\n' >table
cp "$top/dev/reference/fixtures/gpt2/dump.safetensors" dump
cp "$top/dev/test/fixtures/pickle/plain.bin" pickled
printf 'It is a text.\nIt has two lines.\n' >text
printf '{"text": "one"}\n{"text": "two"}\n' >lines.jsonl
mkdir folder

# --- nothing that exists is overwritten ----------------------------------------------------------

# keeps NAME COMMAND...: its output `out` is a file already, a link, a link to nothing, a folder, or has
# the temporary name; each is refused, and nothing has changed
keeps() {
    keeper=$1
    shift
    for made in "cp text out" "ln -s text out" "ln text out" "ln -s nowhere out" "mkdir out" "cp text out.tmp"; do
        rm -rf out out.tmp
        $made
        refuses "$keeper: $made" 2 'out.* exists, and nothing is overwritten: name another file' "$@"
        case $made in *text*) cmp -s out* text || fail "$keeper: $made" "it is lost" ;; esac
        [ ! -e nowhere ] || fail "$keeper: $made" "a link is written through"
    done
    rm -rf out out.tmp
    "$@" >keeps.out 2>&1 || fail "$keeper" "$(cat keeps.out)"  # a new file is written
    if [ -s out ] && [ ! -e out.tmp ]; then echo "ok $keeper"; else fail "$keeper" "no file"; fi
    rm -f out
}
keeps timeline_keeps_a_file "$timeline" trace -o out
keeps plot_keeps_a_file "$plot" table -o out
keeps unpickle_keeps_a_file "$unpickle" out pickled
refuses timeline_keeps_its_input 2 'exists' "$timeline" trace -o folder/../trace
refuses unpickle_two_outputs 2 'exists' sh -c '"$1" both pickled >both' - "$unpickle"
ln -s /dev/null device  # (by this name only the link is lost if it is replaced)
check one_device_is_no_file sh -c '"$1" -o device <table && "$1" </dev/null >/dev/null 2>why
    grep -q "is empty" why && test -L device && test -c device' - "$plot"
check to_a_pipe sh -c '"$1" table -o /dev/stdout | grep -q "^</svg>"' - "$plot"

# Nothing is left where the new file cannot be made.
printf 'a\tb\nx\t-1\n' >bad
refuses not_a_table 2 'negative' "$plot" bad -o old
head -c 400 pickled >cut
refuses not_a_pickle 2 'cut short' "$unpickle" old.safetensors cut
check nothing_is_left sh -c '! ls old*'

# The names of shards are made: none may be there.
for there in t_val_000002.bin.tmp t_val_000007.bin; do
    cp text $there
    refuses "shard_is_there: $there" 2 "$there exists: remove the shards" "$tokenize" --out ./folder/../t --shard-tokens 8 $there
    check shard_is_kept cmp text $there
    rm $there
done
refuses no_such_folder 2 'none/t_train.*No such file' "$tokenize" --out none/t text
printf '{"text": "a good line of text"}\n{"text": 1}\n' >late.jsonl
refuses late 2 'late.jsonl:2' "$tokenize" --out t --shard-tokens 4 late.jsonl
check no_shard_is_left sh -c '! ls t_* 2>/dev/null'

# The standard output is closed: the file that is opened first does not become it.
"$unpickle" open pickled >/dev/null
check closed_output sh -c '"$1" new pickled >&- && cmp new open' - "$unpickle"
check closed_output_of_a_help sh -c '"$1" --help >&-' - "$rows"
rm new
"$tokenize" --out open text >/dev/null

# A disk that is full: the file that could not be written is named, with the reason, and is not left.
few="--layers 1 --heads 1 --channels 8 --context 64 --seq 64 --batch 1"
(seq -f '{"ph":"X","name":"back","tid":%g,"ts":0,"dur":9}' 60 | tr '\n' ',' | sed 's/^/[/; s/,$/]/') >spans
for kind in "$timeline spans" "$plot table"; do
    # shellcheck disable=SC2086  # words
    refuses "too_long: ${kind##*/}" 1 'cannot write new: File too large$' sh -c \
        'why=$(ulimit -f 0; "$@" -o new 2>&1); code=$?; echo "$why" >&2; exit $code' - $kind
done
refuses unpickle_without_memory 1 'out of memory: a part of a tensor' sh -c 'ulimit -v 8000; "$1" new pickled' - "$unpickle"
yes 'a line of a text that has many rows' | head -n 30 >long
if [ -c /dev/full ]; then
    for kind in "$timeline trace" "$plot table" "$reviews 9 1" "$rows 1 --data long $few" "$tokenize --out new text" \
        "$tokenize --show open_train_000000.bin" "$top/build/ask lines.jsonl count" "$top/build/compare dump dump --all" \
        "$top/build/columns dump" "$rows --help" "$top/build/ask --help"; do
        # shellcheck disable=SC2086  # words
        refuses "full: ${kind##*/}" 1 'cannot write to the standard output: No space' sh -c '"$@" >/dev/full' - $kind
    done
fi
check nothing_is_left_of_them sh -c '! ls new* 2>/dev/null'

# --- what is no input ----------------------------------------------------------------------------

printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\n' >lfs
printf '<!DOCTYPE html>\n<html>' >html
printf 'GGUF\003\000\000\000\000\000\000\000' >gguf
printf '\037\213\010\000\000\000\000\000' >gz
: >empty
for file in 'lfs git-lfs' 'html web page' 'gguf GGUF' 'gz compressed' 'empty empty' 'folder directory'; do
    kind=${file%% *} says=${file#* }
    refuses "unpickle_$kind" 2 "$says" "$unpickle" new "$kind"
    refuses "tokenize_$kind" 2 "$says" "$tokenize" --out new "$kind"
    refuses "timeline_$kind" 2 "$says" "$timeline" "$kind"
    refuses "plot_$kind" 2 "$says" "$plot" "$kind"
done
refuses unpickle_safetensors 2 'is a safetensors file' "$unpickle" new dump
refuses tokenize_safetensors 2 'is a safetensors file' "$tokenize" --out new dump
refuses tokenize_tokens 2 'token file' "$tokenize" --out new open_train_000000.bin
refuses tokenize_zip 2 'archive' "$tokenize" --out new pickled
refuses plot_no_table 2 'no tab' "$plot" text
printf 'a\tb\n1\t1e308\n' >vast
refuses plot_an_endless_file 2 '/dev/zero: more than [0-9]* bytes' "$plot" /dev/zero
refuses plot_a_number_too_large 2 'vast: row 1 has 1e308, which is .* above 1e30' "$plot" vast
printf 'a\tb\n1e308\t1\n-1e308\t2\n' >vast
check plot_such_names sh -c '! "$1" vast --lines | grep -w "nan\|inf"' - "$plot"
sed 's/$/\r/' table >dos
check plot_lines_of_windows sh -c '"$1" table >a && "$1" dos | cmp a' - "$plot"

# JSON lines are told by their names or by how they begin, and are never running text.
"$tokenize" --out lines lines.jsonl >/dev/null
cp lines.jsonl lines.txt
"$tokenize" --out same lines.txt >/dev/null
check json_lines_by_how_they_begin cmp lines_train_000000.bin same_train_000000.bin
{ printf '\357\273\277'; cat lines.jsonl; } >marked
"$tokenize" --out marked marked >/dev/null
check a_byte_order_mark cmp lines_train_000000.bin marked_train_000000.bin
printf '{\n  "text": "one"\n}\n' >pretty
refuses json_on_several_lines 2 'pretty:1: .*each line' "$tokenize" --out new pretty
printf '[\n{"text": "one"},\n{"text": "two"}\n]\n' >array
refuses one_bad_file_of_two 2 'array' "$tokenize" --out new text array
check nothing_was_written sh -c '! ls new* 2>/dev/null'
"$tokenize" --out forced --format text lines.jsonl >/dev/null
check text_if_so_said sh -c '"$1" --show forced_train_000000.bin --tokenizer bytes | grep -q "{\"text\": \"one"' - "$tokenize"
printf '[Verse]\n{sung} a song\n' >song
check text_with_brackets "$tokenize" --out song song

# --- numbers -------------------------------------------------------------------------------------

refuses whole_number 2 '"1.5" is not a whole number' "$tokenize" --show open_train_000000.bin --tokens 1.5
refuses nan_is_no_number 2 '"-nan" is not a number' "$tokenize" --out new --val -nan text
# rows: a conversation as doc/chat.md shows it, documents of a packed row, running text
sed -n 's/^    \({"messages": .*"The king."}]}\)$/\1/p' "$top/doc/chat.md" >talk
chat="$few --tokenizer $top/dev/test/fixtures/tokenizer/small-llama3 --data talk --val talk"
# shellcheck disable=SC2086  # options are words
{
    "$rows" 1 $chat | sed -n '/^row /,$s/^/    /p' >shown
    check rows_are_as_the_lesson_shows sh -c '[ "$(wc -l <shown)" -eq 8 ] && sed -n "/^    row 1 of 1/,/king/p" "$1" | diff - shown' \
        - "$top/doc/chat.md"
    refuses rows_of_nothing 2 'no row to train: --data names none' "$rows" 1 $few --steps 0 --val text -- --seq 8
}
check rows_leave_nothing test ! -e out
# make install: the programs, a page and a completion, which know each option; and what removes them
check install_with_a_prefix make -C "$top" install DESTDIR="$work/root place" PREFIX=/usr
page="root place/usr/share/man/man1/train_gpt2.1" completion="root place/usr/share/bash-completion/completions/train_gpt2"
check the_installed_program_runs sh -c '"root place/usr/bin/train_gpt2" --version | grep -q "^tide.c "'
"$top/train_gpt2" --help all | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p' | sort >options
sed -n 's/\\-/-/g; s/^\.B \(--[a-z0-9-]*\).*/\1/p' "$page" | sort >said
check the_page_has_all_options sh -c '[ "$(wc -l <options)" -gt 60 ] && diff options said'
if command -v bash >/dev/null; then
    # shellcheck disable=SC2016  # of the inner shell
    bash -c '. "$1"; COMP_WORDS=(train_gpt2 --schedule l) COMP_CWORD=2; _train_gpt2; echo "${COMPREPLY[*]}"
        COMP_WORDS=(train_gpt2 --); COMP_CWORD=1; _train_gpt2; printf "%s\n" "${COMPREPLY[@]}" | sort' - "$completion" >said
    check the_completion_has_them sh -c '(echo linear; cat options) | diff - said'
fi
make -C "$top" uninstall DESTDIR="$work/root place" PREFIX=/usr >/dev/null
check uninstall_leaves_no_file test "$(find "root place" -type f | wc -l)" -eq 0
refuses reviews_negative 2 'N -3: must be 1 to' "$reviews" -3 1
