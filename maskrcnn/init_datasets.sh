#!/usr/bin/env bash
# Fills DATA_DIR with COCO 2017 as TFRecords, masks included. Run it again after an interruption.
# common/detection/init_datasets.sh describes DATA_DIR, SYSTEM and the other variables.
export MASKS=${MASKS:-1}
exec "$(dirname "${BASH_SOURCE[0]}")/../common/detection/init_datasets.sh" maskrcnn
