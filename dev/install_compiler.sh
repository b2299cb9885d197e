#!/bin/sh
# Installs a C and C++ compiler where there is none and apt-get can do it; otherwise says what is missing.
set -eu
if ! command -v apt-get >/dev/null 2>&1; then
    echo "tide: no compiler found: install gcc and g++ (or clang), and make" >&2
    exit 2
fi
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing gcc and g++"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends gcc g++ libc6-dev
