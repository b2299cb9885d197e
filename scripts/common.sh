# common.sh: what the scripts share: paths, refusals, usage, and the folders that they write to. A script
# never removes or overwrites files of an earlier call, or of a user. To be sourced.
# shellcheck shell=sh
export LC_ALL=C  # a decimal comma is none to awk, sort and printf

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/${1#./}" ;; esac; }
refuse() { echo "tide: ${0##*/}: $*" >&2; exit 2; }

# usage: prints the usage at the script's head, with the indented lines below it, and ends the script.
usage() {
    awk '/^# usage: / { on = 1; print substr($0, 3); next }
         on { if (!/^#  /) exit; print substr($0, 3) }' "$0" >&2
    exit 2
}

# aside FOLDER [INPUT...]: moves it to the first of FOLDER-1, FOLDER-2 .. that is free. It is refused if a
# run is at work in it, or if an INPUT of this call is in it.
aside() {
    folder=$1 real=$(realpath -m "$1")
    shift
    for input in "$@"; do
        case $(realpath -m "$input") in "$real" | "$real"/*)
            refuse "$input is in $folder, which the results go to: choose another OUT" ;;
        esac
    done
    for lock in "$folder"/.lock "$folder"/*/.lock "$folder"/*/*/.lock; do
        [ ! -e "$lock" ] || ! command -v flock >/dev/null || flock -n "$lock" true ||
            refuse "$folder is in use by a run that is still at work: OUT=... for another"
    done
    number=1
    while [ -e "$folder-$number" ] || [ -L "$folder-$number" ]; do number=$((number + 1)); done
    mv "$folder" "$folder-$number" || exit 1
    echo "the earlier $folder is $folder-$number now"
}

# new_folder FOLDER [INPUT...]: makes an empty one, with a note that a script made it. One that has such a
# note is moved aside; one in which anything else lies is refused.
new_folder() {
    new=${1%/} note=${1%/}/.made_by
    shift
    if [ -e "$note" ]; then
        [ "$(ls -A "$new")" = .made_by ] || aside "$new" "$@"
    elif [ -e "$new" ] || [ -L "$new" ]; then
        if [ ! -d "$new" ] || [ -n "$(ls -A "$new")" ]; then
            refuse "$new has files that no earlier call of this script has made: choose another OUT"
        fi
    fi
    mkdir -p "$new" && echo "scripts/${0##*/}" >"$note" || exit 1
}
