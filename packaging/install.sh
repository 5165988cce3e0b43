#!/usr/bin/env bash
# Installs Tandem's wheels on a Debian 12 or 13, or an Ubuntu 22.04 or 24.04, that holds nothing but the base system. The
# images of packaging/Dockerfile and the trials of packaging/try_system.sh are made by this script, and by nothing else.
#
#   packaging/install.sh system               as root: the packages of the system: Python, and OpenSSL, which Python needs
#   packaging/install.sh cpu DIST FOLDER      the wheel of DIST and all that it needs without a GPU, into a new environment
#   packaging/install.sh cuda DIST FOLDER     the same with the CUDA module, its libraries, and a Python that imports torch
#
# DIST holds what `make wheel` and `make wheel-cuda` wrote, FOLDER is the environment: FOLDER/bin/tandem is the program.
set -euo pipefail

say() { echo "install: $*" >&2; }

# the_wheel DIST NAME: the one file of DIST that is a wheel of NAME.
the_wheel() {
  local found=("$1/$2"-*.whl)
  if [ ! -e "${found[0]}" ]; then
    say "$1 holds no wheel of $2: make $([ "$2" = tandem ] && echo wheel || echo wheel-cuda) writes it"
    exit 2
  fi
  if [ ${#found[@]} != 1 ]; then
    say "$1 holds several wheels of $2 (${found[*]##*/}): remove those that are not meant"
    exit 2
  fi
  echo "${found[0]}"
}

# new_environment FOLDER
new_environment() {
  if [ -e "$1/bin/tandem" ]; then
    say "$1 has a Tandem already: remove that folder, or name another one"
    exit 2
  fi
  python3 -m venv "$1"
}

# install FOLDER SKIPPED WHAT...: pip install WHAT. pip compiles one file after the other, which takes it longer than all
# else here: so the files are compiled afterwards, on all cores, and those whose path has SKIPPED are not. Workers write no
# compiled files, so what they import has to be compiled here. Some packages hold templates that are no Python: as pip
# does, this leaves them as they are.
install() {
  local environment=$1 skipped=$2
  shift 2
  "$environment/bin/pip" install --disable-pip-version-check --quiet --no-compile "$@"
  "$environment/bin/python" -m compileall -q -j 0 -x "$skipped" "$environment/lib" >/dev/null 2>&1 || true
}

case "${1:-} $#" in
  "system 1")
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 python3-venv ca-certificates
    ;;
  "cpu 3")
    wheel=$(the_wheel "$2" tandem)
    new_environment "$3"
    # Without the libraries of CUDA nothing here can import torch: its Python is not compiled, and its part for GPUs, which
    # the program does not load, is half a GB that an image need not carry.
    install "$3" '/(torch|pip|setuptools|tests?)/' --no-deps -r "$2/requirements-cpu.txt" "$wheel"
    rm -f "$3"/lib/python3*/site-packages/torch/lib/libtorch_cuda*.so
    ;;
  "cuda 3")
    wheel=$(the_wheel "$2" tandem)
    module=$(the_wheel "$2" tandem_cuda)
    new_environment "$3"
    install "$3" '/(pip|setuptools|tests?)/' "$wheel" "$module"
    ;;
  *)
    say "usage: packaging/install.sh system | cpu DIST FOLDER | cuda DIST FOLDER"
    exit 2
    ;;
esac
