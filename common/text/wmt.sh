# Shared parts of the init_datasets.sh scripts of WMT's German and English, which source it and common/data/datasets.sh.
# RAW_DIR is the folder of the downloads.

# get URL FILE ...: downloads the files from the folder at URL.
get() {
  local url=$1
  shift
  for file in "$@"; do
    download "$url/$file" "$RAW_DIR/$file" "get the file elsewhere and put it into $RAW_DIR"
  done
}

# verify_all: compares the downloads with the sums in SHA256SUMS, or with those that published_sums prints.
verify_all() {
  local sums
  echo "verifying" >&2
  if [[ -n ${SHA256SUMS:-} ]]; then sums=$(cat "$SHA256SUMS"); else sums=$(published_sums); fi
  while read -r sum name; do verify "$RAW_DIR/$name" "$sum"; done <<<"$sums"
}

# unpack_corpora NEWS_NAME: the two languages of the corpora in the archives NEWS, CRAWL and EUROPARL.
unpack_corpora() {
  for language in en de; do
    unpack "$RAW_DIR/$NEWS" "*$1.de-en.$language" "$RAW_DIR/$1.de-en.$language"
    unpack "$RAW_DIR/$CRAWL" "*commoncrawl.de-en.$language" "$RAW_DIR/commoncrawl.de-en.$language"
    unpack "$RAW_DIR/$EUROPARL" "*europarl-v7.de-en.$language" "$RAW_DIR/europarl-v7.de-en.$language"
  done
}
