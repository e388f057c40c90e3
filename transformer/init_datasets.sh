#!/usr/bin/env bash
# Fills DATA_DIR with WMT17 English-German: downloads, verifies, converts. Run it again after an interruption.
#
#   DATA_DIR           folder for the records                                               (needed; 6 GB free)
#   SYSTEM             cpu-tiny generates its small set instead                             (none)
#   RAW_DIR            folder with, or for, what is downloaded                              (DATA_DIR/raw)
#   NEWS_URL, CRAWL_URL, EUROPARL_URL   where the training text is downloaded from
#   NEWSTEST_URL       where newstest2014.en and .de are downloaded from
#   VOCABULARY_URL     where the subword vocabulary is downloaded from
#   SHA256SUMS         file of the checksums to verify with                                 (the published ones)
#   SHARDS             files to write                                                       (100)
#   WORKERS            processes                                                            (one per core)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
if [[ -z ${DATA_DIR:-} ]]; then
  echo "error: DATA_DIR is not set; name a folder for the records (6 GB free: downloads and records)" >&2
  exit 2
fi

if [[ ${SYSTEM:-} == cpu-tiny ]]; then
  exec "$PYTHON" -m transformer.tiny "$DATA_DIR"
fi

RAW_DIR=${RAW_DIR:-$DATA_DIR/raw}
# The three corpora of tensor2tensor's translate_ende_wmt32k, which the reference and the submissions trained on.
NEWS_URL=${NEWS_URL:-http://data.statmt.org/wmt17/translation-task}
CRAWL_URL=${CRAWL_URL:-http://www.statmt.org/wmt13}
EUROPARL_URL=${EUROPARL_URL:-http://www.statmt.org/wmt13}
# Detokenised, as mlcommons/training retired_benchmarks/transformer/download_data.sh takes it.
NEWSTEST_URL=${NEWSTEST_URL:-https://raw.githubusercontent.com/tensorflow/models/v1.13.0/official/transformer/test_data}
VOCABULARY_URL=${VOCABULARY_URL:-https://storage.googleapis.com/tensor2tensor-data}

NEWS=training-parallel-nc-v12.tgz
CRAWL=training-parallel-commoncrawl.tgz
EUROPARL=training-parallel-europarl-v7.tgz
VOCABULARY=vocab.translate_ende_wmt32k.32768.subwords

# download URL FILE: into FILE.part, which an interruption leaves behind and the next call completes.
download() {
  [[ -f $2 ]] && return
  command -v curl >/dev/null || { echo "error: curl is not installed; install it, or put $2 there yourself" >&2; exit 2; }
  echo "downloading $1/$(basename "$2")" >&2
  local progress=--progress-bar
  [[ -t 2 ]] || progress=-s
  if ! curl -fL "$progress" --retry 3 -C - -o "$2.part" "$1/$(basename "$2")"; then
    echo "error: cannot download $1/$(basename "$2"); get the file elsewhere and put it into $(dirname "$2")" >&2
    exit 2
  fi
  mv "$2.part" "$2"
}

# Of the archives: tensorflow_datasets, wmt17_translate/checksums.tsv.
published_sums() {
  cat <<SUMS
2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2  $NEWS
c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5  $CRAWL
0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7  $EUROPARL
7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971  newstest2014.en
ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e  newstest2014.de
225ebf82d880e64f0fff2e77b80e5ef7d0ebdf1284bb76ae70bab8ddd3a08232  $VOCABULARY
SUMS
}

mkdir -p "$RAW_DIR"
download "$VOCABULARY_URL" "$RAW_DIR/$VOCABULARY"
download "$NEWSTEST_URL" "$RAW_DIR/newstest2014.en"
download "$NEWSTEST_URL" "$RAW_DIR/newstest2014.de"
download "$NEWS_URL" "$RAW_DIR/$NEWS"
download "$CRAWL_URL" "$RAW_DIR/$CRAWL"
download "$EUROPARL_URL" "$RAW_DIR/$EUROPARL"

echo "verifying" >&2
if [[ -n ${SHA256SUMS:-} ]]; then sums=$(cat "$SHA256SUMS"); else sums=$(published_sums); fi
while read -r sum name; do
  found=$(sha256sum "$RAW_DIR/$name" | cut -d' ' -f1)
  if [[ $found != "$sum" ]]; then
    echo "error: $RAW_DIR/$name: SHA-256 is $found, must be $sum; remove the file, download it again" >&2
    exit 2
  fi
done <<<"$sums"

# unpack ARCHIVE FILE...: the files by their names, wherever they lie in the archive; complete or not at all.
unpack() {
  local archive=$1
  shift
  for file in "$@"; do
    [[ -f $RAW_DIR/$file ]] && continue
    echo "unpacking $file" >&2
    if ! tar -xOzf "$RAW_DIR/$archive" --wildcards "*$file" >"$RAW_DIR/$file.part"; then
      echo "error: $RAW_DIR/$archive holds no $file, or the disk is full" >&2
      exit 2
    fi
    mv "$RAW_DIR/$file.part" "$RAW_DIR/$file"
  done
}

unpack "$NEWS" news-commentary-v12.de-en.en news-commentary-v12.de-en.de
unpack "$CRAWL" commoncrawl.de-en.en commoncrawl.de-en.de
unpack "$EUROPARL" europarl-v7.de-en.en europarl-v7.de-en.de

exec "$PYTHON" -m transformer.convert "$DATA_DIR" --drop-bad \
  --train-source "$RAW_DIR"/{news-commentary-v12,commoncrawl,europarl-v7}.de-en.en \
  --train-target "$RAW_DIR"/{news-commentary-v12,commoncrawl,europarl-v7}.de-en.de \
  --eval-source "$RAW_DIR/newstest2014.en" --eval-target "$RAW_DIR/newstest2014.de" \
  --vocabulary "$RAW_DIR/$VOCABULARY" --shards "${SHARDS:-100}" --workers "${WORKERS:-$(nproc)}"
