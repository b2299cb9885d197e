#!/bin/sh
# Where there is no compiler, says what installs one on Debian and Ubuntu; and runs it, for root, or where
# it is asked for: INSTALL=1 (0: never), or a y at the terminal.
# usage: sh dev/install_compiler.sh NAME      (what was not found: gcc, g++, or another that CC= or CXX= names)
set -eu
say() { echo "tide: $*" >&2; }
case ${1:-gcc} in
    gcc | g++) ;;
    *) say "$1 is not there: install it, or name another compiler (CC=gcc, CXX=g++)"; exit 2 ;;
esac
if ! command -v apt-get >/dev/null 2>&1; then
    say "no compiler found: install gcc and g++ (or clang), and make"
    exit 2
fi
sudo='' asked=${INSTALL-}
if [ "$(id -u)" = 0 ]; then asked=${asked:-1}; else sudo='sudo '; fi
line="${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends gcc g++ libc6-dev"
if [ -n "$sudo" ] && ! command -v sudo >/dev/null 2>&1; then
    say "no compiler found; root can install one: $(echo "$line" | sed 's/sudo //g')"
    exit 2
fi
if [ -z "$asked" ] && [ -t 0 ] && [ -t 2 ]; then
    printf 'tide: no compiler found. This installs one:\n    %s\nRun it? [y/N] ' "$line" >&2
    read -r answer || answer=''
    case $answer in y | Y | yes) asked=1 ;; *) exit 2 ;; esac
fi
if [ "$asked" != 1 ]; then
    say "no compiler found; this installs one, and so does INSTALL=1: $line"
    exit 2
fi
echo "no compiler found: $line"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends gcc g++ libc6-dev
