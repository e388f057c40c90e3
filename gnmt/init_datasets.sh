#!/usr/bin/env bash
# Fills DATA_DIR with WMT16 English-German: downloads, verifies, converts. Run it again after an interruption.
#
#   DATA_DIR           folder for the records                                               (required; 8 GB free)
#   SYSTEM             cpu-tiny generates its small data set instead                        (none)
#   RAW_DIR            folder for downloads; existing files are not downloaded again        (DATA_DIR/raw)
#   NEWS_URL, CRAWL_URL, EUROPARL_URL   URLs of the folders with the training text
#   NEWSTEST_URL       URL of the folder with newstest2014.en and .de
#   SHA256SUMS         file of the expected checksums                                       (the published ones)
#   CODES, VOCABULARY  merges and tokens to use instead of learning them                    (none)
#   MERGES             merges to learn                                                      (32000)
#   MAX_LENGTH         maximum tokens per side, including BOS and EOS                       (75)
#   SHARDS             files to write                                                       (100)
#   WORKERS            processes                                                            (one per core)
source "$(dirname "${BASH_SOURCE[0]}")/../common/text/wmt.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" gnmt \
  "the records (8 GB free: downloads and records)"

RAW_DIR=${RAW_DIR:-$DATA_DIR/raw}
# The three corpora of google/seq2seq bin/data/wmt16_en_de.sh; the reference's data script builds on that script.
NEWS_URL=${NEWS_URL:-http://data.statmt.org/wmt16/translation-task}
CRAWL_URL=${CRAWL_URL:-http://www.statmt.org/wmt13}
EUROPARL_URL=${EUROPARL_URL:-http://www.statmt.org/wmt13}
# Detokenized text: the sentences of sacreBLEU's wmt14/full.
NEWSTEST_URL=${NEWSTEST_URL:-https://raw.githubusercontent.com/tensorflow/models/v1.13.0/official/transformer/test_data}

NEWS=training-parallel-nc-v11.tgz
CRAWL=training-parallel-commoncrawl.tgz
EUROPARL=training-parallel-europarl-v7.tgz

# Sums of the archives: tensorflow_datasets, url_checksums/wmt16_translate.txt and wmt17_translate/checksums.tsv.
published_sums() {
  cat <<SUMS
cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a  $NEWS
c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5  $CRAWL
0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7  $EUROPARL
7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971  newstest2014.en
ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e  newstest2014.de
SUMS
}

mkdir -p "$RAW_DIR"

get "$NEWSTEST_URL" newstest2014.en newstest2014.de
get "$NEWS_URL" "$NEWS"
get "$CRAWL_URL" "$CRAWL"
get "$EUROPARL_URL" "$EUROPARL"

verify_all
unpack_corpora news-commentary-v11

encoding=(--merges "${MERGES:-32000}")
[[ -n ${CODES:-} ]] && encoding=(--codes "$CODES" --vocabulary "${VOCABULARY:-}")

echo "converting" >&2
exec "$PYTHON" -m gnmt.convert "$DATA_DIR" --drop_bad "${encoding[@]}" \
  --train_source "$RAW_DIR"/{europarl-v7,commoncrawl,news-commentary-v11}.de-en.en \
  --train_target "$RAW_DIR"/{europarl-v7,commoncrawl,news-commentary-v11}.de-en.de \
  --eval_source "$RAW_DIR/newstest2014.en" --eval_target "$RAW_DIR/newstest2014.de" \
  --max_length "${MAX_LENGTH:-75}" --shards "${SHARDS:-100}" --workers "${WORKERS:-$(nproc)}"
