"""Generates the cpu-tiny data set with common/detection/drawing.py: `python -m maskrcnn.tiny DATA_DIR`."""

import functools
import os
import sys

from common.data import tiny_data
from common.detection import drawing

# Fewer and larger figures than ssd's, so that two stages learn from scratch in minutes.
TINY = drawing.Pictures(
    train_images=2000, eval_images=101, most=3, radius=(0.2, 0.38), visible=0.5, noise=0.02
)


def generate(data_dir: str | os.PathLike, pictures: drawing.Pictures = TINY) -> None:
    """Writes the TFRecords and the annotation files into `data_dir`; see `drawing.generate`."""
    drawing.generate(data_dir, pictures, "maskrcnn")


main = functools.partial(tiny_data.main, "maskrcnn", generate, "TFRecords")


if __name__ == "__main__":
    sys.exit(main())
