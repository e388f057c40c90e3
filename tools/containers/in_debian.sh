#!/usr/bin/env bash
# Builds an image's root without a registry: Debian 12 by debootstrap, then install.sh in it by chroot.
#
# Usage, as root: tools/containers/in_debian.sh cpu|gpu|tpu FOLDER     FOLDER: new; an image's root is made there
#
# MIRROR: Debian's archive (http://deb.debian.org/debian). Variables PIP_* and *_proxy are passed on. CA: a file with the
# certificate of a proxy that the root shall trust.
set -euo pipefail
fail() { echo "error: tools/containers/in_debian.sh: $1" >&2; exit 2; }
[[ $# == 2 && " cpu gpu tpu " == *" $1 "* ]] || fail "give cpu, gpu or tpu, and a new folder"
[[ $(id -u) == 0 ]] || fail "chroot needs root"
[[ ! -e $2 || -z $(ls -A "$2") ]] || fail "$2 is not empty; name a new folder"
command -v debootstrap >/dev/null || fail "debootstrap is missing; install it (apt-get install debootstrap)"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root=$2
mkdir -p "$root"
root=$(cd "$root" && pwd)
debootstrap --variant=minbase bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 ||
  fail "debootstrap failed; all it said: $root.log"
cp /etc/resolv.conf "$root/etc/resolv.conf"
if [[ -n ${CA:-} ]]; then
  mkdir -p "$root/usr/local/share/ca-certificates"
  cp "$CA" "$root/usr/local/share/ca-certificates/proxy.crt"
fi
# What git tracks, as the Apptainer definitions take it; changes that are not committed are left out.
mkdir -p "$root/opt/timetotrain"
git -C "$here" archive HEAD | tar -x -C "$root/opt/timetotrain"
if [[ $1 == gpu ]]; then  # The other images take it from NVIDIA's.
  cuda=${HOROVOD_CUDA_HOME:-/usr/local/cuda}
  [[ -x $cuda/bin/nvcc ]] || fail "no $cuda/bin/nvcc; give a CUDA toolkit's folder as HOROVOD_CUDA_HOME"
  mkdir -p "$root/usr/local/cuda"
  cp -a "$cuda/." "$root/usr/local/cuda/"
fi
# pip wants /proc; the mounts end with this script.
trap 'umount -l "$root/proc" "$root/dev" 2>/dev/null || true' EXIT
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
passed=()
while IFS= read -r name; do passed+=("$name=${!name}"); done < <(compgen -e | grep -E '^PIP_|_proxy$' || true)
env -i "${passed[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  chroot "$root" /opt/timetotrain/tools/containers/install.sh "$1"
if [[ $1 == gpu ]]; then rm -rf "$root/usr/local/cuda"; fi
echo "root     $root; try: chroot $root /opt/venv/bin/python -m pip list"
