"""Keeps records.json beside TFRecords: each file's size in bytes and number of records.

A run may not read its data before the clock starts, but should reject an incomplete copy early. So converters write
this note, and a run compares it with the file sizes without opening the files. Without a note, a run counts the records
on the clock. To write a note for records from other programs:

    python -m common.data.record_counts DATA_DIR
"""

import concurrent.futures
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.config import benchmarks
from common.data import tfrecords
from common.distributed import process
from common.errors import UserError, answering
from common.files import write_atomically

NAME = "records.json"
FORMAT = 1
_THREADS = 16  # Files processed at once; counting takes one short disk read per record.


def write(data_dir: str | os.PathLike, names: Iterable[str]) -> dict[str, int]:
    """Counts the records of files and notes the counts in `data_dir`; entries for other files stay in the note.

    Returns {name: number of records}. Raises UserError if a file is damaged, or the folder cannot be written.
    """
    folder, names = Path(data_dir), sorted(names)
    numbers = dict(zip(names, _parallel(tfrecords.count, [os.fspath(folder / name) for name in names])))
    previous_rows = {name: row for name, row in _content(folder).items() if (folder / name).is_file()}
    rows = previous_rows | {name: [(folder / name).stat().st_size, numbers[name]] for name in names}
    content = {"format": FORMAT, "files": dict(sorted(rows.items()))}
    write_atomically(folder / NAME, (json.dumps(content, indent=1) + "\n").encode())
    return numbers


def noted(files: Sequence[str]) -> list[int] | None:
    """Returns each file's number of records from the note beside them; None unless it lists all of them.

    It does not open the files. Raises UserError if a file's size differs from the note, or the note is damaged.
    """
    folder = os.path.dirname(files[0])
    rows = _content(folder)
    names = [os.path.basename(file) for file in files]
    if not all(name in rows for name in names):
        return None
    for file, name, size in zip(files, names, _sizes(files)):
        if size != rows[name][0]:
            raise UserError(
                f"{file}: has {size} bytes, {NAME} beside it says {rows[name][0]}; copy it again or, if it was "
                f"replaced, count anew: {_command(folder)}"
            )
    return [rows[name][1] for name in names]


def counts(files: Sequence[str]) -> list[int]:
    """Returns each file's number of records, from the note or else by counting; for use on the clock.

    Raises UserError as `noted` does, or if a file ends inside a record.
    """
    numbers = noted(files)
    return list(_counted(tuple(files), tuple(_sizes(files)))) if numbers is None else numbers


def known_or_read(files: Sequence[str], read: bool) -> list[int] | None:
    """Returns `counts`, or None if no note lists the files and they may not be read or are in an object store.

    Without a note, and with `read` False, the first process prints to standard error that the run will count.
    """
    numbers = noted(files)
    if numbers is None and "://" not in files[0]:
        if read:
            return counts(files)
        folder = os.path.dirname(files[0])
        process.print_once(
            f"{files[0]} and the like: {NAME} does not know them, so the run counts their records on the clock; "
            f"note them before: {_command(folder)}"
        )
    return numbers


def check_totals(files: Sequence[str], expected: int, field: str, read: bool = True) -> None:
    """Checks that files hold as many records as the configuration says.

    A file that was cut off between two records looks complete; only the total reveals it. Files in an object store are
    checked only against a note, because counting would read them. Raises UserError if the number differs (the message
    names the file with the fewest records), a file ends inside a record, or a file does not match the note.

    Args:
      expected: total number of records.
      field: the configuration field with that number.
      read: whether files without a note may be read; False before the clock starts.
    """
    numbers = known_or_read(files, read)
    if numbers is None:
        return
    total = sum(numbers)
    if total == expected:
        return
    fewest = min(range(len(files)), key=numbers.__getitem__)
    missing = "was a file lost?"
    if numbers[fewest] < max(numbers):
        missing = f"was it cut off? It has {numbers[fewest]}, others up to {max(numbers)}"
    raise UserError(
        f"{files[fewest]}: {len(files)} such files hold {total} records, config.{field} is {expected}; {missing}; give "
        f"all of them whole, or --config.{field}={total}"
    )


def _content(folder: str | os.PathLike) -> dict[str, list[int]]:
    """Returns {name: [bytes, records]} from the note in a folder; {} if there is none."""
    path = os.path.join(os.fspath(folder), NAME)
    if not tf.io.gfile.exists(path):
        return {}
    try:
        with tf.io.gfile.GFile(path) as file:
            content = json.load(file)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, this version reads {FORMAT}")
        return {str(name): [int(size), int(count)] for name, (size, count) in content["files"].items()}
    except (tf.errors.OpError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = getattr(error, "message", error)
        raise UserError(f"{path}: no note of records ({why}); remove it, then {_command(folder)}") from error


def _command(folder: str | os.PathLike) -> str:
    return f"python -m {benchmarks.command('common.data.record_counts')} {os.fspath(folder)}"


def _sizes(files: Sequence[str]) -> list[int]:
    if "://" in files[0]:
        return _parallel(lambda file: tf.io.gfile.stat(file).length, files)
    return [os.path.getsize(file) for file in files]


@functools.lru_cache(maxsize=4)
def _counted(files: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    del sizes  # Only part of the cache key: a file may have grown or been cut.
    return tuple(_parallel(tfrecords.count, files))


def _parallel(function: Callable[[str], Any], files: Sequence[str]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, files))


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m common.data.record_counts DATA_DIR`; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1 or not os.path.isdir(arguments[0]):
        raise UserError(f"give a folder of TFRecords: {_command('DATA_DIR')}")
    folder = Path(arguments[0])
    names = [path.name for path in folder.glob("*-of-*") if path.suffix != ".npz" and path.is_file()]
    if not names:
        raise UserError(f"{folder} holds no files *-of-*; name the folder of the TFRecords")
    numbers = write(folder, names)
    print(f"{sum(numbers.values())} records in {len(numbers)} files, noted in {folder / NAME}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
