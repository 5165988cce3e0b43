#!/usr/bin/env bash
# Everything that a build needs, on a fresh Debian 12: system packages, then .venv from the pinned requirements.
# Does nothing where that is already there. As root it installs the packages; as another user it prints the line to type.
#
#   tools/setup.sh packages|python|fuzz|cuda
#   fuzz, cuda: what `make fuzz` and `make cuda` alone need. PYTHON=python3.11 chooses the interpreter of .venv
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build make ccache lld nlohmann-json3-dev libtomlplusplus-dev libgtest-dev
  libbenchmark-dev libxxhash-dev zlib1g-dev python3 python3-venv git ca-certificates)
fuzz_packages=(clang libclang-rt-dev)

say() { echo "setup: $*" >&2; }

# install_packages PACKAGE...
install_packages() {
  local packages=("$@")
  if ! command -v dpkg-query >/dev/null; then
    say "this is no Debian: the build needs what these packages hold: ${packages[*]}"
    for program in c++ cmake ninja python3 git; do
      command -v "$program" >/dev/null || { say "$program is missing: install it and try again"; exit 1; }
    done
    return
  fi
  local missing=()
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    say "system packages are missing. Type this, then try again:"
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The first interpreter that can make environments for the pinned packages.
find_python() {
  for python in ${PYTHON:-python3 python3.11 /usr/bin/python3}; do
    if "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  say "no Python 3.11 with venv among '${PYTHON:-python3 python3.11 /usr/bin/python3}': install python3.11-venv," \
    "or name one as PYTHON=..."
  exit 1
}

# Installs when the requirements differ from the ones that .venv was made from.
install_python() {
  local stamp=.venv/installed-requirements wanted
  wanted=$(cat requirements-torch.txt requirements.txt)
  if [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    local python
    python=$(find_python)
    say "making .venv with $python"
    "$python" -m venv --clear .venv
  fi
  say "installing the pinned Python packages (about 700 MB with LibTorch, once)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    -r requirements-torch.txt -r requirements.txt
  # Last, so that an interrupted installation is done again.
  printf '%s\n' "$wanted" >"$stamp"
}

# The libraries that the CUDA module loads, into the .venv that is there.
install_cuda() {
  local stamp=.venv/installed-requirements-cuda
  if [ -f "$stamp" ] && cmp -s "$stamp" requirements-cuda.txt; then return; fi
  say "installing the CUDA libraries (about 2 GB, once)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-cuda.txt
  cp requirements-cuda.txt "$stamp"
}

case "${1:-}" in
  packages) install_packages "${packages[@]}" ;;
  fuzz) install_packages "${fuzz_packages[@]}" ;;
  python) install_python ;;
  cuda) install_cuda ;;
  *) say "usage: tools/setup.sh packages|python|fuzz|cuda"; exit 2 ;;
esac
