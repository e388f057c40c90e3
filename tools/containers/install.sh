#!/usr/bin/env bash
# Installs the project's environment into a Debian 12 root, as /opt/venv: what every image is built by.
#
# Usage, as root, in a copy of the project: tools/containers/install.sh cpu|gpu|tpu
#
# gpu expects a CUDA toolkit in /usr/local/cuda, for Horovod's few kernels; the environment has its own CUDA libraries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case ${1:-} in
  cpu | tpu) extras=(train text) ;;
  # TensorFlow and jax share the wheels of CUDA 12.
  gpu) extras=(train text gpu-tf gpu-cuda12) ;;
  *) echo "error: tools/containers/install.sh: give one of cpu, gpu, tpu" >&2; exit 2 ;;
esac
# NCCL finds InfiniBand through libibverbs.
kept=(ca-certificates python3 python3-venv)
[ "$1" != gpu ] || kept+=(ibverbs-providers libibverbs1 librdmacm1)
building=(g++ make patch python3-dev)

export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q install --yes --no-install-recommends "${kept[@]}" "${building[@]}"
python3 -m venv /opt/venv
pip=(/opt/venv/bin/python -m pip --disable-pip-version-check --no-cache-dir --quiet)
packages=$(/opt/venv/bin/python tools/packages.py "${extras[@]}")
# shellcheck disable=SC2086
"${pip[@]}" install --use-pep517 -c tools/requirements/dev.lock $packages
case $1 in
  cpu) HOROVOD_GPU_OPERATIONS=none tools/horovod/build.sh /opt/venv/bin/python ;;
  gpu) HOROVOD_GPU_OPERATIONS=NCCL tools/horovod/build.sh /opt/venv/bin/python ;;
  tpu)
    "${pip[@]}" uninstall --yes tensorflow
    # The lock's release of TensorFlow, with the TPU's runtime.
    "${pip[@]}" install --no-deps libtpu==0.0.20 tensorflow-tpu==2.20.0
    ;;
esac
# Only what runs stays.
apt-get -q purge --yes "${building[@]}"
apt-get -q autoremove --yes
rm -rf /var/lib/apt/lists/* .cache
TF_CPP_MIN_LOG_LEVEL=3 /opt/venv/bin/python -m mnist --describe >/dev/null
echo "installed $1: $(/opt/venv/bin/python -c 'import platform; print("Python", platform.python_version())')" \
  "and $(/opt/venv/bin/python -m pip list 2>/dev/null | wc -l) packages in /opt/venv"
