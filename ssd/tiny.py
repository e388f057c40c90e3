"""Generates SSD's cpu-tiny data set with common/detection/drawing.py: `python -m ssd.tiny DATA_DIR`."""

import functools
import os
import sys

from common.data import tiny_data
from common.detection import drawing

NUM_CLASSES = len(drawing.CATEGORIES) + 1
TINY = drawing.Pictures()


def generate(data_dir: str | os.PathLike, pictures: drawing.Pictures = TINY) -> None:
    """Writes the TFRecords and the annotation files into `data_dir`; see `drawing.generate`."""
    drawing.generate(data_dir, pictures, "ssd")


main = functools.partial(tiny_data.main, "ssd", generate, "TFRecords")


if __name__ == "__main__":
    sys.exit(main())
