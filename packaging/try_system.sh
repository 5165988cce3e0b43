#!/usr/bin/env bash
# Tries wheels on a system that holds nothing but its base: installs them there and trains a first step as a user who is
# not root, and prints the seconds that each part took. As root, with debootstrap.
#
#   packaging/try_system.sh bookworm|trixie|jammy|noble ROOT DIST [cpu|cuda]
#
# ROOT is made when it is not there (0.4 GB, and 2 GB after the trial); a second trial keeps its system packages and
# replaces what the first one installed. It gets this machine's names of hosts, certificates and cache of pip, and no variables,
# so that a second trial downloads little.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=$1 root=$2 dist=$3 variant=${4:-cpu}

say() { echo "try_system: $*" >&2; }

if [ ! -e "$root/etc/os-release" ]; then
  say "making $root with debootstrap"
  case $suite in
    bookworm | trixie) debootstrap --variant=minbase "$suite" "$root" >"$root.log" 2>&1 ;;
    # Debian has no keys of Ubuntu's archive and no script of its newer releases: all of them take the same steps.
    jammy | noble) debootstrap --variant=minbase --no-check-gpg --components=main,universe "$suite" "$root" \
      http://archive.ubuntu.com/ubuntu /usr/share/debootstrap/scripts/gutsy >"$root.log" 2>&1 ;;
    *) say "$suite is none of bookworm, trixie, jammy, noble"; exit 2 ;;
  esac || { say "debootstrap failed: $(tail -n 1 "$root.log")"; exit 3; }
fi

trial=/tmp/tandem_trial
rm -rf "$root$trial"
mkdir -p "$root$trial/examples"
cp -r "$here" "$root$trial/packaging"
cp -r "$here/../examples/arithmetic" "$root$trial/examples/"
cp -r "$dist" "$root$trial/dist"
cat >"$root$trial/steps.sh" <<STEPS
set -euo pipefail
cd $trial
packaging/install.sh system >system.log 2>&1 || { tail -n 3 system.log; exit 3; }
id tandem >/dev/null 2>&1 || useradd --create-home tandem
start=\$(date +%s.%N)
packaging/install.sh $variant dist environment
installed=\$(date +%s.%N)
install -d -o tandem runs
su tandem -c "packaging/first_step.sh environment runs/first" 2>step.log || { tail -n 5 step.log; exit 1; }
finished=\$(date +%s.%N)
. /etc/os-release
echo "\$PRETTY_NAME, \$(python3 --version): pip install \$(echo "\$installed \$start" | awk '{printf "%.1f", \$1 - \$2}') s," \
  "then the first step \$(echo "\$finished \$installed" | awk '{printf "%.1f", \$1 - \$2}') s"
STEPS
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$root$trial/certificates"
mkdir -p "$root/root/.cache/pip" "$HOME/.cache/pip"
unshare --mount --pid --fork bash -euc '
  root=$1 trial=$2
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --bind "$HOME/.cache/pip" "$root/root/.cache/pip"
  exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT="$trial/certificates" chroot "$root" bash "$trial/steps.sh"
' _ "$root" "$trial"
