#!/bin/sh
# Builds what the tests need, on all cores, and says what it is at and how many there are.
# usage: dev/test/build.sh MAKE TARGET...      (from the Makefile; V=1: whole commands)
set -u
make=$1
shift
# A make that was told how many jobs to run passes that on.
case " ${MAKEFLAGS-} " in *" -j"*) jobs= ;; *) jobs=-j$(nproc 2>/dev/null || echo 2) ;; esac
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
            mkdir:* | ln:* | cp:* | make*:*) ;;
            *) [ "$total" = 0 ] || echo "$part" ;;
        esac
        line=
    done
    [ "$total" != 0 ] || echo $n
}
total=$("$make" -n "$@" | progress 0)
[ "$total" -gt 0 ] || exec "$make" -s "$@"
echo "building $total programs and objects"
failed=$(mktemp) || exit 1
trap 'rm -f "$failed"' EXIT
{ "$make" $jobs "$@" 2>&1 || echo $? >"$failed"; } | progress "$total"
[ ! -s "$failed" ] || exit "$(cat "$failed")"
