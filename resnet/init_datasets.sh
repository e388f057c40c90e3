#!/usr/bin/env bash
# Fills DATA_DIR with ImageNet as TFRecords: downloads, verifies, converts. Run it again after an interruption.
#
#   DATA_DIR           folder for the TFRecords                                             (required)
#   SYSTEM             cpu-tiny generates its small data set instead                        (none)
#   ILSVRC_DIR         folder of the two tar files, which are downloaded if missing         (DATA_DIR/ilsvrc)
#   ILSVRC_URL         URL of the tar files' folder
#   LABELS_URL         URL of the folder with the labels of the validation images
#   TRAIN_MD5, VALIDATION_MD5         checksums of the tar files                            (the published ones)
#   TRAIN_SHARDS, VALIDATION_SHARDS   files to write                                        (1024, 128)
source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" resnet \
  "the TFRecords (300 GB free: tar files and records)"

ILSVRC_DIR=${ILSVRC_DIR:-$DATA_DIR/ilsvrc}
ILSVRC_URL=${ILSVRC_URL:-https://image-net.org/data/ILSVRC/2012}
# tf-models' labels of the validation images, in the order of the file names.
LABELS_URL=${LABELS_URL:-https://raw.githubusercontent.com/tensorflow/models/c80d1b17d5f835e6f2cdeddefeb16c193beed071/research/slim/datasets}
# Published at https://image-net.org/challenges/LSVRC/2012/2012-downloads.php
TRAIN_MD5=${TRAIN_MD5:-1d675b47d978889d74fa0da5fadfb00e}
VALIDATION_MD5=${VALIDATION_MD5:-29b22e2961454d5413ddabcf34fc5622}

TRAIN=ILSVRC2012_img_train.tar
VALIDATION=ILSVRC2012_img_val.tar
LABELS=imagenet_2012_validation_synset_labels.txt

mkdir -p "$ILSVRC_DIR"
account="ImageNet needs an account: get the file with yours and put it into $ILSVRC_DIR"
download "$LABELS_URL/$LABELS" "$ILSVRC_DIR/$LABELS" "put the file into $ILSVRC_DIR yourself"
download "$ILSVRC_URL/$VALIDATION" "$ILSVRC_DIR/$VALIDATION" "$account"
download "$ILSVRC_URL/$TRAIN" "$ILSVRC_DIR/$TRAIN" "$account"

exec "$PYTHON" -m resnet.convert "$DATA_DIR" \
  --train "$ILSVRC_DIR/$TRAIN" --train_md5 "$TRAIN_MD5" --train_shards "${TRAIN_SHARDS:-1024}" \
  --validation "$ILSVRC_DIR/$VALIDATION" --validation_md5 "$VALIDATION_MD5" \
  --validation_shards "${VALIDATION_SHARDS:-128}" --validation_labels "$ILSVRC_DIR/$LABELS"
