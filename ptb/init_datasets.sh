#!/usr/bin/env bash
# Fills DATA_DIR with Mikolov's Penn Treebank: downloads, unpacks, verifies. Run it again after an interruption.
#
#   DATA_DIR    folder for the three text files             (needed)
#   SYSTEM      cpu-tiny generates its small text instead   (none)
#   PTB_URL     where simple-examples.tgz is downloaded from (the author's page)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
if [[ -z ${DATA_DIR:-} ]]; then
  echo "error: DATA_DIR is not set; name a folder for the Penn Treebank (6 MB, and 35 MB to unpack it from)" >&2
  exit 2
fi

if [[ ${SYSTEM:-} == cpu-tiny ]]; then
  exec "$PYTHON" -m ptb.tiny "$DATA_DIR"
fi

PTB_URL=${PTB_URL:-http://www.fit.vutbr.cz/~imikolov/rnnlm}
ARCHIVE=simple-examples.tgz
SHA256="fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf  ptb.train.txt
c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2  ptb.valid.txt
dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0  ptb.test.txt"

mkdir -p "$DATA_DIR"
missing=0
while read -r _ name; do [[ -f $DATA_DIR/$name ]] || missing=1; done <<<"$SHA256"
if [[ $missing == 1 ]]; then
  file=$DATA_DIR/$ARCHIVE
  if [[ ! -f $file ]]; then
    command -v curl >/dev/null || { echo "error: curl is not installed; install it, or put $file there yourself" >&2; exit 2; }
    echo "downloading $PTB_URL/$ARCHIVE" >&2
    if ! curl -fL -s --retry 3 -C - -o "$file.part" "$PTB_URL/$ARCHIVE"; then
      echo "error: cannot download $PTB_URL/$ARCHIVE; set PTB_URL to another copy, or put the files into $DATA_DIR" >&2
      exit 2
    fi
    mv "$file.part" "$file"
  fi
  while read -r _ name; do
    tar -xzf "$file" -O "./simple-examples/data/$name" >"$DATA_DIR/$name.part" || {
      echo "error: $file holds no $name; delete it and run this again" >&2
      exit 2
    }
    mv "$DATA_DIR/$name.part" "$DATA_DIR/$name"
  done <<<"$SHA256"
fi

while read -r sum name; do
  if [[ $(sha256sum "$DATA_DIR/$name" | cut -d' ' -f1) != "$sum" ]]; then
    echo "error: $DATA_DIR/$name has another checksum than the published file; delete it and run this again" >&2
    exit 2
  fi
done <<<"$SHA256"
rm -f "$DATA_DIR/$ARCHIVE"
