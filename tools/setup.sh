#!/usr/bin/env bash
# Everything that a build needs, on a fresh Debian 12 or 13, Ubuntu 22.04 or 24.04: system packages, then .venv from the
# pinned requirements. Does nothing where that is already there. As root it installs the packages; as another user it
# prints the line to type.
#
#   tools/setup.sh packages|python|fuzz|cuda|wheel|wandb|ifbench|trackio|mlflow|agents|clusters|ray|aarch64|npu
#   fuzz, cuda, wheel: what `make fuzz`, `make cuda` and `make wheel` alone need. wandb: what --use-wandb needs, and its
#   tests. ifbench: what --rm-type ifbench needs. agents: an environment .venv-agents for examples/agent. clusters: what the tests of examples/clusters need. ray: an environment
#   .venv-ray for the tests of python -m tandem.ray. aarch64: compiler, emulator and libraries for `make test-aarch64`.
#   npu: an environment .venv-npu with torch_npu, for the tests of the NPU module. PYTHON=python3.12 chooses the
#   interpreter of a new .venv
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build make ccache lld nlohmann-json3-dev libgtest-dev libbenchmark-dev libxxhash-dev
  zlib1g-dev libssl-dev python3 python3-venv git ca-certificates)
fuzz_packages=(clang)
aarch64_packages=(g++-aarch64-linux-gnu qemu-user-static)
aarch64_libraries=(libgtest-dev libssl-dev libssl3 zlib1g-dev libxxhash-dev libtomlplusplus-dev nlohmann-json3-dev)
# Ubuntu 22.04 has no toml++ (install_toml brings it), and its clang brings libFuzzer.
if ! grep -qs '^UBUNTU_CODENAME=jammy' /etc/os-release; then
  packages+=(libtomlplusplus-dev)
  fuzz_packages+=(libclang-rt-dev)
fi
pythons=(python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3)
is_supported='sys.version_info[:2] in ((3, 10), (3, 11), (3, 12), (3, 13))'

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
  local candidates=("${pythons[@]}") python
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for python in "${candidates[@]}"; do
    if "$python" -c "import ensurepip, sys; sys.exit(not $is_supported)" 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  say "no Python 3.10, 3.11, 3.12 or 3.13 with venv among '${candidates[*]}': install one (python3-venv is its package" \
    "on Debian and Ubuntu), or name one as PYTHON=..."
  exit 1
}

# Whether .venv has an interpreter that we support and is of that interpreter's version: an upgrade of the system can put
# another one under it.
has_python() {
  .venv/bin/python -c "import os, sys, sysconfig
sys.exit(not ($is_supported and os.path.isdir(sysconfig.get_path('purelib'))))" 2>/dev/null
}

# Installs when the requirements differ from the ones that .venv was made from.
install_python() {
  local stamp=.venv/installed-requirements wanted python
  wanted=$(cat requirements-torch.txt requirements.txt)
  if has_python && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  if ! has_python; then
    python=$(find_python)
    say "making .venv with $("$python" --version) ($python)"
    "$python" -m venv --clear .venv
  fi
  say "installing the pinned Python packages (about 700 MB with LibTorch, once)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    -r requirements-torch.txt -r requirements.txt
  # Last, so that an interrupted installation is done again.
  printf '%s\n' "$wanted" >"$stamp"
}

# toml++ 3.3.0 where the compiler finds none: its headers as the source of a Python package carries them, the same bytes
# as Debian 12's.
install_toml() {
  local folder=.venv/toml_include name=pytomlpp-1.0.13
  local url=https://files.pythonhosted.org/packages/40/6d/abdccdcd9182ffaf4da11a5871762045b2f444c09bc3d8360456475188ea/$name.tar.gz
  local sha256=a0bd639a8f624d1bdf5b3ea94363ca23dbfef38ab7b5b9348881a84afab434ad
  local remedy="try again, or put the headers of toml++ 3.3 or newer where the compiler finds them"
  [ ! -d $folder ] || return 0
  if printf '#if !__has_include(<toml++/toml.h>)\n#error\n#endif\n' | ${CXX:-c++} -E -x c++ - >/dev/null 2>&1; then
    return
  fi
  say "no toml++ on this system: fetching its headers (1.3 MB, once)"
  local part=.venv/toml_part
  rm -rf $part
  mkdir -p $part/include
  .venv/bin/python -c 'import shutil, sys, urllib.request
shutil.copyfileobj(urllib.request.urlopen(sys.argv[1], timeout=60), sys.stdout.buffer)' $url >$part/archive 2>$part/error ||
    { say "$url: $(tail -n 1 $part/error); $remedy"; exit 1; }
  sha256sum --check --status <<<"$sha256  $part/archive" || { say "$url: not the pinned bytes (SHA-256); $remedy"; exit 1; }
  tar -xzf $part/archive -C $part/include --strip-components=4 $name/third_party/tomlplusplus/include/toml++
  mv $part/include $folder
  rm -rf $part
}

