#!/usr/bin/env bash
# Fills DATA_DIR with Kinetics-400 as TFRecords of JPEG frames: lists, videos, conversion. Run it again after an
# interruption.
#
#   DATA_DIR          folder for the TFRecords                                                   (required)
#   SYSTEM            cpu-tiny generates its small data set instead                              (none)
#   VIDEOS_DIR        folder of the videos, CLASS/ID_000010_000020.mp4 or without CLASS          (required)
#   LISTS_DIR         folder of train.csv and validate.csv, which are downloaded if missing      (DATA_DIR/lists)
#   LISTS_URL         URL of the archive of the lists
#   LISTS_SHA256      checksum of the archive; "" takes any                                      ("")
#   TRAIN_SHARDS, VALIDATION_SHARDS   files to write                                             (1024, 128)
#   WORKERS           processes that decode                                                      (one per core)
# The videos are from YouTube, and some vanish every year; get a copy under its terms. The conversion counts missing and
# damaged videos and lists them in DATA_DIR/left_out.txt.
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" tsm_kinetics \
  "the TFRecords (Kinetics-400 at a short side of 256 needs about 1 TB)"

[[ -n ${VIDEOS_DIR:-} && -d ${VIDEOS_DIR} ]] ||
  refuse "VIDEOS_DIR='${VIDEOS_DIR:-}' is no folder; name the one with your copy of Kinetics-400's videos"
LISTS_DIR=${LISTS_DIR:-$DATA_DIR/lists}
# https://github.com/google-deepmind/kinetics-i3d links to the data set's page, which offers this archive.
LISTS_URL=${LISTS_URL:-https://storage.googleapis.com/deepmind-media/Datasets/kinetics400.tar.gz}

mkdir -p "$LISTS_DIR"
archive=$LISTS_DIR/kinetics400.tar.gz
for list in train validate; do
  [[ -f $LISTS_DIR/$list.csv ]] && continue
  download "$LISTS_URL" "$archive" "put train.csv and validate.csv into $LISTS_DIR yourself"
  [[ -z ${LISTS_SHA256:-} ]] || verify "$archive" "$LISTS_SHA256"
  unpack "$archive" "*/$list.csv" "$LISTS_DIR/$list.csv"
done

exec "$PYTHON" -m tsm_kinetics.convert "$DATA_DIR" --videos "$VIDEOS_DIR" \
  --train "$LISTS_DIR/train.csv" --train_shards "${TRAIN_SHARDS:-1024}" \
  --validation "$LISTS_DIR/validate.csv" --validation_shards "${VALIDATION_SHARDS:-128}" \
  --workers "${WORKERS:-$(nproc)}"
