"""Implements `python -m BENCHMARK.tiny DATA_DIR`: fills the folder with a benchmark's generated data set."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.config import benchmarks
from common.errors import Parser, UserError, answering
from common.files import left_behind, whole

NOTE = "tiny.json"


@answering()
def main(
    benchmark: str, generate: Callable[[str], object], holds: str, argv: Sequence[str] | None = None
) -> int:
    """Calls `generate(DATA_DIR)` and returns the exit status; `holds` describes the folder's content in the help."""
    parser = Parser(
        prog=f"python -m {benchmarks.command(benchmark)}.tiny", description="Generate the data of cpu-tiny."
    )
    parser.add_argument("data_dir", help=f"folder for the {holds}")
    arguments = parser.parse_args(argv)
    generate(arguments.data_dir)
    return 0


def make(
    benchmark: str,
    data_dir: str | os.PathLike,
    settings: Mapping[str, Any],
    patterns: Sequence[str],
    write: Callable[[Path], Any],
) -> Any:
    """Fills `data_dir` by `write(folder)`; does nothing if the same data are already there, complete.

    The note tiny.json holds the benchmark's name, the settings, the return value of `write` and the file names, or it
    says that the data are unfinished. Raises UserError if the folder holds something else or another benchmark's data,
    or cannot be written.

    Args:
      settings: everything that determines the data, as JSON values.
      patterns: glob patterns of the files and folders that `write` makes.
      write: makes them in a folder that holds none of them.

    Returns:
      The return value of `write` when it made the data.
    """
    folder = Path(data_dir)
    note = folder / NOTE
    settings = json.loads(json.dumps(settings))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        old_note = _noted(note, benchmark) or {"files": []}
        files = old_note.get("files")
        if old_note.get("settings") == settings and files and all((folder / name).exists() for name in files):
            return old_note.get("result")
        present = _present(folder, patterns)
        # Unfinished data have no list of files, but the folder held no other files when they were started.
        others = [name for name in present if files is not None and name not in files]
        if others:
            raise UserError(f"{folder} holds {others[0]}, not made by this program; give another DATA_DIR")
        _write(note, json.loads(unfinished(benchmark)))
        for path in (folder / name for name in present):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        result = write(folder)
        content = {"benchmark": benchmark, "settings": settings, "result": result}
        _write(note, {**content, "files": _present(folder, patterns)})
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {folder}: {reason}; name another DATA_DIR") from error
    return result


def unfinished(benchmark: str) -> str:
    """Returns the note for unfinished data; the next call makes them again."""
    return json.dumps({"benchmark": benchmark, "unfinished": True})


def _present(folder: Path, patterns: Sequence[str]) -> list[str]:
    names = {path.name for pattern in patterns for path in folder.glob(pattern)}
    return sorted(names - {NOTE, *(path.name for path in left_behind(folder, NOTE))})


def _write(note: Path, content: Mapping[str, Any]) -> None:
    """Writes the note atomically, because an unparsable note counts as another program's file."""
    with whole(note) as partial:
        partial.write_text(json.dumps(content, sort_keys=True))


def _noted(path: Path, benchmark: str) -> dict[str, Any] | None:
    """Returns the note at `path`, for finished or unfinished data; None if this module wrote no note there.

    Raises UserError if the data belong to another benchmark.
    """
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict):
        return None
    owner = note.get("benchmark")
    if owner != benchmark:
        whose = f"the generated data of {owner}" if owner else "generated data without a benchmark's name"
        raise UserError(f"{path.parent} holds {whose} ({path.name}); give another DATA_DIR, or delete it")
    return note
