#!/bin/sh
# Installs the trainers that are built, each with a manual page and a completion for bash; or removes them.
# usage: dev/install.sh install|remove DIR      (make install DESTDIR= PREFIX=; from the top)
set -eu
case ${1-}:${2-} in install:?* | remove:?*) ;; *) sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2 ;; esac
for p in train_gpt2 train_gpt2cu; do
    page=$2/share/man/man1/$p.1 completion=$2/share/bash-completion/completions/$p
    if [ "$1" = remove ]; then rm -f "$2/bin/$p" "$page" "$completion"
    elif [ -x $p ]; then
        sh dev/man.sh page $p >build/$p.1
        sh dev/man.sh completion $p >build/$p.bash
        install -D $p "$2/bin/$p"
        install -D -m 644 build/$p.1 "$page"
        install -D -m 644 build/$p.bash "$completion"
    fi
done
