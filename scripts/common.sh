# common.sh: functions that the scripts share: paths, refusals, usage, and the folders to which they write. A
# script never removes or overwrites files of an earlier call, or of a user. To be sourced.
# With --help or -h, a script prints the comment at its head.
# shellcheck shell=sh
export LC_ALL=C  # awk, sort and printf need a decimal point
case " $* " in *" --help "* | *" -h "*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/${1#./}" ;; esac; }
refuse() { echo "tide: ${0##*/}: $*" >&2; exit 2; }

# usage: prints the usage at the head of the script, with the indented lines after it. Ends the script.
usage() {
    awk '/^# usage: / { on = 1; print substr($0, 3); next }
         on { if (!/^#  /) exit; print substr($0, 3) }' "$0" >&2
    exit 2
}

# aside FOLDER [INPUT...]: renames FOLDER to FOLDER-1, FOLDER-2 .., the first name that is free. Refuses a
# folder in which a run is under way, or which has an INPUT of this call.
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

# new_folder FOLDER [INPUT...]: makes an empty folder, with a note that a script made it. A folder with such a
# note is moved aside. A folder with anything else in it is refused.
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
