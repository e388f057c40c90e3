#!/usr/bin/env bash
# Fills DATA_DIR with COCO 2017 as TFRecords: downloads, verifies, converts. Run it again after an interruption.
# For BENCHMARK/init_datasets.sh: common/detection/init_datasets.sh BENCHMARK
#
#   DATA_DIR           folder for the TFRecords                                             (needed)
#   SYSTEM             cpu-tiny generates its small set instead                             (none)
#   COCO_DIR           folder with, or for, the three zip files                             (DATA_DIR/coco)
#   COCO_URL           where they are downloaded from if they are not there
#   TRAIN_MD5, VAL_MD5, ANNOTATIONS_MD5   checksums of the zip files                        (the published ones)
#   TRAIN_SHARDS, VAL_SHARDS              files to write                                    (256, 32)
#   MASKS=1            write the masks too; SSD and Mask R-CNN both read such records       (1 for maskrcnn, else 0)
source "$(dirname "${BASH_SOURCE[0]}")/../data/datasets.sh" "$1" \
  "the TFRecords (45 GB free: zip files and records)"

COCO_DIR=${COCO_DIR:-$DATA_DIR/coco}
COCO_URL=${COCO_URL:-http://images.cocodataset.org}
# mlcommons/training retired_benchmarks/ssd-v1/download_dataset.sh
TRAIN_MD5=${TRAIN_MD5-cced6f7f71b7629ddf16f17bbcfab6b2}
VAL_MD5=${VAL_MD5-442b8da7639aecaf257c1dceb8ba8c80}
ANNOTATIONS_MD5=${ANNOTATIONS_MD5-f4bbac642086de4f52a3fdda2de5fa2c}

mkdir -p "$COCO_DIR"
for path in annotations/annotations_trainval2017.zip zips/val2017.zip zips/train2017.zip; do
  download "$COCO_URL/$path" "$COCO_DIR/$(basename "$path")" "set COCO_URL to a mirror, or put the file into $COCO_DIR"
done

masks=()
if [[ ${MASKS:-0} == 1 ]]; then masks=(--masks); fi
exec "$PYTHON" -m common.detection.convert "$DATA_DIR" \
  --annotations "$COCO_DIR/annotations_trainval2017.zip" --annotations_md5 "$ANNOTATIONS_MD5" \
  --train "$COCO_DIR/train2017.zip" --train_md5 "$TRAIN_MD5" --train_shards "${TRAIN_SHARDS:-256}" \
  --val "$COCO_DIR/val2017.zip" --val_md5 "$VAL_MD5" --val_shards "${VAL_SHARDS:-32}" "${masks[@]}"
