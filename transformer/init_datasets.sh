#!/usr/bin/env bash
# Fills DATA_DIR with WMT17 English-German: downloads, verifies, converts. Run it again after an interruption.
#
#   DATA_DIR           folder for the records                                               (required; 6 GB free)
#   SYSTEM             cpu-tiny generates its small data set instead                        (none)
#   RAW_DIR            folder for downloads; existing files are not downloaded again        (DATA_DIR/raw)
#   NEWS_URL, CRAWL_URL, EUROPARL_URL   URLs of the folders with the training text
#   NEWSTEST_URL       URL of the folder with newstest2014.en and .de
#   VOCABULARY_URL     URL of the folder with the subword vocabulary
#   SHA256SUMS         file of the expected checksums                                       (the published ones)
#   SHARDS             files to write                                                       (100)
#   WORKERS            processes                                                            (one per core)
source "$(dirname "${BASH_SOURCE[0]}")/../common/text/wmt.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" transformer \
  "the records (6 GB free: downloads and records)"

RAW_DIR=${RAW_DIR:-$DATA_DIR/raw}
# The three corpora of tensor2tensor's translate_ende_wmt32k; the reference and the submissions trained on them.
NEWS_URL=${NEWS_URL:-http://data.statmt.org/wmt17/translation-task}
CRAWL_URL=${CRAWL_URL:-http://www.statmt.org/wmt13}
EUROPARL_URL=${EUROPARL_URL:-http://www.statmt.org/wmt13}
# Detokenized text, as in mlcommons/training retired_benchmarks/transformer/download_data.sh.
NEWSTEST_URL=${NEWSTEST_URL:-https://raw.githubusercontent.com/tensorflow/models/v1.13.0/official/transformer/test_data}
VOCABULARY_URL=${VOCABULARY_URL:-https://storage.googleapis.com/tensor2tensor-data}

NEWS=training-parallel-nc-v12.tgz
CRAWL=training-parallel-commoncrawl.tgz
EUROPARL=training-parallel-europarl-v7.tgz
VOCABULARY=vocab.translate_ende_wmt32k.32768.subwords

# Sums of the archives: tensorflow_datasets, wmt17_translate/checksums.tsv.
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

get "$VOCABULARY_URL" "$VOCABULARY"
get "$NEWSTEST_URL" newstest2014.en newstest2014.de
get "$NEWS_URL" "$NEWS"
get "$CRAWL_URL" "$CRAWL"
get "$EUROPARL_URL" "$EUROPARL"

verify_all
unpack_corpora news-commentary-v12

exec "$PYTHON" -m transformer.convert "$DATA_DIR" --drop_bad \
  --train_source "$RAW_DIR"/{news-commentary-v12,commoncrawl,europarl-v7}.de-en.en \
  --train_target "$RAW_DIR"/{news-commentary-v12,commoncrawl,europarl-v7}.de-en.de \
  --eval_source "$RAW_DIR/newstest2014.en" --eval_target "$RAW_DIR/newstest2014.de" \
  --vocabulary "$RAW_DIR/$VOCABULARY" --shards "${SHARDS:-100}" --workers "${WORKERS:-$(nproc)}"
