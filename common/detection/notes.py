"""Writes notes next to COCO records: their counts and, for Mask R-CNN, the index of all images.

Converters write the notes as their last step, so that a run need not make them on the clock. For records from other
programs:

    python -m common.detection.notes DATA_DIR [--index]
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from common.config import benchmarks
from common.data import record_counts
from common.detection import coco_index
from common.errors import Parser, UserError, answering


def write(data_dir: str | os.PathLike, index: bool, splits: Sequence[str] = ("train", "val")) -> int:
    """Notes the record counts of the files SPLIT-*-of-*, and with `index` also writes their index.

    Returns the number of records. Raises UserError if a split has no files, a record is damaged, or the folder cannot
    be written.
    """
    folder, count = Path(data_dir), 0
    for split in splits:
        files = sorted(path for path in folder.glob(f"{split}-*-of-*") if path.is_file())
        if not files:
            raise UserError(f"{folder}: no file matches '{split}-*-of-*'; name the folder of the TFRecords")
        count += sum(record_counts.write(folder, [path.name for path in files]).values())
        if index:
            coco_index.keep([os.fspath(path) for path in files])
    return count


def command(data_dir: str | os.PathLike) -> str:
    """Returns the command that writes counts and index."""
    return f"python -m {benchmarks.command('common.detection.notes')} {os.fspath(data_dir)} --index"


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m common.detection.notes`; returns the exit status."""
    parser = Parser(
        prog=f"python -m {benchmarks.command('common.detection.notes')}",
        description="Note what COCO records hold.",
    )
    parser.add_argument("data_dir", help="folder of the TFRecords")
    parser.add_argument("--index", action="store_true", help="the index too, which Mask R-CNN needs")
    arguments = parser.parse_args(argv)
    count = write(arguments.data_dir, arguments.index)
    print(f"{count} records noted in {arguments.data_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
