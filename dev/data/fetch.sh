# fetch.sh: what the scripts beside it share. POSIX sh; needs curl or wget, od, awk.
# A file is downloaded to NAME.part, which a second try continues, checked, and then renamed.
# HF_ENDPOINT names another server with the layout of huggingface.co.

# shellcheck disable=SC2034  # used by the scripts
hub=${HF_ENDPOINT:-https://huggingface.co}
# shellcheck disable=SC2034
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

size_of() { wc -c < "$1" | tr -d ' '; }

# download URL FILE: appends what is missing.
download() {
    if command -v curl > /dev/null 2>&1; then curl -fL --retry 5 -C - -o "$2" "$1"
    elif command -v wget > /dev/null 2>&1; then wget -c -O "$2" "$1"
    else fail "needs curl or wget"
    fi
}

# get URL FILE CHECK [ARGUMENT]: the file at URL, in FILE, after CHECK FILE ARGUMENT succeeded.
# CHECK prints what is wrong.
get() {
    url=$1 file=$2 check=$3 argument=${4:-}
    if [ ! -e "$file" ]; then
        mkdir -p "$(dirname "$file")" || exit 1
        echo "$url"
        download "$url" "$file.part" || fail "cannot download $url
(run it again to continue; if that fails too, remove $file.part and start over)"
        if ! problem=$("$check" "$file.part" "$argument"); then
            rm -f "$file.part"
            fail "what came from $url is wrong: $problem"
        fi
        mv "$file.part" "$file" || exit 1
    elif ! problem=$("$check" "$file" "$argument"); then
        fail "$file is damaged: $problem. Remove it and run this again"
    fi
    echo "$file: $(size_of "$file") bytes"
}

# check_size FILE BYTES
check_size() {
    [ "$(size_of "$1")" = "$2" ] && return
    echo "$(size_of "$1") bytes, expected $2"
    return 1
}

# check_text FILE START: begins with START and is no web page.
check_text() {
    [ "$(head -c "${#2}" "$1")" = "$2" ] && ! head -c 200 "$1" | grep -qi '<html' && return
    echo "it does not start with '$2'"
    return 1
}

# check_bin FILE: a token file of llm.c as long as its header says.
check_bin() {
    header=$(od -An -N12 -tu4 "$1")
    # shellcheck disable=SC2086
    set -- "$1" $header
    if [ "${2:-0}" = 20240520 ] && [ "${3:-0}" = 1 ]; then
        check_size "$1" $((1024 + 2 * $4))
    else
        echo "not a token file of llm.c"
        return 1
    fi
}

# check_safetensors FILE: as long as its last tensor needs.
check_safetensors() {
    length=$(od -An -N8 -tu8 "$1" | tr -d ' ')
    if [ "$(size_of "$1")" -le 1000 ] || [ "${#length}" -gt 9 ]; then
        echo "not a safetensors file"
        return 1
    fi
    end=$(tail -c +9 "$1" | head -c "$length" | tr -d ' \n' |
        awk 'BEGIN { RS = "\"data_offsets\":" }
             NR > 1 { split($0, x, /[^0-9]+/); if (x[3] + 0 > end) end = x[3] + 0 }
             END { printf "%.0f", end }')
    check_size "$1" $((8 + length + end))
}
