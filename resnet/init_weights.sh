#!/usr/bin/env bash
# Fills WEIGHTS_DIR with the ResNet-50 that ResNet may start from. common/layers/init_weights.sh describes WEIGHTS_DIR and the
# other variables.
# The URL comes from torchvision: pytorch/vision torchvision/models/resnet.py, commit f50e776. The file name contains
# the first digits of the file's SHA-256, as torch.hub's check_hash documents.
exec "$(dirname "${BASH_SOURCE[0]}")/../common/layers/init_weights.sh" resnet \
  https://download.pytorch.org/models/resnet50-19c8e357.pth
