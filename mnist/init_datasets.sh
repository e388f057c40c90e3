#!/usr/bin/env bash
# Fills DATA_DIR with MNIST's four files: downloads, verifies. Run it again after an interruption.
#
#   DATA_DIR    folder for the files                            (required)
#   SYSTEM      cpu-tiny generates its small data set instead   (none)
#   MNIST_URL   URL of the folder with the files    (TensorFlow's copy; yann.lecun.com/exdb/mnist asks for a password)
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" mnist \
  "MNIST's files (12 MB)"

MNIST_URL=${MNIST_URL:-https://storage.googleapis.com/cvdf-datasets/mnist}
# Sums of the canonical files, whose published MD5 sums are f68b3c2d..., d53e105e..., 9fb629c4... and ec29112d...
SHA256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz"

mkdir -p "$DATA_DIR"
while read -r sum name; do
  download "$MNIST_URL/$name" "$DATA_DIR/$name" "set MNIST_URL to another copy, or put the file into $DATA_DIR"
  verify "$DATA_DIR/$name" "$sum"
done <<<"$SHA256"
