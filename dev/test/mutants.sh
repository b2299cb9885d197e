#!/bin/sh
# Is each mistake noticed? First, each call that orders a step (a wait, a record, a copy, work for the
# host: sites.cuh) is left out, by its place, in the tests of the four ways to train on a GPU. Then, each
# line of mutants.list is a mistake in the sources: a buffer is used too early, a sum not reset. The
# test that test_of() names is built with all of them and runs with one at a time (MUTANT=N). A mistake
# is noticed by other bits under a schedule of the emulated GPU (prio:0, prio:1, lazy), by a test's own
# checks (test), by ThreadSanitizer (tsan), or at the command line (cli). Those of "ptx" are for
# mutants_ptx.sh.
# usage: sh dev/test/mutants.sh [places|list|ptx] [PATTERN] (from the top, after make test; ALL=1:
#                                          every way that each is noticed, not only the first)
set -u
export LC_ALL=C
[ "${1-}" != ptx ] || { shift; exec sh dev/test/mutants_ptx.sh "$@"; }
here=$PWD
only=
case ${1:-} in places | list) only=$1 && shift ;; esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export EMU_THREADS=1 OMP_NUM_THREADS=1 EMU_MEM_MB=2000 EMU_PEER_SECONDS=20
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}

grep -v '^#\|^ptx ' dev/test/mutants.list >"$work/list"

# Places whose call can be left out, with the reason.
cat >"$work/redundant" <<'END'
gpt2_allocate: device_sync() :: loading rests, too (gpu_copy)
gpt2_free: device_sync() :: gpt2_release() does, and before it there is only the communicator
gpt2_release: device_sync() :: gpt2_free() does
zen_exchange_columns: device_sync() :: so do its copies
gpt2_eval: device_sync() :: for what ranks exchange next, which is run_eval()'s: test_cli_zero.sh
weights_renew: event_record(g->weight_rooms.free[i], g->compute) :: an update is queued behind the norm, which is behind backward
upload: stream_wait(stream, s->used) :: zeroth order's; rows of test_zo_gpu with ranks notice it
END

# rows_of PROGRAM: of test_zero_gpu, whose rows are several processes each, some
rows_of() { case $1 in test_zero_gpu*) echo some ;; *) echo all ;; esac; }

# hashes PROGRAM SCHEDULE
hashes() {
    [ "$(rows_of "$1")" = all ] || export EMU_PROTECT=0  # it takes three times as long
    for p in "$1" "${1}_fp32"; do
        EMU_SCHED=$2 timeout 300 "$bin/emu/$p" --config "$(rows_of "$1")" 3 2>&1
    done
}

# sanitize PROGRAM
sanitize() {
    for p in "$1" "${1}_fp32"; do
        EMU_RACECHECK=0 timeout 900 "$bin/tsan/$p" --config "$(rows_of "$1")" 2 || return
    done
}

# cli PROGRAM: with the command line's test
cli() {
    case $1 in
        train_gpt2) set -- "TIDE_CPU=$work/$1" test_cli_chat.sh "$name" ;;
        *) set -- "TIDE_GPU=$work/$1" test_cli_zero.sh ;;
    esac
    case ${3-} in "out run"*) set -- "$1" test_lost.sh ;; esac
    (cd "$here" && env "$1" timeout 600 sh "dev/test/cli/$2") >"cli.$MUTANT"
    grep -q '^ok' "cli.$MUTANT" && ! grep -q '^FAIL' "cli.$MUTANT"
}

# files_of PROGRAM: what of it is built
files_of() {
    case $1 in
        train_*) echo "$1" ;;
        test_kernels) echo "build/emu/$1 build/emu/test_model_fp32" ;;
        test_attention) echo "build/emu/$1" ;;
        test_model) echo "build/emu/$1 build/emu/${1}_fp32" ;;
        test_placement | test_z*_gpu) for f in emu tsan; do echo "build/$f/$1 build/$f/${1}_fp32"; done ;;
        *) echo "build/test/$1" ;;
    esac
}
trains() { case $(files_of "$1") in *build/tsan*) true ;; *) false ;; esac; }

