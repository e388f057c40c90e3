#!/usr/bin/env bash
# Fills DATA_DIR with MNIST's four files: downloads, verifies. Run it again after an interruption.
#
#   DATA_DIR    folder for the files                        (needed)
#   SYSTEM      cpu-tiny generates its small set instead    (none)
#   MNIST_URL   where the files are downloaded from         (TensorFlow's copy; yann.lecun.com/exdb/mnist asks for a password)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
if [[ -z ${DATA_DIR:-} ]]; then
  echo "error: DATA_DIR is not set; name a folder for MNIST's files (12 MB)" >&2
  exit 2
fi

if [[ ${SYSTEM:-} == cpu-tiny ]]; then
  exec "$PYTHON" -m mnist.tiny "$DATA_DIR"
fi

MNIST_URL=${MNIST_URL:-https://storage.googleapis.com/cvdf-datasets/mnist}
# Of the canonical files; their MD5 sums are the published f68b3c2d..., d53e105e..., 9fb629c4... and ec29112d...
SHA256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz"

mkdir -p "$DATA_DIR"
while read -r sum name; do
  file=$DATA_DIR/$name
  if [[ ! -f $file ]]; then
    command -v curl >/dev/null || { echo "error: curl is not installed; install it, or put $file there yourself" >&2; exit 2; }
    echo "downloading $MNIST_URL/$name" >&2
    if ! curl -fL -s --retry 3 -C - -o "$file.part" "$MNIST_URL/$name"; then
      echo "error: cannot download $MNIST_URL/$name; set MNIST_URL to another copy, or put the file into $DATA_DIR" >&2
      exit 2
    fi
    mv "$file.part" "$file"
  fi
  if [[ $(sha256sum "$file" | cut -d' ' -f1) != "$sum" ]]; then
    echo "error: $file has another checksum than the published file; delete it and run this again" >&2
    exit 2
  fi
done <<<"$SHA256"
