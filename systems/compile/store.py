"""Stores the compilers' reports: one file of JSON lines per benchmark, results/BENCHMARK.jsonl.

A line is {"preset": record} or {"program": report}. Records come first, ordered by system; reports follow, ordered by
name. So a changed result is a changed line. Several processes may write: a writer holds a lock while it reads the
file, adds to it and replaces it, so a reader sees the file either before or after.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import locked, write_atomically

RESULTS = Path(__file__).parent / "results"
_PRESET, _PROGRAM = "preset", "program"


@dataclasses.dataclass(frozen=True)
class File:
    """A benchmark's stored data; must not be modified, since readers share it.

    Attributes:
      presets: {system: record}, as series.py writes it.
      programs: {name: report}, by `name_of`.
    """

    presets: Mapping[str, dict[str, Any]]
    programs: Mapping[str, dict[str, Any]]


def name_of(report: Mapping[str, Any]) -> str:
    """A report's name: program digest, device, number of replicas and compiler version."""
    return "{digest}-{target}-{replicas}-{compiler}".format(**report)


def read(benchmark: str, results: Path = RESULTS) -> File:
    """Reads a benchmark's file; empty if there is none.

    Raises UserError if a line is not in this module's format.
    """
    place = results / f"{benchmark}.jsonl"
    try:
        about = place.stat()
    except FileNotFoundError:
        return File({}, {})
    return _read(place, about.st_mtime_ns, about.st_size, about.st_ino)


@functools.lru_cache(maxsize=16)
def _read(place: Path, *_version: int) -> File:
    presets, programs = {}, {}
    for number, line in enumerate(place.read_text(encoding="utf-8").splitlines(), 1):
        try:
            ((kind, content),) = json.loads(line).items()
            if kind == _PRESET:
                presets[content["system"]] = content
            else:
                programs[name_of(content)] = content
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(
                f"{place}: line {number} is not a result ({error!r}); restore the file"
            ) from error
    return File(presets, programs)


def benchmarks(results: Path = RESULTS) -> list[str]:
    """The benchmarks with stored data, by name."""
    return sorted(place.stem for place in results.glob("*.jsonl"))


def put_preset(record: dict[str, Any], results: Path = RESULTS) -> None:
    """Stores a preset's record, replacing an earlier one; the record names its "benchmark" and "system".

    Raises UserError if the folder cannot be written; the functions below raise it too.
    """
    system = record["system"]
    _change(record["benchmark"], results, lambda data: File({**data.presets, system: record}, data.programs))


def put_program(benchmark: str, report: dict[str, Any], results: Path = RESULTS) -> None:
    """Stores a program's report, replacing an earlier one of the same name."""
    _change(benchmark, results, lambda data: File(data.presets, {**data.programs, name_of(report): report}))


def prune(results: Path = RESULTS) -> None:
    """Removes reports that no record names: reports on programs from before a code change."""

    def without_unnamed(data: File) -> File:
        names = {name for record in data.presets.values() for name in record.get("programs", {}).values()}
        return File(data.presets, {name: data.programs[name] for name in data.programs if name in names})

    for benchmark in benchmarks(results):
        _change(benchmark, results, without_unnamed)


def _change(benchmark: str, results: Path, changed: Callable[[File], File]) -> None:
    try:
        results.mkdir(parents=True, exist_ok=True)
        with locked(results):
            text = "".join(_lines(changed(read(benchmark, results))))
            write_atomically(results / f"{benchmark}.jsonl", text.encode())
    except OSError as error:
        raise UserError(
            f"{results}: cannot write: {error.strerror}; name a folder that can be written"
        ) from error


def _lines(data: File) -> Iterable[str]:
    for kind, entries in ((_PRESET, data.presets), (_PROGRAM, data.programs)):
        yield from (json.dumps({kind: entries[name]}) + "\n" for name in sorted(entries))