tests() {
    for built in $(files_of "$1"); do
        case $built in build/tsan/*) continue ;; esac
        timeout 900 "$bin/../$built" || return
    done
}

# Says how mistake N is noticed, by a test.
try() {
    case $2 in
        train_*) ways=cli ;;
        *) trains "$2" && ways="prio:0 prio:1 lazy test tsan" || ways=test ;;
    esac
    for way in $ways; do
        case $way in
            cli) cli "$2" ;;
            tsan) sanitize "$2" ;;
            test) tests "$2" ;;
            *) hashes "$2" $way >"out.$1"; cmp "out.$1" "hashes.$2" ;;
        esac >/dev/null 2>&1 || { printf '%s ' $way; [ "${ALL:-0}" = 1 ] || return; }
    done
}

# said NAME WAYS: the verdict. Those that are "same" cannot be noticed.
said() {
    case $1$2 in
        same*" ") echo "FAIL mutant $1: noticed by ${2% }" ;;
        same* | *" ") echo "ok $1: ${2:-not noticed}" ;;
        *) echo "FAIL mutant $1: not noticed" ;;
    esac
}

# Not more at a time than there are cores.
running=0
pause() {
    running=$((running + 1))
    [ $((running % jobs)) -ne 0 ] || wait
}

# --- places --------------------------------------------------------------------------------------

bin=$here/build
cd "$work" || exit 1
for program in test_placement test_zenflow_gpu test_zo_gpu test_zero_gpu; do
    [ "$only" != list ] || break
    # shellcheck disable=SC2046  # names are words
    (cd "$here" && make -s $(files_of $program)) >log 2>&1 || { cat log; exit 1; }
    TIDE_SITES=$work/places.$program hashes $program eager >"hashes.$program"
    touch "places.$program" places.known
    # what opens and closes is not of a step
    sort -u "places.$program" | grep -v '^host_\(alloc\|queue\)' | grep -vxFf places.known |
        grep -F -- "${1:-}" >places
    cat places >>places.known
    number=0
    while read -r place; do
        number=$((number + 1))
        name=$place
        grep -qF -- "$place ::" redundant && name="same: $place"
        (export TIDE_LEAVE_OUT="$place"; said "$name" "$(try "$program.$number" $program)") &
        pause
    done <places
    wait
done

# --- the list ------------------------------------------------------------------------------------

[ "$only" != places ] || exit 0
bin=build
# A copy of the tree by links, in which files are replaced.
# shellcheck disable=SC2046  # names are words
(cd "$here" && make -s $(make -s print-emu_tsan) build/emu/cpu_reference.o build/tsan/cpu_reference.o) ||
    exit 1
mkdir -p "$work/dev/test" "$work/dev/data" "$work/tide" "$work/build/emu" "$work/build/tsan"
ln -s "$here"/*.h "$here"/*.c "$here"/*.cu "$here/Makefile" "$work"
for room in "$here"/tide/*; do
    mkdir "$work/tide/${room##*/}" && ln -s "$room"/* "$work/tide/${room##*/}"
done
ln -s "$here/dev/emu" "$here/dev/bench" "$here/dev/reference" "$here"/dev/*.[ch] "$work/dev"
ln -s "$here"/dev/data/* "$work/dev/data"
ln -s "$here"/dev/test/*.* "$here/dev/test/fixtures" "$work/dev/test"
for room in c gpu fuzz; do
    mkdir "$work/dev/test/$room" && ln -s "$here/dev/test/$room"/* "$work/dev/test/$room"
done
ln -s "$here/build/emu/runtime" "$here/build/emu/runtime-tsan" "$here/build/emu/cpu_reference.o" \
      "$work/build/emu"
ln -s "$here/build/tsan/cpu_reference.o" "$work/build/tsan"
cd "$work" || exit 1
perl "$here/dev/test/mutants.pl" <list || exit 1
test_of() {
    case $1 in
        "zero run"*) echo train_gpt2emu ;;
        "chat run"* | "out run"*) echo train_gpt2 ;;
        "text steps"* | "text merges: of two"*) echo test_refused ;;
        "text space: in front of each block"*) echo test_task ;;
        "text "*) echo test_tokenizer ;;
        "chat "*) echo test_chat ;;
        "kernel: "* | *" :: tide/gpu/kernels."*) echo test_kernels ;;
        "choice: stride"*) echo test_offload ;;
        "choice: "* | "plan: "*) echo test_rehearsal ;;
        *" :: tide/gpu/cache."* | *" :: tide/gpu/attention."*) echo test_attention ;;
        "cache: "*) echo test_model ;;
        *" :: tide/base/vmath.h ::"* | *" :: train_gpt2.c :: "*) echo test_gpt2 ;;
        zero*) echo test_zero_gpu ;;
        *" :: zo."* | *" :: tide/gpu/zo."* | *zo_* | ranks:*) echo test_zo_gpu ;;
        *) case ${1%% :: *} in *"zen "*) echo test_zenflow_gpu ;; *) echo test_placement ;; esac ;;
    esac
}
programs=$(grep -v '^#' list | grep -F -- "${1:-}" | while read -r line; do test_of "$line"; done |
           sort -u)
for program in $programs; do
    # shellcheck disable=SC2046  # names are words
    make -s -o tide/base/util.h -o build/emu/cpu_reference.o -o build/tsan/cpu_reference.o \
        $(files_of $program) >log 2>&1 || { cat log; exit 1; }
    case $program in
        train_*) ;;
        *) if trains $program; then hashes "$program" eager >"hashes.$program"
           else tests "$program" >log 2>&1 || { cat log; exit 1; }
           fi ;;
    esac
done
number=0
while read -r line; do
    number=$((number + 1)) name=${line%% :: *}
    case $line in "#"*) continue ;; *"${1:-}"*) ;; *) continue ;; esac
    (
        export MUTANT=$number
        ways=$(try $number "$(test_of "$line")")
        said "$name" "$ways"
    ) &
    pause
done <list
wait
