"""Helpers for data-set converters: write shards in several processes, and keep one conversion per folder.

TensorFlow-free.
"""

import concurrent.futures
import contextlib
import hashlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tqdm

from common.errors import UserError

_SAMPLE = 1 << 15  # Bytes at a file's start and end that stand for its content.
_LINE_SECONDS = 10.0  # Minimum seconds between two lines about progress.


@contextlib.contextmanager
def deaths_explained() -> Iterator[None]:
    """Raises UserError in place of a pool's exception if one of its worker processes was killed."""
    try:
        yield
    except concurrent.futures.BrokenExecutor as error:
        raise UserError("a worker process died; is there enough memory? use fewer --workers") from error


def write_shards(write: Callable, tasks: Sequence[tuple], workers: int) -> list[Any]:
    """Calls `write(*task)` for each task in `workers` processes, shows progress, and returns the results in any order.

    The first exception cancels all tasks; the function then raises it. Raises UserError if a worker process was killed.
    """
    if workers < 2 or len(tasks) < 2:
        return [write(*task) for task in _progress(tasks, len(tasks))]
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork.
    with deaths_explained(), concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = [pool.submit(write, *task) for task in tasks]
        try:
            done = _progress(concurrent.futures.as_completed(running), len(running))
            return [future.result() for future in done]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _progress(steps: Iterable, total: int) -> Iterator:
    """Yields from `steps`; shows a progress bar in a terminal; elsewhere prints a line every _LINE_SECONDS."""
    if sys.stderr.isatty():
        yield from tqdm.tqdm(steps, total=total, unit="shard")
        return
    last_line = time.monotonic()
    for done, step in enumerate(steps, 1):
        yield step
        if time.monotonic() - last_line >= _LINE_SECONDS:
            last_line = time.monotonic()
            print(f"{done} of {total} shards", file=sys.stderr, flush=True)


def fingerprint(paths: Iterable[str | os.PathLike]) -> str:
    """Returns a digest of files by size, start and end, so that a conversion does not go on with changed files."""
    digest = hashlib.sha256()
    groups = (sorted(os.scandir(path), key=str) if os.path.isdir(path) else [path] for path in paths)
    for path in dict.fromkeys(os.fspath(one) for part in groups for one in part):
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"{size}\n".encode())
                for at in sorted({0, max(0, size - _SAMPLE)}):
                    file.seek(at)
                    digest.update(file.read(_SAMPLE))
        except OSError:  # The converter says so when it reads the file.
            digest.update(b"missing\n")
    return digest.hexdigest()


def digest_of(splits: Mapping[str, tuple], line_of: Callable[[Any], str], settings: str = "") -> str:
    """Returns a digest of settings and `splits`, {prefix: (items, number of shards)}.

    `line_of` returns what counts of an item beside the `fingerprint` of its `path`.
    """
    digest = hashlib.sha256(settings.encode())
    for split, (items, shards) in splits.items():
        digest.update(f"{split} {shards}\n".encode())
        for item in items:
            digest.update(f"{line_of(item)}\n".encode(errors="surrogateescape"))
        digest.update(fingerprint(item.path for item in items).encode())
    return digest.hexdigest()


def verify(path: str | os.PathLike, expected: str | None) -> None:
    """Raises UserError if the file's MD5 checksum is not `expected`; None accepts any."""
    if not expected:
        return
    digest = hashlib.md5(usedforsecurity=False)
    try:
        size, done = os.path.getsize(path), 0
        with open(path, "rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
                before, done = done, done + len(block)
                if size > 1 << 30 and done * 10 // size > before * 10 // size:
                    print(f"verifying {path}: {done * 100 // size} %", file=sys.stderr, flush=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; download it again") from error
    if digest.hexdigest() != expected.lower():
        fix = "remove it and download it again"
        raise UserError(f"{path}: MD5 is {digest.hexdigest()}, not {expected}; {fix}")


def keep_apart(folder: Path, splits: Iterable[str], note: str, text: str) -> None:
    """Ensures that a folder holds the shards of only one conversion.

    Raises UserError if the folder holds shards of another conversion, or cannot be written.

    Args:
      folder: folder of the shards; created if missing.
      splits: prefixes of the shards' names.
      note: name of a file in `folder` that describes the conversion.
    """
    path = folder / note
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = next((p.name for split in splits for p in folder.glob(f"{split}-*-of-*")), None)
        if present and (not path.is_file() or path.read_text() != text):
            raise UserError(
                f"{folder} holds {present} of another conversion, or of files that have changed; remove it or name "
                "another DATA_DIR"
            )
        path.write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name another DATA_DIR") from error
