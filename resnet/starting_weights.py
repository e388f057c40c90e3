"""Converts a public ResNet-50 for ResNet: `python -m resnet.starting_weights FILE OUT.npz`."""

import sys

from common.layers import starting_weights as common

if __name__ == "__main__":
    # Its max pool pads as the reference's, on two sides; torchvision's on four.
    sys.exit(common.main(common.RESNET50, None, (1, 2, 2, 2), "resnet.starting_weights"))