# install_more NAME WHAT: the packages of requirements-NAME.txt, into the .venv that is there.
install_more() {
  local list=requirements-$1.txt stamp=.venv/installed-requirements-$1
  if [ -f "$stamp" ] && cmp -s "$stamp" "$list"; then return; fi
  say "installing $2, once"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r "$list"
  cp "$list" "$stamp"
}

# Installs what requirements-NAME.txt lists into an environment of its own, .venv-NAME: install_apart NAME WHAT SIZE.
install_apart() {
  local list=requirements-$1.txt stamp=.venv-$1/installed-requirements
  if [ -f "$stamp" ] && cmp -s "$stamp" "$list"; then return; fi
  say "installing $2 into .venv-$1 (about $3), once"
  .venv/bin/python -m venv --clear ".venv-$1"
  ".venv-$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$list"
  cp "$list" "$stamp"
}

# Unpacks Debian's libraries for aarch64 into build/aarch64_root. They are not installed: next to the machine's own they
# would have to be of the same versions.
unpack_aarch64_libraries() {
  local folder=build/aarch64_root part=build/aarch64_part
  local stamp=$folder/installed-libraries wanted="${aarch64_libraries[*]}"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  say "fetching libraries for aarch64 (6 MB, once)"
  rm -rf $folder $part
  mkdir -p $folder $part/lists/partial $part/archives/partial
  local options=(-q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::status=/dev/null
    -o Dir::State::Lists="$PWD/$part/lists" -o Dir::Cache="$PWD/$part" -o APT::Sandbox::User="$(id -un)")
  apt-get "${options[@]}" update >/dev/null
  (cd $part && apt-get "${options[@]}" download "${aarch64_libraries[@]}" >/dev/null) || {
    say "this system's package archive has no libraries for aarch64 (Debian's has): make test-aarch64 needs Debian"
    exit 1
  }
  for package in $part/*.deb; do dpkg -x "$package" $folder; done
  rm -rf $part
  echo "$wanted" >$stamp
}

# torch_npu has an environment of its own, which sees .venv: `import torch` must find it only where a test asks for it.
install_npu() {
  local list=requirements-npu.txt stamp=.venv-npu/installed-requirements site
  if [ -f "$stamp" ] && cmp -s "$stamp" "$list"; then return; fi
  say "installing torch_npu into .venv-npu (about 120 MB), once"
  .venv/bin/python -m venv --clear .venv-npu
  site=$(.venv-npu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv-npu/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r "$list"
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/venv.pth"
  cp "$list" "$stamp"
}

case "${1:-}" in
  packages) install_packages "${packages[@]}" ;;
  fuzz) install_packages "${fuzz_packages[@]}" ;;
  python)
    install_python
    install_toml
    # Workers write no compiled files, and a start takes them half as long again without. Where none can be written
    # they start all the same.
    .venv/bin/python -m compileall -q python/tandem_worker || true
    ;;
  cuda) install_more cuda "the CUDA libraries and compiler (about 2.2 GB)" ;;
  wheel) install_more wheel "what builds a wheel (1 MB)" ;;
  wandb) install_more wandb "the package of Weights & Biases (about 125 MB)" ;;
  ifbench) install_more ifbench "what --rm-type ifbench needs (17 MB)" ;;
  trackio) install_more trackio "the package of trackio (about 48 MB)" ;;
  mlflow) install_more mlflow "the package of MLflow (about 120 MB)" ;;
  clusters) install_more clusters "the schemas of cluster tools (45 MB)" ;;
  # A run is given these as --rm-python.
  agents) install_apart agents "openai-agents and pydantic-ai" "70 MB" ;;
  # Ray needs other versions than .venv pins.
  ray) install_apart ray Ray "390 MB" ;;
  aarch64)
    install_packages "${aarch64_packages[@]}"
    unpack_aarch64_libraries
    ;;
  npu) install_npu ;;
  *) say "usage: tools/setup.sh packages|python|fuzz|cuda|wheel|wandb|ifbench|trackio|mlflow|agents|clusters|ray|aarch64|npu"; exit 2 ;;
esac
