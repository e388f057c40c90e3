#!/usr/bin/env bash
# Fills DATA_DIR with MLCommons' tokens of C4 for Llama 3.1 8B: downloads, verifies. Run it again after an interruption.
#
# It downloads about 115 GB: 85 GB of tokens, and the tokenizer's repository of 30 GB, of which it keeps 9 MB.
#
#   DATA_DIR       folder for the files                                          (required; 116 GB free)
#   SYSTEM         cpu-tiny generates its small text instead                     (none)
#   DOWNLOADER     MLCommons' downloader, a script to call, or its URL           (the published one)
#   DATA_URI, TOKENIZER_URI   what it downloads: lists of files with MD5 sums    (the published ones)
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" llama31_8b \
  "the tokens (116 GB free)"

# mlcommons/training small_llm_pretraining/nemo/README.md, "Preprocessed data download".
DOWNLOADER=${DOWNLOADER:-https://raw.githubusercontent.com/mlcommons/r2-downloader/refs/heads/main/mlc-r2-downloader.sh}
URIS=https://training.mlcommons-storage.org/metadata
DATA_URI=${DATA_URI:-$URIS/llama-3-1-8b-preprocessed-c4-dataset.uri}
TOKENIZER_URI=${TOKENIZER_URI:-$URIS/llama-3-1-8b-tokenizer.uri}
# Bytes of the files that a run reads: mlcommons/training_results_v5.1
# NVIDIA/benchmarks/llama31_8b/implementations/nemo/expected-mounts-8b.csv. Their MD5 sums come with the lists.
SIZES="83976774280  c4-train.en_6_text_document.bin
912172262  c4-train.en_6_text_document.idx
166568364  c4-validation-91205-samples.en_text_document.bin
1824142  c4-validation-91205-samples.en_text_document.idx
9085658  tokenizer.json"

# missing: names the files that are absent or of another size.
missing() {
  while read -r size name; do
    [[ -f $DATA_DIR/$name && $(stat -c %s "$DATA_DIR/$name") == "$size" ]] || echo "$name"
  done <<<"$SIZES"
}

# fetch FOLDER URI: calls the downloader, which verifies its files and completes what an interruption left.
fetch() {
  local script=$DOWNLOADER
  if [[ $script == *://* ]]; then
    script=$DATA_DIR/.downloader.sh
    curl -fsSL "$DOWNLOADER" -o "$script" || refuse "cannot download $DOWNLOADER; set DOWNLOADER to a copy"
  fi
  bash "$script" -d "$1" "$2" || refuse "the downloader failed at $2; run this again"
}

mkdir -p "$DATA_DIR"
if [[ $(missing) == *text_document* ]]; then fetch "$DATA_DIR/download" "$DATA_URI"; fi
if [[ $(missing) == *tokenizer* ]]; then fetch "$DATA_DIR/download/tokenizer" "$TOKENIZER_URI"; fi
for name in $(missing); do
  found=$(find "$DATA_DIR/download" -name "$name" -print -quit 2>/dev/null || true)
  [[ -z $found ]] || mv "$found" "$DATA_DIR/$name"
done
absent=$(missing)
[[ -z $absent ]] || refuse "$DATA_DIR: $(head -1 <<<"$absent") is absent or not of the published size; remove it, run this again"
# The rest of the tokenizer's repository holds weights, which a run does not read.
rm -rf "$DATA_DIR/download/tokenizer"
