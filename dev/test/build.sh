#!/bin/sh
# Makes what is asked for, and says which program it compiles and how many there are.
# usage: dev/test/build.sh MAKE JOBS TARGET...      (from run.sh; V=1: whole commands)
set -u
make=$1 jobs=-j$2
shift 2
# A make that was told how many jobs to run passes that on.
case " ${MAKEFLAGS-} " in *" -j"*) jobs= ;; esac
"$make" -s compiler cxx || exit
[ -z "${V-}" ] || exec "$make" $jobs "$@"

# Of what make says: how many compilers it calls (total=0), or one line for each. (Not by awk: some
# of them wait for more to read.)
progress() {
    total=$1 n=0 line=
    while IFS= read -r part; do
        case $part in *\\) line=$line${part%\\}; continue ;; esac
        line=$line$part
        case ${line%% *}:$line in
            CXX=*' -o '* | *gcc:*' -o '* | *g++:*' -o '* | *cc:*' -o '* | *clang*:*' -o '*)
                n=$((n + 1)) name=${line##* -o }
                [ "$total" = 0 ] || echo "[$n/$total] ${name%% *}" ;;
            *': Entering directory '* | *': Leaving directory '*) ;;
            *) [ "$total" = 0 ] || echo "$part" ;;
        esac
        line=
    done
    [ "$total" != 0 ] || echo $n
}
total=$("$make" -n "$@" | progress 0)
[ "$total" -gt 0 ] || exec "$make" -s $jobs "$@"
echo "building $total programs and objects"
failed=$(mktemp) || exit 1
trap 'rm -f "$failed"' EXIT
{ "$make" $jobs "$@" 2>&1 || echo $? >"$failed"; } | progress "$total"
[ ! -s "$failed" ] || exit "$(cat "$failed")"
