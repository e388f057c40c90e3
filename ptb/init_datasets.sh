#!/usr/bin/env bash
# Fills DATA_DIR with Mikolov's Penn Treebank: downloads, unpacks, verifies. Run it again after an interruption.
#
#   DATA_DIR    folder for the three text files              (required)
#   SYSTEM      cpu-tiny generates its small text instead    (none)
#   PTB_URL     URL of the folder with simple-examples.tgz   (the author's page)
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" ptb \
  "the Penn Treebank (6 MB, and 35 MB to unpack it from)"

PTB_URL=${PTB_URL:-http://www.fit.vutbr.cz/~imikolov/rnnlm}
ARCHIVE=simple-examples.tgz
SHA256="fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf  ptb.train.txt
c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2  ptb.valid.txt
dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0  ptb.test.txt"

mkdir -p "$DATA_DIR"
while read -r sum name; do
  if [[ ! -f $DATA_DIR/$name ]]; then
    hint="set PTB_URL to another copy, or put the files into $DATA_DIR"
    download "$PTB_URL/$ARCHIVE" "$DATA_DIR/$ARCHIVE" "$hint"
    unpack "$DATA_DIR/$ARCHIVE" "*simple-examples/data/$name" "$DATA_DIR/$name"
  fi
  verify "$DATA_DIR/$name" "$sum"
done <<<"$SHA256"
rm -f "$DATA_DIR/$ARCHIVE"
