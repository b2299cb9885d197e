# fetch.sh: what the scripts beside it share. POSIX sh; needs curl or wget, od, awk.
# A file is downloaded to NAME.part, which a second try continues, checked, and then renamed.
# HF_ENDPOINT names another server with the layout of huggingface.co; it, and no other, is given the
# token in HF_TOKEN. A download that fails before its first byte leaves nothing behind.

export LC_ALL=C
# shellcheck disable=SC2034  # used by the scripts
hub=${HF_ENDPOINT:-https://huggingface.co}
hub=${hub%/}
mirror=HF_ENDPOINT  # the variable that names another server
# shellcheck disable=SC2034
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

size_of() { wc -c < "$1" | tr -d ' '; }

# reach URL: ends the script at once if its server cannot be reached, instead of trying again and again.
reach() {
    server=${1#*://}
    server=${1%%://*}://${server%%/*}
    [ "$server" != "${reached-}" ] || return 0
    if command -v curl > /dev/null 2>&1; then
        code=0
        took=$(curl -sI --connect-timeout 10 --max-time 60 -w '%{time_connect}' -o /dev/null "$1") || code=$?
        case $code:$took in  # 28: it took too long; until it was connected, no time was taken
            5:* | 6:* | 7:* | 28:0 | 28:0.000000) code=4 ;;
            *) code=0 ;;
        esac
    elif command -v wget > /dev/null 2>&1; then
        code=0
        wget -q --spider --tries=1 --timeout=20 "$1" || code=$?
    else fail "needs curl or wget"
    fi
    [ $code -ne 4 ] || fail "cannot reach $server: without a network, bring the files from elsewhere; \
$mirror=URL names a mirror"
    reached=$server
}

# ask OPTION... URL: curl, with the user's token for the hub, which no list of processes shows
ask() {
    for asked in "$@"; do :; done
    case ${HF_TOKEN:+token}$asked in
        token"$hub"/*) printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN" | curl -K - "$@" ;;
        *) curl "$@" ;;
    esac
}

# download URL FILE: appends what is missing.
download() {
    if command -v curl > /dev/null 2>&1; then
        answer=$(ask -fL --retry 5 -C - -w '%{http_code}' -o "$2" "$1") ||
            [ "$answer" = 416 ]  # there is nothing after the part, which may be whole
    elif command -v wget > /dev/null 2>&1; then wget -c -O "$2" "$1"
    else fail "needs curl or wget"
    fi
}

# get URL FILE CHECK [ARGUMENT]: the file at URL, in FILE, after CHECK FILE ARGUMENT succeeded.
# CHECK prints what is wrong.
get() {
    url=$1 file=$2 check=$3 argument=${4:-}
    if [ ! -e "$file" ]; then
        reach "$url"
        echo "$url"
        folder=$(dirname "$file")
        there=$folder  # the innermost folder that there is
        until [ -d "$there" ] || [ -e "$there" ]; do there=$(dirname "$there"); done
        mkdir -p "$folder" || exit 1
        if ! download "$url" "$file.part"; then
            [ ! -s "$file.part" ] || fail "cannot download $url
(run it again to continue; if that fails too, remove $file.part and start over)"
            rm -f "$file.part"
            while [ "$folder" != "$there" ] && rmdir "$folder" 2> /dev/null; do folder=$(dirname "$folder"); done
            fail "cannot download $url ($mirror=URL names a mirror)"
        fi
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

# put FILE: what was made as FILE.part. Another FILE that is there, as one with changes, stays.
put() {
    if [ -e "$1" ] && ! cmp -s "$1" "$1.part"; then
        rm -f "$1.part"
        fail "$1 is there, and is another: remove it, or choose another DIR"
    fi
    mv "$1.part" "$1" || exit 1
}

# check_size FILE BYTES
check_size() {
    [ "$(size_of "$1")" = "$2" ] && return
    echo "$(size_of "$1") bytes, expected $2"
    return 1
}

# check_text FILE START: begins with START, is not empty, and is no web page.
check_text() {
    [ -s "$1" ] && [ "$(head -c "${#2}" "$1" | tr -d '\000')" = "$2" ] &&
        ! head -c 200 "$1" | grep -qai '<html' && return
    echo "it does not start with '$2', or is a web page"
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
