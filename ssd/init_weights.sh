#!/usr/bin/env bash
# Fills WEIGHTS_DIR with the ResNet-34 that SSD starts from. common/layers/init_weights.sh describes WEIGHTS_DIR and the
# other variables.
# The reference uses the same URL: mlcommons/training retired_benchmarks/ssd-v1/download_resnet34_backbone.sh. The file
# name contains the first digits of the file's SHA-256, as torch.hub's check_hash documents.
exec "$(dirname "${BASH_SOURCE[0]}")/../common/layers/init_weights.sh" ssd \
  https://download.pytorch.org/models/resnet34-333f7ec4.pth
