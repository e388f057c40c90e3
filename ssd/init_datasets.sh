#!/usr/bin/env bash
# Fills DATA_DIR with COCO 2017 as TFRecords. Run it again after an interruption.
# common/detection/init_datasets.sh describes DATA_DIR, SYSTEM and the other variables.
exec "$(dirname "${BASH_SOURCE[0]}")/../common/detection/init_datasets.sh" ssd
