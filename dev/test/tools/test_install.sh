#!/bin/sh
# A machine without a compiler, played: what make says, whom it asks, and what it runs (apt-get, sudo and id
# are stand-ins that write down how they were called).
# usage: sh dev/test/tools/test_install.sh      (from the top of the repository)
set -u
. dev/test/cli.sh
in_a_folder
mkdir bin
for tool in sh make sed sort head cat tr dirname basename; do ln -s "$(command -v $tool)" bin/; done
program bin/id <<'X'
#!/bin/sh
echo "${WHO:-1000}"
X
program bin/apt-get <<'X'
#!/bin/sh
echo "apt-get $*" >>"$CALLS"
X
program bin/sudo <<'X'
#!/bin/sh
echo sudo >>"$CALLS"
exec "$@"
X
export CALLS="$work/calls"
# make_it VARIABLE=VALUE...: make on that machine
make_it() { : >calls; env "$@" PATH="$work/bin" make -s -C "$top" compiler </dev/null; }
called() { [ "$(tr '\n' ';' <calls)" = "$1" ] || { cat calls; return 1; }; }
done='apt-get update -qq;apt-get install -y -qq --no-install-recommends gcc g++ libc6-dev;'
by_sudo=$(echo "$done" | sed 's/apt-get/sudo;&/g')
unset CC CXX INSTALL MAKEFLAGS MAKELEVEL

# A GPU that the kernels cannot run on counts as none, and make says so.
mkdir gpus
for gpu in "7.5, Tesla T4" "12.0, NVIDIA GeForce RTX 5090"; do
    printf '#!/bin/sh\necho "%s"\n' "$gpu" | program gpus/nvidia-smi
    PATH="$work/gpus:$PATH" make -n -C "$top" run NVCC=nvcc >"run.${gpu%%.*}" 2>&1
done
check an_old_gpu_is_said grep -q '^tide: GPU 7.5, Tesla T4: .* the CPU is used$' run.7
check and_not_used grep -q 'scripts/run.sh ./train_gpt2 *$' run.7
check a_new_one_is_used grep -q 'scripts/run.sh ./train_gpt2cu *$' run.12

says='no compiler found; this installs one, and so does INSTALL=1: sudo apt-get update && sudo apt-get install'
make_it >said 2>&1
check nothing_is_installed_unasked sh -c '[ "$1" -ne 0 ] && [ ! -s calls ]' - $?
check the_line_is_said grep -q "^tide: $says -y .*gcc g++" said
check asked_for_it_is_done make_it INSTALL=1
check by_sudo called "$by_sudo"
check root_may make_it WHO=0
check without_sudo called "$done"
make_it WHO=0 INSTALL=0 >said 2>&1
check root_may_say_no sh -c '[ "$1" -ne 0 ] && [ ! -s calls ]' - $?
refuses another_compiler_is_not_replaced 2 'icc is not there: install it, or name another' \
    env PATH="$work/bin" WHO=0 sh "$top/dev/install_compiler.sh" icc
check and_nothing_was_called test ! -s calls
# at a terminal
if command -v script >/dev/null && script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    for answer in y n; do
        : >calls
        echo "$answer" | script -qec "env PATH='$work/bin' sh '$top/dev/install_compiler.sh' gcc" /dev/null >said
        case $answer in y) want=$by_sudo ;; *) want='' ;; esac
        check "at_a_terminal_the_answer_is_$answer" called "$want"
    done
else echo "skip at_a_terminal: no script(1) on this machine"
fi
rm bin/sudo
refuses without_sudo_it_is_roots 2 'root can install one: apt-get update' env PATH="$work/bin" INSTALL=1 \
    sh "$top/dev/install_compiler.sh" g++
