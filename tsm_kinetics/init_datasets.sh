#!/usr/bin/env bash
# Fills DATA_DIR with Kinetics-400 as TFRecords of JPEG frames: lists, videos, conversion. Run it again after an
# interruption.
#
#   DATA_DIR          folder for the TFRecords                                                   (needed)
#   SYSTEM            cpu-tiny generates its small set instead                                   (none)
#   VIDEOS_DIR        folder with the videos, CLASS/ID_000010_000020.mp4 or without CLASS        (needed)
#   LISTS_DIR         folder with, or for, the lists train.csv and validate.csv                  (DATA_DIR/lists)
#   LISTS_URL         where the archive of the lists is downloaded from if they are not there
#   LISTS_SHA256      checksum of the archive; "" takes any                                      ("")
#   TRAIN_SHARDS, VALIDATION_SHARDS   files to write                                             (1024, 128)
#   WORKERS           processes that decode                                                      (one per core)
# The videos themselves are YouTube's, of which some vanish every year: get a copy under its terms. Those that are
# missing or damaged are counted and listed in DATA_DIR/left_out.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
if [[ -z ${DATA_DIR:-} ]]; then
  echo "error: DATA_DIR is not set; name a folder for the TFRecords (Kinetics-400 at a short side of 256 needs about 1 TB)" >&2
  exit 2
fi

if [[ ${SYSTEM:-} == cpu-tiny ]]; then
  exec "$PYTHON" -m tsm_kinetics.tiny "$DATA_DIR"
fi

if [[ -z ${VIDEOS_DIR:-} || ! -d ${VIDEOS_DIR} ]]; then
  echo "error: VIDEOS_DIR='${VIDEOS_DIR:-}' is no folder; name the one with your copy of Kinetics-400's videos" >&2
  exit 2
fi
LISTS_DIR=${LISTS_DIR:-$DATA_DIR/lists}
# https://github.com/google-deepmind/kinetics-i3d names the data set's page, which offers this archive.
LISTS_URL=${LISTS_URL:-https://storage.googleapis.com/deepmind-media/Datasets/kinetics400.tar.gz}

mkdir -p "$LISTS_DIR"
if [[ ! -f $LISTS_DIR/train.csv || ! -f $LISTS_DIR/validate.csv ]]; then
  command -v curl >/dev/null || { echo "error: curl is not installed; install it, or put train.csv and validate.csv into $LISTS_DIR" >&2; exit 2; }
  archive=$LISTS_DIR/kinetics400.tar.gz
  if [[ ! -f $archive ]]; then
    echo "downloading $LISTS_URL" >&2
    if ! curl -fsSL --retry 3 -C - -o "$archive.part" "$LISTS_URL"; then
      echo "error: cannot download $LISTS_URL; put train.csv and validate.csv into $LISTS_DIR yourself" >&2
      exit 2
    fi
    mv "$archive.part" "$archive"
  fi
  if [[ -n ${LISTS_SHA256:-} ]] && ! echo "$LISTS_SHA256  $archive" | sha256sum --check --status; then
    echo "error: $archive has another checksum than LISTS_SHA256; remove it and download it again" >&2
    exit 2
  fi
  for list in train validate; do
    member=$(tar -tzf "$archive" | grep -m1 "/\?$list.csv$") || { echo "error: $archive holds no $list.csv; set LISTS_URL to another" >&2; exit 2; }
    tar -xzOf "$archive" "$member" >"$LISTS_DIR/$list.csv.part"
    mv "$LISTS_DIR/$list.csv.part" "$LISTS_DIR/$list.csv"
  done
fi

exec "$PYTHON" -m tsm_kinetics.convert "$DATA_DIR" --videos "$VIDEOS_DIR" \
  --train "$LISTS_DIR/train.csv" --train-shards "${TRAIN_SHARDS:-1024}" \
  --validation "$LISTS_DIR/validate.csv" --validation-shards "${VALIDATION_SHARDS:-128}" \
  --workers "${WORKERS:-$(nproc)}"
