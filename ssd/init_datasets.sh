#!/usr/bin/env bash
# Fills DATA_DIR with COCO 2017 as TFRecords. Run it again after an interruption.
# DATA_DIR, SYSTEM and the other variables are those of common/detection/init_datasets.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/../common/detection/init_datasets.sh" ssd
